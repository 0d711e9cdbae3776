//! A night in small: thirty tasks by four agents that other people wrote, a provider that limits requests,
//! a crash of an agent, a killed supervisor and a budget that is reached. Every line of the morning's report
//! is compared with the journal.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use rusqlite::Connection;
use serde_json::{Value, json};

use crate::agents::bench::{Model, PATIENCE, alone, tools};
use crate::agents::five::{CODEX, GEMINI, OPENCODE};
use crate::agents::unattended::git;
use crate::drill::{Drill, eventually, is_alive};

/// The agents, and the route of each.
const AGENTS: [(&str, &str); 4] = [
    ("claude-code", "anthropic"),
    (CODEX.name, CODEX.route),
    (OPENCODE.name, OPENCODE.route),
    (GEMINI.name, GEMINI.route),
];
const TASKS: usize = 30;
/// The task whose agent is killed twice.
const CRASHES: usize = 1;
/// Tasks whose provider limits requests at first.
const LIMITED: [usize; 2] = [4, 5];
/// Tasks that want what the policy denies.
const DENIED: [usize; 4] = [3, 7, 12, 17];
/// Less than all tasks cost.
const BUDGET: &str = "1.10";

fn drill(model: &Model) -> Drill {
    let mut text = String::new();
    for route in ["anthropic", "openai", "gemini"] {
        let _ = write!(
            text,
            "\n[route.{route}]\nupstream = \"{}\"\nsecret = \"file:key\"\n",
            model.address
        );
    }
    for (name, _) in AGENTS {
        let dir = tools().join("five").join(name).display().to_string();
        let _ = write!(
            text,
            r#"
[pool.{name}]
agent     = "{name}"
agent_dir = {dir:?}
policy    = "autonomous"
workspace = {{ path = "project", mode = "worktree" }}
timeouts  = {{ handshake = "4m" }}
restart   = {{ base = "10ms", max = "50ms" }}
# A task that still waits for its provider when the budget is reached has failed.
rate_limit = {{ pause = "1s" }}
env       = {{ set = {{ DRILL = "MARK" }} }}
"#
        );
    }
    let drill = Drill::new(&text);
    fs::write(drill.path("key"), &model.key).expect("a key");
    let own = fs::Permissions::from_mode(0o600);
    fs::set_permissions(drill.path("key"), own).expect("its mode");
    let top = drill.workspace();
    git(&top, &["init", "-q", "-b", "main"]);
    git(&top, &["add", "."]);
    git(&top, &["commit", "-qm", "first"]);
    let mut lines = String::new();
    for number in 0..TASKS {
        let (pool, _) = AGENTS[number % AGENTS.len()];
        let line = json!({ "id": format!("t{number:02}"), "pool": pool, "prompt": prompt(number) });
        let _ = writeln!(lines, "{line}");
    }
    fs::write(drill.path("night.jsonl"), lines).expect("tasks");
    drill
}

fn prompt(number: usize) -> String {
    let work = format!(
        "RUN: touch made-{number} && git add . && git commit -qm made-{number}\nSAY: made {number}"
    );
    match number {
        CRASHES => "RUN: sleep 347\nSAY: never".to_owned(),
        _ if LIMITED.contains(&number) => format!("FAIL: 429 x2\n{work}"),
        _ if DENIED.contains(&number) => "RUN: git push origin main".to_owned(),
        _ => work,
    }
}

fn count(database: &Connection, sql: &str) -> u64 {
    let counted = database.query_row(sql, [], |row| row.get::<_, i64>(0));
    counted.expect(sql).unsigned_abs()
}

fn ended(drill: &Drill) -> u64 {
    count(
        &drill.database(),
        "SELECT count(*) FROM tasks WHERE state = 'ended'",
    )
}

