//! Reads or writes one text file for the agent's client, as the agent's user and inside its
//! sandbox.
//!
//! One process for one file, because an agent chose what is at that path: it may hang, or be
//! replaced at any moment. Everything is opened below one directory with
//! openat2(RESOLVE_BENEATH|NO_SYMLINKS|NO_MAGICLINKS|NO_XDEV): exactly the path that the policy
//! evaluated, or nothing. Only regular files with one name are used. Must not know the policy.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use rustix::process::DumpableBehavior;
use sha2::{Digest as _, Sha256};

use super::atomic_file::{AtomicFile, OnExisting};
use super::open::open_within;
use super::{control, privilege, sandbox_entry};
use marshal_model::limits::{
    CLIENT_FILE_BYTES, CLIENT_FILE_TIMEOUT, CLIENT_SCAN_BYTES, STORE_MEASURED_BYTES,
};
use marshal_wire::files::{
    FileFailure, FileFailureKind, FileOperation, FilePrecondition, FileReport,
};

/// Mode of a new file.
const FRESH_MODE: u32 = 0o644;
/// The set-user-id and set-group-id bits.
const SET_ID: u32 = 0o6000;
/// Read size for a digest, in bytes.
const CHUNK_BYTES: usize = 64 << 10;

/// The result of a step.
type FileResult<T> = Result<T, FileFailure>;

/// Runs as the file helper. Its stdin is the socket for its request, its stdout the pipe for its
/// report.
pub(super) fn main() -> ExitCode {
    // Agents may have the same uid: they must not trace this process or open its descriptors.
    if privilege::set_dumpable(DumpableBehavior::NotDumpable).is_err()
        || privilege::close_inherited().is_err()
    {
        return ExitCode::FAILURE;
    }
    // A file that blocks forever must not delay this process longer than its client waits.
    std::thread::spawn(|| {
        std::thread::sleep(CLIENT_FILE_TIMEOUT);
        if let Some((dir, name)) = &*unplaced_file() {
            let _ = rustix::fs::unlinkat(dir, name, AtFlags::empty());
        }
        std::process::exit(1);
    });
    let lines =
        control::from_stdin().and_then(|socket| Ok((socket, control::reports_from_stdout()?)));
    let served = lines.and_then(|(socket, reports)| serve(&socket, &reports));
    served.map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS)
}

fn serve(socket: &UnixStream, mut reports: &File) -> io::Result<()> {
    let (order, _): (FileOperation, _) = control::receive(socket)?;
    let done = match order {
        FileOperation::Read {
            root,
            path,
            line,
            limit,
        } => open_root(&root)
            .and_then(|root| read(root, &path, line, limit))
            .map(Some),
        FileOperation::Write {
            root,
            path,
            bytes,
            expect,
        } => {
            let text = sandbox_entry::read_exact_text(socket, bytes)?;
            let of = (&path[..], &expect);
            open_root(&root)
                .and_then(|root| write(root, of, &text, || is_still_wanted(socket)))
                .map(|()| None)
        }
    };
    match done {
        Ok(Some(text)) => {
            let bytes = text.len() as u64;
            control::send_report(reports, &FileReport::Text { bytes })?;
            reports.write_all(text.as_bytes())
        }
        Ok(None) => control::send_report(reports, &FileReport::Written),
        Err(failure) => control::send_report(reports, &FileReport::Failed(failure)),
    }
}

/// Whether the supervisor still waits: after its request the socket only becomes readable when it
/// closes. A process that was stopped for long must not write what nobody expects any more.
fn is_still_wanted(socket: &UnixStream) -> bool {
    let mut socket = [PollFd::new(socket, PollFlags::IN)];
    matches!(poll(&mut socket, Some(&Timespec::default())), Ok(0))
}

fn refusal(what: impl Into<String>) -> FileFailure {
    FileFailure {
        kind: FileFailureKind::Refused,
        what: what.into(),
    }
}

/// A failure of a system call during an operation.
fn errno_failure(doing: &str, errno: Errno) -> FileFailure {
    match errno {
        Errno::NOENT => FileFailure {
            kind: FileFailureKind::NotFound,
            what: doing.to_owned(),
        },
        // Errors that the flags of openat2 produce.
        Errno::LOOP => {
            refusal("its path now contains a symbolic link, which the policy did not evaluate")
        }
        Errno::XDEV => refusal("it is on another file system than the workspace"),
        Errno::NOTDIR => refusal("a parent in its path is not a directory"),
        Errno::ISDIR => refusal("it is a directory"),
        Errno::NXIO | Errno::NODEV => refusal("it is not a regular file"),
        errno => FileFailure {
            kind: FileFailureKind::System,
            what: format!("{doing}: {}", io::Error::from(errno)),
        },
    }
}

