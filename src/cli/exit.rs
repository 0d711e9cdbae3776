//! Exit codes: the whole set, and nothing else.
//!
//! Must not know who ends, or why. 101 is a panic and always a bug.

/// How the program ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// Everything that was asked for is done.
    Done,
    /// It worked, and something of it failed.
    Failures,
    /// Bad usage or configuration.
    Usage,
    /// The fleet could not start: no child was ever spawned.
    CannotStart,
    /// No daemon can be reached.
    NoDaemon,
    /// Not permitted.
    NotPermitted,
    /// A second SIGINT.
    Interrupted,
    /// A second SIGTERM.
    Terminated,
}

impl Exit {
    /// Every way to end.
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

    /// Failures, where everything would be done.
    #[must_use]
    pub const fn or_failures(self) -> Self {
        match self {
            Self::Done => Self::Failures,
            other => other,
        }
    }

    /// The code that the shell sees.
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
