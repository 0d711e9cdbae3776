//! What an agent that came back without its memory is told of the chat that it goes on with: made
//! mechanically of what was said, before the next message.
//!
//! Must not know how a session is loaded.

use std::sync::Arc;

use super::state::{Phase, SessionState};
use super::{ChatArgs, SessionMsg};
use marshal_config::AcpSettings;
use marshal_journal::{ChatMessage, Speaker};
use marshal_model::limits::{CHAT_TRANSCRIPT_BYTES, CHAT_TRANSCRIPT_GOAL_BYTES};
use marshal_model::{Event, UntrustedText};

const BEGINS: &str = "[System: You do not remember this conversation. This is a transcript of it, \
    without the output of tools. The goal was:]";
const NEWEST: &str = "[System: These are the newest messages of it:]";
const ENDS: &str = "[System: The transcript ends here. The next message follows.]";

/// What the agent must be told again.
#[derive(Debug, Default)]
pub(super) struct TranscriptRecall {
    is_lost: bool,
    /// It is being read.
    reading: bool,
    /// A child that is ready waits for it.
    awaited: bool,
    transcript: Option<String>,
}

impl TranscriptRecall {
    /// The next child remembers nothing.
    pub(super) fn mark_lost(&mut self) {
        *self = Self {
            is_lost: true,
            ..Self::default()
        };
    }

    /// A child has had the prompt, and the transcript before it.
    pub(super) fn reset(&mut self) {
        *self = Self::default();
    }

    /// The child that waited is gone.
    pub(super) const fn child_ended(&mut self) {
        self.awaited = false;
    }

    pub(super) const fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// The prompt with what must stand before it.
    pub(super) fn prepend_to(&self, prompt: &UntrustedText) -> UntrustedText {
        match &self.transcript {
            Some(transcript) => UntrustedText::new(format!("{transcript}\n\n{}", prompt.raw())),
            None => prompt.clone(),
        }
    }
}

impl SessionState {
    /// What it is as a chat, if it is one.
    pub(super) fn chat(&self) -> Option<&ChatArgs> {
        self.conversation.as_ref()?.chat.as_ref()
    }

    /// What an agent is set to whose command does not say which model to take.
    pub(super) fn with_chat_model(&self, acp: Arc<AcpSettings>) -> Arc<AcpSettings> {
        let model = self.chat().and_then(|chat| chat.model.clone());
        if model.is_none() || self.pool.config.names_model() {
            return acp;
        }
        Arc::new(AcpSettings {
            model,
            ..AcpSettings::clone(&acp)
        })
    }

    /// A child that was started with the id of a session has gone on with it: its dialect has no
    /// words for that.
    pub(super) fn announce_resumed(&mut self) {
        let by_argument = self.pool.config.resumes_by_argument();
        if self.chat().is_some() && self.loading && by_argument {
            self.outbox.push_event(Event::SessionResumed {
                how: "resume_args",
                replayed: 0,
            });
        }
    }

    /// Whether the prompt must wait for what is to stand before it.
    pub(super) fn wait_for_transcript(&mut self) -> bool {
        if !self.transcript_recall.is_lost || self.transcript_recall.transcript.is_some() {
            return false;
        }
        self.phase = Phase::Opening;
        self.transcript_recall.awaited = true;
        if std::mem::replace(&mut self.transcript_recall.reading, true) {
            return true;
        }
        let (journal, ambient) = (self.shared.journal.clone(), self.shared.ambient.clone());
        let (session, prompt) = (self.work.session.clone(), self.work.prompt.clone());
        let to = self.myself.clone();
        tokio::spawn(async move {
            let read = move || {
                let reader = journal.reader().map_err(|error| error.to_string())?;
                let said = reader.last_messages(&session, CHAT_TRANSCRIPT_BYTES);
                let said = said.map_err(|error| error.to_string())?;
                let goal = reader.first_prompt(&session);
                Ok((goal.map_err(|error| error.to_string())?, said))
            };
            let said = ambient.run_blocking(read).await;
            let said = said.unwrap_or_else(|_| Err("the reading was interrupted".to_owned()));
            let text = said.map(|(goal, mut said)| {
                // One that was taken in, and not written, is the message that follows.
                let is_next = |last: &ChatMessage| {
                    last.by == Speaker::User && prompt.raw().ends_with(last.text.raw())
                };
                while said.last().is_some_and(is_next) {
                    said.pop();
                }
                transcript(goal.as_ref(), &said)
            });
            let _ = to.send_message(SessionMsg::TranscriptRead(text));
        });
        true
    }

    /// What was said is known: the prompt goes on its way. Without it, it does not: an agent that
    /// answers as if nothing had been said would do harm.
    pub(super) fn transcript_read(&mut self, text: Result<String, String>) {
        self.transcript_recall.reading = false;
        let why = match text {
            Ok(text) => {
                self.transcript_recall.transcript = Some(text);
                None
            }
            Err(why) => Some(format!("what was said before cannot be read: {why}")),
        };
        if !std::mem::take(&mut self.transcript_recall.awaited) || self.phase != Phase::Opening {
            return;
        }
        if !self.has_task || self.ending.is_some() {
            return;
        }
        match why {
            None => self.accept_prompt(),
            Some(why) => {
                self.failure = Some(why);
                self.stop(false);
            }
        }
    }
}

fn transcript(goal: Option<&UntrustedText>, said: &[ChatMessage]) -> String {
    let goal = goal.map_or("", |goal| beginning(goal.raw(), CHAT_TRANSCRIPT_GOAL_BYTES));
    let frame = BEGINS.len() + NEWEST.len() + ENDS.len() + 8;
    let mut left = CHAT_TRANSCRIPT_BYTES.saturating_sub(goal.len() + frame);
    let mut kept = Vec::new();
    for saying in said.iter().rev() {
        let who = match saying.by {
            Speaker::User => "User: ",
            Speaker::Agent => "Agent: ",
        };
        let room = left.saturating_sub(who.len() + 2);
        if room == 0 {
            break;
        }
        // Of the oldest one that fits only in part, its end.
        let text = end(saying.text.raw().trim(), room);
        left = left.saturating_sub(who.len() + 2 + text.len());
        kept.push(format!("{who}{text}"));
    }
    kept.reverse();
    let said = kept.join("\n\n");
    format!("{BEGINS}\n{goal}\n\n{NEWEST}\n{said}\n\n{ENDS}")
}

/// At most so many bytes from the beginning.
fn beginning(text: &str, most: usize) -> &str {
    let mut at = most.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    &text[..at]
}

/// At most so many bytes from the end.
fn end(text: &str, most: usize) -> &str {
    let mut at = text.len().saturating_sub(most);
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
