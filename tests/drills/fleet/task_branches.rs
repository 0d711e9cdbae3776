//! The branches of tasks: their names, their authors, and how they come into their repository by
//! themselves, once, whatever is in them and whenever the supervisor is killed.

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use super::worktrees::{branch_of, commit, git, plant, text, try_git};
use crate::drill::{Drill, count};
use crate::programs::install;

const POOL: &str = r#"
[pool.demo]
size      = 2
dialect   = "acp"
command   = ["marshal", "script-agent", "--dialect", "acp"]
policy    = "open"
workspace = { path = "project", mode = "worktree", branches = true, author = "Ada L. <ada@example.com>" }

[policy.open]
file = "open.toml"
"#;

const OPEN: &str = r#"
schema  = 1
name    = "open"
extends = ["builtin:guard"]
default = "allow"
"#;

fn drill_with(pool: &str) -> Drill {
    let drill = Drill::new(pool);
    fs::write(drill.path("open.toml"), OPEN).expect("a policy");
    commit(&drill, &["-b", "main"]);
    drill
}

fn run_tasks(drill: &Drill, code: i32, tasks: &[Value]) -> Vec<Value> {
    let lines: Vec<String> = tasks.iter().map(Value::to_string).collect();
    fs::write(drill.path("tasks.jsonl"), lines.join("\n")).expect("tasks");
    let ran = drill.run(&["run", "--results", "r.jsonl", "tasks.jsonl"]);
    assert_eq!(ran.code, Some(code), "{}", ran.all());
    drill.results("r.jsonl")
}

fn of<'r>(results: &'r [Value], id: &str) -> &'r Value {
    let found = results.iter().find(|result| result["id"] == id);
    found.unwrap_or_else(|| panic!("{id} in {results:?}"))
}

fn task_branches(source: &Path) -> String {
    git(
        source,
        &[
            "for-each-ref",
            "--format=%(refname:short)",
            "refs/heads/marshal",
        ],
    )
}

