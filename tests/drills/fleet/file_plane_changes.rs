//! A pool's directory whose surroundings change: another configuration, a directory that is replaced, a
//! file system that tells nothing.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use rustix::fs::CWD;
use serde_json::Value;

use crate::drill::{Drill, Running, eventually, metric};
use crate::fleet::approvals::{LONG, daemon, pool};
use crate::fleet::file_plane::{command, document, drill, names, put, result_of, tasks, works};

/// Writes the configuration anew, with other keys of the directory, and has it read.
fn reloaded(drill: &Drill, before: &str, plane: &str) -> Value {
    let text = fs::read_to_string(drill.config()).expect("a file");
    assert!(text.contains(before), "{text}");
    fs::write(drill.config(), text.replace(before, plane)).expect("written");
    let ran = drill.run(&["--json", "reload"]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    serde_json::from_str(&ran.stdout).expect("JSON")
}

fn restarted(drill: &Drill, mut running: Running) -> Running {
    running.signal("TERM");
    assert_eq!(running.wait(LONG), Some(0));
    daemon(drill)
}

#[test]
fn a_reload_says_that_a_directory_counts_from_the_next_start_on() {
    const OLD: &str = "file_plane = { dir = \"plane\", answers = false }";
    const NEW: &str = "file_plane = { dir = \"other\", answers = false }";
    let drill = drill("answers = false", "");
    let running = daemon(&drill);
    // Changed: it is told, and the one in force goes on with what it works.
    let long = command(&drill, 1, "a", "say begun\nsleep 2s\nsay ended", "");
    works(&drill, "a");
    let reported = reloaded(&drill, OLD, NEW);
    assert_eq!(reported["config"], false, "{reported}");
    assert_eq!(
        reported["restart"],
        serde_json::json!(["pool.demo.file_plane"]),
        "{reported}"
    );
    assert_eq!(result_of(&drill, &long)["status"], "ok");
    put(&drill, "queue/b.txt", "say on");
    assert_eq!(result_of(&drill, "b")["status"], "ok");
    assert!(!drill.path("other").exists());
    let running = restarted(&drill, running);
    let other = drill.path("other");
    fs::write(other.join("new"), "say other").expect("written");
    fs::rename(other.join("new"), other.join("queue/c.txt")).expect("moved");
    eventually(LONG, "the other one is worked", || {
        other.join("result/c.json").exists()
    });
    put(&drill, "queue/d.txt", "say never");
    // Removed: the directory stays, and nobody works it after the start.
    let reported = reloaded(&drill, NEW, "");
    assert_eq!(
        reported["restart"],
        serde_json::json!(["pool.demo.file_plane"]),
        "{reported}"
    );
    let running = restarted(&drill, running);
    assert_eq!(drill.run(&["run", "say hello"]).code, Some(0));
    assert_eq!(
        document(&drill, "../other/state/state.json")["phase"],
        "stopping"
    );
    // Added: told, and worked from the next start on.
    let text = fs::read_to_string(drill.config()).expect("a file");
    fs::write(
        drill.config(),
        text.replace("[pool.demo]\n", &format!("[pool.demo]\n{OLD}\n")),
    )
    .expect("written");
    let reported = drill.run(&["reload"]).all();
    assert!(
        reported.contains("needs a restart: pool.demo.file_plane"),
        "{reported}"
    );
    assert!(names(&drill, "queue").contains("d.txt"));
    let _running = restarted(&drill, running);
    assert_eq!(result_of(&drill, "d")["status"], "ok");
}

#[test]
fn a_directory_that_was_replaced_is_worked_as_it_is_now() {
    let drill = drill("answers = true, poll = \"200ms\"", "");
    let _daemon = daemon(&drill);
    let first = command(&drill, 1, "a", "say begun\nsleep 8s\nsay ended", "");
    works(&drill, "a");
    // Also while something is worked there: its result is where whoever waits for it looks.
    fs::rename(drill.path("plane"), drill.path("before")).expect("moved");
    eventually(LONG, "it is made again", || {
        drill.path("plane/queue").is_dir() && drill.path("plane/state/state.json").exists()
    });
    assert_eq!(result_of(&drill, &first)["status"], "ok");
    put(&drill, "queue/b.txt", "say on");
    assert_eq!(result_of(&drill, "b")["status"], "ok");
    assert_eq!(tasks(&drill), 2);
    // A link is none, and that is said; until it is right.
    let exchanged = || {
        let paths = (drill.path("again"), drill.path("plane"));
        let flags = rustix::fs::RenameFlags::EXCHANGE;
        let done = rustix::fs::renameat_with(CWD, &paths.0, CWD, &paths.1, flags);
        done.expect("exchanged");
    };
    std::os::unix::fs::symlink(drill.path("before"), drill.path("again")).expect("a link");
    exchanged();
    let up = r#"marshal_file_plane_up{pool="demo"}"#;
    eventually(LONG, "it is not worked", || {
        metric(&drill.get("/metrics").1, up) == Some(0.0)
    });
    exchanged();
    eventually(LONG, "it is worked", || {
        metric(&drill.get("/metrics").1, up) == Some(1.0)
    });
    put(&drill, "queue/c.txt", "say on");
    assert_eq!(result_of(&drill, "c")["status"], "ok");
}

/// A supervisor whose planes lie on a file system that tells nothing of what others do there: what is put into
/// the lower one of two layers is seen in the upper one, and nobody hears of it. Gives where others put files.
fn on_a_silent_disk(drill: &Drill) -> (Running, PathBuf) {
    let file = |name| fs::File::create(drill.path(name)).expect("a log file");
    let layers = drill.path("layers");
    fs::create_dir(&layers).expect("made");
    fs::create_dir(drill.path("silent")).expect("made");
    let script = "cd \"$1\" && mount -t tmpfs -o mode=0700 drill . && cd . && cd \"$1\" && mkdir -m 0700 lower upper work \
        && mount -t overlay -o lowerdir=lower,upperdir=upper,workdir=work drill \"$2\" && cd \"$3\" \
        && shift 3 && exec \"$@\"";
    let inner = drill.command(&["up"]);
    let mut command = Command::new("unshare");
    let child = command
        .args([
            "--mount",
            "--propagation",
            "private",
            "sh",
            "-ec",
            script,
            "sh",
        ])
        .args([&layers, &drill.path("silent"), &drill.path("")])
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
    eventually(LONG, "the daemon is ready", || {
        drill.log("stderr.log").contains("listening on http://") && drill.get("/readyz").0 == 200
    });
    let above = layers.strip_prefix("/").expect("absolute").join("upper");
    let root = PathBuf::from(format!("/proc/{}/root", running.pid()));
    (running, root.join(above))
}

#[test]
fn what_the_kernel_does_not_tell_of_is_found_by_looking() {
    let plane = "file_plane = { dir = \"silent/plane\", poll = \"300ms\" }\n";
    let drill = Drill::new(&pool("scaiflux", plane));
    let (_running, upper) = on_a_silent_disk(&drill);
    let there = upper.join("plane");
    eventually(LONG, "the directory is laid", || {
        there.join("queue").is_dir()
    });
    eventually(LONG, "it is idle", || {
        fs::read_to_string(there.join("state/state.json"))
            .is_ok_and(|text| text.contains("\"idle\""))
    });
    for name in ["a", "b", "c"] {
        fs::write(there.join("new"), format!("say {name}")).expect("written");
        fs::rename(there.join("new"), there.join(format!("queue/{name}.txt"))).expect("moved");
        let result = there.join(format!("result/{name}.json"));
        eventually(LONG, "it has a result", || result.exists());
        let output = fs::read_to_string(there.join(format!("output/{name}.out")));
        assert_eq!(output.expect("output"), format!("{name}\n"));
    }
}
