//! What the agent wants to know: permissions, and all that we do not serve.
//!
//! Must not decide anything: an ask goes to the session, its answer comes back as a command.

use serde_json::value::RawValue;

use super::calls::{CallFields, Word};
use super::envelope::RequestId;
use super::farewell::Leaving;
use super::message::{Options, PermissionParams};
use super::{Acp, Phase, Turn, write};
use crate::dialect::asks::Clash;
use crate::dialect::lenient::members;
use crate::dialect::{Effect, Effects, Refused, bad_line};
use crate::limits;
use crate::model::{Answer, Ask, AskKey, Claimed, Event};
use crate::wire::json;

impl Acp {
    pub(super) fn request(
        &mut self,
        id: &RequestId,
        method: &str,
        params: Option<&RawValue>,
        line: &[u8],
        out: &mut Effects,
    ) {
        // Nothing is written before the agent's version is known.
        if matches!(self.phase, Phase::Initializing) {
            return bad_line("out_of_state", line, out);
        }
        self.client_clash(id, line, out);
        if method != "session/request_permission" {
            // An answer carries no more than an id: this one also ends a request that has it.
            if let Some((key, _)) = self.asks.clash(&mut self.ids, id.json()) {
                bad_line("duplicate_id", line, out);
                out.push(Effect::Withdrawn(key));
            }
            if self.client_request(id, method, params, line, out) {
                return;
            }
            let answer = write::error(id.json(), write::METHOD_NOT_FOUND, "method not found");
            return out.push(Effect::Write(answer));
        }
        let read = params.and_then(|raw| {
            let params: PermissionParams<'_> = members(raw)?;
            let call = CallFields::read(params.tool_call)?;
            let session = params.session_id.as_ref();
            let is_other = session.is_some_and(|session| self.is_other(&session.0));
            Some((params.options(), call, is_other))
        });
        match read {
            Some((mut options, mut call, is_other)) => {
                if is_other {
                    call.of_session("");
                    options.allow = None;
                }
                options.about = call.title().unwrap_or_else(|| call.id());
                self.permission(id, options, &call, line, out);
            }
            None => self.unreadable(id, line, out),
        }
    }

    /// A permission request of a shape that we do not know is none.
    fn unreadable(&mut self, id: &RequestId, line: &[u8], out: &mut Effects) {
        bad_line("bad_shape", line, out);
        let open = self.asks.close(id.json());
        out.extend(open.map(|(key, _)| Effect::Withdrawn(key)));
        let said = "the permission request cannot be read";
        let answer = write::error(id.json(), write::INVALID_PARAMS, said);
        out.push(Effect::Write(answer));
    }

    fn permission(
        &mut self,
        id: &RequestId,
        mut options: Options,
        fields: &CallFields<'_>,
        line: &[u8],
        out: &mut Effects,
    ) {
        let id = id.json();
        if self.cancelling || self.leaving != Leaving::No {
            // Whoever cancels answers every request so, also one that comes later.
            if let Ok(raw) = serde_json::from_slice::<&RawValue>(line) {
                out.push(Effect::Event(Event::Unknown {
                    tag: "session/request_permission".into(),
                    raw: raw.to_owned(),
                }));
            }
            return out.push(Effect::Write(write::cancelled(self.form(), id)));
        }
        if self.turn == Turn::None {
            bad_line("out_of_state", line, out);
            return self.deny_at_once(id, &options, out);
        }
        self.turn_goes_on(out);
        let (_, known) = self.calls.merge(fields, Word::Requested);
        if !known.is_whole {
            // It is asked all the same, so that its denial is on record.
            options.allow = None;
        }
        if options.allow.is_none() {
            bad_line("bad_shape", line, out);
        }
        let key = match self.asks.open(&mut self.ids, id, options.clone()) {
            Ok(key) => key,
            Err(clash) => {
                let reason = match clash {
                    Clash::Duplicate => "duplicate_id",
                    Clash::TooMany => "too_many_asks",
                    Clash::LongId => "bad_shape",
                };
                bad_line(reason, line, out);
                self.deny_at_once(id, &options, out);
                if clash == Clash::TooMany {
                    self.asked_beyond(out);
                }
                return;
            }
        };
        out.push(Effect::Ask(Ask {
            key,
            tool_id: Some(fields.id()),
            tool: known.name,
            input: known.input.unwrap_or_else(json::null),
            claimed: Claimed {
                title: known.title,
                kind: known.kind,
                no_allow: options.allow.is_none(),
                ..Claimed::default()
            },
        }));
    }

    /// One more request was denied because too many are open.
    fn asked_beyond(&mut self, out: &mut Effects) {
        self.asks_beyond = self.asks_beyond.saturating_add(1);
        if self.asks_beyond > limits::ASKS_BEYOND {
            let most = limits::OPEN_ASKS;
            let said = format!(
                "the agent asks on and on while {most} of its requests wait for their answers"
            );
            self.fault(said, out);
        }
    }

    /// Carries out an answer. The protocol has no place for a denial's reason.
    pub(super) fn answer(
        &mut self,
        key: &AskKey,
        answer: &Answer,
        out: &mut Effects,
    ) -> Result<(), Refused> {
        let options = self.asks.answered(key).ok_or(Refused::UnknownAsk)?;
        self.calls.answered();
        match (answer, &options.allow) {
            (Answer::Allow, Some(option)) => {
                let form = self.form();
                out.push(Effect::Write(write::allowed(form, &key.id, option)));
            }
            (Answer::Allow, None) => self.deny(&key.id, &options, out),
            (Answer::Deny(reason), _) => {
                self.denied(&options.about, reason);
                self.deny(&key.id, &options, out);
            }
        }
        Ok(())
    }

    /// Denies a request. Without an option for that, the answer is the one for a cancelled turn,
    /// so the turn is cancelled.
    fn deny(&mut self, id: &str, options: &Options, out: &mut Effects) {
        let form = self.form();
        let Some(option) = options.reject.as_deref() else {
            out.push(Effect::Write(write::cancelled(form, id)));
            if self.turn != Turn::None && !self.cancelling {
                out.push(Effect::Cancelling);
            }
            return self.cancel(out);
        };
        out.push(Effect::Write(write::denied(form, id, option)));
    }

    /// Denies a request that nobody is asked about.
    fn deny_at_once(&mut self, id: &str, options: &Options, out: &mut Effects) {
        let open = self.asks.close(id);
        out.extend(open.map(|(key, _)| Effect::Withdrawn(key)));
        self.deny(id, options, out);
    }
}
