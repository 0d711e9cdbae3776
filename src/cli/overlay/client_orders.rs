//! `diff` and `apply` for clients of a daemon: what was done as JSON, why not as a sentence.
//!
//! Owns how much of a change an answer holds. What is judged, and what is refused, is that of the
//! commands. Must not know how a client asks.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::{OverlayFailure, lock_overlay, plan_changes, text};
use marshal_config::Config;
use marshal_engine::api::v1::{OverlayOrder, OverlayRefusal};
use marshal_model::SessionId;
use marshal_model::untrusted::escape_for_display;
use marshal_sandbox::workspace::OverlayError;
use marshal_sandbox::workspace::overlay::apply;
use marshal_sandbox::workspace::overlay::apply_plan::ApplyPlan;

/// Changes that one answer tells of.
const CHANGES: usize = 5000;
/// Bytes of lines that differ, in one answer.
const LINES: usize = 4 << 20;
/// Reasons that one sentence has, and columns of each.
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

/// Does it on this thread, which a process is started from that must not outlive it.
pub(in crate::cli) fn handle_order(
    state: &Path,
    config: &Config,
    session: &SessionId,
    order: OverlayOrder,
) -> Result<Value, OverlayRefusal> {
    let overlay = lock_overlay(state, session)?;
    let note = apply::recover(&overlay).map_err(OverlayFailure::from)?;
    let plan = plan_changes(&overlay, config, order == OverlayOrder::Diff)?;
    let mut told = changes(session, &plan);
    told["note"] = json!(note);
    let OverlayOrder::Apply { check, yes } = order else {
        return Ok(told);
    };
    let refusals = plan.refusals();
    if !refusals.is_empty() {
        return Err(conflict("the policy, or the workspace, refuses", &refusals));
    }
    let approvals = plan.changes.iter().filter_map(|item| {
        let why = item.approval_reason.as_ref()?;
        Some(format!("{}: {why}", item.path.escape_for_display(REASON)))
    });
    let approvals: Vec<String> = approvals.collect();
    if !approvals.is_empty() && !yes {
        let what = "the policy would ask a person (send \"yes\": true to be that person)";
        return Err(conflict(what, &approvals));
    }
    if !check {
        let program: PathBuf = "/proc/self/exe".into();
        let applied = apply::apply(&overlay, &plan, &program).map_err(OverlayFailure::from)?;
        if applied.kept.is_some() {
            told["note"] = json!(applied.kept);
        }
    }
    told["applied"] = json!(!check);
    Ok(told)
}

/// Every change, as far as they fit.
fn changes(session: &SessionId, plan: &ApplyPlan) -> Value {
    let mut room = LINES;
    let items = plan.changes.iter().take(CHANGES);
    let items: Vec<Value> = items.map(|item| text::whole(item, &mut room)).collect();
    json!({
        "session": session.as_str(),
        "changes": plan.changes.len(),
        "items": items,
        "cut": plan.incomplete,
        "applied": false,
    })
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
