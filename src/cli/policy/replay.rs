//! `policy replay`: evaluates recorded requests again, by another policy.
//!
//! A request can be replayed if a policy decided it, its input is kept and its directory is
//! recorded. Links and directories are as they were recorded. Files that were not recorded count as
//! missing, and the output says so.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Value, json};

use super::PolicyCommandError;
use super::recorded::{RecordedRequest, recorded_decision};
use super::source::{PolicySources, SelectedPolicy};
use crate::cli::audit::FilterArgs;
use crate::cli::audit::record::{ExportedRecord, value};
use crate::cli::exit::Exit;
use crate::cli::policies::extractors;
use crate::cli::project::lookup;
use crate::cli::streams::Streams;
use marshal_config::Config;
use marshal_model::Decision;
use marshal_model::limits;
use marshal_model::untrusted::escape_for_display;
use marshal_policy::extract::{Extractor, builtin_text};

/// Changes in the text output; `--json` has all of them.
const MAX_SHOWN: usize = 200;
/// Columns shown of a request.
const REQUEST: usize = 160;

/// `policy replay …`
#[derive(Debug, clap::Args)]
pub struct ReplayArgs {
    /// The new policy: a [policy.NAME] of the configuration, builtin:NAME, or a file
    #[arg(long = "with", value_name = "NAME|FILE")]
    pub new: String,

    /// The requests to evaluate again
    #[command(flatten)]
    pub of: LogArgs,

    /// Exit with 1 on such a change, or if a request cannot be evaluated again
    #[arg(long, value_name = "WHAT")]
    pub fail_on: Option<FailOn>,
}

/// The recorded requests, and how their tool calls are read.
#[derive(Debug, Clone, clap::Args)]
pub struct LogArgs {
    /// Read the requests from this file of `audit export`, instead of the journal
    #[arg(long, value_name = "AUDIT.jsonl")]
    pub log: Option<PathBuf>,

    /// Read tool calls with this built-in extractor, instead of the one of each request's pool
    #[arg(long, value_name = "NAME")]
    pub extractor: Option<String>,

    /// Filters for the requests of the journal
    #[command(flatten)]
    pub filter: FilterArgs,
}

/// The changes that make a replay fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum FailOn {
    /// A request that was denied or needed a person is now allowed.
    Widened,
    /// Any decision differs.
    Changed,
}

/// The extractors for tool calls, by pool.
pub(in crate::cli) struct Extractors {
    named: Option<Arc<Extractor>>,
    pools: BTreeMap<String, Arc<Extractor>>,
}

impl Extractors {
    /// The extractors of the configuration, or the one that is named.
    pub(in crate::cli) fn load(
        config: Option<&Config>,
        named: Option<&str>,
        streams: &mut Streams,
    ) -> Result<Self, PolicyCommandError> {
        if let Some(name) = named {
            let text = builtin_text(name).ok_or_else(|| {
                PolicyCommandError::Usage(format!(
                    "there is no built-in extractor {:?}",
                    escape_for_display(name, 40)
                ))
            })?;
            let table =
                Extractor::parse(text).map_err(|e| PolicyCommandError::Failed(e.to_string()))?;
            return Ok(Self {
                named: Some(Arc::new(table)),
                pools: BTreeMap::new(),
            });
        }
        let pools = config.map(extractors).transpose().map_err(|errors| {
            crate::cli::command::show(&errors, false, streams);
            PolicyCommandError::Reported(Exit::Usage)
        })?;
        Ok(Self {
            named: None,
            pools: pools.unwrap_or_default(),
        })
    }

    /// The extractor for a pool's requests.
    pub(in crate::cli) fn get(&self, pool: Option<&str>) -> Option<&Extractor> {
        let of_pool = || self.pools.get(pool?);
        self.named.as_ref().or_else(of_pool).map(AsRef::as_ref)
    }
}

