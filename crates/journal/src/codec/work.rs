//! The settings and the progress of autonomous chats: two columns of a chat's row. A missing field
//! has its default.

use marshal_model::{ChatProgress, ChatSettings};

/// Serializes the column `settings` of a chat.
pub(crate) fn settings_json(of: &ChatSettings) -> String {
    serde_json::to_string(of).unwrap_or_default()
}

/// Decodes the column `settings`; `None` if it is damaged.
pub(crate) fn read_settings(text: &str) -> Option<ChatSettings> {
    serde_json::from_str(text).ok()
}

/// Serializes the column `progress` of a chat.
pub(crate) fn progress_json(of: &ChatProgress) -> String {
    serde_json::to_string(of).unwrap_or_default()
}

/// Decodes the column `progress`; `None` if it is damaged.
pub(crate) fn read_progress(text: &str) -> Option<ChatProgress> {
    serde_json::from_str(text).ok()
}

/// One event of each form, for the tests of the codec.
#[cfg(test)]
pub(super) fn events() -> Vec<marshal_model::Event> {
    use marshal_model::{
        Event, ReviewState, RoleName, SessionId, StepStatus, TurnOutcome, UntrustedText, WorkEvent,
    };
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
    use marshal_model::{ChatBounds, RoleName, TurnOutcome};

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
