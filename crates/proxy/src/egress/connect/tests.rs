//! Heads as an attacker writes them.

use proptest::prelude::*;

use super::*;
use marshal_config::AllowedHost;

fn read(target: &str) -> Result<ConnectTarget, Denial> {
    parse_connect(format!("CONNECT {target} HTTP/1.0\r\n\r\n").as_bytes())
}

fn head(headers: &str) -> Result<ConnectTarget, Denial> {
    let head = format!("CONNECT api.example.com:443 HTTP/1.1\r\n{headers}\r\n\r\n");
    parse_connect(head.as_bytes())
}

fn why(read: Result<ConnectTarget, Denial>) -> Option<Why> {
    read.err().map(|denied| denied.result)
}

#[test]
fn a_plain_connect_passes_in_every_common_form() {
    let asked = ConnectTarget {
        host: "api.example.com".to_owned(),
        port: 443,
    };
    for headers in [
        "Host: api.example.com:443",
        "host:api.example.com",
        "Host: API.example.com:443\r\nUser-Agent: curl/8\r\nProxy-Connection: Keep-Alive",
        "Proxy-Authorization: Basic eDp5\r\nHost: api.example.com:443",
    ] {
        assert_eq!(head(headers), Ok(asked.clone()), "{headers}");
    }
    assert_eq!(read("api.example.com:443"), Ok(asked.clone()));
    assert_eq!(read("API.Example.COM:443"), Ok(asked));
}

#[test]
fn targets_that_are_no_plain_host_and_port_are_refused() {
    for target in [
        "api.example.com",
        "api.example.com:",
        ":443",
        "api.example.com:0",
        "api.example.com:00443",
        "api.example.com:+443",
        "api.example.com:65536",
        "api.example.com:4431111111111",
        "api.example.com:443:443",
        "api.example.com.:443",
        "api.example.com..:443",
        "api..example.com:443",
        ".example.com:443",
        "user@api.example.com:443",
        "api.example.com:443@evil.example",
        "evil.example@api.example.com:443",
        "api.example.com%00.evil.example:443",
        "api.example.com/x:443",
        "https://api.example.com:443",
        "api.example.com:443/x",
        "api.example.com#x:443",
        "api.example.com?x:443",
        "*.example.com:443",
        "127.0.0.1:443",
        "127.1:443",
        "0177.0.0.1:443",
        "0x7f.0.0.1:443",
        "0x7f000001:443",
        "2130706433:443",
        "017700000001:443",
        "127.0.0.1.:443",
        "1.2.3.4:443",
        "[::1]:443",
        "[::ffff:127.0.0.1]:443",
        "[::ffff:8.8.8.8]:443",
        "::1:443",
        "::ffff:127.0.0.1:443",
        "[fe80::1%25eth0]:443",
        "localhost:443",
        "b\u{fc}cher.example.com:443",
        "api\u{2024}example\u{2024}com:443",
        "\u{ff41}pi.example.com:443",
    ] {
        assert_eq!(why(read(target)), Some(Why::Target), "{target:?}");
    }
}

#[test]
fn what_two_servers_could_read_differently_is_refused() {
    let host = "Host: api.example.com:443";
    for headers in [
        "Host: evil.example:443",
        "Host: api.example.com:80",
        "Host: api.example.com.",
        "Host:",
        "X: y",
        &format!("{host}\r\n{host}"),
        &format!("{host}\r\nHost: evil.example"),
        &format!("{host}\r\nContent-Length: 0"),
        &format!("{host}\r\nContent-Length: 5"),
        &format!("{host}\r\nTransfer-Encoding: chunked"),
        &format!("{host}\r\nTransfer-Encoding : chunked"),
        &format!("{host}\r\nUpgrade: h2c"),
        &format!("{host}\r\nExpect: 100-continue"),
        &format!("{host}\r\nTrailer: x"),
        &format!("{host}\r\nX: a\r\n b"),
        &format!("{host}\r\nno colon"),
        &format!("{host}\nX: a"),
        &format!("{host}\r\nX: a\rY: b"),
        &format!("{host}\r\nX: a\0b"),
        &format!("{host}\r\nX: a\u{1b}b"),
        &format!("{host}\r\n{}", vec!["a: b"; 70].join("\r\n")),
    ] {
        assert_eq!(why(head(headers)), Some(Why::Head), "{headers:?}");
    }
    for bytes in [
        &b"CONNECT api.example.com:443 HTTP/1.1\nHost: api.example.com:443\n\n"[..],
        b"CONNECT  api.example.com:443 HTTP/1.0\r\n\r\n",
        b"CONNECT api.example.com:443 HTTP/1.0 \r\n\r\n",
        b"CONNECT\tapi.example.com:443\tHTTP/1.0\r\n\r\n",
        b"CONNECT api.example.com:443 HTTP/2.0\r\n\r\n",
        b"CONNECT api.example.com:443 HTTP/1.0x\r\n\r\n",
        b"CONNECT api.example.com:443\r\n\r\n",
        b" CONNECT api.example.com:443 HTTP/1.0\r\n\r\n",
        b"CON(NECT api.example.com:443 HTTP/1.0\r\n\r\n",
        b"CONNECT api.example.com\0.evil.example:443 HTTP/1.0\r\n\r\n",
        b"\r\nCONNECT api.example.com:443 HTTP/1.0\r\n\r\n",
        b"\r\n\r\n",
        b"",
    ] {
        let read = parse_connect(bytes);
        assert_eq!(
            why(read),
            Some(Why::Head),
            "{:?}",
            String::from_utf8_lossy(bytes)
        );
    }
    assert_eq!(
        why(parse_connect(
            b"CONNECT api\xff.example.com:443 HTTP/1.0\r\n\r\n"
        )),
        Some(Why::Target)
    );
}

