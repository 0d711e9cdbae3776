//! The chain of audit records: what a record's hash covers and how the chain is checked.
//!
//! A record is the row of a decided ask. A chain alone shows neither a cut tail nor a rewrite of
//! everything, so its head also goes to the log.

use rusqlite::{Connection, OptionalExtension, Row};
use sha2::{Digest, Sha256};

use super::error::ReadError;
use crate::model::foreign::show;

/// The end of the chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    /// How many records there are.
    pub link: u64,
    /// The hash of the last, hexadecimal; 64 zeros when there is none.
    pub hash: String,
}

impl Default for Head {
    fn default() -> Self {
        Self {
            link: 0,
            hash: "0".repeat(64),
        }
    }
}

/// The columns that a record's hash covers after `link` and `prev_hash`, in this order.
macro_rules! covered {
    () => {
        "id, session, asked_seq, decided_seq, request_key, tool_id, tool, input_sha256, claimed, \
         asked_at_us, policy, policy_sha256, facts, eval_us, decision, decided_by, rules, \
         reason, decided_at_us"
    };
}

/// The number of columns in `covered!`.
const COVERED_COUNT: usize = 19;

/// Reads one ask's covered columns.
pub(super) const SELECT_COVERED: &str = concat!("SELECT ", covered!(), " FROM asks WHERE id = ?1");

const SELECT_CHAIN: &str = concat!(
    "SELECT link, prev_hash, hash, input, input_sha256, ",
    covered!(),
    " FROM asks WHERE link IS NOT NULL ORDER BY link"
);

/// SHA-256 in hexadecimal.
pub(super) fn sha256_hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    let digest = Sha256::digest(bytes);
    let mut out = String::with_capacity(64);
    for byte in digest {
        let _ = write!(out, "{byte:02x}");
    }
    out
}

/// The hash of a record whose covered columns begin at `first` in `row`.
pub(super) fn hash_row(
    link: u64,
    prev_hash: &str,
    row: &Row<'_>,
    first: usize,
) -> rusqlite::Result<String> {
    use rusqlite::types::ValueRef;
    let mut fields = vec![
        serde_json::Value::from(link),
        serde_json::Value::from(prev_hash),
    ];
    for column in first..first + COVERED_COUNT {
        fields.push(match row.get_ref(column)? {
            ValueRef::Integer(number) => number.into(),
            ValueRef::Text(text) => String::from_utf8_lossy(text).into(),
            // STRICT tables have only integers and texts in these columns.
            ValueRef::Null | ValueRef::Real(_) | ValueRef::Blob(_) => serde_json::Value::Null,
        });
    }
    Ok(sha256_hex(
        serde_json::Value::Array(fields).to_string().as_bytes(),
    ))
}

/// The last record that retention removed: where the chain that is still here begins.
pub(super) fn cut(conn: &Connection) -> rusqlite::Result<Head> {
    // A database of version 1, opened for reading, has no such table.
    let is_there = "SELECT 1 FROM sqlite_master WHERE name = 'audit_cut'";
    if !conn.prepare_cached(is_there)?.exists([])? {
        return Ok(Head::default());
    }
    let cut = conn
        .prepare_cached("SELECT link, hash FROM audit_cut")?
        .query_row([], |row| {
            Ok(Head {
                link: row.get::<_, i64>(0)?.unsigned_abs(),
                hash: row.get(1)?,
            })
        })
        .optional()?;
    Ok(cut.unwrap_or_default())
}

/// Reads the end of the chain.
pub(super) fn head(conn: &Connection) -> rusqlite::Result<Head> {
    let head = conn
        .query_row(
            "SELECT link, hash FROM asks WHERE link = (SELECT max(link) FROM asks)",
            [],
            |row| {
                Ok(Head {
                    link: row.get::<_, i64>(0)?.unsigned_abs(),
                    hash: row.get(1)?,
                })
            },
        )
        .optional()?;
    head.map_or_else(|| cut(conn), Ok)
}

/// Checks every record against the one before it, and stored inputs against their digests, from
/// the last removed record on.
pub(super) fn verify(conn: &Connection) -> Result<Head, ReadError> {
    walk(conn, &mut |_| {}).map(|(_, head)| head)
}

/// The same; gives where the chain begins, and its end. `seen` hears of the begin and of every
/// record that fits.
pub(super) fn walk(
    conn: &Connection,
    seen: &mut dyn FnMut(&Head),
) -> Result<(Head, Head), ReadError> {
    // All from the same state of the database: retention may go on meanwhile.
    let conn = conn.unchecked_transaction()?;
    let begin = cut(&conn)?;
    let mut head = begin.clone();
    seen(&head);
    let mut statement = conn.prepare(SELECT_CHAIN)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let link = row.get::<_, i64>(0)?.unsigned_abs();
        let broken = |detail: &str| ReadError::Chain {
            link,
            detail: detail.to_owned(),
        };
        // A column that was emptied is a broken record, not a broken database.
        let text = |column| row.get::<_, Option<String>>(column);
        if link != head.link + 1 {
            return Err(broken("a record before it is missing"));
        }
        if text(1)?.as_ref() != Some(&head.hash) {
            return Err(broken("prev_hash is not the hash of the record before it"));
        }
        let hash = hash_row(link, &head.hash, row, 5)?;
        if text(2)?.as_ref() != Some(&hash) {
            return Err(broken("its columns do not give its hash"));
        }
        if let Some(input) = text(3)?
            && text(4)? != Some(sha256_hex(input.as_bytes()))
        {
            return Err(broken("its input does not give its digest"));
        }
        head = Head { link, hash };
        seen(&head);
    }
    drop(rows);
    // A verdict outside of the chain is one that was taken out of it: both are one commit.
    let loose: Option<String> = conn
        .prepare("SELECT id FROM asks WHERE decision IS NOT NULL AND link IS NULL LIMIT 1")?
        .query_row([], |row| row.get(0))
        .optional()?;
    if let Some(id) = loose {
        return Err(ReadError::Chain {
            link: head.link + 1,
            detail: format!("the verdict on {} was taken out of it", show(&id, 128)),
        });
    }
    Ok((begin, head))
}
