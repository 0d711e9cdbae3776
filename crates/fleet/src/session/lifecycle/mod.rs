//! From the prepared home to the report: how a session starts its children, goes on with the next
//! task, and ends.

pub(super) mod agent_link;
pub(super) mod child_start;
pub(super) mod ending;
pub(super) mod next_task;
pub(crate) mod outcome;
pub(super) mod work;
