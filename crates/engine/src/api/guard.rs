//! Who may have a page: the role that each route needs, looked at before anything else of a request.
//!
//! Owns the order of the checks: a token (401), how often it comes (429), what it is good for (403),
//! and only then the page, which alone reads a body. Must not know the pages.
//!
//! Every router is put behind the guard by `guarded`. A new page has its router and its table of routes
//! in one file, as in `policy_pages.rs`; `cli/listeners.rs` merges it. `tests/drills/fleet/door.rs` calls each
//! route with each role.

mod rate;

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::Response;

use super::http::{problem, with_connection_close};
use super::tokens::{Caller, Tokens, digest};
use super::web_socket;
pub use marshal_model::Role;

pub(super) use rate::{Digest, Rates};

/// What each route of some pages needs: its method, its path as the router has it, the role. What is
/// not in the table is the admin's.
pub type RouteRoles = &'static [(Method, &'static str, Role)];

/// Who is at the other end of a connection.
#[derive(Debug, Clone, Copy)]
pub(super) enum Peer {
    /// The supervisor's user or root, over the socket: the kernel said so.
    Owner,
    /// Whoever can reach the address.
    Address {
        /// Where it comes from.
        remote: IpAddr,
        /// Which of our addresses it came to.
        local: SocketAddr,
    },
}

impl Peer {
    /// Whether it may be on another host.
    pub(super) fn is_beyond_loopback(self) -> bool {
        match self {
            Self::Owner => false,
            Self::Address { local, .. } => !local.ip().to_canonical().is_loopback(),
        }
    }
}

/// What pages are about: the tokens of approvers are for asks and nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RouteScope {
    /// Asks.
    Approvals,
    /// Anything else.
    Fleet,
}

/// What a router is kept by.
#[derive(Debug, Clone)]
struct Guard {
    tokens: Tokens,
    routes: RouteRoles,
    about: RouteScope,
}

/// Lets through to `pages` who has the role that `routes` says. The request then holds a [`Caller`],
/// and the name by which it answers asks.
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
    let caller = match identify(&guard.tokens, RequestCredentials::from_request(&request)).await {
        Ok(caller) => caller,
        Err(refused) => return refused,
    };
    let needed = match required_role(guard.routes, &request) {
        Ok(needed) => needed,
        Err(allowed) => return method_not_allowed(&allowed),
    };
    if !caller.role.satisfies(needed)
        || caller.approvals_only && guard.about != RouteScope::Approvals
    {
        return forbidden(&caller, needed);
    }
    request.extensions_mut().insert(caller.approver.clone());
    request.extensions_mut().insert(caller);
    run_to_completion(request, next).await
}

/// What changes something is carried out to its end, also when whoever asked for it goes away
/// meanwhile: half of it would be durable and not begun.
async fn run_to_completion(request: Request, next: Next) -> Response {
    if matches!(*request.method(), Method::GET | Method::HEAD) {
        return next.run(request).await;
    }
    let carried_out = tokio::spawn(next.run(request)).await;
    carried_out.unwrap_or_else(|_| {
        let detail = "this went wrong: see the supervisor's log";
        problem(StatusCode::INTERNAL_SERVER_ERROR, detail)
    })
}

/// What a request says of who asks.
#[derive(Debug)]
pub(super) struct RequestCredentials {
    peer: Option<Peer>,
    token: Option<Digest>,
}

impl RequestCredentials {
    pub(super) fn from_request(request: &Request) -> Self {
        Self {
            peer: request.extensions().get().copied(),
            token: bearer_token(request.headers()).map(|token| digest(&token)),
        }
    }
}

/// Who a request is from, or the answer to it.
pub(super) async fn identify(
    tokens: &Tokens,
    asker: RequestCredentials,
) -> Result<Caller, Response> {
    let now = Instant::now();
    let remote = match asker.peer {
        Some(Peer::Owner) => {
            let asked = tokens.rates().admit_caller("the socket", None, now);
            return asked.map(|()| Caller::owner()).map_err(too_many_requests);
        }
        Some(Peer::Address { remote, .. }) => remote,
        // Nobody knows where it comes from.
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
    let looked = tokens.clone();
    let found = tokio::task::spawn_blocking(move || looked.find_caller(&token));
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

/// The role that a request's route needs; else the methods that its path has.
fn required_role(routes: RouteRoles, request: &Request) -> Result<Role, String> {
    let path = request.extensions().get::<MatchedPath>();
    let Some(path) = path.map(MatchedPath::as_str) else {
        return Ok(Role::Admin);
    };
    let of_path = || routes.iter().filter(|(_, known, _)| *known == path);
    // A page that can be had can be asked about.
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
    Err(allowed.join(", "))
}

/// What stands after the scheme, whose letters may be of either case.
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
    let detail = "a token is needed: Authorization: Bearer, and what stands in http.token of the state directory";
    let mut response = problem(StatusCode::UNAUTHORIZED, detail);
    let how = HeaderValue::from_static("Bearer");
    response.headers_mut().insert(header::WWW_AUTHENTICATE, how);
    with_connection_close(response)
}

pub(super) fn forbidden(caller: &Caller, needed: Role) -> Response {
    let detail = if caller.approvals_only {
        "the token of an approver is for asks only".to_owned()
    } else {
        let has = caller.role;
        format!("this needs the role {needed}, and the token has the role {has}")
    };
    with_connection_close(problem(StatusCode::FORBIDDEN, &detail))
}

fn too_many_requests(wait: Duration) -> Response {
    let detail = "there are too many requests: wait for what Retry-After says";
    let mut response = problem(StatusCode::TOO_MANY_REQUESTS, detail);
    let seconds = wait.as_secs_f64().ceil().max(1.0);
    if let Ok(value) = HeaderValue::from_str(&format!("{seconds}")) {
        response.headers_mut().insert(header::RETRY_AFTER, value);
    }
    with_connection_close(response)
}

fn method_not_allowed(allowed: &str) -> Response {
    let detail = format!("this page knows {allowed} only");
    let mut response = problem(StatusCode::METHOD_NOT_ALLOWED, &detail);
    if let Ok(value) = HeaderValue::from_str(allowed) {
        response.headers_mut().insert(header::ALLOW, value);
    }
    with_connection_close(response)
}

#[cfg(test)]
#[path = "guard/tests.rs"]
mod tests;
