//! The tool server that an agent gets of its supervisor: the Model Context Protocol as a state
//! machine without IO, one for each connection.
//!
//! Floor 2. Owns what is said and in which order: lines go in, [`Effect`]s come out. Must not know
//! sockets, files, policies, or what becomes of a call: that comes back as its answer.
//!
//! Source: Model Context Protocol, its versions of [`VERSIONS`], over standard input and output:
//! JSON-RPC 2.0, one message a line.

mod arguments;
mod message;
mod schema;
mod write;

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use marshal_model::limits::{TOOL_BATCH, TOOL_CALLS};
use marshal_model::{ENGINE_SERVER, EngineCall, EngineRequest, EngineResult, EngineTool};
use message::{Id, Message};
pub use write::{INTERNAL, error_line};

/// What would be judged of a call of this tool, if it is one of these and its arguments fit.
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

/// The versions of the protocol that are spoken, newest first.
pub const VERSIONS: &[&str] = &["2025-11-25", "2025-06-18", BATCH_VERSION, "2024-11-05"];
/// The one of them in which messages may come in batches.
const BATCH_VERSION: &str = "2025-03-26";

/// What the server wants done, in order.
#[derive(Debug, PartialEq, Eq)]
pub enum Effect {
    /// Write this line, its newline included.
    Write(Vec<u8>),
    /// A tool is called; its answer goes to [`Server::answered`] under this number.
    Call {
        /// The call's number on this connection.
        number: u64,
        /// What is called.
        call: Box<EngineCall>,
    },
    /// The call of this number is not waited for any more, and gets no answer.
    Cancelled(u64),
}

/// How far a connection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Nothing was agreed upon.
    Uninitialized,
    /// A version was; it is one that has batches, or not.
    Initialized { has_batches: bool },
}

/// One connection's server.
#[derive(Debug)]
pub struct Server {
    tools: Vec<EngineTool>,
    phase: Phase,
    /// The calls under way; at most [`TOOL_CALLS`].
    open: Vec<(u64, Id)>,
    last: u64,
}

impl Server {
    /// A server of these tools, to which nothing was said yet.
    #[must_use]
    pub fn new(tools: &[EngineTool]) -> Self {
        Self {
            tools: tools.to_vec(),
            phase: Phase::Uninitialized,
            open: Vec::new(),
            last: 0,
        }
    }

    /// Calls that are under way.
    #[must_use]
    pub fn open(&self) -> usize {
        self.open.len()
    }

    /// A line came, without its newline.
    pub fn handle_line(&mut self, line: &[u8], out: &mut Vec<Effect>) {
        let Some(text) = message::text(line) else {
            let why = "the line is no JSON";
            return out.push(write::error(None, write::PARSE, why));
        };
        if !text.trim_ascii_start().starts_with('[') {
            return self.handle_message(text, out);
        }
        let Ok(batch) = serde_json::from_str::<Vec<&RawValue>>(text) else {
            return out.push(write::error(None, write::PARSE, "the line is no JSON"));
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
            _ => "this version of the protocol has no batches: send one message a line",
        };
        out.push(write::error(None, write::INVALID_REQUEST, why));
    }

    /// A line was longer than any may be; nothing can come after it.
    pub fn reject_long_line(&mut self, out: &mut Vec<Effect>) {
        let why = "the line is longer than a message may be; the connection ends";
        out.push(write::error(None, write::INVALID_REQUEST, why));
    }

    /// A call was carried out, or was not. One that nobody waits for any more gets no answer.
    pub fn answer_call(&mut self, number: u64, answer: &EngineResult, out: &mut Vec<Effect>) {
        let at = self.open.iter().position(|(open, _)| *open == number);
        if let Some(at) = at {
            let (_, id) = self.open.swap_remove(at);
            out.push(write::call_result(&id, answer));
        }
    }

    fn handle_message(&mut self, text: &str, out: &mut Vec<Effect>) {
        match message::read(text) {
            Ok(Message::Request { id, method, params }) => {
                let done = self.handle_request(&id, &method, params, out);
                if let Err((code, why)) = done {
                    out.push(write::error(Some(&id), code, &why));
                }
            }
            Ok(Message::Notification { method, params }) => {
                self.handle_notification(&method, params, out);
            }
            // Nothing was asked.
            Ok(Message::Reply) => {}
            Err(why) => out.push(write::error(None, write::INVALID_REQUEST, why)),
        }
    }

    fn handle_request(
        &mut self,
        id: &Id,
        method: &str,
        params: Option<&RawValue>,
        out: &mut Vec<Effect>,
    ) -> Result<(), (i32, String)> {
        if self.open.iter().any(|(_, open)| open == id) {
            let why = "a request with this id is under way";
            return Err((write::INVALID_REQUEST, why.to_owned()));
        }
        match method {
            "ping" => out.push(write::result(id, &write::Nothing {})),
            "initialize" => self.initialize(id, params, out)?,
            _ if self.phase == Phase::Uninitialized => {
                let why =
                    format!("the server is not initialised: {method:.64} came before initialize");
                return Err((write::INVALID_REQUEST, why));
            }
            "tools/list" => {
                arguments::reject_cursor(params).map_err(|why| (write::INVALID_PARAMS, why))?;
                out.push(write::result(id, &schema::list(&self.tools)));
            }
            "tools/call" => self.call(id, params, out)?,
            _ => {
                let why = format!("there is no method {:?} here", shortened(method));
                return Err((write::METHOD_NOT_FOUND, why));
            }
        }
        Ok(())
    }

    fn initialize(
        &mut self,
        id: &Id,
        params: Option<&RawValue>,
        out: &mut Vec<Effect>,
    ) -> Result<(), (i32, String)> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Params {
            protocol_version: String,
        }
        if self.phase != Phase::Uninitialized {
            let why = "the server is initialised already";
            return Err((write::INVALID_REQUEST, why.to_owned()));
        }
        let params = params.and_then(|raw| serde_json::from_str::<Params>(raw.get()).ok());
        let params = params.ok_or_else(|| {
            let why = "initialize needs protocolVersion, a text";
            (write::INVALID_PARAMS, why.to_owned())
        })?;
        // What is not spoken is answered with the newest that is; whether that will do is for the
        // other side to say.
        let wanted = VERSIONS.iter().find(|of| **of == params.protocol_version);
        let version = wanted.or(VERSIONS.first()).copied().unwrap_or_default();
        self.phase = Phase::Initialized {
            has_batches: version == BATCH_VERSION,
        };
        out.push(write::result(
            id,
            &schema::initialize_result(version, ENGINE_SERVER),
        ));
        Ok(())
    }

    fn call(
        &mut self,
        id: &Id,
        params: Option<&RawValue>,
        out: &mut Vec<Effect>,
    ) -> Result<(), (i32, String)> {
        let call = arguments::read(params, &self.tools);
        let call = call.map_err(|why| (write::INVALID_PARAMS, why))?;
        if self.open.len() >= TOOL_CALLS {
            let why = format!("{TOOL_CALLS} calls are under way: wait for one of them");
            return Err((write::INTERNAL, why));
        }
        self.last += 1;
        self.open.push((self.last, id.clone()));
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
        // All others change nothing here.
        if method != "notifications/cancelled" {
            return;
        }
        let at = params.and_then(message::parse_cancelled_id).and_then(|id| {
            let mut open = self.open.iter();
            open.position(|(_, open)| *open == id)
        });
        if let Some(at) = at {
            let (number, _) = self.open.swap_remove(at);
            out.push(Effect::Cancelled(number));
        }
    }
}

fn shortened(text: &str) -> String {
    text.chars().take(64).collect()
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
