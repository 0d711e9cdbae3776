//! A task's report as versioned JSON: the `result` column of a task, and the body of a line of
//! `--results`.
//!
//! Owns the persisted form. A field may be added if it is optional; a field that changes its
//! meaning or is removed needs a new version.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::CodecError;

/// The version that [`write_report`] writes.
const VERSION: u32 = 1;

/// A task's report. Texts are as received; foreign where the fleet marks them so.
#[derive(Debug, Serialize, Deserialize)]
pub struct Report<'a> {
    /// The task's id.
    pub id: Cow<'a, str>,
    /// Its run.
    pub run: Cow<'a, str>,
    /// Its pool.
    pub pool: Cow<'a, str>,
    /// The slot that worked on it last.
    pub slot: Option<String>,
    /// The session of its last attempt.
    pub session: Option<Cow<'a, str>>,
    /// The outcome, a word of [`marshal_model::TaskOutcome`].
    pub outcome: Cow<'a, str>,
    /// The number of attempts.
    pub attempts: u32,
    /// Counts of its permission requests.
    pub requests: RequestCounts,
    /// Tool calls that ran without a permission request and that the policy would have denied.
    pub unasked_denied: u32,
    /// Such calls for which it would have required an approval.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unasked_ask: u32,
    /// Such calls that it would have allowed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unasked_allowed: u32,
    /// The rules that denied.
    pub denied_by: Cow<'a, [String]>,
    /// Token counts as the agent reports them.
    pub tokens: TokenCounts,
    /// What its model cost, in US dollars, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<f64>,
    /// From its first assignment until its end, in milliseconds.
    pub duration_ms: u64,
    /// Changed files, relative to the workspace.
    pub changes: Vec<ChangedFile<'a>>,
    /// Whether `changes` is incomplete.
    pub changes_cut: bool,
    /// The task's own copy of the workspace, on the host.
    pub workspace: Option<Cow<'a, str>>,
    /// The bundle of its branch, on the host, with workspace mode `worktree`; the first one, if it has
    /// branches in several repositories.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bundle: Option<Cow<'a, str>>,
    /// The bundles of its branches in further repositories of the workspace.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub repos: Vec<RepoReport<'a>>,
    /// The branch in that bundle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<BranchReport<'a>>,
    /// `passed` or `failed`, if there was a check.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub check: Option<Cow<'a, str>>,
    /// Where its work landed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub landed: Option<LandedReport<'a>>,
    /// Failures of the slot's children while they worked on the task.
    pub restarts: u32,
    /// The sum of the restart delays, in milliseconds.
    pub backoff_ms: u64,
    /// Why the task did not succeed; `None` if it did.
    pub detail: Option<Cow<'a, str>>,
    /// The last piece of the agent's answer.
    pub answer: Cow<'a, str>,
}

/// A branch in a further repository of the workspace.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RepoReport<'a> {
    /// Its place in the workspace.
    pub at: Cow<'a, str>,
    /// The bundle of its branch, on the host.
    pub bundle: Cow<'a, str>,
}

/// The branch that a task came back with.
#[derive(Debug, Serialize, Deserialize)]
pub struct BranchReport<'a> {
    /// Its name.
    pub name: Cow<'a, str>,
    /// What its commits change, if that could be counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lines: Option<LinesReport>,
    /// Whether the supervisor brought it into the repository.
    pub in_repository: bool,
}

/// How much commits change.
#[derive(Debug, Serialize, Deserialize)]
pub struct LinesReport {
    /// Changed files.
    pub files: u64,
    /// New lines.
    pub added: u64,
    /// Removed lines.
    pub removed: u64,
}

/// Work that is on a branch.
#[derive(Debug, Serialize, Deserialize)]
pub struct LandedReport<'a> {
    /// The branch.
    pub branch: Cow<'a, str>,
    /// What its last commit is there.
    pub commit: Cow<'a, str>,
}

/// Permission requests, over all attempts.
#[derive(Debug, Serialize, Deserialize)]
pub struct RequestCounts {
    /// Allowed requests.
    pub allowed: u32,
    /// Denied requests.
    pub denied: u32,
    /// Requests that needed a person's approval.
    pub approvals: u32,
}

/// Tokens, over all attempts.
#[derive(Debug, Serialize, Deserialize)]
pub struct TokenCounts {
    /// Tokens that the model read.
    pub input: u64,
    /// Tokens that the model wrote.
    pub output: u64,
}

