//! Which message gets which hint.

use super::*;
use crate::{Config, Origin};

fn config(text: &str) -> Config {
    let origin = Origin::built_in("/srv".into());
    let text = format!("{text}\n[pool.demo]\nagent = \"script\"\n");
    Config::parse(&text, &origin).unwrap_or_else(|errors| panic!("{errors}"))
}

struct Case {
    agent: &'static str,
    launcher: Launcher,
    code: Option<i32>,
    message: &'static str,
    stderr: &'static str,
}

const BARE: Case = Case {
    agent: "custom",
    launcher: Launcher::Unshare,
    code: None,
    message: "",
    stderr: "",
};

fn matching_hint(hints: &Hints, case: &Case) -> Option<(String, Option<HintClass>)> {
    let stderr: Vec<UntrustedText> = case.stderr.lines().map(UntrustedText::from).collect();
    let hint = hints.find(&Evidence {
        agent: case.agent,
        launcher: case.launcher,
        status: case.code.map(ExitStatus::Code),
        messages: &[case.message],
        stderr: &stderr,
    })?;
    Some((hint.text.clone(), hint.class))
}

#[track_caller]
fn check(case: &Case, text: &str, class: Option<HintClass>) {
    let found = matching_hint(&Hints::default(), case);
    let (got, of) = found.unwrap_or_else(|| panic!("no hint, expected {text:?}"));
    assert!(got.contains(text), "expected {text:?}, got {got:?}");
    assert_eq!(of, class, "{got}");
}

#[test]
fn the_built_in_rows_are_good_and_each_is_reached() {
    let rows = parse_built_in().expect("good");
    assert!(rows.len() > 30);
}

#[test]
fn the_three_classic_messages_have_their_hints() {
    let credentials = Case {
        message: "RuntimeError: No credentials found",
        ..BARE
    };
    check(&credentials, "ANTHROPIC_API_KEY", None);
    let missing = Case {
        stderr: "starting\nenv: 'hermes': No such file or directory",
        ..BARE
    };
    check(&missing, "env.path_add", None);
    for message in [
        "Rate limit reached",
        "API Error: 429 {}",
        "HTTP 429: Too Many Requests",
    ] {
        let limited = Case { message, ..BARE };
        check(&limited, "limits requests", Some(HintClass::RateLimited));
    }
    let logged = Case {
        stderr: "openai.RateLimitError: status 429",
        ..BARE
    };
    check(&logged, "limits requests", Some(HintClass::RateLimited));
    let number = Case {
        message: "line 1429 of the log",
        ..BARE
    };
    assert_eq!(matching_hint(&Hints::default(), &number), None);
}

#[test]
fn an_agents_own_row_goes_before_the_general_one() {
    let of = |agent| Case {
        agent,
        stderr: "No credentials found",
        ..BARE
    };
    check(&of("hermes"), ".hermes/.env of its home", None);
    check(&of("custom"), "by env.set", None);
}

#[test]
fn the_ssh_clients_messages_are_told_apart() {
    let ssh = |stderr| Case {
        launcher: Launcher::Ssh,
        code: Some(255),
        stderr,
        ..BARE
    };
    let park = Some(HintClass::Configuration);
    let away = Some(HintClass::Unreachable);
    check(
        &ssh("Host key verification failed."),
        "is not known here",
        park,
    );
    check(
        &ssh("@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key verification failed."),
        "differs from the one in known_hosts",
        park,
    );
    check(
        &ssh("a@h: Permission denied (publickey)."),
        "rejects this user",
        park,
    );
    check(
        &ssh("ssh: connect to host h port 22: Connection refused"),
        "listens",
        away,
    );
    check(
        &ssh("ssh: connect to host h port 22: Connection timed out"),
        "answer",
        away,
    );
    check(
        &ssh("ssh: Could not resolve hostname h: Name or service not known"),
        "ssh.host",
        away,
    );
    check(
        &ssh("Connection closed by 10.0.0.1 port 22"),
        "before the login",
        away,
    );
    check(
        &ssh("Timeout, server h not responding."),
        "did not answer for ssh.alive_timeout",
        None,
    );
    // What a far agent prints itself is no word of the client's.
    let git = Case {
        code: Some(1),
        ..ssh("git@x: Permission denied (publickey).")
    };
    assert_eq!(matching_hint(&Hints::default(), &git), None);
    let here = Case {
        launcher: Launcher::Unshare,
        ..ssh("Host key verification failed.")
    };
    assert_eq!(matching_hint(&Hints::default(), &here), None);
    let missing = Case {
        code: Some(127),
        message: "the agent ended before it was ready: exit code 127",
        ..ssh("env: 'hermes': No such file or directory")
    };
    check(&missing, "env.path_add", park);
}

