//! Opens and closes the listeners of a supervisor: the HTTP address and the socket in its state
//! directory, by which commands control it.
//!
//! Owns what an address in use means for `run` and for `up`. Must not know what is served.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;

use axum::Router;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::agents;
use super::config_file::{Loaded, Source};
use super::exit::Exit;
use super::secrets;
use super::streams::Output;
use super::trust::{OpenError, display_path, open_trusted, why};
use super::{config_file, overlay, start};
use marshal_config::{Config, ConfigErrors, HttpConfig, NamedToken};
use marshal_engine::api::Fleet;
use marshal_engine::api::file_plane::PlaneWorker;
use marshal_engine::api::http::{self, Pages, Render, Tls};
use marshal_engine::api::runs::Runs;
use marshal_engine::api::tokens::{self, Tokens};
use marshal_engine::api::{SupervisorKind, approval_routes, policy_routes, v1};
use marshal_engine::chat::Chats;
use marshal_fleet::FleetHandle;

/// The addresses and the tokens of the configuration.
#[derive(Debug, Clone)]
pub struct ListenConfig {
    listen: SocketAddr,
    /// Whether nobody chose this address.
    is_default: bool,
    http: HttpConfig,
    tokens: BTreeMap<String, NamedToken>,
    /// Whether a reload believes the configuration file, because the user named it or installed it.
    is_named: bool,
}

impl ListenConfig {
    /// From a configuration.
    #[must_use]
    pub fn new(loaded: &Loaded) -> Self {
        let config = &loaded.config;
        Self {
            listen: config.supervisor.listen,
            is_default: !config.source_map.has_key("supervisor.listen"),
            http: config.http.clone(),
            tokens: config.tokens.clone(),
            is_named: matches!(loaded.source, Source::Named(_) | Source::Installed(_)),
        }
    }
}

impl From<SocketAddr> for ListenConfig {
    /// An address without tokens or TLS.
    fn from(listen: SocketAddr) -> Self {
        Self {
            listen,
            is_default: false,
            http: HttpConfig::default(),
            tokens: BTreeMap::new(),
            is_named: false,
        }
    }
}

#[cfg(test)]
impl ListenConfig {
    /// As if nobody had chosen the address.
    pub(super) fn by_default(mut self) -> Self {
        self.is_default = true;
        self
    }
}

/// Checks the files of tokens, the certificate and its key.
///
/// # Errors
/// An error for each unusable file, with its line in the configuration.
pub fn check(config: &Config) -> Result<(), Box<ConfigErrors>> {
    let mut faults = Vec::new();
    if let Some(files) = &config.http.tls
        && let Err(error) = Tls::read(files, open_token)
    {
        faults.push((error.key.to_owned(), error.message, None));
    }
    for (name, token) in &config.tokens {
        if let Err(why) = tokens::check(&token.file, open_token) {
            let message = format!("{}: {why}", display_path(&token.file));
            let help = "for example: head -c 32 /dev/urandom | base64 > FILE; chmod 600 FILE";
            let key = format!("token.{name}.file");
            faults.push((key, message, Some(help.to_owned())));
        }
    }
    if faults.is_empty() {
        Ok(())
    } else {
        Err(Box::new(config.source_map.locate_errors(faults)))
    }
}

