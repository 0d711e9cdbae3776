//! Work that lands on a branch: one after the other, checked there, given back to its agent where it
//! conflicts, and once only, whenever the supervisor is killed.

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use super::worktrees::{commit, git, plant, text, try_git};
use crate::drill::{Drill, count};

/// A pool whose check fails only where both files are.
const POOL: &str = r#"
[pool.demo]
size      = 2
dialect   = "acp"
command   = ["marshal", "script-agent", "--dialect", "acp"]
policy    = "open"
workspace = { path = "project", mode = "worktree" }
check     = ["sh", "-c", "! { test -e left && test -e right; }"]

[policy.open]
file = "open.toml"
"#;

const OPEN: &str = r#"
schema  = 1
name    = "open"
extends = ["builtin:guard"]
default = "allow"
"#;

/// Writes a file of tasks; returns its name.
fn task_file(drill: &Drill, tasks: &[Value]) -> &'static str {
    let lines: Vec<String> = tasks.iter().map(Value::to_string).collect();
    fs::write(drill.path("tasks.jsonl"), lines.join("\n")).expect("tasks");
    "tasks.jsonl"
}

/// A task that has a commit of its own, and merges both sides of a conflict. It begins late, so that
/// tasks that begin together start from the same commit.
fn writes(id: &str, file: &str, line: &str) -> Value {
    let prompt = format!(
        "sleep 1s\nunasked echo '* merge=union' > .git/info/attributes && echo {line} >> {file} && git add {file} && git commit -qm {id}"
    );
    json!({"id": id, "prompt": prompt})
}

/// The subjects of the branch's commits, the newest first.
fn subjects(dir: &Path, branch: &str) -> Vec<String> {
    let log = git(dir, &["log", "--format=%s", branch]);
    log.lines().map(str::to_owned).collect()
}

/// A drill with a repository that has `landing` beside what is checked out.
fn drill_with(pool: &str) -> Drill {
    let drill = Drill::new(pool);
    fs::write(drill.path("open.toml"), OPEN).expect("a policy");
    fs::write(drill.workspace().join("shared.txt"), "first\n").expect("shared");
    commit(&drill, &["-b", "main"]);
    git(&drill.workspace(), &["branch", "landing"]);
    drill
}