#[test]
#[allow(clippy::too_many_lines, reason = "one story, told in order")]
fn the_branch_of_a_task_that_is_done_comes_into_the_repository_by_itself() {
    let drill = drill_with(POOL);
    let source = drill.workspace();
    let results = run_tasks(
        &drill,
        1,
        &[
            json!({"id": "one", "prompt": "write made.txt a\nwrite README.md b"}),
            json!({"id": "a..b.lock", "prompt": "write odd.txt x"}),
            json!({"id": "none", "prompt": "say nothing"}),
            json!({"id": "outside", "prompt": "write package.json {}"}),
            json!({"id": "bad", "prompt": "write bad.txt x", "check": ["false"]}),
            json!({"id": "good", "prompt": "write good.txt x", "check": ["true"]}),
        ],
    );
    let one = of(&results, "one");
    let run = text(one, "run");
    assert_eq!(branch_of(one), format!("marshal/{run}/one"));
    assert_eq!(one["branch"]["in_repository"], true, "{one}");
    assert_eq!(
        one["branch"]["lines"],
        json!({"files": 2, "added": 2, "removed": 1}),
        "{one}"
    );
    let log = git(&source, &["log", "--format=%s|%an <%ae>", branch_of(one)]);
    assert!(
        log.starts_with("Uncommitted work|Ada L. <ada@example.com>\nfirst|"),
        "{log}"
    );
    let odd = branch_of(of(&results, "a..b.lock"));
    assert_eq!(odd, format!("marshal/{run}/a+2+b+1+lock"));
    assert!(of(&results, "none")["branch"].is_null());
    // What takes effect outside waits, and the result says what to do.
    let outside = of(&results, "outside");
    assert_eq!(outside["outcome"], "done", "{outside}");
    assert_eq!(outside["branch"]["in_repository"], false, "{outside}");
    let why = text(outside, "detail");
    assert!(why.ends_with("/outside --allow package.json"), "{why}");
    // What is not done does not come in either.
    let bad = of(&results, "bad");
    assert_eq!(
        (&bad["outcome"], &bad["check"]),
        (&json!("failed"), &json!("failed"))
    );
    assert_eq!(bad["branch"]["in_repository"], false, "{bad}");
    let good = of(&results, "good");
    assert_eq!(good["check"], "passed", "{good}");
    let mut there = [branch_of(one), odd, branch_of(good)];
    there.sort_unstable();
    assert_eq!(task_branches(&source), there.join("\n"));
    git(&source, &["fsck", "--strict"]);
    // By the name of its branch, and under another one.
    let name = branch_of(outside);
    let refused = drill.run(&["land", name]);
    assert_eq!(refused.code, Some(1), "{}", refused.all());
    let landed = drill.run(&["land", name, "--allow", "package.json", "--into", "kept/it"]);
    assert_eq!(landed.code, Some(0), "{}", landed.all());
    assert_eq!(git(&source, &["show", "kept/it:package.json"]), "{}");
    for (into, by) in [
        ("kept", "kept/it"),
        ("kept/it/below", "kept/it"),
        (name, ""),
    ] {
        let args = ["land", name, "--allow", "package.json", "--into", into];
        let landed = drill.run(&args);
        assert_eq!(
            landed.code,
            Some(i32::from(!by.is_empty())),
            "{into}: {}",
            landed.all()
        );
        let told = format!("has a branch {by}");
        assert!(
            by.is_empty() || landed.stderr.contains(&told),
            "{into}: {}",
            landed.all()
        );
    }
    for bad in ["../x", "a..b", "-x"] {
        let landed = drill.run(&["land", name, &format!("--into={bad}")]);
        assert_eq!(landed.code, Some(2), "{bad}: {}", landed.all());
    }
    let unknown = drill.run(&["land", &format!("marshal/{run}/nobody")]);
    assert_eq!(unknown.code, Some(2), "{}", unknown.all());

    let shown = drill.run(&["results"]);
    let line = |task: &str| {
        let found = shown.stdout.lines().find(|line| line.starts_with(task));
        let words = found.unwrap_or_else(|| panic!("{task}: {}", shown.all()));
        words
            .split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        line("task")[..7],
        ["task", "outcome", "branch", "files", "+/-", "check", "cost"]
    );
    assert_eq!(
        line("one")[1..],
        ["done", branch_of(one), "2", "+2", "-1", "none"]
    );
    assert_eq!(
        line("good")[1..],
        ["done", branch_of(good), "1", "+1", "-0", "passed"]
    );
    assert_eq!(
        line("bad")[1..],
        ["failed", branch_of(bad), "1", "+1", "-0", "failed"]
    );
    let listed = drill.run(&["--json", "results"]);
    let listed: Vec<Value> = listed
        .stdout
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let one = listed
        .iter()
        .find(|task| task["task"] == "one")
        .expect("one");
    assert_eq!(one["lines"], json!({"files": 2, "added": 2, "removed": 1}));
    assert_eq!(
        (&one["in_repository"], &one["check"]),
        (&json!(true), &Value::Null)
    );
}

