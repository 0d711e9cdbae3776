//! `acp`: an ACP agent on standard input and output, whose sessions are a supervisor's
//! conversations.
//!
//! Owns the editor's connection and its open sessions. Must not know what a supervisor does with
//! them: it uses the supervisor's socket, also for a fleet in this process.
//!
//! How things end:
//!
//! - The editor ends, by EOF or a kill: its connections end, turns are cancelled, requests are
//!   denied (`gone`), children are stopped and slots become free.
//! - `marshal acp` with its own fleet ends: the same, and its children die with it.
//! - The daemon is killed: the editor's prompts end with an error. The next start marks them
//!   `lost`, and the session can be loaded again.
//! - The editor does not read: the output queue is bounded. When it is full, the connection is not
//!   read any more, and the supervisor drops it after `CONVERSATION_WRITE_TIMEOUT`.

mod output;
mod session;
mod sessions;

pub(super) use output::read_chunks;

use std::io::{Read, Write};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use serde_json::json;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::supervisor_client::{Client, ClientError};
use marshal_engine::api::acp::incoming::{
    self, Incoming, ListParams, OpenParams, Params, PromptParams, RequestId, SessionParams,
    SetMode, SetOption,
};
use marshal_engine::api::acp::session_state::ClientCapabilities;
use marshal_engine::api::acp::{RpcError, content, outgoing};
use marshal_engine::api::v1::conversations::ConversationItem;
use marshal_model::limits;
use marshal_model::untrusted::escape_for_display;
use marshal_model::{PoolName, Setting, UntrustedText};
use marshal_wire::ndjson::LineDecoder;
use output::EditorOutput;
use sessions::{SessionCommand, Sessions};

/// The supervisor and the pool of an editor's sessions.
#[derive(Debug, Clone)]
pub struct SupervisorTarget {
    /// The state directory of the supervisor.
    pub state_dir: PathBuf,
    /// The pool whose slots run the sessions.
    pub pool: PoolName,
}

/// Why the editor's connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BridgeEnd {
    /// The editor closed the connection, or `stop` was cancelled.
    Closed,
    /// The editor sent a line that is too long.
    LineTooLong,
}

/// Shared parts of one editor's connection.
#[derive(Debug, Clone)]
struct EditorContext {
    target: Arc<SupervisorTarget>,
    output: EditorOutput,
    sessions: Arc<Sessions>,
    tasks: TaskTracker,
    /// The editor's capabilities, set by `initialize`.
    capabilities: Arc<OnceLock<ClientCapabilities>>,
    /// Cancelled when the editor is gone.
    editor_gone: CancellationToken,
}

/// Serves one editor until it disconnects or `stop` is cancelled.
pub async fn serve(
    place: SupervisorTarget,
    input: impl Read + Send + 'static,
    output: impl Write + Send + 'static,
    stop: CancellationToken,
) -> BridgeEnd {
    let editor_gone = stop.child_token();
    let (out, written) = EditorOutput::start(output, editor_gone.clone());
    let chunks = output::read_chunks(input);
    let context = EditorContext {
        target: Arc::new(place),
        output: out,
        sessions: Arc::new(Sessions::default()),
        tasks: TaskTracker::new(),
        capabilities: Arc::default(),
        editor_gone: editor_gone.clone(),
    };
    let ended = tokio::select! {
        ended = read_messages(&context, chunks) => ended,
        () = editor_gone.cancelled() => BridgeEnd::Closed,
    };
    // Tasks that wait for the supervisor or the editor stop, which ends their connections and
    // conversations.
    editor_gone.cancel();
    context.tasks.close();
    context.tasks.wait().await;
    drop(context);
    output::finish(written).await;
    ended
}

/// Reads messages until the editor closes the connection.
async fn read_messages(context: &EditorContext, mut chunks: mpsc::Receiver<Vec<u8>>) -> BridgeEnd {
    let mut lines = LineDecoder::new(limits::EDITOR_LINE_BYTES);
    let mut greeted = false;
    while let Some(chunk) = chunks.recv().await {
        lines.push(chunk);
        for line in lines.by_ref() {
            let Ok(line) = line else {
                let message = format!(
                    "a line is longer than {} bytes; the connection ends",
                    limits::EDITOR_LINE_BYTES
                );
                let error = RpcError::new(RpcError::INVALID_REQUEST, message);
                context
                    .output
                    .send(outgoing::error_reply(None, &error))
                    .await;
                return BridgeEnd::LineTooLong;
            };
            context.line(&line, &mut greeted).await;
        }
    }
    BridgeEnd::Closed
}

