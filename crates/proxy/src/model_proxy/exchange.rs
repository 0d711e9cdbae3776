//! One request and its response: checked against the route, read completely, inspected, sent with
//! the key; then the response is streamed back.

use std::error::Error as _;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hyper::body::{Body as _, Bytes, Incoming};
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::{Request, Response, StatusCode, Version};
use hyper_util::client::legacy::Error as ClientError;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::Instant;

use super::bodies::{FullBody, RequestRecord, ResponseBody, StreamingBody, now};
use super::connection::{BODY_PERMIT_BYTES, RouteContext};
use super::registry;
use super::upstream::KeyedClient;
use super::usage_meter::{BillingInfo, MeteredRequest};
use crate::route::{
    AllowedRequest, ModelRequest, Refusal, UsageReader, announced_wait, filter_request_headers,
    inspect_body, is_free, is_limited, is_redirect, match_allow_list, passes_response_header,
};
use marshal_config::RouteKind;
use marshal_model::limits::ROUTE_BODIES_BYTES;
use marshal_telemetry::labels::RouteRefusal as Why;

/// Permits for the request bodies of the whole process.
static BODY_PERMITS: Semaphore = Semaphore::const_new(ROUTE_BODIES_BYTES / BODY_PERMIT_BYTES);

/// Longer bodies are inspected on a blocking thread, so that they do not delay other connections.
const LONG_BODY: usize = 256 << 10;

/// How long the rest of a refused request is read and discarded, so that its sender gets to read
/// the response.
const DISCARD: Duration = Duration::from_secs(5);

/// Handles one request. Every failure becomes a response, so there is no error.
pub(super) async fn handle_request(
    gate: Arc<RouteContext>,
    request: Request<Incoming>,
    deadline: Instant,
) -> Response<ResponseBody> {
    let forwarded = match gate.upstream.route.kind {
        RouteKind::Git => return super::git::handle_request(gate, request, deadline).await,
        RouteKind::Registry => registry::forward(&gate, request, deadline).await,
        RouteKind::Model => forward(&gate, request, deadline).await,
    };
    match forwarded {
        Ok(response) => response,
        Err(refusal) => {
            gate.record_refusal(&refusal);
            let mut response = Response::new(ResponseBody::Full(FullBody::from_bytes(
                gate.refusal_body(&refusal),
            )));
            *response.status_mut() =
                StatusCode::from_u16(refusal.status).unwrap_or(StatusCode::BAD_GATEWAY);
            let json = HeaderValue::from_static("application/json");
            response.headers_mut().insert(header::CONTENT_TYPE, json);
            response
        }
    }
}

/// The refusal of a request that did not arrive in time.
pub(super) fn request_timeout() -> Refusal {
    Refusal::new(
        Why::Slow,
        408,
        "the request did not arrive completely in time",
    )
}

async fn forward(
    gate: &Arc<RouteContext>,
    request: Request<Incoming>,
    deadline: Instant,
) -> Result<Response<ResponseBody>, Refusal> {
    let (head, mut from) = request.into_parts();
    let route = &gate.upstream.route;
    let uri = &head.uri;
    let allowed = match_allow_list(route, head.method.as_str(), uri.path(), uri.query())
        .and_then(|allowed_request| check_uncompressed(&head.headers).map(|()| allowed_request));
    let allowed_request = match allowed {
        Ok(allowed_request) => allowed_request,
        Err(refusal) => {
            discard(&mut from, deadline).await;
            return Err(refusal);
        }
    };
    let body = match read_body(&mut from, gate, deadline).await {
        Ok(body) => body,
        Err(refusal) => {
            if refusal.reason != Some(Why::Slow) {
                discard(&mut from, deadline).await;
            }
            return Err(refusal);
        }
    };
    if !route.server_tools {
        check_body(&head.headers, body.bytes.clone()).await?;
    }
    let bill = billing_info(gate, &head, body.bytes.clone()).await?;
    gate.usage_meter.check_request(&bill)?;
    let charge = MeteredRequest::new(Arc::clone(&gate.usage_meter), bill, body.bytes.len());
    let keyed = gate.upstream.keyed_client();
    let sent = charge.sent_flag();
    let mut outgoing = build_upstream_request(gate, head, &allowed_request, &body, sent)?;
    if let Some((name, key)) = &keyed.key {
        outgoing.headers_mut().insert(name.clone(), key.clone());
    }
    let answer = send_upstream(
        gate,
        &keyed,
        outgoing,
        RequestRecord::new(Arc::clone(gate), allowed_request.allow_index, charge),
    )
    .await?;
    drop(body);
    Ok(answer)
}

/// Refuses a compressed body: it could not be inspected.
fn check_uncompressed(headers: &HeaderMap) -> Result<(), Refusal> {
    let mut encodings = headers.get_all(header::CONTENT_ENCODING).iter();
    let plain = encodings.all(|value| value.as_bytes().eq_ignore_ascii_case(b"identity"));
    plain.then_some(()).ok_or_else(|| {
        Refusal::new(
            Why::Encoding,
            415,
            "the body is compressed: send it uncompressed",
        )
    })
}

