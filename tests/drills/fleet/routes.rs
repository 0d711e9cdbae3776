//! A real child in the default sandbox asks a model through its route: it gets answers and no key,
//! and nothing of the way is left when it, or its supervisor, is gone.

use std::time::{Duration, Instant};

use crate::drill::{Drill, Ran, eventually, metric};
use crate::provider::{Provider, message, whole};

/// The key that must be nowhere but at the provider.
const KEY: &str = "sk-drill-0123456789abcdef-the-real-one";

/// An agent that asks its model once a prompt, and tells what it can see of keys. `limited` in an
/// answer ends its turn with an error. `boast` has it say that it took 900,000 tokens.
pub(crate) const AGENT: &str = r#"
import http.client, json, os, sys
def say(**m): sys.stdout.write(json.dumps(m) + "\n"); sys.stdout.flush()
base = os.environ["MODEL_URL"]
host = base.removeprefix("http://").split("/")[0]
def ask(text, path="/v1/messages", **more):
    c = http.client.HTTPConnection(host, timeout=30)
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": text}], **more})
    c.request("POST", path, body, {"content-type": "application/json", "x-api-key": "dummy", "authorization": "Bearer dummy"})
    r = c.getresponse()
    return r.status, r.read().decode()
def look(needle):
    found = []
    places = ["/proc/%s/%s" % (p, f) for p in os.listdir("/proc") if p.isdigit() for f in ("environ", "cmdline", "mounts", "maps")]
    for top in (os.environ["HOME"], "/workspace", "/tmp", "/etc", "/run", "/dev/shm"):
        for d, _, names in os.walk(top):
            places += [os.path.join(d, n) for n in names]
    for place in places:
        try:
            if needle.encode() in open(place, "rb").read(1 << 22): found.append(place)
        except OSError: pass
    return found
say(type="ready", protocol=1, version="1", session_id="s", model="m", mode="x", tools=[], context_window=1, max_tokens=1, gadgets=[])
for line in sys.stdin:
    m = json.loads(line)
    if m["type"] == "prompt":
        say(type="turn_started", turn_id="t")
        words = m["text"].split()
        boast = 900000 if words[0] == "boast" else 0
        if words[0] == "look":
            # Only the halves are in this process, so that it does not find itself.
            needle = words[1] + words[2]
            del m, line, words
            found = [p for p in look(needle) if not p.endswith("/maps")]
            say(type="text_delta", turn_id="t", delta="found %s" % found)
        elif words[0] == "wander":
            tried = []
            for target in (("127.0.0.1", int(words[1])), ("8.8.8.8", 53)):
                try:
                    http.client.HTTPConnection(*target, timeout=3).connect(); tried.append("reached")
                except OSError as e: tried.append(type(e).__name__)
            say(type="text_delta", turn_id="t", delta="wandered %s" % tried)
        elif words[0] == "flood":
            import socket, time
            name, port = host.split(":")
            held = [socket.create_connection((name, int(port)), timeout=30) for _ in range(1000)]
            told = 0
            for s in held[16:]:
                try: told += b"more than 16 open connections" in s.recv(4096)
                except OSError: pass
            for s in held: s.close()
            # That they are closed is seen on the other side in its time.
            status = 0
            for _ in range(60):
                time.sleep(0.5)
                try: status = ask("after")[0]
                except (OSError, http.client.HTTPException): pass
                if status == 200: break
            say(type="text_delta", turn_id="t", delta="flooded %s then %s" % (told > 0, status))
        elif words[0] == "leave":
            import time
            c = http.client.HTTPConnection(host, timeout=30)
            body = json.dumps({"model": "m", "max_tokens": int(words[1]), "messages": []})
            c.request("POST", "/v1/messages", body, {"content-type": "application/json"})
            time.sleep(1); c.close()
            say(type="text_delta", turn_id="t", delta="left")
        elif words[0] == "pretend":
            # Completes its turn whatever the route says.
            for what in words[1:]:
                if what == "search": ask("x", tools=[{"type": "web_search_20250305", "name": "web_search"}])
                elif what == "elsewhere": ask("x", path="/v1/elsewhere")
                else: ask("x")
        elif words[0] == "late":
            import time
            time.sleep(8); ask("late"); time.sleep(120)
        else:
            try: status, text = ask(" ".join(words))
            except OSError as e: status, text = 0, str(e)
            if words[0] == "die": os.kill(os.getpid(), 9)
            if status != 200:
                say(type="error", code="api_error", message="the model said %d" % status, origin="remote", turn_id="t")
                say(type="turn_complete", turn_id="t", stop_reason="error", iterations=1, input_tokens=0, output_tokens=0, mutations=[])
                continue
            say(type="text_delta", turn_id="t", delta="the model said %d %s" % (status, text))
        say(type="turn_complete", turn_id="t", stop_reason="end_turn", iterations=1, input_tokens=boast, output_tokens=0, mutations=[])
    elif m["type"] == "shutdown": sys.exit(0)
