//! The setup of a clone: what it leaves is made once, seen by later sessions, and written by none; it
//! sees nothing of an agent and of the user; and one that fails starts no agent.

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use super::worktrees::{commit, git, text};
use crate::drill::{Drill, NOBODY, Ran};

/// A pool whose setup has this script. `SETUP` in what follows is the rest of its table.
const POOL: &str = r#"
[pool.demo]
size      = 1
dialect   = "acp"
command   = ["marshal", "script-agent", "--dialect", "acp"]
policy    = "open"
env       = { set = { DRILL = "MARK" } }

[pool.demo.workspace]
path    = "project"
mode    = "worktree"
include = ["secret.txt"]
mask    = []
setup   = { command = ["sh", "setup.sh"]MORE }

[policy.open]
file = "open.toml"
"#;

const OPEN: &str = r#"
schema  = 1
name    = "open"
extends = ["builtin:guard"]
default = "allow"
"#;

/// Leaves a directory that says which run made it, and what it saw.
const SCRIPT: &str = "mkdir -p built/sub packages/a/built\n\
    od -An -N16 -tx1 /dev/urandom | tr -d ' ' > built/id\n\
    { ls -A; echo; ls -A ~; echo; env; } > built/sub/saw\n\
    echo dep > packages/a/built/dep\n\
    sleep 1\n";

/// Shows what is there, and changes it.
const LOOK: &str = "unasked cat built/id packages/a/built/dep > saw.txt && echo mine > built/id && rm -r built/sub && echo new > packages/a/built/new && chmod 0777 packages/a/built";

/// A drill with a repository whose setup is this script, as this user if it is not root.
fn drill_of(more: &str, script: &str, is_root: bool) -> Drill {
    let pool = POOL.replace("MORE", more);
    let drill = if is_root {
        Drill::new(&pool)
    } else {
        Drill::of_nobody(&pool)
    };
    fs::write(drill.path("open.toml"), OPEN).expect("a policy");
    let source = drill.workspace();
    fs::write(source.join("setup.sh"), script).expect("a script");
    fs::create_dir_all(source.join("packages/a")).expect("a directory");
    fs::write(source.join("packages/a/lock"), "1\n").expect("a lock file");
    fs::write(source.join(".gitignore"), "/built\nsecret.txt\n").expect("ignored");
    commit(&drill, &["-b", "main"]);
    fs::write(source.join("secret.txt"), "INCLUDED\n").expect("a secret");
    if !is_root {
        let owner = format!("{NOBODY}:{NOBODY}");
        let chown = std::process::Command::new("chown")
            .args(["-R", &owner])
            .arg(&source)
            .status();
        assert!(chown.expect("chown").success());
    }
    drill
}

fn drill(more: &str, script: &str) -> Drill {
    drill_of(more, script, true)
}

/// Runs one task.
fn run(drill: &Drill, prompt: &str) -> (Value, Ran) {
    let ran = drill.run(&["run", "--results", "results.jsonl", prompt]);
    (drill.results("results.jsonl").remove(0), ran)
}

/// Runs one task that goes well; returns the layer's id that it saw.
fn saw(drill: &Drill, prompt: &str) -> String {
    let (result, ran) = run(drill, prompt);
    assert_eq!(result["outcome"], "done", "{}", ran.all());
    let clone = Path::new(text(&result, "workspace"));
    let saw = fs::read_to_string(clone.join("saw.txt")).unwrap_or_default();
    let (id, dep) = saw.trim_end().rsplit_once('\n').unwrap_or(("", ""));
    assert_eq!((id.len(), dep), (32, "dep"), "{saw:?} {}", ran.all());
    id.to_owned()
}

/// What a layer has at a path; every layer of the drill.
fn layers(drill: &Drill) -> Vec<std::path::PathBuf> {
    let entries = fs::read_dir(drill.state().join("layers")).expect("layers");
    let mut paths: Vec<_> = entries
        .map(|entry| entry.expect("a layer").path())
        .collect();
    paths.sort();
    paths
}

