//! `marshal exec`: a command of a client in the sandbox of a live agent, in real namespaces, at a
//! real terminal and with pipes.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::fd::AsFd as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use tungstenite::client::IntoClientRequest as _;
use tungstenite::handshake::HandshakeError;
use tungstenite::{Message, WebSocket};

use crate::drill::{Drill, Ran, Running, eventually, is_alive, processes};
use crate::fleet::http_access::{put, token};
use crate::screen::TypedProgram;

const LONG: Duration = Duration::from_secs(60);

/// Commands of clients in one slot at the same time: docs/exec.md.
const IN_A_SLOT: i64 = 4;

/// The secrets of the supervisor, and of the pool's agents.
const SUPERVISORS: &str = "supervisors-own-secret";
const AGENTS: &str = "secret-of-the-agents";

fn pool(more: &str) -> String {
    format!(
        r#"
[pool.demo]
command   = ["marshal", "script-agent", "--dialect", "acp"]
dialect   = "acp"
workspace = {{ path = "project", mode = "copy" }}
stop      = {{ goodbye = "300ms", eof = "300ms", int = "300ms", term = "300ms" }}
env       = {{ set = {{ DRILL = "MARK", MODEL_KEY = "env:MODEL_KEY", PLAIN = "seen" }} }}
{more}
"#
    )
}

/// A daemon whose agent is in the middle of a turn.
struct LiveAgent {
    drill: Drill,
    daemon: Running,
    run: Child,
    /// The agent's process on the host.
    agent: u32,
}

impl LiveAgent {
    fn new(more: &str) -> Self {
        Self::of(Drill::new(&pool(more)))
    }

    fn of(drill: Drill) -> Self {
        let file = |name| fs::File::create(drill.path(name)).expect("a log file");
        let mut daemon = drill.command(&["up"]);
        let daemon = daemon
            .env("OWN_SECRET", SUPERVISORS)
            .env("MODEL_KEY", AGENTS)
            .stdout(file("stdout.log"))
            .stderr(file("stderr.log"));
        let daemon = Running {
            child: daemon.spawn().expect("marshal starts"),
        };
        assert_eq!(drill.get("/healthz").0, 200);
        let mut run = drill.command(&["run", "say working\nhang"]);
        let run = run.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let mut live = Self {
            drill,
            daemon,
            run: run.expect("a client"),
            agent: 0,
        };
        eventually(LONG, "an agent in its turn", || {
            live.agent = live.drill.agents().first().copied().unwrap_or(0);
            live.count("kind = 'text'") > 0
        });
        live
    }

    fn count(&self, what: &str) -> i64 {
        let query = format!("SELECT count(*) FROM events WHERE {what}");
        let database = self.drill.database();
        database
            .query_row(&query, [], |row| row.get(0))
            .unwrap_or(0)
    }

    fn bodies(&self, kind: &str) -> Vec<String> {
        let database = self.drill.database();
        let query = "SELECT body FROM events WHERE kind = ?1 ORDER BY seq";
        let mut rows = database.prepare(query).expect("a query");
        let rows = rows.query_map([kind], |row| row.get(0)).expect("events");
        rows.map(|row| row.expect("a body")).collect()
    }

    fn session(&self) -> String {
        let database = self.drill.database();
        let query = "SELECT session FROM sessions LIMIT 1";
        database
            .query_row(query, [], |row| row.get(0))
            .expect("one")
    }

    fn command(&self, words: &[&str]) -> Command {
        let args = [&["exec", "demo/0", "--"], words].concat();
        self.drill.command(&args)
    }

    fn exec(&self, words: &[&str]) -> Ran {
        self.drill.run(&[&["exec", "demo/0", "--"], words].concat())
    }

    #[track_caller]
    fn output(&self, words: &[&str]) -> String {
        let ran = self.exec(words);
        assert_eq!((ran.code, &*ran.stderr), (Some(0), ""), "{}", ran.all());
        ran.stdout
    }

