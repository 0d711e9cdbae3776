//! The store on a PostgreSQL server, which several supervisors share.
//!
//! Each change is its own transaction. Operations on a lost server are retried for a bounded time.
//! A change whose commit was in progress is searched by its id before the retry, so it is made
//! once. If the result is still unknown at the end of that time, the error says so.

use std::collections::HashMap;
use std::error::Error as _;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};
use tokio_postgres::{Client, NoTls, Statement};

use super::change::{Change, ChangeOutcome, apply_change};
use super::error::{DbError, DbErrorKind, StoreError, TransactionError};
use super::query::{Query, QueryResult, run_query};
use super::rows::{DbTransaction, Row, Value};
use super::schema;
use super::server::Server;
use super::{Outage, report};
use marshal_model::limits;

/// The advisory lock of the database for migrations of the schema.
const MIGRATION_LOCK: i64 = 0x6d72_7374;

const BEGIN_CHANGE: &str = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE";
const BEGIN_QUERY: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";

/// A store on a server.
#[derive(Debug)]
pub(super) struct Postgres {
    server: Server,
    permits: Semaphore,
    idle: Mutex<Vec<Connection>>,
    outage: Outage,
}

#[derive(Debug)]
struct Connection {
    client: Client,
    /// Statements that the server has prepared, by their text.
    prepared: HashMap<String, Statement>,
}

/// An operation that can be retried.
#[derive(Clone, Copy)]
enum Work<'a> {
    Migrate(i64),
    Change(&'a Change),
    Query(&'a Query),
}

/// Its result.
enum WorkResult {
    Migrated(i64),
    Changed(ChangeOutcome),
    QueryResult(QueryResult),
}

/// The state of one try: whether its commit is in progress.
struct Attempt<'a> {
    postgres: &'a Postgres,
    is_retry: bool,
    committing: bool,
}

impl Postgres {
    pub(super) async fn connect(
        server: &Server,
        now_ms: i64,
        outage: &Outage,
    ) -> Result<Self, StoreError> {
        let postgres = Self {
            server: server.clone(),
            permits: Semaphore::new(limits::STORE_CONNECTIONS),
            idle: Mutex::default(),
            outage: Arc::clone(outage),
        };
        if let WorkResult::Migrated(found) = postgres.run_with_retry(Work::Migrate(now_ms)).await?
            && found > schema::latest_version()
        {
            return Err(StoreError::Newer {
                place: server.label.clone(),
                found,
                known: schema::latest_version(),
            });
        }
        Ok(postgres)
    }

    pub(super) fn label(&self) -> &str {
        &self.server.label
    }

    pub(super) async fn apply(&self, change: &Change) -> Result<ChangeOutcome, StoreError> {
        match self.run_with_retry(Work::Change(change)).await? {
            WorkResult::Changed(done) => Ok(done),
            WorkResult::Migrated(_) | WorkResult::QueryResult(_) => Ok(ChangeOutcome::Unchanged),
        }
    }

    pub(super) async fn query(&self, question: &Query) -> Result<QueryResult, StoreError> {
        match self.run_with_retry(Work::Query(question)).await? {
            WorkResult::QueryResult(found) => Ok(found),
            WorkResult::Migrated(_) | WorkResult::Changed(_) => Err(StoreError::Closed),
        }
    }

    pub(super) fn close(&self) {
        self.permits.close();
        self.lock_idle().clear();
    }

    /// A panic while the lock is held cannot leave the list half changed.
    fn lock_idle(&self) -> std::sync::MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Retries until the operation is done or refused, or the server is lost for too long.
    async fn run_with_retry(&self, work: Work<'_>) -> Result<WorkResult, StoreError> {
        let until = Instant::now() + limits::STORE_RETRY_TIMEOUT;
        let Ok(permit) = timeout_at(until, self.permits.acquire()).await else {
            let trouble = DbError::new(DbErrorKind::Unreachable, "all connections are in use");
            return Err(trouble.into_store_error(&self.server.label, false));
        };
        let _permit = permit.map_err(|_| StoreError::Closed)?;
        let (mut pause, longest) = limits::STORE_BACKOFF;
        let mut unknown = false;
        let mut again = false;
        loop {
            let mut tried = Attempt {
                postgres: self,
                is_retry: again,
                committing: false,
            };
            let done = timeout(limits::STORE_ATTEMPT_TIMEOUT, tried.run(work)).await;
            let trouble = match done {
                Ok(Ok(done)) => return Ok(done),
                // A definite result: the try has searched for the effect of earlier tries.
                Ok(Err(TransactionError::Refused(error))) => return Err(error),
                Ok(Err(TransactionError::Database(trouble))) => trouble,
                Err(_) => DbError::new(DbErrorKind::Unreachable, "no answer in time"),
            };
            unknown |= tried.committing && trouble.kind == DbErrorKind::Unreachable;
            again = true;
            if trouble.kind == DbErrorKind::Unreachable {
                let label = &self.server.label;
                let why = format!("{label} cannot be reached ({})", trouble.detail);
                report(&self.outage, Some(why));
                // What waits was connected to the same server.
                self.lock_idle().clear();
            }
            let retried = matches!(trouble.kind, DbErrorKind::Unreachable | DbErrorKind::Retry);
            if !retried || Instant::now() + pause >= until {
                return Err(trouble.into_store_error(&self.server.label, unknown));
            }
            tracing::debug!(place = %self.server.label, detail = %trouble.detail, "the store operation is retried");
            sleep(pause).await;
            pause = (pause * 2).min(longest);
        }
    }

