//! Copies an agent's output from the journal to a request's output file.
//!
//! Keeps a cursor over the journal and is woken by the fleet's events. It holds no lock between two
//! reads, so a slow disk blocks nothing, and a start after a kill writes the same file again. Calls
//! block.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use super::PlaneError;
use super::disk::{Area, Disk, FileFingerprint};
use super::schema::CommandStats;
use crate::api::history::{History as _, JournalHistory};
use marshal_journal::StoredTask;
use marshal_model::limits::{FILE_PLANE_OUTPUT_BYTES, FILE_PLANE_TAIL_BYTES};
use marshal_model::{Event, RunId, SessionId, TaskId};

/// The written part of one request's output.
#[derive(Debug, Default)]
pub(super) struct Output {
    /// The file's metadata; `None` before the file exists.
    file: Option<FileFingerprint>,
    /// The last seq that was read of each session.
    cursors: HashMap<SessionId, u64>,
    bytes: u64,
    newlines: u64,
    /// The last byte is not a newline.
    is_open_line: bool,
    /// The output exceeded the limit and was cut.
    pub(super) is_cut: bool,
}

/// The result of one read.
#[derive(Debug)]
pub(super) struct OutputRead {
    /// The task's current row; `None` if the journal has none.
    pub(super) row: Option<StoredTask>,
    /// The last part of the written text.
    pub(super) tail: String,
}

impl OutputRead {
    /// Whether the task has ended and all of its output is written.
    pub(super) fn is_complete(&self) -> bool {
        self.row
            .as_ref()
            .is_none_or(|row| row.ended_at_us.is_some())
    }
}

impl Output {
    /// Writes new output. A session may run another task after this one, whose output is later than
    /// this task's end.
    pub(super) fn read(
        &mut self,
        past: &JournalHistory,
        disk: &Mutex<Disk>,
        name: &str,
        (run, task): (&RunId, &TaskId),
    ) -> Result<OutputRead, PlaneError> {
        let row = || past.task(run, task);
        let mut tail = String::new();
        'whole: loop {
            let before = row()?;
            let sessions = past.sessions(run)?;
            for worked in &sessions {
                loop {
                    let cursor = self.cursors.get(&worked.session).copied();
                    let after = cursor.unwrap_or(0).max(worked.after_seq);
                    let events = past.events(&worked.session, after)?;
                    let Some(last) = events.last().map(|item| item.id.seq) else {
                        break;
                    };
                    // Read after the events: events before the task's end belong to it.
                    let until = row()?.and_then(|row| row.ended_at_us).unwrap_or(i64::MAX);
                    let own = events.iter().filter(|item| item.at_us <= until);
                    let text: String = own
                        .filter_map(|item| match &item.event {
                            Event::Text { delta } => Some(delta.raw()),
                            _ => None,
                        })
                        .collect();
                    if !self.add(disk, name, &text)? {
                        // The file was removed or replaced: write everything again.
                        *self = Self::default();
                        continue 'whole;
                    }
                    push_tail(&mut tail, &text);
                    self.cursors.insert(worked.session.clone(), last);
                }
            }
            let was_over = before.as_ref().is_none_or(|row| row.ended_at_us.is_some());
            let after = row()?;
            let is_over = after.as_ref().is_none_or(|row| row.ended_at_us.is_some());
            if was_over || !is_over {
                return Ok(OutputRead { row: after, tail });
            }
            // The task ended meanwhile: read its last output too.
        }
    }

    /// Appends text to the file, and creates it if needed; `false` if it was replaced.
    fn add(&mut self, disk: &Mutex<Disk>, name: &str, text: &str) -> Result<bool, PlaneError> {
        let remaining = FILE_PLANE_OUTPUT_BYTES.saturating_sub(self.bytes);
        let mut end = text
            .len()
            .min(usize::try_from(remaining).unwrap_or(usize::MAX));
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        self.is_cut |= end < text.len();
        let text = &text[..end];
        if text.is_empty() {
            return Ok(true);
        }
        let disk = disk.lock().unwrap_or_else(PoisonError::into_inner);
        match &self.file {
            Some(file) => {
                if !disk.add(Area::Output, name, file, text.as_bytes())? {
                    return Ok(false);
                }
            }
            None => self.file = Some(disk.put(Area::Output, name, text.as_bytes())?),
        }
        self.bytes += text.len() as u64;
        self.newlines += memchr::memchr_iter(b'\n', text.as_bytes()).count() as u64;
        self.is_open_line = !text.ends_with('\n');
        Ok(true)
    }

    /// Flushes the file to the disk; an agent without output gets an empty file.
    pub(super) fn close(&mut self, disk: &Disk, name: &str) -> Result<(), PlaneError> {
        match self.file {
            Some(_) => disk.sync(Area::Output, name)?,
            None => self.file = Some(disk.put(Area::Output, name, b"")?),
        }
        Ok(())
    }

    /// Returns the statistics of a task with this duration.
    pub(super) fn stats(&self, duration_ms: u64) -> CommandStats {
        CommandStats {
            bytes: self.bytes,
            lines: self.newlines + u64::from(self.is_open_line),
            duration_ms,
            // The result has this as `output_cut`.
            truncated: false,
        }
    }
}

/// Appends to a tail and cuts its front to the limit.
fn push_tail(tail: &mut String, text: &str) {
    tail.push_str(text);
    let mut at = tail.len().saturating_sub(FILE_PLANE_TAIL_BYTES);
    while !tail.is_char_boundary(at) {
        at += 1;
    }
    tail.drain(..at);
}
