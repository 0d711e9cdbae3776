//! From the first message to a session: version, login, then a new session or an earlier one.
//!
//! Must not know what a turn is.

use serde_json::value::RawValue;

use super::auth::AUTH_REQUIRED;
use super::message::{self, InitializeResult};
use super::{Acp, Step, write};
use crate::driver::Protocol as _;
use crate::jsonrpc::Outcome;
use crate::lenient::parse_object;
use crate::{ChannelError, Effects};
use marshal_config::{McpTransport, ServerKind};
use marshal_model::UntrustedText;

impl Acp {
    /// The version gate. Only the integer 1 passes, before anything else is written.
    pub(super) fn on_initialize_reply(&mut self, outcome: Outcome<'_>, out: &mut Effects) {
        let result = match outcome {
            Ok(result) => result,
            Err(error) if !error.is_about_version() => {
                let why = format!("the agent cannot start: {}", error.describe());
                return self.fail_channel(ChannelError::NeedsSetup(why), out);
            }
            Err(error) => {
                let theirs = format!("none; to initialize {}", error.describe());
                return self.fail_version(theirs, out);
            }
        };
        let read: InitializeResult<'_> = parse_object(result).unwrap_or_default();
        let theirs = read.protocol_version.map_or("none", RawValue::get);
        if theirs != write::VERSION {
            let theirs = UntrustedText::from(theirs).escape_for_display(40);
            return self.fail_version(theirs, out);
        }
        self.info.protocol = write::VERSION.to_owned();
        self.info.version = read.version();
        self.capabilities = read.capabilities();
        if let Err(why) = self.check_mcp_servers() {
            return self.fail_channel(ChannelError::NeedsSetup(why), out);
        }
        self.authenticate(out);
    }

    /// Checks that the agent supports the tool servers that it gets.
    fn check_mcp_servers(&self) -> Result<(), String> {
        for server in &self.opening.acp.mcp_servers {
            let McpTransport::Route { kind, route, .. } = &server.transport else {
                continue;
            };
            let (name, can) = (&server.name, &self.capabilities);
            let reaches = match kind {
                ServerKind::Stdio => true,
                ServerKind::Http => can.http,
                ServerKind::Sse => can.sse,
            };
            if !reaches {
                return Err(format!(
                    "the agent does not support tool servers over {kind} (mcpCapabilities), and {name} is one: start it as a program, or remove it from mcp_servers"
                ));
            }
            if !self.opening.routes.contains_key(route) {
                return Err(format!(
                    "the tool server {name} needs the route {route}, but the pool has no route of that name"
                ));
            }
        }
        Ok(())
    }

    /// Opens the session: a new one, or an earlier one again.
    pub(super) fn open_session(&mut self, out: &mut Effects) {
        if self.opening.resume.is_some() {
            return self.find(out);
        }
        let (acp, routes) = (self.opening.acp.clone(), self.opening.routes.clone());
        let workspace = self.opening.workspace.clone();
        self.step = Step::Creating;
        self.send_request("session/new", out, |id| {
            write::new_session(id, &workspace, &write::servers(&acp.mcp_servers, &routes))
        });
    }

    /// The reply to `session/new`.
    pub(super) fn on_session_new_reply(&mut self, outcome: Outcome<'_>, out: &mut Effects) {
        let result = match outcome {
            Ok(result) => result,
            Err(error) if error.code == AUTH_REQUIRED => return self.fail_login(&error, out),
            Err(error) => {
                let text = format!("the agent did not open a session: {}", error.describe());
                return self.fail_protocol(text, out);
            }
        };
        self.session = message::session_id(result);
        if self.session.is_none() {
            let text = "the agent opened a session without a usable id";
            return self.fail_protocol(text.to_owned(), out);
        }
        if let Some(settings) = self.read_settings(result, out) {
            self.apply_settings(settings, out);
        }
    }
}
