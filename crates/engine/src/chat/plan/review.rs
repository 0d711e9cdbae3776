//! The approval of a plan: first the policy decides; if its decision is `ask`, a person does.
//!
//! Owns that exactly the reviewed text is approved: its digest is recorded. Must not know how a
//! person connects.

use serde_json::json;

use super::coordinator::{AfterStep, Coordinator, StepError};
use super::file::NoPlan;
use super::{no_pending_plan, prompts};
use crate::chat::ChatError;
use marshal_journal::{ChatWrite, PlanReview, PlanWrite, StoredChat, Write};
use marshal_model::limits;
use marshal_model::untrusted::escape_for_display;
use marshal_model::{
    ChatPhase, ChatProgress, Decision, ReviewState, TurnOutcome, UntrustedText, WorkEvent,
};

/// The tool name of a plan's approval in policy rules, as if it were a tool of the supervisor's
/// server.
pub(super) const APPROVE_PLAN: &str = "approve_plan";

/// A person's decision.
pub(super) enum Verdict {
    Approved { sha256: Option<String> },
    Rejected { why: String },
}

impl Coordinator {
    /// Takes a step of the approval phase.
    pub(super) async fn request_approval(
        &mut self,
        chat: &StoredChat,
    ) -> Result<AfterStep, StepError> {
        let file = self.file(chat);
        let plan = match file.read().await {
            Ok(plan) => plan,
            // The file may be restored, or be complete in a moment.
            Err(NoPlan::Missing(_)) => {
                self.missing_reads += 1;
                let is_lasting = self.missing_reads >= limits::PLAN_MISSING_RETRIES;
                return Ok(if is_lasting {
                    AfterStep::Wait
                } else {
                    AfterStep::Later
                });
            }
            Err(NoPlan::Unreadable(why)) => return Err(StepError::Retry(why)),
        };
        self.missing_reads = 0;
        let id = self.id.clone();
        let read = self
            .chats
            .readers
            .read(move |reader| reader.plan_reviews(&id, 1));
        let last = read.await?.pop();
        if let Some(last) = &last
            && last.state == ReviewState::Waiting
        {
            if last.sha256 == plan.sha256 {
                return Ok(AfterStep::Wait);
            }
            // Limits the rate of review events if the file changes all the time.
            let every = i64::try_from(limits::PLAN_REVIEW_INTERVAL.as_millis()).unwrap_or(i64::MAX);
            if self.chats.fleet.now_ms().saturating_sub(last.at_ms) < every {
                return Ok(AfterStep::Later);
            }
            // The text differs from the one under review: create a new review. The policy's
            // decision was `ask`.
            let waiting = self.pending_review(chat, &plan.sha256, "the plan was changed");
            self.append_events(vec![waiting.1], vec![waiting.0]).await?;
            // Check once more: it may have changed meanwhile.
            return Ok(AfterStep::Later);
        }
        let arguments = json!({
            "plan": file.path,
            "sha256": plan.sha256,
            "items": plan.list.items().len(),
            "mode": chat.mode.as_str(),
            "workspace": chat.workspace.as_str(),
        });
        let judged = self
            .chats
            .fleet
            .decide_own_action(&chat.pool, APPROVE_PLAN, arguments);
        let Some((policy, judgement)) = judged else {
            let why = format!("the configuration no longer has the pool {}", chat.pool);
            return Err(StepError::Retry(why));
        };
        let by = format!("policy {policy}");
        match judgement.decision {
            Decision::Allow => {
                let review = self.review_of(
                    ReviewState::Approved,
                    &plan.sha256,
                    (by, judgement.rules),
                    "",
                );
                self.approve(chat, review).await?;
                Ok(AfterStep::Now)
            }
            Decision::Ask => {
                let (row, event) = self.pending_review(chat, &plan.sha256, &judgement.reason);
                self.append_events(vec![event], vec![row]).await?;
                Ok(AfterStep::Later)
            }
            Decision::Deny => {
                let why = judgement.reason.clone();
                let review = self.review_of(
                    ReviewState::Denied,
                    &plan.sha256,
                    (by, judgement.rules),
                    &why,
                );
                let event = review_event(chat, &review);
                self.append_events(vec![event], vec![row(review)]).await?;
                let message = format!("the policy denies the plan: {why}");
                let outcome = TurnOutcome::Failed;
                self.end_work(chat, outcome, "denied", message, Vec::new())
                    .await
            }
        }
    }

