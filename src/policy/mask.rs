//! Known secrets in what agents send: found, and replaced by `‹secret:NAME›`.
//!
//! Owns which texts are secrets: the values that it is given, and the shapes of well-known keys
//! (`shapes`); and how they are taken out of a text and of JSON (`json`). What is stored, digested
//! and judged went through here, so that it can be judged again later, when the values are not
//! there any more. Must not know where the values come from, nor what the texts are for.
//!
//! A request that holds the mark where rules look is never allowed by a rule or a default: nobody
//! can say what stands behind it.

mod json;
mod shapes;

use std::borrow::Cow;
use std::fmt;

use aho_corasick::{AhoCorasick, AhoCorasickKind};
use serde_json::value::RawValue;

use self::shapes::SHAPES;
use super::Policy;
use super::judge::Hit;
use super::request::{Judgement, Request, Target};
use crate::limits::SECRET_LEAST_BYTES;
use crate::model::{DecidedBy, Decision, Foreign};

/// What every mark begins with.
const MARK: &str = "‹secret:";

/// The setting that a masked request is held back by.
const RULE: &str = "secret";

/// Why.
const WHY: &str = "it holds the value of a known secret, and what stands there is on no record: name the variable or the file that has it instead";

/// Finds secrets. Immutable; shared behind an `Arc`.
pub struct Mask {
    /// The values, then the beginnings of the shapes.
    every: AhoCorasick,
    /// The mark of each value.
    marks: Vec<String>,
}

/// Shows how many there are, and none of them.
impl fmt::Debug for Mask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mask({} values)", self.marks.len())
    }
}

/// The shapes alone.
impl Default for Mask {
    fn default() -> Self {
        Self::new(&[]).0
    }
}

/// A secret in a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Span<'m> {
    start: usize,
    end: usize,
    /// The name, where it is a shape; else the whole mark.
    mark: Mark<'m>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mark<'m> {
    Value(&'m str),
    Shape(&'static str),
}

impl Mark<'_> {
    fn push_to(self, text: &mut String) {
        match self {
            Self::Value(mark) => text.push_str(mark),
            Self::Shape(name) => {
                text.push_str(MARK);
                text.push_str(name);
                text.push('›');
            }
        }
    }
}

impl Mask {
    /// Of these values, by their names. Of a value with blanks around it the rest counts, too.
    /// Gives back the names of those that are left out: they have less than
    /// [`SECRET_LEAST_BYTES`], so that they would stand in any text.
    pub fn new(values: &[(String, &str)]) -> (Self, Vec<String>) {
        let (mut texts, mut marks, mut short) = (Vec::new(), Vec::new(), Vec::new());
        for (name, value) in values {
            let trimmed = value.trim();
            if trimmed.len() < SECRET_LEAST_BYTES {
                short.push(name.clone());
                continue;
            }
            // What is looked for is the inner part: it stands wherever the whole does.
            if !texts.contains(&trimmed) {
                texts.push(trimmed);
                marks.push(format!("{MARK}{}›", plain(name)));
            }
        }
        let shapes = SHAPES.iter().map(|shape| shape.begins);
        let all: Vec<&str> = texts.into_iter().chain(shapes).collect();
        // A table for every byte of every state would be large for large secrets.
        let every = AhoCorasick::builder()
            .kind(Some(AhoCorasickKind::ContiguousNFA))
            .build(&all)
            .unwrap_or_else(|_| unreachable!("secrets have some MiB together at most"));
        (Self { every, marks }, short)
    }

    /// A text without its secrets; not copied if it has none.
    pub fn text<'t>(&self, text: &'t str) -> Cow<'t, str> {
        let spans = self.spans(text);
        if spans.is_empty() {
            return Cow::Borrowed(text);
        }
        let mut out = String::with_capacity(text.len());
        let mut done = 0;
        for span in spans {
            out.push_str(text.get(done..span.start).unwrap_or_default());
            span.mark.push_to(&mut out);
            done = span.end;
        }
        out.push_str(text.get(done..).unwrap_or_default());
        Cow::Owned(out)
    }

    /// The same of a foreign text, in its place.
    pub fn foreign(&self, text: &mut Foreign) {
        if let Cow::Owned(masked) = self.text(text.raw()) {
            *text = Foreign::new(masked);
        }
    }

    /// JSON without the secrets in its texts, names of members and numbers; everything else stays
    /// as it is, byte for byte. However a secret is escaped, it is found. Not copied if it has none.
    pub fn json<'t>(&self, value: &'t RawValue) -> Cow<'t, RawValue> {
        json::masked(self, value)
    }

    /// The secrets in a text, from its beginning on; none of them touches another.
    fn spans(&self, text: &str) -> Vec<Span<'_>> {
        // Nearly every text has none, and then nothing is allocated.
        if !self.every.is_match(text) {
            return Vec::new();
        }
        let mut found = Vec::new();
        let mut done = [0; SHAPES.len()];
        for hit in self.every.find_overlapping_iter(text) {
            let at = hit.pattern().as_usize();
            if let Some(mark) = self.marks.get(at) {
                found.push(Span {
                    start: hit.start(),
                    end: hit.end(),
                    mark: Mark::Value(mark),
                });
                continue;
            }
            let of_shapes = at - self.marks.len();
            let (Some(shape), Some(done)) = (SHAPES.get(of_shapes), done.get_mut(of_shapes)) else {
                continue;
            };
            // What was looked through once is not looked through again.
            if hit.start() < *done {
                continue;
            }
            if let Some(end) = shape.end(text, hit.start()) {
                *done = end;
                found.push(Span {
                    start: hit.start(),
                    end,
                    mark: Mark::Shape(shape.name),
                });
            }
        }
        merged(found)
    }
}

