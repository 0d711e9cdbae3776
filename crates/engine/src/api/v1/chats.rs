//! Chats over HTTP, below `/api/v1/workspaces/{workspace}/chats`.
//!
//! Owns the parameters and responses of the routes. Must not know what a chat does with a message.

use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::IntoResponse as _;
use serde::Deserialize;
use serde_json::{Value, json};

use super::error::ApiError;
use super::plans;
use super::request_context::RequestContext;
use super::rounds::{self, Bounds};
use super::views::{List, respond, respond_ok, time_of_ms};
use super::{AppState, HandlerResult};
use crate::api::chat_streams;
use crate::chat::{
    Accepted, ChatError, ChatView, Chats, CreateRequest, Created, Cursor, IdempotencyKey, Shape,
    WorkRequest,
};
use marshal_journal::StoredTurn;
use marshal_model::limits;
use marshal_model::{ChatPhase, SessionId, TurnId, UntrustedText};

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

/// The body of a request that sends a message.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Message {
    content: String,
}

/// `Retry-After` in seconds, if too many messages wait and if the supervisor cannot accept any.
const RETRY_AFTER_SECONDS: [(StatusCode, &str); 2] = [
    (StatusCode::TOO_MANY_REQUESTS, "1"),
    (StatusCode::SERVICE_UNAVAILABLE, "5"),
];

impl From<ChatError> for ApiError {
    fn from(error: ChatError) -> Self {
        let status = match &error {
            ChatError::NotFound(_) => StatusCode::NOT_FOUND,
            ChatError::Unprocessable(_) => StatusCode::UNPROCESSABLE_ENTITY,
            ChatError::Conflict(_) => StatusCode::CONFLICT,
            ChatError::Full(_) => StatusCode::TOO_MANY_REQUESTS,
            ChatError::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
        };
        let again = RETRY_AFTER_SECONDS.iter().find(|(of, _)| *of == status);
        let fault = Self::new(status, error.to_string());
        match again {
            Some((_, again)) => fault.with_retry_after(again),
            None => fault,
        }
    }
}

/// Returns the chats of the daemon, and the workspace and chat in the path.
pub(super) fn chat_params<'a>(
    app: &AppState,
    request: &'a RequestContext,
) -> Result<(Chats, &'a str, &'a str), ApiError> {
    let none = || ApiError::not_found("only a daemon serves chats: start one with `marshal up`");
    let chats = app.chats.clone().ok_or_else(none)?;
    Ok((
        chats,
        request.path_param("workspace"),
        request.path_param("chat"),
    ))
}

/// Parses the body: 400 if it is not JSON, 422 if it has another form.
pub(super) fn read<T: for<'a> Deserialize<'a>>(request: &RequestContext) -> Result<T, ApiError> {
    serde_json::from_slice(request.bytes()).map_err(|error| {
        let why = marshal_model::untrusted::escape_for_display(&error.to_string(), 200);
        if error.is_data() {
            let detail = format!("invalid body: {why}");
            ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, detail)
        } else {
            ApiError::bad_request(format!("the body is not JSON: {why}"))
        }
    })
}

/// Returns the idempotency key, with which a client can send a message again.
fn key(headers: &HeaderMap) -> Result<Option<String>, ApiError> {
    let mut keys = headers.get_all("idempotency-key").iter();
    let (first, second) = (keys.next(), keys.next());
    let Some(first) = first else { return Ok(None) };
    let text = first.to_str().ok().map(str::trim);
    let text = text.filter(|text| (1..=limits::TURN_KEY_BYTES).contains(&text.len()));
    match text {
        Some(text) if second.is_none() => Ok(Some(text.to_owned())),
        _ => {
            let most = limits::TURN_KEY_BYTES;
            Err(ApiError::bad_request(format!(
                "Idempotency-Key must be one string of 1 to {most} ASCII characters"
            )))
        }
    }
}

pub(super) async fn create(app: AppState, request: RequestContext) -> HandlerResult {
    let (chats, workspace, _) = chat_params(&app, &request)?;
    let key = key(&request.headers)?;
    let create: Create = read(&request)?;
    // Parsed, so that the same members in another order count as the same request.
    let canonical: Value = read(&request)?;
    let once = key.map(|key| IdempotencyKey {
        key,
        request: canonical.to_string(),
    });
    let create_request = CreateRequest {
        goal: create.goal,
        files: create.files,
        role: create.role,
        model: create.model,
        work: WorkRequest {
            mode: create.mode,
            template: create.template,
            plan: create.plan_id,
            roles: create.roles,
            planner: create.planner,
            check: create.check,
            continue_prompt: create.continue_prompt,
            agent_items: create.agent_items,
            bounds: create.limits.read()?,
            instructions: None,
        },
    };
    let place = |chat| format!("/api/v1/workspaces/{workspace}/chats/{chat}");
    let (place, body) = match chats.create(workspace, create_request, once).await? {
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
            let body = plans::started_json(&begun, &place);
            (place, body)
        }
    };
    let mut response = respond(StatusCode::CREATED, &body)?;
    if let Ok(place) = HeaderValue::from_str(&place) {
        response.headers_mut().insert(header::LOCATION, place);
    }
    Ok(response)
}

pub(super) async fn send(app: AppState, request: RequestContext) -> HandlerResult {
    let (chats, workspace, chat) = chat_params(&app, &request)?;
    accept_message(&chats, workspace, chat, &request).await
}