    fn review_of(
        &self,
        state: ReviewState,
        sha256: &str,
        (by, rules): (String, Vec<String>),
        why: &str,
    ) -> PlanReview {
        PlanReview {
            chat: self.id.clone(),
            state,
            sha256: sha256.to_owned(),
            by,
            rules,
            why: UntrustedText::from(why),
            at_ms: self.chats.fleet.now_ms(),
        }
    }

    fn pending_review(&self, chat: &StoredChat, sha256: &str, why: &str) -> (Write, WorkEvent) {
        let by = ("policy".to_owned(), Vec::new());
        let review = self.review_of(ReviewState::Waiting, sha256, by, why);
        let event = review_event(chat, &review);
        (row(review), event)
    }

    async fn approve(&self, chat: &StoredChat, review: PlanReview) -> Result<(), StepError> {
        let progress = ChatProgress {
            approved_digest: Some(review.sha256.clone()),
            started_ms: Some(review.at_ms),
            rounds: 0,
            ..chat.progress.clone()
        };
        let event = review_event(chat, &review);
        let working = self.progress(ChatPhase::Working, progress);
        self.append_events(vec![event], vec![row(review), working])
            .await
    }

    /// Records a person's decision.
    pub(super) async fn record_review(
        &self,
        by: String,
        verdict: Verdict,
    ) -> Result<(), ChatError> {
        let to_chat_error = |stuck: StepError| match stuck {
            StepError::Retry(why) => ChatError::Unavailable(why),
            StepError::Stopping => ChatError::Unavailable("the supervisor is stopping".to_owned()),
        };
        let chat = self.chats.chat(&self.id).await?;
        let id = self.id.clone();
        let read = self
            .chats
            .readers
            .read(move |reader| reader.plan_reviews(&id, 1));
        let last = read.await?.pop();
        let last = last.filter(|last| last.state == ReviewState::Waiting);
        let (Some(waiting), Some(ChatPhase::Approval)) = (last, chat.phase) else {
            return Err(no_pending_plan());
        };
        match verdict {
            Verdict::Approved { sha256 } => {
                let now = match self.file(&chat).read().await {
                    Ok(plan) => plan.sha256,
                    Err(NoPlan::Missing(why) | NoPlan::Unreadable(why)) => {
                        return Err(ChatError::Conflict(format!("there is no plan now: {why}")));
                    }
                };
                let meant = sha256.unwrap_or_else(|| waiting.sha256.clone());
                if meant != now {
                    return Err(ChatError::Conflict(format!(
                        "the plan has changed (sha256 {now}, not {}): review it again",
                        escape_for_display(&meant, 64)
                    )));
                }
                let review = self.review_of(ReviewState::Approved, &now, (by, Vec::new()), "");
                self.approve(&chat, review).await.map_err(to_chat_error)
            }
            Verdict::Rejected { why } => {
                let by = (by, Vec::new());
                let review = self.review_of(ReviewState::Rejected, &waiting.sha256, by, &why);
                let event = review_event(&chat, &review);
                let members = self.members().await.map_err(to_chat_error)?;
                let planner = members.iter().find(|item| item.settings.planner.is_some());
                let Some(planner) = planner else {
                    self.append_events(vec![event], vec![row(review)])
                        .await
                        .map_err(to_chat_error)?;
                    let message = format!("the plan was not approved: {why}");
                    let end =
                        self.end_work(&chat, TurnOutcome::Failed, "rejected", message, Vec::new());
                    return end.await.map(|_| ()).map_err(to_chat_error);
                };
                let progress = ChatProgress {
                    reminders: 0,
                    ..chat.progress.clone()
                };
                let planning = self.progress(ChatPhase::Planning, progress);
                let plan = chat.settings.plan_path.clone().unwrap_or_default();
                let content = prompts::rejected_prompt(&plan, &why);
                let rows = vec![row(review), planning];
                self.send(&planner.session, content, vec![event], |_| rows)
                    .await
                    .map_err(to_chat_error)
            }
        }
    }
}

fn row(review: PlanReview) -> Write {
    Write::Chat(ChatWrite::Plan(PlanWrite::Review(review)))
}

fn review_event(chat: &StoredChat, review: &PlanReview) -> WorkEvent {
    WorkEvent::Review {
        state: review.state,
        plan: chat.settings.plan_path.clone().unwrap_or_default(),
        sha256: review.sha256.clone(),
        by: Some(review.by.clone()),
        why: Some(review.why.clone()).filter(|why| !why.raw().is_empty()),
    }
}
