//! What a hook says: one JSON object a message.
//!
//! Owns its form, which `docs/hooks.md` promises. Every text that is not ours is made safe and cut
//! here. Must not know how it is sent.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::pending_notifications::HookMessage;
use crate::notification::Notification;
use marshal_model::limits::HOOK_MESSAGE_BYTES;
use marshal_model::untrusted::escape_for_display;

/// The form's version.
const VERSION: u32 = 1;
/// Characters of a word, and of a sentence.
const WORD: usize = 100;
const SENTENCE: usize = 400;
/// Members of a list.
const LISTED: usize = 16;

/// A message, ready to be sent.
#[derive(Debug, Clone)]
pub(super) struct EncodedMessage {
    /// Its id: the same each time that it is sent.
    pub(super) id: String,
    /// The kind of the newest thing in it.
    pub(super) event: &'static str,
    /// The object.
    pub(super) json: String,
}

/// Writes a message of a hook. `at_us` is now.
pub(super) fn encode_message(
    hook: &str,
    message: &HookMessage,
    id: Uuid,
    at_us: i64,
) -> EncodedMessage {
    let id = id.to_string();
    let event = message.newest.last().map_or("", |(_, t)| t.kind().word());
    let held: u64 = message.held_back.values().sum();
    let mut text = String::new();
    for (_, told) in &message.newest {
        let _ = write!(
            text,
            "{}{}",
            if text.is_empty() { "" } else { " — " },
            describe_notification(told)
        );
    }
    if held > 0 {
        let _ = write!(text, " (and {held} more since the last message)");
    }
    let held_back: Map<String, Value> = message
        .held_back
        .iter()
        .map(|(kind, count)| (kind.word().to_owned(), json!(count)))
        .collect();
    let object = |is_whole: bool| {
        let events: Vec<Value> = message
            .newest
            .iter()
            .map(|(at_us, told)| notification_json(*at_us, told, is_whole))
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

/// What happened, in one sentence for a person.
fn describe_notification(told: &Notification) -> String {
    match told {
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
            let counts = tasks.iter().map(|(word, count)| format!("{count} {word}"));
            let counts = counts.collect::<Vec<_>>().join(", ");
            let how = if *code == 0 { "is done" } else { "ended" };
            format!("run {run} {how}: {counts}")
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
            let whose = slot
                .as_ref()
                .map_or_else(|| pool.to_string(), ToString::to_string);
            format!(
                "{whose}: the budget {} of the {scope} is spent ({} of {}), then: {then}",
                escape_for_display(budget, WORD),
                escape_for_display(spent, WORD),
                escape_for_display(limit, WORD)
            )
        }
    }
}

fn notification_json(at_us: i64, told: &Notification, is_whole: bool) -> Value {
    let mut value = fields(told, is_whole);
    value["event"] = json!(told.kind().word());
    value["at_us"] = json!(at_us);
    value["pool"] = json!(told.pool().map(ToString::to_string));
    value
}

fn fields(told: &Notification, is_whole: bool) -> Value {
    let listed = if is_whole { LISTED } else { 1 };
    match told {
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
                .take(listed)
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
            "slot": slot.to_string(), "class": class.word(), "reason": reason.escape_for_display(SENTENCE),
        }),
        Notification::RunEnded {
            run,
            code,
            pools,
            tasks,
        } => {
            let pools: Vec<_> = pools.iter().take(listed).map(ToString::to_string).collect();
            let tasks: Map<String, Value> = tasks
                .iter()
                .map(|(outcome, count)| (outcome.word().to_owned(), json!(count)))
                .collect();
            json!({"run": run.as_str(), "code": code, "pools": pools, "tasks": tasks})
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
        let told = Notification::ApprovalPending {
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
            newest: vec![(5, told)],
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
            // The escapes of the JSON itself are ours; none of them hides one.
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
