//! Compares paths of which the shell computes more than the last name: computed parts and wildcards
//! in directories, and unknown directories.
//!
//! Owns the comparison of such a shape with whole patterns. In doubt it matches, but a shape must
//! spell a letter or a digit of what a pattern names: `$x/y` may be anything and does not count as
//! a secret; `$x/.aws/y` does. Must not know words or links.

use super::{Token, tokenize, tokenize_with_classes};
use crate::path::FsContext;

/// In a shape, an unknown text, which may be empty or contain slashes.
pub(crate) const ANYTHING: char = '\u{1}';

/// Where a pattern begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Root {
    Workspace,
    Home,
    Anywhere,
}

/// One step of a pattern, or of a shape.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    /// Characters as in a name.
    Name(Token),
    /// A character of a root, which a shape need not spell.
    Root(char),
    /// `**/` at the pattern's beginning: nothing, or names of directories.
    AnyDirectories,
    /// The same after a character.
    InDirectories,
    /// Any text.
    Anything,
}

/// The patterns that name a directory, or a file in a named one.
#[derive(Debug, Default)]
pub(super) struct ShapePatterns(Vec<(Root, Vec<Step>)>);

impl ShapePatterns {
    pub(super) fn from_patterns(patterns: &[String], folded: bool) -> Self {
        let mut out = Vec::new();
        for pattern in patterns {
            let (root, rest) = if let Some(rest) = pattern.strip_prefix("@/") {
                (Root::Workspace, rest)
            } else if let Some(rest) = pattern.strip_prefix("~/") {
                (Root::Home, rest)
            } else {
                (Root::Anywhere, pattern.as_str())
            };
            // A single name at any depth is compared by the last name alone.
            let name = rest.strip_prefix("**/").unwrap_or(rest);
            if name.contains('/') || !rest.starts_with("**/") {
                let rest = if folded {
                    rest.to_lowercase()
                } else {
                    rest.to_owned()
                };
                let itself = rest.strip_suffix("/**");
                let forms = itself.into_iter().chain([rest.as_str()]);
                let named = itself
                    .unwrap_or(&rest)
                    .rfind('/')
                    .map_or(0, |slash| slash + 1);
                for form in forms {
                    // Outside of the workspace a parent directory says little: `/etc/$x` does not
                    // count as `/etc/shadow`.
                    let above = if root == Root::Workspace { 0 } else { named };
                    let mut all = pattern_steps(&form[..above]);
                    for step in &mut all {
                        if let Step::Name(Token::Is(c)) = step {
                            *step = Step::Root(*c);
                        }
                    }
                    all.extend(pattern_steps(&form[above..]));
                    out.push((root, all));
                }
            }
        }
        out.retain(|(_, steps)| steps.iter().any(is_named));
        Self(out)
    }

    /// Whether a shape's path may be in the set. `shape` is absolute or begins with [`ANYTHING`],
    /// and has the set's case.
    pub(super) fn may_contain(&self, shape: &str, place: &FsContext<'_>, folded: bool) -> bool {
        if self.0.is_empty() {
            return false;
        }
        let shape = shape_steps(shape);
        let root = |path: &str| -> Vec<Step> {
            let path = path.trim_end_matches('/');
            let path = if folded {
                path.to_lowercase()
            } else {
                path.to_owned()
            };
            path.chars().chain(['/']).map(Step::Root).collect()
        };
        let roots = [root(place.workspace), root(place.home), Vec::new()];
        self.0.iter().any(|(from, steps)| {
            let root = &roots[*from as usize];
            have_common_path(&shape, root, steps)
        })
    }
}

fn is_named(step: &Step) -> bool {
    matches!(step, Step::Name(Token::Is(c)) if c.is_alphanumeric())
}

