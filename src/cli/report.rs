//! `report`: what became of the last hours, on one page.
//!
//! Owns what a person wants to know in the morning, in the order in which they want it. Reads the
//! journal beside whatever runs, and judges what was denied again only to say what would have
//! allowed it.

mod spent;

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};

use super::audit::now_us;
use super::audit::record::{Line, value};
use super::event_text::time;
use super::events::{PastError, open};
use super::exit::Exit;
use super::policy::learn::{rule_id, with_rule};
use super::policy::past::{Past, judged_then};
use super::policy::replay::{Tables, known_policies};
use super::policy::source::{Around, Chosen};
use super::since::Since;
use super::streams::Streams;
use crate::config::Config;
use crate::journal::codec::read_report;
use crate::journal::{AuditQuery, Crashes, Reader, StoredQuestion, StoredSpent, StoredTask};
use crate::limits;
use crate::model::Decision;
use crate::model::foreign::show;
use crate::policy::Request;
use crate::policy::learn::proposals;

/// Columns of a foreign word, and of a sentence.
const WORD: usize = 60;
const SENTENCE: usize = 200;

/// `report …`
#[derive(Debug, Clone, clap::Args)]
pub struct ReportArgs {
    /// Since so long ago (12h), or from this time on (RFC 3339)
    #[arg(long, value_name = "TIME", default_value = "12h", value_parser = super::audit::since)]
    pub since: Since,
}

/// Requests that were denied alike.
struct Denied {
    tool: String,
    about: String,
    by: String,
    rules: Vec<String>,
    count: usize,
    /// The last of them.
    line: Line,
}

/// A tree that a task left, or a task that ended badly.
struct Row {
    task: String,
    pool: String,
    outcome: String,
    session: Option<String>,
    detail: Option<String>,
    tree: Option<String>,
    bundle: bool,
    changes: usize,
}

#[derive(Default)]
struct Page {
    since_us: i64,
    outcomes: BTreeMap<String, usize>,
    open: usize,
    retried: usize,
    attempts: u64,
    restarts: u64,
    input: u64,
    output: u64,
    costs: BTreeMap<String, f64>,
    spent: BTreeMap<String, StoredSpent>,
    verdicts: BTreeMap<(String, String), usize>,
    denied: Vec<(Denied, Advice)>,
    crashes: Vec<Crashes>,
    waiting: Vec<StoredQuestion>,
    parked: Vec<(String, String, i64)>,
    rows: Vec<Row>,
    more_rows: usize,
}

/// What would have allowed it.
enum Advice {
    /// This rule, alone.
    Rule(String),
    /// No rule can, for this reason.
    None(String),
}

/// Shows the report.
pub(super) fn report(
    state: &Path,
    config: &Config,
    around: &Around<'_>,
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
            tell(&page, streams);
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
    config: &Config,
    around: &Around<'_>,
    args: &ReportArgs,
    streams: &mut Streams,
) -> Result<Page, PastError> {
    let reader = open(state)?;
    let since_us = args.since.at_us(now_us()).unwrap_or(i64::MIN);
    let mut page = Page {
        since_us,
        ..Page::default()
    };
    reader.tasks_since(since_us, &mut |_, task| page.task(&task))?;
    for (amount, currency) in reader.costs_since(since_us)? {
        *page.costs.entry(currency.show(WORD)).or_default() += amount;
    }
    page.spent = reader.spent_since(since_us)?;
    page.crashes = reader.crashes_since(since_us)?;
    page.waiting = reader.questions(false, limits::QUESTIONS_LISTED)?;
    // Of a supervisor that is gone some may be open whose time is over: the next start ends them.
    page.waiting.retain(|ask| ask.deadline_us > now_us());
    page.waiting.truncate(limits::REPORT_ROWS);
    for park in reader.parks()? {
        page.parked
            .push((park.slot.to_string(), park.reason, park.at_us));
    }
    denied(&reader, &mut page, config, around, streams)?;
    Ok(page)
}

