//! A conversation over the control socket, version 1: after `open`, both ends speak lines of this
//! form until one of them closes.
//!
//! Owns the form, for both ends. Must not know sockets, or what a client makes of it. What a client
//! says is read strictly, what it is told leniently.

use serde::{Deserialize, Serialize};

use super::request::{Code, Failure, VERSION};
use super::task_rules;
use crate::fleet::{PendingAsk, TaskReport};
use crate::model::foreign::show;
use crate::model::{AskId, Foreign, TaskOutcome};

/// What a client says in its conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Say {
    /// Take this prompt in.
    Prompt {
        /// The client's own number of it: what its end is told by.
        n: u64,
        /// The text.
        text: Foreign,
    },
    /// Cancel the running turn and what waits behind it.
    Cancel,
    /// A person's answer to an ask.
    Answer {
        /// Which ask.
        ask: AskId,
        /// Whether it may run.
        allow: bool,
    },
    /// Nothing more comes; told [`Told::Closed`] when the child is gone.
    Close,
}

/// What a client is told in its conversation, beside its events.
#[derive(Debug, Clone, PartialEq)]
pub enum Told {
    /// Everything that was there when it was opened has been told.
    CaughtUp,
    /// A prompt was not taken in.
    Refused {
        /// Which.
        n: u64,
        /// Why, and what to do. Safe to show.
        message: String,
    },
    /// A prompt ended; what happened in it has been told.
    Ended {
        /// Which.
        n: u64,
        /// How.
        outcome: TaskOutcome,
        /// Why, where there is something to say; may hold foreign text.
        detail: Option<Foreign>,
    },
    /// A person is to decide.
    Asked(Box<AskView>),
    /// An ask is decided; an answer that comes now changes nothing.
    AskOver {
        /// Which.
        ask: AskId,
    },
    /// The conversation is closed.
    Closed,
}

/// An ask as a client is told of it. Its texts are foreign where they come from the agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AskView {
    /// What an answer names.
    pub ask: String,
    /// The tool call that it belongs to, where the agent said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_id: Option<String>,
    /// The tool, as the agent calls it.
    pub tool: String,
    /// What kind of tool that is: a word of [`crate::model::ToolClass`].
    pub class: String,
    /// What is judged.
    pub parts: Vec<PartView>,
    /// Why a command text is not plain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_plain: Option<String>,
    /// The rules that want a person.
    pub rules: Vec<String>,
    /// Why, in our words.
    pub reason: String,
    /// How long an answer is waited for.
    pub within_ms: u64,
}

/// One command, or one path, of an ask.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartView {
    /// Its words: a command's arguments, or a path.
    pub words: Vec<String>,
    /// What the policy says of it.
    pub decision: String,
    /// By which rules.
    pub rules: Vec<String>,
}

impl AskView {
    /// Of an ask.
    #[must_use]
    pub fn of(ask: &PendingAsk) -> Self {
        let part = |part: &crate::policy::Part| PartView {
            words: part
                .words
                .iter()
                .map(|word| word.raw().to_owned())
                .collect(),
            decision: part.decision.to_string(),
            rules: part.rules.clone(),
        };
        Self {
            ask: ask.id.to_string(),
            tool_id: ask.tool_id.as_ref().map(|id| id.raw().to_owned()),
            tool: ask.tool.raw().to_owned(),
            class: ask.class.to_string(),
            parts: ask.parts.iter().map(part).collect(),
            not_plain: ask.not_plain.clone(),
            rules: ask.rules.clone(),
            reason: ask.reason.clone(),
            within_ms: u64::try_from(ask.within.as_millis()).unwrap_or(u64::MAX),
        }
    }
}

/// What a client says, as it is written.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SayLine {
    v: u32,
    op: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    n: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ask: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    allow: Option<bool>,
}

/// Writes what a client says, without its newline.
#[must_use]
pub fn write_say(say: &Say) -> String {
    let mut line = SayLine {
        v: VERSION,
        op: String::new(),
        n: None,
        text: None,
        ask: None,
        allow: None,
    };
    let op = match say {
        Say::Prompt { n, text } => {
            line.n = Some(*n);
            line.text = Some(text.raw().to_owned());
            "prompt"
        }
        Say::Cancel => "cancel",
        Say::Answer { ask, allow } => {
            line.ask = Some(ask.to_string());
            line.allow = Some(*allow);
            "answer"
        }
        Say::Close => "close",
    };
    op.clone_into(&mut line.op);
    serde_json::to_string(&line).unwrap_or_default()
}

/// Reads what a client says.
///
/// # Errors
/// [`Failure`] as it shall be sent back; the conversation ends with it.
pub fn read_say(line: &[u8]) -> Result<Say, Failure> {
    let bad = |why: &str| Failure::new(Code::BadRequest, show(why, 300));
    let line: SayLine = serde_json::from_slice(line).map_err(|error| bad(&error.to_string()))?;
    if line.v != VERSION {
        let message = format!("this supervisor speaks version {VERSION}");
        return Err(Failure::new(Code::BadVersion, message));
    }
    match (line.op.as_str(), line.n, line.text, line.ask, line.allow) {
        ("prompt", Some(n), Some(text), None, None) => {
            task_rules::prompt(&text).map_err(|why| bad(&format!("the prompt {why}")))?;
            let text = Foreign::new(text);
            Ok(Say::Prompt { n, text })
        }
        ("cancel", None, None, None, None) => Ok(Say::Cancel),
        ("answer", None, None, Some(ask), Some(allow)) => {
            let ask = AskId::new(&ask).map_err(|error| bad(&error.to_string()))?;
            Ok(Say::Answer { ask, allow })
        }
        ("close", None, None, None, None) => Ok(Say::Close),
        (op, ..) => Err(bad(&format!(
            "in a conversation there are prompt with n and text, cancel, answer with ask and allow, and close, not {op:?} like this"
        ))),
    }
}

