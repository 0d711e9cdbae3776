//! Removes expired directories: copies some time after their task, homes with their session,
//! leftovers of a killed supervisor.
//!
//! What is kept is decided by names and by files that only the supervisor can access, never by
//! times in a tree that an agent wrote. A tree is renamed before its removal, so that no process
//! uses a partly removed one. Must not know sessions: the caller says which exist.

use std::os::fd::AsFd;
use std::time::{Duration, SystemTime};

use rustix::fs::RenameFlags;
use rustix::io::Errno;

use super::branch::sidecar_names;
use super::copy::{PART, ended_marker, mark_ended};
use super::layer::{self, LayerKey};
use super::overlay;
use super::removal::remove_tree;
use super::tree::{Root, TreeError, for_each_entry, open_dir_at};
use crate::state_dir::{StateDir, unlocked_local_runs};
use marshal_model::{SessionId, limits};

/// Prefix of trees that are being removed.
const TRASH: &str = ".trash-";

/// When a sweep runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SweepTime {
    /// At the start, before anything else works in the state directory: unfinished and partly
    /// removed trees go too.
    Start,
    /// Regularly, while sessions work.
    Hourly,
}

/// What a sweep asks about a session. A session is known before its home or copy is created.
pub trait SessionLookup {
    /// Whether it may be resumed, so that its home is needed.
    fn exists(&self, session: &SessionId) -> bool;
    /// Whether it works now, so that its copy is needed.
    fn is_working(&self, session: &SessionId) -> bool;
}

/// The result of a sweep.
#[derive(Debug, Default)]
pub struct SweepReport {
    /// Number of copies removed.
    pub copies: u64,
    /// Number of overlays removed.
    pub overlays: u64,
    /// Interrupted applies that were recovered, as a sentence each.
    pub finished_applies: Vec<String>,
    /// Number of homes removed.
    pub homes: u64,
    /// Number of layers of setups removed.
    pub layers: u64,
    /// Number of unfinished or partly removed trees, of old `--local` runs, of quarantined files, of
    /// records of clones without a clone and of sidecar files of overlays, removed.
    pub leftovers: u64,
    /// What could not be removed; the sweep continued.
    pub failed: Vec<TreeError>,
}

/// Removes copies and overlays whose task ended more than `retention` ago, and homes of sessions that
/// do not exist. At [`SweepTime::Start`] it also removes leftovers and `--local` runs that started
/// more than `retention` ago, and recovers interrupted applies. A copy or overlay without an end
/// marker whose session is not working now lost its supervisor: its retention starts now.
pub fn sweep(
    state: &StateDir,
    when: SweepTime,
    now: SystemTime,
    retention: Duration,
    sessions: &dyn SessionLookup,
) -> SweepReport {
    let mut swept = SweepReport::default();
    // If the clock was set back, entries appear younger, never older.
    let is_old = |then: SystemTime| now.duration_since(then).is_ok_and(|age| age > retention);
    if when == SweepTime::Start {
        for root in [
            state.copies(),
            state.homes(),
            state.overlays(),
            state.quarantine(),
            state.layers(),
        ] {
            swept.sweep_leftovers(root);
        }
        swept.sweep_orphaned_records(state.copies(), sessions);
        swept.sweep_local_runs(state, &is_old);
        swept.sweep_unfinished_applies(state);
    }
    swept.sweep_quarantine(state.quarantine(), when, &is_old);
    swept.sweep_overlays(state, &is_old, sessions);
    swept.sweep_copies(state, &is_old, sessions);
    for name in names(state.homes(), &mut swept.failed) {
        let of_caches = super::cache::session_of(&name);
        let Ok(session) = SessionId::new(of_caches.unwrap_or(&name)) else {
            continue;
        };
        if sessions.exists(&session) || sessions.is_working(&session) {
            continue;
        }
        match discard(state.homes(), &name) {
            Ok(()) => swept.homes += u64::from(of_caches.is_none()),
            Err(error) => swept.failed.push(error),
        }
    }
    swept.sweep_layers(state, &is_old);
    swept
}

