//! Reads the journal on a connection of its own, which never blocks the writer.
//!
//! Sees only durable rows. Rows are returned as stored. An event is decoded only on demand, so that
//! an event of a newer program does not hide the others.

use std::path::{Path, PathBuf};

use rusqlite::{Connection, Row, params};

use super::audit::{self, ChainHead};
use super::codec::{self, CodecError};
use super::columns::Columns as _;
use super::error::{OpenError, ReadError};
use super::schema;
use marshal_model::limits;
use marshal_model::{Event, EventId, ExitClass, RunId, SessionId, SlotId, StampedEvent};

/// A connection for reading. It may move to another thread, but not be shared.
pub struct Reader {
    conn: Connection,
}

/// A row of `events`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredEvent {
    /// Its session.
    pub session: String,
    /// Its id: epoch and seq.
    pub id: EventId,
    /// When it was stamped: microseconds since the Unix epoch.
    pub at_us: i64,
    /// A word of [`marshal_model::EventKind`], or an unknown word of a newer program.
    pub kind: String,
    /// The version of the body's format.
    pub version: u32,
    /// The body, JSON.
    pub body: String,
}

impl StoredEvent {
    /// Decodes the body.
    ///
    /// # Errors
    /// [`CodecError`] if a newer program wrote it or the row is damaged.
    pub fn decode(&self) -> Result<StampedEvent, CodecError> {
        let event: Event = codec::decode(&self.kind, self.version, &self.body)?;
        Ok(StampedEvent {
            id: self.id,
            at_us: self.at_us,
            event,
        })
    }

    /// The event as a line, the same as [`codec::to_json`] writes.
    #[must_use]
    pub fn into_json(self) -> String {
        codec::format_line(
            &self.session,
            self.id,
            self.at_us,
            &self.kind,
            self.version,
            self.body,
        )
    }
}

/// A row of `sessions`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredSession {
    /// Its id.
    pub session: String,
    /// The epoch that began it.
    pub epoch: u64,
    /// Its pool.
    pub pool: String,
    /// Its slot.
    pub slot: u16,
    /// The session's run; `None` if it outlives its runs.
    pub run: Option<String>,
    /// The session's task; `None` with `session = "slot"`.
    pub task: Option<String>,
    /// The number of the task's attempt, from 1.
    pub attempt: u32,
    /// When it began, in microseconds since the Unix epoch.
    pub begun_at_us: i64,
    /// When it ended; `None` while it is open.
    pub ended_at_us: Option<i64>,
    /// The exit class of its last child.
    pub class: Option<String>,
}

/// A row of `runs`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredRun {
    /// Its id.
    pub run: String,
    /// The epoch that worked on it last.
    pub epoch: u64,
    /// `run`, `up` or [`CONVERSATION_COMMAND`](super::CONVERSATION_COMMAND).
    pub command: String,
    /// When it began, in microseconds since the Unix epoch.
    pub begun_at_us: i64,
    /// When it ended; `None` while it is open.
    pub ended_at_us: Option<i64>,
    /// The exit code: 0 if all its tasks are done, else 1.
    pub code: Option<u8>,
}

impl StoredSession {
    /// From a row with its columns in the order of the fields.
    pub(super) fn from_row(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            session: row.get("session")?,
            epoch: row.number("epoch")?,
            pool: row.get("pool")?,
            slot: row.get("slot")?,
            run: row.get("run")?,
            task: row.get("task")?,
            attempt: row.get("attempt")?,
            begun_at_us: row.get("begun_at_us")?,
            ended_at_us: row.get("ended_at_us")?,
            class: row.get("class")?,
        })
    }
}

impl StoredRun {
    /// From a row with its columns in the order of the fields.
    pub(super) fn from_row(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            run: row.get("run")?,
            epoch: row.number("epoch")?,
            command: row.get("command")?,
            begun_at_us: row.get("begun_at_us")?,
            ended_at_us: row.get("ended_at_us")?,
            code: row.get("code")?,
        })
    }
}

