//! `audit tail`, `query` and `export`: show records, one per line.

use std::path::Path;
use std::time::Duration;

use super::record::{self, TurnIndex};
use super::{FilterArgs, TailArgs};
use crate::cli::events::{JournalError, open_journal};
use crate::cli::exit::Exit;
use crate::cli::streams::Streams;
use marshal_journal::{AuditRecord, Reader};

/// How often a follower checks for new records.
const LOOK: Duration = Duration::from_millis(100);

pub(super) fn tail(
    state: &Path,
    args: &TailArgs,
    json: bool,
    streams: &mut Streams,
) -> Result<Exit, JournalError> {
    let reader = open_journal(state)?;
    let query = args.filter.query();
    let mut turns = TurnIndex::default();
    let count = usize::try_from(args.count).unwrap_or(usize::MAX);
    let mut version = reader.data_version()?;
    let last = reader.last_audit_records(&query, count)?;
    // If no record matches, follow from the newest record of all.
    let mut after = match last.last() {
        Some(record) => record.link,
        None => reader
            .last_audit_records(&marshal_journal::AuditQuery::default(), 1)?
            .last()
            .map_or(0, |record| record.link),
    };
    for record in &last {
        one(&reader, record, json, &mut turns, streams);
    }
    while args.follow && !streams.out.is_closed() {
        while reader.data_version()? == version {
            std::thread::sleep(LOOK);
        }
        version = reader.data_version()?;
        after = reader.audit_records_after(&query, after, &mut |record| {
            one(&reader, &record, json, &mut turns, streams);
            !streams.out.is_closed()
        })?;
    }
    Ok(Exit::Done)
}

pub(super) fn query(
    state: &Path,
    filter: &FilterArgs,
    json: bool,
    streams: &mut Streams,
) -> Result<Exit, JournalError> {
    let reader = open_journal(state)?;
    let mut turns = TurnIndex::default();
    reader.audit_records_after(&filter.query(), 0, &mut |record| {
        one(&reader, &record, json, &mut turns, streams);
        !streams.out.is_closed()
    })?;
    Ok(Exit::Done)
}

pub(super) fn export(
    state: &Path,
    filter: &FilterArgs,
    streams: &mut Streams,
) -> Result<Exit, JournalError> {
    query(state, filter, true, streams)
}

fn one(
    reader: &Reader,
    record: &AuditRecord,
    json: bool,
    turns: &mut TurnIndex,
    streams: &mut Streams,
) {
    if json {
        let turn = turns.turn_of(reader, record);
        streams.out.json(&record::json(record, turn));
    } else {
        let line = record::line(record, streams.width);
        streams.out.line(&line);
    }
}
