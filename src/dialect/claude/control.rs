//! Requests of ours and their replies: the version gate, the mode and the model that a session is set
//! to, the deadline of each.
//!
//! Must not know what a turn is.

use std::time::Instant;

use serde_json::value::RawValue;

use super::message::{Initialized, Outcome, Reply, TurnResult};
use super::{Claude, Phase, write};
use crate::dialect::lenient::members;
use crate::dialect::{Effect, Effects, Fault, Refused, bad_line};
use crate::model::ids::is_safe_token;
use crate::model::{AgentInfo, ChoiceInfo, Event, Foreign, Origin, Setting};

/// The major version that we speak.
const MAJOR: &str = "2";
/// What a mismatch says that we speak.
const OURS: &str = "2 of Claude Code, named in the reply to initialize";
/// The mode that asks.
const ASKING: &str = "default";
/// The modes that the program has.
const MODES: [&str; 6] = [
    ASKING,
    "plan",
    "acceptEdits",
    "auto",
    "dontAsk",
    "bypassPermissions",
];

/// What a request of ours is for.
#[derive(Debug, Clone, PartialEq, Eq)]
enum For {
    Initialize,
    /// The mode that the pool wants.
    Mode(String),
    /// The model that it wants.
    Model(String),
    /// A mode that a person chose.
    Chosen(String),
}

impl For {
    fn told(&self) -> String {
        match self {
            Self::Initialize => "initialize".to_owned(),
            Self::Mode(mode) | Self::Chosen(mode) => {
                format!(
                    "set_permission_mode {}",
                    Foreign::from(mode.as_str()).show(80)
                )
            }
            Self::Model(model) => format!("set_model {}", Foreign::from(model.as_str()).show(80)),
        }
    }
}

/// The request of ours that is open.
#[derive(Debug)]
pub(super) struct Control {
    id: String,
    what: For,
    sent: Option<Instant>,
}

/// What the session is set to, as the agent says.
#[derive(Debug, Default)]
pub(super) struct Settings {
    pub(super) mode: Option<Foreign>,
    pub(super) model: Option<Foreign>,
}

impl Claude {
    /// A fresh id for a request of ours.
    pub(super) fn request_id(&mut self) -> String {
        self.requests += 1;
        format!("marshal-{}", self.requests)
    }

    fn ask(&mut self, what: For, out: &mut Effects, line: impl FnOnce(&str) -> Vec<u8>) {
        let id = self.request_id();
        out.push(Effect::Write(line(&id)));
        self.control = Some(Control {
            id,
            what,
            sent: self.now,
        });
    }

    /// The first word.
    pub(super) fn begin(&mut self, out: &mut Effects) {
        let resume = self.opening.resume.as_ref();
        if let Some(id) = resume.filter(|id| !is_safe_token(id.raw())) {
            let why = format!("{} is no id of a session", id.show(80));
            return self.refuse(Fault::NotResumed(why), out);
        }
        let fresh = Some(self.opening.fresh.as_str()).filter(|id| is_safe_token(id));
        self.session.id = resume.cloned().or_else(|| fresh.map(Foreign::from));
        self.ask(For::Initialize, out, write::initialize);
    }

    /// When the open request must have been answered.
    pub(super) fn control_due(&self) -> Option<Instant> {
        let sent = self.control.as_ref()?.sent?;
        sent.checked_add(self.opening.control?)
    }

    pub(super) fn unanswered(&mut self, out: &mut Effects) {
        let Some(control) = self.control.take() else {
            return;
        };
        let said = format!(
            "the agent does not answer {} within timeouts.control",
            control.what.told()
        );
        self.refuse(Fault::Unanswered(said), out);
    }

    /// A reply to a request of ours, or to nothing.
    pub(super) fn reply(&mut self, reply: &Reply<'_>, line: &[u8], out: &mut Effects) {
        let Some((id, outcome)) = reply.read() else {
            return bad_line("bad_shape", line, out);
        };
        if self.interrupt.as_deref() == Some(id.0.as_ref()) {
            self.interrupt = None;
            if let Err(why) = outcome {
                out.push(Effect::Event(Event::AgentError {
                    code: "interrupt".into(),
                    message: why,
                    origin: Origin::Local,
                }));
            }
            return;
        }
        let Some(control) = self.control.take_if(|control| control.id == id.0) else {
            return bad_line("unknown_id", line, out);
        };
        match control.what {
            For::Initialize => self.initialized(outcome, out),
            For::Mode(mode) => self.pinned(&mode, outcome, out),
            For::Model(model) => self.modelled(model, outcome, out),
            For::Chosen(mode) => self.chosen(&mode, outcome, out),
        }
    }

