//! What a simulated child is like and what it does in a turn: drawn, not decided.

use std::collections::VecDeque;
use std::time::Duration;

use marshal_model::ExitStatus;

use crate::sim::random::SeededRandom;
use crate::sim::world::Wildness;

/// How a child begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Birth {
    Healthy,
    Crash,
    Mute,
    Deaf,
    Skewed,
    Noise,
    Early,
}

impl Birth {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::Crash => "crash before ready",
            Self::Mute => "never ready",
            Self::Deaf => "stdout closed before ready",
            Self::Skewed => "another version",
            Self::Noise => "noise before ready",
            Self::Early => "an event before ready",
        }
    }
}

/// One act of a turn.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Act {
    Text(usize),
    Flood(u64),
    /// A tool call that nobody was asked about; whether its result comes.
    Call(bool),
    Ask {
        command: &'static str,
        waits: bool,
        again: bool,
    },
    Strange,
    Ready,
    Half(&'static str),
    Stderr,
    Pause(Duration),
    CloseStdout,
    CloseStderr,
    Crash(ExitStatus),
    End(&'static str),
    Error,
}

impl Act {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Text(_) => "text",
            Self::Flood(_) => "flood",
            Self::Call(_) => "a call without an ask",
            Self::Ask { again: true, .. } => "an ask twice",
            Self::Ask { waits: false, .. } => "an ask that nobody waits for",
            Self::Ask { .. } => "ask",
            Self::Strange => "a strange line",
            Self::Ready => "the greeting again",
            Self::Half(_) => "half a line",
            Self::Stderr => "stderr",
            Self::Pause(time) if time.as_secs() > 300 => "a long silence",
            Self::Pause(_) => "a pause",
            Self::CloseStdout => "stdout closed in a turn",
            Self::CloseStderr => "stderr closed",
            Self::Crash(_) => "crash in a turn",
            Self::End(_) => "turn's end",
            Self::Error => "turn's error",
        }
    }
}

/// What one child is like.
#[derive(Debug)]
pub(crate) struct Nature {
    pub(crate) wild: bool,
    pub(crate) birth: Birth,
    pub(crate) start: Duration,
    /// Most milliseconds between two acts.
    pub(crate) pace: u64,
    pub(crate) code: i32,
    wildness: Wildness,
}

/// What it heeds of what it is told.
#[derive(Debug)]
pub(crate) struct Behaviour {
    pub(crate) heeds_cancel: bool,
    pub(crate) heeds_goodbye: bool,
    pub(crate) heeds_end: bool,
    pub(crate) heeds_int: bool,
    pub(crate) heeds_term: bool,
    /// How long it waits for an answer.
    pub(crate) patience: Duration,
}

impl Behaviour {
    pub(crate) fn draw(wildness: Wildness, random: &mut SeededRandom) -> Self {
        let mut heeds = |chance| !wildness.percent(random, chance);
        Self {
            heeds_cancel: heeds(20),
            heeds_goodbye: heeds(30),
            heeds_end: heeds(30),
            heeds_int: heeds(40),
            heeds_term: heeds(40),
            patience: Duration::from_secs(random.pick(&[1, 60, 3_600])),
        }
    }
}

impl Nature {
    pub(crate) fn draw(wildness: Wildness, random: &mut SeededRandom, resumed: bool) -> Self {
        let births = [
            Birth::Crash,
            Birth::Crash,
            Birth::Mute,
            Birth::Deaf,
            Birth::Skewed,
            Birth::Noise,
            Birth::Early,
        ];
        let sick = wildness.percent(random, if resumed { 25 } else { 12 });
        Self {
            wild: wildness.percent(random, 100),
            birth: if sick {
                random.pick(&births)
            } else {
                Birth::Healthy
            },
            start: random.ms(3_000),
            pace: random.pick(&[0, 5, 500]),
            code: random.pick(&[0, 1, 3, 101]),
            wildness,
        }
    }

    /// The acts of a turn. The last one ends it.
    pub(crate) fn turn(&self, random: &mut SeededRandom) -> VecDeque<Act> {
        let mut acts = VecDeque::new();
        for _ in 0..random.between(0, 6) {
            let wild = self.wildness.percent(random, 25);
            acts.push_back(if wild {
                wild_act(random, self.code)
            } else {
                act(random)
            });
        }
        let reasons = [
            "end_turn",
            "end_turn",
            "end_turn",
            "end_turn",
            "end_turn",
            "end_turn",
            "end_turn",
            "end_turn",
            "max_tokens",
            "refusal",
        ];
        if self.wild && random.percent(5) {
            // Without a deadline for turns, one with an open call may take as long as it likes: so
            // every turn ends at last.
            acts.push_back(Act::Pause(Duration::from_secs(4_000)));
        }
        acts.push_back(match random.between(0, 19) {
            0 => Act::Error,
            _ => Act::End(random.pick(&reasons)),
        });
        acts
    }
}

fn act(random: &mut SeededRandom) -> Act {
    match random.between(0, 9) {
        0..=3 => Act::Text(usize::try_from(random.pick(&[1, 10, 200])).expect("small")),
        4..=7 => Act::Ask {
            command: random.pick(&["echo", "echo", "rm -rf ~/.ssh/", "cargo publish"]),
            waits: random.percent(80),
            again: false,
        },
        8 => Act::Pause(random.ms(2_000)),
        _ => Act::Stderr,
    }
}

fn wild_act(random: &mut SeededRandom, code: i32) -> Act {
    match random.between(0, 15) {
        0..=2 => Act::Crash(random.pick(&[
            ExitStatus::Code(code),
            ExitStatus::Signal(11),
            ExitStatus::Signal(9),
        ])),
        3 if random.percent(10) => Act::Flood(random.between(10, 120)),
        3 => Act::Flood(random.between(1, 5)),
        4 => Act::Call(random.percent(50)),
        5 => Act::Ask {
            command: "echo",
            waits: true,
            again: true,
        },
        6 | 7 => Act::Strange,
        8 if random.percent(20) => Act::Ready,
        8 => Act::Half(r#"{"half":"a li"#),
        9 => Act::CloseStdout,
        10 => Act::CloseStderr,
        11 | 12 => Act::Pause(Duration::from_secs(random.pick(&[30, 700, 5_000]))),
        13 => Act::Text(20_000),
        _ => Act::Pause(random.ms(20_000)),
    }
}
