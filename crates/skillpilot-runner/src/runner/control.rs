//! What ends a command or the Runner before its time: files in `ctl/`, the lease, signals, deadlines.

use std::time::Instant;

use nix::sys::signal::Signal;
use serde_json::json;

use super::super::dir::{ReadOutcome, Subdirectory};
use super::super::lease::Lease;
use super::super::process_tree;
use super::super::record::now_ms;
use super::super::running::{EndReason, Interruption};
use super::super::terminal::EXIT_TIMEOUT;
use super::{Runner, START_TIMEOUT, ToolReadiness, own_marker};
use marshal_wire::skillpilot::{
    CONTROL_BYTES, CancelPolicy, CancelScope, CommandName, CommandStatus, RunnerPhase, StopMode,
    Strictness, read_cancel, read_lease, read_stop,
};

impl Runner {
    /// Takes a control file away, so that another one can be put in its place and is not lost.
    pub(super) fn take_control_file(&mut self, name: &str) -> Option<Vec<u8>> {
        let taken = match self.dir.take_file(Subdirectory::Ctl, name) {
            Ok(taken) => taken?,
            Err(error) => {
                self.log_faulty_file(&format!("ctl/{name}"), &error.to_string());
                return None;
            }
        };
        match self.dir.read(Subdirectory::Ctl, &taken, CONTROL_BYTES) {
            Ok(ReadOutcome::Content(content)) => {
                let _ = self.dir.remove(Subdirectory::Ctl, &taken);
                Some(content)
            }
            Ok(ReadOutcome::Invalid(why)) => {
                self.reject_file((Subdirectory::Ctl, &taken), name, why);
                None
            }
            Ok(ReadOutcome::Missing) => None,
            Err(error) => {
                self.reject_file((Subdirectory::Ctl, &taken), name, &error.to_string());
                None
            }
        }
    }

    /// Puts a file aside that has this name now and was called otherwise.
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
        // What it ends has a result to be written; it waits as long as another one does.
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
        // It may have come with its command, and be seen first.
        self.scan_queue();
        let mut waiting = self.queue.iter().filter(|name| name.id == id);
        // One that has a result is over, whatever waits in its name.
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

    /// Reads the lease. One that cannot be read is put aside, and what was promised before holds.
    pub(super) fn handle_lease_file(&mut self) {
        const NAME: &str = "lease.json";
        match self.dir.read(Subdirectory::State, NAME, CONTROL_BYTES) {
            Ok(ReadOutcome::Content(content)) => match read_lease(&content) {
                Ok(expires) => self.update_lease(expires),
                Err(why) => self.reject_lease(&String::from(why)),
            },
            Ok(ReadOutcome::Invalid(why)) => self.reject_lease(why),
            Ok(ReadOutcome::Missing) | Err(_) => {}
        }
    }

    fn update_lease(&mut self, expires: i64) {
        self.lease = Some(Lease::update(self.lease, expires, now_ms(), Instant::now()));
    }

    /// Puts aside what stands where the lease goes, unless it was renewed in this moment.
    fn reject_lease(&mut self, why: &str) {
        let Ok(Some(taken)) = self.dir.take_file(Subdirectory::State, "lease.json") else {
            return;
        };
        let again = self.dir.read(Subdirectory::State, &taken, CONTROL_BYTES);
        if let Ok(ReadOutcome::Content(content)) = again
            && let Ok(expires) = read_lease(&content)
        {
            self.update_lease(expires);
            let _ = self.dir.remove(Subdirectory::State, &taken);
            return;
        }
        self.reject_file((Subdirectory::State, &taken), "lease.json", why);
    }

    pub(super) fn check_lease(&mut self) {
        let over = self.lease.filter(|lease| lease.deadline <= Instant::now());
        if let Some(lease) = over.filter(|_| self.stop != Some(StopMode::Force)) {
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

    /// What is over its time.
    pub(super) fn check_deadlines(&mut self) {
        let now = Instant::now();
        if let ToolReadiness::Starting(_, until) = &self.readiness
            && *until <= now
        {
            let why = format!(
                "the tool did not listen within {} s",
                START_TIMEOUT.as_secs()
            );
            self.fail_tool(&why);
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

    /// Ends the command that runs by its own policy, once; `why`: if nobody asked for it.
    ///
    /// A command that is done already, though that was not read yet, ends as done.
    pub(super) fn cancel_running(&mut self, why: Option<EndReason>) {
        self.service_terminal();
        let Some(running) = self.running.as_mut().filter(|of| of.interruption.is_none()) else {
            return;
        };
        let policy = match running.command.cancel_policy {
            // What it read ahead would be run after the interrupt.
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

    /// Ends the command that runs, whatever its policy says.
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
