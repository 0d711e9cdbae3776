//! The chain of audit records: what a record's hash covers and how the chain is checked.
//!
//! A record is the row of a decided permission request. Its format says which columns its hash
//! covers. A record of an unknown format cannot be verified, so it counts as broken. The chain
//! alone shows neither a cut tail nor a rewrite of the whole chain, so its head also goes to the
//! log.

use rusqlite::{Connection, OptionalExtension, Row};
use sha2::{Digest, Sha256};

use super::columns::Columns as _;
use super::error::ReadError;
use marshal_model::untrusted::escape_for_display;
use marshal_model::{DecidedBy, EventKind};

/// The end of the chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChainHead {
    /// The number of records, which is the last one's link.
    pub link: u64,
    /// The hash of the last, hexadecimal; 64 zeros when there is none.
    pub hash: String,
}

impl Default for ChainHead {
    fn default() -> Self {
        Self {
            link: 0,
            hash: "0".repeat(64),
        }
    }
}

/// The format of records.
pub(super) const FORMAT: i64 = 1;

/// The columns that a record's hash covers, after `link` and `prev_hash`, in this order.
macro_rules! covered {
    () => {
        "id, session, requested_seq, decided_seq, request_key, tool_id, tool, input_sha256, claimed, \
         requested_at_us, policy, policy_sha256, facts, eval_us, decision, decided_by, rules, \
         reason, decided_at_us, format, pool, slot, run, task, approver"
    };
}

/// The number of columns in `covered!`.
const COVERED_COUNT: usize = 25;
/// The index of `format` among the covered columns. Pool, slot, run and task follow it.
const FORMAT_COLUMN: usize = 19;
/// The index of `session` among the covered columns.
const SESSION_COLUMN: usize = 1;
/// The index of `decided_by` among the covered columns.
const DECIDED_BY_COLUMN: usize = 15;

/// Reads one permission request's covered columns.
pub(super) const SELECT_COVERED: &str = concat!(
    "SELECT ",
    covered!(),
    " FROM permission_requests WHERE id = ?1"
);

const SELECT_CHAIN: &str = concat!(
    "SELECT link, prev_hash, hash, input, input_sha256, ",
    covered!(),
    " FROM permission_requests WHERE link IS NOT NULL ORDER BY link"
);

/// SHA-256 in hexadecimal.
pub(super) fn sha256_hex(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

/// The format of a record is unknown.
#[derive(Debug, thiserror::Error)]
enum FormatError {
    /// It is of another version.
    #[error(
        "its format is {0}, and this marshal knows only {FORMAT}: verify it with the marshal that wrote it"
    )]
    Version(i64),
    /// It is no number.
    #[error("its format is not a number")]
    NotNumber,
}

/// Rejects a record of an unknown format. Its covered columns begin at `first` in `row`.
fn check_format(row: &Row<'_>, first: usize) -> Result<(), FormatError> {
    match row.get::<_, i64>(first + FORMAT_COLUMN) {
        Ok(FORMAT) => Ok(()),
        Ok(other) => Err(FormatError::Version(other)),
        Err(_) => Err(FormatError::NotNumber),
    }
}

/// The hash of a record. Its covered columns begin at `first` in `row`.
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

/// The last record that retention removed, where the stored chain begins.
pub(super) fn read_chain_start(conn: &Connection) -> rusqlite::Result<ChainHead> {
    let cut = conn
        .prepare_cached("SELECT link, hash FROM audit_cut")?
        .query_row([], |row| {
            Ok(ChainHead {
                link: row.number("link")?,
                hash: row.get("hash")?,
            })
        })
        .optional()?;
    Ok(cut.unwrap_or_default())
}

/// Reads the end of the chain.
pub(super) fn read_chain_head(conn: &Connection) -> rusqlite::Result<ChainHead> {
    let head = conn
        .query_row(
            "SELECT link, hash FROM permission_requests WHERE link = (SELECT max(link) FROM permission_requests)",
            [],
            |row| {
                Ok(ChainHead {
                    link: row.number("link")?,
                    hash: row.get("hash")?,
                })
            },
        )
        .optional()?;
    head.map_or_else(|| read_chain_start(conn), Ok)
}

/// Checks every record against its predecessor, and stored inputs against their digests. Begins
/// after the last removed record.
pub(super) fn verify_chain(conn: &Connection) -> Result<ChainHead, ReadError> {
    walk_chain(conn, &mut |_| {}).map(|(_, head)| head)
}

