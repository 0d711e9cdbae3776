//! The clone of a session (`mode = "worktree"`): how it is made, its mounts, and how its branch
//! comes back as a bundle.
//!
//! Every git step runs in a sandbox with the slot's uid and without network. The source is always
//! mounted read-only. Must not know how a task ends.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};

use super::session_tree::{self, GitSandbox, git_plan};
use super::{
    PrepareError, PrepareRequest, PreparedSession, SessionDirs, WORKSPACE_INSIDE, blocking,
    host_tree, owner,
};
use crate::fleet_event::TaskBranch;
use crate::session::workspace::branch_import::import_branch;
use crate::session::workspace::git_listing;
use crate::setup::{PoolShared, Shared};
use marshal_launch::{LaunchPlan, ProgramOutput, RunError, SpawnError};
use marshal_model::limits::{
    BUNDLE_BYTES, COPY_FILES, GIT_LIST_BYTES, GIT_OUTPUT_BYTES, GIT_TREE_TIMEOUT,
};
use marshal_model::{ExitStatus, SessionId, SlotId, untrusted};
use marshal_sandbox::workspace::branch::git::{
    self, BundleOutcome, EXIT_NO_COMMIT, Inputs, LeftOut, SourceHead,
};
use marshal_sandbox::workspace::branch::{
    self, BranchError, CloneRecord, OBJECTS_INSIDE, Repository, SOURCE_INSIDE, clone,
};
use marshal_sandbox::workspace::file_list::{FileList, GitCommand};
use marshal_sandbox::workspace::{CopyError, Masks, Owner, Root, copy};
use marshal_sandbox::{ExtraMounts, Tree};

/// Clones the source's HEAD for the session.
pub(crate) async fn make_clone(
    shared: &Arc<Shared>,
    pool: &Arc<PoolShared>,
    order: &PrepareRequest,
    source: &Path,
    space: &SessionDirs,
    owner: Option<Owner>,
) -> Result<PathBuf, PrepareError> {
    let bad = |error: BranchError| PrepareError::Branch {
        path: source.to_owned(),
        source: error,
    };
    let permit = git_listing::acquire_permit(&shared.copying, &order.cancelled).await?;
    let repository = {
        let source = source.to_owned();
        blocking(&shared.ambient, move || Repository::find(&source)).await?
    }
    .map_err(bad)?;
    let beside = ExtraMounts {
        trees: vec![
            (
                host_tree(&repository.common, false)?,
                SOURCE_INSIDE.to_owned(),
            ),
            (objects(&repository)?, OBJECTS_INSIDE.to_owned()),
        ],
        ..ExtraMounts::none()
    };
    let step = Step {
        shared,
        pool,
        space,
        source,
    };
    let base = order.base.as_deref();
    let source_head = step.inspect(&repository, base, beside.clone()).await?;
    let included = session_tree::included_files(
        shared,
        pool,
        (order, space, source),
        Some((&repository, beside.clone())),
    )
    .await?;
    let record = CloneRecord {
        v: 1,
        source: source.to_owned(),
        base: source_head.head,
        branch: order.branch.clone(),
    };
    let (part, place) = {
        let (shared, session) = (Arc::clone(shared), order.session.clone());
        blocking(&shared.ambient.clone(), move || {
            branch::create_scratch(shared.state.copies(), session.as_str(), owner)
        })
        .await?
        .map_err(|error| bad(error.into()))?
    };
    let GitCommand { argv, env } = clone::clone(
        &repository,
        &record.base,
        &record.branch_of(&order.session),
        &hidden_paths(pool)?,
    );
    let git_sandbox = GitSandbox {
        beside,
        writable: true,
        ..GitSandbox::read_only(env)
    };
    let cloned = step.run(&place, argv, git_sandbox, GIT_OUTPUT_BYTES).await;
    let (to, session) = (Arc::clone(shared), order.session.clone());
    let of_pool = Arc::clone(pool);
    let done = blocking(&shared.ambient, move || {
        let done = cloned.and_then(|output| {
            warn_of_missing_files(&of_pool, &record.source, &output.stdout);
            add_included(&to, &part, &record.source, &included, owner)?;
            branch::publish_clone(&to.state, &session, &part, &record).map_err(|error| {
                PrepareError::Branch {
                    path: record.source.clone(),
                    source: error,
                }
            })
        });
        if done.is_err() {
            branch::remove_scratch(to.state.copies(), &part);
        }
        done
    })
    .await?;
    drop(permit);
    done
}

/// Says once what the clones lack.
fn warn_of_missing_files(pool: &PoolShared, source: &Path, output: &[u8]) {
    let missing = clone::missing_files(output);
    let mut warned = pool
        .warned_missing
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    if *warned == missing {
        return;
    }
    if let Some(missing) = &missing {
        let workspace = source.display();
        let missing = untrusted::escape_for_display(missing, 1000);
        tracing::warn!(%workspace, missing, "the clones lack files");
    }
    *warned = missing;
}

