//! What the slots do now: `GET /api/v1/activity`, `/api/v1/activity/events`.
//!
//! The stream sends every slot once, and then only those that changed, at most four times a second.
//! What happens between two of its messages marks slots and costs nothing else. Must not know who
//! shows them.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::Instant;

use super::error::ApiError;
use super::event_stream::{self, EventSender};
use super::fleet::pool_filter;
use super::request_context::RequestContext;
use super::views::respond_page;
use super::{AppState, HandlerResult};
use crate::api::listing::Slot;
use marshal_fleet::{FleetEvent, SlotView};
use marshal_journal::Reader;
use marshal_model::budget::NANOS_PER_DOLLAR;
use marshal_model::limits;
use marshal_model::{Amount, Event, SessionId, SlotId};
use marshal_telemetry::labels::{StreamEnd, StreamKind};

/// The time between two messages.
const TICK: Duration = Duration::from_millis(250);
/// The maximum number of slots in one message.
const ROWS: usize = 100;

/// What a slot does now.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct SlotActivity {
    /// The slot.
    pub slot: Slot,
    /// The agent of its pool: a preset's name, or `custom`.
    pub agent: String,
    /// The turns of its session since the supervisor has it; `None` before the first.
    pub turns: Option<u32>,
    /// What its session used, in tokens; `None` if nothing was counted.
    pub tokens: Option<u64>,
    /// What its session cost, in US dollars; `None` if nothing was counted.
    pub cost: Option<f64>,
    /// The resident memory of its child in bytes; `None` without a child or a control group.
    pub memory: Option<u64>,
}

/// Slots that changed.
#[derive(Debug, Serialize, Deserialize)]
pub struct ActivityRows {
    /// What they do now.
    pub items: Vec<SlotActivity>,
}

/// The whole fleet in numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActivitySummary {
    /// The number of slots in each state.
    pub slots: BTreeMap<String, usize>,
    /// Tasks that have not ended.
    pub tasks: usize,
    /// Pending approvals.
    pub approvals: usize,
}

impl SlotActivity {
    fn new(app: &AppState, view: SlotView, memory: Option<u64>, spent: Option<Amount>) -> Self {
        let pool = app.fleet.config().pool(view.slot.pool.as_str());
        let session = view.session.as_ref();
        let turns = view.turns.as_ref();
        let turns = turns.filter(|(of, _)| Some(of) == session);
        let spent = spent.filter(|spent| *spent != Amount::default());
        Self {
            agent: pool.map_or(String::new(), |pool| pool.agent.clone()),
            turns: turns.map(|(_, turns)| *turns),
            tokens: spent.map(|spent| spent.tokens),
            cost: spent.map(|spent| spent.nanodollars as f64 / NANOS_PER_DOLLAR as f64),
            memory,
            slot: Slot::from_view(view),
        }
    }
}

/// Reads what these slots do.
async fn read_slots(
    app: &AppState,
    slots: impl IntoIterator<Item = SlotId>,
) -> Result<Vec<(SlotId, SlotActivity)>, ApiError> {
    let fleet = app.fleet.clone();
    let slots: Vec<_> = slots.into_iter().collect();
    let views = tokio::task::spawn_blocking(move || {
        let views = slots.iter().filter_map(|slot| fleet.slot(slot));
        views.collect::<Vec<_>>()
    });
    let views = views
        .await
        .map_err(|_| ApiError::unavailable("the slots cannot be read"))?;
    let sessions: Vec<SessionId> = views
        .iter()
        .filter_map(|(view, _)| view.session.clone())
        .collect();
    let read = move |reader: &Reader| {
        let spent = sessions.into_iter().map(|session| {
            let spent = reader.session_spend(&session)?;
            Ok((session, spent))
        });
        spent.collect::<Result<HashMap<_, _>, _>>()
    };
    let spent = app.journal.read(read).await?;
    let items = views.into_iter().map(|(view, memory)| {
        let spent = view.session.as_ref().and_then(|of| spent.get(of).copied());
        (
            view.slot.clone(),
            SlotActivity::new(app, view, memory, spent),
        )
    });
    Ok(items.collect())
}

pub(super) async fn list(app: AppState, request: RequestContext) -> HandlerResult {
    let pool = pool_filter(&app, &request)?;
    let slots = app.fleet.slots().into_iter().map(|view| view.slot);
    let slots = slots.filter(|slot| pool.as_ref().is_none_or(|pool| slot.pool == *pool));
    let items = read_slots(&app, slots).await?;
    let place = |item: &SlotActivity| format!("{}/{:05}", item.slot.pool, item.slot.number);
    Ok(respond_page(
        items.into_iter().map(|(_, item)| item),
        place,
        request.query_param("cursor"),
        request.limit() as usize,
    ))
}

pub(super) async fn stream(app: AppState, request: RequestContext) -> HandlerResult {
    let (permits, stop) = (Arc::clone(&app.stream_permits), app.stop.clone());
    let has_rows = request.flag("rows").unwrap_or(true);
    event_stream::open(StreamKind::Fleet, &permits, stop, request, |sender| {
        let stream = ActivityStream {
            events: app.fleet.subscribe(),
            app,
            sender,
            has_rows,
            sent: HashMap::new(),
            states: BTreeMap::new(),
            summary: None,
        };
        async move { stream.follow().await.err().unwrap_or(StreamEnd::Stopping) }
    })
}