/// A row of `tasks`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredTask {
    /// Its id in the run.
    pub id: String,
    /// The pool whose slots may work on it.
    pub pool: String,
    /// The prompt as the user gave it; foreign text.
    pub prompt: marshal_model::UntrustedText,
    /// The task's options beside the prompt, as JSON.
    pub spec: String,
    /// `queued`, `running`, `ended`.
    pub state: String,
    /// The word of its outcome; `None` until it has ended.
    pub outcome: Option<String>,
    /// The reason for the outcome.
    pub detail: Option<String>,
    /// Attempts so far.
    pub attempts: u32,
    /// The slot that worked on it last.
    pub slot: Option<u16>,
    /// The session that worked on it last.
    pub session: Option<String>,
    /// When it was queued, began and ended, in microseconds since the Unix epoch.
    pub queued_at_us: i64,
    /// See `queued_at_us`.
    pub begun_at_us: Option<i64>,
    /// See `queued_at_us`.
    pub ended_at_us: Option<i64>,
    /// Its report, for [`codec::read_report`].
    pub result: Option<String>,
}

/// A row of `permission_requests`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredPermissionRequest {
    /// Its id.
    pub id: String,
    /// Its session.
    pub session: String,
    /// The seq of its `PermissionRequested` event.
    pub requested_seq: u64,
    /// The seq of its `PermissionDecided` event.
    pub decided_seq: Option<u64>,
    /// The agent's own id of the request; foreign text.
    pub request_key: marshal_model::UntrustedText,
    /// The tool's name; foreign text.
    pub tool: marshal_model::UntrustedText,
    /// The input as received, JSON; `None` if it was too large.
    pub input: Option<String>,
    /// The SHA-256 of the input, in hexadecimal.
    pub input_sha256: String,
    /// The word of the verdict; `None` until it is decided.
    pub decision: Option<String>,
    /// The source of the verdict, a word of [`marshal_model::DecidedBy`].
    pub decided_by: Option<String>,
    /// The rules that decided, as a JSON array of names.
    pub rules: Option<String>,
    /// The reason of the verdict.
    pub reason: Option<String>,
    /// The name of the policy that evaluated it.
    pub policy: Option<String>,
    /// Its link in the audit chain.
    pub link: Option<u64>,
}

/// A session, as part of one run's stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunSession {
    /// Its id.
    pub session: String,
    /// Its pool.
    pub pool: String,
    /// Its slot.
    pub slot: u16,
    /// The task of the run that it works on, or worked on first.
    pub task: Option<String>,
    /// The number of the task's attempt, from 1.
    pub attempt: u32,
    /// Whether it has ended.
    pub has_ended: bool,
    /// The seq after which its events belong to the run.
    pub after: u64,
    /// The seq of its last durable event.
    pub last: u64,
}

/// A slot's failures since a time, oldest first: time in microseconds since the Unix epoch, and
/// class.
pub type SlotFailures = Vec<(i64, ExitClass)>;

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Reader")
    }
}

impl Reader {
    /// Opens the journal of a state directory for reading.
    ///
    /// # Errors
    /// [`OpenError`]
    pub fn open(dir: &Path) -> Result<Self, OpenError> {
        let dir: PathBuf = dir.canonicalize().map_err(|source| OpenError::Directory {
            path: dir.to_owned(),
            source,
        })?;
        Self::open_file(&dir.join(schema::FILE_NAME))
    }

    /// The connection, for the queries of other modules.
    pub(super) const fn conn(&self) -> &Connection {
        &self.conn
    }

    pub(super) fn open_file(file: &Path) -> Result<Self, OpenError> {
        let named = |source| schema::describe_open_error(file, source);
        let conn = schema::connect_reader(file, limits::JOURNAL_OPEN_TIMEOUT).map_err(named)?;
        schema::check_version(&conn, file)?;
        Ok(Self { conn })
    }

