//! SkillPilot's row: a real tclsh at a terminal, driven by files, in a sandbox. What only a carrier's lines can
//! show is shown by one of a few lines of shell.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::chat_client::text;
use crate::conformance::agent::{MEMORY, ended_well, tokens};
use crate::conformance::bench::{Bench, NEVER, Talk, comes, outcome};
use crate::conformance::column::{CellOutcome, Column};
use crate::drill::{Drill, NOBODY};

/// A carrier that says another version, and keeps what it is told.
const ODD: &str = r#"
: > told.txt
printf '%s\n' '{"type":"hello","protocol":2,"version":"9","runs":true,"session_id":"s","word":"w","next_seq":1}'
printf '%s\n' '{"type":"state","content":{"phase":"idle"}}'
exec cat >> told.txt
"#;

/// A carrier that answers every command, and before that does what its payload names.
const ROUGH: &str = r#"
printf '%s\n' '{"type":"hello","protocol":1,"version":"9","runs":true,"session_id":"s","word":"w","next_seq":1}'
printf '%s\n' '{"type":"state","content":{"phase":"idle"}}'
n=0
while IFS= read -r line; do
    case $line in
        *'"queue/cmd_'*) n=$((n + 1)) ;;
        *'"ctl/stop.json"'*) exit 0 ;;
        *) continue ;;
    esac
    case $line in
        *some-garbage*) yes 'no message' | head -n 20 ;;
        *much-garbage*) yes 'no message' | head -n 1000; sleep 3600 ;;
        *huge-line*) head -c 67108864 /dev/zero | tr '\0' x; sleep 3600 ;;
    esac
    printf '{"type":"output","command":"cmd_%s_w-%s","text":"on"}\n' "$n" "$n"
    printf '{"type":"result","command":"cmd_%s_w-%s","content":{"cmd_id":"w-%s","status":"ok","exit_reason":"marker"}}\n' "$n" "$n" "$n"
done
"#;

/// Has the tool kill the Runner, and so the child, once a file is there.
const KILL: &str = "puts {kept words}; flush stdout; while {![file exists go]} {after 20}\n\
    set stat [open /proc/[pid]/stat]; exec kill -9 [lindex [read $stat] 3]; after 3600000";

fn pool(name: &str, size: usize, keys: &str) -> String {
    format!(
        r#"
[role.{name}]
pool = "{name}"

[pool.{name}]
size      = {size}
dialect   = "skillpilot"
policy    = "conformance"
restart   = {{ budget = 1000, base = "10ms", max = "50ms" }}
env       = {{ set = {{ DRILL = "MARK" }} }}
{keys}
"#
    )
}

const TOOL: &str = r#"
command   = ["tclsh"]
launcher  = "pty"
workspace = { path = "project", mode = "copy" }
"#;

fn carrier(script: &str) -> String {
    let quick = r#"stop = { goodbye = "200ms", eof = "200ms", int = "200ms", term = "200ms" }"#;
    format!(
        r#"
command   = ["sh", "{script}"]
workspace = {{ path = "project", mode = "copy" }}
{quick}
"#
    )
}

fn pools() -> String {
    let patient = format!(
        r#"stop = {{ goodbye = "{0}s", eof = "{0}s", int = "{0}s", term = "{0}s" }}"#,
        NEVER.as_secs()
    );
    // Not stopped with us, so that the end of its stdin is all that ends the carrier.
    let theirs = format!(
        r#"
command   = ["marshal", "runner", "--carry", "--dir", "{{workspace}}"]
workspace = {{ path = "theirs", mode = "rw" }}
{patient}
"#
    );
    let leave = format!("{TOOL}runner = {{ dir = \"left\" }}\n{patient}\n");
    [
        pool("work", 4, TOOL),
        pool("odd", 1, &carrier("odd.sh")),
        pool("rough", 1, &carrier("rough.sh")),
        pool("leave", 1, &leave),
        pool("theirs", 1, &theirs),
    ]
    .concat()
}

pub(crate) fn bench() -> Bench {
    Bench::new(&pools(), |drill| {
        let workspace = drill.workspace();
        fs::write(workspace.join("odd.sh"), ODD).expect("a script");
        fs::write(workspace.join("rough.sh"), ROUGH).expect("a script");
        for name in ["left", "theirs"] {
            plane(drill, name);
        }
    })
}

/// A directory for a Runner's files, nobody's own.
fn plane(drill: &Drill, name: &str) -> PathBuf {
    let dir = drill.path(name);
    fs::create_dir(&dir).expect("a directory");
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o700)).expect("its mode");
    chown(&dir, Some(NOBODY), Some(NOBODY)).expect("given away");
    dir
}

