//! Executes an approved plan: evaluates finished turns, reads the file, assigns the next items, and
//! detects the end.
//!
//! Owns an order of steps that survives a kill: the file has the tick before the journal records
//! the item as done, and an item is claimed in the commit that accepts its prompt. Must not know
//! how files are written.

use std::collections::HashSet;

use super::coordinator::{AfterStep, Coordinator, NewItem, StepError};
use super::file::{NoPlan, PlanText};
use super::items::{IntakeRules, Items, status};
use super::prompts;
use marshal_journal::{ChatWrite, PlanItem, PlanWrite, StoredChat, StoredTurn, Write};
use marshal_model::limits;
use marshal_model::{
    ChatPhase, ChatProgress, ChatSettings, ItemState, TaskOutcome, TurnId, TurnOutcome, TurnState,
    WorkEvent,
};
use marshal_wire::plan::checklist::ItemId;

/// The result of a finished turn for its item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ItemResult {
    Done,
    /// It was lost with the supervisor.
    Lost,
    Failed,
}

/// Items that were added to the file, or came back.
#[derive(Debug, Default)]
struct NewItems {
    /// Items whose author is not yet known.
    undetermined: HashSet<ItemId>,
    /// Items that count as written by agents.
    agents: HashSet<ItemId>,
    /// An agent may have written the file since it was last read, as far as the journal shows.
    by_agent: bool,
}

/// Whether a member has a running or waiting turn.
fn is_busy(member: &StoredChat) -> bool {
    member.running.is_some() || member.waiting > 0
}

impl Coordinator {
    /// Takes one step of an approved plan.
    pub(super) async fn run_approved(
        &mut self,
        chat: &StoredChat,
        members: &[StoredChat],
    ) -> Result<AfterStep, StepError> {
        let workers: Vec<&StoredChat> = members
            .iter()
            .filter(|of| of.settings.planner.is_none())
            .collect();
        let id = self.id.clone();
        let read = self
            .chats
            .readers
            .read(move |reader| reader.plan_items(&id));
        let mut items = Items::new(read.await?);
        let brought = self.item_results(&items).await?;
        let done: Vec<ItemId> = brought
            .iter()
            .filter(|(_, brought)| *brought == ItemResult::Done)
            .map(|(item, _)| *item)
            .collect();
        let mut plan = match self.read(chat, &done).await {
            Ok(plan) => {
                self.missing_reads = 0;
                plan
            }
            Err(NoPlan::Unreadable(why)) => return Err(StepError::Retry(why)),
            Err(NoPlan::Missing(why)) => {
                return self.handle_missing_plan(chat, &workers, why).await;
            }
        };
        if items.all.is_empty() && self.has_changed(chat, &plan).await? {
            return Ok(AfterStep::Now);
        }
        let now_ms = self.chats.fleet.now_ms();
        for (item, brought) in &brought {
            settle(&mut items, *item, *brought, &plan, now_ms);
        }
        let NewItems {
            undetermined: wait,
            agents,
            by_agent,
        } = self.new_items(chat, &items, &plan).await?;
        let taking = IntakeRules {
            chat: &self.id,
            by_agent,
            agents: &agents,
            agent_items: chat.settings.agent_items,
            now_ms,
        };
        let lost = items.follow(&plan.list, &wait, taking);
        if !lost.is_empty() {
            plan = match self.file(chat).tick(&lost).await {
                Ok(plan) => plan,
                Err(NoPlan::Missing(why) | NoPlan::Unreadable(why)) => {
                    return Err(StepError::Retry(why));
                }
            };
        }
        self.save_items(&mut items, members).await?;
        self.record_observation(members, wait.is_empty()).await?;
        let mut then = AfterStep::Wait;
        for worker in &workers {
            if worker.running.is_some() || worker.waiting > 0 {
                continue;
            }
            match self.claim(chat, worker, &workers, &mut items, &plan).await {
                Ok(()) => {}
                Err(StepError::Retry(why)) => {
                    tracing::debug!(chat = %self.id, why, "an item waits for its member");
                    then = AfterStep::Later;
                }
                Err(stopping) => return Err(stopping),
            }
        }
        let is_open = items.count(ItemState::Open) + items.count(ItemState::Claimed) > 0;
        if is_open || !wait.is_empty() {
            return Ok(then);
        }
        self.finish(chat, &workers, &items).await
    }

