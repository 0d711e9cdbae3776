//! Sends requests to the API of a git server, with the token of its route.
//!
//! The address comes from the configuration, so it is trusted; the answer is not. No redirect is
//! followed. Must not know what the requests are for.

use std::pin::Pin;

use hyper::Request;
use hyper::body::{Body as _, Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue, USER_AGENT};

use super::bodies::FullBody;
use super::upstream::{Upstream, UpstreamError};
use super::webhook::describe_error;
use crate::forge::{ApiRequest, ForgeFault, NewPullRequest, PullRequest, token_header};
use marshal_config::{Forge, PullRequests, Route};
use marshal_model::limits::{FORGE_ANSWER_BYTES, FORGE_TIMEOUT};

/// Why there is no pull request.
#[derive(Debug, thiserror::Error)]
pub enum ForgeError {
    /// The route has no API.
    #[error("the route {0} has no pull_request: it says which API its server has")]
    NoApi(String),
    /// The client cannot be made.
    #[error(transparent)]
    Upstream(#[from] UpstreamError),
    /// The server cannot be reached, or does not answer.
    #[error("{0}")]
    Failed(String),
    /// No answer arrived in time.
    #[error("no answer within {FORGE_TIMEOUT:?}")]
    Timeout,
    /// The answer is too long.
    #[error("the answer is longer than {} KiB", FORGE_ANSWER_BYTES >> 10)]
    TooLong,
    /// The answer shows the token, so none of it is shown.
    #[error("the answer contains the token, and is not shown")]
    ShowsToken,
    /// The server refused.
    #[error(transparent)]
    Fault(#[from] ForgeFault),
}

/// A pull request that there is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenedPullRequest {
    /// It.
    pub request: PullRequest,
    /// Whether it was there before.
    pub was_there: bool,
}

/// A client of one route's API.
#[derive(Debug)]
pub struct ForgeClient {
    upstream: Upstream,
    forge: Forge,
}

impl ForgeClient {
    /// Builds the client for a route whose secrets were read.
    ///
    /// # Errors
    /// [`ForgeError`]
    pub fn new(route: &Route) -> Result<Self, ForgeError> {
        let no_api = || ForgeError::NoApi(route.name.clone());
        let PullRequests {
            forge, api, secret, ..
        } = route.git.pull_requests.as_ref().ok_or_else(no_api)?;
        let (header, prefix) = token_header(*forge);
        let mut of_api = Route {
            upstream: api.clone(),
            header: header.to_owned(),
            prefix: prefix.to_owned(),
            secret: secret.clone().or_else(|| route.secret.clone()),
            ..route.clone()
        };
        of_api.git.user = None;
        Ok(Self {
            upstream: Upstream::new(&of_api)?,
            forge: *forge,
        })
    }

    /// Opens a pull request, or finds the one that there is for the same branches.
    ///
    /// # Errors
    /// [`ForgeError`]
    pub async fn open(&self, new: &NewPullRequest<'_>) -> Result<OpenedPullRequest, ForgeError> {
        let (status, body) = self.send(new.open(self.forge)).await?;
        let conflict = match NewPullRequest::read_opened(self.forge, status, &body) {
            Ok(request) => {
                return Ok(OpenedPullRequest {
                    request,
                    was_there: false,
                });
            }
            Err(conflict @ ForgeFault::Conflict { .. }) => conflict,
            Err(fault) => return Err(fault.into()),
        };
        let (status, body) = self.send(new.list(self.forge)).await?;
        match new.read_listed(self.forge, status, &body)? {
            Some(request) => Ok(OpenedPullRequest {
                request,
                was_there: true,
            }),
            None => Err(conflict.into()),
        }
    }

    async fn send(&self, request: ApiRequest) -> Result<(u16, Vec<u8>), ForgeError> {
        let keyed = self.upstream.keyed_client();
        let bad = |error: hyper::http::Error| ForgeError::Failed(error.to_string());
        let mut built = Request::builder()
            .method(request.method)
            .uri(self.upstream.uri(&request.target))
            .header(USER_AGENT, concat!("marshal/", env!("CARGO_PKG_VERSION")));
        for (name, value) in request.headers {
            built = built.header(*name, *value);
        }
        if !request.body.is_empty() {
            built = built.header(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        if let Some((name, key)) = &keyed.key {
            built = built.header(name, key);
        }
        let outgoing = built
            .body(FullBody::from_bytes(request.body))
            .map_err(bad)?;
        let exchange = async {
            let answer = keyed.client.request(outgoing).await;
            let answer = answer.map_err(|error| ForgeError::Failed(describe_error(&error)))?;
            let status = answer.status().as_u16();
            Ok::<_, ForgeError>((status, read_whole(answer.into_body()).await?))
        };
        let answer = tokio::time::timeout(FORGE_TIMEOUT, exchange).await;
        let (status, body) = answer.map_err(|_| ForgeError::Timeout)??;
        let forms = keyed.key_forms.as_ref();
        if forms.is_some_and(|forms| forms.is_in(&body)) {
            return Err(ForgeError::ShowsToken);
        }
        Ok((status, body))
    }
}

async fn read_whole(mut body: Incoming) -> Result<Vec<u8>, ForgeError> {
    let mut whole = Vec::new();
    while let Some(frame) = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        let frame = frame.map_err(|_| ForgeError::Failed("the answer was cut off".to_owned()))?;
        whole.extend_from_slice(frame.data_ref().map_or(&[][..], Bytes::as_ref));
        if whole.len() > FORGE_ANSWER_BYTES {
            return Err(ForgeError::TooLong);
        }
    }
    Ok(whole)
}
