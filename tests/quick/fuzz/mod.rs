//! Fuzzing on stable: every dialect, the framing and the other readers of foreign bytes, by inputs
//! that are made of recorded ones; and every input that was found before, again.
//!
//! `MARSHAL_FUZZ_SECONDS` is the time for all targets together (20; `tests/run` says more), `MARSHAL_FUZZ_SEED`
//! begins with the same numbers again, `MARSHAL_FUZZ_CASE=FILE cargo test --test quick fuzz::TARGET` plays one input.
//! What is found is made small and saved below the target directory.

mod broken;
pub(crate) mod harness;

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash as _, Hasher as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use harness::{Target, dialects, flood, mutated, run, seeds};
use marshal_config::DialectName;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// Inputs that are tried at least, however short the time is.
const LEAST: u64 = 200;
/// One input takes no longer; on a busy machine milliseconds become seconds, not minutes.
const HANGS: Duration = Duration::from_secs(120);
/// Inputs that were tried when a failing one is made smaller.
const SHRINKS: usize = 2_000;

fn number(name: &str) -> Option<u64> {
    let word = env::var(name).ok()?;
    Some(
        word.parse()
            .unwrap_or_else(|_| panic!("{name}={word} is no number")),
    )
}

fn fails(target: Target, input: &[u8]) -> bool {
    catch_unwind(AssertUnwindSafe(|| run(target, input))).is_err()
}

/// Without the lines that it does not need.
fn smaller(target: Target, input: &[u8]) -> Vec<u8> {
    let mut lines: Vec<&[u8]> = input.split_inclusive(|byte| *byte == b'\n').collect();
    let (mut size, mut tries) = (lines.len().div_ceil(2), 0);
    while size > 0 && tries < SHRINKS {
        let mut at = 0;
        while at < lines.len() && tries < SHRINKS {
            tries += 1;
            let mut less = lines.clone();
            less.drain(at..(at + size).min(less.len()));
            if fails(target, &less.concat()) {
                lines = less;
            } else {
                at += size;
            }
        }
        size /= 2;
    }
    lines.concat()
}

/// Saves an input and says where it is, and how it is played again.
fn saved(target: Target, input: &[u8]) -> String {
    let mut hasher = DefaultHasher::new();
    input.hash(&mut hasher);
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
        .join("fuzz")
        .join(target.as_str());
    fs::create_dir_all(&folder).unwrap();
    let file = folder.join(format!("{:016x}", hasher.finish()));
    fs::write(&file, input).unwrap();
    let file = file.display();
    let word = target.as_str();
    let text = String::from_utf8_lossy(&input[..input.len().min(2000)]);
    format!(
        "{word} fails on\n{text}\nsaved in {file}; again: MARSHAL_FUZZ_CASE={file} cargo test --test quick fuzz::{word}; \
         when it is repaired, keep it in tests/quick/fuzz/found/{word}/"
    )
}

/// What the worker tries at the moment.
type Current = Arc<Mutex<Vec<u8>>>;

/// Tries inputs until the time is over; gives how many there were.
fn work(target: Target, time: Duration, seed: u64, current: &Current, alive: &dyn Fn()) -> u64 {
    let seeds = seeds(target);
    let mut random = StdRng::seed_from_u64(seed);
    let begun = Instant::now();
    let mut poured = Duration::ZERO;
    let mut tried = 0;
    while tried < LEAST || begun.elapsed() < time {
        tried += 1;
        let from = &seeds[random.random_range(0..seeds.len())];
        let input = mutated(target, from, &seeds, &mut random);
        current.lock().unwrap().clone_from(&input);
        assert!(
            !fails(target, &input),
            "{}",
            saved(target, &smaller(target, &input))
        );
        alive();
        // A flood costs as much as hundreds of inputs: a quarter of the time, and one at least.
        if target.is_dialect() && (poured.is_zero() || poured * 4 < begun.elapsed()) {
            let from_now = Instant::now();
            pour(target, from, random.random());
            alive();
            poured += from_now.elapsed();
        }
    }
    tried
}

