//! Pushes of the supervisor itself, through the route that agents push by: its requests are checked
//! and sent as those of a child, over a connection within this process.
//!
//! So a push of a person's command has no way around the rules of the route. Must not know what is
//! pushed.

use std::convert::Infallible;
use std::fs::File;
use std::pin::Pin;
use std::sync::Arc;

use hyper::body::{Body, Bytes};
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::server::conn::http1 as server;
use hyper::service::service_fn;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::time::Instant;

use super::bodies::FullBody;
use super::connection::RouteContext;
use super::exchange;
use super::git::PushInspector;
use super::rate_limits::RateLimitWatch;
use super::upstream::Upstream;
use super::usage_meter::Unmetered;
use crate::git::{PushRejection, ServerRefs, Service, read_push_report, read_server_refs};
use marshal_model::SlotId;
use marshal_model::limits::SERVER_ANSWER_BYTES;
use marshal_model::untrusted::escape_for_display;

/// Bytes on the way between both sides of a connection.
const PIPE_BYTES: usize = 64 << 10;
/// Columns of a refusal.
const REASON: usize = 300;

/// Why a push did not pass.
#[derive(Debug, thiserror::Error)]
pub enum OwnPushError {
    /// The proxy or the server refused it.
    #[error(transparent)]
    Rejected(#[from] PushRejection),
    /// The route refused the request.
    #[error("{0}")]
    Refused(String),
    /// The answer is too long.
    #[error("the answer of the server is longer than {} MiB", SERVER_ANSWER_BYTES >> 20)]
    TooLong,
    /// The connection failed.
    #[error("the exchange with the server was cut off: {0}")]
    Http(#[from] hyper::Error),
}

/// Pushes to one repository of a route.
#[derive(Debug)]
pub struct OwnPush {
    gate: Arc<RouteContext>,
    /// The path of the repository below the upstream.
    repository: String,
}

impl OwnPush {
    /// For a repository, whose path is empty if it is the upstream itself. `slot` has the user id of
    /// the sandbox where the pack is inspected.
    #[must_use]
    pub fn new(
        upstream: Arc<Upstream>,
        slot: SlotId,
        inspector: Arc<dyn PushInspector>,
        repository: &str,
    ) -> Self {
        let (watch, meter) = (Arc::new(RateLimitWatch::default()), Arc::new(Unmetered));
        let gate = RouteContext::new(upstream, slot, watch, meter, None, Some(inspector));
        Self {
            gate: Arc::new(gate),
            repository: if repository.is_empty() {
                String::new()
            } else {
                format!("/{repository}")
            },
        }
    }

    /// What the server has.
    ///
    /// # Errors
    /// [`OwnPushError`]
    pub async fn server_refs(&self, wanted: &str) -> Result<ServerRefs, OwnPushError> {
        let service = Service::ReceivePack.as_str();
        let path = format!("{}/info/refs?service={service}", self.repository);
        let request = Request::get(path).header(HOST, "localhost");
        let answer = self.exchange(request.body(FullBody::default())).await?;
        Ok(read_server_refs(&answer, wanted)?)
    }

    /// Gives a ref of the server this commit; the file has the pack, and nothing else.
    ///
    /// # Errors
    /// [`OwnPushError`]
    pub async fn push(
        &self,
        refs: &ServerRefs,
        (name, new): (&str, &str),
        (pack, bytes): (File, u64),
    ) -> Result<(), OwnPushError> {
        let service = Service::ReceivePack.as_str();
        let request = Request::post(format!("{}/{service}", self.repository))
            .header(HOST, "localhost")
            .header(CONTENT_TYPE, format!("application/x-{service}-request"));
        let body = FullBody::with_file(refs.command(name, new), Arc::new(pack), bytes);
        let answer = self.exchange(request.body(body)).await?;
        Ok(read_push_report(&answer, name)?)
    }

    async fn exchange(
        &self,
        request: Result<Request<FullBody>, hyper::http::Error>,
    ) -> Result<Vec<u8>, OwnPushError> {
        let bad = |error: hyper::http::Error| OwnPushError::Refused(error.to_string());
        let request = request.map_err(bad)?;
        let deadline = Instant::now() + self.gate.upstream.route.timeouts.request;
        let service = service_fn(|request| {
            let gate = Arc::clone(&self.gate);
            async move {
                let answer = exchange::handle_request(gate, request, deadline).await;
                Ok::<_, Infallible>(answer)
            }
        });
        let (near, far) = tokio::io::duplex(PIPE_BYTES);
        let serving = server::Builder::new()
            .keep_alive(false)
            .serve_connection(TokioIo::new(far), service);
        let handshake = hyper::client::conn::http1::handshake(TokioIo::new(near));
        let (mut sender, connection) = handshake.await?;
        let both_sides = async {
            let _ = tokio::join!(serving, connection);
            // The request ends with an error then.
            std::future::pending::<()>().await;
        };
        let asking = async {
            let answer = sender.send_request(request).await?;
            let status = answer.status();
            let body = read_whole(answer.into_body()).await?;
            if status == StatusCode::OK {
                return Ok(body);
            }
            let text = String::from_utf8_lossy(&body);
            let text = text.trim().trim_start_matches("marshal: ");
            Err(OwnPushError::Refused(escape_for_display(text, REASON)))
        };
        tokio::select! {
            answer = asking => answer,
            () = both_sides => Err(OwnPushError::Refused("the connection ended".to_owned())),
        }
    }
}

async fn read_whole(
    mut body: impl Body<Data = Bytes, Error = hyper::Error> + Unpin,
) -> Result<Vec<u8>, OwnPushError> {
    let mut whole = Vec::new();
    while let Some(frame) = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        if let Ok(data) = frame?.into_data() {
            whole.extend_from_slice(&data);
        }
        if whole.len() > SERVER_ANSWER_BYTES {
            return Err(OwnPushError::TooLong);
        }
    }
    Ok(whole)
}
