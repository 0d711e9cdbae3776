//! Real files: what is read and written, and everything that is neither.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{FileType as Kind, mknodat};

use super::*;

/// A workspace, and a directory beside it that nothing may reach.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        fs::create_dir_all(place.at("ws/src")).unwrap();
        fs::create_dir(place.at("beside")).unwrap();
        fs::write(place.at("beside/secret"), "secret").unwrap();
        fs::write(place.at("ws/notes.txt"), "one\ntwo\nthree\n").unwrap();
        place
    }

    fn at(&self, name: &str) -> std::path::PathBuf {
        self.0.path().join(name)
    }

    fn root(&self) -> OwnedFd {
        open_root(self.at("ws").to_str().unwrap()).unwrap()
    }

    fn read(&self, path: &str) -> FileResult<String> {
        read(self.root(), path, 1, None)
    }

    fn write(&self, path: &str, text: &str) -> FileResult<()> {
        let of = (path, &FilePrecondition::Anything);
        write(self.root(), of, text.as_bytes(), || true)
    }

    /// The names in the workspace's top directory.
    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.at("ws")).unwrap();
        let mut names: Vec<_> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[track_caller]
fn refused<T: std::fmt::Debug>(step: FileResult<T>, part: &str) {
    let failure = step.unwrap_err();
    assert_eq!(failure.kind, FileFailureKind::Refused, "{failure:?}");
    assert!(failure.what.contains(part), "{failure:?}");
}

#[track_caller]
fn missing<T: std::fmt::Debug>(step: FileResult<T>) {
    assert_eq!(step.unwrap_err().kind, FileFailureKind::NotFound);
}

#[test]
fn lines_are_counted_from_one() {
    let place = Place::new();
    let check = |line, limit, expect: &str| {
        assert_eq!(
            read(place.root(), "notes.txt", line, limit).unwrap(),
            expect
        );
    };
    check(1, None, "one\ntwo\nthree\n");
    check(2, None, "two\nthree\n");
    check(2, Some(1), "two\n");
    check(3, Some(9), "three\n");
    check(4, None, "");
    check(u64::MAX, Some(u64::MAX), "");
    check(1, Some(0), "");
    fs::write(place.at("ws/notes.txt"), "no end").unwrap();
    check(1, Some(1), "no end");
    check(2, Some(1), "");
}

#[test]
fn a_long_file_is_refused_and_a_part_of_it_is_not() {
    let place = Place::new();
    let long = "x".repeat(CLIENT_FILE_BYTES);
    fs::write(place.at("ws/long"), &long).unwrap();
    assert_eq!(place.read("long").unwrap().len(), CLIENT_FILE_BYTES);
    fs::write(place.at("ws/long"), format!("a\n{long}\nb\n")).unwrap();
    refused(place.read("long"), "longer than");
    refused(read(place.root(), "long", 2, Some(1)), "longer than");
    assert_eq!(read(place.root(), "long", 1, Some(1)).unwrap(), "a\n");
    assert_eq!(read(place.root(), "long", 3, None).unwrap(), "b\n");
    // One that would take for ever: a hole of a terabyte.
    let hole = fs::File::create(place.at("ws/hole")).unwrap();
    hole.set_len(1 << 40).unwrap();
    let began = std::time::Instant::now();
    refused(read(place.root(), "hole", 2, Some(1)), "within its first");
    assert!(began.elapsed() < CLIENT_FILE_TIMEOUT);
}

#[test]
fn a_line_that_the_bound_cuts_is_not_given_as_a_whole_one() {
    use std::os::unix::fs::FileExt as _;
    let place = Place::new();
    let file = fs::File::create(place.at("ws/log")).unwrap();
    let line = format!("{}\n", "x".repeat(200));
    let at = CLIENT_SCAN_BYTES - 100;
    file.write_all_at(b"\n", at - 1).unwrap();
    file.write_all_at(line.as_bytes(), at).unwrap();
    refused(read(place.root(), "log", 2, Some(1)), "within its first");
    refused(read(place.root(), "log", 2, None), "within its first");
    // One that ends exactly there is whole.
    file.write_all_at(b"\n", CLIENT_SCAN_BYTES - 1).unwrap();
    let got = read(place.root(), "log", 2, Some(1)).unwrap();
    assert_eq!(got.len(), 100);
}

#[test]
fn what_is_no_text_is_refused() {
    let place = Place::new();
    fs::write(place.at("ws/picture"), b"\x89PNG\xff").unwrap();
    refused(place.read("picture"), "UTF-8");
}

