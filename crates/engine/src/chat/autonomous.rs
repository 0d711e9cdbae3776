//! Chats of the mode `autonomous`: after each turn's end the supervisor itself sends the next message,
//! until the goal is met or a limit is reached.
//!
//! Owns that decision. It depends only on durable data, so every actor makes the same decision,
//! also after a restart. Must not know clients, or how a turn runs.
//!
//! Each turn has a check that runs in the agent's sandbox, like a task's; for a plan, the check
//! prints the file. The next turn is accepted under the chat's lock, like a person's message. The
//! end is one commit of the last phase and its event, written while the session is not loaded.
//! Tests: `tests/drills/fleet/rounds.rs`.

use std::path::{Component, Path};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::actor::Actor;
use super::{ChatError, Inner, WorkRequest};
use marshal_config::{Config, WorkspaceMode, can_know_cost};
use marshal_journal::{ChatWrite, LastCheck, PlanWrite, StoredChat, StoredTurn, Write};
use marshal_model::limits;
use marshal_model::{
    Amount, ChatBounds, ChatMode, ChatPhase, ChatProgress, ChatSettings, Event, ExitStatus,
    PoolName, SessionId, TurnOutcome, WorkEvent,
};
use marshal_wire::plan::Checklist;

/// The number of consecutive failed turns that ends a chat.
const FAILURES: u32 = 3;
/// The maximum length of a check in bytes.
const CHECK_BYTES: usize = 4096;
/// The maximum of `limits.seconds`.
const SECONDS: u64 = 30 * 24 * 3600;
/// The reason of an end by a person.
pub(super) const CANCELLED_BY_USER: &str = "user_cancelled";
/// The default continue prompt.
const CONTINUE: &str = "[System: The goal is not met yet. Go on with what is open.]";

fn unprocessable(why: impl Into<String>) -> ChatError {
    ChatError::Unprocessable(why.into())
}

/// Returns the settings to store, with defaults.
pub(super) fn settings(
    config: &Config,
    pool: &PoolName,
    chat: &SessionId,
    of: WorkRequest,
) -> Result<ChatSettings, ChatError> {
    let stray = [
        ("roles", !of.roles.is_empty()),
        ("planner", of.planner.is_some()),
        ("agent_items", of.agent_items.is_some()),
    ];
    if let Some((name, _)) = stray.iter().find(|(_, is)| *is) {
        return Err(unprocessable(format!(
            "\"{name}\" is only for chats with a plan: set \"mode\" to plan_then_execute or parallel_agents"
        )));
    }
    let pool = config.pools.iter().find(|found| found.name == *pool);
    if pool.is_some_and(|pool| pool.workspace.mode == WorkspaceMode::Overlay) {
        return Err(unprocessable(
            "a chat of mode autonomous cannot read an overlay while its agent works in it: give the role a pool with another workspace.mode",
        ));
    }
    let line = |name: &str, text: &str| {
        let fits = !text.trim().is_empty()
            && text.len() <= CHECK_BYTES
            && !text.chars().any(char::is_control);
        fits.then_some(()).ok_or_else(|| {
            unprocessable(format!(
                "\"{name}\" must be one line of 1 to {CHECK_BYTES} bytes"
            ))
        })
    };
    if let Some(check) = &of.check {
        line("check", check)?;
    }
    if let Some(plan) = &of.plan {
        line("plan_id", plan)?;
        let mut parts = Path::new(plan.strip_prefix('/').unwrap_or(plan)).components();
        if !parts.all(|part| matches!(part, Component::Normal(_))) {
            return Err(unprocessable(
                "\"plan_id\" must be a path relative to the workspace, without \"..\"",
            ));
        }
    }
    if let Some(text) = &of.continue_prompt
        && (text.trim().is_empty() || text.len() > limits::TURN_BYTES)
    {
        let most = limits::TURN_BYTES;
        return Err(unprocessable(format!(
            "\"continue_prompt\" must have 1 to {most} bytes"
        )));
    }
    let bounds = of.bounds;
    let turns = bounds.turns.unwrap_or(config.chat.rounds);
    let most = limits::CHAT_ROUNDS;
    if !(1..=most).contains(&turns) {
        return Err(unprocessable(format!(
            "\"limits.turns\" must be from 1 to {most}"
        )));
    }
    if bounds
        .seconds
        .is_some_and(|given| !(1..=SECONDS).contains(&given))
    {
        return Err(unprocessable(format!(
            "\"limits.seconds\" must be from 1 to {SECONDS}"
        )));
    }
    if bounds.tokens == Some(0) || bounds.cost == Some(0) {
        return Err(unprocessable(
            "\"limits.tokens\" and \"limits.cost_usd\" must be above 0",
        ));
    }
    if bounds.cost.is_some() && !pool.is_some_and(|pool| can_know_cost(pool, &config.prices)) {
        return Err(unprocessable(
            "\"limits.cost_usd\": the cost of the role's pool is unknown: add a [price.\"MODEL\"] for each of its models",
        ));
    }
    // Without a check, the agent's plan decides whether the goal is met.
    let own = || format!("chats/{chat}/plan.md");
    let plan = of
        .plan
        .map(|plan| plan.strip_prefix('/').unwrap_or(&plan).to_owned())
        .or_else(|| of.check.is_none().then(own));
    Ok(ChatSettings {
        plan_path: plan,
        check_command: of.check,
        continue_prompt: of.continue_prompt,
        bounds: ChatBounds {
            turns: Some(turns),
            ..bounds
        },
        ..ChatSettings::default()
    })
}

