//! Applies a session's changes to its workspace: all of them, or none.
//!
//! First everything new is created beside the workspace's files ([`super::staging`]). Then the
//! steps are recorded durably. Until that record says "decided", the workspace is untouched, and a
//! kill leaves it so. From then on, the next user of the session's overlay, or the supervisor's
//! start, completes the apply ([`recover`]). Every step is one rename, so each path has the old or
//! the new content at any time. The old content moves to where the new one was, is compared once
//! more, and moves back if it is not what was planned. Only compared content is removed in the end
//! (`cleanup`). Must not know the policy.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags};
use serde::{Deserialize, Serialize};

use super::apply_plan::{self, ApplyAction, ApplyPlan};
use super::bases::{Base, open_parent, read_state};
use super::cleanup::{self, CleanupList};
use super::staging::{Stager, assign_slots, check_exchange};
use super::target::{ApplyTarget, DeviceInode, FileStamp, id_of, is_dir};
use super::{Overlay, OverlayError};
use crate::workspace::Owner;
use crate::workspace::tree::{Root, TreeError, meta_at, meta_of};
use marshal_model::limits;
use marshal_model::{SessionId, UntrustedText};

/// Why nothing was applied.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The overlay is not usable.
    #[error(transparent)]
    Overlay(#[from] OverlayError),
    /// Another apply in the same workspace did not end in time.
    #[error(
        "another apply is still running in the workspace {} after {} seconds: wait until it ends, and try again",
        .0.escape_for_display(300), .1.as_secs()
    )]
    WorkspaceBusy(UntrustedText, Duration),
    /// The apply failed, and the workspace is unchanged.
    #[error("nothing was applied: {}: {why}", .path.escape_for_display(300))]
    Undone {
        /// The path where it failed.
        path: UntrustedText,
        /// The reason.
        why: String,
    },
    /// The apply could neither be completed nor rolled back.
    #[error(
        "the apply can neither be completed nor rolled back, because the workspace was changed \
         meanwhile at {}; the files that were there are in {}: move them back by hand, and remove \
         that directory",
        .paths.iter().map(|path| path.escape_for_display(200)).collect::<Vec<_>>().join(", "), .note.escape_for_display(300)
    )]
    Stuck {
        /// The paths that were changed meanwhile.
        paths: Vec<UntrustedText>,
        /// The directory with the other versions.
        note: UntrustedText,
    },
}

impl From<TreeError> for ApplyError {
    fn from(error: TreeError) -> Self {
        Self::Overlay(error.into())
    }
}

/// The result of an apply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApplyReport {
    /// Number of changed paths.
    pub changes: usize,
    /// What other processes added to replaced or removed files, and where it is now, as a sentence.
    pub kept_note: Option<String>,
}

/// One recorded step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ApplyStep {
    path: String,
    /// Its name in the staging directory.
    slot: Option<String>,
    /// The new file or directory.
    new: Option<DeviceInode>,
    /// The old file or directory.
    old: Option<FileStamp>,
    /// The parent directory.
    above: DeviceInode,
    /// Permission bits of a directory, before and after.
    modes: Option<(u32, u32)>,
    /// The content at the path after the step; `None` if only permissions change.
    becomes: Option<Base>,
}

/// The durable record of an apply.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Intent {
    phase: Phase,
    steps: Vec<ApplyStep>,
}

/// The progress of an apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Phase {
    /// The workspace is unchanged, and the staging directory can be removed.
    Untouched,
    /// Everything is staged and checked: from here on the apply goes forward.
    Decided,
    /// All steps are done, and the staging directory contains the old files.
    Done,
}

impl Intent {
    const fn new(phase: Phase, steps: Vec<ApplyStep>) -> Self {
        Self { phase, steps }
    }
}

/// The state of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StepState {
    Before,
    After,
    /// Another process changed the path.
    Neither,
}

fn undone_error(path: &str) -> impl Fn(io::Error) -> ApplyError + '_ {
    move |error| ApplyError::Undone {
        path: UntrustedText::new(path),
        why: error.to_string(),
    }
}

