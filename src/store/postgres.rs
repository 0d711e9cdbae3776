//! The store on a PostgreSQL server, which several supervisors share.
//!
//! Each change is a transaction of its own. A server that is gone is asked again for a bounded
//! time; a change whose commit was under way is looked for by its id before it is made again, so it
//! is made once. When the time is over and that is not known, the error says so.

use std::collections::HashMap;
use std::error::Error as _;
use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};
use tokio_postgres::{Client, NoTls, Statement};

use super::change::{Change, Done, apply};
use super::error::{Fault, Kind, StoreError, Trouble};
use super::look::{Found, Look, look};
use super::rows::{Row, Rows, Value};
use super::schema;
use super::server::Server;
use crate::limits;

/// Whoever changes the tables of a store holds this lock of the database.
const MIGRATION_LOCK: i64 = 0x6d72_7374;

const BEGIN_CHANGE: &str = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE";
const BEGIN_LOOK: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";

/// A store on a server.
#[derive(Debug)]
pub(super) struct Postgres {
    server: Server,
    permits: Semaphore,
    idle: Mutex<Vec<Connection>>,
}

#[derive(Debug)]
struct Connection {
    client: Client,
    /// Statements that the server has prepared, by their text.
    prepared: HashMap<String, Statement>,
}

/// What is tried.
#[derive(Clone, Copy)]
enum Work<'a> {
    Migrate(i64),
    Change(&'a Change),
    Look(&'a Look),
}

/// What came of it.
enum Answer {
    Migrated(i64),
    Changed(Done),
    Found(Found),
}

/// The work of one try, and whether its commit is under way.
struct Try<'a> {
    postgres: &'a Postgres,
    again: bool,
    committing: bool,
}

impl Postgres {
    pub(super) async fn connect(server: &Server, now_ms: i64) -> Result<Self, StoreError> {
        let postgres = Self {
            server: server.clone(),
            permits: Semaphore::new(limits::STORE_CONNECTIONS),
            idle: Mutex::default(),
        };
        if let Answer::Migrated(found) = postgres.persist(Work::Migrate(now_ms)).await?
            && found > schema::newest()
        {
            return Err(StoreError::Newer {
                place: server.place.clone(),
                found,
                known: schema::newest(),
            });
        }
        Ok(postgres)
    }

    pub(super) fn place(&self) -> &str {
        &self.server.place
    }

    pub(super) async fn change(&self, change: &Change) -> Result<Done, StoreError> {
        match self.persist(Work::Change(change)).await? {
            Answer::Changed(done) => Ok(done),
            Answer::Migrated(_) | Answer::Found(_) => Ok(Done::Nothing),
        }
    }

    pub(super) async fn look(&self, question: &Look) -> Result<Found, StoreError> {
        match self.persist(Work::Look(question)).await? {
            Answer::Found(found) => Ok(found),
            Answer::Migrated(_) | Answer::Changed(_) => Err(StoreError::Closed),
        }
    }

    pub(super) fn close(&self) {
        self.permits.close();
        self.idle().clear();
    }

    /// A panic while the lock is held cannot leave the list half changed.
    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tries until it is done or refused, or the server is gone for too long.
    async fn persist(&self, work: Work<'_>) -> Result<Answer, StoreError> {
        let until = Instant::now() + limits::STORE_RETRY;
        let Ok(permit) = timeout_at(until, self.permits.acquire()).await else {
            let trouble = Trouble::new(Kind::Gone, "every connection is in use");
            return Err(trouble.at(&self.server.place, false));
        };
        let _permit = permit.map_err(|_| StoreError::Closed)?;
        let (mut pause, longest) = limits::STORE_BACKOFF;
        let mut unknown = false;
        let mut again = false;
        loop {
            let mut tried = Try {
                postgres: self,
                again,
                committing: false,
            };
            let done = timeout(limits::STORE_TRY, tried.run(work)).await;
            let trouble = match done {
                Ok(Ok(done)) => return Ok(done),
                // A definite answer: what an earlier try had done was looked for before.
                Ok(Err(Fault::Refused(error))) => return Err(error),
                Ok(Err(Fault::Trouble(trouble))) => trouble,
                Err(_) => Trouble::new(Kind::Gone, "no answer in time"),
            };
            unknown |= tried.committing && trouble.kind == Kind::Gone;
            again = true;
            if trouble.kind == Kind::Gone {
                // What waits was connected to the same server.
                self.idle().clear();
            }
            let retried = matches!(trouble.kind, Kind::Gone | Kind::Again);
            if !retried || Instant::now() + pause >= until {
                return Err(trouble.at(&self.server.place, unknown));
            }
            tracing::debug!(place = %self.server.place, detail = %trouble.detail, "the store is tried again");
            sleep(pause).await;
            pause = (pause * 2).min(longest);
        }
    }

