//! A client that a generator makes from the OpenAPI document: it works through a chat, and loses its
//! connection on the way.

use std::process::Command;

use crate::api::api_daemon::{ApiDaemon, POOL};
use crate::http_clients::tool;

const CLIENT: &str = include_str!("client.py");

#[test]
fn a_generated_client_works_through_a_chat_with_reconnects() {
    let api = ApiDaemon::of(POOL);
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(
        dir.path().join("openapi.json"),
        api.get("/openapi.json").text,
    )
    .expect("written");
    std::fs::write(dir.path().join("client.py"), CLIENT).expect("written");
    let python = tool("openapi-client", "python");
    let run = |command: &mut Command| {
        let ran = command
            .current_dir(dir.path())
            .env_clear()
            .env("HOME", dir.path())
            // The generator formats what it has made with a program beside it.
            .env(
                "PATH",
                format!("{}:/usr/bin:/bin", python.parent().expect("bin").display()),
            )
            .output()
            .expect("it starts");
        let printed = String::from_utf8_lossy(&ran.stdout).into_owned();
        let all = printed.clone() + &String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success(), "{:?}\n{all}", ran.status);
        (printed, all)
    };
    let mut generate = Command::new(tool("openapi-client", "openapi-python-client"));
    generate.args(["generate", "--path", "openapi.json", "--meta", "none"]);
    let (_, all) = run(generate.args(["--output-path", "marshal_client"]));
    assert!(!all.contains("WARNING"), "nothing of it is left out: {all}");
    let mut client = Command::new(&python);
    client.args(["client.py", &format!("http://{}", api.address), &api.token]);
    let (printed, _) = run(&mut client);
    assert_eq!(printed.trim(), "done", "{printed}");
    api.drill.assert_dense();
}
