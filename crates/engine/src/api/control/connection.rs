//! Serves one client of the control socket: requests, replies, streams.
//!
//! Must not know how clients are counted or admitted.

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

/// Sends the reason of a rejection, as far as the socket accepts it without waiting.
pub(super) fn send_rejection(stream: &UnixStream, failure: Failure) {
    let mut line = reply::write_reply(&Reply::Failed(failure));
    line.push('\n');
    let _ = stream.try_write(line.as_bytes());
}

/// Serves requests until the client disconnects, exceeds a limit, or the supervisor stops.
pub(super) async fn serve_client<F: Fleet>(stream: UnixStream, context: ConnectionContext<F>) {
    let peer = stream.peer_cred().ok().map(|peer| peer.uid());
    let mut lines = Lines::new(stream, context.bounds.line, context.bounds.wait);
    loop {
        let line = tokio::select! {
            line = lines.next(Some(context.bounds.wait)) => line,
            () = context.stop.cancelled() => {
                let _ = reply(&mut lines, Reply::Failed(stopping())).await;
                return;
            }
        };
        let line = match line {
            Ok(Some(line)) => line,
            Ok(None) | Err(LineError::Io(_)) => return,
            Err(error) => {
                let code = match error {
                    LineError::TooLong(_) => Code::TooLong,
                    _ => Code::TooSlow,
                };
                let message = format!("{error}; the connection is closed");
                let _ = reply(&mut lines, Reply::Failed(Failure::new(code, message))).await;
                return;
            }
        };
        let answered = match request::read(&line) {
            Ok(request) => handle_request(&mut lines, &context, request, peer).await,
            Err(failure) => reply(&mut lines, Reply::Failed(failure)).await,
        };
        if let Err(error) = answered {
            tracing::debug!(%error, "a control client was dropped");
            return;
        }
    }
}

fn stopping() -> Failure {
    Failure::new(Code::Stopping, "the supervisor is stopping")
}

async fn reply(lines: &mut Lines, reply: Reply) -> Result<(), LineError> {
    lines.send(reply::write_reply(&reply)).await
}

