//! Session: one conversation, from its workspace to its last durable event.
//!
//! Owns the order of events (sequence numbers), the running turn, and the answer to every ask.
//! Stamps what the Channel reports, journals it, and acts on what must be durable first only when
//! it is. Must not know how a child is started or stopped, nor which task comes next.

mod asks;
mod measure;
mod outbox;
pub(crate) mod outcome;
mod prepare;
mod tally;
mod work;

use std::sync::Arc;
use std::time::{Duration, Instant};

use ractor::{Actor, ActorProcessingErr, ActorRef, ActorRuntime, SupervisionEvent};
use tokio::task::AbortHandle;

pub(crate) use prepare::{PrepareError, Prepared};
pub(crate) use tally::Tally;
pub(crate) use work::{Attempt, CheckResult, Work};

use asks::Asks;
use outbox::{After, Outbox};

use super::channel::{Channel, ChannelArgs, ChannelEnd, ChannelMsg};
use super::credit::Hold;
use super::pool::PoolMsg;
use super::setup::{PoolShared, Shared, now_us};
use crate::config::OnUnaskedDeny;
use crate::dialect::Command;
use crate::journal::{SessionRow, Write};
use crate::lifecycle::state::SlotEvent;
use crate::lifecycle::watch::Expired;
use crate::model::{AgentInfo, Answer, Ask, AskKey, Event, TurnOutcome, Usage};
use crate::telemetry::event::permission::PermissionDecided;
use crate::telemetry::event::turn::{TokensUsed, ToolCallEnded, TurnEnded, TurnFirstEvent};
use crate::telemetry::sets::ToolOutcome;

/// What a Channel reports, in the order in which it happened.
#[derive(Debug)]
pub(crate) enum Item {
    /// The process runs.
    Started {
        /// The host's process id.
        pid: u32,
    },
    /// The handshake is complete.
    Ready(AgentInfo),
    /// The prompt is on its way: from here on the turn has begun.
    PromptSent,
    /// Something happened.
    Event(Event),
    /// The agent asks.
    Ask(Ask),
    /// The agent withdrew a request.
    Withdrawn(AskKey),
    /// The agent began a new session of its own.
    Cleared,
    /// The turn was silent, or is over its time.
    Expired(Expired),
}

/// What a Session hears.
#[derive(Debug)]
pub(crate) enum SessionMsg {
    /// Home and workspace are ready, or cannot be had.
    Prepared(Box<Result<Prepared, PrepareError>>),
    /// The Channel reports; `hold` drops when all of it is durable.
    Batch {
        /// What happened.
        items: Vec<Item>,
        /// The credits of the bytes that said so.
        hold: Option<Hold>,
    },
    /// The Channel is over.
    ChannelEnded(Box<ChannelEnd>),
    /// A commit is durable.
    Durable(Vec<After>),
    /// The journal left a commit out: a fault of this program, and the end of the session.
    Rejected(String),
    /// The journal refused a commit: look again.
    Flush,
    /// The check ended.
    Checked(Box<CheckResult>),
    /// What changed in the workspace is known.
    Surveyed(Box<work::Survey>),
    /// Home or copy is larger than it may be.
    TooLarge(String),
    /// End the running turn, and with it the task.
    Cancel,
    /// End the session's child: `true` at once, `false` by the stop ladder.
    Stop {
        /// No ladder.
        now: bool,
    },
}

/// What a Session is started with.
pub(crate) struct SessionArgs {
    pub(crate) pool_ref: ActorRef<PoolMsg>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) pool: Arc<PoolShared>,
    pub(crate) work: Work,
}

/// One conversation.
pub(crate) struct Session;

/// Where the session stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
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
}

