//! The permission requests of one channel: which are open, and which ids were ever used.
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

/// Requests by id, both sets bounded; `T` is what an answer to one needs.
#[derive(Debug)]
pub(super) struct Asks<T> {
    open: Vec<(AskKey, T)>,
    /// Hashes of the ids used so far, oldest first. A collision denies one request, no more.
    used: VecDeque<u64>,
    known: HashSet<u64>,
}

impl<T> Default for Asks<T> {
    fn default() -> Self {
        Self {
            open: Vec::new(),
            used: VecDeque::new(),
            known: HashSet::new(),
        }
    }
}

impl<T> Asks<T> {
    /// Takes a new request in.
    pub(super) fn open(&mut self, id: &str, needs: T) -> Result<AskKey, Clash> {
        if id.len() > limits::FOREIGN_ID_BYTES {
            return Err(Clash::LongId);
        }
        let mut hasher = DefaultHasher::new();
        id.hash(&mut hasher);
        let hash = hasher.finish();
        if self.known.contains(&hash) || self.open.iter().any(|(key, _)| key.0 == id) {
            return Err(Clash::Duplicate);
        }
        if self.open.len() >= limits::OPEN_ASKS {
            return Err(Clash::TooMany);
        }
        if self.used.len() >= limits::REMEMBERED_ASKS
            && let Some(oldest) = self.used.pop_front()
        {
            self.known.remove(&oldest);
        }
        self.used.push_back(hash);
        self.known.insert(hash);
        let key = AskKey(id.to_owned());
        self.open.push((key.clone(), needs));
        Ok(key)
    }

    /// Ends a request, if it is open.
    pub(super) fn close(&mut self, id: &str) -> Option<(AskKey, T)> {
        let at = self.open.iter().position(|(key, _)| key.0 == id)?;
        Some(self.open.remove(at))
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
        let mut asks = Asks::default();
        assert_eq!(asks.open("a", ()), Ok(AskKey("a".into())));
        assert_eq!(asks.open("a", ()), Err(Clash::Duplicate));
        assert_eq!(asks.close("a"), Some((AskKey("a".into()), ())));
        assert_eq!(asks.close("a"), None);
        assert_eq!(asks.open("a", ()), Err(Clash::Duplicate));
    }

    #[test]
    fn neither_set_grows_without_end() {
        let mut asks = Asks::default();
        for n in 0..limits::OPEN_ASKS {
            assert!(asks.open(&n.to_string(), ()).is_ok());
        }
        assert_eq!(asks.open("one more", ()), Err(Clash::TooMany));
        assert_eq!(asks.close_all().len(), limits::OPEN_ASKS);
        for n in 0..3 * limits::REMEMBERED_ASKS {
            assert!(asks.open(&format!("later {n}"), ()).is_ok());
            asks.close_all();
        }
        assert_eq!(asks.used.len(), limits::REMEMBERED_ASKS);
        assert_eq!(asks.known.len(), limits::REMEMBERED_ASKS);
        let long = "x".repeat(limits::FOREIGN_ID_BYTES + 1);
        assert_eq!(asks.open(&long, ()), Err(Clash::LongId));
    }
}
