//! `take`: the branch of a session that worked in a clone comes into the repository that the clone
//! was made of.
//!
//! The bundle comes from walls that an agent was in. Git unpacks and checks it behind walls of its
//! own, beside the repository's objects, which are read-only there; what was checked is then put in
//! place as files. Git is never run outside, nothing is checked out, and no branch is overwritten.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::exit::Exit;
use super::streams::Streams;
use super::trust::shown;
use crate::config::Config;
use crate::launch::{self, LaunchPlan, RunError, Spawner, Walls};
use crate::limits::{BUNDLE_BYTES, GIT_SAID_BYTES, GIT_TREE_TIME};
use crate::model::{ExitStatus, SessionId, foreign};
use crate::sandbox::uids::{self, HeldBlock, Sources, UidError};
use crate::sandbox::workspace::branch::git::{self, Unpacked};
use crate::sandbox::workspace::branch::head::{Head, ObjectId};
use crate::sandbox::workspace::branch::land::{self, LandError};
use crate::sandbox::workspace::branch::{self, BUNDLE_INSIDE, BranchError, Record, SOURCE_INSIDE};
use crate::sandbox::workspace::{Owner, Root, TreeError};
use crate::sandbox::{self, Beside, Ids, PlanError, Tree, WallsRequest};
use crate::wire::shim::Access;

/// What the walls of git have of programs.
const PATH: &str = "/usr/local/bin:/usr/bin:/bin";
/// Runs with a state directory of their own that are looked through.
const LOCALS: usize = 10_000;

