//! Git on one session's bundle, in a sandbox of its own beside the source's repository, which it reads;
//! and how what it made there gets into that repository.
//!
//! Must not know what a bundle is unpacked for.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::landing::LandingError;
use super::overlay::{host_file, host_tree};
use super::prepare::session_tree::{GitSandbox, git_plan};
use super::prepare::{SessionDirs, WORKSPACE_INSIDE, blocking, owner};
use crate::setup::{PoolShared, Shared};
use marshal_launch::RunError;
use marshal_model::limits::{BUNDLE_BYTES, GIT_LIST_BYTES, GIT_TREE_TIMEOUT};
use marshal_model::untrusted::escape_for_display;
use marshal_model::{ExitStatus, SlotId};
use marshal_policy::guard;
use marshal_sandbox::ExtraMounts;
use marshal_sandbox::workspace::Root;
use marshal_sandbox::workspace::branch::changes::{Change, Verdict, find_outside};
use marshal_sandbox::workspace::branch::{self, BUNDLE_INSIDE, Repository, SOURCE_INSIDE, land};
use marshal_sandbox::workspace::file_list::GitCommand;

/// A directory that git works in.
pub(super) struct Scratch {
    name: String,
    pub(super) path: PathBuf,
}

impl Scratch {
    pub(super) async fn remove(self, shared: &Arc<Shared>) -> Result<(), LandingError> {
        let of = Arc::clone(shared);
        let removal = move || branch::remove_scratch(of.state.copies(), &self.name);
        Ok(blocking(&shared.ambient, removal).await?)
    }
}

/// A bundle with its source, and the slot whose user id the sandboxes have.
pub(super) struct BundleGit<'s> {
    pub(super) shared: &'s Arc<Shared>,
    pub(super) pool: &'s Arc<PoolShared>,
    pub(super) slot: &'s SlotId,
    pub(super) bundle: &'s Path,
    pub(super) repository: &'s Repository,
}

impl BundleGit<'_> {
    pub(super) async fn create_scratch(&self) -> Result<Scratch, LandingError> {
        let owner = owner(self.shared, self.pool, self.slot);
        let what = format!("land-{}", self.shared.new_session_id());
        let shared = Arc::clone(self.shared);
        let made = blocking(&self.shared.ambient, move || {
            branch::create_scratch(shared.state.copies(), &what, owner)
        });
        let (name, path) = made.await??;
        Ok(Scratch { name, path })
    }

    /// Runs git to its end, with the scratch directory as its home and working directory; returns its
    /// whole output.
    pub(super) async fn run(
        &self,
        scratch: &Scratch,
        command: GitCommand,
    ) -> Result<Vec<u8>, LandingError> {
        let source = host_tree(&self.repository.common, false)?;
        let git = GitSandbox {
            writable: true,
            home: Some(scratch.path.clone()),
            beside: ExtraMounts {
                trees: vec![
                    (source, SOURCE_INSIDE.to_owned()),
                    (host_file(self.bundle)?, BUNDLE_INSIDE.to_owned()),
                ],
                ..ExtraMounts::none()
            },
            ..GitSandbox::read_only(command.env)
        };
        let dirs = SessionDirs::for_git(self.slot.clone(), scratch.path.clone());
        let inside = WORKSPACE_INSIDE.to_owned();
        let (shared, pool) = (self.shared, self.pool);
        let mut plan = git_plan(
            shared,
            pool,
            &dirs,
            &scratch.path,
            inside,
            command.argv,
            git,
        )?;
        plan.limits.fsize = 2 * BUNDLE_BYTES;
        let run = shared
            .host
            .run_to_end(plan, GIT_TREE_TIMEOUT, GIT_LIST_BYTES);
        let finished = run.await.map_err(|error| match error {
            RunError::TimedOut { after, .. } => {
                LandingError::Git(format!("it was stopped after {} s", after.as_secs()))
            }
            error => LandingError::Sandbox(error.to_string()),
        })?;
        if finished.status != ExitStatus::Code(0) {
            let stderr = String::from_utf8_lossy(&finished.stderr).into_owned();
            let stderr = escape_for_display(stderr.trim(), 400);
            return Err(LandingError::Git(format!("{}: {stderr}", finished.status)));
        }
        if finished.is_truncated {
            return Err(LandingError::TooManyChanges);
        }
        Ok(finished.stdout)
    }

    /// Brings a pack of a scratch directory into the source. No branch leads to it yet.
    pub(super) async fn add_pack(&self, from: PathBuf, pack: String) -> Result<(), LandingError> {
        let common = self.repository.common.clone();
        blocking(&self.shared.ambient, move || {
            let git_dir = Root::open_resolved(&common)?;
            // Git has ended, and it could only write its own files: a link among them cannot lead
            // elsewhere.
            let from = Root::open_resolved(&from)?;
            Ok(land::add_pack(&git_dir, &from, &pack)?)
        })
        .await?
    }
}

/// Why files of a bundle do not leave the sandbox.
pub(super) enum Refused {
    /// Secrets, which nobody can allow.
    Secrets(Vec<String>),
    /// Files that other programs run or obey and that nobody allowed, with what each is.
    Outside(Vec<(String, &'static str)>),
}

/// The changed files that do not leave the sandbox, by the guard and the pool's policy, as paths of the
/// workspace, in which their repository is at `at`.
pub(super) fn find_refused(
    pool: &PoolShared,
    changes: &[Change],
    at: &str,
    allow: &[String],
) -> Option<Refused> {
    let of_pool = pool.policy.current();
    let policies = [guard(), &of_pool.base.policy];
    let mut found = find_outside(changes, at, &policies, allow);
    found.retain(|file| file.verdict != Verdict::Allowed);
    let secrets = found.iter().filter(|file| file.verdict == Verdict::Secret);
    let secrets: Vec<String> = secrets.map(|file| file.path.clone()).collect();
    if !secrets.is_empty() {
        return Some(Refused::Secrets(secrets));
    }
    let is_any = !found.is_empty();
    let files = found.into_iter().map(|file| (file.path, file.what));
    is_any.then(|| Refused::Outside(files.collect()))
}
