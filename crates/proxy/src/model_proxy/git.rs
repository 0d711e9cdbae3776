//! Requests to a git server: fetches pass as they are, and a push is written to a file, unpacked and
//! searched by its owner, and only then sent with the key.
//!
//! Every refusal of a request that is git's is an answer in git's protocol, so that `git` shows the
//! reason.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::pin::Pin;
use std::sync::Arc;

use hyper::body::{Body as _, Bytes, Incoming};
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Request, Response, StatusCode, Version};
use tokio::time::Instant;

use super::bodies::{FullBody, RequestRecord, ResponseBody, StreamingBody};
use super::connection::RouteContext;
use super::exchange::{discard, read_body, request_timeout, request_upstream, upstream_failure};
use super::usage_meter::{BillingInfo, MeteredRequest};
use crate::git::{
    self, Advertised, Capabilities, Command, Commands, GitRequest, PushRefusal, Service,
};
use crate::route::{Refusal, UsageReader, is_redirect, passes_response_header};
use marshal_model::SlotId;
use marshal_telemetry::labels::RouteRefusal as Why;

/// What the owner of a child does for its pushes.
pub trait PushInspector: std::fmt::Debug + Send + Sync {
    /// A new empty file without a name, for a pack.
    ///
    /// # Errors
    /// If it cannot be created.
    fn create_spool(&self) -> io::Result<File>;

    /// Unpacks and searches a pack; `Ok`: it may pass.
    fn inspect<'a>(
        &'a self,
        slot: &'a SlotId,
        push: PushedPack,
    ) -> Pin<Box<dyn Future<Output = Result<(), PushFault>> + Send + 'a>>;
}

/// A push that waits to be inspected.
#[derive(Debug, Clone)]
pub struct PushedPack {
    /// The pack.
    pub file: Arc<File>,
    /// Its length.
    pub bytes: u64,
    /// The number of its objects.
    pub objects: u32,
    /// Its hash algorithm: `sha1` or `sha256`.
    pub object_format: &'static str,
    /// The commit that the ref has; `None`: it is created.
    pub old: Option<String>,
    /// The commit that it gets.
    pub new: String,
    /// The ref's name.
    pub name: String,
}

/// Why a push does not pass.
#[derive(Debug, Clone)]
pub struct PushFault {
    /// The label of `marshal_route_refused_total{reason}`.
    pub why: Why,
    /// A reason for its sender.
    pub reason: String,
}

/// Bytes of a pack that are written, or read again, at once.
const PIECE_BYTES: usize = 256 << 10;

/// The shortest pack: its head, and a checksum of 20 bytes.
const SHORTEST_PACK: usize = 32;

/// Why there is no answer of the upstream.
enum Stop {
    /// A reason, as a report of refs or as an error of git's protocol.
    Push(PushRefusal, Capabilities),
    /// A reason, as an error of git's protocol or, if it is not git's, of HTTP.
    Request(Refusal),
}

impl From<Refusal> for Stop {
    fn from(refusal: Refusal) -> Self {
        Self::Request(refusal)
    }
}

/// Handles one request. Every failure becomes a response, so there is no error.
pub(super) async fn handle_request(
    gate: Arc<RouteContext>,
    request: Request<Incoming>,
    deadline: Instant,
) -> Response<ResponseBody> {
    let (head, mut from) = request.into_parts();
    let (path, query) = (head.uri.path(), head.uri.query());
    let checked = GitRequest::parse(&gate.upstream.route, head.method.as_str(), (path, query));
    let request = match checked {
        Ok(request) => request,
        Err(refusal) => {
            gate.record_refusal(&refusal);
            discard(&mut from, deadline).await;
            return refuse(&refusal);
        }
    };
    let passed = match request.check_body(&head.headers) {
        Err(refusal) => Err(refusal.into()),
        Ok(()) => pass(&gate, &request, head, &mut from, deadline).await,
    };
    let stop = match passed {
        Ok(response) => return response,
        Err(stop) => stop,
    };
    discard(&mut from, deadline).await;
    match stop {
        Stop::Request(refusal) => {
            gate.record_refusal(&refusal);
            answer_error(&request, &refusal.message)
        }
        Stop::Push(refusal, capabilities) => {
            if let Some(why) = refusal.why {
                gate.record_refused(why);
            }
            let first = refusal.lines.first().map_or("", |line| &line.reason);
            git::push_answer(&capabilities, &refusal.lines).map_or_else(
                || answer_error(&request, first),
                |text| answer(&request, text),
            )
        }
    }
}

