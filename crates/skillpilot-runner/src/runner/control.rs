//! Early ends of a command or of the Runner: files in `ctl/`, the lease, signals, deadlines.

use std::time::Instant;

use nix::sys::signal::Signal;
use serde_json::json;

use super::super::dir::{ReadOutcome, Subdirectory};
use super::super::error::ToolError;
use super::super::lease::Lease;
use super::super::process_tree;
use super::super::record::now_ms;
use super::super::running::{EndReason, Interruption};
use super::super::terminal::EXIT_TIMEOUT;
use super::{Runner, ToolReadiness, own_marker};
use marshal_wire::skillpilot::{
    CONTROL_BYTES, CancelPolicy, CancelScope, CommandName, CommandStatus, RunnerPhase, StopMode,
    Strictness, read_cancel, read_lease, read_stop,
};

impl Runner {
    /// Moves a control file away before reading it, so that a new one is not lost.
    pub(super) fn take_control_file(&mut self, name: &str) -> Option<Vec<u8>> {
        let file = match self.dir.take_file(Subdirectory::Ctl, name) {
            Ok(file) => file?,
            Err(error) => {
                self.log_faulty_file(&format!("ctl/{name}"), &error.to_string());
                return None;
            }
        };
        match self.dir.read(Subdirectory::Ctl, &file, CONTROL_BYTES) {
            Ok(ReadOutcome::Regular(content)) => {
                let _ = self.dir.remove(Subdirectory::Ctl, &file);
                Some(content)
            }
            Ok(ReadOutcome::Irregular(why)) => {
                self.reject_file((Subdirectory::Ctl, &file), name, why);
                None
            }
            Ok(ReadOutcome::Missing) => None,
            Err(error) => {
                self.reject_file((Subdirectory::Ctl, &file), name, &error.to_string());
                None
            }
        }
    }

    /// Quarantines a file that was moved to `now` and was called `name` before.
    pub(super) fn reject_file(&mut self, (part, now): (Subdirectory, &str), name: &str, why: &str) {
        self.dir.reject(part, now);
        let file = format!("{}/{name}", part.name());
        self.log
            .log_event(&self.dir, "rejected", json!({ "file": file, "why": why }));
    }

    pub(super) fn handle_stop_file(&mut self) {
        let Some(content) = self.take_control_file("stop.json") else {
            return;
        };
        match read_stop(&content, Strictness::Lenient) {
            Ok(stop) => self.begin_stop(stop, "stop.json"),
            Err(why) => self.log_faulty_file("ctl/stop.json", &String::from(why)),
        }
    }

    pub(super) fn begin_stop(&mut self, stop: StopMode, by: &str) {
        self.stop = self.stop.max(Some(stop));
        let mode = match stop {
            StopMode::Graceful => "graceful",
            StopMode::Force => "force",
        };
        self.log
            .log_event(&self.dir, "stop", json!({ "mode": mode, "by": by }));
        self.set_phase(RunnerPhase::Stopping);
    }

    pub(super) fn log_faulty_file(&mut self, file: &str, why: &str) {
        self.log
            .log_event(&self.dir, "faulty", json!({ "file": file, "why": why }));
    }

    pub(super) fn handle_cancel_file(&mut self) {
        // A cancelled command needs a result. While another result is pending, the file waits.
        if !self.write_results() {
            return;
        }
        let Some(content) = self.take_control_file("cancel.json") else {
            return;
        };
        let cancel = match read_cancel(&content, Strictness::Lenient) {
            Ok(cancel) => cancel,
            Err(why) => return self.log_faulty_file("ctl/cancel.json", &String::from(why)),
        };
        let runs = self.running.as_ref().map(|running| running.name.id.clone());
        let id = match cancel {
            CancelScope::Current => runs.clone(),
            CancelScope::Command(id) => Some(id),
        };
        self.log.log_event(
            &self.dir,
            "cancel",
            json!({ "cmd_id": id, "running": runs }),
        );
        let Some(id) = id else {
            return;
        };
        if runs.as_ref() == Some(&id) {
            return self.cancel_running(None);
        }
        // The cancel may arrive with its command and be seen first.
        self.scan_queue();
        let mut waiting = self.queue.iter().filter(|name| name.id == id);
        // A command with a result has ended, even if a file of its name waits.
        let is_new = |name: &&CommandName| {
            matches!(
                self.dir.has(Subdirectory::Result, &name.file_name()),
                Ok(false)
            )
        };
        if let Some(name) = waiting.find(is_new).cloned() {
            self.queue.remove(&name);
            if self.claim(&name) {
                self.answer_unrun(&name, CommandStatus::Cancelled, "cancelled before it began");
            }
        }
    }

    /// Reads the lease. An unreadable one is quarantined, and the earlier lease stays valid.
    pub(super) fn handle_lease_file(&mut self) {
        const NAME: &str = "lease.json";
        match self.dir.read(Subdirectory::State, NAME, CONTROL_BYTES) {
            Ok(ReadOutcome::Regular(content)) => match read_lease(&content) {
                Ok(expires) => self.update_lease(expires),
                Err(why) => self.reject_lease(&String::from(why)),
            },
            Ok(ReadOutcome::Irregular(why)) => self.reject_lease(why),
            Ok(ReadOutcome::Missing) | Err(_) => {}
        }
    }

