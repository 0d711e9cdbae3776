//! `report`: a summary of the last hours on one page.
//!
//! Owns the contents and their order. Reads the journal directly, also while a supervisor runs.
//! Evaluates denied requests again only to show a rule that would have allowed them.

mod runs;
mod spending;

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};

use super::audit::now_us;
use super::audit::record::{ExportedRecord, value};
use super::event_text::{local_time, time};
use super::events::{JournalError, open_journal};
use super::exit::Exit;
use super::policy::learn::{rule_id, with_rule};
use super::policy::recorded::{RecordedRequest, recorded_decision};
use super::policy::replay::{Extractors, known_policies};
use super::policy::source::{PolicySources, SelectedPolicy};
use super::since::Since;
use super::streams::Streams;
use marshal_config::Config;
use marshal_journal::codec::read_report;
use marshal_journal::{AuditQuery, CrashCount, Reader, StoredApproval, StoredSpend, StoredTask};
use marshal_model::limits;
use marshal_model::untrusted::escape_for_display;
use marshal_model::{Decision, RunId};
use marshal_policy::Request;
use marshal_policy::learn::propose_rules;
use runs::RunRows;

/// Columns shown of an untrusted word, and of a sentence.
const WORD: usize = 60;
const SENTENCE: usize = 200;

/// `report …`
#[derive(Debug, Clone, clap::Args)]
pub struct ReportArgs {
    /// Start this long ago (12h), or at this time (RFC 3339)
    #[arg(long, value_name = "TIME", default_value = "12h", value_parser = super::audit::since)]
    pub since: Since,
}

/// Denied requests with the same tool, subject and cause.
struct DeniedGroup {
    tool: String,
    about: String,
    by: String,
    rules: Vec<String>,
    count: usize,
    /// The newest of them.
    line: ExportedRecord,
}

#[derive(Default)]
struct ReportData {
    since_us: i64,
    outcomes: BTreeMap<String, usize>,
    open: usize,
    retried: usize,
    attempts: u64,
    restarts: u64,
    input: u64,
    output: u64,
    costs: BTreeMap<String, f64>,
    spent: BTreeMap<String, StoredSpend>,
    verdicts: BTreeMap<(String, String), usize>,
    denied: Vec<(DeniedGroup, Advice)>,
    crashes: Vec<CrashCount>,
    waiting: Vec<StoredApproval>,
    parked: Vec<(String, String, i64)>,
    runs: RunRows,
}

/// A change that would have allowed a denied request.
enum Advice {
    /// This rule, alone.
    Rule(String),
    /// No rule can, for this reason.
    None(String),
}

/// Shows the report.
pub(super) fn report(
    state: &Path,
    config: Option<&Config>,
    around: &PolicySources<'_>,
    args: &ReportArgs,
    json: bool,
    streams: &mut Streams,
) -> Exit {
    match page(state, config, around, args, streams) {
        Ok(page) if json => {
            streams.out.json(&document(&page).to_string());
            Exit::Done
        }
        Ok(page) => {
            print_report(&page, streams);
            Exit::Done
        }
        Err(error) => {
            streams.err.line(&format!("error: {error}"));
            error.exit()
        }
    }
}

fn page(
    state: &Path,
    config: Option<&Config>,
    around: &PolicySources<'_>,
    args: &ReportArgs,
    streams: &mut Streams,
) -> Result<ReportData, JournalError> {
    let reader = open_journal(state)?;
    let since_us = args.since.at_us(now_us()).unwrap_or(i64::MIN);
    let mut page = ReportData {
        since_us,
        ..ReportData::default()
    };
    let spend = reader.spend_of_tasks_since(since_us)?;
    reader.tasks_since(since_us, &mut |run, task| {
        page.task(&task);
        let spend = spend.get(&(run.clone(), task.id.clone())).copied();
        page.runs.add(&run, &task, spend, || {
            reader.run(&RunId::new(&run).ok()?).ok().flatten()
        });
    })?;
    for (amount, currency) in reader.costs_since(since_us)? {
        *page
            .costs
            .entry(currency.escape_for_display(WORD))
            .or_default() += amount;
    }
    page.spent = reader.spend_since(since_us)?;
    page.crashes = reader.crashes_since(since_us)?;
    page.waiting = reader.approvals(false, limits::APPROVALS_LISTED)?;
    // After a supervisor has ended, approvals past their deadline may still be open in the journal:
    // the next start ends them.
    page.waiting
        .retain(|approval| approval.deadline_us > now_us());
    page.waiting.truncate(limits::REPORT_ROWS);
    for park in reader.parked_slots()? {
        page.parked
            .push((park.slot.to_string(), park.reason, park.at_us));
    }
    denied(&reader, &mut page, config, around, streams)?;
    Ok(page)
}