async fn handle_approvals<F: Fleet>(
    context: &ConnectionContext<F>,
    op: ApprovalOp,
    peer: Option<u32>,
) -> Result<Reply, Failure> {
    let unread = |why: String| Failure::new(Code::Refused, escape_for_display(&why, 300));
    match op {
        ApprovalOp::List { ended: over } => {
            let approvals = context.fleet.approvals(over).await.map_err(unread)?;
            Ok(Reply::Approvals(
                approvals.iter().map(ApprovalView::from_stored).collect(),
            ))
        }
        ApprovalOp::Show { id: approval } => {
            let stored = context
                .fleet
                .approval(approval.clone())
                .await
                .map_err(unread)?;
            let stored = stored.ok_or_else(|| {
                let message = format!("there is no approval {approval}");
                Failure::new(Code::NoSuchApproval, message)
            })?;
            Ok(Reply::Approval(Box::new(ApprovalView::with_details(
                &stored,
            ))))
        }
        ApprovalOp::Answer(answer) => {
            let who = peer.map_or_else(|| "control socket".to_owned(), |uid| format!("uid {uid}"));
            let answered = context
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
    context: &ConnectionContext<F>,
    request: Request,
    peer: Option<u32>,
) -> Result<(), LineError> {
    match request {
        Request::Hello => {
            let hello = Reply::Hello {
                role: context.role,
                pid: std::process::id(),
                configuration: context.fleet.config_digest(),
            };
            reply(lines, hello).await
        }
        Request::Submit {
            tasks,
            watch,
            bounds,
        } => submit(lines, context, (tasks, bounds), watch).await,
        Request::Watch { run } => match wait_for_run(lines, context, &run).await? {
            Err(failure) => reply(lines, Reply::Failed(failure)).await,
            Ok(ledger) => {
                let stream =
                    RunStream::new(context.fleet.subscribe(), ledger, context.fleet.history());
                let accepted = stream.total();
                reply(lines, Reply::Watching { accepted }).await?;
                stream_run(lines, context, stream).await
            }
        },
        Request::Cancel { run } => {
            if let Err(failure) = wait_for_run(lines, context, &run).await? {
                return reply(lines, Reply::Failed(failure)).await;
            }
            context.fleet.cancel(&run);
            reply(lines, Reply::Done).await
        }
        Request::CancelTask { pool, run, task } => {
            let answer = match context.fleet.cancel_task(&pool, &run, &task).await {
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
            if context.role == Role::Run {
                return reply(lines, Reply::Failed(no_daemon())).await;
            }
            let order = ConversationRequest {
                pool,
                directory,
                session,
            };
            conversation::open(lines, context, order).await
        }
        Request::Conversations { pool, after } => {
            let found = match context.fleet.conversations(&pool, after).await {
                Ok(found) => {
                    Reply::Conversations(found.iter().map(ConversationLine::from_view).collect())
                }
                Err(error) => Reply::Failed(conversation::open_failure(&error)),
            };
            reply(lines, found).await
        }
        Request::Approvals(op) => {
            let found = handle_approvals(context, op, peer).await;
            reply(lines, found.unwrap_or_else(Reply::Failed)).await
        }
        Request::List => {
            let listing = Listing::new(context.fleet.pools(), context.fleet.slots());
            reply(lines, Reply::Listed(listing)).await
        }
        Request::Policies => reply(lines, policies(&context.fleet)).await,
        Request::Reload => {
            let done = context.fleet.reload_policies(ReloadCause::Request).await;
            let answer = match done {
                Ok(_) => policies(&context.fleet),
                Err(why) => Reply::Failed(Failure::new(Code::BadPolicy, why)),
            };
            reply(lines, answer).await
        }
        Request::Logs { slot, follow } => logs(lines, context, &slot, follow).await,
        Request::Restart { slot } => {
            let restarted = if context.fleet.restart(slot.clone()).await {
                Reply::Done
            } else {
                Reply::Failed(no_such_slot(context, &slot))
            };
            reply(lines, restarted).await
        }
    }
}

/// Returns a current or past run. Waits for one that is about to be resumed, as long as the client
/// stays connected.
async fn wait_for_run<F: Fleet>(
    lines: &mut Lines,
    context: &ConnectionContext<F>,
    run: &RunId,
) -> Result<Result<Arc<Ledger>, Failure>, LineError> {
    let mut found = std::pin::pin!(context.runs.wait_for(run));
    let mut listens = true;
    loop {
        tokio::select! {
            biased;
            found = &mut found => return Ok(found.ok_or_else(|| no_such_run(run))),
            () = context.stop.cancelled() => return Ok(Err(stopping())),
            speaks = lines.wait_for_input(), if listens => {
                if !speaks {
                    return Err(LineError::Io(std::io::ErrorKind::ConnectionAborted.into()));
                }
                // The client sent another request: it is read after this one.
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
        "this supervisor serves only the command that started it; wait until it ends, or start `marshal up`",
    )
}

fn no_such_run(run: &RunId) -> Failure {
    Failure::new(
        Code::NoSuchRun,
        format!("there is no run {run} here; only the runs that ended last are kept"),
    )
}

fn no_such_slot<F: Fleet>(context: &ConnectionContext<F>, slot: &SlotId) -> Failure {
    /// The maximum number of names in a message; more would hide the message itself.
    const NAMED: usize = 8;
    let slots = context.fleet.slots();
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
    context: &ConnectionContext<F>,
    (tasks, bounds): (Vec<TaskSpec>, RunBounds),
    watch: bool,
) -> Result<(), LineError> {
    if context.role != Role::Daemon {
        return reply(lines, Reply::Failed(no_daemon())).await;
    }
    // Subscribe before the tasks are submitted, so that no event is missed.
    let notices = context.fleet.subscribe();
    let accepted = tasks.len();
    // A disk that accepts no writes must not delay the shutdown.
    let taken = tokio::select! {
        taken = submit_run(context, tasks, bounds) => taken,
        () = context.stop.cancelled() => Err(stopping()),
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
            context,
            RunStream::new(notices, ledger, context.fleet.history()),
        )
        .await?;
    }
    Ok(())
}

async fn submit_run<F: Fleet>(
    context: &ConnectionContext<F>,
    tasks: Vec<TaskSpec>,
    bounds: RunBounds,
) -> Result<Arc<Ledger>, Failure> {
    let run = new_run_id().map_err(|error| Failure::new(Code::Refused, error.to_string()))?;
    let total = tasks.len();
    context.fleet.set_run_bounds(&run, bounds);
    let taken = context.fleet.submit(run.clone(), "up", tasks).await;
    let reports = taken.map_err(|refusal| match refusal {
        Refusal::Tasks(message) => Failure::new(Code::BadTasks, message),
        Refusal::Fleet(message) | Refusal::Full(message) => Failure::new(Code::Refused, message),
    })?;
    let ledger = Ledger::collect(run, total, reports);
    context.runs.insert(&ledger);
    Ok(ledger)
}

/// Forwards a run's stream. Ends with the run, the client or the supervisor.
async fn stream_run<F: Fleet>(
    lines: &mut Lines,
    context: &ConnectionContext<F>,
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
                // The client sent another request: it is read after this one.
                listens = false;
                continue;
            }
            () = context.stop.cancelled() => return finish_stream(lines, context, stream).await,
        };
        let line = json_lines::item_json(&item);
        lines.send(line).await?;
        if matches!(item, RunStreamItem::Complete) {
            return Ok(());
        }
    }
}

/// The supervisor is stopping: sends what is available without waiting.
async fn finish_stream<F: Fleet>(
    lines: &mut Lines,
    context: &ConnectionContext<F>,
    mut stream: RunStream,
) -> Result<(), LineError> {
    while let Ok(item) = tokio::time::timeout(context.bounds.drain / 4, stream.next()).await {
        lines.send(json_lines::item_json(&item)).await?;
        if matches!(item, RunStreamItem::Complete) {
            return Ok(());
        }
    }
    reply(lines, Reply::Failed(stopping())).await
}

async fn logs<F: Fleet>(
    lines: &mut Lines,
    context: &ConnectionContext<F>,
    slot: &SlotId,
    follow: bool,
) -> Result<(), LineError> {
    let Some(mut tail) = context.fleet.logs(slot) else {
        let failure = no_such_slot(context, slot);
        return reply(lines, Reply::Failed(failure)).await;
    };
    reply(lines, Reply::Done).await?;
    for line in &tail.backlog {
        lines.send(json_lines::log_line(line)).await?;
    }
    if follow {
        relay_log(lines, context, &mut tail.live).await?;
    }
    lines
        .send(json_lines::item_json(&RunStreamItem::Complete))
        .await
}

/// Forwards a slot's stderr lines. Ends with the slot, the client or the supervisor.
async fn relay_log<F: Fleet>(
    lines: &mut Lines,
    context: &ConnectionContext<F>,
    live: &mut broadcast::Receiver<UntrustedText>,
) -> Result<(), LineError> {
    let mut listens = true;
    loop {
        let notice = tokio::select! {
            notice = live.recv() => notice,
            speaks = lines.wait_for_input(), if listens => {
                if !speaks {
                    return Err(LineError::Io(std::io::ErrorKind::ConnectionAborted.into()));
                }
                listens = false;
                continue;
            }
            () = context.stop.cancelled() => return Ok(()),
        };
        match notice {
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
