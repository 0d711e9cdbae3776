//! Our requests and their replies: the version gate, the session's mode and model, the deadline of
//! each.
//!
//! Must not know what a turn is.

use std::time::Instant;

use serde_json::value::RawValue;

use super::message::{InitializeResult, Outcome, Reply, TurnResult};
use super::{Claude, Phase, write};
use crate::driver::Protocol as _;
use crate::lenient::parse_object;
use crate::{ChannelError, DialectError, Effect, Effects, report_bad_line, state_changed};
use marshal_model::ids::is_safe_token;
use marshal_model::{AgentInfo, ChoiceInfo, ErrorOrigin, Event, Setting, UntrustedText};

/// The major version that we support.
const MAJOR: &str = "2";
/// The supported version, for the message about a mismatch.
pub(super) const SUPPORTED: &str = "2 of Claude Code, named in the reply to initialize";
/// The mode in which the agent asks.
const ASK_MODE: &str = "default";
/// The program's modes.
const MODES: [&str; 6] = [
    ASK_MODE,
    "plan",
    "acceptEdits",
    "auto",
    "dontAsk",
    "bypassPermissions",
];

/// The purpose of a request of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
enum ControlPurpose {
    Initialize,
    /// Sets the mode that the pool wants.
    Mode(String),
    /// Sets the model that the pool wants.
    Model(String),
    /// Sets a mode that a person chose.
    UserMode(String),
}

impl ControlPurpose {
    fn describe(&self) -> String {
        match self {
            Self::Initialize => "initialize".to_owned(),
            Self::Mode(mode) | Self::UserMode(mode) => {
                format!(
                    "set_permission_mode {}",
                    UntrustedText::from(mode.as_str()).escape_for_display(80)
                )
            }
            Self::Model(model) => format!(
                "set_model {}",
                UntrustedText::from(model.as_str()).escape_for_display(80)
            ),
        }
    }
}

/// Our open request.
#[derive(Debug)]
pub(super) struct Control {
    id: String,
    purpose: ControlPurpose,
    sent: Option<Instant>,
}

/// The session's settings, as the agent reports them.
#[derive(Debug, Default)]
pub(super) struct Settings {
    pub(super) mode: Option<UntrustedText>,
    pub(super) model: Option<UntrustedText>,
}

impl Claude {
    /// A new id for a request of ours.
    pub(super) fn next_request_id(&mut self) -> String {
        self.requests += 1;
        format!("marshal-{}", self.requests)
    }

    fn send_request(
        &mut self,
        what: ControlPurpose,
        out: &mut Effects,
        line: impl FnOnce(&str) -> Vec<u8>,
    ) {
        let id = self.next_request_id();
        out.push(Effect::Write(line(&id)));
        self.control = Some(Control {
            id,
            purpose: what,
            sent: self.channel.now,
        });
    }

    /// Writes the first message.
    pub(super) fn begin(&mut self, out: &mut Effects) {
        let resume = self.opening.resume.as_ref();
        if let Some(id) = resume.filter(|id| !is_safe_token(id.raw())) {
            let why = format!("{} is not a session id", id.escape_for_display(80));
            return self.fail_channel(ChannelError::NotResumed(why), out);
        }
        let fresh = Some(self.opening.fresh_id.as_str()).filter(|id| is_safe_token(id));
        self.session.id = resume.cloned().or_else(|| fresh.map(UntrustedText::from));
        self.send_request(ControlPurpose::Initialize, out, write::initialize);
    }

    /// When the open request must have its reply.
    pub(super) fn control_due(&self) -> Option<Instant> {
        self.channel.reply_due(self.control.as_ref()?.sent)
    }

    pub(super) fn on_control_timeout(&mut self, out: &mut Effects) {
        let Some(control) = self.control.take() else {
            return;
        };
        let message = format!(
            "the agent did not answer {} within timeouts.control",
            control.purpose.describe()
        );
        self.fail_channel(ChannelError::Unanswered(message), out);
    }

    /// Handles a reply to a request of ours, or an unexpected one.
    pub(super) fn handle_reply(&mut self, reply: &Reply<'_>, line: &[u8], out: &mut Effects) {
        let Some((id, outcome)) = reply.read() else {
            return report_bad_line("bad_shape", line, out);
        };
        if self.interrupt.as_deref() == Some(id.0.as_ref()) {
            self.interrupt = None;
            if let Err(why) = outcome {
                out.push(Effect::Event(Event::AgentError {
                    code: "interrupt".into(),
                    message: why,
                    origin: ErrorOrigin::Local,
                }));
            }
            return;
        }
        let Some(control) = self.control.take_if(|control| control.id == id.0) else {
            return report_bad_line("unknown_id", line, out);
        };
        match control.purpose {
            ControlPurpose::Initialize => self.on_initialize_reply(outcome, out),
            ControlPurpose::Mode(mode) => self.on_mode_reply(&mode, outcome, out),
            ControlPurpose::Model(model) => self.on_model_reply(model, outcome, out),
            ControlPurpose::UserMode(mode) => self.on_user_setting_reply(&mode, outcome, out),
        }
    }

