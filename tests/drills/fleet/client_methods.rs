//! What an agent may have its client do, through every layer: the script agent in real namespaces
//! asks for files and commands by ACP, and what happened is read from the disk and the journal.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::drill::{Drill, Ran, eventually};

const LONG: Duration = Duration::from_secs(60);

fn pool(more: &str) -> String {
    format!(
        r#"
[pool.demo]
command   = ["marshal", "script-agent", "--dialect", "acp"]
dialect   = "acp"
permission_requests = "all"
workspace = {{ path = "project", mode = "copy" }}
stop      = {{ goodbye = "300ms", eof = "300ms", int = "300ms", term = "300ms" }}
env       = {{ set = {{ DRILL = "MARK" }} }}
client_fs = "write"
client_terminal = true
{more}
"#
    )
}

/// A policy that allows what the guard does not forbid.
const OPEN: &str = r#"
schema  = 1
name    = "open"
extends = ["builtin:guard"]
default = "allow"

[shell]
env_allow = ["GREETING"]
"#;

/// A supervisor whose policy is [`OPEN`].
fn open(more: &str) -> Drill {
    let more = format!("policy = \"open\"\n{more}\n[policy.open]\nfile = \"open.toml\"");
    let drill = Drill::new(&pool(&more));
    fs::write(drill.path("open.toml"), OPEN).expect("open.toml");
    drill
}

/// One task: what the agent said, and every event.
struct TaskRecord {
    ran: Ran,
    text: String,
    events: Vec<Value>,
}

fn tell(drill: &Drill, script: &str) -> TaskRecord {
    let ran = drill.run(&["--json", "run", script]);
    let lines = ran.stdout.lines();
    let events: Vec<Value> = lines
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect();
    let texts = events.iter().filter(|event| event["kind"] == "text");
    let text = texts
        .filter_map(|event| event["body"]["delta"].as_str())
        .collect();
    TaskRecord { ran, text, events }
}

impl TaskRecord {
    #[track_caller]
    fn has(&self, part: &str) -> &Self {
        assert!(
            self.text.contains(part),
            "{part:?} is not in\n{}\n{}",
            self.text,
            self.ran.all()
        );
        self
    }

    /// The bodies of the events of a kind.
    fn of(&self, kind: &str) -> Vec<&Value> {
        let of = self.events.iter().filter(|event| event["kind"] == kind);
        of.map(|event| &event["body"]).collect()
    }

    fn place(&self, kind: &str) -> Option<usize> {
        self.events.iter().position(|event| event["kind"] == kind)
    }
}

/// The copies of the workspace that the runs so far have made.
fn copies(drill: &Drill) -> Vec<PathBuf> {
    // Before the first of them there is not even a directory for them.
    let entries = fs::read_dir(drill.state().join("copies"));
    let entries = entries.into_iter().flatten();
    let mut dirs: Vec<PathBuf> = entries.map(|entry| entry.expect("a copy").path()).collect();
    dirs.sort();
    dirs
}

/// A file of a copy: of the one that has it, if any does.
fn copied(drill: &Drill, name: &str) -> PathBuf {
    let dirs = copies(drill).into_iter();
    let mut found: Vec<PathBuf> = dirs.map(|dir| dir.join(name)).collect();
    found.sort_by_key(|path| path.exists());
    found.pop().expect("a copy")
}