/// One flood of a conversation: its seed says of which line.
fn pour(target: Target, from: &[u8], seed: u64) {
    let poured = catch_unwind(AssertUnwindSafe(|| {
        let mut random = StdRng::seed_from_u64(seed);
        flood(target, from, &mut random, &|| dialects::build(target));
    }));
    assert!(
        poured.is_ok(),
        "the flood of MARSHAL_FUZZ_FLOOD={seed}: {}",
        saved(target, from)
    );
}

fn fuzz(target: Target) {
    if let Some(file) = env::var_os("MARSHAL_FUZZ_CASE") {
        let input = fs::read(file).unwrap();
        return match number("MARSHAL_FUZZ_FLOOD") {
            Some(seed) => pour(target, &input, seed),
            None => run(target, &input),
        };
    }
    let seconds = number("MARSHAL_FUZZ_SECONDS").unwrap_or(20);
    let targets = u32::try_from(Target::ALL.len()).unwrap();
    let time = Duration::from_secs(seconds) / targets;
    let seed = number("MARSHAL_FUZZ_SEED").unwrap_or_else(|| rand::rng().random());
    println!("{}: MARSHAL_FUZZ_SEED={seed}", target.as_str());
    let current = Current::default();
    let (sender, reported) = sync_channel(1);
    let worker = {
        let current = Arc::clone(&current);
        thread::spawn(move || work(target, time, seed, &current, &|| _ = sender.try_send(())))
    };
    loop {
        match reported.recv_timeout(HANGS) {
            Ok(()) => {}
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                let input = current.lock().unwrap().clone();
                panic!("it does not end: {}", saved(target, &input));
            }
        }
    }
    match worker.join() {
        Ok(tried) => println!("{}: {tried} inputs", target.as_str()),
        Err(cause) => std::panic::resume_unwind(cause),
    }
}

/// A test for each target, of that name.
macro_rules! targets {
    ($($name:ident $target:ident,)*) => {
        $(
            #[test]
            fn $name() {
                fuzz(Target::$target);
            }
        )*

        #[test]
        fn every_target_is_fuzzed() {
            let words = [$((stringify!($name), Target::$target)),*];
            assert!(words.iter().all(|(word, target)| *word == target.as_str()));
            assert!(Target::ALL.iter().all(|one| words.iter().any(|(_, target)| target == one)));
            for dialect in DialectName::ALL {
                assert!(words.iter().any(|(word, _)| *word == dialect.as_str()), "{dialect}");
            }
            // With libFuzzer, too.
            let package = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fuzz");
            let manifest = fs::read_to_string(package.join("Cargo.toml")).unwrap();
            for (word, _) in words {
                let program = format!("fuzz_targets/{word}.rs");
                let text = fs::read_to_string(package.join(&program)).expect(&program);
                assert!(text.contains(&format!("target!({word:?})")), "{program}");
                assert!(manifest.contains(&format!("path = {program:?}")), "{program}");
            }
        }
    };
}

targets! {
    scaiflux Scaiflux,
    acp Acp,
    loaf Loaf,
    claude Claude,
    codex Codex,
    custom Custom,
    skillpilot Skillpilot,
    framing Framing,
    table Table,
    config Config,
    shell Shell,
    mcp Mcp,
    egress Egress,
    route Route,
    journal Journal,
    files Files,
    plan Plan,
}

/// `MARSHAL_FUZZ_CORPUS` says where, for libFuzzer.
#[test]
fn what_mutation_begins_with_can_be_written_down() {
    let usual = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("fuzz-corpus");
    let folder = env::var_os("MARSHAL_FUZZ_CORPUS").map_or(usual, PathBuf::from);
    for target in Target::ALL {
        let folder = folder.join(target.as_str());
        fs::create_dir_all(&folder).unwrap();
        for (number, input) in seeds(target).iter().enumerate() {
            let file = folder.join(format!("seed-{number}"));
            fs::write(&file, input).unwrap();
        }
        assert!(fs::read_dir(&folder).unwrap().count() > 0);
    }
}

#[test]
fn what_was_recorded_and_what_was_found_before_keeps_every_promise() {
    for target in Target::ALL {
        for input in seeds(target) {
            let text = String::from_utf8_lossy(&input[..input.len().min(2000)]);
            assert!(
                !fails(target, &input),
                "{} fails on\n{text}",
                target.as_str()
            );
        }
    }
}
