//! What a session knows, and what it does while its child lives: the turn, its asks, its calls.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ractor::ActorRef;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;

use super::approvals::{Member, Pending};
use super::asks;
use super::budget::Counters;
use super::calls::{Asks, Call, Shown};
use super::choosing::Choosing;
use super::commands::Commands;
use super::delegated::Delegated;
use super::gentle::Grace;
use super::judging;
use super::masking;
use super::measure::Measured;
use super::outbox::{After, Outbox};
use super::transcript::Memory;
use super::{CheckResult, Item, Limited, Prepared, SessionRef, TalkArgs, Tally, Work, weak};
use crate::config::{OnUnaskedDeny, SessionScope};
use crate::dialect::{Command, Denials};
use crate::fleet::channel::{ChannelEnd, ChannelHandle, ChannelMsg};
use crate::fleet::clock;
use crate::fleet::pool::PoolMsg;
use crate::fleet::questions::Remembered;
use crate::fleet::setup::{PoolShared, Shared};
use crate::lifecycle::state::SlotEvent;
use crate::lifecycle::watch::Expired;
use crate::model::{Ask, AskId, Event, Foreign, TurnOutcome, Usage};
use crate::relay::LimitWatch;
use crate::telemetry::event::turn::{TokensUsed, ToolCallEnded, TurnEnded, TurnFirstEvent};
use crate::telemetry::sets::ToolOutcome;

/// How wide an error of the agent's may be in a detail.
pub(super) const DETAIL_WIDTH: usize = 300;

/// Where the session stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Home and workspace are being made.
    Preparing,
    /// The child starts and shakes hands.
    Opening,
    /// The prompt waits to be durable.
    Prompting,
    /// The turn runs.
    Turn,
    /// The turn is over; its end waits to be durable, then the child is stopped.
    Ending,
    /// The child is gone; the check runs.
    Checking,
    /// The workspace is being looked over.
    Surveying,
    /// Between tasks, with or without a child.
    Idle,
    /// Nothing more comes: the child is being stopped, then what is left is settled.
    Closing,
}

