//! What the agent received and was about to do, on disk before it did it.
//!
//! The child's side of a test: it shows which prompts really arrived, also after a crash. Must not
//! know what the entries mean.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

/// A file of JSON lines, or none.
#[derive(Debug)]
pub(super) struct Ledger(Option<File>);

impl Ledger {
    /// Opens the file for appending; without a path nothing is kept.
    pub(super) fn open(path: Option<&Path>) -> io::Result<Self> {
        let Some(path) = path else {
            return Ok(Self(None));
        };
        let file = OpenOptions::new().append(true).create(true).open(path)?;
        Ok(Self(Some(file)))
    }

    /// Appends an entry in one write and waits until it is on the disk. `fields` is an object.
    pub(super) fn enter(&mut self, kind: &str, fields: impl FnOnce() -> Value) -> io::Result<()> {
        let Some(file) = &mut self.0 else {
            return Ok(());
        };
        let at = SystemTime::now().duration_since(UNIX_EPOCH);
        let mut entry = json!({
            "at_us": at.map_or(0, |since| u64::try_from(since.as_micros()).unwrap_or(u64::MAX)),
            "pid": std::process::id(),
            "kind": kind,
        });
        if let (Value::Object(entry), Value::Object(fields)) = (&mut entry, fields()) {
            entry.extend(fields);
        }
        let mut line = serde_json::to_vec(&entry)?;
        line.push(b'\n');
        file.write_all(&line)?;
        file.sync_data()
    }
}