/// Listens on the configured address. With port 0 the system chooses a port, which is printed. `up`
/// also takes any port if the default one is taken: each project has a daemon of its own. If the
/// address cannot be bound, `run` prints a note and continues without it, and `up` fails.
///
/// # Errors
/// [`Exit::CannotStart`] for a daemon, [`Exit::Usage`] for a certificate; the error is printed.
pub async fn listen(
    plan: &ListenConfig,
    kind: SupervisorKind,
    err: &mut Output,
) -> Result<Option<http::Listener>, Exit> {
    let tls = read_certificate(plan, err)?;
    let mut bound = http::bind(plan.listen).await;
    if let Err(error) = &bound
        && (plan.is_default && kind == SupervisorKind::Daemon && error.is_in_use())
    {
        err.line(&format!(
            "note: another program listens on {}; set supervisor.listen to choose the port",
            plan.listen
        ));
        bound = http::bind(SocketAddr::new(plan.listen.ip(), 0)).await;
    }
    match bound {
        Ok(listener) => {
            let listener = listener.with_tls(tls, &plan.http.hosts);
            if plan.listen.port() == 0 || kind == SupervisorKind::Daemon {
                err.line(&format!("listening on {}", listener.url()));
            }
            Ok(Some(listener))
        }
        Err(error) if kind != SupervisorKind::Daemon => {
            err.line(&format!("note: {error}; continuing without /metrics"));
            Ok(None)
        }
        Err(error) => {
            err.line(&format!("error: {error}"));
            Err(Exit::CannotStart)
        }
    }
}

fn read_certificate(plan: &ListenConfig, err: &mut Output) -> Result<Option<Tls>, Exit> {
    let files = plan.http.tls.as_ref();
    let read = files.map(|files| Tls::read(files, open_token)).transpose();
    read.map_err(|error| {
        err.line(&format!("error: {}: {error}", error.key));
        Exit::Usage
    })
}

/// Uses the listener that the service manager passed. It must be the one of the configuration: what
/// may be served to other hosts was checked for that address.
///
/// # Errors
/// As of [`listen`] for a daemon.
pub fn adopt(
    plan: &ListenConfig,
    passed: TcpListener,
    err: &mut Output,
) -> Result<Option<http::Listener>, Exit> {
    let tls = read_certificate(plan, err)?;
    let is_wanted = |found: SocketAddr| {
        found.ip() == plan.listen.ip() && [0, found.port()].contains(&plan.listen.port())
    };
    let adopted = match passed.local_addr() {
        Ok(found) if !is_wanted(found) => Err(format!(
            "the service manager passes a socket on {found}, and supervisor.listen is {}; make ListenStream= and supervisor.listen the same",
            plan.listen
        )),
        Ok(_) => http::adopt(passed).map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    };
    let listener = adopted.map_err(|why| {
        err.line(&format!("error: {why}"));
        Exit::CannotStart
    })?;
    let listener = listener.with_tls(tls, &plan.http.hosts);
    err.line(&format!("listening on {}", listener.url()));
    Ok(Some(listener))
}

/// What a supervisor serves besides its fleet, and the socket in its state directory.
pub struct StateListeners {
    tokens: Tokens,
    routes: RouteBuilder,
    socket: http::Listener,
    /// The chats, in a daemon.
    pub chats: Option<Chats>,
    /// The file planes of pools, in a daemon.
    pub planes: Vec<PlaneWorker>,
}

/// Loads the tokens of a state directory, and binds its socket or uses the one that was passed. Without either of them, no command
/// could control the supervisor.
///
/// # Errors
/// [`Exit::CannotStart`]; the error is printed.
pub fn open_in_state_dir(
    state: &Path,
    plan: &ListenConfig,
    fleet: &FleetHandle,
    kind: SupervisorKind,
    passed: Option<UnixListener>,
    err: &mut Output,
) -> Result<StateListeners, Exit> {
    let opened = StateListeners::new(
        state,
        plan,
        passed,
        route_builder(state, fleet, kind, plan.is_named),
    );
    opened.map_err(|error| {
        err.line(&format!("error: {error}"));
        Exit::CannotStart
    })
}

impl StateListeners {
    fn new(
        state: &Path,
        plan: &ListenConfig,
        passed: Option<UnixListener>,
        routes: RouteBuilder,
    ) -> Result<Self, String> {
        let tokens = Tokens::load(state, plan.tokens.clone(), open_token);
        let tokens = tokens.map_err(|error| {
            let path = state.join(tokens::TOKEN_FILE);
            format!("cannot write {}: {error}", display_path(&path))
        })?;
        let socket = match passed {
            Some(passed) => http::adopt_socket(passed, state),
            None => http::bind_socket(state),
        };
        let socket = socket.map_err(|error| error.to_string())?;
        Ok(Self {
            tokens,
            routes,
            socket,
            chats: None,
            planes: Vec::new(),
        })
    }

