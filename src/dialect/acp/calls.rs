//! The tool calls of a turn: what the agent said of each so far.
//!
//! A permission request may name no more than its call's id, and an update only what changed, so
//! the last word on each member is kept here, within bounds. Owns how a call becomes the input
//! that is judged: an object of `rawInput`, `content` (its differences only) and `locations`, each
//! as the agent wrote it. Must not know when a call may come.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::dialect::lenient::{Front, parse, string};
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
}

impl<'a> CallFields<'a> {
    /// The members of that object; `None` if it has no id that can be kept.
    pub(super) fn read(raw: &'a RawValue) -> Option<Self> {
        let fields: Self = parse(raw)?;
        (fields.tool_call_id.len() <= limits::FOREIGN_ID_BYTES).then_some(fields)
    }

    pub(super) fn title(&self) -> Option<Foreign> {
        string(self.title)
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
            let block = parse::<Item<'_>>(item)?.content?;
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

/// One call.
#[derive(Debug, Default)]
pub(super) struct Call {
    id: String,
    /// The agent said that it began: a request may come before that.
    pub(super) announced: bool,
    /// It has its result.
    pub(super) ended: bool,
    kind: Option<Foreign>,
    title: Option<Foreign>,
    raw_input: Option<Box<RawValue>>,
    diffs: Option<String>,
    locations: Option<Box<RawValue>>,
    /// A member was too large to be kept.
    oversize: bool,
    /// The input that was told last.
    told: u64,
}

/// What is known of a call after a message about it.
#[derive(Debug)]
pub(super) struct Known {
    /// The tool's name: the call's kind, which is what ACP says of a tool.
    pub(super) name: Foreign,
    pub(super) title: Option<Foreign>,
    pub(super) kind: Option<Foreign>,
    /// Its input as it is judged.
    pub(super) input: Box<RawValue>,
    /// Whether the input is another than the one told before.
    pub(super) changed: bool,
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
        let item: Item<'_> = parse(raw).ok_or(Unreadable)?;
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
    /// Takes in what a message says of the call.
    fn merge(&mut self, fields: &CallFields<'_>) -> Result<Known, Unreadable> {
        let new_diffs = match fields.content {
            Some(content) => diffs(content)?,
            None => None,
        };
        let raw_input = fields.raw_input.filter(|raw| says(raw));
        let locations = fields.locations.filter(|raw| says(raw));
        if let Some(title) = fields.title() {
            self.title = Some(title);
        }
        if let Some(kind) = string(fields.kind) {
            self.kind = Some(kind);
        }
        let lacks_some = self.oversize;
        let members = [
            (
                "rawInput",
                raw_input.or(self.raw_input.as_deref()).map(RawValue::get),
            ),
            ("content", new_diffs.as_deref().or(self.diffs.as_deref())),
            (
                "locations",
                locations.or(self.locations.as_deref()).map(RawValue::get),
            ),
        ];
        let input = if lacks_some {
            // No object: what cannot be seen whole cannot be judged, and is denied.
            "\"a part of this call was too large to be kept\"".to_owned()
        } else {
            object(members)
        };
        let mut hasher = DefaultHasher::new();
        input.hash(&mut hasher);
        let told = hasher.finish();
        let changed = std::mem::replace(&mut self.told, told) != told;
        let fits = |raw: &RawValue| raw.get().len() <= limits::ASK_INPUT_BYTES;
        for (new, kept) in [
            (raw_input, &mut self.raw_input),
            (locations, &mut self.locations),
        ] {
            let Some(new) = new else { continue };
            self.oversize |= !fits(new);
            *kept = fits(new).then(|| new.to_owned());
        }
        if let Some(new) = new_diffs {
            let fits = new.len() <= limits::ASK_INPUT_BYTES;
            self.oversize |= !fits;
            self.diffs = fits.then_some(new);
        }
        Ok(Known {
            name: self.kind.clone().unwrap_or_else(|| Foreign::new("other")),
            title: self.title.clone(),
            kind: self.kind.clone(),
            // The members are JSON, so the object is.
            input: RawValue::from_string(input).map_err(|_| Unreadable)?,
            changed,
        })
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
    }
}

/// An object of the members that are there.
fn object(members: [(&str, Option<&str>); 3]) -> String {
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
}

impl Calls {
    /// Takes in what a message says of a call, which it may be the first to name.
    ///
    /// # Errors
    /// [`Unreadable`]: nothing was taken in.
    pub(super) fn merge(
        &mut self,
        fields: &CallFields<'_>,
    ) -> Result<(&mut Call, Known), Unreadable> {
        let place = self
            .kept
            .iter()
            .position(|call| call.id == fields.tool_call_id);
        // The call moves to the end: the ones that nobody speaks of go first.
        let mut call = match place.and_then(|at| self.kept.remove(at)) {
            Some(call) => {
                self.bytes -= call.bytes();
                call
            }
            None => Call {
                id: fields.tool_call_id.clone(),
                ..Call::default()
            },
        };
        let known = call.merge(fields);
        self.bytes += call.bytes();
        self.kept.push_back(call);
        while self.kept.len() > limits::KEPT_CALLS
            || (self.bytes > limits::KEPT_CALLS_BYTES && self.kept.len() > 1)
        {
            if let Some(oldest) = self.kept.pop_front() {
                self.bytes -= oldest.bytes();
            }
        }
        let call = self.kept.back_mut().ok_or(Unreadable)?;
        Ok((call, known?))
    }

    /// Begins a call anew if one of its id is over: some agents use an id again.
    pub(super) fn renew(&mut self, id: &str) {
        let over = |call: &Call| call.id == id && call.ended;
        if let Some(at) = self.kept.iter().position(over)
            && let Some(call) = self.kept.remove(at)
        {
            self.bytes -= call.bytes();
        }
    }

    /// The turn is over.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(calls: &mut Calls, json: &str) -> Known {
        let raw = RawValue::from_string(json.to_owned()).expect("JSON");
        let fields = CallFields::read(&raw).expect("a call");
        calls.merge(&fields).expect("readable").1
    }

    #[test]
    fn what_a_message_does_not_mention_stays_as_it_was() {
        let mut calls = Calls::default();
        let first = r#"{"toolCallId":"c","title":"t","kind":"edit","rawInput":{"path":"a"},"locations":[{"path":"a"}],"content":[{"type":"diff","path":"a","newText":"x"},{"type":"content","content":{"type":"text","text":"y"}}]}"#;
        let whole = r#"{"rawInput":{"path":"a"},"content":[{"type":"diff","path":"a","newText":"x"}],"locations":[{"path":"a"}]}"#;
        let begun = known(&mut calls, first);
        assert_eq!(begun.input.get(), whole);
        assert!(begun.changed);
        let bare = known(&mut calls, r#"{"toolCallId":"c"}"#);
        assert_eq!(bare.input.get(), whole);
        assert_eq!(bare.name.raw(), "edit");
        assert!(!bare.changed);
        let empty =
            r#"{"toolCallId":"c","rawInput":{ },"locations":[ ],"content":[],"title":null}"#;
        assert_eq!(known(&mut calls, empty).input.get(), whole);
        let own = known(&mut calls, r#"{"toolCallId":"c","rawInput":{"path":"b"}}"#);
        assert!(
            own.input
                .get()
                .starts_with(r#"{"rawInput":{"path":"b"},"content""#)
        );
        assert!(own.changed);
    }

    #[test]
    fn a_call_that_nobody_announced_has_no_kind() {
        let bare = known(&mut Calls::default(), r#"{"toolCallId":"c","title":"ls"}"#);
        assert_eq!((bare.name.raw(), bare.input.get()), ("other", "{}"));
    }

    #[test]
    fn a_long_difference_keeps_its_path() {
        let long = "x".repeat(limits::DIFF_BYTES);
        let json = format!(
            r#"{{"toolCallId":"c","content":[{{"type":"diff","path":"a","newText":"{long}"}}]}}"#
        );
        let known = known(&mut Calls::default(), &json);
        assert_eq!(
            known.input.get(),
            r#"{"content":[{"type":"diff","path":"a"}]}"#
        );
    }

    #[test]
    fn what_is_too_large_to_be_kept_cannot_be_judged_later() {
        let mut calls = Calls::default();
        let long = "x".repeat(limits::ASK_INPUT_BYTES);
        let json = format!(r#"{{"toolCallId":"c","rawInput":{{"command":"{long}"}}}}"#);
        assert!(known(&mut calls, &json).input.get().len() > limits::ASK_INPUT_BYTES);
        let later = known(&mut calls, r#"{"toolCallId":"c"}"#);
        assert!(later.input.get().starts_with('"'), "{}", later.input);
    }

    #[test]
    fn calls_are_kept_within_bounds() {
        let mut calls = Calls::default();
        let half = "x".repeat(limits::ASK_INPUT_BYTES / 2);
        for n in 0..3 * limits::KEPT_CALLS {
            known(&mut calls, &format!(r#"{{"toolCallId":"{n}"}}"#));
        }
        assert_eq!(calls.kept.len(), limits::KEPT_CALLS);
        for n in 0..3 * limits::KEPT_CALLS {
            known(
                &mut calls,
                &format!(r#"{{"toolCallId":"b{n}","rawInput":["{half}"]}}"#),
            );
            assert!(calls.bytes <= limits::KEPT_CALLS_BYTES);
        }
        let sum: usize = calls.kept.iter().map(Call::bytes).sum();
        assert_eq!(sum, calls.bytes);
        calls.clear();
        assert_eq!(calls.bytes, 0);
    }

    #[test]
    fn content_of_a_shape_that_we_do_not_know_is_unreadable() {
        for content in [
            "7",
            "{}",
            "[7]",
            r#"[{"type":"diff","path":"a","path":"b"}]"#,
        ] {
            let json = format!(r#"{{"toolCallId":"c","content":{content}}}"#);
            let raw = RawValue::from_string(json).expect("JSON");
            let fields = CallFields::read(&raw).expect("a call");
            assert!(Calls::default().merge(&fields).is_err(), "{content}");
        }
    }
}
