//! Named sets of paths: `secrets`, `protected` and a policy's own.
//!
//! Owns the patterns: `@/…` is below the workspace, `~/…` below the home, `**/…` anywhere. Must
//! not know links or words: it judges absolute paths.

use globset::{Candidate, GlobBuilder, GlobSet, GlobSetBuilder};

use super::path::Place;

/// How far a set reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reach {
    /// `X/**` is what is below X: for conditions that permit.
    Below,
    /// `X/**` is X itself, too: for conditions that forbid.
    Wide,
}

/// A set of patterns, compiled.
#[derive(Debug)]
pub(super) struct PathSet {
    folded: bool,
    below: Globs,
    wide: Globs,
    /// File names that the patterns stand for, to judge what a shell's pattern may become.
    samples: Vec<String>,
}

#[derive(Debug)]
struct Globs {
    workspace: GlobSet,
    home: GlobSet,
    anywhere: GlobSet,
}

/// What is wrong with a pattern.
#[derive(Debug, thiserror::Error)]
pub enum PatternError {
    /// It begins with neither `@/`, `~/`, `/` nor `**/`.
    #[error("the pattern `{0}` must begin with `@/` (workspace), `~/` (home), `/` or `**/`")]
    Rootless(String),
    /// It cannot be compiled.
    #[error("the pattern `{pattern}` cannot be read: {why}")]
    Syntax {
        /// The pattern.
        pattern: String,
        /// What the compiler says.
        why: String,
    },
}

impl PathSet {
    /// Compiles patterns. `folded` ignores the case of names, as for files that other systems
    /// open whatever their case.
    pub(super) fn compile(patterns: &[String], folded: bool) -> Result<Self, PatternError> {
        Ok(Self {
            folded,
            below: Globs::compile(patterns, folded, Reach::Below)?,
            wide: Globs::compile(patterns, folded, Reach::Wide)?,
            samples: patterns.iter().filter_map(|p| sample(p)).collect(),
        })
    }

    /// Whether an absolute path belongs to the set.
    pub(super) fn has(&self, path: &str, place: &Place<'_>, reach: Reach) -> bool {
        let folded;
        let (path, workspace, home) = if self.folded {
            folded = [path, place.workspace, place.home].map(str::to_lowercase);
            (folded[0].as_str(), folded[1].as_str(), folded[2].as_str())
        } else {
            (path, place.workspace, place.home)
        };
        let globs = match reach {
            Reach::Below => &self.below,
            Reach::Wide => &self.wide,
        };
        let under = |set: &GlobSet, root: &str| {
            !set.is_empty()
                && relative(path, root)
                    .is_some_and(|rest| set.is_match_candidate(&Candidate::new(rest)))
        };
        under(&globs.workspace, workspace)
            || under(&globs.home, home)
            || !globs.anywhere.is_empty()
                && globs.anywhere.is_match_candidate(&Candidate::new(path))
    }

    /// Whether a name with `*`, `?` or `[…]` in it may become one of the set's names. A pattern
    /// without a letter of its own (`*`) is not held to stand for them: it is as wide as a
    /// search of the whole directory. `crosses`: its `*` also matches a leading dot and `/`.
    pub(super) fn may_become(&self, pattern: &str, crosses: bool) -> bool {
        let fits = |pattern: &str| {
            pattern.bytes().any(|b| b.is_ascii_alphanumeric())
                && self.samples.iter().any(|name| {
                    could_match(pattern, name) || crosses && matches_text(pattern, name)
                })
        };
        let stars = pattern.match_indices(['*', '?', '[']);
        fits(pattern) || crosses && stars.take(CROSSINGS).any(|(at, _)| fits(&pattern[at..]))
    }
}

/// Places in a pattern of git where a `/` may be matched, which are looked at.
const CROSSINGS: usize = 16;

fn relative<'p>(path: &'p str, root: &str) -> Option<&'p str> {
    let rest = path.strip_prefix(root.trim_end_matches('/'))?;
    if rest.is_empty() {
        Some("")
    } else {
        rest.strip_prefix('/')
    }
}

impl Globs {
    fn compile(patterns: &[String], folded: bool, reach: Reach) -> Result<Self, PatternError> {
        let mut sets = [
            GlobSetBuilder::new(),
            GlobSetBuilder::new(),
            GlobSetBuilder::new(),
        ];
        for pattern in patterns {
            let (which, rest) = if let Some(rest) = pattern.strip_prefix("@/") {
                (0, rest)
            } else if let Some(rest) = pattern.strip_prefix("~/") {
                (1, rest)
            } else if pattern.starts_with('/') || pattern.starts_with("**/") {
                (2, pattern.as_str())
            } else {
                return Err(PatternError::Rootless(pattern.clone()));
            };
            let mut forms = vec![rest];
            if reach == Reach::Wide {
                forms.extend(rest.strip_suffix("/**"));
            }
            for form in forms {
                let text = if folded {
                    form.to_lowercase()
                } else {
                    form.to_owned()
                };
                let glob = GlobBuilder::new(&text).literal_separator(true).build();
                sets[which].add(glob.map_err(|e| PatternError::Syntax {
                    pattern: pattern.clone(),
                    why: e.kind().to_string(),
                })?);
            }
        }
        let [workspace, home, anywhere] = sets.map(|set| {
            set.build().map_err(|e| PatternError::Syntax {
                pattern: patterns.join(" "),
                why: e.to_string(),
            })
        });
        Ok(Self {
            workspace: workspace?,
            home: home?,
            anywhere: anywhere?,
        })
    }
}

