//! `diff`, `apply` and `discard` on what an agent really wrote: every form of a change, every form of
//! an attack, conflicts, and an apply that is killed at every point.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use marshal_sandbox::workspace::overlay;

use crate::children::{give, is_root, marshal};
use crate::sandbox::overlay::{CommandOutput, OverlayHost, session};

impl OverlayHost {
    /// Applies, which must do it.
    pub(crate) fn applies(&self) -> String {
        let output = self.run_unless_busy(&["apply", "s-1"]);
        assert_eq!(output.code, Some(0), "{}\n{}", output.out, output.err);
        output.out
    }

    /// Keeps workspace and state directory as they are.
    pub(crate) fn keep(&self) {
        // The kernel leaves a directory that nobody may enter, which an ordinary user cannot copy.
        let work = self.at("state/overlays/s-1/work/work");
        if work.exists() {
            fs::set_permissions(work, fs::Permissions::from_mode(0o700)).unwrap();
        }
        for name in ["state", "project"] {
            self.copy(name, &format!("{name}.kept"));
        }
    }

    fn copy(&self, from: &str, to: &str) {
        let done = Command::new("cp")
            .arg("-a")
            .arg(self.at(from))
            .arg(self.at(to))
            .status();
        assert!(done.unwrap().success());
    }

    /// Puts both back as they were kept: the workspace's directory stays the same one.
    pub(crate) fn put_back(&self) {
        for entry in fs::read_dir(self.at("project")).unwrap() {
            let path = entry.unwrap().path();
            if path.symlink_metadata().unwrap().is_dir() {
                fs::remove_dir_all(path).unwrap();
            } else {
                fs::remove_file(path).unwrap();
            }
        }
        self.copy("project.kept/.", "project");
        fs::remove_dir_all(self.at("state")).unwrap();
        self.copy("state.kept", "state");
    }

    /// Runs `apply` and kills it at its n-th step.
    pub(crate) fn killed_at(&self, tracer: &Path, n: u32) -> Option<i32> {
        self.stopped_at(tracer, n, None).code
    }