/// Copies untracked files of the source into the clone, where nobody has worked yet.
fn add_included(
    shared: &Shared,
    part: &str,
    source: &Path,
    files: &FileList,
    owner: Option<Owner>,
) -> Result<(), PrepareError> {
    if files.is_empty() {
        return Ok(());
    }
    let bad = |source_error: CopyError| PrepareError::Copy {
        path: source.to_owned(),
        source: source_error,
    };
    let root = Root::open_resolved(source).map_err(|error| bad(error.into()))?;
    copy::add(&shared.state, part, &root, files, owner).map_err(bad)?;
    branch::exclude_files(shared.state.copies(), part, files).map_err(|error| bad(error.into()))
}

/// What the mask hides, for git.
fn hidden_paths(pool: &PoolShared) -> Result<Vec<String>, PrepareError> {
    Ok(Masks::to_pathspecs(&pool.config.workspace.mask)?)
}

/// Reads the record of the session's clone, and mounts the objects that it borrows.
pub(crate) async fn attach(
    shared: &Arc<Shared>,
    session: &SessionId,
    space: &mut SessionDirs,
) -> Result<(), PrepareError> {
    let (of, named) = (Arc::clone(shared), session.clone());
    let path = space.workspace.clone();
    let attached = blocking(&shared.ambient, move || {
        let record = branch::read_record(of.state.copies(), &named)
            .map_err(|source| PrepareError::Branch { path, source })?;
        let repository =
            Repository::find(&record.source).map_err(|source| PrepareError::Branch {
                path: record.source.clone(),
                source,
            })?;
        Ok::<_, PrepareError>((objects(&repository)?, record))
    });
    let (objects, record) = attached.await??;
    space.beside.trees = vec![(objects, OBJECTS_INSIDE.to_owned())];
    space.branch = Some(record);
    Ok(())
}

fn objects(repository: &Repository) -> Result<Tree, PrepareError> {
    host_tree(&repository.objects(), false)
}

/// The common inputs of all git steps.
struct Step<'s> {
    shared: &'s Shared,
    pool: &'s PoolShared,
    space: &'s SessionDirs,
    /// The path that error messages name.
    source: &'s Path,
}

impl Step<'_> {
    /// The commit that the clone starts from.
    async fn inspect(
        &self,
        repository: &Repository,
        base: Option<&str>,
        beside: ExtraMounts,
    ) -> Result<SourceHead, PrepareError> {
        let bad = |error: BranchError| PrepareError::Branch {
            path: self.source.to_owned(),
            source: error,
        };
        let base = base.or(self.pool.config.workspace.base.as_deref());
        let GitCommand { argv, env } = git::inspect_source(repository, base.unwrap_or("HEAD"));
        let git_sandbox = GitSandbox {
            beside,
            ..GitSandbox::read_only(env)
        };
        let output = self
            .run(self.source, argv, git_sandbox, git::INSPECT_BYTES)
            .await
            .map_err(|error| match (base, error) {
                (
                    Some(base),
                    PrepareError::Branch {
                        source: BranchError::NoCommit,
                        ..
                    },
                ) => bad(BranchError::NoBase(base.to_owned())),
                (_, error) => error,
            })?;
        let source_head = SourceHead::parse(&output.stdout, output.is_truncated).map_err(bad)?;
        if source_head.is_dirty {
            let warned = &self.pool.warned_uncommitted;
            let warned = &mut *warned.lock().unwrap_or_else(PoisonError::into_inner);
            if warned.replace(source_head.head.clone()).as_ref() != Some(&source_head.head) {
                let workspace = self.source.display();
                tracing::warn!(%workspace, "the workspace has uncommitted changes: they are not in the sessions' clones");
            }
        }
        Ok(source_head)
    }

    /// Runs one git script, with `at` as its workspace.
    async fn run(
        &self,
        at: &Path,
        argv: Vec<String>,
        git: GitSandbox,
        cap: usize,
    ) -> Result<ProgramOutput, PrepareError> {
        let inside = WORKSPACE_INSIDE.to_owned();
        let plan = git_plan(self.shared, self.pool, self.space, at, inside, argv, git)?;
        run(self.shared, plan, self.source, cap).await
    }
}