/// Whether the supervisor sends the next message of a chat.
pub(super) fn is_continuing(chat: &StoredChat) -> bool {
    chat.mode == ChatMode::Autonomous
        && chat.phase == Some(ChatPhase::Working)
        && chat.ended_ms.is_none()
}

/// Returns the instructions for the agent, which follow the goal.
pub(super) fn round_instructions(chat: &StoredChat) -> String {
    let mut text = String::new();
    if let Some(plan) = &chat.settings.plan_path {
        text.push_str("\n\n[System: Keep a plan in the file ");
        text.push_str(plan);
        text.push_str(", a Markdown checklist with a line \"- [ ] what is to be done\" for each step, and tick what is done: \"- [x]\".]");
    }
    text.push_str("\n\n[System: You are asked again until ");
    match &chat.settings.check_command {
        Some(check) => {
            text.push_str("this command ends with 0: ");
            text.push_str(check);
        }
        None => text.push_str("every item of the plan is ticked"),
    }
    text.push_str(".]");
    text
}

/// Returns the command that runs in the agent's sandbox after each turn.
pub(super) fn check_command(chat: &StoredChat) -> Vec<String> {
    let words = |words: [&str; 3]| words.map(str::to_owned).to_vec();
    match (&chat.settings.check_command, &chat.settings.plan_path) {
        _ if !is_continuing(chat) => Vec::new(),
        (Some(check), _) => words(["sh", "-c", check]),
        (None, Some(plan)) => words(["cat", "--", plan]),
        (None, None) => Vec::new(),
    }
}

/// All data that the decision depends on.
#[derive(Debug, Clone)]
struct Facts {
    chat: StoredChat,
    /// The last ended turns, newest first.
    last: Vec<StoredTurn>,
    /// The check's result after the last prompt.
    check: Option<LastCheck>,
    spent: Amount,
}

