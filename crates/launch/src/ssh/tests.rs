//! The quoting against real shells, and the client's command line.

use std::process::{Command, Stdio};

use proptest::prelude::*;

use super::*;
use marshal_config::{RemoteMode, RemoteNetwork, RemoteSandbox};

fn ssh() -> Ssh {
    Ssh {
        host: "build.example.org".to_owned(),
        user: None,
        port: None,
        identity_file: None,
        known_hosts: None,
        config_file: None,
        connect_timeout: Duration::from_secs(10),
        alive_timeout: Duration::from_secs(45),
        workspace: "/".to_owned(),
        sandbox: None,
    }
}

fn to_strings(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}

fn remote(argv: &[String]) -> RemoteCommand<'_> {
    RemoteCommand {
        argv,
        path_add: &[],
        env: &[],
        secret_names: &[],
        eof_wait: Some(Duration::from_secs(6)),
    }
}

/// The shells of this host that are POSIX ones.
fn shells() -> Vec<&'static str> {
    let shells = ["/bin/sh", "/bin/dash", "/bin/bash"];
    let there = |shell: &&str| std::path::Path::new(shell).exists();
    shells.into_iter().filter(there).collect()
}

/// What each shell makes of a script: its output and exit code.
fn run(shell: &str, script: &str, input: &str) -> (String, Option<i32>) {
    use std::io::Write as _;
    let mut child = Command::new(shell)
        .args(["-c", script])
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("HOME", "/far home")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // A shell that ended before it read its input says so by its code.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    (text, output.status.code())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn every_word_reaches_the_program_as_it_is(
        hard in prop::collection::vec("[ -~\n\t'\"\\\\$`!*?é\u{2028}]{0,12}", 1..6),
        value in "[^\u{0}]{0,20}",
    ) {
        let argv: Vec<String> = ["/usr/bin/printf", "%s\\0"]
            .map(str::to_owned)
            .into_iter()
            .chain(hard.iter().cloned())
            .collect();
        let env = [("FAR_VALUE".to_owned(), value.clone())];
        let plain = remote_script(&ssh(), &remote(&argv));
        let told = remote_script(&ssh(), &RemoteCommand {
            env: &env,
            ..remote(&to_strings(&["/usr/bin/printenv", "FAR_VALUE"]))
        });
        prop_assert!(!plain.starts_with('-'));
        for shell in shells() {
            let (out, code) = run(shell, &plain, "");
            let got: Vec<&str> = out.split_terminator('\0').collect();
            prop_assert_eq!(&got, &hard, "{} {}", shell, &plain);
            prop_assert_eq!(code, Some(0));
            let (out, _) = run(shell, &told, "");
            prop_assert_eq!(out, format!("{value}\n"), "{} {}", shell, &told);
        }
    }

    #[test]
    fn a_quoted_word_never_ends_early(word in "[^\u{0}]{0,40}") {
        let quoted = quote(&word);
        // Outside of quotes stand only plain characters and escaped quotes.
        let mut inside = false;
        let mut chars = quoted.chars();
        while let Some(c) = chars.next() {
            match c {
                '\'' => inside = !inside,
                '\\' if !inside => prop_assert_eq!(chars.next(), Some('\'')),
                c if !inside => prop_assert!(c.is_ascii_alphanumeric() || "_-./:,+@%".contains(c)),
                _ => {}
            }
        }
        prop_assert!(!inside);
    }
}

#[test]
fn the_path_of_the_far_end_is_enriched_and_its_home_is_its_own() {
    let add = ["$HOME/.local/bin", "/opt/homebrew/bin", "/with 'quote"].map(PathBuf::from);
    let argv = to_strings(&["/usr/bin/printenv", "PATH"]);
    let script = remote_script(
        &ssh(),
        &RemoteCommand {
            path_add: &add,
            ..remote(&argv)
        },
    );
    for shell in shells() {
        let (out, _) = run(shell, &script, "");
        let path = "/far home/.local/bin:/opt/homebrew/bin:/with 'quote:/usr/bin:/bin\n";
        assert_eq!(out, path, "{shell}");
    }
}

