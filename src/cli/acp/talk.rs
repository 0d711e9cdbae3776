//! One session of an editor: a conversation with the supervisor, and what the editor hears of it.
//!
//! Must not know the other sessions.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::json;
use tokio::sync::{Notify, OwnedSemaphorePermit, mpsc};

use super::sessions::{Session, ToSession};
use super::{Client, ClientError, Desk, rpc};
use crate::api::acp::incoming::RequestId;
use crate::api::acp::known::{Known, Places};
use crate::api::acp::{RpcError, outgoing, permission, update};
use crate::api::control::{LineReader, LineWriter};
use crate::api::reply::{self, Reply};
use crate::api::talk::{self, AskView, Say, Told};
use crate::api::view;
use crate::api::watch::Item;
use crate::fleet::Notice;
use crate::limits;
use crate::model::foreign::show;
use crate::model::{
    AskId, DecidedBy, Decision, Event, Foreign, SessionId, Setting, TaskId, TaskOutcome,
    TurnOutcome,
};

/// How a session is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum How {
    /// A new one.
    New,
    /// An earlier one, whose history is told first.
    Load,
    /// An earlier one, of which nothing is told.
    Resume,
}

/// What the editor asked for.
#[derive(Debug)]
pub(super) struct Opening {
    pub(super) id: RequestId,
    pub(super) directory: PathBuf,
    pub(super) session: Option<SessionId>,
    pub(super) how: How,
    pub(super) place: OwnedSemaphorePermit,
}

/// One session, from its opening to its end.
pub(super) async fn run(desk: Desk, opening: Opening) {
    let gone = desk.gone.clone();
    let mut id = None;
    tokio::select! {
        () = talk(&desk, opening, &mut id) => {}
        () = gone.cancelled() => {}
    }
    if let Some(id) = id {
        desk.sessions.remove(&id);
    }
}

async fn talk(desk: &Desk, opening: Opening, registered: &mut Option<String>) {
    let place = opening.place;
    let opened = async {
        let mut client = Client::connect(&desk.place.state_dir).await?;
        let (pool, directory) = (desk.place.pool.clone(), opening.directory.clone());
        let session = client.open(pool, directory, opening.session).await?;
        Ok::<_, ClientError>((client, session))
    };
    let (client, session) = match opened.await {
        Ok(opened) => opened,
        Err(error) => return desk.fail(&opening.id, &rpc(error)).await,
    };
    let (reader, writer) = client.into_lines().split();
    let (to_server, says) = mpsc::channel(limits::CONVERSATION_QUEUE);
    let writing = tokio::spawn(write(writer, says));
    let (handle, heard, cancel) = Session::new(opening.directory);
    let mut talk = Talk {
        desk,
        session: session.to_string(),
        reader,
        to_server,
        prompts: HashMap::new(),
        cancelled: HashSet::new(),
        next: 0,
        turn: None,
        prompted: None,
        known: Known::of(desk.can.get().copied().unwrap_or_default()),
        sets: HashMap::new(),
        held_back: Some(Vec::new()),
        replays: true,
        is_told: opening.how == How::Load,
        closing: None,
    };
    let mut result = match opening.how {
        How::New => json!({"sessionId": session.as_str()}),
        How::Load | How::Resume => json!({}),
    };
    // What was there comes before the reply, what the agent says at its start after it.
    let began = async {
        talk.past().await?;
        talk.started().await
    };
    match began.await {
        Ok(()) => {
            talk.known.add_to(&mut result);
            desk.sessions.insert(session.as_str(), handle);
            *registered = Some(session.to_string());
            desk.out.send(outgoing::reply(&opening.id, &result)).await;
            for event in talk.held_back.take().into_iter().flatten() {
                talk.event(&event).await;
            }
            let ended = talk.run(heard, &cancel).await;
            desk.sessions.remove(session.as_str());
            talk.over(ended).await;
        }
        Err(error) => desk.fail(&opening.id, &rpc(error)).await,
    }
    writing.abort();
    drop(place);
}

/// Writes what the editor says, beside the reading: one that does not read would stop the other.
async fn write(mut writer: LineWriter, mut says: mpsc::Receiver<Say>) {
    while let Some(say) = says.recv().await {
        if writer.send(talk::write_say(&say)).await.is_err() {
            return; // The reader hears of it.
        }
    }
}

/// One open session.
struct Talk<'a> {
    desk: &'a Desk,
    session: String,
    reader: LineReader,
    to_server: mpsc::Sender<Say>,
    /// The editor's requests that wait for the end of a prompt, by our number of it.
    prompts: HashMap<u64, RequestId>,
    /// Those that were open when the editor cancelled.
    cancelled: HashSet<u64>,
    next: u64,
    /// How the last turn ended.
    turn: Option<(TurnOutcome, Option<Foreign>)>,
    /// The task of the prompt that was told last, of the past: one that was taken in again because
    /// its child ended before it got it is told once.
    prompted: Option<TaskId>,
    /// What is known of it.
    known: Known,
    /// The editor's requests that wait for something to be set, by our number of it; whether it is
    /// an option.
    sets: HashMap<u64, (RequestId, bool)>,
    /// What the agent said before the reply to the opening was sent.
    held_back: Option<Vec<Event>>,
    /// What comes is of the past.
    replays: bool,
    /// The past is told.
    is_told: bool,
    closing: Option<RequestId>,
}

