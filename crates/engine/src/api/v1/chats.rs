//! Chats over HTTP, below `/api/v1/workspaces/{workspace}/chats`.
//!
//! Owns the parameters and responses of the routes. Must not know what a chat does with a message.

use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::IntoResponse as _;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::error::ApiError;
use super::plans;
use super::request_context::{RequestContext, object};
use super::rounds::{self, Bounds};
use super::views::{List, respond, respond_ok};
use super::{AppState, HandlerResult};
use crate::api::chat_streams;
use crate::api::time::Time;
use crate::chat::{
    Accepted, ChatError, ChatView, Chats, CreateRequest, Created, Cursor, IdempotencyKey, Shape,
    WorkRequest,
};
use marshal_journal::StoredTurn;
use marshal_model::limits;
use marshal_model::{ChatMode, ChatPhase, SessionId};

/// The body of a request that creates a chat.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "NewChat", example = serde_json::json!({"role": "dev", "goal": "Explain src/lib.rs."}))]
pub(super) struct Create {
    /// The first message.
    #[schemars(length(min = 1, max = 65_536))]
    goal: String,
    /// Files of the workspace that the chat is about.
    #[serde(default)]
    #[schemars(length(max = limits::TASK_FILES), inner(length(min = 1, max = 4096)))]
    files: Vec<String>,
    /// A role of the configuration; optional if there is only one.
    role: Option<String>,
    /// The model; it must be the role's own.
    model: Option<String>,
    /// The mode of the chat; `chat` by default.
    #[schemars(extend("enum" = words!(ChatMode, null)))]
    mode: Option<String>,
    /// A template of the configuration.
    template: Option<String>,
    /// The plan's file in the workspace; one is created by default.
    #[schemars(length(max = 4096))]
    plan_id: Option<String>,
    /// The roles that execute the plan.
    #[serde(default)]
    #[schemars(length(max = 64))]
    roles: Vec<String>,
    /// The role that writes the plan.
    planner: Option<String>,
    /// A shell command that exits with 0 if the goal is met.
    #[schemars(length(max = 8192))]
    check: Option<String>,
    /// The prompt to send while the goal is not met.
    #[schemars(length(max = 65_536))]
    continue_prompt: Option<String>,
    /// Whether items that agents add to the plan are executed.
    agent_items: Option<bool>,
    /// Limits of an autonomous chat or a plan.
    #[serde(default, deserialize_with = "object")]
    #[schemars(with = "Bounds")]
    limits: Bounds,
}

/// The body of a request that sends a message.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(example = serde_json::json!({"content": "And what are its limits?"}))]
pub(super) struct Message {
    #[schemars(length(min = 1, max = 262_144))]
    content: String,
}

/// A chat that was created.
#[derive(Serialize, JsonSchema)]
pub(super) struct ChatBegun {
    pub(super) chat_id: String,
    /// Its first turn; `None` for a plan, which begins with its planner.
    pub(super) turn_id: Option<String>,
    pub(super) sequence: u64,
    /// The path of its events.
    pub(super) events: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) plan_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) members: Option<Vec<ChatMember>>,
}

/// A chat that executes a part of a plan.
#[derive(Serialize, JsonSchema)]
pub(super) struct ChatMember {
    pub(super) chat_id: String,
    pub(super) role: String,
    /// Whether it writes the plan.
    pub(super) planner: bool,
}

/// A message that was accepted.
#[derive(Serialize, JsonSchema)]
pub(super) struct TurnTaken {
    turn_id: String,
    sequence: u64,
}

/// That the turn and the messages of a chat are cancelled.
#[derive(Serialize, JsonSchema)]
pub(super) struct ChatStopped {
    #[schemars(extend("const" = "cancelled"))]
    status: &'static str,
    chat_id: String,
}

/// That a chat is closed, or will be when its turn and its agent have ended.
#[derive(Serialize, JsonSchema)]
pub(super) struct ChatClosed {
    #[schemars(extend("enum" = ["closed", "closing"]))]
    status: &'static str,
    chat_id: String,
}

/// A chat.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Chat")]
pub(super) struct ChatDocument {
    chat_id: String,
    workspace: String,
    role: String,
    model: Option<String>,
    goal: String,
    files: Vec<String>,
    mode: &'static str,
    #[schemars(extend("enum" = words!(ChatPhase, null)))]
    phase: Option<&'static str>,
    plan_id: Option<String>,
    parent: Option<String>,
    #[schemars(extend("enum" = ["running", "waiting", "idle", "closed"]))]
    state: &'static str,
    loaded: bool,
    turns: u64,
    waiting: u64,
    running: Option<String>,
    created_at: Time,
    used_at: Time,
    closed_at: Option<Time>,
    /// The progress of an autonomous chat.
    rounds: Option<rounds::Rounds>,
}

