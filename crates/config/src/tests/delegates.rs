//! Deciders of the site's own, as they are read.

use std::time::Duration;

use super::{accepted_by, discovered_origin, explicit_origin, only, pool, refused_by};
use crate::DelegateTarget;
use marshal_model::ToolClass;

fn with(keys: &str) -> String {
    pool("delegate = \"own\"") + "[delegate.own]\n" + keys
}

#[test]
fn a_pool_names_a_delegate_with_its_defaults() {
    let config = accepted_by(&explicit_origin(), &with("url = \"http://127.0.0.1:8181/v1/data/a/b\""));
    assert_eq!(only(&config).delegate.as_deref(), Some("own"));
    let own = &config.delegates["own"];
    assert_eq!((own.timeout, own.at_once), (Duration::from_secs(2), 16));
    assert!(own.token.is_none() && own.tools.is_empty());
    assert!(own.covers(&[ToolClass::Mcp]));
    assert_eq!(own.target.to_string(), "http://127.0.0.1:8181/v1/data/a/b");
    let config = accepted_by(&explicit_origin(), &with("command = [\"/usr/bin/decide\", \"-x\"]\ntimeout = \"60s\"\nat_once = 1\ntools = [\"shell\", \"unknown\"]"));
    let own = &config.delegates["own"];
    assert_eq!(own.target, DelegateTarget::Command(vec!["/usr/bin/decide".to_owned(), "-x".to_owned()]));
    assert!(own.covers(&[ToolClass::Read, ToolClass::Shell]) && !own.covers(&[ToolClass::Read]));
    accepted_by(&explicit_origin(), &with("url = \"https://opa.example/v1/data/x\"\ntoken = \"env:OPA_TOKEN\""));
    assert!(only(&accepted_by(&explicit_origin(), &pool(""))).delegate.is_none());
}

#[test]
fn delegates_that_cannot_be_asked_are_refused() {
    let refused = |keys: &str, why: &str| refused_by(&explicit_origin(), &with(keys), why);
    refused("timeout = \"1s\"", "the delegate needs either a command or a url");
    refused("command = [\"/x\"]\nurl = \"http://127.0.0.1/x\"", "either a command or a url");
    refused("command = [\"decide\"]", "the program must be an absolute path, found \"decide\"");
    refused("command = []", "the program must be an absolute path");
    refused("url = \"http://opa.example/x\"", "http://");
    refused("url = \"ftp://127.0.0.1/x\"", "http");
    refused("url = \"http://127.0.0.1/x\"\ntimeout = \"2m\"", "timeout");
    refused("url = \"http://127.0.0.1/x\"\ntimeout = \"1ms\"", "timeout");
    refused("url = \"http://127.0.0.1/x\"\nat_once = 0", "at_once");
    refused("url = \"http://127.0.0.1/x\"\ntools = [\"bash\"]", "expected \"shell\"");
    refused("url = \"http://127.0.0.1/x\"\ntoken = \"abc\"", "the file never contains the token");
    refused("command = [\"/x\"]\ntoken = \"env:A\"", "a command gets none");
    refused("url = \"http://127.0.0.1/x\"\nfail_open = true", "unknown key \"fail_open\"");
    refused_by(&explicit_origin(), &pool("delegate = \"none\""), "delegate");
    let own = pool("delegate = \"own\"\nworkspace = { path = \"/srv\", mode = \"rw\" }") + "[delegate.own]\ncommand = [\"/usr/bin/python3\", \"/srv/decide.py\"]\n";
    refused_by(&explicit_origin(), &own, "the agent could write \"/srv/decide.py\"");
}

#[test]
fn a_file_that_was_found_has_no_delegates() {
    let text = with("command = [\"/bin/true\"]");
    refused_by(&discovered_origin(), &text, "may not have delegates…--config");
}