    /// At most `limit` events of a session after `after`, in order.
    ///
    /// # Errors
    /// [`ReadError::Database`]
    pub fn events(
        &self,
        session: &SessionId,
        after_seq: u64,
        limit: u32,
    ) -> Result<Vec<StoredEvent>, ReadError> {
        let mut statement = self.conn.prepare_cached(
            "SELECT session, epoch, seq, at_us, kind, version, body FROM events \
             WHERE session = ?1 AND seq > ?2 ORDER BY seq LIMIT ?3",
        )?;
        let after = i64::try_from(after_seq).unwrap_or(i64::MAX);
        let rows = statement.query_map(params![session.as_str(), after, limit], event_from_row)?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// At most `limit` events of a session after `after`, in order. Their bodies have at most
    /// `bytes` bytes in total, but the first event is always returned.
    ///
    /// # Errors
    /// [`ReadError::Database`]
    pub fn events_page(
        &self,
        session: &SessionId,
        after_seq: u64,
        limit: u32,
        bytes: usize,
    ) -> Result<Vec<StoredEvent>, ReadError> {
        let mut statement = self.conn.prepare_cached(
            "SELECT session, epoch, seq, at_us, kind, version, body FROM events \
             WHERE session = ?1 AND seq > ?2 ORDER BY seq LIMIT ?3",
        )?;
        let after = i64::try_from(after_seq).unwrap_or(i64::MAX);
        let mut rows = statement.query(params![session.as_str(), after, limit])?;
        let (mut events, mut taken) = (Vec::new(), 0);
        while let Some(row) = rows.next()? {
            let length = row.get_ref("body")?.as_str().map_or(0, str::len);
            taken += length;
            if taken > bytes && !events.is_empty() {
                break;
            }
            events.push(event_from_row(row)?);
        }
        Ok(events)
    }

    /// The sessions that work or worked on tasks of a run, in the order in which they began. A
    /// session of a slot works on tasks of several runs, so it belongs to this run from the run's
    /// first task on.
    ///
    /// # Errors
    /// [`ReadError::Database`]
    pub fn sessions_of_run(&self, run: &RunId) -> Result<Vec<RunSession>, ReadError> {
        let mut statement = self.conn.prepare_cached(
            "SELECT session, pool, slot, task, attempt, ended_at_us IS NOT NULL AS has_ended, 0 AS after, \
             (SELECT coalesce(max(seq), 0) FROM events WHERE events.session = s.session) AS last, \
             begun_at_us FROM sessions s WHERE run = ?1 \
             UNION ALL \
             SELECT session, pool, slot, t.id, t.attempts, s.ended_at_us IS NOT NULL, \
             (SELECT coalesce(max(seq), 0) FROM events WHERE events.session = s.session \
             AND at_us < t.begun_at_us), \
             (SELECT coalesce(max(seq), 0) FROM events WHERE events.session = s.session), \
             s.begun_at_us FROM (SELECT session AS worked, id, max(attempts) AS attempts, \
             min(begun_at_us) AS begun_at_us FROM tasks WHERE run = ?1 AND session IS NOT NULL \
             GROUP BY session) t JOIN sessions s ON s.session = t.worked WHERE s.run IS NULL \
             ORDER BY 9, 1",
        )?;
        let rows = statement.query_map([run.as_str()], |row| {
            Ok(RunSession {
                session: row.get("session")?,
                pool: row.get("pool")?,
                slot: row.get("slot")?,
                task: row.get("task")?,
                attempt: row.get("attempt")?,
                has_ended: row.get("has_ended")?,
                after: row.number("after")?,
                last: row.number("last")?,
            })
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// The seq of a session's last durable event; 0 if it has none.
    ///
    /// # Errors
    /// [`ReadError::Database`]
    pub fn last_seq(&self, session: &SessionId) -> Result<u64, ReadError> {
        Ok(self
            .conn
            .prepare_cached("SELECT coalesce(max(seq), 0) AS last FROM events WHERE session = ?1")?
            .query_row([session.as_str()], |row| row.number("last"))?)
    }

    /// The size of a session's event bodies, in bytes.
    ///
    /// # Errors
    /// [`ReadError::Database`]
    pub fn session_bytes(&self, session: &SessionId) -> Result<u64, ReadError> {
        Ok(self
            .conn
            .prepare_cached(
                "SELECT coalesce(sum(octet_length(body)), 0) AS bytes FROM events WHERE session = ?1",
            )?
            .query_row([session.as_str()], |row| row.number("bytes"))?)
    }

    /// All sessions, oldest first.
    ///
    /// # Errors
    /// [`ReadError::Database`]
    pub fn sessions(&self) -> Result<Vec<StoredSession>, ReadError> {
        let mut statement = self.conn.prepare_cached(
            "SELECT session, epoch, pool, slot, run, task, attempt, begun_at_us, ended_at_us, \
             class FROM sessions ORDER BY begun_at_us, session",
        )?;
        let rows = statement.query_map([], StoredSession::from_row)?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// All runs, oldest first.
    ///
    /// # Errors
    /// [`ReadError::Database`]
    pub fn runs(&self) -> Result<Vec<StoredRun>, ReadError> {
        let mut statement = self.conn.prepare_cached(
            "SELECT run, epoch, command, begun_at_us, ended_at_us, code FROM runs \
             ORDER BY begun_at_us, run",
        )?;
        let rows = statement.query_map([], StoredRun::from_row)?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// The tasks of a run, in the order of the run's plan.
    ///
    /// # Errors
    /// [`ReadError::Database`]
    pub fn tasks(&self, run: &RunId) -> Result<Vec<StoredTask>, ReadError> {
        let mut statement = self.conn.prepare_cached(
            "SELECT id, pool, prompt, spec, state, outcome, detail, attempts, slot, session, \
             queued_at_us, begun_at_us, ended_at_us, result FROM tasks WHERE run = ?1 \
             ORDER BY place",
        )?;
        let rows = statement.query_map([run.as_str()], task_from_row)?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// The permission requests of a session, in the order in which they arrived.
    ///
    /// # Errors
    /// [`ReadError::Database`]
    pub fn permission_requests(
        &self,
        session: &SessionId,
    ) -> Result<Vec<StoredPermissionRequest>, ReadError> {
        let mut statement = self.conn.prepare_cached(
            "SELECT id, session, requested_seq, decided_seq, request_key, tool, input, input_sha256, \
             decision, decided_by, rules, reason, policy, link FROM permission_requests WHERE session = ?1 \
             ORDER BY requested_seq",
        )?;
        let rows = statement.query_map([session.as_str()], |row| {
            Ok(StoredPermissionRequest {
                id: row.get("id")?,
                session: row.get("session")?,
                requested_seq: row.number("requested_seq")?,
                decided_seq: row.optional_number("decided_seq")?,
                request_key: row.untrusted("request_key")?,
                tool: row.untrusted("tool")?,
                input: row.get("input")?,
                input_sha256: row.get("input_sha256")?,
                decision: row.get("decision")?,
                decided_by: row.get("decided_by")?,
                rules: row.get("rules")?,
                reason: row.get("reason")?,
                policy: row.get("policy")?,
                link: row.optional_number("link")?,
            })
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// A slot's failures since a time (microseconds since the Unix epoch), also those of earlier
    /// starts of the supervisor. They count against the slot's restart budget.
    ///
    /// # Errors
    /// [`ReadError`]
    pub fn slot_failures(&self, slot: &SlotId, since_us: i64) -> Result<SlotFailures, ReadError> {
        let mut statement = self.conn.prepare_cached(
            "SELECT at_us, class FROM slot_failures \
             WHERE pool = ?1 AND slot = ?2 AND at_us >= ?3 ORDER BY at_us",
        )?;
        let rows = statement
            .query_map(params![slot.pool.as_str(), slot.index, since_us], |row| {
                <(i64, String)>::try_from(row)
            })?;
        rows.map(|row| {
            let (at_us, word) = row?;
            let class = ExitClass::parse(&word).ok_or(ReadError::InvalidValue {
                what: "exit class",
                text: word,
            })?;
            Ok((at_us, class))
        })
        .collect()
    }

    /// Checks the audit chain from its first record and returns its end.
    ///
    /// # Errors
    /// [`ReadError::Chain`] at the first record that does not fit.
    pub fn verify_audit(&self) -> Result<ChainHead, ReadError> {
        audit::verify_chain(&self.conn)
    }
}

pub(super) fn task_from_row(row: &Row<'_>) -> rusqlite::Result<StoredTask> {
    Ok(StoredTask {
        id: row.get("id")?,
        pool: row.get("pool")?,
        prompt: row.untrusted("prompt")?,
        spec: row.get("spec")?,
        state: row.get("state")?,
        outcome: row.get("outcome")?,
        detail: row.get("detail")?,
        attempts: row.get("attempts")?,
        slot: row.get("slot")?,
        session: row.get("session")?,
        queued_at_us: row.get("queued_at_us")?,
        begun_at_us: row.get("begun_at_us")?,
        ended_at_us: row.get("ended_at_us")?,
        result: row.get("result")?,
    })
}

pub(super) fn event_from_row(row: &Row<'_>) -> rusqlite::Result<StoredEvent> {
    Ok(StoredEvent {
        session: row.get("session")?,
        id: EventId {
            epoch: row.number("epoch")?,
            seq: row.number("seq")?,
        },
        at_us: row.get("at_us")?,
        kind: row.get("kind")?,
        version: row.get("version")?,
        body: row.get("body")?,
    })
}
