//! What a turn adds up to: requests, tokens, the end of the answer.
//!
//! Plain counting. Must not decide an outcome.

use super::asks::Decided;
use crate::limits::ANSWER_BYTES;
use crate::model::{Decision, Event, Foreign, Usage};

/// The sums of one attempt.
#[derive(Debug, Default, Clone)]
pub(crate) struct Tally {
    pub(crate) allowed: u32,
    pub(crate) denied: u32,
    pub(crate) asked: u32,
    pub(crate) unasked_denied: u32,
    pub(crate) denied_by: Vec<String>,
    pub(crate) usage: Usage,
    pub(crate) answer: String,
    pub(super) tool_calls: u32,
    pub(super) output: bool,
}

impl Tally {
    /// Whether the agent has said anything in this turn.
    pub(crate) const fn has_output(&self) -> bool {
        self.output
    }

    /// Tool calls announced.
    pub(crate) const fn tool_calls(&self) -> u32 {
        self.tool_calls
    }

    pub(crate) fn event(&mut self, event: &Event) {
        match event {
            Event::Text { delta } => {
                self.output = true;
                self.answer.push_str(delta.raw());
                keep_tail(&mut self.answer, ANSWER_BYTES);
            }
            Event::ToolStart { .. } => {
                self.output = true;
                self.tool_calls += 1;
            }
            Event::Usage(usage) | Event::TurnEnded { usage, .. } => {
                self.usage = Usage {
                    input: self.usage.input.max(usage.input),
                    output: self.usage.output.max(usage.output),
                };
            }
            _ => {}
        }
    }

    pub(crate) fn decided(&mut self, decided: &Decided) {
        if decided.policy == Decision::Ask {
            self.asked += 1;
        }
        if decided.verdict.decision == Decision::Allow {
            self.allowed += 1;
            return;
        }
        self.denied += 1;
        for rule in &decided.verdict.rules {
            self.name_rule(rule);
        }
        if decided.verdict.rules.is_empty() {
            let by = match decided.policy {
                Decision::Ask => "default".to_owned(),
                _ => decided.verdict.by.word().to_owned(),
            };
            self.name_rule(&by);
        }
    }

    /// Whether the call was one that the policy denies.
    pub(crate) fn unasked(&mut self, event: &Event) -> bool {
        let denied = matches!(
            event,
            Event::Unasked {
                decision: Decision::Deny,
                ..
            }
        );
        if denied {
            self.unasked_denied += 1;
        }
        denied
    }

    fn name_rule(&mut self, rule: &str) {
        const MOST: usize = 32;
        if self.denied_by.len() < MOST && !self.denied_by.iter().any(|known| known == rule) {
            self.denied_by.push(rule.to_owned());
        }
    }

    /// Adds the sums of another attempt of the same task; the later answer stays.
    pub(crate) fn add(&mut self, later: Self) {
        self.allowed += later.allowed;
        self.denied += later.denied;
        self.asked += later.asked;
        self.unasked_denied += later.unasked_denied;
        self.usage.input += later.usage.input;
        self.usage.output += later.usage.output;
        for rule in &later.denied_by {
            self.name_rule(rule);
        }
        self.answer = later.answer;
    }

    /// The end of the answer.
    pub(crate) fn answer(&self) -> Foreign {
        Foreign::new(self.answer.clone())
    }
}

/// Cuts a text from the front, at a character's border.
fn keep_tail(text: &mut String, most: usize) {
    // Twice the bound before cutting: a text that grows by a few bytes is not moved each time.
    if text.len() <= 2 * most {
        return;
    }
    let mut from = text.len() - most;
    while !text.is_char_boundary(from) {
        from += 1;
    }
    text.drain(..from);
}
