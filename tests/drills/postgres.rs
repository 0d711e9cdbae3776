//! The versions of files on a PostgreSQL server, by a real daemon.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::chat_client::{Answer, Daemon, LONG};
use crate::cluster::Cluster;
use crate::drill::eventually;
use crate::fleet::files::{FILES, HISTORY, assert_reply_contains, drill, versions, write};

#[test]
fn a_server_keeps_the_versions_and_without_it_nothing_is_written() {
    let mut cluster = Cluster::new("secret-of-the-store");
    let drill = drill("[store]\npostgres = \"file:store.secret\"\n");
    let secret = drill.path("store.secret");
    fs::write(&secret, cluster.loopback("secret-of-the-store")).expect("written");
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).expect("mode");
    let daemon = Daemon::start(&drill);
    let chat = daemon.create("say one");
    assert_reply_contains(
        &daemon,
        &chat,
        &write("a.txt", "kept\n", ""),
        "it is version 1 now",
    );
    assert!(!drill.state().join("store.db").exists());
    cluster.stop();
    let gone = write("a.txt", "not kept\n", "");
    assert_reply_contains(
        &daemon,
        &chat,
        &gone,
        "nothing was written, because its version cannot be stored",
    );
    let disk = fs::read_to_string(drill.workspace().join("a.txt"));
    assert_eq!(disk.expect("a.txt"), "kept\n");
    let unseen = daemon.get(&format!("{HISTORY}/a.txt"));
    assert_eq!(unseen.status, 503, "{unseen:?}");
    cluster.start();
    assert_reply_contains(&daemon, &chat, &gone, "it is version 2 now");
    assert_eq!(versions(&daemon, "a.txt").len(), 2);
    let log = drill.log("stderr.log");
    assert!(!log.contains("secret-of-the-store"), "{log}");
    drop(daemon);
    // A start without it says so, and does not begin.
    cluster.stop();
    let ran = drill.run(&["up"]);
    assert_eq!(ran.code, Some(3), "{}", ran.all());
    let reported = ran.all();
    assert!(
        reported.contains("the store of file versions") && reported.contains("cannot be reached"),
        "{reported}"
    );
    assert!(!reported.contains("secret-of-the-store"), "{reported}");
    fs::write(&secret, "mysql://x").expect("written");
    let ran = drill.run(&["config", "check"]);
    assert_eq!(ran.code, Some(2), "{}", ran.all());
    assert!(ran.all().contains("store.postgres"), "{}", ran.all());
}

/// A request's answer, within the bound of all answers.
fn timed(send: impl FnOnce() -> Answer) -> Answer {
    let began = Instant::now();
    let answer = send();
    let took = began.elapsed();
    assert!(took < Duration::from_secs(5), "after {took:?}: {answer:?}");
    answer
}

#[test]
fn a_server_that_goes_among_requests_holds_up_none_and_what_was_stored_is_there_once() {
    let mut cluster = Cluster::new("secret-of-the-store");
    let drill = drill("[store]\npostgres = \"file:store.secret\"\n");
    let secret = drill.path("store.secret");
    fs::write(&secret, cluster.loopback("secret-of-the-store")).expect("written");
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).expect("mode");
    let daemon = Daemon::start(&drill);
    let stored = Mutex::new(BTreeSet::new());
    let began = Instant::now();
    thread::scope(|scope| {
        for client in 0..6 {
            let (daemon, stored) = (&daemon, &stored);
            scope.spawn(move || {
                let mut number = 0;
                while began.elapsed() < Duration::from_secs(9) {
                    number += 1;
                    // The name of a directory is not taken for a route's.
                    let name = format!("chats/{client}-{number}.txt");
                    let path = format!("{FILES}/{name}");
                    let file = json!({"content": &name, "base": 0}).to_string();
                    let put = timed(|| daemon.request("PUT", &path, "", &file));
                    if put.status == 200 {
                        stored.lock().expect("no panic").insert(name);
                    } else {
                        assert_eq!(put.status, 503, "{put:?}");
                        assert!(put.head.to_lowercase().contains("retry-after: "), "{put:?}");
                    }
                    // Everything else is as ever.
                    assert_eq!(timed(|| daemon.get("/api/v1/tasks")).status, 200);
                    // Slower than the limit of requests of one client.
                    thread::sleep(Duration::from_millis(200));
                }
            });
        }
        thread::sleep(Duration::from_millis(700));
        cluster.stop();
    });
    // Nobody asks it now.
    let readyz = drill.get("/readyz");
    assert_eq!(readyz.0, 503, "{}", readyz.1);
    assert!(
        readyz.1.contains("the store of file versions"),
        "{}",
        readyz.1
    );
    cluster.start();
    eventually(LONG, "it answers again", || drill.get("/readyz").0 == 200);
    let stored = stored.into_inner().expect("no panic");
    assert!(!stored.is_empty());
    for name in &stored {
        let versions = versions(&daemon, name);
        assert_eq!(versions.len(), 1, "{name}: {versions:?}");
        let disk = fs::read_to_string(drill.workspace().join(name)).expect(name);
        assert_eq!(&disk, name);
    }
}