/// The decision.
#[derive(Debug, Clone, PartialEq, Eq)]
enum NextRound {
    /// One more turn.
    Continue,
    /// The chat ends: outcome, reason for programs, message for people.
    End(TurnOutcome, &'static str, String),
}

fn is_met(facts: &Facts) -> bool {
    let completed = facts
        .last
        .first()
        .is_some_and(|turn| turn.outcome == Some(TurnOutcome::Completed));
    let Some(check) = facts.check.as_ref().filter(|_| completed) else {
        return false;
    };
    if check.status != Some(ExitStatus::Code(0)) {
        return false;
    }
    if facts.chat.settings.check_command.is_some() {
        return true;
    }
    // A cut output may have open items in the missing part.
    let text = check.output.raw();
    let list = Checklist::parse(text)
        .ok()
        .filter(|_| text.len() < limits::CHECK_OUTPUT_BYTES);
    list.is_some_and(|list| {
        let progress = list.progress();
        progress.total > 0 && progress.done == progress.total
    })
}

fn decide(facts: &Facts, now_ms: i64) -> NextRound {
    let chat = &facts.chat;
    let bounds = &chat.settings.bounds;
    if chat.progress.outcome.is_some() {
        return NextRound::End(
            TurnOutcome::Cancelled,
            CANCELLED_BY_USER,
            "a person stopped it".to_owned(),
        );
    }
    if is_met(facts) {
        let text = format!("the goal is met after {} turns", chat.turns);
        return NextRound::End(TurnOutcome::Completed, "goal_met", text);
    }
    let limited = |word, text: String| NextRound::End(TurnOutcome::Limited, word, text);
    if bounds
        .turns
        .is_some_and(|most| chat.turns >= u64::from(most))
    {
        return limited(
            "turns",
            format!("the goal is not met after {} turns", chat.turns),
        );
    }
    if let Some(most) = bounds.seconds
        && now_ms >= deadline_ms(chat.created_ms, most)
    {
        return limited("seconds", format!("the goal is not met after {most} s"));
    }
    if bounds.tokens.is_some_and(|most| facts.spent.tokens >= most) {
        let tokens = facts.spent.tokens;
        return limited(
            "tokens",
            format!("the goal is not met after {tokens} tokens"),
        );
    }
    if bounds
        .cost
        .is_some_and(|most| facts.spent.nanodollars >= most)
    {
        return limited(
            "cost_usd",
            "the goal is not met, and the cost limit is reached".to_owned(),
        );
    }
    let failed = |turn: &StoredTurn| {
        matches!(
            turn.outcome,
            Some(TurnOutcome::Failed | TurnOutcome::TimedOut)
        )
    };
    if facts.last.len() >= FAILURES as usize && facts.last.iter().all(failed) {
        let text = format!("{FAILURES} turns in a row failed");
        return NextRound::End(TurnOutcome::Failed, "failures", text);
    }
    NextRound::Continue
}

fn deadline_ms(created_ms: i64, seconds: u64) -> i64 {
    let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
    created_ms.saturating_add(seconds.saturating_mul(1000))
}

/// What an actor does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RoundResult {
    /// A turn is waiting.
    Work,
    /// The chat does not continue by itself.
    Done,
    /// The decision cannot be made or stored now.
    Later,
}

impl Inner {
    async fn facts(&self, id: &SessionId) -> Result<Facts, ChatError> {
        let of = id.clone();
        let read = self.readers.read(move |reader| {
            let Some(chat) = reader.chat(&of)? else {
                return Ok(None);
            };
            let after = chat.turns.saturating_sub(u64::from(FAILURES));
            let mut last = reader.turns(&of, after, FAILURES)?;
            last.reverse();
            let check = reader.last_check(&of)?;
            let spent = reader.session_spend(&of)?;
            Ok(Some(Facts {
                chat,
                last,
                check,
                spent,
            }))
        });
        let found = read.await?;
        found.ok_or_else(|| ChatError::NotFound("the chat no longer exists".to_owned()))
    }
}

impl Actor {
    /// No turn is waiting: accepts one more turn, or ends the chat's work.
    pub(super) async fn decide_round(&mut self) -> RoundResult {
        let chats = std::sync::Arc::clone(&self.chats);
        let id = self.chat.session.clone();
        loop {
            // The lock keeps other messages out meanwhile.
            let place = chats.lock_chat(&id).await;
            let facts = match chats.facts(&id).await {
                Ok(facts) => facts,
                Err(error) => {
                    tracing::warn!(chat = %id, why = error.to_string(), "a chat's progress cannot be read");
                    return RoundResult::Later;
                }
            };
            self.chat = facts.chat.clone();
            if !is_continuing(&facts.chat) {
                return RoundResult::Done;
            }
            if facts.chat.waiting > 0 {
                return RoundResult::Work;
            }
            let outcome = match decide(&facts, chats.fleet.now_ms()) {
                NextRound::Continue => self
                    .send_continue(&facts.chat)
                    .await
                    .map(|()| RoundResult::Work),
                NextRound::End(..) if self.conversation.is_some() => {
                    // A loaded session writes its events itself, so it is unloaded first.
                    drop(place);
                    self.unload().await;
                    continue;
                }
                NextRound::End(outcome, reason, message) => {
                    let over = self.end_rounds(&facts, outcome, reason, message).await;
                    over.map(|()| RoundResult::Done)
                }
            };
            return outcome.unwrap_or_else(|error| {
                tracing::warn!(chat = %id, why = error.to_string(), "a chat cannot continue yet");
                RoundResult::Later
            });
        }
    }