pub(crate) fn see(bench: &Bench, column: Column) -> CellOutcome {
    match column {
        Column::Version => version(bench),
        Column::Prompt => prompt(bench),
        Column::Stream => stream(bench),
        Column::Tools => tools(bench),
        Column::Allow | Column::Deny | Column::Ask => cannot_ask(bench),
        Column::Cancel => cancel(bench),
        Column::Busy => busy(bench),
        Column::Crash => crash(bench),
        Column::Resume => resume(bench),
        Column::Goodbye => goodbye(bench),
        Column::Eof => eof(bench),
        Column::Garbage => garbage(bench),
        Column::HugeLine => huge_line(bench),
        Column::Usage => usage(bench),
    }
}

/// The audit of a Runner's session.
fn audit(dir: &Path) -> Vec<Value> {
    let text = fs::read_to_string(dir.join("log/meta.log")).expect("an audit");
    text.lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect()
}

/// What happened in it, in order.
fn happened(talk: &Talk<'_>) -> Vec<String> {
    let home = talk.bench.home(&talk.session).expect("a home");
    let event = |line: &Value| line["event"].as_str().expect("an event").to_owned();
    audit(&home.join("session")).iter().map(event).collect()
}

fn version(bench: &Bench) -> CellOutcome {
    let report = bench.task("odd", "puts never");
    assert_eq!(report["outcome"], "failed", "{report}");
    assert_eq!(report["attempts"], 0, "{report}");
    let detail = report["detail"].as_str().expect("a detail");
    let both = ["protocol version 2", "speaks version 1"];
    assert!(both.iter().all(|part| detail.contains(part)), "{detail}");
    let session = report["session"].as_str().expect("a session");
    assert_eq!(bench.events(session, "prompt_accepted").len(), 0);
    let copy = bench.copy(session).expect("a copy");
    let output = fs::read_to_string(copy.join("told.txt")).expect("it ran");
    assert!(!output.contains("queue"), "{output}");
    comes("its slot parks", || bench.one_parked("odd"));
    CellOutcome::Yes
}

fn prompt(bench: &Bench) -> CellOutcome {
    let words = "it's \"done\"\\ \u{e9}\u{6f22}\u{1f600} \u{2028}<&> $HOME [exit] %s";
    let prompt = format!("puts {{{words}}}\nputs {{a second line}}");
    let (mut talk, turn) = bench.talk("work", &prompt);
    let seen_events = talk.stream.turn(&turn);
    assert_eq!(outcome(&seen_events), "completed", "{seen_events:#?}");
    let turn_text = text(&seen_events).replace('\r', "");
    assert_eq!(turn_text.trim_end(), format!("{words}\na second line"));
    let accepted = talk.events("prompt_accepted");
    assert_eq!(accepted.len(), 1, "{accepted:?}");
    assert_eq!(accepted[0]["text"], *prompt);
    let begun = happened(&talk);
    let begun = begun.iter().filter(|event| *event == "command_started");
    assert_eq!(begun.count(), 1);
    talk.close();
    CellOutcome::Yes
}

fn stream(bench: &Bench) -> CellOutcome {
    let (mut talk, turn) = bench.talk("work", "puts {first words}; flush stdout; after 3600000");
    talk.until_said("first words");
    assert_eq!(talk.events("turn_ended").len(), 0, "its turn runs");
    talk.interrupt();
    let seen_events = talk.stream.turn(&turn);
    assert_eq!(outcome(&seen_events), "cancelled", "{seen_events:#?}");
    talk.close();
    CellOutcome::Yes
}

fn tools(bench: &Bench) -> CellOutcome {
    let talk = bench.talked("work", "puts [exec echo of a program]");
    assert!(talk.texts().contains("of a program"), "{}", talk.texts());
    for kind in ["tool_start", "tool_update", "tool_result"] {
        assert_eq!(talk.events(kind).len(), 0, "{kind}");
    }
    talk.close();
    CellOutcome::None("A prompt is a command of the tool itself; what that starts is not told.")
}

fn cannot_ask(bench: &Bench) -> CellOutcome {
    for key in ["permission_requests = \"all\"\n", "guard = \"policy\"\n"] {
        let reported = Bench::refused(&pool("strict", 1, &format!("{TOOL}{key}")));
        assert!(
            reported.contains("pool.strict") && reported.contains("ask"),
            "{key}: {reported}"
        );
    }
    let talk = bench.talked("work", "file delete README.md");
    assert!(!talk.copy().join("README.md").exists(), "it ran unasked");
    assert_eq!(talk.events("permission_requested").len(), 0);
    talk.close();
    CellOutcome::None(
        "A tool at a terminal asks for nothing: `permission_requests = \"all\"` and `guard = \"policy\"` are refused, and the sandbox is the guard.",
    )
}