async fn run(
    shared: &Shared,
    mut plan: LaunchPlan,
    source: &Path,
    cap: usize,
) -> Result<ProgramOutput, PrepareError> {
    plan.limits.fsize = BUNDLE_BYTES;
    let bad = |why: String| PrepareError::Cloned {
        path: source.to_owned(),
        why,
    };
    let finished = match shared.host.run_to_end(plan, GIT_TREE_TIMEOUT, cap).await {
        Ok(finished) => finished,
        Err(RunError::Spawn(SpawnError::Exec(failure))) => return Err(bad(failure.to_string())),
        Err(RunError::TimedOut { after, .. }) => {
            return Err(bad(format!("it was stopped after {} s", after.as_secs())));
        }
        Err(error) => return Err(PrepareError::GitSandbox(error)),
    };
    match finished.status {
        ExitStatus::Code(0) => Ok(finished),
        ExitStatus::Code(EXIT_NO_COMMIT) => Err(PrepareError::Branch {
            path: source.to_owned(),
            source: BranchError::NoCommit,
        }),
        status => {
            let stderr = String::from_utf8_lossy(&finished.stderr).into_owned();
            Err(bad(format!(
                "{status}: {}",
                untrusted::escape_for_display(stderr.trim(), 300)
            )))
        }
    }
}

/// The result of returning a session's branch.
#[derive(Debug, Default)]
pub(crate) struct ReturnedBranch {
    /// The bundle on the host; `None` if there is nothing in it.
    pub(crate) bundle: Option<PathBuf>,
    /// Its branch.
    pub(crate) branch: Option<TaskBranch>,
    /// A remark for the result.
    pub(crate) remark: Option<String>,
}

/// Brings a session's branch back, if it has one. Uncommitted changes of the agent become its last
/// commit. `is_result`: its task is done with it.
pub(crate) fn return_branch(
    prepared: Option<&PreparedSession>,
    shared: &Arc<Shared>,
    pool: &Arc<PoolShared>,
    is_result: bool,
) -> Option<impl Future<Output = ReturnedBranch> + Send + use<>> {
    let prepared = prepared?;
    let record = prepared.dirs.branch.clone()?;
    let (space, session) = (Arc::clone(&prepared.dirs), prepared.session.clone());
    let (shared, pool) = (Arc::clone(shared), Arc::clone(pool));
    Some(async move {
        match bundle(&shared, &pool, &space, &session, &record).await {
            Ok(returned) if is_result => {
                import(&shared, &pool, (&space.slot, &session, &record), returned).await
            }
            Ok(returned) => returned,
            Err(error) => {
                tracing::warn!(%session, %error, "the session's branch could not be bundled");
                let clone = space.workspace.display();
                ReturnedBranch {
                    remark: Some(format!(
                        "its branch could not be bundled ({error}); its clone is at {clone}"
                    )),
                    ..ReturnedBranch::default()
                }
            }
        }
    })
}

/// Makes the branch of a session that an earlier start of the supervisor left without one. Nothing works
/// in its clone any more.
pub(crate) async fn recover_branch(
    shared: &Arc<Shared>,
    pool: &Arc<PoolShared>,
    slot: SlotId,
    session: &SessionId,
    is_result: bool,
) -> Result<ReturnedBranch, PrepareError> {
    let clone = copy::path(&shared.state, session);
    let mut space = SessionDirs::for_git(slot, clone);
    attach(shared, session, &mut space).await?;
    let Some(record) = space.branch.clone() else {
        return Ok(ReturnedBranch::default());
    };
    let returned = bundle(shared, pool, &space, session, &record).await?;
    if !is_result {
        return Ok(returned);
    }
    Ok(import(shared, pool, (&space.slot, session, &record), returned).await)
}

/// Brings the branch of a task into its repository, where the pool is configured so. A failure does not
/// cost the result: it is in the bundle.
async fn import(
    shared: &Arc<Shared>,
    pool: &Arc<PoolShared>,
    (slot, session, record): (&SlotId, &SessionId, &CloneRecord),
    mut returned: ReturnedBranch,
) -> ReturnedBranch {
    let is_wanted = pool.config.workspace.branches && record.branch.is_some();
    let Some(branch) = returned.branch.as_mut().filter(|_| is_wanted) else {
        return returned;
    };
    match Box::pin(import_branch(shared, pool, slot, session, record)).await {
        Ok(()) => branch.in_repository = true,
        Err(error) => {
            tracing::warn!(%session, %error, "the branch of a task is not in its repository");
            let name = &branch.name;
            let remark = format!("its branch {name} is not in the repository: {error}");
            let remarks = returned.remark.take().into_iter().chain([remark]);
            returned.remark = Some(remarks.collect::<Vec<_>>().join("; "));
        }
    }
    returned
}

/// The mounts beside a clone that git needs. What a layer shows in it is no part of the branch.
fn without_layers(space: &SessionDirs) -> ExtraMounts {
    ExtraMounts {
        layered: Vec::new(),
        ..space.beside.clone()
    }
}