fn change(drill: &Drill, file: &str, text: &str) {
    let source = drill.workspace();
    fs::write(source.join(file), text).expect("a file");
    git(&source, &["commit", "-qam", "more"]);
}

fn a_layer_is_made_once(is_root: bool) {
    let drill = drill_of("", SCRIPT, is_root);
    let (result, first) = run(&drill, LOOK);
    assert_eq!(result["outcome"], "done", "{}", first.all());
    let made = layers(&drill);
    assert_eq!(made.len(), 1, "{}", first.all());
    let built = fs::read_to_string(made[0].join("0/id")).expect("the layer's id");
    let started = std::time::Instant::now();
    assert_eq!(
        format!("{}\n", saw(&drill, LOOK)),
        built,
        "as if nobody had written it"
    );
    println!(
        "the first task took {:?}, the second {:?}",
        first.took,
        started.elapsed()
    );
    assert_eq!(layers(&drill), made, "no second setup");
    let config = fs::read_to_string(drill.config()).expect("supervisor.toml");
    let without = config.replace("setup   =", "# ");
    fs::write(drill.config(), without).expect("supervisor.toml");
    let (_, without) = run(&drill, "say nothing");
    println!("without a setup it takes {:?}", without.took);
    fs::write(drill.config(), config).expect("supervisor.toml");
    assert_eq!(
        fs::read_to_string(made[0].join("0/id")).expect("the id"),
        built
    );
    assert!(!made[0].join("1/new").exists());
    // What the setup saw.
    let seen = fs::read_to_string(made[0].join("0/sub/saw")).expect("what it saw");
    for hidden in ["secret.txt", "DRILL"] {
        assert!(!seen.contains(hidden), "{seen}");
    }
    assert!(
        seen.contains("setup.sh") && seen.contains("\nLANG="),
        "{seen}"
    );
    // Its directories are no part of the agent's branch, ignored or not.
    let (result, ran) = run(
        &drill,
        "unasked echo more > packages/a/built/more && echo x > kept.txt",
    );
    let session = text(&result, "session");
    let diff = drill.run(&["diff", session]);
    assert!(
        diff.stdout.contains("kept.txt"),
        "{} {}",
        diff.all(),
        ran.all()
    );
    assert!(!diff.stdout.contains("built"), "{}", diff.all());
    let left = fs::read_dir(drill.state().join("homes"))
        .expect("homes")
        .count();
    assert_eq!(left, 0, "what it wrote went with its session");
}

#[test]
fn a_layer_is_made_once_by_root() {
    a_layer_is_made_once(true);
}

#[test]
fn a_layer_is_made_once_by_an_ordinary_user() {
    a_layer_is_made_once(false);
}

#[test]
fn slots_share_a_layer_and_only_one_of_them_makes_it() {
    let drill = drill("", SCRIPT);
    let config = fs::read_to_string(drill.config()).expect("supervisor.toml");
    fs::write(drill.config(), config.replace("size      = 1", "size = 4")).expect("more slots");
    let ran = drill.run(&["run", "--results", "r.jsonl", LOOK, LOOK, LOOK, LOOK]);
    let results = drill.results("r.jsonl");
    let ids: std::collections::BTreeSet<String> = results
        .iter()
        .map(|result| {
            assert_eq!(result["outcome"], "done", "{}", ran.all());
            let clone = Path::new(text(result, "workspace"));
            fs::read_to_string(clone.join("saw.txt")).expect("what it saw")
        })
        .collect();
    assert_eq!((ids.len(), results.len()), (1, 4), "{}", ran.all());
    assert_eq!(layers(&drill).len(), 1);
}

