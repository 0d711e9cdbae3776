//! A custom dialect: lines of JSON whose meaning is a table of the configuration's.
//!
//! Owns the order of such a conversation: the version gate, one turn at a time, which requests are
//! open. What a message means and what the agent is told is the table's
//! (`config/dialect_table.rs`); `reading` and `said` find it, `filling` writes.
//!
//! What holds whatever a table says:
//!
//! - A prompt is never written while a turn runs, and nothing but what the table says first before
//!   the agent is ready.
//! - A request is allowed only by an answer that allows it. One outside of a turn, one that cannot be
//!   read, one whose id was used before and one too many is denied at once.
//! - Events of another turn are out of state: text is dropped, tool calls are passed on all the same,
//!   so that they are judged.
//! - A turn's end that cannot be read ends the turn `failed`.
//! - A mode that skips requests, by its name, ends the child; a slash command has its time (`slash`).
//! - A session that is to go on under its id and says another one is not that session.

mod events;
mod filling;
mod reading;
mod said;
mod turn;

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use serde_json::value::RawValue;

use super::asks::{Asks, Ids};
use super::drift::Drift;
use super::slash::{self, Heard, Slash};
use super::{Command, Denials, Dialect, Effect, Effects, Fault, Input, Opening, Refused, bad_line};
use crate::config::DialectTable;
use crate::config::dialect_table::{Hole, RuleEvent, Template, Unanswered};
use crate::limits;
use crate::model::{Answer, Event, Foreign, TurnOutcome, Usage};
use crate::wire::json::{self, BadFrame};
use filling::Filling;
use said::Kind;

/// How far the channel is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Phase {
    /// The agent is not ready.
    #[default]
    Handshaking,
    /// Prompts may be sent.
    Ready,
    /// Faulted or at its end: nothing is read or written any more.
    Closed,
}

/// The turn.
#[derive(Debug, PartialEq, Eq, Default)]
enum Turn {
    /// None runs.
    #[default]
    None,
    /// Its prompt was written; the agent has not said that it began.
    Sent,
    /// It runs, under the agent's name for it, if there is one.
    Running(Option<String>),
}

/// The turn that ended last, to know its late events.
#[derive(Debug, Default)]
struct LastTurn {
    id: Option<String>,
    /// An error ended it; its own end may follow.
    by_error: bool,
}

/// What an answer to a request needs.
#[derive(Debug)]
struct Open {
    id: Box<RawValue>,
    /// Its input, where the answer that allows has a place for it and the request has one.
    input: Option<Box<RawValue>>,
    /// It has one that is too large to be kept.
    is_cut: bool,
    tool: Foreign,
}

/// A table, made ready for its messages.
#[derive(Debug)]
struct Plan {
    table: Arc<DialectTable>,
    /// Messages say their type in the member `type` itself.
    is_plain: bool,
    kind: reading::Places,
    kinds: HashMap<String, Kind>,
    /// The agent says by itself that a turn began.
    starts_turns: bool,
}

impl Plan {
    fn of(table: Arc<DialectTable>) -> Self {
        let mut kind = reading::Places::default();
        kind.add(&table.kind);
        let names = table.rules.iter().flat_map(|rule| &rule.kinds);
        let kinds = names.map(|name| (name.clone(), Kind::of(&table, name)));
        Self {
            is_plain: table.kind.to_string() == "type",
            kind,
            kinds: kinds.collect(),
            starts_turns: table.has(RuleEvent::TurnStarted),
            table,
        }
    }
}

/// One channel that speaks by a table.
#[derive(Debug, Default)]
pub struct Custom {
    /// `None`: the channel was not opened, or without a table.
    plan: Option<Arc<Plan>>,
    phase: Phase,
    turn: Turn,
    /// The agent has shown that it took the turn's prompt.
    is_taken: bool,
    /// The turn is to end.
    cancelling: bool,
    last: LastTurn,
    slash: Slash,
    modes: Drift,
    /// The goodbye was said.
    leaving: bool,
    ids: Ids,
    asks: Asks<Open>,
    /// What the turn has used so far.
    usage: Usage,
    workspace: String,
    /// The agent's own id of its session.
    session: Option<String>,
    /// It is to go on with that one.
    resuming: bool,
    denials: Denials,
    /// Those that the turn's prompt tells.
    telling: Denials,
    /// Lines that were no messages.
    bad_lines: u32,
    /// Requests that were denied because too many were open.
    asks_beyond: u32,
}

