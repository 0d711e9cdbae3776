//! The files of `deploy/` are what their programs take: systemd's and Prometheus's own checkers
//! read them, and the names in them are names that the program has.

mod prometheus;
mod service;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const INSTALLED: &str = "/usr/local/bin/marshal";

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn run(program: &str, arguments: &[&str], at: &Path) -> Output {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(at);
    command
        .output()
        .unwrap_or_else(|error| panic!("{program} is needed ({error}); `tests/run` provides it"))
}

fn assert_ok(output: &Output, what: &str) {
    let printed = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(output.status.success(), "{what}: {printed}");
}

fn unit() -> String {
    fs::read_to_string(root().join("deploy/systemd/marshal.service")).expect("the unit")
}

/// The unit with the binary of this build, as systemd wants to see one.
fn verify(unit: &str) -> Output {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("marshal.service");
    // The directory of the build may have a blank in its name.
    let quoted = concat!("\"", env!("CARGO_BIN_EXE_marshal"), "\"");
    let here = unit.replace(INSTALLED, quoted);
    fs::write(&path, here).expect("written");
    let path = path.to_string_lossy().into_owned();
    run(
        "systemd-analyze",
        &["verify", "--man=no", &path],
        dir.path(),
    )
}

#[test]
fn systemd_takes_the_unit_without_a_remark() {
    let output = verify(&unit());
    assert_ok(&output, "systemd-analyze verify");
    let remarks = String::from_utf8_lossy(&output.stderr);
    let own: Vec<_> = remarks
        .lines()
        .filter(|line| line.contains("marshal"))
        .collect();
    assert!(own.is_empty(), "{own:?}");
    // The check can fail: a misspelt key is remarked.
    let wrong = verify(&unit().replace("KillMode=mixed", "KilMode=mixed"));
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("KilMode"));
}

#[test]
fn the_unit_keeps_the_state_closed_and_shared_locks_in_place() {
    let unit = unit();
    let has = |wanted: &str| unit.lines().any(|line| line == wanted);
    assert!(has("StateDirectory=marshal") && has("StateDirectoryMode=0700"));
    // Blocks of user ids are locked below /run/marshal, by other supervisors of this host, too.
    let cleans = unit
        .lines()
        .any(|line| line.starts_with("RuntimeDirectory="));
    assert!(!cleans || has("RuntimeDirectoryPreserve=yes"));
}

/// A duration as `config show` writes it.
fn seconds(text: &str) -> f64 {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: f64 = digits.parse().expect(text);
    match &text[digits.len()..] {
        "ms" => number / 1000.0,
        "s" => number,
        "m" => number * 60.0,
        unit => panic!("{unit}"),
    }
}

#[test]
fn the_unit_waits_longer_than_a_stop_takes_by_default() {
    let dir = tempfile::tempdir().expect("directory");
    let file = dir.path().join("supervisor.toml");
    let pool = "[pool.p]\ncommand = [\"marshal\", \"script-agent\"]\ndialect = \"acp\"\n";
    fs::write(&file, pool).expect("written");
    let output = Command::new(env!("CARGO_BIN_EXE_marshal"))
        .args(["--json", "--config"])
        .arg(&file)
        .args(["config", "show"])
        .output()
        .expect("run");
    assert_ok(&output, "config show");
    let shown: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let pool = &shown["pool"]["p"];
    let steps = ["drain", "goodbye", "eof", "int", "term"].map(|step| &pool["stop"][step]);
    let steps = steps.into_iter().chain([&pool["timeouts"]["cancel"]]);
    let takes: f64 = steps
        .map(|step| seconds(step.as_str().expect("a time")))
        .sum();
    let unit = unit();
    let waits = unit
        .lines()
        .find_map(|line| line.strip_prefix("TimeoutStopSec="));
    let waits: f64 = waits.expect("a time").parse().expect("seconds");
    // The journal is closed after that.
    assert!(waits >= takes + 20.0, "{waits} {takes}");
}

#[test]
fn the_units_command_is_one_that_the_program_takes() {
    let unit = unit();
    let start = unit
        .lines()
        .find_map(|line| line.strip_prefix("ExecStart="));
    let words: Vec<&str> = start.expect("a command").split(' ').collect();
    assert_eq!(words[0], INSTALLED);
    let output = Command::new(env!("CARGO_BIN_EXE_marshal"))
        .args(&words[1..])
        .arg("--help")
        .output()
        .expect("run");
    assert_ok(&output, "the unit's command with --help");
    assert!(String::from_utf8_lossy(&output.stdout).contains("Usage: marshal"));
}

#[test]
fn prometheus_takes_the_scrape_file_and_the_alerts_fire_when_they_should() {
    let prometheus = root().join("deploy/prometheus");
    assert_ok(
        &run("promtool", &["check", "config", "scrape.yml"], &prometheus),
        "scrape.yml",
    );
    assert_ok(
        &run("promtool", &["check", "rules", "alerts.yml"], &prometheus),
        "alerts.yml",
    );
    let tests = root().join("tests/drills/deploy");
    assert_ok(
        &run("promtool", &["test", "rules", "alerts.test.yml"], &tests),
        "alerts",
    );
}

#[test]
fn alerts_and_scrapes_use_names_that_exist() {
    let read = |path: &str| fs::read_to_string(root().join(path)).expect(path);
    let documented: BTreeSet<String> = names(&read("docs/metrics.md"));
    let alerts = names(&read("deploy/prometheus/alerts.yml"));
    assert!(alerts.len() >= 5, "{alerts:?}");
    let unknown: Vec<_> = alerts.difference(&documented).collect();
    assert!(
        unknown.is_empty(),
        "alerts name what is no metric: {unknown:?}"
    );
    let address = "127.0.0.1:7117";
    assert!(read("deploy/prometheus/scrape.yml").contains(address));
    assert!(unit().contains(address));
}

/// Every word of the text that looks like one of our metrics.
fn names(text: &str) -> BTreeSet<String> {
    text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
        .filter(|word| word.starts_with("marshal_"))
        .map(str::to_owned)
        .collect()
}
