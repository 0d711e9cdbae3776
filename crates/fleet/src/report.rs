//! Conversion between a task's report and its stored form.
//!
//! Plain conversion. Must not know where it is stored or shown.

use std::borrow::Cow;
use std::path::PathBuf;
use std::time::Duration;

use super::fleet_event::{ChangeKind, FileChange, LandedWork, RepoBundle, TaskBranch, TaskReport};
use marshal_journal::StoredTask;
use marshal_journal::codec::{
    BranchReport, ChangedFile, CodecError, LandedReport, LinesReport, RepoReport, Report,
    RequestCounts, TokenCounts, read_report, write_report,
};
use marshal_model::budget::{NANOS_PER_DOLLAR, nanos_from_dollars};
use marshal_model::{
    PoolName, RunId, SessionId, SlotId, TaskId, TaskOutcome, UnaskedCalls, UntrustedText, Usage,
    untrusted,
};
use marshal_sandbox::workspace::branch::git::LineCounts;

/// Why a stored report is invalid.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// A word or an id in it is invalid.
    #[error("{text:?} is not a valid {what}")]
    InvalidValue {
        /// The expected kind of value.
        what: &'static str,
        /// The stored value, escaped for display.
        text: String,
    },
    /// Its text cannot be read.
    #[error(transparent)]
    Codec(#[from] CodecError),
}

