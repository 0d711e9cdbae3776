//! The program of an agent is on record: a changed one is an event and, where it is pinned, refused.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use serde_json::Value;

use crate::drill::Drill;
use crate::programs::install;

/// A pool whose agent is a program of its own.
fn pool(agent: &Path, more: &str) -> String {
    let shown = agent.parent().expect("a directory").display().to_string();
    let agent = agent.display().to_string();
    format!(
        "[pool.demo]\nsize = 1\ncommand = [{agent:?}, \"script-agent\", \"--dialect\", \"scaiflux\"]\n\
         dialect = \"scaiflux\"\npolicy = \"developer\"\nattempts = 1\n\
         workspace = {{ path = \"project\", mode = \"copy\" }}\n\
         env = {{ set = {{ DRILL = \"MARK\" }} }}\n{more}\
         [sandbox.standard]\nro_bind = [\"/usr\", {shown:?}]\n"
    )
}

/// A copy of the script agent's program.
fn agent(dir: &Path) -> std::path::PathBuf {
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).expect("permissions");
    let path = dir.join("agent");
    let program = fs::File::open(env!("CARGO_BIN_EXE_marshal")).expect("the program");
    install(&path, program);
    path
}

/// What the events say: whether a digest was on record before, for each event.
fn recorded(drill: &Drill) -> Vec<bool> {
    let ran = drill.run(&["--json", "events", "--kind", "program_recorded"]);
    let lines = ran.stdout.lines().map(|line| {
        let event: Value = serde_json::from_str(line).expect("an event");
        let body = event.to_string();
        assert!(
            body.contains("\"sha256\"") && body.contains("/agent"),
            "{body}"
        );
        body.contains("\"was\"")
    });
    lines.collect()
}

/// Adds a byte behind the end of the program, which it does not notice.
fn change(agent: &Path) {
    let mut file = OpenOptions::new()
        .append(true)
        .open(agent)
        .expect("the program");
    file.write_all(b"x").expect("changed");
}

#[test]
fn a_changed_program_is_an_event() {
    let dir = tempfile::tempdir().expect("a directory");
    let agent = agent(dir.path());
    let drill = Drill::new(&pool(&agent, ""));
    for (is_changed, expected) in [
        (false, &[false][..]),
        (false, &[false]),
        (true, &[false, true]),
        (false, &[false, true]),
    ] {
        if is_changed {
            change(&agent);
        }
        let ran = drill.run(&["run", "list ."]);
        assert_eq!(ran.code, Some(0), "{}", ran.all());
        assert_eq!(recorded(&drill), expected);
    }
}

#[test]
fn a_pinned_program_does_not_start_after_a_change() {
    let dir = tempfile::tempdir().expect("a directory");
    let agent = agent(dir.path());
    let drill = Drill::new(&pool(&agent, "pin = true\n"));
    let ran = drill.run(&["run", "list ."]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    change(&agent);
    let ran = drill.run(&["run", "write made.txt x"]);
    assert_eq!(ran.code, Some(1), "{}", ran.all());
    let record = drill.state().join("programs/demo.json");
    for part in [
        "was changed since it was recorded",
        "pin = true",
        &record.display().to_string(),
    ] {
        assert!(ran.all().contains(part), "{part:?} in {}", ran.all());
    }
    // A record that nobody can read permits nothing.
    let text = fs::read_to_string(&record).expect("the record");
    fs::write(&record, "{").expect("written");
    let ran = drill.run(&["run", "list ."]);
    assert_eq!(ran.code, Some(1), "{}", ran.all());
    assert!(ran.all().contains("programs/demo.json"), "{}", ran.all());
    fs::write(&record, text).expect("written");
    // Who removes it accepts the change.
    fs::remove_file(&record).expect("removed");
    let ran = drill.run(&["run", "list ."]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
}

#[test]
fn a_pinned_program_that_is_not_found_does_not_start() {
    let drill = Drill::new(&pool(Path::new("/nobody-has/this"), "pin = true\n"));
    let ran = drill.run(&["run", "list ."]);
    assert_ne!(ran.code, Some(0), "{}", ran.all());
    assert!(ran.all().contains("/nobody-has"), "{}", ran.all());
    // By its name alone it is looked for in the directories of the PATH.
    let text = pool(Path::new("/nobody-has/this"), "pin = true\n");
    let text = text.replace("\"/nobody-has/this\"", "\"nobody-has-this\"");
    let drill = Drill::new(&text.replace(", \"/nobody-has\"", ""));
    let ran = drill.run(&["run", "list ."]);
    assert_eq!(ran.code, Some(2), "{}", ran.all());
    let part = "nobody-has-this was not found in PATH";
    assert!(ran.all().contains(part), "{part:?} in {}", ran.all());
}
