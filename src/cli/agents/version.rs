//! Queries a program's version: runs it with `--version`, in an empty environment, with a time
//! limit.
//!
//! Must not know agents.

use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncReadExt as _;

/// How long the program may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The most bytes of output that are read.
const MAX_OUTPUT_BYTES: u64 = 4096;

/// The version in the first line of the program's output.
pub(super) async fn query_version(argv: &[String]) -> Option<String> {
    let (program, arguments) = argv.split_first()?;
    let home = std::env::temp_dir();
    let mut child = tokio::process::Command::new(program)
        .args(arguments)
        .arg("--version")
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .env("HOME", &home)
        .current_dir(&home)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .ok()?;
    let mut output = Vec::new();
    let mut out = child.stdout.take()?.take(MAX_OUTPUT_BYTES);
    let reading = out.read_to_end(&mut output);
    tokio::time::timeout(TIMEOUT, reading).await.ok()?.ok()?;
    version(&String::from_utf8_lossy(&output))
}

/// The first word of the first line that has a digit and a dot.
fn version(output: &str) -> Option<String> {
    let mut words = output.lines().next()?.split_whitespace();
    let is_version =
        |word: &&str| word.contains('.') && word.contains(|c: char| c.is_ascii_digit());
    words.find(is_version).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_the_word_that_looks_like_one() {
        assert_eq!(version("agent 1.2.3 (x)\nmore").as_deref(), Some("1.2.3"));
        assert_eq!(version("v0.9\n").as_deref(), Some("v0.9"));
        assert_eq!(version("usage: agent"), None);
        assert_eq!(version(""), None);
    }

    #[tokio::test]
    async fn a_program_is_asked_in_an_empty_environment_and_not_for_ever() {
        let ask = |script: &str| {
            let argv = ["/bin/sh", "-c", script].map(str::to_owned);
            async move { query_version(&argv).await }
        };
        let version = ask("echo agent 1.${CARGO_PKG_NAME-0}.${HOME:+1}").await;
        assert_eq!(version.as_deref(), Some("1.0.1"));
        assert_eq!(ask("exit 1").await, None);
        let argv = ["/nonexistent".to_owned()];
        assert_eq!(super::query_version(&argv).await, None);
    }
}
