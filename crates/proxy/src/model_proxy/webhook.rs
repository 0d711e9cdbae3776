//! One document posted to an address of the configuration: signed, once, within its time.
//!
//! The address is the file's, so it is trusted; the answer is not. No redirect is followed, of the
//! answer only the status counts, and no more than a bound of it is read. Must not know what the
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

/// Why an address cannot be posted to. No text here holds the secret, nor the address.
#[derive(Debug, thiserror::Error)]
pub enum WebhookSetupError {
    /// The secret was not read.
    #[error("hook {0}: its secret was not read")]
    Secret(String),
    /// The address is none.
    #[error("hook {0}: its address cannot be used")]
    Address(String),
    /// TLS cannot be had.
    #[error("hook {0}: {1}")]
    Tls(String, TlsError),
}

impl WebhookSetupError {
    /// The key of the hook's table that is at fault.
    #[must_use]
    pub const fn config_key(&self) -> &'static str {
        match self {
            Self::Secret(_) => "secret",
            Self::Address(_) => "url",
            Self::Tls(..) => "ca",
        }
    }
}

/// Why a document was not taken.
#[derive(Debug, thiserror::Error)]
pub enum WebhookError {
    /// There was no answer in time.
    #[error("no answer within {HOOK_POST:?}")]
    Timeout,
    /// No connection, no TLS, or no answer that is HTTP.
    #[error("{0}")]
    Failed(String),
    /// It wants us to go elsewhere.
    #[error(
        "the answer is {0}, a redirect, and none is followed: put the final address into the file"
    )]
    Redirect(u16),
    /// It does not take it.
    #[error("the answer is {0}")]
    Refused(u16),
}

impl WebhookError {
    /// Whether it may be taken the next time.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        match self {
            Self::Timeout | Self::Failed(_) => true,
            Self::Redirect(_) => false,
            Self::Refused(status) => matches!(status, 408 | 425 | 429 | 500..=599),
        }
    }
}

/// One address and what it takes to post to it.
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
    /// Makes ready to post to an address whose secret and authorities were read.
    ///
    /// # Errors
    /// [`WebhookSetupError`]
    pub fn new(name: &str, to: &HookAddress) -> Result<Self, WebhookSetupError> {
        let secret = to.secret.expose();
        let secret = secret.ok_or_else(|| WebhookSetupError::Secret(name.to_owned()))?;
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
        // A connection for each document: a minute later nobody would have kept it.
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

    /// Posts one document. `at` is now, in seconds since the Unix epoch: it is signed with it.
    ///
    /// # Errors
    /// [`WebhookError`]; whoever gets the same `id` twice knows that it is the same document.
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
                .request(self.build_request(json, id, event, at)?);
            let answer = answer
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

/// Reads an answer's body to its end, or to the bound, and drops it.
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

/// What the library says, all of it.
fn describe_error(error: &ClientError) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(of) = source {
        let _ = write!(text, ": {of}");
        source = of.source();
    }
    escape_for_display(&text, 300)
}