/// Calls back for every recorded request, from a file or from the journal.
pub(super) fn for_each_record(
    LogArgs { log, filter, .. }: &LogArgs,
    around: &PolicySources<'_>,
    take: &mut dyn FnMut(ExportedRecord),
) -> Result<(), PolicyCommandError> {
    let Some(log) = log else {
        let request = lookup::Request {
            project: None,
            config: around.config,
            cwd: &around.directory,
            need: lookup::Need::Records,
        };
        let state = lookup::find(&request, |name| std::env::var_os(name))
            .map_err(|error| PolicyCommandError::Usage(error.to_string()))?
            .state;
        let exit_with = |error: crate::cli::events::JournalError| match error.exit() {
            Exit::Usage => PolicyCommandError::Usage(error.to_string()),
            _ => PolicyCommandError::Failed(error.to_string()),
        };
        let reader = crate::cli::events::open_journal(&state).map_err(exit_with)?;
        let read = reader.audit_records_after(&filter.query(), 0, &mut |record| {
            take(ExportedRecord::from_record(&record, None));
            true
        });
        return read.map(|_| ()).map_err(|error| exit_with(error.into()));
    };
    if filter.query() != marshal_journal::AuditQuery::default() {
        let text =
            "filters do not apply to --log; filter the export instead (`marshal audit export`)";
        return Err(PolicyCommandError::Usage(text.to_owned()));
    }
    let shown = escape_for_display(&log.to_string_lossy(), 300);
    let failed =
        |error: std::io::Error| PolicyCommandError::Usage(format!("cannot read {shown}: {error}"));
    let file = std::fs::File::open(around.directory.join(log)).map_err(failed)?;
    let mut file = BufReader::new(file);
    for number in 1_usize.. {
        let mut text = String::new();
        let most = limits::AUDIT_LINE_BYTES as u64;
        let read = file
            .by_ref()
            .take(most)
            .read_line(&mut text)
            .map_err(failed)?;
        if read == 0 {
            break;
        }
        if text.trim().is_empty() {
            continue;
        }
        let line = serde_json::from_str(&text).map_err(|error| {
            let why = escape_for_display(&error.to_string(), 200);
            PolicyCommandError::Usage(format!(
                "{shown}:{number}: not a line of `audit export`: {why}"
            ))
        })?;
        take(line);
    }
    Ok(())
}

/// A request with a different decision.
struct Change {
    line: ExportedRecord,
    old: Decision,
    new: Decision,
    rules: Vec<String>,
    reason: String,
    /// The old policy also decides differently now, so the cause may not be the new policy.
    drifted: bool,
    /// The decision depends on files that were not recorded.
    guessed: bool,
}

#[derive(Default)]
struct ReplayResult {
    requests: usize,
    counts: BTreeMap<(Decision, Decision), usize>,
    skipped: BTreeMap<&'static str, usize>,
    changes: Vec<Change>,
    widened: usize,
    /// Requests that depend on files that were not recorded.
    guessed: usize,
}

pub(super) fn replay(
    args: &ReplayArgs,
    around: &PolicySources<'_>,
    json: bool,
    streams: &mut Streams,
) -> Result<u8, PolicyCommandError> {
    let config = around.load(streams)?;
    let named = args.new.strip_prefix("builtin:").or_else(|| {
        config
            .policies
            .contains_key(&args.new)
            .then_some(&*args.new)
    });
    let new = match named {
        Some(name) => around.by_name(name, streams)?,
        None => around.by_path(args.new.as_ref())?,
    };
    let tables = Extractors::load(Some(&config), args.of.extractor.as_deref(), streams)?;
    let known = known_policies(around, &config, streams);
    let mut seen = ReplayResult::default();
    for_each_record(&args.of, around, &mut |line| {
        one(line, &new, &tables, &known, &mut seen);
    })?;
    if json {
        streams.out.json(&document(&seen, &new).to_string());
    } else {
        print_result(&seen, &new, streams);
    }
    let unsure = seen.skipped.values().sum::<usize>() > 0;
    let fails = match args.fail_on {
        None => false,
        Some(FailOn::Widened) => seen.widened > 0 || unsure,
        Some(FailOn::Changed) => !seen.changes.is_empty() || unsure,
    };
    Ok(u8::from(fails))
}

/// The policies that may have decided a recorded request, by their digest.
pub(in crate::cli) fn known_policies(
    around: &PolicySources<'_>,
    config: &Config,
    streams: &mut Streams,
) -> BTreeMap<String, SelectedPolicy> {
    let own = config.policies.keys().cloned();
    let all = own.chain(marshal_policy::policy_names().map(str::to_owned));
    let loaded = all.filter_map(|name| around.by_name(&name, streams).ok());
    loaded.map(|of| (of.sha256.clone(), of)).collect()
}

