//! Hooks: real servers and real commands are told, as often as they should be, and nobody waits for
//! them.

use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rcgen::{CertificateParams, KeyPair};
use ring::hmac;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::Value;

use crate::drill::{Drill, eventually, metric, processes};
use crate::fleet::approvals::{LONG, answer, client, daemon, good, pool, result, waiting};
use crate::programs::install;
use crate::provider::{Got, Provider, Talk, whole};

const SECRET: &str = "a secret of more than sixteen characters";

/// A drill whose hook posts to an address.
fn posting(pools: &str, url: &str, more: &str) -> Drill {
    let hook = format!("[hook.ops]\nurl = \"{url}\"\nsecret = \"file:hook.secret\"\n{more}\n");
    let drill = Drill::new(&(pools.to_owned() + &hook));
    put(&drill, "hook.secret", SECRET, 0o600);
    drill
}

fn put(drill: &Drill, name: &str, text: &str, mode: u32) {
    let path = drill.path(name);
    fs::write(&path, text).expect("written");
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("mode");
}

fn ok(_: usize, _: &Got, to: &mut dyn Write) {
    let _ = to.write_all(whole("204 No Content", "", "").as_bytes());
}

fn url(server: &Provider) -> String {
    format!("http://{}/tell?x=y", server.address)
}

fn header<'g>(got: &'g Got, name: &str) -> &'g str {
    let mut lines = got.head.lines().filter_map(|line| line.split_once(": "));
    let found = lines.find(|(key, _)| key.eq_ignore_ascii_case(name));
    found.unwrap_or_else(|| panic!("{name} in {}", got.head)).1
}