/// Everything that lives beside the `sleep` of the task that crashes.
fn beside_the_sleep(drill: &Drill) -> BTreeSet<u32> {
    let mut found = BTreeSet::new();
    eventually(PATIENCE, "the agent that crashes is at work", || {
        let inside = crate::agents::bench::inside(&drill.agents());
        let asleep = inside
            .iter()
            .find(|pid| crate::agents::bench::sleeps(**pid, "347"));
        let Some(asleep) = asleep else { return false };
        let space = |pid: u32| fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
        let of_it = space(*asleep);
        found = inside
            .iter()
            .copied()
            .filter(|pid| of_it.is_some() && space(*pid) == of_it)
            .collect();
        !found.is_empty()
    });
    found
}

fn kill_agent(drill: &Drill) {
    let found = beside_the_sleep(drill);
    for pid in &found {
        // The others go with the first one.
        let pid = i32::try_from(*pid)
            .ok()
            .and_then(rustix::process::Pid::from_raw);
        let _ = rustix::process::kill_process(pid.expect("a pid"), rustix::process::Signal::KILL);
    }
    eventually(PATIENCE, "it is gone", || {
        !found.iter().any(|pid| is_alive(*pid))
    });
}

#[test]
fn the_morning_tells_what_the_night_was() {
    let _alone = alone();
    let model = Model::start();
    let drill = drill(&model);
    let mut command = drill.command(&["run", "--max-cost", BUDGET, "--jobs", "4", "night.jsonl"]);
    let log = |name: &str| fs::File::create(drill.path(name)).expect("a log");
    command.stdout(log("first.out")).stderr(log("first.err"));
    let child = command.spawn().expect("marshal starts");
    let mut running = crate::drill::Running { child };
    // Once with its retry, and once for good.
    kill_agent(&drill);
    kill_agent(&drill);
    let pools = "SELECT count(DISTINCT pool) FROM tasks WHERE state = 'ended'";
    eventually(PATIENCE, "each agent has ended a task", || {
        count(&drill.database(), pools) == AGENTS.len() as u64
    });
    running.signal("KILL");
    running.wait(PATIENCE);
    eventually(PATIENCE, "no agent is left", || drill.agents().is_empty());
    let before = ended(&drill);
    let continued = drill.run(&["run", "--continue"]);
    assert_eq!(continued.code, Some(1), "{}", continued.all());
    assert!(ended(&drill) > before, "{}", continued.all());
    assert!(
        continued.all().contains("max_cost") || continued.all().contains("--max-cost"),
        "the budget is reached: {}",
        continued.all()
    );
    let text = drill.run(&["report"]);
    assert_eq!(text.code, Some(0), "{}", text.all());
    let page: Value = {
        let ran = drill.run(&["--json", "report"]);
        serde_json::from_str(&ran.stdout).expect("JSON")
    };
    compare(&drill, &page, &text.stdout);
    // What was done can be had, also where the supervisor was killed before it looked.
    for row in rows(&drill.database()) {
        if row.outcome != "done" {
            continue;
        }
        let shown = drill.run(&["diff", &row.id]);
        let made = format!("made-{}", row.id[1..].trim_start_matches('0'));
        assert!(
            shown.stdout.contains(&made) || row.id == "t00",
            "{} {}",
            row.id,
            shown.all()
        );
        let landed = drill.run(&["land", &row.id]);
        assert_eq!(landed.code, Some(0), "{} {}", row.id, landed.all());
    }
}

/// A task as the journal has it.
struct Row {
    id: String,
    outcome: String,
    attempts: u64,
    session: Option<String>,
    prompt: String,
    denied: u64,
    nanodollars: u64,
}

fn rows(database: &Connection) -> Vec<Row> {
    let mut query = database
        .prepare(
            "SELECT id, outcome, attempts, session, prompt, \
             (SELECT count(*) FROM permission_requests p JOIN sessions s ON s.session = p.session \
              WHERE s.task = tasks.id AND p.decision = 'deny'), \
             (SELECT coalesce(sum(spent.cost), 0) FROM spent JOIN sessions s ON s.session = spent.name \
              WHERE period = 'session' AND s.task = tasks.id) \
             FROM tasks WHERE state = 'ended' ORDER BY place",
        )
        .expect("a query");
    let number = |row: &rusqlite::Row<'_>, place| row.get::<_, i64>(place).map(i64::unsigned_abs);
    let rows = query.query_map([], |row| {
        Ok(Row {
            id: row.get(0)?,
            outcome: row.get(1)?,
            attempts: number(row, 2)?,
            session: row.get(3)?,
            prompt: row.get(4)?,
            denied: number(row, 5)?,
            nanodollars: number(row, 6)?,
        })
    });
    let rows = rows.expect("rows").map(|row| row.expect("a row"));
    rows.collect()
}