    /// Whether the plan changed between its approval and the first read: then it is not what was
    /// approved, and needs a new approval.
    async fn has_changed(&self, chat: &StoredChat, plan: &PlanText) -> Result<bool, StepError> {
        let approved = chat.progress.approved_digest.as_ref();
        if approved.is_none_or(|approved| *approved == plan.sha256) {
            return Ok(false);
        }
        let progress = ChatProgress {
            approved_digest: None,
            started_ms: None,
            ..chat.progress.clone()
        };
        let approval = self.progress(ChatPhase::Approval, progress);
        self.append_events(Vec::new(), vec![approval]).await?;
        Ok(true)
    }

    /// Records the turns of the members at the time of this read, and the seqs of their events if
    /// no new item is undetermined.
    async fn record_observation(
        &mut self,
        members: &[StoredChat],
        is_whole: bool,
    ) -> Result<(), StepError> {
        for member in members {
            let stood = (member.turns, is_busy(member));
            self.observed_turns.insert(member.session.clone(), stood);
            if member.running.is_some() || !is_whole {
                continue;
            }
            let id = member.session.clone();
            let read = self.chats.readers.read(move |reader| reader.last_seq(&id));
            // The durable end from before the file was read, or slightly later: calls come first.
            let end = read.await?;
            self.observed_seqs.insert(member.session.clone(), end);
        }
        Ok(())
    }

    /// Returns the plan, with these items ticked.
    async fn read(&self, chat: &StoredChat, done: &[ItemId]) -> Result<PlanText, NoPlan> {
        let file = self.file(chat);
        if done.is_empty() {
            file.read().await
        } else {
            file.tick(done).await
        }
    }

    /// Handles a file that is no longer a plan: running turns may restore it, and nothing else
    /// starts.
    async fn handle_missing_plan(
        &mut self,
        chat: &StoredChat,
        workers: &[&StoredChat],
        why: String,
    ) -> Result<AfterStep, StepError> {
        if workers
            .iter()
            .any(|of| of.running.is_some() || of.waiting > 0)
        {
            return Ok(AfterStep::Wait);
        }
        // Editors remove a file for a moment when they save it.
        self.missing_reads += 1;
        if self.missing_reads < limits::PLAN_MISSING_RETRIES {
            return Ok(AfterStep::Later);
        }
        self.end_work(chat, TurnOutcome::Failed, "no_plan", why, Vec::new())
            .await
    }

    /// Returns the results of the items whose turns have ended.
    async fn item_results(&self, items: &Items) -> Result<Vec<(ItemId, ItemResult)>, StepError> {
        let mut brought = Vec::new();
        let claimed = items.all.iter();
        for row in claimed.filter(|row| row.state == ItemState::Claimed) {
            let Some(turn) = row.turn.clone() else {
                brought.push((row.item, ItemResult::Failed));
                continue;
            };
            let read = self.chats.readers.read(move |reader| reader.turn(&turn));
            let found: Option<StoredTurn> = read.await?;
            let found = found.filter(|turn| turn.state == TurnState::Ended);
            match found {
                None => {}
                Some(turn) if turn.outcome == Some(TurnOutcome::Completed) => {
                    brought.push((row.item, ItemResult::Done));
                }
                // The next start handles turns that end while the supervisor stops.
                Some(_) if self.chats.stop.is_cancelled() => return Err(StepError::Stopping),
                Some(turn) if self.is_first && ended_with_supervisor(&turn) => {
                    brought.push((row.item, ItemResult::Lost));
                }
                Some(_) => brought.push((row.item, ItemResult::Failed)),
            }
        }
        Ok(brought)
    }

