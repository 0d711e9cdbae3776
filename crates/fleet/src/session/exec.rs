//! Commands of clients in the sandbox of the session's agent: recorded before they are started.
//!
//! Must not know how a command is started: its channel does that.

use crate::channel::ExecStart;
use crate::handle::exec::{ExecError, PendingExec};
use crate::messages::ChannelMsg;
use crate::session::outbox::OnDurable;
use crate::session::state::{Phase, SessionState};
use marshal_launch::ExecRequest;
use marshal_model::{Event, UntrustedText};
use marshal_sandbox as sandbox;
use ractor::MessagingErr;

impl SessionState {
    /// Records a command of a client; it is started when the record is durable.
    pub(super) fn handle_exec(&mut self, pending: PendingExec) {
        let request = match self.exec_request(&pending) {
            Ok(request) => request,
            Err(error) => return pending.refuse(error),
        };
        self.agent.execs += 1;
        let terminal = format!("exec-{}", self.agent.execs);
        let words = pending.order.argv.iter();
        self.outbox.push_event(Event::TerminalStarted {
            terminal: terminal.clone(),
            argv: words
                .map(|word| UntrustedText::from(word.as_str()))
                .collect(),
            cwd: request.cwd.as_str().into(),
            by: Some(pending.order.by),
        });
        let start = Box::new(ExecStart {
            terminal,
            request,
            has_terminal: pending.order.terminal.is_some(),
            place: pending.place,
            reply: pending.reply,
        });
        self.outbox.on_durable(OnDurable::StartExec(start));
    }

    /// What is started in the sandbox: with the agent's environment, without its secrets.
    fn exec_request(&self, pending: &PendingExec) -> Result<ExecRequest, ExecError> {
        if self.outbox.is_broken() || matches!(self.phase, Phase::Closing { .. }) {
            return Err(ExecError::Stopping);
        }
        if self.shared.journal.health().borrow().is_read_only() {
            return Err(ExecError::ReadOnly);
        }
        let (Some(prepared), Some(_)) = (&self.workspace.prepared, &self.agent.channel) else {
            return Err(ExecError::NoAgent);
        };
        let config = &self.pool.config;
        let mut env = prepared.dirs().environment(&self.shared, &self.pool);
        env.retain(|(name, _)| !config.env.secrets.contains_key(name));
        let words = pending.order.argv.iter().cloned();
        let argv = match &pending.order.terminal {
            None => words.collect(),
            Some(terminal) => {
                env.retain(|(name, _)| name != "TERM");
                env.push(("TERM".to_owned(), terminal.term.clone()));
                let relay = [
                    sandbox::MARSHAL_INSIDE.to_owned(),
                    "terminal".to_owned(),
                    "--frames".to_owned(),
                    format!("--columns={}", terminal.size.columns),
                    format!("--rows={}", terminal.size.rows),
                    "--".to_owned(),
                ];
                relay.into_iter().chain(words).collect()
            }
        };
        Ok(ExecRequest {
            argv,
            env,
            cwd: prepared.directory_inside().to_owned(),
            limits: sandbox::limits_of(&self.pool.sandbox),
        })
    }

    /// The record is durable: starts the command, unless the child has gone in the meantime.
    pub(super) fn start_durable_exec(&mut self, start: Box<ExecStart>) {
        let refused = match &self.agent.channel {
            None => Some(start),
            Some(channel) => match channel.send_message(ChannelMsg::StartExec(start)) {
                Err(MessagingErr::SendErr(ChannelMsg::StartExec(start))) => Some(start),
                _ => None,
            },
        };
        if let Some(start) = refused {
            let end = start.refuse(ExecError::NoAgent);
            self.outbox.push_event(end);
        }
    }
}
