//! A supervisor is killed, or stopped in an orderly way, at random moments of a running load, and
//! started again each time; what the journal says and what the children saw must agree at every one
//! of them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write as _;
use std::fs;
use std::process::Stdio;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use rusqlite::Connection;
use serde_json::Value;

use crate::drill::{Drill, Running, count, eventually};

const ATTEMPTS: u32 = 3;

/// One pool for each way to treat a crash.
fn pools() -> String {
    let mut text = String::new();
    for (name, size, attempts, on_crash) in [
        ("retry", 3, ATTEMPTS, "retry"),
        ("report", 1, 1, "report"),
        ("resume", 1, 1, "resume"),
    ] {
        let session = match name {
            "resume" => "session = \"slot\"\nresume_args = [\"--resume\", \"{session}\"]\n",
            _ => "",
        };
        let _ = write!(
            text,
            r#"
[pool.{name}]
size      = {size}
command   = ["marshal", "script-agent", "--dialect", "scaiflux", "--ledger", "ledger.jsonl"]
policy    = "cautious"
attempts  = {attempts}
workspace = {{ path = "project", mode = "copy" }}
restart   = {{ budget = 1000, base = "10ms", max = "50ms", on_crash = "{on_crash}" }}
stop      = {{ goodbye = "300ms", eof = "300ms", int = "300ms", term = "300ms" }}
env       = {{ set = {{ DRILL = "MARK" }} }}
{session}"#
        );
    }
    text
}

/// A load whose task ids no other load has: writes, which ask and are allowed, a denied command, a
/// few crashes.
fn load(drill: &Drill, number: usize, random: &mut StdRng) -> String {
    let mut text = String::new();
    for task in 0..30 {
        let id = format!("l{number}-{task}");
        let pause = random.random_range(0..300);
        let prompt = match random.random_range(0..12) {
            0 => format!("write {id}.txt x\ncrash"),
            1 => format!("run curl https://example.com/{id}"),
            _ => format!("write {id}.txt x\nsleep {pause}ms\nwrite {id}.more.txt y\nsay done"),
        };
        let pool = ["retry", "retry", "retry", "report", "resume"][random.random_range(0..5)];
        let line = serde_json::json!({"id": id, "pool": pool, "prompt": prompt});
        let _ = writeln!(text, "{line}");
    }
    let name = format!("load-{number}.jsonl");
    fs::write(drill.path(&name), text).expect("a load");
    name
}

/// What a task's row says once it is over.
type End = (String, i64, Option<String>);

/// What must hold at every moment.
struct Invariants {
    /// The ends that were seen: none may change.
    ends: HashMap<(String, String), End>,
}

fn rows<T>(
    database: &Connection,
    query: &str,
    read: impl FnMut(&rusqlite::Row<'_>) -> rusqlite::Result<T>,
) -> Vec<T> {
    let mut statement = database.prepare(query).expect(query);
    let rows = statement.query_map([], read).expect(query);
    rows.collect::<Result<_, _>>().expect(query)
}

impl Invariants {
    fn check(&mut self, drill: &Drill) {
        drill.assert_dense();
        let proved = drill.run(&["audit", "verify"]);
        assert_eq!(proved.code, Some(0), "{}", proved.all());
        let database = drill.database();
        self.ends_stay(&database);
        verdicts(&database);
        turns(&database, false);
        children(drill, &database);
    }

    fn ends_stay(&mut self, database: &Connection) {
        let query = "SELECT run, id, outcome, ended_at_us, result, attempts, pool FROM tasks \
                     WHERE state = 'ended'";
        let ended = rows(database, query, |row| {
            let key: (String, String) = (row.get(0)?, row.get(1)?);
            let end: End = (row.get(2)?, row.get(3)?, row.get(4)?);
            Ok((key, end, row.get::<_, u32>(5)?, row.get::<_, String>(6)?))
        });
        for (key, end, attempts, pool) in ended {
            // The first crash is not counted.
            let most = if pool == "retry" { ATTEMPTS + 1 } else { 1 };
            assert!(attempts <= most, "{key:?}: {attempts} attempts");
            assert!(end.2.is_some(), "{key:?} has a report");
            if let Some(seen) = self.ends.get(&key) {
                assert_eq!(*seen, end, "{key:?} ended twice");
            }
            self.ends.insert(key, end);
        }
    }
}

/// No verdict is doubled, and each belongs to one request.
fn verdicts(database: &Connection) {
    let doubled = "SELECT json_extract(body, '$.request'), count(*) FROM events \
                   WHERE kind = 'permission_decided' GROUP BY 1 HAVING count(*) > 1";
    let doubled = rows(database, doubled, |row| row.get::<_, String>(0));
    assert_eq!(doubled, [""; 0], "verdicts twice");
    let decided = "SELECT count(*) FROM events WHERE kind = 'permission_decided'";
    let linked = "SELECT count(*) FROM permission_requests WHERE link IS NOT NULL";
    let count = |query| rows(database, query, |row| row.get::<_, i64>(0))[0];
    assert_eq!(
        count(decided),
        count(linked),
        "a verdict is an audit record"
    );
}

/// Prompts and ends of turns take turns in each session; `all_over`: none is open.
fn turns(database: &Connection, all_over: bool) {
    let query = "SELECT session, kind FROM events \
                 WHERE kind IN ('prompt_accepted', 'turn_ended') ORDER BY session, seq";
    let mut open: BTreeMap<String, bool> = BTreeMap::new();
    for (session, kind) in rows(database, query, |row| {
        Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?))
    }) {
        let is_open = open.entry(session.clone()).or_default();
        assert_ne!(
            *is_open,
            kind == "prompt_accepted",
            "{session}: {kind} twice"
        );
        *is_open = kind == "prompt_accepted";
    }
    if all_over {
        let left: Vec<_> = open.into_iter().filter(|(_, is_open)| *is_open).collect();
        assert_eq!(left, [], "prompts without an end");
    }
}

