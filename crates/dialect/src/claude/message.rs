//! Claude Code's messages in stream-json, typed.
//!
//! Must not know in which order they come. Source: the public Agent SDK for Python, which drives
//! the same program, and recorded conversations with the program. Reading is lenient: only members
//! that something depends on are read, and one of another type than usual is skipped.

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use super::blocks::{BLOCKS, Block, block};
use crate::lenient::{BoundedList, Count, parse, parse_object, parse_string};
use marshal_model::{UntrustedText, Usage};
use marshal_wire::json::{BadFrame, JsonString};

/// A message of the agent.
#[derive(Debug)]
pub(super) enum Message<'a> {
    /// A reply to a request of ours.
    Reply(Reply<'a>),
    /// A request to us.
    Request(Request<'a>),
    /// A withdrawn request.
    CancelRequest(CancelRequest<'a>),
    System(System<'a>),
    /// A whole message of the model.
    Assistant(ModelMessage<'a>),
    /// A message to the model: tool results, and our own prompts again.
    User(ModelMessage<'a>),
    /// A piece of a model message.
    StreamEvent(StreamEvent<'a>),
    /// The end of a turn.
    Result(TurnResult<'a>),
    /// The progress of a prompt of ours.
    Lifecycle(Lifecycle<'a>),
    /// The agent began a session of its own.
    Reset,
    /// Heartbeats and progress for people.
    Ignored,
    /// An unknown type.
    Unknown(UntrustedText, &'a RawValue),
}

/// Types without content that is stored.
const IGNORED: &[&str] = &[
    "keep_alive",
    "tool_progress",
    "tool_use_summary",
    "auth_status",
    "prompt_suggestion",
    "streamlined_text",
    "streamlined_tool_use_summary",
];

#[derive(Debug, Deserialize)]
pub(super) struct Reply<'a> {
    #[serde(rename = "type")]
    _type: IgnoredAny,
    #[serde(borrow)]
    response: &'a RawValue,
}

/// The outcome that a reply reports.
pub(super) type Outcome<'a> = Result<Option<&'a RawValue>, UntrustedText>;

impl<'a> Reply<'a> {
    /// The answered request and the outcome; `None` if it is unreadable.
    pub(super) fn read(&self) -> Option<(JsonString<'a>, Outcome<'a>)> {
        #[derive(Deserialize)]
        struct Inner<'a> {
            #[serde(borrow)]
            subtype: JsonString<'a>,
            #[serde(borrow)]
            request_id: JsonString<'a>,
            #[serde(borrow)]
            response: Option<&'a RawValue>,
            #[serde(borrow)]
            error: Option<&'a RawValue>,
        }
        let inner: Inner<'a> = parse_object(self.response)?;
        let outcome = match inner.subtype.0.as_ref() {
            "success" => Ok(inner.response),
            "error" => Err(parse_string(inner.error).unwrap_or_default()),
            _ => return None,
        };
        Some((inner.request_id, outcome))
    }
}

/// The agent's description in the reply to `initialize`.
#[derive(Debug, Default, Deserialize)]
pub(super) struct InitializeResult<'a> {
    #[serde(borrow)]
    claude_code_version: Option<&'a RawValue>,
    #[serde(borrow)]
    current_permission_mode: Option<&'a RawValue>,
    #[serde(borrow)]
    hooks_applied: Option<&'a RawValue>,
}

impl InitializeResult<'_> {
    pub(super) fn version(&self) -> Option<UntrustedText> {
        parse_string(self.claude_code_version)
    }

    pub(super) fn mode(&self) -> Option<UntrustedText> {
        parse_string(self.current_permission_mode)
    }

    /// Whether the agent reports that it does not call our hook.
    pub(super) fn lacks_hooks(&self) -> bool {
        self.hooks_applied.map(RawValue::get) == Some("false")
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct Request<'a> {
    #[serde(rename = "type")]
    _type: IgnoredAny,
    #[serde(borrow, rename = "request_id")]
    pub(super) id: JsonString<'a>,
    #[serde(borrow, rename = "request")]
    pub(super) body: &'a RawValue,
}

/// The purpose of an agent's request.
#[derive(Debug)]
pub(super) enum RequestKind<'a> {
    /// Permission to use a tool.
    Permission(Box<CanUseTool<'a>>),
    /// A hook call.
    Hook(Hook<'a>),
    /// Any other request, by its name.
    Other(UntrustedText),
    /// An unreadable request.
    Unreadable,
}

#[derive(Debug, Deserialize)]
pub(super) struct CanUseTool<'a> {
    #[serde(rename = "subtype")]
    _subtype: IgnoredAny,
    pub(super) tool_name: String,
    #[serde(borrow)]
    pub(super) input: &'a RawValue,
    #[serde(borrow)]
    tool_use_id: Option<&'a RawValue>,
    #[serde(borrow)]
    description: Option<&'a RawValue>,
    #[serde(borrow)]
    decision_reason: Option<&'a RawValue>,
}

impl CanUseTool<'_> {
    pub(super) fn call(&self) -> Option<UntrustedText> {
        parse_string(self.tool_use_id)
    }

    pub(super) fn title(&self) -> Option<UntrustedText> {
        parse_string(self.description)
    }

    pub(super) fn reason(&self) -> Option<UntrustedText> {
        parse_string(self.decision_reason)
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct Hook<'a> {
    #[serde(rename = "subtype")]
    _subtype: IgnoredAny,
    #[serde(borrow)]
    pub(super) callback_id: JsonString<'a>,
    #[serde(borrow)]
    input: &'a RawValue,
}

impl Hook<'_> {
    /// The tool that is to be used, if the hook is about one.
    pub(super) fn tool(&self) -> Option<JsonString<'_>> {
        #[derive(Deserialize)]
        struct Input<'a> {
            #[serde(borrow)]
            hook_event_name: JsonString<'a>,
            #[serde(borrow)]
            tool_name: JsonString<'a>,
        }
        let input = parse_object::<Input<'_>>(self.input);
        let input = input.filter(|input| input.hook_event_name.0 == "PreToolUse");
        input.map(|input| input.tool_name)
    }
}

impl<'a> Request<'a> {
    pub(super) fn read(&self) -> RequestKind<'a> {
        #[derive(Deserialize)]
        struct Kind<'a> {
            #[serde(borrow)]
            subtype: JsonString<'a>,
        }
        let Some(kind) = parse_object::<Kind<'a>>(self.body) else {
            return RequestKind::Unreadable;
        };
        let read = match kind.subtype.0.as_ref() {
            "can_use_tool" => {
                parse_object(self.body).map(|ask| RequestKind::Permission(Box::new(ask)))
            }
            "hook_callback" => parse_object(self.body).map(RequestKind::Hook),
            other => Some(RequestKind::Other(other.into())),
        };
        read.unwrap_or(RequestKind::Unreadable)
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct CancelRequest<'a> {
    #[serde(rename = "type")]
    _type: IgnoredAny,
    #[serde(borrow)]
    pub(super) request_id: JsonString<'a>,
}

#[derive(Debug, Deserialize)]
pub(super) struct System<'a> {
    #[serde(rename = "type")]
    _type: IgnoredAny,
    #[serde(borrow)]
    subtype: Option<JsonString<'a>>,
    #[serde(borrow)]
    session_id: Option<&'a RawValue>,
    #[serde(borrow, rename = "permissionMode")]
    mode: Option<&'a RawValue>,
    #[serde(borrow)]
    model: Option<&'a RawValue>,
    #[serde(borrow)]
    uuid: Option<&'a RawValue>,
}

