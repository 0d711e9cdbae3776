//! The exit codes of the program.
//!
//! Must not know why the program ends. 101 is a panic and always a bug.

/// An exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// Success.
    Done,
    /// The command ran, and something failed, such as a task.
    Failures,
    /// Wrong usage or configuration.
    Usage,
    /// The fleet could not start: no child was ever spawned.
    CannotStart,
    /// No supervisor can be reached.
    NoDaemon,
    /// The caller has no permission.
    NotPermitted,
    /// A second SIGINT.
    Interrupted,
    /// A second SIGTERM.
    Terminated,
    /// The exit code of a command in a sandbox.
    Command(u8),
}

impl Exit {
    /// All exit codes of marshal itself.
    pub const ALL: &'static [Self] = &[
        Self::Done,
        Self::Failures,
        Self::Usage,
        Self::CannotStart,
        Self::NoDaemon,
        Self::NotPermitted,
        Self::Interrupted,
        Self::Terminated,
    ];

    /// Turns success into failure; other codes stay.
    #[must_use]
    pub const fn or_failures(self) -> Self {
        match self {
            Self::Done => Self::Failures,
            other => other,
        }
    }

    /// The numeric exit code.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Failures => 1,
            Self::Usage => 2,
            Self::CannotStart => 3,
            Self::NoDaemon => 4,
            Self::NotPermitted => 5,
            Self::Interrupted => 130,
            Self::Terminated => 143,
            Self::Command(code) => code,
        }
    }
}

impl From<Exit> for std::process::ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_its_own_and_none_is_a_panics() {
        let mut codes: Vec<u8> = Exit::ALL.iter().map(|exit| exit.code()).collect();
        assert!(!codes.contains(&101));
        codes.dedup();
        assert_eq!(codes, [0, 1, 2, 3, 4, 5, 130, 143]);
    }
}
