//! The messages of an agent that speaks loaf's RPC, typed: events and the results of our requests.
//!
//! Must not know in which order they come. Reading is lenient: a member that we do not need may be
//! absent, `null`, of another type or unknown. Pieces of text, the most frequent messages, are read
//! in one pass. A line that differs from their usual shape by one member is left to the full
//! readers.

use std::borrow::Cow;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use crate::lenient::{BoundedList, parse, parse_id, parse_object, parse_string};
use marshal_model::UntrustedText;
use marshal_model::limits;
use marshal_wire::json::JsonString;

/// The first bytes of every event's line.
const HEAD: &str = r#"{"jsonrpc":"2.0","method":"event","params":{"type":"session.stream.chunk","#;

/// The parameters of the notification `event`.
#[derive(Debug, Deserialize)]
pub(super) struct EventParams<'a> {
    #[serde(rename = "type", borrow)]
    pub(super) kind: JsonString<'a>,
    #[serde(borrow)]
    payload: Option<&'a RawValue>,
}

impl<'a> EventParams<'a> {
    /// The event's payload; `None` if it is not an object.
    pub(super) fn payload(&self) -> Option<Payload<'a>> {
        parse_object(self.payload?)
    }
}

/// The members of an event's payload that we read.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Payload<'a> {
    #[serde(borrow)]
    session_id: Option<&'a RawValue>,
    #[serde(borrow)]
    turn_id: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) pending: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) message: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) chunk: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) data: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) answer_length: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) snapshot: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) provider: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) url: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) verification_url: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) user_code: Option<&'a RawValue>,
}

impl Payload<'_> {
    /// The session and the turn that the event is about.
    pub(super) fn about(&self) -> EventScope<'static> {
        let name = |raw| parse_string(raw).map(|name| Cow::Owned(name.into_raw()));
        EventScope::new(name(self.session_id), name(self.turn_id))
    }
}

/// The session and the turn that an event is about, where it names them by usable ids.
#[derive(Debug, Default)]
pub(super) struct EventScope<'a> {
    pub(super) session: Option<Cow<'a, str>>,
    pub(super) turn: Option<Cow<'a, str>>,
}

impl<'a> EventScope<'a> {
    fn new(session: Option<Cow<'a, str>>, turn: Option<Cow<'a, str>>) -> Self {
        let turn = turn.filter(|name| !name.is_empty() && name.len() <= limits::FOREIGN_ID_BYTES);
        Self { session, turn }
    }
}

/// A piece of an answer and of the thought before it.
#[derive(Debug, Default)]
pub(super) struct Chunk {
    pub(super) thoughts: Vec<String>,
    pub(super) answer: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ChunkShape<'a> {
    #[serde(borrow, default)]
    thoughts: Option<Vec<JsonString<'a>>>,
    #[serde(borrow, default)]
    answer_text: Option<JsonString<'a>>,
    #[serde(borrow, default)]
    segments: Option<Vec<Segment<'a>>>,
}

#[derive(Deserialize)]
struct Segment<'a> {
    #[serde(borrow)]
    kind: JsonString<'a>,
    #[serde(borrow)]
    text: JsonString<'a>,
}

impl From<ChunkShape<'_>> for Chunk {
    /// The segments, where there are any, repeat the other two in their order.
    fn from(shape: ChunkShape<'_>) -> Self {
        let segments = shape.segments.unwrap_or_default();
        if segments.is_empty() {
            let thoughts = shape.thoughts.unwrap_or_default().into_iter();
            return Self {
                thoughts: thoughts.map(|thought| thought.0.into_owned()).collect(),
                answer: shape
                    .answer_text
                    .map_or_else(String::new, |text| text.0.into_owned()),
            };
        }
        let mut chunk = Self::default();
        for segment in segments {
            match &*segment.kind.0 {
                "answer" => chunk.answer.push_str(&segment.text.0),
                "thought" => chunk.thoughts.push(segment.text.0.into_owned()),
                _ => {}
            }
        }
        chunk
    }
}

/// The chunk of an event `session.stream.chunk`.
pub(super) fn chunk(raw: &RawValue) -> Option<Chunk> {
    parse_object::<ChunkShape<'_>>(raw).map(Chunk::from)
}

