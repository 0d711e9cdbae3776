//! HTTP client for a delegate: one POST, one response, both bounded.
//!
//! It follows no redirect, accepts only status 200, and logs neither a body nor a token. It must
//! not know what the request means, nor what the response means.

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, StatusCode};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::{ClientConfig, RootCertStore};
use std::convert::Infallible;
use std::error::Error as _;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use marshal_config::{Secret, Upstream};
use marshal_model::DelegateError;

/// How long an idle connection stays open, and how many may.
const IDLE: (Duration, usize) = (Duration::from_secs(30), 16);

/// Why a client cannot be built. No message contains the token.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// The token was not read, or is not valid in a header.
    #[error("its token is missing, or not valid in a header")]
    Token,
    /// The URL is not valid.
    #[error("its url is not usable: {0}")]
    Url(#[from] hyper::http::uri::InvalidUri),
    /// TLS cannot be set up.
    #[error(transparent)]
    Tls(#[from] rustls::Error),
}

/// A query without a usable response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueryError {
    /// The kind, for metrics and the journal.
    pub error: DelegateError,
    /// Details for an operator.
    pub why: String,
}

impl QueryError {
    /// An error of this kind.
    pub fn new(error: DelegateError, why: impl Into<String>) -> Self {
        let why = why.into();
        Self { error, why }
    }
}

/// A client for one delegate.
pub struct DelegateClient {
    client: Client<HttpsConnector<HttpConnector>, FullBody>,
    url: hyper::Uri,
    token: Option<Secret>,
}

impl std::fmt::Debug for DelegateClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Asker({})", self.url)
    }
}

impl DelegateClient {
    /// Builds the client. It connects at the first query.
    ///
    /// # Errors
    /// [`SetupError`]
    pub fn new(url: &Upstream, token: Option<&Secret>) -> Result<Self, SetupError> {
        token.map(authorization).transpose()?;
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        let connector = HttpsConnectorBuilder::new().with_tls_config(tls_config()?);
        // Plain HTTP is in a checked configuration only for a loopback address.
        let connector = connector.https_or_http().enable_http1().wrap_connector(tcp);
        let client = Client::builder(TokioExecutor::new())
            .pool_idle_timeout(IDLE.0)
            .pool_max_idle_per_host(IDLE.1)
            .pool_timer(TokioTimer::new())
            .build(connector);
        Ok(Self {
            client,
            url: url.to_string().parse()?,
            token: token.cloned(),
        })
    }

    /// Sends the query and reads at most `most` bytes of the response. Dropping the future cancels
    /// it.
    ///
    /// # Errors
    /// [`QueryError`]
    pub async fn query(&self, body: String, most: usize) -> Result<Vec<u8>, QueryError> {
        let json = HeaderValue::from_static("application/json");
        let mut request = Request::new(FullBody(Some(body.into())));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.url.clone();
        let headers = request.headers_mut();
        headers.insert(CONTENT_TYPE, json.clone());
        headers.insert(ACCEPT, json);
        if let Some(token) = &self.token {
            // Read each time: a reload may have replaced it.
            let refuse =
                |error: SetupError| QueryError::new(DelegateError::Unreachable, error.to_string());
            headers.insert(AUTHORIZATION, authorization(token).map_err(refuse)?);
        }
        let answer = self.client.request(request).await.map_err(|error| {
            let source = error.source().map(|source| format!(": {source}"));
            let why = format!("{error}{}", source.unwrap_or_default());
            QueryError::new(DelegateError::Unreachable, why)
        })?;
        let status = answer.status();
        if status != StatusCode::OK {
            let why = format!("it answered with status {status}");
            return Err(QueryError::new(DelegateError::Status, why));
        }
        read_body(answer.into_body(), most).await
    }
}

fn authorization(token: &Secret) -> Result<HeaderValue, SetupError> {
    let value = token.expose().ok_or(SetupError::Token)?;
    let mut value =
        HeaderValue::from_str(&format!("Bearer {value}")).map_err(|_| SetupError::Token)?;
    value.set_sensitive(true);
    Ok(value)
}

async fn read_body(mut body: Incoming, most: usize) -> Result<Vec<u8>, QueryError> {
    let mut bytes = Vec::new();
    while let Some(frame) =
        std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await
    {
        let frame = frame.map_err(|error| {
            QueryError::new(
                DelegateError::Unreachable,
                format!("the connection failed during its answer: {error}"),
            )
        })?;
        let Some(piece) = frame.data_ref() else {
            continue;
        };
        if bytes.len() + piece.len() > most {
            let why = format!("its answer is longer than {most} bytes");
            return Err(QueryError::new(DelegateError::TooLong, why));
        }
        bytes.extend_from_slice(piece);
    }
    Ok(bytes)
}

fn tls_config() -> Result<ClientConfig, rustls::Error> {
    let mut roots = RootCertStore::empty();
    roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}

/// A body that is completely in memory.
struct FullBody(Option<Bytes>);

impl Body for FullBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.take().map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.as_ref().map_or(0, |bytes| bytes.len() as u64))
    }
}
