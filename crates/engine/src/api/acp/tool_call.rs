//! Splits the input of a tool call: the tool's own input, the diffs and the locations.
//!
//! For an agent that speaks this protocol, the evaluated input has all three; for others it is only
//! the tool's own input. Must not know how the input is evaluated.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::session_state::WorkspaceRoots;
use super::update::small;
use marshal_model::limits;

/// The parts of a call's input.
#[derive(Debug)]
pub struct ToolCallInput<'a> {
    /// The tool's own input.
    pub tool_input: &'a RawValue,
    content: Vec<&'a RawValue>,
    locations: Vec<&'a RawValue>,
}

/// A change of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Diff {
    #[serde(rename = "type")]
    kind: String,
    path: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    old_text: Option<String>,
    new_text: String,
}

/// A file and line that a call works on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Location {
    path: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
}

/// Splits an input into its parts.
#[must_use]
pub fn parse(input: &RawValue) -> ToolCallInput<'_> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase", deny_unknown_fields)]
    struct Judged<'a> {
        #[serde(borrow)]
        raw_input: Option<&'a RawValue>,
        #[serde(borrow)]
        content: Option<Vec<&'a RawValue>>,
        #[serde(borrow)]
        locations: Option<Vec<&'a RawValue>>,
        #[serde(rename = "title")]
        _title: Option<serde::de::IgnoredAny>,
        #[serde(rename = "shown_content")]
        _shown_content: Option<serde::de::IgnoredAny>,
    }
    let judged =
        small(input).and_then(|input| serde_json::from_str::<Judged<'_>>(input.get()).ok());
    let judged = judged.filter(|item| {
        item.raw_input.is_some() || item.content.is_some() || item.locations.is_some()
    });
    match judged {
        Some(judged) => ToolCallInput {
            tool_input: judged.raw_input.unwrap_or(input),
            content: judged.content.unwrap_or_default(),
            locations: judged.locations.unwrap_or_default(),
        },
        None => ToolCallInput {
            tool_input: input,
            content: Vec::new(),
            locations: Vec::new(),
        },
    }
}

impl ToolCallInput<'_> {
    /// Returns the diffs, with paths as the editor knows them.
    #[must_use]
    pub fn diffs(&self, places: &WorkspaceRoots) -> Vec<Diff> {
        let diff = |raw: &&RawValue| {
            let diff: Diff = serde_json::from_str(raw.get()).ok()?;
            (diff.kind == "diff").then(|| Diff {
                path: places.to_editor_path(&diff.path),
                ..diff
            })
        };
        let all = self.content.iter().filter_map(diff);
        all.take(limits::CALL_PATHS).collect()
    }

    /// Returns the locations; `None` if the agent sent none.
    #[must_use]
    pub fn locations(&self, places: &WorkspaceRoots) -> Option<Vec<Location>> {
        let location = |raw: &&RawValue| {
            let location: Location = serde_json::from_str(raw.get()).ok()?;
            Some(Location {
                path: places.to_editor_path(&location.path),
                ..location
            })
        };
        let all = self.locations.iter().filter_map(location);
        let all: Vec<_> = all.take(limits::CALL_PATHS).collect();
        (!all.is_empty()).then_some(all)
    }
}
