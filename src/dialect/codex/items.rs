//! What Codex tells of a turn item by item: pieces of text and of reasoning, and calls of tools, each
//! from its beginning to its end.
//!
//! Owns the calls that requests may be about. Must not know requests.

use std::collections::VecDeque;
use std::time::Duration;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::calls::{self, Call, Item};
use super::{Codex, OUT_OF_STATE, Phase};
use crate::dialect::lenient::{Front, members, parse, string};
use crate::dialect::{Effect, Effects, bad_line};
use crate::limits;
use crate::model::{Event, Foreign};
use crate::wire::json::{BadFrame, Text};

/// Items whose text came piece by piece that are remembered: one is written at a time.
const TEXTS: usize = 64;
/// Lines that are told of what a text of an item holds, where it did not come in pieces.
const PARTS: usize = 256;

/// A call of the turn.
#[derive(Debug)]
pub(super) struct Kept {
    /// Its id; one of another thread has that before it.
    id: String,
    /// `None`: it is too large to be judged, or cannot be read.
    pub(super) call: Option<Call>,
    has_ended: bool,
    /// A request that does not name it was found to be about it.
    was_asked: bool,
    /// Its first output was told.
    has_output: bool,
}

/// The calls of a turn, oldest first, within [`limits::KEPT_CALLS`] and
/// [`limits::KEPT_CALLS_BYTES`].
#[derive(Debug, Default)]
pub(super) struct Items {
    kept: VecDeque<Kept>,
    bytes: usize,
    /// Items whose text came in pieces.
    texts: VecDeque<String>,
}

impl Kept {
    fn bytes(&self) -> usize {
        let call = |call: &Call| call.input.len() + call.about.len() + call.name.len();
        self.id.len() + self.call.as_ref().map_or(0, call)
    }
}

impl Items {
    /// The call of that id that runs.
    pub(super) fn running(&self, id: &str) -> Option<&Kept> {
        self.kept
            .iter()
            .find(|kept| kept.id == id && !kept.has_ended)
    }

    /// The id of a call that runs and is that one, for the request about it: each is found once.
    pub(super) fn asked_as(&mut self, call: &Call) -> Option<String> {
        let is_it = |kept: &&mut Kept| {
            let told = kept.call.as_ref();
            !kept.has_ended && !kept.was_asked && told.is_some_and(|told| told.is_same(call))
        };
        let kept = self.kept.iter_mut().find(is_it)?;
        kept.was_asked = true;
        Some(kept.id.clone())
    }

    fn find(&mut self, id: &str) -> Option<&mut Kept> {
        self.kept.iter_mut().find(|kept| kept.id == id)
    }

    /// A call begins. One that has its id is what that says now.
    fn begins(&mut self, id: &str, call: Option<Call>) {
        if let Some(at) = self.kept.iter().position(|kept| kept.id == id)
            && let Some(was) = self.kept.remove(at)
        {
            self.bytes -= was.bytes();
        }
        let fits = |call: &Call| call.input.len() <= limits::ASK_INPUT_BYTES;
        let kept = Kept {
            id: id.to_owned(),
            call: call.filter(fits),
            has_ended: false,
            was_asked: false,
            has_output: false,
        };
        self.bytes += kept.bytes();
        self.kept.push_back(kept);
        while self.kept.len() > limits::KEPT_CALLS || self.bytes > limits::KEPT_CALLS_BYTES {
            let Some(oldest) = self.kept.pop_front() else {
                break;
            };
            self.bytes -= oldest.bytes();
        }
    }

    /// A piece of an item's text came.
    fn has_text(&mut self, id: &str) {
        if self.texts.back().is_some_and(|last| last == id)
            || self.texts.iter().any(|of| of == id)
            || id.len() > limits::FOREIGN_ID_BYTES
        {
            return;
        }
        if self.texts.len() >= TEXTS {
            self.texts.pop_front();
        }
        self.texts.push_back(id.to_owned());
    }

    /// The turn is over.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

/// What `item/started` and `item/completed` say.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Params<'a> {
    #[serde(borrow)]
    thread_id: Text<'a>,
    #[serde(borrow)]
    turn_id: Text<'a>,
    #[serde(borrow)]
    item: &'a RawValue,
}

/// What a piece of an item's text or output says.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Piece<'a> {
    #[serde(borrow)]
    thread_id: Text<'a>,
    #[serde(borrow)]
    turn_id: Text<'a>,
    #[serde(borrow)]
    item_id: Text<'a>,
    #[serde(borrow)]
    delta: Text<'a>,
}

/// Which text a piece is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Voice {
    Answer,
    Thought,
}

impl Codex {
    /// The id under which a call is told: one of another thread shares nothing with ours.
    pub(super) fn call_id(&self, thread: &str, item: &str) -> String {
        if self.is_ours(thread) {
            item.to_owned()
        } else {
            format!("{thread}/{item}")
        }
    }