/// The steps of a pattern below its root.
fn pattern_steps(pattern: &str) -> Vec<Step> {
    let mut out = Vec::new();
    let mut first = true;
    let mut names = pattern.split('/').peekable();
    while let Some(name) = names.next() {
        if !std::mem::take(&mut first) && out.last() != Some(&Step::InDirectories) {
            out.push(Step::Name(Token::Is('/')));
        }
        if name == "**" {
            if names.peek().is_none() {
                out.push(Step::Anything);
            } else {
                out.extend([Step::AnyDirectories, Step::InDirectories]);
            }
        } else if name.matches('{').count() == name.matches('}').count() {
            let text = name.replace(['{', '}'], "*");
            out.extend(tokenize(&text).into_iter().map(Step::Name));
        } else {
            // Alternatives that contain a slash.
            out.push(Step::Anything);
            break;
        }
    }
    out
}

fn shape_steps(shape: &str) -> Vec<Step> {
    let mut out = Vec::new();
    for (at, known) in shape.split(ANYTHING).enumerate() {
        if at > 0 {
            out.push(Step::Anything);
        }
        for (at, name) in known.split('/').enumerate() {
            if at > 0 {
                out.push(Step::Name(Token::Is('/')));
            }
            out.extend(tokenize_with_classes(name).into_iter().map(Step::Name));
        }
    }
    out
}

/// The positions of a pattern that may be reached: without, and with a character that both spell.
type Row = Vec<[bool; 2]>;

/// Whether a shape and a pattern have a path in common.
fn have_common_path(shape: &[Step], root: &[Step], rest: &[Step]) -> bool {
    let length = root.len() + rest.len();
    let step = |at: usize| root.get(at).unwrap_or_else(|| &rest[at - root.len()]);
    let mut row: Row = vec![[false; 2]; length + 1];
    row[0][0] = true;
    skip_optional_steps(&mut row, &step);
    let mut lowest = 0;
    for of_shape in shape {
        let mut next: Row = vec![[false; 2]; length + 1];
        let wide = match of_shape {
            Step::Anything => true,
            Step::Name(Token::Any) => {
                // No character, or more.
                next.clone_from(&row);
                true
            }
            _ => false,
        };
        if *of_shape == Step::Anything {
            let mut reached = [false; 2];
            for (at, place) in row.iter().enumerate() {
                reached = [reached[0] || place[0], reached[1] || place[1]];
                next[at] = reached;
            }
        } else {
            for at in lowest..length {
                for spelled in 0..2 {
                    let here = if wide {
                        next[at][spelled]
                    } else {
                        row[at][spelled]
                    };
                    if here {
                        match_character(of_shape, step(at), at, spelled, &mut next);
                    }
                }
                if wide {
                    skip_optional_step(&mut next, at, step(at));
                }
            }
            skip_optional_steps(&mut next, &step);
        }
        row = next;
        match row.iter().position(|place| place[0] || place[1]) {
            Some(first) => lowest = first,
            None => return false,
        }
    }
    row[length][1]
}

/// Skips steps that may match the empty text.
fn skip_optional_steps<'s>(row: &mut Row, step: &impl Fn(usize) -> &'s Step) {
    for at in 0..row.len() - 1 {
        skip_optional_step(row, at, step(at));
    }
}

fn skip_optional_step(row: &mut Row, at: usize, step: &Step) {
    let to = match step {
        Step::Name(Token::Any) | Step::Anything => at + 1,
        Step::AnyDirectories => at + 2,
        _ => return,
    };
    let [bare, spelled] = row[at];
    row[to][0] |= bare;
    row[to][1] |= spelled;
}

