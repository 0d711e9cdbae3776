//! Turns, tool calls and tokens.

use std::time::Duration;

use crate::labels::{TokenType, ToolClass, ToolOutcome};
use crate::meters::{counter, histogram};
use crate::names;
use marshal_model::{Decision, SessionId, SlotId, TurnOutcome, Usage};

/// The turn's first output arrived.
#[derive(Debug)]
pub struct TurnFirstEvent<'a> {
    /// The slot.
    pub slot: &'a SlotId,
    /// The time since the prompt was written.
    pub after: Duration,
}

impl TurnFirstEvent<'_> {
    /// Observes.
    pub fn emit(self) {
        histogram(&names::TURN_FIRST_EVENT, &[self.slot.pool.as_str()]).record(self.after);
        tracing::trace!(slot = %self.slot, after = ?self.after, "first output");
    }
}

/// A turn ended.
#[derive(Debug)]
pub struct TurnEnded<'a> {
    /// The slot.
    pub slot: &'a SlotId,
    /// The session.
    pub session: &'a SessionId,
    /// The outcome.
    pub outcome: TurnOutcome,
    /// The time since the prompt was written.
    pub took: Duration,
    /// The number of tool calls in the turn.
    pub tool_calls: u32,
}

impl TurnEnded<'_> {
    /// Logs and counts.
    pub fn emit(self) {
        let pool = self.slot.pool.as_str();
        counter(&names::TURNS, &[pool, self.outcome.as_str()]).increment(1);
        histogram(&names::TURN_SECONDS_TAKEN, &[pool, self.outcome.as_str()]).record(self.took);
        histogram(&names::TURN_TOOL_CALLS, &[pool]).record(f64::from(self.tool_calls));
        tracing::info!(slot = %self.slot, session = %self.session, outcome = %self.outcome, took = ?self.took, tool_calls = self.tool_calls, "turn ended");
    }
}

/// A tool call ended.
#[derive(Debug)]
pub struct ToolCallEnded<'a> {
    /// The slot.
    pub slot: &'a SlotId,
    /// The kind of tool.
    pub tool_class: ToolClass,
    /// The outcome.
    pub outcome: ToolOutcome,
    /// How long it took, as the agent reported it.
    pub took: Option<Duration>,
}

impl ToolCallEnded<'_> {
    /// Counts.
    pub fn emit(self) {
        let pool = self.slot.pool.as_str();
        let class = self.tool_class.as_str();
        counter(&names::TOOL_CALLS, &[pool, class, self.outcome.as_str()]).increment(1);
        if let Some(took) = self.took {
            histogram(&names::TOOL_CALL_SECONDS, &[pool, class]).record(took);
        }
        tracing::debug!(slot = %self.slot, class, outcome = %self.outcome, took = ?self.took, "tool call ended");
    }
}

/// A tool call ran without a permission request, and the policy was evaluated afterwards.
#[derive(Debug)]
pub struct UnrequestedToolCall<'a> {
    /// The slot.
    pub slot: &'a SlotId,
    /// The session.
    pub session: &'a SessionId,
    /// The kind of tool.
    pub tool_class: ToolClass,
    /// The decision that the policy would have made.
    pub verdict: Decision,
    /// The rules behind that decision.
    pub rules: &'a [String],
}

impl UnrequestedToolCall<'_> {
    /// Logs a deny as a warning, and counts.
    pub fn emit(self) {
        let pool = self.slot.pool.as_str();
        counter(&names::TOOL_CALLS_UNASKED, &[pool, self.verdict.as_str()]).increment(1);
        if self.verdict == Decision::Deny {
            tracing::warn!(slot = %self.slot, session = %self.session, class = %self.tool_class, rules = ?self.rules, "tool call ran without a permission request, and the policy denies it");
        } else {
            tracing::debug!(slot = %self.slot, session = %self.session, class = %self.tool_class, verdict = %self.verdict, "tool call ran without a permission request");
        }
    }
}

/// Tokens were used since the last report.
#[derive(Debug)]
pub struct TokensUsed<'a> {
    /// The slot.
    pub slot: &'a SlotId,
    /// The tokens since the last report, as the agent counts them.
    pub used: Usage,
}

impl TokensUsed<'_> {
    /// Counts.
    pub fn emit(self) {
        let pool = self.slot.pool.as_str();
        for (kind, count) in [
            (TokenType::Input, self.used.input),
            (TokenType::Output, self.used.output),
        ] {
            counter(&names::TOKENS, &[pool, kind.as_str()]).increment(count);
        }
        tracing::trace!(slot = %self.slot, input = self.used.input, output = self.used.output, "tokens");
    }
}
