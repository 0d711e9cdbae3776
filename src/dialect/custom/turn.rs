//! A turn: its prompt, its cancel, its end. Must not read lines.

use super::filling::{self, Filling};
use super::{Custom, Ended, Plan, Turn};
use crate::config::DialectTable;
use crate::config::dialect_table::Hole;
use crate::dialect::{Attachment, Effect, Effects};
use crate::model::{Event, Foreign, TurnOutcome, Usage};

impl Custom {
    pub(super) fn prompt(
        &mut self,
        plan: &Plan,
        text: &Foreign,
        files: &[Attachment],
        out: &mut Effects,
    ) {
        self.telling = std::mem::take(&mut self.denials);
        let told = self.telling.words();
        let text = told.map_or_else(
            || text.raw().to_owned(),
            |told| format!("{told}{}", text.raw()),
        );
        let mut all = vec![(Hole::Prompt, text.as_str())];
        all.extend(self.known());
        let filling = Filling {
            texts: &all,
            attached: plan.table.attached.as_ref().map(|each| (each, files)),
            ..Filling::default()
        };
        out.push(Effect::Write(filling::line(&plan.table.prompt, &filling)));
        self.last.by_error = false;
        self.usage = Usage::default();
        self.turn = Turn::Sent;
        self.is_taken = false;
        if !plan.starts_turns {
            self.turn = Turn::Running(None);
            out.push(Effect::Event(Event::TurnStarted { turn: None }));
        }
    }

    /// Ends the running turn from our side. Nothing to do if none runs, or if that was said.
    pub(super) fn cancel(&mut self, table: &DialectTable, out: &mut Effects) {
        if self.turn == Turn::None || self.cancelling {
            return;
        }
        self.cancelling = true;
        self.give_up_asks(table, "the turn is cancelled", out);
        self.interrupt(table, out);
    }

    pub(super) fn interrupt(&self, table: &DialectTable, out: &mut Effects) {
        if let Some(template) = &table.cancel {
            self.say(template, &[], out);
        }
    }

    pub(super) fn end_turn(&mut self, end: Ended, out: &mut Effects) {
        self.withdraw(out);
        let named = match std::mem::take(&mut self.turn) {
            Turn::Running(id) => id,
            Turn::None | Turn::Sent => None,
        };
        self.last.id = named.or(end.turn);
        let asked = std::mem::take(&mut self.cancelling);
        let used = std::mem::take(&mut self.usage);
        let outcome = match end.outcome {
            TurnOutcome::Failed if asked => TurnOutcome::Cancelled,
            outcome => outcome,
        };
        self.told(outcome == TurnOutcome::Completed);
        out.push(Effect::Event(Event::TurnEnded {
            outcome,
            stop_reason: end.stop_reason,
            usage: end.usage.unwrap_or(used),
            detail: end.detail,
        }));
    }

    /// What the prompt told is told if the agent took it; else the next one tells it.
    pub(super) fn told(&mut self, is_over: bool) {
        let telling = std::mem::take(&mut self.telling);
        if !self.is_taken && !is_over {
            self.denials.told_in_vain(telling);
        }
    }
}
