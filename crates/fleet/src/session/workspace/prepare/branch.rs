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
use crate::fleet_event::{RepoBundle, TaskBranch};
use crate::session::workspace::branch_import::import_branch;
use crate::session::workspace::git_listing;
use crate::setup::{PoolShared, Shared};
use marshal_config::WorkspaceMode;
use marshal_launch::{LaunchPlan, ProgramOutput, RunError, SpawnError};
use marshal_model::limits::{
    BUNDLE_BYTES, COPY_FILES, GIT_LIST_BYTES, GIT_OUTPUT_BYTES, GIT_TREE_TIMEOUT,
};
use marshal_model::{ExitStatus, SessionId, SlotId, untrusted};
use marshal_sandbox::workspace::branch::git::{
    self, BundleOutcome, EXIT_NO_COMMIT, Inputs, LeftOut, LineCounts, SourceHead,
};
use marshal_sandbox::workspace::branch::{
    self, BranchError, CloneId, CloneRecord, Repository, SOURCE_INSIDE, clone,
};
use marshal_sandbox::workspace::file_list::{FileList, GitCommand};
use marshal_sandbox::workspace::{CopyError, Masks, Owner, Root, TreeError, copy, place};
use marshal_sandbox::{ExtraMounts, Tree};

/// Makes the session's tree: a clone of the workspace, with clones of its further repositories in it.
pub(crate) async fn make_clones(
    shared: &Arc<Shared>,
    pool: &Arc<PoolShared>,
    order: &PrepareRequest,
    source: &Path,
    space: &SessionDirs,
    owner: Option<Owner>,
) -> Result<PathBuf, PrepareError> {
    let permit = git_listing::acquire_permit(&shared.copying, &order.cancelled).await?;
    let maker = CloneMaker {
        shared,
        pool,
        order,
        space,
        owner,
    };
    let mut made = Vec::new();
    let cloned = maker.clone_all(source, &mut made).await;
    let (to, session) = (Arc::clone(shared), order.session.clone());
    let places: Vec<String> = order.repos(pool).map(|repo| repo.at.clone()).collect();
    let done = blocking(&shared.ambient, move || {
        let done = cloned.and_then(|()| publish(&to, &session, &made, &places, owner));
        if done.is_err() {
            for (part, ..) in &made {
                branch::remove_scratch(to.state.copies(), part);
            }
        }
        done
    })
    .await?;
    drop(permit);
    done
}

/// A complete clone in a directory of its own, by that directory's name.
type MadeClone = (String, CloneId, CloneRecord);

/// Puts the further directories into the clone of the workspace, which comes first, and gives it its name.
fn publish(
    shared: &Shared,
    session: &SessionId,
    made: &[MadeClone],
    places: &[String],
    owner: Option<Owner>,
) -> Result<PathBuf, PrepareError> {
    let copies = shared.state.copies();
    let [(part, _, record), further @ ..] = made else {
        return Err(PrepareError::Interrupted);
    };
    let bad = |source: BranchError| PrepareError::Branch {
        path: record.source.clone(),
        source,
    };
    let no_place = |source| PrepareError::Place {
        path: record.source.clone(),
        source,
    };
    let tree = Root::open_at(copies, part, copies.path().join(part)).map_err(|e| bad(e.into()))?;
    for at in places {
        match further.iter().find(|(.., record)| record.at == *at) {
            Some((part, ..)) => place::move_to((copies, part), &tree, at, owner),
            None => place::make(&tree, at, owner).map(drop),
        }
        .map_err(no_place)?;
    }
    if !places.is_empty() {
        // Git would take a further repository for a submodule.
        branch::exclude(copies, part, places.iter().map(String::as_bytes))
            .map_err(|error| bad(error.into()))?;
    }
    let records = made
        .iter()
        .map(|(_, id, record)| (id.clone(), record.clone()));
    branch::publish_clones(&shared.state, session, part, &records.collect::<Vec<_>>()).map_err(bad)
}

