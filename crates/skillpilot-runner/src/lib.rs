//! `marshal runner`: `SkillPilot`'s Runner, which types commands from files into a tool at a
//! terminal; and its carrier, for a Master without a file system.
//!
//! ```text
//! queue/ --claim--> inflight/ --payload--> terminal --> tool
//! result/ <-- result -- output before the marker --> output/, log/
//! Master's lines on stdin --> carrier --> queue/, ctl/, state/lease.json
//! Master's stdout <-- carrier <-- output/, result/, state/
//! ```
//!
//! Runner and carrier share only the directory. With `--carry` this process is only the carrier,
//! and another process is the Runner. Each is one thread, without a runtime.

mod carrier;
mod dir;
mod error;
mod lease;
mod process_tree;
mod record;
mod runner;
mod running;
mod terminal;
mod watch;

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args as ClapArgs;

use marshal_wire::skillpilot::TIMEOUT_S;
use marshal_wire::skillpilot::marker::{MarkerTemplate, PayloadTemplate, ToolKind};

/// `marshal runner`.
#[derive(Debug, Clone, PartialEq, Eq, ClapArgs)]
pub struct Args {
    /// The session's directory; it is created if it is missing
    #[arg(long, value_name = "DIR", required_unless_present = "at_terminal")]
    dir: Option<PathBuf>,
    /// The tool's kind: commands of any other kind are refused
    #[arg(long, value_name = "WORD", default_value = "tcl")]
    kind: String,
    /// How the tool prints a marker: a line with {head} and {tail}, which it prints one after the
    /// other
    /// [default: known for tcl, python and sh]
    #[arg(long, value_name = "LINE")]
    marker: Option<String>,
    /// How the tool evaluates a payload in one line: a line with {hex} or {octal}
    /// [default: known for tcl, python and sh]
    #[arg(long, value_name = "LINE")]
    unit: Option<String>,
    /// A line that is typed first, so that the tool prints no prompts
    #[arg(long, value_name = "LINE")]
    init: Option<String>,
    /// The time limit of a command that has none of its own
    #[arg(long, value_name = "SECONDS", default_value_t = TIMEOUT_S,
        value_parser = clap::value_parser!(u64).range(1..=marshal_wire::skillpilot::TIMEOUT_MAX_S))]
    timeout: u64,
    /// How often the directory is read where the kernel reports no changes
    #[arg(long, value_name = "MS", default_value_t = 1000,
        value_parser = clap::value_parser!(u64).range(10..=60_000))]
    poll: u64,
    /// How often a heartbeat is written
    #[arg(long, value_name = "MS", default_value_t = 5000,
        value_parser = clap::value_parser!(u64).range(10..=60_000))]
    heartbeat: u64,
    /// Also carry files for a Master at standard input and output
    #[arg(long)]
    stdio: bool,
    /// Only carry files for a Master at standard input and output; another process is the Runner
    #[arg(long, conflicts_with_all = ["stdio", "at_terminal"])]
    carry: bool,
    /// Become the tool, at the terminal that is standard input
    #[arg(long, hide = true)]
    at_terminal: bool,
    /// The tool and its arguments
    #[arg(last = true, value_name = "TOOL", required_unless_present = "carry")]
    tool: Vec<String>,
}

/// The configuration of a Runner.
#[derive(Debug)]
struct RunnerConfig {
    kind: String,
    template: MarkerTemplate,
    /// `None`: the payload's lines are typed as they are.
    unit: Option<PayloadTemplate>,
    init: Option<String>,
    timeout_s: u64,
    poll: Duration,
    heartbeat: Duration,
    stdio: bool,
    tool: Vec<String>,
}

/// Runs until it is stopped, its lease expires, or its tool cannot be started.
pub fn run(args: Args) -> ExitCode {
    if args.at_terminal {
        return terminal::exec_tool(&args.tool);
    }
    let Some(dir) = &args.dir else {
        return report_error("--dir is missing: set it to the session's directory");
    };
    if args.carry {
        return match carrier::carry(dir, Duration::from_millis(args.poll)) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => report_error(&error.to_string()),
        };
    }
    let known = ToolKind::find(&args.kind);
    let Some(marker) = args.marker.as_deref().or(known.map(|known| known.marker)) else {
        return report_error(&format!(
            "no marker line is known for tools of the kind {:?}: set --marker",
            args.kind
        ));
    };
    let template = match MarkerTemplate::new(marker) {
        Ok(template) => template,
        Err(error) => return report_error(&format!("--marker {marker:?}: {error}")),
    };
    let unit = args
        .unit
        .as_deref()
        .or(known.map(|known| known.payload_template));
    let unit = match unit.map(PayloadTemplate::new).transpose() {
        Ok(unit) => unit,
        Err(error) => return report_error(&format!("--unit {:?}: {error}", args.unit)),
    };
    let init = args.init.or_else(|| {
        let known = known.filter(|_| args.marker.is_none());
        known.map(|known| known.init.to_owned())
    });
    let config = RunnerConfig {
        kind: args.kind,
        template,
        unit,
        init,
        timeout_s: args.timeout,
        poll: Duration::from_millis(args.poll),
        heartbeat: Duration::from_millis(args.heartbeat),
        stdio: args.stdio,
        tool: args.tool,
    };
    match runner::run(dir, config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => report_error(&error.to_string()),
    }
}

/// Prints an error to standard error.
fn report_error(why: &str) -> ExitCode {
    let _ = writeln!(std::io::stderr(), "error: {why}");
    ExitCode::FAILURE
}