#[test]
fn an_agent_reads_and_writes_by_its_client_and_all_of_it_is_on_record() {
    let drill = Drill::new(&pool(""));
    let script = "client-read README.md\nclient-write notes/none.txt x\nclient-write notes.txt hello there\nclient-read notes.txt\nclient-read missing.txt\nclient fs/read_text_file {\"path\":\"/workspace/README.md\",\"line\":2}";
    let events = tell(&drill, script);
    assert_eq!(events.ran.code, Some(0), "{}", events.ran.all());
    events.has("fs/read_text_file ok {\"content\":\"# A project\\n\"}")
        .has("fs/write_text_file ok {}")
        .has("fs/read_text_file ok {\"content\":\"hello there\\n\"}")
        .has("fs/read_text_file error -32002 Resource not found: /workspace/missing.txt (ENOENT: No such file or directory)")
        .has("fs/write_text_file error -32002 Resource not found: the directory of /workspace/notes/none.txt")
        .has("fs/read_text_file ok {\"content\":\"\"}");
    let file = copied(&drill, "notes.txt");
    assert_eq!(
        fs::read_to_string(&file).expect("notes.txt"),
        "hello there\n"
    );
    assert_eq!(
        fs::metadata(&file).expect("notes.txt").permissions().mode() & 0o7777,
        0o644
    );
    // Every one was asked, decided and counted; a file is told when it has changed.
    let requested = events.of("permission_requested");
    assert_eq!(requested.len(), 6, "{}", events.ran.stdout);
    assert_eq!(requested[2]["tool"], "fs/write_text_file");
    assert_eq!(requested[2]["input"]["bytes"], 12);
    assert!(
        events
            .of("permission_decided")
            .iter()
            .all(|body| body["decision"] == "allow")
    );
    assert_eq!(events.of("file_updated")[0]["path"], "/workspace/notes.txt");
    assert!(events.place("permission_decided") < events.place("file_updated"));
    let database = drill.database();
    let row =
        "SELECT count(*) FROM permission_requests WHERE tool LIKE 'fs/%' AND decision = 'allow'";
    let count: i64 = database
        .query_row(row, [], |row| row.get(0))
        .expect("approvals");
    assert_eq!(count, 6);
}

#[test]
fn nothing_is_offered_unless_the_pool_says_so() {
    let off = pool("").replace("client_fs = \"write\"\nclient_terminal = true\n", "");
    let events = tell(&Drill::new(&off), "client-read README.md\nterminal ls");
    events
        .has("fs/read_text_file error -32601")
        .has("terminal/create error -32601");
    assert!(events.of("permission_requested").is_empty());
    let only = pool("").replace(
        "client_fs = \"write\"\nclient_terminal = true\n",
        "client_fs = \"read\"\n",
    );
    let events = tell(
        &Drill::new(&only),
        "client-read README.md\nclient-write x y\nterminal ls",
    );
    events
        .has("fs/read_text_file ok")
        .has("fs/write_text_file error -32601")
        .has("terminal/create error -32601");
    for (keys, part) in [
        (
            "launcher = \"none\"\nclient_fs = \"read\"\nclient_terminal = true",
            "needs a sandbox",
        ),
        (
            "client_fs = \"write\"\nworkspace = { path = \"project\", mode = \"ro\" }",
            "a writable workspace",
        ),
    ] {
        let text = pool("")
            .replace("client_fs = \"write\"\nclient_terminal = true\n", "")
            .replace("workspace = { path = \"project\", mode = \"copy\" }\n", "");
        let ran = Drill::new(&format!("{text}{keys}")).run(&["config", "check"]);
        assert_eq!(ran.code, Some(2), "{}", ran.all());
        assert!(ran.all().contains(part), "{}", ran.all());
    }
}

/// What the agent makes by itself, which no rule sees: links that lead out, ...
const LINKS: &str = "import os\n\
    for name, to in [('out', '/etc'), ('magic', '/proc/self/root'), ('in', 'src'), ('home', '../home/agent'), ('git', '.git')]:\n\
    \x20   os.symlink(to, name)\n\
    os.makedirs('.git/hooks')\n";
/// ... and files that are none.
const ODD: &str = "import os, socket\n\
    os.link('README.md', 'alias'); os.mkfifo('pipe')\n\
    socket.socket(socket.AF_UNIX).bind('socket')\n";

