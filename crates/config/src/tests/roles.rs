//! What chats are begun with, as it is read.

use std::path::Path;
use std::time::Duration;

use super::{accepted_by, discovered_origin, explicit_origin, pool, refused_by};
use crate::TemplateMode;
use marshal_model::{RoleName, TemplateName, WorkspaceName};

const TAKES: &str = "[pool.demo]\ncommand = [\"agent\", \"--model\", \"{model}\"]\nmodel = \"big\"\n";

#[test]
fn chats_roles_and_workspaces_are_read_with_their_defaults() {
    let config = accepted_by(&explicit_origin(), &pool(""));
    assert_eq!(config.chat.idle, Duration::from_secs(600));
    let day = Duration::from_secs(24 * 3600);
    assert_eq!(config.chat.close_after, 30 * day);
    assert!(config.roles.is_empty() && config.workspaces.is_empty());
    let text = TAKES.to_owned() + "[chat]\nidle = \"24h\"\nclose_after = \"1h\"\n[role.writer]\npool = \"demo\"\nmodel = \"small\"\ninstructions = \"\"\"Be\nbrief.\"\"\"\n[role.plain]\npool = \"demo\"\n[workspace.site]\npath = \"../site\"\n[workspace.abs]\npath = \"/srv/x\"\nshared = true\n";
    let config = accepted_by(&explicit_origin(), &text);
    assert_eq!(config.chat.idle, Duration::from_secs(24 * 3600));
    assert_eq!(config.chat.close_after, Duration::from_secs(3600));
    let role = |name| &config.roles[&RoleName::new(name).expect("name")];
    assert_eq!(role("writer").pool.as_str(), "demo");
    assert_eq!(role("writer").model.as_deref(), Some("small"));
    assert_eq!(role("writer").instructions.as_deref(), Some("Be\nbrief."));
    assert_eq!((&role("plain").model, &role("plain").instructions), (&None, &None));
    let path = |name| config.workspaces[&WorkspaceName::new(name).expect("name")].workspace.path.as_path();
    assert_eq!(path("site"), Path::new("/etc/site"));
    assert_eq!(path("abs"), Path::new("/srv/x"));
    let shared: Vec<_> = config.workspaces.values().map(|of| of.shared).collect();
    assert_eq!(shared, [true, false], "abs and site");
}

#[test]
fn a_role_has_a_model_only_where_its_pool_takes_one() {
    let role = "[role.r]\npool = \"demo\"\nmodel = \"m\"\n";
    refused_by(&explicit_origin(), &(pool("") + role), "role.r.model: pool demo cannot set a model per session");
    accepted_by(&explicit_origin(), &(TAKES.to_owned() + role));
    accepted_by(&explicit_origin(), &(pool("dialect = \"acp\"") + role));
    // Its file in a new home has the pool's model.
    let codex = "[pool.demo]\nagent = \"codex\"\n";
    refused_by(&explicit_origin(), &(codex.to_owned() + role), "cannot set a model per session");
}

#[test]
fn what_leads_nowhere_is_refused() {
    let refused = |text: &str, why: &str| refused_by(&explicit_origin(), &(pool("") + text), why);
    refused("[chat]\nidle = \"0s\"", "chat.idle…a duration from 1s to 1d");
    refused(
        "[chat]\nclose_after = \"0s\"",
        "chat.close_after…a duration from 1s to 30d",
    );
    refused("[chat]\nidle = \"25h\"", "chat.idle…a duration from 1s to 1d");
    refused("[chat]\nidel = \"1m\"", "unknown key \"idel\"");
    refused("[store]\npostgres = \"postgres://u:p@h/d\"", "a connection string has a password, so the file never contains it");
    refused("[store]\nca = \"ca.pem\"", "store.postgres is not set");
    refused("[store]\nnewest = 0", "store.newest…an integer from 1 to 100000");
    refused("[role.r]", "the role needs a pool");
    refused("[role.r]\npool = \"other\"", "there is no pool \"other\": expected \"demo\"");
    refused("[role.R]\npool = \"demo\"", "the role name \"R\" must match");
    refused("[role.r]\npool = \"demo\"\ncommand = []", "command");
    let long = "x".repeat((64 << 10) + 1);
    refused(&format!("[role.r]\npool = \"demo\"\ninstructions = \"{long}\""), "the instructions have more than 65536 bytes");
    refused("[workspace.w]", "the workspace needs a path");
    refused("[workspace.W]\npath = \".\"", "the workspace name \"W\" must match");
    refused("[workspace.w]\npath = \"~/x\"", "\"~\" is not expanded");
    refused("[workspace.w]\npath = \"\"", "a path must not be empty");
    let takes = |model: &str| format!("{TAKES}[role.r]\npool = \"demo\"\nmodel = \"{model}\"");
    refused_by(&explicit_origin(), &takes("--flag"), "role.r.model: expected [A-Za-z0-9]");
}

