//! What events of an agent carry: its usage and cost, the steps of its plan, its commands and
//! options, and what a person chose of them.

use std::ops::Not;

use super::UntrustedText;
use serde::{Deserialize, Serialize};

/// Tokens, as the agent reports them; 0 where it does not.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Tokens read by the model.
    pub input: u64,
    /// Tokens written by the model.
    pub output: u64,
}

/// One step of an agent's plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanEntry {
    /// What is to be done.
    pub content: UntrustedText,
    /// `high`, `medium`, `low`, or the agent's own word.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<UntrustedText>,
    /// `pending`, `in_progress`, `completed`, or the agent's own word.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<UntrustedText>,
}

/// A command that an agent understands in a prompt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandInfo {
    /// Its name, without a slash.
    pub name: UntrustedText,
    /// What it does, cut to `limits::ADVERTISED_TEXT_BYTES`.
    pub description: UntrustedText,
    /// What its input is to be, where it takes one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<UntrustedText>,
}

/// An option of a session, as it stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OptionState {
    /// Its id.
    pub id: UntrustedText,
    /// Its name for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<UntrustedText>,
    /// What it is about (`mode`, `model`, …), where the agent says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub category: Option<UntrustedText>,
    /// Its value; `true` or `false` where it is a switch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<UntrustedText>,
    /// The values that may be chosen, at most `limits::ADVERTISED_ITEMS`; none where it is a switch, or may
    /// not be set.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub choices: Vec<ChoiceInfo>,
    /// It may be set to `true` and `false`.
    #[serde(rename = "switch", default, skip_serializing_if = "Not::not")]
    pub is_switch: bool,
}

/// What a session has cost so far, as the agent reports it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// The amount, finite.
    pub amount: f64,
    /// Its currency, as the agent names it (ISO 4217).
    pub currency: UntrustedText,
}

/// Something to choose: a mode, or a value of an option.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChoiceInfo {
    /// Its id.
    pub id: UntrustedText,
    /// Its name for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<UntrustedText>,
}

/// What a person chose.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Setting {
    /// A mode, by its id.
    Mode(String),
    /// An option's value.
    Option {
        /// Which option.
        id: String,
        /// Its value.
        value: SettingValue,
    },
}

impl Setting {
    /// Whether both set the same thing, to whatever.
    #[must_use]
    pub fn has_same_target(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Mode(_), Self::Mode(_)) => true,
            (Self::Option { id, .. }, Self::Option { id: item, .. }) => id == item,
            _ => false,
        }
    }
}

/// The value of an option.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SettingValue {
    /// One of those that the agent offers.
    Choice(String),
    /// On or off.
    Switch(bool),
}
