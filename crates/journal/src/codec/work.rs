//! The work of autonomous chats: their events, settings and progress.
//!
//! Owns their form in the journal. Must not know SQLite.

use serde::{Deserialize, Serialize};

use super::CodecError;
use marshal_model::{
    ChatBounds, ChatProgress, ChatSettings, EventKind, ReviewState, RoleName, SessionId,
    StepStatus, TurnOutcome, UntrustedText, WorkEvent,
};

#[derive(Serialize, Deserialize)]
#[serde(tag = "of", rename_all = "snake_case")]
enum Body {
    Item {
        step: u32,
        status: String,
        content: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        role: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        chat: Option<String>,
        done: u32,
        total: u32,
    },
    Forwarded {
        chat: String,
        seq: u64,
    },
    Member {
        chat: String,
        role: String,
        outcome: String,
    },
    Review {
        state: String,
        plan: String,
        sha256: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        why: Option<String>,
    },
    Round {
        round: u32,
        why: String,
    },
    Ended {
        outcome: String,
        reason: String,
        message: String,
    },
}

/// Appends a body.
pub(super) fn encode_work(work: &WorkEvent, out: &mut Vec<u8>) {
    let text = |of: &dyn std::fmt::Display| of.to_string();
    let body = match work {
        WorkEvent::Item {
            step,
            status,
            content,
            role,
            chat,
            done,
            total,
        } => Body::Item {
            step: *step,
            status: text(status),
            content: content.raw().to_owned(),
            role: role.as_ref().map(|role| text(role)),
            chat: chat.as_ref().map(|chat| text(chat)),
            done: *done,
            total: *total,
        },
        WorkEvent::Forwarded { chat, seq } => Body::Forwarded {
            chat: text(chat),
            seq: *seq,
        },
        WorkEvent::Member {
            chat,
            role,
            outcome,
        } => Body::Member {
            chat: text(chat),
            role: text(role),
            outcome: text(outcome),
        },
        WorkEvent::Review {
            state,
            plan,
            sha256,
            by,
            why,
        } => Body::Review {
            state: text(state),
            plan: plan.clone(),
            sha256: sha256.clone(),
            by: by.clone(),
            why: why.as_ref().map(|why| why.raw().to_owned()),
        },
        WorkEvent::Round { round, why } => Body::Round {
            round: *round,
            why: why.clone(),
        },
        WorkEvent::Ended {
            outcome,
            reason,
            message,
        } => Body::Ended {
            outcome: text(outcome),
            reason: reason.clone(),
            message: message.clone(),
        },
    };
    // Only texts and numbers, so this cannot fail.
    let _ = serde_json::to_writer(out, &body);
}

fn require_known<T>(what: &'static str, text: &str, found: Option<T>) -> Result<T, CodecError> {
    found.ok_or_else(|| CodecError::InvalidValue {
        kind: EventKind::Work,
        what,
        text: text.to_owned(),
    })
}

fn parse_chat_id(text: &str) -> Result<SessionId, CodecError> {
    require_known("session", text, SessionId::new(text).ok())
}

fn parse_role(text: &str) -> Result<RoleName, CodecError> {
    require_known("role", text, RoleName::new(text).ok())
}

fn parse_outcome(text: &str) -> Result<TurnOutcome, CodecError> {
    require_known("turn outcome", text, TurnOutcome::parse(text))
}

