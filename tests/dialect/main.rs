//! The dialects from outside: what each line of an agent brings about, and what we write.

mod corpus;
mod fuzz;
mod scaiflux;
mod script;
