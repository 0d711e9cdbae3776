//! Handles each of the agent's messages.
//!
//! Owns how events are applied to the state of the channel. The state itself, and what is written,
//! are in the parent module.

use super::message::{
    self, ErrorMessage, Message, PermissionMessage, Ready, SlashResult, StateChanged, TextDelta,
    ToolResult, ToolStart, TurnComplete, TurnStarted,
};
use super::{PROTOCOL, Phase, Scaiflux};
use crate::driver::Protocol as _;
use crate::named_turn::Turn;
use crate::slash::{self, SlashReply};
use crate::turn_end::TurnEnd;
use crate::{Effect, Effects, OUT_OF_STATE, describe_agent_error, lenient, report_bad_line};
use marshal_model::limits;
use marshal_model::{
    AgentClaims, AgentInfo, ErrorOrigin, Event, PermissionRequest, TurnOutcome, UntrustedText,
    Usage,
};

impl Scaiflux {
    pub(super) fn handle_message(&mut self, message: Message<'_>, line: &[u8], out: &mut Effects) {
        match message {
            Message::Ready(ready) => self.ready(&ready, out),
            early if self.channel.phase == Phase::Handshaking => {
                self.handle_early_message(early, out);
            }
            Message::TurnStarted(started) => self.turn_started(started, line, out),
            Message::TextDelta(text) => self.text_delta(text, line, out),
            Message::ToolStart(start) => self.tool_start(start, line, out),
            Message::ToolResult(result) => self.tool_result(result, line, out),
            Message::PermissionRequest(request) => self.permission_request(request, line, out),
            Message::TurnComplete(complete) => self.turn_complete(complete, line, out),
            Message::SlashResult(result) => self.slash_result(result, line, out),
            Message::StateChanged(state) => {
                self.update_state(state, out);
            }
            Message::Error(error) => self.error(error, out),
            Message::Unknown(tag, raw) => out.push(Effect::Event(Event::Unknown {
                tag,
                raw: raw.to_owned(),
            })),
        }
    }

    /// The version gate. Only the integer 1 passes, before anything is written.
    fn ready(&mut self, ready: &Ready<'_>, out: &mut Effects) {
        if self.channel.phase != Phase::Handshaking {
            return self.fail_protocol("the agent sent ready twice".to_owned(), out);
        }
        let theirs = ready.protocol.map_or("none", |raw| raw.get());
        if theirs != PROTOCOL {
            let theirs = UntrustedText::from(theirs).escape_for_display(40);
            return self.fail_version(theirs, out);
        }
        if let Some(fault) = self.mode_guard.check_initial(ready.mode().as_ref()) {
            return self.fail_channel(fault, out);
        }
        self.channel.phase = Phase::Ready;
        out.push(Effect::Ready(AgentInfo {
            protocol: PROTOCOL.to_owned(),
            version: ready.version(),
            session: ready.session_id(),
            model: ready.model(),
            mode: ready.mode(),
            modes: Vec::new(),
            tools: ready.tools(),
            context_window: ready.context_window(),
            // The session was resumed by an argument of the command line: the configuration says
            // whether that is possible.
            cannot_resume: false,
        }));
    }

    /// Updates the model, mode and context; `false` if the agent must end because of it.
    pub(super) fn update_state(&mut self, state: StateChanged, out: &mut Effects) -> bool {
        let state = state_changed(state);
        let fault = match &state {
            Event::StateChanged {
                mode: Some(mode), ..
            } => self.mode_guard.check_change(mode),
            _ => None,
        };
        out.push(Effect::Event(state));
        let is_safe = fault.is_none();
        if let Some(fault) = fault {
            self.fail_channel(fault, out);
        }
        is_safe
    }

    /// Handles an event before `ready`: a fault, but an error's text is reported.
    fn handle_early_message(&mut self, message: Message<'_>, out: &mut Effects) {
        if let Message::Error(error) = message {
            let (event, text) = error_event(error);
            out.push(Effect::Event(event));
            self.fail_protocol(format!("{text}, before it was ready"), out);
        } else {
            self.fail_protocol(
                "the agent sent an event before it was ready".to_owned(),
                out,
            );
        }
    }

