//! Pushing the branch of a session to a git server, and opening a pull request for it.
//!
//! Only a person's command does this. The push goes through the checks of the route that agents push
//! by; git, which makes the pack in a sandbox, sees neither the network nor the key. Must not know
//! which work is worth it.

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::Arc;

use super::bundle_git::{BundleGit, Refused, Scratch, find_refused};
use super::landing::{LandingError, list_files};
use super::prepare::blocking;
use super::prepare::push::PackInspector;
use crate::setup::{PoolShared, Shared};
use marshal_config::{Route, RouteKind};
use marshal_model::{SessionId, SlotId};
use marshal_proxy::forge::NewPullRequest;
use marshal_proxy::git::ServerRefs;
use marshal_proxy::model_proxy::{
    ForgeClient, ForgeError, OpenedPullRequest, OwnPush, OwnPushError, Upstream, UpstreamError,
};
use marshal_sandbox::workspace::branch::bundle_header::BundleHeader;
use marshal_sandbox::workspace::branch::git::{self, PushPack};
use marshal_sandbox::workspace::branch::{self, BranchError, CloneId, CloneRecord, Repository};
use marshal_sandbox::workspace::{Root, TreeError};

/// What is to be pushed, and where.
#[derive(Debug, Clone)]
pub struct PullRequestOrder {
    /// The session whose bundle it is.
    pub session: SessionId,
    /// The directory with its clone, record and bundle, private to this user.
    pub clones: PathBuf,
    /// The route; `None`: the only one with `pull_request`.
    pub route: Option<String>,
    /// The repository; `None`: the only one of the route.
    pub repository: Option<String>,
    /// The branch that the request is for; `None`: that of the route.
    pub base: Option<String>,
    /// Another name for the branch.
    pub into: Option<String>,
    /// Files and directories that may take effect outside of the sandbox.
    pub allow: Vec<String>,
    /// The title where the last commit is not the agent's.
    pub title: String,
    /// The text.
    pub text: String,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PushedBranch {
    /// The branch of the server.
    pub branch: String,
    /// Its commit.
    pub commit: String,
    /// The pull request.
    pub opened: OpenedPullRequest,
    /// The places of further repositories that have a branch of the session, which is not pushed.
    pub further: Vec<String>,
}

/// Why there is no pull request.
#[derive(Debug, thiserror::Error)]
pub enum PullRequestError {
    /// No route says how.
    #[error(
        "no route has pull_request: add it to the [route.NAME] with kind = \"git\" of the repository's server"
    )]
    NoRoute,
    /// Several routes say how.
    #[error("these routes have pull_request: {0}; name one with --route")]
    SeveralRoutes(String),
    /// There is no such route.
    #[error("there is no route {0} with kind = \"git\" and pull_request")]
    UnknownRoute(String),
    /// It is not known which repository of the server it is.
    #[error("the route {0} has several repositories: name one with --repository")]
    SeveralRepositories(String),
    /// The route does not lead to that repository.
    #[error("the route {route} has no repository {repository}")]
    UnknownRepository {
        /// The route.
        route: String,
        /// The repository.
        repository: String,
    },
    /// Files that other programs run or obey.
    #[error(
        "it changes what takes effect outside of the sandbox: {0}; look at it (marshal diff), and add --allow PATH for each file or directory"
    )]
    Outside(String),
    /// Files of secrets.
    #[error("its commits have files of secrets, which no --allow takes: {0}")]
    Secrets(String),
    /// The server or the route did not take the branch.
    #[error("the branch was not pushed: {0}")]
    Push(#[from] OwnPushError),
    /// The branch is pushed, and has no pull request.
    #[error("the branch {branch} is pushed, but has no pull request: {source}")]
    Forge {
        /// The branch of the server.
        branch: String,
        /// Why.
        source: ForgeError,
    },
    /// The route cannot be used.
    #[error(transparent)]
    Route(#[from] UpstreamError),
    /// The API of the route cannot be used.
    #[error(transparent)]
    Api(ForgeError),
    /// The repository of the workspace has no branch, but others of the workspace have.
    #[error(
        "the session has branches only in further repositories of its workspace ({0}), and pull requests are for the workspace's own: bring them in (marshal land), and push them from there"
    )]
    OnlyFurther(String),
    /// The bundle cannot be used.
    #[error(transparent)]
    Landing(#[from] LandingError),
}

