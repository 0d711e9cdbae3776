//! `acp`: an ACP agent on standard input and output, whose sessions are a supervisor's conversations.
//!
//! Owns the editor's connection and which sessions it has open. Must not know what a supervisor
//! does with them: it speaks to one over its control socket, to its own as to any other.

mod out;
mod sessions;
mod talk;

use std::io::{Read, Write};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use serde_json::json;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::control_client::{Client, ClientError};
use crate::api::acp::incoming::{
    self, Incoming, List, OfSession, Open, Params, Prompt, RequestId, SetMode, SetOption,
};
use crate::api::acp::known::Can;
use crate::api::acp::{RpcError, content, outgoing};
use crate::api::reply::ConversationLine;
use crate::api::request::Code;
use crate::limits;
use crate::model::foreign::show;
use crate::model::{Foreign, PoolName, Setting};
use crate::wire::ndjson::Lines;
use out::Out;
use sessions::{Sessions, ToSession};

/// Whom an editor's sessions come from.
#[derive(Debug, Clone)]
pub struct Place {
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
    Endless,
}

/// What every part of one editor's connection needs.
#[derive(Debug, Clone)]
struct Desk {
    place: Arc<Place>,
    out: Out,
    sessions: Arc<Sessions>,
    tasks: TaskTracker,
    /// What the editor understands, once it has greeted.
    can: Arc<OnceLock<Can>>,
    /// The editor is gone.
    gone: CancellationToken,
}

/// Serves one editor until it goes, or `stop`.
pub async fn serve(
    place: Place,
    input: impl Read + Send + 'static,
    output: impl Write + Send + 'static,
    stop: CancellationToken,
) -> Ended {
    let gone = stop.child_token();
    let (out, written) = Out::start(output, gone.clone());
    let chunks = out::read(input);
    let desk = Desk {
        place: Arc::new(place),
        out,
        sessions: Arc::new(Sessions::default()),
        tasks: TaskTracker::new(),
        can: Arc::default(),
        gone: gone.clone(),
    };
    let ended = tokio::select! {
        ended = hear(&desk, chunks) => ended,
        () = gone.cancelled() => Ended::Closed,
    };
    // Whoever waits for the supervisor or for the editor stops waiting: connections end, and with
    // them the conversations.
    gone.cancel();
    desk.tasks.close();
    desk.tasks.wait().await;
    drop(desk);
    out::finish(written).await;
    ended
}

/// Reads until the editor closes its end.
async fn hear(desk: &Desk, mut chunks: mpsc::Receiver<Vec<u8>>) -> Ended {
    let mut lines = Lines::new(limits::EDITOR_LINE_BYTES);
    let mut greeted = false;
    while let Some(chunk) = chunks.recv().await {
        lines.push(chunk);
        for line in lines.by_ref() {
            let Ok(line) = line else {
                let message = format!(
                    "a line is longer than {} bytes; the connection ends",
                    limits::EDITOR_LINE_BYTES
                );
                let error = RpcError::new(RpcError::REQUEST, message);
                desk.out.send(outgoing::error(None, &error)).await;
                return Ended::Endless;
            };
            desk.line(&line, &mut greeted).await;
        }
    }
    Ended::Closed
}

impl Desk {
    async fn line(&self, line: &[u8], greeted: &mut bool) {
        match incoming::read(line) {
            Ok(Incoming::Request { id, method, params }) => {
                if method == "initialize" {
                    *greeted = true;
                    // Whoever greets twice is taken by the first word.
                    let _ = self.can.set(incoming::understands(&params));
                    self.out.send(outgoing::initialized(&id)).await;
                } else if *greeted {
                    self.request(id, &method, &params).await;
                } else {
                    let error = RpcError::new(RpcError::REQUEST, "initialize comes first");
                    self.fail(&id, &error).await;
                }
            }
            Ok(Incoming::Notification { method, params }) => self.notified(&method, &params),
            Ok(Incoming::Reply { id, outcome }) => {
                self.sessions
                    .answered(id, incoming::said(outcome.as_deref()));
            }
            Err(bad) => {
                let told = outgoing::error(bad.id.as_ref(), &bad.error);
                self.out.send(told).await;
            }
        }
    }

