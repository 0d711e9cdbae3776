//! What follows of how a chat stands that goes on by itself.

use super::*;
use marshal_model::{RoleName, RunId, TurnId, TurnState, UntrustedText, WorkspaceName};

fn chat(settings: ChatSettings, turns: u64) -> StoredChat {
    StoredChat {
        session: SessionId::new("c").expect("id"),
        run: RunId::new("r").expect("id"),
        workspace: WorkspaceName::new("main").expect("name"),
        role: RoleName::new("dev").expect("name"),
        model: None,
        goal: UntrustedText::from("goal"),
        files: Vec::new(),
        pool: PoolName::new("demo").expect("name"),
        mode: ChatMode::Autonomous,
        parent: None,
        phase: Some(ChatPhase::Working),
        settings,
        progress: ChatProgress::default(),
        forwarded: 0,
        created_ms: 1_000,
        ended_ms: None,
        turns,
        waiting: 0,
        running: None,
        used_ms: 1_000,
        is_closing: false,
    }
}

fn turn(outcome: TurnOutcome) -> StoredTurn {
    StoredTurn {
        turn: TurnId::new("t").expect("id"),
        chat: SessionId::new("c").expect("id"),
        seq: 1,
        content: UntrustedText::from("x"),
        state: TurnState::Ended,
        task: None,
        outcome: Some(outcome),
        accepted_ms: 0,
        begun_ms: None,
        ended_ms: None,
        key: None,
        stopped: false,
    }
}

fn facts(check: Option<&str>, bounds: ChatBounds) -> Facts {
    let settings = ChatSettings {
        plan_path: check.is_none().then(|| "plan.md".to_owned()),
        check_command: check.map(str::to_owned),
        bounds,
        ..ChatSettings::default()
    };
    Facts {
        chat: chat(settings, 2),
        last: vec![turn(TurnOutcome::Completed); 2],
        check: None,
        spent: Amount {
            tokens: 10,
            nanodollars: 20,
        },
    }
}

fn last_check(status: Option<ExitStatus>, output: &str) -> LastCheck {
    LastCheck {
        status,
        output: UntrustedText::from(output),
    }
}

fn reason(facts: &Facts) -> Option<&'static str> {
    match decide(facts, 5_000) {
        NextRound::Continue => None,
        NextRound::End(_, reason, _) => Some(reason),
    }
}

#[test]
fn a_goal_is_met_by_its_check_and_after_a_completed_turn_alone() {
    let zero = Some(ExitStatus::Code(0));
    let mut of = facts(Some("make test"), ChatBounds::default());
    assert_eq!(reason(&of), None);
    of.check = Some(last_check(Some(ExitStatus::Code(1)), ""));
    assert_eq!(reason(&of), None);
    of.check = Some(last_check(None, "it did not run"));
    assert_eq!(reason(&of), None);
    of.check = Some(last_check(zero, ""));
    assert_eq!(reason(&of), Some("goal_met"));
    of.last[0].outcome = Some(TurnOutcome::Failed);
    assert_eq!(reason(&of), None);
}

#[test]
fn without_a_check_the_plan_says_it() {
    let zero = Some(ExitStatus::Code(0));
    let mut of = facts(None, ChatBounds::default());
    for (text, is_met) in [
        ("", false),
        ("# Nothing\n", false),
        ("- [ ] a\n- [x] b\n", false),
        ("- [x] a\n- [x] b\n", true),
    ] {
        of.check = Some(last_check(zero, text));
        assert_eq!(reason(&of).is_some(), is_met, "{text:?}");
    }
    of.check = Some(last_check(Some(ExitStatus::Code(1)), "- [x] a\n"));
    assert_eq!(reason(&of), None);
    let long = "- [x] a\n".repeat(limits::CHECK_OUTPUT_BYTES / 8);
    of.check = Some(last_check(zero, &long));
    assert_eq!(reason(&of), None, "it may be cut");
}

