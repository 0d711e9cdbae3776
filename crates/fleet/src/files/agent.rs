//! A file of a registered workspace that an agent reads or writes through its client or its tools.
//!
//! Owns which version of a file each session saw last. It is the base of the session's next write,
//! unless the write names another base. Must not know how a file is read or written inside an
//! agent's sandbox.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, PoisonError};

use bytes::Bytes;

use super::{Draft, FileLocation, FilesError, PriorContent, WorkspaceFiles, digest};
use crate::setup::Shared;
use marshal_model::limits::{FILES_FORGETFUL_SESSIONS, FILES_SEEN, FILES_SEEN_OF_SESSION};
use marshal_model::{FileVersion, SessionId, TaskId};
use marshal_sandbox::workspace::host_access::{ExpectedContent, Parents};
use marshal_store::{
    Author, AuthorKind, Base, Cause, ContentState, Digest, FilePath, Origin, StoreError, Version,
    WorkspaceId,
};

/// A session and a file that it saw.
type Key = (SessionId, WorkspaceId, FilePath);

/// The versions that sessions saw last, with an LRU bound: over all sessions, and for each session.
/// It is always known whether an entry of a session may have been removed. Such a session must see
/// a version of another author before it may overwrite it.
#[derive(Debug)]
pub(super) struct SeenVersions {
    versions: HashMap<Key, (u64, u64)>,
    /// Entries by the count at which they were seen last.
    order: BTreeMap<u64, Key>,
    of_session: HashMap<SessionId, BTreeSet<u64>>,
    now: u64,
    forgetful: BTreeSet<SessionId>,
    /// Entries of sessions that began before this id may have been removed too; ids are ordered by
    /// time. Initially it marks the start of this process.
    before: String,
}

impl SeenVersions {
    pub(super) fn new() -> Self {
        Self {
            versions: HashMap::new(),
            order: BTreeMap::new(),
            of_session: HashMap::new(),
            now: 0,
            forgetful: BTreeSet::new(),
            before: uuid::Uuid::now_v7().to_string(),
        }
    }

    fn get(&self, key: &Key) -> Option<u64> {
        self.versions.get(key).map(|(v, _)| *v)
    }

    fn may_have_forgotten(&self, session: &SessionId) -> bool {
        session.as_str() <= self.before.as_str() || self.forgetful.contains(session)
    }

    fn record(&mut self, key: Key, v: u64) {
        self.now += 1;
        let session = key.0.clone();
        if let Some((_, at)) = self.versions.insert(key.clone(), (v, self.now)) {
            self.order.remove(&at);
            if let Some(of) = self.of_session.get_mut(&session) {
                of.remove(&at);
            }
        }
        self.order.insert(self.now, key);
        let of = self.of_session.entry(session).or_default();
        of.insert(self.now);
        if of.len() > FILES_SEEN_OF_SESSION
            && let Some(oldest) = of.first().copied()
        {
            self.forget(oldest);
        }
        if self.order.len() > FILES_SEEN
            && let Some(oldest) = self.order.keys().next().copied()
        {
            self.forget(oldest);
        }
    }

    fn forget(&mut self, at: u64) {
        let Some(key) = self.order.remove(&at) else {
            return;
        };
        self.versions.remove(&key);
        if let Some(of) = self.of_session.get_mut(&key.0) {
            of.remove(&at);
            if of.is_empty() {
                self.of_session.remove(&key.0);
            }
        }
        self.forgetful.insert(key.0);
        if self.forgetful.len() > FILES_FORGETFUL_SESSIONS
            && let Some(oldest) = self.forgetful.pop_first()
            && oldest.as_str() > self.before.as_str()
        {
            self.before = oldest.as_str().to_owned();
        }
    }
}

/// A session whose workspace is, contains, or lies in a registered workspace.
#[derive(Debug, Clone)]
pub(crate) struct SessionVersions {
    shared: Arc<Shared>,
    /// The host path of its workspace.
    host: PathBuf,
    session: SessionId,
}

/// A file of the session's workspace that has versions.
#[derive(Debug)]
pub(crate) struct AgentFile {
    shared: Arc<Shared>,
    spot: FileLocation,
    session: SessionId,
    task: TaskId,
}

