//! The first hour of somebody who has just installed marshal: a clone of a real repository, an agent from
//! npm, four tasks in three commands, and no file edited. What is on the screen is kept as snapshots.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::agents::bench::{alone, tools};
use crate::drill::eventually;
use crate::screen::screen;

/// A user whom this host does not know.
const UID: u32 = 54_321;

/// What `marshal init --rehearsal` says is to be started first.
const MODEL: [&str; 3] = ["script-model", "--listen", "127.0.0.1:8089"];

const TASKS: [&str; 4] = [
    "RUN: ls",
    "RUN: git log -1 --format=%an",
    "RUN: touch made.txt && git add made.txt && git commit -qm made\nSAY: it is made",
    "RUN: git push origin main",
];

/// A user with an empty home, in a network of their own where every port is free.
struct User {
    home: tempfile::TempDir,
    /// Holds the network: the rehearsal model.
    model: Option<Child>,
}

impl User {
    fn new() -> Self {
        let home = tempfile::Builder::new()
            .prefix("marshal-hour-")
            .tempdir()
            .expect("a home");
        chown(home.path(), Some(UID), Some(UID)).expect("given away");
        Self { home, model: None }
    }

    fn repository(&self) -> PathBuf {
        self.home.path().join("repository")
    }

    /// This user's command; `outside` comes before the change of the user.
    fn command(&self, outside: &[&str], words: &[&str]) -> Command {
        let mut command = Command::new(outside.first().copied().unwrap_or("env"));
        command.args(outside.iter().skip(1));
        if !outside.is_empty() {
            command.arg("env");
        }
        let agent = tools().join("five/opencode/node_modules/.bin");
        let program = Path::new(env!("CARGO_BIN_EXE_marshal")).parent();
        let program = program.expect("its directory");
        let home = self.home.path().display();
        command
            .arg("-i")
            .arg(format!(
                "PATH={}:{}:/usr/bin:/bin",
                program.display(),
                agent.display()
            ))
            .arg(format!("HOME={home}"))
            .arg(format!("XDG_RUNTIME_DIR={home}"))
            .args(["NO_COLOR=1", "TERM=xterm", "TZ=UTC", "setpriv"])
            .args([&format!("--reuid={UID}"), &format!("--regid={UID}")])
            .arg("--clear-groups")
            .args(words)
            .current_dir(self.home.path());
        if self.repository().exists() {
            command.current_dir(self.repository());
        }
        command
    }

    /// A command in the network of the model.
    fn marshal(&self, words: &[&str]) -> Command {
        let model = self.model.as_ref().expect("the model runs").id();
        let network = format!("--net=/proc/{model}/ns/net");
        let words: Vec<&str> = ["marshal"].iter().chain(words).copied().collect();
        self.command(&["nsenter", &network], &words)
    }

    /// Clones what this test belongs to, under the name of the person who does.
    fn clone_repository(&self) {
        let bundle = self.home.path().join("repository.bundle");
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let made = Command::new("git")
            .args(["-c", "safe.directory=*", "bundle", "create", "-q"])
            .arg(&bundle)
            .args(["HEAD"])
            .current_dir(here)
            .status();
        assert!(made.expect("git").success(), "no bundle");
        let bundle = bundle.display().to_string();
        let cloned = self.command(&[], &["git", "clone", "-q", &bundle, "repository"]);
        succeeds(cloned);
        let repository = self.repository().display().to_string();
        for [key, value] in [["user.name", "Ann"], ["user.email", "ann@example.org"]] {
            succeeds(self.command(&[], &["git", "-C", &repository, "config", key, value]));
        }
        let first = [
            "git",
            "-C",
            &repository,
            "commit",
            "-q",
            "--allow-empty",
            "-m",
            "mine",
        ];
        succeeds(self.command(&[], &first));
    }

    fn start_model(&mut self) {
        let words: Vec<&str> = ["marshal"].iter().chain(&MODEL).copied().collect();
        let network = "ip link set lo up && exec \"$@\"";
        let outside = ["unshare", "--net", "sh", "-c", network, "sh"];
        let mut model = self.command(&outside, &words);
        let child = model
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        self.model = Some(child.expect("the model starts"));
        eventually(Duration::from_secs(30), "the model listens", || {
            let mut probe = self.marshal(&["--version"]);
            probe.stdout(Stdio::null());
            let pid = self.model.as_ref().map_or(0, Child::id);
            let listens = fs::read_to_string(format!("/proc/{pid}/net/tcp"));
            listens.is_ok_and(|text| text.contains("0100007F:1F99"))
        });
    }
}

impl Drop for User {
    fn drop(&mut self) {
        if let Some(model) = &mut self.model {
            let _ = model.kill();
            let _ = model.wait();
        }
    }
}