    async fn send_continue(&mut self, chat: &StoredChat) -> Result<(), ChatError> {
        let text = chat
            .settings
            .continue_prompt
            .clone()
            .unwrap_or_else(|| CONTINUE.to_owned());
        let turn = self.chats.turn(&chat.session, chat.turns + 1, text, None)?;
        let accept = Write::Chat(ChatWrite::Accept(turn));
        Ok(self.chats.fleet.commit_rows(vec![accept]).await?)
    }

    async fn end_rounds(
        &mut self,
        facts: &Facts,
        outcome: TurnOutcome,
        reason: &'static str,
        message: String,
    ) -> Result<(), ChatError> {
        let chat = &facts.chat;
        let progress = ChatProgress {
            rounds: u32::try_from(chat.turns).unwrap_or(u32::MAX),
            tokens: facts.spent.tokens,
            cost: facts.spent.nanodollars,
            started_ms: Some(chat.created_ms),
            outcome: Some(outcome),
            reason: Some(reason.to_owned()),
            ..chat.progress.clone()
        };
        let event = Event::Work(WorkEvent::Ended {
            outcome,
            reason: reason.to_owned(),
            message,
        });
        let row = Write::Chat(ChatWrite::Plan(PlanWrite::Progress {
            chat: chat.session.clone(),
            phase: ChatPhase::Ended,
            progress,
        }));
        let stored = self
            .chats
            .fleet
            .append_event(&chat.session, event, vec![row]);
        stored.await?;
        self.chat.phase = Some(ChatPhase::Ended);
        Ok(())
    }

    /// Returns the time limit of the chat; `None` without one.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let seconds = self
            .chat
            .settings
            .bounds
            .seconds
            .filter(|_| is_continuing(&self.chat))?;
        let left = deadline_ms(self.chat.created_ms, seconds) - self.chats.fleet.now_ms();
        Some(Instant::now() + Duration::from_millis(u64::try_from(left).unwrap_or(0)))
    }
}

/// Returns the row to store when a person stops an autonomous chat; `None` if there is nothing to
/// stop.
pub(super) fn stop_write(chat: &StoredChat) -> Option<Write> {
    if !is_continuing(chat) || chat.progress.outcome.is_some() {
        return None;
    }
    Some(Write::Chat(ChatWrite::Plan(PlanWrite::Progress {
        chat: chat.session.clone(),
        phase: ChatPhase::Working,
        progress: ChatProgress {
            outcome: Some(TurnOutcome::Cancelled),
            reason: Some(CANCELLED_BY_USER.to_owned()),
            ..chat.progress.clone()
        },
    })))
}

/// Returns the event and the row of the end of a chat that a person closed and that has no actor.
pub(super) fn user_cancelled_end(chat: &StoredChat) -> (Event, Write) {
    let event = Event::Work(WorkEvent::Ended {
        outcome: TurnOutcome::Cancelled,
        reason: CANCELLED_BY_USER.to_owned(),
        message: "a person closed it".to_owned(),
    });
    let row = Write::Chat(ChatWrite::Plan(PlanWrite::Progress {
        chat: chat.session.clone(),
        phase: ChatPhase::Ended,
        progress: ChatProgress {
            rounds: u32::try_from(chat.turns).unwrap_or(u32::MAX),
            started_ms: Some(chat.created_ms),
            outcome: Some(TurnOutcome::Cancelled),
            reason: Some(CANCELLED_BY_USER.to_owned()),
            ..chat.progress.clone()
        },
    }));
    (event, row)
}

/// Waits until a time; for ever without one. Cancel-safe.
pub(super) async fn wait_until(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
#[path = "rounds_tests.rs"]
mod tests;
