//! `[http]` and `[token.NAME]`, as they are read.

use std::path::Path;

use super::{accepted_by, file, discovered_origin, explicit_origin, pool, refused_by};
use crate::{TlsFiles, HttpConfig};
use marshal_model::Role;

#[test]
fn a_listener_beyond_loopback_needs_a_certificate_or_the_key() {
    let listen = "[supervisor]\nlisten = \"0.0.0.0:7117\"\n";
    let tls = "[http]\ntls = { certificate = \"cert.pem\", key = \"/keys/key.pem\" }\n";
    let config = accepted_by(&explicit_origin(), &file(&format!("{listen}{tls}")));
    assert_eq!(config.http.tls, Some(TlsFiles {
        certificate: Path::new("/etc/marshal/cert.pem").to_owned(),
        key: Path::new("/keys/key.pem").to_owned(),
    }));
    let words = "[http]\nplain_http_beyond_loopback = true\nhosts = [\"Marshal.example\", \"m:8443\"]\n";
    let config = accepted_by(&explicit_origin(), &file(&format!("{listen}{words}")));
    assert_eq!(config.http.hosts, ["marshal.example", "m:8443"]);
    assert!(config.http.plain_http_beyond_loopback);
    assert_eq!(accepted_by(&explicit_origin(), &file("")).http, HttpConfig::default());
    let refused = |keys: &str, why: &str| refused_by(&explicit_origin(), &file(&format!("{listen}[http]\n{keys}")), why);
    refused("", "supervisor.listen: \"0.0.0.0:7117\" is not a loopback address");
    refused("plain_http_beyond_loopback = false", "is not a loopback address");
    refused_by(&explicit_origin(), &file("[supervisor]\nlisten = \"nowhere:1\""), "expected an address and a port");
}

#[test]
fn listener_keys_are_checked() {
    let refused = |keys: &str, why: &str| refused_by(&explicit_origin(), &file(&format!("[http]\n{keys}")), why);
    refused("tls = { certificate = \"c\" }", "http.tls: tls needs the file of its key");
    refused("tls = { key = \"/c\" }", "tls needs the file of its certificate");
    refused("tls = { certificate = \"c\", key = \"~/k\" }", "\"~\" is not expanded");
    refused("tls = { certificate = \"c\", key = \"/k\", cert = \"c\" }", "did you mean certificate?");
    refused("tls = true", "expected a table");
    refused("hosts = [\"a b\"]", "expected the name of a host, with a port or without, found \"a b\"");
    refused("hosts = [\"a:0\"]", "expected the name of a host");
    refused("hosts = [\"a:70000\"]", "expected the name of a host");
    refused("hosts = [\"http://a\"]", "expected the name of a host");
    refused(&format!("hosts = [{}]", "\"a\",".repeat(33)), "more than 32 names");
    refused("tls = { certificate = \"c\", key = \"/k\" }\nplain_http_beyond_loopback = true", "with http.tls the supervisor serves no plain HTTP");
    refused("listen = \"127.0.0.1:1\"", "did you mean supervisor.listen?");
    refused("insecure = true", "unknown key \"insecure\"");
}

#[test]
fn a_token_has_a_name_a_file_and_a_role() {
    let token = |name: &str, keys: &str| file(&format!("[token.{name}]\n{keys}\n"));
    let good = "file = \"../ops.token\"\nrole = \"operate\"";
    let config = accepted_by(&explicit_origin(), &token("ops", good));
    assert_eq!(config.tokens["ops"].file, Path::new("/etc/ops.token"));
    assert_eq!(config.tokens["ops"].role, Role::Operate);
    let refused = |name: &str, keys: &str, why: &str| refused_by(&explicit_origin(), &token(name, keys), why);
    refused("owner", good, "the owner's token is http.token in the state directory");
    refused("Ops", good, "the token name \"Ops\" must be of lower-case letters");
    refused("ops", "file = \"/x\"", "token.ops: the token needs a role");
    refused("ops", "role = \"read\"", "token.ops: the token needs a file");
    refused("ops", "file = \"/x\"\nrole = \"owner\"", "expected \"read\", \"operate\", \"approve\" or \"admin\", found \"owner\"");
    refused("ops", "file = \"\"\nrole = \"read\"", "a path must not be empty");
    refused("ops", &format!("{good}\ntoken = \"abc\""), "unknown key \"token\"");
    let many = (0..65).map(|n| format!("[token.n{n}]\n{good}\n")).collect::<Vec<_>>().concat();
    refused_by(&explicit_origin(), &file(&many), "there are more than 64 tokens");
}

#[test]
fn a_file_that_was_found_opens_nothing() {
    let refused = |text: &str, why: &str| refused_by(&discovered_origin(), &file(text), why);
    refused("[token.ops]\nfile = \"/x\"\nrole = \"read\"", "a discovered supervisor.toml may not have tokens");
    refused("[http]\nhosts = [\"a\"]", "may not set who reaches this supervisor");
    refused("[http]\nplain_http_beyond_loopback = true", "may not set who reaches this supervisor");
    accepted_by(&discovered_origin(), &file("[http]\nhosts = []\nplain_http_beyond_loopback = false"));
}

#[test]
fn no_agent_reads_what_people_come_in_with() {
    for mode in ["rw", "copy", "ro"] {
        let own = pool(&format!("workspace = {{ path = \"/srv\", mode = \"{mode}\" }}"));
        let token = "[token.ops]\nfile = \"/srv/ops\"\nrole = \"read\"\n";
        refused_by(&explicit_origin(), &format!("{own}{token}"), "the agent could read \"/srv/ops\", which grants access to the supervisor (token.ops.file)");
        let key = "[http]\ntls = { certificate = \"/etc/c\", key = \"/srv/k\" }\n";
        refused_by(&explicit_origin(), &format!("{own}{key}"), "(http.tls.key)");
    }
}
