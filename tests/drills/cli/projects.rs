//! Several projects of one user: each with its state, and commands from any directory.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::exits;
use crate::drill::{Ran, eventually};

/// Root would be refused, or an agent's directory would be: pools run without a sandbox.
const POOL: &str = r#"
[pool.demo]
agent = "script"
launcher = "none"
network = "host"
guard = "policy"
workspace = { path = ".", mode = "copy" }
"#;

/// A user with a home, and nothing in it.
struct User {
    home: tempfile::TempDir,
}

impl User {
    fn new() -> Self {
        let home = tempfile::Builder::new()
            .prefix("marshal-user-")
            .tempdir()
            .expect("a directory");
        Self { home }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// A project with a repository, and a configuration that listens on any port.
    fn project(&self, name: &str, pools: &str) -> PathBuf {
        let dir = self.path(name);
        fs::create_dir_all(dir.join("src")).expect("made");
        fs::write(dir.join("README.md"), format!("# {name}\n")).expect("written");
        let status = Command::new("git").args(["init", "-q"]).arg(&dir).status();
        assert!(status.expect("git").success());
        let text = format!("[supervisor]\nlisten = \"127.0.0.1:0\"\n{pools}");
        fs::write(dir.join("supervisor.toml"), text).expect("written");
        dir
    }

    fn command(&self, dir: &Path, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_marshal"));
        command
            .args(args)
            .current_dir(dir)
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("HOME", self.home.path())
            .env("XDG_RUNTIME_DIR", self.home.path())
            .stdin(Stdio::null());
        command
    }

    fn run(&self, dir: &Path, args: &[&str]) -> Ran {
        let began = Instant::now();
        let output = self.command(dir, args).output().expect("marshal starts");
        Ran {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
            took: began.elapsed(),
        }
    }

    /// A daemon that answers.
    fn up(&self, dir: &Path) -> Daemon {
        let trusted = self.run(dir, &["trust"]);
        exits(&trusted, 0, &["trusted as it is now"]);
        let log = fs::File::create(dir.join("../up.log")).expect("a log");
        let mut command = self.command(dir, &["up"]);
        let child = command.stderr(log).stdout(Stdio::null()).spawn();
        let daemon = Daemon(child.expect("marshal starts"));
        eventually(Duration::from_secs(60), "the daemon answers", || {
            let listed = self.run(dir, &["ls"]);
            // Before it has registered, the only other daemon answers.
            listed.code == Some(0) && !listed.stderr.contains("of the project")
        });
        daemon
    }
}

struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.0);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.0.wait();
    }
}

#[test]
fn a_run_beside_the_daemon_of_another_project_has_a_configuration_and_a_state_of_its_own() {
    let user = User::new();
    let one = user.project("one", POOL);
    let two = user.project("two", POOL);
    let daemon = user.up(&one);
    exits(&user.run(&two, &["trust"]), 0, &[]);
    let ran = user.run(&two, &["run", "read README.md", "--json"]);
    exits(&ran, 0, &[]);
    assert!(ran.stdout.contains("# two"), "{}", ran.all());
    let shown = |dir: &Path| user.run(dir, &["report"]).stdout;
    assert!(shown(&two).contains("1 done"), "{}", shown(&two));
    assert!(!shown(&one).contains("1 done"), "{}", shown(&one));
    // The daemon takes the tasks of its own project.
    let ran = user.run(&one.join("src"), &["run", "read README.md"]);
    assert!(!ran.stderr.contains("beside"), "{}", ran.all());
    assert!(shown(&one).contains("1 ended"), "{}", shown(&one));
    // With another configuration it does not, and that is said in one line.
    let text = fs::read_to_string(one.join("supervisor.toml")).expect("read");
    fs::write(one.join("other.toml"), text + "size = 2\n").expect("written");
    let ran = user.run(&one, &["--config", "other.toml", "run", "read README.md"]);
    exits(&ran, 0, &["has another configuration", "beside it"]);
    drop(daemon);
}

