//! Setups of real projects, with their real package managers and registries: what the first task waits
//! for, and the second does not.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::drill::{Drill, Ran};

const POOL: &str = r#"
[pool.demo]
size      = 1
dialect   = "acp"
command   = ["marshal", "script-agent", "--dialect", "acp"]
policy    = "open"
env       = { path_add = PATHS, set = { DRILL = "MARK", CARGO_HOME = "/workspace/.cargo-home" } }

[pool.demo.workspace]
path  = "project"
mode  = "worktree"
setup = { command = COMMAND, inputs = INPUTS, network = "host", timeout = "5m" }

[sandbox.standard]
ro_bind = PATHS_BOUND

[policy.open]
file = "open.toml"
"#;

const OPEN: &str = r#"
schema  = 1
name    = "open"
extends = ["builtin:guard"]
default = "allow"
"#;

/// A project of some kind.
struct Project {
    name: &'static str,
    command: &'static str,
    inputs: &'static str,
    files: &'static [(&'static str, &'static str)],
    /// Runs without a network, and prints something.
    uses: &'static str,
    prints: &'static str,
}

const NPM: Project = Project {
    name: "npm",
    command: r#"["npm", "ci", "--no-audit", "--no-fund"]"#,
    inputs: r#"["package-lock.json"]"#,
    files: &[(
        "package.json",
        r#"{"name":"p","version":"1.0.0","dependencies":{"is-odd":"3.0.1","semver":"7.6.3"}}"#,
    )],
    uses: "node -p 'require(\"is-odd\")(3) + require(\"semver\").valid(\"1.2.3\")'",
    prints: "true1.2.3\n",
};

const PYTHON: Project = Project {
    name: "Python",
    command: r#"["sh", "-c", "/usr/bin/python3 -m venv .venv && .venv/bin/pip install -q -r requirements.txt"]"#,
    inputs: r#"["requirements.txt"]"#,
    files: &[("requirements.txt", "idna==3.7\npackaging==24.1\n")],
    uses: ".venv/bin/python -c 'import idna; print(idna.encode(\"b\u{fc}cher.example\").decode())'",
    prints: "xn--bcher-kva.example\n",
};

const CARGO: Project = Project {
    name: "cargo",
    command: r#"["sh", "-c", "CARGO_HOME=/workspace/.cargo-home cargo build -q"]"#,
    inputs: r#"["Cargo.lock", "Cargo.toml"]"#,
    files: &[
        (
            "Cargo.toml",
            "[package]\nname = \"p\"\nversion = \"0.1.0\"\nedition = \"2021\"\n[dependencies]\nitoa = \"1\"\nserde_json = \"1\"\n",
        ),
        (
            "src/main.rs",
            "fn main() {\n    println!(\"{}\", serde_json::json!(itoa::Buffer::new().format(7)));\n}\n",
        ),
        (".gitignore", "/target\n/.cargo-home\n"),
    ],
    uses: "cargo run --offline --locked -q",
    prints: "\"7\"\n",
};

/// The output of a command of this host.
fn output(dir: &Path, words: &[&str]) -> String {
    let mut command = Command::new(words[0]);
    let output = command.args(&words[1..]).current_dir(dir).output();
    let output = output.unwrap_or_else(|error| panic!("{words:?}: {error}"));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?}: {stderr}");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

fn run(drill: &Drill, project: &Project) -> Ran {
    let prompt = format!("unasked {} > saw.txt 2>&1", project.uses);
    let ran = drill.run(&["run", "--results", "r.jsonl", &prompt]);
    let result = drill.results("r.jsonl").remove(0);
    let clone = result["workspace"].as_str().unwrap_or_default();
    let saw = fs::read_to_string(Path::new(clone).join("saw.txt")).unwrap_or_default();
    assert_eq!(saw, project.prints, "{}: {}", project.name, ran.all());
    ran
}

/// Runs two tasks; the agent has no network, so that what it uses comes from the setup.
fn the_second_start_waits_for_nothing(project: &Project, lock: &[&str], tools: &[String]) {
    let bound: Vec<String> = std::iter::once("/usr".to_owned())
        .chain(tools.iter().cloned())
        .collect();
    let bins: Vec<String> = tools.iter().map(|dir| format!("{dir}/bin")).collect();
    let pool = POOL
        .replace("PATHS_BOUND", &format!("{bound:?}"))
        .replace("PATHS", &format!("{bins:?}"))
        .replace("COMMAND", project.command)
        .replace("INPUTS", project.inputs);
    let drill = Drill::new(&pool);
    fs::write(drill.path("open.toml"), OPEN).expect("a policy");
    let source = drill.workspace();
    fs::remove_file(source.join("src/lib.rs")).expect("no library");
    for (path, text) in project.files {
        fs::write(source.join(path), text).expect("a file");
    }
    if !lock.is_empty() {
        output(&source, lock);
    }
    let who = ["-c", "user.name=o", "-c", "user.email=o@x"];
    output(&source, &["git", "init", "-q", "-b", "main"]);
    output(&source, &["git", "add", "."]);
    let commit = [&["git"], &who[..], &["commit", "-qm", "first"]].concat();
    output(&source, &commit);
    let first = run(&drill, project);
    let second = run(&drill, project);
    // Another commit with the same inputs.
    fs::write(source.join("README.md"), "# Changed\n").expect("a file");
    let commit = [&["git"], &who[..], &["commit", "-qam", "second"]].concat();
    output(&source, &commit);
    let third = run(&drill, project);
    let mut told = String::new();
    for (which, ran) in [
        ("first", first),
        ("second", second),
        ("other commit", third),
    ] {
        let _ = write!(told, " {which} {:.2} s,", ran.took.as_secs_f64());
    }
    println!(
        "{}: tasks took{told} from the command line to the result",
        project.name
    );
    let layers = fs::read_dir(drill.state().join("layers")).expect("layers");
    assert_eq!(layers.count(), 1);
}

#[test]
fn an_npm_project_is_set_up_once() {
    let lock = [
        "npm",
        "install",
        "--package-lock-only",
        "--no-audit",
        "--no-fund",
    ];
    the_second_start_waits_for_nothing(&NPM, &lock, &[]);
}

#[test]
fn a_python_project_is_set_up_once() {
    the_second_start_waits_for_nothing(&PYTHON, &[], &[]);
}

#[test]
fn a_cargo_project_is_set_up_once() {
    let toolchain = output(Path::new("/"), &["rustc", "--print", "sysroot"]);
    let lock = ["cargo", "generate-lockfile"];
    the_second_start_waits_for_nothing(&CARGO, &lock, &[toolchain]);
}
