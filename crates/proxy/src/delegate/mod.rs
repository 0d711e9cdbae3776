//! The way to a decider that is asked over HTTP: one POST, one answer, both bounded.
//!
//! Floor 3. No redirect is followed, nothing but status 200 is an answer, and nothing of a body or a
//! token is logged. Must not know what is asked, nor what an answer means.

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

/// How long an idle connection is kept, and how many.
const IDLE: (Duration, usize) = (Duration::from_secs(30), 16);

/// Why a decider cannot be asked at all. No text here holds a token.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// The token was not read, or cannot be sent.
    #[error("its token cannot be put into a header")]
    Token,
    /// The URL is none.
    #[error("its url cannot be asked: {0}")]
    Url(#[from] hyper::http::uri::InvalidUri),
    /// TLS cannot be had.
    #[error(transparent)]
    Tls(#[from] rustls::Error),
}

/// Why there is no answer, and what an operator should know of that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueryError {
    /// The kind.
    pub error: DelegateError,
    /// More of it.
    pub why: String,
}

impl QueryError {
    /// Of this kind.
    pub fn new(error: DelegateError, why: impl Into<String>) -> Self {
        let why = why.into();
        Self { error, why }
    }
}

/// A client for one decider.
pub struct DelegateClient {
    client: Client<HttpsConnector<HttpConnector>, FullBody>,
    url: hyper::Uri,
    token: Option<HeaderValue>,
}

impl std::fmt::Debug for DelegateClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Asker({})", self.url)
    }
}

impl DelegateClient {
    /// Makes ready to ask. No connection is made yet.
    ///
    /// # Errors
    /// [`SetupError`]
    pub fn new(url: &Upstream, token: Option<&Secret>) -> Result<Self, SetupError> {
        let token = token.map(|token| {
            let value = token.expose().ok_or(SetupError::Token)?;
            let value = HeaderValue::from_str(&format!("Bearer {value}"));
            let mut value = value.map_err(|_| SetupError::Token)?;
            value.set_sensitive(true);
            Ok::<_, SetupError>(value)
        });
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
            token: token.transpose()?,
        })
    }

    /// Asks; of the answer at most `most` bytes are read. Dropping the future ends it.
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
            headers.insert(AUTHORIZATION, token.clone());
        }
        let answer = self.client.request(request).await.map_err(|error| {
            let source = error.source().map(|source| format!(": {source}"));
            let why = format!("{error}{}", source.unwrap_or_default());
            QueryError::new(DelegateError::Unreachable, why)
        })?;
        let status = answer.status();
        if status != StatusCode::OK {
            let why = format!("it answered {status}");
            return Err(QueryError::new(DelegateError::Status, why));
        }
        read_body(answer.into_body(), most).await
    }
}

async fn read_body(mut body: Incoming, most: usize) -> Result<Vec<u8>, QueryError> {
    let mut bytes = Vec::new();
    while let Some(frame) =
        std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await
    {
        let frame = frame.map_err(|error| {
            QueryError::new(
                DelegateError::Unreachable,
                format!("its answer broke off: {error}"),
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

/// A body that is there as a whole.
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
