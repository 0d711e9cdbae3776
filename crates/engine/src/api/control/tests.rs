//! The control socket over real unix sockets, with a small fleet behind it.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;
use crate::api::json_lines;
use crate::api::reply::{self, Reply};
use crate::api::request::{self, Request};
use crate::api::run_stream::RunStreamItem;
use crate::api::test_fixtures::{FakeFleet, spec};
use marshal_fleet::FleetEvent;
use marshal_model::{TaskOutcome, TaskSpec};

struct Server {
    dir: tempfile::TempDir,
    fleet: FakeFleet,
    stop: CancellationToken,
    done: tokio::task::JoinHandle<()>,
}

fn server(role: Role, bounds: Bounds) -> Server {
    server_of(role, bounds, Arc::default())
}

fn server_of(role: Role, bounds: Bounds, runs: Arc<Runs>) -> Server {
    let dir = tempfile::tempdir().expect("directory");
    let fleet = FakeFleet::new();
    let stop = CancellationToken::new();
    let listener = bind(dir.path()).expect("bound");
    let done = tokio::spawn(serve(
        listener,
        fleet.clone(),
        role,
        bounds,
        runs,
        stop.clone(),
    ));
    Server {
        dir,
        fleet,
        stop,
        done,
    }
}

#[tokio::test]
async fn a_run_that_is_about_to_be_taken_up_is_waited_for() {
    let id = |text: &str| RunId::new(text).expect("id");
    let runs = Arc::new(Runs::with_pending([id("one"), id("two"), id("three")]));
    let server = server_of(Role::Daemon, Bounds::default(), Arc::clone(&runs));
    let dir = server.dir.path();
    let watch = |run: &str| format!(r#"{{"v":1,"op":"watch","run":"{run}"}}"#);
    let mut none = client(dir).await;
    assert_eq!(
        code(&send(&mut none, &watch("none")).await),
        Code::NoSuchRun
    );
    let (mut one, mut two, mut three) = (client(dir).await, client(dir).await, client(dir).await);
    for (client, run) in [(&mut one, "one"), (&mut two, "two"), (&mut three, "three")] {
        client.send(watch(run)).await.expect("sent");
        let early = client.next(Some(Duration::from_millis(100))).await;
        assert!(matches!(early, Err(LineError::TooSlow(_))), "{early:?}");
    }
    let (_tell, reports) = tokio::sync::mpsc::channel(1);
    runs.insert(&Ledger::collect(id("one"), 7, reports));
    let told = reply::read_reply(&line(&mut one).await.expect("a reply")).expect("known");
    assert!(matches!(told, Reply::Watching { accepted: 7 }), "{told:?}");
    runs.drop_pending(&id("two"));
    let told = reply::read_reply(&line(&mut two).await.expect("a reply")).expect("known");
    assert_eq!(code(&told), Code::NoSuchRun);
    server.stop.cancel();
    let told = reply::read_reply(&line(&mut three).await.expect("a reply")).expect("known");
    assert_eq!(code(&told), Code::Stopping);
}

fn brief() -> Bounds {
    Bounds {
        connections: 2,
        line: 4096,
        wait: Duration::from_millis(300),
        drain: Duration::from_millis(400),
    }
}

async fn client(dir: &Path) -> Lines {
    let stream = connect(dir).await.expect("connected");
    Lines::new(stream, 1 << 20, Duration::from_secs(60))
}

async fn line(lines: &mut Lines) -> Option<String> {
    let line = lines.next(Some(Duration::from_secs(60))).await.ok()??;
    Some(String::from_utf8(line).expect("text"))
}

async fn send(lines: &mut Lines, request: &str) -> Reply {
    lines.send(request.to_owned()).await.expect("sent");
    reply::read_reply(&line(lines).await.expect("a reply")).expect("a known reply")
}

fn code(reply: &Reply) -> Code {
    match reply {
        Reply::Failed(failure) => failure.code,
        other => panic!("no failure: {other:?}"),
    }
}

fn submit(tasks: Vec<TaskSpec>) -> String {
    request::write(&Request::Submit {
        tasks,
        watch: true,
        bounds: marshal_fleet::RunBounds::default(),
    })
    .expect("written")
}

async fn stream(lines: &mut Lines) -> Vec<RunStreamItem> {
    let mut items = Vec::new();
    loop {
        let text = line(lines).await.expect("a line of the stream");
        let item = json_lines::read_item(&text)
            .expect(&text)
            .expect("a known item");
        let last = matches!(item, RunStreamItem::Complete);
        items.push(item);
        if last {
            return items;
        }
    }
}

fn ended_tasks(items: &[RunStreamItem]) -> Vec<(String, TaskOutcome)> {
    items
        .iter()
        .filter_map(|item| match item {
            RunStreamItem::Ended(report) => Some((report.task.to_string(), report.outcome)),
            _ => None,
        })
        .collect()
}

#[tokio::test]
async fn the_socket_is_for_its_owner_and_goes_with_its_server() {
    let server = server(Role::Daemon, Bounds::default());
    let path = server.dir.path().join(socket::NAME);
    let mode = std::fs::metadata(&path)
        .expect("there")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    let mut one = client(server.dir.path()).await;
    let reply = send(&mut one, "{\"v\":1,\"op\":\"hello\"}").await;
    let pid = std::process::id();
    let role = Role::Daemon;
    let configuration = "digest".to_owned();
    assert_eq!(
        reply,
        Reply::Hello {
            role,
            pid,
            configuration
        }
    );
    server.stop.cancel();
    server.done.await.expect("no panic");
    assert!(!path.exists());
    assert_eq!(
        code(&reply::read_reply(&line(&mut one).await.expect("told")).expect("reply")),
        Code::Stopping
    );
    let gone = connect(server.dir.path()).await.expect_err("gone");
    assert_eq!(gone.kind(), std::io::ErrorKind::NotFound);
}

#[tokio::test]
async fn what_a_dead_supervisor_left_is_replaced_and_nothing_else_is() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join(socket::NAME);
    drop(std::os::unix::net::UnixListener::bind(&path).expect("stale"));
    let refused = connect(dir.path()).await.expect_err("nobody there");
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    drop(bind(dir.path()).expect("replaced"));
    std::fs::write(&path, "precious").expect("written");
    assert!(matches!(bind(dir.path()), Err(BindError::NotASocket(_))));
    assert_eq!(std::fs::read(&path).expect("still there"), b"precious");
}

