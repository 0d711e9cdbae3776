//! Budgets, windows and backoffs.

use super::*;
use marshal_config::OnCrash;

const SECOND: Duration = Duration::from_secs(1);

fn policy() -> Restart {
    Restart {
        kind: RestartKind::Transient,
        budget: 5,
        window: Duration::from_secs(300),
        base: SECOND,
        max: 60 * SECOND,
        reset_after: 60 * SECOND,
        on_crash: OnCrash::Report,
        never_codes: Vec::new(),
    }
}

fn end(class: ExitClass, code: Option<i32>) -> ChildEnd {
    ChildEnd {
        class,
        status: code.map(ExitStatus::Code),
        was_ready: true,
        is_unrecoverable: false,
        lifetime: SECOND,
        detail: String::new(),
    }
}

fn crash() -> ChildEnd {
    ChildEnd {
        status: Some(ExitStatus::Signal(11)),
        ..end(ExitClass::Signalled, None)
    }
}

/// The delays, in ms, that follow on so many crashes, each `apart` after the last.
fn delays(policy: &Restart, times: u32, apart: Duration, random: f64) -> Vec<u128> {
    let (mut history, mut now) = (FailureHistory::new(), Instant::now());
    let mut out = Vec::new();
    for _ in 0..times {
        now += apart;
        match decide_restart(&mut history, &crash(), policy, now, random) {
            RestartDecision::Start { after } => out.push(after.as_millis()),
            RestartDecision::Park { .. } | RestartDecision::NoRestart => break,
        }
    }
    out
}

#[track_caller]
fn check(end: &ChildEnd, policy: &Restart, expect: &str) {
    let next = decide_restart(&mut FailureHistory::new(), end, policy, Instant::now(), 0.5);
    let got = match next {
        RestartDecision::Start { after } => format!("start after {after:?}"),
        RestartDecision::Park { reason } => format!("park: {reason}"),
        RestartDecision::NoRestart => "rest".to_owned(),
    };
    assert_eq!(got, expect);
}

#[test]
fn every_end_that_nobody_asked_for_is_a_failure() {
    for &class in ExitClass::ALL {
        let expect = match class {
            ExitClass::Stopped | ExitClass::IdleUnload => "rest",
            ExitClass::VersionRefused => "park: version refused; another start would end the same",
            ExitClass::NeedsSetup => "park: needs setup; another start would end the same",
            _ => "start after 500ms",
        };
        check(&end(class, None), &policy(), expect);
    }
}

#[test]
fn what_would_end_the_same_again_parks_at_once() {
    let refused = ChildEnd {
        is_unrecoverable: true,
        was_ready: false,
        detail: "the key is not known".to_owned(),
        ..end(ExitClass::SpawnFailed, Some(255))
    };
    let expect = "park: spawn failed (exit code 255): the key is not known; \
                  another start would end the same";
    check(&refused, &policy(), expect);
}

#[test]
fn exit_0_before_the_handshake_is_a_failed_start() {
    let early = ChildEnd {
        was_ready: false,
        ..end(ExitClass::Exited, Some(0))
    };
    check(&early, &policy(), "start after 500ms");
    let none = Restart {
        budget: 0,
        ..policy()
    };
    check(
        &early,
        &none,
        "park: 1 failure within 300s, and the budget is 0; \
         last: exited (exit code 0) before its handshake was complete",
    );
}

#[test]
fn children_that_never_become_ready_park_their_slot_however_slowly_they_fail() {
    let hung = ChildEnd {
        was_ready: false,
        lifetime: 61 * SECOND,
        ..end(ExitClass::HandshakeTimeout, None)
    };
    let (mut history, mut now) = (FailureHistory::new(), Instant::now());
    let mut next = || {
        now += policy().window;
        decide_restart(&mut history, &hung, &policy(), now, 0.5)
    };
    for _ in 0..5 {
        assert!(matches!(next(), RestartDecision::Start { .. }));
    }
    let RestartDecision::Park { reason } = next() else {
        panic!("it goes on for ever");
    };
    assert!(reason.starts_with("6 children in a row"), "{reason}");

    let mut history = FailureHistory::new();
    for _ in 0..20 {
        now += 2 * policy().window;
        let ready = decide_restart(&mut history, &crash(), &policy(), now, 0.5);
        assert!(
            matches!(ready, RestartDecision::Start { .. }),
            "it was ready: {ready:?}"
        );
    }
}

#[test]
fn kinds_differ_in_what_they_restart() {
    let kind = |kind| Restart { kind, ..policy() };
    let (stopped, crash) = (end(ExitClass::Stopped, Some(0)), crash());
    check(&stopped, &kind(RestartKind::Permanent), "start after 0ns");
    check(&crash, &kind(RestartKind::Permanent), "start after 500ms");
    check(&stopped, &kind(RestartKind::Transient), "rest");
    check(&crash, &kind(RestartKind::Transient), "start after 500ms");
    check(&stopped, &kind(RestartKind::Temporary), "rest");
    check(&crash, &kind(RestartKind::Temporary), "rest");
}

#[test]
fn a_temporary_child_spends_the_budget_too() {
    let policy = Restart {
        kind: RestartKind::Temporary,
        budget: 1,
        ..policy()
    };
    let (mut history, now) = (FailureHistory::new(), Instant::now());
    assert_eq!(
        decide_restart(&mut history, &crash(), &policy, now, 0.5),
        RestartDecision::NoRestart
    );
    assert!(matches!(
        decide_restart(&mut history, &crash(), &policy, now, 0.5),
        RestartDecision::Park { .. }
    ));
}

