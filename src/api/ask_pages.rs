//! The asks over HTTP: `GET /asks`, `GET /asks/events`, `GET /asks/ID`, `POST /asks/ID`.
//!
//! Owns what the pages take and give. Whoever brings no token is answered before anything else of the
//! request is looked at: what an agent wants to run is nobody else's business, and nobody else's body
//! is waited for. Must not know what an answer does.

use axum::body::{self, Body};
use axum::extract::rejection::PathRejection;
use axum::extract::{Path as UrlPath, State};
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use axum::{Extension, Router};
use tokio_util::sync::CancellationToken;

use super::ask_events::{Gallery, Until};
use super::asks::{self, AnsweredView, AskView};
use super::guard::{About, Role, Routes, guarded};
use super::http::{closing, problem};
use super::request::{Code, Failure};
use super::service::Fleet;
use super::tokens::Tokens;
use crate::config::Approver;
use crate::limits;
use crate::model::AskId;

/// What the pages need.
#[derive(Debug)]
struct Desk<F> {
    fleet: F,
    gallery: Gallery,
}

impl<F: Clone> Clone for Desk<F> {
    fn clone(&self) -> Self {
        Self {
            fleet: self.fleet.clone(),
            gallery: self.gallery.clone(),
        }
    }
}

/// Who may have which page.
pub const ROUTES: Routes = &[
    (Method::GET, "/asks", Role::Read),
    (Method::GET, "/asks/events", Role::Read),
    (Method::GET, "/asks/{ask}", Role::Read),
    (Method::POST, "/asks/{ask}", Role::Approve),
];

/// The pages. Streams end with `stop`.
pub fn router<F: Fleet>(fleet: F, tokens: &Tokens, stop: CancellationToken) -> Router {
    let pages = Router::new()
        .route("/asks", get(list::<F>))
        .route("/asks/events", get(events::<F>))
        .route("/asks/{ask}", get(one::<F>).post(answer::<F>));
    guarded(pages, tokens, ROUTES, About::Asks).with_state(Desk {
        fleet,
        gallery: Gallery::new(stop),
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

fn failed(failure: &Failure) -> Response {
    let status = match failure.code {
        Code::NoSuchAsk => StatusCode::NOT_FOUND,
        Code::AskOver => StatusCode::CONFLICT,
        Code::NotPermitted => StatusCode::FORBIDDEN,
        Code::BadRequest => StatusCode::BAD_REQUEST,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    };
    problem(status, &failure.message)
}

fn no_such_ask() -> Response {
    problem(StatusCode::NOT_FOUND, "there is no such ask")
}

/// A path that is no text names no ask either.
fn named(ask: Result<UrlPath<String>, PathRejection>) -> Option<AskId> {
    let UrlPath(ask) = ask.ok()?;
    AskId::new(&ask).ok()
}

async fn list<F: Fleet>(State(desk): State<Desk<F>>, uri: Uri) -> Response {
    let over = match uri.query() {
        None | Some("" | "over=false") => false,
        Some("over=true") => true,
        Some(_) => return problem(StatusCode::BAD_REQUEST, "this page knows ?over=true only"),
    };
    match desk.fleet.questions(over).await {
        Ok(found) => json(
            StatusCode::OK,
            &found.iter().map(AskView::of).collect::<Vec<_>>(),
        ),
        Err(why) => problem(StatusCode::SERVICE_UNAVAILABLE, &why),
    }
}

async fn events<F: Fleet>(
    State(desk): State<Desk<F>>,
    Extension(Until(until)): Extension<Until>,
) -> Response {
    desk.gallery.open(desk.fleet, until)
}

async fn one<F: Fleet>(
    State(desk): State<Desk<F>>,
    ask: Result<UrlPath<String>, PathRejection>,
) -> Response {
    let Some(ask) = named(ask) else {
        return no_such_ask();
    };
    match desk.fleet.question(ask).await {
        Ok(Some(found)) => json(StatusCode::OK, &AskView::whole(&found)),
        Ok(None) => no_such_ask(),
        Err(why) => problem(StatusCode::SERVICE_UNAVAILABLE, &why),
    }
}

async fn answer<F: Fleet>(
    State(desk): State<Desk<F>>,
    Extension(approver): Extension<Approver>,
    headers: HeaderMap,
    ask: Result<UrlPath<String>, PathRejection>,
    body: Body,
) -> Response {
    let Some(ask) = named(ask) else {
        return no_such_ask();
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
    let read = tokio::time::timeout(limits::HTTP_BODY_WAIT, body::to_bytes(body, most));
    let body = match read.await {
        Ok(Ok(body)) => body,
        Ok(Err(_)) => {
            let detail = "the body did not come whole";
            return closing(problem(StatusCode::BAD_REQUEST, detail));
        }
        Err(_) => {
            let detail = "the body did not come in time";
            return closing(problem(StatusCode::REQUEST_TIMEOUT, detail));
        }
    };
    let answer = match asks::read_answer(ask, &body) {
        Ok(answer) => answer,
        Err(failure) => return failed(&failure),
    };
    let who = format!("token {approver}");
    match desk.fleet.answer(answer.order(approver, who)).await {
        Ok(answered) => json(StatusCode::OK, &AnsweredView::of(&answered)),
        Err(error) => failed(&asks::failure(&error)),
    }
}
