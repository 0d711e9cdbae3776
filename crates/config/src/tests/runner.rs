//! Tools that are driven by files, as they are read.

use std::path::Path;
use std::time::Duration;

use super::{accepted_by, discovered_origin, explicit_origin, only, refused_by};
use crate::{PermissionCoverage, Launcher, Network, Runner};

fn driven(keys: &str) -> String {
    format!("[pool.demo]\ncommand = [\"tclsh\"]\nlauncher = \"pty\"\ndialect = \"skillpilot\"\n{keys}\n")
}

#[test]
fn a_tool_needs_no_more_than_its_launcher_and_its_dialect() {
    let config = accepted_by(&explicit_origin(), &driven(""));
    let pool = only(&config);
    assert_eq!((pool.launcher, pool.network, pool.permission_requests), (Launcher::Pty, Network::None, PermissionCoverage::Never));
    assert_eq!(*pool.runner, Runner::default());
    let argv = pool.runner_argv(vec!["tclsh".to_owned()], "/home/agent");
    assert_eq!(argv[..3], ["marshal", "runner", "--stdio"]);
    assert!(argv.contains(&"--dir=/home/agent/session".to_owned()), "{argv:?}");
    assert_eq!(argv[argv.len() - 2..], ["--", "tclsh"]);
    assert_eq!(pool.runner_dir(), None);
}

#[test]
fn what_the_file_says_of_a_runner_is_what_it_is_told() {
    let keys = "runner = { kind = \"lisp\", marker = '(p \"{head}\" \"{tail}\")', unit = \"(e {hex})\", init = \"(quiet)\", dir = \"plane\", \
                timeout = \"1m\", cancel = \"terminate_tool\", lease = \"5m\", heartbeat = \"1s\", poll = \"500ms\" }";
    let config = accepted_by(&explicit_origin(), &driven(keys));
    let pool = only(&config);
    let argv = pool.runner_argv(vec!["clisp".to_owned()], "/home/agent").join(" ");
    for word in ["--dir=/run/marshal/session", "--kind=lisp", "--timeout=60", "--heartbeat=1000", "--poll=500", "--unit=(e {hex})", "--init=(quiet)"] {
        assert!(argv.contains(word), "{word} in {argv}");
    }
    assert_eq!(pool.runner.lease, Some(Duration::from_secs(300)));
    assert_eq!(pool.runner_dir(), Some((Path::new("/etc/marshal/plane"), "/run/marshal/session")));
}

#[test]
fn what_cannot_be_driven_is_refused() {
    let refused = |keys: &str, why: &str| refused_by(&explicit_origin(), &driven(keys), why);
    refused("guard = \"policy\"", "needs an agent that asks for everything");
    refused("permission_requests = \"some\"", "the protocol has no permission requests");
    refused("size = 2\nrunner = { dir = \"plane\" }", "size must be 1");
    refused("runner = { dir = \"~/plane\" }", "is not expanded here");
    refused("runner = { kind = \"lisp\" }", "the table needs marker");
    refused("runner = { marker = \"{head}{tail}\" }", "{head} and {tail}");
    refused("runner = { init = \"a\\nb\" }", "one line");
    refused("runner = { unit = \"eval {payload}\" }", "{hex} or {octal}");
    refused("runner = { cancel = \"ctrlc\" }", "did you mean ctrl_c");
    refused("runner = { timeout = \"0s\" }", "timeout");
    refused("runner = { tool = \"x\" }", "unknown key \"tool\"");
    let other = |keys: &str, why: &str| {
        refused_by(&explicit_origin(), &format!("[pool.demo]\ncommand = [\"x\"]\n{keys}\n"), why);
    };
    other("launcher = \"pty\"", "launcher = \"pty\" needs dialect = \"skillpilot\"");
    other("runner = { kind = \"sh\" }", "the table runner is for dialect = \"skillpilot\"");
    other("dialect = \"skillpilot\"\nrunner = { dir = \"plane\" }", "runner.dir is for launcher = \"pty\"");
}

#[test]
fn its_directory_is_no_way_to_what_decides() {
    refused_by(&explicit_origin(), &driven("runner = { dir = \".\" }"), "could write \"/etc/marshal/supervisor.toml\"");
    refused_by(&discovered_origin(), &driven("runner = { dir = \"/srv/plane\" }"), "a runner.dir outside its own directory");
    accepted_by(&discovered_origin(), &driven("runner = { dir = \"plane\" }"));
}

#[test]
fn nobody_else_works_in_a_runners_directory_and_nothing_trusted_lies_there() {
    let refused = |more: &str, why: &str| {
        let keys = format!("runner = {{ dir = \"/srv/eda\" }}\n{more}");
        refused_by(&explicit_origin(), &driven(&keys), why);
    };
    refused("[hook.ops]\ncommand = [\"/srv/eda/notify.sh\"]", "the agent could write \"/srv/eda/notify.sh\", which the supervisor runs");
    refused("[token.ci]\nfile = \"/srv/eda/token\"\nrole = \"read\"", "the agent could read \"/srv/eda/token\", which grants access to the supervisor");
    let other = "[pool.other]\ncommand = [\"/usr/bin/x\"]\n";
    for keys in ["workspace = { path = \"/srv\", mode = \"rw\" }", "workspace = { path = \"/srv/eda/queue\", mode = \"rw\" }"] {
        refused(&format!("{other}{keys}"), "other agents work in \"/srv");
    }
    refused("[workspace.all]\npath = \"/srv\"", "other agents work in \"/srv\"");
    let second = "launcher = \"pty\"\ndialect = \"skillpilot\"\nrunner = { dir = \"/srv/eda/x\" }";
    refused(&format!("{other}{second}"), "runner.dir is \"/srv/eda/x\", and other agents work in \"/srv/eda\"");
    refused(&format!("{other}file_plane = {{ dir = \"/srv/eda/plane\" }}"), "agents work in \"/srv/eda\", and could submit tasks to themselves here");
    // A copy of it is nobody's way in.
    let copied = format!("runner = {{ dir = \"/srv/eda\" }}\n{other}workspace = {{ path = \"/srv\", mode = \"copy\" }}");
    accepted_by(&explicit_origin(), &driven(&copied));
}