#[tokio::test]
async fn a_long_state_directory_has_a_socket_too() {
    let dir = tempfile::tempdir().expect("directory");
    let long = dir.path().join("x".repeat(120)).join("y".repeat(120));
    std::fs::create_dir_all(&long).expect("made");
    let listener = bind(&long).expect("bound");
    let (near, far) = tokio::join!(connect(&long), listener.unix.accept());
    assert!(near.is_ok() && far.is_ok());
}

#[tokio::test]
async fn a_submitted_run_is_streamed_from_its_first_notice_to_its_last() {
    let server = server(Role::Daemon, Bounds::default());
    let mut one = client(server.dir.path()).await;
    let request = submit(vec![
        spec("a", "done"),
        spec("b", "deny"),
        spec("c", "done"),
    ]);
    let Reply::Submitted { run, accepted } = send(&mut one, &request).await else {
        panic!("not submitted");
    };
    assert_eq!(accepted, 3);
    let items = stream(&mut one).await;
    let queued = items
        .iter()
        .filter(|item| matches!(item, RunStreamItem::Notice(FleetEvent::TaskQueued { run: r, .. }) if *r == run));
    assert_eq!(queued.count(), 3, "nothing is missed: {items:?}");
    let outcomes = [
        ("a".to_owned(), TaskOutcome::Done),
        ("b".to_owned(), TaskOutcome::Denied),
        ("c".to_owned(), TaskOutcome::Done),
    ];
    assert_eq!(ended_tasks(&items), outcomes);
    assert!(items.iter().any(|item| matches!(
        item,
        RunStreamItem::Notice(FleetEvent::SessionEvents { .. })
    )));
    // The same connection goes on, and the run can still be looked at.
    let watch = request::write(&Request::Watch { run }).expect("written");
    assert_eq!(
        send(&mut one, &watch).await,
        Reply::Watching { accepted: 3 }
    );
    assert_eq!(ended_tasks(&stream(&mut one).await), outcomes);
}

#[tokio::test]
async fn a_watcher_sees_its_own_run_only() {
    let server = server(Role::Daemon, Bounds::default());
    let (mut one, mut two) = (
        client(server.dir.path()).await,
        client(server.dir.path()).await,
    );
    let Reply::Submitted { run, .. } = send(&mut one, &submit(vec![spec("a", "hang")])).await
    else {
        panic!("not submitted");
    };
    send(
        &mut two,
        &submit(vec![spec("a", "deny"), spec("b", "done")]),
    )
    .await;
    let others = stream(&mut two).await;
    assert_eq!(ended_tasks(&others).len(), 2);
    let cancel = request::write(&Request::Cancel { run: run.clone() }).expect("written");
    assert_eq!(send(&mut two, &cancel).await, Reply::Done);
    let own = stream(&mut one).await;
    assert_eq!(
        ended_tasks(&own),
        [("a".to_owned(), TaskOutcome::Cancelled)]
    );
    let foreign = own.iter().any(|item| match item {
        RunStreamItem::Notice(
            FleetEvent::TaskQueued { run: r, .. } | FleetEvent::TaskAssigned { run: r, .. },
        ) => *r != run,
        RunStreamItem::Notice(FleetEvent::SessionEvents { .. }) => true,
        _ => false,
    });
    assert!(!foreign, "{own:?}");
}

