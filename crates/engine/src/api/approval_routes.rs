//! Approvals over HTTP: `GET /approvals`, `GET /approvals/events`, `GET /approvals/ID` and `POST
//! /approvals/ID`.
//!
//! Owns the parameters and responses. The token is checked before anything else of the request is
//! read: only approvers may see what an agent wants to run, and only their bodies are waited for.
//! Must not know what an answer does.

use axum::body::{self, Body};
use axum::extract::rejection::PathRejection;
use axum::extract::{Path as UrlPath, State};
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use axum::{Extension, Router};
use tokio_util::sync::CancellationToken;

use super::approval_events::{ApprovalSubscribers, ConnectionDeadline};
use super::approvals::{self, AnswerReceiptView, ApprovalView};
use super::failure::{Code, Failure};
use super::guard::{Role, RouteRoles, RouteScope, with_guard};
use super::http::{problem, with_connection_close};
use super::service::Fleet;
use super::tokens::{Caller, Tokens};
use marshal_model::PermissionRequestId;
use marshal_model::limits;

/// The shared state of the handlers.
#[derive(Debug)]
struct RoutesState<F> {
    fleet: F,
    subscribers: ApprovalSubscribers,
}

impl<F: Clone> Clone for RoutesState<F> {
    fn clone(&self) -> Self {
        Self {
            fleet: self.fleet.clone(),
            subscribers: self.subscribers.clone(),
        }
    }
}

/// The role that each route requires.
pub const ROUTES: RouteRoles = &[
    (Method::GET, "/approvals", Role::Read),
    (Method::GET, "/approvals/events", Role::Read),
    (Method::GET, "/approvals/{approval}", Role::Read),
    (Method::POST, "/approvals/{approval}", Role::Approve),
];

/// Creates the router. Streams end with `stop`.
pub fn router<F: Fleet>(fleet: F, tokens: &Tokens, stop: CancellationToken) -> Router {
    let pages = Router::new()
        .route("/approvals", get(list::<F>))
        .route("/approvals/events", get(events::<F>))
        .route("/approvals/{approval}", get(get_one::<F>).post(answer::<F>));
    with_guard(pages, tokens, ROUTES, RouteScope::Approvals).with_state(RoutesState {
        fleet,
        subscribers: ApprovalSubscribers::new(stop),
    })
}

pub(super) fn json(status: StatusCode, body: &impl serde::Serialize) -> Response {
    let mut body = serde_json::to_vec(body).unwrap_or_default();
    body.push(b'\n');
    (
        status,
        [
            (header::CONTENT_TYPE, "application/json"),
            (header::CACHE_CONTROL, "no-store"),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        ],
        body,
    )
        .into_response()
}

/// The status of an answer that failed.
pub(super) const fn failure_status(failure: &Failure) -> StatusCode {
    match failure.code {
        Code::NoSuchApproval => StatusCode::NOT_FOUND,
        Code::ApprovalEnded => StatusCode::CONFLICT,
        Code::NotPermitted => StatusCode::FORBIDDEN,
        Code::BadRequest => StatusCode::BAD_REQUEST,
        Code::Refused => StatusCode::SERVICE_UNAVAILABLE,
    }
}

fn failed(failure: &Failure) -> Response {
    problem(failure_status(failure), &failure.message)
}

fn approval_not_found() -> Response {
    problem(StatusCode::NOT_FOUND, "there is no such approval")
}

/// Parses the id in the path; a path that is not UTF-8 names no approval.
fn parse_id(approval: Result<UrlPath<String>, PathRejection>) -> Option<PermissionRequestId> {
    let UrlPath(approval) = approval.ok()?;
    PermissionRequestId::new(&approval).ok()
}

async fn list<F: Fleet>(State(app): State<RoutesState<F>>, uri: Uri) -> Response {
    let ended = match uri.query() {
        None | Some("" | "ended=false") => false,
        Some("ended=true") => true,
        Some(_) => {
            return problem(
                StatusCode::BAD_REQUEST,
                "the only parameter of this route is ?ended=true",
            );
        }
    };
    match app.fleet.approvals(ended).await {
        Ok(found) => json(
            StatusCode::OK,
            &found
                .iter()
                .map(ApprovalView::from_stored)
                .collect::<Vec<_>>(),
        ),
        Err(why) => problem(StatusCode::SERVICE_UNAVAILABLE, &why),
    }
}

async fn events<F: Fleet>(
    State(app): State<RoutesState<F>>,
    Extension(ConnectionDeadline(until)): Extension<ConnectionDeadline>,
) -> Response {
    app.subscribers.subscribe(app.fleet, until)
}

async fn get_one<F: Fleet>(
    State(app): State<RoutesState<F>>,
    approval: Result<UrlPath<String>, PathRejection>,
) -> Response {
    let Some(approval) = parse_id(approval) else {
        return approval_not_found();
    };
    match app.fleet.approval(approval).await {
        Ok(Some(found)) => json(StatusCode::OK, &ApprovalView::with_details(&found)),
        Ok(None) => approval_not_found(),
        Err(why) => problem(StatusCode::SERVICE_UNAVAILABLE, &why),
    }
}

async fn answer<F: Fleet>(
    State(app): State<RoutesState<F>>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    approval: Result<UrlPath<String>, PathRejection>,
    body: Body,
) -> Response {
    let Some(approval) = parse_id(approval) else {
        return approval_not_found();
    };
    let is_json = headers.get(header::CONTENT_TYPE).is_some_and(|of| {
        let of = of.as_bytes();
        of == b"application/json" || of.starts_with(b"application/json;")
    });
    if !is_json {
        let detail = "the body must be application/json";
        return problem(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail);
    }
    let most = usize::try_from(limits::HTTP_BODY_BYTES).unwrap_or(usize::MAX);
    let read = tokio::time::timeout(limits::HTTP_BODY_TIMEOUT, body::to_bytes(body, most));
    let body = match read.await {
        Ok(Ok(body)) => body,
        Ok(Err(_)) => {
            let detail = "the body is incomplete";
            return with_connection_close(problem(StatusCode::BAD_REQUEST, detail));
        }
        Err(_) => {
            let detail = "the body was not received in time";
            return with_connection_close(problem(StatusCode::REQUEST_TIMEOUT, detail));
        }
    };
    let answer = match approvals::read_answer(approval, &body) {
        Ok(answer) => answer,
        Err(failure) => return failed(&failure),
    };
    let who = caller.recorded_as();
    let answer = answer.into_request(caller.approver, who);
    match app.fleet.answer(answer).await {
        Ok(answered) => json(StatusCode::OK, &AnswerReceiptView::from_receipt(&answered)),
        Err(error) => failed(&approvals::answer_failure(&error)),
    }
}