impl System<'_> {
    pub(super) fn subtype(&self) -> &str {
        self.subtype.as_ref().map_or("", |text| text.0.as_ref())
    }

    pub(super) fn session(&self) -> Option<UntrustedText> {
        parse_string(self.session_id)
    }

    pub(super) fn mode(&self) -> Option<UntrustedText> {
        parse_string(self.mode)
    }

    pub(super) fn model(&self) -> Option<UntrustedText> {
        parse_string(self.model)
    }

    pub(super) fn uuid(&self) -> Option<UntrustedText> {
        parse_string(self.uuid)
    }
}

/// A message of the model, or to it.
#[derive(Debug, Deserialize)]
pub(super) struct ModelMessage<'a> {
    #[serde(rename = "type")]
    _type: IgnoredAny,
    #[serde(borrow)]
    message: &'a RawValue,
    #[serde(borrow)]
    parent_tool_use_id: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
    #[serde(borrow)]
    uuid: Option<&'a RawValue>,
    #[serde(borrow, rename = "isReplay")]
    is_replay: Option<&'a RawValue>,
}

/// The content of such a message.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Content<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow, rename = "content")]
    list: Option<&'a RawValue>,
    #[serde(borrow)]
    usage: Option<&'a RawValue>,
}

impl<'a> Content<'a> {
    pub(super) fn id(&self) -> Option<UntrustedText> {
        parse_string(self.id)
    }

