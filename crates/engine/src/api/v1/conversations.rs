//! Conversations of editors: `GET /api/v1/pools/{pool}/conversations`, and `…/conversation`, which
//! becomes a WebSocket.
//!
//! If the connection ends for any reason, the client has left the conversation. Only the
//! supervisor's user may open one, because it names a directory of the host. Must not know how a
//! client uses the messages.

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::ws::{Message, WebSocket};
use axum::http::StatusCode;
use axum::response::IntoResponse as _;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::error::ApiError;
use super::request_context::RequestContext;
use super::views::{List, respond_ok};
use super::{AppState, HandlerResult};
use crate::api::conversation_protocol::{
    self, ClientMessage, PermissionRequestView, ServerMessage,
};
use crate::api::conversation_stream::ConversationStream;
use crate::api::http::ConnectionHandle;
use crate::api::json_lines;
use crate::api::run_stream::RunStreamItem;
use crate::api::service::{Fleet as _, SupervisorKind};
use crate::api::task_rules;
use crate::api::time::Time;
use marshal_fleet::{
    ApprovalUpdate, Conversation, ConversationRequest, ConversationUpdate, ConversationView,
    FleetEvent, OpenError, TaskReport,
};
use marshal_model::limits;
use marshal_model::untrusted::escape_for_display;
use marshal_model::{Event, PoolName, SessionId, SlotId, StampedEvent, TaskId};

/// A conversation in a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Conversation")]
pub struct ConversationItem {
    /// The id of its session.
    pub session: String,
    /// The directory of its client.
    pub directory: String,
    /// The beginning of its first prompt; untrusted text.
    pub title: Option<String>,
    /// The time of its last prompt.
    pub prompted_at: Time,
}

impl ConversationItem {
    fn from_view(view: &ConversationView) -> Self {
        Self {
            session: view.session.to_string(),
            directory: view.directory.to_string_lossy().into_owned(),
            title: view.title.as_ref().map(|title| title.raw().to_owned()),
            prompted_at: Time(view.at_us),
        }
    }
}

/// Returns the pool in the path.
fn pool_param(request: &RequestContext) -> Result<PoolName, ApiError> {
    PoolName::new(request.path_param("pool"))
        .map_err(|_| ApiError::not_found("there is no such pool"))
}

pub(super) async fn list(app: AppState, request: RequestContext) -> HandlerResult {
    let after = request
        .query_param("cursor")
        .map(str::parse::<u32>)
        .transpose()
        .map_err(|_| ApiError::bad_cursor())?
        .unwrap_or(0);
    let pool = pool_param(&request)?;
    let found = app
        .fleet
        .conversations(&pool, after)
        .await
        .map_err(|error| open_error(&error))?;
    let count = u32::try_from(found.len()).unwrap_or(u32::MAX);
    let is_full = count >= limits::CONVERSATION_PAGE;
    respond_ok(&List {
        items: found.iter().map(ConversationItem::from_view).collect(),
        next: is_full.then(|| after.saturating_add(count).to_string()),
    })
}

pub(super) async fn delete(app: AppState, request: RequestContext) -> HandlerResult {
    let pool = pool_param(&request)?;
    let session = SessionId::new(request.path_param("session"))
        .map_err(|_| ApiError::not_found("there is no such conversation"))?;
    let deleted = app.fleet.delete_conversation(&pool, &session).await;
    deleted.map_err(|error| open_error(&error))?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

fn open_error(error: &OpenError) -> ApiError {
    let detail = error.to_string();
    match error {
        OpenError::NoPool { .. } | OpenError::NoSuchSession(_) => ApiError::not_found(detail),
        OpenError::Directory(_) => ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, detail),
        OpenError::AlreadyOpen(_) => ApiError::conflict(detail),
        OpenError::NoSlot(_) | OpenError::Journal(_) => ApiError::unavailable(detail),
        OpenError::Stopping => ApiError::stopping(),
    }
}

