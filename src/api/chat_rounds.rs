//! What a client says of a chat that goes on by itself, and is told of it.
//!
//! Must not know what follows.

use serde::Deserialize;
use serde_json::{Value, json};

use crate::chat::GoingOn;
use crate::journal::StoredChat;
use crate::model::budget::{NANO, dollars};
use crate::model::foreign::show;
use crate::model::{ChatBounds, ChatMode, ChatPhase, TurnOutcome};

/// The members of the body that belong to it.
#[derive(Debug, Default)]
pub(super) struct Members {
    pub(super) mode: Option<String>,
    pub(super) limits: Option<Value>,
    pub(super) check: Option<String>,
    pub(super) continue_prompt: Option<String>,
    pub(super) plan_id: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Limits {
    turns: Option<u32>,
    seconds: Option<u64>,
    tokens: Option<u64>,
    cost_usd: Option<f64>,
}

impl Members {
    /// What is wanted; `None` is an ordinary chat.
    pub(super) fn read(self) -> Result<Option<GoingOn>, String> {
        let stray = [
            ("limits", self.limits.is_some()),
            ("check", self.check.is_some()),
            ("continue_prompt", self.continue_prompt.is_some()),
            ("plan_id", self.plan_id.is_some()),
        ];
        let stray = stray.iter().find(|(_, is)| *is);
        let mode = match &self.mode {
            None => ChatMode::Chat,
            Some(word) => ChatMode::from_word(word).ok_or_else(|| unknown(word))?,
        };
        match (mode, stray) {
            (ChatMode::Chat, None) => return Ok(None),
            (ChatMode::Chat, Some((name, _))) => {
                return Err(format!(
                    "\"{name}\" belongs to a chat with \"mode\": \"autonomous\""
                ));
            }
            (ChatMode::Autonomous, _) => {}
            (other, _) => return Err(unknown(other.word())),
        }
        let limits: Limits = match self.limits {
            None => Limits::default(),
            Some(limits) => serde_json::from_value(limits)
                .map_err(|error| format!("\"limits\": {}", show(&error.to_string(), 200)))?,
        };
        let cost = limits.cost_usd.map(|amount| {
            let wrong = "\"limits.cost_usd\" is a number of US dollars above 0";
            dollars(amount).ok_or_else(|| wrong.to_owned())
        });
        Ok(Some(GoingOn {
            check: self.check,
            plan: self.plan_id,
            continue_prompt: self.continue_prompt,
            bounds: ChatBounds {
                turns: limits.turns,
                seconds: limits.seconds,
                tokens: limits.tokens,
                cost: cost.transpose()?,
            },
        }))
    }
}

fn unknown(word: &str) -> String {
    let shown = show(word, 40);
    format!("there is no mode \"{shown}\"; there are: chat, autonomous")
}

/// How far such a chat is; null of an ordinary one.
pub(super) fn view(chat: &StoredChat) -> Value {
    if chat.mode != ChatMode::Autonomous {
        return Value::Null;
    }
    let (settings, progress) = (&chat.settings, &chat.progress);
    json!({
        "over": chat.phase == Some(ChatPhase::Over),
        "outcome": progress.outcome.map(TurnOutcome::word),
        "reason": progress.reason,
        "check": settings.check,
        "plan_id": settings.plan,
        "limits": {
            "turns": settings.bounds.turns,
            "seconds": settings.bounds.seconds,
            "tokens": settings.bounds.tokens,
            "cost_usd": settings.bounds.cost.map(in_dollars),
        },
    })
}

#[expect(clippy::cast_precision_loss, reason = "it is shown, not counted with")]
fn in_dollars(nano: u64) -> f64 {
    nano as f64 / NANO as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_belongs_to_no_chat_is_refused() {
        let none = Members::default;
        assert_eq!(none().read(), Ok(None));
        let word = |word: &str| Some(word.to_owned());
        for (members, why) in [
            (
                Members {
                    check: word("true"),
                    ..none()
                },
                "\"check\" belongs to",
            ),
            (
                Members {
                    mode: word("chat"),
                    plan_id: word("p"),
                    ..none()
                },
                "\"plan_id\" belongs",
            ),
            (
                Members {
                    mode: word("fast"),
                    ..none()
                },
                "no mode \"fast\"",
            ),
            (
                Members {
                    mode: word("autonomous"),
                    limits: Some(json!({"turn": 1})),
                    ..none()
                },
                "unknown field",
            ),
            (
                Members {
                    mode: word("autonomous"),
                    limits: Some(json!({"cost_usd": -1.0})),
                    ..none()
                },
                "cost_usd",
            ),
        ] {
            let error = members.read().expect_err(why);
            assert!(error.contains(why), "{error}");
        }
        let limits = Some(json!({"turns": 3, "cost_usd": 0.5}));
        let read = Members {
            mode: word("autonomous"),
            limits,
            ..none()
        }
        .read();
        let read = read.expect("read").expect("one");
        assert_eq!(
            (read.bounds.turns, read.bounds.cost),
            (Some(3), Some(500_000_000))
        );
    }
}
