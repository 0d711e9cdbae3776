//! Reports a turn item by item: pieces of text and of reasoning, and tool calls, each from its
//! beginning to its end.
//!
//! Owns the calls that requests may be about. Must not know requests.

use std::collections::VecDeque;
use std::time::Duration;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::Codex;
use super::calls::{self, ThreadItem, ToolCall};
use crate::driver::Protocol as _;
use crate::lenient::{BoundedList, parse, parse_object, parse_string};
use crate::{Effect, Effects, OUT_OF_STATE, report_bad_line, report_unknown};
use marshal_model::limits;
use marshal_model::{Event, UntrustedText};
use marshal_wire::json::{BadFrame, JsonString};

/// How many items with streamed text are remembered: one is written at a time.
const TEXTS: usize = 64;
/// How many parts of an item's text are reported, where it was not streamed.
const PARTS: usize = 256;

/// A call of the turn.
#[derive(Debug)]
pub(super) struct TrackedCall {
    /// The call's id; for a call of another thread, after that thread's id.
    id: String,
    /// `None` if it is too large to be evaluated, or unreadable.
    pub(super) call: Option<ToolCall>,
    has_ended: bool,
    /// Whether a request that does not name it was matched to it.
    is_requested: bool,
    /// Whether its first output was reported.
    has_output: bool,
}

/// The calls of a turn, oldest first, within [`limits::REMEMBERED_CALLS`] and
/// [`limits::REMEMBERED_CALLS_BYTES`].
#[derive(Debug, Default)]
pub(super) struct TurnItems {
    calls: VecDeque<TrackedCall>,
    bytes: usize,
    /// Items whose text was streamed.
    texts: VecDeque<String>,
}

impl TrackedCall {
    fn bytes(&self) -> usize {
        let call = |call: &ToolCall| call.input.len() + call.about.len() + call.name.len();
        self.id.len() + self.call.as_ref().map_or(0, call)
    }
}

impl TurnItems {
    /// The running call of that id.
    pub(super) fn running(&self, id: &str) -> Option<&TrackedCall> {
        self.calls
            .iter()
            .find(|tracked| tracked.id == id && !tracked.has_ended)
    }

    /// The id of a running call that equals this one, for the request about it. Each call matches
    /// once.
    pub(super) fn match_request(&mut self, call: &ToolCall) -> Option<String> {
        let is_it = |tracked: &&mut TrackedCall| {
            let own_call = tracked.call.as_ref();
            !tracked.has_ended
                && !tracked.is_requested
                && own_call.is_some_and(|own_call| own_call.is_same(call))
        };
        let tracked = self.calls.iter_mut().find(is_it)?;
        tracked.is_requested = true;
        Some(tracked.id.clone())
    }

    fn find(&mut self, id: &str) -> Option<&mut TrackedCall> {
        self.calls.iter_mut().find(|tracked| tracked.id == id)
    }

    /// A call begins. It replaces an earlier call of the same id.
    fn start_call(&mut self, id: &str, call: Option<ToolCall>) {
        if let Some(at) = self.calls.iter().position(|tracked| tracked.id == id)
            && let Some(was) = self.calls.remove(at)
        {
            self.bytes -= was.bytes();
        }
        let fits = |call: &ToolCall| call.input.len() <= limits::PERMISSION_INPUT_BYTES;
        let tracked = TrackedCall {
            id: id.to_owned(),
            call: call.filter(fits),
            has_ended: false,
            is_requested: false,
            has_output: false,
        };
        self.bytes += tracked.bytes();
        self.calls.push_back(tracked);
        while self.calls.len() > limits::REMEMBERED_CALLS
            || self.bytes > limits::REMEMBERED_CALLS_BYTES
        {
            let Some(oldest) = self.calls.pop_front() else {
                break;
            };
            self.bytes -= oldest.bytes();
        }
    }

