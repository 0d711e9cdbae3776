//! Places in disguise, commands, variables: what is allowed, what is refused, what is shown.

use super::*;
use crate::{FsEntry, Resolver};

/// `docs -> src`, `out -> /etc`, `git -> .git`, `home -> /home/agent`, `src` is a directory.
struct Tree;

impl Resolver for Tree {
    fn lookup(&self, path: &str) -> FsEntry {
        match path {
            "/workspace/src" | "/workspace/.git" => FsEntry::Directory,
            "/workspace/docs" => FsEntry::Link("src".to_owned()),
            "/workspace/out" => FsEntry::Link("/etc".to_owned()),
            "/workspace/git" => FsEntry::Link(".git".to_owned()),
            "/workspace/home" => FsEntry::Link("/home/agent".to_owned()),
            _ => FsEntry::Missing,
        }
    }

    fn list_links(&self, _: &str) -> Option<Vec<String>> {
        None
    }

    fn list_names(&self, _: &str) -> Option<Vec<String>> {
        None
    }
}

fn decided(request: &ClientRequest) -> (PolicyDecision, Option<String>) {
    let policy = Policy::builtin("developer").expect("developer");
    policy.decide_client_in_context(
        request,
        &FsContext {
            workspace: "/workspace",
            home: "/home/agent",
            cwd: Some("/workspace"),
            resolver: &Tree,
        },
        &EvaluationContext::default(),
    )
}

#[track_caller]
fn check_file(path: &str, read: Option<&str>, write: Option<&str>) {
    for (request, expect) in [
        (ClientRequest::Read(path.to_owned()), read),
        (ClientRequest::Write(path.to_owned()), write),
    ] {
        let (policy_decision, place) = decided(&request);
        assert_eq!(place.as_deref(), expect, "{request:?}: {policy_decision:?}");
        let is_allowed = policy_decision.decision == Decision::Allow;
        assert_eq!(
            is_allowed,
            expect.is_some(),
            "{request:?}: {policy_decision:?}"
        );
    }
}

#[test]
fn a_file_is_judged_where_its_path_leads_and_as_it_is_written() {
    let both = |path: &str, place: &str| check_file(path, Some(place), Some(place));
    both("/workspace/README.md", "/workspace/README.md");
    both("/workspace/new/deep.txt", "/workspace/new/deep.txt");
    both("/workspace/docs/x.md", "/workspace/src/x.md");
    both("/workspace/résumé.md", "/workspace/résumé.md");
    // Git's own directory may be read, not written, by whatever path.
    let git = Some("/workspace/.git/config");
    check_file("/workspace/.git/config", git, None);
    check_file("/workspace/git/config", git, None);
}

#[test]
fn what_leaves_the_workspace_or_is_no_plain_path_is_refused() {
    for path in [
        "/etc/passwd",
        "/workspace",
        "/",
        "/home/agent/notes",
        "/workspace-evil/x",
        "/workspace/out/passwd",
        "/workspace/home/notes",
        "/workspace/../etc/passwd",
        "/workspace/src/../README.md",
        "/workspace/./x",
        "/workspace//x",
        "/workspace/x/",
        "README.md",
        "",
        "~/x",
        "/proc/self/root/etc/passwd",
        "/workspace/a\0b",
        "/dev/null",
        "/tmp/x",
    ] {
        check_file(path, None, None);
    }
}

#[test]
fn secrets_and_protected_names_are_refused_in_every_disguise() {
    for path in [
        "/workspace/.env",
        "/workspace/.ENV",
        "/workspace/a/.еnv",
        "/workspace/.env.",
        "/workspace/docs/.Env",
        "/workspace/ID_RSA",
    ] {
        check_file(path, None, None);
    }
    for path in [
        "/workspace/.GIT/config",
        "/workspace/.gіt/config",
        "/workspace/.ｇit/hooks/x",
        "/workspace/git~1/config",
        "/workspace/.git./config",
        "/workspace/.gi\u{301}t/x",
        "/workspace/.Claude/settings.json",
        "/workspace/.envrc",
    ] {
        let (policy_decision, _) = decided(&ClientRequest::Write(path.to_owned()));
        assert_eq!(
            policy_decision.decision,
            Decision::Deny,
            "{path}: {policy_decision:?}"
        );
    }
}

