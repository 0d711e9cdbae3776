//! A turn: its prompt, its cancel, its end. Must not read lines.

use super::templates::{self, TemplateValues};
use super::{CompiledDefinition, Custom};
use crate::named_turn::Turn;
use crate::turn_end::TurnEnd;
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
        self.usage = Usage::default();
        self.turn.start();
        self.is_prompt_accepted = false;
        if !plan.starts_turns {
            self.turn.state = Turn::Running(None);
            out.push(Effect::Event(Event::TurnStarted { turn: None }));
        }
    }

    /// Cancels the running turn. Does nothing if none runs, or if it is already cancelled.
    pub(super) fn cancel(&mut self, definition: &DialectDefinition, out: &mut Effects) {
        if self.turn.is_none() || self.cancelling {
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

    /// Ends the turn; `id` is its name as the ending message gives it.
    pub(super) fn end_turn(&mut self, end: TurnEnd, id: Option<&str>, out: &mut Effects) {
        self.open_requests.withdraw_all(out);
        self.turn.end(id);
        let was_cancelling = std::mem::take(&mut self.cancelling);
        let used = std::mem::take(&mut self.usage);
        self.settle_denials(end.outcome == TurnOutcome::Completed);
        let end = TurnEnd {
            usage: end.usage.or(Some(used)),
            ..end
        };
        out.push(Effect::Event(end.into_event(was_cancelling)));
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