/// Opens a conversation, and serves it over the WebSocket until either side ends it.
pub(super) async fn open(app: AppState, mut request: RequestContext) -> HandlerResult {
    if app.host.kind == SupervisorKind::Run {
        return Err(ApiError::no_daemon());
    }
    if request.caller.uid.is_none() {
        let detail = "only the supervisor's user may open a conversation, over its socket";
        return Err(ApiError::new(StatusCode::FORBIDDEN, detail));
    }
    let Some(upgrade) = request.websocket.take() else {
        return Err(ApiError::bad_request("this route is only for a WebSocket"));
    };
    let directory = request.query_param("directory").map(PathBuf::from);
    let directory =
        directory.ok_or_else(|| ApiError::bad_request("query key \"directory\" is missing"))?;
    task_rules::check_workspace(&directory)
        .map_err(|why| ApiError::bad_request(format!("query key \"directory\" {why}")))?;
    let session = request.query_param("session").map(SessionId::new);
    let session = session.transpose().map_err(|error| {
        let why = escape_for_display(&error.to_string(), 200);
        ApiError::bad_request(format!("query key \"session\": {why}"))
    })?;
    let further = request.query_param("additional").map(serde_json::from_str);
    let further: Option<Vec<PathBuf>> = further.transpose().map_err(|_| {
        ApiError::bad_request("query key \"additional\" must be a JSON array of paths")
    })?;
    let further = further.unwrap_or_default();
    for path in &further {
        task_rules::check_workspace(path)
            .map_err(|why| ApiError::bad_request(format!("query key \"additional\" {why}")))?;
    }
    let order = ConversationRequest {
        pool: pool_param(&request)?,
        directory,
        additional_directories: further,
        session,
    };
    // Subscribe before the conversation opens, so that no event is missed.
    let notices = app.fleet.subscribe();
    let conversation = tokio::select! {
        opened = app.fleet.open_conversation(order) => opened.map_err(|error| open_error(&error))?,
        () = app.stop.cancelled() => return Err(ApiError::stopping()),
    };
    let past = (0, conversation.last_seq());
    let session = conversation.session().clone();
    let stream = ConversationStream::new(notices, session.clone(), past, app.fleet.history());
    let stop = app.stop.clone();
    Ok(upgrade.accept(
        limits::RUN_BODY_BYTES,
        move |socket, connection| async move {
            let talk = OpenConversation {
                socket: MessageSocket(socket),
                conversation,
                stream,
                prompt_numbers: HashMap::new(),
                pending_reports: VecDeque::new(),
            };
            let Ok(mut socket) = talk.run(session, &connection, &stop).await else {
                return;
            };
            // Wait for the client's close frame; otherwise the last messages could be lost.
            let goodbye = async {
                let _ = socket.0.send(Message::Close(None)).await;
                while let Some(Ok(_)) = socket.0.recv().await {}
            };
            let _ = timeout(CLOSE_TIMEOUT, goodbye).await;
        },
    ))
}

/// How long the client may take for the closing handshake.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(500);

/// The client has gone, does not read, or sent what is no message.
struct Gone;

/// A WebSocket whose messages are texts.
struct MessageSocket(WebSocket);

impl MessageSocket {
    /// Returns the next message; `None` at the end. Cancel-safe.
    async fn next(&mut self) -> Result<Option<String>, Gone> {
        loop {
            match self.0.recv().await {
                None | Some(Ok(Message::Close(_))) => return Ok(None),
                Some(Ok(Message::Text(text))) => return Ok(Some(text.to_string())),
                // The library sends the pong.
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                Some(Ok(Message::Binary(_)) | Err(_)) => return Err(Gone),
            }
        }
    }

    async fn send(&mut self, text: String) -> Result<(), Gone> {
        for line in text.lines() {
            let sent = self.0.send(Message::Text(line.into()));
            match timeout(limits::CONVERSATION_WRITE_TIMEOUT, sent).await {
                Ok(Ok(())) => {}
                _ => return Err(Gone),
            }
        }
        Ok(())
    }
}

/// One open conversation.
struct OpenConversation {
    socket: MessageSocket,
    conversation: Conversation,
    stream: ConversationStream,
    /// The client's own numbers of its open prompts.
    prompt_numbers: HashMap<TaskId, u64>,
    /// Reports to send after the events before them.
    pending_reports: VecDeque<Arc<TaskReport>>,
}

/// Whether the conversation continues.
enum NextStep {
    Continue,
    Stop,
}

impl OpenConversation {
    async fn run(
        mut self,
        session: SessionId,
        connection: &ConnectionHandle,
        stop: &CancellationToken,
    ) -> Result<MessageSocket, Gone> {
        self.send_message(&ServerMessage::Opened { session })
            .await?;
        let (inside, outside) = self.conversation.roots();
        self.send_message(&ServerMessage::Roots { inside, outside })
            .await?;
        while let Some(events) = self.next_history().await {
            self.send_events(&events).await?;
        }
        self.send_message(&ServerMessage::CaughtUp).await?;
        loop {
            let next = tokio::select! {
                biased;
                () = stop.cancelled() => {
                    let message = OpenError::Stopping.to_string();
                    self.send_message(&ServerMessage::Failed { message }).await?;
                    return Ok(self.socket);
                }
                _ = connection.wait_closed() => return Ok(self.socket),
                said = self.socket.next() => match said? {
                    Some(line) => self.handle_line(&line).await?,
                    None => NextStep::Stop,
                },
                brought = self.conversation.next() => match brought {
                    Some(brought) => self.handle_update(brought).await?,
                    None => NextStep::Stop,
                },
                events = self.stream.next() => match events {
                    Some(events) => {
                        self.send_events(&events).await?;
                        NextStep::Continue
                    }
                    None => NextStep::Stop,
                },
            };
            if matches!(next, NextStep::Stop) {
                return Ok(self.socket);
            }
            if self.conversation.is_released() {
                self.send_message(&ServerMessage::Closed).await?;
                return Ok(self.socket);
            }
        }
    }

