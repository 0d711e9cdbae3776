//! Who may have a page: the role that each route needs, looked at before anything else of a request.
//!
//! Owns the order of the checks: a token (401), how often it comes (429), what it is good for (403),
//! and only then the page, which alone reads a body. Must not know the pages.

mod rate;

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::Response;

use super::http::{closing, problem};
use super::tokens::{Caller, Tokens, digest};
use super::web_socket;
pub use crate::model::Role;

pub(super) use rate::{Digest, Rates};

/// What each route of some pages needs: its method, its path as the router has it, the role. What is
/// not in the table is the admin's.
pub type Routes = &'static [(Method, &'static str, Role)];

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
pub(super) enum About {
    /// Asks.
    Asks,
    /// Anything else.
    Fleet,
}

/// What a router is kept by.
#[derive(Debug, Clone)]
struct Guard {
    tokens: Tokens,
    routes: Routes,
    about: About,
}

/// Lets through to `pages` who has the role that `routes` says. The request then holds a [`Caller`],
/// and the name by which it answers asks.
pub(super) fn guarded<S: Clone + Send + Sync + 'static>(
    pages: Router<S>,
    tokens: &Tokens,
    routes: Routes,
    about: About,
) -> Router<S> {
    let guard = Guard {
        tokens: tokens.clone(),
        routes,
        about,
    };
    pages.layer(middleware::from_fn_with_state(guard, enter))
}

async fn enter(State(guard): State<Guard>, mut request: Request, next: Next) -> Response {
    let caller = match identify(&guard.tokens, Asker::of(&request)).await {
        Ok(caller) => caller,
        Err(refused) => return refused,
    };
    let needed = match needed(guard.routes, &request) {
        Ok(needed) => needed,
        Err(allowed) => return wrong_method(&allowed),
    };
    if !caller.role.may(needed) || caller.only_asks && guard.about != About::Asks {
        return forbidden(&caller, needed);
    }
    request.extensions_mut().insert(caller.approver.clone());
    request.extensions_mut().insert(caller);
    whole(request, next).await
}

/// What changes something is carried out to its end, also when whoever asked for it goes away
/// meanwhile: half of it would be durable and not begun.
async fn whole(request: Request, next: Next) -> Response {
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
pub(super) struct Asker {
    peer: Option<Peer>,
    token: Option<Digest>,
}

impl Asker {
    pub(super) fn of(request: &Request) -> Self {
        Self {
            peer: request.extensions().get().copied(),
            token: given(request.headers()).map(|token| digest(&token)),
        }
    }
}

/// Who a request is from, or the answer to it.
pub(super) async fn identify(tokens: &Tokens, asker: Asker) -> Result<Caller, Response> {
    let now = Instant::now();
    let remote = match asker.peer {
        Some(Peer::Owner) => {
            let asked = tokens.rates().asks("the socket", None, now);
            return asked.map(|()| Caller::owner()).map_err(too_often);
        }
        Some(Peer::Address { remote, .. }) => remote,
        // Nobody knows where it comes from.
        None => return Err(unknown()),
    };
    let stranger = |tokens: &Tokens| match tokens.rates().is_strange(remote, now) {
        Ok(()) => unknown(),
        Err(wait) => too_often(wait),
    };
    let Some(token) = asker.token else {
        return Err(stranger(tokens));
    };
    if let Some(wait) = tokens.rates().must_wait(remote, &token, now) {
        return Err(too_often(wait));
    }
    let looked = tokens.clone();
    let found = tokio::task::spawn_blocking(move || looked.caller(&token));
    let Some(caller) = found.await.ok().flatten() else {
        tokens.rates().forget(&token);
        return Err(stranger(tokens));
    };
    let name = caller.approver.to_string();
    match tokens.rates().asks(&name, Some(token), now) {
        Ok(()) => Ok(caller),
        Err(wait) => Err(too_often(wait)),
    }
}

/// The role that a request's route needs; else the methods that its path has.
fn needed(routes: Routes, request: &Request) -> Result<Role, String> {
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
fn given(headers: &HeaderMap) -> Option<String> {
    if !headers.contains_key(header::AUTHORIZATION) {
        return web_socket::bearer(headers);
    }
    let mut given = headers.get_all(header::AUTHORIZATION).iter();
    let (Some(one), None) = (given.next(), given.next()) else {
        return None;
    };
    let (scheme, token) = one.to_str().ok()?.split_once(' ')?;
    let is_bearer = scheme.eq_ignore_ascii_case("bearer");
    is_bearer.then(|| token.trim().to_owned())
}

fn unknown() -> Response {
    let detail = "a token is needed: Authorization: Bearer, and what stands in http.token of the state directory";
    let mut response = problem(StatusCode::UNAUTHORIZED, detail);
    let how = HeaderValue::from_static("Bearer");
    response.headers_mut().insert(header::WWW_AUTHENTICATE, how);
    closing(response)
}

pub(super) fn forbidden(caller: &Caller, needed: Role) -> Response {
    let detail = if caller.only_asks {
        "the token of an approver is for asks only".to_owned()
    } else {
        let has = caller.role;
        format!("this needs the role {needed}, and the token has the role {has}")
    };
    closing(problem(StatusCode::FORBIDDEN, &detail))
}

fn too_often(wait: Duration) -> Response {
    let detail = "there are too many requests: wait for what Retry-After says";
    let mut response = problem(StatusCode::TOO_MANY_REQUESTS, detail);
    let seconds = wait.as_secs_f64().ceil().max(1.0);
    if let Ok(value) = HeaderValue::from_str(&format!("{seconds}")) {
        response.headers_mut().insert(header::RETRY_AFTER, value);
    }
    closing(response)
}

fn wrong_method(allowed: &str) -> Response {
    let detail = format!("this page knows {allowed} only");
    let mut response = problem(StatusCode::METHOD_NOT_ALLOWED, &detail);
    if let Ok(value) = HeaderValue::from_str(allowed) {
        response.headers_mut().insert(header::ALLOW, value);
    }
    closing(response)
}

#[cfg(test)]
#[path = "guard/tests.rs"]
mod tests;
