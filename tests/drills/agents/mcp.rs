//! A tool server behind a route: the agent reaches it, and the key is added outside.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Value, json};

use crate::agents::bench::{
    Model, PATIENCE, alone, assert_no_file_with_key, assert_without_key, inside, result,
    run_output, start, tools,
};
use crate::agents::five::{CLAUDE, CODEX, Kind, POLICY};
use crate::drill::{Drill, eventually};

/// One request that came: its method of JSON-RPC, and the header that carries keys.
type ReceivedRequest = (String, Option<String>);

/// A tool server by streamable HTTP, with one tool.
struct Server {
    address: String,
    received: Arc<Mutex<Vec<ReceivedRequest>>>,
}

impl Server {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = format!("http://{}", listener.local_addr().expect("an address"));
        let received = Arc::new(Mutex::new(Vec::new()));
        let reported = Arc::clone(&received);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let reported = Arc::clone(&reported);
                std::thread::spawn(move || serve(&stream, &reported));
            }
        });
        Self { address, received }
    }

    fn received_requests(&self) -> Vec<ReceivedRequest> {
        let received = self.received.lock().unwrap_or_else(PoisonError::into_inner);
        received.clone()
    }
}

/// Answers one request.
fn serve(stream: &TcpStream, records: &Mutex<Vec<ReceivedRequest>>) -> Option<()> {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    reader.read_line(&mut head).ok()?;
    let (mut length, mut key) = (0, None);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim().split_once(": ") else {
            break;
        };
        match name.to_lowercase().as_str() {
            "content-length" => length = value.parse().ok()?,
            "authorization" => key = Some(value.to_owned()),
            _ => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let call: Value = serde_json::from_slice(&body).unwrap_or_default();
    let method = call["method"].as_str().unwrap_or_default().to_owned();
    let answer = match method.as_str() {
        "initialize" => Some(json!({
            "protocolVersion": call["params"]["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "search", "version": "1"},
        })),
        "tools/list" => Some(json!({"tools": [
            {"name": "look_up", "description": "looks up", "inputSchema": {"type": "object", "properties": {}}}
        ]})),
        _ => None,
    };
    if !method.is_empty() {
        let mut records = records.lock().unwrap_or_else(PoisonError::into_inner);
        records.push((method, key));
    }
    let answer = answer
        .map(|result| json!({"jsonrpc": "2.0", "id": call["id"], "result": result}).to_string());
    let (status, body) = match answer {
        Some(body) => ("200 OK", body),
        None if head.starts_with("POST") => ("202 Accepted", String::new()),
        None => ("405 Method Not Allowed", String::new()),
    };
    let mut stream = stream;
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
    .ok()
}

fn reaches_its_tool_server(kind: &Kind) {
    let _alone = alone();
    let model = Model::start();
    let server = Server::start();
    let Kind { name, route, .. } = kind;
    let drill = Drill::new(&format!(
        r#"
[route.{route}]
upstream = "{}"
secret   = "env:REHEARSAL_KEY"

[route.search]
upstream = "{}"
secret   = "env:REHEARSAL_KEY"
allow    = ["POST /mcp", "GET /mcp", "DELETE /mcp"]

[pool.real]
agent       = "{name}"
agent_dir   = {:?}
policy      = "rehearsal"
routes      = ["{route}", "search"]
mcp_servers = [{{ name = "search", type = "http", route = "search", path = "/mcp" }}]
workspace   = {{ path = "project", mode = "copy" }}
timeouts    = {{ handshake = "4m" }}
env         = {{ set = {{ DRILL = "MARK" }} }}

[policy.rehearsal]
file = "rehearsal.toml"
"#,
        model.address,
        server.address,
        tools().join("five").join(name).display().to_string(),
    ));
    fs::write(drill.path("rehearsal.toml"), POLICY).expect("a policy");
    let tasks = [("one", "SAY: hello\nSLEEP: 2\nSAY: bye")];
    let mut running = start(&drill, &model.key, "served", &tasks);
    let listed = || {
        server
            .received_requests()
            .iter()
            .any(|(method, _)| method == "tools/list")
    };
    eventually(PATIENCE, "the tools are listed", || {
        let ended = running.child.try_wait().expect("its state").is_some();
        assert!(
            !ended || listed(),
            "{:?}\n{}",
            server.received_requests(),
            run_output(&drill, "served")
        );
        listed()
    });
    let agents = drill.agents();
    if !agents.is_empty() {
        assert_without_key(&inside(&agents), &model.key);
    }
    let _ = running.wait(PATIENCE);
    let all = run_output(&drill, "served");
    assert_eq!(result(&drill, "served", "one")["outcome"], "done", "{all}");
    // Every request that reached the server has the key, which was nowhere inside.
    let bearer = format!("Bearer {}", model.key);
    for (method, key) in server.received_requests() {
        assert_eq!(key.as_deref(), Some(bearer.as_str()), "{method}");
    }
    assert!(
        server
            .received_requests()
            .iter()
            .any(|(method, _)| method == "initialize")
    );
    assert_no_file_with_key(&drill.state(), &model.key);
}

#[test]
fn codex_reaches_a_tool_server_by_a_route_that_adds_the_key() {
    reaches_its_tool_server(&CODEX);
}

#[test]
fn claude_reaches_a_tool_server_by_a_route_that_adds_the_key() {
    reaches_its_tool_server(&CLAUDE);
}
