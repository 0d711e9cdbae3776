//! A connection that has become a conversation: what the client says, what it is told.
//!
//! The connection's end, for whatever reason, is the client's leaving. Must not know what a client
//! makes of what it is told.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::lines::{LineError, Lines};
use super::{Desk, Fleet};
use crate::api::conversation::ConversationStream;
use crate::api::reply::{self, Reply};
use crate::api::request::{Code, Failure};
use crate::api::talk::{self, AskView, Say, Told};
use crate::api::view;
use crate::api::watch::Item;
use crate::fleet::{
    Asking, Brought, Conversation, ConversationOrder, Notice, OpenError, TaskReport,
};
use crate::limits;
use crate::model::{Event, SlotId, Stamped, TaskId};

/// Opens a conversation and talks until one of both ends.
pub(super) async fn open<F: Fleet>(
    lines: &mut Lines,
    desk: &Desk<F>,
    order: ConversationOrder,
) -> Result<(), LineError> {
    // Before it is opened, so that nothing of it is missed.
    let notices = desk.fleet.watch();
    let opened = tokio::select! {
        opened = desk.fleet.converse(order) => opened,
        speaks = lines.speaks() => {
            // Nothing may be said before the answer: whoever speaks, or leaves, is let go.
            let error = if speaks { std::io::ErrorKind::InvalidData } else { std::io::ErrorKind::ConnectionAborted };
            return Err(LineError::Io(error.into()));
        }
        () = desk.stop.cancelled() => Err(OpenError::Stopping),
    };
    let conversation = match opened {
        Ok(conversation) => conversation,
        Err(error) => {
            let failed = Reply::Failed(failure(&error));
            return lines.send(reply::write_reply(&failed)).await;
        }
    };
    let opened = Reply::Opened {
        session: conversation.session().clone(),
    };
    lines.send(reply::write_reply(&opened)).await?;
    let past = (0, conversation.last_seq());
    let session = conversation.session().clone();
    let stream = ConversationStream::new(notices, session, past, desk.fleet.history());
    let talk = Talk {
        lines,
        conversation,
        stream,
        numbers: HashMap::new(),
        ended: VecDeque::new(),
    };
    talk.run(desk).await
}

/// Why a conversation was not opened, as it goes over the socket.
pub(super) fn failure(error: &OpenError) -> Failure {
    let code = match error {
        OpenError::NoPool { .. } => Code::NoSuchPool,
        OpenError::Directory(_) => Code::BadDirectory,
        OpenError::NoSlot(_) => Code::NoSlot,
        OpenError::NoSuchSession(_) => Code::NoSuchSession,
        OpenError::Taken(_) => Code::Taken,
        OpenError::Journal(_) => Code::Refused,
        OpenError::Stopping => Code::Stopping,
    };
    Failure::new(code, error.to_string())
}

/// One open conversation.
struct Talk<'a> {
    lines: &'a mut Lines,
    conversation: Conversation,
    stream: ConversationStream,
    /// The client's numbers of its open prompts.
    numbers: HashMap<TaskId, u64>,
    /// Ends that are told when their events have been.
    ended: VecDeque<Arc<TaskReport>>,
}

/// Whether the conversation goes on.
enum Next {
    Goes,
    Ends,
}

