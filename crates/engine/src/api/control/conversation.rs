//! A connection in conversation mode: the messages of the client and of the supervisor.
//!
//! If the connection ends for any reason, the client has left the conversation. Must not know how a
//! client uses the messages.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::lines::{LineError, Lines};
use super::{ConnectionContext, Fleet};
use crate::api::conversation_protocol::{
    self, ClientMessage, PermissionRequestView, ServerMessage,
};
use crate::api::conversation_stream::ConversationStream;
use crate::api::json_lines;
use crate::api::reply::{self, Reply};
use crate::api::request::{Code, Failure};
use crate::api::run_stream::RunStreamItem;
use marshal_fleet::{
    ApprovalUpdate, Conversation, ConversationRequest, ConversationUpdate, FleetEvent, OpenError,
    TaskReport,
};
use marshal_model::limits;
use marshal_model::{Event, SlotId, StampedEvent, TaskId};

/// Opens a conversation and serves it until either side ends it.
pub(super) async fn open<F: Fleet>(
    lines: &mut Lines,
    context: &ConnectionContext<F>,
    order: ConversationRequest,
) -> Result<(), LineError> {
    // Subscribe before the conversation opens, so that no event is missed.
    let notices = context.fleet.subscribe();
    let opened = tokio::select! {
        opened = context.fleet.open_conversation(order) => opened,
        speaks = lines.wait_for_input() => {
            // A client may not send anything before the reply; one that does, or that leaves, is
            // disconnected.
            let error = if speaks { std::io::ErrorKind::InvalidData } else { std::io::ErrorKind::ConnectionAborted };
            return Err(LineError::Io(error.into()));
        }
        () = context.stop.cancelled() => Err(OpenError::Stopping),
    };
    let conversation = match opened {
        Ok(conversation) => conversation,
        Err(error) => {
            let failed = Reply::Failed(open_failure(&error));
            return lines.send(reply::write_reply(&failed)).await;
        }
    };
    let opened = Reply::Opened {
        session: conversation.session().clone(),
    };
    lines.send(reply::write_reply(&opened)).await?;
    let past = (0, conversation.last_seq());
    let session = conversation.session().clone();
    let stream = ConversationStream::new(notices, session, past, context.fleet.history());
    let talk = OpenConversation {
        lines,
        conversation,
        stream,
        prompt_numbers: HashMap::new(),
        pending_reports: VecDeque::new(),
    };
    talk.run(context).await
}

/// Converts an error of opening to the error that the client receives.
pub(super) fn open_failure(error: &OpenError) -> Failure {
    let code = match error {
        OpenError::NoPool { .. } => Code::NoSuchPool,
        OpenError::Directory(_) => Code::BadDirectory,
        OpenError::NoSlot(_) => Code::NoSlot,
        OpenError::NoSuchSession(_) => Code::NoSuchSession,
        OpenError::AlreadyOpen(_) => Code::Taken,
        OpenError::Journal(_) => Code::Refused,
        OpenError::Stopping => Code::Stopping,
    };
    Failure::new(code, error.to_string())
}

/// One open conversation.
struct OpenConversation<'a> {
    lines: &'a mut Lines,
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

impl OpenConversation<'_> {
    async fn run<F: Fleet>(mut self, context: &ConnectionContext<F>) -> Result<(), LineError> {
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
                () = context.stop.cancelled() => {
                    let failed = Reply::Failed(open_failure(&OpenError::Stopping));
                    return self.lines.send(reply::write_reply(&failed)).await;
                }
                said = self.lines.next(None) => match said? {
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
                return Ok(());
            }
            if self.conversation.is_released() {
                self.send_message(&ServerMessage::Closed).await?;
                return Ok(());
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

    async fn handle_line(&mut self, line: &[u8]) -> Result<NextStep, LineError> {
        match conversation_protocol::read_client_message(line) {
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
                let failed = Reply::Failed(failure);
                self.lines.send(reply::write_reply(&failed)).await?;
                return Ok(NextStep::Stop);
            }
        }
        Ok(NextStep::Continue)
    }

    /// Sends the ends of the prompts that were open when the client left.
    async fn drain(&mut self) -> Result<(), LineError> {
        while let Some(brought) = self.conversation.try_next_update() {
            self.handle_update(brought).await?;
        }
        while let Some(events) = self.stream.try_next().await {
            self.send_events(&events).await?;
        }
        Ok(())
    }

    async fn handle_update(&mut self, brought: ConversationUpdate) -> Result<NextStep, LineError> {
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
    async fn send_ready_events(&mut self) -> Result<(), LineError> {
        for _ in 0..limits::BROADCAST_EVENTS {
            let Some(events) = self.stream.try_next().await else {
                break;
            };
            self.send_events(&events).await?;
        }
        Ok(())
    }

    async fn send_events(&mut self, events: &[StampedEvent]) -> Result<(), LineError> {
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
            self.lines
                .send(json_lines::item_json(&RunStreamItem::Notice(notice)))
                .await?;
        }
        Ok(())
    }

    fn slot(&self) -> SlotId {
        self.conversation.slot().clone()
    }

    async fn send_prompt_end(&mut self, report: &TaskReport) -> Result<(), LineError> {
        match self.prompt_numbers.remove(&report.task) {
            Some(n) => {
                self.send_message(&conversation_protocol::prompt_ended(n, report))
                    .await
            }
            None => Ok(()),
        }
    }

    async fn send_message(&mut self, message: &ServerMessage) -> Result<(), LineError> {
        self.lines
            .send(conversation_protocol::write_server_message(message))
            .await
    }
}
