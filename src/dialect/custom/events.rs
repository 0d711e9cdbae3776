//! What each thing that a message says brings about.
//!
//! Owns the reading of events against the state of the channel; the state itself stands in the
//! parent module.

use std::borrow::Cow;

use serde_json::value::RawValue;

use super::said::{End, Request, Said, Slash};
use super::{Custom, Ended, Open, Phase, Plan, Turn, reading};
use crate::config::dialect_table::{Accepted, EndsTurn, Hole, Told, Unanswered};
use crate::dialect::asks::Clash;
use crate::dialect::custom::filling::{self, Filling};
use crate::dialect::slash::{self, Heard};
use crate::dialect::{Effect, Effects, Fault, bad_line, lenient};
use crate::limits;
use crate::model::{AgentInfo, Ask, Event, Foreign, Origin, TurnOutcome};

/// The reason of a line that came when it could not.
const OUT_OF_STATE: &str = "out_of_state";

/// By which rule something was said, and of which turn.
pub(super) struct At<'a> {
    pub(super) plan: &'a Plan,
    pub(super) rule: usize,
    pub(super) turn: Option<&'a str>,
    pub(super) line: &'a [u8],
}

impl At<'_> {
    fn told(&self) -> &Told {
        let rule = self.plan.table.rules.get(self.rule);
        rule.map_or(&Told::Nothing, |rule| &rule.told)
    }

    fn out_of_state(&self, out: &mut Effects) {
        bad_line(OUT_OF_STATE, self.line, out);
    }
}

impl Custom {
    pub(super) fn said(&mut self, said: Said<'_>, at: &At<'_>, out: &mut Effects) {
        match said {
            Said::Ready(version, info) => self.greeted(version, *info, at, out),
            Said::Send(id) => self.reply(id, at, out),
            Said::NotResumed(why) => {
                let why = why.show(300);
                self.refuse(Fault::NotResumed(why), out);
            }
            Said::Fault(why) => {
                let said = format!("the agent reported: {}", why.show(300));
                self.fault(said, out);
            }
            early if self.phase == Phase::Handshaking => self.early(early, at, out),
            Said::TurnStarted(id) => self.turn_started(id, at, out),
            Said::Text(delta) => {
                let delta = delta.into();
                self.piece(Event::Text { delta }, at, out);
            }
            Said::Thought(delta) => {
                let delta = delta.into();
                self.piece(Event::Thought { delta }, at, out);
            }
            Said::Tool(event) | Said::ToolEnd(event) => {
                if !self.goes_on(at.turn) {
                    at.out_of_state(out);
                }
                out.push(Effect::Event(event));
            }
            Said::Permission(request) => self.permission(*request, at, out),
            Said::Withdraw(name) => match self.asks.close(&name) {
                Some((key, _)) => out.push(Effect::Withdrawn(key)),
                None => bad_line("unknown_id", at.line, out),
            },
            Said::Usage(usage) if self.turn != Turn::None => {
                self.usage.input = self.usage.input.saturating_add(usage.input);
                self.usage.output = self.usage.output.saturating_add(usage.output);
            }
            Said::Usage(_) => {}
            Said::State(event) => {
                self.state_is(event, out);
            }
            Said::End(end) => self.ended(*end, at, out),
            Said::Error {
                code,
                message,
                origin,
            } => self.error(code, message, origin, at, out),
            Said::Slash(slash) => self.slash_result(*slash, at, out),
        }
    }

    /// The version gate: before anything is written that the table does not say first.
    fn greeted(
        &mut self,
        version: Option<&RawValue>,
        mut info: AgentInfo,
        at: &At<'_>,
        out: &mut Effects,
    ) {
        if self.phase != Phase::Handshaking {
            return self.fault("the agent said ready twice".to_owned(), out);
        }
        let accepted = &at.plan.table.accepted;
        if !accepted.is_empty() {
            let said = version.map_or("none", RawValue::get);
            if !version.is_some_and(|version| accepted.iter().any(|one| fits(version, one))) {
                let theirs = Foreign::from(said).show(40);
                let ours = shown(accepted);
                return self.refuse(Fault::VersionOf { theirs, ours }, out);
            }
            info.protocol = version
                .and_then(reading::name_of)
                .map_or_else(|| said.to_owned(), Cow::into_owned);
        }
        let is_other = |own: &Foreign| Some(own.raw()) != self.session.as_deref();
        if self.resuming && info.session.as_ref().is_some_and(is_other) {
            let why = "it is in another session than the one that it was to go on with";
            return self.refuse(Fault::NotResumed(why.to_owned()), out);
        }
        self.is_ready(at.plan, info, out);
    }

