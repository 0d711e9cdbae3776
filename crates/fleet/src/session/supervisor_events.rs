//! Notifications about pending approvals, and the supervisor's own events in a session's stream.

use tokio::sync::oneshot;

use super::outbox::OnDurable;
use super::permissions::PendingRequest;
use super::state::SessionState;
use crate::fleet_event::FleetEvent;
use crate::notification::Notification;
use marshal_journal::Write;
use marshal_model::limits::HOOK_SUBJECT_CHARS;
use marshal_model::{Event, PermissionRequestId, UntrustedText};

impl SessionState {
    /// Notifies hooks and subscribers of a pending approval. `until_us` is when it expires, in microseconds since
    /// the Unix epoch.
    pub(super) fn notify_approval_pending(
        &self,
        id: &PermissionRequestId,
        member: &PendingRequest,
        until_us: i64,
    ) {
        let facts = member.decided.facts.as_ref();
        let parts = facts.map_or(&[][..], |facts| &facts.parts);
        let words = parts.iter().map(|part| {
            let all = part.env.iter().chain(&part.words).chain(&part.redirects);
            let words: Vec<&str> = all.map(UntrustedText::raw).collect();
            words.join(" ")
        });
        let mut about = words.collect::<Vec<_>>().join(" ; ");
        if about.is_empty() {
            about = member.permission_request.input.get().to_owned();
        }
        // The notification stays in memory for a minute, so its text is bounded.
        let about: String = about.chars().take(HOOK_SUBJECT_CHARS).collect();
        self.shared.notify_subscribers(FleetEvent::ApprovalPending {
            slot: self.work.slot.clone(),
            session: self.work.session.clone(),
            request: id.clone(),
            tool: member.permission_request.tool.clone(),
            about: UntrustedText::new(about.clone()),
            deadline_us: until_us,
        });
        self.shared.hooks.notify(&Notification::ApprovalPending {
            slot: self.work.slot.clone(),
            session: self.work.session.clone(),
            request_id: id.clone(),
            tool: member.permission_request.tool.clone(),
            about: UntrustedText::new(about),
            rules: member.decided.verdict.rules.clone(),
            deadline_us: until_us,
            in_editor: self.conversation.is_some(),
        });
    }
}

impl SessionState {
    /// Appends an event of the supervisor's own to the stream, with further rows: all are durable
    /// or none is.
    pub(super) fn append_event(
        &mut self,
        event: Event,
        rows: Vec<Write>,
        done: oneshot::Sender<()>,
    ) {
        self.outbox.push_event(event);
        for row in rows {
            self.outbox.write(row);
        }
        self.outbox.on_durable(OnDurable::ConfirmAppended(done));
    }
}
