//! Requests that come as files come: by rsync, by git, and where the kernel tells of nothing.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::drill::{Drill, Running, eventually, metric};
use crate::fleet::approvals::{LONG, daemon};
use crate::fleet::file_plane::{drill, names, result_of, tasks};
use crate::fleet::full_disk::POOLS;

/// What a shell does somewhere.
fn at(dir: &Path, script: &str) -> String {
    let ran = Command::new("/bin/sh")
        .args(["-euc", script])
        .current_dir(dir)
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_AUTHOR_NAME", "somebody")
        .env("GIT_AUTHOR_EMAIL", "somebody@example.org")
        .env("GIT_COMMITTER_NAME", "somebody")
        .env("GIT_COMMITTER_EMAIL", "somebody@example.org")
        .stdin(Stdio::null())
        .output()
        .expect("a shell");
    let printed = String::from_utf8_lossy(&ran.stdout).into_owned();
    let error = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert!(ran.status.success(), "{script}: {printed}{error}");
    printed
}

fn request(seq: u64, id: &str, prompt: &str) -> String {
    json!({"cmd_id": id, "seq": seq, "kind": "prompt", "payload": prompt}).to_string()
}

#[test]
fn requests_come_and_results_go_by_rsync() {
    let drill = drill("answers = false", "");
    let _daemon = daemon(&drill);
    let dir = drill.path("");
    fs::create_dir(drill.path("outbox")).expect("made");
    let out = |name: &str, text: &str| {
        fs::write(drill.path("outbox").join(name), text).expect("written");
    };
    // One that takes a while to come, under a name that is none of a request's.
    let remark = format!("# {}\n", "x".repeat(98));
    let long = format!("say long\n{}say end\n", remark.repeat(3000));
    out("long.txt", &long);
    out("cmd_1_a.json", &request(1, "a", "say one"));
    at(&dir, "rsync -a --bwlimit=100 outbox/ plane/queue/");
    let result = result_of(&drill, "long");
    assert_eq!(result["status"], "ok", "{result}");
    assert_eq!(result_of(&drill, "cmd_1_a")["status"], "ok");
    // The same once more: what was taken is missing there, so that it is sent again.
    at(&dir, "rsync -a outbox/ plane/queue/");
    eventually(LONG, "it is dropped", || {
        let page = drill.get("/metrics").1;
        let name = r#"marshal_file_plane_requests_total{pool="demo",result="repeated"}"#;
        metric(&page, name) == Some(2.0)
    });
    assert_eq!(tasks(&drill), 2);
    assert!(names(&drill, "rejected").is_empty());
    at(&dir, "rsync -a plane/result plane/output inbox/");
    let printed = fs::read_to_string(drill.path("inbox/output/long.out"));
    assert_eq!(printed.expect("an output"), "long\nend\n");
    let text = fs::read_to_string(drill.path("inbox/result/cmd_1_a.json")).expect("a result");
    let result: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(result["cmd_id"], "a", "{result}");
    // Each request is sent once where the sender drops what has arrived.
    out("cmd_2_b.json", &request(2, "b", "say two"));
    at(
        &dir,
        "rm outbox/long.txt outbox/cmd_1_a.json; rsync -a --remove-source-files outbox/ plane/queue/; ls outbox",
    );
    assert_eq!(result_of(&drill, "cmd_2_b")["status"], "ok");
    assert_eq!(at(&dir, "ls outbox"), "");
}

