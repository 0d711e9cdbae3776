//! The pages "a night, step by step" (`docs/night.md`) and "from zero to a landed branch"
//! (`docs/landing.md`): their commands, run as they stand there.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::drill::{Ran, eventually};

const NIGHT: &str = include_str!("../../../docs/night.md");
const LANDING: &str = include_str!("../../../docs/landing.md");

/// A user's home with a project in it, where a page is followed.
struct Home {
    dir: tempfile::TempDir,
    page: &'static str,
}

impl Home {
    fn new(page: &'static str) -> Self {
        let dir = tempfile::Builder::new().prefix("marshal-night-").tempdir();
        let home = Self {
            dir: dir.expect("a directory"),
            page,
        };
        let bin = home.dir.path().join("bin");
        fs::create_dir(&bin).expect("made");
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_marshal"), bin.join("marshal"))
            .expect("a link");
        fs::create_dir(home.project()).expect("made");
        fs::write(home.project().join("README.md"), "# One\n\nTwo\n").expect("written");
        fs::write(
            home.project().join(".gitignore"),
            "*.jsonl\nsupervisor.toml\n",
        )
        .expect("written");
        let ran = home.script(
            "git init -q -b main && git config user.name A && git config user.email a@b.invalid \
             && git add . && git commit -qm first",
        );
        assert_eq!(ran.code, Some(0), "{}", ran.all());
        home
    }

    fn project(&self) -> PathBuf {
        self.dir.path().join("project")
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        let path = format!("{}/bin:/usr/bin:/bin", self.dir.path().display());
        command
            .current_dir(self.project())
            .env_clear()
            .env("PATH", path)
            .env("HOME", self.dir.path())
            .env("XDG_RUNTIME_DIR", self.dir.path());
        command
    }

    fn script(&self, text: &str) -> Ran {
        let began = std::time::Instant::now();
        let output = self.command("bash").args(["-euc", text]).output();
        let output = output.expect("bash");
        Ran {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
            took: began.elapsed(),
        }
    }

    /// Runs the block of the page that begins so.
    fn page(&self, begin: &str, code: i32, shows: &[&str]) -> Ran {
        let block = blocks(self.page).find(|block| block.starts_with(begin));
        let block = block.unwrap_or_else(|| panic!("the page has no {begin}"));
        let ran = self.script(block);
        assert_eq!(ran.code, Some(code), "{block}\n{}", ran.all());
        for part in shows {
            assert!(ran.all().contains(part), "{part:?}: {block}\n{}", ran.all());
        }
        ran
    }
}

