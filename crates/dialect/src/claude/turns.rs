//! Handles each message of a turn.
//!
//! Must not know the agent's requests.

use std::time::{Duration, Instant};

use super::blocks::Block;
use super::message::{Lifecycle, ModelMessage, StreamDelta, StreamEvent, System, TurnResult};
use super::stream_dedup::Kind;
use super::{AgentSession, Claude, Phase, Turn};
use crate::driver::Protocol as _;
use crate::turn_end::TurnEnd;
use crate::{
    ChannelError, Effect, Effects, OUT_OF_STATE, lenient, report_bad_line, report_unknown,
};
use marshal_model::{Cost, ErrorOrigin, Event, TurnOutcome, UntrustedText};
/// How long a turn's result may take after the agent reported that the turn's prompt has ended.
const RESULT_WAIT: Duration = Duration::from_secs(10);
/// The currency of the agent's costs.
const CURRENCY: &str = "USD";

/// Kinds of system messages without content that is stored.
const SYSTEM_IGNORED: [&str; 8] = [
    "status",
    "background_tasks_changed",
    "files_persisted",
    "hook_started",
    "hook_progress",
    "hook_response",
    "session_state_changed",
    "thinking_tokens",
];

impl Claude {
    /// Records that the running turn has output; `false` if none runs.
    pub(super) fn note_turn_activity(&mut self, out: &mut Effects) -> bool {
        match self.turn {
            Turn::Sent => {
                self.turn = Turn::Running;
                out.push(Effect::Event(Event::TurnStarted { turn: None }));
                true
            }
            Turn::Running => true,
            Turn::None | Turn::Queued => false,
        }
    }

    /// The agent reports the progress of a prompt of ours.
    pub(super) fn lifecycle(&mut self, prompt: &Lifecycle<'_>, out: &mut Effects) {
        if self.prompt_id().as_deref() != Some(prompt.command_uuid.0.as_ref()) {
            return;
        }
        let is_queued = self.turn == Turn::Queued;
        match prompt.state.0.as_ref() {
            "queued" if self.turn == Turn::Sent => self.turn = Turn::Queued,
            "started" => self.on_prompt_accepted(out),
            "cancelled" if is_queued => self.end_unstarted_turn(TurnOutcome::Cancelled, out),
            "completed" if is_queued => self.end_unstarted_turn(TurnOutcome::Completed, out),
            // The result comes before this report. A missing result is not awaited for long.
            "cancelled" => self.schedule_turn_end(TurnOutcome::Cancelled),
            "completed" => self.schedule_turn_end(TurnOutcome::Failed),
            _ => {}
        }
    }

    /// A queued prompt has ended: no turn of its own will have a result.
    fn end_unstarted_turn(&mut self, outcome: TurnOutcome, out: &mut Effects) {
        let detail = match outcome {
            TurnOutcome::Completed => "the agent handled the prompt in another turn",
            _ => "the agent dropped the prompt before its turn began",
        };
        let end = TurnEnd {
            outcome,
            ..TurnEnd::failure(detail.to_owned())
        };
        self.end_turn(end, out);
    }

    fn schedule_turn_end(&mut self, outcome: TurnOutcome) {
        let at = self
            .channel
            .now
            .and_then(|now| now.checked_add(RESULT_WAIT))
            .filter(|_| self.turn != Turn::None && self.pending_end.is_none());
        self.pending_end = at.map(|at| (at, outcome)).or(self.pending_end);
    }

    /// When the result of an ended turn must have arrived.
    pub(super) fn result_due(&self) -> Option<Instant> {
        self.pending_end
            .map(|(at, _)| at)
            .filter(|_| self.channel.is_ready())
    }

    pub(super) fn end_turn_without_result(&mut self, out: &mut Effects) {
        let Some((_, outcome)) = self.pending_end.take() else {
            return;
        };
        let detail = "the agent reported that the turn ended, but sent no result";
        let end = TurnEnd {
            outcome,
            ..TurnEnd::failure(detail.to_owned())
        };
        self.end_turn(end, out);
    }

    /// The agent accepted our prompt.
    fn on_prompt_accepted(&mut self, out: &mut Effects) {
        if self.turn != Turn::Queued {
            self.note_turn_activity(out);
            return;
        }
        self.turn = Turn::Sent;
        self.note_turn_activity(out);
        if self.cancelling && !self.channel.is_shutting_down {
            // The interrupt was for what ran before the prompt.
            self.write_interrupt(out);
        }
    }

