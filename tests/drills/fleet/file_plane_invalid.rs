//! What others put into a pool's directory, or do to it: one entry holds up nothing else, one
//! supervisor works it, and nobody answers for another door's task.

use std::fs;

use serde_json::json;

use crate::drill::{Drill, eventually, metric};
use crate::fleet::approvals::{
    LONG, UNDECIDED_PROMPT, answer, client, daemon, good, id, pool, result, state, waiting,
};
use crate::fleet::file_plane::{
    answered, approval_file, command, document, drill, names, put, result_of, sh, tasks, works,
};

/// A supervisor without any rights, whose pool has a directory.
fn of_nobody(plane: &str, more: &str) -> Drill {
    let plane = format!("{more}\nfile_plane = {{ dir = \"plane\", {plane} }}\n");
    Drill::of_nobody(&pool("scaiflux", &plane))
}

fn is_up(drill: &Drill) -> Option<f64> {
    let page = drill.get("/metrics").1;
    metric(&page, r#"marshal_file_plane_up{pool="demo"}"#)
}

/// Whether `rejected/` has a reason of something that was called so.
fn is_aside(drill: &Drill, name: &str) -> bool {
    let names = names(drill, "rejected");
    let mut reasons = names.iter().filter(|item| item.ends_with(".reason"));
    reasons.any(|item| item.starts_with(&format!("{name}.")))
}

#[test]
fn an_ask_of_another_task_of_the_same_session_is_none_of_the_directorys() {
    let drill = of_nobody("answers = true, poll = \"1s\"", "session = \"slot\"");
    let _daemon = daemon(&drill);
    put(&drill, "queue/a.txt", UNDECIDED_PROMPT);
    let ask = approval_file(&drill, "a");
    // Its result cannot be written, so the request stays open as long as somebody wants.
    sh(&drill, "chmod 0500 result");
    sh(
        &drill,
        &format!("cat /dev/null > new; mv new answers/{}.allow", id(&ask)),
    );
    eventually(LONG, "the fault is told", || {
        document(&drill, "state/state.json")["phase"] == "error"
    });
    eventually(LONG, "it is counted", || is_up(&drill) == Some(0.0));
    assert!(names(&drill, "inflight").contains("a.txt"));
    let other = client(&drill, &["run touch other.txt"]);
    let ask = waiting(&drill, 1).remove(0);
    let file = format!("{}.allow", id(&ask));
    sh(
        &drill,
        &format!("cat /dev/null > new; mv new answers/{file}"),
    );
    eventually(LONG, "the answer is put aside", || {
        names(&drill, "rejected").contains(&format!("{file}.reason"))
    });
    assert!(names(&drill, "approvals").is_empty());
    assert_eq!(state(&drill, &ask), "pending");
    // The same session worked both, so that nothing else can have kept them apart.
    good(&answer(&drill, "reject", &ask, &[]));
    assert_eq!(result(&drill, other)["outcome"], "denied");
    let query = "SELECT count(DISTINCT session) FROM tasks";
    let sessions = drill.database().query_row(query, [], |row| row.get(0));
    assert_eq!(sessions, Ok(1));
    sh(&drill, "chmod 0700 result");
    assert_eq!(result_of(&drill, "a")["status"], "ok");
    eventually(LONG, "it is worked again", || is_up(&drill) == Some(1.0));
}

#[test]
fn what_cannot_be_moved_holds_up_nothing() {
    let drill = of_nobody("answers = true, poll = \"1s\"", "");
    let _daemon = daemon(&drill);
    // Directories of root's that this supervisor may neither write nor move elsewhere.
    // Made elsewhere and moved: mkdir sets the mode after it has made the directory, which may be
    // gone from here by then.
    sh(
        &drill,
        "mkdir -m 0555 1 2 3 4
         mv -T 1 queue/d.txt; mv -T 2 ctl/cancel.json; mv -T 3 ctl/stop.json; mv -T 4 answers/x.allow",
    );
    for name in ["d.txt", "cancel.json", "stop.json", "x.allow"] {
        eventually(LONG, name, || is_aside(&drill, name));
    }
    assert!(names(&drill, "queue").is_empty() && names(&drill, "ctl").is_empty());
    put(&drill, "queue/good.txt", "say well");
    assert_eq!(result_of(&drill, "good")["status"], "ok");
    let long = command(&drill, 1, "long", "sleep 10m", "");
    works(&drill, "long");
    // One comes where the result goes, and where its claim is.
    sh(
        &drill,
        &format!(
            "mkdir -m 0555 result/{long}.json; rm inflight/{long}.run; mkdir -m 0555 inflight/{long}.run"
        ),
    );
    put(&drill, "ctl/cancel.json", r#"{"scope":"current"}"#);
    eventually(LONG, "it is over", || names(&drill, "inflight").is_empty());
    assert_eq!(result_of(&drill, &long)["status"], "cancelled");
    eventually(LONG, "all is well", || is_up(&drill) == Some(1.0));
}

#[test]
fn no_entry_keeps_a_start_from_working() {
    let drill = drill("answers = false, poll = \"1s\"", "");
    let mut running = daemon(&drill);
    let long = command(&drill, 1, "long", "sleep 10m", "");
    works(&drill, "long");
    running.signal("KILL");
    running.wait(LONG);
    sh(
        &drill,
        &format!(
            "rm .lock inflight/{long}.run state/heartbeat.json
             mkdir .lock inflight/{long}.run inflight/x.run inflight/y.txt inflight/z.cancel
             mkdir ctl/.cancel.json state/heartbeat.json log/meta.log.1 approvals/none.json"
        ),
    );
    let _running = daemon(&drill);
    put(&drill, "queue/after.txt", "say well");
    assert_eq!(result_of(&drill, "after")["status"], "ok");
    assert_eq!(result_of(&drill, &long)["exit_reason"], "lost");
    eventually(LONG, "nothing is left", || {
        names(&drill, "inflight").is_empty() && names(&drill, "approvals").is_empty()
    });
    assert!(drill.path("plane/.lock").is_file());
    eventually(LONG, "all is well", || is_up(&drill) == Some(1.0));
}

#[test]
fn a_cancel_outlives_a_kill() {
    let drill = drill("answers = false", "");
    let mut running = daemon(&drill);
    eventually(LONG, "it is begun", || {
        document(&drill, "state/state.json")["phase"] == "idle"
    });
    running.signal("KILL");
    running.wait(LONG);
    // As a kill leaves it: claimed, and no task is made yet; one is marked as cancelled, the order
    // for the other one was taken and not carried out.
    for name in ["a", "b", "c"] {
        put(&drill, &format!("inflight/{name}.txt"), "say never");
    }
    sh(&drill, "cat /dev/null > inflight/a.cancel");
    let order = r#"{"scope":"cmd_id","cmd_id":"b"}"#;
    put(&drill, "ctl/.cancel.json", order);
    let _running = daemon(&drill);
    for name in ["a", "b"] {
        let result = result_of(&drill, name);
        assert_eq!(result["status"], "cancelled", "{result}");
    }
    assert_eq!(result_of(&drill, "c")["status"], "ok");
    assert_eq!(tasks(&drill), 1, "only the third was worked");
    eventually(LONG, "nothing is left", || {
        sh(&drill, "ls -A ctl inflight") == "ctl:\n\ninflight:\n"
    });
}

#[test]
fn an_order_that_comes_while_another_is_carried_out_is_carried_out_as_well() {
    let drill = drill("answers = false, max_open = 2", "");
    let _daemon = daemon(&drill);
    let first = command(&drill, 1, "a", "sleep 10m", "");
    let second = command(&drill, 2, "b", "sleep 10m", "");
    works(&drill, "a");
    // Together, each in place of the one before: whichever is seen is taken as a whole.
    let one = |id| json!({"scope": "cmd_id", "cmd_id": id}).to_string();
    put(&drill, "ctl/.cancel.json", &one("a"));
    put(&drill, "ctl/cancel.json", &one("b"));
    for stem in [&first, &second] {
        let result = result_of(&drill, stem);
        assert_eq!(result["status"], "cancelled", "{result}");
    }
}

#[test]
fn two_supervisors_do_not_work_the_same_directory() {
    let first = drill("answers = false", "");
    let mut running = daemon(&first);
    let dir = first.path("plane");
    let plane = format!("\nfile_plane = {{ dir = {dir:?}, poll = \"1s\" }}\n");
    let second = Drill::new(&pool("scaiflux", &plane));
    let ran = second.run(&["up"]);
    assert_eq!(ran.code, Some(3), "{}", ran.all());
    let expected = "is used by another supervisor";
    assert!(ran.stderr.contains(expected), "{}", ran.all());
    put(&first, "queue/a.txt", "say well");
    assert_eq!(result_of(&first, "a")["status"], "ok");
    // One that was killed is not waited for.
    running.signal("KILL");
    running.wait(LONG);
    let mut running = daemon(&second);
    put(&first, "queue/b.txt", "say well");
    assert_eq!(result_of(&first, "b")["status"], "ok");
    assert_eq!((tasks(&first), tasks(&second)), (1, 1));
    running.signal("TERM");
    assert_eq!(running.wait(LONG), Some(0));
    // One of another host, where no lock reaches, until its heartbeat stays as it is.
    let beat = json!({"timestamp": "1", "instance": "other", "boot": "other"});
    put(&first, "state/heartbeat.json", &beat.to_string());
    put(&first, "queue/c.txt", "say well");
    let mut running = daemon(&second);
    eventually(LONG, "it is told", || {
        second.log("stderr.log").contains("another supervisor")
    });
    assert_eq!(result_of(&first, "c")["status"], "ok");
    eventually(LONG, "all is well", || is_up(&second) == Some(1.0));
    running.signal("TERM");
    assert_eq!(running.wait(LONG), Some(0));
    assert!(!dir.join("state/heartbeat.json").exists());
}

#[test]
fn an_ask_and_its_answer_over_a_kill() {
    let drill = drill("answers = true", "");
    let mut running = daemon(&drill);
    put(&drill, "queue/a.txt", UNDECIDED_PROMPT);
    let ask = approval_file(&drill, "a");
    running.signal("KILL");
    running.wait(LONG);
    // Who answers now answers nobody: the agent that asked is gone.
    let file = format!("{}.allow", id(&ask));
    sh(
        &drill,
        &format!("cat /dev/null > new; mv new answers/{file}"),
    );
    let _running = daemon(&drill);
    let result = result_of(&drill, "a");
    assert_eq!(result["exit_reason"], "lost", "{result}");
    eventually(LONG, "ask and answer are gone", || {
        names(&drill, "approvals").is_empty() && names(&drill, "answers").is_empty()
    });
    assert_ne!(state(&drill, &ask), "allowed");
    // The next one is asked and answered as if nothing had been.
    put(&drill, "queue/b.txt", UNDECIDED_PROMPT);
    let ask = approval_file(&drill, "b");
    answered(&drill, &ask, "allow");
    assert_eq!(result_of(&drill, "b")["status"], "ok");
    eventually(LONG, "its ask is gone", || {
        let mut requests = fs::read_dir(drill.path("plane/approvals")).expect("listed");
        requests.next().is_none()
    });
}
