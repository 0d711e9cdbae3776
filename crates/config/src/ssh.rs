//! `ssh = { … }` of a pool: the remote host that its agents run on, and how it is reached.
//!
//! Owns the keys of that table and what they exclude: with `launcher = "ssh"` the agent has no
//! sandbox on this host, so it can get nothing of this host. Must not know the client's
//! command line.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::error::quote;
use super::paths;
use super::table::{Entry, Located, Place, Section, keywords};
use super::types::{Env, Guard, Launcher, Pool, Workspace, WorkspaceMode};
use marshal_model::limits;

keywords!(RemoteMode, RemoteNetwork);

marshal_model::string_enum!(
    /// How `marshal` on the remote host shows the agent its workspace.
    RemoteMode {
        /// The directory itself.
        Rw = "rw",
        /// The directory itself, read-only.
        Ro = "ro",
        /// A copy, which stays on the remote host.
        Copy = "copy",
    }
);

marshal_model::string_enum!(
    /// The network of an agent in the sandbox on the remote host.
    RemoteNetwork {
        /// Its own loopback only.
        None = "none",
        /// The network of that host.
        Host = "host",
    }
);

/// The remote host that the agents of a pool run on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ssh {
    /// The host's name or address: `[A-Za-z0-9.:-]`, not beginning with `-`.
    pub host: String,
    /// The user there, in the same characters; `None` means the client's choice.
    pub user: Option<String>,
    /// The port; `None` means the client's choice, by default 22.
    pub port: Option<u16>,
    /// The only private key to log in with; `None` means those of the ssh-agent and the user.
    pub identity_file: Option<PathBuf>,
    /// The file of known host keys; `None` means the user's own.
    pub known_hosts: Option<PathBuf>,
    /// A configuration file of the client; `None` means that the client reads none.
    pub config_file: Option<PathBuf>,
    /// How long the connection may take.
    pub connect_timeout: Duration,
    /// How long the remote host may not respond before the connection counts as lost.
    pub alive_timeout: Duration,
    /// The workspace there, absolute.
    pub workspace: String,
    /// The sandbox there; `None` if the agent is a plain process.
    pub sandbox: Option<RemoteSandbox>,
}

/// `marshal sandbox exec` on the remote host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteSandbox {
    /// The program there: a name in its PATH, or an absolute path.
    pub marshal: String,
    /// How the agent sees the workspace.
    pub mode: RemoteMode,
    /// The network that it reaches.
    pub network: RemoteNetwork,
    /// A directory there that is its home; `None` means one in memory that ends with each child.
    pub home: Option<String>,
}

impl Ssh {
    /// The remote host for display: `user@host:port`.
    #[must_use]
    pub fn display_name(&self) -> String {
        let mut shown = match &self.user {
            Some(user) => format!("{user}@{}", self.host),
            None => self.host.clone(),
        };
        if let Some(port) = self.port {
            shown = format!("{shown} port {port}");
        }
        shown
    }
}

/// The JSON-schema pattern of host and user.
const NAME_PATTERN: &str = "^[A-Za-z0-9.:][A-Za-z0-9.:-]{0,254}$";
/// The JSON-schema pattern of a path on the remote host.
const REMOTE_PATH_PATTERN: &str = r"^/(?!(.*/)?\.\.(/|$)).*$";
/// The JSON-schema pattern of the program there.
const PROGRAM_PATTERN: &str = r"^[A-Za-z0-9._/][A-Za-z0-9._/+-]{0,254}$";

/// The default directories in front of PATH on the remote host. A shell without a login reads no
/// profile, so it would not find programs of the user or of a package manager.
const DEFAULT_PATH_ADD: &[&str] = &["$HOME/.local/bin", "/opt/homebrew/bin", "/usr/local/bin"];

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

