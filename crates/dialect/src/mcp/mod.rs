//! The tool server that an agent gets from its supervisor: the Model Context Protocol as a state
//! machine without IO, one for each connection.
//!
//! Layer 2. Owns the messages and their order: lines go in, [`Effect`]s come out. Must not know
//! sockets, files, policies, or how a call is carried out: its result comes back as an answer.
//!
//! Source: Model Context Protocol, in [`STATELESS_VERSION`] and the [`VERSIONS`] before it, over
//! standard input and output: JSON-RPC 2.0, one message per line. A client may use both kinds on
//! one connection, because each request says which it is.

mod arguments;
mod message;
mod schema;
mod write;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::jsonrpc::RequestId;
use marshal_model::limits::{TOOL_BATCH, TOOL_CALLS};
use marshal_model::{EngineCall, EngineRequest, EngineResult, EngineTool};
use message::{CAPABILITIES_KEY, Message, VERSION_KEY};
pub use write::{INTERNAL, error_line};

/// The call that would be evaluated, if this is one of these tools and its arguments are valid.
#[must_use]
pub fn parse_tool_call(
    name: &str,
    arguments: &Value,
    tools: &[EngineTool],
) -> Option<EngineRequest> {
    let params = serde_json::json!({"name": name, "arguments": arguments});
    let params = serde_json::value::to_raw_value(&params).ok()?;
    let call = arguments::read(Some(&params), tools).ok()?;
    Some(call.policy_request())
}

/// The version without a handshake: each request names it, and nothing is kept between requests.
pub const STATELESS_VERSION: &str = "2026-07-28";
/// The supported protocol versions that begin with `initialize`, newest first.
pub const VERSIONS: &[&str] = &["2025-11-25", "2025-06-18", BATCH_VERSION, "2024-11-05"];
/// The only one of them with message batches.
const BATCH_VERSION: &str = "2025-03-26";

/// The actions that the server requests, in order.
#[derive(Debug, PartialEq, Eq)]
pub enum Effect {
    /// Write this line, including its newline.
    Write(Vec<u8>),
    /// A tool is called; its answer goes to [`Server::answer_call`] under this number.
    Call {
        /// The call's number on this connection.
        number: u64,
        /// The tool and its arguments.
        call: Box<EngineCall>,
    },
    /// The call of this number is cancelled, and gets no answer.
    Cancelled(u64),
}

/// The phase of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// No version was agreed upon.
    Uninitialized,
    /// A version was agreed upon; whether it has batches.
    Initialized { has_batches: bool },
}

/// How a request says its version, and so the form of its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Era {
    /// The connection began with `initialize`.
    Handshake,
    /// The request itself names [`STATELESS_VERSION`].
    Stateless,
}

/// A call in progress.
#[derive(Debug)]
struct OpenCall {
    number: u64,
    id: RequestId,
    era: Era,
}

/// Why a request is refused.
#[derive(Debug)]
struct Refusal {
    code: i32,
    why: String,
    data: Option<Value>,
}

impl From<(i32, String)> for Refusal {
    fn from((code, why): (i32, String)) -> Self {
        let data = None;
        Self { code, why, data }
    }
}

/// The server of one connection.
#[derive(Debug)]
pub struct Server {
    tools: Vec<EngineTool>,
    phase: Phase,
    /// The calls in progress; at most [`TOOL_CALLS`].
    open: Vec<OpenCall>,
    last: u64,
}

impl Server {
    /// A server with these tools, before its first message.
    #[must_use]
    pub fn new(tools: &[EngineTool]) -> Self {
        Self {
            tools: tools.to_vec(),
            phase: Phase::Uninitialized,
            open: Vec::new(),
            last: 0,
        }
    }

    /// The number of calls in progress.
    #[must_use]
    pub fn open(&self) -> usize {
        self.open.len()
    }

    /// Handles a line, without its newline.
    pub fn handle_line(&mut self, line: &[u8], out: &mut Vec<Effect>) {
        let Some(text) = message::text(line) else {
            let why = "the line is not JSON";
            return out.push(write::error(None, write::PARSE, why));
        };
        if !text.trim_ascii_start().starts_with('[') {
            return self.handle_message(text, out);
        }
        let Ok(batch) = serde_json::from_str::<Vec<&RawValue>>(text) else {
            return out.push(write::error(None, write::PARSE, "the line is not JSON"));
        };
        let why = match self.phase {
            Phase::Initialized { has_batches: true } if batch.is_empty() => "the batch is empty",
            Phase::Initialized { has_batches: true } if batch.len() > TOOL_BATCH => {
                "the batch has too many messages"
            }
            Phase::Initialized { has_batches: true } => {
                for one in batch {
                    self.handle_message(one.get(), out);
                }
                return;
            }
            _ => "this version of the protocol has no batches: send one message per line",
        };
        out.push(write::error(None, write::INVALID_REQUEST, why));
    }

    /// Rejects a line longer than the limit; no input can follow it.
    pub fn reject_long_line(&mut self, out: &mut Vec<Effect>) {
        let why = "the line exceeds the maximum message size; the connection is closed";
        out.push(write::error(None, write::INVALID_REQUEST, why));
    }

    /// Answers a call. A cancelled call gets no answer.
    pub fn answer_call(&mut self, number: u64, answer: &EngineResult, out: &mut Vec<Effect>) {
        let at = self.open.iter().position(|open| open.number == number);
        if let Some(at) = at {
            let OpenCall { id, era, .. } = self.open.swap_remove(at);
            out.push(write::result(&id, era, write::call_result(answer)));
        }
    }

