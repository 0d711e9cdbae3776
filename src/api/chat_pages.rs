//! Chats over HTTP, below `/api/v1/workspaces/{id}/chats`.
//!
//! Owns what the pages take and give. Whoever brings no token is answered before anything else of the
//! request is looked at. Must not know what a chat does with a message.

#![allow(
    clippy::result_large_err,
    reason = "what is refused is an answer, made once a request"
)]

use axum::body::{self, Body, Bytes};
use axum::extract::rejection::PathRejection;
use axum::extract::{Path as UrlPath, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::ask_events::Until;
use super::ask_pages::json as page;
use super::chat_streams;
use super::guard::{About, Role, Routes, guarded};
use super::http::{closing, problem};
use super::plan_pages;
use super::tokens::Tokens;
use crate::chat::{Accepted, ChatError, ChatView, Chats, Created, Cursor, Shape, Wish, WorkWish};
use crate::journal::StoredTurn;
use crate::limits;
use crate::model::{ChatBounds, ChatPhase, Foreign, SessionId, TurnId};

/// What the pages need.
#[derive(Debug, Clone)]
pub(super) struct Desk {
    pub(super) chats: Chats,
    stop: CancellationToken,
}

const CHATS: &str = "/api/v1/workspaces/{workspace}/chats";
const CHAT: &str = "/api/v1/workspaces/{workspace}/chats/{chat}";
const TURNS: &str = "/api/v1/workspaces/{workspace}/chats/{chat}/turns";
const EVENTS: &str = "/api/v1/workspaces/{workspace}/chats/{chat}/events";
const STOP: &str = "/api/v1/workspaces/{workspace}/chats/{chat}/stop";
const PING: &str = "/api/v1/workspaces/{workspace}/chats/{chat}/ping";

const PLAN: &str = "/api/v1/workspaces/{workspace}/chats/{chat}/plan";
const APPROVE: &str = "/api/v1/workspaces/{workspace}/chats/{chat}/plan/approve";
const REJECT: &str = "/api/v1/workspaces/{workspace}/chats/{chat}/plan/reject";

/// Who may what.
pub const ROUTES: Routes = &[
    (Method::GET, CHATS, Role::Read),
    (Method::POST, CHATS, Role::Operate),
    (Method::GET, CHAT, Role::Read),
    (Method::POST, CHAT, Role::Operate),
    (Method::GET, TURNS, Role::Read),
    (Method::GET, EVENTS, Role::Read),
    (Method::POST, STOP, Role::Operate),
    (Method::POST, PING, Role::Operate),
    (Method::GET, PLAN, Role::Read),
    (Method::POST, APPROVE, Role::Approve),
    (Method::POST, REJECT, Role::Approve),
];

/// The pages. Streams end with `stop`.
pub fn router(chats: Chats, tokens: &Tokens, stop: CancellationToken) -> Router {
    let pages = Router::new()
        .route(CHATS, get(list).post(create))
        .route(CHAT, get(one).post(say))
        .route(TURNS, get(turns))
        .route(EVENTS, get(events))
        .route(STOP, post(cancel))
        .route(PING, post(ping))
        .route(PLAN, get(plan_pages::plan))
        .route(APPROVE, post(plan_pages::approve))
        .route(REJECT, post(plan_pages::reject));
    guarded(pages, tokens, ROUTES, About::Fleet).with_state(Desk { chats, stop })
}

/// The body of a request that creates a chat.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Create {
    goal: String,
    #[serde(default)]
    files: Vec<String>,
    role: Option<String>,
    model: Option<String>,
    mode: Option<String>,
    template: Option<String>,
    plan_id: Option<String>,
    #[serde(default)]
    roles: Vec<String>,
    planner: Option<String>,
    check: Option<String>,
    continue_prompt: Option<String>,
    agent_items: Option<bool>,
    #[serde(default)]
    limits: Bounds,
}

/// Where work ends that goes on by itself.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Bounds {
    turns: Option<u32>,
    seconds: Option<u64>,
    tokens: Option<u64>,
    cost_usd: Option<f64>,
}

/// A message.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Message {
    content: String,
}

pub(super) type Named<T> = Result<UrlPath<T>, PathRejection>;