/// Nanodollars of an amount of the page.
fn nano(usd: &Value) -> u64 {
    let dollars = usd.as_f64().unwrap_or(0.0) * 1e9;
    format!("{dollars:.0}").parse().expect("an amount")
}

fn compare(drill: &Drill, page: &Value, text: &str) {
    let database = drill.database();
    let rows = rows(&database);
    assert_eq!(rows.len(), TASKS, "every task has an end: {text}");
    let mut outcomes: BTreeMap<&str, u64> = BTreeMap::new();
    for row in &rows {
        *outcomes.entry(&row.outcome).or_default() += 1;
    }
    assert_eventful(&database, &rows, &outcomes, text);
    compare_document(&rows, page);
    compare_summary(&database, &rows, &outcomes, text);
    compare_tasks(&rows, text);
}

/// What the night was made for has happened.
fn assert_eventful(
    database: &Connection,
    rows: &[Row],
    outcomes: &BTreeMap<&str, u64>,
    text: &str,
) {
    let of = |number: usize| &rows[number];
    assert_eq!(of(CRASHES).outcome, "lost", "{text}");
    assert_eq!(of(CRASHES).attempts, 2, "one retry: {text}");
    assert!(
        outcomes.get("done").is_some_and(|done| *done >= 5),
        "{text}"
    );
    assert!(
        outcomes.get("denied").is_some_and(|denied| *denied >= 2),
        "{text}"
    );
    for number in LIMITED {
        assert_eq!(of(number).outcome, "done", "t{number:02}: {text}");
    }
    let pools = "SELECT count(DISTINCT pool) FROM tasks WHERE attempts > 0";
    assert_eq!(count(database, pools), AGENTS.len() as u64, "{text}");
    let unstarted = rows.iter().filter(|row| row.attempts == 0).count();
    assert!(unstarted > 0, "the budget stopped some: {text}");
}

/// The page as JSON, task by task.
fn compare_document(rows: &[Row], page: &Value) {
    let told = page["tasks"].as_array().expect("a list");
    assert_eq!(told.len(), TASKS);
    for row in rows {
        let task = told.iter().find(|task| task["task"] == row.id.as_str());
        let task = task.unwrap_or_else(|| panic!("{} is missing: {page}", row.id));
        assert_eq!(task["outcome"], row.outcome.as_str(), "{task}");
        assert_eq!(task["attempts"], row.attempts, "{task}");
        assert_eq!(task["prompt"], row.prompt.as_str(), "{task}");
        assert_eq!(task["session"].as_str(), row.session.as_deref(), "{task}");
        assert_eq!(task["denied"], row.denied, "{task}");
        assert_eq!(nano(&task["cost_usd"]), row.nanodollars, "{task}");
    }
    let sum: u64 = rows.iter().map(|row| row.nanodollars).sum();
    assert!(sum > 0);
    assert_eq!(nano(&page["runs"][0]["cost_usd"]), sum, "{page}");
    assert_eq!(nano(&page["spent"]["total"]["cost_usd"]), sum, "{page}");
    assert_eq!(page["runs"].as_array().map(Vec::len), Some(1), "{page}");
}