/// A turn of a chat.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Turn")]
pub(super) struct TurnDocument {
    turn_id: String,
    sequence: u64,
    content: String,
    state: &'static str,
    outcome: Option<&'static str>,
    idempotency_key: Option<String>,
    accepted_at: Time,
    begun_at: Option<Time>,
    ended_at: Option<Time>,
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
            let body = ChatBegun {
                chat_id: chat.to_string(),
                turn_id: Some(accepted.turn.to_string()),
                sequence: accepted.sequence,
                events: format!("{place}/events"),
                plan_id: None,
                members: None,
            };
            (place, body)
        }
        Created::Work(begun) => {
            let place = place(&begun.chat);
            let body = plans::started(begun, &place);
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
    let turn_id = turn.to_string();
    respond(StatusCode::ACCEPTED, &TurnTaken { turn_id, sequence })
}

pub(super) async fn list(app: AppState, request: RequestContext) -> HandlerResult {
    let (chats, workspace, _) = chat_params(&app, &request)?;
    let cursor = request
        .query_param("cursor")
        .map(SessionId::new)
        .transpose()
        .map_err(|_| ApiError::bad_cursor())?;
    let page = chats.list(workspace, cursor, request.limit());
    let (chats, has_more) = page.await?;
    let last = chats.last().filter(|_| has_more);
    respond_ok(&List {
        next: last.map(|of| of.chat.session.as_str().to_owned()),
        items: chats.iter().map(chat_view).collect(),
    })
}

pub(super) async fn get(app: AppState, request: RequestContext) -> HandlerResult {
    let (chats, workspace, chat) = chat_params(&app, &request)?;
    respond_ok(&chat_view(&chats.get(workspace, chat).await?))
}

pub(super) async fn turns(app: AppState, request: RequestContext) -> HandlerResult {
    let (chats, workspace, chat) = chat_params(&app, &request)?;
    let cursor = request
        .query_param("cursor")
        .unwrap_or("0")
        .parse()
        .map_err(|_| ApiError::bad_cursor())?;
    let page = chats.turns(workspace, chat, cursor, request.limit()).await;
    let (turns, has_more) = page?;
    let last = turns.last().filter(|_| has_more);
    respond_ok(&List {
        next: last.map(|of| of.seq.to_string()),
        items: turns.iter().map(turn_view).collect(),
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
    let last = request
        .headers
        .get("last-event-id")
        .map(|id| id.to_str().unwrap_or("?"));
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
    respond_ok(&ChatStopped {
        status: "cancelled",
        chat_id: chat.to_string(),
    })
}

pub(super) async fn close(app: AppState, request: RequestContext) -> HandlerResult {
    let (chats, workspace, chat) = chat_params(&app, &request)?;
    // The chat is `closing` until its turn and its agent have ended.
    let is_closed = chats.close(workspace, chat).await?;
    let status = if is_closed { "closed" } else { "closing" };
    let chat_id = chat.to_owned();
    respond_ok(&ChatClosed { status, chat_id })
}

pub(super) async fn ping(app: AppState, request: RequestContext) -> HandlerResult {
    let (chats, workspace, chat) = chat_params(&app, &request)?;
    chats.ping(workspace, chat).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

fn chat_view(of: &ChatView) -> ChatDocument {
    let chat = &of.chat;
    let state = match (&chat.running, chat.waiting) {
        _ if chat.ended_ms.is_some() => "closed",
        _ if chat.phase == Some(ChatPhase::Approval) => "waiting",
        _ if matches!(chat.phase, Some(ChatPhase::Planning | ChatPhase::Working)) => "running",
        (Some(_), _) => "running",
        (None, 1..) => "waiting",
        (None, 0) => "idle",
    };
    ChatDocument {
        chat_id: chat.session.to_string(),
        workspace: chat.workspace.to_string(),
        role: chat.role.to_string(),
        model: chat.model.clone(),
        goal: chat.goal.raw().to_owned(),
        files: chat.files.clone(),
        mode: chat.mode.as_str(),
        phase: chat.phase.map(ChatPhase::as_str),
        plan_id: chat.settings.plan_path.clone(),
        parent: chat.parent.as_ref().map(ToString::to_string),
        state,
        loaded: of.is_loaded,
        turns: chat.turns,
        waiting: chat.waiting.into(),
        running: chat.running.as_ref().map(ToString::to_string),
        created_at: Time::from_ms(chat.created_ms),
        used_at: Time::from_ms(chat.used_ms),
        closed_at: chat.ended_ms.map(Time::from_ms),
        rounds: rounds::view(chat),
    }
}

fn turn_view(turn: &StoredTurn) -> TurnDocument {
    TurnDocument {
        turn_id: turn.turn.to_string(),
        sequence: turn.seq,
        content: turn.content.raw().to_owned(),
        state: turn.state.as_str(),
        outcome: turn.outcome.map(marshal_model::TurnOutcome::as_str),
        idempotency_key: turn.key.as_ref().map(|key| key.raw().to_owned()),
        accepted_at: Time::from_ms(turn.accepted_ms),
        begun_at: turn.begun_ms.map(Time::from_ms),
        ended_at: turn.ended_ms.map(Time::from_ms),
    }
}
