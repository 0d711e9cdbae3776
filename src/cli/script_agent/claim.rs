//! The protocol version that the agent claims, to drill the supervisor's version gate.
//!
//! Must not know messages.

use serde_json::Value;

/// What the agent says of its version.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Claim {
    /// The field is left out.
    Nothing,
    /// A number, or any other JSON value.
    Value(Value),
    /// What the controller asked for, where it asks.
    Echo,
    /// No version but an error, where there are replies.
    Error,
    /// The second version of ACP, in its own shapes.
    Second,
}

impl Claim {
    /// `none` leaves the field out; what is a JSON value is claimed as such, the rest as a text.
    pub(super) fn read(text: &str) -> Self {
        match text {
            "none" => Self::Nothing,
            "echo" => Self::Echo,
            "error" => Self::Error,
            "v2" => Self::Second,
            _ => Self::Value(
                serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned())),
            ),
        }
    }

    /// The value where nothing was asked for.
    pub(super) fn unasked(&self) -> Option<Value> {
        match self {
            Self::Nothing => None,
            Self::Value(value) => Some(value.clone()),
            Self::Echo => Some("echo".into()),
            Self::Error => Some("error".into()),
            Self::Second => Some("v2".into()),
        }
    }

    /// The same where a version is the text of a release: the number N is `N.0.0`.
    pub(super) fn release(&self) -> Option<Value> {
        match self {
            Self::Value(Value::Number(major)) => Some(format!("{major}.0.0").into()),
            _ => self.unasked(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_is_a_number_a_text_or_nothing() {
        let value = |value: Value| Claim::Value(value);
        assert_eq!(Claim::read("1"), value(1.into()));
        assert_eq!(Claim::read("-1"), value((-1).into()));
        assert_eq!(Claim::read("\"1\""), value("1".into()));
        assert_eq!(Claim::read("\"echo\""), value("echo".into()));
        assert_eq!(Claim::read("one"), value("one".into()));
        assert_eq!(Claim::read("null"), value(Value::Null));
        assert_eq!(Claim::read("none"), Claim::Nothing);
        assert_eq!(Claim::read("echo"), Claim::Echo);
        assert_eq!(Claim::read("error"), Claim::Error);
        assert_eq!(Claim::read("v2"), Claim::Second);
    }

    #[test]
    fn a_release_is_a_text() {
        assert_eq!(Claim::read("3").release(), Some("3.0.0".into()));
        assert_eq!(Claim::read("2.1.330").release(), Some("2.1.330".into()));
        assert_eq!(Claim::read("0.165.9").release(), Some("0.165.9".into()));
        assert_eq!(Claim::read("none").release(), None);
    }
}
