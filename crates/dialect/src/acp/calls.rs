//! The tool calls of a turn: what the agent said of each so far.
//!
//! A permission request may name no more than its call's id, and an update only what changed, so
//! the last word on each member is kept here, within bounds. Owns how a call becomes the input
//! that is judged: an object of `rawInput`, `content` (its differences only) and `locations`, each
//! as the agent wrote it. Where an agent sends neither of the first two, what its message shows
//! instead is there, too: `title` and `said` (the content). Must not know when a call may come.

use std::collections::VecDeque;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::lenient::{BoundedList, parse, parse_object, parse_string};
use marshal_model::UntrustedText;
use marshal_model::limits;
use marshal_wire::json::JsonString;

/// The members of a `tool_call`, a `tool_call_update` and a request's `toolCall`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CallFields<'a> {
    pub(super) tool_call_id: String,
    #[serde(borrow)]
    title: Option<&'a RawValue>,
    #[serde(borrow)]
    kind: Option<&'a RawValue>,
    #[serde(borrow)]
    status: Option<&'a RawValue>,
    #[serde(borrow)]
    content: Option<&'a RawValue>,
    #[serde(borrow)]
    locations: Option<&'a RawValue>,
    #[serde(borrow)]
    raw_input: Option<&'a RawValue>,
    #[serde(borrow)]
    raw_output: Option<&'a RawValue>,
    /// The session that it is of, if not ours.
    #[serde(skip)]
    session: Option<String>,
    /// The bytes of the object.
    #[serde(skip)]
    bytes: usize,
}

/// What kind of message names a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MessageKind {
    /// `tool_call`: the whole of it.
    ToolCall,
    /// `tool_call_update`: what changed.
    ToolCallUpdate,
    /// A permission request: what it is to do.
    PermissionRequest,
}

impl<'a> CallFields<'a> {
    /// The members of that object; `Idle` if it has no id that can be kept.
    pub(super) fn read(raw: &'a RawValue) -> Option<Self> {
        let mut fields: Self = parse_object(raw)?;
        fields.bytes = raw.get().len();
        (fields.tool_call_id.len() <= limits::FOREIGN_ID_BYTES).then_some(fields)
    }

    /// The call is of another session than ours: it shares nothing with a call of the same id
    /// here.
    pub(super) fn set_session(&mut self, session: &str) {
        self.session = Some(session.to_owned());
    }

    /// The call's id as it is told: one of another session has that before it.
    pub(super) fn id(&self) -> UntrustedText {
        match &self.session {
            Some(session) => UntrustedText::new(format!("{session}/{}", self.tool_call_id)),
            None => UntrustedText::new(self.tool_call_id.clone()),
        }
    }

    pub(super) fn title(&self) -> Option<UntrustedText> {
        parse_string(self.title).map(|title| truncate(title, limits::CALL_TITLE_BYTES))
    }

    /// The title and the content of this very message, whole: what an agent shows of a call that
    /// has no `rawInput`. A long content is a result, which nobody judges.
    fn instead(&self) -> (Option<&'a RawValue>, Option<&'a RawValue>) {
        let fits = |raw: &&RawValue| raw.get().len() <= limits::CALL_TITLE_BYTES;
        (
            self.title,
            self.content.filter(fits).filter(|raw| has_content(raw)),
        )
    }

    /// A kind that is cut is none that a table of tools could have.
    fn kind(&self) -> Option<UntrustedText> {
        parse_string(self.kind).map(|kind| truncate(kind, limits::CALL_KIND_BYTES))
    }

    pub(super) fn status(&self) -> Option<UntrustedText> {
        parse_string(self.status)
    }

    /// What the tool said: the text of its content, else its raw output.
    pub(super) fn output(&self) -> UntrustedText {
        #[derive(Deserialize)]
        struct Item<'a> {
            #[serde(borrow)]
            content: Option<&'a RawValue>,
        }
        let items = self
            .content
            .and_then(parse::<BoundedList<'_, { limits::CALL_PATHS }>>)
            .unwrap_or_default();
        let texts = items.items.into_iter().filter_map(|item| {
            let block = parse_object::<Item<'_>>(item)?.content?;
            super::message::block_text(block)
        });
        let text = texts.collect::<Vec<_>>().join("\n");
        match self.raw_output {
            Some(raw) if text.is_empty() => {
                parse_string(Some(raw)).unwrap_or_else(|| UntrustedText::new(raw.get()))
            }
            _ => UntrustedText::new(text),
        }
    }
}

