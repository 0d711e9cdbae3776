//! One iteration over a directory.
//!
//! Owns the order of the steps, and that an error in one step does not stop the others: failed
//! steps are repeated in a later round. Must not know what wakes it.

use tokio::time::Instant;

use super::dir_watch::Watch;
use super::disk::{Area, Disk};
use super::ownership::{DirOwnership, HEARTBEAT};
use super::requests::QueueOutcome;
use super::results::small;
use super::schema::{RequestName, RunnerPhase, State, format_millis};
use super::{PlaneError, PlaneWorker, now_us};
use marshal_model::limits::FILE_PLANE_HEARTBEAT;
use marshal_telemetry::event::file_plane::FilePlaneState;

/// The number of failing requests after which the others wait for the next round.
const MAX_FAILURES: u32 = 16;

impl PlaneWorker {
    /// Runs all due steps; failed steps are repeated in the next round.
    pub(super) async fn round(&mut self, watch: &mut Option<Watch>) {
        let now = Instant::now();
        if self.error.is_some() && now < self.retry_at {
            return;
        }
        let done = self.run_steps(watch).await;
        let written = self.write_log().await;
        let fault = done.and(written).err().map(|error| error.to_string());
        if fault != self.error {
            FilePlaneState {
                pool: self.pool.as_str(),
                fault: fault.as_deref(),
            }
            .emit();
            self.error = fault;
            // The state file shows the error, if it can be written.
            if self.is_alone
                && let Err(error) = self.write_state().await
            {
                tracing::debug!(pool = %self.pool, %error, "the state of a file plane cannot be written");
            }
        }
        self.retry_at = now + self.config.poll.min(FILE_PLANE_HEARTBEAT);
    }

    async fn run_steps(&mut self, watch: &mut Option<Watch>) -> Result<(), PlaneError> {
        let now = Instant::now();
        let is_poll = now >= self.last_poll + self.config.poll || self.error.is_some();
        if is_poll {
            self.last_poll = now;
            self.has_new_files = true;
            self.settling.sweep(now);
            // An event may have been lost, and a task may have been resumed since.
            for open in self.open.values_mut() {
                open.is_dirty = true;
            }
        }
        if self.has_new_files {
            match self.with_disk(Disk::reopen_if_replaced).await? {
                Ok(false) => {}
                Ok(true) => {
                    *watch = self.watch().await;
                    // The directory was replaced: neither its files nor its ownership can be
                    // assumed.
                    self.is_state_dirty = true;
                    self.is_alone &= self.ensure_lock().await?;
                    self.approval_files.clear();
                    self.find_approval_files().await?;
                }
                Err(error) => {
                    // The directory is not trusted, but timeouts of running requests still apply.
                    self.send_cancels().await;
                    return Err(error.into());
                }
            }
        }
        // The first error is reported; the later steps run all the same.
        let mut done = Ok(());
        if now >= self.next_heartbeat || !self.is_alone {
            done = done.and(self.write_heartbeat(now).await);
            if !self.is_alone {
                self.send_cancels().await;
                return done;
            }
        }
        if !self.is_recovered {
            self.with_disk(|disk| disk.remove_temp_files()).await?;
            self.write_state().await?;
            self.recover_inflight().await?;
            self.find_approval_files().await?;
            (self.is_recovered, self.is_state_dirty) = (true, true);
        }
        let are_files_new = self.has_new_files || self.settling.next().is_some();
        self.has_new_files = false; // After trouble everything is looked at again.
        if are_files_new {
            done = done.and(self.read_orders().await);
        }
        let dirty = self
            .open
            .iter()
            .filter(|(_, open)| open.is_dirty && open.is_submitted);
        for name in dirty.map(|(name, _)| name.clone()).collect::<Vec<_>>() {
            done = done.and(self.write_progress(&name).await);
        }
        self.send_cancels().await;
        if self.has_new_approvals {
            self.has_new_approvals = false;
            let shown = self.write_approval_files().await;
            self.has_new_approvals = shown.is_err();
            done = done.and(shown);
        }
        if are_files_new {
            done = done.and(self.read_answers().await);
        }
        // Requests that ended made room for new ones.
        done = done.and(self.take_requests(are_files_new).await);
        done = done.and(self.submit_claimed().await);
        if self.tail.is_new {
            done = done.and(self.write_tail().await);
        }
        if self.is_state_dirty {
            done = done.and(self.write_state().await);
        }
        done
    }