#[test]
fn secrets_are_lines_of_the_input_and_the_program_gets_the_rest() {
    let told = to_strings(&["FIRST", "SECOND"]);
    let argv = to_strings(&[
        "/bin/sh",
        "-c",
        "printf '%s|%s|' \"$FIRST\" \"$SECOND\"; cat",
    ]);
    let script = remote_script(
        &ssh(),
        &RemoteCommand {
            secret_names: &told,
            ..remote(&argv)
        },
    );
    for shell in shells() {
        let (out, _) = run(shell, &script, " a \\n'\"$x \n\nprotocol\nline");
        assert_eq!(out, " a \\n'\"$x ||protocol\nline", "{shell}");
        let (out, code) = run(shell, &script, "only one\n");
        assert_eq!((&*out, code), ("", Some(EXIT_NO_SECRETS)), "{shell}");
    }
}

#[test]
fn a_workspace_that_is_not_there_has_a_code_of_its_own() {
    let ssh = Ssh {
        workspace: "/no such/place".to_owned(),
        ..ssh()
    };
    let argv = to_strings(&["true"]);
    for shell in shells() {
        let (_, code) = run(shell, &remote_script(&ssh, &remote(&argv)), "");
        assert_eq!(code, Some(EXIT_NO_WORKSPACE), "{shell}");
    }
    let argv = to_strings(&["no-such-program-anywhere"]);
    let env = [("A".to_owned(), "b".to_owned())];
    for shell in shells() {
        let plain = remote_script(&self::ssh(), &remote(&argv));
        let with = RemoteCommand {
            env: &env,
            ..remote(&argv)
        };
        let with = remote_script(&self::ssh(), &with);
        for text in [plain, with] {
            assert_eq!(run(shell, &text, "").1, Some(127), "{shell} {text}");
        }
    }
}

#[test]
fn the_client_gets_no_terminal_no_forwarding_and_no_configuration() {
    let argv = client_command(&ssh(), "exec x");
    let text = argv.join(" ");
    assert!(text.starts_with("ssh -T -a -x -F none -o BatchMode=yes -o StrictHostKeyChecking=yes"));
    for option in [
        "ClearAllForwardings=yes",
        "PermitLocalCommand=no",
        "ConnectTimeout=10",
        "ServerAliveInterval=15",
        "ServerAliveCountMax=3",
    ] {
        assert!(text.contains(option), "{option}: {text}");
    }
    assert!(text.ends_with(" -- build.example.org exec x"), "{text}");
    let full = Ssh {
        user: Some("agent".to_owned()),
        port: Some(2222),
        identity_file: Some("/keys/id".into()),
        known_hosts: Some("/keys/hosts".into()),
        config_file: Some("/keys/config".into()),
        connect_timeout: Duration::from_millis(1500),
        ..ssh()
    };
    let text = client_command(&full, "exec x").join(" ");
    for part in [
        "-F /keys/config",
        "ConnectTimeout=2",
        "UserKnownHostsFile=/keys/hosts",
        "IdentitiesOnly=yes",
        "-i /keys/id",
        "-p 2222",
        "-l agent -- build.example.org",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn a_remote_sandbox_goes_around_the_command() {
    let ssh = Ssh {
        workspace: "/srv/my work".to_owned(),
        sandbox: Some(RemoteSandbox {
            marshal: "/opt/marshal".to_owned(),
            mode: RemoteMode::Ro,
            network: RemoteNetwork::None,
            home: Some("/srv/home".to_owned()),
        }),
        ..ssh()
    };
    let argv = to_strings(&["hermes", "acp"]);
    let env = [("A".to_owned(), "b c".to_owned())];
    let told = to_strings(&["KEY"]);
    let add = [PathBuf::from("$HOME/bin")];
    let script = remote_script(
        &ssh,
        &RemoteCommand {
            env: &env,
            secret_names: &told,
            path_add: &add,
            ..remote(&argv)
        },
    );
    assert_eq!(
        script,
        "PATH=\"$HOME\"/bin:\"$PATH\"; export PATH; IFS= read -r KEY || exit 65; export KEY; \
         exec env A='b c' /opt/marshal sandbox exec '--workspace=/srv/my work' '--mode=ro' \
         '--network=none' '--home=/srv/home' '--path-add=$HOME/bin' '--pass=A' '--pass=KEY' \
         '--eof-wait=6000ms' -- hermes acp"
    );
}
