//! Judges what is no command line: files that are read and changed, URLs, tools of MCP servers.
//!
//! Owns which rules are looked at for each kind of tool. Must not know severity, nor how parts
//! become one judgement.

use super::command::Word;
use super::fact::{self, PathFact, Whole};
use super::judge::{Hit, PartOutcome};
use super::path::Walker;
use super::request::{Target, ToolClass};
use super::rule::{Rule, Sets};
use super::url::Url;
use super::{Policy, cwd, mcp, spelling};
use crate::model::foreign::{is_unsafe, show};
use crate::model::{Decision, Foreign};

/// Columns of a foreign name in a reason.
const SHOWN_COLUMNS: usize = 80;

/// Characters of a call's arguments in what people are shown of it.
const SHOWN_ARGUMENTS: usize = 400;

pub(super) fn read(policy: &Policy, target: &Target, walker: &Walker<'_>) -> PartOutcome {
    match target {
        Target::Path(path) => file(policy, ToolClass::Read, path, walker),
        Target::Search { below, name } => search(policy, below.as_deref(), name, walker),
        // Without a path it is where the agent is, which need not be the root, and need not be known.
        Target::Workspace => file(policy, ToolClass::Read, here(walker), walker),
        Target::Mentioned(path) => {
            let mut part = file(policy, ToolClass::Read, path, walker);
            part.unallowed = false;
            part
        }
        Target::Anywhere(pattern) => {
            let mut part = file(policy, ToolClass::Read, pattern, walker);
            part.hits.retain(|hit| hit.decision != Decision::Allow);
            part.unallowed = true;
            part
        }
    }
}

/// Where the agent is, as a path.
fn here<'w>(walker: &Walker<'w>) -> &'w str {
    let root = walker.place.workspace;
    if walker.place.cwd == Some(root) {
        root
    } else {
        "."
    }
}

/// Files below a directory whose names a pattern matches.
fn search(policy: &Policy, below: Option<&str>, name: &str, walker: &Walker<'_>) -> PartOutcome {
    let directory = below.unwrap_or_else(|| here(walker));
    let mut part = file(policy, ToolClass::Read, directory, walker);
    let paths = paths(directory, Taking::Named, walker);
    let wanted: Vec<_> = paths
        .into_iter()
        .map(|path| PathFact {
            pattern: Some(name.to_owned()),
            spec: true,
            ..path
        })
        .collect();
    let sets = policy.path_sets();
    for &place in policy.index.tool(ToolClass::Read) {
        let rule = &policy.rules[place];
        if rule.decision != Decision::Allow && file_fits(rule, &sets, &wanted, walker) {
            part.add(Hit::rule(rule));
        }
    }
    if let Some(last) = part.words.last_mut() {
        *last = Foreign::new(format!("{directory} {name}"));
    }
    part
}

/// How a tool takes what a path names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Taking {
    /// What it leads to.
    Named,
    /// The link itself if it is one, and a directory with all in it.
    Away,
    /// Something comes to stand there, a directory with all in it perhaps.
    Put,
}

/// What a path may mean, in every way that a tool may read it.
fn paths(path: &str, taking: Taking, walker: &Walker<'_>) -> Vec<PathFact> {
    let bases = cwd::start(walker, walker.place.cwd);
    let mut paths = Vec::new();
    for reading in spelling::readings(path, false) {
        let word = Word {
            tilde: cwd::is_home(&reading),
            text: reading,
            ..Word::default()
        };
        match taking {
            Taking::Named | Taking::Put => fact::facts(walker, &bases, &word, 0, &mut paths),
            Taking::Away => fact::facts_of_name(walker, &bases, &word, &mut paths),
        }
    }
    if taking != Taking::Named {
        for path in &mut paths {
            path.whole = Whole::Taken;
        }
    }
    paths
}

/// One path of a tool that reads, writes, edits, deletes or moves files.
pub(super) fn file(
    policy: &Policy,
    tool: ToolClass,
    path: &str,
    walker: &Walker<'_>,
) -> PartOutcome {
    let taking = match tool {
        ToolClass::Delete => Taking::Away,
        ToolClass::Move => Taking::Put,
        _ => Taking::Named,
    };
    taken(policy, tool, path, taking, walker)
}

