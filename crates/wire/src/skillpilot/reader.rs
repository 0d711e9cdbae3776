//! The files that somebody writes for whoever works a directory: read, and nothing else.
//!
//! One reader for the Runner and for a pool's own directory, which differ in their manners only: the Runner is
//! lenient to what Masters add of their own, the other door refuses what it does not know. What either of
//! them makes of a command is its own. Bytes in, words out: must not touch a file, or know a clock.

use std::fmt;

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::error::Category;
use serde_json::value::RawValue;
use serde_json::{Map, Number, Value};

use super::marker::{self, Marker};
use super::{CancelPolicy, CommandFile, CommandName, MarkerMode, MarkerSpec, TIMEOUT_MAX_S};

/// What is made of members that are not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strictness {
    /// Nothing.
    Lenient,
    /// The file is refused.
    Strict,
}

/// Why a file says nothing that could be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadError {
    /// It is not what it is called; it may be half of that still.
    Malformed(String),
    /// It is whole, and wants what cannot be.
    Invalid(String),
}

impl From<ReadError> for String {
    fn from(fault: ReadError) -> Self {
        match fault {
            ReadError::Malformed(why) | ReadError::Invalid(why) => why,
        }
    }
}

/// JSON of one form.
///
/// # Errors
/// It is no JSON, no object, or of another form.
pub fn parse_object<'b, T: Deserialize<'b>>(content: &'b [u8]) -> Result<T, ReadError> {
    let text = std::str::from_utf8(content)
        .map_err(|_| ReadError::Malformed("it is not UTF-8".to_owned()))?;
    if !text.trim_ascii_start().starts_with('{') {
        return Err(ReadError::Malformed("it is not a JSON object".to_owned()));
    }
    serde_json::from_str(text).map_err(|error| match error.classify() {
        Category::Data => ReadError::Invalid(error.to_string()),
        _ => ReadError::Malformed(format!("it is not JSON: {error}")),
    })
}

/// Members that a form does not name, as they came.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct UnknownMembers(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for UnknownMembers {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Members;
        impl<'de> Visitor<'de> for Members {
            type Value = UnknownMembers;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<UnknownMembers, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(UnknownMembers(members))
            }
        }
        from.deserialize_map(Members)
    }
}

impl UnknownMembers {
    /// Takes out a member that may be there once.
    ///
    /// # Errors
    /// It is there twice.
    pub fn take(&mut self, name: &str) -> Result<Option<Value>, ReadError> {
        let at = self.0.iter().position(|(known, _)| known == name);
        let Some(at) = at else {
            return Ok(None);
        };
        let (_, value) = self.0.swap_remove(at);
        if self.0.iter().any(|(known, _)| known == name) {
            return Err(ReadError::Invalid(format!("duplicate field `{name}`")));
        }
        Ok(Some(value))
    }

    /// Nothing else is there, if that matters.
    ///
    /// # Errors
    /// Something is.
    pub fn reject_unknown(&self, manner: Strictness) -> Result<(), ReadError> {
        match self.0.first() {
            Some((name, _)) if manner == Strictness::Strict => {
                let name: String = name.chars().take(60).collect();
                Err(ReadError::Invalid(format!("unknown field `{name}`")))
            }
            _ => Ok(()),
        }
    }
}

/// A command as somebody wrote it: of the right form, and no more is known of it.
#[derive(Debug, Deserialize)]
pub struct RawCommand {
    /// Its id.
    pub cmd_id: String,
    /// Its number.
    pub seq: u64,
    /// What it is written in.
    pub kind: String,
    /// What is to be done.
    pub payload: String,
    /// How long it may take, in seconds.
    #[serde(default)]
    pub timeout_s: Option<Number>,
    /// How it is ended before its time.
    #[serde(default)]
    pub cancel_policy: Option<String>,
    /// How its end is known.
    #[serde(default)]
    pub marker: Option<Map<String, Value>>,
    /// What else is there.
    #[serde(flatten)]
    pub rest: UnknownMembers,
}