    /// A shell at a terminal that is the controlling one of the client.
    fn shell(&self, words: &[&str]) -> TypedProgram {
        let client = self.command(words);
        let mut command = Command::new("setsid");
        command
            .arg("--ctty")
            .arg(client.get_program())
            .args(client.get_args())
            .current_dir(self.drill.path(""))
            .env_clear()
            .envs(
                client
                    .get_envs()
                    .filter_map(|(name, value)| Some((name, value?))),
            )
            .env("TERM", "vt220");
        TypedProgram::start(&mut command, 77)
    }

    /// The processes of the sandbox on the host, the agent not among them.
    fn others(&self) -> BTreeSet<u32> {
        let mut found = self.drill.agents();
        found.remove(&self.agent);
        found
    }

    #[track_caller]
    fn expect_nothing_left(&self) {
        eventually(LONG, "no process of a command", || self.others().is_empty());
        assert!(is_alive(self.agent), "the agent lives on");
    }
}

impl Drop for LiveAgent {
    fn drop(&mut self) {
        let _ = self.run.kill();
        let _ = self.run.wait();
    }
}

/// How a client ended, in time.
#[track_caller]
fn wait_for_end(child: &mut Child) -> ExitStatus {
    let mut status = None;
    eventually(LONG, "the client's end", || {
        status = child.try_wait().expect("a child");
        status.is_some()
    });
    status.expect("ended")
}

/// What confines a process: ids, capabilities, filters, groups and namespaces.
fn confinement(pid: u32) -> Vec<String> {
    let read = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).expect(name);
    let status = read("status");
    let kept = [
        "Uid:",
        "Gid:",
        "Groups:",
        "NoNewPrivs:",
        "Seccomp",
        "Cap",
        "NSpid:",
    ];
    let is_kept = |line: &&str| kept.iter().any(|key| line.starts_with(key));
    let mut found: Vec<String> = status
        .lines()
        .filter(is_kept)
        // The pids differ; how many pid namespaces there are does not.
        .map(|line| match line.strip_prefix("NSpid:") {
            Some(pids) => format!("NSpid: {}", pids.split_whitespace().count()),
            None => line.to_owned(),
        })
        .collect();
    found.push(read("cgroup"));
    for name in ["cgroup", "ipc", "mnt", "net", "pid", "user", "uts"] {
        let link = fs::read_link(format!("/proc/{pid}/ns/{name}")).expect(name);
        found.push(link.display().to_string());
    }
    let limits = read("limits");
    found.extend(limits.lines().map(str::to_owned));
    found
}

/// The process that runs exactly these words.
fn process_of(words: &[&str]) -> Option<u32> {
    let line = format!("{}\0", words.join("\0"));
    let is_it = |pid: &u32| {
        fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|found| found == line.as_bytes())
    };
    processes(|environ| environ.contains("MARSHAL_MARKER="))
        .into_iter()
        .find(is_it)
}