#[test]
fn everything_but_connect_is_told_so() {
    for line in [
        "GET http://api.example.com/ HTTP/1.1",
        "GET / HTTP/1.1",
        "POST https://api.example.com:443/ HTTP/1.1",
        "connect api.example.com:443 HTTP/1.1",
        "OPTIONS * HTTP/1.1",
    ] {
        let read = parse_connect(format!("{line}\r\nHost: api.example.com\r\n\r\n").as_bytes());
        let denied = read.expect_err(line);
        assert_eq!((denied.result, denied.status), (Why::Method, 405), "{line}");
        let answer = String::from_utf8(denied.to_http()).expect("ASCII");
        assert!(answer.starts_with("HTTP/1.1 405 marshal: this proxy accepts only CONNECT"));
        assert!(answer.contains("\r\nallow: CONNECT\r\n"), "{answer}");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        assert!(
            head.contains(&format!("content-length: {}\r\n", body.len())),
            "{answer}"
        );
    }
}

#[test]
fn an_empty_list_lets_nothing_through_and_says_so() {
    let asked = read("api.example.com:443").expect("plain");
    let denied = check_allowed(&Egress::default(), &asked).expect_err("an empty list");
    assert_eq!(denied.status, 403);
    assert!(denied.message.contains("is empty"), "{denied:?}");
    let rules = Egress {
        allow: vec![AllowedHost::parse("*.example.com").expect("good")],
        ..Egress::default()
    };
    assert_eq!(check_allowed(&rules, &asked), Ok(()));
    let other = read("api.example.org:443").expect("plain");
    let denied = check_allowed(&rules, &other).expect_err("another host");
    assert!(
        denied.message.starts_with("api.example.org:443 is not"),
        "{denied:?}"
    );
}

proptest! {
    /// Whatever passes is what stands there, in lower case, and nothing else.
    #[test]
    fn what_passes_is_exactly_what_was_written(
        bytes in proptest::collection::vec(
            prop_oneof![
                Just(b"api.example.com:443".to_vec()), Just(b"CONNECT ".to_vec()), Just(b" HTTP/1.0".to_vec()),
                Just(b"\r\n".to_vec()), Just(b"\n".to_vec()), Just(b"Host: ".to_vec()), Just(b"@".to_vec()),
                Just(b".".to_vec()), Just(b"\0".to_vec()), Just(b":".to_vec()), Just(b"Content-Length: 1".to_vec()),
                proptest::collection::vec(any::<u8>(), 0..4),
            ],
            0..10,
        )
    ) {
        let mut head = bytes.concat();
        head.extend_from_slice(b"\r\n\r\n");
        if let Ok(asked) = parse_connect(&head) {
            let begin = format!("CONNECT {}:{} HTTP/1.", asked.host, asked.port);
            let text = String::from_utf8(head.clone()).expect("only ASCII passes here").to_ascii_uppercase();
            prop_assert!(text.starts_with(&begin.to_ascii_uppercase()), "{:?}", text);
            prop_assert!(marshal_config::check_host_name(&asked.host).is_ok());
        }
    }

    #[test]
    fn any_bytes_are_judged_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        if let Err(denied) = parse_connect(&bytes) {
            let answer = denied.to_http();
            prop_assert!(answer.is_ascii());
            prop_assert!((400..=431).contains(&denied.status));
        }
    }
}