/// The same of a path that is taken in a way of its own.
pub(super) fn taken(
    policy: &Policy,
    tool: ToolClass,
    path: &str,
    taking: Taking,
    walker: &Walker<'_>,
) -> PartOutcome {
    let mut part = PartOutcome {
        words: vec![Foreign::new(path)],
        unallowed: true,
        ..PartOutcome::default()
    };
    if path.chars().any(is_unsafe) {
        let why = "a control or invisible character is in the path";
        part.add(Hit::setting(Decision::Ask, "limits.characters", why));
    }
    let paths = paths(path, taking, walker);
    let sets = policy.path_sets();
    for &place in policy.index.tool(tool) {
        let rule = &policy.rules[place];
        if walker.now.counts(rule) && file_fits(rule, &sets, &paths, walker) {
            part.unallowed &= rule.decision != Decision::Allow;
            part.add(Hit::rule(rule));
        }
    }
    part
}

fn file_fits(rule: &Rule, sets: &Sets<'_>, paths: &[PathFact], walker: &Walker<'_>) -> bool {
    let permits = rule.decision == Decision::Allow;
    let fits = match rule.paths {
        None => true,
        Some(area) if permits => paths.iter().all(|p| sets.holds(p, area, walker)),
        Some(area) => paths.iter().any(|p| sets.touches(p, area, walker)),
    };
    // For a rule that allows, what may be excepted is.
    let excepted = |area| {
        if permits {
            paths.iter().any(|p| sets.touches(p, area, walker))
        } else {
            paths.iter().all(|p| sets.holds(p, area, walker))
        }
    };
    fits && !rule.unless.is_some_and(excepted)
}

/// A URL that is fetched; `method` is what the call says of it, `None` if its table does not tell.
pub(super) fn fetch(
    policy: &Policy,
    text: &str,
    method: Option<&str>,
    walker: &Walker<'_>,
) -> PartOutcome {
    let mut words = vec![Foreign::new(text)];
    words.extend(method.filter(|m| *m != "GET").map(Foreign::from));
    let mut part = PartOutcome {
        words,
        unallowed: true,
        ..PartOutcome::default()
    };
    let url = Url::parse(text);
    if let Err(what) = &url {
        let reason = format!("the URL has {what}");
        part.add(Hit::setting(Decision::Deny, "malformed_url", &reason));
    }
    for &place in policy.index.tool(ToolClass::Fetch) {
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
        if fits && walker.now.counts(rule) && method_fits(rule, method) {
            part.unallowed &= !permits;
            part.add(Hit::rule(rule));
        }
    }
    part
}

/// Methods that ask for something and change nothing (RFC 9110, 9.2.1): what a rule that allows
/// means if it names none.
const SAFE: [&str; 2] = ["GET", "HEAD"];

fn method_fits(rule: &Rule, method: Option<&str>) -> bool {
    let permits = rule.decision == Decision::Allow;
    match method {
        // Of a table without the field every call is a plain one; but nobody says so.
        None => rule.methods.is_empty() || !permits,
        Some(method) if permits && rule.methods.is_empty() => SAFE.contains(&method),
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
pub(super) fn mcp(policy: &Policy, call: mcp::Call<'_>, walker: &Walker<'_>) -> PartOutcome {
    let name = format!("{}/{}", call.server, call.name);
    let arguments: String = call
        .arguments
        .to_string()
        .chars()
        .take(SHOWN_ARGUMENTS)
        .collect();
    let mut part = PartOutcome {
        words: vec![Foreign::new(name.as_str()), Foreign::new(arguments)],
        ..PartOutcome::default()
    };
    let bases = cwd::start(walker, walker.place.cwd);
    let sets = policy.path_sets();
    let ground = mcp::Ground {
        walker,
        sets: &sets,
        bases: &bases,
    };
    let mut allowed = false;
    for &place in policy.index.tool(ToolClass::Mcp) {
        let rule = &policy.rules[place];
        let permits = rule.decision == Decision::Allow;
        if !walker.now.counts(rule) {
            continue;
        }
        let touches = |area| mcp::any_path(call.arguments, area, &ground);
        if rule.mcp.applies(call, permits, &ground) && rule.any_path.is_none_or(touches) {
            allowed |= permits;
            part.add(Hit::rule(rule));
        }
    }
    if !allowed {
        part.add(unknown(policy, &Foreign::new(name.as_str())));
    }
    part
}

/// The setting for what no table knows.
pub(super) const UNKNOWN: &str = "unknown_tool";

/// A tool that no table knows.
pub(super) fn unknown(policy: &Policy, tool: &Foreign) -> Hit {
    let tool = show(tool.raw(), SHOWN_COLUMNS);
    Hit::setting(
        policy.unknown_tool,
        UNKNOWN,
        &format!("no table says what the tool {tool} does"),
    )
}
