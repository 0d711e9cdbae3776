//! Identifiers, each with the one rule that says which texts it accepts.
//!
//! Must not know where an id comes from: generating ids needs randomness and a clock, which the
//! callers have.

use std::fmt;
use std::sync::Arc;

/// Why a text is not an id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// The text does not match the pattern of pool names.
    #[error("pool name {0:?} must match [a-z0-9][a-z0-9-]{{0,31}}")]
    Pool(String),
    /// The text does not match the pattern of role names, which is that of pool names.
    #[error("role name {0:?} must match [a-z0-9][a-z0-9-]{{0,31}}")]
    Role(String),
    /// The text does not match the pattern of template names, which is that of pool names.
    #[error("template name {0:?} must match [a-z0-9][a-z0-9-]{{0,31}}")]
    Template(String),
    /// The text does not match the pattern of workspace names, which is that of pool names.
    #[error("workspace name {0:?} must match [a-z0-9][a-z0-9-]{{0,31}}")]
    Workspace(String),
    /// The text does not match the pattern of task ids.
    #[error("id {0:?} must match [A-Za-z0-9][A-Za-z0-9._-]{{0,127}} and must not be \"latest\"")]
    Token(String),
    /// The text is not `<pool>/<number>`.
    #[error("slot {0:?} must be written POOL/NUMBER, for example demo/0")]
    Slot(String),
    /// The text is not `<epoch>-<seq>`.
    #[error("event id {0:?} must be written EPOCH-SEQ, for example 3-117")]
    Event(String),
}

/// Whether a text may reach an argument, a file name or a branch
/// (`[A-Za-z0-9][A-Za-z0-9._-]{0,127}`, not `latest`).
#[must_use]
pub fn is_safe_token(text: &str) -> bool {
    let mut bytes = text.bytes();
    let Some(first) = bytes.next() else {
        return false;
    };
    first.is_ascii_alphanumeric()
        && text.len() <= 128
        && bytes.all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
        && text != "latest"
}

/// Whether a text is `[a-z0-9][a-z0-9-]{0,31}`.
fn is_name(text: &str) -> bool {
    (1..=32).contains(&text.len())
        && !text.starts_with('-')
        && text
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}

/// Declares a name that a configuration gives.
macro_rules! name {
    ($(#[$meta:meta])* $name:ident, $error:ident) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Checks the pattern.
            ///
            /// # Errors
            #[doc = concat!("[`IdError::", stringify!($error), "`] if `text` does not match it.")]
            pub fn new(text: &str) -> Result<Self, IdError> {
                if is_name(text) {
                    Ok(Self(text.into()))
                } else {
                    Err(IdError::$error(text.to_owned()))
                }
            }

            /// The name as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }
    };
}

name!(
    /// The name of a pool: `[a-z0-9][a-z0-9-]{0,31}`.
    PoolName,
    Pool
);
name!(
    /// The name of a role, what a chat's agent is for: `[a-z0-9][a-z0-9-]{0,31}`.
    RoleName,
    Role
);
name!(
    /// The name of a template, by which work is begun: `[a-z0-9][a-z0-9-]{0,31}`.
    TemplateName,
    Template
);
name!(
    /// The name of a registered workspace: `[a-z0-9][a-z0-9-]{0,31}`.
    WorkspaceName,
    Workspace
);

/// A fixed place in a pool, written `builders/3`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlotId {
    /// The pool.
    pub pool: PoolName,
    /// The place in the pool, from 0.
    pub index: u16,
}

impl SlotId {
    /// Reads `POOL/NUMBER`.
    ///
    /// # Errors
    /// [`IdError::Slot`] if the text has another form, [`IdError::Pool`] if the pool's name is bad.
    pub fn parse(text: &str) -> Result<Self, IdError> {
        let bad = || IdError::Slot(text.to_owned());
        let (pool, index) = text.split_once('/').ok_or_else(bad)?;
        Ok(Self {
            pool: PoolName::new(pool)?,
            index: index.parse().map_err(|_| bad())?,
        })
    }
}

impl fmt::Display for SlotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}/{}", self.pool, self.index))
    }
}

/// Declares an id that is one safe token.
macro_rules! token_id {
    ($(#[$meta:meta])* $name:ident) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Checks the pattern `[A-Za-z0-9][A-Za-z0-9._-]{0,127}`.
            ///
            /// # Errors
            /// [`IdError::Token`] if `text` does not match it or is `latest`.
            pub fn new(text: &str) -> Result<Self, IdError> {
                if is_safe_token(text) {
                    Ok(Self(text.into()))
                } else {
                    Err(IdError::Token(text.to_owned()))
                }
            }

            /// The id as text; safe in a file name or an argument.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }
    };
}

token_id!(
    /// One conversation, durable; ours (a UUIDv7), never the agent's own id.
    SessionId
);
token_id!(
    /// A task's id: given by the user or made by us; unique in its run.
    TaskId
);
token_id!(
    /// One `run`, or the life of one daemon.
    RunId
);
token_id!(
    /// One message of a chat and the turn that answers it; ours (a UUID).
    TurnId
);
token_id!(
    /// One permission request in the journal; ours, never the agent's request id.
    PermissionRequestId
);

/// A durable event's address in its session's stream, `<epoch>-<seq>`.
///
/// The epoch grows with every start of the supervisor; `seq` is dense from 1 over the whole life
/// of the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EventId {
    /// The start of the supervisor that gave the id.
    pub epoch: u64,
    /// The place in the session, from 1, without gaps.
    pub seq: u64,
}

impl EventId {
    /// Reads `EPOCH-SEQ`.
    ///
    /// # Errors
    /// [`IdError::Event`] if the text has another form.
    pub fn parse(text: &str) -> Result<Self, IdError> {
        let bad = || IdError::Event(text.to_owned());
        let (epoch, seq) = text.split_once('-').ok_or_else(bad)?;
        Ok(Self {
            epoch: epoch.parse().map_err(|_| bad())?,
            seq: seq.parse().map_err(|_| bad())?,
        })
    }
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.epoch, self.seq)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pool_names_are_short_and_lower_case() {
        for good in ["a", "0", "demo", "a-b-0"] {
            assert!(PoolName::new(good).is_ok(), "{good}");
        }
        for bad in ["", "-a", "A", "a_b", "a/b", &"x".repeat(33)] {
            assert!(PoolName::new(bad).is_err(), "{bad}");
            let role = RoleName::new(bad).expect_err("bad").to_string();
            assert!(role.starts_with("role name"), "{role}");
            let workspace = WorkspaceName::new(bad).expect_err("bad").to_string();
            assert!(workspace.starts_with("workspace name"), "{workspace}");
        }
    }

    #[test]
    fn tokens_never_look_like_a_flag_a_path_or_latest() {
        for good in ["a", "T-1", "0.x_y", &"x".repeat(128)] {
            assert!(TaskId::new(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "-a",
            ".a",
            "a/b",
            "a b",
            "latest",
            "é",
            &"x".repeat(129),
        ] {
            assert!(TaskId::new(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn slots_and_event_ids_survive_a_round_trip() {
        assert_eq!(
            SlotId::parse("demo/3").map(|s| s.to_string()),
            Ok("demo/3".to_owned())
        );
        assert!(SlotId::parse("demo").is_err());
        assert!(SlotId::parse("demo/70000").is_err());
        let id = EventId { epoch: 3, seq: 117 };
        assert_eq!(EventId::parse(&id.to_string()), Ok(id));
        assert!(EventId::parse("3").is_err());
        assert!(EventId::parse("3-x").is_err());
    }
}
