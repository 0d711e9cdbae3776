//! The first bytes of an established tunnel: only TLS that names the requested host passes.

use std::io::{Read as _, Write as _};
use std::time::Duration;

use marshal_model::EgressResult as Why;

use crate::egress::ALLOW;
use crate::egress::world::{Bench, World, enter, eventually, hello, rest, zone};

/// Connections that the server saw the first words or the end of.
fn ends(world: &World) -> usize {
    let kinds = ["plain", "tls", "error"];
    kinds.iter().map(|kind| world.log(kind).len()).sum()
}

/// Sends words after a good CONNECT; asserts that none of them came out.
fn say(world: &World, bench: &Bench, words: &[u8], result: Why) -> Vec<u8> {
    let (counted, before) = (bench.connection_count(result), ends(world));
    let (mut stream, reply) = bench.ask("good.example.com:443");
    assert_eq!(reply.status, 200, "{reply:?}");
    stream.write_all(words).expect("sent");
    let answer = rest(&mut stream);
    let shown = String::from_utf8_lossy(&words[..words.len().min(60)]).into_owned();
    eventually(&shown, || bench.connection_count(result) == counted + 1);
    // The server's side has seen its end, and nothing before it.
    eventually(&shown, || ends(world) == before + 1);
    for line in world.log("plain") {
        assert_eq!(line["data"], "", "{shown}");
    }
    answer
}

#[test]
fn no_word_goes_out_before_it_names_the_host_in_tls() {
    if !enter("tls_hello::no_word_goes_out_before_it_names_the_host_in_tls") {
        return;
    }
    let world = World::new(&zone());
    let bench = world.bench(ALLOW);
    // The control: what is sent without the proxy arrives.
    let mut straight = std::net::TcpStream::connect("8.8.4.4:443").expect("there");
    straight.write_all(b"plain words").expect("sent");
    eventually("it is noted", || {
        let plain = world.log("plain");
        plain.iter().any(|line| line["data"] == "plain words")
    });
    drop(straight);
    std::fs::write(world.path("log"), "").expect("emptied");
    let relayed = b"CONNECT other.example.com:443 HTTP/1.1\r\nHost: other.example.com:443\r\n\r\n";
    for words in [
        &relayed[..],
        b"GET / HTTP/1.1\r\nHost: good.example.com\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"\x80\x2e\x01\x03\x01\x00\x15",
        b"\x14\x03\x01\x00\x01\x01",
        b"\x17\x03\x03\x00\x05hello",
        b"PROXY TCP4 1.2.3.4 8.8.8.8 1 443\r\n",
        &[5, 1, 0],
        &[0; 64],
    ] {
        let answer = say(&world, &bench, words, Why::Tls);
        assert!(answer.is_empty(), "{answer:?}");
    }
    // Another name, by a client and by hand.
    let unrecognized = [21, 3, 3, 0, 2, 2, 112];
    for name in [
        "other.example.com",
        "x.good.example.com",
        "good.example.com.evil.example",
        "example.com",
    ] {
        let answer = say(&world, &bench, &hello(&bench, name), Why::Name);
        assert_eq!(answer, unrecognized, "{name}");
    }
    // No name.
    assert_eq!(
        say(&world, &bench, &hello(&bench, "8.8.4.4"), Why::Tls),
        unrecognized
    );
    // A good one behind another, in one record and in two.
    let (good, other) = (
        hello(&bench, "good.example.com"),
        hello(&bench, "other.example.com"),
    );
    let both = [
        &[22, 3, 1][..],
        &u16::to_be_bytes(u16::try_from(good.len() + other.len() - 10).expect("short")),
        &other[5..],
        &good[5..],
    ]
    .concat();
    assert_eq!(
        say(&world, &bench, &both, Why::Tls),
        [21, 3, 3, 0, 2, 2, 50]
    );
    say(&world, &bench, &[&other[..], &good].concat(), Why::Name);
    // One that hides the name behind a good one.
    let answer = say(&world, &bench, &hiding(&good), Why::Tls);
    assert_eq!(answer, unrecognized);
    assert!(world.log("tls").is_empty());
    assert!(
        bench
            .get("good.example.com")
            .expect("a page")
            .contains("hello")
    );
    assert_eq!(world.log("tls").len(), 1);
}