pub(super) fn failed(error: &ChatError) -> Response {
    let (status, again) = match error {
        ChatError::NotFound(_) => (StatusCode::NOT_FOUND, None),
        ChatError::Unprocessable(_) => (StatusCode::UNPROCESSABLE_ENTITY, None),
        ChatError::Conflict(_) => (StatusCode::CONFLICT, None),
        ChatError::Full(_) => (StatusCode::TOO_MANY_REQUESTS, Some("1")),
        ChatError::Unavailable(_) => (StatusCode::SERVICE_UNAVAILABLE, Some("5")),
    };
    let mut response = problem(status, &error.to_string());
    if let Some(again) = again {
        let again = HeaderValue::from_static(again);
        response.headers_mut().insert(header::RETRY_AFTER, again);
    }
    response
}

/// A path that is no text names nothing.
pub(super) fn nothing() -> Response {
    problem(StatusCode::NOT_FOUND, "there is no such chat")
}

/// The keys of a query, each at most once, all of them among those that are known.
fn query<'a, const N: usize>(
    uri: &'a Uri,
    known: [&str; N],
) -> Result<[Option<&'a str>; N], Response> {
    let mut found = [None; N];
    let pairs = uri.query().unwrap_or_default().split('&');
    for pair in pairs.filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let at = known.iter().position(|name| *name == key);
        let Some(place @ None) = at.and_then(|at| found.get_mut(at)) else {
            let detail = format!("this page knows {}, each once", known.join(" and "));
            return Err(problem(StatusCode::BAD_REQUEST, &detail));
        };
        *place = Some(value);
    }
    Ok(found)
}

/// A number of a query.
fn number(text: Option<&str>, none: u64) -> Result<u64, Response> {
    text.map_or(Ok(none), |text| {
        let detail = "\"after\" and \"limit\" are whole numbers";
        text.parse()
            .map_err(|_| problem(StatusCode::BAD_REQUEST, detail))
    })
}

fn limit(text: Option<&str>) -> Result<u32, Response> {
    let limit = number(text, u64::from(limits::CHAT_PAGE))?;
    Ok(u32::try_from(limit).unwrap_or(u32::MAX))
}

/// The body of a request, JSON of this form.
pub(super) async fn read<T: for<'a> Deserialize<'a>>(
    headers: &HeaderMap,
    body: Body,
) -> Result<T, Response> {
    let is_json = headers.get(header::CONTENT_TYPE).is_some_and(|of| {
        let of = of.as_bytes();
        of == b"application/json" || of.starts_with(b"application/json;")
    });
    if !is_json {
        let detail = "the body must be application/json";
        let refused = problem(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail);
        return Err(closing(refused));
    }
    let read = body::to_bytes(body, limits::CHAT_BODY_BYTES);
    let bytes: Bytes = match tokio::time::timeout(limits::HTTP_BODY_WAIT, read).await {
        Ok(Ok(bytes)) => bytes,
        Ok(Err(_)) => {
            let detail = "the body did not come whole";
            return Err(closing(problem(StatusCode::BAD_REQUEST, detail)));
        }
        Err(_) => {
            let detail = "the body did not come in time";
            return Err(closing(problem(StatusCode::REQUEST_TIMEOUT, detail)));
        }
    };
    serde_json::from_slice(&bytes).map_err(|error| {
        let why = crate::model::foreign::show(&error.to_string(), 200);
        if error.is_data() {
            problem(
                StatusCode::UNPROCESSABLE_ENTITY,
                &format!("the body: {why}"),
            )
        } else {
            let detail = format!("the body is no JSON: {why}");
            problem(StatusCode::BAD_REQUEST, &detail)
        }
    })
}

/// What a client names a message by, so that it can send it again.
fn key(headers: &HeaderMap) -> Result<Option<String>, Response> {
    let mut keys = headers.get_all("idempotency-key").iter();
    let (first, second) = (keys.next(), keys.next());
    let Some(first) = first else { return Ok(None) };
    let text = first.to_str().ok().map(str::trim);
    let text = text.filter(|text| (1..=limits::TURN_KEY_BYTES).contains(&text.len()));
    match text {
        Some(text) if second.is_none() => Ok(Some(text.to_owned())),
        _ => {
            let most = limits::TURN_KEY_BYTES;
            let detail =
                format!("an Idempotency-Key is one text of 1 to {most} characters of ASCII");
            Err(problem(StatusCode::BAD_REQUEST, &detail))
        }
    }
}

