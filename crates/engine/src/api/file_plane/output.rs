//! What an agent says, from the journal into a request's output file.
//!
//! A cursor over the journal that the fleet's notices wake: it holds nothing between two readings,
//! so a slow disk holds nothing up, and a start after a kill writes the same again. Calls block.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use super::PlaneError;
use super::disk::{Area, Disk, FileFingerprint};
use super::schema::CommandStats;
use crate::api::history::{History as _, JournalHistory};
use marshal_journal::StoredTask;
use marshal_model::limits::{FILE_PLANE_OUTPUT_BYTES, FILE_PLANE_TAIL_BYTES};
use marshal_model::{Event, RunId, SessionId, TaskId};

/// How far one request's output is written.
#[derive(Debug, Default)]
pub(super) struct Output {
    /// The file, once there is one.
    file: Option<FileFingerprint>,
    /// How far each session was read.
    cursors: HashMap<SessionId, u64>,
    bytes: u64,
    newlines: u64,
    /// The last byte is no newline.
    is_open_line: bool,
    /// There was more than is written.
    pub(super) is_cut: bool,
}

/// What one reading brought.
#[derive(Debug)]
pub(super) struct OutputRead {
    /// The task as the journal has it now; `None`: it has none.
    pub(super) row: Option<StoredTask>,
    /// The end of what was written.
    pub(super) tail: String,
}

impl OutputRead {
    /// Whether the task is over, and all of its output written.
    pub(super) fn is_complete(&self) -> bool {
        self.row
            .as_ref()
            .is_none_or(|row| row.ended_at_us.is_some())
    }
}

impl Output {
    /// Writes what is new. A session may work another task when this one is over, whose words are
    /// later than its end.
    pub(super) fn read(
        &mut self,
        past: &JournalHistory,
        disk: &Mutex<Disk>,
        name: &str,
        (run, task): (&RunId, &TaskId),
    ) -> Result<OutputRead, PlaneError> {
        let row = || past.task(run, task).map_err(PlaneError::Journal);
        let mut tail = String::new();
        'whole: loop {
            let before = row()?;
            let sessions = past.sessions(run).map_err(PlaneError::Journal)?;
            for worked in &sessions {
                loop {
                    let cursor = self.cursors.get(&worked.session).copied();
                    let after = cursor.unwrap_or(0).max(worked.after_seq);
                    let events = past.events(&worked.session, after);
                    let events = events.map_err(PlaneError::Journal)?;
                    let Some(last) = events.last().map(|of| of.id.seq) else {
                        break;
                    };
                    // Read after them: what was said before it ended is its own.
                    let until = row()?.and_then(|row| row.ended_at_us);
                    let until = until.unwrap_or(i64::MAX);
                    let own = events.iter().filter(|of| of.at_us <= until);
                    let text: String = own
                        .filter_map(|of| match &of.event {
                            Event::Text { delta } => Some(delta.raw()),
                            _ => None,
                        })
                        .collect();
                    if !self.add(disk, name, &text)? {
                        // Somebody took the file away, or put another one there.
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
            // It ended meanwhile: what it said last is read as well.
        }
    }

    /// Adds text to the file, which is made if there was none; `false`: it is another one now.
    fn add(&mut self, disk: &Mutex<Disk>, name: &str, text: &str) -> Result<bool, PlaneError> {
        let room = FILE_PLANE_OUTPUT_BYTES.saturating_sub(self.bytes);
        let mut end = text.len().min(usize::try_from(room).unwrap_or(usize::MAX));
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

    /// Has all of it on the disk; an agent that said nothing has an empty file.
    pub(super) fn close(&mut self, disk: &Disk, name: &str) -> Result<(), PlaneError> {
        match self.file {
            Some(_) => disk.sync(Area::Output, name)?,
            None => self.file = Some(disk.put(Area::Output, name, b"")?),
        }
        Ok(())
    }

    /// What was counted, of a task that took so long.
    pub(super) fn stats(&self, duration_ms: u64) -> CommandStats {
        CommandStats {
            bytes: self.bytes,
            lines: self.newlines + u64::from(self.is_open_line),
            duration_ms,
            // Said by the result itself, as `output_cut`.
            truncated: false,
        }
    }
}

/// Keeps the end of a text, within what a tail shows.
fn push_tail(tail: &mut String, text: &str) {
    tail.push_str(text);
    let mut at = tail.len().saturating_sub(FILE_PLANE_TAIL_BYTES);
    while !tail.is_char_boundary(at) {
        at += 1;
    }
    tail.drain(..at);
}
