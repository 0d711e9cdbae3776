//! `up`: the daemon. It serves its listeners until a signal ends it.
//!
//! Must not know how a fleet is started, or what the listeners serve.

use std::sync::Arc;

use super::continuing;
use super::exit::Exit;
use super::listeners::Listeners;
use super::run;
use super::service_manager::ServiceManager;
use super::signals::{Signal, Signals};
use super::streams::Output;
use marshal_engine::api::runs::Runs;
use marshal_engine::api::{Fleet, Refusal};
use marshal_fleet::Stop;
use marshal_journal::{Journal, StoredRun};
use marshal_model::RunId;
use marshal_model::limits;
use marshal_telemetry::labels::ReloadCause;

/// The unfinished runs of earlier starts, oldest first; none if the journal cannot be read.
#[must_use]
pub fn unfinished(journal: &Journal) -> Vec<StoredRun> {
    let read = journal
        .reader()
        .map_err(|error| error.to_string())
        .and_then(|reader| reader.unfinished_runs().map_err(|error| error.to_string()));
    read.unwrap_or_else(|why| {
        tracing::error!(why, "cannot read the unfinished runs, so none is resumed");
        Vec::new()
    })
}

/// The runs that will be resumed, so that clients can watch them at once.
#[must_use]
pub fn pending_runs(unfinished: &[StoredRun]) -> Runs {
    let ids = unfinished.iter().map(|stored| RunId::new(&stored.run));
    Runs::with_pending(ids.filter_map(Result::ok))
}

/// Resumes these runs one after the other; clients may watch them. A run that does not fit into the
/// queues waits until it does.
pub async fn resume_runs<F: Fleet>(fleet: F, runs: Arc<Runs>, unfinished: Vec<StoredRun>) {
    for stored in unfinished {
        let Ok(run) = RunId::new(&stored.run) else {
            continue;
        };
        loop {
            match run::resume_run(&fleet, run.clone()).await {
                Ok(ledger) => {
                    let tasks = ledger.total();
                    tracing::info!(
                        run = continuing::describe_run(&stored),
                        tasks,
                        "resuming a run"
                    );
                    runs.insert(&ledger);
                }
                Err(Refusal::Full(_)) => {
                    tokio::time::sleep(limits::RUN_RETRY_INTERVAL).await;
                    continue;
                }
                Err(error) => {
                    tracing::error!(run = %run, %error, "cannot resume an unfinished run");
                    runs.drop_pending(&run);
                }
            }
            break;
        }
    }
}

