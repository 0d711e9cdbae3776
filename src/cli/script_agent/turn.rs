//! One turn: the prompt's steps, one after the other, and what is said about them.
//!
//! Must not know how a tool works inside.

use std::time::Instant;

use serde_json::{Value, json};

use super::AgentDialect;
use super::agent::{Accepted, Agent, CONTEXT_WINDOW, Halt, Permission, Turn};
use super::memory::Record;
use super::said::Said;
use super::script;
use super::step::{Call, Step};
use super::tools::{self, ToolEnd};

/// Whether the controller is asked before a tool runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Manners {
    Asks,
    DoesNotAsk,
    /// It is asked, and its answer is not waited for.
    Withdraws,
}

impl Agent {
    /// Runs a prompt to its end.
    pub(super) fn run_turn(&mut self, prompt: Accepted) -> Result<(), Halt> {
        let id = match &prompt.reply_to {
            // There the turn has its name from the moment at which its prompt was taken.
            Some(Value::String(id)) if self.settings.dialect.names_turns() => id.clone(),
            _ => self.next_turn(),
        };
        self.log(format_args!("turn {id} begins"));
        self.turn = Some(Turn {
            id,
            digest: prompt.digest,
            reply_to: prompt.reply_to,
            read_chars: prompt.text.chars().count() as u64,
            ..Turn::default()
        });
        self.tell(&Said::TurnStarted)?;
        if self.settings.dialect == AgentDialect::Codex {
            self.tell_prompt_of_codex(&prompt.text)?;
        }
        match script::parse(&prompt.text) {
            Ok(steps) => self.follow(&steps)?,
            Err(sentence) => self.text(&sentence.to_string())?,
        }
        self.follow_steering()?;
        self.complete()
    }

    pub(super) fn follow(&mut self, steps: &[(&str, Step)]) -> Result<(), Halt> {
        for (at, (line, step)) in steps.iter().enumerate() {
            self.attend()?;
            self.pause(self.settings.think)?;
            if self.cancelled() {
                return Ok(());
            }
            let turn = self.turn.as_ref();
            let place = json!({
                "turn": turn.map(|turn| &turn.id),
                "digest": turn.map(|turn| &turn.digest),
                "at": at + 1,
                "step": line,
            });
            self.enter("step", || place)?;
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
            Step::Think(text) => {
                if let Some(turn) = &mut self.turn {
                    turn.written_chars += text.chars().count() as u64;
                }
                self.tell(&Said::Thought(text))?;
                self.pause(self.settings.think)
            }
            Step::Plan(entries) => self.tell(&Said::Plan(entries)),
            Step::Recall => self.recall(),
            Step::Sleep(pause) => self.pause(*pause),
            Step::Client(step) => self.client_step(step),
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

    /// Says every earlier prompt of the session, as its file has them: one a line.
    fn recall(&mut self) -> Result<(), Halt> {
        let records = match self.session.records() {
            Ok(records) => records,
            Err(error) => return self.text(&format!("I remember nothing: {error}.\n")),
        };
        let mut prompts = Vec::new();
        for record in records {
            if let Record::Prompt { text } = record? {
                prompts.push(text);
            }
        }
        // The last one is the prompt of this turn.
        prompts.pop();
        if prompts.is_empty() {
            return self.text("This is the first prompt of the session.\n");
        }
        for prompt in &prompts {
            let lines: Vec<&str> = prompt.trim_end().lines().collect();
            self.text(&format!("{}\n", lines.join(" ⏎ ")))?;
        }
        Ok(())
    }

    pub(super) fn use_tool(&mut self, call: &Call, manners: Manners) -> Result<(), Halt> {
        self.narrate(|| intention(call))?;
        let told = self.settings.dialect.told(call);
        let call = &*told;
        let tool_id = self.next_call();
        self.queue_tool_start(&tool_id, call)?;
        let can_ask = self.settings.dialect.asks() && !self.trusted.contains(call.tool());
        let asks = manners != Manners::DoesNotAsk && can_ask;
        let permission = if asks {
            self.scripted.withdraws = manners == Manners::Withdraws;
            self.queue_ask(&tool_id, call)?;
            self.answer()?
        } else {
            Permission::Allowed
        };
        let began = Instant::now();
        let end = match permission {
            Permission::Allowed => {
                self.tell(&Said::ToolRuns { tool_id: &tool_id })?;
                tools::execute(self, call)?
            }
            Permission::Denied(reason) => ToolEnd::error(reason).never_ran(),
            Permission::Cancelled => ToolEnd::interrupted().never_ran(),
        };
        self.queue_tool_end(&tool_id, call, &end, began)?;
        self.out.flush()?;
        if self.session.is_kept() {
            self.keep(&Record::Tool {
                id: tool_id,
                tool: call.tool().to_owned(),
                title: call.title(),
                input: json!(call),
                output: end.output.clone(),
                is_error: end.is_error,
            });
        }
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

    /// Queues the beginning of a tool call.
    pub(super) fn queue_tool_start(&mut self, tool_id: &str, call: &Call) -> Result<(), Halt> {
        if let Some(turn) = &mut self.turn {
            turn.written_chars += serde_json::to_string(call).map_or(0, |text| text.len() as u64);
        }
        self.queue(&Said::ToolStart { tool_id, call })
    }

    /// Queues the end of a tool call.
    pub(super) fn queue_tool_end(
        &mut self,
        tool_id: &str,
        call: &Call,
        end: &ToolEnd,
        began: Instant,
    ) -> Result<(), Halt> {
        if let Some(turn) = &mut self.turn {
            turn.read_chars += end.output.chars().count() as u64;
        }
        let took_us = u32::try_from(began.elapsed().as_micros()).unwrap_or(u32::MAX);
        self.queue(&Said::ToolEnd {
            tool_id,
            call,
            end,
            took_s: f64::from(took_us) / 1e6,
        })
    }

    /// Says something about a step, unless only load is wanted.
    fn narrate(&mut self, text: impl FnOnce() -> String) -> Result<(), Halt> {
        if self.settings.loader {
            return Ok(());
        }
        self.text(&text())
    }

    fn complete(&mut self) -> Result<(), Halt> {
        // Still the turn while its end is written: the lines name it.
        let Some(turn) = &mut self.turn else {
            return Ok(());
        };
        let input_tokens = turn.read_chars.div_ceil(4);
        let output_tokens = turn.written_chars.div_ceil(4);
        let (cancelled, iterations) = (turn.cancelled, turn.calls.max(1));
        let said = std::mem::take(&mut turn.said);
        let mutations = std::mem::take(&mut turn.mutations);
        let reply_to = turn.reply_to.take();
        let before = self.context_pct();
        self.session.context += input_tokens + output_tokens;
        let (tokens, pct) = (self.session.context, self.context_pct());
        if pct != before && !self.settings.loader {
            self.tell(&Said::Context { tokens, pct })?;
        }
        self.keep(&Record::Answer {
            text: said.clone(),
            cancelled,
            context: tokens,
        });
        self.tell(&Said::TurnEnd {
            cancelled,
            iterations,
            input_tokens,
            output_tokens,
            mutations: &mutations,
            answer: &said,
            reply_to: reply_to.as_ref(),
        })?;
        self.turn = None;
        let how = if cancelled { "cancelled" } else { "done" };
        self.log(format_args!("turn ends: {how}"));
        Ok(())
    }

    /// How full the context is, in whole percent.
    pub(super) fn context_pct(&self) -> u64 {
        (self.session.context * 100 / CONTEXT_WINDOW).min(100)
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
