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

use crate::dialect::lenient::{Front, members, parse, string};
use crate::limits;
use crate::model::Foreign;
use crate::wire::json::Text;

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
pub(super) enum Word {
    /// `tool_call`: the whole of it.
    Announced,
    /// `tool_call_update`: what changed.
    Changed,
    /// A permission request: what it is to do.
    Requested,
}

impl<'a> CallFields<'a> {
    /// The members of that object; `None` if it has no id that can be kept.
    pub(super) fn read(raw: &'a RawValue) -> Option<Self> {
        let mut fields: Self = members(raw)?;
        fields.bytes = raw.get().len();
        (fields.tool_call_id.len() <= limits::FOREIGN_ID_BYTES).then_some(fields)
    }

    /// The call is of another session than ours: it shares nothing with a call of the same id
    /// here.
    pub(super) fn of_session(&mut self, session: &str) {
        self.session = Some(session.to_owned());
    }

    /// The call's id as it is told: one of another session has that before it.
    pub(super) fn id(&self) -> Foreign {
        match &self.session {
            Some(session) => Foreign::new(format!("{session}/{}", self.tool_call_id)),
            None => Foreign::new(self.tool_call_id.clone()),
        }
    }

    pub(super) fn title(&self) -> Option<Foreign> {
        string(self.title).map(|title| cut(title, limits::CALL_TITLE_BYTES))
    }

    /// The title and the content of this very message, whole: what an agent shows of a call that
    /// has no `rawInput`. A long content is a result, which nobody judges.
    fn instead(&self) -> (Option<&'a RawValue>, Option<&'a RawValue>) {
        let fits = |raw: &&RawValue| raw.get().len() <= limits::CALL_TITLE_BYTES;
        (
            self.title,
            self.content.filter(fits).filter(|raw| says(raw)),
        )
    }

    /// A kind that is cut is none that a table of tools could have.
    fn kind(&self) -> Option<Foreign> {
        string(self.kind).map(|kind| cut(kind, limits::CALL_KIND_BYTES))
    }

    pub(super) fn status(&self) -> Option<Foreign> {
        string(self.status)
    }

    /// What the tool said: the text of its content, else its raw output.
    pub(super) fn output(&self) -> Foreign {
        #[derive(Deserialize)]
        struct Item<'a> {
            #[serde(borrow)]
            content: Option<&'a RawValue>,
        }
        let items = self
            .content
            .and_then(parse::<Front<'_, { limits::CALL_PATHS }>>)
            .unwrap_or_default();
        let texts = items.items.into_iter().filter_map(|item| {
            let block = members::<Item<'_>>(item)?.content?;
            super::message::block_text(block)
        });
        let text = texts.collect::<Vec<_>>().join("\n");
        match self.raw_output {
            Some(raw) if text.is_empty() => {
                string(Some(raw)).unwrap_or_else(|| Foreign::new(raw.get()))
            }
            _ => Foreign::new(text),
        }
    }
}

/// The front of a text, of at most that many bytes.
fn cut(text: Foreign, most: usize) -> Foreign {
    if text.len() <= most {
        return text;
    }
    let end = (0..=most).rev().find(|at| text.raw().is_char_boundary(*at));
    let front = end.and_then(|end| text.raw().get(..end));
    Foreign::new(front.unwrap_or_default())
}

/// One call.
#[derive(Debug, Default)]
pub(super) struct Call {
    id: String,
    session: Option<String>,
    /// The agent said that it began: a request may come before that.
    pub(super) announced: bool,
    /// It has its result.
    pub(super) ended: bool,
    kind: Option<Foreign>,
    title: Option<Foreign>,
    raw_input: Option<Box<RawValue>>,
    diffs: Option<String>,
    locations: Option<Box<RawValue>>,
    /// Why it is not known whole, as JSON: no object, so that it cannot be judged.
    lacks: Option<&'static str>,
}

/// A member was too large to be kept.
const OVERSIZE: &str = "\"a part of this call was too large to be kept\"";
/// Its content was of a shape that we do not know.
const UNREADABLE: &str = "\"a part of this call cannot be read\"";
/// Small messages made much be told, too often.
const SPENT: &str = "\"this call is too large to be told again\"";

/// Whether a call's input stands for one that was too large to be kept, or to be told again.
pub(in crate::dialect) fn is_cut(input: &RawValue) -> bool {
    [OVERSIZE, SPENT].contains(&input.get())
}

/// What is known of a call after a message about it.
#[derive(Debug)]
pub(super) struct Known {
    /// The tool's name: the call's kind, which is what ACP says of a tool.
    pub(super) name: Foreign,
    /// Whether it is another than before.
    pub(super) renamed: bool,
    pub(super) title: Option<Foreign>,
    pub(super) kind: Option<Foreign>,
    /// Its input as it is judged; `None` if it is what was told before.
    pub(super) input: Option<Box<RawValue>>,
    /// The input is all that was said of the call.
    pub(super) is_whole: bool,
    /// This message's part of it can be read.
    pub(super) is_readable: bool,
}

