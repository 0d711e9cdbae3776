//! A conversation over the control socket, version 1: after `open`, both ends speak lines of this
//! form until one of them closes.
//!
//! Owns the form, for both ends. Must not know sockets, or what a client makes of it. What a client
//! says is read strictly, what it is told leniently.

use serde::{Deserialize, Serialize};

use super::request::{Code, Failure, VERSION};
use super::task_rules;
use crate::fleet::{PendingAsk, Said, TaskReport};
use crate::limits;
use crate::model::foreign::show;
use crate::model::{AskId, Foreign, Setting, SettingValue, TaskOutcome};

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
        /// What it is.
        said: Said,
    },
    /// Set something in the session.
    Set {
        /// The client's own number of it: what its end is told by.
        n: u64,
        /// What.
        setting: Setting,
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
    /// The session's first child is ready and what it said of itself has been told, or it is not
    /// going to be ready before there is a prompt. Told once, after [`Told::CaughtUp`].
    Started,
    /// Where the files are. Told first of all.
    Roots {
        /// The workspace's root as the agent names it.
        inside: String,
        /// The same for the client.
        outside: String,
    },
    /// What was to be set is set, and its events have been told; or why it is not.
    Set {
        /// Which.
        n: u64,
        /// Why not, safe to show; `None`: it is set.
        refused: Option<String>,
    },
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
    /// What stands before a command for its environment, `NAME=value` each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// Its words: a command's arguments, or a path.
    pub words: Vec<String>,
    /// The redirects of a command, as `> file` each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub redirects: Vec<String>,
    /// What the policy says of it.
    pub decision: String,
    /// By which rules.
    pub rules: Vec<String>,
}

