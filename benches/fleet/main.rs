//! The load bench: the same load on several supervisors, alternating in one run.
//!
//! Prints one JSON line a run and one with the ratios. It only reports; no result makes it fail.

mod agents;
mod bare;
mod bare_tasks;
mod figures;
mod full;
mod house;
mod load;
mod peer;
mod wire;

use std::io::{self, Write};
use std::process::{Command, ExitCode, Stdio};

use clap::Parser;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Map, Value, json};

use figures::{Figures, median};
use load::{Load, Manner};

/// The error of a run.
type Failure = Box<dyn std::error::Error + Send + Sync>;

/// A way to supervise children.
trait Side {
    /// Its name in the output.
    fn name(&self) -> &str;

    /// Starts the load's children, runs the load and measures it. Nothing of it is left when this
    /// returns.
    fn run(&mut self, load: &Load) -> Result<Figures, Failure>;
}

/// Puts a load on a fleet and measures the cost of supervision
#[derive(Debug, Parser)]
#[command(name = "fleet")]
struct Line {
    #[command(subcommand)]
    load: Load,
    #[command(flatten)]
    manner: Manner,
    /// The baseline to compare with
    #[arg(long, global = true, value_enum, default_value = "bare")]
    baseline: Baseline,
    /// Another client to compare with, as NAME=PROGRAM (see benches/README.md); may be repeated
    #[arg(long = "peer", global = true, value_parser = peer::read)]
    peers: Vec<peer::Peer>,
    /// Number of runs of each side
    #[arg(long, global = true, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Run one side once and print its figures. Each run is a process of its own, so that none
    /// inherits the memory of another
    #[arg(long, global = true, hide = true)]
    only: Option<String>,
    /// Set by cargo
    #[arg(long, global = true, hide = true)]
    bench: bool,
}

/// The baselines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Baseline {
    /// A reader that does nothing else.
    Bare,
    /// No baseline.
    None,
}

fn main() -> ExitCode {
    // Started together with other targets, without a load: nothing to do.
    if std::env::args().skip(1).all(|arg| arg == "--bench") {
        drop(writeln!(
            io::stderr(),
            "fleet: say which load; --help lists them"
        ));
        return ExitCode::SUCCESS;
    }
    let line = Line::parse();
    match run(&line) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            drop(writeln!(io::stderr(), "fleet: {failure}"));
            ExitCode::FAILURE
        }
    }
}

/// The sides of this run; the first is the baseline, if there is one.
fn sides(line: &Line) -> Vec<Box<dyn Side>> {
    let manner = || line.manner.clone();
    let mut sides: Vec<Box<dyn Side>> = Vec::new();
    if line.baseline == Baseline::Bare {
        sides.push(Box::new(bare::Bare(manner())));
    }
    sides.push(Box::new(full::Full(manner())));
    for peer in &line.peers {
        sides.push(Box::new(peer::Driven(peer.clone(), manner())));
    }
    sides
}

fn run(line: &Line) -> Result<(), Failure> {
    let mut sides = sides(line);
    raise_descriptors()?;
    if let Some(only) = &line.only {
        let mut named = sides.iter_mut().filter(|side| side.name() == only);
        let side = named.next().ok_or("there is no such side")?;
        return print(&side.run(&line.load)?.to_json());
    }
    let mut seen: Vec<Vec<Figures>> = sides.iter().map(|_| Vec::new()).collect();
    for round in 1..=line.rounds {
        for (side, seen) in sides.iter().zip(&mut seen) {
            let figures = alone(side.name())?;
            print(&json!({
                "side": side.name(),
                "round": round,
                "load": line.load.to_json(),
                "manner": line.manner.to_json(),
                "figures": figures.to_json(),
            }))?;
            seen.push(figures);
        }
    }
    let find = |name: &str| sides.iter().position(|side| side.name() == name);
    let (bare, candidate) = (find(bare::NAME), find(full::NAME));
    for at in 0..sides.len() {
        // Every side is compared with the baseline, and marshal with every other side.
        let against_bare = bare.filter(|bare| *bare != at).map(|bare| (at, bare));
        let is_peer = Some(at) != bare && Some(at) != candidate;
        let against_peer = candidate.filter(|_| is_peer).map(|ours| (ours, at));
        for (item, to) in against_bare.into_iter().chain(against_peer) {
            let mut medians = ratios(&seen[item], &seen[to]);
            if let Some(over) = over_floor(&seen[item], &seen[to]).filter(|_| Some(to) == bare) {
                medians.insert("ask_p50_over_round_trip_and_sync".to_owned(), json!(over));
            }
            print(&json!({
                "ratio": format!("{}/{}", sides[item].name(), sides[to].name()),
                "load": line.load.to_json(),
                "manner": line.manner.to_json(),
                "medians": medians,
            }))?;
        }
    }
    Ok(())
}

/// Runs one side once, in a process of its own.
fn alone(side: &str) -> Result<Figures, Failure> {
    let output = Command::new(std::env::current_exe()?)
        .args(std::env::args_os().skip(1))
        .args(["--only", side])
        .stderr(Stdio::inherit())
        .output()?;
    if !output.status.success() {
        return Err(format!("{side}: {}", output.status).into());
    }
    Figures::read(&output.stdout)
}

/// The ratio of the medians of each figure that both sides have.
fn ratios(candidate: &[Figures], yardstick: &[Figures]) -> Map<String, Value> {
    let names = candidate.first().map(Figures::names).unwrap_or_default();
    let ratio = |name: &str| {
        let candidate = median(candidate, name)?;
        let yardstick = median(yardstick, name).filter(|figure| *figure > 0.0)?;
        Some((name.to_owned(), json!(candidate / yardstick)))
    };
    names.into_iter().filter_map(ratio).collect()
}

/// A request whose verdict is first written to disk cannot be faster than a bare round trip plus
/// one write with a sync. This is how much slower it is.
fn over_floor(candidate: &[Figures], yardstick: &[Figures]) -> Option<f64> {
    let ask = median(candidate, "ask_p50_us")?;
    let floor = median(yardstick, "ask_p50_us")? + median(candidate, "sync_p50_us")?;
    Some(ask / floor)
}

/// Raises the limit of open descriptors as far as possible: each child needs several.
fn raise_descriptors() -> Result<(), Failure> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            maximum: limit.maximum,
        },
    )?;
    Ok(())
}

fn print(line: &Value) -> Result<(), Failure> {
    writeln!(io::stdout().lock(), "{line}")?;
    Ok(())
}
