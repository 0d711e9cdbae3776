//! `audit`: recorded verdicts, and the proof that nobody changed them.
//!
//! Reads the journal directly, also while a supervisor runs, and writes nothing. Must not evaluate
//! policies.

mod list;
pub(super) mod record;
mod verify;

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::{Args, Subcommand};

use super::events::JournalError;
use super::exit::Exit;
use super::since::Since;
use super::streams::Streams;
use marshal_journal::AuditQuery;
use marshal_model::{DecidedBy, Decision, PoolName, SessionId};

/// `audit …`
#[derive(Debug, Subcommand)]
pub enum AuditCommand {
    /// Verify the hash chain of the verdicts, and name the first broken record
    ///
    /// The chain alone cannot show that records were cut off at its end, or that all of it was
    /// rewritten. The supervisor logs the head of the chain at every start and stop and every hour
    /// ("audit head"). With --head, everything up to that record is proved unchanged.
    Verify(VerifyArgs),
    /// Show the newest verdicts
    Tail(TailArgs),
    /// Show the verdicts that match the filters
    Query(FilterArgs),
    /// Export the verdicts that match the filters as JSON Lines, with all recorded fields
    Export(FilterArgs),
}

/// `audit verify …`
#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// A chain head from the log ("audit head"); it must still be in the chain
    #[arg(long, value_name = "HASH", value_parser = hash)]
    pub head: Option<String>,
}

/// `audit tail …`
#[derive(Debug, Args)]
pub struct TailArgs {
    /// How many verdicts to show
    #[arg(short = 'n', long = "lines", value_name = "N", default_value_t = 20)]
    pub count: u32,

    /// Wait for new verdicts and show them
    #[arg(short, long)]
    pub follow: bool,

    /// The filters
    #[command(flatten)]
    pub filter: FilterArgs,
}

/// The filters for verdicts; without any, all match.
#[derive(Debug, Clone, Default, Args)]
pub struct FilterArgs {
    /// Only verdicts of this session
    #[arg(long, value_parser = |text: &str| SessionId::new(text))]
    pub session: Option<SessionId>,

    /// Only verdicts of this pool's sessions
    #[arg(long, value_parser = |text: &str| PoolName::new(text))]
    pub pool: Option<PoolName>,

    /// Only this verdict: allow or deny
    #[arg(long, value_parser = decision)]
    pub decision: Option<Decision>,

    /// Only verdicts of this origin: policy, default, human, cache, timeout, error, budget, gone,
    /// delegate
    #[arg(long, value_name = "WHO", value_parser = decided_by)]
    pub by: Option<DecidedBy>,

    /// Only verdicts that this rule decided
    #[arg(long, value_name = "ID")]
    pub rule: Option<String>,

    /// Only verdicts on this tool, by the agent's name for it
    #[arg(long)]
    pub tool: Option<String>,

    /// Only verdicts since this duration ago (10m) or this time (RFC 3339)
    #[arg(long, value_name = "TIME", value_parser = since)]
    pub since: Option<Since>,
}

impl FilterArgs {
    /// The filters as a query of the journal; durations count back from now.
    pub(super) fn query(&self) -> AuditQuery {
        AuditQuery {
            session: self.session.as_ref().map(ToString::to_string),
            pool: self.pool.as_ref().map(ToString::to_string),
            decision: self.decision.map(|word| word.as_str().to_owned()),
            decided_by: self.by.map(|word| word.as_str().to_owned()),
            tool: self.tool.clone(),
            rule: self.rule.clone(),
            since_us: self.since.and_then(|since| since.at_us(now_us())),
        }
    }
}

fn hash(text: &str) -> Result<String, String> {
    let is_hash = text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit());
    if is_hash {
        Ok(text.to_ascii_lowercase())
    } else {
        Err("expected the 64 hexadecimal digits that the log shows as \"audit head\"".to_owned())
    }
}

fn decision(text: &str) -> Result<Decision, String> {
    match Decision::parse(text) {
        Some(word @ (Decision::Allow | Decision::Deny)) => Ok(word),
        _ => Err("a verdict is `allow` or `deny`".to_owned()),
    }
}

fn decided_by(text: &str) -> Result<DecidedBy, String> {
    DecidedBy::parse(text).ok_or_else(|| {
        let words: Vec<_> = DecidedBy::ALL.iter().map(|by| by.as_str()).collect();
        format!("expected one of {}", words.join(", "))
    })
}

/// Parses a time or a duration before now; an event id is refused.
pub(super) fn since(text: &str) -> Result<Since, String> {
    match Since::parse(text) {
        Ok(Since::Event(_)) | Err(_) => Err(
            "expected a duration of at most 30d such as 12h, or a time such as \
             2026-01-31T12:00:00Z"
                .to_owned(),
        ),
        Ok(since) => Ok(since),
    }
}

/// Now, in microseconds since the Unix epoch.
pub(super) fn now_us() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
    })
}

/// Runs the command on the journal of a state directory.
pub fn run(state: &Path, command: &AuditCommand, json: bool, streams: &mut Streams) -> Exit {
    let done = match command {
        AuditCommand::Verify(args) => verify::verify(state, args, json, streams),
        AuditCommand::Tail(args) => list::tail(state, args, json, streams),
        AuditCommand::Query(filter) => list::query(state, filter, json, streams),
        AuditCommand::Export(filter) => list::export(state, filter, streams),
    };
    done.unwrap_or_else(|error: JournalError| {
        streams.err.line(&format!("error: {error}"));
        error.exit()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_can_decide_is_named_by_the_help_and_by_the_page() {
        let help = FilterArgs::augment_args(clap::Command::new("query"))
            .render_long_help()
            .to_string();
        let page = include_str!("../../../docs/audit.md")
            .lines()
            .find(|line| line.starts_with("| `--by WHO`"));
        let page = page.expect("the page has the option");
        for who in DecidedBy::ALL {
            assert!(help.contains(who.as_str()), "{who}: {help}");
            assert!(page.contains(&format!("`{who}`")), "{who}: {page}");
        }
    }
}