/// The front of a text, of at most that many bytes.
fn truncate(text: UntrustedText, most: usize) -> UntrustedText {
    if text.len() <= most {
        return text;
    }
    let end = (0..=most).rev().find(|at| text.raw().is_char_boundary(*at));
    let front = end.and_then(|end| text.raw().get(..end));
    UntrustedText::new(front.unwrap_or_default())
}

/// One call.
#[derive(Debug, Default)]
pub(super) struct ToolCall {
    id: String,
    session: Option<String>,
    /// The agent said that it began: a request may come before that.
    pub(super) is_announced: bool,
    /// It has its result.
    pub(super) has_ended: bool,
    kind: Option<UntrustedText>,
    title: Option<UntrustedText>,
    raw_input: Option<Box<RawValue>>,
    diffs: Option<String>,
    locations: Option<Box<RawValue>>,
    /// Why it is not known whole, as JSON: no object, so that it cannot be judged.
    incomplete_reason: Option<&'static str>,
}

/// A member was too large to be kept.
const OVERSIZE: &str = "\"a part of this call was too large to be kept\"";
/// Its content was of a shape that we do not know.
const UNREADABLE: &str = "\"a part of this call cannot be read\"";
/// Small messages made much be told, too often.
const REPEAT_LIMIT: &str = "\"this call is too large to be told again\"";

/// Whether a call's input stands for one that was too large to be kept, or to be told again.
pub(crate) fn is_input_omitted(input: &RawValue) -> bool {
    [OVERSIZE, REPEAT_LIMIT].contains(&input.get())
}

/// What is known of a call after a message about it.
#[derive(Debug)]
pub(super) struct MergedCall {
    /// The tool's name: the call's kind, which is what ACP says of a tool.
    pub(super) name: UntrustedText,
    /// Whether it is another than before.
    pub(super) is_renamed: bool,
    pub(super) title: Option<UntrustedText>,
    pub(super) kind: Option<UntrustedText>,
    /// Its input as it is judged; `Idle` if it is what was told before.
    pub(super) input: Option<Box<RawValue>>,
    /// The input is all that was said of the call.
    pub(super) is_complete: bool,
    /// This message's part of it can be read.
    pub(super) is_readable: bool,
}

/// The differences among a call's content, as a JSON array.
///
/// # Errors
/// Nothing is said of them that could be read.
fn diffs(content: &RawValue) -> Result<Option<String>, UnreadableDiff> {
    #[derive(Deserialize)]
    struct Item<'a> {
        #[serde(rename = "type", borrow)]
        kind: Option<JsonString<'a>>,
        #[serde(borrow)]
        path: Option<&'a RawValue>,
    }
    let items: BoundedList<'_, { limits::CALL_PATHS }> = parse(content).ok_or(UnreadableDiff)?;
    if items.omitted > 0 {
        return Err(UnreadableDiff);
    }
    let mut kept = String::from("[");
    for raw in items.items {
        let item: Item<'_> = parse_object(raw).ok_or(UnreadableDiff)?;
        let is_text = item.kind.is_some_and(|kind| kind.0 != "diff");
        let Some(path) = item.path.filter(|_| !is_text) else {
            continue;
        };
        if kept.len() > 1 {
            kept.push(',');
        }
        if raw.get().len() <= limits::DIFF_BYTES {
            kept.push_str(raw.get());
        } else {
            kept.push_str("{\"type\":\"diff\",\"path\":");
            kept.push_str(path.get());
            kept.push('}');
        }
    }
    kept.push(']');
    Ok((kept.len() > 2).then_some(kept))
}

/// A member that cannot be judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct UnreadableDiff;

/// Whether a member says something: `null` and what is empty do not take back what was said.
fn has_content(raw: &RawValue) -> bool {
    let bare = raw.get().trim_start_matches(['{', '[']).trim_ascii_start();
    !matches!(bare, "}" | "]")
}

impl ToolCall {
    fn from_fields(fields: &CallFields<'_>) -> Self {
        Self {
            id: fields.tool_call_id.clone(),
            session: fields.session.clone(),
            ..Self::default()
        }
    }