/// A write of a file by an agent.
#[derive(Debug)]
pub(crate) struct AgentWrite {
    /// The new content.
    pub(crate) text: String,
    /// The base version, 0 for a new file; `None`: the version that the session saw last.
    pub(crate) base: Option<u64>,
    /// Whether the whole file or a part of it is written.
    pub(crate) cause: Cause,
    /// SHA-256 of the file's content before a partial change; `None` for a write of the whole file.
    pub(crate) expected_digest: Option<Digest>,
}

impl SessionVersions {
    /// `None` if no file of the session's workspace can have versions.
    pub(crate) fn new(shared: &Arc<Shared>, host: PathBuf, session: &SessionId) -> Option<Self> {
        let roots = shared.files.roots.current();
        let touches = |root: &PathBuf| root.starts_with(&host) || host.starts_with(root);
        let has_versions = shared.files.store.is_some() && roots.all.values().any(touches);
        has_versions.then(|| Self {
            shared: Arc::clone(shared),
            host,
            session: session.clone(),
        })
    }

    pub(super) fn files(&self) -> &WorkspaceFiles {
        &self.shared.files
    }

    pub(crate) const fn session(&self) -> &SessionId {
        &self.session
    }

    /// The file at a path below the session's workspace, if it has versions.
    pub(crate) fn file(&self, below: &str, task: &TaskId) -> Option<AgentFile> {
        Some(AgentFile {
            spot: self
                .shared
                .files
                .resolve_host_path(&self.host.join(below))?,
            shared: Arc::clone(&self.shared),
            session: self.session.clone(),
            task: task.clone(),
        })
    }
}

impl AgentFile {
    /// The version of its content on the disk; `None` if it is unknown.
    pub(crate) async fn current_version(&self) -> Option<u64> {
        match self.shared.files.sync(&self.spot).await {
            Ok(synced) => synced.current.map(|version| version.v),
            Err(error) => {
                tracing::debug!(%error, "a file's version is unknown: it is read without one");
                None
            }
        }
    }

    /// Records that the session saw this version.
    pub(crate) fn mark_seen(&self, v: u64) {
        let seen = self.shared.files.seen_versions.lock();
        seen.unwrap_or_else(PoisonError::into_inner)
            .record(self.key(), v);
    }

    fn key(&self) -> Key {
        let FileLocation { id, path, .. } = &self.spot;
        (self.session.clone(), id.clone(), path.clone())
    }

    /// The base of a write: the named one, or the one that the session saw last. If the entry of
    /// the session may have been removed and another author wrote the newest version, the write is
    /// refused as stale once; after that the session has seen that version.
    async fn resolve_base(&self, change: &AgentWrite) -> Result<Base, FilesError> {
        let known = {
            let seen = self
                .shared
                .files
                .seen_versions
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            let known = change.base.or_else(|| seen.get(&self.key()));
            // A partial change is compared with the whole content anyway, so it needs no base.
            let is_fresh =
                change.expected_digest.is_some() || !seen.may_have_forgotten(&self.session);
            known.or(is_fresh.then_some(u64::MAX))
        };
        match known {
            Some(0) => return Ok(Base::New),
            Some(u64::MAX) => return Ok(Base::Any),
            Some(v) => return Ok(Base::At(v)),
            None => {}
        }
        let synced = self.shared.files.sync(&self.spot).await?;
        let Some(now) = synced
            .current
            .filter(|now| now.content_state != ContentState::Deleted)
        else {
            return Ok(Base::New);
        };
        if now.origin.author == self.origin().author {
            return Ok(Base::At(now.v));
        }
        self.mark_seen(now.v);
        let (path, current) = (self.spot.path.clone(), Box::new(now));
        Err(StoreError::Stale { path, current }.into())
    }

    /// Writes the file: the version is durable before `place` writes it to the disk.
    pub(crate) async fn write<E, F>(
        &self,
        change: AgentWrite,
        place: impl FnOnce(PriorContent, Bytes) -> F,
    ) -> Result<FileVersion, E>
    where
        E: From<FilesError>,
        F: Future<Output = Result<(), E>>,
    {
        let draft = Draft {
            base: self.resolve_base(&change).await?,
            bytes: change.text.into(),
            origin: self.origin(),
            cause: change.cause,
            expected_digest: change.expected_digest,
            restores: None,
        };
        let version = self
            .shared
            .files
            .write_version(&self.spot, draft, place)
            .await?;
        self.mark_seen(version.v);
        Ok(to_file_version(&self.spot, &version))
    }

