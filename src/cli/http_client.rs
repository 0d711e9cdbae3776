//! The client of the daemon's HTTP socket in its state directory.
//!
//! Sends single requests and reads streams of events. Only the owner may connect to the socket, so
//! no token is sent. Must not know what a request means.

use std::io;
use std::path::Path;
use std::pin::Pin;

use axum::body::{self, Body};
use axum::http::{Method, Request, StatusCode, header};
use hyper::body::{Body as _, Incoming};
use hyper_util::rt::TokioIo;
use serde_json::Value;

use super::control_client::{ClientError, report_error};
use super::exit::Exit;
use super::streams::Streams;
use marshal_engine::api::control::connect_as;
use marshal_engine::api::http::SOCKET;
use marshal_model::limits;
use marshal_model::untrusted::escape_for_display;

/// Columns shown of an error message of the daemon.
const SENTENCE: usize = 600;

/// Why a request failed.
#[derive(Debug)]
pub(super) enum HttpError {
    /// The daemon cannot be reached, or the connection failed.
    Client(ClientError),
    /// The daemon refused the request.
    Refused {
        /// The status of the response.
        status: StatusCode,
        /// The daemon's message.
        detail: String,
    },
}

impl HttpError {
    /// Whether a later try may succeed. Only for requests that read, or that have an idempotency
    /// key.
    pub(super) fn is_retryable(&self) -> bool {
        match self {
            Self::Client(ClientError::NoSupervisor { .. } | ClientError::Lost(_)) => true,
            Self::Client(_) => false,
            Self::Refused { status, .. } => *status == StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// Prints the error, and returns the exit code.
    pub(super) fn report(&self, streams: &mut Streams) -> Exit {
        match self {
            Self::Client(error) => report_error(error, streams),
            Self::Refused { status, detail } => {
                streams
                    .err
                    .line(&format!("error: {}", escape_for_display(detail, SENTENCE)));
                match status.as_u16() {
                    401 | 403 => Exit::NotPermitted,
                    400 | 404 | 413 | 422 => Exit::Usage,
                    _ => Exit::Failures,
                }
            }
        }
    }
}

fn lost(error: impl std::fmt::Display) -> HttpError {
    HttpError::Client(ClientError::Lost(error.to_string()))
}

/// Sends one request; the answer is JSON, or null if it has no body.
///
/// # Errors
/// [`HttpError`]
pub(super) async fn request_json(
    state: &Path,
    method: Method,
    path: &str,
    body: Option<&Value>,
) -> Result<Value, HttpError> {
    let answer = send(state, method, path, body, None).await?;
    read(answer).await
}

/// Posts a request with an idempotency key: the daemon runs it only once, even if it is sent again.
///
/// # Errors
/// [`HttpError`]
pub(super) async fn post_idempotent(
    state: &Path,
    path: &str,
    key: &str,
    body: &Value,
) -> Result<Value, HttpError> {
    let head = Some(("idempotency-key", key));
    read(send(state, Method::POST, path, Some(body), head).await?).await
}

async fn read(answer: Incoming) -> Result<Value, HttpError> {
    let bytes = body::to_bytes(Body::new(answer), limits::CONTROL_EVENT_LINE_BYTES);
    let bytes = bytes.await.map_err(lost)?;
    if bytes.is_empty() {
        return Ok(Value::Null);
    }
    serde_json::from_slice(&bytes).map_err(lost)
}

/// Opens a stream of server-sent events, after the event `last`.
///
/// # Errors
/// [`HttpError`]
pub(super) async fn stream(
    state: &Path,
    path: &str,
    last: Option<&str>,
) -> Result<EventStream, HttpError> {
    let head = last.map(|last| ("last-event-id", last));
    let body = send(state, Method::GET, path, None, head).await?;
    Ok(EventStream {
        body,
        buffer: Vec::new(),
    })
}

async fn send(
    state: &Path,
    method: Method,
    path: &str,
    body: Option<&Value>,
    head: Option<(&str, &str)>,
) -> Result<Incoming, HttpError> {
    let stream = connect_as(state, SOCKET).await.map_err(|source| {
        let path = state.to_owned();
        HttpError::Client(if source.kind() == io::ErrorKind::PermissionDenied {
            ClientError::NotPermitted(path)
        } else {
            ClientError::NoSupervisor { path, source }
        })
    })?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(lost)?;
    tokio::spawn(connection);
    let mut request = Request::builder()
        .method(method)
        .uri(path)
        .header(header::HOST, "localhost");
    if let Some((name, value)) = head {
        request = request.header(name, value);
    }
    if body.is_some() {
        request = request.header(header::CONTENT_TYPE, "application/json");
    }
    let body = body.map_or_else(Body::empty, |body| Body::from(body.to_string()));
    let answer = sender.send_request(request.body(body).map_err(lost)?);
    let answer = answer.await.map_err(lost)?;
    let status = answer.status();
    let body = answer.into_body();
    if status.is_success() {
        return Ok(body);
    }
    let bytes = body::to_bytes(Body::new(body), limits::CONTROL_EVENT_LINE_BYTES).await;
    let problem = serde_json::from_slice::<Value>(&bytes.unwrap_or_default()).unwrap_or_default();
    let detail = problem.get("detail").and_then(Value::as_str);
    Err(HttpError::Refused {
        status,
        detail: detail.map_or_else(|| status.to_string(), str::to_owned),
    })
}

/// A stream of server-sent events.
pub(super) struct EventStream {
    body: Incoming,
    buffer: Vec<u8>,
}

/// An event: its id, if it has one, and its data.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ServerSentEvent {
    pub(super) id: Option<String>,
    pub(super) data: String,
}

impl EventStream {
    /// The next event; `None` at the end of the stream.
    ///
    /// # Errors
    /// [`HttpError`], also for an event that is longer than any valid one.
    pub(super) async fn next(&mut self) -> Result<Option<ServerSentEvent>, HttpError> {
        loop {
            if let Some(event) = cut(&mut self.buffer) {
                if event.data.is_empty() {
                    continue;
                }
                return Ok(Some(event));
            }
            if self.buffer.len() > limits::CONTROL_EVENT_LINE_BYTES {
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
        data: String::new(),
    };
    for line in text.lines() {
        if let Some(id) = line.strip_prefix("id: ") {
            event.id = Some(id.to_owned());
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