    fn update_lease(&mut self, expires: i64) {
        self.lease = Some(Lease::update(self.lease, expires, now_ms(), Instant::now()));
    }

    /// Quarantines an invalid lease file, unless it has been renewed meanwhile.
    fn reject_lease(&mut self, why: &str) {
        let Ok(Some(file)) = self.dir.take_file(Subdirectory::State, "lease.json") else {
            return;
        };
        let again = self.dir.read(Subdirectory::State, &file, CONTROL_BYTES);
        if let Ok(ReadOutcome::Regular(content)) = again
            && let Ok(expires) = read_lease(&content)
        {
            self.update_lease(expires);
            let _ = self.dir.remove(Subdirectory::State, &file);
            return;
        }
        self.reject_file((Subdirectory::State, &file), "lease.json", why);
    }

    pub(super) fn check_lease(&mut self) {
        let expired = self.lease.filter(|lease| lease.deadline <= Instant::now());
        if let Some(lease) = expired.filter(|_| self.stop != Some(StopMode::Force)) {
            self.log.log_event(
                &self.dir,
                "lease_expired",
                json!({ "expired": lease.expires_ms }),
            );
            self.stop = Some(StopMode::Force);
            self.set_phase(RunnerPhase::Stopping);
            self.abort_running(CommandStatus::Cancelled, "lease_expired");
        }
    }

    /// Handles expired deadlines of the tool and of the running command.
    pub(super) fn check_deadlines(&mut self) {
        let now = Instant::now();
        if let ToolReadiness::Starting(_, until) = &self.readiness
            && *until <= now
        {
            self.fail_tool(ToolError::Silent);
        }
        let Some(running) = &mut self.running else {
            return;
        };
        match &mut running.interruption {
            None if running.deadline <= now => self.cancel_running(Some(EndReason {
                status: CommandStatus::Timeout,
                reason: "timeout".to_owned(),
            })),
            Some(ending) if ending.until <= now => {
                let why = ending.why.clone();
                self.end_tool(true);
                self.finish_running(why);
            }
            Some(ending) if ending.probe_at.is_some_and(|at| at <= now) => {
                let marker = own_marker("listens");
                let line = self.config.template.render(&marker);
                ending.start_probe(marker);
                self.type_in(&format!("\n{line}"));
            }
            _ => {}
        }
    }

    /// Ends the running command by its own cancel policy, once. `why`: the reason, if no cancel was
    /// requested.
    ///
    /// A command that is done, but whose marker was not read yet, ends as done.
    pub(super) fn cancel_running(&mut self, why: Option<EndReason>) {
        self.service_terminal();
        let Some(running) = self
            .running
            .as_mut()
            .filter(|item| item.interruption.is_none())
        else {
            return;
        };
        let policy = match running.command.cancel_policy {
            // The tool may have read further lines ahead, and would run them after the interrupt.
            CancelPolicy::CtrlC if !running.is_one_line => CancelPolicy::TerminateTool,
            policy => policy,
        };
        let why = why.unwrap_or_else(|| EndReason {
            status: CommandStatus::Cancelled,
            reason: match policy {
                CancelPolicy::CtrlC => "ctrl_c",
                CancelPolicy::TerminateTool | CancelPolicy::TerminateSession => "tool_exit",
            }
            .to_owned(),
        });
        match (policy, &mut self.tool) {
            (CancelPolicy::CtrlC, Some(tool)) => {
                running.interruption = Some(Interruption::new(why, EXIT_TIMEOUT));
                tool.interrupt();
            }
            (CancelPolicy::CtrlC | CancelPolicy::TerminateTool, _) => {
                self.end_tool(true);
                self.finish_running(why);
            }
            (CancelPolicy::TerminateSession, _) => {
                self.end_tool(false);
                self.finish_running(why);
                self.begin_stop(StopMode::Force, "terminate_session");
            }
        }
    }

    /// Ends the running command and the tool, whatever the command's policy is.
    pub(super) fn abort_running(&mut self, status: CommandStatus, reason: &str) {
        if self.running.is_some() {
            self.service_terminal();
        }
        if self.running.is_some() {
            self.end_tool(true);
            self.finish_running(EndReason {
                status,
                reason: reason.to_owned(),
            });
        }
    }

    pub(super) fn handle_signals(&mut self) {
        while let Ok(Some(signal)) = self.signals.read_signal() {
            if signal.ssi_signo == Signal::SIGCHLD as u32 {
                match &self.tool {
                    Some(tool) => tool.reap_orphans(),
                    None => process_tree::reap_children(None),
                }
                continue;
            }
            self.begin_stop(StopMode::Force, &format!("signal {}", signal.ssi_signo));
        }
    }
}
