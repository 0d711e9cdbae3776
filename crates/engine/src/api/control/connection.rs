//! One client's conversation: requests, replies, streams.
//!
//! Must not know how clients are counted or let in.

use std::sync::Arc;

use tokio::net::UnixStream;
use tokio::sync::broadcast::{self, error::RecvError};

use super::lines::{LineError, Lines};
use super::{ConnectionContext, Fleet, conversation};
use crate::api::approvals::{AnswerReceiptView, ApprovalOp, ApprovalView};
use crate::api::json_lines;
use crate::api::listing::Listing;
use crate::api::policies::PolicyStatusView;
use crate::api::reply::{self, ConversationLine, Reply, Role};
use crate::api::request::{self, Code, Failure, Request};
use crate::api::run_stream::{Ledger, RunStream, RunStreamItem, new_run_id};
use crate::api::service::Refusal;
use marshal_config::Approver;
use marshal_fleet::{ConversationRequest, RunBounds};
use marshal_model::untrusted::escape_for_display;
use marshal_model::{RunId, SlotId, TaskSpec, UntrustedText};
use marshal_telemetry::labels::ReloadCause;

/// Tells a client why it is sent away, as far as its socket takes it at once.
pub(super) fn send_rejection(stream: &UnixStream, failure: Failure) {
    let mut line = reply::write_reply(&Reply::Failed(failure));
    line.push('\n');
    let _ = stream.try_write(line.as_bytes());
}

