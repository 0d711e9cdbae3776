//! One session of an editor: a conversation with the supervisor, translated to ACP.
//!
//! Must not know the other sessions.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;

use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt as _, StreamExt as _};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use serde_json::json;
use tokio::sync::{Notify, OwnedSemaphorePermit, mpsc};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;

use super::sessions::{SessionCommand, SessionHandle};
use super::{Client, ClientError, EditorContext, rpc};
use marshal_engine::api::acp::incoming::RequestId;
use marshal_engine::api::acp::session_state::{SessionState, WorkspaceRoots};
use marshal_engine::api::acp::{RpcError, outgoing, permission, update};
use marshal_engine::api::conversation_protocol::{
    self, ClientMessage, PermissionRequestView, ServerMessage,
};
use marshal_engine::api::json_lines;
use marshal_engine::api::run_stream::RunStreamItem;
use marshal_fleet::FleetEvent;
use marshal_model::limits;
use marshal_model::untrusted::escape_for_display;
use marshal_model::{
    DecidedBy, Decision, Event, PermissionRequestId, SessionId, Setting, TaskId, TaskOutcome,
    TurnOutcome, UntrustedText,
};

/// The connection of one conversation.
type Socket = WebSocketStream<TokioIo<Upgraded>>;

/// How a session is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OpenMode {
    /// A new session.
    New,
    /// An earlier session, whose history is sent first.
    Load,
    /// An earlier session, without its history.
    Resume,
}

/// The editor's request to open a session.
#[derive(Debug)]
pub(super) struct OpenRequest {
    pub(super) id: RequestId,
    pub(super) directory: PathBuf,
    /// Further directories of the editor, in the pool's workspace.
    pub(super) additional_directories: Vec<String>,
    pub(super) session: Option<SessionId>,
    pub(super) mode: OpenMode,
    pub(super) permit: OwnedSemaphorePermit,
}

/// Runs one session from its opening to its end.
pub(super) async fn run(context: EditorContext, opening: OpenRequest) {
    let editor_gone = context.editor_gone.clone();
    let mut id = None;
    tokio::select! {
        () = run_session(&context, opening, &mut id) => {}
        () = editor_gone.cancelled() => {}
    }
    if let Some(id) = id {
        context.sessions.remove(&id);
    }
}

async fn run_session(
    context: &EditorContext,
    opening: OpenRequest,
    registered: &mut Option<String>,
) {
    let place = opening.permit;
    let opened = async {
        let client = Client::new(&context.target.state_dir);
        let directories = (&*opening.directory, &*opening.additional_directories);
        let socket = client.open(&context.target.pool, directories, opening.session.as_ref());
        let (writer, mut reader) = socket.await?.split();
        match read_line(&mut reader).await? {
            ServerLine::Message(ServerMessage::Opened { session }) => {
                Ok::<_, ClientError>((writer, reader, session))
            }
            _ => Err(ClientError::Lost("unexpected answer".to_owned())),
        }
    };
    let (writer, reader, session) = match opened.await {
        Ok(opened) => opened,
        Err(error) => return context.fail(&opening.id, &rpc(&error)).await,
    };
    let (to_server, messages) = mpsc::channel(limits::CONVERSATION_QUEUE);
    let writing = tokio::spawn(write(writer, messages));
    let (handle, commands, cancel) = SessionHandle::new(opening.directory);
    let mut editor_session = EditorSession {
        context,
        session: session.to_string(),
        reader,
        to_server,
        prompts: HashMap::new(),
        cancelled: HashSet::new(),
        next: 0,
        turn: None,
        prompted: None,
        state: SessionState::new(context.capabilities.get().copied().unwrap_or_default()),
        pending_settings: HashMap::new(),
        deferred_events: Some(Vec::new()),
        is_replaying: true,
        is_history_sent: opening.mode == OpenMode::Load,
        closing: None,
    };
    let mut result = match opening.mode {
        OpenMode::New => json!({"sessionId": session.as_str()}),
        OpenMode::Load | OpenMode::Resume => json!({}),
    };
    // The history is sent before the reply, and events of the agent's start after it.
    let began = async {
        editor_session.replay_history().await?;
        editor_session.wait_started().await
    };
    match began.await {
        Ok(()) => {
            editor_session.state.add_to(&mut result);
            context.sessions.insert(session.as_str(), handle);
            *registered = Some(session.to_string());
            context
                .output
                .send(outgoing::reply(&opening.id, &result))
                .await;
            for event in editor_session.deferred_events.take().into_iter().flatten() {
                editor_session.event(&event).await;
            }
            let ended = editor_session.run(commands, &cancel).await;
            context.sessions.remove(session.as_str());
            editor_session.finish(ended).await;
        }
        Err(error) => context.fail(&opening.id, &rpc(&error)).await,
    }
    writing.abort();
    drop(place);
}

