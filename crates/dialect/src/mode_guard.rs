//! Whether a mode that an agent says it is in asks for less than the one that it was begun in.
//!
//! Then the policy would not be asked about what the agent does, though the pool counts on that. Must
//! not know by what the mode changed: a command, a person at the agent, the agent itself.

use std::sync::Arc;

use super::{ChannelError, OpenParams};
use marshal_config::AcpSettings;
use marshal_model::UntrustedText;

/// See the head of this file.
#[derive(Debug, Default)]
pub(super) struct ModeGuard {
    /// The mode that it was begun in, as far as that is known.
    initial: Option<String>,
    /// Has the names of modes that skip requests.
    acp: Arc<AcpSettings>,
    /// Modes whose order is known, from the one that asks for the most.
    order: &'static [&'static str],
    /// The pool does not count on being asked.
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

    /// The handshake names a mode: what it was begun in, unless it was to be another.
    pub(super) fn check_initial(&mut self, mode: Option<&UntrustedText>) -> Option<ChannelError> {
        let mode = mode?;
        if self.initial.is_none() {
            self.initial = Some(mode.raw().to_owned());
        }
        self.check_change(mode)
    }

    /// It is in this mode, by its own word: why it must end for that, if so.
    pub(super) fn check_change(&mut self, mode: &UntrustedText) -> Option<ChannelError> {
        if self.allows_any || !self.is_less_strict(mode.raw()) {
            // The first one that it tells is what it began in.
            self.initial.get_or_insert_with(|| mode.raw().to_owned());
            return None;
        }
        let began = self.initial.as_deref().map(UntrustedText::from);
        let began = began.map_or_else(
            || "the one it was begun in".to_owned(),
            |mode| mode.escape_for_display(80),
        );
        Some(ChannelError::UnsafeState(format!(
            "the agent went into the mode {}, in which it asks for less than in {began}: it was ended; begin it in that mode if that is meant",
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
        // Of others the name says it.
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
        // One that names none begins in the first that it tells.
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
