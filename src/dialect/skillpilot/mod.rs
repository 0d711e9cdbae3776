//! `SkillPilot`'s file control plane from the Master's side, over a carrier: a prompt becomes a command's
//! file, its output text, its result the turn's end. Source: its page "SkillPilot File Control Plane
//! Protocol", version 1.
//!
//! Owns the order of the conversation with the carrier (`marshal runner --stdio` or `--carry`): the version
//! gate, one command at a time, the lease, signs of life. Must not know files; what a name or a file
//! holds is `skillpilot`'s.
//!
//! What is decided here:
//!
//! - An id is the carrier's random word and a number, so that no command is taken for one of an earlier start.
//! - Cancel names its command, so that it never ends another. A Runner that does not hear of it is the business
//!   of the channel's deadlines.
//! - The agent is ready when its Runner is idle or busy and, where that is somebody else's, has given a sign of
//!   life since. Somebody else's Runner is not stopped with us, and gets a lease only where that is wanted.
//! - A sign of life is missed only between commands: some Runners give none while one runs.

mod message;

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Command, Dialect, Effect, Effects, Fault, Input, Opening, Refused, bad_line};
use crate::config;
use crate::limits;
use crate::model::{AgentInfo, Event, Foreign, TurnOutcome, Usage};
use crate::skillpilot::carried::PROTOCOL;
use crate::skillpilot::{CommandName, Phase as RunnerPhase, SeenResult, Status};
use crate::wire::json::{self, BadFrame};
use message::{Hello, Message};

/// The version that we speak, as a text.
const OURS: &str = "1";
/// The least time without a sign of life after which a Runner is given up.
const SILENCE: Duration = Duration::from_secs(30);
/// How many signs of life may be missing.
const MISSED: u32 = 6;

/// How far the channel is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Phase {
    /// The carrier has not said hello, or its Runner is not there.
    #[default]
    Handshaking,
    /// Prompts may be sent.
    Ready,
    /// Faulted or at its end.
    Closed,
}

/// Who carries.
#[derive(Debug)]
struct Carrier {
    word: String,
    version: Option<Foreign>,
    session: Foreign,
    /// It is the Runner, too.
    runs: bool,
    next_seq: u64,
    /// Commands of this channel: the carrier's numbers may end, and an id must not come twice.
    sent: u64,
}

/// The command that runs.
#[derive(Debug)]
struct Turn {
    /// `cmd_<seq>_<id>`.
    stem: String,
    id: String,
    cancelling: bool,
}

/// One channel that speaks the file control plane.
#[derive(Debug, Default)]
pub struct Skillpilot {
    phase: Phase,
    wants: Arc<config::Runner>,
    resume: Option<Foreign>,
    carrier: Option<Carrier>,
    /// The Runner works, by its own word.
    works: bool,
    /// It gave a sign of life.
    lives: bool,
    turn: Option<Turn>,
    leaving: bool,
    lease_at: Option<Instant>,
    silent_at: Option<Instant>,
    bad_lines: u32,
}

impl Dialect for Skillpilot {
    /// Nothing: the carrier speaks first.
    fn open(&mut self, opening: &Opening, _now: Instant, _out: &mut Effects) {
        self.wants = Arc::clone(&opening.runner);
        self.resume = opening.resume.clone();
    }

    fn input(&mut self, input: Input<'_>, now: Instant, out: &mut Effects) {
        if self.phase == Phase::Closed {
            return;
        }
        match input {
            Input::Frame(line) => self.line(line, now, out),
            Input::TooLong(head) => {
                bad_line("too_long", head, out);
                let cap = limits::LINE_BYTES;
                self.fault(
                    format!("the carrier wrote a line of more than {cap} bytes"),
                    out,
                );
            }
            Input::Eof => self.close(),
        }
    }

    fn command(
        &mut self,
        command: Command,
        now: Instant,
        out: &mut Effects,
    ) -> Result<(), Refused> {
        if self.phase == Phase::Closed {
            return Err(Refused::Closed);
        }
        if let Command::Goodbye = command {
            self.leave(out);
            return Ok(());
        }
        if self.leaving {
            return Err(Refused::Closed);
        }
        if self.phase == Phase::Handshaking {
            return Err(Refused::NotReady);
        }
        match command {
            Command::Prompt { .. } if self.turn.is_some() => Err(Refused::Busy),
            Command::Prompt { text, .. } => self.prompt(&text, out),
            Command::Cancel => {
                self.cancel(out);
                Ok(())
            }
            Command::Answer { .. } => Err(Refused::UnknownAsk),
            Command::Slash { .. } | Command::Client { .. } => Err(Refused::Unsupported),
            Command::Set(_) => {
                let why = "a Runner has neither modes nor options that could be set";
                Err(Refused::NotOffered(why.to_owned()))
            }
            Command::Goodbye => Ok(()),
        }
        .inspect(|()| self.heard(now))
    }

    fn deadline(&self) -> Option<Instant> {
        if self.phase == Phase::Closed {
            return None;
        }
        let silent = self.silent_at.filter(|_| self.turn.is_none());
        [self.lease_at, silent].into_iter().flatten().min()
    }