/// Applies a plan without refusals. `program` is this binary.
///
/// # Errors
/// [`ApplyError`]; except for [`ApplyError::Stuck`] the workspace is unchanged.
pub fn apply(
    overlay: &Overlay,
    plan: &ApplyPlan,
    program: &Path,
) -> Result<ApplyReport, ApplyError> {
    if plan.actions.is_empty() {
        return Ok(ApplyReport {
            changes: 0,
            kept_note: None,
        });
    }
    let target = ApplyTarget::lock(overlay, limits::OVERLAY_APPLY_TIMEOUT)?;
    if ApplyTarget::stamp_at(&target.root, &target.staging_name)
        .map_err(undone_error(&target.staging_name))?
        .is_some()
    {
        let there = io::Error::other("it exists already; remove it");
        return Err(undone_error(&target.staging_name)(there));
    }
    cleanup::remove_lists(overlay)?;
    write_intent(overlay, &Intent::new(Phase::Untouched, Vec::new()))?;
    let steps = match stage_changes(overlay, plan, program, &target) {
        Ok(steps) => steps,
        Err(error) => {
            target.remove_staging()?;
            overlay.remove_sidecar("intent")?;
            return Err(error);
        }
    };
    let decided = Intent::new(Phase::Decided, steps);
    if let Err(error) = write_intent(overlay, &decided) {
        target.remove_staging()?;
        overlay.remove_sidecar("intent")?;
        return Err(error);
    }
    Ok(ApplyReport {
        kept_note: carry_out(overlay, &target, decided.steps)?,
        changes: plan.actions.len(),
    })
}

fn write_intent(overlay: &Overlay, intent: &Intent) -> Result<(), ApplyError> {
    let text = serde_json::to_vec(intent).map_err(|error| undone_error("")(error.into()))?;
    if text.len() as u64 > limits::OVERLAY_RECORD_BYTES {
        return Err(undone_error("")(io::ErrorKind::FileTooLarge.into()));
    }
    Ok(overlay.write_sidecar("intent", &text, true)?)
}

/// Creates everything new, and compares everything old once more.
fn stage_changes(
    overlay: &Overlay,
    plan: &ApplyPlan,
    program: &Path,
    target: &ApplyTarget,
) -> Result<Vec<ApplyStep>, ApplyError> {
    let at_staging = undone_error(&target.staging_name);
    rustix::fs::mkdirat(
        &target.root,
        &*target.staging_name,
        Mode::from_raw_mode(0o700),
    )
    .map_err(|errno| at_staging(errno.into()))?;
    let dir = target.open_staging().map_err(&at_staging)?;
    let slots = assign_slots(plan);
    let meta = target.root.meta()?;
    let owner = Owner {
        uid: meta.uid,
        gid: meta.gid,
    };
    let stager = Stager {
        dir: dir.as_fd(),
        plan,
        slots: &slots,
        owner: rustix::process::geteuid().is_root().then_some(owner),
    };
    let upper = overlay.upper()?;
    let mut reader = apply_plan::start_reader(overlay, &upper, program).map_err(&at_staging)?;
    stager.stage(&mut reader).map_err(&at_staging)?;
    drop(reader);
    check_exchange(&dir).map_err(&at_staging)?;
    let made = target.staging_root()?;
    let record = overlay.record()?;
    let mut steps = Vec::new();
    for (path, act) in &plan.actions {
        let mut step = plan_step(target, &dir, plan, &slots, path).map_err(undone_error(path))?;
        // Read it here, where no other process writes: after the swap it may contain another
        // process's work.
        if let Some(slot) = &step.slot {
            step.becomes = Some(read_state(&made, slot).map_err(undone_error(path))?.base);
        }
        steps.push(step);
        let then = record.bases.get(path);
        let now = read_state(&target.root, path)
            .map_err(undone_error(path))?
            .base;
        let is_same = matches!(act, ApplyAction::Mode { .. }) || then == Some(&now);
        if !is_same {
            let changed = io::Error::other("it was changed in the workspace during the apply");
            return Err(undone_error(path)(changed));
        }
    }
    cleanup::write_list(overlay, target, CleanupList::Created).map_err(&at_staging)?;
    Ok(steps)
}

fn plan_step(
    target: &ApplyTarget,
    dir: &OwnedFd,
    plan: &ApplyPlan,
    slots: &BTreeMap<String, String>,
    path: &str,
) -> io::Result<ApplyStep> {
    let act = *plan.actions.get(path).ok_or_else(changed_error)?;
    let slot = slots.get(path).cloned();
    let new = match &slot {
        Some(slot) => ApplyTarget::stamp_at(dir, slot)?.map(|new| new.id),
        None => None,
    };
    let (above, name) = open_parent(&target.root, path)?;
    let old = ApplyTarget::stamp_at(&above, name)?;
    let fits = match act {
        ApplyAction::New => new.is_some() && old.is_none(),
        ApplyAction::Replace => new.is_some() && old.is_some(),
        ApplyAction::Remove => new.is_none() && old.is_some(),
        ApplyAction::Mode { id, .. } => meta_at(&above, &CString::new(name)?)?.id == id,
    };
    if !fits || plan.parents.get(path) != Some(&meta_of(&above)?.id) {
        return Err(changed_error());
    }
    Ok(ApplyStep {
        path: path.to_owned(),
        slot,
        new,
        old,
        above: id_of(&above)?,
        modes: match act {
            ApplyAction::Mode { old, new, .. } => Some((old, new)),
            _ => None,
        },
        becomes: None,
    })
}

