//! Whether a mode that an agent says it is in asks for less than the one that it was begun in.
//!
//! Then the policy would not be asked about what the agent does, though the pool counts on that. Must
//! not know by what the mode changed: a command, a person at the agent, the agent itself.

use std::sync::Arc;

use super::{Fault, Opening};
use crate::config::Acp;
use crate::model::Foreign;

/// See the head of this file.
#[derive(Debug, Default)]
pub(super) struct Drift {
    /// The mode that it was begun in, as far as that is known.
    began: Option<String>,
    /// Has the names of modes that skip requests.
    acp: Arc<Acp>,
    /// Modes whose order is known, from the one that asks for the most.
    order: &'static [&'static str],
    /// The pool does not count on being asked.
    is_meant: bool,
}

impl Drift {
    pub(super) fn of(opening: &Opening, order: &'static [&'static str]) -> Self {
        Self {
            began: opening.mode.clone(),
            acp: Arc::clone(&opening.acp),
            order,
            is_meant: opening.any_mode,
        }
    }

    /// The handshake names a mode: what it was begun in, unless it was to be another.
    pub(super) fn begins(&mut self, mode: Option<&Foreign>) -> Option<Fault> {
        let mode = mode?;
        if self.began.is_none() {
            self.began = Some(mode.raw().to_owned());
        }
        self.goes(mode)
    }

    /// It is in this mode, by its own word: why it must end for that, if so.
    pub(super) fn goes(&mut self, mode: &Foreign) -> Option<Fault> {
        if self.is_meant || !self.asks_less(mode.raw()) {
            // The first one that it tells is what it began in.
            self.began.get_or_insert_with(|| mode.raw().to_owned());
            return None;
        }
        let began = self.began.as_deref().map(Foreign::from);
        let began = began.map_or_else(
            || "the one it was begun in".to_owned(),
            |mode| mode.show(80),
        );
        Some(Fault::Unsafe(format!(
            "the agent went into the mode {}, in which it asks for less than in {began}: it was ended; begin it in that mode if that is meant",
            mode.show(80)
        )))
    }

    fn asks_less(&self, mode: &str) -> bool {
        let place = |mode: &str| self.order.iter().position(|known| *known == mode);
        let began = self.began.as_deref();
        if let (Some(began), Some(now)) = (began.and_then(place), place(mode)) {
            return now > began;
        }
        let skips = |mode: &str| self.acp.skipping.has(mode);
        began != Some(mode) && skips(mode) && !began.is_some_and(skips)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORDER: &[&str] = &["prompt", "read-only", "danger-full-access"];

    #[track_caller]
    fn check(began: Option<&str>, mode: &str, asks_less: bool) {
        let opening = Opening {
            mode: began.map(str::to_owned),
            ..Opening::default()
        };
        let drift = Drift::of(&opening, ORDER);
        assert_eq!(drift.asks_less(mode), asks_less, "{began:?} {mode}");
        let meant = Opening {
            any_mode: true,
            ..opening
        };
        assert_eq!(Drift::of(&meant, ORDER).goes(&mode.into()), None);
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
        let mut drift = Drift::of(&Opening::default(), ORDER);
        assert_eq!(drift.begins(None), None);
        assert_eq!(drift.begins(Some(&"read-only".into())), None);
        assert!(drift.goes(&"danger-full-access".into()).is_some());
        // One that names none begins in the first that it tells.
        let mut drift = Drift::of(&Opening::default(), ORDER);
        assert_eq!(drift.goes(&"prompt".into()), None);
        assert!(drift.goes(&"read-only".into()).is_some());
        let wanted = Opening {
            mode: Some("prompt".to_owned()),
            ..Opening::default()
        };
        let fault = Drift::of(&wanted, ORDER).begins(Some(&"read-only".into()));
        let Some(Fault::Unsafe(why)) = fault else {
            panic!("{fault:?}");
        };
        assert!(
            why.contains("read-only") && why.contains("than in prompt"),
            "{why}"
        );
    }
}