#[test]
fn tasks_land_one_after_the_other_and_what_conflicts_goes_back_to_its_agent() {
    let drill = drill_with(POOL);
    let source = drill.workspace();
    let file = task_file(
        &drill,
        &[
            writes("two", "shared.txt", "two"),
            writes("three", "shared.txt", "three"),
            writes("left", "left", "l"),
            writes("right", "right", "r"),
            writes("one", "one.txt", "1"),
            json!({"id": "none", "prompt": "say nothing to do"}),
            json!({"id": "uncommitted", "prompt": "write notes.txt plain"}),
            json!({"id": "outside", "prompt": "write package.json {}"}),
        ],
    );
    let ran = drill.run(&["run", "--land", "landing", "--results", "r.jsonl", file]);
    let results = drill.results("r.jsonl");
    let of = |id: &str| {
        let found = results.iter().find(|result| result["id"] == id);
        found.unwrap_or_else(|| panic!("{id}: {}", ran.all()))
    };
    for id in ["one", "two", "three", "none", "uncommitted"] {
        assert_eq!(of(id)["outcome"], "done", "{id}: {}", ran.all());
    }
    for id in ["one", "two", "three", "uncommitted"] {
        let landed = &of(id)["landed"];
        assert_eq!(landed["branch"], "landing", "{id}: {}", ran.all());
        let commit = landed["commit"].as_str().expect("a commit");
        git(&source, &["merge-base", "--is-ancestor", commit, "landing"]);
    }
    assert!(of("none")["landed"].is_null(), "{}", ran.all());
    // One of the two that touched the same line was told to repair it, in its session.
    let rounds: Vec<_> = ["two", "three"]
        .map(|id| of(id)["attempts"].as_u64())
        .into();
    assert!(
        rounds == [Some(1), Some(2)] || rounds == [Some(2), Some(1)],
        "{rounds:?} {}",
        ran.all()
    );
    let shared = git(&source, &["show", "landing:shared.txt"]);
    let mut lines: Vec<&str> = shared.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["first", "three", "two"], "{}", ran.all());
    // Each of the two passes the check, but not both.
    let sides = [of("left"), of("right")];
    let failed: Vec<_> = sides
        .iter()
        .filter(|side| side["outcome"] == "failed")
        .collect();
    assert_eq!(failed.len(), 1, "{}", ran.all());
    let why = text(failed[0], "detail");
    assert!(why.contains("the check"), "{why}");
    assert_eq!(failed[0]["attempts"], 4, "it was told three times");
    let names = git(&source, &["ls-tree", "--name-only", "landing"]);
    let names: Vec<&str> = names.lines().collect();
    let there = |name: &str| names.contains(&name);
    assert!(there("left") != there("right"), "{names:?}");
    // What takes effect outside waits for a person.
    let outside = of("outside");
    assert_eq!(outside["outcome"], "failed", "{}", ran.all());
    assert!(
        text(outside, "detail").contains("package.json"),
        "{outside}"
    );
    assert!(!there("package.json") && there("notes.txt"), "{names:?}");
    let session = text(outside, "session");
    let landed = drill.run(&[
        "land",
        session,
        "--onto",
        "landing",
        "--allow",
        "package.json",
    ]);
    assert_eq!(landed.code, Some(0), "{}", landed.all());
    assert!(git(&source, &["ls-tree", "--name-only", "landing"]).contains("package.json"));
    // The rest of the repository is as it was.
    assert_eq!(subjects(&source, "main"), ["first"]);
    assert_eq!(git(&source, &["status", "--porcelain"]), "");
    git(&source, &["fsck", "--strict", "--no-dangling"]);
    let copies = fs::read_dir(drill.state().join("copies")).expect("copies");
    let names: Vec<_> = copies
        .map(|entry| entry.expect("an entry").file_name())
        .filter(|name| name.to_string_lossy().starts_with('.'))
        .collect();
    assert_eq!(names, [""; 0], "nothing is left of git's directories");
}

/// Fifty tasks in the long form: a fifth of them change one line, and the check fails only with more than
/// two of five files.
#[test]
fn many_tasks_land_or_say_why_and_the_branch_passes() {
    let tasks = count(5).max(10);
    let check = "[\"sh\", \"-c\", \"test $(ls part-* 2>/dev/null | wc -l) -le 2\"]";
    let pool = POOL
        .lines()
        .map(|line| match line.split_once('=') {
            Some(("check     ", _)) => format!("check     = {check}\n"),
            Some(("size      ", _)) => "size      = 4\n".to_owned(),
            _ => format!("{line}\n"),
        })
        .collect::<String>();
    let drill = drill_with(&pool);
    let source = drill.workspace();
    let tasks: Vec<Value> = (0..tasks)
        .map(|number| {
            let id = format!("t-{number}");
            // A conflict that nobody resolves: the agent has no union for it.
            if number % 5 == 0 {
                let prompt = format!(
                    "sleep 1s\nunasked echo {id} > shared.txt && git add . && git commit -qm {id}"
                );
                return json!({"id": id, "prompt": prompt});
            }
            let file = if number % 10 == 1 { "part" } else { "own" };
            writes(&id, &format!("{file}-{number}"), &id)
        })
        .collect();
    let file = task_file(&drill, &tasks);
    let ran = drill.run(&["run", "--land", "landing", "--results", "r.jsonl", file]);
    let landed = subjects(&source, "landing");
    for result in drill.results("r.jsonl") {
        let id = text(&result, "id");
        let is_there = landed.iter().any(|subject| subject == id);
        if is_there {
            assert_eq!(result["outcome"], "done", "{result}");
            assert_eq!(result["landed"]["branch"], "landing", "{result}");
        } else {
            assert_eq!(result["outcome"], "failed", "{result} {}", ran.all());
            let why = text(&result, "detail");
            let is_said = why.contains("conflicts") || why.contains("the check");
            assert!(is_said, "{result}");
            assert!(
                result["attempts"].as_u64() > Some(1),
                "it went back: {result}"
            );
        }
    }
    let parts = landed.len();
    assert!(parts > tasks.len() / 2, "{landed:?} {}", ran.all());
    let names = git(&source, &["ls-tree", "--name-only", "landing"]);
    assert!(
        names.matches("part-").count() <= 2,
        "the branch passes: {names}"
    );
    git(&source, &["fsck", "--strict", "--no-dangling"]);
}