    fn matches(&self, fields: &CallFields<'_>) -> bool {
        self.id == fields.tool_call_id && self.session == fields.session
    }

    fn name(&self) -> UntrustedText {
        self.kind
            .clone()
            .unwrap_or_else(|| UntrustedText::new("other"))
    }

    /// Takes in what a message says of the call. `room` is what may be told beyond the message's
    /// own bytes.
    fn merge(
        &mut self,
        fields: &CallFields<'_>,
        word: MessageKind,
        room: usize,
    ) -> (MergedCall, usize) {
        let new_diffs = fields.content.map_or(Ok(None), diffs);
        let is_readable = new_diffs.is_ok();
        if !is_readable {
            self.incomplete_reason = Some(UNREADABLE);
        }
        let new_diffs = new_diffs.ok().flatten();
        let raw_input = fields.raw_input.filter(|raw| has_content(raw));
        // A request whose input is there and empty is not one without an input.
        let empty = fields
            .raw_input
            .filter(|_| word == MessageKind::PermissionRequest);
        let locations = fields.locations.filter(|raw| has_content(raw));
        if let Some(title) = fields.title() {
            self.title = Some(title);
        }
        let before = self.name();
        if let Some(kind) = fields.kind() {
            self.kind = Some(kind);
        }
        let name = self.name();
        let other = |new: Option<&str>, kept: Option<&str>| new.is_some() && new != kept;
        let changed = other(
            raw_input.map(RawValue::get),
            self.raw_input.as_deref().map(RawValue::get),
        ) || other(new_diffs.as_deref(), self.diffs.as_deref())
            || other(
                locations.map(RawValue::get),
                self.locations.as_deref().map(RawValue::get),
            );
        let mut told = 0;
        let mut is_whole = true;
        let is_wanted = changed || !self.is_announced || word == MessageKind::PermissionRequest;
        let (title, said) = fields.instead();
        let shows = self.raw_input.is_none() && raw_input.is_none() && self.diffs.is_none();
        let shown = |text: Option<&'_ RawValue>| {
            let text = text.filter(|_| shows && new_diffs.is_none());
            text.map(RawValue::get).map(str::to_owned)
        };
        let (title, said) = (shown(title), shown(said));
        let input = is_wanted.then(|| {
            let members = [
                (
                    "rawInput",
                    raw_input
                        .or(self.raw_input.as_deref())
                        .or(empty)
                        .map(RawValue::get),
                ),
                ("content", new_diffs.as_deref().or(self.diffs.as_deref())),
                (
                    "locations",
                    locations.or(self.locations.as_deref()).map(RawValue::get),
                ),
                ("title", title.as_deref()),
                ("said", said.as_deref()),
            ];
            let bytes: usize = members
                .iter()
                .filter_map(|(_, text)| text.map(str::len))
                .sum();
            // What was joined and is larger than any ask may be is not judged anyway.
            let joined =
                word == MessageKind::PermissionRequest && bytes > limits::PERMISSION_INPUT_BYTES;
            let beyond = bytes.saturating_sub(fields.bytes);
            let lacks = match self.incomplete_reason {
                Some(lacks) => Some(lacks),
                None if beyond > 0 && joined => Some(OVERSIZE),
                None if beyond > room => Some(REPEAT_LIMIT),
                None => None,
            };
            told = if lacks.is_none() { beyond } else { 0 };
            is_whole = lacks.is_none();
            lacks.map_or_else(|| object(members), ToOwned::to_owned)
        });
        self.store_members(raw_input, new_diffs, locations);
        let known = MergedCall {
            is_renamed: before != name,
            name,
            title: self.title.clone(),
            kind: self.kind.clone(),
            // The members are JSON, so the object is.
            input: input.and_then(|text| RawValue::from_string(text).ok()),
            is_complete: is_whole,
            is_readable,
        };
        (known, told)
    }

    fn store_members(
        &mut self,
        raw_input: Option<&RawValue>,
        diffs: Option<String>,
        locations: Option<&RawValue>,
    ) {
        let fits = |text: &str| text.len() <= limits::PERMISSION_INPUT_BYTES;
        let mut is_oversize = false;
        for (new, kept) in [
            (raw_input, &mut self.raw_input),
            (locations, &mut self.locations),
        ] {
            let Some(new) = new else { continue };
            is_oversize |= !fits(new.get());
            *kept = fits(new.get()).then(|| new.to_owned());
        }
        if let Some(new) = diffs {
            is_oversize |= !fits(&new);
            self.diffs = fits(&new).then_some(new);
        }
        if is_oversize {
            self.incomplete_reason.get_or_insert(OVERSIZE);
        }
    }

    const fn has_no_input(&self) -> bool {
        self.raw_input.is_none() && self.diffs.is_none() && self.locations.is_none()
    }

    fn bytes(&self) -> usize {
        let raw = |raw: &Option<Box<RawValue>>| raw.as_ref().map_or(0, |raw| raw.get().len());
        let text = |text: &Option<UntrustedText>| text.as_ref().map_or(0, UntrustedText::len);
        raw(&self.raw_input)
            + raw(&self.locations)
            + self.diffs.as_ref().map_or(0, String::len)
            + text(&self.title)
            + text(&self.kind)
            + self.id.len()
            + self.session.as_ref().map_or(0, String::len)
    }
}