    pub(super) fn item(&mut self, params: &RawValue, ends: bool, object: &str, out: &mut Effects) {
        let read = members::<Params<'_>>(params);
        let Some((params, item)) =
            read.and_then(|params| members::<Item<'_>>(params.item).map(|item| (params, item)))
        else {
            return self.count_bad(BadFrame::Shape, object.as_bytes(), out);
        };
        let (thread, turn) = (&*params.thread_id.0, &*params.turn_id.0);
        let is_current = self.is_current(thread, turn);
        if calls::is_call(&item.kind) {
            let id = item
                .name()
                .filter(|_| thread.len() <= limits::FOREIGN_ID_BYTES);
            let Some(id) = id else {
                return self.count_bad(BadFrame::Shape, object.as_bytes(), out);
            };
            if is_current {
                self.turn_goes_on(out);
            } else if self.is_ours(thread) {
                bad_line(OUT_OF_STATE, object.as_bytes(), out);
            }
            let id = self.call_id(thread, &id);
            return self.call(&id, &item, params.item, ends, object, out);
        }
        if !is_current {
            return bad_line(OUT_OF_STATE, object.as_bytes(), out);
        }
        match item.kind.as_str() {
            // Our own prompt, and what hooks of the agent's own add to it.
            "userMessage" | "hookPrompt" => {}
            "agentMessage" | "plan" if ends => self.whole_text(&item, Voice::Answer, out),
            "reasoning" if ends => self.whole_text(&item, Voice::Thought, out),
            "agentMessage" | "plan" | "reasoning" => {
                self.turn_goes_on(out);
            }
            "contextCompaction" => {
                let status = if ends { "completed" } else { "in_progress" };
                out.push(Effect::Event(Event::Compaction {
                    id: string(item.id).unwrap_or_default(),
                    status: Some(Foreign::from(status)),
                    error: None,
                }));
            }
            kind => unknown(kind, object, out),
        }
    }

    /// The text of an item that is complete, if none of it came in pieces.
    fn whole_text(&mut self, item: &Item<'_>, voice: Voice, out: &mut Effects) {
        let id = item.name().unwrap_or_default();
        if self.items.texts.contains(&id) {
            return;
        }
        let text = match voice {
            Voice::Answer => string(item.text).unwrap_or_default(),
            Voice::Thought => {
                let summary = item.summary.map(lines).unwrap_or_default();
                let content = item.content.map(lines).unwrap_or_default();
                Foreign::new(if summary.is_empty() { content } else { summary })
            }
        };
        self.said(voice, text, out);
    }

    fn said(&mut self, voice: Voice, delta: Foreign, out: &mut Effects) {
        self.turn_goes_on(out);
        if delta.raw().is_empty() {
            return;
        }
        out.push(Effect::Event(match voice {
            Voice::Answer => Event::Text { delta },
            Voice::Thought => Event::Thought { delta },
        }));
    }

    /// A piece of an item's text.
    pub(super) fn delta(
        &mut self,
        params: &RawValue,
        voice: Voice,
        object: &str,
        out: &mut Effects,
    ) {
        let Some(delta) = members::<Piece<'_>>(params) else {
            return self.count_bad(BadFrame::Shape, object.as_bytes(), out);
        };
        let [thread, turn, item] = [&delta.thread_id, &delta.turn_id, &delta.item_id];
        let at = [&*thread.0, &*turn.0, &*item.0];
        self.piece(at, voice, delta.delta.0.into_owned(), object, out);
    }

    /// The same, read.
    pub(super) fn piece(
        &mut self,
        [thread, turn, item]: [&str; 3],
        voice: Voice,
        text: String,
        object: &str,
        out: &mut Effects,
    ) {
        if !self.is_current(thread, turn) {
            return bad_line(OUT_OF_STATE, object.as_bytes(), out);
        }
        self.items.has_text(item);
        self.said(voice, Foreign::new(text), out);
    }

