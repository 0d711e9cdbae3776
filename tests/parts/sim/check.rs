//! The invariants, from the database and the children's books; read with plain SQL, so that the
//! program's own reader is not what is believed.

use std::collections::BTreeMap;

use marshal_journal::Reader;
use rusqlite::{Connection, OpenFlags};

use crate::sim::ledger::Book;
use crate::sim::world::World;

/// What the database says of one session.
#[derive(Debug, Default)]
struct Story {
    count: u64,
    last: u64,
    epoch: u64,
    accepted: u64,
    ended: u64,
    asked: u64,
    decided: u64,
    open: bool,
}

/// Looks through everything. After the last life nothing may be open.
pub(crate) fn database(world: &World, is_last: bool) {
    let state = world.dir.path().join("state");
    let file = state.join(marshal_journal::FILE_NAME);
    let Ok(conn) = Connection::open_with_flags(&file, OpenFlags::SQLITE_OPEN_READ_ONLY) else {
        return;
    };
    let book = world.ledger.book();
    let ended_well = book.finished.contains(&book.life);
    let mut faults = Vec::new();
    let stories = stories(&conn, &mut faults);
    if ended_well {
        settled(&conn, &stories, is_last, &mut faults);
    }
    prompts(&conn, &book, &stories, ended_well, &mut faults);
    reports(&conn, &book, is_last && ended_well, &mut faults);
    drop(book);
    for fault in faults {
        world.ledger.fault(fault);
    }
    if is_last || ended_well {
        let reader = Reader::open(&state).expect("a reader");
        if let Err(error) = reader.verify_audit() {
            world
                .ledger
                .fault(format!("the audit chain is broken: {error}"));
        }
    }
}

fn stories(conn: &Connection, faults: &mut Vec<String>) -> BTreeMap<String, Story> {
    let mut stories: BTreeMap<String, Story> = BTreeMap::new();
    let mut query = conn
        .prepare("SELECT session, seq, epoch, kind FROM events ORDER BY session, seq")
        .expect("SQL");
    let mut rows = query.query([]).expect("rows");
    while let Some(row) = rows.next().expect("a row") {
        let session: String = row.get(0).expect("text");
        let number = |at| row.get::<_, i64>(at).expect("a number").unsigned_abs();
        let (seq, epoch) = (number(1), number(2));
        let kind: String = row.get(3).expect("text");
        let story = stories.entry(session.clone()).or_default();
        story.count += 1;
        story.last = seq;
        if epoch < story.epoch {
            faults.push(format!("session {session}: the epoch falls at {seq}"));
        }
        story.epoch = epoch;
        match kind.as_str() {
            "prompt_accepted" => {
                if story.open {
                    faults.push(format!(
                        "session {session}: a prompt is accepted in a turn at {seq}"
                    ));
                }
                story.open = true;
                story.accepted += 1;
            }
            "turn_ended" => {
                if !story.open {
                    faults.push(format!("session {session}: a turn ends twice at {seq}"));
                }
                story.open = false;
                story.ended += 1;
            }
            "permission_requested" => story.asked += 1,
            "permission_decided" => story.decided += 1,
            _ => {}
        }
    }
    for (session, story) in &stories {
        if story.count != story.last {
            faults.push(format!(
                "session {session} has {} events up to {}",
                story.count, story.last
            ));
        }
        if story.asked != story.decided {
            faults.push(format!(
                "session {session}: {story:?}: asks and verdicts differ"
            ));
        }
    }
    stories
}

