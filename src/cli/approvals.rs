//! `approvals`: pending permission requests of the running supervisor, and their answers.
//!
//! Everything that an agent wrote is escaped, so that it cannot act on a terminal or mislead.
//! Must not know what an answer does.

use std::path::Path;

use clap::Subcommand;

use super::audit::now_us;
use super::event_text::time;
use super::exit::Exit;
use super::streams::Streams;
use super::supervisor_client::{Client, ClientError};
use marshal_engine::api::approvals::{Answer, ApprovalDetails, ApprovalView, PartView};
use marshal_engine::api::time::Time;
use marshal_model::limits;
use marshal_model::untrusted::escape_for_display as safe;
use marshal_model::{ApprovalState, Decision, PermissionRequestId, RememberScope, UntrustedText};

/// Columns shown of a word that is not ours.
const WORD: usize = 400;
/// Columns shown of a name.
const NAME: usize = 40;

/// `approvals …`
#[derive(Debug, Clone, PartialEq, Eq, Subcommand)]
pub enum ApprovalsCommand {
    /// List pending approvals
    Ls {
        /// List ended approvals instead, newest first
        #[arg(long)]
        ended: bool,
    },
    /// Show one approval: parsed commands, resolved paths, the rule that asks, the raw input
    Show {
        /// Id of the approval, as `approvals ls` shows it
        #[arg(value_parser = |text: &str| PermissionRequestId::new(text))]
        approval: PermissionRequestId,
    },
    /// Approve a request, once or for longer; a rule that denies it meanwhile still applies
    Approve(AnswerArgs),
    /// Reject a request; the agent receives the reason
    Reject(AnswerArgs),
}

/// The arguments of an answer.
#[derive(Debug, Clone, PartialEq, Eq, clap::Args)]
pub struct AnswerArgs {
    /// Id of the approval, as `approvals ls` shows it
    #[arg(value_parser = |text: &str| PermissionRequestId::new(text))]
    pub approval: PermissionRequestId,
    /// Reason for the answer; on a rejection, the agent receives it
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    /// How long the answer applies to identical requests: never (only this request), turn or
    /// session
    #[arg(long, value_name = "HOW LONG", default_value = "never", value_parser = remember)]
    pub remember: RememberScope,
    /// The digest that was shown; the answer is refused if the approval's digest differs
    #[arg(long, value_name = "SHA256")]
    pub digest: Option<String>,
}

fn remember(text: &str) -> Result<RememberScope, String> {
    RememberScope::parse(text).ok_or_else(|| "expected never, turn or session".to_owned())
}

/// The lines of an approval and its digest; `None` if it has ended.
pub(super) async fn fetch_pending(
    state: &Path,
    approval: &PermissionRequestId,
) -> Result<Option<(Vec<String>, String)>, ClientError> {
    let found = Client::new(state).approval(approval).await?;
    let has_ended = found.ended_at.is_some();
    Ok((!has_ended).then(|| (lines(&found, now_us()), found.digest)))
}

/// Runs the subcommand.
pub(super) async fn run(
    state: &Path,
    command: &ApprovalsCommand,
    json: bool,
    streams: &mut Streams,
) -> Exit {
    let done = match command {
        ApprovalsCommand::Ls { ended } => list(state, *ended, json, streams).await,
        ApprovalsCommand::Show { approval } => show(state, approval, json, streams).await,
        ApprovalsCommand::Approve(args) => {
            answer(state, args, Decision::Allow, json, streams).await
        }
        ApprovalsCommand::Reject(args) => answer(state, args, Decision::Deny, json, streams).await,
    };
    match done {
        Ok(()) => Exit::Done,
        Err(error) => error.report(streams),
    }
}