    /// An idle connection, or a new one. A connection that is not returned is closed, and the
    /// server rolls back its transaction.
    async fn checkout(&self) -> Result<Connection, DbError> {
        loop {
            let waiting = self.lock_idle().pop();
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
                .map_err(|error| self.db_error(&error))?;
            self.spawn(connection);
            client
        } else {
            let (client, connection) = config
                .connect(NoTls)
                .await
                .map_err(|error| self.db_error(&error))?;
            self.spawn(connection);
            client
        };
        let ms = |time: Duration| time.as_millis();
        let settings = format!(
            "SET statement_timeout = {}; SET lock_timeout = {}; \
             SET idle_in_transaction_session_timeout = {}; \
             SELECT set_config('synchronous_commit', 'on', false) \
             WHERE current_setting('synchronous_commit') = 'off'",
            ms(limits::STORE_ATTEMPT_TIMEOUT),
            ms(limits::STORE_LOCK_TIMEOUT),
            ms(limits::STORE_ATTEMPT_TIMEOUT),
        );
        client
            .batch_execute(&settings)
            .await
            .map_err(|error| self.db_error(&error))?;
        Ok(Connection {
            client,
            prepared: HashMap::new(),
        })
    }

    /// Drives a connection, and reports its loss at once: a server that goes while nobody asks it.
    fn spawn<F>(&self, connection: F)
    where
        F: Future<Output = Result<(), tokio_postgres::Error>> + Send + 'static,
    {
        let (outage, label) = (Arc::clone(&self.outage), self.server.label.clone());
        tokio::spawn(async move {
            if connection.await.is_err() {
                report(&outage, Some(format!("{label} ended a connection")));
            }
        });
    }

    async fn begin(&self, sql: &str) -> Result<Transaction<'_>, DbError> {
        let connection = self.checkout().await?;
        let transaction = Transaction {
            connection,
            postgres: self,
        };
        transaction.batch(sql).await?;
        Ok(transaction)
    }

    fn return_connection(&self, connection: Connection) {
        let mut idle = self.lock_idle();
        if !self.permits.is_closed() && idle.len() < limits::STORE_CONNECTIONS {
            idle.push(connection);
        }
    }

    fn db_error(&self, error: &tokio_postgres::Error) -> DbError {
        let detail = match error.as_db_error() {
            Some(error) => format!("{} ({})", error.message(), error.code().code()),
            None => match error.source() {
                Some(source) => format!("{error}: {source}"),
                None => error.to_string(),
            },
        };
        DbError::new(error_kind(error), self.server.redact(&detail))
    }
}

impl Attempt<'_> {
    async fn run(&mut self, work: Work<'_>) -> Result<WorkResult, TransactionError> {
        Ok(match work {
            Work::Migrate(now_ms) => WorkResult::Migrated(self.migrate(now_ms).await?),
            Work::Change(change) => WorkResult::Changed(self.apply(change).await?),
            Work::Query(question) => WorkResult::QueryResult(self.query(question).await?),
        })
    }

    async fn apply(&mut self, change: &Change) -> Result<ChangeOutcome, TransactionError> {
        let mut transaction = self.postgres.begin(BEGIN_CHANGE).await?;
        match apply_change(&mut transaction, change, self.is_retry).await {
            Ok(done) => {
                self.committing = true;
                transaction.finish("COMMIT").await?;
                Ok(done)
            }
            Err(fault) => Err(transaction.roll_back(fault).await),
        }
    }

    async fn query(&mut self, question: &Query) -> Result<QueryResult, TransactionError> {
        let mut transaction = self.postgres.begin(BEGIN_QUERY).await?;
        match run_query(&mut transaction, question).await {
            Ok(found) => {
                transaction.finish("COMMIT").await?;
                Ok(found)
            }
            Err(fault) => Err(transaction.roll_back(fault).await),
        }
    }

    /// Migrates an older schema, and returns the version that was found.
    async fn migrate(&mut self, now_ms: i64) -> Result<i64, TransactionError> {
        let mut transaction = self.postgres.begin(BEGIN_CHANGE).await?;
        let lock = format!("SELECT pg_advisory_xact_lock({MIGRATION_LOCK})");
        transaction.batch(&lock).await?;
        let sql = "SELECT to_regclass('marshal_store')::TEXT";
        let there = transaction.query(sql, &[]).await?;
        // Checked first, because a role without the right to create tables can use existing ones.
        if there
            .first()
            .map_or(Ok(None), |row| row.optional_text(0))?
            .is_none()
        {
            transaction.batch(schema::VERSION_TABLE).await?;
        }
        let sql = "SELECT COALESCE(MAX(version), 0) FROM marshal_store";
        let rows = transaction.query(sql, &[]).await?;
        let found = rows.first().map_or(Ok(0), |row| row.int(0))?;
        for (version, sql) in schema::migrations_after(found, " TEXT COLLATE \"C\"", " BYTEA") {
            transaction.batch(&sql).await?;
            let sql = "INSERT INTO marshal_store (version, at_ms) VALUES ($1, $2)";
            let values = [version.into(), now_ms.into()];
            transaction.execute(sql, &values).await?;
        }
        transaction.finish("COMMIT").await?;
        Ok(found)
    }
}

