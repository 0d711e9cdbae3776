//! What a start finds open from the starts before it, and how it ends.
//!
//! A supervisor that was killed leaves asks without a verdict, turns without an end and tasks
//! that seem to run. Their streams get the missing events, under the new epoch and with the next
//! seq, and their rows their end: the ask is denied because
//! everybody is gone, the turn and its task are lost, a task that never began is skipped.

use std::sync::Arc;

use rusqlite::Connection;

use super::commit::{Commit, TaskChange, Write};
use crate::model::{
    AskId, DecidedBy, Decision, Event, EventId, RunId, SessionId, Stamped, TaskId, TaskOutcome,
    TurnOutcome, Usage, Verdict,
};

const GONE: &str = "the supervisor ended before this was decided";
const LOST: &str = "the supervisor ended while this ran";
const NEVER_BEGAN: &str = "the supervisor ended before this began";

/// How much was left open.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Sessions that had not ended.
    pub sessions: u64,
    /// Turns that had not ended.
    pub turns: u64,
    /// Asks without a verdict.
    pub asks: u64,
    /// Tasks that ran.
    pub tasks_lost: u64,
    /// Tasks that waited.
    pub tasks_skipped: u64,
}

/// The commits that end what epochs before `epoch` left open.
pub(super) fn plan(
    conn: &Connection,
    epoch: u64,
    at_us: i64,
) -> rusqlite::Result<(Vec<Commit>, Recovered)> {
    let mut found = Recovered::default();
    let mut commits = Vec::new();
    let before = i64::try_from(epoch).unwrap_or(i64::MAX);
    let mut open = conn.prepare(
        "SELECT session, task IS NULL FROM sessions WHERE ended_at_us IS NULL AND epoch < ?1",
    )?;
    let sessions = open
        .query_map([before], |row| Ok((row.get::<_, String>(0)?, row.get(1)?)))?
        .collect::<Result<Vec<_>, _>>()?;
    for (name, of_slot) in sessions {
        // Only ids that passed this check were ever written.
        let Ok(session) = SessionId::new(&name) else {
            continue;
        };
        found.sessions += 1;
        commits.push(end_session(
            conn, &session, of_slot, epoch, at_us, &mut found,
        )?);
    }
    let mut open = conn.prepare(
        "SELECT run, id, state FROM tasks JOIN runs USING (run) \
         WHERE state <> 'ended' AND runs.epoch < ?1",
    )?;
    let mut rows = open.query([before])?;
    while let Some(row) = rows.next()? {
        let (run, task): (String, String) = (row.get(0)?, row.get(1)?);
        let running = row.get::<_, String>(2)? == "running";
        if let (Ok(run), Ok(task)) = (RunId::new(&run), TaskId::new(&task)) {
            commits.push(Commit::of(vec![end_task(
                run, task, running, at_us, &mut found,
            )]));
        }
    }
    Ok((commits, found))
}

fn end_session(
    conn: &Connection,
    session: &SessionId,
    of_slot: bool,
    epoch: u64,
    at_us: i64,
    found: &mut Recovered,
) -> rusqlite::Result<Commit> {
    let (mut seq, prompt, end): (u64, u64, u64) = conn
        .prepare_cached(
            "SELECT coalesce(max(seq), 0), \
             coalesce(max(seq) FILTER (WHERE kind = 'prompt_accepted'), 0), \
             coalesce(max(seq) FILTER (WHERE kind = 'turn_ended'), 0) \
             FROM events WHERE session = ?1",
        )?
        .query_row([session.as_str()], |row| {
            let number = |column| row.get::<_, i64>(column).map(i64::unsigned_abs);
            Ok((number(0)?, number(1)?, number(2)?))
        })?;
    let mut writes = Vec::new();
    let mut event = |event| {
        seq += 1;
        writes.push(Write::Events {
            session: session.clone(),
            events: Arc::new(vec![Stamped {
                id: EventId { epoch, seq },
                at_us,
                event,
            }]),
        });
    };
    let mut open = conn.prepare_cached(
        "SELECT id FROM asks WHERE session = ?1 AND link IS NULL ORDER BY asked_seq",
    )?;
    let mut asks = open.query([session.as_str()])?;
    while let Some(row) = asks.next()? {
        if let Ok(ask) = AskId::new(&row.get::<_, String>(0)?) {
            found.asks += 1;
            event(Event::Decided(Verdict {
                ask,
                decision: Decision::Deny,
                by: DecidedBy::Gone,
                rules: Vec::new(),
                reason: GONE.to_owned(),
            }));
        }
    }
    if prompt > end {
        found.turns += 1;
        event(Event::TurnEnded {
            outcome: TurnOutcome::Lost,
            stop_reason: None,
            usage: Usage::default(),
            detail: Some(LOST.to_owned()),
        });
    }
    // One of a slot may be loaded again: whoever starts decides that.
    if !of_slot {
        writes.push(Write::SessionEnded {
            session: session.clone(),
            at_us,
            class: None,
        });
    }
    Ok(Commit::of(writes))
}

fn end_task(run: RunId, task: TaskId, running: bool, at_us: i64, found: &mut Recovered) -> Write {
    let (outcome, detail) = if running {
        found.tasks_lost += 1;
        (TaskOutcome::Lost, LOST)
    } else {
        found.tasks_skipped += 1;
        (TaskOutcome::Skipped, NEVER_BEGAN)
    };
    Write::TaskUpdated {
        run,
        task,
        at_us,
        change: TaskChange::Ended {
            outcome,
            detail: detail.to_owned(),
            result: String::new(),
        },
    }
}