/// Decodes a body.
pub(super) fn decode_work(body: &str) -> Result<WorkEvent, CodecError> {
    let body: Body = serde_json::from_str(body).map_err(|source| CodecError::Body {
        kind: EventKind::Work,
        source,
    })?;
    Ok(match body {
        Body::Item {
            step,
            status,
            content,
            role: of,
            chat: in_chat,
            done,
            total,
        } => WorkEvent::Item {
            step,
            status: require_known("status", &status, StepStatus::parse(&status))?,
            content: UntrustedText::new(content),
            role: of.as_deref().map(parse_role).transpose()?,
            chat: in_chat.as_deref().map(parse_chat_id).transpose()?,
            done,
            total,
        },
        Body::Forwarded { chat: of, seq } => WorkEvent::Forwarded {
            chat: parse_chat_id(&of)?,
            seq,
        },
        Body::Member {
            chat: of,
            role: its,
            outcome: end,
        } => WorkEvent::Member {
            chat: parse_chat_id(&of)?,
            role: parse_role(&its)?,
            outcome: parse_outcome(&end)?,
        },
        Body::Review {
            state,
            plan,
            sha256,
            by,
            why,
        } => WorkEvent::Review {
            state: require_known("review", &state, ReviewState::parse(&state))?,
            plan,
            sha256,
            by,
            why: why.map(UntrustedText::new),
        },
        Body::Round { round, why } => WorkEvent::Round { round, why },
        Body::Ended {
            outcome: end,
            reason,
            message,
        } => WorkEvent::Ended {
            outcome: parse_outcome(&end)?,
            reason,
            message,
        },
    })
}

/// The stored settings. A missing field has its default, and defaults are not written.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct Settings {
    #[serde(skip_serializing_if = "Option::is_none")]
    plan: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    roles: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    planner: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    check: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    continue_prompt: Option<String>,
    agent_items: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    turns: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    seconds: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cost: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    template: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    instructions: Option<String>,
}

/// Serializes the column `settings` of a chat.
pub(crate) fn settings_json(of: &ChatSettings) -> String {
    let settings = Settings {
        plan: of.plan_path.clone(),
        roles: of.roles.iter().map(RoleName::to_string).collect(),
        planner: of.planner.as_ref().map(RoleName::to_string),
        check: of.check_command.clone(),
        continue_prompt: of.continue_prompt.clone(),
        agent_items: of.agent_items,
        turns: of.bounds.turns,
        seconds: of.bounds.seconds,
        tokens: of.bounds.tokens,
        cost: of.bounds.cost,
        template: of.template.clone(),
        instructions: of.instructions.clone(),
    };
    serde_json::to_string(&settings).unwrap_or_default()
}

/// Decodes the column `settings`; `None` if it is damaged.
pub(crate) fn read_settings(text: &str) -> Option<ChatSettings> {
    let of: Settings = serde_json::from_str(text).ok()?;
    let roles = of.roles.iter().map(|name| RoleName::new(name).ok());
    let planner = of.planner.map(|name| RoleName::new(&name).ok());
    Some(ChatSettings {
        plan_path: of.plan,
        roles: roles.collect::<Option<_>>()?,
        planner: match planner {
            Some(name) => Some(name?),
            None => None,
        },
        check_command: of.check,
        continue_prompt: of.continue_prompt,
        agent_items: of.agent_items,
        bounds: ChatBounds {
            turns: of.turns,
            seconds: of.seconds,
            tokens: of.tokens,
            cost: of.cost,
        },
        template: of.template,
        instructions: of.instructions,
    })
}

