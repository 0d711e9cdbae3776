//! The engine tools of the agent: the socket inside its sandbox, and the calls that arrive on it.
//!
//! A call is handled like a client request (`client.rs`): evaluated, made durable, then carried out
//! in the same sandbox. Must not know rules, nor the protocol's messages.
//!
//! The key of such a call has the highest bit of its serial set. So its answer goes to the
//! connection, not to the dialect.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::client::{PendingCall, PendingReply};
use super::files::FileAction;
use super::state::ChannelState;
use crate::credit::CreditPermit;
use crate::messages::{ChannelEvent, ChannelMsg, ChannelRef};
use marshal_model::limits::CLIENT_OPEN_BYTES;
use marshal_model::{
    AgentClaims, ClientError, ClientErrorKind, ClientOutput, ClientRequest, EngineCall,
    EngineOutput, EngineResult, EngineTool, Event, EventKind, PermissionRequest,
    PermissionRequestKey, TaskId,
};
use marshal_proxy::tool_server::{Socket, ToolCallEvent, ToolServer};

/// Marks the serial numbers of tool calls: requests of the agent's protocol count from 1.
const ENGINE_CALL_BIT: u64 = 1 << 63;

/// The engine tools of an agent, and their socket.
#[derive(Debug, Clone)]
pub(crate) struct ToolSetup {
    /// The socket's file, on the host.
    pub(crate) path: PathBuf,
    /// The uid that may connect.
    pub(crate) uid: u32,
    /// The tools.
    pub(crate) tools: Vec<EngineTool>,
}

/// The tool server of one child, and the calls that wait for their answers.
#[derive(Debug, Default)]
pub(super) struct EngineTools {
    server: Option<ToolServer>,
    open: BTreeMap<u64, OpenCall>,
    /// Bytes of the texts of all open calls together.
    open_bytes: usize,
}

#[derive(Debug)]
struct OpenCall {
    tool: EngineTool,
    /// The reply if the call succeeds.
    done: String,
    bytes: usize,
    reply: oneshot::Sender<EngineResult>,
}

impl EngineTools {
    fn close_call(&mut self, number: u64) -> Option<OpenCall> {
        let open = self.open.remove(&number)?;
        self.open_bytes = self.open_bytes.saturating_sub(open.bytes);
        Some(open)
    }

    /// Drops the server and all open calls of a child that is gone.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

/// Whether a request is a call of an engine tool.
pub(super) const fn is_engine_call(key: &PermissionRequestKey) -> bool {
    key.serial & ENGINE_CALL_BIT != 0
}

fn key(number: u64) -> PermissionRequestKey {
    PermissionRequestKey {
        id: format!("marshal:{number}"),
        serial: ENGINE_CALL_BIT | number,
    }
}

impl ChannelState {
    /// Serves the tools on the socket as long as the child runs.
    pub(super) fn serve_tools(&mut self, socket: Socket, myself: &ChannelRef) {
        let Some(clients) = &mut self.client_requests else {
            return;
        };
        let Some(setup) = clients.tool_setup().cloned() else {
            return;
        };
        let to = myself.clone();
        let notify = Arc::new(move |event| {
            let _ = to.send_message(ChannelMsg::ToolCallEvent(Box::new(event)));
        });
        match ToolServer::start(socket, setup.tools, setup.uid, notify) {
            Ok(server) => clients.tools.server = Some(server),
            Err(error) => {
                tracing::error!(slot = %self.slot, %error, "the tool server did not start");
            }
        }
    }

    /// Handles a tool call, or the end of one that its caller abandoned.
    pub(super) fn handle_tool_call_event(&mut self, event: ToolCallEvent, now: Instant) {
        match event {
            ToolCallEvent::Call {
                number,
                call,
                reply,
                permit,
            } => {
                if let Err((error, reply)) = self.handle_tool_call(number, call, reply, permit) {
                    let _ = reply.send(Err(error));
                }
            }
            ToolCallEvent::Abandoned(number) => {
                let key = key(number);
                let Some(clients) = &mut self.client_requests else {
                    return;
                };
                clients.withdraw(&key);
                if clients.tools.close_call(number).is_some() {
                    self.request_closed(&key, now);
                    self.send(vec![ChannelEvent::Withdrawn(key)], None);
                }
            }
        }
    }

