//! An agent and a model server that need no key, for a first look, for tests and for rehearsals.
//!
//! The script agent speaks every dialect and must share no code with `marshal-dialect`: the two check
//! each other. Neither part knows the supervisor.

pub mod script_agent;
pub mod script_model;
