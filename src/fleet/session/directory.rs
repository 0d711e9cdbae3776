//! In which directories the agent's shell may begin its next command, as far as they are known.
//!
//! Of an agent whose shell keeps its directory (`shell_cwd = "sticky"`, or `"turn"` until its turn is
//! over) nobody here sees whether a command that would move it ran, ran to its end, or counted. So
//! every directory in which it may be is kept, the workspace's root always among them, and a request
//! is judged from each: the most severe verdict holds. Where they cannot be followed, and while
//! something waits for a person that would move it, the directory is unknown, and no rule allows
//! what depends on it. Must not know requests' words: the policy says what moves.

use super::prepare::Prepared;
use crate::config::ShellCwd;
use crate::limits::POLICY_CWDS;
use crate::model::Decision;
use crate::policy::{Moved, Place};

/// Where the shell may be.
#[derive(Debug, Clone, Default)]
pub(crate) struct Directory {
    at: At,
    /// Requests that would move it, and that a person is to decide.
    open: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum At {
    /// Where it begins, or in one of these.
    Among(Vec<String>),
    /// Anywhere.
    Unknown,
}

impl Default for At {
    fn default() -> Self {
        Self::Among(Vec::new())
    }
}

impl Directory {
    /// Nobody knows where.
    pub(crate) const fn unknown() -> Self {
        Self {
            at: At::Unknown,
            open: 0,
        }
    }

    /// What the policy judges paths by: each of them.
    pub(crate) fn places<'a>(&'a self, prepared: &'a Prepared) -> Vec<Place<'a>> {
        let place = prepared.place();
        let from = |cwd| Place { cwd, ..place };
        match &self.at {
            At::Among(further) if self.open == 0 => {
                let mut places = vec![place];
                if !further.is_empty() {
                    places.push(from(Some(place.workspace)));
                }
                places.extend(further.iter().map(|path| from(Some(path.as_str()))));
                places
            }
            _ => vec![from(None)],
        }
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
            Decision::Allow => self.may_run(moved),
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
        if decision != Decision::Allow {
            return;
        }
        // Where it leads was seen when it was asked for; since then others may have moved the shell.
        if self.open == 0 && self.at == At::default() {
            self.may_run(moved);
        } else {
            self.at = At::Unknown;
        }
    }

    fn may_run(&mut self, moved: &Moved) {
        let (At::Among(among), Moved::To(places)) = (&mut self.at, moved) else {
            if *moved != Moved::Not {
                self.at = At::Unknown;
            }
            return;
        };
        for place in places {
            if !among.contains(place) {
                among.push(place.clone());
            }
        }
        if among.len() > POLICY_CWDS {
            self.at = At::Unknown;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STICKY: ShellCwd = ShellCwd::Sticky;

    fn to(path: &str) -> Moved {
        Moved::To(vec![path.to_owned()])
    }

    fn among(paths: &[&str]) -> At {
        At::Among(paths.iter().map(|path| (*path).to_owned()).collect())
    }

    #[test]
    fn only_a_shell_that_keeps_its_directory_is_followed_and_no_place_is_forgotten() {
        let mut directory = Directory::default();
        directory.decided(ShellCwd::Workspace, &Moved::Away, Decision::Allow);
        directory.decided(STICKY, &Moved::Away, Decision::Deny);
        directory.decided(STICKY, &Moved::Not, Decision::Allow);
        assert_eq!(directory.at, among(&[]));
        directory.decided(STICKY, &to("/w/src"), Decision::Allow);
        directory.decided(STICKY, &to("/w/a"), Decision::Allow);
        directory.decided(STICKY, &to("/w/src"), Decision::Allow);
        assert_eq!(directory.at, among(&["/w/src", "/w/a"]));
        directory.decided(STICKY, &Moved::Away, Decision::Allow);
        directory.decided(STICKY, &to("/w"), Decision::Allow);
        assert_eq!(directory.at, At::Unknown, "a way back may fail");
    }

    #[test]
    fn too_many_places_are_none() {
        let mut directory = Directory::default();
        for place in 0..=POLICY_CWDS {
            let known = matches!(directory.at, At::Among(_));
            assert!(known, "{place}");
            directory.decided(STICKY, &to(&format!("/w/{place}")), Decision::Allow);
        }
        assert_eq!(directory.at, At::Unknown);
    }

    #[test]
    fn a_turn_leads_back_to_the_root_only_where_the_agent_does_so() {
        for (keeps, expect) in [(ShellCwd::Turn, among(&[])), (STICKY, At::Unknown)] {
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
        assert_eq!((directory.open, &directory.at), (1, &among(&[])));
        directory.resolved(STICKY, &to("/w/b"), Decision::Allow);
        assert_eq!((directory.open, &directory.at), (0, &among(&["/w/b"])));
        // It was seen from the root, and is run from elsewhere.
        directory.decided(STICKY, &to("/w/c"), Decision::Ask);
        directory.resolved(STICKY, &to("/w/c"), Decision::Allow);
        assert_eq!(directory.at, At::Unknown);
    }
}
