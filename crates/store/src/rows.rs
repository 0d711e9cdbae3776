//! The common interface of both databases: statements with values, rows with values.
//!
//! The statements are written once, in the common part of both dialects (`$1`, `ON CONFLICT`,
//! `RETURNING`); what differs is a constant of the trait. Must not know what a row means.

use std::future::Future;

use bytes::Bytes;

use super::error::DbError;

/// A value of a statement or a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Value {
    Null,
    Int(i64),
    Text(String),
    Bytes(Bytes),
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Self::Int(number)
    }
}

impl From<u64> for Value {
    /// Numbers of the store are counts and sizes, which never exceed `i64` on a real disk.
    fn from(number: u64) -> Self {
        Self::Int(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

impl From<bool> for Value {
    fn from(truth: bool) -> Self {
        Self::Int(i64::from(truth))
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<Bytes> for Value {
    fn from(bytes: Bytes) -> Self {
        Self::Bytes(bytes)
    }
}

impl From<&[u8]> for Value {
    fn from(bytes: &[u8]) -> Self {
        Self::Bytes(Bytes::copy_from_slice(bytes))
    }
}

impl<T: Into<Self>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

/// One row of a result.
#[derive(Debug, Clone)]
pub(super) struct Row(pub(super) Vec<Value>);

impl Row {
    pub(super) fn int(&self, at: usize) -> Result<i64, DbError> {
        match self.0.get(at) {
            Some(Value::Int(number)) => Ok(*number),
            _ => Err(unexpected_column(at, "number")),
        }
    }

    pub(super) fn count(&self, at: usize) -> Result<u64, DbError> {
        u64::try_from(self.int(at)?).map_err(|_| unexpected_column(at, "count"))
    }

    pub(super) fn text(&self, at: usize) -> Result<&str, DbError> {
        self.optional_text(at)?
            .ok_or_else(|| unexpected_column(at, "text"))
    }

    pub(super) fn optional_text(&self, at: usize) -> Result<Option<&str>, DbError> {
        match self.0.get(at) {
            Some(Value::Text(text)) => Ok(Some(text)),
            Some(Value::Null) => Ok(None),
            _ => Err(unexpected_column(at, "text")),
        }
    }

    pub(super) fn optional_bytes(&self, at: usize) -> Result<Option<&Bytes>, DbError> {
        match self.0.get(at) {
            Some(Value::Bytes(bytes)) => Ok(Some(bytes)),
            Some(Value::Null) => Ok(None),
            _ => Err(unexpected_column(at, "bytes")),
        }
    }

    pub(super) fn optional_count(&self, at: usize) -> Result<Option<u64>, DbError> {
        match self.0.get(at) {
            Some(Value::Null) => Ok(None),
            _ => self.count(at).map(Some),
        }
    }
}

fn unexpected_column(at: usize, what: &str) -> DbError {
    DbError::corrupt(format!("column {at} of a result is not {what}"))
}

/// A transaction of a database.
pub(super) trait DbTransaction: Send {
    /// The suffix of a `SELECT` that locks its rows until the transaction's end.
    const LOCK: &'static str;
    /// The same, but it skips rows that another transaction has locked.
    const LOCK_SKIP_LOCKED: &'static str;

    /// Runs a statement and returns its rows.
    fn query(
        &mut self,
        sql: &str,
        values: &[Value],
    ) -> impl Future<Output = Result<Vec<Row>, DbError>> + Send;

    /// Runs a statement and returns the number of changed rows.
    fn execute(
        &mut self,
        sql: &str,
        values: &[Value],
    ) -> impl Future<Output = Result<u64, DbError>> + Send;
}