/// One client's stream.
struct ActivityStream {
    app: AppState,
    sender: EventSender,
    events: Receiver<FleetEvent>,
    /// Whether it has slots, besides the summary.
    has_rows: bool,
    /// The digest of what was sent of each slot, and its state.
    sent: HashMap<SlotId, (u64, String)>,
    /// The number of slots in each state, as sent.
    states: BTreeMap<String, usize>,
    summary: Option<ActivitySummary>,
}

/// What to send next.
#[derive(Default)]
struct Marks {
    slots: BTreeSet<SlotId>,
    /// Something happened that may change the summary.
    any: bool,
}

impl ActivityStream {
    async fn follow(mut self) -> Result<(), StreamEnd> {
        let mut marks = Marks {
            slots: self.all_slots(),
            any: true,
        };
        loop {
            self.send(std::mem::take(&mut marks)).await?;
            let next = Instant::now() + TICK;
            self.wait(&mut marks).await?;
            while let Ok(waited) = tokio::time::timeout_at(next, self.wait(&mut marks)).await {
                waited?;
            }
        }
    }

    fn all_slots(&self) -> BTreeSet<SlotId> {
        let slots = self.app.fleet.slots().into_iter();
        slots.map(|view| view.slot).collect()
    }

    /// Waits for one event that changes something. Cancel-safe.
    async fn wait(&mut self, marks: &mut Marks) -> Result<(), StreamEnd> {
        loop {
            tokio::select! {
                event = self.events.recv() => match event {
                    Ok(event) => if mark(&event, marks) {
                        return Ok(());
                    },
                    Err(RecvError::Lagged(_)) => {
                        *marks = Marks { slots: self.all_slots(), any: true };
                        return Ok(());
                    }
                    Err(RecvError::Closed) => return Err(StreamEnd::Stopping),
                },
                () = self.app.stop.cancelled() => return Err(StreamEnd::Stopping),
                () = tokio::time::sleep(limits::APPROVAL_STREAM_KEEPALIVE) => {
                    self.sender.keep_alive().await?;
                }
                () = self.sender.closed() => return Err(StreamEnd::Gone),
            }
        }
    }

    async fn send(&mut self, marks: Marks) -> Result<(), StreamEnd> {
        let failed = |_| StreamEnd::Failed;
        let items = read_slots(&self.app, marks.slots).await.map_err(failed)?;
        let mut rows = Vec::new();
        for (slot, item) in items {
            let json = serde_json::to_string(&item).unwrap_or_default();
            let mut hasher = DefaultHasher::new();
            json.hash(&mut hasher);
            let now = (hasher.finish(), item.slot.state.clone());
            let before = self.sent.insert(slot, now.clone());
            if before.as_ref() == Some(&now) {
                continue;
            }
            *self.states.entry(now.1).or_default() += 1;
            if let Some((_, state)) = before
                && let Some(count) = self.states.get_mut(&state)
            {
                *count -= 1;
            }
            rows.push(item);
        }
        self.states.retain(|_, count| *count > 0);
        while self.has_rows && !rows.is_empty() {
            let rest = rows.split_off(rows.len().min(ROWS));
            let items = ActivityRows { items: rows };
            let json = serde_json::to_string(&items).unwrap_or_default();
            self.sender.send(None, "rows", &json).await?;
            rows = rest;
        }
        let pools = self.app.fleet.pool_views();
        let summary = ActivitySummary {
            slots: self.states.clone(),
            tasks: pools.iter().map(|pool| pool.tasks).sum(),
            approvals: pools.iter().map(|pool| pool.pending_approvals).sum(),
        };
        if marks.any && self.summary.as_ref() != Some(&summary) {
            let json = serde_json::to_string(&summary).unwrap_or_default();
            self.sender.send(None, "summary", &json).await?;
            self.summary = Some(summary);
        }
        Ok(())
    }
}

/// Marks what an event changes; whether it changes anything.
fn mark(event: &FleetEvent, marks: &mut Marks) -> bool {
    let slot = match event {
        FleetEvent::SlotChanged { slot, .. }
        | FleetEvent::TaskAssigned { slot, .. }
        | FleetEvent::ApprovalPending { slot, .. }
        | FleetEvent::EventsSkipped { slot, .. } => Some(slot),
        FleetEvent::SessionEvents { slot, events, .. } => {
            if !events.iter().any(|event| changes_row(&event.event)) {
                return false;
            }
            Some(slot)
        }
        FleetEvent::TaskEnded(report) => report.slot.as_ref(),
        FleetEvent::TaskQueued { .. }
        | FleetEvent::PoolPaused { .. }
        | FleetEvent::RunPaused { .. } => None,
    };
    marks.any = true;
    marks.slots.extend(slot.cloned());
    true
}

/// Whether an event changes what is shown of its slot. Text and tool calls, which are most of all
/// events, do not.
fn changes_row(event: &Event) -> bool {
    matches!(
        event,
        Event::ChildStarted { .. }
            | Event::Ready(_)
            | Event::TurnStarted { .. }
            | Event::TurnEnded { .. }
            | Event::Usage(_)
            | Event::ContextUsed { .. }
            | Event::PermissionDecided(_)
            | Event::ChildExited { .. }
    )
}
