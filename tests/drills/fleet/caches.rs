//! Caches of the host that agents share: what one of them writes there is its session's own.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::drill::{Drill, NOBODY};

const POOL: &str = r#"
[pool.demo]
size      = 1
command   = ["marshal", "script-agent", "--dialect", "scaiflux"]
policy    = "cautious"
workspace = { path = "project", mode = "copy" }
cache     = ["cargo", "npm", "pip"]
env       = { set = { DRILL = "MARK" } }
"#;

/// Shows what is there, in the order of the lines that [`SAW`] has.
const LOOK: &str = "unasked { cd $CARGO_HOME; ls -A; cat registry/cache/a.crate; ls registry/cache; ls -A git; cat $npm_config_cache/_cacache/index; ls -A $npm_config_cache; cat $PIP_CACHE_DIR/http/x; grep -rl SECRET /run/marshal/cache; } > /workspace/saw.txt 2>&1; true";

const SAW: &str = "git\nregistry\ncrate\na.crate\nindex\n_cacache\nwheel\n";

/// Changes, removes, replaces and adds; every step must go well, or the last file is missing.
const POISON: &str = "unasked cd $CARGO_HOME && echo evil > registry/cache/a.crate && echo new > registry/cache/new.crate && mkdir -p git/db/x && echo made > git/db/x/y && echo SECRET > credentials.toml && rm -r $PIP_CACHE_DIR/http && mkdir $PIP_CACHE_DIR/http && echo evil > $PIP_CACHE_DIR/http/x && chmod 0777 $npm_config_cache/_cacache/index && mv $npm_config_cache/_cacache/index $npm_config_cache/_cacache/other && ln -s / $npm_config_cache/_cacache/index && touch -d 2001-01-01 registry/cache && echo all > /workspace/poisoned.txt";

const LATER: &str = "unasked { cd $CARGO_HOME; cat registry/cache/a.crate registry/cache/new.crate git/db/x/y credentials.toml $PIP_CACHE_DIR/http/x; ls $npm_config_cache/_cacache; } > /workspace/later.txt 2>&1";

/// The caches of the user that runs the drill, with secrets beside them.
fn fill(home: &Path, owner: u32) {
    for (path, text) in [
        (".cargo/registry/cache/a.crate", "crate\n"),
        (".cargo/credentials.toml", "SECRET\n"),
        (".cargo/config.toml", "SECRET\n"),
        (".cargo/bin/tool", "SECRET\n"),
        (".npm/_cacache/index", "index\n"),
        (".npm/_logs/log", "SECRET\n"),
        (".npmrc", "SECRET\n"),
        (".cache/pip/http/x", "wheel\n"),
        (".cache/other", "SECRET\n"),
    ] {
        let path = home.join(path);
        fs::create_dir_all(path.parent().expect("a directory")).expect("a directory");
        fs::write(&path, text).expect("a file");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("a file");
    }
    for dir in [".cargo", ".npm", ".cache"] {
        let mut chown = Command::new("chown");
        chown.args(["-R", &format!("{owner}:{owner}")]);
        assert!(chown.arg(home.join(dir)).status().expect("chown").success());
    }
}

/// Every name with its mode, owner, times and content.
fn state_of(home: &Path) -> String {
    let script = "find .cargo .npm .cache -printf '%p %y %m %U:%G %s %n %i %T@ %C@ %l\\n' | sort; find .cargo .npm .cache -type f -exec sha256sum {} + | sort";
    let mut sh = Command::new("sh");
    let output = sh.args(["-c", script]).current_dir(home).output();
    let output = output.expect("sh");
    assert!(output.status.success() && output.stderr.is_empty());
    String::from_utf8(output.stdout).expect("UTF-8")
}

fn run(drill: &Drill, prompt: &str) -> (Value, PathBuf) {
    let ran = drill.run(&["run", "--results", "results.jsonl", prompt]);
    let result = drill.results("results.jsonl").remove(0);
    assert_eq!(result["outcome"], "done", "{}", ran.all());
    let workspace = PathBuf::from(result["workspace"].as_str().expect("a copy"));
    (result, workspace)
}

