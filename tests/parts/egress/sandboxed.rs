//! The proxy from within a real sandbox of a real supervisor, as root and as an ordinary user.

use crate::drill::{Drill, Ran};
use crate::egress::world::{World, enter, eventually, zone};

/// An agent that goes where its prompt says, by the proxy that its environment names and without.
const AGENT: &str = r#"
import json, os, socket, ssl, subprocess, sys, urllib.request
def say(**m): sys.stdout.write(json.dumps(m) + "\n"); sys.stdout.flush()
def get(url):
    context = ssl.create_default_context(cafile="/workspace/ca.crt")
    try: return urllib.request.build_opener(urllib.request.ProxyHandler(), urllib.request.HTTPSHandler(context=context)).open(url, timeout=20).read().decode()
    except OSError as e: return repr(e)
def proxy(words):
    s = socket.create_connection(("127.0.0.1", 3128), timeout=20)
    s.sendall(words); return s
def status(words):
    try: return proxy(words).recv(4096).split(b"\r\n")[0].decode("latin1")
    except OSError as e: return repr(e)
def connect(target): return status(b"CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n" % (target, target))
def straight(*place):
    try: socket.create_connection(place, timeout=5); return "reached"
    except OSError as e: return type(e).__name__
def work(word):
    if word == "page": return get("https://good.example.com/")
    if word == "curl": return subprocess.run(["curl", "-sS", "--cacert", "/workspace/ca.crt", "https://good.example.com/"], capture_output=True, text=True, timeout=30).stdout
    if word == "plain": return get("http://good.example.com/")
    if word == "others": return " | ".join([get("https://other.example.com/")] + [connect(t) for t in (b"other.example.com:443", b"8.8.4.4:443", b"127.0.0.1:443", b"local.example.com:443", b"good.example.com:22")])
    if word == "straight": return " ".join([straight("8.8.4.4", 443), straight("127.0.0.1", 443), straight("5.5.5.1", 443), straight("good.example.com", 443), straight("169.254.169.254", 443)])
    if word == "flood":
        refused = 0
        held = []
        for _ in range(20):
            crowd = []
            for _ in range(500):
                try: crowd.append(socket.create_connection(("127.0.0.1", 3128), timeout=20))
                except OSError: refused += 1
            held += crowd[:4]
            for s in crowd[4:]: s.close()
        for s in held: s.close()
        import time
        for _ in range(60):
            time.sleep(1)
            page = get("https://good.example.com/")
            if "hello" in page: break
        return "flooded, then " + page
    if word == "look": return " ".join(sorted(k for k in os.environ if "PROXY" in k.upper())) + " " + os.environ["https_proxy"]
say(type="ready", protocol=1, version="1", session_id="s", model="m", mode="x", tools=[], context_window=1, max_tokens=1, gadgets=[])
for line in sys.stdin:
    m = json.loads(line)
    if m["type"] == "prompt":
        say(type="turn_started", turn_id="t")
        say(type="text_delta", turn_id="t", delta=m["text"] + ": " + str(work(m["text"])))
        say(type="turn_complete", turn_id="t", stop_reason="end_turn", iterations=1, input_tokens=0, output_tokens=0, mutations=[])
    elif m["type"] == "shutdown": sys.exit(0)
"#;

const POOLS: &str = r#"
[pool.demo]
command   = ["/usr/bin/python3", "agent.py"]
dialect   = "scaiflux"
network   = "proxy"
workspace = { path = "project", mode = "copy" }
env       = { set = { DRILL = "MARK" } }
egress    = { connections = 8, per_minute = 60000 }
[egress]
allow     = ["good.example.com:443", "local.example.com"]
"#;

fn prepare(drill: &Drill, world: &World) {
    std::fs::write(drill.workspace().join("agent.py"), AGENT).expect("agent.py");
    let ca = std::fs::read(world.path("ca.pem")).expect("ca.pem");
    std::fs::write(drill.workspace().join("ca.crt"), ca).expect("ca.pem");
}

/// The one answer that begins with this.
fn line_value<'r>(ran: &'r Ran, word: &str) -> &'r str {
    let begin = format!("\"{word}: ");
    let mut lines = ran.stdout.lines();
    let line = lines.find(|line| line.contains(&begin));
    line.unwrap_or_else(|| panic!("nothing of {word}: {}", ran.all()))
}

