//! The turn of a channel whose events may name their turn, and the one before it.
//!
//! Must not know any protocol's messages.

/// The turn.
#[derive(Debug, PartialEq, Eq, Default)]
pub(crate) enum Turn {
    /// No turn.
    #[default]
    None,
    /// The prompt was written; the agent has not reported the turn's beginning.
    Sent,
    /// The turn runs, under the agent's name for it, if it has one.
    Running(Option<String>),
}

/// The turn, and what is known of the one that ended last, so that its late events are recognized.
#[derive(Debug, Default)]
pub(crate) struct NamedTurn {
    pub(crate) state: Turn,
    last_id: Option<String>,
    /// Whether an error ended the last one; its own end may follow.
    ended_by_error: bool,
}

impl NamedTurn {
    /// Whether no turn runs.
    pub(crate) fn is_none(&self) -> bool {
        self.state == Turn::None
    }

    /// A prompt was written.
    pub(crate) fn start(&mut self) {
        self.state = Turn::Sent;
        self.ended_by_error = false;
    }

    /// Whether an event of this turn belongs to the running one. An event without a turn does, if
    /// one runs. A turn without a name yet is not the previous one.
    pub(crate) fn is_current(&self, id: Option<&str>) -> bool {
        match (&self.state, id) {
            (Turn::None, _) => false,
            (Turn::Running(Some(ours)), Some(theirs)) => ours == theirs,
            (Turn::Running(None) | Turn::Sent, Some(theirs)) => {
                self.last_id.as_deref() != Some(theirs)
            }
            (Turn::Running(_) | Turn::Sent, None) => true,
        }
    }

    /// The same for an event that shows that the turn continues: it names the turn, if that has no
    /// name.
    pub(crate) fn note_activity(&mut self, id: Option<&str>) -> bool {
        if !self.is_current(id) {
            return false;
        }
        if let (Turn::Running(name @ None), Some(id)) = (&mut self.state, id) {
            *name = Some(id.to_owned());
        }
        true
    }

    /// The turn ended; `id` is its name as the ending message gives it.
    pub(crate) fn end(&mut self, id: Option<&str>) {
        let named = match std::mem::take(&mut self.state) {
            Turn::Running(id) => id,
            Turn::None | Turn::Sent => None,
        };
        self.last_id = named.or_else(|| id.map(str::to_owned));
    }

    /// An error ended the last turn.
    pub(crate) const fn expect_late_end(&mut self) {
        self.ended_by_error = true;
    }

    /// Whether this end is that of the turn that an error ended. It comes once.
    pub(crate) fn take_late_end(&mut self, id: Option<&str>) -> bool {
        self.is_none()
            && std::mem::take(&mut self.ended_by_error)
            && (id.is_none() || id == self.last_id.as_deref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_belongs_to_the_running_turn_by_its_name() {
        let mut turn = NamedTurn::default();
        assert!(!turn.is_current(None) && !turn.is_current(Some("a")));
        turn.start();
        assert!(turn.note_activity(None) && turn.note_activity(Some("a")));
        assert_eq!(turn.state, Turn::Sent, "its beginning was not reported");
        turn.state = Turn::Running(None);
        assert!(turn.note_activity(Some("a")));
        assert_eq!(turn.state, Turn::Running(Some("a".to_owned())));
        assert!(turn.is_current(None) && !turn.note_activity(Some("b")));
        turn.end(Some("b"));
        assert!(turn.is_none() && !turn.is_current(Some("a")));
        // Late events of the one that ended.
        turn.start();
        assert!(!turn.is_current(Some("a")) && turn.is_current(Some("b")));
    }

    #[test]
    fn the_end_after_an_error_is_late_once_and_only_for_that_turn() {
        for (id, wanted) in [(None, true), (Some("a"), true), (Some("b"), false)] {
            let mut turn = NamedTurn::default();
            turn.start();
            turn.end(Some("a"));
            turn.expect_late_end();
            assert_eq!(turn.take_late_end(id), wanted, "{id:?}");
            assert!(!turn.take_late_end(Some("a")), "{id:?}");
        }
        let mut turn = NamedTurn::default();
        turn.start();
        turn.end(None);
        turn.expect_late_end();
        turn.start();
        assert!(!turn.take_late_end(None), "another turn runs");
        turn.end(None);
        assert!(!turn.take_late_end(None), "it ended by itself");
    }
}
