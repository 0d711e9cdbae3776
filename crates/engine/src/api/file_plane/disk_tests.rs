//! A real directory, and everything that others can put into it.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};

use super::*;
use marshal_config::Approver;

fn plane(dir: &Path) -> FilePlane {
    FilePlane {
        dir: dir.to_owned(),
        answers: false,
        answers_as: Approver::Owner,
        owner: None,
        max_open: 1,
        poll: Duration::from_secs(1),
    }
}

fn opened() -> (tempfile::TempDir, Disk) {
    let above = tempfile::tempdir().expect("a directory");
    let disk = Disk::open(&plane(&above.path().join("plane"))).expect("opened");
    (above, disk)
}

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("mode");
}

#[test]
fn what_is_missing_is_made_and_nobody_else_may_look() {
    let (above, disk) = opened();
    for name in [
        "",
        "queue",
        "inflight",
        "result",
        "output",
        "log",
        "ctl",
        "state",
        "approvals",
        "answers",
        "rejected",
    ] {
        let of = fs::metadata(above.path().join("plane").join(name)).expect(name);
        assert!(of.is_dir(), "{name}");
        assert_eq!(of.mode() & 0o777, 0o700, "{name}");
    }
    let print = disk.put(Area::Result, "a", b"1").expect("written");
    let path = above.path().join("plane/result/a");
    assert_eq!(fs::metadata(&path).expect("there").mode() & 0o137, 0);
    assert!(disk.add(Area::Result, "a", &print, b"2").expect("added"));
    assert_eq!(fs::read(&path).expect("read"), b"12");
    // Another file of the same name is not added to.
    fs::rename(&path, above.path().join("old")).expect("moved");
    fs::write(&path, "x").expect("written");
    assert!(!disk.add(Area::Result, "a", &print, b"3").expect("seen"));
    assert_eq!(fs::read(&path).expect("read"), b"x");
}

#[test]
fn a_directory_that_others_can_write_is_refused() {
    let above = tempfile::tempdir().expect("a directory");
    let dir = above.path().join("plane");
    fs::create_dir(&dir).expect("made");
    for open in [0o777, 0o770, 0o702, 0o701, 0o755, 0o720] {
        mode(&dir, open);
        let error = Disk::open(&plane(&dir))
            .expect_err("open to others")
            .to_string();
        assert!(
            error.contains("is accessible to other users") && error.contains("0700"),
            "{error}"
        );
    }
    mode(&dir, 0o750);
    drop(Disk::open(&plane(&dir)).expect("a group may look"));
    mode(&dir.join("queue"), 0o770);
    let error = Disk::open(&plane(&dir))
        .expect_err("open to others")
        .to_string();
    assert!(
        error.contains("queue is accessible to other users"),
        "{error}"
    );
    mode(&dir.join("queue"), 0o700);
    let mut other = plane(&dir);
    other.owner = Some(rustix::process::geteuid().as_raw() + 7);
    let error = Disk::open(&other).expect_err("another owner").to_string();
    assert!(error.contains("must belong to user"), "{error}");
}

#[test]
fn links_and_files_are_no_directories() {
    let above = tempfile::tempdir().expect("a directory");
    let (dir, link, file) = (
        above.path().join("plane"),
        above.path().join("link"),
        above.path().join("file"),
    );
    Disk::open(&plane(&dir))
        .expect("opened")
        .remove_temp_files();
    symlink(&dir, &link).expect("linked");
    fs::write(&file, "").expect("written");
    for path in [&link, &file] {
        let error = Disk::open(&plane(path))
            .expect_err("no directory")
            .to_string();
        assert!(error.contains("is not a directory"), "{error}");
    }
    fs::remove_dir(dir.join("approvals")).expect("removed");
    symlink(above.path(), dir.join("approvals")).expect("linked");
    let error = Disk::open(&plane(&dir)).expect_err("a link").to_string();
    assert!(error.contains("approvals is not a directory"), "{error}");
    let gone = Disk::open(&plane(&above.path().join("no/plane"))).expect_err("nowhere");
    assert!(gone.to_string().contains("cannot be made"), "{gone}");
}