/// A transaction: its connection comes back only from a clean end.
struct Transaction<'a> {
    connection: Connection,
    postgres: &'a Postgres,
}

impl Transaction<'_> {
    async fn batch(&self, sql: &str) -> Result<(), DbError> {
        let done = self.connection.client.batch_execute(sql).await;
        done.map_err(|error| self.postgres.db_error(&error))
    }

    async fn finish(self, sql: &str) -> Result<(), DbError> {
        self.batch(sql).await?;
        self.postgres.return_connection(self.connection);
        Ok(())
    }

    /// Rolls back; a failed connection is not used again.
    async fn roll_back(self, fault: TransactionError) -> TransactionError {
        if matches!(fault, TransactionError::Refused(_)) {
            let _ = self.finish("ROLLBACK").await;
        }
        fault
    }

    async fn prepare(&mut self, sql: &str) -> Result<Statement, DbError> {
        if let Some(statement) = self.connection.prepared.get(sql) {
            return Ok(statement.clone());
        }
        let statement = self
            .connection
            .client
            .prepare(sql)
            .await
            .map_err(|error| self.postgres.db_error(&error))?;
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

impl DbTransaction for Transaction<'_> {
    const LOCK: &'static str = " FOR UPDATE";
    const LOCK_SKIP_LOCKED: &'static str = " FOR UPDATE SKIP LOCKED";

    async fn query(&mut self, sql: &str, values: &[Value]) -> Result<Vec<Row>, DbError> {
        let statement = self.prepare(sql).await?;
        let client = &self.connection.client;
        let found = client
            .query(&statement, &parameters(values))
            .await
            .map_err(|error| self.postgres.db_error(&error))?;
        let row = |row| row_of(row).map_err(|error| self.postgres.db_error(&error));
        found.iter().map(row).collect()
    }

    async fn execute(&mut self, sql: &str, values: &[Value]) -> Result<u64, DbError> {
        let statement = self.prepare(sql).await?;
        let client = &self.connection.client;
        let done = client.execute(&statement, &parameters(values)).await;
        done.map_err(|error| self.postgres.db_error(&error))
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
            Self::Int(_) => Err("a number for a column that is not BIGINT".into()),
            Self::Text(text) => text.as_str().to_sql(ty, out),
            Self::Bytes(bytes) => bytes.as_ref().to_sql(ty, out),
        }
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}

fn error_kind(error: &tokio_postgres::Error) -> DbErrorKind {
    if let Some(state) = error.code() {
        return kind_of_sqlstate(state);
    }
    if error.is_closed() {
        return DbErrorKind::Unreachable;
    }
    let mut source = error.source();
    while let Some(cause) = source {
        if let Some(io) = cause.downcast_ref::<io::Error>() {
            // An untrusted certificate stays untrusted, so a retry is useless.
            let tls = io
                .get_ref()
                .and_then(|inner| inner.downcast_ref::<rustls::Error>());
            return if tls.is_some() {
                DbErrorKind::Other
            } else {
                DbErrorKind::Unreachable
            };
        }
        source = cause.source();
    }
    DbErrorKind::Other
}

/// The class of an SQLSTATE (PostgreSQL's table of error codes).
fn kind_of_sqlstate(state: &SqlState) -> DbErrorKind {
    match state.code() {
        // Shutdown, crash, starting up, too many connections.
        "57P01" | "57P02" | "57P03" | "57P05" | "53300" | "25P03" => DbErrorKind::Unreachable,
        // Serialisation, deadlock.
        "40001" | "40P01" => DbErrorKind::Retry,
        // A lock or a statement took too long.
        "55P03" | "57014" => DbErrorKind::Locked,
        "53100" => DbErrorKind::Full,
        "XX001" | "XX002" => DbErrorKind::Corrupt,
        code if code.starts_with("08") => DbErrorKind::Unreachable,
        _ => DbErrorKind::Other,
    }
}