/// Why a branch is not taken.
#[derive(Debug, thiserror::Error)]
enum NotTaken {
    /// Nobody knows such a clone.
    #[error(
        "session {session} has no clone in {state}: only mode \"worktree\" makes one, and it is kept for 7 days"
    )]
    NoClone {
        /// The session.
        session: SessionId,
        /// Where was looked.
        state: String,
    },
    /// There is nothing to take.
    #[error("session {0} brought nothing that its repository had not")]
    NoBundle(SessionId),
    /// The state is not the caller's.
    #[error("{0} is not yours, or others can read or write it")]
    Foreign(String),
    /// The branch has another commit.
    #[error(
        "the branch {branch} is there already, at {has}: rename it (git branch -m {branch} OTHER), then take this one"
    )]
    Exists {
        /// The branch.
        branch: String,
        /// What it is.
        has: ObjectId,
    },
    /// A branch has the name of our directory.
    #[error(
        "the repository has a branch \"marshal\": rename it, so that branches can be below that name"
    )]
    Blocked,
    /// Refs are kept in another form.
    #[error(
        "the repository keeps its branches as a reftable: take it with git, fetch.fsckObjects=true git fetch {0}"
    )]
    Reftable(String),
    /// Git found something.
    #[error("the bundle is refused: {0}")]
    Refused(String),
    /// Git could not be run.
    #[error("git cannot be run behind walls: {0}")]
    Walls(#[from] RunError),
    /// The record, the bundle or the source.
    #[error(transparent)]
    Branch(#[from] BranchError),
    /// A directory.
    #[error(transparent)]
    Tree(#[from] TreeError),
    /// No uid.
    #[error(transparent)]
    Uids(#[from] UidError),
    /// No walls.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// It could not be put in place.
    #[error(transparent)]
    Land(#[from] LandError),
    /// No process can be started.
    #[error("no process can be started: {0}")]
    Spawner(std::io::Error),
}

impl NotTaken {
    fn exit(&self) -> Exit {
        match self {
            Self::NoClone { .. } | Self::NoBundle(_) => Exit::Usage,
            Self::Foreign(_) => Exit::NotPermitted,
            Self::Walls(_) | Self::Uids(_) | Self::Plan(_) | Self::Spawner(_) => Exit::CannotStart,
            _ => Exit::Failures,
        }
    }
}

/// What was taken.
struct Taken {
    branch: String,
    tip: ObjectId,
    source: PathBuf,
    /// It had been there.
    was_there: bool,
}

/// Takes the branch of `session`.
pub(super) async fn take(
    state: &Path,
    config: &Config,
    session: &SessionId,
    json: bool,
    streams: &mut Streams,
) -> Exit {
    match taken(state, config, session).await {
        Ok(taken) if json => {
            let object = serde_json::json!({
                "session": session.as_str(),
                "branch": taken.branch,
                "commit": taken.tip.as_str(),
                "workspace": taken.source.to_string_lossy(),
                "was_there": taken.was_there,
            });
            streams.out.json(&object.to_string());
            Exit::Done
        }
        Ok(taken) => {
            let was = if taken.was_there {
                " was there already"
            } else {
                ""
            };
            let Taken {
                branch,
                tip,
                source,
                ..
            } = taken;
            let source = shown(&source);
            streams
                .out
                .line(&format!("branch {branch}{was}: {tip} in {source}"));
            Exit::Done
        }
        Err(error) => {
            streams.err.line(&format!("error: {error}"));
            error.exit()
        }
    }
}

async fn taken(state: &Path, config: &Config, session: &SessionId) -> Result<Taken, NotTaken> {
    let copies = find(state, session)?;
    let record = branch::record(&copies, session)?;
    let bundle = copies.path().join(format!("{session},bundle"));
    if bundle.symlink_metadata().is_err() {
        return Err(NotTaken::NoBundle(session.clone()));
    }
    let head = branch::kept_head(&copies, session, &record.base)?;
    let repository = branch::repository(&record.source)?;
    let spawner = Spawner::start().map_err(NotTaken::Spawner)?;
    let (ids, _held) = ids()?;
    let owner = match ids {
        Ids::Root { slot_uid } => Some(Owner {
            uid: slot_uid,
            gid: slot_uid,
        }),
        Ids::Own { .. } => None,
    };
    let what = format!("take-{}", uuid::Uuid::now_v7());
    let (part, place) = branch::scratch(&copies, &what, owner)?;
    let walls = Unpacking {
        config,
        ids,
        repository: &repository,
        bundle: &bundle,
        place: &place,
    };
    let done = bring(&spawner, &walls, session, &record, &head).await;
    branch::remove_scratch(&copies, &part);
    done
}

async fn bring(
    spawner: &Spawner,
    walls: &Unpacking<'_>,
    session: &SessionId,
    record: &Record,
    head: &Head,
) -> Result<Taken, NotTaken> {
    let name = branch::name(session);
    let plan = walls.plan(head, &name)?;
    let run = launch::run_to_end(spawner, plan, GIT_TREE_TIME, GIT_SAID_BYTES).await?;
    if run.status != ExitStatus::Code(0) {
        let said = String::from_utf8_lossy(&run.stderr).into_owned();
        let said = foreign::show(said.trim(), 400);
        return Err(NotTaken::Refused(format!("{}: {said}", run.status)));
    }
    let taken = |was_there| Taken {
        branch: name.clone(),
        tip: head.tip.clone(),
        source: record.source.clone(),
        was_there,
    };
    let (pack, has) = match Unpacked::read(&run.stdout)? {
        Unpacked::Checked { pack, has } => (pack, has),
        Unpacked::Blocked => return Err(NotTaken::Blocked),
        Unpacked::Reftable => return Err(NotTaken::Reftable(shown(walls.bundle))),
    };
    match has {
        None => {}
        Some(has) if has == head.tip => return Ok(taken(true)),
        Some(has) => return Err(NotTaken::Exists { branch: name, has }),
    }
    let git = Root::open_resolved(walls.repository)?;
    let packs = walls.place.join("objects/pack");
    // Git is gone, and what it left is its own: a link on the way leads nowhere.
    let from = Root::open_resolved(&packs)?;
    land::land(&git, &from, &pack, &name, &head.tip)?;
    Ok(taken(false))
}

/// Git's walls for one bundle.
struct Unpacking<'a> {
    config: &'a Config,
    ids: Ids,
    repository: &'a Path,
    bundle: &'a Path,
    place: &'a Path,
}

impl Unpacking<'_> {
    fn plan(&self, head: &Head, branch: &str) -> Result<LaunchPlan, NotTaken> {
        let profile = &self.config.sandboxes["standard"];
        let tree = |path: &Path, access| -> Result<Tree, NotTaken> {
            let meta = std::fs::symlink_metadata(path)
                .map_err(|error| TreeError::at_path("examine", path, error))?;
            Ok(Tree {
                path: path.to_owned(),
                owner: (meta.uid(), meta.gid()),
                access,
                identity: Some((meta.dev(), meta.ino())),
            })
        };
        let walls = sandbox::plan(&WallsRequest {
            home: Some(tree(self.place, Access::Rw)?),
            beside: Beside {
                trees: vec![
                    (tree(self.repository, Access::Ro)?, SOURCE_INSIDE.to_owned()),
                    (tree(self.bundle, Access::Ro)?, BUNDLE_INSIDE.to_owned()),
                ],
                ..Beside::none()
            },
            hostname: "take",
            ..sandbox::probe_request(profile, self.ids)
        })?;
        let git = git::unpack(head.pack_at, &head.tip, branch);
        let mut limits = sandbox::limits_of(profile);
        limits.fsize = 2 * BUNDLE_BYTES;
        let path = ("PATH".to_owned(), PATH.to_owned());
        Ok(LaunchPlan {
            argv: git.argv,
            env: git.env.into_iter().chain([path]).collect(),
            cwd: "/".to_owned(),
            limits,
            walls: Walls::Shim(Box::new(walls)),
            preamble: Vec::new(),
        })
    }
}

/// Who git is outside: as root a uid of nobody else's.
fn ids() -> Result<(Ids, Option<HeldBlock>), NotTaken> {
    let (uid, gid) = (
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
    );
    if uid != 0 {
        return Ok((Ids::Own { uid, gid }, None));
    }
    let held = uids::take(&Sources::host(), 1, crate::config::UidRange::Auto)?;
    let slot_uid = held.block().first;
    Ok((Ids::Root { slot_uid }, Some(held)))
}

/// The directory that a session's clone is in: of the daemon's sessions, or of a run that had a
/// state directory of its own.
fn find(state: &Path, session: &SessionId) -> Result<Root, NotTaken> {
    let locals = std::fs::read_dir(state.join("local"));
    let locals = locals.into_iter().flatten().take(LOCALS).flatten();
    let places = std::iter::once(state.to_owned()).chain(locals.map(|entry| entry.path()));
    for place in places {
        let copies = place.join("copies");
        if copies
            .join(format!("{session},branch"))
            .symlink_metadata()
            .is_err()
        {
            continue;
        }
        let root = Root::open_resolved(&super::state_dir::real(&copies))?;
        let meta = root.meta()?;
        if meta.uid != rustix::process::geteuid().as_raw() || meta.mode & 0o077 != 0 {
            return Err(NotTaken::Foreign(shown(&copies)));
        }
        return Ok(root);
    }
    Err(NotTaken::NoClone {
        session: session.clone(),
        state: shown(state),
    })
}