fn spec(argv: &[&str]) -> TerminalSpec {
    TerminalSpec {
        argv: argv.iter().map(|&word| word.to_owned()).collect(),
        env: Vec::new(),
        cwd: None,
        output_bytes: None,
    }
}

fn run(spec: TerminalSpec) -> (PolicyDecision, Option<String>) {
    decided(&ClientRequest::Run(spec))
}

#[test]
fn a_terminal_is_judged_as_the_command_that_it_is() {
    let (policy_decision, cwd) = run(spec(&["ls", "src"]));
    assert_eq!(
        (policy_decision.decision, cwd.as_deref()),
        (Decision::Allow, Some("/workspace"))
    );
    let (policy_decision, _) = run(spec(&["bash", "-c", "ls src && pwd"]));
    assert_eq!(
        policy_decision.decision,
        Decision::Allow,
        "{policy_decision:?}"
    );
    for denied in [
        &["rm", "-rf", "x"][..],
        &["bash", "-lc", "curl x"],
        &["cat", ".env"],
        &["sudo", "ls"],
    ] {
        let (policy_decision, cwd) = run(spec(denied));
        assert_eq!(
            (policy_decision.decision, cwd),
            (Decision::Deny, None),
            "{denied:?}"
        );
    }
    // No shell reads the words of an argv.
    let (policy_decision, _) = run(spec(&["ls", "$(rm -rf /)"]));
    assert_ne!(
        policy_decision.decision,
        Decision::Deny,
        "{policy_decision:?}"
    );
    for bad in [&[][..], &[""], &["ls", "a\0b"]] {
        assert_eq!(run(spec(bad)).0.decision, Decision::Deny, "{bad:?}");
    }
}

#[test]
fn a_terminals_directory_is_in_the_workspace_without_a_link_left() {
    let cwd = |cwd: &str| {
        run(TerminalSpec {
            cwd: Some(cwd.to_owned()),
            ..spec(&["pwd"])
        })
        .1
    };
    assert_eq!(cwd("/workspace").as_deref(), Some("/workspace"));
    assert_eq!(cwd("/workspace/src/").as_deref(), Some("/workspace/src"));
    assert_eq!(cwd("/workspace/docs").as_deref(), Some("/workspace/src"));
    for outside in [
        "/",
        "/etc",
        "/home/agent",
        "/tmp",
        "/workspace/out",
        "/workspace/..",
        "src",
        "",
    ] {
        assert_eq!(cwd(outside), None, "{outside}");
    }
}

#[test]
fn variables_that_change_what_a_command_does_are_refused() {
    let with = |name: &str, value: &str| {
        run(TerminalSpec {
            env: vec![(name.to_owned(), value.to_owned())],
            ..spec(&["ls"])
        })
        .0
    };
    assert_eq!(with("RUST_LOG", "debug").decision, Decision::Allow);
    assert_eq!(with("MY_FLAG", "1").decision, Decision::Ask);
    for name in [
        "LD_PRELOAD",
        "LD_LIBRARY_PATH",
        "PATH",
        "Path",
        "HOME",
        "GIT_SSH_COMMAND",
        "GIT_DIR",
        "BASH_ENV",
        "ENV",
        "PYTHONPATH",
        "PYTHONSTARTUP",
        "NODE_OPTIONS",
        "PERL5OPT",
        "RUBYOPT",
        "IFS",
        "BASH_FUNC_ls%%",
        "npm_config_x",
        "RUSTC_WRAPPER",
        "JAVA_TOOL_OPTIONS",
        "MARSHAL_MARKER",
        "",
        "A=B",
        "1A",
        "A B",
    ] {
        assert_eq!(with(name, "x").decision, Decision::Deny, "{name}");
    }
    for name in [
        "OPENSSL_CONF",
        "TAR_OPTIONS",
        "RSYNC_RSH",
        "GOENV",
        "GOTOOLCHAIN",
        "GOCACHEPROG",
        "CC",
        "CXX",
        "LD",
        "CARGO",
        "RUSTUP_TOOLCHAIN",
        "PIP_INDEX_URL",
        "UV_INDEX_URL",
        "PHPRC",
        "MANPAGER",
        "SYSTEMD_PAGER",
        "GH_PAGER",
        "VIMINIT",
        "PS0",
        "PS1",
    ] {
        assert_eq!(with(name, "x").decision, Decision::Deny, "{name}");
    }
    assert_eq!(with("RUST_LOG", "a\0b").decision, Decision::Deny);
}

