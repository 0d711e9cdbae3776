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
    drill.run(&["run", script]);
    let database = drill.database();
    let query = "SELECT json_extract(body, '$.decision') FROM events \
                 WHERE kind IN ('decided', 'unasked') ORDER BY seq";
    let mut statement = database.prepare(query).expect(query);
    let rows = statement.query_map([], |row| row.get(0)).expect(query);
    rows.map(|row| row.expect("a row")).collect()
}

#[test]
fn a_shell_that_keeps_its_directory_is_judged_where_its_last_command_ended() {
    let script =
        "run cd src\nrun touch ../a.txt\nrun touch ../../b.txt\nrun cd ..\nrun touch ../c.txt";
    assert_eq!(
        decisions("sticky", script),
        ["allow", "allow", "deny", "allow", "deny"]
    );
    assert_eq!(
        decisions("workspace", script),
        ["allow", "deny", "deny", "allow", "deny"]
    );
}

#[test]
fn where_it_is_not_known_nothing_that_depends_on_it_is_allowed_until_it_came_back() {
    // The way back is a whole path; it ran unasked, as nothing would have allowed it.
    let script = "run cd ../../etc\nrun touch a.txt\nwrite b.txt x\nwrite /workspace/c.txt x\nunasked cd /workspace\nrun touch d.txt";
    assert_eq!(
        decisions("sticky", script),
        ["allow", "deny", "deny", "allow", "deny", "allow"]
    );
    assert_eq!(
        decisions("workspace", script),
        ["allow", "allow", "allow", "allow", "allow", "allow"]
    );
}