    /// Determines who wrote the items that are new or came back: an agent, if a turn ran at that
    /// time and no version of the file shows that a person wrote them.
    async fn new_items(
        &mut self,
        chat: &StoredChat,
        items: &Items,
        plan: &PlanText,
    ) -> Result<NewItems, StepError> {
        let unknown: HashSet<ItemId> = items.unknown(&plan.list).into_iter().collect();
        self.new_items.retain(|item, _| unknown.contains(item));
        if items.all.is_empty() {
            return Ok(NewItems::default());
        }
        // Read after the file, so that the file has everything they did before.
        let members = self.members().await?;
        let running: HashSet<TurnId> = members.iter().filter_map(|of| of.running.clone()).collect();
        let in_turn = members
            .iter()
            .any(|of| match self.observed_turns.get(&of.session) {
                Some((turns, was_busy)) => is_busy(of) || *was_busy || *turns != of.turns,
                None => of.turns > 0,
            });
        for item in unknown {
            self.new_items.entry(item).or_insert_with(|| NewItem {
                turns: running.clone(),
                in_turn,
                agents: None,
            });
        }
        let mut by_agent = false;
        let path = chat.settings.plan_path.as_deref().unwrap_or_default();
        let name = path.rsplit('/').next().unwrap_or_default();
        // It is unknown how far an earlier start had read.
        for member in &members {
            let after = self.observed_seqs.get(&member.session).copied();
            let (id, after) = (member.session.clone(), after.unwrap_or(0));
            let name = name.to_owned();
            let read = self
                .chats
                .readers
                .read(move |reader| reader.has_touched(&id, after, &name));
            by_agent |= read.await?;
        }
        // The versions of a turn are recorded when it has ended.
        let waits = |fresh: &NewItem| !fresh.turns.is_disjoint(&running);
        let due = self
            .new_items
            .iter()
            .filter(|(_, of)| !waits(of) && of.agents.is_none())
            .filter(|(_, of)| of.in_turn || by_agent);
        let due: HashSet<ItemId> = due.map(|(item, _)| *item).collect();
        let people = if due.is_empty() {
            HashSet::new()
        } else {
            let people = self.file(chat).items_by_people(&due).await;
            people.map_err(|error| StepError::Retry(error.to_string()))?
        };
        for (item, of) in &mut self.new_items {
            if due.contains(item) {
                of.agents = Some(!people.contains(item));
            }
        }
        let of = |is: &dyn Fn(&NewItem) -> bool| {
            let fresh = self.new_items.iter().filter(|(_, of)| is(of));
            fresh.map(|(item, _)| *item).collect()
        };
        Ok(NewItems {
            undetermined: of(&waits),
            agents: of(&|of| of.agents == Some(true)),
            by_agent,
        })
    }

    /// Stores changed items and appends their events.
    async fn save_items(&self, items: &mut Items, members: &[StoredChat]) -> Result<(), StepError> {
        if items.changed.is_empty() {
            return Ok(());
        }
        let rows = items
            .all
            .iter()
            .filter(|row| items.changed.contains(&row.item));
        let writes = rows.map(|row| Write::Chat(ChatWrite::Plan(PlanWrite::Item(row.clone()))));
        let too_many = items.count(ItemState::Gone) > limits::PLAN_REMOVED_ITEMS;
        let forget = too_many.then(|| {
            Write::Chat(ChatWrite::Plan(PlanWrite::PruneItems {
                chat: self.id.clone(),
                keep: limits::PLAN_REMOVED_ITEMS,
            }))
        });
        let writes = writes.chain(forget);
        let events = items
            .all
            .iter()
            .filter(|row| items.to_announce.contains(&row.item))
            .map(|row| event(items, row, members, status(row.state)));
        self.append_events(events.collect(), writes.collect())
            .await?;
        items.changed.clear();
        items.to_announce.clear();
        Ok(())
    }

