//! One client's conversation: requests, replies, streams.
//!
//! Must not know how clients are counted or let in.

use std::sync::Arc;

use tokio::net::UnixStream;
use tokio::sync::broadcast::{self, error::RecvError};

use super::lines::{LineError, Lines};
use super::{Desk, Fleet, converse};
use crate::api::listing::Listing;
use crate::api::reply::{self, ConversationLine, Reply, Role};
use crate::api::request::{self, Code, Failure, Request};
use crate::api::service::Refusal;
use crate::api::view;
use crate::api::watch::{Item, Ledger, RunStream, new_run};
use crate::fleet::ConversationOrder;
use crate::model::{Foreign, RunId, SlotId, TaskSpec};

/// Tells a client why it is sent away, as far as its socket takes it at once.
pub(super) fn dismiss(stream: &UnixStream, failure: Failure) {
    let mut line = reply::write_reply(&Reply::Failed(failure));
    line.push('\n');
    let _ = stream.try_write(line.as_bytes());
}

/// Talks until the client leaves, breaks a bound, or the supervisor stops.
pub(super) async fn converse<F: Fleet>(stream: UnixStream, desk: Desk<F>) {
    let mut lines = Lines::new(stream, desk.bounds.line, desk.bounds.wait);
    loop {
        let asked = tokio::select! {
            asked = lines.next(Some(desk.bounds.wait)) => asked,
            () = desk.stop.cancelled() => {
                let _ = reply(&mut lines, Reply::Failed(stopping())).await;
                return;
            }
        };
        let line = match asked {
            Ok(Some(line)) => line,
            Ok(None) | Err(LineError::Io(_)) => return,
            Err(error) => {
                let code = match error {
                    LineError::TooLong(_) => Code::TooLong,
                    _ => Code::TooSlow,
                };
                let message = format!("{error}; the connection ends");
                let _ = reply(&mut lines, Reply::Failed(Failure::new(code, message))).await;
                return;
            }
        };
        let answered = match request::read(&line) {
            Ok(request) => answer(&mut lines, &desk, request).await,
            Err(failure) => reply(&mut lines, Reply::Failed(failure)).await,
        };
        if let Err(error) = answered {
            tracing::debug!(%error, "a control client was dropped");
            return;
        }
    }
}

fn stopping() -> Failure {
    Failure::new(Code::Stopping, "the supervisor ends")
}

async fn reply(lines: &mut Lines, reply: Reply) -> Result<(), LineError> {
    lines.send(reply::write_reply(&reply)).await
}

async fn answer<F: Fleet>(
    lines: &mut Lines,
    desk: &Desk<F>,
    request: Request,
) -> Result<(), LineError> {
    match request {
        Request::Hello => {
            let hello = Reply::Hello {
                role: desk.role,
                pid: std::process::id(),
            };
            reply(lines, hello).await
        }
        Request::Submit { tasks, watch } => submit(lines, desk, tasks, watch).await,
        Request::Watch { run } => match desk.runs.get(&run) {
            None => reply(lines, Reply::Failed(no_such_run(&run))).await,
            Some(ledger) => {
                let stream = RunStream::new(desk.fleet.watch(), ledger, desk.fleet.history());
                let accepted = stream.total();
                reply(lines, Reply::Watching { accepted }).await?;
                relay(lines, desk, stream).await
            }
        },
        Request::Cancel { run } => {
            if desk.runs.get(&run).is_none() {
                return reply(lines, Reply::Failed(no_such_run(&run))).await;
            }
            desk.fleet.cancel(&run);
            reply(lines, Reply::Done).await
        }
        Request::Open {
            pool,
            directory,
            session,
        } => {
            if desk.role == Role::Run {
                return reply(lines, Reply::Failed(no_daemon())).await;
            }
            let order = ConversationOrder {
                pool,
                directory,
                session,
            };
            converse::open(lines, desk, order).await
        }
        Request::Conversations { pool, after } => {
            let found = match desk.fleet.conversations(&pool, after).await {
                Ok(found) => Reply::Conversations(found.iter().map(ConversationLine::of).collect()),
                Err(error) => Reply::Failed(converse::failure(&error)),
            };
            reply(lines, found).await
        }
        Request::List => {
            let listing = Listing::of(desk.fleet.pools(), desk.fleet.slots());
            reply(lines, Reply::Listed(listing)).await
        }
        Request::Logs { slot, follow } => logs(lines, desk, &slot, follow).await,
        Request::Restart { slot } => {
            let restarted = if desk.fleet.restart(slot.clone()).await {
                Reply::Done
            } else {
                Reply::Failed(no_such_slot(desk, &slot))
            };
            reply(lines, restarted).await
        }
    }
}

fn no_daemon() -> Failure {
    Failure::new(
        Code::NoDaemon,
        "this supervisor works for whoever started it; wait for its end, or start `marshal up`",
    )
}

fn no_such_run(run: &RunId) -> Failure {
    Failure::new(
        Code::NoSuchRun,
        format!("there is no run {run} here, or it ended before many others"),
    )
}