    /// Its blocks, and the number of further ones.
    pub(super) fn blocks(&self) -> (Vec<Block<'a>>, usize) {
        let front: Option<BoundedList<'a, BLOCKS>> = self.list.and_then(parse);
        let front = front.unwrap_or_default();
        let read = |raw: &'a RawValue| parse_object(raw).map(|fields| block(&fields, raw));
        let blocks = front.items.into_iter().filter_map(read);
        (blocks.collect(), front.omitted)
    }

    /// Tokens in the agent's context after this message.
    pub(super) fn context(&self) -> Option<u64> {
        let tokens = tokens(self.usage?)?;
        Some(tokens.input.saturating_add(tokens.output))
    }
}

impl<'a> ModelMessage<'a> {
    pub(super) fn content(&self) -> Option<Content<'a>> {
        parse_object(self.message)
    }

    /// Whether a subagent sent it.
    pub(super) fn is_from_subagent(&self) -> bool {
        parse_string(self.parent_tool_use_id).is_some()
    }

    /// The error's name, as the agent calls it.
    pub(super) fn error(&self) -> Option<UntrustedText> {
        parse_string(self.error)
    }

    /// The id of our own prompt that the agent repeats.
    pub(super) fn replayed_prompt_id(&self) -> Option<UntrustedText> {
        let is_replay = self.is_replay.map(RawValue::get) == Some("true");
        parse_string(self.uuid).filter(|_| is_replay)
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct StreamEvent<'a> {
    #[serde(rename = "type")]
    _type: IgnoredAny,
    #[serde(borrow)]
    event: &'a RawValue,
    #[serde(borrow)]
    parent_tool_use_id: Option<&'a RawValue>,
}

/// The content of a piece.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum StreamDelta {
    /// A message begins.
    Message(Option<UntrustedText>),
    /// A block of it begins.
    Block,
    Text(UntrustedText),
    Thought(UntrustedText),
    /// Any other piece: what matters of it comes with the whole message.
    Ignored,
}

impl StreamEvent<'_> {
    /// Reads the piece; `None` if it is unreadable. Pieces of subagents are ignored.
    pub(super) fn read(&self) -> Option<StreamDelta> {
        #[derive(Deserialize)]
        struct Fields<'a> {
            #[serde(borrow, rename = "type")]
            tag: JsonString<'a>,
            #[serde(borrow)]
            delta: Option<&'a RawValue>,
            #[serde(borrow)]
            message: Option<&'a RawValue>,
        }
        #[derive(Deserialize)]
        struct Delta<'a> {
            #[serde(borrow, rename = "type")]
            tag: Option<JsonString<'a>>,
            #[serde(borrow)]
            text: Option<&'a RawValue>,
            #[serde(borrow)]
            thinking: Option<&'a RawValue>,
        }
        let fields: Fields<'_> = parse_object(self.event)?;
        if parse_string(self.parent_tool_use_id).is_some() {
            return Some(StreamDelta::Ignored);
        }
        Some(match fields.tag.0.as_ref() {
            "message_start" => {
                let message = fields.message.and_then(parse_object::<Content<'_>>);
                StreamDelta::Message(message.and_then(|message| message.id()))
            }
            "content_block_start" => StreamDelta::Block,
            "content_block_delta" => {
                let delta: Delta<'_> = fields.delta.and_then(parse_object)?;
                match delta.tag.as_ref().map(|tag| tag.0.as_ref()) {
                    Some("text_delta") => StreamDelta::Text(parse_string(delta.text)?),
                    Some("thinking_delta") => StreamDelta::Thought(parse_string(delta.thinking)?),
                    _ => StreamDelta::Ignored,
                }
            }
            _ => StreamDelta::Ignored,
        })
    }
}