fn one(
    line: ExportedRecord,
    new: &SelectedPolicy,
    tables: &Extractors,
    known: &BTreeMap<String, SelectedPolicy>,
    seen: &mut ReplayResult,
) {
    let Some(old) = recorded_decision(&line) else {
        return; // No policy decided it.
    };
    seen.requests += 1;
    let past = match RecordedRequest::from_record(&line, tables) {
        Ok(past) => past,
        Err(why) => {
            *seen.skipped.entry(why).or_default() += 1;
            return;
        }
    };
    let got = past.judge(&new.policy);
    let guessed = past.has_guessed();
    seen.guessed += usize::from(guessed);
    *seen.counts.entry((old, got.decision)).or_default() += 1;
    if got.decision == old {
        return;
    }
    seen.widened += usize::from(got.decision == Decision::Allow);
    let same = line
        .policy
        .sha256
        .as_ref()
        .and_then(|sha256| known.get(sha256));
    let drifted = same.is_some_and(|same| past.judge(&same.policy).decision != old);
    seen.changes.push(Change {
        old,
        new: got.decision,
        rules: got.rules,
        reason: got.reason,
        drifted,
        guessed,
        line,
    });
}

fn document(seen: &ReplayResult, new: &SelectedPolicy) -> Value {
    let counts: Vec<Value> = seen
        .counts
        .iter()
        .map(
            |((old, new), count)| json!({"old": old.as_str(), "new": new.as_str(), "count": count}),
        )
        .collect();
    let changes: Vec<Value> = seen
        .changes
        .iter()
        .map(|change| {
            json!({
                "seq": change.line.seq,
                "session": change.line.session,
                "pool": change.line.pool,
                "tool": change.line.tool,
                "input": value(change.line.input.as_deref()),
                "old": change.old.as_str(),
                "old_rules": change.line.rules,
                "new": change.new.as_str(),
                "new_rules": change.rules,
                "reason": change.reason,
                "widened": change.new == Decision::Allow,
                "drifted": change.drifted,
                "guessed": change.guessed,
            })
        })
        .collect();
    json!({
        "policy": {"name": new.policy.name(), "sha256": new.sha256},
        "requests": seen.requests,
        "counts": counts,
        "changed": seen.changes.len(),
        "widened": seen.widened,
        "guessed": seen.guessed,
        "skipped": seen.skipped,
        "changes": changes,
    })
}

fn print_result(seen: &ReplayResult, new: &SelectedPolicy, streams: &mut Streams) {
    for change in seen.changes.iter().take(MAX_SHOWN) {
        let input = change.line.input.as_ref().map_or("", |input| input.get());
        let mark = match (change.new, change.drifted, change.guessed) {
            (_, true, _) => "  (the old policy also decides differently here)",
            (Decision::Allow, ..) => "  WIDENED",
            (.., true) => "  (depends on files that were not recorded)",
            _ => "",
        };
        streams.out.line(&format!(
            "{} {} -> {}  {} {}{mark}",
            change.line.seq,
            change.old,
            change.new,
            escape_for_display(&change.line.tool, 40),
            escape_for_display(input, REQUEST),
        ));
        streams.out.line(&format!("    {}", change.reason));
    }
    if seen.changes.len() > MAX_SHOWN {
        let more = seen.changes.len() - MAX_SHOWN;
        streams
            .out
            .line(&format!("and {more} more; --json has all of them"));
    }
    let name = escape_for_display(new.policy.name(), 80);
    streams
        .out
        .line(&format!("{} requests by {name}:", seen.requests));
    for ((old, new), count) in &seen.counts {
        streams.out.line(&format!("  {old} -> {new}  {count}"));
    }
    for (why, count) in &seen.skipped {
        streams
            .out
            .line(&format!("  not evaluated again: {count}, {why}"));
    }
    if seen.guessed > 0 {
        streams.out.line(&format!(
            "  {} depend on files that were not recorded; such files count as missing",
            seen.guessed
        ));
    }
    streams.out.line(&format!(
        "{} changed, {} of them widened",
        seen.changes.len(),
        seen.widened
    ));
}