#[test]
fn a_run_lands_afterwards_once_and_a_branch_in_use_is_refused() {
    let drill = drill_with(POOL);
    let source = drill.workspace();
    let file = task_file(
        &drill,
        &[writes("one", "one.txt", "1"), writes("two", "two.txt", "2")],
    );
    let ran = drill.run(&["run", file]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    for (onto, why) in [
        ("main", "checked out"),
        ("gone", "git branch gone"),
        ("../x", "name of a branch"),
        ("alias", "symbolic"),
        ("busy", "checked out"),
    ] {
        git(
            &source,
            &["symbolic-ref", "refs/heads/alias", "refs/heads/landing"],
        );
        if onto == "busy" {
            git(&source, &["branch", "busy"]);
            git(&source, &["worktree", "add", "-q", "../other", "busy"]);
        }
        let before = git(&source, &["show-ref"]);
        let refused = drill.run(&["land", "--onto", onto]);
        assert_ne!(refused.code, Some(0), "{onto}: {}", refused.all());
        assert!(refused.all().contains(why), "{onto}: {}", refused.all());
        assert_eq!(git(&source, &["show-ref"]), before, "{onto}");
    }
    let landed = drill.run(&["--json", "land", "--onto", "landing"]);
    assert_eq!(landed.code, Some(0), "{}", landed.all());
    let lines = landed.stdout.lines();
    let lines: Vec<Value> = lines
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let words: Vec<_> = lines.iter().map(|line| &line["result"]).collect();
    assert_eq!(words, ["landed", "landed"], "{}", landed.all());
    assert_eq!(subjects(&source, "landing"), ["two", "one", "first"]);
    let commit = git(&source, &["rev-parse", "landing"]);
    let again = drill.run(&["land", "--onto", "landing"]);
    assert_eq!(again.code, Some(0), "{}", again.all());
    assert_eq!(
        again.stdout.matches("landed before").count(),
        2,
        "{}",
        again.all()
    );
    assert_eq!(git(&source, &["rev-parse", "landing"]), commit);
}

/// What is refused by its kind or by the pool's own policy, with and without a branch to land on.
#[test]
fn links_submodules_and_what_the_pools_policy_protects_wait_for_a_person_and_secrets_for_nobody() {
    let drill = drill_with(POOL);
    let sets = "[paths]\nprotected = [\"@/**/deploy.toml\"]\nsecrets = [\"**/vault.txt\"]\n";
    fs::write(drill.path("open.toml"), format!("{OPEN}{sets}")).expect("a policy");
    let source = drill.workspace();
    let committed = |id: &str, command: &str| json!({"id": id, "prompt": format!("unasked {command} && git commit -qm {id}")});
    let cases = [
        (
            "link",
            "ln -s /etc/passwd far && ln -s shared.txt near && git add far near",
            "far",
        ),
        (
            "module",
            "git update-index --add --cacheinfo 160000,$(git rev-parse HEAD),lib",
            "lib",
        ),
        (
            "attributes",
            "echo '* -diff' > .gitattributes && git add .gitattributes",
            ".gitattributes",
        ),
        (
            "deploy",
            "echo x > deploy.toml && git add deploy.toml",
            "deploy.toml",
        ),
        (
            "secret",
            "echo x > vault.txt && git add vault.txt",
            "vault.txt",
        ),
    ];
    let tasks: Vec<Value> = cases
        .iter()
        .map(|(id, command, _)| committed(id, command))
        .collect();
    let ran = drill.run(&["run", "--results", "r.jsonl", task_file(&drill, &tasks)]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    let results = drill.results("r.jsonl");
    for (id, _, path) in cases {
        let result = results.iter().find(|result| result["id"] == id).expect(id);
        let session = text(result, "session");
        let shown = drill.run(&["diff", session]);
        let listed = format!("    {path}: ");
        assert!(shown.stdout.contains(&listed), "{id}: {}", shown.all());
        assert!(!shown.stdout.contains("    near: "), "{}", shown.all());
        let onto = ["--onto", "landing"];
        for place in [&onto[..], &[]] {
            let refused = drill.run(&[&["land", session], place].concat());
            assert_ne!(refused.code, Some(0), "{id}: {}", refused.all());
            assert!(refused.all().contains(path), "{id}: {}", refused.all());
        }
        for place in [&onto[..], &[]] {
            let landed = drill.run(&[&["land", session, "--allow", path], place].concat());
            if id == "secret" {
                assert_ne!(landed.code, Some(0), "{}", landed.all());
                assert!(
                    landed.all().contains("no --allow takes"),
                    "{}",
                    landed.all()
                );
            } else {
                assert_eq!(landed.code, Some(0), "{id}: {}", landed.all());
            }
        }
    }
    let names = git(&source, &["ls-tree", "--name-only", "landing"]);
    assert!(
        names.contains("deploy.toml") && !names.contains("vault.txt"),
        "{names}"
    );
    // Without the configuration it is not known what the policy protects.
    let secret = results.iter().find(|result| result["id"] == "secret");
    let session = text(secret.expect("the secret"), "session");
    let config = fs::read_to_string(drill.config()).expect("supervisor.toml");
    let other = config.replace("[pool.demo]", "[pool.other]");
    fs::write(drill.config(), other).expect("supervisor.toml");
    let refused = drill.run(&["land", session, "--allow", "vault.txt"]);
    assert_ne!(refused.code, Some(0), "{}", refused.all());
    assert!(refused.all().contains("the pool demo"), "{}", refused.all());
}

#[test]
fn a_tasks_own_check_does_not_replace_the_pools_when_a_person_lands_it() {
    let drill = drill_with(&POOL.replace("test -e left && test -e right", "ls -d lax.txt"));
    let check = json!(["true"]);
    let file = task_file(
        &drill,
        &[
            json!({"id": "lax", "prompt": "write lax.txt x", "check": check}),
            json!({"id": "fine", "prompt": "write fine.txt x", "check": check}),
        ],
    );
    let ran = drill.run(&["run", file]);
    assert_eq!(
        ran.code,
        Some(0),
        "its own check alone decides: {}",
        ran.all()
    );
    let landed = drill.run(&["land", "--onto", "landing", "lax"]);
    assert_ne!(landed.code, Some(0), "{}", landed.all());
    assert!(landed.stdout.contains("(the pool's)"), "{}", landed.all());
    let landed = drill.run(&["--json", "land", "--onto", "landing", "fine"]);
    assert_eq!(landed.code, Some(0), "{}", landed.all());
    let landed: Value = serde_json::from_str(landed.stdout.trim()).expect("JSON");
    let checks = landed["checks"].as_array().expect("checks");
    let is_of = |at: usize, of: &str| checks[at].as_str().is_some_and(|text| text.contains(of));
    assert!(
        is_of(0, "the pool's") && is_of(1, "`true` (the task's own)"),
        "{landed}"
    );
    assert_eq!(checks.len(), 2, "{landed}");
    // Who may land a task when submitting it may also say by which check.
    let own = json!({"id": "own", "prompt": "write lax.txt x", "check": check, "land": "landing"});
    let ran = drill.run(&["run", task_file(&drill, &[own])]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
}

#[test]
fn a_check_of_a_landing_that_fills_the_disk_is_stopped() {
    let home = "\n[sandbox.standard]\nhome = { size = \"1M\" }\n";
    let drill = drill_with(&format!("{POOL}{home}"));
    let ran = drill.run(&["run", "write a.txt hello"]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    let config = fs::read_to_string(drill.config()).expect("supervisor.toml");
    let fills = config.replace(
        "! { test -e left && test -e right; }",
        "for i in 1 2 3 4 5 6 7 8 9; do head -c 900000 /dev/zero > $HOME/$i; done; sleep 1000",
    );
    assert_ne!(fills, config);
    fs::write(drill.config(), fills).expect("supervisor.toml");
    let landed = drill.run(&["land", "--onto", "landing"]);
    assert_ne!(landed.code, Some(0), "{}", landed.all());
    let said = "the check was stopped: the home has";
    assert!(landed.stdout.contains(said), "{}", landed.all());
    assert_eq!(subjects(&drill.workspace(), "landing"), ["first"]);
}

/// A working tree has the branch while the second task waits for the first, gives it up, and takes it
/// again while the second is checked.
#[test]
fn a_working_tree_that_comes_again_during_the_check_keeps_the_branch() {
    let check = "check     = [\"sleep\", \"6\"]";
    let pool: Vec<&str> = POOL
        .lines()
        .map(|line| {
            if line.starts_with("check") {
                check
            } else {
                line
            }
        })
        .collect();
    let drill = drill_with(&pool.join("\n"));
    let source = drill.workspace();
    git(&source, &["worktree", "add", "-q", "--detach", "../other"]);
    let other = source.parent().expect("a parent").join("other");
    let tasks = [
        json!({"id": "first", "prompt": "write first.txt 1"}),
        json!({"id": "second", "prompt": "sleep 3s\nwrite second.txt 2"}),
    ];
    let file = task_file(&drill, &tasks);
    let mut child = drill.start(&["run", "--land", "landing", "--results", "r.jsonl", file]);
    let count = |of: &dyn Fn(&str) -> bool| {
        let entries = fs::read_dir(drill.state().join("copies"));
        let names = entries.into_iter().flatten().flatten();
        names
            .filter(|entry| of(&entry.file_name().to_string_lossy()))
            .count()
    };
    let wait_for = |what: &str, is_so: &dyn Fn() -> bool| {
        let began = std::time::Instant::now();
        while !is_so() {
            assert!(began.elapsed() < Duration::from_secs(90), "{what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let clones = |name: &str| !name.contains([',', '.']);
    wait_for("the first is checked on the branch", &|| count(&clones) > 2);
    git(&other, &["checkout", "-q", "landing"]);
    let bundles = |name: &str| name.ends_with(",bundle") && !name.starts_with('.');
    wait_for("the second waits", &|| count(&bundles) > 1);
    std::thread::sleep(Duration::from_millis(300));
    git(&other, &["checkout", "-q", "--detach"]);
    wait_for("the first lands", &|| {
        subjects(&source, "landing").len() > 1
    });
    wait_for("its clone goes", &|| count(&clones) < 3);
    wait_for("the second is checked on the branch", &|| {
        count(&clones) > 2
    });
    git(&other, &["checkout", "-q", "landing"]);
    child.wait(Duration::from_secs(120));
    let results = drill.results("r.jsonl");
    let of = |id: &str| {
        results
            .iter()
            .find(|result| result["id"] == id)
            .expect("a result")
    };
    assert_eq!(of("first")["outcome"], "done", "{results:?}");
    assert_eq!(of("second")["outcome"], "failed", "{results:?}");
    assert!(
        text(of("second"), "detail").contains("checked out"),
        "{results:?}"
    );
    assert_eq!(
        git(&other, &["status", "--porcelain"]),
        "",
        "it is what its branch is"
    );
}

#[test]
fn a_repository_that_runs_programs_runs_none_while_work_lands() {
    let drill = drill_with(POOL);
    let source = drill.workspace();
    let ran = drill.run(&["run", "write a.txt hello"]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    let merges = "unasked git checkout -qb side && git commit -q --allow-empty -m side && git checkout -q - && echo m > m.txt && git add m.txt && git commit -qm m && git merge -q --no-edit side";
    let file = task_file(
        &drill,
        &[
            json!({"id": "plain", "prompt": "write b.txt hello"}),
            json!({"id": "merges", "prompt": merges}),
        ],
    );
    let ran = drill.run(&["run", file]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    let landed = drill.run(&["land", "--onto", "landing", "plain"]);
    assert_eq!(landed.code, Some(0), "{}", landed.all());
    let proof = drill.path("proof");
    plant(&source, &proof);
    // One by a rebase and one as a commit of its merges; the second time there is nothing.
    for _ in 0..2 {
        let landed = drill.run(&["land", "--onto", "landing", "merges"]);
        assert_eq!(landed.code, Some(0), "{}", landed.all());
    }
    let landed = drill.run(&["land", "--onto", "landing"]);
    assert_eq!(landed.code, Some(0), "{}", landed.all());
    assert_eq!(fs::read_dir(&proof).expect("proof").count(), 0);
}

/// Kills a run with landings again and again, and continues it.
#[test]
fn killed_at_any_moment_each_task_lands_once() {
    let rounds = count(3) as u64;
    let drill = drill_with(&POOL.replace("size      = 2", "size      = 3"));
    let source = drill.workspace();
    let tasks: Vec<Value> = (0..9)
        .map(|number| {
            let file = if number % 3 == 0 { "shared.txt" } else { "own" };
            let file = if file == "own" {
                format!("own-{number}.txt")
            } else {
                file.to_owned()
            };
            let mut task = writes(&format!("t-{number}"), &file, &format!("line-{number}"));
            if number % 3 == 1 {
                // Left uncommitted: what marshal commits for it is one commit, however often it is made.
                task["prompt"] = json!(format!("sleep 1s\nwrite u-{number}.txt line-{number}"));
            }
            task
        })
        .collect();
    let mut most = 0;
    for round in 0..rounds {
        git(&source, &["update-ref", "refs/heads/landing", "main"]);
        let file = task_file(&drill, &tasks);
        let mut child = drill.start(&["run", "--land", "landing", file]);
        std::thread::sleep(Duration::from_millis(150 + 4500 * round / rounds.max(1)));
        child.signal("KILL");
        child.end(Duration::from_secs(20));
        let mut went_on = drill.run(&["run", "--continue"]);
        if went_on.all().contains("nothing to continue") {
            went_on = drill.run(&["results"]);
        }
        let mut landed = subjects(&source, "landing");
        let names = git(&source, &["ls-tree", "--name-only", "landing"]);
        landed.retain(|subject| subject != "Uncommitted work");
        let left = names
            .lines()
            .filter_map(|name| name.strip_prefix("u-")?.strip_suffix(".txt"));
        landed.extend(left.map(|number| format!("t-{number}")));
        landed.sort_unstable();
        let before = landed.len();
        landed.dedup();
        assert_eq!(before, landed.len(), "{landed:?} {}", went_on.all());
        let shown = drill.run(&["--json", "results"]);
        for line in shown.stdout.lines() {
            let result: Value = serde_json::from_str(line).expect("JSON");
            let id = text(&result, "task").to_owned();
            let is_there = landed.contains(&id);
            let is_done = result["outcome"] == "done";
            assert_eq!(is_there, is_done, "{round} {result} {}", went_on.all());
            assert_eq!(is_done, result["landed"].is_object(), "{round} {result}");
        }
        most = most.max(landed.len());
        let (is_whole, _) = try_git(&source, &["fsck", "--strict", "--no-dangling"]);
        assert!(is_whole);
    }
    assert!(
        most > 4,
        "at most {most} commits landed, the first included"
    );
}
