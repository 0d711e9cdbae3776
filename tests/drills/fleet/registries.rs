//! A child in the default sandbox finds its registry by itself, reads packages and publishes none; a
//! host that nobody named is in the journal.

use serde_json::Value;

use crate::drill::Drill;
use crate::provider::{Got, Provider, whole};

/// The token that must be nowhere but at the registry.
const TOKEN: &str = "npm_drill0123456789abcdefTheRealOne";

/// An agent that runs its prompt in a shell and says what came out.
pub(crate) const SHELL_AGENT: &str = r#"
import json, subprocess, sys
def say(**m): sys.stdout.write(json.dumps(m) + "\n"); sys.stdout.flush()
say(type="ready", protocol=1, version="1", session_id="s", model="m", mode="x", tools=[], context_window=1, max_tokens=1, gadgets=[])
for line in sys.stdin:
    m = json.loads(line)
    if m["type"] == "prompt":
        say(type="turn_started", turn_id="t")
        ran = subprocess.run(["bash", "-euc", m["text"]], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        say(type="text_delta", turn_id="t", delta="exit=%d %s" % (ran.returncode, ran.stdout[-6000:]))
        say(type="turn_complete", turn_id="t", stop_reason="end_turn", iterations=1, input_tokens=0, output_tokens=0, mutations=[])
    elif m["type"] == "shutdown": sys.exit(0)
"#;

/// Asks the route named first for each `METHOD PATH`, and prints what it says.
pub(crate) const ASK: &str = r#"
import sys, urllib.error, urllib.request
for line in sys.argv[2:]:
    method, path = line.split(" ")
    body = None if method == "GET" else b"{}"
    try:
        answer = urllib.request.urlopen(urllib.request.Request(sys.argv[1].rstrip("/") + path, body, method=method), timeout=30)
        print("answered", answer.status, answer.read().decode())
    except urllib.error.HTTPError as e: print("refused", e.code, e.read().decode())
"#;

/// A drill with `agent.py` and `ask.py` in its workspace.
pub(crate) fn drill(routes: &str, tables: &str) -> Drill {
    let text = format!(
        r#"
[pool.demo]
command   = ["python3", "agent.py"]
dialect   = "scaiflux"
network   = "routes"
routes    = [{routes}]
workspace = {{ path = "project", mode = "copy" }}
env       = {{ set = {{ DRILL = "MARK", ROUTE = "{{route.FIRST}}" }} }}
{tables}"#
    );
    let first = routes.split('"').nth(1).expect("a route");
    let drill = Drill::new(&text.replace("FIRST", first));
    std::fs::write(drill.workspace().join("agent.py"), SHELL_AGENT).expect("agent.py");
    std::fs::write(drill.workspace().join("ask.py"), ASK).expect("ask.py");
    drill
}

/// Runs one script and gives what came out.
pub(crate) fn answer(drill: &Drill, script: &str) -> String {
    let ran = drill.run(&["--json", "run", script]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    let lines = ran.stdout.lines();
    let mut lines = lines.filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let ended = lines.find(|line| line["type"] == "ended");
    let ended = ended.unwrap_or_else(|| panic!("no end: {}", ran.all()));
    let answer = ended["report"]["answer"].as_str();
    answer.expect("an answer").to_owned()
}

#[test]
fn a_child_finds_its_registry_and_a_host_that_nobody_named_is_journalled() {
    let registry = Provider::start(|_, got: &Got, to| {
        let path = got.head.split(' ').nth(1).unwrap_or_default();
        let answer = match path {
            "/api/npm/moved" => whole("302 Found", "location: https://evil.example/x\r\n", ""),
            _ => whole(
                "200 OK",
                "",
                "{\"dist\":{\"tarball\":\"https://evil.example/a.tgz\"}}",
            ),
        };
        let _ = to.write_all(answer.as_bytes());
    });
    let drill = drill(
        "\"npm\", \"crates\"",
        &format!(
            "[route.npm]\nkind = \"registry\"\nregistry = \"npm\"\nupstream = \"http://{0}/api/npm\"\nsecret = \"file:token\"\n[route.crates]\nkind = \"registry\"\nregistry = \"crates\"\nupstream = \"http://{0}/index\"\n",
            registry.address
        ),
    );
    let token = drill.path("token");
    std::fs::write(&token, TOKEN).expect("the token");
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&token, private).expect("private");
    let script = r#"cat ~/.cargo/config.toml
python3 ask.py "$npm_config_registry" "GET /is-odd" "PUT /is-odd" "GET /moved" "GET /-/whoami"
env; if grep -rs npm_drill0123456789 ~ /workspace /proc/[0-9]*/environ; then echo leaked; fi"#;
    let answer = answer(&drill, script);
    for expect in [
        "exit=0",
        "replace-with = \"route\"",
        "sparse+http://127.0.0.1:",
        "/-/host/evil.example/a.tgz",
        "the route npm only reads packages, with GET and HEAD; publishing is not possible",
        "the host evil.example is not one of the route npm",
        "no login, no account, no publishing",
    ] {
        assert!(answer.contains(expect), "{expect}: {answer}");
    }
    let is_secret = answer.contains("leaked") || answer.contains(TOKEN);
    assert!(!is_secret, "{answer}");
    let got = registry.got();
    assert_eq!(got.len(), 2, "{got:?}");
    assert!(
        got.iter().all(|got| got
            .head
            .contains(&format!("authorization: Bearer {TOKEN}\r\n"))),
        "{got:?}"
    );
    let row: String = drill
        .database()
        .query_row(
            "SELECT group_concat(CAST(body AS TEXT), ' ') FROM events WHERE kind = 'egress'",
            [],
            |row| row.get(0),
        )
        .expect("a record of the host");
    assert!(
        row.contains("evil.example") && row.contains("not_allowed"),
        "{row}"
    );
}

/// The supervisor does not start with a password of a client, and says what to do.
#[test]
fn a_password_in_the_configuration_of_a_client_is_refused() {
    let drill = drill(
        "\"npm\"",
        "[route.npm]\nkind = \"registry\"\nregistry = \"npm\"\n",
    );
    let mut command = drill.command(&["run", "true"]);
    let ran = command
        .env("npm_config_registry", "https://user:s3cret@npm.example/")
        .output()
        .expect("marshal starts");
    let text = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert!(!ran.status.success(), "{text}");
    assert!(
        text.contains("has a user name or a password in its URL"),
        "{text}"
    );
    assert!(text.contains("route.npm.upstream"), "{text}");
    assert!(!text.contains("s3cret"), "{text}");
}
