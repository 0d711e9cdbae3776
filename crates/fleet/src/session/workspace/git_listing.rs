//! Lists the files of a workspace by git, and limits how many sessions do so at a time.
//!
//! Git runs in a sandbox of its own: the repository may be written by an agent, and its
//! configuration can name programs. Must not know where the workspace is mounted.

use std::path::Path;

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_util::sync::CancellationToken;

use super::prepare_error::PrepareError;
use crate::setup::Shared;
use marshal_launch::{LaunchPlan, RunError, SpawnError};
use marshal_model::limits::{GIT_LIST_BYTES, GIT_LIST_TIMEOUT};
use marshal_sandbox::workspace::file_list;

/// Waits for one of a limited number of permits, or until it is cancelled.
pub(crate) async fn acquire_permit<'s>(
    places: &'s Semaphore,
    cancelled: &CancellationToken,
) -> Result<SemaphorePermit<'s>, PrepareError> {
    tokio::select! {
        biased;
        () = cancelled.cancelled() => Err(PrepareError::Interrupted),
        place = places.acquire() => place.map_err(|_| PrepareError::Interrupted),
    }
}

/// Lists what git tracks or would track. `plan` runs git in a sandbox on a read-only mount. `None`
/// if git is not installed.
pub(crate) async fn git_list(
    shared: &Shared,
    plan: LaunchPlan,
    source: &Path,
    cancelled: &CancellationToken,
) -> Result<Option<file_list::FileList>, PrepareError> {
    let bad = |why: String| PrepareError::Git {
        path: source.to_owned(),
        why,
    };
    let permit = acquire_permit(&shared.spawning, cancelled).await?;
    let run = shared
        .host
        .run_to_end(plan, GIT_LIST_TIMEOUT, GIT_LIST_BYTES);
    let finished = run.await;
    drop(permit);
    if let Err(RunError::Spawn(SpawnError::Exec(failure))) = &finished {
        tracing::warn!(%failure, "git cannot be run: everything is copied, ignored files too");
        return Ok(None);
    }
    let finished = finished.map_err(PrepareError::GitSandbox)?;
    if finished.status.shell_code() != 0 {
        let stderr = String::from_utf8_lossy(&finished.stderr).into_owned();
        let stderr = marshal_model::untrusted::escape_for_display(stderr.trim(), 300);
        return Err(bad(format!("{}: {stderr}", finished.status)));
    }
    file_list::FileList::parse(&finished.stdout, marshal_model::limits::COPY_FILES)
        .map(Some)
        .map_err(|error| bad(error.to_string()))
}