impl Page {
    fn task(&mut self, task: &StoredTask) {
        if task.state != "ended" {
            self.open += 1;
            return;
        }
        let outcome = task.outcome.clone().unwrap_or_default();
        *self.outcomes.entry(outcome.clone()).or_default() += 1;
        self.attempts += u64::from(task.attempts);
        self.retried += usize::from(task.attempts > 1);
        let report = task
            .result
            .as_deref()
            .and_then(|text| read_report(text).ok());
        let mut row = Row {
            task: task.id.clone(),
            pool: task.pool.clone(),
            session: task.session.clone(),
            detail: task.detail.clone(),
            tree: None,
            bundle: false,
            changes: 0,
            outcome,
        };
        if let Some(report) = &report {
            self.input = self.input.saturating_add(report.tokens.input);
            self.output = self.output.saturating_add(report.tokens.output);
            self.restarts += u64::from(report.restarts);
            row.changes = report.changes.len();
            row.bundle = report.bundle.is_some();
            if row.changes > 0 || report.changes_cut {
                row.tree = report.workspace.as_ref().map(ToString::to_string);
            }
        }
        let is_worth_it = row.outcome != "done" || row.tree.is_some() || row.bundle;
        if !is_worth_it {
        } else if self.rows.len() < limits::REPORT_ROWS * 10 {
            self.rows.push(row);
        } else {
            self.more_rows += 1;
        }
    }
}

/// What was denied, the most frequent first, each kind with what would have allowed the last of it.
fn denied(
    reader: &Reader,
    page: &mut Page,
    config: &Config,
    around: &Around<'_>,
    streams: &mut Streams,
) -> Result<(), PastError> {
    let query = AuditQuery {
        since_us: Some(page.since_us),
        ..AuditQuery::default()
    };
    let mut kinds: BTreeMap<(String, String, String), Denied> = BTreeMap::new();
    reader.audit_after(&query, 0, &mut |record| {
        let key = (record.decision.clone(), record.decided_by.clone());
        *page.verdicts.entry(key).or_default() += 1;
        if record.decision != Decision::Deny.word() {
            return true;
        }
        let line = Line::of(&record, None);
        let about = about(&line);
        let rules = line.rules.join(", ");
        let key = (rules, line.tool.clone(), about.clone());
        let is_known = kinds.contains_key(&key);
        if is_known || kinds.len() < limits::LEARN_REQUESTS {
            let kind = kinds.entry(key).or_insert_with(|| Denied {
                tool: line.tool.clone(),
                about,
                by: line.by.clone(),
                rules: line.rules.clone(),
                count: 0,
                line: Line::of(&record, None),
            });
            kind.count += 1;
            kind.line = line;
        }
        true
    })?;
    let mut kinds: Vec<Denied> = kinds.into_values().collect();
    kinds.sort_by_key(|kind| std::cmp::Reverse(kind.count));
    kinds.truncate(limits::REPORT_ROWS);
    let known = known_policies(around, config, streams);
    let tables = Tables::of(Some(config), None, streams).ok();
    for kind in kinds {
        let advice = advise(&kind.line, tables.as_ref(), &known);
        page.denied.push((kind, advice));
    }
    Ok(())
}

/// What a request is about, in a few words: its programs, or its path.
fn about(line: &Line) -> String {
    let facts: Option<Value> = line
        .facts
        .as_ref()
        .and_then(|f| serde_json::from_str(f.get()).ok());
    let parts = facts.as_ref().and_then(|facts| facts["parts"].as_array());
    let mut words: Vec<&str> = parts
        .into_iter()
        .flatten()
        .filter(|part| part["decision"] != Decision::Allow.word())
        .filter_map(|part| part["words"][0].as_str())
        .collect();
    words.dedup();
    words.join(", ")
}