#[test]
fn two_daemons_that_chose_no_port_both_start() {
    let user = User::new();
    let [one, two] = ["one", "two"].map(|name| {
        let dir = user.project(name, POOL);
        fs::write(dir.join("supervisor.toml"), POOL).expect("written");
        dir
    });
    // Whatever has the default port, one of them finds it taken.
    let logs = [&one, &two].map(|dir| {
        let daemon = user.up(dir);
        let log = fs::read_to_string(user.path("up.log")).expect("its log");
        (daemon, log)
    });
    for (_, log) in &logs {
        assert!(log.contains("listening on http://127.0.0.1:"), "{log}");
    }
    let taken = "another program listens on 127.0.0.1:7117";
    assert!(
        logs.iter().any(|(_, log)| log.contains(taken)),
        "neither says it"
    );
    drop(logs);
}

#[test]
fn commands_that_read_or_control_work_in_any_directory_and_with_a_broken_configuration() {
    let user = User::new();
    let one = user.project("one", POOL);
    let daemon = user.up(&one);
    let home = user.home.path().to_owned();
    for dir in [&home, Path::new("/")] {
        let listed = user.run(dir, &["ls"]);
        exits(&listed, 0, &["of the project"]);
        assert!(listed.stdout.contains("demo/0"), "{}", listed.all());
        exits(&user.run(dir, &["report"]), 0, &[]);
        exits(&user.run(dir, &["approvals", "ls"]), 0, &[]);
        exits(&user.run(dir, &["events"]), 0, &[]);
        exits(&user.run(dir, &["drain", "demo"]), 0, &["draining"]);
        exits(&user.run(dir, &["resume", "demo"]), 0, &[]);
        exits(
            &user.run(dir, &["doctor"]),
            user.run(&one, &["doctor"]).code.expect("code"),
            &[],
        );
        // What would give agents the whole home is refused, with a way out.
        exits(&user.run(dir, &["run", "list ."]), 2, &["marshal init"]);
    }
    // The agent is gone and the file is broken: neither is needed.
    let broken = "[pool.demo]\nagent = \"codex\"\nsize = \nlauncher = 3\n";
    fs::write(one.join("supervisor.toml"), broken).expect("written");
    exits(&user.run(&one, &["ls"]), 0, &[]);
    exits(
        &user.run(&one, &["stop", "no-such-session"]),
        2,
        &["no such session"],
    );
    exits(&user.run(&one, &["events"]), 0, &[]);
    exits(
        &user.run(&one, &["report"]),
        0,
        &["the configuration cannot be used"],
    );
    exits(
        &user.run(&one, &["config", "check"]),
        2,
        &["supervisor.toml:3"],
    );
    drop(daemon);
    // Without a supervisor the records can still be read.
    exits(&user.run(&one, &["report"]), 0, &[]);
    exits(&user.run(&one, &["ls"]), 4, &["no supervisor is running"]);
}

#[test]
fn of_several_supervisors_one_has_to_be_named() {
    let user = User::new();
    let (one, two) = (user.project("one", POOL), user.project("deep/two", POOL));
    let daemons = [user.up(&one), user.up(&two)];
    let home = user.home.path().to_owned();
    let several = user.run(&home, &["ls"]);
    exits(&several, 2, &["--project", "one-", "two-", "daemon"]);
    let name = several
        .stderr
        .split_whitespace()
        .find(|word| word.starts_with("two-"));
    for named in [name.expect("named above"), "deep/two", "deep/two/src"] {
        exits(&user.run(&home, &["ls", "--project", named]), 0, &[]);
    }
    exits(
        &user.run(&home, &["ls", "--project", "three"]),
        2,
        &["three"],
    );
    exits(
        &user.run(&home, &["run", "x", "--project", "one"]),
        2,
        &["--project is for"],
    );
    // In a project's directory its own supervisor is meant.
    let listed = user.run(&two.join("src"), &["ls", "--json"]);
    exits(&listed, 0, &[]);
    drop(daemons);
    eventually(Duration::from_secs(30), "the register is empty", || {
        let entries = fs::read_dir(home.join("marshal/supervisors"));
        entries.is_ok_and(|mut entries| entries.next().is_none())
    });
}