    /// The version gate, before anything else is written.
    fn on_initialize_reply(&mut self, outcome: Outcome<'_>, out: &mut Effects) {
        let theirs = match outcome {
            Ok(reply) => {
                let read: InitializeResult<'_> = reply.and_then(parse_object).unwrap_or_default();
                self.settings.mode = read.mode();
                match read.version() {
                    Some(version) if is_supported_version(version.raw()) => {
                        self.version = Some(version);
                        if read.lacks_hooks() {
                            let why = "the agent does not call the supervisor's hook, so it would run tools without permission (hooks_applied: false)";
                            return self
                                .fail_channel(ChannelError::NeedsSetup(why.to_owned()), out);
                        }
                        return self.set_mode(out);
                    }
                    Some(version) => version.escape_for_display(40),
                    None => "none".to_owned(),
                }
            }
            Err(why) => format!(
                "none; it answered initialize with {}",
                why.escape_for_display(200)
            ),
        };
        self.fail_version(theirs, out);
    }

    /// Sets the pool's mode, or the asking mode where the agent does not report its mode.
    fn set_mode(&mut self, out: &mut Effects) {
        let now = self.settings.mode.as_ref().map(UntrustedText::raw);
        let wanted = self
            .opening
            .acp
            .mode
            .clone()
            .or_else(|| now.is_none().then(|| ASK_MODE.to_owned()));
        match wanted {
            Some(mode) if now != Some(mode.as_str()) => {
                self.send_request(ControlPurpose::Mode(mode.clone()), out, |id| {
                    write::set_mode(id, &mode)
                });
            }
            _ => self.set_model(out),
        }
    }

    fn on_mode_reply(&mut self, mode: &str, outcome: Outcome<'_>, out: &mut Effects) {
        match parse_mode_reply(mode, outcome) {
            Ok(mode) => {
                self.settings.mode = Some(mode);
                self.set_model(out);
            }
            Err(why) => self.fail_channel(ChannelError::NeedsSetup(why), out),
        }
    }

    fn set_model(&mut self, out: &mut Effects) {
        if let Some(mode) = self.settings.mode.clone()
            && self.is_skipping_mode(&mode)
        {
            let message = format!(
                "the agent's session skips permission requests (its mode {}): set mode to one that asks, or set mode_skips_requests = true if this is intended",
                mode.escape_for_display(80)
            );
            return self.fail_channel(ChannelError::NeedsSetup(message), out);
        }
        match self.opening.acp.model.clone() {
            Some(model) => {
                self.send_request(ControlPurpose::Model(model.clone()), out, |id| {
                    write::set_model(id, &model)
                });
            }
            None => self.finish_handshake(out),
        }
    }

    fn on_model_reply(&mut self, model: String, outcome: Outcome<'_>, out: &mut Effects) {
        if let Err(why) = outcome {
            let shown = UntrustedText::from(model).escape_for_display(80);
            let message = format!(
                "the agent rejected the model {shown}: {}",
                why.escape_for_display(300)
            );
            return self.fail_channel(ChannelError::NeedsSetup(message), out);
        }
        self.settings.model = Some(model.into());
        self.finish_handshake(out);
    }

    fn finish_handshake(&mut self, out: &mut Effects) {
        self.channel.phase = Phase::Ready;
        if self.opening.resume.is_some() {
            out.push(Effect::Event(Event::SessionResumed {
                how: "--resume".into(),
                replayed: 0,
            }));
        }
        let usable = MODES
            .map(UntrustedText::from)
            .into_iter()
            .filter(|mode| !self.is_skipping_mode(mode));
        out.push(Effect::Ready(AgentInfo {
            protocol: MAJOR.to_owned(),
            version: self.version.clone(),
            session: self.session.id.clone(),
            model: self.settings.model.clone(),
            mode: self.settings.mode.clone(),
            modes: usable.map(|id| ChoiceInfo { id, name: None }).collect(),
            tools: Vec::new(),
            context_window: None,
            cannot_resume: false,
        }));
    }

    /// A turn ended before any began: this is how the program reports that it cannot resume a
    /// session.
    pub(super) fn on_early_result(&mut self, result: &TurnResult<'_>, out: &mut Effects) {
        let message = result
            .error_text()
            .or_else(|| result.subtype())
            .unwrap_or_default()
            .escape_for_display(300);
        if self.opening.resume.is_some() {
            return self.fail_channel(ChannelError::NotResumed(message), out);
        }
        self.fail_protocol(
            format!("the agent ended before it was ready: {message}"),
            out,
        );
    }