/// Its state.
pub(crate) struct SessionState {
    pub(super) myself: SessionRef,
    pub(super) pool_ref: ActorRef<PoolMsg>,
    pub(super) shared: Arc<Shared>,
    pub(super) pool: Arc<PoolShared>,
    /// The task that it works, or worked last.
    pub(super) work: Work,
    pub(super) scope: SessionScope,
    /// It is a client's conversation.
    pub(super) talk: Option<TalkArgs>,
    /// Questions that a person is to decide; at most `ASKS_PER_SESSION`.
    pub(super) pending: BTreeMap<AskId, Pending>,
    /// Requests that the delegate is asked about; at most `DELEGATED_PER_SESSION`.
    pub(super) delegated: BTreeMap<AskId, Delegated>,
    /// Its child is stopped, and its task put back, until that question is answered.
    pub(super) released: Option<AskId>,
    /// Answers that hold until the turn ends, by digest.
    pub(super) of_turn: HashMap<String, Remembered>,
    /// The agent's own id of the session.
    pub(super) agent_session: Option<Foreign>,
    /// An earlier start of the supervisor began it.
    pub(super) was_stored: bool,
    /// The child was started to load the session again.
    pub(super) loading: bool,
    /// Children in a row that ended before they had loaded it.
    pub(super) loads_failed: u8,
    /// The agent has not said that it cannot load it.
    pub(super) loadable: bool,
    /// Why it was given up, if it was because it could not be loaded again.
    pub(super) not_loaded: Option<String>,
    /// It was begun before it had a task: told when its child is ready, dropped if that ends.
    pub(super) warm: Option<oneshot::Sender<()>>,
    /// What the agent offers, and what was chosen of it.
    pub(super) choosing: Choosing,
    /// The agent's own commands.
    pub(super) commands: Commands,
    /// The agent has had a prompt in it.
    pub(super) prompted: bool,
    /// What the agent has forgotten, and is told again.
    pub(super) memory: Memory,
    /// A person stopped the turn, and a tool call may end first.
    pub(super) grace: Grace,
    /// `work` is not over.
    pub(super) has_task: bool,
    /// Counts its tasks: what was waited for of an earlier one is no news for the next.
    pub(super) task_number: u64,
    /// Ends the wait after which its idle child is stopped.
    pub(super) idle_timer: Option<AbortHandle>,
    /// The task's prompt is journalled.
    pub(super) accepted: bool,
    /// Nothing more comes; whether it ends for good.
    pub(super) closing: Option<bool>,
    pub(super) phase: Phase,
    pub(super) prepared: Option<Prepared>,
    pub(super) channel: Option<ChannelHandle>,
    /// What budgets count: requests, and what it spent.
    pub(super) budget: Counters,
    /// What the answers on the child's routes say of limits.
    pub(super) limits: Arc<LimitWatch>,
    /// The turn failed because its provider limits requests.
    pub(super) limit: Option<Limited>,
    /// What the last child was denied and not told: the one that goes on with the session is.
    pub(super) denials: Denials,
    pub(super) outbox: Outbox,
    pub(super) asks: Asks,
    pub(super) tally: Tally,
    pub(super) turn: Option<TurnOutcome>,
    pub(super) turn_detail: Option<String>,
    pub(super) turn_began: Option<Instant>,
    /// Why the turn must end, if not by itself; the first reason holds.
    pub(super) ending: Option<(TurnOutcome, String)>,
    pub(super) end: Option<ChannelEnd>,
    pub(super) check: Option<CheckResult>,
    /// Home and copy, while they are measured.
    pub(super) measured: Option<Arc<Measured>>,
    /// Ends the check.
    pub(super) checking: Option<AbortHandle>,
    /// The journal takes nothing more of this session.
    pub(super) broken: bool,
    /// The session wrote more than it may journal, and its child is killed for it.
    pub(super) over_quota: bool,
    /// Home or copy was larger than it may be.
    pub(super) oversized: bool,
    /// What an earlier start left stays as it is: it could not be prepared now.
    pub(super) gives_back: bool,
    /// Ends the preparation while it waits for its turn.
    pub(super) preparing: CancellationToken,
    /// Somebody stopped the child, but not the task.
    pub(super) stopped: bool,
    /// Set once the prompt went out.
    pub(super) begun: bool,
    pub(super) cancelled: bool,
    pub(super) failure: Option<String>,
}

impl SessionState {
    pub(super) fn flush(&mut self) {
        if !self.broken {
            self.outbox.flush(&self.myself);
        }
    }

    pub(super) fn tell_pool(&self, change: SlotEvent, pid: Option<u32>) {
        let _ = self.pool_ref.send_message(PoolMsg::Slot {
            index: self.work.slot.index,
            session: self.work.session.clone(),
            change,
            pid,
        });
    }

    pub(super) fn tell_answered(&self) {
        let _ = self.pool_ref.send_message(PoolMsg::Answered {
            session: self.work.session.clone(),
        });
    }

    pub(super) fn item(&mut self, item: Item) {
        match item {
            Item::Started { pid, limits, walls } => {
                self.tell_pool(SlotEvent::Spawned, Some(pid));
                let lacks = weak::counted(&self.shared, &self.pool, &self.work.slot, &walls);
                self.outbox.event(Event::ChildStarted {
                    pid,
                    launcher: self.pool.config.launcher.word(),
                    lacks,
                    limits,
                    walls,
                });
            }
            Item::Ready(info) => self.ready(info),
            Item::Set(result) => self.was_set(result),
            Item::PromptSent => {
                self.prompted = true;
                self.memory.told();
                self.begun = true;
                self.turn_began = Some(clock::now());
                self.phase = Phase::Turn;
                self.tell_pool(SlotEvent::PromptSent, None);
            }
            Item::Event(event) => self.event(event),
            Item::Ask(ask) => self.ask(ask),
            Item::Client { ask, wish } => self.client(*ask, &wish),
            Item::Withdrawn(key) => {
                self.asks.withdrawn(&key);
                self.withdrawn(&key);
            }
            Item::Commanded(end) => self.command_ended(end),
            Item::Cancelling => self.cancelling(),
            Item::Cleared => {
                tracing::info!(session = %self.work.session, "the agent began a new session of its own");
                // Its new id comes with no message: what it does from here on cannot be loaded.
                self.agent_session = None;
                self.loadable = false;
            }
            Item::Expired(expired) => {
                let why = match expired {
                    Expired::Silence => {
                        "nothing came from the agent for longer than timeouts.silence"
                    }
                    _ => "the turn took longer than timeouts.turn",
                };
                self.interrupt(TurnOutcome::TimedOut, why.to_owned());
            }
        }
    }

