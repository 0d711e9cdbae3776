//! Who calls, and the logins of browsers: `GET /api/v1/caller`, `POST /api/v1/logins`.
//!
//! Must not know pages or cookies.

use std::time::Instant;

use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::error::ApiError;
use super::request_context::RequestContext;
use super::views::{respond, respond_ok};
use super::{AppState, HandlerResult};
use crate::api::logins::CODE_LIFETIME;
use crate::api::time::Time;
use marshal_model::Role;
use marshal_model::untrusted::escape_for_display;

/// Whom a token or the socket identifies.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Caller")]
pub struct CallerView {
    /// The name by which the caller answers approvals.
    pub name: String,
    /// The caller's role.
    #[schemars(extend("enum" = words!(Role)))]
    pub role: String,
    /// Whether the caller may see and answer approvals only.
    pub approvals_only: bool,
}

pub(super) async fn caller(_: AppState, request: RequestContext) -> HandlerResult {
    let caller = request.caller;
    respond_ok(&CallerView {
        name: caller.approver.to_string(),
        role: caller.role.to_string(),
        approvals_only: caller.approvals_only,
    })
}

/// For whom a browser logs in.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "NewLogin")]
#[schemars(example = serde_json::json!({"as": "ops"}))]
pub(super) struct NewLogin {
    /// The name of a token, whose role the session has; by default the owner's.
    #[serde(default, rename = "as")]
    name: Option<String>,
}

/// A code that opens one session of a browser.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "LoginCode")]
pub struct LoginCode {
    /// The code.
    pub code: String,
    /// When it expires.
    pub expires_at: Time,
    /// Where to enter it; `None` if the supervisor listens on no address.
    pub url: Option<String>,
    /// The name of the token.
    pub name: String,
    /// Its role.
    #[schemars(extend("enum" = words!(Role)))]
    pub role: String,
}

/// Makes a code, for the supervisor's user only: whoever may make one has every role.
pub(super) async fn log_in(app: AppState, request: RequestContext) -> HandlerResult {
    if request.caller.uid.is_none() {
        let detail = "only the supervisor's user may make a code, over its socket";
        return Err(ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, detail));
    }
    let wanted: NewLogin = request.body()?;
    let tokens = app.tokens.clone();
    let name = wanted.name.clone();
    let found = tokio::task::spawn_blocking(move || {
        let token = tokens.digest_of(name.as_deref())?;
        Some((token, tokens.find_caller(&token)?))
    });
    let Some((token, caller)) = found.await.ok().flatten() else {
        let name = escape_for_display(wanted.name.as_deref().unwrap_or("owner"), 60);
        let detail = format!("there is no usable token {name:?}: see [token.NAME], or approvers/");
        return Err(ApiError::not_found(detail));
    };
    let code = app.tokens.logins().issue(token, Instant::now());
    let code = code.map_err(|error| ApiError::unavailable(error.to_string()))?;
    let lifetime = i64::try_from(CODE_LIFETIME.as_micros()).unwrap_or(i64::MAX);
    let expires_at = Time(jiff::Timestamp::now().as_microsecond() + lifetime);
    let made = LoginCode {
        code,
        expires_at,
        url: app.host.url.as_ref().map(|url| format!("{url}/login")),
        name: caller.approver.to_string(),
        role: caller.role.to_string(),
    };
    respond(StatusCode::CREATED, &made)
}
