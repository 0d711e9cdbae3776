//! Progress on standard error: live bars on a terminal, plain lines elsewhere, or nothing.
//!
//! Owns the lower lines of the screen while a run is shown. Must not know which events to show: the
//! [`Board`] decides that.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::board::{Board, Change, Verbosity};
use super::streams::Output;
use marshal_engine::api::run_stream::RunStreamItem;
use marshal_model::SlotId;

/// The most slots with a line; more would push the total off most screens.
const SLOT_LINES: usize = 20;

/// The bars in the lower part of a terminal. Clones are the same screen.
#[derive(Debug, Clone)]
pub struct Screen(MultiProgress);

impl Screen {
    /// The terminal of standard error.
    #[must_use]
    pub fn stderr() -> Self {
        Self(MultiProgress::with_draw_target(ProgressDrawTarget::stderr()))
    }

    /// A writer for logs that does not overwrite the bars.
    #[must_use]
    pub fn writer(&self) -> ScreenWriter {
        ScreenWriter(self.0.clone())
    }
}

/// Writes whole log lines above the bars.
#[derive(Debug)]
pub struct ScreenWriter(MultiProgress);

impl Write for ScreenWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.suspend(|| io::stderr().write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

enum ProgressMode {
    Bars(Bars),
    Lines,
    Nothing,
}

/// The progress of one run.
pub struct Progress {
    board: Board,
    mode: ProgressMode,
}

impl std::fmt::Debug for Progress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Progress")
            .field("board", &self.board)
            .finish_non_exhaustive()
    }
}

impl Progress {
    /// Plain lines on standard error; with `screen`, bars there; nothing if `verbosity` is quiet.
    #[must_use]
    pub fn new(total: usize, verbosity: Verbosity, screen: Option<&Screen>) -> Self {
        let how = match (verbosity, screen) {
            (Verbosity::Quiet, _) => ProgressMode::Nothing,
            (_, Some(screen)) => ProgressMode::Bars(Bars::new(screen, total)),
            (_, None) => ProgressMode::Lines,
        };
        Self {
            board: Board::new(verbosity),
            mode: how,
        }
    }

    /// Shows one item.
    pub fn item(&mut self, item: &RunStreamItem, err: &mut Output) {
        if matches!(self.mode, ProgressMode::Nothing) {
            return;
        }
        let change = self.board.apply(item);
        match &mut self.mode {
            ProgressMode::Bars(bars) => bars.show(&self.board, &change),
            ProgressMode::Lines => change.lines.iter().for_each(|line| err.line(line)),
            ProgressMode::Nothing => {}
        }
    }

    /// Adds tasks to the total.
    pub fn grow(&mut self, more: usize) {
        if let ProgressMode::Bars(bars) = &mut self.mode {
            bars.total
                .inc_length(u64::try_from(more).unwrap_or(u64::MAX));
        }
    }

    /// Shows a note.
    pub fn note(&mut self, text: &str, err: &mut Output) {
        match &mut self.mode {
            ProgressMode::Bars(bars) => bars.above(text),
            ProgressMode::Lines => err.line(text),
            ProgressMode::Nothing => {}
        }
    }

    /// Removes the bars.
    pub fn finish(&mut self) {
        if let ProgressMode::Bars(bars) = &mut self.mode {
            bars.clear();
        }
    }
}

/// One line per slot, and a bar for the total.
struct Bars {
    screen: MultiProgress,
    slots: BTreeMap<SlotId, SlotBar>,
    total: ProgressBar,
}

impl Bars {
    fn new(screen: &Screen, total: usize) -> Self {
        let total = screen
            .0
            .add(ProgressBar::new(u64::try_from(total).unwrap_or(u64::MAX)));
        // If indicatif rejects the template, the bar only looks different.
        if let Ok(style) = ProgressStyle::with_template("[{bar:30}] {pos}/{len}  {elapsed}  {msg}")
        {
            total.set_style(style.progress_chars("#>-"));
        }
        // The elapsed time advances while nothing happens.
        total.enable_steady_tick(Duration::from_secs(1));
        Self {
            screen: screen.0.clone(),
            slots: BTreeMap::new(),
            total,
        }
    }