/// Where a branch goes.
struct Destination<'s> {
    route: &'s Route,
    /// The path of the repository below the upstream; empty if it is the upstream.
    path: String,
    /// Its name in the API.
    name: String,
}

impl<'s> Destination<'s> {
    fn find(shared: &'s Shared, order: &PullRequestOrder) -> Result<Self, PullRequestError> {
        let routes = shared.config.routes.values();
        let mut usable = routes
            .filter(|route| route.kind == RouteKind::Git && route.git.pull_requests.is_some());
        let route = if let Some(name) = &order.route {
            usable
                .find(|route| route.name == *name)
                .ok_or_else(|| PullRequestError::UnknownRoute(name.clone()))?
        } else {
            let first = usable.next().ok_or(PullRequestError::NoRoute)?;
            let others: Vec<&str> = usable.map(|route| &*route.name).collect();
            if !others.is_empty() {
                let names = [&[&*first.name], &others[..]].concat().join(", ");
                return Err(PullRequestError::SeveralRoutes(names));
            }
            first
        };
        let mut names = route.git.repository_names(&route.upstream);
        let name = match (&order.repository, names.next(), names.next()) {
            (Some(name), ..) => name.strip_suffix(".git").unwrap_or(name),
            (None, Some(Some(name)), None) => name,
            _ => return Err(PullRequestError::SeveralRepositories(route.name.clone())),
        };
        let is_upstream = route.git.repositories.is_empty();
        let paths = [name.to_owned(), format!("{name}.git")];
        let is_allowed = |path: &String| {
            let request = format!("/{path}/git-receive-pack");
            route
                .allow
                .iter()
                .any(|line| line.matches("POST", &request))
        };
        let mut names = route.git.repository_names(&route.upstream);
        let path = if is_upstream {
            (names.next() == Some(Some(name))).then(String::new)
        } else {
            paths.into_iter().find(is_allowed)
        };
        let unknown = || PullRequestError::UnknownRepository {
            route: route.name.clone(),
            repository: name.to_owned(),
        };
        Ok(Self {
            path: path.ok_or_else(unknown)?,
            name: name.to_owned(),
            route,
        })
    }
}

/// Pushes the branch of a session and opens a pull request. `slot` is the slot whose user id the
/// sandboxes have.
///
/// # Errors
/// [`PullRequestError`]
pub(crate) async fn open_pull_request(
    shared: &Arc<Shared>,
    pool: &Arc<PoolShared>,
    slot: &SlotId,
    order: PullRequestOrder,
) -> Result<PushedBranch, PullRequestError> {
    let to = Destination::find(shared, &order)?;
    let forge = ForgeClient::new(to.route).map_err(PullRequestError::Api)?;
    let inspector = Arc::new(PackInspector::new(Arc::clone(shared), Arc::clone(pool)));
    let upstream = Arc::new(Upstream::new(to.route)?);
    let push = OwnPush::new(upstream, slot.clone(), inspector, &to.path);
    let stored = {
        let order = order.clone();
        let opened = blocking(&shared.ambient, move || StoredBranch::open(&order));
        opened.await.map_err(LandingError::from)??
    };
    let branch = order.into.unwrap_or(stored.name);
    let git = BundleGit {
        shared,
        pool,
        slot,
        bundle: &stored.path,
        repository: &stored.repository,
    };
    let full = format!("refs/heads/{branch}");
    let refs = push.server_refs(&full).await?;
    let scratch = git.create_scratch().await?;
    let step = PushStep {
        git: &git,
        scratch: &scratch,
        record: &stored.record,
        head: &stored.head,
        allow: &order.allow,
    };
    let pushed = step.push(&push, (&full, &refs)).await;
    scratch.remove(shared).await?;
    let subject = pushed?;
    // The title of a commit that no agent made says nothing.
    let is_own = subject.is_empty() || subject == git::OWN_SUBJECT;
    let of_route = to.route.git.pull_requests.as_ref();
    let of_route = of_route.map_or("main", |requests| &*requests.base);
    let new = NewPullRequest {
        repository: &to.name,
        head: &branch,
        base: order.base.as_deref().unwrap_or(of_route),
        title: if is_own { &order.title } else { &subject },
        text: &order.text,
    };
    match forge.open(&new).await {
        Ok(opened) => Ok(PushedBranch {
            branch,
            commit: stored.head.tip.to_string(),
            opened,
            further: stored.further,
        }),
        Err(source) => Err(PullRequestError::Forge { branch, source }),
    }
}

