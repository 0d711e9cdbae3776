//! Logins of browsers: one-time codes, and the sessions that they open.
//!
//! A session stands for a token and has its role. It ends with the token, because each of its requests
//! looks the token up again. Must not know pages or cookies. In memory only: a restart of the
//! supervisor ends all sessions.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::http::Extensions;

use super::guard::{Digest, Peer, SessionToken};
use super::tokens::{Tokens, digest, getrandom};

/// How long a code is valid.
pub const CODE_LIFETIME: Duration = Duration::from_secs(120);
/// How long a session lasts.
pub const SESSION_LIFETIME: Duration = Duration::from_secs(12 * 3600);
/// The maximum number of unused codes; a further one replaces the oldest.
const CODES: usize = 16;
/// The maximum number of sessions; a further one ends the oldest.
const SESSIONS: usize = 64;
/// The characters of a code: 50 random bits. An address may try 20 codes a second, so that even ten
/// thousand addresses guess one of [`CODES`] with a chance below one in a million while it is valid.
const CODE_CHARS: usize = 10;
/// The digits of Crockford's base 32: no letters that are taken for others.
const DIGITS: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";

/// The codes and sessions.
#[derive(Default)]
pub struct Logins(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    codes: VecDeque<Entry>,
    /// By the digest of the cookie, so that the time of a lookup reveals nothing of it.
    sessions: HashMap<Digest, Entry>,
}

/// A secret that stands for a token.
#[derive(Clone, Copy)]
struct Entry {
    secret: Digest,
    token: Digest,
    until: Instant,
}

impl fmt::Debug for Logins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Logins")
    }
}

/// Why a code opens no session.
#[derive(Debug, thiserror::Error)]
pub enum LoginError {
    /// Nobody made it, it was used, or its time is over.
    #[error("this code is wrong, used or older than 2 minutes: run `marshal open` again")]
    WrongCode,
    /// Too many attempts.
    #[error("too many attempts: wait {} seconds", .0.as_secs() + 1)]
    TooMany(Duration),
    /// There are no random bytes.
    #[error("no session can be opened: {0}")]
    NoRandom(#[from] io::Error),
}

impl Logins {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a code for a token.
    pub(super) fn issue(&self, token: Digest, now: Instant) -> io::Result<String> {
        let mut bytes = [0_u8; CODE_CHARS];
        getrandom(&mut bytes)?;
        let code: String = bytes
            .iter()
            .map(|byte| char::from(DIGITS[usize::from(byte % 32)]))
            .collect();
        let mut inner = self.lock();
        inner.codes.retain(|code| code.until > now);
        if inner.codes.len() >= CODES {
            inner.codes.pop_front();
        }
        inner.codes.push_back(Entry {
            secret: digest(&code),
            token,
            until: now + CODE_LIFETIME,
        });
        let (one, other) = code.split_at(CODE_CHARS / 2);
        Ok(format!("{one}-{other}"))
    }

    /// Uses a code up; returns the token that it stands for.
    fn redeem(&self, code: &str, now: Instant) -> Option<Digest> {
        let given = digest(&normalize(code));
        let mut inner = self.lock();
        // Compares all bytes of all digests, so that the time reveals nothing.
        let mut found = None;
        for (place, code) in inner.codes.iter().enumerate() {
            let pairs = code.secret.iter().zip(given.iter());
            let differ = pairs.fold(0, |all, (a, b)| all | (a ^ b));
            if std::hint::black_box(differ) == 0 {
                found = Some(place);
            }
        }
        let code = inner.codes.remove(found?)?;
        (code.until > now).then_some(code.token)
    }

