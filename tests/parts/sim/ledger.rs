//! What really happened, seen from outside the fleet: every child's own book, the reports that
//! came, and the faults that were found on the way.
//!
//! It outlives the supervisor's lives. Whoever writes to it also makes a step of the world's
//! trace, whose digest two runs of one seed must share, and at one of whose steps a supervisor may
//! be killed.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hasher as _};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use marshal_model::limits::{CREDIT_BYTES, READ_CHUNK_BYTES};
use rusqlite::{Connection, OpenFlags, OptionalExtension as _};
use tokio::sync::Notify;
use tokio::time::Instant;

/// What a pipe holds.
const PIPE_BYTES: u64 = 64 << 10;
/// The longest line that a simulated child writes.
pub(crate) const LONGEST_LINE: u64 = 32 << 10;

/// One child's own book.
#[derive(Debug, Default)]
pub(crate) struct Child {
    pub(crate) session: String,
    pub(crate) alive: bool,
    /// Prompts that it read whole.
    pub(crate) prompts: Vec<String>,
    /// Answers that it got, by its request's id.
    pub(crate) answers: BTreeMap<String, Vec<bool>>,
    /// Bytes of events that it wrote since the journal last made something durable.
    unsettled: u64,
}

/// A task that was handed in.
#[derive(Debug, Default)]
pub(crate) struct Task {
    pub(crate) attempts: u64,
    /// Some life said that it is taken in.
    pub(crate) is_sure: bool,
    /// The lives that took it in, or up.
    pub(crate) lives: BTreeSet<u32>,
    /// The outcomes that were reported, and in which life.
    pub(crate) reports: Vec<(u32, String)>,
}

#[derive(Debug, Default)]
pub(crate) struct Book {
    pub(crate) children: Vec<Child>,
    /// By run and task.
    pub(crate) tasks: BTreeMap<(String, String), Task>,
    /// What went wrong, in words.
    pub(crate) faults: BTreeSet<String>,
    /// How often each thing happened: whether the simulation reaches what it is for.
    pub(crate) seen: BTreeMap<&'static str, u64>,
    pub(crate) life: u32,
    /// Lives that ended as they should.
    pub(crate) finished: BTreeSet<u32>,
    hash: DefaultHasher,
    steps: u64,
    crash_at: Option<u64>,
    began: Option<Instant>,
    reader: Option<Connection>,
}

#[derive(Debug)]
pub(crate) struct Ledger {
    book: Mutex<Book>,
    pub(crate) crash: Notify,
    prints: bool,
}

impl Ledger {
    pub(crate) fn new(prints: bool) -> Self {
        Self {
            book: Mutex::default(),
            crash: Notify::new(),
            prints,
        }
    }

    pub(crate) fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A life begins; it is cut short after so many steps, if at all.
    pub(crate) fn begin(&self, crash_after: Option<u64>) {
        let mut book = self.book();
        book.life += 1;
        book.began = Some(Instant::now());
        book.crash_at = crash_after.map(|after| book.steps + after);
    }

    /// A life is over, one way or the other; nobody reads the database any more.
    pub(crate) fn end(&self, finished: bool) {
        let mut book = self.book();
        book.reader = None;
        let life = book.life;
        if finished {
            book.finished.insert(life);
        }
        for child in &mut book.children {
            child.alive = false;
        }
    }

    pub(crate) fn reads(&self, file: &Path) {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        self.book().reader = Some(Connection::open_with_flags(file, flags).expect("a reader"));
    }

    /// One step of the trace.
    pub(crate) fn step(&self, what: &str) {
        let mut book = self.book();
        book.steps += 1;
        let at = book.began.map_or(0, |began| began.elapsed().as_micros());
        book.hash.write(&at.to_le_bytes());
        book.hash.write(what.as_bytes());
        if self.prints {
            println!("{:>3} {:>12} {what}", book.life, at);
        }
        if book.crash_at == Some(book.steps) {
            self.crash.notify_one();
        }
    }

    /// Shows more than the trace holds, to whoever runs one seed.
    pub(crate) fn print(&self, what: impl FnOnce() -> String) {
        if self.prints {
            println!("{}", what());
        }
    }

    /// Counts a thing that the simulation must reach.
    pub(crate) fn saw(&self, what: &'static str) {
        *self.book().seen.entry(what).or_default() += 1;
    }

    pub(crate) fn fault(&self, what: String) {
        if self.prints {
            println!("FAULT {what}");
        }
        self.book().faults.insert(what);
    }

    pub(crate) fn digest(&self) -> u64 {
        self.book().hash.finish()
    }

    /// A child runs; gives its number.
    pub(crate) fn born(&self, session: &str) -> usize {
        let mut book = self.book();
        let twin = book
            .children
            .iter()
            .any(|child| child.alive && child.session == session);
        book.children.push(Child {
            session: session.to_owned(),
            alive: true,
            ..Child::default()
        });
        let number = book.children.len() - 1;
        drop(book);
        if twin {
            self.fault(format!("session {session} has two children at once"));
        }
        self.step(&format!("child {number} runs"));
        number
    }