/// What a clone has beside the files of its base: files, and directories without what is in them.
pub(super) async fn list_untracked(
    shared: &Shared,
    pool: &PoolShared,
    space: &SessionDirs,
) -> Result<FileList, PrepareError> {
    let Some(record) = &space.branch else {
        return Ok(FileList::default());
    };
    let GitCommand { argv, env } = git::untracked(&record.base);
    let git_sandbox = GitSandbox {
        beside: without_layers(space),
        ..GitSandbox::read_only(env)
    };
    let step = Step {
        shared,
        pool,
        space,
        source: &space.workspace,
    };
    let output = step
        .run(&space.workspace, argv, git_sandbox, GIT_LIST_BYTES)
        .await?;
    let unreadable = |why: String| PrepareError::Git {
        path: space.workspace.clone(),
        why,
    };
    if output.is_truncated {
        return Err(unreadable("there are too many".to_owned()));
    }
    FileList::parse(&output.stdout, COPY_FILES).map_err(|error| unreadable(error.to_string()))
}

/// What the base of a clone has at these paths, and which base of the pool it is of.
pub(super) async fn identify_inputs(
    shared: &Shared,
    pool: &PoolShared,
    space: &SessionDirs,
    record: &CloneRecord,
    paths: &[String],
) -> Result<Inputs, PrepareError> {
    let source = &record.source;
    let repository = Repository::find(source).map_err(|error| PrepareError::Branch {
        path: source.clone(),
        source: error,
    })?;
    let common = host_tree(&repository.common, false)?;
    let pool_base = pool.config.workspace.base.as_deref();
    let GitCommand { argv, env } = git::inputs(&repository, &record.base, pool_base, paths);
    let git_sandbox = GitSandbox {
        beside: ExtraMounts {
            trees: vec![(common, SOURCE_INSIDE.to_owned())],
            ..ExtraMounts::none()
        },
        ..GitSandbox::read_only(env)
    };
    let step = Step {
        shared,
        pool,
        space,
        source,
    };
    let output = step.run(source, argv, git_sandbox, GIT_OUTPUT_BYTES);
    Inputs::parse(&output.await?.stdout).map_err(|error| PrepareError::Branch {
        path: source.clone(),
        source: error,
    })
}

async fn bundle(
    shared: &Arc<Shared>,
    pool: &Arc<PoolShared>,
    space: &SessionDirs,
    session: &SessionId,
    record: &CloneRecord,
) -> Result<ReturnedBranch, PrepareError> {
    let bad = |error: BranchError| PrepareError::Branch {
        path: space.workspace.clone(),
        source: error,
    };
    let owner = owner(shared, pool, &space.slot);
    let (of, what) = (Arc::clone(shared), format!("{session},out"));
    let scratch = blocking(&shared.ambient, move || {
        branch::create_scratch(of.state.copies(), &what, owner)
    });
    let (part, home) = scratch.await?.map_err(|error| bad(error.into()))?;
    let author = pool.config.workspace.author.as_ref();
    let GitCommand { argv, env } = git::bundle(
        &record.base,
        &record.branch_of(session),
        &hidden_paths(pool)?,
        author.map(|author| (&*author.name, &*author.mail)),
    );
    let git_sandbox = GitSandbox {
        home: Some(home),
        beside: without_layers(space),
        ..GitSandbox::read_only(env)
    };
    let step = Step {
        shared,
        pool,
        space,
        source: &space.workspace,
    };
    let output = step
        .run(&space.workspace, argv, git_sandbox, GIT_OUTPUT_BYTES)
        .await;
    let (of, named, record) = (Arc::clone(shared), session.clone(), record.clone());
    let place = space.workspace.clone();
    let returned = blocking(&shared.ambient, move || {
        let bad = |source: BranchError| PrepareError::Branch {
            path: place.clone(),
            source,
        };
        let returned =
            output.and_then(
                |output| match BundleOutcome::parse(&output.stdout).map_err(bad)? {
                    BundleOutcome::Nothing { left_out } => Ok(ReturnedBranch {
                        remark: left_out.map(describe_left_out),
                        ..ReturnedBranch::default()
                    }),
                    BundleOutcome::Made { left_out, lines } => Ok(ReturnedBranch {
                        branch: Some(TaskBranch {
                            name: record.branch_of(&named),
                            lines,
                            in_repository: false,
                        }),
                        bundle: Some(
                            branch::store_bundle(&of.state, &named, &part, &record).map_err(bad)?,
                        ),
                        remark: left_out.map(describe_left_out),
                    }),
                },
            );
        branch::remove_scratch(of.state.copies(), &part);
        returned
    });
    returned.await?
}

fn describe_left_out(what: LeftOut) -> String {
    let text = match what {
        LeftOut::Unreadable => {
            "some changed files could not be read and are missing from its branch"
        }
        LeftOut::Unfinished => {
            "a rebase or a merge was left unfinished: its branch has what was committed before, and nothing of the working tree"
        }
    };
    text.to_owned()
}
