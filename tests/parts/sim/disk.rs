//! A disk of moods under the journal: swift, slow, stalled, full, locked by somebody else.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use marshal_journal::{DiskSpace, Journal, SpaceProbe, Step, Stepper};
use rusqlite::Connection;
use tokio::sync::oneshot;

use crate::sim::ledger::Ledger;
use crate::sim::random::SeededRandom;
use crate::sim::world::{Twist, Wildness};

/// Answers how much room there is.
pub(crate) fn probe(short: &Arc<AtomicBool>) -> SpaceProbe {
    let short = Arc::clone(short);
    Box::new(move |_| {
        let free = if short.load(Ordering::Relaxed) {
            0
        } else {
            u64::MAX
        };
        Ok(DiskSpace { free })
    })
}

/// A disk at work.
pub(crate) struct Disk {
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) journal: Journal,
    pub(crate) stepper: Stepper,
    pub(crate) short: Arc<AtomicBool>,
    pub(crate) dice: SeededRandom,
    pub(crate) wildness: Wildness,
    pub(crate) twist: Twist,
}

impl Disk {
    /// Works until it is told that nothing comes any more, and everything is durable.
    pub(crate) async fn work(mut self, mut over: oneshot::Receiver<()>) {
        let pace = self.dice.pick(&[0, 0, 2, 50, 3_000]);
        let most = usize::try_from(self.dice.pick(&[1, 3, 40, 4_096])).expect("small");
        let moody = self.wildness.percent(&mut self.dice, 50);
        loop {
            tokio::select! {
                biased;
                () = self.stepper.wait_for_work() => {}
                _ = &mut over, if self.journal.backlog() == 0 => return,
            }
            let pause = self.dice.ms(pace);
            tokio::time::sleep(pause).await;
            if moody && self.dice.percent(3) {
                self.mood().await;
            }
            if !self.step(most) {
                return;
            }
        }
    }

    fn step(&mut self, most: usize) -> bool {
        match self.stepper.step(most) {
            Step::Durable(commits) => {
                if self.twist == Twist::Forgetful {
                    self.forget();
                }
                self.ledger.settled(commits);
            }
            Step::Refused => self.ledger.saw("a refused batch"),
            Step::Idle => {}
            Step::Closed => return false,
        }
        true
    }

    /// For a while the disk does not do what it should; it is tried all the same.
    async fn mood(&mut self) {
        let time = self.dice.ms(120_000);
        self.ledger.step("the disk has a mood");
        let locked = match self.dice.between(0, 3) {
            0 => {
                self.ledger.saw("a full disk");
                self.stepper.set_full(true);
                None
            }
            1 => {
                self.ledger.saw("a locked database");
                let other = Connection::open(self.journal.file()).expect("the database");
                other.execute_batch("BEGIN IMMEDIATE").expect("a lock");
                Some(other)
            }
            2 => {
                self.ledger.saw("little room");
                self.short.store(true, Ordering::Relaxed);
                None
            }
            _ => {
                self.ledger.saw("a stalled disk");
                tokio::time::sleep(time).await;
                return;
            }
        };
        for _ in 0..4 {
            self.step(4_096);
            tokio::time::sleep(time / 4).await;
        }
        drop(locked);
        self.stepper.set_full(false);
        self.short.store(false, Ordering::Relaxed);
        self.ledger.step("the disk is well again");
    }

    /// Broken on purpose: what was told to be durable is gone.
    fn forget(&mut self) {
        if self.dice.percent(10) {
            forget_one(self.journal.file());
        }
    }
}

fn forget_one(file: &Path) {
    let other = Connection::open(file).expect("the database");
    let sql = "DELETE FROM events WHERE kind = 'turn_ended' \
               AND session = (SELECT max(session) FROM events WHERE kind = 'turn_ended')";
    other.execute_batch(sql).expect("a deletion");
}
