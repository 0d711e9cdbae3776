//! One turn: it executes the prompt's steps in order and reports on them.
//!
//! Must not know the inside of a tool.

use std::time::Instant;

use serde_json::{Value, json};

use super::AgentDialect;
use super::agent::{AcceptedPrompt, Agent, CONTEXT_WINDOW, Halt, Permission, Turn};
use super::agent_event::{AgentEvent, ToolEnd, TurnEnd};
use super::memory::Record;
use super::script;
use super::step::{Step, ToolCall};
use super::tools::{self, ToolOutcome};

/// Whether the agent sends a permission request before a tool runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AskMode {
    Asks,
    NeverAsks,
    /// It sends a request and withdraws it without waiting for the answer.
    Withdraws,
}

impl Agent {
    /// Executes a prompt to its end.
    pub(super) fn run_turn(&mut self, prompt: AcceptedPrompt) -> Result<(), Halt> {
        let id = match &prompt.reply_to {
            // In such a protocol the turn got its id when its prompt was accepted.
            Some(Value::String(id)) if self.settings.dialect.names_turns_early() => id.clone(),
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
        self.send_event(&AgentEvent::TurnStarted)?;
        if self.settings.dialect == AgentDialect::Codex {
            self.queue_codex_prompt(&prompt.text)?;
        }
        match script::parse(&prompt.text) {
            Ok(steps) => self.run_steps(&steps)?,
            Err(sentence) => self.send_text(&sentence.to_string())?,
        }
        self.run_steering()?;
        self.complete()
    }

    pub(super) fn run_steps(&mut self, steps: &[(&str, Step)]) -> Result<(), Halt> {
        for (at, (line, step)) in steps.iter().enumerate() {
            self.poll_input()?;
            self.pause(self.settings.think)?;
            if self.is_cancelled() {
                return Ok(());
            }
            let turn = self.turn.as_ref();
            let place = json!({
                "turn": turn.map(|turn| &turn.id),
                "digest": turn.map(|turn| &turn.digest),
                "at": at + 1,
                "step": line,
            });
            self.log_to_ledger("step", || place)?;
            self.log(format_args!("step {}: {line}", at + 1));
            self.run_step(step)?;
        }
        let failures = self.turn.as_ref().map_or(&[][..], |turn| &turn.failures);
        if !failures.is_empty() && !self.is_cancelled() && !self.settings.loader {
            let summary = format!(
                "{} of {} steps failed: {}.\n",
                failures.len(),
                steps.len(),
                failures.join("; ")
            );
            self.send_text(&summary)?;
        }
        Ok(())
    }

    fn run_step(&mut self, step: &Step) -> Result<(), Halt> {
        match step {
            Step::Tool(call) => self.use_tool(call, AskMode::Asks),
            Step::UnapprovedTool(call) => self.use_tool(call, AskMode::NeverAsks),
            Step::Say(text) => self.stream_words(text),
            Step::Think(text) => {
                if let Some(turn) = &mut self.turn {
                    turn.written_chars += text.chars().count() as u64;
                }
                self.send_event(&AgentEvent::Thought(text))?;
                self.pause(self.settings.think)
            }
            Step::Plan(entries) => self.send_event(&AgentEvent::Plan(entries)),
            Step::Recall => self.recall(),
            Step::Sleep(pause) => self.pause(*pause),
            Step::Client(step) => self.client_step(step),
            Step::Drill(drill) => self.drill(drill),
        }
    }

    /// Streams a text word by word.
    fn stream_words(&mut self, text: &str) -> Result<(), Halt> {
        for word in format!("{text}\n").split_inclusive(' ') {
            self.send_text(word)?;
        }
        Ok(())
    }

    /// Sends every earlier prompt of the session, as stored in its file, one a line.
    fn recall(&mut self) -> Result<(), Halt> {
        let records = match self.session.records() {
            Ok(records) => records,
            Err(error) => return self.send_text(&format!("I remember nothing: {error}.\n")),
        };
        let mut prompts = Vec::new();
        for record in records {
            if let Record::Prompt { text } = record? {
                prompts.push(text);
            }
        }
        // The last one is this turn's own prompt.
        prompts.pop();
        if prompts.is_empty() {
            return self.send_text("This is the first prompt of the session.\n");
        }
        for prompt in &prompts {
            let lines: Vec<&str> = prompt.trim_end().lines().collect();
            self.send_text(&format!("{}\n", lines.join(" ⏎ ")))?;
        }
        Ok(())
    }

    pub(super) fn use_tool(&mut self, call: &ToolCall, ask_mode: AskMode) -> Result<(), Halt> {
        self.narrate(|| intention(call))?;
        let foreign_call = self.settings.dialect.translate_call(call);
        let call = &*foreign_call;
        let tool_id = self.next_call();
        self.queue_tool_start(&tool_id, call)?;
        let can_ask = self.settings.dialect.has_permission_requests()
            && !self.trusted_tools.contains(call.tool());
        let must_ask = ask_mode != AskMode::NeverAsks && can_ask;
        let permission = if must_ask {
            self.script_state.withdraws_next = ask_mode == AskMode::Withdraws;
            self.queue_permission_request(&tool_id, call)?;
            self.await_permission()?
        } else {
            Permission::Allowed
        };
        let began = Instant::now();
        let end = match permission {
            Permission::Allowed => {
                self.send_event(&AgentEvent::ToolRunning { tool_id: &tool_id })?;
                tools::execute(self, call)?
            }
            Permission::Denied(reason) => ToolOutcome::error(reason).without_running(),
            Permission::Cancelled => ToolOutcome::interrupted().without_running(),
        };
        self.queue_tool_end(&tool_id, call, &end, began)?;
        self.out.flush()?;
        if self.session.is_saved() {
            self.save_record(&Record::Tool {
                id: tool_id,
                tool: call.tool().to_owned(),
                title: call.title(),
                input: json!(call),
                output: end.output.clone(),
                is_error: end.is_error,
            });
        }
        if self.is_cancelled() {
            return Ok(());
        }
        if let Some(turn) = &mut self.turn {
            if end.is_error {
                turn.failures
                    .push(format!("{} ({})", call.tool(), first_line(&end.output)));
            } else if let ToolCall::WriteFile { path, .. } = call {
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

    /// Queues the begin of a tool call.
    pub(super) fn queue_tool_start(&mut self, tool_id: &str, call: &ToolCall) -> Result<(), Halt> {
        if let Some(turn) = &mut self.turn {
            turn.written_chars += serde_json::to_string(call).map_or(0, |text| text.len() as u64);
        }
        self.queue_event(&AgentEvent::ToolStart { tool_id, call })
    }

    /// Queues the end of a tool call.
    pub(super) fn queue_tool_end(
        &mut self,
        tool_id: &str,
        call: &ToolCall,
        end: &ToolOutcome,
        began: Instant,
    ) -> Result<(), Halt> {
        if let Some(turn) = &mut self.turn {
            turn.read_chars += end.output.chars().count() as u64;
        }
        let took_us = u32::try_from(began.elapsed().as_micros()).unwrap_or(u32::MAX);
        self.queue_event(&AgentEvent::ToolEnd(ToolEnd {
            tool_id,
            call,
            outcome: end,
            took_s: f64::from(took_us) / 1e6,
        }))
    }

    /// Sends a text about a step, except in loader mode.
    fn narrate(&mut self, text: impl FnOnce() -> String) -> Result<(), Halt> {
        if self.settings.loader {
            return Ok(());
        }
        self.send_text(&text())
    }

    fn complete(&mut self) -> Result<(), Halt> {
        // The turn still exists while its end is written, because the lines contain its id.
        let Some(turn) = &mut self.turn else {
            return Ok(());
        };
        let input_tokens = turn.read_chars.div_ceil(4);
        let output_tokens = turn.written_chars.div_ceil(4);
        let (cancelled, iterations) = (turn.cancelled, turn.calls.max(1));
        let answer = std::mem::take(&mut turn.answer_text);
        let mutations = std::mem::take(&mut turn.mutations);
        let reply_to = turn.reply_to.take();
        let before = self.context_pct();
        self.session.context += input_tokens + output_tokens;
        let (tokens, pct) = (self.session.context, self.context_pct());
        if pct != before && !self.settings.loader {
            self.send_event(&AgentEvent::Context { tokens, pct })?;
        }
        self.save_record(&Record::Answer {
            text: answer.clone(),
            cancelled,
            context: tokens,
        });
        self.send_event(&AgentEvent::TurnEnd(TurnEnd {
            cancelled,
            iterations,
            input_tokens,
            output_tokens,
            mutations: &mutations,
            answer: &answer,
            reply_to: reply_to.as_ref(),
        }))?;
        self.turn = None;
        let how = if cancelled { "cancelled" } else { "done" };
        self.log(format_args!("turn ends: {how}"));
        Ok(())
    }

    /// The use of the context window, in whole percent.
    pub(super) fn context_pct(&self) -> u64 {
        (self.session.context * 100 / CONTEXT_WINDOW).min(100)
    }
}

/// The text that announces a tool call.
fn intention(call: &ToolCall) -> String {
    match call {
        ToolCall::ReadFile { path } => format!("I'll read `{path}`.\n"),
        ToolCall::WriteFile { path, .. } => format!("I'll write `{path}`.\n"),
        ToolCall::ListDir { path } => format!("I'll list `{path}`.\n"),
        ToolCall::GrepSearch { pattern, .. } => format!("I'll search for `{pattern}`.\n"),
        ToolCall::Bash { command } => format!("I'll run `{command}`.\n"),
    }
}

/// The first non-empty line of a tool's output, for a sentence.
fn first_line(output: &str) -> &str {
    output
        .lines()
        .map(str::trim)
        .find(|line| !line.is_empty())
        .unwrap_or("no output")
        .trim_end_matches('.')
}
