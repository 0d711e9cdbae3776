//! One turn: its prompt, its name, its end, and how it is cancelled.
//!
//! Must not know what happens within one.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::keepalive::RetryTarget;
use super::{Codex, OUT_OF_STATE, Phase, describe_error, write};
use crate::envelope::ErrorReply;
use crate::lenient::{parse_object, parse_string};
use crate::{Effect, Effects, PendingDenials, report_bad_line};
use marshal_model::limits;
use marshal_model::{ErrorOrigin, Event, TurnOutcome, UntrustedText};
use marshal_wire::json::{BadFrame, JsonString};

/// Requests of ours that a turn's end overtook whose late replies are known: one that starts a turn and
/// the interrupts of the turns before.
const LATE: usize = 8;

/// The turn that runs.
#[derive(Debug)]
pub(super) struct Turn {
    /// The request that starts it, until its reply.
    pub(super) request: Option<u64>,
    /// The agent's name for it.
    pub(super) id: Option<String>,
    /// `turn/started` came.
    has_begun: bool,
    /// That it began was told.
    is_reported: bool,
    /// Its prompt, until the agent has taken it.
    prompt: Option<Prompt>,
    /// An interrupt was written, and the agent did not know the turn yet.
    needs_interrupt: bool,
    /// The error that the agent reported last.
    error: Option<UntrustedText>,
}

#[derive(Debug)]
struct Prompt {
    denials: PendingDenials,
    text: UntrustedText,
}

/// How a turn ended.
struct TurnEnd {
    outcome: TurnOutcome,
    stop_reason: Option<UntrustedText>,
    detail: Option<String>,
}

/// A turn, as the agent tells of it.
#[derive(Deserialize)]
struct TurnInfo<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    status: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

impl TurnInfo<'_> {
    /// Its name, if it can be kept.
    fn name(&self) -> Option<String> {
        let id = parse_string(self.id)?.into_raw();
        (!id.is_empty() && id.len() <= limits::FOREIGN_ID_BYTES).then_some(id)
    }
}

/// What `turn/started` and `turn/completed` say.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Params<'a> {
    #[serde(borrow)]
    thread_id: JsonString<'a>,
    #[serde(borrow)]
    turn: &'a RawValue,
}

/// An error of a turn.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TurnError {
    /// The agent's word for its kind.
    pub(super) code: UntrustedText,
    pub(super) message: UntrustedText,
}

impl TurnError {
    pub(super) fn read(raw: &RawValue) -> Option<Self> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Shape<'a> {
            #[serde(borrow)]
            message: Option<&'a RawValue>,
            #[serde(borrow)]
            codex_error_info: Option<&'a RawValue>,
        }
        let shape: Shape<'_> = parse_object(raw)?;
        let code = shape.codex_error_info.map(|info| {
            // A word, or an object of one member: its kind, with what is known of it.
            parse_string(Some(info)).unwrap_or_else(|| UntrustedText::new(info.get()))
        });
        Some(Self {
            code: code.unwrap_or_default(),
            message: parse_string(shape.message).unwrap_or_default(),
        })
    }

    fn event(self) -> Event {
        Event::AgentError {
            code: self.code,
            message: self.message,
            origin: ErrorOrigin::Unknown,
        }
    }
}

impl Codex {
    /// Takes a prompt: the turn has begun for us.
    pub(super) fn prompt(&mut self, text: UntrustedText, out: &mut Effects) {
        let denials = std::mem::take(&mut self.denials);
        self.tokens.turn_begins();
        self.turn = Some(Turn {
            request: None,
            id: None,
            has_begun: false,
            is_reported: false,
            prompt: Some(Prompt { denials, text }),
            needs_interrupt: false,
            error: None,
        });
        self.start_turn(out);
    }

    /// Writes the request that starts the turn.
    pub(super) fn start_turn(&mut self, out: &mut Effects) {
        let id = self.fresh_id();
        let (Some(thread), Some(turn)) = (&self.thread, &mut self.turn) else {
            return;
        };
        let Some(prompt) = &turn.prompt else { return };
        turn.request = Some(id);
        let denials = prompt.denials.prompt_prefix();
        let mut texts: Vec<&str> = denials.as_deref().into_iter().collect();
        texts.push(prompt.text.raw());
        out.push(Effect::Write(write::turn(
            id,
            thread,
            &texts,
            &self.opening.codex,
        )));
    }

