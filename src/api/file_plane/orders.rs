//! Orders: `ctl/stop.json`, which holds as long as it is there, and `ctl/cancel.json`, which is
//! removed when it was carried out.

use tokio::time::Instant;

use super::disk::{Area, Found};
use super::requests::Looked;
use super::results::small;
use super::words::{self, Cancel, Fault, RequestName, StopMode};
use super::{Plane, Trouble};
use crate::model::foreign::show;

const STOP: &str = "stop.json";
const CANCEL: &str = "cancel.json";

impl Plane {
    /// Reads the orders, and has them carried out.
    pub(super) async fn read_orders(&mut self) -> Result<(), Trouble> {
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
        if self.stop == Some(StopMode::Force) {
            for open in self.open.values_mut() {
                open.is_unwanted = true;
            }
        }
        let Read::Order(cancel) = self.order(CANCEL, words::cancel).await? else {
            return Ok(());
        };
        if self.cancel(&cancel).await? {
            self.disk(|disk| disk.remove(Area::Ctl, CANCEL)).await??;
        }
        Ok(())
    }

    /// Has what is meant ended; `false`: it may still be written, so the order stays.
    async fn cancel(&mut self, cancel: &Cancel) -> Result<bool, Trouble> {
        let is_meant = |name: &RequestName| match cancel {
            Cancel::Current => true,
            Cancel::Command(id) => name.is_called(id),
        };
        let open = self.open.keys().filter(|name| is_meant(name));
        let mut names: Vec<RequestName> = open.cloned().collect();
        if matches!(cancel, Cancel::Command(_)) {
            let found = self.disk(|disk| disk.list(Area::Queue, RequestName::parse));
            let (waiting, _) = found.await?;
            for name in waiting.into_iter().filter(is_meant) {
                if self.look(&name).await? == Looked::Unsettled {
                    return Ok(false);
                }
                names.push(name);
            }
        }
        for name in &names {
            if let Some(open) = self.open.get_mut(name) {
                open.is_unwanted = true;
            }
            self.tell(name, "cancel", None);
        }
        if names.is_empty() {
            self.note("cancel", &[("why", "there is nothing to cancel")]);
        }
        Ok(true)
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
                        Ok(_) => "it has several names (hard links)".to_owned(),
                        Err(fault) => fault.why().to_owned(),
                    }
                }
            },
        };
        let told = why.clone();
        self.disk(move |disk| disk.reject(Area::Ctl, name, &told))
            .await??;
        self.settling.forget(Area::Ctl, name);
        let why = show(&why, 300);
        tracing::warn!(pool = %self.pool, name, why, "an order in a file was not taken");
        self.note("order_refused", &[("file", name), ("why", &why)]);
        Ok(Read::Nothing)
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