#[test]
fn every_escape_is_refused_and_its_harmless_sister_is_not() {
    // The filter of system calls lets no agent make set-id files; this is about what is behind it.
    let drill = open("[sandbox.standard]\nseccomp = \"off\"");
    fs::write(drill.workspace().join("links.py"), LINKS).expect("links.py");
    fs::write(drill.workspace().join("odd.py"), ODD).expect("odd.py");
    let steps = [
        // What is wrong, then the same done rightly.
        ("client-read /workspace/../etc/passwd", "-32603", ""),
        ("client-read src/../README.md", "-32603", ""),
        ("client-read README.md", "", "# A project"),
        ("client-write /tmp/x y", "-32603", ""),
        ("client-read /proc/self/root/etc/passwd", "-32603", ""),
        ("run python3 links.py", "", ""),
        ("client-read out/passwd", "-32603", ""),
        ("client-read magic/etc/passwd", "-32603", ""),
        ("client-write home/x y", "-32603", ""),
        ("client-read in/lib.rs", "", "Nothing."),
        ("client-write in/made.rs y", "", "ok {}"),
        ("run python3 odd.py", "", ""),
        ("client-read alias", "-32602", "several names"),
        ("client-write alias y", "-32602", "several names"),
        ("client-read pipe", "-32602", "not a regular file"),
        ("client-write pipe y", "-32602", "not a regular file"),
        ("client-read socket", "-32602", "not a regular file"),
        ("client-read src", "-32602", "directory"),
        ("run rm alias", "", ""),
        ("client-write README.md y", "", "ok {}"),
        (
            "client-write .git/hooks/pre-commit y",
            "-32603",
            "guard-protected-file",
        ),
        (
            "client-write git/hooks/pre-commit y",
            "-32603",
            "guard-protected-file",
        ),
        (
            "client-write .GIT/hooks/pre-commit y",
            "-32603",
            "guard-protected-file",
        ),
        (
            "client-write .g\u{456}t/hooks/pre-commit y",
            "-32603",
            "guard-protected-file",
        ),
        (
            "client-write .gi\u{301}t/hooks/pre-commit y",
            "-32603",
            "guard-protected-file",
        ),
        (
            "client-write git~1/hooks/pre-commit y",
            "-32603",
            "guard-protected-file",
        ),
        ("client-write .gitx y", "", "ok {}"),
        ("client-write .env y", "-32603", "guard-secret-file"),
        ("client-read .ENV", "-32603", "guard-secret-file"),
        ("client-read src/\u{435}nv", "-32002", ""),
        ("client-read src/.\u{435}nv", "-32603", "guard-secret-file"),
        ("run touch set && chmod 4755 set", "", ""),
        ("client-write set y", "-32602", "set-user-id"),
        ("client-read set", "", "ok {"),
        (
            "run python3 -c \"open('bad','wb').write(b'\\xff\\xfe')\"",
            "",
            "",
        ),
        ("client-read bad", "-32602", "UTF-8"),
    ];
    let script: Vec<&str> = steps.iter().map(|(step, ..)| *step).collect();
    let events = tell(&drill, &script.join("\n"));
    let mut turn_text = events.text.lines().filter(|line| line.starts_with("fs/"));
    for (step, code, part) in steps.iter().filter(|(step, ..)| step.starts_with("client")) {
        let line = turn_text.next().unwrap_or_else(|| {
            panic!(
                "nothing said of {step}\n{}\n{}",
                events.text,
                events.ran.all()
            )
        });
        let expect = if code.is_empty() {
            " ok ".to_owned()
        } else {
            format!("error {code} ")
        };
        assert!(
            line.contains(&expect) && line.contains(part),
            "{step}: {line}"
        );
    }
    assert!(copied(&drill, "src/made.rs").exists());
    for name in [".git/hooks/pre-commit", ".GIT", ".env", "git~1"] {
        assert!(!copied(&drill, name).exists(), "{name}");
    }
}

