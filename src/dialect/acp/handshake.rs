//! From the first word to a session: version, login, then a new session or an earlier one.
//!
//! Must not know what a turn is.

use serde_json::value::RawValue;

use super::auth::AUTH_REQUIRED;
use super::envelope::ErrorReply;
use super::message::{self, Initialized};
use super::{Acp, Phase, reported, write};
use crate::config::{Reach, ServerKind};
use crate::dialect::lenient::members;
use crate::dialect::{Effects, Fault};
use crate::model::Foreign;

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
        if let Err(why) = self.reaches_servers() {
            return self.refuse(Fault::NeedsSetup(why), out);
        }
        self.authenticate(out);
    }

    fn foreign(&mut self, theirs: String, out: &mut Effects) {
        let ours = write::VERSION;
        self.refuse(Fault::Version { theirs, ours }, out);
    }

    /// Whether the agent can use the tool servers that it is to be handed.
    fn reaches_servers(&self) -> Result<(), String> {
        for server in &self.opening.acp.mcp_servers {
            let Reach::Route { kind, route, .. } = &server.reach else {
                continue;
            };
            let (name, can) = (&server.name, &self.can);
            let reaches = match kind {
                ServerKind::Stdio => true,
                ServerKind::Http => can.http,
                ServerKind::Sse => can.sse,
            };
            if !reaches {
                return Err(format!(
                    "the agent reaches no tool servers by {kind} (mcpCapabilities), and {name} is one: start it as a program, or leave it out of mcp_servers"
                ));
            }
            if !self.opening.routes.contains_key(route) {
                return Err(format!(
                    "the tool server {name} needs the route {route}, and the pool has none of that name"
                ));
            }
        }
        Ok(())
    }

    /// Opens the session: a new one, or an earlier one again.
    pub(super) fn begin(&mut self, out: &mut Effects) {
        if self.opening.resume.is_some() {
            return self.find(out);
        }
        let (acp, routes) = (self.opening.acp.clone(), self.opening.routes.clone());
        let workspace = self.opening.workspace.clone();
        self.ask(Phase::Creating, "session/new", out, |id| {
            write::new_session(id, &workspace, &write::servers(&acp.mcp_servers, &routes))
        });
    }

    /// The reply to `session/new`.
    pub(super) fn created(&mut self, outcome: Result<&RawValue, ErrorReply>, out: &mut Effects) {
        let result = match outcome {
            Ok(result) => result,
            Err(error) if error.code == AUTH_REQUIRED => return self.auth_required(&error, out),
            Err(error) => {
                let said = format!("the agent opens no session: {}", reported(&error));
                return self.fault(said, out);
            }
        };
        self.session = message::session_id(result);
        if self.session.is_none() {
            let said = "the agent opened a session without an id that can be used";
            return self.fault(said.to_owned(), out);
        }
        if let Some(settings) = self.settings(result, out) {
            self.pin(settings, out);
        }
    }
}