/// A file name that a pattern stands for.
fn sample(pattern: &str) -> Option<String> {
    let name = pattern.rsplit('/').next().unwrap_or(pattern);
    let name = match name.strip_prefix('*') {
        Some(rest) => format!("x{rest}"),
        None => name.to_owned(),
    };
    let name = name.replace('*', "");
    (!name.is_empty() && name != "x" && !name.contains(['?', '[', '{'])).then_some(name)
}

/// Whether a shell's pattern could match a name. From the first `[` to the last `]` counts as any
/// text, because where a class ends is subtle (`[]a]`, `[[:x:]]`): the answer errs towards yes; a leading dot must be matched by a dot, as in bash.
pub(super) fn could_match(pattern: &str, name: &str) -> bool {
    if name.starts_with('.') && !pattern.starts_with('.') {
        return false;
    }
    matches_text(pattern, name)
}

fn matches_text(pattern: &str, name: &str) -> bool {
    let mut tokens = Vec::new();
    let mut chars = pattern.chars();
    while let Some(c) = chars.next() {
        tokens.push(match c {
            '*' => Token::Any,
            '?' => Token::One,
            '[' => match chars.as_str().rfind(']') {
                Some(last) => {
                    chars = chars.as_str()[last + 1..].chars();
                    Token::Any
                }
                None => Token::Is('['),
            },
            c => Token::Is(c),
        });
    }
    // One row of the usual table: which prefixes of the pattern match the name read so far.
    let mut row = vec![false; tokens.len() + 1];
    row[0] = true;
    for (i, token) in tokens.iter().enumerate() {
        row[i + 1] = row[i] && *token == Token::Any;
    }
    for c in name.chars() {
        let mut diagonal = std::mem::replace(&mut row[0], false);
        for (i, token) in tokens.iter().enumerate() {
            let above = row[i + 1];
            row[i + 1] = match token {
                Token::Any => row[i] || above,
                Token::One => diagonal,
                Token::Is(literal) => diagonal && *literal == c,
            };
            diagonal = above;
        }
    }
    row[tokens.len()]
}

#[derive(PartialEq, Eq)]
enum Token {
    Any,
    One,
    Is(char),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::path::NoLinks;

    fn set(patterns: &[&str], folded: bool) -> PathSet {
        let patterns: Vec<_> = patterns.iter().map(|&p| p.to_owned()).collect();
        PathSet::compile(&patterns, folded).expect("patterns")
    }

    fn place() -> Place<'static> {
        Place {
            workspace: "/workspace",
            home: "/home/agent",
            cwd: None,
            resolver: &NoLinks,
        }
    }

    #[test]
    fn patterns_hold_below_their_root() {
        let secrets = set(&["**/.env", "**/*.pem", "~/.ssh/**", "/etc/shadow"], false);
        let has = |path: &str| secrets.has(path, &place(), Reach::Wide);
        assert!(has("/workspace/.env") && has("/x/y/.env") && has("/.env"));
        assert!(has("/workspace/a/k.pem") && has("/home/agent/.ssh/id") && has("/home/agent/.ssh"));
        assert!(has("/etc/shadow") && !has("/etc/shadow2") && !has("/workspace/.env.md"));
        assert!(!has("/workspace/.ssh/id") && !has("/home/agent2/.ssh/id"));
        assert!(!secrets.has("/home/agent/.ssh", &place(), Reach::Below));
    }

    #[test]
    fn folded_sets_ignore_case() {
        let protected = set(&["@/.git/**"], true);
        let has = |path: &str| protected.has(path, &place(), Reach::Wide);
        assert!(has("/workspace/.GIT/config") && has("/workspace/.git"));
        assert!(!has("/workspace/.gitignore") && !has("/workspace/src/.git/x"));
    }

    #[test]
    fn a_shell_pattern_may_become_a_secret() {
        let secrets = set(&["**/.env", "**/*.pem", "**/id_rsa*"], false);
        for pattern in [".e*", ".en?", ".en[v]", "*.p*", "id_*", "i?_rsa"] {
            assert!(secrets.may_become(pattern, false), "{pattern}");
        }
        for pattern in ["*", "*.md", "*.rs", "*env", "?env", "src*", "*.*x"] {
            assert!(!secrets.may_become(pattern, false), "{pattern}");
        }
    }

    #[test]
    fn a_class_hides_no_name_however_it_is_spelled() {
        for pattern in [
            "[[:lower:]]ink",
            "[]l]ink",
            "[!]a]ink",
            "[^]]ink",
            "l[i]n[k]",
            "[l-]ink",
        ] {
            assert!(could_match(pattern, "link"), "{pattern}");
        }
        assert!(could_match("[]link", "[]link") && could_match("[link", "[link"));
        assert!(!could_match("[ab].rs", "link") && !could_match("[link", "link"));
    }

    #[test]
    fn a_pattern_without_a_root_is_refused() {
        let error = PathSet::compile(&["src/**".to_owned()], false).expect_err("rootless");
        assert!(error.to_string().contains("src/**"));
        assert!(PathSet::compile(&["/a[".to_owned()], false).is_err());
    }
}
