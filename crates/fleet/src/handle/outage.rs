//! What keeps requests from being answered: the journal, or the store of file versions.
//!
//! Must not know what a request does about it.

use tokio::sync::watch;

use crate::FleetHandle;
use marshal_journal::Health;

/// Why requests may not be answered now; each `None` while they are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outages {
    /// The journal, which most requests need.
    pub journal: Option<String>,
    /// The store, which only requests for files need.
    pub store: Option<String>,
}

impl FleetHandle {
    /// Why the journal or the store does nothing, now and at every change.
    #[must_use]
    pub fn outages(&self) -> watch::Receiver<Outages> {
        let mut journal = self.0.shared.journal.health();
        let mut store = self
            .0
            .shared
            .files
            .store()
            .ok()
            .map(marshal_store::Store::outage);
        let (sender, outages) = watch::channel(describe(&mut journal, store.as_mut()));
        tokio::spawn(async move {
            loop {
                let store_changed = async {
                    match &mut store {
                        Some(store) => store.changed().await,
                        None => std::future::pending().await,
                    }
                };
                let changed = tokio::select! {
                    changed = journal.changed() => changed,
                    changed = store_changed => changed,
                    () = sender.closed() => return,
                };
                if changed.is_err() {
                    return;
                }
                sender.send_replace(describe(&mut journal, store.as_mut()));
            }
        });
        outages
    }

    /// Asks a store that does not answer until it does again; never returns.
    pub async fn end_store_outages(&self) {
        match self.0.shared.files.store() {
            Ok(store) => store.end_outages().await,
            Err(_) => std::future::pending().await,
        }
    }

    /// Why the fleet cannot store anything: of the journal, and of the store.
    pub(crate) fn storage_faults(&self) -> Vec<String> {
        let health = self.0.shared.journal.health().borrow().clone();
        let journal = health.reason();
        let journal = journal.map(|why| format!("the journal is not writable: {why}"));
        let store = self.0.shared.files.store().ok();
        let store = store.and_then(|store| store.outage().borrow().clone());
        let store = store.map(|why| format!("the store of file versions does not answer: {why}"));
        journal.into_iter().chain(store).collect()
    }
}

fn describe(
    journal: &mut watch::Receiver<Health>,
    store: Option<&mut watch::Receiver<Option<String>>>,
) -> Outages {
    let health = journal.borrow_and_update().clone();
    let why = store.and_then(|store| store.borrow_and_update().clone());
    Outages {
        journal: (!health.is_ok()).then(|| format!("the journal is {health}")),
        store: why.map(|why| format!("the store of file versions does not answer: {why}")),
    }
}