/// The common inputs of a session's clones.
struct CloneMaker<'m> {
    shared: &'m Arc<Shared>,
    pool: &'m Arc<PoolShared>,
    order: &'m PrepareRequest,
    space: &'m SessionDirs,
    owner: Option<Owner>,
}

/// What a clone is made of.
struct CloneSource<'m> {
    id: CloneId,
    /// The directory whose repository is cloned.
    path: &'m Path,
    /// The commit that it starts from; `None` means HEAD.
    base: Option<&'m str>,
    /// Its place in the workspace.
    at: &'m str,
}

impl CloneMaker<'_> {
    async fn clone_all(
        &self,
        source: &Path,
        made: &mut Vec<MadeClone>,
    ) -> Result<(), PrepareError> {
        let Self {
            shared,
            pool,
            order,
            ..
        } = self;
        let base = order.base.as_deref();
        let mut repositories = Vec::new();
        let workspace = CloneSource {
            id: CloneId::workspace(&order.session),
            path: source,
            base: base.or(pool.config.workspace.base.as_deref()),
            at: "",
        };
        self.clone_one(workspace, &mut repositories, made).await?;
        let clones = order.repos(pool);
        let clones = clones.filter(|repo| repo.mode == WorkspaceMode::Worktree);
        for (at, repo) in clones.enumerate() {
            let path = resolve(shared, &repo.path).await?;
            let own = order.repo_bases.get(&repo.at).map(String::as_str).or(base);
            let source = CloneSource {
                id: CloneId::numbered(&order.session, at + 1),
                path: &path,
                base: own.or(repo.base.as_deref()),
                at: &repo.at,
            };
            self.clone_one(source, &mut repositories, made).await?;
        }
        Ok(())
    }

    /// Makes a clone. What was made is in `made`, also if it is not complete.
    async fn clone_one(
        &self,
        source: CloneSource<'_>,
        repositories: &mut Vec<PathBuf>,
        made: &mut Vec<MadeClone>,
    ) -> Result<(), PrepareError> {
        let Self {
            shared,
            pool,
            order,
            space,
            owner,
        } = *self;
        let CloneSource { id, path, base, at } = source;
        let bad = |error: BranchError| PrepareError::Branch {
            path: path.to_owned(),
            source: error,
        };
        let repository = {
            let path = path.to_owned();
            blocking(&shared.ambient, move || Repository::find(&path)).await?
        }
        .map_err(bad)?;
        if repositories.contains(&repository.common) {
            return Err(bad(BranchError::SameRepository));
        }
        repositories.push(repository.common.clone());
        let beside = ExtraMounts {
            trees: vec![
                (
                    host_tree(&repository.common, false)?,
                    SOURCE_INSIDE.to_owned(),
                ),
                (objects(&repository)?, id.objects_inside()),
            ],
            ..ExtraMounts::none()
        };
        let step = Step {
            shared,
            pool,
            space,
            source: path,
        };
        let source_head = step.inspect(&repository, base, beside.clone()).await?;
        let included = if id.is_workspace() {
            let of_source = Some((&repository, beside.clone()));
            session_tree::included_files(shared, pool, (order, space, path), of_source).await?
        } else {
            FileList::default()
        };
        let record = CloneRecord {
            v: 1,
            source: path.to_owned(),
            base: source_head.head,
            at: at.to_owned(),
            branch: order.branch.clone(),
        };
        let what = if id.is_workspace() {
            order.session.to_string()
        } else {
            format!("{},{}", order.session, made.len())
        };
        let (part, place) = {
            let of = Arc::clone(shared);
            blocking(&shared.ambient, move || {
                branch::create_scratch(of.state.copies(), &what, owner)
            })
            .await?
            .map_err(|error| bad(error.into()))?
        };
        let own = (&id, &*record.branch_of(&order.session));
        let GitCommand { argv, env } =
            clone::clone(&repository, &record.base, own, &hidden_paths(pool)?);
        made.push((part.clone(), id, record.clone()));
        let git_sandbox = GitSandbox {
            beside,
            writable: true,
            ..GitSandbox::read_only(env)
        };
        let output = step
            .run(&place, argv, git_sandbox, GIT_OUTPUT_BYTES)
            .await?;
        warn_of_missing_files(pool, &record.source, &output.stdout);
        let to = Arc::clone(shared);
        blocking(&shared.ambient, move || {
            add_included(&to, &part, &record.source, &included, owner)
        })
        .await?
    }
}