/// The end of a turn.
#[derive(Debug, Deserialize)]
pub(super) struct TurnResult<'a> {
    #[serde(rename = "type")]
    _type: IgnoredAny,
    #[serde(borrow)]
    subtype: Option<&'a RawValue>,
    #[serde(borrow)]
    is_error: Option<&'a RawValue>,
    #[serde(borrow)]
    result: Option<&'a RawValue>,
    #[serde(borrow)]
    errors: Option<&'a RawValue>,
    #[serde(borrow)]
    stop_reason: Option<&'a RawValue>,
    #[serde(borrow)]
    usage: Option<&'a RawValue>,
    #[serde(borrow)]
    total_cost_usd: Option<&'a RawValue>,
    #[serde(borrow, rename = "modelUsage")]
    model_usage: Option<&'a RawValue>,
}

impl TurnResult<'_> {
    pub(super) fn subtype(&self) -> Option<UntrustedText> {
        parse_string(self.subtype)
    }

    pub(super) fn is_error(&self) -> bool {
        self.is_error.map(RawValue::get) == Some("true")
    }

    pub(super) fn stop_reason(&self) -> Option<UntrustedText> {
        parse_string(self.stop_reason)
    }

    /// The error's text: the first of the list, otherwise the result's text.
    pub(super) fn error_text(&self) -> Option<UntrustedText> {
        let errors: Option<BoundedList<'_, 1>> = self.errors.and_then(parse);
        let first = errors.and_then(|front| front.items.first().copied());
        parse_string(first).or_else(|| parse_string(self.result))
    }

    pub(super) fn usage(&self) -> Usage {
        self.usage.and_then(tokens).unwrap_or_default()
    }

    /// The cost of the process so far, in US dollars.
    pub(super) fn cost(&self) -> Option<f64> {
        let amount: f64 = parse(self.total_cost_usd?)?;
        (amount.is_finite() && amount >= 0.0).then_some(amount)
    }

    /// The largest context window of the models that worked, in tokens.
    pub(super) fn window(&self) -> Option<u64> {
        #[derive(Default, Deserialize)]
        #[serde(default, rename_all = "camelCase")]
        struct OfModel {
            context_window: Count,
        }
        let models: std::collections::BTreeMap<String, &RawValue> = parse(self.model_usage?)?;
        let sizes = models.into_values().filter_map(parse_object::<OfModel>);
        let largest = sizes.map(|item| item.context_window.0).max();
        largest.filter(|size| *size > 0)
    }
}

/// Tokens as the provider counts them: cached tokens count as read.
fn tokens(raw: &RawValue) -> Option<Usage> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct UsageFields {
        #[serde(rename = "input_tokens")]
        input: Count,
        #[serde(rename = "cache_creation_input_tokens")]
        cached: Count,
        #[serde(rename = "cache_read_input_tokens")]
        from_cache: Count,
        #[serde(rename = "output_tokens")]
        output: Count,
    }
    let tokens: UsageFields = parse_object(raw)?;
    let cached = tokens.cached.0.saturating_add(tokens.from_cache.0);
    Some(Usage {
        input: tokens.input.0.saturating_add(cached),
        output: tokens.output.0,
    })
}

#[derive(Debug, Deserialize)]
pub(super) struct Lifecycle<'a> {
    #[serde(rename = "type")]
    _type: IgnoredAny,
    #[serde(borrow)]
    pub(super) command_uuid: JsonString<'a>,
    #[serde(borrow)]
    pub(super) state: JsonString<'a>,
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
        "stream_event" => Message::StreamEvent(typed(object)?),
        "assistant" => Message::Assistant(typed(object)?),
        "user" => Message::User(typed(object)?),
        "control_request" => Message::Request(typed(object)?),
        "control_cancel_request" => Message::CancelRequest(typed(object)?),
        "control_response" => Message::Reply(typed(object)?),
        "system" => Message::System(typed(object)?),
        "result" => Message::Result(typed(object)?),
        "command_lifecycle" => Message::Lifecycle(typed(object)?),
        tag => {
            let raw: &RawValue = typed(object)?;
            match tag {
                "conversation_reset" => Message::Reset,
                tag if IGNORED.contains(&tag) => Message::Ignored,
                tag => Message::Unknown(tag.into(), raw),
            }
        }
    })
}

/// The id of a request of an otherwise bad shape, so that it can be answered.
pub(super) fn parse_request_id(object: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Id {
        request_id: String,
    }
    serde_json::from_str::<Id>(object)
        .ok()
        .map(|id| id.request_id)
}
