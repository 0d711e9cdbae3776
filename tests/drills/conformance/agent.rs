//! The rows of agents: the script agent in a sandbox, in the protocol of the row.

use std::fs;

use serde_json::{Value, json};

use crate::chat_client::text;
use crate::conformance::bench::{Bench, NEVER, REASON, Talk, comes, outcome};
use crate::conformance::column::CellOutcome;

/// What differs between the rows.
pub(crate) struct Speech {
    /// `dialect` of the pool, as it stands in TOML.
    pub(crate) dialect: &'static str,
    /// What follows the program in its command, up to the pool's own flags.
    pub(crate) command: &'static [&'static str],
    /// More keys of each pool.
    pub(crate) keys: &'static str,
    /// Files beside the configuration.
    pub(crate) files: &'static [(&'static str, &'static str)],
    /// Flags by which the agent claims another version.
    pub(crate) odd: &'static [&'static str],
    /// Words of the refusal: its version, and ours.
    pub(crate) versions: [&'static str; 2],
    /// Whether the agent asks before it does something.
    pub(crate) asks: bool,
    /// How the reason of a denial comes to the agent.
    pub(crate) reason: Reason,
    /// What the agent's ledger calls a cancel.
    pub(crate) cancel: &'static str,
    /// What it calls a goodbye, and with which flags it knows one.
    pub(crate) goodbye: Goodbye,
    /// What resumes a session.
    pub(crate) resume: &'static str,
    /// Whether there are tokens.
    pub(crate) usage: Usage,
}

