//! Agents without a preset, by the pools of `docs/agents.md` as they stand there: a text, an allowed edit,
//! an allowed command and a denied command.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use crate::agents::bench::{Model, alone, tools};
use crate::drill::Drill;

const PAGE: &str = include_str!("../../../docs/agents.md");

/// The block of the page that has this text, in this language.
fn block(language: &str, with: &str) -> &'static str {
    let begin = format!("```{language}\n");
    let mut blocks = PAGE.split(begin.as_str()).skip(1);
    let found = blocks.find_map(|rest| {
        let (block, _) = rest.split_once("```")?;
        block.contains(with).then_some(block)
    });
    found.unwrap_or_else(|| panic!("the page has no {with}"))
}

/// One that Debian 12's Python is too old for. `tests/run` installs it where a newer Python is.
#[expect(clippy::print_stderr, reason = "says why nothing was tried")]
fn is_installed(name: &str) -> bool {
    let is = tools().join("five").join(name).exists();
    if !is {
        eprintln!("LEFT OUT: {name} needs Python 3.12 or newer, and tests/run found none");
    }
    is
}

/// `requests_for_edit` are the least: fast-agent does not ask for edits.
fn works(name: &str, home_file: Option<(&str, &str)>, requests_for_edit: u64) {
    let _alone = alone();
    let model = Model::start();
    let place = tools().join("five").join(name);
    let of_npm = place.join("node_modules/.bin");
    let bin = if of_npm.exists() {
        of_npm
    } else {
        place.join("bin")
    };
    let pool = block("toml", &format!("[pool.{name}]"));
    let pool = pool.replacen("path = \".\"", "path = \"project\"", 1);
    let drill = Drill::new(&format!(
        "[route.openai]\nupstream = \"{}\"\nsecret = \"file:key\"\n\n{pool}\
         timeouts = {{ handshake = \"4m\" }}\n",
        model.address
    ));
    fs::write(drill.path("key"), &model.key).expect("a key");
    let own = fs::Permissions::from_mode(0o600);
    fs::set_permissions(drill.path("key"), own).expect("its mode");
    if let Some((file, text)) = home_file {
        fs::write(drill.path(file), text).expect("a file for its home");
    }
    let prompts = [
        "SAY: hello there",
        "WRITE: /workspace/made.txt hello",
        "RUN: touch ran.txt",
        "RUN: curl https://example.com",
    ];
    let mut command = drill.command(&["run", "--jobs", "1", "--results", "r.jsonl"]);
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{}:{path}", bin.display()));
    let output = command.args(prompts).output().expect("marshal starts");
    let all = format!(
        "{}\n{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert_eq!(output.status.code(), Some(1), "{all}");
    let results = drill.results("r.jsonl");
    let result = |id: &str| {
        let found = results.iter().find(|result| result["id"] == id);
        found.unwrap_or_else(|| panic!("no {id}: {all}"))
    };
    let said = result("task-1")["answer"].as_str().unwrap_or_default();
    assert!(said.contains("hello there"), "{all}");
    let allowed = [
        ("task-2", "made.txt", requests_for_edit),
        ("task-3", "ran.txt", 1),
    ];
    for (id, file, requests) in allowed {
        let result = result(id);
        assert_eq!(result["outcome"], "done", "{id}: {all}");
        let allowed = result["requests"]["allowed"].as_u64();
        assert!(allowed >= Some(requests), "{id}: {result}");
        // fast-agent leaves files of its own as well.
        let changes = result["changes"].as_array().expect("changes");
        let made = changes.iter().any(|change| change["path"] == file);
        assert!(made, "{id}: {result}");
    }
    let denied = result("task-4");
    assert_eq!(denied["outcome"], "denied", "{all}");
    assert_eq!(denied["requests"]["denied"], 1, "{denied}");
    assert!(drill.agents().is_empty());
}

#[test]
fn qwen_works_by_the_pool_of_the_page() {
    works("qwen", None, 1);
}

#[test]
fn kilo_works_by_the_pool_of_the_page() {
    let home = block("json", "route/gpt-5");
    works("kilo", Some(("kilo-home.json", home)), 1);
}

#[test]
fn vibe_works_by_the_pool_of_the_page() {
    if is_installed("vibe") {
        let home = block("toml", "# vibe-home.toml");
        works("vibe", Some(("vibe-home.toml", home)), 1);
    }
}

#[test]
fn fast_agent_works_by_the_pool_of_the_page() {
    if is_installed("fast") {
        works("fast", None, 0);
    }
}