    /// Runs `apply` and kills it at its n-th step, or runs a command of a shell there.
    pub(crate) fn stopped_at(&self, tracer: &Path, n: u32, run: Option<&str>) -> CommandOutput {
        let output = Command::new(tracer)
            .arg(n.to_string())
            .arg(marshal())
            .arg("--config")
            .arg(self.at("supervisor.toml"))
            .args(["apply", "s-1"])
            .current_dir(self.at("."))
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("HOME", self.at("home"))
            .envs(run.map(|run| ("AT_RUN", run)))
            .output()
            .unwrap();
        CommandOutput {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Applies, which must refuse everything, and says why.
    pub(crate) fn refuses(&self, args: &[&str]) -> String {
        let before = self.tree();
        let output = self.run_unless_busy(args);
        assert_eq!(output.code, Some(1), "{}\n{}", output.out, output.err);
        assert!(output.err.contains("nothing was applied"), "{}", output.err);
        assert_eq!(self.tree(), before, "{}", output.err);
        output.err
    }
}

#[tokio::test]
#[allow(clippy::too_many_lines, reason = "one story, told in order")]
async fn every_form_of_a_change_is_applied_and_then_there_is_nothing_more() {
    let over = OverlayHost::new();
    for path in [
        "changed", "gone", "moved", "mode", "dir/a", "dir/b/c", "todir", "tofile/x", "swap/one",
        "swap/two", "same", "chdir/x", "target",
    ] {
        over.put(path, &format!("{path}\n"));
    }
    symlink("target", over.project("wasfile")).unwrap();
    let private = fs::Permissions::from_mode(0o600);
    fs::set_permissions(over.project("changed"), private).unwrap();
    over.session_says(
        "echo more >> changed; rm gone; mv moved away; chmod 755 mode; rm -r dir; rm todir; \
         mkdir todir; echo in > todir/in; rm -r tofile; echo now > tofile; rm -r swap; mkdir swap; \
         echo two > swap/two; echo three > swap/three; mkdir -p new/deep; echo f > new/deep/f; \
         chmod 777 new/deep/f; ln -s deep/f new/link; chmod 700 chdir; touch same; \
         rm wasfile; echo file > wasfile; mkdir void; ln -s ../changed void/up",
    )
    .await;
    let output = over.run_unless_busy(&["diff", "s-1"]);
    assert_eq!(output.code, Some(0), "{}", output.err);
    for line in [
        "modified changed\n",
        "+more\n",
        "deleted  gone\n",
        "-moved\n",
        "added    away\n",
        "modified mode  (644 -> 755)\n",
        "deleted  dir/b/c\n",
        "added    todir/in\n",
        "deleted  tofile/x\n",
        "added    tofile\n",
        "deleted  swap/one\n",
        "modified swap/two\n",
        "mode     chdir  (755 -> 700)\n",
        "added    new/link\n",
        "modified wasfile\n",
    ] {
        let line = if line == "-moved\n" {
            "deleted  moved\n"
        } else {
            line
        };
        assert!(output.out.contains(line), "{line:?} in\n{}", output.out);
    }
    assert!(!output.out.contains(" same"), "{}", output.out);
    let only = over.run_unless_busy(&["--json", "diff", "s-1", "new", "./gone"]);
    let paths: Vec<String> = only
        .out
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
        .map(|item| item["path"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(paths, ["gone", "new", "new/deep", "new/deep/f", "new/link"]);
    let before = over.tree();
    let checked = over.run_unless_busy(&["apply", "s-1", "--check"]);
    assert_eq!(
        (checked.code, over.tree()),
        (Some(0), before),
        "{}",
        checked.err
    );
    assert!(over.applies().starts_with("applied "));
    let expect = [
        "away 644 \"moved\\n\"",
        "changed 600 \"changed\\nmore\\n\"",
        "chdir 700 \"/\"",
        "chdir/x 644 \"chdir/x\\n\"",
        "mode 755 \"mode\\n\"",
        "new 755 \"/\"",
        "new/deep 755 \"/\"",
        "new/deep/f 755 \"f\\n\"",
        "new/link 777 \"-> deep/f\"",
        "same 644 \"same\\n\"",
        "swap 755 \"/\"",
        "swap/three 644 \"three\\n\"",
        "swap/two 644 \"two\\n\"",
        "target 644 \"target\\n\"",
        "todir 755 \"/\"",
        "todir/in 644 \"in\\n\"",
        "tofile 644 \"now\\n\"",
        "void 755 \"/\"",
        "void/up 777 \"-> ../changed\"",
        "wasfile 644 \"file\\n\"",
    ];
    assert_eq!(over.tree(), expect);
    for path in ["away", "new/deep/f", "new", "changed"] {
        let meta = fs::metadata(over.project(path)).unwrap();
        let top = fs::metadata(over.at("project")).unwrap();
        assert_eq!((meta.uid(), meta.gid()), (top.uid(), top.gid()), "{path}");
    }
    // The session goes on over what is there now.
    over.session_says("echo again >> changed; cat swap/three")
        .await;
    over.applies();
    assert_eq!(over.read("changed"), "changed\nmore\nagain\n");
    let output = over.run_unless_busy(&["discard", "s-1"]);
    assert_eq!(output.code, Some(0), "{}", output.err);
    assert_eq!(fs::read_dir(over.at("state/overlays")).unwrap().count(), 0);
    assert_eq!(over.run_unless_busy(&["apply", "s-1"]).code, Some(2));
}

#[tokio::test]
async fn a_tree_of_somebody_elses_stays_theirs() {
    if !is_root() {
        return;
    }
    let over = OverlayHost::new();
    over.put("a", "old\n");
    for path in ["project", "project/a"] {
        give(&over.at(path), (54_000, 54_001));
    }
    over.session_says("echo new > a; mkdir -p d/e; echo x > d/e/x; ln -s a l")
        .await;
    over.applies();
    for path in ["a", "d", "d/e", "d/e/x", "l"] {
        let meta = over.project(path).symlink_metadata().unwrap();
        assert_eq!((meta.uid(), meta.gid()), (54_000, 54_001), "{path}");
    }
}

#[tokio::test]
#[allow(clippy::too_many_lines, reason = "one story, told in order")]
async fn everything_hostile_is_refused_by_its_name_and_with_it_all_the_rest() {
    for (script, parts) in [
        ("mkfifo pipe", &["pipe: is a fifo"][..]),
        (
            "perl -MSocket -e 'socket(S,PF_UNIX,SOCK_STREAM,0); bind(S,sockaddr_un(\"sock\"))'",
            &["sock: is a socket"],
        ),
        ("echo x > a; ln a b", &["a: has several names"]),
        ("ln f hard", &["hard: has several names"]),
        (
            "ln -s /etc/passwd l",
            &["l: is a symbolic link that leads out"],
        ),
        (
            "mkdir d; ln -s ../../x d/l",
            &["d/l: is a symbolic link that leads out"],
        ),
        ("ln -s d/../../x l", &["l: is a symbolic link with \"..\""]),
        (
            "ln -s out/x l",
            &["l: is a symbolic link through another link"],
        ),
        (
            "ln -s f one; ln -s one/x two",
            &["two: is a symbolic link through another"],
        ),
        (
            "ln -s .git/hooks l",
            &["l: is a symbolic link to .git/hooks"],
        ),
        ("ln -s .git l", &["l: is a symbolic link to .git"]),
        (
            "mkdir -p .git/hooks; echo x > .git/hooks/pre-commit",
            &[".git/hooks/pre-commit:"],
        ),
        ("mkdir .git", &[".git:"]),
        (
            "mkdir -p sub/.GIT; echo x > sub/.GIT/config",
            &["sub/.GIT/config:"],
        ),
        ("echo x > .gitmodules", &[".gitmodules:"]),
        ("echo x > .mcp.json", &[".mcp.json:"]),
        ("echo x > .MCP.json", &[".MCP.json:"]),
        (
            "mkdir .claude; echo x > .claude/settings.json",
            &[".claude/settings.json:"],
        ),
        ("mkdir .codex; echo x > .codex/c", &[".codex/c:"]),
        (
            "mkdir -p .github/workflows; echo x > .github/workflows/a.yml",
            &["workflows/a.yml:"],
        ),
        ("echo x > .envrc", &[".envrc:"]),
        ("echo x > .env", &[".env:"]),
        (
            "printf x > $(printf '.git\\342\\200\\213modules')",
            &["modules:"],
        ),
        ("rm -r .husky", &[".husky"]),
        ("mv .husky husky", &[".husky"]),
        ("rm -r deep", &["deep/.vscode"]),
        ("rm -r deep; echo x > deep", &["deep/.vscode"]),
        ("rm -r deep; mkdir deep", &["deep/.vscode"]),
        (
            "printf x > $(printf 'n\\377')",
            &["n\\xff: its name is not UTF-8"],
        ),
        ("echo x > u; chmod 000 u", &["u: cannot be read"]),
        ("mkdir u; chmod 000 u", &["u: cannot be read"]),
        (
            "python3 -c \"import os; open('x','w').close(); os.setxattr('x','user.a',b'1')\"",
            &["x: has the extended attribute user.a"],
        ),
        (
            "mkdir .marshal-apply-s-1",
            &[".marshal-apply-s-1: its name"],
        ),
        (
            "p=.; for i in $(seq 120); do p=$p/d; mkdir $p; done",
            &["nested more than 100 levels"],
        ),
    ] {
        let over = OverlayHost::new();
        over.put("f", "old\n");
        over.put(".husky/pre-push", "x\n");
        over.put("deep/.vscode/tasks.json", "x\n");
        symlink("/srv", over.project("out")).unwrap();
        over.session_says(&format!("echo good > good; {script}"))
            .await;
        let err = over.refuses(&["apply", "s-1", "--yes"]);
        for part in parts {
            assert!(err.contains(part), "{script}: {part:?} in\n{err}");
        }
        // It can always be looked at and thrown away.
        assert_eq!(
            over.run_unless_busy(&["diff", "s-1"]).code,
            Some(0),
            "{script}"
        );
        let output = over.run_unless_busy(&["discard", "s-1"]);
        assert_eq!(output.code, Some(0), "{script}: {}", output.err);
    }
}

#[tokio::test]
async fn a_device_is_refused_and_a_fifo_in_the_place_of_anything_makes_nobody_wait() {
    let over = OverlayHost::new();
    over.put("f", "old\n");
    over.session_says("echo new > f").await;
    let mut expect = vec!["fifo: is a fifo", "huge: is too large"];
    // A hole counts as what it says it is.
    fs::File::create(over.upper("huge"))
        .unwrap()
        .set_len(3 << 30)
        .unwrap();
    // The sandbox lets no agent make these.
    for (name, mode) in [("suid", 0o4755), ("sgid", 0o2755)] {
        fs::write(over.upper(name), "x\n").unwrap();
        fs::set_permissions(over.upper(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    expect.extend(["suid: is set-user-id", "sgid: is set-user-id"]);
    let make = |name: &str, kind: &[&str]| {
        let mut words = vec![over.upper(name).to_string_lossy().into_owned()];
        words.extend(kind.iter().map(|word| (*word).to_owned()));
        Command::new("mknod")
            .args(&words)
            .status()
            .unwrap()
            .success()
    };
    assert!(make("fifo", &["p"]));
    if is_root() {
        assert!(make("null", &["c", "1", "3"]) && make("disk", &["b", "7", "0"]));
        expect.extend(["null: is a device", "disk: is a device"]);
    }
    let err = over.refuses(&["apply", "s-1"]);
    for part in expect {
        assert!(err.contains(part), "{part} in {err}");
    }
}

/// A person decides on each file that other programs run or obey, and sees all of them first.
#[tokio::test]
async fn what_takes_effect_outside_is_listed_first_and_needs_its_name() {
    let over = OverlayHost::new();
    over.put("f", "old\n");
    let script = "mkdir -p .github/workflows a; echo x > .github/CODEOWNERS; echo x > .github/workflows/ci.yml; echo x > a/Makefile; \
                  echo x > AGENTS.md; echo x > src.txt; echo x > .env";
    over.session_says(script).await;
    let shown = over.run_unless_busy(&["diff", "s-1"]);
    let mut lines = shown.out.lines();
    assert_eq!(lines.next(), Some("takes effect outside of the sandbox:"));
    let listed: Vec<&str> = lines.take_while(|line| line.starts_with("    ")).collect();
    for line in [
        "    .github/workflows/ci.yml: a setting",
        "    AGENTS.md: a setting",
        "    a/Makefile: a build",
    ] {
        assert!(
            listed.iter().any(|it| it.starts_with(line)),
            "{line}: {listed:?}"
        );
    }
    let harmless = ["    .github:", "    .github/CODEOWNERS", "    src.txt"];
    let is_harmless = |line: &&&str| harmless.iter().any(|it| line.starts_with(it));
    assert_eq!(listed.iter().find(is_harmless), None);
    let err = over.refuses(&["apply", "s-1", "--yes"]);
    for path in [".github/workflows/ci.yml", "AGENTS.md", "a/Makefile"] {
        assert!(
            err.contains(&format!("add --allow {path}")),
            "{path}: {err}"
        );
    }
    let all = [
        "apply",
        "s-1",
        "--yes",
        "--allow",
        ".github",
        "--allow",
        "./a/",
        "--allow",
        "AGENTS.md",
    ];
    let err = over.refuses(&[&all as &[&str], &["--allow", ".env"]].concat());
    assert!(
        err.contains(".env") && err.contains("1 refused"),
        "no word allows a secret: {err}"
    );
    fs::remove_file(over.upper(".env")).unwrap();
    let err = over.refuses(&all[..7]);
    assert!(
        err.contains("AGENTS.md") && err.contains("1 refused"),
        "{err}"
    );
    let output = over.run_unless_busy(&all);
    assert_eq!(output.code, Some(0), "{}", output.err);
    assert_eq!(over.read("AGENTS.md"), "x\n");
    assert_eq!(over.read(".github/workflows/ci.yml"), "x\n");
}

#[tokio::test]
async fn what_the_policy_denies_is_refused_and_what_it_asks_needs_a_word() {
    let over = OverlayHost::new();
    let policy = "schema = 1\nname = \"own\"\nextends = [\"builtin:guard\"]\ndefault = \"allow\"\n\
                  [[rule]]\nid = \"docs\"\ndecision = \"ask\"\ntool = \"write\"\npath = \"docs\"\n\
                  [[rule]]\nid = \"lock\"\ndecision = \"deny\"\ntool = \"write\"\npath = \"locks\"\n\
                  reason = \"locks are ours\"\n\
                  [paths]\ndocs = [\"@/docs/**\"]\nlocks = [\"@/*.lock\"]\n";
    fs::write(over.at("own.toml"), policy).unwrap();
    over.config("policy = \"own\"\n[policy.own]\nfile = \"own.toml\"");
    over.put("docs/a", "old\n");
    over.session_says("echo new > docs/a").await;
    let err = over.refuses(&["apply", "s-1"]);
    assert!(
        err.contains("needs approval: docs/a") && err.contains("--yes"),
        "{err}"
    );
    let output = over.run_unless_busy(&["apply", "s-1", "--yes"]);
    assert_eq!(output.code, Some(0), "{}", output.err);
    assert_eq!(over.read("docs/a"), "new\n");
    over.session_says("echo x > a.lock").await;
    let err = over.refuses(&["apply", "s-1", "--yes"]);
    assert!(
        err.contains("a.lock: ") && err.contains("locks are ours"),
        "{err}"
    );
    // Without its pool nobody knows what holds.
    fs::write(
        over.at("supervisor.toml"),
        "[supervisor]\nstate_dir = \"state\"\n[pool.other]\nagent = \"script\"\n\
         workspace = { path = \"project\" }\n",
    )
    .unwrap();
    let output = over.run_unless_busy(&["apply", "s-1"]);
    assert_eq!(output.code, Some(2), "{}", output.err);
    assert!(output.err.contains("pool demo"), "{}", output.err);
}

#[tokio::test]
async fn what_somebody_changed_meanwhile_is_a_conflict() {
    type Change = fn(&OverlayHost);
    let cases: [(&str, &str, Change); 9] = [
        ("echo mine > f", "f", |o| o.put("f", "theirs\n")),
        ("echo mine > f", "f", |o| {
            fs::remove_file(o.project("f")).unwrap();
        }),
        ("rm f", "f", |o| o.put("f", "theirs\n")),
        ("echo n > new", "new", |o| o.put("new", "theirs\n")),
        ("rm -r d", "d", |o| o.put("d/other", "theirs\n")),
        ("rm -r d; mkdir d; echo x > d/x", "d", |o| {
            o.put("d/x", "theirs\n");
        }),
        ("rm -r d; echo x > d", "d", |o| o.put("d/sub/y", "theirs\n")),
        ("echo mine > d/x", "d", |o| {
            fs::remove_dir_all(o.project("d")).unwrap();
        }),
        ("echo mine > f", "f", |o| {
            fs::remove_file(o.project("f")).unwrap();
            symlink("/etc/passwd", o.project("f")).unwrap();
        }),
    ];
    for (script, path, change) in cases {
        let over = OverlayHost::new();
        over.put("f", "old\n");
        over.put("d/x", "old\n");
        over.put("other", "old\n");
        over.session_says(&format!("{script}; echo good > other"))
            .await;
        change(&over);
        let err = over.refuses(&["apply", "s-1"]);
        let word = format!("refused: {path}");
        assert!(
            err.contains(&word) && err.contains("changed in the workspace"),
            "{script}: {err}"
        );
    }
    // What changed and is again what it was is none.
    let over = OverlayHost::new();
    over.put("f", "old\n");
    over.session_says("echo mine > f").await;
    over.put("f", "theirs\n");
    over.put("f", "old\n");
    over.applies();
    assert_eq!(over.read("f"), "mine\n");
}

#[tokio::test]
async fn what_was_changed_while_the_session_worked_is_known_by_nobody() {
    let over = OverlayHost::new();
    over.put("f", "old\n");
    over.put("g", "old\n");
    std::thread::sleep(Duration::from_millis(20));
    let guard = over.prepare().unwrap();
    // The agent copies up what was already another's, before its turn ends.
    over.put("f", "theirs\n");
    crate::children::script_output(&over.request(&guard), "echo mine >> f; echo mine > g").await;
    drop(guard);
    let err = over.refuses(&["apply", "s-1"]);
    assert!(err.contains("f: it, or its directory"), "{err}");
    assert!(!err.contains("refused: g"), "{err}");
}

#[tokio::test]
async fn another_workspace_at_its_place_is_none() {
    let over = OverlayHost::new();
    over.put("f", "old\n");
    over.session_says("echo new > f").await;
    fs::rename(over.at("project"), over.at("moved")).unwrap();
    fs::create_dir(over.at("project")).unwrap();
    let output = over.run_unless_busy(&["apply", "s-1"]);
    assert_eq!(output.code, Some(1), "{}", output.err);
    assert!(
        output.err.contains("another directory has replaced it"),
        "{}",
        output.err
    );
    fs::remove_dir(over.at("project")).unwrap();
    symlink(over.at("moved"), over.at("project")).unwrap();
    let output = over.run_unless_busy(&["apply", "s-1"]);
    assert_eq!(output.code, Some(1), "{}", output.err);
    assert_eq!(fs::read_to_string(over.at("moved/f")).unwrap(), "old\n");
}

/// Runs a program under ptrace and kills it at its n-th system call that changes something.
const TRACER: &str = include_str!("../../support/kill_at.c");

pub(crate) fn tracer(dir: &Path) -> PathBuf {
    let (source, program) = (dir.join("kill_at.c"), dir.join("kill_at"));
    fs::write(&source, TRACER).unwrap();
    let built = Command::new("cc")
        .arg("-O1")
        .arg("-o")
        .arg(&program)
        .arg(&source)
        .output();
    let built = built.unwrap();
    assert!(
        built.status.success(),
        "{}",
        String::from_utf8_lossy(&built.stderr)
    );
    program
}

#[tokio::test]
async fn an_apply_that_is_killed_anywhere_leaves_the_old_or_is_finished_by_the_next_command() {
    let over = OverlayHost::new();
    let tracer = tracer(&over.at("home"));
    for path in ["changed", "gone", "swap/one", "swap/two", "todir", "mode/x"] {
        over.put(path, "old\n");
    }
    over.session_says(
        "echo new > changed; rm gone; rm -r swap; mkdir swap; echo n > swap/two; rm todir; \
         mkdir todir; echo n > todir/in; echo n > added; chmod 700 mode; ln -s changed link",
    )
    .await;
    let old = over.tree();
    over.keep();
    assert_eq!(over.killed_at(&tracer, 100_000), Some(0), "not killed");
    let new = over.tree();
    assert_ne!(new, old);
    let (mut forgotten, mut finished, mut n) = (0, 0, 1);
    loop {
        over.put_back();
        assert_eq!(over.tree(), old);
        let code = over.killed_at(&tracer, n);
        if code == Some(0) {
            break;
        }
        assert_eq!(code, Some(77), "killed at {n}");
        let output = over.run_unless_busy(&["diff", "s-1"]);
        assert_eq!(output.code, Some(0), "{n}: {}", output.err);
        let tree = over.tree();
        if tree == old {
            forgotten += 1;
        } else {
            finished += 1;
            assert_eq!(tree, new, "killed at {n}: {}", output.err);
            assert_eq!(output.out, "", "{n}: nothing is left to do");
        }
        assert!(!over.at("state/overlays/s-1,intent").exists(), "{n}");
        if tree == old && n.is_multiple_of(5) {
            over.applies();
            assert_eq!(over.tree(), new, "{n}");
        }
        n += 1;
    }
    eprintln!("killed at {n} points: {forgotten} left the old, {finished} were finished");
    assert!(forgotten > 5 && finished > 5, "{forgotten} {finished}");
}

#[tokio::test]
async fn a_killed_apply_whose_workspace_was_changed_since_goes_back() {
    let over = OverlayHost::new();
    let tracer = tracer(&over.at("home"));
    for path in ["a", "b", "c"] {
        over.put(path, "old\n");
    }
    over.session_says("echo new > a; echo new > b; rm c").await;
    over.keep();
    // Step on until the first file is new and the second not yet.
    let mut found = false;
    for n in 1..400 {
        assert_eq!(over.killed_at(&tracer, n), Some(77));
        if over.read("a") == "new\n" && over.read("b") == "old\n" {
            found = true;
            break;
        }
        over.put_back();
    }
    assert!(found);
    over.put("b", "theirs\n");
    let output = over.run_unless_busy(&["apply", "s-1"]);
    assert_eq!(output.code, Some(1), "{}", output.err);
    assert!(
        output.err.contains("nothing was applied: b"),
        "{}",
        output.err
    );
    assert_eq!(
        (over.read("a"), over.read("b"), over.read("c")),
        ("old\n".into(), "theirs\n".into(), "old\n".into())
    );
    assert!(!over.project(".marshal-apply-s-1").exists());
    let err = over.refuses(&["apply", "s-1"]);
    assert!(err.contains("refused: b"), "{err}");
    assert!(overlay::path(&over.overlays(), &session()).exists());
}