#[test]
fn trust_lasts_until_the_file_changes() {
    let user = User::new();
    let dir = user.project("one", POOL);
    let untrusted = user.run(&dir, &["run", "say hi"]);
    exits(
        &untrusted,
        2,
        &["a discovered supervisor.toml may not use", "marshal trust"],
    );
    exits(&user.run(&dir, &["trust"]), 0, &["trusted as it is now"]);
    exits(&user.run(&dir, &["run", "say hi"]), 0, &[]);
    assert!(
        user.run(&dir, &["trust", "--list"])
            .stdout
            .contains("(trusted)")
    );
    let file = dir.join("supervisor.toml");
    let text = fs::read_to_string(&file).expect("read");
    fs::write(&file, text.replace("# x", "") + "# x\n").expect("written");
    exits(&user.run(&dir, &["run", "say hi"]), 2, &["marshal trust"]);
    assert!(
        user.run(&dir, &["trust", "--list"])
            .stdout
            .contains("(changed")
    );
    exits(&user.run(&dir, &["trust"]), 0, &[]);
    exits(
        &user.run(&dir, &["trust", "--revoke"]),
        0,
        &["not trusted any more"],
    );
    exits(&user.run(&dir, &["run", "say hi"]), 2, &["marshal trust"]);
    // A configuration whose agents could write the record cannot be trusted.
    let text = "[supervisor]\nstate_dir = \"/var/tmp/marshal-none\"\n[pool.a]\nagent = \"script\"\nlauncher = \"none\"\nnetwork = \"host\"\nguard = \"policy\"\nworkspace = { path = \"..\", mode = \"copy\" }\n";
    fs::write(&file, text).expect("written");
    exits(&user.run(&dir, &["trust"]), 2, &["could write the record"]);
}

#[test]
fn what_a_start_would_refuse_is_found_by_the_check() {
    let user = User::new();
    let dir = user.project("one", "");
    let check_only = |text: &str, part: &str| {
        fs::write(dir.join("supervisor.toml"), text).expect("written");
        exits(&user.run(&dir, &["config", "check"]), 2, &[part]);
    };
    let check = |text: &str, part: &str| {
        check_only(text, part);
        exits(&user.run(&dir, &["run", "say hi"]), 2, &[part]);
    };
    check(
        "[pool.a]\ncommand = [\"no-such-agent\", \"--acp\"]\ndialect = \"acp\"\n",
        "no-such-agent was not found in PATH",
    );
    fs::create_dir(dir.join("plain")).expect("made");
    let pool = |mode: &str| {
        format!(
            "[pool.a]\nagent = \"script\"\nworkspace = {{ path = \"plain\", mode = \"{mode}\" }}\n"
        )
    };
    check_only(&pool("worktree"), "it has no git repository");
    check_only(&pool("rw"), "belongs to root");
    fs::write(dir.join("bad.toml"), "nonsense = 1\n").expect("written");
    check(
        "[policy.unused]\nfile = \"../bad.toml\"\n[pool.a]\nagent = \"script\"\nworkspace = { path = \"plain\", mode = \"copy\" }\n",
        "policy.unused.file",
    );
    // The file of a policy is outside of the workspace; its content is what is wrong.
    fs::copy(dir.join("bad.toml"), user.path("bad.toml")).expect("copied");
    check(
        "[policy.unused]\nfile = \"../bad.toml\"\n[pool.a]\nagent = \"script\"\nworkspace = { path = \"plain\", mode = \"copy\" }\n",
        "nonsense",
    );
}

#[test]
fn tasks_of_a_missing_file_and_of_an_unknown_pool_are_errors() {
    let user = User::new();
    let two = POOL.replace("demo", "other");
    let dir = user.project("one", &format!("{POOL}{two}"));
    exits(&user.run(&dir, &["trust"]), 0, &[]);
    for missing in ["tasks.jsonl", "night/plan.md", "tasks.json"] {
        let ran = user.run(&dir, &["run", "--pool", "demo", missing]);
        exits(&ran, 2, &[missing, "there is no such file"]);
    }
    exits(
        &user.run(&dir, &["run", "say hi"]),
        2,
        &["demo, other", "--pool NAME"],
    );
    exits(
        &user.run(&dir, &["run", "--pool", "none", "say hi"]),
        2,
        &["there is no such pool"],
    );
    let ran = user.run(&dir, &["run", "--pool", "other", "say hi"]);
    exits(&ran, 0, &[]);
    assert!(ran.stdout.contains("other/0"), "{}", ran.all());
}

