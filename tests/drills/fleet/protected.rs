//! `mode = "rw"`: what a hostile agent leaves in the workspace itself, and what its owner's git then
//! runs: nothing.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::drill::{Drill, NOBODY, eventually};
use crate::fleet::engines::container;
use crate::programs::install;

const LONG: Duration = Duration::from_secs(60);

const POOL: &str = r#"
[pool.demo]
command   = ["marshal", "script-agent", "--dialect", "scaiflux"]
launcher  = "LAUNCHER"
policy    = "developer"
session   = "SCOPE"
workspace = { path = "project", mode = "rw" }
stop      = { goodbye = "300ms", eof = "300ms", int = "300ms", term = "300ms" }
env       = { set = { DRILL = "MARK" } }
on_unasked_deny = "report"
"#;

/// What an agent tries. Each program that somebody else runs writes into `PROOF`.
const ATTACK: &str = r#"
p=/workspace/src/program.sh
printf '#!/bin/sh\necho ran >> PROOF/ran\ncat\n' > $p; chmod +x $p
here=HOST/src/program.sh
config="[core]\n\tfsmonitor = $here\n\thooksPath = HOST/src\n[filter \"x\"]\n\tclean = $here\n"
try() { sh -c "$1" >/dev/null 2>&1 && echo "$1" >> could.txt; }

# What is there: changed, replaced, moved away, or reached by another name.
try "cp $p .git/hooks/pre-commit"
try "cp $p .git/hooks/pre-commit.sample"
try "printf '$config' >> .git/config"
try "git config core.fsmonitor $here"
try "rm -f .git/config"
try "mv .git/config .git/was"
try "mv .git/hooks .git/was"
try "rm -rf .git/hooks"
try "mv .git was && mkdir -p .git/hooks"
try "ln -f .git/config linked && printf '$config' >> linked"
try "chmod 777 .git/config .git/hooks && cp $p .git/hooks/x"
try "mount -o remount,rw,bind .git/config"
try "umount .git/config"
try "echo '* filter=x' >> .git/info/attributes"
try "echo more >> AGENTS.md"
try "sed -i s/x/y/ docs/agents.md"
try "rm -f CLAUDE.md && ln -s src/lib.rs CLAUDE.md"
try "mv docs elsewhere"
try "echo x > .github/workflows/ci.yml"
try "mv .github was"
try "printf '$config' >> sub/.git/config"
try "mv sub was"

# What is not there yet.
printf "$config" > .git/config.worktree
mkdir -p evil.git && cp -r .git/HEAD .git/objects .git/refs evil.git/
printf "$config" > evil.git/config
mkdir -p new/.git && cp -r .git/HEAD .git/objects .git/refs new/.git/
printf "$config" > new/.git/config
mkdir -p split/common && echo 'ref: refs/heads/main' > split/HEAD && echo common > split/commondir
cp -r .git/objects .git/refs split/common/ && printf "$config" > split/common/config
mkdir -p .git/rebase-merge && echo "exec $here" > .git/rebase-merge/git-rebase-todo
echo gitdir: ../split > src/.git
mkdir -p .vscode .husky && echo {} > .vscode/tasks.json && cp $p .husky/pre-commit
echo "$here" > .envrc
ln -s evil .cargo && mkdir evil && printf "[build]\nrustc-wrapper = '$here'\n" > evil/config.toml

# What is everyday work.
echo made > made.txt
if command -v git >/dev/null; then
    git add made.txt src/program.sh && git -c user.name=a -c user.email=a@x commit -qm made
fi
true
"#;

/// An agent of a few lines of shell, which attacks if its prompt says so.
const AGENT: &str = r#"cd /workspace
printf '%s\n' '{"type":"ready","protocol":1,"version":"1","session_id":"s","model":"m","mode":"prompt","tools":[],"context_window":1000,"max_tokens":100,"gadgets":[]}'
while read -r prompt; do
    printf '%s\n' '{"type":"turn_started","turn_id":"t"}'
    case $prompt in *attack*) sh attack.sh >&2 ;; esac
    printf '%s\n' '{"type":"turn_complete","turn_id":"t","stop_reason":"end_turn","iterations":1,"input_tokens":1,"output_tokens":1,"mutations":[]}'
done
"#;

/// Git as the workspace's owner runs it, with that owner's rights.
fn git(dir: &Path, args: &[&str]) -> (bool, String) {
    let output = Command::new("setpriv")
        .args([&format!("--reuid={NOBODY}"), &format!("--regid={NOBODY}")])
        .args(["--clear-groups", "git", "-C"])
        .arg(dir)
        .args(["-c", "user.name=o", "-c", "user.email=o@x"])
        .args(args)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("HOME", "/nonexistent")
        .output()
        .expect("git runs");
    let text = [output.stdout, output.stderr].concat();
    (
        output.status.success(),
        String::from_utf8_lossy(&text).into_owned(),
    )
}