impl RawCommand {
    /// Reads a command's file.
    ///
    /// # Errors
    /// It is none.
    pub fn parse(content: &[u8]) -> Result<Self, ReadError> {
        parse_object(content)
    }
}

/// Why a command is not run. Each becomes the `exit_reason` of its result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CommandRefusal {
    /// It cannot be read.
    #[error("refused: the command cannot be read: {0}")]
    Unreadable(String),
    /// It says another id or number than its name.
    #[error("refused: the file's name says {name}, its content cmd_{seq}_{id}")]
    Name {
        /// The name's stem.
        name: String,
        /// The number of its content.
        seq: u64,
        /// The id of its content, shown safely.
        id: String,
    },
    /// The kind is not the tool's.
    #[error("refused: unknown kind {kind}: this session runs {ours:?}")]
    Kind {
        /// The kind, shown safely.
        kind: String,
        /// The tool's.
        ours: String,
    },
    /// The cancel policy is unknown.
    #[error("refused: unknown cancel_policy {0}: use ctrl_c, terminate_tool or terminate_session")]
    Policy(String),
    /// The time is no time.
    #[error("refused: timeout_s must be more than 0 and at most {TIMEOUT_MAX_S}")]
    Timeout,
    /// The marker's mode is unknown.
    #[error("refused: unknown marker mode {0}: use runner_inject or payload_contains")]
    Mode(String),
    /// The marker cannot be one.
    #[error(
        "refused: the marker's prefix and token must each be 1 to 128 characters of A-Z, a-z, 0-9, -, _ and ."
    )]
    Marker,
    /// The payload would do something else at a terminal than it says.
    #[error(
        "refused: the payload has the control character 0x{0:02x}, which a terminal interprets"
    )]
    Control(u8),
}

/// Reads a command's file against its name and the kind that the tool is.
///
/// # Errors
/// Why it is not run.
pub fn read_command(
    name: &CommandName,
    content: &[u8],
    kind: &str,
    timeout_s: u64,
) -> Result<CommandFile, CommandRefusal> {
    let written =
        RawCommand::parse(content).map_err(|fault| CommandRefusal::Unreadable(fault.into()))?;
    if written.cmd_id != name.id || written.seq != name.seq {
        return Err(CommandRefusal::Name {
            name: name.stem(),
            seq: written.seq,
            id: quote_short(&written.cmd_id),
        });
    }
    if written.kind != kind {
        return Err(CommandRefusal::Kind {
            kind: quote_short(&written.kind),
            ours: kind.to_owned(),
        });
    }
    let policy = written.cancel_policy.as_deref().unwrap_or("ctrl_c");
    let cancel_policy =
        CancelPolicy::parse(policy).ok_or_else(|| CommandRefusal::Policy(quote_short(policy)))?;
    let timeout_s = match written.timeout_s.and_then(|seconds| seconds.as_f64()) {
        None => timeout_s,
        Some(seconds) if seconds > 0.0 && seconds <= TIMEOUT_MAX_S as f64 => whole_seconds(seconds),
        Some(_) => return Err(CommandRefusal::Timeout),
    };
    let marker = parse_marker(written.marker.unwrap_or_default(), &name.id)?;
    if !Marker::is_valid_spec(&marker) {
        return Err(CommandRefusal::Marker);
    }
    let acts = |b: &u8| (*b < 0x20 && !b"\t\n\r".contains(b)) || *b == 0x7f;
    if let Some(byte) = written.payload.bytes().find(acts) {
        return Err(CommandRefusal::Control(byte));
    }
    Ok(CommandFile {
        cmd_id: written.cmd_id,
        seq: written.seq,
        kind: written.kind,
        payload: written.payload,
        timeout_s: Some(timeout_s),
        cancel_policy,
        marker,
    })
}

/// Seconds that are within [`TIMEOUT_MAX_S`], at least one.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn whole_seconds(seconds: f64) -> u64 {
    (seconds.ceil() as u64).clamp(1, TIMEOUT_MAX_S)
}

/// A foreign text in a sentence of ours: quoted, escaped and short.
fn quote_short(text: &str) -> String {
    let short: String = text.chars().take(40).collect();
    format!("{short:?}")
}