    pub(super) fn is_ready(&mut self, plan: &Plan, mut info: AgentInfo, out: &mut Effects) {
        if let Some(fault) = self.modes.begins(info.mode.as_ref()) {
            return self.refuse(fault, out);
        }
        self.phase = Phase::Ready;
        if plan.table.accepted.is_empty() {
            info.protocol.clone_from(&plan.table.name);
        }
        if self.resuming {
            info.session = info
                .session
                .or_else(|| self.session.clone().map(Foreign::new));
        }
        self.session = info.session.as_ref().map(|own| own.raw().to_owned());
        out.push(Effect::Ready(info));
        if self.resuming {
            out.push(Effect::Event(Event::SessionResumed {
                how: "resume",
                replayed: 0,
            }));
        }
    }

    /// Its model, mode or context are these now; `false` if it must end for that.
    fn state_is(&mut self, state: Event, out: &mut Effects) -> bool {
        let fault = match &state {
            Event::StateChanged {
                mode: Some(mode), ..
            } => self.modes.goes(mode),
            _ => None,
        };
        out.push(Effect::Event(state));
        let is_safe = fault.is_none();
        if let Some(fault) = fault {
            self.refuse(fault, out);
        }
        is_safe
    }

    /// An event before the agent is ready: a fault, but what an error says is worth showing.
    fn early(&mut self, said: Said<'_>, at: &At<'_>, out: &mut Effects) {
        let is_error = matches!(said, Said::Error { .. });
        if at.plan.table.early && !is_error {
            if let Said::Permission(request) = said {
                let table = &at.plan.table;
                self.deny_at_once(table, request.id, "the agent is not ready", out);
            }
            return;
        }
        let Said::Error {
            code,
            message,
            origin,
        } = said
        else {
            return self.too_early(out);
        };
        let (event, said) = reported(code, message, origin);
        out.push(Effect::Event(event));
        if !at.plan.table.early {
            self.fault(format!("{said}, before it was ready"), out);
        }
    }

    /// Something that the table says in return.
    fn reply(&mut self, id: Option<&RawValue>, at: &At<'_>, out: &mut Effects) {
        let Told::Send(template) = at.told() else {
            return;
        };
        if self.leaving {
            return;
        }
        if template.has(Hole::Id) && id.is_none() {
            return bad_line("bad_shape", at.line, out);
        }
        let known = self.known();
        let filling = Filling {
            texts: &known,
            id,
            ..Filling::default()
        };
        out.push(Effect::Write(filling::line(template, &filling)));
    }

    /// Whether an event that names this turn belongs to the one that runs. An event that names
    /// none does, if one runs; one that has no name yet is not the one before.
    fn is_current(&self, id: Option<&str>) -> bool {
        match (&self.turn, id) {
            (Turn::None, _) => false,
            (Turn::Running(Some(ours)), Some(theirs)) => ours == theirs,
            (Turn::Running(None) | Turn::Sent, Some(theirs)) => {
                self.last.id.as_deref() != Some(theirs)
            }
            (Turn::Running(_) | Turn::Sent, None) => true,
        }
    }

    /// The same of an event that shows that the turn goes on: it gives it its name, if it has none.
    fn goes_on(&mut self, id: Option<&str>) -> bool {
        if !self.is_current(id) {
            return false;
        }
        self.is_taken = true;
        if let (Turn::Running(name @ None), Some(id)) = (&mut self.turn, id) {
            *name = Some(id.to_owned());
        }
        true
    }

