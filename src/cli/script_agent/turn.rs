//! One turn: the prompt's steps, one after the other, and what is said about them.
//!
//! Must not know how a tool works inside.

use std::time::Instant;

use serde_json::json;

use super::agent::{Agent, Halt, Permission, Turn};
use super::messages::{Outbound, StopReason};
use super::script;
use super::step::{Call, Step};
use super::tools::{self, ToolEnd};

/// Whether the controller is asked before a tool runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Manners {
    Asks,
    DoesNotAsk,
}

impl Agent {
    /// Runs a prompt to its end.
    pub(super) fn run_turn(&mut self, prompt: &str) -> Result<(), Halt> {
        let id = self.next_turn();
        self.log(format_args!("turn {id} begins"));
        self.out.send(&Outbound::TurnStarted { turn_id: &id })?;
        self.turn = Some(Turn {
            id,
            read_chars: prompt.chars().count() as u64,
            ..Turn::default()
        });
        match script::parse(prompt) {
            Ok(steps) => self.follow(&steps)?,
            Err(sentence) => self.text(&sentence.to_string())?,
        }
        self.complete()
    }

    fn follow(&mut self, steps: &[(&str, Step)]) -> Result<(), Halt> {
        for (at, (line, step)) in steps.iter().enumerate() {
            self.attend()?;
            self.pause(self.settings.think)?;
            if self.cancelled() {
                return Ok(());
            }
            self.ledger.enter("step", || {
                json!({"turn": self.turn.as_ref().map(|turn| &turn.id), "n": at + 1, "step": line})
            })?;
            self.log(format_args!("step {}: {line}", at + 1));
            self.perform(step)?;
        }
        let failures = self.turn.as_ref().map_or(&[][..], |turn| &turn.failures);
        if !failures.is_empty() && !self.cancelled() && !self.settings.loader {
            let summary = format!(
                "{} of {} steps failed: {}.\n",
                failures.len(),
                steps.len(),
                failures.join("; ")
            );
            self.text(&summary)?;
        }
        Ok(())
    }

    fn perform(&mut self, step: &Step) -> Result<(), Halt> {
        match step {
            Step::Tool(call) => self.use_tool(call, Manners::Asks),
            Step::Unasked(call) => self.use_tool(call, Manners::DoesNotAsk),
            Step::Say(text) => self.say(text),
            // The protocol has no message for a thought.
            Step::Think(text) => {
                self.text(&format!("(thinking) {text}\n"))?;
                self.pause(self.settings.think)
            }
            Step::Sleep(pause) => self.pause(*pause),
            Step::Drill(drill) => self.drill(drill),
        }
    }

    /// Streams a text word by word.
    fn say(&mut self, text: &str) -> Result<(), Halt> {
        for word in format!("{text}\n").split_inclusive(' ') {
            self.text(word)?;
        }
        Ok(())
    }

    fn use_tool(&mut self, call: &Call, manners: Manners) -> Result<(), Halt> {
        self.narrate(|| intention(call))?;
        let tool_id = self.next_call();
        self.queue_tool_start(&tool_id, call)?;
        let permission = match manners {
            Manners::Asks => {
                self.queue_ask(call)?;
                self.answer()?
            }
            Manners::DoesNotAsk => {
                self.out.flush()?;
                Permission::Allowed
            }
        };
        let began = Instant::now();
        let end = match permission {
            Permission::Allowed => tools::execute(self, call)?,
            Permission::Denied(reason) => ToolEnd::error(reason),
            Permission::Cancelled => ToolEnd::interrupted(),
        };
        self.queue_tool_result(&tool_id, &end, began)?;
        self.out.flush()?;
        if self.cancelled() {
            return Ok(());
        }
        if let Some(turn) = &mut self.turn {
            if end.is_error {
                turn.failures
                    .push(format!("{} ({})", call.tool(), first_line(&end.output)));
            } else if let Call::WriteFile { path, .. } = call {
                turn.mutations.push((call.tool(), path.clone()));
            }
        }
        self.narrate(|| {
            if end.is_error {
                format!("That failed: {}.\n", first_line(&end.output))
            } else {
                format!("{}\n", end.summary)
            }
        })
    }

    /// Queues `tool_start`.
    pub(super) fn queue_tool_start(&mut self, tool_id: &str, call: &Call) -> Result<(), Halt> {
        if let Some(turn) = &mut self.turn {
            turn.written_chars += serde_json::to_string(call).map_or(0, |text| text.len() as u64);
        }
        self.out.queue(&Outbound::ToolStart {
            turn_id: self.turn.as_ref().map_or("", |turn| turn.id.as_str()),
            tool_id,
            name: call.tool(),
            input: call,
        })?;
        Ok(())
    }

    /// Queues `tool_result`.
    pub(super) fn queue_tool_result(
        &mut self,
        tool_id: &str,
        end: &ToolEnd,
        began: Instant,
    ) -> Result<(), Halt> {
        if let Some(turn) = &mut self.turn {
            turn.read_chars += end.output.chars().count() as u64;
        }
        let took_us = u32::try_from(began.elapsed().as_micros()).unwrap_or(u32::MAX);
        self.out.queue(&Outbound::ToolResult {
            turn_id: self.turn.as_ref().map_or("", |turn| turn.id.as_str()),
            tool_id,
            output: &end.output,
            is_error: end.is_error,
            duration_s: f64::from(took_us) / 1e6,
        })?;
        Ok(())
    }

    /// Says something about a step, unless only load is wanted.
    fn narrate(&mut self, text: impl FnOnce() -> String) -> Result<(), Halt> {
        if self.settings.loader {
            return Ok(());
        }
        self.text(&text())
    }

    fn complete(&mut self) -> Result<(), Halt> {
        let Some(turn) = self.turn.take() else {
            return Ok(());
        };
        let before = self.context_pct();
        let input_tokens = turn.read_chars.div_ceil(4);
        let output_tokens = turn.written_chars.div_ceil(4);
        self.context += input_tokens + output_tokens;
        if self.context_pct() != before && !self.settings.loader {
            self.out.send(&Outbound::StateChanged {
                context_pct: self.context_pct(),
            })?;
        }
        let stop_reason = if turn.cancelled {
            StopReason::Interrupted
        } else {
            StopReason::EndTurn
        };
        self.out.send(&Outbound::TurnComplete {
            turn_id: &turn.id,
            stop_reason,
            iterations: turn.calls.max(1),
            input_tokens,
            output_tokens,
            mutations: &turn.mutations,
        })?;
        self.log(format_args!("turn {} ends: {stop_reason:?}", turn.id));
        Ok(())
    }
}

/// What the agent says before it uses a tool.
fn intention(call: &Call) -> String {
    match call {
        Call::ReadFile { path } => format!("I'll read `{path}`.\n"),
        Call::WriteFile { path, .. } => format!("I'll write `{path}`.\n"),
        Call::ListDir { path } => format!("I'll list `{path}`.\n"),
        Call::GrepSearch { pattern, .. } => format!("I'll search for `{pattern}`.\n"),
        Call::Bash { command } => format!("I'll run `{command}`.\n"),
    }
}

/// The first line of a tool's output that says anything, for a sentence.
fn first_line(output: &str) -> &str {
    output
        .lines()
        .map(str::trim)
        .find(|line| !line.is_empty())
        .unwrap_or("no output")
        .trim_end_matches('.')
}
