//! One request to a package registry: checked, sent without a body, redirects followed, and the
//! response streamed back, its pages rewritten.

use std::sync::Arc;

use hyper::body::{Body as _, Incoming};
use hyper::header::{self, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Request, Response, Version};
use tokio::time::Instant;

use super::bodies::{FullBody, RequestRecord, ResponseBody, StreamingBody};
use super::connection::RouteContext;
use super::exchange::{discard, request_upstream, upstream_failure};
use super::upstream::KeyedClient;
use super::usage_meter::{BillingInfo, MeteredRequest, Unmetered};
use crate::route::{
    PageRewriter, Refusal, RegistryContent, RegistryTarget, UsageReader, check_registry_request,
    describes_bytes, follow_redirect, is_redirect, passes_response_header, registry_headers,
};
use marshal_model::limits::{REGISTRY_FILE_BYTES, REGISTRY_PAGE_BYTES, REGISTRY_REDIRECTS};
use marshal_telemetry::labels::RouteRefusal as Why;

pub(super) async fn forward(
    gate: &Arc<RouteContext>,
    request: Request<Incoming>,
    deadline: Instant,
) -> Result<Response<ResponseBody>, Refusal> {
    let (head, mut from) = request.into_parts();
    let route = &gate.upstream.route;
    let has_body = !from.is_end_stream();
    let checked = check_registry_request(route, head.method.as_str(), &head.uri, has_body);
    let target = match checked {
        Ok(target) => target,
        Err(refusal) => {
            discard(&mut from, deadline).await;
            return Err(refusal);
        }
    };
    let keyed = gate.upstream.keyed_client();
    // Nothing here costs tokens.
    let bill = BillingInfo {
        is_free: true,
        ..BillingInfo::default()
    };
    let charge = MeteredRequest::new(Arc::new(Unmetered), bill, 0);
    let index = target.content.index();
    let mut record = RequestRecord::new(Arc::clone(gate), index, charge);
    let (answer, content) = fetch(gate, &keyed, &head, target, &mut record).await?;
    respond(gate, &keyed, answer, content, record)
}

/// Sends the request, and again to where redirects lead.
async fn fetch(
    gate: &RouteContext,
    keyed: &KeyedClient,
    head: &Parts,
    first: RegistryTarget,
    record: &mut RequestRecord,
) -> Result<(Response<Incoming>, RegistryContent), Refusal> {
    let route = &gate.upstream.route;
    let mut target = first;
    for _ in 0..=REGISTRY_REDIRECTS {
        let request = build_request(gate, keyed, head, &target)?;
        let answer = request_upstream(gate, keyed, request, record).await?;
        let status = answer.status().as_u16();
        record.record_response_head(status, UsageReader::new(None, true));
        if !is_redirect(status) {
            return Ok((answer, target.content));
        }
        let location = answer.headers().get(header::LOCATION);
        target = follow_redirect(route, &target, location.map(HeaderValue::as_bytes))?;
    }
    let what = format!(
        "the upstream of the route {} answered with more than {REGISTRY_REDIRECTS} redirects",
        route.name
    );
    Err(Refusal::new(Why::Redirect, 502, what))
}

/// The request for one host; only packages of the upstream itself get the key.
fn build_request(
    gate: &RouteContext,
    keyed: &KeyedClient,
    head: &Parts,
    target: &RegistryTarget,
) -> Result<Request<FullBody>, Refusal> {
    let route = &gate.upstream.route;
    let is_file = target.content == RegistryContent::File;
    // A part of a response could not be searched for the key, and a part of a page not rewritten.
    let mut headers = registry_headers(&head.headers, is_file && keyed.key_forms.is_none());
    let identity = HeaderValue::from_static("identity");
    headers.insert(header::ACCEPT_ENCODING, identity);
    if let Some((name, key)) = &keyed.key
        && target.gets_key(route)
    {
        headers.insert(name.clone(), key.clone());
    }
    let mut request = Request::new(FullBody::default());
    *request.method_mut() = head.method.clone();
    *request.uri_mut() = target
        .url()
        .parse()
        .map_err(|_| Refusal::new(Why::Path, 403, "the path does not form a valid URL"))?;
    *request.headers_mut() = headers;
    *request.version_mut() = Version::HTTP_11;
    Ok(request)
}

/// The response to the client inside.
fn respond(
    gate: &RouteContext,
    keyed: &KeyedClient,
    answer: Response<Incoming>,
    content: RegistryContent,
    record: RequestRecord,
) -> Result<Response<ResponseBody>, Refusal> {
    let route = &gate.upstream.route;
    let (head, from) = answer.into_parts();
    if head.status.as_u16() < 200 {
        let what = format!(
            "the upstream of the route {} requested another protocol",
            route.name
        );
        return Err(upstream_failure(gate, 502, what));
    }
    let rewriter = head
        .status
        .is_success()
        .then(|| PageRewriter::new(route, content))
        .flatten();
    let mut encodings = head.headers.get_all(header::CONTENT_ENCODING).iter();
    let is_encoded = encodings.any(|value| !value.as_bytes().eq_ignore_ascii_case(b"identity"));
    let forms = keyed.key_forms.as_ref();
    if is_encoded && (forms.is_some() || rewriter.is_some()) {
        let what = format!(
            "the upstream of the route {} encoded its response although it was asked not to",
            route.name
        );
        return Err(upstream_failure(gate, 502, what));
    }
    let max_bytes = match content {
        RegistryContent::File => REGISTRY_FILE_BYTES,
        RegistryContent::Page | RegistryContent::CargoConfig => REGISTRY_PAGE_BYTES,
    };
    if from.size_hint().lower() > max_bytes {
        let what = format!(
            "the response of the upstream of the route {} is longer than {max_bytes} bytes",
            route.name
        );
        return Err(upstream_failure(gate, 502, what));
    }
    let has_key = |value: &HeaderValue| forms.is_some_and(|forms| forms.is_in(value.as_bytes()));
    let is_rewritten = rewriter.is_some();
    // The response to HEAD has nothing to rewrite.
    let rewriter = rewriter.filter(|_| !from.is_end_stream());
    let size = head.headers.get(header::CONTENT_LENGTH).cloned();
    let size = size.filter(|_| from.is_end_stream() && !is_rewritten);
    let body = StreamingBody::new(from, record, keyed.key_forms.clone())
        .with_page_rewriter(rewriter)
        .with_max_bytes(max_bytes);
    let mut response = Response::new(ResponseBody::Streaming(Box::new(body)));
    *response.status_mut() = head.status;
    for (name, value) in &head.headers {
        let is_wrong = is_rewritten && describes_bytes(name);
        if passes_response_header(name) && !has_key(value) && !is_wrong {
            response.headers_mut().append(name.clone(), value.clone());
        }
    }
    if let Some(size) = size {
        // The response to HEAD: there is no body to tell its length.
        response.headers_mut().insert(header::CONTENT_LENGTH, size);
    }
    Ok(response)
}
