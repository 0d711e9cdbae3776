//! The HTTP side: connections and their limits, the key, pauses, failures, pieces of a stream.
//!
//! Must not know scripts or providers: `answer` decides what to write.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use hyper::body::Frame;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};

use super::answer::{self, Answer, Endpoint};
use super::script::{Failure, LONGEST, Signal};
use super::scripts::Scripts;
use marshal_model::limits;
use marshal_model::untrusted;

/// The maximum number of open connections; further ones wait to be accepted.
const CONNECTIONS: usize = 1024;

/// The maximum size of a request's body, in bytes: a long conversation with its tools.
const BODY_BYTES: usize = 64 << 20;

/// The maximum number of prompts whose failures are counted; beyond it, counting begins again.
const MAX_COUNTED_PROMPTS: usize = 4096;

/// The maximum number of remembered signals.
const MAX_SIGNALS: usize = 4096;

/// Headers that providers use for their key.
const KEY_HEADERS: &[&str] = &["authorization", "x-api-key", "x-goog-api-key", "api-key"];

/// The state that all connections share.
#[derive(Debug)]
pub(super) struct Server {
    key: Option<String>,
    logs_requests: bool,
    scripts: Scripts,
    /// How often each failure was sent, by its prompt and its position in that.
    failure_counts: Mutex<HashMap<(u64, usize), u32>>,
    /// The signals that scripts have sent.
    signals: watch::Sender<BTreeSet<String>>,
}

impl Server {
    /// A server. With `logs_requests`, each request is logged on stderr.
    pub(super) fn new(key: Option<String>, logs_requests: bool, scripts: Scripts) -> Arc<Self> {
        Arc::new(Self {
            key,
            logs_requests,
            scripts,
            failure_counts: Mutex::default(),
            signals: watch::Sender::default(),
        })
    }

    fn has_key(&self, headers: &HeaderMap, query: &str) -> bool {
        let Some(key) = &self.key else {
            return true;
        };
        let holds = |value: &HeaderValue| {
            let value = value.to_str().unwrap_or_default();
            value.strip_prefix("Bearer ").unwrap_or(value) == key
        };
        let mut given = KEY_HEADERS.iter().filter_map(|name| headers.get(*name));
        given.any(holds)
            || query
                .split('&')
                .any(|word| word.strip_prefix("key=") == Some(key))
    }

    /// The first failure that has not been sent often enough.
    fn next_failure(&self, answer: &Answer) -> Option<Failure> {
        let mut failed = self
            .failure_counts
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if failed.len() > MAX_COUNTED_PROMPTS {
            failed.clear();
        }
        let mut failures = answer.turn.failures.iter().enumerate();
        let found = failures.find(|(at, failure)| {
            let Some(times) = failure.times else {
                return true;
            };
            let count = failed.entry((answer.key, *at)).or_default();
            *count += 1;
            *count <= times
        });
        found.map(|(_, failure)| *failure)
    }

    /// Waits for a signal, or sends one.
    async fn handle_signal(&self, sign: &Signal) {
        match sign {
            Signal::Wait(word) => {
                let mut signs = self.signals.subscribe();
                let sent = signs.wait_for(|sent| sent.contains(word));
                // After the maximum wait the conversation continues.
                let _ = tokio::time::timeout(LONGEST, sent).await;
            }
            Signal::Send(word) => self.signals.send_modify(|sent| {
                if sent.len() >= MAX_SIGNALS {
                    sent.pop_first();
                }
                sent.insert(word.clone());
            }),
        }
    }

    fn log_request(&self, method: &Method, path: &str, status: StatusCode, note: &str) {
        use std::io::Write as _;
        if self.logs_requests {
            let path = untrusted::escape_for_display(path, 100);
            let status = status.as_u16();
            // Nobody may read stderr.
            drop(writeln!(io::stderr(), "{method} {path} {status} {note}"));
        }
    }
}

/// Binds the address.
///
/// # Errors
/// The error of the system.
pub(super) async fn bind(address: SocketAddr) -> io::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind(address).await?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}