impl Talk<'_> {
    async fn run<F: Fleet>(mut self, desk: &Desk<F>) -> Result<(), LineError> {
        let (inside, outside) = self.conversation.roots();
        self.told(&Told::Roots { inside, outside }).await?;
        while let Some(events) = self.past().await {
            self.tell(&events).await?;
        }
        self.told(&Told::CaughtUp).await?;
        loop {
            let next = tokio::select! {
                biased;
                () = desk.stop.cancelled() => {
                    let failed = Reply::Failed(failure(&OpenError::Stopping));
                    return self.lines.send(reply::write_reply(&failed)).await;
                }
                said = self.lines.next(None) => match said? {
                    Some(line) => self.said(&line).await?,
                    None => Next::Ends,
                },
                brought = self.conversation.next() => match brought {
                    Some(brought) => self.brought(brought).await?,
                    None => Next::Ends,
                },
                events = self.stream.next() => match events {
                    Some(events) => {
                        self.tell(&events).await?;
                        Next::Goes
                    }
                    None => Next::Ends,
                },
            };
            if matches!(next, Next::Ends) {
                return Ok(());
            }
            if self.conversation.has_left() {
                self.told(&Told::Closed).await?;
                return Ok(());
            }
        }
    }

    /// What was there before it was opened.
    async fn past(&mut self) -> Option<Vec<Stamped>> {
        if self.stream.given() >= self.conversation.last_seq() {
            return None;
        }
        self.stream.next().await
    }

    async fn said(&mut self, line: &[u8]) -> Result<Next, LineError> {
        match talk::read_say(line) {
            Ok(Say::Prompt { n, text }) => match self.conversation.prompt(text).await {
                Ok(task) => {
                    self.numbers.insert(task, n);
                }
                Err(error) => {
                    let message = error.to_string();
                    self.told(&Told::Refused { n, message }).await?;
                }
            },
            Ok(Say::Cancel) => self.conversation.cancel(),
            Ok(Say::Answer { ask, said }) => self.conversation.answer(ask, said),
            Ok(Say::Set { n, setting }) => self.conversation.set(n, setting),
            Ok(Say::Close) => {
                self.conversation.leave().await;
                self.drain().await?;
            }
            Err(failure) => {
                let failed = Reply::Failed(failure);
                self.lines.send(reply::write_reply(&failed)).await?;
                return Ok(Next::Ends);
            }
        }
        Ok(Next::Goes)
    }

    /// The ends of what was open when the client left.
    async fn drain(&mut self) -> Result<(), LineError> {
        while let Some(brought) = self.conversation.ready() {
            self.brought(brought).await?;
        }
        while let Some(events) = self.stream.ready().await {
            self.tell(&events).await?;
        }
        Ok(())
    }

    async fn brought(&mut self, brought: Brought) -> Result<Next, LineError> {
        match brought {
            Brought::Asking(Asking::Asked(ask)) => {
                // Its tool call comes before it.
                while self.stream.given() < ask.seq
                    && let Some(events) = self.stream.ready().await
                {
                    self.tell(&events).await?;
                }
                let view = AskView::of(&ask);
                self.told(&Told::Asked(Box::new(view))).await?;
            }
            Brought::Asking(Asking::Over { id, .. }) => {
                self.told(&Told::AskOver { ask: id }).await?;
            }
            Brought::Set(done) => {
                self.tell_what_is_there().await?;
                let refused = done.result.err();
                let n = done.number;
                self.told(&Told::Set { n, refused }).await?;
            }
            Brought::Warmed => {
                self.tell_what_is_there().await?;
                self.told(&Told::Started).await?;
            }
            Brought::Ended(report) => {
                self.ended.push_back(report);
                self.tell_what_is_there().await?;
                while let Some(report) = self.ended.pop_front() {
                    self.tell_end(&report).await?;
                }
            }
        }
        Ok(Next::Goes)
    }

    /// Events are told to the watchers before what they end in is: what is there goes first.
    async fn tell_what_is_there(&mut self) -> Result<(), LineError> {
        for _ in 0..limits::BROADCAST_EVENTS {
            let Some(events) = self.stream.ready().await else {
                break;
            };
            self.tell(&events).await?;
        }
        Ok(())
    }

    async fn tell(&mut self, events: &[Stamped]) -> Result<(), LineError> {
        for event in events {
            // The next prompt's begin comes after the end of the one before it.
            if let Event::PromptAccepted { task, .. } = &event.event
                && let Some(before) = self.ended.front()
                && Some(&before.task) != task.as_ref()
                && let Some(report) = self.ended.pop_front()
            {
                self.tell_end(&report).await?;
            }
            let notice = Notice::Events {
                slot: self.slot(),
                session: self.conversation.session().clone(),
                task: None,
                events: Arc::new(vec![event.clone()]),
                pin: None,
            };
            self.lines.send(view::item(&Item::Notice(notice))).await?;
        }
        Ok(())
    }

    fn slot(&self) -> SlotId {
        self.conversation.slot().clone()
    }

    async fn tell_end(&mut self, report: &TaskReport) -> Result<(), LineError> {
        match self.numbers.remove(&report.task) {
            Some(n) => self.told(&talk::ended(n, report)).await,
            None => Ok(()),
        }
    }

    async fn told(&mut self, told: &Told) -> Result<(), LineError> {
        self.lines.send(talk::write_told(told)).await
    }
}
