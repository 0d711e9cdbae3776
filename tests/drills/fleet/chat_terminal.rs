//! `marshal chat`: over a pipe, and on a real terminal.

use std::fs;
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use serde_json::Value;

use crate::chat_client::{Daemon, LONG, drill};
use crate::drill::{Drill, eventually};

/// What something has said so far.
#[derive(Clone, Default)]
struct OutputReader(Arc<Mutex<Vec<u8>>>, Arc<AtomicBool>);

impl OutputReader {
    /// Hears until the end, beside the test.
    fn of(mut from: impl std::io::Read + Send + 'static) -> Self {
        let received = Self::default();
        let to = received.clone();
        std::thread::spawn(move || {
            let mut piece = [0; 4096];
            // A terminal whose other end is closed is an error.
            while let Ok(count @ 1..) = from.read(&mut piece) {
                to.0.lock().expect("held").extend(&piece[..count]);
            }
            to.1.store(true, Ordering::SeqCst);
        });
        received
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().expect("held")).into_owned()
    }

    /// Everything, once whoever says it is gone.
    fn whole(&self) {
        eventually(LONG, "all that was said", || self.1.load(Ordering::SeqCst));
    }

    fn until(&self, what: &str) {
        let mut text = String::new();
        let received = std::time::Instant::now() + LONG;
        while std::time::Instant::now() < received {
            text = self.text();
            if text.contains(what) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        panic!("{what:?} did not come: {text}");
    }
}

/// A chat over pipes.
struct Piped {
    child: Child,
    stdin: Option<ChildStdin>,
    out: OutputReader,
    err: OutputReader,
}

impl Piped {
    fn start(drill: &Drill, args: &[&str]) -> Self {
        let mut command = drill.command(args);
        command.stdin(Stdio::piped());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let out = OutputReader::of(child.stdout.take().expect("a pipe"));
        let err = OutputReader::of(child.stderr.take().expect("a pipe"));
        let stdin = child.stdin.take();
        Self {
            child,
            stdin,
            out,
            err,
        }
    }

    fn say(&mut self, text: &str) {
        let stdin = self.stdin.as_mut().expect("open");
        stdin.write_all(text.as_bytes()).expect("taken");
        stdin.flush().expect("taken");
    }

    /// Closes its input; gives how it ended.
    fn end(&mut self) -> Option<i32> {
        drop(self.stdin.take());
        let code = wait_for_exit(&mut self.child, &self.err);
        self.out.whole();
        self.err.whole();
        code
    }
}

