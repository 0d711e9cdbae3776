//! The client against a real socket with a small fleet behind it.

use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::cli::listeners::Listeners;
use marshal_engine::api::test_fixtures::{FakeFleet, slot, spec};

struct Server {
    dir: tempfile::TempDir,
    fleet: FakeFleet,
    listeners: Listeners,
}

fn server(kind: SupervisorKind) -> Server {
    let dir = tempfile::tempdir().expect("directory");
    let fleet = FakeFleet::new();
    let listeners = Listeners::open_fake(dir.path(), &fleet, kind, None, Arc::default());
    Server {
        dir,
        fleet,
        listeners,
    }
}

fn no_bounds() -> RunBounds {
    RunBounds::default()
}

#[tokio::test]
async fn only_a_daemon_is_taken_for_one() {
    let dir = tempfile::tempdir().expect("directory");
    assert!(matches!(daemon(dir.path()).await, Ok(None)));
    assert!(matches!(daemon(&dir.path().join("none")).await, Ok(None)));
    let run = server(SupervisorKind::Run);
    assert!(matches!(daemon(run.dir.path()).await, Ok(None)));
    let up = server(SupervisorKind::Daemon);
    let found = daemon(up.dir.path())
        .await
        .expect("asked")
        .expect("a daemon");
    assert_eq!(found.state_dir(), up.dir.path());
}

#[tokio::test]
async fn logs_are_shown_safely_and_followed_until_the_end() {
    let server = server(SupervisorKind::Daemon);
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
        server.listeners.close().await;
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
async fn a_refusal_and_a_broken_stream_are_errors_with_their_codes() {
    let server = server(SupervisorKind::Daemon);
    let dir = server.dir.path();
    let mut client = Client::new(dir);
    let refused = client.submit(&[spec("a", "refuse")], no_bounds()).await;
    assert_eq!(refused.expect_err("refused").exit(), Exit::CannotStart);
    let mut pooled = spec("a", "done");
    pooled.pool = marshal_model::PoolName::new("none").ok();
    let refused = client.submit(&[pooled], no_bounds()).await;
    assert_eq!(refused.expect_err("refused").exit(), Exit::Usage);
    let huge = [spec("a", &"x".repeat(limits::RUN_BODY_BYTES))];
    let refused = client.submit(&huge, no_bounds()).await;
    assert!(matches!(refused, Err(ClientError::Unsendable(_))));

    let run = client
        .submit(&[spec("a", "hang")], no_bounds())
        .await
        .expect("taken in");
    let other = RunId::new("other").expect("id");
    let missing = client.cancel(&other).await.expect_err("missing");
    assert_eq!(missing.exit(), Exit::Usage);
    client.cancel(&run).await.expect("cancelled");
    let mut ended = 0;
    loop {
        match client.next().await.expect("an item") {
            (Some(RunStreamItem::Ended(_)), _) => ended += 1,
            (Some(RunStreamItem::Complete), _) => break,
            _ => {}
        }
    }
    assert_eq!(ended, 1);
    let run = client.submit(&[spec("b", "hang")], no_bounds()).await;
    run.expect("taken in");
    server.listeners.close().await;
    let broken = loop {
        match client.next().await {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert_eq!(broken.exit(), Exit::NoDaemon, "{broken}");
}
