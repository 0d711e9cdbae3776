//! The current state of a run as text: one line per slot, the total, and lines about events.
//!
//! Pure: takes items, returns texts. Every text here is safe to show. Must not know terminals.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write as _;
use std::time::Duration;

use super::audit::now_us;
use super::short_ids::short;
use marshal_engine::api::run_stream::RunStreamItem;
use marshal_fleet::{FleetEvent, TaskReport};
use marshal_model::budget::format_cost;
use marshal_model::limits;
use marshal_model::untrusted::escape_for_display;
use marshal_model::{
    DecidedBy, Decision, Event, PermissionRequestId, SlotId, SlotState, TaskId, TaskOutcome,
    UntrustedText, Verdict,
};

/// Columns shown of an untrusted word inside a line.
const WORD: usize = 60;
/// Columns shown of an untrusted sentence inside a line.
const SENTENCE: usize = 240;

/// The last lines of a child's stderr that are shown.
const LAST_WORDS: usize = 5;
/// The most pending approvals that are counted.
const WAITING: usize = 1_000;

/// How much progress is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verbosity {
    /// Nothing.
    Quiet,
    /// Important events.
    Normal,
    /// Also allowed requests, tool calls and state changes.
    Verbose,
}

/// One slot's line.
#[derive(Debug, Clone)]
struct SlotLine {
    state: SlotState,
    task: Option<TaskId>,
    /// Of the task: tokens so far, and denied requests.
    tokens: u64,
    denied: u32,
    doing: String,
    /// Open approvals with the tools that they are about.
    approvals: Vec<(PermissionRequestId, String)>,
}

/// The state of one run.
#[derive(Debug)]
pub struct Board {
    ended: usize,
    outcomes: BTreeMap<TaskOutcome, usize>,
    slots: BTreeMap<SlotId, SlotLine>,
    attempts: HashMap<TaskId, u32>,
    /// Requests that wait for a person.
    waiting: BTreeSet<PermissionRequestId>,
    /// Of the tasks that have ended: tokens, and nanodollars.
    tokens: u64,
    cost: u64,
    verbosity: Verbosity,
}

/// The changes that an item made.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Lines to show, in order.
    pub lines: Vec<String>,
    /// The slot whose line has changed.
    pub slot: Option<SlotId>,
    /// Whether the total has changed.
    pub total: bool,
    /// Whether the lines need a person's attention, and so must stay on the screen.
    pub alarm: bool,
}

impl Board {
    /// The state of a run that has not begun.
    #[must_use]
    pub fn new(verbosity: Verbosity) -> Self {
        Self {
            ended: 0,
            outcomes: BTreeMap::new(),
            slots: BTreeMap::new(),
            attempts: HashMap::new(),
            waiting: BTreeSet::new(),
            tokens: 0,
            cost: 0,
            verbosity,
        }
    }

    /// Tasks that have ended.
    #[must_use]
    pub fn ended_count(&self) -> usize {
        self.ended
    }

    /// The known slots, in order.
    pub fn slots(&self) -> impl Iterator<Item = &SlotId> {
        self.slots.keys()
    }

    /// Whether the slot works on a task.
    #[must_use]
    pub fn has_task(&self, slot: &SlotId) -> bool {
        let line = self.slots.get(slot);
        line.is_some_and(|line| line.task.is_some())
    }

    /// One slot's line: slot, state, task, what it has used, and activity.
    #[must_use]
    pub fn slot_line(&self, slot: &SlotId) -> String {
        let Some(line) = self.slots.get(slot) else {
            return String::new();
        };
        let task = line.task.as_ref().map_or("-", TaskId::as_str);
        let mut text = format!("{slot:<8}  {:<11}  {task}", line.state);
        if line.tokens > 0 {
            let _ = write!(text, "  {} tokens", short_count(line.tokens));
        }
        if line.denied > 0 {
            let _ = write!(text, "  {} denied", line.denied);
        }
        let _ = write!(text, "  {}", line.doing);
        text.trim_end().to_owned()
    }

