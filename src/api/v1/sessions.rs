//! The sessions: `GET /api/v1/sessions…`, their prompts and ends. Their events are in `events`, what
//! they wrote is in `overlays`.
//!
//! Must not know actors, or SQL.

use std::time::Duration;

use axum::http::StatusCode;
use serde::{Deserialize, Serialize};

use super::call::Call;
use super::fault::Fault;
use super::fleet::{named, refused};
use super::views::{List, Session, page, shown};
use super::{Answer, Desk, chats};
use crate::fleet::{CommandError, CommandOrder};
use crate::journal::{SessionQuery, StoredSession};
use crate::model::{PoolName, SessionId};

/// How long before its connection's end a client is told that the agent has not answered.
const SAID_BY: Duration = Duration::from_secs(2);

pub(super) async fn list(desk: Desk, call: Call) -> Answer {
    let pool = named(&desk, &call)?.map(|pool| pool.to_string());
    let before = call.given("cursor").map(SessionId::new).transpose();
    let before = before.map_err(|_| Fault::bad("query key \"cursor\" is no `next` of a page"))?;
    let query = SessionQuery {
        pool,
        open: call.flag("open"),
        before: before.map(|before| before.to_string()),
    };
    let limit = call.limit();
    let read = move |reader: &crate::journal::Reader| reader.sessions_page(&query, limit + 1);
    let mut rows = desk.shelf.read(read).await?;
    let more = rows.len() > limit;
    rows.truncate(limit);
    let last = rows.last().map(|row| row.session.clone());
    let items = rows.into_iter().map(|row| view(&desk, row)).collect();
    shown(&List {
        items,
        next: last.filter(|_| more),
    })
}

fn view(desk: &Desk, row: StoredSession) -> Session {
    let id = SessionId::new(&row.session);
    let working = id.is_ok_and(|id| desk.fleet.works(&id));
    Session::of(row, working)
}

pub(super) async fn one(desk: Desk, call: Call) -> Answer {
    let (_, row) = known(&desk, &call).await?;
    shown(&view(&desk, row))
}

/// The session that the path names.
pub(super) async fn known(desk: &Desk, call: &Call) -> Result<(SessionId, StoredSession), Fault> {
    let gone =
        || Fault::not_found("there is no such session, or it was removed because of its age");
    let id = SessionId::new(call.name("session")).map_err(|_| gone())?;
    let asked = id.clone();
    let found = desk
        .shelf
        .read(move |reader| reader.session(&asked))
        .await?;
    Ok((id, found.ok_or_else(gone)?))
}

/// Sends a message to a session that is a chat's; others take their prompts elsewhere.
pub(super) async fn prompt(desk: Desk, call: Call) -> Answer {
    let (id, _) = known(&desk, &call).await?;
    let asked = id.clone();
    let chat = desk.shelf.read(move |reader| reader.chat(&asked)).await?;
    let (Some(chat), Some(chats)) = (chat, desk.chats) else {
        return Err(Fault::conflict(
            "this session is no chat: it works tasks (POST /api/v1/tasks), or belongs to a client that \
             is connected and prompts it; a chat begins with POST /api/v1/workspaces/{workspace}/chats",
        ));
    };
    chats::message(&chats, chat.workspace.as_str(), id.as_str(), &call).await
}

/// The body of `…/commands`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Given {
    command: String,
    #[serde(default)]
    args: String,
}

/// What the agent said to a command.
#[derive(Serialize)]
struct Said<'a> {
    ok: bool,
    text: &'a str,
    cut: bool,
}

/// Gives a session's agent one of its own commands; returns with its answer.
pub(super) async fn command(desk: Desk, call: Call) -> Answer {
    let (id, row) = known(&desk, &call).await?;
    let pool = pool(&row)?;
    let Given { command, args } = call.body()?;
    let by = format!("token {}", call.who);
    let order = CommandOrder { command, args, by };
    let given = desk.fleet.give_command(&pool, id, order);
    let until = call.until.checked_sub(SAID_BY).unwrap_or(call.until);
    let said = tokio::time::timeout_at(until, given).await.map_err(|_| {
        unanswered(
            "the connection's time is over before the agent has answered; its answer will be an event of the session",
        )
    })?;
    let said = said.map_err(|error| not_commanded(&error))?;
    let (ok, text, cut) = (said.ok, said.text.raw(), said.cut);
    shown(&Said { ok, text, cut })
}

fn unanswered(detail: impl Into<String>) -> Fault {
    Fault::new(StatusCode::GATEWAY_TIMEOUT, detail)
}

fn not_commanded(error: &CommandError) -> Fault {
    let detail = error.to_string();
    match error {
        CommandError::NoCommands(..) | CommandError::Bad(_) => {
            Fault::new(StatusCode::UNPROCESSABLE_ENTITY, detail)
        }
        CommandError::Unanswered(_) => unanswered(detail),
        CommandError::ReadOnly | CommandError::Stopping => Fault::unavailable(detail),
        CommandError::NotHere
        | CommandError::NoAgent
        | CommandError::Busy(_)
        | CommandError::Refused(_)
        | CommandError::Ended(_) => Fault::conflict(detail),
    }
}

/// Ends the turn of a session; it goes on where it can.
pub(super) async fn interrupt(desk: Desk, call: Call) -> Answer {
    let (id, row) = known(&desk, &call).await?;
    let pool = pool(&row)?;
    desk.fleet.interrupt(&pool, id).await.map_err(refused)?;
    page(StatusCode::ACCEPTED, &view(&desk, row))
}

/// Ends a session, its turn first.
pub(super) async fn stop(desk: Desk, call: Call) -> Answer {
    let (id, row) = known(&desk, &call).await?;
    let pool = pool(&row)?;
    desk.fleet.stop_session(&pool, id).await.map_err(refused)?;
    page(StatusCode::ACCEPTED, &view(&desk, row))
}

fn pool(row: &StoredSession) -> Result<PoolName, Fault> {
    let gone = || Fault::conflict("its pool is not in the configuration any more");
    PoolName::new(&row.pool).map_err(|_| gone())
}