    fn handle_tool_call(
        &mut self,
        number: u64,
        call: Box<EngineCall>,
        reply: oneshot::Sender<EngineResult>,
        permit: OwnedSemaphorePermit,
    ) -> Result<(), (ClientError, oneshot::Sender<EngineResult>)> {
        let error = |fault, why: &str| ClientError::new(fault, why);
        if !self.in_turn || self.ladder.has_begun() || self.ended.is_some() {
            let why = "no turn is running: tools can be called only during a turn";
            return Err((error(ClientErrorKind::Denied, why), reply));
        }
        let Some(clients) = &mut self.client_requests else {
            return Err((
                error(ClientErrorKind::Failed, "this pool offers no tools"),
                reply,
            ));
        };
        let text_bytes = call.text_bytes();
        if clients.tools.open_bytes + text_bytes > CLIENT_OPEN_BYTES {
            let why = "too much text is waiting to be written: wait until one of the open calls has ended";
            return Err((error(ClientErrorKind::Failed, why), reply));
        }
        let request = call.policy_request();
        let input = serde_json::value::to_raw_value(&request.arguments)
            .unwrap_or_else(|_| marshal_wire::json::null_value());
        let key = key(number);
        let agent_request = PermissionRequest {
            key: key.clone(),
            tool_id: None,
            tool: request.tool.record_name().into(),
            input,
            claims: AgentClaims::default(),
        };
        clients.tools.open_bytes += text_bytes;
        clients.tools.open.insert(
            number,
            OpenCall {
                tool: request.tool,
                done: describe_success(&call),
                bytes: text_bytes,
                reply,
            },
        );
        clients
            .undecided
            .push((key.clone(), PendingCall::Tool(call)));
        self.request_opened(&key);
        self.pool
            .meters
            .record_event(EventKind::PermissionRequested);
        let call = ClientRequest::Tool(Box::new(request));
        let permission_request = Box::new(agent_request);
        self.send(
            vec![ChannelEvent::ClientRequest {
                permission_request,
                request: call,
            }],
            Some(CreditPermit::for_tool_call(permit)),
        );
        Ok(())
    }

    /// The verdict is durable: carries the call out. `place` is the path of the file, or the
    /// approver's answer.
    pub(super) fn tool_call_decided(
        &mut self,
        key: PermissionRequestKey,
        call: EngineCall,
        place: String,
        (task, myself): (&TaskId, &ChannelRef),
        now: Instant,
    ) {
        let tool = call.tool().as_str();
        let (path, act) = match call {
            EngineCall::Write {
                path,
                content: text,
                base,
            } => (path, FileAction::Write { text, base }),
            EngineCall::Edit { path, edit, base } => (path, FileAction::Edit { edit, base }),
            EngineCall::Read { path, line, limit } => (path, FileAction::Read { line, limit }),
            EngineCall::Ask { .. } => {
                let reply = PendingReply::Ready(Ok(ClientOutput::Text(place)));
                return self.queue_client_reply(key, reply, now);
            }
            EngineCall::Step { step, status } => {
                let step = step.into();
                self.send_event(Event::PlanStep { step, status }, None);
                return self.queue_client_reply(
                    key,
                    PendingReply::Ready(Ok(ClientOutput::Empty)),
                    now,
                );
            }
        };
        let Some(clients) = &mut self.client_requests else {
            return;
        };
        if let Some(work) = clients.file_work((tool, path), &place, act, task) {
            clients.queue_file(key, work);
            return self.start_waiting_files(myself);
        }
        let why = "the path that the policy evaluated is not in the workspace";
        let error = ClientError::new(ClientErrorKind::Failed, why);
        self.queue_client_reply(key, PendingReply::Ready(Err(error)), now);
    }

    /// Answers a tool call.
    pub(super) fn reply_to_tool_call(&mut self, key: &PermissionRequestKey, reply: PendingReply) {
        let Some(clients) = &mut self.client_requests else {
            return;
        };
        let answer = match reply {
            PendingReply::Ready(answer) => answer,
            PendingReply::File(answer) => {
                clients.release_file();
                answer
            }
            // Tools have no terminals.
            PendingReply::Output(_) => return,
        };
        let Some(open) = clients.tools.close_call(key.serial & !ENGINE_CALL_BIT) else {
            return;
        };
        let answer = match answer {
            Ok(ClientOutput::Text(text)) => Ok(text.into()),
            Ok(ClientOutput::Read { text, version: v }) => Ok(EngineOutput {
                text,
                version: Some(v),
            }),
            Ok(ClientOutput::Written(v)) => Ok(EngineOutput {
                text: format!("{}; it is version {v} now", open.done),
                version: Some(v),
            }),
            Ok(_) => Ok(open.done.into()),
            Err(error) => Err(error),
        };
        if open.reply.send(answer).is_err() {
            tracing::debug!(slot = %self.slot, tool = %open.tool, "the caller of a tool is gone; the answer is dropped");
        }
    }
}

/// The reply to a call that succeeded.
fn describe_success(call: &EngineCall) -> String {
    match call {
        EngineCall::Write { path, content, .. } => {
            format!("{path} was written: {} bytes", content.len())
        }
        EngineCall::Edit { path, .. } => format!("{path} was changed"),
        EngineCall::Step { status, .. } => format!("noted as {status}"),
        EngineCall::Read { .. } | EngineCall::Ask { .. } => String::new(),
    }
}