    /// For a small fleet.
    #[cfg(test)]
    pub(super) fn of_fake<F: Fleet>(state: &Path, fleet: &F, kind: SupervisorKind) -> Self {
        let fleet = fleet.clone();
        let routes: RouteBuilder = Box::new(move |context, tokens, stop| {
            v1::runs::router_of(fleet, kind, Arc::clone(context.runs), tokens, stop)
        });
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        Self::new(state, &any.into(), None, routes).expect("opened")
    }
}

/// Opens a token file. Anyone who can write it can answer approvals, so it must be as trusted as
/// code.
fn open_token(path: &Path) -> Result<Option<File>, String> {
    let path = std::path::absolute(path).map_err(|error| error.to_string())?;
    match open_trusted(&path) {
        Ok(file) => Ok(Some(file)),
        Err(OpenError::Read(error)) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(OpenError::Read(error)) => Err(format!("cannot open it: {}", why(&error))),
        Err(OpenError::Untrusted(error)) => Err(error.to_string()),
    }
}

/// Builds the routes below `/api/v1`, from the tokens and the token that ends streams.
pub type RouteBuilder =
    Box<dyn FnOnce(RouteContext<'_>, &Tokens, CancellationToken) -> Router + Send>;

/// What the routes need besides a fleet.
#[derive(Debug)]
pub struct RouteContext<'a> {
    runs: &'a Arc<Runs>,
    chats: Option<Chats>,
    tls: Option<Tls>,
    stop_requested: CancellationToken,
}

/// The routes of a fleet. Agents' packages may be beside its configuration.
fn route_builder(
    state: &Path,
    fleet: &FleetHandle,
    kind: SupervisorKind,
    is_named: bool,
) -> RouteBuilder {
    let fleet = fleet.clone();
    let (state, config) = (state.to_owned(), fleet.config().clone());
    let overlays: v1::OverlayHandler =
        Arc::new(move |session, order| overlay::handle_order(&state, &config, session, &order));
    let file = fleet.config().file.as_deref();
    let directory = file
        .and_then(Path::parent)
        .unwrap_or(Path::new("/"))
        .to_owned();
    let agents: v1::AgentLister = Arc::new(move || agents::statuses(&directory));
    let rereader = config_reloader(fleet.config(), is_named);
    Box::new(move |context, tokens, stop| {
        let host = v1::Host {
            kind,
            agents,
            overlays,
            config_reloader: rereader,
            mask_builder: Arc::new(|config| secrets::mask(config, |name| std::env::var_os(name))),
            tls: context.tls,
            stop_requested: context.stop_requested,
        };
        let (runs, chats) = (Arc::clone(context.runs), context.chats);
        v1::router(fleet, runs, chats, host, tokens, stop)
    })
}

/// Reads the configuration file again, with the same checks as at the start.
fn config_reloader(config: &Config, is_named: bool) -> v1::ConfigReloader {
    let file = config.file.clone();
    Arc::new(move || {
        let Some(file) = &file else { return Ok(None) };
        let directory = file.parent().unwrap_or(Path::new("/"));
        let mut loaded = config_file::load(is_named.then_some(file), directory)
            .map_err(|error| error.to_string())?;
        let checked = start::check(&loaded.config);
        checked.map_err(|errors| errors.to_string())?;
        let read = secrets::read(&mut loaded.config, |name| std::env::var_os(name));
        read.map_err(|errors| errors.to_string())?;
        Ok(Some(loaded.config))
    })
}

/// Open listeners. [`Listeners::close`] closes them.
#[derive(Debug)]
pub struct Listeners {
    /// Cancelled to accept no more requests from file planes.
    closing: CancellationToken,
    /// Cancelled when a client stops the supervisor.
    stop_requested: CancellationToken,
    runs: Arc<Runs>,
    chats: Option<Chats>,
    stop: CancellationToken,
    serving: TaskTracker,
    tls: Option<Tls>,
}