impl AskView {
    /// Of an ask.
    #[must_use]
    pub fn of(ask: &PendingAsk) -> Self {
        let texts =
            |of: &[Foreign]| -> Vec<String> { of.iter().map(|of| of.raw().to_owned()).collect() };
        let part = |part: &crate::policy::Part| PartView {
            env: texts(&part.env),
            words: texts(&part.words),
            redirects: texts(&part.redirects),
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
    says: Option<SaidWord>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mode: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    option: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    value: Option<ValueLine>,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum SaidWord {
    Allow,
    Reject,
    Cancelled,
    Nothing,
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum ValueLine {
    Switch(bool),
    Choice(String),
}

impl From<Said> for SaidWord {
    fn from(said: Said) -> Self {
        match said {
            Said::Allow => Self::Allow,
            Said::Reject => Self::Reject,
            Said::Cancelled => Self::Cancelled,
            Said::Nothing => Self::Nothing,
        }
    }
}

impl From<SaidWord> for Said {
    fn from(word: SaidWord) -> Self {
        match word {
            SaidWord::Allow => Self::Allow,
            SaidWord::Reject => Self::Reject,
            SaidWord::Cancelled => Self::Cancelled,
            SaidWord::Nothing => Self::Nothing,
        }
    }
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
        says: None,
        mode: None,
        option: None,
        value: None,
    };
    let op = match say {
        Say::Prompt { n, text } => {
            line.n = Some(*n);
            line.text = Some(text.raw().to_owned());
            "prompt"
        }
        Say::Cancel => "cancel",
        Say::Answer { ask, said } => {
            line.ask = Some(ask.to_string());
            line.says = Some((*said).into());
            "answer"
        }
        Say::Set { n, setting } => {
            line.n = Some(*n);
            match setting {
                Setting::Mode(mode) => line.mode = Some(mode.clone()),
                Setting::Option { id, value } => {
                    line.option = Some(id.clone());
                    line.value = Some(match value {
                        SettingValue::Choice(value) => ValueLine::Choice(value.clone()),
                        SettingValue::Switch(on) => ValueLine::Switch(*on),
                    });
                }
            }
            "set"
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
    let SayLine {
        op,
        n,
        text,
        ask,
        says,
        mode,
        option,
        value,
        ..
    } = line;
    let setting = setting(mode, option, value);
    match (op.as_str(), n, text, ask, says, setting) {
        ("prompt", Some(n), Some(text), None, None, Ok(None)) => {
            task_rules::prompt(&text).map_err(|why| bad(&format!("the prompt {why}")))?;
            let text = Foreign::new(text);
            Ok(Say::Prompt { n, text })
        }
        ("cancel", None, None, None, None, Ok(None)) => Ok(Say::Cancel),
        ("answer", None, None, Some(ask), Some(says), Ok(None)) => {
            let ask = AskId::new(&ask).map_err(|error| bad(&error.to_string()))?;
            let said = says.into();
            Ok(Say::Answer { ask, said })
        }
        ("set", Some(n), None, None, None, Ok(Some(setting))) => Ok(Say::Set { n, setting }),
        ("close", None, None, None, None, Ok(None)) => Ok(Say::Close),
        (op, ..) => Err(bad(&format!(
            "in a conversation there are prompt with n and text, cancel, answer with ask and says, set with n and either mode or option and value, and close, not {op:?} like this"
        ))),
    }
}

/// What is to be set, if something is; an error for what is neither a mode nor an option.
fn setting(
    mode: Option<String>,
    option: Option<String>,
    value: Option<ValueLine>,
) -> Result<Option<Setting>, ()> {
    let is_short = |text: &str| text.len() <= limits::FOREIGN_ID_BYTES;
    match (mode, option, value) {
        (None, None, None) => Ok(None),
        (Some(mode), None, None) if is_short(&mode) => Ok(Some(Setting::Mode(mode))),
        (None, Some(id), Some(ValueLine::Choice(value))) if is_short(&id) && is_short(&value) => {
            let value = SettingValue::Choice(value);
            Ok(Some(Setting::Option { id, value }))
        }
        (None, Some(id), Some(ValueLine::Switch(on))) if is_short(&id) => {
            let value = SettingValue::Switch(on);
            Ok(Some(Setting::Option { id, value }))
        }
        _ => Err(()),
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
    Started,
    Roots {
        inside: String,
        outside: String,
    },
    Set {
        n: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        refused: Option<String>,
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
        Told::Started => ToldLine::Started,
        Told::Roots { inside, outside } => ToldLine::Roots {
            inside: inside.clone(),
            outside: outside.clone(),
        },
        Told::Set { n, refused } => ToldLine::Set {
            n: *n,
            refused: refused.clone(),
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
        ToldLine::Started => Told::Started,
        ToldLine::Roots { inside, outside } => Told::Roots { inside, outside },
        ToldLine::Set { n, refused } => Told::Set {
            n,
            refused: refused.map(|why| show(&why, 1000)),
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
            Say::Answer {
                ask,
                said: Said::Cancelled,
            },
            Say::Set {
                n: 1,
                setting: Setting::Mode("plan".to_owned()),
            },
            Say::Set {
                n: 2,
                setting: Setting::Option {
                    id: "model".to_owned(),
                    value: SettingValue::Choice("b".to_owned()),
                },
            },
            Say::Set {
                n: 3,
                setting: Setting::Option {
                    id: "fast".to_owned(),
                    value: SettingValue::Switch(true),
                },
            },
            Say::Close,
        ] {
            assert_eq!(read_say(write_say(&say).as_bytes()), Ok(say));
        }
    }

    #[test]
    fn what_is_told_survives_a_round_trip() {
        let part = PartView {
            env: Vec::new(),
            redirects: Vec::new(),
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
            Told::Started,
            Told::Roots {
                inside: "/workspace".to_owned(),
                outside: "/srv/x".to_owned(),
            },
            Told::Set {
                n: 4,
                refused: Some("no such mode".to_owned()),
            },
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
            (
                "{\"v\":1,\"op\":\"set\",\"n\":1,\"mode\":\"x\",\"option\":\"y\"}",
                "either mode or option",
            ),
            ("{\"v\":2,\"op\":\"cancel\"}", "version 1"),
        ] {
            let failure = read_say(line.as_bytes()).expect_err(line);
            assert!(failure.message.contains(part), "{line}: {failure}");
        }
    }
}
