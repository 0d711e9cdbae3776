//! Budgets as the whole program holds them: on real routes, in real turns, over a kill of the
//! supervisor; and runs with bounds, with a daemon and without one.

use std::collections::BTreeMap;
use std::fs;
use std::process::Child;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::drill::{Drill, Ran, eventually, metric};
use crate::fleet::approvals;
use crate::fleet::routes;
use crate::provider::{Provider, message};

const LONG: Duration = Duration::from_secs(60);

/// What one answer of [`message`] costs: 16 tokens read, 7 written.
const ANSWER: i64 = 23;

/// A pool of script agents under `cautious` with these budgets beside.
fn scripted(dialect: &str, keys: &str, budget: &str) -> Drill {
    let drill = Drill::new(&format!(
        r#"
[pool.demo]
command   = ["marshal", "script-agent", "--dialect", "{dialect}"]
dialect   = "{dialect}"
policy    = "own"
workspace = {{ path = "project", mode = "copy" }}
env       = {{ set = {{ DRILL = "MARK" }} }}
{keys}
[policy.own]
file = "own.toml"
"#
    ));
    let text =
        format!("schema = 1\nname = \"own\"\nextends = [\"cautious.toml\"]\n[budget]\n{budget}\n");
    fs::write(drill.path("own.toml"), text).expect("a policy");
    drill
}

fn outcomes(results: &[Value]) -> Vec<&str> {
    results
        .iter()
        .map(|item| item["outcome"].as_str().expect("an outcome"))
        .collect()
}

