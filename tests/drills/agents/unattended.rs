//! A bug fix with tests and a commit by agents that other people wrote, with nobody near: the policy
//! `autonomous` asks nobody and denies nothing of it, and all that remains is a branch.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::agents::bench::{Model, PATIENCE, alone, result, run_output, start, tools};
use crate::agents::five::{CLAUDE, CODEX, GEMINI, Kind, OPENCODE};
use crate::drill::Drill;

/// A package with a mistake that its tests find.
const FILES: &[(&str, &str)] = &[
    ("README.md", "# Durations\n\nReads `1h30m`.\n"),
    (
        "pyproject.toml",
        "[project]\nname = \"durations\"\nversion = \"0.1\"\n",
    ),
    ("durations/__init__.py", "from .read import seconds\n"),
    (
        "durations/read.py",
        "import re\n\nUNITS = {\"h\": 3600, \"m\": 60, \"s\": 1}\n\n\ndef seconds(text):\n    total = 0\n    \
         for count, unit in re.findall(r\"(\\d+)([hms])\", text):\n        total = int(count) * UNITS[unit]\n    \
         return total\n",
    ),
    ("tests/__init__.py", ""),
    (
        "tests/test_read.py",
        "import unittest\n\nfrom durations import seconds\n\n\nclass Read(unittest.TestCase):\n    \
         def test_one(self):\n        self.assertEqual(seconds(\"2m\"), 120)\n\n    \
         def test_two(self):\n        self.assertEqual(seconds(\"1h30m\"), 5400)\n",
    ),
];

/// What the model does: looks, tries, repairs, tries again, adds a test, commits. Only the last lines
/// of the tests' output are shown: Gemini takes a line of dashes for a model that repeats itself.
const WORK: &str = r#"RUN: git log --oneline && git status --short && ls -R durations tests
RUN: sed -n 1,20p durations/read.py; grep -rn "total" durations | head
RUN: python3 -m unittest 2>&1 | tail -1; echo "tried"
RUN: sed -i 's/total = int/total += int/' durations/read.py && python3 -m unittest 2>&1 | tail -1
RUN: printf '\n    def test_three(self):\n        self.assertEqual(seconds("1h1m1s"), 3661)\n' >> tests/test_read.py
RUN: for f in tests/*.py; do python3 -m py_compile "$f"; done; python3 -m unittest 2>&1 | tail -1 > /tmp/report; cat /tmp/report
RUN: git add -A && git commit -qm 'durations: add up the parts' && git log -1 --stat
SAY: the parts are added up now
"#;

pub(crate) fn git(dir: &Path, args: &[&str]) -> String {
    let output = Command::new("git")
        .arg("-C")
        .arg(dir)
        .args([
            "-c",
            "user.name=o",
            "-c",
            "user.email=o@x",
            "-c",
            "safe.directory=*",
        ])
        .args(args)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .output()
        .expect("git runs");
    assert!(
        output.status.success(),
        "git {args:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout)
        .trim_end()
        .to_owned()
}

fn drill(kind: &Kind, model: &Model) -> Drill {
    let Kind { name, route, .. } = kind;
    let drill = Drill::new(&format!(
        r#"
[route.{route}]
upstream = "{}"
secret   = "env:REHEARSAL_KEY"

[pool.real]
agent     = "{name}"
agent_dir = {:?}
policy    = "autonomous"
workspace = {{ path = "project", mode = "worktree" }}
check     = ["python3", "-m", "unittest", "-q"]
timeouts  = {{ handshake = "4m", cancel = "1m" }}
env       = {{ set = {{ DRILL = "MARK" }} }}
"#,
        model.address,
        tools().join("five").join(name).display().to_string(),
    ));
    let top = drill.workspace();
    for (path, text) in FILES {
        let path = top.join(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
        fs::write(path, text).expect("a file");
    }
    git(&top, &["init", "-q", "-b", "main"]);
    git(&top, &["add", "."]);
    git(&top, &["commit", "-qm", "first"]);
    drill
}

fn repairs(kind: &Kind) {
    let _alone = alone();
    let model = Model::start();
    let drill = drill(kind, &model);
    let top = drill.workspace();
    let before = git(&top, &["rev-parse", "HEAD"]);
    let mut running = start(&drill, &model.key, "night", &[("fix", WORK)]);
    assert_eq!(
        running.wait(PATIENCE),
        Some(0),
        "{}",
        run_output(&drill, "night")
    );
    let all = run_output(&drill, "night");
    let result = result(&drill, "night", "fix");
    assert_eq!(result["outcome"], "done", "{result}\n{all}");
    for count in ["denied", "approvals"] {
        assert_eq!(result["requests"][count], 0, "{count}: {result}\n{all}");
    }
    assert_eq!(result["unasked_denied"], 0, "{result}\n{all}");
    assert_eq!(
        git(&top, &["rev-parse", "HEAD"]),
        before,
        "nothing outside is written"
    );
    assert_eq!(
        git(&top, &["status", "--porcelain"]),
        "",
        "nothing outside is written"
    );
    let session = result["session"].as_str().expect("a session");
    let took = drill.run(&["land", session]);
    assert_eq!(took.code, Some(0), "{}", took.all());
    let branch = result["branch"]["name"].as_str().expect("a branch");
    let log = git(&top, &["log", "--format=%s", branch]);
    assert_eq!(log, "durations: add up the parts\nfirst", "{all}");
    let changed = git(&top, &["diff", "--name-only", "main", branch]);
    assert!(
        changed.contains("durations/read.py") && changed.contains("tests/test_read.py"),
        "{changed}"
    );
    assert_eq!(
        git(&top, &["show", &format!("{branch}:durations/read.py")])
            .matches("+= int")
            .count(),
        1
    );
}

#[test]
fn codex_repairs_and_commits() {
    repairs(&CODEX);
}

#[test]
fn claude_repairs_and_commits() {
    repairs(&CLAUDE);
}

#[test]
fn opencode_repairs_and_commits() {
    repairs(&OPENCODE);
}

#[test]
fn gemini_repairs_and_commits() {
    repairs(&GEMINI);
}
