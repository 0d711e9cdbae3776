//! Which condition is allowed with which tool.
//!
//! Rejects conditions that a rule's tools can never meet: they would look like a limit without
//! being one. Must not know what a condition means.

use crate::document::RuleText;
use crate::error::RuleError;
use crate::request::ToolClass;
use marshal_model::Decision;

const SHELL: &[ToolClass] = &[ToolClass::Shell];
const FILES: &[ToolClass] = &[
    ToolClass::Read,
    ToolClass::Write,
    ToolClass::Edit,
    ToolClass::Delete,
    ToolClass::Move,
];
const FETCH: &[ToolClass] = &[ToolClass::Fetch];
const MCP: &[ToolClass] = &[ToolClass::Mcp];
const PATHS: &[ToolClass] = &[ToolClass::Shell, ToolClass::Mcp];
const EXCEPT: &[ToolClass] = &[
    ToolClass::Shell,
    ToolClass::Read,
    ToolClass::Write,
    ToolClass::Edit,
    ToolClass::Delete,
    ToolClass::Move,
];

/// Checks the conditions of one rule against its tools and its decision.
pub(super) fn check(
    text: &RuleText,
    tools: &[ToolClass],
    decision: Decision,
) -> Result<(), RuleError> {
    let conditions = list_conditions(text);
    for (key, is_given, item) in &conditions {
        if *is_given && !tools.iter().all(|tool| item.contains(tool)) {
            let words: Vec<_> = item.iter().map(|t| format!("`{}`", t.as_str())).collect();
            return Err(RuleError::WrongTool(key, words.join(", ")));
        }
    }
    let only_for = |key, rules| Err(RuleError::OnlyFor(key, rules));
    let beside = |alone: &str| conditions.iter().any(|(key, is, _)| *is && *key != alone);
    if text.exact.is_some() && beside("exact") {
        return Err(RuleError::NotAlone("exact", "names whole commands"));
    }
    if text.pipe.is_some() && beside("pipe") {
        return Err(RuleError::NotAlone("pipe", "is about two programs"));
    }
    if text.unless.as_ref().is_some_and(|u| u.paths.is_none()) {
        return Err(RuleError::EmptyUnless);
    }
    if text.program.is_some() && (text.argv.is_some() || decision != Decision::Allow) {
        return only_for("program", "rules that allow, without `argv`");
    }
    if text.harmless_script && decision != Decision::Allow {
        return only_for("harmless_script", "rules that allow");
    }
    if text.not_programs.is_some() && text.argv.is_some() {
        return Err(RuleError::NotProgramsWithArgv);
    }
    if text.any_command && (conditions.iter().any(|(_, is, _)| *is) || tools != SHELL) {
        return only_for(
            "any_command",
            "the tool `shell`, without conditions on the command",
        );
    }
    if decision != Decision::Allow {
        return if text.any_command {
            only_for("any_command", "rules that allow")
        } else {
            Ok(())
        };
    }
    if text.pipe.is_some() {
        return Err(RuleError::CanOnly("`pipe`", "deny or ask"));
    }
    let permits = |tool: ToolClass| tools.contains(&tool);
    if permits(ToolClass::Shell)
        && text.argv.is_none()
        && text.exact.is_none()
        && text.program.is_none()
        && !text.any_command
    {
        return Err(RuleError::Unlimited("shell", "`argv` or `exact`"));
    }
    if permits(ToolClass::Mcp) && text.server.is_none() {
        return Err(RuleError::Unlimited("mcp", "`server`"));
    }
    if permits(ToolClass::Mcp) && text.any_path.is_some() {
        return Err(RuleError::AnyPathAllowsMcp);
    }
    Ok(())
}

/// Every condition: its key, whether the rule has it, and the tools that it applies to.
fn list_conditions(text: &RuleText) -> Vec<(&'static str, bool, &'static [ToolClass])> {
    vec![
        ("argv", text.argv.is_some(), SHELL),
        ("not_programs", text.not_programs.is_some(), SHELL),
        ("exact", text.exact.is_some(), SHELL),
        ("program", text.program.is_some(), SHELL),
        ("harmless_script", text.harmless_script, SHELL),
        ("globals", text.globals.is_some(), SHELL),
        ("paths", text.paths.is_some(), SHELL),
        ("any_path", text.any_path.is_some(), PATHS),
        ("not_flags", text.not_flags.is_some(), SHELL),
        ("any_flags", text.any_flags.is_some(), SHELL),
        ("all_flags", text.all_flags.is_some(), SHELL),
        ("only_flags", text.only_flags.is_some(), SHELL),
        ("not_words", text.not_words.is_some(), SHELL),
        ("any_word", text.any_word.is_some(), SHELL),
        ("min_operands", text.min_operands.is_some(), SHELL),
        ("max_operands", text.max_operands.is_some(), SHELL),
        ("operands_need", text.operands_need.is_some(), SHELL),
        ("pipe", text.pipe.is_some(), SHELL),
        ("unless", text.unless.is_some(), EXCEPT),
        ("path", text.path.is_some(), FILES),
        ("url", text.url.is_some(), FETCH),
        ("hosts", text.hosts.is_some(), FETCH),
        ("methods", text.methods.is_some(), FETCH),
        ("server", text.server.is_some(), MCP),
        ("name", text.name.is_some(), MCP),
        ("args", text.args.is_some(), MCP),
    ]
}