fn advise(line: &Line, tables: Option<&Tables>, known: &BTreeMap<String, Chosen>) -> Advice {
    let none = |why: &str| Advice::None(why.to_owned());
    let policy = line
        .policy
        .sha256
        .as_ref()
        .and_then(|sha256| known.get(sha256));
    let Some(base) = policy else {
        return none("its policy is not the configured one any more");
    };
    let Some(tables) = tables else {
        return none("the configuration cannot be used");
    };
    match judged_then(line) {
        None => {
            return none("no rule was asked: too large, too many at once, or the disk was full");
        }
        Some(Decision::Deny) if line.by == "policy" => {
            let rules = line.rules.join(", ");
            return Advice::None(format!(
                "no rule can: {rules} denies it; an exception (`unless`) stands in that rule"
            ));
        }
        Some(_) => {}
    }
    let past = match Past::of(line, tables) {
        Ok(past) => past,
        Err(why) => return none(why),
    };
    let judged = past.judge(&base.policy);
    if let Some(why) = &judged.facts.not_plain {
        return Advice::None(format!(
            "no rule can: the command is not plain ({})",
            show(why, WORD)
        ));
    }
    for (number, proposal) in proposals(&past.request, &judged, past.workspace())
        .iter()
        .enumerate()
    {
        let id = rule_id(proposal, number + 1);
        let policy = with_rule(base, &proposal.toml(&id));
        if policy.is_some_and(|policy| past.judge(&policy).decision == Decision::Allow) {
            return Advice::Rule(proposal.toml(&id));
        }
    }
    none(unproposed(&past.request))
}

/// Why no rule is proposed for a request that one might allow.
const fn unproposed(request: &Request) -> &'static str {
    match request {
        Request::Move { .. } => "rules for moving files are not proposed: a person writes them",
        Request::Mcp { .. } => {
            "rules for tools of MCP servers are not proposed: a person writes them"
        }
        Request::Unknown { .. } => "no rule can: the tool is in no table",
        _ => "no single rule would have",
    }
}

fn document(page: &Page) -> Value {
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
                "ask": w.ask.as_str(), "session": w.session.as_str(), "pool": w.pool.as_str(),
                "tool": w.tool.raw(), "state": w.state.word(), "times": w.times,
                "answered": w.answer.as_ref().map(|answer| answer.decision.word()),
                "input": w.input.as_ref().map(crate::model::Foreign::raw),
                "asked_at_us": w.asked_at_us, "deadline_us": w.deadline_us,
            })
        })
        .collect();
    let parked: Vec<Value> = page
        .parked
        .iter()
        .map(|(slot, reason, at_us)| json!({"slot": slot, "reason": reason, "at_us": at_us}))
        .collect();
    let rows: Vec<Value> = page
        .rows
        .iter()
        .map(|r| {
            json!({
                "task": r.task, "pool": r.pool, "outcome": r.outcome, "session": r.session,
                "detail": r.detail, "tree": r.tree, "branch": r.bundle, "changes": r.changes,
            })
        })
        .collect();
    json!({
        "since": time(page.since_us), "outcomes": page.outcomes, "open": page.open,
        "attempts": page.attempts, "retried": page.retried, "restarts": page.restarts,
        "tokens": {"input": page.input, "output": page.output}, "costs": page.costs,
        "spent": spent::document(&page.spent),
        "verdicts": verdicts, "denied": denied, "crashes": crashes, "waiting": waiting,
        "parked": parked, "tasks": rows, "more_tasks": page.more_rows,
    })
}