    /// The total as text: `2 done, 1 denied, 12k tokens, $0.40, 1 approval pending`.
    #[must_use]
    pub fn total_line(&self) -> String {
        let outcomes = self.outcomes.iter();
        let mut parts: Vec<String> = outcomes
            .map(|(outcome, count)| format!("{count} {outcome}"))
            .collect();
        if self.tokens > 0 {
            parts.push(format!("{} tokens", short_count(self.tokens)));
        }
        if self.cost > 0 {
            parts.push(format_cost(self.cost));
        }
        match self.waiting.len() {
            0 => {}
            1 => parts.push("1 approval pending".to_owned()),
            count => parts.push(format!("{count} approvals pending")),
        }
        parts.join(", ")
    }

    /// Applies one item.
    pub fn apply(&mut self, item: &RunStreamItem) -> Change {
        match item {
            RunStreamItem::Notice(notice) => self.notice(notice),
            RunStreamItem::Ended(report) => self.end(report),
            RunStreamItem::Lagged(missed) => Change {
                lines: vec![format!(
                    "{missed} notices were skipped because they arrived too fast; their events follow from the journal"
                )],
                ..Change::default()
            },
            RunStreamItem::Complete => Change::default(),
        }
    }

    fn notice(&mut self, notice: &FleetEvent) -> Change {
        match notice {
            FleetEvent::TaskQueued { .. } | FleetEvent::EventsSkipped { .. } => Change::default(),
            FleetEvent::TaskAssigned {
                task,
                slot,
                attempt,
                ..
            } => self.task_assigned(task, slot, *attempt),
            FleetEvent::SlotChanged { slot, state, note } => {
                self.slot_changed(slot, *state, note.as_deref())
            }
            FleetEvent::SessionEvents { slot, events, .. } => {
                let mut change = Change::default();
                for stamped in events.iter() {
                    if let Event::PermissionDecided(verdict) = &stamped.event {
                        change.total |= self.waiting.remove(&verdict.request);
                    }
                    if self.event(slot, &stamped.event, &mut change.lines) {
                        change.slot = Some(slot.clone());
                    }
                }
                change
            }
            FleetEvent::ApprovalPending {
                slot,
                request,
                tool,
                about,
                deadline_us,
                ..
            } => self.approval_pending((slot, request), tool, about, *deadline_us),
            FleetEvent::PoolPaused { pool, wait } => Change {
                lines: vec![match wait {
                    Some(wait) => format!(
                        "{pool}: its provider limits requests; no task starts for {:.1} s",
                        wait.as_secs_f64()
                    ),
                    None => format!("{pool}: its provider accepts requests again"),
                }],
                ..Change::default()
            },
            FleetEvent::RunPaused { run, pool, rules } => Change {
                lines: vec![
                    format!(
                        "run {} is paused: its last tasks were denied, in pool {pool} by {}",
                        short(run.as_str()),
                        named(rules)
                    ),
                    "  once the policy fits, it goes on: a daemon after `marshal reload`"
                        .to_owned(),
                ],
                alarm: true,
                ..Change::default()
            },
            FleetEvent::TaskEnded(report) => self.end(report),
        }
    }

    /// A request that waits for a person, and the command that answers it.
    fn approval_pending(
        &mut self,
        (slot, request): (&SlotId, &PermissionRequestId),
        tool: &UntrustedText,
        about: &UntrustedText,
        deadline_us: i64,
    ) -> Change {
        if self.waiting.len() < WAITING {
            self.waiting.insert(request.clone());
        }
        let line = self.line_of(slot);
        "waits for approval".clone_into(&mut line.doing);
        let task = line.task.as_ref();
        let who = task.map_or_else(|| slot.to_string(), ToString::to_string);
        let left = Duration::from_micros(u64::try_from(deadline_us - now_us()).unwrap_or(0));
        let (tool, about) = (
            tool.escape_for_display(WORD),
            about.escape_for_display(SENTENCE),
        );
        let id = short(request.as_str());
        Change {
            lines: vec![
                format!(
                    "{who}: waits {} for your approval: {tool}: {about}",
                    span(left)
                ),
                format!("  to answer it: marshal approvals approve {id}, or reject {id}"),
            ],
            slot: Some(slot.clone()),
            total: true,
            alarm: true,
        }
    }

