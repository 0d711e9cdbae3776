//! `marshal exec`: a command in the sandbox of a running agent, at this terminal or with pipes.
//!
//! Owns the terminal of this process: it passes every key on, and is restored in every ending. Must
//! not know how the command is started.

use std::io::{self, IsTerminal as _, Write as _};
use std::path::Path;
use std::thread;

use axum::http::{Method, StatusCode};
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt as _, StreamExt as _};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use rustix::termios::{OptionalActions, Termios};
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_util::task::AbortOnDropHandle;

use super::acp::read_chunks;
use super::exit::Exit;
use super::http_client::{ClientError, request_json, web_socket};
use super::signals::Signals;
use super::streams::Streams;
use marshal_engine::api::exec_protocol::{
    CLIENT_MESSAGE_BYTES, ExecClientMessage, ExecServerMessage, STDERR, STDOUT,
};
use marshal_model::untrusted::escape_for_display;
use marshal_model::{SessionId, SlotId};

/// The exit code if the sandbox or the connection ended before the command did.
const LOST: u8 = 125;
/// The exit code if the command cannot be started, as of a shell.
const NOT_STARTED: u8 = 127;
/// The exit code if nobody reads the output any more: that of SIGPIPE.
const NO_READER: u8 = 141;
/// Columns shown of a message of the supervisor.
const DETAIL: usize = 400;

/// Whose sandbox it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExecTarget {
    /// That of the agent in this slot.
    Slot(SlotId),
    /// That of the agent of this session.
    Session(SessionId),
}

impl ExecTarget {
    /// Reads `POOL/NUMBER`, or the id of a session.
    ///
    /// # Errors
    /// It is neither.
    pub fn parse(text: &str) -> Result<Self, String> {
        if let Ok(slot) = SlotId::parse(text) {
            return Ok(Self::Slot(slot));
        }
        let session = SessionId::new(text).map(Self::Session);
        session.map_err(|_| "expected a slot, such as demo/0, or the id of a session".to_owned())
    }
}

/// How the command ended for this process.
enum Ending {
    /// With this exit code.
    Code(i32),
    /// It was ended, or the connection was; the reason.
    Lost(String),
    /// Nobody reads its output.
    NoReader,
}

type Socket = WebSocketStream<TokioIo<Upgraded>>;

/// Runs a command in the sandbox of an agent.
pub(super) async fn run(
    state: &Path,
    target: &ExecTarget,
    command: &[String],
    streams: &mut Streams,
) -> Exit {
    let has_terminal = io::stdin().is_terminal() && io::stdout().is_terminal();
    let socket = match open(state, target, command, has_terminal).await {
        Ok(socket) => socket,
        Err(error) => {
            let exit = error.report(streams);
            let is_422 = matches!(error, ClientError::Refused { status, .. } if status == StatusCode::UNPROCESSABLE_ENTITY);
            return if is_422 {
                Exit::Command(NOT_STARTED)
            } else {
                exit
            };
        }
    };
    let Ok(mut signals) = Signals::install() else {
        streams.err.line("error: cannot install signal handlers");
        return Exit::CannotStart;
    };
    if has_terminal {
        streams.err.line(
            "note: the agent runs as the same user; it can read and write this terminal, and what you see is not filtered",
        );
    }
    let raw = match has_terminal.then(RawTerminal::set).transpose() {
        Ok(raw) => raw,
        Err(error) => {
            let text = format!("error: cannot change the mode of this terminal: {error}");
            streams.err.line(&text);
            return Exit::CannotStart;
        }
    };
    let (writer, reader) = socket.split();
    // Dropping it closes the socket, which ends the command.
    let input = AbortOnDropHandle::new(tokio::spawn(send_input(writer, has_terminal)));
    let ending = tokio::select! {
        ending = receive_output(reader) => Ok(ending),
        signal = signals.next() => Err(signal.exit()),
    };
    drop((input, raw));
    match ending {
        Ok(Ending::Code(code)) => Exit::Command(u8::try_from(code).unwrap_or(u8::MAX)),
        Ok(Ending::NoReader) => Exit::Command(NO_READER),
        Ok(Ending::Lost(why)) => {
            let why = escape_for_display(&why, DETAIL);
            streams
                .err
                .line(&format!("error: the command was ended: {why}"));
            Exit::Command(LOST)
        }
        Err(exit) => exit,
    }
}

/// Has the command started.
async fn open(
    state: &Path,
    target: &ExecTarget,
    command: &[String],
    has_terminal: bool,
) -> Result<Socket, ClientError> {
    let encode = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
    let (slot, session) = match target {
        ExecTarget::Slot(slot) => (slot.to_string(), None),
        ExecTarget::Session(session) => {
            let path = format!("/api/v1/sessions/{}", encode(session.as_str()));
            let view = request_json(state, Method::GET, &path, None).await?;
            let slot = view["slot"]
                .as_str()
                .and_then(|slot| SlotId::parse(slot).ok());
            let slot = slot.ok_or_else(|| ClientError::Lost("it names no slot".to_owned()))?;
            (slot.to_string(), Some(session))
        }
    };
    let mut query = vec![("command", json!(command).to_string())];
    query.extend(session.map(|session| ("session", session.to_string())));
    if has_terminal {
        let term = std::env::var("TERM").ok().filter(|term| !term.is_empty());
        query.push(("term", term.unwrap_or_else(|| "dumb".to_owned())));
        if let Some((rows, columns)) = terminal_size() {
            query.push(("rows", rows.to_string()));
            query.push(("columns", columns.to_string()));
        }
    }
    let query = query
        .iter()
        .map(|(key, value)| format!("{key}={}", encode(value)));
    let query = query.collect::<Vec<_>>().join("&");
    let path = format!("/api/v1/slots/{slot}/exec?{query}");
    web_socket(state, &path).await
}