/// Sends the message of a request to a chat.
pub(super) async fn accept_message(
    chats: &Chats,
    workspace: &str,
    chat: &str,
    request: &RequestContext,
) -> HandlerResult {
    let key = key(&request.headers)?;
    let message: Message = read(request)?;
    let accepted = chats
        .send_message(workspace, chat, message.content, key)
        .await;
    let Accepted { turn, sequence } = accepted?;
    let body = json!({"turn_id": turn.as_str(), "sequence": sequence});
    respond(StatusCode::ACCEPTED, &body)
}

pub(super) async fn list(app: AppState, request: RequestContext) -> HandlerResult {
    let (chats, workspace, _) = chat_params(&app, &request)?;
    let cursor = request.query_param("cursor").map(SessionId::new);
    let cursor = cursor.transpose().map_err(|_| ApiError::bad_cursor())?;
    let page = chats.list(workspace, cursor, request.limit());
    let (chats, has_more) = page.await?;
    let last = chats.last().filter(|_| has_more);
    respond_ok(&List {
        next: last.map(|of| of.chat.session.as_str().to_owned()),
        items: chats.iter().map(chat_view).collect::<Vec<Value>>(),
    })
}

pub(super) async fn get(app: AppState, request: RequestContext) -> HandlerResult {
    let (chats, workspace, chat) = chat_params(&app, &request)?;
    respond_ok(&chat_view(&chats.get(workspace, chat).await?))
}

pub(super) async fn turns(app: AppState, request: RequestContext) -> HandlerResult {
    let (chats, workspace, chat) = chat_params(&app, &request)?;
    let cursor = request.query_param("cursor").unwrap_or("0");
    let cursor = cursor.parse().map_err(|_| ApiError::bad_cursor())?;
    let page = chats.turns(workspace, chat, cursor, request.limit()).await;
    let (turns, has_more) = page?;
    let last = turns.last().filter(|_| has_more);
    respond_ok(&List {
        next: last.map(|of| of.seq.to_string()),
        items: turns.iter().map(turn_view).collect::<Vec<Value>>(),
    })
}

pub(super) async fn events(app: AppState, request: RequestContext) -> HandlerResult {
    let (chats, workspace, chat) = chat_params(&app, &request)?;
    // Over a WebSocket every message is enveloped.
    let shape = match request.query_param("shape") {
        Some("enveloped") if request.websocket.is_none() => Shape::Enveloped,
        _ => Shape::Named,
    };
    // What the client read last takes precedence over where it was told to start.
    let last = request.headers.get("last-event-id");
    let last = last.map(|id| id.to_str().unwrap_or("?"));
    let cursor = match last
        .filter(|id| !id.is_empty())
        .or(request.query_param("after"))
    {
        None => Cursor::default(),
        Some(text) => Cursor::read(text).ok_or_else(|| {
            ApiError::bad_request(
                "Last-Event-ID and \"after\" must be event ids of this stream, or a number",
            )
        })?,
    };
    let followed = chats.subscribe(workspace, chat, cursor, shape).await?;
    let RequestContext {
        deadline: until,
        websocket: socket,
        ..
    } = request;
    Ok(chat_streams::open(followed, socket, app.stop, until))
}

pub(super) async fn cancel(app: AppState, request: RequestContext) -> HandlerResult {
    let (chats, workspace, chat) = chat_params(&app, &request)?;
    let chat = chats.stop(workspace, chat).await?;
    respond_ok(&json!({"status": "cancelled", "chat_id": chat.as_str()}))
}

pub(super) async fn close(app: AppState, request: RequestContext) -> HandlerResult {
    let (chats, workspace, chat) = chat_params(&app, &request)?;
    // The chat is `closing` until its turn and its agent have ended.
    let is_closed = chats.close(workspace, chat).await?;
    let status = if is_closed { "closed" } else { "closing" };
    respond_ok(&json!({"status": status, "chat_id": chat}))
}

pub(super) async fn ping(app: AppState, request: RequestContext) -> HandlerResult {
    let (chats, workspace, chat) = chat_params(&app, &request)?;
    chats.ping(workspace, chat).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
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
        "mode": chat.mode.as_str(),
        "phase": chat.phase.map(ChatPhase::as_str),
        "plan_id": chat.settings.plan_path,
        "parent": chat.parent.as_ref().map(SessionId::as_str),
        "state": state,
        "loaded": of.is_loaded,
        "turns": chat.turns,
        "waiting": chat.waiting,
        "running": chat.running.as_ref().map(TurnId::as_str),
        "created_at": time_of_ms(chat.created_ms),
        "used_at": time_of_ms(chat.used_ms),
        "closed_at": chat.ended_ms.map(time_of_ms),
        "rounds": rounds::view(chat),
    })
}

fn turn_view(turn: &StoredTurn) -> Value {
    json!({
        "turn_id": turn.turn.as_str(),
        "sequence": turn.seq,
        "content": turn.content.raw(),
        "state": turn.state.as_str(),
        "outcome": turn.outcome.map(marshal_model::TurnOutcome::as_str),
        "idempotency_key": turn.key.as_ref().map(UntrustedText::raw),
        "accepted_at": time_of_ms(turn.accepted_ms),
        "begun_at": turn.begun_ms.map(time_of_ms),
        "ended_at": turn.ended_ms.map(time_of_ms),
    })
}
