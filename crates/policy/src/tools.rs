//! Judges what is no command line: files that are read and changed, URLs, tools of MCP servers.
//!
//! Owns which rules are looked at for each kind of tool. Must not know severity, nor how parts
//! become one judgement.

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

/// Columns of a foreign name in a reason.
const SHOWN_COLUMNS: usize = 80;

/// Characters of a call's arguments in what people are shown of it.
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
        // Without a path it is where the agent is, which need not be the root, and need not be known.
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

/// Where the agent is, as a path.
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

/// How a tool takes what a path names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FileAccess {
    /// What it leads to.
    Follow,
    /// The link itself if it is one, and a directory with all in it.
    Remove,
    /// Something comes to stand there, a directory with all in it perhaps.
    Replace,
}

/// What a path may mean, in every way that a tool may read it.
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

/// The same of a path that is taken in a way of its own.
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
    // For a rule that allows, what may be excepted is.
    let excepted = |area| {
        if permits {
            paths.iter().any(|p| sets.counts_as_in(p, area, walker))
        } else {
            paths.iter().all(|p| sets.is_surely_in(p, area, walker))
        }
    };
    fits && !rule.unless.is_some_and(excepted)
}

/// A URL that is fetched; `method` is what the call says of it, `None` if its table does not tell.
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

/// Methods that ask for something and change nothing (RFC 9110, 9.2.1): what a rule that allows
/// means if it names none.
const SAFE_METHODS: [&str; 2] = ["GET", "HEAD"];

fn matches_method(rule: &Rule, method: Option<&str>) -> bool {
    let permits = rule.decision == Decision::Allow;
    match method {
        // Of a table without the field every call is a plain one; but nobody says so.
        None => rule.methods.is_empty() || !permits,
        Some(method) if permits && rule.methods.is_empty() => SAFE_METHODS.contains(&method),
        // Methods are compared as they are written: `get` is another method than `GET`, which
        // servers may or may not take for the same.
        Some(method) if permits => rule.methods.iter().any(|m| m == method),
        Some(method) => {
            let same = |m: &String| m.eq_ignore_ascii_case(method.trim());
            rule.methods.is_empty() || rule.methods.iter().any(same)
        }
    }
}

/// A call of an MCP server's tool. What no rule allows is an unknown tool.
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

/// The setting for what no table knows.
pub(super) const UNKNOWN_TOOL_RULE: &str = "unknown_tool";

/// A tool that no table knows.
pub(super) fn unknown_tool_hit(policy: &Policy, tool: &UntrustedText) -> Hit {
    let tool = escape_for_display(tool.raw(), SHOWN_COLUMNS);
    Hit::from_setting(
        policy.unknown_tool,
        UNKNOWN_TOOL_RULE,
        &format!("no table says what the tool {tool} does"),
    )
}
