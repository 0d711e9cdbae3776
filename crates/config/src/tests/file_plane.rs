//! Directories by which pools are worked, as they are read.

use std::path::Path;
use std::time::Duration;

use super::{accepted_by, discovered_origin, explicit_origin, pool, refused_by, script};
use crate::Approver;

#[test]
fn a_pool_has_a_directory_and_its_usual_keys() {
    let config = accepted_by(
        &explicit_origin(),
        &pool("size = 3\nfile_plane.dir = \"../spool\""),
    );
    let plane = config.pools[0].file_plane.as_ref().expect("a plane");
    assert_eq!(plane.dir, Path::new("/etc/spool"));
    assert!(!plane.answers);
    assert_eq!((plane.max_open, plane.poll), (3, Duration::from_secs(5)));
    let keys = "approval.approvers = [\"ops\"]\n[pool.demo.file_plane]\ndir = \"/s\"\nanswers = true\nanswers_as = \"ops\"\nowner = 1000\nmax_open = 9\npoll = \"1m\"\n";
    let config = accepted_by(&explicit_origin(), &pool(keys));
    let plane = config.pools[0].file_plane.as_ref().expect("a plane");
    assert_eq!(plane.answers_as, Approver::Named("ops".to_owned()));
    assert_eq!((plane.owner, plane.max_open), (Some(1000), 9));
    assert!(
        accepted_by(&explicit_origin(), &pool("")).pools[0]
            .file_plane
            .is_none()
    );
}

#[test]
fn directories_that_cannot_be_are_refused() {
    let refused = |keys: &str, why: &str| refused_by(&explicit_origin(), &pool(keys), why);
    refused(
        "file_plane = {}",
        "pool.demo.file_plane: a file plane needs a directory",
    );
    refused("file_plane.dir = \"~/x\"", "pool.demo.file_plane.dir: ");
    refused(
        "file_plane = { dir = \"/s\", path = \"/t\" }",
        "did you mean dir?",
    );
    refused(
        "file_plane = { dir = \"/s\", max_open = 0 }",
        "expected an integer from 1 to 1024",
    );
    refused(
        "file_plane = { dir = \"/s\", poll = \"1ms\" }",
        "file_plane.poll",
    );
    refused(
        "file_plane = { dir = \"/s\", answers_as = \"Ops\" }",
        "expected \"owner\" or the name of a token",
    );
    refused(
        "file_plane = { dir = \"/s\", answers = true, answers_as = \"ops\" }",
        "the file plane answers as \"ops\", which is not in approval.approvers of the pool",
    );
    refused(
        "file_plane = { dir = \"/s\", answers = true }\napproval.approvers = []",
        "answers as \"owner\"",
    );
    // Agents must not be able to write it, and it must not hold what they write.
    for dir in ["/w", "/w/spool", "/"] {
        let keys = format!("workspace.path = \"/w\"\nfile_plane.dir = \"{dir}\"");
        refused(
            &keys,
            "agents work in \"/w\", and could submit tasks to themselves here",
        );
    }
    let registered = "workspace.path = \"/w\"\nfile_plane.dir = \"/srv/site/x\"\n[workspace.site]\npath = \"/srv/site\"";
    refused(registered, "agents work in \"/srv/site\"");
    let two = "workspace.path = \"/w\"\nfile_plane.dir = \"/s\"\n[pool.two]\ncommand = [\"agent\"]\nworkspace.path = \"/w\"\nfile_plane.dir = \"/s/two\"";
    refused(two, "pool demo has this directory already");
    let message = "a discovered supervisor.toml may not take requests from a directory";
    refused_by(
        &discovered_origin(),
        &script("file_plane.dir = \"/s\""),
        message,
    );
}