fn no_such_slot<F: Fleet>(desk: &Desk<F>, slot: &SlotId) -> Failure {
    /// More names would hide the message.
    const NAMED: usize = 8;
    let slots = desk.fleet.slots();
    let names = slots.iter().take(NAMED).map(|view| view.slot.to_string());
    let mut there = names.collect::<Vec<_>>().join(", ");
    if slots.len() > NAMED {
        there.push_str(", …");
    }
    let message = format!("there is no slot {slot}; the slots are {there}");
    Failure::new(Code::NoSuchSlot, message)
}

async fn submit<F: Fleet>(
    lines: &mut Lines,
    desk: &Desk<F>,
    tasks: Vec<TaskSpec>,
    watch: bool,
) -> Result<(), LineError> {
    if desk.role != Role::Daemon {
        return reply(lines, Reply::Failed(no_daemon())).await;
    }
    // Before the tasks, so that nothing of them is missed.
    let notices = desk.fleet.watch();
    let accepted = tasks.len();
    // A disk that takes nothing must not hold the supervisor's end.
    let taken = tokio::select! {
        taken = take_in(desk, tasks) => taken,
        () = desk.stop.cancelled() => Err(stopping()),
    };
    let ledger = match taken {
        Ok(ledger) => ledger,
        Err(failure) => return reply(lines, Reply::Failed(failure)).await,
    };
    let run = ledger.run().clone();
    reply(lines, Reply::Submitted { run, accepted }).await?;
    if watch {
        relay(
            lines,
            desk,
            RunStream::new(notices, ledger, desk.fleet.history()),
        )
        .await?;
    }
    Ok(())
}

async fn take_in<F: Fleet>(desk: &Desk<F>, tasks: Vec<TaskSpec>) -> Result<Arc<Ledger>, Failure> {
    let run = new_run().map_err(|error| Failure::new(Code::Refused, error.to_string()))?;
    let total = tasks.len();
    let taken = desk.fleet.submit(run.clone(), "up", tasks).await;
    let reports = taken.map_err(|refusal| match refusal {
        Refusal::Tasks(message) => Failure::new(Code::BadTasks, message),
        Refusal::Fleet(message) | Refusal::Full(message) => Failure::new(Code::Refused, message),
    })?;
    let ledger = Ledger::collect(run, total, reports);
    desk.runs.keep(&ledger);
    Ok(ledger)
}

/// Passes a run's stream on. Ends with the run, the client or the supervisor.
async fn relay<F: Fleet>(
    lines: &mut Lines,
    desk: &Desk<F>,
    mut stream: RunStream,
) -> Result<(), LineError> {
    let mut listens = true;
    loop {
        let item = tokio::select! {
            item = stream.next() => item,
            speaks = lines.speaks(), if listens => {
                if !speaks {
                    return Err(LineError::Io(std::io::ErrorKind::ConnectionAborted.into()));
                }
                // A further request: it is read when this one is done.
                listens = false;
                continue;
            }
            () = desk.stop.cancelled() => return end(lines, desk, stream).await,
        };
        let line = view::item(&item);
        lines.send(line).await?;
        if matches!(item, Item::Complete) {
            return Ok(());
        }
    }
}

/// The supervisor ends: what is there already is still told.
async fn end<F: Fleet>(
    lines: &mut Lines,
    desk: &Desk<F>,
    mut stream: RunStream,
) -> Result<(), LineError> {
    while let Ok(item) = tokio::time::timeout(desk.bounds.drain / 4, stream.next()).await {
        lines.send(view::item(&item)).await?;
        if matches!(item, Item::Complete) {
            return Ok(());
        }
    }
    reply(lines, Reply::Failed(stopping())).await
}

async fn logs<F: Fleet>(
    lines: &mut Lines,
    desk: &Desk<F>,
    slot: &SlotId,
    follow: bool,
) -> Result<(), LineError> {
    let Some(mut tail) = desk.fleet.logs(slot) else {
        let failure = no_such_slot(desk, slot);
        return reply(lines, Reply::Failed(failure)).await;
    };
    reply(lines, Reply::Done).await?;
    for line in &tail.backlog {
        lines.send(view::log_line(line)).await?;
    }
    if follow {
        relay_log(lines, desk, &mut tail.live).await?;
    }
    lines.send(view::item(&Item::Complete)).await
}

/// Passes a slot's lines on. Ends with the slot, the client or the supervisor.
async fn relay_log<F: Fleet>(
    lines: &mut Lines,
    desk: &Desk<F>,
    live: &mut broadcast::Receiver<Foreign>,
) -> Result<(), LineError> {
    let mut listens = true;
    loop {
        let heard = tokio::select! {
            heard = live.recv() => heard,
            speaks = lines.speaks(), if listens => {
                if !speaks {
                    return Err(LineError::Io(std::io::ErrorKind::ConnectionAborted.into()));
                }
                listens = false;
                continue;
            }
            () = desk.stop.cancelled() => return Ok(()),
        };
        match heard {
            Ok(text) => lines.send(view::log_line(&text)).await?,
            Err(RecvError::Lagged(missed)) => {
                lines.send(view::item(&Item::Lagged(missed))).await?;
            }
            Err(RecvError::Closed) => return Ok(()),
        }
    }
}