/// What the children saw and did is what the journal allowed: prompts that it had accepted, files
/// that it had a verdict for.
fn children(drill: &Drill, database: &Connection) {
    let query = "SELECT session, json_extract(body, '$.text'), (SELECT \
                 json_extract(ends.body, '$.outcome') FROM events AS ends \
                 WHERE ends.session = events.session AND ends.kind = 'turn_ended' \
                 AND ends.seq > events.seq ORDER BY ends.seq LIMIT 1) \
                 FROM events WHERE kind = 'prompt_accepted' ORDER BY session, seq";
    let mut accepted: BTreeMap<String, Vec<(String, bool)>> = BTreeMap::new();
    for (session, text, outcome) in rows(database, query, |row| {
        let outcome: Option<String> = row.get(2)?;
        Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?, outcome))
    }) {
        let is_sure = outcome.is_some_and(|outcome| outcome != "lost" && outcome != "cancelled");
        accepted.entry(session).or_default().push((text, is_sure));
    }
    let mut allowed = database
        .prepare(
            "SELECT count(*) FROM permission_requests WHERE session = ?1 AND decision = 'allow' \
             AND link IS NOT NULL AND json_extract(input, '$.path') = ?2",
        )
        .expect("approvals");
    for entry in fs::read_dir(drill.state().join("copies"))
        .expect("copies")
        .flatten()
    {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.contains(',') || name.starts_with('.') {
            continue;
        }
        let text = fs::read_to_string(entry.path().join("ledger.jsonl")).unwrap_or_default();
        let ledger = text
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok());
        let received: Vec<String> = ledger
            .filter(|line: &Value| line["kind"] == "prompt")
            .map(|line| line["text"].as_str().expect("a text").to_owned())
            .collect();
        received_is_accepted(
            &name,
            &received,
            accepted.get(&name).map_or(&[], Vec::as_slice),
        );
        for file in fs::read_dir(entry.path()).expect("a copy").flatten() {
            let file = file.file_name().to_string_lossy().into_owned();
            if file
                .strip_prefix('l')
                .is_some_and(|rest| rest.contains('-'))
            {
                let verdicts: i64 = allowed
                    .query_row([&name, &file], |row| row.get(0))
                    .expect("approvals");
                assert_eq!(verdicts, 1, "{name}: {file} was written without a verdict");
            }
        }
    }
}

/// A child received no prompt that was not accepted, none twice, and all whose turn it ended.
fn received_is_accepted(session: &str, received: &[String], accepted: &[(String, bool)]) {
    // From the end: a prompt that was not written is accepted again, and it is the later one that arrived.
    let mut received = received.iter().rev().peekable();
    for (text, is_sure) in accepted.iter().rev() {
        let arrived = received.next_if_eq(&text).is_some();
        assert!(arrived || !is_sure, "{session}: {text:?} was not received");
    }
    assert_eq!(received.next(), None, "{session}: not accepted, or twice");
}