/// The differences among a call's content, as a JSON array.
///
/// # Errors
/// Nothing is said of them that could be read.
fn diffs(content: &RawValue) -> Result<Option<String>, Unreadable> {
    #[derive(Deserialize)]
    struct Item<'a> {
        #[serde(rename = "type", borrow)]
        kind: Option<Text<'a>>,
        #[serde(borrow)]
        path: Option<&'a RawValue>,
    }
    let items: Front<'_, { limits::CALL_PATHS }> = parse(content).ok_or(Unreadable)?;
    if items.beyond > 0 {
        return Err(Unreadable);
    }
    let mut kept = String::from("[");
    for raw in items.items {
        let item: Item<'_> = members(raw).ok_or(Unreadable)?;
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
pub(super) struct Unreadable;

/// Whether a member says something: `null` and what is empty do not take back what was said.
fn says(raw: &RawValue) -> bool {
    let bare = raw.get().trim_start_matches(['{', '[']).trim_ascii_start();
    !matches!(bare, "}" | "]")
}

impl Call {
    fn of(fields: &CallFields<'_>) -> Self {
        Self {
            id: fields.tool_call_id.clone(),
            session: fields.session.clone(),
            ..Self::default()
        }
    }

    fn is_of(&self, fields: &CallFields<'_>) -> bool {
        self.id == fields.tool_call_id && self.session == fields.session
    }

    fn name(&self) -> Foreign {
        self.kind.clone().unwrap_or_else(|| Foreign::new("other"))
    }

    /// Takes in what a message says of the call. `room` is what may be told beyond the message's
    /// own bytes.
    fn merge(&mut self, fields: &CallFields<'_>, word: Word, room: usize) -> (Known, usize) {
        let new_diffs = fields.content.map_or(Ok(None), diffs);
        let is_readable = new_diffs.is_ok();
        if !is_readable {
            self.lacks = Some(UNREADABLE);
        }
        let new_diffs = new_diffs.ok().flatten();
        let raw_input = fields.raw_input.filter(|raw| says(raw));
        // A request whose input is there and empty is not one without an input.
        let empty = fields.raw_input.filter(|_| word == Word::Requested);
        let locations = fields.locations.filter(|raw| says(raw));
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
        let is_wanted = changed || !self.announced || word == Word::Requested;
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
            let joined = word == Word::Requested && bytes > limits::ASK_INPUT_BYTES;
            let beyond = bytes.saturating_sub(fields.bytes);
            let lacks = match self.lacks {
                Some(lacks) => Some(lacks),
                None if beyond > 0 && joined => Some(OVERSIZE),
                None if beyond > room => Some(SPENT),
                None => None,
            };
            told = if lacks.is_none() { beyond } else { 0 };
            is_whole = lacks.is_none();
            lacks.map_or_else(|| object(members), ToOwned::to_owned)
        });
        self.keep(raw_input, new_diffs, locations);
        let known = Known {
            renamed: before != name,
            name,
            title: self.title.clone(),
            kind: self.kind.clone(),
            // The members are JSON, so the object is.
            input: input.and_then(|text| RawValue::from_string(text).ok()),
            is_whole,
            is_readable,
        };
        (known, told)
    }

    fn keep(
        &mut self,
        raw_input: Option<&RawValue>,
        diffs: Option<String>,
        locations: Option<&RawValue>,
    ) {
        let fits = |text: &str| text.len() <= limits::ASK_INPUT_BYTES;
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
            self.lacks.get_or_insert(OVERSIZE);
        }
    }

    const fn says_nothing(&self) -> bool {
        self.raw_input.is_none() && self.diffs.is_none() && self.locations.is_none()
    }

    fn bytes(&self) -> usize {
        let raw = |raw: &Option<Box<RawValue>>| raw.as_ref().map_or(0, |raw| raw.get().len());
        let text = |text: &Option<Foreign>| text.as_ref().map_or(0, Foreign::len);
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

/// The calls of a turn, oldest first, within [`limits::KEPT_CALLS`] and
/// [`limits::KEPT_CALLS_BYTES`].
#[derive(Debug, Default)]
pub(super) struct Calls {
    kept: VecDeque<Call>,
    bytes: usize,
    /// Bytes of calls told again beyond what the messages brought, up to
    /// [`limits::RETOLD_CALLS_BYTES`]: a message of no more than an id can make a call be told
    /// whole, but not without end.
    retold: usize,
}

impl Calls {
    /// Takes in what a message says of a call, which it may be the first to name.
    ///
    /// A call that is over lends nothing to another of its id, and one that is announced anew is
    /// what it says now.
    pub(super) fn merge(
        &mut self,
        fields: &CallFields<'_>,
        word: Word,
    ) -> (Option<&mut Call>, Known) {
        let place = self.kept.iter().position(|call| call.is_of(fields));
        // The call moves to the end: the ones that nobody speaks of go first.
        let before = place.and_then(|at| self.kept.remove(at));
        if let Some(call) = &before {
            self.bytes -= call.bytes();
        }
        let (mut call, was) = match before {
            Some(call) if call.ended && word != Word::Changed => (Call::of(fields), None),
            Some(call) if call.announced && word == Word::Announced => {
                let mut anew = Call::of(fields);
                anew.announced = true;
                (anew, Some(call))
            }
            Some(call) => (call, None),
            None => (Call::of(fields), None),
        };
        let room = limits::RETOLD_CALLS_BYTES.saturating_sub(self.retold);
        let (mut known, told) = call.merge(fields, word, room);
        if let Some(was) = was {
            known.renamed = was.name() != known.name;
            if known.input.is_none() && !was.says_nothing() {
                // What it said before is taken back.
                known.input = Some(empty());
            }
        }
        self.retold += told;
        self.bytes += call.bytes();
        self.kept.push_back(call);
        while self.kept.len() > limits::KEPT_CALLS || self.bytes > limits::KEPT_CALLS_BYTES {
            let Some(oldest) = self.kept.pop_front() else {
                break;
            };
            self.bytes -= oldest.bytes();
        }
        (self.kept.back_mut(), known)
    }

    /// A request was answered by us: the agent waited, so its next one may be told.
    pub(super) const fn answered(&mut self) {
        self.retold = self.retold.saturating_sub(limits::ASK_INPUT_BYTES);
    }

    /// The turn is over.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests;