/// Reads a whole line that is a piece of text; `None` means that the full reader must read it.
pub(super) fn parse_chunk_line(object: &str) -> Option<(EventScope<'_>, Chunk)> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Line<'a> {
        #[serde(rename = "jsonrpc")]
        _jsonrpc: IgnoredAny,
        #[serde(rename = "method")]
        _method: IgnoredAny,
        #[serde(borrow)]
        params: Params<'a>,
    }
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Params<'a> {
        #[serde(rename = "type")]
        _type: IgnoredAny,
        #[serde(rename = "timestamp", default)]
        _timestamp: IgnoredAny,
        #[serde(borrow)]
        payload: Of<'a>,
    }
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Of<'a> {
        #[serde(borrow)]
        session_id: JsonString<'a>,
        #[serde(borrow)]
        turn_id: JsonString<'a>,
        #[serde(borrow)]
        chunk: ChunkShape<'a>,
    }
    // A second `method` would be a duplicate member, which no typed reader accepts.
    if !object.starts_with(HEAD) {
        return None;
    }
    let of = serde_json::from_str::<Line<'_>>(object)
        .ok()?
        .params
        .payload;
    let about = EventScope::new(Some(of.session_id.0), Some(of.turn_id.0));
    Some((about, of.chunk.into()))
}

/// A message that was added to a session: `user`, `assistant` or `system`, and its text.
pub(super) fn parse_appended_message(raw: &RawValue) -> Option<(UntrustedText, UntrustedText)> {
    #[derive(Deserialize)]
    struct Message<'a> {
        #[serde(borrow)]
        kind: Option<&'a RawValue>,
        #[serde(borrow)]
        text: Option<&'a RawValue>,
    }
    let message: Message<'_> = parse_object(raw)?;
    Some((parse_string(message.kind)?, parse_string(message.text)?))
}

/// The model in the snapshot of `state.changed`.
pub(super) fn parse_selected_model(snapshot: &RawValue) -> Option<UntrustedText> {
    #[derive(Deserialize)]
    struct Snapshot<'a> {
        #[serde(borrow)]
        model: Option<&'a RawValue>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Model<'a> {
        #[serde(borrow)]
        selected_model: Option<&'a RawValue>,
    }
    let snapshot: Snapshot<'_> = parse_object(snapshot)?;
    let model: Model<'_> = parse_object(snapshot.model?)?;
    parse_string(model.selected_model).filter(|model| !model.is_empty())
}

/// The result of `rpc.handshake`.
#[derive(Debug, Default, Deserialize)]
pub(super) struct HandshakeResult<'a> {
    #[serde(borrow)]
    pub(super) protocol_version: Option<&'a RawValue>,
    #[serde(borrow)]
    methods: Option<&'a RawValue>,
}

impl HandshakeResult<'_> {
    /// The methods that the agent supports; `None` if it does not list them.
    pub(super) fn methods(&self) -> Option<Vec<String>> {
        let list: BoundedList<'_, { limits::ADVERTISED_ITEMS }> = parse(self.methods?)?;
        Some(list.items.into_iter().filter_map(parse).collect())
    }
}

/// The version that the agent supports, according to the error of a handshake.
pub(super) fn parse_supported_version(data: &str) -> Option<UntrustedText> {
    #[derive(Deserialize)]
    struct Data<'a> {
        #[serde(borrow)]
        reason: Option<&'a RawValue>,
        #[serde(borrow)]
        supported: Option<&'a RawValue>,
    }
    let data: Data<'_> = serde_json::from_str(data).ok()?;
    let reason = parse_string(data.reason)?;
    (reason.raw() == "unsupported_protocol_version").then(|| parse_string(data.supported))?
}

/// The id of the session that `session.create` made, if it is usable.
pub(super) fn session_id(result: &RawValue) -> Option<UntrustedText> {
    #[derive(Deserialize)]
    struct Created<'a> {
        #[serde(borrow)]
        session_id: Option<&'a RawValue>,
    }
    parse_id(parse_object::<Created<'_>>(result)?.session_id)
}

/// The result of `session.get`.
#[derive(Debug, Deserialize)]
pub(super) struct State<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    pending: Option<&'a RawValue>,
    #[serde(borrow)]
    queue: Option<&'a RawValue>,
}