    fn tick(&mut self, now: Instant, out: &mut Effects) {
        if self.phase == Phase::Closed {
            return;
        }
        if self.lease_at.is_some_and(|at| at <= now) {
            self.lease(now, out);
        }
        if self.turn.is_none() && self.silent_at.is_some_and(|at| at <= now) {
            let silence = self.silence().as_secs();
            let said = format!("the Runner gave no sign of life for {silence} s");
            self.refuse(Fault::Unanswered(said), out);
        }
    }
}

impl Skillpilot {
    fn line(&mut self, line: &[u8], now: Instant, out: &mut Effects) {
        let (object, tag) = match json::object(line).and_then(|o| Ok((o, json::tag(o)?))) {
            Ok(found) => found,
            Err(bad) => return self.count_bad(bad, line, out),
        };
        match message::read(&tag, object) {
            Ok(message) => self.message(message, line, now, out),
            Err(BadFrame::Shape) if &*tag == "hello" && self.carrier.is_none() => {
                self.count_bad(BadFrame::Shape, line, out);
                self.fault("the carrier's hello cannot be read".to_owned(), out);
            }
            Err(BadFrame::Shape) if &*tag == "result" && self.turn.is_some() => {
                self.count_bad(BadFrame::Shape, line, out);
                self.end_turn(
                    TurnOutcome::Failed,
                    None,
                    Some("the Runner's result cannot be read".to_owned()),
                    out,
                );
            }
            Err(bad) => self.count_bad(bad, line, out),
        }
    }

    fn message(&mut self, message: Message<'_>, line: &[u8], now: Instant, out: &mut Effects) {
        if let Message::Hello(hello) = message {
            return self.hello(&hello, now, out);
        }
        if self.carrier.is_none() {
            let said = "the carrier sent something before its hello".to_owned();
            return self.fault(said, out);
        }
        self.heard(now);
        match message {
            Message::Hello(_) => {}
            Message::Output { command, text } => {
                if self.is_current(&command) {
                    out.push(Effect::Event(Event::Text { delta: text.into() }));
                } else {
                    bad_line("out_of_state", line, out);
                }
            }
            Message::Result { command, content } => {
                if self.is_current(&command) {
                    self.result(content, out);
                } else {
                    bad_line("out_of_state", line, out);
                }
            }
            Message::State(phase) => {
                self.works = matches!(phase, RunnerPhase::Idle | RunnerPhase::Busy);
                self.is_ready(out);
            }
            Message::Heartbeat => {
                self.lives = true;
                self.is_ready(out);
            }
            Message::Refused { path, why } => self.refused(&path, &why, out),
            Message::Unknown(tag, raw) => out.push(Effect::Event(Event::Unknown {
                tag,
                raw: raw.to_owned(),
            })),
        }
    }

    /// The version gate: only the integer 1 passes, before anything is written.
    fn hello(&mut self, hello: &Hello<'_>, now: Instant, out: &mut Effects) {
        if self.carrier.is_some() {
            return self.fault("the carrier said hello twice".to_owned(), out);
        }
        let theirs = hello.protocol.map_or("none", |raw| raw.get());
        if theirs != OURS {
            let theirs = Foreign::from(theirs).show(40);
            return self.refuse(Fault::Version { theirs, ours: OURS }, out);
        }
        let Some(parts) = hello.parts() else {
            return self.fault("the carrier's hello cannot be read".to_owned(), out);
        };
        let carrier = Carrier {
            word: parts.word,
            version: parts.version,
            session: parts.session_id.into(),
            runs: parts.runs,
            next_seq: parts.next_seq,
            sent: 0,
        };
        if let Some(resume) = &self.resume
            && (carrier.runs || carrier.session.raw() != resume.raw())
        {
            let said = "its tool was started again, and remembers nothing";
            return self.refuse(Fault::NotResumed(said.to_owned()), out);
        }
        let wants_lease = carrier.runs || self.wants.lease.is_some();
        self.carrier = Some(carrier);
        self.heard(now);
        if wants_lease {
            self.lease(now, out);
        }
    }

    fn is_ready(&mut self, out: &mut Effects) {
        let Some(carrier) = &self.carrier else {
            return;
        };
        let there = self.works && (carrier.runs || self.lives);
        if self.phase != Phase::Handshaking || !there || self.leaving {
            return;
        }
        self.phase = Phase::Ready;
        out.push(Effect::Ready(AgentInfo {
            protocol: PROTOCOL.to_string(),
            version: carrier.version.clone(),
            session: Some(carrier.session.clone()),
            model: None,
            mode: None,
            modes: Vec::new(),
            tools: Vec::new(),
            context_window: None,
            // A tool that is started again has forgotten everything; somebody else's goes on.
            forgets: carrier.runs,
        }));
    }

    /// Notes a sign of life.
    fn heard(&mut self, now: Instant) {
        self.silent_at = Some(now + self.silence());
    }

    fn silence(&self) -> Duration {
        SILENCE.max(self.wants.heartbeat * MISSED)
    }

