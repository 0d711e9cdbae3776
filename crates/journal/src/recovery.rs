//! What earlier starts left open: this start writes the missing ends at once.
//!
//! A killed supervisor leaves permission requests without a verdict, turns without an end and
//! sessions without a process. Their streams get the missing events, under the new epoch and with
//! the next seq: the permission request is denied because neither agent nor approver waits any
//! more, and the turn is lost. A session of a single task ends with it. A slot's own session (one
//! without a task) stays open with its whole stream; its pool decides whether to resume it. A
//! running turn of a chat is lost. A turn that waited, or whose task never began, waits to be sent.
//! Tasks that waited or ran stay as they are until their run is continued.
//!
//! A pending approval becomes orphaned: a resumed session may make the same request again. An
//! orphaned approval expires after its deadline. The approvals of a session that ends here end with
//! it (`approvals.rs`).

use std::sync::Arc;

use rusqlite::Connection;

use super::chats::ChatWrite;
use super::commit::{CONVERSATION_COMMAND, Commit, TaskChange, Write};
use marshal_model::{
    DecidedBy, Decision, Event, EventId, PermissionRequestId, RunId, STOPPED_BY_PERSON, SessionId,
    StampedEvent, TaskId, TaskOutcome, TurnId, TurnOutcome, Usage, Verdict,
};

const DENY_REASON: &str = "the supervisor ended before this was decided";
const LOST_DETAIL: &str = "the supervisor ended while this ran";

/// Counts of what earlier epochs left open.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// Sessions of one task that were open and have been ended.
    pub sessions: u64,
    /// Sessions of slots, which stay open.
    pub open_slot_sessions: u64,
    /// Turns that had no end.
    pub turns: u64,
    /// Permission requests without a verdict.
    pub permission_requests: u64,
}

/// Plans the commits that end what epochs before `epoch` left open.
pub(super) fn plan_recovery(
    conn: &Connection,
    epoch: u64,
    at_us: i64,
) -> rusqlite::Result<(Vec<Commit>, RecoveryReport)> {
    let mut report = RecoveryReport::default();
    let mut commits = Vec::new();
    // Before sessions are ended, because the end of a session ends its approvals.
    let is_open = "SELECT EXISTS (SELECT 1 FROM approvals WHERE state IN ('pending', 'orphaned'))";
    if conn.query_row(is_open, [], |row| row.get(0))? {
        commits.push(Commit::new(vec![Write::ApprovalsOrphaned { at_us }]));
    }
    let before = i64::try_from(epoch).unwrap_or(i64::MAX);
    let mut open = conn.prepare(
        "SELECT session, task IS NOT NULL FROM sessions WHERE ended_at_us IS NULL AND epoch < ?1",
    )?;
    let sessions = open
        .query_map([before], |row| <(String, bool)>::try_from(row))?
        .collect::<Result<Vec<_>, _>>()?;
    for (name, is_of_a_task) in sessions {
        // Only valid ids are ever written.
        let Ok(session) = SessionId::new(&name) else {
            continue;
        };
        let mut writes = missing_events(conn, &session, epoch, at_us, &mut report)?;
        if is_of_a_task {
            report.sessions += 1;
            writes.push(Write::SessionEnded {
                session,
                at_us,
                class: None,
            });
        } else {
            report.open_slot_sessions += 1;
        }
        if !writes.is_empty() {
            commits.push(Commit::new(writes));
        }
    }
    commits.extend(end_conversation_prompts(conn, at_us)?);
    Ok((commits, report))
}

/// Ends the prompts of conversations: their clients lost their connection with the supervisor.
fn end_conversation_prompts(conn: &Connection, at_us: i64) -> rusqlite::Result<Option<Commit>> {
    let mut open = conn.prepare(
        "SELECT tasks.run, id, state FROM tasks JOIN runs ON runs.run = tasks.run \
         WHERE command = ?1 AND state <> 'ended'",
    )?;
    let rows = open.query_map([CONVERSATION_COMMAND], |row| {
        <(String, String, String)>::try_from(row)
    })?;
    let mut writes = settle_interrupted_turns(conn, at_us)?;
    for row in rows {
        let (run, task, state) = row?;
        let (Ok(run), Ok(task)) = (RunId::new(&run), TaskId::new(&task)) else {
            continue;
        };
        let outcome = match state.as_str() {
            "running" => TaskOutcome::Lost,
            _ => TaskOutcome::Skipped,
        };
        let change = TaskChange::Ended {
            outcome,
            detail: LOST_DETAIL.to_owned(),
            result: String::new(),
        };
        writes.push(Write::TaskUpdated {
            run,
            task,
            at_us,
            change,
        });
    }
    Ok((!writes.is_empty()).then(|| Commit::new(writes)))
}

