//! `diff` of sessions in copies and in the workspace itself.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::cli::POOL;
use crate::drill::{Drill, Ran};

/// Runs a task that changes something; its session, and its copy if it has one.
fn changed(drill: &Drill, prompt: &str) -> (String, Option<PathBuf>) {
    let ran = drill.run(&["run", "--results", "out.jsonl", prompt]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    let result = drill.results("out.jsonl").pop().expect("a result");
    let session = result["session"].as_str().expect("a session").to_owned();
    assert!(
        !ran.all().contains("copies/"),
        "nobody is sent there: {}",
        ran.all()
    );
    let copy = result["workspace"].as_str().map(PathBuf::from);
    (session, copy)
}

fn diff(drill: &Drill, args: &[&str]) -> Ran {
    let ran = drill.run(&[&["diff"], args].concat());
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    ran
}

#[test]
fn the_changes_of_a_copy_are_shown_without_entering_it() {
    let drill = Drill::new(POOL);
    fs::write(drill.workspace().join("README.md"), "one\ntwo\n").expect("written");
    let (first, copy) = changed(&drill, "write README.md three");
    let shown = diff(&drill, &[&first]).stdout;
    for part in ["modified README.md", "--- a/README.md", "-one", "+three"] {
        assert!(shown.contains(part), "{part:?} in {shown}");
    }
    let (session, _) = changed(&drill, "read README.md");
    let ran = diff(&drill, &[&session]);
    assert!(ran.stdout.is_empty(), "{}", ran.all());
    assert!(ran.stderr.contains("changed nothing"), "{}", ran.all());
    let (session, _) = changed(&drill, "write package.json {}\nwrite made.txt new");
    let ran = diff(&drill, &[&session]);
    let begin = ran.stdout.lines().next().unwrap_or_default();
    assert_eq!(
        begin,
        "takes effect outside of the sandbox:",
        "{}",
        ran.all()
    );
    assert!(ran.stdout.contains("+new"), "{}", ran.all());
    // What is shown can be applied.
    let mut apply = Command::new("git")
        .args(["apply", "-"])
        .current_dir(drill.workspace())
        .stdin(Stdio::piped())
        .spawn()
        .expect("git");
    let mut input = apply.stdin.take().expect("a pipe");
    input.write_all(ran.stdout.as_bytes()).expect("written");
    drop(input);
    assert!(apply.wait().expect("its end").success());
    let made = fs::read_to_string(drill.workspace().join("made.txt"));
    assert!(made.is_ok_and(|text| text.starts_with("new")));
    fs::remove_file(drill.workspace().join("made.txt")).expect("removed");
    let only = diff(&drill, &[&session, "made.txt"]).stdout;
    assert!(
        only.contains("made.txt") && !only.contains("package.json"),
        "{only}"
    );
    let ran = drill.run(&["--json", "diff", &session, "made.txt"]);
    let object: Value = serde_json::from_str(ran.stdout.trim()).expect("an object");
    assert_eq!(
        (&object["path"], &object["change"]),
        (&"made.txt".into(), &"added".into())
    );
    assert!(
        object["diff"]
            .as_str()
            .is_some_and(|text| text.contains("+new")),
        "{object}"
    );

    // A link that the agent left in the place of a file shows nothing of where it leads.
    let secret = drill.path("secret");
    fs::write(&secret, "of the host").expect("written");
    let readme = copy.expect("a copy").join("README.md");
    fs::remove_file(&readme).expect("removed");
    symlink(&secret, &readme).expect("a link");
    let ran = diff(&drill, &[&first]);
    assert!(ran.stdout.contains("README.md"), "{}", ran.all());
    assert!(!ran.all().contains("of the host"), "{}", ran.all());
}

#[test]
fn the_changes_in_the_workspace_itself_are_named() {
    let drill = Drill::new(&POOL.replace("mode = \"copy\"", "mode = \"rw\""));
    let (session, copy) = changed(&drill, "write made.txt new");
    assert_eq!(copy, None);
    let ran = diff(&drill, &[&session]);
    assert!(ran.stdout.contains("added    made.txt"), "{}", ran.all());
    assert!(
        ran.stderr.contains("git diff there shows the lines"),
        "{}",
        ran.all()
    );
    let ran = drill.run(&["diff", "01a20075-f486-778a-b53a-e7e5ae8a4dfb"]);
    assert_eq!(ran.code, Some(2), "{}", ran.all());
}
