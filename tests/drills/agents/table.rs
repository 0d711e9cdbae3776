//! The table in `docs/agents.md`: one row an agent, made of what a run saw.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::agents::bench::tools;
use crate::agents::five::{Kind, Refusal};

fn page() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/agents.md")
}

/// What `agents` says of an installed agent.
pub(crate) fn agent_row(name: &str) -> Value {
    let dir = tools().join("five").join(name);
    let path = format!(
        "{}:{}:/usr/bin:/bin",
        dir.join("node_modules/.bin").display(),
        dir.join("bin").display()
    );
    let output = Command::new(env!("CARGO_BIN_EXE_marshal"))
        .args(["--json", "agents", "show", name])
        .env_clear()
        .env("PATH", path)
        .current_dir("/")
        .output()
        .expect("marshal starts");
    serde_json::from_slice(&output.stdout).expect("an object")
}

/// Compares the row of an agent that passed with the committed one, or writes it.
pub(crate) fn check(kind: &Kind) {
    let reported = agent_row(kind.name);
    assert_eq!(reported["state"], "installed", "{reported}");
    let touch = if kind.asks {
        "asked, allowed"
    } else {
        "not asked, judged and counted"
    };
    let refusal = match kind.refusal {
        Refusal::Stops(reason) => format!("the turn ends `{reason}`"),
        Refusal::Says(words) => format!("the call's result says \"{words}\""),
    };
    let row = format!(
        "| {} | {} | {}: {} | `touch`: {touch} | `{}`: asked, denied, no effect; {refusal} | cancelled, killed, next prompt served | none inside |",
        kind.name,
        reported["version"].as_str().unwrap_or("?"),
        reported["permission_requests"].as_str().unwrap_or("?"),
        reported["evidence"].as_str().unwrap_or("?"),
        kind.denied,
    );
    compare(kind.name, &row);
}

/// The same for an agent without a preset.
pub(crate) fn compare(name: &str, row: &str) {
    compare_on(&page(), name, row);
}

/// The same for a table of another page.
pub(crate) fn compare_on(page: &Path, name: &str, row: &str) {
    let text = fs::read_to_string(page).expect("a page");
    let begins = format!("| {name} | ");
    let committed = text.lines().find(|line| line.starts_with(&begins));
    if std::env::var("MARSHAL_AGENTS_TABLE").is_ok_and(|value| value == "write") {
        let committed = committed.unwrap_or_else(|| panic!("no row of {name} to write over"));
        fs::write(page, text.replacen(committed, row, 1)).expect("a page");
        return;
    }
    assert_eq!(
        committed,
        Some(row),
        "{} is not what was seen: MARSHAL_AGENTS_TABLE=write tests/run agents",
        page.display()
    );
}