/// A message whose signature is right, and which was sent a moment ago.
fn message(got: &Got) -> Value {
    assert!(
        got.head.starts_with("POST /tell?x=y HTTP/1.1\r\n"),
        "{}",
        got.head
    );
    let at = header(got, "x-marshal-timestamp");
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("time")
        .as_secs();
    let age = now.abs_diff(at.parse().expect("seconds"));
    assert!(age < 120, "{at} {now}");
    let signature = header(got, "x-marshal-signature");
    let hex = signature.strip_prefix("v1=").expect("version 1");
    let bytes: Vec<u8> = (0..hex.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hexadecimal"))
        .collect();
    let key = hmac::Key::new(hmac::HMAC_SHA256, SECRET.as_bytes());
    let signed = format!("{at}.{}", got.body);
    hmac::verify(&key, signed.as_bytes(), &bytes).expect("the signature");
    let other = format!("{at}.{} ", got.body);
    hmac::verify(&key, other.as_bytes(), &bytes).expect_err("of something else");
    let message: Value = serde_json::from_str(&got.body).expect("JSON");
    assert_eq!(message["id"], header(got, "x-marshal-delivery"));
    assert_eq!(message["v"], 1);
    assert_eq!(message["hook"], "ops");
    message
}

fn message_count(drill: &Drill, result: &str) -> f64 {
    let page = drill.get("/metrics").1;
    let name = format!(r#"marshal_hook_messages_total{{hook="ops",result="{result}"}}"#);
    metric(&page, &name).unwrap_or(0.0)
}

fn kinds(message: &Value) -> Vec<&str> {
    let events = message["events"].as_array().expect("events").iter();
    events
        .map(|event| event["event"].as_str().expect("a word"))
        .collect()
}

#[test]
fn a_webhook_is_told_once_a_minute_and_what_was_held_back_is_counted() {
    let server = Provider::start(ok);
    let pools = pool("scaiflux", "").replace("size      = 1", "size = 3");
    let drill = posting(&pools, &url(&server), "events = [\"approval\"]");
    let _daemon = daemon(&drill);
    let began = Instant::now();
    let mut working = vec![client(&drill, &["run touch 1.txt"])];
    waiting(&drill, 1);
    eventually(LONG, "it was told", || server.got().len() == 1);
    let first = message(&server.got()[0]);
    // One after the other, so that it is known which is the last.
    working.push(client(&drill, &["run touch 2.txt"]));
    waiting(&drill, 2);
    working.push(client(&drill, &["run touch 3.txt"]));
    let requests = waiting(&drill, 3);
    assert_eq!(kinds(&first), ["approval"], "{first}");
    assert_eq!(first["pool"], "demo");
    let event = &first["events"][0];
    assert!(
        requests
            .iter()
            .any(|ask| ask["approval"] == event["approval"]),
        "{event}"
    );
    assert_eq!(header(&server.got()[0], "x-marshal-event"), "approval");
    assert!(
        first["text"]
            .as_str()
            .expect("a text")
            .contains("marshal approvals show"),
        "{first}"
    );
    // The others wait for the minute, and the last of them is told then.
    eventually(Duration::from_secs(90), "the rest is told", || {
        server.got().len() == 2
    });
    let waited = began.elapsed();
    assert!(waited > Duration::from_secs(55), "{waited:?}");
    let second = message(&server.got()[1]);
    assert_ne!(second["id"], first["id"]);
    assert_eq!(kinds(&second), ["approval"], "{second}");
    let last = requests
        .iter()
        .find(|ask| ask["summary"] == "touch 3.txt")
        .expect("the last");
    assert_eq!(
        second["events"][0]["approval"], last["approval"],
        "the last is not lost: {second}"
    );
    assert_eq!(
        second["held_back"],
        serde_json::json!({"approval": 1}),
        "{second}"
    );
    let text = second["text"].as_str().expect("a text");
    assert!(text.contains("1 more"), "{text}");
    let page = drill.get("/metrics").1;
    assert_eq!(
        metric(&page, r#"marshal_hook_held_back_total{hook="ops"}"#),
        Some(1.0)
    );
    // It is counted when the answer has come.
    eventually(LONG, "both are counted", || {
        message_count(&drill, "told").to_string() == "2"
    });
    for ask in &requests {
        good(&answer(&drill, "approve", ask, &[]));
    }
    for mut client in working {
        assert!(client.wait().expect("ends").success());
    }
    assert_eq!(server.got().len(), 2, "ends of runs are not for it");
}

#[test]
fn a_run_tells_its_end_before_the_program_ends() {
    for more in ["", "events = [\"run_ended\"]\npools = [\"demo\"]"] {
        let server = Provider::start(ok);
        let drill = posting(&pool("scaiflux", ""), &url(&server), more);
        let ran = drill.run(&["run", "say hello", "fail"]);
        let got = server.got();
        assert_eq!(got.len(), 1, "{}", ran.all());
        let reported = message(&got[0]);
        let event = &reported["events"][0];
        assert_eq!(event["event"], "run_ended", "{reported}");
        assert_eq!(event["pools"], serde_json::json!(["demo"]), "{reported}");
        let tasks = event["tasks"].as_object().expect("counts");
        let count: u64 = tasks.values().filter_map(Value::as_u64).sum();
        assert_eq!(count, 2, "{reported}");
        assert_eq!(event["code"], u64::from(ran.code == Some(1)), "{reported}");
    }
    // Of another pool it hears nothing.
    let server = Provider::start(ok);
    let both = pool("scaiflux", "") + &pool("scaiflux", "").replace("pool.demo", "pool.other");
    let drill = posting(&both, &url(&server), "pools = [\"other\"]");
    fs::write(
        drill.path("t.jsonl"),
        "{\"id\":\"a\",\"pool\":\"demo\",\"prompt\":\"say hello\"}\n",
    )
    .expect("a file");
    let ran = drill.run(&["run", "t.jsonl"]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    assert!(server.got().is_empty());
}

#[test]
fn a_parked_slot_is_told_and_a_slow_server_holds_nobody_up() {
    let server = Provider::start(|_, _: &Got, _: &mut dyn Write| {
        std::thread::sleep(Duration::from_secs(30));
    });
    let pools = r#"
[pool.demo]
command   = ["sh", "-c", "echo broken; exit 3"]
launcher  = "none"
workspace = { path = "project", mode = "rw" }
restart   = { budget = 0 }
"#;
    let drill = posting(pools, &url(&server), "events = [\"parked\"]");
    let mut daemon = daemon(&drill);
    let began = Instant::now();
    let working = client(&drill, &["say hello"]);
    assert_eq!(result(&drill, working)["outcome"], "failed");
    let worked = began.elapsed();
    assert!(
        worked < Duration::from_secs(20) && message_count(&drill, "failed") < 0.5,
        "the task waited for a hook: {worked:?}"
    );
    eventually(LONG, "it gives up", || {
        message_count(&drill, "failed") > 0.5
    });
    let took = began.elapsed();
    // Three times five seconds, and the waits between them; whoever waited for the server would need
    // more than a hundred.
    assert!(
        took > Duration::from_secs(26) && took < Duration::from_secs(70),
        "{took:?}"
    );
    let got = server.got();
    assert_eq!(got.len(), 3);
    let reported: Vec<Value> = got.iter().map(message).collect();
    assert!(
        reported.iter().all(|item| item["id"] == reported[0]["id"]),
        "the same message: {reported:?}"
    );
    let event = &reported[0]["events"][0];
    assert_eq!(
        (&event["event"], &event["slot"]),
        (&"parked".into(), &"demo/0".into()),
        "{event}"
    );
    let log = drill.log("stderr.log");
    assert!(
        log.contains("hook message not delivered") && log.contains("no answer within 5s"),
        "{log}"
    );
    daemon.signal("TERM");
    assert_eq!(daemon.wait(LONG), Some(0));
}

#[test]
fn a_budget_that_is_spent_is_told_once_with_whose_it_is() {
    let server = Provider::start(ok);
    let pools = pool("scaiflux", "").replace("\"cautious\"", "\"own\"")
        + "[policy.own]\nfile = \"own.toml\"\n";
    let drill = posting(&pools, &url(&server), "events = [\"budget_spent\"]");
    let own = "schema = 1\nname = \"own\"\nextends = [\"cautious.toml\"]\n[budget]\nallows_per_turn = 2\nthen = \"deny\"\n";
    put(&drill, "own.toml", own, 0o644);
    let script = ["list ."; 5].join("\n");
    let ran = drill.run(&["run", "--results", "r.jsonl", &script]);
    let done = drill.results("r.jsonl").remove(0);
    assert_eq!(done["requests"]["allowed"], 2, "{}", ran.all());
    let got = server.got();
    assert_eq!(
        got.len(),
        1,
        "of the run's end it is not told: {}",
        ran.all()
    );
    let reported = message(&got[0]);
    assert_eq!(kinds(&reported), ["budget_spent"], "{reported}");
    assert_eq!(header(&got[0], "x-marshal-event"), "budget_spent");
    assert_eq!(reported["held_back"], serde_json::json!({}), "{reported}");
    let event = &reported["events"][0];
    assert_eq!(event["slot"], "demo/0", "{event}");
    assert_eq!(event["session"], done["session"], "{event}");
    for (key, value) in [
        ("scope", "turn"),
        ("budget", "allows_per_turn"),
        ("limit", "2 requests"),
        ("spent", "2 requests"),
        ("then", "deny"),
    ] {
        assert_eq!(event[key], value, "{key}: {event}");
    }
    assert!(event["at_us"].is_i64(), "{event}");
}

#[test]
fn a_redirect_is_refused_and_a_long_answer_is_not_read() {
    let elsewhere = Provider::start(ok);
    let to = elsewhere.address;
    for status in ["301 Moved", "302 Found", "307 Temporary", "308 Permanent"] {
        let server = Provider::start(move |_, _: &Got, out: &mut dyn Write| {
            let answer = whole(status, &format!("location: http://{to}/\r\n"), "");
            let _ = out.write_all(answer.as_bytes());
        });
        let drill = posting(&pool("scaiflux", ""), &url(&server), "");
        let ran = drill.run(&["run", "say hello"]);
        assert_eq!(
            ran.code,
            Some(0),
            "a hook decides about no task: {}",
            ran.all()
        );
        assert_eq!(server.got().len(), 1, "a redirect is not tried again");
        assert!(
            ran.stderr.contains("which marshal does not follow"),
            "{}",
            ran.all()
        );
    }
    assert!(elsewhere.got().is_empty(), "nobody went there");
    let read = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let written = Arc::clone(&read);
    let endless = Provider::start(move |_, _: &Got, out: &mut dyn Write| {
        let _ = out.write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n");
        while out
            .write_all(&[b'x'; 4096])
            .and_then(|()| out.flush())
            .is_ok()
        {
            written.fetch_add(4096, std::sync::atomic::Ordering::SeqCst);
        }
    });
    let drill = posting(&pool("scaiflux", ""), &url(&endless), "");
    let ran = drill.run(&["run", "say hello"]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    assert!(ran.took < Duration::from_secs(20), "{:?}", ran.took);
    assert_eq!(endless.got().len(), 1, "it was taken");
    let read = read.load(std::sync::atomic::Ordering::SeqCst);
    // What the kernel's buffers took comes on top of the 64 KiB.
    assert!(read < 16 << 20, "{read}");
}

/// A server's side of TLS with a certificate that signs itself.
fn self_signed() -> (String, Arc<ServerConfig>) {
    let key = KeyPair::generate().expect("a key");
    let params = CertificateParams::new(vec!["localhost".to_owned()]).expect("names");
    let own = params.self_signed(&key).expect("signed");
    let chain = vec![CertificateDer::from(own.der().to_vec())];
    let key = PrivateKeyDer::try_from(key.serialize_der()).expect("a key");
    let ring = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(ring)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .expect("a certificate");
    (own.pem(), Arc::new(config))
}

#[test]
fn a_certificate_that_nobody_vouches_for_is_told_nothing() {
    let (pem, config) = self_signed();
    let server = Provider::wrapped(ok, move |stream: TcpStream| {
        let connection = ServerConnection::new(Arc::clone(&config)).ok()?;
        Some(Box::new(StreamOwned::new(connection, stream)) as Box<dyn Talk>)
    });
    let url = format!("https://localhost:{}/tell?x=y", server.address.port());
    let drill = posting(&pool("scaiflux", ""), &url, "");
    let ran = drill.run(&["run", "say hello"]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    assert!(server.got().is_empty());
    assert!(ran.stderr.contains("certificate"), "{}", ran.all());
    let drill = posting(&pool("scaiflux", ""), &url, "ca = \"ca.pem\"");
    put(&drill, "ca.pem", &pem, 0o644);
    let ran = drill.run(&["run", "say hello"]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    assert_eq!(kinds(&message(&server.got()[0])), ["run_ended"]);
}

#[test]
fn an_ask_that_is_written_to_fool_is_told_harmlessly() {
    let server = Provider::start(ok);
    let drill = posting(&pool("acp", ""), &url(&server), "events = [\"approval\"]");
    let _daemon = daemon(&drill);
    let evil = "run touch '\u{1b}]52;c;YQ==\u{7}\u{202e}txt.\u{200b}\u{9b}31m'\u{2028}";
    let working = client(&drill, &[evil]);
    let ask = waiting(&drill, 1).remove(0);
    eventually(LONG, "it was told", || server.got().len() == 1);
    let got = server.got().remove(0);
    let bad = |c: &char| c.is_control() || matches!(*c, '\u{200b}' | '\u{202e}' | '\u{2028}');
    assert_eq!(got.body.chars().find(bad), None, "{}", got.body);
    let reported = message(&got);
    for text in [&reported["text"], &reported["events"][0]["summary"]] {
        let text = text.as_str().expect("a text");
        assert_eq!(text.chars().find(bad), None, "{text}");
        assert!(
            text.contains("\\u{1b}") && text.contains("\\u{202e}"),
            "{text}"
        );
    }
    good(&answer(&drill, "reject", &ask, &[]));
    result(&drill, working);
}

/// A drill whose hook is a shell script.
fn running(script: &str, more: &str) -> Drill {
    let drill = Drill::new(&pool("scaiflux", ""));
    install(
        &drill.path("tell"),
        format!("#!/bin/sh\n{script}").as_bytes(),
    );
    let hook = format!(
        "[hook.ops]\ncommand = [{:?}, \"a b\", \"$X\"]\n{more}\n",
        drill.path("tell").display().to_string()
    );
    let mut text = fs::read_to_string(drill.config()).expect("supervisor.toml");
    text.push_str(&hook);
    fs::write(drill.config(), text).expect("supervisor.toml");
    drill
}

#[test]
fn a_command_gets_the_message_its_arguments_and_nothing_else() {
    let drill = running(
        "dir=${0%/*}\n/bin/cat > \"$dir/got\"\n/usr/bin/env > \"$dir/env\"\n/bin/ls /proc/$$/fd > \"$dir/fds\"\nprintf '%s|' \"$@\" \"$(/bin/pwd)\" > \"$dir/args\"\n",
        "env = { ONE = \"1\", TWO = \"file:two\" }",
    );
    put(&drill, "two", "zwei\n", 0o600);
    let ran = drill.run(&["run", "say hello"]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    let got = drill.log("got");
    assert_eq!(got.lines().count(), 1, "{got}");
    let message: Value = serde_json::from_str(got.trim()).expect("JSON");
    assert_eq!(kinds(&message), ["run_ended"], "{message}");
    assert_eq!(
        message["events"][0]["tasks"],
        serde_json::json!({"done": 1}),
        "{message}"
    );
    assert_eq!(drill.log("args"), "a b|$X|/|");
    // A shell sets two of its own.
    let env = drill.log("env");
    let names = env.lines().filter_map(|line| line.split_once('='));
    let mut names: Vec<&str> = names.map(|(name, _)| name).collect();
    names.retain(|name| !matches!(*name, "PWD" | "_" | "SHLVL" | "OLDPWD"));
    names.sort_unstable();
    assert_eq!(names, ["MARSHAL_MARKER", "ONE", "TWO"], "{env}");
    assert!(env.contains("TWO=zwei"), "{env}");
    let fds: Vec<i32> = drill
        .log("fds")
        .lines()
        .filter_map(|fd| fd.parse().ok())
        .collect();
    // The shell holds its script.
    let inherited = fds.iter().filter(|fd| (3..10).contains(*fd)).count();
    assert_eq!(inherited, 0, "{fds:?}");
}

#[test]
fn a_program_that_somebody_else_could_have_written_is_not_run() {
    let drill = running("exit 0\n", "");
    let check = || drill.run(&["config", "check"]);
    assert_eq!(check().code, Some(0), "{}", check().all());
    put(&drill, "tell", "#!/bin/sh\n", 0o777);
    let refused = check();
    assert_eq!(refused.code, Some(2), "{}", refused.all());
    assert!(
        refused.all().contains("writable by everybody"),
        "{}",
        refused.all()
    );
    fs::remove_file(drill.path("tell")).expect("removed");
    let gone = drill.run(&["run", "say hello"]);
    assert_eq!(gone.code, Some(2), "{}", gone.all());
    assert!(gone.stderr.contains("cannot read"), "{}", gone.all());
    // By a link it lies where an agent writes, too.
    let text = fs::read_to_string(drill.config()).expect("supervisor.toml");
    let text = text.replace("mode = \"copy\"", "mode = \"rw\"");
    fs::write(drill.config(), text).expect("supervisor.toml");
    put(&drill, "project/tell", "#!/bin/sh\n", 0o755);
    std::os::unix::fs::symlink(drill.path("project/tell"), drill.path("tell")).expect("a link");
    let inside = check();
    assert_eq!(inside.code, Some(2), "{}", inside.all());
    assert!(
        inside
            .all()
            .contains("leads into the workspace of pool demo"),
        "{}",
        inside.all()
    );
}

#[test]
fn a_command_that_hangs_is_killed_with_what_it_started() {
    let drill = running(
        "export GRAND=MARK\n( /usr/bin/setsid /bin/sleep 1000 & )\n/bin/sleep 1000 &\nwait\n",
        "timeout = \"6s\"\nenv = { DRILL_HOOK = \"MARKED\" }",
    );
    let text = fs::read_to_string(drill.config()).expect("supervisor.toml");
    fs::write(drill.config(), text.replace("MARKED", &drill.mark)).expect("supervisor.toml");
    let mark = format!("DRILL_HOOK={}", drill.mark);
    let began = Instant::now();
    let mut run = drill
        .command(&["run", "say hello"])
        .spawn()
        .expect("it starts");
    let found = || processes(|environ| environ.contains(&mark));
    eventually(LONG, "the grandchildren run", || found().len() >= 3);
    assert_eq!(run.wait().expect("ends").code(), Some(0));
    let took = began.elapsed();
    assert!(took < Duration::from_secs(40), "{took:?}");
    eventually(Duration::from_secs(20), "nothing is left", || {
        found().is_empty()
    });
}

#[test]
fn a_command_that_may_work_later_is_run_again_and_one_that_fails_is_not() {
    for (code, runs) in [(75, 3), (1, 1)] {
        let script =
            format!("echo once >> \"${{0%/*}}/runs\"\necho '\u{1b}[31mno' >&2\nexit {code}\n");
        let drill = running(&script, "");
        let ran = drill.run(&["run", "say hello"]);
        assert_eq!(
            ran.code,
            Some(0),
            "a hook decides about no task: {}",
            ran.all()
        );
        assert_eq!(drill.log("runs").lines().count(), runs, "{code}");
        let expected = format!("exit code {code}");
        assert!(ran.stderr.contains(&expected), "{}", ran.all());
        assert!(!ran.stderr.contains('\u{1b}'), "{:?}", ran.stderr);
    }
}

#[test]
fn an_ordinary_users_hook_runs_too_and_a_second_signal_waits_for_none() {
    let drill = Drill::of_nobody(&pool("scaiflux", ""));
    install(&drill.path("tell"), &b"#!/bin/sh\n/bin/sleep 50\n"[..]);
    let mut text = fs::read_to_string(drill.config()).expect("supervisor.toml");
    let sender = drill.path("tell").display().to_string();
    let env = format!("env = {{ DRILL_HOOK = \"{}\" }}", drill.mark);
    let hook = format!("[hook.ops]\ncommand = [{sender:?}]\ntimeout = \"1m\"\n{env}\n");
    text.push_str(&hook);
    fs::write(drill.config(), text).expect("supervisor.toml");
    let chown = std::process::Command::new("chown")
        .arg("65534:65534")
        .arg(drill.path("tell"))
        .status();
    assert!(chown.expect("chown").success());
    let mut daemon = daemon(&drill);
    let working = client(&drill, &["say hello"]);
    assert_eq!(result(&drill, working)["outcome"], "done");
    let mark = format!("DRILL_HOOK={}", drill.mark);
    let tells = || processes(|environ| environ.contains(&mark));
    eventually(LONG, "the hook runs", || !tells().is_empty());
    daemon.signal("TERM");
    // Two that come before one is looked at are one.
    eventually(LONG, "the first is heard", || {
        drill.log("stderr.log").contains("stopping: no further")
    });
    let began = Instant::now();
    daemon.signal("TERM");
    daemon.wait(LONG);
    let took = began.elapsed();
    // Without it, a hook is waited for up to 20 s.
    assert!(took < Duration::from_secs(15), "{took:?}");
}
