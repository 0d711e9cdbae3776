//! The protocol of a conversation, version 1: both sides send messages of this form over a WebSocket
//! until one of them closes it. Events of the session are lines of [`super::json_lines`] in between.
//!
//! Owns the wire format, for both sides. Client messages are read strictly, server messages
//! leniently. Must not know sockets, or how a client uses the messages.

use serde::{Deserialize, Serialize};

use super::failure::{Code, Failure};
use super::task_rules;
use marshal_fleet::{ApprovalRequest, ApproverReply, TaskReport};
use marshal_model::limits;
use marshal_model::untrusted::escape_for_display;
use marshal_model::{
    PermissionRequestId, SessionId, Setting, SettingValue, TaskOutcome, UntrustedText,
};

/// The version of the messages.
const VERSION: u32 = 1;

/// A message of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientMessage {
    /// Submit a prompt.
    Prompt {
        /// The client's own number, which the result refers to.
        n: u64,
        /// The text.
        text: UntrustedText,
    },
    /// Cancel the running turn and the prompts that wait behind it.
    Cancel,
    /// An approver's answer.
    Answer {
        /// The approval's id.
        approval: PermissionRequestId,
        /// The answer.
        answer: ApproverReply,
    },
    /// Change a setting of the session.
    Set {
        /// The client's own number, which the result refers to.
        n: u64,
        /// The setting and its new value.
        setting: Setting,
    },
    /// Close the conversation; [`ServerMessage::Closed`] follows when the child has ended.
    Close,
}

/// A message to a client, in addition to the session's events.
#[derive(Debug, Clone, PartialEq)]
pub enum ServerMessage {
    /// The conversation is open; the first message of all.
    Opened {
        /// Its session.
        session: SessionId,
    },
    /// The conversation ends, because a message was malformed or the supervisor stops.
    Failed {
        /// The reason; safe to display.
        message: String,
    },
    /// All events from before the conversation was opened have been sent.
    CaughtUp,
    /// A prompt was refused.
    PromptRefused {
        /// The client's number.
        n: u64,
        /// The reason and what to do; safe to display.
        message: String,
    },
    /// A prompt has ended, and all of its events have been sent.
    PromptEnded {
        /// The client's number.
        n: u64,
        /// How it ended.
        outcome: TaskOutcome,
        /// The reason, if there is one; may contain untrusted text.
        detail: Option<UntrustedText>,
    },
    /// An approval is pending.
    PermissionRequested(Box<PermissionRequestView>),
    /// The session's first child is ready and its startup events have been sent, or it will not
    /// start before the first prompt. Sent once, after [`ServerMessage::CaughtUp`].
    Started,
    /// The roots of the workspace; follows [`ServerMessage::Opened`].
    Roots {
        /// The path in the agent's sandbox.
        inside: String,
        /// The path for the client.
        outside: String,
    },
    /// The result of [`ClientMessage::Set`]; events of a success have been sent.
    SettingResult {
        /// The client's number.
        n: u64,
        /// Why it was refused, safe to display; `None` if the setting was changed.
        refused: Option<String>,
    },
    /// An approval has ended; a later answer has no effect.
    PermissionResolved {
        /// The approval's id.
        approval: PermissionRequestId,
    },
    /// The conversation is closed.
    Closed,
}

/// A pending approval, as a client receives it. Texts from the agent are untrusted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PermissionRequestView {
    /// The id that an answer refers to.
    pub approval: String,
    /// The tool call that it belongs to; `None` if the agent did not name one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_id: Option<String>,
    /// The tool, as the agent calls it.
    pub tool: String,
    /// The class of the tool: a word of [`marshal_model::ToolClass`].
    pub class: String,
    /// The evaluated commands and paths.
    pub parts: Vec<PartView>,
    /// Why the command text is too complex to be split reliably; `None` if it is plain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_plain: Option<String>,
    /// The rules whose decision is `ask`.
    pub rules: Vec<String>,
    /// The policy's reason.
    pub reason: String,
    /// The time until the approval expires, in milliseconds.
    pub within_ms: u64,
}

