//! The spawn bench: the cost of a sandbox at a start, against no sandbox and against `bwrap` with
//! the same view, alternating in one run.
//!
//! A round of a side is one `cat`: started, given a line, ended. Prints one JSON line a side and
//! one with the ratios. With `--files` it is a shell in a workspace of that many files instead, in
//! every workspace mode. It only reports; no result makes it fail.

mod sides;
mod workspace;

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use serde_json::{Map, Value, json};

use sides::{House, Side};

/// The error of a run.
type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Starts `cat` with and without a sandbox, alternating, and prints the time of each start
#[derive(Debug, Parser)]
#[command(name = "spawn")]
struct Line {
    /// Number of starts of each side
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rounds: u32,
    /// The profile of marshal's sandbox
    #[arg(long, default_value = "standard")]
    profile: String,
    /// Number of children that live at once while memory is measured
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=200))]
    children: u32,
    /// Measure a workspace of this many files instead
    #[arg(long, value_parser = clap::value_parser!(u32).range(2..=200_000))]
    files: Option<u32>,
    /// Number of copies of that workspace
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    copies: u32,
    /// The `marshal` to measure [default: the one that was built with this bench]
    #[arg(long)]
    marshal: Option<PathBuf>,
    /// Set by cargo
    #[arg(long, hide = true)]
    bench: bool,
}

/// The measurements of one side.
#[derive(Debug, Default)]
struct Measured {
    first_byte: Vec<Duration>,
    life: Vec<Duration>,
    cpu_ticks: u64,
    helpers: f64,
    helper_pss_bytes: f64,
}

fn main() -> ExitCode {
    match run(&Line::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "spawn: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(line: &Line) -> Result<(), Failure> {
    let marshal = line
        .marshal
        .clone()
        .unwrap_or_else(|| env!("CARGO_BIN_EXE_marshal").into());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let _inside = runtime.enter();
    if let Some(files) = line.files {
        let lines = workspace::measure(
            &marshal,
            &line.profile,
            files,
            line.rounds,
            line.copies.min(line.rounds),
            &runtime,
        )?;
        let mut out = io::stdout().lock();
        for line in lines {
            writeln!(out, "{line}")?;
        }
        return Ok(());
    }
    let house = House::new(&marshal, &line.profile)?;
    let mut sides = Vec::new();
    for side in house.sides()? {
        sides.push((side, Measured::default()));
    }
    // The first start of each side reads its files from the disk, so it is not measured.
    for (side, _) in &sides {
        runtime.block_on(once(side))?;
    }
    for _ in 0..line.rounds {
        for (side, measured) in &mut sides {
            let before = cpu_ticks_of_children()?;
            let (first_byte, life) = runtime.block_on(once(side))?;
            measured.first_byte.push(first_byte);
            measured.life.push(life);
            measured.cpu_ticks += cpu_ticks_of_children()?.saturating_sub(before);
        }
    }
    for (side, measured) in &mut sides {
        let (helpers, pss) = runtime.block_on(side.helpers(line.children))?;
        measured.helpers = helpers;
        measured.helper_pss_bytes = pss;
    }
    tell(line, &sides)
}

async fn once(side: &Side) -> Result<(Duration, Duration), Failure> {
    side.once()
        .await
        .map_err(|error| format!("{}: {error}", side.name()).into())
}

/// The CPU time of all reaped children, in ticks of a hundredth of a second.
fn cpu_ticks_of_children() -> Result<u64, Failure> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let (_, fields) = stat.rsplit_once(')').ok_or("an odd /proc/self/stat")?;
    // cutime and cstime, proc_pid_stat(5): fields 16 and 17 of which 2 are before the bracket.
    let of_children = fields.split_ascii_whitespace().skip(13).take(2);
    let mut sum = 0;
    for ticks in of_children {
        sum += ticks.parse::<u64>()?;
    }
    Ok(sum)
}

fn at(times: &[Duration], permille: usize) -> f64 {
    let mut times: Vec<Duration> = times.to_vec();
    times.sort_unstable();
    let place = (times.len() * permille / 1000).min(times.len().saturating_sub(1));
    times
        .get(place)
        .map_or(0.0, |took| took.as_secs_f64() * 1e3)
}

fn tell(line: &Line, sides: &[(Side, Measured)]) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    for (side, measured) in sides {
        let shown = json!({
            "side": side.name(),
            "rounds": line.rounds,
            "first_byte_p10_ms": at(&measured.first_byte, 100),
            "first_byte_p50_ms": at(&measured.first_byte, 500),
            "first_byte_p90_ms": at(&measured.first_byte, 900),
            "life_p50_ms": at(&measured.life, 500),
            "cpu_ms": measured.cpu_ticks as f64 * 10.0 / f64::from(line.rounds),
            "helpers": measured.helpers,
            "helper_pss_bytes_per_child": measured.helper_pss_bytes,
        });
        writeln!(out, "{shown}")?;
    }
    let mut ratios = Map::new();
    let marshal = sides.iter().find(|(side, _)| side.name() == "marshal");
    for (side, measured) in sides {
        let Some((_, ours)) = marshal.filter(|_| side.name() != "marshal") else {
            continue;
        };
        let ratio = at(&ours.first_byte, 500) / at(&measured.first_byte, 500);
        ratios.insert(format!("marshal/{}", side.name()), Value::from(ratio));
    }
    writeln!(out, "{}", json!({ "first_byte_p50_ratios": ratios }))?;
    Ok(())
}