"#;

pub(crate) fn drill(provider: &Provider, keys: &str) -> Drill {
    let drill = Drill::new(&format!(
        r#"
[pool.demo]
command   = ["python3", "agent.py"]
dialect   = "scaiflux"
network   = "routes"
routes    = ["own"]
workspace = {{ path = "project", mode = "copy" }}
env       = {{ set = {{ DRILL = "MARK", MODEL_URL = "{{route.own}}" }} }}
{keys}
[route.own]
upstream = "http://{}"
header   = "x-api-key"
secret   = "file:key"
allow    = ["POST /v1/messages"]
"#,
        provider.address
    ));
    std::fs::write(drill.workspace().join("agent.py"), AGENT).expect("agent.py");
    let key = drill.path("key");
    std::fs::write(&key, KEY).expect("the key");
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&key, private).expect("private");
    drill
}

/// Nothing that the supervisor wrote holds the key: output, journal, homes, copies.
fn assert_no_key(drill: &Drill, ran: &Ran) {
    assert!(
        !ran.stdout.contains(KEY) && !ran.stderr.contains(KEY),
        "{}",
        ran.all()
    );
    let grep = std::process::Command::new("grep")
        .args(["-rlaF", KEY])
        .arg(drill.state())
        .output()
        .expect("grep");
    let found = String::from_utf8_lossy(&grep.stdout).into_owned();
    assert!(found.is_empty(), "the key is in {found}");
}

