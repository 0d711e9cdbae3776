//! openat2(2) below a directory, retried while the kernel answers EAGAIN.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::path::Arg;

/// Resolving `..` below a root is not safe while anything on the host is renamed or mounted, and
/// the kernel then answers EAGAIN, even for unrelated paths. The first retries are immediate,
/// further ones follow after a pause, for up to 2 s.
const AT_ONCE: u32 = 16;
const LATER: u32 = 1_000;
const PAUSE: Duration = Duration::from_millis(2);

/// Opens `path` from `dir` as `resolve` allows.
///
/// # Errors
///
/// The error of openat2(2); EAGAIN only after two seconds of retries.
pub(super) fn open_within<P: Arg + Copy>(
    dir: impl AsFd,
    path: P,
    flags: OFlags,
    resolve: ResolveFlags,
) -> Result<OwnedFd, Errno> {
    let dir = dir.as_fd();
    let open = || rustix::fs::openat2(dir, path, flags, Mode::empty(), resolve);
    until_settled(open, |tries| {
        if tries > AT_ONCE {
            std::thread::sleep(PAUSE);
        }
    })
}

/// Retries while the result is EAGAIN, up to the limit.
fn until_settled<T>(
    mut ask: impl FnMut() -> Result<T, Errno>,
    mut pause: impl FnMut(u32),
) -> Result<T, Errno> {
    for tries in 1..AT_ONCE + LATER {
        match ask() {
            Err(Errno::AGAIN) => pause(tries),
            answer => return answer,
        }
    }
    ask()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use rustix::fs::CWD;

    use super::*;

    #[test]
    fn it_is_asked_again_and_not_for_ever() {
        let mut left = 700;
        let answer = until_settled(
            || {
                left -= 1;
                if left == 0 {
                    Ok("open")
                } else {
                    Err(Errno::AGAIN)
                }
            },
            |_| (),
        );
        assert_eq!(answer, Ok("open"));

        let mut calls = 0;
        let answer = until_settled(
            || {
                calls += 1;
                Err::<(), _>(Errno::AGAIN)
            },
            |_| (),
        );
        assert_eq!((answer, calls), (Err(Errno::AGAIN), AT_ONCE + LATER));
        assert_eq!(
            until_settled(|| Err::<(), _>(Errno::NOENT), |_| ()),
            Err(Errno::NOENT)
        );
    }

    /// Without a second question some of these fail, beside somebody who renames.
    #[test]
    fn ways_up_are_followed_while_others_rename() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("root/a/b")).unwrap();
        std::fs::write(dir.path().join("root/here"), "").unwrap();
        let root = rustix::fs::open(
            dir.path().join("root"),
            OFlags::PATH | OFlags::CLOEXEC,
            Mode::empty(),
        )
        .unwrap();
        let (one, other) = (dir.path().join("one"), dir.path().join("other"));
        std::fs::create_dir(&one).unwrap();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    std::fs::rename(&one, &other).unwrap();
                    std::fs::rename(&other, &one).unwrap();
                }
            });
            let mut unsettled = 0;
            for _ in 0..20_000 {
                let flags = OFlags::PATH | OFlags::CLOEXEC;
                let path = "a/b/../../here";
                let once =
                    rustix::fs::openat2(&root, path, flags, Mode::empty(), ResolveFlags::BENEATH);
                unsettled += u32::from(once.is_err());
                open_within(&root, path, flags, ResolveFlags::BENEATH).unwrap();
                if unsettled > 20 {
                    break;
                }
            }
            over.store(true, Ordering::Relaxed);
        });
        assert!(
            open_within(
                CWD,
                "/proc/self/nothing",
                OFlags::PATH,
                ResolveFlags::empty()
            )
            .is_err()
        );
    }
}
