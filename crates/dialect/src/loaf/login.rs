//! A login that the agent requires. Nobody can perform it here, so the slot parks, with the login's
//! address in the reason.
//!
//! Must not know credentials: an agent finds its own.

use std::time::Instant;

use super::Loaf;
use super::message::Payload;
use crate::driver::Protocol as _;
use crate::lenient::parse_string;
use crate::{ChannelError, Effects};
use marshal_model::UntrustedText;

/// What a person can do.
const LOGIN_ADVICE: &str = "make it once outside of the supervisor and hand its files over by home_files, or give the agent's key by env.set";

/// How much of an address is shown.
const MAX_SHOWN: usize = 300;

/// A login that has begun.
#[derive(Debug)]
pub(super) struct Login {
    provider: Option<UntrustedText>,
    since: Option<Instant>,
}

impl Loaf {
    /// Handles an event of a login.
    pub(super) fn login(&mut self, kind: &str, payload: &Payload<'_>, out: &mut Effects) {
        if self.channel.is_shutting_down {
            return;
        }
        let begun = self.login.take().and_then(|login| login.provider);
        let provider = parse_string(payload.provider).or(begun);
        match kind {
            "auth.flow.completed" => {}
            "auth.flow.url" => {
                let url = describe_address(parse_string(payload.url).as_ref());
                self.fail_login(provider.as_ref(), &format!("at {url}"), out);
            }
            "auth.flow.device_code" => {
                let url = describe_address(parse_string(payload.verification_url).as_ref());
                let code = describe_address(parse_string(payload.user_code).as_ref());
                self.fail_login(
                    provider.as_ref(),
                    &format!("at {url}, with the code {code}"),
                    out,
                );
            }
            "auth.flow.failed" => {
                let why = describe_address(parse_string(payload.message).as_ref());
                self.fail_login(provider.as_ref(), &format!("and it failed: {why}"), out);
            }
            // The login's address comes next.
            _ => {
                self.login = Some(Login {
                    provider,
                    since: self.channel.now,
                });
            }
        }
    }

    /// When the agent must have reported the login's address.
    pub(super) fn login_due(&self) -> Option<Instant> {
        let since = self.login.as_ref()?.since?;
        let waits = !self.channel.is_shutting_down;
        self.channel.reply_due(Some(since)).filter(|_| waits)
    }

    pub(super) fn on_login_timeout(&mut self, out: &mut Effects) {
        let provider = self.login.take().and_then(|login| login.provider);
        self.fail_login(provider.as_ref(), "but does not report its address", out);
    }

    fn fail_login(&mut self, provider: Option<&UntrustedText>, how: &str, out: &mut Effects) {
        let of = provider.map_or_else(String::new, |provider| {
            format!(" of {}", provider.escape_for_display(80))
        });
        let message = format!("the agent needs a login{of}, {how}; {LOGIN_ADVICE}");
        self.fail_channel(ChannelError::NeedsSetup(message), out);
    }
}

fn describe_address(text: Option<&UntrustedText>) -> String {
    text.map_or_else(
        || "an address that it does not report".to_owned(),
        |text| text.escape_for_display(MAX_SHOWN),
    )
}