impl ReportData {
    fn task(&mut self, task: &StoredTask) {
        if task.state != "ended" {
            self.open += 1;
            return;
        }
        let outcome = task.outcome.clone().unwrap_or_default();
        *self.outcomes.entry(outcome).or_default() += 1;
        self.attempts += u64::from(task.attempts);
        self.retried += usize::from(task.attempts > 1);
        let report = task.result.as_deref();
        if let Some(report) = report.and_then(|text| read_report(text).ok()) {
            self.input = self.input.saturating_add(report.tokens.input);
            self.output = self.output.saturating_add(report.tokens.output);
            self.restarts += u64::from(report.restarts);
        }
    }
}

/// Denied requests in groups, the most frequent first, each with advice for its newest request.
fn denied(
    reader: &Reader,
    page: &mut ReportData,
    config: Option<&Config>,
    around: &PolicySources<'_>,
    streams: &mut Streams,
) -> Result<(), JournalError> {
    let query = AuditQuery {
        since_us: Some(page.since_us),
        ..AuditQuery::default()
    };
    let mut kinds: BTreeMap<(String, String, String), DeniedGroup> = BTreeMap::new();
    reader.audit_records_after(&query, 0, &mut |record| {
        let key = (record.decision.clone(), record.decided_by.clone());
        *page.verdicts.entry(key).or_default() += 1;
        if record.decision != Decision::Deny.as_str() {
            return true;
        }
        let line = ExportedRecord::from_record(&record, None);
        let about = about(&line);
        let rules = line.rules.join(", ");
        let key = (rules, line.tool.clone(), about.clone());
        let is_known = kinds.contains_key(&key);
        if is_known || kinds.len() < limits::LEARN_REQUESTS {
            let kind = kinds.entry(key).or_insert_with(|| DeniedGroup {
                tool: line.tool.clone(),
                about,
                by: line.by.clone(),
                rules: line.rules.clone(),
                count: 0,
                line: ExportedRecord::from_record(&record, None),
            });
            kind.count += 1;
            kind.line = line;
        }
        true
    })?;
    let mut kinds: Vec<DeniedGroup> = kinds.into_values().collect();
    kinds.sort_by_key(|kind| std::cmp::Reverse(kind.count));
    kinds.truncate(limits::REPORT_ROWS);
    let known = config
        .map(|config| known_policies(around, config, streams))
        .unwrap_or_default();
    let tables = config.and_then(|config| Extractors::load(Some(config), None, streams).ok());
    for kind in kinds {
        let advice = advise(&kind.line, tables.as_ref(), &known);
        page.denied.push((kind, advice));
    }
    Ok(())
}

/// A short summary of a request: its programs, or its path.
fn about(line: &ExportedRecord) -> String {
    let facts: Option<Value> = line
        .facts
        .as_ref()
        .and_then(|f| serde_json::from_str(f.get()).ok());
    let parts = facts.as_ref().and_then(|facts| facts["parts"].as_array());
    let mut words: Vec<&str> = parts
        .into_iter()
        .flatten()
        .filter(|part| part["decision"] != Decision::Allow.as_str())
        .filter_map(|part| part["words"][0].as_str())
        .collect();
    words.dedup();
    words.join(", ")
}

fn advise(
    line: &ExportedRecord,
    tables: Option<&Extractors>,
    known: &BTreeMap<String, SelectedPolicy>,
) -> Advice {
    let none = |why: &str| Advice::None(why.to_owned());
    let policy = line
        .policy
        .sha256
        .as_ref()
        .and_then(|sha256| known.get(sha256));
    let Some(base) = policy else {
        return none("its policy is no longer the configured one");
    };
    let Some(tables) = tables else {
        return none("the configuration cannot be used");
    };
    match recorded_decision(line) {
        None => {
            return none(
                "no rule was evaluated: it was too large, there were too many at once, or the disk was full",
            );
        }
        Some(Decision::Deny) if line.by == "policy" => {
            let rules = line.rules.join(", ");
            return Advice::None(format!(
                "no new rule can allow it: {rules} denies it; add an exception (`unless`) to that rule"
            ));
        }
        Some(_) => {}
    }
    let past = match RecordedRequest::from_record(line, tables) {
        Ok(past) => past,
        Err(why) => return none(why),
    };
    let judged = past.judge(&base.policy);
    if let Some(why) = &judged.facts.not_plain {
        return Advice::None(format!(
            "no rule can allow it: the command is not plain ({})",
            escape_for_display(why, WORD)
        ));
    }
    for (number, proposal) in propose_rules(&past.request, &judged, past.workspace())
        .iter()
        .enumerate()
    {
        let id = rule_id(proposal, number + 1);
        let policy = with_rule(base, &proposal.to_toml(&id));
        if policy.is_some_and(|policy| past.judge(&policy).decision == Decision::Allow) {
            return Advice::Rule(proposal.to_toml(&id));
        }
    }
    none(unproposed(&past.request))
}

