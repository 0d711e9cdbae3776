//! What patterns hold, and what a shell's pattern may become.

use super::*;
use crate::path::NoLinks;

fn set(patterns: &[&str], folded: bool) -> PathSet {
    let patterns: Vec<_> = patterns.iter().map(|&p| p.to_owned()).collect();
    PathSet::compile(&patterns, folded).expect("patterns")
}

fn place() -> FsContext<'static> {
    FsContext {
        workspace: "/workspace",
        home: "/home/agent",
        cwd: None,
        resolver: &NoLinks,
    }
}

#[test]
fn patterns_hold_below_their_root() {
    let secrets = set(&["**/.env", "**/*.pem", "~/.ssh/**", "/etc/shadow"], false);
    let has = |path: &str| secrets.contains(path, &place(), SetReach::SelfAndBelow);
    assert!(has("/workspace/.env") && has("/x/y/.env") && has("/.env"));
    assert!(has("/workspace/a/k.pem") && has("/home/agent/.ssh/id") && has("/home/agent/.ssh"));
    assert!(has("/etc/shadow") && !has("/etc/shadow2") && !has("/workspace/.env.md"));
    assert!(!has("/workspace/.ssh/id") && !has("/home/agent2/.ssh/id"));
    assert!(!secrets.contains("/home/agent/.ssh", &place(), SetReach::Below));
}

#[test]
fn what_a_pattern_must_have_in_it_hides_no_path() {
    for (pattern, path) in [
        ("**/id_*_x*", "/a/id_1_x2"),
        ("**/*.p?m", "/a/b.pam"),
        ("**/{a,b}.key", "/c/b.key"),
        ("**/[ab].key", "/c/a.key"),
        ("**/a*b/**/c", "/x/aab/d/c"),
        ("/**", "/anything"),
    ] {
        assert!(
            set(&[pattern, "**/never"], false).contains(path, &place(), SetReach::SelfAndBelow),
            "{pattern}"
        );
    }
    assert_eq!(longest_literal("**/.git/workflows/**"), Some("workflows"));
    assert_eq!(longest_literal("**/*"), None);
}

#[test]
fn folded_sets_ignore_case() {
    let protected = set(&["@/.git/**"], true);
    let has = |path: &str| protected.contains(path, &place(), SetReach::SelfAndBelow);
    assert!(has("/workspace/.GIT/config") && has("/workspace/.git"));
    assert!(!has("/workspace/.gitignore") && !has("/workspace/src/.git/x"));
}

#[test]
fn a_shell_pattern_may_become_a_secret() {
    let names = [
        "**/.env",
        "**/*.pem",
        "**/id_rsa*",
        "**/auth-*.json",
        "**/.aws/credentials",
    ];
    let secrets = set(&names, false);
    for pattern in [
        ".e*",
        ".en?",
        ".en[v]",
        "*.p*",
        "id_*",
        "i?_rsa",
        "server.p*",
        "*.p?m",
        "s*.pem",
        "server.[p]em",
        "id*",
        "*_rsa",
        "i[d]_rsa*",
        "s*m",
        "[i][d]_[r][s][a]",
        "*e*",
        "au*",
        "a*th*.json",
        "auth-?.j*",
    ] {
        assert!(secrets.may_expand_into(pattern, false), "{pattern}");
    }
    for pattern in [
        "*",
        "*.md",
        "*.rs",
        "*env",
        "?env",
        "src*",
        "*.*x",
        "*.??",
        "[a-z]*",
        "src/[ab].rs",
        "[[:lower:]]ink_out",
        "main.*",
        "*.toml",
        "README*",
        "i*",
        "a*",
        "*.json",
        "*.j*n",
        "package*.json",
        "cred*",
    ] {
        assert!(!secrets.may_expand_into(pattern, false), "{pattern}");
    }
}

#[test]
fn a_class_hides_no_name_however_it_is_spelled() {
    for pattern in [
        "[[:lower:]]ink",
        "[]l]ink",
        "[!]a]ink",
        "[^]]ink",
        "l[i]n[k]",
        "[l-]ink",
    ] {
        assert!(could_match(pattern, "link"), "{pattern}");
    }
    assert!(could_match("[]link", "[]link") && could_match("[link", "[link"));
    assert!(!could_match("[ab].rs", "link") && !could_match("[link", "link"));
}

#[test]
fn a_pattern_without_a_root_is_refused() {
    let error = PathSet::compile(&["src/**".to_owned()], false).expect_err("rootless");
    assert!(error.to_string().contains("src/**"));
    assert!(PathSet::compile(&["/a[".to_owned()], false).is_err());
}
