//! The event streams over a WebSocket: each event is one text message, `{"id", "type", "data"}`.
//!
//! Owns how a stream of server-sent events becomes messages, the pings, and the close code.
//! Permits, cursors and the maximum age are those of the stream itself, and a client that does not
//! read is disconnected in the same way. Must not know what an event means.

use axum::body::{Body, Bytes};
use axum::extract::FromRequestParts as _;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade, close_code};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse as _, Response};
use serde_json::value::RawValue;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::approval_events::ChannelBody;
use super::http::ConnectionHandle;
use marshal_model::limits;

/// The subprotocol of these messages; the server confirms it to a client that offers it.
const PROTOCOL: &str = "marshal.events.v1";
/// The prefix of a subprotocol that carries a token in base64url. Browsers cannot send the header
/// `Authorization` with a WebSocket, so they offer the token like this.
const BEARER: &str = "base64url.bearer.authorization.marshal.";
/// The maximum size of a client's message in bytes. Clients send no data, but pings may carry some.
const MESSAGE_BYTES: usize = 4096;
/// The number of unanswered pings after which a client counts as gone.
const MAX_MISSED_PONGS: u32 = 3;
/// How long the client may take for the closing handshake.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(500);

/// A request to upgrade to a WebSocket.
pub(super) struct UpgradeRequest {
    upgrade: WebSocketUpgrade,
    connection: ConnectionHandle,
}

/// Whether a request asks for an upgrade.
pub(super) fn is_upgrade(headers: &HeaderMap) -> bool {
    let of = headers.get_all(header::UPGRADE).iter();
    let mut words = of
        .filter_map(|value| value.to_str().ok())
        .flat_map(|text| text.split(','));
    words.any(|word| word.trim().eq_ignore_ascii_case("websocket"))
}

/// Returns the token among the subprotocols that a request offers.
pub(super) fn bearer_subprotocol(headers: &HeaderMap) -> Option<String> {
    if !is_upgrade(headers) {
        return None;
    }
    let offered = headers.get_all(header::SEC_WEBSOCKET_PROTOCOL).iter();
    let words = offered
        .filter_map(|value| value.to_str().ok())
        .flat_map(|text| text.split(','));
    let mut tokens = words.filter_map(|word| word.trim().strip_prefix(BEARER));
    let (Some(token), None) = (tokens.next(), tokens.next()) else {
        return None;
    };
    String::from_utf8(decode_base64url(token)?).ok()
}

/// Decodes base64url, with or without padding; `None` for anything else.
fn decode_base64url(text: &str) -> Option<Vec<u8>> {
    let text = text.trim_end_matches('=');
    let mut bytes = Vec::with_capacity(text.len() * 3 / 4);
    let (mut buffered, mut bits) = (0_u32, 0_u32);
    for byte in text.bytes() {
        let six = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'-' => 62,
            b'_' => 63,
            _ => return None,
        };
        buffered = buffered << 6 | u32::from(six);
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            bytes.push(u8::try_from(buffered >> bits & 0xff).ok()?);
            buffered &= (1 << bits) - 1;
        }
    }
    // The leftover bits are less than a byte, and must be zero.
    (bits < 6 && buffered == 0).then_some(bytes)
}