/// The agent commits what git refuses to unpack, plants programs in the repository's neighbourhood, and
/// its branch has the name of another one.
#[test]
fn a_hostile_branch_stays_outside_and_nothing_is_overwritten() {
    let drill = drill_with(POOL);
    let source = drill.workspace();
    let proof = drill.path("proof");
    plant(&source, &proof);
    let modules = "[submodule \"x\"]\\n\\tpath = x\\n\\turl = --upload-pack=evil\\n";
    let hostile = format!(
        "unasked printf '{modules}' > m && b=$(git hash-object -w m) && rm m && \
         t=$(printf '100644 blob %s\\t.gitmodules\\n160000 commit %s\\tx\\n' $b $(git rev-parse HEAD) | git mktree --missing) && \
         git reset -q --soft $(git commit-tree $t -p HEAD -m x) && git read-tree HEAD && git update-index --skip-worktree .gitmodules x"
    );
    let results = run_tasks(
        &drill,
        0,
        &[
            json!({"id": "hostile", "prompt": hostile}),
            json!({"id": "plain", "prompt": "write a.txt x"}),
        ],
    );
    let hostile = of(&results, "hostile");
    assert_eq!(hostile["branch"]["in_repository"], false, "{hostile}");
    let why = text(hostile, "detail");
    assert!(
        why.contains("is not in the repository") && why.contains("gitmodules"),
        "{why}"
    );
    let plain = of(&results, "plain");
    assert_eq!(plain["branch"]["in_repository"], true, "{plain}");
    assert_eq!(
        fs::read_dir(&proof).expect("proof").count(),
        0,
        "something planted ran"
    );
    fs::remove_file(source.join(".git/config")).expect("config");
    assert_eq!(task_branches(&source), branch_of(plain));

    // A name that is taken: marshal would need a directory where the branch is.
    git(
        &source,
        &[
            "update-ref",
            "-d",
            &format!("refs/heads/{}", branch_of(plain)),
        ],
    );
    git(&source, &["branch", "marshal"]);
    let results = run_tasks(
        &drill,
        0,
        &[json!({"id": "late", "prompt": "write b.txt x"})],
    );
    let late = of(&results, "late");
    assert_eq!(late["outcome"], "done", "{late}");
    assert!(
        text(late, "detail").contains("has a branch marshal"),
        "{late}"
    );
    let refused = drill.run(&["land", branch_of(late)]);
    assert!(
        refused.stderr.contains("has a branch marshal"),
        "{}",
        refused.all()
    );
}

/// Commits of marshal's own are never signed, whatever the configuration of the user or of the
/// repository says: the program that would sign leaves a mark.
#[test]
fn no_commit_is_signed() {
    let drill = drill_with(&POOL.replace("branches = true, ", ""));
    let source = drill.workspace();
    let proof = drill.path("proof");
    let program = drill.path("gpg");
    install(
        &program,
        format!("#!/bin/sh\ntouch {}\nexit 1\n", proof.display()).as_bytes(),
    );
    let program = program.to_str().expect("UTF-8");
    for (key, value) in [
        ("commit.gpgSign", "true"),
        ("gpg.program", program),
        ("user.signingKey", "A"),
    ] {
        git(&source, &["config", key, value]);
    }
    let home = drill.path("home");
    fs::create_dir(&home).expect("a home");
    fs::copy(source.join(".git/config"), home.join(".gitconfig")).expect("copied");
    let (signs, _) = try_git(&source, &["commit", "-q", "--allow-empty", "-m", "x"]);
    assert!(!signs && proof.exists(), "the program would sign");
    fs::remove_file(&proof).expect("removed");
    git(&source, &["branch", "landing"]);
    // One is rebased; one has merges, and so becomes one commit.
    let merges = "unasked git checkout -qb side && git commit -q --no-gpg-sign --allow-empty -m side && git checkout -q - && echo m > m.txt && git add m.txt && git commit -q --no-gpg-sign -m m && git merge -q --no-gpg-sign --no-edit side";
    let tasks = [
        json!({"id": "plain", "prompt": "write a.txt x"}),
        json!({"id": "merges", "prompt": merges}),
        json!({"id": "other", "prompt": "write o.txt x"}),
    ];
    let lines: Vec<String> = tasks.iter().map(Value::to_string).collect();
    fs::write(drill.path("tasks.jsonl"), lines.join("\n")).expect("tasks");
    let run = |args: &[&str]| {
        let mut command = drill.command(args);
        command
            .env("HOME", &home)
            .env("GIT_CONFIG_GLOBAL", home.join(".gitconfig"));
        let output = command.output().expect("marshal");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(0), "{args:?}: {text}");
    };
    run(&["run", "--results", "r.jsonl", "tasks.jsonl"]);
    run(&["land", "--onto", "landing"]);
    assert!(!proof.exists(), "a commit was to be signed");
    let log = git(&source, &["log", "--format=%G? %an", "landing"]);
    assert!(log.lines().all(|line| line.starts_with('N')), "{log}");
    assert!(log.contains("N Ada L."), "{log}");
    assert_eq!(log.lines().count(), 4, "{log}");
}

