//! `[template.NAME]`: work for several agents that a client starts by one name.
//!
//! Must not know chats or plans: only the names of roles, and which paths in a workspace are valid.

use std::collections::BTreeMap;

use super::error::quote;
use super::role::Role;
use super::sandbox::NAME_PATTERN;
use super::table::{Located, Section, keywords, one_of};
use marshal_model::limits;
use marshal_model::{RoleName, TemplateName, string_enum};

string_enum!(
    /// The modes with a plan and members that work on it.
    TemplateMode {
        /// All members work at the same time.
        ParallelAgents = "parallel_agents",
        /// The first member works alone, after an approval of the plan.
        PlanThenExecute = "plan_then_execute",
    }
);
keywords!(TemplateMode);

/// What a client starts by a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    /// The mode.
    pub mode: TemplateMode,
    /// The roles of the members that work on the plan.
    pub roles: Vec<RoleName>,
    /// The role that writes the plan.
    pub planner: Option<RoleName>,
    /// The plan's path in the workspace.
    pub plan: Option<String>,
    /// The text in front of the first prompt of all its agents.
    pub instructions: Option<String>,
    /// The command that checks whether the goal is met.
    pub check: Option<String>,
    /// Whether items that agents add are worked on, too.
    pub agent_items: bool,
}

/// Bytes of a template's instructions: they go with every first prompt.
const INSTRUCTIONS_BYTES: usize = 64 << 10;

/// Reads the table `template`. `roles` are those without faults, `names` those of all.
pub(super) fn read_templates(
    section: &Section<'_>,
    roles: &BTreeMap<RoleName, Role>,
    names: &[String],
) -> BTreeMap<TemplateName, Template> {
    let mut templates = BTreeMap::new();
    for (name, item) in section.named_entries(NAME_PATTERN) {
        let name = TemplateName::new(&name).map_err(|error| {
            item.report(format!("the {error}"), None);
        });
        if let (Ok(name), Some(table)) = (name, item.section())
            && let Some(template) = read_template(&table, roles, names)
        {
            templates.insert(name, template);
        }
    }
    templates
}

fn read_template(
    section: &Section<'_>,
    roles: &BTreeMap<RoleName, Role>,
    names: &[String],
) -> Option<Template> {
    let found = section.texts_like("roles", NAME_PATTERN);
    let planner = section
        .get("planner")
        .and_then(|item| item.text_like(NAME_PATTERN));
    let plan = section.get("plan").and_then(|item| item.text());
    let mode = section.keyword("mode", &[]);
    let instructions = section.get("instructions").and_then(|item| item.text());
    let check = section.get("check").and_then(|item| item.text());
    let agent_items = section.boolean("agent_items");
    section.reject_unknown_keys(&[], &[("role", "role"), ("pool", "role.NAME.pool")]);
    let fault = |of: &Located<String>, message: String, help: Option<&str>| {
        section
            .diagnostics
            .report(&of.place, message, help.map(str::to_owned));
    };
    let known = |of: &Located<String>| {
        let name = RoleName::new(&of.value).ok();
        let name = name.filter(|name| roles.contains_key(name));
        // A faulty role was reported already.
        if name.is_none() && !names.contains(&of.value) {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let message = format!(
                "there is no role {}: expected {}",
                quote(&of.value),
                one_of(&names)
            );
            fault(of, message, None);
        }
        name
    };
    let listed = found.as_ref().map_or(&[][..], |found| &found.value);
    let is_told = found.is_none() && section.get("roles").is_some();
    if !is_told && (listed.is_empty() || listed.len() > limits::PLAN_MEMBERS) {
        let message = format!(
            "the template needs 1 to {} roles, which work on its plan",
            limits::PLAN_MEMBERS
        );
        let place = found.as_ref().map_or(&section.place, |found| &found.place);
        section.diagnostics.report(place, message, None);
    }
    let all: Vec<Option<RoleName>> = listed.iter().map(&known).collect();
    let planner = planner.as_ref().map(&known);
    if let Some(of) = &plan
        && let Err(why) = check_plan_path(&of.value)
    {
        fault(of, why, None);
    }
    if let Some(of) = &instructions
        && of.value.len() > INSTRUCTIONS_BYTES
    {
        let message = format!("the instructions have more than {INSTRUCTIONS_BYTES} bytes");
        let help = "put what is long into a file of the workspace, and name that";
        fault(of, message, Some(help));
    }
    if let Some(of) = &check
        && (of.value.trim().is_empty() || of.value.len() > limits::CHAT_CHECK_BYTES)
    {
        let most = limits::CHAT_CHECK_BYTES;
        fault(
            of,
            format!("the check is a command of 1 to {most} bytes"),
            None,
        );
    }
    Some(Template {
        mode: mode.map_or(TemplateMode::ParallelAgents, |found| found.value),
        roles: all.into_iter().collect::<Option<_>>()?,
        planner: match planner {
            Some(name) => Some(name?),
            None => None,
        },
        plan: plan.map(|found| found.value),
        instructions: instructions.map(|found| found.value),
        check: check.map(|found| found.value),
        agent_items: agent_items.is_some_and(|found| found.value),
    })
}

/// Checks the path of a plan: a file relative to the workspace, ending in `.md`.
///
/// # Errors
/// Why the path is invalid.
pub fn check_plan_path(path: &str) -> Result<(), String> {
    let most = limits::CHAT_FILE_BYTES;
    let is_plain = path.split('/').all(|part| !matches!(part, "" | "." | ".."));
    if !is_plain || path.len() > most || path.chars().any(char::is_control) {
        return Err(format!(
            "the plan {} is not a path in the workspace: give a path relative to the workspace, without \"..\"",
            quote(path)
        ));
    }
    let ends_well = path.rsplit_once('.').is_some_and(|(stem, end)| {
        end.eq_ignore_ascii_case("md") && !stem.is_empty() && !stem.ends_with('/')
    });
    if ends_well {
        Ok(())
    } else {
        Err(format!(
            "the plan {} is not a Markdown file: its name must end in .md",
            quote(path)
        ))
    }
}
