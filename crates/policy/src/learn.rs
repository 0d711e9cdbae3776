//! Proposes rules that would have allowed a request, the narrowest first.
//!
//! Owns the form of a proposal. Callers find out its effect by evaluating requests with it. Must
//! not read files.

use std::fmt::Write as _;

use super::lint::{EXEC_SUBCOMMANDS, FAMILIES, RUNNERS};
use super::request::{Part, PolicyDecision, ReadTarget, Request};
use marshal_model::{Decision, UntrustedText};

/// How much a proposal allows beyond the one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Width {
    /// Only this command, file or address.
    Exact,
    /// The same program and subcommand, inside the workspace, with no other flags; the same
    /// directory; the same host.
    Near,
    /// The same program and subcommand, inside the workspace.
    Prefix,
}

impl Width {
    /// The width's name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Near => "near",
            Self::Prefix => "prefix",
        }
    }
}

/// A rule that can be added to a policy.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Proposal {
    /// How much it allows.
    pub width: Width,
    /// The program, path or URL that it is about, to find requests that it may affect.
    pub about: String,
    /// Its conditions as TOML, without id and decision.
    conditions: String,
    /// A pattern of paths, for a rule about files.
    pattern: Option<String>,
}

impl Proposal {
    /// The whole rule, as it is written into a policy; `id` consists of letters, digits and `-`.
    #[must_use]
    pub fn to_toml(&self, id: &str) -> String {
        let mut text = String::new();
        let _ = write!(
            text,
            "[[rule]]\nid = \"{id}\"\ndecision = \"allow\"\n{}",
            self.conditions
        );
        if let Some(pattern) = &self.pattern {
            let _ = write!(
                text,
                "path = \"{id}\"\n\n[paths]\n{id} = [{}]\n",
                quote_toml(pattern)
            );
        }
        text
    }
}

/// Several proposals as the rules of one policy, with their ids.
#[must_use]
pub fn render_rules<'p>(proposals: impl Iterator<Item = (&'p Proposal, String)>) -> String {
    let (mut rules, mut sets) = (String::new(), String::from("[paths]\n"));
    for (proposal, id) in proposals {
        let text = proposal.to_toml(&id);
        let (rule, set) = text.split_once("\n[paths]\n").unwrap_or((&text, ""));
        rules.push_str(rule);
        rules.push('\n');
        sets.push_str(set);
    }
    rules + &sets
}

/// Rules that might have allowed the parts of a request that no rule allows, the narrowest first.
/// Empty if a rule requires approval or denies, or if the request's effect is not plain.
#[must_use]
pub fn propose_rules(request: &Request, judged: &PolicyDecision, workspace: &str) -> Vec<Proposal> {
    let open = judged
        .facts
        .parts
        .iter()
        .filter(|p| p.decision != Decision::Allow);
    let open: Vec<&Part> = open.collect();
    let is_open = |part: &&Part| part.rules.is_empty();
    if judged.facts.not_plain.is_some() || open.is_empty() || !open.iter().all(is_open) {
        return Vec::new();
    }
    let mut found = Vec::new();
    match request {
        Request::Shell { .. } => {
            for part in &open {
                propose_command(part, &mut found);
            }
        }
        Request::Read { targets } => {
            for target in targets {
                if let ReadTarget::Path(path) = target {
                    propose_file("read", path, workspace, &mut found);
                }
            }
        }
        Request::Write { paths } => {
            for path in paths {
                propose_file("write", path, workspace, &mut found);
            }
        }
        Request::Edit { paths } => {
            for path in paths {
                propose_file("edit", path, workspace, &mut found);
            }
        }
        Request::Delete { paths } => {
            for path in paths {
                propose_file("delete", path, workspace, &mut found);
            }
        }
        Request::Fetch { url, .. } => propose_url(url, &mut found),
        _ => {}
    }
    found.sort();
    found.dedup();
    found
}