/// A line of the supervisor.
enum Heard {
    Told(Told),
    Events(Arc<Vec<crate::model::Stamped>>),
    Other,
}

impl Talk<'_> {
    async fn heard(&mut self) -> Result<Heard, ClientError> {
        let lost = |why: &str| ClientError::Lost(why.to_owned());
        let line = self.reader.next(None).await?;
        let line = line.ok_or_else(|| lost("it closed the connection"))?;
        let line = String::from_utf8(line).map_err(|_| lost("a line is not UTF-8"))?;
        if let Some(told) = talk::read_told(&line) {
            return Ok(Heard::Told(told));
        }
        match view::read_item(&line) {
            Ok(Some(Item::Notice(Notice::Events { events, .. }))) => Ok(Heard::Events(events)),
            Ok(_) => Ok(Heard::Other),
            Err(error) => match reply::read_reply(&line) {
                Some(Reply::Failed(failure)) => Err(ClientError::Refused(failure)),
                _ => Err(lost(&error.to_string())),
            },
        }
    }

    /// What was there before it was opened.
    async fn past(&mut self) -> Result<(), ClientError> {
        loop {
            match self.heard().await? {
                Heard::Told(Told::CaughtUp) => break,
                Heard::Events(events) => {
                    for event in events.iter() {
                        self.event(&event.event).await;
                    }
                }
                Heard::Told(Told::Roots { inside, outside }) => {
                    self.known.places = Places { inside, outside };
                }
                Heard::Told(_) | Heard::Other => {}
            }
        }
        self.replays = false;
        self.turn = None;
        Ok(())
    }

    /// Until the agent has said what it offers, or will not without a prompt.
    async fn started(&mut self) -> Result<(), ClientError> {
        loop {
            match self.heard().await? {
                Heard::Told(Told::Started) => return Ok(()),
                Heard::Events(events) => {
                    for event in events.iter().map(|event| &event.event) {
                        self.known.note(event);
                        if let Some(held) = &mut self.held_back
                            && held.len() < HELD_BACK
                        {
                            held.push(event.clone());
                        }
                    }
                }
                Heard::Told(_) | Heard::Other => {}
            }
        }
    }

    /// Goes on until it is closed; the error says why it is not any more, if it is not closed.
    async fn run(
        &mut self,
        mut heard: mpsc::Receiver<ToSession>,
        cancel: &Notify,
    ) -> Result<(), ClientError> {
        loop {
            tokio::select! {
                biased;
                // Before a cancel that found no room: what came before it is cancelled with it.
                wanted = heard.recv() => match wanted {
                    Some(wanted) => self.wanted(wanted).await,
                    None => return Ok(()),
                },
                () = cancel.notified() => self.wanted(ToSession::Cancel).await,
                heard = self.heard() => match heard? {
                    Heard::Told(Told::Closed) => return Ok(()),
                    Heard::Told(told) => self.told(told).await,
                    Heard::Events(events) => {
                        for event in events.iter() {
                            self.event(&event.event).await;
                        }
                    }
                    Heard::Other => {}
                },
            }
        }
    }

    async fn wanted(&mut self, wanted: ToSession) {
        let say = match wanted {
            ToSession::Prompt { id, text } => {
                self.next += 1;
                self.prompts.insert(self.next, id);
                Say::Prompt { n: self.next, text }
            }
            ToSession::Answer { ask, said } => Say::Answer { ask, said },
            ToSession::Set { id, .. } if self.sets.len() >= SETS => {
                let why = "too much is being set at once: wait for the answers";
                return self.desk.fail(&id, &RpcError::internal(why)).await;
            }
            ToSession::Set { id, setting } => {
                self.next += 1;
                let is_option = matches!(setting, Setting::Option { .. });
                self.sets.insert(self.next, (id, is_option));
                Say::Set {
                    n: self.next,
                    setting,
                }
            }
            ToSession::Cancel => {
                self.cancelled.extend(self.prompts.keys());
                Say::Cancel
            }
            ToSession::Close { id } => {
                if let Some(before) = self.closing.replace(id) {
                    self.reply(&before, &json!({})).await;
                }
                self.cancelled.extend(self.prompts.keys());
                Say::Close
            }
        };
        let _ = self.to_server.send(say).await;
    }

    async fn told(&mut self, told: Told) {
        match told {
            Told::Refused { n, message } => {
                if let Some(id) = self.prompts.remove(&n) {
                    self.desk.fail(&id, &RpcError::internal(message)).await;
                }
            }
            Told::Ended { n, outcome, detail } => {
                let is_ours = self.cancelled.remove(&n);
                let Some(id) = self.prompts.remove(&n) else {
                    return;
                };
                match result(outcome, self.turn.take(), detail, is_ours) {
                    Ok(reason) => self.reply(&id, &json!({"stopReason": reason})).await,
                    Err(error) => self.desk.fail(&id, &error).await,
                }
            }
            Told::Asked(ask) => self.ask(&ask).await,
            Told::AskOver { ask } => self.desk.sessions.ask_over(&ask),
            Told::Set { n, refused } => {
                let Some((id, is_option)) = self.sets.remove(&n) else {
                    return;
                };
                match refused {
                    Some(why) => self.desk.fail(&id, &RpcError::params(why)).await,
                    None if is_option => {
                        let options = self.known.config_options();
                        self.reply(&id, &json!({"configOptions": options})).await;
                    }
                    None => self.reply(&id, &json!({})).await,
                }
            }
            Told::CaughtUp | Told::Started | Told::Roots { .. } | Told::Closed => {}
        }
    }

    async fn ask(&mut self, ask: &AskView) {
        let Ok(id) = AskId::new(&ask.ask) else { return };
        let id = self.desk.sessions.ask(&self.session, id);
        let params = permission::params(&self.session, ask);
        let line = outgoing::request(id, permission::METHOD, &params);
        self.desk.out.send(line).await;
    }

    async fn event(&mut self, event: &Event) {
        self.known.note(event);
        match event {
            Event::TurnEnded {
                outcome,
                stop_reason,
                ..
            } => self.turn = Some((*outcome, stop_reason.clone())),
            Event::PromptAccepted { task, .. } => {
                self.turn = None;
                if self.replays && task.is_some() && self.prompted == *task {
                    return;
                }
                self.prompted.clone_from(task);
            }
            Event::Decided(verdict)
                if verdict.decision == Decision::Deny && verdict.by != DecidedBy::Human =>
            {
                // Few agents say why, and a person wants to know.
                let why = show(&verdict.reason, 400);
                let text = format!("[marshal] denied: {why}\n\n");
                if !self.replays || self.is_told {
                    self.update(&update::remark(&text)).await;
                }
            }
            Event::SessionFresh { .. } if !self.replays || self.is_told => {
                self.update(&update::said(FORGOT)).await;
            }
            _ => {}
        }
        if self.replays && !self.is_told {
            return;
        }
        if let Some(told) = update::of(event, &self.known, self.replays) {
            self.update(&told).await;
        }
    }

    async fn update(&self, told: &update::Update<'_>) {
        self.desk
            .out
            .send(outgoing::update(&self.session, told))
            .await;
    }

    async fn reply(&self, id: &RequestId, result: &serde_json::Value) {
        self.desk.out.send(outgoing::reply(id, result)).await;
    }

    /// The session is over: whoever waits is told.
    async fn over(mut self, ended: Result<(), ClientError>) {
        let why = ended.err().map_or_else(
            || RpcError::internal("the session was closed"),
            |error| {
                tracing::warn!(session = %self.session, %error, "a session broke off");
                rpc(error)
            },
        );
        let sets = std::mem::take(&mut self.sets).into_values();
        let prompts = std::mem::take(&mut self.prompts).into_values();
        for id in prompts.chain(sets.map(|(id, _)| id)) {
            self.desk.fail(&id, &why).await;
        }
        if let Some(id) = self.closing.take() {
            self.reply(&id, &json!({})).await;
        }
    }
}

