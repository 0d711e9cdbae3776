//! Replies of the control socket, version 1: one JSON object per line.
//!
//! Owns their format, for both sides. Must not know sockets. Replies are read leniently: a later
//! supervisor may send more than this program knows.

use serde::{Deserialize, Serialize};

use super::approvals::{AnswerReceiptView, ApprovalView};
use super::listing::Listing;
use super::policies::PolicyStatusView;
use super::request::{Code, Failure, VERSION};
use marshal_fleet::ConversationView;
use marshal_model::untrusted::escape_for_display;
use marshal_model::{RunId, SessionId};

marshal_model::string_enum!(
    /// The kind of a supervisor.
    Role {
        /// It accepts tasks from all clients that may connect.
        Daemon = "daemon",
        /// It runs one list of tasks and then exits.
        Run = "run",
        /// It serves conversations until the editor that started it exits.
        Editor = "editor",
    }
);

/// A reply to a request; a stream may follow it.
#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    /// Reply to [`Request::Hello`](super::request::Request::Hello).
    Hello {
        /// What kind of supervisor it is.
        role: Role,
        /// The supervisor's process id.
        pid: u32,
        /// The digest of its configuration; empty from an older supervisor.
        configuration: String,
    },
    /// Reply to [`Request::Submit`](super::request::Request::Submit): the tasks are durable.
    Submitted {
        /// The id of the new run.
        run: RunId,
        /// The number of its tasks.
        accepted: usize,
    },
    /// Reply to [`Request::Watch`](super::request::Request::Watch).
    Watching {
        /// The number of the run's tasks.
        accepted: usize,
    },
    /// Reply to [`Request::Cancel`](super::request::Request::Cancel),
    /// [`Request::Logs`](super::request::Request::Logs) and
    /// [`Request::Restart`](super::request::Request::Restart).
    Done,
    /// Reply to [`Request::Open`](super::request::Request::Open): lines of
    /// [`conversation_protocol`](super::conversation_protocol) and events follow.
    Opened {
        /// The conversation's session.
        session: SessionId,
    },
    /// Reply to [`Request::Conversations`](super::request::Request::Conversations).
    Conversations(Vec<ConversationLine>),
    /// Reply to [`Request::Approvals`](super::request::Request::Approvals): the approvals of a
    /// list.
    Approvals(Vec<ApprovalView>),
    /// One approval with its details.
    Approval(Box<ApprovalView>),
    /// The result of an answer.
    Answered(AnswerReceiptView),
    /// Reply to [`Request::List`](super::request::Request::List).
    Listed(Listing),
    /// Reply to [`Request::Policies`](super::request::Request::Policies) and
    /// [`Request::Reload`](super::request::Request::Reload).
    Policies(Box<PolicyStatusView>),
    /// The request failed.
    Failed(Failure),
}

/// A conversation in a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConversationLine {
    /// The id of its session.
    pub session: String,
    /// The directory of its client.
    pub directory: String,
    /// The beginning of its first prompt; untrusted text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The time of its last prompt: microseconds since the Unix epoch.
    pub at_us: i64,
}

impl ConversationLine {
    /// Converts the view of a conversation.
    #[must_use]
    pub fn from_view(view: &ConversationView) -> Self {
        Self {
            session: view.session.to_string(),
            directory: view.directory.to_string_lossy().into_owned(),
            title: view.title.as_ref().map(|title| title.raw().to_owned()),
            at_us: view.at_us,
        }
    }
}

/// The wire format of a reply.
#[derive(Serialize, Deserialize)]
struct ReplyLine {
    v: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ok: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    role: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pid: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    configuration: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    run: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    accepted: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    session: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    conversations: Option<Vec<ConversationLine>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    approvals: Option<Vec<ApprovalView>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    answered: Option<AnswerReceiptView>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    listing: Option<Listing>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    policies: Option<Box<PolicyStatusView>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    error: Option<ErrorLine>,
}

#[derive(Serialize, Deserialize)]
struct ErrorLine {
    code: String,
    message: String,
}

