//! How a step of the shim fails: the stage, the thing and the kernel's word, and nothing more.
//!
//! Must not know where failures go.

use std::path::Path;

use crate::wire::shim::{Failure, Stage};

/// What a step gives.
pub(super) type Step<T = ()> = Result<T, Failure>;

/// A failure that no system call reported.
pub(super) fn failure(stage: Stage, what: impl Into<String>) -> Failure {
    Failure {
        stage,
        what: what.into(),
        path: None,
        errno: None,
    }
}

/// Says where an error happened.
pub(super) trait At<T> {
    /// The error, with its stage and what was being done.
    fn at(self, stage: Stage, what: &str) -> Step<T>;

    /// The same, on a path.
    fn on(self, stage: Stage, what: &str, path: impl AsRef<Path>) -> Step<T>;
}

impl<T, E: Into<std::io::Error>> At<T> for Result<T, E> {
    fn at(self, stage: Stage, what: &str) -> Step<T> {
        self.map_err(|error| {
            let error = error.into();
            let errno = error.raw_os_error();
            let what = match errno {
                Some(_) => what.to_owned(),
                None => format!("{what}: {error}"),
            };
            Failure {
                stage,
                what,
                path: None,
                errno,
            }
        })
    }

    fn on(self, stage: Stage, what: &str, path: impl AsRef<Path>) -> Step<T> {
        self.at(stage, what).map_err(|failure| Failure {
            path: Some(path.as_ref().to_string_lossy().into_owned()),
            ..failure
        })
    }
}
