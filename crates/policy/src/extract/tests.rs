//! Tables and calls: what is read, what is malformed, what stays unknown.

use super::*;
use crate::ReadTarget;
use marshal_model::limits::CALL_PATHS;
fn table(name: &str) -> Extractor {
    Extractor::parse(builtin_text(name).expect("built in")).expect("the table")
}
fn extract(tool: &str, json: &str) -> Request {
    let input = RawValue::from_string(json.to_owned()).expect("valid JSON");
    table("scaiflux").extract(tool, &input)
}

#[track_caller]
fn reads(tool: &str, json: &str, expect: &[ReadTarget]) {
    match extract(tool, json) {
        Request::Read { targets } => assert_eq!(sorted_targets(targets), expect, "{tool} {json}"),
        other => panic!("{other:?}"),
    }
}
fn sorted_targets(mut targets: Vec<ReadTarget>) -> Vec<ReadTarget> {
    targets.retain(|t| !matches!(t, ReadTarget::Search { .. }));
    targets
}

fn path(path: &str) -> ReadTarget {
    ReadTarget::Path(path.to_owned())
}

#[test]
fn the_fields_of_the_table_are_what_is_judged() {
    assert_eq!(
        extract("bash", r#"{"command":"ls -l","timeout":5}"#),
        Request::Shell {
            command: "ls -l".to_owned(),
            cwd: None
        }
    );
    assert_eq!(
        extract("write_file", r#"{"path":"a","content":"b"}"#),
        Request::Write {
            paths: vec!["a".to_owned()]
        }
    );
    reads("read_file", r#"{"path":"a"}"#, &[path("a")]);
    reads("list_dir", r#"{"path":"a"}"#, &[path("a")]);
    reads("list_dir", "{}", &[ReadTarget::Workspace]);
    reads(
        "grep_search",
        r#"{"pattern":"/etc","path":null}"#,
        &[ReadTarget::Workspace],
    );
    assert!(matches!(
        extract("format_disk", "{}"),
        Request::Unknown { .. }
    ));
}

#[test]
fn a_search_pattern_reads_its_leading_directory() {
    reads(
        "glob_search",
        r#"{"pattern":"**/*.py"}"#,
        &[ReadTarget::Workspace, ReadTarget::Workspace],
    );
    reads(
        "glob_search",
        r#"{"pattern":"/etc/*"}"#,
        &[path("/etc/"), ReadTarget::Workspace],
    );
    reads(
        "glob_search",
        r#"{"pattern":"../x/*","path":"src"}"#,
        &[path("src/../x/"), path("src")],
    );
    reads(
        "glob_search",
        r#"{"pattern":".env"}"#,
        &[path(".env"), ReadTarget::Workspace],
    );
    let anywhere = ReadTarget::Anywhere("*/../../x".to_owned());
    reads(
        "glob_search",
        r#"{"pattern":"*/../../x"}"#,
        &[anywhere, ReadTarget::Workspace],
    );
    let braces = ReadTarget::Anywhere("{a,../../etc}/x".to_owned());
    reads(
        "glob_search",
        r#"{"pattern":"{a,../../etc}/x"}"#,
        &[braces, ReadTarget::Workspace],
    );
}

#[test]
fn what_two_readers_could_read_differently_is_malformed() {
    for (tool, json) in [
        ("bash", "{}"),
        ("bash", "null"),
        ("bash", "[]"),
        ("bash", "\"ls\""),
        ("bash", r#"{"command":7}"#),
        ("bash", r#"{"command":["ls"]}"#),
        ("bash", r#"{"command":""}"#),
        ("bash", r#"{"command":" \n"}"#),
        ("bash", r#"{"command":"a\u0000b"}"#),
        ("bash", r#"{"command":"ls","command":"rm"}"#),
        ("bash", r#"{"command":"ls","comm\u0061nd":"rm"}"#),
        ("bash", r#"{"command":"ls","env":{"a":1,"a":2}}"#),
        ("read_file", r#"{"file":"a"}"#),
        ("write_file", r#"{"path":null}"#),
        ("glob_search", r#"{"path":"a"}"#),
    ] {
        assert!(
            matches!(extract(tool, json), Request::Malformed { .. }),
            "{tool} {json}"
        );
    }
}

#[test]
fn a_table_that_says_nothing_useful_is_refused() {
    let base = "schema = 1\n[tool.x]\n";
    for text in [
        "schema = 2",
        &format!("{base}class = \"shell\""),
        &format!("{base}class = \"other\""),
        &format!("{base}class = \"write\"\npath = \"p\"\nurl = \"u\""),
        &format!("{base}class = \"write\"\npath = \"p\"\nnope = 1"),
    ] {
        assert!(Extractor::parse(text).is_err(), "{text}");
    }
}

#[test]
fn every_tool_has_a_class_for_metrics() {
    let table = table("scaiflux");
    assert_eq!(table.class("bash").as_str(), "shell");
    assert_eq!(table.class("glob_search").as_str(), "read");
    assert_eq!(table.class("what").as_str(), "unknown");
}

/// Calls as agents make them: what the dialect keeps of them.
mod acp {
    use super::*;
    use crate::{FsContext as At, NoLinks, Policy};
    use marshal_model::{AgentClaims, Decision};

    fn call(kind: &str, json: &str) -> Request {
        let input = RawValue::from_string(json.to_owned()).expect("valid JSON");
        table("acp").extract(kind, &input)
    }

    fn decision(kind: &str, json: &str) -> Decision {
        let at = At {
            workspace: "/workspace",
            home: "/home/agent",
            cwd: Some("/workspace"),
            resolver: &NoLinks,
        };
        let claimed = AgentClaims {
            title: Some("ls".into()),
            kind: Some("read".into()),
            ..AgentClaims::default()
        };
        let policy = Policy::builtin("developer").expect("built in");
        policy.decide(&call(kind, json), &claimed, &at).decision
    }

    fn shell(command: &str, cwd: Option<&str>) -> Request {
        Request::Shell {
            command: command.to_owned(),
            cwd: cwd.map(str::to_owned),
        }
    }

    fn writes(paths: &[&str]) -> Request {
        Request::Write {
            paths: paths.iter().map(|path| (*path).to_owned()).collect(),
        }
    }

    #[track_caller]
    fn unknown(kind: &str, json: &str) {
        let request = call(kind, json);
        assert!(
            matches!(request, Request::Unknown { .. }),
            "{kind} {json}: {request:?}"
        );
    }

    #[track_caller]
    fn malformed(kind: &str, json: &str) {
        let request = call(kind, json);
        assert!(
            matches!(request, Request::Malformed { .. }),
            "{kind} {json}: {request:?}"
        );
    }

    #[test]
    fn the_commands_of_real_agents_are_read() {
        // codex
        let codex = r#"{"rawInput":{"call_id":"c","command":["/bin/bash","-lc","git status"],"cwd":"/workspace","parsed_cmd":[{"type":"unknown","cmd":"git status"}],"available_decisions":["approved",{"x":{}}]}}"#;
        assert_eq!(
            call("execute", codex),
            shell("git status", Some("/workspace"))
        );
        assert_eq!(decision("execute", codex), Decision::Allow);
        // claude, hermes
        assert_eq!(
            call(
                "execute",
                r#"{"rawInput":{"command":"rm -rf ./victim","description":"x"}}"#
            ),
            shell("rm -rf ./victim", None)
        );
        // opencode
        let opencode = r#"{"rawInput":{"command":"ls","cwd":"/workspace"},"locations":[{"path":"/workspace"}]}"#;
        assert_eq!(call("execute", opencode), shell("ls", Some("/workspace")));
        // gemini: the command is nowhere but in the title
        unknown("execute", r#"{"locations":[]}"#);
        unknown("execute", "{}");
        unknown("execute", r#"{"rawInput":null}"#);
    }

    #[test]
    fn an_argv_that_is_no_shell_is_judged_word_by_word() {
        let plain = r#"{"rawInput":{"command":["git","status"]}}"#;
        assert_eq!(decision("execute", plain), Decision::Allow);
        let quoted = r#"{"rawInput":{"command":["echo","$(rm -rf /)"]}}"#;
        assert_eq!(call("execute", quoted), shell("echo '$(rm -rf /)'", None));
        assert_eq!(
            decision("execute", r#"{"rawInput":{"command":["rm","-rf","."]}}"#),
            Decision::Deny
        );
        assert_eq!(
            decision(
                "execute",
                r#"{"rawInput":{"command":["./bash","-c","ls"]}}"#
            ),
            Decision::Ask
        );
        for command in [
            "[]",
            "[\"\"]",
            "[1]",
            "[\"a\\u0000\"]",
            "[[\"ls\"]]",
            "7",
            "{}",
            "\" \"",
        ] {
            malformed(
                "execute",
                &format!("{{\"rawInput\":{{\"command\":{command}}}}}"),
            );
        }
    }

    #[test]
    fn a_command_is_one_whatever_kind_its_adapter_calls_it() {
        let cat = r#"{"rawInput":{"command":["bash","-lc","cat /etc/shadow"],"cwd":"/workspace"},"locations":[{"path":"a"}]}"#;
        assert_eq!(
            call("read", cat),
            shell("cat /etc/shadow", Some("/workspace"))
        );
        assert_eq!(decision("read", cat), Decision::Deny);
        unknown("read", r#"{"rawInput":{"command":"rm -rf /","path":"a"}}"#);
        unknown(
            "edit",
            r#"{"rawInput":{"command":["rm","-rf","/"],"path":"a"}}"#,
        );
        unknown("other", r#"{"rawInput":{"command":"ls"}}"#);
        unknown("Execute", r#"{"rawInput":{"command":"ls"}}"#);
    }

    #[test]
    fn commands_that_do_not_agree_are_unknown() {
        unknown(
            "execute",
            r#"{"rawInput":{"command":"ls","cmd":"rm -rf /"}}"#,
        );
        unknown(
            "execute",
            r#"{"rawInput":{"command":"ls","cwd":"/workspace","workdir":"/"}}"#,
        );
        assert_eq!(
            call(
                "execute",
                r#"{"rawInput":{"command":"ls","cmd":["sh","-c","ls"]}}"#
            ),
            shell("ls", None)
        );
        malformed("execute", r#"{"rawInput":{"command":"ls","command":"rm"}}"#);
        malformed("execute", r#"{"rawInput":"ls"}"#);
        malformed(
            "execute",
            r#""a part of this call was too large to be kept""#,
        );
    }

    #[test]
    fn every_path_of_an_edit_is_judged() {
        // hermes
        let hermes = r#"{"rawInput":{"tool":"write_file","arguments":{"path":"/workspace/w.txt","content":"x"}},"content":[{"newText":"x","path":"/workspace/w.txt","type":"diff"}]}"#;
        assert_eq!(call("edit", hermes), writes(&["/workspace/w.txt"]));
        assert_eq!(decision("edit", hermes), Decision::Allow);
        // the example of an SDK
        let sdk = r#"{"rawInput":{"path":"/home/user/project/config.json","content":"{}"},"locations":[{"path":"/home/user/project/config.json"}]}"#;
        assert_eq!(decision("edit", sdk), Decision::Deny);
        // a patch of several files
        let patch = r#"{"content":[{"type":"diff","path":"/workspace/a"},{"type":"diff","path":"/workspace/.env"}],"locations":[{"path":"/workspace/a","line":3},{"path":"/workspace/.env"}]}"#;
        assert_eq!(
            call("edit", patch),
            writes(&["/workspace/a", "/workspace/.env"])
        );
        assert_eq!(decision("edit", patch), Decision::Deny);
        // a relative spelling of the same file: both are evaluated
        let relative =
            r#"{"rawInput":{"path":"./src/a"},"locations":[{"path":"/workspace/src/a"}]}"#;
        assert_eq!(
            call("edit", relative),
            writes(&["/workspace/src/a", "./src/a"])
        );
    }

    #[test]
    fn paths_that_do_not_agree_or_are_not_there_are_unknown() {
        for json in [
            "{}",
            r#"{"rawInput":null,"locations":[{"line":3}]}"#,
            r#"{"rawInput":{"path":"/workspace/a"},"locations":[{"path":"/workspace/b"}]}"#,
            r#"{"content":[{"type":"diff","path":"a"},{"type":"diff","path":".env"}],"rawInput":{"file_path":"a"}}"#,
            r#"{"rawInput":{"path":"../a"},"locations":[{"path":"/workspace/../a"}]}"#,
            r#"{"rawInput":{"path":"a"},"locations":[{"path":"/workspace/ba"}]}"#,
        ] {
            unknown("edit", json);
            unknown("delete", json);
        }
        for json in [
            r#"{"locations":7}"#,
            r#"{"locations":["a"]}"#,
            r#"{"locations":[{"path":7}]}"#,
            r#"{"rawInput":{"path":["a"]}}"#,
            r#"{"rawInput":{"path":"a"},"rawInput":{"path":"b"}}"#,
        ] {
            malformed("edit", json);
        }
        let many: Vec<_> = (0..=CALL_PATHS)
            .map(|n| format!("{{\"path\":\"{n}\"}}"))
            .collect();
        malformed("edit", &format!("{{\"locations\":[{}]}}", many.join(",")));
        unknown("move", r#"{"rawInput":{"path":"a"}}"#);
    }

    #[test]
    fn reads_searches_and_fetches_have_their_fields() {
        let path = |path: &str| ReadTarget::Path(path.to_owned());
        let read = |kind, json| match call(kind, json) {
            Request::Read { targets } => super::sorted_targets(targets),
            other => panic!("{kind} {json}: {other:?}"),
        };
        assert_eq!(
            read(
                "read",
                r#"{"rawInput":{"file_path":"/workspace/a"},"locations":[{"path":"/workspace/a","line":1}]}"#
            ),
            [path("/workspace/a")]
        );
        assert_eq!(read("read", r#"{"locations":[{"path":"a"}]}"#), [path("a")]);
        assert_eq!(
            read("search", r#"{"rawInput":{"pattern":"../x/*"}}"#),
            [path("../x/"), ReadTarget::Workspace]
        );
        unknown("search", r#"{"rawInput":{"query":"x"}}"#);
        unknown("search", r#"{"rawInput":{"path":"x"}}"#);
        assert_eq!(
            call(
                "fetch",
                r#"{"rawInput":{"url":"https://example.org/","prompt":"x"}}"#
            ),
            Request::Fetch {
                method: Some("GET".to_owned()),
                url: "https://example.org/".to_owned()
            }
        );
        unknown("fetch", r#"{"rawInput":{"query":"x"}}"#);
    }

    #[test]
    fn a_member_that_no_table_knows_makes_an_unknown_tool() {
        for (kind, json) in [
            (
                "execute",
                r#"{"rawInput":{"command":"find","args":[".","-delete"]}}"#,
            ),
            (
                "execute",
                r#"{"rawInput":{"command":"ls","env":{"PATH":"."}}}"#,
            ),
            ("execute", r#"{"rawInput":{"command":"ls","stdin":""}}"#),
            (
                "read",
                r#"{"rawInput":{"path":"a","paths":["/etc/shadow"]}}"#,
            ),
            (
                "read",
                r#"{"rawInput":{"command":["bash","-lc","ls"],"args":["x"]}}"#,
            ),
            ("search", r#"{"rawInput":{"pattern":"*.rs","root":"/etc"}}"#),
            (
                "search",
                r#"{"rawInput":{"pattern":"x","arguments":{"root":"/"}}}"#,
            ),
            ("edit", r#"{"rawInput":{"path":"a","files":["b"]}}"#),
            ("edit", r#"{"rawInput":{"path":"a","destination":"b"}}"#),
            (
                "edit",
                r#"{"rawInput":{"path":"a","arguments":{"target":"b"}}}"#,
            ),
            ("edit", r#"{"rawInput":{"path":"a","arguments":[1]}}"#),
            (
                "delete",
                r#"{"rawInput":{"paths":["b"]},"locations":[{"path":"a"}]}"#,
            ),
            (
                "fetch",
                r#"{"rawInput":{"url":"https://example.org/","body":"x"}}"#,
            ),
        ] {
            let request = call(kind, json);
            let is_judged = !matches!(request, Request::Unknown { .. } | Request::Malformed { .. });
            assert!(!is_judged, "{kind} {json}: {request:?}");
            assert_ne!(decision(kind, json), Decision::Allow, "{kind} {json}");
        }
        // What is `null` is not there.
        assert_eq!(
            call("execute", r#"{"rawInput":{"command":"ls","args":null}}"#),
            shell("ls", None)
        );
        // Directories of any name are evaluated.
        assert_eq!(
            call(
                "execute",
                r#"{"rawInput":{"command":"ls","dir_path":"/etc"}}"#
            ),
            shell("ls", Some("/etc"))
        );
        let search = r#"{"rawInput":{"pattern":"*","directory":"/root"}}"#;
        assert_eq!(decision("search", search), Decision::Ask);
        let opencode = r#"{"rawInput":{"filePath":"/workspace/a","filepath":"/workspace/a","content":"x","diff":"+x"}}"#;
        assert_eq!(decision("edit", opencode), Decision::Allow);
    }

    #[test]
    fn what_is_harmless_is_of_a_closed_table() {
        let text = "schema = 1\n[tool.x]\nclass = \"write\"\npath = \"p\"\nharmless = \"q\"";
        assert!(Extractor::parse(text).is_err());
        assert!(Extractor::parse(&format!("closed = \"o\"\n{text}")).is_ok());
    }

    #[test]
    fn a_place_names_members() {
        for bad in ["", ".", "a.", "[]", "a[]", "a[0].b", "a[]b"] {
            let text = format!("schema = 1\n[tool.x]\nclass = \"write\"\npath = \"{bad}\"");
            assert!(Extractor::parse(&text).is_err(), "{bad:?}");
        }
        let none = "schema = 1\n[tool.x]\nclass = \"write\"\npath = []";
        assert!(Extractor::parse(none).is_err());
    }
}

/// A shell call of Gemini: its title is the command, its content says where it runs.
fn gemini(title: &str, said: &str) -> Request {
    let extractor = Extractor::parse(builtin_text("gemini").expect("gemini")).expect("a table");
    let input = serde_json::json!({
        "locations": [],
        "title": title,
        "shown_content": [{"type": "content", "content": {"type": "text", "text": said}}],
    });
    let raw = RawValue::from_string(input.to_string()).expect("JSON");
    extractor.extract("execute", &raw)
}

const HERE: &str = "[current working directory /workspace]";

#[test]
fn an_edit_of_opencode_is_its_whole_paths_and_all_of_them_must_agree() {
    let table = Extractor::parse(builtin_text("opencode").expect("a table")).expect("read");
    let call = |files: &str| {
        let input = format!(
            r#"{{"rawInput":{{"filepath":"workspace/a.txt","diff":"x","files":{files}}},"content":[{{"type":"diff","path":"/workspace/a.txt"}}],"locations":[{{"path":"/workspace/a.txt"}}]}}"#
        );
        table.extract("edit", &RawValue::from_string(input).expect("JSON"))
    };
    let paths = vec!["/workspace/a.txt".to_owned()];
    assert_eq!(
        call(r#"[{"filePath":"/workspace/a.txt"}]"#),
        Request::Write {
            paths: paths.clone()
        }
    );
    assert_eq!(call("[]"), Request::Write { paths });
    for other in [
        r#"[{"filePath":"/workspace/.git/config"}]"#,
        r#"[{"filePath":"/workspace/a.txt","movePath":"/workspace/b.txt"}]"#,
    ] {
        assert!(matches!(call(other), Request::Unknown { .. }), "{other}");
    }
    // Kilo Code names the path once more, in the diff.
    let with_diff = |file: &str| {
        let input = format!(
            r#"{{"rawInput":{{"filepath":"/workspace/a.txt","diff":"x","filediff":{{"additions":1,"file":"{file}","patch":"x"}}}},"content":[{{"type":"diff","path":"/workspace/a.txt"}}],"locations":[{{"path":"/workspace/a.txt"}}]}}"#
        );
        table.extract("edit", &RawValue::from_string(input).expect("JSON"))
    };
    let paths = vec!["/workspace/a.txt".to_owned()];
    assert_eq!(with_diff("/workspace/a.txt"), Request::Write { paths });
    let other = with_diff("/workspace/.git/config");
    assert!(matches!(other, Request::Unknown { .. }), "{other:?}");
}

#[test]
fn a_title_is_the_command_where_a_table_says_so_and_the_directory_stands_in_its_frame() {
    for command in ["touch a", "touch a\nrm -rf b", "echo \u{7}", "echo '] (x)'"] {
        for behind in ["", " (makes a file)", " [background]"] {
            let shell = Request::Shell {
                command: command.to_owned(),
                cwd: Some("/workspace".to_owned()),
            };
            assert_eq!(
                gemini(command, &format!("{HERE}{behind}")),
                shell,
                "{command}"
            );
        }
    }
    let long = format!("echo {}", "x".repeat(10_000));
    assert!(matches!(gemini(&long, HERE), Request::Shell { command, .. } if command == long));
}

#[test]
fn a_call_that_may_run_elsewhere_or_as_something_else_is_an_unknown_tool() {
    for said in [
        "",
        "[in .git]",
        "[in x] [current working directory /workspace]",
        " [current working directory /workspace]",
        "[current working directory ]",
        "current working directory /workspace]",
    ] {
        let request = gemini("touch a", said);
        assert!(
            matches!(request, Request::Unknown { .. }),
            "{said}: {request:?}"
        );
    }
    for command in [
        "bash -c 'touch a'; echo 'b'",
        "  sh -c touch",
        "/bin/zsh  -c \"x\"",
        "BASH -c x",
        "\tpwsh -Command x",
        "cmd.exe /c x",
    ] {
        let request = gemini(command, HERE);
        assert!(
            matches!(request, Request::Unknown { .. }),
            "{command}: {request:?}"
        );
    }
}

#[test]
fn a_frame_without_texts_and_an_expression_that_is_none_are_refused() {
    let table = |more: &str| {
        let text = format!("schema = 1\n[tool.x]\nclass = \"shell\"\ncommand = \"c\"\n{more}\n");
        Extractor::parse(&text).expect_err(more).to_string()
    };
    let frame = "cwd_frame = { field = \"a\", begins = \"\", ends = \"]\" }";
    assert!(table(frame).contains("`cwd_frame` needs texts"));
    assert!(table("unlike = \"(\"").contains("`unlike`"));
}

#[test]
fn hermes_shows_what_it_runs_unasked_behind_a_prompt_sign() {
    let hermes = table("hermes");
    let said = |text: &str| {
        let input = serde_json::json!({
            "title": "terminal: x",
            "shown_content": [{"type": "content", "content": {"type": "text", "text": text}}],
        });
        hermes.extract(
            "execute",
            &RawValue::from_string(input.to_string()).expect("JSON"),
        )
    };
    let shell = |command: &str| Request::Shell {
        command: command.to_owned(),
        cwd: None,
    };
    assert_eq!(said("$ touch a\n$ ls"), shell("touch a\n$ ls"));
    for text in ["touch a", "$ ", "$", " $ touch a"] {
        assert!(matches!(said(text), Request::Unknown { .. }), "{text}");
    }
    let raw = r#"{"rawInput":{"command":"rm x","description":"d"},"shown_content":[]}"#;
    let raw = RawValue::from_string(raw.to_owned()).expect("JSON");
    assert_eq!(hermes.extract("execute", &raw), shell("rm x"));
    let odd = "schema = 1\nshell_text = { field = \"a[]\", begins = \"x\" }\n";
    assert!(Extractor::parse(odd).is_err());
}
