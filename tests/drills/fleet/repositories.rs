//! The kinds of repositories that people have, in each mode of a workspace: what works, and one line
//! that says why where something does not. And several repositories in one workspace.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::worktrees::{git, text, try_git};
use crate::drill::Drill;

const MODES: [&str; 5] = ["copy", "worktree", "ro", "rw", "overlay"];

/// Root's agents write only what belongs to another user.
const OWNER: &str = "1234:1234";

/// What is known of a kind of repository.
struct Kind {
    name: &'static str,
    /// Makes the workspace, `project` in this directory, in which nothing is yet.
    make: fn(&Path),
    /// A command that succeeds only if a known file has the content that it should.
    reads: &'static str,
    has_git: bool,
    /// The keys of the workspace beside its path and mode.
    keys: &'static str,
}

const KINDS: &[Kind] = &[
    Kind {
        name: "a plain repository",
        make: |dir| repository(&dir.join("project"), "plain"),
        reads: "grep -qx 'of plain' known.txt",
        has_git: true,
        keys: "",
    },
    Kind {
        name: "a linked worktree",
        make: |dir| {
            repository(&dir.join("main"), "plain");
            let add = ["worktree", "add", "-q", "-b", "other", "../project"];
            git(&dir.join("main"), &add);
        },
        reads: "grep -qx 'of plain' known.txt",
        has_git: true,
        keys: "",
    },
    Kind {
        name: "a submodule with a submodule",
        make: |dir| {
            repository(&dir.join("inner"), "inner");
            repository(&dir.join("middle"), "middle");
            repository(&dir.join("project"), "outer");
            add_submodule(&dir.join("middle"), &dir.join("inner"));
            add_submodule(&dir.join("project"), &dir.join("middle"));
        },
        reads: "grep -qx 'of inner' sub/sub/known.txt && grep -qx 'of middle' sub/known.txt",
        has_git: true,
        keys: "",
    },
    Kind {
        name: "files of Git LFS",
        make: with_large_files,
        reads: "grep -qx large large.bin",
        has_git: true,
        keys: "",
    },
    Kind {
        name: "a sparse checkout",
        make: |dir| {
            let source = dir.join("project");
            repository(&source, "plain");
            fs::create_dir_all(source.join("left/out")).expect("left");
            fs::write(source.join("left/out/file"), "x").expect("a file");
            git(&source, &["add", "."]);
            git(&source, &["commit", "-qm", "left"]);
            git(&source, &["sparse-checkout", "set", "src"]);
            assert!(!source.join("left").exists());
        },
        reads: "grep -qx 'of plain' known.txt && ! test -e left",
        has_git: true,
        keys: "",
    },
    Kind {
        name: "a shallow clone",
        make: |dir| cloned(dir, &["--depth=1"]),
        reads: "grep -qx 'of plain' known.txt",
        has_git: true,
        keys: "",
    },
    Kind {
        name: "a partial clone",
        make: |dir| cloned(dir, &["--filter=blob:none"]),
        reads: "grep -qx 'of plain' known.txt",
        has_git: true,
        keys: "",
    },
    Kind {
        name: "two repositories",
        make: |dir| {
            repository(&dir.join("project"), "plain");
            repository(&dir.join("lib"), "lib");
        },
        reads: "grep -qx 'of lib' third/lib/known.txt && git -C third/lib log --oneline",
        has_git: true,
        keys: r#", repos = [{ path = "DIR/lib", at = "third/lib" }]"#,
    },
    Kind {
        name: "20,000 files",
        make: |dir| {
            let source = dir.join("project");
            repository(&source, "plain");
            for number in 0..200 {
                let dir = source.join(format!("many/{number}"));
                fs::create_dir_all(&dir).expect("a directory");
                for file in 0..100 {
                    fs::write(dir.join(file.to_string()), file.to_string()).expect("a file");
                }
            }
            git(&source, &["add", "."]);
            git(&source, &["commit", "-qm", "many"]);
        },
        reads: "test \"$(cat many/199/99)\" = 99 && test \"$(find many -type f | wc -l)\" -eq 20000",
        has_git: true,
        keys: "",
    },
    Kind {
        name: "names that are not UTF-8",
        make: |dir| {
            let source = dir.join("project");
            fs::create_dir_all(&source).expect("a directory");
            let name = OsStr::from_bytes(b"n\xffme");
            fs::write(source.join(name), "odd\n").expect("a file");
            repository(&source, "plain");
        },
        reads: "grep -qx odd \"$(printf 'n\\377me')\"",
        has_git: true,
        keys: "",
    },
    Kind {
        name: "no repository",
        make: |dir| {
            fs::create_dir_all(dir.join("project")).expect("a directory");
            fs::write(dir.join("project").join("known.txt"), "of none\n").expect("a file");
        },
        reads: "grep -qx 'of none' known.txt",
        has_git: false,
        keys: "",
    },
];