/// The stored progress, in the same form as [`Settings`].
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct Progress {
    rounds: u32,
    tokens: u64,
    cost: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    started_ms: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    reminders: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    approved: Option<String>,
    #[serde(skip_serializing_if = "is_zero")]
    checks: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
const fn is_zero(of: &u32) -> bool {
    *of == 0
}

/// Serializes the column `progress` of a chat.
pub(crate) fn progress_json(of: &ChatProgress) -> String {
    let progress = Progress {
        rounds: of.rounds,
        tokens: of.tokens,
        cost: of.cost,
        started_ms: of.started_ms,
        outcome: of.outcome.map(|outcome| outcome.as_str().to_owned()),
        reason: of.reason.clone(),
        reminders: of.reminders,
        approved: of.approved_digest.clone(),
        checks: of.check_only_turns,
    };
    serde_json::to_string(&progress).unwrap_or_default()
}

/// Decodes the column `progress`; `None` if it is damaged.
pub(crate) fn read_progress(text: &str) -> Option<ChatProgress> {
    let of: Progress = serde_json::from_str(text).ok()?;
    Some(ChatProgress {
        rounds: of.rounds,
        tokens: of.tokens,
        cost: of.cost,
        started_ms: of.started_ms,
        outcome: match of.outcome {
            Some(word) => Some(TurnOutcome::parse(&word)?),
            None => None,
        },
        reason: of.reason,
        reminders: of.reminders,
        approved_digest: of.approved,
        check_only_turns: of.checks,
    })
}

/// One event of each form, for the tests of the codec.
#[cfg(test)]
pub(super) fn events() -> Vec<marshal_model::Event> {
    use marshal_model::Event;
    let coder = || RoleName::new("coder").expect("name");
    let member = || SessionId::new("m-1").expect("id");
    let item = |role, chat| WorkEvent::Item {
        step: 3,
        status: StepStatus::Running,
        content: UntrustedText::new("the \u{1b}[2J step"),
        role,
        chat,
        done: 2,
        total: 9,
    };
    let review = |by: Option<&str>, why: Option<&str>| WorkEvent::Review {
        state: ReviewState::Approved,
        plan: "chats/c/plan.md".to_owned(),
        sha256: "0".repeat(64),
        by: by.map(str::to_owned),
        why: why.map(UntrustedText::new),
    };
    let works = vec![
        item(Some(coder()), Some(member())),
        item(None, None),
        WorkEvent::Forwarded {
            chat: member(),
            seq: 7,
        },
        WorkEvent::Member {
            chat: member(),
            role: coder(),
            outcome: TurnOutcome::Completed,
        },
        review(Some("token ci"), Some("it's good")),
        review(None, None),
        WorkEvent::Round {
            round: 2,
            why: "the check failed".to_owned(),
        },
        WorkEvent::Ended {
            outcome: TurnOutcome::Failed,
            reason: "blocked".to_owned(),
            message: "1 item is blocked".to_owned(),
        },
    ];
    works.into_iter().map(Event::Work).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_chat_was_begun_with_is_read_back() {
        let role = |name| RoleName::new(name).expect("name");
        let whole = ChatSettings {
            plan_path: Some("a/plan.md".to_owned()),
            roles: vec![role("a"), role("a"), role("b")],
            planner: Some(role("planner")),
            check_command: Some("make test".to_owned()),
            continue_prompt: Some("go on".to_owned()),
            agent_items: true,
            bounds: ChatBounds {
                turns: Some(1),
                seconds: Some(2),
                tokens: Some(3),
                cost: Some(4),
            },
            template: Some("campaign".to_owned()),
            instructions: Some("short".to_owned()),
        };
        for settings in [whole, ChatSettings::default()] {
            assert_eq!(read_settings(&settings_json(&settings)), Some(settings));
        }
        assert_eq!(read_settings("{}"), Some(ChatSettings::default()));
        for bad in ["", "3", "{\"roles\":[\"A\"]}", "{\"planner\":\"A\"}"] {
            assert_eq!(read_settings(bad), None, "{bad}");
        }
    }

    #[test]
    fn how_far_a_chat_is_is_read_back() {
        let whole = ChatProgress {
            rounds: 1,
            tokens: 2,
            cost: 3,
            started_ms: Some(4),
            outcome: Some(TurnOutcome::Limited),
            reason: Some("turns".to_owned()),
            reminders: 1,
            check_only_turns: 2,
            approved_digest: Some("0".repeat(64)),
        };
        for progress in [whole, ChatProgress::default()] {
            assert_eq!(read_progress(&progress_json(&progress)), Some(progress));
        }
        assert_eq!(read_progress("{\"outcome\":\"great\"}"), None);
    }
}
