//! The server over real sockets.

use std::sync::Mutex;

use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::sync::mpsc;

use super::*;
use marshal_model::EngineTool;

const HELLO: &str = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}"#;
const STEP: &str = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"plan_step","arguments":{"step":"a","status":"done"}}}"#;

struct Served {
    dir: tempfile::TempDir,
    _server: ToolServer,
    heard: mpsc::Receiver<ToolCallEvent>,
}

impl Served {
    fn as_uid(uid: u32) -> Self {
        // Longer than a socket's address.
        let dir = tempfile::tempdir().expect("a directory");
        let deep = dir.path().join("d".repeat(120));
        std::fs::create_dir(&deep).expect("made");
        let socket = Socket::bind(&deep.join("tools").join("s.sock")).expect("a socket");
        let (tell, heard) = mpsc::channel(1024);
        let tell = Mutex::new(tell);
        let tell: EventSink = Arc::new(move |said| {
            let tell = tell.lock().expect("no panic");
            let said = tell.try_send(said);
            assert!(!matches!(said, Err(mpsc::error::TrySendError::Full(_))));
        });
        let tools = vec![EngineTool::PlanStep];
        let server = ToolServer::start(socket, tools, uid, tell).expect("served");
        Self {
            dir,
            _server: server,
            heard,
        }
    }

    fn file(&self) -> std::path::PathBuf {
        self.dir.path().join("d".repeat(120)).join("tools/s.sock")
    }

    async fn connect(&self) -> BufReader<UnixStream> {
        use std::os::fd::AsRawFd as _;
        let dir = std::fs::File::open(self.file().parent().expect("a directory")).expect("there");
        let through = format!("/proc/self/fd/{}/s.sock", dir.as_raw_fd());
        BufReader::new(UnixStream::connect(through).await.expect("connected"))
    }
}

async fn say(to: &mut BufReader<UnixStream>, line: &str) {
    let line = format!("{line}\n");
    to.get_mut()
        .write_all(line.as_bytes())
        .await
        .expect("written");
}

async fn hear(from: &mut BufReader<UnixStream>) -> String {
    let mut line = String::new();
    from.read_line(&mut line).await.expect("read");
    line
}

fn own() -> u32 {
    rustix::process::geteuid().as_raw()
}

#[tokio::test]
async fn a_call_is_told_and_its_answer_goes_back() {
    let mut served = Served::as_uid(own());
    let mut client = served.connect().await;
    say(&mut client, HELLO).await;
    assert!(hear(&mut client).await.contains("\"2025-06-18\""));
    say(&mut client, STEP).await;
    let Some(ToolCallEvent::Call { reply, .. }) = served.heard.recv().await else {
        panic!("no call");
    };
    reply
        .send(Ok("noted".to_owned().into()))
        .expect("waited for");
    let answer = hear(&mut client).await;
    assert!(
        answer.contains("noted") && answer.contains("\"isError\":false"),
        "{answer}"
    );
    // One that is dropped is an error, and the connection goes on.
    say(&mut client, STEP).await;
    drop(served.heard.recv().await);
    let answer = hear(&mut client).await;
    assert!(answer.contains("\"isError\":true"), "{answer}");
}

/// The client of the protocol's own library, with and without a handshake.
#[tokio::test]
async fn the_librarys_client_works_in_each_version() {
    use rmcp::model::{CallToolRequestParams, ProtocolVersion};
    use rmcp::{ClientLifecycleMode, ClientServiceExt as _};

    let newest = vec![ProtocolVersion::V_2026_07_28];
    let lifecycles = [
        (
            ClientLifecycleMode::Discover {
                preferred_versions: newest.clone(),
            },
            "2026-07-28",
        ),
        (
            ClientLifecycleMode::Auto {
                preferred_versions: newest,
                legacy_version: None,
            },
            "2026-07-28",
        ),
        (ClientLifecycleMode::Initialize, "2025-11-25"),
    ];
    for (lifecycle, version) in lifecycles {
        let mut served = Served::as_uid(own());
        let stream = served.connect().await.into_inner();
        let client = ().serve_with_lifecycle(stream, lifecycle).await.expect(version);
        let server = client.peer_info().expect("what it says of itself");
        assert_eq!(server.protocol_version.to_string(), version);
        let info = server.server_info.as_ref().expect("a name");
        assert_eq!(info.name, "marshal");
        let tools = client.list_all_tools().await.expect("tools");
        assert_eq!(tools.len(), 1, "{tools:?}");
        let arguments = serde_json::json!({"step": "a", "status": "done"})
            .as_object()
            .expect("an object")
            .clone();
        let call = CallToolRequestParams::new("plan_step").with_arguments(arguments);
        let answering = async {
            let Some(ToolCallEvent::Call { reply, .. }) = served.heard.recv().await else {
                panic!("no call");
            };
            reply
                .send(Ok("noted".to_owned().into()))
                .expect("waited for");
        };
        let (called, ()) = tokio::join!(client.call_tool(call), answering);
        let result = serde_json::to_value(called.expect("a result")).expect("JSON");
        assert_eq!(result["content"][0]["text"], "noted", "{result}");
        assert_eq!(result["isError"], false, "{result}");
        client.cancel().await.expect("ended");
    }
}

#[tokio::test]
async fn calls_of_a_connection_that_ends_or_cancels_are_not_waited_for() {
    let mut served = Served::as_uid(own());
    let mut client = served.connect().await;
    say(&mut client, HELLO).await;
    hear(&mut client).await;
    say(&mut client, STEP).await;
    let Some(ToolCallEvent::Call { number, reply, .. }) = served.heard.recv().await else {
        panic!("no call");
    };
    let cancel = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#;
    say(&mut client, cancel).await;
    let Some(ToolCallEvent::Abandoned(gone)) = served.heard.recv().await else {
        panic!("not cancelled");
    };
    assert_eq!(gone, number);
    drop(reply);
    say(&mut client, STEP).await;
    let Some(ToolCallEvent::Call {
        number,
        reply: _kept,
        ..
    }) = served.heard.recv().await
    else {
        panic!("no call");
    };
    drop(client);
    loop {
        match served.heard.recv().await.expect("said") {
            ToolCallEvent::Abandoned(gone) if gone == number => break,
            ToolCallEvent::Abandoned(other) => panic!("{other} is gone, not {number}"),
            ToolCallEvent::Call { .. } => {}
        }
    }
}

#[tokio::test]
async fn somebody_else_and_one_too_many_are_not_served() {
    let stranger = Served::as_uid(own() + 1);
    let mut client = stranger.connect().await;
    assert_eq!(hear(&mut client).await, "");

    let served = Served::as_uid(own());
    let mut clients = Vec::new();
    for _ in 0..TOOL_CONNECTIONS {
        let mut client = served.connect().await;
        say(&mut client, HELLO).await;
        assert!(hear(&mut client).await.contains("\"result\""));
        clients.push(client);
    }
    let mut late = served.connect().await;
    let said = hear(&mut late).await;
    assert!(said.contains("connections are open"), "{said}");
    assert_eq!(hear(&mut late).await, "");
    let file = served.file();
    assert!(file.exists());
    drop(served);
    assert!(
        clients
            .pop()
            .is_some_and(|client| client.buffer().is_empty())
    );
}