/// One character of a shape, or one that its wildcard matches, at a position of a pattern.
fn match_character(of_shape: &Step, of_pattern: &Step, at: usize, spelled: usize, next: &mut Row) {
    let Step::Name(one) = of_shape else {
        return;
    };
    let is_slash = *one == Token::Is('/');
    match of_pattern {
        Step::Anything | Step::InDirectories => next[at][spelled] = true,
        Step::AnyDirectories => next[at + 1][spelled] = true,
        Step::Root(c) => {
            if token_matches(one, *c) {
                next[at + 1][spelled] = true;
            }
        }
        Step::Name(Token::Is(c)) => {
            if token_matches(one, *c) {
                let both = matches!(one, Token::Is(_) | Token::Set(_)) && c.is_alphanumeric();
                next[at + 1][usize::from(spelled == 1 || both)] = true;
            }
        }
        Step::Name(Token::Any) if !is_slash => next[at][spelled] = true,
        Step::Name(Token::One | Token::Set(_)) if !is_slash => next[at + 1][spelled] = true,
        Step::Name(_) => {}
    }
    if is_slash {
        match of_pattern {
            Step::InDirectories => next[at + 1][spelled] = true,
            Step::AnyDirectories => next[at + 2][spelled] = true,
            _ => {}
        }
    }
}

/// Whether a character of a shape may be this one.
fn token_matches(one: &Token, c: char) -> bool {
    match one {
        Token::Is(own) | Token::Common(own) => *own == c,
        Token::Set(set) => set.contains(&c),
        Token::One | Token::Any => c != '/',
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::NoLinks;

    #[track_caller]
    fn check(patterns: &[&str], shape: &str, expect: bool) {
        let patterns: Vec<String> = patterns.iter().map(|&p| p.to_owned()).collect();
        let place = FsContext {
            workspace: "/repo/proj",
            home: "/home/agent",
            cwd: None,
            resolver: &NoLinks,
        };
        let shape = shape.replace('$', &ANYTHING.to_string());
        let got = ShapePatterns::from_patterns(&patterns, false).may_contain(&shape, &place, false);
        assert_eq!(got, expect, "{shape:?}");
    }

    #[test]
    fn a_shape_may_be_what_it_spells_a_part_of() {
        let secrets = ["**/.env", "~/.aws/**", "~/.config/gh/**", "/etc/shadow"];
        for shape in [
            "/home/*/.aws/credentials",
            "/home/agent/.a?s/credentials",
            "/home/agent/.a*/x",
            "/home/agent/.[ab]ws/x",
            "/home/agent/.a$/x",
            "/home/agent/.a$",
            "$/.aws/credentials",
            "$.aws/x",
            "/home/$/.aws/x",
            "/home/agent/.config/g?/hosts.yml",
            "/home/agent/.c*/gh/hosts.yml",
            "/h*/agent/.aws/x",
            "$/gh/hosts.yml",
            "/e*/shadow",
            "/etc/s$",
            "/*/shad$",
        ] {
            check(&secrets, shape, true);
        }
        for shape in [
            "/repo/proj/$/x",
            "/home/agent/$/x",
            "/home/agent/*/x",
            "$",
            "$/x",
            "$/src/main.rs",
            "/repo/proj/*/Cargo.toml",
            "/repo/proj/.a*/x",
            "/home/agent/.b$/x",
            "/home/other/.aws/$",
            "/etc/*.conf",
            "/usr/$/shadow",
            "/etc/$",
            "/home/agent/.config/$/hosts.yml",
        ] {
            check(&secrets, shape, false);
        }
    }

    #[test]
    fn directories_at_any_depth_are_compared_as_whole_names() {
        let protected = ["@/**/.git/**", "@/**/.github/workflows/**"];
        for shape in [
            "/repo/proj/.g*/config",
            "/repo/proj/a/.gi?/hooks/x",
            "/repo/proj/$/.git/config",
            "/repo/proj/.g$/config",
            "/repo/proj/.github/*/y",
            "/repo/proj/.github/$/y",
            "/repo/proj/.git/$",
            "$/.git/config",
        ] {
            check(&protected, shape, true);
        }
        for shape in [
            "/repo/proj/x.git/$",
            "/repo/proj/$/x.git/y",
            "/repo/proj/*/config",
            "/repo/proj/src/$",
            "/repo/proj/src/*/mod.rs",
            "/tmp/.g*/config",
        ] {
            check(&protected, shape, false);
        }
        check(&["@/a/{b,c}/**"], "/repo/proj/a/$", true);
    }
}