    /// The version gate, before anything else is written.
    fn initialized(&mut self, outcome: Outcome<'_>, out: &mut Effects) {
        let theirs = match outcome {
            Ok(reply) => {
                let read: Initialized<'_> = reply.and_then(members).unwrap_or_default();
                self.settings.mode = read.mode();
                match read.version() {
                    Some(version) if is_major(version.raw()) => {
                        self.version = Some(version);
                        if read.lacks_hooks() {
                            let why = "the agent does not ask the supervisor's hook, so that it would run tools unasked (hooks_applied: false)";
                            return self.refuse(Fault::NeedsSetup(why.to_owned()), out);
                        }
                        return self.set_mode(out);
                    }
                    Some(version) => version.show(40),
                    None => "none".to_owned(),
                }
            }
            Err(why) => format!("none; to initialize it said {}", why.show(200)),
        };
        self.refuse(Fault::Version { theirs, ours: OURS }, out);
    }

    /// Sets the pool's mode, or pins the one that asks where the agent does not say which it has.
    fn set_mode(&mut self, out: &mut Effects) {
        let now = self.settings.mode.as_ref().map(Foreign::raw);
        let wanted = self.opening.acp.mode.clone();
        let wanted = wanted.or_else(|| now.is_none().then(|| ASKING.to_owned()));
        match wanted {
            Some(mode) if now != Some(mode.as_str()) => {
                self.ask(For::Mode(mode.clone()), out, |id| {
                    write::set_mode(id, &mode)
                });
            }
            _ => self.set_model(out),
        }
    }

    fn pinned(&mut self, mode: &str, outcome: Outcome<'_>, out: &mut Effects) {
        match took_mode(mode, outcome) {
            Ok(mode) => {
                self.settings.mode = Some(mode);
                self.set_model(out);
            }
            Err(why) => self.refuse(Fault::NeedsSetup(why), out),
        }
    }

    fn set_model(&mut self, out: &mut Effects) {
        if let Some(mode) = self.settings.mode.clone()
            && self.skips(&mode)
        {
            let said = format!(
                "the agent's session skips permission requests (its mode {}): set a mode that asks, or say mode_skips_asks = true if that is meant",
                mode.show(80)
            );
            return self.refuse(Fault::NeedsSetup(said), out);
        }
        match self.opening.acp.model.clone() {
            Some(model) => {
                self.ask(For::Model(model.clone()), out, |id| {
                    write::set_model(id, &model)
                });
            }
            None => self.ready(out),
        }
    }

    fn modelled(&mut self, model: String, outcome: Outcome<'_>, out: &mut Effects) {
        if let Err(why) = outcome {
            let shown = Foreign::from(model).show(80);
            let said = format!(
                "the agent does not take the model {shown}: {}",
                why.show(300)
            );
            return self.refuse(Fault::NeedsSetup(said), out);
        }
        self.settings.model = Some(model.into());
        self.ready(out);
    }

    fn ready(&mut self, out: &mut Effects) {
        self.phase = Phase::Ready;
        if self.opening.resume.is_some() {
            out.push(Effect::Event(Event::SessionResumed {
                how: "--resume",
                replayed: 0,
            }));
        }
        let usable = MODES.map(Foreign::from).into_iter();
        let usable = usable.filter(|mode| !self.skips(mode));
        out.push(Effect::Ready(AgentInfo {
            protocol: MAJOR.to_owned(),
            version: self.version.clone(),
            session: self.session.id.clone(),
            model: self.settings.model.clone(),
            mode: self.settings.mode.clone(),
            modes: usable.map(|id| ChoiceInfo { id, name: None }).collect(),
            tools: Vec::new(),
            context_window: None,
            forgets: false,
        }));
    }

    /// A turn ended before any was begun: so the program says that it cannot go on with a session.
    pub(super) fn ended_early(&mut self, result: &TurnResult<'_>, out: &mut Effects) {
        let said = result.said().or_else(|| result.subtype());
        let said = said.unwrap_or_default().show(300);
        if self.opening.resume.is_some() {
            return self.refuse(Fault::NotResumed(said), out);
        }
        self.fault(format!("the agent ended before it was ready: {said}"), out);
    }

    /// Whether a session in that mode would not ask, and that is not meant.
    pub(super) fn skips(&self, mode: &Foreign) -> bool {
        let acp = &self.opening.acp;
        !acp.mode_skips_asks && acp.skipping.has(mode.raw())
    }