/// What a client is told, as it is written.
#[derive(Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum ToldLine {
    CaughtUp,
    PromptRefused {
        n: u64,
        message: String,
    },
    PromptEnded {
        n: u64,
        outcome: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        detail: Option<String>,
    },
    Ask(Box<AskView>),
    AskOver {
        ask: String,
    },
    Closed,
}

/// Writes what a client is told, without its newline.
#[must_use]
pub fn write_told(told: &Told) -> String {
    let line = match told {
        Told::CaughtUp => ToldLine::CaughtUp,
        Told::Refused { n, message } => ToldLine::PromptRefused {
            n: *n,
            message: message.clone(),
        },
        Told::Ended { n, outcome, detail } => ToldLine::PromptEnded {
            n: *n,
            outcome: outcome.to_string(),
            detail: detail.as_ref().map(|detail| detail.raw().to_owned()),
        },
        Told::Asked(ask) => ToldLine::Ask(ask.clone()),
        Told::AskOver { ask } => ToldLine::AskOver {
            ask: ask.to_string(),
        },
        Told::Closed => ToldLine::Closed,
    };
    serde_json::to_string(&line).unwrap_or_default()
}

/// Reads what a client is told; `None` for a line of another kind (an event, a failure), or of a
/// later version.
#[must_use]
pub fn read_told(line: &str) -> Option<Told> {
    Some(match serde_json::from_str(line).ok()? {
        ToldLine::CaughtUp => Told::CaughtUp,
        ToldLine::PromptRefused { n, message } => Told::Refused {
            n,
            message: show(&message, 1000),
        },
        ToldLine::PromptEnded { n, outcome, detail } => Told::Ended {
            n,
            outcome: TaskOutcome::from_word(&outcome)?,
            detail: detail.map(Foreign::new),
        },
        ToldLine::Ask(ask) => {
            AskId::new(&ask.ask).ok()?;
            Told::Asked(ask)
        }
        ToldLine::AskOver { ask } => Told::AskOver {
            ask: AskId::new(&ask).ok()?,
        },
        ToldLine::Closed => Told::Closed,
    })
}

/// The end of a prompt.
#[must_use]
pub fn ended(n: u64, report: &TaskReport) -> Told {
    Told::Ended {
        n,
        outcome: report.outcome,
        detail: report.detail.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_survives_a_round_trip() {
        let ask = AskId::new("a-1").expect("id");
        for say in [
            Say::Prompt {
                n: 7,
                text: "say \u{1b}[2J\n".into(),
            },
            Say::Cancel,
            Say::Answer { ask, allow: true },
            Say::Close,
        ] {
            assert_eq!(read_say(write_say(&say).as_bytes()), Ok(say));
        }
    }

    #[test]
    fn what_is_told_survives_a_round_trip() {
        let part = PartView {
            words: vec!["rm".to_owned(), "\u{202e}x".to_owned()],
            decision: "ask".to_owned(),
            rules: vec!["r".to_owned()],
        };
        let ask = AskView {
            ask: "a-1".to_owned(),
            tool_id: Some("t".to_owned()),
            tool: "bash".to_owned(),
            class: "shell".to_owned(),
            parts: vec![part],
            not_plain: None,
            rules: vec!["r".to_owned()],
            reason: "why".to_owned(),
            within_ms: 5,
        };
        for told in [
            Told::CaughtUp,
            Told::Refused {
                n: 1,
                message: "full".to_owned(),
            },
            Told::Ended {
                n: 1,
                outcome: TaskOutcome::Done,
                detail: Some("x".into()),
            },
            Told::Asked(Box::new(ask)),
            Told::AskOver {
                ask: AskId::new("a-1").expect("id"),
            },
            Told::Closed,
        ] {
            assert_eq!(read_told(&write_told(&told)), Some(told));
        }
        assert_eq!(read_told("{\"type\":\"event\"}"), None);
    }

    #[test]
    fn what_is_no_saying_is_told_so() {
        for (line, part) in [
            ("", "EOF"),
            ("{\"v\":1,\"op\":\"fly\"}", "in a conversation"),
            ("{\"v\":1,\"op\":\"prompt\",\"n\":1}", "in a conversation"),
            (
                "{\"v\":1,\"op\":\"prompt\",\"n\":1,\"text\":\" \"}",
                "is empty",
            ),
            ("{\"v\":1,\"op\":\"cancel\",\"x\":1}", "unknown field"),
            ("{\"v\":2,\"op\":\"cancel\"}", "version 1"),
        ] {
            let failure = read_say(line.as_bytes()).expect_err(line);
            assert!(failure.message.contains(part), "{line}: {failure}");
        }
    }
}
