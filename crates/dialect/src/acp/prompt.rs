//! A prompt as blocks: earlier denials, the text, and the attached files.
//!
//! Must not read files.

use super::{Acp, Turn, write};
use crate::{Attachment, Effects};
use marshal_config::DenialFeedback;
use marshal_model::UntrustedText;

impl Acp {
    /// Writes a prompt. For us the turn begins here.
    pub(super) fn prompt(
        &mut self,
        text: &UntrustedText,
        attached: &[Attachment],
        out: &mut Effects,
    ) {
        let Some(session) = self.session.clone() else {
            return;
        };
        self.replay.is_over = true;
        self.unconfirmed_denials = std::mem::take(&mut self.denials);
        let denials = self.unconfirmed_denials.prompt_prefix();
        let mut blocks = Vec::with_capacity(attached.len() + 2);
        blocks.extend(denials.as_deref().map(write::Block::text));
        blocks.push(write::Block::text(text.raw()));
        let embeds = self.capabilities.embedded;
        blocks.extend(attached.iter().map(|file| match &file.text {
            Some(text) if embeds => write::Block::file(&file.path, text.raw()),
            _ => write::Block::link(&file.path),
        }));
        let id = self
            .requests
            .write(out, |id| write::prompt(id, &session, &blocks));
        self.turn = Turn::Sent(id);
    }

    /// Stores a denial's reason for the next prompt: the answer has no field for it.
    pub(super) fn record_denial(&mut self, about: &UntrustedText, reason: &str) {
        if self.opening.acp.report_denials == DenialFeedback::NextPrompt {
            self.denials.add(about, reason);
        }
    }
}
