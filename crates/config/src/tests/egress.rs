//! What a file may say of hosts outside.

use super::{accepted_by, discovered_origin, explicit_origin, refused_by, script};
use marshal_model::limits;

/// A file whose only pool has the proxy, and these lines behind it.
fn proxied(keys: &str, rest: &str) -> String {
    format!(
        "{}{rest}\n",
        script(&format!("network = \"proxy\"\n{keys}"))
    )
}

#[test]
fn a_pool_has_the_rules_of_all_but_for_the_keys_that_it_changes() {
    let text = proxied(
        "egress = { allow = [\"*.example.org\"], timeouts = { idle = \"1m\" } }",
        "[egress]\nallow = [\"api.example.com:8443\"]\nconnections = 8\ntimeouts = { total = \"2h\" }",
    );
    let config = accepted_by(&explicit_origin(), &text);
    let pool = &config.pools[0];
    let rules = pool.egress.as_ref().expect("a proxy");
    assert!(rules.allow[0].allows("a.example.org", 443) && rules.allow.len() == 1);
    assert_eq!((rules.connections, rules.per_minute), (8, 600));
    assert_eq!(rules.timeouts.idle.as_secs(), 60);
    assert_eq!(rules.timeouts.total.as_secs(), 7200);
    assert!(config.egress.allow[0].allows("api.example.com", 8443));
    assert_eq!(pool.sandbox_ports(), [limits::EGRESS_PORT]);
    let told = config.describe().join("\n");
    assert!(
        told.contains("http://127.0.0.1:3128 reaches *.example.org:443"),
        "{told}"
    );
    assert!(
        told.contains(
            "network proxy: what the agent sends to hosts on its allow-list leaves this host"
        ),
        "{told}"
    );
    assert!(
        config.notes.iter().all(|note| !note.contains("allow-list")),
        "{:?}",
        config.notes
    );
}

#[test]
fn routes_come_before_the_proxy_and_a_preset_keeps_its_own() {
    let config = accepted_by(
        &explicit_origin(),
        &proxied("routes = [\"openai\", \"gemini\"]", ""),
    );
    let pool = &config.pools[0];
    let ports = pool.sandbox_ports();
    assert_eq!(ports.len(), 3);
    assert_eq!(ports[2], limits::EGRESS_PORT);
    assert_eq!(ports[0], pool.routes[0].port);
    assert!(
        config
            .notes
            .iter()
            .any(|note| note.contains("is empty: it reaches no host")),
        "{:?}",
        config.notes
    );
    let text = "[pool.demo]\nagent = \"codex\"\nnetwork = \"proxy\"\n";
    let config = accepted_by(&explicit_origin(), text);
    let pool = &config.pools[0];
    assert_eq!(pool.routes[0].name, "openai");
    assert!(
        pool.home_texts
            .values()
            .any(|text| text.contains("{route.openai}")),
        "{:?}",
        pool.home_texts
    );
    assert!(pool.egress.is_some());
    let none = accepted_by(&explicit_origin(), &script(""));
    assert!(none.pools[0].egress.is_none() && none.pools[0].sandbox_ports().is_empty());
    assert!(none.pools[0].proxy_variables().is_empty());
}

#[test]
fn what_no_list_can_hold_is_refused_at_its_line() {
    let named = &explicit_origin();
    let line = |line: &str, expect: &str| {
        let keys = format!("egress = {{ allow = [{line:?}] }}");
        refused_by(named, &proxied(&keys, ""), expect);
        let all = format!("[egress]\nallow = [{line:?}]");
        refused_by(named, &proxied("", &all), expect);
    };
    line(
        "10.0.0.1:443",
        "found \"10.0.0.1:443\": the host is an address or a number",
    );
    line("2130706433", "the host is an address or a number");
    line("[::1]:443", "the host is an address or a number");
    line("api.example.com.", "the host ends with a dot");
    line("*", "a \"*\" is allowed only at the start");
    line("*.com", "a name of one part");
    line("a.*.com", "a \"*\" is allowed only at the start");
    line(
        ".example.com",
        "write the hosts below a domain as \"*.example.com\"",
    );
    line("API.example.com", "in lower case");
    line("https://api.example.com", "the port is not a number");
    line("api.example.com:0", "the port is not a number");
    line("api.example.com:65536", "the port is not a number");
    line("b\u{fc}cher.example.com", "not a plain name");
    let many: Vec<String> = (0..257)
        .map(|number| format!("\"h{number}.example.com\""))
        .collect();
    let many = format!("egress.allow = [{}]", many.join(", "));
    refused_by(named, &proxied(&many, ""), "a list has at most 256 hosts");
}

#[test]
fn hosts_and_their_network_go_together() {
    let named = &explicit_origin();
    let pool = |keys: &str, expect: &str| refused_by(named, &script(keys), expect);
    pool(
        "egress.allow = [\"a.example.com\"]",
        "egress needs network = \"proxy\", and this pool's is \"none\"",
    );
    pool(
        "network = \"host\"\negress.connections = 4",
        "egress needs network = \"proxy\"",
    );
    pool(
        "launcher = \"none\"\nnetwork = \"proxy\"",
        "launcher = \"none\" has none",
    );
    pool(
        "network = \"proxy\"\negress.connections = 0",
        "expected an integer from 1 to 256",
    );
    pool(
        "network = \"proxy\"\negress.per_minute = 0",
        "expected an integer from 1 to 60000",
    );
    pool(
        "network = \"proxy\"\negress.sent_max = \"1B\"",
        "expected a size from 1K to 1T",
    );
    pool(
        "network = \"proxy\"\negress.timeouts.request = \"2m\"",
        "expected a duration from 1ms to 1m",
    );
    pool(
        "network = \"proxy\"\negress.hosts = []",
        "did you mean allow?",
    );
    let port = "[route.own]\nupstream = \"http://127.0.0.1:1\"\nallow = [\"GET /x\"]\nport = 3128";
    refused_by(
        named,
        &proxied("routes = [\"own\"]", port),
        "the route own has the port 3128",
    );
    let expect = "a discovered supervisor.toml may not use network = \"proxy\"";
    refused_by(&discovered_origin(), &script("network = \"proxy\""), expect);
}
