//! ScaiFlux's messages, typed: those of the agent, and the five that we write.
//!
//! Must not know in which order they come. Source: "Serve mode protocol", sections "Inbound" and
//! "Outbound". Reading is lenient: members that we do not need may be absent, `null` or unknown.
//! Where a list's shape is not documented (`tools`, `mutations`), unknown entries are skipped.
//! Writing is exact: the listed members, in the order of that page's example, and nothing else.

use std::borrow::Cow;
use std::time::Duration;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny};
use serde_json::value::RawValue;

use crate::lenient::{BoundedList, Count, parse, parse_string};
use marshal_model::limits;
use marshal_model::{PermissionResponse, UntrustedText};
use marshal_wire::json::{BadFrame, JsonString, MessageWriter};

/// A message of the agent.
#[derive(Debug)]
pub(super) enum Message<'a> {
    Ready(Ready<'a>),
    TurnStarted(TurnStarted<'a>),
    TextDelta(TextDelta<'a>),
    ToolStart(ToolStart<'a>),
    ToolResult(ToolResult<'a>),
    PermissionRequest(PermissionMessage<'a>),
    TurnComplete(TurnComplete<'a>),
    SlashResult(SlashResult<'a>),
    StateChanged(StateChanged),
    Error(ErrorMessage<'a>),
    /// A type that this version of the protocol does not have.
    Unknown(UntrustedText, &'a RawValue),
}

/// `ready`. Everything but its version is read leniently: the version decides first.
#[derive(Debug, Deserialize)]
pub(super) struct Ready<'a> {
    #[serde(rename = "type")]
    _type: IgnoredAny,
    #[serde(borrow)]
    pub(super) protocol: Option<&'a RawValue>,
    #[serde(borrow)]
    version: Option<&'a RawValue>,
    #[serde(borrow)]
    session_id: Option<&'a RawValue>,
    #[serde(borrow)]
    model: Option<&'a RawValue>,
    #[serde(borrow)]
    mode: Option<&'a RawValue>,
    #[serde(borrow)]
    tools: Option<&'a RawValue>,
    #[serde(borrow)]
    context_window: Option<&'a RawValue>,
}

impl Ready<'_> {
    pub(super) fn version(&self) -> Option<UntrustedText> {
        parse_string(self.version)
    }

    pub(super) fn session_id(&self) -> Option<UntrustedText> {
        parse_string(self.session_id)
    }

    pub(super) fn model(&self) -> Option<UntrustedText> {
        parse_string(self.model)
    }

    pub(super) fn mode(&self) -> Option<UntrustedText> {
        parse_string(self.mode)
    }

    pub(super) fn context_window(&self) -> Option<u64> {
        parse::<Count>(self.context_window?).map(|count| count.0)
    }

    /// The tools' names, given as strings or as objects with a `name`; at most
    /// [`limits::READY_TOOLS`].
    pub(super) fn tools(&self) -> Vec<UntrustedText> {
        #[derive(Deserialize)]
        struct Named {
            name: String,
        }
        let tools = self
            .tools
            .and_then(parse::<BoundedList<'_, { limits::READY_TOOLS }>>)
            .unwrap_or_default();
        let name = |tool: &RawValue| {
            parse_string(Some(tool)).or_else(|| parse::<Named>(tool).map(|named| named.name.into()))
        };
        tools.items.into_iter().filter_map(name).collect()
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct TurnStarted<'a> {
    #[serde(rename = "type")]
    _type: IgnoredAny,
    #[serde(borrow, default)]
    pub(super) turn_id: TurnId<'a>,
}

#[derive(Debug, Deserialize)]
pub(super) struct TextDelta<'a> {
    #[serde(rename = "type")]
    _type: IgnoredAny,
    #[serde(borrow, default)]
    pub(super) turn_id: TurnId<'a>,
    pub(super) delta: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct ToolStart<'a> {
    #[serde(rename = "type")]
    _type: IgnoredAny,
    #[serde(borrow, default)]
    pub(super) turn_id: TurnId<'a>,
    pub(super) tool_id: Option<String>,
    pub(super) name: String,
    #[serde(borrow)]
    pub(super) input: Option<&'a RawValue>,
}

#[derive(Debug, Deserialize)]
pub(super) struct ToolResult<'a> {
    #[serde(rename = "type")]
    _type: IgnoredAny,
    #[serde(borrow, default)]
    pub(super) turn_id: TurnId<'a>,
    pub(super) tool_id: Option<String>,
    pub(super) output: Option<String>,
    pub(super) is_error: Option<bool>,
    duration_s: Option<f64>,
}

impl ToolResult<'_> {
    /// The call's duration; `None` if the agent reports none, or an invalid one.
    pub(super) fn call_duration(&self) -> Option<Duration> {
        Duration::try_from_secs_f64(self.duration_s?).ok()
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct PermissionMessage<'a> {
    #[serde(rename = "type")]
    _type: IgnoredAny,
    #[serde(borrow)]
    pub(super) request_id: JsonString<'a>,
    pub(super) tool: String,
    pub(super) active_mode: Option<String>,
    pub(super) required_mode: Option<String>,
    #[serde(borrow)]
    pub(super) details: Option<Details<'a>>,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct Details<'a> {
    #[serde(borrow)]
    pub(super) tool_input: Option<&'a RawValue>,
    pub(super) reason: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct TurnComplete<'a> {
    #[serde(rename = "type")]
    _type: IgnoredAny,
    #[serde(borrow, default)]
    pub(super) turn_id: TurnId<'a>,
    pub(super) stop_reason: Option<String>,
    #[serde(default)]
    pub(super) input_tokens: Count,
    #[serde(default)]
    pub(super) output_tokens: Count,
    #[serde(borrow)]
    mutations: Option<&'a RawValue>,
}

impl TurnComplete<'_> {
    /// The changed files as (tool, target), at most [`limits::TURN_MUTATIONS`], and how many were
    /// left out beyond that.
    pub(super) fn mutations(&self) -> (Vec<(UntrustedText, UntrustedText)>, usize) {
        let list = self
            .mutations
            .and_then(parse::<BoundedList<'_, { limits::TURN_MUTATIONS }>>)
            .unwrap_or_default();
        let pair = |item: &RawValue| {
            let pair = parse::<BoundedList<'_, 2>>(item)?.items;
            match pair.as_slice() {
                [tool, target] => Some((parse_string(Some(tool))?, parse_string(Some(target))?)),
                _ => None,
            }
        };
        (
            list.items.into_iter().filter_map(pair).collect(),
            list.omitted,
        )
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct SlashResult<'a> {
    #[serde(rename = "type")]
    _type: IgnoredAny,
    pub(super) command: Option<String>,
    pub(super) text: Option<String>,
    #[serde(borrow)]
    pub(super) data: Option<&'a RawValue>,
    pub(super) clear_session: Option<bool>,
    pub(super) exit: Option<bool>,
}

impl SlashResult<'_> {
    /// The state that the command changed, according to `data`.
    pub(super) fn state_change(&self) -> Option<StateChanged> {
        let data = self.data?;
        let state = parse::<StateChanged>(data).or_else(|| StateChanged::from_mode(data.get()));
        state.filter(|state| !state.is_empty())
    }
}

/// `state_changed`, and the state in a `slash_result`'s `data`. `gadgets` is not read: its shape is
/// undocumented.
#[derive(Debug, Deserialize)]
pub(super) struct StateChanged {
    pub(super) model: Option<String>,
    pub(super) mode: Option<String>,
    pub(super) context_pct: Option<f64>,
    pub(super) context_window: Option<Count>,
}

impl StateChanged {
    /// The mode alone, of a message that is otherwise unreadable, or of its `data`.
    pub(super) fn from_mode(object: &str) -> Option<Self> {
        let object: serde_json::Value = serde_json::from_str(object).ok()?;
        let mode = object
            .get("mode")
            .or_else(|| object.get("data")?.get("mode"))?;
        Some(Self {
            model: None,
            mode: Some(mode.as_str()?.to_owned()),
            context_pct: None,
            context_window: None,
        })
    }

    fn is_empty(&self) -> bool {
        self.model.is_none()
            && self.mode.is_none()
            && self.context_pct.is_none()
            && self.context_window.is_none()
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct ErrorMessage<'a> {
    #[serde(rename = "type")]
    _type: IgnoredAny,
    pub(super) code: Option<String>,
    pub(super) message: Option<String>,
    pub(super) origin: Option<String>,
    #[serde(borrow, default)]
    pub(super) turn_id: TurnId<'a>,
}

/// Reads the message of that type.
///
/// # Errors
/// [`BadFrame::Json`] or [`BadFrame::Shape`].
pub(super) fn read<'a>(tag: &str, object: &'a str) -> Result<Message<'a>, BadFrame> {
    fn typed<'a, T: Deserialize<'a>>(object: &'a str) -> Result<T, BadFrame> {
        Ok(serde_json::from_str(object)?)
    }
    Ok(match tag {
        "text_delta" => Message::TextDelta(typed(object)?),
        "tool_start" => Message::ToolStart(typed(object)?),
        "tool_result" => Message::ToolResult(typed(object)?),
        "permission_request" => Message::PermissionRequest(typed(object)?),
        "turn_started" => Message::TurnStarted(typed(object)?),
        "turn_complete" => Message::TurnComplete(typed(object)?),
        "state_changed" => Message::StateChanged(typed(object)?),
        "slash_result" => Message::SlashResult(typed(object)?),
        "error" => Message::Error(typed(object)?),
        "ready" => Message::Ready(typed(object)?),
        _ => Message::Unknown(tag.into(), typed(object)?),
    })
}

/// The id of a permission request of an otherwise bad shape, so that it can be denied.
pub(super) fn parse_request_id(object: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Id {
        request_id: String,
    }
    serde_json::from_str::<Id>(object)
        .ok()
        .map(|id| id.request_id)
}

/// Writes `prompt`.
pub(super) fn prompt(text: &UntrustedText) -> Vec<u8> {
    MessageWriter::with_tag("prompt")
        .string_field("text", text.raw())
        .finish()
}

/// Writes `slash`.
pub(super) fn slash(command: &str, args: &str) -> Vec<u8> {
    MessageWriter::with_tag("slash")
        .string_field("command", command)
        .string_field("args", args)
        .finish()
}

/// Writes `interrupt`.
pub(super) fn interrupt() -> Vec<u8> {
    MessageWriter::with_tag("interrupt").finish()
}

/// Writes `permission_response`; an empty reason is left out.
pub(super) fn permission_response(request_id: &str, answer: &PermissionResponse) -> Vec<u8> {
    let line =
        MessageWriter::with_tag("permission_response").string_field("request_id", request_id);
    match answer {
        PermissionResponse::Allow => line.string_field("decision", "allow"),
        PermissionResponse::Deny(reason) if reason.is_empty() => {
            line.string_field("decision", "deny")
        }
        PermissionResponse::Deny(reason) => line
            .string_field("decision", "deny")
            .string_field("reason", reason),
    }
    .finish()
}

/// Writes `shutdown`.
pub(super) fn shutdown() -> Vec<u8> {
    MessageWriter::with_tag("shutdown").finish()
}

/// A turn's id, where the agent gives a usable one; anything else counts as none.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct TurnId<'a>(pub(super) Option<Cow<'a, str>>);

impl<'de: 'a, 'a> Deserialize<'de> for TurnId<'a> {
    fn deserialize<D: Deserializer<'de>>(reader: D) -> Result<Self, D::Error> {
        let id = Option::<JsonString<'a>>::deserialize(reader)?.map(|text| text.0);
        Ok(Self(id.filter(|id| id.len() <= limits::FOREIGN_ID_BYTES)))
    }
}
