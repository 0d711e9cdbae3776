//! `SkillPilot`'s file control plane from the Master's side, over a carrier. A prompt becomes a
//! command's file, its output becomes text, and its result the turn's end. Source: its page
//! "SkillPilot File Control Plane Protocol", version 1.
//!
//! Owns the order of the conversation with the carrier (`marshal runner --stdio` or `--carry`): the
//! version gate, one command at a time, the lease, signs of life. Must not know files: the crate
//! `skillpilot` defines their names and content.
//!
//! This module decides as follows:
//!
//! - An id is the carrier's random word and a number, so that no command is mistaken for one of an
//!   earlier start.
//! - A cancel names its command, so that it never ends another. The channel's deadlines cover a
//!   Runner that does not receive it.
//! - The agent is ready when its Runner is idle or busy. A Runner that this supervisor did not
//!   start must also have given a sign of life since. Such a Runner is not stopped with the
//!   supervisor, and gets a lease only where that is configured.
//! - A sign of life is required only between commands: some Runners give none while one runs.

mod message;

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::driver::{ChannelState, Phase, Protocol};
use super::{
    ChannelError, Command, DialectError, Effect, Effects, OUT_OF_STATE, OpenParams, report_bad_line,
};
use marshal_config as config;
use marshal_model::limits;
use marshal_model::{AgentInfo, Event, TurnOutcome, UntrustedText, Usage};
use marshal_wire::json::{self, BadFrame};
use marshal_wire::skillpilot::carrier::PROTOCOL;
use marshal_wire::skillpilot::{CommandName, CommandStatus, ResultSummary, RunnerPhase};
use message::{Hello, Message};

/// Our protocol version, as a string.
const VERSION: &str = "1";
/// The minimum time without a sign of life after which a Runner counts as lost.
const SILENCE: Duration = Duration::from_secs(30);
/// How many signs of life may be missing.
const MISSED: u32 = 6;

/// The carrier's identity.
#[derive(Debug)]
struct Carrier {
    id_prefix: String,
    version: Option<UntrustedText>,
    session: UntrustedText,
    /// Whether the carrier is also the Runner.
    is_runner: bool,
    next_seq: u64,
    /// Number of commands of this channel. The carrier's numbers may wrap, and an id must be
    /// unique.
    sent: u64,
}

/// The running command.
#[derive(Debug)]
struct Turn {
    /// `cmd_<seq>_<id>`.
    stem: String,
    id: String,
    cancelling: bool,
}

/// One channel of the file control plane.
#[derive(Debug, Default)]
pub struct Skillpilot {
    channel: ChannelState,
    runner_config: Arc<config::Runner>,
    resume: Option<UntrustedText>,
    carrier: Option<Carrier>,
    /// Whether the Runner reports that it works.
    is_working: bool,
    /// Whether it has given a sign of life.
    is_alive: bool,
    turn: Option<Turn>,
    lease_due: Option<Instant>,
    silence_due: Option<Instant>,
}

impl Protocol for Skillpilot {
    const PEER: &'static str = "carrier";
    const VERSION: &'static str = VERSION;

    fn channel(&self) -> &ChannelState {
        &self.channel
    }

    fn channel_mut(&mut self) -> &mut ChannelState {
        &mut self.channel
    }

    /// Writes nothing: the carrier sends the first message.
    fn start(&mut self, opening: &OpenParams, _out: &mut Effects) {
        self.runner_config = Arc::clone(&opening.runner);
        self.resume = opening.resume.clone();
    }

    fn handle_line(&mut self, line: &[u8], out: &mut Effects) -> Result<(), BadFrame> {
        let object = json::expect_object(line)?;
        let tag = json::read_tag(object)?;
        match message::read(&tag, object) {
            Err(BadFrame::Shape) if &*tag == "hello" && self.carrier.is_none() => {
                self.count_bad_line(BadFrame::Shape, line, out);
                self.fail_protocol("the carrier's hello cannot be read".to_owned(), out);
            }
            Err(BadFrame::Shape) if &*tag == "result" && self.turn.is_some() => {
                self.count_bad_line(BadFrame::Shape, line, out);
                self.end_turn(
                    TurnOutcome::Failed,
                    None,
                    Some("the Runner's result cannot be read".to_owned()),
                    out,
                );
            }
            message => self.handle_message(message?, line, out),
        }
        Ok(())
    }