/// The marker of a command, where what it leaves out is as usual.
fn parse_marker(mut members: Map<String, Value>, id: &str) -> Result<MarkerSpec, CommandRefusal> {
    let mut text = |name: &str| match members.remove(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(CommandRefusal::Unreadable(format!(
            "marker.{name} is not a string"
        ))),
    };
    let mode = match text("mode")?.as_deref() {
        None | Some("runner_inject") => MarkerMode::RunnerInject,
        Some("payload_contains") => MarkerMode::PayloadContains,
        Some(other) => return Err(CommandRefusal::Mode(quote_short(other))),
    };
    Ok(MarkerSpec {
        prefix: text("prefix")?.unwrap_or_else(|| marker::PREFIX.to_owned()),
        token: text("token")?.unwrap_or_else(|| id.to_owned()),
        mode,
    })
}

/// What a `ctl/cancel.json` is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CancelScope {
    /// The command that runs.
    Current,
    /// The command of that id.
    Command(String),
}

/// Reads `ctl/cancel.json`.
///
/// # Errors
/// What is wrong with it.
pub fn read_cancel(content: &[u8], manner: Strictness) -> Result<CancelScope, ReadError> {
    #[derive(Deserialize)]
    struct File {
        scope: String,
        #[serde(default)]
        cmd_id: Option<String>,
        #[serde(flatten)]
        rest: UnknownMembers,
    }
    let mut file: File = parse_object(content)?;
    file.rest.take("ts").or_else(|twice| match manner {
        Strictness::Strict => Err(twice),
        Strictness::Lenient => Ok(None),
    })?;
    file.rest.reject_unknown(manner)?;
    match (&*file.scope, file.cmd_id) {
        ("current", None) => Ok(CancelScope::Current),
        ("current", Some(_)) if manner == Strictness::Lenient => Ok(CancelScope::Current),
        ("cmd_id", Some(id)) => Ok(CancelScope::Command(id)),
        _ => Err(ReadError::Invalid(
            "expected scope \"current\", or scope \"cmd_id\" with a cmd_id".to_owned(),
        )),
    }
}

/// How work is to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum StopMode {
    /// When the command that runs is done.
    Graceful,
    /// Now.
    Force,
}

/// Reads `ctl/stop.json`.
///
/// # Errors
/// What is wrong with it.
pub fn read_stop(content: &[u8], manner: Strictness) -> Result<StopMode, ReadError> {
    #[derive(Deserialize)]
    struct File {
        mode: String,
        #[serde(flatten)]
        rest: UnknownMembers,
    }
    let mut file: File = parse_object(content)?;
    file.rest.take("ts").or_else(|twice| match manner {
        Strictness::Strict => Err(twice),
        Strictness::Lenient => Ok(None),
    })?;
    file.rest.reject_unknown(manner)?;
    match &*file.mode {
        "graceful" => Ok(StopMode::Graceful),
        "force" => Ok(StopMode::Force),
        _ => Err(ReadError::Invalid(
            "expected mode \"graceful\" or \"force\"".to_owned(),
        )),
    }
}

/// Reads `state/lease.json`: when it expires, in milliseconds since 1970.
///
/// # Errors
/// What is wrong with it.
pub fn read_lease(content: &[u8]) -> Result<i64, ReadError> {
    #[derive(Deserialize)]
    struct File<'a> {
        #[serde(borrow)]
        expires_at: &'a RawValue,
    }
    let file: File<'_> = parse_object(content)?;
    let time = file.expires_at.get().trim_matches('"');
    read_time(time).ok_or_else(|| {
        ReadError::Invalid(format!("expires_at {} is not a time", quote_short(time)))
    })
}

/// A time in milliseconds since 1970, written as that number or as ISO 8601 with its zone.
#[must_use]
pub fn read_time(text: &str) -> Option<i64> {
    text.parse().ok().or_else(|| {
        let time: jiff::Timestamp = text.parse().ok()?;
        Some(time.as_millisecond())
    })
}
