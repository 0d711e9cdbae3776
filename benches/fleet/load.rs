//! The loads, and the children that carry them.

use std::process::{Command, Stdio};
use std::time::Duration;

use clap::Subcommand;
use marshal_config::Launcher;
use serde_json::{Value, json};

use crate::wire::Wire;

/// Lines of the protocol that a permission request takes: the call, the request, the result.
const EVENTS_PER_ASK: u64 = 3;

/// How the children are supervised, where a side leaves a choice.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Manner {
    /// What stands around each child of the supervisor: none or unshare
    #[arg(long, global = true, default_value = "none", value_parser = launcher)]
    pub(crate) launcher: Launcher,
    /// How many watch everything that happens
    #[arg(long, global = true, default_value_t = 1)]
    pub(crate) subscribers: usize,
    /// The protocol that the children speak
    #[arg(long, global = true, value_enum, default_value = "scaiflux")]
    pub(crate) dialect: Wire,
}

impl Manner {
    /// For the output.
    pub(crate) fn shown(&self) -> Value {
        json!({
            "launcher": self.launcher.word(),
            "subscribers": self.subscribers,
            "dialect": self.dialect.word(),
        })
    }
}

fn launcher(word: &str) -> Result<Launcher, String> {
    Launcher::from_word(word).ok_or_else(|| "there are none and unshare".to_owned())
}

/// What to do with the children.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum Load {
    /// Every child writes as fast as it can
    Flood {
        /// How many children
        #[arg(long, default_value_t = 1)]
        children: usize,
        /// Lines of each child
        #[arg(long, default_value_t = 1_000_000)]
        lines: u64,
        /// Bytes of each line, newline included
        #[arg(long, default_value_t = 100)]
        size: usize,
        /// Lines in one write; as many as fit into 64 KiB if not given
        #[arg(long)]
        batch: Option<usize>,
    },
    /// Every child asks for permission, one request after the other
    Ask {
        /// How many children
        #[arg(long, default_value_t = 1)]
        children: usize,
        /// Requests of each child
        #[arg(long, default_value_t = 2000)]
        asks: u64,
        /// Microseconds that a child waits before each request
        #[arg(long, default_value_t = 0)]
        think_us: u64,
    },
    /// Children that wait
    Idle {
        /// How many children
        #[arg(long, default_value_t = 100)]
        children: usize,
        /// How long they are watched
        #[arg(long, default_value_t = 5)]
        seconds: u64,
    },
    /// Children that are killed and replaced
    Kill {
        /// How many children
        #[arg(long, default_value_t = 10)]
        children: usize,
        /// How many are killed, one after the other
        #[arg(long, default_value_t = 20)]
        kills: usize,
    },
}

impl Load {
    /// How many children it needs.
    pub(crate) fn children(&self) -> usize {
        match self {
            Self::Flood { children, .. }
            | Self::Ask { children, .. }
            | Self::Idle { children, .. }
            | Self::Kill { children, .. } => *children,
        }
    }

    /// How many events all children bring together, where the load says that.
    pub(crate) fn events(&self) -> Option<u64> {
        let each = match self {
            Self::Flood { lines, .. } => *lines,
            Self::Ask { asks, .. } => asks * EVENTS_PER_ASK,
            Self::Idle { .. } | Self::Kill { .. } => return None,
        };
        Some(each * self.children() as u64)
    }

    /// The script for each child, if it gets one.
    pub(crate) fn prompt(&self) -> Option<String> {
        match self {
            Self::Flood {
                lines, size, batch, ..
            } => {
                let batch = batch.map(|batch| format!(" {batch}")).unwrap_or_default();
                Some(format!("flood {lines} {size}{batch}"))
            }
            Self::Ask { asks, .. } => Some(format!("ask {asks}")),
            Self::Idle { .. } | Self::Kill { .. } => None,
        }
    }

    /// A child's command line.
    pub(crate) fn command(&self, wire: Wire) -> Vec<String> {
        let think_us = match self {
            Self::Ask { think_us, .. } => *think_us,
            _ => 0,
        };
        vec![
            env!("CARGO_BIN_EXE_marshal").to_owned(),
            "script-agent".to_owned(),
            "--loader".to_owned(),
            format!("--dialect={}", wire.word()),
            format!("--think-us={think_us}"),
        ]
    }

    /// How much later than the first a child begins, so that children that think as long as each
    /// other do not all ask at the same moment.
    pub(crate) fn later(&self, child: usize) -> Duration {
        self.spread()
            .mul_f64(child as f64 / self.children().max(1) as f64)
    }

    /// Over how long the children begin.
    pub(crate) fn spread(&self) -> Duration {
        match self {
            Self::Ask { think_us, .. } => Duration::from_micros(*think_us),
            _ => Duration::ZERO,
        }
    }

    /// How long the children are watched, where nothing else ends the run.
    pub(crate) fn watch(&self) -> Duration {
        match self {
            Self::Idle { seconds, .. } => Duration::from_secs(*seconds),
            _ => Duration::ZERO,
        }
    }

    /// For the output.
    pub(crate) fn shown(&self) -> Value {
        match self {
            Self::Flood {
                children,
                lines,
                size,
                batch,
            } => {
                json!({"flood": {"children": children, "lines": lines, "size": size, "batch": batch}})
            }
            Self::Ask {
                children,
                asks,
                think_us,
            } => json!({"ask": {"children": children, "asks": asks, "think_us": think_us}}),
            Self::Idle { children, seconds } => {
                json!({"idle": {"children": children, "seconds": seconds}})
            }
            Self::Kill { children, kills } => {
                json!({"kill": {"children": children, "kills": kills}})
            }
        }
    }
}

/// A child with pipes, not started.
pub(crate) fn piped(command: &[String]) -> Command {
    let mut child = Command::new(&command[0]);
    child
        .args(&command[1..])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    child
}
