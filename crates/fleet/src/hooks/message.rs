//! The JSON form of a hook's message: one object a message.
//!
//! Owns the format that `docs/hooks.md` documents. All untrusted text is escaped and truncated
//! here. Must not know how the message is sent.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::pending_notifications::HookMessage;
use crate::notification::Notification;
use marshal_model::limits::HOOK_MESSAGE_BYTES;
use marshal_model::untrusted::escape_for_display;

/// The format's version.
const VERSION: u32 = 1;
/// The maximum width of a word and of a sentence, in columns.
const WORD: usize = 100;
const SENTENCE: usize = 400;
/// The maximum number of list members.
const MAX_LISTED: usize = 16;

/// An encoded message.
#[derive(Debug, Clone)]
pub(super) struct EncodedMessage {
    /// Its id; the same for each retry, so that a receiver can drop duplicates.
    pub(super) id: String,
    /// The kind of its newest notification.
    pub(super) event: &'static str,
    /// The JSON object.
    pub(super) json: String,
}

/// Encodes a message of a hook. `at_us` is the current time.
pub(super) fn encode_message(
    hook: &str,
    message: &HookMessage,
    id: Uuid,
    at_us: i64,
) -> EncodedMessage {
    let id = id.to_string();
    let event = message.newest.last().map_or("", |(_, t)| t.kind().as_str());
    let suppressed: u64 = message.held_back.values().sum();
    let mut text = String::new();
    for (_, notification) in &message.newest {
        let _ = write!(
            text,
            "{}{}",
            if text.is_empty() { "" } else { " — " },
            describe_notification(notification)
        );
    }
    if suppressed > 0 {
        let _ = write!(text, " (and {suppressed} more since the last message)");
    }
    let held_back: Map<String, Value> = message
        .held_back
        .iter()
        .map(|(kind, count)| (kind.as_str().to_owned(), json!(count)))
        .collect();
    let object = |is_whole: bool| {
        let events: Vec<Value> = message
            .newest
            .iter()
            .map(|(at_us, notification)| notification_json(*at_us, notification, is_whole))
            .collect();
        json!({
            "v": VERSION, "id": id, "hook": hook, "sent_at_us": at_us,
            "pool": message.pool.as_ref().map(ToString::to_string),
            "text": text, "events": events, "held_back": held_back,
        })
    };
    let mut json = object(true).to_string();
    if json.len() > HOOK_MESSAGE_BYTES {
        json = object(false).to_string();
    }
    EncodedMessage { id, event, json }
}

/// Describes a notification in one sentence for a person.
fn describe_notification(notification: &Notification) -> String {
    match notification {
        Notification::ApprovalPending {
            slot,
            request_id: approval,
            tool,
            about,
            ..
        } => format!(
            "{slot} asks to use {}: {} (marshal approvals show {approval})",
            tool.escape_for_display(WORD),
            about.escape_for_display(SENTENCE)
        ),
        Notification::SlotParked { slot, reason, .. } => {
            format!("{slot} is parked: {}", reason.escape_for_display(SENTENCE))
        }
        Notification::RunEnded {
            run, code, tasks, ..
        } => {
            let counts = tasks
                .iter()
                .map(|(word, count)| format!("{count} {word}"))
                .collect::<Vec<_>>()
                .join(", ");
            let how = if *code == 0 { "is done" } else { "ended" };
            format!("run {run} {how}: {counts}")
        }
        Notification::RunPaused { run, pool, rules } => {
            let rules = rules
                .iter()
                .map(|rule| escape_for_display(rule, WORD))
                .collect::<Vec<_>>()
                .join(", ");
            let rules = escape_for_display(&rules, SENTENCE);
            format!("run {run} is paused: its last tasks were denied (pool {pool}, by {rules})")
        }
        Notification::BudgetSpent {
            pool,
            slot,
            scope,
            budget,
            limit,
            spent,
            then,
            ..
        } => {
            let owner = slot
                .as_ref()
                .map_or_else(|| pool.to_string(), ToString::to_string);
            format!(
                "{owner}: the budget {} of the {scope} is spent ({} of {}), then: {then}",
                escape_for_display(budget, WORD),
                escape_for_display(spent, WORD),
                escape_for_display(limit, WORD)
            )
        }
    }
}

fn notification_json(at_us: i64, notification: &Notification, is_whole: bool) -> Value {
    let mut value = fields(notification, is_whole);
    value["event"] = json!(notification.kind().as_str());
    value["at_us"] = json!(at_us);
    value["pool"] = json!(notification.pool().map(ToString::to_string));
    value
}