fn tell(page: &Page, streams: &mut Streams) {
    let mut lines = vec![format!("since {}", time(page.since_us)), String::new()];
    let done: usize = page.outcomes.values().sum();
    let words = page
        .outcomes
        .iter()
        .map(|(word, count)| format!("{count} {word}"));
    let words: Vec<_> = words.collect();
    lines.push(format!(
        "TASKS      {done} ended: {}; {} go on or wait",
        words.join(", "),
        page.open
    ));
    let cost = page
        .costs
        .iter()
        .map(|(currency, amount)| format!("{amount:.2} {currency}"));
    let cost: Vec<_> = cost.collect();
    let cost = if cost.is_empty() {
        "not reported".to_owned()
    } else {
        cost.join(", ")
    };
    lines.push(format!(
        "COST       {cost} (as agents say); {} tokens in, {} out",
        page.input, page.output
    ));
    spent::tell(&page.spent, &mut lines);
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
        let (pool, class) = (show(&crash.pool, WORD), show(&crash.class, WORD));
        lines.push(format!(
            "  {}  {pool} {class}: {}",
            crash.count,
            crash.detail.show(SENTENCE)
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
        let rules: Vec<_> = kind.rules.iter().map(|rule| show(rule, WORD)).collect();
        let by = if rules.is_empty() {
            kind.by.clone()
        } else {
            rules.join(", ")
        };
        lines.push(format!(
            "  {} denied by {by}: {} {}",
            kind.count,
            show(&kind.tool, WORD),
            show(&kind.about, WORD)
        ));
        match advice {
            Advice::Rule(rule) => {
                lines.push("      this rule would have allowed the last of them:".to_owned());
                lines.extend(
                    rule.lines()
                        .map(|line| format!("        {}", show(line, SENTENCE))),
                );
            }
            Advice::None(why) => lines.push(format!("      {}", show(why, SENTENCE))),
        }
    }
    trees(page, &mut lines);
    for line in lines {
        streams.out.line(&line);
    }
}

fn waits(page: &Page, lines: &mut Vec<String>) {
    lines.push(if page.waiting.is_empty() && page.parked.is_empty() {
        "WAITS      nothing waits for a person".to_owned()
    } else {
        "WAITS      for a person:".to_owned()
    });
    for ask in &page.waiting {
        let input = ask
            .input
            .as_ref()
            .map_or(String::new(), |input| input.show(SENTENCE));
        let answer = ask.answer.as_ref().map_or(String::new(), |answer| {
            format!(", {} by {}", answer.decision, show(&answer.approver, WORD))
        });
        lines.push(format!(
            "  since {}  ask {} of {} ({}; {}{answer}; until {}): {} {input}",
            time(ask.asked_at_us),
            show(ask.ask.as_str(), 128),
            show(ask.session.as_str(), 128),
            ask.pool,
            ask.state,
            time(ask.deadline_us),
            ask.tool.show(WORD)
        ));
    }
    for (slot, reason, at_us) in &page.parked {
        lines.push(format!(
            "  since {}  slot {} is parked: {}; then `marshal restart {}`",
            time(*at_us),
            show(slot, WORD),
            show(reason, SENTENCE),
            show(slot, WORD)
        ));
    }
}

fn trees(page: &Page, lines: &mut Vec<String>) {
    if page.rows.is_empty() {
        return;
    }
    lines.push(
        "TREES      of tasks that changed something, and tasks that did not end well:".to_owned(),
    );
    for row in page.rows.iter().take(limits::REPORT_ROWS) {
        let detail = row.detail.as_ref();
        let detail = detail.map_or(String::new(), |detail| {
            format!(": {}", show(detail, SENTENCE))
        });
        lines.push(format!(
            "  {} {}{detail}",
            show(&row.task, WORD),
            show(&row.outcome, WORD)
        ));
        if let Some(tree) = &row.tree {
            lines.push(format!(
                "      {} files changed in {}",
                row.changes,
                show(tree, SENTENCE)
            ));
        }
        if let (true, Some(session)) = (row.bundle, &row.session) {
            lines.push(format!(
                "      its branch: `marshal take {}`",
                show(session, 128)
            ));
        }
    }
    let more = page.rows.len().saturating_sub(limits::REPORT_ROWS) + page.more_rows;
    if more > 0 {
        lines.push(format!("  and {more} more; --json has all of them"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Foreign;

    #[test]
    fn what_is_not_proposed_is_not_called_impossible() {
        let ends = || vec!["a".to_owned()];
        let (from, to) = (ends(), ends());
        let moved = unproposed(&Request::Move { from, to });
        let called = unproposed(&Request::Mcp {
            server: Foreign::from("s"),
            name: Foreign::from("n"),
            arguments: Value::Null,
        });
        for why in [moved, called] {
            assert!(why.contains("not proposed"), "{why}");
        }
        assert_eq!(
            unproposed(&Request::Write { paths: ends() }),
            "no single rule would have"
        );
    }
}