    fn handle_message(&mut self, text: &str, out: &mut Vec<Effect>) {
        match message::read(text) {
            Ok(Message::Request { id, method, params }) => {
                let done = self.handle_request(&id, &method, params, out);
                if let Err(refusal) = done {
                    out.push(write::refusal(&id, &refusal));
                }
            }
            Ok(Message::Notification { method, params }) => {
                self.handle_notification(&method, params, out);
            }
            // A reply needs no answer.
            Ok(Message::Reply) => {}
            Err(why) => out.push(write::error(None, write::INVALID_REQUEST, why)),
        }
    }

    fn handle_request(
        &mut self,
        id: &RequestId,
        method: &str,
        params: Option<&RawValue>,
        out: &mut Vec<Effect>,
    ) -> Result<(), Refusal> {
        if self.open.iter().any(|open| open.id == *id) {
            let why = "a request with this id is still in progress";
            return Err((write::INVALID_REQUEST, why.to_owned()).into());
        }
        let era = requested_era(method, params)?;
        match (method, era) {
            ("server/discover", Era::Stateless) => {
                out.push(write::result(id, era, schema::discover_result()));
            }
            ("ping", Era::Handshake) => out.push(write::result(id, era, json!({}))),
            ("initialize", Era::Handshake) => self.initialize(id, params, out)?,
            (_, Era::Handshake) if self.phase == Phase::Uninitialized => {
                let why = format!(
                    "the server is not initialized: {method:.64} was sent before initialize"
                );
                return Err((write::INVALID_REQUEST, why).into());
            }
            ("tools/list", _) => {
                arguments::reject_cursor(params).map_err(|why| (write::INVALID_PARAMS, why))?;
                out.push(write::result(id, era, schema::list(&self.tools, era)));
            }
            ("tools/call", _) => self.call(id, era, params, out)?,
            _ => {
                let why = format!("there is no method {:?} here", shortened(method));
                return Err((write::METHOD_NOT_FOUND, why).into());
            }
        }
        Ok(())
    }

    fn initialize(
        &mut self,
        id: &RequestId,
        params: Option<&RawValue>,
        out: &mut Vec<Effect>,
    ) -> Result<(), Refusal> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Params {
            protocol_version: String,
        }
        if self.phase != Phase::Uninitialized {
            let why = "the server is already initialized";
            return Err((write::INVALID_REQUEST, why.to_owned()).into());
        }
        let params = params
            .and_then(|raw| serde_json::from_str::<Params>(raw.get()).ok())
            .ok_or_else(|| {
                let why = "initialize needs protocolVersion (a string)";
                (write::INVALID_PARAMS, why.to_owned())
            })?;
        // An unsupported version is answered with the newest supported one. The client decides
        // whether it accepts that.
        let wanted = VERSIONS
            .iter()
            .find(|item| **item == params.protocol_version);
        let version = wanted.or(VERSIONS.first()).copied().unwrap_or_default();
        self.phase = Phase::Initialized {
            has_batches: version == BATCH_VERSION,
        };
        let result = schema::initialize_result(version);
        out.push(write::result(id, Era::Handshake, result));
        Ok(())
    }

    fn call(
        &mut self,
        id: &RequestId,
        era: Era,
        params: Option<&RawValue>,
        out: &mut Vec<Effect>,
    ) -> Result<(), Refusal> {
        let call =
            arguments::read(params, &self.tools).map_err(|why| (write::INVALID_PARAMS, why))?;
        if self.open.len() >= TOOL_CALLS {
            let why = format!("{TOOL_CALLS} calls are in progress: wait for one to finish");
            return Err((write::INTERNAL, why).into());
        }
        self.last += 1;
        self.open.push(OpenCall {
            number: self.last,
            id: id.clone(),
            era,
        });
        out.push(Effect::Call {
            number: self.last,
            call: Box::new(call),
        });
        Ok(())
    }

    fn handle_notification(
        &mut self,
        method: &str,
        params: Option<&RawValue>,
        out: &mut Vec<Effect>,
    ) {
        // All other notifications change nothing here.
        if method != "notifications/cancelled" {
            return;
        }
        let at = params.and_then(message::parse_cancelled_id).and_then(|id| {
            let mut open = self.open.iter();
            open.position(|open| open.id == id)
        });
        if let Some(at) = at {
            let call = self.open.swap_remove(at);
            out.push(Effect::Cancelled(call.number));
        }
    }
}

/// How a request says its version. One that names a version must name ours and the client's
/// capabilities; `server/discover` has no other form.
fn requested_era(method: &str, params: Option<&RawValue>) -> Result<Era, Refusal> {
    let meta = params.map(message::request_meta).unwrap_or_default();
    let Some(version) = meta.version else {
        return match method {
            "server/discover" => {
                let why = format!("server/discover needs _meta with {VERSION_KEY:?}");
                Err((write::INVALID_PARAMS, why).into())
            }
            _ => Ok(Era::Handshake),
        };
    };
    if version != STATELESS_VERSION {
        return Err(Refusal {
            code: write::UNSUPPORTED_VERSION,
            why: "this version of the protocol is not supported without initialize".to_owned(),
            data: Some(json!({
                "supported": [STATELESS_VERSION],
                "requested": shortened(&version),
            })),
        });
    }
    if !meta.has_capabilities {
        let why = format!("a request needs _meta with {CAPABILITIES_KEY:?} (an object)");
        return Err((write::INVALID_PARAMS, why).into());
    }
    Ok(Era::Stateless)
}

fn shortened(text: &str) -> String {
    text.chars().take(64).collect()
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
