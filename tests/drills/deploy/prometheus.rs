//! Every shipped alert fires and clears in a real Prometheus that scrapes a real fleet. Windows and
//! limits are divided by 60, so that minutes are seconds.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::chat_client::Daemon;
use crate::drill::{Drill, eventually, get};
use crate::fleet::{full_disk, routes};
use crate::provider::{Provider, message, whole};

const LONG: Duration = Duration::from_secs(120);

/// A port that was free a moment ago, for servers that must come back at the same one.
fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").port()
}

/// Minutes as seconds: `[10m]`, `for: 5m` and `> 600`.
fn sixtieth(rules: &str) -> String {
    let mut text = String::new();
    for line in rules.lines() {
        let line = line.replace("m]", "s]").replace("> 600", "> 10");
        let is_duration = line.trim_start().starts_with("for: ");
        text += &if is_duration {
            line.replace('m', "s")
        } else {
            line
        };
        text.push('\n');
    }
    // `for` itself has no m in it, but this text would show if it had.
    assert!(
        text.contains("for: 30s") && text.contains("[10s]"),
        "{text}"
    );
    text
}

/// A Prometheus with the shipped scrape file and alerts.
struct Prometheus {
    child: Child,
    address: String,
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Prometheus {
    fn start(dir: &Path, target: &str) -> Self {
        let shipped = |name: &str| {
            fs::read_to_string(super::root().join("deploy/prometheus").join(name)).expect(name)
        };
        fs::create_dir_all(dir).expect("a directory");
        fs::write(dir.join("alerts.yml"), sixtieth(&shipped("alerts.yml"))).expect("alerts");
        let scrape = shipped("scrape.yml")
            .replace("127.0.0.1:7117", target)
            .replace("15s", "250ms");
        fs::write(dir.join("scrape.yml"), scrape).expect("scrape");
        let address = format!("127.0.0.1:{}", free_port());
        let log = fs::File::create(dir.join("log")).expect("a log");
        let child = Command::new("prometheus")
            .arg(format!(
                "--config.file={}",
                dir.join("scrape.yml").display()
            ))
            .arg(format!(
                "--storage.tsdb.path={}",
                dir.join("data").display()
            ))
            .arg(format!("--web.listen-address={address}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap_or_else(|error| {
                panic!("prometheus is needed ({error}); `tests/run` provides it")
            });
        let this = Self { child, address };
        eventually(LONG, "Prometheus is ready", || {
            TcpStream::connect(&this.address).is_ok() && get(&this.address, "/-/ready").0 == 200
        });
        this
    }

    /// A document of its API, by HTTP/1.0, which has no chunks.
    fn get(&self, path: &str) -> Value {
        let mut stream = TcpStream::connect(&self.address).expect("Prometheus");
        write!(stream, "GET {path} HTTP/1.0\r\n\r\n").expect("written");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("an answer");
        let (head, body) = text.split_once("\r\n\r\n").expect("a body");
        assert!(head.contains(" 200 "), "{text}");
        serde_json::from_str(body).expect("JSON")
    }

    /// The alerts that fire.
    fn firing(&self) -> BTreeSet<String> {
        let body = self.get("/api/v1/alerts");
        let alerts = body["data"]["alerts"].as_array().expect("a list");
        let fire = alerts.iter().filter(|alert| alert["state"] == "firing");
        let names = fire.map(|alert| alert["labels"]["alertname"].as_str());
        names.map(|name| name.expect("a name").to_owned()).collect()
    }

    /// The names of all alerts.
    fn all(&self) -> BTreeSet<String> {
        let body = self.get("/api/v1/rules");
        let rules = &body["data"]["groups"][0]["rules"];
        let rules = rules.as_array().expect("rules").iter();
        let names = rules.map(|rule| rule["name"].as_str());
        names.map(|name| name.expect("a name").to_owned()).collect()
    }
}

/// A fleet that can be in every trouble that an alert is about, and get out of it.
fn troubled(provider: &Provider, port: u16) -> Drill {
    let drill = Drill::new(&format!(
        r#"
[route.own]
upstream = "http://{provider}"
header   = "x-api-key"
secret   = "file:key"
allow    = ["POST /v1/messages"]

[pool.parked]
size      = 4
command   = ["PROGRAM"]
launcher  = "none"
network   = "host"
policy    = "cautious"
restart   = {{ base = "20ms", max = "50ms", budget = 3 }}
workspace = {{ path = "project", mode = "copy" }}
env       = {{ set = {{ DRILL = "MARK" }} }}

[pool.unstarted]
command   = ["PROGRAM-that-goes"]
launcher  = "none"
network   = "host"
policy    = "cautious"
restart   = {{ base = "20ms", max = "50ms", budget = 3 }}
workspace = {{ path = "project", mode = "copy" }}
env       = {{ set = {{ DRILL = "MARK" }} }}

[pool.work]
size      = 1
command   = ["marshal", "script-agent"]
launcher  = "none"
network   = "host"
policy    = "cautious"
workspace = {{ path = "project", mode = "copy" }}
env       = {{ set = {{ DRILL = "MARK" }} }}

[pool.limited]
command    = ["python3", "agent.py"]
dialect    = "scaiflux"
network    = "routes"
routes     = ["own"]
policy     = "cautious"
rate_limit = {{ pause = "40s", max = "40s" }}
workspace  = {{ path = "project", mode = "copy" }}
env        = {{ set = {{ DRILL = "MARK", MODEL_URL = "{{route.own}}" }} }}

[pool.routed]
command   = ["python3", "agent.py"]
dialect   = "scaiflux"
network   = "routes"
routes    = ["own"]
policy    = "cautious"
workspace = {{ path = "project", mode = "copy" }}
env       = {{ set = {{ DRILL = "MARK", MODEL_URL = "{{route.own}}" }} }}
"#,
        provider = provider.address,
    ));
    let program = drill.path("agent");
    let text = fs::read_to_string(drill.config()).expect("supervisor.toml");
    let text = text
        .replace("PROGRAM", &program.to_string_lossy())
        .replace("127.0.0.1:0", &format!("127.0.0.1:{port}"))
        // The disk of this drill is small.
        .replace(
            "[supervisor]\n",
            "[supervisor]\njournal = { min_free = \"16M\" }\n",
        );
    fs::write(drill.config(), text).expect("supervisor.toml");
    script(&program, "exit 1");
    script(&drill.path("agent-that-goes"), "exit 1");
    fs::write(drill.workspace().join("agent.py"), routes::AGENT).expect("agent.py");
    script(&drill.path("key"), "sk-drill-of-alerts");
    drill
}

/// A file that only its owner reads, and runs.
fn script(path: &Path, line: &str) {
    use std::os::unix::fs::PermissionsExt as _;
    let text = if line.starts_with("sk-") {
        line.to_owned()
    } else {
        format!("#!/bin/sh\n{line}\n")
    };
    let beside = path.with_extension("new");
    let mut file = fs::File::create(&beside).expect("a file");
    file.write_all(text.as_bytes()).expect("written");
    drop(file);
    fs::set_permissions(&beside, fs::Permissions::from_mode(0o700)).expect("mode");
    fs::rename(&beside, path).expect("moved");
}

fn daemon(drill: &Drill, port: u16) -> Daemon {
    let running = full_disk::up(drill);
    let token = full_disk::inside(drill, &running).join("http.token");
    let token = fs::read_to_string(token)
        .expect("a token")
        .trim()
        .to_owned();
    Daemon {
        running,
        address: format!("127.0.0.1:{port}"),
        token,
    }
}

#[test]
fn every_alert_fires_and_clears() {
    let provider = Provider::start(|number, got, to| {
        if !got.body.contains("limit") {
            let away = "location: http://127.0.0.1:1/\r\n";
            let _ = to.write_all(whole("302 Found", away, "").as_bytes());
        } else if number < 2 {
            let _ = to.write_all(whole("429 Too Many Requests", "", "{}").as_bytes());
        } else {
            message(number, got, to);
        }
    });
    let port = free_port();
    let drill = troubled(&provider, port);
    let mut daemon = daemon(&drill, port);
    let prometheus = Prometheus::start(&drill.path("prometheus"), &daemon.address);
    let all = prometheus.all();
    assert!(all.len() >= 10, "{all:?}");

    // A counter that grew before the first scrape is no increase.
    eventually(LONG, "it scrapes", || {
        let up = prometheus.get("/api/v1/query?query=marshal_metric_series");
        let found = up["data"]["result"].as_array();
        found.is_some_and(|found| !found.is_empty())
    });

    let submit = |daemon: &Daemon, pool: &str, prompt: &str| {
        let task = daemon.post("/api/v1/tasks", &json!({"pool": pool, "prompt": prompt}));
        assert_eq!(task.status, 202, "{task:?}");
        task.body["id"].as_str().expect("an id").to_owned()
    };
    submit(&daemon, "work", "unasked cat /etc/shadow");
    let hanging = submit(&daemon, "work", "hang");
    let behind = submit(&daemon, "work", "say behind");
    submit(&daemon, "limited", "limit");
    submit(&daemon, "routed", "one");
    for _ in 0..4 {
        submit(&daemon, "parked", "say never");
    }
    fs::remove_file(drill.path("agent-that-goes")).expect("removed");
    submit(&daemon, "unstarted", "say never");
    let ballast = full_disk::inside(&drill, &daemon.running).join("more");
    fs::write(&ballast, vec![0; 20 << 20]).expect("ballast");

    let mut fired = BTreeSet::new();
    let down = "MarshalDown".to_owned();
    let started = std::time::Instant::now();
    while fired.len() + 1 < all.len() {
        fired.extend(prometheus.firing());
        let log = drill.log("stderr.log");
        assert!(
            started.elapsed() < LONG,
            "not fired: {:?}\n{log}",
            all.difference(&fired).collect::<Vec<_>>()
        );
        std::thread::sleep(Duration::from_millis(200));
    }
    assert!(!fired.contains(&down));

    // Every trouble ends.
    fs::remove_file(&ballast).expect("removed");
    let works = format!("exec {} script-agent", env!("CARGO_BIN_EXE_marshal"));
    script(&drill.path("agent"), &works);
    script(&drill.path("agent-that-goes"), &works);
    for slot in [
        "parked/0",
        "parked/1",
        "parked/2",
        "parked/3",
        "unstarted/0",
    ] {
        let restart = daemon.post(&format!("/api/v1/slots/{slot}/restart"), &json!({}));
        assert!(restart.status < 300, "{restart:?}");
    }
    for task in [hanging, behind] {
        let cancelled = daemon.post(&format!("/api/v1/tasks/{task}/cancel"), &json!({}));
        assert!(cancelled.status < 300, "{cancelled:?}");
    }
    let ended = std::time::Instant::now();
    while let firing = prometheus.firing()
        && !firing.is_empty()
    {
        let log = drill.log("stderr.log");
        assert!(ended.elapsed() < LONG, "still firing: {firing:?}\n{log}");
        std::thread::sleep(Duration::from_millis(200));
    }

    daemon.running.signal("KILL");
    daemon.running.wait(LONG);
    eventually(LONG, "that it is down", || {
        prometheus.firing() == BTreeSet::from([down.clone()])
    });
    let back = self::daemon(&drill, port);
    eventually(LONG, "that it is up again", || {
        prometheus.firing().is_empty()
    });
    drop(back);
}
