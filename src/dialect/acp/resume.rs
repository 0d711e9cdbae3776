//! Going on with a session of an earlier process: looked up, loaded or resumed, and its past not
//! told a second time.
//!
//! Must not know what a session is set to.

use std::time::Instant;

use serde_json::value::RawValue;

use super::auth::AUTH_REQUIRED;
use super::envelope::ErrorReply;
use super::farewell::Leaving;
use super::settings::Settings;
use super::{Acp, Phase, message, reported, write};
use crate::dialect::{Effects, Fault};
use crate::limits;
use crate::model::Event;

/// What an agent tells again of a session that it loads.
#[derive(Debug, Default)]
pub(super) struct Replay {
    /// The request that loads it.
    how: Option<&'static str>,
    /// The session was in the agent's list.
    is_listed: bool,
    /// Messages of its past so far.
    messages: u64,
    /// When the session was loaded, and when the last such message came after that.
    settling: Option<(Instant, Instant)>,
    /// What the session is set to.
    settings: Option<Settings>,
    /// A prompt was sent: what comes now is new.
    pub(super) is_over: bool,
}

impl Replay {
    /// Whether the session is one of an earlier process.
    pub(super) const fn is_of_old(&self) -> bool {
        self.how.is_some()
    }

    /// The event that says so, once.
    pub(super) fn told(&mut self) -> Option<Event> {
        let how = self.how?;
        Some(Event::SessionResumed {
            how,
            replayed: self.messages,
        })
    }
}

/// Updates that an agent may tell of a session's past.
pub(super) fn is_history(tag: &str) -> bool {
    matches!(
        tag,
        "user_message_chunk"
            | "agent_message_chunk"
            | "agent_thought_chunk"
            | "tool_call"
            | "tool_call_update"
            | "plan"
            | "compaction_update"
            | "compaction_summary_chunk"
    )
}

impl Acp {
    /// Whether what comes now of a session's past was told before.
    pub(super) fn is_replaying(&self) -> bool {
        self.opening.resume.is_some() && !self.replay.is_over
    }

    /// A message of the session's past.
    pub(super) fn replayed(&mut self) {
        self.replay.messages += 1;
        if let (Some((_, last)), Some(now)) = (&mut self.replay.settling, self.now) {
            *last = now;
        }
    }

    /// Looks the session up where the agent has a list: some answer a load of an unknown id like
    /// a success, and a resume by a new session of their own.
    pub(super) fn find(&mut self, out: &mut Effects) {
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

    fn list(&mut self, cursor: Option<&str>, out: &mut Effects) {
        self.pages += 1;
        self.ask(Phase::Listing, "session/list", out, |id| {
            write::list_sessions(id, cursor)
        });
    }

    /// A page of the agent's sessions.
    pub(super) fn listed(&mut self, outcome: Result<&RawValue, ErrorReply>, out: &mut Effects) {
        let Some(wanted) = &self.opening.resume else {
            return;
        };
        let why = match outcome {
            Err(error) if error.code == AUTH_REQUIRED => return self.auth_required(&error, out),
            Err(error) => format!("to session/list {}", reported(&error)),
            Ok(result) => match message::listed(result, wanted) {
                None => "its list of sessions cannot be read".to_owned(),
                Some((true, _)) => {
                    self.replay.is_listed = true;
                    return self.load(out);
                }
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

    /// Resumes where the agent can and the id is known to be good; else loads.
    fn load(&mut self, out: &mut Effects) {
        let resumes = self.can.resume && (self.replay.is_listed || !self.can.load);
        self.load_by(if resumes { RESUME } else { LOAD }, out);
    }

    fn load_by(&mut self, method: &'static str, out: &mut Effects) {
        let Some(session) = self.opening.resume.clone() else {
            return;
        };
        self.replay.how = Some(method);
        let (acp, routes) = (self.opening.acp.clone(), self.opening.routes.clone());
        let workspace = self.opening.workspace.clone();
        self.ask(Phase::Loading, method, out, |id| {
            let servers = write::servers(&acp.mcp_servers, &routes);
            write::old_session(id, method, &session, &workspace, &servers)
        });
    }

    /// The reply to `session/load` or `session/resume`, which names no session.
    pub(super) fn loaded(&mut self, outcome: Result<&RawValue, ErrorReply>, out: &mut Effects) {
        let result = match outcome {
            Ok(result) => result,
            Err(error) if error.code == AUTH_REQUIRED => return self.auth_required(&error, out),
            Err(_) if self.replay.how == Some(RESUME) && self.can.load => {
                return self.load_by(LOAD, out);
            }
            Err(error) => return self.refuse(Fault::NotResumed(reported(&error)), out),
        };
        self.session.clone_from(&self.opening.resume);
        let Some(settings) = self.settings(result, out) else {
            return;
        };
        // Some tell the past, or the rest of it, only after their reply.
        let Some(now) = self.now else {
            return self.pin(settings, out);
        };
        self.phase = Phase::Settling;
        self.replay.settling = Some((now, now));
        self.replay.settings = Some(settings);
    }

    /// When an agent has been quiet for long enough after its reply.
    pub(super) fn quiet_due(&self) -> Option<Instant> {
        let (since, last) = self.replay.settling?;
        let quiet = last.checked_add(limits::REPLAY_QUIET)?;
        let longest = since.checked_add(limits::REPLAY_LONGEST)?;
        let waits = self.phase == Phase::Settling && self.leaving == Leaving::No;
        waits.then(|| quiet.min(longest))
    }

    /// It is: the session goes on.
    pub(super) fn settled(&mut self, out: &mut Effects) {
        self.replay.settling = None;
        let settings = self.replay.settings.take().unwrap_or_default();
        let later = std::mem::take(&mut self.pins.settings);
        self.pin(settings.then(later), out);
    }
}

const LOAD: &str = "session/load";
const RESUME: &str = "session/resume";
