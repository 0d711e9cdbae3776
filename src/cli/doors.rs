//! Opens and closes the doors of a supervisor: the HTTP address and the control socket.
//!
//! Owns what a taken address means for `run` and for `up`. Must not know what is served.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use axum::Router;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::exit::Exit;
use super::streams::Output;
use crate::api::Fleet;
use crate::api::ask_pages::{self, Tokens};
use crate::api::control;
use crate::api::http::{self, Pages, Render};
use crate::api::reply::Role;

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
    Tokens::of(state)
        .inspect_err(|error| {
            let name = ask_pages::TOKEN_FILE;
            err.line(&format!(
                "note: cannot write {name}: {error}; going on without /asks"
            ));
        })
        .ok()
}

/// Open doors. They close with [`Doors::close`].
#[derive(Debug)]
pub struct Doors {
    runs: Arc<control::Runs>,
    stop: CancellationToken,
    serving: TaskTracker,
}

impl Doors {
    /// Serves what was bound. `metrics` renders the page of `/metrics`; without `tokens` there are no
    /// pages of asks. Must be called inside a
    /// runtime.
    #[must_use]
    pub fn open<F: Fleet>(
        fleet: &F,
        role: Role,
        http: Option<http::Listener>,
        control: control::Listener,
        metrics: Render,
        tokens: Option<Tokens>,
    ) -> Self {
        let stop = CancellationToken::new();
        let serving = TaskTracker::new();
        let runs = Arc::new(control::Runs::default());
        if let Some(http) = http {
            let asked = fleet.clone();
            let pages = Pages {
                metrics,
                ready: Arc::new(move || asked.readiness()),
                asks: tokens.map_or_else(Router::new, |tokens| {
                    ask_pages::router(fleet.clone(), tokens)
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
            stop,
            serving,
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
