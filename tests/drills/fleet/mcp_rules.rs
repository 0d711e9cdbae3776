//! Rules for the tools of MCP servers, from an agent's request to its answer.

use std::fs;

use crate::drill::Drill;
use crate::fleet::approvals::pool;
use crate::fleet::fails_closed::{ASKER, verdicts};

const POLICY: &str = r#"
schema       = 1
name         = "own"
extends      = ["builtin:guard"]
default      = "deny"
unknown_tool = "deny"

[[rule]]
id       = "read-notes"
decision = "allow"
tool     = "mcp"
server   = "notes"
name     = "read_*"
args     = [{ at = "/path", path = "inside" }]

[[rule]]
id       = "no-drop"
decision = "deny"
tool     = "mcp"
server   = "*"
name     = "drop_*"
reason   = "Nothing is dropped from here."
"#;

#[test]
fn a_rule_names_an_mcp_servers_tool_and_its_arguments() {
    let own = r#"["marshal", "script-agent", "--dialect", "scaiflux"]"#;
    let pools = pool("scaiflux", "")
        .replace("\"cautious\"", "\"own\"")
        .replace(own, r#"["python3", "asker.py"]"#)
        + "[policy.own]\nfile = \"own.toml\"\n";
    let drill = Drill::new(&pools);
    fs::write(drill.workspace().join("asker.py"), ASKER).expect("an agent");
    fs::write(drill.path("own.toml"), POLICY).expect("a policy");
    let cases = [
        (
            "mcp__notes__read_one",
            r#"{"path":"a.md"}"#,
            "allow",
            "read-notes",
        ),
        (
            "mcp__notes__read_one",
            r#"{"path":"../../../etc/hosts"}"#,
            "deny",
            "unknown_tool",
        ),
        ("mcp__notes__read_one", "{}", "deny", "unknown_tool"),
        (
            "mcp__notes__write_one",
            r#"{"path":"a.md"}"#,
            "deny",
            "unknown_tool",
        ),
        (
            "mcp__other__read_one",
            r#"{"path":"a.md"}"#,
            "deny",
            "unknown_tool",
        ),
        ("mcp__db__drop_table", "{}", "deny", "no-drop"),
        (
            "mcp__notes__read_one",
            r#"{"path":"~/.ssh/id_ed25519"}"#,
            "deny",
            "guard-secret-mcp",
        ),
        // Two readings: neither is taken.
        (
            "mcp__notes__read__one",
            r#"{"path":"a.md"}"#,
            "deny",
            "unknown_tool",
        ),
    ];
    let lines = cases
        .iter()
        .map(|(tool, input, ..)| format!("{tool} {input}"));
    let prompt = lines.collect::<Vec<_>>().join("\n");
    let ran = drill.run(&["run", &prompt]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    let found = verdicts(&drill);
    assert_eq!(found.len(), cases.len(), "{}", ran.all());
    for ((tool, input, decision, rule), (found, _, rules)) in cases.iter().zip(&found) {
        assert_eq!(found, decision, "{tool} {input}: {rules}");
        assert!(
            rules.contains(&format!("\"{rule}\"")),
            "{tool} {input}: {rules}"
        );
    }
}
