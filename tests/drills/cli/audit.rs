//! `audit`: the chain of verdicts of real runs, proved, read and exported by the program.

use std::fs;
use std::time::Duration;

use serde_json::Value;

use crate::cli::{POOL, exits, up};
use crate::drill::{Drill, Ran, Running, acts_on_a_terminal, eventually};

const LONG: Duration = Duration::from_secs(60);

const PROMPT: &str = "read README.md\nwrite notes.txt hello\nrun curl https://example.com";

fn json(ran: &Ran) -> Vec<Value> {
    let lines = ran.stdout.lines();
    lines
        .map(|line| serde_json::from_str(line).expect("one object a line"))
        .collect()
}

fn good(ran: &Ran) -> Vec<Value> {
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    json(ran)
}

fn head(drill: &Drill) -> String {
    let shown = good(&drill.run(&["--json", "audit", "verify"]));
    shown[0]["head"]["hash"]
        .as_str()
        .expect("a hash")
        .to_owned()
}

/// Changes the database behind the program's back.
fn tamper(drill: &Drill, sql: &str) {
    let changed = drill.database().execute(sql, []).expect("changed");
    assert!(changed > 0, "{sql}");
}

#[test]
fn a_chain_is_proved_up_to_a_head_that_was_told() {
    let drill = Drill::new(POOL);
    assert_eq!(drill.run(&["run", PROMPT]).code, Some(0));
    let shown = good(&drill.run(&["--json", "audit", "verify"]));
    assert_eq!(
        (&shown[0]["ok"], &shown[0]["records"]),
        (&true.into(), &3.into())
    );
    let first = head(&drill);
    assert_eq!(drill.run(&["run", "read README.md"]).code, Some(0));
    let ran = drill.run(&["audit", "verify", "--head", &first]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    assert!(
        ran.stdout.contains("4 records, none changed or missing"),
        "{}",
        ran.all()
    );
    assert!(
        ran.stdout.contains("is record 3: all records up to it"),
        "{}",
        ran.all()
    );
    // A cut tail is a shorter chain and a whole one: only the head shows it, once its event is gone.
    let last = head(&drill);
    tamper(&drill, "DELETE FROM permission_requests WHERE link = 4");
    exits(
        &drill.run(&["audit", "verify"]),
        1,
        &["has no audit record"],
    );
    let no_record = "DELETE FROM events WHERE kind = 'permission_decided' AND NOT EXISTS (SELECT 1 FROM permission_requests \
                     WHERE permission_requests.session = events.session AND permission_requests.decided_seq = events.seq)";
    tamper(&drill, no_record);
    assert_eq!(drill.run(&["audit", "verify"]).code, Some(0));
    exits(
        &drill.run(&["audit", "verify", "--head", &last]),
        1,
        &["is not in the chain"],
    );
    let shown = drill.run(&["--json", "audit", "verify", "--head", &last]);
    assert_eq!(json(&shown)[0]["ok"], false);
    assert_eq!(
        drill.run(&["audit", "verify", "--head", &first]).code,
        Some(0)
    );
    for bad in ["", "12", &"g".repeat(64)] {
        exits(
            &drill.run(&["audit", "verify", "--head", bad]),
            2,
            &["64 hexadecimal"],
        );
    }
}

#[test]
fn the_first_broken_record_is_named() {
    let changes = [
        (
            "UPDATE permission_requests SET decision = 'allow' WHERE link = 3",
            3,
            "its columns",
        ),
        (
            "UPDATE permission_requests SET reason = 'x' WHERE link = 1",
            1,
            "its columns",
        ),
        (
            "UPDATE permission_requests SET input = '{}' WHERE link = 2",
            2,
            "its digest",
        ),
        (
            "UPDATE permission_requests SET input_sha256 = '' WHERE link = 2",
            2,
            "its columns",
        ),
        (
            "UPDATE permission_requests SET facts = '{}' WHERE link = 2",
            2,
            "its columns",
        ),
        (
            "UPDATE permission_requests SET hash = NULL WHERE link = 3",
            3,
            "its columns",
        ),
        (
            "UPDATE permission_requests SET prev_hash = NULL WHERE link = 2",
            2,
            "prev_hash",
        ),
        (
            "DELETE FROM permission_requests WHERE link = 1",
            2,
            "is missing",
        ),
        (
            "UPDATE permission_requests SET link = NULL WHERE link = 3",
            3,
            "removed from the chain",
        ),
        (
            "UPDATE permission_requests SET link = 9 WHERE link = 2",
            3,
            "is missing",
        ),
        (
            "UPDATE permission_requests SET slot = 7 WHERE link = 2",
            2,
            "its columns",
        ),
        (
            "UPDATE sessions SET pool = 'other'",
            1,
            "pool, slot, run or task of its session",
        ),
        (
            "UPDATE permission_requests SET format = 9 WHERE link = 2",
            2,
            "its format is 9",
        ),
    ];
    let drill = Drill::new(POOL);
    assert_eq!(drill.run(&["run", PROMPT]).code, Some(0));
    let database = drill.state().join("journal.db");
    // All of it in one file.
    drill
        .database()
        .execute_batch("PRAGMA wal_checkpoint(TRUNCATE)")
        .expect("checkpoint");
    let whole = fs::read(&database).expect("the database");
    for (change, link, what) in changes {
        fs::write(&database, &whole).expect("restored");
        tamper(&drill, change);
        drill
            .database()
            .execute_batch("PRAGMA wal_checkpoint(TRUNCATE)")
            .expect("checkpoint");
        let ran = drill.run(&["--json", "audit", "verify"]);
        exits(&ran, 1, &[&format!("audit record {link}"), what]);
        let shown = &json(&ran)[0];
        assert_eq!(shown["ok"], false, "{change}");
        assert_eq!(shown["broken"]["link"], link, "{change}");
        if !change.contains("link = NULL") {
            assert!(shown["broken"]["session"].is_string(), "{change}: {shown}");
        }
    }
}

#[test]
fn verdicts_are_found_by_everything_that_they_are_known_by() {
    let drill = Drill::new(POOL);
    let ran = drill.run(&["run", "--results", "r.jsonl", PROMPT, "read src/lib.rs"]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    let of_first = drill
        .results("r.jsonl")
        .iter()
        .find(|line| line["id"] == "task-1")
        .and_then(|line| line["session"].as_str().map(str::to_owned))
        .expect("a session");
    let count = |args: &[&str]| {
        let all = [&["--json", "audit", "query"], args].concat();
        good(&drill.run(&all)).len()
    };
    assert_eq!(count(&[]), 4);
    assert_eq!(count(&["--decision", "deny"]), 1);
    assert_eq!(count(&["--decision", "allow"]), 3);
    assert_eq!(count(&["--session", &of_first]), 3);
    assert_eq!(count(&["--pool", "demo"]), 4);
    assert_eq!(count(&["--pool", "other"]), 0);
    assert_eq!(count(&["--tool", "bash"]), 1);
    assert_eq!(count(&["--rule", "net"]), 1);
    assert_eq!(count(&["--by", "policy"]), 4);
    assert_eq!(count(&["--by", "human"]), 0);
    assert_eq!(count(&["--since", "10m"]), 4);
    assert_eq!(count(&["--since", "2100-01-01T00:00:00Z"]), 0);
    assert_eq!(
        count(&["--since", "10m", "--decision", "deny", "--rule", "read"]),
        0
    );
    // The last of them, in their order.
    let tail = good(&drill.run(&["--json", "audit", "tail", "-n", "2"]));
    let seqs: Vec<_> = tail.iter().map(|line| line["seq"].as_u64()).collect();
    assert_eq!(seqs, [Some(3), Some(4)]);
    let tail = good(&drill.run(&["--json", "audit", "tail", "-n", "1", "--rule", "net"]));
    assert_eq!(tail.len(), 1);
    assert_eq!(tail[0]["decision"], "deny");
    for (args, said) in [
        (["--decision", "ask"], "`allow` or `deny`"),
        (["--by", "me"], "human"),
        (["--since", "3-1"], "expected a duration"),
    ] {
        let all = [&["audit", "query"], &args[..]].concat();
        exits(&drill.run(&all), 2, &[said]);
    }
}

#[test]
fn an_export_has_what_is_on_record() {
    let drill = Drill::new(POOL);
    assert_eq!(drill.run(&["run", PROMPT]).code, Some(0));
    let lines = good(&drill.run(&["audit", "export"]));
    assert_eq!(lines.len(), 3);
    let zeros = "0".repeat(64);
    let mut before = Value::from(zeros);
    for line in &lines {
        assert_eq!(line["prev_hash"], before, "chained");
        before = line["hash"].clone();
        assert_eq!(line["turn"], 1);
        assert_eq!(
            (&line["pool"], &line["format"]),
            (&"demo".into(), &1.into())
        );
        assert_eq!(line["policy"]["name"], "developer");
        assert_eq!(line["policy"]["sha256"].as_str().map(str::len), Some(64));
        assert!(line["eval_us"].is_u64() && line["request_id"].is_string());
        let at = &line["facts"]["at"];
        assert!(
            at["workspace"]
                .as_str()
                .is_some_and(|path| path.starts_with('/'))
        );
        assert_eq!(at["from"][0], at["workspace"]);
    }
    let denied = &lines[2];
    assert_eq!(denied["tool"], "bash");
    assert_eq!(denied["input"]["command"], "curl https://example.com");
    assert_eq!(
        (&denied["decision"], &denied["by"]),
        (&"deny".into(), &"policy".into())
    );
    assert_eq!(denied["rules"][0], "net");
    assert_eq!(denied["facts"]["parts"][0]["words"][0], "curl");
}

#[test]
fn the_log_has_the_head_at_start_and_stop_and_a_follower_sees_verdicts_come() {
    let drill = Drill::new(POOL);
    let mut running = up(&drill);
    assert_eq!(drill.run(&["run", "read README.md"]).code, Some(0));
    let mut follower = Running {
        child: drill
            .command(&["--json", "audit", "tail", "-n", "1", "--follow"])
            .stdout(fs::File::create(drill.path("follow.out")).expect("a file"))
            .spawn()
            .expect("marshal starts"),
    };
    // It follows from what it has shown on.
    eventually(LONG, "the follower is there", || {
        drill.log("follow.out").lines().count() == 1
    });
    // Beside a daemon that works, it is read and proved.
    assert_eq!(drill.run(&["run", PROMPT]).code, Some(0));
    assert_eq!(head(&drill).len(), 64);
    eventually(LONG, "the follower has all", || {
        drill.log("follow.out").lines().count() == 4
    });
    follower.signal("TERM");
    follower.wait(LONG);
    let last = head(&drill);
    running.signal("TERM");
    eventually(LONG, "the daemon ends", || {
        running.child.try_wait().expect("wait").is_some()
    });
    let log = drill.log("stderr.log");
    assert!(log.matches("audit head").count() >= 2, "{log}");
    assert!(log.contains(&last), "{log}");
    assert_eq!(
        drill.run(&["audit", "verify", "--head", &last]).code,
        Some(0)
    );
}

#[test]
fn what_an_agent_wrote_cannot_act_on_a_terminal_by_audit() {
    let drill = Drill::new(POOL);
    drill.run(&["run", "read x\u{1b}]0;t\u{7}\u{202e}y"]);
    for args in [&["audit", "tail"][..], &["audit", "query"]] {
        let ran = drill.run(args);
        assert_eq!(ran.code, Some(0), "{}", ran.all());
        assert!(
            !ran.stdout.chars().any(acts_on_a_terminal),
            "{:?}",
            ran.stdout
        );
        assert!(ran.stdout.lines().count() == 1, "{}", ran.all());
    }
}

#[test]
fn without_a_journal_audit_says_so_and_makes_none() {
    let drill = Drill::new(POOL);
    for args in [
        &["audit", "verify"][..],
        &["audit", "tail"],
        &["audit", "export"],
    ] {
        exits(&drill.run(args), 2, &["there is no journal in"]);
    }
    assert!(!drill.state().exists());
}
