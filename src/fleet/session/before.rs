//! What is known of a request before a person is asked about it: the same one waits, or was
//! answered before.
//!
//! Must not end or put anything.

use super::answers::Shown;
use super::approvals::Member;
use super::state::SessionState;
use crate::fleet::clock;
use crate::fleet::questions::Known;
use crate::journal::AnswerRow;
use crate::model::AskId;

/// What was found.
pub(super) enum Before {
    /// Nothing may be taken over: it is asked anew.
    Nothing,
    /// The same waits for a person.
    Waits(AskId),
    /// An answer holds until the turn ends.
    OfTurn(AnswerRow),
    /// What there is beside this turn.
    Known(Known),
}

impl Before {
    /// The question of an earlier request that this one is of, too.
    pub(super) const fn question(&self) -> Option<&AskId> {
        match self {
            Self::Waits(id) | Self::Known(Known::Answered(id, _) | Known::Orphaned(id, _)) => {
                Some(id)
            }
            _ => None,
        }
    }
}

impl SessionState {
    /// Looks. What was kept for it is given once; what does not hold any more, by what is in force
    /// now, is forgotten.
    pub(super) fn before(&mut self, member: &Member, digest: &str, shown: &Shown) -> Before {
        if !shown.is_certain || member.decided.spent.is_some() {
            // Nothing says that it would do the same as another one of these words; and of a budget
            // an answer before was about less.
            return Before::Nothing;
        }
        let mut open = self.pending.iter();
        if let Some((id, _)) = open.find(|(_, of)| of.digest == digest && of.shown == *shown) {
            return Before::Waits(id.clone());
        }
        let rules = self.pool.ask_rules();
        if self
            .of_turn
            .get(digest)
            .is_some_and(|of| !rules.still_hold(&of.answer))
        {
            self.of_turn.remove(digest);
        }
        if let Some(of) = self.of_turn.get(digest)
            && of.paths == shown.paths
        {
            return Before::OfTurn(of.answer.clone());
        }
        let (session, now_us) = (&self.work.session, clock::now_us());
        let questions = &self.shared.questions;
        Before::Known(questions.known(session, digest, &shown.paths, now_us, &rules))
    }
}