    fn line_of(&mut self, slot: &SlotId) -> &mut SlotLine {
        self.slots.entry(slot.clone()).or_insert_with(|| SlotLine {
            state: SlotState::Unloaded,
            task: None,
            tokens: 0,
            denied: 0,
            doing: String::new(),
            approvals: Vec::new(),
        })
    }

    fn task_assigned(&mut self, task: &TaskId, slot: &SlotId, attempt: u32) -> Change {
        let line = self.line_of(slot);
        line.task = Some(task.clone());
        (line.tokens, line.denied) = (0, 0);
        line.doing.clear();
        line.approvals.clear();
        let text = if attempt > 1 {
            format!("{task}: sent again to {slot}, attempt {attempt}")
        } else {
            format!("{task}: assigned to {slot}")
        };
        // A task whose child ended before its prompt was written is assigned again as the same
        // attempt. Show that only once.
        let known = self.attempts.insert(task.clone(), attempt) == Some(attempt);
        Change {
            lines: if known { Vec::new() } else { vec![text] },
            slot: Some(slot.clone()),
            ..Change::default()
        }
    }

    fn slot_changed(&mut self, slot: &SlotId, state: SlotState, note: Option<&str>) -> Change {
        let verbose = self.verbosity >= Verbosity::Verbose;
        let line = self.line_of(slot);
        line.state = state;
        let note = note.map(|note| escape_for_display(note, SENTENCE));
        line.doing = note.clone().unwrap_or_default();
        let is_shown = matches!(state, SlotState::Parked | SlotState::BackingOff) || verbose;
        let text = match note {
            Some(note) => format!("{slot}: {}: {note}", human(state)),
            None => format!("{slot}: {}", human(state)),
        };
        Change {
            lines: if is_shown { vec![text] } else { Vec::new() },
            slot: Some(slot.clone()),
            total: false,
            alarm: state == SlotState::Parked,
        }
    }

    /// Applies an event; returns whether the slot's line has changed.
    fn event(&mut self, slot: &SlotId, event: &Event, lines: &mut Vec<String>) -> bool {
        let verbose = self.verbosity >= Verbosity::Verbose;
        let line = self.line_of(slot);
        let who = || match &line.task {
            Some(task) => task.to_string(),
            None => slot.to_string(),
        };
        let doing = match event {
            Event::Text { .. } => "answers".to_owned(),
            Event::Thought { .. } => "thinks".to_owned(),
            Event::ToolStart { name, .. } => {
                let name = name.escape_for_display(WORD);
                if verbose {
                    lines.push(format!("{}: calls {name}", who()));
                }
                name
            }
            Event::PermissionRequested {
                id,
                request: approval,
            } => {
                let tool = approval.tool.escape_for_display(WORD);
                let doing = format!("asks for {tool}");
                if line.approvals.len() < limits::APPROVALS_PER_SESSION {
                    line.approvals.push((id.clone(), tool));
                }
                doing
            }
            Event::PermissionDecided(verdict) => {
                line.denied += u32::from(verdict.decision == Decision::Deny);
                let place = line
                    .approvals
                    .iter()
                    .position(|(id, _)| *id == verdict.request);
                let tool = place.map_or_else(
                    || "a request".to_owned(),
                    |place| line.approvals.remove(place).1,
                );
                let text = verdict_line(verdict, &tool);
                let who = line
                    .task
                    .as_ref()
                    .map_or_else(|| slot.to_string(), ToString::to_string);
                if verdict.decision != Decision::Allow || verbose {
                    lines.push(format!("{who}: {text}"));
                }
                text
            }
            Event::UnrequestedToolCall {
                tool,
                decision: Decision::Deny,
                rules,
                ..
            } => {
                let (tool, rules) = (tool.escape_for_display(WORD), named(rules));
                lines.push(format!(
                    "{}: {tool} ran without a permission request, against {rules}",
                    who()
                ));
                return false;
            }
            Event::AgentError { code, message, .. } if verbose => {
                let (code, message) = (
                    code.escape_for_display(WORD),
                    message.escape_for_display(SENTENCE),
                );
                lines.push(format!("{}: error {code}: {message}", who()));
                return false;
            }
            Event::ChildExited {
                class,
                detail,
                stderr,
                ..
            } if !class.is_requested() || verbose => {
                let detail = escape_for_display(detail, SENTENCE);
                lines.push(format!("{}: child ended ({class}): {detail}", who()));
                let last = stderr.len().saturating_sub(LAST_WORDS);
                let words = stderr[last..].iter();
                lines.extend(words.map(|line| format!("  {}", line.escape_for_display(SENTENCE))));
                return false;
            }
            Event::Usage(usage) => {
                let tokens = usage.input.saturating_add(usage.output);
                let changed = tokens > line.tokens;
                line.tokens = tokens.max(line.tokens);
                return changed;
            }
            _ => return false,
        };
        let changed = line.doing != doing;
        line.doing = doing;
        changed
    }

