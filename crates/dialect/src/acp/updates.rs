//! Handles the agent's notifications.
//!
//! Must not know permission requests. An update that is not typed here is passed on whole as
//! [`Event::Unknown`], under the name of its variant.

use serde_json::value::RawValue;

use super::calls::{CallFields, MergedCall, MessageKind, ToolCall};
use super::message::{self, CancelParams, Update, UpdateParams};
use super::{Acp, fast_path, notices, resume, write};
use crate::driver::Protocol as _;
use crate::lenient::parse_object;
use crate::{Effect, Effects, OUT_OF_STATE, report_bad_line, report_unknown, state_changed};
use marshal_model::limits;
use marshal_model::{Event, UntrustedText};
use marshal_wire::json::{self, BadFrame};

impl Acp {
    pub(super) fn handle_notification(
        &mut self,
        method: &str,
        params: Option<&RawValue>,
        object: &str,
        out: &mut Effects,
    ) {
        match method {
            "session/update" => self.handle_update(params, object, out),
            "$/cancel_request" => self.on_cancel_request(params, out),
            "elicitation/complete" if self.opening.client_capabilities.elicitation => {
                out.push(Effect::Event(notices::page_completed(params)));
            }
            // A request that cannot be answered.
            "session/request_permission" => {
                self.count_bad_line(BadFrame::Shape, object.as_bytes(), out);
            }
            // Extensions and the protocol's own level: unknown ones must be ignored.
            _ if method.starts_with(['_', '$']) => {}
            _ => report_unknown(method, object, out),
        }
    }

    /// The fast path for a piece of text; `false` if it is not one, or not a plain one.
    pub(super) fn try_fast_path(&mut self, object: &str, out: &mut Effects) -> bool {
        let Some(piece) = fast_path::read(object) else {
            return false;
        };
        let ours = self.session.as_ref().map(UntrustedText::raw);
        if self.is_replaying() || ours.is_some_and(|ours| piece.session.0 != ours) {
            return false;
        }
        let delta = UntrustedText::new(piece.text.0.into_owned());
        self.handle_text_chunk(&piece.tag.0, delta, object, out);
        true
    }

    fn handle_update(&mut self, params: Option<&RawValue>, object: &str, out: &mut Effects) {
        let read = |raw: &RawValue| {
            let params: UpdateParams<'_> = parse_object(raw)?;
            let update: Update<'_> = parse_object(params.update)?;
            self.handle_typed_update(&params, &update, object, out);
            Some(())
        };
        if params.and_then(read).is_none() {
            self.count_bad_line(BadFrame::Shape, object.as_bytes(), out);
        }
    }

    fn handle_typed_update(
        &mut self,
        params: &UpdateParams<'_>,
        update: &Update<'_>,
        object: &str,
        out: &mut Effects,
    ) {
        let tag = update.session_update.0.as_ref();
        if self.is_replaying() && resume::is_history(tag) {
            return self.record_replayed();
        }
        // Tool calls of other sessions of the agent (its subagents) are tracked, too. Any other update of
        // them is only passed on, as `Event::Unknown`.
        let theirs = params.session_id.as_ref().map(|session| session.0.as_ref());
        let other = theirs.filter(|theirs| self.is_other_session(theirs));
        match tag {
            "tool_call" | "tool_call_update" => {
                self.handle_tool_call(tag, params.update, other, object, out);
            }
            _ if other.is_some() => report_unknown(tag, object, out),
            "agent_message_chunk" | "agent_thought_chunk" => {
                match update.content.map(message::block_text) {
                    Some(Some(delta)) => self.handle_text_chunk(tag, delta.into(), object, out),
                    Some(None) => report_unknown(tag, object, out),
                    None => self.count_bad_line(BadFrame::Shape, object.as_bytes(), out),
                }
            }
            "plan" => match message::plan(params.update) {
                Some(entries) if self.note_turn_activity(out) => {
                    out.push(Effect::Event(Event::Plan { entries }));
                }
                Some(_) => report_bad_line(OUT_OF_STATE, object.as_bytes(), out),
                None => self.count_bad_line(BadFrame::Shape, object.as_bytes(), out),
            },
            "usage_update" => match message::context_used(params.update) {
                Some((used, size, cost)) => {
                    out.push(Effect::Event(Event::ContextUsed { used, size, cost }));
                }
                None => report_unknown(tag, object, out),
            },
            "current_mode_update" => match message::current_mode(params.update) {
                Some(mode) => {
                    out.push(Effect::Event(state_changed(None, Some(mode.clone()))));
                    self.on_mode_changed(&mode, out);
                }
                None => self.on_unreadable_setting(tag, object, out),
            },
            "config_option_update" => match notices::options(params.update) {
                Some(changed) => self.on_options_changed(changed, out),
                None => self.on_unreadable_setting(tag, object, out),
            },
            _ => match notices::event(tag, params.update) {
                Some(event) => out.push(Effect::Event(event)),
                None => report_unknown(tag, object, out),
            },
        }
    }