#[test]
fn a_refused_version_parks_whatever_the_budget() {
    let refused = ChildEnd {
        detail: "the agent speaks protocol version 2, this supervisor speaks version 1".into(),
        was_ready: false,
        ..end(ExitClass::VersionRefused, None)
    };
    let policy = Restart {
        budget: 100,
        ..policy()
    };
    check(
        &refused,
        &policy,
        "park: version refused: the agent speaks protocol version 2, this supervisor speaks \
         version 1; another start would end the same",
    );
}

#[test]
fn a_never_code_parks_and_other_codes_do_not() {
    let policy = Restart {
        never_codes: vec![78],
        ..policy()
    };
    check(
        &end(ExitClass::Exited, Some(78)),
        &policy,
        "park: exited (exit code 78); exit code 78 is one of never_codes",
    );
    check(
        &end(ExitClass::Exited, Some(7)),
        &policy,
        "start after 500ms",
    );
    check(&end(ExitClass::Stopped, Some(78)), &policy, "rest");
}

#[test]
fn backoff_doubles_up_to_its_bound_and_jitter_chooses_within() {
    let policy = Restart {
        budget: 100,
        max: 10 * SECOND,
        ..policy()
    };
    assert_eq!(
        delays(&policy, 6, SECOND, 0.999_999),
        [999, 1999, 3999, 7999, 9999, 9999]
    );
    assert_eq!(delays(&policy, 3, SECOND, 0.25), [250, 500, 1000]);
    assert_eq!(delays(&policy, 3, SECOND, 0.0), [0, 0, 0]);
}

#[test]
fn the_budget_parks_only_within_its_window() {
    assert_eq!(delays(&policy(), 100, SECOND, 0.0).len(), 5);
    assert_eq!(delays(&policy(), 100, 61 * SECOND, 0.0).len(), 100);
    assert_eq!(delays(&policy(), 100, 60 * SECOND, 0.0).len(), 5);
}

#[test]
fn a_completed_turn_resets_the_backoff_but_not_the_window() {
    let (mut history, now) = (FailureHistory::new(), Instant::now());
    for _ in 0..5 {
        assert_eq!(
            decide_restart(&mut history, &crash(), &policy(), now, 0.5),
            RestartDecision::Start { after: SECOND / 2 }
        );
        history.turn_completed();
    }
    let last = decide_restart(&mut history, &crash(), &policy(), now, 0.5);
    assert_eq!(
        last,
        RestartDecision::Park {
            reason: "6 failures within 300s, and the budget is 5; \
                     last: signalled (signal 11)"
                .into()
        }
    );
}

#[test]
fn children_that_are_never_ready_park_only_in_a_row() {
    let unready = ChildEnd {
        was_ready: false,
        ..crash()
    };
    let policy = policy();
    let decides = |completes: bool| {
        let (mut history, mut now) = (FailureHistory::new(), Instant::now());
        let mut parks = false;
        for _ in 0..10 {
            // Each alone in its window.
            now += policy.window + SECOND;
            let next = decide_restart(&mut history, &unready, &policy, now, 0.5);
            parks |= matches!(next, RestartDecision::Park { .. });
            if completes {
                history.turn_completed();
            }
        }
        parks
    };
    assert!(decides(false));
    assert!(!decides(true), "a turn was completed in between");
}

#[test]
fn a_long_life_resets_the_backoff() {
    let (mut history, now) = (FailureHistory::new(), Instant::now());
    let old = ChildEnd {
        lifetime: 60 * SECOND,
        ..crash()
    };
    for expect in [500, 1000] {
        let next = decide_restart(&mut history, &crash(), &policy(), now, 0.5);
        let after = Duration::from_millis(expect);
        assert_eq!(next, RestartDecision::Start { after });
    }
    let next = decide_restart(&mut history, &old, &policy(), now, 0.5);
    assert_eq!(next, RestartDecision::Start { after: SECOND / 2 });
}

#[test]
fn a_restored_history_still_counts() {
    let (mut history, now) = (FailureHistory::new(), Instant::now());
    for _ in 0..5 {
        decide_restart(&mut history, &crash(), &policy(), now, 0.5);
    }
    let later = now + 30 * SECOND;
    let ages: Vec<_> = history.ages(later).collect();
    assert_eq!(ages, [30 * SECOND; 5]);
    let mut restored = FailureHistory::from_ages(later, ages);
    assert!(matches!(
        decide_restart(&mut restored, &crash(), &policy(), later, 0.5),
        RestartDecision::Park { .. }
    ));
    restored.reset();
    assert!(matches!(
        decide_restart(&mut restored, &crash(), &policy(), later, 0.5),
        RestartDecision::Start { .. }
    ));
}

#[test]
fn a_history_keeps_no_more_than_the_budget_asks_for() {
    let (mut history, now) = (FailureHistory::new(), Instant::now());
    for _ in 0..1000 {
        decide_restart(&mut history, &crash(), &policy(), now, 0.5);
    }
    assert_eq!(history.failures.len(), 6);
}

#[test]
fn a_backoff_is_checked() {
    assert_eq!(
        Backoff::new(Duration::ZERO, SECOND),
        Err(BackoffError::Zero)
    );
    assert!(Backoff::new(2 * SECOND, SECOND).is_err());
    let backoff = Backoff::new(SECOND, 60 * SECOND).expect("bounds in order");
    assert_eq!(backoff.upper_bound(u32::MAX), 60 * SECOND);
    for random in [1.0, 7.0, f64::INFINITY] {
        assert_eq!(backoff.delay(0, random), SECOND);
    }
    for random in [0.0, -1.0, f64::NAN] {
        assert_eq!(backoff.delay(9, random), Duration::ZERO);
    }
}
