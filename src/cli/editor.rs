//! `marshal acp`: serves an editor on standard input and output.
//!
//! Owns which fleet runs its sessions: the daemon's, or one of this process. Must not know the
//! protocol.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::acp;
use super::args::Cli;
use super::command::{FleetPlace, announce, find_state, finish, start_fleet, start_log};
use super::config_file::Loaded;
use super::exit::Exit;
use super::listeners::{self, ListenConfig, Listeners};
use super::run;
use super::signals::{Signal, Signals};
use super::streams::Streams;
use super::supervisor_client;
use marshal_engine::api::SupervisorKind;
use marshal_fleet::{ResumeScope, Stop};
use marshal_model::PoolName;

/// Serves an editor with the supervisor of the state directory, or with a fleet of this process.
/// Standard output is only for the editor: all messages go to standard error.
pub(super) async fn run(cli: &Cli, pool: &PoolName, loaded: Loaded, mut streams: Streams) -> Exit {
    let state = match find_state(&loaded, &mut streams) {
        Ok(state) => state,
        Err(exit) => return exit,
    };
    let Ok(mut signals) = Signals::install() else {
        streams.err.line("error: cannot install signal handlers");
        return Exit::CannotStart;
    };
    start_log(cli, &loaded.config, None, false);
    let place = acp::SupervisorTarget {
        state_dir: state.clone(),
        pool: pool.clone(),
    };
    match supervisor_client::serves_conversations(&state).await {
        Ok(true) => return serve_editor(place, &mut signals).await,
        Ok(false) => {}
        Err(error) => return error.report(&mut streams),
    }
    if loaded.config.pool(pool.as_str()).is_none() {
        let text = format!("error: the configuration has no pool {pool}");
        streams.err.line(&text);
        return Exit::Usage;
    }
    if !cli.quiet {
        announce(&loaded, &mut streams);
    }
    let plan = ListenConfig::new(&loaded);
    let go_on = (ResumeScope::None, false);
    let place_of_fleet = FleetPlace {
        state: &state,
        is_local: false,
        kind: SupervisorKind::Editor,
    };
    let begun = start_fleet(loaded, place_of_fleet, go_on, &mut streams).await;
    let started = match begun {
        Ok(started) => started,
        Err(exit) => return exit,
    };
    let http = listeners::listen(&plan, SupervisorKind::Editor, &mut streams.err).await;
    let metrics = started.metrics.clone();
    let within = listeners::open_in_state_dir(
        started.state.path(),
        &plan,
        &started.fleet,
        SupervisorKind::Editor,
        None,
        &mut streams.err,
    );
    let (http, within) = match (http, within) {
        (Ok(http), Ok(within)) => (http, within),
        (Err(exit), _) | (_, Err(exit)) => return exit,
    };
    let (fleet, runs) = (&started.fleet, Arc::default());
    let listeners = Listeners::open(fleet, http, metrics, within, runs);
    let exit = serve_editor(place, &mut signals).await;
    let second = run::stop(&started.fleet, Stop::Interrupt, &mut signals).await;
    listeners.close().await;
    finish(started, second.map_or(exit, Signal::exit), &mut signals).await
}

/// Serves the editor until it closes the connection, or a signal arrives.
async fn serve_editor(place: acp::SupervisorTarget, signals: &mut Signals) -> Exit {
    let stop = CancellationToken::new();
    let serving = acp::serve(place, std::io::stdin(), std::io::stdout(), stop.clone());
    let mut serving = std::pin::pin!(serving);
    loop {
        tokio::select! {
            ended = &mut serving => return match ended {
                acp::BridgeEnd::Closed => Exit::Done,
                acp::BridgeEnd::LineTooLong => Exit::Failures,
            },
            // The editor may continue without its terminal.
            signal = signals.next() => if signal != Signal::Hangup {
                stop.cancel();
            },
        }
    }
}