#[test]
fn who_decides_sees_directory_and_every_variable_with_its_value() {
    let with = |env: &[(&str, &str)]| {
        let env = env
            .iter()
            .map(|&(name, value)| (name.to_owned(), value.to_owned()));
        run(TerminalSpec {
            cwd: Some("/workspace/docs".to_owned()),
            env: env.collect(),
            ..spec(&["ls", "x"])
        })
        .0
    };
    let judged = with(&[
        ("FOO", "1"),
        ("RUST_LOG", "debug"),
        ("EVIL", "/workspace/x.cnf"),
    ]);
    assert_eq!(judged.decision, Decision::Ask);
    let shown: Vec<String> = judged
        .facts
        .parts
        .iter()
        .map(|part| {
            let words: Vec<&str> = part.words.iter().map(UntrustedText::raw).collect();
            format!("{} {}", part.decision.as_str(), words.join(" "))
        })
        .collect();
    assert_eq!(
        shown,
        [
            "allow ls x",
            "allow working-directory: /workspace/src",
            "ask variable: FOO=1",
            "allow variable: RUST_LOG=debug",
            "ask variable: EVIL=/workspace/x.cnf",
        ]
    );
    for name in ["FOO", "EVIL"] {
        assert!(judged.reason.contains(name), "{}", judged.reason);
    }
    // What cannot be shown cannot be decided by a person.
    let long = "x".repeat(SHOWN_VALUE);
    assert_eq!(with(&[("FOO", &long)]).decision, Decision::Deny);
    let escaped = "\u{1b}".repeat(SHOWN_VALUE / 2);
    assert_eq!(with(&[("FOO", &escaped)]).decision, Decision::Deny);
    let names: Vec<String> = (0..=SHOWN_VARIABLES).map(|n| format!("V{n}")).collect();
    let many: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "1")).collect();
    assert_eq!(with(&many).decision, Decision::Deny);
    assert_eq!(with(&many[1..]).decision, Decision::Ask);
}

#[test]
fn an_edit_is_refused_where_only_reading_is() {
    let text = "schema = 1\nname = \"own\"\ndefault = \"allow\"\n[paths]\nsealed = [\"@/sealed.txt\"]\n\
        [[rule]]\nid = \"not-read\"\ndecision = \"deny\"\ntool = \"read\"\npath = \"sealed\"\nreason = \"it is sealed\"\n";
    let policy = Policy::load(text, "own", &|_| Err("none".to_owned())).expect("a policy");
    let at = FsContext {
        workspace: "/workspace",
        home: "/home/agent",
        cwd: Some("/workspace"),
        resolver: &Tree,
    };
    let decided = |path: &str, call: &dyn Fn(String) -> marshal_model::EngineCall| {
        let request = ClientRequest::Tool(Box::new(call(path.to_owned()).policy_request()));
        policy.decide_client_in_context(&request, &at, &EvaluationContext::default())
    };
    let edit = |path| marshal_model::EngineCall::Edit {
        path,
        edit: marshal_model::TextEdit {
            old: "a".to_owned(),
            new: "b".to_owned(),
            replace_all: false,
        },
        base: None,
    };
    let write = |path| marshal_model::EngineCall::Write {
        path,
        content: "b".to_owned(),
        base: None,
    };
    let (policy_decision, place) = decided("/workspace/sealed.txt", &edit);
    assert_eq!((policy_decision.decision, place), (Decision::Deny, None));
    assert_eq!(policy_decision.rules, ["not-read"]);
    // A call without further information is evaluated by itself.
    let (policy_decision, _) = decided("/workspace/sealed.txt", &write);
    assert_eq!(policy_decision.decision, Decision::Allow);
    let (policy_decision, place) = decided("/workspace/open.txt", &edit);
    assert_eq!(policy_decision.decision, Decision::Allow);
    assert_eq!(place.as_deref(), Some("/workspace/open.txt"));
}
