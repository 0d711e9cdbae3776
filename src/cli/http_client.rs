//! Requests to the HTTP API of a supervisor, over the socket in its state directory.
//!
//! Sends single requests, reads streams of events and opens WebSockets. Only the supervisor's user
//! and root may connect to the socket, so no token is sent. Must not know what a request means.

use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;

use axum::body::{self, Body};
use axum::http::{Method, Request, StatusCode, header};
use hyper::body::{Body as _, Incoming};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::client::generate_key;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};

use super::exit::Exit;
use super::streams::Streams;
use marshal_engine::api::http::SOCKET;
use marshal_engine::api::unix_socket::connect;
use marshal_model::limits;
use marshal_model::untrusted::escape_for_display;

/// Columns shown of an error message of the supervisor.
const SENTENCE: usize = 1000;

/// Why a request to a supervisor failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No supervisor answers on the socket.
    #[error("no supervisor answers at {}: {source}; start one with `marshal up`, or check the state directory", .path.display())]
    NoSupervisor {
        /// The state directory.
        path: PathBuf,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
    /// No permission to use the socket.
    #[error("the supervisor at {} belongs to another user; run this as that user or as root", .0.display())]
    NotPermitted(PathBuf),
    /// The supervisor refused the request.
    #[error("{}", escape_for_display(detail, SENTENCE))]
    Refused {
        /// The status of the response.
        status: StatusCode,
        /// The code of the problem.
        code: String,
        /// The supervisor's message.
        detail: String,
    },
    /// The connection ended, or an answer was not valid.
    #[error("the connection to the supervisor failed: {0}; see its log")]
    Lost(String),
    /// The supervisor stops.
    #[error("the supervisor is stopping")]
    Stopping,
    /// The request cannot be written, and why.
    #[error("{0}")]
    Unsendable(String),
}

impl ClientError {
    /// Whether a later try may succeed. Only for requests that read, or that have an idempotency
    /// key.
    pub(super) fn is_retryable(&self) -> bool {
        match self {
            Self::NoSupervisor { .. } | Self::Lost(_) | Self::Stopping => true,
            Self::NotPermitted(_) | Self::Unsendable(_) => false,
            Self::Refused { status, .. } => *status == StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// Prints the error, whose text is safe to show, and returns the exit code.
    pub(super) fn report(&self, streams: &mut Streams) -> Exit {
        streams.err.line(&format!("error: {self}"));
        self.exit()
    }

    /// The exit code for this error.
    #[must_use]
    pub fn exit(&self) -> Exit {
        match self {
            Self::NoSupervisor { .. } | Self::Lost(_) | Self::Stopping => Exit::NoDaemon,
            Self::NotPermitted(_) => Exit::NotPermitted,
            Self::Unsendable(_) => Exit::Usage,
            Self::Refused { status, code, .. } => match (status.as_u16(), code.as_str()) {
                (_, "stopping" | "no_daemon") => Exit::NoDaemon,
                (401 | 403, _) => Exit::NotPermitted,
                (400 | 404 | 413 | 422, _) => Exit::Usage,
                (429 | 503, _) => Exit::CannotStart,
                _ => Exit::Failures,
            },
        }
    }
}

fn lost(error: impl std::fmt::Display) -> ClientError {
    ClientError::Lost(error.to_string())
}

/// Sends one request; the answer is JSON, or null if it has no body.
///
/// # Errors
/// [`ClientError`]
pub(super) async fn request_json(
    state: &Path,
    method: Method,
    path: &str,
    body: Option<&Value>,
) -> Result<Value, ClientError> {
    let answer = send(state, method, path, body, None).await?;
    read(answer).await
}

/// Posts a request with an idempotency key: the daemon runs it only once, even if it is sent again.
///
/// # Errors
/// [`ClientError`]
pub(super) async fn post_idempotent(
    state: &Path,
    path: &str,
    key: &str,
    body: &Value,
) -> Result<Value, ClientError> {
    let head = Some(("idempotency-key", key));
    read(send(state, Method::POST, path, Some(body), head).await?).await
}

async fn read(answer: Incoming) -> Result<Value, ClientError> {
    let bytes = body::to_bytes(Body::new(answer), limits::CLIENT_EVENT_BYTES)
        .await
        .map_err(lost)?;
    if bytes.is_empty() {
        return Ok(Value::Null);
    }
    serde_json::from_slice(&bytes).map_err(lost)
}

/// Opens a stream of server-sent events, after the event `last`.
///
/// # Errors
/// [`ClientError`]
pub(super) async fn stream(
    state: &Path,
    path: &str,
    last: Option<&str>,
) -> Result<EventStream, ClientError> {
    let head = last.map(|last| ("last-event-id", last));
    let body = send(state, Method::GET, path, None, head).await?;
    Ok(EventStream {
        body,
        buffer: Vec::new(),
    })
}

/// Opens a WebSocket.
///
/// # Errors
/// [`ClientError`]
pub(super) async fn web_socket(
    state: &Path,
    path: &str,
) -> Result<WebSocketStream<TokioIo<Upgraded>>, ClientError> {
    let key = generate_key();
    let heads = [
        ("connection", "upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", &key),
    ];
    let response = respond(state, Method::GET, path, None, &heads).await?;
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Err(refusal(response).await);
    }
    let upgraded = hyper::upgrade::on(response).await.map_err(lost)?;
    let config = WebSocketConfig::default()
        .max_message_size(Some(limits::CLIENT_EVENT_BYTES))
        .max_frame_size(Some(limits::CLIENT_EVENT_BYTES));
    let (io, role) = (TokioIo::new(upgraded), Role::Client);
    Ok(WebSocketStream::from_raw_socket(io, role, Some(config)).await)
}

async fn send(
    state: &Path,
    method: Method,
    path: &str,
    body: Option<&Value>,
    head: Option<(&str, &str)>,
) -> Result<Incoming, ClientError> {
    let heads: Vec<_> = head.into_iter().collect();
    let response = respond(state, method, path, body, &heads).await?;
    if response.status().is_success() {
        return Ok(response.into_body());
    }
    Err(refusal(response).await)
}

async fn respond(
    state: &Path,
    method: Method,
    path: &str,
    body: Option<&Value>,
    heads: &[(&str, &str)],
) -> Result<hyper::Response<Incoming>, ClientError> {
    let stream = connect(state, SOCKET).await.map_err(|source| {
        let path = state.to_owned();
        if source.kind() == io::ErrorKind::PermissionDenied {
            ClientError::NotPermitted(path)
        } else {
            ClientError::NoSupervisor { path, source }
        }
    })?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(lost)?;
    tokio::spawn(connection.with_upgrades());
    let mut request = Request::builder()
        .method(method)
        .uri(path)
        .header(header::HOST, "localhost");
    for (name, value) in heads {
        request = request.header(*name, *value);
    }
    if body.is_some() {
        request = request.header(header::CONTENT_TYPE, "application/json");
    }
    let body = body.map_or_else(Body::empty, |body| Body::from(body.to_string()));
    let request = request.body(body).map_err(lost)?;
    sender.send_request(request).await.map_err(lost)
}

/// Reads why a request was refused.
async fn refusal(response: hyper::Response<Incoming>) -> ClientError {
    let status = response.status();
    let body = Body::new(response.into_body());
    let bytes = body::to_bytes(body, limits::CLIENT_EVENT_BYTES).await;
    let problem = serde_json::from_slice::<Value>(&bytes.unwrap_or_default()).unwrap_or_default();
    let text = |key: &str| problem.get(key).and_then(Value::as_str).map(str::to_owned);
    ClientError::Refused {
        status,
        code: text("code").unwrap_or_default(),
        detail: text("detail").unwrap_or_else(|| status.to_string()),
    }
}

/// A stream of server-sent events.
#[derive(Debug)]
pub(super) struct EventStream {
    body: Incoming,
    buffer: Vec<u8>,
}

/// An event: its id, if it has one, its name and its data.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ServerSentEvent {
    pub(super) id: Option<String>,
    pub(super) name: String,
    pub(super) data: String,
}

