//! Named sets of paths: `secrets`, `protected` and a policy's own.
//!
//! Owns the patterns: `@/…` is below the workspace, `~/…` below the home, `**/…` anywhere. Must not
//! know links or words: it compares absolute paths.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use globset::{Candidate, GlobBuilder, GlobSet, GlobSetBuilder};

mod needles;
pub(super) mod shape_match;

use needles::Needles;
use shape_match::ShapePatterns;

use super::compile::Role;
use super::error::LoadError;
use super::layers::Layer;
use super::path::{FsContext, is_within};

/// How far a set reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SetReach {
    /// `X/**` means what is below X: for conditions that permit.
    Below,
    /// `X/**` also means X itself: for conditions that forbid.
    SelfAndBelow,
    /// The parent directories: for `X/Y/**` it is X. For a command that places a directory there.
    Parents,
    /// The same, with the home and the root of the file system: for a command that reads a whole
    /// directory.
    ParentsAndRoots,
    /// The same, with the workspace: for a command that removes it.
    ParentsAndWorkspace,
}

/// A set of patterns, compiled.
#[derive(Debug)]
pub(super) struct PathSet {
    folded: bool,
    below: Globs,
    wide: Globs,
    above: Globs,
    /// Whether a pattern begins at the workspace, at the home, and at the root of the file system.
    roots: [bool; 3],
    /// The file names that the patterns match, to compare with what a shell's pattern may become.
    names: Vec<Vec<Token>>,
    /// The whole patterns, for paths of which the shell computes more than a name.
    long: ShapePatterns,
    /// The patterns with `!`: what they match is not in this part of the set.
    except: Globs,
    /// The patterns of other layers, which this layer's exceptions do not concern.
    others: Option<Box<PathSet>>,
}

#[derive(Debug)]
struct Globs {
    workspace: Glob,
    home: Glob,
    anywhere: Glob,
}

/// Patterns below one root.
#[derive(Debug)]
struct Glob {
    globs: GlobSet,
    /// Texts of which one must be in every path that a pattern matches; `None` if a pattern has no
    /// such text.
    needles: Option<Needles>,
}

impl Glob {
    fn contains(&self, path: &str) -> bool {
        let needles = self.needles.as_ref();
        needles.is_none_or(|needles| needles.any(path.as_bytes()))
            && self.globs.is_match_candidate(&Candidate::new(path))
    }
}

/// The longest text that is in every path which a pattern matches; `None` if there is none, or if
/// the pattern has more than `*` and `?` in it.
fn longest_literal(pattern: &str) -> Option<&str> {
    if pattern.contains(['[', '{', '\\', ']', '}']) {
        return None;
    }
    let runs = pattern.split(['*', '?', '/']);
    runs.max_by_key(|run| run.len())
        .filter(|run| !run.is_empty())
}

/// Lower case; borrowed if nothing changes.
fn low(text: &str) -> Cow<'_, str> {
    let is_low = |b: u8| b.is_ascii() && !b.is_ascii_uppercase();
    if text.bytes().all(is_low) {
        Cow::Borrowed(text)
    } else {
        Cow::Owned(text.to_lowercase())
    }
}

/// Why a pattern is invalid.
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
        /// The compiler's message.
        why: String,
    },
}

impl PathSet {
    /// Compiles patterns. `folded` ignores the case of names, as for files that other systems open
    /// in any case.
    pub(super) fn compile(patterns: &[String], folded: bool) -> Result<Self, PatternError> {
        let (except, patterns): (Vec<_>, Vec<_>) = patterns
            .iter()
            .cloned()
            .partition(|pattern| pattern.starts_with('!'));
        let patterns = &patterns[..];
        let except: Vec<String> = except
            .iter()
            .map(|pattern| pattern[1..].to_owned())
            .collect();
        Ok(Self {
            others: None,
            except: Globs::compile(&except, folded, SetReach::Below)?,
            folded,
            below: Globs::compile(patterns, folded, SetReach::Below)?,
            wide: Globs::compile(patterns, folded, SetReach::SelfAndBelow)?,
            above: Globs::compile(patterns, folded, SetReach::ParentsAndRoots)?,
            roots: ["@/", "~/", "/"].map(|root| patterns.iter().any(|p| p.starts_with(root))),
            names: patterns.iter().filter_map(|p| name(p, folded)).collect(),
            long: ShapePatterns::from_patterns(patterns, folded),
        })
    }

