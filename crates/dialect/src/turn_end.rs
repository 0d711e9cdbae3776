//! How a turn ended, and the event that reports it.
//!
//! Must not know any protocol's messages.

use marshal_model::{Event, TurnOutcome, UntrustedText, Usage};

/// How a turn ended.
#[derive(Debug)]
pub(crate) struct TurnEnd {
    pub(crate) outcome: TurnOutcome,
    pub(crate) stop_reason: Option<UntrustedText>,
    /// What the turn has used, where that is known.
    pub(crate) usage: Option<Usage>,
    pub(crate) detail: Option<String>,
}

impl TurnEnd {
    /// The end of a failed turn.
    pub(crate) const fn failure(detail: String) -> Self {
        Self {
            outcome: TurnOutcome::Failed,
            stop_reason: None,
            usage: None,
            detail: Some(detail),
        }
    }

    /// The event that reports it. If we cancelled the turn, the agent failed because of that.
    pub(crate) fn into_event(self, was_cancelling: bool) -> Event {
        let outcome = match self.outcome {
            TurnOutcome::Failed if was_cancelling => TurnOutcome::Cancelled,
            outcome => outcome,
        };
        Event::TurnEnded {
            outcome,
            stop_reason: self.stop_reason,
            usage: self.usage.unwrap_or_default(),
            detail: self.detail,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_failure_is_a_consequence_of_the_cancel() {
        for (outcome, was_cancelling, wanted) in [
            (TurnOutcome::Failed, false, TurnOutcome::Failed),
            (TurnOutcome::Failed, true, TurnOutcome::Cancelled),
            (TurnOutcome::Completed, true, TurnOutcome::Completed),
            (TurnOutcome::Limited, true, TurnOutcome::Limited),
        ] {
            let end = TurnEnd {
                outcome,
                ..TurnEnd::failure("why".to_owned())
            };
            let Event::TurnEnded {
                outcome, detail, ..
            } = end.into_event(was_cancelling)
            else {
                panic!("another event");
            };
            assert_eq!((outcome, detail.as_deref()), (wanted, Some("why")));
        }
    }
}