/// The height and width of this terminal, if they are known.
fn terminal_size() -> Option<(u16, u16)> {
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok()?;
    (size.ws_row > 0 && size.ws_col > 0).then_some((size.ws_row, size.ws_col))
}

/// Sends the input, and the terminal's size when it changes.
async fn send_input(mut writer: SplitSink<Socket, Message>, has_terminal: bool) {
    let Ok(mut resized) = signal(SignalKind::window_change()) else {
        return;
    };
    let mut input = Some(read_chunks(io::stdin()));
    loop {
        let sent = tokio::select! {
            chunk = next_chunk(&mut input), if input.is_some() => {
                if let Some(bytes) = chunk {
                    send_bytes(&mut writer, &bytes).await
                } else {
                    input = None;
                    send_message(&mut writer, &ExecClientMessage::Eof {}).await
                }
            },
            Some(()) = resized.recv(), if has_terminal => match terminal_size() {
                Some((rows, columns)) => {
                    send_message(&mut writer, &ExecClientMessage::Resize { rows, columns }).await
                }
                None => Ok(()),
            },
            else => return std::future::pending().await,
        };
        if sent.is_err() {
            // The reader reports why.
            return std::future::pending().await;
        }
    }
}

async fn next_chunk(input: &mut Option<mpsc::Receiver<Vec<u8>>>) -> Option<Vec<u8>> {
    input.as_mut()?.recv().await
}

async fn send_bytes(
    writer: &mut SplitSink<Socket, Message>,
    bytes: &[u8],
) -> Result<(), tokio_tungstenite::tungstenite::Error> {
    for chunk in bytes.chunks(CLIENT_MESSAGE_BYTES) {
        writer.send(Message::Binary(chunk.to_vec().into())).await?;
    }
    Ok(())
}

async fn send_message(
    writer: &mut SplitSink<Socket, Message>,
    message: &ExecClientMessage,
) -> Result<(), tokio_tungstenite::tungstenite::Error> {
    let text = json!(message).to_string();
    writer.send(Message::Text(text.into())).await
}

/// Writes the output of the command to its end.
async fn receive_output(mut reader: SplitStream<Socket>) -> Ending {
    let (chunks, coming) = mpsc::channel(1);
    let (done, written) = oneshot::channel();
    thread::spawn(move || done.send(write_output(coming)));
    let ending = loop {
        let message = match reader.next().await {
            Some(Ok(message)) => message,
            None => break Ending::Lost("the supervisor closed the connection".to_owned()),
            Some(Err(error)) => break Ending::Lost(format!("the connection failed: {error}")),
        };
        match message {
            Message::Binary(bytes) => {
                if chunks.send(bytes).await.is_err() {
                    return Ending::NoReader;
                }
            }
            Message::Text(text) => match serde_json::from_str(&text) {
                Ok(ExecServerMessage::Started { .. }) => {}
                Ok(ExecServerMessage::Exited { code }) => break Ending::Code(code),
                Ok(ExecServerMessage::Ended { detail }) => break Ending::Lost(detail),
                Err(error) => break Ending::Lost(format!("a message is invalid: {error}")),
            },
            Message::Close(_) => {
                break Ending::Lost("the supervisor closed the connection".to_owned());
            }
            Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => {}
        }
    };
    drop(chunks);
    match written.await {
        Ok(Ok(())) => ending,
        _ => Ending::NoReader,
    }
}

/// Writes output until the channel ends. On its own thread: a write may block for as long as nobody
/// reads.
fn write_output(mut coming: mpsc::Receiver<axum::body::Bytes>) -> io::Result<()> {
    let (mut out, mut err) = (io::stdout(), io::stderr());
    while let Some(message) = coming.blocking_recv() {
        match message.split_first() {
            Some((&STDOUT, bytes)) => out.write_all(bytes).and_then(|()| out.flush())?,
            Some((&STDERR, bytes)) => err.write_all(bytes)?,
            _ => {}
        }
    }
    Ok(())
}

/// The terminal passes every key on until this is dropped, also by a panic.
pub(super) struct RawTerminal(Termios);

impl RawTerminal {
    pub(super) fn set() -> io::Result<Self> {
        let before = rustix::termios::tcgetattr(io::stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        rustix::termios::tcsetattr(io::stdin(), OptionalActions::Drain, &raw)?;
        Ok(Self(before))
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        // Not after the output: one that is stopped by flow control would block for ever.
        let _ = rustix::termios::tcsetattr(io::stdin(), OptionalActions::Now, &self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_a_slot_or_a_session() {
        let slot = SlotId::parse("demo/0").expect("a slot");
        assert_eq!(ExecTarget::parse("demo/0"), Ok(ExecTarget::Slot(slot)));
        let session = SessionId::new("9c813068").expect("an id");
        let target = ExecTarget::parse("9c813068");
        assert_eq!(target, Ok(ExecTarget::Session(session)));
        for bad in ["", "demo/", "demo/x", "a b"] {
            assert!(ExecTarget::parse(bad).is_err(), "{bad:?}");
        }
    }
}