#[test]
fn a_command_is_confined_exactly_as_the_agent_is() {
    let live = LiveAgent::new("");
    assert_eq!(
        live.output(&["id"]),
        "uid=1000(agent) gid=1000(agent) groups=1000(agent)\n"
    );
    assert_eq!(live.output(&["pwd"]), "/workspace\n");
    let agents = confinement(live.agent);
    assert!(agents.iter().any(|line| line.starts_with("Seccomp:\t2")));
    assert!(agents.iter().any(|line| line == "NoNewPrivs:\t1"));
    for (at_terminal, time) in [(false, "7001"), (true, "7002")] {
        let words = ["sleep", time];
        let mut pipes = live.command(&words);
        let mut shell = None;
        let mut child = None;
        if at_terminal {
            shell = Some(live.shell(&words));
        } else {
            child = Some(pipes.stdout(Stdio::null()).spawn().expect("a client"));
        }
        let mut found = None;
        eventually(LONG, "the command", || {
            found = process_of(&words);
            found.is_some()
        });
        assert_eq!(confinement(found.expect("found")), agents, "{at_terminal}");
        drop(shell);
        if let Some(mut child) = child {
            child.kill().expect("killed");
            child.wait().expect("ended");
        }
        live.expect_nothing_left();
    }
    // It works on the files of the agent, and with nothing of the host.
    live.output(&["sh", "-c", "echo made > made.txt"]);
    let copies = fs::read_dir(live.drill.state().join("copies")).expect("copies");
    let mut copies = copies.map(|copy| copy.expect("a copy").path().join("made.txt"));
    assert!(copies.any(|file| fs::read(file).is_ok_and(|text| text == b"made\n")));
    let refused = "for it in \"> /usr/made\" \"> /etc/made\" \"< /dev/kmsg\" \"< /proc/1/environ\" \
        \"< /proc/1/mem\"; do if eval \"true $it\" 2> /dev/null; then echo \"$it\"; fi; done; ls /dev";
    let devices = live.output(&["sh", "-c", refused]);
    let devices: BTreeSet<&str> = devices.lines().collect();
    let known = [
        "fd", "full", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin", "stdout", "tty",
        "urandom", "zero",
    ];
    assert!(devices.is_subset(&BTreeSet::from(known)), "{devices:?}");
    // The agent cannot be traced from it either.
    let ran = live.exec(&[
        "sh",
        "-c",
        "for p in /proc/[0-9]*; do cat $p/environ; done; true",
    ]);
    assert!(!ran.all().contains(AGENTS), "{}", ran.all());
}

#[test]
fn neither_the_supervisors_secrets_nor_the_agents_are_in_its_environment() {
    let live = LiveAgent::new("");
    let agent = fs::read(format!("/proc/{}/environ", live.agent)).expect("its environment");
    assert!(String::from_utf8_lossy(&agent).contains(AGENTS));
    let mut shell = live.shell(&["sh", "-c", "env; cat /proc/self/environ; sleep 0.2"]);
    wait_for_end(&mut shell.child);
    shell.wait_for("TERM=vt220");
    for text in [live.output(&["env"]), shell.output()] {
        assert!(text.contains("PLAIN=seen"), "{text}");
        for hidden in [SUPERVISORS, AGENTS, "OWN_SECRET", "MODEL_KEY"] {
            assert!(!text.contains(hidden), "{hidden}: {text}");
        }
    }
}

#[test]
fn without_a_terminal_outputs_are_apart_and_the_exit_code_is_the_commands() {
    let live = LiveAgent::new("");
    for (words, code) in [
        (&["true"][..], 0),
        (&["sh", "-c", "exit 42"], 42),
        (&["sh", "-c", "kill -KILL $$"], 137),
        (&["no-such-program"], 127),
    ] {
        let ran = live.exec(words);
        assert_eq!(ran.code, Some(code), "{words:?}: {}", ran.all());
    }
    let ran = live.exec(&["sh", "-c", "echo out; echo err >&2; cat; echo end"]);
    assert_eq!(ran.stdout, "out\nend\n");
    assert_eq!(ran.stderr, "err\n");
    // A process that it leaves is killed, and does not delay its end.
    let ran = live.exec(&["sh", "-c", "setsid sleep 7003 & echo left"]);
    assert_eq!(
        (ran.code, &*ran.stdout),
        (Some(0), "left\n"),
        "{}",
        ran.all()
    );
    live.expect_nothing_left();
    // Much goes both ways at once, whole.
    let sent: Vec<u8> = (0..5_000_000_u32).map(|at| (at % 251) as u8).collect();
    let mut command = live.command(&["cat"]);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a client");
    let (mut input, mut output) = (
        child.stdin.take().expect("in"),
        child.stdout.take().expect("out"),
    );
    let bytes = sent.clone();
    let writer = std::thread::spawn(move || input.write_all(&bytes).expect("sent"));
    let mut got = Vec::new();
    output.read_to_end(&mut got).expect("read");
    writer.join().expect("sent");
    assert!(child.wait().expect("ended").success());
    assert!(got == sent, "{} of {} bytes", got.len(), sent.len());
}