/// Serves until the first SIGINT, SIGTERM or `POST /api/v1/stop`, and then stops the fleet. Running
/// turns may end within `stop.drain`, and what has not begun is left to the next start; a second
/// signal kills. Every SIGHUP reloads the policies and the certificate. The listeners stay open until
/// all children have ended, so that clients can watch the stop.
pub async fn serve<F: Fleet>(
    fleet: F,
    listeners: Listeners,
    manager: &ServiceManager,
    err: &mut Output,
    signals: &mut Signals,
) -> Exit {
    loop {
        tokio::select! {
            signal = signals.next() => if signal != Signal::Hangup {
                break;
            },
            () = listeners.stop_requested() => break,
        }
        // In the background: SIGTERM must not wait for a slow file. Errors are logged.
        listeners.reload_certificate();
        let (fleet, manager) = (fleet.clone(), manager.clone());
        tokio::spawn(async move {
            manager.reloading().await;
            drop(fleet.reload_policies(ReloadCause::Signal).await);
            manager.ready().await;
        });
    }
    manager.stopping().await;
    err.line(&run::draining(&fleet));
    listeners.stop_accepting();
    let second = run::stop(&fleet, Stop::Drain, signals).await;
    // A second signal ends the wait for a request that hangs.
    match run::unless_insisted(listeners.close(), signals).await {
        Ok(()) => second.map_or(Exit::Done, Signal::exit),
        Err(signal) => {
            tracing::error!("the listeners were not closed: a request does not end");
            signal.exit()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::sync::Arc;
    use std::time::Duration;

    use tokio::sync::mpsc;

    use super::*;
    use crate::cli::listeners::{ListenConfig, listen};
    use crate::cli::streams::{Captured, Streams};
    use crate::cli::supervisor_client::{Client, daemon};
    use marshal_engine::api::SupervisorKind;
    use marshal_engine::api::test_fixtures::{FakeFleet, spec};
    use marshal_fleet::RunBounds;

    struct Daemon {
        dir: tempfile::TempDir,
        fleet: FakeFleet,
        signals: mpsc::Sender<Signal>,
        done: tokio::task::JoinHandle<Exit>,
        err: Captured,
    }

    async fn daemon_of(fleet: FakeFleet) -> Daemon {
        daemon_with(fleet, |_| {}).await
    }

    async fn daemon_with(fleet: FakeFleet, change: impl FnOnce(&Listeners)) -> Daemon {
        let dir = tempfile::tempdir().expect("directory");
        let (mut streams, _, err) = Streams::captured(false);
        let any: SocketAddr = "127.0.0.1:0".parse().expect("address");
        let any = any.into();
        let http = listen(&any, SupervisorKind::Daemon, &mut streams.err)
            .await
            .expect("bound");
        let kind = SupervisorKind::Daemon;
        let listeners = Listeners::open_fake(dir.path(), &fleet, kind, http, Arc::default());
        change(&listeners);
        let (sender, receiver) = mpsc::channel(4);
        let serving = fleet.clone();
        let done = tokio::spawn(async move {
            let mut signals = Signals::from_channel(receiver);
            let nobody = ServiceManager::nobody();
            serve(serving, listeners, &nobody, &mut streams.err, &mut signals).await
        });
        Daemon {
            dir,
            fleet,
            signals: sender,
            done,
            err,
        }
    }

    #[tokio::test]
    async fn the_first_signal_stops_and_the_second_kills() {
        let polite = daemon_of(FakeFleet::new()).await;
        polite.signals.send(Signal::Hangup).await.expect("sent");
        polite.signals.send(Signal::Terminate).await.expect("sent");
        assert_eq!(polite.done.await.expect("ends"), Exit::Done);
        assert_eq!(polite.fleet.stops(), [Stop::Drain]);
        assert_eq!(polite.fleet.reloads(), 1);
        let err_text = polite.err.text();
        assert!(
            err_text.contains("listening on http://127.0.0.1:"),
            "{err_text}"
        );
        assert!(matches!(daemon(polite.dir.path()).await, Ok(None)));

        let stubborn = FakeFleet::new();
        stubborn.be_stubborn();
        let daemon = daemon_of(stubborn).await;
        daemon.signals.send(Signal::Terminate).await.expect("sent");
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(!daemon.done.is_finished());
        daemon.signals.send(Signal::Interrupt).await.expect("sent");
        assert_eq!(daemon.done.await.expect("ends"), Exit::Interrupted);
        assert_eq!(daemon.fleet.stops(), [Stop::Drain, Stop::Kill]);
    }

    #[tokio::test]
    async fn a_second_signal_ends_a_listener_that_does_not_close() {
        let daemon = daemon_with(FakeFleet::new(), |listeners| {
            listeners.serve_also(std::future::pending());
        })
        .await;
        daemon.signals.send(Signal::Terminate).await.expect("sent");
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(!daemon.done.is_finished());
        daemon.signals.send(Signal::Terminate).await.expect("sent");
        assert_eq!(daemon.done.await.expect("ends"), Exit::Terminated);
    }

    #[tokio::test]
    async fn clients_are_told_the_end_of_their_run() {
        let daemon = daemon_of(FakeFleet::new()).await;
        let mut client = Client::new(daemon.dir.path());
        let tasks = [spec("a", "hang")];
        let submitted = client.submit(&tasks, RunBounds::default()).await;
        submitted.expect("taken in");
        daemon.signals.send(Signal::Interrupt).await.expect("sent");
        let mut ended = 0;
        while let Ok((item, _)) = client.next().await {
            match item {
                Some(marshal_engine::api::run_stream::RunStreamItem::Ended(_)) => ended += 1,
                Some(marshal_engine::api::run_stream::RunStreamItem::Complete) => break,
                _ => {}
            }
        }
        assert_eq!(ended, 1);
        assert_eq!(daemon.done.await.expect("ends"), Exit::Done);
    }

    #[tokio::test]
    async fn a_taken_address_is_a_note_for_run_and_the_end_for_up() {
        let (mut streams, _, err) = Streams::captured(false);
        let any: SocketAddr = "127.0.0.1:0".parse().expect("address");
        let any = any.into();
        let first = listen(&any, SupervisorKind::Run, &mut streams.err).await;
        assert!(first.expect("bound").is_some());
        let holder = std::net::TcpListener::bind("127.0.0.1:0").expect("bound");
        let taken = holder.local_addr().expect("address");
        assert!(matches!(
            listen(&taken.into(), SupervisorKind::Run, &mut streams.err).await,
            Ok(None)
        ));
        let ended = listen(&taken.into(), SupervisorKind::Daemon, &mut streams.err).await;
        assert_eq!(ended.expect_err("ends"), Exit::CannotStart);
        // Nobody chose that port.
        let default = ListenConfig::from(taken).by_default();
        let other = listen(&default, SupervisorKind::Daemon, &mut streams.err)
            .await
            .expect("bound")
            .and_then(|listener| listener.addr());
        assert_ne!(other.expect("an address"), taken);
        let err_text = err.text();
        assert!(
            err_text.contains("note: cannot listen on 127.0.0.1:"),
            "{err_text}"
        );
        assert!(
            err_text.contains("continuing without /metrics"),
            "{err_text}"
        );
    }
}
