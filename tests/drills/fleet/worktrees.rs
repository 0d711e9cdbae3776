//! Sessions that work in a clone: their branch comes back and is taken, and nothing that stands in a
//! repository, theirs or their source's, runs as the supervisor. And what a mask hides, or a slice
//! shows, of a workspace that is mounted.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::drill::{Drill, Ran};
use crate::programs::install;

const POOL: &str = r#"
[pool.demo]
size      = 1
command   = ["marshal", "script-agent", "--dialect", "scaiflux"]
policy    = "developer"
workspace = { path = "project", mode = "worktree" }
env       = { set = { DRILL = "MARK" } }
"#;

/// Git of the operator, with the configuration of whatever repository it is.
pub(super) fn try_git(dir: &Path, args: &[&str]) -> (bool, String) {
    let output = Command::new("git")
        .arg("-C")
        .arg(dir)
        .args([
            "-c",
            "safe.directory=*",
            "-c",
            "user.name=o",
            "-c",
            "user.email=o@x",
        ])
        .args([
            "-c",
            "protocol.file.allow=always",
            "-c",
            "init.defaultBranch=main",
        ])
        .args(args)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_COUNT", "1")
        .env("GIT_CONFIG_KEY_0", "safe.directory")
        .env("GIT_CONFIG_VALUE_0", "*")
        .output()
        .expect("git runs");
    let text = String::from_utf8_lossy(&output.stdout)
        .trim_end()
        .to_owned();
    (output.status.success(), text)
}

pub(super) fn git(dir: &Path, args: &[&str]) -> String {
    let (is_ok, text) = try_git(dir, args);
    assert!(is_ok, "git {args:?} in {}", dir.display());
    text
}

/// Makes the drill's workspace a repository with one commit.
pub(super) fn commit(drill: &Drill, init: &[&str]) -> String {
    let source = drill.workspace();
    git(&source, &[&["init", "-q"], init].concat());
    git(&source, &["add", "."]);
    git(&source, &["commit", "-qm", "first"]);
    git(&source, &["rev-parse", "HEAD"])
}

fn chown(path: &Path, uid: u32) {
    let owner = format!("{uid}:{uid}");
    let status = Command::new("chown")
        .arg("-R")
        .arg(owner)
        .arg(path)
        .status();
    assert!(status.expect("chown").success());
}

/// Plants in a repository whatever git may start by itself; each writes into `proof`.
pub(super) fn plant(source: &Path, proof: &Path) {
    fs::create_dir(proof).expect("proof");
    fs::set_permissions(proof, fs::Permissions::from_mode(0o777)).expect("proof");
    let program = source.join("planted.sh");
    let text = format!("#!/bin/sh\nid -u > {}/$$\ncat\n", proof.display());
    install(&program, text.as_bytes());
    let program = program.to_str().expect("UTF-8");
    for key in [
        "core.fsmonitor",
        "filter.x.clean",
        "filter.x.smudge",
        "filter.x.process",
        "core.sshCommand",
        "uploadpack.packObjectsHook",
        "core.alternateRefsCommand",
        "diff.external",
        "core.pager",
        "credential.helper",
        "gpg.program",
    ] {
        git(source, &["config", key, program]);
    }
    for hook in [
        "post-checkout",
        "post-commit",
        "reference-transaction",
        "post-index-change",
    ] {
        let hook = source.join(".git/hooks").join(hook);
        fs::create_dir_all(hook.parent().expect("hooks")).expect("hooks");
        install(&hook, fs::File::open(program).expect("program"));
    }
    let included = source.join("included");
    fs::write(&included, format!("[core]\n\tsshCommand = {program}\n")).expect("included");
    git(
        source,
        &["config", "include.path", included.to_str().expect("UTF-8")],
    );
    fs::write(source.join(".git/info/attributes"), "* filter=x\n").expect("attributes");
}

fn is_empty(dir: &Path) -> bool {
    fs::read_dir(dir).expect("a directory").next().is_none()
}

fn run_one(drill: &Drill, prompt: &str) -> (Ran, Value) {
    let ran = drill.run(&["run", "--results", "results.jsonl", prompt]);
    let mut results = drill.results("results.jsonl");
    assert_eq!(results.len(), 1, "{}", ran.all());
    (ran, results.remove(0))
}

pub(super) fn text<'v>(result: &'v Value, key: &str) -> &'v str {
    result[key]
        .as_str()
        .unwrap_or_else(|| panic!("{key} in {result}"))
}