/// What overlaps becomes one: a value's name goes before a shape's, then the longer one's.
fn merged(mut found: Vec<Span<'_>>) -> Vec<Span<'_>> {
    found.sort_by_key(|span| (span.start, std::cmp::Reverse(span.end)));
    let mut merged: Vec<Span<'_>> = Vec::with_capacity(found.len());
    for span in found {
        match merged.last_mut() {
            Some(last) if span.start < last.end => {
                last.end = last.end.max(span.end);
                if let (Mark::Shape(_), Mark::Value(_)) = (last.mark, span.mark) {
                    last.mark = span.mark;
                }
            }
            _ => merged.push(span),
        }
    }
    merged
}

/// A name that is safe wherever a mark stands.
fn plain(name: &str) -> String {
    let safe = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    name.chars()
        .map(|c| if safe(c) { c } else { '_' })
        .collect()
}

/// What holds a request back that has a secret where rules look.
pub(super) fn held(request: &Request) -> Option<Hit> {
    holds(request).then(|| Hit::setting(Decision::Ask, RULE, WHY))
}

impl Policy {
    /// The judgement of something that was judged as it came, and that has a secret in it: it is
    /// allowed by no rule and no default.
    pub fn hold_back(&self, judgement: Judgement) -> Judgement {
        if judgement.decision != Decision::Allow {
            return judgement;
        }
        Judgement {
            decision: self.ask_as,
            rules: vec![RULE.to_owned()],
            reason: format!("rule {RULE} wants a person: {WHY}"),
            by: DecidedBy::Policy,
            facts: judgement.facts,
            would: judgement.would,
            uses: Vec::new(),
        }
    }
}

fn has(text: &str) -> bool {
    text.contains(MARK)
}

fn any_has(texts: &[String]) -> bool {
    texts.iter().any(|text| has(text))
}

/// Whether a request has a mark where rules look.
fn holds(request: &Request) -> bool {
    match request {
        Request::Shell { command, cwd } => has(command) || cwd.as_deref().is_some_and(has),
        Request::Read { targets } => targets.iter().any(|target| match target {
            Target::Path(path) | Target::Anywhere(path) | Target::Mentioned(path) => has(path),
            Target::Search { below, name } => below.as_deref().is_some_and(has) || has(name),
            Target::Workspace => false,
        }),
        Request::Write { paths } | Request::Edit { paths } | Request::Delete { paths } => {
            any_has(paths)
        }
        Request::Move { from, to } => any_has(from) || any_has(to),
        Request::Fetch { url, method } => has(url) || method.as_deref().is_some_and(has),
        Request::Mcp {
            server,
            name,
            arguments,
        } => has(server.raw()) || has(name.raw()) || in_value(arguments),
        Request::Unknown { tool } => has(tool.raw()),
        Request::Malformed { .. } => false,
    }
}

/// The depth is bounded by whoever read the value.
fn in_value(value: &serde_json::Value) -> bool {
    match value {
        serde_json::Value::String(text) => has(text),
        serde_json::Value::Array(items) => items.iter().any(in_value),
        serde_json::Value::Object(members) => members
            .iter()
            .any(|(name, value)| has(name) || in_value(value)),
        _ => false,
    }
}

#[cfg(test)]
mod tests;
