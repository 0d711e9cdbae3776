//! The requests of one channel: which are open, and which ids were used.
//!
//! An answer carries nothing but a request's id, so an id that comes twice makes it unclear what
//! an answer is for. Must not know what a request asks.

use std::collections::{HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::limits;
use crate::model::AskKey;

/// Why a request is denied without being asked about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Clash {
    /// Its id was used before, by a request that may still be open.
    Duplicate,
    /// [`limits::OPEN_ASKS`] are open.
    TooMany,
    /// Its id is longer than [`limits::FOREIGN_ID_BYTES`].
    LongId,
}

/// The ids that the requests of one channel have had, whatever they were for.
#[derive(Debug, Default)]
pub(super) struct Ids {
    /// Hashes of the ids used so far, oldest first. A collision denies one request, no more.
    used: VecDeque<u64>,
    known: HashSet<u64>,
    /// How many requests there were.
    last: u64,
}

impl Ids {
    fn knows(&self, id: &str) -> bool {
        self.known.contains(&hash(id))
    }

    /// Notes that this id was used.
    fn used(&mut self, id: &str) {
        let hash = hash(id);
        if !self.known.insert(hash) {
            return;
        }
        self.used.push_back(hash);
        if self.used.len() > limits::REMEMBERED_ASKS
            && let Some(oldest) = self.used.pop_front()
        {
            self.known.remove(&oldest);
        }
    }
}

fn hash(id: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    id.hash(&mut hasher);
    hasher.finish()
}

/// Open requests by id; `T` is what an answer to one needs.
#[derive(Debug)]
pub(super) struct Asks<T> {
    open: Vec<(AskKey, T)>,
}

impl<T> Default for Asks<T> {
    fn default() -> Self {
        Self { open: Vec::new() }
    }
}

impl<T> Asks<T> {
    /// Takes a new request in.
    pub(super) fn open(&mut self, ids: &mut Ids, id: &str, needs: T) -> Result<AskKey, Clash> {
        if id.len() > limits::FOREIGN_ID_BYTES {
            return Err(Clash::LongId);
        }
        if ids.knows(id) || self.open.iter().any(|(key, _)| key.id == id) {
            return Err(Clash::Duplicate);
        }
        if self.open.len() >= limits::OPEN_ASKS {
            return Err(Clash::TooMany);
        }
        ids.used(id);
        ids.last += 1;
        let key = AskKey {
            id: id.to_owned(),
            serial: ids.last,
        };
        self.open.push((key.clone(), needs));
        Ok(key)
    }

    /// Ends a request, if it is open: exactly this one, not another that has its id by now.
    pub(super) fn answered(&mut self, of: &AskKey) -> Option<T> {
        let at = self.open.iter().position(|(key, _)| key == of)?;
        Some(self.open.remove(at).1)
    }

    /// Ends the request that has this id, if one is open.
    pub(super) fn close(&mut self, id: &str) -> Option<(AskKey, T)> {
        let at = self.open.iter().position(|(key, _)| key.id == id)?;
        Some(self.open.remove(at))
    }

    /// Ends the request whose id another one comes with, which is a duplicate whatever is
    /// remembered of ids.
    pub(super) fn clash(&mut self, ids: &mut Ids, id: &str) -> Option<(AskKey, T)> {
        let closed = self.close(id)?;
        ids.used(id);
        Some(closed)
    }

    /// Ends all of them, oldest first.
    pub(super) fn close_all(&mut self) -> Vec<(AskKey, T)> {
        std::mem::take(&mut self.open)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_used_once() {
        let (mut asks, mut ids) = (Asks::default(), Ids::default());
        let key = asks.open(&mut ids, "a", ()).unwrap();
        assert_eq!((key.id.as_str(), key.serial), ("a", 1));
        assert_eq!(asks.open(&mut ids, "a", ()), Err(Clash::Duplicate));
        assert_eq!(asks.close("a"), Some((key, ())));
        assert_eq!(asks.close("a"), None);
        assert_eq!(asks.open(&mut ids, "a", ()), Err(Clash::Duplicate));
        // Whatever it was used for.
        let mut others: Asks<()> = Asks::default();
        assert_eq!(others.open(&mut ids, "a", ()), Err(Clash::Duplicate));
    }

    #[test]
    fn an_id_that_was_forgotten_is_another_request_and_never_while_the_first_is_open() {
        let (mut asks, mut ids) = (Asks::default(), Ids::default());
        let mut others = Asks::default();
        let first = asks.open(&mut ids, "a", ()).unwrap();
        for n in 0..limits::REMEMBERED_ASKS {
            let of = others.open(&mut ids, &format!("{n}"), ()).unwrap();
            others.answered(&of).unwrap();
        }
        // Forgotten, but open: it closes the first one and is none itself.
        assert_eq!(asks.clash(&mut ids, "a"), Some((first.clone(), ())));
        assert_eq!(asks.open(&mut ids, "a", ()), Err(Clash::Duplicate));
        for n in 0..limits::REMEMBERED_ASKS {
            let of = others.open(&mut ids, &format!("more {n}"), ()).unwrap();
            others.answered(&of).unwrap();
        }
        let second = asks.open(&mut ids, "a", ()).unwrap();
        assert_ne!(first, second);
        assert_eq!(asks.answered(&first), None);
        assert_eq!(asks.answered(&second), Some(()));
    }

    #[test]
    fn neither_set_grows_without_end() {
        let (mut asks, mut ids) = (Asks::default(), Ids::default());
        for n in 0..limits::OPEN_ASKS {
            assert!(asks.open(&mut ids, &n.to_string(), ()).is_ok());
        }
        assert_eq!(asks.open(&mut ids, "one more", ()), Err(Clash::TooMany));
        assert_eq!(asks.close_all().len(), limits::OPEN_ASKS);
        for n in 0..3 * limits::REMEMBERED_ASKS {
            assert!(asks.open(&mut ids, &format!("later {n}"), ()).is_ok());
            asks.close_all();
        }
        assert_eq!(ids.used.len(), limits::REMEMBERED_ASKS);
        assert_eq!(ids.known.len(), limits::REMEMBERED_ASKS);
        let long = "x".repeat(limits::FOREIGN_ID_BYTES + 1);
        assert_eq!(asks.open(&mut ids, &long, ()), Err(Clash::LongId));
    }
}