#[test]
fn a_shell_at_a_terminal_has_its_keys_and_its_size_and_leaves_the_clients_as_it_was() {
    let live = LiveAgent::new("");
    let mut shell = live.shell(&["bash", "--norc"]);
    let before = rustix::termios::tcgetattr(shell.slave.as_fd()).expect("modes");
    shell.wait_for("the agent runs as the same user");
    shell.wait_for("can read and write this terminal");
    shell.write("stty size; tty; echo $TERM; ps -o tty= -p $$\r");
    shell.wait_for("500 77");
    shell.wait_for("/dev/pts/0");
    shell.wait_for("vt220");
    // What the first line says: another process of the agent's user can write there.
    live.output(&["sh", "-c", "echo from-elsewhere > /dev/pts/0"]);
    shell.wait_for("from-elsewhere");
    shell.resize(31, 102);
    // The client sends it on by itself.
    eventually(LONG, "the new size", || {
        shell.write("stty size\r");
        std::thread::sleep(Duration::from_millis(100));
        shell.output().contains("31 102")
    });
    shell.write("sleep 7004\r");
    eventually(LONG, "the sleep", || {
        process_of(&["sleep", "7004"]).is_some()
    });
    let raw = rustix::termios::tcgetattr(shell.slave.as_fd()).expect("modes");
    assert_ne!(raw.local_modes, before.local_modes);
    shell.write("\x03");
    eventually(LONG, "no sleep", || {
        process_of(&["sleep", "7004"]).is_none()
    });
    shell.write("echo interrupted=$?\r");
    shell.wait_for("interrupted=130");
    // What is typed ahead would be read in the shell's own mode of the terminal.
    shell.write("cat > typed.txt\r");
    eventually(LONG, "cat", || process_of(&["cat"]).is_some());
    shell.write("some text\r\x04");
    eventually(LONG, "the end of cat", || process_of(&["cat"]).is_none());
    shell.write("cat typed.txt; exit 7\r");
    let status = wait_for_end(&mut shell.child);
    assert_eq!(status.code(), Some(7), "{}", shell.output());
    let after = rustix::termios::tcgetattr(shell.slave.as_fd()).expect("modes");
    assert_eq!(after.local_modes, before.local_modes);
    assert_eq!(after.input_modes, before.input_modes);
    assert_eq!(after.output_modes, before.output_modes);
    live.expect_nothing_left();
    // Also where a signal ends the client.
    let mut shell = live.shell(&["sleep", "7005"]);
    eventually(LONG, "the sleep", || {
        process_of(&["sleep", "7005"]).is_some()
    });
    let pid = shell.child.id().to_string();
    let sent = Command::new("kill").args(["-s", "TERM", &pid]).status();
    assert!(sent.expect("kill").success());
    assert_eq!(wait_for_end(&mut shell.child).code(), Some(143));
    let after = rustix::termios::tcgetattr(shell.slave.as_fd()).expect("modes");
    assert_eq!(after.local_modes, before.local_modes);
    live.expect_nothing_left();
    let mut missing = live.shell(&["no-such-program"]);
    assert_eq!(wait_for_end(&mut missing.child).code(), Some(127));
}

#[test]
fn a_client_that_vanishes_leaves_no_process() {
    let live = LiveAgent::new("");
    // Descendants that leave the session and the parent, and input that nobody reads.
    let words = [
        "sh",
        "-c",
        "setsid sleep 7006 & (trap '' HUP TERM; sleep 7007) & sleep 7008",
    ];
    let mut shell = live.shell(&words);
    let mut command = live.command(&words);
    let mut child = command.stdin(Stdio::piped()).spawn().expect("a client");
    let mut input = child.stdin.take().expect("its input");
    let writer = std::thread::spawn(move || input.write_all(&vec![b'x'; 4 << 20]));
    eventually(LONG, "both commands", || {
        let sleeps = |pid: &&u32| {
            let line = fs::read_to_string(format!("/proc/{pid}/cmdline"));
            line.is_ok_and(|line| line.starts_with("sleep\0"))
        };
        live.others().iter().filter(sleeps).count() == 6
    });
    for client in [&mut shell.child, &mut child] {
        client.kill().expect("killed");
        client.wait().expect("ended");
    }
    let _ = writer.join().expect("its writer");
    live.expect_nothing_left();
    eventually(LONG, "both ends on record", || {
        live.count("kind = 'terminal_ended'") == 2
    });
    for body in live.bodies("terminal_ended") {
        assert!(body.contains("\"signal\":9"), "{body}");
    }
    // Its place is free again.
    live.output(&["true"]);
}

