//! The file that helpers are started from: the small binary beside the program, if it is as trusted
//! as the program itself, otherwise the program.
//!
//! The file is checked once and kept open: a file that replaces it later, by an update or an
//! attacker, is never started. Must not know what a helper does.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, Stat};

/// The small binary's name, in the directory of the program.
const SHIM: &str = "marshal-shim";
/// The size limit: it has some hundred kilobytes, and some ten megabytes in a test build.
const SHIM_BYTES: u64 = 256 << 20;
/// The write bits of group and others.
const OTHERS_WRITE: u32 = 0o022;

/// The file that helpers are started from.
#[derive(Debug)]
pub(super) struct HelperProgram {
    path: PathBuf,
    shim: Option<Shim>,
}

#[derive(Debug)]
struct Shim {
    /// Names it for exec.
    _held: OwnedFd,
    /// The supervisor's own program, which a sandbox shows.
    program: OwnedFd,
}

impl HelperProgram {
    /// For the supervisor whose program is `executable`; the file of a helper of the same build contains
    /// `build`.
    pub(super) fn find(executable: PathBuf, build: &str) -> Self {
        match Self::find_shim(&executable, build) {
            Ok(found) => found,
            Err(why) => {
                tracing::debug!(%why, "helpers are started from the program itself");
                Self {
                    path: executable,
                    shim: None,
                }
            }
        }
    }

    /// Where to start it from.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The supervisor's program, if that is another file.
    pub(super) fn supervisor_program(&self) -> Option<BorrowedFd<'_>> {
        self.shim.as_ref().map(|shim| shim.program.as_fd())
    }

    /// The path to start the supervisor's own program from, so that a container gets the same file
    /// as the helper outside.
    pub(super) fn supervisor_path(&self) -> PathBuf {
        match &self.shim {
            Some(shim) => PathBuf::from(format!("/proc/self/fd/{}", shim.program.as_raw_fd())),
            None => self.path.clone(),
        }
    }

    fn find_shim(executable: &Path, build: &str) -> io::Result<Self> {
        let path_only = OFlags::PATH | OFlags::CLOEXEC;
        let program = rustix::fs::openat(CWD, executable, path_only, Mode::empty())?;
        let link = format!("/proc/self/fd/{}", program.as_raw_fd());
        let real = std::fs::read_link(link)?;
        let own = rustix::fs::fstat(&program)?;
        let at_path = rustix::fs::stat(&real)?;
        if (own.st_dev, own.st_ino) != (at_path.st_dev, at_path.st_ino) {
            return Err(io::Error::other("the program is not at its path any more"));
        }
        let path = real.with_file_name(SHIM);
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let mut file = File::from(rustix::fs::openat(CWD, &path, flags, Mode::empty())?);
        check_trusted(&rustix::fs::fstat(&file)?, &own).map_err(io::Error::other)?;
        if !contains_build(&mut file, build)? {
            return Err(io::Error::other("it is from another build"));
        }
        Ok(Self {
            path: PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd())),
            shim: Some(Shim {
                _held: file.into(),
                program,
            }),
        })
    }
}

/// Why the small binary is not as trusted as the program.
#[derive(Debug, thiserror::Error)]
enum TrustError {
    /// It is a directory, a link or a special file.
    #[error("it is not a regular file")]
    NotRegular,
    /// It has another owner.
    #[error("it belongs to another user than the program")]
    Owner,
    /// Someone can write only the helper.
    #[error("more users can write it than the program")]
    Writers,
    /// Nobody may execute it.
    #[error("it is not executable")]
    NotExecutable,
    /// It is larger than any build.
    #[error("it is too large")]
    TooLarge,
}

/// Checks that everyone who can change the helper can change the program, too.
fn check_trusted(shim: &Stat, program: &Stat) -> Result<(), TrustError> {
    let kind = FileType::from_raw_mode(shim.st_mode);
    let more_writers = shim.st_mode & OTHERS_WRITE & !program.st_mode != 0;
    let other_group = shim.st_mode & 0o020 != 0 && shim.st_gid != program.st_gid;
    if !kind.is_file() {
        Err(TrustError::NotRegular)
    } else if shim.st_uid != program.st_uid {
        Err(TrustError::Owner)
    } else if more_writers || other_group {
        Err(TrustError::Writers)
    } else if shim.st_mode & 0o111 == 0 {
        Err(TrustError::NotExecutable)
    } else if shim.st_size.unsigned_abs() > SHIM_BYTES {
        Err(TrustError::TooLarge)
    } else {
        Ok(())
    }
}

fn contains_build(file: &mut File, build: &str) -> io::Result<bool> {
    let mut text = Vec::new();
    file.by_ref().take(SHIM_BYTES).read_to_end(&mut text)?;
    Ok(memchr::memmem::find(&text, build.as_bytes()).is_some())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    const BUILD: &str = "marshal-shim of build 1.";

    struct Beside(tempfile::TempDir);

    impl Beside {
        fn new(shim: &str) -> Self {
            let dir = tempfile::tempdir().expect("a directory");
            for (name, text) in [("marshal", "the program"), (SHIM, shim)] {
                fs::write(dir.path().join(name), text).expect("a file");
                Self::mode(&dir.path().join(name), 0o755);
            }
            Self(dir)
        }

        fn mode(path: &Path, mode: u32) {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("a mode");
        }

        fn path(&self, name: &str) -> PathBuf {
            self.0.path().join(name)
        }

        fn is_taken(&self) -> bool {
            HelperProgram::find(self.path("marshal"), BUILD)
                .supervisor_program()
                .is_some()
        }
    }

    fn of_this_build() -> String {
        format!("code {BUILD} code")
    }

    #[test]
    fn a_shim_of_this_build_is_taken_and_held() {
        let beside = Beside::new(&of_this_build());
        let found = HelperProgram::find(beside.path("marshal"), BUILD);
        assert!(found.supervisor_program().is_some());
        fs::remove_file(beside.path(SHIM)).expect("removed");
        fs::write(beside.path(SHIM), "another").expect("a file");
        assert_eq!(fs::read_to_string(found.path()).ok(), Some(of_this_build()));
    }

    #[test]
    fn one_of_another_build_is_not() {
        assert!(!Beside::new("marshal-shim of build 0.").is_taken());
    }

    #[test]
    fn one_that_more_users_may_write_is_not() {
        let beside = Beside::new(&of_this_build());
        Beside::mode(&beside.path(SHIM), 0o775);
        assert!(!beside.is_taken());
        Beside::mode(&beside.path("marshal"), 0o775);
        assert!(beside.is_taken(), "who may write both gains nothing");
        Beside::mode(&beside.path(SHIM), 0o777);
        assert!(!beside.is_taken());
    }

    #[test]
    fn a_link_or_something_that_cannot_run_is_not() {
        let beside = Beside::new(&of_this_build());
        Beside::mode(&beside.path(SHIM), 0o644);
        assert!(!beside.is_taken());
        fs::rename(beside.path(SHIM), beside.path("other")).expect("renamed");
        Beside::mode(&beside.path("other"), 0o755);
        symlink("other", beside.path(SHIM)).expect("a link");
        assert!(!beside.is_taken());
    }

    #[test]
    fn without_one_it_is_the_program() {
        let beside = Beside::new("");
        fs::remove_file(beside.path(SHIM)).expect("removed");
        let found = HelperProgram::find(beside.path("marshal"), BUILD);
        assert_eq!(found.path(), beside.path("marshal"));
    }
}
