//! What is known of a session while its events are told: what it can be set to, where its files
//! are, what its editor understands.
//!
//! Must not know how an event is told.

use std::collections::VecDeque;

use serde_json::{Value, json};

use super::tool_call::{self, Diff};
use marshal_model::{ChoiceInfo, Event, OptionState, UntrustedText};

/// Calls whose differences are kept until they end.
const CALLS: usize = 32;

/// What an editor said that it understands beside the least.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ClientCapabilities {
    /// Options that are true or false.
    pub switches: bool,
    /// Notices.
    pub notices: bool,
    /// That the context is made shorter.
    pub compaction: bool,
}

/// The workspace's root on both sides.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WorkspaceRoots {
    /// As the agent names it.
    pub agent_root: String,
    /// As the editor does.
    pub editor_root: String,
}

impl WorkspaceRoots {
    /// A path of the agent as the editor knows it. What is not in the workspace stays as it is.
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

/// What is known of one session.
#[derive(Debug, Default)]
pub struct SessionState {
    /// What its editor understands.
    pub capabilities: ClientCapabilities,
    /// Where its files are.
    pub roots: WorkspaceRoots,
    modes: Vec<ChoiceInfo>,
    mode: Option<UntrustedText>,
    options: Vec<OptionState>,
    diffs: VecDeque<(UntrustedText, Vec<Diff>)>,
}

impl SessionState {
    /// Of a session of this editor.
    #[must_use]
    pub fn new(can: ClientCapabilities) -> Self {
        Self {
            capabilities: can,
            ..Self::default()
        }
    }

    /// Takes in what an event says.
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
        self.diffs.retain(|(of, _)| of != id);
    }

    /// How a call that has not ended changes files.
    pub(super) fn diffs_of(&self, id: &UntrustedText) -> Vec<Diff> {
        let found = self.diffs.iter().find(|(of, _)| of == id);
        found.map(|(_, diffs)| diffs.clone()).unwrap_or_default()
    }

    pub(super) fn has_mode(&self, mode: &UntrustedText) -> bool {
        self.modes.iter().any(|of| of.id == *mode)
    }

    /// Options in the protocol's form: those that the editor can set.
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
            let choices = option.choices.iter();
            let choices = choices
                .map(|of| json!({"value": of.id.raw(), "name": name(of.name.as_ref(), &of.id)}));
            told["type"] = "select".into();
            told["currentValue"] = value?.into();
            told["options"] = choices.collect();
            (!option.choices.is_empty()).then_some(told)
        };
        options.iter().filter_map(option).collect()
    }

    /// All of its options as they are now.
    #[must_use]
    pub fn config_options(&self) -> Vec<Value> {
        self.options(&self.options)
    }

    /// Adds what the session can be set to to the reply of its opening.
    pub fn add_to(&self, reply: &mut Value) {
        if let Some(mode) = self.mode.as_ref().filter(|mode| self.has_mode(mode)) {
            let offered = self.modes.iter().map(|of| {
                let name = of.name.as_ref().unwrap_or(&of.id);
                json!({"id": of.id.raw(), "name": name.raw()})
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