    pub(super) fn event(&mut self, event: Event) {
        self.choosing.event(&event);
        self.usage_said(&event);
        let was_silent = !self.tally.has_output();
        self.tally.event(&event);
        if let Some(began) = self.turn_began
            && was_silent
            && self.tally.has_output()
        {
            TurnFirstEvent {
                slot: &self.work.slot,
                after: clock::since(began),
            }
            .emit();
        }
        match event {
            Event::TurnEnded {
                outcome,
                stop_reason,
                usage,
                detail,
            } => {
                self.turn_ended(outcome, stop_reason.clone(), usage, detail);
            }
            Event::SlashResult { exit: true, .. } => {
                self.outbox.event(event);
                self.exits_by_command();
            }
            Event::ToolStart { .. } => {
                let evicted = self.asks.tool_started(&event);
                self.outbox.event(event);
                if let Some(call) = evicted {
                    self.unasked(&call, Shown::NotDone);
                }
            }
            Event::ToolUpdate { .. } => {
                self.asks.tool_updated(&event);
                self.outbox.event(event);
            }
            Event::ToolResult {
                ref id,
                is_error,
                took,
                ..
            } => {
                self.observe_call(id);
                let shown = if is_error {
                    Shown::NotDone
                } else {
                    Shown::Done
                };
                let (name, unasked) = self.asks.tool_ended(id, shown);
                ToolCallEnded {
                    slot: &self.work.slot,
                    tool_class: judging::class(&self.pool, name.as_ref()),
                    outcome: if is_error {
                        ToolOutcome::Error
                    } else {
                        ToolOutcome::Ok
                    },
                    took,
                }
                .emit();
                self.outbox.event(event);
                if let Some(call) = unasked {
                    self.unasked(&call, shown);
                }
                self.tool_ended_in_grace();
            }
            event => self.outbox.event(event),
        }
    }

    pub(super) fn turn_ended(
        &mut self,
        outcome: TurnOutcome,
        stop_reason: Option<Foreign>,
        usage: Usage,
        detail: Option<String>,
    ) {
        self.grace.over();
        self.nobody_decides("the turn ended before this was decided");
        self.of_turn.clear();
        self.turn_budget_ends();
        for call in self.asks.turn_ended() {
            self.unasked(&call, Shown::NotDone);
        }
        self.asks.own.clear();
        self.asks.announced.clear();
        // What we asked for decides: some agents say of a turn that was cancelled that it completed.
        let (outcome, detail, is_ours) = match self.ending.take() {
            None => (outcome, detail, false),
            Some((wanted, why)) => (wanted, Some(why), true),
        };
        let detail = self.understood(outcome, detail, is_ours);
        self.turn = Some(outcome);
        self.turn_detail.clone_from(&detail);
        self.phase = Phase::Ending;
        self.tell_pool(SlotEvent::TurnEnded, None);
        self.count_turn(outcome);
        TokensUsed {
            slot: &self.work.slot,
            used: usage,
        }
        .emit();
        self.outbox.event(Event::TurnEnded {
            outcome,
            stop_reason,
            usage,
            detail,
        });
        self.outbox.after(After::TurnEnded);
        if self.cancelled && self.scope == SessionScope::Task {
            // Nobody waits for this child any more: it need not outlive a stalled journal.
            self.stop(false);
        }
    }

