//! A decision's time does not grow with the number of rules, nor badly with the text.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use marshal_model::AgentClaims;
use marshal_policy::{FsContext, NoLinks, Policy, Request, builtin_text};

fn place() -> FsContext<'static> {
    FsContext {
        workspace: "/workspace",
        home: "/home/agent",
        cwd: Some("/workspace"),
        resolver: &NoLinks,
    }
}

fn with_rules(extra: usize) -> Policy {
    let mut text = builtin_text("developer").expect("the policy").to_owned();
    for i in 0..extra {
        write!(
            text,
            "\n[[rule]]\nid = \"extra-{i}\"\ndecision = \"deny\"\ntool = \"shell\"\nargv = [\"program-{i}\"]\nany_path = \"outside\"\n"
        )
        .expect("a string");
    }
    Policy::load(&text, "many", &|name| Err(format!("no {name}"))).expect("a policy")
}

fn shell(command: impl Into<String>) -> Request {
    Request::Shell {
        command: command.into(),
        cwd: None,
    }
}

/// The fastest of several runs, which noise from other work reaches least.
fn fastest(policy: &Policy, request: &Request) -> Duration {
    let run = || {
        let start = Instant::now();
        policy.decide(request, &AgentClaims::default(), &place());
        start.elapsed()
    };
    (0..15).map(|_| run()).min().expect("runs")
}

#[test]
fn the_number_of_rules_does_not_slow_a_decision() {
    let request = shell("cd src && cargo test --release 2>&1 | tail -n 20; git log --oneline");
    let few = fastest(&with_rules(0), &request);
    let many = fastest(&with_rules(1_000), &request);
    println!("{few:?} with few rules, {many:?} with 1,000 more");
    assert!(
        many < few * 4 + Duration::from_micros(200),
        "{few:?} grew to {many:?}"
    );
}

#[test]
fn no_text_makes_the_engine_slow() {
    let policy = with_rules(0);
    let whole = 64 << 10;
    for unit in [
        "a ",
        "env ",
        "sudo ",
        "a;",
        "a|",
        "\"$(",
        "$((",
        "`",
        "'",
        "a/",
        "../",
        "~/ ",
        "*/",
        "eval '",
        "sh -c \"",
        "find . -exec ",
        "xargs ",
        "cd a;",
        "cd a||",
        "watch ",
        "<<a ",
        "{a,b}",
        "x=",
        "-rf ",
        "\\\n",
        "rm -rf * ",
        "cat .e* ",
        "/etc/../",
        "bash -s <<E\n",
        "su -c ",
        "env -S ",
        "nice nice -n ",
    ] {
        let text = unit.repeat(whole / unit.len());
        let start = Instant::now();
        policy.decide(&shell(text), &AgentClaims::default(), &place());
        let took = start.elapsed();
        // Linear work takes a fraction of a second, quadratic work of this size minutes.
        assert!(took < Duration::from_secs(10), "{unit:?} took {took:?}");
    }
}

#[test]
#[ignore = "a measurement, for an optimised build: prints p50 and p99 at 1,000 rules and 8 KiB"]
fn measure_decisions() {
    let policy = with_rules(1_000);
    for (name, unit) in [
        ("words", "cat src/main.rs docs/guide.md && "),
        ("echo", "aaaa bbbb "),
        ("paths", "a/b/c "),
    ] {
        let text = match name {
            "words" => format!("{}true", unit.repeat(49)),
            "echo" => format!("echo {}", unit.repeat(8_000 / unit.len())),
            _ => format!("ls {}", unit.repeat(8_000 / unit.len())),
        };
        let request = shell(text);
        let mut times: Vec<_> = (0..2_000)
            .map(|_| {
                let start = Instant::now();
                policy.decide(&request, &AgentClaims::default(), &place());
                start.elapsed()
            })
            .collect();
        times.sort_unstable();
        println!("{name}: p50 {:?}, p99 {:?}", times[1_000], times[1_980]);
    }
}