    /// Whether an absolute path belongs to the set.
    pub(super) fn contains(&self, path: &str, place: &FsContext<'_>, reach: SetReach) -> bool {
        let others = self.others.as_ref();
        self.contains_itself(path, place, reach)
            || others.is_some_and(|others| others.contains(path, place, reach))
    }

    fn contains_itself(&self, path: &str, place: &FsContext<'_>, reach: SetReach) -> bool {
        let folded;
        let (path, workspace, home) = if self.folded {
            folded = [path, place.workspace, place.home].map(low);
            (&*folded[0], &*folded[1], &*folded[2])
        } else {
            (path, place.workspace, place.home)
        };
        let globs = match reach {
            SetReach::Below => &self.below,
            SetReach::SelfAndBelow => &self.wide,
            SetReach::Parents | SetReach::ParentsAndRoots | SetReach::ParentsAndWorkspace => {
                let holds = |root: &str| is_within(root, path);
                let is_root =
                    self.roots[0] && reach == SetReach::ParentsAndWorkspace && holds(workspace)
                        || self.roots[1] && holds(home)
                        || self.roots[2] && path == "/";
                if is_root && reach != SetReach::Parents {
                    return true;
                }
                &self.above
            }
        };
        let under = |set: &Glob, root: &str| {
            !set.globs.is_empty() && relative(path, root).is_some_and(|rest| set.contains(rest))
        };
        let is_in = |globs: &Globs| {
            under(&globs.workspace, workspace)
                || under(&globs.home, home)
                || !globs.anywhere.globs.is_empty() && globs.anywhere.contains(path)
        };
        is_in(globs) && !is_in(&self.except)
    }

    /// Whether a path of which the shell computes directories may lead into the set; see
    /// [`shape_match`].
    pub(super) fn may_resolve_into(&self, shape: &str, place: &FsContext<'_>) -> bool {
        let shape = if self.folded {
            low(shape)
        } else {
            Cow::Borrowed(shape)
        };
        let others = self.others.as_ref();
        self.long.may_contain(&shape, place, self.folded)
            || others.is_some_and(|others| others.may_resolve_into(&shape, place))
    }

    /// Whether a relative path may be in the set from an unknown directory.
    pub(super) fn may_match_relative(&self, text: &str) -> bool {
        let text = if self.folded {
            low(text)
        } else {
            Cow::Borrowed(text)
        };
        let text = text.trim_start_matches("./");
        let globs = &self.wide;
        [&globs.home, &globs.workspace]
            .iter()
            .any(|set| !set.globs.is_empty() && set.contains(text))
            || !globs.anywhere.globs.is_empty() && globs.anywhere.contains(&format!("/{text}"))
            || self
                .others
                .as_ref()
                .is_some_and(|others| others.may_match_relative(text))
    }

    /// Whether a name with `*`, `?` or `[…]` may become one of the set's names, of which it spells
    /// a letter or a digit, or two of a name that begins with one. A pattern without them (`*`,
    /// `src*`) does not count: it is as wide as a search of the whole directory, and what it becomes
    /// there is compared name by name.
    /// `crosses`: its `*` also matches a leading dot and `/`.
    pub(super) fn may_expand_into(&self, pattern: &str, crosses: bool) -> bool {
        let folded;
        let pattern = if self.folded {
            folded = pattern.to_lowercase();
            &folded
        } else {
            pattern
        };
        let fits = |pattern: &str| {
            let tokens = tokenize_with_classes(pattern);
            let dotted = matches!(tokens.first(), Some(Token::Is('.')));
            let hidden = |name: &[Token]| matches!(name.first(), Some(Token::Is('.')));
            self.names
                .iter()
                .any(|name| (crosses || dotted || !hidden(name)) && have_common_name(&tokens, name))
        };
        let stars = pattern.match_indices(['*', '?', '[']);
        fits(pattern)
            || crosses && stars.take(CROSSINGS).any(|(at, _)| fits(&pattern[at..]))
            || self
                .others
                .as_ref()
                .is_some_and(|others| others.may_expand_into(pattern, crosses))
    }
}