impl TaskReport {
    /// The stored form, which is also a line of `--results`.
    #[must_use]
    pub fn to_stored(&self) -> Report<'_> {
        Report {
            id: Cow::Borrowed(self.task.as_str()),
            run: Cow::Borrowed(self.run.as_str()),
            pool: Cow::Borrowed(self.pool.as_str()),
            slot: self.slot.as_ref().map(ToString::to_string),
            session: self.session.as_ref().map(|s| Cow::Borrowed(s.as_str())),
            outcome: Cow::Borrowed(self.outcome.as_str()),
            attempts: self.attempts,
            requests: RequestCounts {
                allowed: self.allowed,
                denied: self.denied,
                approvals: self.approvals,
            },
            unasked_denied: self.unasked.denied,
            unasked_ask: self.unasked.ask,
            unasked_allowed: self.unasked.allowed,
            denied_by: Cow::Borrowed(&self.denied_by),
            tokens: TokenCounts {
                input: self.usage.input,
                output: self.usage.output,
            },
            cost_usd: (self.cost > 0).then(|| self.cost as f64 / NANOS_PER_DOLLAR as f64),
            duration_ms: millis(self.took),
            changes: self.changes.iter().map(change).collect(),
            changes_cut: self.changes_cut,
            workspace: self.copy.as_ref().map(|copy| copy.to_string_lossy()),
            bundle: self.bundle.as_ref().map(|path| path.to_string_lossy()),
            repos: self.repos.iter().map(repo_report).collect(),
            branch: self.branch.as_ref().map(|branch| BranchReport {
                name: Cow::Borrowed(&branch.name),
                lines: branch.lines.map(|lines| LinesReport {
                    files: lines.files,
                    added: lines.added,
                    removed: lines.removed,
                }),
                in_repository: branch.in_repository,
            }),
            check: self.check.map(|passed| {
                let word = if passed { "passed" } else { "failed" };
                Cow::Borrowed(word)
            }),
            landed: self.landed.as_ref().map(|landed| LandedReport {
                branch: Cow::Borrowed(&landed.branch),
                commit: Cow::Borrowed(&landed.commit),
            }),
            restarts: self.restarts,
            backoff_ms: millis(self.backoff),
            detail: self.detail.as_ref().map(|d| Cow::Borrowed(d.raw())),
            answer: Cow::Borrowed(self.answer.raw()),
        }
    }

    /// The value of the journal's `result` column.
    pub(super) fn as_column(&self) -> String {
        write_report(&self.to_stored())
    }

    /// Parses a stored report.
    ///
    /// # Errors
    /// [`ReportError::InvalidValue`]
    pub fn from_stored(stored: Report<'_>) -> Result<Self, ReportError> {
        let slot = stored
            .slot
            .map(|slot| parse_id("slot", &slot, SlotId::parse));
        let session = stored
            .session
            .map(|s| parse_id("session", &s, SessionId::new));
        let changes = stored.changes.into_iter().map(|change| {
            Ok(FileChange {
                kind: parse_word("kind of change", &change.kind, ChangeKind::parse)?,
                path: UntrustedText::new(change.path),
            })
        });
        Ok(Self {
            run: parse_id("run", &stored.run, RunId::new)?,
            task: parse_id("task", &stored.id, TaskId::new)?,
            pool: parse_id("pool", &stored.pool, PoolName::new)?,
            slot: slot.transpose()?,
            session: session.transpose()?,
            outcome: parse_word("outcome", &stored.outcome, TaskOutcome::parse)?,
            attempts: stored.attempts,
            allowed: stored.requests.allowed,
            denied: stored.requests.denied,
            approvals: stored.requests.approvals,
            unasked: UnaskedCalls {
                allowed: stored.unasked_allowed,
                ask: stored.unasked_ask,
                denied: stored.unasked_denied,
            },
            denied_by: stored.denied_by.into_owned(),
            usage: Usage {
                input: stored.tokens.input,
                output: stored.tokens.output,
            },
            cost: stored.cost_usd.and_then(nanos_from_dollars).unwrap_or(0),
            took: Duration::from_millis(stored.duration_ms),
            changes: changes.collect::<Result<_, ReportError>>()?,
            changes_cut: stored.changes_cut,
            copy: stored
                .workspace
                .map(|path| PathBuf::from(path.into_owned())),
            bundle: stored.bundle.map(|path| PathBuf::from(path.into_owned())),
            repos: stored.repos.into_iter().map(RepoBundle::from).collect(),
            branch: stored.branch.map(|branch| TaskBranch {
                name: branch.name.into_owned(),
                lines: branch.lines.map(|lines| LineCounts {
                    files: lines.files,
                    added: lines.added,
                    removed: lines.removed,
                }),
                in_repository: branch.in_repository,
            }),
            check: stored.check.map(|word| word == "passed"),
            landed: stored.landed.map(|landed| LandedWork {
                branch: landed.branch.into_owned(),
                commit: landed.commit.into_owned(),
            }),
            restarts: stored.restarts,
            backoff: Duration::from_millis(stored.backoff_ms),
            detail: stored.detail.map(UntrustedText::new),
            answer: UntrustedText::new(stored.answer),
        })
    }

    /// The report of an ended task, from its row. A row of an earlier version has no report; then
    /// it is built from the other columns.
    ///
    /// # Errors
    /// [`ReportError`]
    pub(super) fn from_row(run: &RunId, row: &StoredTask) -> Result<Self, ReportError> {
        if let Some(result) = &row.result {
            return Self::from_stored(read_report(result)?);
        }
        let pool = parse_id("pool", &row.pool, PoolName::new)?;
        let session = row
            .session
            .as_ref()
            .map(|s| parse_id("session", s, SessionId::new));
        let outcome = row.outcome.as_deref().unwrap_or_default();
        let took = row
            .begun_at_us
            .zip(row.ended_at_us)
            .map_or(0, |(from, to)| to.saturating_sub(from));
        Ok(Self {
            run: run.clone(),
            task: parse_id("task", &row.id, TaskId::new)?,
            slot: row.slot.map(|index| SlotId {
                pool: pool.clone(),
                index,
            }),
            pool,
            session: session.transpose()?,
            outcome: parse_word("outcome", outcome, TaskOutcome::parse)?,
            attempts: row.attempts,
            allowed: 0,
            denied: 0,
            approvals: 0,
            unasked: UnaskedCalls::default(),
            denied_by: Vec::new(),
            usage: Usage::default(),
            cost: 0,
            took: Duration::from_micros(u64::try_from(took).unwrap_or(0)),
            changes: Vec::new(),
            changes_cut: true,
            copy: None,
            bundle: None,
            repos: Vec::new(),
            branch: None,
            check: None,
            landed: None,
            restarts: 0,
            backoff: Duration::ZERO,
            detail: row
                .detail
                .clone()
                .filter(|d| !d.is_empty())
                .map(UntrustedText::new),
            answer: UntrustedText::default(),
        })
    }
}

fn repo_report(repo: &RepoBundle) -> RepoReport<'_> {
    RepoReport {
        at: Cow::Borrowed(&repo.at),
        bundle: repo.bundle.to_string_lossy(),
    }
}

impl From<RepoReport<'_>> for RepoBundle {
    fn from(stored: RepoReport<'_>) -> Self {
        Self {
            at: stored.at.into_owned(),
            bundle: PathBuf::from(stored.bundle.into_owned()),
        }
    }
}

fn change(change: &FileChange) -> ChangedFile<'_> {
    ChangedFile {
        path: Cow::Borrowed(change.path.raw()),
        kind: Cow::Borrowed(change.kind.as_str()),
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn parse_id<T, E>(
    what: &'static str,
    text: &str,
    read: impl FnOnce(&str) -> Result<T, E>,
) -> Result<T, ReportError> {
    read(text).map_err(|_| invalid_value(what, text))
}

fn parse_word<T>(
    what: &'static str,
    text: &str,
    read: impl FnOnce(&str) -> Option<T>,
) -> Result<T, ReportError> {
    read(text).ok_or_else(|| invalid_value(what, text))
}

fn invalid_value(what: &'static str, text: &str) -> ReportError {
    ReportError::InvalidValue {
        what,
        text: untrusted::escape_for_display(text, 100),
    }
}
