//! What a hook says: one JSON object a message.
//!
//! Owns its form, which `docs/hooks.md` promises. Every text that is not ours is made safe and cut
//! here. Must not know how it is sent.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::waiting::Message;
use crate::fleet::told::Told;
use crate::limits::HOOK_MESSAGE_BYTES;
use crate::model::foreign::show;

/// The form's version.
const VERSION: u32 = 1;
/// Characters of a word, and of a sentence.
const WORD: usize = 100;
const SENTENCE: usize = 400;
/// Members of a list.
const LISTED: usize = 16;

/// A message, ready to be sent.
#[derive(Debug, Clone)]
pub(super) struct Written {
    /// Its id: the same each time that it is sent.
    pub(super) id: String,
    /// The kind of the newest thing in it.
    pub(super) event: &'static str,
    /// The object.
    pub(super) json: String,
}

/// Writes a message of a hook. `at_us` is now.
pub(super) fn write(hook: &str, message: &Message, id: Uuid, at_us: i64) -> Written {
    let id = id.to_string();
    let event = message.newest.last().map_or("", |(_, t)| t.kind().word());
    let held: u64 = message.held_back.values().sum();
    let mut text = String::new();
    for (_, told) in &message.newest {
        let _ = write!(
            text,
            "{}{}",
            if text.is_empty() { "" } else { " — " },
            sentence(told)
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
            .map(|(at_us, told)| one(*at_us, told, is_whole))
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
    Written { id, event, json }
}

/// What happened, in one sentence for a person.
fn sentence(told: &Told) -> String {
    match told {
        Told::Ask {
            slot,
            ask,
            tool,
            about,
            ..
        } => format!(
            "{slot} asks to use {}: {} (marshal asks show {ask})",
            tool.show(WORD),
            about.show(SENTENCE)
        ),
        Told::Parked { slot, reason, .. } => format!("{slot} is parked: {}", reason.show(SENTENCE)),
        Told::RunEnded {
            run, code, tasks, ..
        } => {
            let counts = tasks.iter().map(|(word, count)| format!("{count} {word}"));
            let counts = counts.collect::<Vec<_>>().join(", ");
            let how = if *code == 0 { "is done" } else { "ended" };
            format!("run {run} {how}: {counts}")
        }
        Told::BudgetSpent {
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
                show(budget, WORD),
                show(spent, WORD),
                show(limit, WORD)
            )
        }
    }
}

fn one(at_us: i64, told: &Told, is_whole: bool) -> Value {
    let mut value = fields(told, is_whole);
    value["event"] = json!(told.kind().word());
    value["at_us"] = json!(at_us);
    value["pool"] = json!(told.pool().map(ToString::to_string));
    value
}

fn fields(told: &Told, is_whole: bool) -> Value {
    let listed = if is_whole { LISTED } else { 1 };
    match told {
        Told::Ask {
            slot,
            session,
            ask,
            tool,
            about,
            rules,
            deadline_us,
            in_editor,
        } => {
            let rules = rules.iter().take(listed).map(|rule| show(rule, WORD));
            json!({
                "slot": slot.to_string(), "session": session.as_str(), "ask": ask.as_str(),
                "tool": tool.show(WORD), "summary": about.show(SENTENCE),
                "rules": rules.collect::<Vec<_>>(), "deadline_us": deadline_us,
                "in_editor": in_editor,
            })
        }
        Told::Parked {
            slot,
            class,
            reason,
        } => json!({
            "slot": slot.to_string(), "class": class.word(), "reason": reason.show(SENTENCE),
        }),
        Told::RunEnded {
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
        Told::BudgetSpent {
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
            "scope": scope, "budget": show(budget, WORD), "limit": show(limit, WORD),
            "spent": show(spent, WORD), "then": then,
        }),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::model::{AskId, Foreign, PoolName, SessionId, SlotId, ToldKind};

    #[test]
    fn hostile_text_is_safe_and_short_wherever_it_stands() {
        let evil = "\u{1b}]0;owned\u{7}\u{202e}\u{200b}\n\"}".repeat(10_000);
        let pool = PoolName::new("p").expect("a name");
        let told = Told::Ask {
            slot: SlotId {
                pool: pool.clone(),
                index: 3,
            },
            session: SessionId::new("s").expect("an id"),
            ask: AskId::new("a").expect("an id"),
            tool: Foreign::new(evil.clone()),
            about: Foreign::new(evil.clone()),
            rules: vec![evil.clone(); 1000],
            deadline_us: 7,
            in_editor: false,
        };
        let message = Message {
            pool: Some(pool),
            newest: vec![(5, told)],
            held_back: BTreeMap::from([(ToldKind::Ask, 4)]),
        };
        let written = write("ops", &message, Uuid::nil(), 9);
        assert!(
            written.json.len() <= HOOK_MESSAGE_BYTES,
            "{}",
            written.json.len()
        );
        assert!(!written.json.chars().any(crate::model::foreign::is_unsafe));
        let read: Value = serde_json::from_str(&written.json).expect("one object");
        assert_eq!(read["events"][0]["event"], "ask");
        assert_eq!(read["events"][0]["slot"], "p/3");
        assert_eq!(read["held_back"], json!({"ask": 4}));
        let strings = [
            &read["text"],
            &read["events"][0]["summary"],
            &read["events"][0]["tool"],
        ];
        for text in strings {
            // The escapes of the JSON itself are ours; none of them hides one.
            let text = text.as_str().expect("a text");
            assert!(
                !text.chars().any(crate::model::foreign::is_unsafe),
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