/// A repository with one commit.
fn repository(path: &Path, name: &str) {
    fs::create_dir_all(path.join("src")).expect("a directory");
    fs::write(path.join("known.txt"), format!("of {name}\n")).expect("a file");
    fs::write(path.join("src/lib.rs"), "//! Nothing.\n").expect("a file");
    git(path, &["init", "-q"]);
    git(path, &["add", "."]);
    git(path, &["commit", "-qm", "first"]);
}

fn add_submodule(to: &Path, from: &Path) {
    let from = from.to_str().expect("UTF-8");
    git(to, &["submodule", "--quiet", "add", from, "sub"]);
    let update = ["submodule", "--quiet", "update", "--init", "--recursive"];
    git(to, &update);
    git(to, &["commit", "-qm", "sub"]);
}

fn cloned(dir: &Path, how: &[&str]) {
    let main = dir.join("main");
    repository(&main, "plain");
    git(&main, &["config", "uploadpack.allowFilter", "true"]);
    git(&main, &["commit", "--allow-empty", "-qm", "second"]);
    let from = format!("file://{}", main.display());
    let to = dir.join("project");
    let words = [&["clone", "-q"], how, &[&from, to.to_str().expect("UTF-8")]].concat();
    git(dir, &words);
}

/// As `git lfs` leaves it: a pointer is committed, and the content is in the working tree and in the store.
fn with_large_files(dir: &Path) {
    let source = dir.join("project");
    repository(&source, "plain");
    let content = "large\n";
    fs::write(dir.join("large"), content).expect("a file");
    let digest = Command::new("sha256sum").arg(dir.join("large")).output();
    let digest = digest.expect("sha256sum");
    let id = String::from_utf8_lossy(&digest.stdout)[..64].to_owned();
    fs::write(source.join(".gitattributes"), "*.bin filter=lfs -text\n").expect("attributes");
    let pointer = format!("version https://git-lfs.github.com/spec/v1\noid sha256:{id}\nsize 6\n");
    fs::write(source.join("large.bin"), pointer).expect("a pointer");
    git(&source, &["add", "."]);
    git(&source, &["commit", "-qm", "large"]);
    fs::write(source.join("large.bin"), content).expect("the content");
    let store = source.join(format!(".git/lfs/objects/{}/{}", &id[..2], &id[2..4]));
    fs::create_dir_all(&store).expect("a store");
    fs::write(store.join(&id), content).expect("an object");
}

/// The pool of a kind in a mode.
fn pool_name(mode: &str, at: usize) -> String {
    format!("{mode}-{at:02}")
}

fn pool(mode: &str, at: usize, kind: &Kind) -> String {
    let writes = match mode {
        "ro" => "",
        _ => "test -e made.txt || exit 5;",
    };
    let git_works = if kind.has_git {
        "git status >/dev/null 2>&1 || exit 4;"
    } else {
        ""
    };
    let Kind { reads, keys, .. } = kind;
    let keys = keys.replace("DIR", &format!("{at}"));
    let check = format!("{reads} >/dev/null || exit 3; {writes} {git_works} true");
    let name = pool_name(mode, at);
    format!(
        r#"
[pool.{name}]
command   = ["marshal", "script-agent", "--dialect", "scaiflux"]
policy    = "developer"
workspace = {{ path = "{at}/project", mode = "{mode}"{keys} }}
check     = ["sh", "-c", {check:?}]
"#
    )
}