#[test]
fn a_client_says_at_once_which_command_answers_a_pending_approval() {
    let user = User::new();
    let dir = user.project("one", POOL);
    let daemon = user.up(&dir);
    let mut command = user.command(&dir, &["run", "read ../README.md"]);
    let log = user.path("run.log");
    let file = fs::File::create(&log).expect("a log");
    let mut running = command
        .stderr(file)
        .stdout(Stdio::null())
        .spawn()
        .expect("marshal starts");
    let mut answer = String::new();
    eventually(Duration::from_secs(60), "the command is shown", || {
        let text = fs::read_to_string(&log).unwrap_or_default();
        let found = text
            .lines()
            .find_map(|line| line.trim().strip_prefix("to answer it: marshal "));
        answer = found.unwrap_or_default().to_owned();
        !answer.is_empty()
    });
    // The command as it is shown, but for the word that says no.
    let words: Vec<&str> = answer.split_whitespace().collect();
    assert_eq!(words[..2], ["approvals", "approve"], "{answer}");
    let rejected = user.run(
        &dir,
        &["approvals", "reject", words[2].trim_end_matches(',')],
    );
    exits(&rejected, 0, &[]);
    let status = running.wait().expect("it ends");
    assert_eq!(status.code(), Some(1));
    let text = fs::read_to_string(&log).expect("read");
    assert!(
        text.contains("task-1: waits 15m00s for your approval")
            || text.contains("task-1: waits 14m59s"),
        "{text}"
    );
    drop(daemon);
}

/// The command of the README, with its configuration and with each preset.
#[test]
fn the_command_of_a_night_works_with_the_readme_and_with_each_preset() {
    let user = User::new();
    let night = ["run", "--until", "07:00", "--max-cost", "40", "--jobs", "8"];
    let dir = user.project("one", "");
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("supervisor.toml");
    fs::copy(shipped, dir.join("supervisor.toml")).expect("copied");
    let tasks = "{\"prompt\": \"read README.md\"}\n{\"prompt\": \"list src\"}\n";
    fs::write(dir.join("tasks.jsonl"), tasks).expect("written");
    let ran = user.run(&dir, &[&night[..], &["tasks.jsonl"]].concat());
    exits(&ran, 0, &[]);
    assert!(!ran.stderr.contains("warning"), "{}", ran.all());
    // A preset needs its agent: the program here is one in its place, which the kernel does not
    // start. What is tested is that no price is missing before the first task.
    let bin = dir.join("node_modules/.bin");
    fs::create_dir_all(&bin).expect("made");
    for (agent, program) in [
        ("claude", "claude-agent-acp"),
        ("claude-code", "claude"),
        ("codex", "codex-acp"),
        ("codex-app-server", "codex"),
        ("gemini", "gemini"),
        ("hermes", "hermes"),
        ("opencode", "opencode"),
    ] {
        let file = bin.join(program);
        fs::write(&file, "no program\n").expect("written");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(&file, mode).expect("chmod");
        let init = user.run(&dir, &["init", "--agent", agent, "--rehearsal", "--force"]);
        assert!(matches!(init.code, Some(0 | 1)), "{agent}: {}", init.all());
        let ran = user.run(&dir, &[&night[..], &["say hi"]].concat());
        assert_eq!(ran.code, Some(1), "{agent}: {}", ran.all());
        assert!(!ran.all().contains("price"), "{agent}: {}", ran.all());
        assert!(ran.stdout.contains("failed"), "{agent}: {}", ran.all());
    }
    // A model without a price stops the run before its first task, with one message.
    let text = fs::read_to_string(dir.join("supervisor.toml")).expect("read");
    let text = text.replace("size =", "model = \"no-such-model\"\nsize =");
    fs::write(dir.join("supervisor.toml"), text).expect("written");
    exits(&user.run(&dir, &["trust"]), 0, &[]);
    let ran = user.run(&dir, &[&night[..], &["say hi", "say ho"]].concat());
    exits(&ran, 2, &["[price.\"no-such-model\"]", "--max-tokens"]);
}