/// The verdicts on record, in their order.
fn audit(drill: &Drill) -> Vec<Value> {
    let ran = drill.run(&["--json", "audit", "query"]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    let lines = ran.stdout.lines();
    lines
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect()
}

fn spent(drill: &Drill, period: &str) -> i64 {
    let query = "SELECT coalesce(sum(counted_tokens), 0) FROM spent WHERE period = ?1";
    drill
        .database()
        .query_row(query, [period], |row| row.get(0))
        .expect("the table")
}

fn results(drill: &Drill, ran: &Ran) -> Vec<Value> {
    assert!(ran.code == Some(0) || ran.code == Some(1), "{}", ran.all());
    drill.results("r.jsonl")
}

#[test]
fn what_routes_count_stops_them_and_a_killed_supervisor_has_not_forgotten_it() {
    let provider = Provider::start(message);
    let keys = "budget = { day_tokens = 40, then = \"deny\" }\nsession = \"slot\"";
    let drill = routes::drill(&provider, keys);
    let mut daemon = drill.start(&["up"]);
    eventually(LONG, "ready", || drill.get("/readyz").0 == 200);
    let ran = drill.run(&["--json", "run", "first"]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    eventually(LONG, "the answer is on record", || {
        spent(&drill, "day") == ANSWER
    });
    let page = drill.get("/metrics").1;
    let left = metric(&page, "marshal_budget_remaining_ratio{pool=\"demo\"}");
    assert!(
        left.is_some_and(|left| (left - 17.0 / 40.0).abs() < 0.01),
        "{left:?}"
    );

    daemon.signal("KILL");
    daemon.wait(LONG);
    let mut daemon = drill.start(&["up"]);
    eventually(LONG, "ready again", || drill.get("/readyz").0 == 200);
    // One more goes, because not all of it is spent; the next one is refused.
    let ran = drill.run(&["--json", "run", "second"]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    eventually(LONG, "both are on record", || {
        spent(&drill, "day") == 2 * ANSWER
    });
    assert_eq!(spent(&drill, "session"), 2 * ANSWER);
    let ran = drill.run(&["--json", "run", "third"]);
    assert_eq!(ran.code, Some(1), "{}", ran.all());
    assert!(ran.stdout.contains("the model said 402"), "{}", ran.all());
    assert_eq!(provider.got().len(), 2);
    let page = drill.get("/metrics").1;
    let refused = "marshal_route_refused_total{pool=\"demo\",route=\"own\",reason=\"budget\"}";
    assert_eq!(metric(&page, refused), Some(1.0));
    let expected = "marshal_budget_spent_total{pool=\"demo\",budget=\"day_tokens\"}";
    assert_eq!(metric(&page, expected), Some(1.0));

    daemon.signal("KILL");
    daemon.wait(LONG);
    // A run without a daemon goes on from the same amount.
    let ran = drill.run(&["--json", "run", "fourth"]);
    assert_eq!(ran.code, Some(1), "{}", ran.all());
    assert_eq!(provider.got().len(), 2, "{}", ran.all());
}

#[test]
fn a_model_without_a_price_does_not_pass_a_budget_of_cost() {
    let provider = Provider::start(message);
    let keys = "budget = { day_cost = 1 }\n[price.other]\ninput = 1\noutput = 1";
    let drill = routes::drill(&provider, keys);
    let ran = drill.run(&["--json", "run", "hello"]);
    assert_eq!(ran.code, Some(1), "{}", ran.all());
    assert!(ran.stdout.contains("the model said 402"), "{}", ran.all());
    assert_eq!(provider.got().len(), 0);
}

#[test]
fn a_runs_cost_ends_it_and_what_was_not_begun_is_skipped() {
    let provider = Provider::start(message);
    // 23 tokens cost 23 millionths of a dollar.
    let drill = routes::drill(&provider, "[price.\"m*\"]\ninput = 1\noutput = 1");
    let mut args = vec!["run", "--results", "r.jsonl", "--max-cost", "0.00004"];
    args.extend(["a", "b", "c", "d", "e"]);
    let ran = drill.run(&args);
    assert_eq!(ran.code, Some(1), "{}", ran.all());
    let results = results(&drill, &ran);
    let outcomes = outcomes(&results);
    assert_eq!(provider.got().len(), 2, "{outcomes:?}");
    let skipped: Vec<_> = results
        .iter()
        .filter(|item| item["outcome"] == "skipped")
        .collect();
    assert_eq!(skipped.len(), 3, "{outcomes:?}");
    for item in skipped {
        let why = item["detail"].as_str().expect("a reason");
        assert!(
            why.contains("--max-cost") && why.contains("$0.00004"),
            "{why}"
        );
    }
    let run: i64 = drill
        .database()
        .query_row("SELECT cost FROM spent WHERE period = 'run'", [], |row| {
            row.get(0)
        })
        .expect("the run's row");
    assert_eq!(run, 2 * ANSWER * 1_000);
}

#[test]
fn a_cost_that_only_its_agent_could_tell_is_warned_of_before_the_run() {
    // The script agent costs nothing, so another program has its place.
    let drill = Drill::new(&stranger("acp"));
    let warning = "warning: --max-cost may not be enforced for pool demo";
    let ran = drill.run(&["--quiet", "run", "--max-cost", "40", "say hi"]);
    assert!(ran.stderr.contains(warning), "{}", ran.all());
    let ran = drill.run(&["run", "--jobs", "1", "say hi"]);
    assert!(!ran.stderr.contains("--max-cost"), "{}", ran.all());
    let script = scripted("acp", "", "turn_tokens = 1000000");
    let ran = script.run(&["run", "--max-cost", "40", "say hi"]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    assert!(!ran.stderr.contains(warning), "{}", ran.all());
}

/// A pool whose program cannot be started.
fn stranger(dialect: &str) -> String {
    format!(
        "[pool.demo]\ncommand = [\"/workspace/none\"]\ndialect = \"{dialect}\"\nworkspace = {{ path = \"project\", mode = \"copy\" }}\n"
    )
}

/// Tokens need no price.
#[test]
fn a_runs_tokens_end_it_and_what_was_not_begun_is_skipped() {
    let provider = Provider::start(message);
    let drill = routes::drill(&provider, "session = \"task\"");
    let args = ["run", "--results", "r.jsonl", "--jobs", "1", "--max-tokens"];
    let ran = drill.run(&[&args[..], &["30", "a", "b", "c", "d"]].concat());
    assert_eq!(ran.code, Some(1), "{}", ran.all());
    // One answer is 23 tokens.
    assert_eq!(provider.got().len(), 2, "{}", ran.all());
    assert!(ran.all().contains("run --max-tokens"), "{}", ran.all());
    let skipped = results(&drill, &ran);
    let skipped = skipped.iter().filter(|row| row["outcome"] == "skipped");
    assert_eq!(skipped.count(), 2, "{}", ran.all());
}

#[test]
fn what_an_agent_said_too_much_pays_for_no_later_run() {
    let provider = Provider::start(message);
    let keys = "session = \"slot\"\n[price.\"m*\"]\ninput = 1\noutput = 1";
    let drill = routes::drill(&provider, keys);
    let _daemon = approvals::daemon(&drill);
    let ran = drill.run(&["run", "--max-cost", "1", "boast of much"]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    let mut args = vec!["run", "--results", "r.jsonl", "--max-cost", "0.00004"];
    args.extend(["a", "b", "c", "d"]);
    let ran = drill.run(&args);
    assert_eq!(ran.code, Some(1), "{}", ran.all());
    assert_eq!(provider.got().len(), 1 + 2, "{}", ran.all());
    let costs = || -> Vec<(i64, i64)> {
        let database = drill.database();
        let mut rows = database
            .prepare("SELECT cost, counted_cost FROM spent WHERE period = 'run' ORDER BY cost")
            .expect("the table");
        let rows = rows.query_map([], |row| Ok((row.get(0)?, row.get(1)?)));
        rows.expect("rows").map(|row| row.expect("a row")).collect()
    };
    let second = 2 * ANSWER * 1_000;
    eventually(LONG, "both runs are on record", || {
        let costs = costs();
        costs.len() == 2 && costs[0] == (second, second) && costs[1].0 >= 900_000_000
    });
}

#[test]
fn whoever_leaves_before_the_answer_begins_pays_for_what_it_asked() {
    let provider = Provider::start(|number, got, to| {
        if number == 0 {
            std::thread::sleep(Duration::from_secs(5));
        }
        message(number, got, to);
    });
    let keys = "budget = { day_tokens = 1000, then = \"deny\" }";
    let drill = routes::drill(&provider, keys);
    let mut args = vec!["run", "--jobs", "1", "--results", "r.jsonl"];
    args.extend(["leave 2000", "say something"]);
    let ran = drill.run(&args);
    assert_eq!(ran.code, Some(1), "{}", ran.all());
    assert_eq!(provider.got().len(), 1, "{}", ran.all());
    assert!(spent(&drill, "day") >= 2_000, "{}", spent(&drill, "day"));
    let ended = results(&drill, &ran);
    assert!(ended[1].to_string().contains("402"), "{ended:?}");
}

#[test]
fn a_cost_that_nobody_could_know_is_refused_at_the_start() {
    let drill = Drill::new(&stranger("scaiflux"));
    let ran = drill.run(&["run", "--max-cost", "40", "say hi"]);
    assert_eq!(ran.code, Some(2), "{}", ran.all());
    assert!(
        ran.all().contains("the cost of pool demo is unknown"),
        "{}",
        ran.all()
    );
    let ran = drill.run(&["run", "--until", "25:00", "say hi"]);
    assert_eq!(ran.code, Some(2), "{}", ran.all());
    assert!(
        ran.all().contains("expected a time of day"),
        "{}",
        ran.all()
    );
}

const WRITES: &str = "write a.txt x\nwrite b.txt y\nwrite c.txt z\nsay the end";

#[test]
fn more_than_a_turn_may_have_is_denied_and_named_on_record() {
    for dialect in approvals::DIALECTS {
        let drill = scripted(dialect, "", "allows_per_turn = 2\nthen = \"deny\"");
        let ran = drill.run(&["run", "--results", "r.jsonl", WRITES]);
        let results = results(&drill, &ran);
        assert_eq!(outcomes(&results), ["done"], "{}", ran.all());
        let audit = audit(&drill);
        let by: Vec<&str> = audit
            .iter()
            .filter_map(|item| item["by"].as_str())
            .collect();
        assert_eq!(by.len(), 3, "{audit:#?}");
        assert_eq!(by[2], "budget");
        assert_eq!(audit[2]["decision"], "deny");
        assert_eq!(
            audit[2]["rules"],
            serde_json::json!(["budget.allows_per_turn"])
        );
        assert_eq!(
            audit[2]["budget"],
            serde_json::json!({"allows": 2, "denies": 0})
        );
        assert_eq!(
            audit[0]["budget"],
            serde_json::json!({"allows": 0, "denies": 0})
        );
        let proved = drill.run(&["audit", "verify"]);
        assert_eq!(proved.code, Some(0), "{}", proved.all());
    }
}

#[test]
fn a_spent_budget_ends_the_turn_or_parks_the_slot_until_somebody_restarts_it() {
    let drill = scripted("scaiflux", "", "allows_per_turn = 1\nthen = \"interrupt\"");
    let ran = drill.run(&["run", "--results", "r.jsonl", WRITES, "say hi"]);
    let ended = results(&drill, &ran);
    let by_outcome: BTreeMap<_, _> = ended
        .iter()
        .map(|item| {
            (
                item["outcome"].as_str().expect("a word"),
                item["detail"].to_string(),
            )
        })
        .collect();
    assert!(
        by_outcome["refused"].contains("allows_per_turn"),
        "{}",
        ran.all()
    );
    assert!(by_outcome.contains_key("done"), "{}", ran.all());

    for scope in ["task", "slot"] {
        let keys = format!("session = \"{scope}\"");
        let drill = scripted("scaiflux", &keys, "allows_per_turn = 1\nthen = \"park\"");
        let _daemon = approvals::daemon(&drill);
        let ran = drill.run(&["run", "--results", "r.jsonl", WRITES, "say hi"]);
        let ended = results(&drill, &ran);
        let mut words = outcomes(&ended);
        words.sort_unstable();
        assert_eq!(words, ["refused", "skipped"], "{scope}: {}", ran.all());
        let park: (String, String) = drill
            .database()
            .query_row("SELECT class, reason FROM slot_parks", [], |row| {
                Ok((row.get(0)?, row.get(1)?))
            })
            .expect("a park");
        assert_eq!(park.0, "budget");
        assert!(park.1.contains("allows_per_turn"), "{}", park.1);
        assert!(drill.run(&["ls"]).all().contains("parked"));
        let ran = drill.run(&["restart", "demo/0"]);
        assert_eq!(ran.code, Some(0), "{}", ran.all());
        let ran = drill.run(&["run", "say hi again"]);
        assert_eq!(ran.code, Some(0), "{scope}: {}", ran.all());
    }
}

#[test]
fn denials_in_a_row_end_the_turn() {
    let drill = scripted("scaiflux", "", "denies_in_a_row = 2");
    let prompt =
        "run curl https://a.example\nrun curl https://b.example\nwrite a.txt x\nsay the end";
    let ran = drill.run(&["run", "--results", "r.jsonl", prompt]);
    let ended = results(&drill, &ran);
    assert_eq!(outcomes(&ended), ["denied"], "{}", ran.all());
    assert!(
        ended[0]["detail"].to_string().contains("denies_in_a_row"),
        "{}",
        ended[0]
    );
    assert_eq!(audit(&drill).len(), 2);
}

#[test]
fn a_person_may_allow_more_than_the_budget() {
    let drill = scripted("acp", "", "allows_per_turn = 1\nthen = \"ask\"");
    let _daemon = approvals::daemon(&drill);
    let mut client: Child =
        approvals::client(&drill, &["write a.txt x\nwrite b.txt y\nsay the end"]);
    let waiting = approvals::waiting(&drill, 1);
    assert_eq!(
        waiting[0]["rules"],
        serde_json::json!(["budget.allows_per_turn"]),
        "{waiting:?}"
    );
    let reported = approvals::answer(&drill, "approve", &waiting[0], &[]);
    assert_eq!(reported.code, Some(0), "{}", reported.all());
    assert!(client.wait().expect("the client").success());
    let audit = audit(&drill);
    assert_eq!(audit[1]["by"], "human", "{audit:#?}");
    assert_eq!(audit[1]["decision"], "allow");
}

#[test]
fn what_an_agent_says_of_its_tokens_ends_its_turn() {
    let drill = scripted("scaiflux", "", "turn_seconds = 1\nthen = \"interrupt\"");
    let ran = drill.run(&["run", "--results", "r.jsonl", "sleep 60s"]);
    let ended = results(&drill, &ran);
    assert_eq!(outcomes(&ended), ["refused"], "{}", ran.all());
    assert!(
        ended[0]["detail"].to_string().contains("turn_seconds"),
        "{}",
        ended[0]
    );
    // Sessions of this pool may say ten tokens: the second task finds them spent.
    let keys = "budget = { pool_tokens = 10, then = \"park\" }";
    let drill = scripted("scaiflux", keys, "turn_tokens = 1000000");
    let ran = drill.run(&[
        "run",
        "--results",
        "r.jsonl",
        "say one two three four five six seven eight nine ten eleven twelve",
        "say hi",
    ]);
    let ended = results(&drill, &ran);
    assert!(outcomes(&ended).contains(&"skipped"), "{}", ran.all());
    assert!(ran.code == Some(1), "{}", ran.all());
    let parked: String = drill
        .database()
        .query_row("SELECT reason FROM slot_parks", [], |row| row.get(0))
        .expect("a park");
    assert!(parked.contains("pool_tokens"), "{parked}");
}

/// Begins and ends of a run's tasks, in microseconds.
fn times(drill: &Drill) -> Vec<(i64, i64)> {
    let database = drill.database();
    let mut rows = database
        .prepare("SELECT begun_at_us, ended_at_us FROM tasks WHERE begun_at_us IS NOT NULL ORDER BY begun_at_us")
        .expect("tasks");
    rows.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))
        .expect("rows")
        .collect::<Result<_, _>>()
        .expect("times")
}

fn most_at_once(times: &[(i64, i64)]) -> usize {
    let at = |moment: i64| {
        times
            .iter()
            .filter(|(begun, ended)| *begun <= moment && moment < *ended)
            .count()
    };
    times.iter().map(|(begun, _)| at(*begun)).max().unwrap_or(0)
}

#[test]
fn no_more_of_a_runs_tasks_are_worked_at_once_than_it_says() {
    for with_daemon in [false, true] {
        let drill = scripted("scaiflux", "size = 4", "turn_tokens = 1000000");
        let _daemon = with_daemon.then(|| approvals::daemon(&drill));
        let mut args = vec!["run", "--jobs", "2"];
        // Two that meet, however long a start takes, and others that would begin beside them.
        args.extend(["sleep 4s"; 2]);
        args.extend(["sleep 200ms"; 4]);
        let ran = drill.run(&args);
        assert_eq!(ran.code, Some(0), "{}", ran.all());
        let times = times(&drill);
        assert_eq!(times.len(), 6);
        assert_eq!(most_at_once(&times), 2, "{times:?}");
    }
}

#[test]
fn a_cost_that_is_spent_in_the_grace_of_a_run_ends_it() {
    let provider = Provider::start(message);
    let drill = routes::drill(&provider, "[price.\"m*\"]\ninput = 1\noutput = 1");
    // It asks eight seconds after it began, so that this is over by then, whenever it begins.
    let until = (jiff::Timestamp::now() + Duration::from_secs(8)).to_string();
    let began = Instant::now();
    let mut args = vec!["run", "--results", "r.jsonl", "--until", &until];
    args.extend(["--grace", "100s", "--max-cost", "0.00002", "late"]);
    let ran = drill.run(&args);
    let ended = results(&drill, &ran);
    assert_eq!(outcomes(&ended), ["cancelled"], "{}", ran.all());
    assert_eq!(provider.got().len(), 1);
    let took = began.elapsed();
    assert!(took < Duration::from_secs(60), "{took:?}");
}

#[test]
fn when_its_time_is_over_a_run_begins_nothing_more_and_what_runs_is_cancelled() {
    for with_daemon in [false, true] {
        let drill = scripted("scaiflux", "", "turn_tokens = 1000000");
        let _daemon = with_daemon.then(|| approvals::daemon(&drill));
        // The first one ends and the second one begins before that.
        let until = jiff::Timestamp::now() + Duration::from_secs(15);
        let until = until.to_string();
        let began = Instant::now();
        let mut args = vec!["run", "--results", "r.jsonl", "--until", &until];
        args.extend(["--grace", "500ms", "say hi", "sleep 300s", "say never"]);
        let ran = drill.run(&args);
        assert_eq!(ran.code, Some(1), "{}", ran.all());
        assert!(
            began.elapsed() < Duration::from_secs(120),
            "{:?}",
            began.elapsed()
        );
        let ended = results(&drill, &ran);
        let mut words = outcomes(&ended);
        words.sort_unstable();
        assert_eq!(words, ["cancelled", "done", "skipped"], "{}", ran.all());
        let skipped = ended
            .iter()
            .find(|item| item["outcome"] == "skipped")
            .expect("one");
        assert!(
            skipped["detail"].to_string().contains("--until"),
            "{skipped}"
        );
    }
}