/// The same ClientHello with an empty extension of ECH.
fn hiding(hello: &[u8]) -> Vec<u8> {
    let mut bytes = hello.to_vec();
    let extension = [0xfe, 0x0d, 0, 1, 1];
    bytes.extend_from_slice(&extension);
    let add = |at: usize, bytes: &mut [u8]| {
        let length = u16::from_be_bytes([bytes[at], bytes[at + 1]]) + 5;
        bytes[at..at + 2].copy_from_slice(&length.to_be_bytes());
    };
    add(3, &mut bytes);
    add(7, &mut bytes);
    // Session, ciphers, compression; then the length of all extensions.
    let mut at = 9 + 34;
    at += 1 + usize::from(bytes[at]);
    at += 2 + usize::from(u16::from_be_bytes([bytes[at], bytes[at + 1]]));
    at += 1 + usize::from(bytes[at]);
    add(at, &mut bytes);
    bytes
}

#[test]
fn words_that_come_with_the_connect_or_in_pieces_are_held_until_they_are_whole() {
    if !enter(
        "tls_hello::words_that_come_with_the_connect_or_in_pieces_are_held_until_they_are_whole",
    ) {
        return;
    }
    let world = World::new(&zone());
    let bench = world.bench(ALLOW);
    let head = b"CONNECT good.example.com:443 HTTP/1.1\r\nHost: good.example.com:443\r\n\r\n";
    let good = hello(&bench, "good.example.com");
    // All at once.
    let (mut stream, reply) = bench.send([&head[..], &good].concat());
    assert_eq!(reply.status, 200, "{reply:?}");
    let mut first = [0; 3];
    stream.read_exact(&mut first).expect("the server answers");
    assert_eq!(first[..2], [22, 3]);
    drop(stream);
    // Byte by byte.
    let mut stream = bench.connect();
    for byte in head {
        stream.write_all(&[*byte]).expect("sent");
    }
    for piece in good.chunks(7) {
        stream.write_all(piece).expect("sent");
        std::thread::sleep(Duration::from_millis(1));
    }
    let reply = crate::egress::world::read_reply(&mut stream);
    assert_eq!(reply.status, 200, "{reply:?}");
    stream.read_exact(&mut first).expect("the server answers");
    assert_eq!(first[..2], [22, 3]);
    // Behind a CONNECT that is refused nothing is read.
    let other = b"CONNECT other.example.com:443 HTTP/1.1\r\nHost: other.example.com\r\n\r\n";
    let before = world.reached().len();
    let (_, reply) = bench.send([&other[..], head, &good].concat());
    assert_eq!(reply.status, 403, "{reply:?}");
    assert_eq!(world.reached().len(), before);
}

#[test]
fn the_second_hello_must_name_the_host_again() {
    if !enter("tls_hello::the_second_hello_must_name_the_host_again") {
        return;
    }
    let world = World::new(&zone());
    let bench = world.bench("allow = [\"retry.example.com:8443\"]");
    let (good, other) = (
        hello(&bench, "retry.example.com"),
        hello(&bench, "other.example.com"),
    );
    let ccs = [20, 3, 3, 0, 1, 1];
    let ask = |second: &[u8], at_once: bool| {
        // The server notes one of both of each connection, maybe long after its client has gone.
        let over = || world.log("second").len() + world.log("error").len();
        let before = over();
        let (mut stream, reply) = bench.ask("retry.example.com:8443");
        assert_eq!(reply.status, 200, "{reply:?}");
        let first = if at_once {
            [&good[..], second].concat()
        } else {
            good.clone()
        };
        stream.write_all(&first).expect("sent");
        let mut record = [0; 5];
        stream
            .read_exact(&mut record)
            .expect("the server wants another");
        assert_eq!(record[..3], [22, 3, 3]);
        if !at_once {
            stream.write_all(second).expect("sent");
        }
        rest(&mut stream);
        drop(stream);
        eventually("it is over", || over() > before);
    };
    for at_once in [false, true] {
        // The control: the same name again arrives, with the record for middleboxes or without.
        let before = world.log("second").len();
        ask(&[&ccs[..], &good].concat(), at_once);
        eventually("it arrives", || world.log("second").len() > before);
        let second = world.log("second").pop().expect("one");
        assert!(
            second["data"]
                .as_str()
                .expect("text")
                .contains("retry.example.com"),
            "{second}"
        );
        let names = bench.connection_count(Why::Name);
        ask(&[&ccs[..], &other].concat(), at_once);
        ask(&other, at_once);
        eventually("both are refused", || {
            bench.connection_count(Why::Name) == names + 2
        });
        ask(b"GET / HTTP/1.1\r\n\r\n", at_once);
        ask(&[23, 3, 3, 0, 1, 0], at_once);
        for line in world.log("second") {
            let data = line["data"].as_str().expect("text");
            assert!(
                data.is_empty() || data.contains("retry.example.com"),
                "{line}"
            );
        }
    }
}