    /// The agent is in this mode, by its own word.
    pub(super) fn mode_is(&mut self, mode: Foreign, out: &mut Effects) {
        // During the opening nothing runs yet, and what the session is set to at its end decides.
        if self.phase == Phase::Ready && self.skips(&mode) {
            let said = format!(
                "the agent changed its session by itself so that it skips permission requests (the mode {}): it was ended; mode_skips_asks = true says that this is meant",
                mode.show(80)
            );
            return self.refuse(Fault::Unsafe(said), out);
        }
        if self.settings.mode.as_ref() == Some(&mode) {
            return;
        }
        self.settings.mode = Some(mode.clone());
        if self.phase == Phase::Ready {
            out.push(Effect::Event(changed(None, Some(mode))));
        }
    }

    /// Its model, by its own word.
    pub(super) fn model_is(&mut self, model: Foreign, out: &mut Effects) {
        if self.settings.model.as_ref() != Some(&model) {
            self.settings.model = Some(model.clone());
            out.push(Effect::Event(changed(Some(model), None)));
        }
    }

    /// Sets what a person chose, if it may be.
    pub(super) fn choose(&mut self, setting: &Setting, out: &mut Effects) -> Result<(), Refused> {
        let mode = match setting {
            Setting::Mode(mode) => mode.clone(),
            Setting::Option { .. } => {
                let why = "this agent has no options; its mode can be set";
                return Err(Refused::NotOffered(why.to_owned()));
            }
        };
        if self.control.is_some() {
            return Err(Refused::Setting);
        }
        let shown = Foreign::from(mode.as_str());
        if self.skips(&shown) {
            return Err(Refused::NotOffered(format!(
                "the mode {} skips permission requests, which this pool does not allow (mode_skips_asks = true would)",
                shown.show(80)
            )));
        }
        if !MODES.contains(&mode.as_str()) {
            let usable: Vec<&str> = MODES
                .into_iter()
                .filter(|mode| !self.skips(&Foreign::from(*mode)))
                .collect();
            return Err(Refused::NotOffered(format!(
                "there is no mode {}; there are: {}",
                shown.show(80),
                usable.join(", ")
            )));
        }
        self.ask(For::Chosen(mode.clone()), out, |id| {
            write::set_mode(id, &mode)
        });
        Ok(())
    }

    fn chosen(&mut self, mode: &str, outcome: Outcome<'_>, out: &mut Effects) {
        match took_mode(mode, outcome) {
            Ok(mode) => {
                self.mode_is(mode, out);
                out.push(Effect::Set(Ok(())));
            }
            Err(why) => out.push(Effect::Set(Err(why))),
        }
    }
}

/// The mode that the agent took, which must be the one that was wanted.
fn took_mode(wanted: &str, outcome: Outcome<'_>) -> Result<Foreign, String> {
    #[derive(serde::Deserialize)]
    struct Took<'a> {
        #[serde(borrow)]
        mode: Option<&'a RawValue>,
    }
    let shown = Foreign::from(wanted).show(80);
    match outcome {
        Err(why) => Err(format!(
            "the agent does not take the mode {shown}: {}",
            why.show(300)
        )),
        Ok(reply) => {
            let took: Option<Took<'_>> = reply.and_then(members);
            let mode = took.and_then(|took| crate::dialect::lenient::string(took.mode));
            let mode = mode.unwrap_or_else(|| wanted.into());
            if mode.raw() == wanted {
                Ok(mode)
            } else {
                Err(format!(
                    "the agent was to take the mode {shown} and took {}",
                    mode.show(80)
                ))
            }
        }
    }
}

fn changed(model: Option<Foreign>, mode: Option<Foreign>) -> Event {
    Event::StateChanged {
        model,
        mode,
        context_pct: None,
        context_window: None,
    }
}

/// Whether a version is of our major: `2.1.330`, and not `20.1` or `2`.
fn is_major(version: &str) -> bool {
    let Some((major, rest)) = version.split_once('.') else {
        return false;
    };
    major == MAJOR && rest.starts_with(|c: char| c.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::is_major;

    #[test]
    fn versions_are_of_the_major_that_we_speak_or_not() {
        for version in ["2.0.0", "2.1.330", "2.1.330-beta.1"] {
            assert!(is_major(version), "{version}");
        }
        for version in [
            "", "2", "2.", "2.x", "1.9.9", "20.1.0", "v2.1.0", " 2.1.0", "3.0.0",
        ] {
            assert!(!is_major(version), "{version}");
        }
    }
}