#[test]
fn a_commit_has_its_own_layer_or_the_one_of_its_inputs() {
    let by_commit = drill("", SCRIPT);
    let first = saw(&by_commit, LOOK);
    change(&by_commit, "README.md", "# Changed\n");
    assert_ne!(saw(&by_commit, LOOK), first);

    let drill = drill(", inputs = [\"packages/a/lock\", \"none\"]", SCRIPT);
    let first = saw(&drill, LOOK);
    change(&drill, "README.md", "# Changed\n");
    assert_eq!(saw(&drill, LOOK), first, "the lock file is the same");
    change(&drill, "packages/a/lock", "2\n");
    let second = saw(&drill, LOOK);
    assert_ne!(second, first);

    // What agents wrote may be on the branch that is checked out for once: it has its own layer, as a
    // commit on no branch has.
    let source = drill.workspace();
    git(&source, &["checkout", "-q", "-b", "marshal/s"]);
    let on_branch = saw(&drill, LOOK);
    assert_ne!(on_branch, second);
    git(&source, &["checkout", "-q", "--detach"]);
    let detached = saw(&drill, LOOK);
    assert!(detached != on_branch && detached != second);
    git(&source, &["checkout", "-q", "main"]);
    assert_eq!(
        saw(&drill, LOOK),
        second,
        "nobody else made the layer of main"
    );

    // Tasks that land on a branch use the layer of the pool's base, but make none for others.
    git(&source, &["checkout", "-q", "-b", "theirs"]);
    change(&drill, "packages/a/lock", "3\n");
    git(&source, &["checkout", "-q", "main"]);
    git(&source, &["branch", "same"]);
    let on = |branch: &str| {
        let task = json!({"id": branch, "prompt": LOOK, "land": branch});
        fs::write(drill.path("tasks.jsonl"), task.to_string()).expect("a task");
        saw(&drill, "tasks.jsonl")
    };
    assert_eq!(on("same"), second);
    let theirs = on("theirs");
    assert_eq!(on("theirs"), theirs, "the branch keeps its own");
    change(&drill, "packages/a/lock", "3\n");
    let ours = saw(&drill, LOOK);
    assert!(ours != theirs && ours != second);
    assert_eq!(on("theirs"), theirs, "its own goes first");
    // A pool that begins from such a branch makes no layer for one that does not.
    let config = fs::read_to_string(drill.config()).expect("supervisor.toml");
    let based = config.replace("mode    =", "base = \"theirs\"\nmode    =");
    assert_ne!(based, config);
    fs::write(drill.config(), based).expect("supervisor.toml");
    assert_ne!(saw(&drill, LOOK), ours);
}

#[test]
fn a_setup_that_fails_is_told_and_no_agent_starts() {
    let check = |more: &str, script: &str, parts: &[&str]| {
        let drill = drill(more, script);
        let ran = drill.run(&["run", "--results", "r.jsonl", LOOK, LOOK]);
        let results = drill.results("r.jsonl");
        assert_eq!(results.len(), 2, "{}", ran.all());
        for result in &results {
            assert_eq!(result["outcome"], "failed", "{}", ran.all());
            for part in parts {
                assert!(
                    text(result, "detail").contains(part),
                    "{part}: {}",
                    ran.all()
                );
            }
        }
        let details = [&results[0], &results[1]].map(|result| text(result, "detail"));
        assert_eq!(details[0], details[1], "it is not tried again at once");
        assert!(layers(&drill).is_empty(), "{}", ran.all());
        let copies = fs::read_dir(drill.state().join("copies")).expect("copies");
        let copies: Vec<_> = copies
            .map(|copy| copy.expect("a copy").file_name())
            .collect();
        assert!(copies.len() <= 6, "its own clone went: {copies:?}");
        ran.took
    };
    let parts = [
        "the setup of the workspace failed",
        "`sh setup.sh` ended with",
        "3",
        "one | two",
        "workspace.setup of the pool demo",
    ];
    check(
        "",
        "echo one; { echo two; od -An -N16 -tx1 /dev/urandom; } >&2; exit 3\n",
        &parts,
    );
    let took = check(
        ", timeout = \"2s\"",
        "echo began; sleep 1000 & wait\n",
        &["was stopped after 2s", "its last lines: began"],
    );
    assert!(took < Duration::from_secs(60), "{took:?}");
    check(
        ", size = \"4M\"",
        "mkdir d; for i in 1 2 3 4; do head -c 3000000 /dev/urandom > d/$i; done; sleep 1000\n",
        &["wrote more than 4M"],
    );
    check(
        ", size = \"4M\"",
        "mkdir d; head -c 9000000 /dev/urandom > d/x\n",
        &["ended with"],
    );
    let loops = "mkdir d; cd d; while :; do : > $i; i=$((i+1)); done\n";
    check(
        ", timeout = \"2s\", size = \"1M\"",
        loops,
        &["the setup of the workspace failed"],
    );
}

