//! A prompt as blocks: what was denied before, the text, and the files that belong to it.
//!
//! Must not read files.

use std::fmt::Write as _;

use super::{Acp, Turn, write};
use crate::config::TellDenials;
use crate::dialect::{Attachment, Effect, Effects};
use crate::limits;
use crate::model::Foreign;

/// Denials of which the agent was told nothing but that they are.
#[derive(Debug, Default)]
pub(super) struct Denials {
    told: Vec<String>,
    more: usize,
}

impl Denials {
    fn add(&mut self, about: &Foreign, reason: &str) {
        if self.told.len() >= limits::DENIALS_TOLD {
            self.more += 1;
            return;
        }
        let mut line = format!("# - {}: {}", about.show(160), reason.replace('\n', " "));
        let end = (0..=limits::DENIAL_BYTES.min(line.len()))
            .rev()
            .find(|at| line.is_char_boundary(*at));
        line.truncate(end.unwrap_or_default());
        self.told.push(line);
    }

    /// The words before the next prompt, each line marked as a remark; none if nothing was denied.
    fn take(&mut self) -> Option<String> {
        let told = std::mem::take(&mut self.told);
        let more = std::mem::take(&mut self.more);
        if told.is_empty() {
            return None;
        }
        let mut text = format!(
            "# Before this prompt, these requests of yours were denied:\n{}\n",
            told.join("\n")
        );
        if more > 0 {
            let _ = writeln!(text, "# - and {more} more");
        }
        Some(text)
    }
}

impl Acp {
    /// Writes a prompt: the turn has begun for us.
    pub(super) fn prompt(&mut self, text: &Foreign, attached: &[Attachment], out: &mut Effects) {
        let Some(session) = self.session.clone() else {
            return;
        };
        self.replay.is_over = true;
        let denials = self.denials.take();
        let id = self.fresh_id();
        self.turn = Turn::Sent(id);
        let mut blocks = Vec::with_capacity(attached.len() + 2);
        blocks.extend(denials.as_deref().map(write::Block::text));
        blocks.push(write::Block::text(text.raw()));
        let embeds = self.can.embedded;
        blocks.extend(attached.iter().map(|file| match &file.text {
            Some(text) if embeds => write::Block::file(&file.path, text.raw()),
            _ => write::Block::link(&file.path),
        }));
        out.push(Effect::Write(write::prompt(id, &session, &blocks)));
    }

    /// Keeps a denial's reason for the next prompt: the answer has no place for it.
    pub(super) fn denied(&mut self, about: &Foreign, reason: &str) {
        if self.opening.acp.tell_denials == TellDenials::NextPrompt {
            self.denials.add(about, reason);
        }
    }
}
