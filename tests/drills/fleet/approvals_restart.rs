//! Approvals that outlive what asked them: a kill of the supervisor, a session without its child, an
//! answer that is remembered.

use serde_json::Value;

use crate::drill::{Drill, Running, eventually, metric};
use crate::fleet::approvals::{
    DIALECTS, LONG, UNDECIDED_PROMPT, answer, client, daemon, good, id, list_approvals, pool,
    result, state, waiting,
};

/// One session for task after task, which is loaded again.
fn slot_pool(dialect: &str) -> String {
    let resume = match dialect {
        "scaiflux" => "resume_args = [\"--resume\", \"{session}\"]\n",
        _ => "",
    };
    let text = pool(dialect, &format!("session = \"slot\"\n{resume}"));
    text.replace("max = \"100ms\"", "max = \"100ms\", on_crash = \"resume\"")
}

fn killed(mut daemon: Running, mut client: std::process::Child) {
    daemon.child.kill().expect("kill -9");
    let _ = daemon.child.wait();
    client.wait().expect("ends");
}

#[test]
fn after_a_kill_the_answer_is_kept_and_used_once_by_the_resumed_agent() {
    for dialect in DIALECTS {
        let drill = Drill::new(&slot_pool(dialect));
        let first = daemon(&drill);
        let lost = client(&drill, &[UNDECIDED_PROMPT]);
        let ask = waiting(&drill, 1).remove(0);
        killed(first, lost);
        let _second = daemon(&drill);
        let left = waiting(&drill, 1).remove(0);
        assert_eq!(left["state"], "orphaned", "{left}");
        assert_eq!(id(&left), id(&ask));
        let by = "SELECT decided_by FROM permission_requests";
        let by: String = drill
            .database()
            .query_row(by, [], |row| row.get(0))
            .expect("one");
        assert_eq!(
            by, "gone",
            "the request that nobody answered is denied on record"
        );
        let stored = answer(&drill, "approve", &ask, &[]);
        good(&stored);
        assert!(
            stored.stderr.contains("kept for the agent's return"),
            "{}",
            stored.all()
        );
        let again = answer(&drill, "reject", &ask, &[]);
        assert_eq!(again.code, Some(1), "{}", again.all());
        assert!(again.stderr.contains("it has an answer"), "{}", again.all());
        // Another request of the same session is none of it.
        let other = client(&drill, &["run touch other.txt"]);
        let found = waiting(&drill, 2);
        let found = found
            .iter()
            .find(|item| id(item) != id(&ask))
            .expect("the other");
        good(&answer(&drill, "reject", found, &[]));
        assert_eq!(result(&drill, other)["outcome"], "denied");
        let back = result(&drill, client(&drill, &[UNDECIDED_PROMPT]));
        assert_eq!(back["outcome"], "done", "{back}");
        assert_eq!(back["changes"][0]["path"], "made.txt", "{back}");
        assert_eq!(state(&drill, &ask), "approved");
        // Once.
        let anew = client(&drill, &[UNDECIDED_PROMPT]);
        let next = waiting(&drill, 1).remove(0);
        assert_ne!(id(&next), id(&ask));
        good(&answer(&drill, "reject", &next, &[]));
        assert_eq!(result(&drill, anew)["outcome"], "denied");
        drill.assert_dense();
    }
}

#[test]
fn after_a_kill_a_resumed_agent_waits_for_the_same_ask_and_others_are_over() {
    let drill = Drill::new(&slot_pool("acp"));
    let first = daemon(&drill);
    let lost = client(&drill, &[UNDECIDED_PROMPT]);
    let ask = waiting(&drill, 1).remove(0);
    killed(first, lost);
    let second = daemon(&drill);
    let back = client(&drill, &[UNDECIDED_PROMPT]);
    let mut again = waiting(&drill, 1).remove(0);
    eventually(LONG, "the agent waits for it again", || {
        again = waiting(&drill, 1).remove(0);
        again["state"] == "pending"
    });
    assert_eq!((id(&again), &again["times"]), (id(&ask), &Value::from(2)));
    assert!(ask["deadline"].is_string(), "{ask}");
    assert_eq!(again["deadline"], ask["deadline"], "its time goes on");
    good(&answer(&drill, "approve", &ask, &[]));
    assert_eq!(result(&drill, back)["outcome"], "done");
    drop(second);

    // A session that ends with its task is not resumed.
    let reported = "max = \"100ms\", on_crash = \"report\"";
    let drill = Drill::new(&pool("acp", "").replace("max = \"100ms\"", reported));
    let first = daemon(&drill);
    let lost = client(&drill, &[UNDECIDED_PROMPT]);
    let ask = waiting(&drill, 1).remove(0);
    killed(first, lost);
    let _second = daemon(&drill);
    assert!(list_approvals(&drill, &[]).is_empty());
    assert_eq!(state(&drill, &ask), "expired");
    let late = answer(&drill, "approve", &ask, &[]);
    assert_eq!(late.code, Some(1), "{}", late.all());
}