/// Settles the turns of chats that were running. A turn with a durable end gets that outcome. A
/// turn that no agent received waits again. Any other turn is lost.
fn settle_interrupted_turns(conn: &Connection, at_us: i64) -> rusqlite::Result<Vec<Write>> {
    let mut running = conn.prepare(
        "SELECT turn, coalesce(tasks.attempts = 0 AND (tasks.state = 'queued' \
         OR tasks.outcome = 'skipped'), 0) OR turns.outcome IS NULL AND coalesce((SELECT kind \
         FROM events WHERE session = turns.chat AND kind IN ('prompt_accepted', 'turn_ended') \
         ORDER BY seq DESC LIMIT 1), 'turn_ended') = 'turn_ended', turns.outcome, turns.stopped \
         FROM turns JOIN chats ON chats.session = turns.chat \
         LEFT JOIN tasks ON tasks.run = chats.run AND tasks.id = turns.task \
         WHERE turns.state = 'running'",
    )?;
    let rows = running.query_map([], |row| {
        <(String, bool, Option<String>, bool)>::try_from(row)
    })?;
    let mut writes = Vec::new();
    for row in rows {
        let (turn, is_unsent, ended, stopped) = row?;
        let Ok(turn) = TurnId::new(&turn) else {
            continue;
        };
        writes.push(Write::Chat(if is_unsent {
            ChatWrite::Requeue { turn }
        } else {
            // The turn's outcome may be durable although its task had not ended.
            let ended = ended.as_deref().and_then(TurnOutcome::parse);
            let outcome = ended.unwrap_or(if stopped {
                TurnOutcome::Cancelled
            } else {
                TurnOutcome::Lost
            });
            let at_ms = at_us.div_euclid(1000);
            ChatWrite::End {
                turn,
                outcome,
                at_ms,
            }
        }));
    }
    Ok(writes)
}

/// The events that a session's stream lacks.
fn missing_events(
    conn: &Connection,
    session: &SessionId,
    epoch: u64,
    at_us: i64,
    report: &mut RecoveryReport,
) -> rusqlite::Result<Vec<Write>> {
    // Newest first, and only back to the newest turn: a chat's stream may span months.
    let (mut seq, is_running, stopped): (u64, bool, bool) = conn
        .prepare_cached(
            "SELECT coalesce((SELECT max(seq) FROM events WHERE session = ?1), 0), \
             coalesce((SELECT kind = 'prompt_accepted' FROM events WHERE session = ?1 \
             AND kind IN ('prompt_accepted', 'turn_ended') ORDER BY seq DESC LIMIT 1), 0), \
             EXISTS (SELECT 1 FROM turns WHERE chat = ?1 AND state = 'running' AND stopped = 1)",
        )?
        .query_row([session.as_str()], |row| {
            let (seq, is_running, stopped) = <(i64, bool, bool)>::try_from(row)?;
            Ok((seq.unsigned_abs(), is_running, stopped))
        })?;
    let mut writes = Vec::new();
    let mut event = |event| {
        seq += 1;
        writes.push(Write::Events {
            session: session.clone(),
            events: Arc::new(vec![StampedEvent {
                id: EventId { epoch, seq },
                at_us,
                event,
            }]),
        });
    };
    let mut open = conn.prepare_cached(
        "SELECT id FROM permission_requests WHERE session = ?1 AND link IS NULL ORDER BY requested_seq",
    )?;
    let mut rows = open.query([session.as_str()])?;
    while let Some(row) = rows.next()? {
        if let Ok(ask) = PermissionRequestId::new(&row.get::<_, String>(0)?) {
            report.permission_requests += 1;
            event(Event::PermissionDecided(Verdict {
                request: ask,
                decision: Decision::Deny,
                decided_by: DecidedBy::Gone,
                rules: Vec::new(),
                reason: DENY_REASON.to_owned(),
            }));
        }
    }
    if is_running {
        report.turns += 1;
        // A turn that a person stopped was reported to them as stopped, so it ends as cancelled.
        let (outcome, why) = if stopped {
            (TurnOutcome::Cancelled, STOPPED_BY_PERSON)
        } else {
            (TurnOutcome::Lost, LOST_DETAIL)
        };
        event(Event::TurnEnded {
            outcome,
            stop_reason: None,
            usage: Usage::default(),
            detail: Some(why.to_owned()),
        });
    }
    Ok(writes)
}
