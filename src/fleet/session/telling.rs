//! What a session has people told of, and what its stream tells of the supervisor's own.

use tokio::sync::oneshot;

use super::approvals::Member;
use super::outbox::After;
use super::state::SessionState;
use crate::fleet::told::Told;
use crate::journal::Write;
use crate::limits::HOOK_ABOUT_CHARS;
use crate::model::{AskId, Event, Foreign};

impl SessionState {
    /// An ask waits for a person, until that time in microseconds since the Unix epoch.
    pub(super) fn tell_ask(&self, id: &AskId, member: &Member, until_us: i64) {
        let facts = member.decided.facts.as_ref();
        let parts = facts.map_or(&[][..], |facts| &facts.parts);
        let words = parts.iter().map(|part| {
            let all = part.env.iter().chain(&part.words).chain(&part.redirects);
            let words: Vec<&str> = all.map(Foreign::raw).collect();
            words.join(" ")
        });
        let mut about = words.collect::<Vec<_>>().join(" ; ");
        if about.is_empty() {
            about = member.ask.input.get().to_owned();
        }
        // Nobody is shown more, and it is kept for a minute.
        let about: String = about.chars().take(HOOK_ABOUT_CHARS).collect();
        self.shared.hooks.tell(&Told::Ask {
            slot: self.work.slot.clone(),
            session: self.work.session.clone(),
            ask: id.clone(),
            tool: member.ask.tool.clone(),
            about: Foreign::new(about),
            rules: member.decided.verdict.rules.clone(),
            deadline_us: until_us,
            in_editor: self.talk.is_some(),
        });
    }
}

impl SessionState {
    /// Puts an event of the supervisor's own into the stream, with what goes with it: both are
    /// durable or neither is.
    pub(super) fn note(&mut self, event: Event, rows: Vec<Write>, done: oneshot::Sender<()>) {
        self.outbox.event(event);
        for row in rows {
            self.outbox.write(row);
        }
        self.outbox.after(After::Noted(done));
    }
}
