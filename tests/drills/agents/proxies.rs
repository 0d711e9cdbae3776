//! Whether an agent goes through the proxy that its environment names: what its preset says is
//! what is seen here.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::agents::bench::{PATIENCE, alone, run_output, start, tools};
use crate::agents::table::agent_row;
use crate::drill::Drill;

/// A provider that no name server knows: only a proxy could reach it.
const PROVIDER: &str = "model.invalid";

/// Tells the first line of everything that reaches it, and answers that it cannot.
fn proxy() -> (u16, mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let (sender, received) = mpsc::sync_channel(256);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let sender = sender.clone();
            // One that says nothing holds up no other.
            std::thread::spawn(move || {
                let mut line = String::new();
                let _ = BufReader::new(&stream).read_line(&mut line);
                let _ =
                    (&stream).write_all(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n");
                // The test may be over.
                let _ = sender.send(line);
            });
        }
    });
    (port, received)
}

/// What a preset has for a pool with a route, with the provider in the route's place.
fn without_route(text: &str) -> String {
    let mut left = text;
    let mut out = String::new();
    while let Some((before, rest)) = left.split_once("{route.") {
        let (_, rest) = rest.split_once('}').expect("a name");
        let _ = write!(out, "{before}https://{PROVIDER}");
        left = rest;
    }
    (out + left).replace("{model}", "gpt-5")
}

fn uses_the_proxy_as_its_preset_says(name: &str) {
    let _alone = alone();
    let presets = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/config/src/presets");
    let text = fs::read_to_string(presets.join(format!("{name}.toml"))).expect("a preset");
    let preset: toml::Table = text.parse().expect("TOML");
    let texts = |table: Option<&toml::Value>| -> BTreeMap<String, String> {
        let table = table.and_then(toml::Value::as_table);
        let entries = table.into_iter().flatten();
        let text = |value: &toml::Value| without_route(value.as_str().expect("a text"));
        entries
            .map(|(key, value)| (key.clone(), text(value)))
            .collect()
    };
    let routed = preset["routed"].as_table().expect("a table");
    let mut set = texts(routed.get("env").and_then(|env| env.get("set")));
    let files = texts(preset.get("routed_home"));
    let (port, received) = proxy();
    for variable in ["HTTPS_PROXY", "https_proxy"] {
        set.insert(variable.to_owned(), format!("http://127.0.0.1:{port}"));
    }
    let keys = routed
        .get("auth")
        .map_or_else(String::new, |auth| format!("auth = {auth}"));
    let set: Vec<String> = set
        .iter()
        .map(|(name, value)| format!("{name} = {value:?}"))
        .collect();
    let names: Vec<String> = (0..files.len())
        .map(|number| format!("home-{number}"))
        .collect();
    let home: Vec<String> = files
        .keys()
        .zip(&names)
        .map(|(to, from)| format!("{to:?} = {from:?}"))
        .collect();
    let dir = tools().join("five").join(name);
    let drill = Drill::new(&format!(
        r#"
[pool.real]
agent      = "{name}"
agent_dir  = {:?}
network    = "host"
workspace  = {{ path = "project", mode = "copy" }}
timeouts   = {{ handshake = "4m" }}
env        = {{ set = {{ DRILL = "MARK", {} }} }}
home_files = {{ {} }}
{keys}"#,
        dir.display().to_string(),
        set.join(", "),
        home.join(", "),
    ));
    for (name, text) in names.iter().zip(files.values()) {
        fs::write(drill.path(name), text).expect("a file");
    }
    let mut running = start(&drill, "", "proxied", &[("one", "SAY: hello")]);
    // What does not go through the proxy fails by itself: no name server knows the provider.
    let began = Instant::now();
    let mut seen = Vec::new();
    let through = loop {
        match received.recv_timeout(Duration::from_millis(200)) {
            Ok(line) if line.contains(PROVIDER) => break true,
            Ok(line) => seen.push(line),
            Err(_) => {
                let ended = running.child.try_wait().expect("its state");
                if ended.is_some() || began.elapsed() > PATIENCE / 4 {
                    break false;
                }
            }
        }
    };
    // One that ended is nobody any more to whom a signal could be sent.
    if running.child.try_wait().expect("its state").is_none() {
        running.end(Duration::from_secs(60));
    }
    let proxies = agent_row(name)["proxies"]
        .as_str()
        .expect("a text")
        .to_owned();
    let word = if through { "yes: " } else { "no: " };
    assert!(
        proxies.starts_with(word),
        "{name} is said to use proxies: {proxies}; seen: {through}, {seen:?}\n{}",
        run_output(&drill, "proxied")
    );
}

#[test]
fn codex_uses_proxies_as_its_preset_says() {
    uses_the_proxy_as_its_preset_says("codex");
}

#[test]
fn claude_uses_proxies_as_its_preset_says() {
    uses_the_proxy_as_its_preset_says("claude");
}

#[test]
fn gemini_uses_proxies_as_its_preset_says() {
    uses_the_proxy_as_its_preset_says("gemini");
}

#[test]
fn opencode_uses_proxies_as_its_preset_says() {
    uses_the_proxy_as_its_preset_says("opencode");
}

#[test]
fn hermes_uses_proxies_as_its_preset_says() {
    uses_the_proxy_as_its_preset_says("hermes");
}