impl Listeners {
    /// Serves the bound listeners. `metrics` renders `/metrics`. `runs` are those that clients may
    /// watch. Must be called inside a runtime.
    #[must_use]
    pub fn open<F: Fleet>(
        fleet: &F,
        http: Option<http::Listener>,
        metrics: Render,
        within: StateListeners,
        runs: Arc<Runs>,
    ) -> Self {
        let stop = CancellationToken::new();
        let stop_requested = CancellationToken::new();
        let serving = TaskTracker::new();
        let StateListeners {
            tokens,
            routes,
            socket,
            chats,
            planes,
        } = within;
        let tls = http.as_ref().and_then(http::Listener::tls);
        let context = RouteContext {
            runs: &runs,
            chats: chats.clone(),
            tls: tls.clone(),
            stop_requested: stop_requested.clone(),
        };
        let extra_routes = approval_routes::router(fleet.clone(), &tokens, stop.clone())
            .merge(policy_routes::router(fleet.clone(), &tokens))
            .merge(routes(context, &tokens, stop.clone()));
        let readiness = fleet.clone();
        let pages = Pages {
            metrics,
            outages: fleet.outages(),
            ready: Arc::new(move || readiness.readiness()),
            tokens: Some(tokens),
            extra_routes,
        };
        let http = http.map(|listener| (listener, http::Bounds::default()));
        let socket = (socket, http::Bounds::for_socket());
        for (listener, bounds) in http.into_iter().chain([socket]) {
            serving.spawn(http::serve(listener, pages.clone(), bounds, stop.clone()));
        }
        let closing = CancellationToken::new();
        for plane in planes {
            serving.spawn(plane.serve(closing.clone(), stop.clone()));
        }
        serving.close();
        Self {
            closing,
            stop_requested,
            runs,
            chats,
            stop,
            serving,
            tls,
        }
    }

    /// Reloads the certificate in the background. An error is logged, and the old certificate stays
    /// in use.
    pub fn reload_certificate(&self) {
        let Some(tls) = self.tls.clone() else {
            return;
        };
        tokio::task::spawn_blocking(move || match tls.reload() {
            Ok(()) => tracing::info!("the certificate was reloaded"),
            Err(error) => {
                let why = error.to_string();
                tracing::error!(
                    key = error.key,
                    why,
                    "cannot reload the certificate; the old one stays in use"
                );
            }
        });
    }

    /// Starts no more turns of chats, and accepts no more requests from file planes.
    pub fn stop_accepting(&self) {
        self.closing.cancel();
        if let Some(chats) = &self.chats {
            chats.stop_working();
        }
    }

    /// Returns once a client has asked the supervisor to stop. Cancel-safe.
    pub async fn stop_requested(&self) {
        self.stop_requested.cancelled().await;
    }

    /// The runs that clients may watch.
    #[must_use]
    pub fn runs(&self) -> Arc<Runs> {
        Arc::clone(&self.runs)
    }

    /// Serves a small fleet on the socket of a state directory.
    #[cfg(test)]
    pub(super) fn open_fake<F: Fleet>(
        state: &Path,
        fleet: &F,
        kind: SupervisorKind,
        http: Option<http::Listener>,
        runs: Arc<Runs>,
    ) -> Self {
        let within = StateListeners::of_fake(state, fleet, kind);
        Self::open(fleet, http, Arc::new(|_| "up 1\n".to_owned()), within, runs)
    }

    /// Serves one more future, until it ends by itself.
    #[cfg(test)]
    pub fn serve_also(&self, what: impl Future<Output = ()> + Send + 'static) {
        self.serving.spawn(what);
    }

    /// Waits for open requests, up to their time limits, and removes the socket.
    pub async fn close(self) {
        self.stop.cancel();
        self.serving.wait().await;
    }
}