/// What must be over after a life that ended as it should; after the last one, everything.
fn settled(
    conn: &Connection,
    stories: &BTreeMap<String, Story>,
    is_last: bool,
    faults: &mut Vec<String>,
) {
    for (session, story) in stories {
        if story.accepted != story.ended {
            faults.push(format!("session {session}: {story:?}: a prompt has no end"));
        }
    }
    let mut left = vec![
        (
            "sessions of tasks",
            "SELECT count(*) FROM sessions WHERE ended_at_us IS NULL AND task IS NOT NULL",
        ),
        (
            "asks",
            "SELECT count(*) FROM permission_requests WHERE link IS NULL OR decision IS NULL",
        ),
        (
            "links",
            "SELECT coalesce(max(link), 0) - count(link) FROM permission_requests",
        ),
    ];
    if is_last {
        left.extend([
            (
                "tasks",
                "SELECT count(*) FROM tasks WHERE state <> 'ended' OR outcome IS NULL",
            ),
            (
                "runs",
                "SELECT count(*) FROM runs WHERE ended_at_us IS NULL",
            ),
        ]);
    }
    for (what, sql) in left {
        let count: i64 = conn.query_row(sql, [], |row| row.get(0)).expect("a number");
        if count != 0 {
            faults.push(format!("{count} {what} are left open"));
        }
    }
}

/// Every prompt that a child read has its accepted row and one end, and none was read more often
/// than it may be.
fn prompts(
    conn: &Connection,
    book: &Book,
    stories: &BTreeMap<String, Story>,
    ended_well: bool,
    faults: &mut Vec<String>,
) {
    let mut of_session: BTreeMap<&str, u64> = BTreeMap::new();
    let mut of_task: BTreeMap<&str, u64> = BTreeMap::new();
    for child in &book.children {
        *of_session.entry(&child.session).or_default() += child.prompts.len() as u64;
        for prompt in &child.prompts {
            let task = prompt.split(' ').next().unwrap_or_default();
            *of_task.entry(task).or_default() += 1;
        }
        for (request, answers) in &child.answers {
            if answers.contains(&true) {
                let sql = "SELECT count(*) FROM permission_requests WHERE session = ?1 AND request_key = ?2 AND decision = 'allow'";
                let known: i64 = conn
                    .query_row(sql, (&child.session, request), |row| row.get(0))
                    .expect("a number");
                if known != 1 {
                    faults.push(format!(
                        "session {}: {request} was allowed, by {known} verdicts",
                        child.session
                    ));
                }
            }
        }
    }
    for (session, read) in of_session {
        let story = stories.get(session);
        let (accepted, ended) = story.map_or((0, 0), |story| (story.accepted, story.ended));
        if read > accepted || (ended_well && read > ended) {
            faults.push(format!(
                "session {session} read {read} prompts, {accepted} were accepted and {ended} ended"
            ));
        }
    }
    for ((run, task), handed_in) in &book.tasks {
        let read = of_task
            .get(format!("{run}/{task}").as_str())
            .copied()
            .unwrap_or(0);
        // A turn that a stop interrupted is not counted.
        let stops = handed_in.lives.intersection(&book.finished).count() as u64;
        if read > handed_in.attempts + stops {
            faults.push(format!(
                "{run}/{task} was read {read} times and may be sent {}",
                handed_in.attempts
            ));
        }
    }
}

/// Every task that a life took in or up, and that was not killed, is reported in it once or waits for
/// the next life, and is always as the database says.
fn reports(conn: &Connection, book: &Book, all_over: bool, faults: &mut Vec<String>) {
    for ((run, task), handed_in) in &book.tasks {
        let row: Result<(String, Option<String>), _> = conn.query_row(
            "SELECT state, outcome FROM tasks WHERE run = ?1 AND id = ?2",
            (run, task),
            |row| Ok((row.get(0)?, row.get(1)?)),
        );
        let Ok((state, outcome)) = row else {
            if handed_in.is_sure {
                faults.push(format!(
                    "{run}/{task} was taken in and is not in the database"
                ));
            }
            continue;
        };
        let seen = &handed_in.reports;
        for life in &handed_in.lives {
            let times = seen.iter().filter(|(item, _)| item == life).count();
            // A life that stopped in an orderly way leaves what it did not end.
            let is_left = *life < book.life || state == "queued";
            if times > 1 || (times == 0 && book.finished.contains(life) && !is_left) {
                faults.push(format!(
                    "{run}/{task} was reported {times} times in life {life}"
                ));
            }
        }
        let differs = seen.iter().any(|(_, seen)| Some(seen) != outcome.as_ref());
        if differs || (all_over && state != "ended") {
            faults.push(format!(
                "{run}/{task} is {state} {outcome:?}, and was reported {seen:?}"
            ));
        }
    }
}