/// Its state.
pub(crate) struct SessionState {
    myself: ActorRef<SessionMsg>,
    pool_ref: ActorRef<PoolMsg>,
    shared: Arc<Shared>,
    pool: Arc<PoolShared>,
    work: Work,
    phase: Phase,
    prepared: Option<Prepared>,
    channel: Option<ActorRef<ChannelMsg>>,
    outbox: Outbox,
    asks: Asks,
    tally: Tally,
    turn: Option<TurnOutcome>,
    turn_detail: Option<String>,
    turn_began: Option<Instant>,
    /// Why the turn must end, if not by itself; the first reason holds.
    ending: Option<(TurnOutcome, String)>,
    end: Option<ChannelEnd>,
    check: Option<CheckResult>,
    /// Ends the measuring of home and copy.
    measuring: Option<AbortHandle>,
    /// Set once the prompt went out.
    begun: bool,
    cancelled: bool,
    failure: Option<String>,
}

impl Actor for Session {
    type Msg = SessionMsg;
    type State = SessionState;
    type Arguments = SessionArgs;

    async fn pre_start(
        &self,
        myself: ActorRef<SessionMsg>,
        args: SessionArgs,
    ) -> Result<SessionState, ActorProcessingErr> {
        let SessionArgs {
            pool_ref,
            shared,
            pool,
            work,
        } = args;
        let mut state = SessionState {
            outbox: Outbox::new(
                Arc::clone(&shared),
                work.slot.clone(),
                work.session.clone(),
                Some(work.task.clone()),
            ),
            asks: Asks::default(),
            tally: Tally::default(),
            phase: Phase::Preparing,
            prepared: None,
            channel: None,
            turn: None,
            turn_detail: None,
            turn_began: None,
            ending: None,
            end: None,
            check: None,
            measuring: None,
            begun: false,
            cancelled: false,
            failure: None,
            myself,
            pool_ref,
            shared,
            pool,
            work,
        };
        state.outbox.write(Write::SessionBegun(SessionRow {
            session: state.work.session.clone(),
            slot: state.work.slot.clone(),
            task: Some((state.work.run.clone(), state.work.task.clone())),
            attempt: state.work.attempt,
            at_us: now_us(),
        }));
        state.flush();
        let to = state.myself.clone();
        let (shared, pool) = (Arc::clone(&state.shared), Arc::clone(&state.pool));
        let order = prepare::Order::of(&state.work);
        tokio::spawn(async move {
            let prepared = prepare::prepare(&shared, &pool, order).await;
            let _ = to.send_message(SessionMsg::Prepared(Box::new(prepared)));
        });
        Ok(state)
    }

    async fn handle(
        &self,
        myself: ActorRef<SessionMsg>,
        message: SessionMsg,
        state: &mut SessionState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            SessionMsg::Prepared(prepared) => state.prepared(*prepared),
            SessionMsg::Batch { items, hold } => {
                for item in items {
                    state.item(item);
                }
                state.outbox.hold(hold);
            }
            SessionMsg::ChannelEnded(end) => state.channel_ended(*end),
            SessionMsg::Durable(after) => {
                state.outbox.committed();
                for step in after {
                    state.durable(step);
                }
            }
            SessionMsg::Rejected(why) => {
                tracing::error!(session = %state.work.session, why, "the journal rejected a commit");
                state.outbox.committed();
                state.stop(true);
            }
            SessionMsg::Flush => state.outbox.retried(),
            SessionMsg::Checked(check) => state.checked(*check),
            SessionMsg::Surveyed(survey) => {
                state.report(*survey);
                myself.stop(None);
            }
            SessionMsg::TooLarge(why) => state.too_large(why),
            SessionMsg::Cancel => {
                state.cancelled = true;
                state.interrupt(TurnOutcome::Cancelled, "the run was cancelled".to_owned());
            }
            SessionMsg::Stop { now } => state.stop(now),
        }
        state.flush();
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<SessionMsg>,
        event: SupervisionEvent,
        state: &mut SessionState,
    ) -> Result<(), ActorProcessingErr> {
        // A Channel that ends as it should has said so before, in-band.
        if let SupervisionEvent::ActorFailed(_, error) = event
            && state.end.is_none()
            && state.channel.is_some()
        {
            tracing::error!(session = %state.work.session, %error, "a channel failed");
            let end = ChannelEnd::internal(&error.to_string());
            let _ = myself.send_message(SessionMsg::ChannelEnded(Box::new(end)));
        }
        Ok(())
    }
}

