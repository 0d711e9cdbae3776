//! Values that are shown to nobody.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

/// Where a secret stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SecretSource {
    /// `env:NAME`: a variable of the supervisor's own environment.
    Variable(String),
    /// `file:PATH`: the content of a file, absolute.
    File(PathBuf),
    /// `‹secret›`: a configuration was shown, and this is what was shown of it.
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

/// A value that is shown to nobody.
#[derive(Clone)]
pub struct Secret {
    /// Where it stands.
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

    /// The same with its value, as whoever reads the environment and files found it.
    #[must_use]
    pub fn with_value(self, value: &str) -> Self {
        Self {
            value: Some(Arc::from(value)),
            ..self
        }
    }

    /// The value, for the child's environment and nothing else; `None`: it was not read yet.
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