/// Events at the start of an agent that wait for the reply to the opening; more are only journalled.
const HELD_BACK: usize = 1024;
/// Requests to set something that wait for their answers.
const SETS: usize = 8;

/// What the user reads when the agent had to begin anew.
const FORGOT: &str = "[marshal] The agent could not load this session again: it goes on in the same files and does not remember what was said.\n\n";

/// The stop reason of a prompt that ended, or the error that it ended with.
fn result(
    outcome: TaskOutcome,
    turn: Option<(TurnOutcome, Option<Foreign>)>,
    detail: Option<Foreign>,
    was_cancelled: bool,
) -> Result<&'static str, RpcError> {
    let (turn, word) = turn.unzip();
    let word = word.flatten();
    match (outcome, turn) {
        (TaskOutcome::Skipped | TaskOutcome::Cancelled, _) => Ok("cancelled"),
        // What was asked for while it ended otherwise is no error of anybody.
        (TaskOutcome::Lost | TaskOutcome::Failed, _) if was_cancelled => Ok("cancelled"),
        (_, Some(TurnOutcome::Completed)) => Ok("end_turn"),
        (_, Some(TurnOutcome::Limited)) => Ok(match word.as_ref().map(Foreign::raw) {
            Some("max_turn_requests") => "max_turn_requests",
            _ => "max_tokens",
        }),
        (_, Some(TurnOutcome::Refused)) => Ok("refusal"),
        (_, Some(TurnOutcome::Cancelled)) => Ok("cancelled"),
        _ => {
            let why = detail.map(|detail| detail.show(1000));
            let why = why.filter(|why| !why.is_empty());
            Err(RpcError::internal(why.unwrap_or_else(|| {
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
