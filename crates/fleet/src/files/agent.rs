//! A file of a registered workspace that an agent reads or writes by its client or its tools.
//!
//! Owns what each session saw last of which file: that is what its next write was made from, unless
//! it says otherwise. Must not know how a file is read or written behind an agent's walls.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, PoisonError};

use bytes::Bytes;

use super::{Draft, FileLocation, FilesError, PriorContent};
use crate::setup::Shared;
use marshal_model::limits::{
    FILES_FORGETFUL_SESSIONS, FILES_SEEN, FILES_SEEN_OF_SESSION, OBSERVE_TIMEOUT,
};
use marshal_model::{FileVersion, SessionId, TaskId};
use marshal_store::{
    Author, AuthorKind, Base, Cause, ContentState, Digest, FilePath, Origin, StoreError, Version,
    WorkspaceId,
};

/// A file that a session saw.
type Key = (SessionId, WorkspaceId, FilePath);

/// Which versions sessions saw last. What was not seen again for the longest is forgotten first, of
/// a session with very many files its own. Whether a session may have forgotten a file is always
/// known: then what somebody else wrote is shown to it before it writes over that.
#[derive(Debug)]
pub(super) struct SeenVersions {
    versions: HashMap<Key, (u64, u64)>,
    /// By when they were seen last.
    order: BTreeMap<u64, Key>,
    of_session: HashMap<SessionId, BTreeSet<u64>>,
    now: u64,
    forgetful: BTreeSet<SessionId>,
    /// Sessions that began before this moment may have forgotten, too: their ids are in the order of
    /// time. At first it is the start of this process.
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

/// A session that works in a registered workspace itself, or around or below one.
#[derive(Debug, Clone)]
pub(crate) struct SessionVersions {
    shared: Arc<Shared>,
    /// Its workspace on the host.
    host: PathBuf,
    session: SessionId,
}

/// A file of it that has versions.
#[derive(Debug)]
pub(crate) struct AgentFile {
    shared: Arc<Shared>,
    spot: FileLocation,
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
    pub(crate) expected_digest: Option<Digest>,
}

impl SessionVersions {
    /// None where no versions are kept.
    pub(crate) fn new(shared: &Arc<Shared>, host: PathBuf, session: &SessionId) -> Option<Self> {
        let roots = shared.files.roots.current();
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

/// A file that was found to be another than its newest version.
#[derive(Debug)]
pub(crate) struct ObservedFile {
    /// Its path below the session's workspace.
    pub(crate) relative_path: String,
    /// SHA-256 of what it holds; none if it is gone.
    pub(crate) sha256: Option<String>,
    /// The version that this is now.
    pub(crate) version: FileVersion,
}

impl SessionVersions {
    /// Looks at files of the session's workspace, at what a task may have changed past the
    /// supervisor, and gives what is a version now. What there is no time for is found when somebody
    /// looks at it.
    pub(crate) async fn observe(&self, below: Vec<String>, task: &TaskId) -> Vec<ObservedFile> {
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
                match self.shared.files.sync_as(&file.spot, origin).await {
                    Ok(settled) => found.extend(settled.observed.map(|version| ObservedFile {
                        relative_path: below,
                        sha256: version.digest.map(|digest| digest.to_string()),
                        version: to_file_version(&file.spot, &version),
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
        if tokio::time::timeout(OBSERVE_TIMEOUT, all).await.is_err() {
            tracing::info!(session = %self.session, "not all that was written is observed now");
        }
        found
    }
}

impl AgentFile {
    /// Its version as it stands there now; none if it cannot be told.
    pub(crate) async fn current_version(&self) -> Option<u64> {
        match self.shared.files.sync(&self.spot).await {
            Ok(settled) => settled.current.map(|version| version.v),
            Err(error) => {
                tracing::debug!(%error, "a file is read without its version");
                None
            }
        }
    }

    /// The session knows this version.
    pub(crate) fn mark_seen(&self, v: u64) {
        let seen = self.shared.files.seen_versions.lock();
        seen.unwrap_or_else(PoisonError::into_inner)
            .record(self.key(), v);
    }

    fn key(&self) -> Key {
        let FileLocation { id, path, .. } = &self.spot;
        (self.session.clone(), id.clone(), path.clone())
    }

    /// What a write is made from: what is said, or what the session saw. If it may have seen what
    /// is not known any more, what somebody else wrote is refused to be lost, once: then it is seen.
    async fn resolve_base(&self, change: &AgentWrite) -> Result<Base, FilesError> {
        let known = {
            let seen = self.shared.files.seen_versions.lock();
            let seen = seen.unwrap_or_else(PoisonError::into_inner);
            let known = change.base.or_else(|| seen.get(&self.key()));
            // A part that is changed is held against the whole of the file in any case.
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
        let settled = self.shared.files.sync(&self.spot).await?;
        let Some(now) = settled
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

    /// Writes it: the version is durable before `place` puts it on the disk.
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

    fn origin(&self) -> Origin {
        Origin {
            author: Author::new(AuthorKind::Session, self.session.as_str()),
            turn: None,
            task: Some(self.task.as_str().to_owned()),
        }
    }
}

fn to_file_version(spot: &FileLocation, version: &Version) -> FileVersion {
    FileVersion {
        workspace: spot.id.as_str().into(),
        path: spot.path.as_str().into(),
        version: version.v,
        observed: version.cause == Cause::Observed,
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