    async fn fail(&self, id: &RequestId, error: &RpcError) {
        self.out.send(outgoing::error(Some(id), error)).await;
    }

    async fn request(&self, id: RequestId, method: &str, params: &Params) {
        let served = match method {
            "session/new" => self.open(&id, params, talk::How::New),
            "session/load" => self.open(&id, params, talk::How::Load),
            "session/resume" => self.open(&id, params, talk::How::Resume),
            "session/prompt" => self.prompt(&id, params),
            "session/close" => self.close(&id, params),
            "session/list" => self.list(&id, params),
            "authenticate" => Err(RpcError::params("there is nothing to authenticate with")),
            "session/set_mode" => self.set_mode(&id, params),
            "session/set_config_option" => self.set_option(&id, params),
            other => Err(RpcError::new(
                RpcError::METHOD,
                format!("there is no method {}", show(other, 80)),
            )),
        };
        if let Err(error) = served {
            self.fail(&id, &error).await;
        }
    }

    fn notified(&self, method: &str, params: &Params) {
        // Every other notification is ignored, as the protocol wants it.
        if method == "session/cancel"
            && let Ok(of) = params.read::<OfSession>()
        {
            self.sessions.cancel(&of.session_id);
        }
    }

    fn open(&self, id: &RequestId, params: &Params, how: talk::How) -> Result<(), RpcError> {
        let open: Open = params.read()?;
        let directory = open.directory()?;
        let session = match how {
            talk::How::New => None,
            talk::How::Load | talk::How::Resume => Some(open.session()?),
        };
        if let Some(session) = &session
            && self.sessions.has(session.as_str())
        {
            return Err(RpcError::params(format!(
                "session {session} is open here already; close it first"
            )));
        }
        let place = self.sessions.place()?;
        let opening = talk::Opening {
            id: id.clone(),
            directory,
            session,
            how,
            place,
        };
        self.tasks.spawn(talk::run(self.clone(), opening));
        Ok(())
    }

    fn prompt(&self, id: &RequestId, params: &Params) -> Result<(), RpcError> {
        let prompt: Prompt = params.read()?;
        let session = self.sessions.find(&prompt.session_id)?;
        let text = content::text(&prompt.prompt, session.directory())?;
        session.tell(ToSession::Prompt {
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
        session.tell(ToSession::Set {
            id: id.clone(),
            setting: setting?,
        })
    }

    fn close(&self, id: &RequestId, params: &Params) -> Result<(), RpcError> {
        let of: OfSession = params.read()?;
        let session = self.sessions.find(&of.session_id)?;
        session.tell(ToSession::Close { id: id.clone() })
    }

    fn list(&self, id: &RequestId, params: &Params) -> Result<(), RpcError> {
        let list: List = params.read()?;
        let after = match list.cursor.as_deref() {
            None => 0,
            Some(cursor) => cursor
                .parse()
                .map_err(|_| RpcError::params("the cursor is none of ours"))?,
        };
        let (desk, id) = (self.clone(), id.clone());
        let place = self.sessions.place()?;
        self.tasks.spawn(async move {
            let asked = async {
                let mut client = Client::connect(&desk.place.state_dir).await?;
                client.conversations(&desk.place.pool, after).await
            };
            let found = tokio::select! {
                found = asked => found,
                () = desk.gone.cancelled() => return,
            };
            match found {
                Ok(found) => {
                    let result = page(&found, after, list.cwd.as_deref());
                    desk.out.send(outgoing::reply(&id, &result)).await;
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
        let title = of.title.as_deref().map(Foreign::from);
        if let Some(title) = title.as_ref().and_then(incoming::title) {
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
        other => RpcError::internal(other.to_string()),
    }
}