    /// Whether the lock belongs to the directory that is now at the path; acquires it if not.
    async fn ensure_lock(&mut self) -> Result<bool, PlaneError> {
        let held = self.ownership.file_id();
        let lock = self
            .with_disk(move |disk| DirOwnership::lock_current(disk, held))
            .await??;
        let is_same = lock.is_none();
        if let Some(lock) = lock {
            self.ownership.replace_lock(lock);
        }
        Ok(is_same)
    }

    /// Writes the heartbeat, unless another supervisor uses the directory.
    async fn write_heartbeat(&mut self, now: Instant) -> Result<(), PlaneError> {
        let heartbeat = self
            .with_disk(|disk| small(disk, Area::State, HEARTBEAT))
            .await??;
        self.is_alone = self.ownership.is_alone(&heartbeat, now);
        if !self.is_alone {
            return Err(PlaneError::OwnedElsewhere);
        }
        self.next_heartbeat = now + FILE_PLANE_HEARTBEAT;
        let text = self.ownership.heartbeat_json(now_us());
        self.with_disk(move |disk| disk.put(Area::State, HEARTBEAT, text.as_bytes()))
            .await??;
        Ok(())
    }

    fn has_room(&self) -> bool {
        self.open.len() < self.config.max_open && self.stop.is_none() && !self.is_closing
    }

    /// Accepts requests in order as long as there is room.
    async fn take_requests(&mut self, are_new: bool) -> Result<(), PlaneError> {
        if are_new {
            let (names, is_more) = self
                .with_disk(|disk| disk.list(Area::Queue, RequestName::parse))
                .await??;
            if is_more {
                tracing::warn!(pool = %self.pool, "queue/ has more files than one pass lists");
            }
            let before = self.backlog.len();
            self.backlog = names.into_iter().collect();
            self.is_state_dirty |= before != self.backlog.len();
        }
        let mut left = Vec::new();
        let (mut done, mut troubles) = (Ok(()), 0);
        while self.has_room() && troubles < MAX_FAILURES {
            let Some(name) = self.backlog.pop_first() else {
                break;
            };
            self.is_state_dirty = true;
            let outcome = self.process_queued(&name).await;
            if !matches!(outcome, Ok(QueueOutcome::Handled)) {
                left.push(name);
            }
            if let Err(error) = outcome {
                troubles += 1;
                done = done.and(Err(error));
            }
        }
        self.backlog.extend(left);
        done
    }

    pub(super) async fn write_tail(&mut self) -> Result<(), PlaneError> {
        let text = self.tail.text();
        self.with_disk(move |disk| disk.put(Area::Log, "last_n_lines.txt", text.as_bytes()))
            .await??;
        self.tail.is_new = false;
        Ok(())
    }

    async fn write_state(&mut self) -> Result<(), PlaneError> {
        let begun = self
            .open
            .iter()
            .find(|(_, open)| open.begun_at_us.is_some());
        let phase = if self.error.is_some() {
            RunnerPhase::Error
        } else if !self.is_recovered {
            RunnerPhase::Starting
        } else if self.is_closing || self.stop.is_some() {
            RunnerPhase::Stopping
        } else if self.open.is_empty() {
            RunnerPhase::Idle
        } else {
            RunnerPhase::Busy
        };
        let state = State {
            phase,
            session_id: self.pool.to_string(),
            runner_pid: std::process::id(),
            current_cmd_id: begun.map(|(name, _)| name.id().to_owned()),
            open: self
                .open
                .keys()
                .map(|name| name.stem().to_owned())
                .collect(),
            waiting: self.backlog.len(),
            detail: self.error.clone(),
            updated_at: format_millis(now_us()),
        };
        let text = serde_json::to_string_pretty(&state).unwrap_or_default() + "\n";
        self.with_disk(move |disk| disk.put(Area::State, "state.json", text.as_bytes()))
            .await??;
        self.is_state_dirty = false;
        Ok(())
    }
}