    fn turn_started(&mut self, id: Option<String>, at: &At<'_>, out: &mut Effects) {
        if self.turn != Turn::Sent {
            return at.out_of_state(out);
        }
        let id = id.or_else(|| at.turn.map(str::to_owned));
        out.push(Effect::Event(Event::TurnStarted {
            turn: id.clone().map(Foreign::new),
        }));
        self.turn = Turn::Running(id);
        self.is_taken = true;
        // The first one may have found no turn.
        if self.cancelling && !self.leaving {
            self.interrupt(&at.plan.table, out);
        }
    }

    fn piece(&mut self, event: Event, at: &At<'_>, out: &mut Effects) {
        if !self.goes_on(at.turn) {
            return at.out_of_state(out);
        }
        out.push(Effect::Event(event));
    }

    fn permission(&mut self, request: Request<'_>, at: &At<'_>, out: &mut Effects) {
        let table = &at.plan.table;
        let Some(replies) = &table.permission else {
            return at.out_of_state(out);
        };
        if self.is_winding_down() {
            at.out_of_state(out);
            if replies.unanswered == Unanswered::Deny {
                self.deny_at_once(table, request.id, "the turn is cancelled", out);
            }
            return;
        }
        if self.turn == Turn::None && !self.slash.is_open() {
            at.out_of_state(out);
            return self.deny_at_once(table, request.id, "no turn is running", out);
        }
        self.is_taken = self.is_taken || self.turn != Turn::None;
        // A larger input is not allowed by anybody.
        let echo = request.input.filter(|_| replies.allow.has(Hole::Input));
        let is_cut = echo.is_some_and(|raw| raw.get().len() > limits::ASK_INPUT_BYTES);
        let open = Open {
            id: request.id.to_owned(),
            input: echo.filter(|_| !is_cut).map(ToOwned::to_owned),
            is_cut,
            tool: request.tool.clone(),
        };
        let key = match self.asks.open(&mut self.ids, &request.name, open) {
            Ok(key) => key,
            Err(clash) => {
                let (reason, said) = match clash {
                    Clash::Duplicate => ("duplicate_id", "this request id was used before"),
                    Clash::TooMany => ("too_many_asks", "too many permission requests are open"),
                    Clash::LongId => ("bad_shape", "the request id is too long"),
                };
                bad_line(reason, at.line, out);
                self.deny_at_once(table, request.id, said, out);
                if clash == Clash::TooMany {
                    self.asked_beyond(out);
                }
                return;
            }
        };
        out.push(Effect::Ask(Ask {
            key,
            tool_id: request.tool_id,
            tool: request.tool,
            input: lenient::owned(request.input),
            claimed: request.claimed,
        }));
    }

    /// One more request was denied because too many are open.
    fn asked_beyond(&mut self, out: &mut Effects) {
        self.asks_beyond = self.asks_beyond.saturating_add(1);
        if self.asks_beyond > limits::ASKS_BEYOND {
            let most = limits::OPEN_ASKS;
            let said = format!(
                "the agent asks on and on while {most} of its requests wait for their answers"
            );
            self.fault(said, out);
        }
    }

    fn ended(&mut self, end: End, at: &At<'_>, out: &mut Effects) {
        let current = self.is_current(at.turn);
        let late = self.turn == Turn::None
            && std::mem::take(&mut self.last.by_error)
            && (at.turn.is_none() || at.turn == self.last.id.as_deref());
        if !current && !late {
            return at.out_of_state(out);
        }
        out.extend(end.files.into_iter().map(|(tool, path)| {
            Effect::Event(Event::FileUpdated {
                tool,
                path,
                sha256: None,
                version: None,
            })
        }));
        if !current {
            return;
        }
        let (outcome, odd) = outcome(at.told(), end.reason.as_deref());
        let most = limits::TURN_MUTATIONS;
        let beyond = (end.beyond > 0).then(|| {
            let beyond = end.beyond;
            format!("of the changed files the first {most} are listed, {beyond} are not")
        });
        let is_failed = outcome == TurnOutcome::Failed;
        let error = end
            .error
            .filter(|_| is_failed)
            .map(|error| format!("the agent reported: {}", error.show(300)));
        let ended = Ended {
            turn: at.turn.map(str::to_owned),
            outcome,
            stop_reason: end.reason.map(Foreign::new),
            usage: end.usage,
            detail: error.or(odd.filter(|_| is_failed)).or(beyond),
        };
        self.end_turn(ended, out);
    }

