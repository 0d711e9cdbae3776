//! The requests of one channel: which are open, and which ids were used.
//!
//! An answer has nothing but a request's id, so a duplicate id makes it unclear what an answer is
//! for. Must not know what a request is about.
//!
//! The dialect denies a request beyond `limits::OPEN_PERMISSION_REQUESTS`, and one with a used id,
//! at once. An id does not identify a request for certain. So a channel and its dialect identify a
//! request by `PermissionRequestKey`, which adds a serial number, and the session by
//! `PermissionRequestId`. A verdict is for one request, not for an id.

use std::collections::{HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

use super::{Effect, Effects, report_bad_line};
use marshal_model::PermissionRequestKey;
use marshal_model::limits;

/// Why a request is denied without asking anybody.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RejectReason {
    /// Its id was used before, by a request that may still be open.
    Duplicate,
    /// [`limits::OPEN_PERMISSION_REQUESTS`] are open.
    TooMany,
    /// Its id is longer than [`limits::FOREIGN_ID_BYTES`].
    LongId,
}

impl RejectReason {
    /// The reason of the `bad_line` event.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Duplicate => "duplicate_id",
            Self::TooMany => "too_many_asks",
            Self::LongId => "bad_shape",
        }
    }

    /// The reason that a denial names.
    pub(super) const fn describe(self) -> &'static str {
        match self {
            Self::Duplicate => "this request id was used before",
            Self::TooMany => "too many permission requests are open",
            Self::LongId => "the request id is too long",
        }
    }
}

/// The ids that the requests of one channel have used, of any kind.
#[derive(Debug, Default)]
pub(super) struct RequestIds {
    /// Hashes of the ids used so far, oldest first. A collision denies one request, no more.
    oldest_first: VecDeque<u64>,
    hashes: HashSet<u64>,
    /// The serial number of the last request.
    last_serial: u64,
}

impl RequestIds {
    fn contains(&self, id: &str) -> bool {
        self.hashes.contains(&hash(id))
    }

    /// Records that this id is used.
    fn insert(&mut self, id: &str) {
        let hash = hash(id);
        if !self.hashes.insert(hash) {
            return;
        }
        self.oldest_first.push_back(hash);
        if self.oldest_first.len() > limits::REMEMBERED_REQUEST_IDS
            && let Some(oldest) = self.oldest_first.pop_front()
        {
            self.hashes.remove(&oldest);
        }
    }
}

fn hash(id: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    id.hash(&mut hasher);
    hasher.finish()
}

/// Open requests by id; `T` is the data for the answer.
#[derive(Debug)]
pub(super) struct OpenRequests<T> {
    open: Vec<(PermissionRequestKey, T)>,
}

impl<T> Default for OpenRequests<T> {
    fn default() -> Self {
        Self { open: Vec::new() }
    }
}

impl<T> OpenRequests<T> {
    /// Adds a new request.
    pub(super) fn open(
        &mut self,
        ids: &mut RequestIds,
        id: &str,
        needs: T,
    ) -> Result<PermissionRequestKey, RejectReason> {
        if id.len() > limits::FOREIGN_ID_BYTES {
            return Err(RejectReason::LongId);
        }
        if ids.contains(id) || self.open.iter().any(|(key, _)| key.id == id) {
            return Err(RejectReason::Duplicate);
        }
        if self.open.len() >= limits::OPEN_PERMISSION_REQUESTS {
            return Err(RejectReason::TooMany);
        }
        ids.insert(id);
        ids.last_serial += 1;
        let key = PermissionRequestKey {
            id: id.to_owned(),
            serial: ids.last_serial,
        };
        self.open.push((key.clone(), needs));
        Ok(key)
    }

    /// Ends this very request, if it is open, and not a later one with the same id.
    pub(super) fn close_by_key(&mut self, of: &PermissionRequestKey) -> Option<T> {
        let at = self.open.iter().position(|(key, _)| key == of)?;
        Some(self.open.remove(at).1)
    }

    /// Ends the request that has this id, if one is open.
    pub(super) fn close(&mut self, id: &str) -> Option<(PermissionRequestKey, T)> {
        let at = self.open.iter().position(|(key, _)| key.id == id)?;
        Some(self.open.remove(at))
    }

    /// Ends the open request whose id a new request repeats, and records the id again: it may have
    /// been forgotten since, and the new request must be rejected as a duplicate.
    pub(super) fn close_original(
        &mut self,
        ids: &mut RequestIds,
        id: &str,
    ) -> Option<(PermissionRequestKey, T)> {
        let closed = self.close(id)?;
        ids.insert(id);
        Some(closed)
    }