impl Dialect for Custom {
    fn open(&mut self, opening: &Opening, _now: Instant, out: &mut Effects) {
        let Some(table) = opening.table.clone() else {
            let why = "the table of the pool's dialect was not read".to_owned();
            self.phase = Phase::Closed;
            return out.push(Effect::Fault(Fault::NeedsSetup(why)));
        };
        let plan = Arc::new(Plan::of(table));
        self.slash = Slash::within(opening.control);
        self.modes = Drift::of(opening, &[]);
        self.workspace.clone_from(&opening.workspace);
        self.denials = opening.denials.clone();
        let resume = opening.resume.as_ref().map(|id| id.raw().to_owned());
        self.resuming = resume.is_some() && !plan.table.resume.is_empty();
        self.session = resume.filter(|_| self.resuming);
        let first = if self.resuming {
            &plan.table.resume
        } else {
            &plan.table.open
        };
        for template in first {
            self.say(template, &[], out);
        }
        let greets = plan.table.greets();
        self.plan = Some(Arc::clone(&plan));
        if !greets {
            let info = crate::model::AgentInfo::default();
            self.is_ready(&plan, info, out);
        }
    }

    fn input(&mut self, input: Input<'_>, _now: Instant, out: &mut Effects) {
        let Some(plan) = self.plan.clone().filter(|_| self.phase != Phase::Closed) else {
            return;
        };
        match input {
            Input::Frame(line) => self.line(&plan, line, out),
            Input::TooLong(head) => {
                bad_line("too_long", head, out);
                let cap = limits::LINE_BYTES;
                self.fault(
                    format!("the agent wrote a line of more than {cap} bytes"),
                    out,
                );
            }
            Input::Eof => {
                self.withdraw(out);
                self.phase = Phase::Closed;
            }
        }
    }

    fn command(
        &mut self,
        command: Command,
        now: Instant,
        out: &mut Effects,
    ) -> Result<(), Refused> {
        let plan = self.plan.clone().filter(|_| self.phase != Phase::Closed);
        let Some(plan) = plan else {
            return Err(Refused::Closed);
        };
        if let Command::Goodbye = command {
            self.leave(&plan.table, out);
            return Ok(());
        }
        if self.leaving {
            return Err(Refused::Closed);
        }
        if self.phase == Phase::Handshaking {
            return Err(Refused::NotReady);
        }
        match command {
            Command::Prompt { .. } if self.turn != Turn::None => return Err(Refused::Busy),
            Command::Prompt { text, attached } => self.prompt(&plan, &text, &attached, out),
            Command::Slash { .. } if plan.table.slash.is_none() => {
                return Err(Refused::Unsupported);
            }
            Command::Slash { command, args } => {
                self.slash.begin(self.turn != Turn::None, now)?;
                if let Some(template) = &plan.table.slash {
                    let texts = [(Hole::Command, &*command), (Hole::Args, &*args)];
                    self.say(template, &texts, out);
                }
            }
            Command::Cancel => self.cancel(&plan.table, out),
            Command::Answer { key, answer } => {
                let open = self.asks.answered(&key).ok_or(Refused::UnknownAsk)?;
                self.answer(&plan.table, &open, &answer, out);
            }
            Command::Client { .. } => return Err(Refused::Unsupported),
            Command::Set(_) => {
                let why = "a custom dialect has neither modes nor options that could be set";
                return Err(Refused::NotOffered(why.to_owned()));
            }
            Command::Goodbye => {}
        }
        Ok(())
    }

    fn deadline(&self) -> Option<Instant> {
        (self.phase != Phase::Closed).then(|| self.slash.due())?
    }

    fn tick(&mut self, now: Instant, out: &mut Effects) {
        if self.phase != Phase::Closed {
            self.slash.tick(now, out);
        }
    }

    fn untold(&mut self) -> Denials {
        self.told(self.turn == Turn::None);
        std::mem::take(&mut self.denials)
    }
}