#[test]
fn a_directory_that_a_real_process_swaps_for_a_link_is_never_followed() {
    let drill = open("");
    let racer = "import os, time\n\
        os.mkdir('dir'); open('dir/secret','w').write('inside')\n\
        os.symlink('/home/agent', 'trap')\n\
        open('/home/agent/secret','w').write('outside')\n\
        end = time.time() + 60\n\
        while time.time() < end:\n\
        \x20   os.rename('dir','x'); os.rename('trap','dir'); os.rename('dir','trap'); os.rename('x','dir')\n";
    fs::write(drill.workspace().join("racer.py"), racer).expect("racer.py");
    // The first rename is waited for: a loaded machine starts an interpreter late.
    let mut script = "run (setsid python3 racer.py >/dev/null 2>&1 &) ; until test -e /home/agent/secret; do sleep 0.05; done; sleep 0.2".to_owned();
    for _ in 0..40 {
        script.push_str("\nclient-read dir/secret\nclient-write dir/made mine");
    }
    script.push_str("\nrun cat /home/agent/secret; ls /home/agent");
    // Who wins is chance, so a session may see one side of the race only; then there is another.
    let (mut inside, mut refused) = (0, 0);
    for _ in 0..12 {
        let events = tell(&drill, &script);
        let count = |part: &str| events.text.matches(part).count();
        assert_eq!(count("{\"content\":\"outside\"}"), 0, "{}", events.text);
        let results = events.of("tool_result");
        let listed = results.last().expect("ls")["output"].to_string();
        assert!(
            listed.contains("outside") && !listed.contains("made"),
            "{listed}\n{}",
            events.ran.all()
        );
        inside += count("{\"content\":\"inside\"}");
        // Only these were judged at one place and opened when a link was on the way.
        refused +=
            count("its path now contains a symbolic link, which the policy did not evaluate");
        if inside > 0 && refused > 0 {
            break;
        }
    }
    assert!(inside > 0, "nothing was read at its own place");
    assert!(refused > 0, "the race was never met");
}

#[test]
fn a_terminal_runs_exactly_what_was_judged_and_is_told_live() {
    let drill = open("");
    let script = "terminal sh -c 'echo out; echo err >&2; pwd; exit 3'\nterminal printf %s|%s| 'a b' $(id)\nterminal cat .env\nterminal no-such-program\nterminal sudo ls\nclient terminal/create {\"command\":\"sh\",\"args\":[\"-c\",\"pwd; echo $GREETING; kill -9 $$\"],\"cwd\":\"/workspace/src\",\"env\":[{\"name\":\"GREETING\",\"value\":\"hi\"}]}\nclient terminal/wait_for_exit {\"terminalId\":\"$TERMINAL\"}\nclient terminal/output {\"terminalId\":\"$TERMINAL\"}\nclient terminal/release {\"terminalId\":\"$TERMINAL\"}\nclient terminal/output {\"terminalId\":\"$TERMINAL\"}";
    let events = tell(&drill, script);
    events
        .has("terminal/wait_for_exit ok {\"exitCode\":3,\"signal\":null}")
        .has("\"output\":\"out\\nerr\\n/workspace\\n\"")
        .has("\"output\":\"a b|$(id)|\"")
        .has("error -32603 permission denied: ")
        .has("guard-secret")
        .has("guard-privilege")
        .has("no-such-program")
        .has("terminal/wait_for_exit ok {\"exitCode\":null,\"signal\":\"SIGKILL\"}")
        .has("\"output\":\"/workspace/src\\nhi\\n\"")
        .has("terminal/output error -32002 Resource not found: terminal terminal-");
    let started = events.of("terminal_started");
    assert_eq!(started[0]["argv"][2], "echo out; echo err >&2; pwd; exit 3");
    assert_eq!(started[0]["cwd"], "/workspace");
    assert!(events.of("terminal_output").iter().any(|body| {
        body["delta"]
            .as_str()
            .is_some_and(|delta| delta.contains("out"))
    }));
    let ended = events.of("terminal_ended");
    assert_eq!(ended.len(), started.len());
    assert_eq!(ended[0]["status"]["code"], 3);
    assert!(events.place("permission_decided") < events.place("terminal_started"));
    assert!(events.place("terminal_started") < events.place("terminal_output"));
}