/// A policy's sets by name, while it is being loaded.
#[derive(Debug)]
pub(super) struct SetTable {
    /// The name of each set, and its patterns, each with the index of its layer.
    named: Vec<(String, Vec<(usize, String)>)>,
    /// The group of each layer.
    groups: Vec<usize>,
    sets: Vec<PathSet>,
    /// Sets with only the patterns of the first layers.
    partial: HashMap<(usize, usize), usize>,
}

impl SetTable {
    /// Joins the sets of all layers by name. `secrets` and `protected` always exist; their names are
    /// compared case-insensitively. A pattern with `!` excepts paths from the patterns of its own layer
    /// only.
    pub(super) fn compile(layers: &[Layer]) -> Result<Self, LoadError> {
        let mut joined: BTreeMap<&str, Vec<(usize, String)>> =
            [("secrets", Vec::new()), ("protected", Vec::new())].into();
        for (at, layer) in layers.iter().enumerate() {
            for (name, patterns) in &layer.document.paths {
                if matches!(name.as_str(), "inside" | "outside" | "dynamic") {
                    return Err(LoadError::Value {
                        policy: layer.name.clone(),
                        key: "paths".to_owned(),
                        found: name.clone(),
                        expected: "a name that is not built in".to_owned(),
                    });
                }
                PathSet::compile(patterns, false).map_err(|source| LoadError::Pattern {
                    policy: layer.name.clone(),
                    set: name.clone(),
                    source,
                })?;
                let of_layer = patterns.iter().map(|pattern| (at, pattern.clone()));
                joined.entry(name).or_default().extend(of_layer);
            }
        }
        let mut table = Self {
            named: Vec::new(),
            groups: layers.iter().map(|layer| layer.group).collect(),
            sets: Vec::new(),
            partial: HashMap::new(),
        };
        for (name, patterns) in joined {
            table.named.push((name.to_owned(), patterns));
            let set = table.build_set(table.named.len() - 1, layers.len());
            table.sets.push(set.map_err(|source| LoadError::Pattern {
                policy: layers.last().map(|l| l.name.clone()).unwrap_or_default(),
                set: name.to_owned(),
                source,
            })?);
        }
        Ok(table)
    }

    /// The set `place` with the patterns of the first `layers` layers.
    fn build_set(&self, place: usize, layers: usize) -> Result<PathSet, PatternError> {
        let (name, patterns) = &self.named[place];
        let is_folded = matches!(name.as_str(), "protected" | "secrets");
        let excepting: BTreeSet<usize> = patterns
            .iter()
            .filter(|(layer, pattern)| *layer < layers && pattern.starts_with('!'))
            .map(|(layer, _)| *layer)
            .collect();
        let compile = |is_part: &dyn Fn(usize) -> bool| {
            let mut patterns: Vec<String> = patterns
                .iter()
                .filter(|(layer, _)| *layer < layers && is_part(*layer))
                .map(|(_, pattern)| pattern.clone())
                .collect();
            // A policy may repeat what it extends, and every pattern costs time for every path.
            patterns.sort_unstable();
            patterns.dedup();
            PathSet::compile(&patterns, is_folded)
        };
        let rest = compile(&|layer| !excepting.contains(&layer))?;
        excepting.iter().try_fold(rest, |others, layer| {
            let mut own = compile(&|other| other == *layer)?;
            own.others = Some(Box::new(others));
            Ok(own)
        })
    }

    /// The index of a set that exists.
    pub(super) fn index_of(&self, name: &str) -> usize {
        self.named.iter().position(|(n, _)| n == name).unwrap_or(0)
    }

    /// The index of a set for a rule of the layer `layer`. A later layer's patterns never widen
    /// what an earlier layer's rule permits.
    pub(super) fn find_for_role(&mut self, name: &str, role: Role, layer: usize) -> Option<usize> {
        let place = self.named.iter().position(|(n, _)| n == name)?;
        let until = match role {
            Role::Forbid => return Some(place),
            Role::Permit => {
                let group = self.groups.get(layer);
                self.groups.iter().take_while(|g| Some(*g) <= group).count()
            }
            Role::Except => layer + 1,
        };
        if self.named[place].1.iter().all(|(item, _)| *item < until) {
            return Some(place);
        }
        if let Some(known) = self.partial.get(&(place, until)) {
            return Some(*known);
        }
        let set = self.build_set(place, until).ok()?;
        self.sets.push(set);
        self.partial.insert((place, until), self.sets.len() - 1);
        Some(self.sets.len() - 1)
    }

