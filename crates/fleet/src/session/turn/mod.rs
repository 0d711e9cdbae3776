//! What happens while the child runs: the attempt, its budget, its commands and settings.

pub(super) mod budget;
pub(super) mod commands;
pub(super) mod graceful_interrupt;
pub(super) mod rate_limit;
pub(super) mod settings;
pub(super) mod tally;
pub(super) mod task_run;
pub(super) mod transcript;
