//! What a profile may do without: what is missing is named, done without only as far as the profile
//! says so, and then logged, told, counted and shown. Landlock is in `doctor.rs`; here are the limits
//! that control groups hold, on a host that has none.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::children;
use crate::sandbox::doctor::{Host, lacks, out, output_text, row};

const LIMITS: &str = "limits = { memory = \"256M\", cpu = 0.5, pids = 64 }";

fn profile(more: &str) -> String {
    format!("[sandbox.own]\n{LIMITS}\nlimits_held = true\n{more}")
}

fn may_lack(words: &str) -> String {
    profile(&format!(
        "on_missing = \"degrade\"\nallow_degrade = [{words}]"
    ))
}

/// A daemon that ends with its test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The program with these words where no control group can be had: root in a mount namespace
/// without any, others have none anyway.
fn groupless(host: &Host, words: &[&str]) -> Command {
    let plain = host.command(words);
    if !children::is_root() {
        return plain;
    }
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--propagation", "private", "sh", "-c"])
        .args(["umount -R -l /sys/fs/cgroup && exec \"$@\"", "sh"])
        .arg(plain.get_program())
        .args(plain.get_args())
        .current_dir(host.dir.path())
        .env_clear()
        .envs(
            plain
                .get_envs()
                .filter_map(|(name, value)| Some((name, value?))),
        )
        .stdin(Stdio::null());
    command
}

fn run(host: &Host, words: &[&str]) -> Output {
    groupless(host, words).output().unwrap()
}

#[test]
fn limits_that_nothing_holds_are_a_need_or_done_without_as_the_profile_says() {
    let say = ["run", "say hi"];
    let host = Host::new(&profile(""), "sandbox = \"own\"");
    let output = run(&host, &say);
    for feature in ["cgroup.memory", "cgroup.cpu"] {
        lacks(&output, 3, feature, "-");
    }
    assert_eq!(host.homes(), 0, "nothing was begun");
    // One of the two is not both.
    let host = Host::new(
        &may_lack("\"cgroup.memory\", \"landlock\""),
        "sandbox = \"own\"",
    );
    let output = run(&host, &say);
    lacks(&output, 3, "cgroup.cpu", "-");
    assert!(
        !output_text(&output).contains("cgroup.memory "),
        "{}",
        output_text(&output)
    );
    let mut exec = vec!["sandbox", "exec", "own", "--workspace", "project"];
    exec.extend(["--mode", "ro", "--", "true"]);
    lacks(&run(&host, &exec), 125, "cgroup.cpu", "-");

    let host = Host::new(
        &may_lack("\"cgroup.memory\", \"cgroup.cpu\""),
        "sandbox = \"own\"",
    );
    let output = run(&host, &say);
    assert_eq!(output.status.code(), Some(0), "{}", output_text(&output));
    let text = output_text(&output);
    assert!(
        text.contains("does not enforce every limit") && text.contains("not limited: memory, cpu"),
        "{text}"
    );
    let events = out(&host.run(&["--json", "events"]));
    let started = events.lines().find(|line| line.contains("child_started"));
    for word in [r#""cgroup.memory""#, r#""cgroup.cpu""#] {
        assert!(started.unwrap().contains(word), "{events}");
    }
    assert!(!started.unwrap().contains(r#""cgroup.pids""#), "{events}");
    let explained = out(&run(
        &host,
        &["sandbox", "explain", "own", "--workspace", "project"],
    ));
    let doctor = run(&host, &["doctor", "--profile", "own"]);
    assert_eq!(doctor.status.code(), Some(0), "{}", output_text(&doctor));
    for feature in ["cgroup.memory", "cgroup.cpu"] {
        let row = row(&out(&doctor), feature).unwrap();
        assert!(row.contains("own: limits degraded"), "{row}");
        assert!(
            explained.contains(&format!("degraded {feature}")),
            "{explained}"
        );
    }
    // Where there are groups, nothing is done without.
    if children::is_root() {
        let host = Host::new(
            &may_lack("\"cgroup.memory\", \"cgroup.cpu\""),
            "sandbox = \"own\"",
        );
        let output = host.run(&say);
        assert_eq!(output.status.code(), Some(0), "{}", output_text(&output));
        let events = out(&host.run(&["--json", "events"]));
        assert!(
            events.contains("child_started") && !events.contains(r#""cgroup."#),
            "{events}"
        );
    }
}

#[test]
fn each_child_that_goes_without_is_counted() {
    let may_lack = may_lack("\"cgroup.memory\", \"cgroup.cpu\", \"cgroup.pids\"");
    let host = Host::new(&may_lack, "sandbox = \"own\"");
    let log = host.dir.path().join("log");
    let mut up = groupless(&host, &["up"]);
    up.stderr(fs::File::create(&log).unwrap());
    let mut up = Running(up.stdout(Stdio::null()).spawn().unwrap());
    let began = Instant::now();
    let address = loop {
        let text = fs::read_to_string(&log).unwrap();
        assert!(began.elapsed() < Duration::from_secs(30), "{text}");
        let at = text.split_once("listening on http://");
        let at = at.and_then(|(_, rest)| rest.split_once(char::is_whitespace));
        match at {
            Some((at, _)) => break at.trim_end_matches(['.', ',', '/']).to_owned(),
            None => thread::sleep(Duration::from_millis(20)),
        }
    };
    let page = || {
        let mut stream = TcpStream::connect(&address).unwrap();
        write!(stream, "GET /metrics HTTP/1.0\r\nHost: {address}\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    };
    let socket = host.dir.path().join("state/http.sock");
    // It is there a moment before somebody listens at it.
    while UnixStream::connect(&socket).is_err() {
        assert!(began.elapsed() < Duration::from_secs(30), "no socket");
        thread::sleep(Duration::from_millis(20));
    }
    let ran = host.run(&["run", "say hi"]);
    assert_eq!(ran.status.code(), Some(0), "{}", output_text(&ran));
    let counted = |feature: &str| {
        let series =
            format!("marshal_sandbox_degraded_total{{pool=\"demo\",feature=\"{feature}\"}}");
        let text = page();
        let count = text.lines().find_map(|line| line.strip_prefix(&*series));
        count.map(|count| count.trim().parse::<f64>().unwrap())
    };
    for feature in ["cgroup.memory", "cgroup.cpu"] {
        assert!(counted(feature) >= Some(1.0), "{feature}: {}", page());
    }
    // Where a child's processes have a bound of their own, it does not go without.
    assert!(counted("cgroup.pids") < Some(1.0));
    up.0.kill().unwrap();
}
