//! What a session wrote over its workspace: `GET /api/v1/sessions/{session}/diff`, `POST …/apply`.
//!
//! Owns who may say yes for a person. Must not know how changes are found, judged or applied: that is
//! what `marshal diff` and `marshal apply` do.

use std::sync::Arc;

use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::Value;

use super::error::ApiError;
use super::request_context::RequestContext;
use super::sessions::find_session;
use super::views::respond_ok;
use super::{AppState, HandlerResult};
use marshal_model::{Role, SessionId};

/// Overlays that are looked at, or applied, at the same time: each may hold a large comparison.
pub(super) const AT_ONCE: usize = 1;

/// What a client wants of an overlay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OverlayOrder {
    /// To see what the session wrote.
    Diff,
    /// To have it in the workspace.
    Apply {
        /// Only to know whether it can be done.
        check: bool,
        /// Also what a person would be asked for: the client is that person.
        yes: bool,
    },
}

/// Why it was not done, each with what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OverlayRefusal {
    /// There is no overlay.
    Missing(String),
    /// It does not go as things stand.
    Conflict(String),
    /// The host said no.
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

/// Carries an order out; it may block.
pub type OverlayHandler =
    Arc<dyn Fn(&SessionId, OverlayOrder) -> Result<Value, OverlayRefusal> + Send + Sync>;

/// The body of `…/apply`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Apply {
    #[serde(default)]
    check: bool,
    #[serde(default)]
    yes: bool,
}

pub(super) async fn diff(desk: AppState, call: RequestContext) -> HandlerResult {
    carry_out(desk, call, OverlayOrder::Diff).await
}

pub(super) async fn apply(desk: AppState, call: RequestContext) -> HandlerResult {
    let Apply { check, yes } = call.body()?;
    // The policy wanted a person, and only who may answer asks is one.
    if yes && !call.role.satisfies(Role::Approve) {
        let detail =
            "\"yes\" says that a person agrees: this needs the role admin, which may approve, too";
        return Err(ApiError::new(StatusCode::FORBIDDEN, detail));
    }
    carry_out(desk, call, OverlayOrder::Apply { check, yes }).await
}

async fn carry_out(desk: AppState, call: RequestContext, order: OverlayOrder) -> HandlerResult {
    let (session, _) = find_session(&desk, &call).await?;
    let place = desk.overlay_permits.acquire().await;
    let _place = place.map_err(|_| ApiError::unavailable("the supervisor stops"))?;
    let host = desk.host.clone();
    let done = tokio::task::spawn_blocking(move || (host.overlays)(&session, order)).await;
    let gone = |_| ApiError::unavailable("the overlay could not be looked at: see the log");
    respond_ok(&done.map_err(gone)??)
}
