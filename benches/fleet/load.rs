//! The loads, and the commands of the children that generate them.

use std::process::{Command, Stdio};
use std::time::Duration;

use clap::Subcommand;
use marshal_config::Launcher;
use serde_json::{Value, json};

use crate::wire::Wire;

/// The number of protocol lines of a permission request: the call, the request, the result.
const EVENTS_PER_ASK: u64 = 3;

/// How the children are supervised, where a side has a choice.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Manner {
    /// The launcher of the supervisor's children: none or unshare
    #[arg(long, global = true, default_value = "none", value_parser = launcher)]
    pub(crate) launcher: Launcher,
    /// Number of subscribers to all events
    #[arg(long, global = true, default_value_t = 1)]
    pub(crate) subscribers: usize,
    /// The protocol that the children speak
    #[arg(long, global = true, value_enum, default_value = "scaiflux")]
    pub(crate) dialect: Wire,
}

impl Manner {
    /// The options as JSON, for the output.
    pub(crate) fn to_json(&self) -> Value {
        json!({
            "launcher": self.launcher.as_str(),
            "subscribers": self.subscribers,
            "dialect": self.dialect.as_str(),
        })
    }
}

fn launcher(word: &str) -> Result<Launcher, String> {
    Launcher::parse(word).ok_or_else(|| "there are none and unshare".to_owned())
}

/// The load on the children.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum Load {
    /// Every child writes as fast as it can
    Flood {
        /// Number of children
        #[arg(long, default_value_t = 1)]
        children: usize,
        /// Lines of each child
        #[arg(long, default_value_t = 1_000_000)]
        lines: u64,
        /// Bytes of each line, newline included
        #[arg(long, default_value_t = 100)]
        size: usize,
        /// Lines in one write [default: as many as fit into 64 KiB]
        #[arg(long)]
        batch: Option<usize>,
    },
    /// Every child sends permission requests, one after the other
    Ask {
        /// Number of children
        #[arg(long, default_value_t = 1)]
        children: usize,
        /// Requests of each child
        #[arg(long, default_value_t = 2000)]
        asks: u64,
        /// Microseconds before each request
        #[arg(long, default_value_t = 0)]
        think_us: u64,
    },
    /// Children that are idle
    Idle {
        /// Number of children
        #[arg(long, default_value_t = 100)]
        children: usize,
        /// How long they are measured
        #[arg(long, default_value_t = 5)]
        seconds: u64,
    },
    /// Children that are killed and replaced
    Kill {
        /// Number of children
        #[arg(long, default_value_t = 10)]
        children: usize,
        /// Number of kills, one after the other
        #[arg(long, default_value_t = 20)]
        kills: usize,
    },
}

impl Load {
    /// The number of children.
    pub(crate) fn children(&self) -> usize {
        match self {
            Self::Flood { children, .. }
            | Self::Ask { children, .. }
            | Self::Idle { children, .. }
            | Self::Kill { children, .. } => *children,
        }
    }

    /// The number of events of all children, if the load defines it.
    pub(crate) fn events(&self) -> Option<u64> {
        let each = match self {
            Self::Flood { lines, .. } => *lines,
            Self::Ask { asks, .. } => asks * EVENTS_PER_ASK,
            Self::Idle { .. } | Self::Kill { .. } => return None,
        };
        Some(each * self.children() as u64)
    }

    /// The script for each child, if the load has one.
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

    /// The command line of a child.
    pub(crate) fn command(&self, wire: Wire) -> Vec<String> {
        let think_us = match self {
            Self::Ask { think_us, .. } => *think_us,
            _ => 0,
        };
        vec![
            env!("CARGO_BIN_EXE_marshal").to_owned(),
            "script-agent".to_owned(),
            "--loader".to_owned(),
            format!("--dialect={}", wire.as_str()),
            format!("--think-us={think_us}"),
        ]
    }

    /// The delay of a child after the first one. It prevents that children with equal pauses all
    /// send their requests at the same moment.
    pub(crate) fn later(&self, child: usize) -> Duration {
        self.spread()
            .mul_f64(child as f64 / self.children().max(1) as f64)
    }

    /// The time over which the children begin.
    pub(crate) fn spread(&self) -> Duration {
        match self {
            Self::Ask { think_us, .. } => Duration::from_micros(*think_us),
            _ => Duration::ZERO,
        }
    }

    /// How long the children are measured, if nothing else ends the run.
    pub(crate) fn watch(&self) -> Duration {
        match self {
            Self::Idle { seconds, .. } => Duration::from_secs(*seconds),
            _ => Duration::ZERO,
        }
    }

    /// The load as JSON, for the output.
    pub(crate) fn to_json(&self) -> Value {
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

/// A command with piped stdin and stdout, not started.
pub(crate) fn piped(command: &[String]) -> Command {
    let mut child = Command::new(&command[0]);
    child
        .args(&command[1..])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    child
}
