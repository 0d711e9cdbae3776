//! Authentication and authorization: checks the role that each route requires before anything else
//! of a request is read.
//!
//! Owns the order of the checks: the token (401), the request rate (429), the role (403). Only then
//! the handler runs, which alone reads the body. Must not know the handlers.
//!
//! `with_guard` puts a router behind the guard. A new set of routes has its router and its table
//! of roles in one file, as in `policy_routes.rs`; `cli/listeners.rs` merges it.
//! `tests/drills/fleet/http_access.rs` calls each route with each role.

mod rate;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::Response;

use super::http::{KeyWatch, problem, with_connection_close};
use super::tokens::{Caller, Tokens, digest};
use super::web_socket;
pub use marshal_model::Role;

pub(super) use rate::{Digest, Rates};

/// The role that each route requires: method, path in the router's syntax, role. A route that is
/// not in the table requires `admin`.
pub type RouteRoles = &'static [(Method, &'static str, Role)];

/// The peer of a connection.
#[derive(Debug, Clone, Copy)]
pub(super) enum Peer {
    /// The supervisor's user or root, on the Unix socket; the kernel reports the uid.
    Owner(u32),
    /// Anyone who can reach the TCP address.
    Address {
        /// The remote address.
        remote: IpAddr,
        /// The local address of the connection.
        local: SocketAddr,
    },
}

impl Peer {
    /// The peer as if it had come over the loopback: a browser's session has the role of its token,
    /// also over the socket.
    fn without_owner(self) -> Self {
        match self {
            Self::Owner(_) => Self::Address {
                remote: Ipv4Addr::LOCALHOST.into(),
                local: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            },
            address @ Self::Address { .. } => address,
        }
    }

    /// The address that guesses are counted by.
    pub(super) fn remote(self) -> IpAddr {
        match self {
            Self::Owner(_) => Ipv4Addr::LOCALHOST.into(),
            Self::Address { remote, .. } => remote,
        }
    }

    /// Whether the peer may be on another host.
    pub(super) fn is_beyond_loopback(self) -> bool {
        match self {
            Self::Owner(_) => false,
            Self::Address { local, .. } => !local.ip().to_canonical().is_loopback(),
        }
    }
}

/// The scope of a router: tokens of approvers give access only to approvals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RouteScope {
    /// Approvals.
    Approvals,
    /// Anything else.
    Fleet,
}

/// The state of the guard of one router.
#[derive(Debug, Clone)]
struct Guard {
    tokens: Tokens,
    routes: RouteRoles,
    about: RouteScope,
}

/// Forwards a request to `pages` if its caller has the role in `routes`. The request then has a
/// [`Caller`] as an extension, with the name by which it answers approvals.
pub(super) fn with_guard<S: Clone + Send + Sync + 'static>(
    pages: Router<S>,
    tokens: &Tokens,
    routes: RouteRoles,
    about: RouteScope,
) -> Router<S> {
    let guard = Guard {
        tokens: tokens.clone(),
        routes,
        about,
    };
    pages.layer(middleware::from_fn_with_state(guard, authorize))
}

async fn authorize(State(guard): State<Guard>, mut request: Request, next: Next) -> Response {
    let credentials = RequestCredentials::from_request(&request);
    let keys = request.extensions().get::<KeyWatch>().cloned();
    let caller = loop {
        let changes = guard.tokens.changes();
        let caller = match identify(&guard.tokens, credentials).await {
            Ok(caller) => caller,
            Err(refused) => return refused,
        };
        let by_token = credentials.token.filter(|_| !credentials.is_owner());
        if let (Some(keys), Some(token)) = (&keys, by_token) {
            keys.set_caller(token, caller.clone());
        }
        // From here on the watch notices a reload; one before it may have replaced the token.
        if !changes.has_changed().unwrap_or(false) {
            break caller;
        }
    };
    let needed = match required_role(guard.routes, &request) {
        Ok(needed) => needed,
        Err(error) => return method_not_allowed(&error),
    };
    if !caller.role.satisfies(needed)
        || caller.approvals_only && guard.about != RouteScope::Approvals
    {
        return forbidden(&caller, needed);
    }
    request.extensions_mut().insert(caller);
    run_to_completion(request, next).await
}

/// Runs a changing request to completion, also when its client disconnects. Otherwise half of it
/// could be durable and the rest not started.
async fn run_to_completion(request: Request, next: Next) -> Response {
    if matches!(*request.method(), Method::GET | Method::HEAD) {
        return next.run(request).await;
    }
    let carried_out = tokio::spawn(next.run(request)).await;
    carried_out.unwrap_or_else(|_| {
        let detail = "internal error: see the supervisor's log";
        problem(StatusCode::INTERNAL_SERVER_ERROR, detail)
    })
}

/// The token of a browser's session, as an extension of a request that a page of the dashboard makes
/// in this process. It takes the place of the request's own credentials.
#[derive(Debug, Clone, Copy)]
pub struct SessionToken(pub(super) Digest);

/// The credentials of a request.
#[derive(Debug, Clone, Copy)]
pub(super) struct RequestCredentials {
    peer: Option<Peer>,
    token: Option<Digest>,
}

impl RequestCredentials {
    /// Whether the kernel says who asks, and no token.
    fn is_owner(self) -> bool {
        matches!(self.peer, Some(Peer::Owner(_)))
    }

