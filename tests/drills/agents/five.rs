//! The five agents that have a preset, each through the same life: a command that runs, one that
//! is denied, a search for the key, a cancelled turn; then, in a second life, `kill -9` in the
//! middle of a tool, and the next prompt.

use std::fs;

use serde_json::Value;

use crate::agents::bench::{
    Model, PATIENCE, alone, assert_no_file_with_key, assert_without_key, events, in_copy, kill,
    oldest, result, run_output, sleeps, start, tools, until_asleep, until_gone,
};
use crate::agents::table;
use crate::drill::Drill;

/// An agent and what is known of it.
pub(crate) struct Kind {
    /// The preset.
    pub(crate) name: &'static str,
    /// The route that it uses.
    pub(crate) route: &'static str,
    /// A command that it asks for and that the policy denies.
    pub(crate) denied: &'static str,
    /// Whether it asks for `touch`.
    pub(crate) asks: bool,
    /// How a refusal shows.
    pub(crate) refusal: Refusal,
}

/// How a refusal reaches an agent and its model.
pub(crate) enum Refusal {
    /// The agent ends the turn with this stop reason.
    Stops(&'static str),
    /// The tool's result, which the model hears or the journal has, says so.
    Says(&'static str),
}

/// The policy of these tests.
pub(crate) const POLICY: &str = r#"
schema  = 1
name    = "rehearsal"
extends = ["builtin:guard"]
default = "deny"

[[rule]]
id       = "harmless"
decision = "allow"
tool     = "shell"
argv     = [["touch", "sleep", "cd"]]
paths    = "inside"

[[rule]]
id       = "probe"
decision = "allow"
tool     = "shell"
exact    = ["sh probe.sh"]
"#;

/// Looks for the key from inside: in every environment, command line and file. The key's shape is
/// written so that this file does not match, and a file that matches shows that the search works.
const PROBE: &str = r#"
shape='sk'-real-'[0-9a-f]{8}'
printf 'sk-%s-0123456789abcdef\n' real > /tmp/control
{
    env | grep -E "$shape"
    for process in /proc/[0-9]*; do
        tr '\0' '\n' < "$process/environ" | grep -E "$shape"
        tr '\0' ' ' < "$process/cmdline" | grep -E "$shape"
    done
    grep -rlE "$shape" "$HOME" /workspace /tmp /dev/shm /etc /run
} > found.txt 2> /dev/null
ls -d /proc/[0-9]* | wc -l > probed.txt
"#;

/// The strictest profile that can be had: with every layer where the supervisor is root, and without
/// root all but a uid of one's own.
fn profile() -> &'static str {
    if rustix::process::geteuid().is_root() {
        "strict"
    } else {
        "standard"
    }
}

/// A supervisor with one slot of this agent, whose only way out leads to the model.
pub(crate) fn drill(kind: &Kind, model: &Model) -> Drill {
    let Kind { name, route, .. } = kind;
    let dir = tools().join("five").join(name);
    // Many of the tasks are denied, each for a reason of its own.
    let drill = Drill::with_supervisor(
        &format!(
            r#"
[route.{route}]
upstream = "{}"
secret   = "env:REHEARSAL_KEY"

[pool.real]
agent     = "{name}"
agent_dir = {:?}
sandbox   = "{}"
policy    = "rehearsal"
session   = "slot"
workspace = {{ path = "project", mode = "copy" }}
timeouts  = {{ handshake = "4m", cancel = "1m" }}
restart   = {{ base = "10ms", max = "50ms", on_crash = "report" }}
env       = {{ set = {{ DRILL = "MARK" }} }}

[policy.rehearsal]
file = "rehearsal.toml"
"#,
            model.address,
            dir.display().to_string(),
            profile(),
        ),
        "pause_after_denied = 0",
    );
    fs::write(drill.path("rehearsal.toml"), POLICY).expect("a policy");
    let workspace = drill.workspace();
    fs::write(workspace.join("probe.sh"), PROBE).expect("the probe");
    fs::create_dir(workspace.join("victim")).expect("a directory");
    fs::write(workspace.join("victim/file"), "alive\n").expect("a file");
    drill
}

pub(crate) fn works(kind: &Kind) {
    let _alone = alone();
    let model = Model::start();
    let drill = drill(kind, &model);
    first_life(kind, &drill, &model);
    second_life(&drill, &model);
    assert_no_file_with_key(&drill.state(), &model.key);
    for name in ["first", "second"] {
        assert!(
            !run_output(&drill, name).contains(&model.key),
            "the key was said"
        );
    }
    drill.assert_dense();
    table::check(kind);
}

fn first_life(kind: &Kind, drill: &Drill, model: &Model) {
    let denied = format!("RUN: {}\nSAY: bye", kind.denied);
    let mut running = start(
        drill,
        &model.key,
        "first",
        &[
            ("touch", "RUN: touch made.txt\nSAY: bye"),
            ("deny", &denied),
            ("probe", "RUN: sh probe.sh\nSAY: bye"),
            ("cancel", "RUN: sleep 300\nSAY: never"),
            ("after", "RUN: sleep 305\nSAY: never"),
        ],
    );
    let inside = until_asleep(drill, "first", "300");
    assert_without_key(&inside, &model.key);
    let _stopping = drill.cancel_turns();
    let next = until_asleep(drill, "first", "305");
    // Some agents end the turn, and leave its command running.
    let left: Vec<_> = inside.iter().filter(|pid| sleeps(**pid, "300")).collect();
    assert!(left.is_empty(), "{left:?} {}", run_output(drill, "first"));
    let _stopping = drill.cancel_turns();
    let code = running.wait(PATIENCE);
    let all = run_output(drill, "first");
    assert_eq!(code, Some(1), "{all}");
    until_gone(&inside);
    until_gone(&next);
    assert!(drill.agents().is_empty());

    let touch = result(drill, "first", "touch");
    assert_eq!(touch["outcome"], "done", "{all}");
    assert!(in_copy(&touch, "made.txt").exists(), "{all}");
    assert_eq!(touch["requests"]["allowed"], u64::from(kind.asks), "{all}");
    the_sandbox_stands(drill, touch["session"].as_str().expect("a session"));
    let session = touch["session"].as_str().expect("a session");
    let calls = events(drill, session, "tool_start");
    let unasked = events(drill, session, "tool_call_unrequested");
    let judged = |event: &Value| {
        let is_it = event["id"] == calls[0]["id"];
        is_it && event["decision"] == "allow" && event["rules"][0] == "harmless"
    };
    assert_eq!(unasked.iter().any(judged), !kind.asks, "{unasked:?}");

    let deny = result(drill, "first", "deny");
    assert_eq!(deny["outcome"], "denied", "{all}");
    assert_eq!(deny["requests"]["denied"], 1, "{all}");
    assert!(!in_copy(&deny, "denied").exists());
    assert!(in_copy(&deny, "victim/file").exists());
    refused(kind, drill, session, &all);

    let probe = result(drill, "first", "probe");
    assert_eq!(probe["outcome"], "done", "{all}");
    let found = fs::read_to_string(in_copy(&probe, "found.txt")).expect("what was found");
    assert_eq!(found, "/tmp/control\n", "{all}");
    let probed = fs::read_to_string(in_copy(&probe, "probed.txt")).expect("how much was probed");
    assert!(
        probed.trim().parse::<u32>().expect("a number") >= 3,
        "{probed}"
    );

    for id in ["cancel", "after"] {
        assert_eq!(result(drill, "first", id)["outcome"], "cancelled", "{all}");
    }
}

/// Every layer was on, by what the journal says of the child.
fn the_sandbox_stands(drill: &Drill, session: &str) {
    let started = events(drill, session, "child_started");
    let sandbox_spec: Vec<&str> = started[0]["sandbox"]
        .as_array()
        .expect("sandbox")
        .iter()
        .filter_map(Value::as_str)
        .collect();
    if profile() == "strict" {
        assert!(sandbox_spec.contains(&"uid slot"), "{sandbox_spec:?}");
        assert!(sandbox_spec.contains(&"landlock 6"), "{sandbox_spec:?}");
    }
    assert!(
        sandbox_spec.contains(&"seccomp default"),
        "{sandbox_spec:?}"
    );
}

/// The refusal reached the agent, in its own way.
fn refused(kind: &Kind, drill: &Drill, session: &str, all: &str) {
    match kind.refusal {
        Refusal::Stops(reason) => {
            let ends = events(drill, session, "turn_ended");
            assert_eq!(ends[1]["stop_reason"], reason, "{ends:?}");
        }
        Refusal::Says(words) => {
            let results = events(drill, session, "tool_result");
            let reported = results
                .iter()
                .any(|result| result.to_string().contains(words));
            let received = all.contains(words);
            assert!(reported || received, "{words}: {results:?}\n{all}");
        }
    }
}

fn second_life(drill: &Drill, model: &Model) {
    let mut running = start(
        drill,
        &model.key,
        "second",
        &[
            ("kill", "RUN: sleep 301\nSAY: never"),
            ("next", "RUN: touch next.txt\nSAY: bye"),
        ],
    );
    let inside = until_asleep(drill, "second", "301");
    kill(oldest(drill));
    until_gone(&inside);
    let code = running.wait(PATIENCE);
    let all = run_output(drill, "second");
    assert_eq!(code, Some(1), "{all}");
    assert_eq!(result(drill, "second", "kill")["outcome"], "lost", "{all}");
    let next = result(drill, "second", "next");
    assert_eq!(next["outcome"], "done", "{all}");
    assert!(in_copy(&next, "next.txt").exists());
    assert!(drill.agents().is_empty());
}

pub(crate) const CODEX: Kind = Kind {
    name: "codex",
    route: "openai",
    denied: "mkdir denied",
    asks: true,
    refusal: Refusal::Stops("cancelled"),
};

pub(crate) const CLAUDE: Kind = Kind {
    name: "claude",
    route: "anthropic",
    denied: "mkdir denied",
    asks: true,
    refusal: Refusal::Says("User refused permission to run tool"),
};

pub(crate) const GEMINI: Kind = Kind {
    name: "gemini",
    route: "gemini",
    denied: "mkdir denied",
    asks: true,
    refusal: Refusal::Says("was canceled by the user"),
};

pub(crate) const OPENCODE: Kind = Kind {
    name: "opencode",
    route: "openai",
    denied: "mkdir denied",
    asks: true,
    refusal: Refusal::Says("The user rejected permission to use this specific tool call"),
};

pub(crate) const HERMES: Kind = Kind {
    name: "hermes",
    route: "openai",
    denied: "rm -rf ./victim",
    asks: false,
    refusal: Refusal::Says("BLOCKED"),
};

#[test]
fn codex_works_is_refused_cancelled_and_killed() {
    works(&CODEX);
}

#[test]
fn claude_works_is_refused_cancelled_and_killed() {
    works(&CLAUDE);
}

#[test]
fn gemini_works_is_refused_cancelled_and_killed() {
    works(&GEMINI);
}

#[test]
fn opencode_works_is_refused_cancelled_and_killed() {
    works(&OPENCODE);
}

#[test]
fn hermes_works_is_refused_cancelled_and_killed() {
    works(&HERMES);
}