/// The branch of a task, as its result names it.
pub(super) fn branch_of(result: &Value) -> &str {
    text(&result["branch"], "name")
}

/// What is in the source's objects and branches.
fn state_of(source: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![source.join(".git/objects/pack"), source.join(".git/refs")];
    while let Some(dir) = open.pop() {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                open.push(path);
            } else {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

const WORK: &str = "unasked test \"$(git log --format=%s)\" = first && test \"$(cat README.md)\" = '# A project' && git status --porcelain > seen.txt
unasked echo one > made.txt && git add made.txt && git commit -qm agent && echo two >> made.txt && mkdir d && echo left > d/left.txt
unasked printf '#!/bin/sh\\nid -u > /workspace/ran.$$\\ncat\\n' > .git/evil && chmod +x .git/evil && git config core.fsmonitor /workspace/.git/evil && git config filter.x.clean /workspace/.git/evil && echo '* filter=x' > .git/info/attributes && cp .git/evil .git/hooks/post-commit
unasked touch /run/marshal/objects/x; git update-ref refs/heads/other HEAD; true";

/// One life of a clone: planted sources, an agent that plants too, a branch that is taken.
#[allow(clippy::too_many_lines, reason = "one story, told in order")]
fn a_branch_comes_back(drill: &Drill, owner: u32) {
    let (source, proof) = (drill.workspace(), drill.path("proof"));
    let base = commit(drill, &[]);
    fs::write(source.join("README.md"), "changed, and not committed\n").expect("README.md");
    plant(&source, &proof);
    chown(&source, owner);
    try_git(&source, &["status"]);
    assert!(!is_empty(&proof), "the planted programs work");
    fs::remove_dir_all(&proof).expect("proof");
    fs::create_dir(&proof).expect("proof");
    fs::set_permissions(&proof, fs::Permissions::from_mode(0o777)).expect("proof");

    let before = state_of(&source);
    let (ran, result) = run_one(drill, WORK);
    assert_eq!(result["outcome"], "done", "{}", ran.all());
    assert!(
        ran.stderr.contains("has uncommitted changes"),
        "{}",
        ran.all()
    );
    let bundle = PathBuf::from(text(&result, "bundle"));
    assert_eq!(
        fs::metadata(&bundle).expect("a bundle").mode() & 0o777,
        0o600
    );
    let session = text(&result, "session").to_owned();
    let clone = PathBuf::from(text(&result, "workspace"));
    assert_eq!(
        fs::read_to_string(clone.join("seen.txt")).expect("seen.txt"),
        "?? seen.txt\n"
    );
    let changes = result["changes"].to_string();
    assert!(
        changes.contains("made.txt") && changes.contains("d/left.txt"),
        "{changes}"
    );
    assert_eq!(state_of(&source), before, "nobody wrote the source");

    let took = drill.run(&["land", &session]);
    assert_eq!(took.code, Some(0), "{}", took.all());
    assert!(
        is_empty(&proof),
        "something planted ran outside: {}",
        took.all()
    );
    let planted = fs::read_dir(&clone).expect("clone").flatten();
    let ran_inside = planted.filter(|e| e.file_name().to_string_lossy().starts_with("ran."));
    let first = ran_inside
        .map(|e| fs::read_to_string(e.path()).expect("uid"))
        .next();
    assert_eq!(
        first.as_deref().unwrap_or("1000\n"),
        "1000\n",
        "only inside, as the agent"
    );

    // Without the programs that were planted, as the operator would look at it.
    fs::remove_file(source.join(".git/config")).expect("config");
    fs::remove_dir_all(source.join(".git/hooks")).expect("hooks");
    fs::remove_file(source.join(".git/info/attributes")).expect("attributes");
    let branch = branch_of(&result).to_owned();
    let log = git(&source, &["log", "--format=%s", &branch]);
    assert_eq!(log, "Uncommitted work\nagent\nfirst");
    assert_eq!(
        git(&source, &["show", &format!("{branch}:made.txt")]),
        "one\ntwo"
    );
    assert_eq!(
        git(&source, &["show", &format!("{branch}:d/left.txt")]),
        "left"
    );
    assert_eq!(
        git(&source, &["rev-parse", "HEAD"]),
        base,
        "nothing is checked out"
    );
    let readme = fs::read_to_string(source.join("README.md")).expect("README.md");
    assert_eq!(readme, "changed, and not committed\n");
    git(&source, &["fsck", "--strict"]);
    for path in state_of(&source) {
        assert_eq!(
            fs::metadata(&path).expect("made").uid(),
            owner,
            "{}",
            path.display()
        );
    }
    let again = drill.run(&["--json", "land", &session]);
    assert_eq!(again.code, Some(0), "{}", again.all());
    assert!(
        again.stdout.contains("\"was_there\":true"),
        "{}",
        again.all()
    );
    // Another commit of that name is nothing to overwrite.
    git(
        &source,
        &["update-ref", &format!("refs/heads/{branch}"), &base],
    );
    let refused = drill.run(&["land", &session]);
    assert_eq!(refused.code, Some(1), "{}", refused.all());
    assert!(
        refused.stderr.contains("exists already"),
        "{}",
        refused.all()
    );
    assert_eq!(git(&source, &["rev-parse", &branch]), base);
}

/// Every file that another program runs or obeys is named before a branch is taken, also one that only
/// an earlier commit of it has.
#[test]
fn a_branch_that_takes_effect_outside_is_shown_first_and_taken_by_name() {
    let drill = Drill::new(POOL);
    commit(&drill, &[]);
    let work = "write made.txt one\nwrite package.json {}\nrun git add -A\nrun git commit -qm one\n\
                run git rm -q package.json\nunasked cp made.txt AGENTS.md\nrun git add -A\nrun git commit -qm two";
    let (ran, result) = run_one(&drill, work);
    assert_eq!(result["outcome"], "done", "{}", ran.all());
    let session = text(&result, "session");
    let shown = drill.run(&["diff", session]);
    assert_eq!(shown.code, Some(0), "{}", shown.all());
    let listed = "takes effect outside of the sandbox:\n    AGENTS.md: a setting";
    assert!(shown.stdout.starts_with(listed), "{}", shown.all());
    assert!(
        shown.stdout.contains("package.json: a build"),
        "{}",
        shown.all()
    );
    assert!(
        shown.stdout.contains("+++ b/made.txt\n@@ -0,0 +1 @@\n+one"),
        "{}",
        shown.all()
    );
    let one = drill.run(&["diff", session, "AGENTS.md"]);
    assert!(!one.stdout.contains("+++ b/made.txt") && one.stdout.contains("+++ b/AGENTS.md"));
    let branch = format!("refs/heads/{}", branch_of(&result));
    for (args, code) in [
        (&[] as &[&str], 1),
        (&["--allow", "AGENTS.md"], 1),
        (&["--allow", "AGENTS.md", "--allow", "package.json"], 0),
    ] {
        let took = drill.run(&[&["land", session], args].concat());
        assert_eq!(took.code, Some(code), "{}", took.all());
        assert!(
            took.stderr.contains("package.json: a build"),
            "{}",
            took.all()
        );
        let (is_there, _) = try_git(&drill.workspace(), &["rev-parse", "--verify", &branch]);
        assert_eq!(is_there, code == 0, "{}", took.all());
    }
    let none = drill.run(&["diff", "nobody"]);
    assert_eq!(none.code, Some(2), "{}", none.all());
    assert!(none.stderr.contains("nobody"), "{}", none.all());
}

#[test]
fn a_branch_comes_back_to_root() {
    a_branch_comes_back(&Drill::new(POOL), 0);
}

#[test]
fn a_branch_comes_back_to_its_owner_by_root() {
    a_branch_comes_back(&Drill::new(POOL), 54_321);
}

#[test]
fn a_branch_comes_back_to_an_ordinary_user() {
    let drill = Drill::of_nobody(POOL);
    a_branch_comes_back(&drill, crate::drill::NOBODY);
}

/// Replaces a session's bundle by one with `tip`, as an agent that has taken git's sandbox over could.
fn forge(drill: &Drill, session: &str, name: &str, tip: &str, base: &str) -> PathBuf {
    let forge = drill.path("forge");
    git(&forge, &["update-ref", name, tip]);
    let bundle = drill.state().join(format!("copies/{session},bundle"));
    let path = bundle.to_str().expect("UTF-8");
    git(
        &forge,
        &["bundle", "create", "-q", path, name, &format!("^{base}")],
    );
    git(&forge, &["update-ref", "-d", name]);
    bundle
}

#[test]
#[allow(clippy::too_many_lines, reason = "one story, told in order")]
fn a_hostile_bundle_changes_nothing() {
    let drill = Drill::new(POOL);
    let source = drill.workspace();
    let base = commit(&drill, &[]);
    let (ran, result) = run_one(&drill, "unasked echo x > made.txt");
    assert_eq!(result["outcome"], "done", "{}", ran.all());
    let session = text(&result, "session").to_owned();
    let name = format!("refs/heads/{}", branch_of(&result));
    let before = state_of(&source);
    git(&drill.path("."), &["clone", "-q", "project", "forge"]);
    let forged = drill.path("forge");
    let with = |entries: &str| -> String {
        let file = drill.path("entries");
        fs::write(&file, entries).expect("entries");
        let script = format!(
            "t=$(git mktree --missing < {}) && git -c user.name=a -c user.email=a@b commit-tree $t -p {base} -m x",
            file.display()
        );
        let output = Command::new("sh")
            .args(["-c", &script])
            .current_dir(&forged)
            .output();
        let output = output.expect("sh");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    };
    let refused = |what: &str| {
        let took = drill.run(&["land", &session]);
        assert_eq!(took.code, Some(1), "{what}: {}", took.all());
        assert_eq!(state_of(&source), before, "{what}: {}", took.all());
        took.stderr
    };
    fs::write(forged.join("blob"), "evil\n").expect("blob");
    let blob = git(&forged, &["hash-object", "-w", "blob"]);
    let file = |name: &str| format!("100644 blob {blob}\t{name}\n");
    let inner_tip = with(&file("config"));
    let inner = git(&forged, &["rev-parse", &format!("{inner_tip}^{{tree}}")]);
    for name_in_tree in [".git", ".GIT"] {
        let tip = with(&format!("040000 tree {inner}\t{name_in_tree}\n"));
        forge(&drill, &session, &name, &tip, &base);
        let why = refused(name_in_tree);
        assert!(why.contains("hasDotgit"), "{why}");
    }
    let tip = with(
        &file("..")
            .replace("100644 blob", "040000 tree")
            .replace(&blob, &inner),
    );
    forge(&drill, &session, &name, &tip, &base);
    refused("..");
    // A submodule whose address is an option of the program that fetches it.
    fs::write(
        forged.join("gm"),
        "[submodule \"x\"]\n\tpath = x\n\turl = --upload-pack=evil\n",
    )
    .expect("gm");
    let modules = git(&forged, &["hash-object", "-w", "gm"]);
    let tip = with(&format!(
        "100644 blob {modules}\t.gitmodules\n160000 commit {base}\tx\n"
    ));
    forge(&drill, &session, &name, &tip, &base);
    let why = refused("a submodule");
    assert!(why.contains("gitmodulesUrl"), "{why}");
    // Another branch, two branches, none of ours.
    let good = with(&file("good"));
    forge(&drill, &session, "refs/heads/main2", &good, &base);
    assert!(refused("another branch").contains("something other"));
    let bundle = forge(&drill, &session, &name, &good, &base);
    let whole = fs::read(&bundle).expect("bundle");
    let write = |bytes: &[u8]| fs::write(&bundle, bytes).expect("bundle");
    write(&whole[..whole.len() - 7]);
    refused("a pack that is cut off");
    let mut turned = whole.clone();
    let last = turned.len() - 30;
    turned[last] ^= 0xff;
    write(&turned);
    refused("a pack with another byte");
    let lines = format!("# v2 git bundle\n{}", format!("-{base} x\n").repeat(20_000));
    write(lines.as_bytes());
    assert!(refused("an endless head").contains("too many lines"));
    let at = whole
        .windows(2)
        .position(|two| two == b"\n\n")
        .expect("a head")
        + 2;
    let head = |tip: &str, branch: &str| {
        let head = format!("# v2 git bundle\n-{base} \n{tip} {branch}\n\n");
        [head.as_bytes(), &whole[at..]].concat()
    };
    write(&head(&"e".repeat(40), &name));
    refused("a branch that leads to nothing");
    write(&head(&blob, &name));
    refused("a branch that is no commit");
    write(&head(&good, "refs/heads/marshal/../../../config"));
    assert!(refused("a name outside").contains("something other"));
    // What the pack stands on must be in the source.
    let missing = with(&format!("100644 blob {}\tgone\n", "d".repeat(40)));
    git(&forged, &["update-ref", "refs/heads/x", &missing]);
    write(&head(&missing, &name));
    refused("objects that are nowhere");
    // All that is left is the bundle as it should be.
    write(&head(&good, &name));
    let took = drill.run(&["land", &session]);
    assert_eq!(took.code, Some(0), "{}", took.all());
    assert_eq!(git(&source, &["rev-parse", &name]), good);
}

#[test]
fn a_source_that_cannot_be_cloned_is_refused_with_what_helps() {
    let refused = |make: &dyn Fn(&Drill), expect: &str| {
        let drill = Drill::new(POOL);
        make(&drill);
        let (ran, result) = run_one(&drill, "unasked true");
        assert_eq!(result["outcome"], "failed", "{expect}: {}", ran.all());
        let detail = text(&result, "detail");
        assert!(detail.contains(expect), "{detail}");
        let copies = fs::read_dir(drill.state().join("copies")).expect("copies");
        let left: Vec<_> = copies.flatten().map(|entry| entry.path()).collect();
        assert!(left.is_empty(), "{left:?}");
    };
    refused(&|_| {}, "no git repository");
    refused(
        &|drill| drop(git(&drill.workspace(), &["init", "-q"])),
        "has no commit",
    );
    refused(
        &|drill| {
            let file = drill.workspace().join(".git");
            fs::write(file, "gitdir: ../elsewhere\n").expect(".git");
        },
        "there is no repository where it leads",
    );
    // Another's repository.
    refused(
        &|drill| {
            commit(drill, &[]);
            git(&drill.workspace(), &["worktree", "add", "-q", "../linked"]);
            fs::rename(drill.workspace(), drill.path("main")).expect("rename");
            fs::rename(drill.path("linked"), drill.path("moved")).expect("rename");
            git(&drill.path("main"), &["worktree", "repair", "../moved"]);
            fs::create_dir(drill.workspace()).expect("project");
            let file = drill.path("moved/.git");
            fs::copy(file, drill.workspace().join(".git")).expect(".git");
        },
        "does not name this directory",
    );
    refused(
        &|drill| {
            commit(drill, &[]);
            git(
                &drill.path("."),
                &["clone", "-q", "--shared", "project", "shared"],
            );
            fs::rename(drill.workspace(), drill.path("main")).expect("rename");
            fs::rename(drill.path("shared"), drill.workspace()).expect("rename");
        },
        "borrows objects",
    );
}

const LARGE: &str = "the content of a large file\n";

/// A repository with a submodule that has a submodule, one that the repository lacks, and files of Git LFS.
fn with_submodules_and_large_files(drill: &Drill) {
    commit(drill, &[]);
    let source = drill.workspace();
    let repository = |name: &str, file: &str| {
        let path = drill.path(name);
        fs::create_dir(&path).expect("a directory");
        git(&path, &["init", "-q"]);
        fs::write(path.join(file), format!("of {name}\n")).expect("a file");
        fs::write(path.join(".env"), "SECRET=1\n").expect("a secret");
        git(&path, &["add", "."]);
        git(&path, &["commit", "-qm", "first"]);
        path.display().to_string()
    };
    let inner = repository("inner", "inner.txt");
    let other = repository("other", "other.txt");
    git(
        Path::new(&other),
        &["submodule", "--quiet", "add", &inner, "deep"],
    );
    git(Path::new(&other), &["commit", "-qm", "deep"]);
    git(&source, &["submodule", "--quiet", "add", &other, "sub dir"]);
    git(&source, &["submodule", "--quiet", "add", &inner, "gone"]);
    git(
        &source,
        &["submodule", "--quiet", "update", "--init", "--recursive"],
    );
    fs::write(source.join(".gitattributes"), "*.bin filter=lfs -text\n").expect("attributes");
    fs::write(drill.path("large"), LARGE).expect("a file");
    let digest = Command::new("sha256sum").arg(drill.path("large")).output();
    let digest = digest.expect("sha256sum");
    let id = String::from_utf8_lossy(&digest.stdout)[..64].to_owned();
    for (name, id) in [("has.bin", id.clone()), ("lacks.bin", "0".repeat(64))] {
        let text =
            format!("version https://git-lfs.github.com/spec/v1\noid sha256:{id}\nsize 28\n");
        fs::write(source.join(name), text).expect("a pointer");
    }
    git(&source, &["add", "."]);
    git(&source, &["commit", "-qm", "all"]);
    let store = source.join(format!(".git/lfs/objects/{}/{}", &id[..2], &id[2..4]));
    fs::create_dir_all(&store).expect("a store");
    fs::write(store.join(&id), LARGE).expect("an object");
    fs::remove_dir_all(source.join(".git/modules/gone")).expect("removed");
}

#[test]
fn submodules_and_large_files_are_there_as_far_as_the_source_has_them() {
    let drill = Drill::new(POOL);
    with_submodules_and_large_files(&drill);
    let prompt = "unasked grep -h -a . 'sub dir/other.txt' 'sub dir/deep/inner.txt' has.bin lacks.bin > seen.txt; ls -a 'sub dir' >> seen.txt; git status --short >> seen.txt\n\
        unasked echo y >> has.bin && echo z >> 'sub dir/other.txt' && echo x > made.txt";
    let (ran, result) = run_one(&drill, prompt);
    assert_eq!(result["outcome"], "done", "{}", ran.all());
    let session = text(&result, "session");
    let copy = drill.state().join("copies").join(session);
    let seen = fs::read_to_string(copy.join("seen.txt")).expect("seen.txt");
    for part in [
        "of other",
        "of inner",
        LARGE.trim_end(),
        "sha256:0000",
        "other.txt",
    ] {
        assert!(seen.contains(part), "{part}: {seen}");
    }
    assert!(!seen.contains(".env") && !seen.contains(" M "), "{seen}");
    let log = ran.stderr;
    assert!(
        log.contains("1 files of Git LFS") && log.contains("gone"),
        "{log}"
    );
    let took = drill.run(&["land", session]);
    assert_eq!(took.code, Some(0), "{}", took.all());
    let changed = git(
        &drill.workspace(),
        &["diff", "--name-only", "HEAD", branch_of(&result)],
    );
    assert_eq!(
        changed, "made.txt\nseen.txt",
        "what cannot come back is not in the branch"
    );
}

#[test]
fn other_kinds_of_repositories_come_back_too() {
    let works = |make: &dyn Fn(&Drill)| {
        let drill = Drill::new(POOL);
        make(&drill);
        let (ran, result) = run_one(&drill, "unasked git log --oneline && echo x > made.txt");
        assert_eq!(result["outcome"], "done", "{}", ran.all());
        let session = text(&result, "session");
        let took = drill.run(&["land", session]);
        assert_eq!(took.code, Some(0), "{}", took.all());
        let made = format!("{}:made.txt", branch_of(&result));
        assert_eq!(git(&drill.workspace(), &["show", &made]), "x");
        let of_task = format!("HEAD..{}", branch_of(&result));
        let changed = git(&drill.workspace(), &["diff", "--name-only", &of_task]);
        assert_eq!(changed, "made.txt");
    };
    works(&|drill| drop(commit(drill, &["--object-format=sha256"])));
    // Shallow.
    works(&|drill| {
        commit(drill, &[]);
        git(
            &drill.workspace(),
            &["commit", "--allow-empty", "-qm", "second"],
        );
        fs::rename(drill.workspace(), drill.path("main")).expect("rename");
        let from = format!("file://{}", drill.path("main").display());
        git(
            &drill.path("."),
            &["clone", "-q", "--depth=1", &from, "project"],
        );
    });
    works(&with_submodules_and_large_files);
    // A linked worktree; the branch is in the repository.
    works(&|drill| {
        commit(drill, &[]);
        let main = drill.path("main");
        fs::rename(drill.workspace(), &main).expect("rename");
        git(&main, &["commit", "--allow-empty", "-qm", "only in main"]);
        let add = [
            "worktree",
            "add",
            "-q",
            "-b",
            "other",
            "../project",
            "HEAD~1",
        ];
        git(&main, &add);
    });
    // A submodule.
    works(&|drill| {
        commit(drill, &[]);
        fs::rename(drill.workspace(), drill.path("origin")).expect("rename");
        let outer = drill.path("outer");
        fs::create_dir(&outer).expect("outer");
        git(&outer, &["init", "-q"]);
        let from = drill.path("origin").display().to_string();
        git(&outer, &["submodule", "--quiet", "add", &from, "sub"]);
        let text = fs::read_to_string(drill.config()).expect("supervisor.toml");
        let text = text.replace("path = \"project\"", "path = \"outer/sub\"");
        fs::write(drill.config(), text).expect("supervisor.toml");
        std::os::unix::fs::symlink(outer.join("sub"), drill.workspace()).expect("project");
    });
    // A sparse and partial clone: what it lacks is neither needed nor deleted.
    works(&|drill| {
        commit(drill, &[]);
        let main = drill.path("main");
        fs::rename(drill.workspace(), &main).expect("rename");
        git(&main, &["config", "uploadpack.allowFilter", "true"]);
        fs::create_dir_all(main.join("large/deep")).expect("large");
        fs::write(main.join("large/deep/file"), "large").expect("large");
        git(&main, &["add", "."]);
        git(&main, &["commit", "-qm", "large"]);
        let from = format!("file://{}", main.display());
        let clone = [
            "clone",
            "-q",
            "--filter=blob:none",
            "--sparse",
            &from,
            "project",
        ];
        git(&drill.path("."), &clone);
        git(&drill.workspace(), &["sparse-checkout", "add", "src"]);
        assert!(!drill.workspace().join("large").exists());
    });
    // A work tree that is left as it was brings nothing back.
    let drill = Drill::new(POOL);
    commit(&drill, &[]);
    let (_, result) = run_one(&drill, "unasked true");
    assert_eq!(result["bundle"], Value::Null, "{result}");
    let took = drill.run(&["land", text(&result, "session")]);
    assert_eq!(took.code, Some(2), "{}", took.all());
    let took = drill.run(&["land", "nobody"]);
    assert_eq!(took.code, Some(2), "{}", took.all());
}

/// Ignored files go along where they are named, hidden ones do not, and none of them is committed.
#[test]
fn named_files_go_along_and_are_not_committed() {
    for mode in ["worktree", "copy"] {
        let with = format!(
            "mode = \"{mode}\", include = [\"local.toml\", \"gen/**\", \"link\", \"*.env\"]"
        );
        let drill = Drill::new(&POOL.replace("mode = \"worktree\"", &with));
        let source = drill.workspace();
        for (path, text) in [
            (".gitignore", "local.toml\ngen\n*.log\n"),
            (
                ".worktreeinclude",
                "*.log\n!other.log\n../outside.txt\n/etc/passwd\n",
            ),
        ] {
            fs::write(source.join(path), text).expect(path);
        }
        commit(&drill, &[]);
        fs::create_dir(source.join("gen")).expect("gen");
        fs::create_dir(source.join("sub")).expect("sub");
        for path in [
            "gen/a b#.txt",
            "sub/local.toml",
            "one.log",
            "other.log",
            ".env",
            "left.txt",
            "../outside.txt",
        ] {
            fs::write(source.join(path), "x").expect(path);
        }
        std::os::unix::fs::symlink("/etc/passwd", source.join("link")).expect("link");
        let (ran, result) = run_one(
            &drill,
            "unasked find . -path ./.git -prune -o -type f -print -o -type l -print | sort > list\n\
             unasked test ! -e ../outside.txt\nunasked grep -q . sub/local.toml",
        );
        assert_eq!(result["outcome"], "done", "{}", ran.all());
        let copies = drill.state().join("copies").join(text(&result, "session"));
        let list = fs::read_to_string(copies.join("list")).expect("list");
        let has = |path: &str| list.lines().any(|line| line == format!("./{path}"));
        for path in [
            "gen/a b#.txt",
            "sub/local.toml",
            "one.log",
            "link",
            "README.md",
        ] {
            assert!(has(path), "{mode}: {path} in {list}");
        }
        assert!(!has("other.log") && !has(".env"), "{mode}: {list}");
        assert_eq!(has("left.txt"), mode == "copy", "{mode}: {list}");
        if mode == "worktree" {
            let session = text(&result, "session");
            let took = drill.run(&["land", session]);
            assert_eq!(took.code, Some(0), "{}", took.all());
            let changed = format!("HEAD..{}", branch_of(&result));
            let changed = git(&source, &["diff", "--name-only", &changed]);
            assert_eq!(changed, "list");
        }
    }
}

/// Clones start from what the pool names, or say that it is not there.
#[test]
fn a_clone_starts_from_its_base() {
    let based = |base: &str| {
        let of_base = format!("mode = \"worktree\", base = \"{base}\"");
        let drill = Drill::new(&POOL.replace("mode = \"worktree\"", &of_base));
        let first = commit(&drill, &[]);
        let source = drill.workspace();
        git(&source, &["branch", "release"]);
        git(&source, &["commit", "--allow-empty", "-qm", "second"]);
        (run_one(&drill, "unasked echo x > made.txt"), drill, first)
    };
    let ((ran, result), drill, first) = based("release");
    assert_eq!(result["outcome"], "done", "{}", ran.all());
    let session = text(&result, "session");
    let took = drill.run(&["land", session]);
    assert_eq!(took.code, Some(0), "{}", took.all());
    let parent = format!("{}~1", branch_of(&result));
    assert_eq!(git(&drill.workspace(), &["rev-parse", &parent]), first);
    let ((ran, result), ..) = based("origin/main");
    assert_eq!(result["outcome"], "failed", "{}", ran.all());
    let detail = text(&result, "detail");
    assert!(detail.contains("no commit \"origin/main\""), "{detail}");
}

/// An agent that leaves no repository behind keeps its work, and the run says where.
#[test]
fn a_clone_that_is_no_repository_any_more_is_said() {
    let drill = Drill::new(POOL);
    commit(&drill, &[]);
    let (ran, result) = run_one(
        &drill,
        "unasked rm -rf .git && mkfifo .git && echo x > made.txt",
    );
    assert_eq!(result["outcome"], "done", "{}", ran.all());
    assert!(
        text(&result, "detail").contains("could not be bundled"),
        "{result}"
    );
    let clone = PathBuf::from(text(&result, "workspace"));
    assert!(clone.join("made.txt").exists());
}

/// What a check sees is what the agent sees: it runs in the same sandbox.
#[test]
fn masks_and_slices_hold_for_a_task() {
    let outcome = |workspace: &str, check: &str| {
        let pool = POOL
            .replace("{ path = \"project\", mode = \"worktree\" }", workspace)
            .replace(
                "policy ",
                &format!("check = [\"sh\", \"-c\", {check:?}]\npolicy "),
            );
        let drill = Drill::new(&pool);
        let at = |name: &str| drill.workspace().join(name);
        fs::create_dir_all(at("deep")).expect("deep");
        for name in [".env", "deep/key.pem", "deep/cacert.pem"] {
            fs::write(at(name), "text\n").expect("a file");
        }
        let (ran, result) = run_one(&drill, "unasked true");
        (text(&result, "outcome").to_owned(), ran.all())
    };
    let is = |workspace: &str, check: &str, expect: &str| {
        let (outcome, all) = outcome(workspace, check);
        assert_eq!(outcome, expect, "{workspace} {check}: {all}");
    };
    let readable = "cat .env && cat deep/key.pem";
    is(
        r#"{ path = "project", mode = "ro", mask = [] }"#,
        readable,
        "done",
    );
    is(
        r#"{ path = "project", mode = "ro" }"#,
        "cat .env || cat deep/key.pem",
        "failed",
    );
    is(
        r#"{ path = "project", mode = "ro" }"#,
        "cat deep/cacert.pem README.md",
        "done",
    );
    is(
        r#"{ path = "project", mode = "copy" }"#,
        "test -e .env || test -e deep/key.pem",
        "failed",
    );
    is(
        r#"{ path = "project", mode = "copy", mask = [] }"#,
        readable,
        "done",
    );
    let one = r#"{ path = "project", mode = "ro", slice = ["src/**", "deep/cacert.pem"] }"#;
    let seen =
        "test \"$(find . -type f | sort | tr '\\n' ' ')\" = './deep/cacert.pem ./src/lib.rs '";
    is(one, seen, "done");
    is(
        r#"{ path = "project", mode = "ro", slice = ["gone"] }"#,
        "true",
        "failed",
    );
}

/// A supervisor that was killed between the end of a turn and its branch: the next one makes the branch.
#[test]
fn a_branch_that_a_killed_supervisor_did_not_make_is_made_when_its_run_goes_on() {
    let drill = Drill::new(POOL);
    commit(&drill, &[]);
    let (ran, result) = run_one(&drill, "write made.txt hello");
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    let session = text(&result, "session");
    // As the kill leaves it: the turn has ended, and nothing was done after it.
    fs::remove_file(text(&result, "bundle")).expect("its branch");
    {
        let database = rusqlite::Connection::open(drill.state().join("journal.db"));
        let database = database.expect("the journal");
        database
            .execute_batch(
                "UPDATE tasks SET state = 'running', outcome = NULL, result = NULL, detail = NULL, \
                 ended_at_us = NULL; UPDATE runs SET ended_at_us = NULL, code = NULL;",
            )
            .expect("as it was");
    }
    let landed = drill.run(&["land", session]);
    assert_eq!(landed.code, Some(2), "{}", landed.all());
    let continued = drill.run(&["run", "--continue", "--results", "again.jsonl"]);
    assert_eq!(continued.code, Some(0), "{}", continued.all());
    let result = drill.results("again.jsonl").remove(0);
    assert_eq!(result["outcome"], "done", "{result}");
    assert_eq!(text(&result, "session"), session, "it was not sent again");
    let landed = drill.run(&["land", session]);
    assert_eq!(landed.code, Some(0), "{}", landed.all());
    let made = format!("{}:made.txt", branch_of(&result));
    assert_eq!(git(&drill.workspace(), &["show", &made]), "hello");
}
