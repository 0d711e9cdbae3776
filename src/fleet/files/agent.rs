//! A file of a registered workspace that an agent reads or writes by its client or its tools.
//!
//! Owns what each session saw last of which file: that is what its next write was made from, unless
//! it says otherwise. Must not know how a file is read or written behind an agent's walls.

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, PoisonError};

use bytes::Bytes;

use super::{Draft, FilesError, Spot, Stood};
use crate::fleet::setup::Shared;
use crate::limits::{FILES_SEEN, OBSERVE_WAIT};
use crate::model::{FileVersion, SessionId, TaskId};
use crate::store::{
    Author, AuthorKind, Base, Cause, Digest, FilePath, Origin, Version, WorkspaceId,
};

/// A file that a session saw.
type Key = (SessionId, WorkspaceId, FilePath);

/// Which versions sessions saw last; the oldest are forgotten.
#[derive(Debug, Default)]
pub(super) struct Seen {
    versions: HashMap<Key, u64>,
    order: VecDeque<Key>,
}

impl Seen {
    fn note(&mut self, key: Key, v: u64) {
        if self.versions.insert(key.clone(), v).is_some() {
            return;
        }
        self.order.push_back(key);
        if self.order.len() > FILES_SEEN
            && let Some(oldest) = self.order.pop_front()
        {
            self.versions.remove(&oldest);
        }
    }
}

/// A session that works in a registered workspace itself, or around or below one.
#[derive(Debug, Clone)]
pub(crate) struct Versioning {
    shared: Arc<Shared>,
    /// Its workspace on the host.
    host: PathBuf,
    session: SessionId,
}

/// A file of it that has versions.
#[derive(Debug)]
pub(crate) struct AgentFile {
    shared: Arc<Shared>,
    spot: Spot,
    session: SessionId,
    task: TaskId,
}

/// A change of a file, by an agent.
#[derive(Debug)]
pub(crate) struct AgentWrite {
    /// What is to be in it.
    pub(crate) text: String,
    /// From which version, 0 for none; `None`: what the session saw last.
    pub(crate) base: Option<u64>,
    /// The whole of it, or a part.
    pub(crate) cause: Cause,
    /// SHA-256 of the text that a part was changed of.
    pub(crate) holds: Option<Digest>,
}

impl Versioning {
    /// None where no versions are kept.
    pub(crate) fn of(shared: &Arc<Shared>, host: PathBuf, session: &SessionId) -> Option<Self> {
        let roots = shared.files.roots.now();
        let touches = |root: &PathBuf| root.starts_with(&host) || host.starts_with(root);
        let is_kept = shared.files.store.is_some() && roots.all.values().any(touches);
        is_kept.then(|| Self {
            shared: Arc::clone(shared),
            host,
            session: session.clone(),
        })
    }

    /// The file at a path below the session's workspace, if it has versions.
    pub(crate) fn file(&self, below: &str, task: &TaskId) -> Option<AgentFile> {
        Some(AgentFile {
            spot: self.shared.files.spot_at(&self.host.join(below))?,
            shared: Arc::clone(&self.shared),
            session: self.session.clone(),
            task: task.clone(),
        })
    }
}

/// A file that was found to be another than its newest version.
#[derive(Debug)]
pub(crate) struct Observed {
    /// Its path below the session's workspace.
    pub(crate) below: String,
    /// SHA-256 of what it holds; none if it is gone.
    pub(crate) sha256: Option<String>,
    /// The version that this is now.
    pub(crate) version: FileVersion,
}

impl Versioning {
    /// Looks at files of the session's workspace, at what a task may have changed past the
    /// supervisor, and gives what is a version now. What there is no time for is found when somebody
    /// looks at it.
    pub(crate) async fn observe(&self, below: Vec<String>, task: &TaskId) -> Vec<Observed> {
        let mut found = Vec::new();
        let all = async {
            for below in below {
                let Some(file) = self.file(&below, task) else {
                    continue;
                };
                let origin = Origin {
                    author: Author::new(AuthorKind::Observed, self.session.as_str()),
                    ..file.origin()
                };
                match self.shared.files.look_as(&file.spot, origin).await {
                    Ok(settled) => found.extend(settled.observed.map(|version| Observed {
                        below,
                        sha256: version.digest.map(|digest| digest.to_string()),
                        version: told(&file.spot, &version),
                    })),
                    // No plain file, or too large.
                    Err(FilesError::Disk { .. }) => {}
                    Err(error) => {
                        tracing::warn!(%error, "what was written is not observed now");
                        return;
                    }
                }
            }
        };
        if tokio::time::timeout(OBSERVE_WAIT, all).await.is_err() {
            tracing::info!(session = %self.session, "not all that was written is observed now");
        }
        found
    }
}

impl AgentFile {
    /// Its version as it stands there now; none if it cannot be told.
    pub(crate) async fn look(&self) -> Option<u64> {
        match self.shared.files.look(&self.spot).await {
            Ok(settled) => settled.current.map(|version| version.v),
            Err(error) => {
                tracing::debug!(%error, "a file is read without its version");
                None
            }
        }
    }

    /// The session knows this version.
    pub(crate) fn saw(&self, v: u64) {
        let seen = self.shared.files.seen.lock();
        seen.unwrap_or_else(PoisonError::into_inner)
            .note(self.key(), v);
    }

    fn key(&self) -> Key {
        let Spot { id, path, .. } = &self.spot;
        (self.session.clone(), id.clone(), path.clone())
    }

    fn base(&self, given: Option<u64>) -> Base {
        let seen = self.shared.files.seen.lock();
        let seen = seen.unwrap_or_else(PoisonError::into_inner);
        match given.or_else(|| seen.versions.get(&self.key()).copied()) {
            Some(0) => Base::New,
            Some(v) => Base::At(v),
            None => Base::Any,
        }
    }

    /// Writes it: the version is durable before `place` puts it on the disk.
    pub(crate) async fn write<E, F>(
        &self,
        change: AgentWrite,
        place: impl FnOnce(Stood, Bytes) -> F,
    ) -> Result<FileVersion, E>
    where
        E: From<FilesError>,
        F: Future<Output = Result<(), E>>,
    {
        let draft = Draft {
            base: self.base(change.base),
            bytes: change.text.into(),
            origin: self.origin(),
            cause: change.cause,
            holds: change.holds,
            restores: None,
        };
        let version = self.shared.files.write(&self.spot, draft, place).await?;
        self.saw(version.v);
        Ok(told(&self.spot, &version))
    }

    fn origin(&self) -> Origin {
        Origin {
            author: Author::new(AuthorKind::Session, self.session.as_str()),
            turn: None,
            task: Some(self.task.as_str().to_owned()),
        }
    }
}

fn told(spot: &Spot, version: &Version) -> FileVersion {
    FileVersion {
        workspace: spot.id.as_str().into(),
        path: spot.path.as_str().into(),
        v: version.v,
        observed: version.cause == Cause::Observed,
    }
}
