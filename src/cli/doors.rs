//! Opens and closes the doors of a supervisor: the HTTP address and the control socket.
//!
//! Owns what a taken address means for `run` and for `up`. Must not know what is served.

use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use axum::Router;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::exit::Exit;
use super::streams::Output;
use super::trust::{OpenError, open_trusted, why};
use crate::api::Fleet;
use crate::api::http::{self, Pages, Render};
use crate::api::reply::Role;
use crate::api::tokens::{self, Tokens};
use crate::api::{ask_pages, chat_pages, control, policy_pages};
use crate::chat::Chats;

/// Listens on the configured address. A port of 0 is the system's choice, which is printed. If
/// the address cannot be had, `run` says so and goes on without it, and `up` cannot start.
///
/// # Errors
/// [`Exit::CannotStart`] for a daemon; what was wrong is printed.
pub async fn listen(
    addr: SocketAddr,
    role: Role,
    err: &mut Output,
) -> Result<Option<http::Listener>, Exit> {
    match http::bind(addr).await {
        Ok(listener) => {
            if addr.port() == 0 || role == Role::Daemon {
                err.line(&format!("listening on http://{}", listener.addr()));
            }
            Ok(Some(listener))
        }
        Err(error) if role != Role::Daemon => {
            err.line(&format!("note: {error}; going on without /metrics"));
            Ok(None)
        }
        Err(error) => {
            err.line(&format!("error: {error}"));
            Err(Exit::CannotStart)
        }
    }
}

/// The tokens of a state directory. Without them the asks are not served, which is said.
pub fn tokens(state: &Path, err: &mut Output) -> Option<Tokens> {
    Tokens::of(state, open_token)
        .inspect_err(|error| {
            let name = tokens::TOKEN_FILE;
            err.line(&format!(
                "note: cannot write {name}: {error}; going on without /asks"
            ));
        })
        .ok()
}

/// Whoever can put a token there can answer: its file is trusted like one that is code.
fn open_token(path: &Path) -> Result<Option<File>, String> {
    let path = std::path::absolute(path).map_err(|error| error.to_string())?;
    match open_trusted(&path) {
        Ok(file) => Ok(Some(file)),
        Err(OpenError::Read(error)) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(OpenError::Read(error)) => Err(format!("it cannot be opened: {}", why(&error))),
        Err(OpenError::Untrusted(error)) => Err(error.to_string()),
    }
}

/// What the doors show beside the fleet.
#[derive(Default)]
pub struct With {
    /// Who may see the asks and chats; without tokens there are no pages of them.
    pub tokens: Option<Tokens>,
    /// The runs that clients may watch.
    pub runs: Arc<control::Runs>,
    /// The chats, in a daemon.
    pub chats: Option<Chats>,
}

impl With {
    /// Who may see the asks, and nothing more.
    #[must_use]
    pub fn of(tokens: Option<Tokens>) -> Self {
        Self {
            tokens,
            ..Self::default()
        }
    }

    /// What a daemon shows beside that.
    #[must_use]
    pub fn and(self, runs: Arc<control::Runs>, chats: Chats) -> Self {
        Self {
            runs,
            chats: Some(chats),
            ..self
        }
    }
}

/// Open doors. They close with [`Doors::close`].
#[derive(Debug)]
pub struct Doors {
    runs: Arc<control::Runs>,
    chats: Option<Chats>,
    stop: CancellationToken,
    serving: TaskTracker,
}

impl Doors {
    /// Serves what was bound. `metrics` renders the page of `/metrics`. Must be called inside a
    /// runtime.
    #[must_use]
    pub fn open<F: Fleet>(
        fleet: &F,
        role: Role,
        http: Option<http::Listener>,
        control: control::Listener,
        metrics: Render,
        with: With,
    ) -> Self {
        let With {
            tokens,
            runs,
            chats,
        } = with;
        let stop = CancellationToken::new();
        let serving = TaskTracker::new();
        if let Some(http) = http {
            let asked = fleet.clone();
            let pages = Pages {
                metrics,
                ready: Arc::new(move || asked.readiness()),
                asks: tokens.map_or_else(Router::new, |tokens| {
                    let policies = policy_pages::router(fleet.clone(), tokens.clone());
                    let chats = chats.clone().map_or_else(Router::new, |chats| {
                        chat_pages::router(chats, tokens.clone(), stop.clone())
                    });
                    let asks = ask_pages::router(fleet.clone(), tokens, stop.clone());
                    asks.merge(policies).merge(chats)
                }),
            };
            serving.spawn(http::serve(
                http,
                pages,
                http::Bounds::default(),
                stop.clone(),
            ));
        }
        serving.spawn(control::serve(
            control,
            fleet.clone(),
            role,
            control::Bounds::default(),
            Arc::clone(&runs),
            stop.clone(),
        ));
        serving.close();
        Self {
            runs,
            chats,
            stop,
            serving,
        }
    }

    /// Begins no turn of a chat any more.
    pub fn stop_chats(&self) {
        if let Some(chats) = &self.chats {
            chats.stop_working();
        }
    }

    /// The runs that clients may watch.
    #[must_use]
    pub fn runs(&self) -> Arc<control::Runs> {
        Arc::clone(&self.runs)
    }

    /// Lets open requests end, within their bounds, and removes the control socket.
    pub async fn close(self) {
        self.stop.cancel();
        self.serving.wait().await;
    }
}
