//! The supervisor as a service: what it tells a service manager, and the sockets that it is handed.
//! The manager here is a socket of the test; a real systemd is in `parts guest::`.

use std::net::{TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use std::{fs, io};

use crate::drill::{Drill, Running, eventually, get};

const LONG: Duration = Duration::from_secs(60);

const POOL: &str = r#"
[pool.work]
size      = 2
command   = ["marshal", "script-agent"]
launcher  = "none"
network   = "host"
policy    = "cautious"
workspace = { path = "project", mode = "copy" }
env       = { set = { DRILL = "MARK" } }
stop      = { drain = "2m" }
"#;

/// The end of a service manager that reads.
struct Manager {
    socket: UnixDatagram,
    seen: Vec<String>,
}

impl Manager {
    fn new(path: &Path) -> Self {
        let socket = UnixDatagram::bind(path).expect("a socket");
        socket
            .set_read_timeout(Some(Duration::from_millis(50)))
            .expect("a timeout");
        Self {
            socket,
            seen: Vec::new(),
        }
    }

    fn next(&mut self) -> Option<String> {
        let mut buffer = [0; 4096];
        match self.socket.recv(&mut buffer) {
            Ok(length) => {
                let message = String::from_utf8(buffer[..length].to_vec()).expect("text");
                self.seen.push(message.clone());
                Some(message)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            Err(error) => panic!("{error}"),
        }
    }

    /// The next message that has this in it.
    fn wait_for(&mut self, text: &str) -> String {
        let end = Instant::now() + LONG;
        while Instant::now() < end {
            if let Some(message) = self.next().filter(|message| message.contains(text)) {
                return message;
            }
        }
        panic!("no {text}, only {:?}", self.seen);
    }

    /// How many messages of this text come within a time.
    fn count(&mut self, text: &str, time: Duration) -> usize {
        let end = Instant::now() + time;
        let mut count = 0;
        while Instant::now() < end {
            count += usize::from(self.next().is_some_and(|message| message == text));
        }
        count
    }
}

fn managed(drill: &Drill, variables: &[(&str, &str)]) -> (Manager, Running) {
    let path = drill.path("notify");
    let manager = Manager::new(&path);
    let mut command = drill.command(&["up"]);
    command
        .env("NOTIFY_SOCKET", &path)
        .envs(variables.iter().copied());
    let file = |name| fs::File::create(drill.path(name)).expect("a log file");
    command.stdout(Stdio::null()).stderr(file("stderr.log"));
    let child = command.spawn().expect("marshal starts");
    (manager, Running { child })
}

#[test]
fn a_service_manager_is_told_of_start_work_reload_and_stop() {
    let drill = Drill::new(POOL);
    let (mut manager, mut supervisor) = managed(&drill, &[]);
    manager.wait_for("READY=1");
    // It is told when that is true, and not before.
    assert_eq!(drill.get("/readyz").0, 200);
    manager.wait_for("STATUS=2 slots: 2 unloaded; 0 open tasks");
    let client = drill
        .command(&["run", "--pool", "work", "sleep 20s"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("marshal starts");
    let _client = Running { child: client };
    manager.wait_for("1 busy, 1 unloaded; 1 open tasks");
    // A status tells of changes, and at most every two seconds; without a watchdog nothing else comes.
    let began = manager.seen.len();
    while manager.count("", Duration::from_secs(3)) > 0 {}
    assert!(manager.seen.len() - began <= 2, "{:?}", manager.seen);

    supervisor.signal("HUP");
    let reload = manager.wait_for("RELOADING=1");
    assert!(reload.contains("\nMONOTONIC_USEC="), "{reload}");
    manager.wait_for("READY=1");

    supervisor.signal("TERM");
    let stop = manager.wait_for("STOPPING=1");
    let extend = stop.split_once("\nEXTEND_TIMEOUT_USEC=").expect("a time").1;
    let (extend, status) = extend.split_once("\nSTATUS=").expect("a status");
    assert!(
        status.starts_with("stopping: running turns may end"),
        "{status}"
    );
    // Two minutes of drain, then the cancel, the ladder and the rest.
    let seconds = extend.parse::<u64>().expect("a number") / 1_000_000;
    assert!((150..200).contains(&seconds), "{seconds}");
    supervisor.signal("TERM");
    supervisor.wait(LONG);
}

#[test]
fn the_watchdog_is_fed_while_the_journal_moves_and_not_while_it_stalls() {
    let drill = Drill::new(POOL);
    // Of another process: not for this one.
    let (mut manager, mut other) = managed(
        &drill,
        &[("WATCHDOG_USEC", "1000000"), ("WATCHDOG_PID", "1")],
    );
    manager.wait_for("READY=1");
    assert_eq!(manager.count("WATCHDOG=1", Duration::from_secs(2)), 0);
    other.end(LONG);
    drop(manager);
    fs::remove_file(drill.path("notify")).expect("removed");

    let (mut manager, mut supervisor) = managed(&drill, &[("WATCHDOG_USEC", "2000000")]);
    manager.wait_for("READY=1");
    let fed = manager.count("WATCHDOG=1", Duration::from_secs(4));
    assert!((4..=10).contains(&fed), "{fed}");
    let database = drill.database();
    database.execute_batch("BEGIN IMMEDIATE").expect("locked");
    // One may have been under way.
    manager.count("WATCHDOG=1", Duration::from_secs(1));
    assert_eq!(manager.count("WATCHDOG=1", Duration::from_secs(5)), 0);
    let told =
        |message: &String| message.contains("the journal is not writable: database is locked");
    assert!(manager.seen.iter().any(told), "{:?}", manager.seen);
    let log = drill.log("stderr.log");
    let words = "the journal does not commit (stalled";
    assert!(log.contains(words), "{log}");
    database.execute_batch("ROLLBACK").expect("released");
    manager.wait_for("WATCHDOG=1");
    assert!(manager.count("WATCHDOG=1", Duration::from_secs(4)) >= 4);
    supervisor.end(LONG);
}

/// A supervisor that gets these as descriptors 3 and 4.
fn handed(drill: &Drill, count: &str, names: &str, sockets: [OwnedFd; 2]) -> Running {
    let plain = drill.command(&["up"]);
    let mut command = Command::new("/bin/sh");
    let script = r#"LISTEN_PID=$$ exec "$0" "$@" 3<&0 4<&1 </dev/null >/dev/null"#;
    command
        .args(["-c", script])
        .arg(plain.get_program())
        .args(plain.get_args());
    let [first, second] = sockets;
    let child = command
        .current_dir(drill.path(""))
        .env_clear()
        .envs(
            plain
                .get_envs()
                .filter_map(|(name, value)| Some((name, value?))),
        )
        .envs([("LISTEN_FDS", count), ("LISTEN_FDNAMES", names)])
        .stdin(Stdio::from(first))
        .stdout(Stdio::from(second))
        .stderr(fs::File::create(drill.path("stderr.log")).expect("a log file"))
        .spawn()
        .expect("sh starts");
    Running { child }
}

fn make_state(drill: &Drill) {
    let mut builder = fs::DirBuilder::new();
    builder
        .mode(0o700)
        .create(drill.state())
        .expect("the state directory");
}

#[test]
fn a_supervisor_serves_the_sockets_that_it_is_handed_and_leaves_them_open() {
    let drill = Drill::new(POOL);
    make_state(&drill);
    let http = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = http.local_addr().expect("an address").to_string();
    let control = UnixListener::bind(drill.state().join("http.sock")).expect("a socket");
    let hand = || {
        let sockets = [
            http.try_clone().map(Into::into),
            control.try_clone().map(Into::into),
        ];
        handed(
            &drill,
            "2",
            "http:control",
            sockets.map(|socket| socket.expect("a copy")),
        )
    };
    for _ in 0..2 {
        // They ask before there is anybody, and wait.
        let page = std::thread::spawn({
            let address = address.clone();
            move || get(&address, "/healthz")
        });
        let list = drill
            .command(&["ls"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("marshal starts");
        std::thread::sleep(Duration::from_millis(300));
        let mut supervisor = hand();
        assert_eq!(page.join().expect("answered"), (200, "ok\n".to_owned()));
        let listed = list.wait_with_output().expect("ends");
        assert!(
            String::from_utf8_lossy(&listed.stdout).contains("work/0"),
            "{listed:?}"
        );
        // No agent has one of them.
        let ran = drill.run(&["run", "--pool", "work", "say done"]);
        assert_eq!(ran.code, Some(0), "{}", ran.all());
        // The client waits for the supervisor's own process, not for the one that made the socket.
        let stopped = drill.run(&["stop"]);
        assert_eq!(stopped.code, Some(0), "{}", stopped.all());
        assert_eq!(supervisor.wait(LONG), Some(0));
        assert!(drill.state().join("http.sock").exists());
    }
}

#[test]
fn a_socket_that_nobody_asked_for_is_refused() {
    let drill = Drill::new(POOL);
    make_state(&drill);
    let tcp = || OwnedFd::from(TcpListener::bind("127.0.0.1:0").expect("a port"));
    let any = || OwnedFd::from(TcpListener::bind("0.0.0.0:0").expect("a port"));
    let udp = || OwnedFd::from(UdpSocket::bind("127.0.0.1:0").expect("a port"));
    let file = || OwnedFd::from(fs::File::open("/dev/null").expect("a file"));
    let datagram = || OwnedFd::from(UnixDatagram::unbound().expect("a socket"));
    let elsewhere = || {
        let path = drill.path("elsewhere.sock");
        let _ = fs::remove_file(&path);
        OwnedFd::from(UnixListener::bind(path).expect("a socket"))
    };
    let connected = || {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        OwnedFd::from(std::net::TcpStream::connect(address).expect("connected"))
    };
    let cases: [(&str, &str, [OwnedFd; 2], &str); 11] = [
        (
            "2",
            "http:unknown",
            [tcp(), tcp()],
            "a socket named \"unknown\"; expected http or control",
        ),
        ("2", "http:http", [tcp(), tcp()], "two sockets named http"),
        (
            "2",
            "http",
            [tcp(), tcp()],
            "LISTEN_FDNAMES has 1 names for 2 sockets",
        ),
        (
            "many",
            "http",
            [tcp(), tcp()],
            "LISTEN_FDS=many: expected a number",
        ),
        ("9000000", "http", [tcp(), tcp()], "at most 64"),
        (
            "1",
            "http",
            [udp(), tcp()],
            "expected a TCP socket that listens",
        ),
        ("1", "http", [file(), tcp()], "is not a socket"),
        ("1", "http", [connected(), tcp()], "it does not listen"),
        (
            "1",
            "control",
            [datagram(), tcp()],
            "expected a Unix stream socket",
        ),
        (
            "1",
            "http",
            [any(), tcp()],
            "and supervisor.listen is 127.0.0.1:0; make",
        ),
        (
            "1",
            "control",
            [elsewhere(), tcp()],
            "elsewhere.sock, and commands look for",
        ),
    ];
    for (count, names, sockets, expect) in cases {
        let mut supervisor = handed(&drill, count, names, sockets);
        assert_eq!(supervisor.wait(LONG), Some(3), "{names}: {expect}");
        let log = drill.log("stderr.log");
        assert!(log.contains(expect), "{expect}: {log}");
    }
    // What is for another process does not count.
    let mut command = drill.command(&["up"]);
    command.envs([
        ("LISTEN_FDS", "1"),
        ("LISTEN_PID", "1"),
        ("LISTEN_FDNAMES", "odd"),
    ]);
    let log = fs::File::create(drill.path("stderr.log")).expect("a log file");
    let child = command
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .expect("marshal starts");
    let mut supervisor = Running { child };
    eventually(LONG, "it listens", || {
        drill.log("stderr.log").contains("listening on")
    });
    assert_eq!(drill.get("/healthz").0, 200);
    supervisor.end(LONG);
}
