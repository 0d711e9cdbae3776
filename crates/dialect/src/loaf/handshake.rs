//! From the first message to a session: the version, a new session or an earlier one, the model.
//!
//! Must not know what a turn is.

use serde_json::value::RawValue;

use super::message::{self, HandshakeResult, State};
use super::models::{self, Model, Models};
use super::write;
use super::{Loaf, Step};
use crate::driver::{Phase, Protocol as _};
use crate::jsonrpc::{ErrorReply, Outcome};
use crate::lenient::parse_object;
use crate::{ChannelError, DialectError, Effect, Effects, state_changed};
use marshal_config::OptionValue;
use marshal_model::{Event, Setting, SettingValue, UntrustedText};

/// The request that resumes a session.
pub(super) const GET: &str = "session.get";

const LIST: &str = "model.list";
const SELECT: &str = "model.select";

/// The maximum length of a version in bytes.
const VERSION_BYTES: usize = 40;

/// Whether a version has the major number 1.
fn is_supported_version(version: &str) -> bool {
    let mut numbers = version.split('.');
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    version.len() <= VERSION_BYTES && numbers.next() == Some("1") && numbers.all(is_number)
}

impl Loaf {
    pub(super) fn send_handshake(&mut self, version: &str, out: &mut Effects) {
        self.send_request("rpc.handshake", out, |id| write::handshake(id, version));
    }

    /// The version gate. Only a version with the major number 1 passes, before anything else is
    /// written. An agent of a later minor version rejects ours because the handshake is strict. So
    /// the handshake is repeated once, with its version.
    pub(super) fn on_handshake_reply(&mut self, outcome: Outcome<'_>, out: &mut Effects) {
        let result = match outcome {
            Ok(result) => result,
            Err(error) => {
                let supported = error
                    .data
                    .as_deref()
                    .and_then(message::parse_supported_version);
                return match supported {
                    Some(theirs)
                        if is_supported_version(theirs.raw()) && !self.is_handshake_repeated =>
                    {
                        self.is_handshake_repeated = true;
                        self.send_handshake(theirs.raw(), out);
                    }
                    Some(theirs) => {
                        self.fail_version(theirs.escape_for_display(VERSION_BYTES), out);
                    }
                    None => {
                        self.fail_version(
                            format!("none; to rpc.handshake {}", error.describe()),
                            out,
                        );
                    }
                };
            }
        };
        let read: HandshakeResult<'_> = parse_object(result).unwrap_or_default();
        let theirs = crate::lenient::parse_string(read.protocol_version);
        match theirs {
            Some(theirs) if is_supported_version(theirs.raw()) => {
                theirs.raw().clone_into(&mut self.info.protocol);
            }
            Some(theirs) => {
                return self.fail_version(theirs.escape_for_display(VERSION_BYTES), out);
            }
            None => {
                let raw = read.protocol_version.map_or("none", RawValue::get);
                return self.fail_version(
                    UntrustedText::from(raw).escape_for_display(VERSION_BYTES),
                    out,
                );
            }
        }
        self.methods = read.methods();
        match self.opening.resume.clone() {
            None => {
                self.step = Step::Creating;
                self.send_request("session.create", out, write::create);
            }
            Some(session) if self.has_method(GET) => {
                self.step = Step::Loading;
                self.send_request(GET, out, |id| write::of_session(id, GET, &session));
            }
            Some(_) => {
                let why = "it offers no session.get".to_owned();
                self.fail_channel(ChannelError::NotResumed(why), out);
            }
        }
    }

    /// The reply to `session.create`.
    pub(super) fn on_session_create_reply(&mut self, outcome: Outcome<'_>, out: &mut Effects) {
        match outcome {
            Ok(result) => self.session = message::session_id(result),
            Err(error) => {
                let text = format!("the agent did not open a session: {}", error.describe());
                return self.fail_protocol(text, out);
            }
        }
        if self.session.is_none() {
            let text = "the agent opened a session without a usable id";
            return self.fail_protocol(text.to_owned(), out);
        }
        self.list_models(out);
    }