/// How the reason of a denial comes to the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reason {
    /// In the answer to its request.
    Answer,
    /// Before its next prompt.
    NextPrompt,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Goodbye {
    /// A message, as the ledger has it.
    Word(&'static str),
    /// A message that an agent has only with these flags.
    Offered(&'static str, &'static [&'static str]),
    /// The end of its stdin.
    Eof,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Usage {
    /// With each turn's end.
    Counted,
    /// The script agent says none by itself: this line does, and ends the turn.
    Line(&'static str, [u64; 2]),
    /// Nowhere.
    Never,
}

impl Speech {
    /// The pools, each for a need of its own.
    pub(crate) fn pools(&self) -> String {
        let quick = r#"stop = { goodbye = "200ms", eof = "200ms", int = "200ms", term = "200ms" }"#;
        // A step that were needed would take longer than anybody waits.
        let patient = format!(
            r#"stop = {{ goodbye = "{0}s", eof = "{0}s", int = "{0}s", term = "{0}s" }}"#,
            NEVER.as_secs()
        );
        let deaf = patient.replacen(
            &format!("goodbye = \"{}s\"", NEVER.as_secs()),
            "goodbye = \"200ms\"",
            1,
        );
        let leaving = match self.goodbye {
            Goodbye::Offered(_, flags) => flags,
            Goodbye::Word(_) | Goodbye::Eof => &[],
        };
        [
            self.pool("work", 4, &[], quick),
            self.pool("odd", 1, self.odd, quick),
            self.pool("leave", 1, leaving, &patient),
            self.pool("deaf", 1, &[], &deaf),
        ]
        .concat()
    }

    pub(crate) fn pool(&self, name: &str, size: usize, flags: &[&str], keys: &str) -> String {
        let mut command = vec!["marshal", "script-agent"];
        command.extend(self.command);
        command.extend(["--ledger", "ledger.txt"]);
        command.extend(flags);
        format!(
            r#"
[role.{name}]
pool = "{name}"

[pool.{name}]
size      = {size}
command   = {command:?}
dialect   = {dialect}
policy    = "conformance"
workspace = {{ path = "project", mode = "copy" }}
restart   = {{ budget = 1000, base = "10ms", max = "50ms" }}
env       = {{ set = {{ DRILL = "MARK" }} }}
{own}
{keys}
"#,
            dialect = self.dialect,
            own = self.keys,
        )
    }

    pub(crate) fn bench(&self) -> Bench {
        Bench::new(&self.pools(), |drill| {
            for (name, text) in self.files {
                fs::write(drill.path(name), text).expect("a file");
            }
        })
    }
}

pub(crate) fn version(bench: &Bench, speech: &Speech) -> CellOutcome {
    let report = bench.task("odd", "say never");
    assert_eq!(report["outcome"], "failed", "{report}");
    assert_eq!(report["attempts"], 0, "{report}");
    let detail = report["detail"].as_str().expect("a detail");
    for version in speech.versions {
        assert!(detail.contains(version), "{version:?} is not in {detail}");
    }
    let session = report["session"].as_str();
    let accepted = session.map_or(0, |session| bench.events(session, "prompt_accepted").len());
    assert_eq!(accepted, 0, "{report}");
    if let Some(copy) = session.and_then(|session| bench.copy(session)) {
        let received = fs::read_to_string(copy.join("ledger.txt")).unwrap_or_default();
        assert!(received.contains("\"start\""), "it ran: {received}");
        assert!(!received.contains("\"prompt\""), "{received}");
    }
    comes("its slot parks", || bench.one_parked("odd"));
    CellOutcome::Yes
}

pub(crate) fn prompt(bench: &Bench, _: &Speech) -> CellOutcome {
    let prompt = "say it's \"done\"\\ {here} \u{e9}\u{6f22}\u{1f600} \u{2028}<&>\n# \ttabs\\n, $HOME `x` %s\nsay ok";
    let mut talk = bench.talked("work", prompt);
    assert_eq!(talk.prompts(), [prompt]);
    let accepted = talk.events("prompt_accepted");
    assert_eq!(accepted.len(), 1, "{accepted:?}");
    assert_eq!(accepted[0]["text"], prompt);
    let ended = talk.events("turn_ended");
    assert_eq!(ended.len(), 1, "{ended:?}");
    // An agent that could not read it as a script says so.
    let shown = talk.completed_turn_text("say again");
    assert!(shown.contains("again"), "{shown}");
    talk.close();
    CellOutcome::Yes
}

pub(crate) fn stream(bench: &Bench, _: &Speech) -> CellOutcome {
    let (mut talk, turn) = bench.talk("work", "say first words\nsleep 1h");
    talk.until_said("first words");
    assert_eq!(talk.events("turn_ended").len(), 0, "its turn runs");
    talk.interrupt();
    let seen_events = talk.stream.turn(&turn);
    assert_eq!(outcome(&seen_events), "cancelled", "{seen_events:#?}");
    talk.close();
    CellOutcome::Yes
}

pub(crate) fn tools(bench: &Bench, _: &Speech) -> CellOutcome {
    let talk = bench.talked("work", "read README.md\nsay done");
    let started = talk.events("tool_start");
    assert_eq!(started.len(), 1, "{started:?}");
    let name = started[0]["name"].as_str().unwrap_or_default();
    assert!(!name.is_empty(), "{started:?}");
    let mut input = started[0]["input"].to_string();
    for update in talk.events("tool_update") {
        input.push_str(&update["input"].to_string());
    }
    assert!(input.contains("README.md"), "{input}");
    let ended = talk.events("tool_result");
    assert_eq!(ended.len(), 1, "{ended:?}");
    assert_eq!(ended[0]["id"], started[0]["id"], "{ended:?}");
    let output = ended[0]["output"].as_str().unwrap_or_default();
    assert!(output.contains("# A project"), "{ended:?}");
    talk.close();
    CellOutcome::Yes
}

/// A table of the configuration in which the policy is to be asked, or every call is to be asked for.
fn cannot_ask(speech: &Speech) -> &'static str {
    for key in ["permission_requests = \"all\"", "guard = \"policy\""] {
        let reported = Bench::refused(&speech.pool("strict", 1, &[], key));
        assert!(reported.contains("ask"), "{key}: {reported}");
        assert!(reported.contains("pool.strict"), "{key}: {reported}");
    }
    "It has no words to ask for permission: `permission_requests = \"all\"` and `guard = \"policy\"` are refused, the sandbox is the guard, and calls that are told are judged afterwards."
}

/// That nothing was asked, though something that the policy denies was done.
fn nothing_asked(talk: &Talk<'_>) {
    assert_eq!(talk.events("permission_requested").len(), 0);
    let judged = talk.events("tool_call_unrequested");
    assert_eq!(judged.len(), 1, "{judged:?}");
}

pub(crate) fn allow(bench: &Bench, speech: &Speech) -> CellOutcome {
    let talk = bench.talked("work", "read README.md\nwrite notes.txt allowed");
    let made = fs::read_to_string(talk.copy().join("notes.txt"));
    assert_eq!(made.ok().as_deref(), Some("allowed\n"));
    if !speech.asks {
        let why = cannot_ask(speech);
        assert_eq!(talk.events("permission_requested").len(), 0);
        assert_eq!(talk.events("tool_call_unrequested").len(), 2);
        return CellOutcome::None(why);
    }
    let requested = talk.events("permission_requested");
    assert_eq!(requested.len(), 2, "{requested:?}");
    let verdicts = talk.events("permission_decided");
    let of_write = verdicts
        .iter()
        .filter(|verdict| verdict["request"] == requested[1]["id"]);
    let of_write: Vec<_> = of_write.collect();
    assert_eq!(of_write.len(), 1, "{verdicts:?}");
    assert_eq!(of_write[0]["decision"], "allow", "{verdicts:?}");
    assert_eq!(of_write[0]["by"], "policy", "{verdicts:?}");
    talk.close();
    CellOutcome::Yes
}

pub(crate) fn deny(bench: &Bench, speech: &Speech) -> CellOutcome {
    let mut talk = bench.talked("work", "run rm README.md\nsay went on");
    if !speech.asks {
        let why = cannot_ask(speech);
        nothing_asked(&talk);
        assert_eq!(talk.events("tool_call_unrequested")[0]["decision"], "deny");
        assert!(!talk.copy().join("README.md").exists(), "it ran unasked");
        return CellOutcome::None(why);
    }
    assert!(talk.copy().join("README.md").exists(), "it did not run");
    let verdicts = talk.events("permission_decided");
    assert_eq!(verdicts.len(), 1, "{verdicts:?}");
    assert_eq!(verdicts[0]["decision"], "deny", "{verdicts:?}");
    let text = talk.texts();
    assert!(text.contains("went on"), "{text}");
    // What the agent was told it says as the output of its call.
    let outputs: Vec<_> = talk.events("tool_result");
    let in_answer = json!(outputs).to_string().contains(REASON) || text.contains(REASON);
    talk.completed_turn_text("say next");
    let prompts = talk.prompts();
    assert_eq!(prompts.len(), 2, "{prompts:?}");
    let before_next = prompts[1].contains(REASON);
    talk.close();
    match speech.reason {
        Reason::Answer => {
            assert!(in_answer, "{outputs:?} {text}");
            CellOutcome::Yes
        }
        Reason::NextPrompt => {
            assert!(before_next, "{prompts:?}");
            assert!(prompts[1].ends_with("say next"), "{prompts:?}");
            CellOutcome::As(
                "The answer has no place for a reason: the agent is told it before its next prompt.",
            )
        }
    }
}

pub(crate) fn ask(bench: &Bench, speech: &Speech) -> CellOutcome {
    let (mut talk, turn) = bench.talk("work", "say before\nrun touch made.txt\nsay after");
    if !speech.asks {
        talk.stream.turn(&turn);
        let why = cannot_ask(speech);
        nothing_asked(&talk);
        return CellOutcome::None(why);
    }
    let seen_events = talk
        .stream
        .until("the question", |seen_events| seen_events.name == "approval");
    let ask = seen_events.last().expect("it").data["id"]
        .as_str()
        .expect("an id")
        .to_owned();
    let page = format!("/api/v1/approvals/{ask}");
    let shown = bench.daemon.get(&page);
    assert_eq!(shown.status, 200, "{shown:?}");
    assert_eq!(shown.body["state"], "pending", "{shown:?}");
    assert_eq!(shown.body["session"], *talk.session, "{shown:?}");
    assert_eq!(talk.events("permission_decided").len(), 0);
    assert_eq!(talk.events("turn_ended").len(), 0);
    let made = talk.copy().join("made.txt");
    assert!(!made.exists(), "it waits");
    let answer = bench.daemon.post(&page, &json!({"decision": "allow"}));
    assert_eq!(answer.status, 200, "{answer:?}");
    let seen_events = talk.stream.turn(&turn);
    assert_eq!(outcome(&seen_events), "completed", "{seen_events:#?}");
    assert!(text(&seen_events).contains("after"), "{seen_events:#?}");
    assert!(made.exists(), "it ran");
    let verdicts = talk.events("permission_decided");
    assert_eq!(verdicts.len(), 1, "{verdicts:?}");
    assert_eq!(verdicts[0]["by"], "human", "{verdicts:?}");
    talk.close();
    CellOutcome::Yes
}

pub(crate) fn cancel(bench: &Bench, speech: &Speech) -> CellOutcome {
    let (mut talk, turn) = bench.talk("work", "say running\nsleep 1h\nsay never");
    talk.until_said("running");
    talk.stop();
    let seen_events = talk.stream.turn(&turn);
    assert_eq!(outcome(&seen_events), "cancelled", "{seen_events:#?}");
    let received = talk.received_kinds();
    assert!(
        received.iter().any(|kind| kind == speech.cancel),
        "{received:?}"
    );
    let text = talk.completed_turn_text("say next");
    assert!(text.contains("next") && !text.contains("never"), "{text}");
    assert_eq!(talk.children(), 1, "the child stayed");
    assert_eq!(talk.events("child_exited").len(), 0);
    talk.close();
    CellOutcome::Yes
}

pub(crate) fn busy(bench: &Bench, speech: &Speech) -> CellOutcome {
    let (mut talk, first) = bench.talk("work", "say one\nsleep 1h");
    talk.until_said("one");
    let second = talk.say("say two");
    let turns = talk.turns();
    assert_eq!(turns.len(), 2, "{turns:?}");
    assert_eq!(talk.prompts().len(), 1, "it waits");
    talk.interrupt();
    let events = talk.stream.turn(&first);
    assert!(!text(&events).contains("two"), "{events:#?}");
    let events = talk.stream.turn(&second);
    assert_eq!(outcome(&events), "completed", "{events:#?}");
    assert_eq!(text(&events).trim(), "two");
    let prompts = talk.prompts();
    assert_eq!(prompts.len(), 2, "{prompts:?}");
    // The agent heard the end of the first before the second.
    let received = talk.received_kinds();
    let at = |kind: &str, nth: usize| {
        let mut all = received
            .iter()
            .enumerate()
            .filter(|(_, item)| *item == kind);
        all.nth(nth)
            .unwrap_or_else(|| panic!("no {kind} in {received:?}"))
            .0
    };
    assert!(at(speech.cancel, 0) < at("prompt", 1), "{received:?}");
    talk.close();
    CellOutcome::Yes
}

pub(crate) fn crash(bench: &Bench, _: &Speech) -> CellOutcome {
    let (mut beside, occupied) = bench.talk("work", "say beside\nsleep 1h");
    beside.until_said("beside");
    let (mut talk, turn) = bench.talk("work", "say kept words\ncrash kill");
    let seen_events = talk.stream.turn(&turn);
    assert_eq!(outcome(&seen_events), "lost", "{seen_events:#?}");
    let exited = talk.events("child_exited");
    assert_eq!(exited.len(), 1, "{exited:?}");
    assert_eq!(exited[0]["class"], "signalled", "{exited:?}");
    let stored = talk.texts();
    assert!(stored.contains("kept words"), "{stored}");
    let text = talk.completed_turn_text("say on a new child");
    assert!(text.contains("on a new child"), "{text}");
    assert_eq!(talk.children(), 2);
    talk.close();
    let ended = beside.events("turn_ended");
    assert_eq!(ended.len(), 0, "its turn goes on: {ended:?}");
    beside.interrupt();
    let seen_events = beside.stream.turn(&occupied);
    assert_eq!(outcome(&seen_events), "cancelled", "{seen_events:#?}");
    beside.completed_turn_text("say fine");
    assert_eq!(beside.children(), 1, "it never changed");
    beside.close();
    CellOutcome::Yes
}

pub(crate) fn resume(bench: &Bench, speech: &Speech) -> CellOutcome {
    let mut talk = bench.talked("work", "say to be remembered");
    let lost = talk.turn("say x\ncrash");
    assert_eq!(outcome(&lost), "lost", "{lost:#?}");
    let text = talk.completed_turn_text("recall");
    assert!(text.contains("say to be remembered"), "{text}");
    // From its own memory, not from a transcript.
    assert_eq!(talk.events("session_fresh").len(), 0);
    let prompts = talk.prompts();
    assert_eq!(prompts.last().map(String::as_str), Some("recall"));
    let resumed = talk.events("session_resumed");
    assert_eq!(resumed.len(), 1, "{resumed:?}");
    let how = resumed[0]["how"].as_str().unwrap_or_default();
    assert_eq!(how, speech.resume);
    assert_eq!(talk.children(), 2);
    talk.close();
    CellOutcome::Yes
}

/// A child that ended by itself and well.
pub(crate) fn ended_well(talk: &Talk<'_>) {
    let exited = talk.events("child_exited");
    assert_eq!(exited.len(), 1, "{exited:?}");
    let status: &Value = &exited[0]["status"];
    assert_eq!(status["signal"], Value::Null, "{exited:?}");
    assert_eq!(status["code"], 0, "{exited:?}");
}

pub(crate) fn goodbye(bench: &Bench, speech: &Speech) -> CellOutcome {
    let talk = bench.talked("leave", "say hi");
    talk.close();
    ended_well(&talk);
    let received = talk.received_kinds();
    let has = |kind: &str| received.iter().any(|item| item == kind);
    match speech.goodbye {
        Goodbye::Word(word) => {
            assert!(has(word), "{received:?}");
            CellOutcome::Yes
        }
        Goodbye::Offered(word, _) => {
            assert!(has(word), "{received:?}");
            CellOutcome::As("Where the agent offers one.")
        }
        Goodbye::Eof => {
            assert_eq!(
                received.last().map(String::as_str),
                Some("eof"),
                "{received:?}"
            );
            for word in ["shutdown", "close", speech.cancel] {
                assert!(!has(word), "{word} in {received:?}");
            }
            CellOutcome::None("The end of its stdin is all the goodbye there is.")
        }
    }
}

pub(crate) fn eof(bench: &Bench, _: &Speech) -> CellOutcome {
    let talk = bench.talked("deaf", "ignore-cancel\nsay deaf");
    talk.close();
    ended_well(&talk);
    let received = talk.received_kinds();
    assert_eq!(
        received.last().map(String::as_str),
        Some("eof"),
        "{received:?}"
    );
    CellOutcome::Yes
}

pub(crate) fn garbage(bench: &Bench, _: &Speech) -> CellOutcome {
    let mut talk = bench.talked("work", "garbage 20\nsay survived");
    let seen_events = talk.events("bad_line").len();
    assert!((1..=20).contains(&seen_events), "{seen_events}");
    assert_eq!(talk.children(), 1);
    let seen_events = talk.turn("garbage 1000\nsleep 1h");
    assert_eq!(outcome(&seen_events), "lost", "{seen_events:#?}");
    let ended = json!(seen_events.last().expect("an end").data).to_string();
    assert!(ended.contains("were not messages"), "{ended}");
    let seen_events = talk.events("bad_line").len();
    assert!((100..=110).contains(&seen_events), "{seen_events}");
    let text = talk.completed_turn_text("say on");
    assert!(text.contains("on"), "{text}");
    assert_eq!(talk.children(), 2);
    talk.close();
    CellOutcome::Yes
}

/// What a line that is refused may cost of memory, with everything else that goes on.
pub(crate) const MEMORY: u64 = 48 << 20;

pub(crate) fn huge_line(bench: &Bench, _: &Speech) -> CellOutcome {
    let before = bench.memory();
    let (mut talk, turn) = bench.talk("work", "huge-line 64M\nsay never");
    let seen_events = talk.stream.turn(&turn);
    assert_eq!(outcome(&seen_events), "lost", "{seen_events:#?}");
    let ended = json!(seen_events.last().expect("an end").data).to_string();
    assert!(ended.contains("a line of more than"), "{ended}");
    let more = bench.memory().saturating_sub(before);
    assert!(more < MEMORY, "{more} bytes more");
    let reasons = json!(talk.events("bad_line")).to_string();
    assert!(reasons.contains("too_long"), "{reasons}");
    let text = talk.completed_turn_text("say on");
    assert!(text.contains("on"), "{text}");
    assert_eq!(talk.children(), 2);
    talk.close();
    CellOutcome::Yes
}

/// Tokens of the last turn that ended.
pub(crate) fn tokens(talk: &Talk<'_>) -> [u64; 2] {
    let ended = talk.events("turn_ended");
    let usage = &ended.last().expect("an end")["usage"];
    ["input", "output"].map(|item| usage[item].as_u64().unwrap_or_else(|| panic!("{ended:?}")))
}

pub(crate) fn usage(bench: &Bench, speech: &Speech) -> CellOutcome {
    match speech.usage {
        Usage::Counted => {
            let mut talk = bench.talked("work", "say a");
            let few = tokens(&talk);
            talk.completed_turn_text(&format!("say {}", "many words ".repeat(200)));
            let many = tokens(&talk);
            assert!(few.iter().all(|item| *item > 0), "{few:?}");
            assert!(many[1] > few[1] + 100, "{few:?} {many:?}");
            talk.close();
            CellOutcome::Yes
        }
        Usage::Line(line, counted) => {
            let talk = bench.talked("work", &format!("say a\n{line}\nsleep 10ms"));
            comes("the turn's end", || !talk.events("turn_ended").is_empty());
            assert_eq!(tokens(&talk), counted);
            talk.close();
            CellOutcome::As("Where the agent says it with the turn's end.")
        }
        Usage::Never => {
            let talk = bench.talked("work", "say some words");
            assert_eq!(tokens(&talk), [0, 0]);
            talk.close();
            CellOutcome::None("No message of the protocol has tokens of a turn: its usage is 0.")
        }
    }
}