#[test]
fn rows_of_the_file_go_first() {
    let own = config(
        "[[hint]]\npattern = '(?i)lab quota'\nwhere = \"message\"\ntext = \"ask the lab\"\nclass = \"rate_limited\"\n\
         [[hint]]\npattern = \"429\"\nagent = \"codex\"\ntext = \"own words\"",
    );
    let hints = own.hints;
    let limited = Some(("ask the lab".to_owned(), Some(HintClass::RateLimited)));
    let message = "Lab quota, error 429";
    assert_eq!(matching_hint(&hints, &Case { message, ..BARE }), limited);
    let message = "x: status 429";
    let codex = Case {
        agent: "codex",
        message,
        ..BARE
    };
    assert_eq!(
        matching_hint(&hints, &codex),
        Some(("own words".to_owned(), None))
    );
    let (general, _) = matching_hint(&hints, &Case { message, ..BARE }).expect("built in");
    assert!(general.contains("limits requests"), "{general}");
}

fn tells_limit(hints: &Hints, case: &Case) -> bool {
    let stderr: Vec<UntrustedText> = case.stderr.lines().map(UntrustedText::from).collect();
    let evidence = Evidence {
        agent: case.agent,
        launcher: case.launcher,
        status: case.code.map(ExitStatus::Code),
        messages: &[case.message],
        stderr: &stderr,
    };
    hints.matches_class(&evidence, HintClass::RateLimited)
}

#[test]
fn words_of_limits_are_told_from_other_numbers() {
    let tells = |message| tells_limit(&Hints::default(), &Case { message, ..BARE });
    for message in [
        "Error: 429 Too Many Requests",
        "API Error: Rate limit reached for gpt-x",
        "API Error: 429 {\"type\":\"error\"}",
        "{\"type\":\"rate_limit_error\"}",
        "input_token_rate_limit",
        "anthropic.RateLimitError",
        "RESOURCE_EXHAUSTED",
        "Resource has been exhausted (e.g. check quota).",
        "unexpected status 429",
        "{\"error\":{\"code\": 429}}",
        "statusCode: 429",
        "HTTP/1.1 429",
        "429 Client Error",
        "Error code: 529 - overloaded_error",
        "You exceeded your current quota",
        "You've hit your usage limit",
    ] {
        assert!(tells(message), "{message}");
    }
    for message in [
        "took 429 ms",
        "line 429",
        "",
        "limits.rs: rate 5",
        "error in line 429",
        "a corporate limit",
        "connection refused",
        "429 tests passed",
    ] {
        assert!(!tells(message), "{message}");
    }
}

#[test]
fn a_row_of_the_file_adds_words_of_limits_or_takes_them_back() {
    let hints = config(
        "[[hint]]\npattern = \"come back on Monday\"\nwhere = \"message\"\nagent = \"codex\"\ntext = \"wait\"\nclass = \"rate_limited\"\n\
         [[hint]]\npattern = \"usage limit of the disk\"\ntext = \"own words\"",
    )
    .hints;
    let message = "come back on Monday";
    let codex = Case {
        agent: "codex",
        message,
        ..BARE
    };
    assert!(tells_limit(&hints, &codex));
    assert!(!tells_limit(&hints, &Case { message, ..BARE }));
    let in_stderr = Case {
        stderr: message,
        message: "",
        ..codex
    };
    assert!(!tells_limit(&hints, &in_stderr));
    // Taken back in its line, and not hidden by it in another one.
    let message = "usage limit of the disk";
    assert!(tells_limit(&Hints::default(), &Case { message, ..BARE }));
    assert!(!tells_limit(&hints, &Case { message, ..BARE }));
    let stderr = "usage limit of the disk\nHTTP 429";
    assert!(tells_limit(&hints, &Case { stderr, ..BARE }));
}

#[test]
fn faulty_rows_are_refused_where_they_stand() {
    let refused = |row: &str, expect: &str| {
        let text = format!("[pool.demo]\nagent = \"script\"\n[[hint]]\n{row}\n");
        let errors = Config::parse(&text, &Origin::built_in("/srv".into())).expect_err(row);
        let shown = errors.to_string();
        assert!(shown.contains(expect), "{row}: {shown}");
    };
    refused("text = \"x\"", "a hint needs pattern");
    refused("pattern = \"x\"", "a hint needs text");
    refused(
        "pattern = \"(\"\ntext = \"x\"",
        "hint[0].pattern: not a regular expression",
    );
    refused("pattern = \"(?=a)\"\ntext = \"x\"", "look-around");
    refused(
        "pattern = '\\w{9000}'\ntext = \"x\"",
        "not a regular expression",
    );
    refused("pattern = \"x\"\ntext = \"a\\nb\"", "expected one line");
    refused(
        "pattern = \"x\"\ntext = \"y\"\nclass = \"bad\"",
        "expected \"rate_limited\"",
    );
    refused(
        "pattern = \"x\"\ntext = \"y\"\nkind = \"bad\"",
        "did you mean class?",
    );
    refused("pattern = \"x\"\ntext = \"y\"\ncode = 300", "code");
}

#[test]
fn only_the_beginning_of_a_foreign_line_is_looked_at() {
    let long = format!("{} error 429", "x".repeat(limits::HINT_MESSAGE_BYTES));
    let evidence = Evidence {
        agent: "custom",
        launcher: Launcher::Unshare,
        status: None,
        messages: &[&long],
        stderr: &[],
    };
    assert!(Hints::default().find(&evidence).is_none());
}