/// A session's bundle for the repository of its workspace.
struct StoredBranch {
    path: PathBuf,
    record: CloneRecord,
    head: BundleHeader,
    repository: Repository,
    name: String,
    /// The places of further repositories that have one too.
    further: Vec<String>,
}

impl StoredBranch {
    fn open(order: &PullRequestOrder) -> Result<Self, PullRequestError> {
        let clones = Root::open_resolved(&order.clones).map_err(LandingError::from)?;
        let id = CloneId::workspace(&order.session);
        let stored = branch::stored_bundles(&clones, &order.session).into_iter();
        let further = stored.map(|(at, _)| at).filter(|at| !at.is_empty());
        let further: Vec<String> = further.collect();
        let path = branch::bundle_path(&clones, &id);
        if path.symlink_metadata().is_err() {
            return Err(if further.is_empty() {
                LandingError::NoBundle(order.session.clone()).into()
            } else {
                PullRequestError::OnlyFurther(further.join(", "))
            });
        }
        let open = || {
            let record = branch::read_record(&clones, &id)?;
            Ok::<_, BranchError>(Self {
                head: branch::stored_header(&clones, &id, &record)?,
                repository: Repository::find(&record.source)?,
                name: record.branch_of(&order.session),
                path,
                record,
                further,
            })
        };
        Ok(open().map_err(LandingError::from)?)
    }
}

/// Making the pack, and pushing it.
struct PushStep<'s> {
    git: &'s BundleGit<'s>,
    scratch: &'s Scratch,
    record: &'s CloneRecord,
    head: &'s BundleHeader,
    allow: &'s [String],
}

impl PushStep<'_> {
    /// Pushes what the server lacks; returns the first line of the last commit's message.
    async fn push(
        &self,
        push: &OwnPush,
        (full, refs): (&str, &ServerRefs),
    ) -> Result<String, PullRequestError> {
        let tip = self.head.tip.as_str();
        let known: Vec<String> = refs.wanted.iter().chain(&refs.others).cloned().collect();
        let place = self.scratch.path.clone();
        let written = blocking(&self.git.shared.ambient, move || {
            use std::io::Write as _;
            use std::os::unix::fs::OpenOptionsExt as _;
            let path = place.join(git::SERVER_HAS);
            let mut new = std::fs::OpenOptions::new();
            let file = new.write(true).create_new(true).mode(0o644).open(&path);
            file.and_then(|mut file| {
                // Git, with the slot's user id, must read it whatever the umask is.
                file.set_permissions(std::fs::Permissions::from_mode(0o644))?;
                file.write_all((known.join("\n") + "\n").as_bytes())
            })
            .map_err(|error| TreeError::at_path("write", &path, error))
        });
        written
            .await
            .map_err(LandingError::from)?
            .map_err(LandingError::from)?;
        let command = git::push_pack(self.head, &self.record.base);
        let output = self.git.run(self.scratch, command).await?;
        let PushPack { subject, changes } = PushPack::parse(&output).map_err(LandingError::from)?;
        match find_refused(self.git.pool, &changes, &self.record.at, self.allow) {
            None => {}
            Some(Refused::Secrets(files)) => {
                let files = list_files(files.iter().map(String::as_str));
                return Err(PullRequestError::Secrets(files));
            }
            Some(Refused::Outside(files)) => {
                let files = files.iter().map(|(path, _)| path.as_str());
                return Err(PullRequestError::Outside(list_files(files)));
            }
        }
        if refs.wanted.as_deref() == Some(tip) {
            return Ok(subject);
        }
        let place = self.scratch.path.clone();
        let opened = blocking(&self.git.shared.ambient, move || {
            let dir = Root::open_resolved(&place)?;
            let file = branch::open_regular(&dir, git::PUSH_PACK)?;
            let bytes = file
                .metadata()
                .map_err(|error| TreeError::at_path("examine", &place, error))?
                .len();
            Ok::<_, TreeError>((file, bytes))
        });
        let pack = opened.await.map_err(LandingError::from)?;
        let pack = pack.map_err(LandingError::from)?;
        push.push(refs, (full, tip), pack).await?;
        Ok(subject)
    }
}
