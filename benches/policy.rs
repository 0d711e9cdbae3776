//! The cost of a decision: median and 99th percentile, by the number of rules and the length of the
//! command.
//!
//! In the same run, also the cost of masking known secrets.
//!
//! Prints one JSON line for each measurement. Decisions are timed one by one, warm, on one thread,
//! by the thread's own CPU time and by wall time.

use std::fmt::Write as _;
use std::hint::black_box;
use std::time::{Duration, Instant};

use marshal_model::AgentClaims;
use marshal_policy::{FsContext, Mask, NoLinks, Policy, Request, builtin_text};
use serde_json::value::RawValue;

/// The number of timed decisions for each line.
const ROUNDS: usize = 5_000;

/// The number of known secrets: as many as a large fleet has.
const SECRETS: usize = 50;

fn main() {
    let long = long_command();
    let plain = "cargo test --lib 2>&1 | tail -20";
    // With `-- masking`: only that.
    let is_masking_alone = std::env::args().any(|arg| arg == "masking");
    let more: &[usize] = if is_masking_alone {
        &[]
    } else {
        &[0, 100, 1_000, 9_900]
    };
    for &rules in more {
        let (policy, load) = with_rules(rules);
        for (name, command) in [("plain", plain), ("8KiB", &long), ("8KiB-echo", &echo())] {
            let times = measure(&policy, command);
            report(name, command.len(), &policy, load, &times);
        }
    }
    masking("plain", plain);
    masking("8KiB", &long);
    masking("8KiB-echo", &echo());
}

/// Times masking and deciding of the same input under `developer`, and prints the ratio.
#[expect(clippy::expect_used, reason = "a bench ends with its first failure")]
#[expect(clippy::print_stdout, reason = "its output")]
fn masking(name: &str, command: &str) {
    let secrets: Vec<_> = (0..SECRETS)
        .map(|at| (format!("SECRET_{at}"), format!("value-{at:04}-of-a-secret")))
        .collect();
    let values: Vec<_> = secrets
        .iter()
        .map(|(name, value)| (name.clone(), value.as_str()))
        .collect();
    let (mask, _) = Mask::new(&values);
    let input = |command: &str| {
        let text = serde_json::json!({"command": command, "description": "what it does"});
        RawValue::from_string(text.to_string()).expect("JSON")
    };
    let (without, with) = (input(command), input(&format!("{command} {}", values[7].1)));
    assert!(
        !mask.mask_json(&with).get().contains(values[7].1),
        "it is masked"
    );
    let [none, _] = timed(|| {
        black_box(mask.mask_json(black_box(&without)));
    });
    let [one, _] = timed(|| {
        black_box(mask.mask_json(black_box(&with)));
    });
    let [decision, _] = measure(&with_rules(0).0, command);
    let median = |times: &[Duration]| times[times.len() / 2].as_secs_f64() * 1e6;
    println!(
        "{{\"masking\":\"{name}\",\"bytes\":{},\"secrets\":{SECRETS},\"none_p50_us\":{:.2},\"one_p50_us\":{:.2},\"decision_p50_us\":{:.2},\"none_over_decision\":{:.3},\"one_over_decision\":{:.3}}}",
        command.len(),
        median(&none),
        median(&one),
        median(&decision),
        median(&none) / median(&decision),
        median(&one) / median(&decision),
    );
}

/// `developer` with this many more rules, each for a program of its own.
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

/// A command with the maximum number of subcommands and bytes that a policy reads.
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

/// CPU time and wall time, each in ascending order.
fn measure(policy: &Policy, command: &str) -> [Vec<Duration>; 2] {
    let claimed = AgentClaims::default();
    let place = FsContext {
        workspace: "/workspace",
        home: "/home/agent",
        cwd: Some("/workspace"),
        resolver: &NoLinks,
    };
    let request = Request::Shell {
        command: command.to_owned(),
        cwd: None,
    };
    timed(|| {
        black_box(policy.decide(black_box(&request), &claimed, &place));
    })
}

/// CPU time and wall time of all rounds, each in ascending order.
fn timed(work: impl Fn()) -> [Vec<Duration>; 2] {
    let run = || {
        let (start, began) = (cpu(), Instant::now());
        work();
        (cpu().saturating_sub(start), began.elapsed())
    };
    for _ in 0..ROUNDS / 10 {
        black_box(run());
    }
    let (cpu, wall): (Vec<_>, Vec<_>) = (0..ROUNDS).map(|_| run()).unzip();
    [cpu, wall].map(|mut times| {
        times.sort_unstable();
        times
    })
}

/// The CPU time of this thread. Unlike wall time, it does not grow with other work.
fn cpu() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(
        u64::try_from(now.tv_sec).unwrap_or_default(),
        u32::try_from(now.tv_nsec).unwrap_or_default(),
    )
}

#[expect(clippy::print_stdout, reason = "its output")]
fn report(
    name: &str,
    bytes: usize,
    policy: &Policy,
    load: Duration,
    [times, wall]: &[Vec<Duration>; 2],
) {
    let us = |time: Duration| time.as_secs_f64() * 1e6;
    println!(
        "{{\"command\":\"{name}\",\"bytes\":{bytes},\"rules\":{},\"p50_us\":{:.2},\"p99_us\":{:.2},\"wall_p50_us\":{:.2},\"wall_p99_us\":{:.2},\"load_ms\":{:.1}}}",
        policy.rule_count(),
        us(times[times.len() / 2]),
        us(times[times.len() * 99 / 100]),
        us(wall[wall.len() / 2]),
        us(wall[wall.len() * 99 / 100]),
        load.as_secs_f64() * 1e3,
    );
}