/// Kills a run whose branches come in by themselves again and again, and continues it.
#[test]
fn killed_at_any_moment_each_branch_is_there_once_and_whole() {
    let rounds = count(3) as u64;
    let drill = drill_with(&POOL.replace("size      = 2", "size      = 3"));
    let source = drill.workspace();
    let tasks: Vec<String> = (0..9)
        .map(|number| {
            let prompt = format!("sleep 300ms\nwrite t-{number}.txt {number}");
            json!({"id": format!("t-{number}"), "prompt": prompt}).to_string()
        })
        .collect();
    for round in 0..rounds {
        fs::write(drill.path("tasks.jsonl"), tasks.join("\n")).expect("tasks");
        let mut child = drill.start(&["run", "tasks.jsonl"]);
        std::thread::sleep(Duration::from_millis(900 + 3000 * round / rounds.max(1)));
        child.signal("KILL");
        child.end(Duration::from_secs(20));
        let went_on = drill.run(&["run", "--continue", "--results", "r.jsonl"]);
        if went_on.all().contains("nothing to continue") {
            continue;
        }
        for result in drill.results("r.jsonl") {
            if result["outcome"] != "done" {
                // It was lost in its turn, and has no work that is done.
                assert_eq!(result["outcome"], "lost", "{result}");
                continue;
            }
            assert_eq!(result["branch"]["in_repository"], true, "{result}");
            let id = text(&result, "id");
            let subjects = git(&source, &["log", "--format=%s", branch_of(&result)]);
            assert_eq!(subjects, "Uncommitted work\nfirst", "{result}");
            let number = id.trim_start_matches("t-");
            let file = format!("{}:{id}.txt", branch_of(&result));
            assert_eq!(git(&source, &["show", &file]), number);
        }
        git(&source, &["fsck", "--strict"]);
        let packs = fs::read_dir(source.join(".git/objects/pack"))
            .expect("packs")
            .flatten();
        let left = packs.filter(|entry| entry.file_name().to_string_lossy().starts_with("tmp_"));
        assert!(left.count() <= 1, "a leftover that git itself removes");
    }
}

#[test]
fn an_unfinished_rebase_or_merge_leaves_no_marks_of_conflicts_in_a_branch() {
    let drill = drill_with(POOL);
    let commits = "unasked echo mine > README.md && git commit -qam mine && git checkout -q -b other HEAD^ \
        && echo theirs > README.md && git commit -qam theirs && git checkout -q -";
    let results = run_tasks(
        &drill,
        0,
        &[
            json!({"id": "rebase", "prompt": format!("{commits} && ! git rebase -q other")}),
            json!({"id": "merge", "prompt": format!("{commits} && ! git merge -q other")}),
            json!({"id": "finished", "prompt": format!("{commits} && ! git merge -q other && echo both > README.md && git commit -qam both")}),
        ],
    );
    let source = drill.workspace();
    for (id, readme, is_remarked) in [
        ("rebase", "mine", true),
        ("merge", "mine", true),
        ("finished", "both", false),
    ] {
        let result = of(&results, id);
        let shown = git(
            &source,
            &["show", &format!("{}:README.md", branch_of(result))],
        );
        assert_eq!(shown, readme, "{result}");
        let detail = result["detail"].as_str().unwrap_or_default();
        assert_eq!(detail.contains("left unfinished"), is_remarked, "{result}");
    }
}
