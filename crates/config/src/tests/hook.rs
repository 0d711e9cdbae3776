//! Hooks, as they are read.

use std::fmt::Write as _;
use std::time::Duration;

use super::{accepted_by, discovered_origin, explicit_origin, pool, refused_by};
use crate::{HookTarget, SecretSource};
use marshal_model::NotificationKind;

fn file(keys: &str) -> String {
    pool("") + "[hook.ops]\n" + keys
}

const URL: &str = "url = \"https://hooks.example.com/a/b?c=d\"\n";
const SECRET: &str = "secret = \"env:HOOK_SECRET\"\n";

#[test]
fn a_hook_tells_an_address_or_a_command() {
    let config = accepted_by(
        &explicit_origin(),
        &file(&format!("{URL}{SECRET}ca = \"ca.pem\"\n")),
    );
    let hook = &config.hooks[0];
    assert_eq!(
        (hook.name.as_str(), hook.events.as_slice()),
        ("ops", NotificationKind::ALL)
    );
    assert!(hook.pools.is_empty());
    let HookTarget::Address(to) = &hook.target else {
        panic!("{hook:?}");
    };
    assert_eq!(to.url.as_str(), "https://hooks.example.com/a/b?c=d");
    assert!(
        !format!("{hook:?}").contains("example.com"),
        "an address may be a secret"
    );
    assert_eq!(
        to.secret.source,
        SecretSource::Variable("HOOK_SECRET".to_owned())
    );
    let keys = "command = [\"/usr/local/bin/tell\", \"-x\"]\nenv = { PATH = \"/bin\", KEY = \"file:key\" }\ntimeout = \"2s\"\nevents = [\"parked\", \"approval\", \"approval\"]\npools = [\"demo\"]\n";
    let config = accepted_by(&explicit_origin(), &file(keys));
    let hook = &config.hooks[0];
    assert_eq!(
        hook.events,
        [NotificationKind::Approval, NotificationKind::Parked]
    );
    assert_eq!(hook.pools.len(), 1);
    let HookTarget::Command(command) = &hook.target else {
        panic!("{hook:?}");
    };
    assert_eq!(command.argv, ["/usr/local/bin/tell", "-x"]);
    assert_eq!(command.timeout, Duration::from_secs(2));
    assert_eq!(command.env["PATH"], "/bin");
    assert!(command.secrets.contains_key("KEY"));
}

#[test]
fn hooks_that_cannot_be_are_refused() {
    let refused = |keys: &str, why: &str| refused_by(&explicit_origin(), &file(keys), why);
    refused("", "hook.ops: the hook needs a url or a command");
    refused(
        &format!("{URL}{SECRET}command = [\"/bin/x\"]\n"),
        "a hook has a url or a command, not both",
    );
    refused(URL, "the hook needs a secret");
    refused(
        &format!("{URL}secret = \"s3cr3t\"\n"),
        "expected…the file never contains the secret",
    );
    refused(
        &format!("{URL}{SECRET}timeout = \"1s\"\n"),
        "the key is for a hook with a command",
    );
    refused(
        "command = [\"/bin/x\"]\nca = \"x\"\n",
        "the key is for a hook with a url",
    );
    refused(
        "command = [\"tell\"]\n",
        "by its absolute path, found \"tell\"",
    );
    refused("command = []\n", "by its absolute path, found \"\"");
    refused(
        "command = [\"/bin/../x\"]\nenv = { MARSHAL_X = \"\" }\n",
        "does not begin with MARSHAL_",
    );
    refused(
        "command = [\"/bin/x\"]\nevents = []\n",
        "the hook would receive nothing",
    );
    refused(
        "command = [\"/bin/x\"]\nevents = [\"approvals\"]\n",
        "expected \"approval\", \"parked\", \"run_ended\", \"run_paused\" or \"budget_spent\", found \"approvals\"",
    );
    refused(
        "command = [\"/bin/x\"]\npools = [\"other\"]\n",
        "there is no pool \"other\"",
    );
    refused(
        "command = [\"/bin/x\"]\ntimeout = \"2m\"\n",
        "a duration from",
    );
    refused(
        "command = [\"/bin/x\"]\nevent = [\"approval\"]\n",
        "unknown key \"event\"…events",
    );
    let url = |url: &str, why: &str| refused(&format!("url = \"{url}\"\n{SECRET}"), why);
    url("ftp://x/", "begins with https:// or http://");
    url("https://me:pw@x/", "a host name or address");
    url("https://", "a host name or address");
    url("https://x:0/", "no server listens on port 0");
    url("https://x:99999/", "a host name or address");
    url("https://x/a#b", "a path, and a query");
    url("https://x/a b", "a path, and a query");
    url("https://x/\\u000a", "a path, and a query");
    let rw = "workspace = { path = \"/srv\", mode = \"rw\" }";
    let text = pool(rw) + "[hook.ops]\ncommand = [\"/srv/bin/tell\"]\n";
    refused_by(
        &explicit_origin(),
        &text,
        "the agent could write \"/srv/bin/tell\", which the supervisor runs",
    );
    let mut many = pool("");
    for number in 0..17 {
        let _ = write!(many, "[hook.h{number}]\ncommand = [\"/bin/x\"]\n");
    }
    refused_by(&explicit_origin(), &many, "there are more than 16 hooks");
}

#[test]
fn a_file_that_was_found_has_no_hooks() {
    refused_by(
        &discovered_origin(),
        &file("command = [\"/bin/x\"]\n"),
        "a discovered supervisor.toml may not use hooks…--config",
    );
}

#[test]
fn plain_http_to_another_host_is_told() {
    for (url, is_told) in [
        ("http://10.0.0.1:80/x", true),
        ("http://hooks.example.com", true),
        ("http://127.0.0.1:8080/x", false),
        ("http://[::1]/x", false),
        ("https://10.0.0.1/x", false),
    ] {
        let config = accepted_by(
            &explicit_origin(),
            &file(&format!("url = \"{url}\"\n{SECRET}")),
        );
        let told = config.notes.iter().any(|note| note.contains("plain http"));
        assert_eq!(told, is_told, "{url}: {:?}", config.notes);
    }
}
