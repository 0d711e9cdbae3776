//! Protected files in a workspace that agents write themselves: what was there before they began,
//! and what appeared since.
//!
//! Inside a sandbox what is there cannot be changed. What appears under a protected name is taken
//! out of the workspace after each task, and after the end of the child. The record of what was
//! there is on disk while agents work, so that a supervisor that is started again still knows it.
//! Must not know how a path is searched, mounted or moved.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use sha2::{Digest as _, Sha256};

use super::prepare::PrepareError;
use crate::setup::{PoolShared, Shared};
use marshal_config::WorkspaceMode;
use marshal_model::{Event, SessionId, UntrustedText};
use marshal_policy::Policy;
use marshal_sandbox::state_dir::StateDir;
use marshal_sandbox::workspace::quarantine::Quarantine;
use marshal_sandbox::workspace::{ProtectedMounts, ProtectedPaths, Root, TreeError, foreign_path};

/// Of a file that was there.
const REPLACED: &str =
    "another file took its place while an agent worked, which the agent could write; look at it";

/// The records of all workspaces in use.
#[derive(Debug, Default)]
pub(crate) struct ProtectedRecords(Mutex<HashMap<PathBuf, Weak<ProtectedRecord>>>);

/// What a workspace had before the sessions that use it now.
#[derive(Debug)]
struct ProtectedRecord {
    before: Mutex<ProtectedPaths>,
    /// The record on disk.
    file: PathBuf,
    /// Whether a session of it ended without its last survey: what an agent left that nobody looked
    /// for is looked for by the next session.
    is_unsurveyed: AtomicBool,
}

impl Drop for ProtectedRecord {
    fn drop(&mut self) {
        if !self.is_unsurveyed.load(Ordering::Acquire)
            && let Err(error) = std::fs::remove_file(&self.file)
        {
            tracing::warn!(%error, file = %self.file.display(), "the record of a workspace was not removed");
        }
    }
}

impl ProtectedRecords {
    /// The record of a workspace: in use, left by a supervisor that was killed, or new.
    fn open(
        &self,
        state: &StateDir,
        workspace: &Path,
        now: ProtectedPaths,
    ) -> Result<Arc<ProtectedRecord>, TreeError> {
        let mut records = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(record) = records.get(workspace).and_then(Weak::upgrade) {
            return Ok(record);
        }
        records.retain(|_, record| record.strong_count() > 0);
        let digest = hex::encode(Sha256::digest(workspace.as_os_str().as_encoded_bytes()));
        // No session has a name with a comma.
        let file = state.quarantine().path().join(format!(",{digest}"));
        let failed = |doing| move |error| TreeError::at_path(doing, &file_path(&digest), error);
        let left = match std::fs::read(&file) {
            Ok(record) => ProtectedPaths::from_record(&record),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => return Err(failed("read")(error)),
        };
        let before = if let Some(before) = left {
            before
        } else {
            let part = file.with_extension("part");
            std::fs::write(&part, now.to_record())
                .and_then(|()| std::fs::rename(&part, &file))
                .map_err(failed("write"))?;
            now
        };
        let record = Arc::new(ProtectedRecord {
            before: Mutex::new(before),
            file,
            is_unsurveyed: AtomicBool::new(false),
        });
        records.insert(workspace.to_owned(), Arc::downgrade(&record));
        Ok(record)
    }
}

fn file_path(digest: &str) -> PathBuf {
    Path::new("quarantine").join(format!(",{digest}"))
}

/// The protected files of one session's workspace.
#[derive(Debug)]
pub(crate) struct Protection {
    record: Arc<ProtectedRecord>,
    /// Whether a child may have run since the last survey without one.
    needs_survey: AtomicBool,
    state: Arc<StateDir>,
    session: SessionId,
    workspace: PathBuf,
    policy: Arc<Policy>,
}

impl Drop for Protection {
    fn drop(&mut self) {
        if self.needs_survey.load(Ordering::Acquire) {
            self.record.is_unsurveyed.store(true, Ordering::Release);
        }
    }
}

/// A protected path that appeared.
#[derive(Debug)]
pub(crate) struct QuarantinedPath {
    pub(crate) path: UntrustedText,
    /// Where it is now; or why it is still there.
    pub(crate) moved_to: Result<PathBuf, String>,
}

