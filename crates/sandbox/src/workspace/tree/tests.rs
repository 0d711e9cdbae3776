//! Walks over trees that are deep, odd, or changing.

use std::os::unix::fs::symlink;
use std::time::Duration;

use super::super::testing::{as_ordinary_user, deep_tree, scratch};
use super::*;

fn paths(root: &Root) -> (Vec<String>, WalkSummary) {
    let mut paths = Vec::new();
    let walked = walk(root, WalkBounds::default(), &mut |entry| {
        paths.push(String::from_utf8_lossy(entry.path).into_owned());
        WalkStep::Enter
    })
    .unwrap();
    paths.sort();
    (paths, walked)
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn a_walk_sees_every_entry_once_and_goes_through_no_link() {
    let dir = scratch();
    std::fs::create_dir_all(dir.path().join("a/b")).unwrap();
    std::fs::create_dir(dir.path().join("empty")).unwrap();
    std::fs::write(dir.path().join("a/b/f"), "x").unwrap();
    symlink("/usr", dir.path().join("a/usr")).unwrap();
    symlink("..", dir.path().join("a/b/loop")).unwrap();
    let (paths, walked) = paths(&Root::open(dir.path()).unwrap());
    assert_eq!(paths, ["a", "a/b", "a/b/f", "a/b/loop", "a/usr", "empty"]);
    assert_eq!(
        (walked.entries, walked.incomplete, walked.unreadable),
        (6, None, 0)
    );
}

#[test]
fn five_thousand_levels_are_walked_with_few_descriptors() {
    let dir = scratch();
    deep_tree(dir.path(), 5000);
    let before = descriptors();
    let mut most = 0;
    let mut bottom = 0;
    let root = Root::open(dir.path()).unwrap();
    let walked = walk(&root, WalkBounds::default(), &mut |entry| {
        if entry.path.len() % 1000 < 2 {
            most = most.max(descriptors());
        }
        bottom += usize::from(entry.name == b"bottom");
        WalkStep::Enter
    })
    .unwrap();
    assert_eq!((walked.entries, walked.incomplete, bottom), (5001, None, 1));
    // Other tests of this process open descriptors too.
    assert!(most < before + 500, "{before} -> {most}");
}

#[test]
fn branches_beyond_the_open_levels_are_all_found() {
    let dir = scratch();
    let mut at = dir.path().to_owned();
    for level in 0..60 {
        std::fs::create_dir(at.join("left")).unwrap();
        std::fs::write(at.join("left").join(format!("l{level}")), "").unwrap();
        std::fs::create_dir(at.join("right")).unwrap();
        std::fs::write(at.join("right").join(format!("r{level}")), "").unwrap();
        at.push("d");
        std::fs::create_dir(&at).unwrap();
    }
    let (paths, walked) = paths(&Root::open(dir.path()).unwrap());
    assert_eq!((paths.len(), walked.incomplete), (60 * 5, None));
}

#[test]
fn a_directory_that_is_moved_away_leads_nowhere_else() {
    let dir = scratch();
    let inside = dir.path().join("inside");
    let outside = dir.path().join("outside");
    std::fs::create_dir(&inside).unwrap();
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("secret"), "x").unwrap();
    let mut deep = inside.clone();
    deep.extend(std::iter::repeat_n("d", 50));
    std::fs::create_dir_all(deep.join("moved/x/y")).unwrap();
    std::fs::create_dir_all(deep.join("other")).unwrap();
    let root = Root::open(&inside).unwrap();
    let mut seen = Vec::new();
    let walked = walk(&root, WalkBounds::default(), &mut |entry| {
        seen.push(String::from_utf8_lossy(entry.path).into_owned());
        if entry.name == b"y" {
            std::fs::rename(deep.join("moved"), outside.join("moved")).unwrap();
            for n in 0..3 {
                std::fs::create_dir_all(outside.join(format!("bait{n}/x"))).unwrap();
            }
        }
        WalkStep::Enter
    })
    .unwrap();
    assert!(
        !seen
            .iter()
            .any(|p| p.contains("secret") || p.contains("bait")),
        "{seen:?}"
    );
    assert_eq!(walked.incomplete, Some(IncompleteReason::Moved));
}

#[test]
fn a_walk_ends_in_time_and_where_its_visitor_says() {
    let dir = scratch();
    for n in 0..600 {
        std::fs::write(dir.path().join(n.to_string()), "").unwrap();
    }
    let root = Root::open(dir.path()).unwrap();
    let bounds = WalkBounds {
        time: Duration::ZERO,
        ..WalkBounds::default()
    };
    let walked = walk(&root, bounds, &mut |_| WalkStep::Enter).unwrap();
    assert_eq!(walked.incomplete, Some(IncompleteReason::Time));
    let walked = walk(&root, WalkBounds::default(), &mut |_| WalkStep::Stop).unwrap();
    assert_eq!(
        (walked.entries, walked.incomplete),
        (1, Some(IncompleteReason::Visitor))
    );
}

#[test]
fn a_directory_that_may_not_be_read_is_counted() {
    as_ordinary_user("a_directory_that_may_not_be_read_is_counted", || {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = scratch();
        std::fs::create_dir(dir.path().join("closed")).unwrap();
        let none = std::fs::Permissions::from_mode(0o000);
        std::fs::set_permissions(dir.path().join("closed"), none).unwrap();
        let (_, walked) = paths(&Root::open(dir.path()).unwrap());
        assert_eq!(
            (walked.entries, walked.unreadable, walked.incomplete),
            (1, 1, None)
        );
    });
}
