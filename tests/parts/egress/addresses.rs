//! Where names lead: to addresses that nobody may reach, to others the second time, to nothing.

use std::time::Duration;

use marshal_model::EgressResult as Why;
use serde_json::json;

use crate::egress::world::{World, enter, eventually, zone};

/// Addresses that answer outside without the proxy, each of a block that is not public.
const OUTSIDE: &[&str] = &[
    "10.0.0.1",
    "100.64.0.1",
    "100.100.100.200",
    "168.63.129.16",
    "169.254.169.254",
    "172.16.0.1",
    "172.31.255.254",
    "192.0.0.8",
    "192.0.2.1",
    "192.31.196.1",
    "192.52.193.1",
    "192.88.99.1",
    "192.168.1.1",
    "192.175.48.1",
    "198.18.0.1",
    "198.19.255.254",
    "198.51.100.1",
    "203.0.113.1",
    "64:ff9b::808:808",
    "64:ff9b::a00:1",
    "64:ff9b:1::1",
    "100::1",
    "2001::1",
    "2001:2::1",
    "2001:10::1",
    "2001:db8::1",
    "2002:a00:1::1",
    "2620:4f:8000::1",
    "3fff::1",
    "5f00::1",
    "fc00::1",
    "fd00:ec2::254",
    "fec0::1",
];

/// This host's own.
const HERE: &[&str] = &[
    "127.0.0.1",
    "127.1.2.3",
    "0.0.0.0",
    "5.5.5.1",
    "::1",
    "2a00:5::1",
    "::ffff:127.0.0.1",
];

/// What no connection reaches without the proxy either, but no proxy should try.
const NOWHERE: &[&str] = &[
    "0.1.2.3",
    "5.5.5.255",
    "224.0.0.1",
    "239.255.255.250",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::8.8.8.8",
    "fe80::1",
    "ff02::1",
    "4000::1",
];

#[test]
fn a_name_that_leads_to_an_address_that_is_not_public_reaches_nobody() {
    if !enter("addresses::a_name_that_leads_to_an_address_that_is_not_public_reaches_nobody") {
        return;
    }
    let all: Vec<&str> = [OUTSIDE, HERE, NOWHERE].concat();
    let mut zone = zone();
    for (number, address) in all.iter().enumerate() {
        zone[format!("h{number}.example.com")] = json!([[address]]);
        // One bad address among good ones.
        zone[format!("m{number}.example.com")] = json!([["8.8.8.8", address]]);
    }
    let world = World::new(&zone);
    let bench = world.bench("allow = [\"*.example.com\"]");
    for (number, address) in OUTSIDE.iter().enumerate() {
        assert!(
            world.straight(address),
            "{address} is there without the proxy"
        );
        eventually(address, || world.reached().len() == number + 1);
        assert_eq!(world.reached().pop().as_deref(), Some(*address));
    }
    for (number, address) in HERE.iter().enumerate() {
        assert!(
            world.straight(address),
            "{address} is there without the proxy"
        );
        eventually(address, || world.reached_here() == number + 1);
    }
    for kind in ["h", "m"] {
        for (number, address) in all.iter().enumerate() {
            let host = format!("{kind}{number}.example.com");
            let request = format!("CONNECT {host}:443 HTTP/1.1\r\nHost: {host}\r\n\r\n");
            let before = (world.reached(), world.reached_here());
            let (_, reply) = bench.send(&request);
            assert_eq!(reply.status, 403, "{address}: {reply:?}");
            assert!(
                reply.text.contains("an address that is not public"),
                "{address}: {reply:?}"
            );
            assert_eq!((world.reached(), world.reached_here()), before, "{address}");
        }
    }
    assert_eq!(bench.connection_count(Why::Address), 2 * all.len() as u64);
    assert!(
        bench
            .get("good.example.com")
            .expect("a page")
            .contains("hello")
    );
    let host = bench.get("both.example.com").expect("a page");
    assert!(host.contains("hello from both.example.com"), "{host}");
}

#[test]
fn a_name_that_leads_elsewhere_the_second_time_gains_nothing() {
    if !enter("addresses::a_name_that_leads_elsewhere_the_second_time_gains_nothing") {
        return;
    }
    let mut zone = zone();
    zone["rebind.example.com"] =
        json!([["8.8.8.8"], ["127.0.0.1"], ["169.254.169.254"], ["8.8.8.8"]]);
    // Bad, good, bad: what is dialled is what was judged.
    zone["turn.example.com"] = json!([["127.0.0.1"], ["8.8.8.8"], ["127.0.0.1"]]);
    let world = World::new(&zone);
    let bench = world.bench("allow = [\"*.example.com\"]");
    let requested = |name: &str| {
        let lines = world.log("dns");
        let of = |line: &&serde_json::Value| line["name"] == name && line["type"] == 1;
        lines.iter().filter(of).count()
    };
    let request = |host: &str| format!("CONNECT {host}:443 HTTP/1.1\r\nHost: {host}\r\n\r\n");
    assert!(
        bench
            .get("rebind.example.com")
            .expect("a page")
            .contains("hello")
    );
    assert_eq!(requested("rebind.example.com"), 1, "it is looked up once");
    assert_eq!(world.reached(), ["8.8.8.8"]);
    for turn in 2..4 {
        bench.refuses(&world, request("rebind.example.com"), 403, Why::Address);
        assert_eq!(requested("rebind.example.com"), turn);
    }
    assert!(
        bench
            .get("rebind.example.com")
            .expect("a page")
            .contains("hello")
    );
    bench.refuses(&world, request("turn.example.com"), 403, Why::Address);
    assert!(
        bench
            .get("turn.example.com")
            .expect("a page")
            .contains("hello")
    );
    bench.refuses(&world, request("turn.example.com"), 403, Why::Address);
    assert_eq!(world.reached(), ["8.8.8.8", "8.8.8.8", "8.8.8.8"]);
    assert_eq!(world.reached_here(), 0);
    // A name that is not there is not looked for elsewhere.
    bench.refuses(&world, request("missing.example.com"), 502, Why::Lookup);
    let names = world.log("dns");
    assert!(
        names
            .iter()
            .all(|line| line["name"] != "missing.example.com.evil.example")
    );
    // An address of this host that comes to it later counts, too.
    let status = std::process::Command::new("ip")
        .args(["addr", "add", "8.8.8.8/32", "dev", "va"])
        .status();
    assert!(status.expect("ip").success());
    bench.refuses(&world, request("rebind.example.com"), 403, Why::Address);
    assert_eq!(world.reached_here(), 0);
}

#[test]
fn nobody_at_home_is_told_in_time() {
    if !enter("addresses::nobody_at_home_is_told_in_time") {
        return;
    }
    let mut zone = zone();
    zone["near.example.com"] = json!([["5.5.5.77"]]);
    let world = World::new(&zone);
    // A port where nobody listens, and a neighbour that is not there.
    let bench = world.bench("allow = [\"*.example.com:444\"]");
    let began = std::time::Instant::now();
    let (_, reply) = bench.ask("good.example.com:444");
    assert_eq!(reply.status, 502, "{reply:?}");
    let bench = world.bench("allow = [\"*.example.com\"]\ntimeouts = { connect = \"1s\" }");
    let (_, reply) = bench.ask("near.example.com:443");
    assert!(matches!(reply.status, 502 | 504), "{reply:?}");
    assert!(
        began.elapsed() < Duration::from_secs(30),
        "{:?}",
        began.elapsed()
    );
    assert_eq!(bench.connection_count(Why::Unreachable), 2);
}
