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
    /// Makes the workspace, which has nothing yet.
    make: fn(&Drill),
    /// A command that succeeds only if a known file has the content that it should.
    reads: &'static str,
    has_git: bool,
    /// The keys of the workspace beside its path and mode.
    keys: &'static str,
}

const KINDS: &[Kind] = &[
    Kind {
        name: "a plain repository",
        make: |drill| repository(&drill.workspace(), "plain"),
        reads: "grep -qx 'of plain' known.txt",
        has_git: true,
        keys: "",
    },
    Kind {
        name: "a linked worktree",
        make: |drill| {
            repository(&drill.path("main"), "plain");
            let add = ["worktree", "add", "-q", "-b", "other", "../project"];
            git(&drill.path("main"), &add);
        },
        reads: "grep -qx 'of plain' known.txt",
        has_git: true,
        keys: "",
    },
    Kind {
        name: "a submodule with a submodule",
        make: |drill| {
            repository(&drill.path("inner"), "inner");
            repository(&drill.path("middle"), "middle");
            repository(&drill.workspace(), "outer");
            add_submodule(&drill.path("middle"), &drill.path("inner"));
            add_submodule(&drill.workspace(), &drill.path("middle"));
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
        make: |drill| {
            let source = drill.workspace();
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
        make: |drill| cloned(drill, &["--depth=1"]),
        reads: "grep -qx 'of plain' known.txt",
        has_git: true,
        keys: "",
    },
    Kind {
        name: "a partial clone",
        make: |drill| cloned(drill, &["--filter=blob:none"]),
        reads: "grep -qx 'of plain' known.txt",
        has_git: true,
        keys: "",
    },
    Kind {
        name: "two repositories",
        make: |drill| {
            repository(&drill.workspace(), "plain");
            repository(&drill.path("lib"), "lib");
        },
        reads: "grep -qx 'of lib' third/lib/known.txt && git -C third/lib log --oneline",
        has_git: true,
        keys: r#", repos = [{ path = "lib", at = "third/lib" }]"#,
    },
    Kind {
        name: "20,000 files",
        make: |drill| {
            let source = drill.workspace();
            repository(&source, "plain");
            for dir in 0..200 {
                let dir = source.join(format!("many/{dir}"));
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
        make: |drill| {
            let source = drill.workspace();
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
        make: |drill| {
            fs::create_dir_all(drill.workspace()).expect("a directory");
            fs::write(drill.workspace().join("known.txt"), "of none\n").expect("a file");
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

fn cloned(drill: &Drill, how: &[&str]) {
    let main = drill.path("main");
    repository(&main, "plain");
    git(&main, &["config", "uploadpack.allowFilter", "true"]);
    git(&main, &["commit", "--allow-empty", "-qm", "second"]);
    let from = format!("file://{}", main.display());
    let to = drill.workspace();
    let words = [&["clone", "-q"], how, &[&from, to.to_str().expect("UTF-8")]].concat();
    git(&drill.path("."), &words);
}

/// As `git lfs` leaves it: a pointer is committed, and the content is in the working tree and in the store.
fn with_large_files(drill: &Drill) {
    let source = drill.workspace();
    repository(&source, "plain");
    let content = "large\n";
    fs::write(drill.path("large"), content).expect("a file");
    let digest = Command::new("sha256sum").arg(drill.path("large")).output();
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

fn pool(mode: &str, keys: &str, check: &str) -> String {
    format!(
        r#"
[pool.{mode}]
command   = ["marshal", "script-agent", "--dialect", "scaiflux"]
policy    = "developer"
workspace = {{ path = "project", mode = "{mode}"{keys} }}
check     = ["sh", "-c", {check:?}]
"#
    )
}

/// How each mode works with a kind: `None`, or why it does not.
fn try_kind(kind: &Kind) -> BTreeMap<&'static str, Option<String>> {
    let drill = Drill::new("");
    let head = fs::read_to_string(drill.config()).expect("supervisor.toml");
    fs::remove_dir_all(drill.workspace()).expect("removed");
    (kind.make)(&drill);
    for dir in ["project", "main", "lib"] {
        if drill.path(dir).exists() {
            let own = ["-R", OWNER];
            let owned = Command::new("chown")
                .args(own)
                .arg(drill.path(dir))
                .status();
            assert!(owned.expect("chown").success());
        }
    }
    let mut outcomes = BTreeMap::new();
    let (mut pools, mut started) = (String::new(), Vec::new());
    for mode in MODES {
        let writes = match mode {
            "ro" => "",
            _ => "test -e made.txt || exit 5;",
        };
        let git_works = if kind.has_git {
            "git status >/dev/null 2>&1 || exit 4;"
        } else {
            ""
        };
        let check = format!(
            "{} >/dev/null || exit 3; {writes} {git_works} true",
            kind.reads
        );
        let own = pool(mode, kind.keys, &check);
        // What the configuration refuses is said before anything starts.
        fs::write(drill.config(), format!("{head}{own}")).expect("supervisor.toml");
        let checked = drill.run(&["config", "check"]);
        if checked.code == Some(0) {
            pools.push_str(&own);
            started.push(mode);
        } else {
            let first = checked.stderr.lines().next().unwrap_or_default();
            let why = first
                .split_once("project: ")
                .or_else(|| first.split_once(".repos: "));
            let (_, why) = why.unwrap_or_else(|| panic!("{mode}: {}", checked.all()));
            outcomes.insert(mode, Some(why.to_owned()));
        }
    }
    fs::write(drill.config(), format!("{head}{pools}")).expect("supervisor.toml");
    let tasks = started.iter().map(|mode| {
        json!({"id": mode, "pool": mode, "prompt": "unasked echo made > made.txt"}).to_string()
    });
    fs::write(
        drill.path("tasks.jsonl"),
        tasks.collect::<Vec<_>>().join("\n"),
    )
    .expect("tasks");
    let ran = drill.run(&["run", "--results", "results.jsonl", "tasks.jsonl"]);
    for result in drill.results("results.jsonl") {
        let mode = started
            .iter()
            .find(|mode| result["id"] == **mode)
            .unwrap_or_else(|| panic!("{result}"));
        outcomes.insert(mode, why_not(mode, &result, &ran.stderr));
    }
    assert_eq!(outcomes.len(), MODES.len(), "{}: {}", kind.name, ran.all());
    let made = drill.workspace().join("made.txt");
    assert_eq!(
        made.exists(),
        started.contains(&"rw"),
        "{}: only rw writes it",
        kind.name
    );
    outcomes
}

/// One line of why a task did not work, without what differs from run to run.
fn why_not(mode: &str, result: &Value, log: &str) -> Option<String> {
    if result["outcome"] == "done" {
        return None;
    }
    let detail = text(result, "detail");
    if detail.contains("exit code 4") || detail.contains("code 4") {
        let line = log.lines().find(|line| {
            line.contains("git does not work") && line.contains(&format!("pool={mode}"))
        });
        let line = line.unwrap_or_else(|| panic!("{mode}: nothing says why: {log}"));
        let at = line.find("git does not work").expect("the reason");
        let words = line[at..].split(" pool=").next().expect("the reason");
        return Some(words.to_owned());
    }
    let why = detail.split_once("project: ").map(|(_, why)| why);
    Some(
        why.unwrap_or_else(|| panic!("{mode}: {result}\n{log}"))
            .to_owned(),
    )
}

/// The table of the documentation, and the reasons below it.
fn table(outcomes: &[(&Kind, BTreeMap<&'static str, Option<String>>)]) -> String {
    let mut text = format!(
        "| the workspace is | {} |\n",
        MODES.map(|mode| format!("`{mode}`")).join(" | ")
    );
    let _ = writeln!(text, "|---|{}", "---|".repeat(MODES.len()));
    let mut reasons: Vec<&str> = Vec::new();
    for (kind, of) in outcomes {
        let cells = MODES.map(|mode| match &of[mode] {
            None => "yes".to_owned(),
            Some(why) => {
                let at = reasons.iter().position(|known| known == why);
                let at = at.unwrap_or_else(|| {
                    reasons.push(why);
                    reasons.len() - 1
                });
                let word = if why.starts_with("git does not work") {
                    "without git"
                } else {
                    "no"
                };
                format!("{word} ({})", at + 1)
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
    let outcomes: Vec<_> = KINDS.iter().map(|kind| (kind, try_kind(kind))).collect();
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
    let branch = format!("marshal/{session}");
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
    const ALONE: &str =
        "unasked touch unchecked && echo unchecked >> .git/info/exclude && cd third/lib";
    let result = run_one(&drill, &[], &format!("{ALONE} && echo x > made.txt"));
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

    let result = run_one(&drill, &[], &format!("{ALONE} && echo more > more.txt"));
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
