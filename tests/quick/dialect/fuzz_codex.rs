//! Any bytes from Codex: no panic, and the promises that hold for all of them.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use marshal_config::{CodexSettings, DialectName};
use marshal_dialect::{Effect, OpenParams, merge_text};
use marshal_model::Event;
use proptest::prelude::*;

use crate::dialect::fuzz::{Step, command_of, hold, pick, play, step as step_of};
use crate::dialect::script::Conversation;
use crate::fuzz::harness::Target;

const IDS: [&str; 5] = ["0", "1", "\"1\"", "3", "\"x\""];
const GREETING: [&str; 3] = [
    r#"{"id":1,"result":{"userAgent":"marshal/0.169.0 (x)"}}"#,
    r#"{"id":2,"result":{"account":null,"requiresOpenaiAuth":false}}"#,
    r#"{"id":3,"result":{"thread":{"id":"t"},"approvalPolicy":"untrusted","approvalsReviewer":"user","sandbox":{"type":"dangerFullAccess"}}}"#,
];

/// Where something is: mostly in the turn that runs.
fn place() -> impl Strategy<Value = &'static str> {
    prop_oneof![
        8 => Just(r#""threadId":"t","turnId":"u""#),
        1 => Just(r#""threadId":"t","turnId":"other""#),
        1 => Just(r#""threadId":"other","turnId":"u""#),
        1 => Just(r#""threadId":"t""#),
    ]
}

/// An item's members: left out, doubled, of another type.
fn item() -> impl Strategy<Value = String> {
    let kind = pick(&[
        r#""type":"commandExecution""#,
        r#""type":"commandExecution""#,
        r#""type":"fileChange""#,
        r#""type":"fileChange""#,
        r#""type":"mcpToolCall","server":"s","tool":"t""#,
        r#""type":"agentMessage""#,
        r#""type":"reasoning""#,
        r#""type":"webSearch""#,
        r#""type":"later""#,
        r#""type":7"#,
    ]);
    let member = pick(&[
        r#""id":"c""#,
        r#""id":"c""#,
        r#""id":"d""#,
        r#""id":7"#,
        r#""command":"ls""#,
        r#""command":"bash -lc 'a b'""#,
        r#""command":"a;b""#,
        r#""cwd":"/w""#,
        r#""cwd":"/w""#,
        r#""text":"x""#,
        r#""summary":["x"]"#,
        r#""status":"completed""#,
        r#""status":"failed""#,
        r#""aggregatedOutput":"\u001b""#,
        r#""changes":[{"path":"a","kind":{"type":"add"}}]"#,
        r#""changes":[{"path":"a","kind":{"type":"delete"}},{"path":"b","kind":{"type":"add"}}]"#,
        r#""changes":7"#,
        r#""source":"unifiedExecInteraction""#,
    ]);
    (kind, prop::collection::vec(member, 0..6)).prop_map(|(kind, members)| {
        let mut all = vec![kind.to_owned()];
        all.extend(members.into_iter().map(str::to_owned));
        all.join(",")
    })
}

fn notified() -> impl Strategy<Value = String> {
    let method = pick(&[
        "item/agentMessage/delta",
        "item/reasoning/textDelta",
        "item/commandExecution/outputDelta",
        "turn/plan/updated",
        "thread/tokenUsage/updated",
        "error",
        "warning",
        "thread/settings/updated",
        "serverRequest/resolved",
        "later",
    ]);
    let more = pick(&[
        r#""itemId":"c","delta":"x""#,
        r#""itemId":"c","delta":"x""#,
        r#""delta":7"#,
        r#""plan":[{"step":"s","status":"pending"}]"#,
        r#""tokenUsage":{"total":{"inputTokens":5,"outputTokens":-1},"last":{"inputTokens":1,"outputTokens":1}}"#,
        r#""error":{"message":"m"},"willRetry":false"#,
        r#""error":{"message":"m"},"willRetry":true"#,
        r#""message":"m""#,
        r#""threadSettings":{"approvalPolicy":"untrusted","approvalsReviewer":"user"}"#,
        r#""threadSettings":{"approvalPolicy":"never","approvalsReviewer":"user"}"#,
        r#""requestId":0"#,
        r#""requestId":"x""#,
    ]);
    let turn = pick(&[
        r#""id":"u""#,
        r#""id":"u","status":"completed""#,
        r#""id":"u","status":"interrupted""#,
        r#""id":"u","status":"failed","error":{"message":"m"}"#,
        r#""id":"other","status":"completed""#,
        r#""x":1"#,
    ]);
    let moment = pick(&["turn/started", "turn/completed"]);
    prop_oneof![
        3 => (method, place(), more).prop_map(|(method, place, more)| {
            format!(r#""method":"{method}","params":{{{place},{more}}}"#)
        }),
        3 => (pick(&["item/started", "item/completed"]), place(), item())
            .prop_map(|(method, place, item)| {
                format!(r#""method":"{method}","params":{{{place},"item":{{{item}}}}}"#)
            }),
        2 => (moment, turn).prop_map(|(method, turn)| {
            format!(r#""method":"{method}","params":{{"threadId":"t","turn":{{{turn}}}}}"#)
        }),
    ]
}

fn permission_request() -> impl Strategy<Value = String> {
    let method = pick(&[
        "item/commandExecution/requestApproval",
        "item/commandExecution/requestApproval",
        "item/fileChange/requestApproval",
        "item/fileChange/requestApproval",
        "item/permissions/requestApproval",
        "mcpServer/elicitation/request",
        "execCommandApproval",
        "applyPatchApproval",
        "later",
    ]);
    let member = pick(&[
        r#""itemId":"c""#,
        r#""itemId":"c""#,
        r#""itemId":"d""#,
        r#""command":"ls""#,
        r#""command":"bash -lc 'a b'""#,
        r#""command":["ls"]"#,
        r#""command":null"#,
        r#""cwd":"/w""#,
        r#""cwd":7"#,
        r#""approvalId":"p""#,
        r#""kind":"writeStdin""#,
        r#""environmentId":"cloud""#,
        r#""grantRoot":"/""#,
        r#""availableDecisions":["accept"]"#,
        r#""availableDecisions":["decline"]"#,
        r#""conversationId":"t""#,
        r#""callId":"c""#,
        r#""fileChanges":{"a":{"type":"add","content":"x"}}"#,
        r#""later":1"#,
    ]);
    let members = prop::collection::vec(member, 0..6);
    (prop::sample::select(&IDS[..]), method, place(), members).prop_map(
        |(id, method, place, members)| {
            let mut all = vec![place.to_owned()];
            all.extend(members.into_iter().map(str::to_owned));
            format!(
                r#""id":{id},"method":"{method}","params":{{{}}}"#,
                all.join(",")
            )
        },
    )
}

fn reply() -> impl Strategy<Value = String> {
    let id = pick(&["1", "2", "3", "4", "5", "6", "\"3\"", "null", "-1"]);
    let end = pick(&[
        r#""result":{"userAgent":"marshal/0.169.0 (x)"}"#,
        r#""result":{"userAgent":"marshal/0.1.0"}"#,
        r#""result":{"account":null,"requiresOpenaiAuth":false}"#,
        r#""result":{"account":null,"requiresOpenaiAuth":true}"#,
        r#""result":{"thread":{"id":"t"},"approvalPolicy":"untrusted","approvalsReviewer":"user","sandbox":{"type":"dangerFullAccess"}}"#,
        r#""result":{"thread":{"id":"t"},"approvalPolicy":"never"}"#,
        r#""result":{"turn":{"id":"u"}}"#,
        r#""result":{}"#,
        r#""result":null"#,
        r#""error":{"code":-32001,"message":"busy"}"#,
        r#""error":{"code":-32600,"message":"m"}"#,
        r#""error":null"#,
    ]);
    (id, end).prop_map(|(id, end)| format!(r#""id":{id},{end}"#))
}

fn step() -> impl Strategy<Value = Step> {
    let line = prop_oneof![5 => notified(), 4 => permission_request(), 3 => reply()];
    let line = line.prop_map(|fields| format!("{{{fields}}}\n").into_bytes());
    step_of(10, line, IDS.len())
}

/// What must hold for every conversation.
#[derive(Default)]
struct Promises {
    open: HashSet<String>,
    /// What may not be allowed, of those.
    refused: HashSet<String>,
    asked: HashMap<String, u32>,
    answered: HashMap<String, u32>,
    begun: HashSet<String>,
    ready: bool,
    running: bool,
    started: bool,
    last_id: u64,
}

impl Promises {
    fn hold(effects: &[Effect]) {
        let mut state = Self::default();
        for (at, effect) in effects.iter().enumerate() {
            state.effect(effect);
            if let Effect::ChannelFailed(_) = effect {
                assert!(state.open.is_empty(), "open after a fault");
                assert_eq!(at + 1, effects.len(), "something after a fault");
            }
        }
        for (id, times) in &state.answered {
            assert!(
                Some(times) <= state.asked.get(id),
                "a verdict on {id} was written twice"
            );
        }
    }

    fn effect(&mut self, effect: &Effect) {
        match effect {
            Effect::Ready(info) => {
                assert!(!self.ready && info.protocol == "v2" && info.session.is_some());
                self.ready = true;
            }
            Effect::PermissionRequest(ask) => {
                let id = ask.key.id.clone();
                assert!(
                    self.running && self.open.insert(id.clone()),
                    "asked wrongly"
                );
                *self.asked.entry(id.clone()).or_default() += 1;
                let judged: serde_json::Value = serde_json::from_str(ask.input.get()).unwrap();
                assert!(
                    judged["call"].is_object()
                        || (judged.is_string() && ask.claims.has_no_allow_option)
                );
                if ask.claims.has_no_allow_option {
                    self.refused.insert(id);
                } else {
                    self.refused.remove(&id);
                }
            }
            Effect::RequestWithdrawn(key) => {
                assert!(self.open.remove(&key.id), "withdrawn, but not open");
            }
            Effect::Write(bytes) => self.check_written_line(bytes),
            Effect::Event(Event::TurnStarted { .. }) => {
                assert!(self.running && !self.started);
                self.started = true;
            }
            Effect::Event(Event::Text { .. } | Event::Thought { .. } | Event::Plan { .. }) => {
                assert!(self.started);
            }
            Effect::Event(Event::ToolStart { id, .. }) => {
                let is_new = self.begun.insert(id.raw().to_owned());
                assert!(is_new, "a call that runs began again");
            }
            Effect::Event(Event::ToolResult { id, .. }) => {
                assert!(self.begun.remove(id.raw()), "a result of nothing, or twice");
            }
            Effect::Event(Event::TurnEnded { .. }) => {
                assert!(self.running, "a turn ended that did not run");
                (self.running, self.started) = (false, false);
                self.begun.clear();
                assert!(self.open.is_empty(), "open after the turn's end");
            }
            _ => {}
        }
    }

    fn check_written_line(&mut self, bytes: &[u8]) {
        let (newline, body) = bytes.split_last().unwrap();
        assert!(*newline == b'\n' && !body.contains(&b'\n'));
        let message: serde_json::Value = serde_json::from_slice(body).unwrap();
        assert!(message.get("jsonrpc").is_none());
        let Some(method) = message["method"].as_str() else {
            let id = message["id"].to_string();
            let known = self.open.remove(&id);
            let decision = &message["result"]["decision"];
            if decision == "accept" || decision == "approved" {
                assert!(
                    known && !self.refused.contains(&id),
                    "allowed, but not open"
                );
                *self.answered.entry(id).or_default() += 1;
            } else {
                let words = ["decline", "cancel", "abort"];
                let is_word = decision.as_str().is_none_or(|word| words.contains(&word));
                assert!(is_word, "{message} says more than no");
            }
            return;
        };
        if method == "initialized" {
            assert_eq!(self.last_id, 1);
            return;
        }
        let id = message["id"].as_u64().unwrap();
        assert_eq!(id, self.last_id + 1, "ids of ours are used once");
        self.last_id = id;
        match method {
            "initialize" | "account/read" | "thread/start" | "thread/resume" => {
                assert!(!self.ready);
            }
            // Sent again, it is the same turn.
            "turn/start" => {
                assert!(self.ready && !self.started, "a prompt too early");
                assert_eq!(message["params"]["approvalPolicy"], "untrusted");
                self.running = true;
            }
            "turn/interrupt" => assert!(self.running && message["params"]["turnId"].is_string()),
            "$/ping" => assert!(self.ready && !self.running),
            other => panic!("{other:?} is not ours to say"),
        }
    }
}

/// A conversation that has come so far.
fn opened(greeted: u8, resumed: bool) -> Conversation {
    let opening = OpenParams {
        workspace: "/workspace".to_owned(),
        resume: (resumed && greeted == 0).then(|| "t".into()),
        codex: CodexSettings::default(),
        control_timeout: Some(Duration::from_secs(60)),
        keepalive_interval: Some(Duration::from_secs(20)),
        ..OpenParams::default()
    };
    let mut talk = Conversation::opened(DialectName::Codex, &opening);
    if greeted > 0 {
        for line in GREETING {
            talk.chunk(format!("{line}\n").as_bytes());
        }
    }
    if greeted > 1 {
        drop(talk.command(command_of(0, "")));
    }
    if greeted > 2 {
        talk.chunk(b"{\"id\":4,\"result\":{\"turn\":{\"id\":\"u\"}}}\n");
    }
    talk
}

#[test]
fn a_turn_that_waits_is_begun_again_whatever_is_asked_meanwhile() {
    let requests = b"{\"id\":0,\"method\":\"item/commandExecution/requestApproval\",\"params\":{\"threadId\":\"t\",\"turnId\":\"u\",\"itemId\":\"c\"}}\n";
    let busy = b"{\"id\":4,\"error\":{\"code\":-32001,\"message\":\"busy\"}}\n";
    for lines in [[&requests[..], &busy[..]], [&busy[..], &requests[..]]] {
        let mut talk = opened(2, false);
        for line in lines {
            talk.chunk(line);
        }
        talk.after(Duration::from_secs(60));
        let begun = talk.written_lines();
        let begun = begun.iter().filter(|line| line.contains("turn/start"));
        assert_eq!(begun.count(), 2, "{:?}", talk.effects);
        Promises::hold(&talk.effects);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn the_promises_hold_for_any_conversation(
        greeted in 0_u8..4,
        resumed in any::<bool>(),
        bits in any::<u8>(),
        steps in prop::collection::vec(step(), 0..40),
    ) {
        let greeting = if greeted > 0 { &GREETING[..] } else { &[] };
        hold(Target::Codex, bits, greeting, greeted > 1, &steps);
        let mut talk = opened(greeted, resumed);
        play(&mut talk, steps, &IDS, |written| ["\"accept\"", "\"approved\""].iter().any(|word| written.contains(word)));
        Promises::hold(&talk.effects);
        merge_text(&mut talk.effects);
        Promises::hold(&talk.effects);
    }
}
