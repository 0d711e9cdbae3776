//! `GET /api/v1/slots/{pool}/{slot}/exec`: a command in the sandbox of the slot's agent, over a
//! WebSocket.
//!
//! If the connection ends for any reason, the command is killed with all its descendants. The
//! command's input is read from the socket only as fast as the command takes it, and its output
//! only as fast as the client does. Must not know how a command is started.

use std::time::Duration;

use axum::extract::ws::{Message, WebSocket};
use axum::http::StatusCode;
use serde::Serialize;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;

use super::error::ApiError;
use super::fleet::{no_such_slot, slot_param};
use super::request_context::RequestContext;
use super::{AppState, HandlerResult};
use crate::api::exec_protocol::{
    CLIENT_MESSAGE_BYTES, ExecClientMessage, ExecServerMessage, STDERR, STDOUT,
};
use crate::api::http::ConnectionHandle;
use marshal_fleet::{ExecError, ExecOrder, ExecTerminal, ExecUpdate, SlotExec};
use marshal_model::limits::{EXEC_MAX_MISSED_PONGS, EXEC_PING, EXEC_WRITE_TIMEOUT};
use marshal_model::{ExitStatus, SessionId};
use marshal_wire::terminal::TerminalSize;

/// How long the client may take for the closing handshake.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(500);

/// Starts a command, and serves it over the WebSocket until either side ends it.
pub(super) async fn open(app: AppState, mut request: RequestContext) -> HandlerResult {
    let slots = app.fleet.slots();
    let slot = slot_param(&request).filter(|slot| slots.iter().any(|view| view.slot == *slot));
    let slot = slot.ok_or_else(|| no_such_slot(&request, &slots))?;
    let Some(upgrade) = request.websocket.take() else {
        return Err(ApiError::bad_request("this route is only for a WebSocket"));
    };
    let order = exec_order(&request)?;
    let exec = tokio::select! {
        started = app.fleet.exec(&slot, order) => started.map_err(|error| exec_error(&error))?,
        () = app.stop.cancelled() => return Err(ApiError::stopping()),
    };
    let stop = app.stop.clone();
    Ok(
        upgrade.accept(CLIENT_MESSAGE_BYTES, move |socket, connection| async move {
            let served = ServedCommand {
                socket,
                missed_pongs: 0,
            };
            served.run(exec, &connection, &stop).await;
        }),
    )
}

fn exec_order(request: &RequestContext) -> Result<ExecOrder, ApiError> {
    let bad = |key: &str, why: &str| ApiError::bad_request(format!("query key {key:?} {why}"));
    let words = request.query_param("command");
    let words = words.ok_or_else(|| bad("command", "is missing"))?;
    let argv = serde_json::from_str(words)
        .map_err(|_| bad("command", "must be a JSON array of strings"))?;
    let session = request.query_param("session").map(SessionId::new);
    let session = session.transpose();
    let session = session.map_err(|_| bad("session", "is not the id of a session"))?;
    let cells = |key: &str, default| match request.query_param(key).map(str::parse::<u16>) {
        None => Ok(default),
        Some(Ok(cells @ 1..)) => Ok(cells),
        Some(_) => Err(bad(key, "must be a number from 1 to 65535")),
    };
    let size = TerminalSize {
        rows: cells("rows", 24)?,
        columns: cells("columns", 80)?,
    };
    let term = request.query_param("term").map(str::to_owned);
    Ok(ExecOrder {
        argv,
        terminal: term.map(|term| ExecTerminal { size, term }),
        session,
        by: request.caller.recorded_as(),
    })
}

fn exec_error(error: &ExecError) -> ApiError {
    let detail = error.to_string();
    match error {
        ExecError::NoSlot => ApiError::not_found(detail),
        ExecError::Bad(_) => ApiError::bad_request(detail),
        ExecError::Failed(_) => ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, detail),
        ExecError::ReadOnly | ExecError::Stopping => ApiError::unavailable(detail),
        ExecError::Launcher(..)
        | ExecError::OtherSession
        | ExecError::NoAgent
        | ExecError::NotNow
        | ExecError::TooMany => ApiError::conflict(detail),
    }
}

/// The client has gone, does not read, or sent what is no message.
struct Gone;

/// A running command with its client.
struct ServedCommand {
    socket: WebSocket,
    missed_pongs: u32,
}

