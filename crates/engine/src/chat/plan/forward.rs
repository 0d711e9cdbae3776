//! Forwards the events of members to the stream of their chat, each exactly once: the last
//! forwarded seq is stored in the same commit.
//!
//! Owns which events are forwarded, and that a step which an agent reports as done counts. Must not
//! know who reads the stream.

use super::coordinator::{Coordinator, StepError};
use super::execution::event;
use super::file::NoPlan;
use super::items::{Items, status};
use marshal_journal::{ChatWrite, PlanItem, PlanWrite, StoredChat, Write};
use marshal_model::limits;
use marshal_model::{ChatPhase, Event, ItemState, PROMPT_NOT_WRITTEN, StepStatus, WorkEvent};

impl Coordinator {
    /// Forwards the new events of a member.
    pub(super) async fn forward(&self, member: &StoredChat) -> Result<(), StepError> {
        let mut after = member.forwarded;
        loop {
            let id = member.session.clone();
            let read = self
                .chats
                .readers
                .read(move |reader| reader.member_events(&id, after, limits::PLAN_FORWARDED));
            let found = read.await?;
            let Some(last) = found.last().map(|event| event.id.seq) else {
                return Ok(());
            };
            let (mut works, mut writes) = (Vec::new(), Vec::new());
            for stored in &found {
                // Events of a newer version are skipped.
                let Ok(stamped) = stored.decode() else {
                    continue;
                };
                let seq = stored.id.seq;
                let chat = member.session.clone();
                match stamped.event {
                    Event::FileUpdated { .. } | Event::PermissionRequested { .. } => {
                        works.push(WorkEvent::Forwarded { chat, seq });
                    }
                    Event::PlanStep {
                        step,
                        status: StepStatus::Done,
                    } => {
                        if let Some((work, row)) = self.complete_step(member, step.raw()).await? {
                            works.push(work);
                            writes.push(row);
                        }
                    }
                    Event::TurnEnded {
                        outcome, detail, ..
                    } if detail.as_deref() != Some(PROMPT_NOT_WRITTEN) => {
                        works.push(WorkEvent::Member {
                            chat,
                            role: member.role.clone(),
                            outcome,
                        });
                    }
                    _ => {}
                }
            }
            writes.push(Write::Chat(ChatWrite::Plan(PlanWrite::Forwarded {
                chat: member.session.clone(),
                seq: last,
            })));
            self.append_events(works, writes).await?;
            after = last;
        }
    }

    /// Ticks an item that its agent reported as done by a tool, while the turn continues.
    async fn complete_step(
        &self,
        member: &StoredChat,
        step: &str,
    ) -> Result<Option<(WorkEvent, Write)>, StepError> {
        let chat = self.chats.chat(&self.id).await?;
        if chat.phase != Some(ChatPhase::Working) {
            return Ok(None);
        }
        let id = self.id.clone();
        let read = self
            .chats
            .readers
            .read(move |reader| reader.plan_items(&id));
        let mut items = Items::new(read.await?);
        let is_its = |row: &&PlanItem| {
            row.state == ItemState::Claimed
                && row.claimed_by.as_ref() == Some(&member.session)
                && (row.content.raw().trim() == step.trim()
                    || step.trim() == row.ordinal.to_string())
        };
        let Some(item) = items.all.iter().find(is_its).map(|row| row.item) else {
            return Ok(None);
        };
        match self.file(&chat).tick(&[item]).await {
            Ok(plan) if plan.list.item(item).is_some() => {}
            // The end of its turn decides about the item.
            Ok(_) | Err(NoPlan::Missing(_)) => return Ok(None),
            Err(NoPlan::Unreadable(why)) => return Err(StepError::Retry(why)),
        }
        items.set(item, ItemState::Done, self.chats.fleet.now_ms());
        let Some(row) = items.get(item) else {
            return Ok(None);
        };
        let item_event = event(&items, row, std::slice::from_ref(member), status(row.state));
        let write = Write::Chat(ChatWrite::Plan(PlanWrite::Item(row.clone())));
        Ok(Some((item_event, write)))
    }
}