fn attack(top: &Path, proof: &Path) -> String {
    ATTACK
        .replace("PROOF", &proof.display().to_string())
        .replace("HOST", &top.display().to_string())
}

/// A repository of an ordinary user, with a nested one in it, and the attack.
fn drill(launcher: &str, scope: &str) -> (Drill, PathBuf) {
    let mut pool = POOL.to_owned();
    if launcher == "container" {
        // Its image has no bash, with which the script agent runs commands.
        let usual = "[\"marshal\", \"script-agent\", \"--dialect\", \"scaiflux\"]";
        let shell = "[\"/bin/sh\", \"/workspace/agent.sh\"]\ndialect   = \"scaiflux\"";
        pool = pool.replace(usual, shell);
    }
    let pool = pool.replace("LAUNCHER", launcher).replace("SCOPE", scope);
    let drill = Drill::new(&format!("{pool}\n{}", container(launcher)));
    let (top, proof) = (drill.workspace(), drill.path("proof"));
    fs::create_dir(&proof).expect("proof");
    fs::set_permissions(&proof, fs::Permissions::from_mode(0o777)).expect("proof");
    for (name, text) in [
        ("AGENTS.md", "be kind\n"),
        ("docs/agents.md", "x\n"),
        (".github/workflows/test.yml", "on: push\n"),
        (".gitattributes", "*.txt filter=x\n"),
    ] {
        let path = top.join(name);
        fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
        fs::write(path, text).expect("a file");
    }
    std::os::unix::fs::symlink("docs/agents.md", top.join("CLAUDE.md")).expect("a link");
    install(&top.join("attack.sh"), attack(&top, &proof).as_bytes());
    fs::write(top.join("agent.sh"), AGENT).expect("a script");
    let above = drill.path("");
    fs::set_permissions(above, fs::Permissions::from_mode(0o755)).expect("chmod");
    let owner = format!("{NOBODY}:{NOBODY}");
    let chown = Command::new("chown")
        .args(["-R", &owner])
        .arg(&top)
        .status();
    assert!(chown.expect("chown").success());
    for dir in [top.join("sub"), top.clone()] {
        assert!(
            git(
                &top,
                &["init", "-q", "-b", "main", &dir.display().to_string()]
            )
            .0
        );
        let committed = git(&dir, &["add", "."]).0
            && git(&dir, &["commit", "-q", "--allow-empty", "-m", "first"]).0;
        assert!(committed, "{}", dir.display());
    }
    (drill, proof)
}

/// What the owner does afterwards, in every directory that looks like a repository.
fn owner_works(top: &Path, proof: &Path) {
    fs::write(top.join("owner.txt"), "x").expect("a file");
    for dir in [
        "",
        "sub",
        "new",
        "src",
        "evil",
        "evil.git",
        "split",
        "split/common",
    ] {
        let dir = top.join(dir);
        if !dir.is_dir() {
            continue;
        }
        for args in [
            &["status"] as &[&str],
            &["rev-parse", "--abbrev-ref", "HEAD"],
            &["diff"],
            &["log", "-1"],
            &["add", "--all", "."],
            &["commit", "-qm", "theirs"],
            &["checkout", "-q", "-f", "HEAD"],
        ] {
            git(&dir, args);
        }
    }
    let (_, log) = git(top, &["log", "--oneline"]);
    assert!(log.contains("theirs"), "the owner can still commit: {log}");
    assert!(!proof.join("ran").exists(), "a program of the agent's ran");
}

fn quarantined(drill: &Drill) -> Vec<String> {
    let database = drill.database();
    let mut query = database
        .prepare("SELECT body FROM events WHERE kind = 'quarantined' ORDER BY seq")
        .expect("a query");
    let bodies = query
        .query_map([], |row| row.get::<_, String>(0))
        .expect("rows");
    let mut paths: Vec<String> = bodies
        .map(|body| {
            let body: Value = serde_json::from_str(&body.expect("a body")).expect("JSON");
            let to = body["moved_to"].as_str().expect("it was moved");
            assert!(Path::new(to).symlink_metadata().is_ok(), "{to}");
            body["path"].as_str().expect("a path").to_owned()
        })
        .collect();
    paths.sort_unstable();
    paths
}

