//! The client against a real control socket with a small fleet behind it.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::*;
use marshal_engine::api::control;
use marshal_engine::api::test_fixtures::{FakeFleet, slot, spec};

struct Server {
    dir: tempfile::TempDir,
    fleet: FakeFleet,
    stop: CancellationToken,
}

fn server(role: Role) -> Server {
    let dir = tempfile::tempdir().expect("directory");
    let fleet = FakeFleet::new();
    let stop = CancellationToken::new();
    let listener = control::bind(dir.path()).expect("bound");
    let bounds = control::Bounds::default();
    tokio::spawn(control::serve(
        listener,
        fleet.clone(),
        role,
        bounds,
        std::sync::Arc::new(control::Runs::default()),
        stop.clone(),
    ));
    Server { dir, fleet, stop }
}

#[tokio::test]
async fn only_a_daemon_is_taken_for_one() {
    let dir = tempfile::tempdir().expect("directory");
    assert!(matches!(daemon(dir.path()).await, Ok(None)));
    assert!(matches!(daemon(&dir.path().join("none")).await, Ok(None)));
    let run = server(Role::Run);
    assert!(matches!(daemon(run.dir.path()).await, Ok(None)));
    let up = server(Role::Daemon);
    let found = daemon(up.dir.path())
        .await
        .expect("asked")
        .expect("a daemon");
    assert_eq!(found.state_dir(), up.dir.path());
}

#[tokio::test]
async fn logs_are_shown_safely_and_followed_until_the_end() {
    let server = server(Role::Daemon);
    let (mut streams, out, _) = Streams::captured(false);
    let exit = logs(server.dir.path(), slot(0), false, false, &mut streams).await;
    assert_eq!(exit, Exit::Done);
    assert_eq!(out.text(), "first\nsecond\\u{1b}[2J\n");

    let (mut streams, out, _) = Streams::captured(true);
    let follow = logs(server.dir.path(), slot(0), true, true, &mut streams);
    let rest = async {
        for _ in 0..2000 {
            tokio::time::sleep(Duration::from_millis(10)).await;
            server.fleet.print("third\u{202e}");
            if out.text().contains("third") {
                break;
            }
        }
        server.stop.cancel();
    };
    let (exit, ()) = tokio::join!(follow, rest);
    assert_eq!(exit, Exit::Done);
    assert!(
        out.text()
            .contains("{\"type\":\"log\",\"text\":\"third\\u202e\"}"),
        "{}",
        out.text()
    );
}

#[tokio::test]
async fn a_restart_says_what_it_did_or_why_not() {
    let server = server(Role::Run);
    let (mut streams, _, err) = Streams::captured(false);
    assert_eq!(
        restart(server.dir.path(), slot(1), &mut streams).await,
        Exit::Done
    );
    assert_eq!(
        restart(server.dir.path(), slot(9), &mut streams).await,
        Exit::Usage
    );
    let nobody = server.dir.path().join("none");
    assert_eq!(
        restart(&nobody, slot(1), &mut streams).await,
        Exit::NoDaemon
    );
    let text = err.text();
    assert!(
        text.starts_with("demo/1: restarted\nerror: there is no slot demo/9; the slots are"),
        "{text}"
    );
    assert!(text.contains("start one with `marshal up`"), "{text}");
    assert_eq!(server.fleet.restarts(), 1);
}

#[tokio::test]
async fn a_refusal_and_a_broken_stream_are_errors_with_their_codes() {
    let server = server(Role::Daemon);
    let dir = server.dir.path();
    let mut client = Client::connect(dir).await.expect("connected");
    let refused = client
        .submit(vec![spec("a", "refuse")])
        .await
        .expect_err("refused");
    assert_eq!(refused.exit(), Exit::CannotStart);
    let mut pooled = spec("a", "done");
    pooled.pool = marshal_model::PoolName::new("none").ok();
    let refused = client.submit(vec![pooled]).await.expect_err("refused");
    assert_eq!(refused.exit(), Exit::Usage);
    let huge = vec![spec("a", &"x".repeat(limits::CONTROL_LINE_BYTES))];
    let refused = client.submit(huge).await.expect_err("too long");
    assert!(matches!(refused, ClientError::TooLong(_)));

    let run = client
        .submit(vec![spec("a", "hang")])
        .await
        .expect("taken in");
    assert!(
        Client::cancel(dir, RunId::new("other").expect("id"))
            .await
            .is_err()
    );
    Client::cancel(dir, run).await.expect("cancelled");
    let mut ended = 0;
    loop {
        match client.next().await.expect("an item") {
            (Some(RunStreamItem::Ended(_)), _) => ended += 1,
            (Some(RunStreamItem::Complete), _) => break,
            _ => {}
        }
    }
    assert_eq!(ended, 1);
    client
        .submit(vec![spec("b", "hang")])
        .await
        .expect("taken in");
    server.stop.cancel();
    let broken = loop {
        match client.next().await {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert_eq!(broken.exit(), Exit::NoDaemon, "{broken}");
}