    pub(super) fn into_sets(self) -> Vec<PathSet> {
        self.sets
    }
}

/// How many places of a git pattern that may match a `/` are tried.
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
    fn compile(patterns: &[String], folded: bool, reach: SetReach) -> Result<Self, PatternError> {
        let mut sets = [
            GlobSetBuilder::new(),
            GlobSetBuilder::new(),
            GlobSetBuilder::new(),
        ];
        let mut needles = [Some(Vec::new()), Some(Vec::new()), Some(Vec::new())];
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
            match reach {
                SetReach::Below => {}
                SetReach::SelfAndBelow => forms.extend(rest.strip_suffix("/**")),
                SetReach::Parents | SetReach::ParentsAndRoots | SetReach::ParentsAndWorkspace => {
                    forms = above(rest);
                }
            }
            for form in forms {
                let text = if folded {
                    form.to_lowercase()
                } else {
                    form.to_owned()
                };
                match (longest_literal(&text), &mut needles[which]) {
                    (Some(needle), Some(known)) if !known.iter().any(|n| n == needle) => {
                        known.push(needle.to_owned());
                    }
                    (Some(_), _) => {}
                    (None, known) => *known = None,
                }
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
        let [below, at_home, any] = needles;
        let glob = |globs: Result<GlobSet, PatternError>, needles: Option<Vec<String>>| {
            let needles = needles.map(|texts| Needles::new(&texts));
            globs.map(|globs| Glob { globs, needles })
        };
        Ok(Self {
            workspace: glob(workspace, below)?,
            home: glob(home, at_home)?,
            anywhere: glob(anywhere, any)?,
        })
    }
}

/// The prefixes of a pattern that name a directory above its matches; `**` alone names none.
fn above(pattern: &str) -> Vec<&str> {
    let whole = pattern.trim_end_matches("/**");
    let slashes = whole.match_indices('/').map(|(at, _)| &whole[..at]);
    slashes
        .filter(|begin| !begin.is_empty() && !begin.ends_with("**"))
        .collect()
}

/// The file names that a pattern matches; `None` if it is any name, or one in a directory that the
/// pattern names, because then the directory decides. The last extension of a name with letters
/// before it says nothing: other files have it, too.
fn name(pattern: &str, folded: bool) -> Option<Vec<Token>> {
    let mut components = pattern.rsplit('/');
    let name = components.next().unwrap_or(pattern);
    let is_wild = |directory: &str| matches!(directory, "" | "@" | "~") || directory.contains('*');
    if !components.next().is_none_or(is_wild) {
        return None;
    }
    let name = if folded {
        name.to_lowercase()
    } else {
        name.to_owned()
    };
    let mut tokens = tokenize(&name.replace(['{', '}'], "*"));
    let is_letter = |token: &Token| matches!(token, Token::Is(c) if c.is_alphanumeric());
    let dot = tokens.iter().rposition(|token| *token == Token::Is('.'));
    if let Some(dot) = dot.filter(|dot| tokens[..*dot].iter().any(is_letter)) {
        for token in &mut tokens[dot..] {
            if let Token::Is(c) = *token {
                *token = Token::Common(c);
            }
        }
    }
    tokens.iter().any(is_letter).then_some(tokens)
}

/// The most spelled characters that are counted.
const SPELLED: usize = 2;

/// Which counts of spelled characters are possible.
type Counts = [bool; SPELLED + 1];