impl Drop for SessionState {
    fn drop(&mut self) {
        if let Some(measuring) = &self.measuring {
            measuring.abort();
        }
    }
}

impl SessionState {
    fn flush(&mut self) {
        self.outbox.flush(&self.myself);
    }

    fn tell_pool(&self, change: SlotEvent, pid: Option<u32>) {
        let _ = self.pool_ref.send_message(PoolMsg::Slot {
            index: self.work.slot.index,
            session: self.work.session.clone(),
            change,
            pid,
        });
    }

    fn prepared(&mut self, prepared: Result<Prepared, PrepareError>) {
        let mut prepared = match prepared {
            Ok(prepared) if !self.cancelled => prepared,
            Ok(prepared) => {
                self.prepared = Some(prepared);
                return self.survey();
            }
            Err(error) => {
                if error.is_of_the_slot() {
                    self.end = Some(ChannelEnd::not_planned(&error.to_string()));
                }
                self.failure = Some(error.to_string());
                return self.survey();
            }
        };
        let Some(plan) = prepared.plan.take() else {
            return self.survey();
        };
        self.phase = Phase::Opening;
        let args = ChannelArgs {
            session: self.myself.clone(),
            shared: Arc::clone(&self.shared),
            pool: Arc::clone(&self.pool),
            slot: self.work.slot.clone(),
            session_id: self.work.session.clone(),
            plan,
            opening: prepared.opening.clone(),
        };
        let measuring = tokio::spawn(measure::watch(
            measure::Measured::of(&prepared, &self.pool),
            self.myself.clone(),
        ));
        self.measuring = Some(measuring.abort_handle());
        self.prepared = Some(prepared);
        let cell = self.myself.get_cell();
        match ActorRuntime::spawn_linked_instant(None, Channel, args, cell) {
            Ok((channel, _)) => self.channel = Some(channel),
            Err(error) => {
                self.end = Some(ChannelEnd::internal(&error.to_string()));
                self.survey();
            }
        }
    }

