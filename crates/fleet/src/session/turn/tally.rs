//! What one attempt at a task adds up to: decisions, tokens, the tail of the answer.
//!
//! Plain counting. Must not decide an outcome.

use crate::session::permissions::decide::DecidedRequest;
use marshal_config::hint::truncate_for_matching;
use marshal_model::limits::ANSWER_BYTES;
use marshal_model::{DecidedBy, Decision, Event, UnaskedCalls, UntrustedText, Usage, Verdict};

/// The sums of one attempt, or of all attempts of a task ([`Tally::add`]).
#[derive(Debug, Default, Clone)]
pub(crate) struct Tally {
    pub(crate) allowed: u32,
    pub(crate) denied: u32,
    /// Requests that needed an approval.
    pub(crate) approval_requests: u32,
    /// Calls that ran without a request, by the decisions that they would have received.
    pub(crate) unasked: UnaskedCalls,
    /// The rules that denied, or what denied instead of a rule; each once.
    pub(crate) denied_by: Vec<String>,
    pub(crate) usage: Usage,
    /// What the model cost, in nanodollars, where that is known.
    pub(crate) cost: u64,
    pub(crate) answer: String,
    /// The beginning of the last error that the agent reported.
    pub(crate) error: String,
    pub(crate) tool_calls: u32,
    pub(crate) output: bool,
}

impl Tally {
    /// Whether the agent has produced output in this turn.
    pub(crate) const fn has_output(&self) -> bool {
        self.output
    }

    /// Whether requests were denied and none was allowed.
    pub(crate) const fn is_only_denied(&self) -> bool {
        self.denied > 0 && self.allowed == 0
    }

    /// The number of tool calls.
    pub(crate) const fn tool_calls(&self) -> u32 {
        self.tool_calls
    }

    /// The beginning of the last error that the agent reported. It is foreign text, for finding a
    /// hint only.
    pub(crate) fn last_error(&self) -> &str {
        &self.error
    }

    pub(crate) fn add_event(&mut self, event: &Event) {
        match event {
            Event::AgentError { message, .. } => {
                truncate_for_matching(message.raw()).clone_into(&mut self.error);
            }
            Event::Text { delta } => {
                self.output = true;
                self.answer.push_str(delta.raw());
                keep_tail(&mut self.answer, ANSWER_BYTES);
            }
            Event::ToolStart { .. } => {
                self.output = true;
                self.tool_calls = self.tool_calls.saturating_add(1);
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

    pub(crate) fn add_decision(&mut self, decided: &DecidedRequest) {
        self.add_verdict(&decided.verdict, decided.policy == Decision::Ask);
    }

    /// `was_ask`: the policy's decision was "ask".
    fn add_verdict(&mut self, verdict: &Verdict, was_ask: bool) {
        if was_ask {
            self.approval_requests += 1;
        }
        if verdict.decision == Decision::Allow {
            self.allowed += 1;
            return;
        }
        self.denied += 1;
        for rule in &verdict.rules {
            self.add_denial_source(rule);
        }
        if verdict.rules.is_empty() {
            let by = if was_ask {
                "default"
            } else {
                verdict.decided_by.as_str()
            };
            self.add_denial_source(by);
        }
    }

    /// Adds an event of an attempt of an earlier start, from the journal.
    pub(crate) fn replay(&mut self, event: &Event) {
        self.add_event(event);
        if let Event::PermissionDecided(verdict) = event {
            // What needed approval was decided by an approver, or denied when it expired.
            let was_ask = matches!(
                verdict.decided_by,
                DecidedBy::Timeout | DecidedBy::Human | DecidedBy::Cache
            );
            self.add_verdict(verdict, was_ask);
        }
        self.add_unrequested_call(event);
    }

    /// Counts a call that ran without a request.
    pub(crate) fn add_unrequested_call(&mut self, event: &Event) {
        if let Event::UnrequestedToolCall { decision, .. } = event {
            self.unasked.add_call(*decision);
        }
    }

    fn add_denial_source(&mut self, source: &str) {
        const MOST: usize = 32;
        if self.denied_by.len() < MOST && !self.denied_by.iter().any(|known| known == source) {
            self.denied_by.push(source.to_owned());
        }
    }

    /// Adds the sums of another attempt of the same task; the later answer replaces the earlier
    /// one.
    pub(crate) fn add(&mut self, later: Self) {
        self.allowed = self.allowed.saturating_add(later.allowed);
        self.denied = self.denied.saturating_add(later.denied);
        self.approval_requests = self
            .approval_requests
            .saturating_add(later.approval_requests);
        self.unasked.add(later.unasked);
        self.usage.input = self.usage.input.saturating_add(later.usage.input);
        self.usage.output = self.usage.output.saturating_add(later.usage.output);
        self.cost = self.cost.saturating_add(later.cost);
        for rule in &later.denied_by {
            self.add_denial_source(rule);
        }
        self.answer = later.answer;
    }

    /// The tail of the answer.
    pub(crate) fn answer(&self) -> UntrustedText {
        let mut answer = self.answer.clone();
        cut_front(&mut answer, ANSWER_BYTES);
        UntrustedText::new(answer)
    }
}

/// Cuts a text to its tail, at a character boundary.
fn keep_tail(text: &mut String, limit: usize) {
    // Cuts only at twice the limit: a text that grows by a few bytes is not moved each time.
    if text.len() > 2 * limit {
        cut_front(text, limit);
    }
}

fn cut_front(text: &mut String, limit: usize) {
    if text.len() <= limit {
        return;
    }
    let mut from = text.len() - limit;
    while !text.is_char_boundary(from) {
        from += 1;
    }
    text.drain(..from);
}