    pub(super) fn from_request(request: &Request) -> Self {
        let peer: Option<Peer> = request.extensions().get().copied();
        if let Some(SessionToken(token)) = request.extensions().get() {
            return Self {
                peer: peer.map(Peer::without_owner),
                token: Some(*token),
            };
        }
        Self {
            peer,
            token: bearer_token(request.headers()).map(|token| digest(&token)),
        }
    }
}

/// Identifies the caller of a request, or returns the error response.
pub(super) async fn identify(
    tokens: &Tokens,
    asker: RequestCredentials,
) -> Result<Caller, Response> {
    let now = Instant::now();
    let remote = match asker.peer {
        Some(Peer::Owner(uid)) => {
            let admitted = tokens.rates().admit_caller("the socket", None, now);
            return admitted
                .map(|()| Caller::by_owner(Some(uid)))
                .map_err(too_many_requests);
        }
        Some(Peer::Address { remote, .. }) => remote,
        // The peer's address is unknown.
        None => return Err(unauthorized()),
    };
    let stranger = |tokens: &Tokens| match tokens.rates().admit_unknown(remote, now) {
        Ok(()) => unauthorized(),
        Err(wait) => too_many_requests(wait),
    };
    let Some(token) = asker.token else {
        return Err(stranger(tokens));
    };
    if let Some(wait) = tokens.rates().retry_after(remote, &token, now) {
        return Err(too_many_requests(wait));
    }
    let lookup = tokens.clone();
    let found = tokio::task::spawn_blocking(move || lookup.find_caller(&token));
    let Some(caller) = found.await.ok().flatten() else {
        tokens.rates().forget(&token);
        return Err(stranger(tokens));
    };
    let name = caller.approver.to_string();
    match tokens.rates().admit_caller(&name, Some(token), now) {
        Ok(()) => Ok(caller),
        Err(wait) => Err(too_many_requests(wait)),
    }
}

/// A request's path has no route of its method: the methods that it allows.
#[derive(Debug, thiserror::Error)]
#[error("this resource allows {0} only")]
struct MethodNotAllowed(String);

/// Returns the role that a request's route requires.
fn required_role(routes: RouteRoles, request: &Request) -> Result<Role, MethodNotAllowed> {
    let path = request.extensions().get::<MatchedPath>();
    let Some(path) = path.map(MatchedPath::as_str) else {
        return Ok(Role::Admin);
    };
    let of_path = || routes.iter().filter(|(_, known, _)| *known == path);
    // HEAD is allowed where GET is.
    let method = match *request.method() {
        Method::HEAD => &Method::GET,
        ref method => method,
    };
    if let Some((_, _, role)) = of_path().find(|(known, _, _)| known == method) {
        return Ok(*role);
    }
    let mut allowed: Vec<&str> = of_path().map(|(known, _, _)| known.as_str()).collect();
    if allowed.is_empty() {
        return Ok(Role::Admin);
    }
    if allowed.contains(&"GET") {
        allowed.push("HEAD");
    }
    Err(MethodNotAllowed(allowed.join(", ")))
}

/// Returns the bearer token; the scheme is case-insensitive.
fn bearer_token(headers: &HeaderMap) -> Option<String> {
    if !headers.contains_key(header::AUTHORIZATION) {
        return web_socket::bearer_subprotocol(headers);
    }
    let mut given = headers.get_all(header::AUTHORIZATION).iter();
    let (Some(one), None) = (given.next(), given.next()) else {
        return None;
    };
    let (scheme, token) = one.to_str().ok()?.split_once(' ')?;
    let is_bearer = scheme.eq_ignore_ascii_case("bearer");
    is_bearer.then(|| token.trim().to_owned())
}

fn unauthorized() -> Response {
    let detail = "a token is required: send Authorization: Bearer with the content of http.token in the state directory";
    let mut response = problem(StatusCode::UNAUTHORIZED, detail);
    let how = HeaderValue::from_static("Bearer");
    response.headers_mut().insert(header::WWW_AUTHENTICATE, how);
    with_connection_close(response)
}

pub(super) fn forbidden(caller: &Caller, needed: Role) -> Response {
    let detail = if caller.approvals_only {
        "an approver's token gives access to approvals only".to_owned()
    } else {
        let has = caller.role;
        format!("this requires the role {needed}, and the token has the role {has}")
    };
    with_connection_close(problem(StatusCode::FORBIDDEN, &detail))
}

fn too_many_requests(wait: Duration) -> Response {
    let detail = "too many requests: wait for the seconds in Retry-After";
    let mut response = problem(StatusCode::TOO_MANY_REQUESTS, detail);
    let seconds = wait.as_secs_f64().ceil().max(1.0);
    if let Ok(value) = HeaderValue::from_str(&format!("{seconds}")) {
        response.headers_mut().insert(header::RETRY_AFTER, value);
    }
    with_connection_close(response)
}

fn method_not_allowed(error: &MethodNotAllowed) -> Response {
    let mut response = problem(StatusCode::METHOD_NOT_ALLOWED, &error.to_string());
    if let Ok(value) = HeaderValue::from_str(&error.0) {
        response.headers_mut().insert(header::ALLOW, value);
    }
    with_connection_close(response)
}

#[cfg(test)]
#[path = "guard/tests.rs"]
mod tests;
