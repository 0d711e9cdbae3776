//! ClientHellos of a real client, of an attacker, and what another reader makes of them.

use std::io::Cursor as Bytes;
use std::sync::Arc;

use proptest::prelude::*;
use rustls::pki_types::ServerName;
use rustls::server::Acceptor;
use rustls::{ClientConfig, ClientConnection, RootCertStore};

use super::*;

const MOST: usize = marshal_model::limits::EGRESS_HELLO_BYTES;

fn read(bytes: &[u8]) -> Result<ParseProgress<ClientHello>, HelloError> {
    parse_client_hello(bytes, false, MOST, 64)
}

/// What rustls sends first, for a name.
fn real(name: &str) -> Vec<u8> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    let name = ServerName::try_from(name.to_owned()).expect("a name");
    let mut client = ClientConnection::new(Arc::new(config), name).expect("a client");
    let mut bytes = Vec::new();
    client.write_tls(&mut bytes).expect("bytes");
    bytes
}

/// The name that rustls' server reads there.
fn by_rustls(bytes: &[u8]) -> Option<String> {
    let mut acceptor = Acceptor::default();
    let mut from = Bytes::new(bytes);
    while acceptor.read_tls(&mut from).ok()? > 0 {
        if let Some(accepted) = acceptor.accept().ok()? {
            return accepted.client_hello().server_name().map(str::to_owned);
        }
    }
    None
}

fn record(kind: u8, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(payload.len()).expect("short").to_be_bytes();
    [&[kind, 3, 1], &length[..], payload].concat()
}

fn extension(kind: u16, data: &[u8]) -> Vec<u8> {
    let length = u16::try_from(data.len()).expect("short").to_be_bytes();
    [&kind.to_be_bytes()[..], &length, data].concat()
}

fn vector(data: &[u8]) -> Vec<u8> {
    let length = u16::try_from(data.len()).expect("short").to_be_bytes();
    [&length[..], data].concat()
}

fn named(name: &str) -> Vec<u8> {
    let entry = [&[0][..], &vector(name.as_bytes())].concat();
    extension(0, &vector(&entry))
}

fn message(extensions: &[u8]) -> Vec<u8> {
    let body = [
        &[3, 3][..],
        &[7; 32],
        &[0],
        &[0, 2, 0x13, 0x01],
        &[1, 0],
        &vector(extensions),
    ]
    .concat();
    let length = u32::try_from(body.len()).expect("short").to_be_bytes();
    [&[1][..], &length[1..], &body].concat()
}

fn hello(extensions: &[u8]) -> Vec<u8> {
    record(22, &message(extensions))
}

