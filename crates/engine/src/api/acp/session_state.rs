//! The state of a session as its events are forwarded: its options, its workspace roots and the
//! capabilities of its editor.
//!
//! Must not know how an event is sent.

use std::collections::VecDeque;

use serde_json::{Value, json};

use super::tool_call::{self, Diff};
use marshal_model::{ChoiceInfo, Event, OptionState, UntrustedText};

/// The maximum number of open calls whose diffs are kept.
const CALLS: usize = 32;

/// The optional capabilities that an editor announced.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ClientCapabilities {
    /// The editor supports boolean options.
    pub switches: bool,
    /// The editor supports notices.
    pub notices: bool,
    /// The editor supports updates about context compaction.
    pub compaction: bool,
}

/// The workspace's root for the agent and for the editor.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WorkspaceRoots {
    /// The path in the agent's sandbox.
    pub agent_root: String,
    /// The path that the editor uses.
    pub editor_root: String,
}

impl WorkspaceRoots {
    /// Converts a path of the agent to the editor's. A path outside the workspace stays as it is.
    #[must_use]
    pub fn to_editor_path(&self, path: &str) -> String {
        let below = path.strip_prefix(self.agent_root.as_str()).filter(|below| {
            !self.agent_root.is_empty() && (below.is_empty() || below.starts_with('/'))
        });
        match below {
            Some(below) => format!("{}{below}", self.editor_root),
            None => path.to_owned(),
        }
    }
}

/// The state of one session.
#[derive(Debug, Default)]
pub struct SessionState {
    /// The capabilities of its editor.
    pub capabilities: ClientCapabilities,
    /// The roots of its workspace.
    pub roots: WorkspaceRoots,
    modes: Vec<ChoiceInfo>,
    mode: Option<UntrustedText>,
    options: Vec<OptionState>,
    diffs: VecDeque<(UntrustedText, Vec<Diff>)>,
}

impl SessionState {
    /// Creates the state of a session for an editor with these capabilities.
    #[must_use]
    pub fn new(can: ClientCapabilities) -> Self {
        Self {
            capabilities: can,
            ..Self::default()
        }
    }

    /// Updates the state from an event.
    pub fn apply_event(&mut self, event: &Event) {
        match event {
            Event::Ready(info) => {
                self.modes.clone_from(&info.modes);
                self.mode.clone_from(&info.mode);
            }
            Event::StateChanged {
                mode: Some(mode), ..
            } => self.mode = Some(mode.clone()),
            Event::Options { options } => self.options.clone_from(options),
            Event::ToolStart { id, input, .. }
            | Event::ToolUpdate {
                id,
                input: Some(input),
                ..
            } => {
                let diffs = tool_call::parse(input).diffs(&self.roots);
                self.forget_diffs(id);
                if !diffs.is_empty() {
                    self.diffs.push_back((id.clone(), diffs));
                    while self.diffs.len() > CALLS {
                        self.diffs.pop_front();
                    }
                }
            }
            Event::TurnEnded { .. } => self.diffs.clear(),
            _ => {}
        }
    }

    fn forget_diffs(&mut self, id: &UntrustedText) {
        self.diffs.retain(|(item, _)| item != id);
    }

    /// Returns the diffs of a call that has not ended.
    pub(super) fn diffs_of(&self, id: &UntrustedText) -> Vec<Diff> {
        let found = self.diffs.iter().find(|(item, _)| item == id);
        found.map(|(_, diffs)| diffs.clone()).unwrap_or_default()
    }

    pub(super) fn has_mode(&self, mode: &UntrustedText) -> bool {
        self.modes.iter().any(|item| item.id == *mode)
    }

    /// Converts to the protocol's form the options that the editor can set.
    pub(super) fn options(&self, options: &[OptionState]) -> Vec<Value> {
        let name =
            |name: Option<&UntrustedText>, id: &UntrustedText| name.unwrap_or(id).raw().to_owned();
        let option = |option: &OptionState| {
            let mut told = json!({
                "id": option.id.raw(),
                "name": name(option.name.as_ref(), &option.id),
            });
            if let Some(category) = &option.category {
                told["category"] = category.raw().into();
            }
            let value = option.value.as_ref().map(UntrustedText::raw);
            if option.is_switch && self.capabilities.switches {
                told["type"] = "boolean".into();
                told["currentValue"] = (value == Some("true")).into();
                return Some(told);
            }
            let choices = option.choices.iter().map(
                |item| json!({"value": item.id.raw(), "name": name(item.name.as_ref(), &item.id)}),
            );
            told["type"] = "select".into();
            told["currentValue"] = value?.into();
            told["options"] = choices.collect();
            (!option.choices.is_empty()).then_some(told)
        };
        options.iter().filter_map(option).collect()
    }

    /// Returns all options with their current values.
    #[must_use]
    pub fn config_options(&self) -> Vec<Value> {
        self.options(&self.options)
    }

    /// Adds the modes and options to the reply that opens the session.
    pub fn add_to(&self, reply: &mut Value) {
        if let Some(mode) = self.mode.as_ref().filter(|mode| self.has_mode(mode)) {
            let offered = self.modes.iter().map(|item| {
                let name = item.name.as_ref().unwrap_or(&item.id);
                json!({"id": item.id.raw(), "name": name.raw()})
            });
            reply["modes"] = json!({
                "currentModeId": mode.raw(),
                "availableModes": offered.collect::<Vec<_>>(),
            });
        }
        let options = self.config_options();
        if !options.is_empty() {
            reply["configOptions"] = options.into();
        }
    }
}