    pub(crate) fn died(&self, number: usize, how: &str) {
        self.book().children[number].alive = false;
        self.step(&format!("child {number} is gone: {how}"));
    }

    /// Sessions of children that run.
    pub(crate) fn running_sessions(&self) -> Vec<String> {
        let book = self.book();
        let alive = book.children.iter().filter(|child| child.alive);
        alive.map(|child| child.session.clone()).collect()
    }

    /// A child read a prompt: it must be durable now, and more often than it was read.
    pub(crate) fn prompted(&self, number: usize, text: &str) {
        let mut book = self.book();
        let session = book.children[number].session.clone();
        book.children[number].prompts.push(text.to_owned());
        let read = book
            .children
            .iter()
            .filter(|child| child.session == session)
            .map(|child| child.prompts.len())
            .sum::<usize>();
        let accepted: i64 = book.one(
            "SELECT count(*) FROM events WHERE session = ?1 AND kind = 'prompt_accepted'",
            (&session,),
        );
        let (run, task) = text
            .split(' ')
            .next()
            .and_then(|name| name.split_once('/'))
            .unwrap_or_default();
        let over = book.one(
            "SELECT count(*) FROM tasks WHERE run = ?1 AND id = ?2 AND state = 'ended'",
            (run, task),
        );
        drop(book);
        if over > 0 {
            self.fault(format!("{run}/{task} was sent again when it was over"));
        }
        if i64::try_from(read).is_ok_and(|read| read > accepted) {
            self.fault(format!(
                "session {session} read {read} prompts when {accepted} were durable"
            ));
        }
        let head: String = text.chars().take(40).collect();
        self.step(&format!("child {number} reads prompt {head}"));
    }

    /// A child got an answer: a durable verdict must say the same now, and none is allowed twice.
    /// `None` is no verdict: the turn ends, and the permission request with it.
    pub(crate) fn answered(&self, number: usize, request: &str, allowed: Option<bool>) {
        let mut book = self.book();
        let session = book.children[number].session.clone();
        let answers = &mut book.children[number].answers;
        let answers = answers.entry(request.to_owned()).or_default();
        answers.extend(allowed);
        let is_first = answers.len() <= 1;
        let verdict: Option<String> = book.reader.as_ref().and_then(|reader| {
            let mut query = reader
                .prepare_cached(
                    "SELECT decision FROM permission_requests \
                     WHERE session = ?1 AND request_key = ?2 AND link IS NOT NULL",
                )
                .expect("SQL");
            let found = query.query_row((&session, request), |row| row.get(0));
            found.optional().expect("a row")
        });
        drop(book);
        let is_wrong = match (allowed, verdict.as_deref()) {
            (Some(true), verdict) => verdict != Some("allow") || !is_first,
            (Some(false), Some("allow")) => is_first,
            _ => false,
        };
        if is_wrong {
            self.fault(format!(
                "session {session}: {request} was answered {allowed:?}, first {is_first}, when the durable verdict was {verdict:?}"
            ));
        }
        self.step(&format!("child {number} hears {request}: {allowed:?}"));
    }

    /// A watcher was shown events of a session: they are durable now, and nothing is shown twice
    /// or out of order. `after` is the last seq that it was shown before.
    pub(crate) fn check_shown_events(
        &self,
        session: &str,
        first: u64,
        last: u64,
        after: Option<u64>,
    ) {
        let durable = self.book().one(
            "SELECT coalesce(max(seq), 0) FROM events WHERE session = ?1",
            (session,),
        );
        if last > durable.unsigned_abs() {
            self.fault(format!(
                "session {session}: {last} was shown when {durable} was durable"
            ));
        }
        if after.is_some_and(|after| first != after + 1) {
            self.fault(format!(
                "session {session}: {first} was shown after {after:?}"
            ));
        }
    }

    /// A child wrote so many bytes of events into its pipe.
    pub(crate) fn wrote(&self, number: usize, bytes: usize) {
        let mut book = self.book();
        let child = &mut book.children[number];
        child.unsettled += bytes as u64;
        let bound = (CREDIT_BYTES + 2 * READ_CHUNK_BYTES) as u64 + PIPE_BYTES + 2 * LONGEST_LINE;
        let over = child.unsettled > bound;
        let unsettled = child.unsettled;
        if unsettled > CREDIT_BYTES as u64 {
            *book.seen.entry("a child held by its credits").or_default() += 1;
        }
        drop(book);
        if over {
            self.fault(format!(
                "{unsettled} bytes were taken from child {number} while nothing became durable"
            ));
        }
    }

    /// The journal made something durable.
    pub(crate) fn settled(&self, commits: usize) {
        let mut book = self.book();
        for child in &mut book.children {
            child.unsettled = 0;
        }
        drop(book);
        self.step(&format!("{commits} commits are durable"));
    }
}

impl Book {
    fn one(&self, sql: &str, with: impl rusqlite::Params) -> i64 {
        let Some(reader) = &self.reader else { return 0 };
        let mut query = reader.prepare_cached(sql).expect("SQL");
        query.query_row(with, |row| row.get(0)).expect("a row")
    }
}
