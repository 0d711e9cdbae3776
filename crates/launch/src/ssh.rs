//! The system's ssh client as a launcher: its command line, and the one argument that the remote
//! shell reads.
//!
//! Pure. The remote shell is the user's own and must be a POSIX shell; every word of the
//! configuration is quoted, so that the shell reads it as plain text. Secrets are not in the
//! command line, which all users of both hosts can list: they are sent on the child's input, before
//! its protocol starts. Must not know sessions, or what the client's exit means.
//!
//! On the remote host `marshal sandbox exec` is the helper above the agent, if it is installed
//! there. If not, a cut connection may leave processes, and the child's exit says so.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use marshal_config::{HOME_OF_CHILD, Ssh};

/// The client: looked for in the PATH of its environment.
pub const CLIENT: &str = "ssh";

/// Exit codes of the remote shell before the program runs, from sysexits.h: this one says that it
/// did not get all secrets.
pub const EXIT_NO_SECRETS: i32 = 65;
/// The workspace cannot be entered.
pub const EXIT_NO_WORKSPACE: i32 = 66;
/// The client's own exit code: there is no connection, or it is lost.
pub const EXIT_CLIENT_FAILED: i32 = 255;

/// The path of the workspace in the sandbox on the remote host.
pub const REMOTE_WORKSPACE: &str = "/workspace";
/// The path of the home there.
pub const REMOTE_HOME: &str = "/home/agent";

/// Keepalive messages without a reply before the client closes the connection.
const ALIVE_COUNT: u32 = 3;

/// The command to run on the remote host.
#[derive(Debug, Clone, Copy)]
pub struct RemoteCommand<'a> {
    /// Program and arguments; not empty.
    pub argv: &'a [String],
    /// Directories put before PATH; one may begin with `$HOME/`.
    pub path_add: &'a [PathBuf],
    /// Variables and their values, which everybody there may see.
    pub env: &'a [(String, String)],
    /// Names of variables whose values are sent as lines on its input, in this order.
    pub secret_names: &'a [String],
    /// How long the sandbox there waits for the program after the end of its input; `None` waits
    /// until it ends by itself.
    pub eof_wait: Option<Duration>,
}

/// The quoted form that a POSIX shell reads as exactly this text.
#[must_use]
pub fn quote(word: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"_-./:,+@%".contains(&b);
    if !word.is_empty() && word.bytes().all(plain) {
        return word.to_owned();
    }
    let mut out = String::with_capacity(word.len() + 2);
    out.push('\'');
    for c in word.chars() {
        if c == '\'' {
            out.push_str("'\\''");
        } else {
            out.push(c);
        }
    }
    out.push('\'');
    out
}

/// The client's arguments, itself first.
///
/// The user's ssh configuration is not read unless the pool names a file: `ProxyCommand`,
/// `Match exec` and `LocalCommand` are programs. The script is one argument, and never begins with
/// `-`: the client reads options after the host's name too.
#[must_use]
pub fn client_command(ssh: &Ssh, script: &str) -> Vec<String> {
    let mut argv: Vec<String> = [CLIENT, "-T", "-a", "-x", "-F"].map(str::to_owned).to_vec();
    argv.push(match &ssh.config_file {
        Some(file) => file.to_string_lossy().into_owned(),
        None => "none".to_owned(),
    });
    let alive = seconds(ssh.alive_timeout).div_ceil(u64::from(ALIVE_COUNT));
    let mut option = |text: String| argv.extend(["-o".to_owned(), text]);
    for fixed in [
        "BatchMode=yes",
        "StrictHostKeyChecking=yes",
        "ClearAllForwardings=yes",
        "PermitLocalCommand=no",
        "ControlMaster=no",
        "ControlPath=none",
        "UpdateHostKeys=no",
        "EscapeChar=none",
        "RequestTTY=no",
        "LogLevel=INFO",
    ] {
        option(fixed.to_owned());
    }
    option(format!("ConnectTimeout={}", seconds(ssh.connect_timeout)));
    option(format!("ServerAliveInterval={alive}"));
    option(format!("ServerAliveCountMax={ALIVE_COUNT}"));
    if let Some(file) = &ssh.known_hosts {
        option(format!("UserKnownHostsFile={}", file.to_string_lossy()));
        option("GlobalKnownHostsFile=/dev/null".to_owned());
    }
    if let Some(file) = &ssh.identity_file {
        option("IdentitiesOnly=yes".to_owned());
        argv.extend(["-i".to_owned(), file.to_string_lossy().into_owned()]);
    }
    if let Some(port) = ssh.port {
        argv.extend(["-p".to_owned(), port.to_string()]);
    }
    if let Some(user) = &ssh.user {
        argv.extend(["-l".to_owned(), user.clone()]);
    }
    argv.extend(["--".to_owned(), ssh.host.clone(), script.to_owned()]);
    argv
}