/// An object without members.
fn empty() -> Box<RawValue> {
    RawValue::from_string("{}".to_owned()).unwrap_or_default()
}

/// An object of the members that are there.
fn object(members: [(&str, Option<&str>); 5]) -> String {
    let mut text = String::from("{");
    for (name, value) in members {
        let Some(value) = value else { continue };
        if text.len() > 1 {
            text.push(',');
        }
        text.push('"');
        text.push_str(name);
        text.push_str("\":");
        text.push_str(value);
    }
    text.push('}');
    text
}

/// The calls of a turn, oldest first, within [`limits::REMEMBERED_CALLS`] and
/// [`limits::REMEMBERED_CALLS_BYTES`].
#[derive(Debug, Default)]
pub(super) struct ToolCalls {
    calls: VecDeque<ToolCall>,
    bytes: usize,
    /// Bytes of calls told again beyond what the messages brought, up to
    /// [`limits::REPEATED_CALLS_BYTES`]: a message of no more than an id can make a call be told
    /// whole, but not without end.
    repeated_bytes: usize,
}

impl ToolCalls {
    /// Takes in what a message says of a call, which it may be the first to name.
    ///
    /// A call that is over lends nothing to another of its id, and one that is announced anew is
    /// what it says now.
    pub(super) fn merge(
        &mut self,
        fields: &CallFields<'_>,
        word: MessageKind,
    ) -> (Option<&mut ToolCall>, MergedCall) {
        let place = self.calls.iter().position(|call| call.matches(fields));
        // The call moves to the end: the ones that nobody speaks of go first.
        let before = place.and_then(|at| self.calls.remove(at));
        if let Some(call) = &before {
            self.bytes -= call.bytes();
        }
        let (mut call, was) = match before {
            Some(call) if call.has_ended && word != MessageKind::ToolCallUpdate => {
                (ToolCall::from_fields(fields), None)
            }
            Some(call) if call.is_announced && word == MessageKind::ToolCall => {
                let mut anew = ToolCall::from_fields(fields);
                anew.is_announced = true;
                (anew, Some(call))
            }
            Some(call) => (call, None),
            None => (ToolCall::from_fields(fields), None),
        };
        let room = limits::REPEATED_CALLS_BYTES.saturating_sub(self.repeated_bytes);
        let (mut known, told) = call.merge(fields, word, room);
        if let Some(was) = was {
            known.is_renamed = was.name() != known.name;
            if known.input.is_none() && !was.has_no_input() {
                // What it said before is taken back.
                known.input = Some(empty());
            }
        }
        self.repeated_bytes += told;
        self.bytes += call.bytes();
        self.calls.push_back(call);
        while self.calls.len() > limits::REMEMBERED_CALLS
            || self.bytes > limits::REMEMBERED_CALLS_BYTES
        {
            let Some(oldest) = self.calls.pop_front() else {
                break;
            };
            self.bytes -= oldest.bytes();
        }
        (self.calls.back_mut(), known)
    }

    /// A request was answered by us: the agent waited, so its next one may be told.
    pub(super) const fn release_repeated_bytes(&mut self) {
        self.repeated_bytes = self
            .repeated_bytes
            .saturating_sub(limits::PERMISSION_INPUT_BYTES);
    }

    /// The turn is over.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests;
