//! Checks whether the agent's reported mode asks for less than the mode that it started in.
//!
//! In that case the policy would not be asked about what the agent does, although the pool relies
//! on it. Must not know what changed the mode: a command, a person at the agent, or the agent
//! itself.

use std::sync::Arc;

use super::{ChannelError, OpenParams};
use marshal_config::AcpSettings;
use marshal_model::UntrustedText;

/// See the module documentation.
#[derive(Debug, Default)]
pub(super) struct ModeGuard {
    /// The mode at the start, as far as it is known.
    initial: Option<String>,
    /// Has the names of modes that skip requests.
    acp: Arc<AcpSettings>,
    /// Modes in a known order, beginning with the one that asks the most.
    order: &'static [&'static str],
    /// Whether the pool does not rely on being asked.
    allows_any: bool,
}

impl ModeGuard {
    pub(super) fn new(opening: &OpenParams, order: &'static [&'static str]) -> Self {
        Self {
            initial: opening.initial_mode.clone(),
            acp: Arc::clone(&opening.acp),
            order,
            allows_any: opening.allows_any_mode,
        }
    }

    /// Checks the mode of the handshake: it is the mode at the start, unless another was expected.
    pub(super) fn check_initial(&mut self, mode: Option<&UntrustedText>) -> Option<ChannelError> {
        let mode = mode?;
        if self.initial.is_none() {
            self.initial = Some(mode.raw().to_owned());
        }
        self.check_change(mode)
    }

    /// Checks a reported mode; returns an error if the agent must end because of it.
    pub(super) fn check_change(&mut self, mode: &UntrustedText) -> Option<ChannelError> {
        if self.allows_any || !self.is_less_strict(mode.raw()) {
            // The first mode that it reports is the one at the start.
            self.initial.get_or_insert_with(|| mode.raw().to_owned());
            return None;
        }
        let began = self
            .initial
            .as_deref()
            .map(UntrustedText::from)
            .map_or_else(
                || "the mode it started in".to_owned(),
                |mode| mode.escape_for_display(80),
            );
        Some(ChannelError::UnsafeState(format!(
            "the agent switched to the mode {}, in which it asks for less than in {began}, so the supervisor stopped it; start it in that mode if this is intended",
            mode.escape_for_display(80)
        )))
    }

    fn is_less_strict(&self, mode: &str) -> bool {
        let place = |mode: &str| self.order.iter().position(|known| *known == mode);
        let began = self.initial.as_deref();
        if let (Some(began), Some(now)) = (began.and_then(place), place(mode)) {
            return now > began;
        }
        let skips = |mode: &str| self.acp.auto_approve_modes.contains(mode);
        began != Some(mode) && skips(mode) && !began.is_some_and(skips)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORDER: &[&str] = &["prompt", "read-only", "danger-full-access"];

    #[track_caller]
    fn check(began: Option<&str>, mode: &str, asks_less: bool) {
        let opening = OpenParams {
            initial_mode: began.map(str::to_owned),
            ..OpenParams::default()
        };
        let drift = ModeGuard::new(&opening, ORDER);
        assert_eq!(drift.is_less_strict(mode), asks_less, "{began:?} {mode}");
        let meant = OpenParams {
            allows_any_mode: true,
            ..opening
        };
        assert_eq!(
            ModeGuard::new(&meant, ORDER).check_change(&mode.into()),
            None
        );
    }

    #[test]
    fn a_mode_that_asks_for_less_is_found_by_the_order_or_by_its_name() {
        check(Some("prompt"), "prompt", false);
        check(Some("prompt"), "read-only", true);
        check(Some("read-only"), "prompt", false);
        check(Some("prompt"), "danger-full-access", true);
        check(Some("danger-full-access"), "danger-full-access", false);
        // For other modes the name decides.
        check(Some("prompt"), "plan", false);
        check(Some("plan"), "yolo", true);
        check(Some("yolo"), "yolo", false);
        check(None, "plan", false);
        check(None, "bypassPermissions", true);
    }

    #[test]
    fn what_the_handshake_names_is_what_it_began_in_unless_another_was_wanted() {
        let mut drift = ModeGuard::new(&OpenParams::default(), ORDER);
        assert_eq!(drift.check_initial(None), None);
        assert_eq!(drift.check_initial(Some(&"read-only".into())), None);
        assert!(drift.check_change(&"danger-full-access".into()).is_some());
        // An agent that names no mode at the start begins in the first one that it reports.
        let mut drift = ModeGuard::new(&OpenParams::default(), ORDER);
        assert_eq!(drift.check_change(&"prompt".into()), None);
        assert!(drift.check_change(&"read-only".into()).is_some());
        let wanted = OpenParams {
            initial_mode: Some("prompt".to_owned()),
            ..OpenParams::default()
        };
        let fault = ModeGuard::new(&wanted, ORDER).check_initial(Some(&"read-only".into()));
        let Some(ChannelError::UnsafeState(why)) = fault else {
            panic!("{fault:?}");
        };
        assert!(
            why.contains("read-only") && why.contains("than in prompt"),
            "{why}"
        );
    }
}
