//! What can be chosen in an open session, and what a person chose.

use super::UntrustedText;

/// Something to choose: a mode, or a value of an option.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChoiceInfo {
    /// Its id.
    pub id: UntrustedText,
    /// Its name for people.
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
            (Self::Option { id, .. }, Self::Option { id: of, .. }) => id == of,
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