impl QuarantinedPath {
    pub(crate) fn event(&self) -> Event {
        Event::Quarantined {
            path: self.path.clone(),
            moved_to: self
                .moved_to
                .as_ref()
                .ok()
                .map(|to| to.display().to_string()),
            detail: self.moved_to.as_ref().err().cloned(),
        }
    }
}

/// Whether agents of this pool write the workspace itself, on this host.
fn applies(pool: &PoolShared) -> bool {
    pool.config.workspace.mode == WorkspaceMode::Rw && pool.config.ssh.is_none()
}

/// Searches the workspace of a session that is about to begin; also returns what to mount. Blocks.
pub(crate) fn begin(
    shared: &Shared,
    pool: &PoolShared,
    session: &SessionId,
    root: &Root,
) -> Result<Option<(Arc<Protection>, ProtectedMounts)>, PrepareError> {
    if !applies(pool) {
        return Ok(None);
    }
    let policy = Arc::clone(&pool.policy.current().base.policy);
    let is_protected = |path: &str, is_link| policy.is_protected(path, is_link);
    let (now, mounts) = ProtectedPaths::find_with_mounts(root, &is_protected)?;
    let workspace = root.path().to_owned();
    let opened = shared
        .protected_records
        .open(&shared.state, &workspace, now);
    let record = opened.map_err(|source| PrepareError::Workspace {
        path: workspace.clone(),
        source,
    })?;
    let protection = Protection {
        record,
        needs_survey: AtomicBool::new(false),
        state: Arc::clone(&shared.state),
        session: session.clone(),
        workspace,
        policy,
    };
    Ok(Some((Arc::new(protection), mounts)))
}

impl Protection {
    /// From now on a child may run.
    pub(crate) fn activate(&self) {
        self.needs_survey.store(true, Ordering::Release);
    }

    /// Takes out of the workspace what appeared under a protected name. `is_last`: the child is
    /// gone, and no other follows. Blocks.
    ///
    /// # Errors
    /// A sentence: the workspace could not be searched.
    pub(crate) fn survey(&self, is_last: bool) -> Result<Vec<QuarantinedPath>, String> {
        let found = self.quarantine_new();
        if is_last && found.is_ok() {
            self.needs_survey.store(false, Ordering::Release);
        }
        found
    }

    fn quarantine_new(&self) -> Result<Vec<QuarantinedPath>, String> {
        let failed = |error: &dyn std::fmt::Display| {
            format!("the workspace could not be searched for protected files: {error}")
        };
        let root = Root::open_resolved(&self.workspace).map_err(|error| failed(&error))?;
        let is_protected = |path: &str, is_link| self.policy.is_protected(path, is_link);
        let now = ProtectedPaths::find(&root, &is_protected).map_err(|error| failed(&error))?;
        let mut before = self
            .record
            .before
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let replaced = now.replaced_since(&before);
        let mut found: Vec<QuarantinedPath> = replaced
            .into_iter()
            .map(|path| QuarantinedPath {
                path: foreign_path(path),
                moved_to: Err(REPLACED.to_owned()),
            })
            .collect();
        before.accept_replaced(&now);
        let new = now.appeared_since(&before);
        if !new.is_empty() {
            let quarantine =
                Quarantine::create(&self.state, &self.session).map_err(|error| failed(&error))?;
            found.extend(new.into_iter().map(|path| {
                QuarantinedPath {
                    path: foreign_path(path),
                    moved_to: quarantine
                        .take(&root, path)
                        .map_err(|error| error.to_string()),
                }
            }));
        }
        Ok(found)
    }
}

/// Why a task is not done, from the protected paths that appeared; `None` if there are none.
pub(crate) fn describe(found: &[QuarantinedPath]) -> Option<String> {
    let first = found.first()?;
    let name = first.path.escape_for_display(200);
    let more = match found.len() {
        1 => String::new(),
        count => format!(" and {} more", count - 1),
    };
    Some(match &first.moved_to {
        Ok(to) => format!(
            "{name}{more} appeared, which other programs obey; moved to {}",
            to.display()
        ),
        Err(why) => format!("other programs obey {name}{more}, which is still there: {why}"),
    })
}
