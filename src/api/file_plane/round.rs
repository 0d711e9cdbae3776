//! One turn over a directory.
//!
//! Owns in which order things are done, and that trouble with one of them keeps none of the others:
//! what was told is told again later, and nothing changes but the time. Must not know what wakes it.

use tokio::time::Instant;

use super::disk::{Area, Disk};
use super::holding::{HEARTBEAT, Holding};
use super::notice::Watch;
use super::requests::Looked;
use super::results::small;
use super::words::{Phase, RequestName, State, stamp};
use super::{Plane, Trouble, now_us};
use crate::limits::FILE_PLANE_BEAT;
use crate::telemetry::event::file_plane::FilePlaneState;

/// Requests that make trouble before the others wait for the next turn.
const TROUBLES: u32 = 16;

impl Plane {
    /// Does everything that is to be done; what fails is done again.
    pub(super) async fn round(&mut self, watch: &mut Option<Watch>) {
        let now = Instant::now();
        if self.fault.is_some() && now < self.again {
            return;
        }
        let done = self.work(watch).await;
        let written = self.write_notes().await;
        let fault = done.and(written).err().map(|error| error.to_string());
        if fault != self.fault {
            FilePlaneState {
                pool: self.pool.as_str(),
                fault: fault.as_deref(),
            }
            .emit();
            self.fault = fault;
            // As far as that can be written.
            if self.is_alone
                && let Err(error) = self.write_state().await
            {
                tracing::debug!(pool = %self.pool, %error, "the state of a file plane is not written");
            }
        }
        self.again = now + self.keys.poll.min(FILE_PLANE_BEAT);
    }

    async fn work(&mut self, watch: &mut Option<Watch>) -> Result<(), Trouble> {
        let now = Instant::now();
        let is_poll = now >= self.looked + self.keys.poll || self.fault.is_some();
        if is_poll {
            self.looked = now;
            self.are_files_new = true;
            self.settling.sweep(now);
            // A notice may have been lost, and a task may have been taken up since.
            for open in self.open.values_mut() {
                open.is_dirty = true;
            }
        }
        if self.are_files_new {
            match self.disk(Disk::tend).await? {
                Ok(false) => {}
                Ok(true) => {
                    *watch = self.watch().await;
                    // What stood in the other one need not stand here, nor who worked it.
                    self.is_state_new = true;
                    self.is_alone &= self.is_held().await?;
                    self.shown.clear();
                    self.find_asks().await?;
                }
                Err(error) => {
                    // Nothing in it is believed, and still nothing is worked for longer than it may be.
                    self.cancel_unwanted().await;
                    return Err(error.into());
                }
            }
        }
        // The first trouble is told; what follows it is done all the same.
        let mut done = Ok(());
        if now >= self.beat || !self.is_alone {
            done = done.and(self.beat(now).await);
            if !self.is_alone {
                self.cancel_unwanted().await;
                return done;
            }
        }
        if !self.is_begun {
            self.disk(|disk| disk.clear()).await?;
            self.write_state().await?;
            self.take_up().await?;
            self.find_asks().await?;
            (self.is_begun, self.is_state_new) = (true, true);
        }
        let are_files_new = self.are_files_new || self.settling.next().is_some();
        self.are_files_new = false; // After trouble everything is looked at again.
        if are_files_new {
            done = done.and(self.read_orders().await);
        }
        let dirty = self
            .open
            .iter()
            .filter(|(_, open)| open.is_dirty && open.is_task);
        for name in dirty.map(|(name, _)| name.clone()).collect::<Vec<_>>() {
            done = done.and(self.follow(&name).await);
        }
        self.cancel_unwanted().await;
        if self.are_asks_new {
            self.are_asks_new = false;
            let shown = self.show_asks().await;
            self.are_asks_new = shown.is_err();
            done = done.and(shown);
        }
        if are_files_new {
            done = done.and(self.hear_answers().await);
        }
        // Those that ended made room.
        done = done.and(self.take(are_files_new).await);
        done = done.and(self.submit().await);
        if self.tail.is_new {
            done = done.and(self.write_tail().await);
        }
        if self.is_state_new {
            done = done.and(self.write_state().await);
        }
        done
    }

    /// Whether the lock is that of the directory that stands there now; it is taken if it is not.
    async fn is_held(&mut self) -> Result<bool, Trouble> {
        let held = self.holding.print();
        let lock = self
            .disk(move |disk| Holding::lock_of(disk, held))
            .await??;
        let is_same = lock.is_none();
        if let Some(lock) = lock {
            self.holding.hold(lock);
        }
        Ok(is_same)
    }

    /// Says that this supervisor lives, if no other one works the directory.
    async fn beat(&mut self, now: Instant) -> Result<(), Trouble> {
        let seen = self.disk(|disk| small(disk, Area::State, HEARTBEAT));
        let seen = seen.await??;
        self.is_alone = self.holding.is_alone(&seen, now);
        if !self.is_alone {
            return Err(Trouble::Elsewhere);
        }
        self.beat = now + FILE_PLANE_BEAT;
        let text = self.holding.beat(now_us());
        self.disk(move |disk| disk.put(Area::State, HEARTBEAT, text.as_bytes()))
            .await??;
        Ok(())
    }

    fn has_room(&self) -> bool {
        self.open.len() < self.keys.max_open && self.stop.is_none() && !self.is_closing
    }

    /// Takes requests in their order as long as there is room.
    async fn take(&mut self, are_new: bool) -> Result<(), Trouble> {
        if are_new {
            let (names, is_more) = self
                .disk(|disk| disk.list(Area::Queue, RequestName::parse))
                .await??;
            if is_more {
                tracing::warn!(pool = %self.pool, "queue/ holds more files than are looked at together");
            }
            let before = self.backlog.len();
            self.backlog = names.into_iter().collect();
            self.is_state_new |= before != self.backlog.len();
        }
        let mut left = Vec::new();
        let (mut done, mut troubles) = (Ok(()), 0);
        while self.has_room() && troubles < TROUBLES {
            let Some(name) = self.backlog.pop_first() else {
                break;
            };
            self.is_state_new = true;
            let looked = self.look(&name).await;
            if !matches!(looked, Ok(Looked::Dealt)) {
                left.push(name);
            }
            if let Err(error) = looked {
                troubles += 1;
                done = done.and(Err(error));
            }
        }
        self.backlog.extend(left);
        done
    }

    pub(super) async fn write_tail(&mut self) -> Result<(), Trouble> {
        let text = self.tail.text();
        self.disk(move |disk| disk.put(Area::Log, "last_n_lines.txt", text.as_bytes()))
            .await??;
        self.tail.is_new = false;
        Ok(())
    }

    async fn write_state(&mut self) -> Result<(), Trouble> {
        let begun = self
            .open
            .iter()
            .find(|(_, open)| open.begun_at_us.is_some());
        let phase = if self.fault.is_some() {
            Phase::Error
        } else if !self.is_begun {
            Phase::Starting
        } else if self.is_closing || self.stop.is_some() {
            Phase::Stopping
        } else if self.open.is_empty() {
            Phase::Idle
        } else {
            Phase::Busy
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
            detail: self.fault.clone(),
            updated_at: stamp(now_us()),
        };
        let text = serde_json::to_string_pretty(&state).unwrap_or_default() + "\n";
        self.disk(move |disk| disk.put(Area::State, "state.json", text.as_bytes()))
            .await??;
        self.is_state_new = false;
        Ok(())
    }
}
