//! Evaluates requests other than command lines: files that are read and changed, URLs, tools of MCP
//! servers.
//!
//! Owns which rules are checked for each kind of tool. Must not know severity, nor how parts become
//! one decision.

use super::command::Word;
use super::evaluate::{Hit, PartOutcome};
use super::fact::{self, PathFact, TreeEffect};
use super::path::Walker;
use super::request::{ReadTarget, ToolClass};
use super::rule::{Rule, Sets};
use super::url::Url;
use super::{Policy, cwd, mcp, spelling};
use marshal_model::untrusted::{escape_for_display, is_unsafe};
use marshal_model::{Decision, UntrustedText};

/// Maximum columns of a foreign name in a reason.
const SHOWN_COLUMNS: usize = 80;

/// Maximum characters of a call's arguments that are shown to people.
const SHOWN_ARGUMENTS: usize = 400;

pub(super) fn evaluate_read(
    policy: &Policy,
    target: &ReadTarget,
    walker: &Walker<'_>,
) -> PartOutcome {
    match target {
        ReadTarget::Path(path) => evaluate_file(policy, ToolClass::Read, path, walker),
        ReadTarget::Search { below, name } => {
            evaluate_search(policy, below.as_deref(), name, walker)
        }
        // Without a path it is the agent's current directory, which may be unknown or not the root.
        ReadTarget::Workspace => {
            evaluate_file(policy, ToolClass::Read, current_directory(walker), walker)
        }
        ReadTarget::Mentioned(path) => {
            let mut part = evaluate_file(policy, ToolClass::Read, path, walker);
            part.unallowed = false;
            part
        }
        ReadTarget::Anywhere(pattern) => {
            let mut part = evaluate_file(policy, ToolClass::Read, pattern, walker);
            part.hits.retain(|hit| hit.decision != Decision::Allow);
            part.unallowed = true;
            part
        }
    }
}

/// The agent's current directory, as a path.
fn current_directory<'w>(walker: &Walker<'w>) -> &'w str {
    let root = walker.fs.workspace;
    if walker.fs.cwd == Some(root) {
        root
    } else {
        "."
    }
}

/// Files below a directory whose names a pattern matches.
fn evaluate_search(
    policy: &Policy,
    below: Option<&str>,
    name: &str,
    walker: &Walker<'_>,
) -> PartOutcome {
    let directory = below.unwrap_or_else(|| current_directory(walker));
    let mut part = evaluate_file(policy, ToolClass::Read, directory, walker);
    let paths = path_facts(directory, FileAccess::Follow, walker);
    let wanted: Vec<_> = paths
        .into_iter()
        .map(|path| PathFact {
            pattern: Some(name.to_owned()),
            is_pathspec: true,
            ..path
        })
        .collect();
    let sets = policy.path_sets();
    for &place in policy.index.rules_for_tool(ToolClass::Read) {
        let rule = &policy.rules[place];
        if rule.decision != Decision::Allow && matches_file(rule, &sets, &wanted, walker) {
            part.add(Hit::from_rule(rule));
        }
    }
    if let Some(last) = part.words.last_mut() {
        *last = UntrustedText::new(format!("{directory} {name}"));
    }
    part
}

/// How a tool uses a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FileAccess {
    /// It follows links.
    Follow,
    /// It removes the link itself, or a directory with everything in it.
    Remove,
    /// It places something there, perhaps a directory with everything in it.
    Replace,
}

/// The facts of a path, for every way in which a tool may read it.
fn path_facts(path: &str, taking: FileAccess, walker: &Walker<'_>) -> Vec<PathFact> {
    let bases = cwd::resolve_cwd(walker, walker.fs.cwd);
    let mut paths = Vec::new();
    for reading in spelling::readings(path, false) {
        let word = Word {
            tilde: cwd::starts_with_home(&reading),
            text: reading,
            ..Word::default()
        };
        match taking {
            FileAccess::Follow | FileAccess::Replace => {
                fact::collect_facts(walker, &bases, &word, 0, &mut paths);
            }
            FileAccess::Remove => fact::collect_facts_of_name(walker, &bases, &word, &mut paths),
        }
    }
    if taking != FileAccess::Follow {
        for path in &mut paths {
            path.tree_effect = TreeEffect::RemoveAll;
        }
    }
    paths
}

/// One path of a tool that reads, writes, edits, deletes or moves files.
pub(super) fn evaluate_file(
    policy: &Policy,
    tool: ToolClass,
    path: &str,
    walker: &Walker<'_>,
) -> PartOutcome {
    let taking = match tool {
        ToolClass::Delete => FileAccess::Remove,
        ToolClass::Move => FileAccess::Replace,
        _ => FileAccess::Follow,
    };
    evaluate_file_access(policy, tool, path, taking, walker)
}

/// The same for a path that is used in another way.
pub(super) fn evaluate_file_access(
    policy: &Policy,
    tool: ToolClass,
    path: &str,
    taking: FileAccess,
    walker: &Walker<'_>,
) -> PartOutcome {
    let mut part = PartOutcome {
        words: vec![UntrustedText::new(path)],
        unallowed: true,
        ..PartOutcome::default()
    };
    if path.chars().any(is_unsafe) {
        let why = "a control or invisible character is in the path";
        part.add(Hit::from_setting(Decision::Ask, "limits.characters", why));
    }
    let paths = path_facts(path, taking, walker);
    let sets = policy.path_sets();
    for &place in policy.index.rules_for_tool(tool) {
        let rule = &policy.rules[place];
        if walker.active_rules.is_active(rule) && matches_file(rule, &sets, &paths, walker) {
            part.unallowed &= rule.decision != Decision::Allow;
            part.add(Hit::from_rule(rule));
        }
    }
    part
}