/// Why no rule is proposed for a request that one might allow.
const fn unproposed(request: &Request) -> &'static str {
    match request {
        Request::Move { .. } => "rules for moving files are not proposed; write one by hand",
        Request::Mcp { .. } => "rules for tools of MCP servers are not proposed; write one by hand",
        Request::Unknown { .. } => "no rule can allow it: no extractor knows the tool",
        _ => "no single rule would have allowed it",
    }
}

fn document(page: &ReportData) -> Value {
    let denied: Vec<Value> = page
        .denied
        .iter()
        .map(|(kind, advice)| {
            let (rule, why) = match advice {
                Advice::Rule(rule) => (Some(rule), None),
                Advice::None(why) => (None, Some(why)),
            };
            json!({
                "count": kind.count, "tool": kind.tool, "about": kind.about, "by": kind.by,
                "rules": kind.rules, "last_input": value(kind.line.input.as_deref()), "last_reason": kind.line.reason,
                "would_allow": rule, "no_rule_because": why,
            })
        })
        .collect();
    let verdicts: Vec<Value> = page
        .verdicts
        .iter()
        .map(|((decision, by), count)| json!({"decision": decision, "by": by, "count": count}))
        .collect();
    let crashes: Vec<Value> = page
        .crashes
        .iter()
        .map(
            |c| json!({"pool": c.pool, "class": c.class, "count": c.count, "last": c.detail.raw()}),
        )
        .collect();
    let waiting: Vec<Value> = page
        .waiting
        .iter()
        .map(|w| {
            json!({
                "approval": w.id.as_str(), "session": w.session.as_str(), "pool": w.pool.as_str(),
                "tool": w.tool.raw(), "state": w.state.as_str(), "times": w.request_count,
                "answered": w.answer.as_ref().map(|answer| answer.decision.as_str()),
                "input": w.input.as_ref().map(marshal_model::UntrustedText::raw),
                "requested_at_us": w.requested_at_us, "deadline_us": w.deadline_us,
            })
        })
        .collect();
    let parked: Vec<Value> = page
        .parked
        .iter()
        .map(|(slot, reason, at_us)| json!({"slot": slot, "reason": reason, "at_us": at_us}))
        .collect();
    let (runs, tasks, more_tasks) = page.runs.document();
    let unasked = page.runs.unasked;
    json!({
        "since": time(page.since_us), "outcomes": page.outcomes, "open": page.open,
        "attempts": page.attempts, "retried": page.retried, "restarts": page.restarts,
        "tokens": {"input": page.input, "output": page.output}, "costs": page.costs,
        "spent": spending::document(&page.spent),
        "verdicts": verdicts, "denied": denied, "crashes": crashes, "waiting": waiting,
        "parked": parked, "runs": runs, "tasks": tasks, "more_tasks": more_tasks,
        "unasked": {"allowed": unasked.allowed, "ask": unasked.ask, "denied": unasked.denied},
    })
}