fn io_failure(doing: &str, error: &io::Error) -> FileFailure {
    match Errno::from_io_error(error) {
        Some(errno) => errno_failure(doing, errno),
        None => FileFailure {
            kind: FileFailureKind::System,
            what: format!("{doing}: {error}"),
        },
    }
}

/// Opens the root directory that no path may leave.
fn open_root(root: &str) -> FileResult<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    open_within(CWD, root, flags, resolve)
        .map_err(|errno| errno_failure("the workspace cannot be opened", errno))
}

/// Opens a path below a directory, through no link and no mount.
fn open_below(dir: impl AsFd, path: &str, flags: OFlags, doing: &str) -> FileResult<OwnedFd> {
    let resolve = ResolveFlags::BENEATH
        | ResolveFlags::NO_SYMLINKS
        | ResolveFlags::NO_MAGICLINKS
        | ResolveFlags::NO_XDEV;
    let mut flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    if !flags.contains(OFlags::PATH) {
        flags |= OFlags::NONBLOCK | OFlags::NOCTTY;
    }
    open_within(&dir, path, flags, resolve).map_err(|errno| errno_failure(doing, errno))
}

fn examine(fd: impl AsFd) -> FileResult<Stat> {
    rustix::fs::fstat(fd).map_err(|errno| errno_failure("it cannot be examined", errno))
}

/// Accepts only a regular file with one name: the policy may forbid another of its names.
fn check_regular(stat: &Stat) -> FileResult<()> {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile if stat.st_nlink > 1 => Err(refusal(
            "it has several names (hard links), and the policy evaluated only one of them",
        )),
        FileType::RegularFile => Ok(()),
        FileType::Directory => Err(refusal("it is a directory")),
        FileType::Symlink => Err(refusal("it is a symbolic link")),
        _ => Err(refusal(
            "it is not a regular file, but a device, a pipe or a socket",
        )),
    }
}

/// Reads lines of a file as text.
fn read(root: impl AsFd, path: &str, line: u64, limit: Option<u64>) -> FileResult<String> {
    // O_PATH first, without opening: opening a pipe could wake its writer, and a device could
    // react.
    let handle = open_below(&root, path, OFlags::PATH, "there is no such file")?;
    check_regular(&examine(&handle)?)?;
    let file = open_below(&root, path, OFlags::RDONLY, "it cannot be opened")?;
    let stat = examine(&file)?;
    check_regular(&stat)?;
    let bytes = lines(File::from(file), line, limit)?;
    String::from_utf8(bytes).map_err(|_| refusal("it is not UTF-8 text"))
}

/// Reads the lines from `line` on, at most `limit`.
fn lines(file: File, line: u64, limit: Option<u64>) -> FileResult<Vec<u8>> {
    let cannot = |error: io::Error| io_failure("it cannot be read", &error);
    let most = CLIENT_FILE_BYTES as u64;
    let mut from = BufReader::new(file.take(CLIENT_SCAN_BYTES));
    let mut text = Vec::new();
    for _ in 1..line {
        if !skip_line(&mut from).map_err(cannot)? {
            break;
        }
    }
    let mut left = limit;
    while left != Some(0) {
        let remaining = most + 1 - text.len() as u64;
        let mut bounded = from.by_ref().take(remaining);
        if bounded.read_until(b'\n', &mut text).map_err(cannot)? == 0 {
            break;
        }
        if text.len() as u64 > most {
            return Err(refusal(format!(
                "the requested lines are longer than {most} bytes: request fewer lines"
            )));
        }
        left = left.map(|left| left - 1);
    }
    // The size limit may also have cut the last requested line.
    let is_cut = left != Some(0) || !text.ends_with(b"\n");
    if is_cut && from.into_inner().limit() == 0 {
        return Err(refusal(format!(
            "the requested lines are not within its first {CLIENT_SCAN_BYTES} bytes"
        )));
    }
    Ok(text)
}

/// Skips one line; `false` at the end of the file.
fn skip_line(from: &mut impl BufRead) -> io::Result<bool> {
    loop {
        let chunk = from.fill_buf()?;
        if chunk.is_empty() {
            return Ok(false);
        }
        if let Some(at) = memchr::memchr(b'\n', chunk) {
            from.consume(at + 1);
            return Ok(true);
        }
        let all = chunk.len();
        from.consume(all);
    }
}

