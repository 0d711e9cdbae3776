//! `audit verify`: verifies the hash chain and reports the result.

use std::path::Path;

use serde_json::json;

use super::VerifyArgs;
use crate::cli::event_text::time;
use crate::cli::events::{JournalError, open_journal};
use crate::cli::exit::Exit;
use crate::cli::streams::Streams;
use marshal_journal::{ChainProof, ReadError, RecordIdentity};
use marshal_model::untrusted::escape_for_display;

/// Columns shown of an id.
const ID: usize = 128;

pub(super) fn verify(
    state: &Path,
    args: &VerifyArgs,
    json: bool,
    streams: &mut Streams,
) -> Result<Exit, JournalError> {
    let reader = open_journal(state)?;
    let wanted = args.head.as_deref();
    match reader.prove_audit(wanted) {
        Ok(proof) => Ok(whole(&proof, wanted, json, streams)),
        Err(ReadError::Chain { link, detail }) => {
            let identity = reader.audit_record_identity(link)?;
            broken(link, &detail, identity.as_ref(), json, streams);
            Ok(Exit::Failures)
        }
        Err(other) => Err(other.into()),
    }
}

/// Reports a consistent chain; with a head, it must be in the chain.
fn whole(proof: &ChainProof, wanted: Option<&str>, json: bool, streams: &mut Streams) -> Exit {
    let is_missing = wanted.is_some() && proof.found.is_none();
    let records = proof.head.link - proof.begin.link;
    if json {
        let document = json!({
            "ok": !is_missing,
            "records": records,
            "first": (records > 0).then_some(proof.begin.link + 1),
            "head": {"link": proof.head.link, "hash": proof.head.hash},
            "wanted": wanted.map(|hash| json!({"hash": hash, "link": proof.found})),
            "broken": null,
        });
        streams.out.json(&document.to_string());
    } else {
        let removed = match proof.begin.link {
            0 => String::new(),
            link => format!(" ({link} older records were removed after the retention time)"),
        };
        let (link, hash) = (proof.head.link, &proof.head.hash);
        streams.out.line(&format!(
            "{records} records, none changed or missing{removed}"
        ));
        streams.out.line(&format!("head {link} {hash}"));
        if let Some(found) = proof.found {
            streams.out.line(&describe_head(found, proof));
        }
    }
    if !is_missing {
        return Exit::Done;
    }
    streams.err.line(
        "error: the head of --head is not in the chain: since it was logged, records were cut off or \
        rewritten, or removed after the retention time",
    );
    Exit::Failures
}

/// Describes what is proved about the records up to the given head.
fn describe_head(found: u64, proof: &ChainProof) -> String {
    let since = proof.head.link - found;
    match proof.begin.link {
        0 => format!(
            "the head of --head is record {found}: all records up to it are unchanged, {since} are newer"
        ),
        begin if begin == found => format!(
            "the head of --head is record {found}, the last one that was removed after the retention time: removed records cannot be verified; the {since} newer records continue the chain"
        ),
        begin => format!(
            "the head of --head is record {found}: records {} to {found} are unchanged, {since} are newer",
            begin + 1
        ),
    }
}

fn broken(
    link: u64,
    detail: &str,
    named: Option<&RecordIdentity>,
    json: bool,
    streams: &mut Streams,
) {
    if json {
        let document = json!({
            "ok": false,
            "broken": {
                "link": link,
                "detail": detail,
                "id": named.map(|named| named.id.raw()),
                "session": named.map(|named| named.session.raw()),
                "decided_at_us": named.and_then(|named| named.decided_at_us),
            },
        });
        streams.out.json(&document.to_string());
    }
    let origin = named.map_or_else(String::new, |named| {
        let at = named
            .decided_at_us
            .map_or_else(|| "at an unknown time".to_owned(), time);
        let (id, session) = (
            named.id.escape_for_display(ID),
            named.session.escape_for_display(ID),
        );
        format!(" (request {id} of session {session}, decided {at})")
    });
    let detail = escape_for_display(detail, 300);
    streams.err.line(&format!(
        "error: audit record {link}{origin} does not continue the chain: {detail}; the records before it are intact"
    ));
}