fn print_report(page: &ReportData, streams: &mut Streams) {
    let mut lines = vec![
        format!("since {}", local_time(page.since_us)),
        String::new(),
    ];
    let done: usize = page.outcomes.values().sum();
    let words = page
        .outcomes
        .iter()
        .map(|(word, count)| format!("{count} {word}"));
    let words: Vec<_> = words.collect();
    lines.push(format!(
        "TASKS      {done} ended: {}; {} running or waiting",
        words.join(", "),
        page.open
    ));
    let cost = page
        .costs
        .iter()
        .map(|(currency, amount)| format!("{amount:.2} {currency}"));
    let cost: Vec<_> = cost.collect();
    let reported = (!cost.is_empty()).then(|| format!("{} (as agents report)", cost.join(", ")));
    spending::push_lines(&page.spent, reported, &mut lines);
    lines.push(format!(
        "TOKENS     {} in, {} out (as agents report)",
        page.input, page.output
    ));
    lines.push(format!(
        "RETRIES    {} attempts, {} tasks more than once, {} restarts",
        page.attempts, page.retried, page.restarts
    ));
    lines.push(if page.crashes.is_empty() {
        "CRASHES    none".to_owned()
    } else {
        "CRASHES".to_owned()
    });
    for crash in page.crashes.iter().take(limits::REPORT_ROWS) {
        let (pool, class) = (
            escape_for_display(&crash.pool, WORD),
            escape_for_display(&crash.class, WORD),
        );
        lines.push(format!(
            "  {}  {pool} {class}: {}",
            crash.count,
            crash.detail.escape_for_display(SENTENCE)
        ));
    }
    waits(page, &mut lines);
    let verdicts = page.verdicts.iter();
    let verdicts: Vec<_> = verdicts
        .map(|((word, by), count)| format!("{count} {word} by {by}"))
        .collect();
    lines.push(format!(
        "VERDICTS   {}",
        if verdicts.is_empty() {
            "none".to_owned()
        } else {
            verdicts.join(", ")
        }
    ));
    for (kind, advice) in &page.denied {
        let rules: Vec<_> = kind
            .rules
            .iter()
            .map(|rule| escape_for_display(rule, WORD))
            .collect();
        let by = if rules.is_empty() {
            kind.by.clone()
        } else {
            rules.join(", ")
        };
        lines.push(format!(
            "  {} denied by {by}: {} {}",
            kind.count,
            escape_for_display(&kind.tool, WORD),
            escape_for_display(&kind.about, WORD)
        ));
        match advice {
            Advice::Rule(rule) => {
                lines.push("      this rule would have allowed the newest of them:".to_owned());
                lines.extend(
                    rule.lines()
                        .map(|line| format!("        {}", escape_for_display(line, SENTENCE))),
                );
            }
            Advice::None(why) => lines.push(format!("      {}", escape_for_display(why, SENTENCE))),
        }
    }
    let unasked = page.runs.unasked;
    if unasked.total() > 0 {
        lines.push(format!(
            "UNASKED    {} tool calls ran without a permission request: by the policy {}",
            unasked.total(),
            unasked.describe()
        ));
    }
    page.runs.push_lines(&mut lines);
    for line in lines {
        streams.out.prose(&line);
    }
}

fn waits(page: &ReportData, lines: &mut Vec<String>) {
    lines.push(if page.waiting.is_empty() && page.parked.is_empty() {
        "WAITS      nothing waits for a person".to_owned()
    } else {
        "WAITS      for a person:".to_owned()
    });
    for approval in &page.waiting {
        let input = approval
            .input
            .as_ref()
            .map_or(String::new(), |input| input.escape_for_display(SENTENCE));
        let answer = approval.answer.as_ref().map_or(String::new(), |answer| {
            format!(
                ", {} by {}",
                answer.decision,
                escape_for_display(&answer.approver, WORD)
            )
        });
        lines.push(format!(
            "  since {}  approval {} of {} ({}; {}{answer}; until {}): {} {input}",
            local_time(approval.requested_at_us),
            escape_for_display(approval.id.as_str(), 128),
            escape_for_display(approval.session.as_str(), 128),
            approval.pool,
            approval.state,
            local_time(approval.deadline_us),
            approval.tool.escape_for_display(WORD)
        ));
    }
    for (slot, reason, at_us) in &page.parked {
        lines.push(format!(
            "  since {}  slot {} is parked: {}; fix it, then run `marshal restart {}`",
            local_time(*at_us),
            escape_for_display(slot, WORD),
            escape_for_display(reason, SENTENCE),
            escape_for_display(slot, WORD)
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use marshal_model::UntrustedText;

    #[test]
    fn what_is_not_proposed_is_not_called_impossible() {
        let ends = || vec!["a".to_owned()];
        let (from, to) = (ends(), ends());
        let moved = unproposed(&Request::Move { from, to });
        let called = unproposed(&Request::Mcp {
            server: UntrustedText::from("s"),
            name: UntrustedText::from("n"),
            arguments: Value::Null,
        });
        for why in [moved, called] {
            assert!(why.contains("not proposed"), "{why}");
        }
        assert_eq!(
            unproposed(&Request::Write { paths: ends() }),
            "no single rule would have allowed it"
        );
    }
}