    /// The reply to that: the turn's name, or why there is none.
    pub(super) fn on_turn_start_reply(
        &mut self,
        outcome: Result<&RawValue, ErrorReply>,
        out: &mut Effects,
    ) {
        #[derive(Deserialize)]
        struct Started<'a> {
            #[serde(borrow)]
            turn: &'a RawValue,
        }
        let Some(turn) = &mut self.turn else { return };
        turn.request = None;
        let result = match outcome {
            Ok(result) => result,
            Err(error) => {
                // One that has begun, or of which something came, was taken, whatever this says.
                let is_new = turn.id.is_none() && !turn.is_reported && !self.cancelling;
                if is_new && self.schedule_retry(&error, RetryTarget::Turn) {
                    return;
                }
                let detail = describe_error(&error);
                out.push(Effect::Event(Event::AgentError {
                    code: error.code.into(),
                    message: error.message.into(),
                    origin: ErrorOrigin::Unknown,
                }));
                return self.end_turn(TurnEnd::failure(detail), out);
            }
        };
        turn.prompt = None;
        let named = parse_object::<Started<'_>>(result)
            .and_then(|started| parse_object::<TurnInfo<'_>>(started.turn))
            .and_then(|told| told.name());
        let Some(named) = named else {
            let said = "the agent began a turn without an id that can be used";
            return self.fail_protocol(said.to_owned(), out);
        };
        if turn.id.as_ref().is_some_and(|known| *known != named) {
            let said = "the agent gave one turn two ids";
            return self.fail_protocol(said.to_owned(), out);
        }
        let is_new = turn.id.is_none();
        turn.id = Some(named);
        self.retries.reset();
        if self.cancelling && is_new {
            self.interrupt(out);
        }
    }

    /// The turn begins for the agent.
    pub(super) fn turn_started(&mut self, params: &RawValue, object: &str, out: &mut Effects) {
        let read = parse_object::<Params<'_>>(params);
        let Some((params, name)) = read.and_then(|params| {
            let name = parse_object::<TurnInfo<'_>>(params.turn)?.name()?;
            Some((params, name))
        }) else {
            return self.count_bad_line(BadFrame::Shape, object.as_bytes(), out);
        };
        let is_ours = self.is_our_thread(&params.thread_id.0);
        let Some(turn) = self.turn.as_mut().filter(|turn| {
            is_ours && turn.id.as_ref().is_none_or(|id| *id == name) && !turn.has_begun
        }) else {
            return report_bad_line(OUT_OF_STATE, object.as_bytes(), out);
        };
        // Before the reply it is a turn of ours only if its prompt is under way.
        if turn.id.is_none() && turn.request.is_none() {
            return report_bad_line(OUT_OF_STATE, object.as_bytes(), out);
        }
        turn.has_begun = true;
        turn.prompt = None;
        let is_new = turn.id.is_none();
        turn.id = Some(name);
        let again = std::mem::take(&mut turn.needs_interrupt);
        self.note_turn_activity(out);
        if self.cancelling && (is_new || again) && !self.is_shutting_down {
            self.interrupt(out);
        }
    }

    /// Notes that something of the running turn came, which has its name by then: one that still waits
    /// to be asked for again has none.
    pub(super) fn note_turn_activity(&mut self, out: &mut Effects) {
        let named = self.turn.as_mut().filter(|turn| turn.id.is_some());
        let Some(turn) = named.filter(|turn| !turn.is_reported) else {
            return;
        };
        turn.is_reported = true;
        let turn = turn.id.clone().map(UntrustedText::new);
        out.push(Effect::Event(Event::TurnStarted { turn }));
    }

    /// Whether a turn runs that the agent has taken.
    pub(super) fn has_named_turn(&self) -> bool {
        self.turn.as_ref().is_some_and(|turn| turn.id.is_some())
    }

    /// Whether a message that names this thread and turn is of the turn that runs.
    pub(super) fn is_current(&self, thread: &str, turn: &str) -> bool {
        let running = self.turn.as_ref();
        let is_it = |running: &Turn| match &running.id {
            Some(id) => id == turn,
            None => false,
        };
        self.is_our_thread(thread) && running.is_some_and(is_it)
    }

    /// The turn's end.
    pub(super) fn turn_completed(&mut self, params: &RawValue, object: &str, out: &mut Effects) {
        let read = parse_object::<Params<'_>>(params);
        let is_other = |params: &Params<'_>| !self.is_our_thread(&params.thread_id.0);
        if read.as_ref().is_some_and(is_other) {
            return report_bad_line(OUT_OF_STATE, object.as_bytes(), out);
        }
        let Some((params, told, name)) = read.and_then(|params| {
            let told = parse_object::<TurnInfo<'_>>(params.turn)?;
            let name = told.name()?;
            Some((params, told, name))
        }) else {
            // Of our thread, and nobody knows which turn: no other end may follow.
            self.count_bad_line(BadFrame::Shape, object.as_bytes(), out);
            let has_begun = self.turn.as_ref().is_some_and(|turn| turn.is_reported);
            if has_begun && self.phase != Phase::Closed {
                let detail = "the end of the turn cannot be read".to_owned();
                self.end_turn(TurnEnd::failure(detail), out);
            }
            return;
        };
        if !self.is_current(&params.thread_id.0, &name) {
            return report_bad_line(OUT_OF_STATE, object.as_bytes(), out);
        }
        let status = parse_string(told.status);
        let error = told.error.and_then(TurnError::read);
        let word = status.as_ref().map(UntrustedText::raw);
        let outcome = match word {
            Some("completed") => TurnOutcome::Completed,
            Some("interrupted") => TurnOutcome::Cancelled,
            _ => TurnOutcome::Failed,
        };
        let detail = match &error {
            Some(error) => Some(format!(
                "the agent reported error {}: {}",
                error.code.escape_for_display(80),
                error.message.escape_for_display(300)
            )),
            None if outcome != TurnOutcome::Failed => None,
            None if word == Some("failed") => Some("the turn failed".to_owned()),
            None => Some("the end of the turn cannot be read".to_owned()),
        };
        if let Some(error) = error {
            self.report(error, out);
        }
        let end = TurnEnd {
            outcome,
            stop_reason: status,
            detail,
        };
        self.end_turn(end, out);
    }

