//! A simulated child that speaks ScaiFlux: what it does is drawn when it is born, what it is told
//! goes into its book.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use marshal::launch::Step;
use marshal::model::ExitStatus;
use tokio::net::unix::pipe;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::dice::Dice;
use crate::host::Machine;
use crate::ledger::Ledger;
use crate::script::{Act, Birth, Manners, Nature};
use crate::world::Twist;

/// What a child holds.
pub(crate) struct Wires {
    pub(crate) stdin: pipe::Receiver,
    pub(crate) stdout: Option<Arc<pipe::Sender>>,
    pub(crate) stderr: Option<pipe::Sender>,
    pub(crate) signals: mpsc::Receiver<Step>,
}

/// What a child waits for.
enum Heard {
    Line(String),
    Eof,
    Time,
}

/// A child, until its exit.
pub(crate) struct Agent {
    ledger: Arc<Ledger>,
    number: usize,
    session: String,
    dice: Dice,
    wires: Wires,
    nature: Nature,
    manners: Manners,
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
}

/// A wait that is longer than every world.
const EVER: Duration = Duration::from_secs(30 * 24 * 3600);

impl Agent {
    pub(crate) fn new(
        machine: &Machine,
        number: usize,
        session: &str,
        dice: &mut Dice,
        wires: Wires,
        reads: bool,
        resumed: bool,
    ) -> Self {
        let nature = Nature::draw(machine.wildness, dice, resumed);
        Self {
            ledger: Arc::clone(&machine.ledger),
            number,
            session: session.to_owned(),
            manners: Manners::draw(machine.wildness, dice),
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
                Heard::Line(line) => self.hear(&line).await?,
                Heard::Eof => self.heard_the_end().await?,
                Heard::Time => {
                    if self.waits_for.take().is_none() {
                        self.act().await?;
                    }
                }
            }
        }
    }

    /// What it says before anything is asked of it.
    async fn greet(&mut self) -> Result<(), ExitStatus> {
        let session = self.session.clone();
        let ready = |protocol: &str| {
            format!(
                r#"{{"type":"ready","protocol":{protocol},"version":"sim","session_id":"of-{}","model":"m","mode":"default","tools":[],"context_window":1}}"#,
                session
            )
        };
        let birth = self.nature.birth;
        if birth != Birth::Healthy {
            self.ledger.saw(birth.word());
        }
        match birth {
            Birth::Healthy => self.say(&ready("1")).await,
            Birth::Crash => Err(ExitStatus::Code(self.nature.code)),
            Birth::Mute => self.wait(EVER).await,
            Birth::Deaf => {
                self.wires.stdout = None;
                self.wait(EVER).await
            }
            Birth::Skewed => {
                self.say(&ready("2")).await?;
                // What a refused child does with the pipe that nobody writes.
                while let Heard::Line(line) = self.attend(EVER).await? {
                    if !line.contains("shutdown") {
                        let number = self.number;
                        self.ledger.fault(format!(
                            "child {number} was told {line} after its version was refused"
                        ));
                    }
                }
                Err(ExitStatus::Code(0))
            }
            Birth::Noise => {
                for _ in 0..3 {
                    self.say("warning: this is no JSON").await?;
                }
                self.say(&ready("1")).await
            }
            Birth::Early => {
                self.say(r#"{"type":"text_delta","turn_id":"t","delta":"early"}"#)
                    .await
            }
        }
    }

    async fn hear(&mut self, line: &str) -> Result<(), ExitStatus> {
        let message: serde_json::Value = serde_json::from_str(line).unwrap_or_default();
        let text = |key: &str| message[key].as_str().unwrap_or_default().to_owned();
        match text("type").as_str() {
            "prompt" => {
                if self.acts.is_some() {
                    self.ledger
                        .fault(format!("child {} was prompted in a turn", self.number));
                }
                let prompt = text("text");
                self.ledger.prompted(self.number, &prompt);
                if self.twist == Twist::Echo {
                    self.ledger.prompted(self.number, &prompt);
                }
                self.turns += 1;
                let turn = format!("t{}-{}", self.number, self.turns);
                self.acts = Some(self.nature.turn(&mut self.dice));
                self.say(&format!(r#"{{"type":"turn_started","turn_id":"{turn}"}}"#))
                    .await
            }
            "permission_response" => {
                let id = text("request_id");
                let allowed = text("decision") == "allow";
                self.ledger.saw(if allowed { "allowed" } else { "denied" });
                self.ledger.answered(self.number, &id, allowed);
                if self.waits_for.as_deref() == Some(&id) {
                    self.waits_for = None;
                }
                Ok(())
            }
            "interrupt" => {
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
                Ok(())
            }
            "shutdown" if self.manners.heeds_goodbye => self.leave(0).await,
            "shutdown" => {
                self.ledger.saw("deaf to goodbye");
                Ok(())
            }
            _ => {
                self.ledger
                    .fault(format!("child {} was told {line}", self.number));
                Ok(())
            }
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
        self.ledger.saw(act.word());
        let turn = format!("t{}-{}", self.number, self.turns);
        let text = |delta: &str| {
            format!(r#"{{"type":"text_delta","turn_id":"{turn}","delta":"{delta}"}}"#)
        };
        match act {
            Act::Text(bytes) => self.say(&text(&"x".repeat(bytes))).await,
            Act::Flood(lines) => {
                let line = text(&"f".repeat(30_000));
                for _ in 0..lines {
                    self.say(&line).await?;
                }
                Ok(())
            }
            Act::Call(is_done) => {
                self.asks += 1;
                let id = format!("c{}-{}", self.number, self.asks);
                self.say(&format!(r#"{{"type":"tool_start","turn_id":"{turn}","tool_id":"{id}","name":"bash","input":{{"command":"rm -rf ~/.ssh/{id}"}}}}"#)).await?;
                if is_done {
                    self.say(&format!(r#"{{"type":"tool_result","turn_id":"{turn}","tool_id":"{id}","output":"","is_error":false}}"#)).await?;
                }
                Ok(())
            }
            Act::Ask {
                command,
                waits,
                again,
            } => {
                self.asks += 1;
                let id = format!("r{}-{}", self.number, self.asks);
                let line = format!(
                    r#"{{"type":"permission_request","request_id":"{id}","tool":"bash","active_mode":"a","required_mode":"b","details":{{"tool_input":{{"command":"{command} {id}"}}}}}}"#
                );
                self.ledger
                    .step(&format!("child {} asks {id} {command}", self.number));
                self.say(&line).await?;
                if again {
                    self.say(&line).await?;
                }
                if self.twist == Twist::Hasty {
                    // Broken on purpose: something allows before the verdict is durable.
                    self.ledger.answered(self.number, &id, true);
                }
                self.waits_for = waits.then_some(id);
                Ok(())
            }
            Act::Line(line) => self.say(line).await,
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
                let end = format!(
                    r#"{{"type":"turn_complete","turn_id":"{turn}","stop_reason":"{reason}","input_tokens":1,"output_tokens":2,"mutations":[]}}"#
                );
                self.say(&end).await?;
                self.after_turn(&end).await
            }
            Act::Error => {
                self.acts = None;
                self.say(&format!(
                    r#"{{"type":"error","code":"x","message":"m","origin":"o","turn_id":"{turn}"}}"#
                ))
                .await
            }
        }
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
                self.say(&format!(r#"{{"type":"permission_request","request_id":"late-{}-{}","tool":"bash","details":{{"tool_input":{{"command":"echo late"}}}}}}"#, self.number, self.turns)).await
            }
            3 => self.say(r#"{"type":"text_delta","delta":"late"}"#).await,
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

    async fn attend(&mut self, time: Duration) -> Result<Heard, ExitStatus> {
        let until = Instant::now() + time;
        loop {
            if let Some(line) = self.lines.pop_front() {
                return Ok(Heard::Line(line));
            }
            tokio::select! {
                biased;
                Some(step) = self.wires.signals.recv() => self.signalled(step)?,
                _ = self.wires.stdin.readable(), if self.reads && !self.at_end => {
                    if self.read() {
                        self.at_end = true;
                        return Ok(Heard::Eof);
                    }
                }
                () = tokio::time::sleep_until(until) => return Ok(Heard::Time),
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
        while let Some(at) = self.input.iter().position(|byte| *byte == b'\n') {
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