fn cancel(bench: &Bench) -> CellOutcome {
    let (mut talk, turn) = bench.talk(
        "work",
        "puts running; flush stdout; after 3600000; puts never",
    );
    talk.until_said("running");
    talk.stop();
    let seen_events = talk.stream.turn(&turn);
    assert_eq!(outcome(&seen_events), "cancelled", "{seen_events:#?}");
    let events = happened(&talk);
    assert!(events.iter().any(|event| event == "cancel"), "{events:?}");
    // It gets nothing but the prompt.
    let text = talk.completed_turn_text("puts <[expr {6 * 7}]>");
    assert_eq!(text.trim(), "<42>");
    assert_eq!(talk.children(), 1);
    talk.close();
    CellOutcome::As(
        "The child is the Runner. A tool that does not survive an interrupt, such as tclsh, is started again by it.",
    )
}

fn busy(bench: &Bench) -> CellOutcome {
    let (mut talk, first) = bench.talk("work", "puts one; flush stdout; after 3600000");
    talk.until_said("one");
    let second = talk.say("puts two");
    assert_eq!(talk.turns().len(), 2);
    talk.interrupt();
    let seen_events = talk.stream.turn(&first);
    assert!(!text(&seen_events).contains("two"), "{seen_events:#?}");
    let seen_events = talk.stream.turn(&second);
    assert_eq!(outcome(&seen_events), "completed", "{seen_events:#?}");
    assert_eq!(text(&seen_events).trim(), "two");
    let mut events = happened(&talk);
    events.retain(|event| event.starts_with("command_") || event == "cancel");
    let expected = [
        "command_started",
        "cancel",
        "command_ended",
        "command_started",
        "command_ended",
    ];
    assert_eq!(events, expected);
    talk.close();
    CellOutcome::Yes
}

/// Has a conversation's child killed in the middle of a turn.
fn killed(talk: &mut Talk<'_>) {
    let turn = talk.say(KILL);
    talk.until_said("kept words");
    fs::write(talk.copy().join("go"), "").expect("a file");
    let events = talk.stream.turn(&turn);
    assert_eq!(outcome(&events), "lost", "{events:#?}");
}

fn crash(bench: &Bench) -> CellOutcome {
    let (mut beside, occupied) = bench.talk("work", "puts beside; flush stdout; after 3600000");
    beside.until_said("beside");
    let once = "set file [open once a]; puts $file once; close $file";
    let mut talk = bench.talked("work", once);
    killed(&mut talk);
    let exited = talk.events("child_exited");
    assert_eq!(exited.len(), 1, "{exited:?}");
    assert_eq!(exited[0]["class"], "signalled", "{exited:?}");
    assert!(talk.texts().contains("kept words"), "{}", talk.texts());
    let text = talk.completed_turn_text("puts {on a new child}");
    assert_eq!(text.trim(), "on a new child", "it is told nothing else");
    assert_eq!(talk.children(), 2);
    let file = fs::read_to_string(talk.copy().join("once")).expect("a file");
    assert_eq!(file, "once\n", "nothing is run twice");
    talk.close();
    let ended = beside.events("turn_ended");
    assert_eq!(ended.len(), 0, "its turn goes on: {ended:?}");
    beside.interrupt();
    let seen_events = beside.stream.turn(&occupied);
    assert_eq!(outcome(&seen_events), "cancelled", "{seen_events:#?}");
    beside.completed_turn_text("puts fine");
    assert_eq!(beside.children(), 1, "it never changed");
    beside.close();
    CellOutcome::Yes
}

fn resume(bench: &Bench) -> CellOutcome {
    let mut talk = bench.talked("work", "set kept 5");
    killed(&mut talk);
    let seen_events = talk.turn("puts [info exists kept]");
    assert_eq!(outcome(&seen_events), "completed", "{seen_events:#?}");
    assert_eq!(text(&seen_events).trim(), "0");
    let anew = seen_events
        .iter()
        .find(|seen_events| seen_events.name == "rehydrated");
    assert_eq!(anew.expect("that is told").data["by"], "nothing");
    assert_eq!(talk.events("session_resumed").len(), 0);
    let fresh = talk.events("session_fresh");
    assert_eq!(fresh.len(), 1, "that is told: {fresh:?}");
    talk.close();
    CellOutcome::None(
        "A tool that is started again remembers nothing, which is told; nothing is run again.",
    )
}

