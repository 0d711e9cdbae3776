//! Plans that people and agents work on, as ordinary Markdown files.
//!
//! Pure: text in, text out.

pub mod checklist;
pub mod prompt;

pub use checklist::{Checklist, ChecklistDiff, ChecklistError, ChecklistItem, ItemId, Progress};
