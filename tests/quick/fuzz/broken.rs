//! Dialects that break a promise each, on purpose: the harness must see it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use marshal_dialect::scaiflux::Scaiflux;
use marshal_dialect::{
    ChannelError, Command, Dialect, DialectError, Effect, Effects, Input, OpenParams,
};
use marshal_model::Event;
use rand::SeedableRng;
use rand::rngs::StdRng;

use crate::fuzz::harness::{Machine, Target, converse, flood};

/// What is wrong with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wrong {
    Nothing,
    AllowsByItself,
    AllowsADenial,
    EndsTwice,
    AsksTwice,
    WritesHalfALine,
    WritesNoJson,
    WritesAfterTheEnd,
    GoesOnAfterAFault,
    TakesAPromptWhileOneRuns,
    KnowsWhereBytesAreCut,
    NeverRests,
    TellsTooMuch,
    KeepsEverything,
}

const CONVERSATION: &[u8] = br#"{"type":"ready","protocol":1}
@prompt p
{"type":"turn_started","turn_id":"t"}
{"type":"permission_request","request_id":"a","tool":"bash","details":{"tool_input":{"command":"ls"}}}
@deny 0
@prompt q
{"type":"text_delta","turn_id":"t","delta":"x"}
@wait 1000
{"type":"turn_complete","turn_id":"t","stop_reason":"end_turn"}
@eof
"#;

#[derive(Debug)]
struct Broken {
    inner: Scaiflux,
    wrong: Wrong,
    opened: Option<Instant>,
    kept: Vec<String>,
}

fn allow() -> Effect {
    let line = b"{\"type\":\"permission_response\",\"request_id\":\"a\",\"decision\":\"allow\"}\n";
    Effect::Write(line.to_vec())
}

impl Dialect for Broken {
    fn open(&mut self, opening: &OpenParams, now: Instant, out: &mut Effects) {
        self.opened = Some(now);
        self.inner.open(opening, now, out);
    }

    fn handle_input(&mut self, input: Input<'_>, now: Instant, out: &mut Effects) {
        self.inner.handle_input(input, now, out);
        if let Input::Frame(line) = input {
            match self.wrong {
                Wrong::KeepsEverything => {
                    self.kept.push(String::from_utf8_lossy(line).into_owned());
                }
                // A frame says how long the read was that it came with.
                Wrong::KnowsWhereBytesAreCut => {
                    self.kept.push(format!("{:p}", line.as_ptr()));
                    let reported = self.kept.last().cloned().unwrap_or_default();
                    out.push(Effect::Event(Event::Text {
                        delta: reported.as_str().into(),
                    }));
                }
                _ => {}
            }
        }
        let ended = out
            .iter()
            .any(|effect| matches!(effect, Effect::Event(Event::TurnEnded { .. })));
        let requested = out.iter().find_map(|effect| match effect {
            Effect::PermissionRequest(ask) => Some(ask.clone()),
            _ => None,
        });
        match self.wrong {
            Wrong::AllowsByItself if requested.is_some() => out.push(allow()),
            Wrong::AsksTwice => out.extend(requested.map(Effect::PermissionRequest)),
            Wrong::EndsTwice if ended => out.push(Effect::Event(Event::TurnEnded {
                outcome: marshal_model::TurnOutcome::Completed,
                stop_reason: None,
                usage: marshal_model::Usage::default(),
                detail: None,
            })),
            Wrong::WritesHalfALine if ended => out.push(Effect::Write(b"{}".to_vec())),
            Wrong::WritesNoJson if ended => out.push(Effect::Write(b"{\"a\":\"\t\"}\n".to_vec())),
            Wrong::WritesAfterTheEnd if matches!(input, Input::Eof) => {
                out.push(Effect::Write(b"{}\n".to_vec()));
            }
            Wrong::GoesOnAfterAFault if ended => {
                out.push(Effect::ChannelFailed(ChannelError::Protocol(
                    "broken".to_owned(),
                )));
                out.push(Effect::CloseInput);
            }
            Wrong::TellsTooMuch if ended => {
                out.extend((0..10_000).map(|_| Effect::Event(Event::Text { delta: "x".into() })));
            }
            _ => {}
        }
    }

    fn handle_command(
        &mut self,
        command: Command,
        now: Instant,
        out: &mut Effects,
    ) -> Result<(), DialectError> {
        let (answers, prompts) = match &command {
            Command::AnswerPermission { .. } => (true, false),
            Command::Prompt { .. } => (false, true),
            _ => (false, false),
        };
        let done = self.inner.handle_command(command, now, out);
        match self.wrong {
            Wrong::AllowsADenial if answers => {
                out.clear();
                out.push(allow());
            }
            Wrong::TakesAPromptWhileOneRuns if prompts => return Ok(()),
            _ => {}
        }
        done
    }

    fn deadline(&self) -> Option<Instant> {
        if self.wrong == Wrong::NeverRests {
            self.opened
        } else {
            self.inner.deadline()
        }
    }

    fn tick(&mut self, now: Instant, out: &mut Effects) {
        self.inner.tick(now, out);
    }
}

fn broken(wrong: Wrong) -> Box<dyn Machine> {
    Box::new(Broken {
        inner: Scaiflux::default(),
        wrong,
        opened: None,
        kept: Vec::new(),
    })
}

fn detected_fault(wrong: Wrong) -> Option<String> {
    let played = catch_unwind(AssertUnwindSafe(|| {
        converse(Target::Scaiflux, CONVERSATION, &|| broken(wrong));
    }));
    let flooded = || {
        let mut random = StdRng::seed_from_u64(3);
        flood(Target::Scaiflux, CONVERSATION, &mut random, &|| {
            broken(wrong)
        });
    };
    let failed = played
        .and_then(|()| catch_unwind(AssertUnwindSafe(flooded)))
        .err()?;
    let reported = failed.downcast_ref::<String>().cloned();
    Some(
        reported
            .or_else(|| {
                failed
                    .downcast_ref::<&str>()
                    .map(|reported| (*reported).to_owned())
            })
            .unwrap_or_default(),
    )
}

#[test]
fn a_dialect_that_breaks_a_promise_is_seen() {
    assert_eq!(detected_fault(Wrong::Nothing), None);
    for (wrong, says) in [
        (Wrong::AllowsByItself, "allowed by Agent"),
        (Wrong::AllowsADenial, "allowed by Ours"),
        (Wrong::EndsTwice, "a turn ended that did not run"),
        (Wrong::AsksTwice, "asked twice"),
        (Wrong::WritesHalfALine, "not one line"),
        (Wrong::WritesNoJson, "control character"),
        (Wrong::WritesAfterTheEnd, "written after the agent's end"),
        (Wrong::GoesOnAfterAFault, "something after a fault"),
        (
            Wrong::TakesAPromptWhileOneRuns,
            "a prompt while a turn runs",
        ),
        (Wrong::KnowsWhereBytesAreCut, "cut otherwise"),
        (Wrong::NeverRests, "deadlines without end"),
        (Wrong::TellsTooMuch, "effects of"),
        (Wrong::KeepsEverything, "bytes of state after a flood"),
    ] {
        let reported = detected_fault(wrong);
        assert!(
            reported
                .as_ref()
                .is_some_and(|reported| reported.contains(says)),
            "{wrong:?}: {reported:?}"
        );
    }
}
