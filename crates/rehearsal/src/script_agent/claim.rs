//! The protocol version that the agent claims, for tests of the supervisor's version gate.
//!
//! Must not know messages.

use serde_json::Value;

/// The claimed version.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum VersionClaim {
    /// The field is left out.
    Absent,
    /// A number, or any other JSON value.
    Value(Value),
    /// The version that the controller requests, in a protocol where it requests one.
    Echo,
    /// An error instead of a version, in a protocol with replies.
    Error,
    /// Version 2 of ACP, with its message forms.
    AcpV2,
}

impl VersionClaim {
    /// Parses the argument. `none` leaves the field out; a JSON value is claimed as such, any other
    /// text as a string.
    pub(super) fn parse(text: &str) -> Self {
        match text {
            "none" => Self::Absent,
            "echo" => Self::Echo,
            "error" => Self::Error,
            "v2" => Self::AcpV2,
            _ => Self::Value(
                serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned())),
            ),
        }
    }

    /// The claim when no version was requested.
    pub(super) fn default_value(&self) -> Option<Value> {
        match self {
            Self::Absent => None,
            Self::Value(value) => Some(value.clone()),
            Self::Echo => Some("echo".into()),
            Self::Error => Some("error".into()),
            Self::AcpV2 => Some("v2".into()),
        }
    }

    /// The claim where a version is a release: the number N becomes `N.0.0`.
    pub(super) fn as_release(&self) -> Option<Value> {
        match self {
            Self::Value(Value::Number(major)) => Some(format!("{major}.0.0").into()),
            _ => self.default_value(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_is_a_number_a_text_or_nothing() {
        let value = |value: Value| VersionClaim::Value(value);
        assert_eq!(VersionClaim::parse("1"), value(1.into()));
        assert_eq!(VersionClaim::parse("-1"), value((-1).into()));
        assert_eq!(VersionClaim::parse("\"1\""), value("1".into()));
        assert_eq!(VersionClaim::parse("\"echo\""), value("echo".into()));
        assert_eq!(VersionClaim::parse("one"), value("one".into()));
        assert_eq!(VersionClaim::parse("null"), value(Value::Null));
        assert_eq!(VersionClaim::parse("none"), VersionClaim::Absent);
        assert_eq!(VersionClaim::parse("echo"), VersionClaim::Echo);
        assert_eq!(VersionClaim::parse("error"), VersionClaim::Error);
        assert_eq!(VersionClaim::parse("v2"), VersionClaim::AcpV2);
    }

    #[test]
    fn a_release_is_a_text() {
        assert_eq!(VersionClaim::parse("3").as_release(), Some("3.0.0".into()));
        assert_eq!(
            VersionClaim::parse("2.1.330").as_release(),
            Some("2.1.330".into())
        );
        assert_eq!(
            VersionClaim::parse("0.165.9").as_release(),
            Some("0.165.9".into())
        );
        assert_eq!(VersionClaim::parse("none").as_release(), None);
    }
}