/// One evaluated command or path of an approval.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartView {
    /// The environment assignments before a command, `NAME=value` each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// A command's words, or a path.
    pub words: Vec<String>,
    /// The redirects of a command, as `> file` each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub redirects: Vec<String>,
    /// The policy's decision.
    pub decision: String,
    /// The matched rules.
    pub rules: Vec<String>,
}

impl PermissionRequestView {
    /// Creates the view of a request.
    #[must_use]
    pub fn from_request(approval: &ApprovalRequest) -> Self {
        let texts = |of: &[UntrustedText]| -> Vec<String> {
            of.iter().map(|of| of.raw().to_owned()).collect()
        };
        let part = |part: &marshal_policy::Part| PartView {
            env: texts(&part.env),
            words: texts(&part.words),
            redirects: texts(&part.redirects),
            decision: part.decision.to_string(),
            rules: part.rules.clone(),
        };
        Self {
            approval: approval.id.to_string(),
            tool_id: approval.tool_id.as_ref().map(|id| id.raw().to_owned()),
            tool: approval.tool.raw().to_owned(),
            class: approval.class.to_string(),
            parts: approval.parts.iter().map(part).collect(),
            not_plain: approval.not_plain.clone(),
            rules: approval.rules.clone(),
            reason: approval.reason.clone(),
            within_ms: u64::try_from(approval.within.as_millis()).unwrap_or(u64::MAX),
        }
    }
}

