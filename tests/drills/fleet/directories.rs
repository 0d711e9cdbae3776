//! An agent whose shell keeps its directory is judged where that is.

use crate::drill::Drill;

const POLICY: &str = r#"
schema  = 1
name    = "moving"
extends = ["builtin:guard"]
default = "deny"

[[rule]]
id       = "moves"
decision = "allow"
tool     = "shell"
argv     = [["cd"]]

[[rule]]
id       = "inside"
decision = "allow"
tool     = "shell"
argv     = [["touch"]]
paths    = "inside"

[[rule]]
id       = "writes"
decision = "allow"
tool     = "write"
path     = "inside"
"#;

/// What was decided of each call of a script, asked or not, in order.
fn decisions(shell_cwd: &str, script: &str) -> Vec<String> {
    let drill = Drill::new(&format!(
        r#"
[pool.demo]
command   = ["marshal", "script-agent", "--dialect", "acp"]
dialect   = "acp"
policy    = "moving"
shell_cwd = "{shell_cwd}"
workspace = {{ path = "project", mode = "copy" }}
env       = {{ set = {{ DRILL = "MARK" }} }}

[policy.moving]
file = "moving.toml"
"#
    ));
    std::fs::write(drill.path("moving.toml"), POLICY).expect("moving.toml");
    std::os::unix::fs::symlink("/etc", drill.workspace().join("out")).expect("link");
    drill.run(&["run", script]);
    let database = drill.database();
    let query = "SELECT json_extract(body, '$.decision') FROM events \
                 WHERE kind IN ('permission_decided', 'tool_call_unrequested') ORDER BY seq";
    let mut statement = database.prepare(query).expect(query);
    let rows = statement.query_map([], |row| row.get(0)).expect(query);
    rows.map(|row| row.expect("a row")).collect()
}

/// Nobody sees whether a command that moves the shell ran to its end: what is allowed must be so from
/// where it leads and from where it began.
#[test]
fn a_shell_that_keeps_its_directory_is_judged_from_wherever_it_may_be() {
    let script = "run cd src\nrun touch here.txt\nrun touch ../up.txt\nrun touch /workspace/a.txt";
    assert_eq!(
        decisions("sticky", script),
        ["allow", "allow", "deny", "allow"]
    );
    // A directory whose contents lead out is no place to begin a relative path in.
    let script = "run cd out\nrun touch hosts";
    assert_eq!(decisions("sticky", script), ["allow", "deny"]);
    assert_eq!(decisions("workspace", script), ["allow", "allow"]);
}

#[test]
fn where_it_is_not_known_nothing_that_depends_on_it_is_allowed() {
    // A way back may fail as well, and that one ran without being asked about.
    let script = "run cd ../../etc\nrun touch a.txt\nwrite b.txt x\nwrite /workspace/c.txt x\nunasked cd /workspace\nrun touch d.txt";
    assert_eq!(
        decisions("sticky", script),
        ["allow", "deny", "deny", "allow", "deny", "deny"]
    );
    assert_eq!(
        decisions("workspace", script),
        ["allow", "allow", "allow", "allow", "allow", "allow"]
    );
}