    fn show(&mut self, board: &Board, change: &Change) {
        if let Some(slot) = &change.slot {
            let line = board.slot_line(slot);
            let has_task = board.has_task(slot);
            if let Some(bar) = self.bar_of(slot) {
                bar.show(line, has_task);
            }
        }
        if change.total {
            let ended = u64::try_from(board.ended_count()).unwrap_or(u64::MAX);
            self.total.set_position(ended);
            self.total.set_message(board.total_line());
        }
        // The slot's line shows the task's progress, but lines that need a person must stay on
        // screen.
        if change.alarm {
            change.lines.iter().for_each(|line| self.above(line));
        }
    }

    /// The slot's line, in the order of the slots; `None` beyond the most lines.
    fn bar_of(&mut self, slot: &SlotId) -> Option<&mut SlotBar> {
        if !self.slots.contains_key(slot) {
            if self.slots.len() >= SLOT_LINES {
                return None;
            }
            let place = self.slots.range(..slot.clone()).count();
            let bar = self.screen.insert(place, ProgressBar::no_length());
            let bar = SlotBar::new(bar);
            self.slots.insert(slot.clone(), bar);
        }
        self.slots.get_mut(slot)
    }

    fn above(&self, text: &str) {
        let _ = self.screen.println(text);
    }

    fn clear(&mut self) {
        for bar in self.slots.values() {
            bar.line.finish_and_clear();
        }
        self.total.finish_and_clear();
        let _ = self.screen.clear();
    }
}

/// One slot's line. While it has a task, it ends with the task's time.
struct SlotBar {
    line: ProgressBar,
    has_task: bool,
}

impl SlotBar {
    fn new(line: ProgressBar) -> Self {
        let mut bar = Self {
            line,
            has_task: true,
        };
        bar.show(String::new(), false);
        bar
    }

    fn show(&mut self, text: String, has_task: bool) {
        if self.has_task != has_task {
            self.has_task = has_task;
            let form = if has_task {
                self.line.reset_elapsed();
                self.line.enable_steady_tick(Duration::from_secs(1));
                "{wide_msg} {elapsed}"
            } else {
                self.line.disable_steady_tick();
                "{wide_msg}"
            };
            if let Ok(style) = ProgressStyle::with_template(form) {
                self.line.set_style(style);
            }
        }
        self.line.set_message(text);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::cli::Streams;
    use marshal_engine::api::test_fixtures::{hostile_items, report};
    use marshal_model::{RunId, TaskId, TaskOutcome};

    fn ended_item() -> RunStreamItem {
        let run = RunId::new("r").expect("id");
        let task = TaskId::new("a").expect("id");
        RunStreamItem::Ended(Arc::new(report(&run, &task, TaskOutcome::Done)))
    }

    #[test]
    fn piped_progress_is_plain_lines_and_quiet_is_none() {
        let (mut streams, _, err) = Streams::captured(false);
        let mut progress = Progress::new(1, Verbosity::Normal, None);
        progress.item(&ended_item(), &mut streams.err);
        progress.note("cancelling", &mut streams.err);
        progress.finish();
        assert_eq!(err.text(), "a: done in 1.2s\ncancelling\n");
        let (mut streams, _, err) = Streams::captured(false);
        let mut progress = Progress::new(1, Verbosity::Quiet, None);
        progress.item(&ended_item(), &mut streams.err);
        progress.finish();
        assert_eq!(err.text(), "");
    }

    #[test]
    fn bars_stand_in_the_order_of_their_slots_and_are_bounded() {
        let hidden = MultiProgress::with_draw_target(ProgressDrawTarget::hidden());
        let mut bars = Bars::new(&Screen(hidden), 3);
        for index in [3_u16, 0, 2, 1] {
            assert!(
                bars.bar_of(&marshal_engine::api::test_fixtures::slot(index))
                    .is_some()
            );
        }
        for index in 4..50 {
            bars.bar_of(&marshal_engine::api::test_fixtures::slot(index));
        }
        assert_eq!(bars.slots.len(), SLOT_LINES);
        let mut board = Board::new(Verbosity::Normal);
        for notice in hostile_items("\u{1b}[2J").1 {
            let change = board.apply(&RunStreamItem::Notice(notice));
            bars.show(&board, &change);
        }
        for bar in bars.slots.values() {
            assert!(
                !bar.line
                    .message()
                    .chars()
                    .any(marshal_model::untrusted::is_unsafe)
            );
        }
        bars.clear();
    }
}
