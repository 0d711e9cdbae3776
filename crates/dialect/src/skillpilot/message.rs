//! The carrier's lines, typed, and the lines that we write to it.
//!
//! Reading is lenient: members that are not needed may be absent or unknown. Must not know in which
//! order lines come.

use std::borrow::Cow;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};

use marshal_config as config;
use marshal_model::UntrustedText;
use marshal_wire::json::BadFrame;
use marshal_wire::skillpilot::carrier::{PUT_TYPE, PutMessage, Stamp};
use marshal_wire::skillpilot::marker::PREFIX;
use marshal_wire::skillpilot::{CommandFile, CommandName, MarkerMode, MarkerSpec, RunnerPhase};

/// A message of the carrier.
#[derive(Debug)]
pub(super) enum Message<'a> {
    Hello(Hello<'a>),
    Output {
        command: String,
        text: String,
    },
    Result {
        command: String,
        content: &'a str,
    },
    State(RunnerPhase),
    Heartbeat,
    FileRefused {
        path: String,
        why: UntrustedText,
    },
    /// An unknown type.
    Unknown(UntrustedText, &'a RawValue),
}

/// The first line. Its version is checked before anything else.
#[derive(Debug, Deserialize)]
pub(super) struct Hello<'a> {
    #[serde(borrow)]
    pub(super) protocol: Option<&'a RawValue>,
    #[serde(borrow)]
    version: Option<&'a RawValue>,
    #[serde(borrow)]
    runs: Option<&'a RawValue>,
    #[serde(borrow)]
    session_id: Option<&'a RawValue>,
    #[serde(borrow)]
    word: Option<&'a RawValue>,
    #[serde(borrow)]
    next_seq: Option<&'a RawValue>,
}

/// The other members of the first line.
pub(super) struct HelloFields {
    pub(super) version: Option<UntrustedText>,
    pub(super) is_runner: bool,
    pub(super) session_id: String,
    pub(super) id_prefix: String,
    pub(super) next_seq: u64,
}

impl Hello<'_> {
    pub(super) fn parts(&self) -> Option<HelloFields> {
        let word: String = get(self.word)?;
        // It becomes part of an id, with a number of at most 20 digits.
        let fits = word.len() <= 64 && marshal_wire::skillpilot::is_id(&word);
        fits.then_some(HelloFields {
            version: get::<String>(self.version).map(UntrustedText::new),
            is_runner: get(self.runs)?,
            session_id: get(self.session_id)?,
            next_seq: get(self.next_seq)?,
            id_prefix: word,
        })
    }
}

fn get<'a, T: Deserialize<'a>>(raw: Option<&'a RawValue>) -> Option<T> {
    serde_json::from_str(raw?.get()).ok()
}

/// Reads a line of a known type.
pub(super) fn read<'a>(tag: &str, object: &'a str) -> Result<Message<'a>, BadFrame> {
    #[derive(Deserialize)]
    struct Output {
        command: String,
        text: String,
    }
    #[derive(Deserialize)]
    struct Content<'a> {
        #[serde(default)]
        command: String,
        #[serde(borrow)]
        content: &'a RawValue,
    }
    #[derive(Deserialize)]
    struct State {
        phase: RunnerPhase,
    }
    #[derive(Deserialize)]
    struct Refused {
        path: String,
        why: String,
    }
    Ok(match tag {
        "hello" => Message::Hello(serde_json::from_str(object)?),
        "output" => {
            let Output { command, text } = serde_json::from_str(object)?;
            Message::Output { command, text }
        }
        "result" => {
            let Content { command, content } = serde_json::from_str(object)?;
            Message::Result {
                command,
                content: content.get(),
            }
        }
        "state" => {
            let Content { content, .. } = serde_json::from_str(object)?;
            let State { phase } = serde_json::from_str(content.get())?;
            Message::State(phase)
        }
        "heartbeat" => {
            let _: serde::de::IgnoredAny = serde_json::from_str(object)?;
            Message::Heartbeat
        }
        "refused" => {
            let Refused { path, why } = serde_json::from_str(object)?;
            Message::FileRefused {
                path,
                why: why.into(),
            }
        }
        other => Message::Unknown(other.into(), serde_json::from_str(object)?),
    })
}

/// Writes a command that is to be run.
pub(super) fn submit(name: &CommandName, wants: &config::Runner, text: &UntrustedText) -> Vec<u8> {
    let command = CommandFile {
        cmd_id: name.id.clone(),
        seq: name.seq,
        kind: wants.kind.clone(),
        payload: text.raw().to_owned(),
        timeout_s: Some(wants.timeout.as_secs().max(1)),
        cancel_policy: wants.cancel,
        marker: MarkerSpec {
            prefix: PREFIX.to_owned(),
            token: name.id.clone(),
            mode: MarkerMode::RunnerInject,
        },
    };
    put(&format!("queue/{}", name.file_name()), &command, None)
}

/// Cancels a command, whether it runs or waits.
pub(super) fn cancel(id: &str) -> Vec<u8> {
    #[derive(Serialize)]
    struct Cancel<'a> {
        scope: &'static str,
        cmd_id: &'a str,
    }
    let cancel = Cancel {
        scope: "cmd_id",
        cmd_id: id,
    };
    put("ctl/cancel.json", &cancel, Some(("ts", Duration::ZERO)))
}

/// Stops the Runner after its current command.
pub(super) fn stop() -> Vec<u8> {
    #[derive(Serialize)]
    struct Stop {
        mode: &'static str,
    }
    let stop = Stop { mode: "graceful" };
    put("ctl/stop.json", &stop, Some(("ts", Duration::ZERO)))
}

/// Writes a lease: a promise that the supervisor is alive for this long.
pub(super) fn lease(word: &str, term: Duration) -> Vec<u8> {
    #[derive(Serialize)]
    struct Lease<'a> {
        lease_id: &'a str,
        owner: &'static str,
    }
    let lease = Lease {
        lease_id: word,
        owner: "marshal",
    };
    put("state/lease.json", &lease, Some(("expires_at", term)))
}

/// Writes a line that makes the carrier write a file.
fn put(path: &str, content: &impl Serialize, stamp: Option<(&'static str, Duration)>) -> Vec<u8> {
    let Ok(content) = to_raw_value(content) else {
        // Only maps with keys that are not strings cannot be serialized, and there are none.
        return Vec::new();
    };
    let order = PutMessage {
        kind: Cow::Borrowed(PUT_TYPE),
        path: Cow::Borrowed(path),
        content: Cow::Owned(content),
        stamp: stamp.map(|(member, term)| Stamp {
            member: Cow::Borrowed(member),
            in_ms: u64::try_from(term.as_millis()).unwrap_or(u64::MAX),
        }),
    };
    let mut line = serde_json::to_vec(&order).unwrap_or_default();
    line.push(b'\n');
    line
}