fn propose_command(part: &Part, found: &mut Vec<Proposal>) {
    let words: Vec<&str> = part.words.iter().map(UntrustedText::raw).collect();
    let Some((program, rest)) = words.split_first() else {
        return;
    };
    let shell: Vec<String> = words.iter().map(|word| quote_shell_word(word)).collect();
    let mut add = |width, conditions: String| {
        found.push(Proposal {
            width,
            about: (*program).to_owned(),
            conditions,
            pattern: None,
        });
    };
    let exact = quote_toml(&shell.join(" "));
    add(
        Width::Exact,
        format!("tool = \"shell\"\nexact = [{exact}]\n"),
    );
    let is_family = FAMILIES.contains(program);
    let is_word = |word: &&&str| {
        word.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') && !word.starts_with('-')
    };
    let sub = rest.first().filter(|_| is_family).filter(is_word);
    let running = EXEC_SUBCOMMANDS.iter().find(|(name, _)| name == program);
    let runs = running.is_some_and(|(_, subs)| sub.is_some_and(|sub| subs.contains(sub)));
    if RUNNERS.contains(program) || runs || is_family && sub.is_none() || program.contains('/') {
        return; // Whatever is beside this one would run anything.
    }
    let argv: Vec<String> = [Some(program), sub]
        .into_iter()
        .flatten()
        .map(|w| quote_toml(w))
        .collect();
    let prefix = format!(
        "tool = \"shell\"\nargv = [{}]\npaths = \"inside\"\n",
        argv.join(", ")
    );
    let mut flags: Vec<String> = rest
        .iter()
        .filter(|word| word.starts_with('-') && word.len() > 1 && **word != "--")
        .map(|word| quote_toml(word.split('=').next().unwrap_or(word)))
        .collect();
    flags.sort();
    flags.dedup();
    add(
        Width::Near,
        format!("{prefix}only_flags = [{}]\n", flags.join(", ")),
    );
    add(Width::Prefix, prefix);
}

fn propose_file(tool: &str, path: &str, workspace: &str, found: &mut Vec<Proposal>) {
    let is_plain = |path: &str| {
        !path.is_empty()
            && !path.contains(['*', '?', '[', ']', '{', '}', '\\', '~'])
            && !path.split('/').any(|p| matches!(p, "." | ".."))
    };
    let inside = path
        .strip_prefix(workspace)
        .and_then(|rest| rest.strip_prefix('/'));
    let place = match inside {
        Some(rest) => format!("@/{rest}"),
        None if path.starts_with('/') => path.to_owned(),
        None => format!("@/{path}"),
    };
    if !is_plain(path) {
        return;
    }
    let mut add = |width, pattern: String| {
        found.push(Proposal {
            width,
            about: path.to_owned(),
            conditions: format!("tool = \"{tool}\"\n"),
            pattern: Some(pattern),
        });
    };
    if let Some((directory, _)) = place.rsplit_once('/').filter(|(dir, _)| dir.len() > 1) {
        add(Width::Near, format!("{directory}/**"));
    }
    add(Width::Exact, place);
}

fn propose_url(url: &str, found: &mut Vec<Proposal>) {
    let mut add = |width, pattern: &str| {
        found.push(Proposal {
            width,
            about: url.to_owned(),
            conditions: format!("tool = \"fetch\"\nurl = {}\n", quote_toml(pattern)),
            pattern: None,
        });
    };
    add(Width::Exact, url);
    if let Some((scheme, rest)) = url.split_once("://") {
        let host = rest.split('/').next().unwrap_or_default();
        add(Width::Near, &format!("{scheme}://{host}/**"));
    }
}

/// A word, quoted for a plain command.
fn quote_shell_word(word: &str) -> String {
    let is_bare = |b: u8| b.is_ascii_alphanumeric() || b"_@%+=:,./-".contains(&b);
    if !word.is_empty() && word.bytes().all(is_bare) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

/// A TOML string.
fn quote_toml(text: &str) -> String {
    toml::Value::from(text).to_string()
}
