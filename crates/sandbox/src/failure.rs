//! How a step of the shim fails: the stage, the object and the errno.
//!
//! Must not know where failures are reported.

use std::path::Path;

use marshal_wire::shim::{SetupFailure, Stage};

/// The result of a step.
pub(super) type StepResult<T = ()> = Result<T, SetupFailure>;

/// A failure without an errno.
pub(super) fn failure(stage: Stage, what: impl Into<String>) -> SetupFailure {
    SetupFailure {
        stage,
        what: what.into(),
        path: None,
        errno: None,
    }
}

/// Adds the context of a step to an error.
pub(super) trait FailureContext<T> {
    /// Adds the stage and the operation.
    fn at(self, stage: Stage, what: &str) -> StepResult<T>;

    /// Adds the stage, the operation and its path.
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
