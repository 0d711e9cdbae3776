//! The transcript for an agent that resumed a chat without its memory. It is made mechanically of
//! the earlier messages, and precedes the next one.
//!
//! Must not know how a session is loaded.

use std::sync::Arc;

use crate::messages::SessionMsg;
use crate::session::ChatArgs;
use crate::session::state::{Phase, SessionState};
use marshal_config::AcpSettings;
use marshal_journal::{ChatMessage, Speaker};
use marshal_model::limits::{CHAT_TRANSCRIPT_BYTES, CHAT_TRANSCRIPT_GOAL_BYTES};
use marshal_model::{Event, UntrustedText};

const BEGINS: &str = "[System: You do not remember this conversation. This is a transcript of it, \
    without the output of tools. The goal was:]";
const NEWEST: &str = "[System: These are the newest messages of it:]";
const ENDS: &str = "[System: The transcript ends here. The next message follows.]";

/// The transcript that the agent needs.
#[derive(Debug, Default)]
pub(crate) struct TranscriptRecall {
    is_lost: bool,
    /// It is being read.
    reading: bool,
    /// A ready child waits for it.
    awaited: bool,
    transcript: Option<String>,
}

impl TranscriptRecall {
    /// Records that the next child remembers nothing.
    pub(crate) fn mark_lost(&mut self) {
        *self = Self {
            is_lost: true,
            ..Self::default()
        };
    }

    /// Clears the state: a child got the prompt with the transcript.
    pub(crate) fn reset(&mut self) {
        *self = Self::default();
    }

    /// The child that waited has ended.
    pub(crate) const fn child_ended(&mut self) {
        self.awaited = false;
    }

    pub(crate) const fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// The prompt, with the transcript before it.
    pub(crate) fn prepend_to(&self, prompt: &UntrustedText) -> UntrustedText {
        match &self.transcript {
            Some(transcript) => UntrustedText::new(format!("{transcript}\n\n{}", prompt.raw())),
            None => prompt.clone(),
        }
    }
}

impl SessionState {
    /// The chat settings, if the session is a chat.
    pub(crate) fn chat(&self) -> Option<&ChatArgs> {
        self.conversation.as_ref()?.chat.as_ref()
    }

    /// The settings of an agent whose command does not name a model.
    pub(crate) fn with_chat_model(&self, acp: Arc<AcpSettings>) -> Arc<AcpSettings> {
        let model = self.chat().and_then(|chat| chat.model.clone());
        if model.is_none() || self.pool.config.names_model() {
            return acp;
        }
        Arc::new(AcpSettings {
            model,
            ..AcpSettings::clone(&acp)
        })
    }

    /// Announces that a child which was started with a session id resumed it: its dialect does not
    /// report that.
    pub(crate) fn announce_resumed(&mut self) {
        let by_argument = self.pool.config.resumes_by_argument();
        if self.chat().is_some() && self.agent.resumption.loading && by_argument {
            self.outbox.push_event(Event::SessionResumed {
                how: "resume_args".into(),
                replayed: 0,
            });
        }
    }

    /// Whether the prompt must wait for the transcript.
    pub(crate) fn wait_for_transcript(&mut self) -> bool {
        if !self.agent.resumption.transcript.is_lost
            || self.agent.resumption.transcript.transcript.is_some()
        {
            return false;
        }
        self.phase = Phase::Opening;
        self.agent.resumption.transcript.awaited = true;
        if std::mem::replace(&mut self.agent.resumption.transcript.reading, true) {
            return true;
        }
        let (journal, ambient) = (self.shared.journal.clone(), self.shared.ambient.clone());
        let (session, prompt) = (self.work.session.clone(), self.work.prompt.clone());
        let to = self.myself.clone();
        tokio::spawn(async move {
            let read = move || {
                let reader = journal.reader().map_err(|error| error.to_string())?;
                let messages = reader
                    .last_messages(&session, CHAT_TRANSCRIPT_BYTES)
                    .map_err(|error| error.to_string())?;
                let goal = reader.first_prompt(&session);
                Ok((goal.map_err(|error| error.to_string())?, messages))
            };
            let messages = ambient.run_blocking(read).await;
            let messages =
                messages.unwrap_or_else(|_| Err("the reading was interrupted".to_owned()));
            let text = messages.map(|(goal, mut messages)| {
                // A message that was accepted but not written is the one that follows.
                let is_next = |last: &ChatMessage| {
                    last.by == Speaker::User && prompt.raw().ends_with(last.text.raw())
                };
                while messages.last().is_some_and(is_next) {
                    messages.pop();
                }
                transcript(goal.as_ref(), &messages)
            });
            let _ = to.send_message(SessionMsg::TranscriptRead(text));
        });
        true
    }