/// Whether two patterns have a common name of which both spell a letter or digit; two of a name
/// that begins with one.
fn have_common_name(pattern: &[Token], name: &[Token]) -> bool {
    let needed = match name.first() {
        Some(Token::Is(c)) if c.is_alphanumeric() => 2,
        _ => 1,
    };

    // No file name is that long, so nothing would match.
    if pattern.iter().filter(|t| **t != Token::Any).count() > NAME_MAX {
        return false;
    }
    // Which positions of `name` can be reached with the part of `pattern` that was read, with and
    // without a character that both spell.
    let mut row = vec![Counts::default(); name.len() + 1];
    row[0][0] = true;
    skip_wildcards(&mut row, name);
    for token in pattern {
        let mut next = vec![Counts::default(); name.len() + 1];
        for at in 0..=name.len() {
            if name.get(at) == Some(&Token::Any) {
                carry_forward(&mut row, at);
            }
            for spelled in 0..=SPELLED {
                if !row[at][spelled] {
                    continue;
                }
                let wide = *token == Token::Any;
                if wide {
                    next[at][spelled] = true;
                }
                let Some(other) = name.get(at) else { continue };
                let to = match other {
                    Token::Any => at,
                    Token::One | Token::Is(_) | Token::Common(_) | Token::Set(_) => at + 1,
                };
                let (meets, both) = match (token, other) {
                    (Token::Is(a), Token::Is(b)) => (a == b, a.is_alphanumeric()),
                    (Token::Is(a), Token::Common(b)) => (a == b, false),
                    (Token::Set(set), Token::Is(b)) => (set.contains(b), b.is_alphanumeric()),
                    (Token::Set(set), Token::Common(b)) => (set.contains(b), false),
                    _ => (true, false),
                };
                if !meets {
                    continue;
                }
                let found = (spelled + usize::from(both)).min(SPELLED);
                if wide {
                    // It continues from there with the same token.
                    mark_reached(&mut next, &mut row, to, found);
                } else {
                    next[to][found] = true;
                }
            }
        }
        skip_wildcards(&mut next, name);
        row = next;
    }
    row[name.len()][needed..].contains(&true)
}

/// A position that is reached within one wildcard.
fn mark_reached(next: &mut [Counts], row: &mut [Counts], to: usize, found: usize) {
    next[to][found] = true;
    row[to][found] = true;
}

/// Whatever reaches a position reaches the next one, too.
fn carry_forward(row: &mut [Counts], at: usize) {
    let from = row[at];
    for (to, from) in row[at + 1].iter_mut().zip(from) {
        *to |= from;
    }
}

/// A `*` of the name may match the empty text.
fn skip_wildcards(row: &mut [Counts], name: &[Token]) {
    for (at, token) in name.iter().enumerate() {
        if *token == Token::Any {
            carry_forward(row, at);
        }
    }
}

/// The longest file name (limits.h).
const NAME_MAX: usize = 255;

/// Whether a shell's pattern could match a name. From the first `[` to the last `]` counts as any
/// text, because where a class ends is subtle (`[]a]`, `[[:x:]]`). In doubt the answer is yes. A
/// leading dot must be matched by a dot, as in bash.
pub(super) fn could_match(pattern: &str, name: &str) -> bool {
    if name.starts_with('.') && !pattern.starts_with('.') {
        return false;
    }
    matches_text(pattern, name)
}

/// The same, with classes whose end is clear as one character, of those that a short class lists.
fn tokenize_with_classes(pattern: &str) -> Vec<Token> {
    let mut out = Vec::new();
    let mut rest = pattern;
    while let Some(open) = rest.find('[') {
        let class = &rest[open + 1..];
        let plain = class.find(']').filter(|&end| end > 0);
        let inside = plain.map(|end| &class[..end]);
        let Some(inside) = inside.filter(|inside| !inside.contains('[')) else {
            break; // Where it ends is another reader's guess.
        };
        out.extend(tokenize(&rest[..open]));
        let wide = inside.starts_with(['!', '^']) || inside.contains('-');
        out.push(if wide {
            Token::One
        } else {
            Token::Set(inside.chars().collect())
        });
        rest = &class[inside.len() + 1..];
    }
    out.extend(tokenize(rest));
    out
}

fn tokenize(pattern: &str) -> Vec<Token> {
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
    tokens
}

fn matches_text(pattern: &str, name: &str) -> bool {
    let tokens = tokenize(pattern);
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
                Token::One | Token::Set(_) => diagonal,
                Token::Is(literal) | Token::Common(literal) => diagonal && *literal == c,
            };
            diagonal = above;
        }
    }
    row[tokens.len()]
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    Any,
    /// One of these.
    Set(Vec<char>),
    One,
    Is(char),
    /// A character of a secret's name that many other names have.
    Common(char),
}

#[cfg(test)]
mod tests;