    /// Writes the file by the supervisor itself, if it is as the agent sees it. The write is
    /// finished even if the caller drops the future.
    pub(crate) async fn write_outside(
        self,
        change: AgentWrite,
        seen: ExpectedContent,
    ) -> Result<FileVersion, FilesError> {
        let written = tokio::spawn(async move {
            let (files, spot) = (&self.shared.files, &self.spot);
            // Before a version is stored: what is hidden from the agent must not get into the store.
            let found = files.read_disk(spot).await?;
            let found = found.map_or(ExpectedContent::Missing, |found| {
                ExpectedContent::Digest(digest(&found).0)
            });
            if found != seen {
                return Err(FilesError::Changed(spot.path.clone()));
            }
            let place = |prior: PriorContent, bytes| async move {
                if prior.expected != seen {
                    return Err(FilesError::Changed(spot.path.clone()));
                }
                let placed = files.place_file(spot, Parents::Require, prior, (bytes, None));
                placed.await
            };
            self.write(change, place).await
        });
        written.await.map_err(|_| FilesError::Stopping)?
    }

    pub(super) const fn location(&self) -> &FileLocation {
        &self.spot
    }

    fn origin(&self) -> Origin {
        Origin {
            author: Author::new(AuthorKind::Session, self.session.as_str()),
            turn: None,
            task: Some(self.task.as_str().to_owned()),
        }
    }
}

pub(super) fn to_file_version(spot: &FileLocation, version: &Version) -> FileVersion {
    FileVersion {
        workspace: spot.id.as_str().into(),
        path: spot.path.as_str().into(),
        file: Some(version.file.to_string()),
        version: version.v,
        observed: version.origin.author.kind == AuthorKind::Observed,
        moved_from: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(name: &str) -> SessionId {
        SessionId::new(name).expect("an id")
    }

    fn key(of: &SessionId, n: usize) -> Key {
        let id = WorkspaceId::new("w").expect("an id");
        let path = FilePath::new(format!("f{n}")).expect("a path");
        (of.clone(), id, path)
    }

    #[test]
    fn a_busy_session_forgets_its_own_files_and_what_is_used_is_kept() {
        let mut seen = SeenVersions::new();
        let (quiet, busy) = (session("x-quiet"), session("y-busy"));
        seen.record(key(&quiet, 0), 7);
        for n in 0..2 * FILES_SEEN {
            seen.record(key(&busy, n), 1);
            // Its first file is one that it uses all the time.
            seen.record(key(&busy, 0), n as u64);
        }
        assert_eq!(seen.get(&key(&quiet, 0)), Some(7));
        assert!(!seen.may_have_forgotten(&quiet) && seen.may_have_forgotten(&busy));
        assert!(seen.get(&key(&busy, 0)).is_some());
        assert_eq!(seen.get(&key(&busy, 1)), None);
        assert_eq!(seen.versions.len(), FILES_SEEN_OF_SESSION + 1);
        assert_eq!(seen.order.len(), seen.versions.len());
    }

    #[test]
    fn of_many_sessions_everything_is_bounded_and_who_forgot_is_known() {
        let mut seen = SeenVersions::new();
        let of = |n: usize| session(&format!("z{n:08}"));
        let all = 3 * FILES_SEEN;
        for n in 0..all {
            seen.record(key(&of(n), 0), 1);
        }
        assert_eq!(
            (seen.versions.len(), seen.order.len()),
            (FILES_SEEN, FILES_SEEN)
        );
        assert_eq!(seen.of_session.len(), FILES_SEEN);
        assert_eq!(seen.forgetful.len(), FILES_FORGETFUL_SESSIONS);
        for n in [0, 1, FILES_SEEN, all - FILES_SEEN - 1] {
            assert!(seen.may_have_forgotten(&of(n)), "{n}");
        }
        assert!(!seen.may_have_forgotten(&of(all - FILES_SEEN)));
        assert!(!seen.may_have_forgotten(&of(all)));
    }

    #[test]
    fn a_session_from_before_the_start_may_have_forgotten() {
        let before = session(&uuid::Uuid::now_v7().to_string());
        let seen = SeenVersions::new();
        let after = session(&uuid::Uuid::now_v7().to_string());
        assert!(seen.may_have_forgotten(&before));
        assert!(!seen.may_have_forgotten(&after));
    }
}
