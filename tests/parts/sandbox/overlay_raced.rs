//! An apply while somebody else works in the same workspace: at every one of its steps something is
//! put there, moved or changed, and nothing of it is lost and nothing wrong is changed.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;

use crate::sandbox::overlay::OverlayHost;
use crate::sandbox::overlay_apply::tracer;

/// Every file of this name below a directory.
fn named(top: &Path, name: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![top.to_owned()];
    while let Some(dir) = open.pop() {
        for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
            if entry.file_type().unwrap().is_dir() {
                open.push(entry.path());
            } else if entry.file_name() == name {
                found.push(entry.path());
            }
        }
    }
    found
}

impl OverlayHost {
    /// Applies again and again, with `run` at the next step each time, until it has no more. `check`
    /// is told the step and the exit code. How many steps there were.
    fn at_every_step(
        &self,
        run: &dyn Fn() -> String,
        check: &mut dyn FnMut(&str, Option<i32>),
    ) -> u32 {
        let tracer = tracer(&self.at("home"));
        let ran = self.at("ran");
        self.keep();
        for n in 1..1000 {
            let _ = fs::remove_file(&ran);
            let command = format!("touch {}; {}", ran.display(), run());
            let reported = self.stopped_at(&tracer, n, Some(&command));
            if !ran.exists() {
                assert_eq!(reported.code, Some(0), "{}", reported.err);
                return n - 1;
            }
            check(&format!("at {n}: {}", reported.err), reported.code);
            self.put_back();
        }
        panic!("it has no end");
    }

    fn mode(&self, path: &str) -> u32 {
        fs::metadata(self.project(path))
            .unwrap()
            .permissions()
            .mode()
            & 0o777
    }
}

#[tokio::test]
async fn what_is_put_into_a_directory_that_goes_is_never_lost() {
    for script in ["rm -r dir", "rm -r dir; mkdir dir; echo new > dir/two"] {
        let over = OverlayHost::new();
        over.put("dir/one", "old\n");
        over.put("dir/deep/er/file", "old\n");
        over.put("other", "old\n");
        over.session_says(&format!("{script}; echo new > other"))
            .await;
        let old = over.tree();
        let done = over.at("done");
        let (mut refused, mut put_back, mut stored) = (0, 0, 0);
        // Somebody whose current directory it is.
        let inside = std::cell::RefCell::new(None);
        let run = || {
            let dir = File::open(over.project("dir/deep")).unwrap();
            let (pid, fd) = (std::process::id(), dir.as_raw_fd());
            *inside.borrow_mut() = Some(dir);
            format!(
                "rm -f {0}; echo theirs > /proc/{pid}/fd/{fd}/theirs && touch {0}",
                done.display()
            )
        };
        let steps = over.at_every_step(&run, &mut |when, code| {
            let found = named(&over.at("project"), "theirs");
            if !done.exists() {
                // The directory was gone, and who wrote knows it.
                assert_eq!((code, found.len()), (Some(0), 0), "{script}: {when}");
                return;
            }
            assert_eq!(found.len(), 1, "{script}: lost {when}");
            assert_eq!(fs::read_to_string(&found[0]).unwrap(), "theirs\n");
            if code == Some(0) {
                stored += 1;
                assert!(
                    found[0].starts_with(over.project(".marshal-kept-s-1")),
                    "{script}: {found:?} {when}"
                );
                assert!(when.contains("replaced or removed: dir/deep"), "{when}");
                let owner = fs::metadata(over.at("project")).unwrap().uid();
                let stored = fs::metadata(over.project(".marshal-kept-s-1")).unwrap();
                assert_eq!(stored.uid(), owner);
                assert_eq!(over.read("other"), "new\n", "{script}: {when}");
                assert!(!over.project("dir/one").exists(), "{script}: {when}");
            } else {
                assert_eq!(code, Some(1), "{script}: {when}");
                assert_eq!(found[0], over.project("dir/deep/theirs"), "{when}");
                refused += 1;
                put_back += usize::from(when.contains("nothing was applied: dir"));
                let mut tree = over.tree();
                tree.retain(|line| !line.starts_with("dir/deep/theirs "));
                assert_eq!(tree, old, "{script}: {when}");
            }
            let staging = over.project(".marshal-apply-s-1");
            assert!(!staging.exists(), "{script}: {when}");
            for beside in ["intent", "made", "went"] {
                let path = over.at(&format!("state/overlays/s-1,{beside}"));
                assert!(!path.exists(), "{script}: {beside} {when}");
            }
        });
        eprintln!("{script}: {steps} steps, {refused} refused, {put_back} put back, {stored} kept");
        assert!(put_back > 2 && stored > 2, "{put_back} {stored}");
    }
}