    /// An unreadable update of the session's settings: it could mean that the agent no longer requests
    /// permission.
    fn on_unreadable_setting(&mut self, tag: &str, object: &str, out: &mut Effects) {
        report_unknown(tag, object, out);
        self.fail_unless_skipping_allowed(&format!("a {tag} that cannot be read"), out);
    }

    /// Handles a piece of the answer or of the reasoning. Empty ones only show that the agent is
    /// alive.
    fn handle_text_chunk(
        &mut self,
        tag: &str,
        delta: UntrustedText,
        object: &str,
        out: &mut Effects,
    ) {
        if !self.note_turn_activity(out) {
            return report_bad_line(OUT_OF_STATE, object.as_bytes(), out);
        }
        if delta.raw().is_empty() {
            return;
        }
        out.push(Effect::Event(if tag == "agent_message_chunk" {
            Event::Text { delta }
        } else {
            Event::Thought { delta }
        }));
    }

    /// Whether that is another session than ours.
    pub(super) fn is_other_session(&self, session: &str) -> bool {
        self.session
            .as_ref()
            .is_some_and(|ours| ours.raw() != session)
    }

    fn handle_tool_call(
        &mut self,
        tag: &str,
        update: &RawValue,
        other: Option<&str>,
        object: &str,
        out: &mut Effects,
    ) {
        let is_long = other.is_some_and(|session| session.len() > limits::FOREIGN_ID_BYTES);
        let Some(mut fields) = CallFields::read(update).filter(|_| !is_long) else {
            return self.count_bad_line(BadFrame::Shape, object.as_bytes(), out);
        };
        if let Some(session) = other {
            fields.set_session(session);
        }
        if !self.note_turn_activity(out) {
            report_bad_line(OUT_OF_STATE, object.as_bytes(), out);
        }
        let word = if tag == "tool_call" {
            MessageKind::ToolCall
        } else {
            MessageKind::ToolCallUpdate
        };
        match self.calls.merge(&fields, word) {
            (Some(call), known) if known.is_readable => report_tool_call(call, known, &fields, out),
            _ => self.count_bad_line(BadFrame::Shape, object.as_bytes(), out),
        }
    }

    /// The agent withdraws a request: it expects an end of the request instead of the answer.
    fn on_cancel_request(&mut self, params: Option<&RawValue>, out: &mut Effects) {
        let id = params
            .and_then(parse_object::<CancelParams<'_>>)
            .and_then(|params| crate::jsonrpc::RequestId::read(params.request_id));
        let open = id.and_then(|id| {
            let ask = self.open_requests.close(id.json()).map(|(key, _)| key);
            ask.or_else(|| self.client.close(id.json()))
        });
        if let Some(key) = open {
            let error = write::cancellation(&key.id);
            out.push(Effect::RequestWithdrawn(key));
            out.push(Effect::Write(error));
        }
    }
}

/// Reports a call's beginning, its changes and its end, each once.
fn report_tool_call(
    call: &mut ToolCall,
    known: MergedCall,
    fields: &CallFields<'_>,
    out: &mut Effects,
) {
    let id = || fields.id();
    let status = fields.status();
    let begins = !std::mem::replace(&mut call.is_announced, true);
    let is_error = match status.as_ref().map(UntrustedText::raw) {
        Some("completed") => Some(false),
        Some("failed") => Some(true),
        _ => None,
    };
    let ends = is_error.filter(|_| !std::mem::replace(&mut call.has_ended, true));
    if begins {
        out.push(Effect::Event(Event::ToolStart {
            id: id(),
            name: known.name,
            input: known.input.unwrap_or_else(json::null_value),
        }));
    } else if known.is_renamed || known.input.is_some() || ends.is_none() {
        out.push(Effect::Event(Event::ToolUpdate {
            id: id(),
            name: known.is_renamed.then_some(known.name),
            title: fields.title(),
            status,
            input: known.input,
        }));
    }
    if let Some(is_error) = ends {
        out.push(Effect::Event(Event::ToolResult {
            id: id(),
            output: fields.output(),
            is_error,
            took: None,
        }));
    }
}