/// The path of a further directory without links, as the workspace's is.
pub(super) async fn resolve(shared: &Arc<Shared>, path: &Path) -> Result<PathBuf, PrepareError> {
    let (of, path) = (Arc::clone(shared), path.to_owned());
    blocking(&shared.ambient, move || {
        let real = std::fs::canonicalize(&path).map_err(|error| PrepareError::Workspace {
            source: TreeError::at_path("find", &path, error),
            path: path.clone(),
        })?;
        of.state.check_workspace(&real)?;
        Ok(real)
    })
    .await?
}

/// Says once what the clones lack.
fn warn_of_missing_files(pool: &PoolShared, source: &Path, output: &[u8]) {
    let missing = clone::missing_files(output).unwrap_or_default();
    if pool.is_new_warning(source, &missing) && !missing.is_empty() {
        let workspace = source.display();
        let missing = untrusted::escape_for_display(&missing, 1000);
        tracing::warn!(%workspace, missing, "the clones lack files");
    }
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
    branch::exclude(shared.state.copies(), part, files.paths()).map_err(|error| bad(error.into()))
}

/// What the mask hides, for git.
fn hidden_paths(pool: &PoolShared) -> Result<Vec<String>, PrepareError> {
    Ok(Masks::to_pathspecs(&pool.config.workspace.mask)?)
}