    /// Records that a piece of an item's text was reported.
    fn record_text(&mut self, id: &str) {
        if self.texts.back().is_some_and(|last| last == id)
            || self.texts.iter().any(|entry| entry == id)
            || id.len() > limits::FOREIGN_ID_BYTES
        {
            return;
        }
        if self.texts.len() >= TEXTS {
            self.texts.pop_front();
        }
        self.texts.push_back(id.to_owned());
    }

    /// Forgets the calls when the turn has ended.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

/// The parameters of `item/started` and `item/completed`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Params<'a> {
    #[serde(borrow)]
    thread_id: JsonString<'a>,
    #[serde(borrow)]
    turn_id: JsonString<'a>,
    #[serde(borrow)]
    item: &'a RawValue,
}

/// The parameters of a piece of an item's text or output.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct TextDelta<'a> {
    #[serde(borrow)]
    thread_id: JsonString<'a>,
    #[serde(borrow)]
    turn_id: JsonString<'a>,
    #[serde(borrow)]
    item_id: JsonString<'a>,
    #[serde(borrow)]
    delta: JsonString<'a>,
}

/// The kind of text that a piece belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TextKind {
    Answer,
    Thought,
}

impl Codex {
    /// The id under which a call is reported. A call of another thread shares nothing with ours.
    pub(super) fn call_id(&self, thread: &str, item: &str) -> String {
        if self.is_our_thread(thread) {
            item.to_owned()
        } else {
            format!("{thread}/{item}")
        }
    }

    pub(super) fn item(&mut self, params: &RawValue, ends: bool, object: &str, out: &mut Effects) {
        let read = parse_object::<Params<'_>>(params);
        let Some((params, item)) = read.and_then(|params| {
            parse_object::<ThreadItem<'_>>(params.item).map(|item| (params, item))
        }) else {
            return self.count_bad_line(BadFrame::Shape, object.as_bytes(), out);
        };
        let (thread, turn) = (&*params.thread_id.0, &*params.turn_id.0);
        let is_current = self.is_current(thread, turn);
        if calls::is_call(&item.kind) {
            let id = item
                .name()
                .filter(|_| thread.len() <= limits::FOREIGN_ID_BYTES);
            let Some(id) = id else {
                return self.count_bad_line(BadFrame::Shape, object.as_bytes(), out);
            };
            if is_current {
                self.note_turn_activity(out);
            } else if self.is_our_thread(thread) {
                report_bad_line(OUT_OF_STATE, object.as_bytes(), out);
            }
            let id = self.call_id(thread, &id);
            return self.call(&id, &item, params.item, ends, object, out);
        }
        if !is_current {
            return report_bad_line(OUT_OF_STATE, object.as_bytes(), out);
        }
        match item.kind.as_str() {
            // Our own prompt, and what the agent's own hooks add to it.
            "userMessage" | "hookPrompt" => {}
            "agentMessage" | "plan" if ends => self.whole_text(&item, TextKind::Answer, out),
            "reasoning" if ends => self.whole_text(&item, TextKind::Thought, out),
            "agentMessage" | "plan" | "reasoning" => {
                self.note_turn_activity(out);
            }
            "contextCompaction" => {
                let status = if ends { "completed" } else { "in_progress" };
                out.push(Effect::Event(Event::Compaction {
                    id: parse_string(item.id).unwrap_or_default(),
                    status: Some(UntrustedText::from(status)),
                    error: None,
                }));
            }
            kind => report_unknown(kind, object, out),
        }
    }

    /// The text of a complete item, if none of it was streamed.
    fn whole_text(&mut self, item: &ThreadItem<'_>, voice: TextKind, out: &mut Effects) {
        let id = item.name().unwrap_or_default();
        if self.items.texts.contains(&id) {
            return;
        }
        let text = match voice {
            TextKind::Answer => parse_string(item.text).unwrap_or_default(),
            TextKind::Thought => {
                let summary = item.summary.map(lines).unwrap_or_default();
                let content = item.content.map(lines).unwrap_or_default();
                UntrustedText::new(if summary.is_empty() { content } else { summary })
            }
        };
        self.report_text(voice, text, out);
    }

