//! Another client of the same agents: a separate program that gets the load and prints a report.
//!
//! It gets one argument, a JSON object: `agent` (the child's command line), `children`, `prompt`
//! (for each child), `spread_us` (the time over which they begin). It prints another one: `events`
//! (messages that it handled), `wall_s` and `cpu_s` (its own, from the first prompt to the last
//! turn's end), `spawn_s` (until every session was open) and `reports` (texts that begin with `asks
//! `).

use std::process::{Command, Stdio};

use serde::Deserialize;
use serde_json::json;

use crate::figures::{Figures, Latency};
use crate::load::{Load, Manner};
use crate::wire::Wire;
use crate::{Failure, Side};

/// A client and its name.
#[derive(Debug, Clone)]
pub(crate) struct Peer {
    name: String,
    program: String,
}

/// The report that it prints.
#[derive(Debug, Deserialize)]
struct Report {
    events: u64,
    wall_s: f64,
    cpu_s: f64,
    spawn_s: f64,
    reports: Vec<String>,
}

/// Parses `NAME=PROGRAM`.
pub(crate) fn read(text: &str) -> Result<Peer, String> {
    let (name, program) = text.split_once('=').ok_or("written NAME=PROGRAM")?;
    Ok(Peer {
        name: name.to_owned(),
        program: program.to_owned(),
    })
}

/// A client with the options for its children.
pub(crate) struct Driven(pub(crate) Peer, pub(crate) Manner);

impl Side for Driven {
    fn name(&self) -> &str {
        &self.0.name
    }

    fn run(&mut self, load: &Load) -> Result<Figures, Failure> {
        let Self(peer, manner) = self;
        let (Some(prompt), Some(events), Wire::Acp) =
            (load.prompt(), load.events(), manner.dialect)
        else {
            return Err("peers carry flood and ask, with --dialect acp".into());
        };
        let order = json!({
            "agent": load.command(manner.dialect),
            "children": load.children(),
            "prompt": prompt,
            "spread_us": u64::try_from(load.spread().as_micros()).unwrap_or(u64::MAX),
        });
        let output = Command::new(&peer.program)
            .arg(order.to_string())
            .stderr(Stdio::inherit())
            .output()?;
        if !output.status.success() {
            return Err(format!("{}: {}", peer.program, output.status).into());
        }
        let report: Report = serde_json::from_slice(&output.stdout)?;
        if report.events < events {
            return Err(format!("{} of {events} events were handled", report.events).into());
        }
        let mut figures = Figures::default();
        figures.note_cost(report.wall_s, report.cpu_s, events);
        figures.note("spawn_s", report.spawn_s);
        let mut latency = Latency::default();
        for text in &report.reports {
            latency.add_report(text)?;
        }
        if latency.count() > 0 {
            figures.note_latency("ask", &latency);
        }
        Ok(figures)
    }
}
