//! The agent's requests: permission requests, and those that we do not support.
//!
//! Must not decide anything. A permission request goes to the session, and its answer comes back as
//! a command.

use serde_json::value::RawValue;

use super::calls::{CallFields, MessageKind};
use super::message::{PermissionOptions, PermissionParams};
use super::{Acp, Step, Turn, write};
use crate::driver::Protocol as _;
use crate::jsonrpc::{INVALID_PARAMS, RequestId, VERSIONED};
use crate::lenient::parse_object;
use crate::{DialectError, Effect, Effects, OUT_OF_STATE, report_bad_line};
use marshal_model::{
    AgentClaims, Event, PermissionRequest, PermissionRequestKey, PermissionResponse,
};
use marshal_wire::json;

impl Acp {
    pub(super) fn handle_request(
        &mut self,
        id: &RequestId,
        method: &str,
        params: Option<&RawValue>,
        line: &[u8],
        out: &mut Effects,
    ) {
        // Nothing is written before the agent's version is known.
        if self.step == Step::Initializing {
            return report_bad_line(OUT_OF_STATE, line, out);
        }
        self.close_duplicate_client_request(id, line, out);
        if method != "session/request_permission" {
            self.open_requests
                .withdraw_original(&mut self.ids, id.json(), line, out);
            if self.client_request(id, method, params, line, out) {
                return;
            }
            return out.push(Effect::Write(VERSIONED.method_not_found(id.json())));
        }
        let read = params.and_then(|raw| {
            let params: PermissionParams<'_> = parse_object(raw)?;
            let call = CallFields::read(params.tool_call)?;
            let session = params.session_id.as_ref();
            let is_other = session.is_some_and(|session| self.is_other_session(&session.0));
            Some((params.options(), call, is_other))
        });
        match read {
            Some((mut options, mut call, is_other)) => {
                if is_other {
                    call.set_session("");
                    options.allow = None;
                }
                options.about = call.title().unwrap_or_else(|| call.id());
                self.handle_permission_request(id, options, &call, line, out);
            }
            None => self.reject_unreadable(id, line, out),
        }
    }

    /// Rejects a permission request of unknown shape.
    fn reject_unreadable(&mut self, id: &RequestId, line: &[u8], out: &mut Effects) {
        report_bad_line("bad_shape", line, out);
        self.open_requests.withdraw(id.json(), out);
        let message = "the permission request cannot be read";
        let answer = VERSIONED.error(id.json(), INVALID_PARAMS, message);
        out.push(Effect::Write(answer));
    }

    fn handle_permission_request(
        &mut self,
        id: &RequestId,
        mut options: PermissionOptions,
        fields: &CallFields<'_>,
        line: &[u8],
        out: &mut Effects,
    ) {
        let id = id.json();
        if self.cancelling || self.channel.is_shutting_down {
            // A client that cancels answers every request so, also one that comes later.
            if let Ok(raw) = serde_json::from_slice::<&RawValue>(line) {
                out.push(Effect::Event(Event::Unknown {
                    tag: "session/request_permission".into(),
                    raw: raw.to_owned(),
                }));
            }
            return out.push(Effect::Write(write::cancel_permission(
                self.reply_format(),
                id,
            )));
        }
        if self.turn == Turn::None {
            report_bad_line(OUT_OF_STATE, line, out);
            return self.deny_at_once(id, &options, out);
        }
        self.note_turn_activity(out);
        let (_, known) = self.calls.merge(fields, MessageKind::PermissionRequest);
        if !known.is_complete {
            // It is passed on all the same, so that its denial is recorded.
            options.allow = None;
        }
        if options.allow.is_none() {
            report_bad_line("bad_shape", line, out);
        }
        let key = match self.open_requests.open(&mut self.ids, id, options.clone()) {
            Ok(key) => key,
            Err(clash) => {
                report_bad_line(clash.as_str(), line, out);
                self.deny_at_once(id, &options, out);
                return self.count_rejection(clash, out);
            }
        };
        out.push(Effect::PermissionRequest(PermissionRequest {
            key,
            tool_id: Some(fields.id()),
            tool: known.name,
            input: known.input.unwrap_or_else(json::null_value),
            claims: AgentClaims {
                title: known.title,
                kind: known.kind,
                has_no_allow_option: options.allow.is_none(),
                ..AgentClaims::default()
            },
        }));
    }

    /// Writes an answer. The protocol has no field for a denial's reason.
    pub(super) fn answer(
        &mut self,
        key: &PermissionRequestKey,
        answer: &PermissionResponse,
        out: &mut Effects,
    ) -> Result<(), DialectError> {
        let options = self
            .open_requests
            .close_by_key(key)
            .ok_or(DialectError::UnknownRequest)?;
        self.calls.release_repeated_bytes();
        match (answer, &options.allow) {
            (PermissionResponse::Allow, Some(option)) => {
                let form = self.reply_format();
                out.push(Effect::Write(write::allow(form, &key.id, option)));
            }
            (PermissionResponse::Allow, None) => self.deny(&key.id, &options, out),
            (PermissionResponse::Deny(reason), _) => {
                self.record_denial(&options.about, reason);
                self.deny(&key.id, &options, out);
            }
        }
        Ok(())
    }

    /// Denies a request. Without an option to reject, the answer means a cancelled turn, so the
    /// turn is cancelled.
    fn deny(&mut self, id: &str, options: &PermissionOptions, out: &mut Effects) {
        let form = self.reply_format();
        let Some(option) = options.reject.as_deref() else {
            out.push(Effect::Write(write::cancel_permission(form, id)));
            if self.turn != Turn::None && !self.cancelling {
                out.push(Effect::Cancelling);
            }
            return self.cancel(out);
        };
        out.push(Effect::Write(write::deny(form, id, option)));
    }

    /// Denies a request without asking anybody.
    fn deny_at_once(&mut self, id: &str, options: &PermissionOptions, out: &mut Effects) {
        self.open_requests.withdraw(id, out);
        self.deny(id, options, out);
    }
}