#[test]
fn the_end_of_the_session_ends_it_and_the_client_says_so() {
    let live = LiveAgent::new("");
    let mut command = live.command(&["sleep", "7009"]);
    let child = command.stderr(Stdio::piped()).spawn().expect("a client");
    eventually(LONG, "the command", || {
        process_of(&["sleep", "7009"]).is_some()
    });
    let mut shell = live.shell(&["sleep", "7010"]);
    eventually(LONG, "the other", || {
        process_of(&["sleep", "7010"]).is_some()
    });
    let stopped = live.drill.run(&["stop", &live.session()]);
    assert_eq!(stopped.code, Some(0), "{}", stopped.all());
    let ended = child.wait_with_output().expect("ended");
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(125), "{said}");
    assert!(said.contains("its sandbox has ended"), "{said}");
    assert_eq!(wait_for_end(&mut shell.child).code(), Some(125));
    shell.wait_for("its sandbox has ended");
    eventually(LONG, "no process", || live.drill.agents().is_empty());
    eventually(LONG, "both ends on record", || {
        live.count("kind = 'terminal_ended'") == 2
    });
    live.drill.assert_dense();
    let ran = live.exec(&["true"]);
    assert_eq!(ran.code, Some(1), "{}", ran.all());
    assert!(
        ran.stderr.contains("no agent runs in the slot now"),
        "{}",
        ran.all()
    );
}

#[test]
fn the_end_of_the_supervisor_ends_it() {
    let mut live = LiveAgent::new("");
    let mut command = live.command(&["sleep", "7011"]);
    let child = command.stderr(Stdio::piped()).spawn().expect("a client");
    eventually(LONG, "the command", || {
        process_of(&["sleep", "7011"]).is_some()
    });
    live.daemon.signal("KILL");
    live.daemon.wait(LONG);
    let ended = child.wait_with_output().expect("ended");
    assert_eq!(ended.status.code(), Some(125));
    eventually(LONG, "no process", || live.drill.agents().is_empty());
}