/// Completes a decided apply, or rolls all of it back. Returns what was kept, as a sentence.
fn carry_out(
    overlay: &Overlay,
    target: &ApplyTarget,
    steps: Vec<ApplyStep>,
) -> Result<Option<String>, ApplyError> {
    let dir = target
        .open_staging()
        .map_err(undone_error(&target.staging_name))?;
    let bases = overlay.record()?.bases;
    let made = target.staging_root()?;
    let ahead = || -> Result<(), (&str, io::Error)> {
        for step in &steps {
            perform_step(target, &dir, step).map_err(|error| (&*step.path, error))?;
        }
        // List before comparing: what another process adds later is in neither, and is kept.
        cleanup::write_list(overlay, target, CleanupList::Removed)
            .map_err(|error| (&*target.staging_name, error))?;
        for step in &steps {
            check_untouched(&made, step, bases.get(&step.path))
                .map_err(|error| (&*step.path, error))?;
        }
        Ok(())
    };
    if let Err((path, error)) = ahead() {
        roll_back(target, &dir, &steps)?;
        write_intent(overlay, &Intent::new(Phase::Untouched, Vec::new()))?;
        let note = cleanup::clean_up(
            overlay,
            target,
            CleanupList::Created,
            &paths_by_slot(&steps),
        )?;
        overlay.remove_sidecar("intent")?;
        cleanup::remove_lists(overlay)?;
        let why = note.map_or(error.to_string(), |note| format!("{error}; {note}"));
        let path = UntrustedText::new(path);
        return Err(ApplyError::Undone { path, why });
    }
    let mut above = BTreeSet::new();
    for step in &steps {
        let dir = step.path.rsplit_once('/').map_or("", |(dir, _)| dir);
        if above.insert(dir) {
            sync_parent(&target.root, &step.path);
        }
    }
    finish(overlay, target, Intent::new(Phase::Done, steps))
}

/// The workspace's paths by their names in the staging directory.
fn paths_by_slot(steps: &[ApplyStep]) -> BTreeMap<String, String> {
    let places = steps.iter();
    places
        .filter_map(|step| Some((step.slot.clone()?, step.path.clone())))
        .collect()
}

/// Checks that replaced content is still what the session started from. Inode, size and times do
/// not show every change that another process made meanwhile, and it is about to be removed.
fn check_untouched(made: &Root, step: &ApplyStep, then: Option<&Base>) -> io::Result<()> {
    let (Some(slot), Some(_), None) = (&step.slot, step.old, step.modes) else {
        return Ok(());
    };
    if then == Some(&read_state(made, slot)?.base) {
        return Ok(());
    }
    Err(changed_error())
}

/// Finishes an apply whose steps are done. Returns what was kept, as a sentence.
fn finish(
    overlay: &Overlay,
    target: &ApplyTarget,
    done: Intent,
) -> Result<Option<String>, ApplyError> {
    write_intent(overlay, &done)?;
    let places = paths_by_slot(&done.steps);
    let mut record = overlay.record()?;
    for step in done.steps {
        if let Some(base) = step.becomes {
            record.bases.insert(step.path, base);
        }
    }
    overlay.save_record_durably(&record)?;
    let note = cleanup::clean_up(overlay, target, CleanupList::Removed, &places)?;
    overlay.remove_sidecar("intent")?;
    cleanup::remove_lists(overlay)?;
    Ok(note)
}

/// A rename is durable once its directory is synced. A failure here no longer changes the outcome.
fn sync_parent(root: &Root, path: &str) {
    let synced = open_parent(root, path).and_then(|(dir, _)| {
        let dir = crate::workspace::tree::open_dir_at(dir, c".")?;
        Ok(rustix::fs::fsync(dir)?)
    });
    if let Err(error) = synced {
        tracing::warn!(%error, "a directory of the workspace could not be synced to disk after an apply");
    }
}