fn fields(notification: &Notification, is_whole: bool) -> Value {
    let list_limit = if is_whole { MAX_LISTED } else { 1 };
    match notification {
        Notification::ApprovalPending {
            slot,
            session,
            request_id: approval,
            tool,
            about,
            rules,
            deadline_us,
            in_editor,
        } => {
            let rules = rules
                .iter()
                .take(list_limit)
                .map(|rule| escape_for_display(rule, WORD));
            json!({
                "slot": slot.to_string(), "session": session.as_str(), "approval": approval.as_str(),
                "tool": tool.escape_for_display(WORD), "summary": about.escape_for_display(SENTENCE),
                "rules": rules.collect::<Vec<_>>(), "deadline_us": deadline_us,
                "in_editor": in_editor,
            })
        }
        Notification::SlotParked {
            slot,
            class,
            reason,
        } => json!({
            "slot": slot.to_string(), "class": class.as_str(), "reason": reason.escape_for_display(SENTENCE),
        }),
        Notification::RunEnded {
            run,
            code,
            pools,
            tasks,
        } => {
            let pools: Vec<_> = pools
                .iter()
                .take(list_limit)
                .map(ToString::to_string)
                .collect();
            let tasks: Map<String, Value> = tasks
                .iter()
                .map(|(outcome, count)| (outcome.as_str().to_owned(), json!(count)))
                .collect();
            json!({"run": run.as_str(), "code": code, "pools": pools, "tasks": tasks})
        }
        Notification::RunPaused { run, rules, .. } => {
            let rules = rules
                .iter()
                .take(list_limit)
                .map(|rule| escape_for_display(rule, WORD));
            json!({"run": run.as_str(), "rules": rules.collect::<Vec<_>>()})
        }
        Notification::BudgetSpent {
            slot,
            session,
            scope,
            budget,
            limit,
            spent,
            then,
            ..
        } => json!({
            "slot": slot.as_ref().map(ToString::to_string),
            "session": session.as_ref().map(ToString::to_string),
            "scope": scope, "budget": escape_for_display(budget, WORD), "limit": escape_for_display(limit, WORD),
            "spent": escape_for_display(spent, WORD), "then": then,
        }),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use marshal_model::{
        NotificationKind, PermissionRequestId, PoolName, SessionId, SlotId, UntrustedText,
    };

    #[test]
    fn hostile_text_is_safe_and_short_wherever_it_stands() {
        let evil = "\u{1b}]0;owned\u{7}\u{202e}\u{200b}\n\"}".repeat(10_000);
        let pool = PoolName::new("p").expect("a name");
        let notification = Notification::ApprovalPending {
            slot: SlotId {
                pool: pool.clone(),
                index: 3,
            },
            session: SessionId::new("s").expect("an id"),
            request_id: PermissionRequestId::new("a").expect("an id"),
            tool: UntrustedText::new(evil.clone()),
            about: UntrustedText::new(evil.clone()),
            rules: vec![evil.clone(); 1000],
            deadline_us: 7,
            in_editor: false,
        };
        let message = HookMessage {
            pool: Some(pool),
            newest: vec![(5, notification)],
            held_back: BTreeMap::from([(NotificationKind::Approval, 4)]),
        };
        let written = encode_message("ops", &message, Uuid::nil(), 9);
        assert!(
            written.json.len() <= HOOK_MESSAGE_BYTES,
            "{}",
            written.json.len()
        );
        assert!(
            !written
                .json
                .chars()
                .any(marshal_model::untrusted::is_unsafe)
        );
        let read: Value = serde_json::from_str(&written.json).expect("one object");
        assert_eq!(read["events"][0]["event"], "approval");
        assert_eq!(read["events"][0]["slot"], "p/3");
        assert_eq!(read["held_back"], json!({"approval": 4}));
        let strings = [
            &read["text"],
            &read["events"][0]["summary"],
            &read["events"][0]["tool"],
        ];
        for text in strings {
            // Checked after parsing, so that no JSON escape hides an unsafe character.
            let text = text.as_str().expect("a text");
            assert!(
                !text.chars().any(marshal_model::untrusted::is_unsafe),
                "{text}"
            );
        }
        assert!(
            read["text"]
                .as_str()
                .is_some_and(|text| text.contains("4 more"))
        );
    }
}
