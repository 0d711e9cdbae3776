//! The bounds of what waits for people.

use std::time::Duration;

/// Answers that one session remembers until it ends, and one turn until that ends; a further one
/// holds once.
pub const ANSWERS_REMEMBERED: usize = 256;

/// Remembered answers that a start takes over, of all sessions together; the newest.
pub const ANSWERS_TAKEN_UP: u32 = 10_000;

/// Identical requests that wait for the answer to one question; one more is denied. Each keeps its
/// input, of [`super::ASK_INPUT_BYTES`] at most.
pub const QUESTION_REQUESTS: usize = 4;

/// Questions in one list. More than [`super::ASKS_PER_POOL`] of each of a few pools.
pub const QUESTIONS_LISTED: u32 = 500;

/// Characters of a person's reason.
pub const ANSWER_REASON_CHARS: usize = 1000;

/// How long whoever answers waits until it holds for good.
pub const ANSWER_WAIT: Duration = Duration::from_secs(20);