#[test]
fn a_file_is_replaced_at_once_and_keeps_its_mode() {
    let place = Place::new();
    let notes = place.at("ws/notes.txt");
    set_mode(&notes, 0o750);
    let open = fs::File::open(&notes).unwrap();
    place.write("notes.txt", "new").unwrap();
    assert_eq!(fs::read_to_string(&notes).unwrap(), "new");
    assert_eq!(mode(&notes), 0o750);
    // Whoever had it open still reads the old one, whole.
    let old = io::read_to_string(open).unwrap();
    assert_eq!(old, "one\ntwo\nthree\n");
    place.write("src/made.rs", "").unwrap();
    assert_eq!(mode(&place.at("ws/src/made.rs")), FRESH_MODE);
    assert_eq!(place.names(), ["notes.txt", "src"]);
}

#[test]
fn a_file_that_was_changed_meanwhile_is_not_replaced() {
    let place = Place::new();
    place.write("notes.txt", "read\n").unwrap();
    let write = |held: &[u8], text: &str| {
        let digest = FilePrecondition::Holds(hex::encode(Sha256::digest(held)));
        write(
            place.root(),
            ("notes.txt", &digest),
            text.as_bytes(),
            || true,
        )
    };
    write(b"read\n", "changed\n").unwrap();
    let failure = write(b"read\n", "lost\n").unwrap_err();
    assert_eq!(failure.kind, FileFailureKind::Changed);
    assert!(failure.what.contains("another process changed it"));
    assert_eq!(place.read("notes.txt").unwrap(), "changed\n");
    // What is no text, or longer than an agent reads, is held against its digest, too.
    let long = [b"\xff".as_slice(), &vec![0; CLIENT_FILE_BYTES]].concat();
    fs::write(place.at("ws/notes.txt"), &long).unwrap();
    let failure = write(b"changed\n", "lost\n").unwrap_err();
    assert_eq!(failure.kind, FileFailureKind::Changed);
    assert_eq!(fs::read(place.at("ws/notes.txt")).unwrap(), long);
    write(&long, "short\n").unwrap();
    fs::remove_file(place.at("ws/notes.txt")).unwrap();
    let failure = write(b"short\n", "lost\n").unwrap_err();
    assert_eq!(failure.kind, FileFailureKind::Changed);
    assert_eq!(place.names(), ["src"]);
}

/// Up to the very last moment: somebody makes it while the new text is already on the disk.
#[test]
fn a_file_that_was_made_meanwhile_is_not_replaced() {
    let place = Place::new();
    let write = |theirs: bool| {
        write(
            place.root(),
            ("new.txt", &FilePrecondition::Missing),
            b"ours",
            || {
                if theirs {
                    fs::write(place.at("ws/new.txt"), "theirs").unwrap();
                }
                true
            },
        )
    };
    let failure = write(true).unwrap_err();
    assert_eq!(failure.kind, FileFailureKind::Changed, "{failure:?}");
    assert_eq!(place.read("new.txt").unwrap(), "theirs");
    assert_eq!(place.names(), ["new.txt", "notes.txt", "src"]);
    fs::remove_file(place.at("ws/new.txt")).unwrap();
    write(false).unwrap();
    assert_eq!(place.read("new.txt").unwrap(), "ours");
    assert_eq!(mode(&place.at("ws/new.txt")), FRESH_MODE);
}

#[test]
fn what_nobody_waits_for_any_more_is_not_written() {
    let place = Place::new();
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.shutdown(std::net::Shutdown::Read).unwrap();
    let write = || {
        let of = ("notes.txt", &FilePrecondition::Anything);
        write(place.root(), of, b"late", || is_still_wanted(&theirs))
    };
    write().unwrap();
    place.write("notes.txt", "new").unwrap();
    drop(ours);
    refused(write(), "the client stopped waiting");
    assert_eq!(place.read("notes.txt").unwrap(), "new");
    assert_eq!(place.names(), ["notes.txt", "src"]);
}

#[test]
fn what_is_missing_is_not_found_and_no_directory_is_made() {
    let place = Place::new();
    missing(place.read("nothing"));
    missing(place.read("no/thing"));
    missing(place.write("no/thing", "x"));
    refused(place.read("notes.txt/x"), "not a directory");
    refused(place.write("notes.txt/x", "x"), "not a directory");
    refused(place.read("src"), "directory");
    refused(place.write("src", "x"), "directory");
    assert_eq!(place.names(), ["notes.txt", "src"]);
}

#[test]
fn nothing_leads_out_of_the_workspace() {
    let place = Place::new();
    symlink("../beside", place.at("ws/out")).unwrap();
    symlink("../beside/secret", place.at("ws/link")).unwrap();
    symlink("src", place.at("ws/in")).unwrap();
    symlink("/proc/self/root", place.at("ws/magic")).unwrap();
    symlink("/proc/self/cwd", place.at("ws/src/magic")).unwrap();
    for path in [
        "../beside/secret",
        "src/../../beside/secret",
        "/etc/passwd",
        "out/secret",
        "link",
        "in/x",
        "magic/etc/passwd",
        "src/magic/x",
        "..",
        ".",
    ] {
        for failure in [
            place.read(path).unwrap_err(),
            place.write(path, "x").unwrap_err(),
        ] {
            assert_eq!(
                failure.kind,
                FileFailureKind::Refused,
                "{path}: {failure:?}"
            );
        }
    }
    assert_eq!(
        fs::read_to_string(place.at("beside/secret")).unwrap(),
        "secret"
    );
    assert!(place.read("notes.txt").is_ok() && place.write("src/x", "x").is_ok());
}