fn read(workspace: &Path, name: &str) -> String {
    fs::read_to_string(workspace.join(name)).unwrap_or_default()
}

fn nobody_writes_what_all_share(drill: &Drill, owner: u32) {
    let home = drill.path(".");
    fill(&home, owner);
    let before = state_of(&home);

    let (_, first) = run(drill, &format!("{LOOK}\n{POISON}\n{LATER}"));
    assert_eq!(read(&first, "saw.txt"), SAW);
    assert_eq!(
        read(&first, "poisoned.txt"),
        "all\n",
        "its own can be written"
    );
    let own = "evil\nnew\nmade\nSECRET\nevil\nindex\nother\n";
    assert_eq!(read(&first, "later.txt"), own);
    assert_eq!(state_of(&home), before, "nobody wrote the host's");
    let homes = fs::read_dir(drill.state().join("homes")).expect("homes");
    assert_eq!(homes.count(), 0, "what it wrote went with its home");

    let (_, second) = run(drill, LOOK);
    assert_eq!(read(&second, "saw.txt"), SAW, "as if nobody had been there");
    assert_eq!(state_of(&home), before);
}

#[test]
fn nobody_writes_caches_of_root() {
    nobody_writes_what_all_share(&Drill::new(POOL), 0);
}

#[test]
fn nobody_writes_caches_of_another_user_by_root() {
    nobody_writes_what_all_share(&Drill::new(POOL), 54_321);
}

#[test]
fn nobody_writes_caches_of_an_ordinary_user() {
    nobody_writes_what_all_share(&Drill::of_nobody(POOL), NOBODY);
}

/// A slot's session has its own from task to task, while the other slot's has none of it.
fn what_is_written_stays_with_its_session(drill: &Drill, owner: u32) {
    let home = drill.path(".");
    fill(&home, owner);
    let before = state_of(&home);
    let text = fs::read_to_string(drill.config()).expect("supervisor.toml");
    let text = text.replace("size      = 1", "size = 1\nsession = \"slot\"");
    fs::write(drill.config(), text).expect("supervisor.toml");
    let ran = drill.run(&["run", "--results", "results.jsonl", POISON, LATER]);
    let results = drill.results("results.jsonl");
    assert_eq!(results.len(), 2, "{}", ran.all());
    let workspace = PathBuf::from(results[1]["workspace"].as_str().expect("a copy"));
    assert_eq!(read(&workspace, "poisoned.txt"), "all\n", "{}", ran.all());
    let own = "evil\nnew\nmade\nSECRET\nevil\nindex\nother\n";
    assert_eq!(read(&workspace, "later.txt"), own, "{}", ran.all());
    assert_eq!(state_of(&home), before);
}

#[test]
fn what_is_written_in_a_cache_stays_with_its_session_as_root() {
    what_is_written_stays_with_its_session(&Drill::new(POOL), 0);
}

#[test]
fn what_is_written_in_a_cache_stays_with_its_session_as_an_ordinary_user() {
    what_is_written_stays_with_its_session(&Drill::of_nobody(POOL), NOBODY);
}

#[test]
fn a_cache_that_is_not_there_is_empty_and_one_of_the_state_directory_is_refused() {
    let drill = Drill::new(POOL);
    let look = "unasked cd $CARGO_HOME && touch registry/x git/y $npm_config_cache/_cacache/z $PIP_CACHE_DIR/w && find . $npm_config_cache $PIP_CACHE_DIR -type f | sort > /workspace/saw.txt";
    let (_, workspace) = run(&drill, look);
    let own =
        "./git/y\n./registry/x\n/run/marshal/cache/npm/_cacache/z\n/run/marshal/cache/pip/w\n";
    assert_eq!(read(&workspace, "saw.txt"), own);

    let text = fs::read_to_string(drill.config()).expect("supervisor.toml");
    fs::write(
        drill.config(),
        format!("{text}\n[cache]\npip = \"state/homes\"\n"),
    )
    .expect("cache");
    let ran = drill.run(&["run", "true"]);
    assert_ne!(ran.code, Some(0), "{}", ran.all());
    assert!(ran.all().contains("cache pip: "), "{}", ran.all());
}
