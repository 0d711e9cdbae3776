//! `[chat]`, `[role.NAME]`, `[workspace.NAME]` and `[template.NAME]`, as they are shown.

use std::collections::BTreeMap;

use super::super::role::{ChatConfig, RegisteredWorkspace, Role};
use super::super::template::Template;
use super::RenderedTable;
use crate::Launcher;
use marshal_model::{RoleName, TemplateName, WorkspaceName};

/// The tables of all of them.
pub(super) fn tables(
    chat: ChatConfig,
    roles: &BTreeMap<RoleName, Role>,
    workspaces: &BTreeMap<WorkspaceName, RegisteredWorkspace>,
    templates: &BTreeMap<TemplateName, Template>,
) -> Vec<RenderedTable> {
    let mut table = RenderedTable::new(&["chat"]);
    chat.show_keys(&mut table, "");
    let mut tables = vec![table];
    for (name, role) in roles {
        let Role {
            pool,
            model,
            instructions,
        } = role;
        let mut table = RenderedTable::new(&["role", name.as_str()]);
        table.put("pool", pool.as_str());
        table.put_optional("model", model.as_deref());
        table.put_optional("instructions", instructions.as_deref());
        tables.push(table);
    }
    for (name, workspace) in workspaces {
        let RegisteredWorkspace {
            workspace: keys,
            shared,
        } = workspace;
        let mut table = RenderedTable::new(&["workspace", name.as_str()]);
        super::ssh::put_workspace(&mut table, "", keys, Launcher::Unshare);
        table.put("shared", *shared);
        tables.push(table);
    }
    for (name, template) in templates {
        let Template {
            mode,
            roles,
            planner,
            plan,
            instructions,
            check,
            agent_items,
        } = template;
        let mut table = RenderedTable::new(&["template", name.as_str()]);
        let roles: Vec<&str> = roles.iter().map(RoleName::as_str).collect();
        table.put("roles", roles);
        table.put("mode", mode.as_str());
        table.put_optional("planner", planner.as_ref().map(RoleName::as_str));
        table.put_optional("plan", plan.as_deref());
        table.put_optional("instructions", instructions.as_deref());
        table.put_optional("check", check.as_deref());
        table.put("agent_items", *agent_items);
        tables.push(table);
    }
    tables
}