#[test]
fn what_a_hostile_setup_leaves_harms_nobody() {
    let script = "echo '#!/bin/sh\ntouch /workspace/hooked' > .git/hooks/post-checkout\n\
        chmod +x .git/hooks/post-checkout\n\
        git config core.fsmonitor /workspace/evil.sh\n\
        printf '#!/bin/sh\\ntouch /workspace/evil\\n' > evil.sh; chmod +x evil.sh\n\
        mkdir -p built packages/a/built .github/workflows 'new\nline' .claude\n\
        od -An -N16 -tx1 /dev/urandom | tr -d ' ' > built/id; echo dep > packages/a/built/dep\n\
        ln -s /etc out; ln -s .. built/up; ln -s /etc built/etc; ln -s ../.git built/git\n\
        mkfifo built/pipe; echo 'on: push' > .github/workflows/x.yml; echo '{}' > .claude/settings.json\n\
        echo x > 'new\nline/x'; mkdir noread; echo x > noread/x; chmod 0 noread\n\
        echo changed > README.md; rm -rf src; ln -s /etc src\n";
    let drill = drill("", script);
    let look = "unasked cat built/id packages/a/built/dep > saw.txt; ls -A > all.txt; cat README.md > readme.txt; git log --oneline > log.txt; echo x > built/git/../mine";
    let id = saw(&drill, look);
    let (result, ran) = run(&drill, look);
    let clone = Path::new(text(&result, "workspace"));
    let read = |name: &str| fs::read_to_string(clone.join(name)).unwrap_or_default();
    let all = read("all.txt");
    for gone in ["hooked", "evil", ".github", ".claude", "out", "new"] {
        let is_there = all
            .lines()
            .any(|name| name.starts_with(gone) && name != ".gitignore");
        assert!(!is_there, "{gone}: {all} {}", ran.all());
    }
    assert_eq!(
        read("readme.txt"),
        "# A project\n",
        "a changed file is not kept"
    );
    assert!(clone.join("src").is_dir() && !clone.join("src").is_symlink());
    assert!(!clone.join(".git/hooks/post-checkout").exists());
    let layer = layers(&drill).remove(0);
    assert_eq!(
        fs::read_to_string(layer.join("0/id")).expect("id").trim(),
        id
    );
    // A link of the layer leads the policy to where it leads the agent.
    let (result, ran) = run(&drill, "write built/git/hooks/pre-commit x");
    assert!(!clone.join(".git/hooks/pre-commit").exists());
    let clone = Path::new(text(&result, "workspace"));
    assert!(
        !clone.join(".git/hooks/pre-commit").exists(),
        "{}",
        ran.all()
    );
}

#[test]
fn a_supervisor_killed_during_a_setup_leaves_no_layer() {
    let drill = drill("", SCRIPT);
    for wait in [300, 700, 1100, 1500] {
        let mut running = drill.start(&["run", LOOK]);
        std::thread::sleep(Duration::from_millis(wait));
        running.signal("KILL");
        running.end(Duration::from_secs(20));
        let named = |path: &std::path::PathBuf| path.join("manifest.json").is_file();
        let names = layers(&drill);
        let finished = names.iter().filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            !name.starts_with('.')
        });
        assert!(finished.clone().all(named), "{names:?}");
    }
    let id = saw(&drill, LOOK);
    assert_eq!(saw(&drill, LOOK), id);
    assert_eq!(layers(&drill).len(), 1, "leftovers went at the next start");
}

