//! Versions of what agents write in a registered workspace: by the supervisor's tools, past them, by
//! people over HTTP; and a daemon that is killed while all of that goes on.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, SystemTime};

use rusqlite::{Connection, Row};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::chat_client::{Daemon, LONG, StreamEvent, text};
use crate::drill::{Drill, NOBODY, count, eventually};

pub(crate) const POLICY: &str = r#"
schema  = 1
name    = "open"
extends = ["builtin:guard"]
default = "allow"
"#;

/// Chats in a registered workspace; `workspace` has the mode in which agents see it.
pub(crate) fn pools(before: &str, workspace: &str) -> String {
    format!(
        r#"
{before}

[role.dev]
pool = "demo"

[workspace.main]
path = "project"

[pool.demo]
size      = 2
command   = ["marshal", "script-agent", "--dialect", "acp"]
dialect   = "acp"
permission_requests = "all"
policy    = "open"
workspace = {{ path = "project", {workspace} }}
restart   = {{ base = "20ms", max = "100ms" }}
stop      = {{ goodbye = "300ms", eof = "300ms", int = "300ms", term = "300ms" }}
env       = {{ set = {{ DRILL = "MARK" }} }}
engine_tools = "all"
approval  = {{ timeout = "1s" }}

[policy.open]
file = "open.toml"
"#
    )
}

/// Chats whose agents write the registered workspace itself.
pub(crate) fn drill(before: &str) -> Drill {
    let drill = Drill::new(&pools(before, "mode = \"rw\""));
    fs::write(drill.path("open.toml"), POLICY).expect("open.toml");
    // No agent writes in a directory of root's.
    let status = Command::new("chown")
        .args(["-R", &format!("{NOBODY}:{NOBODY}")])
        .arg(drill.workspace())
        .status();
    assert!(status.expect("chown").success());
    drill
}

pub(crate) const FILES: &str = "/api/v1/workspaces/main/files";
pub(crate) const HISTORY: &str = "/api/v1/workspaces/main/history";
const RESTORE: &str = "/api/v1/workspaces/main/restore";

pub(crate) fn session(chat: &str) -> &str {
    chat.rsplit('/').next().expect("an id")
}

/// Has a chat do something; what its stream told.
pub(crate) fn does(daemon: &Daemon, chat: &str, script: &str) -> Vec<StreamEvent> {
    let turn = daemon.say(chat, script);
    daemon.follow(chat, None).turn(&turn)
}

#[track_caller]
pub(crate) fn assert_reply_contains(daemon: &Daemon, chat: &str, script: &str, part: &str) {
    let events = does(daemon, chat, script);
    let turn_text = text(&events);
    assert!(
        turn_text.contains(part),
        "{part:?} is not in {turn_text}\n{events:#?}"
    );
}