async fn create(
    State(desk): State<Desk>,
    headers: HeaderMap,
    workspace: Named<String>,
    body: Body,
) -> Result<Response, Response> {
    let UrlPath(workspace) = workspace.map_err(|_| nothing())?;
    let create: Create = read(&headers, body).await?;
    let wish = Wish {
        goal: create.goal,
        files: create.files,
        role: create.role,
        model: create.model,
        work: WorkWish {
            mode: create.mode,
            template: create.template,
            plan: create.plan_id,
            roles: create.roles,
            planner: create.planner,
            check: create.check,
            continue_prompt: create.continue_prompt,
            agent_items: create.agent_items,
            bounds: ChatBounds {
                turns: create.limits.turns,
                seconds: create.limits.seconds,
                tokens: create.limits.tokens,
                cost: create.limits.cost_usd.map(billionths),
            },
            instructions: None,
        },
    };
    let created = desk.chats.create(&workspace, wish).await;
    let created = created.map_err(|error| failed(&error))?;
    let place = |chat| format!("/api/v1/workspaces/{workspace}/chats/{chat}");
    let (place, body) = match created {
        Created::Chat(chat, accepted) => {
            let place = place(&chat);
            let body = json!({
                "chat_id": chat.as_str(),
                "turn_id": accepted.turn.as_str(),
                "sequence": accepted.sequence,
                "events": format!("{place}/events"),
            });
            (place, body)
        }
        Created::Work(begun) => {
            let place = place(&begun.chat);
            let body = plan_pages::begun(&begun, &place);
            (place, body)
        }
    };
    let mut response = page(StatusCode::CREATED, &body);
    if let Ok(place) = HeaderValue::from_str(&place) {
        response.headers_mut().insert(header::LOCATION, place);
    }
    Ok(response)
}

async fn say(
    State(desk): State<Desk>,
    headers: HeaderMap,
    named: Named<(String, String)>,
    body: Body,
) -> Result<Response, Response> {
    let UrlPath((workspace, chat)) = named.map_err(|_| nothing())?;
    let key = key(&headers)?;
    let message: Message = read(&headers, body).await?;
    let said = desk
        .chats
        .say(&workspace, &chat, message.content, key)
        .await;
    let Accepted { turn, sequence } = said.map_err(|error| failed(&error))?;
    let body = json!({"turn_id": turn.as_str(), "sequence": sequence});
    Ok(page(StatusCode::ACCEPTED, &body))
}

async fn list(
    State(desk): State<Desk>,
    workspace: Named<String>,
    uri: Uri,
) -> Result<Response, Response> {
    let UrlPath(workspace) = workspace.map_err(|_| nothing())?;
    let [after, most] = query(&uri, ["after", "limit"])?;
    let found = desk.chats.list(&workspace, after, limit(most)?).await;
    let (chats, has_more) = found.map_err(|error| failed(&error))?;
    let last = chats.last().filter(|_| has_more);
    let next = last.map(|of| of.chat.session.as_str().to_owned());
    let items: Vec<Value> = chats.iter().map(chat_view).collect();
    Ok(page(StatusCode::OK, &json!({"items": items, "next": next})))
}

async fn one(
    State(desk): State<Desk>,
    named: Named<(String, String)>,
) -> Result<Response, Response> {
    let UrlPath((workspace, chat)) = named.map_err(|_| nothing())?;
    let found = desk.chats.get(&workspace, &chat).await;
    let found = found.map_err(|error| failed(&error))?;
    Ok(page(StatusCode::OK, &chat_view(&found)))
}

async fn turns(
    State(desk): State<Desk>,
    named: Named<(String, String)>,
    uri: Uri,
) -> Result<Response, Response> {
    let UrlPath((workspace, chat)) = named.map_err(|_| nothing())?;
    let [after, most] = query(&uri, ["after", "limit"])?;
    let (after, most) = (number(after, 0)?, limit(most)?);
    let found = desk.chats.turns(&workspace, &chat, after, most).await;
    let (turns, has_more) = found.map_err(|error| failed(&error))?;
    let next = turns.last().filter(|_| has_more).map(|of| of.seq);
    let items: Vec<Value> = turns.iter().map(turn_view).collect();
    Ok(page(StatusCode::OK, &json!({"items": items, "next": next})))
}

