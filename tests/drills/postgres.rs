//! The versions of files on a PostgreSQL server, by a real daemon.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use crate::chat_client::Daemon;
use crate::cluster::Cluster;
use crate::fleet::files::{HISTORY, assert_reply_contains, drill, versions, write};

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