impl Custom {
    fn line(&mut self, plan: &Plan, line: &[u8], out: &mut Effects) {
        let found = json::object(line).and_then(|object| {
            let name = self::kind(plan, object)?;
            Ok((object, name))
        });
        let (object, name) = match found {
            Ok(found) => found,
            Err(bad) => return self.count_bad(bad, line, out),
        };
        let Some(kind) = plan.kinds.get(&*name) else {
            return self.unknown(&plan.table, &name, object, line, out);
        };
        let values = match kind.places.read(object) {
            Ok(values) => values,
            Err(bad) => return self.count_bad(bad, line, out),
        };
        let turn = if values.clash {
            Err(BadFrame::Shape)
        } else {
            kind.turn(&values)
        };
        let mut is_counted = false;
        for reading in &kind.rules {
            if self.phase == Phase::Closed || (!values.clash && !reading.fits(&values)) {
                continue;
            }
            let said = turn
                .clone()
                .and_then(|turn| Ok((turn, reading.said(&values)?)));
            match said {
                Ok((turn, said)) => {
                    let at = events::At {
                        plan,
                        rule: reading.rule,
                        turn: turn.as_deref(),
                        line,
                    };
                    self.said(said, &at, out);
                }
                Err(bad) => {
                    if !std::mem::replace(&mut is_counted, true) {
                        self.count_bad(bad, line, out);
                    }
                    self.misshapen(plan, &name, reading, reading.request_id(&values), out);
                }
            }
        }
    }

    /// A message of a type that has no rule.
    fn unknown(
        &mut self,
        table: &DialectTable,
        name: &str,
        object: &str,
        line: &[u8],
        out: &mut Effects,
    ) {
        let raw: &RawValue = match serde_json::from_str(object) {
            Ok(raw) => raw,
            Err(error) => return self.count_bad(error.into(), line, out),
        };
        if table.ignored.iter().any(|own| own == name) {
            return;
        }
        if self.phase == Phase::Handshaking && !table.early {
            return self.too_early(out);
        }
        if table.others == crate::config::dialect_table::OtherTypes::Tell {
            out.push(Effect::Event(Event::Unknown {
                tag: name.into(),
                raw: raw.to_owned(),
            }));
        }
    }

    /// A message that we know, with a shape that we do not: what waits for it must not wait on.
    fn misshapen(
        &mut self,
        plan: &Plan,
        name: &str,
        reading: &said::Reading,
        id: Option<&RawValue>,
        out: &mut Effects,
    ) {
        let shown = Foreign::from(name).show(80);
        match reading.event {
            _ if self.phase == Phase::Closed => {}
            RuleEvent::Ready => {
                self.fault(format!("the agent's {shown} message cannot be read"), out);
            }
            RuleEvent::SlashResult if self.slash.end() == Heard::Awaited => {
                let why = format!("the agent's {shown} cannot be read");
                out.push(slash::said(false, &why.into()));
            }
            RuleEvent::End if self.turn != Turn::None => {
                let detail = format!("the agent's {shown} cannot be read");
                self.end_turn(Ended::failed(detail), out);
            }
            RuleEvent::Permission if self.phase == Phase::Ready && !self.is_winding_down() => {
                if let Some(id) = id {
                    let why = "the permission request cannot be read";
                    self.deny_at_once(&plan.table, id, why, out);
                }
            }
            _ => {}
        }
    }

    /// Counts a line that is no message; too many of them are another program.
    fn count_bad(&mut self, bad: BadFrame, line: &[u8], out: &mut Effects) {
        bad_line(bad.word(), line, out);
        self.bad_lines = self.bad_lines.saturating_add(1);
        if self.bad_lines > limits::BAD_LINES {
            let most = limits::BAD_LINES;
            let said = format!("more than {most} lines on the agent's stdout were no messages");
            self.fault(said, out);
        }
    }

    /// Writes a template that has nothing of an answer.
    fn say(&self, template: &Template, texts: &[(Hole, &str)], out: &mut Effects) {
        let mut all = texts.to_vec();
        all.extend(self.known());
        let filling = Filling {
            texts: &all,
            ..Filling::default()
        };
        out.push(Effect::Write(filling::line(template, &filling)));
    }

    /// What every template may be filled with.
    fn known(&self) -> [(Hole, &str); 2] {
        let session = self.session.as_deref().unwrap_or_default();
        [(Hole::Session, session), (Hole::Workspace, &self.workspace)]
    }

