//! Sessions: `GET /api/v1/sessions…`, prompts and ends. Events are in `events`, changes to
//! workspaces in `overlays`.
//!
//! Must not know actors, or SQL.

use std::time::Duration;

use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::error::ApiError;
use super::fleet::{operator_error, pool_filter};
use super::request_context::RequestContext;
use super::views::{List, Session, respond, respond_ok};
use super::{AppState, HandlerResult, chats};
use marshal_fleet::{CommandError, CommandRequest};
use marshal_journal::{SessionQuery, StoredSession};
use marshal_model::limits;
use marshal_model::{PoolName, SessionId};

/// How long before its connection's end a client gets the error that the agent has not answered.
const REPLY_MARGIN: Duration = Duration::from_secs(2);

pub(super) async fn list(app: AppState, request: RequestContext) -> HandlerResult {
    let pool = pool_filter(&app, &request)?.map(|pool| pool.to_string());
    let before = request
        .query_param("cursor")
        .map(SessionId::new)
        .transpose()
        .map_err(|_| ApiError::bad_cursor())?;
    let query = SessionQuery {
        pool,
        open: request.flag("open"),
        before: before.map(|before| before.to_string()),
    };
    let limit = request.limit() as usize;
    let read = move |reader: &marshal_journal::Reader| reader.sessions_page(&query, limit + 1);
    let mut rows = app.journal.read(read).await?;
    let more = rows.len() > limit;
    rows.truncate(limit);
    let last = rows.last().map(|row| row.session.clone());
    let items = rows.into_iter().map(|row| view(&app, row)).collect();
    respond_ok(&List {
        items,
        next: last.filter(|_| more),
    })
}

fn view(app: &AppState, row: StoredSession) -> Session {
    let id = SessionId::new(&row.session);
    let working = id.is_ok_and(|id| app.fleet.is_session_active(&id));
    Session::from_row(row, working)
}

pub(super) async fn get(app: AppState, request: RequestContext) -> HandlerResult {
    let (_, row) = find_session(&app, &request).await?;
    respond_ok(&view(&app, row))
}

/// Returns the session in the path.
pub(super) async fn find_session(
    app: &AppState,
    request: &RequestContext,
) -> Result<(SessionId, StoredSession), ApiError> {
    let missing = || ApiError::not_found("there is no such session, or retention removed it");
    let id = SessionId::new(request.path_param("session")).map_err(|_| missing())?;
    let key = id.clone();
    let row = app.journal.read(move |reader| reader.session(&key)).await?;
    Ok((id, row.ok_or_else(missing)?))
}

/// Sends a message to a session of a chat; other sessions get their prompts elsewhere.
pub(super) async fn prompt(app: AppState, request: RequestContext) -> HandlerResult {
    let (id, _) = find_session(&app, &request).await?;
    let key = id.clone();
    let chat = app.journal.read(move |reader| reader.chat(&key)).await?;
    let (Some(chat), Some(chats)) = (chat, app.chats) else {
        return Err(ApiError::conflict(
            "this session is not a chat: it runs tasks (POST /api/v1/tasks), or belongs to a connected \
             client that prompts it; create a chat with POST /api/v1/workspaces/{workspace}/chats",
        ));
    };
    chats::accept_message(&chats, chat.workspace.as_str(), id.as_str(), &request).await
}

/// The body of `…/commands`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Command")]
pub(super) struct CommandBody {
    /// The name of the command, without a slash.
    #[schemars(regex(pattern = r"^[A-Za-z0-9_.:-]{1,64}$"))]
    command: String,
    /// The arguments: the rest of the line.
    #[serde(default)]
    #[schemars(
        length(max = 262_144),
        regex(pattern = r"^[^\u0000-\u0008\u000b-\u001f\u007f-\u009f]*$")
    )]
    args: String,
}

/// The agent's answer to a command.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "CommandSaid")]
pub(super) struct CommandReply {
    /// False if the agent reported a failure or does not know the command.
    ok: bool,
    /// The agent's answer, at most 64 KiB of it.
    text: String,
    /// Whether the answer was cut; the event `slash_result` has all of it.
    cut: bool,
}

/// Sends one of the agent's own commands to the agent of a session; returns its answer.
pub(super) async fn command(app: AppState, request: RequestContext) -> HandlerResult {
    let (id, row) = find_session(&app, &request).await?;
    let pool = pool(&row)?;
    let CommandBody { command, args } = request.body()?;
    let by = request.caller.recorded_as();
    let order = CommandRequest { command, args, by };
    let sent = app.fleet.send_command(&pool, id, order);
    let longest = tokio::time::Instant::now() + limits::HTTP_STREAM_LIFETIME;
    let until = request.deadline.min(longest);
    let until = until.checked_sub(REPLY_MARGIN).unwrap_or(until);
    let reply = tokio::time::timeout_at(until, sent).await.map_err(|_| { reply_timeout( "the connection reached its time limit before the agent answered; the answer follows as an event of the session", ) })?.map_err(|error| command_error(&error))?;
    respond_ok(&CommandReply {
        ok: reply.ok,
        text: reply.text.raw().to_owned(),
        cut: reply.cut,
    })
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

/// Cancels the turn of a session; the session continues if the agent supports that.
pub(super) async fn interrupt(app: AppState, request: RequestContext) -> HandlerResult {
    let (id, row) = find_session(&app, &request).await?;
    let pool = pool(&row)?;
    app.fleet
        .interrupt(&pool, id)
        .await
        .map_err(operator_error)?;
    respond(StatusCode::ACCEPTED, &view(&app, row))
}

/// Ends a session after cancelling its turn.
pub(super) async fn stop(app: AppState, request: RequestContext) -> HandlerResult {
    let (id, row) = find_session(&app, &request).await?;
    let pool = pool(&row)?;
    app.fleet
        .stop_session(&pool, id)
        .await
        .map_err(operator_error)?;
    respond(StatusCode::ACCEPTED, &view(&app, row))
}

fn pool(row: &StoredSession) -> Result<PoolName, ApiError> {
    let missing = || ApiError::conflict("its pool is no longer in the configuration");
    PoolName::new(&row.pool).map_err(|_| missing())
}
