//! Tool calls that ran without a permission request.

use super::Decision;

/// Counts of these calls, by the decisions that they would have received.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UnaskedCalls {
    /// Calls that the policy would have allowed.
    pub allowed: u32,
    /// Calls that would have needed an approval.
    pub ask: u32,
    /// Calls that the policy would have denied.
    pub denied: u32,
}

impl UnaskedCalls {
    /// Adds other calls.
    pub const fn add(&mut self, other: Self) {
        self.allowed = self.allowed.saturating_add(other.allowed);
        self.ask = self.ask.saturating_add(other.ask);
        self.denied = self.denied.saturating_add(other.denied);
    }

    /// Counts one call.
    pub const fn add_call(&mut self, decision: Decision) {
        let count = match decision {
            Decision::Allow => &mut self.allowed,
            Decision::Ask => &mut self.ask,
            Decision::Deny => &mut self.denied,
        };
        *count = count.saturating_add(1);
    }

    /// The number of calls.
    #[must_use]
    pub const fn total(&self) -> u32 {
        self.allowed
            .saturating_add(self.ask)
            .saturating_add(self.denied)
    }

    /// The counts in words: `3 allowed, 1 denied`.
    #[must_use]
    pub fn describe(&self) -> String {
        let counts = [
            (self.allowed, "allowed"),
            (self.ask, "would have needed an approval"),
            (self.denied, "denied"),
        ];
        let words = counts.iter().filter(|(count, _)| *count > 0);
        let words: Vec<String> = words
            .map(|(count, word)| format!("{count} {word}"))
            .collect();
        words.join(", ")
    }
}
