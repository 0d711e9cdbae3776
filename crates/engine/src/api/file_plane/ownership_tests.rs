//! Who works a directory, on a real one.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::*;
use marshal_config::{Approver, FilePlane};
use marshal_sandbox::test_fixtures::wait_until_unlocked;

fn opened() -> (tempfile::TempDir, PathBuf, Disk) {
    let above = tempfile::tempdir().expect("a directory");
    let dir = above.path().join("plane");
    let disk = Disk::open(&FilePlane {
        dir: dir.clone(),
        answers: false,
        answers_as: Approver::Owner,
        owner: None,
        max_open: 1,
        poll: Duration::from_secs(1),
    });
    (above, dir, disk.expect("opened"))
}

fn take(disk: &Disk) -> DirOwnership {
    DirOwnership::acquire(disk, "here").expect("taken")
}

fn read_heartbeat(disk: &Disk) -> PlaneEntry {
    let most = FILE_PLANE_SMALL_BYTES;
    disk.read(Area::State, HEARTBEAT, most).expect("read")
}

fn put(disk: &Disk, text: &str) {
    disk.put(Area::State, HEARTBEAT, text.as_bytes())
        .expect("written");
}

#[test]
fn one_alone_has_the_lock_and_who_is_gone_is_not_waited_for() {
    let (_above, _, disk) = opened();
    let now = Instant::now();
    let mut first = take(&disk);
    assert!(
        first.is_alone(&read_heartbeat(&disk), now),
        "there is no heartbeat"
    );
    put(&disk, &first.heartbeat_json(1_000));
    assert!(first.is_alone(&read_heartbeat(&disk), now), "it is its own");
    match DirOwnership::acquire(&disk, "here") {
        Err(error @ DiskError::InUse(_)) => {
            let told = error.to_string();
            assert!(told.starts_with("here is used by another"), "{told}");
        }
        other => panic!("{other:?}"),
    }
    // As after a kill: the heartbeat stays, and the lock is free in a moment.
    let child = std::thread::spawn(|| {
        std::thread::sleep(std::time::Duration::from_millis(100));
        drop(first);
    });
    let mut second = take(&disk);
    child.join().expect("it let go");
    assert!(second.is_alone(&read_heartbeat(&disk), now));
}

#[test]
fn a_heartbeat_of_another_host_is_waited_for_until_it_is_quiet() {
    let (_above, dir, disk) = opened();
    let begin = Instant::now();
    let mut holding = take(&disk);
    let of = |at| format!(r#"{{"timestamp":"{at}","instance":"x","boot":"y"}}"#);
    put(&disk, &of(1));
    assert!(!holding.is_alone(&read_heartbeat(&disk), begin));
    assert!(!holding.is_alone(&read_heartbeat(&disk), begin + STALE_AFTER / 2));
    // It lives.
    put(&disk, &of(2));
    let later = begin + STALE_AFTER;
    assert!(!holding.is_alone(&read_heartbeat(&disk), later));
    assert!(!holding.is_alone(&read_heartbeat(&disk), later + STALE_AFTER / 2));
    assert!(holding.is_alone(&read_heartbeat(&disk), later + STALE_AFTER));
    // One that comes while this one works is seen, too, and so is what is no heartbeat of ours.
    put(&disk, &holding.heartbeat_json(1));
    assert!(holding.is_alone(&read_heartbeat(&disk), later));
    put(&disk, "{}");
    assert!(!holding.is_alone(&read_heartbeat(&disk), later));
    // The same holder on another kernel is not the one whose lock was free.
    let lost = holding.own.clone();
    drop(holding);
    wait_until_unlocked(&dir.join(LOCK));
    let mut next = take(&disk);
    let text = format!(
        r#"{{"timestamp":"1","instance":"{}","boot":"y"}}"#,
        lost.instance
    );
    put(&disk, &text);
    assert!(!next.is_alone(&read_heartbeat(&disk), later));
}

#[test]
fn what_stands_where_the_lock_goes_is_put_aside_and_never_written() {
    let (above, dir, disk) = opened();
    let secret = above.path().join("secret");
    fs::write(&secret, "secret").expect("written");
    let lock = dir.join(LOCK);
    let cases: [&dyn Fn(&Path); 3] = [
        &|at| symlink(&secret, at).expect("linked"),
        &|at| fs::hard_link(&secret, at).expect("linked"),
        &|at| fs::create_dir(at).expect("made"),
    ];
    for make in cases {
        make(&lock);
        drop(take(&disk));
        assert!(fs::symlink_metadata(&lock).expect("there").is_file());
        fs::remove_file(&lock).expect("removed");
    }
    assert_eq!(fs::read_to_string(&secret).expect("read"), "secret");
    let aside = fs::read_dir(dir.join("rejected")).expect("listed").count();
    assert_eq!(aside, 3);
}

#[test]
fn a_lock_that_stands_there_no_more_is_taken_anew() {
    let (_above, dir, disk) = opened();
    let mut holding = take(&disk);
    let held = holding.file_id();
    assert!(matches!(DirOwnership::lock_current(&disk, held), Ok(None)));
    fs::remove_file(dir.join(LOCK)).expect("removed");
    let lock = DirOwnership::lock_current(&disk, held).expect("locked");
    holding.replace_lock(lock.expect("another one"));
    assert_ne!(holding.file_id(), held);
    let second = DirOwnership::acquire(&disk, "here");
    assert!(matches!(second, Err(DiskError::InUse(_))), "{second:?}");
    let seen = read_heartbeat(&disk);
    assert!(holding.is_alone(&seen, Instant::now()));
}