    pub(super) fn system(&mut self, system: &System<'_>, object: &str, out: &mut Effects) {
        if let Some(mode) = system.mode() {
            self.update_mode(mode, out);
            if self.channel.is_closed() {
                return;
            }
        }
        match system.subtype() {
            "init" => self.on_init(system, out),
            "compact_boundary" => out.push(Effect::Event(Event::Compaction {
                id: system.uuid().unwrap_or_default(),
                status: Some("completed".into()),
                error: None,
            })),
            known if SYSTEM_IGNORED.contains(&known) || known.starts_with("task_") => {}
            other => report_unknown(&format!("system/{other}"), object, out),
        }
    }

    /// The message with which the agent begins each turn.
    fn on_init(&mut self, system: &System<'_>, out: &mut Effects) {
        if self.channel.phase == Phase::Handshaking {
            return;
        }
        if let Some(session) = system.session()
            && !self.check_session(session, out)
        {
            return;
        }
        self.note_turn_activity(out);
        if let Some(model) = system.model() {
            self.update_model(model, out);
        }
    }

    /// Checks the session id that the agent reports; `false` if the channel ends because of it.
    fn check_session(&mut self, theirs: UntrustedText, out: &mut Effects) -> bool {
        let is_other = self.session.id.as_ref().is_some_and(|id| *id != theirs);
        if is_other && self.opening.resume.is_some() && !self.session.is_confirmed {
            let why = format!(
                "it resumed another session, {}",
                theirs.escape_for_display(80)
            );
            self.fail_channel(ChannelError::NotResumed(why), out);
            return false;
        }
        if is_other {
            out.push(Effect::SessionCleared);
        }
        self.session = AgentSession {
            id: Some(theirs),
            is_confirmed: true,
        };
        true
    }

    /// A piece of a message that the model is writing.
    pub(super) fn handle_stream_event(
        &mut self,
        piece: &StreamEvent<'_>,
        line: &[u8],
        out: &mut Effects,
    ) {
        match piece.read() {
            Some(streamed) => self.handle_stream_delta(streamed, line, out),
            None => report_bad_line("bad_shape", line, out),
        }
    }

    /// Handles a piece that was read.
    pub(super) fn handle_stream_delta(
        &mut self,
        streamed: StreamDelta,
        line: &[u8],
        out: &mut Effects,
    ) {
        let (kind, delta) = match streamed {
            StreamDelta::Message(id) => return self.streamed_blocks.begin(id),
            StreamDelta::Block => return self.streamed_blocks.block(),
            StreamDelta::Ignored => return,
            StreamDelta::Text(delta) => (Kind::Text, delta),
            StreamDelta::Thought(delta) => (Kind::Thought, delta),
        };
        if !self.note_turn_activity(out) {
            return report_bad_line(OUT_OF_STATE, line, out);
        }
        self.streamed_blocks.record_delta(kind, &delta);
        push_delta(kind, delta, out);
    }

    /// A whole message of the model.
    pub(super) fn assistant(
        &mut self,
        model_message: &ModelMessage<'_>,
        line: &[u8],
        out: &mut Effects,
    ) {
        let Some(content) = model_message.content() else {
            return report_bad_line("bad_shape", line, out);
        };
        let is_ours = self.note_turn_activity(out);
        let is_of_helper = model_message.is_from_subagent();
        if let Some(context) = content.context().filter(|_| is_ours && !is_of_helper) {
            self.context = context;
        }
        let id = content.id();
        let (blocks, beyond) = content.blocks();
        let mut is_reported = is_ours;
        // Only an error is reported with its text.
        let error = model_message.error();
        let mut problem = None;
        for block in blocks {
            let (kind, text) = match block {
                Block::Text(text) => (Kind::Text, text),
                Block::Thinking(text) => (Kind::Thought, text),
                Block::Call { id, name, input } => {
                    if !is_ours {
                        report_bad_line(OUT_OF_STATE, line, out);
                    }
                    is_reported = true;
                    let input = lenient::raw_or_null(input);
                    out.push(Effect::Event(Event::ToolStart { id, name, input }));
                    continue;
                }
                Block::Result {
                    id,
                    output,
                    is_error,
                } => {
                    out.push(Effect::Event(tool_result(id, output, is_error)));
                    continue;
                }
                Block::Other(tag, raw) => {
                    let raw = raw.to_owned();
                    out.push(Effect::Event(Event::Unknown { tag, raw }));
                    continue;
                }
            };
            if !is_ours {
                continue;
            }
            if kind == Kind::Text && error.is_some() {
                problem.get_or_insert_with(|| text.clone());
            }
            if is_of_helper {
                push_delta(Kind::Thought, text, out);
            } else {
                push_delta(
                    kind,
                    self.streamed_blocks.rest(id.as_ref(), kind, text),
                    out,
                );
            }
        }
        if !is_reported {
            report_bad_line(OUT_OF_STATE, line, out);
        }
        if beyond > 0 {
            report_bad_line("bad_shape", line, out);
        }
        if let Some(code) = error {
            out.push(Effect::Event(Event::AgentError {
                code,
                message: problem.unwrap_or_default(),
                origin: ErrorOrigin::Remote,
            }));
        }
    }

