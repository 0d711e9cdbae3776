//! `run PLAN.md`: items worked and ticked, here and through a daemon, over kills and a person's edits.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use serde_json::Value;

use crate::drill::{Drill, Ran, eventually};

const LONG: Duration = Duration::from_secs(60);

const POLICY: &str = "schema = 1\nname = \"open\"\ndefault = \"allow\"\n";

fn drill_of(size: usize, workspace: &str, restart: &str) -> Drill {
    let drill = Drill::new(&format!(
        r#"
[pool.demo]
size      = {size}
command   = ["marshal", "script-agent", "--dialect", "acp"]
dialect   = "acp"
policy    = "open"
guard_off = true
attempts  = 5
workspace = {workspace}
restart   = {{ budget = 100, base = "20ms", max = "100ms", {restart} }}
env       = {{ set = {{ DRILL = "MARK" }} }}

[policy.open]
file = "open.toml"
"#
    ));
    fs::write(drill.path("open.toml"), POLICY).expect("open.toml");
    drill
}

fn copies(size: usize) -> Drill {
    drill_of(
        size,
        r#"{ path = "project", mode = "copy" }"#,
        r#"on_crash = "retry""#,
    )
}

/// The agents work in the project itself, which is an ordinary user's.
fn shared(size: usize) -> Drill {
    let drill = drill_of(
        size,
        r#"{ path = "project", mode = "rw" }"#,
        r#"on_crash = "report""#,
    );
    let gate = "touch BEGUN; until [ -e GO ]; do sleep 0.05; done\n";
    fs::write(drill.workspace().join("gate.sh"), gate).expect("gate.sh");
    let add = "echo '- [ ] say sneaked in' >> plan.md\n";
    fs::write(drill.workspace().join("add.sh"), add).expect("add.sh");
    let status = std::process::Command::new("chown")
        .args(["-R", "65534:65534"])
        .arg(drill.workspace())
        .status();
    assert!(status.expect("chown").success());
    drill
}

fn plan(drill: &Drill) -> String {
    fs::read_to_string(drill.path("plan.md")).expect("plan.md")
}

fn write(drill: &Drill, text: &str) {
    // As editors do it.
    fs::write(drill.path("plan.md.new"), text).expect("written");
    fs::rename(drill.path("plan.md.new"), drill.path("plan.md")).expect("put in its place");
}

/// Of each prompt's first line, how many of its tasks are done and how many there are.
fn worked(drill: &Drill) -> BTreeMap<String, (i64, i64)> {
    if !drill.state().join("journal.db").exists() {
        return BTreeMap::new();
    }
    let database = drill.database();
    let Ok(mut statement) = database.prepare("SELECT prompt, outcome FROM tasks") else {
        return BTreeMap::new();
    };
    let rows = statement.query_map([], |row| {
        Ok((row.get::<_, String>(0)?, row.get::<_, Option<String>>(1)?))
    });
    let mut found = BTreeMap::new();
    for row in rows.expect("rows").flatten() {
        let first = row.0.lines().next().unwrap_or_default().to_owned();
        let counts: &mut (i64, i64) = found.entry(first).or_default();
        counts.0 += i64::from(row.1.as_deref() == Some("done"));
        counts.1 += 1;
    }
    found
}

fn done_steps(drill: &Drill) -> i64 {
    worked(drill).values().map(|(done, _)| done).sum()
}

fn steps(ran: &Ran) -> Vec<(u64, String)> {
    let lines = ran.stdout.lines();
    let objects = lines.map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    objects
        .filter(|of| of["type"] == "plan_step")
        .map(|of| {
            let step = of["step"].as_u64().expect("a number");
            (step, of["status"].as_str().expect("a word").to_owned())
        })
        .collect()
}

