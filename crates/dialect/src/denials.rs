//! Denials whose reason a dialect cannot send. They are reported before the next prompt.
//!
//! Bounded, and each line is marked as a remark. Must not know a protocol.

use std::fmt::Write as _;

use marshal_model::UntrustedText;
use marshal_model::limits;

/// Denials whose reasons the agent has not been sent. They outlive a child: the next child that
/// resumes the session gets them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PendingDenials {
    lines: Vec<String>,
    omitted: usize,
}

impl PendingDenials {
    pub(super) fn add(&mut self, about: &UntrustedText, reason: &str) {
        if self.lines.len() >= limits::DENIALS_REPORTED {
            self.omitted += 1;
            return;
        }
        let mut line = format!(
            "# - {}: {}",
            about.escape_for_display(160),
            reason.replace('\n', " ")
        );
        let end = (0..=limits::DENIAL_BYTES.min(line.len()))
            .rev()
            .find(|at| line.is_char_boundary(*at));
        line.truncate(end.unwrap_or_default());
        self.lines.push(line);
    }

    /// Restores the denials of a prompt that the agent never accepted.
    pub(super) fn restore(&mut self, earlier: Self) {
        let later = std::mem::replace(self, earlier);
        for line in later.lines {
            if self.lines.len() < limits::DENIALS_REPORTED {
                self.lines.push(line);
            } else {
                self.omitted += 1;
            }
        }
        self.omitted += later.omitted;
    }

    /// The text before the next prompt, each line marked as a remark; `None` if nothing was denied.
    pub(super) fn prompt_prefix(&self) -> Option<String> {
        let (lines, more) = (&self.lines, self.omitted);
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