/// Why an upgrade is invalid.
#[derive(Debug, thiserror::Error)]
pub(super) enum UpgradeError {
    /// The request's headers are no upgrade.
    #[error("the WebSocket upgrade failed: {}", .0.body_text())]
    Rejected(#[from] WebSocketUpgradeRejection),
    /// The listener cannot hand over its connections.
    #[error("this connection does not support WebSocket")]
    Unsupported,
}

impl UpgradeRequest {
    /// Returns the upgrade of a request for a stream; `None` if it wants server-sent events.
    ///
    /// # Errors
    /// [`UpgradeError`]
    pub(super) async fn from_parts(parts: &mut Parts) -> Result<Option<Self>, UpgradeError> {
        if !is_upgrade(&parts.headers) {
            return Ok(None);
        }
        let upgrade = WebSocketUpgrade::from_request_parts(parts, &()).await?;
        let handle = parts
            .extensions
            .get()
            .cloned()
            .ok_or(UpgradeError::Unsupported)?;
        Ok(Some(Self {
            upgrade,
            connection: handle,
        }))
    }
}

impl UpgradeRequest {
    /// Accepts the upgrade for messages of both sides, of at most this many bytes each.
    pub(super) fn accept<R>(
        self,
        most: usize,
        serve: impl FnOnce(WebSocket, ConnectionHandle) -> R + Send + 'static,
    ) -> Response
    where
        R: Future<Output = ()> + Send + 'static,
    {
        let upgrade = self.upgrade.max_message_size(most).max_frame_size(most);
        upgrade.on_upgrade(move |socket| serve(socket, self.connection))
    }
}

/// Responds with server-sent events, or with WebSocket messages.
pub(super) fn respond(
    messages: mpsc::Receiver<Bytes>,
    wanted: Option<UpgradeRequest>,
    stop: CancellationToken,
    until: Instant,
) -> Response {
    if let Some(UpgradeRequest {
        upgrade,
        connection,
    }) = wanted
    {
        return upgrade
            .protocols([PROTOCOL])
            .max_message_size(MESSAGE_BYTES)
            .max_frame_size(MESSAGE_BYTES)
            .on_upgrade(move |socket| async move {
                let line = SocketSession {
                    socket,
                    stop,
                    deadline: until,
                    missed_pongs: 0,
                };
                line.run(messages, connection).await;
            });
    }
    let mut response = Body::new(ChannelBody(messages)).into_response();
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

/// What a chunk of a stream means for the WebSocket.
#[derive(Debug, PartialEq, Eq)]
enum StreamPiece {
    Event(String),
    /// A keepalive.
    Keepalive,
    /// The end of the stream, with its reason.
    End(String),
}

/// Parses the events of a chunk; a chunk always has whole events.
fn parse_chunk(piece: &[u8]) -> Vec<StreamPiece> {
    let text = String::from_utf8_lossy(piece);
    let blocks = text.split("\n\n").filter(|block| !block.is_empty());
    blocks.filter_map(parse_block).collect()
}

fn parse_block(block: &str) -> Option<StreamPiece> {
    let (mut id, mut name, mut data) = (None, "", None);
    for line in block.lines() {
        if let Some(text) = line.strip_prefix("id: ") {
            id = Some(text);
        } else if let Some(text) = line.strip_prefix("event: ") {
            name = text;
        } else if let Some(text) = line.strip_prefix("data: ") {
            data = Some(text);
        } else if line.starts_with(": nothing") {
            return Some(StreamPiece::Keepalive);
        }
    }
    let data: &RawValue = serde_json::from_str(data?).ok()?;
    if name == "end" && id.is_none() {
        let end: serde_json::Value = serde_json::from_str(data.get()).ok()?;
        let why = end.get("why").and_then(serde_json::Value::as_str);
        return Some(StreamPiece::End(why.unwrap_or_default().to_owned()));
    }
    let (id, name) = (serde_json::to_string(&id), serde_json::to_string(name));
    let (id, name) = (id.ok()?, name.ok()?);
    Some(StreamPiece::Event(format!(
        r#"{{"id":{id},"type":{name},"data":{data}}}"#
    )))
}

/// An open WebSocket.
struct SocketSession {
    socket: WebSocket,
    stop: CancellationToken,
    deadline: Instant,
    missed_pongs: u32,
}

/// The result of a step.
enum Step {
    Continue,
    /// The client closed the WebSocket.
    ClientClosed,
    /// The client disconnected or does not read.
    Gone,
    /// Close the WebSocket with this code and reason.
    Close(u16, &'static str),
}

impl SocketSession {
    /// Forwards messages until the stream ends, the client disconnects, or the server stops.
    async fn run(mut self, mut messages: mpsc::Receiver<Bytes>, connection: ConnectionHandle) {
        let step = {
            let mut closed = std::pin::pin!(connection.wait_closed());
            loop {
                let step = tokio::select! {
                    is_outdated = closed.as_mut() => if is_outdated {
                        Step::Close(close_code::POLICY, "replaced: the token or the certificate")
                    } else {
                        Step::Close(close_code::AWAY, "stopping")
                    },
                    came = self.socket.recv() => self.handle_message(came.as_ref()),
                    piece = messages.recv() => match piece {
                        Some(piece) => tokio::select! {
                            step = self.send_chunk(&piece) => step,
                            _ = closed.as_mut() => Step::Gone,
                        },
                        None => self.closing_step(),
                    },
                };
                if !matches!(step, Step::Continue) {
                    break step;
                }
            }
        };
        // This tells the producer of the stream to stop.
        drop(messages);
        let goodbye = async {
            match step {
                Step::Close(code, reason) => {
                    let reason = reason.into();
                    let close = Message::Close(Some(CloseFrame { code, reason }));
                    if self.socket.send(close).await.is_err() {
                        return;
                    }
                }
                Step::ClientClosed => {}
                Step::Continue | Step::Gone => return,
            }
            // Wait for the client's close frame; otherwise the last messages could be lost.
            while let Some(Ok(_)) = self.socket.recv().await {}
        };
        let _ = timeout(CLOSE_TIMEOUT, goodbye).await;
        drop(connection);
    }

    fn handle_message(&mut self, came: Option<&Result<Message, axum::Error>>) -> Step {
        match came {
            None | Some(Err(_)) => Step::Gone,
            Some(Ok(Message::Close(_))) => Step::ClientClosed,
            Some(Ok(Message::Pong(_))) => {
                self.missed_pongs = 0;
                Step::Continue
            }
            // The library sends the pong.
            Some(Ok(Message::Ping(_))) => Step::Continue,
            Some(Ok(Message::Text(_) | Message::Binary(_))) => {
                Step::Close(close_code::POLICY, "this stream accepts no messages")
            }
        }
    }

    async fn send_chunk(&mut self, piece: &[u8]) -> Step {
        for frame in parse_chunk(piece) {
            let message = match frame {
                StreamPiece::Event(text) => Message::Text(text.into()),
                StreamPiece::End(why) => {
                    return match why.as_str() {
                        "complete" => Step::Close(close_code::NORMAL, "complete"),
                        _ => self.closing_step(),
                    };
                }
                StreamPiece::Keepalive if self.missed_pongs >= MAX_MISSED_PONGS => {
                    return Step::Gone;
                }
                StreamPiece::Keepalive => {
                    self.missed_pongs += 1;
                    Message::Ping(Bytes::new())
                }
            };
            let sent = timeout(limits::CHAT_STREAM_WRITE_TIMEOUT, self.socket.send(message));
            if !matches!(sent.await, Ok(Ok(()))) {
                return Step::Gone;
            }
        }
        Step::Continue
    }

    /// Returns the close code for the end of the stream.
    fn closing_step(&self) -> Step {
        // A stream ends by itself shortly before its deadline.
        let margin = limits::CHAT_STREAM_MARGIN.max(limits::APPROVAL_STREAM_MARGIN);
        if self.stop.is_cancelled() {
            Step::Close(close_code::AWAY, "stopping: reconnect with the last id")
        } else if Instant::now() + 2 * margin >= self.deadline {
            Step::Close(close_code::RESTART, "old: reconnect with the last id")
        } else {
            Step::Close(close_code::ERROR, "failed: see the supervisor's log")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_become_messages() {
        let piece = b"retry: 1000\n\nid: 1-2\nevent: chunk\ndata: {\"a\": \"x\\n\"}\n\n: nothing new\n\nevent: queued\ndata: [1]\n\nevent: end\ndata: {\"why\":\"complete\"}\n\n";
        let event = |text: &str| StreamPiece::Event(text.to_owned());
        assert_eq!(
            parse_chunk(piece),
            [
                event(r#"{"id":"1-2","type":"chunk","data":{"a": "x\n"}}"#),
                StreamPiece::Keepalive,
                event(r#"{"id":null,"type":"queued","data":[1]}"#),
                StreamPiece::End("complete".to_owned()),
            ]
        );
    }

    #[test]
    fn a_token_is_taken_from_one_offered_subprotocol_of_a_web_socket() {
        let of = |upgrade: Option<&'static str>, offered: &str| {
            let mut headers = HeaderMap::new();
            if let Some(upgrade) = upgrade {
                headers.insert(header::UPGRADE, HeaderValue::from_static(upgrade));
            }
            let offered = HeaderValue::from_str(offered).expect("a header");
            headers.insert(header::SEC_WEBSOCKET_PROTOCOL, offered);
            bearer_subprotocol(&headers)
        };
        let websocket = Some("WebSocket");
        let offered = format!("{PROTOCOL}, {BEARER}YSsvPT1i");
        assert_eq!(of(websocket, &offered).as_deref(), Some("a+/==b"));
        assert_eq!(of(None, &offered), None, "it is no WebSocket");
        assert_eq!(of(Some("h2c"), &offered), None);
        assert_eq!(of(websocket, PROTOCOL), None);
        for bad in ["!", "A", "QR", "_w", "YQ=a"] {
            assert_eq!(of(websocket, &format!("{BEARER}{bad}")), None, "{bad}");
        }
        let twice = format!("{BEARER}YWI, {BEARER}YWI");
        assert_eq!(of(websocket, &twice), None);
        assert_eq!(decode_base64url("YWI="), Some(b"ab".to_vec()));
    }
}
