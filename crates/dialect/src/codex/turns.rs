//! One turn: its prompt, its name, its end, and its cancellation.
//!
//! Must not know what happens within one.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::keepalive::RetryTarget;
use super::{Codex, write};
use crate::driver::Protocol as _;
use crate::jsonrpc::{ErrorReply, Outcome};
use crate::lenient::{parse_id, parse_object, parse_string};
use crate::turn_end::TurnEnd;
use crate::{Effect, Effects, OUT_OF_STATE, PendingDenials, report_bad_line};
use marshal_model::{ErrorOrigin, Event, TurnOutcome, UntrustedText};
use marshal_wire::json::{BadFrame, JsonString};

/// How many replies that arrive after their turn's end are recognized: to the request that starts a
/// turn and to the interrupts of earlier turns.
const LATE: usize = 8;

/// The running turn.
#[derive(Debug)]
pub(super) struct Turn {
    /// The request that starts it, until its reply arrives.
    pub(super) request: Option<u64>,
    /// The agent's name for the turn.
    pub(super) id: Option<String>,
    /// Whether `turn/started` has arrived.
    has_begun: bool,
    /// Whether its beginning was reported.
    is_reported: bool,
    /// Its prompt, until the agent has accepted it.
    prompt: Option<Prompt>,
    /// Whether an interrupt was written before the agent knew the turn.
    needs_interrupt: bool,
    /// The last error that the agent reported.
    error: Option<UntrustedText>,
}

#[derive(Debug)]
struct Prompt {
    denials: PendingDenials,
    text: UntrustedText,
}

/// A turn, as the agent reports it.
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
    /// Its name, if it is usable.
    fn name(&self) -> Option<String> {
        parse_id(self.id).map(UntrustedText::into_raw)
    }
}

