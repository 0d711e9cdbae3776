//! Layers of setups: what becomes one, which session has it, and when it goes.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::time::{Duration, SystemTime};

use super::super::sweep::{SessionLookup, SweepTime, sweep};
use super::super::testing::{Scratch, is_root, scratch};
use super::*;
use marshal_model::limits::COPY_RETENTION;

/// A state directory, and a clone of a session with a directory that a commit has.
fn state_and_clone() -> (Scratch, StateDir, PathBuf) {
    let dir = scratch();
    let state = StateDir::open(&dir.path().join("state"), &[]).unwrap();
    let clone = state.copies().path().join("a");
    fs::create_dir_all(clone.join("packages/a")).unwrap();
    (dir, state, clone)
}

fn key(text: &str) -> LayerKey {
    LayerKey::of([text])
}

fn id(text: &str) -> SessionId {
    SessionId::new(text).unwrap()
}

fn list(paths: &[&str]) -> FileList {
    FileList::parse(paths.join("\0").as_bytes(), 1000).unwrap()
}

/// Stores what a setup left at these paths, below a limit of bytes.
fn store_with(
    state: &StateDir,
    clone: &Path,
    paths: &[&str],
    bytes: u64,
) -> Result<StoredLayer, LayerError> {
    let root = Root::open(clone).unwrap();
    let is_refused = |path: &str| path == ".github";
    store(state, &key("k"), (&root, &list(paths)), bytes, &is_refused)
}

#[test]
fn a_key_is_of_every_text_and_of_where_it_ends() {
    let of = |texts: &[&str]| LayerKey::of(texts.iter().copied());
    assert_eq!(of(&["a", "b"]), of(&["a", "b"]));
    assert_ne!(of(&["a", "b"]), of(&["ab", ""]));
    assert_ne!(of(&["a", "b"]), of(&["b", "a"]));
    for bad in [
        "",
        "..",
        "0",
        &"A".repeat(64),
        &format!("{}/", "a".repeat(63)),
    ] {
        assert!(LayerKey::try_from(bad.to_owned()).is_err(), "{bad}");
    }
    assert!(LayerKey::try_from(of(&[]).0).is_ok());
}

#[test]
fn directories_become_a_layer_and_everything_else_stays() {
    let (dir, state, clone) = state_and_clone();
    for path in [
        "node_modules/.bin",
        "packages/a/node_modules",
        ".github",
        "a\nb",
    ] {
        fs::create_dir_all(clone.join(path)).unwrap();
        fs::write(clone.join(path).join("x"), "built").unwrap();
    }
    fs::write(clone.join("file"), "single").unwrap();
    let outside = dir.path().join("outside");
    fs::create_dir_all(outside.join("deep")).unwrap();
    symlink(&outside, clone.join("link")).unwrap();
    let paths = [
        "node_modules/",
        "packages/a/node_modules/",
        ".github/",
        "a\nb/",
        "file",
        "link",
        "link/deep/",
        "gone/",
    ];
    let stored = store_with(&state, &clone, &paths, 1 << 20).unwrap();
    assert_eq!(stored.paths, ["node_modules", "packages/a/node_modules"]);
    assert!(stored.bytes > 0);
    let left: Vec<&str> = stored.left_out.iter().map(|(path, _)| &**path).collect();
    let expect = [".github", "a\\nb", "file", "gone", "link", "link/deep"];
    assert_eq!(left, expect);
    assert!(outside.join("deep").is_dir() && clone.join("file").is_file());
    assert!(exists(&state, &key("k")) && !clone.join("node_modules").exists());
    let place = state.layers().path().join(key("k").as_str());
    assert_eq!(fs::read_to_string(place.join("0/.bin/x")).unwrap(), "built");
    let again = store_with(&state, &clone, &[], 1 << 20);
    assert!(again.is_err(), "a layer is never replaced");
}

#[test]
fn too_much_is_no_layer() {
    let (_dir, state, clone) = state_and_clone();
    fs::create_dir(clone.join("big")).unwrap();
    fs::write(clone.join("big/x"), "x".repeat(100_000)).unwrap();
    let error = store_with(&state, &clone, &["big/"], 50_000).expect_err("too large");
    assert!(
        error.to_string().contains("more than the limit of 50000"),
        "{error}"
    );
    let many: Vec<String> = (0..=limits::SETUP_DIRS).map(|n| format!("d{n}")).collect();
    for name in &many {
        fs::create_dir(clone.join(name)).unwrap();
    }
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let error = store_with(&state, &clone, &many, 1 << 30).expect_err("too many");
    assert!(error.to_string().contains("65 directories"), "{error}");
    assert!(!exists(&state, &key("k")));
    assert_eq!(fs::read_dir(state.layers().path()).unwrap().count(), 0);
}

