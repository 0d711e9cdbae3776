//! The dashboard: pages for a browser over the HTTP API.
//!
//! A page asks the routes of `/api/v1` in this process, with the token of its browser's session, so it
//! sees and does exactly what a client with that token may (`api`). Owns the pages, their cookie and
//! their headers. Must not know the fleet, the journal, or anything that the API does not say.
//!
//! What an agent wrote reaches a page through `text` and is escaped by the templates. It is never part
//! of a script, a style or an address: scripts and styles are files of this crate (`assets`), and the
//! policy in `headers` lets the browser run nothing else.

#![allow(
    clippy::unused_async,
    reason = "all handlers have one form, whether they wait or not"
)]

mod api;
mod approvals;
mod assets;
mod cost;
mod fleet;
mod layout;
mod live;
mod login;
mod request;
mod session;
mod tasks;
mod text;

use std::time::Instant;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Redirect, Response};
use axum::routing::{get, post};

use marshal_engine::api::tokens::Tokens;

use crate::layout::message;

/// What the browser may load and run: this server's files, and nothing that is written in a page.
const CONTENT_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
     img-src 'self' data:; connect-src 'self'; form-action 'self'; frame-ancestors 'none'; \
     base-uri 'none'";

/// The shared state of the pages.
#[derive(Clone)]
pub(crate) struct App {
    /// The routes of the API, behind their guard.
    api: Router,
    tokens: Tokens,
    /// Whether the address has TLS: its cookie is then for this host and TLS only.
    is_tls: bool,
}

impl App {
    fn cookie_name(&self) -> &'static str {
        if self.is_tls {
            "__Host-marshal"
        } else {
            "marshal"
        }
    }

    /// Returns what the cookie of a session holds, if the request has one.
    fn cookie<'h>(&self, headers: &'h HeaderMap) -> Option<&'h str> {
        let lines = headers.get_all(header::COOKIE).iter();
        let mut pairs = lines
            .filter_map(|line| line.to_str().ok())
            .flat_map(|line| line.split(';'))
            .filter_map(|pair| pair.trim().split_once('='));
        let name = self.cookie_name();
        pairs.find_map(|(key, value)| (key == name).then_some(value))
    }

    /// Returns the header that sets the cookie; an empty one ends it.
    fn set_cookie(&self, value: &str) -> HeaderValue {
        let name = self.cookie_name();
        let secure = if self.is_tls { "; Secure" } else { "" };
        let age = if value.is_empty() { "; Max-Age=0" } else { "" };
        let line = format!("{name}={value}; Path=/; HttpOnly; SameSite=Strict{secure}{age}");
        HeaderValue::try_from(line).unwrap_or(HeaderValue::from_static(""))
    }
}

/// Creates the router of the pages. `api` has the routes of `/api/v1`.
pub fn router(api: Router, tokens: &Tokens, is_tls: bool) -> Router {
    let app = App {
        api,
        tokens: tokens.clone(),
        is_tls,
    };
    let pages = Router::new()
        .route("/", get(fleet::page))
        .route("/ui/live", get(live::fleet))
        .route("/ui/approvals", get(approvals::list))
        .route(
            "/ui/approvals/{id}",
            get(approvals::one).post(approvals::answer),
        )
        .route("/ui/sessions/{id}", get(session::page))
        .route("/ui/sessions/{id}/live", get(live::session))
        .route("/ui/sessions/{id}/diff", get(session::diff))
        .route("/ui/sessions/{id}/{order}", post(session::order))
        .route("/ui/slots/{pool}/{slot}/log", get(session::log))
        .route("/ui/slots/{pool}/{slot}/log/live", get(live::log))
        .route("/ui/slots/{pool}/{slot}/restart", post(fleet::restart))
        .route("/ui/tasks", get(tasks::list))
        .route("/ui/tasks/{id}", get(tasks::one))
        .route("/ui/tasks/{id}/cancel", post(tasks::cancel))
        .route("/ui/cost", get(cost::page))
        .layer(middleware::from_fn_with_state(app.clone(), with_session))
        .route("/login", get(login::form).post(login::log_in))
        .route("/logout", post(login::log_out));
    pages
        .layer(middleware::from_fn(same_origin_only))
        .layer(middleware::from_fn(headers))
        .route("/assets/{hash}/{name}", get(assets::asset))
        .with_state(app)
}

/// Gives a request the token of its session; without one, the person logs in first.
async fn with_session(State(app): State<App>, mut request: Request, next: Next) -> Response {
    let cookie = app.cookie(request.headers());
    let token = cookie.and_then(|cookie| app.tokens.logins().find(cookie, Instant::now()));
    let Some(token) = token else {
        // A stream is not followed to another page.
        if request.uri().path().ends_with("/live") {
            return StatusCode::UNAUTHORIZED.into_response();
        }
        return Redirect::to("/login").into_response();
    };
    request.extensions_mut().insert(token);
    next.run(request).await
}

/// Refuses a change that a page of another server makes a browser send. The cookie is not sent from
/// there anyway (`SameSite`), and `Origin` is checked for all requests; a browser that sends neither
/// header is too old to be believed.
async fn same_origin_only(request: Request, next: Next) -> Response {
    let headers = request.headers();
    let site = headers.get("sec-fetch-site").map(HeaderValue::as_bytes);
    let is_own = match site {
        Some(site) => site == b"same-origin",
        None => headers.contains_key(header::ORIGIN),
    };
    if matches!(*request.method(), Method::GET | Method::HEAD) || is_own {
        return next.run(request).await;
    }
    let detail = "this was not sent by a page of this server: open the dashboard and try again";
    message(StatusCode::FORBIDDEN, "Refused", detail)
}

/// Sets the headers of every page.
async fn headers(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, CONTENT_POLICY),
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        // Not `no-referrer`: a form would then have the origin `null`, which is refused.
        (header::REFERRER_POLICY, "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}
