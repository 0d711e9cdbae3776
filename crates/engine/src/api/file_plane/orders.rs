//! Orders: `ctl/stop.json`, which applies as long as it exists, and `ctl/cancel.json`, which is
//! claimed by a rename and removed after it was carried out.

use tokio::time::Instant;

use super::disk::{Area, PlaneEntry};
use super::requests::QueueOutcome;
use super::results::small;
use super::schema::{self, CancelScope, RequestName, SchemaError, StopMode};
use super::{PlaneError, PlaneWorker};
use marshal_model::untrusted::escape_for_display;

const STOP: &str = "stop.json";
const CANCEL: &str = "cancel.json";
const HARD_LINKED: &str = "it has several names (hard links)";

/// The name of `cancel.json` while it is carried out, so that another one can be created.
const CLAIMED_CANCEL: &str = ".cancel.json";

impl PlaneWorker {
    /// Reads the orders and carries them out.
    pub(super) async fn read_orders(&mut self) -> Result<(), PlaneError> {
        let stopped = self.read_stop().await;
        stopped.and(self.read_cancel().await)
    }

    async fn read_stop(&mut self) -> Result<(), PlaneError> {
        let before = self.stop;
        self.stop = match self.read_order(STOP, schema::parse_stop).await? {
            OrderRead::Nothing => None,
            OrderRead::Unsettled => before,
            OrderRead::Order(mode) => Some(mode),
        };
        if self.stop != before {
            self.is_state_dirty = true;
            let word = match self.stop {
                None => "none",
                Some(StopMode::Graceful) => "graceful",
                Some(StopMode::Force) => "force",
            };
            self.log_event("stop", &[("mode", word)]);
        }
        let mut done = Ok(());
        if self.stop == Some(StopMode::Force) {
            for name in self.open.keys().cloned().collect::<Vec<_>>() {
                done = done.and(self.request_cancel(&name).await);
            }
        }
        done
    }

    /// Claims a cancel order. Removes it only when the cancellation is durable, so that a kill does
    /// not lose it.
    async fn read_cancel(&mut self) -> Result<(), PlaneError> {
        let is_taken = self
            .with_disk(|disk| disk.has(Area::Ctl, CLAIMED_CANCEL))
            .await?;
        if !is_taken {
            if !self.is_order_settled(CANCEL, schema::parse_cancel).await? {
                return Ok(());
            }
            self.settling.forget(Area::Ctl, CANCEL);
            self.with_disk(|disk| disk.rename_entry(Area::Ctl, CANCEL, Area::Ctl, CLAIMED_CANCEL))
                .await??;
        }
        // Read it again after the claim: its content may have changed.
        let found = self
            .with_disk(|disk| small(disk, Area::Ctl, CLAIMED_CANCEL))
            .await??;
        let why = match found {
            PlaneEntry::Missing => return Ok(()),
            PlaneEntry::Irregular(why) => why.to_owned(),
            PlaneEntry::Regular((_, print)) if !print.has_one_name() => HARD_LINKED.to_owned(),
            PlaneEntry::Regular((bytes, _)) => match schema::parse_cancel(&bytes) {
                Ok(cancel) => {
                    if self.cancel(&cancel).await? {
                        self.with_disk(|disk| disk.remove(Area::Ctl, CLAIMED_CANCEL))
                            .await??;
                    }
                    return Ok(());
                }
                Err(fault) => fault.why().to_owned(),
            },
        };
        self.reject_order(CLAIMED_CANCEL, CANCEL, &why).await
    }

    /// Cancels the named requests; `false` if the order may still be incomplete and stays.
    async fn cancel(&mut self, cancel: &CancelScope) -> Result<bool, PlaneError> {
        let is_meant = |name: &RequestName| match cancel {
            CancelScope::Current => true,
            CancelScope::Command(id) => name.matches_name(id),
        };
        if matches!(cancel, CancelScope::Command(_)) {
            let found = self.with_disk(|disk| disk.list(Area::Queue, RequestName::parse));
            let (waiting, _) = found.await??;
            for name in waiting.into_iter().filter(is_meant) {
                if self.process_queued(&name).await? == QueueOutcome::Unsettled {
                    return Ok(false);
                }
            }
        }
        let open = self.open.keys().filter(|name| is_meant(name));
        let names: Vec<RequestName> = open.cloned().collect();
        for name in &names {
            self.request_cancel(name).await?;
            self.log_request(name, "cancel", None);
        }
        if names.is_empty() {
            self.log_event("cancel", &[("why", "there is nothing to cancel")]);
        }
        Ok(true)
    }

    /// Whether the file at an order's name is complete.
    async fn is_order_settled<T>(
        &mut self,
        name: &'static str,
        read: impl Fn(&[u8]) -> Result<T, SchemaError>,
    ) -> Result<bool, PlaneError> {
        let found = self.with_disk(move |disk| small(disk, Area::Ctl, name));
        Ok(match found.await?? {
            PlaneEntry::Missing => {
                self.settling.forget(Area::Ctl, name);
                false
            }
            PlaneEntry::Irregular(_) => true,
            PlaneEntry::Regular((bytes, print)) => match read(&bytes) {
                Ok(_) if print.has_one_name() => true,
                Err(SchemaError::Refused(_)) => true,
                _ => {
                    let now = Instant::now();
                    self.settling.is_settled(Area::Ctl, name, &print, now)
                }
            },
        })
    }

    /// Reads an order; quarantines a file that is not a valid order.
    async fn read_order<T>(
        &mut self,
        name: &'static str,
        read: impl Fn(&[u8]) -> Result<T, SchemaError>,
    ) -> Result<OrderRead<T>, PlaneError> {
        let found = self
            .with_disk(move |disk| small(disk, Area::Ctl, name))
            .await??;
        let why = match found {
            PlaneEntry::Missing => {
                self.settling.forget(Area::Ctl, name);
                return Ok(OrderRead::Nothing);
            }
            PlaneEntry::Irregular(why) => why.to_owned(),
            PlaneEntry::Regular((bytes, print)) => match read(&bytes) {
                Ok(order) if print.has_one_name() => return Ok(OrderRead::Order(order)),
                Err(SchemaError::Refused(why)) => why,
                other => {
                    let now = Instant::now();
                    if !self.settling.is_settled(Area::Ctl, name, &print, now) {
                        return Ok(OrderRead::Unsettled);
                    }
                    match other {
                        Ok(_) => HARD_LINKED.to_owned(),
                        Err(fault) => fault.why().to_owned(),
                    }
                }
            },
        };
        self.reject_order(name, name, &why).await?;
        Ok(OrderRead::Nothing)
    }

    async fn reject_order(
        &mut self,
        at: &'static str,
        name: &'static str,
        why: &str,
    ) -> Result<(), PlaneError> {
        let reason = why.to_owned();
        self.with_disk(move |disk| disk.quarantine_as(Area::Ctl, at, name, &reason))
            .await??;
        self.settling.forget(Area::Ctl, name);
        let why = escape_for_display(why, 300);
        tracing::warn!(pool = %self.pool, name, why, "an order file was refused");
        self.log_event("order_refused", &[("file", name), ("why", &why)]);
        Ok(())
    }
}

/// The result of reading an order's file.
enum OrderRead<T> {
    /// There is no order, or it was removed.
    Nothing,
    /// The file may still be incomplete.
    Unsettled,
    /// A valid order.
    Order(T),
}