#[test]
fn bytes_and_time_have_their_limits() {
    if !enter("tls_hello::bytes_and_time_have_their_limits") {
        return;
    }
    let world = World::new(&zone());
    // Each limit by itself: a slow machine would come to the one of time before the one of bytes.
    let rules = "allow = [\"good.example.com\"]\nsent_max = \"64K\"\nreceived_max = \"128K\"";
    let bench = world.bench(rules);
    let begin = |bench: &Bench, words: &str| {
        let mut tls = bench.tls("good.example.com:443", "good.example.com");
        tls.write_all(words.as_bytes()).expect("sent");
        tls.flush().expect("sent");
        tls
    };
    // Within the limits all of it comes.
    let mut tls = begin(&bench, "send 100000");
    let mut got = Vec::new();
    let _ = tls.read_to_end(&mut got);
    assert_eq!(got.len(), 100_000);
    drop(tls);
    let mut tls = begin(&bench, "send 1000000");
    got.clear();
    let _ = tls.read_to_end(&mut got);
    assert!(got.len() < 128 << 10, "{}", got.len());
    drop(tls);
    eventually("it was cut", || bench.connection_count(Why::Bytes) == 1);
    let mut tls = begin(&bench, "take");
    let piece = vec![b'x'; 16 << 10];
    let sent = (0..64).take_while(|_| tls.write_all(&piece).and_then(|()| tls.flush()).is_ok());
    let _ = sent.count();
    eventually("it was cut", || bench.connection_count(Why::Bytes) == 2);
    for record in bench.records.lock().expect("no panic").iter() {
        assert!(
            record.sent <= 64 << 10 && record.received <= 128 << 10,
            "{record:?}"
        );
    }
    // The server itself waits for 30 s.
    let silent = world.bench(&format!("{rules}\ntimeouts = {{ idle = \"2s\" }}"));
    let began = std::time::Instant::now();
    let mut tls = begin(&silent, "wait");
    let _ = tls.read(&mut [0; 16]);
    assert!(
        began.elapsed() < Duration::from_secs(20),
        "{:?}",
        began.elapsed()
    );
    eventually("it was idle", || bench.connection_count(Why::Idle) == 1);
    drop(tls);
    // Whoever says something now and then is cut in the end, too.
    let bounded = world.bench(&format!("{rules}\ntimeouts = {{ total = \"4s\" }}"));
    let began = std::time::Instant::now();
    let mut tls = begin(&bounded, "take");
    while tls.write_all(b"x").and_then(|()| tls.flush()).is_ok() {
        std::thread::sleep(Duration::from_millis(100));
        assert!(began.elapsed() < Duration::from_secs(30));
    }
    assert!(
        began.elapsed() > Duration::from_millis(3500),
        "{:?}",
        began.elapsed()
    );
    eventually("its time was over", || {
        bench.connection_count(Why::Time) == 1
    });
    // A child's end cuts what is open, and tells it.
    let mut tls = begin(&bench, "wait");
    let rest = bench.proxy.finish();
    assert!(
        rest.iter()
            .any(|record| record.result == Why::Cut && record.sent > 200),
        "{rest:?}"
    );
    let _ = tls.read(&mut [0; 16]);
    assert!(std::net::TcpStream::connect(bench.address).is_err());
}
