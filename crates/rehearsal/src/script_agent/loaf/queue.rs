//! The agent's queue: prompts after the running turn, and texts that steer the running turn.
//!
//! Must not know verbs.

use std::collections::VecDeque;

use serde_json::{Value, json};

use crate::script_agent::agent::{Agent, Halt};
use crate::script_agent::script;
use crate::script_agent::template::{Fields, fields};

/// The maximum number of waiting prompts, and of waiting texts.
const MOST: usize = 64;

/// A waiting prompt: the id of its turn, and its text.
#[derive(Debug)]
struct Prompt {
    turn: String,
    session: String,
    text: String,
}

/// The waiting prompts and texts.
#[derive(Debug, Default)]
pub(crate) struct PromptQueue {
    prompts: VecDeque<Prompt>,
    steering: VecDeque<String>,
    /// Whether `system.shutdown` came: after it, only the end of stdin is handled.
    pub(super) is_shut_down: bool,
}

impl PromptQueue {
    /// Queues a prompt; `false` if too many wait.
    pub(crate) fn push(&mut self, turn: String, session: &str, text: String) -> bool {
        let has_room = self.prompts.len() < MOST;
        if has_room {
            let session = session.to_owned();
            self.prompts.push_back(Prompt {
                turn,
                session,
                text,
            });
        }
        has_room
    }

    /// The number of waiting prompts.
    pub(super) fn len(&self) -> usize {
        self.prompts.len()
    }

    /// The waiting prompts of a session, as the protocol shows them.
    pub(crate) fn to_json(&self, session: &str) -> Vec<Value> {
        let of = self
            .prompts
            .iter()
            .filter(|prompt| prompt.session == session);
        of.map(|prompt| json!({"id": prompt.turn, "text": prompt.text, "images": []}))
            .collect()
    }

    /// Empties the queue of a session, or of all. Returns the number of removed prompts.
    pub(super) fn clear(&mut self, session: Option<&str>) -> usize {
        let before = self.prompts.len();
        self.prompts
            .retain(|prompt| session.is_some_and(|session| prompt.session != session));
        before - self.prompts.len()
    }

    /// Queues a text for the running turn; `false` if too many wait.
    pub(super) fn steer(&mut self, text: &str) -> bool {
        let has_room = self.steering.len() < MOST;
        if has_room {
            self.steering.push_back(text.to_owned());
        }
        has_room
    }
}

impl Agent {
    /// Accepts the next waiting prompt, if none is in progress.
    pub(crate) fn accept_next_prompt(&mut self) -> Result<(), Halt> {
        if self.is_busy() {
            return Ok(());
        }
        if let Some(prompt) = self.prompt_queue.prompts.pop_front()
            && self.select_open_session(&prompt.session)?
        {
            self.accept_prompt(prompt.text, Some(prompt.turn.into()))?;
        }
        Ok(())
    }

    /// Executes the texts that steer the turn, as further steps of its script.
    pub(crate) fn run_steering(&mut self) -> Result<(), Halt> {
        while let Some(text) = self.prompt_queue.steering.pop_front() {
            if self.is_cancelled() {
                self.prompt_queue.steering.clear();
                return Ok(());
            }
            let fields: Fields = fields![role: "user", text];
            self.notify_loaf("session.message.appended", fields)?;
            match script::parse(&text) {
                Ok(steps) => self.run_steps(&steps)?,
                Err(sentence) => self.send_text(&sentence.to_string())?,
            }
        }
        Ok(())
    }
}