    /// Says goodbye, once.
    fn leave(&mut self, table: &DialectTable, out: &mut Effects) {
        if std::mem::replace(&mut self.leaving, true) {
            return;
        }
        self.give_up_asks(table, "the session ends", out);
        if let Some(template) = &table.goodbye {
            self.say(template, &[], out);
        }
        if table.close_input {
            out.push(Effect::CloseInput);
        }
    }

    /// Whether the agent was told to end what it does.
    const fn is_winding_down(&self) -> bool {
        self.cancelling || self.leaving
    }

    /// Ends every open request unanswered.
    fn withdraw(&mut self, out: &mut Effects) {
        let open = self.asks.close_all().into_iter();
        out.extend(open.map(|(key, _)| Effect::Withdrawn(key)));
    }

    /// Ends every open request, with the answer that the table wants then.
    fn give_up_asks(&mut self, table: &DialectTable, why: &str, out: &mut Effects) {
        for (key, open) in self.asks.close_all() {
            out.push(Effect::Withdrawn(key));
            let replies = table.permission.as_ref();
            if replies.is_some_and(|replies| replies.unanswered == Unanswered::Deny) {
                self.deny(table, &open.id, why, out);
            }
        }
    }

    fn answer(&mut self, table: &DialectTable, open: &Open, answer: &Answer, out: &mut Effects) {
        let Some(replies) = &table.permission else {
            return;
        };
        let echo = replies.allow.has(Hole::Input);
        match answer {
            Answer::Allow if !echo || !open.is_cut => {
                let known = self.known();
                let filling = Filling {
                    texts: &known,
                    id: Some(&open.id),
                    input: open.input.as_deref(),
                    ..Filling::default()
                };
                out.push(Effect::Write(filling::line(&replies.allow, &filling)));
            }
            // What cannot be said as it was judged is not allowed.
            Answer::Allow => self.deny(table, &open.id, "the input is too large", out),
            Answer::Deny(reason) => {
                if !replies.deny.has(Hole::Reason) {
                    self.denials.add(&open.tool, reason);
                }
                self.deny(table, &open.id, reason, out);
            }
        }
    }

    fn deny(&self, table: &DialectTable, id: &RawValue, reason: &str, out: &mut Effects) {
        let Some(replies) = &table.permission else {
            return;
        };
        let [session, workspace] = self.known();
        let filling = Filling {
            texts: &[(Hole::Reason, reason), session, workspace],
            id: Some(id),
            ..Filling::default()
        };
        out.push(Effect::Write(filling::line(&replies.deny, &filling)));
    }

    /// Denies a request that nobody is asked about.
    fn deny_at_once(
        &mut self,
        table: &DialectTable,
        id: &RawValue,
        reason: &str,
        out: &mut Effects,
    ) {
        let open = reading::name_of(id).and_then(|name| self.asks.close(&name));
        out.extend(open.map(|(key, _)| Effect::Withdrawn(key)));
        self.deny(table, id, reason, out);
    }

    fn too_early(&mut self, out: &mut Effects) {
        let said = "the agent sent an event before it was ready";
        self.fault(said.to_owned(), out);
    }

    fn fault(&mut self, said: String, out: &mut Effects) {
        self.refuse(Fault::Protocol(said), out);
    }

    fn refuse(&mut self, fault: Fault, out: &mut Effects) {
        self.withdraw(out);
        self.phase = Phase::Closed;
        out.push(Effect::Fault(fault));
    }
}

/// What is known of a turn's end.
struct Ended {
    /// The turn's id as the ending message gives it.
    turn: Option<String>,
    outcome: TurnOutcome,
    stop_reason: Option<Foreign>,
    /// The ending message's own word on it.
    usage: Option<Usage>,
    detail: Option<String>,
}

impl Ended {
    fn failed(detail: String) -> Self {
        Self {
            turn: None,
            outcome: TurnOutcome::Failed,
            stop_reason: None,
            usage: None,
            detail: Some(detail),
        }
    }
}

/// The type of a message; empty where it has none and the table has a rule for that.
fn kind<'a>(plan: &Plan, object: &'a str) -> Result<Cow<'a, str>, BadFrame> {
    let found = if plan.is_plain {
        json::tag(object)
    } else {
        let values = plan.kind.read(object)?;
        let name = values.get(0).and_then(reading::name_of);
        name.ok_or(BadFrame::NoType)
    };
    match found {
        Err(BadFrame::NoType) if plan.kinds.contains_key("") => Ok(Cow::Borrowed("")),
        found => found,
    }
}