#[test]
fn only_regular_files_are_read_and_nothing_blocks() {
    let (above, disk) = opened();
    let queue = above.path().join("plane/queue");
    let secret = above.path().join("secret");
    fs::write(&secret, "secret").expect("written");
    symlink(&secret, queue.join("link")).expect("linked");
    symlink("/dev/zero", queue.join("zero")).expect("linked");
    fs::create_dir(queue.join("dir")).expect("made");
    let pipe = rustix::fs::mknodat(CWD, queue.join("pipe"), FileType::Fifo, Mode::RWXU, 0);
    pipe.expect("a pipe");
    let _socket = std::os::unix::net::UnixListener::bind(queue.join("socket")).expect("a socket");
    fs::write(queue.join("big"), [0; 11]).expect("written");
    fs::hard_link(&secret, queue.join("second")).expect("linked");
    for (name, why) in [
        ("link", "symbolic link"),
        ("zero", "symbolic link"),
        ("dir", "directory"),
        ("pipe", "pipe"),
        ("socket", "not a regular file"),
        ("big", "too large"),
    ] {
        match disk.read(Area::Queue, name, 10).expect(name) {
            PlaneEntry::Irregular(told) => assert!(told.contains(why), "{name}: {told}"),
            other => panic!("{name}: {other:?}"),
        }
        // Each of them can be put aside as it is.
        disk.quarantine(Area::Queue, name, "it is \u{1b}[31modd")
            .expect(name);
        let rejected = above.path().join("plane/rejected");
        assert!(rejected.join(name).symlink_metadata().is_ok(), "{name}");
        let reason = fs::read_to_string(rejected.join(format!("{name}.reason"))).expect(name);
        assert!(
            !reason.contains('\u{1b}') && reason.contains("odd"),
            "{reason:?}"
        );
    }
    assert_eq!(fs::read_to_string(&secret).expect("still there"), "secret");
    match disk.read(Area::Queue, "second", 10).expect("read") {
        PlaneEntry::Regular((_, print)) => assert!(!print.has_one_name()),
        other => panic!("{other:?}"),
    }
    assert!(matches!(
        disk.read(Area::Queue, "none", 10),
        Ok(PlaneEntry::Missing)
    ));
    for name in ["../secret", "/etc/passwd"] {
        // No name with a slash comes from a directory; one that did would lead out of it.
        assert_eq!(super::super::schema::RequestName::parse(name), None);
    }
}

#[test]
fn what_stands_in_the_way_is_put_aside() {
    let (above, disk) = opened();
    let dir = above.path().join("plane");
    fs::create_dir_all(dir.join("result/a.json/b")).expect("made");
    disk.put(Area::Result, "a.json", b"{}").expect("written");
    assert_eq!(fs::read(dir.join("result/a.json")).expect("read"), b"{}");
    assert!(dir.join("rejected/a.json/b").is_dir());
    // A link to somewhere else is replaced, not followed.
    let secret = above.path().join("secret");
    fs::write(&secret, "secret").expect("written");
    symlink(&secret, dir.join("result/b.json")).expect("linked");
    disk.put(Area::Result, "b.json", b"{}").expect("written");
    for name in ["meta.log", "meta.log.1"] {
        symlink(&secret, dir.join("log").join(name)).expect("linked");
    }
    disk.log("line\n").expect("written");
    fs::remove_file(dir.join("log/meta.log")).expect("removed");
    fs::hard_link(&secret, dir.join("log/meta.log")).expect("linked");
    disk.log("line\n").expect("written");
    assert_eq!(fs::read_to_string(&secret).expect("read"), "secret");
    assert_eq!(
        fs::read_to_string(dir.join("log/meta.log")).expect("read"),
        "line\n"
    );
    // The same name twice, and a name that is taken already.
    for text in ["one", "two"] {
        fs::write(dir.join("queue/x.txt"), text).expect("written");
        disk.quarantine(Area::Queue, "x.txt", "no")
            .expect("put aside");
    }
    let kept = fs::read_dir(dir.join("rejected"))
        .expect("listed")
        .flatten()
        .filter(|of| of.file_name().to_string_lossy().starts_with("x.txt"));
    assert_eq!(kept.count(), 4, "two files and two reasons");
    disk.quarantine(Area::Queue, "gone.txt", "no")
        .expect("nothing to do");
}