#[test]
fn an_orderly_stop_ends_a_setup() {
    let drill = drill("", "mkdir d; sleep 1000\n");
    let mut running = drill.start(&["run", LOOK]);
    std::thread::sleep(Duration::from_secs(2));
    running.signal("INT");
    std::thread::sleep(Duration::from_millis(500));
    running.signal("INT");
    let code = running.end(Duration::from_secs(20));
    assert!(code.is_some_and(|code| code != 0), "{code:?}");
    assert!(layers(&drill).is_empty());
    let copies = fs::read_dir(drill.state().join("copies")).expect("copies");
    let clones = copies.filter(|copy| {
        let name = copy.as_ref().expect("a copy").file_name();
        !name.to_string_lossy().contains(',')
    });
    assert!(clones.count() <= 1, "the clone of the setup went");
}

#[test]
fn a_session_of_a_slot_keeps_its_changes_from_task_to_task() {
    let drill = drill("", SCRIPT);
    let config = fs::read_to_string(drill.config()).expect("supervisor.toml");
    let config = config.replace("size      = 1", "size = 1\nsession = \"slot\"");
    fs::write(drill.config(), config).expect("supervisor.toml");
    let second = "unasked cat built/id packages/a/built/new > later.txt";
    let ran = drill.run(&["run", "--results", "r.jsonl", LOOK, second]);
    let results = drill.results("r.jsonl");
    assert_eq!(results.len(), 2, "{}", ran.all());
    let clone = Path::new(text(&results[1], "workspace"));
    let later = fs::read_to_string(clone.join("later.txt")).unwrap_or_default();
    assert_eq!(later, "mine\nnew\n", "{}", ran.all());
}

#[test]
fn a_check_runs_though_the_agent_moved_what_the_setup_is_in() {
    let drill = drill("", SCRIPT);
    let config = fs::read_to_string(drill.config()).expect("supervisor.toml");
    let check = "size = 1\ncheck = [\"sh\", \"-c\", \"test -s built/id && test -d packages/b/built && ! test -e packages/a\"]";
    let config = config.replace("size      = 1", check);
    fs::write(drill.config(), config).expect("supervisor.toml");
    let (result, ran) = run(&drill, "unasked git mv packages/a packages/b");
    assert_eq!(result["outcome"], "done", "{}", ran.all());
}

#[test]
fn the_check_of_a_landing_has_the_layer_of_its_commit() {
    let drill = drill(", inputs = [\"packages/a/lock\"]", SCRIPT);
    let config = fs::read_to_string(drill.config()).expect("supervisor.toml");
    let check =
        "size = 1\ncheck = [\"sh\", \"-c\", \"test -s built/id && echo checked > built/id\"]";
    let config = config.replace("size      = 1", check);
    fs::write(drill.config(), config).expect("supervisor.toml");
    let source = drill.workspace();
    git(&source, &["branch", "landing"]);
    // The layer of a commit that had not landed goes with its check.
    for (file, layers_then) in [("one.txt", 1), ("packages/a/lock", 1)] {
        let prompt = format!("unasked echo x > {file} && git add {file} && git commit -qm {file}");
        let ran = drill.run(&["run", "--land", "landing", "--results", "r.jsonl", &prompt]);
        let result = drill.results("r.jsonl").remove(0);
        assert_eq!(result["outcome"], "done", "{}", ran.all());
        assert_eq!(result["landed"]["branch"], "landing", "{}", ran.all());
        assert_eq!(layers(&drill).len(), layers_then, "{}", ran.all());
    }
    let tree = git(&source, &["ls-tree", "-r", "--name-only", "landing"]);
    assert!(
        tree.contains("one.txt") && !tree.contains("built"),
        "{tree}"
    );
}