#[test]
fn requests_come_and_results_go_by_git() {
    let drill = drill("answers = false", "");
    let dir = drill.path("");
    at(
        &dir,
        "git init -q --bare -b main hub.git
         git clone -q hub.git desk 2>/dev/null
         cd desk; git checkout -q -b main 2>/dev/null || true
         printf '/%s\\n' .lock asks/ inflight/ log/ state/ > .gitignore
         echo '.marshal-*' >> .gitignore
         git add .gitignore; git commit -qm 'What stays at home'; git push -q origin main
         cd ..; umask 077; git clone -q hub.git plane",
    );
    let _daemon = daemon(&drill);
    let desk = drill.path("desk");
    let write = |name: &str, text: &str| {
        fs::create_dir_all(desk.join("queue")).expect("made");
        fs::write(desk.join("queue").join(name), text).expect("written");
        at(&desk, "git add -A; git commit -qm 'A request'; git push -q");
    };
    write("a.txt", "say one\n");
    write("cmd_1_b.json", &request(1, "b", "say two"));
    let plane = drill.path("plane");
    at(&plane, "git pull -q --no-rebase --no-edit");
    assert_eq!(result_of(&drill, "a")["status"], "ok");
    assert_eq!(result_of(&drill, "cmd_1_b")["status"], "ok");
    // Another request is on its way while the results go.
    write("c.txt", "say three\n");
    let home = "git add -A; git commit -qm Results || true; git pull -q --no-rebase --no-edit; git push -q";
    at(&plane, home);
    assert_eq!(result_of(&drill, "c")["status"], "ok");
    at(&plane, home);
    at(&desk, "git pull -q --no-rebase --no-edit");
    for (name, said) in [("a", "one\n"), ("cmd_1_b", "two\n"), ("c", "three\n")] {
        let path = desk.join(format!("output/{name}.out"));
        assert_eq!(fs::read_to_string(path).expect(name), said);
        assert!(desk.join(format!("result/{name}.json")).is_file(), "{name}");
    }
    // What was taken is no more in anybody's queue, and nothing was worked twice.
    assert!(!desk.join("queue").exists());
    assert_eq!(tasks(&drill), 3);
    assert!(names(&drill, "rejected").is_empty());
    // Somebody restores all files of an earlier commit.
    at(
        &plane,
        "git checkout -q $(git log --format=%H -1 --diff-filter=A -- queue/a.txt) -- queue/a.txt",
    );
    eventually(LONG, "they are dropped", || {
        names(&drill, "queue").is_empty()
    });
    assert_eq!(tasks(&drill), 3);
}

/// A supervisor for which the directory is a file system that tells nothing of what others do in it:
/// an overlay, whose upper layer is written beside it. Its upper layer.
fn start_on_overlay(poll: &str) -> (Drill, Running, PathBuf) {
    let plane = format!("file_plane = {{ dir = \"plane\", poll = \"{poll}\" }}\n");
    let drill = Drill::new(&format!("{POOLS}{plane}"));
    let script = "for name in lower upper work plane; do mkdir -m 0700 $name; done
        mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work plane
        exec \"$@\"";
    let inner = drill.command(&["up"]);
    let file = |name| fs::File::create(drill.path(name)).expect("a log file");
    let child = Command::new("unshare")
        .args([
            "--mount",
            "--propagation",
            "private",
            "sh",
            "-euc",
            script,
            "sh",
        ])
        .arg(inner.get_program())
        .args(inner.get_args())
        .current_dir(drill.path(""))
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin")
        .env("HOME", drill.path(""))
        .stdin(Stdio::null())
        .stdout(file("stdout.log"))
        .stderr(file("stderr.log"))
        .spawn()
        .expect("unshare");
    let running = Running { child };
    let upper = drill.path("upper");
    eventually(LONG, "it is worked", || {
        let state = fs::read_to_string(upper.join("state/state.json"));
        state.is_ok_and(|state| state.contains("\"idle\""))
    });
    (drill, running, upper)
}

fn put(upper: &Path, seq: u64, id: &str) -> PathBuf {
    let name = format!("cmd_{seq}_{id}.json");
    fs::write(upper.join("new"), request(seq, id, "say well")).expect("written");
    fs::rename(upper.join("new"), upper.join("queue").join(&name)).expect("moved");
    upper.join("result").join(name)
}

#[test]
fn what_the_kernel_does_not_tell_of_is_found_by_looking() {
    let (_drill, _running, upper) = start_on_overlay("1s");
    for (seq, id) in [(1, "a"), (2, "b"), (3, "c")] {
        let result = put(&upper, seq, id);
        eventually(LONG, "a result", || result.exists());
        let text = fs::read_to_string(&result).expect("a result");
        assert!(text.contains("\"status\": \"ok\""), "{text}");
    }
}

#[test]
fn between_two_looks_only_the_kernel_tells() {
    let (drill, running, upper) = start_on_overlay("1h");
    let beat = || fs::read_to_string(upper.join("state/heartbeat.json")).unwrap_or_default();
    let beats = |times: usize| {
        for _ in 0..times {
            let before = beat();
            eventually(LONG, "it lives", || beat() != before);
        }
    };
    // What it did itself when it began tells it to look, too: that is over.
    beats(1);
    let result = put(&upper, 1, "a");
    beats(2);
    assert!(
        upper.join("queue/cmd_1_a.json").exists(),
        "nobody told of it"
    );
    // Somebody does something on this host.
    let plane = drill.path("plane");
    let plane = plane.strip_prefix("/").expect("absolute");
    let inside = PathBuf::from(format!("/proc/{}/root", running.pid())).join(plane);
    fs::write(inside.join("queue/.told"), "").expect("written");
    eventually(LONG, "a result", || result.exists());
}
