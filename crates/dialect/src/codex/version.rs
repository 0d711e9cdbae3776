//! The version gate: which versions of Codex this dialect supports.
//!
//! The protocol has no number of its own. Each binary generates its schema, so the binary's version
//! is the protocol's. It is in the reply to `initialize`, after our own name: `marshal/0.169.0
//! (…)`. Must not know what follows.

/// The supported versions, for people.
pub(super) const SUPPORTED: &str = "0.166 or a later 0.x of codex app-server";

/// The first version whose generated schema has every method, member and word that is used here:
/// `thread/resume` without its turns, approvals that state their kind and environment,
/// `serverRequest/resolved`, `thread/settings/updated`, the word `untrusted`, and notifications
/// that may be left out. Additions of later versions are covered in two ways: approvals are read
/// closed, and the reply to `thread/start` is compared with the request.
const FIRST: (u64, u64) = (0, 166);

/// The binary's version in a user agent.
pub(super) fn parse_user_agent(agent: &str) -> Option<&str> {
    let (_, rest) = agent.split_once('/')?;
    let version = rest.split([' ', '(']).next()?;
    numbers(version).map(|_| version)
}

/// Whether this dialect supports that version.
pub(super) fn is_supported_version(version: &str) -> bool {
    numbers(version).is_some_and(|(major, minor)| major == FIRST.0 && minor >= FIRST.1)
}

/// Its first two numbers; a third must exist.
fn numbers(version: &str) -> Option<(u64, u64)> {
    let bare = version.split(['-', '+']).next()?;
    let mut parts = bare.split('.').map(str::parse::<u64>);
    let (major, minor) = (parts.next()?.ok()?, parts.next()?.ok()?);
    parts.next()?.ok()?;
    parts.next().is_none().then_some((major, minor))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_stands_behind_a_name() {
        let of = |agent: &str| parse_user_agent(agent).map(str::to_owned);
        let real = "marshal/0.169.0 (Debian 12.0.0; x86_64) dumb (marshal; 0.1.0)";
        assert_eq!(of(real).as_deref(), Some("0.169.0"));
        assert_eq!(of("a/1.2.3").as_deref(), Some("1.2.3"));
        assert_eq!(
            of("a/0.170.0-alpha.2 (x)").as_deref(),
            Some("0.170.0-alpha.2")
        );
        for none in [
            "",
            "marshal",
            "0.169.0",
            "marshal/",
            "marshal/latest (x)",
            "marshal/0.169",
            "marshal/0.1.2.3",
        ] {
            assert_eq!(of(none), None, "{none}");
        }
    }

    #[test]
    fn versions_from_the_first_one_on_are_ours() {
        for ours in ["0.166.0", "0.169.3", "0.170.0-alpha.2", "0.999.0"] {
            assert!(is_supported_version(ours), "{ours}");
        }
        for other in [
            "0.165.9",
            "0.0.0",
            "1.0.0",
            "2.166.0",
            "x",
            "0.166",
            "0.99999999999999999999.0",
        ] {
            assert!(!is_supported_version(other), "{other}");
        }
    }
}
