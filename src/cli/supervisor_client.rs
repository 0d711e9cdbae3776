//! What commands ask of a supervisor: runs, logs, approvals, policies, conversations.
//!
//! Owns the routes and their forms. Must not know how answers are shown.

use std::path::{Path, PathBuf};

use axum::http::Method;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio_tungstenite::WebSocketStream;

use super::exit::Exit;
pub use super::http_client::ClientError;
use super::http_client::{EventStream, request_json, stream, web_socket};
use super::streams::Streams;
use marshal_engine::api::SupervisorKind;
use marshal_engine::api::approvals::{Answer, AnswerReceiptView, ApprovalView};
use marshal_engine::api::json_lines::{self, LogItem};
use marshal_engine::api::listing::{Pool, Slot};
use marshal_engine::api::policies::PolicyStatusView;
use marshal_engine::api::run_stream::RunStreamItem;
use marshal_engine::api::task_body::TaskBody;
use marshal_engine::api::v1::conversations::ConversationItem;
use marshal_engine::api::v1::runs::{BoundsBody, NewRun, RunView, SupervisorView};
use marshal_fleet::RunBounds;
use marshal_model::limits;
use marshal_model::untrusted::escape_for_display;
use marshal_model::{
    PermissionRequestId, PoolName, RunId, SessionId, SlotId, TaskId, TaskSpec, UntrustedText,
};

/// A client of the supervisor of a state directory. Each request has a connection of its own.
#[derive(Debug)]
pub struct Client {
    state_dir: PathBuf,
    /// The run that is watched.
    watched: Option<EventStream>,
}

/// One page of a list.
#[derive(serde::Deserialize)]
struct Page<T> {
    items: Vec<T>,
    next: Option<String>,
}

impl Client {
    /// Creates a client.
    pub fn new(state_dir: &Path) -> Self {
        Self {
            state_dir: state_dir.to_owned(),
            watched: None,
        }
    }

    async fn request<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<T, ClientError> {
        let answer = request_json(&self.state_dir, method, path, body).await?;
        read(answer)
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.request(Method::GET, path, None).await
    }

    /// All items of a list, page by page; `query` is the rest of its query.
    async fn list<T: DeserializeOwned>(
        &self,
        path: &str,
        query: &str,
    ) -> Result<Vec<T>, ClientError> {
        let mut items = Vec::new();
        let mut cursor = String::new();
        loop {
            let page = format!("{path}?limit=500{query}{cursor}");
            let page: Page<Value> = self.get(&page).await?;
            for item in page.items {
                items.push(read(item)?);
            }
            match page.next {
                Some(next) => cursor = format!("&cursor={}", encode(&next)),
                None => return Ok(items),
            }
        }
    }