impl ServedCommand {
    async fn run(
        mut self,
        mut exec: SlotExec,
        connection: &ConnectionHandle,
        stop: &CancellationToken,
    ) {
        let why = tokio::select! {
            biased;
            () = stop.cancelled() => Ok(Some("the supervisor is stopping")),
            is_outdated = connection.wait_closed() => Ok(Some(if is_outdated {
                "the token or the certificate was replaced"
            } else {
                "the supervisor closes its connections"
            })),
            served = self.serve(&mut exec) => served.map(|()| None),
        };
        let last = match why {
            Ok(None) => None,
            Ok(Some(detail)) => Some(detail),
            Err(Gone) => {
                kill(exec).await;
                return;
            }
        };
        if let Some(detail) = last {
            kill(exec).await;
            let detail = detail.to_owned();
            let message = ExecServerMessage::Ended { detail };
            if timeout(CLOSE_TIMEOUT, self.send_json(&message))
                .await
                .is_err()
            {
                return;
            }
        }
        // Wait for the client's close frame; otherwise the last messages could be lost.
        let goodbye = async {
            let _ = self.socket.send(Message::Close(None)).await;
            while let Some(Ok(_)) = self.socket.recv().await {}
        };
        let _ = timeout(CLOSE_TIMEOUT, goodbye).await;
    }

    /// Serves the client to the command's end.
    async fn serve(&mut self, exec: &mut SlotExec) -> Result<(), Gone> {
        self.send_json(&ExecServerMessage::Started {
            session: exec.session.to_string(),
            terminal: exec.terminal.clone(),
        })
        .await?;
        let mut ping = interval(EXEC_PING);
        ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let reads = exec.input.is_flushed();
            tokio::select! {
                came = self.socket.recv(), if reads => self.handle_message(came, exec)?,
                () = exec.input.flush(), if !reads => {}
                update = exec.output.next() => match update {
                    ExecUpdate::Stdout(bytes) => self.send_output(STDOUT, &bytes).await?,
                    ExecUpdate::Stderr(bytes) => self.send_output(STDERR, &bytes).await?,
                    ExecUpdate::Ended(status) => return self.send_end(status).await,
                },
                _ = ping.tick() => {
                    // A client that is not read from now cannot answer.
                    self.missed_pongs += u32::from(reads);
                    if self.missed_pongs > EXEC_MAX_MISSED_PONGS {
                        return Err(Gone);
                    }
                    self.send(Message::Ping(axum::body::Bytes::new())).await?;
                }
            }
        }
    }

    fn handle_message(
        &mut self,
        came: Option<Result<Message, axum::Error>>,
        exec: &mut SlotExec,
    ) -> Result<(), Gone> {
        match came {
            None | Some(Err(_) | Ok(Message::Close(_))) => return Err(Gone),
            Some(Ok(Message::Binary(bytes))) => exec.input.push(&bytes),
            Some(Ok(Message::Text(text))) => match serde_json::from_str(&text) {
                Ok(ExecClientMessage::Resize { rows, columns }) => {
                    exec.input.resize(TerminalSize { rows, columns });
                }
                Ok(ExecClientMessage::Eof {}) => exec.input.close(),
                Err(_) => return Err(Gone),
            },
            Some(Ok(Message::Pong(_))) => self.missed_pongs = 0,
            // The library sends the pong.
            Some(Ok(Message::Ping(_))) => {}
        }
        Ok(())
    }

    async fn send_output(&mut self, output: u8, bytes: &[u8]) -> Result<(), Gone> {
        let message: Vec<u8> = [output].iter().chain(bytes).copied().collect();
        self.send(Message::Binary(message.into())).await
    }

    async fn send_end(&mut self, status: Option<ExitStatus>) -> Result<(), Gone> {
        let message = match status {
            Some(status) => ExecServerMessage::Exited {
                code: status.shell_code(),
            },
            None => ExecServerMessage::Ended {
                detail: "its sandbox has ended: the agent has exited, or was stopped".to_owned(),
            },
        };
        self.send_json(&message).await
    }

    async fn send_json<T: Serialize>(&mut self, message: &T) -> Result<(), Gone> {
        let text = serde_json::to_string(message).map_err(|_| Gone)?;
        self.send(Message::Text(text.into())).await
    }

    async fn send(&mut self, message: Message) -> Result<(), Gone> {
        match timeout(EXEC_WRITE_TIMEOUT, self.socket.send(message)).await {
            Ok(Ok(())) => Ok(()),
            _ => Err(Gone),
        }
    }
}

/// Kills a command, and waits until no process of it is left.
async fn kill(mut exec: SlotExec) {
    exec.output.kill();
    while !matches!(exec.output.next().await, ExecUpdate::Ended(_)) {}
}
