//! Commands of clients of the supervisor, in the sandbox of this child.
//!
//! The caller owns a running command. The channel only has it started, and reports its end. Nothing
//! here enters a sandbox: the sandbox's first process starts the command. Must not know who runs it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::state::ChannelState;
use crate::handle::exec::{ExecError, ExecPlace, ExecRecord, ExecReply, SlotExec};
use crate::messages::{ChannelEvent, ChannelRef};
use marshal_launch::ExecRequest;
use marshal_model::{Event, ExitStatus};

/// A command whose record is durable.
#[derive(Debug)]
pub(crate) struct ExecStart {
    /// Its id.
    pub(crate) terminal: String,
    pub(crate) request: ExecRequest,
    pub(crate) has_terminal: bool,
    pub(crate) place: ExecPlace,
    pub(crate) reply: ExecReply,
}

impl ExecStart {
    /// Answers that it does not run; returns the event of its end.
    pub(crate) fn refuse(self, error: ExecError) -> Event {
        let _ = self.reply.send(Err(error));
        end_event(self.terminal, None, 0)
    }
}

fn end_event(terminal: String, status: Option<ExitStatus>, bytes: u64) -> Event {
    Event::TerminalEnded {
        terminal,
        status,
        written_bytes: bytes,
        // The events have none of them.
        omitted_bytes: bytes,
    }
}

impl ChannelState {
    pub(super) fn start_exec(&mut self, start: ExecStart, myself: &ChannelRef) {
        let is_ending = self.ladder.has_begun() || self.ended.is_some();
        let entry = self.sandbox_entry.clone().filter(|_| !is_ending);
        let Some(entry) = entry else {
            let end = start.refuse(ExecError::NotNow);
            self.send(vec![ChannelEvent::Event(end)], None);
            return;
        };
        let written = Arc::new(AtomicU64::new(0));
        self.execs
            .insert(start.terminal.clone(), Arc::clone(&written));
        let session = self.session_id.clone();
        let record = ExecRecord {
            terminal: start.terminal,
            to: myself.clone(),
            written,
            status: None,
        };
        let (place, has_terminal) = (start.place, start.has_terminal);
        tokio::spawn(async move {
            let started = entry.run_attached(start.request).await;
            let started = started
                .map(|running| SlotExec::new(session, has_terminal, running, record, place))
                .map_err(|error| ExecError::Failed(error.to_string()));
            // If nobody waits for it any more, dropping it ends the command.
            let _ = start.reply.send(started);
        });
    }

    /// Reports the end of a command, once.
    pub(super) fn exec_ended(&mut self, terminal: &str, status: Option<ExitStatus>) {
        if let Some((terminal, written)) = self.execs.remove_entry(terminal) {
            let end = end_event(terminal, status, written.load(Ordering::Relaxed));
            self.send(vec![ChannelEvent::Event(end)], None);
        }
    }
}

/// The ends of commands that ended with the child.
pub(super) fn end_execs(execs: BTreeMap<String, Arc<AtomicU64>>) -> Vec<ChannelEvent> {
    let ends = execs.into_iter().map(|(terminal, written)| {
        let end = end_event(terminal, None, written.load(Ordering::Relaxed));
        ChannelEvent::Event(end)
    });
    ends.collect()
}