/// All kinds in one place: every mode finds the same directories.
fn make_kinds(drill: &Drill) {
    for (at, kind) in KINDS.iter().enumerate() {
        let dir = drill.path(&at.to_string());
        fs::create_dir(&dir).expect("a directory");
        (kind.make)(&dir);
        let owned = Command::new("chown").args(["-R", OWNER]).arg(&dir).status();
        assert!(owned.expect("chown").success());
    }
}

/// How a mode works with each kind, in one run: `None`, or why it does not.
fn try_mode(drill: &Drill, head: &str, mode: &str) -> Vec<Option<String>> {
    let mut outcomes = vec![None; KINDS.len()];
    let (mut pools, mut tasks) = (String::new(), String::new());
    let mut started = BTreeMap::new();
    for (at, kind) in KINDS.iter().enumerate() {
        let own = pool(mode, at, kind);
        // What the configuration refuses is said before anything starts.
        fs::write(drill.config(), format!("{head}{own}")).expect("supervisor.toml");
        let checked = drill.run(&["config", "check"]);
        if checked.code == Some(0) {
            let name = pool_name(mode, at);
            pools.push_str(&own);
            let prompt = "unasked echo made > made.txt";
            let task = json!({"id": name, "pool": name, "prompt": prompt});
            let _ = writeln!(tasks, "{task}");
            started.insert(name, at);
        } else {
            let first = checked.stderr.lines().next().unwrap_or_default();
            let why = first
                .split_once("project: ")
                .or_else(|| first.split_once(".repos: "));
            let (_, why) = why.unwrap_or_else(|| panic!("{mode}: {}", checked.all()));
            outcomes[at] = Some(why.to_owned());
        }
    }
    fs::write(drill.config(), format!("{head}{pools}")).expect("supervisor.toml");
    fs::write(drill.path("tasks.jsonl"), tasks).expect("tasks");
    let ran = drill.run(&["run", "--results", "results.jsonl", "tasks.jsonl"]);
    for result in drill.results("results.jsonl") {
        let name = text(&result, "id");
        let at = started.remove(name);
        let at = at.unwrap_or_else(|| panic!("{result}"));
        outcomes[at] = why_not(name, &result, &ran.stderr);
    }
    assert!(started.is_empty(), "{started:?}: {}", ran.all());
    fs::remove_file(drill.path("results.jsonl")).expect("removed");
    outcomes
}

/// One line of why a task did not work, without what differs from run to run.
fn why_not(pool: &str, result: &Value, log: &str) -> Option<String> {
    if result["outcome"] == "done" {
        return None;
    }
    let detail = text(result, "detail");
    if detail.contains("exit code 4") || detail.contains("code 4") {
        let line = log.lines().find(|line| {
            line.contains("git does not work") && line.contains(&format!("pool={pool}"))
        });
        let line = line.unwrap_or_else(|| panic!("{pool}: nothing says why: {log}"));
        let at = line.find("git does not work").expect("the reason");
        let words = line[at..].split(" pool=").next().expect("the reason");
        return Some(words.to_owned());
    }
    let why = detail.split_once("project: ").map(|(_, why)| why);
    Some(
        why.unwrap_or_else(|| panic!("{pool}: {result}\n{log}"))
            .to_owned(),
    )
}

/// The table of the documentation, and the reasons below it.
fn table(outcomes: &BTreeMap<&str, Vec<Option<String>>>) -> String {
    let mut text = format!(
        "| the workspace is | {} |\n",
        MODES.map(|mode| format!("`{mode}`")).join(" | ")
    );
    let _ = writeln!(text, "|---|{}", "---|".repeat(MODES.len()));
    let mut reasons: Vec<&str> = Vec::new();
    for (at, kind) in KINDS.iter().enumerate() {
        let cells = MODES.map(|mode| match &outcomes[mode][at] {
            None => "yes".to_owned(),
            Some(why) => {
                let known = reasons.iter().position(|known| known == why);
                let number = known.unwrap_or_else(|| {
                    reasons.push(why);
                    reasons.len() - 1
                });
                let word = if why.starts_with("git does not work") {
                    "without git"
                } else {
                    "no"
                };
                format!("{word} ({})", number + 1)
            }
        });
        let _ = writeln!(text, "| {} | {} |", kind.name, cells.join(" | "));
    }
    text.push('\n');
    for (at, why) in reasons.iter().enumerate() {
        let _ = writeln!(text, "{}. {why}", at + 1);
    }
    text
}