/// Replaces a file, or creates one in an existing directory. The content goes to a temporary file,
/// which atomically replaces the target if the write is still `wanted`; all of it is on disk before
/// this returns. The precondition is checked as the last step before.
fn write(
    root: impl AsFd,
    (path, expect): (&str, &FilePrecondition),
    text: &[u8],
    wanted: impl FnOnce() -> bool,
) -> FileResult<()> {
    let (parent, name) = path.rsplit_once('/').unwrap_or((".", path));
    if name.is_empty() || matches!(name, "." | "..") {
        return Err(refusal("it is a directory"));
    }
    let read_dir = OFlags::RDONLY | OFlags::DIRECTORY;
    let missing = "there is no such directory";
    let dir = open_below(&root, parent, read_dir, missing)?;
    let on_existing = match expect {
        FilePrecondition::Missing => OnExisting::Fail,
        FilePrecondition::Anything | FilePrecondition::Holds(_) => OnExisting::Replace,
    };
    let mode = replacement_mode(&dir, name)?;
    let fresh = AtomicFile::create(&dir, on_existing).map_err(|errno| match errno {
        Errno::EXIST => refusal("no unused temporary name was found in its directory"),
        errno => errno_failure("no file can be created in its directory", errno),
    })?;
    if let Some(name) = fresh.temp_name() {
        *unplaced_file() = dir.try_clone().ok().map(|dir| (dir, name.to_owned()));
    }
    let filled = fill(fresh.file(), text, mode).and_then(|()| {
        if wanted() {
            Ok(())
        } else {
            Err(refusal("the client stopped waiting for the write"))
        }
    });
    let same = filled.and_then(|()| match expect {
        FilePrecondition::Holds(digest) => check_unchanged(&dir, name, digest),
        // [`AtomicFile::persist`] itself fails if the file exists.
        FilePrecondition::Anything | FilePrecondition::Missing => Ok(()),
    });
    let written = same.and_then(|()| {
        fresh.persist(name).map_err(|errno| match errno {
            Errno::EXIST => changed_failure(),
            errno => errno_failure("the new file cannot replace it", errno),
        })
    });
    if written.is_err() {
        fresh.discard();
    }
    *unplaced_file() = None;
    written?;
    let synced = rustix::fs::fsync(&dir);
    synced.map_err(|errno| unsure_failure(&errno_failure("the directory cannot be synced", errno)))
}

fn fill(mut file: &File, text: &[u8], mode: Mode) -> FileResult<()> {
    let cannot = |error: &io::Error| io_failure("it cannot be written", error);
    file.write_all(text).map_err(|error| cannot(&error))?;
    rustix::fs::fchmod(file, mode)
        .map_err(|errno| errno_failure("its mode cannot be set", errno))?;
    file.sync_all().map_err(|error| cannot(&error))
}

fn changed_failure() -> FileFailure {
    FileFailure {
        kind: FileFailureKind::Changed,
        what: "another process changed it during the write".to_owned(),
    }
}

/// Whether a file still has the expected digest; it need not be text.
fn check_unchanged(dir: &OwnedFd, name: &str, digest: &str) -> FileResult<()> {
    let file = match open_below(dir, name, OFlags::RDONLY, "it cannot be opened") {
        Err(failure) if failure.kind == FileFailureKind::NotFound => return Err(changed_failure()),
        file => file?,
    };
    check_regular(&examine(&file)?)?;
    let mut file = File::from(file).take(STORE_MEASURED_BYTES + 1);
    let mut sum = Sha256::new();
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        match file.read(&mut chunk) {
            Ok(0) => break,
            Ok(length) => sum.update(&chunk[..length]),
            Err(error) => return Err(io_failure("it cannot be read", &error)),
        }
    }
    if hex::encode(sum.finalize()) == digest {
        Ok(())
    } else {
        Err(changed_failure())
    }
}

/// The write happened, but may not survive a crash.
fn unsure_failure(failure: &FileFailure) -> FileFailure {
    FileFailure {
        kind: FileFailureKind::Unsure,
        what: format!(
            "it was written, but may be lost if the machine fails: {}",
            failure.what
        ),
    }
}

/// The temporary file of this process, so that whoever ends the process can remove it.
fn unplaced_file() -> MutexGuard<'static, Option<(OwnedFd, String)>> {
    static FRESH: Mutex<Option<(OwnedFd, String)>> = Mutex::new(None);
    FRESH.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The mode that the file keeps; an error if it must not be replaced.
fn replacement_mode(dir: &OwnedFd, name: &str) -> FileResult<Mode> {
    let stat = match open_below(dir, name, OFlags::PATH, "") {
        Ok(handle) => examine(handle)?,
        Err(failure) if failure.kind == FileFailureKind::NotFound => {
            return Ok(Mode::from_raw_mode(FRESH_MODE));
        }
        Err(failure) => return Err(failure),
    };
    check_regular(&stat)?;
    if stat.st_mode & SET_ID != 0 {
        return Err(refusal("it is set-user-id or set-group-id"));
    }
    if stat.st_uid != rustix::process::geteuid().as_raw() {
        return Err(refusal("it belongs to another user"));
    }
    if stat.st_mode & 0o200 == 0 {
        return Err(refusal("its owner has no write permission"));
    }
    Ok(Mode::from_raw_mode(stat.st_mode & 0o777))
}

#[cfg(test)]
#[path = "files/tests.rs"]
mod tests;
