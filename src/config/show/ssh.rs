//! The keys of `ssh` with their values.

use super::{Shown, path};
use crate::config::types::{FarWalls, Ssh};
use crate::config::units::show_duration;

pub(super) fn put(table: &mut Shown, ssh: &Ssh) {
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
        walls,
    } = ssh;
    table.remarks.push(format!(
        "unsandboxed here: it runs at {}{}",
        ssh.shown(),
        if walls.is_some() {
            ", behind the walls of marshal there"
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
    if let Some(FarWalls {
        marshal,
        mode,
        network,
        home,
    }) = walls
    {
        table.put("ssh.marshal", marshal.as_str());
        table.put("ssh.mode", mode.word());
        table.put("ssh.network", network.word());
        if let Some(home) = home {
            table.put("ssh.home", home.as_str());
        }
    }
}