    pub(super) fn count_turn(&self, outcome: TurnOutcome) {
        TurnEnded {
            slot: &self.work.slot,
            session: &self.work.session,
            outcome,
            took: self.turn_began.map_or(Duration::ZERO, clock::since),
            tool_calls: self.tally.tool_calls(),
        }
        .emit();
    }

    pub(super) fn ask(&mut self, mut ask: Ask) {
        let prepared = self.prepared.as_ref();
        let mode = self.mode();
        let at = asks::At {
            is_too_long: ask.bound(asks::BOUNDS),
            ..self.asked_at(mode.as_deref())
        };
        let asks = &mut self.asks;
        let (ask, came) = masking::ask(&self.pool.mask, ask);
        let decided = asks::decide(&self.pool, prepared, &self.work, (&ask, came), asks, at);
        self.judged(Member::of(ask, decided));
    }

    /// A tool call that ran without a request is judged by the same rules, afterwards.
    pub(super) fn unasked(&mut self, call: &Call, shown: Shown) {
        if self.is_our_tools(call, shown) {
            return;
        }
        let (mode, prepared) = (self.mode(), self.prepared.as_ref());
        let event =
            asks::judge_unasked(&self.pool, prepared, &self.work, call, &mut self.asks, mode);
        let denied = self.tally.unasked(&event);
        self.outbox.event(event);
        if !denied {
            return;
        }
        let why = "a tool call that the policy denies ran without a request".to_owned();
        match self.pool.config.on_unasked_deny {
            OnUnaskedDeny::Report => {}
            OnUnaskedDeny::Interrupt => self.interrupt(TurnOutcome::Failed, why),
            OnUnaskedDeny::Stop => {
                self.ending.get_or_insert((TurnOutcome::Failed, why));
                self.stop(false);
            }
        }
    }

    /// What had to be durable first.
    pub(super) fn durable(&mut self, step: After) {
        match step {
            After::Prompt => {
                if self.phase != Phase::Prompting {
                    return; // The child is gone, and with it what the prompt was for.
                }
                if self.holds_prompt() {
                    return;
                }
                if self.ending.is_none() {
                    let text = self.memory.before(&self.work.prompt);
                    self.asks.directory.turn_begins(self.pool.config.shell_cwd);
                    // Before the agent can ask its model anything for it.
                    self.limits.begin();
                    self.turn_budget_begins();
                    let attached = self.prepared.as_ref();
                    let attached = attached.map(|of| Arc::clone(&of.attached));
                    self.command(Command::Prompt {
                        text,
                        attached: attached.unwrap_or_default(),
                    });
                } else {
                    self.stop(false);
                }
            }
            After::Answer {
                key,
                answer,
                asked,
                deny_turn,
                verdict,
                class,
            } => {
                self.told(&verdict, class, asked);
                if self.asks.answered(&verdict.ask) {
                    self.command(Command::Answer { key, answer });
                    if deny_turn {
                        self.deny_turn(&verdict);
                    }
                }
            }
            After::Client {
                key,
                place,
                asked,
                verdict,
                deny_turn,
                class,
            } => {
                self.told(&verdict, class, asked);
                self.client_durable(key, place, verdict, deny_turn);
            }
            After::Asked(id) => self.put(&id),
            After::Said(reply, said) => reply.done(said),
            After::Warm(ready) => {
                let _ = ready.send(());
            }
            After::Set(reply) => reply.done(Ok(())),
            After::Command(order) => self.command_durable(&order),
            After::Commanded(reply, result) => {
                let _ = reply.send(result);
            }
            After::Noted(done) => {
                let _ = done.send(());
            }
            After::TurnEnded if self.scope == SessionScope::Slot && self.budget.parks.is_none() => {
                self.after_turn();
            }
            After::TurnEnded => self.stop(false),
            After::ChildEnded { task } => self.after_child(task),
        }
    }

    pub(super) fn command(&self, command: Command) {
        if let Some(channel) = &self.channel {
            let _ = channel.send_message(ChannelMsg::Command(command));
        }
    }
}
