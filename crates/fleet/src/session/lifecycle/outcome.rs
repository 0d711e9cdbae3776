//! How a task ends, derived from the end of its turn and from its permission decisions. Pure.

use crate::session::turn::tally::Tally;
use marshal_model::{TaskOutcome, TurnOutcome};

/// The outcome of a task whose attempt ended by itself.
///
/// `check_passed` is `None` where no check ran; `cancelled` says that the supervisor requested the
/// end.
pub(crate) fn from_turn(
    turn: TurnOutcome,
    tally: &Tally,
    check_passed: Option<bool>,
    cancelled: bool,
) -> TaskOutcome {
    let only_denied = tally.is_only_denied();
    match turn {
        TurnOutcome::Completed if only_denied => TaskOutcome::Denied,
        TurnOutcome::Completed if check_passed == Some(false) && cancelled => {
            TaskOutcome::Cancelled
        }
        TurnOutcome::Completed if check_passed == Some(false) => TaskOutcome::Failed,
        TurnOutcome::Completed => TaskOutcome::Done,
        TurnOutcome::Limited | TurnOutcome::Refused => TaskOutcome::Refused,
        // An agent that ends its turn because of a denial reports "cancelled" though nobody
        // requested it.
        TurnOutcome::Cancelled if tally.denied > 0 && !cancelled => TaskOutcome::Denied,
        TurnOutcome::Cancelled => TaskOutcome::Cancelled,
        TurnOutcome::Failed => TaskOutcome::Failed,
        TurnOutcome::TimedOut => TaskOutcome::TimedOut,
        TurnOutcome::Lost => TaskOutcome::Lost,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(
        turn: TurnOutcome,
        (allowed, denied): (u32, u32),
        passed: Option<bool>,
        cancelled: bool,
        expect: TaskOutcome,
    ) {
        let tally = Tally {
            allowed,
            denied,
            ..Tally::default()
        };
        let got = from_turn(turn, &tally, passed, cancelled);
        assert_eq!(
            got, expect,
            "{turn} {allowed}+{denied} {passed:?} {cancelled}"
        );
    }

    #[test]
    fn only_a_completed_turn_with_a_passed_check_is_done() {
        use TaskOutcome as T;
        use TurnOutcome as O;
        check(O::Completed, (0, 0), None, false, T::Done);
        check(O::Completed, (3, 1), None, false, T::Done);
        check(O::Completed, (0, 1), None, false, T::Denied);
        check(O::Completed, (1, 0), Some(true), false, T::Done);
        check(O::Completed, (1, 0), Some(false), false, T::Failed);
        check(O::Completed, (1, 0), Some(false), true, T::Cancelled);
        check(O::Completed, (0, 1), Some(true), false, T::Denied);
        check(O::Limited, (1, 0), None, false, T::Refused);
        check(O::Refused, (1, 0), None, false, T::Refused);
        check(O::Cancelled, (1, 1), None, false, T::Denied);
        check(O::Cancelled, (1, 1), None, true, T::Cancelled);
        check(O::Cancelled, (1, 0), None, false, T::Cancelled);
        check(O::Failed, (1, 0), None, false, T::Failed);
        check(O::TimedOut, (1, 0), None, false, T::TimedOut);
        check(O::Lost, (1, 0), None, false, T::Lost);
    }
}
