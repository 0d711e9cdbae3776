//! `agents`: what this host has, and a configuration to begin with.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

use crate::programs;

/// The program in a directory of its own, with nothing around it but the system's programs.
fn marshal(dir: &Path, path: &str, args: &[&str]) -> Output {
    // Beside the directory: a workspace may not hold the state.
    let home = dir.parent().expect("a parent").join("home");
    Command::new(env!("CARGO_BIN_EXE_marshal"))
        .args(args)
        .current_dir(dir)
        .env_clear()
        .env("PATH", path)
        .env("HOME", home)
        .output()
        .expect("marshal starts")
}

fn scratch() -> TempDir {
    let dir = tempfile::Builder::new().prefix("marshal-agents-").tempdir();
    dir.expect("a directory")
}

/// A program of this name that says its version.
fn install(dir: &Path, name: &str) {
    fs::create_dir_all(dir).expect("a directory");
    let text = b"#!/bin/sh\necho \"agent 9.8.7\"\n";
    programs::install(&dir.join(name), &text[..]);
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn the_table_has_what_is_installed_with_its_version_and_what_installs_the_rest() {
    let dir = scratch();
    let bin = dir.path().join("bin");
    install(&bin, "codex-acp");
    let path = bin.display().to_string();
    let work = dir.path().join("project");
    fs::create_dir_all(&work).expect("a directory");
    let output = marshal(&work, &path, &["agents"]);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    let output = out(&output);
    let row = |name: &str| {
        let row = output.lines().find(|line| line.starts_with(name));
        let row = row.unwrap_or_else(|| panic!("no {name} in {output}"));
        row.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let file = fs::canonicalize(bin.join("codex-acp")).expect("real");
    let codex = format!("codex installed 9.8.7 0.16.0 some {}", file.display());
    assert_eq!(row("codex "), codex);
    assert_eq!(
        row("gemini "),
        "gemini missing - 0.61.0 some npm install -g @google/gemini-cli"
    );
    assert!(row("script ").starts_with("script built in"), "{output}");

    let json = out(&marshal(&work, &path, &["--json", "agents"]));
    let agents: Vec<Value> = json
        .lines()
        .map(|line| serde_json::from_str(line).expect("an object"))
        .collect();
    let of = |name: &str| agents.iter().find(|agent| agent["agent"] == name);
    assert_eq!(of("codex").expect("codex")["state"], "installed");
    assert_eq!(of("codex").expect("codex")["version"], "9.8.7");
    let hermes = of("hermes").expect("hermes");
    assert_eq!(hermes["state"], "missing");
    assert_eq!(hermes["waits"], "60s");
    assert_eq!(hermes["mode"], "default");
    assert_eq!(hermes["proc"], "pid");

    let show = out(&marshal(&work, &path, &["agents", "show", "hermes"]));
    for part in [
        "waits      60s for an answer",
        "mode       default",
        "proc       pid",
        "proxies    yes: ",
    ] {
        assert!(show.contains(part), "{part:?} in {show}");
    }
    let show = out(&marshal(&work, &path, &["agents", "show", "gemini"]));
    for part in ["waits      forever", "logs in    by gemini-api-key"] {
        assert!(show.contains(part), "{part:?} in {show}");
    }
}

#[test]
fn a_written_configuration_runs_and_no_other_is_overwritten() {
    let dir = scratch();
    let work = dir.path().join("project");
    fs::create_dir_all(&work).expect("a directory");
    fs::write(work.join("README.md"), "# A project\n").expect("a file");
    let path = "/usr/local/bin:/usr/bin:/bin";
    let wrote = marshal(&work, path, &["init", "--agent", "script"]);
    assert_eq!(wrote.status.code(), Some(0), "{}", err(&wrote));
    let file = work.join("supervisor.toml");
    assert!(
        err(&wrote).contains(&format!("written: {}", file.display())),
        "{}",
        err(&wrote)
    );
    let text = fs::read_to_string(&file).expect("supervisor.toml");
    assert!(
        text.contains("\n[pool.script]\nagent = \"script\"\n"),
        "{text}"
    );
    assert!(text.contains("\npolicy = \"autonomous\"\n"), "{text}");

    let file_name = file.to_str().expect("a path");
    let checked = marshal(&work, path, &["--config", file_name, "config", "check"]);
    assert_eq!(checked.status.code(), Some(0), "{}", err(&checked));
    let args = ["--config", file_name, "--json", "run", "say started"];
    let ran = marshal(&work, path, &args);
    assert_eq!(ran.status.code(), Some(0), "{}{}", out(&ran), err(&ran));
    assert!(out(&ran).contains("started"), "{}", out(&ran));

    // Its policy relies on the sandbox: where that does not confine the agent, nothing starts.
    for (from, to, missing) in [
        ("mode = \"copy\"", "mode = \"rw\"", "private_workspace"),
        ("agent =", "network = \"host\"\nagent =", "confined_network"),
        ("agent =", "launcher = \"none\"\nagent =", "no_gaps"),
    ] {
        let other = dir.path().join("weaker.toml");
        let weaker = text.replace("path = \".\"", "path = \"project\"");
        fs::write(&other, weaker.replace(from, to)).expect("a file");
        let other = other.to_str().expect("a path");
        let checked = marshal(&work, path, &["--config", other, "config", "check"]);
        assert_eq!(
            checked.status.code(),
            Some(2),
            "{missing} {}",
            err(&checked)
        );
        let refusal = format!("is only for a sandbox with {missing}");
        assert!(err(&checked).contains(&refusal), "{}", err(&checked));
    }

    // A second one is refused, whatever it would write; the first stays.
    let again = marshal(&work, path, &["init", "--agent", "codex"]);
    assert_eq!(again.status.code(), Some(2), "{}", err(&again));
    assert!(err(&again).contains("--force"), "{}", err(&again));
    assert!(err(&again).contains("exists"), "{}", err(&again));
    assert_eq!(fs::read_to_string(&file).expect("still there"), text);

    // A name that is none is told what there is, and nothing is written.
    let other = dir.path().join("other");
    fs::create_dir_all(&other).expect("a directory");
    let unknown = marshal(&other, path, &["init", "--agent", "codecs"]);
    assert_eq!(unknown.status.code(), Some(2), "{}", err(&unknown));
    assert!(err(&unknown).contains("codex"), "{}", err(&unknown));
    assert!(!other.join("supervisor.toml").exists());
}