/// The journal, if a commit ever came to it.
fn journal(drill: &Drill) -> Option<Connection> {
    let file = drill.state().join("journal.db");
    let version = |database: &Connection| -> i64 {
        let version = database.pragma_query_value(None, "user_version", |row| row.get(0));
        version.expect("a version")
    };
    let found = file.exists().then(|| drill.database());
    found.filter(|database| version(database) != 0)
}

/// Whether a run has no end, or a task of one has none.
fn unfinished(drill: &Drill) -> bool {
    let query = "SELECT run FROM runs WHERE command <> 'conversation' AND (ended_at_us IS NULL \
                 OR run IN (SELECT run FROM tasks WHERE state <> 'ended'))";
    journal(drill).is_some_and(|database| {
        let runs: Vec<String> = rows(&database, query, |row| row.get(0));
        !runs.is_empty()
    })
}

#[test]
fn a_supervisor_killed_at_any_moment_and_continued_loses_and_doubles_nothing() {
    let given = std::env::var("MARSHAL_TEST_SEED").ok();
    let seed = given.map_or_else(rand::random, |seed| seed.parse().expect("a number"));
    println!("MARSHAL_TEST_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let drill = Drill::new(&pools());
    let mut invariants = Invariants {
        ends: HashMap::new(),
    };
    let mut loads = 0;
    let mut in_the_middle = 0;
    for kill in 1..=count(20) {
        let load_name;
        let args = if !unfinished(&drill) {
            loads += 1;
            load_name = load(&drill, loads, &mut random);
            vec!["run", load_name.as_str()]
        } else if random.random_range(0..4) == 0 {
            vec!["up"]
        } else {
            vec!["run", "--continue"]
        };
        let mut running = drill.start(&args);
        // Every other run has begun its work by then, however slow its start is.
        if kill % 2 == 0 && args[0] == "run" {
            eventually(Duration::from_secs(60), "tasks are given out", || {
                drill.log("stderr.log").contains("assigned to")
                    || running.child.try_wait().expect("wait").is_some()
            });
        }
        // From before the first look at the journal to the middle of the work.
        std::thread::sleep(Duration::from_millis(random.random_range(0..1400)));
        running.child.kill().expect("kill -9");
        let _ = running.child.wait();
        eventually(Duration::from_secs(20), "no agent is left", || {
            drill.agents().is_empty()
        });
        // It may not have come to its first commit.
        if journal(&drill).is_none() {
            continue;
        }
        println!("kill {kill}: {args:?}");
        in_the_middle += usize::from(unfinished(&drill));
        invariants.check(&drill);
    }
    assert!(in_the_middle > 5, "{in_the_middle} kills left something");
    // One load more that nobody kills: the last kill may have come between a run's last task and
    // the removal of its homes, which is then for the next start.
    if !unfinished(&drill) {
        loads += 1;
        let name = load(&drill, loads, &mut random);
        let ran = drill.run(&["run", &name]);
        assert!(matches!(ran.code, Some(0 | 1)), "{}", ran.all());
        invariants.check(&drill);
    }
    while unfinished(&drill) {
        let ran = drill.run(&["run", "--continue", "--results", "results.jsonl"]);
        assert!(matches!(ran.code, Some(0 | 1)), "{}", ran.all());
        assert_eq!(drill.results("results.jsonl").len(), 30, "{}", ran.all());
        invariants.check(&drill);
    }
    let database = drill.database();
    turns(&database, true);
    // A load whose supervisor was killed before it had taken it in was never accepted.
    let runs = rows(&database, "SELECT count(*) FROM runs", |row| {
        row.get::<_, u32>(0)
    })[0];
    let runs = usize::try_from(runs).expect("few");
    assert!((1..=loads).contains(&runs), "{runs} of {loads}");
    assert_eq!(invariants.ends.len(), 30 * runs, "every task ended");
    // A session that a daemon gave to a slot is kept for the next one, and nothing else is.
    let open = "SELECT session, task IS NULL FROM sessions WHERE ended_at_us IS NULL";
    let open: BTreeMap<String, bool> = rows(&database, open, |row| Ok((row.get(0)?, row.get(1)?)))
        .into_iter()
        .collect();
    assert!(open.values().all(|is_of_slot| *is_of_slot), "{open:?}");
    for home in fs::read_dir(drill.state().join("homes"))
        .expect("homes")
        .flatten()
    {
        let name = home.file_name().to_string_lossy().into_owned();
        assert!(open.contains_key(&name), "the home {name} is left");
    }
}

/// Starts a daemon, and returns when it takes orders.
fn daemon(drill: &Drill) -> Running {
    let daemon = drill.start(&["up"]);
    drill.address();
    eventually(Duration::from_secs(60), "the daemon takes orders", || {
        drill.run(&["ls"]).code == Some(0)
    });
    daemon
}

#[test]
fn a_daemon_stopped_at_any_moment_keeps_all_that_it_took_in() {
    let given = std::env::var("MARSHAL_TEST_SEED").ok();
    let seed = given.map_or_else(rand::random, |seed| seed.parse().expect("a number"));
    println!("MARSHAL_TEST_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    // Too short for most turns of that pool: they are interrupted.
    let pools = pools().replacen("stop      = { ", "stop      = { drain = \"0s\", ", 1);
    let drill = Drill::with_supervisor(&pools, "pause_after_denied = 0");
    let mut invariants = Invariants {
        ends: HashMap::new(),
    };
    let (mut loads, mut in_the_middle) = (0, 0);
    for stop in 1..=count(5) {
        let mut running = daemon(&drill);
        let client = (!unfinished(&drill)).then(|| {
            loads += 1;
            let name = load(&drill, loads, &mut random);
            let mut client = drill.command(&["run", "--quiet", &name]);
            let client = client.stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
            eventually(Duration::from_secs(60), "the load is taken in", || {
                unfinished(&drill)
            });
            client.expect("a client")
        });
        std::thread::sleep(Duration::from_millis(random.random_range(0..1200)));
        if random.random_range(0..4) == 0 {
            let ran = drill.run(&["stop", "--now"]);
            assert_eq!(ran.code, Some(0), "{}", ran.all());
        } else {
            running.signal("TERM");
        }
        assert_eq!(
            running.wait(Duration::from_secs(60)),
            Some(0),
            "stop {stop}"
        );
        assert_eq!(drill.agents(), BTreeSet::new(), "no agent is left");
        let is_left = unfinished(&drill);
        if let Some(client) = client {
            let told = client.wait_with_output().expect("the client ends");
            let told = String::from_utf8_lossy(&told.stderr).into_owned();
            let says_so = told.contains("go on when the supervisor is started again");
            assert_eq!(says_so, is_left, "{told}");
        }
        in_the_middle += usize::from(is_left);
        invariants.check(&drill);
    }
    assert!(in_the_middle > 2, "{in_the_middle} stops left something");
    let mut running = daemon(&drill);
    eventually(Duration::from_secs(120), "all is done", || {
        !unfinished(&drill)
    });
    running.signal("TERM");
    assert_eq!(running.wait(Duration::from_secs(60)), Some(0));
    invariants.check(&drill);
    let database = drill.database();
    turns(&database, true);
    assert_eq!(invariants.ends.len(), 30 * loads, "every task ended");
    // Nothing was given up because of a stop.
    let given_up = "SELECT id || ' ' || outcome || ': ' || detail FROM tasks \
                    WHERE outcome = 'skipped' OR outcome = 'cancelled' AND pool = 'retry'";
    let given_up: Vec<String> = rows(&database, given_up, |row| row.get(0));
    assert_eq!(given_up, [""; 0]);
    // A prompt was sent again only after a crash or an interrupted turn.
    let again = "SELECT outcome FROM (SELECT json_extract(events.body, '$.outcome') AS outcome, \
                 row_number() OVER (PARTITION BY sessions.run, sessions.task \
                 ORDER BY events.at_us DESC) AS place FROM events \
                 JOIN sessions ON sessions.session = events.session \
                 WHERE kind = 'turn_ended' AND sessions.task IS NOT NULL) WHERE place > 1";
    let again: Vec<String> = rows(&database, again, |row| row.get(0));
    assert!(
        again.iter().any(|outcome| outcome == "cancelled"),
        "{again:?}"
    );
    let odd = again
        .iter()
        .filter(|outcome| !["lost", "cancelled"].contains(&outcome.as_str()));
    assert_eq!(odd.count(), 0, "{again:?}");
}
