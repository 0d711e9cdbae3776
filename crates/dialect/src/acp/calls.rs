//! The tool calls of a turn: what the agent has reported of each so far.
//!
//! A permission request may name no more than its call's id, and an update only what changed. So
//! the last value of each member is stored here, within bounds. Owns how a call becomes the input
//! that is evaluated: an object of `rawInput`, `content` (its differences only) and `locations`,
//! each as the agent wrote it. Where an agent sends neither of the first two, its message stands
//! in: `title` and `shown_content`. Must not know when a call may arrive.

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
    /// The session that the call belongs to, if it is not ours.
    #[serde(skip)]
    session: Option<String>,
    /// The size of the object in bytes.
    #[serde(skip)]
    bytes: usize,
}

/// The kind of message that names a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MessageKind {
    /// `tool_call`: the whole call.
    ToolCall,
    /// `tool_call_update`: the changed members.
    ToolCallUpdate,
    /// A permission request for the call.
    PermissionRequest,
}

impl<'a> CallFields<'a> {
    /// Reads the members of that object; `None` if it has no usable id.
    pub(super) fn read(raw: &'a RawValue) -> Option<Self> {
        let mut fields: Self = parse_object(raw)?;
        fields.bytes = raw.get().len();
        (fields.tool_call_id.len() <= limits::FOREIGN_ID_BYTES).then_some(fields)
    }

    /// Marks the call as one of another session. It shares nothing with a call of the same id in
    /// ours.
    pub(super) fn set_session(&mut self, session: &str) {
        self.session = Some(session.to_owned());
    }

    /// The call's id as it is reported: a call of another session has the session before it.
    pub(super) fn id(&self) -> UntrustedText {
        match &self.session {
            Some(session) => UntrustedText::new(format!("{session}/{}", self.tool_call_id)),
            None => UntrustedText::new(self.tool_call_id.clone()),
        }
    }

    pub(super) fn title(&self) -> Option<UntrustedText> {
        parse_string(self.title).map(|title| truncate(title, limits::CALL_TITLE_BYTES))
    }

    /// The title and the content of this message, whole: what an agent shows of a call that has no
    /// `rawInput`. A long content is a result, which is not evaluated.
    fn instead(&self) -> (Option<&'a RawValue>, Option<&'a RawValue>) {
        let fits = |raw: &&RawValue| raw.get().len() <= limits::CALL_TITLE_BYTES;
        (
            self.title,
            self.content.filter(fits).filter(|raw| has_content(raw)),
        )
    }

    /// The kind. A truncated kind cannot be in a tool table.
    fn kind(&self) -> Option<UntrustedText> {
        parse_string(self.kind).map(|kind| truncate(kind, limits::CALL_KIND_BYTES))
    }

    pub(super) fn status(&self) -> Option<UntrustedText> {
        parse_string(self.status)
    }

    /// The tool's output: the text of its content, otherwise its raw output.
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

/// The first bytes of a text, at most `most`.
fn truncate(text: UntrustedText, most: usize) -> UntrustedText {
    if text.len() <= most {
        return text;
    }
    let end = (0..=most).rev().find(|at| text.raw().is_char_boundary(*at));
    let front = end.and_then(|end| text.raw().get(..end));
    UntrustedText::new(front.unwrap_or_default())
}

/// One tracked call.
#[derive(Debug, Default)]
pub(super) struct ToolCall {
    id: String,
    session: Option<String>,
    /// Whether the agent has announced the call. A request may come before that.
    pub(super) is_announced: bool,
    /// Whether the call has its result.
    pub(super) has_ended: bool,
    kind: Option<UntrustedText>,
    title: Option<UntrustedText>,
    raw_input: Option<Box<RawValue>>,
    diffs: Option<String>,
    locations: Option<Box<RawValue>>,
    /// Why the call is not known whole, as JSON. It is not an object, so the call cannot be
    /// evaluated.
    incomplete_reason: Option<&'static str>,
}

/// A member was too large to be stored.
const OVERSIZE: &str = "\"a part of this call was too large to be kept\"";
/// The content has a shape that we do not know.
const UNREADABLE: &str = "\"a part of this call cannot be read\"";
/// Small messages would have a large call reported again too often.
const REPEAT_LIMIT: &str = "\"this call is too large to be told again\"";

/// Whether a call's input is a placeholder for one that was too large to store or to report again.
pub(crate) fn is_input_omitted(input: &RawValue) -> bool {
    [OVERSIZE, REPEAT_LIMIT].contains(&input.get())
}

/// What is known of a call after a message about it.
#[derive(Debug)]
pub(super) struct MergedCall {
    /// The tool's name: the call's kind, which is all that ACP says of a tool.
    pub(super) name: UntrustedText,
    /// Whether the name differs from the one before.
    pub(super) is_renamed: bool,
    pub(super) title: Option<UntrustedText>,
    pub(super) kind: Option<UntrustedText>,
    /// The input that is evaluated; `None` if it equals the one reported before.
    pub(super) input: Option<Box<RawValue>>,
    /// Whether the input has everything that was reported of the call.
    pub(super) is_complete: bool,
    /// Whether this message's part of the input is readable.
    pub(super) is_readable: bool,
}

/// The differences among a call's content, as a JSON array.
///
/// # Errors
/// No difference among them is readable.
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
    let mut text = String::from("[");
    for raw in items.items {
        let item: Item<'_> = parse_object(raw).ok_or(UnreadableDiff)?;
        let is_text = item.kind.is_some_and(|kind| kind.0 != "diff");
        let Some(path) = item.path.filter(|_| !is_text) else {
            continue;
        };
        if text.len() > 1 {
            text.push(',');
        }
        if raw.get().len() <= limits::DIFF_BYTES {
            text.push_str(raw.get());
        } else {
            text.push_str("{\"type\":\"diff\",\"path\":");
            text.push_str(path.get());
            text.push('}');
        }
    }
    text.push(']');
    Ok((text.len() > 2).then_some(text))
}