    /// A message to the model: tool results, and our prompts again.
    pub(super) fn user(&mut self, message: &ModelMessage<'_>, line: &[u8], out: &mut Effects) {
        if let Some(id) = message.replayed_prompt_id() {
            if self.prompt_id().as_deref() == Some(id.raw()) {
                self.on_prompt_accepted(out);
            }
            return;
        }
        let Some(content) = message.content() else {
            return report_bad_line("bad_shape", line, out);
        };
        let is_ours = self.note_turn_activity(out);
        let (blocks, beyond) = content.blocks();
        for block in blocks {
            if let Block::Result {
                id,
                output,
                is_error,
            } = block
            {
                if !is_ours {
                    report_bad_line(OUT_OF_STATE, line, out);
                }
                out.push(Effect::Event(tool_result(id, output, is_error)));
            }
        }
        if beyond > 0 {
            report_bad_line("bad_shape", line, out);
        }
    }

    /// The end of a turn.
    pub(super) fn result(&mut self, result: &TurnResult<'_>, line: &[u8], out: &mut Effects) {
        if !self.note_turn_activity(out) {
            return report_bad_line(OUT_OF_STATE, line, out);
        }
        let cost = result.cost();
        if let Some(size) = result.window() {
            out.push(Effect::Event(Event::ContextUsed {
                used: self.context,
                size,
                cost: cost.map(|amount| Cost {
                    amount,
                    currency: CURRENCY.into(),
                }),
            }));
        }
        let subtype = result.subtype().unwrap_or_default();
        let is_error = result.is_error() || subtype.raw() != "success";
        let stop_reason = if is_error && subtype.raw() != "success" {
            Some(subtype.clone()).filter(|word| !word.is_empty())
        } else {
            result.stop_reason()
        };
        let outcome = outcome(subtype.raw(), is_error, stop_reason.as_ref());
        let text = result.error_text().filter(|_| is_error);
        let detail = text.as_ref().map(|text| {
            format!(
                "the agent ended the turn with an error: {}",
                text.escape_for_display(300)
            )
        });
        if let (Some(message), TurnOutcome::Failed, false) = (text, outcome, self.cancelling) {
            // Where the provider failed, the turn was still a success.
            let code = match subtype.raw() {
                "success" => "api_error".into(),
                _ => subtype,
            };
            out.push(Effect::Event(Event::AgentError {
                code,
                message,
                origin: ErrorOrigin::Unknown,
            }));
        }
        let end = TurnEnd {
            outcome,
            stop_reason,
            usage: Some(result.usage()),
            detail,
        };
        self.end_turn(end, out);
    }
}

fn outcome(subtype: &str, is_error: bool, stop_reason: Option<&UntrustedText>) -> TurnOutcome {
    match (subtype, stop_reason.map(UntrustedText::raw)) {
        ("error_max_turns" | "error_max_budget_usd", _) => TurnOutcome::Limited,
        _ if is_error => TurnOutcome::Failed,
        (_, Some("refusal")) => TurnOutcome::Refused,
        (_, Some("max_tokens" | "model_context_window_exceeded")) => TurnOutcome::Limited,
        _ => TurnOutcome::Completed,
    }
}

fn tool_result(id: UntrustedText, output: UntrustedText, is_error: bool) -> Event {
    Event::ToolResult {
        id,
        output,
        is_error,
        took: None,
    }
}

fn push_delta(kind: Kind, delta: UntrustedText, out: &mut Effects) {
    if delta.is_empty() {
        return;
    }
    out.push(Effect::Event(match kind {
        Kind::Text => Event::Text { delta },
        Kind::Thought => Event::Thought { delta },
    }));
}
