//! `audit tail`, `query` and `export`: records, one a line.

use std::path::Path;
use std::time::Duration;

use super::record::{self, Turns};
use super::{FilterArgs, TailArgs};
use crate::cli::events::{PastError, open};
use crate::cli::exit::Exit;
use crate::cli::streams::Streams;
use crate::journal::{AuditRecord, Reader};

/// How often a follower looks for more.
const LOOK: Duration = Duration::from_millis(100);

pub(super) fn tail(
    state: &Path,
    args: &TailArgs,
    json: bool,
    streams: &mut Streams,
) -> Result<Exit, PastError> {
    let reader = open(state)?;
    let query = args.filter.query();
    let mut turns = Turns::default();
    let most = usize::try_from(args.count).unwrap_or(usize::MAX);
    let mut version = reader.version()?;
    let last = reader.audit_last(&query, most)?;
    // Without one that is wanted: from the end on, as it was before these were looked for.
    let mut after = match last.last() {
        Some(record) => record.link,
        None => reader
            .audit_last(&crate::journal::AuditQuery::default(), 1)?
            .last()
            .map_or(0, |of| of.link),
    };
    for record in &last {
        one(&reader, record, json, &mut turns, streams);
    }
    while args.follow && !streams.out.is_closed() {
        while reader.version()? == version {
            std::thread::sleep(LOOK);
        }
        version = reader.version()?;
        after = reader.audit_after(&query, after, &mut |record| {
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
) -> Result<Exit, PastError> {
    let reader = open(state)?;
    let mut turns = Turns::default();
    reader.audit_after(&filter.query(), 0, &mut |record| {
        one(&reader, &record, json, &mut turns, streams);
        !streams.out.is_closed()
    })?;
    Ok(Exit::Done)
}

pub(super) fn export(
    state: &Path,
    filter: &FilterArgs,
    streams: &mut Streams,
) -> Result<Exit, PastError> {
    query(state, filter, true, streams)
}

fn one(
    reader: &Reader,
    record: &AuditRecord,
    json: bool,
    turns: &mut Turns,
    streams: &mut Streams,
) {
    if json {
        let turn = turns.of(reader, record);
        streams.out.json(&record::json(reader, record, turn));
    } else {
        let line = record::line(record, streams.width);
        streams.out.line(&line);
    }
}