    /// A connection that waits, or a new one. One that is not given back is closed, and what it was
    /// at is undone by the server.
    async fn take(&self) -> Result<Connection, Trouble> {
        loop {
            let waiting = self.idle().pop();
            match waiting {
                Some(connection) if connection.client.is_closed() => {}
                Some(connection) => return Ok(connection),
                None => break,
            }
        }
        let config = &self.server.config;
        // The task of a connection ends with its client.
        let client = if let Some(tls) = &self.server.tls {
            let (client, connection) = config
                .connect(tls.clone())
                .await
                .map_err(|error| self.trouble(&error))?;
            tokio::spawn(connection);
            client
        } else {
            let (client, connection) = config
                .connect(NoTls)
                .await
                .map_err(|error| self.trouble(&error))?;
            tokio::spawn(connection);
            client
        };
        let ms = |time: Duration| time.as_millis();
        let settings = format!(
            "SET statement_timeout = {}; SET lock_timeout = {}; \
             SET idle_in_transaction_session_timeout = {}; \
             SELECT set_config('synchronous_commit', 'on', false) \
             WHERE current_setting('synchronous_commit') = 'off'",
            ms(limits::STORE_TRY),
            ms(limits::STORE_LOCK),
            ms(limits::STORE_TRY),
        );
        client
            .batch_execute(&settings)
            .await
            .map_err(|error| self.trouble(&error))?;
        Ok(Connection {
            client,
            prepared: HashMap::new(),
        })
    }

    async fn begin(&self, sql: &str) -> Result<Transaction<'_>, Trouble> {
        let connection = self.take().await?;
        let transaction = Transaction {
            connection,
            postgres: self,
        };
        transaction.batch(sql).await?;
        Ok(transaction)
    }

    fn give_back(&self, connection: Connection) {
        let mut idle = self.idle();
        if !self.permits.is_closed() && idle.len() < limits::STORE_CONNECTIONS {
            idle.push(connection);
        }
    }

    fn trouble(&self, error: &tokio_postgres::Error) -> Trouble {
        let detail = match error.as_db_error() {
            Some(said) => format!("{} ({})", said.message(), said.code().code()),
            None => match error.source() {
                Some(source) => format!("{error}: {source}"),
                None => error.to_string(),
            },
        };
        Trouble::new(kind(error), self.server.told(&detail))
    }
}

impl Try<'_> {
    async fn run(&mut self, work: Work<'_>) -> Result<Answer, Fault> {
        Ok(match work {
            Work::Migrate(now_ms) => Answer::Migrated(self.migrate(now_ms).await?),
            Work::Change(change) => Answer::Changed(self.change(change).await?),
            Work::Look(question) => Answer::Found(self.look(question).await?),
        })
    }

    async fn change(&mut self, change: &Change) -> Result<Done, Fault> {
        let mut transaction = self.postgres.begin(BEGIN_CHANGE).await?;
        match apply(&mut transaction, change, self.again).await {
            Ok(done) => {
                self.committing = true;
                transaction.end("COMMIT").await?;
                Ok(done)
            }
            Err(fault) => Err(transaction.undo(fault).await),
        }
    }

    async fn look(&mut self, question: &Look) -> Result<Found, Fault> {
        let mut transaction = self.postgres.begin(BEGIN_LOOK).await?;
        match look(&mut transaction, question).await {
            Ok(found) => {
                transaction.end("COMMIT").await?;
                Ok(found)
            }
            Err(fault) => Err(transaction.undo(fault).await),
        }
    }

    /// Gives the version of the tables that was found, after the migration of an older one.
    async fn migrate(&mut self, now_ms: i64) -> Result<i64, Fault> {
        let mut transaction = self.postgres.begin(BEGIN_CHANGE).await?;
        let lock = format!("SELECT pg_advisory_xact_lock({MIGRATION_LOCK})");
        transaction.batch(&lock).await?;
        let sql = "SELECT to_regclass('marshal_store')::TEXT";
        let there = transaction.query(sql, &[]).await?;
        // Asked first, because a role that may create nothing may use what is there.
        if there
            .first()
            .map_or(Ok(None), |row| row.text_if(0))?
            .is_none()
        {
            transaction.batch(schema::TABLE_OF_VERSIONS).await?;
        }
        let sql = "SELECT COALESCE(MAX(version), 0) FROM marshal_store";
        let rows = transaction.query(sql, &[]).await?;
        let found = rows.first().map_or(Ok(0), |row| row.int(0))?;
        for (version, sql) in schema::beyond(found, " TEXT COLLATE \"C\"", " BYTEA") {
            transaction.batch(&sql).await?;
            let sql = "INSERT INTO marshal_store (version, at_ms) VALUES ($1, $2)";
            let values = [version.into(), now_ms.into()];
            transaction.execute(sql, &values).await?;
        }
        transaction.end("COMMIT").await?;
        Ok(found)
    }
}