/// The versions of a file, the oldest first.
pub(crate) fn versions(daemon: &Daemon, path: &str) -> Vec<Value> {
    let mut all = Vec::new();
    let mut cursor = String::new();
    loop {
        let page = daemon.get(&format!("{HISTORY}/{path}?limit=200{cursor}"));
        if page.status == 404 {
            return all;
        }
        assert_eq!(page.status, 200, "{page:?}");
        all.extend(page.body["items"].as_array().expect("items").clone());
        match page.body["next"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    all.reverse();
    all
}

pub(crate) fn write(path: &str, content: &str, more: &str) -> String {
    let content = json!(content);
    format!("mcp write_file {{\"path\":\"/workspace/{path}\",\"content\":{content}{more}}}")
}

/// All of that is on record, each version with its author, and the stream told of it.
fn on_record(daemon: &Daemon, one: &str, other: &str) {
    let kinds = |versions: &[Value]| -> Vec<(String, String)> {
        let of = |version: &Value| {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            // Who was first to see what somebody else wrote is chance.
            let is_observed = version["cause"] == "observed";
            let name = if is_observed {
                String::new()
            } else {
                text(&version["author"]["name"])
            };
            (text(&version["cause"]), name)
        };
        versions.iter().map(of).collect()
    };
    let all = versions(daemon, "a.txt");
    let (one_id, other_id) = (session(one).to_owned(), session(other).to_owned());
    let expect = [
        ("write".to_owned(), one_id.clone()),
        ("edit".to_owned(), one_id.clone()),
        ("write".to_owned(), other_id),
        ("write".to_owned(), one_id),
        ("observed".to_owned(), String::new()),
    ];
    assert_eq!(kinds(&all), expect, "{all:#?}");
    assert!(
        all[0]["task"].is_string() && all[0]["author"]["kind"] == "session",
        "{all:#?}"
    );
    // The stream told the same, by the file's place in the workspace.
    let turn = daemon.say(one, "say end");
    let events = daemon.follow(one, None).turn(&turn);
    let seen_events: Vec<_> = events
        .iter()
        .filter(|seen_events| {
            seen_events.name == "file_updated" && seen_events.data["observed"] == false
        })
        .map(|seen_events| {
            (
                seen_events.data["path"].clone(),
                seen_events.data["v"].clone(),
            )
        })
        .collect();
    let expect: Vec<_> = [1, 2, 4].map(|v| (json!("/a.txt"), json!(v))).into();
    assert_eq!(seen_events, expect, "{events:#?}");
}

#[test]
fn what_agents_and_people_write_are_versions_and_a_stale_one_is_refused() {
    let drill = drill("");
    let daemon = Daemon::start(&drill);
    let (one, other) = (daemon.create("say one"), daemon.create("say other"));
    assert_reply_contains(
        &daemon,
        &one,
        &write("a.txt", "first\n", ""),
        "it is version 1 now",
    );
    assert_reply_contains(
        &daemon,
        &other,
        "mcp read_file {\"path\":\"/workspace/a.txt\"}",
        "first",
    );
    let edit = "mcp edit_file {\"path\":\"/workspace/a.txt\",\"old_text\":\"first\",\"new_text\":\"second\"}";
    assert_reply_contains(&daemon, &one, edit, "it is version 2 now");
    // What it read is not what is there any more: nothing is lost, and it is told what is.
    let lost = write("a.txt", "from the other\n", "");
    assert_reply_contains(
        &daemon,
        &other,
        &lost,
        "mcp write_file error stale: /workspace/a.txt is at version 2 now",
    );
    let on_disk = || fs::read_to_string(drill.workspace().join("a.txt")).expect("a.txt");
    assert_eq!(on_disk(), "second\n");
    assert_reply_contains(
        &daemon,
        &other,
        "mcp read_file {\"path\":\"/workspace/a.txt\"}",
        "second",
    );
    assert_reply_contains(&daemon, &other, &lost, "it is version 3 now");
    // What is said goes before what was seen.
    assert_reply_contains(
        &daemon,
        &one,
        &write("a.txt", "x", ",\"base\":3"),
        "it is version 4 now",
    );
    assert_reply_contains(
        &daemon,
        &one,
        &write("a.txt", "x", ",\"base\":0"),
        "stale: /workspace/a.txt is at version 4 now",
    );
    assert_reply_contains(
        &daemon,
        &one,
        &write("src/new.txt", "n", ",\"base\":7"),
        "stale: /workspace/src/new.txt does not exist",
    );
    // A person's edit is a version before anything is written over it.
    // Whole at once, for somebody may look just now; and nobody's, as it was.
    let person = drill.path("person.txt");
    fs::write(&person, "a person\n").expect("written");
    std::os::unix::fs::chown(&person, Some(NOBODY), Some(NOBODY)).expect("given");
    fs::rename(&person, drill.workspace().join("a.txt")).expect("moved");
    assert_reply_contains(
        &daemon,
        &one,
        &write("a.txt", "y", ""),
        "stale: /workspace/a.txt is at version 5 now, made by observed",
    );
    assert_eq!(on_disk(), "a person\n");
    on_record(&daemon, &one, &other);
    edit_as_user(&drill, &daemon);
    drill.assert_dense();
}

/// What people do with the same file: its five versions are there.
fn edit_as_user(drill: &Drill, daemon: &Daemon) {
    let now = daemon.get(&format!("{FILES}/a.txt"));
    assert_eq!(
        (now.status, &now.body["content"]),
        (200, &json!("a person\n"))
    );
    assert_eq!(now.body["version"]["version"], 5);
    let old = daemon.get(&format!("{FILES}/a.txt?version=1"));
    assert_eq!(old.body["content"], "first\n", "{old:?}");
    let diff = daemon.get("/api/v1/workspaces/main/diff/a.txt?from=1&to=2");
    let text = diff.body["text"].as_str().expect("a text");
    assert!(text.contains("-first\n+second\n"), "{diff:?}");
    let stale = daemon.post(
        &format!("{RESTORE}/a.txt"),
        &json!({"version": 2, "base": 4}),
    );
    assert_eq!(stale.status, 409, "{stale:?}");
    assert!(
        stale.body["detail"]
            .as_str()
            .expect("why")
            .contains("current version is 5")
    );
    let back = daemon.post(
        &format!("{RESTORE}/a.txt"),
        &json!({"version": 2, "base": 5}),
    );
    assert_eq!(
        (back.status, &back.body["version"]),
        (200, &json!(6)),
        "{back:?}"
    );
    assert_eq!(
        (&back.body["cause"], &back.body["author"]["kind"]),
        (&json!("restore"), &json!("person"))
    );
    let on_disk = fs::read_to_string(drill.workspace().join("a.txt"));
    assert_eq!(on_disk.expect("a.txt"), "second\n");
    let put = |path: &str, body: &Value| {
        let path = format!("{FILES}/{path}");
        daemon.request("PUT", &path, "", &body.to_string())
    };
    let made = put(
        "new/deep%2Ffile.txt",
        &json!({"content": "made", "base": 0}),
    );
    assert_eq!(
        (made.status, &made.body["path"]),
        (200, &json!("new/deep/file.txt")),
        "{made:?}"
    );
    let file = drill.workspace().join("new/deep/file.txt");
    assert_eq!(fs::read_to_string(&file).expect("made"), "made");
    assert_eq!(
        put("new/deep/file.txt", &json!({"content": "x", "base": 0})).status,
        409
    );
    let listed = daemon.get(&format!("{FILES}?limit=1")).body;
    assert_eq!(
        (&listed["items"][0]["path"], &listed["next"]),
        (&json!("a.txt"), &json!("a.txt"))
    );
    let rest = daemon.get(&format!("{FILES}?cursor=a.txt")).body;
    assert_eq!(rest["items"].as_array().map(Vec::len), Some(1), "{rest}");
    let names = daemon.get("/api/v1/workspaces").body;
    assert_eq!(names["items"], json!([{"name": "main"}]));
    // Never outside, never what is hidden, never what the store did not take.
    fs::write(drill.workspace().join(".env"), "KEY=1").expect("written");
    for (path, status) in [
        ("README.md", 404),
        (".env", 403),
        (".git/config", 403),
        ("..%2Fsupervisor.toml", 400),
        ("%2F%2Fetc%2Fpasswd", 400),
        ("none", 404),
        ("a.txt?version=99", 404),
        ("a.txt?version=x", 400),
    ] {
        let got = daemon.get(&format!("{FILES}/{path}"));
        assert_eq!(got.status, status, "{path}: {got:?}");
    }
    assert_eq!(put(".env", &json!({"content": "x"})).status, 403);
    assert_eq!(put("..%2Fx", &json!({"content": "x"})).status, 400);
    assert_eq!(put("a.txt%2Fx", &json!({"content": "x"})).status, 409);
    assert_eq!(daemon.get("/api/v1/workspaces/none/files").status, 404);
    assert_eq!(
        fs::read_to_string(drill.workspace().join(".env")).expect("there"),
        "KEY=1"
    );
}

#[test]
fn what_is_written_past_the_tools_is_observed_at_the_turns_end() {
    let drill = drill("");
    let daemon = Daemon::start(&drill);
    let chat = daemon.create("say begin");
    let events = does(&daemon, &chat, "run cp README.md shell.txt");
    let written = drill.workspace().join("shell.txt");
    assert!(written.exists(), "{events:#?}");
    eventually(LONG, "it is observed", || {
        versions(&daemon, "shell.txt").len() == 1
    });
    let first = versions(&daemon, "shell.txt").remove(0);
    assert_eq!(
        first["author"],
        json!({"kind": "observed", "name": session(&chat)}),
        "{first}"
    );
    let mut stream = daemon.follow(&chat, None);
    let seen_events = stream.until("it is told", |seen_events| {
        seen_events.name == "file_updated"
    });
    let data = &seen_events.last().expect("one").data;
    assert_eq!(
        *data,
        json!({"path": "/shell.txt", "v": 1, "workspace": "main", "file": first["file"], "observed": true, "moved_from": null})
    );
    does(&daemon, &chat, "run rm shell.txt");
    eventually(LONG, "its end is observed", || {
        versions(&daemon, "shell.txt").len() == 2
    });
    assert_eq!(daemon.get(&format!("{FILES}/shell.txt")).status, 404);
    let old = daemon.get(&format!("{FILES}/shell.txt?version=1")).body;
    assert_eq!(old["content"], "# A project\n");
    let listed = daemon.get(FILES).body;
    assert_eq!(listed["items"], json!([]), "{listed}");
}

/// What the journal told of files: path, version and digest.
fn told_of_files(drill: &Drill) -> Vec<(String, u64, String)> {
    let database = drill.database();
    let query = "SELECT body FROM events WHERE kind = 'file_updated' ORDER BY session, seq";
    let mut statement = database.prepare(query).expect("a statement");
    let rows = statement
        .query_map([], |row| row.get::<_, String>(0))
        .expect("rows");
    rows.filter_map(|body| {
        let body: Value = serde_json::from_str(&body.expect("a body")).expect("JSON");
        let of = &body["version"];
        Some((
            of["path"].as_str()?.to_owned(),
            of["v"].as_u64()?,
            body["sha256"].as_str()?.to_owned(),
        ))
    })
    .collect()
}

/// What a killed daemon left of a file, before anybody looks at it: its newest version stands on the
/// disk, or did not get there and the one before it does; and whatever stood there was a version
/// before that, because only tools write it.
fn as_it_was_left(drill: &Drill, name: &str) {
    let store = Connection::open(drill.state().join("store.db")).expect("the store");
    let mut statement = store
        .prepare("SELECT cause, digest FROM marshal_versions WHERE path = ?1 ORDER BY v")
        .expect("a statement");
    // A file that was not there has no digest.
    let row = |row: &Row<'_>| Ok((row.get::<_, String>(0)?, row.get::<_, Option<Vec<u8>>>(1)?));
    let rows = statement.query_map([name], row).expect("rows");
    let all: Vec<_> = rows.map(|row| row.expect("a version")).collect();
    let written = fs::read(drill.workspace().join(name)).ok();
    let disk = written.as_ref().map(|bytes| Sha256::digest(bytes).to_vec());
    let before_all = [None];
    let digests = all.iter().map(|(_, digest)| digest);
    let mut newest = before_all.iter().chain(digests).rev().take(2);
    assert!(
        newest.any(|digest| *digest == disk),
        "{name}: {:?} is on the disk, and no version of it is among the newest of {}",
        written.as_deref().map(String::from_utf8_lossy),
        all.len()
    );
    for (at, (cause, digest)) in all.iter().enumerate() {
        let was_before = at == 1 && digest.is_none();
        let is_known = || was_before || all[..at].iter().any(|(_, earlier)| earlier == digest);
        assert!(
            cause != "observed" || is_known(),
            "{name}: version {}",
            at + 1
        );
    }
}

/// Files that a kill left beside their places go with the next start, if they are old enough that
/// nobody can be at them.
fn leftovers_go(drill: &Drill, mut daemon: Daemon) -> Daemon {
    daemon.running.signal("KILL");
    daemon.running.child.wait().expect("it ends");
    let dirs = [drill.workspace(), drill.workspace().join("src")];
    let left = || {
        let entries = dirs
            .iter()
            .flat_map(|dir| fs::read_dir(dir).expect("listed"));
        let paths = entries.map(|entry| entry.expect("an entry").path());
        let is_left = |path: &PathBuf| path.to_string_lossy().contains("/.marshal-");
        paths.filter(is_left).collect::<Vec<_>>()
    };
    for (dir, digits) in dirs.iter().zip(["a1", "b2"]) {
        fs::write(dir.join(format!(".marshal-{}", digits.repeat(16))), "half").expect("written");
    }
    assert!(left().len() >= 2);
    for file in left() {
        let file = fs::File::options().write(true).open(file).expect("ours");
        let old = SystemTime::now() - Duration::from_secs(600);
        file.set_modified(old).expect("old");
    }
    let daemon = Daemon::start(drill);
    eventually(LONG, "nothing of ours is left beside", || left().is_empty());
    daemon
}

#[test]
fn after_kills_disk_and_versions_agree_and_nothing_accepted_is_lost() {
    let drill = drill("");
    let mut daemon = Daemon::start(&drill);
    let chats = [daemon.create("say begin"), daemon.create("say begin")];
    let names = ["shared.txt", "src/a.txt", "src/b.txt"];
    // Always the same row of numbers.
    let mut random = 7_u64;
    for round in 0..count(5) {
        for (at, chat) in chats.iter().enumerate() {
            let mut script: Vec<String> = Vec::new();
            for n in 0..8 {
                let name = names[(n + at) % names.len()];
                script.push(format!("mcp read_file {{\"path\":\"/workspace/{name}\"}}"));
                script.push(write(name, &format!("{round} {at} {n}\n"), ""));
            }
            let body = json!({"content": script.join("\n")});
            let response = daemon.post(chat, &body).status;
            // Too much may wait already.
            assert!(matches!(response, 202 | 429), "{response}");
        }
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        thread::sleep(Duration::from_millis((random >> 33) % 1500));
        daemon.running.signal("KILL");
        daemon.running.child.wait().expect("it ends");
        for name in names {
            as_it_was_left(&drill, name);
        }
        daemon = Daemon::start(&drill);
    }
    // What waits is worked first, so that nobody writes beside the last.
    for chat in &chats {
        assert_reply_contains(&daemon, chat, "say end", "end");
    }
    for (at, chat) in chats.iter().enumerate() {
        let name = names[at + 1];
        let script = format!(
            "mcp read_file {{\"path\":\"/workspace/{name}\"}}\n{}",
            write(name, "end\n", "")
        );
        assert_reply_contains(&daemon, chat, &script, "mcp write_file ok");
    }
    let daemon = leftovers_go(&drill, daemon);
    let mut history: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
    for name in names {
        let Ok(disk) = fs::read_to_string(drill.workspace().join(name)) else {
            continue;
        };
        let newest = daemon.get(&format!("{FILES}/{name}"));
        assert_eq!(newest.body["content"], *disk, "{name}: {newest:?}");
        let all = versions(&daemon, name);
        assert_eq!(newest.body["version"]["version"], all.len(), "{name}");
        for (v, version) in (1..).zip(&all) {
            assert_eq!(version["version"], v, "{name}: {all:#?}");
            let by = &version["author"];
            let is_one = chats.iter().any(|chat| by["name"] == session(chat));
            let is_observed = by["kind"] == "observed" && version["cause"] == "observed";
            assert!(is_one || is_observed, "{name}: {version}");
        }
        history.insert(name, all);
    }
    let reported = told_of_files(&drill);
    assert!(reported.len() >= 2, "{reported:?}");
    for (path, v, sha256) in &reported {
        let all = &history[path.as_str()];
        let at = usize::try_from(*v).expect("a number") - 1;
        assert_eq!(all[at]["sha256"], **sha256, "{path} {v}");
    }
    drill.assert_dense();
}

/// After a restart a session does not know what it saw: what a person wrote is shown to it once
/// before it is written over, and what it wrote itself is its own as ever.
#[test]
fn after_a_restart_nothing_of_others_is_written_over_unseen() {
    let drill = drill("");
    let mut daemon = Daemon::start(&drill);
    let chat = daemon.create("say begin");
    for name in ["theirs.txt", "own.txt"] {
        assert_reply_contains(
            &daemon,
            &chat,
            &write(name, "one", ""),
            "it is version 1 now",
        );
    }
    let put = json!({"content": "a person's", "base": 1}).to_string();
    let put = daemon.request("PUT", &format!("{FILES}/theirs.txt"), "", &put);
    assert_eq!(put.status, 200, "{put:?}");
    daemon.running.signal("KILL");
    daemon.running.child.wait().expect("it ends");
    let daemon = Daemon::start(&drill);
    assert_reply_contains(
        &daemon,
        &chat,
        &write("own.txt", "two", ""),
        "it is version 2 now",
    );
    let over = write("theirs.txt", "two", "");
    assert_reply_contains(
        &daemon,
        &chat,
        &over,
        "stale: /workspace/theirs.txt is at version 2 now, made by person",
    );
    let disk = fs::read_to_string(drill.workspace().join("theirs.txt"));
    assert_eq!(disk.expect("there"), "a person's");
    assert_reply_contains(&daemon, &chat, &over, "it is version 3 now");
    drill.assert_dense();
}
