//! Resuming a session of an earlier process: find it, load or resume it, and do not report its
//! history a second time.
//!
//! Must not know a session's settings.

use std::time::Instant;

use super::auth::AUTH_REQUIRED;
use super::settings::Settings;
use super::{Acp, Step, message, write};
use crate::driver::Protocol as _;
use crate::jsonrpc::Outcome;
use crate::{ChannelError, Effects};
use marshal_model::Event;
use marshal_model::limits;

/// The history that an agent replays while it loads a session.
#[derive(Debug, Default)]
pub(super) struct Replay {
    /// The method of the request that loads it.
    method: Option<&'static str>,
    /// Whether the session is in the agent's list.
    is_listed: bool,
    /// Messages of the history so far.
    messages: u64,
    /// When the session was loaded, and when the last replayed message came after that.
    settling: Option<(Instant, Instant)>,
    /// The session's settings.
    settings: Option<Settings>,
    /// Whether a prompt was sent: what comes after it is new.
    pub(super) is_over: bool,
}

impl Replay {
    /// Whether the session is one of an earlier process.
    pub(super) const fn is_resumed(&self) -> bool {
        self.method.is_some()
    }

    /// The event that reports the resumed session, once.
    pub(super) fn resumed_event(&mut self) -> Option<Event> {
        let how = self.method?;
        Some(Event::SessionResumed {
            how: how.into(),
            replayed: self.messages,
        })
    }
}

/// Whether an update of this kind can be part of a session's history.
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
    /// Whether the current messages are replayed history.
    pub(super) fn is_replaying(&self) -> bool {
        self.opening.resume.is_some() && !self.replay.is_over
    }

    /// Counts a replayed message.
    pub(super) fn record_replayed(&mut self) {
        self.replay.messages += 1;
        if let (Some((_, last)), Some(now)) = (&mut self.replay.settling, self.channel.now) {
            *last = now;
        }
    }

    /// Looks the session up where the agent has a list. Some agents answer a load of an unknown id
    /// with success, and a resume with a new session of their own.
    pub(super) fn find(&mut self, out: &mut Effects) {
        if !self.capabilities.load && !self.capabilities.resume {
            let why = "it offers neither session/load nor session/resume".to_owned();
            return self.fail_channel(ChannelError::NotResumed(why), out);
        }
        if self.capabilities.list {
            self.list(None, out);
        } else {
            self.load(out);
        }
    }

    fn list(&mut self, cursor: Option<&str>, out: &mut Effects) {
        self.pages += 1;
        self.step = Step::Listing;
        self.send_request("session/list", out, |id| write::list_sessions(id, cursor));
    }

    /// Handles a page of the agent's sessions.
    pub(super) fn on_session_list_reply(&mut self, outcome: Outcome<'_>, out: &mut Effects) {
        let Some(wanted) = &self.opening.resume else {
            return;
        };
        let why = match outcome {
            Err(error) if error.code == AUTH_REQUIRED => return self.fail_login(&error, out),
            Err(error) => format!("session/list failed: {}", error.describe()),
            Ok(result) => match message::find_in_session_list(result, wanted) {
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
                    format!(
                        "{} is not in {all}its list of sessions",
                        wanted.escape_for_display(80)
                    )
                }
            },
        };
        self.fail_channel(ChannelError::NotResumed(why), out);
    }

    /// Resumes where the agent supports it and the id is known to exist; otherwise loads.
    fn load(&mut self, out: &mut Effects) {
        let resumes =
            self.capabilities.resume && (self.replay.is_listed || !self.capabilities.load);
        self.load_by(if resumes { RESUME } else { LOAD }, out);
    }

    fn load_by(&mut self, method: &'static str, out: &mut Effects) {
        let Some(session) = self.opening.resume.clone() else {
            return;
        };
        self.replay.method = Some(method);
        let (acp, routes) = (self.opening.acp.clone(), self.opening.routes.clone());
        let workspace = self.opening.workspace.clone();
        self.step = Step::Loading;
        self.send_request(method, out, |id| {
            let servers = write::servers(&acp.mcp_servers, &routes);
            write::old_session(id, method, &session, &workspace, &servers)
        });
    }

    /// Handles the reply to `session/load` or `session/resume`, which names no session.
    pub(super) fn on_session_load_reply(&mut self, outcome: Outcome<'_>, out: &mut Effects) {
        let result = match outcome {
            Ok(result) => result,
            Err(error) if error.code == AUTH_REQUIRED => return self.fail_login(&error, out),
            Err(_) if self.replay.method == Some(RESUME) && self.capabilities.load => {
                return self.load_by(LOAD, out);
            }
            Err(error) => {
                return self.fail_channel(ChannelError::NotResumed(error.describe()), out);
            }
        };
        self.session.clone_from(&self.opening.resume);
        let Some(settings) = self.read_settings(result, out) else {
            return;
        };
        // Some agents replay the history, or the rest of it, only after their reply.
        let Some(now) = self.channel.now else {
            return self.apply_settings(settings, out);
        };
        self.step = Step::Replaying;
        self.replay.settling = Some((now, now));
        self.replay.settings = Some(settings);
    }

    /// When the agent has been quiet for long enough after its reply.
    pub(super) fn quiet_due(&self) -> Option<Instant> {
        let (since, last) = self.replay.settling?;
        let quiet = last.checked_add(limits::REPLAY_QUIET)?;
        let longest = since.checked_add(limits::REPLAY_TIMEOUT)?;
        let waits = self.step == Step::Replaying && !self.channel.is_shutting_down;
        waits.then(|| quiet.min(longest))
    }

    /// Ends the replay: the session continues.
    pub(super) fn finish_replay(&mut self, out: &mut Effects) {
        self.replay.settling = None;
        let settings = self.replay.settings.take().unwrap_or_default();
        let later = std::mem::take(&mut self.setup.settings);
        self.apply_settings(settings.with_later(later), out);
    }
}

const LOAD: &str = "session/load";
const RESUME: &str = "session/resume";