/// Writes the editor's messages, in a separate task: if the supervisor does not read, receiving
/// from it must go on.
async fn write(
    mut writer: SplitSink<Socket, Message>,
    mut messages: mpsc::Receiver<ClientMessage>,
) {
    while let Some(message) = messages.recv().await {
        let text = conversation_protocol::write_client_message(&message);
        if writer.send(Message::text(text)).await.is_err() {
            return; // The reading side reports the error.
        }
    }
}

/// One open session.
struct EditorSession<'a> {
    context: &'a EditorContext,
    session: String,
    reader: SplitStream<Socket>,
    to_server: mpsc::Sender<ClientMessage>,
    /// The editor's requests that wait for the end of a prompt, by the prompt's number.
    prompts: HashMap<u64, RequestId>,
    /// The prompts that were open when the editor cancelled.
    cancelled: HashSet<u64>,
    next: u64,
    /// How the last turn ended.
    turn: Option<(TurnOutcome, Option<UntrustedText>)>,
    /// The task of the last prompt in the history. A prompt that was sent again, because its child
    /// ended before receiving it, is shown once.
    prompted: Option<TaskId>,
    /// The known state of the session.
    state: SessionState,
    /// The editor's requests that wait for a setting, by the setting's number, and whether it is an
    /// option.
    pending_settings: HashMap<u64, (RequestId, bool)>,
    /// Events of the agent before the reply to the opening; `None` once the reply was sent.
    deferred_events: Option<Vec<Event>>,
    /// Whether the received events are history.
    is_replaying: bool,
    /// Whether the history is sent to the editor.
    is_history_sent: bool,
    closing: Option<RequestId>,
}

/// A line of the supervisor.
enum ServerLine {
    Message(ServerMessage),
    Events(Arc<Vec<marshal_model::StampedEvent>>),
    Other,
}

/// Reads the next line of the supervisor.
async fn read_line(reader: &mut SplitStream<Socket>) -> Result<ServerLine, ClientError> {
    let lost = |why: &str| ClientError::Lost(why.to_owned());
    let line = loop {
        match reader.next().await {
            Some(Ok(Message::Text(line))) => break line,
            Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
            None | Some(Ok(Message::Close(_))) => return Err(lost("it closed the connection")),
            Some(Ok(_)) => return Err(lost("a message is not text")),
            Some(Err(error)) => return Err(lost(&error.to_string())),
        }
    };
    if let Some(message) = conversation_protocol::read_server_message(&line) {
        return match message {
            ServerMessage::Failed { message } => Err(lost(&message)),
            message => Ok(ServerLine::Message(message)),
        };
    }
    match json_lines::read_item(&line) {
        Ok(Some(RunStreamItem::Notice(FleetEvent::SessionEvents { events, .. }))) => {
            Ok(ServerLine::Events(events))
        }
        Ok(_) => Ok(ServerLine::Other),
        Err(error) => Err(lost(&error.to_string())),
    }
}