#[test]
fn a_directory_that_was_removed_is_made_again() {
    let (above, mut disk) = opened();
    let dir = above.path().join("plane");
    assert!(!disk.reopen_if_replaced().expect("well"));
    fs::remove_dir(dir.join("queue")).expect("removed");
    assert!(disk.reopen_if_replaced().expect("made again"));
    fs::write(dir.join("queue/a.txt"), "x").expect("written");
    assert!(matches!(
        disk.read(Area::Queue, "a.txt", 10),
        Ok(PlaneEntry::Regular(..))
    ));
    fs::rename(dir.join("queue"), dir.join("old")).expect("moved");
    symlink(dir.join("old"), dir.join("queue")).expect("linked");
    let error = disk.reopen_if_replaced().expect_err("a link").to_string();
    assert!(error.contains("queue is not a directory"), "{error}");
    fs::remove_file(dir.join("queue")).expect("removed");
    assert!(disk.reopen_if_replaced().expect("made again"));
    mode(&dir, 0o777);
    let error = disk.reopen_if_replaced().expect_err("open").to_string();
    assert!(error.contains("is accessible to other users"), "{error}");
}

#[test]
fn a_claim_is_had_by_one_alone() {
    let (above, disk) = opened();
    let dir = above.path().join("plane");
    fs::write(dir.join("queue/a.txt"), "new").expect("written");
    fs::write(dir.join("inflight/a.txt"), "old").expect("written");
    assert!(
        !disk
            .move_between(Area::Queue, Area::Inflight, "a.txt")
            .expect("seen")
    );
    assert_eq!(
        fs::read_to_string(dir.join("inflight/a.txt")).expect("read"),
        "old"
    );
    fs::remove_file(dir.join("inflight/a.txt")).expect("removed");
    assert!(
        disk.move_between(Area::Queue, Area::Inflight, "a.txt")
            .expect("moved")
    );
    assert!(
        !disk
            .move_between(Area::Queue, Area::Inflight, "a.txt")
            .expect("gone")
    );
}

#[test]
fn what_a_kill_left_half_written_is_removed() {
    let (above, disk) = opened();
    let dir = above.path().join("plane");
    let half = dir.join("result/.marshal-0123");
    fs::write(&half, "half").expect("written");
    fs::write(dir.join("queue/.a.txt.Xq12ab"), "rsync's").expect("written");
    drop(disk);
    let disk = Disk::open(&plane(&dir)).expect("opened");
    assert!(
        half.exists(),
        "it may be another supervisor's until the plane is held"
    );
    disk.remove_temp_files();
    assert!(!half.exists());
    assert!(
        dir.join("queue/.a.txt.Xq12ab").exists(),
        "another's is not touched"
    );
}

#[test]
fn a_directory_where_a_file_is_removed_is_put_aside() {
    let (above, disk) = opened();
    let dir = above.path().join("plane");
    fs::create_dir_all(dir.join("inflight/a.run/b")).expect("made");
    disk.remove(Area::Inflight, "a.run").expect("put aside");
    assert!(!dir.join("inflight/a.run").exists());
    assert!(dir.join("rejected/a.run/b").is_dir());
    assert!(dir.join("rejected/a.run.reason").is_file());
    disk.remove(Area::Inflight, "a.run").expect("nothing to do");
}

#[test]
fn the_log_begins_anew_when_it_is_long() {
    let (above, disk) = opened();
    let log = above.path().join("plane/log/meta.log");
    disk.log("first\n").expect("written");
    let file = fs::OpenOptions::new()
        .write(true)
        .open(&log)
        .expect("opened");
    file.set_len(FILE_PLANE_LOG_BYTES + 1).expect("long");
    disk.log("second\n").expect("written");
    assert_eq!(fs::read_to_string(&log).expect("read"), "second\n");
    assert!(above.path().join("plane/log/meta.log.1").exists());
}

#[test]
fn a_scan_holds_the_first_ones_and_odd_names_are_skipped() {
    let (above, disk) = opened();
    let queue = above.path().join("plane/queue");
    for name in 0..50 {
        fs::write(queue.join(format!("{name}.txt")), "x").expect("written");
        fs::write(queue.join(format!(".{name}.txt")), "x").expect("written");
    }
    let read = |name: &str| (!name.starts_with('.')).then(|| name.to_owned());
    let (names, is_more) = disk.list(Area::Queue, read).expect("listed");
    assert_eq!((names.len(), is_more), (50, false));
    // Of more than are held, it is the first ones in their order, however many others stand there.
    let number = |name: &str| name.strip_suffix(".txt")?.parse::<u32>().ok();
    for most in [1, 7, 49] {
        let (names, is_more) = disk.first(Area::Queue, most, number).expect("listed");
        let first: Vec<u32> = (0..50).take(most).collect();
        assert_eq!((names, is_more), (first, true));
    }
    let (names, is_more) = disk.first(Area::Queue, 50, number).expect("listed");
    assert_eq!((names, is_more), ((0..50).collect(), false));
}
