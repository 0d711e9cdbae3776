//! What ends a command or the Runner before its time: files in `ctl/`, the lease, signals, deadlines.

use std::time::Instant;

use serde_json::json;

use super::super::dir::{Found, Part};
use super::super::record::now_ms;
use super::super::running::{Ending, Why};
use super::super::terminal::PATIENCE;
use super::{Listens, STARTING, Work, own_marker};
use crate::skillpilot::{
    CONTROL_BYTES, Cancel, CancelPolicy, CommandName, Manner, Phase, Status, Stop, read_cancel,
    read_lease, read_stop,
};

impl Work {
    /// Takes a control file away, so that another one can be put in its place and is not lost.
    pub(super) fn control(&mut self, name: &str) -> Option<Vec<u8>> {
        let taken = match self.dir.take(Part::Ctl, name) {
            Ok(taken) => taken?,
            Err(error) => {
                self.faulty(&format!("ctl/{name}"), &error.to_string());
                return None;
            }
        };
        match self.dir.read(Part::Ctl, &taken, CONTROL_BYTES) {
            Ok(Found::Content(content)) => {
                let _ = self.dir.remove(Part::Ctl, &taken);
                Some(content)
            }
            Ok(Found::Odd(why)) => {
                self.reject((Part::Ctl, &taken), name, why);
                None
            }
            Ok(Found::Nothing) => None,
            Err(error) => {
                self.reject((Part::Ctl, &taken), name, &error.to_string());
                None
            }
        }
    }

    /// Puts a file aside that has this name now and was called otherwise.
    pub(super) fn reject(&mut self, (part, now): (Part, &str), name: &str, why: &str) {
        self.dir.reject(part, now);
        let file = format!("{}/{name}", part.name());
        self.record
            .note(&self.dir, "rejected", json!({ "file": file, "why": why }));
    }

    pub(super) fn stopped(&mut self) {
        let Some(content) = self.control("stop.json") else {
            return;
        };
        match read_stop(&content, Manner::Lenient) {
            Ok(stop) => self.stop_by(stop, "stop.json"),
            Err(why) => self.faulty("ctl/stop.json", &String::from(why)),
        }
    }

    pub(super) fn stop_by(&mut self, stop: Stop, by: &str) {
        self.stop = self.stop.max(Some(stop));
        let mode = match stop {
            Stop::Graceful => "graceful",
            Stop::Force => "force",
        };
        self.record
            .note(&self.dir, "stop", json!({ "mode": mode, "by": by }));
        self.phase(Phase::Stopping);
    }

    pub(super) fn faulty(&mut self, file: &str, why: &str) {
        self.record
            .note(&self.dir, "faulty", json!({ "file": file, "why": why }));
    }

    pub(super) fn cancelled(&mut self) {
        // What it ends has a result to be written; it waits as long as another one does.
        if !self.pay() {
            return;
        }
        let Some(content) = self.control("cancel.json") else {
            return;
        };
        let cancel = match read_cancel(&content, Manner::Lenient) {
            Ok(cancel) => cancel,
            Err(why) => return self.faulty("ctl/cancel.json", &String::from(why)),
        };
        let runs = self.running.as_ref().map(|running| running.name.id.clone());
        let id = match cancel {
            Cancel::Current => runs.clone(),
            Cancel::Command(id) => Some(id),
        };
        self.record.note(
            &self.dir,
            "cancel",
            json!({ "cmd_id": id, "running": runs }),
        );
        let Some(id) = id else {
            return;
        };
        if runs.as_ref() == Some(&id) {
            return self.end_early(None);
        }
        // It may have come with its command, and be seen first.
        for name in self.dir.names(Part::Queue).unwrap_or_default() {
            self.queued(&name);
        }
        let mut waiting = self.queue.iter().filter(|name| name.id == id);
        // One that has a result is over, whatever waits in its name.
        let is_new =
            |name: &&CommandName| matches!(self.dir.has(Part::Result, &name.file()), Ok(false));
        if let Some(name) = waiting.find(is_new).cloned() {
            self.queue.remove(&name);
            if self.claimed(&name) {
                self.answer(&name, Status::Cancelled, "cancelled before it began");
            }
        }
    }

