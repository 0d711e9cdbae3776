//! A pool that is worked by files: everything with `mv`, `cat` and `ls` alone, what is odd is put
//! aside, and nobody answers who may not.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::process::Command;

use serde_json::{Value, json};

use crate::drill::{Drill, eventually, metric};
use crate::fleet::approvals::{
    LONG, UNDECIDED_PROMPT, answer, client, daemon, good, id, pool, state, waiting,
};

/// A drill whose pool has a directory; `more` are keys of the pool.
pub(crate) fn drill(plane: &str, more: &str) -> Drill {
    let plane = format!("{more}\nfile_plane = {{ dir = \"plane\", {plane} }}\n");
    // What a kill cut short is reported, so that its end can be looked for.
    let pool = pool("scaiflux", &plane);
    Drill::new(&pool.replace("max = \"100ms\"", "max = \"100ms\", on_crash = \"report\""))
}

/// What a shell says that stands in the directory.
pub(crate) fn sh(drill: &Drill, script: &str) -> String {
    let ran = Command::new("/bin/sh")
        .args(["-euc", script])
        .current_dir(drill.path("plane"))
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .output()
        .expect("a shell");
    let printed = String::from_utf8_lossy(&ran.stdout).into_owned();
    let error = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert!(ran.status.success(), "{script}: {printed}{error}");
    printed
}

/// Waits until `ls` of a directory has a name.
fn wait_for_name(drill: &Drill, directory: &str, name: &str) {
    eventually(LONG, &format!("{directory}/{name} is there"), || {
        names(drill, directory).contains(name)
    });
}

pub(crate) fn names(drill: &Drill, directory: &str) -> BTreeSet<String> {
    let reported = sh(drill, &format!("ls {directory}"));
    reported.lines().map(str::to_owned).collect()
}

/// A document, once it is there.
pub(crate) fn document(drill: &Drill, path: &str) -> Value {
    let at = drill.path("plane").join(path);
    eventually(LONG, &format!("{path} is there"), || at.exists());
    let text = sh(drill, &format!("cat {path}"));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{path}: {error}: {text}"))
}

pub(crate) fn result_of(drill: &Drill, stem: &str) -> Value {
    wait_for_name(drill, "result", &format!("{stem}.json"));
    document(drill, &format!("result/{stem}.json"))
}

/// Puts a file into a directory as everybody should: written beside it, then moved.
pub(crate) fn put(drill: &Drill, to: &str, text: &str) {
    assert!(!text.contains("END"), "{text}");
    sh(
        drill,
        &format!("cat > new <<'END'\n{text}\nEND\nmv new {to}"),
    );
}

