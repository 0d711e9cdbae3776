//! Programs that a test writes and then executes.
//!
//! A file that is open for writing cannot be executed. A child that another test is starting keeps
//! the descriptors of this process open, up to its own exec. So a separate process writes such
//! files.

use std::io::{self, Read};
use std::path::Path;
use std::process::{Command, Stdio};

/// Installs a program that every user may execute.
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
