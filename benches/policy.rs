//! What a decision costs: median and the 99th of 100, by how many rules there are and how long the
//! command is.
//!
//! Prints one JSON line for each measurement. Decisions are timed one by one, warm, on one thread, by
//! the thread's own CPU time.

use std::fmt::Write as _;
use std::hint::black_box;
use std::time::{Duration, Instant};

use marshal::model::Claimed;
use marshal::policy::{NoLinks, Place, Policy, Request, builtin_text};

/// Decisions that are timed for each line.
const ROUNDS: usize = 5_000;

fn main() {
    let long = long_command();
    let plain = "cargo test --lib 2>&1 | tail -20";
    for rules in [0, 100, 1_000, 9_900] {
        let (policy, load) = with_rules(rules);
        for (name, command) in [("plain", plain), ("8KiB", &long), ("8KiB-echo", &echo())] {
            let times = measure(&policy, command);
            report(name, command.len(), &policy, load, &times);
        }
    }
}

/// `developer` with as many more rules, each for a program of its own.
#[expect(clippy::expect_used, reason = "a bench ends with its first failure")]
fn with_rules(more: usize) -> (Policy, Duration) {
    let mut text = builtin_text("developer").expect("the policy").to_owned();
    for at in 0..more {
        write!(
            text,
            "\n[[rule]]\nid = \"more-{at}\"\ndecision = \"deny\"\ntool = \"shell\"\nargv = [\"program-{at}\"]\nany_path = \"outside\"\n"
        )
        .expect("a string");
    }
    let start = Instant::now();
    let policy = Policy::load(&text, "many", &|name| Err(format!("no {name}")));
    (policy.expect("a policy"), start.elapsed())
}

/// As many commands as a policy reads, in as many bytes.
fn long_command() -> String {
    let mut text = String::new();
    for at in 0..49 {
        let _ = write!(
            text,
            "grep -rn --include=*.rs 'needle number {at} in a haystack of words' src/module_{at}/inner.rs docs/chapter_{at}.md \
             crates/core/src/part_{at}.rs tests/case_{at}.rs >/dev/null && "
        );
    }
    text.truncate(text.rfind("&& grep").unwrap_or(text.len()).min(8_180));
    let end = text.rfind(" && ").unwrap_or(0);
    text.truncate(end);
    text
}

fn echo() -> String {
    format!("echo {}", "words ".repeat(1_364))
}

fn measure(policy: &Policy, command: &str) -> Vec<Duration> {
    let claimed = Claimed::default();
    let place = Place {
        workspace: "/workspace",
        home: "/home/agent",
        cwd: Some("/workspace"),
        resolver: &NoLinks,
    };
    let request = Request::Shell {
        command: command.to_owned(),
        cwd: None,
    };
    let run = || {
        let start = cpu();
        black_box(policy.decide(black_box(&request), &claimed, &place));
        cpu().saturating_sub(start)
    };
    for _ in 0..ROUNDS / 10 {
        black_box(run());
    }
    let mut times: Vec<_> = (0..ROUNDS).map(|_| run()).collect();
    times.sort_unstable();
    times
}

/// What this thread has computed so far: unlike the time of day, other work does not lengthen it.
fn cpu() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(
        u64::try_from(now.tv_sec).unwrap_or_default(),
        u32::try_from(now.tv_nsec).unwrap_or_default(),
    )
}

#[expect(clippy::print_stdout, reason = "its output")]
fn report(name: &str, bytes: usize, policy: &Policy, load: Duration, times: &[Duration]) {
    let us = |time: Duration| time.as_secs_f64() * 1e6;
    println!(
        "{{\"command\":\"{name}\",\"bytes\":{bytes},\"rules\":{},\"p50_us\":{:.2},\"p99_us\":{:.2},\"load_ms\":{:.1}}}",
        policy.rules(),
        us(times[times.len() / 2]),
        us(times[times.len() * 99 / 100]),
        load.as_secs_f64() * 1e3,
    );
}