/// The lines above the tasks, for a person.
fn compare_summary(
    database: &Connection,
    rows: &[Row],
    outcomes: &BTreeMap<&str, u64>,
    text: &str,
) {
    let attempts: u64 = rows.iter().map(|row| row.attempts).sum();
    let retried = rows.iter().filter(|row| row.attempts > 1).count();

    let line = |begin: &str| {
        let found = text.lines().find(|line| line.starts_with(begin));
        found.unwrap_or_else(|| panic!("no {begin}: {text}"))
    };
    let words: Vec<_> = outcomes
        .iter()
        .map(|(word, count)| format!("{count} {word}"))
        .collect();
    let words = words.join(", ");
    assert_eq!(
        line("TASKS"),
        format!("TASKS      {TASKS} ended: {words}; 0 running or waiting")
    );
    assert!(
        line("RETRIES").starts_with(&format!(
            "RETRIES    {attempts} attempts, {retried} tasks more than once, "
        )),
        "{text}"
    );
    let cost = dollars(rows.iter().map(|row| row.nanodollars).sum());
    assert!(
        line("COST").starts_with(&format!("COST       {cost}, ")),
        "{text}"
    );
    let run = line("RUN ");
    assert!(run.ends_with(&format!("{words}  {cost}")), "{run}");
    assert_eq!(line("WAITS"), "WAITS      nothing waits for a person");
    for (decision, by) in [("allow", "policy"), ("deny", "policy")] {
        let made = count(
            database,
            &format!(
                "SELECT count(*) FROM permission_requests WHERE decision = '{decision}' \
                 AND decided_by = '{by}'"
            ),
        );
        let word = format!("{made} {decision} by {by}");
        assert!(
            made == 0 || line("VERDICTS").contains(&word),
            "{word}: {text}"
        );
    }
    let mut query = database
        .prepare("SELECT pool, class, count(*) FROM slot_failures GROUP BY pool, class")
        .expect("a query");
    let crashes = query.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)));
    let crashes: Vec<(String, String, i64)> = crashes
        .expect("rows")
        .map(|row| row.expect("a row"))
        .collect();
    assert!(!crashes.is_empty(), "{text}");
    for (pool, class, times) in crashes {
        assert!(
            text.contains(&format!("\n  {times}  {pool} {class}: ")),
            "{times} {pool} {class}: {text}"
        );
    }
}

/// The lines of each task, for a person.
fn compare_tasks(rows: &[Row], text: &str) {
    let (begun, unstarted): (Vec<&Row>, Vec<_>) =
        rows.iter().partition(|row| row.session.is_some());
    let not_begun = text
        .lines()
        .skip_while(|line| !line.contains(" not begun, "));
    let not_begun: String = not_begun.collect::<Vec<_>>().join("\n");
    for row in unstarted {
        assert!(not_begun.contains(&row.id), "{}: {text}", row.id);
    }
    let mut shown = 0;
    for row in &begun {
        let Some((_, block)) = text.split_once(&format!("\n  {}  ", row.id)) else {
            continue;
        };
        shown += 1;
        let block: Vec<&str> = block
            .lines()
            .enumerate()
            .take_while(|(place, line)| *place == 0 || line.starts_with("    "))
            .map(|(_, line)| line.trim())
            .collect();
        assert!(block[0].starts_with(&row.outcome), "{block:?}");
        assert_eq!(block[0].contains("attempts"), row.attempts > 1, "{block:?}");
        assert_eq!(
            block[0].contains(&dollars(row.nanodollars)),
            row.nanodollars > 0,
            "{block:?}"
        );
        let first = row.prompt.lines().next().expect("a prompt");
        assert_eq!(block[1], format!("prompt  {first}"), "{block:?}");
        let denied = block.iter().find(|line| line.starts_with("denied"));
        assert_eq!(denied.is_some(), row.denied > 0, "{block:?}");
        let next = block.iter().find(|line| line.starts_with("next"));
        if let (Some(next), Some(session)) = (next, &row.session) {
            let short = &session[session.len() - 8..];
            assert!(next.contains(short), "{block:?}");
        }
    }
    assert_eq!(shown, begun.len().min(20), "{text}");
}

/// As the page writes an amount.
fn dollars(nano: u64) -> String {
    if nano >= 1_000_000_000 {
        let cents = (nano + 5_000_000) / 10_000_000;
        return format!("${}.{:02}", cents / 100, cents % 100);
    }
    let parts = (nano + 50_000) / 100_000;
    let text = format!("{parts:04}");
    let kept = text.trim_end_matches('0').len().max(2);
    format!("$0.{}", &text[..kept])
}
