//! The limits of plans that several agents work on.

use std::time::Duration;

/// Agents that work on one plan.
pub const PLAN_MEMBERS: usize = 16;

/// Bytes of the command that says whether a goal is met.
pub const CHAT_CHECK_BYTES: usize = 4096;

/// Bytes of what is sent while a goal is not met.
pub const CHAT_CONTINUE_BYTES: usize = 16 << 10;

/// Rounds that are sent where a check still fails, unless a chat says less or more.
pub const PLAN_ROUNDS: u32 = 10;

/// The most that a chat may say.
pub const PLAN_ROUNDS_MAX: u32 = 1000;

/// Turns that may fail for one item.
pub const PLAN_ITEM_TRIES: u32 = 2;

/// Turns for one item, or of one planner, that may go with the supervisor.
pub const PLAN_LOST_TURNS: u32 = 100;

/// Orders of people that wait for one plan.
pub const PLAN_COMMAND_QUEUE: usize = 16;

/// Events of members that are reported in one step.
pub const PLAN_FORWARDED: u32 = 200;

/// Retries of a tick because another process wrote the file at the same time.
pub const PLAN_TICK_RETRIES: u32 = 16;

/// Looks, each some time after the last, at a file that is no plan any more before the work ends.
pub const PLAN_MISSING_RETRIES: u32 = 5;

/// Bytes of a person's reason against a plan.
pub const PLAN_REASON_BYTES: usize = 16 << 10;

/// How long a changed plan is left alone, so that several changes are one.
pub const PLAN_SETTLE: Duration = Duration::from_millis(50);

/// Versions of a plan's file that are looked through for whoever wrote an item.
pub const PLAN_HISTORY: u32 = 64;

/// Turns in a row that are had only so that the check is run.
pub const PLAN_CHECK_ONLY_TURNS: u32 = 3;

/// The shortest time between two changes of a plan that waits for approval and are told.
pub const PLAN_REVIEW_INTERVAL: Duration = Duration::from_secs(2);

/// What was said of a plan that is shown: the newest.
pub const PLAN_REVIEWS_LISTED: u32 = 200;

/// Items of a plan, written by people, that are gone and are still known: the newest.
pub const PLAN_REMOVED_ITEMS: usize = 1000;
