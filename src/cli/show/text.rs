//! A session as lines for a person: what was asked, what came of it, and how to go on.
//!
//! Must not know the journal. Every line is safe to show.

use serde_json::Value;

use super::{Facts, Tool, rules};
use crate::cli::board::span;
use crate::cli::event_text::local_time as time;
use crate::cli::short_ids::short;
use marshal_config::show_size;
use marshal_journal::codec::Report;
use marshal_journal::{StoredPermissionRequest, StoredTask};
use marshal_model::budget::format_cost;
use marshal_model::untrusted::escape_for_display as safe;
use marshal_model::{TaskOutcome, UntrustedText};

/// Columns shown of an untrusted word.
const WORD: usize = 40;
/// Columns shown of an untrusted sentence.
const SENTENCE: usize = 400;
/// Lines shown of a prompt, and of an answer.
const QUOTED_LINES: usize = 12;

/// The keys of a tool's input that say what it is about, the most telling first.
const SUBJECTS: [&str; 9] = [
    "command",
    "cmd",
    "path",
    "file_path",
    "filePath",
    "url",
    "pattern",
    "query",
    "prompt",
];

/// The whole session.
pub(super) fn lines(facts: &Facts) -> Vec<String> {
    let report = facts.report();
    let mut page = Page(Vec::new());
    for task in &facts.tasks {
        page.task(facts, task, report.as_ref());
    }
    page.requests(&facts.requests);
    page.tools(facts);
    if let Some(report) = &report {
        page.changes(report);
    }
    page.session(facts);
    if let Some(next) = report.as_ref().and_then(|report| next(facts, report)) {
        page.fact("next", &next);
    }
    page.0
}

/// The lines so far.
struct Page(Vec<String>);

impl Page {
    fn fact(&mut self, name: &str, text: &str) {
        self.0.push(format!("{name:<9} {text}"));
    }

    fn below(&mut self, text: &str) {
        self.0.push(format!("          {text}"));
    }

    /// A text of several lines, each below the one before it.
    fn quote(&mut self, name: &str, text: &UntrustedText, from_end: bool) {
        let all: Vec<&str> = text.raw().trim().lines().collect();
        let more = all.len().saturating_sub(QUOTED_LINES);
        let shown = if from_end {
            &all[more..]
        } else {
            &all[..all.len() - more]
        };
        for (number, line) in shown.iter().enumerate() {
            let line = safe(line, SENTENCE);
            if number == 0 {
                self.fact(name, &line);
            } else {
                self.below(&line);
            }
        }
        if more > 0 {
            let which = if from_end { "earlier" } else { "more" };
            self.below(&format!("({more} {which} lines; --json has them)"));
        }
    }

    fn task(&mut self, facts: &Facts, task: &StoredTask, report: Option<&Report<'_>>) {
        let outcome = task.outcome.as_deref().unwrap_or(&task.state);
        let own = report.filter(|report| report.id == task.id);
        let mut facts_of_task = vec![safe(outcome, WORD)];
        if let Some(report) = own {
            let took = std::time::Duration::from_millis(report.duration_ms);
            facts_of_task.push(span(took));
            let tokens = report.tokens.input.saturating_add(report.tokens.output);
            if tokens > 0 {
                facts_of_task.push(format!("{tokens} tokens"));
            }
        }
        if facts.spent.nanodollars > 0 {
            facts_of_task.push(format_cost(facts.spent.nanodollars));
        }
        let id = safe(&task.id, 128);
        self.fact("task", &format!("{id}: {}", facts_of_task.join(", ")));
        if let Some(detail) = task.detail.as_ref().filter(|detail| !detail.is_empty()) {
            self.fact("why", &safe(detail, SENTENCE));
        }
        self.quote("prompt", &task.prompt, false);
        if let Some(report) = own {
            self.quote("answer", &UntrustedText::new(&*report.answer), true);
        }
        if facts.attempts.len() > 1 {
            self.fact("attempts", &facts.attempts.len().to_string());
            for attempt in &facts.attempts {
                let how = attempt.class.as_deref().unwrap_or("-");
                let session = safe(&attempt.session, 128);
                self.below(&format!(
                    "{} {session} {}",
                    attempt.attempt,
                    safe(how, WORD)
                ));
            }
        }
    }

    fn requests(&mut self, requests: &[StoredPermissionRequest]) {
        if requests.is_empty() {
            return;
        }
        self.fact("requests", &requests.len().to_string());
        let rows: Vec<_> = requests.iter().map(verdict_and_call).collect();
        self.table(&rows);
    }

    fn tools(&mut self, facts: &Facts) {
        let count = facts.tools.len() as u64 + facts.more_tools;
        if count == 0 {
            return;
        }
        self.fact("tools", &count.to_string());
        let rows: Vec<_> = facts.tools.iter().map(state_and_call).collect();
        self.table(&rows);
        if facts.more_tools > 0 {
            self.below(&format!("and {} more", facts.more_tools));
        }
    }

    /// Two columns.
    fn table(&mut self, rows: &[(String, String)]) {
        let widths = rows.iter().map(|(first, _)| first.chars().count());
        let width = widths.max().unwrap_or(0).min(WORD);
        for (first, second) in rows {
            self.below(&format!("{first:<width$}  {second}"));
        }
    }

