//! What a dialect without words for a denial's reason keeps of it, to tell it before the next prompt.
//!
//! Bounded, and each line marked as a remark. Must not know a protocol.

use std::fmt::Write as _;

use crate::limits;
use crate::model::Foreign;

/// Denials of which the agent was told nothing but that they are. They outlive a child: the next one
/// that goes on with the session is told.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Denials {
    lines: Vec<String>,
    more: usize,
}

impl Denials {
    pub(super) fn add(&mut self, about: &Foreign, reason: &str) {
        if self.lines.len() >= limits::DENIALS_TOLD {
            self.more += 1;
            return;
        }
        let mut line = format!("# - {}: {}", about.show(160), reason.replace('\n', " "));
        let end = (0..=limits::DENIAL_BYTES.min(line.len()))
            .rev()
            .find(|at| line.is_char_boundary(*at));
        line.truncate(end.unwrap_or_default());
        self.lines.push(line);
    }

    /// Puts back what a prompt was to tell that was never taken.
    pub(super) fn told_in_vain(&mut self, earlier: Self) {
        let later = std::mem::replace(self, earlier);
        for line in later.lines {
            if self.lines.len() < limits::DENIALS_TOLD {
                self.lines.push(line);
            } else {
                self.more += 1;
            }
        }
        self.more += later.more;
    }

    /// The words before the next prompt, each line marked as a remark; none if nothing was denied.
    pub(super) fn words(&self) -> Option<String> {
        let (lines, more) = (&self.lines, self.more);
        if lines.is_empty() {
            return None;
        }
        let mut text = format!(
            "# Before this prompt, these requests of yours were denied:\n{}\n",
            lines.join("\n")
        );
        if more > 0 {
            let _ = writeln!(text, "# - and {more} more");
        }
        Some(text)
    }
}