impl EditorContext {
    async fn line(&self, line: &[u8], greeted: &mut bool) {
        match incoming::read(line) {
            Ok(Incoming::Request { id, method, params }) => {
                if method == "initialize" {
                    *greeted = true;
                    // Only the first `initialize` sets the capabilities.
                    let _ = self
                        .capabilities
                        .set(incoming::client_capabilities(&params));
                    self.output.send(outgoing::initialize_reply(&id)).await;
                } else if *greeted {
                    self.request(id, &method, &params).await;
                } else {
                    let error = RpcError::new(
                        RpcError::INVALID_REQUEST,
                        "the first request must be initialize",
                    );
                    self.fail(&id, &error).await;
                }
            }
            Ok(Incoming::Notification { method, params }) => {
                self.handle_notification(&method, &params);
            }
            Ok(Incoming::Reply { id, outcome }) => {
                self.sessions
                    .deliver_answer(id, incoming::parse_permission_answer(outcome.as_deref()));
            }
            Err(bad) => {
                let reply = outgoing::error_reply(bad.id.as_ref(), &bad.error);
                self.output.send(reply).await;
            }
        }
    }

    async fn fail(&self, id: &RequestId, error: &RpcError) {
        self.output
            .send(outgoing::error_reply(Some(id), error))
            .await;
    }

    async fn request(&self, id: RequestId, method: &str, params: &Params) {
        let served = match method {
            "session/new" => self.open(&id, params, session::OpenMode::New),
            "session/load" => self.open(&id, params, session::OpenMode::Load),
            "session/resume" => self.open(&id, params, session::OpenMode::Resume),
            "session/prompt" => self.prompt(&id, params),
            "session/close" => self.close(&id, params),
            "session/delete" => self.delete(&id, params),
            "session/list" => self.list(&id, params),
            "authenticate" => Err(RpcError::invalid_params(
                "this agent has no authentication methods",
            )),
            "session/set_mode" => self.set_mode(&id, params),
            "session/set_config_option" => self.set_option(&id, params),
            other => Err(RpcError::new(
                RpcError::METHOD_NOT_FOUND,
                format!("there is no method {}", escape_for_display(other, 80)),
            )),
        };
        if let Err(error) = served {
            self.fail(&id, &error).await;
        }
    }

    fn handle_notification(&self, method: &str, params: &Params) {
        // The protocol requires that unknown notifications are ignored.
        if method == "session/cancel"
            && let Ok(of) = params.read::<SessionParams>()
        {
            self.sessions.cancel(&of.session_id);
        }
    }

    fn open(
        &self,
        id: &RequestId,
        params: &Params,
        how: session::OpenMode,
    ) -> Result<(), RpcError> {
        let open: OpenParams = params.read()?;
        let directory = open.directory()?;
        let additional_directories = open.additional_directories()?.to_vec();
        let session = match how {
            session::OpenMode::New => None,
            session::OpenMode::Load | session::OpenMode::Resume => Some(open.session()?),
        };
        if let Some(session) = &session
            && self.sessions.has(session.as_str())
        {
            return Err(RpcError::invalid_params(format!(
                "session {session} is open already; close it first"
            )));
        }
        let place = self.sessions.reserve()?;
        let opening = session::OpenRequest {
            id: id.clone(),
            directory,
            additional_directories,
            session,
            mode: how,
            permit: place,
        };
        self.tasks.spawn(session::run(self.clone(), opening));
        Ok(())
    }

    fn prompt(&self, id: &RequestId, params: &Params) -> Result<(), RpcError> {
        let prompt: PromptParams = params.read()?;
        let session = self.sessions.find(&prompt.session_id)?;
        let text = content::prompt_text(&prompt.prompt, session.directory())?;
        session.send(SessionCommand::Prompt {
            id: id.clone(),
            text,
        })
    }

