//! Values that are never shown.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Config;
use crate::hook::HookTarget;

/// The source of a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SecretSource {
    /// `env:NAME`: a variable of the supervisor's own environment.
    Variable(String),
    /// `file:PATH`: the content of a file, absolute.
    File(PathBuf),
    /// `credential:NAME`: what the service manager keeps for the supervisor under this name.
    Credential(String),
    /// `‹secret›`: the placeholder for a secret in a configuration that was shown.
    Redacted,
}

impl SecretSource {
    /// How the file names this kind of source.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Variable(_) => "env:",
            Self::File(_) => "file:",
            Self::Credential(_) => "credential:",
            Self::Redacted => "‹secret›",
        }
    }
}

/// A value that is never shown. Clones share it, so that a replaced value is gone from all of them.
#[derive(Clone)]
pub struct Secret {
    /// The source of the value.
    pub source: SecretSource,
    value: Arc<Mutex<Option<Arc<str>>>>,
}

impl Secret {
    /// A secret that was not read yet.
    #[must_use]
    pub fn new(source: SecretSource) -> Self {
        Self {
            source,
            value: Arc::default(),
        }
    }

    /// The same secret with the value that the command line read from its source.
    #[must_use]
    pub fn with_value(self, value: &str) -> Self {
        Self {
            value: Arc::new(Mutex::new(Some(Arc::from(value)))),
            ..self
        }
    }

    /// The value, for the place that uses it and nothing else; `None` if it was not read yet.
    #[must_use]
    pub fn expose(&self) -> Option<Arc<str>> {
        self.value().clone()
    }

    /// Replaces the value by that of another secret, in this one and in all its clones.
    pub fn replace_value(&self, fresh: &Self) {
        let fresh = fresh.expose();
        *self.value() = fresh;
    }

    /// Whether both have the same value.
    #[must_use]
    pub fn has_same_value(&self, other: &Self) -> bool {
        self.expose() == other.expose()
    }

    fn value(&self) -> MutexGuard<'_, Option<Arc<str>>> {
        self.value.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({:?})", self.source)
    }
}

/// A secret of a configuration.
#[derive(Debug, Clone)]
pub struct NamedSecret<'c> {
    /// The key of the file that names its source.
    pub key: String,
    /// What stands in its place in records: the variable of a pool, otherwise its owner.
    pub name: String,
    /// The secret.
    pub secret: &'c Secret,
}

impl Config {
    /// Every secret.
    #[must_use]
    pub fn secrets(&self) -> Vec<NamedSecret<'_>> {
        let mut found = Vec::new();
        let mut add = |key: String, name: String, secret| {
            found.push(NamedSecret { key, name, secret });
        };
        for pool in &self.pools {
            for (name, secret) in &pool.env.secrets {
                let key = format!("pool.{}.env.set.{name}", pool.name);
                add(key, name.clone(), secret);
            }
        }
        for (name, route) in &self.routes {
            let owner = format!("route.{name}");
            if let Some(secret) = &route.secret {
                add(format!("{owner}.secret"), owner.clone(), secret);
            }
            let requests = route.git.pull_requests.as_ref();
            if let Some(secret) = requests.and_then(|requests| requests.secret.as_ref()) {
                let key = format!("{owner}.api_secret");
                add(key.clone(), key, secret);
            }
        }
        for (name, delegate) in &self.delegates {
            let owner = format!("delegate.{name}");
            if let Some(token) = &delegate.token {
                add(format!("{owner}.token"), owner, token);
            }
        }
        if let Some(secret) = &self.store.postgres {
            add(
                "store.postgres".to_owned(),
                "store.postgres".to_owned(),
                secret,
            );
        }
        for hook in &self.hooks {
            let owner = format!("hook.{}", hook.name);
            match &hook.target {
                HookTarget::Address(to) => {
                    let key = format!("{owner}.secret");
                    add(key.clone(), key, &to.secret);
                }
                HookTarget::Command(command) => {
                    for (name, secret) in &command.secrets {
                        let key = format!("{owner}.env.{name}");
                        add(key, format!("{owner}.{name}"), secret);
                    }
                }
            }
        }
        found
    }
}
