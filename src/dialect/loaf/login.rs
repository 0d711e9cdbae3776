//! A login that the agent wants: nobody can make one here, so the slot parks with where it is made.
//!
//! Must not know credentials: an agent finds its own.

use std::time::Instant;

use super::message::Payload;
use super::{Loaf, Phase};
use crate::dialect::lenient::string;
use crate::dialect::{Effects, Fault};
use crate::model::Foreign;

/// What a person can do.
const OUTSIDE: &str = "make it once outside of the supervisor and hand its files over by home_files, or give the agent's key by env.set";

/// How much is shown of an address.
const SHOWN: usize = 300;

/// A login that was begun.
#[derive(Debug)]
pub(super) struct Login {
    provider: Option<Foreign>,
    since: Option<Instant>,
}

impl Loaf {
    /// An event of a login.
    pub(super) fn login(&mut self, kind: &str, payload: &Payload<'_>, out: &mut Effects) {
        if self.leaving {
            return;
        }
        let begun = self.login.take().and_then(|login| login.provider);
        let provider = string(payload.provider).or(begun);
        match kind {
            "auth.flow.completed" => {}
            "auth.flow.url" => {
                let url = shown(string(payload.url).as_ref());
                self.wants_login(provider.as_ref(), &format!("at {url}"), out);
            }
            "auth.flow.device_code" => {
                let url = shown(string(payload.verification_url).as_ref());
                let code = shown(string(payload.user_code).as_ref());
                self.wants_login(
                    provider.as_ref(),
                    &format!("at {url}, by the code {code}"),
                    out,
                );
            }
            "auth.flow.failed" => {
                let why = shown(string(payload.message).as_ref());
                self.wants_login(provider.as_ref(), &format!("and it failed: {why}"), out);
            }
            // Where it is made comes next.
            _ => {
                self.login = Some(Login {
                    provider,
                    since: self.now,
                });
            }
        }
    }

    /// When the agent must have said where its login is made.
    pub(super) fn login_due(&self) -> Option<Instant> {
        let since = self.login.as_ref()?.since?;
        let waits = self.phase != Phase::Closed && !self.leaving;
        since.checked_add(self.opening.control?).filter(|_| waits)
    }

    pub(super) fn login_is_silent(&mut self, out: &mut Effects) {
        let provider = self.login.take().and_then(|login| login.provider);
        self.wants_login(provider.as_ref(), "and does not say where it is made", out);
    }

    fn wants_login(&mut self, provider: Option<&Foreign>, how: &str, out: &mut Effects) {
        let of = provider.map_or_else(String::new, |provider| format!(" of {}", provider.show(80)));
        let said = format!("the agent needs a login{of}, {how}; {OUTSIDE}");
        self.refuse(Fault::NeedsSetup(said), out);
    }
}

fn shown(text: Option<&Foreign>) -> String {
    text.map_or_else(
        || "an address that it does not say".to_owned(),
        |text| text.show(SHOWN),
    )
}