impl EditorSession<'_> {
    /// Receives the history of the session.
    async fn replay_history(&mut self) -> Result<(), ClientError> {
        loop {
            match read_line(&mut self.reader).await? {
                ServerLine::Message(ServerMessage::CaughtUp) => break,
                ServerLine::Events(events) => {
                    for event in events.iter() {
                        self.event(&event.event).await;
                    }
                }
                ServerLine::Message(ServerMessage::Roots { inside, outside }) => {
                    self.state.roots = WorkspaceRoots {
                        agent_root: inside,
                        editor_root: outside,
                    };
                }
                ServerLine::Message(_) | ServerLine::Other => {}
            }
        }
        self.is_replaying = false;
        self.turn = None;
        Ok(())
    }

    /// Waits until the agent has reported its capabilities, or does not before the first prompt.
    async fn wait_started(&mut self) -> Result<(), ClientError> {
        loop {
            match read_line(&mut self.reader).await? {
                ServerLine::Message(ServerMessage::Started) => return Ok(()),
                ServerLine::Events(events) => {
                    for event in events.iter().map(|event| &event.event) {
                        self.state.apply_event(event);
                        if let Some(deferred) = &mut self.deferred_events
                            && deferred.len() < MAX_DEFERRED_EVENTS
                        {
                            deferred.push(event.clone());
                        }
                    }
                }
                ServerLine::Message(_) | ServerLine::Other => {}
            }
        }
    }

    /// Runs until the session is closed; an error if it ended otherwise.
    async fn run(
        &mut self,
        mut commands: mpsc::Receiver<SessionCommand>,
        cancel: &Notify,
    ) -> Result<(), ClientError> {
        loop {
            tokio::select! {
                biased;
                // Commands come before a cancel that found the queue full: it must cancel them too.
                command = commands.recv() => match command {
                Some(command) => self.handle_command(command).await,
                    None => return Ok(()),
                },
                () = cancel.notified() => self.handle_command(SessionCommand::Cancel).await,
                line = read_line(&mut self.reader) => match line? {
                    ServerLine::Message(ServerMessage::Closed) => return Ok(()),
                    ServerLine::Message(message) => self.handle_message(message).await,
                    ServerLine::Events(events) => {
                        for event in events.iter() {
                            self.event(&event.event).await;
                        }
                    }
                    ServerLine::Other => {}
                },
            }
        }
    }

    async fn handle_command(&mut self, command: SessionCommand) {
        let message = match command {
            SessionCommand::Prompt { id, text } => {
                self.next += 1;
                self.prompts.insert(self.next, id);
                ClientMessage::Prompt { n: self.next, text }
            }
            SessionCommand::Answer { approval, answer } => {
                ClientMessage::Answer { approval, answer }
            }
            SessionCommand::Set { id, .. }
                if self.pending_settings.len() >= MAX_PENDING_SETTINGS =>
            {
                let why = "too many settings are pending; wait for their replies";
                return self.context.fail(&id, &RpcError::internal_error(why)).await;
            }
            SessionCommand::Set { id, setting } => {
                self.next += 1;
                let is_option = matches!(setting, Setting::Option { .. });
                self.pending_settings.insert(self.next, (id, is_option));
                ClientMessage::Set {
                    n: self.next,
                    setting,
                }
            }
            SessionCommand::Cancel => {
                self.cancelled.extend(self.prompts.keys());
                ClientMessage::Cancel
            }
            SessionCommand::Close { id } => {
                if let Some(before) = self.closing.replace(id) {
                    self.reply(&before, &json!({})).await;
                }
                self.cancelled.extend(self.prompts.keys());
                ClientMessage::Close
            }
        };
        let _ = self.to_server.send(message).await;
    }

    async fn handle_message(&mut self, message: ServerMessage) {
        match message {
            ServerMessage::PromptRefused { n, message } => {
                if let Some(id) = self.prompts.remove(&n) {
                    self.context
                        .fail(&id, &RpcError::internal_error(message))
                        .await;
                }
            }
            ServerMessage::PromptEnded { n, outcome, detail } => {
                let is_ours = self.cancelled.remove(&n);
                let Some(id) = self.prompts.remove(&n) else {
                    return;
                };
                match result(outcome, self.turn.take(), detail, is_ours) {
                    Ok(reason) => self.reply(&id, &json!({"stopReason": reason})).await,
                    Err(error) => self.context.fail(&id, &error).await,
                }
            }
            ServerMessage::PermissionRequested(approval) => {
                self.request_permission(&approval).await;
            }
            ServerMessage::PermissionResolved { approval } => {
                self.context.sessions.forget_request(&approval);
            }
            ServerMessage::SettingResult { n, refused } => {
                let Some((id, is_option)) = self.pending_settings.remove(&n) else {
                    return;
                };
                match refused {
                    Some(why) => self.context.fail(&id, &RpcError::invalid_params(why)).await,
                    None if is_option => {
                        let options = self.state.config_options();
                        self.reply(&id, &json!({"configOptions": options})).await;
                    }
                    None => self.reply(&id, &json!({})).await,
                }
            }
            ServerMessage::Opened { .. }
            | ServerMessage::Failed { .. }
            | ServerMessage::CaughtUp
            | ServerMessage::Started
            | ServerMessage::Roots { .. }
            | ServerMessage::Closed => {}
        }
    }

    async fn request_permission(&mut self, approval: &PermissionRequestView) {
        let Ok(id) = PermissionRequestId::new(&approval.approval) else {
            return;
        };
        let id = self.context.sessions.register_request(&self.session, id);
        let params = permission::request_params(&self.session, approval);
        let line = outgoing::request(id, permission::METHOD, &params);
        self.context.output.send(line).await;
    }

    async fn event(&mut self, event: &Event) {
        self.state.apply_event(event);
        match event {
            Event::TurnEnded {
                outcome,
                stop_reason,
                ..
            } => self.turn = Some((*outcome, stop_reason.clone())),
            Event::PromptAccepted { task, .. } => {
                self.turn = None;
                if self.is_replaying && task.is_some() && self.prompted == *task {
                    return;
                }
                self.prompted.clone_from(task);
            }
            Event::PermissionDecided(verdict)
                if verdict.decision == Decision::Deny && verdict.decided_by != DecidedBy::Human =>
            {
                // Few agents show the reason of a denial to the user.
                let why = escape_for_display(&verdict.reason, 400);
                let text = format!("[marshal] denied: {why}\n\n");
                if !self.is_replaying || self.is_history_sent {
                    self.update(&update::agent_thought(&text)).await;
                }
            }
            Event::SessionFresh { .. } if !self.is_replaying || self.is_history_sent => {
                self.update(&update::agent_message(HISTORY_LOST_NOTICE))
                    .await;
            }
            _ => {}
        }
        if self.is_replaying && !self.is_history_sent {
            return;
        }
        if let Some(update) = update::from_event(event, &self.state, self.is_replaying) {
            self.update(&update).await;
        }
    }

    async fn update(&self, update: &update::Update<'_>) {
        self.context
            .output
            .send(outgoing::session_update(&self.session, update))
            .await;
    }

    async fn reply(&self, id: &RequestId, result: &serde_json::Value) {
        self.context.output.send(outgoing::reply(id, result)).await;
    }

    /// Ends the session: answers all requests that still wait.
    async fn finish(mut self, ended: Result<(), ClientError>) {
        let why = ended.err().map_or_else(
            || RpcError::internal_error("the session was closed"),
            |error| {
                tracing::warn!(session = %self.session, %error, "a session ended with an error");
                rpc(&error)
            },
        );
        let sets = std::mem::take(&mut self.pending_settings).into_values();
        let prompts = std::mem::take(&mut self.prompts).into_values();
        for id in prompts.chain(sets.map(|(id, _)| id)) {
            self.context.fail(&id, &why).await;
        }
        if let Some(id) = self.closing.take() {
            self.reply(&id, &json!({})).await;
        }
    }
}