    fn turn_started(&mut self, started: TurnStarted<'_>, line: &[u8], out: &mut Effects) {
        if self.turn.state != Turn::Sent {
            return report_bad_line(OUT_OF_STATE, line, out);
        }
        let id = started.turn_id.0.map(std::borrow::Cow::into_owned);
        out.push(Effect::Event(Event::TurnStarted {
            turn: id.clone().map(UntrustedText::new),
        }));
        self.turn.state = Turn::Running(id);
        if self.cancelling && !self.channel.is_shutting_down {
            out.push(Effect::Write(message::interrupt()));
        }
    }

    fn text_delta(&mut self, text: TextDelta<'_>, line: &[u8], out: &mut Effects) {
        if !self.turn.note_activity(text.turn_id.0.as_deref()) {
            return report_bad_line(OUT_OF_STATE, line, out);
        }
        out.push(Effect::Event(Event::Text {
            delta: text.delta.into(),
        }));
    }

    fn tool_start(&mut self, start: ToolStart<'_>, line: &[u8], out: &mut Effects) {
        if !self.turn.note_activity(start.turn_id.0.as_deref()) {
            report_bad_line(OUT_OF_STATE, line, out);
        }
        out.push(Effect::Event(Event::ToolStart {
            id: start.tool_id.unwrap_or_default().into(),
            name: start.name.into(),
            input: lenient::raw_or_null(start.input),
        }));
    }

    fn tool_result(&mut self, result: ToolResult<'_>, line: &[u8], out: &mut Effects) {
        if !self.turn.note_activity(result.turn_id.0.as_deref()) {
            report_bad_line(OUT_OF_STATE, line, out);
        }
        let took = result.call_duration();
        out.push(Effect::Event(Event::ToolResult {
            id: result.tool_id.unwrap_or_default().into(),
            output: result.output.unwrap_or_default().into(),
            is_error: result.is_error.unwrap_or(false),
            took,
        }));
    }

    fn permission_request(
        &mut self,
        request: PermissionMessage<'_>,
        line: &[u8],
        out: &mut Effects,
    ) {
        let id = request.request_id.0.as_ref();
        if self.is_winding_down() {
            return report_bad_line(OUT_OF_STATE, line, out);
        }
        if self.turn.is_none() && !self.slash.is_open() {
            report_bad_line(OUT_OF_STATE, line, out);
            return self.deny_at_once(id, "no turn is running", out);
        }
        let key = match self.open_requests.open(&mut self.ids, id, ()) {
            Ok(key) => key,
            Err(clash) => {
                report_bad_line(clash.as_str(), line, out);
                self.deny_at_once(id, clash.describe(), out);
                return self.count_rejection(clash, out);
            }
        };
        let details = request.details.unwrap_or_default();
        out.push(Effect::PermissionRequest(PermissionRequest {
            key,
            tool_id: None,
            tool: request.tool.into(),
            input: lenient::raw_or_null(details.tool_input),
            claims: AgentClaims {
                active_mode: request.active_mode.map(UntrustedText::new),
                required_mode: request.required_mode.map(UntrustedText::new),
                reason: details.reason.map(UntrustedText::new),
                title: None,
                kind: None,
                has_no_allow_option: false,
            },
        }));
    }

    fn turn_complete(&mut self, complete: TurnComplete<'_>, line: &[u8], out: &mut Effects) {
        let id = complete.turn_id.0.as_deref();
        let current = self.turn.is_current(id);
        if !current && !self.turn.take_late_end(id) {
            return report_bad_line(OUT_OF_STATE, line, out);
        }
        let (mutations, beyond) = complete.mutations();
        out.extend(mutations.into_iter().map(|(tool, path)| {
            Effect::Event(Event::FileUpdated {
                tool,
                path,
                sha256: None,
                version: None,
            })
        }));
        if !current {
            return;
        }
        let most = limits::TURN_MUTATIONS;
        let end = TurnEnd {
            outcome: outcome(complete.stop_reason.as_deref()),
            stop_reason: complete.stop_reason.map(UntrustedText::new),
            usage: Some(Usage {
                input: complete.input_tokens.0,
                output: complete.output_tokens.0,
            }),
            detail: (beyond > 0).then(|| {
                format!("only the first {most} changed files are listed; {beyond} more are not")
            }),
        };
        self.end_turn(end, complete.turn_id.0.as_deref(), out);
    }

