//! The policies over HTTP: `GET /policies`, `POST /policies/reload`.
//!
//! Owns who may: whoever brings the owner's token, and nobody else. Must not know how policies are
//! read.

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::{get, post};
use axum::{Extension, Router};

use super::ask_pages::json;
use super::http::problem;
use super::policies::PolicyStatusView;
use super::service::Fleet;
use super::tokens::{self, Tokens};
use crate::config::Approver;
use crate::telemetry::sets::ReloadCause;

/// The pages.
pub fn router<F: Fleet>(fleet: F, tokens: Tokens) -> Router {
    Router::new()
        .route("/policies", get(status::<F>))
        .route("/policies/reload", post(reload::<F>))
        .layer(middleware::from_fn(owner))
        .layer(middleware::from_fn_with_state(tokens, tokens::known))
        .with_state(fleet)
}

/// Comes after the token was found.
async fn owner(Extension(who): Extension<Approver>, request: Request, next: Next) -> Response {
    match who {
        Approver::Owner => next.run(request).await,
        Approver::Named(_) => problem(
            StatusCode::FORBIDDEN,
            "the policies are for the owner's token only: what stands in http.token",
        ),
    }
}

fn told<F: Fleet>(fleet: &F) -> Response {
    let status = PolicyStatusView::of(&fleet.policy_status());
    json(StatusCode::OK, &status)
}

async fn status<F: Fleet>(State(fleet): State<F>) -> Response {
    told(&fleet)
}

async fn reload<F: Fleet>(State(fleet): State<F>) -> Response {
    match fleet.reload_policies(ReloadCause::Request).await {
        Ok(_) => told(&fleet),
        Err(why) => problem(StatusCode::UNPROCESSABLE_ENTITY, &why),
    }
}