fn document(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

async fn list(
    state: &Path,
    ended: bool,
    json: bool,
    streams: &mut Streams,
) -> Result<(), ClientError> {
    let found = Client::new(state).approvals(ended).await?;
    if json {
        for approval in &found {
            streams.out.json(&document(approval));
        }
        return Ok(());
    }
    if found.is_empty() {
        let none = if ended {
            "no approval has ended"
        } else {
            "nothing waits for a person"
        };
        streams.err.line(none);
    }
    let now_us = now_us();
    for approval in &found {
        let head = format!(
            "{}  {}  {}/{}  {}  {}",
            approval.approval,
            word(&approval.state),
            safe(&approval.pool, NAME),
            approval.slot,
            until(approval, now_us),
            rules(&approval.rules),
        );
        streams.out.line(&safe(&head, streams.width.max(NAME)));
        let what = format!("    {} {}", safe(&approval.tool, NAME), approval.summary);
        streams.out.line(&safe(&what, streams.width.max(NAME)));
    }
    if found.len() >= limits::APPROVALS_LISTED as usize {
        let note = format!("only the first {} are listed", limits::APPROVALS_LISTED);
        streams.err.line(&note);
    }
    Ok(())
}

/// Escapes a word of the state: a later supervisor may send words that this version does not know.
fn word(text: &str) -> String {
    safe(text, NAME)
}

fn rules(rules: &[String]) -> String {
    if rules.is_empty() {
        "no rule allows it".to_owned()
    } else {
        safe(&rules.join(", "), WORD)
    }
}

/// The time left until the deadline, or when the approval ended.
fn until(approval: &ApprovalView, now_us: i64) -> String {
    if let Some(Time(at)) = approval.ended_at {
        return format!("ended {}", time(at));
    }
    let left = approval.deadline.0.saturating_sub(now_us).max(0) / 1_000_000;
    match (left / 3600, left / 60 % 60, left % 60) {
        (0, 0, s) => format!("{s}s left"),
        (0, m, s) => format!("{m}m {s}s left"),
        (h, m, _) => format!("{h}h {m}m left"),
    }
}

async fn show(
    state: &Path,
    approval: &PermissionRequestId,
    json: bool,
    streams: &mut Streams,
) -> Result<(), ClientError> {
    let found = Client::new(state).approval(approval).await?;
    if json {
        streams.out.json(&document(&found));
        return Ok(());
    }
    // Never truncated: the approver must see all of it.
    for line in lines(&found, now_us()) {
        streams.out.line(&line);
    }
    Ok(())
}

/// All details of one approval. Every line is safe to show.
fn lines(approval: &ApprovalView, now_us: i64) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = |name: &str, text: String| lines.push(format!("{name:<9}{text}"));
    line("approval", safe(&approval.approval, WORD));
    let times = match approval.times {
        0 | 1 => String::new(),
        times => format!(", asked {times} times"),
    };
    line(
        "state",
        format!(
            "{}, {}{times}",
            word(&approval.state),
            until(approval, now_us)
        ),
    );
    let pool = safe(&approval.pool, NAME);
    line(
        "slot",
        format!(
            "{pool}/{}, session {}",
            approval.slot,
            safe(&approval.session, WORD)
        ),
    );
    line("asked", time(approval.requested_at.0));
    line("tool", safe(&approval.tool, WORD));
    line(
        "rules",
        format!(
            "{}: {}",
            rules(&approval.rules),
            safe(&approval.why, 2 * WORD)
        ),
    );
    if let Some(more) = &approval.more {
        parts(more, &mut line);
    }
    line("digest", safe(&approval.digest, WORD));
    if let Some(answer) = &approval.answer {
        let reason = answer
            .reason
            .as_ref()
            .map(|text| format!(": {}", safe(text, 2 * WORD)));
        let text = format!(
            "{} by {}{}, for: {}",
            word(&answer.decision),
            safe(&answer.approver, NAME),
            reason.unwrap_or_default(),
            word(&answer.remember),
        );
        line("answer", text);
    }
    lines
}