    fn is_current(&self, command: &str) -> bool {
        self.turn.as_ref().is_some_and(|turn| turn.stem == command)
    }

    fn prompt(&mut self, text: &Foreign, out: &mut Effects) -> Result<(), Refused> {
        let carrier = self.carrier.as_mut().ok_or(Refused::NotReady)?;
        let seq = carrier.next_seq;
        let id = format!("{}-{}", carrier.word, carrier.sent + 1);
        let name = CommandName::new(seq, &id).ok_or(Refused::NotReady)?;
        carrier.next_seq = seq.saturating_add(1);
        carrier.sent += 1;
        out.push(Effect::Write(message::submit(&name, &self.wants, text)));
        out.push(Effect::Event(Event::TurnStarted {
            turn: Some(Foreign::from(&*id)),
        }));
        self.turn = Some(Turn {
            stem: name.stem(),
            id,
            cancelling: false,
        });
        Ok(())
    }

    fn cancel(&mut self, out: &mut Effects) {
        if let Some(turn) = self.turn.as_mut().filter(|turn| !turn.cancelling) {
            turn.cancelling = true;
            out.push(Effect::Write(message::cancel(&turn.id)));
        }
    }

    /// Says goodbye, once: our own Runner ends when its command did.
    fn leave(&mut self, out: &mut Effects) {
        if self.leaving {
            return;
        }
        self.leaving = true;
        if self.carrier.as_ref().is_some_and(|carrier| carrier.runs) {
            out.push(Effect::Write(message::stop()));
        } else {
            // Whose Runner is somebody else's: that goes on.
            out.push(Effect::CloseInput);
        }
    }

    /// Promises to be there, for a while.
    fn lease(&mut self, now: Instant, out: &mut Effects) {
        let term = self.wants.lease.unwrap_or(config::RUNNER_LEASE);
        self.lease_at = Some(now + term / 3);
        if let Some(carrier) = &self.carrier {
            out.push(Effect::Write(message::lease(&carrier.word, term)));
        }
    }

    fn result(&mut self, content: &str, out: &mut Effects) {
        let Ok(seen) = serde_json::from_str::<SeenResult>(content) else {
            let said = "the Runner's result cannot be read".to_owned();
            return self.end_turn(TurnOutcome::Failed, None, Some(said), out);
        };
        if self.turn.as_ref().is_none_or(|turn| turn.id != seen.cmd_id) {
            let said = "the Runner's result names another command".to_owned();
            return self.end_turn(TurnOutcome::Failed, None, Some(said), out);
        }
        let outcome = match seen.status {
            Status::Ok => TurnOutcome::Completed,
            Status::Error => TurnOutcome::Failed,
            Status::Timeout => TurnOutcome::TimedOut,
            Status::Cancelled => TurnOutcome::Cancelled,
        };
        let reason = seen.exit_reason.map(Foreign::new);
        let detail = reason
            .as_ref()
            .filter(|_| outcome != TurnOutcome::Completed);
        let detail = detail.map(|reason| reason.show(limits::BAD_LINE_HEAD_BYTES));
        self.end_turn(outcome, reason, detail, out);
    }

    fn refused(&mut self, path: &str, why: &Foreign, out: &mut Effects) {
        let why = why.show(limits::BAD_LINE_HEAD_BYTES);
        let ours = self.turn.as_ref().map(|turn| format!("{}.json", turn.stem));
        let names_it = |file: String| path.rsplit('/').next() == Some(&*file);
        if ours.is_some_and(names_it) {
            let said = format!("the command's files cannot be carried: {why}");
            return self.end_turn(TurnOutcome::Failed, None, Some(said), out);
        }
        // Without a lease or a way to cancel there is no command over the Runner.
        self.fault(format!("the carrier cannot put a file: {why}"), out);
    }

    fn end_turn(
        &mut self,
        outcome: TurnOutcome,
        stop_reason: Option<Foreign>,
        detail: Option<String>,
        out: &mut Effects,
    ) {
        if self.turn.take().is_some() {
            out.push(Effect::Event(Event::TurnEnded {
                outcome,
                stop_reason,
                usage: Usage::default(),
                detail,
            }));
        }
    }

    /// Counts a line that is no message; too many of them are another program.
    fn count_bad(&mut self, bad: BadFrame, line: &[u8], out: &mut Effects) {
        bad_line(bad.word(), line, out);
        self.bad_lines = self.bad_lines.saturating_add(1);
        if self.bad_lines > limits::BAD_LINES {
            let most = limits::BAD_LINES;
            let said = format!("more than {most} lines of the carrier were no messages");
            self.fault(said, out);
        }
    }

    fn fault(&mut self, said: String, out: &mut Effects) {
        self.refuse(Fault::Protocol(said), out);
    }

    fn refuse(&mut self, fault: Fault, out: &mut Effects) {
        self.close();
        out.push(Effect::Fault(fault));
    }

    fn close(&mut self) {
        self.phase = Phase::Closed;
        self.lease_at = None;
        self.silent_at = None;
    }
}