fn matches_file(rule: &Rule, sets: &Sets<'_>, paths: &[PathFact], walker: &Walker<'_>) -> bool {
    let permits = rule.decision == Decision::Allow;
    let fits = match rule.paths {
        None => true,
        Some(area) if permits => paths.iter().all(|p| sets.is_surely_in(p, area, walker)),
        Some(area) => paths.iter().any(|p| sets.counts_as_in(p, area, walker)),
    };
    // For a rule that allows, an exception counts where it may apply.
    let excepted = |area| {
        if permits {
            paths.iter().any(|p| sets.counts_as_in(p, area, walker))
        } else {
            paths.iter().all(|p| sets.is_surely_in(p, area, walker))
        }
    };
    fits && !rule.unless.is_some_and(excepted)
}

/// A URL that is fetched; `method` is the call's method, `None` if its table has no field for one.
pub(super) fn evaluate_fetch(
    policy: &Policy,
    text: &str,
    method: Option<&str>,
    walker: &Walker<'_>,
) -> PartOutcome {
    let mut words = vec![UntrustedText::new(text)];
    words.extend(method.filter(|m| *m != "GET").map(UntrustedText::from));
    let mut part = PartOutcome {
        words,
        unallowed: true,
        ..PartOutcome::default()
    };
    let url = Url::parse(text);
    if let Err(what) = &url {
        let reason = format!("the URL has {what}");
        part.add(Hit::from_setting(Decision::Deny, "malformed_url", &reason));
    }
    for &place in policy.index.rules_for_tool(ToolClass::Fetch) {
        let rule = &policy.rules[place];
        let permits = rule.decision == Decision::Allow;
        let whole = rule.url.is_empty() && rule.hosts.is_empty();
        let fits = match &url {
            Ok(url) => {
                whole
                    || rule.url.iter().any(|p| p.matches(url))
                    || rule.hosts.iter().any(|h| h.matches(url, permits))
            }
            Err(_) => whole && !permits,
        };
        if fits && walker.active_rules.is_active(rule) && matches_method(rule, method) {
            part.unallowed &= !permits;
            part.add(Hit::from_rule(rule));
        }
    }
    part
}

/// Methods that only read (RFC 9110, 9.2.1): those that an allowing rule means if it names none.
const SAFE_METHODS: [&str; 2] = ["GET", "HEAD"];

fn matches_method(rule: &Rule, method: Option<&str>) -> bool {
    let permits = rule.decision == Decision::Allow;
    match method {
        // In a table without the field every call is a plain one, but that is not certain.
        None => rule.methods.is_empty() || !permits,
        Some(method) if permits && rule.methods.is_empty() => SAFE_METHODS.contains(&method),
        // Methods are compared case-sensitively: `get` and `GET` are different methods, which
        // servers may or may not treat alike.
        Some(method) if permits => rule.methods.iter().any(|m| m == method),
        Some(method) => {
            let same = |m: &String| m.eq_ignore_ascii_case(method.trim());
            rule.methods.is_empty() || rule.methods.iter().any(same)
        }
    }
}

/// A call of an MCP server's tool. If no rule applies, it is an unknown tool.
pub(super) fn evaluate_mcp(
    policy: &Policy,
    call: mcp::ToolCall<'_>,
    walker: &Walker<'_>,
) -> PartOutcome {
    let name = format!("{}/{}", call.server, call.name);
    let arguments: String = call
        .arguments
        .to_string()
        .chars()
        .take(SHOWN_ARGUMENTS)
        .collect();
    let mut part = PartOutcome {
        words: vec![
            UntrustedText::new(name.as_str()),
            UntrustedText::new(arguments),
        ],
        ..PartOutcome::default()
    };
    let bases = cwd::resolve_cwd(walker, walker.fs.cwd);
    let sets = policy.path_sets();
    let ground = mcp::ArgContext {
        walker,
        sets: &sets,
        bases: &bases,
    };
    let mut allowed = false;
    for &place in policy.index.rules_for_tool(ToolClass::Mcp) {
        let rule = &policy.rules[place];
        let permits = rule.decision == Decision::Allow;
        if !walker.active_rules.is_active(rule) {
            continue;
        }
        let touches = |area| mcp::any_path(call.arguments, area, &ground);
        if rule.mcp.applies(call, permits, &ground) && rule.any_path.is_none_or(touches) {
            allowed |= permits;
            part.add(Hit::from_rule(rule));
        }
    }
    if !allowed {
        part.add(unknown_tool_hit(policy, &UntrustedText::new(name.as_str())));
    }
    part
}

/// The setting for tools in no table.
pub(super) const UNKNOWN_TOOL_RULE: &str = "unknown_tool";

/// The hit for a tool in no table.
pub(super) fn unknown_tool_hit(policy: &Policy, tool: &UntrustedText) -> Hit {
    let tool = escape_for_display(tool.raw(), SHOWN_COLUMNS);
    Hit::from_setting(
        policy.unknown_tool,
        UNKNOWN_TOOL_RULE,
        &format!("no extractor table describes the tool {tool}"),
    )
}