    /// Opens a session; returns what its cookie holds.
    fn open(&self, token: Digest, now: Instant) -> io::Result<String> {
        let mut bytes = [0_u8; 32];
        getrandom(&mut bytes)?;
        let cookie = hex::encode(bytes);
        let secret = digest(&cookie);
        let mut inner = self.lock();
        inner.sessions.retain(|_, session| session.until > now);
        if inner.sessions.len() >= SESSIONS {
            let oldest = inner.sessions.values().min_by_key(|session| session.until);
            let oldest = oldest.map(|session| session.secret);
            oldest.and_then(|secret| inner.sessions.remove(&secret));
        }
        let until = now + SESSION_LIFETIME;
        let entry = Entry {
            secret,
            token,
            until,
        };
        inner.sessions.insert(secret, entry);
        Ok(cookie)
    }

    /// Returns the token of a session; `None` if it has ended.
    #[must_use]
    pub fn find(&self, cookie: &str, now: Instant) -> Option<SessionToken> {
        let inner = self.lock();
        let session = inner.sessions.get(&digest(cookie))?;
        (session.until > now).then_some(SessionToken(session.token))
    }

    /// Ends a session.
    pub fn end(&self, cookie: &str) {
        self.lock().sessions.remove(&digest(cookie));
    }
}

impl Tokens {
    /// Opens a session with a code; returns what its cookie holds. Attempts are limited by the address
    /// in the request's `extensions`.
    ///
    /// # Errors
    /// [`LoginError`]
    pub fn log_in(
        &self,
        code: &str,
        extensions: &Extensions,
        now: Instant,
    ) -> Result<String, LoginError> {
        let peer = extensions.get::<Peer>().ok_or(LoginError::WrongCode)?;
        let admitted = self.rates().admit_unknown(peer.remote(), now);
        admitted.map_err(LoginError::TooMany)?;
        let token = self.logins().redeem(code, now);
        Ok(self
            .logins()
            .open(token.ok_or(LoginError::WrongCode)?, now)?)
    }
}

/// A code as it was made, however a person typed it.
fn normalize(code: &str) -> String {
    let typed = code.chars().filter(char::is_ascii_alphanumeric).take(64);
    typed
        .map(|c| match c.to_ascii_uppercase() {
            'O' => '0',
            'I' | 'L' => '1',
            other => other,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: Digest = [7; 32];

    #[test]
    fn a_code_opens_one_session_within_its_time() {
        let (logins, now) = (Logins::default(), Instant::now());
        let code = logins.issue(TOKEN, now).expect("random");
        assert_eq!(logins.redeem("AAAAA-AAAAA", now), None);
        let typed = code.to_lowercase().replace('-', " ");
        assert_eq!(logins.redeem(&typed, now), Some(TOKEN));
        assert_eq!(logins.redeem(&code, now), None, "used");
        let late = logins.issue(TOKEN, now).expect("random");
        assert_eq!(logins.redeem(&late, now + CODE_LIFETIME), None, "too late");
    }

    #[test]
    fn letters_that_look_like_digits_are_those() {
        assert_eq!(normalize("o0il1-x "), "00111X");
    }

    #[test]
    fn codes_and_sessions_are_bounded_and_the_oldest_goes_first() {
        let (logins, now) = (Logins::default(), Instant::now());
        let at = |number: usize| now + Duration::from_millis(number as u64);
        let codes: Vec<_> = (0..=CODES)
            .map(|number| logins.issue(TOKEN, at(number)).expect("random"))
            .collect();
        assert_eq!(logins.redeem(&codes[0], now), None);
        assert_eq!(logins.redeem(&codes[1], now), Some(TOKEN));
        let cookies: Vec<_> = (0..=SESSIONS)
            .map(|number| logins.open(TOKEN, at(number)).expect("random"))
            .collect();
        assert!(logins.find(&cookies[0], now).is_none());
        assert!(logins.find(&cookies[1], now).is_some());
        assert!(
            logins
                .find(&cookies[1], now + SESSION_LIFETIME * 2)
                .is_none()
        );
        logins.end(&cookies[2]);
        assert!(logins.find(&cookies[2], now).is_none());
    }
}
