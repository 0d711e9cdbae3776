//! What each of the agent's events brings about.
//!
//! Owns the reading of events against the state of the channel; what we write stands in `turn` and
//! `opening`.

use serde_json::value::RawValue;

use super::calls::Calls;
use super::message::{self, About, Chunk, Payload};
use super::turn::End;
use super::{Loaf, Phase};
use crate::dialect::lenient::{Count, members, parse, string};
use crate::dialect::{Effect, Effects, bad_line};
use crate::model::{Event, Foreign, Origin, TurnOutcome};
use crate::wire::json::BadFrame;

/// The reason of a line that came when it could not.
const OUT_OF_STATE: &str = "out_of_state";

impl Loaf {
    pub(super) fn notification(
        &mut self,
        method: &str,
        params: Option<&RawValue>,
        object: &str,
        out: &mut Effects,
    ) {
        if method != "event" {
            // The protocol's own level and extensions are to be ignored.
            if !method.starts_with(['_', '$']) {
                unknown(method, object, out);
            }
            return;
        }
        match params.and_then(members::<message::Event<'_>>) {
            Some(event) => match event.payload() {
                Some(payload) => self.event(&event.kind.0, &payload, object, out),
                None => self.misshapen(&event.kind.0, object, out),
            },
            None => self.count_bad(BadFrame::Shape, object.as_bytes(), out),
        }
    }

    /// An event without a payload that can be read: what waits for it must not wait on.
    fn misshapen(&mut self, kind: &str, object: &str, out: &mut Effects) {
        self.count_bad(BadFrame::Shape, object.as_bytes(), out);
        let is_end = matches!(
            kind,
            "session.completed" | "session.interrupted" | "session.error"
        );
        if is_end && self.phase == Phase::Ready {
            let detail = format!("the agent's {kind} cannot be read");
            self.end_turn(End::failed(detail), out);
        }
    }

    fn event(&mut self, kind: &str, payload: &Payload<'_>, object: &str, out: &mut Effects) {
        let line = object.as_bytes();
        let about = payload.about();
        match kind {
            "session.status" => self.status(&about, payload, out),
            "session.stream.chunk" => match payload.chunk.and_then(message::chunk) {
                Some(chunk) => self.chunk(&about, chunk, line, out),
                None => self.count_bad(BadFrame::Shape, line, out),
            },
            "session.message.appended" => match payload.message.and_then(message::appended) {
                Some((kind, text)) => self.appended(&about, &kind, text, out),
                None => self.count_bad(BadFrame::Shape, line, out),
            },
            "session.tool.call.started" => {
                self.called(&about, payload, line, out, |calls, data| {
                    calls.started(data).map(|event| vec![event])
                });
            }
            "session.tool.call.completed" => {
                self.called(&about, payload, line, out, Calls::completed);
            }
            "session.tool.results" => self.called(&about, payload, line, out, Calls::results),
            "session.completed" | "session.interrupted" | "session.error" => {
                self.ended(kind, &about, payload, line, out);
            }
            "state.changed" => self.changed(payload, out),
            "auth.flow.started"
            | "auth.flow.url"
            | "auth.flow.device_code"
            | "auth.flow.completed"
            | "auth.flow.failed" => self.login(kind, payload, out),
            _ => unknown(kind, object, out),
        }
    }

