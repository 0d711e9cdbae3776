//! Finds known secrets in what agents send, and replaces them by `‹secret:NAME›`.
//!
//! Owns what counts as a secret: the given values, and the shapes of well-known keys (`shapes`).
//! Also owns how secrets are removed from a text and from JSON (`json`). Everything that is stored,
//! digested and evaluated passes through here, so that it can be evaluated again later, when the
//! values are gone. Must not know where the values come from, nor what the texts are for.
//!
//! No rule and no default allows a request that has the mark where rules look: nobody can know what
//! it replaces.

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

/// The beginning of every mark.
const MARK: &str = "‹secret:";

/// The rule name in the decision about a masked request.
const SECRET_RULE: &str = "secret";

/// The reason in that decision.
const SECRET_REASON: &str = "it contains the value of a known secret, which is not recorded: name the variable or the file that holds it instead";

/// Finds secrets. Immutable; shared behind an `Arc`.
pub struct Mask {
    /// Matches the values, then the beginnings of the shapes.
    matcher: AhoCorasick,
    /// The mark of each value.
    marks: Vec<String>,
}

/// Prints the number of values, and none of them.
impl fmt::Debug for Mask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mask({} values)", self.marks.len())
    }
}

/// A mask with the shapes alone.
impl Default for Mask {
    fn default() -> Self {
        Self::new::<&str>(&[]).0
    }
}

/// A secret in a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Span<'m> {
    start: usize,
    end: usize,
    /// The name, for a shape; otherwise the whole mark.
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
    /// Builds a mask from values with their names. A value with surrounding blanks also counts
    /// without them. Returns the names of skipped values: those shorter than [`SECRET_MIN_BYTES`],
    /// which would occur in any text.
    pub fn new<V: AsRef<str>>(values: &[(String, V)]) -> (Self, Vec<String>) {
        let (mut texts, mut marks, mut short) = (Vec::new(), Vec::new(), Vec::new());
        for (name, value) in values {
            let trimmed = value.as_ref().trim();
            if trimmed.len() < SECRET_MIN_BYTES {
                short.push(name.clone());
                continue;
            }
            // The trimmed part is searched for: it occurs wherever the whole value does.
            if !texts.contains(&trimmed) {
                texts.push(trimmed);
                marks.push(format!("{MARK}{}›", plain(name)));
            }
        }
        let shapes = SHAPES.iter().map(|shape| shape.begins);
        let all: Vec<&str> = texts.into_iter().chain(shapes).collect();
        // A full transition table would be large for large secrets.
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

    /// A text without its secrets; borrowed if it has none.
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

    /// Masks a foreign text in place.
    pub fn mask_foreign(&self, text: &mut UntrustedText) {
        if let Cow::Owned(masked) = self.mask_text(text.raw()) {
            *text = UntrustedText::new(masked);
        }
    }

    /// JSON without the secrets in its strings, member names and numbers. Everything else stays
    /// byte for byte. A secret is found however it is escaped. Borrowed if it has none.
    pub fn mask_json<'t>(&self, value: &'t RawValue) -> Cow<'t, RawValue> {
        json::mask_json(self, value)
    }

    /// The secrets in a text, in order and without overlaps.
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
            // Text that was searched once is not searched again.
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

/// Merges overlapping spans: a value's name takes precedence over a shape's, then the longer
/// span's.
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

/// A name that is safe in every place of a mark.
fn plain(name: &str) -> String {
    let safe = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    name.chars()
        .map(|c| if safe(c) { c } else { '_' })
        .collect()
}

/// The hit for a request that has a secret where rules look.
pub(super) fn secret_hit(request: &Request) -> Option<Hit> {
    request_has_mark(request).then(|| Hit::from_setting(Decision::Ask, SECRET_RULE, SECRET_REASON))
}

impl Policy {
    /// The decision about something that was evaluated unmasked and that contains a secret: no rule
    /// and no default allows it.
    pub fn require_approval_for_secret(&self, policy_decision: PolicyDecision) -> PolicyDecision {
        if policy_decision.decision != Decision::Allow {
            return policy_decision;
        }
        PolicyDecision {
            decision: self.ask_as,
            rules: vec![SECRET_RULE.to_owned()],
            reason: format!("rule {SECRET_RULE} requires approval: {SECRET_REASON}"),
            decided_by: DecidedBy::Policy,
            facts: policy_decision.facts,
            dry_run_decision: policy_decision.dry_run_decision,
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

/// The reader of the value bounds its depth.
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
