//! Programs that a test makes and has run.
//!
//! What is open for writing cannot be executed, and a child that another test is starting holds whatever this
//! process has open, up to its own exec. So such files are written by a process of their own.

use std::io::{self, Read};
use std::path::Path;
use std::process::{Command, Stdio};

/// Makes a program that everybody may run.
#[allow(clippy::expect_used, reason = "a test that cannot go on fails")]
pub(crate) fn install(to: &Path, mut content: impl Read) {
    let mut writer = Command::new("sh")
        .args(["-c", r#"rm -f -- "$0" && cat >"$0" && chmod 755 -- "$0""#])
        .arg(to)
        .stdin(Stdio::piped())
        .spawn()
        .expect("sh");
    let mut pipe = writer.stdin.take().expect("a pipe");
    io::copy(&mut content, &mut pipe).expect("the content");
    drop(pipe);
    assert!(
        writer.wait().expect("its end").success(),
        "{}",
        to.display()
    );
}
