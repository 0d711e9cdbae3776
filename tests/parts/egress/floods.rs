//! Too much and too slow: thousands of connections, and such that never come to the point.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use marshal_model::EgressResult as Why;

use crate::egress::ALLOW;
use crate::egress::world::{World, enter, eventually, hello, number, read_reply, rest, zone};

#[test]
fn of_ten_thousand_connections_a_few_are_served_and_the_others_refused() {
    if !enter("floods::of_ten_thousand_connections_a_few_are_served_and_the_others_refused") {
        return;
    }
    let world = World::new(&zone());
    let bench = world.bench(&format!(
        "{ALLOW}\nconnections = 8\nper_minute = 60000\ntimeouts = {{ request = \"60s\" }}"
    ));
    let mut occupied: Vec<TcpStream> = (0..8).map(|_| bench.connect()).collect();
    let open = || number("marshal_egress_connections{pool=\"demo\"} ");
    eventually("eight are open", || open() == 8);
    let head = b"CONNECT other.example.com:443 HTTP/1.1\r\nHost: other.example.com\r\n\r\n";
    let files = || std::fs::read_dir("/proc/self/fd").expect("fds").count();
    let (mut most_open, mut reported, mut most_files) = (0, 0, 0);
    for _ in 0..20 {
        let crowd: Vec<TcpStream> = (0..500).map(|_| bench.connect()).collect();
        for mut stream in crowd {
            let _ = stream.write_all(head);
            reported += usize::from(read_reply(&mut stream).status == 503);
        }
        most_open = most_open.max(open());
        most_files = most_files.max(files());
    }
    eventually("all others are refused", || {
        bench.connection_count(Why::Connections) == 10_000
    });
    assert_eq!(most_open, 8);
    assert!(reported >= 32, "{reported} were told why");
    // None of this process's files are left of them: the listener's, the eight, and its own.
    assert!(most_files < 200, "{most_files}");
    // What is told of them is a few lines, and nothing is lost.
    let records = bench.records.lock().expect("no panic").len();
    assert!(records < 64, "{records} records");
    // Those that were there first still work, and places come back.
    let good = b"CONNECT good.example.com:443 HTTP/1.1\r\nHost: good.example.com\r\n\r\n";
    occupied[0].write_all(good).expect("sent");
    assert_eq!(read_reply(&mut occupied[0]).status, 200);
    drop(occupied);
    eventually("the places come back", || open() == 0);
    assert!(
        bench
            .get("good.example.com")
            .expect("a page")
            .contains("hello")
    );
    let rest = bench.proxy.finish();
    let reported = bench.records.lock().expect("no panic").clone();
    let all = reported.iter().chain(&rest);
    let refused = all.filter(|record| record.result == Why::Connections);
    assert_eq!(
        refused.map(|record| record.connections).sum::<u64>(),
        10_000
    );
}

#[test]
fn a_minutes_connections_are_counted() {
    if !enter("floods::a_minutes_connections_are_counted") {
        return;
    }
    let world = World::new(&zone());
    let bench = world.bench("allow = [\"good.example.com\"]\nper_minute = 5");
    let mut seen = Vec::new();
    for _ in 0..8 {
        seen.push(bench.ask("other.example.com:443").1.status);
    }
    assert_eq!(seen, [403, 403, 403, 403, 403, 429, 429, 429]);
    assert_eq!(bench.connection_count(Why::Rate), 3);
}

#[test]
fn whoever_is_slow_is_cut_off_in_time() {
    if !enter("floods::whoever_is_slow_is_cut_off_in_time") {
        return;
    }
    let world = World::new(&zone());
    let bench = world.bench(&format!("{ALLOW}\ntimeouts = {{ request = \"2s\" }}"));
    let head = b"CONNECT good.example.com:443 HTTP/1.1\r\nHost: good.example.com\r\n\r\n";
    let drip = |mut stream: TcpStream, words: Vec<u8>| {
        std::thread::spawn(move || {
            for byte in words {
                std::thread::sleep(Duration::from_millis(500));
                if stream.write_all(&[byte]).is_err() {
                    return;
                }
            }
        })
    };
    // The head, a byte now and then.
    let mut stream = bench.connect();
    let began = Instant::now();
    let dripping = drip(stream.try_clone().expect("a clone"), head[..60].to_vec());
    assert_eq!(read_reply(&mut stream).status, 408);
    assert!(
        began.elapsed() < Duration::from_secs(20),
        "{:?}",
        began.elapsed()
    );
    drop(stream);
    let _ = dripping.join();
    // The first message of TLS.
    let (mut stream, reply) = bench.send(head);
    assert_eq!(reply.status, 200, "{reply:?}");
    let began = Instant::now();
    let dripping = drip(
        stream.try_clone().expect("a clone"),
        hello(&bench, "good.example.com"),
    );
    assert!(rest(&mut stream).is_empty());
    assert!(
        began.elapsed() < Duration::from_secs(20),
        "{:?}",
        began.elapsed()
    );
    drop(stream);
    let _ = dripping.join();
    // Whoever says nothing at all is let go.
    let mut stream = bench.connect();
    assert_eq!(stream.read(&mut [0; 16]).expect("the end"), 0);
    eventually("they are counted", || {
        bench.connection_count(Why::Slow) == 3
    });
    assert!(world.log("tls").is_empty());
    // Hundreds of them do not keep others away for longer than that.
    let slow: Vec<TcpStream> = (0..200).map(|_| bench.connect()).collect();
    eventually("the way is free again", || {
        bench.ask("good.example.com:443").1.status == 200
    });
    drop(slow);
}