/// A body and its permits.
pub(super) struct Body<'g> {
    pub(super) bytes: Bytes,
    _held: Option<BodyPermits<'g>>,
}

/// Permits for a body: of the child, and of the whole process.
struct BodyPermits<'g> {
    of_child: SemaphorePermit<'g>,
    of_all: SemaphorePermit<'static>,
}

impl<'g> BodyPermits<'g> {
    fn acquire(gate: &'g RouteContext, places: usize) -> Result<Self, Refusal> {
        let full = |what: &str| Refusal::new(Why::BodiesHeld, 503, what);
        let places = u32::try_from(places).unwrap_or(u32::MAX);
        let of_child = gate.body_permits.try_acquire_many(places).map_err(|_| {
            full("this child sends too many request bodies at the same time: wait for responses")
        })?;
        let of_all = BODY_PERMITS.try_acquire_many(places).map_err(|_| {
            full("too many request bodies are in transit at the same time: try again later")
        })?;
        Ok(Self { of_child, of_all })
    }
}

pub(super) async fn read_body<'g>(
    from: &mut Incoming,
    gate: &'g RouteContext,
    deadline: Instant,
) -> Result<Body<'g>, Refusal> {
    let most = gate.upstream.route.body_max;
    let too_long = || {
        let what = format!("the body is longer than {most} bytes");
        Refusal::new(Why::BodySize, 413, what)
    };
    if from.size_hint().lower() > most {
        return Err(too_long());
    }
    let mut bytes = Vec::new();
    let mut permits: Option<BodyPermits<'g>> = None;
    loop {
        let frame = std::future::poll_fn(|cx| Pin::new(&mut *from).poll_frame(cx));
        let frame = tokio::time::timeout_at(deadline, frame).await;
        let frame = match frame.map_err(|_| request_timeout())? {
            None => break,
            Some(frame) => frame.map_err(|_| {
                Refusal::new(
                    Why::Smuggling,
                    400,
                    "the body is incomplete, or not valid HTTP",
                )
            })?,
        };
        let Ok(data) = frame.into_data() else {
            continue;
        };
        if (bytes.len() + data.len()) as u64 > most {
            return Err(too_long());
        }
        let places = (bytes.len() + data.len()).div_ceil(BODY_PERMIT_BYTES);
        let there = permits
            .as_ref()
            .map_or(0, |permits| permits.of_all.num_permits());
        let more = BodyPermits::acquire(gate, places - there)?;
        match &mut permits {
            Some(permits) => {
                permits.of_child.merge(more.of_child);
                permits.of_all.merge(more.of_all);
            }
            None => permits = Some(more),
        }
        bytes.extend_from_slice(&data);
    }
    Ok(Body {
        bytes: bytes.into(),
        _held: permits,
    })
}

/// Reads and discards the rest of a request until the deadline.
pub(super) async fn discard(from: &mut Incoming, deadline: Instant) {
    let deadline = deadline.min(Instant::now() + DISCARD);
    let reading = async {
        while let Some(Ok(_)) = std::future::poll_fn(|cx| Pin::new(&mut *from).poll_frame(cx)).await
        {
        }
    };
    let _ = tokio::time::timeout_at(deadline, reading).await;
}

async fn check_body(headers: &HeaderMap, body: Bytes) -> Result<(), Refusal> {
    let mut kinds = headers.get_all(header::CONTENT_TYPE).iter();
    let kind = kinds
        .next()
        .and_then(|value| value.to_str().ok())
        .map(str::to_owned);
    // With two content types, servers may disagree about which one counts.
    let kind = kind.filter(|_| kinds.next().is_none());
    if body.len() <= LONG_BODY {
        return inspect_body(kind.as_deref(), &body);
    }
    let inspection = tokio::task::spawn_blocking(move || inspect_body(kind.as_deref(), &body));
    let failed = |_| Refusal::upstream(503, "the supervisor is shutting down");
    inspection.await.map_err(failed)?
}

/// What the request may cost.
async fn billing_info(
    gate: &RouteContext,
    head: &hyper::http::request::Parts,
    body: Bytes,
) -> Result<BillingInfo, Refusal> {
    let path = head.uri.path().to_owned();
    let is_free = is_free(head.method.as_str(), &path, &body);
    let wants = if is_free || !gate.usage_meter.needs_request_details() {
        ModelRequest::default()
    } else if body.len() <= LONG_BODY {
        ModelRequest::parse(&path, &body)
    } else {
        let parsing = tokio::task::spawn_blocking(move || ModelRequest::parse(&path, &body));
        let failed = |_| Refusal::upstream(503, "the supervisor is shutting down");
        parsing.await.map_err(failed)?
    };
    Ok(BillingInfo {
        model_request: wants,
        is_free,
    })
}

