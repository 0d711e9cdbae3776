//! Clones in which the supervisor runs a program that is no agent: the check of a landing, a setup.
//!
//! Owns which sessions these are, so that no sweep removes what they use, and the locks by which such
//! work on one thing waits for each other. Must not know what the programs are for.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::prepare::{PrepareError, blocking};
use crate::session::lifecycle::work;
use crate::setup::Shared;
use marshal_model::SessionId;
use marshal_sandbox::workspace::layer::LayerKey;
use marshal_sandbox::workspace::{copy, sweep};

/// The ids under which such programs have a clone and a home, each with the layer that is for it alone.
#[derive(Debug, Default)]
pub(crate) struct ProgramClones(Mutex<BTreeMap<SessionId, Option<LayerKey>>>);

impl ProgramClones {
    /// Whether a program works under this id.
    pub(crate) fn contains(&self, id: &SessionId) -> bool {
        self.ids().contains_key(id)
    }

    /// The layer goes with the program's clone: nothing else asks for it.
    pub(crate) fn add_layer(&self, id: &SessionId, layer: LayerKey) {
        if let Some(own) = self.ids().get_mut(id) {
            *own = Some(layer);
        }
    }

    fn ids(&self) -> MutexGuard<'_, BTreeMap<SessionId, Option<LayerKey>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A session for one program. When this is dropped, its directories are left to the next sweep.
pub(crate) struct ProgramClone {
    shared: Arc<Shared>,
    session: SessionId,
}

impl ProgramClone {
    pub(crate) fn new(shared: &Arc<Shared>) -> Self {
        let session = shared.new_session_id();
        shared.program_clones.ids().insert(session.clone(), None);
        Self {
            shared: Arc::clone(shared),
            session,
        }
    }

    pub(crate) const fn session(&self) -> &SessionId {
        &self.session
    }

    /// Removes its clone, its home and its own layer. No process works there any more.
    pub(crate) async fn discard(self) -> Result<(), PrepareError> {
        let ambient = self.shared.ambient.clone();
        let removal = move || {
            work::discard_session(&self.shared, &self.session, false);
            if let Err(error) = copy::discard(&self.shared.state, &self.session) {
                tracing::warn!(%error, "the clone of a program could not be removed");
            }
            let own = self.shared.program_clones.ids().get(&self.session).cloned();
            if let Some(layer) = own.flatten() {
                for error in sweep::discard_layer(&self.shared.state, &layer) {
                    tracing::warn!(%error, "the layer of a program could not be removed");
                }
            }
        };
        blocking(&ambient, removal).await
    }
}

impl Drop for ProgramClone {
    fn drop(&mut self) {
        self.shared.program_clones.ids().remove(&self.session);
    }
}

/// A lock for each thing that is worked on, for as long as anybody has it or waits for it.
#[derive(Debug)]
pub(crate) struct KeyedLocks<K>(Mutex<HashMap<K, Weak<tokio::sync::Mutex<()>>>>);

impl<K> Default for KeyedLocks<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Eq + Hash> KeyedLocks<K> {
    pub(crate) fn lock_of(&self, key: K) -> Arc<tokio::sync::Mutex<()>> {
        let mut locks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        locks.retain(|_, lock| lock.strong_count() > 0);
        if let Some(lock) = locks.get(&key).and_then(Weak::upgrade) {
            return lock;
        }
        let lock = Arc::default();
        locks.insert(key, Arc::downgrade(&lock));
        lock
    }
}