    /// Assigns the next item to a member, if there is one.
    async fn claim(
        &self,
        chat: &StoredChat,
        worker: &StoredChat,
        workers: &[&StoredChat],
        items: &mut Items,
        plan: &PlanText,
    ) -> Result<(), StepError> {
        let Some(row) = items.next_for(&worker.session, workers.len() == 1).cloned() else {
            return Ok(());
        };
        let Some(item) = plan.list.item(row.item) else {
            return Ok(());
        };
        let settings = &chat.settings;
        let path = settings.plan_path.clone().unwrap_or_default();
        let (goal, text) = (chat.goal.raw(), &plan.text);
        let content = prompts::item(goal, &path, text, &plan.list, item, settings.agent_items);
        let now_ms = self.chats.fleet.now_ms();
        if content.len() > limits::TURN_BYTES {
            // No member can receive it; the other items are executed.
            let (item, bytes) = (row.item, content.len());
            tracing::warn!(chat = %self.id, %item, bytes, "an item is too long to send");
            if let Some(row) = items.get_mut(item) {
                row.tries += 1;
            }
            items.set(item, ItemState::Blocked, now_ms);
            self.save_items(items, std::slice::from_ref(worker)).await?;
            return Err(StepError::Retry("an item is too long to send".to_owned()));
        }
        items.set(row.item, ItemState::Claimed, now_ms);
        // The check runs with the last item.
        let is_last = items.count(ItemState::Open) == 0;
        let member = std::slice::from_ref(worker);
        let claimed = PlanItem {
            claimed_by: Some(worker.session.clone()),
            ..row.clone()
        };
        let item_event = event(items, &claimed, member, status(ItemState::Claimed));
        let sent = self
            .send(&worker.session, content, vec![item_event], |turn| {
                vec![
                    Write::Chat(ChatWrite::Plan(PlanWrite::Claim {
                        chat: self.id.clone(),
                        item: row.item,
                        by: worker.session.clone(),
                        turn: turn.clone(),
                        at_ms: now_ms,
                    })),
                    check_setting(worker, settings, is_last),
                ]
            })
            .await;
        if sent.is_err() {
            items.set(row.item, ItemState::Open, now_ms);
        }
        sent
    }

    /// Handles a plan without open items: it ends, or the check requires another round.
    async fn finish(
        &self,
        chat: &StoredChat,
        workers: &[&StoredChat],
        items: &Items,
    ) -> Result<AfterStep, StepError> {
        if workers
            .iter()
            .any(|of| of.running.is_some() || of.waiting > 0)
        {
            return Ok(AfterStep::Wait);
        }
        let (done, total) = items.progress();
        let failed = items
            .all
            .iter()
            .filter(|row| row.state == ItemState::Blocked)
            .filter(|row| row.tries > 0 || row.losses > 0)
            .count();
        let message = format!("{done} of {total} items are done");
        let Some(_) = &chat.settings.check_command else {
            return if failed == 0 {
                self.end_work(
                    chat,
                    TurnOutcome::Completed,
                    "plan_done",
                    message,
                    Vec::new(),
                )
                .await
            } else {
                let message = format!("{message}; {failed} failed");
                self.end_work(chat, TurnOutcome::Failed, "blocked", message, Vec::new())
                    .await
            };
        };
        let checked = self.check_result(workers).await?;
        if checked == Some(true) {
            let message = format!("{message}, and the check passed");
            return self
                .end_work(
                    chat,
                    TurnOutcome::Completed,
                    "check_passed",
                    message,
                    Vec::new(),
                )
                .await;
        }
        if let (None, Some(worker)) = (checked, workers.first())
            && chat.progress.check_only_turns < limits::PLAN_CHECK_ONLY_TURNS
        {
            return self.run_check_turn(chat, worker).await;
        }
        let most = chat.settings.bounds.turns.unwrap_or(limits::PLAN_ROUNDS);
        let why = match checked {
            Some(_) => "the check failed",
            None => "the check could not be run",
        };
        let Some(worker) = workers.first().filter(|_| chat.progress.rounds < most) else {
            let message = format!("{message}; {why}, and the limit of {most} rounds is reached");
            return self
                .end_work(chat, TurnOutcome::Failed, "rounds", message, Vec::new())
                .await;
        };
        let round = chat.progress.rounds + 1;
        let progress = ChatProgress {
            rounds: round,
            check_only_turns: 0,
            ..chat.progress.clone()
        };
        let content = chat
            .settings
            .continue_prompt
            .as_deref()
            .unwrap_or(prompts::CONTINUE)
            .to_owned();
        let round_event = WorkEvent::Round {
            round,
            why: why.to_owned(),
        };
        let working = self.progress(ChatPhase::Working, progress);
        let checks = check_setting(worker, &chat.settings, true);
        self.send(&worker.session, content, vec![round_event], |_| {
            vec![working, checks]
        })
        .await?;
        Ok(AfterStep::Wait)
    }