#[tokio::test]
async fn a_slow_watcher_lags_and_loses_neither_report_nor_event() {
    let server = server(Role::Daemon, Bounds::default());
    let mut one = client(server.dir.path()).await;
    let request = submit(vec![spec("a", "flood 50000"), spec("b", "flood 50000")]);
    send(&mut one, &request).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let items = stream(&mut one).await;
    assert!(
        items
            .iter()
            .any(|item| matches!(item, RunStreamItem::Lagged(_)))
    );
    assert_eq!(ended_tasks(&items).len(), 2, "each exactly once");
    assert!(matches!(items.last(), Some(RunStreamItem::Complete)));
    let mut seqs = std::collections::HashMap::<_, Vec<u64>>::new();
    let (mut assigned, mut over) = (Vec::new(), Vec::new());
    for item in &items {
        match item {
            RunStreamItem::Notice(FleetEvent::TaskAssigned { session, .. }) => {
                assigned.push(session.clone());
            }
            RunStreamItem::Notice(FleetEvent::SessionEvents {
                session, events, ..
            }) => {
                assert!(assigned.contains(session), "its assignment comes first");
                assert!(!over.contains(session), "its report comes last");
                let seen = seqs.entry(session.clone()).or_default();
                seen.extend(events.iter().map(|event| event.id.seq));
            }
            RunStreamItem::Ended(report) => over.extend(report.session.clone()),
            _ => {}
        }
    }
    assert_eq!((assigned.len(), seqs.len()), (2, 2));
    for seen in seqs.values() {
        assert!(
            seen.iter().copied().eq(1..=50_000),
            "every event once, in order"
        );
    }
}

