//! What is written past the supervisor, as far as the session has a word in it: which files are
//! looked at when a tool call ends, and what is told of the versions that were found.
//!
//! Must not know how a file is read, nor what a version is.

use std::sync::Arc;

use super::SessionMsg;
use super::prepare::PreparedSession;
use super::state::SessionState;
use crate::files::{ObservedFile, SessionVersions};
use crate::setup::{PoolShared, Shared};
use marshal_config::WorkspaceMode;
use marshal_model::{Event, UntrustedText};
use marshal_policy::Request;

/// In place of a tool: it was found on the disk.
const OBSERVED: &str = "observed";

/// Files of one call that are looked at when it ends; the turn's end finds the others.
const CALL_FILES: usize = 16;

impl PreparedSession {
    /// The versions of what is in its workspace: only where the agent writes that itself. Of a copy
    /// and of an overlay nothing is anybody else's before it is applied.
    pub(super) fn versioning(
        &self,
        shared: &Arc<Shared>,
        pool: &PoolShared,
    ) -> Option<SessionVersions> {
        let config = &pool.config;
        let is_itself = config.workspace.mode == WorkspaceMode::Rw && config.ssh.is_none();
        let host = self.dirs().workspace().to_owned();
        is_itself
            .then(|| SessionVersions::new(shared, host, &self.session))
            .flatten()
    }

    /// A path as a tool names it, below the workspace.
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
    /// A tool call of the agent's own ended: the files that it names to be written are looked at.
    /// What else it wrote is found at the turn's end.
    pub(super) fn observe_call(&self, id: &UntrustedText) {
        let Some(prepared) = &self.prepared else {
            return;
        };
        let Some(call) = self.requests.call(id) else {
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
            let found = versions.observe(below, &task).await;
            if !found.is_empty() {
                let _ = to.send_message(SessionMsg::FilesObserved(found));
            }
        });
    }

    /// Tells the versions that were found.
    pub(super) fn record_observed_files(&mut self, observed: Vec<ObservedFile>) {
        let inside = self
            .prepared
            .as_ref()
            .map(PreparedSession::workspace_inside);
        let inside = inside.unwrap_or_default().to_owned();
        for of in observed {
            self.outbox.push_event(Event::FileUpdated {
                tool: OBSERVED.into(),
                path: format!("{inside}/{}", of.relative_path).into(),
                sha256: of.sha256,
                version: Some(Box::new(of.version)),
            });
        }
    }
}
