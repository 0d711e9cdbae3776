//! Completions and manual pages: what a shell and `man` make of them.

use std::fs;
use std::process::{Command, Stdio};

fn marshal(args: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_marshal"))
        .args(args)
        .stdin(Stdio::null())
        .output()
        .expect("run");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (
        output.status.code(),
        text(output.stdout),
        text(output.stderr),
    )
}

/// bash itself completes a command, an option and a value with what was printed.
#[test]
fn bash_completes_with_what_is_printed() {
    let dir = tempfile::tempdir().expect("a directory");
    let (code, script, stderr) = marshal(&["completions", "bash"]);
    assert_eq!((code, stderr.as_str()), (Some(0), ""));
    let file = dir.path().join("marshal.bash");
    fs::write(&file, script).expect("written");
    let complete = |words: &str| {
        let ask = format!(
            "source {}; COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); \
             _marshal marshal \"${{COMP_WORDS[COMP_CWORD]}}\" \"${{COMP_WORDS[COMP_CWORD-1]}}\"; \
             printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            file.display()
        );
        let output = Command::new("bash")
            .args(["--norc", "-c", &ask])
            .output()
            .expect("bash");
        String::from_utf8(output.stdout).expect("text")
    };
    let words = |text: String| text.lines().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(words(complete("marshal doc")), ["doctor"]);
    assert_eq!(words(complete("marshal run --resu")), ["--results"]);
    assert_eq!(words(complete("marshal approvals ap")), ["approve"]);
    for shell in ["zsh", "fish", "elvish", "powershell"] {
        let (code, script, _) = marshal(&["completions", shell]);
        assert_eq!(code, Some(0), "{shell}");
        assert!(script.contains("doctor"), "{shell}");
    }
    let (code, _, stderr) = marshal(&["completions", "tcsh"]);
    assert_eq!(code, Some(2));
    assert!(
        stderr.contains("tcsh") && stderr.contains("bash"),
        "{stderr}"
    );
}

#[test]
fn a_page_for_each_command_or_a_clear_error() {
    let dir = tempfile::tempdir().expect("a directory");
    let (code, page, _) = marshal(&["man"]);
    assert_eq!(code, Some(0));
    assert!(
        page.contains(".TH marshal 1") && page.contains("doctor"),
        "{page}"
    );
    let pages = dir.path().join("man/man1");
    let out = pages.to_str().expect("text");
    let (code, printed, stderr) = marshal(&["man", "--out", out]);
    assert_eq!((code, printed.as_str(), stderr.as_str()), (Some(0), "", ""));
    for (name, part) in [
        ("marshal.1", "supervisor.toml"),
        ("marshal-run.1", "results"),
        ("marshal-approvals-approve.1", "approval"),
    ] {
        let page = fs::read_to_string(pages.join(name)).expect(name);
        assert!(
            page.starts_with(".ie") || page.contains(".TH"),
            "{name}: {page}"
        );
        assert!(page.contains(part), "{name}: {page}");
    }
    let file = dir.path().join("file");
    fs::write(&file, "").expect("written");
    let (code, _, stderr) = marshal(&["man", "--out", file.to_str().expect("text")]);
    assert_eq!(code, Some(1));
    assert!(stderr.contains("cannot write the pages into"), "{stderr}");
}
