//! Observes files that were written past the supervisor: the session's tree while a turn runs, the
//! files of a tool call when it ends, and the events for what is found.
//!
//! Must not know how a file is read, nor what a version is.

use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::prepare::PreparedSession;
use super::tree_observer::TreeObserver;
use crate::files::{ObservedFile, ObservedTree, SessionVersions, observed_by};
use crate::messages::SessionMsg;
use crate::session::outbox::OnDurable;
use crate::session::state::SessionState;
use crate::setup::{PoolShared, Shared};
use marshal_config::WorkspaceMode;
use marshal_model::limits::OBSERVED_FILES;
use marshal_model::{Event, UntrustedText};
use marshal_policy::Request;

/// In place of a tool's name: the change was found on disk.
const OBSERVED: &str = "observed";

/// How long the end of a turn waits for its last changes.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(2);

/// Files of one call that are read at its end; the end of the turn finds the others.
const CALL_FILES: usize = 16;

impl PreparedSession {
    /// The file versions of the workspace, where the agent writes the workspace itself. Changes in
    /// a copy or an overlay become visible to others only when they are applied.
    pub(crate) fn versioning(
        &self,
        shared: &Arc<Shared>,
        pool: &PoolShared,
    ) -> Option<SessionVersions> {
        let writes = pool.config.workspace.mode == WorkspaceMode::Rw;
        writes
            .then(|| self.versions_of_tools(shared, pool))
            .flatten()
    }

    /// The file versions of the workspace, where the agent's client or tools write the workspace
    /// itself. In mode `ro` nothing else does.
    pub(crate) fn versions_of_tools(
        &self,
        shared: &Arc<Shared>,
        pool: &PoolShared,
    ) -> Option<SessionVersions> {
        let config = &pool.config;
        let modes = [WorkspaceMode::Rw, WorkspaceMode::Ro];
        let is_itself = modes.contains(&config.workspace.mode) && config.ssh.is_none();
        let host = self.dirs().workspace().to_owned();
        is_itself
            .then(|| SessionVersions::new(shared, host, &self.session))
            .flatten()
    }

    /// The directory on the host where the agent's writes appear.
    fn host_tree(&self) -> PathBuf {
        match &self.dirs().overlay {
            Some(overlay) => overlay.upper_path(),
            None => self.dirs().workspace().to_owned(),
        }
    }

    /// The path relative to the workspace, from a path as a tool names it; `None` if it is outside.
    fn path_in_workspace(&self, path: &str) -> Option<String> {
        let path = if path.starts_with('/') {
            path.to_owned()
        } else {
            format!("{}/{path}", self.directory_inside())
        };
        let root = self.workspace_inside().trim_end_matches('/');
        let below = path.strip_prefix(root)?.strip_prefix('/')?;
        let is_plain = !below.split('/').any(|part| part == "..");
        is_plain.then(|| below.to_owned())
    }
}

impl SessionState {
    /// Observes the session's tree until the end of the turn.
    pub(crate) fn observe_tree(&mut self) {
        let Some(prepared) = &mut self.workspace.prepared else {
            return;
        };
        let Some(watch) = prepared.tree.record.watch.take() else {
            return;
        };
        let (shared, versions) = (&self.shared, prepared.versioning(&self.shared, &self.pool));
        let tree = ObservedTree::new(shared, prepared.host_tree(), versions, &self.work.task);
        let (ambient, to) = (shared.ambient.clone(), self.myself.clone());
        prepared.tree.observer = Some(TreeObserver::start(watch, tree, ambient, to));
    }