    /// Handles the reply to `session.get`. A session in which a turn runs, or waits, that this
    /// channel did not send is not resumed: waiting prompts could be dropped, but a running one
    /// cannot be undone.
    pub(super) fn on_session_get_reply(&mut self, outcome: Outcome<'_>, out: &mut Effects) {
        let Some(wanted) = self.opening.resume.clone() else {
            return;
        };
        let not_resumed = |why: String| ChannelError::NotResumed(why);
        let state: State<'_> = match outcome.map(parse_object) {
            Ok(Some(state)) => state,
            Ok(None) => {
                let why = "the state of the session cannot be read".to_owned();
                return self.fail_channel(not_resumed(why), out);
            }
            Err(error) => return self.fail_channel(not_resumed(error.describe()), out),
        };
        if let Some(other) = state.id().filter(|id| *id != wanted) {
            let why = format!(
                "it answered with another session, {}",
                other.escape_for_display(80)
            );
            return self.fail_channel(not_resumed(why), out);
        }
        if state.is_pending() {
            let why =
                "a turn that this supervisor did not start still runs in the session".to_owned();
            return self.fail_channel(not_resumed(why), out);
        }
        self.session = Some(wanted.clone());
        if state.has_queue() {
            self.clear_queue(&wanted, out);
        }
        self.list_models(out);
    }

    fn list_models(&mut self, out: &mut Effects) {
        if self.has_method(LIST) {
            self.step = Step::Listing;
            return self.send_request(LIST, out, write::models);
        }
        self.select_wanted_model(out);
    }

    /// The reply to `model.list`.
    pub(super) fn on_model_list_reply(&mut self, outcome: Outcome<'_>, out: &mut Effects) {
        self.models = outcome.ok().and_then(Models::read).unwrap_or_default();
        self.select_wanted_model(out);
    }

    /// Selects the pool's model, if it is not selected already.
    fn select_wanted_model(&mut self, out: &mut Effects) {
        let wanted = &self.opening.acp;
        // A person's choice in an earlier child takes precedence over the pool's model.
        let chosen = match wanted.options.get(models::OPTION) {
            Some(OptionValue::Choice(model)) => Some(model),
            _ => wanted.model.as_ref(),
        };
        let Some(wanted) = chosen.cloned() else {
            return self.finish_handshake(out);
        };
        match self.models.find(&wanted).cloned() {
            Some(model) if self.models.uses(&model) => self.finish_handshake(out),
            Some(model) => {
                self.step = Step::Selecting;
                self.select(model, out);
            }
            None => {
                let why = self.models.describe_missing(&wanted);
                self.fail_channel(ChannelError::NeedsSetup(why), out);
            }
        }
    }

    fn select(&mut self, model: Model, out: &mut Effects) {
        let Some(session) = self.session.clone() else {
            return;
        };
        let thinking = self.models.thinking().to_owned();
        self.send_request(SELECT, out, |id| {
            write::select(id, &session, &model.id, &model.provider, &thinking)
        });
        self.selecting = Some(model);
    }

    /// Handles the reply to the `model.select` of the handshake.
    pub(super) fn on_model_select_reply(&mut self, outcome: Outcome<'_>, out: &mut Effects) {
        let Some(model) = self.selecting.take() else {
            return;
        };
        match outcome {
            Ok(_) => {
                self.models.select(model);
                self.finish_handshake(out);
            }
            Err(error) => {
                let why = describe_rejection(&model, &error);
                self.fail_channel(ChannelError::NeedsSetup(why), out);
            }
        }
    }

    /// The handshake is complete: prompts may be sent.
    fn finish_handshake(&mut self, out: &mut Effects) {
        self.channel.phase = Phase::Ready;
        let mut info = std::mem::take(&mut self.info);
        info.session.clone_from(&self.session);
        info.model.clone_from(&self.models.selected);
        info.cannot_resume = !self.has_method(GET);
        out.extend(self.options().map(Effect::Event));
        out.push(Effect::Ready(info));
        if self.opening.resume.is_some() {
            out.push(Effect::Event(Event::SessionResumed {
                how: GET.into(),
                replayed: 0,
            }));
        }
    }

    fn options(&self) -> Option<Event> {
        let option = self.models.option()?;
        let options = vec![option];
        self.has_method(SELECT)
            .then_some(Event::Options { options })
    }

    /// Applies a person's setting: only the model can be set.
    pub(super) fn apply_user_setting(
        &mut self,
        setting: &Setting,
        out: &mut Effects,
    ) -> Result<(), DialectError> {
        if self.requests.is_waiting() {
            return Err(DialectError::SettingPending);
        }
        let not_offered = |why: &str| Err(DialectError::NotOffered(why.to_owned()));
        let wanted = match setting {
            Setting::Option { id, value } if id == models::OPTION && self.options().is_some() => {
                value
            }
            Setting::Option { .. } => {
                return not_offered(
                    "the model is the only option of this agent, if it lists models",
                );
            }
            Setting::Mode(_) => return not_offered("this agent has no modes"),
        };
        let SettingValue::Choice(wanted) = wanted else {
            return not_offered("the option model is not a switch");
        };
        let model = self.models.find(wanted).cloned();
        let model =
            model.ok_or_else(|| DialectError::NotOffered(self.models.describe_missing(wanted)))?;
        if self.models.uses(&model) {
            out.push(Effect::SettingResult(Ok(())));
        } else {
            self.select(model, out);
        }
        Ok(())
    }

    /// Handles the agent's reply to a person's setting.
    pub(super) fn on_user_setting_reply(&mut self, outcome: Outcome<'_>, out: &mut Effects) {
        let Some(model) = self.selecting.take() else {
            return;
        };
        let took = match outcome {
            Ok(_) => {
                self.models.select(model);
                Ok(())
            }
            Err(error) => Err(describe_rejection(&model, &error)),
        };
        if took.is_ok() {
            out.push(Effect::Event(state_changed(
                self.models.selected.clone(),
                None,
            )));
            out.extend(self.options().map(Effect::Event));
        }
        out.push(Effect::SettingResult(took));
    }
}

fn describe_rejection(model: &Model, error: &ErrorReply) -> String {
    let model = UntrustedText::from(model.id.as_str()).escape_for_display(80);
    format!("the agent rejected the model {model}: {}", error.describe())
}
