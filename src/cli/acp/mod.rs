//! `acp`: an ACP agent on standard input and output, whose sessions are a supervisor's conversations.
//!
//! Owns the editor's connection and which sessions it has open. Must not know what a supervisor
//! does with them: it speaks to one over its control socket, to its own as to any other.
//!
//! What ends what:
//!
//! - The editor ends, by EOF or a kill: its connections end, turns are cancelled, requests are denied
//!   (`gone`), children are stopped and slots are free.
//! - `marshal acp` with a fleet of its own ends: the same, and its children die with it.
//! - The daemon is killed: the editor's prompts end with an error. The next start ends them `lost`, and the
//!   session can be loaded.
//! - An editor reads nothing: what waits for it has a bound. Then its connection is not read any more, and
//!   the supervisor drops it after `CONTROL_TIMEOUT`.

mod output;
mod session;
mod sessions;

use std::io::{Read, Write};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use serde_json::json;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::control_client::{Client, ClientError};
use marshal_engine::api::acp::incoming::{
    self, Incoming, ListParams, OpenParams, Params, PromptParams, RequestId, SessionParams,
    SetMode, SetOption,
};
use marshal_engine::api::acp::session_state::ClientCapabilities;
use marshal_engine::api::acp::{RpcError, content, outgoing};
use marshal_engine::api::reply::ConversationLine;
use marshal_engine::api::request::Code;
use marshal_model::limits;
use marshal_model::untrusted::escape_for_display;
use marshal_model::{PoolName, Setting, UntrustedText};
use marshal_wire::ndjson::LineDecoder;
use output::EditorOutput;
use sessions::{SessionCommand, Sessions};

/// Whom an editor's sessions come from.
#[derive(Debug, Clone)]
pub struct SupervisorTarget {
    /// The state directory of the supervisor.
    pub state_dir: PathBuf,
    /// The pool.
    pub pool: PoolName,
}

/// Why the editor's connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// It closed its end, or was asked to.
    Closed,
    /// It sent a line without an end.
    LineTooLong,
}

/// What every part of one editor's connection needs.
#[derive(Debug, Clone)]
struct EditorContext {
    target: Arc<SupervisorTarget>,
    output: EditorOutput,
    sessions: Arc<Sessions>,
    tasks: TaskTracker,
    /// What the editor understands, once it has greeted.
    capabilities: Arc<OnceLock<ClientCapabilities>>,
    /// The editor is gone.
    editor_gone: CancellationToken,
}

/// Serves one editor until it goes, or `stop`.
pub async fn serve(
    place: SupervisorTarget,
    input: impl Read + Send + 'static,
    output: impl Write + Send + 'static,
    stop: CancellationToken,
) -> Ended {
    let gone = stop.child_token();
    let (out, written) = EditorOutput::start(output, gone.clone());
    let chunks = output::read(input);
    let desk = EditorContext {
        target: Arc::new(place),
        output: out,
        sessions: Arc::new(Sessions::default()),
        tasks: TaskTracker::new(),
        capabilities: Arc::default(),
        editor_gone: gone.clone(),
    };
    let ended = tokio::select! {
        ended = read_messages(&desk, chunks) => ended,
        () = gone.cancelled() => Ended::Closed,
    };
    // Whoever waits for the supervisor or for the editor stops waiting: connections end, and with
    // them the conversations.
    gone.cancel();
    desk.tasks.close();
    desk.tasks.wait().await;
    drop(desk);
    output::finish(written).await;
    ended
}

/// Reads until the editor closes its end.
async fn read_messages(desk: &EditorContext, mut chunks: mpsc::Receiver<Vec<u8>>) -> Ended {
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
                desk.output.send(outgoing::error_reply(None, &error)).await;
                return Ended::LineTooLong;
            };
            desk.line(&line, &mut greeted).await;
        }
    }
    Ended::Closed
}

impl EditorContext {
    async fn line(&self, line: &[u8], greeted: &mut bool) {
        match incoming::read(line) {
            Ok(Incoming::Request { id, method, params }) => {
                if method == "initialize" {
                    *greeted = true;
                    // Whoever greets twice is taken by the first word.
                    let _ = self
                        .capabilities
                        .set(incoming::client_capabilities(&params));
                    self.output.send(outgoing::initialize_reply(&id)).await;
                } else if *greeted {
                    self.request(id, &method, &params).await;
                } else {
                    let error = RpcError::new(RpcError::INVALID_REQUEST, "initialize comes first");
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
                let told = outgoing::error_reply(bad.id.as_ref(), &bad.error);
                self.output.send(told).await;
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
            "session/list" => self.list(&id, params),
            "authenticate" => Err(RpcError::invalid_params(
                "there is nothing to authenticate with",
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
        // Every other notification is ignored, as the protocol wants it.
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
        let session = match how {
            session::OpenMode::New => None,
            session::OpenMode::Load | session::OpenMode::Resume => Some(open.session()?),
        };
        if let Some(session) = &session
            && self.sessions.has(session.as_str())
        {
            return Err(RpcError::invalid_params(format!(
                "session {session} is open here already; close it first"
            )));
        }
        let place = self.sessions.reserve()?;
        let opening = session::OpenRequest {
            id: id.clone(),
            directory,
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

    fn list(&self, id: &RequestId, params: &Params) -> Result<(), RpcError> {
        let list: ListParams = params.read()?;
        let after = match list.cursor.as_deref() {
            None => 0,
            Some(cursor) => cursor
                .parse()
                .map_err(|_| RpcError::invalid_params("the cursor is none of ours"))?,
        };
        let (desk, id) = (self.clone(), id.clone());
        let place = self.sessions.reserve()?;
        self.tasks.spawn(async move {
            let asked = async {
                let mut client = Client::connect(&desk.target.state_dir).await?;
                client.conversations(&desk.target.pool, after).await
            };
            let found = tokio::select! {
                found = asked => found,
                () = desk.editor_gone.cancelled() => return,
            };
            match found {
                Ok(found) => {
                    let result = page(&found, after, list.cwd.as_deref());
                    desk.output.send(outgoing::reply(&id, &result)).await;
                }
                Err(error) => desk.fail(&id, &rpc(error)).await,
            }
            drop(place);
        });
        Ok(())
    }
}

/// One page of `session/list`.
fn page(found: &[ConversationLine], after: u32, cwd: Option<&str>) -> serde_json::Value {
    let shown = |of: &&ConversationLine| cwd.is_none_or(|cwd| cwd == of.directory);
    let session = |of: &ConversationLine| {
        let mut session = json!({"sessionId": of.session, "cwd": of.directory});
        let title = of.title.as_deref().map(UntrustedText::from);
        if let Some(title) = title.as_ref().and_then(incoming::session_title) {
            session["title"] = title.into();
        }
        if let Ok(at) = jiff::Timestamp::from_microsecond(of.at_us) {
            session["updatedAt"] = at.to_string().into();
        }
        session
    };
    let sessions: Vec<_> = found.iter().filter(shown).map(session).collect();
    let mut result = json!({ "sessions": sessions });
    let count = u32::try_from(found.len()).unwrap_or(u32::MAX);
    if count >= limits::CONVERSATION_PAGE {
        result["nextCursor"] = after.saturating_add(count).to_string().into();
    }
    result
}

/// What the supervisor said, or that none is there, as an error of the protocol.
fn rpc(error: ClientError) -> RpcError {
    match error {
        ClientError::Refused(failure) if failure.code != Code::Stopping => failure.into(),
        other => RpcError::internal_error(other.to_string()),
    }
}
