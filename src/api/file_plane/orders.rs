//! Orders: `ctl/stop.json`, which holds as long as it is there, and `ctl/cancel.json`, which is
//! taken by a rename, and removed when it was carried out.

use tokio::time::Instant;

use super::disk::{Area, Found};
use super::requests::Looked;
use super::results::small;
use super::words::{self, Cancel, Fault, RequestName, StopMode};
use super::{Plane, Trouble};
use crate::model::foreign::show;

const STOP: &str = "stop.json";
const CANCEL: &str = "cancel.json";
const SEVERAL: &str = "it has several names (hard links)";

/// What `cancel.json` is called while it is carried out: another one can be put in its place.
const TAKEN: &str = ".cancel.json";

impl Plane {
    /// Reads the orders, and has them carried out.
    pub(super) async fn read_orders(&mut self) -> Result<(), Trouble> {
        let stopped = self.read_stop().await;
        stopped.and(self.read_cancel().await)
    }

    async fn read_stop(&mut self) -> Result<(), Trouble> {
        let before = self.stop;
        self.stop = match self.order(STOP, words::stop).await? {
            Read::Nothing => None,
            Read::Unsettled => before,
            Read::Order(mode) => Some(mode),
        };
        if self.stop != before {
            self.is_state_new = true;
            let word = match self.stop {
                None => "none",
                Some(StopMode::Graceful) => "graceful",
                Some(StopMode::Force) => "force",
            };
            self.note("stop", &[("mode", word)]);
        }
        let mut done = Ok(());
        if self.stop == Some(StopMode::Force) {
            for name in self.open.keys().cloned().collect::<Vec<_>>() {
                done = done.and(self.end_early(&name).await);
            }
        }
        done
    }

    /// Takes a cancel as its own, and removes it when a kill would not forget it any more.
    async fn read_cancel(&mut self) -> Result<(), Trouble> {
        let is_taken = self.disk(|disk| disk.has(Area::Ctl, TAKEN)).await?;
        if !is_taken {
            if !self.is_ripe(CANCEL, words::cancel).await? {
                return Ok(());
            }
            self.settling.forget(Area::Ctl, CANCEL);
            self.disk(|disk| disk.move_to(Area::Ctl, CANCEL, Area::Ctl, TAKEN))
                .await??;
        }
        // What it says now is what counts.
        let found = self.disk(|disk| small(disk, Area::Ctl, TAKEN)).await??;
        let why = match found {
            Found::Nothing => return Ok(()),
            Found::Odd(why) => why.to_owned(),
            Found::File(_, print) if !print.has_one_name() => SEVERAL.to_owned(),
            Found::File(bytes, _) => match words::cancel(&bytes) {
                Ok(cancel) => {
                    if self.cancel(&cancel).await? {
                        self.disk(|disk| disk.remove(Area::Ctl, TAKEN)).await??;
                    }
                    return Ok(());
                }
                Err(fault) => fault.why().to_owned(),
            },
        };
        self.refuse_order(TAKEN, CANCEL, &why).await
    }

    /// Has what is meant ended; `false`: it may still be written, so the order stays.
    async fn cancel(&mut self, cancel: &Cancel) -> Result<bool, Trouble> {
        let is_meant = |name: &RequestName| match cancel {
            Cancel::Current => true,
            Cancel::Command(id) => name.is_called(id),
        };
        if matches!(cancel, Cancel::Command(_)) {
            let found = self.disk(|disk| disk.list(Area::Queue, RequestName::parse));
            let (waiting, _) = found.await??;
            for name in waiting.into_iter().filter(is_meant) {
                if self.look(&name).await? == Looked::Unsettled {
                    return Ok(false);
                }
            }
        }
        let open = self.open.keys().filter(|name| is_meant(name));
        let names: Vec<RequestName> = open.cloned().collect();
        for name in &names {
            self.end_early(name).await?;
            self.tell(name, "cancel", None);
        }
        if names.is_empty() {
            self.note("cancel", &[("why", "there is nothing to cancel")]);
        }
        Ok(true)
    }

    /// Whether something stands at an order's name that will not become another one.
    async fn is_ripe<T>(
        &mut self,
        name: &'static str,
        read: impl Fn(&[u8]) -> Result<T, Fault>,
    ) -> Result<bool, Trouble> {
        let found = self.disk(move |disk| small(disk, Area::Ctl, name));
        Ok(match found.await?? {
            Found::Nothing => {
                self.settling.forget(Area::Ctl, name);
                false
            }
            Found::Odd(_) => true,
            Found::File(bytes, print) => match read(&bytes) {
                Ok(_) if print.has_one_name() => true,
                Err(Fault::Refused(_)) => true,
                _ => {
                    let now = Instant::now();
                    self.settling.is_settled(Area::Ctl, name, &print, now)
                }
            },
        })
    }

    /// Reads an order; what is none is put aside.
    async fn order<T>(
        &mut self,
        name: &'static str,
        read: impl Fn(&[u8]) -> Result<T, Fault>,
    ) -> Result<Read<T>, Trouble> {
        let found = self
            .disk(move |disk| small(disk, Area::Ctl, name))
            .await??;
        let why = match found {
            Found::Nothing => {
                self.settling.forget(Area::Ctl, name);
                return Ok(Read::Nothing);
            }
            Found::Odd(why) => why.to_owned(),
            Found::File(bytes, print) => match read(&bytes) {
                Ok(order) if print.has_one_name() => return Ok(Read::Order(order)),
                Err(Fault::Refused(why)) => why,
                other => {
                    let now = Instant::now();
                    if !self.settling.is_settled(Area::Ctl, name, &print, now) {
                        return Ok(Read::Unsettled);
                    }
                    match other {
                        Ok(_) => SEVERAL.to_owned(),
                        Err(fault) => fault.why().to_owned(),
                    }
                }
            },
        };
        self.refuse_order(name, name, &why).await?;
        Ok(Read::Nothing)
    }

    async fn refuse_order(
        &mut self,
        at: &'static str,
        name: &'static str,
        why: &str,
    ) -> Result<(), Trouble> {
        let told = why.to_owned();
        self.disk(move |disk| disk.reject_as(Area::Ctl, at, name, &told))
            .await??;
        self.settling.forget(Area::Ctl, name);
        let why = show(why, 300);
        tracing::warn!(pool = %self.pool, name, why, "an order in a file was not taken");
        self.note("order_refused", &[("file", name), ("why", &why)]);
        Ok(())
    }
}

/// What stands at an order's name.
enum Read<T> {
    /// Nothing, or nothing any more.
    Nothing,
    /// What may still be written.
    Unsettled,
    /// An order.
    Order(T),
}
