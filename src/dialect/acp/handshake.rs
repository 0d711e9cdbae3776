//! From the first word to a session: version, then a new session or an earlier one.
//!
//! Must not know what a turn is.

use serde_json::value::RawValue;

use super::envelope::ErrorReply;
use super::message::{self, Initialized, Opened};
use super::{Acp, Phase, reported, write};
use crate::dialect::lenient::members;
use crate::dialect::{Effect, Effects, Fault};
use crate::limits;
use crate::model::Foreign;

/// What an agent answers that has no credentials.
const AUTH_REQUIRED: &str = "-32000";

impl Acp {
    /// The version gate: only the integer 1 passes, before anything else is written.
    pub(super) fn initialized(
        &mut self,
        outcome: Result<&RawValue, ErrorReply>,
        out: &mut Effects,
    ) {
        let result = match outcome {
            Ok(result) => result,
            Err(error) => {
                let theirs = format!("none; to initialize {}", reported(&error));
                return self.foreign(theirs, out);
            }
        };
        let read: Initialized<'_> = members(result).unwrap_or_default();
        let theirs = read.protocol_version.map_or("none", RawValue::get);
        if theirs != write::VERSION {
            let theirs = Foreign::from(theirs).show(40);
            return self.foreign(theirs, out);
        }
        self.info.protocol = write::VERSION.to_owned();
        self.info.version = read.version();
        self.can = read.capabilities();
        if self.opening.resume.is_none() {
            let id = self.fresh_id();
            self.phase = Phase::Creating(id);
            let new = write::new_session(id, &self.opening.workspace);
            return out.push(Effect::Write(new));
        }
        if !self.can.load && !self.can.resume {
            let why = "it offers neither session/load nor session/resume".to_owned();
            return self.refuse(Fault::NotResumed(why), out);
        }
        if self.can.list {
            self.list(None, out);
        } else {
            self.load(out);
        }
    }

    fn foreign(&mut self, theirs: String, out: &mut Effects) {
        let ours = write::VERSION;
        self.refuse(Fault::Version { theirs, ours }, out);
    }

    fn list(&mut self, cursor: Option<&str>, out: &mut Effects) {
        let id = self.fresh_id();
        self.phase = Phase::Listing(id);
        self.pages += 1;
        out.push(Effect::Write(write::list_sessions(id, cursor)));
    }

    /// A page of the agent's sessions.
    pub(super) fn listed(&mut self, outcome: Result<&RawValue, ErrorReply>, out: &mut Effects) {
        let Some(wanted) = &self.opening.resume else {
            return;
        };
        let why = match outcome {
            Err(error) => format!("to session/list {}", reported(&error)),
            Ok(result) => match message::listed(result, wanted) {
                None => "its list of sessions cannot be read".to_owned(),
                Some((true, _)) => return self.load(out),
                Some((false, Some(cursor))) if self.pages < limits::SESSION_PAGES => {
                    return self.list(Some(&cursor), out);
                }
                Some((false, next)) => {
                    let all = if next.is_some() {
                        "the first pages of "
                    } else {
                        ""
                    };
                    format!("{all}its list of sessions lacks {}", wanted.show(80))
                }
            },
        };
        self.refuse(Fault::NotResumed(why), out);
    }

    fn load(&mut self, out: &mut Effects) {
        let Some(session) = self.opening.resume.clone() else {
            return;
        };
        let method = if self.can.load {
            "session/load"
        } else {
            "session/resume"
        };
        let id = self.fresh_id();
        self.phase = Phase::Loading(id);
        let load = write::old_session(id, method, &session, &self.opening.workspace);
        out.push(Effect::Write(load));
    }

    /// The reply to `session/load` or `session/resume`, which names no session.
    pub(super) fn loaded(&mut self, outcome: Result<&RawValue, ErrorReply>, out: &mut Effects) {
        match outcome {
            Ok(result) => {
                let opened: Opened<'_> = members(result).unwrap_or_default();
                let session = self.opening.resume.clone();
                self.ready(session, &opened, out);
            }
            Err(error) => self.refuse(Fault::NotResumed(reported(&error)), out),
        }
    }

    /// The reply to `session/new`.
    pub(super) fn created(&mut self, outcome: Result<&RawValue, ErrorReply>, out: &mut Effects) {
        let result = match outcome {
            Ok(result) => result,
            Err(error) if error.code == AUTH_REQUIRED => {
                let said = format!(
                    "the agent wants a login before it opens a session: log in with its own command and hand over its files by home_files, or its key by env; {}",
                    reported(&error)
                );
                return self.fault(said, out);
            }
            Err(error) => {
                let said = format!("the agent opens no session: {}", reported(&error));
                return self.fault(said, out);
            }
        };
        let opened: Opened<'_> = members(result).unwrap_or_default();
        let session = opened.session();
        if session.is_none() {
            let said = "the agent opened a session without an id that can be used";
            return self.fault(said.to_owned(), out);
        }
        self.ready(session, &opened, out);
    }

    fn ready(&mut self, session: Option<Foreign>, opened: &Opened<'_>, out: &mut Effects) {
        self.session.clone_from(&session);
        self.phase = Phase::Ready;
        let mut info = std::mem::take(&mut self.info);
        info.session = session;
        info.mode = opened.mode();
        info.model = opened.model();
        out.push(Effect::Ready(info));
    }
}