const DOCUMENT: &str = include_str!("../../../docs/workspaces.md");

#[test]
fn every_kind_of_repository_works_in_every_mode_or_one_line_says_why_not() {
    let drill = Drill::new("");
    let head = fs::read_to_string(drill.config()).expect("supervisor.toml");
    make_kinds(&drill);
    let is_written = |(at, _): &(usize, &Kind)| {
        let dir = drill.path(&at.to_string());
        dir.join("project/made.txt").exists()
    };
    let mut outcomes = BTreeMap::new();
    // The mode that writes the directories themselves comes last.
    for mode in ["copy", "worktree", "ro", "overlay", "rw"] {
        assert!(!KINDS.iter().enumerate().any(|kind| is_written(&kind)));
        outcomes.insert(mode, try_mode(&drill, &head, mode));
    }
    for (at, kind) in KINDS.iter().enumerate() {
        let is_refused = kind.keys.contains("repos");
        assert_eq!(is_written(&(at, kind)), !is_refused, "{}", kind.name);
    }
    let table = table(&outcomes);
    println!("{table}");
    assert!(
        DOCUMENT.contains(&table),
        "docs/workspaces.md has another table; this is the true one:\n{table}"
    );
}

const SEVERAL: &str = r#"
[workspace.site]
path  = "project"
mode  = "worktree"
repos = [{ path = "lib", at = "third/lib" }, { path = "papers", at = "docs", mode = "ro" }]

[pool.demo]
dialect   = "acp"
command   = ["marshal", "script-agent", "--dialect", "acp"]
policy    = "open"
workspace = "site"
check     = ["sh", "-c", "test -e made.txt && test -e third/lib/made.txt || test -e unchecked"]

[policy.open]
file = "open.toml"
"#;

const OPEN: &str = r#"
schema  = 1
name    = "open"
extends = ["builtin:guard"]
default = "allow"
"#;

/// What an agent does in three directories of its workspace: it reads all, writes two, and leaves the third.
const WORK: &str = "unasked grep -qx 'of papers' docs/known.txt && ! cat docs/.env && ! touch docs/x && echo one > made.txt && git add . && git commit -qm agent
unasked cd third/lib && git log --format=%s | grep -qx first && echo two > made.txt && git add . && git commit -qm agent && echo left > left.txt && test -z \"$(git -C /workspace status --porcelain)\"";

fn several(pools: &str) -> Drill {
    let drill = Drill::new(pools);
    fs::write(drill.path("open.toml"), OPEN).expect("a policy");
    fs::remove_dir_all(drill.workspace()).expect("removed");
    repository(&drill.workspace(), "plain");
    repository(&drill.path("lib"), "lib");
    repository(&drill.path("papers"), "papers");
    fs::write(drill.path("papers/.env"), "SECRET=1\n").expect("a secret");
    drill
}

fn run_one(drill: &Drill, args: &[&str], prompt: &str) -> Value {
    let words = [&["run", "--results", "results.jsonl"], args, &[prompt]].concat();
    let ran = drill.run(&words);
    let mut results = drill.results("results.jsonl");
    assert_eq!(results.len(), 1, "{}", ran.all());
    let result = results.remove(0);
    assert_eq!(result["outcome"], "done", "{result}\n{}", ran.all());
    result
}

