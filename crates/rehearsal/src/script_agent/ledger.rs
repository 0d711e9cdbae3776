//! A durable log of what the agent received and was about to do.
//!
//! It is the child's view in a test: it shows which prompts really arrived, also after a crash.
//! Must not know what the entries mean.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// The size of one read of an old ledger, in bytes.
const READ_BYTES: usize = 64 << 10;

/// A file of JSON lines, or none.
#[derive(Debug)]
pub(super) struct Ledger(Option<LedgerFile>);

#[derive(Debug)]
struct LedgerFile {
    file: File,
    /// Distinguishes this process from others of the same pid: each pid namespace begins to count
    /// anew.
    process_tag: String,
    /// The number of the last line. A later process continues the count.
    lines: u64,
}

impl Ledger {
    /// Opens the file for appending; without a path nothing is recorded.
    pub(super) fn open(path: Option<&Path>) -> io::Result<Self> {
        let Some(path) = path else {
            return Ok(Self(None));
        };
        let mut file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .open(path)?;
        let (lines, whole) = count(&mut file)?;
        if !whole {
            // An earlier writer was killed within its last line: end that line, so that the next
            // one stands alone.
            file.write_all(b"\n")?;
        }
        let mut life = uuid::Uuid::new_v4().simple().to_string();
        life.truncate(8);
        Ok(Self(Some(LedgerFile {
            file,
            process_tag: life,
            lines,
        })))
    }

    /// Appends an entry in one write and waits until it is on the disk. `fields` must be an object.
    pub(super) fn append(
        &mut self,
        kind: &str,
        session: &str,
        fields: impl FnOnce() -> Value,
    ) -> io::Result<()> {
        let Some(book) = &mut self.0 else {
            return Ok(());
        };
        book.lines += 1;
        let at = SystemTime::now().duration_since(UNIX_EPOCH);
        let mut entry = json!({
            "n": book.lines,
            "at_us": at.map_or(0, |since| u64::try_from(since.as_micros()).unwrap_or(u64::MAX)),
            "pid": std::process::id(),
            "life": book.process_tag,
            "session": session,
            "kind": kind,
        });
        if let (Value::Object(entry), Value::Object(fields)) = (&mut entry, fields()) {
            entry.extend(fields);
        }
        let mut line = serde_json::to_vec(&entry)?;
        line.push(b'\n');
        book.file.write_all(&line)?;
        book.file.sync_data()
    }
}

/// The number of lines, including an incomplete one, and whether the last one is complete.
fn count(file: &mut File) -> io::Result<(u64, bool)> {
    let mut chunk = vec![0; READ_BYTES];
    let (mut lines, mut last) = (0, b'\n');
    loop {
        let read = match file.read(&mut chunk) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        lines += memchr::memchr_iter(b'\n', &chunk[..read]).count() as u64;
        last = chunk[read - 1];
    }
    let whole = last == b'\n';
    Ok((lines + u64::from(!whole), whole))
}

/// The digest of a prompt: SHA-256 in hexadecimal.
pub(super) fn digest(text: &str) -> String {
    hex::encode(Sha256::digest(text.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_process_goes_on_counting_also_after_a_line_that_was_cut_off() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ledger");
        let enter = || {
            let mut ledger = Ledger::open(Some(&path)).unwrap();
            ledger.append("a", "s", || json!({"x": 1})).unwrap();
            ledger.append("b", "s", || json!({})).unwrap();
        };
        enter();
        std::fs::OpenOptions::new()
            .append(true)
            .open(&path)
            .unwrap()
            .write_all(b"{\"n\":3,\"cut")
            .unwrap();
        enter();
        let text = std::fs::read_to_string(&path).unwrap();
        let numbers: Vec<Option<u64>> = text
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).ok()?["n"].as_u64())
            .collect();
        assert_eq!(numbers, [Some(1), Some(2), None, Some(4), Some(5)]);
    }

    #[test]
    fn a_digest_is_sha256_in_hex() {
        assert_eq!(
            digest("abc"),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }
}