/// The wire format of client messages.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ClientLine {
    v: u32,
    op: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    n: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    approval: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    says: Option<ApproverReplyWord>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mode: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    option: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    value: Option<ValueLine>,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ApproverReplyWord {
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

impl From<ApproverReply> for ApproverReplyWord {
    fn from(reply: ApproverReply) -> Self {
        match reply {
            ApproverReply::Allow => Self::Allow,
            ApproverReply::Reject => Self::Reject,
            ApproverReply::Cancelled => Self::Cancelled,
            ApproverReply::NoAnswer => Self::Nothing,
        }
    }
}

impl From<ApproverReplyWord> for ApproverReply {
    fn from(word: ApproverReplyWord) -> Self {
        match word {
            ApproverReplyWord::Allow => Self::Allow,
            ApproverReplyWord::Reject => Self::Reject,
            ApproverReplyWord::Cancelled => Self::Cancelled,
            ApproverReplyWord::Nothing => Self::NoAnswer,
        }
    }
}

/// Writes a client message without its newline.
#[must_use]
pub fn write_client_message(say: &ClientMessage) -> String {
    let mut line = ClientLine {
        v: VERSION,
        op: String::new(),
        n: None,
        text: None,
        approval: None,
        says: None,
        mode: None,
        option: None,
        value: None,
    };
    let op = match say {
        ClientMessage::Prompt { n, text } => {
            line.n = Some(*n);
            line.text = Some(text.raw().to_owned());
            "prompt"
        }
        ClientMessage::Cancel => "cancel",
        ClientMessage::Answer {
            approval,
            answer: said,
        } => {
            line.approval = Some(approval.to_string());
            line.says = Some((*said).into());
            "answer"
        }
        ClientMessage::Set { n, setting } => {
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
        ClientMessage::Close => "close",
    };
    op.clone_into(&mut line.op);
    serde_json::to_string(&line).unwrap_or_default()
}

/// Parses a client message.
///
/// # Errors
/// [`Failure`] to send back; the conversation ends with it.
pub fn read_client_message(line: &[u8]) -> Result<ClientMessage, Failure> {
    let bad = |why: &str| Failure::new(Code::BadRequest, escape_for_display(why, 300));
    let line: ClientLine = serde_json::from_slice(line).map_err(|error| bad(&error.to_string()))?;
    if line.v != VERSION {
        let message = format!("this supervisor speaks version {VERSION}");
        return Err(Failure::new(Code::BadRequest, message));
    }
    let ClientLine {
        op,
        n,
        text,
        approval,
        says,
        mode,
        option,
        value,
        ..
    } = line;
    let setting = parse_setting(mode, option, value);
    match (op.as_str(), n, text, approval, says, setting) {
        ("prompt", Some(n), Some(text), None, None, Ok(None)) => {
            task_rules::check_prompt(&text).map_err(|why| bad(&format!("the prompt {why}")))?;
            let text = UntrustedText::new(text);
            Ok(ClientMessage::Prompt { n, text })
        }
        ("cancel", None, None, None, None, Ok(None)) => Ok(ClientMessage::Cancel),
        ("answer", None, None, Some(approval), Some(says), Ok(None)) => {
            let approval =
                PermissionRequestId::new(&approval).map_err(|error| bad(&error.to_string()))?;
            let reply = says.into();
            Ok(ClientMessage::Answer {
                approval,
                answer: reply,
            })
        }
        ("set", Some(n), None, None, None, Ok(Some(setting))) => {
            Ok(ClientMessage::Set { n, setting })
        }
        ("close", None, None, None, None, Ok(None)) => Ok(ClientMessage::Close),
        (op, ..) => Err(bad(&format!(
            "op {op:?} is unknown here or has the wrong keys; a conversation has prompt with n and text, cancel, answer with ask and says, set with n and either mode or option and value, and close"
        ))),
    }
}

/// Returns the setting; an error if it is neither a mode nor an option.
fn parse_setting(
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

/// The wire format of server messages.
#[derive(Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum ServerLine {
    Opened {
        session: String,
    },
    Failed {
        message: String,
    },
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
    Ask(Box<PermissionRequestView>),
    ApprovalEnded {
        approval: String,
    },
    Closed,
}

/// Writes a server message without its newline.
#[must_use]
pub fn write_server_message(message: &ServerMessage) -> String {
    let line = match message {
        ServerMessage::Opened { session } => ServerLine::Opened {
            session: session.to_string(),
        },
        ServerMessage::Failed { message } => ServerLine::Failed {
            message: message.clone(),
        },
        ServerMessage::CaughtUp => ServerLine::CaughtUp,
        ServerMessage::PromptRefused { n, message } => ServerLine::PromptRefused {
            n: *n,
            message: message.clone(),
        },
        ServerMessage::PromptEnded { n, outcome, detail } => ServerLine::PromptEnded {
            n: *n,
            outcome: outcome.to_string(),
            detail: detail.as_ref().map(|detail| detail.raw().to_owned()),
        },
        ServerMessage::Started => ServerLine::Started,
        ServerMessage::Roots { inside, outside } => ServerLine::Roots {
            inside: inside.clone(),
            outside: outside.clone(),
        },
        ServerMessage::SettingResult { n, refused } => ServerLine::Set {
            n: *n,
            refused: refused.clone(),
        },
        ServerMessage::PermissionRequested(approval) => ServerLine::Ask(approval.clone()),
        ServerMessage::PermissionResolved { approval } => ServerLine::ApprovalEnded {
            approval: approval.to_string(),
        },
        ServerMessage::Closed => ServerLine::Closed,
    };
    serde_json::to_string(&line).unwrap_or_default()
}

/// Parses a server message; `None` for a line of another kind (an event, a failure) or of a later
/// version.
#[must_use]
pub fn read_server_message(line: &str) -> Option<ServerMessage> {
    Some(match serde_json::from_str(line).ok()? {
        ServerLine::Opened { session } => ServerMessage::Opened {
            session: SessionId::new(&session).ok()?,
        },
        ServerLine::Failed { message } => ServerMessage::Failed {
            message: escape_for_display(&message, 1000),
        },
        ServerLine::CaughtUp => ServerMessage::CaughtUp,
        ServerLine::PromptRefused { n, message } => ServerMessage::PromptRefused {
            n,
            message: escape_for_display(&message, 1000),
        },
        ServerLine::PromptEnded { n, outcome, detail } => ServerMessage::PromptEnded {
            n,
            outcome: TaskOutcome::parse(&outcome)?,
            detail: detail.map(UntrustedText::new),
        },
        ServerLine::Started => ServerMessage::Started,
        ServerLine::Roots { inside, outside } => ServerMessage::Roots { inside, outside },
        ServerLine::Set { n, refused } => ServerMessage::SettingResult {
            n,
            refused: refused.map(|why| escape_for_display(&why, 1000)),
        },
        ServerLine::Ask(approval) => {
            PermissionRequestId::new(&approval.approval).ok()?;
            ServerMessage::PermissionRequested(approval)
        }
        ServerLine::ApprovalEnded { approval } => ServerMessage::PermissionResolved {
            approval: PermissionRequestId::new(&approval).ok()?,
        },
        ServerLine::Closed => ServerMessage::Closed,
    })
}

/// Returns the message for the end of a prompt.
#[must_use]
pub fn prompt_ended(n: u64, report: &TaskReport) -> ServerMessage {
    ServerMessage::PromptEnded {
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
        let approval = PermissionRequestId::new("a-1").expect("id");
        for say in [
            ClientMessage::Prompt {
                n: 7,
                text: "say \u{1b}[2J\n".into(),
            },
            ClientMessage::Cancel,
            ClientMessage::Answer {
                approval,
                answer: ApproverReply::Cancelled,
            },
            ClientMessage::Set {
                n: 1,
                setting: Setting::Mode("plan".to_owned()),
            },
            ClientMessage::Set {
                n: 2,
                setting: Setting::Option {
                    id: "model".to_owned(),
                    value: SettingValue::Choice("b".to_owned()),
                },
            },
            ClientMessage::Set {
                n: 3,
                setting: Setting::Option {
                    id: "fast".to_owned(),
                    value: SettingValue::Switch(true),
                },
            },
            ClientMessage::Close,
        ] {
            assert_eq!(
                read_client_message(write_client_message(&say).as_bytes()),
                Ok(say)
            );
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
        let approval = PermissionRequestView {
            approval: "a-1".to_owned(),
            tool_id: Some("t".to_owned()),
            tool: "bash".to_owned(),
            class: "shell".to_owned(),
            parts: vec![part],
            not_plain: None,
            rules: vec!["r".to_owned()],
            reason: "why".to_owned(),
            within_ms: 5,
        };
        for message in [
            ServerMessage::CaughtUp,
            ServerMessage::PromptRefused {
                n: 1,
                message: "full".to_owned(),
            },
            ServerMessage::PromptEnded {
                n: 1,
                outcome: TaskOutcome::Done,
                detail: Some("x".into()),
            },
            ServerMessage::PermissionRequested(Box::new(approval)),
            ServerMessage::PermissionResolved {
                approval: PermissionRequestId::new("a-1").expect("id"),
            },
            ServerMessage::Closed,
            ServerMessage::Started,
            ServerMessage::Roots {
                inside: "/workspace".to_owned(),
                outside: "/srv/x".to_owned(),
            },
            ServerMessage::SettingResult {
                n: 4,
                refused: Some("no such mode".to_owned()),
            },
        ] {
            assert_eq!(
                read_server_message(&write_server_message(&message)),
                Some(message)
            );
        }
        assert_eq!(read_server_message("{\"type\":\"event\"}"), None);
    }

    #[test]
    fn what_is_no_saying_is_told_so() {
        for (line, part) in [
            ("", "EOF"),
            ("{\"v\":1,\"op\":\"fly\"}", "a conversation has prompt"),
            (
                "{\"v\":1,\"op\":\"prompt\",\"n\":1}",
                "a conversation has prompt",
            ),
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
            let failure = read_client_message(line.as_bytes()).expect_err(line);
            assert!(failure.message.contains(part), "{line}: {failure}");
        }
    }
}
