//! What stands beside a clone, and what of a bundle is kept.

use super::super::testing::scratch;
use super::*;

fn id(byte: char) -> ObjectId {
    ObjectId::new(&byte.to_string().repeat(40)).unwrap()
}

#[test]
fn what_is_known_of_a_clone_is_read_again() {
    let dir = scratch();
    let state = StateDir::open(&dir.path().join("state"), &[]).unwrap();
    let session = SessionId::new("s").unwrap();
    let known = CloneRecord {
        v: 1,
        source: "/srv/project".into(),
        base: id('a'),
        at: String::new(),
        branch: Some("marshal/r/t".to_owned()),
    };
    let further = CloneRecord {
        at: "third/lib".to_owned(),
        ..known.clone()
    };
    let (of_workspace, of_lib) = (CloneId::workspace(&session), CloneId::numbered(&session, 1));
    assert_eq!(CloneId::all(state.copies(), &session), []);
    let (part, path) = scratch_of(&state);
    std::fs::write(path.join("file"), "x").unwrap();
    let records = [
        (of_workspace.clone(), known.clone()),
        (of_lib.clone(), further.clone()),
    ];
    let clone = publish_clones(&state, &session, &part, &records).unwrap();
    assert_eq!(std::fs::read_to_string(clone.join("file")).unwrap(), "x");
    assert_eq!(read_record(state.copies(), &of_workspace).unwrap(), known);
    assert_eq!(read_record(state.copies(), &of_lib).unwrap(), further);
    let all = [of_workspace.clone(), of_lib];
    assert_eq!(CloneId::all(state.copies(), &session), all);
    let base = id('a');
    let outside = format!(r#"{{"v":1,"source":"/","base":"{base}","branch":"marshal/../x"}}"#);
    for bad in ["", "{}", r#"{"v":2,"source":"/","base":"aa"}"#, &outside] {
        let file = state.copies().path().join("s,branch");
        std::fs::write(file, bad).unwrap();
        assert!(read_record(state.copies(), &of_workspace).is_err(), "{bad}");
    }
}

#[test]
fn the_branch_of_a_task_is_one_that_git_takes_and_no_other_task_has() {
    let branch =
        |run: &str, task: &str| task_branch(&RunId::new(run).unwrap(), &TaskId::new(task).unwrap());
    assert_eq!(branch("r1", "fix-1.2"), "marshal/r1/fix-1.2");
    assert_eq!(branch("r1", "a..b."), "marshal/r1/a+2+b+1+");
    assert_eq!(branch("r1", "a.LOCK"), "marshal/r1/a+1+LOCK");
    assert_eq!(branch("r1", "a.lock.b"), "marshal/r1/a.lock.b");
    let long = "a..".repeat(42);
    let ids = [
        "a", "a.", "a..", "a.b", "a..b", "a.lock", "a..lock", "lock", "a1", &long,
    ];
    let all: std::collections::BTreeSet<String> = ids.iter().map(|id| branch(id, id)).collect();
    assert_eq!(all.len(), ids.len());
    for id in ids {
        let name = branch("r1", id);
        assert!(rebase::is_branch_name(&name), "{name}");
        let owner = BranchOwner::Task {
            run: "r1".to_owned(),
            task: id.to_owned(),
        };
        assert_eq!(branch_owner(&name), Some(owner), "{name}");
    }
    let session = BranchOwner::Session("s".to_owned());
    assert_eq!(branch_owner("marshal/s"), Some(session));
    for other in [
        "main",
        "marshal/a/b/c",
        "marshal/r/a+x+",
        "marshal/r/a+9",
        "marshal/r/a+1+b",
    ] {
        assert_eq!(branch_owner(other), None, "{other}");
    }
}

fn scratch_of(state: &StateDir) -> (String, PathBuf) {
    super::create_scratch(state.copies(), "s", None).unwrap()
}

#[test]
fn only_a_plain_file_that_is_a_bundle_is_kept() {
    let dir = scratch();
    let state = StateDir::open(&dir.path().join("state"), &[]).unwrap();
    let clone = CloneId::numbered(&SessionId::new("s").unwrap(), 2);
    let (part, path) = scratch_of(&state);
    let made = path.join(OUT_BUNDLE);
    let record = CloneRecord {
        v: 1,
        source: "/srv/project".into(),
        base: id('a'),
        at: "lib".to_owned(),
        branch: None,
    };
    let keep = || store_bundle(&state, &clone, &part, &record);
    assert!(keep().is_err(), "nothing was made");
    std::fs::write(&made, "no bundle").unwrap();
    assert!(matches!(
        keep(),
        Err(BranchError::Header(BundleHeaderError::Signature))
    ));
    let text = format!("# v2 git bundle\n{} refs/heads/marshal/s\n\nPACK", id('b'));
    std::fs::write(&made, &text).unwrap();
    std::fs::hard_link(&made, path.join("second")).unwrap();
    assert!(keep().is_err(), "a second name could change it");
    std::fs::remove_file(path.join("second")).unwrap();
    let kept = keep().unwrap();
    assert_eq!(std::fs::read_to_string(&kept).unwrap(), text);
    assert_eq!(kept, bundle_path(state.copies(), &clone));
    let head = stored_header(state.copies(), &clone, &record).unwrap();
    assert_eq!(head.tip, id('b'));
    // A link is none, and a fifo does not make anybody wait.
    std::fs::remove_file(&made).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", &made).unwrap();
    assert!(keep().is_err());
    std::fs::remove_file(&made).unwrap();
    let mode = Mode::from_raw_mode(0o600);
    rustix::fs::mkfifoat(rustix::fs::CWD, &made, mode).unwrap();
    assert!(keep().is_err());
}

#[test]
fn a_source_without_a_repository_of_its_own_is_refused() {
    let dir = scratch();
    let at = |name: &str| dir.path().join(name);
    assert!(matches!(
        Repository::find(dir.path()),
        Err(BranchError::NoRepository)
    ));
    std::fs::write(at(".git"), "gitdir: /elsewhere").unwrap();
    assert!(matches!(
        Repository::find(dir.path()),
        Err(BranchError::GitFile(GitFileFault::Missing))
    ));
    std::fs::remove_file(at(".git")).unwrap();
    std::fs::create_dir_all(at(".git/objects/info")).unwrap();
    assert_eq!(Repository::find(dir.path()).unwrap().common, at(".git"));
    std::fs::write(at(".git/objects/info/alternates"), "/elsewhere\n").unwrap();
    assert!(matches!(
        Repository::find(dir.path()),
        Err(BranchError::HasAlternates)
    ));
}
