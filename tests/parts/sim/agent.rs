//! A simulated child: what it does is drawn when it is born, what it is told
//! goes into its book.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use marshal_launch::Step;
use marshal_model::ExitStatus;
use tokio::net::unix::pipe;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::sim::host::Machine;
use crate::sim::ledger::Ledger;
use crate::sim::protocol::{ChildInput, ChildProtocol, Speech};
use crate::sim::random::SeededRandom;
use crate::sim::script::{Act, Behaviour, Birth, Nature};
use crate::sim::world::Twist;

/// What a child holds.
pub(crate) struct Wires {
    pub(crate) stdin: pipe::Receiver,
    pub(crate) stdout: Option<Arc<pipe::Sender>>,
    pub(crate) stderr: Option<pipe::Sender>,
    pub(crate) signals: mpsc::Receiver<Step>,
}

/// What a child waits for.
enum WaitResult {
    Line(String),
    Eof,
    Time,
}

/// A child, until its exit.
pub(crate) struct Agent {
    ledger: Arc<Ledger>,
    number: usize,
    speech: Speech,
    dice: SeededRandom,
    wires: Wires,
    nature: Nature,
    manners: Behaviour,
    reads: bool,
    twist: Twist,
    input: Vec<u8>,
    lines: VecDeque<String>,
    at_end: bool,
    /// What is left of the running turn.
    acts: Option<VecDeque<Act>>,
    turns: u32,
    asks: u32,
    waits_for: Option<String>,
    /// Requests whose id it used twice.
    doubled: Vec<String>,
}

/// A wait that is longer than every world.
const EVER: Duration = Duration::from_secs(30 * 24 * 3600);

impl Agent {
    pub(crate) fn new(
        machine: &Machine,
        number: usize,
        session: &str,
        argv: &[String],
        dice: &mut SeededRandom,
        wires: Wires,
    ) -> Self {
        let has = |word: &str| argv.iter().any(|item| item == word);
        let tongue = if has("acp") {
            ChildProtocol::Acp
        } else {
            ChildProtocol::Scaiflux
        };
        let nature = Nature::draw(machine.wildness, dice, has("--resume"));
        let reads = !machine.wildness.percent(dice, 3);
        Self {
            ledger: Arc::clone(&machine.ledger),
            number,
            speech: Speech::new(tongue, session),
            manners: Behaviour::draw(machine.wildness, dice),
            nature,
            dice: dice.clone(),
            wires,
            reads,
            twist: machine.twist,
            input: Vec::new(),
            lines: VecDeque::new(),
            at_end: false,
            acts: None,
            turns: 0,
            asks: 0,
            waits_for: None,
            doubled: Vec::new(),
        }
    }

    /// Lives; gives how it ended.
    pub(crate) async fn run(mut self) -> ExitStatus {
        match self.live().await {
            Ok(never) => match never {},
            Err(status) => status,
        }
    }

    async fn live(&mut self) -> Result<std::convert::Infallible, ExitStatus> {
        if !self.reads {
            self.ledger.saw("never reads");
        }
        self.wait(self.nature.start).await?;
        self.greet().await?;
        loop {
            let pause = match &self.acts {
                Some(_) if self.waits_for.is_some() => self.manners.patience,
                Some(_) => self.dice.ms(self.nature.pace),
                None => EVER,
            };
            match self.attend(pause).await? {
                WaitResult::Line(line) => self.hear(&line).await?,
                WaitResult::Eof => self.heard_the_end().await?,
                WaitResult::Time => {
                    if self.waits_for.take().is_none() {
                        self.act().await?;
                    }
                }
            }
        }
    }

    /// The handshake.
    async fn greet(&mut self) -> Result<(), ExitStatus> {
        let birth = self.nature.birth;
        if birth != Birth::Healthy {
            self.ledger.saw(birth.as_str());
        }
        match birth {
            Birth::Crash => return Err(ExitStatus::Code(self.nature.code)),
            Birth::Mute => self.wait(EVER).await?,
            Birth::Deaf => {
                self.wires.stdout = None;
                self.wait(EVER).await?;
            }
            Birth::Noise => {
                for _ in 0..3 {
                    self.say("warning: this is no JSON").await?;
                }
            }
            Birth::Early => self.say(&self.speech.text("early")).await?,
            Birth::Healthy | Birth::Skewed => {}
        }
        let version = if birth == Birth::Skewed { 2 } else { 1 };
        if self.speech.tongue == ChildProtocol::Scaiflux {
            self.say(&self.speech.ready(version)).await?;
        } else {
            self.shake_hands(version).await?;
        }
        if version == 1 {
            return Ok(());
        }
        // Whoever refuses a version writes nothing but a goodbye.
        while let WaitResult::Line(line) = self.attend(EVER).await? {
            if !matches!(self.speech.hear(&line, version), ChildInput::Goodbye) {
                let number = self.number;
                let fault = format!("child {number} was told {line} after its version was refused");
                self.ledger.fault(fault);
            }
        }
        Err(ExitStatus::Code(0))
    }

