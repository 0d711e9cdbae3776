//! Plans that people and agents work through, as ordinary Markdown files.
//!
//! Floor 1, pure: text in, text out.

pub mod checklist;
pub mod prompt;

pub use checklist::{Checklist, ChecklistDiff, ChecklistError, ChecklistItem, ItemId, Progress};