    /// Reports an error of the turn, once: it comes by itself and with the turn's end.
    pub(super) fn report(&mut self, error: TurnError, out: &mut Effects) {
        let last = self.turn.as_mut().map(|turn| &mut turn.error);
        if let Some(last) = last {
            if last.as_ref() == Some(&error.message) {
                return;
            }
            *last = Some(error.message.clone());
        }
        out.push(Effect::Event(error.event()));
    }

    fn end_turn(&mut self, end: TurnEnd, out: &mut Effects) {
        self.cancel_requests(out);
        let asked = std::mem::take(&mut self.cancelling);
        let turn = self.turn.take();
        let overtaken = turn.as_ref().and_then(|turn| turn.request);
        self.expect_late_reply(overtaken);
        let interrupt = self.interrupt.take();
        self.expect_late_reply(interrupt);
        self.denials.restore(unsent_denials(turn));
        self.retries.cancel(RetryTarget::Turn);
        self.retries.cancel(RetryTarget::Interrupt);
        self.items.clear();
        let outcome = match end.outcome {
            TurnOutcome::Failed if asked => TurnOutcome::Cancelled,
            outcome => outcome,
        };
        out.push(Effect::Event(Event::TurnEnded {
            outcome,
            stop_reason: end.stop_reason,
            usage: self.tokens.turn(),
            detail: end.detail,
        }));
    }

    /// Notes that a reply will come for which nobody waits any more.
    fn expect_late_reply(&mut self, id: Option<u64>) {
        let Some(id) = id else { return };
        if self.late.len() >= LATE {
            self.late.pop_front();
        }
        self.late.push_back(id);
    }

    /// Whether a reply is such a one.
    pub(super) fn take_late_reply(&mut self, id: u64) -> bool {
        let at = self.late.iter().position(|late| *late == id);
        at.and_then(|at| self.late.remove(at)).is_some()
    }

    /// Ends the running turn from our side. Nothing to do if none runs, or if that was said.
    pub(super) fn cancel(&mut self, out: &mut Effects) {
        let Some(turn) = &self.turn else { return };
        if self.cancelling {
            return;
        }
        self.cancelling = true;
        let has_name = turn.id.is_some();
        self.cancel_requests(out);
        if self.retries.cancel(RetryTarget::Turn) {
            // The agent never took it.
            let detail = "the agent had no room for the turn yet".to_owned();
            return self.end_turn(TurnEnd::failure(detail), out);
        }
        if has_name {
            self.interrupt(out);
        }
    }

    /// Writes the interrupt of the turn that runs, by its name.
    pub(super) fn interrupt(&mut self, out: &mut Effects) {
        let is_named = self.turn.as_ref().is_some_and(|turn| turn.id.is_some());
        if !is_named || self.is_shutting_down {
            return;
        }
        let id = self.fresh_id();
        let named = self.turn.as_ref().and_then(|turn| turn.id.as_deref());
        let (Some(thread), Some(turn)) = (&self.thread, named) else {
            return;
        };
        out.push(Effect::Write(write::interrupt(id, thread, turn)));
        let earlier = self.interrupt.replace(id);
        self.expect_late_reply(earlier);
    }

    /// The reply to an interrupt. What ends the turn is its own message.
    pub(super) fn on_interrupt_reply(&mut self, error: Option<&ErrorReply>) {
        let Some(error) = error else {
            return self.retries.reset();
        };
        if self.schedule_retry(error, RetryTarget::Interrupt) {
            return;
        }
        if let Some(turn) = &mut self.turn {
            // Said before the turn began for the agent.
            turn.needs_interrupt = !turn.has_begun;
        }
    }
}

/// What a turn's prompt was to tell, if the agent has not taken it.
pub(super) fn unsent_denials(turn: Option<Turn>) -> PendingDenials {
    let prompt = turn.and_then(|turn| turn.prompt);
    prompt.map(|prompt| prompt.denials).unwrap_or_default()
}

impl TurnEnd {
    const fn failure(detail: String) -> Self {
        Self {
            outcome: TurnOutcome::Failed,
            stop_reason: None,
            detail: Some(detail),
        }
    }
}