#[test]
fn a_released_session_waits_without_its_child_and_lets_others_work() {
    for dialect in DIALECTS {
        let release = "approval = { when_waiting = \"release\" }\n";
        let drill = Drill::new(&(slot_pool(dialect) + release));
        let mut daemon = daemon(&drill);
        let working = client(&drill, &[UNDECIDED_PROMPT]);
        let ask = waiting(&drill, 1).remove(0);
        eventually(LONG, "its child is gone", || {
            state(&drill, &ask) == "orphaned" && drill.agents().is_empty()
        });
        // Another task does not wait for it.
        let between = drill.run(&["run", "say hello"]);
        good(&between);
        assert_eq!(state(&drill, &ask), "orphaned");
        good(&answer(&drill, "approve", &ask, &[]));
        let back = result(&drill, working);
        assert_eq!(back["outcome"], "done", "{back}");
        assert_eq!(back["attempts"], 1, "{back}");
        assert_eq!(back["requests"]["denied"], 0, "{back}");
        assert_eq!(back["changes"][0]["path"], "made.txt", "{back}");
        assert_eq!(state(&drill, &ask), "approved");

        // A cancelled run does not wait, and neither does the end.
        let mut working = client(&drill, &["run touch other.txt"]);
        let ask = waiting(&drill, 1).remove(0);
        eventually(LONG, "its child is gone", || {
            state(&drill, &ask) == "orphaned"
        });
        daemon.signal("TERM");
        assert_eq!(daemon.wait(LONG), Some(0));
        working.wait().expect("ends");
        drill.assert_dense();
    }
    let release = "approval = { when_waiting = \"release\", timeout = \"3s\" }\n";
    let drill = Drill::new(&(slot_pool("acp") + release));
    let _daemon = daemon(&drill);
    let denied = result(&drill, client(&drill, &[UNDECIDED_PROMPT]));
    assert_eq!(denied["outcome"], "denied", "{denied}");
    let detail = denied["detail"].as_str().expect("a detail");
    assert!(detail.contains("nobody answered approval"), "{denied}");
}

#[test]
fn an_orphan_expires_by_itself() {
    // Time enough for a kill and a start before that.
    let text = slot_pool("acp") + "approval = { timeout = \"25s\" }\n";
    let drill = Drill::new(&text);
    let first = daemon(&drill);
    let lost = client(&drill, &[UNDECIDED_PROMPT]);
    let ask = waiting(&drill, 1).remove(0);
    killed(first, lost);
    let _second = daemon(&drill);
    assert_eq!(state(&drill, &ask), "orphaned");
    eventually(LONG, "it expires", || state(&drill, &ask) == "expired");
    assert!(list_approvals(&drill, &[]).is_empty());
    let back = client(&drill, &[UNDECIDED_PROMPT]);
    assert_ne!(id(&waiting(&drill, 1)[0]), id(&ask), "it is asked anew");
    drop(back);
}

#[test]
fn an_answer_is_remembered_as_long_as_it_says_and_as_the_pool_lets_it() {
    let drill = Drill::new(&slot_pool("scaiflux"));
    let _daemon = daemon(&drill);
    let twice = format!("{UNDECIDED_PROMPT}\n{UNDECIDED_PROMPT}");
    let working = client(&drill, &[&twice]);
    let ask = waiting(&drill, 1).remove(0);
    good(&answer(&drill, "approve", &ask, &["--remember", "turn"]));
    let done = result(&drill, working);
    assert_eq!(done["requests"]["allowed"], 2, "{done}");
    // The next turn asks again.
    let working = client(&drill, &[&twice]);
    let ask = waiting(&drill, 1).remove(0);
    good(&answer(&drill, "approve", &ask, &["--remember", "session"]));
    let done = result(&drill, working);
    assert_eq!(done["requests"]["allowed"], 2, "{done}");
    let done = result(&drill, client(&drill, &[&twice]));
    assert_eq!(done["requests"]["allowed"], 2, "{done}");
    let page = drill.get("/metrics").1;
    let cached = r#"marshal_permission_requests_total{pool="demo",tool_class="shell",decision="allow",decided_by="cache"}"#;
    assert_eq!(metric(&page, cached), Some(4.0), "{page}");

    let text = pool("acp", "approval = { remember = \"never\" }");
    let drill = Drill::new(&text);
    let _daemon = daemon(&drill);
    let working = client(&drill, &[UNDECIDED_PROMPT]);
    let ask = waiting(&drill, 1).remove(0);
    let refused = answer(&drill, "approve", &ask, &["--remember", "turn"]);
    assert_eq!(refused.code, Some(2), "{}", refused.all());
    assert!(
        refused.stderr.contains("approval.remember"),
        "{}",
        refused.all()
    );
    assert_eq!(state(&drill, &ask), "pending");
    good(&answer(&drill, "approve", &ask, &[]));
    assert_eq!(result(&drill, working)["outcome"], "done");
}

