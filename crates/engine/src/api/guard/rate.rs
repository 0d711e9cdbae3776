//! Rate limits: a bucket for each token, and one for each address that sends no valid token.
//!
//! Owns the buckets and their limits. Must not read a clock or know HTTP.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use marshal_model::limits::{self, Rate};

/// The SHA-256 digest of a token.
pub(in crate::api) type Digest = [u8; 32];

/// All buckets.
#[derive(Debug)]
pub(in crate::api) struct Rates {
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    callers: Buckets<String>,
    /// The last valid token of each address. A client that sends it again is not delayed by others
    /// with its address.
    known: HashMap<String, Digest>,
    peers: Buckets<IpAddr>,
}

impl Default for Rates {
    fn default() -> Self {
        Self {
            inner: Mutex::new(Inner {
                callers: Buckets::new(limits::HTTP_RATE, limits::HTTP_TRACKED_TOKENS),
                known: HashMap::new(),
                peers: Buckets::new(
                    limits::HTTP_ANONYMOUS_RATE,
                    limits::HTTP_ANONYMOUS_ADDRESSES,
                ),
            }),
        }
    }
}

impl Rates {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a request with a valid token, or returns how long the caller must wait.
    pub(in crate::api) fn admit_caller(
        &self,
        caller: &str,
        token: Option<Digest>,
        now: Instant,
    ) -> Result<(), Duration> {
        let mut inner = self.lock();
        if let Some(token) = token {
            if inner.known.len() >= limits::HTTP_TRACKED_TOKENS && !inner.known.contains_key(caller)
            {
                inner.known.clear();
            }
            inner.known.insert(caller.to_owned(), token);
        }
        inner.callers.take(caller.to_owned(), now)
    }

    /// Counts a request without a valid token, or returns how long the address must wait.
    pub(in crate::api) fn admit_unknown(&self, peer: IpAddr, now: Instant) -> Result<(), Duration> {
        self.lock().peers.take(network(peer), now)
    }

    /// Forgets a token that was removed: from now on it counts as a guess.
    pub(in crate::api) fn forget(&self, token: &Digest) {
        self.lock().known.retain(|_, known| known != token);
    }

    /// Returns how long an address must wait before another of its tokens is checked. A token that
    /// was valid before is always checked: it may be revoked by now, and guesses of others do not
    /// block it.
    pub(in crate::api) fn retry_after(
        &self,
        peer: IpAddr,
        token: &Digest,
        now: Instant,
    ) -> Option<Duration> {
        let inner = self.lock();
        if inner.known.values().any(|known| known == token) {
            return None;
        }
        inner.peers.wait(&network(peer), now)
    }
}

/// Returns the network to count: the owner of one IPv6 address usually has its whole /64.
fn network(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(of) if !of.is_loopback() => {
            let [a, b, c, d, ..] = of.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
        other => other,
    }
}

/// The tokens left in a bucket, and when they were counted.
#[derive(Debug, Clone, Copy)]
struct Bucket {
    tokens: f64,
    at: Instant,
}

impl Bucket {
    fn refill(self, rate: Rate, now: Instant) -> Self {
        let since = now.saturating_duration_since(self.at).as_secs_f64();
        let left = (self.tokens + since * f64::from(rate.per_second)).min(f64::from(rate.burst));
        Self {
            tokens: left,
            at: now,
        }
    }

    fn wait(self, rate: Rate) -> Option<Duration> {
        let missing = 1.0 - self.tokens;
        (missing > 0.0).then(|| Duration::from_secs_f64(missing / f64::from(rate.per_second)))
    }
}

/// Buckets by key. A full bucket equals a new one, so it can be forgotten.
#[derive(Debug)]
struct Buckets<K> {
    rate: Rate,
    most: usize,
    each: HashMap<K, Bucket>,
    /// The shared bucket of all keys for which there is no room.
    others: Option<Bucket>,
}

impl<K: Hash + Eq> Buckets<K> {
    fn new(rate: Rate, most: usize) -> Self {
        Self {
            rate,
            most,
            each: HashMap::new(),
            others: None,
        }
    }