/// Removes unused layers while all of them have more than [`limits::LAYERS_BYTES`]; returns what could
/// not be removed.
pub fn trim_layers(state: &StateDir) -> Vec<TreeError> {
    let mut swept = SweepReport::default();
    swept.sweep_layers(state, &|_| false);
    swept.failed
}

/// Removes a layer that nothing asks for any more, if no session has it; returns what could not be
/// removed.
pub fn discard_layer(state: &StateDir, key: &LayerKey) -> Vec<TreeError> {
    let mut swept = SweepReport::default();
    if layer::exists(state, key) {
        swept.remove_unused_layers(state, &[key.as_str().to_owned()], &|_| true);
    }
    swept.failed
}

impl SweepReport {
    /// Removes what was taken out of workspaces. A record of a workspace is in use until the next
    /// start.
    fn sweep_quarantine(
        &mut self,
        root: &Root,
        when: SweepTime,
        is_old: &dyn Fn(SystemTime) -> bool,
    ) {
        for name in names(root, &mut self.failed) {
            let is_record = SessionId::new(&name).is_err();
            let time = root
                .path()
                .join(&name)
                .symlink_metadata()
                .and_then(|meta| meta.modified());
            if time.is_ok_and(is_old) && (!is_record || when == SweepTime::Start) {
                count(discard(root, &name), &mut self.leftovers, &mut self.failed);
            }
        }
    }

    fn sweep_leftovers(&mut self, root: &Root) {
        for name in names(root, &mut self.failed) {
            if name.starts_with(PART) || name.starts_with(TRASH) {
                count(
                    remove_tree(root, &name),
                    &mut self.leftovers,
                    &mut self.failed,
                );
            }
        }
    }

    /// Removes records of clones that were never completed.
    fn sweep_orphaned_records(&mut self, copies: &Root, sessions: &dyn SessionLookup) {
        for name in names(copies, &mut self.failed) {
            let Some((session, what)) = name.split_once(',') else {
                continue;
            };
            let Ok(session) = SessionId::new(session) else {
                continue;
            };
            if !what.starts_with("branch") {
                continue;
            }
            let clone = copies.path().join(session.as_str());
            if clone.symlink_metadata().is_err() && !sessions.is_working(&session) {
                let done = remove_clone_sidecars(copies, session.as_str());
                count(done, &mut self.leftovers, &mut self.failed);
            }
        }
    }

    fn sweep_local_runs(&mut self, state: &StateDir, is_old: &dyn Fn(SystemTime) -> bool) {
        let path = state.path().join("local");
        let opened = Root::open_at(state.root(), "local", path);
        let (Ok(locals), Ok(root)) = (unlocked_local_runs(state), opened) else {
            return;
        };
        for (name, began) in locals {
            if is_old(began) {
                count(
                    remove_tree(&root, &name),
                    &mut self.leftovers,
                    &mut self.failed,
                );
            }
        }
    }

    /// Recovers interrupted applies, and removes sidecar files of overlays that do not exist.
    fn sweep_unfinished_applies(&mut self, state: &StateDir) {
        let root = state.overlays();
        for name in names(root, &mut self.failed) {
            let Some((session, what)) = name.split_once(',') else {
                continue;
            };
            let Ok(session) = SessionId::new(session) else {
                continue;
            };
            if overlay::path(root, &session).symlink_metadata().is_err() {
                // A missing overlay has no user, so its sidecar files can go.
                count(
                    remove_tree(root, &name),
                    &mut self.leftovers,
                    &mut self.failed,
                );
            } else if what == "intent" {
                match overlay::apply::recover_session(root, &session) {
                    Ok(report) => self.finished_applies.extend(report),
                    Err(error) => self.failed.push(TreeError::at_path(
                        "finish the apply of",
                        &overlay::path(root, &session),
                        std::io::Error::other(error),
                    )),
                }
            }
        }
    }