    /// Ends all of them, oldest first.
    pub(super) fn close_all(&mut self) -> Vec<(PermissionRequestKey, T)> {
        std::mem::take(&mut self.open)
    }

    /// Withdraws the request that has this id, if one is open: whatever is answered now under the
    /// id answers it too.
    pub(super) fn withdraw(&mut self, id: &str, out: &mut Effects) {
        let open = self.close(id);
        out.extend(open.map(|(key, _)| Effect::RequestWithdrawn(key)));
    }

    /// Withdraws the open request whose id a new request repeats, and reports the line. An answer
    /// has no more than an id, so it is unclear which of the two it would be for.
    pub(super) fn withdraw_original(
        &mut self,
        ids: &mut RequestIds,
        id: &str,
        line: &[u8],
        out: &mut Effects,
    ) {
        if let Some((key, _)) = self.close_original(ids, id) {
            report_bad_line("duplicate_id", line, out);
            out.push(Effect::RequestWithdrawn(key));
        }
    }

    /// Withdraws all of them, oldest first: they get no answer.
    pub(super) fn withdraw_all(&mut self, out: &mut Effects) {
        let open = self.close_all().into_iter();
        out.extend(open.map(|(key, _)| Effect::RequestWithdrawn(key)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_used_once() {
        let (mut requests, mut ids) = (OpenRequests::default(), RequestIds::default());
        let key = requests.open(&mut ids, "a", ()).unwrap();
        assert_eq!((key.id.as_str(), key.serial), ("a", 1));
        assert_eq!(
            requests.open(&mut ids, "a", ()),
            Err(RejectReason::Duplicate)
        );
        assert_eq!(requests.close("a"), Some((key, ())));
        assert_eq!(requests.close("a"), None);
        assert_eq!(
            requests.open(&mut ids, "a", ()),
            Err(RejectReason::Duplicate)
        );
        // For any kind of request.
        let mut others: OpenRequests<()> = OpenRequests::default();
        assert_eq!(others.open(&mut ids, "a", ()), Err(RejectReason::Duplicate));
    }

    #[test]
    fn an_id_that_was_forgotten_is_another_request_and_never_while_the_first_is_open() {
        let (mut requests, mut ids) = (OpenRequests::default(), RequestIds::default());
        let mut others = OpenRequests::default();
        let first = requests.open(&mut ids, "a", ()).unwrap();
        for n in 0..limits::REMEMBERED_REQUEST_IDS {
            let of = others.open(&mut ids, &format!("{n}"), ()).unwrap();
            others.close_by_key(&of).unwrap();
        }
        // Forgotten, but open: it closes the first request and is itself rejected.
        assert_eq!(
            requests.close_original(&mut ids, "a"),
            Some((first.clone(), ()))
        );
        assert_eq!(
            requests.open(&mut ids, "a", ()),
            Err(RejectReason::Duplicate)
        );
        for n in 0..limits::REMEMBERED_REQUEST_IDS {
            let of = others.open(&mut ids, &format!("more {n}"), ()).unwrap();
            others.close_by_key(&of).unwrap();
        }
        let second = requests.open(&mut ids, "a", ()).unwrap();
        assert_ne!(first, second);
        assert_eq!(requests.close_by_key(&first), None);
        assert_eq!(requests.close_by_key(&second), Some(()));
    }

    #[test]
    fn neither_set_grows_without_end() {
        let (mut requests, mut ids) = (OpenRequests::default(), RequestIds::default());
        for n in 0..limits::OPEN_PERMISSION_REQUESTS {
            assert!(requests.open(&mut ids, &n.to_string(), ()).is_ok());
        }
        assert_eq!(
            requests.open(&mut ids, "one more", ()),
            Err(RejectReason::TooMany)
        );
        assert_eq!(requests.close_all().len(), limits::OPEN_PERMISSION_REQUESTS);
        for n in 0..3 * limits::REMEMBERED_REQUEST_IDS {
            assert!(requests.open(&mut ids, &format!("later {n}"), ()).is_ok());
            requests.close_all();
        }
        assert_eq!(ids.oldest_first.len(), limits::REMEMBERED_REQUEST_IDS);
        assert_eq!(ids.hashes.len(), limits::REMEMBERED_REQUEST_IDS);
        let long = "x".repeat(limits::FOREIGN_ID_BYTES + 1);
        assert_eq!(
            requests.open(&mut ids, &long, ()),
            Err(RejectReason::LongId)
        );
    }
}