/// Writes one reply, without its newline.
#[must_use]
pub fn write_reply(reply: &Reply) -> String {
    let mut line = ReplyLine {
        v: VERSION,
        ok: None,
        role: None,
        pid: None,
        run: None,
        configuration: None,
        accepted: None,
        session: None,
        conversations: None,
        approvals: None,
        answered: None,
        listing: None,
        policies: None,
        error: None,
    };
    match reply {
        Reply::Hello {
            role,
            pid,
            configuration,
        } => {
            line.ok = Some("hello".to_owned());
            line.role = Some(role.to_string());
            line.pid = Some(*pid);
            line.configuration = Some(configuration.clone());
        }
        Reply::Submitted { run, accepted } => {
            line.ok = Some("submitted".to_owned());
            line.run = Some(run.to_string());
            line.accepted = Some(*accepted);
        }
        Reply::Watching { accepted } => {
            line.ok = Some("watching".to_owned());
            line.accepted = Some(*accepted);
        }
        Reply::Done => line.ok = Some("done".to_owned()),
        Reply::Opened { session } => {
            line.ok = Some("opened".to_owned());
            line.session = Some(session.to_string());
        }
        Reply::Conversations(found) => {
            line.ok = Some("conversations".to_owned());
            line.conversations = Some(found.clone());
        }
        Reply::Approvals(found) => {
            line.ok = Some("approvals".to_owned());
            line.approvals = Some(found.clone());
        }
        Reply::Approval(found) => {
            line.ok = Some("approval".to_owned());
            line.approvals = Some(vec![(**found).clone()]);
        }
        Reply::Answered(answered) => {
            line.ok = Some("answered".to_owned());
            line.answered = Some(answered.clone());
        }
        Reply::Listed(listing) => {
            line.ok = Some("listed".to_owned());
            line.listing = Some(listing.clone());
        }
        Reply::Policies(found) => {
            line.ok = Some("policies".to_owned());
            line.policies = Some(found.clone());
        }
        Reply::Failed(failure) => {
            line.error = Some(ErrorLine {
                code: failure.code.to_string(),
                message: failure.message.clone(),
            });
        }
    }
    serde_json::to_string(&line).unwrap_or_default()
}

/// Parses a reply; `None` if this program does not know it.
#[must_use]
pub fn read_reply(line: &str) -> Option<Reply> {
    let line: ReplyLine = serde_json::from_str(line).ok()?;
    if let Some(error) = line.error {
        return Some(Reply::Failed(Failure {
            // An unknown code of a later version is still an error.
            code: Code::parse(&error.code).unwrap_or(Code::Refused),
            message: escape_for_display(&error.message, 1000),
        }));
    }
    Some(match line.ok?.as_str() {
        "hello" => Reply::Hello {
            role: Role::parse(&line.role?)?,
            pid: line.pid?,
            configuration: line.configuration.unwrap_or_default(),
        },
        "submitted" => Reply::Submitted {
            run: RunId::new(&line.run?).ok()?,
            accepted: line.accepted?,
        },
        "watching" => Reply::Watching {
            accepted: line.accepted?,
        },
        "done" => Reply::Done,
        "opened" => Reply::Opened {
            session: SessionId::new(&line.session?).ok()?,
        },
        "conversations" => Reply::Conversations(line.conversations?),
        "approvals" => Reply::Approvals(line.approvals?),
        "approval" => Reply::Approval(Box::new(line.approvals?.pop()?)),
        "answered" => Reply::Answered(line.answered?),
        "policies" => Reply::Policies(line.policies?),
        "listed" => Reply::Listed(line.listing?),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::listing::{PoolLine, SlotLine};

    #[test]
    fn replies_survive_a_round_trip() {
        let run = RunId::new("r-1").expect("id");
        for reply in [
            Reply::Hello {
                role: Role::Daemon,
                pid: 7,
                configuration: "ab12".to_owned(),
            },
            Reply::Submitted { run, accepted: 3 },
            Reply::Watching { accepted: 3 },
            Reply::Done,
            Reply::Opened {
                session: SessionId::new("s").expect("id"),
            },
            Reply::Conversations(vec![ConversationLine {
                session: "s".to_owned(),
                directory: "/srv".to_owned(),
                title: Some("say".to_owned()),
                at_us: 5,
            }]),
            Reply::Listed(Listing {
                pools: vec![PoolLine {
                    pool: "demo".to_owned(),
                    weak: vec!["a".to_owned()],
                    ..PoolLine::default()
                }],
                slots: vec![SlotLine {
                    slot: "demo/0".to_owned(),
                    started_at: Some(1.5),
                    note: Some("n".to_owned()),
                    ..SlotLine::default()
                }],
            }),
            Reply::Failed(Failure::new(Code::Busy, "come again")),
        ] {
            let line = write_reply(&reply);
            assert_eq!(read_reply(&line), Some(reply), "{line}");
        }
    }
}