fn parts(more: &ApprovalDetails, line: &mut impl FnMut(&str, String)) {
    for part in &more.parts {
        let rules = safe(&part.rules.join(", "), WORD);
        let decision = if rules.is_empty() {
            word(&part.decision)
        } else {
            format!("{} by {rules}", word(&part.decision))
        };
        line("part", format!("{}  [{decision}]", quote_words(part)));
    }
    if let Some(why) = &more.not_plain {
        line("plain", format!("no: {}", safe(why, 2 * WORD)));
    }
    for path in &more.paths {
        let side = if path.inside { "inside" } else { "outside" };
        let text = format!(
            "{} leads to {}",
            safe(&path.word, WORD),
            safe(&path.to, WORD)
        );
        line("path", format!("{text}, {side} of the workspace"));
    }
    for key in ["title", "kind", "reason"] {
        if let Some(text) = more.claimed.get(key).and_then(serde_json::Value::as_str) {
            line("claims", format!("{key}: {}", safe(text, 2 * WORD)));
        }
    }
    match &more.input {
        // Escaped again here: the supervisor's own escaping is not trusted.
        Some(input) => line("input", safe(input, usize::MAX / 2)),
        None => line("input", "removed".to_owned()),
    }
}

/// The words of a command, quoted where their bounds would be unclear.
fn quote_words(part: &PartView) -> String {
    let word = |word: &String| {
        let shown = safe(word, WORD);
        if word.is_empty() || word.contains(|c: char| c.is_whitespace() || c == '\'' || c == '"') {
            format!("‹{shown}›")
        } else {
            shown
        }
    };
    let words = part.env.iter().chain(&part.words).map(word);
    // A redirect is two words: what it does, and its file.
    let redirects = part.redirects.iter().map(|redirect| {
        let (sign, file) = redirect.split_once(' ').unwrap_or(("", redirect));
        format!("{} {}", safe(sign, WORD), word(&file.to_owned()))
    });
    let words: Vec<String> = words.chain(redirects).collect();
    words.join(" ")
}

pub(super) async fn answer(
    state: &Path,
    args: &AnswerArgs,
    decision: Decision,
    json: bool,
    streams: &mut Streams,
) -> Result<(), ClientError> {
    let client = Client::new(state);
    let digest = match &args.digest {
        Some(digest) => digest.clone(),
        None => client.approval(&args.approval).await?.digest,
    };
    let answer = Answer {
        id: args.approval.clone(),
        digest: Some(digest),
        decision,
        reason: args.reason.clone().map(UntrustedText::new),
        remember: args.remember,
    };
    let answered = client.answer(&answer).await?;
    if json {
        streams.out.json(&document(&answered));
        return Ok(());
    }
    let state = if answered.state == ApprovalState::Orphaned.as_str() {
        "kept for the agent's return"
    } else {
        answered.state.as_str()
    };
    let once = if answered.remember == args.remember.as_str() {
        ""
    } else {
        "; it applies only once: a repetition of this request may do something else, or too many answers are remembered"
    };
    let text = format!("{}: {}{once}", args.approval, safe(state, NAME));
    streams.err.line(&text);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use marshal_engine::api::approvals::PathView;

    #[test]
    fn nothing_of_an_ask_acts_on_a_terminal() {
        let evil = marshal_engine::api::test_fixtures::EVIL.concat();
        let text = || evil.clone();
        let approval = ApprovalView {
            approval: text(),
            state: text(),
            pool: text(),
            session: text(),
            tool: text(),
            rules: vec![text()],
            why: text(),
            times: 2,
            digest: text(),
            deadline: Time(90_000_000),
            more: Some(Box::new(ApprovalDetails {
                parts: vec![PartView {
                    env: Vec::new(),
                    redirects: Vec::new(),
                    words: vec![text(), String::new(), "a b".to_owned()],
                    decision: text(),
                    rules: vec![text()],
                }],
                not_plain: Some(text()),
                paths: vec![PathView {
                    word: text(),
                    to: text(),
                    inside: false,
                }],
                input: Some(text()),
                claimed: serde_json::json!({"title": evil}),
                ..ApprovalDetails::default()
            })),
            ..ApprovalView::default()
        };
        let lines = lines(&approval, 0);
        for line in &lines {
            assert!(
                !line.chars().any(marshal_model::untrusted::is_unsafe),
                "{line:?}"
            );
        }
        let all = lines.join("\n");
        assert!(all.contains("1m 30s left, asked 2 times"), "{all}");
        assert!(all.contains(" ‹› ‹a b›"), "{all}");
        assert!(all.contains("outside of the workspace"), "{all}");
    }
}