#[test]
fn each_repository_of_a_workspace_brings_its_own_branch_back() {
    let drill = several(SEVERAL);
    let result = run_one(&drill, &[], WORK);
    let session = text(&result, "session").to_owned();
    let lib = &result["repos"][0];
    assert_eq!(lib["at"], "third/lib", "{result}");
    assert_ne!(lib["bundle"], result["bundle"]);
    for bundle in [text(lib, "bundle"), text(&result, "bundle")] {
        assert!(PathBuf::from(bundle).is_file(), "{bundle}");
    }
    let changes = result["changes"].to_string();
    assert!(changes.contains("third/lib/left.txt"), "{changes}");

    let shown = drill.run(&["diff", &session]).stdout;
    for line in [
        "+++ b/made.txt",
        "+++ b/third/lib/made.txt",
        "+++ b/third/lib/left.txt",
    ] {
        assert!(shown.contains(line), "{line}: {shown}");
    }
    let shown = drill.run(&["diff", &session, "third/lib/left.txt"]).stdout;
    assert!(
        shown.contains("+left") && !shown.contains("made.txt"),
        "{shown}"
    );

    let took = drill.run(&["land", &session]);
    assert_eq!(took.code, Some(0), "{}", took.all());
    let branch = text(&result["branch"], "name").to_owned();
    assert!(!branch.contains(&session) && branch.starts_with("marshal/"));
    let all = json!({"files": 3, "added": 3, "removed": 0});
    assert_eq!(result["branch"]["lines"], all, "of both repositories");
    assert_eq!(result["branch"]["in_repository"], false);
    let changed = |dir: &str| git(&drill.path(dir), &["diff", "--name-only", "HEAD", &branch]);
    assert_eq!(changed("project"), "made.txt");
    assert_eq!(changed("lib"), "left.txt\nmade.txt");
    let none = try_git(
        &drill.path("papers"),
        &["rev-parse", "--verify", "-q", &branch],
    );
    assert!(!none.0, "what is only read has no branch");
}

#[test]
fn the_branch_of_a_task_comes_into_each_repository_by_itself() {
    let keys = "mode  = \"worktree\"\nbranches = true\nauthor = \"Ada <ada@example.com>\"";
    let drill = several(&SEVERAL.replace("mode  = \"worktree\"", keys));
    let result = run_one(&drill, &[], WORK);
    assert_eq!(result["branch"]["in_repository"], true, "{result}");
    let branch = text(&result["branch"], "name");
    let last = |dir: &str, branch: &str| {
        let log = ["log", "-1", "--format=%s by %an <%ae>", branch];
        git(&drill.path(dir), &log)
    };
    let own = "Uncommitted work by Ada <ada@example.com>";
    assert_eq!(last("lib", branch), own);
    assert!(last("project", branch).starts_with("agent by agent"));

    // What takes effect outside is named, and allowed, by its path in the workspace.
    let prompt = "unasked echo x > unchecked && echo all: > third/lib/Makefile";
    let result = run_one(&drill, &[], prompt);
    assert_eq!(result["branch"]["in_repository"], false, "{result}");
    let branch = text(&result["branch"], "name");
    let command = format!("marshal land {branch} --allow third/lib/Makefile");
    assert!(text(&result, "detail").contains(&command), "{result}");
    assert_eq!(last("project", branch), own);
    let took = drill.run(&["land", branch, "--allow", "Makefile"]);
    assert_eq!(took.code, Some(1), "{}", took.all());
    let took = drill.run(&["land", branch, "--allow", "third/lib/Makefile"]);
    assert_eq!(took.code, Some(0), "{}", took.all());
    assert_eq!(last("lib", branch), own);
}