impl EventStream {
    /// The next event; `None` at the end of the stream.
    ///
    /// # Errors
    /// [`ClientError`], also for an event that is longer than any valid one.
    pub(super) async fn next(&mut self) -> Result<Option<ServerSentEvent>, ClientError> {
        loop {
            if let Some(event) = cut(&mut self.buffer) {
                if event.data.is_empty() {
                    continue;
                }
                return Ok(Some(event));
            }
            if self.buffer.len() > limits::CLIENT_EVENT_BYTES {
                return Err(lost("an event is too long"));
            }
            let frame = std::future::poll_fn(|cx| Pin::new(&mut self.body).poll_frame(cx));
            match frame.await {
                None => return Ok(None),
                Some(Err(error)) => return Err(lost(error)),
                Some(Ok(frame)) => {
                    if let Some(data) = frame.data_ref() {
                        self.buffer.extend_from_slice(data);
                    }
                }
            }
        }
    }
}

/// Removes a complete event from the front of the buffer. Comments and retry hints have no data.
fn cut(buffer: &mut Vec<u8>) -> Option<ServerSentEvent> {
    let end = buffer.windows(2).position(|two| two == b"\n\n")?;
    let text: Vec<u8> = buffer.drain(..end + 2).collect();
    let text = String::from_utf8_lossy(&text);
    let mut event = ServerSentEvent {
        id: None,
        name: String::new(),
        data: String::new(),
    };
    for line in text.lines() {
        if let Some(id) = line.strip_prefix("id: ") {
            event.id = Some(id.to_owned());
        } else if let Some(name) = line.strip_prefix("event: ") {
            name.clone_into(&mut event.name);
        } else if let Some(data) = line.strip_prefix("data: ") {
            event.data.push_str(data);
        }
    }
    Some(event)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_cut_wherever_the_pieces_end() {
        let text = b"retry: 1000\n\nid: 1-2\nevent: chunk\ndata: {\"a\":1}\n\n: nothing new\n\nid: 1-3\ndata: {}\n\n";
        for step in 1..text.len() {
            let mut buffer = Vec::new();
            let mut found = Vec::new();
            for piece in text.chunks(step) {
                buffer.extend_from_slice(piece);
                while let Some(event) = cut(&mut buffer) {
                    found.extend(Some(event).filter(|event| !event.data.is_empty()));
                }
            }
            let ids: Vec<_> = found.iter().map(|event| event.id.as_deref()).collect();
            assert_eq!(ids, [Some("1-2"), Some("1-3")], "{step}");
            assert_eq!(found[0].data, "{\"a\":1}");
            assert!(buffer.is_empty());
        }
    }
}