    fn carry_out(&mut self, command: Command, out: &mut Effects) -> Result<(), DialectError> {
        match command {
            Command::Prompt { .. } if self.turn.is_some() => Err(DialectError::Busy),
            Command::Prompt { text, .. } => self.prompt(&text, out),
            Command::Cancel => {
                self.cancel(out);
                Ok(())
            }
            Command::AnswerPermission { .. } => Err(DialectError::UnknownRequest),
            Command::Slash { .. } | Command::AnswerClientRequest { .. } => {
                Err(DialectError::Unsupported)
            }
            Command::Set(_) => {
                let why = "a Runner has no modes or options to set";
                Err(DialectError::NotOffered(why.to_owned()))
            }
            Command::Goodbye => Ok(()),
        }
        .inspect(|()| self.record_activity())
    }

    fn shut_down(&mut self, out: &mut Effects) {
        if self
            .carrier
            .as_ref()
            .is_some_and(|carrier| carrier.is_runner)
        {
            out.push(Effect::Write(message::stop()));
        } else {
            // A Runner that we did not start continues.
            out.push(Effect::CloseInput);
        }
    }

    fn on_close(&mut self, _out: &mut Effects) {
        self.channel.phase = Phase::Closed;
        self.lease_due = None;
        self.silence_due = None;
    }

    fn due(&self) -> Option<Instant> {
        let silent = self.silence_due.filter(|_| self.turn.is_none());
        [self.lease_due, silent].into_iter().flatten().min()
    }

    fn handle_due(&mut self, now: Instant, out: &mut Effects) {
        if self.lease_due.is_some_and(|at| at <= now) {
            self.lease(out);
        }
        if self.turn.is_none() && self.silence_due.is_some_and(|at| at <= now) {
            let silence = self.silence().as_secs();
            let message = format!("the Runner gave no sign of life for {silence} s");
            self.fail_channel(ChannelError::Unanswered(message), out);
        }
    }
}

impl Skillpilot {
    fn handle_message(&mut self, message: Message<'_>, line: &[u8], out: &mut Effects) {
        if let Message::Hello(hello) = message {
            return self.hello(&hello, out);
        }
        if self.carrier.is_none() {
            let problem = "the carrier sent something before its hello".to_owned();
            return self.fail_protocol(problem, out);
        }
        self.record_activity();
        match message {
            Message::Hello(_) => {}
            Message::Output { command, text } => {
                if self.is_current(&command) {
                    out.push(Effect::Event(Event::Text { delta: text.into() }));
                } else {
                    report_bad_line(OUT_OF_STATE, line, out);
                }
            }
            Message::Result { command, content } => {
                if self.is_current(&command) {
                    self.result(content, out);
                } else {
                    report_bad_line(OUT_OF_STATE, line, out);
                }
            }
            Message::State(phase) => {
                self.is_working = matches!(phase, RunnerPhase::Idle | RunnerPhase::Busy);
                self.check_ready(out);
            }
            Message::Heartbeat => {
                self.is_alive = true;
                self.check_ready(out);
            }
            Message::FileRefused { path, why } => self.on_file_refused(&path, &why, out),
            Message::Unknown(tag, raw) => out.push(Effect::Event(Event::Unknown {
                tag,
                raw: raw.to_owned(),
            })),
        }
    }

    /// The version gate. Only the integer 1 passes, before anything is written.
    fn hello(&mut self, hello: &Hello<'_>, out: &mut Effects) {
        if self.carrier.is_some() {
            return self.fail_protocol("the carrier sent hello twice".to_owned(), out);
        }
        let theirs = hello.protocol.map_or("none", |raw| raw.get());
        if theirs != VERSION {
            let theirs = UntrustedText::from(theirs).escape_for_display(40);
            return self.fail_version(theirs, out);
        }
        let Some(parts) = hello.parts() else {
            return self.fail_protocol("the carrier's hello cannot be read".to_owned(), out);
        };
        let carrier = Carrier {
            id_prefix: parts.id_prefix,
            version: parts.version,
            session: parts.session_id.into(),
            is_runner: parts.is_runner,
            next_seq: parts.next_seq,
            sent: 0,
        };
        if let Some(resume) = &self.resume
            && (carrier.is_runner || carrier.session.raw() != resume.raw())
        {
            let message = "its tool was restarted and remembers nothing";
            return self.fail_channel(ChannelError::NotResumed(message.to_owned()), out);
        }
        let wants_lease = carrier.is_runner || self.runner_config.lease.is_some();
        self.carrier = Some(carrier);
        self.record_activity();
        if wants_lease {
            self.lease(out);
        }
    }