    /// Records the end of the turn as soon as its last changes are recorded. Whatever happens first
    /// records the end at once.
    pub(crate) fn end_turn_when_settled(&mut self, end: Event) {
        let prepared = self.workspace.prepared.as_mut();
        let observer = prepared.and_then(|prepared| {
            let observer = prepared.tree.observer.take()?;
            prepared.tree.turn_end = Some(end.clone());
            Some(observer)
        });
        let Some(observer) = observer else {
            return self.record_turn_end(end);
        };
        let to = self.myself.clone();
        tokio::spawn(async move {
            let mut finished = pin!(observer.finish());
            let settled = if let Ok(settled) = timeout(SETTLE_TIMEOUT, &mut finished).await {
                settled
            } else {
                let _ = to.send_message(SessionMsg::ReleaseTurnEnd);
                finished.await
            };
            let _ = to.send_message(SessionMsg::TreeSettled(settled.map(Box::new)));
        });
    }

    pub(crate) fn tree_settled(&mut self, settled: Option<(ObservedTree, Vec<ObservedFile>)>) {
        if let Some((tree, found)) = settled {
            self.record_observed_files(found);
            // It may be late, and of a turn before.
            if !tree.belongs_to(&self.work.task) {
                return;
            }
            if let Some(prepared) = &mut self.workspace.prepared {
                prepared.tree.settled = Some(tree);
            }
        }
        self.release_turn_end();
    }

    /// Records the end of the turn, if it waits.
    pub(crate) fn release_turn_end(&mut self) {
        let prepared = self.workspace.prepared.as_mut();
        if let Some(end) = prepared.and_then(|prepared| prepared.tree.turn_end.take()) {
            self.record_turn_end(end);
        }
    }

    fn record_turn_end(&mut self, end: Event) {
        self.outbox.push_event(end);
        self.outbox.on_durable(OnDurable::FinishTurn);
    }

    /// A tool call of the agent's own ended: reads the files that it names to be written. Whatever
    /// else it wrote is found at the end of the turn.
    pub(crate) fn observe_call(&self, id: &UntrustedText) {
        let Some(prepared) = &self.workspace.prepared else {
            return;
        };
        let Some(call) = self.permissions.requests.call(id) else {
            return;
        };
        let Some(input) = call.input.as_deref() else {
            return;
        };
        let Some(versions) = prepared.versioning(&self.shared, &self.pool) else {
            return;
        };
        let named = match self
            .pool
            .extractor
            .extract_displayed(call.name.raw(), input)
        {
            Request::Write { paths } | Request::Edit { paths } | Request::Delete { paths } => paths,
            Request::Move { from, to } => from.into_iter().chain(to).collect(),
            _ => return,
        };
        let below = named
            .iter()
            .filter_map(|path| prepared.path_in_workspace(path));
        let below: Vec<String> = below.take(CALL_FILES).collect();
        let (to, task) = (self.myself.clone(), self.work.task.clone());
        tokio::spawn(async move {
            let author = observed_by(versions.session());
            let observed = versions.observe((Vec::new(), below), &task, author).await;
            if !observed.is_empty() {
                let _ = to.send_message(SessionMsg::FilesObserved(observed));
            }
        });
    }

    /// The supervisor's own tools or the client wrote a file, which is then found on the disk, too.
    pub(crate) fn record_written_file(&mut self, event: &Event) {
        let Event::FileUpdated {
            path,
            sha256: Some(sha256),
            ..
        } = event
        else {
            return;
        };
        if let Some(prepared) = &mut self.workspace.prepared
            && prepared.tree.written.len() < OBSERVED_FILES
        {
            let written = (path.raw().to_owned(), sha256.clone());
            prepared.tree.written.insert(written);
        }
    }

    /// Records what was found.
    pub(crate) fn record_observed_files(&mut self, observed: Vec<ObservedFile>) {
        let Some(prepared) = &self.workspace.prepared else {
            return;
        };
        for item in observed {
            let path = format!("{}/{}", prepared.workspace_inside(), item.relative_path);
            let digest = item.sha256.clone();
            let is_known =
                digest.is_some_and(|it| prepared.tree.written.contains(&(path.clone(), it)));
            if item.version.is_none() && is_known {
                continue;
            }
            self.outbox.push_event(Event::FileUpdated {
                tool: OBSERVED.into(),
                path: path.into(),
                sha256: item.sha256,
                version: item.version.map(Box::new),
            });
        }
    }
}
