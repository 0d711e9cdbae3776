//! The tools that we give to the agent: the socket inside its walls, and the calls that come by it.
//!
//! A call is a request like one to the client (`client.rs`): judged, durable, then carried out behind
//! the same walls. Must not know rules, nor how the protocol says any of this.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::client::{Reply, Wanted};
use super::files::Act;
use super::state::ChannelState;
use super::{ChannelMsg, ChannelRef};
use crate::fleet::credit::Hold;
use crate::fleet::session::Item;
use crate::limits::CLIENT_OPEN_BYTES;
use crate::model::{
    Ask, AskKey, Claimed, ClientDone, ClientError, ClientFault, ClientWish, EngineAnswer,
    EngineCall, EngineDone, EngineTool, Event, EventKind, TaskId,
};
use crate::toolserver::{Said, Socket, ToolServer};

/// What marks the serial numbers of calls: requests by the agent's own protocol count from 1.
const OURS: u64 = 1 << 63;

/// Which tools an agent gets, and where they are.
#[derive(Debug, Clone)]
pub(crate) struct ToolSetup {
    /// The socket's file, on the host.
    pub(crate) path: PathBuf,
    /// Who may connect.
    pub(crate) uid: u32,
    /// The tools.
    pub(crate) tools: Vec<EngineTool>,
}

/// The server of one child's tools, and the calls that wait for their answers.
#[derive(Debug, Default)]
pub(super) struct Tools {
    server: Option<ToolServer>,
    open: BTreeMap<u64, Open>,
    /// Texts of all of them together, in bytes.
    held: usize,
}

#[derive(Debug)]
struct Open {
    tool: EngineTool,
    /// What is said of it when it was carried out.
    done: String,
    held: usize,
    reply: oneshot::Sender<EngineAnswer>,
}

impl Tools {
    fn close(&mut self, number: u64) -> Option<Open> {
        let open = self.open.remove(&number)?;
        self.held = self.held.saturating_sub(open.held);
        Some(open)
    }

    /// The child is gone: nobody can call, or be answered.
    pub(super) fn end(&mut self) {
        *self = Self::default();
    }
}

/// Whether a request is a call of a tool of ours.
pub(super) const fn is_ours(key: &AskKey) -> bool {
    key.serial & OURS != 0
}

fn key(number: u64) -> AskKey {
    AskKey {
        id: format!("marshal:{number}"),
        serial: OURS | number,
    }
}

impl ChannelState {
    /// The socket is there: it is served as long as the child lives.
    pub(super) fn tool_socket(&mut self, socket: Socket, myself: &ChannelRef) {
        let Some(clients) = &mut self.clients else {
            return;
        };
        let Some(setup) = clients.tool_setup().cloned() else {
            return;
        };
        let to = myself.clone();
        let tell = Arc::new(move |said| {
            let _ = to.send_message(ChannelMsg::Tool(Box::new(said)));
        });
        match ToolServer::start(socket, setup.tools, setup.uid, tell) {
            Ok(server) => clients.tools.server = Some(server),
            Err(error) => tracing::error!(slot = %self.slot, %error, "the tools are not served"),
        }
    }

    /// The agent calls a tool, or waits for a call no more.
    pub(super) fn tool_said(&mut self, said: Said, now: Instant) {
        match said {
            Said::Call {
                number,
                call,
                reply,
                room,
            } => {
                if let Err((error, reply)) = self.tool_called(number, call, reply, room) {
                    let _ = reply.send(Err(error));
                }
            }
            Said::Gone(number) => {
                let key = key(number);
                let Some(clients) = &mut self.clients else {
                    return;
                };
                clients.withdrawn(&key);
                if clients.tools.close(number).is_some() {
                    self.ask_closed(&key, now);
                    self.send(vec![Item::Withdrawn(key)], None);
                }
            }
        }
    }