    fn slash_result(&mut self, result: SlashResult<'_>, line: &[u8], out: &mut Effects) {
        let state = result.state_change();
        let output = self.slash.finish();
        // An unrequested one must not make an exit look expected, but its mode counts.
        if output == SlashReply::Unsolicited {
            report_bad_line(OUT_OF_STATE, line, out);
            if let Some(state) = state {
                self.update_state(state, out);
            }
            return;
        }
        if self.turn.is_none() {
            self.open_requests.withdraw_all(out);
        }
        let clear_session = result.clear_session.unwrap_or(false);
        let exit = result.exit.unwrap_or(false);
        let text = UntrustedText::from(result.text.unwrap_or_default());
        let end = slash::answer_effect(true, &text);
        out.push(Effect::Event(Event::SlashResult {
            command: result.command.unwrap_or_default().into(),
            text,
            data: result.data.map(ToOwned::to_owned),
            clear_session,
            exit,
        }));
        if clear_session {
            out.push(Effect::SessionCleared);
        }
        if state.is_some_and(|state| !self.update_state(state, out)) {
            return;
        }
        if output == SlashReply::Expected {
            out.push(end);
        }
        if exit {
            self.channel.is_shutting_down = true;
            out.push(Effect::ExitExpected);
        }
    }

    fn error(&mut self, error: ErrorMessage<'_>, out: &mut Effects) {
        let ends = match (&self.turn.state, &error.turn_id.0) {
            (Turn::None, _) | (Turn::Running(_), None) => false,
            (Turn::Sent, None) => true,
            (_, Some(_)) => self.turn.is_current(error.turn_id.0.as_deref()),
        };
        let is_of_slash = self.turn.is_none()
            && error.turn_id.0.is_none()
            && self.slash.finish() == SlashReply::Expected;
        let turn = error.turn_id.0.as_deref().map(str::to_owned);
        let words = error.message.clone().unwrap_or_default();
        let (event, text) = error_event(error);
        out.push(Effect::Event(event));
        if is_of_slash {
            out.push(slash::answer_effect(false, &words.into()));
        }
        if ends {
            self.end_turn(TurnEnd::failure(text), turn.as_deref(), out);
            self.turn.expect_late_end();
        }
    }
}

/// The turn's outcome for the agent's stop reason. The protocol's page names `end_turn` and
/// `interrupted`. The others are those of `--max-tokens` and `--max-iterations`, and of ACP.
fn outcome(stop_reason: Option<&str>) -> TurnOutcome {
    match stop_reason {
        Some("interrupted" | "cancelled") => TurnOutcome::Cancelled,
        Some("max_tokens" | "max_turn_requests" | "max_iterations") => TurnOutcome::Limited,
        Some("refusal") => TurnOutcome::Refused,
        Some("error") => TurnOutcome::Failed,
        Some(_) | None => TurnOutcome::Completed,
    }
}

fn state_changed(state: StateChanged) -> Event {
    Event::StateChanged {
        model: state.model.map(UntrustedText::new),
        mode: state.mode.map(UntrustedText::new),
        context_pct: state.context_pct,
        context_window: state.context_window.map(|count| count.0),
    }
}

/// An error as an event, and as a sentence of ours.
fn error_event(error: ErrorMessage<'_>) -> (Event, String) {
    let code = UntrustedText::new(error.code.unwrap_or_default());
    let message = UntrustedText::new(error.message.unwrap_or_default());
    let origin = error
        .origin
        .and_then(|word| ErrorOrigin::parse(&word))
        .unwrap_or(ErrorOrigin::Unknown);
    describe_agent_error(code, message, origin)
}
