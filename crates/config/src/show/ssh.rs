//! The keys of a pool's remote host, or the host files that its agents get, as they are shown.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::{RenderedTable, path};
use crate::types::{Network, RemoteSandbox, Ssh, Workspace};
use crate::units::show_duration;

/// The network of an agent: on the remote host with its sandbox there, or on this host.
pub(super) fn put(table: &mut RenderedTable, target: Option<&Ssh>, network: Network) {
    let Some(ssh) = target else {
        return table.put("network", network.as_str());
    };
    let Ssh {
        host,
        user,
        port,
        identity_file,
        known_hosts,
        config_file,
        connect_timeout,
        alive_timeout,
        workspace,
        sandbox: remote_sandbox,
    } = ssh;
    table.remarks.push(format!(
        "unsandboxed here: it runs at {}{}",
        ssh.display_name(),
        if remote_sandbox.is_some() {
            ", in the sandbox of marshal there"
        } else {
            ", as a plain process"
        }
    ));
    table.put("ssh.host", host.as_str());
    if let Some(user) = user {
        table.put("ssh.user", user.as_str());
    }
    if let Some(port) = port {
        table.put("ssh.port", i64::from(*port));
    }
    for (key, file) in [
        ("identity_file", identity_file),
        ("known_hosts", known_hosts),
        ("config_file", config_file),
    ] {
        if let Some(file) = file {
            table.put(&format!("ssh.{key}"), path(file));
        }
    }
    table.put("ssh.connect_timeout", show_duration(*connect_timeout));
    table.put("ssh.alive_timeout", show_duration(*alive_timeout));
    table.put("ssh.workspace", workspace.as_str());
    if let Some(RemoteSandbox {
        marshal,
        mode,
        network,
        home,
    }) = remote_sandbox
    {
        table.put("ssh.marshal", marshal.as_str());
        table.put("ssh.mode", mode.as_str());
        table.put("ssh.network", network.as_str());
        if let Some(home) = home {
            table.put("ssh.home", home.as_str());
        }
    }
}

/// The files of this host that a pool gets.
pub(super) fn put_files(
    table: &mut RenderedTable,
    workspace: &Workspace,
    launcher: crate::Launcher,
    home_files: &BTreeMap<String, PathBuf>,
) {
    put_workspace(table, "workspace.", workspace, launcher);
    let files = home_files
        .iter()
        .map(|(name, file)| (name.clone(), path(file)));
    table.put_named("home_files", files.collect());
}

/// The keys of a workspace, each with this before its name.
pub(super) fn put_workspace(
    table: &mut RenderedTable,
    prefix: &str,
    workspace: &Workspace,
    launcher: crate::Launcher,
) {
    let key = |name: &str| format!("{prefix}{name}");
    let Workspace {
        path: work,
        mode,
        mask,
        slice,
        base,
        include,
        setup,
        repos,
        branches,
        author,
    } = workspace;
    table.put(&key("path"), path(work));
    table.put(&key("mode"), mode.as_str());
    if super::super::pool::workspace_view::can_be_masked(*mode, launcher) {
        table.put(&key("mask"), super::texts(mask));
    }
    table.put(&key("slice"), super::texts(slice));
    table.put_optional(&key("base"), base.as_deref());
    if mode.is_per_session() {
        table.put(&key("include"), super::texts(include));
    }
    if let Some(setup) = setup {
        table.put(&key("setup.command"), super::texts(&setup.command));
        table.put(&key("setup.inputs"), super::texts(&setup.inputs));
        setup.show_keys(table, &key("setup."));
    }
    if mode.is_per_session() {
        let repos = repos.iter().map(|repo| {
            let mut shown = toml::Table::new();
            shown.insert("path".to_owned(), path(&repo.path));
            shown.insert("at".to_owned(), repo.at.clone().into());
            shown.insert("mode".to_owned(), repo.mode.as_str().into());
            if let Some(base) = &repo.base {
                shown.insert("base".to_owned(), base.clone().into());
            }
            toml::Value::Table(shown)
        });
        table.put(&key("repos"), repos.collect::<Vec<_>>());
    }
    if *mode == crate::WorkspaceMode::Worktree {
        table.put(&key("branches"), *branches);
        let author = author.as_ref().map(ToString::to_string);
        table.put_optional(&key("author"), author.as_deref());
    }
}
