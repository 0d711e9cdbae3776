//! What a host lacks is named, and nothing starts: kernels that refuse a call are made by filters
//! around the real program.

use std::fs;
use std::process::{Command, Output, Stdio};
use std::thread;

use marshal_sandbox::doctor::Feature;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, apply_filter};

use crate::children;

/// A project, a state directory and a configuration.
pub(crate) struct Host {
    pub(crate) dir: tempfile::TempDir,
}

/// What the kernel says to some calls.
#[derive(Clone, Copy)]
struct Refusing {
    calls: &'static [i64],
    says: SyscallResult,
}

#[derive(Clone, Copy)]
enum SyscallResult {
    Errno(i32),
    Kill,
}

impl Host {
    pub(crate) fn new(sandbox: &str, pool: &str) -> Self {
        let host = Self {
            dir: tempfile::tempdir().unwrap(),
        };
        for name in ["project", "home"] {
            fs::create_dir(host.dir.path().join(name)).unwrap();
        }
        fs::write(host.dir.path().join("project/file"), "text").unwrap();
        let at = host.dir.path().display();
        let text = format!(
            "[supervisor]\nstate_dir = \"{at}/state\"\nlisten = \"127.0.0.1:0\"\n{sandbox}\n\
             [pool.demo]\nagent = \"script\"\nworkspace = {{ path = \"{at}/project\" }}\n{pool}\n"
        );
        fs::write(host.dir.path().join("supervisor.toml"), text).unwrap();
        host
    }

    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(children::marshal());
        command
            .arg("--config")
            .arg(self.dir.path().join("supervisor.toml"))
            .args(words)
            .current_dir(self.dir.path())
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("HOME", self.dir.path().join("home"))
            .stdin(Stdio::null());
        command
    }

    pub(crate) fn run(&self, words: &[&str]) -> Output {
        self.command(words).output().unwrap()
    }

    /// Runs it where the kernel refuses these calls. A filter is its thread's and its children's.
    fn without(&self, refusing: Refusing, words: &[&str]) -> Output {
        let mut command = self.command(words);
        let run = move || {
            let action = match refusing.says {
                SyscallResult::Errno(errno) => SeccompAction::Errno(errno.unsigned_abs()),
                SyscallResult::Kill => SeccompAction::KillProcess,
            };
            let rules = refusing.calls.iter().map(|call| (*call, Vec::new()));
            let arch = std::env::consts::ARCH.try_into().unwrap();
            let filter =
                SeccompFilter::new(rules.collect(), SeccompAction::Allow, action, arch).unwrap();
            let filter: BpfProgram = filter.try_into().unwrap();
            apply_filter(&filter).unwrap();
            command.output().unwrap()
        };
        thread::spawn(run).join().unwrap()
    }

    /// Homes that were made for sessions.
    pub(crate) fn homes(&self) -> usize {
        fs::read_dir(self.dir.path().join("state/homes")).map_or(0, Iterator::count)
    }
}