    fn check_ready(&mut self, out: &mut Effects) {
        let Some(carrier) = &self.carrier else {
            return;
        };
        let there = self.is_working && (carrier.is_runner || self.is_alive);
        if self.channel.phase != Phase::Handshaking || !there || self.channel.is_shutting_down {
            return;
        }
        self.channel.phase = Phase::Ready;
        out.push(Effect::Ready(AgentInfo {
            protocol: PROTOCOL.to_string(),
            version: carrier.version.clone(),
            session: Some(carrier.session.clone()),
            model: None,
            mode: None,
            modes: Vec::new(),
            tools: Vec::new(),
            context_window: None,
            // A restarted tool has forgotten everything; a Runner that we did not start still runs.
            cannot_resume: carrier.is_runner,
        }));
    }

    /// Records a sign of life.
    fn record_activity(&mut self) {
        self.silence_due = self.channel.now.map(|now| now + self.silence());
    }

    fn silence(&self) -> Duration {
        SILENCE.max(self.runner_config.heartbeat * MISSED)
    }

    fn is_current(&self, command: &str) -> bool {
        self.turn.as_ref().is_some_and(|turn| turn.stem == command)
    }

    fn prompt(&mut self, text: &UntrustedText, out: &mut Effects) -> Result<(), DialectError> {
        let carrier = self.carrier.as_mut().ok_or(DialectError::NotReady)?;
        let seq = carrier.next_seq;
        let id = format!("{}-{}", carrier.id_prefix, carrier.sent + 1);
        let name = CommandName::new(seq, &id).ok_or(DialectError::NotReady)?;
        carrier.next_seq = seq.saturating_add(1);
        carrier.sent += 1;
        out.push(Effect::Write(message::submit(
            &name,
            &self.runner_config,
            text,
        )));
        out.push(Effect::Event(Event::TurnStarted {
            turn: Some(UntrustedText::from(&*id)),
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

    /// Writes a lease.
    fn lease(&mut self, out: &mut Effects) {
        let term = self.runner_config.lease.unwrap_or(config::RUNNER_LEASE);
        self.lease_due = self.channel.now.map(|now| now + term / 3);
        if let Some(carrier) = &self.carrier {
            out.push(Effect::Write(message::lease(&carrier.id_prefix, term)));
        }
    }

    fn result(&mut self, content: &str, out: &mut Effects) {
        let Ok(seen) = serde_json::from_str::<ResultSummary>(content) else {
            let message = "the Runner's result cannot be read".to_owned();
            return self.end_turn(TurnOutcome::Failed, None, Some(message), out);
        };
        if self.turn.as_ref().is_none_or(|turn| turn.id != seen.cmd_id) {
            let message = "the Runner's result names another command".to_owned();
            return self.end_turn(TurnOutcome::Failed, None, Some(message), out);
        }
        let outcome = match seen.status {
            CommandStatus::Ok => TurnOutcome::Completed,
            CommandStatus::Error => TurnOutcome::Failed,
            CommandStatus::Timeout => TurnOutcome::TimedOut,
            CommandStatus::Cancelled => TurnOutcome::Cancelled,
        };
        let reason = seen.exit_reason.map(UntrustedText::new);
        let detail = reason
            .as_ref()
            .filter(|_| outcome != TurnOutcome::Completed)
            .map(|reason| reason.escape_for_display(limits::BAD_LINE_HEAD_BYTES));
        self.end_turn(outcome, reason, detail, out);
    }

    fn on_file_refused(&mut self, path: &str, why: &UntrustedText, out: &mut Effects) {
        let why = why.escape_for_display(limits::BAD_LINE_HEAD_BYTES);
        let ours = self.turn.as_ref().map(|turn| format!("{}.json", turn.stem));
        let names_it = |file: String| path.rsplit('/').next() == Some(&*file);
        if ours.is_some_and(names_it) {
            let message = format!("the command's files cannot be transferred: {why}");
            return self.end_turn(TurnOutcome::Failed, None, Some(message), out);
        }
        // Without a lease or a way to cancel, a command on the Runner cannot be controlled.
        self.fail_protocol(format!("the carrier cannot write a file: {why}"), out);
    }

    fn end_turn(
        &mut self,
        outcome: TurnOutcome,
        stop_reason: Option<UntrustedText>,
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
}
