//! A turn: its prompt, its cancel, its end. Must not read lines.

use super::templates::{self, TemplateValues};
use super::{CompiledDefinition, Custom, Turn, TurnEnd};
use crate::{Attachment, Effect, Effects};
use marshal_config::DialectDefinition;
use marshal_config::dialect_definition::Placeholder;
use marshal_model::{Event, TurnOutcome, UntrustedText, Usage};

impl Custom {
    pub(super) fn prompt(
        &mut self,
        plan: &CompiledDefinition,
        text: &UntrustedText,
        files: &[Attachment],
        out: &mut Effects,
    ) {
        self.unconfirmed_denials = std::mem::take(&mut self.denials);
        let prefix = self.unconfirmed_denials.prompt_prefix();
        let text = prefix.map_or_else(
            || text.raw().to_owned(),
            |prefix| format!("{prefix}{}", text.raw()),
        );
        let mut all = vec![(Placeholder::Prompt, text.as_str())];
        all.extend(self.known());
        let filling = TemplateValues {
            texts: &all,
            attached: plan
                .definition
                .attachment
                .as_ref()
                .map(|each| (each, files)),
            ..TemplateValues::default()
        };
        out.push(Effect::Write(templates::line(
            &plan.definition.prompt,
            &filling,
        )));
        self.last.ended_by_error = false;
        self.usage = Usage::default();
        self.turn = Turn::Sent;
        self.is_prompt_accepted = false;
        if !plan.starts_turns {
            self.turn = Turn::Running(None);
            out.push(Effect::Event(Event::TurnStarted { turn: None }));
        }
    }

    /// Cancels the running turn. Does nothing if none runs, or if it is already cancelled.
    pub(super) fn cancel(&mut self, definition: &DialectDefinition, out: &mut Effects) {
        if self.turn == Turn::None || self.cancelling {
            return;
        }
        self.cancelling = true;
        self.deny_requests(definition, "the turn is cancelled", out);
        self.interrupt(definition, out);
    }

    pub(super) fn interrupt(&self, definition: &DialectDefinition, out: &mut Effects) {
        if let Some(template) = &definition.cancel {
            self.send_template(template, &[], out);
        }
    }

    pub(super) fn end_turn(&mut self, end: TurnEnd, out: &mut Effects) {
        self.open_requests.withdraw_all(out);
        let named = match std::mem::take(&mut self.turn) {
            Turn::Running(id) => id,
            Turn::None | Turn::Sent => None,
        };
        self.last.id = named.or(end.turn);
        let was_cancelling = std::mem::take(&mut self.cancelling);
        let used = std::mem::take(&mut self.usage);
        let outcome = match end.outcome {
            TurnOutcome::Failed if was_cancelling => TurnOutcome::Cancelled,
            outcome => outcome,
        };
        self.settle_denials(outcome == TurnOutcome::Completed);
        out.push(Effect::Event(Event::TurnEnded {
            outcome,
            stop_reason: end.stop_reason,
            usage: end.usage.unwrap_or(used),
            detail: end.detail,
        }));
    }

    /// Drops the denials that the prompt reported if the agent accepted it; otherwise keeps them
    /// for the next prompt. `assume_accepted`: it did, whether it has shown that or not.
    pub(super) fn settle_denials(&mut self, assume_accepted: bool) {
        let unconfirmed = std::mem::take(&mut self.unconfirmed_denials);
        if !self.is_prompt_accepted && !assume_accepted {
            self.denials.restore(unconfirmed);
        }
    }
}