/// One changed file.
#[derive(Debug, Serialize, Deserialize)]
pub struct ChangedFile<'a> {
    /// Its path, relative to the workspace.
    pub path: Cow<'a, str>,
    /// `added`, `modified` or `deleted`.
    pub kind: Cow<'a, str>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's form")]
const fn is_zero(count: &u32) -> bool {
    *count == 0
}

#[derive(Serialize)]
struct StoredReport<'r, 'a> {
    v: u32,
    report: &'r Report<'a>,
}

#[derive(Deserialize)]
struct Version {
    v: u32,
}

#[derive(Deserialize)]
struct ReportBody<'a> {
    report: Report<'a>,
}

/// Serializes a report for the `result` column: `{"v":1,"report":{…}}`.
#[must_use]
pub fn write_report(report: &Report<'_>) -> String {
    let written = StoredReport { v: VERSION, report };
    // All map keys are strings and no part is fallible, so this does not fail.
    serde_json::to_string(&written).unwrap_or_default()
}

/// Decodes a `result` column.
///
/// # Errors
/// [`CodecError::Version`] if a newer program wrote it, [`CodecError::Report`] if it is damaged.
pub fn read_report(text: &str) -> Result<Report<'static>, CodecError> {
    let Version { v } = serde_json::from_str(text).map_err(CodecError::Report)?;
    if v > VERSION {
        return Err(CodecError::Version(v));
    }
    let read: ReportBody<'static> = serde_json::from_str(text).map_err(CodecError::Report)?;
    Ok(read.report)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines of the `result` column, as version 1 wrote them.
    const GOLDEN_1: &str = include_str!("../golden/report_v1.jsonl");

    fn full() -> Report<'static> {
        Report {
            id: "t1".into(),
            run: "r".into(),
            pool: "demo".into(),
            slot: Some("demo/3".to_owned()),
            session: Some("s".into()),
            outcome: "denied".into(),
            attempts: 2,
            requests: RequestCounts {
                allowed: 1,
                denied: 2,
                approvals: 1,
            },
            unasked_denied: 1,
            unasked_ask: 0,
            unasked_allowed: 0,
            denied_by: vec!["guard:secrets".to_owned()].into(),
            tokens: TokenCounts {
                input: 10,
                output: u64::MAX,
            },
            cost_usd: None,
            duration_ms: 1200,
            changes: vec![ChangedFile {
                path: "src/\u{1b}[2J.rs".into(),
                kind: "added".into(),
            }],
            changes_cut: true,
            workspace: Some("/state/copies/s".into()),
            bundle: None,
            repos: Vec::new(),
            branch: None,
            check: None,
            landed: None,
            restarts: 1,
            backoff_ms: 250,
            detail: Some("because".into()),
            answer: "done \"so\"\n漢".into(),
        }
    }

    fn empty() -> Report<'static> {
        Report {
            slot: None,
            session: None,
            outcome: "skipped".into(),
            attempts: 0,
            requests: RequestCounts {
                allowed: 0,
                denied: 0,
                approvals: 0,
            },
            unasked_denied: 0,
            unasked_ask: 0,
            unasked_allowed: 0,
            denied_by: Cow::Owned(Vec::new()),
            tokens: TokenCounts {
                input: 0,
                output: 0,
            },
            cost_usd: None,
            duration_ms: 0,
            changes: Vec::new(),
            changes_cut: false,
            workspace: None,
            restarts: 0,
            backoff_ms: 0,
            detail: None,
            answer: "".into(),
            ..full()
        }
    }

    #[test]
    fn the_golden_file_is_read_and_written_byte_for_byte() {
        let written: Vec<_> = [full(), empty()].iter().map(write_report).collect();
        assert_eq!(GOLDEN_1.lines().collect::<Vec<_>>(), written);
        for line in GOLDEN_1.lines() {
            let report = read_report(line).expect(line);
            assert_eq!(write_report(&report), line);
        }
    }

    #[test]
    fn what_a_newer_program_wrote_is_refused_and_what_is_damaged_is_named() {
        let newer = r#"{"v":2,"report":{"later":true}}"#;
        assert!(matches!(read_report(newer), Err(CodecError::Version(2))));
        for damaged in ["", "{}", r#"{"v":1}"#, r#"{"v":1,"report":{"id":"x"}}"#] {
            assert!(
                matches!(read_report(damaged), Err(CodecError::Report(_))),
                "{damaged}"
            );
        }
    }
}