    /// Whether a session in that mode would not ask although it must.
    pub(super) fn is_skipping_mode(&self, mode: &UntrustedText) -> bool {
        let acp = &self.opening.acp;
        !acp.mode_skips_requests && acp.auto_approve_modes.contains(mode.raw())
    }

    /// The agent reports its mode.
    pub(super) fn update_mode(&mut self, mode: UntrustedText, out: &mut Effects) {
        // During the opening nothing runs yet; the settings at its end decide.
        if self.channel.is_ready() && self.is_skipping_mode(&mode) {
            let message = format!(
                "the agent changed its own session so that it skips permission requests (the mode {}), so the supervisor stopped it; set mode_skips_requests = true if this is intended",
                mode.escape_for_display(80)
            );
            return self.fail_channel(ChannelError::UnsafeState(message), out);
        }
        if self.settings.mode.as_ref() == Some(&mode) {
            return;
        }
        self.settings.mode = Some(mode.clone());
        if self.channel.is_ready() {
            out.push(Effect::Event(state_changed(None, Some(mode))));
        }
    }

    /// The agent reports its model.
    pub(super) fn update_model(&mut self, model: UntrustedText, out: &mut Effects) {
        if self.settings.model.as_ref() != Some(&model) {
            self.settings.model = Some(model.clone());
            out.push(Effect::Event(state_changed(Some(model), None)));
        }
    }

    /// Applies a person's setting, if it is allowed.
    pub(super) fn apply_user_setting(
        &mut self,
        setting: &Setting,
        out: &mut Effects,
    ) -> Result<(), DialectError> {
        let mode = match setting {
            Setting::Mode(mode) => mode.clone(),
            Setting::Option { .. } => {
                let why = "this agent has no options; only its mode can be set";
                return Err(DialectError::NotOffered(why.to_owned()));
            }
        };
        if self.control.is_some() {
            return Err(DialectError::SettingPending);
        }
        let shown = UntrustedText::from(mode.as_str());
        if self.is_skipping_mode(&shown) {
            return Err(DialectError::NotOffered(format!(
                "the mode {} skips permission requests, which this pool does not allow; set mode_skips_requests = true to allow it",
                shown.escape_for_display(80)
            )));
        }
        if !MODES.contains(&mode.as_str()) {
            let usable: Vec<&str> = MODES
                .into_iter()
                .filter(|mode| !self.is_skipping_mode(&UntrustedText::from(*mode)))
                .collect();
            return Err(DialectError::NotOffered(format!(
                "there is no mode {}; there are: {}",
                shown.escape_for_display(80),
                usable.join(", ")
            )));
        }
        self.send_request(ControlPurpose::UserMode(mode.clone()), out, |id| {
            write::set_mode(id, &mode)
        });
        Ok(())
    }

    fn on_user_setting_reply(&mut self, mode: &str, outcome: Outcome<'_>, out: &mut Effects) {
        match parse_mode_reply(mode, outcome) {
            Ok(mode) => {
                self.update_mode(mode, out);
                out.push(Effect::SettingResult(Ok(())));
            }
            Err(why) => out.push(Effect::SettingResult(Err(why))),
        }
    }
}

/// The mode that the agent has set, which must be the wanted one.
fn parse_mode_reply(wanted: &str, outcome: Outcome<'_>) -> Result<UntrustedText, String> {
    #[derive(serde::Deserialize)]
    struct Took<'a> {
        #[serde(borrow)]
        mode: Option<&'a RawValue>,
    }
    let shown = UntrustedText::from(wanted).escape_for_display(80);
    match outcome {
        Err(why) => Err(format!(
            "the agent rejected the mode {shown}: {}",
            why.escape_for_display(300)
        )),
        Ok(reply) => {
            let took: Option<Took<'_>> = reply.and_then(parse_object);
            let mode = took
                .and_then(|took| crate::lenient::parse_string(took.mode))
                .unwrap_or_else(|| wanted.into());
            if mode.raw() == wanted {
                Ok(mode)
            } else {
                Err(format!(
                    "the agent was asked for the mode {shown} and set {}",
                    mode.escape_for_display(80)
                ))
            }
        }
    }
}

/// Whether a version has our major number: `2.1.330`, but not `20.1` or `2`.
fn is_supported_version(version: &str) -> bool {
    let Some((major, rest)) = version.split_once('.') else {
        return false;
    };
    major == MAJOR && rest.starts_with(|c: char| c.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::is_supported_version;

    #[test]
    fn versions_are_of_the_major_that_we_speak_or_not() {
        for version in ["2.0.0", "2.1.330", "2.1.330-beta.1"] {
            assert!(is_supported_version(version), "{version}");
        }
        for version in [
            "", "2", "2.", "2.x", "1.9.9", "20.1.0", "v2.1.0", " 2.1.0", "3.0.0",
        ] {
            assert!(!is_supported_version(version), "{version}");
        }
    }
}