/// Talks until the client leaves, breaks a bound, or the supervisor stops.
pub(super) async fn serve_client<F: Fleet>(stream: UnixStream, desk: ConnectionContext<F>) {
    let peer = stream.peer_cred().ok().map(|peer| peer.uid());
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
            Ok(request) => handle_request(&mut lines, &desk, request, peer).await,
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

async fn handle_approvals<F: Fleet>(
    desk: &ConnectionContext<F>,
    asked: ApprovalOp,
    peer: Option<u32>,
) -> Result<Reply, Failure> {
    let unread = |why: String| Failure::new(Code::Refused, escape_for_display(&why, 300));
    match asked {
        ApprovalOp::List { ended: over } => {
            let found = desk.fleet.approvals(over).await.map_err(unread)?;
            Ok(Reply::Approvals(
                found.iter().map(ApprovalView::from_stored).collect(),
            ))
        }
        ApprovalOp::Show { id: approval } => {
            let found = desk
                .fleet
                .approval(approval.clone())
                .await
                .map_err(unread)?;
            let found = found.ok_or_else(|| {
                let message = format!("there is no approval {approval}");
                Failure::new(Code::NoSuchApproval, message)
            })?;
            Ok(Reply::Approval(Box::new(ApprovalView::with_details(
                &found,
            ))))
        }
        ApprovalOp::Answer(answer) => {
            let who = peer.map_or_else(|| "control socket".to_owned(), |uid| format!("uid {uid}"));
            let answered = desk
                .fleet
                .answer(answer.into_request(Approver::Owner, who))
                .await;
            let answered =
                answered.map_err(|error| crate::api::approvals::answer_failure(&error))?;
            Ok(Reply::Answered(AnswerReceiptView::from_receipt(&answered)))
        }
    }
}

async fn handle_request<F: Fleet>(
    lines: &mut Lines,
    desk: &ConnectionContext<F>,
    request: Request,
    peer: Option<u32>,
) -> Result<(), LineError> {
    match request {
        Request::Hello => {
            let hello = Reply::Hello {
                role: desk.role,
                pid: std::process::id(),
            };
            reply(lines, hello).await
        }
        Request::Submit {
            tasks,
            watch,
            bounds,
        } => submit(lines, desk, (tasks, bounds), watch).await,
        Request::Watch { run } => match wait_for_run(lines, desk, &run).await? {
            Err(failure) => reply(lines, Reply::Failed(failure)).await,
            Ok(ledger) => {
                let stream = RunStream::new(desk.fleet.subscribe(), ledger, desk.fleet.history());
                let accepted = stream.total();
                reply(lines, Reply::Watching { accepted }).await?;
                stream_run(lines, desk, stream).await
            }
        },
        Request::Cancel { run } => {
            if let Err(failure) = wait_for_run(lines, desk, &run).await? {
                return reply(lines, Reply::Failed(failure)).await;
            }
            desk.fleet.cancel(&run);
            reply(lines, Reply::Done).await
        }
        Request::CancelTask { pool, run, task } => {
            let answer = match desk.fleet.cancel_task(&pool, &run, &task).await {
                Ok(()) => Reply::Done,
                Err(error) => Reply::Failed(Failure::new(Code::Refused, error.to_string())),
            };
            reply(lines, answer).await
        }
        Request::Open {
            pool,
            directory,
            session,
        } => {
            if desk.role == Role::Run {
                return reply(lines, Reply::Failed(no_daemon())).await;
            }
            let order = ConversationRequest {
                pool,
                directory,
                session,
            };
            conversation::open(lines, desk, order).await
        }
        Request::Conversations { pool, after } => {
            let found = match desk.fleet.conversations(&pool, after).await {
                Ok(found) => {
                    Reply::Conversations(found.iter().map(ConversationLine::from_view).collect())
                }
                Err(error) => Reply::Failed(conversation::open_failure(&error)),
            };
            reply(lines, found).await
        }
        Request::Approvals(asked) => {
            let found = handle_approvals(desk, asked, peer).await;
            reply(lines, found.unwrap_or_else(Reply::Failed)).await
        }
        Request::List => {
            let listing = Listing::new(desk.fleet.pools(), desk.fleet.slots());
            reply(lines, Reply::Listed(listing)).await
        }
        Request::Policies => reply(lines, policies(&desk.fleet)).await,
        Request::Reload => {
            let done = desk.fleet.reload_policies(ReloadCause::Request).await;
            let answer = match done {
                Ok(_) => policies(&desk.fleet),
                Err(why) => Reply::Failed(Failure::new(Code::BadPolicy, why)),
            };
            reply(lines, answer).await
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

/// A run that is worked here or was; one that is about to be taken up is waited for, as long as
/// the client stays.
async fn wait_for_run<F: Fleet>(
    lines: &mut Lines,
    desk: &ConnectionContext<F>,
    run: &RunId,
) -> Result<Result<Arc<Ledger>, Failure>, LineError> {
    let mut found = std::pin::pin!(desk.runs.wait_for(run));
    let mut listens = true;
    loop {
        tokio::select! {
            biased;
            found = &mut found => return Ok(found.ok_or_else(|| no_such_run(run))),
            () = desk.stop.cancelled() => return Ok(Err(stopping())),
            speaks = lines.wait_for_input(), if listens => {
                if !speaks {
                    return Err(LineError::Io(std::io::ErrorKind::ConnectionAborted.into()));
                }
                // A further request: it is read when this one is done.
                listens = false;
            }
        }
    }
}

fn policies<F: Fleet>(fleet: &F) -> Reply {
    Reply::Policies(Box::new(PolicyStatusView::from_status(
        &fleet.policy_status(),
    )))
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

fn no_such_slot<F: Fleet>(desk: &ConnectionContext<F>, slot: &SlotId) -> Failure {
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
    desk: &ConnectionContext<F>,
    (tasks, bounds): (Vec<TaskSpec>, RunBounds),
    watch: bool,
) -> Result<(), LineError> {
    if desk.role != Role::Daemon {
        return reply(lines, Reply::Failed(no_daemon())).await;
    }
    // Before the tasks, so that nothing of them is missed.
    let notices = desk.fleet.subscribe();
    let accepted = tasks.len();
    // A disk that takes nothing must not hold the supervisor's end.
    let taken = tokio::select! {
        taken = submit_run(desk, tasks, bounds) => taken,
        () = desk.stop.cancelled() => Err(stopping()),
    };
    let ledger = match taken {
        Ok(ledger) => ledger,
        Err(failure) => return reply(lines, Reply::Failed(failure)).await,
    };
    let run = ledger.run().clone();
    reply(lines, Reply::Submitted { run, accepted }).await?;
    if watch {
        stream_run(
            lines,
            desk,
            RunStream::new(notices, ledger, desk.fleet.history()),
        )
        .await?;
    }
    Ok(())
}

async fn submit_run<F: Fleet>(
    desk: &ConnectionContext<F>,
    tasks: Vec<TaskSpec>,
    bounds: RunBounds,
) -> Result<Arc<Ledger>, Failure> {
    let run = new_run_id().map_err(|error| Failure::new(Code::Refused, error.to_string()))?;
    let total = tasks.len();
    desk.fleet.set_run_bounds(&run, bounds);
    let taken = desk.fleet.submit(run.clone(), "up", tasks).await;
    let reports = taken.map_err(|refusal| match refusal {
        Refusal::Tasks(message) => Failure::new(Code::BadTasks, message),
        Refusal::Fleet(message) | Refusal::Full(message) => Failure::new(Code::Refused, message),
    })?;
    let ledger = Ledger::collect(run, total, reports);
    desk.runs.insert(&ledger);
    Ok(ledger)
}

/// Passes a run's stream on. Ends with the run, the client or the supervisor.
async fn stream_run<F: Fleet>(
    lines: &mut Lines,
    desk: &ConnectionContext<F>,
    mut stream: RunStream,
) -> Result<(), LineError> {
    let mut listens = true;
    loop {
        let item = tokio::select! {
            item = stream.next() => item,
            speaks = lines.wait_for_input(), if listens => {
                if !speaks {
                    return Err(LineError::Io(std::io::ErrorKind::ConnectionAborted.into()));
                }
                // A further request: it is read when this one is done.
                listens = false;
                continue;
            }
            () = desk.stop.cancelled() => return finish_stream(lines, desk, stream).await,
        };
        let line = json_lines::item_json(&item);
        lines.send(line).await?;
        if matches!(item, RunStreamItem::Complete) {
            return Ok(());
        }
    }
}

/// The supervisor ends: what is there already is still told.
async fn finish_stream<F: Fleet>(
    lines: &mut Lines,
    desk: &ConnectionContext<F>,
    mut stream: RunStream,
) -> Result<(), LineError> {
    while let Ok(item) = tokio::time::timeout(desk.bounds.drain / 4, stream.next()).await {
        lines.send(json_lines::item_json(&item)).await?;
        if matches!(item, RunStreamItem::Complete) {
            return Ok(());
        }
    }
    reply(lines, Reply::Failed(stopping())).await
}

async fn logs<F: Fleet>(
    lines: &mut Lines,
    desk: &ConnectionContext<F>,
    slot: &SlotId,
    follow: bool,
) -> Result<(), LineError> {
    let Some(mut tail) = desk.fleet.logs(slot) else {
        let failure = no_such_slot(desk, slot);
        return reply(lines, Reply::Failed(failure)).await;
    };
    reply(lines, Reply::Done).await?;
    for line in &tail.backlog {
        lines.send(json_lines::log_line(line)).await?;
    }
    if follow {
        relay_log(lines, desk, &mut tail.live).await?;
    }
    lines
        .send(json_lines::item_json(&RunStreamItem::Complete))
        .await
}

/// Passes a slot's lines on. Ends with the slot, the client or the supervisor.
async fn relay_log<F: Fleet>(
    lines: &mut Lines,
    desk: &ConnectionContext<F>,
    live: &mut broadcast::Receiver<UntrustedText>,
) -> Result<(), LineError> {
    let mut listens = true;
    loop {
        let heard = tokio::select! {
            heard = live.recv() => heard,
            speaks = lines.wait_for_input(), if listens => {
                if !speaks {
                    return Err(LineError::Io(std::io::ErrorKind::ConnectionAborted.into()));
                }
                listens = false;
                continue;
            }
            () = desk.stop.cancelled() => return Ok(()),
        };
        match heard {
            Ok(text) => lines.send(json_lines::log_line(&text)).await?,
            Err(RecvError::Lagged(missed)) => {
                lines
                    .send(json_lines::item_json(&RunStreamItem::Lagged(missed)))
                    .await?;
            }
            Err(RecvError::Closed) => return Ok(()),
        }
    }
}
