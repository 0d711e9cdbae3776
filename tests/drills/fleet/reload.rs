//! Policies that change while the supervisor works: by themselves, by a signal, by request; all of
//! them or none.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;

use serde_json::Value;

use crate::drill::{Drill, Ran, eventually, metric};
use crate::fleet::approvals::{LONG, answer, client, daemon, good, result, waiting};
use crate::fleet::approvals_http::http;

/// A policy of its own, with a rule for `echo`; `more` are further keys, before the rules.
pub(crate) fn own(default: &str, decision: &str, more: &str) -> String {
    format!(
        r#"schema = 1
name = "own"
extends = ["builtin:guard"]
default = "{default}"
{more}
[[rule]]
id = "say-{decision}"
decision = "{decision}"
tool = "shell"
argv = ["echo"]
"#
    )
}

pub(crate) fn pool(more: &str) -> String {
    format!(
        r#"
[policy.own]
file = "own.toml"

[pool.demo]
size      = 1
command   = ["marshal", "script-agent", "--dialect", "acp"]
dialect   = "acp"
policy    = "own"
workspace = {{ path = "project", mode = "copy" }}
restart   = {{ base = "20ms", max = "100ms" }}
{more}
"#
    )
}

pub(crate) fn drill(more: &str, policy: &str) -> Drill {
    let drill = Drill::new(&pool(more));
    put(&drill, "own.toml", policy);
    drill
}

/// Puts a file in the place of another one, as editors do.
pub(crate) fn put(drill: &Drill, name: &str, text: &str) {
    let fresh = drill.path(&format!(".{name}.new"));
    fs::write(&fresh, text).expect("written");
    fs::rename(fresh, drill.path(name)).expect("renamed");
}

pub(crate) fn status(drill: &Drill) -> Value {
    let ran = drill.run(&["--json", "policy", "status"]);
    good(&ran);
    serde_json::from_str(&ran.stdout).expect("JSON")
}

pub(crate) fn digest(drill: &Drill) -> String {
    let status = status(drill);
    status["pools"][0]["sha256"]
        .as_str()
        .expect("a digest")
        .to_owned()
}

fn error(drill: &Drill) -> String {
    let status = status(drill);
    let error = status["last_reload"]["error"].as_str();
    error.unwrap_or_default().to_owned()
}

fn becomes_stale(drill: &Drill, word: &str) {
    eventually(LONG, word, || error(drill).contains(word));
    assert!(status(drill)["stale_since"].is_string());
}

fn becomes_good(drill: &Drill) {
    eventually(LONG, "the policies are good again", || {
        status(drill)["stale_since"].is_null()
    });
}

/// How many of a prompt's requests were allowed and denied.
pub(crate) fn counts(result: &Value) -> (u64, u64) {
    let of = |key: &str| result["requests"][key].as_u64().expect("a count");
    (of("allowed"), of("denied"))
}

pub(crate) fn run_prompt(drill: &Drill, prompt: &str) -> (u64, u64) {
    counts(&result(drill, client(drill, &[prompt])))
}