    /// Returns the next events from before the conversation was opened.
    async fn next_history(&mut self) -> Option<Vec<StampedEvent>> {
        if self.stream.last_seq() >= self.conversation.last_seq() {
            return None;
        }
        self.stream.next().await
    }

    async fn handle_line(&mut self, line: &str) -> Result<NextStep, Gone> {
        match conversation_protocol::read_client_message(line.as_bytes()) {
            Ok(ClientMessage::Prompt { n, text }) => match self.conversation.prompt(text).await {
                Ok(task) => {
                    self.prompt_numbers.insert(task, n);
                }
                Err(error) => {
                    let message = error.to_string();
                    self.send_message(&ServerMessage::PromptRefused { n, message })
                        .await?;
                }
            },
            Ok(ClientMessage::Cancel) => self.conversation.cancel(),
            Ok(ClientMessage::Answer {
                approval,
                answer: said,
            }) => {
                self.conversation.answer_approval(approval, said);
            }
            Ok(ClientMessage::Set { n, setting }) => self.conversation.change_setting(n, setting),
            Ok(ClientMessage::Close) => {
                self.conversation.leave().await;
                self.drain().await?;
            }
            Err(failure) => {
                let message = failure.message;
                self.send_message(&ServerMessage::Failed { message })
                    .await?;
                return Ok(NextStep::Stop);
            }
        }
        Ok(NextStep::Continue)
    }

    /// Sends the ends of the prompts that were open when the client left.
    async fn drain(&mut self) -> Result<(), Gone> {
        while let Some(brought) = self.conversation.try_next_update() {
            self.handle_update(brought).await?;
        }
        while let Some(events) = self.stream.try_next().await {
            self.send_events(&events).await?;
        }
        Ok(())
    }

    async fn handle_update(&mut self, brought: ConversationUpdate) -> Result<NextStep, Gone> {
        match brought {
            ConversationUpdate::Approval(ApprovalUpdate::Requested(approval)) => {
                // Send the tool call of the approval first.
                while self.stream.last_seq() < approval.seq
                    && let Some(events) = self.stream.try_next().await
                {
                    self.send_events(&events).await?;
                }
                let view = PermissionRequestView::from_request(&approval);
                self.send_message(&ServerMessage::PermissionRequested(Box::new(view)))
                    .await?;
            }
            ConversationUpdate::Approval(ApprovalUpdate::Ended { id, .. }) => {
                self.send_message(&ServerMessage::PermissionResolved { approval: id })
                    .await?;
            }
            ConversationUpdate::Setting(done) => {
                self.send_ready_events().await?;
                let refused = done.result.err();
                let n = done.number;
                self.send_message(&ServerMessage::SettingResult { n, refused })
                    .await?;
            }
            ConversationUpdate::ChildReady => {
                self.send_ready_events().await?;
                self.send_message(&ServerMessage::Started).await?;
            }
            ConversationUpdate::PromptEnded(report) => {
                self.pending_reports.push_back(report);
                self.send_ready_events().await?;
                while let Some(report) = self.pending_reports.pop_front() {
                    self.send_prompt_end(&report).await?;
                }
            }
        }
        Ok(NextStep::Continue)
    }

    /// Events are published before the report that they lead to, so events that are available go
    /// first.
    async fn send_ready_events(&mut self) -> Result<(), Gone> {
        for _ in 0..limits::BROADCAST_EVENTS {
            let Some(events) = self.stream.try_next().await else {
                break;
            };
            self.send_events(&events).await?;
        }
        Ok(())
    }

    async fn send_events(&mut self, events: &[StampedEvent]) -> Result<(), Gone> {
        for event in events {
            // The start of the next prompt is sent after the end of the previous one.
            if let Event::PromptAccepted { task, .. } = &event.event
                && let Some(before) = self.pending_reports.front()
                && Some(&before.task) != task.as_ref()
                && let Some(report) = self.pending_reports.pop_front()
            {
                self.send_prompt_end(&report).await?;
            }
            let notice = FleetEvent::SessionEvents {
                slot: self.slot(),
                session: self.conversation.session().clone(),
                task: None,
                events: Arc::new(vec![event.clone()]),
                permit: None,
            };
            self.socket
                .send(json_lines::item_json(&RunStreamItem::Notice(notice)))
                .await?;
        }
        Ok(())
    }

    fn slot(&self) -> SlotId {
        self.conversation.slot().clone()
    }

    async fn send_prompt_end(&mut self, report: &TaskReport) -> Result<(), Gone> {
        match self.prompt_numbers.remove(&report.task) {
            Some(n) => {
                self.send_message(&conversation_protocol::prompt_ended(n, report))
                    .await
            }
            None => Ok(()),
        }
    }

    async fn send_message(&mut self, message: &ServerMessage) -> Result<(), Gone> {
        self.socket
            .send(conversation_protocol::write_server_message(message))
            .await
    }
}