#[test]
fn a_file_that_was_found_registers_only_what_is_in_its_directory() {
    let of = |path: &str| format!("{}[workspace.w]\npath = \"{path}\"", super::script(""));
    accepted_by(&discovered_origin(), &of("sub/dir"));
    for outside in ["/srv", "..", "x/../../other", "/home/me/project2"] {
        refused_by(&discovered_origin(), &of(outside), "workspace.w.path…may not use a workspace outside its own directory…--config");
    }
}

#[test]
fn a_template_names_roles_and_a_plan_in_the_workspace() {
    let roles = "[role.a]\npool = \"demo\"\n[role.b]\npool = \"demo\"\n";
    let of = |keys: &str| format!("{}{roles}[template.t]\n{keys}\n", pool(""));
    let config = accepted_by(&explicit_origin(), &of("roles = [\"a\", \"b\", \"a\"]"));
    let template = &config.templates[&TemplateName::new("t").expect("name")];
    let names: Vec<&str> = template.roles.iter().map(RoleName::as_str).collect();
    assert_eq!((names, template.mode), (vec!["a", "b", "a"], TemplateMode::ParallelAgents));
    assert_eq!((&template.plan, &template.planner, template.agent_items), (&None, &None, false));
    let all = "roles = [\"a\"]\nmode = \"plan_then_execute\"\nplanner = \"b\"\nplan = \"content/p.md\"\ninstructions = \"Be brief.\"\ncheck = \"make test\"\nagent_items = true";
    let config = accepted_by(&explicit_origin(), &of(all));
    let template = &config.templates[&TemplateName::new("t").expect("name")];
    assert_eq!(template.mode, TemplateMode::PlanThenExecute);
    assert_eq!(template.planner.as_ref().map(RoleName::as_str), Some("b"));
    assert_eq!(template.plan.as_deref(), Some("content/p.md"));
    assert_eq!(template.check.as_deref(), Some("make test"));
    assert!(template.agent_items);
    let refused = |keys: &str, why: &str| refused_by(&explicit_origin(), &of(keys), why);
    refused("", "the template needs 1 to 16 roles");
    refused("roles = []", "the template needs 1 to 16 roles");
    refused(&format!("roles = [{}]", "\"a\", ".repeat(17)), "the template needs 1 to 16 roles");
    refused("roles = [\"c\"]", "there is no role \"c\": expected ");
    refused("roles = [\"a\"]\nplanner = \"c\"", "template.t.planner: there is no role \"c\"");
    refused("roles = [\"a\"]\nmode = \"chat\"", "template.t.mode");
    refused("roles = [\"a\"]\nplan = \"../p.md\"", "is not a path in the workspace");
    refused("roles = [\"a\"]\nplan = \"/p.md\"", "is not a path in the workspace");
    refused("roles = [\"a\"]\nplan = \"p.txt\"", "is not a Markdown file");
    refused("roles = [\"a\"]\nplan = \"x/.md\"", "is not a Markdown file");
    refused("roles = [\"a\"]\ncheck = \" \"", "the check is a command");
    refused("roles = [\"a\"]\ngoal = \"x\"", "unknown key \"goal\"");
    let bad = format!("{}{roles}[template.T]\nroles = [\"a\"]\n", pool(""));
    refused_by(&explicit_origin(), &bad, "the template name \"T\" must match");
}