/// Serves for ever.
pub(super) async fn serve(listener: TcpListener, server: Arc<Server>) {
    let router = Router::new().fallback(handle).with_state(server);
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else {
            return;
        };
        let Ok((stream, _)) = listener.accept().await else {
            // Most often the process is out of descriptors, which passes.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let service = TowerToHyperService::new(router.clone());
        tokio::spawn(async move {
            let _ = stream.set_nodelay(true);
            let served = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(limits::HTTP_HEAD_TIMEOUT)
                .serve_connection(TokioIo::new(stream), service);
            // A disconnected client is no error.
            let _ = served.await;
            drop(place);
        });
    }
}

async fn handle(State(server): State<Arc<Server>>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let path = head.uri.path().to_owned();
    let query = head.uri.query().unwrap_or_default();
    let refuse = |endpoint: &Endpoint, status: StatusCode, message: &str| {
        server.log_request(&head.method, &path, status, message);
        json_response(status, &endpoint.error(status.as_u16(), message))
    };
    let is_post = head.method == Method::POST;
    if head.method == Method::HEAD {
        return StatusCode::OK.into_response();
    }
    let Some(endpoint) = Endpoint::from_request(is_post, &path, query) else {
        return refuse(&Endpoint::Chat, StatusCode::NOT_FOUND, "no such endpoint");
    };
    if !server.has_key(&head.headers, query) {
        return refuse(&endpoint, StatusCode::UNAUTHORIZED, "this is not the key");
    }
    let Ok(bytes) = to_bytes(body, BODY_BYTES).await else {
        return refuse(
            &endpoint,
            StatusCode::PAYLOAD_TOO_LARGE,
            "the body is too large",
        );
    };
    let body = if is_post {
        match serde_json::from_slice(&bytes) {
            Ok(body) => body,
            Err(_) => return refuse(&endpoint, StatusCode::BAD_REQUEST, "the body is no JSON"),
        }
    } else {
        Value::Null
    };
    let answer = answer::build_answer(&endpoint, &body, bytes.len(), &server.scripts);
    drop((body, bytes));
    tokio::time::sleep(answer.turn.sleep).await;
    for sign in &answer.turn.signals {
        server.handle_signal(sign).await;
    }
    if let Some(failure) = server.next_failure(&answer) {
        let status = StatusCode::from_u16(failure.status).unwrap_or(StatusCode::BAD_GATEWAY);
        let mut response = refuse(&endpoint, status, "the script says so");
        if let Some(seconds) = failure.retry_after {
            let headers = response.headers_mut();
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        return response;
    }
    server.log_request(&head.method, &path, StatusCode::OK, &answer.note);
    match answer.body {
        _ if answer.turn.hang => {
            tokio::time::sleep(LONGEST).await;
            refuse(&endpoint, StatusCode::GATEWAY_TIMEOUT, "the script hung")
        }
        answer::Body::Json(value) => json_response(StatusCode::OK, &value),
        answer::Body::Events(events) => {
            let events = events.into_iter().map(Bytes::from).collect();
            let kind = [
                (header::CONTENT_TYPE, "text/event-stream"),
                (header::CACHE_CONTROL, "no-cache"),
            ];
            (kind, Body::new(EventBody(events))).into_response()
        }
    }
}

fn json_response(status: StatusCode, value: &Value) -> Response {
    let kind = [(header::CONTENT_TYPE, "application/json")];
    (status, kind, value.to_string()).into_response()
}

/// A body that is sent event by event.
struct EventBody(VecDeque<Bytes>);

impl hyper::body::Body for EventBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.pop_front().map(|event| Ok(Frame::data(event))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_waits_goes_on_when_it_is_told_and_not_before() {
        let server = Server::new(None, false, Scripts::default());
        let wait = Signal::Wait("b".to_owned());
        let waits = server.handle_signal(&wait);
        tokio::pin!(waits);
        let early = tokio::time::timeout(Duration::from_secs(1000), &mut waits).await;
        assert!(early.is_err());
        server.handle_signal(&Signal::Send("a".to_owned())).await;
        let other = tokio::time::timeout(Duration::from_secs(1000), &mut waits).await;
        assert!(other.is_err());
        server.handle_signal(&Signal::Send("b".to_owned())).await;
        waits.await;
        // A signal stays set once it is sent.
        server.handle_signal(&wait).await;
    }
}
