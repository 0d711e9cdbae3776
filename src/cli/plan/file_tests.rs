//! Files of plans: what is refused, and what a tick leaves as it was.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};

use super::*;

fn plan(text: &[u8]) -> (tempfile::TempDir, PlanFile) {
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(dir.path().join("plan.md"), text).expect("written");
    let file = PlanFile::at(&dir.path().join("plan.md")).expect("found");
    (dir, file)
}

fn why(file: &PlanFile) -> String {
    file.read().expect_err("no plan").to_string()
}

#[test]
fn a_tick_changes_one_byte_and_neither_owner_nor_mode() {
    let (dir, file) = plan(b"- [ ] one\r\n- [ ] two\r\n");
    let path = dir.path().join("plan.md");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o664)).expect("mode");
    let is_root = fs::metadata(&path).expect("there").uid() == 0;
    if is_root {
        std::os::unix::fs::chown(&path, Some(65534), Some(65534)).expect("owner");
    }
    // What an end in the middle of an earlier tick left.
    fs::write(dir.path().join(".plan.md.marshal"), "half").expect("written");
    let before = fs::metadata(&path).expect("there");
    let item = file.read().expect("read").list.items()[1].id;
    let read = file.tick(item).expect("ticked");
    assert_eq!(read.text, "- [ ] one\r\n- [x] two\r\n");
    assert_eq!(fs::read_to_string(&path).expect("there"), read.text);
    let after = fs::metadata(&path).expect("there");
    assert_eq!(
        (after.mode(), after.uid(), after.gid()),
        (before.mode(), before.uid(), before.gid())
    );
    // Again it is no change, and no other file.
    file.tick(item).expect("ticked");
    assert_eq!(fs::metadata(&path).expect("there").ino(), after.ino());
    assert_eq!(fs::read_dir(dir.path()).expect("listed").count(), 1);
}

#[test]
fn an_item_that_is_gone_is_not_ticked() {
    let (dir, file) = plan(b"- [ ] one\n");
    let item = file.read().expect("read").list.items()[0].id;
    fs::write(dir.path().join("plan.md"), "- [ ] another\n").expect("written");
    let error = file.tick(item).expect_err("gone").to_string();
    assert!(error.contains("the plan no longer has the item"), "{error}");
    let text = fs::read_to_string(dir.path().join("plan.md")).expect("there");
    assert_eq!(text, "- [ ] another\n");
}

#[test]
fn what_is_no_plan_is_named() {
    let (_dir, file) = plan(b"- [ ] caf\xe9\n");
    assert!(why(&file).contains("is not UTF-8"), "{}", why(&file));
    let (_dir, file) = plan(&vec![b'x'; TEXT_BYTES + 7]);
    let text = why(&file);
    let size = (TEXT_BYTES + 7).to_string();
    assert!(text.contains(&size), "{text}");
    let (dir, file) = plan(b"- [ ] one\n");
    fs::hard_link(dir.path().join("plan.md"), dir.path().join("other.md")).expect("linked");
    assert!(why(&file).contains("hard links"), "{}", why(&file));
    let (dir, _) = plan(b"- [ ] one\n");
    symlink("plan.md", dir.path().join("link.md")).expect("linked");
    let link = PlanFile::at(&dir.path().join("link.md")).expect("found");
    assert!(why(&link).contains("is a link"), "{}", why(&link));
    let made = std::process::Command::new("mkfifo")
        .arg(dir.path().join("pipe.md"))
        .status();
    assert!(made.expect("mkfifo").success());
    let pipe = PlanFile::at(&dir.path().join("pipe.md")).expect("found");
    assert!(why(&pipe).contains("not a regular file"), "{}", why(&pipe));
    let gone = PlanFile::at(&dir.path().join("none.md")).expect("found");
    assert!(why(&gone).contains("cannot be opened"), "{}", why(&gone));
    assert!(PlanFile::at(Path::new("/")).is_err());
}

#[test]
fn a_directory_that_became_a_link_is_not_followed() {
    let (dir, _) = plan(b"- [ ] one\n");
    let (other, _) = plan(b"- [ ] theirs\n");
    fs::create_dir(dir.path().join("below")).expect("made");
    fs::write(dir.path().join("below/plan.md"), "- [ ] one\n").expect("written");
    let file = PlanFile::at(&dir.path().join("below/plan.md")).expect("found");
    let item = file.read().expect("read").list.items()[0].id;
    fs::rename(dir.path().join("below"), dir.path().join("away")).expect("moved");
    symlink(other.path(), dir.path().join("below")).expect("linked");
    assert!(file.tick(item).is_err());
    let theirs = fs::read_to_string(other.path().join("plan.md")).expect("there");
    assert_eq!(theirs, "- [ ] theirs\n");
}