#[test]
fn variables_and_directories_that_change_a_command_are_refused() {
    let drill = open("");
    let with = |extra: &str| format!("client terminal/create {{\"command\":\"env\",{extra}}}");
    let env = |name: &str| {
        with(&format!(
            "\"env\":[{{\"name\":\"{name}\",\"value\":\"/workspace/x\"}}]"
        ))
    };
    let names = [
        "LD_PRELOAD",
        "PATH",
        "HOME",
        "GIT_DIR",
        "BASH_ENV",
        "ENV",
        "PYTHONPATH",
        "NODE_OPTIONS",
        "IFS",
        "A=B",
        "UNKNOWN",
    ];
    let mut script: Vec<String> = names.iter().map(|name| env(name)).collect();
    for cwd in [
        "/etc",
        "/",
        "/workspace/..",
        "/workspace/out",
        "src",
        "/workspace/../workspace",
    ] {
        script.push(with(&format!("\"cwd\":\"{cwd}\"")));
    }
    let refused = script.len();
    script.insert(0, "run ln -s /etc out".to_owned());
    script.push(env("GREETING"));
    script.push("client terminal/wait_for_exit {\"terminalId\":\"$TERMINAL\"}".to_owned());
    script.push("client terminal/output {\"terminalId\":\"$TERMINAL\"}".to_owned());
    let events = tell(&drill, &script.join("\n"));
    let errors = events
        .text
        .matches("terminal/create error -32603 permission denied")
        .count();
    assert_eq!(errors, refused, "{}", events.text);
    events
        .has("terminal/create ok")
        .has("GREETING=/workspace/x")
        .has("PATH=/usr/local/bin:/usr/bin:/bin");
    assert_eq!(events.of("terminal_started").len(), 1);
}

#[test]
fn output_has_its_limit_and_a_flood_is_told_only_in_part() {
    let drill = open("");
    let script = "client terminal/create {\"command\":\"sh\",\"args\":[\"-c\",\"printf aééb\"],\"outputByteLimit\":4}\nclient terminal/wait_for_exit {\"terminalId\":\"$TERMINAL\"}\nclient terminal/output {\"terminalId\":\"$TERMINAL\"}\nclient terminal/create {\"command\":\"sh\",\"args\":[\"-c\",\"yes 12345678 | head -c 9000000; echo the end\"],\"outputByteLimit\":20}\nclient terminal/wait_for_exit {\"terminalId\":\"$TERMINAL\"}\nclient terminal/output {\"terminalId\":\"$TERMINAL\"}";
    let events = tell(&drill, script);
    events
        .has("\"output\":\"éb\",\"truncated\":true")
        .has("the end\\n\",\"truncated\":true");
    let ended = events.of("terminal_ended");
    assert_eq!(ended[1]["bytes"], 9_000_008);
    let untold = ended[1]["omitted_bytes"].as_u64().expect("a number");
    assert!(untold >= 7_900_000, "{untold}");
    let outputs = events.of("terminal_output");
    let told_bytes: usize = outputs
        .iter()
        .filter_map(|body| body["delta"].as_str())
        .map(str::len)
        .sum();
    assert!((900_000..1_100_000).contains(&told_bytes), "{told_bytes}");
}

#[test]
fn a_seventeenth_terminal_is_refused_until_one_is_released() {
    let drill = open("");
    let create = "client terminal/create {\"command\":\"sleep\",\"args\":[\"600\"]}\n";
    let script = format!(
        "{}client terminal/release {{\"terminalId\":\"$TERMINAL\"}}\n{create}",
        create.repeat(17)
    );
    let began = Instant::now();
    let events = tell(&drill, &script);
    assert_eq!(
        events.text.matches("terminal/create ok").count(),
        17,
        "{}",
        events.text
    );
    assert_eq!(
        events.text.matches("16 terminals are open").count(),
        1,
        "{}",
        events.text
    );
    // They end with their session, each told once.
    assert_eq!(events.of("terminal_ended").len(), 17);
    assert!(began.elapsed() < Duration::from_secs(300));
    eventually(LONG, "nothing is left", || drill.agents().is_empty());
}