#[test]
fn a_file_with_several_names_a_pipe_a_device_and_a_socket_are_refused() {
    let place = Place::new();
    fs::hard_link(place.at("beside/secret"), place.at("ws/alias")).unwrap();
    refused(place.read("alias"), "several names");
    refused(place.write("alias", "x"), "several names");
    assert_eq!(
        fs::read_to_string(place.at("beside/secret")).unwrap(),
        "secret"
    );
    let _listener = std::os::unix::net::UnixListener::bind(place.at("ws/socket")).unwrap();
    let node = |name: &str, kind: Kind, dev| {
        let mode = Mode::from_raw_mode(0o666);
        mknodat(CWD, place.at(name), kind, mode, dev).unwrap();
    };
    node("ws/pipe", Kind::Fifo, 0);
    let mut names = vec!["pipe", "socket"];
    if rustix::process::geteuid().is_root() {
        node("ws/zero", Kind::CharacterDevice, rustix::fs::makedev(1, 5));
        names.push("zero");
    }
    let began = std::time::Instant::now();
    for name in names {
        refused(place.read(name), "not a regular file");
        refused(place.write(name, "x"), "not a regular file");
    }
    // A pipe without a writer holds nobody up.
    assert!(began.elapsed() < CLIENT_FILE_TIMEOUT);
}

#[test]
fn set_id_and_read_only_files_are_not_replaced() {
    let place = Place::new();
    let notes = place.at("ws/notes.txt");
    for (bits, part) in [
        (0o4755, "set-user-id"),
        (0o2755, "set-user-id"),
        (0o444, "no write permission"),
    ] {
        set_mode(&notes, bits);
        refused(place.write("notes.txt", "x"), part);
    }
    set_mode(&notes, 0o644);
    place.write("notes.txt", "x").unwrap();
}

/// Ends the other thread, also when this one fails.
struct SetOnDrop<'a>(&'a AtomicBool);
impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_directory_swapped_for_a_link_between_check_and_use_is_never_followed() {
    let place = Place::new();
    fs::create_dir(place.at("ws/dir")).unwrap();
    fs::write(place.at("ws/dir/secret"), "inside").unwrap();
    symlink("../beside", place.at("ws/trap")).unwrap();
    let is_over = AtomicBool::new(false);
    let (mut done, mut hit) = (0, 0);
    std::thread::scope(|scope| {
        let _over = SetOnDrop(&is_over);
        scope.spawn(|| {
            // Exchanges the two names, over and over.
            let ws = open_root(place.at("ws").to_str().unwrap()).unwrap();
            while !is_over.load(Ordering::Relaxed) {
                let flags = rustix::fs::RenameFlags::EXCHANGE;
                rustix::fs::renameat_with(&ws, "dir", &ws, "trap", flags).unwrap();
            }
        });
        let began = std::time::Instant::now();
        while began.elapsed() < std::time::Duration::from_millis(700) || done == 0 || hit == 0 {
            match place.read("dir/secret") {
                Ok(text) => {
                    assert_eq!(text, "inside");
                    done += 1;
                }
                Err(failure) => {
                    assert_eq!(failure.kind, FileFailureKind::Refused, "{failure:?}");
                    hit += 1;
                }
            }
            if place.write("dir/made", "mine").is_ok() {
                done += 1;
            }
            if began.elapsed() > std::time::Duration::from_secs(30) {
                break;
            }
        }
    });
    assert!(done > 0 && hit > 0, "both were met: {done} {hit}");
    assert_eq!(
        fs::read_to_string(place.at("beside/secret")).unwrap(),
        "secret"
    );
    assert!(!place.at("beside/made").exists());
}

#[test]
fn a_directory_that_cannot_be_written_leaves_the_old_file() {
    use crate::workspace::testing::as_ordinary_user;
    let name = "a_directory_that_cannot_be_written_leaves_the_old_file";
    as_ordinary_user(name, || {
        let place = Place::new();
        set_mode(&place.at("ws"), 0o555);
        let failure = place.write("notes.txt", "x").unwrap_err();
        assert_eq!(failure.kind, FileFailureKind::System);
        set_mode(&place.at("ws"), 0o755);
        assert_eq!(place.read("notes.txt").unwrap(), "one\ntwo\nthree\n");
    });
}