    /// Answers until its session is open, or its version must have been refused.
    async fn shake_hands(&mut self, version: u32) -> Result<(), ExitStatus> {
        loop {
            match self.attend(EVER).await? {
                WaitResult::Line(line) => match self.speech.hear(&line, version) {
                    ChildInput::Step(reply, is_last) => {
                        self.say(&reply).await?;
                        if is_last || version != 1 {
                            return Ok(());
                        }
                    }
                    ChildInput::Nothing => {}
                    told => {
                        let fault = format!("child {} was told {told:?} too early", self.number);
                        self.ledger.fault(fault);
                    }
                },
                WaitResult::Eof => self.heard_the_end().await?,
                WaitResult::Time => {}
            }
        }
    }

    async fn hear(&mut self, line: &str) -> Result<(), ExitStatus> {
        match self.speech.hear(line, 1) {
            ChildInput::Prompt(prompt) => {
                if self.acts.is_some() {
                    let fault = format!("child {} was prompted in a turn", self.number);
                    self.ledger.fault(fault);
                }
                self.ledger.prompted(self.number, &prompt);
                if self.twist == Twist::Echo {
                    self.ledger.prompted(self.number, &prompt);
                }
                self.turns += 1;
                let turn = format!("t{}-{}", self.number, self.turns);
                self.acts = Some(self.nature.turn(&mut self.dice));
                if let Some(started) = self.speech.begin(turn) {
                    self.say(&started).await?;
                }
            }
            ChildInput::Answer { request, allowed } => {
                self.ledger.saw(match allowed {
                    Some(true) => "allowed",
                    Some(false) => "denied",
                    None => "an ask that a cancel ends",
                });
                // An id that came twice is denied by the protocol, not by a verdict.
                let is_verdict = allowed != Some(false) || !self.doubled.contains(&request);
                let key = self.speech.key(&request);
                let verdict = allowed.filter(|_| is_verdict);
                self.ledger.answered(self.number, &key, verdict);
                if self.waits_for.as_deref() == Some(&request) {
                    self.waits_for = None;
                }
            }
            ChildInput::Interrupt => self.interrupted(),
            ChildInput::Goodbye if self.manners.heeds_goodbye => self.leave(0).await?,
            ChildInput::Goodbye => self.ledger.saw("deaf to goodbye"),
            ChildInput::Nothing => {}
            // In a turn nobody asks.
            ChildInput::Ping(reply) if self.acts.is_none() => self.say(&reply).await?,
            ChildInput::Ping(_) | ChildInput::Step(..) | ChildInput::Odd => {
                self.ledger
                    .fault(format!("child {} was told {line}", self.number));
            }
        }
        Ok(())
    }

    fn interrupted(&mut self) {
        self.ledger
            .step(&format!("child {} is interrupted", self.number));
        if self.acts.is_some() && self.manners.heeds_cancel {
            self.ledger.saw("cancelled turn");
            self.waits_for = None;
            let pause = self.dice.ms(1_000);
            self.acts = Some([Act::Pause(pause), Act::End("aborted")].into());
        } else if self.acts.is_some() {
            self.ledger.saw("deaf to cancel");
        }
    }

    async fn heard_the_end(&mut self) -> Result<(), ExitStatus> {
        if self.manners.heeds_end {
            return self.leave(0).await;
        }
        self.ledger.saw("deaf to the end of stdin");
        Ok(())
    }

    async fn leave(&mut self, code: i32) -> Result<(), ExitStatus> {
        let pause = self.dice.ms(3_000);
        self.wait(pause).await?;
        Err(ExitStatus::Code(code))
    }

    fn signalled(&self, step: Step) -> Result<(), ExitStatus> {
        let (heeds, number) = match step {
            Step::Int => (self.manners.heeds_int, 2),
            Step::Term | Step::Kill => (self.manners.heeds_term, 15),
        };
        self.ledger
            .step(&format!("child {} gets signal {number}", self.number));
        if heeds {
            return Err(ExitStatus::Signal(number));
        }
        self.ledger.saw("deaf to a signal");
        Ok(())
    }