/// [`verify_chain`] with a callback: `seen` gets the chain's begin and every valid record. Returns
/// the begin and the end of the chain.
pub(super) fn walk_chain(
    conn: &Connection,
    seen: &mut dyn FnMut(&ChainHead),
) -> Result<(ChainHead, ChainHead), ReadError> {
    // One read transaction: retention may remove records at the same time.
    let conn = conn.unchecked_transaction()?;
    let begin = read_chain_start(&conn)?;
    let mut head = begin.clone();
    seen(&head);
    let mut statement = conn.prepare(SELECT_CHAIN)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let number: i64 = row.get(0)?;
        let link = u64::try_from(number).unwrap_or_default();
        let broken = |detail: &str| ReadError::Chain {
            link,
            detail: detail.to_owned(),
        };
        // An emptied column makes the record broken, but is no error of the database.
        let text = |column| row.get::<_, Option<String>>(column);
        if number < 1 {
            return Err(broken("its link is not a number from 1 on"));
        }
        if link != head.link + 1 {
            return Err(broken("a record before it is missing"));
        }
        if text(1)?.as_ref() != Some(&head.hash) {
            return Err(broken("prev_hash is not the hash of the record before it"));
        }
        check_format(row, 5).map_err(|error| broken(&error.to_string()))?;
        let hash = hash_row(link, &head.hash, row, 5)?;
        if text(2)?.as_ref() != Some(&hash) {
            return Err(broken("its hash does not match its columns"));
        }
        match text(3)? {
            Some(input) if text(4)? != Some(sha256_hex(input.as_bytes())) => {
                return Err(broken("its digest does not match its input"));
            }
            // A request that was rejected unread may have had an input too large to store.
            None if text(5 + DECIDED_BY_COLUMN)?.as_deref() != Some(DecidedBy::Error.as_str())
                && session_exists(&conn, text(5 + SESSION_COLUMN)?.as_deref())? =>
            {
                return Err(broken("its input was removed"));
            }
            _ => {}
        }
        if !matches_session(&conn, row, 5)? {
            return Err(broken(
                "the pool, slot, run or task of its session differ from those in the record",
            ));
        }
        head = ChainHead { link, hash };
        seen(&head);
    }
    drop(rows);
    // A verdict and its link are written in one commit. A verdict without a link was removed from
    // the chain.
    let loose: Option<String> = conn
        .prepare("SELECT id FROM permission_requests WHERE decision IS NOT NULL AND link IS NULL LIMIT 1")?
        .query_row([], |row| row.get(0))
        .optional()?;
    if let Some(id) = loose {
        return Err(ReadError::Chain {
            link: head.link + 1,
            detail: format!(
                "the verdict on {} was removed from the chain",
                escape_for_display(&id, 128)
            ),
        });
    }
    if let Some((session, seq)) = find_missing_record(&conn)? {
        return Err(ReadError::Chain {
            link: begin.link + 1,
            detail: format!(
                "the verdict at {} of session {} has no audit record, though the session exists: records before this one were removed",
                seq,
                escape_for_display(&session, 128)
            ),
        });
    }
    Ok((begin, head))
}

/// Whether the session's row exists; if it does, all its records must exist too.
fn session_exists(conn: &Connection, session: Option<&str>) -> rusqlite::Result<bool> {
    conn.prepare_cached("SELECT 1 FROM sessions WHERE session = ?1")?
        .exists([session])
}

/// Whether a record's pool, slot, run and task match its session. They are written once, when the
/// session begins. The record of a removed session has nothing to compare with, so it matches.
fn matches_session(conn: &Connection, row: &Row<'_>, first: usize) -> rusqlite::Result<bool> {
    type SessionOwner = (String, i64, Option<String>, Option<String>);
    let session = row.get::<_, Option<String>>(first + SESSION_COLUMN)?;
    let of_session: Option<SessionOwner> = conn
        .prepare_cached("SELECT pool, slot, run, task FROM sessions WHERE session = ?1")?
        .query_row([session], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
        })
        .optional()?;
    let Some((pool, slot, run, task)) = of_session else {
        return Ok(true);
    };
    let at = first + FORMAT_COLUMN + 1;
    Ok(row.get::<_, Option<String>>(at)? == Some(pool)
        && row.get::<_, Option<i64>>(at + 1)? == Some(slot)
        && row.get::<_, Option<String>>(at + 2)? == run
        && row.get::<_, Option<String>>(at + 3)? == task)
}

/// Finds a verdict in an existing session's stream that has no audit record. Retention removes both
/// or neither.
fn find_missing_record(conn: &Connection) -> rusqlite::Result<Option<(String, i64)>> {
    conn.prepare(
        "SELECT session, seq FROM events WHERE kind = ?1 \
         AND EXISTS (SELECT 1 FROM sessions WHERE sessions.session = events.session) \
         AND NOT EXISTS (SELECT 1 FROM permission_requests WHERE permission_requests.session = events.session \
                         AND permission_requests.decided_seq = events.seq) LIMIT 1",
    )?
    .query_row([EventKind::PermissionDecided.as_str()], |row| {
        Ok((row.get(0)?, row.get(1)?))
    })
    .optional()
}
