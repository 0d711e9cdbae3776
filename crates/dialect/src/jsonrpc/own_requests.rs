//! Our requests: their ids, and the one that the conversation waits for.
//!
//! Must not know what a request is for.

use std::time::Instant;

use crate::{Effect, Effects};

/// The ids of our requests, which count from 1, and the one that the conversation waits for.
#[derive(Debug, Default)]
pub(crate) struct OwnRequests {
    last_id: u64,
    awaited: Option<AwaitedRequest>,
}

/// A request whose reply moves the conversation on. There is one at a time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AwaitedRequest {
    pub(crate) id: u64,
    pub(crate) method: &'static str,
    sent: Option<Instant>,
}

impl OwnRequests {
    /// An unused id.
    pub(crate) const fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    /// Writes a request; returns its id.
    pub(crate) fn write(&mut self, out: &mut Effects, line: impl FnOnce(u64) -> Vec<u8>) -> u64 {
        let id = self.next_id();
        out.push(Effect::Write(line(id)));
        id
    }

    /// Writes a request that the conversation waits for, and for no other any more.
    pub(crate) fn write_awaited(
        &mut self,
        method: &'static str,
        sent: Option<Instant>,
        out: &mut Effects,
        line: impl FnOnce(u64) -> Vec<u8>,
    ) {
        let id = self.write(out, line);
        self.awaited = Some(AwaitedRequest { id, method, sent });
    }

    /// Whether the conversation waits for a reply.
    pub(crate) const fn is_waiting(&self) -> bool {
        self.awaited.is_some()
    }

    /// Since when it waits, if the time was known.
    pub(crate) fn waits_since(&self) -> Option<Instant> {
        self.awaited?.sent
    }

    /// Whether this is the reply that it waits for. Then it waits no longer.
    pub(crate) fn take_reply(&mut self, id: u64) -> bool {
        self.awaited.take_if(|awaited| awaited.id == id).is_some()
    }

    /// Ends the wait; returns the request that has no reply.
    pub(crate) const fn stop_waiting(&mut self) -> Option<AwaitedRequest> {
        self.awaited.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_reply_at_a_time_is_awaited_and_comes_once() {
        let (mut requests, mut out) = (OwnRequests::default(), Effects::new());
        let line = |id: u64| vec![u8::try_from(id).unwrap()];
        requests.write_awaited("a", None, &mut out, line);
        assert_eq!(requests.write(&mut out, line), 2);
        assert!(requests.is_waiting());
        assert!(!requests.take_reply(2));
        requests.write_awaited("b", None, &mut out, line);
        assert!(!requests.take_reply(1), "replaced");
        assert!(requests.take_reply(3));
        assert!(!requests.take_reply(3), "taken");
        assert!(!requests.is_waiting());
        requests.write_awaited("c", None, &mut out, line);
        let unanswered = requests.stop_waiting().map(|own| (own.id, own.method));
        assert_eq!(unanswered, Some((4, "c")));
        assert!(!requests.take_reply(4));
        let ids = out.into_iter().map(|effect| match effect {
            Effect::Write(line) => line,
            other => panic!("{other:?}"),
        });
        assert_eq!(ids.collect::<Vec<_>>(), [[1], [2], [3], [4]]);
    }
}
