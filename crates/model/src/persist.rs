//! The persisted form of what events are made of: words, ids and times as JSON.
//!
//! A word or an id that is not valid does not read back.

use std::borrow::Cow;
use std::fmt::Display;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::chat::ReviewState;
use super::{
    DecidedBy, Decision, EgressResult, ErrorOrigin, EventKind, ExitClass, PermissionRequestId,
    RoleName, SandboxGap, SessionId, StepStatus, TaskId, TurnId, TurnOutcome, UntrustedText,
};

/// The form of a type that is one text, with the function that reads it.
macro_rules! as_text {
    ($($type:ident: $parse:expr),+ $(,)?) => {$(
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = Cow::<str>::deserialize(deserializer)?;
                $parse(&text).map_err(D::Error::custom)
            }
        }
    )+};
}

as_text!(
    SessionId: SessionId::new,
    TaskId: TaskId::new,
    TurnId: TurnId::new,
    PermissionRequestId: PermissionRequestId::new,
    RoleName: RoleName::new,
    DecidedBy: |text| known("decider", text, DecidedBy::parse),
    Decision: |text| known("decision", text, Decision::parse),
    EgressResult: |text| known("result", text, EgressResult::parse),
    ErrorOrigin: |text| known("origin", text, ErrorOrigin::parse),
    EventKind: |text| known("event kind", text, EventKind::parse),
    ExitClass: |text| known("exit class", text, ExitClass::parse),
    ReviewState: |text| known("review", text, ReviewState::parse),
    SandboxGap: |text| known("gap of a sandbox", text, SandboxGap::parse),
    StepStatus: |text| known("status", text, StepStatus::parse),
    TurnOutcome: |text| known("turn outcome", text, TurnOutcome::parse),
);

fn known<T>(what: &str, text: &str, read: fn(&str) -> Option<T>) -> Result<T, impl Display> {
    read(text).ok_or_else(|| format!("{text:?} is not a valid {what}"))
}

/// Untrusted text is stored as it came.
impl Serialize for UntrustedText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.raw())
    }
}

impl<'de> Deserialize<'de> for UntrustedText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self::new)
    }
}

/// Reads words of which a newer program may have written more: these are left out.
pub(crate) fn known_words<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<SandboxGap>, D::Error> {
    let words = Vec::<Cow<'_, str>>::deserialize(deserializer)?;
    Ok(words
        .iter()
        .filter_map(|word| SandboxGap::parse(word))
        .collect())
}

/// A time in whole milliseconds.
pub(crate) mod millis {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(crate) fn serialize<S: Serializer>(of: &Duration, to: S) -> Result<S::Ok, S::Error> {
        u64::try_from(of.as_millis())
            .unwrap_or(u64::MAX)
            .serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        u64::deserialize(from).map(Duration::from_millis)
    }
}

/// A time in whole microseconds, if it is known.
pub(crate) mod micros {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[expect(clippy::ref_option, reason = "as serde calls it")]
    pub(crate) fn serialize<S: Serializer>(
        of: &Option<Duration>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        let micros = of.map(|of| u64::try_from(of.as_micros()).unwrap_or(u64::MAX));
        micros.serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Duration>, D::Error> {
        Ok(Option::<u64>::deserialize(from)?.map(Duration::from_micros))
    }
}

/// A permission request with its id, in one object. Of an input that is too long for the journal
/// the length stands in its place; the request's row has its digest.
pub(crate) mod permission_request {
    use std::borrow::Cow;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use serde_json::value::RawValue;

    use crate::limits::PERMISSION_INPUT_BYTES;
    use crate::{
        AgentClaims, PermissionRequest, PermissionRequestId, PermissionRequestKey, UntrustedText,
    };

    #[derive(Serialize, Deserialize)]
    struct Body<'a> {
        id: Cow<'a, PermissionRequestId>,
        key: Cow<'a, str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        tool_id: Option<Cow<'a, UntrustedText>>,
        tool: Cow<'a, UntrustedText>,
        /// `null` if it was longer than [`PERMISSION_INPUT_BYTES`].
        input: Cow<'a, RawValue>,
        #[serde(skip_serializing_if = "Option::is_none")]
        input_bytes: Option<usize>,
        claimed: Cow<'a, AgentClaims>,
    }

    pub(crate) fn serialize<S: Serializer>(
        id: &PermissionRequestId,
        request: &PermissionRequest,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        let bytes = request.input.get().len();
        let is_too_long = bytes > PERMISSION_INPUT_BYTES;
        let input = if is_too_long {
            RawValue::NULL
        } else {
            &*request.input
        };
        let body = Body {
            id: Cow::Borrowed(id),
            key: Cow::Borrowed(&request.key.id),
            tool_id: request.tool_id.as_ref().map(Cow::Borrowed),
            tool: Cow::Borrowed(&request.tool),
            input: Cow::Borrowed(input),
            input_bytes: is_too_long.then_some(bytes),
            claimed: Cow::Borrowed(&request.claims),
        };
        body.serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<(PermissionRequestId, PermissionRequest), D::Error> {
        let body = Body::deserialize(from)?;
        let request = PermissionRequest {
            key: PermissionRequestKey {
                id: body.key.into_owned(),
                serial: 0,
            },
            tool_id: body.tool_id.map(Cow::into_owned),
            tool: body.tool.into_owned(),
            input: body.input.into_owned(),
            claims: body.claimed.into_owned(),
        };
        Ok((body.id.into_owned(), request))
    }
}