fn step_state(
    above: &OwnedFd,
    name: &str,
    dir: &OwnedFd,
    step: &ApplyStep,
) -> io::Result<StepState> {
    let here = ApplyTarget::stamp_at(above, name)?;
    if let Some((old, new)) = step.modes {
        let is_same = here.map(|here| here.id) == step.old.map(|old| old.id);
        let mode = rustix::fs::statat(above, name, AtFlags::SYMLINK_NOFOLLOW)?.st_mode & 0o7777;
        return Ok(match mode {
            mode if is_same && mode == new => StepState::After,
            mode if is_same && mode == old => StepState::Before,
            _ => StepState::Neither,
        });
    }
    let there = match &step.slot {
        Some(slot) => ApplyTarget::stamp_at(dir, slot)?,
        None => None,
    };
    let is = |stamp: Option<FileStamp>, id: Option<DeviceInode>| stamp.map(|stamp| stamp.id) == id;
    let old = step.old.map(|old| old.id);
    // A directory's size and times change with its entries; those are compared by content.
    Ok(if is(here, step.new) && is(there, old) {
        StepState::After
    } else if is(here, old) && is(there, step.new) {
        if here == step.old || is_dir(above, name) {
            StepState::Before
        } else {
            StepState::Neither
        }
    } else {
        StepState::Neither
    })
}

fn changed_error() -> io::Error {
    io::Error::other("it was changed in the workspace during the apply")
}

/// Does one step, unless it is done already.
fn perform_step(target: &ApplyTarget, dir: &OwnedFd, step: &ApplyStep) -> io::Result<()> {
    let (above, name) = open_parent(&target.root, &step.path)?;
    if id_of(&above)? != step.above {
        return Err(changed_error());
    }
    match step_state(&above, name, dir, step)? {
        StepState::After => return Ok(()),
        StepState::Neither => return Err(changed_error()),
        StepState::Before => {}
    }
    swap(&above, name, dir, step, true)?;
    // The parent directory itself may have been moved at the same moment.
    let now = open_parent(&target.root, &step.path).and_then(|(above, _)| id_of(above));
    if now.ok() != Some(step.above) {
        swap(&above, name, dir, step, false)?;
        return Err(changed_error());
    }
    // The old file may have been replaced between the check and the swap.
    if step.modes.is_none()
        && let (Some(slot), Some(old)) = (&step.slot, step.old)
    {
        let went = ApplyTarget::stamp_at(dir, slot)?;
        let is_dir = is_dir(dir, slot);
        if went.is_none_or(|went| went.id != old.id || (!is_dir && went != old)) {
            swap(&above, name, dir, step, false)?;
            return Err(changed_error());
        }
    }
    Ok(())
}

/// Does or undoes one step: a single rename or chmod.
fn swap(
    above: &OwnedFd,
    name: &str,
    dir: &OwnedFd,
    step: &ApplyStep,
    ahead: bool,
) -> io::Result<()> {
    if let Some((old, new)) = step.modes {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let at = rustix::fs::openat(above, name, flags, Mode::empty())?;
        let (from, to) = if ahead { (old, new) } else { (new, old) };
        // The directory may have been replaced since the check.
        let stat = rustix::fs::fstat(&at)?;
        let is_same = step
            .old
            .is_some_and(|item| item.id == (stat.st_dev, stat.st_ino));
        if !is_same || stat.st_mode & 0o7777 != from {
            return Err(changed_error());
        }
        return Ok(rustix::fs::fchmod(at, Mode::from_raw_mode(to))?);
    }
    let Some(slot) = &step.slot else {
        return Ok(());
    };
    let (once, never) = (RenameFlags::EXCHANGE, RenameFlags::NOREPLACE);
    match (step.new, step.old, ahead) {
        (Some(_), Some(_), _) => rustix::fs::renameat_with(dir, &**slot, above, name, once)?,
        (Some(_), None, true) | (None, Some(_), false) => {
            rustix::fs::renameat_with(dir, &**slot, above, name, never)?;
        }
        (Some(_), None, false) | (None, Some(_), true) => {
            rustix::fs::renameat_with(above, name, dir, &**slot, never)?;
        }
        (None, None, _) => {}
    }
    Ok(())
}

