//! The tool's life: its start, what it writes, its end.

use std::time::Instant;

use serde_json::json;

use super::super::running::Why;
use super::super::terminal::Tool;
use super::{Listens, PIECES, STARTING, Work, marker_seen, own_marker};
use crate::skillpilot::marker::{LineEnd, Scanner};
use crate::skillpilot::{Phase, Status};

impl Work {
    /// Ends the tool; its last words are the running command's.
    pub(super) fn end_tool(&mut self, told: bool) -> bool {
        let Some(tool) = self.tool.take() else {
            return false;
        };
        self.listens = Listens::Gone;
        let pid = tool.pid();
        let (ended, last) = tool.end(told);
        self.record.wrote(&self.dir, &last);
        let done = self
            .running
            .as_mut()
            .is_some_and(|running| running.wrote(&last));
        let how = json!({ "pid": pid, "how": ended.words() });
        self.record.note(&self.dir, "tool_ended", how);
        done
    }

    /// The tool ended by itself, or its terminal is closed.
    pub(super) fn tool_ended(&mut self) {
        let Some(tool) = self.tool.take() else {
            return;
        };
        let pid = tool.pid();
        let was = std::mem::replace(&mut self.listens, Listens::Gone);
        let (ended, last) = tool.end(false);
        self.record.wrote(&self.dir, &last);
        let how = json!({ "pid": pid, "how": ended.words() });
        self.record.note(&self.dir, "tool_ended", how);
        if let Listens::Soon(..) = was {
            let said = self.record.last_words();
            self.failed = Some(format!(
                "the tool ended before it listened ({}): {said}",
                ended.words()
            ));
        }
        let Some(running) = &mut self.running else {
            return self.phase(if self.failed.is_some() {
                Phase::Error
            } else {
                Phase::Idle
            });
        };
        let done = running.wrote(&last);
        let why = match &running.ending {
            Some(ending) => ending.why.clone(),
            None if done => marker_seen(),
            None => Why {
                status: Status::Error,
                reason: if ended.is_exit() {
                    "tool_exit".to_owned()
                } else {
                    format!("tool_died: {}", ended.words())
                },
            },
        };
        self.finish(why);
    }

    /// The tool cannot be used.
    pub(super) fn lose(&mut self, why: &str) {
        self.end_tool(true);
        self.failed = Some(why.to_owned());
        self.phase(Phase::Error);
    }

    pub(super) fn start_tool(&mut self) {
        self.failed = None;
        self.phase(Phase::Starting);
        match Tool::start(&self.orders.tool) {
            Ok(tool) => {
                self.record
                    .note(&self.dir, "tool_started", json!({ "pid": tool.pid() }));
                self.tool = Some(tool);
                self.line_end = LineEnd::default();
                let marker = own_marker("starts");
                let line = self.orders.template.line(&marker);
                let init = self.orders.init.clone().unwrap_or_default();
                self.listens = Listens::Soon(Scanner::new(marker), Instant::now() + STARTING);
                self.type_in(&format!("{init}\n{line}"));
            }
            Err(error) => {
                self.failed = Some(format!("the tool cannot be started: {error}"));
                self.phase(Phase::Error);
            }
        }
    }

    /// Types into the terminal. What fails shows in the tool's end.
    pub(super) fn type_in(&mut self, text: &str) {
        if let Some(tool) = &mut self.tool {
            let _ = tool.say(text);
        }
    }

    /// The terminal has something, or has room.
    pub(super) fn of_terminal(&mut self) {
        for _ in 0..PIECES {
            let Some(tool) = &mut self.tool else {
                return;
            };
            if tool.push().is_err() {
                return self.tool_ended();
            }
            match tool.read() {
                Ok(piece) if piece.is_empty() => return,
                Ok(piece) => self.wrote(&piece),
                Err(_) => return self.tool_ended(),
            }
        }
    }

    pub(super) fn wrote(&mut self, piece: &[u8]) {
        self.record.wrote(&self.dir, piece);
        let piece = self.line_end.skip(piece);
        if let Listens::Soon(scanner, _) = &mut self.listens {
            if scanner.feed(piece, &mut Vec::new()) {
                self.line_end.after(scanner);
                self.listens = Listens::Yes;
                self.has_listened = true;
                self.phase(Phase::Idle);
            }
            return;
        }
        let Some(running) = &mut self.running else {
            return;
        };
        if running.wrote(piece) {
            self.line_end.after(running.ended_by());
            let why = running
                .ending
                .take()
                .map_or_else(marker_seen, |ending| ending.why);
            self.finish(why);
        }
    }
}