    /// What the supervisor says of itself.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn supervisor(&self) -> Result<Hello, ClientError> {
        let view: SupervisorView = self.get("/api/v1/supervisor").await?;
        let kind = SupervisorKind::parse(&view.kind);
        Ok(Hello {
            kind: kind.ok_or_else(|| ClientError::Lost("unknown answer".to_owned()))?,
            pid: view.pid,
            configuration: view.configuration,
        })
    }

    /// The pools, by name, and the slots, by pool and number.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn pools_and_slots(&self) -> Result<(Vec<Pool>, Vec<Slot>), ClientError> {
        let pools = self.list("/api/v1/pools", "").await?;
        Ok((pools, self.list("/api/v1/slots", "").await?))
    }

    /// Submits tasks and starts to watch them; [`Client::next`] returns the items.
    ///
    /// # Errors
    /// [`ClientError`]; no task was accepted then.
    pub async fn submit(
        &mut self,
        tasks: &[TaskSpec],
        bounds: RunBounds,
    ) -> Result<RunId, ClientError> {
        let tasks = tasks
            .iter()
            .map(TaskBody::from_spec)
            .collect::<Result<_, _>>();
        let tasks =
            tasks.map_err(|(key, why)| ClientError::Unsendable(format!("a {key} {why}")))?;
        let body = serde_json::to_value(NewRun {
            tasks,
            bounds: BoundsBody::from_bounds(&bounds),
        })
        .unwrap_or_default();
        let size = body.to_string().len();
        if size > limits::RUN_BODY_BYTES {
            let most = limits::RUN_BODY_BYTES;
            return Err(ClientError::Unsendable(format!(
                "the tasks take {size} bytes, and one request has at most {most}; submit fewer tasks, or use --local"
            )));
        }
        let run: RunView = self
            .request(Method::POST, "/api/v1/runs", Some(&body))
            .await?;
        let run = RunId::new(&run.run).map_err(|error| ClientError::Lost(error.to_string()))?;
        self.open_run(&run, true).await?;
        Ok(run)
    }

    /// Starts to watch a run, without what its sessions did before; [`Client::next`] returns the
    /// items.
    ///
    /// # Errors
    /// [`ClientError`], also if the daemon does not have the run.
    pub async fn watch(&mut self, run: &RunId) -> Result<(), ClientError> {
        self.open_run(run, false).await
    }

    async fn open_run(&mut self, run: &RunId, past: bool) -> Result<(), ClientError> {
        let path = format!("/api/v1/runs/{run}/events?past={past}");
        self.watched = Some(stream(&self.state_dir, &path, None).await?);
        Ok(())
    }

    /// The next item of the watched run, and its line. The item is `None` if this version does not
    /// know its kind.
    ///
    /// # Errors
    /// [`ClientError`]; the stream has ended then.
    pub async fn next(&mut self) -> Result<(Option<RunStreamItem>, String), ClientError> {
        let lost = |why: &str| ClientError::Lost(why.to_owned());
        let events = self.watched.as_mut().ok_or_else(|| lost("no run"))?;
        let line = next_line(events).await?;
        let item =
            json_lines::read_item(&line).map_err(|error| ClientError::Lost(error.to_string()))?;
        Ok((item, line))
    }

    /// Cancels a run.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn cancel(&self, run: &RunId) -> Result<(), ClientError> {
        let path = format!("/api/v1/runs/{run}/cancel");
        let _: RunView = self.request(Method::POST, &path, None).await?;
        Ok(())
    }

    /// Cancels one task of a run.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn cancel_task(&self, run: &RunId, task: &TaskId) -> Result<(), ClientError> {
        let path = format!("/api/v1/tasks/{run}:{task}/cancel");
        let _: Value = self.request(Method::POST, &path, None).await?;
        Ok(())
    }

    /// The pending approvals, or the ones that have ended.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn approvals(&self, ended: bool) -> Result<Vec<ApprovalView>, ClientError> {
        self.list("/api/v1/approvals", &format!("&ended={ended}"))
            .await
    }

    /// One approval with its details.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn approval(&self, id: &PermissionRequestId) -> Result<ApprovalView, ClientError> {
        self.get(&format!("/api/v1/approvals/{id}")).await
    }

    /// Answers an approval.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn answer(&self, answer: &Answer) -> Result<AnswerReceiptView, ClientError> {
        let path = format!("/api/v1/approvals/{}", answer.id);
        self.request(Method::POST, &path, Some(&answer.to_json()))
            .await
    }

    /// The policies in force, by pool; after a reload if `reload` is set.
    ///
    /// # Errors
    /// [`ClientError`], also for policies with errors: the old ones stay in force then.
    pub async fn policies(&self, reload: bool) -> Result<PolicyStatusView, ClientError> {
        if reload {
            let path = "/api/v1/policies/reload";
            self.request(Method::POST, path, None).await
        } else {
            self.get("/api/v1/policies").await
        }
    }

    /// Opens a new conversation or loads an earlier one.
    ///
    /// # Errors
    /// [`ClientError`]; no conversation was opened then.
    pub async fn open(
        &self,
        pool: &PoolName,
        (directory, additional): (&Path, &[String]),
        session: Option<&SessionId>,
    ) -> Result<WebSocketStream<TokioIo<Upgraded>>, ClientError> {
        let text = directory.to_str().ok_or_else(|| {
            ClientError::Unsendable("the name of the directory is not UTF-8".to_owned())
        })?;
        let session = session.map(|session| format!("&session={session}"));
        let additional = match additional {
            [] => String::new(),
            some => format!("&additional={}", encode(&json!(some).to_string())),
        };
        let path = format!(
            "/api/v1/pools/{pool}/conversation?directory={}{additional}{}",
            encode(text),
            session.unwrap_or_default()
        );
        web_socket(&self.state_dir, &path).await
    }

    /// One page of the conversations of a pool, and the cursor of the next one.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn conversations(
        &self,
        pool: &PoolName,
        cursor: Option<&str>,
    ) -> Result<(Vec<ConversationItem>, Option<String>), ClientError> {
        let cursor = cursor
            .map(|cursor| format!("?cursor={}", encode(cursor)))
            .unwrap_or_default();
        let path = format!("/api/v1/pools/{pool}/conversations{cursor}");
        let page: Page<ConversationItem> = self.get(&path).await?;
        Ok((page.items, page.next))
    }

    /// Ends a conversation of a pool for good.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn delete_conversation(
        &self,
        pool: &PoolName,
        session: &str,
    ) -> Result<(), ClientError> {
        let path = format!("/api/v1/pools/{pool}/conversations/{}", encode(session));
        request_json(&self.state_dir, Method::DELETE, &path, None).await?;
        Ok(())
    }

    /// The state directory of the supervisor.
    pub fn state_dir(&self) -> &Path {
        &self.state_dir
    }
}