    fn full(&self, now: Instant) -> Bucket {
        Bucket {
            tokens: f64::from(self.rate.burst),
            at: now,
        }
    }

    fn take(&mut self, key: K, now: Instant) -> Result<(), Duration> {
        let rate = self.rate;
        let full = self.full(now);
        if self.each.len() >= self.most && !self.each.contains_key(&key) {
            self.each
                .retain(|_, of| of.refill(rate, now).tokens < f64::from(rate.burst));
        }
        let bucket = if self.each.len() < self.most || self.each.contains_key(&key) {
            self.each.entry(key).or_insert(full)
        } else {
            self.others.get_or_insert(full)
        };
        *bucket = bucket.refill(rate, now);
        if let Some(wait) = bucket.wait(rate) {
            return Err(wait);
        }
        bucket.tokens -= 1.0;
        Ok(())
    }

    fn wait(&self, key: &K, now: Instant) -> Option<Duration> {
        let is_full = self.each.len() >= self.most;
        let others = self.others.as_ref().filter(|_| is_full);
        let bucket = self.each.get(key).or(others)?;
        bucket.refill(self.rate, now).wait(self.rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: Rate = Rate {
        per_second: 2,
        burst: 3,
    };

    #[test]
    fn a_burst_passes_and_then_so_many_a_second() {
        let mut buckets = Buckets::new(RATE, 8);
        let start = Instant::now();
        let mut passed = |ms: u64| {
            let now = start + Duration::from_millis(ms);
            (0..10).filter(|_| buckets.take("a", now).is_ok()).count()
        };
        assert_eq!(passed(0), 3);
        assert_eq!(passed(400), 0);
        assert_eq!(passed(500), 1);
        assert_eq!(passed(1000), 1);
        assert_eq!(passed(3_600_000), 3, "no more than a burst is saved up");
        let now = start + Duration::from_secs(3600);
        assert_eq!(buckets.take("a", now), Err(Duration::from_millis(500)));
        assert_eq!(buckets.take("b", now), Ok(()), "another one is not held up");
    }

    #[test]
    fn many_addresses_take_no_more_memory_than_some() {
        let mut buckets = Buckets::new(RATE, 4);
        let start = Instant::now();
        let passed = (0..1000).filter(|key| buckets.take(*key, start).is_ok());
        assert_eq!(passed.count(), 4 + 3);
        assert_eq!(buckets.each.len(), 4);
        assert!(buckets.wait(&2000, start).is_some());
        // Full ones make room.
        let later = start + Duration::from_secs(60);
        assert_eq!(buckets.take(3000, later), Ok(()));
        assert_eq!(buckets.each.len(), 1);
    }

    #[test]
    fn guesses_of_a_neighbour_do_not_stop_a_token_that_came_in_before() {
        let rates = Rates::default();
        let now = Instant::now();
        let peer: IpAddr = "127.0.0.1".parse().expect("address");
        rates
            .admit_caller("ops", Some([1; 32]), now)
            .expect("passes");
        while rates.admit_unknown(peer, now).is_ok() {}
        assert_eq!(rates.retry_after(peer, &[1; 32], now), None);
        assert!(rates.retry_after(peer, &[2; 32], now).is_some());
        let other: IpAddr = "10.0.0.1".parse().expect("address");
        assert_eq!(rates.retry_after(other, &[2; 32], now), None);
        // Another token of the same name is the only one that is known.
        rates
            .admit_caller("ops", Some([3; 32]), now)
            .expect("passes");
        assert!(rates.retry_after(peer, &[1; 32], now).is_some());
        let later = now + Duration::from_secs(1);
        assert_eq!(rates.retry_after(peer, &[2; 32], later), None);
    }

    #[test]
    fn a_network_of_the_new_protocol_is_one_peer() {
        let of = |text: &str| network(text.parse().expect("address")).to_string();
        assert_eq!(of("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
        assert_eq!(of("::1"), "::1");
        assert_eq!(of("::ffff:10.0.0.1"), "10.0.0.1");
        assert_eq!(of("10.0.0.1"), "10.0.0.1");
    }
}