    /// Whether an event belongs to the turn that runs. One that names no session is of ours; one
    /// that names no turn is of the one that runs, unless ours only waits.
    fn is_current(&self, about: &About<'_>) -> bool {
        let ours = self.session.as_ref().map(Foreign::raw);
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
    fn status(&mut self, about: &About<'_>, payload: &Payload<'_>, out: &mut Effects) {
        self.said.status();
        let is_pending = payload.pending.and_then(parse) == Some(true);
        if is_pending && about.turn.is_some() && self.is_current(about) {
            self.turn_goes_on(about.turn.as_deref(), out);
        }
    }

    pub(super) fn chunk(
        &mut self,
        about: &About<'_>,
        chunk: Chunk,
        line: &[u8],
        out: &mut Effects,
    ) {
        if !self.is_current(about) {
            return bad_line(OUT_OF_STATE, line, out);
        }
        self.turn_goes_on(about.turn.as_deref(), out);
        let thoughts = chunk.thoughts.into_iter().filter(|of| !of.is_empty());
        out.extend(thoughts.map(|thought| {
            Effect::Event(Event::Thought {
                delta: thought.into(),
            })
        }));
        let delta = self.said.chunk(chunk.answer);
        out.extend(delta.map(|delta| Effect::Event(Event::Text { delta })));
    }

    /// A message was added to the session: our prompt and the answer, which were told, unless no
    /// piece of the answer was; and what the agent has to say itself.
    fn appended(&mut self, about: &About<'_>, kind: &Foreign, text: Foreign, out: &mut Effects) {
        match kind.raw() {
            "system" => out.push(Effect::Event(Event::Notice {
                severity: None,
                title: text,
                description: None,
            })),
            "assistant" => {
                let runs = self.turn.as_ref().is_some_and(|turn| turn.is_started);
                if runs && self.is_current(about) && self.said.is_empty() {
                    let delta = self.said.chunk(text.into_raw());
                    out.extend(delta.map(|delta| Effect::Event(Event::Text { delta })));
                }
            }
            _ => {}
        }
    }

    /// Something of tool calls. They are told, and so judged, also outside of the turn.
    fn called(
        &mut self,
        about: &About<'_>,
        payload: &Payload<'_>,
        line: &[u8],
        out: &mut Effects,
        read: impl FnOnce(&mut Calls, &RawValue) -> Option<Vec<Event>>,
    ) {
        if self.is_current(about) {
            self.turn_goes_on(about.turn.as_deref(), out);
        } else {
            bad_line(OUT_OF_STATE, line, out);
        }
        match payload.data.and_then(|data| read(&mut self.calls, data)) {
            Some(events) => out.extend(events.into_iter().map(Effect::Event)),
            None => self.count_bad(BadFrame::Shape, line, out),
        }
    }

    fn ended(
        &mut self,
        kind: &str,
        about: &About<'_>,
        payload: &Payload<'_>,
        line: &[u8],
        out: &mut Effects,
    ) {
        if !self.is_current(about) {
            return bad_line(OUT_OF_STATE, line, out);
        }
        if let Some(turn) = &mut self.turn
            && turn.name.is_none()
        {
            turn.name = about.turn.as_deref().map(str::to_owned);
        }
        let end = |outcome, word: &str| End {
            outcome,
            stop_reason: Some(word.into()),
            detail: None,
        };
        let end = match kind {
            "session.completed" => {
                let length = payload.answer_length.and_then(parse::<Count>);
                if let Some(units) = self.said.lacks(length.map(|length| length.0)) {
                    out.push(Effect::Event(left_out(units)));
                }
                end(TurnOutcome::Completed, "completed")
            }
            "session.interrupted" => end(TurnOutcome::Cancelled, "interrupted"),
            _ => {
                let message = string(payload.message).unwrap_or_default();
                let said = format!("the agent reported an error: {}", message.show(300));
                out.push(Effect::Event(Event::AgentError {
                    code: Foreign::default(),
                    message,
                    origin: Origin::Unknown,
                }));
                End {
                    stop_reason: Some("error".into()),
                    ..End::failed(said)
                }
            }
        };
        self.end_turn(end, out);
    }

    /// Of the agent's state only the model is told, when it is another one: while the session is
    /// opened, or we select one, that is told with what follows.
    fn changed(&mut self, payload: &Payload<'_>, out: &mut Effects) {
        let model = payload.snapshot.and_then(message::model_of);
        let Some(model) = model.filter(|model| Some(model) != self.models.selected.as_ref()) else {
            return;
        };
        if self.selecting.is_some() {
            return;
        }
        self.models.selected = Some(model.clone());
        if self.phase != Phase::Ready {
            return;
        }
        out.push(Effect::Event(Event::StateChanged {
            model: Some(model),
            mode: None,
            context_pct: None,
            context_window: None,
        }));
    }
}

/// The agent said something only once that was taken for a repetition.
fn left_out(units: u64) -> Event {
    Event::Notice {
        severity: Some("warning".into()),
        title: format!("{units} characters of the answer were taken for a repetition and left out")
            .into(),
        description: None,
    }
}

fn unknown(tag: &str, object: &str, out: &mut Effects) {
    if let Ok(raw) = RawValue::from_string(object.to_owned()) {
        out.push(Effect::Event(Event::Unknown {
            tag: tag.into(),
            raw,
        }));
    }
}
