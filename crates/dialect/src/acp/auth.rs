//! The login. It is performed where the configuration names one, refused where only a person at a
//! terminal could do it, and requested where the agent opens no session without one.
//!
//! Must not know credentials: an agent finds its own.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{Acp, Step, join_for_display, write};
use crate::driver::Protocol as _;
use crate::jsonrpc::{ErrorReply, Outcome};
use crate::lenient::{BoundedList, parse_object, parse_string};
use crate::{ChannelError, Effects};
use marshal_model::UntrustedText;
use marshal_model::limits;

/// The error code of an agent that has no credentials.
pub(super) const AUTH_REQUIRED: &str = "-32000";

/// A login that the agent offers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Login {
    id: String,
    name: Option<UntrustedText>,
    /// Whether the login runs in a program at a terminal.
    is_terminal: bool,
}

/// The logins of `authMethods`. Unreadable entries are skipped.
pub(super) fn logins(raw: &RawValue) -> Vec<Login> {
    #[derive(Deserialize)]
    struct Method<'a> {
        id: String,
        #[serde(borrow)]
        name: Option<&'a RawValue>,
        #[serde(borrow, rename = "type")]
        kind: Option<&'a RawValue>,
    }
    let methods: BoundedList<'_, { limits::ADVERTISED_ITEMS }> =
        crate::lenient::parse(raw).unwrap_or_default();
    let login = |raw: &RawValue| {
        let method: Method<'_> = parse_object(raw)?;
        let kind = parse_string(method.kind);
        (method.id.len() <= limits::FOREIGN_ID_BYTES).then(|| Login {
            name: parse_string(method.name)
                .filter(|name| name.len() <= limits::ADVERTISED_TEXT_BYTES),
            is_terminal: kind.is_some_and(|kind| kind.raw() == "terminal"),
            id: method.id,
        })
    };
    methods.items.into_iter().filter_map(login).collect()
}

/// What a person at a terminal can do.
const LOGIN_ADVICE: &str =
    "log it in once with `marshal login POOL`, or give its key by a route or by env.set";

impl Acp {
    /// Performs the login that the configuration names, or continues without one.
    pub(super) fn authenticate(&mut self, out: &mut Effects) {
        let Some(wanted) = self.opening.acp.auth.clone() else {
            return self.open_session(out);
        };
        let shown = UntrustedText::from(wanted.as_str()).escape_for_display(80);
        match self
            .capabilities
            .logins
            .iter()
            .find(|login| login.id == wanted)
        {
            Some(login) if login.is_terminal => {
                let message = format!(
                    "the login {shown} needs a terminal, which agents do not have here: {LOGIN_ADVICE}"
                );
                self.fail_channel(ChannelError::NeedsSetup(message), out);
            }
            Some(_) => {
                self.step = Step::Authenticating;
                self.send_request("authenticate", out, |id| write::authenticate(id, &wanted));
            }
            None => {
                let message = format!(
                    "the agent offers no login {shown} (auth); it offers: {}",
                    self.offered_logins()
                );
                self.fail_channel(ChannelError::NeedsSetup(message), out);
            }
        }
    }

    /// The reply to `authenticate`.
    pub(super) fn on_authenticate_reply(&mut self, outcome: Outcome<'_>, out: &mut Effects) {
        match outcome {
            Ok(_) => self.open_session(out),
            Err(error) => {
                let wanted = self.opening.acp.auth.as_deref().unwrap_or_default();
                let shown = UntrustedText::from(wanted).escape_for_display(80);
                let message = format!("the login {shown} failed: {}", error.describe());
                let fault = if error.code == AUTH_REQUIRED {
                    ChannelError::NeedsSetup(format!("{message}; {LOGIN_ADVICE}"))
                } else {
                    ChannelError::Protocol(message)
                };
                self.fail_channel(fault, out);
            }
        }
    }

    /// Fails the channel: the agent opens no session without a login.
    pub(super) fn fail_login(&mut self, error: &ErrorReply, out: &mut Effects) {
        let what_to_do = match &self.opening.acp.auth {
            Some(auth) => {
                let shown = UntrustedText::from(auth.as_str()).escape_for_display(80);
                format!("the login {shown} (auth) was not enough: {LOGIN_ADVICE}")
            }
            None => format!("set auth to one of them, or {LOGIN_ADVICE}"),
        };
        let message = format!(
            "the agent wants a login before it opens a session; it offers: {}; {what_to_do} ({})",
            self.offered_logins(),
            error.describe()
        );
        self.fail_channel(ChannelError::NeedsSetup(message), out);
    }

    /// The offered logins, for a message to a person.
    fn offered_logins(&self) -> String {
        let labels: Vec<String> = self
            .capabilities
            .logins
            .iter()
            .map(|login| {
                let name = login
                    .name
                    .as_ref()
                    .map(UntrustedText::raw)
                    .unwrap_or_default();
                let how = if login.is_terminal {
                    ", in a terminal"
                } else {
                    ""
                };
                match name {
                    "" => format!("{}{how}", login.id),
                    name => format!("{} ({name}{how})", login.id),
                }
            })
            .collect();
        join_for_display(labels.iter().map(String::as_str))
    }
}