/// The most events that wait for the reply to the opening; further ones are only in the journal.
const MAX_DEFERRED_EVENTS: usize = 1024;
/// The most settings that wait for their replies.
const MAX_PENDING_SETTINGS: usize = 8;

/// The note to the user when the agent lost the conversation's history.
const HISTORY_LOST_NOTICE: &str = "[marshal] The agent could not resume this session. It continues with the same files, but does not remember the conversation.\n\n";

/// The stop reason of a prompt that ended, or the error that it ended with.
fn result(
    outcome: TaskOutcome,
    turn: Option<(TurnOutcome, Option<UntrustedText>)>,
    detail: Option<UntrustedText>,
    was_cancelled: bool,
) -> Result<&'static str, RpcError> {
    let (turn, word) = turn.unzip();
    let word = word.flatten();
    match (outcome, turn) {
        (TaskOutcome::Skipped | TaskOutcome::Cancelled, _) => Ok("cancelled"),
        // A cancelled prompt that ended in another way is not an error for the editor.
        (TaskOutcome::Lost | TaskOutcome::Failed, _) if was_cancelled => Ok("cancelled"),
        // A task is done only if its turn completed. The turn's end may be among events that this
        // client skipped because it fell behind.
        (_, Some(TurnOutcome::Completed)) | (TaskOutcome::Done, None) => Ok("end_turn"),
        (_, Some(TurnOutcome::Limited)) => Ok(match word.as_ref().map(UntrustedText::raw) {
            Some("max_turn_requests") => "max_turn_requests",
            _ => "max_tokens",
        }),
        (_, Some(TurnOutcome::Refused)) => Ok("refusal"),
        (_, Some(TurnOutcome::Cancelled)) => Ok("cancelled"),
        _ => {
            let why = detail.map(|detail| detail.escape_for_display(1000));
            let why = why.filter(|why| !why.is_empty());
            Err(RpcError::internal_error(why.unwrap_or_else(|| {
                format!("the prompt ended as {outcome}")
            })))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(outcome: TaskOutcome, turn: Option<TurnOutcome>, cancelled: bool) -> String {
        let turn = turn.map(|turn| (turn, None));
        match result(outcome, turn, Some("wh\u{1b}y".into()), cancelled) {
            Ok(reason) => reason.to_owned(),
            Err(error) => format!("{} {error}", error.code),
        }
    }

    #[test]
    fn a_prompt_ends_with_a_stop_reason_or_with_an_error_that_says_why() {
        use TaskOutcome as T;
        use TurnOutcome as O;
        // The end of the turn was skipped.
        assert_eq!(of(T::Done, None, false), "end_turn");
        assert_eq!(of(T::Done, Some(O::Completed), false), "end_turn");
        assert_eq!(of(T::Denied, Some(O::Completed), false), "end_turn");
        assert_eq!(of(T::Denied, Some(O::Cancelled), false), "cancelled");
        assert_eq!(of(T::Refused, Some(O::Limited), false), "max_tokens");
        assert_eq!(of(T::Refused, Some(O::Refused), false), "refusal");
        assert_eq!(of(T::Cancelled, Some(O::Cancelled), true), "cancelled");
        assert_eq!(of(T::Skipped, None, true), "cancelled");
        assert_eq!(of(T::Lost, Some(O::Lost), true), "cancelled");
        assert_eq!(of(T::Lost, Some(O::Lost), false), "-32603 wh\\u{1b}y");
        assert_eq!(of(T::Failed, None, false), "-32603 wh\\u{1b}y");
        let limit = Some((O::Limited, Some("max_turn_requests".into())));
        let limited = result(T::Refused, limit, None, false);
        assert_eq!(limited, Ok("max_turn_requests"));
    }
}