#[test]
fn a_session_keeps_its_layer_and_has_changes_of_its_own() {
    let (_dir, state, built) = state_and_clone();
    for path in [
        "node_modules",
        "packages/a/node_modules",
        "full",
        "now-a-link",
        "now-a-file",
    ] {
        fs::create_dir_all(built.join(path)).unwrap();
    }
    let paths = [
        "full",
        "node_modules",
        "now-a-file",
        "now-a-link",
        "packages/a/node_modules",
    ];
    store_with(&state, &built, &paths, 1 << 20).unwrap();
    let clone = state.copies().path().join("b");
    fs::create_dir_all(clone.join("full")).unwrap();
    fs::write(clone.join("full/tracked"), "x").unwrap();
    fs::write(clone.join("now-a-file"), "x").unwrap();
    symlink("/etc", clone.join("now-a-link")).unwrap();
    fs::create_dir(clone.join("packages")).unwrap();
    let root = Root::open(&clone).unwrap();
    let owner = is_root().then_some(Owner {
        uid: 700_001,
        gid: 700_001,
    });
    let attach_it = |name: &str| attach(&state, &id("s"), &key(name), &root, owner);
    let gone = attach_it("none").expect_err("no such layer");
    assert!(matches!(gone, LayerError::Gone(_)), "{gone}");
    let mounts = attach_it("k").unwrap();
    let mounted = |mounts: &[LayerMount]| -> Vec<String> {
        mounts.iter().map(|mount| mount.path.clone()).collect()
    };
    assert_eq!(
        mounted(&mounts),
        ["node_modules"],
        "nothing else has a place"
    );
    let layer = state.layers().path().join(key("k").as_str());
    assert_eq!(mounts[0].lower, layer.join("1"));
    assert!(mounts[0].changes.join("upper").is_dir());
    if is_root() {
        assert_eq!(
            fs::metadata(clone.join("node_modules")).unwrap().uid(),
            700_001
        );
    }
    assert_eq!(of_session(&state, &id("s")).unwrap(), Some(key("k")));
    // The next start of the session: what its agent made is no reason against the mount.
    fs::write(clone.join("node_modules/mine"), "x").unwrap();
    fs::create_dir_all(clone.join("packages/a")).unwrap();
    assert_eq!(mounted(&attach_it("other").unwrap()), ["node_modules"]);
    fs::remove_dir_all(clone.join("node_modules")).unwrap();
    symlink("/etc", clone.join("node_modules")).unwrap();
    assert_eq!(attach_it("k").unwrap(), [], "a link is no mount point");
    assert_eq!(of_session(&state, &id("other")).unwrap(), None);
}

struct Known(&'static [&'static str]);

impl SessionLookup for Known {
    fn exists(&self, session: &SessionId) -> bool {
        self.0.contains(&session.as_str())
    }
    fn is_working(&self, _: &SessionId) -> bool {
        false
    }
}

#[test]
fn a_layer_goes_when_no_session_has_it_and_nobody_used_it_for_a_week() {
    let (_dir, state, clone) = state_and_clone();
    fs::create_dir(clone.join("built")).unwrap();
    store_with(&state, &clone, &["built"], 1 << 20).unwrap();
    let root = Root::open(&clone).unwrap();
    attach(&state, &id("s"), &key("k"), &root, None).unwrap();
    fs::create_dir(state.layers().path().join(format!("{PART}x"))).unwrap();
    let at = |when, later: Duration, known: &'static [&'static str]| {
        let now = SystemTime::now() + later;
        let swept = sweep(&state, when, now, COPY_RETENTION, &Known(known));
        assert!(swept.failed.is_empty(), "{swept:?}");
        swept.layers
    };
    let week = COPY_RETENTION + Duration::from_secs(60);
    assert_eq!(at(SweepTime::Hourly, week, &["s"]), 0, "a session has it");
    assert_eq!(
        at(SweepTime::Hourly, Duration::ZERO, &[]),
        0,
        "it was used a moment ago"
    );
    assert_eq!(fs::read_dir(state.layers().path()).unwrap().count(), 2);
    assert_eq!(at(SweepTime::Hourly, week, &[]), 1);
    assert_eq!(at(SweepTime::Start, week, &[]), 0);
    assert_eq!(fs::read_dir(state.layers().path()).unwrap().count(), 0);
}

#[test]
fn while_all_are_too_large_the_unused_one_used_longest_ago_goes() {
    let (_dir, state, clone) = state_and_clone();
    let root = Root::open(&clone).unwrap();
    let now = SystemTime::now();
    let mut bytes = 0;
    // The layer `a` was used before all others, but a session has it.
    for (age, name) in [(4, "a"), (2, "b"), (3, "c"), (1, "d")] {
        fs::create_dir(clone.join("built")).unwrap();
        fs::write(clone.join("built/x"), "x".repeat(100_000)).unwrap();
        let stored = store(
            &state,
            &key(name),
            (&root, &list(&["built"])),
            1 << 30,
            &|_| false,
        );
        bytes = stored.unwrap().bytes;
        if name == "a" {
            attach(&state, &id("s"), &key(name), &root, None).unwrap();
            fs::remove_dir(clone.join("built")).unwrap();
        }
        let manifest = state
            .layers()
            .path()
            .join(key(name).as_str())
            .join(MANIFEST);
        let file = fs::File::options().write(true).open(manifest).unwrap();
        file.set_modified(now - Duration::from_secs(age * 60))
            .unwrap();
    }
    let names: Vec<String> = ["a", "b", "c", "d"].map(|name| key(name).0).into();
    let homes = [cache::directory_name(&id("s"))];
    let take = |max_bytes| {
        let is_old = |_| false;
        let unused = Unused {
            is_old: &is_old,
            max_bytes,
        };
        let of_all: Vec<String> = names
            .iter()
            .filter(|name| state.layers().path().join(name).exists())
            .cloned()
            .collect();
        take_unused(&state, (&homes, &of_all), &unused, |name| {
            format!("gone-{name}")
        })
        .unwrap()
    };
    let gone = |name: &str| format!("gone-{}", key(name).as_str());
    assert_eq!(take(4 * bytes), [""; 0]);
    assert_eq!(take(3 * bytes), [gone("c")]);
    assert_eq!(take(0), [gone("b"), gone("d")], "a session has the other");
    // One that is asked for by name goes only if no session has it.
    assert!(super::super::sweep::discard_layer(&state, &key("a")).is_empty());
    assert!(exists(&state, &key("a")));
    fs::remove_dir_all(state.homes().path().join(&homes[0])).unwrap();
    assert!(super::super::sweep::discard_layer(&state, &key("a")).is_empty());
    assert!(!exists(&state, &key("a")));
}