#[tokio::test]
async fn a_client_that_reads_nothing_is_dropped_and_slows_nobody() {
    let server = server(Role::Daemon, brief());
    let mut deaf = client(server.dir.path()).await;
    let hang = submit(vec![spec("a", "hang")]);
    deaf.send(hang).await.expect("sent");
    // Far more than the socket's buffers hold, so that the server's writes stall.
    for _ in 0..50 {
        for _ in 0..2000 {
            server.fleet.publish(FleetEvent::SlotChanged {
                slot: crate::api::test_fixtures::slot(0),
                state: marshal_model::SlotState::Busy,
                note: Some("x".repeat(1000)),
            });
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let mut other = client(server.dir.path()).await;
    let reply = send(&mut other, &submit(vec![spec("z", "done")])).await;
    assert!(matches!(reply, Reply::Submitted { .. }), "{reply:?}");
    assert_eq!(ended_tasks(&stream(&mut other).await).len(), 1);
    while let Some(told) = line(&mut deaf).await {
        assert!(
            !told.contains("complete"),
            "the stream was cut, not completed"
        );
    }
}

#[tokio::test]
async fn bad_requests_are_answered_and_bounds_end_the_connection() {
    let server = server(Role::Daemon, brief());
    let mut one = client(server.dir.path()).await;
    assert_eq!(code(&send(&mut one, "nonsense").await), Code::BadJson);
    assert_eq!(
        code(&send(&mut one, "{\"v\":1,\"op\":\"fly\"}").await),
        Code::BadRequest
    );
    let unknown = "{\"v\":1,\"op\":\"watch\",\"run\":\"none\"}";
    assert_eq!(code(&send(&mut one, unknown).await), Code::NoSuchRun);
    let mut pooled = spec("a", "done");
    pooled.pool = marshal_model::PoolName::new("none").ok();
    assert_eq!(
        code(&send(&mut one, &submit(vec![pooled])).await),
        Code::BadTasks
    );
    assert_eq!(
        code(&send(&mut one, &submit(vec![spec("a", "refuse")])).await),
        Code::Refused
    );
    assert_eq!(
        code(&send(&mut one, &"x".repeat(5000)).await),
        Code::TooLong
    );
    assert_eq!(line(&mut one).await, None, "the connection ends");

    let mut silent = client(server.dir.path()).await;
    let told = line(&mut silent).await.expect("told");
    assert_eq!(
        code(&reply::read_reply(&told).expect("reply")),
        Code::TooSlow
    );
    assert_eq!(line(&mut silent).await, None);
}

#[tokio::test]
async fn one_client_too_many_is_told_to_come_again() {
    let server = server(Role::Daemon, brief());
    let mut first = client(server.dir.path()).await;
    let mut second = client(server.dir.path()).await;
    send(&mut first, "{\"v\":1,\"op\":\"hello\"}").await;
    send(&mut second, "{\"v\":1,\"op\":\"hello\"}").await;
    let mut third = client(server.dir.path()).await;
    let told = line(&mut third).await.expect("told");
    assert_eq!(code(&reply::read_reply(&told).expect("reply")), Code::Busy);
}

#[tokio::test]
async fn a_run_of_its_own_takes_no_tasks_but_shows_logs_and_restarts() {
    let server = server(Role::Run, Bounds::default());
    let mut one = client(server.dir.path()).await;
    assert_eq!(
        code(&send(&mut one, &submit(vec![spec("a", "done")])).await),
        Code::NoDaemon
    );
    let restart = |slot: &str| format!("{{\"v\":1,\"op\":\"restart\",\"slot\":\"{slot}\"}}");
    assert_eq!(send(&mut one, &restart("demo/1")).await, Reply::Done);
    assert_eq!(server.fleet.restarts(), 1);
    let missing = send(&mut one, &restart("demo/9")).await;
    assert_eq!(code(&missing), Code::NoSuchSlot);
    assert!(
        format!("{missing:?}").contains("demo/0, demo/1"),
        "{missing:?}"
    );

    let logs = |follow: bool| {
        format!("{{\"v\":1,\"op\":\"logs\",\"slot\":\"demo/0\",\"follow\":{follow}}}")
    };
    assert_eq!(send(&mut one, &logs(false)).await, Reply::Done);
    let mut items = Vec::new();
    for _ in 0..3 {
        items.push(json_lines::read_log(&line(&mut one).await.expect("line")).expect("log"));
    }
    let expect = [
        json_lines::LogItem::Line("first".into()),
        json_lines::LogItem::Line("second\u{1b}[2J".into()),
        json_lines::LogItem::Complete,
    ];
    assert_eq!(items, expect);
    assert_eq!(send(&mut one, &logs(true)).await, Reply::Done);
    line(&mut one).await;
    line(&mut one).await;
    server.fleet.print("third");
    let third = json_lines::read_log(&line(&mut one).await.expect("line")).expect("log");
    assert_eq!(third, json_lines::LogItem::Line("third".into()));
    server.stop.cancel();
    let last = json_lines::read_log(&line(&mut one).await.expect("line")).expect("log");
    assert_eq!(last, json_lines::LogItem::Complete);
}

#[tokio::test]
async fn garbage_in_any_order_never_ends_the_server() {
    let server = server(Role::Daemon, brief());
    for bytes in [
        &b"\0\0\0\0\n"[..],
        b"\xff\xfe\n",
        b"{\"v\":1,\"op\":\"submit\",\"tasks\":[{\"id\":\"\\u0000\",\"prompt\":\"x\"}]}\n",
        b"{\"v\":1e400}\n",
        b"{\"v\":1,\"op\":\"hello\"",
        b"\n\n\n",
    ] {
        let mut stream = connect(server.dir.path()).await.expect("connected");
        stream.write_all(bytes).await.expect("written");
        stream.shutdown().await.expect("shut");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.expect("read");
        let answer = String::from_utf8(answer).expect("text");
        for line in answer.lines() {
            assert!(reply::read_reply(line).is_some(), "{line}");
        }
        drop(stream);
        // Places are given back a little later than the connection closes.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let mut one = client(server.dir.path()).await;
    assert!(matches!(
        send(&mut one, "{\"v\":1,\"op\":\"hello\"}").await,
        Reply::Hello { .. }
    ));
}

#[test]
fn only_the_supervisors_user_and_root_may_talk() {
    for (peer, owner, may) in [
        (Some(0), 0, true),
        (Some(1000), 0, false),
        (Some(0), 1000, true),
        (Some(1000), 1000, true),
        (Some(1001), 1000, false),
        (None, 0, false),
    ] {
        let permitted = is_permitted(peer, owner);
        assert_eq!(permitted.is_ok(), may, "{peer:?} at {owner}");
        let code = permitted.err().map(|failure| failure.code);
        assert!(code.is_none_or(|code| code == Code::NotPermitted));
    }
}
