//! `diff` and `apply` for clients of a daemon: the result as JSON, a refusal as a sentence.
//!
//! Owns how much of a change an answer contains. The policy checks and refusals are those of the
//! commands. Must not know how a client sends its request.

use std::path::{Path, PathBuf};

use super::{OverlayFailure, lock_overlay, plan_changes, text};
use marshal_config::Config;
use marshal_engine::api::v1::{OverlayOrder, OverlayRefusal, OverlayView};
use marshal_model::SessionId;
use marshal_model::untrusted::escape_for_display;
use marshal_sandbox::workspace::OverlayError;
use marshal_sandbox::workspace::overlay::apply;
use marshal_sandbox::workspace::overlay::apply_plan::ApplyPlan;

/// The most changes in one answer.
const CHANGES: usize = 5000;
/// The most bytes of diffs in one answer.
const LINES: usize = 4 << 20;
/// The most reasons in one sentence, and the columns of each.
const REASONS: usize = 5;
const REASON: usize = 150;

impl From<OverlayFailure> for OverlayRefusal {
    fn from(failed: OverlayFailure) -> Self {
        let why = failed.to_string();
        match failed {
            OverlayFailure::Overlay(OverlayError::Missing(_)) => Self::Missing(why),
            OverlayFailure::System(_) | OverlayFailure::Reported(_) => Self::System(why),
            _ => Self::Conflict(why),
        }
    }
}

/// Runs the order on this thread: it starts a process that must not outlive the thread.
pub(in crate::cli) fn handle_order(
    state: &Path,
    config: &Config,
    session: &SessionId,
    order: &OverlayOrder,
) -> Result<OverlayView, OverlayRefusal> {
    let overlay = lock_overlay(state, session)?;
    let note = apply::recover(&overlay).map_err(OverlayFailure::from)?;
    let is_diff = *order == OverlayOrder::Diff;
    let allow = match order {
        OverlayOrder::Apply { allow, .. } => &**allow,
        OverlayOrder::Diff => &[],
    };
    let plan = plan_changes(&overlay, config, is_diff, allow)?;
    let mut reply = changes(session, &plan);
    reply.note = note;
    let OverlayOrder::Apply { check, yes, .. } = order else {
        return Ok(reply);
    };
    let refusals = plan.refusals();
    if !refusals.is_empty() {
        return Err(conflict("the policy or the workspace refuses", &refusals));
    }
    let approvals = plan.changes.iter().filter_map(|item| {
        let why = item.approval_reason.as_ref()?;
        Some(format!("{}: {why}", item.path.escape_for_display(REASON)))
    });
    let approvals: Vec<String> = approvals.collect();
    if !approvals.is_empty() && !*yes {
        let what = "the policy needs an approval (send \"yes\": true to approve) for";
        return Err(conflict(what, &approvals));
    }
    if !*check {
        let program: PathBuf = "/proc/self/exe".into();
        let applied = apply::apply(&overlay, &plan, &program).map_err(OverlayFailure::from)?;
        if applied.kept_note.is_some() {
            reply.note = applied.kept_note;
        }
    }
    reply.applied = !*check;
    Ok(reply)
}

/// The changes, as far as they fit into one answer.
fn changes(session: &SessionId, plan: &ApplyPlan) -> OverlayView {
    let mut lines_left = LINES;
    let items = plan
        .changes
        .iter()
        .take(CHANGES)
        .filter_map(|item| text::whole(item, &mut lines_left));
    OverlayView {
        session: session.to_string(),
        changes: plan.changes.len(),
        items: items.collect(),
        cut: plan.incomplete.clone(),
        applied: false,
        note: None,
    }
}

fn conflict(what: &str, reasons: &[String]) -> OverlayRefusal {
    let count = reasons.len();
    let shown = reasons.iter().take(REASONS);
    let shown: Vec<String> = shown
        .map(|why| escape_for_display(why, 2 * REASON))
        .collect();
    OverlayRefusal::Conflict(format!(
        "nothing was applied: {what} {count} of the changes: {}",
        shown.join("; ")
    ))
}