/// Reads the table, if the pool has one and it is complete.
pub(super) fn read(pool: &Section<'_>, dir: &Path, launcher: Launcher) -> Option<Box<Ssh>> {
    let item = pool.get("ssh");
    let table = pool.section("ssh");
    let diagnostics = pool.diagnostics;
    let host = read_name(table.get("host"));
    let user = read_name(table.get("user"));
    let port = table.integer("port", 1..=u16::MAX);
    let file = |key: &'static str| {
        let found = table.get(key)?.text_like(paths::PATTERN)?;
        if let Some(fault) = paths::path_error(&found.value) {
            diagnostics.report(&found.place, fault, None);
        }
        if found.value.contains(['"', '%']) || found.value.contains(char::is_whitespace) {
            let message = "the ssh client accepts no path with a space, \" or %";
            diagnostics.report(&found.place, message, None);
        }
        Some(paths::absolute(dir, &found.value))
    };
    let (identity_file, known_hosts, config_file) = (
        file("identity_file"),
        file("known_hosts"),
        file("config_file"),
    );
    let connect_timeout = table.duration("connect_timeout", SECOND..=10 * MINUTE);
    let alive_timeout = table.duration("alive_timeout", 3 * SECOND..=60 * MINUTE);
    let workspace = read_remote_path(table.get("workspace"));
    let remote_sandbox = read_remote_sandbox(&table);
    table.reject_unknown_keys(
        &["jump", "proxy"],
        &[
            ("hostname", "ssh.host"),
            ("path", "ssh.workspace"),
            ("cwd", "ssh.workspace"),
            ("path_add", "env.path_add"),
        ],
    );
    match (launcher, &item) {
        (launcher, None) if launcher.is_remote() => {
            let message = "launcher = \"ssh\" needs the table ssh";
            let help =
                "for example: ssh = { host = \"build.example.org\", workspace = \"/srv/work\" }";
            diagnostics.report(&pool.place, message, Some(help.to_owned()));
            return None;
        }
        (launcher, Some(_)) if launcher.is_remote() => {}
        (_, Some(item)) => {
            let message = "the table ssh is for launcher = \"ssh\"";
            diagnostics.report(
                &item.place,
                message,
                Some("set launcher = \"ssh\"".to_owned()),
            );
            return None;
        }
        (_, None) => return None,
    }
    for (key, example) in [
        ("host", "\"build.example.org\""),
        ("workspace", "\"/srv/work\""),
    ] {
        if table.get(key).is_none() && item.as_ref().is_some_and(Entry::is_table) {
            let message = format!("ssh needs {key}");
            let help = format!("for example: {key} = {example}");
            diagnostics.report(&table.place, message, Some(help));
        }
    }
    Some(Box::new(Ssh {
        host: host.unwrap_or_default(),
        user,
        port: port.map(|found| found.value),
        identity_file,
        known_hosts,
        config_file,
        connect_timeout: connect_timeout.map_or(limits::SSH_CONNECT_TIMEOUT, |found| found.value),
        alive_timeout: alive_timeout.map_or(limits::SSH_ALIVE_TIMEOUT, |found| found.value),
        workspace: workspace.unwrap_or_else(|| "/".to_owned()),
        sandbox: remote_sandbox,
    }))
}

/// The keys of `ssh` about `marshal` on the remote host.
fn read_remote_sandbox(table: &Section<'_>) -> Option<RemoteSandbox> {
    let diagnostics = table.diagnostics;
    let marshal = table.get("marshal").and_then(|item| {
        let found = item.text_like(PROGRAM_PATTERN)?;
        let plain = |b: u8| b.is_ascii_alphanumeric() || b"._/+-".contains(&b);
        let fits = found.value.len() <= 255
            && found.value.bytes().all(plain)
            && !found.value.starts_with(['-', '+'])
            && !found.value.is_empty();
        if !fits {
            let message = format!(
                "expected a program's name or path in [A-Za-z0-9._/+-], found {}",
                quote(&found.value)
            );
            diagnostics.report(&found.place, message, None);
        }
        Some(found)
    });
    let mode = table.keyword::<RemoteMode>("mode", &[]);
    let network = table.keyword::<RemoteNetwork>("network", &["routes", "proxy"]);
    let home = read_remote_path(table.get("home"));
    if marshal.is_none() && table.get("marshal").is_none() {
        let keys = [
            ("mode", mode.is_some()),
            ("network", network.is_some()),
            ("home", home.is_some()),
        ];
        for (key, _) in keys.into_iter().filter(|(_, given)| *given) {
            let place = table
                .get(key)
                .map_or_else(|| table.place.clone(), |item| item.place);
            let message =
                format!("ssh.{key} is for marshal on the remote host: set ssh.marshal too");
            let help = Some("for example: marshal = \"marshal\"".to_owned());
            diagnostics.report(&place, message, help);
        }
    }
    Some(RemoteSandbox {
        marshal: marshal?.value,
        mode: mode.map_or(RemoteMode::Rw, |found| found.value),
        network: network.map_or(RemoteNetwork::None, |found| found.value),
        home,
    })
}