async fn pass(
    gate: &Arc<RouteContext>,
    request: &GitRequest,
    head: Parts,
    from: &mut Incoming,
    deadline: Instant,
) -> Result<Response<ResponseBody>, Stop> {
    let route = &gate.upstream.route;
    if request.is_refs && !from.is_end_stream() {
        // A server that does not expect it may take it for the next request.
        let what = "a request for the refs has no body";
        return Err(Refusal::new(Why::Body, 400, what).into());
    }
    match (request.service, request.is_refs) {
        (Service::ReceivePack, true) if route.git.is_read_only() => {
            Err(takes_no_pushes(&route.name).into())
        }
        (Service::ReceivePack, true) => Ok(advertise(gate, request, head).await?),
        (Service::ReceivePack, false) => push(gate, request, head, from, deadline).await,
        (Service::UploadPack, _) => Ok(fetch(gate, request, head, from, deadline).await?),
    }
}

fn takes_no_pushes(route: &str) -> Refusal {
    let what = format!("the route {route} takes no pushes: its list of refs (push) is empty");
    Refusal::new(Why::NotAllowed, 403, what)
}

/// Asks for the refs before a push: the upstream's answer with fewer capabilities.
async fn advertise(
    gate: &Arc<RouteContext>,
    request: &GitRequest,
    head: Parts,
) -> Result<Response<ResponseBody>, Refusal> {
    let answer = send(gate, request, head, FullBody::default()).await?;
    let (parts, mut body) = answer.into_parts();
    let mut begin = Vec::new();
    let limited = loop {
        match git::limit_capabilities(&begin) {
            Advertised::Begin(limited) => break limited,
            Advertised::Unknown => return Err(not_git(gate)),
            Advertised::Incomplete => {}
        }
        let frame = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await;
        let data = frame
            .and_then(Result::ok)
            .and_then(|frame| frame.into_data().ok());
        begin.extend_from_slice(&data.ok_or_else(|| not_git(gate))?);
    };
    if let ResponseBody::Streaming(streaming) = &mut body {
        streaming.put_back(limited.into());
    }
    Ok(Response::from_parts(parts, body))
}

async fn fetch(
    gate: &Arc<RouteContext>,
    request: &GitRequest,
    head: Parts,
    from: &mut Incoming,
    deadline: Instant,
) -> Result<Response<ResponseBody>, Refusal> {
    let body = read_body(from, gate, deadline).await?;
    let outgoing = FullBody::from_bytes(body.bytes.clone());
    send(gate, request, head, outgoing).await
}

async fn push(
    gate: &Arc<RouteContext>,
    request: &GitRequest,
    head: Parts,
    from: &mut Incoming,
    deadline: Instant,
) -> Result<Response<ResponseBody>, Stop> {
    let route = &gate.upstream.route;
    let _one = gate.push_permit.try_acquire().map_err(|_| {
        let what = "another push of this child is under way: wait for it";
        Refusal::new(Why::BodiesHeld, 503, what)
    })?;
    let (commands, begin) = read_commands(from, deadline).await?;
    if commands.commands.is_empty() {
        // Git asks like this whether it may push, before it sends much.
        if begin.is_empty() && next_data(from, deadline).await?.is_none() {
            return Ok(answer(request, Vec::new()));
        }
        let what = "the push has no command";
        return Err(Refusal::new(Why::Body, 400, what).into());
    }
    let stop = |refusal| Stop::Push(refusal, commands.capabilities.clone());
    let refuse = |why: Why, reason: String| stop(commands.refuse(why, reason));
    let by_ref = |refusal: Refusal| stop(commands.refuse(refusal.reason, refusal.message));
    if route.git.is_read_only() {
        return Err(by_ref(takes_no_pushes(&route.name)));
    }
    let command = commands.check(&route.name, &route.git.push).map_err(stop)?;
    let inspector = gate.push_inspector.as_ref().ok_or_else(|| {
        refuse(
            Why::PushPack,
            "this child's pushes cannot be inspected".to_owned(),
        )
    })?;
    let spool = inspector.create_spool();
    let spool = spool.map_err(|error| {
        tracing::warn!(slot = %gate.slot, %error, "no file can be created for a push");
        refuse(
            Why::PushPack,
            "the supervisor cannot create a file for the pack".to_owned(),
        )
    })?;
    let mut spool = Spool::new(spool, route.git.push_max);
    spool
        .write(begin)
        .await
        .map_err(|fault| refuse(fault.why, fault.reason))?;
    while let Some(data) = next_data(from, deadline).await.map_err(by_ref)? {
        let written = spool.write(data).await;
        written.map_err(|fault| refuse(fault.why, fault.reason))?;
    }
    let pack = spool.finish(&commands, command).await;
    let pack = pack.map_err(|fault| refuse(fault.why, fault.reason))?;
    let (file, bytes) = (Arc::clone(&pack.file), pack.bytes);
    let inspected = inspector.inspect(&gate.slot, pack).await;
    inspected.map_err(|fault| refuse(fault.why, fault.reason))?;
    let body = FullBody::with_file(commands.to_upstream(command), file, bytes);
    send(gate, request, head, body).await.map_err(by_ref)
}