#[test]
fn each_limit_ends_it() {
    let none = ChatBounds::default();
    for (bounds, word) in [
        (
            ChatBounds {
                turns: Some(3),
                ..none.clone()
            },
            None,
        ),
        (
            ChatBounds {
                turns: Some(2),
                ..none.clone()
            },
            Some("turns"),
        ),
        (
            ChatBounds {
                seconds: Some(5),
                ..none.clone()
            },
            None,
        ),
        (
            ChatBounds {
                seconds: Some(4),
                ..none.clone()
            },
            Some("seconds"),
        ),
        (
            ChatBounds {
                tokens: Some(11),
                ..none.clone()
            },
            None,
        ),
        (
            ChatBounds {
                tokens: Some(10),
                ..none.clone()
            },
            Some("tokens"),
        ),
        (
            ChatBounds {
                cost: Some(21),
                ..none.clone()
            },
            None,
        ),
        (
            ChatBounds {
                cost: Some(20),
                ..none
            },
            Some("cost_usd"),
        ),
    ] {
        let of = facts(Some("false"), bounds.clone());
        assert_eq!(reason(&of), word, "{bounds:?}");
    }
}

#[test]
fn failures_in_a_row_end_it_and_losses_do_not() {
    let mut of = facts(Some("false"), ChatBounds::default());
    of.last = vec![turn(TurnOutcome::Failed); 3];
    assert_eq!(reason(&of), Some("failures"));
    of.last[1].outcome = Some(TurnOutcome::Lost);
    assert_eq!(reason(&of), None);
}

#[test]
fn a_person_ends_it_whatever_else_is() {
    let mut of = facts(Some("true"), ChatBounds::default());
    of.check = Some(last_check(Some(ExitStatus::Code(0)), ""));
    let Some(Write::Chat(ChatWrite::Plan(PlanWrite::Progress {
        phase, progress, ..
    }))) = stop_write(&of.chat)
    else {
        panic!("it can be stopped");
    };
    assert_eq!(phase, ChatPhase::Working);
    of.chat.progress = progress;
    assert_eq!(reason(&of), Some(CANCELLED_BY_USER));
    assert!(stop_write(&of.chat).is_none(), "once");
    of.chat.phase = Some(ChatPhase::Ended);
    assert!(stop_write(&of.chat).is_none());
}

#[test]
fn what_is_wrong_is_refused_by_its_name() {
    let text = "[pool.demo]\ncommand = [\"sh\"]\npolicy = \"developer\"\n";
    let origin = marshal_config::Origin::built_in("/tmp".into());
    let config = Config::parse(text, &origin).expect("a configuration");
    let pool = PoolName::new("demo").expect("name");
    let id = SessionId::new("c").expect("id");
    let with = |of: WorkRequest| settings(&config, &pool, &id, of);
    let none = WorkRequest::default;
    for (of, word) in [
        (
            WorkRequest {
                check: Some(" ".to_owned()),
                ..none()
            },
            "\"check\"",
        ),
        (
            WorkRequest {
                check: Some("a\nb".to_owned()),
                ..none()
            },
            "\"check\"",
        ),
        (
            WorkRequest {
                plan: Some("../p.md".to_owned()),
                ..none()
            },
            "\"plan_id\"",
        ),
        (
            WorkRequest {
                plan: Some("//p.md".to_owned()),
                ..none()
            },
            "\"plan_id\"",
        ),
        (
            WorkRequest {
                continue_prompt: Some(String::new()),
                ..none()
            },
            "\"continue_prompt\"",
        ),
        (
            WorkRequest {
                bounds: ChatBounds {
                    turns: Some(0),
                    ..ChatBounds::default()
                },
                ..none()
            },
            "\"limits.turns\"",
        ),
        (
            WorkRequest {
                bounds: ChatBounds {
                    seconds: Some(0),
                    ..ChatBounds::default()
                },
                ..none()
            },
            "\"limits.seconds\"",
        ),
        (
            WorkRequest {
                bounds: ChatBounds {
                    tokens: Some(0),
                    ..ChatBounds::default()
                },
                ..none()
            },
            "\"limits.tokens\"",
        ),
    ] {
        let error = with(of).expect_err(word).to_string();
        assert!(error.contains(word), "{error}");
    }
    let kept = with(none()).expect("good");
    assert_eq!(kept.plan_path.as_deref(), Some("chats/c/plan.md"));
    assert_eq!(kept.bounds.turns, Some(config.chat.rounds));
    let kept = with(WorkRequest {
        check: Some("true".to_owned()),
        ..none()
    })
    .expect("good");
    assert_eq!(kept.plan_path, None);
}