    /// Handles the transcript: sends the prompt. Without the transcript the prompt fails, because
    /// an agent that answers as if nothing had been said would do harm.
    pub(crate) fn transcript_read(&mut self, text: Result<String, String>) {
        self.agent.resumption.transcript.reading = false;
        let why = match text {
            Ok(text) => {
                self.agent.resumption.transcript.transcript = Some(text);
                None
            }
            Err(why) => Some(format!(
                "the earlier messages of the chat cannot be read: {why}"
            )),
        };
        if !std::mem::take(&mut self.agent.resumption.transcript.awaited)
            || !matches!(self.phase, Phase::Opening)
        {
            return;
        }
        let Some(task) = &mut self.task else { return };
        if task.ending.is_some() {
            return self.stop(false);
        }
        match why {
            None => self.accept_prompt(),
            Some(why) => {
                task.failure = Some(why);
                self.stop(false);
            }
        }
    }
}

fn transcript(goal: Option<&UntrustedText>, messages: &[ChatMessage]) -> String {
    let goal = goal.map_or("", |goal| beginning(goal.raw(), CHAT_TRANSCRIPT_GOAL_BYTES));
    let frame = BEGINS.len() + NEWEST.len() + ENDS.len() + 8;
    let mut left = CHAT_TRANSCRIPT_BYTES.saturating_sub(goal.len() + frame);
    let mut lines = Vec::new();
    for message in messages.iter().rev() {
        let who = match message.by {
            Speaker::User => "User: ",
            Speaker::Agent => "Agent: ",
        };
        let remaining = left.saturating_sub(who.len() + 2);
        if remaining == 0 {
            break;
        }
        // Of the oldest message that fits only in part, its end.
        let text = end(message.text.raw().trim(), remaining);
        left = left.saturating_sub(who.len() + 2 + text.len());
        lines.push(format!("{who}{text}"));
    }
    lines.reverse();
    let body = lines.join("\n\n");
    format!("{BEGINS}\n{goal}\n\n{NEWEST}\n{body}\n\n{ENDS}")
}

/// At most this many bytes from the beginning.
fn beginning(text: &str, limit: usize) -> &str {
    let mut at = limit.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    &text[..at]
}

/// At most this many bytes from the end.
fn end(text: &str, limit: usize) -> &str {
    let mut at = text.len().saturating_sub(limit);
    while !text.is_char_boundary(at) {
        at += 1;
    }
    &text[at..]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said_text(by: Speaker, text: &str) -> ChatMessage {
        ChatMessage {
            by,
            text: UntrustedText::from(text),
        }
    }

    #[test]
    fn the_goal_and_the_newest_messages_stand_in_it_in_their_order() {
        let newest = [
            said_text(Speaker::Agent, "two"),
            said_text(Speaker::User, "three"),
            said_text(Speaker::Agent, "four"),
        ];
        let text = transcript(Some(&UntrustedText::from("one")), &newest);
        let expected = format!(
            "{BEGINS}\none\n\n{NEWEST}\nAgent: two\n\nUser: three\n\nAgent: four\n\n{ENDS}"
        );
        assert_eq!(text, expected);
    }

    #[test]
    fn it_is_bounded_and_what_is_left_out_is_the_oldest() {
        let long = "\u{fc}".repeat(CHAT_TRANSCRIPT_BYTES);
        let newest = [
            said_text(Speaker::Agent, &long),
            said_text(Speaker::User, "the last"),
        ];
        let text = transcript(Some(&UntrustedText::from(long.as_str())), &newest);
        assert!(text.len() <= CHAT_TRANSCRIPT_BYTES, "{}", text.len());
        assert!(text.len() > CHAT_TRANSCRIPT_BYTES - 64, "{}", text.len());
        assert!(text.contains("User: the last"));
    }
}