#[test]
fn a_child_asks_its_model_and_finds_no_key_anywhere() {
    let provider = Provider::start(message);
    let drill = drill(&provider, "");
    let (first, second) = KEY.split_at(12);
    let look = format!("look {first} {second}");
    let wander = format!("wander {}", provider.address.port());
    let ran = drill.run(&["-v", "--json", "run", "hello model", &look, &wander]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    assert!(ran.stdout.contains("the model said 200"), "{}", ran.all());
    assert!(ran.stdout.contains("found []"), "{}", ran.all());
    // Only the route's own port leads anywhere.
    assert!(
        ran.stdout
            .contains("wandered ['ConnectionRefusedError', 'OSError']"),
        "{}",
        ran.all()
    );
    let got = provider.got();
    assert_eq!(got.len(), 1);
    assert!(
        got[0].head.contains(&format!("x-api-key: {KEY}\r\n")),
        "{}",
        got[0].head
    );
    assert!(!got[0].head.contains("dummy"), "{}", got[0].head);
    assert_no_key(&drill, &ran);
    let shown = drill.run(&["config", "show"]);
    assert!(
        shown.stdout.contains("secret = \"‹secret›\""),
        "{}",
        shown.all()
    );
    assert!(
        !shown.stdout.contains(KEY) && !shown.stdout.contains("file:key"),
        "{}",
        shown.all()
    );
}

#[test]
fn a_turn_whose_last_model_request_was_refused_is_not_done() {
    let provider = Provider::start(message);
    let drill = drill(&provider, "");
    let ran = drill.run(&[
        "run",
        "--results",
        "r.jsonl",
        "pretend search",
        "pretend ask search",
        "pretend search ask",
        "pretend elsewhere",
        "pretend ask elsewhere",
    ]);
    let results = drill.results("r.jsonl");
    let outcome = |number: usize| {
        let id = format!("task-{number}");
        let line = results.iter().find(|line| line["id"] == id.as_str());
        let line = line.unwrap_or_else(|| panic!("no {id}: {}", ran.all()));
        (
            line["outcome"].as_str().expect("a word"),
            line["detail"].as_str(),
        )
    };
    let refused = |reason: &str| {
        format!(
            "the agent ended its turn after the route had refused its last model request ({reason})"
        )
    };
    let (search, elsewhere) = (refused("server_tool"), refused("not_allowed"));
    assert_eq!(
        outcome(1),
        ("failed", Some(search.as_str())),
        "{}",
        ran.all()
    );
    assert_eq!(
        outcome(2),
        ("failed", Some(search.as_str())),
        "{}",
        ran.all()
    );
    assert_eq!(outcome(3), ("done", None), "the model answered after it");
    assert_eq!(
        outcome(4),
        ("failed", Some(elsewhere.as_str())),
        "{}",
        ran.all()
    );
    assert_eq!(outcome(5), ("done", None), "that was no model");
}

#[test]
fn a_thousand_connections_from_inside_are_bounded_and_the_next_request_still_works() {
    let provider = Provider::start(message);
    let keys = "size = 2";
    let drill = drill(&provider, keys);
    // The other slot works meanwhile.
    let ran = drill.run(&["--json", "run", "flood", "hello"]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    assert!(
        ran.stdout.contains("flooded True then 200"),
        "{}",
        ran.all()
    );
    assert!(ran.stdout.contains("the model said 200"), "{}", ran.all());
    assert_eq!(provider.got().len(), 2);
    assert_no_key(&drill, &ran);
}

/// Whatever a provider does with the key that it got.
fn betraying() -> Provider {
    Provider::start(|number, got, to| {
        let json = "content-type: application/json\r\n";
        let text = match number {
            0 => whole(
                "400 Bad Request",
                json,
                &format!("{{\"you sent\":{:?}}}", got.head),
            ),
            1 => whole(
                "200 OK",
                &format!("{json}x-echo: {KEY}\r\nrequest-id: {KEY}\r\n"),
                "{}",
            ),
            2 => whole(&format!("500 Key {KEY}"), json, "{}"),
            3 => whole(
                "307 Moved",
                &format!("location: http://127.0.0.1:1/?key={KEY}\r\n"),
                KEY,
            ),
            4 => whole(
                "429 Too Many Requests",
                &format!("retry-after: {KEY}\r\n"),
                KEY,
            ),
            5 => format!("HTTP/1.1 200 OK\r\n{json}content-length: 9000\r\n\r\n{{\"a\":\"{KEY}"),
            6 => format!("HTTP/1.1 200 OK\r\n{KEY} no colon\r\n\r\n"),
            7 => format!("{KEY}\r\n\r\n"),
            8 => format!(
                "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: {{\"usage\":{{\"input_tokens\":\"{KEY}\"}}}}\n\n"
            ),
            _ => return message(number, got, to),
        };
        let _ = to.write_all(text.as_bytes());
    })
}

#[test]
fn a_key_that_the_provider_sends_back_is_in_no_log_no_journal_and_no_output() {
    let provider = betraying();
    let keys = "session = \"slot\"\nrate_limit = { pause = \"50ms\", max = \"50ms\" }";
    let drill = drill(&provider, keys);
    let running = drill.start(&["-vvv", "up"]);
    eventually(Duration::from_secs(60), "ready", || {
        drill.get("/readyz").0 == 200
    });
    let mut args = vec!["-vvv", "--json", "run", "--results", "results.jsonl"];
    args.extend(["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"]);
    let ran = drill.run(&args);
    assert!(provider.got().len() > 10, "{}", ran.all());
    assert!(ran.stdout.contains("the model said 200"), "{}", ran.all());
    // While the journal is open: its log that was not yet written back is searched, too.
    let wal = std::fs::read_dir(drill.state())
        .expect("the state")
        .flatten()
        .any(|file| file.file_name().to_string_lossy().ends_with("-wal"));
    assert!(wal, "the journal is open");
    assert_no_key(&drill, &ran);
    let results = drill.results("results.jsonl");
    let session = results[0]["session"].as_str().expect("a session");
    for args in [
        &["events"][..],
        &["--json", "events"],
        &["show", session],
        &["--json", "show", session],
        &["logs", "demo/0"],
        &["config", "show"],
        &["config", "check"],
    ] {
        let output = drill.run(args);
        assert_eq!(output.code, Some(0), "{args:?} {}", output.all());
        let all = output.all();
        assert!(!all.contains(KEY), "{args:?} {all}");
    }
    let page = drill.get("/metrics").1;
    assert!(page.contains("marshal_route_refused_total") && !page.contains(KEY));
    drop(running);
    for log in ["stderr.log", "stdout.log"] {
        assert!(!drill.log(log).contains(KEY), "{log}");
    }
    assert!(!drill.log("stderr.log").is_empty());
    assert!(!format!("{results:?}").contains(KEY));
    assert_no_key(&drill, &ran);
}

#[test]
fn a_route_works_again_in_the_next_child_and_the_key_is_not_in_the_supervisors_arguments() {
    let provider = Provider::start(message);
    let drill = drill(
        &provider,
        "session = \"slot\"\nrestart = { base = \"10ms\", max = \"10ms\", on_crash = \"report\" }",
    );
    let running = drill.start(&["up"]);
    eventually(Duration::from_secs(60), "ready", || {
        drill.get("/readyz").0 == 200
    });
    let ran = drill.run(&["--json", "run", "first", "die now", "third"]);
    assert!(
        ran.stdout.matches("the model said 200").count() >= 2,
        "{}",
        ran.all()
    );
    assert_eq!(provider.got().len(), 3);
    let page = drill.get("/metrics").1;
    let answered = metric(
        &page,
        "marshal_route_requests_total{pool=\"demo\",route=\"own\",code=\"2xx\"}",
    );
    assert_eq!(answered, Some(3.0), "{page}");
    let tokens = metric(
        &page,
        "marshal_route_tokens_total{pool=\"demo\",route=\"own\",type=\"output\"}",
    );
    assert_eq!(tokens, Some(21.0));
    assert!(!page.contains(KEY));
    let proc = format!("/proc/{}", running.pid());
    for file in ["cmdline", "environ"] {
        let text = std::fs::read(format!("{proc}/{file}")).expect(file);
        assert!(!String::from_utf8_lossy(&text).contains(KEY), "{file}");
    }
    drop(running);
    assert!(!drill.log("stderr.log").contains(KEY));
}

#[test]
fn after_a_kill_of_the_supervisor_no_connection_and_no_listener_is_left() {
    let ended = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let seen = std::sync::Arc::clone(&ended);
    let provider = Provider::start(move |_, _, to| {
        let _ = to.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n");
        // Until nobody reads any more.
        for _ in 0..20_000 {
            if to
                .write_all(b"1\r\nx\r\n")
                .and_then(|()| to.flush())
                .is_err()
            {
                seen.store(true, std::sync::atomic::Ordering::SeqCst);
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    });
    let drill = drill(&provider, "");
    let mut running = drill.start(&["run", "hello"]);
    eventually(Duration::from_secs(60), "it asks", || {
        provider.got().len() == 1
    });
    let agents = drill.agents();
    assert!(!agents.is_empty());
    let inside = *agents.iter().max().expect("one");
    let net = std::fs::read_to_string(format!("/proc/{inside}/net/tcp")).expect("its sockets");
    assert!(
        net.lines()
            .any(|line| line.split_whitespace().nth(3) == Some("0A")),
        "it is listened: {net}"
    );
    running.signal("KILL");
    running.wait(Duration::from_secs(20));
    eventually(Duration::from_secs(20), "the agent is gone", || {
        drill.agents().is_empty()
    });
    eventually(
        Duration::from_secs(20),
        "the upstream's connection is gone",
        || ended.load(std::sync::atomic::Ordering::SeqCst),
    );
}

/// A provider that limits the first `limits` requests.
fn limiting(limits: usize, headers: &'static str) -> Provider {
    Provider::start(move |number, got, to| {
        if number < limits {
            let answer = whole(
                "429 Too Many Requests",
                headers,
                "{\"error\":\"slow down\"}",
            );
            let _ = to.write_all(answer.as_bytes());
        } else {
            message(number, got, to);
        }
    })
}

#[test]
fn a_limit_pauses_the_pool_and_spends_no_task() {
    let provider = limiting(2, "");
    let keys = "size = 2\nrate_limit = { pause = \"600ms\", max = \"1s\" }";
    let drill = drill(&provider, keys);
    let began = Instant::now();
    let ran = drill.run(&[
        "run",
        "--results",
        "results.jsonl",
        "one",
        "two",
        "three",
        "four",
    ]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    assert!(
        began.elapsed() >= Duration::from_millis(600),
        "{}",
        ran.all()
    );
    assert!(
        ran.stderr
            .contains("demo: its provider limits requests; no task starts for"),
        "{}",
        ran.all()
    );
    assert!(
        ran.stderr
            .contains("demo: its provider accepts requests again"),
        "{}",
        ran.all()
    );
    for result in drill.results("results.jsonl") {
        assert_eq!(result["outcome"], "done", "{result}");
        assert_eq!(result["attempts"], 1, "no attempt was spent: {result}");
        assert_eq!(result["restarts"].as_u64().unwrap_or(0), 0, "{result}");
    }
    assert_eq!(provider.got().len(), 6);
    let database = drill.database();
    let reported: i64 = database
        .query_row(
            "SELECT count(*) FROM events WHERE kind = 'turn_ended' AND CAST(body AS TEXT) LIKE '%rate limited: the provider%'",
            [],
            |row| row.get(0),
        )
        .expect("a count");
    assert_eq!(reported, 2, "the journal says why");
}

#[test]
fn an_announced_time_is_waited_for_and_one_task_tries_then() {
    let provider = limiting(1, "retry-after: 2\r\n");
    // With one slot more than that a second request could come before the first answer.
    let drill = drill(
        &provider,
        "size = 1\nrate_limit = { pause = \"50ms\", max = \"50ms\" }",
    );
    let began = Instant::now();
    let ran = drill.run(&["run", "--results", "results.jsonl", "one", "two"]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    assert!(began.elapsed() >= Duration::from_secs(2), "{}", ran.all());
    assert_eq!(provider.got().len(), 3);
    for result in drill.results("results.jsonl") {
        assert_eq!(result["attempts"], 1, "no attempt was spent: {result}");
    }
}

#[test]
fn a_time_that_geminis_body_announces_is_waited_for() {
    const BODY: &str = r#"{"error":{"code":429,"message":"slow down","status":"RESOURCE_EXHAUSTED","details":[{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"1.500s"}]}}"#;
    let provider = Provider::start(|number, got, to| {
        if number > 0 {
            return message(number, got, to);
        }
        let answer = whole(
            "429 Too Many Requests",
            "content-type: application/json\r\n",
            BODY,
        );
        // In two pieces, which is how a body may come.
        let (first, second) = answer.split_at(answer.len() - 40);
        let _ = to.write_all(first.as_bytes()).and_then(|()| to.flush());
        std::thread::sleep(Duration::from_millis(100));
        let _ = to.write_all(second.as_bytes());
    });
    let drill = drill(
        &provider,
        "rate_limit = { pause = \"50ms\", max = \"50ms\" }",
    );
    let began = Instant::now();
    let ran = drill.run(&["run", "one"]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    let took = began.elapsed();
    assert!(took >= Duration::from_millis(1500), "{}", ran.all());
    assert_eq!(provider.got().len(), 2);
}

#[test]
fn each_pause_without_an_announced_time_is_twice_as_long_up_to_the_bound() {
    let times = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let seen = std::sync::Arc::clone(&times);
    let provider = Provider::start(move |number, got, to| {
        seen.lock().expect("no panic").push(Instant::now());
        if number < 4 {
            let _ = to.write_all(whole("529 Overloaded", "", "{}").as_bytes());
        } else {
            message(number, got, to);
        }
    });
    let keys = "rate_limit = { pause = \"400ms\", max = \"1s\" }";
    let drill = drill(&provider, keys);
    let ran = drill.run(&["run", "--results", "results.jsonl", "one", "two"]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    for wait in ["0.4 s", "0.8 s", "1.0 s"] {
        let expected = format!("no task starts for {wait}");
        assert!(ran.stderr.contains(&expected), "{wait}: {}", ran.all());
    }
    let times = times.lock().expect("no panic").clone();
    let waits: Vec<_> = times.windows(2).map(|two| two[1] - two[0]).collect();
    for (wait, least) in waits.iter().zip([400, 800, 1000, 1000]) {
        assert!(*wait >= Duration::from_millis(least), "{waits:?}");
    }
    assert_eq!(times.len(), 6, "one task tries: {waits:?}");
    for result in drill.results("results.jsonl") {
        assert_eq!(result["outcome"], "done", "{result}");
        assert_eq!(result["attempts"], 1, "no attempt was spent: {result}");
    }
}

#[test]
fn words_that_a_hint_of_the_file_calls_a_limit_pause_the_pool_and_spend_no_task() {
    const HINT: &str = "\n[[hint]]\npattern = \"the model said 418\"\nwhere = \"message\"\ntext = \"tea time at the provider\"\nclass = \"rate_limited\"\n";
    let limiting = || {
        Provider::start(|number, got, to| {
            if number < 2 {
                let _ = to.write_all(whole("418 I'm a teapot", "", "{}").as_bytes());
            } else {
                message(number, got, to);
            }
        })
    };
    let keys = "rate_limit = { pause = \"300ms\", max = \"300ms\" }";
    // The same words are an ordinary failure as long as nobody says what they mean.
    for (hint, code) in [(HINT, 0), ("", 1)] {
        let provider = limiting();
        let drill = drill(&provider, keys);
        let mut text = std::fs::read_to_string(drill.config()).expect("the file");
        text.push_str(hint);
        std::fs::write(drill.config(), text).expect("the file");
        let ran = drill.run(&["run", "--results", "results.jsonl", "one", "two"]);
        assert_eq!(ran.code, Some(code), "{}", ran.all());
        let paused = ran.stderr.contains("demo: its provider limits requests");
        assert_eq!(paused, code == 0, "{}", ran.all());
        let done = drill.results("results.jsonl").iter().all(|result| {
            assert_eq!(result["attempts"], 1, "{result}");
            result["outcome"] == "done"
        });
        assert_eq!(done, code == 0, "{}", ran.all());
        let reported: i64 = drill
            .database()
            .query_row(
                "SELECT count(*) FROM events WHERE kind = 'turn_ended' AND CAST(body AS TEXT) LIKE '%rate limited: the agent says%hint: tea time%'",
                [],
                |row| row.get(0),
            )
            .expect("a count");
        assert_eq!(reported, if code == 0 { 2 } else { 0 });
    }
}

#[test]
fn a_limit_that_does_not_end_is_given_up_in_the_end() {
    let provider = limiting(usize::MAX, "");
    let keys = "rate_limit = { pause = \"100ms\", max = \"200ms\", give_up = \"1s\" }";
    let drill = drill(&provider, keys);
    let ran = drill.run(&["run", "--results", "results.jsonl", "one"]);
    assert_eq!(ran.code, Some(1), "{}", ran.all());
    let result = &drill.results("results.jsonl")[0];
    assert_eq!(result["outcome"], "failed", "{result}");
    assert!(
        result.to_string().contains("rate_limit.give_up"),
        "{result}"
    );
}