    fn slash_result(&mut self, told: Slash, at: &At<'_>, out: &mut Effects) {
        let heard = self.slash.end();
        // One that nobody asked for must not make an exit look wanted; what it says of the mode counts.
        if heard == Heard::Unasked {
            at.out_of_state(out);
            if let Some(state) = told.state {
                self.state_is(state, out);
            }
            return;
        }
        if self.turn == Turn::None {
            self.withdraw(out);
        }
        let end = match &told.result {
            Event::SlashResult { text, .. } => slash::said(true, text),
            _ => slash::said(true, &Foreign::default()),
        };
        out.push(Effect::Event(told.result));
        if told.clear {
            out.push(Effect::SessionCleared);
        }
        if told.state.is_some_and(|state| !self.state_is(state, out)) {
            return;
        }
        if heard == Heard::Awaited {
            out.push(end);
        }
        if told.exit {
            self.leaving = true;
            out.push(Effect::ExitWanted);
        }
    }

    fn error(
        &mut self,
        code: Foreign,
        message: Foreign,
        origin: Origin,
        at: &At<'_>,
        out: &mut Effects,
    ) {
        let rejected = match (&self.turn, at.turn) {
            (Turn::None, _) => false,
            (Turn::Sent, None) => true,
            // Where no word says that a turn began, it is of the prompt as long as nothing came of it.
            (Turn::Running(_), None) => !self.is_taken,
            (_, Some(_)) => self.goes_on(at.turn),
        };
        let ends = match at.told() {
            Told::Ends(EndsTurn::Always) => self.turn != Turn::None,
            Told::Ends(EndsTurn::Never) => false,
            _ => rejected,
        };
        let is_of_slash =
            self.turn == Turn::None && at.turn.is_none() && self.slash.end() == Heard::Awaited;
        let end = is_of_slash.then(|| slash::said(false, &message));
        let (event, said) = reported(code, message, origin);
        out.push(Effect::Event(event));
        out.extend(end);
        if ends {
            let end = Ended {
                turn: at.turn.map(str::to_owned),
                ..Ended::failed(said)
            };
            self.end_turn(end, out);
            self.last.by_error = true;
        }
    }
}

/// How a turn ended, by the agent's word; and what is odd about that.
fn outcome(told: &Told, reason: Option<&str>) -> (TurnOutcome, Option<String>) {
    let Told::Outcome { by_word, otherwise } = told else {
        return (TurnOutcome::Failed, None);
    };
    let mut words = by_word.iter();
    let known = reason.and_then(|reason| words.find(|(word, _)| word == reason));
    if let Some((_, outcome)) = known {
        return (*outcome, None);
    }
    let odd = match reason {
        Some(reason) => format!(
            "the table has no outcome for the agent's word {}",
            Foreign::from(reason).show(80)
        ),
        None => return (*otherwise, None),
    };
    (*otherwise, Some(odd))
}

/// Whether a version is one that is spoken.
fn fits(version: &RawValue, accepted: &Accepted) -> bool {
    let text = || serde_json::from_str::<String>(version.get()).ok();
    match accepted {
        Accepted::Integer(number) => version.get() == number.to_string(),
        Accepted::Text(own) => text().is_some_and(|text| text == *own),
        Accepted::Begins(begin) => text().is_some_and(|text| text.starts_with(begin)),
    }
}

/// The versions that are spoken, for a sentence.
fn shown(accepted: &[Accepted]) -> String {
    let words = accepted.iter().map(|one| match one {
        Accepted::Integer(number) => number.to_string(),
        Accepted::Text(text) => text.clone(),
        Accepted::Begins(begin) => format!("{begin}*"),
    });
    Foreign::new(words.collect::<Vec<_>>().join(" or ")).show(120)
}

/// An error as an event, and as a sentence of ours.
fn reported(code: Foreign, message: Foreign, origin: Origin) -> (Event, String) {
    let said = format!(
        "the agent reported error {}: {}",
        code.show(80),
        message.show(300)
    );
    let event = Event::AgentError {
        code,
        message,
        origin,
    };
    (event, said)
}