fn name_of(read: Result<ParseProgress<ClientHello>, HelloError>) -> String {
    match read {
        Ok(ParseProgress::Done(hello)) => hello.name,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_real_clients_name_is_read_at_whatever_point_its_bytes_are_cut() {
    let bytes = real("api.example.com");
    for cut in 0..bytes.len() {
        match read(&bytes[..cut]) {
            Ok(ParseProgress::NeedMore(more)) => {
                assert!(more > cut && more <= bytes.len(), "{cut} {more}");
            }
            other => panic!("{cut}: {other:?}"),
        }
    }
    assert_eq!(
        read(&bytes),
        Ok(ParseProgress::Done(ClientHello {
            name: "api.example.com".to_owned(),
            len: bytes.len()
        }))
    );
    // What comes behind it is left where it is.
    let more = [&bytes[..], &record(20, &[1]), &[23, 3, 3]].concat();
    assert!(matches!(read(&more), Ok(ParseProgress::Done(hello)) if hello.len == bytes.len()));
    assert_eq!(by_rustls(&bytes).as_deref(), Some("api.example.com"));
}

#[test]
fn a_message_over_many_records_is_one_message() {
    let whole = message(&named("api.example.com"));
    for size in [1, 2, 3, 4, 5, 40, 60] {
        let bytes: Vec<u8> = whole
            .chunks(size)
            .flat_map(|part| record(22, part))
            .collect();
        assert_eq!(name_of(read(&bytes)), "api.example.com", "{size}");
    }
}

#[test]
fn what_is_no_tls_or_names_nobody_is_refused() {
    for bytes in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        b"CONNECT evil.example:443 HTTP/1.1\r\n\r\n",
        b"SSH-2.0-x\r\n",
        b"\x80\x2e\x01\x03\x01",
        b"\x16\x02\x00",
        b"\x15\x03\x01\x00\x02\x02\x28",
        b"\x14\x03\x01\x00\x01\x01",
        b"\x17\x03\x03\x00\x01\x00",
        b"\0",
    ] {
        assert_eq!(read(bytes), Err(HelloError::NotTls), "{bytes:?}");
    }
    assert_eq!(read(&hello(&[])), Err(HelloError::NoName));
    assert_eq!(
        read(&hello(&extension(10, &[0, 0]))),
        Err(HelloError::NoName)
    );
    assert_eq!(read(&real("1.2.3.4")), Err(HelloError::NoName));
    for kind in ENCRYPTED_HELLO {
        let both = [named("api.example.com"), extension(kind, &[0; 8])].concat();
        assert_eq!(read(&hello(&both)), Err(HelloError::Hidden), "{kind:x}");
        let both = [extension(kind, &[0; 8]), named("api.example.com")].concat();
        assert_eq!(read(&hello(&both)), Err(HelloError::Hidden), "{kind:x}");
    }
}

#[test]
fn what_servers_could_read_differently_is_refused() {
    let good = named("api.example.com");
    let entry = |kind: u8, name: &str| [&[kind][..], &vector(name.as_bytes())].concat();
    let list = |entries: &[u8]| hello(&extension(0, &vector(entries)));
    let fresh = message(&good);
    for (what, bytes) in [
        (
            "two extensions",
            hello(&[good.clone(), named("evil.example")].concat()),
        ),
        (
            "two names",
            list(&[entry(0, "api.example.com"), entry(0, "evil.example")].concat()),
        ),
        ("a name of another kind", list(&entry(1, "api.example.com"))),
        ("an empty name", list(&entry(0, ""))),
        ("a NUL", list(&entry(0, "api.example.com\0.evil.example"))),
        ("no list", hello(&extension(0, &[]))),
        (
            "bytes behind the list",
            hello(&extension(0, &[vector(&entry(0, "a.b")), vec![0]].concat())),
        ),
        (
            "a second message",
            record(22, &[fresh.clone(), fresh.clone()].concat()),
        ),
        (
            "the begin of one",
            record(22, &[fresh.clone(), vec![1]].concat()),
        ),
        (
            "an empty record",
            [
                record(22, &fresh[..9]),
                record(22, &[]),
                record(22, &fresh[9..]),
            ]
            .concat(),
        ),
        (
            "a record between",
            [
                record(22, &fresh[..9]),
                record(20, &[1]),
                record(22, &fresh[9..]),
            ]
            .concat(),
        ),
        (
            "another message",
            record(22, &[&[2][..], &fresh[1..]].concat()),
        ),
        ("too long a record", [22, 3, 1, 0x40, 0x01].to_vec()),
    ] {
        assert_eq!(read(&bytes), Err(HelloError::Form), "{what}");
    }
    let many: Vec<u8> = (100..200).flat_map(|kind| extension(kind, &[])).collect();
    assert_eq!(read(&hello(&[many, good].concat())), Err(HelloError::Form));
    let long = [22, 3, 1, 0, 4, 1, 0xff, 0xff, 0xff];
    assert_eq!(read(&long), Err(HelloError::TooLong));
    let padded = hello(&[named("a.b"), extension(21, &[0; 16_000])].concat());
    assert!(read(&padded).is_ok());
    assert_eq!(
        parse_client_hello(&padded, false, 9000, 64),
        Err(HelloError::TooLong)
    );
}

#[test]
fn the_second_one_may_come_behind_the_record_for_old_middleboxes() {
    let fresh = hello(&named("evil.example"));
    let behind = [record(20, &[1]), fresh.clone()].concat();
    assert_eq!(
        name_of(parse_client_hello(&behind, true, MOST, 64)),
        "evil.example"
    );
    assert_eq!(
        name_of(parse_client_hello(&fresh, true, MOST, 64)),
        "evil.example"
    );
    assert_eq!(read(&behind), Err(HelloError::NotTls));
    for cut in 0..behind.len() {
        assert!(
            matches!(
                parse_client_hello(&behind[..cut], true, MOST, 64),
                Ok(ParseProgress::NeedMore(_))
            ),
            "{cut}"
        );
    }
    let twice = [record(20, &[1]), record(20, &[1]), fresh].concat();
    assert_eq!(
        parse_client_hello(&twice, true, MOST, 64),
        Err(HelloError::Form)
    );
    assert_eq!(
        parse_client_hello(&record(20, &[2]), true, MOST, 64),
        Err(HelloError::Form)
    );
}

#[test]
fn a_server_goes_on_or_wants_another_hello() {
    let server = |random: [u8; 32]| {
        let body = [&[3, 3][..], &random, &[0, 0x13, 0x01, 0]].concat();
        let length = u32::try_from(body.len()).expect("short").to_be_bytes();
        record(22, &[&[2][..], &length[1..], &body].concat())
    };
    let go = server([9; 32]);
    assert_eq!(
        parse_server_reply(&go),
        Ok(ParseProgress::Done(ServerReply::Continues))
    );
    for cut in 0..43 {
        assert!(
            matches!(
                parse_server_reply(&go[..cut]),
                Ok(ParseProgress::NeedMore(_))
            ),
            "{cut}"
        );
    }
    assert_eq!(
        parse_server_reply(&server(HELLO_RETRY_RANDOM)),
        Ok(ParseProgress::Done(ServerReply::Retry))
    );
    let alert = record(21, &[2, 40]);
    assert_eq!(
        parse_server_reply(&alert),
        Ok(ParseProgress::Done(ServerReply::Continues))
    );
    // A warning (unrecognized_name) ends nothing: what comes after it decides.
    let warning = record(21, &[1, 112]);
    assert_eq!(
        parse_server_reply(&warning),
        Ok(ParseProgress::NeedMore(warning.len() + 5))
    );
    assert_eq!(
        parse_server_reply(&warning[..6]),
        Ok(ParseProgress::NeedMore(7))
    );
    let retry = [&warning[..], &server(HELLO_RETRY_RANDOM)].concat();
    for cut in warning.len()..warning.len() + 43 {
        let read = parse_server_reply(&retry[..cut]);
        assert!(
            matches!(read, Ok(ParseProgress::NeedMore(more)) if more > cut),
            "{cut}"
        );
    }
    assert_eq!(
        parse_server_reply(&retry),
        Ok(ParseProgress::Done(ServerReply::Retry))
    );
    assert_eq!(
        parse_server_reply(&[&warning[..], &alert].concat()),
        Ok(ParseProgress::Done(ServerReply::Continues))
    );
    for bad in [warning.repeat(9), record(21, &[3, 0]), record(21, &[1])] {
        let bad = [&bad[..], &[0; 9]].concat();
        assert_eq!(parse_server_reply(&bad), Err(HelloError::Form));
    }
    assert_eq!(parse_server_reply(b"HTTP/1.1 400"), Err(HelloError::NotTls));
    assert_eq!(
        parse_server_reply(&record(22, &[2, 0, 0, 9])),
        Err(HelloError::Form)
    );
    assert_eq!(
        parse_server_reply(&record(22, &[8; 60])),
        Err(HelloError::Form)
    );
}

proptest! {
    /// Bytes of a real client, changed: if they still pass, another reader sees the same name.
    #[test]
    fn what_passes_has_the_same_name_for_another_reader(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cut in proptest::option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = real("api.example.com");
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Some(cut) = cut {
            let at = cut.index(bytes.len());
            bytes.remove(at);
        }
        if let Ok(ParseProgress::Done(hello)) = read(&bytes)
            && let Some(name) = by_rustls(&bytes[..hello.len])
        {
            prop_assert!(name.eq_ignore_ascii_case(&hello.name), "{} {}", name, hello.name);
        }
    }

    #[test]
    fn any_bytes_are_judged_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400), tls: bool) {
        let mut bytes = bytes;
        if tls && bytes.len() > 9 {
            bytes[..3].copy_from_slice(&[22, 3, 1]);
            let length = u16::try_from(bytes.len() - 5).expect("short").to_be_bytes();
            bytes[3..5].copy_from_slice(&length);
            bytes[5] = 1;
        }
        let _ = parse_client_hello(&bytes, true, MOST, 64);
        let _ = parse_server_reply(&bytes);
        if let Ok(ParseProgress::NeedMore(more)) = read(&bytes) {
            prop_assert!(more > bytes.len() && more <= MOST);
        }
    }
}
