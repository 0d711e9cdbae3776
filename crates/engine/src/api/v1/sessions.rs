//! The sessions: `GET /api/v1/sessions…`, their prompts and ends. Their events are in `events`, what
//! they wrote is in `overlays`.
//!
//! Must not know actors, or SQL.

use std::time::Duration;

use axum::http::StatusCode;
use serde::{Deserialize, Serialize};

use super::error::ApiError;
use super::fleet::{operator_error, pool_filter};
use super::request_context::RequestContext;
use super::views::{List, Session, respond, respond_ok};
use super::{AppState, HandlerResult, chats};
use marshal_fleet::{CommandError, CommandRequest};
use marshal_journal::{SessionQuery, StoredSession};
use marshal_model::{PoolName, SessionId};

/// How long before its connection's end a client is told that the agent has not answered.
const REPLY_MARGIN: Duration = Duration::from_secs(2);

pub(super) async fn list(desk: AppState, call: RequestContext) -> HandlerResult {
    let pool = pool_filter(&desk, &call)?.map(|pool| pool.to_string());
    let before = call.query_param("cursor").map(SessionId::new).transpose();
    let before =
        before.map_err(|_| ApiError::bad_request("query key \"cursor\" is no `next` of a page"))?;
    let query = SessionQuery {
        pool,
        open: call.flag("open"),
        before: before.map(|before| before.to_string()),
    };
    let limit = call.limit();
    let read = move |reader: &marshal_journal::Reader| reader.sessions_page(&query, limit + 1);
    let mut rows = desk.journal.read(read).await?;
    let more = rows.len() > limit;
    rows.truncate(limit);
    let last = rows.last().map(|row| row.session.clone());
    let items = rows.into_iter().map(|row| view(&desk, row)).collect();
    respond_ok(&List {
        items,
        next: last.filter(|_| more),
    })
}

fn view(desk: &AppState, row: StoredSession) -> Session {
    let id = SessionId::new(&row.session);
    let working = id.is_ok_and(|id| desk.fleet.is_session_active(&id));
    Session::from_row(row, working)
}

pub(super) async fn get(desk: AppState, call: RequestContext) -> HandlerResult {
    let (_, row) = find_session(&desk, &call).await?;
    respond_ok(&view(&desk, row))
}

/// The session that the path names.
pub(super) async fn find_session(
    desk: &AppState,
    call: &RequestContext,
) -> Result<(SessionId, StoredSession), ApiError> {
    let gone =
        || ApiError::not_found("there is no such session, or it was removed because of its age");
    let id = SessionId::new(call.path_param("session")).map_err(|_| gone())?;
    let asked = id.clone();
    let found = desk
        .journal
        .read(move |reader| reader.session(&asked))
        .await?;
    Ok((id, found.ok_or_else(gone)?))
}

/// Sends a message to a session that is a chat's; others take their prompts elsewhere.
pub(super) async fn prompt(desk: AppState, call: RequestContext) -> HandlerResult {
    let (id, _) = find_session(&desk, &call).await?;
    let asked = id.clone();
    let chat = desk.journal.read(move |reader| reader.chat(&asked)).await?;
    let (Some(chat), Some(chats)) = (chat, desk.chats) else {
        return Err(ApiError::conflict(
            "this session is no chat: it works tasks (POST /api/v1/tasks), or belongs to a client that \
             is connected and prompts it; a chat begins with POST /api/v1/workspaces/{workspace}/chats",
        ));
    };
    chats::accept_message(&chats, chat.workspace.as_str(), id.as_str(), &call).await
}

/// The body of `…/commands`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CommandBody {
    command: String,
    #[serde(default)]
    args: String,
}

/// What the agent said to a command.
#[derive(Serialize)]
struct CommandReply<'a> {
    ok: bool,
    text: &'a str,
    cut: bool,
}

/// Gives a session's agent one of its own commands; returns with its answer.
pub(super) async fn command(desk: AppState, call: RequestContext) -> HandlerResult {
    let (id, row) = find_session(&desk, &call).await?;
    let pool = pool(&row)?;
    let CommandBody { command, args } = call.body()?;
    let by = format!("token {}", call.approver);
    let order = CommandRequest { command, args, by };
    let given = desk.fleet.send_command(&pool, id, order);
    let until = call
        .deadline
        .checked_sub(REPLY_MARGIN)
        .unwrap_or(call.deadline);
    let said = tokio::time::timeout_at(until, given).await.map_err(|_| {
        reply_timeout(
            "the connection's time is over before the agent has answered; its answer will be an event of the session",
        )
    })?;
    let said = said.map_err(|error| command_error(&error))?;
    let (ok, text, cut) = (said.ok, said.text.raw(), said.cut);
    respond_ok(&CommandReply { ok, text, cut })
}

fn reply_timeout(detail: impl Into<String>) -> ApiError {
    ApiError::new(StatusCode::GATEWAY_TIMEOUT, detail)
}

fn command_error(error: &CommandError) -> ApiError {
    let detail = error.to_string();
    match error {
        CommandError::NoCommands(..) | CommandError::Bad(_) => {
            ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, detail)
        }
        CommandError::Unanswered(_) => reply_timeout(detail),
        CommandError::ReadOnly | CommandError::Stopping => ApiError::unavailable(detail),
        CommandError::NotInPool
        | CommandError::NoAgent
        | CommandError::Busy(_)
        | CommandError::Refused(_)
        | CommandError::Ended(_) => ApiError::conflict(detail),
    }
}

/// Ends the turn of a session; it goes on where it can.
pub(super) async fn interrupt(desk: AppState, call: RequestContext) -> HandlerResult {
    let (id, row) = find_session(&desk, &call).await?;
    let pool = pool(&row)?;
    desk.fleet
        .interrupt(&pool, id)
        .await
        .map_err(operator_error)?;
    respond(StatusCode::ACCEPTED, &view(&desk, row))
}

/// Ends a session, its turn first.
pub(super) async fn stop(desk: AppState, call: RequestContext) -> HandlerResult {
    let (id, row) = find_session(&desk, &call).await?;
    let pool = pool(&row)?;
    desk.fleet
        .stop_session(&pool, id)
        .await
        .map_err(operator_error)?;
    respond(StatusCode::ACCEPTED, &view(&desk, row))
}

fn pool(row: &StoredSession) -> Result<PoolName, ApiError> {
    let gone = || ApiError::conflict("its pool is not in the configuration any more");
    PoolName::new(&row.pool).map_err(|_| gone())
}