fn goodbye(bench: &Bench) -> CellOutcome {
    let talk = bench.talked("leave", "puts hi");
    talk.close();
    ended_well(&talk);
    let audit = audit(&bench.drill.path("left"));
    let stop = audit.iter().find(|line| line["event"] == "stop");
    let stop = stop.unwrap_or_else(|| panic!("no stop in {audit:?}"));
    assert_eq!(stop["mode"], "graceful", "{stop}");
    assert_eq!(stop["by"], "stop.json", "{stop}");
    CellOutcome::Yes
}

/// A Runner of somebody else's; killed with the test.
struct Theirs(Child);

impl Drop for Theirs {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn eof(bench: &Bench) -> CellOutcome {
    let dir = bench.drill.path("theirs");
    let runner = Command::new("setpriv")
        .args([&format!("--reuid={NOBODY}"), &format!("--regid={NOBODY}")])
        .args(["--clear-groups", env!("CARGO_BIN_EXE_marshal"), "runner"])
        .args(["--heartbeat", "200", "--dir", "."])
        .args(["--", "tclsh"])
        .current_dir(&dir)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn();
    let mut theirs = Theirs(runner.expect("it starts"));
    comes("their Runner is idle", || {
        let state = fs::read_to_string(dir.join("state/state.json"));
        state.is_ok_and(|text| text.contains("\"idle\""))
    });
    let report = bench.task("theirs", "puts hi");
    assert_eq!(report["outcome"], "done", "{report}");
    let session = report["session"].as_str().expect("a session");
    comes("its carrier has ended", || {
        !bench.events(session, "child_exited").is_empty()
    });
    let exited = &bench.events(session, "child_exited")[0];
    assert_eq!(exited["status"]["code"], 0, "{exited}");
    assert!(
        theirs.0.try_wait().expect("wait").is_none(),
        "theirs goes on"
    );
    let audit = audit(&dir);
    assert!(
        audit.iter().all(|line| line["event"] != "stop"),
        "{audit:?}"
    );
    CellOutcome::As(
        "Seen of a carrier beside somebody else's Runner, which goes on; our own Runner has been told to stop before.",
    )
}

fn garbage(bench: &Bench) -> CellOutcome {
    // What a tool prints is its output, whatever it looks like.
    let alike = "puts {{\"type\":\"hello\",\"protocol\":2}}; puts \\x01\\xff; puts {__SP_DONE__ x}";
    let talk = bench.talked("work", alike);
    assert!(talk.texts().contains("\"protocol\":2"), "{}", talk.texts());
    assert_eq!(talk.events("bad_line").len(), 0);
    talk.close();
    let mut talk = bench.talked("rough", "some-garbage");
    assert_eq!(talk.events("bad_line").len(), 20);
    assert_eq!(talk.children(), 1);
    let seen_events = talk.turn("much-garbage");
    assert_eq!(outcome(&seen_events), "lost", "{seen_events:#?}");
    let ended = seen_events.last().expect("an end").data.to_string();
    assert!(ended.contains("were not messages"), "{ended}");
    let seen_events = talk.events("bad_line").len();
    assert!((100..=110).contains(&seen_events), "{seen_events}");
    assert_eq!(talk.completed_turn_text("go on").trim(), "on");
    assert_eq!(talk.children(), 2);
    talk.close();
    CellOutcome::As("Of the carrier's lines; what the tool prints is output, whatever it is.")
}

fn huge_line(bench: &Bench) -> CellOutcome {
    let before = bench.memory();
    let (mut talk, turn) = bench.talk("rough", "huge-line");
    let events = talk.stream.turn(&turn);
    assert_eq!(outcome(&events), "lost", "{events:#?}");
    let ended = events.last().expect("an end").data.to_string();
    assert!(ended.contains("a line of more than"), "{ended}");
    let more = bench.memory().saturating_sub(before);
    assert!(more < MEMORY, "{more} bytes more");
    assert_eq!(talk.completed_turn_text("go on").trim(), "on");
    assert_eq!(talk.children(), 2);
    talk.close();
    CellOutcome::As("Of the carrier's lines; what the tool prints is output, whatever it is.")
}

fn usage(bench: &Bench) -> CellOutcome {
    let talk = bench.talked("work", "puts hi");
    assert_eq!(tokens(&talk), [0, 0]);
    talk.close();
    CellOutcome::None("A tool has no tokens: the usage is 0.")
}
