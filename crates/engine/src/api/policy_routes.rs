//! Policies over HTTP: `GET /policies`, `POST /policies/reload`.
//!
//! Owns the roles: every role may read the status, and `admin` may reload. Must not know how
//! policies are loaded.

use axum::Router;
use axum::extract::State;
use axum::http::{Method, StatusCode};
use axum::response::Response;
use axum::routing::{get, post};

use super::approval_routes::json;
use super::guard::{Role, RouteRoles, RouteScope, with_guard};
use super::http::problem;
use super::policies::PolicyStatusView;
use super::service::Fleet;
use super::tokens::Tokens;
use marshal_telemetry::labels::ReloadCause;

/// The role that each route requires.
pub const ROUTES: RouteRoles = &[
    (Method::GET, "/policies", Role::Read),
    (Method::POST, "/policies/reload", Role::Admin),
];

/// Creates the router.
pub fn router<F: Fleet>(fleet: F, tokens: &Tokens) -> Router {
    let pages = Router::new()
        .route("/policies", get(status::<F>))
        .route("/policies/reload", post(reload::<F>));
    with_guard(pages, tokens, ROUTES, RouteScope::Fleet).with_state(fleet)
}

fn status_response<F: Fleet>(fleet: &F) -> Response {
    let status = PolicyStatusView::from_status(&fleet.policy_status());
    json(StatusCode::OK, &status)
}

async fn status<F: Fleet>(State(fleet): State<F>) -> Response {
    status_response(&fleet)
}

async fn reload<F: Fleet>(State(fleet): State<F>) -> Response {
    match fleet.reload_policies(ReloadCause::Request).await {
        Ok(_) => status_response(&fleet),
        Err(why) => problem(StatusCode::UNPROCESSABLE_ENTITY, &why),
    }
}