#[test]
fn a_change_is_seen_by_itself_and_a_signal_and_a_request_read_again() {
    let drill = drill("", &own("deny", "allow", ""));
    let running = daemon(&drill);
    let first = status(&drill);
    assert!(first["last_reload"].is_null(), "{first}");
    eventually(LONG, "the files are watched", || {
        status(&drill)["watched"] == true
    });
    let path = drill.path("own.toml");
    assert_eq!(first["pools"][0]["files"][0], path.to_str().expect("UTF-8"));
    assert_eq!(run_prompt(&drill, "run echo one"), (1, 0));

    put(&drill, "own.toml", &own("deny", "deny", ""));
    let old = first["pools"][0]["sha256"]
        .as_str()
        .expect("a digest")
        .to_owned();
    eventually(LONG, "it is seen", || digest(&drill) != old);
    let seen = status(&drill);
    assert_eq!(seen["last_reload"]["cause"], "file", "{seen}");
    assert_eq!(seen["last_reload"]["pools_changed"], 1, "{seen}");
    let loaded_at = |status: &Value| {
        let text = status["pools"][0]["loaded_at"].as_str().expect("a time");
        text.parse::<jiff::Timestamp>().expect("RFC 3339")
    };
    assert!(loaded_at(&seen) > loaded_at(&first));
    assert_eq!(run_prompt(&drill, "run echo two"), (0, 1));

    running.signal("HUP");
    eventually(LONG, "the signal is heard", || {
        status(&drill)["last_reload"]["cause"] == "signal"
    });
    let unchanged = status(&drill);
    assert_eq!(unchanged["last_reload"]["pools_changed"], 0, "{unchanged}");
    assert_eq!(unchanged["pools"], seen["pools"], "what is the same stays");

    let ran = drill.run(&["policy", "reload"]);
    good(&ran);
    assert!(
        ran.stdout.contains("ok, 0 pools changed (request"),
        "{}",
        ran.all()
    );
    let page = drill.get("/metrics").1;
    let good = metric(&page, r#"marshal_policy_reloads_total{result="ok"}"#);
    assert!(good >= Some(3.0), "{good:?}");
    assert_eq!(
        metric(&page, "marshal_config_last_reload_successful"),
        Some(1.0)
    );
    assert!(metric(&page, "marshal_policy_rules") > Some(1.0));
}

#[test]
fn over_http_the_owner_reloads_and_nobody_else() {
    let drill = drill(
        "approval = { approvers = [\"ops\"] }",
        &own("deny", "allow", ""),
    );
    let approvers = drill.state().join("approvers");
    let _daemon = daemon(&drill);
    fs::create_dir(&approvers).expect("made");
    fs::write(approvers.join("ops"), "o".repeat(40)).expect("a token");
    fs::set_permissions(approvers.join("ops"), fs::Permissions::from_mode(0o600)).expect("mode");
    let token = fs::read_to_string(drill.state().join("http.token")).expect("a token");
    let owner = format!("Authorization: Bearer {}", token.trim());
    let ops = format!("Authorization: Bearer {}", "o".repeat(40));
    let post = |more: &str| {
        let head = format!("POST /policies/reload HTTP/1.1{more}");
        http(&drill, &head, None, "")
    };
    assert_eq!(post("").0, 401);
    assert_eq!(post(&format!("\r\n{ops}")).0, 403);
    assert!(status(&drill)["last_reload"].is_null());
    let (code, body) = post(&format!("\r\n{owner}"));
    assert_eq!(code, 200, "{body}");
    assert!(body.contains("\"cause\":\"request\""), "{body}");
    let head = format!("GET /policies HTTP/1.1\r\n{owner}");
    assert_eq!(http(&drill, &head, None, "").0, 200);
    assert_eq!(http(&drill, "GET /policies HTTP/1.1", None, "").0, 401);
    put(
        &drill,
        "own.toml",
        "schema = 1\nname = \"own\"\nalow = true\n",
    );
    let (code, body) = post(&format!("\r\n{owner}"));
    assert_eq!(code, 422, "{body}");
    assert!(body.contains("alow"), "{body}");
}

/// Faults, and a word that their error has.
fn faults() -> Vec<(&'static str, String)> {
    let good = own("deny", "allow", "");
    vec![
        ("alow", good.replace("default =", "alow = 1\ndefault =")),
        ("guard", good.replace("extends = [\"builtin:guard\"]\n", "")),
        ("does not apply", format!("{good}match = [\"ls\"]\n")),
        ("applies to it", format!("{good}not_match = [\"echo x\"]\n")),
        (
            "missing.toml",
            good.replace("builtin:guard\"", "builtin:guard\", \"missing.toml\""),
        ),
        (
            "`decision`",
            good.replace("decision = \"allow\"", "decision = \"maybe\""),
        ),
        ("`hours`", format!("{good}hours = \"25:00-26:00\"\n")),
        ("expected", "schema = 1\nname = ".to_owned()),
    ]
}

fn up_fails(drill: &Drill) -> Ran {
    let ran = drill.run(&["up"]);
    assert_eq!(ran.code, Some(2), "{}", ran.all());
    ran
}

#[test]
fn a_faulty_policy_starts_nothing_and_on_reload_the_old_one_stays() {
    let good_text = own("deny", "allow", "");
    let drill = drill("", &good_text);
    for (word, text) in faults() {
        put(&drill, "own.toml", &text);
        let ran = up_fails(&drill);
        assert!(ran.stderr.contains(word), "{word}: {}", ran.all());
    }
    put(&drill, "own.toml", &good_text);
    let _daemon = daemon(&drill);
    eventually(LONG, "the files are watched", || {
        status(&drill)["watched"] == true
    });
    let before = digest(&drill);
    for (word, text) in faults() {
        put(&drill, "own.toml", &text);
        becomes_stale(&drill, word);
        let asked_for = drill.run(&["policy", "reload"]);
        assert_eq!(asked_for.code, Some(2), "{}", asked_for.all());
        assert!(asked_for.stderr.contains(word), "{}", asked_for.all());
        if word == "alow" {
            assert_eq!(run_prompt(&drill, "run echo still"), (1, 0));
        }
        assert_eq!(digest(&drill), before, "{word}");
        let page = drill.get("/metrics").1;
        assert_eq!(
            metric(&page, "marshal_config_last_reload_successful"),
            Some(0.0)
        );
        put(&drill, "own.toml", &good_text);
        becomes_good(&drill);
    }
    let shown = drill.run(&["policy", "status"]);
    assert!(!shown.stdout.contains("STALE"), "{}", shown.all());
    assert_eq!(run_prompt(&drill, "run echo still"), (1, 0));
    let page = drill.get("/metrics").1;
    let failed = metric(&page, r#"marshal_policy_reloads_total{result="error"}"#);
    assert!(failed >= Some(16.0), "{failed:?}");
    assert_eq!(
        metric(&page, "marshal_config_last_reload_successful"),
        Some(1.0)
    );
    assert!(
        drill
            .log("stderr.log")
            .contains("the older policies stay in force")
    );
}

#[test]
fn who_could_have_written_it_is_looked_at_every_time() {
    let drill = drill("", &own("deny", "allow", ""));
    let file = drill.path("own.toml");
    let mode = |bits: u32| {
        fs::set_permissions(&file, fs::Permissions::from_mode(bits)).expect("mode");
    };
    for bits in [0o664, 0o646] {
        // A group of root's own would be private.
        std::os::unix::fs::chown(&file, Some(0), Some(1)).expect("chown");
        mode(bits);
        assert!(up_fails(&drill).stderr.contains("writable by"));
    }
    mode(0o644);
    std::os::unix::fs::chown(&file, Some(65534), None).expect("chown");
    assert!(up_fails(&drill).stderr.contains("belongs to user 65534"));
    std::os::unix::fs::chown(&file, Some(0), Some(1)).expect("chown");

    let _daemon = daemon(&drill);
    eventually(LONG, "the files are watched", || {
        status(&drill)["watched"] == true
    });
    mode(0o664);
    becomes_stale(&drill, "writable by a group");
    mode(0o646);
    becomes_stale(&drill, "writable by everybody");
    mode(0o644);
    becomes_good(&drill);
    std::os::unix::fs::chown(&file, Some(65534), None).expect("chown");
    becomes_stale(&drill, "belongs to user 65534");
    std::os::unix::fs::chown(&file, Some(0), None).expect("chown");
    becomes_good(&drill);
    fs::remove_file(&file).expect("removed");
    becomes_stale(&drill, "No such file");
    let shown = drill.run(&["policy", "status"]);
    assert!(shown.stdout.contains("STALE since"), "{}", shown.all());
}

#[test]
fn what_an_agent_could_write_is_no_policy_whatever_leads_there() {
    let base = "schema = 1\nname = \"base\"\n";
    let text = own("deny", "allow", "").replace("guard\"]", "guard\", \"base.toml\"]");
    let drill = drill("", &text);
    let config = fs::read_to_string(drill.config()).expect("read");
    fs::write(
        drill.config(),
        config.replace("mode = \"copy\"", "mode = \"rw\""),
    )
    .expect("written");
    let inside = drill.workspace().join("base.toml");
    fs::write(&inside, base).expect("written");
    std::os::unix::fs::symlink(&inside, drill.path("base.toml")).expect("linked");
    let ran = up_fails(&drill);
    assert!(ran.stderr.contains("is in the workspace"), "{}", ran.all());
    put(&drill, "base.toml", base);
    let _daemon = daemon(&drill);
    eventually(LONG, "the files are watched", || {
        status(&drill)["watched"] == true
    });
    fs::remove_file(drill.path("base.toml")).expect("removed");
    std::os::unix::fs::symlink(&inside, drill.path("base.toml")).expect("linked");
    becomes_stale(&drill, "is in the workspace");
    // Nor may a task bring a workspace that holds it.
    put(&drill, "base.toml", base);
    becomes_good(&drill);
    let above = drill.path("").to_str().expect("UTF-8").to_owned();
    let task =
        serde_json::json!({"prompt": "run echo x", "workspace": above.trim_end_matches('/')});
    fs::write(drill.path("t.jsonl"), format!("{task}\n")).expect("written");
    let ran = drill.run(&["run", "t.jsonl"]);
    assert_eq!(ran.code, Some(2), "{}", ran.all());
    assert!(
        ran.stderr.contains("which decides what agents may do"),
        "{}",
        ran.all()
    );
}

#[test]
fn what_is_extended_and_the_sites_policy_are_watched_too() {
    let text = own("deny", "allow", "").replace("guard\"]", "guard\", \"more/base.toml\"]");
    let drill = drill(
        "\n[policy.corp]\nfile = \"site/corp.toml\"\nsite = true\n",
        &text,
    );
    for (dir, name, title) in [("more", "base.toml", "base"), ("site", "corp.toml", "corp")] {
        fs::create_dir(drill.path(dir)).expect("made");
        let text = format!("schema = 1\nname = \"{title}\"\n");
        fs::write(drill.path(dir).join(name), text).expect("written");
    }
    let _daemon = daemon(&drill);
    eventually(LONG, "the files are watched", || {
        status(&drill)["watched"] == true
    });
    assert_eq!(run_prompt(&drill, "run echo one"), (1, 0));
    for (name, title) in [("more/base.toml", "base"), ("site/corp.toml", "corp")] {
        let before = digest(&drill);
        let rule = "[[rule]]\nid = \"no-echo\"\ndecision = \"deny\"\ntool = \"shell\"\nargv = [\"echo\"]\n";
        let plain = format!("schema = 1\nname = \"{title}\"\n");
        fs::write(drill.path(name), format!("{plain}{rule}")).expect("written");
        eventually(LONG, name, || digest(&drill) != before);
        assert_eq!(run_prompt(&drill, "run echo two"), (0, 1), "{name}");
        fs::write(drill.path(name), plain).expect("written");
        eventually(LONG, name, || digest(&drill) == before);
    }
    assert_eq!(run_prompt(&drill, "run echo three"), (1, 0));
}

#[test]
fn what_waits_for_a_person_is_judged_by_the_policy_of_then() {
    let drill = drill("", &own("ask", "ask", ""));
    let _daemon = daemon(&drill);
    // Denied meanwhile: a person cannot overrule that.
    let working = client(&drill, &["run echo one"]);
    let ask = waiting(&drill, 1).remove(0);
    put(&drill, "own.toml", &own("ask", "deny", ""));
    good(&drill.run(&["policy", "reload"]));
    let refused = answer(&drill, "approve", &ask, &[]);
    assert_ne!(refused.code, Some(0), "{}", refused.all());
    assert!(refused.stderr.contains("say-deny"), "{}", refused.all());
    assert_eq!(counts(&result(&drill, working)), (0, 1));
    // Changed, and still a person's to decide.
    put(&drill, "own.toml", &own("ask", "ask", ""));
    good(&drill.run(&["policy", "reload"]));
    let working = client(&drill, &["run echo two"]);
    let ask = waiting(&drill, 1).remove(0);
    put(&drill, "own.toml", &own("ask", "ask", "# changed"));
    good(&drill.run(&["policy", "reload"]));
    good(&answer(&drill, "approve", &ask, &[]));
    assert_eq!(counts(&result(&drill, working)), (1, 0));
}

/// The socket, spoken to by hand: a process for each request would be slow.
fn reload(drill: &Drill, times: usize, each: impl Fn(usize)) {
    for number in 0..times {
        each(number);
        let stream = UnixStream::connect(drill.state().join("http.sock"));
        let mut stream = stream.expect("connected");
        let request =
            "POST /api/v1/policies/reload HTTP/1.0\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n";
        stream.write_all(request.as_bytes()).expect("sent");
        let mut reported = String::new();
        stream.read_to_string(&mut reported).expect("an answer");
        assert!(reported.starts_with("HTTP/1.0 200"), "{reported}");
    }
}

#[test]
fn during_a_hundred_reloads_every_request_is_judged_by_one_version() {
    let versions = ["a", "b"].map(|name| {
        own("deny", "allow", "").replace("say-allow", &format!("say-{name}"))
            + &format!("[[rule]]\nid = \"also-{name}\"\ndecision = \"allow\"\ntool = \"shell\"\nargv = [\"true\"]\n")
    });
    let drill = drill("", &versions[0]);
    let _daemon = daemon(&drill);
    let prompt = vec!["run echo x && true"; 200].join("\n");
    let working = client(&drill, &[&prompt]);
    let mut digests = Vec::new();
    for text in &versions {
        put(&drill, "own.toml", text);
        good(&drill.run(&["policy", "reload"]));
        digests.push(digest(&drill));
    }
    reload(&drill, 100, |number| {
        put(&drill, "own.toml", &versions[number % 2]);
    });
    let allowed = counts(&result(&drill, working));
    assert_eq!(allowed, (200, 0));
    let database = drill.database();
    let mut rows = database
        .prepare("SELECT policy_sha256, rules, facts FROM permission_requests ORDER BY link")
        .expect("approvals");
    let rows = rows
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
        .expect("rows")
        .collect::<Result<Vec<(String, String, String)>, _>>()
        .expect("rows");
    assert_eq!(rows.len(), 200);
    for (sha256, rules, facts) in &rows {
        let at = digests
            .iter()
            .position(|known| known == sha256)
            .expect("one of the two");
        let (own, other) = [("a", "b"), ("b", "a")][at];
        let wanted = format!("[\"say-{own}\",\"also-{own}\"]");
        assert_eq!(*rules, wanted);
        assert!(!facts.contains(&format!("-{other}\"")), "{facts}");
    }
}

#[test]
fn a_policy_that_is_wrong_about_its_own_cases_is_not_used() {
    let good_text = own("deny", "allow", "");
    let drill = drill("", &good_text);
    let config = fs::read_to_string(drill.config()).expect("read");
    let config = config.replace(
        "file = \"own.toml\"",
        "file = \"own.toml\"\ntest_dir = \"cases\"",
    );
    fs::write(drill.config(), config).expect("written");
    fs::create_dir(drill.path("cases")).expect("made");
    let none = up_fails(&drill);
    assert!(none.stderr.contains("has no case"), "{}", none.all());
    let case = |expect: &str| {
        format!(
            r#"{{"id": "says", "tool": "shell", "input": {{"command": "echo x"}}, "expect": "{expect}"}}"#
        )
    };
    fs::write(drill.path("cases/own.jsonl"), case("deny")).expect("written");
    let wrong = up_fails(&drill);
    assert!(
        wrong.stderr.contains("fails its own test case says"),
        "{}",
        wrong.all()
    );
    fs::write(drill.path("cases/own.jsonl"), case("allow")).expect("written");
    let _daemon = daemon(&drill);
    eventually(LONG, "the files are watched", || {
        status(&drill)["watched"] == true
    });
    put(&drill, "own.toml", &own("deny", "deny", ""));
    becomes_stale(&drill, "fails its own test case says");
    // The cases are watched like the policy.
    fs::write(drill.path("cases/own.jsonl"), case("deny")).expect("written");
    becomes_good(&drill);
    assert_eq!(run_prompt(&drill, "run echo x"), (0, 1));
}
