//! Values that are never shown.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

/// The source of a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SecretSource {
    /// `env:NAME`: a variable of the supervisor's own environment.
    Variable(String),
    /// `file:PATH`: the content of a file, absolute.
    File(PathBuf),
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
            Self::Redacted => "‹secret›",
        }
    }
}

/// A value that is never shown.
#[derive(Clone)]
pub struct Secret {
    /// The source of the value.
    pub source: SecretSource,
    value: Option<Arc<str>>,
}

impl Secret {
    /// A secret that was not read yet.
    #[must_use]
    pub const fn new(source: SecretSource) -> Self {
        Self {
            source,
            value: None,
        }
    }

    /// The same secret with the value that the command line read from its source.
    #[must_use]
    pub fn with_value(self, value: &str) -> Self {
        Self {
            value: Some(Arc::from(value)),
            ..self
        }
    }

    /// The value, for the child's environment and nothing else; `None` if it was not read yet.
    #[must_use]
    pub fn expose(&self) -> Option<&str> {
        self.value.as_deref()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({:?})", self.source)
    }
}