    /// A call wrote something: its first output shows that it runs. All of it comes with its end.
    pub(super) fn output(&mut self, params: &RawValue, object: &str, out: &mut Effects) {
        let Some(delta) = members::<Piece<'_>>(params) else {
            return self.count_bad(BadFrame::Shape, object.as_bytes(), out);
        };
        let id = self.call_id(&delta.thread_id.0, &delta.item_id.0);
        let Some(kept) = self.items.find(&id) else {
            return;
        };
        if kept.has_ended || std::mem::replace(&mut kept.has_output, true) {
            return;
        }
        out.push(Effect::Event(Event::ToolUpdate {
            id: Foreign::new(id),
            name: None,
            title: None,
            status: Some(Foreign::from("in_progress")),
            input: None,
        }));
    }

    fn call(
        &mut self,
        id: &str,
        item: &Item<'_>,
        whole: &RawValue,
        ends: bool,
        object: &str,
        out: &mut Effects,
    ) {
        let call = calls::of_item(item, whole);
        if call.is_none() {
            self.count_bad(BadFrame::Shape, object.as_bytes(), out);
            if self.phase == Phase::Closed {
                return;
            }
        }
        let known = self.items.find(id);
        let is_over = known.as_ref().is_some_and(|kept| kept.has_ended);
        let was = known.map(|kept| kept.call.clone());
        match was {
            // What it was said to be when it began is not what it was in the end.
            Some(was) if ends && !is_over => {
                if let Some(call) = call.as_ref().filter(|call| {
                    was.as_ref()
                        .is_none_or(|was| was.input != call.input && was.name == call.name)
                }) {
                    out.push(Effect::Event(Event::ToolUpdate {
                        id: Foreign::from(id),
                        name: None,
                        title: None,
                        status: None,
                        input: RawValue::from_string(call.input.clone()).ok(),
                    }));
                }
            }
            Some(_) if ends => return,
            // It begins again while it runs: one call, which is what that says now.
            Some(_) if !is_over => self.call_begins_again(id, item, call, out),
            _ => {
                let name = call
                    .as_ref()
                    .map_or_else(|| Foreign::new(item.kind.clone()), |call| call.name.clone());
                let input = call.as_ref().map(|call| call.input.clone());
                self.items.begins(id, call);
                out.push(Effect::Event(Event::ToolStart {
                    id: Foreign::from(id),
                    name,
                    input: input
                        .and_then(|input| RawValue::from_string(input).ok())
                        .unwrap_or_else(crate::wire::json::null),
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
        item: &Item<'_>,
        call: Option<Call>,
        out: &mut Effects,
    ) {
        let name = call
            .as_ref()
            .map_or_else(|| Foreign::new(item.kind.clone()), |call| call.name.clone());
        let input = call.as_ref().map(|call| call.input.clone());
        self.items.begins(id, call);
        out.push(Effect::Event(Event::ToolUpdate {
            id: Foreign::from(id),
            name: Some(name),
            title: None,
            status: Some(Foreign::from("in_progress")),
            input: input.and_then(|input| RawValue::from_string(input).ok()),
        }));
    }

    fn call_ends(&mut self, id: &str, item: &Item<'_>, out: &mut Effects) {
        if let Some(kept) = self.items.find(id) {
            kept.has_ended = true;
        }
        let status = string(item.status);
        let word = status.as_ref().map(Foreign::raw);
        let is_done = matches!(word, Some("completed") | None) && item.error.is_none_or(is_null);
        if let Some(changes) = item.changes.filter(|_| is_done) {
            let files = calls::changed_paths(changes).into_iter();
            out.extend(files.map(|path| {
                Effect::Event(Event::FileUpdated {
                    tool: Foreign::new(item.kind.clone()),
                    path,
                    sha256: None,
                    version: None,
                })
            }));
        }
        let took = item.duration_ms.and_then(parse::<u64>);
        out.push(Effect::Event(Event::ToolResult {
            id: Foreign::from(id),
            output: said_by(item, word),
            is_error: !is_done,
            took: took.map(Duration::from_millis),
        }));
    }
}

fn is_null(raw: &RawValue) -> bool {
    raw.get() == "null"
}

/// What a tool said: its output, its result's text, its error; else the word for how it ended, where
/// that is not that it did.
fn said_by(item: &Item<'_>, status: Option<&str>) -> Foreign {
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
    if let Some(output) = string(item.aggregated_output) {
        return output;
    }
    if let Some(failed) = item.error.and_then(members::<Failed<'_>>) {
        return string(failed.message).unwrap_or_default();
    }
    let parts = item
        .result
        .and_then(members::<Result<'_>>)
        .and_then(|result| parse::<Front<'_, PARTS>>(result.content));
    if let Some(parts) = parts {
        let text = |raw: &RawValue| string(members::<Part<'_>>(raw)?.text).map(Foreign::into_raw);
        let texts: Vec<String> = parts.items.into_iter().filter_map(text).collect();
        return Foreign::new(texts.join("\n"));
    }
    match (status, item.exit_code) {
        (Some("completed") | None, _) => Foreign::default(),
        (Some(word), Some(code)) if !is_null(code) => {
            Foreign::new(format!("{word}: exit code {}", code.get()))
        }
        (Some(word), _) => Foreign::from(word),
    }
}

/// A list of texts, as lines.
fn lines(list: &RawValue) -> String {
    let list: Front<'_, PARTS> = parse(list).unwrap_or_default();
    let texts = list.items.into_iter().filter_map(|raw| string(Some(raw)));
    texts.map(Foreign::into_raw).collect::<Vec<_>>().join("\n")
}

/// Passes on what is not typed. An object that was read once is read again as it is.
pub(super) fn unknown(tag: &str, object: &str, out: &mut Effects) {
    if let Ok(raw) = serde_json::from_str::<&RawValue>(object) {
        out.push(Effect::Event(Event::Unknown {
            tag: tag.into(),
            raw: raw.to_owned(),
        }));
    }
}