fn works(drill: &Drill, world: &World) {
    prepare(drill, world);
    let words = [
        "page", "curl", "plain", "others", "straight", "look", "flood",
    ];
    // The control: without a sandbox every place is there.
    for address in [
        "8.8.4.4",
        "8.8.8.8",
        "127.0.0.1",
        "5.5.5.1",
        "169.254.169.254",
    ] {
        assert!(world.straight(address), "{address}");
    }
    eventually("all of them came", || {
        world.reached().len() == 3 && world.reached_here() == 2
    });
    let before = (world.reached().len(), world.reached_here());
    let ran = drill.run(&[&["--json", "run"][..], &words].concat());
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    for word in ["page", "curl"] {
        assert!(
            line_value(&ran, word).contains("hello from good.example.com"),
            "{}",
            line_value(&ran, word)
        );
    }
    assert!(
        line_value(&ran, "plain").contains("405"),
        "{}",
        line_value(&ran, "plain")
    );
    let others = line_value(&ran, "others");
    assert!(
        others.contains("403 marshal: other.example.com:443 is not on the allow-list"),
        "{others}"
    );
    assert!(
        others.contains("400 marshal: the host is an address"),
        "{others}"
    );
    assert!(
        others.contains("403 marshal: local.example.com resolves to an address"),
        "{others}"
    );
    assert!(
        others.contains("403 marshal: good.example.com:22 is not"),
        "{others}"
    );
    let straight = line_value(&ran, "straight");
    assert!(!straight.contains("reached"), "{straight}");
    assert!(straight.contains("gaierror"), "no names inside: {straight}");
    let look = line_value(&ran, "look");
    assert!(
        look.contains(
            "ALL_PROXY HTTPS_PROXY HTTP_PROXY NO_PROXY all_proxy http_proxy https_proxy no_proxy"
        ),
        "{look}"
    );
    assert!(look.contains("http://127.0.0.1:3128"), "{look}");
    let flood = line_value(&ran, "flood");
    assert!(
        flood.contains("then hello from good.example.com"),
        "{flood}"
    );
    // Outside only the good host was seen, three times.
    assert_eq!(&world.reached()[before.0..], ["8.8.4.4"; 3]);
    assert_eq!(world.reached_here(), before.1);
    journalled(drill);
}

fn journalled(drill: &Drill) {
    let events = drill.run(&["--json", "events", "--kind", "egress"]);
    let bodies: Vec<serde_json::Value> = events
        .stdout
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON")["body"].clone())
        .collect();
    let of = |result: &str| -> Vec<&serde_json::Value> {
        bodies
            .iter()
            .filter(|body| body["result"] == result)
            .collect()
    };
    let passed = of("passed");
    assert_eq!(passed.len(), 3, "{}", events.all());
    for body in passed {
        assert_eq!(body["host"], "good.example.com");
        assert_eq!(
            (&body["port"], &body["connections"]),
            (&443.into(), &1.into())
        );
        assert!(
            body["sent"].as_u64() > Some(200) && body["received"].as_u64() > Some(500),
            "{body}"
        );
    }
    assert_eq!(of("address")[0]["host"], "local.example.com");
    let refused: Vec<_> = of("not_allowed")
        .iter()
        .map(|body| body["host"].clone())
        .collect();
    assert!(refused.contains(&"other.example.com".into()), "{refused:?}");
    assert_eq!(of("method").len(), 1, "{}", events.all());
    let flooded = of("connections")
        .iter()
        .map(|body| body["connections"].as_u64().expect("a number"))
        .sum::<u64>();
    let gone = of("gone")
        .iter()
        .map(|body| body["connections"].as_u64().expect("a number"))
        .sum::<u64>();
    let others = bodies.len();
    assert!(flooded + gone >= 9_900, "{flooded} {gone}");
    assert!(others < 200, "{others} events");
    let shown = drill.run(&["events", "--kind", "egress"]);
    assert!(
        shown.stdout.contains("good.example.com:443 passed, "),
        "{}",
        shown.all()
    );
    assert!(
        shown.stdout.contains("other.example.com:443 not_allowed"),
        "{}",
        shown.all()
    );
}

fn zone_with_local() -> serde_json::Value {
    let mut zone = zone();
    zone["local.example.com"] = serde_json::json!([["127.0.0.1"]]);
    zone
}

#[test]
fn an_agent_reaches_its_hosts_and_nothing_else() {
    if !enter("sandboxed::an_agent_reaches_its_hosts_and_nothing_else") {
        return;
    }
    let world = World::new(&zone_with_local());
    works(&Drill::new(POOLS), &world);
}

#[test]
fn the_same_holds_for_an_ordinary_users_supervisor() {
    if !enter("sandboxed::the_same_holds_for_an_ordinary_users_supervisor") {
        return;
    }
    let world = World::new(&zone_with_local());
    works(&Drill::of_nobody(POOLS), &world);
}

#[test]
fn routes_and_the_proxy_stand_side_by_side() {
    if !enter("sandboxed::routes_and_the_proxy_stand_side_by_side") {
        return;
    }
    let world = World::new(&zone_with_local());
    // The route leads to a service of this host, which the proxy never does.
    let service = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = service.local_addr().expect("an address");
    std::thread::spawn(move || {
        use std::io::{Read as _, Write as _};
        for mut stream in service.incoming().flatten() {
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nroute");
        }
    });
    let pools = POOLS
        .replace(
            "network   = \"proxy\"",
            "network   = \"proxy\"\nroutes    = [\"own\"]",
        )
        .replace(
            "DRILL = \"MARK\"",
            "DRILL = \"MARK\", BASE = \"{route.own}\"",
        );
    let drill = Drill::new(&format!(
        "{pools}[route.own]\nupstream = \"http://{address}\"\nallow = [\"GET /x\"]\n"
    ));
    prepare(&drill, &world);
    let agent = AGENT.replace(
        "    if word == \"page\"",
        "    if word == \"route\": return get(os.environ[\"BASE\"] + \"/x\")\n    if word == \"page\"",
    );
    std::fs::write(drill.workspace().join("agent.py"), agent).expect("agent.py");
    let ran = drill.run(&["--json", "run", "route", "page"]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    assert!(
        line_value(&ran, "route").contains("route: route"),
        "{}",
        ran.all()
    );
    assert!(
        line_value(&ran, "page").contains("hello from good.example.com"),
        "{}",
        ran.all()
    );
}