    fn changes(&mut self, report: &Report<'_>) {
        if report.changes.is_empty() {
            return;
        }
        let cut = if report.changes_cut { " or more" } else { "" };
        self.fact("changed", &format!("{}{cut}", report.changes.len()));
        for change in &report.changes {
            let (kind, path) = (safe(&change.kind, WORD), safe(&change.path, SENTENCE));
            self.below(&format!("{kind} {path}"));
        }
    }

    fn session(&mut self, facts: &Facts) {
        let session = &facts.session;
        let slot = format!("{}/{}", safe(&session.pool, WORD), session.slot);
        let id = safe(&session.session, 128);
        self.fact("session", &format!("{id} in {slot}"));
        if let Some(run) = &session.run {
            self.fact("run", &safe(run, 128));
        }
        let begun = time(session.begun_at_us);
        let until = session.ended_at_us.map_or_else(
            || format!("since {begun}"),
            |ended| format!("{begun} to {}", time(ended)),
        );
        self.fact("when", &until);
        let size = show_size(facts.bytes);
        self.fact("journal", &format!("{} events, {size}", facts.events));
        if let Some(exit) = &facts.exit {
            let detail = safe(&exit.detail, SENTENCE);
            self.fact("exit", &format!("{}: {detail}", exit.class));
            for line in &exit.stderr {
                self.below(&line.escape_for_display(SENTENCE));
            }
        }
    }
}

/// The command that shows or brings in what the session changed.
fn next(facts: &Facts, report: &Report<'_>) -> Option<String> {
    let session = safe(short(&facts.session.session), WORD);
    if report.bundle.is_some() {
        Some(format!("marshal diff {session}, marshal land {session}"))
    } else if report.workspace.is_some() && !report.changes.is_empty() {
        Some(format!("marshal diff {session}"))
    } else if report.outcome != TaskOutcome::Done.as_str() {
        Some(format!("marshal events --session {session}"))
    } else {
        None
    }
}

fn verdict_and_call(request: &StoredPermissionRequest) -> (String, String) {
    let decision = match request.decision.as_deref() {
        Some("allow") => "allowed",
        Some("deny") => "denied",
        Some("ask") => "not answered",
        Some(other) => other,
        None => "waits",
    };
    let by = request.decided_by.as_deref();
    let rules = rules(request);
    let by = match (rules.is_empty(), by) {
        (_, None) => String::new(),
        (true, Some(by)) => format!(" by {by}"),
        // A person's answer, or a delegate's, beside the rule that asked for it.
        (false, Some(by)) if by != "policy" => format!(" by {by} ({})", rules.join(", ")),
        (false, Some(_)) => format!(" by {}", rules.join(", ")),
    };
    let input = request.input.as_deref().unwrap_or_default();
    (
        safe(&format!("{decision}{by}"), SENTENCE),
        call(&request.tool, input),
    )
}

fn state_and_call(tool: &Tool) -> (String, String) {
    let mut call = call(&tool.name, &tool.input);
    if let Some((decision, rules)) = &tool.unasked {
        let rules = if rules.is_empty() {
            String::new()
        } else {
            format!(" by {}", safe(&rules.join(", "), SENTENCE))
        };
        call = format!("{call} (ran unasked; the policy says {decision}{rules})");
    }
    (tool.as_str().to_owned(), call)
}

/// A tool and what it is about: `bash: cargo test`.
fn call(tool: &UntrustedText, input: &str) -> String {
    let tool = tool.escape_for_display(WORD);
    let subject = subject(input).unwrap_or_else(|| input.to_owned());
    format!("{tool}: {}", safe(&subject, SENTENCE))
}

/// What a tool's input is about, if that is one text, or the words of one command.
fn subject(input: &str) -> Option<String> {
    let mut read: Value = serde_json::from_str(input).ok()?;
    // What an ACP agent sends of a call has its input in it.
    if let Some(raw) = read.get_mut("rawInput") {
        read = raw.take();
    }
    let named = SUBJECTS.iter().find_map(|key| read.get(key))?;
    match named {
        Value::String(text) => Some(text.clone()),
        Value::Array(words) => {
            let words: Option<Vec<&str>> = words.iter().map(Value::as_str).collect();
            words.map(|words| words.join(" "))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::subject;

    #[test]
    fn a_call_is_named_by_what_it_is_about() {
        let of = |input: &str| subject(input);
        assert_eq!(of("{\"command\":\"ls -l\"}"), Some("ls -l".to_owned()));
        assert_eq!(
            of("{\"timeout\":1,\"command\":[\"bash\",\"-c\",\"ls\"]}"),
            Some("bash -c ls".to_owned())
        );
        assert_eq!(
            of("{\"content\":\"x\",\"file_path\":\"a\"}"),
            Some("a".to_owned())
        );
        assert_eq!(
            of("{\"locations\":[],\"rawInput\":{\"command\":\"ls\"}}"),
            Some("ls".to_owned())
        );
        // What has no such text is shown as it is.
        for odd in ["{}", "{\"command\":[1]}", "{\"other\":\"x\"}", "7", "no"] {
            assert_eq!(of(odd), None, "{odd}");
        }
    }
}
