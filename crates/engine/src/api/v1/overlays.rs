//! The overlay of a session: `GET /api/v1/sessions/{session}/diff`, `POST …/apply`.
//!
//! Owns who may approve in place of a person. Must not know how changes are found, evaluated or
//! applied: `marshal diff` and `marshal apply` do that.

use std::sync::Arc;

use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::error::ApiError;
use super::request_context::RequestContext;
use super::sessions::find_session;
use super::views::respond_ok;
use super::{AppState, HandlerResult};
use marshal_model::{Role, SessionId};

/// The number of concurrent operations on overlays; each may need much memory for its comparison.
pub(super) const AT_ONCE: usize = 1;

/// The most paths in `allow`.
const ALLOWED: usize = 1000;

/// An operation on an overlay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OverlayOrder {
    /// Show the changes.
    Diff,
    /// Apply the changes to the workspace.
    Apply {
        /// Only check whether the apply is possible.
        check: bool,
        /// Also apply changes for which the policy asks a person: the client is that person.
        yes: bool,
        /// Files and directories that other programs run or obey, and that are applied all the same.
        allow: Vec<String>,
    },
}

/// Why an operation failed; each message says what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OverlayRefusal {
    /// The session has no overlay.
    Missing(String),
    /// The current state does not allow the operation.
    Conflict(String),
    /// A system call failed.
    System(String),
}

impl From<OverlayRefusal> for ApiError {
    fn from(refusal: OverlayRefusal) -> Self {
        match refusal {
            OverlayRefusal::Missing(why) => Self::not_found(why),
            OverlayRefusal::Conflict(why) => Self::conflict(why),
            OverlayRefusal::System(why) => Self::unavailable(why),
        }
    }
}

/// The changes in an overlay, and what was done with them.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "Overlay")]
pub struct OverlayView {
    /// Its session.
    pub session: String,
    /// The number of changes.
    pub changes: usize,
    /// The changes, as far as they fit into one answer.
    pub items: Vec<OverlayChange>,
    /// Why the changes are incomplete.
    pub cut: Option<String>,
    /// Whether they were applied.
    pub applied: bool,
    /// What an earlier apply left to do.
    pub note: Option<String>,
}

/// One change in an overlay.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct OverlayChange {
    path: String,
    change: String,
    /// What the file is, if other programs run or obey it outside of the sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    outside: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    refused: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    conflict: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    asked: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mode_before: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mode_after: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    diff: Option<String>,
}

/// Carries out an operation; may block.
pub type OverlayHandler =
    Arc<dyn Fn(&SessionId, OverlayOrder) -> Result<OverlayView, OverlayRefusal> + Send + Sync>;

/// The body of `…/apply`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Apply {
    /// Check only whether the apply is possible.
    #[serde(default)]
    check: bool,
    /// Also apply changes for which the policy asks a person; requires the role approve.
    #[serde(default)]
    yes: bool,
    /// Also apply these files, and what is below these directories, although other programs run or
    /// obey them outside of the sandbox; requires the role approve.
    #[serde(default)]
    #[schemars(length(max = ALLOWED))]
    allow: Vec<String>,
}

pub(super) async fn diff(app: AppState, request: RequestContext) -> HandlerResult {
    carry_out(app, request, OverlayOrder::Diff).await
}

pub(super) async fn apply(app: AppState, request: RequestContext) -> HandlerResult {
    let Apply { check, yes, allow } = request.body()?;
    // The policy asks a person, and only callers that may answer approvals count as one.
    if (yes || !allow.is_empty()) && !request.caller.role.satisfies(Role::Approve) {
        let detail = "\"yes\" and \"allow\" decide in place of a person: this requires the role admin, which includes approve";
        return Err(ApiError::new(StatusCode::FORBIDDEN, detail));
    }
    if allow.len() > ALLOWED {
        let detail = format!("\"allow\" has more than {ALLOWED} paths; name directories");
        return Err(ApiError::new(StatusCode::BAD_REQUEST, detail));
    }
    carry_out(app, request, OverlayOrder::Apply { check, yes, allow }).await
}

async fn carry_out(app: AppState, request: RequestContext, order: OverlayOrder) -> HandlerResult {
    let (session, _) = find_session(&app, &request).await?;
    let place = app.overlay_permits.acquire().await;
    let _place = place.map_err(|_| ApiError::unavailable("the supervisor is stopping"))?;
    let host = app.host.clone();
    let done = tokio::task::spawn_blocking(move || (host.overlays)(&session, order)).await;
    let unreadable =
        |_| ApiError::unavailable("the overlay could not be read: see the supervisor's log");
    respond_ok(&done.map_err(unreadable)??)
}