/// Reads the records of the session's clones, and mounts the objects that they borrow.
pub(crate) async fn attach(
    shared: &Arc<Shared>,
    session: &SessionId,
    space: &mut SessionDirs,
) -> Result<(), PrepareError> {
    let (of, named) = (Arc::clone(shared), session.clone());
    let path = space.workspace.clone();
    let attached = blocking(&shared.ambient, move || {
        let copies = of.state.copies();
        let mut ids = CloneId::all(copies, &named);
        if ids.is_empty() {
            // Its error says what is missing.
            ids.push(CloneId::workspace(&named));
        }
        let mut clones = Vec::new();
        for id in ids {
            let record =
                branch::read_record(copies, &id).map_err(|source| PrepareError::Branch {
                    path: path.clone(),
                    source,
                })?;
            let repository =
                Repository::find(&record.source).map_err(|source| PrepareError::Branch {
                    path: record.source.clone(),
                    source,
                })?;
            clones.push((objects(&repository)?, id, record));
        }
        Ok::<_, PrepareError>(clones)
    });
    for (objects, id, record) in attached.await?? {
        space.beside.trees.push((objects, id.objects_inside()));
        space.clones.push((id, record));
    }
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
            let before = warned.insert(self.source.to_owned(), source_head.head.clone());
            if before.as_ref() != Some(&source_head.head) {
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

/// The result of returning a session's branches.
#[derive(Debug, Default)]
pub(crate) struct ReturnedBranches {
    /// The first of the bundles on the host; `None` if there is nothing in any repository.
    pub(crate) bundle: Option<PathBuf>,
    /// The bundles of the further repositories.
    pub(crate) repos: Vec<RepoBundle>,
    /// The branch, which has the same name in all of them: their lines together, and whether it is in each
    /// repository.
    pub(crate) branch: Option<TaskBranch>,
    /// A remark for the result.
    pub(crate) remark: Option<String>,
}

/// Brings a session's branches back, if it has clones. Uncommitted changes of the agent become the last
/// commit of each. `is_result`: its task is done with them.
pub(crate) fn return_branches(
    prepared: Option<&PreparedSession>,
    shared: &Arc<Shared>,
    pool: &Arc<PoolShared>,
    is_result: bool,
) -> Option<impl Future<Output = ReturnedBranches> + Send + use<>> {
    let prepared = prepared?;
    if prepared.dirs.clones.is_empty() {
        return None;
    }
    let space = Arc::clone(&prepared.dirs);
    let (shared, pool) = (Arc::clone(shared), Arc::clone(pool));
    Some(async move {
        let mut all = ReturnedBranches::default();
        for (id, record) in &space.clones {
            let made = match bundle(&shared, &pool, &space, (id, record), is_result).await {
                Ok(made) => made,
                Err(error) => {
                    let session = &id.session;
                    tracing::warn!(%session, at = record.at, %error, "the session's branch could not be bundled");
                    let clone = space.workspace.join(&record.at);
                    let clone = clone.display();
                    MadeBundle {
                        branch: None,
                        remark: Some(format!(
                            "its branch could not be bundled ({error}); its clone is at {clone}"
                        )),
                    }
                }
            };
            all.add(record, made);
        }
        all
    })
}

impl ReturnedBranches {
    fn add(&mut self, record: &CloneRecord, made: MadeBundle) {
        if let Some((path, branch)) = made.branch {
            let before = self.branch.take();
            let all_lines = before.as_ref().map(|before| before.lines);
            self.branch = Some(TaskBranch {
                lines: LineCounts::sum(all_lines.into_iter().chain([branch.lines])),
                in_repository: branch.in_repository && before.is_none_or(|all| all.in_repository),
                name: branch.name,
            });
            self.bundle.get_or_insert_with(|| path.clone());
            if !record.at.is_empty() {
                let at = record.at.clone();
                self.repos.push(RepoBundle { at, bundle: path });
            }
        }
        let at = &record.at;
        let remark = made.remark.map(|remark| match at.as_str() {
            "" => remark,
            _ => format!("{at}: {remark}"),
        });
        self.remark = match (self.remark.take(), remark) {
            (Some(before), Some(remark)) => Some(format!("{before}; {remark}")),
            (before, remark) => before.or(remark),
        };
    }
}

/// Makes the branches of a session that an earlier start of the supervisor left without them. Nothing works
/// in its clones any more.
pub(crate) async fn recover_branches(
    shared: &Arc<Shared>,
    pool: &Arc<PoolShared>,
    slot: SlotId,
    session: &SessionId,
    is_result: bool,
) -> Result<ReturnedBranches, PrepareError> {
    let clone = copy::path(&shared.state, session);
    let mut space = SessionDirs::for_git(slot, clone);
    attach(shared, session, &mut space).await?;
    let mut all = ReturnedBranches::default();
    for (id, record) in &space.clones {
        let made = bundle(shared, pool, &space, (id, record), is_result).await?;
        all.add(record, made);
    }
    Ok(all)
}

/// Brings the branch of a task into its repository, where the pool is configured so. A failure does not
/// cost the result: it is in the bundle.
async fn import(
    shared: &Arc<Shared>,
    pool: &Arc<PoolShared>,
    slot: &SlotId,
    (id, record): (&CloneId, &CloneRecord),
    mut made: MadeBundle,
) -> MadeBundle {
    let is_wanted = pool.config.workspace.branches && record.branch.is_some();
    let Some((_, branch)) = made.branch.as_mut().filter(|_| is_wanted) else {
        return made;
    };
    match Box::pin(import_branch(shared, pool, slot, (id, record))).await {
        Ok(()) => branch.in_repository = true,
        Err(error) => {
            let session = &id.session;
            tracing::warn!(%session, at = record.at, %error, "the branch of a task is not in its repository");
            let name = &branch.name;
            let remark = format!("its branch {name} is not in the repository: {error}");
            let remarks = made.remark.take().into_iter().chain([remark]);
            made.remark = Some(remarks.collect::<Vec<_>>().join("; "));
        }
    }
    made
}

/// The mounts beside a clone that git needs. What a layer or a further directory shows in it is no part of
/// the branch.
fn objects_alone(space: &SessionDirs) -> ExtraMounts {
    let is_objects = |(_, inside): &&(Tree, String)| {
        let mut clones = space.clones.iter();
        clones.any(|(id, _)| id.objects_inside() == *inside)
    };
    ExtraMounts {
        trees: space
            .beside
            .trees
            .iter()
            .filter(is_objects)
            .cloned()
            .collect(),
        ..ExtraMounts::none()
    }
}

/// What a clone has beside the files of its base: files, and directories without what is in them.
pub(super) async fn list_untracked(
    shared: &Shared,
    pool: &PoolShared,
    space: &SessionDirs,
) -> Result<FileList, PrepareError> {
    let Some((_, record)) = space.clones.first() else {
        return Ok(FileList::default());
    };
    let GitCommand { argv, env } = git::untracked(&record.base);
    let git_sandbox = GitSandbox {
        beside: objects_alone(space),
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

/// What became of one clone.
struct MadeBundle {
    /// The bundle on the host, and the branch in it; `None` if there is nothing in it.
    branch: Option<(PathBuf, TaskBranch)>,
    remark: Option<String>,
}

async fn bundle(
    shared: &Arc<Shared>,
    pool: &Arc<PoolShared>,
    space: &SessionDirs,
    (id, record): (&CloneId, &CloneRecord),
    is_result: bool,
) -> Result<MadeBundle, PrepareError> {
    let clone = space.workspace.join(&record.at);
    let bad = |error: BranchError| PrepareError::Branch {
        path: clone.clone(),
        source: error,
    };
    let owner = owner(shared, pool, &space.slot);
    let (of, what) = (Arc::clone(shared), format!("{},out", id.session));
    let scratch = blocking(&shared.ambient, move || {
        branch::create_scratch(of.state.copies(), &what, owner)
    });
    let (part, home) = scratch.await?.map_err(|error| bad(error.into()))?;
    let author = pool.config.workspace.author.as_ref();
    let GitCommand { argv, env } = git::bundle(
        &record.base,
        (id, &record.branch_of(&id.session)),
        &hidden_paths(pool)?,
        author.map(|author| (&*author.name, &*author.mail)),
    );
    let git_sandbox = GitSandbox {
        home: Some(home),
        beside: objects_alone(space),
        ..GitSandbox::read_only(env)
    };
    let step = Step {
        shared,
        pool,
        space,
        source: &clone,
    };
    let output = step.run(&clone, argv, git_sandbox, GIT_OUTPUT_BYTES).await;
    let (of, of_clone) = (Arc::clone(shared), (id.clone(), record.clone()));
    let place = clone.clone();
    let made = blocking(&shared.ambient, move || {
        let bad = |source: BranchError| PrepareError::Branch {
            path: place.clone(),
            source,
        };
        let made = output.and_then(|output| {
            let (id, record) = &of_clone;
            let (branch, left_out) = match BundleOutcome::parse(&output.stdout).map_err(bad)? {
                BundleOutcome::Nothing { left_out } => (None, left_out),
                BundleOutcome::Made { left_out, lines } => {
                    let path = branch::store_bundle(&of.state, id, &part, record).map_err(bad)?;
                    let branch = TaskBranch {
                        name: record.branch_of(&id.session),
                        lines,
                        in_repository: false,
                    };
                    (Some((path, branch)), left_out)
                }
            };
            let remark = left_out.map(describe_left_out);
            Ok(MadeBundle { branch, remark })
        });
        branch::remove_scratch(of.state.copies(), &part);
        made
    });
    let made = made.await??;
    if !is_result {
        return Ok(made);
    }
    Ok(import(shared, pool, &space.slot, (id, record), made).await)
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