    fn set_mode(&self, id: &RequestId, params: &Params) -> Result<(), RpcError> {
        let set: SetMode = params.read()?;
        self.set(id, &set.session_id, set.setting())
    }

    fn set_option(&self, id: &RequestId, params: &Params) -> Result<(), RpcError> {
        let set: SetOption = params.read()?;
        self.set(id, &set.session_id, set.setting())
    }

    fn set(
        &self,
        id: &RequestId,
        session: &str,
        setting: Result<Setting, RpcError>,
    ) -> Result<(), RpcError> {
        let session = self.sessions.find(session)?;
        session.send(SessionCommand::Set {
            id: id.clone(),
            setting: setting?,
        })
    }

    fn close(&self, id: &RequestId, params: &Params) -> Result<(), RpcError> {
        let of: SessionParams = params.read()?;
        let session = self.sessions.find(&of.session_id)?;
        session.send(SessionCommand::Close { id: id.clone() })
    }

    /// Deletes a session that is not open here. Its other editors are asked by the supervisor.
    fn delete(&self, id: &RequestId, params: &Params) -> Result<(), RpcError> {
        let of: SessionParams = params.read()?;
        if self.sessions.has(&of.session_id) {
            return Err(RpcError::new(
                RpcError::INVALID_REQUEST,
                "the session is open; close it first",
            ));
        }
        let (context, id) = (self.clone(), id.clone());
        let place = self.sessions.reserve()?;
        self.tasks.spawn(async move {
            let client = Client::new(&context.target.state_dir);
            let result = tokio::select! {
                result = client.delete_conversation(&context.target.pool, &of.session_id) => result,
                () = context.editor_gone.cancelled() => return,
            };
            match result {
                Ok(()) => context.output.send(outgoing::reply(&id, &json!({}))).await,
                Err(error) => context.fail(&id, &rpc(&error)).await,
            }
            drop(place);
        });
        Ok(())
    }

    fn list(&self, id: &RequestId, params: &Params) -> Result<(), RpcError> {
        let list: ListParams = params.read()?;
        let (context, id) = (self.clone(), id.clone());
        let place = self.sessions.reserve()?;
        self.tasks.spawn(async move {
            let client = Client::new(&context.target.state_dir);
            let result = tokio::select! {
                result = client.conversations(&context.target.pool, list.cursor.as_deref()) => result,
                () = context.editor_gone.cancelled() => return,
            };
            match result {
                Ok((items, next)) => {
                    let result = page(&items, next, list.cwd.as_deref());
                    context.output.send(outgoing::reply(&id, &result)).await;
                }
                Err(error) => context.fail(&id, &rpc(&error)).await,
            }
            drop(place);
        });
        Ok(())
    }
}

/// One page of `session/list`.
fn page(found: &[ConversationItem], next: Option<String>, cwd: Option<&str>) -> serde_json::Value {
    let shown = |of: &&ConversationItem| cwd.is_none_or(|cwd| cwd == of.directory);
    let session = |of: &ConversationItem| {
        let mut session = json!({"sessionId": of.session, "cwd": of.directory});
        let title = of.title.as_deref().map(UntrustedText::from);
        if let Some(title) = title.as_ref().and_then(incoming::session_title) {
            session["title"] = title.into();
        }
        session["updatedAt"] = of.prompted_at.to_string().into();
        session
    };
    let sessions: Vec<_> = found.iter().filter(shown).map(session).collect();
    let mut result = json!({ "sessions": sessions });
    if let Some(next) = next {
        result["nextCursor"] = next.into();
    }
    result
}

/// Converts an error of the supervisor's client into an error of the protocol.
fn rpc(error: &ClientError) -> RpcError {
    match error {
        ClientError::Refused { status, .. } => {
            let code = match status.as_u16() {
                400 | 422 => RpcError::INVALID_PARAMS,
                404 => RpcError::RESOURCE_NOT_FOUND,
                _ => RpcError::INTERNAL_ERROR,
            };
            RpcError::new(code, error.to_string())
        }
        other => RpcError::internal_error(other.to_string()),
    }
}