#[tokio::test]
async fn what_is_written_into_what_goes_or_comes_back_is_never_lost() {
    let over = OverlayHost::new();
    over.put("file", "old\n");
    over.put("last", "old\n");
    over.session_says("echo new > file; mkdir fresh; echo new > fresh/in; rm last")
        .await;
    // Somebody has the file open, and somebody works in the new directory as soon as it is there;
    // then the last place is changed, so that all of it is taken back. What is written into a file
    // after all is done goes where the file goes.
    let inside = std::cell::RefCell::new(None);
    let wrote = over.at("wrote");
    let run = || {
        let file = File::options()
            .append(true)
            .open(over.project("file"))
            .unwrap();
        let at = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
        *inside.borrow_mut() = Some(file);
        let (project, intent) = (over.at("project"), over.at("state/overlays/s-1,intent"));
        let (project, intent, wrote) = (project.display(), intent.display(), wrote.display());
        format!(
            "cd {project}; rm -f {wrote}; \
             if test \"$(stat -Lc %h {at})\" != 0 && ! grep -qs '\"done\"' {intent}; \
             then echo more >> {at}; touch {wrote}; fi; \
             if test -e fresh; then echo theirs > fresh/theirs; echo theirs > last; fi"
        )
    };
    let (mut refused, mut applied) = (0, 0);
    over.at_every_step(&run, &mut |when, code| {
        let text = |path: &PathBuf| fs::read_to_string(path).unwrap_or_default();
        let stored = over.project(".marshal-kept-s-1");
        let mut places = vec![over.project("file")];
        places.extend(
            fs::read_dir(&stored)
                .into_iter()
                .flatten()
                .map(|item| item.unwrap().path()),
        );
        assert!(
            !wrote.exists() || places.iter().any(|path| text(path) == "old\nmore\n"),
            "the line is lost {when}"
        );
        let theirs = named(&over.at("project"), "theirs");
        if code == Some(0) {
            applied += 1;
            assert_eq!(over.read("file"), "new\n", "{when}");
        } else {
            refused += 1;
            assert_eq!(code, Some(1), "{when}");
            assert_eq!(over.read("file"), "old\nmore\n", "{when}");
            assert!(!over.project("fresh").exists(), "{when}");
        }
        let was_put = text(&over.project("last")) == "theirs\n";
        assert_eq!(theirs.len(), usize::from(was_put), "{when}");
    });
    assert!(refused > 5 && applied > 5, "{refused} {applied}");
}

#[tokio::test]
async fn a_directory_that_takes_anothers_place_is_never_changed() {
    for (name, script) in [
        ("rights", "chmod 700 rights"),
        ("src", "echo new > src/added; echo new > src/x"),
    ] {
        let over = OverlayHost::new();
        over.put(&format!("{name}/x"), "old\n");
        over.put(&format!("{name}.other/x"), "old\n");
        over.session_says(script).await;
        let late = over.at("late");
        let run = || {
            // What it finds before it begins is what it looks at.
            format!(
                "rm -f {0}; cd {1}; test -e {2} && touch {0}; mv {name} {name}.away; \
                 mv {name}.other {name}",
                late.display(),
                over.at("project").display(),
                over.at("state/overlays/s-1,intent").display(),
            )
        };
        let away = format!("{name}.away");
        let (mut before, mut after) = (0, 0);
        over.at_every_step(&run, &mut |when, code| {
            if !late.exists() {
                return;
            }
            assert_eq!(over.mode(name), 0o755, "{when}");
            assert_eq!(over.read(&format!("{name}/x")), "old\n", "{when}");
            assert!(!over.project(name).join("added").exists(), "{when}");
            let is_done = over.project(&away).join("added").exists() || over.mode(&away) == 0o700;
            if code == Some(0) {
                after += 1;
                assert!(is_done, "{when}");
            } else {
                before += 1;
                assert_eq!(code, Some(1), "{when}");
                let is_told = when.contains(&format!("applied: {name}"));
                let is_stuck = when.contains("neither be completed nor rolled back");
                assert!(is_stuck || (is_told && !is_done), "{when}");
            }
        });
        eprintln!("{name}: {before} before, {after} after");
        assert!(before > 3 && after > 3, "{before} {after}");
    }
}

#[tokio::test]
async fn whoever_locks_the_workspace_holds_up_no_apply_and_another_apply_is_waited_for() {
    let over = OverlayHost::new();
    over.put("a", "old\n");
    over.session_says("echo new > a").await;
    // As an agent with the workspace writable can.
    let workspace = File::open(over.at("project")).unwrap();
    rustix::fs::flock(&workspace, FlockOperation::LockExclusive).unwrap();
    over.applies();
    assert_eq!(over.read("a"), "new\n");
    over.session_says("echo newer > a").await;
    let meta = fs::metadata(over.at("project")).unwrap();
    let (major, minor) = (rustix::fs::major(meta.dev()), rustix::fs::minor(meta.dev()));
    let name = format!("state/overlays/,apply-{major}-{minor}-{}", meta.ino());
    let other = File::create(over.at(&name)).unwrap();
    rustix::fs::flock(&other, FlockOperation::LockExclusive).unwrap();
    let began = Instant::now();
    let output = over.run_unless_busy(&["apply", "s-1"]);
    assert_eq!(output.code, Some(1), "{}", output.err);
    assert!(
        output
            .err
            .contains("another apply is still running in the workspace")
            && output.err.contains("after 10 seconds"),
        "{}",
        output.err
    );
    assert!(began.elapsed() >= Duration::from_secs(10));
    assert_eq!(over.read("a"), "new\n");
    // One that ends in time, and takes its file with it.
    let held = over.at(&name);
    let began = Instant::now();
    let ending = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(700));
        fs::remove_file(held).unwrap();
        drop(other);
    });
    over.applies();
    assert!(began.elapsed() >= Duration::from_millis(500));
    ending.join().unwrap();
    assert_eq!(over.read("a"), "newer\n");
    assert!(!over.at(&name).exists());
}