impl Drop for Piped {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn wait_for_exit(child: &mut Child, reported: &OutputReader) -> Option<i32> {
    let mut status = None;
    eventually(LONG, "its end", || {
        status = child.try_wait().expect("a child");
        status.is_some()
    });
    let code = status.and_then(|status| status.code());
    assert!(code.is_some(), "{}", reported.text());
    code
}

#[test]
fn each_line_is_a_message_and_a_chat_is_taken_up_again() {
    let drill = drill("acp", 1);
    let _daemon = Daemon::start(&drill);
    let mut talk = Piped::start(&drill, &["chat"]);
    talk.say("say one \u{1b}[2J\n\nsay two\\\nsay three\n");
    assert_eq!(talk.end(), Some(0), "{}", talk.err.text());
    // Nothing of an agent's acts on a terminal.
    assert_eq!(talk.out.text(), "one \\u{1b}[2J\n\ntwo\nthree\n\n");
    let shown = talk.err.text();
    let chat = shown.lines().find_map(|line| line.strip_prefix("chat "));
    let chat = chat.unwrap_or_else(|| panic!("{shown}")).to_owned();
    let again = ["chat", "--workspace", "main", "--resume", &chat];
    let mut talk = Piped::start(&drill, &again);
    talk.say("say four\n");
    assert_eq!(talk.end(), Some(0), "{}", talk.err.text());
    assert_eq!(talk.out.text(), "four\n\n", "nothing of before is told");
    let mut json = Piped::start(&drill, &["--json", "chat", "--resume", &chat]);
    json.say("say five\n");
    assert_eq!(json.end(), Some(0), "{}", json.err.text());
    let lines = json.out.text();
    let lines: Vec<Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    assert_eq!(lines.last().expect("some")["type"], "done", "{lines:?}");
    for (args, code, why) in [
        (&["chat", "--workspace", "none"][..], 2, "workspace"),
        (&["chat", "--role", "none"], 2, "role"),
        (&["chat", "--resume", "none"], 2, "chat"),
    ] {
        let mut talk = Piped::start(&drill, args);
        // It may be gone before it reads.
        let _ = talk.stdin.as_mut().expect("open").write_all(b"say x\n");
        assert_eq!(talk.end(), Some(code), "{args:?}: {}", talk.err.text());
        let shown = talk.err.text();
        assert!(
            shown.starts_with("error: ") && shown.contains(why),
            "{shown}"
        );
    }
}

#[test]
fn questions_are_answered_in_place() {
    let drill = drill("acp", 1);
    let _daemon = Daemon::start(&drill);
    let mut talk = Piped::start(&drill, &["chat", "--answers"]);
    talk.say("run touch allowed\n");
    talk.err.until("touch");
    talk.say("what?\ny\n");
    talk.err.until("approved\n");
    talk.say("run touch refused\n");
    talk.say("n not on a Monday\n");
    talk.err.until("rejected\n");
    talk.say("say over\n");
    assert_eq!(talk.end(), Some(0), "{}", talk.err.text());
    let shown = talk.err.text();
    assert!(shown.contains("enter y, n, n REASON or s"), "{shown}");
    assert!(talk.out.text().contains("over\n"), "{}", talk.out.text());
    let ran = drill.run(&["--json", "approvals", "ls", "--ended"]);
    let mut message: Vec<(String, String)> = ran
        .stdout
        .lines()
        .map(|line| {
            let ask: Value = serde_json::from_str(line).expect("JSON");
            let word = |at: &str| ask.pointer(at).and_then(Value::as_str).unwrap_or("").into();
            (word("/state"), word("/answer/reason"))
        })
        .collect();
    message.sort();
    let expected = [("approved", ""), ("rejected", "not on a Monday")];
    let expected = expected.map(|(state, why)| (state.to_owned(), why.to_owned()));
    assert_eq!(message, expected, "{}", ran.all());
}

#[test]
fn lines_that_were_written_before_a_question_answer_none() {
    let drill = drill("acp", 1);
    let _daemon = Daemon::start(&drill);
    let mut talk = Piped::start(&drill, &["chat"]);
    talk.say("run touch asked\ny say it is allowed\nsay over\n");
    talk.err.until("not answered here: marshal approvals show ");
    let ran = drill.run(&["--json", "approvals", "ls"]);
    let ask: Value = serde_json::from_str(ran.stdout.trim()).expect("one that waits");
    let id = ask["approval"].as_str().expect("an id");
    let ran = drill.run(&["approvals", "reject", id, "--reason", "no"]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    assert_eq!(talk.end(), Some(0), "{}", talk.err.text());
    assert!(talk.out.text().contains("over\n"), "{}", talk.out.text());
    let ran = drill.run(&["--json", "approvals", "ls", "--ended"]);
    let ask: Value = serde_json::from_str(ran.stdout.trim()).expect("one that is over");
    assert_eq!(ask["state"], "rejected", "{ask}");
}

#[test]
fn it_goes_on_over_a_daemon_that_is_killed() {
    let drill = drill("acp", 1);
    let daemon = Daemon::start(&drill);
    let mut talk = Piped::start(&drill, &["chat"]);
    talk.say("say first\n");
    talk.out.until("first\n\n");
    daemon.running.signal("KILL");
    drop(daemon);
    // Sent while nobody is there, and once there is somebody: once.
    talk.say("say second\n");
    talk.err.until("the daemon does not answer; trying again");
    let daemon = Daemon::start(&drill);
    talk.out.until("second\n\n");
    // In the middle of a turn, which its stream tells the end of.
    talk.say("say third\\\nhang\n");
    talk.out.until("third");
    daemon.running.signal("KILL");
    drop(daemon);
    let _daemon = Daemon::start(&drill);
    talk.err.until("error: ");
    talk.say("say fourth\n");
    talk.out.until("fourth\n\n");
    assert_eq!(talk.end(), Some(0), "{}", talk.err.text());
    for word in ["first", "second", "third", "fourth"] {
        assert_eq!(talk.out.text().matches(word).count(), 1, "{word}");
    }
}

#[test]
fn a_hangup_while_a_chat_is_created_creates_no_second_one() {
    let drill = drill("acp", 1);
    let daemon = Daemon::start(&drill);
    // It takes what is sent, and answers later.
    daemon.running.signal("STOP");
    let mut talk = Piped::start(&drill, &["chat"]);
    let pid = talk.child.id();
    eventually(LONG, "it hears signals", || {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        mask.is_some_and(|mask| mask & 1 == 1)
    });
    talk.say("say first\n");
    // Before it sends, or while it waits for the answer.
    for _ in 0..20 {
        let mut hangup = std::process::Command::new("kill");
        hangup.args(["-HUP", &pid.to_string()]);
        assert!(hangup.status().expect("kill").success());
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    daemon.running.signal("CONT");
    talk.out.until("first\n\n");
    assert_eq!(talk.end(), Some(0), "{}", talk.err.text());
    let chats = daemon.get("/api/v1/workspaces/main/chats").body;
    assert_eq!(
        chats["items"].as_array().expect("chats").len(),
        1,
        "{chats}"
    );
}

/// A chat on a terminal.
struct Typed {
    child: Child,
    keys: fs::File,
    screen: OutputReader,
}

impl Typed {
    fn start(drill: &Drill, args: &[&str]) -> Self {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
        grantpt(&ours).expect("granted");
        unlockpt(&ours).expect("unlocked");
        let name = ptsname(&ours, Vec::new()).expect("a name");
        let theirs = || {
            let opened = fs::OpenOptions::new()
                .read(true)
                .write(true)
                .open(name.to_str().expect("text"));
            Stdio::from(OwnedFd::from(opened.expect("its other end")))
        };
        let plain = drill.command(args);
        // A session of its own, so that the keys mean what they mean.
        let mut command = Command::new("setsid");
        command.args(["--ctty", "--wait"]);
        command.arg(plain.get_program()).args(plain.get_args());
        command.current_dir(drill.path("")).env_clear();
        for (key, value) in plain.get_envs() {
            command.env(key, value.unwrap_or_default());
        }
        command.env("TERM", "xterm");
        command.stdin(theirs()).stdout(theirs()).stderr(theirs());
        let child = command.spawn().expect("setsid");
        let keys = fs::File::from(ours);
        let screen = OutputReader::of(keys.try_clone().expect("a copy"));
        Self {
            child,
            keys,
            screen,
        }
    }

    /// Waits until the editor has the terminal for so many times: what is pressed before that is
    /// the terminal's to understand.
    fn edits(&self, times: usize) {
        let has = || self.screen.text().matches("\u{1b}[?2004h").count() >= times;
        eventually(LONG, "the editor asks", has);
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).expect("pressed");
    }

    fn end(&mut self) -> Option<i32> {
        wait_for_exit(&mut self.child, &self.screen)
    }
}

impl Drop for Typed {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn on_a_terminal_there_is_an_editor_and_ctrl_c_ends_a_turn() {
    let drill = drill("acp", 1);
    let _daemon = Daemon::start(&drill);
    let mut talk = Typed::start(&drill, &["chat"]);
    talk.edits(1);
    // What is typed wrongly is taken back.
    talk.press("say helloX\u{7f}\r");
    talk.screen.until("hello\r\n\r\n");
    talk.edits(2);
    talk.press("say working\\\r");
    talk.edits(3);
    talk.press("hang\r");
    talk.screen.until("working\r\n");
    talk.press("\u{3}");
    talk.screen
        .until("cancelling the turn; press Ctrl-C again to exit");
    talk.screen.until("stopped\r\n");
    talk.edits(4);
    talk.press("run touch asked\r");
    talk.screen.until("allow? y, n, n REASON, or s to skip: ");
    talk.edits(5);
    talk.press("y\r");
    talk.screen.until("approved\r\n");
    talk.edits(6);
    // The first line, out of the history; answers are not in it.
    talk.press("\u{1b}[A\u{1b}[A\u{1b}[A\u{1b}[A\r");
    let is_twice = || talk.screen.text().matches("hello\r\n\r\n").count() == 2;
    eventually(LONG, "it was said again", is_twice);
    talk.edits(7);
    talk.press("\u{3}");
    talk.screen.until("press Ctrl-C again to exit\r\n");
    talk.edits(8);
    talk.press("\u{3}");
    assert_eq!(talk.end(), Some(130));
    let history = drill.state().join("chat.history");
    let mode = fs::metadata(&history).expect("a history").permissions();
    assert_eq!(mode.mode() & 0o777, 0o600);
    let stored = fs::read_to_string(&history).expect("text");
    assert!(stored.contains("say hello\n"), "{stored}");
    assert!(!stored.contains("\ny\n"), "{stored}");
    // What was typed is there the next time, and Ctrl-D leaves.
    let mut talk = Typed::start(&drill, &["chat"]);
    talk.edits(1);
    talk.press("\u{1b}[A\r");
    talk.screen.until("hello\r\n\r\n");
    talk.edits(2);
    talk.press("\u{4}");
    assert_eq!(talk.end(), Some(0));
}