fn succeeds(mut command: Command) {
    let output = command.output().expect("it starts");
    assert!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// What differs from one hour to the next is replaced, and what is about this host is left out: the
/// machine, and warnings about what it lacks, which come before the table.
fn settled(text: &str, home: &Path) -> String {
    let home = home.display().to_string();
    let mut settled = String::new();
    let mut is_of_host = false;
    for line in text.lines() {
        is_of_host = if is_of_host {
            !line.starts_with("workspace") && !line.starts_with("task")
        } else {
            line.starts_with("host ") || line.contains("  WARN ")
        };
        if is_of_host {
            continue;
        }
        let line = line.replace(&home, "HOME");
        let words: Vec<String> = line.split(' ').map(settle_word).collect();
        // Columns are as wide as what was in them.
        let mut shown = String::new();
        for word in words {
            if word.is_empty() && shown.ends_with("  ") {
                continue;
            }
            if !shown.is_empty() || word.is_empty() {
                shown.push(' ');
            }
            shown.push_str(&word);
        }
        settled.push_str(shown.trim_end());
        settled.push('\n');
    }
    settled
}

/// A time, an amount, a count of tokens, an id: each becomes its kind.
fn settle_word(word: &str) -> String {
    let core = word.trim_matches(|char: char| "`,;:()".contains(char));
    let core = core.strip_prefix("marshal/").unwrap_or(core);
    if core.is_empty() {
        return word.to_owned();
    }
    let digits = core.chars().filter(char::is_ascii_digit).count();
    let is_hex = core
        .chars()
        .all(|char| char.is_ascii_hexdigit() || char == '-');
    let starts = core.starts_with(|char: char| char.is_ascii_digit());
    let kind = if core.starts_with('$') {
        "$COST"
    } else if digits == 8 && core.len() == 10 && core.contains('-') {
        "DATE"
    } else if digits == 6 && core.len() == 8 && core.contains(':') {
        "CLOCK"
    } else if is_hex && core.len() >= 7 {
        "ID"
    } else if starts && core.ends_with('Z') && core.contains('T') {
        "WHEN"
    } else if starts && core.ends_with('s') && digits < 6 {
        "TIME"
    } else if digits == core.len() && digits >= 2 {
        "COUNT"
    } else if digits >= 3 && core.len() == digits + 1 && core.ends_with('B') {
        "SIZE"
    } else {
        return word.to_owned();
    };
    word.replace(core, kind)
}

/// Runs a command at a terminal of this width.
fn see(user: &User, words: &[&str], columns: u16) -> (String, Option<i32>) {
    let (text, status) = screen(&mut user.marshal(words), columns);
    (text, status.code())
}

fn hour(columns: u16) {
    let _alone = alone();
    let mut user = User::new();
    user.clone_repository();
    // 1: in the network where the model will be.
    user.start_model();
    // This repository brings a configuration of its own.
    let (init, code) = see(&user, &["init", "--rehearsal", "--force"], columns);
    assert_eq!(code, Some(0), "{init}");
    assert!(init.contains("opencode"), "{init}");
    let written = fs::read(user.repository().join("supervisor.toml")).expect("written");
    let words: Vec<&str> = ["run"].iter().chain(&TASKS).copied().collect();
    let (run, code) = see(&user, &words, columns);
    assert_eq!(code, Some(1), "{run}");
    let (report, code) = see(&user, &["report"], columns);
    assert_eq!(code, Some(0), "{report}");
    let (denied, code) = see(&user, &["show", "task-4"], columns);
    assert_eq!(code, Some(0), "{denied}");
    let (land, code) = see(&user, &["land", "task-3"], columns);
    assert_eq!(code, Some(0), "{land}");
    let edited = fs::read(user.repository().join("supervisor.toml")).expect("there");
    assert_eq!(written, edited, "nobody edits it");
    let home = user.home.path();
    let mut page = String::new();
    for (name, text) in [
        ("init --rehearsal", &init),
        ("run", &run),
        ("report", &report),
        ("show task-4", &denied),
        ("land task-3", &land),
    ] {
        let _ = writeln!(page, "$ marshal {name}\n{}", settled(text, home));
    }
    insta::assert_snapshot!(format!("first_hour_{columns}"), page);
    for part in ["3 of 4 done, 1 denied", "denied by publish-git"] {
        assert!(run.contains(part), "{part}: {run}");
    }
    // As init says, the model is started in the background by the same words.
    let first = format!("marshal {} &", MODEL.join(" "));
    assert!(columns < 80 || init.contains(&first), "{init}");
}

#[test]
fn the_first_hour_at_60_columns() {
    hour(60);
}

#[test]
fn the_first_hour_at_80_columns() {
    hour(80);
}

#[test]
fn the_first_hour_at_120_columns() {
    hour(120);
}