#[test]
fn who_ran_what_and_how_it_ended_is_on_record() {
    let live = LiveAgent::new("");
    let ran = live.exec(&["sh", "-c", "echo bytes; exit 3"]);
    assert_eq!(ran.code, Some(3), "{}", ran.all());
    eventually(LONG, "its end", || {
        live.count("kind = 'terminal_ended'") == 1
    });
    let uid = rustix::process::getuid().as_raw();
    assert_eq!(
        live.bodies("terminal_started"),
        [format!(
            r#"{{"terminal":"exec-1","argv":["sh","-c","echo bytes; exit 3"],"cwd":"/workspace","by":"uid {uid}"}}"#
        )]
    );
    assert_eq!(
        live.bodies("terminal_ended"),
        [r#"{"terminal":"exec-1","status":{"code":3},"bytes":6,"omitted_bytes":6}"#]
    );
    assert_eq!(live.count("kind = 'terminal_output'"), 0);
    let shown = live.drill.run(&["events", "--session", &live.session()]);
    let line = format!("exec-1 in /workspace: sh -c echo bytes; exit 3 (by uid {uid})");
    assert!(shown.stdout.contains(&line), "{}", shown.all());
    // By a session's id it is the same, and another's is not.
    let (session, none) = (live.session(), "00000000-0000-7000-8000-000000000000");
    let short = &session[session.len() - 8..];
    for id in [&session, short] {
        let ran = live.drill.run(&["exec", id, "--", "pwd"]);
        assert_eq!(ran.stdout, "/workspace\n", "{}", ran.all());
    }
    for (target, part) in [
        (none, "there is no such session"),
        ("demo/9", "there is no slot demo/9"),
        ("other/0", "there is no slot other/0"),
    ] {
        let ran = live.drill.run(&["exec", target, "--", "pwd"]);
        assert_eq!(ran.code, Some(2), "{}", ran.all());
        assert!(ran.stderr.contains(part), "{}", ran.all());
    }
}

#[test]
fn a_slot_has_so_many_and_a_reader_that_waits_holds_its_command_back() {
    let live = LiveAgent::new("");
    let mut clients: Vec<Child> = (0..IN_A_SLOT)
        .map(|_| {
            // Nobody reads its output.
            let mut command = live.command(&["yes"]);
            command.stdout(Stdio::piped()).spawn().expect("a client")
        })
        .collect();
    eventually(LONG, "as many as there may be", || {
        live.count("kind = 'terminal_started'") == IN_A_SLOT
    });
    let ran = live.exec(&["true"]);
    assert_eq!(ran.code, Some(1), "{}", ran.all());
    assert!(ran.stderr.contains("at most 4 in a slot"), "{}", ran.all());
    std::thread::sleep(Duration::from_secs(2));
    for client in &mut clients {
        client.kill().expect("killed");
        client.wait().expect("ended");
    }
    eventually(LONG, "their ends", || {
        live.count("kind = 'terminal_ended'") == IN_A_SLOT
    });
    // What was on the way: pipes, sockets and messages.
    let query = "kind = 'terminal_ended' AND body ->> '$.bytes' > 4000000";
    assert_eq!(live.count(query), 0, "{:?}", live.bodies("terminal_ended"));
    live.output(&["true"]);
}

type Socket = WebSocket<TcpStream>;

/// Opens the route over TCP; the status if it is refused.
fn connect(live: &LiveAgent, query: &str, token: &str) -> Result<Socket, u16> {
    let address = live.drill.address();
    let url = format!("ws://{address}/api/v1/slots/demo/0/exec?{query}");
    let mut request = url.into_client_request().expect("a request");
    let value = format!("Bearer {token}").parse().expect("a value");
    request.headers_mut().insert("authorization", value);
    let stream = TcpStream::connect(&address).expect("it listens");
    stream.set_read_timeout(Some(LONG)).expect("a timeout");
    match tungstenite::client(request, stream) {
        Ok((socket, _)) => Ok(socket),
        Err(HandshakeError::Failure(tungstenite::Error::Http(answer))) => {
            Err(answer.status().as_u16())
        }
        Err(error) => panic!("{error}"),
    }
}

/// Every message up to the close: texts, and bytes after the number of their output.
fn messages(mut socket: Socket) -> Vec<String> {
    let mut found = Vec::new();
    loop {
        match socket.read() {
            Ok(Message::Text(text)) => found.push(text.to_string()),
            Ok(Message::Binary(bytes)) => {
                let text = String::from_utf8_lossy(&bytes[1..]).into_owned();
                found.push(format!("{}:{text}", bytes[0]));
            }
            Ok(Message::Close(_)) | Err(_) => return found,
            Ok(_) => {}
        }
    }
}

#[test]
fn only_an_admin_may_and_over_tcp_it_is_a_web_socket() {
    let roles = ["read", "operate", "approve", "admin"];
    let drill = Drill::new(&pool(""));
    let mut text = fs::read_to_string(drill.config()).expect("supervisor.toml");
    for role in roles {
        let path = drill.path(&format!("{role}.token"));
        put(&path, &token(role), 0o600);
        let path = path.display().to_string();
        let _ = writeln!(text, "[token.{role}]\nfile = {path:?}\nrole = \"{role}\"");
    }
    fs::write(drill.config(), text).expect("supervisor.toml");
    let live = LiveAgent::of(drill);
    let pwd = "command=%5B%22pwd%22%5D";
    for role in ["read", "operate", "approve"] {
        assert_eq!(connect(&live, pwd, &token(role)).err(), Some(403), "{role}");
    }
    assert_eq!(
        connect(&live, pwd, "nobodys-token-nobodys-token").err(),
        Some(401)
    );
    assert_eq!(live.count("kind = 'terminal_started'"), 0);
    let admin = token("admin");
    for (query, status) in [
        ("", 400),
        ("command=pwd", 400),
        ("command=%5B%5D", 400),
        ("command=%5B%22a%5Cu0000%22%5D", 400),
        ("command=%5B%22pwd%22%5D&rows=0&term=x", 400),
        ("command=%5B%22pwd%22%5D&term=a%20b", 400),
        ("command=%5B%22no-such-program%22%5D", 422),
        ("command=%5B%22pwd%22%5D&session=another", 409),
    ] {
        assert_eq!(connect(&live, query, &admin).err(), Some(status), "{query}");
    }
    let found = messages(connect(&live, pwd, &admin).expect("opened"));
    assert!(found[0].contains(r#""type":"started""#), "{found:?}");
    assert_eq!(
        found[1..],
        ["1:/workspace\n", r#"{"type":"exited","code":0}"#],
        "{found:?}"
    );
    let record = live.bodies("terminal_started").pop().expect("a record");
    assert!(record.contains(r#""by":"token admin""#), "{record}");
    // Messages that are none, or too long, end the command.
    let cat = "command=%5B%22cat%22%5D";
    for bad in [
        Message::Text("{\"type\":\"other\"}".into()),
        Message::Binary(vec![0; 17 << 10].into()),
    ] {
        let mut socket = connect(&live, cat, &admin).expect("opened");
        socket.send(bad).expect("sent");
        let found = messages(socket);
        assert_eq!(found.len(), 1, "{found:?}");
        live.expect_nothing_left();
    }
    let mut socket = connect(&live, cat, &admin).expect("opened");
    socket
        .send(Message::Binary(b"text".to_vec().into()))
        .expect("sent");
    socket
        .send(Message::Text("{\"type\":\"eof\"}".into()))
        .expect("sent");
    let found = messages(socket);
    assert_eq!(
        found[1..],
        ["1:text", r#"{"type":"exited","code":0}"#],
        "{found:?}"
    );
    // A replaced token ends what it began.
    let mut socket =
        connect(&live, "command=%5B%22sleep%22,%227012%22%5D", &admin).expect("opened");
    assert!(matches!(socket.read(), Ok(Message::Text(_))));
    put(&live.drill.path("admin.token"), &token("other"), 0o600);
    let reloaded = live.drill.run(&["reload"]);
    assert_eq!(reloaded.code, Some(0), "{}", reloaded.all());
    let found = messages(socket);
    assert!(
        found
            .concat()
            .contains("token or the certificate was replaced"),
        "{found:?}"
    );
    live.expect_nothing_left();
}

#[test]
fn a_pool_without_a_sandbox_of_ours_says_what_to_use_instead() {
    let drill = Drill::new(&pool("launcher = \"none\""));
    let live = LiveAgent::of(drill);
    let ran = live.exec(&["true"]);
    assert_eq!(ran.code, Some(1), "{}", ran.all());
    let said = "error: pool demo has launcher = \"none\": there is no sandbox; run the command on this host, in the workspace\n";
    assert_eq!(ran.stderr, said);
    assert_eq!(live.count("kind = 'terminal_started'"), 0);
}

#[test]
fn an_ordinary_users_supervisor_can_do_it_too() {
    let live = LiveAgent::of(Drill::of_nobody(&pool("")));
    assert_eq!(live.output(&["id", "-u"]), "1000\n");
    let agents = confinement(live.agent);
    let mut shell = live.shell(&["sh"]);
    shell.write("id -u; exec sleep 7013\r");
    let mut found = None;
    eventually(LONG, "the command", || {
        found = process_of(&["sleep", "7013"]);
        found.is_some()
    });
    shell.wait_for("1000");
    assert_eq!(confinement(found.expect("found")), agents);
    drop(shell);
    live.expect_nothing_left();
}