/// A transaction: its connection comes back only from a clean end.
struct Transaction<'a> {
    connection: Connection,
    postgres: &'a Postgres,
}

impl Transaction<'_> {
    async fn batch(&self, sql: &str) -> Result<(), Trouble> {
        let done = self.connection.client.batch_execute(sql).await;
        done.map_err(|error| self.postgres.trouble(&error))
    }

    async fn end(self, sql: &str) -> Result<(), Trouble> {
        self.batch(sql).await?;
        self.postgres.give_back(self.connection);
        Ok(())
    }

    /// Undoes everything; the connection of a failure is not used again.
    async fn undo(self, fault: Fault) -> Fault {
        if matches!(fault, Fault::Refused(_)) {
            let _ = self.end("ROLLBACK").await;
        }
        fault
    }

    async fn prepared(&mut self, sql: &str) -> Result<Statement, Trouble> {
        if let Some(statement) = self.connection.prepared.get(sql) {
            return Ok(statement.clone());
        }
        let statement = self.connection.client.prepare(sql).await;
        let statement = statement.map_err(|error| self.postgres.trouble(&error))?;
        self.connection
            .prepared
            .insert(sql.to_owned(), statement.clone());
        Ok(statement)
    }
}

fn parameters(values: &[Value]) -> Vec<&(dyn ToSql + Sync)> {
    values
        .iter()
        .map(|value| value as &(dyn ToSql + Sync))
        .collect()
}

impl Rows for Transaction<'_> {
    const LOCK: &'static str = " FOR UPDATE";
    const LOCK_FREE: &'static str = " FOR UPDATE SKIP LOCKED";

    async fn query(&mut self, sql: &str, values: &[Value]) -> Result<Vec<Row>, Trouble> {
        let statement = self.prepared(sql).await?;
        let client = &self.connection.client;
        let found = client.query(&statement, &parameters(values)).await;
        let found = found.map_err(|error| self.postgres.trouble(&error))?;
        let row = |row| row_of(row).map_err(|error| self.postgres.trouble(&error));
        found.iter().map(row).collect()
    }

    async fn execute(&mut self, sql: &str, values: &[Value]) -> Result<u64, Trouble> {
        let statement = self.prepared(sql).await?;
        let client = &self.connection.client;
        let done = client.execute(&statement, &parameters(values)).await;
        done.map_err(|error| self.postgres.trouble(&error))
    }
}

fn row_of(row: &tokio_postgres::Row) -> Result<Row, tokio_postgres::Error> {
    let value = |(at, column): (usize, &tokio_postgres::Column)| {
        Ok(match *column.type_() {
            Type::INT8 => row.try_get::<_, Option<i64>>(at)?.into(),
            Type::INT4 => row.try_get::<_, Option<i32>>(at)?.map(i64::from).into(),
            Type::BYTEA => {
                let bytes: Option<&[u8]> = row.try_get(at)?;
                bytes.map(Bytes::copy_from_slice).into()
            }
            _ => row.try_get::<_, Option<&str>>(at)?.into(),
        })
    };
    let values: Result<_, _> = row.columns().iter().enumerate().map(value).collect();
    Ok(Row(values?))
}

impl ToSql for Value {
    fn to_sql(
        &self,
        ty: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        match self {
            Self::Null => Ok(IsNull::Yes),
            Self::Int(number) if *ty == Type::INT8 => number.to_sql(ty, out),
            Self::Int(_) => Err("a number for a column that has no BIGINT".into()),
            Self::Text(text) => text.as_str().to_sql(ty, out),
            Self::Bytes(bytes) => bytes.as_ref().to_sql(ty, out),
        }
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}

fn kind(error: &tokio_postgres::Error) -> Kind {
    if let Some(state) = error.code() {
        return of_state(state);
    }
    if error.is_closed() {
        return Kind::Gone;
    }
    let mut source = error.source();
    while let Some(cause) = source {
        if let Some(io) = cause.downcast_ref::<io::Error>() {
            // A certificate that is not believed will not be believed in a second either.
            let tls = io
                .get_ref()
                .and_then(|inner| inner.downcast_ref::<rustls::Error>());
            return if tls.is_some() {
                Kind::Other
            } else {
                Kind::Gone
            };
        }
        source = cause.source();
    }
    Kind::Other
}

/// What a state of the server means (PostgreSQL's table of error codes).
fn of_state(state: &SqlState) -> Kind {
    match state.code() {
        // Shutdown, crash, starting up, too many connections.
        "57P01" | "57P02" | "57P03" | "57P05" | "53300" | "25P03" => Kind::Gone,
        // Serialisation, deadlock.
        "40001" | "40P01" => Kind::Again,
        // A lock or a statement took too long.
        "55P03" | "57014" => Kind::Locked,
        "53100" => Kind::Full,
        "XX001" | "XX002" => Kind::Corrupt,
        code if code.starts_with("08") => Kind::Gone,
        _ => Kind::Other,
    }
}