/// The data of the next event of a stream of lines.
async fn next_line(events: &mut EventStream) -> Result<String, ClientError> {
    let lost = |why: &str| ClientError::Lost(why.to_owned());
    let event = events
        .next()
        .await?
        .ok_or_else(|| lost("the connection was closed"))?;
    if event.name != "end" {
        return Ok(event.data);
    }
    let end: Value = serde_json::from_str(&event.data).unwrap_or_default();
    match end["why"].as_str() {
        Some("stopping") => Err(ClientError::Stopping),
        Some(why) => Err(lost(&escape_for_display(why, 60))),
        None => Err(lost("unknown answer")),
    }
}

fn read<T: DeserializeOwned>(answer: Value) -> Result<T, ClientError> {
    let read = serde_json::from_value(answer);
    read.map_err(|error| ClientError::Lost(format!("unexpected answer: {error}")))
}

fn encode(text: &str) -> impl std::fmt::Display + '_ {
    utf8_percent_encode(text, NON_ALPHANUMERIC)
}

/// What a supervisor says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// What kind of supervisor it is.
    pub kind: SupervisorKind,
    /// Its process id.
    pub pid: u32,
    /// The digest of its configuration.
    pub configuration: String,
}

/// The supervisor of a state directory, if one answers.
///
/// # Errors
/// [`ClientError`] if a supervisor runs there and the connection fails.
pub async fn supervisor(state_dir: &Path) -> Result<Option<(Client, Hello)>, ClientError> {
    let client = Client::new(state_dir);
    match client.supervisor().await {
        Ok(hello) => Ok(Some((client, hello))),
        Err(ClientError::NoSupervisor { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The daemon of a state directory, if one answers. A supervisor that only runs its own tasks
/// does not count.
///
/// # Errors
/// [`ClientError`] if a supervisor runs there and the connection fails.
#[cfg(test)]
pub async fn daemon(state_dir: &Path) -> Result<Option<Client>, ClientError> {
    let found = supervisor(state_dir).await?;
    let daemon = found.filter(|(_, hello)| hello.kind == SupervisorKind::Daemon);
    Ok(daemon.map(|(client, _)| client))
}

/// Whether a supervisor of this state directory serves conversations.
///
/// # Errors
/// [`ClientError`] if a supervisor runs there and the connection fails, or if it only runs its own
/// tasks.
pub async fn serves_conversations(state_dir: &Path) -> Result<bool, ClientError> {
    let Some((_, hello)) = supervisor(state_dir).await? else {
        return Ok(false);
    };
    match (hello.kind, hello.pid) {
        (SupervisorKind::Daemon | SupervisorKind::Editor, _) => Ok(true),
        (SupervisorKind::Run, pid) => Err(ClientError::Refused {
            status: axum::http::StatusCode::CONFLICT,
            code: "no_daemon".to_owned(),
            detail: format!(
                "process {pid} runs its own tasks in {}; wait until it ends, or use another state directory",
                state_dir.display()
            ),
        }),
    }
}

/// `marshal restart SLOT`.
pub async fn restart(state_dir: &Path, slot: SlotId, streams: &mut Streams) -> Exit {
    let path = format!("/api/v1/slots/{slot}/restart");
    match request_json(state_dir, Method::POST, &path, None).await {
        Ok(view) => {
            let note = if view["state"] == "stopping" {
                "restarting: its child has not ended yet"
            } else {
                "restarted"
            };
            streams.err.line(&format!("{slot}: {note}"));
            Exit::Done
        }
        Err(error) => error.report(streams),
    }
}

/// `marshal logs SLOT [-f]`: the child's stderr, line by line, escaped; with `json` as it was
/// received. Ends with the log, with the supervisor or when the output is closed.
pub async fn logs(
    state_dir: &Path,
    slot: SlotId,
    follow: bool,
    json: bool,
    streams: &mut Streams,
) -> Exit {
    let path = format!("/api/v1/slots/{slot}/logs?follow={follow}");
    let mut events = match stream(state_dir, &path, None).await {
        Ok(events) => events,
        Err(error) => return error.report(streams),
    };
    loop {
        let line = match next_line(&mut events).await {
            Ok(line) => line,
            Err(error) => return error.report(streams),
        };
        let item = match json_lines::read_log(&line) {
            Ok(item) => item,
            Err(error) => return ClientError::Lost(error.to_string()).report(streams),
        };
        match item {
            LogItem::Complete => return Exit::Done,
            _ if json => streams.out.json(&line),
            LogItem::Line(text) => streams.out.line(&show_line(&text)),
            LogItem::Lagged(missed) => {
                let note = format!("{missed} lines were skipped: they arrived too fast");
                streams.err.line(&note);
            }
        }
        if streams.out.is_closed() {
            return Exit::Done;
        }
    }
}

/// Escapes a log line. It is at most [`limits::STDERR_LINE_BYTES`] long, but longer when escaped.
fn show_line(text: &UntrustedText) -> String {
    text.escape_for_display(limits::STDERR_LINE_BYTES * "\\u{10ffff}".len())
}

#[cfg(test)]
#[path = "supervisor_client_tests.rs"]
mod tests;