pub(crate) fn output_text(output: &Output) -> String {
    format!(
        "{}\n{}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

pub(crate) fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A line of the table, its columns separated by one blank.
pub(crate) fn row(text: &str, feature: &str) -> Option<String> {
    let line = text
        .lines()
        .find(|line| line.split_whitespace().next() == Some(feature))?;
    Some(line.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// It ends with `code`, and its errors have a row for the feature, which says what the kernel said.
pub(crate) fn lacks(output: &Output, code: i32, feature: &str, errno: &str) {
    assert_eq!(output.status.code(), Some(code), "{}", output_text(output));
    let text = String::from_utf8_lossy(&output.stderr);
    let row = row(&text, feature);
    let row = row.unwrap_or_else(|| panic!("no {feature} in {}", output_text(output)));
    assert!(row.contains(&format!("missing {errno}")), "{row}");
    assert!(text.contains("result"), "{text}");
    assert!(!text.contains(" ok "), "only what is missing: {text}");
}

const UNSHARE: &[i64] = &[libc::SYS_unshare];
const PIVOT_ROOT: &[i64] = &[libc::SYS_pivot_root];
const MOUNT_SETATTR: &[i64] = &[libc::SYS_mount_setattr];
const FSOPEN: &[i64] = &[libc::SYS_fsopen];
const ERRNOS: [(i32, &str); 2] = [(libc::EPERM, "EPERM"), (libc::ENOSYS, "ENOSYS")];

fn refusing(calls: &'static [i64], errno: i32) -> Refusing {
    Refusing {
        calls,
        says: SyscallResult::Errno(errno),
    }
}

#[test]
fn a_call_that_the_kernel_refuses_is_named_and_nothing_starts() {
    let host = Host::new("", "");
    let run = ["run", "say hi"];
    for (errno, name) in ERRNOS {
        for (calls, feature) in [
            (UNSHARE, "user_ns"),
            (PIVOT_ROOT, "pivot_root"),
            (FSOPEN, "mount_api"),
        ] {
            lacks(
                &host.without(refusing(calls, errno), &run),
                3,
                feature,
                name,
            );
        }
        let output = host.without(refusing(MOUNT_SETATTR, errno), &run);
        if children::is_root() {
            lacks(&output, 3, "idmap_state", name);
        } else {
            // Nobody but root maps owners, so that nothing is missing.
            assert_eq!(output.status.code(), Some(0), "{}", output_text(&output));
            fs::remove_dir_all(host.dir.path().join("state")).unwrap();
        }
    }
    assert_eq!(host.homes(), 0, "nothing was begun");
    let output = host.run(&run);
    assert_eq!(output.status.code(), Some(0), "{}", output_text(&output));
    assert!(host.homes() <= 1);
}

/// Everything of Landlock.
const LANDLOCK: &[i64] = &[
    libc::SYS_landlock_create_ruleset,
    libc::SYS_landlock_add_rule,
    libc::SYS_landlock_restrict_self,
];

#[test]
fn landlock_is_a_need_or_done_without_as_the_profile_says() {
    let run = ["run", "say hi"];
    let least = "[sandbox.own]\nlandlock_min_abi = 6";
    let host = Host::new(least, "sandbox = \"own\"");
    let may_lack = format!("{least}\non_missing = \"degrade\"\nallow_degrade = [\"landlock\"]");
    let softer = Host::new(&may_lack, "sandbox = \"own\"");
    for (errno, name) in ERRNOS {
        let none = refusing(LANDLOCK, errno);
        lacks(&host.without(none, &run), 3, "landlock", name);
        assert_eq!(host.homes(), 0, "nothing was begun");
        let output = softer.without(none, &run);
        assert_eq!(output.status.code(), Some(0), "{}", output_text(&output));
        let text = output_text(&output);
        assert!(text.contains("lacks a layer"), "{text}");
        let events = out(&softer.run(&["--json", "events"]));
        // An ordinary user's child lacks more than this.
        let is_told = |line: &&str| {
            let lacks = line.split_once(r#""lacks":["#);
            let words = lacks.and_then(|(_, rest)| rest.split_once(']'));
            words.is_some_and(|(words, _)| words.contains(r#""landlock""#))
        };
        assert!(events.lines().any(|line| is_told(&line)), "{events}");
        let output = softer.without(none, &["doctor"]);
        let row = row(&out(&output), "landlock").unwrap();
        // The profile strict is among those that need it.
        assert!(row.contains("missing"), "{row}");
        let output = softer.without(none, &["doctor", "--profile", "own"]);
        assert_eq!(output.status.code(), Some(0), "{}", output_text(&output));
        let row = self::row(&out(&output), "landlock").unwrap();
        assert!(
            row.contains(&format!("own: landlock_min_abi degraded {name}")),
            "{row}"
        );
    }
    let output = host.run(&run);
    assert_eq!(output.status.code(), Some(0), "{}", output_text(&output));
    let events = out(&host.run(&["--json", "events"]));
    let started = events.lines().find(|line| line.contains("child_started"));
    assert!(!started.unwrap().contains(r#""landlock""#), "{events}");
}

#[test]
fn the_standard_profile_starts_where_landlock_is_forbidden_and_says_so() {
    let host = Host::new("", "");
    let output = host.without(refusing(LANDLOCK, libc::EPERM), &["run", "say hi"]);
    assert_eq!(output.status.code(), Some(0), "{}", output_text(&output));
    assert!(
        output_text(&output).contains("lacks a layer"),
        "{}",
        output_text(&output)
    );
    let events = out(&host.run(&["--json", "events"]));
    let started = events.lines().find(|line| line.contains("child_started"));
    let started = started.unwrap();
    assert!(
        started.contains(r#""landlock""#) && started.contains("landlock none"),
        "{started}"
    );
    let strict = Host::new("", "sandbox = \"strict\"");
    let output = strict.without(refusing(LANDLOCK, libc::EPERM), &["run", "say hi"]);
    assert_eq!(output.status.code(), Some(3), "{}", output_text(&output));
}

#[test]
fn on_the_hosts_network_a_missing_landlock_is_told_as_what_it_leaves_open() {
    let host = Host::new("", "network = \"host\"");
    let without = refusing(LANDLOCK, libc::ENOSYS);
    let output = host.without(without, &["run", "say hi"]);
    assert_eq!(output.status.code(), Some(0), "{}", output_text(&output));
    let text = output_text(&output);
    let events = out(&host.run(&["--json", "events"]));
    let started = events.lines().find(|line| line.contains("child_started"));
    let started = started.unwrap();
    let table = out(&host.without(without, &["doctor"]));
    let mut explain = vec!["sandbox", "explain", "standard", "--workspace", "project"];
    let own = out(&host.without(without, &explain));
    explain.extend(["--network", "host"]);
    let explained = out(&host.without(without, &explain));
    for word in ["landlock_net", "landlock_scope"] {
        assert!(started.contains(&format!("{word:?}")), "{started}");
        assert!(text.contains(word), "{text}");
        let row = row(&table, word).unwrap();
        assert!(
            row.contains("network = \"host\"") && row.contains("degraded"),
            "{row}"
        );
        assert!(
            explained.contains(&format!("degraded {word}")),
            "{explained}"
        );
        assert!(!own.contains(word), "{own}");
    }
    // With all of it nothing is said.
    let output = host.run(&["run", "say hi"]);
    assert!(
        !output_text(&output).contains("landlock_scope"),
        "{}",
        output_text(&output)
    );
}

#[test]
fn a_missing_sandbox_program_is_in_the_table() {
    for (launcher, feature, image) in [
        ("bwrap", "bwrap", ""),
        (
            "container",
            "container",
            "[container]\nengine = \"docker\"\nimage = \"localhost/none:1\"\n",
        ),
    ] {
        let host = Host::new(image, &format!("launcher = {launcher:?}"));
        let nowhere = |words: &[&str]| {
            let mut command = host.command(words);
            command.env("PATH", "/nowhere").output().unwrap()
        };
        let by = "pool demo: launcher missing - ";
        for words in [&["run", "say hi"][..], &["up"], &["acp", "--pool", "demo"]] {
            let output = nowhere(words);
            lacks(&output, 3, feature, "-");
            assert!(
                output_text(&output).contains("hint: "),
                "{}",
                output_text(&output)
            );
        }
        let output = nowhere(&["doctor"]);
        assert_eq!(output.status.code(), Some(1), "{}", output_text(&output));
        let row = row(&out(&output), feature).unwrap();
        assert!(row.contains(by), "{row}");
        assert_eq!(host.homes(), 0, "nothing was begun");
    }
}

#[test]
fn every_way_to_start_shows_the_same_table() {
    let host = Host::new("", "");
    let no_pivot = refusing(PIVOT_ROOT, libc::ENOSYS);
    for words in [&["up"][..], &["acp", "--pool", "demo"]] {
        lacks(&host.without(no_pivot, words), 3, "pivot_root", "ENOSYS");
    }
    let mut exec = vec!["sandbox", "exec", "standard", "--workspace", "project"];
    exec.extend(["--mode", "ro", "--", "true"]);
    lacks(&host.without(no_pivot, &exec), 125, "pivot_root", "ENOSYS");
    let output = host.run(&exec);
    assert_eq!(output.status.code(), Some(0), "{}", output_text(&output));
}

#[test]
fn a_probe_that_is_killed_is_an_answer() {
    let host = Host::new("", "");
    let deadly = Refusing {
        calls: PIVOT_ROOT,
        says: SyscallResult::Kill,
    };
    let output = host.without(deadly, &["run", "say hi"]);
    lacks(&output, 3, "pivot_root", "- signal 31");
    let output = host.without(deadly, &["doctor"]);
    assert_eq!(output.status.code(), Some(1), "{}", output_text(&output));
}

#[test]
fn the_doctor_shows_everything_and_who_needs_it() {
    let host = Host::new("", "");
    let output = host.run(&["doctor"]);
    assert_eq!(output.status.code(), Some(0), "{}", output_text(&output));
    let text = out(&output);
    for feature in [
        "user_ns",
        "mount_api",
        "pivot_root",
        "tmpfs_inodes",
        "proc_subset",
        "caps",
    ] {
        let row = row(&text, feature).unwrap_or_else(|| panic!("{feature}: {text}"));
        assert!(row.contains("standard") && row.contains(" ok "), "{row}");
    }
    let strict = text
        .lines()
        .find(|line| line.starts_with("profile strict: "));
    let strict = strict.unwrap();
    if children::is_root() {
        assert_eq!(
            strict,
            "profile strict: available on this host; no pool uses it"
        );
    } else {
        let expect = "profile strict: not available on this host, missing ";
        assert!(strict.starts_with(expect), "{strict}");
        assert!(strict.contains("uid_per_slot"), "{strict}");
    }
    let output = host.run(&["--json", "doctor"]);
    let text = out(&output);
    let objects: Vec<serde_json::Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let words: Vec<&str> = objects
        .iter()
        .filter_map(|object| object["feature"].as_str())
        .collect();
    let optional = [Feature::Sandbox, Feature::IdmapWorkspace];
    for feature in Feature::ALL {
        assert!(
            words.contains(&feature.as_str()) || optional.contains(feature),
            "{feature}: {text}"
        );
    }
    let kinds = ["ok", "missing", "degraded", "not needed"];
    for object in objects
        .iter()
        .filter(|object| object["feature"].is_string())
    {
        let result = object["result"].as_str().unwrap();
        assert!(kinds.contains(&result), "{object}");
        assert!(object["needed_by"].is_array() && object.get("errno").is_some());
    }
}

#[test]
fn the_doctor_ends_with_what_it_found() {
    let host = Host::new("", "");
    let strict = host.run(&["doctor", "--profile", "strict"]);
    let expect = i32::from(!children::is_root());
    assert_eq!(
        strict.status.code(),
        Some(expect),
        "{}",
        output_text(&strict)
    );
    let unknown = host.run(&["doctor", "--profile", "strct"]);
    assert_eq!(unknown.status.code(), Some(2), "{}", output_text(&unknown));
    let output = host.without(refusing(PIVOT_ROOT, libc::EPERM), &["doctor"]);
    assert_eq!(output.status.code(), Some(1), "{}", output_text(&output));
    let row = row(&out(&output), "pivot_root").unwrap();
    assert!(row.contains("missing EPERM"), "{row}");
    let broken = Host::new("[sandbox.own]\non_missing = \"never\"", "");
    let output = broken.run(&["doctor"]);
    assert_eq!(output.status.code(), Some(2), "{}", output_text(&output));
    let needs_ssh = Host::new(
        "[pool.far]\nagent = \"script\"\nlauncher = \"ssh\"\n\
         ssh = { host = \"far\", workspace = \"/w\" }\n",
        "",
    );
    let output = needs_ssh
        .command(&["doctor"])
        .env("PATH", "/nowhere")
        .output()
        .unwrap();
    let text = out(&output);
    assert_eq!(output.status.code(), Some(1), "{}", output_text(&output));
    let row = self::row(&text, "ssh").unwrap();
    assert!(row.contains("pool far: launcher missing"), "{row}");
}

#[test]
fn a_shared_uid_is_refused_where_a_profile_wants_ones_own() {
    let host = Host::new("", "sandbox = \"strict\"");
    let output = host.run(&["run", "say hi"]);
    let mut exec = vec!["sandbox", "exec", "strict", "--workspace", "project"];
    exec.extend(["--mode", "ro", "--", "id", "-u"]);
    let command = host.run(&exec);
    if children::is_root() {
        assert_eq!(output.status.code(), Some(0), "{}", output_text(&output));
        assert_eq!(out(&command), "1000\n", "{}", output_text(&command));
    } else {
        lacks(&output, 3, "uid_per_slot", "-");
        let text = output_text(&output);
        assert!(
            text.contains("shared_uid") && text.contains("hint: "),
            "{text}"
        );
        assert_eq!(host.homes(), 0);
        lacks(&command, 125, "uid_per_slot", "-");
        let explained = host.run(&["sandbox", "explain", "strict", "--workspace", "project"]);
        let text = out(&explained);
        assert!(text.contains("here       missing uid_per_slot"), "{text}");
    }
}

#[test]
fn a_chosen_range_of_uids_is_kept_to_and_never_shared_with_an_account() {
    let own = |range: &str| {
        let profile = format!("[sandbox.own]\nuid_range = \"{range}\"");
        Host::new(&profile, "sandbox = \"own\"")
    };
    if !children::is_root() {
        return;
    }
    let host = own("1900000000-1900000099");
    let explained = host.run(&["sandbox", "explain", "own", "--workspace", "project"]);
    let text = out(&explained);
    assert!(
        text.contains("1900000000 and 1900000000 on this host, used by nothing else"),
        "{}",
        output_text(&explained)
    );
    let output = host.run(&["run", "say hi"]);
    assert_eq!(output.status.code(), Some(0), "{}", output_text(&output));
    let output = own("65500-65600").run(&["run", "say hi"]);
    assert_eq!(output.status.code(), Some(3), "{}", output_text(&output));
    let text = output_text(&output);
    assert!(
        text.contains("overlap with 65534-65534 of \"nobody\""),
        "{text}"
    );
    let output = own("1900000000-1900000009").run(&["run", "say hi"]);
    assert_eq!(output.status.code(), Some(3), "{}", output_text(&output));
    assert!(
        output_text(&output).contains("fewer than the 64 ids"),
        "{}",
        output_text(&output)
    );
}

#[test]
fn the_profile_is_named_in_either_way_and_once() {
    let host = Host::new("[sandbox.own]\nlimits = { nofile = 99 }", "");
    let exec = |words: &[&str]| {
        let mut all = vec!["sandbox", "exec", "--workspace", "project", "--mode", "ro"];
        all.extend(words);
        all.extend(["--", "sh", "-c", "ulimit -n"]);
        let output = host.run(&all);
        (output.status.code(), out(&output))
    };
    assert_eq!(exec(&[]), (Some(0), "1024\n".to_owned()));
    assert_eq!(exec(&["own"]), (Some(0), "99\n".to_owned()));
    assert_eq!(exec(&["--profile", "own"]), (Some(0), "99\n".to_owned()));
    assert_eq!(exec(&["own", "--profile", "own"]).0, Some(2));
    assert_eq!(exec(&["nobody"]).0, Some(125));
}

#[test]
fn what_a_child_lacks_is_told_by_its_event_and_counted() {
    let host = Host::new("", "");
    let output = host.run(&["run", "say hi"]);
    assert_eq!(output.status.code(), Some(0), "{}", output_text(&output));
    let events = host.run(&["--json", "events"]);
    let text = out(&events);
    let started = text.lines().find(|line| line.contains("child_started"));
    let started = started.unwrap_or_else(|| panic!("{}", output_text(&events)));
    assert_eq!(
        started.contains("shared_uid"),
        !children::is_root(),
        "{started}"
    );
}