    fn sweep_overlays(
        &mut self,
        state: &StateDir,
        is_old: &dyn Fn(SystemTime) -> bool,
        sessions: &dyn SessionLookup,
    ) {
        let root = state.overlays();
        for session in sessions_in(root, &mut self.failed) {
            if sessions.is_working(&session) {
                continue;
            }
            let marker = overlay::sidecar_name(session.as_str(), "ended");
            let ended = root.path().join(&marker).symlink_metadata();
            match ended.and_then(|meta| meta.modified()) {
                // An overlay in use by an apply is removed by a later sweep.
                Ok(ended) if is_old(ended) => match overlay::Overlay::lock_existing(root, &session)
                {
                    Ok(locked) => count(locked.discard(), &mut self.overlays, &mut self.failed),
                    Err(overlay::OverlayError::Busy(_)) => {}
                    Err(_) => {
                        let removed = overlay::remove(root, &session);
                        count(removed, &mut self.overlays, &mut self.failed);
                    }
                },
                Ok(_) => {}
                Err(_) => self
                    .failed
                    .extend(overlay::mark_ended(root, &session).err()),
            }
        }
    }

    /// Removes layers that no session has: some time after their last use, and those whose last use is
    /// longest ago while all of them have more than [`limits::LAYERS_BYTES`].
    fn sweep_layers(&mut self, state: &StateDir, is_old: &dyn Fn(SystemTime) -> bool) {
        let layers = names(state.layers(), &mut self.failed);
        self.remove_unused_layers(state, &layers, is_old);
    }

    fn remove_unused_layers(
        &mut self,
        state: &StateDir,
        layers: &[String],
        is_old: &dyn Fn(SystemTime) -> bool,
    ) {
        if layers.is_empty() {
            return;
        }
        let homes = names(state.homes(), &mut self.failed);
        let unused = layer::Unused {
            is_old,
            max_bytes: limits::LAYERS_BYTES,
        };
        let to_trash = |name: &str| format!("{TRASH}{name}");
        match layer::take_unused(state, (&homes, layers), &unused, to_trash) {
            Ok(taken) => {
                for name in taken {
                    let removed = remove_tree(state.layers(), &name);
                    count(removed, &mut self.layers, &mut self.failed);
                }
            }
            Err(error) => {
                let error = std::io::Error::other(error);
                let failed = TreeError::at_path("sweep", state.layers().path(), error);
                self.failed.push(failed);
            }
        }
    }

    fn sweep_copies(
        &mut self,
        state: &StateDir,
        is_old: &dyn Fn(SystemTime) -> bool,
        sessions: &dyn SessionLookup,
    ) {
        for session in sessions_in(state.copies(), &mut self.failed) {
            if sessions.is_working(&session) {
                continue;
            }
            let marker = ended_marker(session.as_str());
            let ended = state.copies().path().join(&marker).symlink_metadata();
            match ended.and_then(|meta| meta.modified()) {
                Ok(ended) if is_old(ended) => {
                    let done = discard(state.copies(), session.as_str())
                        .and_then(|()| remove_clone_sidecars(state.copies(), session.as_str()))
                        .and_then(|()| remove_tree(state.copies(), &marker));
                    count(done, &mut self.copies, &mut self.failed);
                }
                Ok(_) => {}
                Err(_) => self.failed.extend(mark_ended(state, &session).err()),
            }
        }
    }
}

fn count(done: Result<(), TreeError>, counter: &mut u64, failed: &mut Vec<TreeError>) {
    match done {
        Ok(()) => *counter += 1,
        Err(error) => failed.push(error),
    }
}

