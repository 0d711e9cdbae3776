//! The directories in which the agent's shell may start its next command, as far as they are known.
//!
//! Where an agent's shell keeps its directory (`shell_cwd = "sticky"`, or `"turn"` until the turn
//! ends), the supervisor cannot see whether a command that would move it ran, completed or took
//! effect. So every possible directory is kept, always including the workspace's root, and a
//! request is evaluated from each: the most severe verdict applies. Where they cannot be tracked,
//! and while a request that would move the shell waits for an approver, the directory is unknown.
//! No rule then allows what depends on it. Must not know the text of requests: the policy says what
//! moves the shell.

use crate::session::workspace::prepare::PreparedSession;
use marshal_config::ShellCwd;
use marshal_model::Decision;
use marshal_model::limits::POLICY_CWDS;
use marshal_policy::{CwdChange, FsContext};

/// The possible directories of the shell.
#[derive(Debug, Clone, Default)]
pub(crate) struct ShellDirectory {
    location: ShellLocation,
    /// Requests that would move the shell and wait for an approver.
    open: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum ShellLocation {
    /// At the start directory, or in one of these.
    AnyOf(Vec<String>),
    /// In any directory.
    Unknown,
}

impl Default for ShellLocation {
    fn default() -> Self {
        Self::AnyOf(Vec::new())
    }
}

impl ShellDirectory {
    /// An unknown directory.
    pub(crate) const fn unknown() -> Self {
        Self {
            location: ShellLocation::Unknown,
            open: 0,
        }
    }

    /// A context for the policy per possible directory.
    pub(crate) fn possible_places<'a>(
        &'a self,
        prepared: &'a PreparedSession,
    ) -> Vec<FsContext<'a>> {
        let place = prepared.place();
        let from = |cwd| FsContext { cwd, ..place };
        match &self.location {
            ShellLocation::AnyOf(further) if self.open == 0 => {
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

    /// Handles the start of a turn.
    pub(crate) fn start_turn(&mut self, keeps: ShellCwd) {
        if keeps == ShellCwd::Turn {
            *self = Self::default();
        }
    }

    /// Records a decided request, or a call that ran. A request that waits for an approver may run
    /// at any time.
    pub(crate) fn record_decision(
        &mut self,
        keeps: ShellCwd,
        moved: &CwdChange,
        decision: Decision,
    ) {
        if keeps == ShellCwd::Workspace || *moved == CwdChange::Unchanged {
            return;
        }
        match decision {
            Decision::Allow => self.add_moves(moved),
            Decision::Ask => self.open = self.open.saturating_add(1),
            Decision::Deny => {}
        }
    }

    /// Records that a pending request was decided, or ended.
    pub(crate) fn record_resolution(
        &mut self,
        keeps: ShellCwd,
        moved: &CwdChange,
        decision: Decision,
    ) {
        if keeps == ShellCwd::Workspace || *moved == CwdChange::Unchanged {
            return;
        }
        self.open = self.open.saturating_sub(1);
        if decision != Decision::Allow {
            return;
        }
        // The target was resolved when it was requested; since then other requests may have moved
        // the shell.
        if self.open == 0 && self.location == ShellLocation::default() {
            self.add_moves(moved);
        } else {
            self.location = ShellLocation::Unknown;
        }
    }

    fn add_moves(&mut self, moved: &CwdChange) {
        let (ShellLocation::AnyOf(among), CwdChange::OneOf(places)) = (&mut self.location, moved)
        else {
            if *moved != CwdChange::Unchanged {
                self.location = ShellLocation::Unknown;
            }
            return;
        };
        for place in places {
            if !among.contains(place) {
                among.push(place.clone());
            }
        }
        if among.len() > POLICY_CWDS {
            self.location = ShellLocation::Unknown;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STICKY: ShellCwd = ShellCwd::Sticky;

    fn to(path: &str) -> CwdChange {
        CwdChange::OneOf(vec![path.to_owned()])
    }

    fn among(paths: &[&str]) -> ShellLocation {
        ShellLocation::AnyOf(paths.iter().map(|path| (*path).to_owned()).collect())
    }

    #[test]
    fn only_a_shell_that_keeps_its_directory_is_followed_and_no_place_is_forgotten() {
        let mut directory = ShellDirectory::default();
        directory.record_decision(ShellCwd::Workspace, &CwdChange::Unknown, Decision::Allow);
        directory.record_decision(STICKY, &CwdChange::Unknown, Decision::Deny);
        directory.record_decision(STICKY, &CwdChange::Unchanged, Decision::Allow);
        assert_eq!(directory.location, among(&[]));
        directory.record_decision(STICKY, &to("/w/src"), Decision::Allow);
        directory.record_decision(STICKY, &to("/w/a"), Decision::Allow);
        directory.record_decision(STICKY, &to("/w/src"), Decision::Allow);
        assert_eq!(directory.location, among(&["/w/src", "/w/a"]));
        directory.record_decision(STICKY, &CwdChange::Unknown, Decision::Allow);
        directory.record_decision(STICKY, &to("/w"), Decision::Allow);
        assert_eq!(
            directory.location,
            ShellLocation::Unknown,
            "a way back may fail"
        );
    }

    #[test]
    fn too_many_places_are_none() {
        let mut directory = ShellDirectory::default();
        for place in 0..=POLICY_CWDS {
            let known = matches!(directory.location, ShellLocation::AnyOf(_));
            assert!(known, "{place}");
            directory.record_decision(STICKY, &to(&format!("/w/{place}")), Decision::Allow);
        }
        assert_eq!(directory.location, ShellLocation::Unknown);
    }

    #[test]
    fn a_turn_leads_back_to_the_root_only_where_the_agent_does_so() {
        for (keeps, expect) in [
            (ShellCwd::Turn, among(&[])),
            (STICKY, ShellLocation::Unknown),
        ] {
            let mut directory = ShellDirectory::default();
            directory.record_decision(keeps, &CwdChange::Unknown, Decision::Allow);
            assert_eq!(directory.location, ShellLocation::Unknown);
            directory.start_turn(keeps);
            assert_eq!(directory.location, expect);
        }
    }

    #[test]
    fn what_waits_for_a_person_makes_it_unknown_until_they_have_decided() {
        let mut directory = ShellDirectory::default();
        directory.record_decision(STICKY, &to("/w/a"), Decision::Ask);
        directory.record_decision(STICKY, &to("/w/b"), Decision::Ask);
        directory.record_decision(STICKY, &CwdChange::Unchanged, Decision::Ask);
        assert_eq!(directory.open, 2);
        directory.record_resolution(STICKY, &CwdChange::Unchanged, Decision::Allow);
        directory.record_resolution(STICKY, &to("/w/a"), Decision::Deny);
        assert_eq!((directory.open, &directory.location), (1, &among(&[])));
        directory.record_resolution(STICKY, &to("/w/b"), Decision::Allow);
        assert_eq!(
            (directory.open, &directory.location),
            (0, &among(&["/w/b"]))
        );
        // It was seen from the root, and is run from elsewhere.
        directory.record_decision(STICKY, &to("/w/c"), Decision::Ask);
        directory.record_resolution(STICKY, &to("/w/c"), Decision::Allow);
        assert_eq!(directory.location, ShellLocation::Unknown);
    }
}
