//! Posts one document to a configured address: signed, once, within a time limit.
//!
//! The address comes from the configuration, so it is trusted; the response is not. No redirect is
//! followed, only the status counts, and the body is read up to a limit. Must not know what the
//! document says.

use std::error::Error as _;
use std::fmt::Write as _;
use std::pin::Pin;

use hyper::body::{Body as _, Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue, USER_AGENT};
use hyper::{Method, Request, Response, Uri};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{Client, Error as ClientError};
use hyper_util::rt::TokioExecutor;
use ring::hmac;

use super::bodies::{FullBody, RequestBody};
use super::tls::{TlsError, client_config};
use marshal_config::HookAddress;
use marshal_model::limits::{HOOK_ANSWER_BYTES, HOOK_HEAD_BYTES, HOOK_POST};
use marshal_model::untrusted::escape_for_display;

/// Why a webhook client cannot be built. No message contains the secret or the address.
#[derive(Debug, thiserror::Error)]
pub enum WebhookSetupError {
    /// The secret was not read.
    #[error("hook {0}: its secret was not read")]
    Secret(String),
    /// The address is not a valid URL.
    #[error("hook {0}: its address is not usable")]
    Address(String),
    /// TLS cannot be set up.
    #[error("hook {0}: {1}")]
    Tls(String, TlsError),
}

impl WebhookSetupError {
    /// The key of the hook's configuration table that is at fault.
    #[must_use]
    pub const fn config_key(&self) -> &'static str {
        match self {
            Self::Secret(_) => "secret",
            Self::Address(_) => "url",
            Self::Tls(..) => "ca",
        }
    }
}

/// Why a document was not delivered.
#[derive(Debug, thiserror::Error)]
pub enum WebhookError {
    /// No response arrived in time.
    #[error("no answer within {HOOK_POST:?}")]
    Timeout,
    /// The connection, TLS or HTTP failed.
    #[error("{0}")]
    Failed(String),
    /// The server responded with a redirect.
    #[error(
        "the server answered with the redirect {0}, which marshal does not follow: configure the final address"
    )]
    Redirect(u16),
    /// The server responded with another status than success.
    #[error("the server answered with {0}")]
    Refused(u16),
}

impl WebhookError {
    /// Whether another attempt may succeed.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        match self {
            Self::Timeout | Self::Failed(_) => true,
            Self::Redirect(_) => false,
            Self::Refused(status) => matches!(status, 408 | 425 | 429 | 500..=599),
        }
    }
}

/// A client for one hook's address.
pub struct WebhookClient {
    client: Client<HttpsConnector<HttpConnector>, RequestBody>,
    uri: Uri,
    key: hmac::Key,
}

impl std::fmt::Debug for WebhookClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Poster")
    }
}

impl WebhookClient {
    /// Builds the client for an address whose secret and authorities were read.
    ///
    /// # Errors
    /// [`WebhookSetupError`]
    pub fn new(name: &str, to: &HookAddress) -> Result<Self, WebhookSetupError> {
        let secret = to
            .secret
            .expose()
            .ok_or_else(|| WebhookSetupError::Secret(name.to_owned()))?;
        let uri: Uri = to
            .url
            .as_str()
            .parse()
            .map_err(|_| WebhookSetupError::Address(name.to_owned()))?;
        let tls = client_config(to.ca.as_ref())
            .map_err(|error| WebhookSetupError::Tls(name.to_owned(), error))?;
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(HOOK_POST));
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(tls)
            .https_or_http()
            .enable_http1()
            .wrap_connector(tcp);
        // One connection for each document: a server closes an idle one before the next document.
        let client = Client::builder(TokioExecutor::new())
            .pool_max_idle_per_host(0)
            .http1_max_buf_size(HOOK_HEAD_BYTES)
            .build(connector);
        Ok(Self {
            client,
            uri,
            key: hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes()),
        })
    }

    /// Posts one document. `at` is the current time in seconds since the Unix epoch; the signature
    /// covers it.
    ///
    /// # Errors
    /// [`WebhookError`]. A retry has the same `id`, so that a receiver recognises duplicates.
    pub async fn post(
        &self,
        json: &str,
        id: &str,
        event: &str,
        at: i64,
    ) -> Result<(), WebhookError> {
        let mut status = None;
        let exchange = async {
            let answer = self
                .client
                .request(self.build_request(json, id, event, at)?)
                .await
                .map_err(|error| WebhookError::Failed(describe_error(&error)))?;
            status = Some(answer.status().as_u16());
            drain_body(answer).await;
            Ok(())
        };
        if let Ok(Err(failed)) = tokio::time::timeout(HOOK_POST, exchange).await {
            return Err(failed);
        }
        match status {
            Some(200..=299) => Ok(()),
            Some(status @ 300..=399) => Err(WebhookError::Redirect(status)),
            Some(status) => Err(WebhookError::Refused(status)),
            None => Err(WebhookError::Timeout),
        }
    }

    fn build_request(
        &self,
        json: &str,
        id: &str,
        event: &str,
        at: i64,
    ) -> Result<Request<RequestBody>, WebhookError> {
        let signed = format!("{at}.{json}");
        let signature = hmac::sign(&self.key, signed.as_bytes());
        let shown = format!("v1={}", hex::encode(signature));
        let body = FullBody::from_bytes(Bytes::copy_from_slice(json.as_bytes()));
        Request::builder()
            .method(Method::POST)
            .uri(self.uri.clone())
            .header(CONTENT_TYPE, HeaderValue::from_static("application/json"))
            .header(USER_AGENT, concat!("marshal/", env!("CARGO_PKG_VERSION")))
            .header("x-marshal-event", event)
            .header("x-marshal-delivery", id)
            .header("x-marshal-timestamp", at)
            .header("x-marshal-signature", shown)
            .body(body)
            .map_err(|error| WebhookError::Failed(error.to_string()))
    }
}

/// Reads a response body up to its end or the limit, and drops it.
async fn drain_body(answer: Response<Incoming>) {
    let mut body = answer.into_body();
    let mut left = HOOK_ANSWER_BYTES;
    while let Some(Ok(frame)) = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await
    {
        let got = frame.data_ref().map_or(0, Bytes::len);
        if got >= left {
            return;
        }
        left -= got;
    }
}

/// An error of the HTTP library with its cause.
pub(super) fn describe_error(error: &ClientError) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(of) = source {
        let _ = write!(text, ": {of}");
        source = of.source();
    }
    escape_for_display(&text, 300)
}
