//! In which directory the agent's shell begins its next command, as far as it is known.
//!
//! An agent whose shell keeps its directory (`shell_cwd = "sticky"`, or `"turn"` until its turn is
//! over) is followed from the workspace's root through what ran. Where it cannot be followed, and while something waits for a
//! person that would move it, the directory is unknown, and no rule allows what depends on it.
//! Must not know requests' words: the policy says what moves.

use super::prepare::Prepared;
use crate::config::ShellCwd;
use crate::model::Decision;
use crate::policy::{Moved, Place};

/// Where the shell is.
#[derive(Debug, Default)]
pub(crate) struct Directory {
    at: At,
    /// Requests that would move it, and that a person is to decide.
    open: usize,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum At {
    /// In the workspace's root.
    #[default]
    Root,
    /// In a directory of the workspace.
    In(String),
    /// Anywhere.
    Unknown,
}

impl Directory {
    /// What the policy judges paths by.
    pub(crate) fn place<'a>(&'a self, prepared: &'a Prepared) -> Place<'a> {
        let place = prepared.place();
        let cwd = match &self.at {
            _ if self.open > 0 => None,
            At::Root => place.cwd,
            At::In(path) => Some(path.as_str()),
            At::Unknown => None,
        };
        Place { cwd, ..place }
    }

    /// A prompt goes out.
    pub(crate) fn turn_begins(&mut self, keeps: ShellCwd) {
        if keeps == ShellCwd::Turn {
            *self = Self::default();
        }
    }

    /// A request was decided, or a call ran. One that a person is to decide may run any time.
    pub(crate) fn decided(&mut self, keeps: ShellCwd, moved: &Moved, decision: Decision) {
        if keeps == ShellCwd::Workspace || *moved == Moved::Not {
            return;
        }
        match decision {
            Decision::Allow => self.ran(moved),
            Decision::Ask => self.open = self.open.saturating_add(1),
            Decision::Deny => {}
        }
    }

    /// A person decided, or nobody did.
    pub(crate) fn resolved(&mut self, keeps: ShellCwd, moved: &Moved, decision: Decision) {
        if keeps == ShellCwd::Workspace || *moved == Moved::Not {
            return;
        }
        self.open = self.open.saturating_sub(1);
        if decision == Decision::Allow {
            self.ran(moved);
        }
    }

    fn ran(&mut self, moved: &Moved) {
        match moved {
            Moved::Not => {}
            Moved::To(path) => self.at = At::In(path.clone()),
            Moved::Away => self.at = At::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STICKY: ShellCwd = ShellCwd::Sticky;

    fn to(path: &str) -> Moved {
        Moved::To(path.to_owned())
    }

    #[test]
    fn only_a_shell_that_keeps_its_directory_is_followed_and_only_through_what_ran() {
        let mut directory = Directory::default();
        directory.decided(ShellCwd::Workspace, &Moved::Away, Decision::Allow);
        directory.decided(STICKY, &Moved::Away, Decision::Deny);
        directory.decided(STICKY, &Moved::Not, Decision::Allow);
        assert_eq!(directory.at, At::Root);
        directory.decided(STICKY, &to("/w/src"), Decision::Allow);
        assert_eq!(directory.at, At::In("/w/src".to_owned()));
        directory.decided(STICKY, &Moved::Away, Decision::Allow);
        directory.decided(STICKY, &Moved::Not, Decision::Allow);
        assert_eq!(directory.at, At::Unknown);
        directory.decided(STICKY, &to("/w"), Decision::Allow);
        assert_eq!(directory.at, At::In("/w".to_owned()));
    }

    #[test]
    fn a_turn_leads_back_to_the_root_only_where_the_agent_does_so() {
        for (keeps, expect) in [(ShellCwd::Turn, At::Root), (STICKY, At::Unknown)] {
            let mut directory = Directory::default();
            directory.decided(keeps, &Moved::Away, Decision::Allow);
            assert_eq!(directory.at, At::Unknown);
            directory.turn_begins(keeps);
            assert_eq!(directory.at, expect);
        }
    }

    #[test]
    fn what_waits_for_a_person_makes_it_unknown_until_they_have_decided() {
        let mut directory = Directory::default();
        directory.decided(STICKY, &to("/w/a"), Decision::Ask);
        directory.decided(STICKY, &to("/w/b"), Decision::Ask);
        directory.decided(STICKY, &Moved::Not, Decision::Ask);
        assert_eq!(directory.open, 2);
        directory.resolved(STICKY, &Moved::Not, Decision::Allow);
        directory.resolved(STICKY, &to("/w/a"), Decision::Deny);
        assert_eq!((directory.open, &directory.at), (1, &At::Root));
        directory.resolved(STICKY, &to("/w/b"), Decision::Allow);
        assert_eq!(
            (directory.open, directory.at),
            (0, At::In("/w/b".to_owned()))
        );
    }
}