fn check(launcher: &str) {
    let (drill, proof) = drill(launcher, "task");
    let top = drill.workspace();
    let ran = drill.run(&["run", "--results", "r.jsonl", "unasked sh attack.sh"]);
    let all = format!("{launcher}: {}", ran.all());
    assert_eq!(ran.code, Some(1), "{all}");
    let result = drill.results("r.jsonl").remove(0);
    assert!(
        !top.join("could.txt").exists(),
        "{}: {all}",
        fs::read_to_string(top.join("could.txt")).unwrap_or_default()
    );
    assert_eq!(result["outcome"], "failed", "{all}");
    let detail = result["detail"].as_str().expect("a detail");
    assert!(detail.contains(".cargo and 9 more appeared"), "{detail}");
    assert!(detail.contains("/quarantine/"), "{detail}");
    let appeared = [
        ".cargo",
        ".envrc",
        ".git/config.worktree",
        ".git/rebase-merge",
        ".husky",
        ".vscode",
        "evil.git/config",
        "new/.git",
        "split/commondir",
        "src/.git",
    ];
    let found = quarantined(&drill);
    for path in appeared {
        assert!(found.iter().any(|it| it == path), "{path}: {found:?}");
        assert!(
            top.join(path).symlink_metadata().is_err(),
            "{path} is still there"
        );
    }
    assert_eq!(
        fs::read_to_string(top.join("AGENTS.md")).expect("a file"),
        "be kind\n"
    );
    assert_eq!(
        fs::read_to_string(top.join("made.txt")).expect("a file"),
        "made\n"
    );
    if launcher != "container" {
        let (_, log) = git(&top, &["log", "--oneline"]);
        assert!(log.contains("made"), "the agent can commit: {log}");
        let changes = result["changes"].as_array().expect("changes");
        let is_listed = |path: &str| changes.iter().any(|it| it["path"] == path);
        assert!(is_listed(".git/refs/heads/main"), "{changes:?}");
    }
    owner_works(&top, &proof);
    let ran = drill.run(&["run", "--results", "r.jsonl", "write src/next.txt x"]);
    assert_eq!(ran.code, Some(0), "nothing is left of it: {}", ran.all());
}

/// Where nothing is protected, everything that is tried can be done, and the owner's git runs it.
#[test]
fn the_same_attack_outside_of_a_sandbox_succeeds() {
    let (drill, proof) = drill("unshare", "task");
    let top = drill.workspace();
    let script = attack(&top, &proof).replace("/workspace", &top.display().to_string());
    let tried = script
        .lines()
        .filter(|line| line.starts_with("try "))
        .count();
    let status = Command::new("setpriv")
        .args([&format!("--reuid={NOBODY}"), &format!("--regid={NOBODY}")])
        .args(["--clear-groups", "sh", "-c", &script])
        .current_dir(&top)
        .status();
    assert!(status.expect("sh").success());
    let could = fs::read_to_string(top.join("could.txt")).expect("what could be done");
    // Some take away what a later one needs, and nobody mounts here.
    let could = could.lines().count();
    assert!(could >= tried - 6, "{could} of {tried}");
    for name in ["sub", "was/sub"] {
        git(&top.join(name), &["status"]);
    }
    assert!(proof.join("ran").exists());
}

#[test]
fn an_agent_in_our_sandbox_leaves_nothing_that_runs() {
    check("unshare");
}

#[test]
fn an_agent_in_bubblewrap_leaves_nothing_that_runs() {
    check("bwrap");
}

#[test]
fn an_agent_in_a_container_leaves_nothing_that_runs() {
    check("container");
}

/// What a process of the agent's writes after the task, and before a supervisor that was killed
/// could look, is found later.
#[test]
fn what_is_planted_after_the_task_or_before_a_kill_is_found() {
    let (drill, proof) = drill("unshare", "slot");
    let top = drill.workspace();
    let late = "(sleep 1; echo x > .envrc; echo x > planted) >/dev/null 2>&1 & true";
    fs::write(top.join("late.sh"), late).expect("a script");
    let mut daemon = drill.start(&["up"]);
    eventually(LONG, "ready", || drill.get("/readyz").0 == 200);
    let ran = drill.run(&["run", "--results", "r.jsonl", "unasked sh late.sh"]);
    assert_eq!(
        drill.results("r.jsonl")[0]["outcome"],
        "done",
        "{}",
        ran.all()
    );
    eventually(LONG, "it is planted", || top.join("planted").exists());
    daemon.signal("TERM");
    assert_eq!(daemon.wait(LONG), Some(0));
    assert!(
        !top.join(".envrc").exists(),
        "the end of the child is not the end of the search"
    );
    assert_eq!(quarantined(&drill), [".envrc"]);

    fs::remove_file(top.join("planted")).expect("a file");
    let mut daemon = drill.start(&["up"]);
    eventually(LONG, "ready", || drill.get("/readyz").0 == 200);
    let mut running = drill.start(&[
        "run",
        "--results",
        "r.jsonl",
        "unasked sh late.sh\nsleep 60s",
    ]);
    eventually(LONG, "it is planted", || top.join("planted").exists());
    daemon.signal("KILL");
    daemon.wait(LONG);
    running.wait(LONG);
    eventually(LONG, "nothing is left", || drill.agents().is_empty());
    assert!(top.join(".envrc").exists(), "nobody could look");
    let ran = drill.run(&["run", "--results", "r.jsonl", "say hello"]);
    assert!(
        !top.join(".envrc").exists(),
        "the next start looks: {}",
        ran.all()
    );
    owner_works(&top, &proof);
}
