//! What somebody does with a workspace while a session works over it, or while an apply is unfinished;
//! and bounds of what is compared.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::time::Duration;

use marshal_sandbox::workspace::{Manifest, overlay};
use rustix::fs::{Mode, OFlags, XattrFlags};

use crate::children::script_output;
use crate::sandbox::overlay::{OverlayHost, session};
use crate::sandbox::overlay_apply::tracer;

impl OverlayHost {
    /// Applies, killed as soon as `is_far` says so.
    fn killed_when(&self, is_far: &dyn Fn() -> bool) {
        let tracer = tracer(&self.at("home"));
        self.keep();
        for n in 1..400 {
            assert_eq!(self.killed_at(&tracer, n), Some(77), "{n}");
            if is_far() {
                return;
            }
            self.put_back();
        }
        panic!("it was never so far");
    }

    fn has_intent(&self) -> bool {
        self.at("state/overlays/s-1,intent").exists()
    }
}

#[tokio::test]
async fn what_is_edited_after_a_killed_apply_put_it_there_is_a_conflict() {
    let over = OverlayHost::new();
    for path in ["a", "b"] {
        over.put(path, "old\n");
    }
    over.session_says("echo new > a; echo new > b").await;
    over.killed_when(&|| over.read("a") == "new\n" && over.read("b") == "new\n");
    assert!(over.has_intent());
    over.put("a", "theirs\n");
    let output = over.run_unless_busy(&["apply", "s-1"]);
    assert_eq!(output.code, Some(1), "{}", output.err);
    let err = output.err;
    assert!(err.contains("refused: a: it was changed"), "{err}");
    assert_eq!(over.read("a"), "theirs\n");
    assert!(!over.has_intent());
}

#[tokio::test]
async fn what_is_put_into_a_directory_that_goes_is_not_lost() {
    let over = OverlayHost::new();
    over.put("dir/one", "old\n");
    over.session_says("rm -r dir; mkdir dir; echo new > dir/two")
        .await;
    over.killed_when(&|| over.project("dir/two").exists());
    // Somebody whose current directory it is.
    let old = over.project(".marshal-apply-s-1/0");
    fs::write(old.join("theirs"), "theirs\n").unwrap();
    let output = over.run_unless_busy(&["apply", "s-1"]);
    assert_eq!(output.code, Some(1), "{}", output.err);
    assert!(
        output.err.contains("nothing was applied: dir"),
        "{}",
        output.err
    );
    assert_eq!(over.read("dir/theirs"), "theirs\n");
    assert_eq!(over.read("dir/one"), "old\n");
    assert!(!over.project("dir/two").exists());
}

#[tokio::test]
async fn an_apply_whose_other_half_was_removed_is_forgotten_with_its_places_named() {
    let over = OverlayHost::new();
    for path in ["a", "b"] {
        over.put(path, "old\n");
    }
    over.session_says("echo new > a; echo new > b").await;
    over.killed_when(&|| over.read("a") == "new\n" && over.read("b") == "old\n");
    fs::remove_dir_all(over.project(".marshal-apply-s-1")).unwrap();
    let output = over.run_unless_busy(&["diff", "s-1"]);
    assert_eq!(output.code, Some(0), "{}", output.err);
    assert!(
        output.err.contains("cannot be completed") && output.err.contains(": a, b"),
        "{}",
        output.err
    );
    assert!(!over.has_intent());
}

#[tokio::test]
async fn what_cannot_be_brought_to_its_end_is_discarded_all_the_same() {
    let over = OverlayHost::new();
    over.put("a", "old\n");
    over.session_says("echo new > a").await;
    fs::write(over.at("state/overlays/s-1,intent"), "no\u{1b}thing").unwrap();
    let output = over.run_unless_busy(&["diff", "s-1"]);
    assert_eq!(output.code, Some(1), "{}", output.err);
    let output = over.run_unless_busy(&["discard", "s-1"]);
    assert_eq!(output.code, Some(0), "{}", output.err);
    assert!(
        output.err.contains("are discarded anyway"),
        "{}",
        output.err
    );
    assert!(!overlay::path(&over.overlays(), &session()).exists());
    assert!(!over.has_intent());
}

#[tokio::test]
async fn a_directory_that_took_anothers_place_during_the_turn_is_a_conflict() {
    let over = OverlayHost::new();
    over.put("src/deep/file", "old\n");
    over.put("src.new/deep/file", "other\n");
    std::thread::sleep(Duration::from_millis(20));
    let guard = over.prepare().unwrap();
    script_output(&over.request(&guard), "echo new > src/deep/file").await;
    fs::rename(over.project("src"), over.project("src.old")).unwrap();
    fs::rename(over.project("src.new"), over.project("src")).unwrap();
    guard.changes(&Manifest::default()).unwrap();
    drop(guard);
    let err = over.refuses(&["apply", "s-1"]);
    assert!(err.contains("refused: src/deep/file: it, or its"), "{err}");
    assert_eq!(over.read("src/deep/file"), "other\n");
}

#[tokio::test]
async fn nothing_of_an_agents_acts_on_the_terminal_of_who_applies() {
    let over = OverlayHost::new();
    over.put("a", "old\n");
    over.session_says("echo new > a; ln -s \"$(printf '/\\033[2J')\" link")
        .await;
    let flags = XattrFlags::empty();
    rustix::fs::setxattr(over.upper("a"), "user.\u{1b}[31m", b"x", flags).unwrap();
    for args in [["diff", "s-1"], ["apply", "s-1"]] {
        let output = over.run_unless_busy(&args);
        assert!(!output.err.contains('\u{1b}'), "{:?}", output.err);
        assert!(!output.out.contains('\u{1b}'), "{:?}", output.out);
    }
    let err = over.refuses(&["apply", "s-1"]);
    assert!(err.contains("user.\\u{1b}[31m"), "{err}");
}

#[tokio::test]
async fn what_is_very_large_or_very_long_is_refused_without_being_read() {
    let over = OverlayHost::new();
    File::create(over.project("large"))
        .unwrap()
        .set_len(1 << 40)
        .unwrap();
    over.session_says("rm large").await;
    let name = "n".repeat(250);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut at = OwnedFd::from(File::open(over.upper("")).unwrap());
    for _ in 0..20 {
        rustix::fs::mkdirat(&at, &*name, Mode::from_raw_mode(0o755)).unwrap();
        at = rustix::fs::openat(&at, &*name, flags, Mode::empty()).unwrap();
    }
    // Its content is not for this test to read either.
    let output = over.run_unless_busy(&["apply", "s-1"]);
    assert_eq!(output.code, Some(1), "{}", output.err);
    let err = output.err;
    assert!(err.contains("refused: large: the workspace has"), "{err}");
    assert!(err.contains("has a path of more than 4096 bytes"), "{err}");
    assert!(err.contains("nothing was applied: 2 refused"), "{err}");
}
