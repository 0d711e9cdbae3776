//! Chats over HTTP, below `/api/v1/workspaces/{workspace}/chats`.
//!
//! Owns what their routes take and give. Must not know what a chat does with a message.

use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::IntoResponse as _;
use serde::Deserialize;
use serde_json::{Value, json};

use super::call::Call;
use super::fault::Fault;
use super::plans;
use super::rounds::{self, Bounds};
use super::views::{page, shown};
use super::{Answer, Desk};
use crate::api::chat_streams;
use crate::chat::{
    Accepted, ChatError, ChatView, Chats, Created, Cursor, Once, Shape, Wish, WorkWish,
};
use crate::journal::StoredTurn;
use crate::limits;
use crate::model::{ChatPhase, Foreign, SessionId, TurnId};

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

/// A message.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Message {
    content: String,
}

/// How soon a client comes again where too much waits, and where nothing can be taken.
const AGAIN: [(StatusCode, &str); 2] = [
    (StatusCode::TOO_MANY_REQUESTS, "1"),
    (StatusCode::SERVICE_UNAVAILABLE, "5"),
];

impl From<ChatError> for Fault {
    fn from(error: ChatError) -> Self {
        let status = match &error {
            ChatError::NotFound(_) => StatusCode::NOT_FOUND,
            ChatError::Unprocessable(_) => StatusCode::UNPROCESSABLE_ENTITY,
            ChatError::Conflict(_) => StatusCode::CONFLICT,
            ChatError::Full(_) => StatusCode::TOO_MANY_REQUESTS,
            ChatError::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
        };
        let again = AGAIN.iter().find(|(of, _)| *of == status);
        let fault = Self::new(status, error.to_string());
        match again {
            Some((_, again)) => fault.again(again),
            None => fault,
        }
    }
}

/// The chats of a daemon, and which workspace and chat the path names.
pub(super) fn asked<'a>(desk: &Desk, call: &'a Call) -> Result<(Chats, &'a str, &'a str), Fault> {
    let none = || Fault::not_found("a daemon has chats, and this is none: marshal up");
    let chats = desk.chats.clone().ok_or_else(none)?;
    Ok((chats, call.name("workspace"), call.name("chat")))
}

fn limit(call: &Call) -> u32 {
    let given = call.given("limit").and_then(|text| text.parse().ok());
    given.unwrap_or(limits::CHAT_PAGE)
}

/// The body, JSON of this form: what is no JSON is bad, and what is of another form is refused.
pub(super) fn read<T: for<'a> Deserialize<'a>>(call: &Call) -> Result<T, Fault> {
    serde_json::from_slice(call.bytes()).map_err(|error| {
        let why = crate::model::foreign::show(&error.to_string(), 200);
        if error.is_data() {
            let detail = format!("the body: {why}");
            Fault::new(StatusCode::UNPROCESSABLE_ENTITY, detail)
        } else {
            Fault::bad(format!("the body is no JSON: {why}"))
        }
    })
}

/// What a client names a message by, so that it can send it again.
fn key(headers: &HeaderMap) -> Result<Option<String>, Fault> {
    let mut keys = headers.get_all("idempotency-key").iter();
    let (first, second) = (keys.next(), keys.next());
    let Some(first) = first else { return Ok(None) };
    let text = first.to_str().ok().map(str::trim);
    let text = text.filter(|text| (1..=limits::TURN_KEY_BYTES).contains(&text.len()));
    match text {
        Some(text) if second.is_none() => Ok(Some(text.to_owned())),
        _ => {
            let most = limits::TURN_KEY_BYTES;
            Err(Fault::bad(format!(
                "an Idempotency-Key is one text of 1 to {most} characters of ASCII"
            )))
        }
    }
}

pub(super) async fn create(desk: Desk, call: Call) -> Answer {
    let (chats, workspace, _) = asked(&desk, &call)?;
    let key = key(&call.headers)?;
    let create: Create = read(&call)?;
    // The same members in another order are the same.
    let asked: Value = read(&call)?;
    let once = key.map(|key| Once {
        key,
        asked: asked.to_string(),
    });
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
            bounds: create.limits.read()?,
            instructions: None,
        },
    };
    let place = |chat| format!("/api/v1/workspaces/{workspace}/chats/{chat}");
    let (place, body) = match chats.create(workspace, wish, once).await? {
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
            let body = plans::begun(&begun, &place);
            (place, body)
        }
    };
    let mut response = page(StatusCode::CREATED, &body)?;
    if let Ok(place) = HeaderValue::from_str(&place) {
        response.headers_mut().insert(header::LOCATION, place);
    }
    Ok(response)
}