    /// Reads the lease. One that cannot be read is put aside, and what was promised before holds.
    pub(super) fn leased(&mut self) {
        const NAME: &str = "lease.json";
        match self.dir.read(Part::State, NAME, CONTROL_BYTES) {
            Ok(Found::Content(content)) => match read_lease(&content) {
                Ok(expires) => self.lease = Some(expires),
                Err(why) => self.no_lease(&String::from(why)),
            },
            Ok(Found::Odd(why)) => self.no_lease(why),
            Ok(Found::Nothing) | Err(_) => {}
        }
    }

    /// Puts aside what stands where the lease goes, unless it was renewed in this moment.
    fn no_lease(&mut self, why: &str) {
        let Ok(Some(taken)) = self.dir.take(Part::State, "lease.json") else {
            return;
        };
        let again = self.dir.read(Part::State, &taken, CONTROL_BYTES);
        if let Ok(Found::Content(content)) = again
            && let Ok(expires) = read_lease(&content)
        {
            self.lease = Some(expires);
            let _ = self.dir.remove(Part::State, &taken);
            return;
        }
        self.reject((Part::State, &taken), "lease.json", why);
    }

    pub(super) fn lease(&mut self) {
        if self.lease.is_some_and(|expires| expires <= now_ms()) && self.stop != Some(Stop::Force) {
            self.record
                .note(&self.dir, "lease_expired", json!({ "expired": self.lease }));
            self.stop = Some(Stop::Force);
            self.phase(Phase::Stopping);
            self.abort(Status::Cancelled, "lease_expired");
        }
    }

    /// What is over its time.
    pub(super) fn times(&mut self) {
        let now = Instant::now();
        if let Listens::Soon(_, until) = &self.listens
            && *until <= now
        {
            let why = format!("the tool did not listen within {} s", STARTING.as_secs());
            self.lose(&why);
        }
        let Some(running) = &mut self.running else {
            return;
        };
        match &mut running.ending {
            None if running.deadline <= now => self.end_early(Some(Why {
                status: Status::Timeout,
                reason: "timeout".to_owned(),
            })),
            Some(ending) if ending.until <= now => {
                let why = ending.why.clone();
                self.end_tool(true);
                self.finish(why);
            }
            Some(ending) if ending.ask_at.is_some_and(|at| at <= now) => {
                let marker = own_marker("listens");
                let line = self.orders.template.line(&marker);
                ending.asked(marker);
                self.type_in(&format!("\n{line}"));
            }
            _ => {}
        }
    }

    /// Ends the command that runs by its own policy, once; `why`: if nobody asked for it.
    pub(super) fn end_early(&mut self, why: Option<Why>) {
        let Some(running) = self.running.as_mut().filter(|of| of.ending.is_none()) else {
            return;
        };
        let policy = running.command.cancel_policy;
        let why = why.unwrap_or_else(|| Why {
            status: Status::Cancelled,
            reason: match policy {
                CancelPolicy::CtrlC => "ctrl_c",
                CancelPolicy::TerminateTool | CancelPolicy::TerminateSession => "tool_exit",
            }
            .to_owned(),
        });
        match (policy, &mut self.tool) {
            (CancelPolicy::CtrlC, Some(tool)) => {
                running.ending = Some(Ending::new(why, PATIENCE));
                tool.interrupt();
            }
            (CancelPolicy::CtrlC | CancelPolicy::TerminateTool, _) => {
                self.end_tool(true);
                self.finish(why);
            }
            (CancelPolicy::TerminateSession, _) => {
                self.end_tool(false);
                self.finish(why);
                self.stop_by(Stop::Force, "terminate_session");
            }
        }
    }

    /// Ends the command that runs, whatever its policy says.
    pub(super) fn abort(&mut self, status: Status, reason: &str) {
        if self.running.is_some() {
            self.end_tool(true);
            self.finish(Why {
                status,
                reason: reason.to_owned(),
            });
        }
    }

    pub(super) fn signalled(&mut self) {
        while let Ok(Some(signal)) = self.signals.read_signal() {
            self.stop_by(Stop::Force, &format!("signal {}", signal.ssi_signo));
        }
    }
}