#[test]
fn a_kill_ends_the_whole_tree_of_its_terminal_and_no_other() {
    let drill = open("");
    let tree = "trap '' TERM INT HUP; (setsid env -i sleep 7654 &) ; sleep 7654 & wait";
    let script = format!(
        "client terminal/create {{\"command\":\"sleep\",\"args\":[\"7655\"]}}\nclient terminal/create {{\"command\":\"sh\",\"args\":[\"-c\",\"{tree}\"]}}\nrun until test $(pgrep -fxc 'sleep 7654') -eq 2; do sleep 0.1; done; pgrep -fxc 'sleep 7654'\nclient terminal/kill {{\"terminalId\":\"$TERMINAL\"}}\nrun pgrep -fc '[s]leep 7654'\nrun pgrep -fc '[s]leep 7655'\nclient terminal/output {{\"terminalId\":\"$TERMINAL\"}}\nclient terminal/kill {{\"terminalId\":\"$TERMINAL\"}}"
    );
    let events = tell(&drill, &script);
    let results: Vec<String> = events
        .of("tool_result")
        .iter()
        .map(|body| body["output"].to_string())
        .collect();
    assert!(results[0].starts_with("\"2"), "{results:?}");
    assert!(
        results[1].starts_with("\"0"),
        "{results:?}\n{}",
        events.text
    );
    assert!(results[2].starts_with("\"1"), "{results:?}");
    events.has("\"exitStatus\":{\"exitCode\":null,\"signal\":\"SIGKILL\"}");
    assert_eq!(
        events.text.matches("terminal/kill ok {}").count(),
        2,
        "{}",
        events.text
    );
}

/// The files that were allowed to be written, by the records that are on the disk.
fn allowed(drill: &Drill) -> Vec<String> {
    let database = drill.database();
    let query = "SELECT json_extract(input, '$.path') FROM permission_requests \
                 WHERE tool = 'fs/write_text_file' AND decision = 'allow'";
    let mut statement = database.prepare(query).expect(query);
    let paths = statement.query_map([], |row| row.get(0)).expect(query);
    paths.map(|path| path.expect("a path")).collect()
}

/// The files that a run made, as the agent names them.
fn created_files(drill: &Drill) -> Vec<String> {
    let dirs = copies(drill).into_iter();
    let entries = dirs.flat_map(|dir| fs::read_dir(dir).into_iter().flatten().flatten());
    entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| name.starts_with("made-"))
        .map(|name| format!("/workspace/{name}"))
        .collect()
}

#[test]
fn nothing_is_done_before_its_verdict_is_on_the_disk() {
    let drill = open("");
    let writes = "client-write made-1 x\nclient-write made-2 x";
    let pause = "unasked until test -e go; do sleep 0.1; done";
    let script = format!("say begun\n{pause}\n{writes}\nsleep 60s");
    let mut running = drill.start(&["run", &script]);
    let begun = || {
        let query = "SELECT count(*) FROM events WHERE kind = 'text'";
        let row = drill.database().query_row(query, [], |row| row.get(0));
        row.unwrap_or(0_i64) > 0
    };
    eventually(LONG, "the turn runs", || {
        drill.state().join("journal.db").exists() && begun()
    });
    // Another process holds the database; what the agent wants is judged, and stays undone.
    let blocker = drill.database();
    blocker.execute_batch("BEGIN IMMEDIATE").expect("lock");
    for copy in copies(&drill).into_iter().filter(|copy| copy.is_dir()) {
        fs::write(copy.join("go"), "").expect("go");
    }
    std::thread::sleep(Duration::from_millis(2500));
    assert_eq!(created_files(&drill), Vec::<String>::new());
    blocker.execute_batch("ROLLBACK").expect("unlock");
    drop(blocker);
    eventually(LONG, "both are made", || created_files(&drill).len() == 2);
    running.signal("KILL");
    running.child.wait().expect("it ended");
    eventually(LONG, "nothing is left", || drill.agents().is_empty());
    let allowed = allowed(&drill);
    for path in created_files(&drill) {
        assert!(allowed.contains(&path), "{path} is not in {allowed:?}");
    }
}