pub(super) async fn say(desk: Desk, call: Call) -> Answer {
    let (chats, workspace, chat) = asked(&desk, &call)?;
    message(&chats, workspace, chat, &call).await
}

/// Has a chat take the message that a call brings.
pub(super) async fn message(chats: &Chats, workspace: &str, chat: &str, call: &Call) -> Answer {
    let key = key(&call.headers)?;
    let message: Message = read(call)?;
    let said = chats.say(workspace, chat, message.content, key).await;
    let Accepted { turn, sequence } = said?;
    let body = json!({"turn_id": turn.as_str(), "sequence": sequence});
    page(StatusCode::ACCEPTED, &body)
}

pub(super) async fn list(desk: Desk, call: Call) -> Answer {
    let (chats, workspace, _) = asked(&desk, &call)?;
    let found = chats.list(workspace, call.given("after"), limit(&call));
    let (chats, has_more) = found.await?;
    let last = chats.last().filter(|_| has_more);
    let next = last.map(|of| of.chat.session.as_str().to_owned());
    let items: Vec<Value> = chats.iter().map(chat_view).collect();
    shown(&json!({"items": items, "next": next}))
}

pub(super) async fn one(desk: Desk, call: Call) -> Answer {
    let (chats, workspace, chat) = asked(&desk, &call)?;
    shown(&chat_view(&chats.get(workspace, chat).await?))
}

pub(super) async fn turns(desk: Desk, call: Call) -> Answer {
    let (chats, workspace, chat) = asked(&desk, &call)?;
    let after = call.given("after").unwrap_or("0").parse::<u64>();
    let after = after.map_err(|_| Fault::bad("query key \"after\" is a whole number"))?;
    let found = chats.turns(workspace, chat, after, limit(&call)).await;
    let (turns, has_more) = found?;
    let next = turns.last().filter(|_| has_more).map(|of| of.seq);
    let items: Vec<Value> = turns.iter().map(turn_view).collect();
    shown(&json!({"items": items, "next": next}))
}

pub(super) async fn events(desk: Desk, call: Call) -> Answer {
    let (chats, workspace, chat) = asked(&desk, &call)?;
    // Over a WebSocket every message is an envelope.
    let shape = match call.given("shape") {
        Some("enveloped") if call.socket.is_none() => Shape::Enveloped,
        _ => Shape::Named,
    };
    // What a client has read counts more than what it was told to begin with.
    let last = call.headers.get("last-event-id");
    let last = last.map(|id| id.to_str().unwrap_or("?"));
    let cursor = match last.filter(|id| !id.is_empty()).or(call.given("after")) {
        None => Cursor::default(),
        Some(text) => Cursor::read(text).ok_or_else(|| {
            Fault::bad("Last-Event-ID and \"after\" are ids of events of this stream, or a number")
        })?,
    };
    let followed = chats.subscribe(workspace, chat, cursor, shape).await?;
    let Call { until, socket, .. } = call;
    Ok(chat_streams::open(followed, socket, desk.stop, until))
}

pub(super) async fn cancel(desk: Desk, call: Call) -> Answer {
    let (chats, workspace, chat) = asked(&desk, &call)?;
    let chat = chats.stop(workspace, chat).await?;
    shown(&json!({"status": "cancelled", "chat_id": chat.as_str()}))
}

pub(super) async fn close(desk: Desk, call: Call) -> Answer {
    let (chats, workspace, chat) = asked(&desk, &call)?;
    // Until its turn and its agent have ended it is only closing.
    let is_closed = chats.close(workspace, chat).await?;
    let status = if is_closed { "closed" } else { "closing" };
    shown(&json!({"status": status, "chat_id": chat}))
}

pub(super) async fn ping(desk: Desk, call: Call) -> Answer {
    let (chats, workspace, chat) = asked(&desk, &call)?;
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
        "rounds": rounds::view(chat),
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