/// Undoes every completed step.
fn roll_back(target: &ApplyTarget, dir: &OwnedFd, steps: &[ApplyStep]) -> Result<(), ApplyError> {
    let mut stuck = Vec::new();
    for step in steps.iter().rev() {
        let taken = open_parent(&target.root, &step.path).and_then(|(above, name)| {
            match step_state(&above, name, dir, step)? {
                StepState::After => swap(&above, name, dir, step, false),
                StepState::Before => Ok(()),
                StepState::Neither => {
                    // Another process's change of the original file itself is kept.
                    let here = ApplyTarget::stamp_at(&above, name)?.map(|here| here.id);
                    let slot = step.slot.as_deref().unwrap_or_default();
                    let there = ApplyTarget::stamp_at(dir, slot)?.map(|there| there.id);
                    let was_never_there = there == step.new
                        && (step.new.is_some() || here == step.old.map(|old| old.id));
                    if step.modes.is_some() || was_never_there {
                        Ok(())
                    } else {
                        Err(changed_error())
                    }
                }
            }
        });
        if taken.is_err() {
            stuck.push(UntrustedText::new(&*step.path));
        }
    }
    if stuck.is_empty() {
        return Ok(());
    }
    let note = target.root.path().join(&target.staging_name);
    Err(ApplyError::Stuck {
        paths: stuck,
        note: UntrustedText::new(note.to_string_lossy()),
    })
}

/// Recovers an apply that was killed: completes it if it was decided, otherwise removes its traces.
/// Returns what was done, as a sentence, if anything was.
///
/// # Errors
/// [`ApplyError`]: [`ApplyError::Undone`] if it was decided and had to be rolled back.
pub fn recover(overlay: &Overlay) -> Result<Option<String>, ApplyError> {
    recover_within(overlay, limits::OVERLAY_APPLY_TIMEOUT)
}

/// The same, with a limit for waiting for another apply in the same workspace.
fn recover_within(overlay: &Overlay, wait: Duration) -> Result<Option<String>, ApplyError> {
    let text = overlay
        .read_sidecar("intent", limits::OVERLAY_RECORD_BYTES)
        .map_err(undone_error(""))?;
    let Some(text) = text else {
        return Ok(None);
    };
    let intent: Intent = serde_json::from_slice(&text).map_err(|error| OverlayError::Record {
        session: overlay.session().clone(),
        why: error.to_string(),
    })?;
    let target = ApplyTarget::lock(overlay, wait)?;
    let session = overlay.session();
    let phase = intent.phase;
    if phase == Phase::Decided
        && ApplyTarget::stamp_at(&target.root, &target.staging_name)
            .map_err(undone_error(&target.staging_name))?
            .is_none()
    {
        overlay.remove_sidecar("intent")?;
        cleanup::remove_lists(overlay)?;
        return Ok(Some(describe_lost_apply(
            session,
            &target.staging_name,
            &intent.steps,
        )));
    }
    let (note, what) = match phase {
        Phase::Untouched => {
            let note = cleanup::clean_up(overlay, &target, CleanupList::Created, &BTreeMap::new())?;
            overlay.remove_sidecar("intent")?;
            cleanup::remove_lists(overlay)?;
            (note, "had changed nothing and was discarded")
        }
        Phase::Decided => {
            let note = carry_out(overlay, &target, intent.steps)?;
            (note, "was completed")
        }
        Phase::Done => {
            let note = finish(overlay, &target, intent)?;
            (note, "was completed")
        }
    };
    let note = note.map_or(String::new(), |note| format!("; {note}"));
    Ok(Some(format!(
        "an interrupted apply of the session {session} {what}{note}"
    )))
}

/// Describes an apply whose staging directory was removed.
fn describe_lost_apply(session: &SessionId, staging: &str, steps: &[ApplyStep]) -> String {
    let mut paths = steps
        .iter()
        .take(limits::OVERLAY_PATHS_NAMED)
        .map(|step| UntrustedText::new(&*step.path).escape_for_display(200))
        .collect::<Vec<_>>()
        .join(", ");
    if let Some(more @ 1..) = steps.len().checked_sub(limits::OVERLAY_PATHS_NAMED) {
        paths = format!("{paths} and {more} more");
    }
    format!(
        "an apply of the session {session} was interrupted, and its directory {staging} does not \
         exist any more: it cannot be completed; check these paths, each has either its old content \
         or the session's: {paths}"
    )
}

/// The same for a session whose overlay nobody uses.
///
/// # Errors
/// As [`recover`].
pub fn recover_session(overlays: &Root, session: &SessionId) -> Result<Option<String>, ApplyError> {
    match Overlay::lock_existing(overlays, session) {
        Err(OverlayError::Busy(_)) => Ok(None),
        // The supervisor's start does not wait: the next command completes it.
        overlay => recover_within(&overlay?, Duration::ZERO),
    }
}