/// Builds the request for the upstream, without the key.
fn build_upstream_request(
    gate: &RouteContext,
    head: hyper::http::request::Parts,
    allowed: &AllowedRequest,
    body: &Body<'_>,
    sent: Arc<AtomicBool>,
) -> Result<Request<FullBody>, Refusal> {
    let upstream = &gate.upstream;
    let mut headers = filter_request_headers(&head.headers, &upstream.route);
    let identity = HeaderValue::from_static("identity");
    headers.insert(header::ACCEPT_ENCODING, identity);
    let mut request = Request::new(FullBody::with_sent_flag(body.bytes.clone(), sent));
    *request.method_mut() = head.method;
    let uri = upstream.uri(&allowed.target).parse();
    *request.uri_mut() = uri
        .map_err(|_| Refusal::new(Why::Path, 403, "the path and query do not form a valid URL"))?;
    *request.headers_mut() = headers;
    *request.version_mut() = Version::HTTP_11;
    Ok(request)
}

/// Sends a request and waits for the head of its response.
pub(super) async fn request_upstream(
    gate: &RouteContext,
    keyed: &KeyedClient,
    request: Request<FullBody>,
    record: &mut RequestRecord,
) -> Result<Response<Incoming>, Refusal> {
    let route = &gate.upstream.route;
    let answer = keyed.client.request(request);
    let answer = tokio::time::timeout(route.timeouts.answer, answer).await;
    answer
        .map_err(|_| {
            let what = format!(
                "the upstream of the route {} did not answer in time",
                route.name
            );
            upstream_failure(gate, 504, what)
        })?
        .map_err(|error| {
            record.charge.mark_cut_by_upstream();
            upstream_failure(gate, 502, describe_failure(&route.name, &error))
        })
}

async fn send_upstream(
    gate: &Arc<RouteContext>,
    keyed: &KeyedClient,
    request: Request<FullBody>,
    mut record: RequestRecord,
) -> Result<Response<ResponseBody>, Refusal> {
    let route = &gate.upstream.route;
    let answer = request_upstream(gate, keyed, request, &mut record).await?;
    let (head, from) = answer.into_parts();
    let status = head.status.as_u16();
    let text = |name| {
        head.headers
            .get(name)
            .and_then(|value: &HeaderValue| value.to_str().ok())
    };
    let is_encoded = head
        .headers
        .get_all(header::CONTENT_ENCODING)
        .iter()
        .any(|value| !value.as_bytes().eq_ignore_ascii_case(b"identity"));
    let usage = UsageReader::new(text(header::CONTENT_TYPE), is_encoded);
    record.record_response_head(status, usage);
    if is_limited(status) {
        let wait = announced_wait(&head.headers, unix_now());
        gate.watch.record_limited(wait, now());
        if wait.is_none() {
            record.limit_body = Some(Vec::new());
        }
    } else if head.status.is_success() {
        gate.watch.record_success();
    }
    if is_redirect(status) {
        let what = format!(
            "the upstream of the route {} answered with a redirect ({status}), which the proxy does not follow",
            route.name
        );
        return Err(Refusal::new(Why::Redirect, 502, what));
    }
    if status < 200 {
        let what = format!(
            "the upstream of the route {} requested another protocol",
            route.name
        );
        return Err(upstream_failure(gate, 502, what));
    }
    let forms = keyed.key_forms.as_ref();
    if is_encoded && forms.is_some() {
        let what = format!(
            "the upstream of the route {} encoded its response although it was asked not to, so it cannot be searched for the key",
            route.name
        );
        return Err(upstream_failure(gate, 502, what));
    }
    let has_key = |value: &HeaderValue| forms.is_some_and(|forms| forms.is_in(value.as_bytes()));
    let mut response = Response::new(ResponseBody::Streaming(Box::new(StreamingBody::new(
        from,
        record,
        keyed.key_forms.clone(),
    ))));
    *response.status_mut() = head.status;
    for (name, value) in &head.headers {
        if passes_response_header(name) && !has_key(value) {
            response.headers_mut().append(name.clone(), value.clone());
        }
    }
    Ok(response)
}

/// Refuses with an upstream failure, and logs it without any text of the upstream.
pub(super) fn upstream_failure(gate: &RouteContext, status: u16, what: String) -> Refusal {
    tracing::info!(slot = %gate.slot, route = gate.upstream.route.name, what, "a request to an upstream failed");
    Refusal::upstream(status, what)
}

/// Describes a failure down to its cause: names and numbers of sockets and certificates, nothing of
/// a request.
fn describe_failure(route: &str, error: &ClientError) -> String {
    let what = if error.is_connect() {
        "cannot be reached"
    } else {
        "ended the connection before it answered"
    };
    let mut cause = String::new();
    let mut next = error.source();
    while let Some(error) = next {
        cause = error.to_string();
        next = error.source();
    }
    let cause = marshal_model::untrusted::escape_for_display(&cause, 200);
    format!("the upstream of the route {route} {what}: {cause}")
}

fn unix_now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
    })
}