pub(crate) fn command(drill: &Drill, seq: u64, id: &str, payload: &str, more: &str) -> String {
    let payload = Value::from(payload);
    let text =
        format!(r#"{{"cmd_id":"{id}","seq":{seq},"kind":"prompt","payload":{payload}{more}}}"#);
    put(drill, &format!("queue/cmd_{seq}_{id}.json"), &text);
    format!("cmd_{seq}_{id}")
}

pub(crate) fn works(drill: &Drill, id: &str) {
    eventually(LONG, "it is worked", || {
        document(drill, "state/state.json")["current_cmd_id"] == id
    });
}

pub(crate) fn tasks(drill: &Drill) -> i64 {
    let query = "SELECT count(*) FROM tasks";
    let counted = drill.database().query_row(query, [], |row| row.get(0));
    counted.expect("tasks")
}

/// So many are counted: a moment after a file says so.
fn wait_for_count(drill: &Drill, what: &str, result: &str, many: f64) {
    let name = format!(r#"marshal_file_plane_{what}_total{{pool="demo",result="{result}"}}"#);
    eventually(LONG, &format!("{name} is {many}"), || {
        metric(&drill.get("/metrics").1, &name) == Some(many)
    });
}

#[test]
fn a_pool_is_worked_with_mv_cat_and_ls_alone() {
    let drill = drill("answers = true", "");
    let _daemon = daemon(&drill);
    put(&drill, "queue/hello.txt", "say hello there\nsay again");
    let result = result_of(&drill, "hello");
    assert_eq!(result["status"], "ok", "{result}");
    assert_eq!(result["exit_reason"], "completed", "{result}");
    assert_eq!(result["outcome"], "done", "{result}");
    assert_eq!(result["output_path"], "output/hello.out", "{result}");
    let reported = sh(&drill, "cat output/hello.out");
    assert_eq!(reported, "hello there\nagain\n");
    assert_eq!(result["stats"]["bytes"], reported.len(), "{result}");
    assert_eq!(result["stats"]["lines"], 2, "{result}");
    assert_eq!(result["report"]["outcome"], "done", "{result}");
    // A result is there before its request is gone.
    eventually(LONG, "nothing is left of it", || {
        names(&drill, "queue").is_empty() && names(&drill, "inflight").is_empty()
    });
    assert!(sh(&drill, "cat log/last_n_lines.txt").ends_with("hello there\nagain\n"));
    // A question is shown, and a file answers it.
    let asking = command(&drill, 1, "a", UNDECIDED_PROMPT, "");
    let ask = approval_file(&drill, &asking);
    answered_by(&drill, &asking, &ask);
    // With a reason, which the agent is told.
    let asking = command(&drill, 2, "b", UNDECIDED_PROMPT, r#","priority":3"#);
    let ask = approval_file(&drill, &asking);
    let text = json!({"answer": "deny", "reason": "use the notes", "digest": ask["digest"]});
    put(
        &drill,
        &format!("answers/{}.json", id(&ask)),
        &text.to_string(),
    );
    let result = result_of(&drill, &asking);
    assert_eq!(
        (&result["status"], &result["outcome"]),
        (&json!("error"), &json!("denied"))
    );
    assert_eq!(result["exit_reason"], "denied", "{result}");
    assert!(sh(&drill, &format!("cat output/{asking}.out")).contains("use the notes"));
    // What is worked is cancelled, and the order is removed.
    let long = command(&drill, 3, "c", "say begun\nsleep 10m", "");
    works(&drill, "c");
    put(
        &drill,
        "ctl/cancel.json",
        r#"{"scope":"cmd_id","cmd_id":"c","ts":"1"}"#,
    );
    let result = result_of(&drill, &long);
    assert_eq!(result["status"], "cancelled", "{result}");
    eventually(LONG, "the order is gone", || {
        names(&drill, "ctl").is_empty()
    });
    // A time of its own.
    let late = command(&drill, 4, "d", "sleep 10m", r#","timeout_s":1"#);
    let result = result_of(&drill, &late);
    assert_eq!(
        (&result["status"], &result["exit_reason"]),
        (&json!("timeout"), &json!("timeout"))
    );
    assert!(
        result["stats"]["duration_ms"].as_u64() >= Some(1000),
        "{result}"
    );
    // What cannot be is refused by a result.
    let text = r#"{"cmd_id":"e","seq":5,"kind":"tcl","payload":"puts hi"}"#;
    put(&drill, "queue/cmd_5_e.json", text);
    let result = result_of(&drill, "cmd_5_e");
    assert_eq!(
        (&result["status"], &result["exit_reason"]),
        (&json!("error"), &json!("refused"))
    );
    let why = result["detail"].as_str().expect("why");
    assert!(why.contains("only \"prompt\""), "{result}");
    wait_for_name(&drill, "rejected", "cmd_5_e.json.reason");
    assert_eq!(document(&drill, "rejected/cmd_5_e.json")["kind"], "tcl");
    eventually(LONG, "nothing is open", || {
        document(&drill, "state/state.json")["phase"] == "idle"
    });
    let beat = document(&drill, "state/heartbeat.json");
    assert!(
        beat["timestamp"].as_str().is_some_and(|at| at.len() == 13),
        "{beat}"
    );
    // What was done is noted when all of it is done.
    for event in ["taken", "ended", "asked", "answered", "cancel", "refused"] {
        let part = format!("\"event\":\"{event}\"");
        eventually(LONG, &format!("{part} is noted"), || {
            sh(&drill, "cat log/meta.log").contains(&part)
        });
    }
    wait_for_count(&drill, "requests", "taken", 5.0);
    wait_for_count(&drill, "requests", "refused", 1.0);
    wait_for_count(&drill, "answers", "allowed", 1.0);
    wait_for_count(&drill, "answers", "denied", 1.0);
}

/// The one ask of a request, once it is a file.
pub(crate) fn approval_file(drill: &Drill, request: &str) -> Value {
    let mut found = None;
    eventually(LONG, "an ask is shown", || {
        let name = names(drill, "approvals").into_iter().next();
        found = name.map(|name| document(drill, &format!("approvals/{name}")));
        found.as_ref().is_some_and(|ask| ask["request"] == request)
    });
    found.expect("an ask")
}

/// Answers an approval by a file whose name says all.
pub(crate) fn answered(drill: &Drill, ask: &Value, how: &str) {
    let file = format!("{}.{how}", id(ask));
    sh(
        drill,
        &format!("cat /dev/null > new; mv new answers/{file}"),
    );
}

fn answered_by(drill: &Drill, asking: &str, ask: &Value) {
    assert_eq!(ask["summary"], "touch made.txt", "{ask}");
    assert_eq!(ask["tool"], "bash", "{ask}");
    assert!(
        ask["rules"].is_array() && ask["deadline"].is_string(),
        "{ask}"
    );
    assert_eq!(
        ask["more"]["parts"][0]["words"],
        json!(["touch", "made.txt"]),
        "{ask}"
    );
    answered(drill, ask, "allow");
    let result = result_of(drill, asking);
    assert_eq!(result["status"], "ok", "{result}");
    assert_eq!(
        result["report"]["changes"][0]["path"], "made.txt",
        "{result}"
    );
    eventually(LONG, "the ask and its answer are gone", || {
        names(drill, "approvals").is_empty() && names(drill, "answers").is_empty()
    });
    assert_eq!(state(drill, ask), "approved");
    let by: String = drill
        .database()
        .query_row("SELECT approver FROM approvals", [], |row| row.get(0))
        .expect("a record");
    assert_eq!(by, "files of demo as owner");
}

#[test]
fn the_same_file_again_is_the_same_request_and_another_one_is_put_aside() {
    let drill = drill("answers = false", "");
    let _daemon = daemon(&drill);
    put(&drill, "queue/a.txt", "say one");
    let first = result_of(&drill, "a");
    put(&drill, "queue/a.txt", "say one");
    eventually(LONG, "it is gone", || names(&drill, "queue").is_empty());
    assert_eq!(document(&drill, "result/a.json"), first);
    assert_eq!(tasks(&drill), 1);
    // Its result was taken away: it is written again, and nothing is worked.
    sh(&drill, "mv result/a.json output/a.out .");
    put(&drill, "queue/a.txt", "say one");
    let again = result_of(&drill, "a");
    assert_eq!(again, first);
    assert_eq!(sh(&drill, "cat output/a.out"), "one\n");
    assert_eq!(tasks(&drill), 1);
    put(&drill, "queue/a.txt", "say two");
    wait_for_name(&drill, "rejected", "a.txt.reason");
    let why = sh(&drill, "cat rejected/a.txt.reason");
    assert!(why.contains("use a new name"), "{why}");
    assert_eq!(document(&drill, "result/a.json"), first);
    assert_eq!(tasks(&drill), 1);
    // A result that no request of this journal has.
    put(&drill, "result/b.json", "{}");
    put(&drill, "queue/b.txt", "say two");
    wait_for_name(&drill, "rejected", "b.txt.reason");
    assert_eq!(tasks(&drill), 1);
    wait_for_count(&drill, "requests", "repeated", 2.0);
    wait_for_count(&drill, "requests", "rejected", 2.0);
}

#[test]
fn what_is_odd_is_put_aside_and_nothing_is_followed() {
    let drill = drill("answers = true, poll = \"1s\"", "");
    let secret = drill.path("secret.txt");
    fs::write(&secret, "say the secret").expect("written");
    let _daemon = daemon(&drill);
    let queue = drill.path("plane/queue");
    symlink(&secret, queue.join("link.txt")).expect("a link");
    symlink("/dev/zero", queue.join("cmd_1_zero.json")).expect("a link");
    fs::hard_link(&secret, queue.join("second.txt")).expect("a link");
    fs::create_dir(queue.join("dir.txt")).expect("a directory");
    let pipe = Command::new("mkfifo").arg(queue.join("pipe.txt")).status();
    assert!(pipe.expect("mkfifo").success());
    // Whole at once: what is looked at before that is another file.
    let new = drill.path("plane/new");
    let huge = fs::File::create(&new).expect("a file");
    huge.set_len(64 << 20).expect("huge");
    fs::rename(&new, queue.join("huge.txt")).expect("moved");
    put(&drill, "queue/cmd_2_bad.json", "{\"cmd_id\":");
    let text = r#"{"cmd_id":"../../x","seq":3,"kind":"prompt","payload":"say x"}"#;
    put(&drill, "queue/cmd_3_up.json", text);
    fs::write(&new, b"say \xff").expect("written");
    fs::rename(&new, queue.join("bytes.txt")).expect("moved");
    let odd = [
        ("link.txt", "symbolic link"),
        ("cmd_1_zero.json", "symbolic link"),
        ("second.txt", "several names"),
        ("dir.txt", "directory"),
        ("pipe.txt", "pipe"),
        ("huge.txt", "too large"),
        ("cmd_2_bad.json", "not JSON"),
        ("cmd_3_up.json", "cmd_id"),
        ("bytes.txt", "UTF-8"),
    ];
    for (name, why) in odd {
        wait_for_name(&drill, "rejected", &format!("{name}.reason"));
        let reason = sh(&drill, &format!("cat rejected/{name}.reason"));
        assert!(reason.contains(why), "{name}: {reason}");
        let stem = name.rsplit_once('.').expect("an ending").0;
        let result = result_of(&drill, stem);
        assert_eq!(result["status"], "error", "{result}");
    }
    eventually(LONG, "all are aside", || names(&drill, "queue").is_empty());
    // What others have not finished, and what is no request, stays as it is.
    for name in [".later.txt.Xa12bQ", "later.txt~", "notes.md", "-x.txt"] {
        fs::write(queue.join(name), "say no").expect("written");
    }
    // A link where an output goes is replaced.
    symlink(&secret, drill.path("plane/output/good.out")).expect("a link");
    put(&drill, "queue/good.txt", "say well");
    assert_eq!(result_of(&drill, "good")["status"], "ok");
    assert_eq!(sh(&drill, "cat output/good.out"), "well\n");
    assert_eq!(fs::read_to_string(&secret).expect("read"), "say the secret");
    assert_eq!(tasks(&drill), 1, "only the good one");
    assert_eq!(fs::read_dir(&queue).expect("listed").count(), 4);
    // Git removes a directory with the last file in it.
    for name in [".later.txt.Xa12bQ", "later.txt~", "notes.md", "-x.txt"] {
        fs::remove_file(queue.join(name)).expect("removed");
    }
    fs::remove_dir(&queue).expect("removed");
    eventually(LONG, "it is made again", || queue.is_dir());
    put(&drill, "queue/after.txt", "say well");
    assert_eq!(result_of(&drill, "after")["status"], "ok");
    // Orders that are none are put aside as well.
    put(&drill, "ctl/cancel.json", r#"{"scope":"everything"}"#);
    wait_for_name(&drill, "rejected", "cancel.json.reason");
    wait_for_count(&drill, "requests", "rejected", 8.0);
}

#[test]
fn a_directory_that_others_can_write_is_not_worked() {
    let drill = drill("answers = false", "");
    let plane = drill.path("plane");
    fs::create_dir(&plane).expect("made");
    for (mode, what) in [(0o777, "0777"), (0o770, "0770"), (0o755, "0755")] {
        fs::set_permissions(&plane, fs::Permissions::from_mode(mode)).expect("mode");
        let ran = drill.run(&["up"]);
        assert_eq!(ran.code, Some(3), "{}", ran.all());
        let expected = format!("pool.demo.file_plane: {}", plane.display());
        assert!(ran.stderr.contains(&expected), "{}", ran.all());
        assert!(
            ran.stderr.contains(what) && ran.stderr.contains("chmod"),
            "{}",
            ran.all()
        );
    }
    fs::set_permissions(&plane, fs::Permissions::from_mode(0o750)).expect("mode");
    std::os::unix::fs::chown(&plane, Some(crate::drill::NOBODY), None).expect("chown");
    let ran = drill.run(&["up"]);
    assert_eq!(ran.code, Some(3), "{}", ran.all());
    assert!(
        ran.stderr.contains("belongs to user 65534"),
        "{}",
        ran.all()
    );
}

#[test]
fn files_of_the_owner_that_the_configuration_names_are_his() {
    let drill = drill("owner = 65534", "");
    let _daemon = daemon(&drill);
    let script = "umask 077; cat > new; mv new queue/a.txt; ls queue > /dev/null";
    let mut shell = Command::new("setpriv")
        .args(["--reuid=65534", "--clear-groups", "/bin/sh", "-euc", script])
        .current_dir(drill.path("plane"))
        .stdin(std::process::Stdio::piped())
        .spawn()
        .expect("a shell");
    let mut stdin = shell.stdin.take().expect("piped");
    std::io::Write::write_all(&mut stdin, b"say mine\n").expect("written");
    drop(stdin);
    assert!(shell.wait().expect("ends").success());
    assert_eq!(result_of(&drill, "a")["status"], "ok");
    let read = Command::new("setpriv")
        .args([
            "--reuid=65534",
            "--clear-groups",
            "cat",
            "result/a.json",
            "output/a.out",
        ])
        .current_dir(drill.path("plane"))
        .output()
        .expect("cat");
    let printed = String::from_utf8_lossy(&read.stdout).into_owned();
    assert!(
        read.status.success() && printed.ends_with("mine\n"),
        "{printed}"
    );
}

#[test]
fn without_answers_and_for_other_asks_a_file_changes_nothing() {
    let drill = drill("answers = false", "");
    let _daemon = daemon(&drill);
    put(&drill, "queue/a.txt", UNDECIDED_PROMPT);
    let ask = approval_file(&drill, "a");
    let file = format!("{}.allow", id(&ask));
    sh(
        &drill,
        &format!("cat /dev/null > new; mv new answers/{file}"),
    );
    wait_for_name(&drill, "rejected", &format!("{file}.reason"));
    let why = sh(&drill, &format!("cat rejected/{file}.reason"));
    assert!(why.contains("file_plane.answers"), "{why}");
    assert_eq!(state(&drill, &ask), "pending");
    good(&answer(&drill, "reject", &ask, &[]));
    assert_eq!(result_of(&drill, "a")["outcome"], "denied");
    eventually(LONG, "the approval is gone", || {
        names(&drill, "approvals").is_empty()
    });
}

#[test]
fn a_file_answers_no_approval_of_another_listener() {
    let drill = drill("answers = true", "");
    let _daemon = daemon(&drill);
    let other = client(&drill, &[UNDECIDED_PROMPT]);
    let ask = waiting(&drill, 1).remove(0);
    let file = format!("{}.allow", id(&ask));
    sh(
        &drill,
        &format!("cat /dev/null > new; mv new answers/{file}"),
    );
    wait_for_name(&drill, "rejected", &format!("{file}.reason"));
    assert!(names(&drill, "approvals").is_empty());
    assert_eq!(state(&drill, &ask), "pending");
    good(&answer(&drill, "reject", &ask, &[]));
    let result = crate::fleet::approvals::result(&drill, other);
    assert_eq!(result["outcome"], "denied", "{result}");
    wait_for_count(&drill, "answers", "refused", 1.0);
}
