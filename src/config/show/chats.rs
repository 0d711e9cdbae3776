//! `[chat]`, `[role.NAME]` and `[workspace.NAME]`, as they are shown.

use std::collections::BTreeMap;

use super::super::role::{ChatConfig, RegisteredWorkspace, Role};
use super::super::units::show_duration;
use super::{Shown, path};
use crate::model::{RoleName, WorkspaceName};

/// The tables of all of them.
pub(super) fn tables(
    chat: ChatConfig,
    roles: &BTreeMap<RoleName, Role>,
    workspaces: &BTreeMap<WorkspaceName, RegisteredWorkspace>,
) -> Vec<Shown> {
    let ChatConfig { idle, rounds } = chat;
    let mut table = Shown::new(&["chat"]);
    table.put("idle", show_duration(idle));
    table.put("rounds", rounds);
    let mut tables = vec![table];
    for (name, role) in roles {
        let Role {
            pool,
            model,
            instructions,
        } = role;
        let mut table = Shown::new(&["role", name.as_str()]);
        table.put("pool", pool.as_str());
        table.put_some("model", model.as_deref());
        table.put_some("instructions", instructions.as_deref());
        tables.push(table);
    }
    for (name, workspace) in workspaces {
        let RegisteredWorkspace { path: of } = workspace;
        let mut table = Shown::new(&["workspace", name.as_str()]);
        table.put("path", path(of));
        tables.push(table);
    }
    tables
}