/// Whole seconds, rounded up: the client knows no others.
fn seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

/// The script for the remote shell.
#[must_use]
pub fn remote_script(ssh: &Ssh, remote: &RemoteCommand<'_>) -> String {
    let mut out = String::new();
    if !remote.path_add.is_empty() {
        out.push_str("PATH=");
        for directory in remote.path_add {
            let _ = write!(out, "{}:", quote_path_directory(directory));
        }
        out.push_str("\"$PATH\"; export PATH; ");
    }
    for name in remote.secret_names {
        let _ = write!(
            out,
            "IFS= read -r {name} || exit {EXIT_NO_SECRETS}; export {name}; "
        );
    }
    let wrapped = sandboxed_command(ssh, remote);
    if wrapped.is_none() {
        let workspace = quote(&ssh.workspace);
        let _ = write!(out, "cd {workspace} || exit {EXIT_NO_WORKSPACE}; ");
    }
    out.push_str("exec");
    if !remote.env.is_empty() {
        out.push_str(" env");
    }
    for (name, value) in remote.env {
        let _ = write!(out, " {name}={}", quote(value));
    }
    for word in wrapped.as_deref().unwrap_or(remote.argv) {
        out.push(' ');
        out.push_str(&quote(word));
    }
    out
}

/// A directory of PATH there, with the one variable that it may begin with.
fn quote_path_directory(directory: &Path) -> String {
    let text = directory.to_string_lossy();
    match text.strip_prefix(HOME_OF_CHILD) {
        Some(below) => format!("\"$HOME\"{}", quote(below)),
        None => quote(&text),
    }
}

/// The command for the sandbox of `marshal` there.
fn sandboxed_command(ssh: &Ssh, remote: &RemoteCommand<'_>) -> Option<Vec<String>> {
    let remote_sandbox = ssh.sandbox.as_ref()?;
    let mut argv: Vec<String> = vec![
        remote_sandbox.marshal.clone(),
        "sandbox".to_owned(),
        "exec".to_owned(),
    ];
    let mut option = |name: &str, value: String| argv.push(format!("--{name}={value}"));
    option("workspace", ssh.workspace.clone());
    option("mode", remote_sandbox.mode.to_string());
    option("network", remote_sandbox.network.to_string());
    if let Some(home) = &remote_sandbox.home {
        option("home", home.clone());
    }
    // The sandbox there has its own PATH and home.
    for directory in remote.path_add {
        option("path-add", directory.to_string_lossy().into_owned());
    }
    for name in remote
        .env
        .iter()
        .map(|(name, _)| name)
        .chain(remote.secret_names)
    {
        option("pass", name.clone());
    }
    option(
        "eof-wait",
        remote.eof_wait.map_or_else(
            || "none".to_owned(),
            |wait| format!("{}ms", wait.as_millis()),
        ),
    );
    argv.push("--".to_owned());
    argv.extend(remote.argv.iter().cloned());
    Some(argv)
}

#[cfg(test)]
mod tests;
