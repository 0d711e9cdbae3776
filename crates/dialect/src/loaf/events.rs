//! Handles each of the agent's events.
//!
//! Owns how events are applied to the state of the channel. What we write is in `turn` and
//! `handshake`.

use serde_json::value::RawValue;

use super::Loaf;
use super::calls::ToolCalls;
use super::message::{self, Chunk, EventScope, Payload};
use crate::driver::Protocol as _;
use crate::lenient::{Count, parse, parse_object, parse_string};
use crate::turn_end::TurnEnd;
use crate::{Effect, Effects, OUT_OF_STATE, report_bad_line, report_unknown, state_changed};
use marshal_model::{ErrorOrigin, Event, TurnOutcome, UntrustedText};
use marshal_wire::json::BadFrame;

impl Loaf {
    pub(super) fn handle_notification(
        &mut self,
        method: &str,
        params: Option<&RawValue>,
        object: &str,
        out: &mut Effects,
    ) {
        if method != "event" {
            // The protocol's own level and extensions must be ignored.
            if !method.starts_with(['_', '$']) {
                report_unknown(method, object, out);
            }
            return;
        }
        match params.and_then(parse_object::<message::EventParams<'_>>) {
            Some(event) => match event.payload() {
                Some(payload) => self.event(&event.kind.0, &payload, object, out),
                None => self.handle_bad_shape(&event.kind.0, object, out),
            },
            None => self.count_bad_line(BadFrame::Shape, object.as_bytes(), out),
        }
    }

    /// An event with an unreadable payload. Whatever waits for it must not wait forever.
    fn handle_bad_shape(&mut self, kind: &str, object: &str, out: &mut Effects) {
        self.count_bad_line(BadFrame::Shape, object.as_bytes(), out);
        let is_end = matches!(
            kind,
            "session.completed" | "session.interrupted" | "session.error"
        );
        if is_end && self.channel.is_ready() {
            let detail = format!("the agent's {kind} cannot be read");
            self.end_turn(TurnEnd::failure(detail), out);
        }
    }

    fn event(&mut self, kind: &str, payload: &Payload<'_>, object: &str, out: &mut Effects) {
        let line = object.as_bytes();
        let about = payload.about();
        match kind {
            "session.status" => self.on_status(&about, payload, out),
            "session.stream.chunk" => {
                if let Some(chunk) = payload.chunk.and_then(message::chunk) {
                    return self.chunk(&about, chunk, line, out);
                }
                if self.is_current(&about) {
                    self.answer_text.mark_unreadable();
                }
                self.count_bad_line(BadFrame::Shape, line, out);
            }
            "session.message.appended" => {
                match payload.message.and_then(message::parse_appended_message) {
                    Some((kind, text)) => self.on_message_appended(&about, &kind, text, out),
                    None => self.count_bad_line(BadFrame::Shape, line, out),
                }
            }
            "session.tool.call.started" => {
                self.handle_tool_calls(&about, payload, line, out, |calls, data| {
                    calls.started(data).map(|event| vec![event])
                });
            }
            "session.tool.call.completed" => {
                self.handle_tool_calls(&about, payload, line, out, ToolCalls::completed);
            }
            "session.tool.results" => {
                self.handle_tool_calls(&about, payload, line, out, ToolCalls::results);
            }
            "session.completed" | "session.interrupted" | "session.error" => {
                self.on_turn_end(kind, &about, payload, line, out);
            }
            "state.changed" => self.on_state_changed(payload, out),
            "auth.flow.started"
            | "auth.flow.url"
            | "auth.flow.device_code"
            | "auth.flow.completed"
            | "auth.flow.failed" => self.login(kind, payload, out),
            _ => report_unknown(kind, object, out),
        }
    }

    /// Whether an event belongs to the running turn. An event without a session is of ours. One
    /// without a turn is of the running one, unless ours is still queued.
    fn is_current(&self, about: &EventScope<'_>) -> bool {
        let ours = self.session.as_ref().map(UntrustedText::raw);
        if about.session.is_some() && about.session.as_deref() != ours {
            return false;
        }
        let Some(turn) = &self.turn else { return false };
        match (&turn.name, about.turn.as_deref()) {
            (Some(name), Some(theirs)) => name == theirs,
            (None, Some(theirs)) => self.last.as_deref() != Some(theirs),
            (_, None) => turn.is_started || !turn.is_queued,
        }
    }

    /// A turn begins with the status that names it.
    fn on_status(&mut self, about: &EventScope<'_>, payload: &Payload<'_>, out: &mut Effects) {
        self.answer_text.status();
        let is_pending = payload.pending.and_then(parse) == Some(true);
        if is_pending && about.turn.is_some() && self.is_current(about) {
            self.note_turn_activity(about.turn.as_deref(), out);
        }
    }

