//! Copies of honest and of hostile workspaces.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use super::super::testing::{Scratch, as_ordinary_user, deep_tree, is_root, scratch};
use super::super::tree::{Kind, WalkBounds, WalkStep, walk};
use super::copier::SMALL_BYTES;
use super::*;

struct Place {
    dir: Scratch,
    state: StateDir,
}

impl Place {
    fn new() -> Self {
        let dir = scratch();
        std::fs::create_dir(dir.path().join("ws")).unwrap();
        let state = StateDir::open(&dir.path().join("state"), &[]).unwrap();
        Self { dir, state }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join("ws").join(name)
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.at(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn make(
        &self,
        name: &str,
        listing: &Listing,
        bounds: CopyBounds,
    ) -> Result<CopyReport, CopyError> {
        let owner = is_root().then_some(OWNER);
        let source = Root::open(&self.at("")).unwrap();
        let session = SessionId::new(name).unwrap();
        create(
            &self.state,
            &session,
            (&source, listing),
            &[],
            owner,
            bounds,
        )
    }

    fn everything(&self, name: &str) -> CopyReport {
        self.make(
            name,
            &Listing::Except(Arc::default()),
            CopyBounds::default(),
        )
        .unwrap()
    }

    fn listed(&self, name: &str, list: &[u8]) -> CopyReport {
        let list = FileList::parse(list, limits::COPY_FILES).unwrap();
        self.make(name, &Listing::Git(list), CopyBounds::default())
            .unwrap()
    }

    fn is_clean(&self) -> bool {
        std::fs::read_dir(self.state.copies().path())
            .unwrap()
            .next()
            .is_none()
    }
}

const OWNER: Owner = Owner {
    uid: 700_003,
    gid: 700_003,
};

fn chmod(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

fn mknod(path: &Path, kind: rustix::fs::FileType, dev: u64) -> rustix::io::Result<()> {
    let mode = Mode::from_raw_mode(0o666);
    rustix::fs::mknodat(rustix::fs::CWD, path, kind, mode, dev)
}

/// Every path of a tree with what it is: content of files, targets of links.
fn contents(top: &Path) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    walk(
        Root::open(top).unwrap(),
        WalkBounds::default(),
        &mut |entry| {
            let path = top.join(std::ffi::OsStr::from_bytes(entry.path));
            let what = match entry.meta.kind {
                Kind::File => std::fs::read_to_string(&path).unwrap(),
                Kind::Link => format!("-> {}", std::fs::read_link(&path).unwrap().display()),
                Kind::Dir => "/".to_owned(),
                Kind::Other => "?".to_owned(),
            };
            all.insert(foreign_path(entry.path).into_raw(), what);
            WalkStep::Enter
        },
    )
    .unwrap();
    all
}

fn expect(list: &[(&str, &str)]) -> BTreeMap<String, String> {
    let pair = |(path, what): &(&str, &str)| ((*path).to_owned(), (*what).to_owned());
    list.iter().map(pair).collect()
}

#[test]
fn a_copy_has_the_same_files_rights_and_times_and_belongs_to_the_slot() {
    let place = Place::new();
    place.write("run.sh", "#!/bin/sh\n");
    place.write("sub/deep/file", "text");
    place.write("twin", "one");
    std::fs::hard_link(place.at("twin"), place.at("sub/twin")).unwrap();
    std::fs::create_dir(place.at("empty")).unwrap();
    symlink("sub/deep", place.at("link")).unwrap();
    symlink("/etc/shadow", place.at("absolute")).unwrap();
    chmod(&place.at("run.sh"), 0o6755);
    chmod(&place.at("sub/deep/file"), 0o440);
    chmod(&place.at("sub/deep"), 0o1555);
    let old = SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000, 123_000_000);
    for path in ["run.sh", "sub", "empty"] {
        std::fs::File::open(place.at(path))
            .unwrap()
            .set_modified(old)
            .unwrap();
    }
    let copied = place.everything("s");
    assert_eq!(copied.path, place.state.path().join("copies/s"));
    assert_eq!(contents(&copied.path), contents(&place.at("")));
    assert_eq!((copied.files, copied.bytes), (6, 10 + 4 + 3 + 3));
    for (path, mode) in [
        ("run.sh", 0o755),
        ("sub/deep/file", 0o440),
        ("sub/deep", 0o555),
    ] {
        let meta = std::fs::metadata(copied.path.join(path)).unwrap();
        assert_eq!(meta.mode() & 0o7777, mode, "{path}");
    }
    for path in ["run.sh", "sub", "empty"] {
        let meta = std::fs::metadata(copied.path.join(path)).unwrap();
        assert_eq!(meta.modified().unwrap(), old, "{path}");
    }
    assert_eq!(
        std::fs::metadata(copied.path.join("twin")).unwrap().nlink(),
        1
    );
    if is_root() {
        for path in contents(&copied.path)
            .keys()
            .map(String::as_str)
            .chain([""])
        {
            let meta = copied.path.join(path).symlink_metadata().unwrap();
            assert_eq!((meta.uid(), meta.gid()), (OWNER.uid, OWNER.gid), "{path}");
        }
    }
    let again = place.make("s", &Listing::Except(Arc::default()), CopyBounds::default());
    assert!(matches!(again, Err(CopyError::Exists { .. })));
}

#[test]
fn only_what_is_listed_and_dot_git_is_copied() {
    let place = Place::new();
    for file in [
        "a",
        "ignored",
        "sub/b",
        "sub/c",
        ".git/HEAD",
        ".git/objects/pack/p",
    ] {
        place.write(file, "x");
    }
    place.write(".git/index.lock", "left behind");
    place.write("nested/inner", "x");
    let copied = place.listed("s", b"sub/b\0a\0gone\0nested/\0a\0");
    let all = [
        ("a", "x"),
        ("nested", "/"),
        ("sub", "/"),
        ("sub/b", "x"),
        (".git", "/"),
        (".git/HEAD", "x"),
        (".git/objects", "/"),
        (".git/objects/pack", "/"),
        (".git/objects/pack/p", "x"),
    ];
    assert_eq!(contents(&copied.path), expect(&all));
    assert_eq!((copied.files, copied.missing), (4, 1));
}

#[test]
fn a_dot_git_that_points_elsewhere_is_not_copied() {
    let place = Place::new();
    place.write("a", "x");
    place.write(".git", "gitdir: /elsewhere");
    assert_eq!(
        contents(&place.everything("file").path),
        expect(&[("a", "x")])
    );
    std::fs::remove_file(place.at(".git")).unwrap();
    symlink("/etc", place.at(".git")).unwrap();
    assert_eq!(
        contents(&place.everything("link").path),
        expect(&[("a", "x")])
    );
}

#[test]
fn a_listed_path_through_a_link_is_not_there() {
    let place = Place::new();
    symlink("/etc", place.at("link")).unwrap();
    symlink("/proc/self/root", place.at("magic")).unwrap();
    place.write("file", "x");
    let list =
        b"link/passwd\0magic/etc/passwd\0link\0file/x\0../../etc/passwd\0/etc/passwd\0file\0";
    let copied = place.listed("s", list);
    assert_eq!(
        contents(&copied.path),
        expect(&[("file", "x"), ("link", "-> /etc")])
    );
    assert_eq!((copied.missing, copied.invalid_paths), (3, 2));
}

#[test]
fn fifos_sockets_and_devices_are_left_out_and_nobody_waits() {
    let place = Place::new();
    place.write("a", "x");
    mknod(&place.at("fifo"), rustix::fs::FileType::Fifo, 0).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(place.at("socket")).unwrap();
    let mut special = 2;
    let device = rustix::fs::makedev(1, 3);
    if mknod(
        &place.at("null"),
        rustix::fs::FileType::CharacterDevice,
        device,
    )
    .is_ok()
    {
        special += 1;
    }
    assert!(special == 3 || !is_root(), "root makes devices");
    let copied = place.listed("git", b"a\0fifo\0socket\0null\0");
    assert_eq!(contents(&copied.path), expect(&[("a", "x")]));
    assert_eq!(copied.special, special);
    assert_eq!(place.everything("all").special, special);
}

#[test]
fn odd_names_are_copied_as_they_are() {
    let place = Place::new();
    let odd = std::ffi::OsStr::from_bytes(b"a\n\x1b[2J\xff\\");
    std::fs::write(place.at("").join(odd), "x").unwrap();
    let copied = place.listed("s", b"a\n\x1b[2J\xff\\\0");
    assert_eq!(std::fs::read_to_string(copied.path.join(odd)).unwrap(), "x");
}

#[test]
fn a_copy_beyond_a_bound_fails_with_a_hint_and_leaves_nothing() {
    let place = Place::new();
    for n in 0..10 {
        place.write(&format!("d/{n}"), &"x".repeat(100));
    }
    place.write(".git/HEAD", "x");
    let list =
        || FileList::parse(b"d/0\0d/1\0d/2\0d/3\0d/4\0d/5\0d/6\0d/7\0d/8\0d/9\0", 10).unwrap();
    let check = |listing: &Listing, bytes, files| {
        let error = place
            .make("s", listing, CopyBounds { bytes, files })
            .expect_err("too much");
        assert!(error.to_string().contains("\"ro\""), "{error}");
        assert!(place.is_clean());
    };
    for listing in [Listing::Except(Arc::default()), Listing::Git(list())] {
        check(&listing, 1000, 1000);
        check(&listing, 99, 1000);
        check(&listing, 1 << 20, 11);
        check(&listing, 1 << 20, 5);
    }
    let sparse = std::fs::File::create(place.at("d/sparse")).unwrap();
    sparse.set_len(1 << 43).unwrap();
    check(&Listing::Except(Arc::default()), 1 << 30, 1000);
    std::fs::remove_file(place.at("d/sparse")).unwrap();
    let exact = CopyBounds {
        bytes: 1001,
        files: 13,
    };
    place
        .make("s", &Listing::Except(Arc::default()), exact)
        .expect("exactly at its bounds");
}

#[test]
fn a_tree_with_too_many_levels_is_refused() {
    let place = Place::new();
    deep_tree(&place.at(""), 300);
    let error = place
        .make("s", &Listing::Except(Arc::default()), CopyBounds::default())
        .expect_err("too deep");
    assert!(
        matches!(error, CopyError::List(ListError::TooDeep { .. })),
        "{error}"
    );
    assert!(place.is_clean());
}

#[test]
fn the_state_directory_is_never_copied_into_itself() {
    let place = Place::new();
    place.write("a", "x");
    let state = StateDir::open(&place.at("hidden/state"), &[]).unwrap();
    let source = Root::open(&place.at("")).unwrap();
    let session = SessionId::new("s").unwrap();
    let everything = Listing::Except(Arc::default());
    let copied = create(
        &state,
        &session,
        (&source, &everything),
        &[],
        None,
        CopyBounds::default(),
    )
    .unwrap();
    assert_eq!(
        contents(&copied.path),
        expect(&[("a", "x"), ("hidden", "/")])
    );
}

#[test]
fn a_second_name_of_somebody_elses_private_file_is_not_read_for_them() {
    if !is_root() {
        eprintln!("NOT RUN: only root reads what belongs to others");
        return;
    }
    let place = Place::new();
    place.write("own", "x");
    std::fs::write(place.dir.path().join("shadow"), "secret").unwrap();
    chmod(&place.dir.path().join("shadow"), 0o600);
    std::fs::hard_link(place.dir.path().join("shadow"), place.at("planted")).unwrap();
    std::os::unix::fs::chown(place.at(""), Some(12_345), Some(12_345)).unwrap();
    let copied = place.everything("s");
    assert_eq!(contents(&copied.path), expect(&[("own", "x")]));
    assert_eq!(copied.unreadable, 1);
    assert_eq!(copied.first_unreadable, Some("planted".into()));
}

#[test]
fn an_ordinary_user_copies_what_they_may_read() {
    as_ordinary_user("an_ordinary_user_copies_what_they_may_read", || {
        let place = Place::new();
        place.write("a", "x");
        place.write("closed/b", "x");
        place.write("secret", "x");
        place.write("locked/c", "x");
        place.write(".git/refs/x", "x");
        chmod(&place.at("secret"), 0);
        chmod(&place.at("closed"), 0);
        chmod(&place.at("locked"), 0o555);
        chmod(&place.at(".git/refs"), 0o555);
        chmod(&place.at(".git"), 0o555);
        let copied = place.everything("s");
        let all = [
            (".git", "/"),
            (".git/refs", "/"),
            (".git/refs/x", "x"),
            ("a", "x"),
            ("closed", "/"),
            ("locked", "/"),
            ("locked/c", "x"),
        ];
        chmod(&copied.path.join("closed"), 0o700);
        assert_eq!(contents(&copied.path), expect(&all));
        assert_eq!(copied.unreadable, 2);
        discard(&place.state, &SessionId::new("s").unwrap()).unwrap();
        assert!(place.is_clean());
        chmod(&place.at(".git"), 0o755);
    });
}

/// Ends the other thread, also when this one fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Names flip between what is wanted and what is forbidden while they are copied, many times.
#[test]
fn nothing_from_outside_comes_in_while_the_source_is_changing() {
    let place = Place::new();
    let secret = place.dir.path().join("secret");
    std::fs::create_dir(&secret).unwrap();
    for name in ["f", "g"] {
        std::fs::write(secret.join(name), "SECRET").unwrap();
    }
    for n in 0..20 {
        place.write(&format!("d/{n}/f"), "mine");
        place.write(&format!("d/{n}/g"), "mine");
    }
    let swap = |a: &Path, b: &Path| {
        let flags = rustix::fs::RenameFlags::EXCHANGE;
        rustix::fs::renameat_with(rustix::fs::CWD, a, rustix::fs::CWD, b, flags).unwrap();
    };
    let (dir_link, file_link) = (place.dir.path().join("l1"), place.dir.path().join("l2"));
    symlink(&secret, &dir_link).unwrap();
    symlink(secret.join("f"), &file_link).unwrap();
    let fifo = place.dir.path().join("fifo");
    mknod(&fifo, rustix::fs::FileType::Fifo, 0).unwrap();
    let list: Vec<u8> = (0..20)
        .flat_map(|n| format!("d/{n}/f\0d/{n}/g\0").into_bytes())
        .collect();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop_at_end = Stop(&stop);
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                for n in 0..20 {
                    let (dir, f) = (place.at(&format!("d/{n}")), place.at(&format!("d/{n}/f")));
                    for (a, b) in [(&f, &file_link), (&f, &fifo), (&dir, &dir_link)] {
                        swap(a, b);
                        swap(a, b);
                    }
                }
            }
        });
        let mut differing = 0;
        for round in 0..24 {
            let name = format!("r{round}");
            let copied = if round % 2 == 0 {
                place.everything(&name)
            } else {
                place.listed(&name, &list)
            };
            for (path, what) in contents(&copied.path) {
                assert!(what != "SECRET", "{path}");
            }
            differing += copied.missing + copied.special;
            discard(&place.state, &SessionId::new(&name).unwrap()).unwrap();
        }
        assert!(differing > 0, "the swaps were never met");
    });
}

#[test]
fn large_files_and_files_that_end_early_are_whole() {
    let place = Place::new();
    let text = "0123456789abcdef".repeat(20_000);
    place.write("large", &text);
    place.write("exact", &text[..SMALL_BYTES]);
    place.write("empty", "");
    let copied = place.everything("s");
    assert_eq!(contents(&copied.path), contents(&place.at("")));
    assert_eq!(copied.bytes, (text.len() + SMALL_BYTES) as u64);
}