/// Removes the sidecar files of a session's clones: bundles, where they landed, and records.
pub(super) fn remove_clone_sidecars(copies: &Root, session: &str) -> Result<(), TreeError> {
    sidecar_names(session).try_for_each(|name| remove_tree(copies, &name))
}

/// Removes a tree that other processes may still look up: renames it first.
pub(super) fn discard(root: &Root, name: &str) -> Result<(), TreeError> {
    let trash = format!("{TRASH}{name}");
    remove_tree(root, &trash)?;
    let dir = root.as_fd();
    match rustix::fs::renameat_with(dir, name, dir, &*trash, RenameFlags::NOREPLACE) {
        Ok(()) => remove_tree(root, &trash),
        Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(TreeError::at("remove", name.as_bytes(), errno)),
    }
}

fn names(root: &Root, failed: &mut Vec<TreeError>) -> Vec<String> {
    let mut names = Vec::new();
    let listed = open_dir_at(root, c".").and_then(|dir| {
        for_each_entry(&dir, |name| {
            // Names that are not UTF-8 are not ours.
            names.extend(name.to_str().ok().map(str::to_owned));
            Ok(())
        })
    });
    if let Err(error) = listed {
        failed.push(TreeError::at_path("list", root.path(), error));
    }
    names
}

fn sessions_in(root: &Root, failed: &mut Vec<TreeError>) -> Vec<SessionId> {
    let names = names(root, failed);
    let ids = names.iter().filter_map(|name| SessionId::new(name).ok());
    ids.collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::super::copy;
    use super::super::testing::scratch;
    use super::*;
    use crate::test_fixtures::wait_until_unlocked;
    use marshal_model::RunId;
    use marshal_model::limits::COPY_RETENTION;

    #[derive(Default)]
    struct Known {
        existing: &'static [&'static str],
        working: &'static [&'static str],
    }

    impl SessionLookup for Known {
        fn exists(&self, session: &SessionId) -> bool {
            self.existing.contains(&session.as_str())
        }
        fn is_working(&self, session: &SessionId) -> bool {
            self.working.contains(&session.as_str())
        }
    }

    fn names_in(path: &Path) -> BTreeSet<String> {
        let entries = std::fs::read_dir(path).unwrap();
        let name = |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().file_name();
        entries
            .map(|entry| name(entry).into_string().unwrap())
            .collect()
    }

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    fn tree(path: &Path) {
        std::fs::create_dir_all(path.join("sub")).unwrap();
        std::fs::write(path.join("sub/file"), "x").unwrap();
    }

    #[test]
    fn a_copy_goes_a_week_after_its_task_whatever_time_its_agent_gave_it() {
        let dir = scratch();
        let state = StateDir::open(&dir.path().join("state"), &[]).unwrap();
        let copies = state.copies().path().to_owned();
        for name in ["ended", "working", "orphan"] {
            tree(&copies.join(name));
        }
        let far_future = SystemTime::now() + Duration::from_secs(1 << 31);
        std::fs::File::open(copies.join("ended"))
            .unwrap()
            .set_modified(far_future)
            .unwrap();
        mark_ended(&state, &SessionId::new("ended").unwrap()).unwrap();
        let known = Known {
            existing: &["ended", "working", "orphan"],
            working: &["working"],
        };
        let now = SystemTime::now();
        let at = |now| sweep(&state, SweepTime::Hourly, now, COPY_RETENTION, &known);
        let all = set(&["ended", "ended,ended", "working", "orphan", "orphan,ended"]);
        assert_eq!(at(now).copies, 0);
        assert_eq!(names_in(&copies), all, "the orphan's time has begun");
        assert_eq!(
            at(now - COPY_RETENTION * 2).copies,
            0,
            "a clock set back removes nothing"
        );
        assert_eq!(at(now + COPY_RETENTION - Duration::from_secs(60)).copies, 0);
        let swept = at(now + COPY_RETENTION + Duration::from_secs(60));
        assert_eq!((swept.copies, swept.failed.len()), (2, 0));
        assert_eq!(names_in(&copies), set(&["working"]));
    }

    #[test]
    fn homes_go_with_their_session() {
        let dir = scratch();
        let state = StateDir::open(&dir.path().join("state"), &[]).unwrap();
        let homes = state.homes().path().to_owned();
        for name in [
            "kept",
            "kept,caches",
            "starting",
            "gone",
            "gone,caches",
            "lost,caches",
            ".part-x",
            ".trash-y",
        ] {
            tree(&homes.join(name));
        }
        let known = Known {
            existing: &["kept"],
            working: &["starting"],
        };
        let swept = sweep(
            &state,
            SweepTime::Hourly,
            SystemTime::now(),
            COPY_RETENTION,
            &known,
        );
        assert_eq!((swept.homes, swept.leftovers), (1, 0));
        let all = set(&["kept", "kept,caches", "starting", ".part-x", ".trash-y"]);
        assert_eq!(
            names_in(&homes),
            all,
            "others may be at work on the last two"
        );
        let swept = sweep(
            &state,
            SweepTime::Start,
            SystemTime::now(),
            COPY_RETENTION,
            &known,
        );
        assert_eq!((swept.homes, swept.leftovers), (0, 2));
        assert_eq!(names_in(&homes), set(&["kept", "kept,caches", "starting"]));
    }

    #[test]
    fn local_runs_are_kept_while_they_run_and_a_week_after_their_start() {
        let dir = scratch();
        let path = dir.path().join("state");
        let state = StateDir::open(&path, &[]).unwrap();
        let run = |name| StateDir::open_local(&path, &RunId::new(name).unwrap(), &[]).unwrap();
        drop(run("ended"));
        wait_until_unlocked(&path.join("local/ended/lock"));
        let running = run("running");
        let at = |now| {
            sweep(
                &state,
                SweepTime::Start,
                now,
                COPY_RETENTION,
                &Known::default(),
            )
            .leftovers
        };
        let now = SystemTime::now();
        assert_eq!(at(now), 0);
        assert_eq!(at(now + COPY_RETENTION * 2), 1);
        assert_eq!(names_in(&path.join("local")), set(&["running"]));
        drop(running);
    }

    #[test]
    fn a_discarded_copy_is_gone_with_its_marker() {
        let dir = scratch();
        let state = StateDir::open(&dir.path().join("state"), &[]).unwrap();
        let session = SessionId::new("s").unwrap();
        tree(&copy::path(&state, &session));
        mark_ended(&state, &session).unwrap();
        mark_ended(&state, &session).expect("twice is fine");
        copy::discard(&state, &session).unwrap();
        copy::discard(&state, &session).expect("twice is fine");
        assert_eq!(names_in(state.copies().path()), set(&[]));
    }

    #[test]
    fn a_bundle_goes_with_its_clone() {
        let dir = scratch();
        let state = StateDir::open(&dir.path().join("state"), &[]).unwrap();
        let copies = state.copies().path().to_owned();
        tree(&copies.join("s"));
        for name in [
            "s,bundle",
            "s,branch",
            "s,bundle-2",
            "gone,branch-16",
            "gone,bundle",
        ] {
            std::fs::write(copies.join(name), "x").unwrap();
        }
        mark_ended(&state, &SessionId::new("s").unwrap()).unwrap();
        let at = |when, now| sweep(&state, when, now, COPY_RETENTION, &Known::default());
        let now = SystemTime::now();
        assert_eq!(at(SweepTime::Start, now).leftovers, 1);
        let all = set(&["s", "s,ended", "s,bundle", "s,branch", "s,bundle-2"]);
        assert_eq!(names_in(&copies), all);
        assert_eq!(at(SweepTime::Hourly, now + COPY_RETENTION * 2).copies, 1);
        assert_eq!(names_in(&copies), set(&[]));
    }
}
