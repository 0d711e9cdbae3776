//! The tool's start, output and end.

use std::time::Instant;

use serde_json::json;

use super::super::error::ToolError;
use super::super::running::EndReason;
use super::super::terminal::Tool;
use super::{PIECES, Runner, START_TIMEOUT, ToolReadiness, marker_seen_reason, own_marker};
use marshal_wire::skillpilot::marker::{LineEndSkipper, Scanner};
use marshal_wire::skillpilot::{CommandStatus, RunnerPhase};

impl Runner {
    /// Ends the tool; its last output belongs to the running command.
    pub(super) fn end_tool(&mut self, graceful: bool) -> bool {
        let Some(tool) = self.tool.take() else {
            return false;
        };
        self.readiness = ToolReadiness::NoTool;
        let pid = tool.pid();
        let (ended, last) = tool.end(graceful);
        self.log.record_output(&self.dir, &last);
        let done = self
            .running
            .as_mut()
            .is_some_and(|running| running.feed_output(&last));
        let how = json!({ "pid": pid, "how": ended.describe() });
        self.log.log_event(&self.dir, "tool_ended", how);
        done
    }

    /// The tool ended by itself, or its terminal was closed.
    pub(super) fn handle_tool_exit(&mut self) {
        let Some(tool) = self.tool.take() else {
            return;
        };
        let pid = tool.pid();
        let was = std::mem::replace(&mut self.readiness, ToolReadiness::NoTool);
        let (ended, last) = tool.end(false);
        self.log.record_output(&self.dir, &last);
        let how = json!({ "pid": pid, "how": ended.describe() });
        self.log.log_event(&self.dir, "tool_ended", how);
        if let ToolReadiness::Starting(..) = was {
            let output = self.log.last_output();
            self.tool_error = Some(ToolError::Ended(ended.describe(), output));
        }
        let Some(running) = &mut self.running else {
            return self.set_phase(if self.tool_error.is_some() {
                RunnerPhase::Error
            } else {
                RunnerPhase::Idle
            });
        };
        let done = running.feed_output(&last);
        let why = match &running.interruption {
            Some(ending) => ending.why.clone(),
            None if done => marker_seen_reason(running.has_failed()),
            None => EndReason {
                status: CommandStatus::Error,
                reason: if ended.is_success() {
                    "tool_exit".to_owned()
                } else {
                    format!("tool_died: {}", ended.describe())
                },
            },
        };
        self.finish_running(why);
    }

    /// Ends a tool that cannot be used.
    pub(super) fn fail_tool(&mut self, why: ToolError) {
        self.end_tool(true);
        self.tool_error = Some(why);
        self.set_phase(RunnerPhase::Error);
    }

    pub(super) fn start_tool(&mut self) {
        self.tool_error = None;
        self.set_phase(RunnerPhase::Starting);
        match Tool::start(&self.config.tool) {
            Ok(tool) => {
                self.log
                    .log_event(&self.dir, "tool_started", json!({ "pid": tool.pid() }));
                self.tool = Some(tool);
                self.line_end = LineEndSkipper::default();
                let marker = own_marker("starts");
                let line = self.config.template.render(&marker);
                let init = self.config.init.clone().unwrap_or_default();
                self.readiness =
                    ToolReadiness::Starting(Scanner::new(marker), Instant::now() + START_TIMEOUT);
                self.type_in(&format!("{init}\n{line}"));
            }
            Err(error) => {
                self.tool_error = Some(ToolError::Start(error));
                self.set_phase(RunnerPhase::Error);
            }
        }
    }

    /// Types into the terminal. A failure shows in the tool's end.
    pub(super) fn type_in(&mut self, text: &str) {
        if let Some(tool) = &mut self.tool {
            let _ = tool.type_text(text);
        }
    }

    /// Reads from the terminal and types what it has room for.
    pub(super) fn service_terminal(&mut self) {
        for _ in 0..PIECES {
            let Some(tool) = &mut self.tool else {
                return;
            };
            if tool.flush_input().is_err() {
                return self.handle_tool_exit();
            }
            match tool.read() {
                Ok(piece) if piece.is_empty() => return,
                Ok(piece) => self.handle_output(&piece),
                Err(_) => return self.handle_tool_exit(),
            }
        }
    }

    pub(super) fn handle_output(&mut self, piece: &[u8]) {
        self.log.record_output(&self.dir, piece);
        let piece = self.line_end.skip(piece);
        if let ToolReadiness::Starting(scanner, _) = &mut self.readiness {
            if scanner.feed(piece, &mut Vec::new()) {
                self.line_end.expect_after(scanner);
                self.readiness = ToolReadiness::Ready;
                self.was_ready = true;
                self.set_phase(RunnerPhase::Idle);
            }
            return;
        }
        let Some(running) = &mut self.running else {
            return;
        };
        if running.feed_output(piece) {
            self.line_end.expect_after(running.final_scanner());
            let why = match running.interruption.take() {
                Some(ending) => ending.why,
                None => marker_seen_reason(running.has_failed()),
            };
            self.finish_running(why);
        }
    }
}
