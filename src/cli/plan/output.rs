//! The output while a plan runs, for a person or a program.
//!
//! Must not know how a plan runs.

use marshal_engine::api::run_stream::RunStreamItem;
use marshal_model::untrusted::escape_for_display;
use marshal_model::{RunId, TaskId};

/// Columns shown of an item's text in a sentence.
pub(super) const ITEM_WIDTH: usize = 160;

/// One output.
pub(in crate::cli) enum PlanOutput {
    Item(Option<RunStreamItem>, Option<String>),
    /// A run with these tasks was started.
    RunStarted(RunId, Vec<TaskId>),
    Step(Step),
    Note(String),
    /// This task need not succeed.
    Excused(TaskId),
}

/// A change of an item's status.
#[derive(Debug, Clone, serde::Serialize)]
pub(in crate::cli) struct Step {
    pub(super) v: u32,
    pub(super) r#type: &'static str,
    #[serde(rename = "step")]
    pub(super) place: usize,
    pub(super) status: &'static str,
    pub(super) content: String,
    pub(super) task: String,
    pub(super) done: usize,
    pub(super) total: usize,
}

impl Step {
    /// The step as one JSON object.
    pub(in crate::cli) fn json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// A sentence that is safe to show; `None` for a status that is not shown.
    pub(in crate::cli) fn text(&self) -> Option<String> {
        let word = match self.status {
            "done" => "is done",
            "blocked" => "is not done",
            _ => return None,
        };
        let (done, total) = (self.done, self.total);
        let content = escape_for_display(&self.content, ITEM_WIDTH);
        Some(format!(
            "plan: item {} {word} ({done} of {total}): {content}",
            self.place
        ))
    }
}