/// Reads the commands of a push, and what came behind them.
async fn read_commands(
    from: &mut Incoming,
    deadline: Instant,
) -> Result<(Commands, Bytes), Refusal> {
    let bad = |what: String| Refusal::new(Why::Body, 400, what);
    let mut text = Vec::new();
    let mut parsed = 0;
    loop {
        let data = next_data(from, deadline).await?;
        let is_end = data.is_none();
        text.extend_from_slice(&data.unwrap_or_default());
        // It is parsed from its beginning each time, so not for every piece of one byte.
        if !is_end && text.len() < 2 * parsed {
            continue;
        }
        parsed = text.len();
        let read = git::parse_commands(&text).map_err(|error| bad(error.to_string()))?;
        if let Some((commands, length)) = read {
            let rest = Bytes::from(text).slice(length..);
            return Ok((commands, rest));
        }
        if is_end {
            let what = "the push has no commands, or not all of them";
            return Err(bad(what.to_owned()));
        }
    }
}

/// The next piece of a body; `None` at its end.
async fn next_data(from: &mut Incoming, deadline: Instant) -> Result<Option<Bytes>, Refusal> {
    loop {
        let frame = std::future::poll_fn(|cx| Pin::new(&mut *from).poll_frame(cx));
        let frame = tokio::time::timeout_at(deadline, frame).await;
        let Some(frame) = frame.map_err(|_| request_timeout())? else {
            return Ok(None);
        };
        let frame = frame.map_err(|_| {
            let what = "the body is incomplete, or not valid HTTP";
            Refusal::new(Why::Smuggling, 400, what)
        })?;
        if let Ok(data) = frame.into_data() {
            return Ok(Some(data));
        }
    }
}

/// A file that takes a pack, up to a length.
struct Spool {
    file: Arc<File>,
    head: Vec<u8>,
    waiting: Vec<u8>,
    bytes: u64,
    most: u64,
}

impl Spool {
    fn new(file: File, most: u64) -> Self {
        Self {
            file: Arc::new(file),
            head: Vec::new(),
            waiting: Vec::new(),
            bytes: 0,
            most,
        }
    }

    async fn write(&mut self, data: Bytes) -> Result<(), PushFault> {
        let length = self.bytes + (self.waiting.len() + data.len()) as u64;
        if length > self.most {
            return Err(PushFault {
                why: Why::BodySize,
                reason: format!(
                    "the pack is larger than {} bytes (push_max): push in smaller parts",
                    self.most
                ),
            });
        }
        let room = SHORTEST_PACK - self.head.len();
        self.head.extend(data.iter().take(room));
        self.waiting.extend_from_slice(&data);
        if self.waiting.len() >= PIECE_BYTES {
            self.flush().await?;
        }
        Ok(())
    }

    async fn flush(&mut self) -> Result<(), PushFault> {
        let (file, at) = (Arc::clone(&self.file), self.bytes);
        let piece = std::mem::take(&mut self.waiting);
        self.bytes += piece.len() as u64;
        let written = tokio::task::spawn_blocking(move || file.write_all_at(&piece, at)).await;
        match written {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => {
                tracing::warn!(%error, "the pack of a push cannot be written");
                Err(unwritten())
            }
            Err(_) => Err(unwritten()),
        }
    }

    async fn finish(
        mut self,
        commands: &Commands,
        command: &Command,
    ) -> Result<PushedPack, PushFault> {
        self.flush().await?;
        let objects = git::pack_objects(&self.head).filter(|_| self.head.len() == SHORTEST_PACK);
        let (Some(objects), Some(new)) = (objects, command.new.clone()) else {
            return Err(PushFault {
                why: Why::PushPack,
                reason: "the push has no pack".to_owned(),
            });
        };
        Ok(PushedPack {
            file: self.file,
            bytes: self.bytes,
            objects,
            object_format: commands.capabilities.object_format(),
            old: command.old.clone(),
            new,
            name: command.name.clone(),
        })
    }
}

fn unwritten() -> PushFault {
    PushFault {
        why: Why::PushPack,
        reason: "the supervisor cannot write the pack to its disk".to_owned(),
    }
}