/// A host or a user. Neither may look like an option of the client.
fn read_name(item: Option<Entry<'_>>) -> Option<String> {
    let item = item?;
    let found = item.text_like(NAME_PATTERN)?;
    let fits = (1..=255).contains(&found.value.len())
        && !found.value.starts_with('-')
        && found
            .value
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b".:-".contains(&b));
    if !fits {
        let message = format!(
            "expected letters, digits, \".\", \":\" and \"-\", not beginning with \"-\", found {}",
            quote(&found.value)
        );
        item.report(message, None);
    }
    Some(found.value)
}

/// An absolute path at the far end.
fn read_remote_path(item: Option<Entry<'_>>) -> Option<String> {
    let item = item?;
    let found = item.text_like(REMOTE_PATH_PATTERN)?;
    let is_plain = Path::new(&found.value).components().all(|part| {
        matches!(
            part,
            std::path::Component::RootDir | std::path::Component::Normal(_)
        )
    });
    if !found.value.starts_with('/') || !is_plain || found.value.contains(char::is_control) {
        let message = format!(
            "expected an absolute path on the remote host, without \"..\", found {}",
            quote(&found.value)
        );
        let help = "\"~\" and variables are not expanded: write the whole path".to_owned();
        item.report(message, Some(help));
    }
    let path = found.value.trim_end_matches('/');
    Some(if path.is_empty() { "/" } else { path }.to_owned())
}

/// Refuses what a pool with `launcher = "ssh"` may not have. `is_discovered`: the file was discovered, not
/// named.
pub(super) fn check_consistency(section: &Section<'_>, pool: &Pool, is_discovered: bool) {
    if !pool.launcher.is_remote() {
        return;
    }
    let diagnostics = section.diagnostics;
    let place = |key: &'static str| section.get(key).map(|item| item.place);
    let refuse = |key: &'static str, message: &str, help: Option<&str>| {
        if let Some(place) = place(key) {
            diagnostics.report(&place, message, help.map(str::to_owned));
        }
    };
    refuse(
        "network",
        "with launcher = \"ssh\" an agent has the remote host's network: remove this key",
        Some("with marshal on the remote host: ssh.network"),
    );
    refuse(
        "workspace",
        "with launcher = \"ssh\" the workspace is on the remote host: ssh.workspace",
        None,
    );
    refuse(
        "home_files",
        "with launcher = \"ssh\" the home is on the remote host: files of this host are not sent there",
        None,
    );
    if pool.options.guard == Guard::Sandbox
        && pool.ssh.as_ref().is_none_or(|ssh| ssh.sandbox.is_none())
    {
        refuse(
            "guard",
            "guard = \"sandbox\" with launcher = \"ssh\" needs ssh.marshal: without it there is no sandbox",
            None,
        );
    }
    if let Some(program) = pool.command.first().filter(|word| word.contains('=')) {
        let message = format!(
            "the program {} has a \"=\" in its name, which the remote shell would read as a variable",
            quote(program)
        );
        refuse("command", &message, None);
    }
    if is_discovered {
        let fault: Place = place("launcher").unwrap_or_else(|| section.place.clone());
        let message = "a discovered supervisor.toml may not use launcher = \"ssh\"";
        diagnostics.report(&fault, message, Some(super::pool::TRUST_HELP.to_owned()));
    }
}

/// Sets what a pool on a remote host has instead of a workspace of this host, which is neither read
/// nor written here, and the default PATH.
pub(super) fn remote_workspace_and_env(
    section: &Section<'_>,
    target: Option<&Ssh>,
    workspace: Workspace,
    mut env: Env,
) -> (Workspace, Env) {
    let Some(ssh) = target else {
        return (workspace, env);
    };
    if section.section("env").get("path_add").is_none() {
        env.path_add = DEFAULT_PATH_ADD.iter().map(PathBuf::from).collect();
    }
    let there = Workspace {
        path: PathBuf::from(&ssh.workspace),
        mode: WorkspaceMode::Ro,
        mask: Vec::new(),
        slice: Vec::new(),
        base: None,
        include: Vec::new(),
        setup: None,
        repos: Vec::new(),
        branches: false,
        author: None,
    };
    (there, env)
}

/// The profile's name, which such a pool must not have.
pub(super) fn refuse_profile(diagnostics: &super::table::Diagnostics, found: &Located<String>) {
    let message = "with launcher = \"ssh\" there is no sandbox here: remove this key";
    let help = Some("with marshal on the remote host: ssh.marshal".to_owned());
    diagnostics.report(&found.place, message, help);
}