/// The blocks of commands, in order.
fn blocks(page: &'static str) -> impl Iterator<Item = &'static str> {
    page.split("```sh\n").skip(1).map(|rest| {
        let (block, _) = rest.split_once("```").expect("its end");
        block
    })
}

fn report(home: &Home) -> Value {
    let ran = home.script("marshal --json report");
    serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {}", ran.all()))
}

#[test]
fn every_command_of_the_page_does_what_the_page_says() {
    let home = Home::new(NIGHT);
    home.page("marshal init", 0, &["written: ", "no agent is installed"]);
    home.page("cat > tasks.jsonl", 0, &[]);
    let night = [
        "2 of 4 done, 1 denied, 1 lost",
        "release: denied by publish-git",
        "crash: lost: the agent ended by itself: signal 6 (attempt 2)",
        "next: `marshal show release`",
    ];
    let night = home.page("marshal run --until", 1, &night);
    assert!(
        night.stdout.lines().count() <= 24,
        "one screen: {}",
        night.stdout
    );
    let results = fs::read_to_string(home.project().join("night.jsonl")).expect("results");
    assert_eq!(results.lines().count(), 4, "{results}");
    let morning = [
        "4 ended: 1 denied, 2 done, 1 lost; 0 running or waiting",
        "1 denied by publish-git: bash git",
        "prompt  run git push origin main",
        "answer  all of them were counted",
        "denied  1 by publish-git",
        "next    marshal show ",
        ", then marshal land ",
    ];
    home.page("marshal report", 0, &morning);
    let denied = [
        "task      release: denied",
        "denied by publish-git  bash: git push origin main",
    ];
    home.page("marshal show", 0, &denied);
    home.page(
        "marshal run --continue",
        2,
        &["there is nothing to continue"],
    );
    let landed = ["+What this project does", "branch marshal/"];
    home.page("marshal diff", 0, &landed);
    assert!(
        !home.project().join("NOTES.md").exists(),
        "land changes no file"
    );
    home.page("git merge", 0, &[]);
    let notes = fs::read_to_string(home.project().join("NOTES.md")).expect("NOTES.md");
    assert_eq!(notes, "What this project does\n");
    assert_eq!(blocks(NIGHT).count(), 8, "each block of the page was run");
}

#[test]
fn from_zero_to_a_landed_branch_as_the_page_says() {
    let home = Home::new(LANDING);
    home.page("printf", 0, &[]);
    home.page("cat > supervisor", 0, &["pool coder"]);
    home.page("cat > tasks", 0, &[]);
    let run = ["3 of 5 done, 2 failed", "not landed: it conflicts"];
    home.page("marshal run", 1, &run);
    let results = home.page("marshal results", 0, &["apple", "title-b"]);
    assert_eq!(
        results.stdout.matches(" landing@").count(),
        3,
        "{}",
        results.all()
    );
    let log = home.page("git log", 0, &["Price ", "first"]);
    assert_eq!(log.stdout.matches("Price ").count(), 2, "{}", log.all());
    let has_plum = log.stdout.contains("plums");
    // Whichever price came last.
    let shown = if has_plum {
        "landed before"
    } else {
        "not landed"
    };
    home.page("marshal diff", i32::from(!has_plum), &["plum.price", shown]);
    home.page("git merge", 0, &[]);
    let checked = home.script("sh check.sh && git status --porcelain");
    assert_eq!(checked.code, Some(0), "{}", checked.all());
    assert_eq!(checked.stdout, "", "the checkout is the branch");
    assert_eq!(blocks(LANDING).count(), 8, "each block of the page was run");
}

/// The night in small: a crash, denials, `kill -9`, and the report against the journal.
#[test]
fn a_killed_night_goes_on_and_the_morning_tells_what_the_journal_has() {
    let home = Home::new(NIGHT);
    home.page("marshal init", 0, &[]);
    let mut tasks = String::new();
    for number in 0..30 {
        let prompt = match number % 6 {
            0 => "run git push origin main".to_owned(),
            1 => "write made.txt x\ncrash".to_owned(),
            _ => format!("write out.txt {number}\nsleep 200ms\nsay {number}"),
        };
        let line = serde_json::json!({"id": format!("t{number:02}"), "prompt": prompt});
        tasks += &line.to_string();
        tasks.push('\n');
    }
    fs::write(home.project().join("tasks.jsonl"), tasks).expect("written");
    let mut killed = home
        .command("marshal")
        .args(["run", "--until", "07:00", "tasks.jsonl"])
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("marshal starts");
    eventually(
        Duration::from_secs(60),
        "a part of the night is over",
        || {
            let ended = journal(&home).and_then(|path| {
                let database = rusqlite::Connection::open(path).ok()?;
                let count = "SELECT count(*) FROM tasks WHERE state = 'ended'";
                database
                    .query_row(count, [], |row| row.get::<_, i64>(0))
                    .ok()
            });
            ended.unwrap_or(0) >= 8
        },
    );
    killed.kill().expect("kill -9");
    let _ = killed.wait();
    let before = report(&home);
    assert!(before["open"].as_u64().expect("a number") > 0, "{before}");
    home.page("marshal run --continue", 1, &[]);
    let page = report(&home);
    assert_eq!(page["open"], 0, "{page}");
    let database = rusqlite::Connection::open(journal(&home).expect("a journal"));
    let database = database.expect("opened");
    let mut query = database
        .prepare("SELECT id, outcome, attempts, session, prompt FROM tasks ORDER BY id")
        .expect("a query");
    let rows = query.query_map([], |row| {
        Ok((
            row.get::<_, String>(0)?,
            row.get::<_, String>(1)?,
            row.get::<_, i64>(2)?.unsigned_abs(),
            row.get::<_, String>(3)?,
            row.get::<_, String>(4)?,
        ))
    });
    let rows: Vec<_> = rows.expect("rows").map(|row| row.expect("a row")).collect();
    assert_eq!(rows.len(), 30);
    let told = page["tasks"].as_array().expect("a list");
    assert_eq!(told.len(), 30, "{page}");
    for (id, outcome, attempts, session, prompt) in &rows {
        let task = told.iter().find(|task| task["task"] == id.as_str());
        let task = task.unwrap_or_else(|| panic!("{id} is missing: {page}"));
        let expect = match id[1..].parse::<u32>().expect("a number") % 6 {
            0 => "denied",
            1 => "lost",
            _ => "done",
        };
        assert_eq!(outcome, expect, "{id}: {task}");
        assert_eq!(task["outcome"], outcome.as_str());
        assert_eq!(task["attempts"], *attempts);
        assert_eq!(task["session"], session.as_str());
        assert_eq!(task["prompt"], prompt.as_str());
        let denied: u64 = database
            .query_row(
                "SELECT count(*) FROM permission_requests WHERE session = ?1 AND decision = 'deny'",
                [session],
                |row| row.get::<_, i64>(0),
            )
            .expect("a count")
            .unsigned_abs();
        assert_eq!(task["denied"], denied, "{id}");
    }
    assert_eq!(page["outcomes"]["denied"], 5);
    assert_eq!(page["outcomes"]["lost"], 5);
    assert_eq!(page["outcomes"]["done"], 20);
    let sent: u64 = rows.iter().map(|row| row.2).sum();
    assert_eq!(page["attempts"], sent);
    assert_eq!(page["runs"].as_array().expect("a list").len(), 1);
}

fn journal(home: &Home) -> Option<PathBuf> {
    let states = home.dir.path().join(".local/state/marshal");
    let mut all = fs::read_dir(states).ok()?.flatten();
    all.find_map(|entry| {
        let path: &Path = &entry.path();
        Some(path.join("journal.db")).filter(|path| path.exists())
    })
}