    fn report_text(&mut self, voice: TextKind, delta: UntrustedText, out: &mut Effects) {
        self.note_turn_activity(out);
        if delta.raw().is_empty() {
            return;
        }
        out.push(Effect::Event(match voice {
            TextKind::Answer => Event::Text { delta },
            TextKind::Thought => Event::Thought { delta },
        }));
    }

    /// A piece of an item's text.
    pub(super) fn delta(
        &mut self,
        params: &RawValue,
        voice: TextKind,
        object: &str,
        out: &mut Effects,
    ) {
        let Some(delta) = parse_object::<TextDelta<'_>>(params) else {
            return self.count_bad_line(BadFrame::Shape, object.as_bytes(), out);
        };
        let [thread, turn, item] = [&delta.thread_id, &delta.turn_id, &delta.item_id];
        let at = [&*thread.0, &*turn.0, &*item.0];
        self.handle_text(at, voice, delta.delta.0.into_owned(), object, out);
    }

    /// Handles a piece that was read.
    pub(super) fn handle_text(
        &mut self,
        [thread, turn, item]: [&str; 3],
        voice: TextKind,
        text: String,
        object: &str,
        out: &mut Effects,
    ) {
        if !self.is_current(thread, turn) {
            return report_bad_line(OUT_OF_STATE, object.as_bytes(), out);
        }
        self.items.record_text(item);
        self.report_text(voice, UntrustedText::new(text), out);
    }

    /// A call wrote output. The first output shows that it runs; all of it comes with the end.
    pub(super) fn output(&mut self, params: &RawValue, object: &str, out: &mut Effects) {
        let Some(delta) = parse_object::<TextDelta<'_>>(params) else {
            return self.count_bad_line(BadFrame::Shape, object.as_bytes(), out);
        };
        let id = self.call_id(&delta.thread_id.0, &delta.item_id.0);
        let Some(tracked) = self.items.find(&id) else {
            return;
        };
        if tracked.has_ended || std::mem::replace(&mut tracked.has_output, true) {
            return;
        }
        out.push(Effect::Event(Event::ToolUpdate {
            id: UntrustedText::new(id),
            name: None,
            title: None,
            status: Some(UntrustedText::from("in_progress")),
            input: None,
        }));
    }

    fn call(
        &mut self,
        id: &str,
        item: &ThreadItem<'_>,
        whole: &RawValue,
        ends: bool,
        object: &str,
        out: &mut Effects,
    ) {
        let call = calls::call_from_item(item, whole);
        if call.is_none() {
            self.count_bad_line(BadFrame::Shape, object.as_bytes(), out);
            if self.channel.is_closed() {
                return;
            }
        }
        let known = self.items.find(id);
        let is_over = known.as_ref().is_some_and(|tracked| tracked.has_ended);
        let was = known.map(|tracked| tracked.call.clone());
        match was {
            // The call at its end differs from the call at its beginning.
            Some(was) if ends && !is_over => {
                if let Some(call) = call.as_ref().filter(|call| {
                    was.as_ref()
                        .is_none_or(|was| was.input != call.input && was.name == call.name)
                }) {
                    out.push(Effect::Event(Event::ToolUpdate {
                        id: UntrustedText::from(id),
                        name: None,
                        title: None,
                        status: None,
                        input: RawValue::from_string(call.input.clone()).ok(),
                    }));
                }
            }
            Some(_) if ends => return,
            // It begins again while it runs: it stays one call, with the new content.
            Some(_) if !is_over => self.call_begins_again(id, item, call, out),
            _ => {
                let name = call.as_ref().map_or_else(
                    || UntrustedText::new(item.kind.clone()),
                    |call| call.name.clone(),
                );
                let input = call.as_ref().map(|call| call.input.clone());
                self.items.start_call(id, call);
                out.push(Effect::Event(Event::ToolStart {
                    id: UntrustedText::from(id),
                    name,
                    input: input
                        .and_then(|input| RawValue::from_string(input).ok())
                        .unwrap_or_else(marshal_wire::json::null_value),
                }));
            }
        }
        if ends {
            self.call_ends(id, item, out);
        }
    }

    fn call_begins_again(
        &mut self,
        id: &str,
        item: &ThreadItem<'_>,
        call: Option<ToolCall>,
        out: &mut Effects,
    ) {
        let name = call.as_ref().map_or_else(
            || UntrustedText::new(item.kind.clone()),
            |call| call.name.clone(),
        );
        let input = call.as_ref().map(|call| call.input.clone());
        self.items.start_call(id, call);
        out.push(Effect::Event(Event::ToolUpdate {
            id: UntrustedText::from(id),
            name: Some(name),
            title: None,
            status: Some(UntrustedText::from("in_progress")),
            input: input.and_then(|input| RawValue::from_string(input).ok()),
        }));
    }

    fn call_ends(&mut self, id: &str, item: &ThreadItem<'_>, out: &mut Effects) {
        if let Some(tracked) = self.items.find(id) {
            tracked.has_ended = true;
        }
        let status = parse_string(item.status);
        let word = status.as_ref().map(UntrustedText::raw);
        let is_done = matches!(word, Some("completed") | None) && item.error.is_none_or(is_null);
        if let Some(changes) = item.changes.filter(|_| is_done) {
            let files = calls::changed_paths(changes).into_iter();
            out.extend(files.map(|path| {
                Effect::Event(Event::FileUpdated {
                    tool: UntrustedText::new(item.kind.clone()),
                    path,
                    sha256: None,
                    version: None,
                })
            }));
        }
        let took = item.duration_ms.and_then(parse::<u64>);
        out.push(Effect::Event(Event::ToolResult {
            id: UntrustedText::from(id),
            output: item_output(item, word),
            is_error: !is_done,
            took: took.map(Duration::from_millis),
        }));
    }
}

