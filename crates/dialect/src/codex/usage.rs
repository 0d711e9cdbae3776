//! Tokens: Codex reports a thread's sum after each answer of its model; we report a turn's.
//!
//! Must not know when a turn begins.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::lenient::{Count, parse_object};
use marshal_model::Usage;

/// The parameters of `thread/tokenUsage/updated`.
#[derive(Debug, Clone, Copy)]
pub(super) struct TokenUsage {
    total: Usage,
    last: Usage,
    /// Tokens in the context after the last answer, and the size of the context window.
    pub(super) context: Option<(u64, u64)>,
}

impl TokenUsage {
    pub(super) fn read(raw: &RawValue) -> Option<Self> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct All<'a> {
            #[serde(borrow)]
            total: &'a RawValue,
            #[serde(borrow)]
            last: &'a RawValue,
            model_context_window: Option<Count>,
        }
        #[derive(Deserialize)]
        struct Sum {
            #[serde(rename = "inputTokens")]
            input: Count,
            #[serde(rename = "outputTokens")]
            output: Count,
            #[serde(rename = "totalTokens")]
            all: Option<Count>,
        }
        let all: All<'_> = parse_object(raw)?;
        let (total, last): (Sum, Sum) = (parse_object(all.total)?, parse_object(all.last)?);
        let usage = |sum: &Sum| Usage {
            input: sum.input.0,
            output: sum.output.0,
        };
        let used = last.all.map(|count| count.0);
        let size = all.model_context_window.map(|count| count.0);
        Some(Self {
            total: usage(&total),
            last: usage(&last),
            context: used.zip(size.filter(|size| *size > 0)),
        })
    }
}

/// The tokens of the running turn.
#[derive(Debug, Default)]
pub(super) struct TurnUsage {
    /// The thread's sum when the turn began; `None` if none was reported yet.
    before: Option<Usage>,
    /// The thread's latest sum.
    now: Option<Usage>,
    is_fresh: bool,
}

impl TurnUsage {
    /// A new thread has used nothing.
    pub(super) const fn of_new_thread() -> Self {
        Self {
            before: None,
            now: None,
            is_fresh: true,
        }
    }

    /// A turn begins.
    pub(super) fn turn_begins(&mut self) {
        self.before = self.now.or(self.is_fresh.then(Usage::default));
    }

    /// Records the sum of an earlier turn.
    pub(super) const fn record_earlier(&mut self, usage: &TokenUsage) {
        self.now = Some(usage.total);
        self.before = Some(usage.total);
    }

    /// Records the sum of the running turn; returns the turn's part.
    pub(super) fn record_current(&mut self, usage: &TokenUsage) -> Usage {
        if self.before.is_none() {
            self.before = Some(subtract(usage.total, usage.last));
        }
        self.now = Some(usage.total);
        self.turn()
    }

    /// The turn's tokens so far.
    pub(super) fn turn(&self) -> Usage {
        match (self.now, self.before) {
            (Some(now), Some(before)) => subtract(now, before),
            _ => Usage::default(),
        }
    }
}

const fn subtract(from: Usage, what: Usage) -> Usage {
    Usage {
        input: from.input.saturating_sub(what.input),
        output: from.output.saturating_sub(what.output),
    }
}
