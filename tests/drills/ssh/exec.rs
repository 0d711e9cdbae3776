//! `marshal sandbox exec` by itself: what passes through it, and what is left when it ends.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::drill::{NOBODY, eventually, processes};

/// A directory of an ordinary user, to work in.
struct ExecHost {
    dir: tempfile::TempDir,
    mark: String,
}

impl ExecHost {
    fn new() -> Self {
        let dir = tempfile::Builder::new()
            .prefix("marshal-exec-")
            .tempdir()
            .expect("a directory");
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).expect("chmod");
        let room = Self {
            dir,
            mark: format!("exec-{}", uuid::Uuid::new_v4().simple()),
        };
        for name in ["work", "state", "home"] {
            fs::create_dir(room.path(name)).expect("a directory");
            chown(room.path(name), Some(NOBODY), Some(NOBODY)).expect("chown");
        }
        fs::write(room.path("work/file.txt"), "as it was\n").expect("a file");
        chown(room.path("work/file.txt"), Some(NOBODY), Some(NOBODY)).expect("chown");
        room
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join(name)
    }

    /// The program, as root or as an ordinary user.
    fn command(&self, uid: Option<u32>) -> Command {
        let marshal = env!("CARGO_BIN_EXE_marshal");
        let mut command = match uid {
            None => Command::new(marshal),
            Some(uid) => {
                let mut command = Command::new("setpriv");
                command
                    .args([&format!("--reuid={uid}"), &format!("--regid={uid}")])
                    .args(["--clear-groups", marshal]);
                command
            }
        };
        command
            .current_dir(self.path("work"))
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("HOME", self.path("home"))
            .env("XDG_STATE_HOME", self.path("state"))
            .env("SECRET", "s3cret")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// `sandbox exec` with these words.
    fn exec(&self, words: &[&str]) -> Command {
        let mut command = self.command(Some(NOBODY));
        let mark = format!("--set=MARK={}", self.mark);
        command.args(["sandbox", "exec", &mark]).args(words);
        command
    }

    fn run(&self, words: &[&str]) -> Output {
        self.exec(words).output().expect("marshal")
    }

    fn inside(&self) -> usize {
        processes(|environ| environ.contains(&format!("MARK={}", self.mark))).len()
    }

    /// A command that runs, with its input open.
    fn start(&self, words: &[&str]) -> (Child, ChildStdin) {
        let mut child = self
            .exec(words)
            .stdin(Stdio::piped())
            .spawn()
            .expect("marshal");
        let stdin = child.stdin.take().expect("stdin");
        // The deaf one has two more, which come when it has set its traps.
        let all = if words.ends_with(&BUSY) { 3 } else { 1 };
        eventually(Duration::from_secs(60), "the command runs", || {
            self.inside() >= all
        });
        (child, stdin)
    }

    fn wait_until_no_process(&self, most: Duration) {
        eventually(most, "nothing is left", || self.inside() == 0);
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn output_text(output: &Output) -> String {
    format!(
        "{}\n{}\n{}",
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    )
}

/// What is left must be gone by then: by itself none of it goes.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(20);

const BUSY: [&str; 4] = [
    "--",
    "sh",
    "-c",
    "setsid sleep 1000 & trap '' INT TERM HUP; sleep 1000; sleep 1000",
];

#[test]
fn input_outputs_and_exit_code_pass_through_unchanged() {
    let room = ExecHost::new();
    let mut child = room
        .exec(&["--mode=ro", "--", "sh", "-c", "cat; echo oops >&2; exit 42"])
        .stdin(Stdio::piped())
        .spawn()
        .expect("marshal");
    // More than any pipe holds, and every byte there is.
    let sent: Vec<u8> = (0..3_000_000_u32)
        .map(|n| u8::try_from(n % 256).expect("a byte"))
        .collect();
    let mut stdin = child.stdin.take().expect("stdin");
    let bytes = sent.clone();
    let feeder = std::thread::spawn(move || stdin.write_all(&bytes));
    let output = child.wait_with_output().expect("ends");
    feeder.join().expect("fed").expect("written");
    assert_eq!(output.status.code(), Some(42), "{}", text(&output.stderr));
    assert!(
        output.stdout == sent,
        "{} of {} bytes",
        output.stdout.len(),
        sent.len()
    );
    assert_eq!(text(&output.stderr), "oops\n");
}

#[test]
fn a_command_sees_its_workspace_and_nothing_of_its_callers() {
    let room = ExecHost::new();
    let script = "id -u; pwd; cat file.txt; echo \"[$SECRET$TERM]\"; ls /root /home/agent; touch x";
    let output = room.run(&["--mode=ro", "--", "sh", "-c", script]);
    let out = text(&output.stdout);
    assert!(
        out.starts_with("1000\n/workspace\nas it was\n[]\n"),
        "{}",
        output_text(&output)
    );
    assert!(
        text(&output.stderr).contains("Read-only file system"),
        "{}",
        output_text(&output)
    );
    let output = room.run(&[
        "--mode=rw",
        "--pass=SECRET",
        "--",
        "sh",
        "-c",
        "echo $SECRET; echo new > x",
    ]);
    assert_eq!(text(&output.stdout), "s3cret\n", "{}", output_text(&output));
    assert_eq!(
        fs::read_to_string(room.path("work/x")).expect("written"),
        "new\n"
    );
    let home = room.path("home").display().to_string();
    let output = room.run(&[
        "--mode=ro",
        "--home",
        &home,
        "--",
        "sh",
        "-c",
        "echo kept > ~/kept",
    ]);
    assert!(output.status.success(), "{}", output_text(&output));
    assert_eq!(
        fs::read_to_string(room.path("home/kept")).expect("written"),
        "kept\n"
    );
    let output = room.run(&[
        "--mode=ro",
        "--path-add=$HOME/bin",
        "--",
        "marshal",
        "--version",
    ]);
    assert!(
        text(&output.stdout).starts_with("marshal "),
        "{}",
        output_text(&output)
    );
}

#[test]
fn a_copy_is_kept_and_the_directory_itself_stays_as_it_is() {
    let room = ExecHost::new();
    let output = room.run(&["--", "sh", "-c", "echo changed > file.txt"]);
    assert!(output.status.success(), "{}", output_text(&output));
    let printed = text(&output.stderr);
    let (_, path) = printed
        .trim_end()
        .rsplit_once("is kept in ")
        .expect("a path");
    let copy = fs::read_to_string(Path::new(path).join("file.txt")).expect("the copy");
    assert_eq!(copy, "changed\n");
    let own = fs::read_to_string(room.path("work/file.txt")).expect("the file");
    assert_eq!(own, "as it was\n");
}

#[test]
fn a_copy_that_outgrows_its_limit_ends_the_command() {
    let room = ExecHost::new();
    // Files of 512 MiB, which take their space on disk without being written.
    let script =
        "for n in 0 1 2 3 4 5 6 7 8; do fallocate -l 512M big.$n || exit 3; done; sleep 100";
    let output = room.run(&["--eof-wait=none", "--", "sh", "-c", script]);
    assert_eq!(output.status.code(), Some(137), "{}", output_text(&output));
    assert!(
        text(&output.stderr)
            .contains("bytes, more than its limit of 4294967296, so the command was killed"),
        "{}",
        output_text(&output)
    );
}

#[test]
fn secrets_of_the_directory_are_hidden_in_every_mode() {
    let room = ExecHost::new();
    for name in [".env", "server.pem"] {
        fs::write(room.path("work").join(name), "s3cret\n").expect("a file");
    }
    let read = ["--", "sh", "-c", "cat .env server.pem file.txt"];
    for mode in ["--mode=copy", "--mode=ro", "--mode=rw"] {
        let output = room.run(&[&[mode][..], &read].concat());
        assert_eq!(
            text(&output.stdout),
            "as it was\n",
            "{mode} {}",
            output_text(&output)
        );
        // Only the file that the command line names is shown.
        let output = room.run(&[&[mode, "--unmask=server.pem"][..], &read].concat());
        let expected = "s3cret\nas it was\n";
        assert_eq!(
            text(&output.stdout),
            expected,
            "{mode} {}",
            output_text(&output)
        );
    }
}

#[test]
fn as_root_a_command_is_somebody_else_too() {
    let room = ExecHost::new();
    let mut command = room.command(None);
    command.args([
        "sandbox",
        "exec",
        "--mode=rw",
        "--",
        "sh",
        "-c",
        "id -u; echo root > file.txt",
    ]);
    let output = command.output().expect("marshal");
    assert_eq!(text(&output.stdout), "1000\n", "{}", output_text(&output));
    assert_eq!(
        fs::read_to_string(room.path("work/file.txt")).expect("written"),
        "root\n"
    );
    chown(room.path("work"), Some(0), Some(0)).expect("chown");
    let mut command = room.command(None);
    command.args(["sandbox", "exec", "--mode=rw", "--", "true"]);
    let output = command.output().expect("marshal");
    assert_eq!(output.status.code(), Some(125), "{}", output_text(&output));
    assert!(
        text(&output.stderr).contains("belongs to root"),
        "{}",
        output_text(&output)
    );
}

#[test]
fn what_cannot_be_had_is_refused_and_nothing_runs() {
    let room = ExecHost::new();
    let refused = |words: &[&str], code: i32, part: &str| {
        let output = room.run(words);
        assert_eq!(
            output.status.code(),
            Some(code),
            "{words:?} {}",
            output_text(&output)
        );
        assert!(
            text(&output.stderr).contains(part),
            "{words:?} {}",
            output_text(&output)
        );
        assert!(
            output.stdout.is_empty(),
            "{words:?} {}",
            output_text(&output)
        );
    };
    let echo = ["--", "echo", "ran"];
    let with = |words: &[&'static str]| words.iter().chain(&echo).copied().collect::<Vec<_>>();
    refused(&with(&["--profile=none"]), 125, "there is no profile");
    refused(
        &with(&["--workspace=/no/such"]),
        125,
        "cannot use the directory",
    );
    refused(
        &with(&["--workspace=/", "--mode=ro"]),
        125,
        "state directory",
    );
    refused(
        &with(&["--home=.", "--mode=ro"]),
        125,
        "must not contain each other",
    );
    refused(&with(&["--network=routes"]), 2, "invalid value");
    refused(
        &["--mode=ro", "--", "no-such-program"],
        127,
        "no-such-program",
    );
    refused(&["--mode=ro", "--", "/workspace/file.txt"], 126, "file.txt");
    // Inside a sandbox there can be no further ones: the first call that they would need is not there.
    let inner = [
        "--mode=ro",
        "--",
        "marshal",
        "sandbox",
        "exec",
        "--mode=ro",
        "--",
        "echo",
        "ran",
    ];
    refused(&inner, 125, "Function not implemented");
}

#[test]
fn the_end_of_the_input_is_a_stop_and_its_ladder_ends_everything() {
    let room = ExecHost::new();
    let (mut child, stdin) = room.start(&["--mode=ro", "--eof-wait=300ms", "--", "sleep", "1000"]);
    let began = Instant::now();
    drop(stdin);
    // SIGINT ends it after its time.
    assert_eq!(child.wait().expect("ends").code(), Some(130));
    assert!(began.elapsed() >= Duration::from_millis(300));
    room.wait_until_no_process(CLEANUP_TIMEOUT);
    let words: Vec<&str> = ["--mode=ro", "--eof-wait=0s"]
        .into_iter()
        .chain(BUSY)
        .collect();
    let (mut child, stdin) = room.start(&words);
    drop(stdin);
    assert_eq!(
        child.wait().expect("ends").code(),
        Some(137),
        "a deaf one is killed"
    );
    assert_eq!(room.inside(), 0, "its end is the proof");
    let output = room.run(&[
        "--mode=ro",
        "--eof-wait=none",
        "--",
        "sh",
        "-c",
        "sleep 1; echo done",
    ]);
    assert_eq!(text(&output.stdout), "done\n");
}

#[test]
fn nothing_survives_the_end_of_whoever_started_it() {
    let room = ExecHost::new();
    let words: Vec<&str> = ["--mode=ro"].into_iter().chain(BUSY).collect();
    // SIGHUP, as from a connection that is gone.
    let (mut child, _stdin) = room.start(&words);
    crate::ssh::ssh_host::signal(child.id(), "HUP");
    assert_eq!(child.wait().expect("ends").code(), Some(137));
    assert_eq!(room.inside(), 0);
    // Killed itself.
    let (mut child, _stdin) = room.start(&words);
    crate::ssh::ssh_host::signal(child.id(), "KILL");
    let _ = child.wait();
    room.wait_until_no_process(CLEANUP_TIMEOUT);
    // The shell between is killed: nobody else says anything, and the input stays open.
    let marshal = env!("CARGO_BIN_EXE_marshal");
    let mark = format!("--set=MARK={}", room.mark);
    let mut command = Command::new("setpriv");
    command
        .args([
            &format!("--reuid={NOBODY}"),
            &format!("--regid={NOBODY}"),
            "--clear-groups",
        ])
        .args([
            "sh",
            "-c",
            "\"$@\"; true",
            "sh",
            marshal,
            "sandbox",
            "exec",
            &mark,
        ])
        .args(&words)
        .current_dir(room.path("work"))
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("HOME", room.path("home"))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut shell = command.spawn().expect("sh");
    let _stdin = shell.stdin.take();
    eventually(Duration::from_secs(60), "the command runs", || {
        room.inside() >= 2
    });
    crate::ssh::ssh_host::signal(shell.id(), "KILL");
    let _ = shell.wait();
    room.wait_until_no_process(CLEANUP_TIMEOUT);
}

#[test]
fn an_output_that_nobody_reads_any_more_ends_the_command() {
    let room = ExecHost::new();
    let mut child = room
        .exec(&[
            "--mode=ro",
            "--",
            "sh",
            "-c",
            "while echo line; do :; done; sleep 1000",
        ])
        .stdin(Stdio::piped())
        .spawn()
        .expect("marshal");
    let _stdin = child.stdin.take();
    let mut first = [0_u8; 4];
    let mut stdout = child.stdout.take().expect("stdout");
    stdout.read_exact(&mut first).expect("a line");
    drop(stdout);
    let _ = child.wait().expect("ends");
    room.wait_until_no_process(CLEANUP_TIMEOUT);
}

#[test]
fn a_sandbox_is_explained_in_words_and_as_data() {
    let room = ExecHost::new();
    let mut command = room.command(Some(NOBODY));
    command.args(["sandbox", "explain", "--mode=ro"]);
    let output = command.output().expect("marshal");
    let out = text(&output.stdout);
    for part in [
        "a private loopback, and nothing else",
        "read-only, as /workspace",
        "read-only  /usr",
        &format!("uid and gid 1000 inside, {NOBODY}"),
    ] {
        assert!(out.contains(part), "{part}: {}", output_text(&output));
    }
    let mut command = room.command(Some(NOBODY));
    command.args(["--json", "sandbox", "explain", "--network=host"]);
    let output = command.output().expect("marshal");
    let plan: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(plan["network"], "host", "{plan}");
}