#[test]
fn the_same_words_in_another_directory_are_another_ask() {
    let drill = Drill::new(&(slot_pool("acp") + "shell_cwd = \"sticky\"\n"));
    let _daemon = daemon(&drill);
    let script = format!("{UNDECIDED_PROMPT}\n{UNDECIDED_PROMPT}\nrun cd src\n{UNDECIDED_PROMPT}");
    let working = client(&drill, &[&script]);
    let first = waiting(&drill, 1).remove(0);
    good(&answer(
        &drill,
        "approve",
        &first,
        &["--remember", "session"],
    ));
    let mut second = first.clone();
    eventually(LONG, "the third is asked anew", || {
        let found = list_approvals(&drill, &[]);
        second = found.first().cloned().unwrap_or_else(|| first.clone());
        id(&second) != id(&first)
    });
    assert_eq!(second["digest"], first["digest"]);
    let shown = drill.run(&["approvals", "show", &id(&second)]);
    assert!(
        shown.stdout.contains(". leads to /workspace/src"),
        "{}",
        shown.all()
    );
    good(&answer(&drill, "approve", &second, &[]));
    let done = result(&drill, working);
    assert_eq!(done["outcome"], "done", "{done}");
    let by = "SELECT group_concat(decided_by, ' ') FROM (SELECT decided_by FROM permission_requests ORDER BY requested_seq)";
    let by: String = drill
        .database()
        .query_row(by, [], |row| row.get(0))
        .expect("records");
    assert_eq!(by, "human cache policy human");
}

#[test]
fn what_a_stricter_policy_does_not_permit_any_more_does_not_hold() {
    let text = slot_pool("acp").replace("\"cautious\"", "\"own\"");
    let drill = Drill::new(&(text + "[policy.own]\nfile = \"own.toml\"\n"));
    let put = |ask: &str| {
        let text = format!(
            "schema = 1\nname = \"own\"\nextends = [\"cautious.toml\"]\n[approval]\n{ask}\n"
        );
        std::fs::write(drill.path("own.toml"), text).expect("a policy");
    };
    put("");
    let first = daemon(&drill);
    let working = client(&drill, &[UNDECIDED_PROMPT]);
    let ask = waiting(&drill, 1).remove(0);
    good(&answer(&drill, "approve", &ask, &["--remember", "session"]));
    assert_eq!(result(&drill, working)["outcome"], "done");
    let cached = result(&drill, client(&drill, &[UNDECIDED_PROMPT]));
    assert_eq!(cached["outcome"], "done", "{cached}");
    put("remember = \"turn\"");
    good(&drill.run(&["policy", "reload"]));
    let working = client(&drill, &[UNDECIDED_PROMPT]);
    let ask = waiting(&drill, 1).remove(0);
    good(&answer(&drill, "reject", &ask, &[]));
    assert_eq!(result(&drill, working)["outcome"], "denied");
    // An answer that was kept is of somebody who may not answer by now.
    let lost = client(&drill, &["run touch other.txt"]);
    let ask = waiting(&drill, 1).remove(0);
    killed(first, lost);
    let _second = daemon(&drill);
    good(&answer(&drill, "approve", &ask, &[]));
    put("approvers = [\"ops\"]");
    let config = std::fs::read_to_string(drill.config()).expect("supervisor.toml");
    assert!(!config.contains("approvers"), "{config}");
    good(&drill.run(&["policy", "reload"]));
    // Nobody whom both name: nobody is asked, and what was kept allows nothing.
    let denied = result(&drill, client(&drill, &["run touch other.txt"]));
    assert_eq!(denied["outcome"], "denied", "{denied}");
}

#[test]
fn what_is_not_remembered_is_not_said_to_be() {
    let drill = Drill::new(&pool("acp", "").replace(
        "DRILL = \"MARK\"",
        "DRILL = \"MARK\", TOKEN = \"file:token\"",
    ));
    let file = drill.path("token");
    std::fs::write(&file, "a-value-that-is-secret").expect("a secret");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&file, mode).expect("chmod");
    let _daemon = daemon(&drill);
    let working = client(&drill, &["run touch a-value-that-is-secret.txt"]);
    let ask = waiting(&drill, 1).remove(0);
    let output = drill.run(&[
        "--json",
        "approvals",
        "approve",
        &id(&ask),
        "--remember",
        "session",
    ]);
    good(&output);
    let message: Value = serde_json::from_str(output.stdout.trim()).expect("JSON");
    assert_eq!(message["remember"], "never", "{message}");
    assert_eq!(result(&drill, working)["outcome"], "done");
    let over = list_approvals(&drill, &["--ended"]).remove(0);
    assert_eq!(over["answer"]["remember"], "never", "{over}");
}