    pub(super) fn chunk(
        &mut self,
        about: &EventScope<'_>,
        chunk: Chunk,
        line: &[u8],
        out: &mut Effects,
    ) {
        if !self.is_current(about) {
            return report_bad_line(OUT_OF_STATE, line, out);
        }
        self.note_turn_activity(about.turn.as_deref(), out);
        let thoughts = chunk.thoughts.into_iter().filter(|item| !item.is_empty());
        out.extend(thoughts.map(|thought| {
            Effect::Event(Event::Thought {
                delta: thought.into(),
            })
        }));
        let delta = self.answer_text.take_new_text(chunk.answer);
        out.extend(delta.map(|delta| Effect::Event(Event::Text { delta })));
    }

    /// A message was added to the session: our prompt and the answer, which were already reported,
    /// unless no piece of the answer was; and messages of the agent itself.
    fn on_message_appended(
        &mut self,
        about: &EventScope<'_>,
        kind: &UntrustedText,
        text: UntrustedText,
        out: &mut Effects,
    ) {
        match kind.raw() {
            "system" => out.push(Effect::Event(Event::Notice {
                severity: None,
                title: text,
                description: None,
            })),
            "assistant" => {
                let runs = self.turn.as_ref().is_some_and(|turn| turn.is_started);
                if runs && self.is_current(about) && self.answer_text.is_empty() {
                    let delta = self.answer_text.take_new_text(text.into_raw());
                    out.extend(delta.map(|delta| Effect::Event(Event::Text { delta })));
                }
            }
            _ => {}
        }
    }

    /// An event about tool calls. They are reported, and so evaluated, also outside of the turn.
    fn handle_tool_calls(
        &mut self,
        about: &EventScope<'_>,
        payload: &Payload<'_>,
        line: &[u8],
        out: &mut Effects,
        read: impl FnOnce(&mut ToolCalls, &RawValue) -> Option<Vec<Event>>,
    ) {
        if self.is_current(about) {
            self.note_turn_activity(about.turn.as_deref(), out);
        } else {
            report_bad_line(OUT_OF_STATE, line, out);
        }
        match payload.data.and_then(|data| read(&mut self.calls, data)) {
            Some(events) => out.extend(events.into_iter().map(Effect::Event)),
            None => self.count_bad_line(BadFrame::Shape, line, out),
        }
    }

    fn on_turn_end(
        &mut self,
        kind: &str,
        about: &EventScope<'_>,
        payload: &Payload<'_>,
        line: &[u8],
        out: &mut Effects,
    ) {
        if !self.is_current(about) {
            return report_bad_line(OUT_OF_STATE, line, out);
        }
        if let Some(turn) = &mut self.turn
            && turn.name.is_none()
        {
            turn.name = about.turn.as_deref().map(str::to_owned);
        }
        let end = |outcome, word: &str| TurnEnd {
            outcome,
            stop_reason: Some(word.into()),
            usage: None,
            detail: None,
        };
        let end = match kind {
            "session.completed" => {
                let length = payload.answer_length.and_then(parse::<Count>);
                if let Some(units) = self
                    .answer_text
                    .detect_false_repeats(length.map(|length| length.0))
                {
                    out.push(Effect::Event(repetition_notice(units)));
                }
                if self.answer_text.is_unreadable() {
                    TurnEnd::failure("a part of the agent's answer cannot be read".to_owned())
                } else {
                    end(TurnOutcome::Completed, "completed")
                }
            }
            "session.interrupted" => end(TurnOutcome::Cancelled, "interrupted"),
            _ => {
                let message = parse_string(payload.message).unwrap_or_default();
                let text = format!(
                    "the agent reported an error: {}",
                    message.escape_for_display(300)
                );
                out.push(Effect::Event(Event::AgentError {
                    code: UntrustedText::default(),
                    message,
                    origin: ErrorOrigin::Unknown,
                }));
                TurnEnd {
                    stop_reason: Some("error".into()),
                    ..TurnEnd::failure(text)
                }
            }
        };
        self.end_turn(end, out);
    }

    /// Of the agent's state only a changed model is reported. While the session is opened, or we
    /// select a model, a later event reports it.
    fn on_state_changed(&mut self, payload: &Payload<'_>, out: &mut Effects) {
        let model = payload.snapshot.and_then(message::parse_selected_model);
        let Some(model) = model.filter(|model| Some(model) != self.models.selected.as_ref()) else {
            return;
        };
        if self.selecting.is_some() {
            return;
        }
        self.models.selected = Some(model.clone());
        if !self.channel.is_ready() {
            return;
        }
        out.push(Effect::Event(state_changed(Some(model), None)));
    }
}

/// The notice that text was left out which the agent had sent only once.
fn repetition_notice(units: u64) -> Event {
    Event::Notice {
        severity: Some("warning".into()),
        title: format!(
            "{units} characters of the answer looked like a repetition and were left out"
        )
        .into(),
        description: None,
    }
}