/// The parameters of `turn/started` and `turn/completed`.
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
    /// The agent's word for the error's kind.
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
            // A word, or an object of one member: the kind, with its details.
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
    /// Accepts a prompt. For us the turn begins here.
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
        let id = self.requests.next_id();
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

    /// Handles the reply to that: the turn's name, or an error.
    pub(super) fn on_turn_start_reply(&mut self, outcome: Outcome<'_>, out: &mut Effects) {
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
                // A turn with output was accepted, whatever this reply says.
                let is_new = turn.id.is_none() && !turn.is_reported && !self.cancelling;
                if is_new && self.schedule_retry(&error, RetryTarget::Turn) {
                    return;
                }
                let detail = error.describe_without_data();
                out.push(Effect::Event(error.into_event()));
                return self.end_turn(TurnEnd::failure(detail), out);
            }
        };
        turn.prompt = None;
        let named = parse_object::<Started<'_>>(result)
            .and_then(|started| parse_object::<TurnInfo<'_>>(started.turn))
            .and_then(|turn_info| turn_info.name());
        let Some(named) = named else {
            let text = "the agent began a turn without a usable id";
            return self.fail_protocol(text.to_owned(), out);
        };
        if turn.id.as_ref().is_some_and(|known| *known != named) {
            let text = "the agent gave one turn two ids";
            return self.fail_protocol(text.to_owned(), out);
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
        // Before the reply, it is our turn only if our prompt was sent.
        if turn.id.is_none() && turn.request.is_none() {
            return report_bad_line(OUT_OF_STATE, object.as_bytes(), out);
        }
        turn.has_begun = true;
        turn.prompt = None;
        let is_new = turn.id.is_none();
        turn.id = Some(name);
        let again = std::mem::take(&mut turn.needs_interrupt);
        self.note_turn_activity(out);
        if self.cancelling && (is_new || again) && !self.channel.is_shutting_down {
            self.interrupt(out);
        }
    }

    /// Records that the running turn has output, and so its name. A turn whose request waits for a
    /// retry has none.
    pub(super) fn note_turn_activity(&mut self, out: &mut Effects) {
        let named = self.turn.as_mut().filter(|turn| turn.id.is_some());
        let Some(turn) = named.filter(|turn| !turn.is_reported) else {
            return;
        };
        turn.is_reported = true;
        let turn = turn.id.clone().map(UntrustedText::new);
        out.push(Effect::Event(Event::TurnStarted { turn }));
    }

    /// Whether a turn runs that the agent has accepted.
    pub(super) fn has_named_turn(&self) -> bool {
        self.turn.as_ref().is_some_and(|turn| turn.id.is_some())
    }

    /// Whether a message of this thread and turn belongs to the running turn.
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
        let Some((params, turn_info, name)) = read.and_then(|params| {
            let turn_info = parse_object::<TurnInfo<'_>>(params.turn)?;
            let name = turn_info.name()?;
            Some((params, turn_info, name))
        }) else {
            // It is of our thread, but its turn is unreadable: no other end may follow.
            self.count_bad_line(BadFrame::Shape, object.as_bytes(), out);
            let has_begun = self.turn.as_ref().is_some_and(|turn| turn.is_reported);
            if has_begun && !self.channel.is_closed() {
                let detail = "the end of the turn cannot be read".to_owned();
                self.end_turn(TurnEnd::failure(detail), out);
            }
            return;
        };
        if !self.is_current(&params.thread_id.0, &name) {
            return report_bad_line(OUT_OF_STATE, object.as_bytes(), out);
        }
        let status = parse_string(turn_info.status);
        let error = turn_info.error.and_then(TurnError::read);
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
            usage: None,
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
        let was_cancelling = std::mem::take(&mut self.cancelling);
        let turn = self.turn.take();
        let overtaken = turn.as_ref().and_then(|turn| turn.request);
        self.expect_late_reply(overtaken);
        let interrupt = self.interrupt.take();
        self.expect_late_reply(interrupt);
        self.denials.restore(unsent_denials(turn));
        self.retries.cancel(RetryTarget::Turn);
        self.retries.cancel(RetryTarget::Interrupt);
        self.items.clear();
        let end = TurnEnd {
            usage: Some(self.tokens.turn()),
            ..end
        };
        out.push(Effect::Event(end.into_event(was_cancelling)));
    }

    /// Records that a reply will come which is no longer awaited.
    fn expect_late_reply(&mut self, id: Option<u64>) {
        let Some(id) = id else { return };
        if self.late.len() >= LATE {
            self.late.pop_front();
        }
        self.late.push_back(id);
    }

    /// Whether a reply is such a late one.
    pub(super) fn take_late_reply(&mut self, id: u64) -> bool {
        let at = self.late.iter().position(|late| *late == id);
        at.and_then(|at| self.late.remove(at)).is_some()
    }

    /// Cancels the running turn. Does nothing if none runs, or if it is already cancelled.
    pub(super) fn cancel(&mut self, out: &mut Effects) {
        let Some(turn) = &self.turn else { return };
        if self.cancelling {
            return;
        }
        self.cancelling = true;
        let has_name = turn.id.is_some();
        self.cancel_requests(out);
        if self.retries.cancel(RetryTarget::Turn) {
            // The agent never accepted it.
            let detail = "the agent was overloaded and had not accepted the turn".to_owned();
            return self.end_turn(TurnEnd::failure(detail), out);
        }
        if has_name {
            self.interrupt(out);
        }
    }

    /// Writes the interrupt of the running turn, by its name.
    pub(super) fn interrupt(&mut self, out: &mut Effects) {
        let is_named = self.turn.as_ref().is_some_and(|turn| turn.id.is_some());
        if !is_named || self.channel.is_shutting_down {
            return;
        }
        let id = self.requests.next_id();
        let named = self.turn.as_ref().and_then(|turn| turn.id.as_deref());
        let (Some(thread), Some(turn)) = (&self.thread, named) else {
            return;
        };
        out.push(Effect::Write(write::interrupt(id, thread, turn)));
        let earlier = self.interrupt.replace(id);
        self.expect_late_reply(earlier);
    }

    /// Handles the reply to an interrupt. The turn ends with its own message.
    pub(super) fn on_interrupt_reply(&mut self, error: Option<&ErrorReply>) {
        let Some(error) = error else {
            return self.retries.reset();
        };
        if self.schedule_retry(error, RetryTarget::Interrupt) {
            return;
        }
        if let Some(turn) = &mut self.turn {
            // It was written before the turn began for the agent.
            turn.needs_interrupt = !turn.has_begun;
        }
    }
}

/// The denials in a turn's prompt, if the agent has not accepted it.
pub(super) fn unsent_denials(turn: Option<Turn>) -> PendingDenials {
    let prompt = turn.and_then(|turn| turn.prompt);
    prompt.map(|prompt| prompt.denials).unwrap_or_default()
}