impl State<'_> {
    pub(super) fn id(&self) -> Option<UntrustedText> {
        parse_string(self.id)
    }

    /// Whether a turn of the session runs.
    pub(super) fn is_pending(&self) -> bool {
        self.pending.and_then(parse) == Some(true)
    }

    /// Whether prompts wait in the agent.
    pub(super) fn has_queue(&self) -> bool {
        let queue = self.queue.and_then(parse::<BoundedList<'_, 1>>);
        queue.is_some_and(|queue| !queue.items.is_empty())
    }
}

/// The result of `session.send`; anything but an object counts as missing.
#[derive(Debug, Deserialize)]
pub(super) struct SendResult<'a> {
    #[serde(borrow)]
    turn_id: Option<&'a RawValue>,
    #[serde(borrow)]
    accepted: Option<&'a RawValue>,
    #[serde(borrow)]
    queued: Option<&'a RawValue>,
}

impl SendResult<'_> {
    pub(super) fn turn(&self) -> Option<String> {
        EventScope::new(
            None,
            parse_string(self.turn_id).map(|id| Cow::Owned(id.into_raw())),
        )
        .turn
        .map(Cow::into_owned)
    }

    pub(super) fn is_refused(&self) -> bool {
        self.accepted.and_then(parse) == Some(false)
    }

    pub(super) fn is_queued(&self) -> bool {
        self.queued.and_then(parse) == Some(true)
    }
}

/// The yes-or-no members of a result.
#[derive(Debug, Default, Deserialize)]
pub(super) struct AckResult<'a> {
    #[serde(borrow)]
    accepted: Option<&'a RawValue>,
    #[serde(borrow)]
    interrupted: Option<&'a RawValue>,
}

impl<'a> AckResult<'a> {
    pub(super) fn parse(result: &'a RawValue) -> Self {
        parse_object(result).unwrap_or_default()
    }

    /// Whether a text was accepted into the running turn.
    pub(super) fn is_accepted(&self) -> bool {
        self.accepted.and_then(parse) == Some(true)
    }

    /// Whether there was nothing to interrupt.
    pub(super) fn found_nothing(&self) -> bool {
        self.interrupted.and_then(parse) == Some(false)
    }
}

/// How many prompts the queue had that `session.queue.clear` emptied.
pub(super) fn parse_cleared_count(result: &RawValue) -> u64 {
    #[derive(Deserialize)]
    struct Cleared {
        cleared_count: u64,
    }
    parse_object::<Cleared>(result).map_or(0, |cleared| cleared.cleared_count)
}

/// How many prompts wait, by `session.queue.list`.
pub(super) fn parse_queue_length(result: &RawValue) -> Option<usize> {
    #[derive(Deserialize)]
    struct Queue<'a> {
        #[serde(borrow)]
        queue: Option<&'a RawValue>,
    }
    let queue: Queue<'_> = parse_object(result)?;
    let list: BoundedList<'_, 1> = parse(queue.queue?)?;
    Some(list.items.len() + list.omitted)
}

/// The result of `command.execute`.
#[derive(Debug, Default, Deserialize)]
pub(super) struct CommandResult<'a> {
    #[serde(borrow)]
    handled: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) output: Option<&'a RawValue>,
}

/// The members of a command's output that we read.
#[derive(Debug, Default, Deserialize)]
struct Output<'a> {
    #[serde(borrow)]
    error: Option<&'a RawValue>,
    #[serde(borrow)]
    cleared: Option<&'a RawValue>,
    #[serde(borrow)]
    shutting_down: Option<&'a RawValue>,
}

impl<'a> CommandResult<'a> {
    fn members(&self) -> Output<'a> {
        self.output.and_then(parse_object).unwrap_or_default()
    }

    /// The command's output, as far as it is text.
    pub(super) fn text(&self) -> UntrustedText {
        if self.handled.and_then(parse) == Some(false) {
            return "the agent does not know this command".into();
        }
        parse_string(self.members().error)
            .or_else(|| parse_string(self.output))
            .unwrap_or_default()
    }

    /// Whether the agent knows the command and reports no error.
    pub(super) fn is_done(&self) -> bool {
        self.handled.and_then(parse) != Some(false) && self.members().error.is_none()
    }

    /// Whether the session was cleared.
    pub(super) fn is_session_cleared(&self) -> bool {
        self.members().cleared.and_then(parse) == Some(true)
    }

    /// Whether the agent accepts no more input.
    pub(super) fn exits(&self) -> bool {
        self.members().shutting_down.and_then(parse) == Some(true)
    }
}