    fn item(&mut self, item: Item) {
        match item {
            Item::Started { pid } => {
                self.tell_pool(SlotEvent::Spawned, Some(pid));
                self.outbox.event(Event::ChildStarted {
                    pid,
                    launcher: self.pool.config.launcher.word(),
                });
            }
            Item::Ready(info) => self.ready(info),
            Item::PromptSent => {
                self.begun = true;
                self.turn_began = Some(Instant::now());
                self.phase = Phase::Turn;
                self.tell_pool(SlotEvent::PromptSent, None);
            }
            Item::Event(event) => self.event(event),
            Item::Ask(ask) => self.ask(ask),
            Item::Withdrawn(key) => self.asks.withdrawn(&key),
            Item::Cleared => {
                tracing::info!(session = %self.work.session, "the agent began a new session of its own");
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

    fn ready(&mut self, info: AgentInfo) {
        self.tell_pool(SlotEvent::Ready, None);
        self.outbox.event(Event::Ready(info));
        if self.ending.is_some() {
            self.phase = Phase::Ending;
            return self.stop(false);
        }
        self.phase = Phase::Prompting;
        self.outbox.event(Event::PromptAccepted {
            task: Some(self.work.task.clone()),
            attempt: self.work.attempt,
            text: self.work.prompt.clone(),
        });
        // An accepted prompt is durable before it is sent.
        self.outbox.after(After::Prompt);
    }

    fn event(&mut self, event: Event) {
        if let (Some(began), false) = (self.turn_began, self.tally.has_output()) {
            TurnFirstEvent {
                slot: &self.work.slot,
                after: began.elapsed(),
            }
            .emit();
        }
        self.tally.event(&event);
        match event {
            Event::TurnEnded {
                outcome,
                stop_reason,
                usage,
                detail,
            } => {
                self.turn_ended(outcome, stop_reason.clone(), usage, detail);
            }
            Event::ToolStart { .. } => {
                self.asks.tool_started(&event);
                self.outbox.event(event);
            }
            Event::ToolResult {
                ref id,
                is_error,
                took,
                ..
            } => {
                let (name, unasked) = self.asks.tool_ended(id);
                ToolCallEnded {
                    slot: &self.work.slot,
                    tool_class: asks::class(&self.pool, name.as_ref()),
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
                    self.unasked(call);
                }
            }
            event => self.outbox.event(event),
        }
    }

    fn turn_ended(
        &mut self,
        outcome: TurnOutcome,
        stop_reason: Option<crate::model::Foreign>,
        usage: Usage,
        detail: Option<String>,
    ) {
        for call in self.asks.turn_ended() {
            self.unasked(call);
        }
        // What we asked for decides, unless the agent had finished all the same.
        let (outcome, detail) = match (outcome, self.ending.take()) {
            (TurnOutcome::Completed, _) | (_, None) => (outcome, detail),
            (_, Some((wanted, why))) => (wanted, Some(why)),
        };
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
        if self.cancelled {
            // Nobody waits for this child any more: it need not outlive a stalled journal.
            self.stop(false);
        }
    }

    fn count_turn(&self, outcome: TurnOutcome) {
        TurnEnded {
            slot: &self.work.slot,
            session: &self.work.session,
            outcome,
            took: self
                .turn_began
                .map_or(Duration::ZERO, |began| began.elapsed()),
            tool_calls: self.tally.tool_calls(),
        }
        .emit();
    }

    fn ask(&mut self, ask: Ask) {
        let prepared = self.prepared.as_ref();
        let decided = asks::decide(&self.pool, prepared, &self.work, &ask, &mut self.asks);
        self.tally.decided(&decided);
        decided.record(&ask, &mut self.outbox);
        self.outbox.after(After::Answer {
            key: ask.key,
            answer: decided.answer(),
            asked: Instant::now(),
            verdict: decided.verdict,
            class: decided.class,
        });
    }

    /// A tool call that ran without a request is judged by the same rules, afterwards.
    fn unasked(&mut self, call: asks::Call) {
        let event = asks::judge_unasked(&self.pool, self.prepared.as_ref(), &self.work, &call);
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
    fn durable(&mut self, step: After) {
        match step {
            After::Prompt => {
                if self.ending.is_none() {
                    let text = self.work.prompt.clone();
                    self.command(Command::Prompt { text });
                } else {
                    self.stop(false);
                }
            }
            After::Answer {
                key,
                answer,
                asked,
                verdict,
                class,
            } => {
                PermissionDecided {
                    slot: &self.work.slot,
                    session: &self.work.session,
                    ask: &verdict.ask,
                    tool_class: class,
                    decision: verdict.decision,
                    by: verdict.by,
                    rules: &verdict.rules,
                    took: asked.elapsed(),
                }
                .emit();
                if self.asks.answered(&key) {
                    let deny_turn = matches!(answer, Answer::Deny(_)) && self.asks.must_interrupt();
                    self.command(Command::Answer { key, answer });
                    if deny_turn {
                        let why = "too many requests were denied".to_owned();
                        self.interrupt(TurnOutcome::Cancelled, why);
                    }
                }
            }
            After::TurnEnded => self.stop(false),
            After::ChildEnded => self.after_child(),
        }
    }

    fn command(&self, command: Command) {
        if let Some(channel) = &self.channel {
            let _ = channel.send_message(ChannelMsg::Command(command));
        }
    }

    /// Home or copy is larger than it may be: the child is stopped, its turn failed.
    fn too_large(&mut self, why: String) {
        if self.end.is_some() {
            return;
        }
        tracing::warn!(session = %self.work.session, why, "size limit");
        if self.turn.is_none() {
            self.ending.get_or_insert((TurnOutcome::Failed, why));
        }
        self.stop(false);
    }

    /// Ends the running turn for a reason of ours.
    fn interrupt(&mut self, outcome: TurnOutcome, why: String) {
        if self.turn.is_some() || self.end.is_some() {
            return;
        }
        self.ending.get_or_insert((outcome, why));
        match self.phase {
            Phase::Turn => {
                self.tell_pool(SlotEvent::CancelSent, None);
                self.command(Command::Cancel);
            }
            Phase::Opening | Phase::Prompting => self.stop(false),
            _ => {}
        }
    }

    fn stop(&mut self, now: bool) {
        if self.end.is_some() {
            return;
        }
        self.tell_pool(SlotEvent::StopBegun, None);
        if let Some(channel) = &self.channel {
            let message = if now {
                ChannelMsg::Kill
            } else {
                ChannelMsg::Stop
            };
            let _ = channel.send_message(message);
        } else {
            self.cancelled = true;
        }
    }

    fn channel_ended(&mut self, end: ChannelEnd) {
        if self.end.is_some() {
            return;
        }
        if self.begun && self.turn.is_none() {
            for call in self.asks.turn_ended() {
                self.unasked(call);
            }
            let (outcome, why) = self
                .ending
                .take()
                .unwrap_or_else(|| (TurnOutcome::Lost, end.detail.clone()));
            self.turn = Some(outcome);
            self.count_turn(outcome);
            self.outbox.event(Event::TurnEnded {
                outcome,
                stop_reason: None,
                usage: Usage::default(),
                detail: Some(why.clone()),
            });
            self.turn_detail = Some(why);
        }
        self.asks.gone();
        self.outbox.event(Event::ChildExited {
            class: end.class,
            status: end.status,
            detail: end.detail.clone(),
            stderr: if end.class.is_wanted() {
                Vec::new()
            } else {
                end.stderr.clone()
            },
        });
        self.outbox.after(After::ChildEnded);
        self.end = Some(end);
        self.channel = None;
    }

    /// The child's end is durable: what is left is the check and a look at the workspace.
    fn after_child(&mut self) {
        let argv = self.work.check.as_ref().unwrap_or(&self.pool.config.check);
        if self.turn != Some(TurnOutcome::Completed) || argv.is_empty() {
            return self.survey();
        }
        self.phase = Phase::Checking;
        let to = self.myself.clone();
        let run = work::check(
            Arc::clone(&self.shared),
            Arc::clone(&self.pool),
            self.prepared.as_ref(),
            argv.clone(),
        );
        tokio::spawn(async move {
            let _ = to.send_message(SessionMsg::Checked(Box::new(run.await)));
        });
    }

    fn checked(&mut self, check: CheckResult) {
        self.outbox.event(check.event());
        self.check = Some(check);
        self.survey();
    }

    fn survey(&mut self) {
        self.phase = Phase::Surveying;
        let to = self.myself.clone();
        let survey = work::survey(self.prepared.take(), Arc::clone(&self.shared));
        tokio::spawn(async move {
            let _ = to.send_message(SessionMsg::Surveyed(Box::new(survey.await)));
        });
    }

    fn report(&mut self, survey: work::Survey) {
        self.outbox.write(Write::SessionEnded {
            session: self.work.session.clone(),
            at_us: now_us(),
            class: self.end.as_ref().map(|end| end.class),
        });
        self.outbox.flush_last();
        let attempt = Attempt {
            index: self.work.slot.index,
            session: self.work.session.clone(),
            begun: self.begun,
            turn: self.turn,
            turn_detail: self.turn_detail.take(),
            end: self.end.take(),
            check: self.check.take(),
            tally: std::mem::take(&mut self.tally),
            survey,
            cancelled: self.cancelled,
            failure: self.failure.take(),
        };
        let _ = self
            .pool_ref
            .send_message(PoolMsg::AttemptEnded(Box::new(attempt)));
    }
}
