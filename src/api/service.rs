//! What the doors need of a fleet, as a trait, so that they can be tested with a small one.
//!
//! Must not know actors, processes or the journal.

use std::future::Future;
use std::sync::Arc;

use tokio::sync::{broadcast, mpsc};

use crate::fleet::{LogTail, Notice, Readiness, SlotView, Stop, TaskReport};
use crate::model::{RunId, SlotId, TaskSpec};

/// Why tasks were not taken in. Nothing of them was kept then.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The tasks are at fault: a pool that does not exist, an id that was used before. Whoever
    /// gave them must change them.
    #[error("{0}")]
    Tasks(String),
    /// The fleet cannot take tasks in now: its journal is read-only, its queue full, or it stops.
    #[error("{0}")]
    Fleet(String),
}

/// No slot of that name exists.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no slot {slot}; {}", slots_there(.there))]
pub struct NoSuchSlot {
    /// What was asked for.
    pub slot: SlotId,
    /// The slots that exist.
    pub there: Vec<SlotId>,
}

/// Names the first slots of a list, for a message.
fn slots_there(slots: &[SlotId]) -> String {
    /// More would hide the message.
    const NAMED: usize = 8;
    if slots.is_empty() {
        return "this fleet has none".to_owned();
    }
    let mut names: Vec<String> = slots.iter().take(NAMED).map(ToString::to_string).collect();
    if slots.len() > NAMED {
        names.push(format!("and {} more", slots.len() - NAMED));
    }
    format!("the slots are {}", names.join(", "))
}

/// A fleet, as its doors see it.
pub trait Fleet: Clone + Send + Sync + 'static {
    /// Takes tasks in; returns when they are durable.
    ///
    /// # Errors
    /// [`Refusal`]; none of the tasks was taken in then.
    fn submit(
        &self,
        run: RunId,
        tasks: Vec<TaskSpec>,
    ) -> impl Future<Output = Result<(), Refusal>> + Send;

    /// The reports of a run that was submitted, each once and none lost; the channel has room for
    /// all of them and closes after the last. `None` if the run is not known or its reports were
    /// taken already.
    fn reports(&self, run: &RunId) -> Option<mpsc::Receiver<Arc<TaskReport>>>;

    /// Everything as it happens; a slow receiver lags.
    fn watch(&self) -> broadcast::Receiver<Notice>;

    /// Every slot, as it is now.
    fn slots(&self) -> Vec<SlotView>;

    /// Stops a slot's child; its next work starts a new one.
    ///
    /// # Errors
    /// [`NoSuchSlot`].
    fn restart(&self, slot: SlotId) -> impl Future<Output = Result<(), NoSuchSlot>> + Send;

    /// The stderr of a slot's child; `None` if there is no such slot.
    fn logs(&self, slot: &SlotId) -> Option<LogTail>;

    /// Whether the fleet can take work.
    fn readiness(&self) -> Readiness;

    /// Begins no further task of this run and cancels its running turns; each of its tasks still
    /// gets its end.
    fn cancel(&self, run: &RunId);

    /// The same for every run.
    fn cancel_all(&self);

    /// Stops every child and ends the fleet. A second call with [`Stop::Now`] overtakes a first
    /// graceful one.
    fn stop(&self, how: Stop) -> impl Future<Output = ()> + Send;

    /// The error for a slot that does not exist.
    fn no_such_slot(&self, slot: &SlotId) -> NoSuchSlot {
        NoSuchSlot {
            slot: slot.clone(),
            there: self.slots().into_iter().map(|view| view.slot).collect(),
        }
    }
}
