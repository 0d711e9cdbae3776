//! Seeded simulation of the fleet: the real pools, sessions, channels and journal, with simulated
//! children, a simulated disk and a simulated clock. One seed is one world; the same seed is the
//! same world again.
//!
//! A seed that fails is printed with the command that runs it again, with its trace:
//! `MARSHAL_SIM_SEED=<seed> cargo test --test parts sim -- --nocapture`.

mod agent;
mod check;
mod disk;
mod fairness;
mod host;
mod ledger;
mod protocol;
mod random;
mod script;
mod supervisor_life;
mod world;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use world::{Outcome, Twist, run};

/// Seeds of the short run, and of `tests/run --all`.
const SEEDS: u64 = 2_000;
const SEEDS_LONG: u64 = 10_000;
/// Real time that one world may take before it counts as hanging.
const STUCK: Duration = Duration::from_secs(300);

/// What some world must have had, or the simulation is not what it says.
const REACHED: &[&str] = &[
    "a full disk",
    "a locked database",
    "a pipe held by somebody else",
    "a refused batch",
    "a run is taken up",
    "a stalled disk",
    "allowed",
    "an ask that a cancel ends",
    "an ask twice",
    "another version",
    "cancelled run",
    "cancelled turn",
    "crash before ready",
    "crash in a turn",
    "deaf to a signal",
    "denied",
    "done",
    "drained fleet",
    "flood",
    "killed supervisor",
    "late ask",
    "lost",
    "never reads",
    "never ready",
    "no process",
    "nothing new is taken",
    "restarted by hand",
    "skipped",
    "stdout closed in a turn",
    "timed_out",
];

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn again(seed: u64) -> String {
    format!("MARSHAL_SIM_SEED={seed} cargo test --test parts sim::any_seed -- --nocapture")
}

/// Past the test harness, which shows nothing of a process that it does not end itself.
fn tell(what: &str) {
    let _ = writeln!(std::io::stderr(), "{what}");
}

/// Runs many seeds on all cores; ends with the first one that fails.
fn run_seeds(from: u64, count: u64) -> BTreeMap<&'static str, u64> {
    let next = AtomicU64::new(from);
    let seen = Mutex::new(BTreeMap::new());
    let failed = Mutex::new(None);
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= from + count || failed.lock().expect("a lock").is_some() {
                        return;
                    }
                    let outcome = watched(seed, Twist::Nothing, false);
                    let mut seen = seen.lock().expect("a lock");
                    for (what, times) in outcome.seen {
                        *seen.entry(what).or_default() += times;
                    }
                    if !outcome.faults.is_empty() {
                        *failed.lock().expect("a lock") = Some((seed, outcome.faults));
                    }
                }
            });
        }
    });
    if let Some((seed, faults)) = failed.into_inner().expect("a lock") {
        panic!(
            "seed {seed}:\n{}\nagain: {}",
            faults.join("\n"),
            again(seed)
        );
    }
    seen.into_inner().expect("a lock")
}

/// Runs a seed; a world that hangs, or panics, still says its seed.
fn watched(seed: u64, twist: Twist, prints: bool) -> Outcome {
    struct SeedReport(u64);
    impl Drop for SeedReport {
        fn drop(&mut self) {
            if std::thread::panicking() {
                tell(&format!(
                    "seed {} panicked; again: {}",
                    self.0,
                    again(self.0)
                ));
            }
        }
    }
    let says = SeedReport(seed);
    let (done, is_done) = std::sync::mpsc::sync_channel::<()>(1);
    std::thread::spawn(move || {
        let ended = is_done.recv_timeout(STUCK);
        if matches!(ended, Err(std::sync::mpsc::RecvTimeoutError::Timeout)) {
            tell(&format!("seed {seed} hangs; again: {}", again(seed)));
            std::process::exit(101);
        }
    });
    let outcome = run(seed, twist, prints);
    drop(done);
    drop(says);
    outcome
}

#[test]
fn any_seed_keeps_every_promise() {
    if let Some(seed) = number("MARSHAL_SIM_SEED") {
        let outcome = watched(seed, Twist::Nothing, true);
        assert!(outcome.faults.is_empty(), "{}", outcome.faults.join("\n"));
        return;
    }
    let long = number("MARSHAL_TEST_LONG").is_some_and(|long| long > 0);
    let count = number("MARSHAL_SIM_SEEDS").unwrap_or(if long { SEEDS_LONG } else { SEEDS });
    let from = number("MARSHAL_SIM_FROM").unwrap_or(1);
    let began = Instant::now();
    let seen = run_seeds(from, count);
    println!("{count} seeds in {:?}: {seen:#?}", began.elapsed());
    if count >= 500 {
        for what in REACHED {
            assert!(seen.contains_key(what), "no world had this: {what}");
        }
    }
}

#[test]
fn the_same_seed_is_the_same_world_again() {
    let from = number("MARSHAL_SIM_FROM").unwrap_or(1);
    for seed in from..from + 100 {
        let once = watched(seed, Twist::Nothing, false);
        let twice = watched(seed, Twist::Nothing, false);
        assert_eq!(once.digest, twice.digest, "seed {seed} has two traces");
    }
}

/// A simulation that finds nothing must be one that could have.
#[test]
fn what_is_broken_on_purpose_is_found() {
    for (twist, words) in [
        (Twist::Hasty, "when the durable verdict was"),
        (Twist::Forgetful, "has no end"),
        (Twist::Echo, "prompts when"),
        (Twist::Immortal, "after the stop"),
    ] {
        let found = (1..100).any(|seed| {
            let faults = watched(seed, twist, false).faults;
            faults.iter().any(|fault| fault.contains(words))
        });
        assert!(found, "{twist:?} was not found");
    }
}