    fn end(&mut self, report: &TaskReport) -> Change {
        self.ended += 1;
        *self.outcomes.entry(report.outcome).or_default() += 1;
        self.attempts.remove(&report.task);
        let usage = report.usage.input.saturating_add(report.usage.output);
        self.tokens = self.tokens.saturating_add(usage);
        self.cost = self.cost.saturating_add(report.cost);
        if let Some(slot) = &report.slot {
            let line = self.line_of(slot);
            if line.task.as_ref() == Some(&report.task) {
                line.task = None;
                (line.tokens, line.denied) = (0, 0);
                line.doing.clear();
                line.approvals.clear();
            }
        }
        let mut text = format!("{}: {}", report.task, report.outcome);
        if report.slot.is_some() {
            let _ = write!(text, " in {}", span(report.took));
        }
        if report.outcome != TaskOutcome::Done
            && let Some(detail) = &report.detail
        {
            let _ = write!(text, ": {}", detail.escape_for_display(SENTENCE));
        }
        Change {
            lines: vec![text],
            slot: report.slot.clone(),
            total: true,
            alarm: false,
        }
    }
}

fn verdict_line(verdict: &Verdict, tool: &str) -> String {
    let word = match verdict.decision {
        Decision::Allow => "allowed",
        Decision::Ask => "not answered",
        Decision::Deny => "denied",
    };
    let reason = escape_for_display(&verdict.reason, SENTENCE);
    match (
        verdict.rules.is_empty(),
        verdict.decided_by,
        reason.is_empty(),
    ) {
        (false, _, _) => format!("{word} {tool} by {}", named(&verdict.rules)),
        (true, DecidedBy::Default, _) => format!("{word} {tool} by the policy's default"),
        (true, _, false) => format!("{word} {tool}: {reason}"),
        (true, by, true) => format!("{word} {tool} ({by})"),
    }
}

/// A count in three digits: `999`, `12.3k`, `4.5M`.
fn short_count(count: u64) -> String {
    match count {
        0..1_000 => count.to_string(),
        1_000..1_000_000 => format!("{}.{}k", count / 1_000, count % 1_000 / 100),
        _ => format!("{}.{}M", count / 1_000_000, count % 1_000_000 / 100_000),
    }
}

/// The ids of rules, for a line.
fn named(rules: &[String]) -> String {
    let names: Vec<String> = rules
        .iter()
        .map(|rule| escape_for_display(rule, WORD))
        .collect();
    if names.is_empty() {
        "the policy".to_owned()
    } else {
        escape_for_display(&names.join(", "), SENTENCE)
    }
}

/// A state as text: `backing off`.
fn human(state: SlotState) -> String {
    state.as_str().replace('_', " ")
}

/// A duration as text: `0.3s`, `12.0s`, `3m05s`, `2h07m`.
#[must_use]
pub fn span(duration: Duration) -> String {
    let tenths = duration.as_millis().saturating_add(50) / 100;
    let seconds = tenths / 10;
    match seconds {
        0..60 => format!("{seconds}.{}s", tenths % 10),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        _ => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
    }
}

#[cfg(test)]
#[path = "board_tests.rs"]
mod tests;