/// Sends a request with the key; returns the response if it is git's.
async fn send(
    gate: &Arc<RouteContext>,
    request: &GitRequest,
    head: Parts,
    body: FullBody,
) -> Result<Response<ResponseBody>, Refusal> {
    let upstream = &gate.upstream;
    let route = &upstream.route;
    let keyed = upstream.keyed_client();
    let mut outgoing = Request::new(body);
    *outgoing.method_mut() = head.method;
    let uri = upstream.uri(&request.allowed.target).parse();
    *outgoing.uri_mut() = uri
        .map_err(|_| Refusal::new(Why::Path, 403, "the path and query do not form a valid URL"))?;
    let mut headers = request.headers(&head.headers);
    headers.insert(
        header::ACCEPT_ENCODING,
        HeaderValue::from_static("identity"),
    );
    if let Some((name, key)) = &keyed.key {
        headers.insert(name.clone(), key.clone());
    }
    *outgoing.headers_mut() = headers;
    *outgoing.version_mut() = Version::HTTP_11;
    let bill = BillingInfo {
        is_free: true,
        ..BillingInfo::default()
    };
    let charge = MeteredRequest::new(Arc::clone(&gate.usage_meter), bill, 0);
    let index = request.allowed.allow_index;
    let mut record = RequestRecord::new(Arc::clone(gate), index, charge);
    let name = &route.name;
    let answer = request_upstream(gate, &keyed, outgoing, &mut record).await?;
    let (head, from) = answer.into_parts();
    let status = head.status.as_u16();
    record.record_response_head(status, UsageReader::new(None, true));
    if is_redirect(status) {
        let what = format!(
            "the upstream of the route {name} answered with a redirect ({status}), which the proxy does not follow"
        );
        return Err(Refusal::new(Why::Redirect, 502, what));
    }
    if status != 200 {
        return Err(upstream_failure(gate, 502, describe_status(name, status)));
    }
    if !is_of_type(&head.headers, &request.response_type()) {
        return Err(not_git(gate));
    }
    let forms = keyed.key_forms.as_ref();
    let has_key = |value: &HeaderValue| forms.is_some_and(|forms| forms.is_in(value.as_bytes()));
    let streaming = StreamingBody::new(from, record, keyed.key_forms.clone());
    let mut response = Response::new(ResponseBody::Streaming(Box::new(streaming)));
    for (name, value) in &head.headers {
        if passes_response_header(name) && !has_key(value) {
            response.headers_mut().append(name.clone(), value.clone());
        }
    }
    Ok(response)
}

/// Whether a response has this content type, and is not encoded.
fn is_of_type(headers: &HeaderMap, expected: &str) -> bool {
    let mut encodings = headers.get_all(header::CONTENT_ENCODING).iter();
    let is_plain = encodings.all(|value| value.as_bytes().eq_ignore_ascii_case(b"identity"));
    let mut types = headers.get_all(header::CONTENT_TYPE).iter();
    is_plain && types.next().is_some_and(|value| value == expected) && types.next().is_none()
}

fn describe_status(route: &str, status: u16) -> String {
    let what = match status {
        401 | 403 => "refused the key of the route",
        404 => "has no such repository, or does not show it to the key of the route",
        429 => "limits requests: try again later",
        _ => "cannot serve the request",
    };
    format!("the upstream of the route {route} {what} ({status})")
}

fn not_git(gate: &RouteContext) -> Refusal {
    let name = &gate.upstream.route.name;
    let what = format!("the upstream of the route {name} did not answer in git's protocol");
    upstream_failure(gate, 502, what)
}

/// An error of git's protocol. Its status is that of a success, because git does not show the bodies
/// of others.
fn answer_error(request: &GitRequest, reason: &str) -> Response<ResponseBody> {
    let text = match (request.service, request.is_refs) {
        (Service::ReceivePack, false) => git::fatal_answer(reason),
        (service, true) => git::error_answer(Some(service.as_str()), reason),
        (Service::UploadPack, false) => git::error_answer(None, reason),
    };
    answer(request, text)
}

fn answer(request: &GitRequest, text: Vec<u8>) -> Response<ResponseBody> {
    let mut response = Response::new(ResponseBody::Full(FullBody::from_bytes(text)));
    if let Ok(kind) = HeaderValue::from_str(&request.response_type()) {
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
    }
    let no_cache = HeaderValue::from_static("no-cache");
    response
        .headers_mut()
        .insert(header::CACHE_CONTROL, no_cache);
    response
}

/// The refusal of a request that is not git's, or not in its form. Git shows a plain text.
fn refuse(refusal: &Refusal) -> Response<ResponseBody> {
    let text = format!("marshal: {}\n", refusal.message);
    let mut response = Response::new(ResponseBody::Full(FullBody::from_bytes(text)));
    *response.status_mut() =
        StatusCode::from_u16(refusal.status).unwrap_or(StatusCode::BAD_GATEWAY);
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, plain);
    response
}
