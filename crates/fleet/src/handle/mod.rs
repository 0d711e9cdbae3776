//! What a fleet can be asked to do: the methods of [`super::FleetHandle`], by subject.

pub(crate) mod approvals;
pub(crate) mod chats;
pub(crate) mod commands;
pub(crate) mod commits;
pub(crate) mod conversation;
pub(crate) mod conversation_list;
pub(crate) mod exec;
pub(crate) mod keys;
pub(crate) mod landing;
pub(crate) mod liveness;
pub(crate) mod operator;
pub(crate) mod outage;
pub(crate) mod reload;
pub(crate) mod resume_run;
pub(crate) mod run_bounds;
pub(crate) mod session_subscriptions;
pub(crate) mod supervisor_actions;
pub(crate) mod task_dependencies;
pub(crate) mod views;
