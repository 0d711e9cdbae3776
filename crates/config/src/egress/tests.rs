//! What stands on an allow-list, and what cannot.

use proptest::prelude::*;

use super::*;

fn holds(line: &str, host: &str, port: u16) -> bool {
    AllowedHost::parse(line).expect(line).allows(host, port)
}

#[test]
fn a_line_allows_one_host_or_those_below_it_at_one_port() {
    assert!(holds("api.example.com", "api.example.com", 443));
    assert!(!holds("api.example.com", "api.example.com", 80));
    assert!(holds("api.example.com:8443", "api.example.com", 8443));
    assert!(!holds("api.example.com:8443", "api.example.com", 443));
    for other in [
        "example.com",
        "x.api.example.com",
        "api.example.com.evil.org",
        "apiexample.com",
        "xapi.example.com",
        "",
    ] {
        assert!(!holds("api.example.com", other, 443), "{other}");
    }
    for below in [
        "a.example.com",
        "a.b.example.com",
        "xn--bcher-kva.example.com",
    ] {
        assert!(holds("*.example.com", below, 443), "{below}");
    }
    for other in [
        "example.com",
        ".example.com",
        "evilexample.com",
        "a.example.com.evil.org",
        "example.com.evil.org",
        "a.example.org",
    ] {
        assert!(!holds("*.example.com", other, 443), "{other}");
    }
    for line in ["api.example.com:443", "*.example.com:8443"] {
        assert_eq!(AllowedHost::parse(line).expect(line).to_string(), line);
    }
}

#[test]
fn what_is_no_plain_name_is_not_taken() {
    for bad in [
        "",
        "*",
        "*:443",
        "*.",
        "*.com",
        "com",
        "localhost",
        ".example.com",
        "a*.example.com",
        "a.*.example.com",
        "*.*.example.com",
        "example.com.",
        "example..com",
        "-a.example.com",
        "a-.example.com",
        "API.example.com",
        "b\u{fc}cher.example.com",
        "a_b.example.com",
        "a b.example.com",
        "https://example.com",
        "example.com/x",
        "user@example.com",
        "example.com:",
        "example.com:0",
        "example.com:0443",
        "example.com:+443",
        "example.com:65536",
        "example.com:https",
        "example.com:443:443",
        "127.0.0.1",
        "127.0.0.1:443",
        "127.1",
        "0x7f.0.0.1",
        "0177.0.0.1",
        "2130706433",
        "1.2.3.4.",
        "::1",
        "[::1]:443",
        "[::ffff:127.0.0.1]:443",
        "a.example.1",
        "a.example.0x1",
    ] {
        assert!(AllowedHost::parse(bad).is_err(), "{bad:?} is taken");
    }
    let long = format!("{}.example.com", "a".repeat(64));
    assert!(AllowedHost::parse(&long).is_err());
    let long = format!("{}example.com", "abcdefgh.".repeat(28));
    assert!(AllowedHost::parse(&long).is_err());
}

/// What `inet_aton` and other readers of addresses take, as far as the standard library and the
/// notations of C go.
fn is_some_address(text: &str) -> bool {
    let number = |part: &str| {
        let hex = part.strip_prefix("0x").or(part.strip_prefix("0X"));
        match hex {
            Some(hex) => hex.bytes().all(|byte| byte.is_ascii_hexdigit()),
            None => !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()),
        }
    };
    let parts: Vec<&str> = text.split('.').collect();
    text.parse::<std::net::IpAddr>().is_ok()
        || (parts.len() <= 4 && parts.iter().all(|p| number(p)))
}

proptest! {
    #[test]
    fn no_name_is_an_address_in_any_notation(text in "(0?[xX]?[0-9a-fA-F]{0,4}[.:]?){1,9}") {
        let lower = text.to_ascii_lowercase();
        prop_assert!(check_host_name(&lower).is_err() || !is_some_address(&lower), "{}", lower);
    }

    #[test]
    fn what_is_taken_is_shown_and_read_again_alike(text in "(\\*\\.)?([a-z0-9-]{0,3}\\.){0,3}[a-z0-9.*:]{0,8}(:[0-9]{1,5})?") {
        if let Ok(line) = AllowedHost::parse(&text) {
            let again = AllowedHost::parse(&line.to_string());
            prop_assert_eq!(again, Ok(line));
        }
    }

    #[test]
    fn a_suffix_allows_only_what_ends_with_it(host in "[a-z.-]{0,24}") {
        let line = AllowedHost::parse("*.example.com").expect("good");
        let ends = host.ends_with(".example.com") && host.len() > ".example.com".len();
        prop_assert_eq!(line.allows(&host, 443), ends);
    }
}