#[test]
fn the_work_in_several_repositories_lands_together() {
    let drill = several(SEVERAL);
    for dir in ["project", "lib"] {
        git(&drill.path(dir), &["branch", "landing"]);
    }
    let landed = |dir: &str| {
        let log = git(&drill.path(dir), &["log", "--format=%s", "landing"]);
        log.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    // By itself, as a task that lands.
    let result = run_one(&drill, &["--land", "landing"], WORK);
    assert_eq!(result["landed"]["branch"], "landing", "{result}");
    assert_eq!(landed("project"), ["agent", "first"]);
    assert_eq!(landed("lib"), ["Uncommitted work", "agent", "first"]);

    // Afterwards: work in one of them alone. Its clone of the workspace has no made.txt, but the branch
    // has, which the check sees.
    let alone = "unasked touch unchecked && echo unchecked >> .git/info/exclude && cd third/lib";
    let result = run_one(&drill, &[], &format!("{alone} && echo x > made.txt"));
    assert_eq!(result["bundle"], result["repos"][0]["bundle"], "{result}");
    let took = drill.run(&["land", "--onto", "landing"]);
    assert_eq!(
        took.code,
        Some(1),
        "lib began at its HEAD, without what landed: {}",
        took.all()
    );
    assert!(took.all().contains("third/lib/made.txt"), "{}", took.all());
    assert_eq!(landed("lib").len(), 3, "nothing moved");

    let result = run_one(&drill, &[], &format!("{alone} && echo more > more.txt"));
    let took = drill.run(&["land", "--onto", "landing"]);
    assert_eq!(took.code, Some(0), "{result}\n{}", took.all());
    assert_eq!(landed("lib")[0], "Uncommitted work");
    assert_eq!(landed("lib").len(), 4);
    assert_eq!(landed("project"), ["agent", "first"]);
    let again = drill.run(&["land", "--onto", "landing"]);
    assert!(again.all().contains("landed before"), "{}", again.all());
}

#[test]
fn a_repository_without_a_place_of_its_own_is_refused() {
    let refused = |keys: &str, make: &dyn Fn(&Drill), why: &str| {
        let text = SEVERAL.replace(
            r#"repos = [{ path = "lib", at = "third/lib" }, { path = "papers", at = "docs", mode = "ro" }]"#,
            keys,
        );
        let drill = several(&text);
        make(&drill);
        let ran = drill.run(&["run", "--results", "results.jsonl", "say x"]);
        let results = drill.results("results.jsonl");
        assert_eq!(results.len(), 1, "{}", ran.all());
        let detail = text_of(&results[0]);
        assert!(detail.contains(why), "{detail}\n{}", ran.all());
    };
    let lib = |at: &str| format!("repos = [{{ path = \"lib\", at = \"{at}\" }}]");
    let taken = |at: &str| format!("the workspace has \"{at}\" itself");
    for at in ["src", "known.txt", "src/lib.rs/x"] {
        refused(&lib(at), &|_| {}, &taken(at));
    }
    let link = |drill: &Drill| {
        std::os::unix::fs::symlink("/etc", drill.workspace().join("link")).expect("a link");
        git(&drill.workspace(), &["add", "."]);
        git(&drill.workspace(), &["commit", "-qm", "link"]);
    };
    refused(&lib("link/lib"), &link, &taken("link/lib"));
    refused(
        &lib("lib"),
        &|drill| fs::remove_dir_all(drill.path("lib/.git")).expect("removed"),
        "has no git repository",
    );
    refused(
        &lib("lib"),
        &|drill| {
            fs::remove_dir_all(drill.path("lib")).expect("removed");
            git(&drill.workspace(), &["worktree", "add", "-q", "../lib"]);
        },
        "its repository is that of another directory of the workspace",
    );
}

fn text_of(result: &Value) -> &str {
    text(result, "detail")
}

#[test]
fn copies_of_several_directories_are_one_tree() {
    let pools = r#"
[pool.demo]
command   = ["marshal", "script-agent", "--dialect", "scaiflux"]
policy    = "developer"
workspace = { path = "project", mode = "copy", repos = [{ path = "lib", at = "third/lib" }, { path = "papers", at = "docs", mode = "ro" }] }
"#;
    let drill = several(pools);
    let prompt = "unasked cat third/lib/known.txt docs/known.txt > seen.txt; echo changed > third/lib/known.txt; git -C third/lib status --porcelain >> seen.txt; git status --porcelain >> seen.txt";
    let result = run_one(&drill, &[], prompt);
    let copy = PathBuf::from(text(&result, "workspace"));
    let seen = fs::read_to_string(copy.join("seen.txt")).expect("seen.txt");
    assert_eq!(seen, "of lib\nof papers\n M known.txt\n?? seen.txt\n");
    let shown = drill.run(&["diff", text(&result, "session")]).stdout;
    assert!(shown.contains("-of lib\n+changed"), "{shown}");
    let kept = fs::read_to_string(drill.path("lib/known.txt")).expect("known.txt");
    assert_eq!(kept, "of lib\n");
}