/// A member that cannot be evaluated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct UnreadableDiff;

/// Whether a member has content. `null` and empty values do not overwrite earlier ones.
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

    /// Merges what a message says of the call. `room` is the number of bytes that may be reported
    /// beyond the message's own.
    fn merge(
        &mut self,
        fields: &CallFields<'_>,
        word: MessageKind,
        remaining: usize,
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
        let other = |new: Option<&str>, old: Option<&str>| new.is_some() && new != old;
        let changed = other(
            raw_input.map(RawValue::get),
            self.raw_input.as_deref().map(RawValue::get),
        ) || other(new_diffs.as_deref(), self.diffs.as_deref())
            || other(
                locations.map(RawValue::get),
                self.locations.as_deref().map(RawValue::get),
            );
        let mut repeated_bytes = 0;
        let mut is_whole = true;
        let is_wanted = changed || !self.is_announced || word == MessageKind::PermissionRequest;
        let (title, shown_content) = fields.instead();
        let shows = self.raw_input.is_none() && raw_input.is_none() && self.diffs.is_none();
        let shown = |text: Option<&'_ RawValue>| {
            let text = text.filter(|_| shows && new_diffs.is_none());
            text.map(RawValue::get).map(str::to_owned)
        };
        let (title, shown_content) = (shown(title), shown(shown_content));
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
                ("shown_content", shown_content.as_deref()),
            ];
            let bytes: usize = members
                .iter()
                .filter_map(|(_, text)| text.map(str::len))
                .sum();
            // Joined input that exceeds the limit of a permission request is not evaluated anyway.
            let joined =
                word == MessageKind::PermissionRequest && bytes > limits::PERMISSION_INPUT_BYTES;
            let beyond = bytes.saturating_sub(fields.bytes);
            let lacks = match self.incomplete_reason {
                Some(lacks) => Some(lacks),
                None if beyond > 0 && joined => Some(OVERSIZE),
                None if beyond > remaining => Some(REPEAT_LIMIT),
                None => None,
            };
            repeated_bytes = if lacks.is_none() { beyond } else { 0 };
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
        (known, repeated_bytes)
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
    /// Bytes of calls reported again beyond what the messages brought, up to
    /// [`limits::REPEATED_CALLS_BYTES`]. A message with no more than an id can have a whole call
    /// reported again, so this is bounded.
    repeated_bytes: usize,
}

impl ToolCalls {
    /// Merges what a message says of a call. The message may be the first that names it.
    ///
    /// A call that has ended shares nothing with a later one of the same id. A call that is
    /// announced again has only its new content.
    pub(super) fn merge(
        &mut self,
        fields: &CallFields<'_>,
        word: MessageKind,
    ) -> (Option<&mut ToolCall>, MergedCall) {
        let place = self.calls.iter().position(|call| call.matches(fields));
        // The call moves to the end: the calls that no message mentions are dropped first.
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
        let remaining = limits::REPEATED_CALLS_BYTES.saturating_sub(self.repeated_bytes);
        let (mut known, extra_bytes) = call.merge(fields, word, remaining);
        if let Some(was) = was {
            known.is_renamed = was.name() != known.name;
            if known.input.is_none() && !was.has_no_input() {
                // What it said before is taken back.
                known.input = Some(empty());
            }
        }
        self.repeated_bytes += extra_bytes;
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

    /// One of the agent's requests was answered. The agent waited for it, so its next call may be
    /// reported in full.
    pub(super) const fn release_repeated_bytes(&mut self) {
        self.repeated_bytes = self
            .repeated_bytes
            .saturating_sub(limits::PERMISSION_INPUT_BYTES);
    }

    /// The turn has ended.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests;