async fn events(
    State(desk): State<Desk>,
    Extension(Until(until)): Extension<Until>,
    headers: HeaderMap,
    named: Named<(String, String)>,
    uri: Uri,
) -> Result<Response, Response> {
    let UrlPath((workspace, chat)) = named.map_err(|_| nothing())?;
    let [after, shape] = query(&uri, ["after", "shape"])?;
    let shape = match shape {
        None | Some("named") => Shape::Named,
        Some("enveloped") => Shape::Enveloped,
        Some(_) => {
            let detail = "\"shape\" is named or enveloped";
            return Err(problem(StatusCode::BAD_REQUEST, detail));
        }
    };
    // What a client has read counts more than what it was told to begin with.
    let last = headers.get("last-event-id");
    let last = last.map(|id| id.to_str().unwrap_or("?"));
    let cursor = match last.filter(|id| !id.is_empty()).or(after) {
        None => Cursor::default(),
        Some(text) => Cursor::read(text).ok_or_else(|| {
            let detail =
                "Last-Event-ID and \"after\" are ids of events of this stream, or a number";
            problem(StatusCode::BAD_REQUEST, detail)
        })?,
    };
    let followed = desk.chats.subscribe(&workspace, &chat, cursor, shape).await;
    let followed = followed.map_err(|error| failed(&error))?;
    Ok(chat_streams::open(followed, desk.stop, until))
}

async fn cancel(
    State(desk): State<Desk>,
    named: Named<(String, String)>,
) -> Result<Response, Response> {
    let UrlPath((workspace, chat)) = named.map_err(|_| nothing())?;
    let stopped = desk.chats.stop(&workspace, &chat).await;
    let chat = stopped.map_err(|error| failed(&error))?;
    let body = json!({"status": "cancelled", "chat_id": chat.as_str()});
    Ok(page(StatusCode::OK, &body))
}

async fn ping(
    State(desk): State<Desk>,
    named: Named<(String, String)>,
) -> Result<Response, Response> {
    let UrlPath((workspace, chat)) = named.map_err(|_| nothing())?;
    let pinged = desk.chats.ping(&workspace, &chat).await;
    pinged.map_err(|error| failed(&error))?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Dollars in billionths; what is no amount is none.
fn billionths(dollars: f64) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it saturates, which is what is meant"
    )]
    let billionths = (dollars * 1e9).round() as u64;
    billionths
}

fn chat_view(of: &ChatView) -> Value {
    let chat = &of.chat;
    let state = match (&chat.running, chat.waiting) {
        _ if chat.ended_ms.is_some() => "closed",
        _ if chat.phase == Some(ChatPhase::Approval) => "waiting",
        _ if matches!(chat.phase, Some(ChatPhase::Planning | ChatPhase::Working)) => "running",
        (Some(_), _) => "running",
        (None, 1..) => "waiting",
        (None, 0) => "idle",
    };
    json!({
        "chat_id": chat.session.as_str(),
        "workspace": chat.workspace.as_str(),
        "role": chat.role.as_str(),
        "model": chat.model,
        "goal": chat.goal.raw(),
        "files": chat.files,
        "mode": chat.mode.word(),
        "phase": chat.phase.map(ChatPhase::word),
        "plan_id": chat.settings.plan,
        "parent": chat.parent.as_ref().map(SessionId::as_str),
        "state": state,
        "loaded": of.is_loaded,
        "turns": chat.turns,
        "waiting": chat.waiting,
        "running": chat.running.as_ref().map(TurnId::as_str),
        "created_ms": chat.created_ms,
        "used_ms": chat.used_ms,
        "closed_ms": chat.ended_ms,
    })
}

fn turn_view(turn: &StoredTurn) -> Value {
    json!({
        "turn_id": turn.turn.as_str(),
        "sequence": turn.seq,
        "content": turn.content.raw(),
        "state": turn.state.word(),
        "outcome": turn.outcome.map(crate::model::TurnOutcome::word),
        "idempotency_key": turn.key.as_ref().map(Foreign::raw),
        "accepted_ms": turn.accepted_ms,
        "begun_ms": turn.begun_ms,
        "ended_ms": turn.ended_ms,
    })
}