    fn tool_called(
        &mut self,
        number: u64,
        call: Box<EngineCall>,
        reply: oneshot::Sender<EngineAnswer>,
        room: OwnedSemaphorePermit,
    ) -> Result<(), (ClientError, oneshot::Sender<EngineAnswer>)> {
        let refused = |fault, why: &str| ClientError::new(fault, why);
        if !self.in_turn || self.ladder.has_begun() || self.ended.is_some() {
            let why = "no turn is running: tools are for turns";
            return Err((refused(ClientFault::Denied, why), reply));
        }
        let Some(clients) = &mut self.clients else {
            return Err((refused(ClientFault::Failed, "there are no tools"), reply));
        };
        let held = call.held();
        if clients.tools.held + held > CLIENT_OPEN_BYTES {
            let why = "too much text is waiting to be written: wait for one of the calls";
            return Err((refused(ClientFault::Failed, why), reply));
        }
        let wish = call.wish();
        let input = serde_json::value::to_raw_value(&wish.arguments)
            .unwrap_or_else(|_| crate::wire::json::null());
        let key = key(number);
        let ask = Ask {
            key: key.clone(),
            tool_id: None,
            tool: wish.tool.recorded().into(),
            input,
            claimed: Claimed::default(),
        };
        clients.tools.held += held;
        clients.tools.open.insert(
            number,
            Open {
                tool: wish.tool,
                done: done(&call),
                held,
                reply,
            },
        );
        clients.judging.push((key.clone(), Wanted::Tool(call)));
        self.ask_opened(&key);
        self.pool.meters.event(EventKind::Asked);
        let wish = ClientWish::Tool(Box::new(wish));
        let ask = Box::new(ask);
        self.send(vec![Item::Client { ask, wish }], Some(Hold::of_call(room)));
        Ok(())
    }

    /// The verdict is durable: the call is carried out. `place` is the file's, or what a person said.
    pub(super) fn tool_judged(
        &mut self,
        key: AskKey,
        call: EngineCall,
        place: String,
        (task, myself): (&TaskId, &ChannelRef),
        now: Instant,
    ) {
        let tool = call.tool().word();
        let (path, act) = match call {
            EngineCall::Write {
                path,
                content: text,
                base,
            } => (path, Act::Write { text, base }),
            EngineCall::Edit { path, edit, base } => (path, Act::Edit { edit, base }),
            EngineCall::Read { path, line, limit } => (path, Act::Read { line, limit }),
            EngineCall::Ask { .. } => {
                let said = Reply::Ready(Ok(ClientDone::Text(place)));
                return self.client_reply(key, said, now);
            }
            EngineCall::Step { step, status } => {
                let step = step.into();
                self.client_event(Event::PlanStep { step, status }, None);
                return self.client_reply(key, Reply::Ready(Ok(ClientDone::Nothing)), now);
            }
        };
        let Some(clients) = &mut self.clients else {
            return;
        };
        if let Some(work) = clients.file_work((tool, path), &place, act, task) {
            clients.file_waits(key, work);
            return self.client_files(myself);
        }
        let why = "the place that was judged is not in the workspace";
        let error = ClientError::new(ClientFault::Failed, why);
        self.client_reply(key, Reply::Ready(Err(error)), now);
    }

    /// Answers a call.
    pub(super) fn tool_reply(&mut self, key: &AskKey, reply: Reply) {
        let Some(clients) = &mut self.clients else {
            return;
        };
        let answer = match reply {
            Reply::Ready(answer) => answer,
            Reply::File(answer) => {
                clients.file_done();
                answer
            }
            // No tool has terminals.
            Reply::Output(_) => return,
        };
        let Some(open) = clients.tools.close(key.serial & !OURS) else {
            return;
        };
        let answer = match answer {
            Ok(ClientDone::Text(text)) => Ok(text.into()),
            Ok(ClientDone::Read { text, v }) => Ok(EngineDone {
                text,
                version: Some(v),
            }),
            Ok(ClientDone::Written(v)) => Ok(EngineDone {
                text: format!("{}; it is version {v} now", open.done),
                version: Some(v),
            }),
            Ok(_) => Ok(open.done.into()),
            Err(error) => Err(error),
        };
        if open.reply.send(answer).is_err() {
            tracing::debug!(slot = %self.slot, tool = %open.tool, "nobody waits for a tool's answer");
        }
    }
}

/// What is said of a call that was carried out.
fn done(call: &EngineCall) -> String {
    match call {
        EngineCall::Write { path, content, .. } => {
            format!("{path} was written: {} bytes", content.len())
        }
        EngineCall::Edit { path, .. } => format!("{path} was changed"),
        EngineCall::Step { status, .. } => format!("noted as {status}"),
        EngineCall::Read { .. } | EngineCall::Ask { .. } => String::new(),
    }
}