fn is_null(raw: &RawValue) -> bool {
    raw.get() == "null"
}

/// A tool's output: its output, its result's text, or its error; otherwise its status word, unless
/// that is success.
fn item_output(item: &ThreadItem<'_>, status: Option<&str>) -> UntrustedText {
    #[derive(Deserialize)]
    struct Result<'a> {
        #[serde(borrow)]
        content: &'a RawValue,
    }
    #[derive(Deserialize)]
    struct Part<'a> {
        #[serde(borrow)]
        text: Option<&'a RawValue>,
    }
    #[derive(Deserialize)]
    struct Failed<'a> {
        #[serde(borrow)]
        message: Option<&'a RawValue>,
    }
    if let Some(output) = parse_string(item.aggregated_output) {
        return output;
    }
    if let Some(failed) = item.error.and_then(parse_object::<Failed<'_>>) {
        return parse_string(failed.message).unwrap_or_default();
    }
    let parts = item
        .result
        .and_then(parse_object::<Result<'_>>)
        .and_then(|result| parse::<BoundedList<'_, PARTS>>(result.content));
    if let Some(parts) = parts {
        let text = |raw: &RawValue| {
            parse_string(parse_object::<Part<'_>>(raw)?.text).map(UntrustedText::into_raw)
        };
        let texts: Vec<String> = parts.items.into_iter().filter_map(text).collect();
        return UntrustedText::new(texts.join("\n"));
    }
    match (status, item.exit_code) {
        (Some("completed") | None, _) => UntrustedText::default(),
        (Some(word), Some(code)) if !is_null(code) => {
            UntrustedText::new(format!("{word}: exit code {}", code.get()))
        }
        (Some(word), _) => UntrustedText::from(word),
    }
}

/// A list of texts, as lines.
fn lines(list: &RawValue) -> String {
    let list: BoundedList<'_, PARTS> = parse(list).unwrap_or_default();
    let texts = list
        .items
        .into_iter()
        .filter_map(|raw| parse_string(Some(raw)));
    texts
        .map(UntrustedText::into_raw)
        .collect::<Vec<_>>()
        .join("\n")
}
