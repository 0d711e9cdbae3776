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
use super::evaluate::Hit;
use super::request::{PolicyDecision, ReadTarget, Request};
use marshal_model::limits::SECRET_MIN_BYTES;
use marshal_model::{DecidedBy, Decision, UntrustedText};

/// What every mark begins with.
const MARK: &str = "‹secret:";

/// The setting that a masked request is held back by.
const SECRET_RULE: &str = "secret";

/// Why.
const SECRET_REASON: &str = "it holds the value of a known secret, and what stands there is on no record: name the variable or the file that has it instead";

/// Finds secrets. Immutable; shared behind an `Arc`.
pub struct Mask {
    /// The values, then the beginnings of the shapes.
    matcher: AhoCorasick,
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
    /// [`SECRET_MIN_BYTES`], so that they would stand in any text.
    pub fn new(values: &[(String, &str)]) -> (Self, Vec<String>) {
        let (mut texts, mut marks, mut short) = (Vec::new(), Vec::new(), Vec::new());
        for (name, value) in values {
            let trimmed = value.trim();
            if trimmed.len() < SECRET_MIN_BYTES {
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
        (
            Self {
                matcher: every,
                marks,
            },
            short,
        )
    }

    /// A text without its secrets; not copied if it has none.
    pub fn mask_text<'t>(&self, text: &'t str) -> Cow<'t, str> {
        let spans = self.find_secrets(text);
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
    pub fn mask_foreign(&self, text: &mut UntrustedText) {
        if let Cow::Owned(masked) = self.mask_text(text.raw()) {
            *text = UntrustedText::new(masked);
        }
    }

    /// JSON without the secrets in its texts, names of members and numbers; everything else stays
    /// as it is, byte for byte. However a secret is escaped, it is found. Not copied if it has none.
    pub fn mask_json<'t>(&self, value: &'t RawValue) -> Cow<'t, RawValue> {
        json::mask_json(self, value)
    }

    /// The secrets in a text, from its beginning on; none of them touches another.
    fn find_secrets(&self, text: &str) -> Vec<Span<'_>> {
        // Nearly every text has none, and then nothing is allocated.
        if !self.matcher.is_match(text) {
            return Vec::new();
        }
        let mut found = Vec::new();
        let mut done = [0; SHAPES.len()];
        for hit in self.matcher.find_overlapping_iter(text) {
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
            if let Some(end) = shape.find_end(text, hit.start()) {
                *done = end;
                found.push(Span {
                    start: hit.start(),
                    end,
                    mark: Mark::Shape(shape.name),
                });
            }
        }
        merge_spans(found)
    }
}

/// What overlaps becomes one: a value's name goes before a shape's, then the longer one's.
fn merge_spans(mut found: Vec<Span<'_>>) -> Vec<Span<'_>> {
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
pub(super) fn secret_hit(request: &Request) -> Option<Hit> {
    request_has_mark(request).then(|| Hit::from_setting(Decision::Ask, SECRET_RULE, SECRET_REASON))
}

impl Policy {
    /// The judgement of something that was judged as it came, and that has a secret in it: it is
    /// allowed by no rule and no default.
    pub fn require_approval_for_secret(&self, judgement: PolicyDecision) -> PolicyDecision {
        if judgement.decision != Decision::Allow {
            return judgement;
        }
        PolicyDecision {
            decision: self.ask_as,
            rules: vec![SECRET_RULE.to_owned()],
            reason: format!("rule {SECRET_RULE} wants a person: {SECRET_REASON}"),
            decided_by: DecidedBy::Policy,
            facts: judgement.facts,
            dry_run_decision: judgement.dry_run_decision,
            rule_uses: Vec::new(),
        }
    }
}

fn has_mark(text: &str) -> bool {
    text.contains(MARK)
}

fn any_has_mark(texts: &[String]) -> bool {
    texts.iter().any(|text| has_mark(text))
}

/// Whether a request has a mark where rules look.
fn request_has_mark(request: &Request) -> bool {
    match request {
        Request::Shell { command, cwd } => {
            has_mark(command) || cwd.as_deref().is_some_and(has_mark)
        }
        Request::Read { targets } => targets.iter().any(|target| match target {
            ReadTarget::Path(path) | ReadTarget::Anywhere(path) | ReadTarget::Mentioned(path) => {
                has_mark(path)
            }
            ReadTarget::Search { below, name } => {
                below.as_deref().is_some_and(has_mark) || has_mark(name)
            }
            ReadTarget::Workspace => false,
        }),
        Request::Write { paths } | Request::Edit { paths } | Request::Delete { paths } => {
            any_has_mark(paths)
        }
        Request::Move { from, to } => any_has_mark(from) || any_has_mark(to),
        Request::Fetch { url, method } => has_mark(url) || method.as_deref().is_some_and(has_mark),
        Request::Mcp {
            server,
            name,
            arguments,
        } => has_mark(server.raw()) || has_mark(name.raw()) || value_has_mark(arguments),
        Request::Unknown { tool } => has_mark(tool.raw()),
        Request::Malformed { .. } => false,
    }
}

/// The depth is bounded by whoever read the value.
fn value_has_mark(value: &serde_json::Value) -> bool {
    match value {
        serde_json::Value::String(text) => has_mark(text),
        serde_json::Value::Array(items) => items.iter().any(value_has_mark),
        serde_json::Value::Object(members) => members
            .iter()
            .any(|(name, value)| has_mark(name) || value_has_mark(value)),
        _ => false,
    }
}

#[cfg(test)]
mod tests;