    /// The turn's next act.
    async fn act(&mut self) -> Result<(), ExitStatus> {
        let Some(act) = self.acts.as_mut().and_then(VecDeque::pop_front) else {
            return Ok(());
        };
        self.ledger.saw(act.as_str());
        match act {
            Act::Text(bytes) => self.say(&self.speech.text(&"x".repeat(bytes))).await,
            Act::Flood(lines) => {
                let line = self.speech.text(&"f".repeat(30_000));
                for _ in 0..lines {
                    self.say(&line).await?;
                }
                Ok(())
            }
            Act::Call(is_done) => {
                self.asks += 1;
                let id = format!("c{}-{}", self.number, self.asks);
                self.say(&self.speech.call(&id, "rm -rf ~/.ssh/id")).await?;
                if is_done {
                    self.say(&self.speech.result(&id)).await?;
                }
                Ok(())
            }
            Act::Ask {
                command,
                waits,
                again,
            } => self.ask(command, waits, again).await,
            Act::Strange => {
                let line = self.dice.pick(self.speech.strange());
                if line.contains("turn_complete") {
                    // It cannot be read, but that is what it says.
                    self.acts = None;
                }
                self.say(line).await
            }
            Act::Ready => self.say(&self.speech.ready_again()).await,
            Act::Half(line) => self.write(line.as_bytes()).await,
            Act::Stderr => {
                if let Some(stderr) = &self.wires.stderr {
                    let _ = stderr.try_write(b"a word on stderr\n");
                }
                Ok(())
            }
            Act::Pause(time) => self.wait(time).await,
            Act::CloseStdout => {
                self.wires.stdout = None;
                Ok(())
            }
            Act::CloseStderr => {
                self.wires.stderr = None;
                Ok(())
            }
            Act::Crash(status) => Err(status),
            Act::End(reason) => {
                self.acts = None;
                let end = self.speech.end(reason);
                self.say(&end).await?;
                self.after_turn(&end).await
            }
            Act::Error => {
                self.acts = None;
                self.say(&self.speech.error()).await
            }
        }
    }

    async fn ask(&mut self, command: &str, waits: bool, again: bool) -> Result<(), ExitStatus> {
        self.asks += 1;
        let id = format!("r{}-{}", self.number, self.asks);
        let line = self.speech.ask(&id, &format!("{command} {id}"));
        let step = format!("child {} asks {id} {command}", self.number);
        self.ledger.step(&step);
        self.say(&line).await?;
        if again {
            self.doubled.push(id.clone());
            self.say(&line).await?;
        }
        if self.twist == Twist::Hasty {
            // Broken on purpose: something allows before the verdict is durable.
            let key = self.speech.key(&id);
            self.ledger.answered(self.number, &key, Some(true));
        }
        self.waits_for = waits.then_some(id);
        Ok(())
    }

    /// What comes after a turn's end, where nothing should.
    async fn after_turn(&mut self, end: &str) -> Result<(), ExitStatus> {
        if !self.nature.wild {
            return Ok(());
        }
        match self.dice.between(0, 40) {
            0 => Err(ExitStatus::Code(self.nature.code)),
            1 => self.say(end).await,
            2 => {
                self.ledger.saw("late ask");
                let id = format!("late-{}-{}", self.number, self.turns);
                self.say(&self.speech.ask(&id, "echo late")).await
            }
            3 => self.say(&self.speech.text("late")).await,
            _ => Ok(()),
        }
    }

    /// Waits without listening to stdin; signals come through.
    async fn wait(&mut self, time: Duration) -> Result<(), ExitStatus> {
        let until = Instant::now() + time;
        loop {
            tokio::select! {
                biased;
                Some(step) = self.wires.signals.recv() => self.signalled(step)?,
                () = tokio::time::sleep_until(until) => return Ok(()),
            }
        }
    }

    async fn attend(&mut self, time: Duration) -> Result<WaitResult, ExitStatus> {
        let until = Instant::now() + time;
        loop {
            if let Some(line) = self.lines.pop_front() {
                return Ok(WaitResult::Line(line));
            }
            tokio::select! {
                biased;
                Some(step) = self.wires.signals.recv() => self.signalled(step)?,
                _ = self.wires.stdin.readable(), if self.reads && !self.at_end => {
                    if self.read() {
                        self.at_end = true;
                        return Ok(WaitResult::Eof);
                    }
                }
                () = tokio::time::sleep_until(until) => return Ok(WaitResult::Time),
            }
        }
    }

    /// Takes what is in the pipe; `true` at its end.
    fn read(&mut self) -> bool {
        let mut chunk = [0; 16 << 10];
        let got = match self.wires.stdin.try_read(&mut chunk) {
            Ok(got) => got,
            Err(error) => return error.kind() != ErrorKind::WouldBlock,
        };
        self.input.extend_from_slice(&chunk[..got]);
        while let Some(at) = memchr::memchr(b'\n', &self.input) {
            let line: Vec<u8> = self.input.drain(..=at).collect();
            let line = String::from_utf8_lossy(&line).trim().to_owned();
            self.lines.push_back(line);
        }
        got == 0
    }

    async fn say(&mut self, line: &str) -> Result<(), ExitStatus> {
        self.write(format!("{line}\n").as_bytes()).await
    }

    async fn write(&mut self, mut bytes: &[u8]) -> Result<(), ExitStatus> {
        let Some(stdout) = self.wires.stdout.clone() else {
            return Ok(());
        };
        while !bytes.is_empty() {
            match stdout.try_write(bytes) {
                Ok(wrote) => {
                    bytes = &bytes[wrote..];
                    self.ledger.wrote(self.number, wrote);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    tokio::select! {
                        biased;
                        Some(step) = self.wires.signals.recv() => self.signalled(step)?,
                        _ = stdout.writable() => {}
                    }
                }
                Err(_) => return Err(ExitStatus::Signal(13)),
            }
        }
        Ok(())
    }
}
