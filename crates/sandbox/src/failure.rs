//! How a step of the shim fails: the stage, the thing and the kernel's word, and nothing more.
//!
//! Must not know where failures go.

use std::path::Path;

use marshal_wire::shim::{SetupFailure, Stage};

/// What a step gives.
pub(super) type StepResult<T = ()> = Result<T, SetupFailure>;

/// A failure that no system call reported.
pub(super) fn failure(stage: Stage, what: impl Into<String>) -> SetupFailure {
    SetupFailure {
        stage,
        what: what.into(),
        path: None,
        errno: None,
    }
}

/// Says where an error happened.
pub(super) trait FailureContext<T> {
    /// The error, with its stage and what was being done.
    fn at(self, stage: Stage, what: &str) -> StepResult<T>;

    /// The same, on a path.
    fn on(self, stage: Stage, what: &str, path: impl AsRef<Path>) -> StepResult<T>;
}

impl<T, E: Into<std::io::Error>> FailureContext<T> for Result<T, E> {
    fn at(self, stage: Stage, what: &str) -> StepResult<T> {
        self.map_err(|error| {
            let error = error.into();
            let errno = error.raw_os_error();
            let what = match errno {
                Some(_) => what.to_owned(),
                None => format!("{what}: {error}"),
            };
            SetupFailure {
                stage,
                what,
                path: None,
                errno,
            }
        })
    }

    fn on(self, stage: Stage, what: &str, path: impl AsRef<Path>) -> StepResult<T> {
        self.at(stage, what).map_err(|failure| SetupFailure {
            path: Some(path.as_ref().to_string_lossy().into_owned()),
            ..failure
        })
    }
}