    /// Sends a turn only to run the check: the worker of the last item was not the last to finish,
    /// or the check was lost.
    async fn run_check_turn(
        &self,
        chat: &StoredChat,
        worker: &StoredChat,
    ) -> Result<AfterStep, StepError> {
        let progress = ChatProgress {
            check_only_turns: chat.progress.check_only_turns + 1,
            ..chat.progress.clone()
        };
        let rows = vec![
            self.progress(ChatPhase::Working, progress),
            check_setting(worker, &chat.settings, true),
        ];
        let content = prompts::CHECK.to_owned();
        self.send(&worker.session, content, Vec::new(), |_| rows)
            .await?;
        Ok(AfterStep::Wait)
    }

    /// Returns whether the check passed in the turn that ended last; `None` if it had no check.
    async fn check_result(&self, workers: &[&StoredChat]) -> Result<Option<bool>, StepError> {
        let mut last: Option<(i64, StoredTurn, &StoredChat)> = None;
        for worker in workers {
            if let Some(turn) = self.last_turn(worker).await? {
                let ended = turn.ended_ms.unwrap_or(i64::MIN);
                if last.as_ref().is_none_or(|(at, ..)| ended >= *at) {
                    last = Some((ended, turn, worker));
                }
            }
        }
        let Some((_, turn, worker)) = last else {
            return Ok(None);
        };
        let (Some(task), run) = (turn.task, worker.run.clone()) else {
            return Ok(None);
        };
        let read = self
            .chats
            .readers
            .read(move |reader| reader.task(&run, &task));
        let Some(task) = read.await? else {
            return Ok(None);
        };
        let spec: serde_json::Value = serde_json::from_str(&task.spec).unwrap_or_default();
        let has_check = spec["check"]
            .as_array()
            .is_some_and(|argv| !argv.is_empty());
        if !has_check || turn.outcome != Some(TurnOutcome::Completed) {
            return Ok(None);
        }
        let outcome = task.outcome.as_deref().and_then(TaskOutcome::parse);
        Ok(match outcome {
            Some(TaskOutcome::Done) => Some(true),
            None | Some(TaskOutcome::Lost | TaskOutcome::Skipped | TaskOutcome::Cancelled) => None,
            Some(_) => Some(false),
        })
    }
}

/// Returns whether the next turn of a member has the check.
fn check_setting(worker: &StoredChat, settings: &ChatSettings, is_last: bool) -> Write {
    Write::Chat(ChatWrite::Plan(PlanWrite::Settings {
        chat: worker.session.clone(),
        settings: ChatSettings {
            check_command: settings.check_command.clone().filter(|_| is_last),
            ..worker.settings.clone()
        },
    }))
}

/// Whether a turn was lost with an earlier start, as far as the first step can know: only a
/// stopping supervisor cancels a turn that no person stopped.
pub(super) fn ended_with_supervisor(turn: &StoredTurn) -> bool {
    match turn.outcome {
        Some(TurnOutcome::Lost) => true,
        Some(TurnOutcome::Cancelled) => !turn.stopped,
        _ => false,
    }
}

fn settle(items: &mut Items, item: ItemId, brought: ItemResult, plan: &PlanText, now_ms: i64) {
    // If the agent ticked its item, the item is done, whatever the turn's outcome.
    let list_item = plan.list.item(item);
    let is_ticked = list_item.is_some_and(|item| item.done);
    let Some(row) = items.get_mut(item) else {
        return;
    };
    match brought {
        ItemResult::Done => {}
        ItemResult::Lost => row.losses += 1,
        ItemResult::Failed => row.tries += 1,
    }
    let is_spent = row.tries >= limits::PLAN_ITEM_TRIES || row.losses >= limits::PLAN_LOST_TURNS;
    let state = match brought {
        _ if is_ticked => ItemState::Done,
        _ if list_item.is_none() => ItemState::Gone,
        ItemResult::Done => ItemState::Done,
        _ if is_spent => ItemState::Blocked,
        _ => ItemState::Open,
    };
    items.set(item, state, now_ms);
}

/// Returns the event of an item's state.
pub(super) fn event(
    items: &Items,
    row: &PlanItem,
    members: &[StoredChat],
    status: marshal_model::StepStatus,
) -> WorkEvent {
    let (done, total) = items.progress();
    let by = row.claimed_by.as_ref();
    let member = members.iter().find(|of| Some(&of.session) == by);
    WorkEvent::Item {
        step: row.ordinal,
        status,
        content: row.content.clone(),
        role: member.map(|of| of.role.clone()),
        chat: by.cloned(),
        done,
        total,
    }
}