#[test]
fn open_items_are_worked_in_their_order_and_ticked() {
    let drill = copies(2);
    let text = "# To do\n\n1. [x] say before\n2. [ ] write one.txt 1\n   say more of it\n\nNot an item.\n- [ ] say two\n  - [ ] say three\n* [ ] say four\n";
    write(&drill, text);
    let ran = drill.run(&["run", "--json", "plan.md"]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    assert_eq!(plan(&drill), text.replace("[ ]", "[x]"));
    let steps = steps(&ran);
    for step in 2..=5 {
        let of: Vec<&str> = steps
            .iter()
            .filter(|(at, _)| *at == step)
            .map(|(_, status)| status.as_str())
            .collect();
        assert_eq!(of, ["pending", "running", "done"], "{step}: {}", ran.all());
    }
    assert!(steps.contains(&(1, "done".to_owned())), "{}", ran.all());
    let database = drill.database();
    let mut statement = database
        .prepare("SELECT prompt FROM tasks ORDER BY place")
        .expect("tasks");
    let prompts = statement.query_map([], |row| row.get::<_, String>(0));
    let prompts: Vec<String> = prompts.expect("rows").flatten().collect();
    let firsts: Vec<&str> = prompts.iter().filter_map(|of| of.lines().next()).collect();
    assert_eq!(
        firsts,
        ["write one.txt 1", "say two", "say three", "say four"]
    );
    assert!(
        prompts[0].starts_with("write one.txt 1\nsay more of it\n\n[System: This is item 2 of 5"),
        "{prompts:?}"
    );
    // Nothing is left to do.
    let ran = drill.run(&["run", "plan.md"]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    assert!(
        ran.stderr.contains("every item of the plan is done"),
        "{}",
        ran.all()
    );
    assert_eq!(done_steps(&drill), 4);
}

#[test]
fn an_item_that_failed_stays_open_for_the_next_run() {
    let drill = shared(1);
    write(&drill, "- [ ] crash\n- [ ] say two\n");
    let ran = drill.run(&["run", "--plan", "plan.md"]);
    assert_eq!(ran.code, Some(1), "{}", ran.all());
    assert_eq!(plan(&drill), "- [ ] crash\n- [x] say two\n");
    assert!(ran.stderr.contains("item 1 is not done"), "{}", ran.all());
    write(&drill, "- [ ] say one\n- [x] say two\n");
    let ran = drill.run(&["run", "plan.md"]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    assert_eq!(plan(&drill), "- [x] say one\n- [x] say two\n");
    assert_eq!(worked(&drill)["say two"], (1, 1));
}

/// One slot, held by the first item until the file GO is there; meanwhile `edit` is done.
fn edited(drill: &Drill, args: &[&str], edit: impl Fn()) -> (Option<i32>, String) {
    let mut running = drill.start(args);
    eventually(LONG, "the first item is worked", || {
        drill.workspace().join("BEGUN").exists()
    });
    edit();
    fs::write(drill.workspace().join("GO"), "").expect("GO");
    let code = running.wait(LONG);
    let log = format!("{}{}", drill.log("stdout.log"), drill.log("stderr.log"));
    (code, log)
}

const GATE: &str = "run sh gate.sh";

fn a_person_edits(drill: &Drill) {
    write(
        drill,
        &format!("- [ ] {GATE}\n- [ ] say two\n- [ ] say three\n- [ ] say four\n"),
    );
    let (code, log) = edited(drill, &["run", "plan.md"], || {
        // Two is removed, three ticked by hand, five new, four stays.
        write(
            drill,
            &format!("- [ ] say five\n- [ ] {GATE}\n- [x] say three\n- [ ] say four\n"),
        );
        eventually(LONG, "what was added is queued, what went is not", || {
            let worked = worked(drill);
            worked.contains_key("say five") && count_ended_tasks(drill) == 2
        });
    });
    assert_eq!(code, Some(0), "{log}");
    assert_eq!(
        plan(drill),
        format!("- [x] say five\n- [x] {GATE}\n- [x] say three\n- [x] say four\n")
    );
    let worked = worked(drill);
    for (item, is) in [
        ("say two", 0),
        ("say three", 0),
        ("say four", 1),
        ("say five", 1),
    ] {
        assert_eq!(worked[item], (is, 1), "{item}: {worked:?} {log}");
    }
}

fn count_ended_tasks(drill: &Drill) -> i64 {
    let found = drill.database().query_row(
        "SELECT count(*) FROM tasks WHERE state = 'ended'",
        [],
        |row| row.get(0),
    );
    found.expect("a number")
}

#[test]
fn a_person_may_edit_the_plan_meanwhile() {
    a_person_edits(&shared(1));
}

#[test]
fn a_person_may_edit_the_plan_of_a_daemon_meanwhile() {
    let drill = shared(1);
    let daemon = drill
        .command(&["up"])
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn();
    let _daemon = crate::drill::Running {
        child: daemon.expect("a daemon"),
    };
    eventually(LONG, "the daemon listens", || {
        drill.run(&["ls"]).code == Some(0)
    });
    a_person_edits(&drill);
}

#[test]
fn what_agents_add_runs_only_where_that_is_said() {
    let add = "run sh add.sh";
    let text = format!("- [ ] {add}\n- [ ] say two\n");
    for (flags, code) in [(&["run"][..], 1), (&["run", "--agent-items"], 0)] {
        let drill = shared(1);
        let file = drill.workspace().join("plan.md");
        fs::write(&file, &text).expect("plan.md");
        std::os::unix::fs::chown(&file, Some(65534), Some(65534)).expect("its owner");
        let args = [flags, &["project/plan.md"]].concat();
        let ran = drill.run(&args);
        assert_eq!(ran.code, Some(code), "{}", ran.all());
        let is_worked = worked(&drill).contains_key("say sneaked in");
        assert_eq!(is_worked, code == 0, "{}", ran.all());
        assert_eq!(
            ran.stderr.contains("item not started: say sneaked in"),
            code == 1,
            "{}",
            ran.all()
        );
        // A person who orders another run orders what is there.
        let ran = drill.run(&["run", "project/plan.md"]);
        assert_eq!(ran.code, Some(0), "{}", ran.all());
        let now = fs::read_to_string(&file).expect("plan.md");
        assert_eq!(now.matches("- [x]").count(), 3, "{now}");
        assert_eq!(worked(&drill)["say sneaked in"], (1, 1));
    }
}

fn many(count: usize) -> String {
    use std::fmt::Write as _;
    let mut text = String::from("# Many\n\n");
    for number in 1..=count {
        let _ = writeln!(text, "- [ ] say {number}\n  sleep 100ms");
    }
    text
}

#[test]
fn kills_leave_nothing_unticked_and_nothing_worked_twice() {
    /// So many that three kills come before the last of them.
    const ITEMS: i64 = 24;
    let drill = copies(2);
    let text = many(24);
    write(&drill, &text);
    let mut args = vec!["run", "plan.md"];
    for kills in 1..=3 {
        let before = done_steps(&drill);
        let mut running = drill.start(&args);
        eventually(LONG, "some more is done", || {
            done_steps(&drill) >= (before + 2).min(ITEMS)
        });
        running.child.kill().expect("kill -9");
        let _ = running.child.wait();
        eventually(LONG, "no agent is left", || drill.agents().is_empty());
        args = if kills % 2 == 1 {
            vec!["run", "--continue"]
        } else {
            vec!["run", "plan.md"]
        };
    }
    if done_steps(&drill) == ITEMS {
        // Nothing is left to continue, but maybe a tick.
        args = vec!["run", "plan.md"];
    }
    let ran = drill.run(&args);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    assert_eq!(plan(&drill), text.replace("[ ]", "[x]"));
    let worked = worked(&drill);
    assert_eq!(worked.len(), 24);
    assert!(
        worked.values().all(|counts| *counts == (1, 1)),
        "{worked:?}"
    );
}

#[test]
fn what_a_kill_left_unticked_is_ticked_and_not_worked_again() {
    let drill = copies(2);
    let text = many(3);
    write(&drill, &text);
    let ran = drill.run(&["run", "plan.md"]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    // As a kill between the last end and its tick leaves it.
    let books = fs::read_dir(drill.state().join("plans")).expect("books");
    let book = books
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.extension() == Some("json".as_ref()))
        .expect("a book");
    let mut stored: Value =
        serde_json::from_str(&fs::read_to_string(&book).expect("read")).expect("JSON");
    assert_eq!(
        stored["settled"].as_array().map(Vec::len),
        Some(1),
        "{stored}"
    );
    stored["settled"] = Value::Array(Vec::new());
    for args in [&["run", "--continue"][..], &["run", "plan.md"]] {
        fs::write(&book, stored.to_string()).expect("written");
        write(&drill, &text);
        let ran = drill.run(args);
        assert_eq!(ran.code, Some(0), "{}", ran.all());
        assert_eq!(plan(&drill), text.replace("[ ]", "[x]"));
        assert_eq!(done_steps(&drill), 3);
    }
    // Once that is seen to, a person who takes a tick away has the item worked again.
    write(&drill, &plan(&drill).replacen("[x]", "[ ]", 1));
    let ran = drill.run(&["run", "plan.md"]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    assert_eq!(worked(&drill)["say 1"], (2, 2));
}

#[test]
fn a_daemon_goes_on_without_its_client_and_the_next_one_ticks() {
    let drill = shared(1);
    // The third is worked until somebody else was refused.
    let text = format!("- [ ] say 1\n- [ ] say 2\n- [ ] {GATE}\n- [ ] say 4\n- [ ] say 5\n");
    write(&drill, &text);
    let mut daemon = drill.start(&["up"]);
    assert_eq!(drill.get("/healthz").0, 200);
    let mut client = drill.command(&["run", "--quiet", "plan.md"]);
    let mut client = client.spawn().expect("a client");
    eventually(LONG, "some is done", || {
        done_steps(&drill) >= 2 && drill.workspace().join("BEGUN").exists()
    });
    let second = drill.run(&["run", "plan.md"]);
    assert_eq!(second.code, Some(3), "{}", second.all());
    assert!(
        second.stderr.contains("another `marshal run`"),
        "{}",
        second.all()
    );
    client.kill().expect("kill -9");
    let _ = client.wait();
    fs::write(drill.workspace().join("GO"), "").expect("GO");
    eventually(LONG, "the daemon does the rest", || done_steps(&drill) == 5);
    let ran = drill.run(&["run", "plan.md"]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    assert_eq!(plan(&drill), text.replace("[ ]", "[x]"));
    let worked = worked(&drill);
    assert!(
        worked.values().all(|counts| *counts == (1, 1)),
        "{worked:?}"
    );
    daemon.signal("TERM");
    assert_eq!(daemon.wait(LONG), Some(0));
}

#[test]
fn what_is_no_plan_is_refused_before_anything_begins() {
    let drill = copies(1);
    fs::write(drill.path("none.md"), "# Nothing\n\n- no item\n").expect("written");
    fs::write(drill.path("latin.md"), b"- [ ] caf\xe9\n").expect("written");
    fs::write(drill.path("large.md"), "x".repeat((1 << 20) + 1)).expect("written");
    fs::write(drill.path("plan.md"), "- [ ] say one\n").expect("written");
    std::os::unix::fs::symlink("plan.md", drill.path("link.md")).expect("linked");
    fs::create_dir(drill.path("dir.md")).expect("made");
    for (args, expect) in [
        (vec!["run", "none.md"], "has no checklist"),
        (vec!["run", "latin.md"], "is not UTF-8"),
        (vec!["run", "large.md"], "the limit is 1048576"),
        (vec!["run", "link.md"], "is a link"),
        (vec!["run", "dir.md"], "is not a regular file"),
        (vec!["run", "--plan", "gone.md"], "cannot be opened"),
        (vec!["run", "plan.md", "say two"], "a plan runs alone"),
        (
            vec!["run", "--plan", "plan.md", "say two"],
            "cannot be used",
        ),
        (vec!["run", "--agent-items", "say two"], "is for a plan"),
        (
            vec!["run", "--pool", "other", "plan.md"],
            "there is no pool other",
        ),
    ] {
        let ran = drill.run(&args);
        assert_eq!(ran.code, Some(2), "{args:?}: {}", ran.all());
        assert!(ran.stderr.contains(expect), "{args:?}: {}", ran.all());
    }
    assert!(!drill.state().join("journal.db").exists());
}
