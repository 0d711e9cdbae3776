//! Facts about the paths of a request: where each resolves to, from every directory in which the
//! command may run.
//!
//! Owns reading a word as a path: `~/`, patterns, computed parts. Must not know rules.

use std::cell::Cell;

use super::command::Word;
use super::glob_expansion;
use super::path::{WalkResult, Walker, normalize_lexically};
use super::sets::shape_match::ANYTHING;
use super::sets::{PathSet, SetReach};

/// One reading of a path. If the current directory is not certain, a path has one fact for each
/// possible directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PathFact {
    /// The path as written, absolute, without following links; `None` if it equals `resolved`.
    pub written: Option<String>,
    /// Where the path leads, with links followed.
    pub resolved: String,
    pub location: PathLocation,
    /// The last component, if it is a shell pattern.
    pub pattern: Option<String>,
    /// The whole path, if the shell computes more of it than the last component: see
    /// `sets::shape_match`.
    pub shape: Option<String>,
    /// The names that the pattern matches now, and where links among them lead.
    pub links: Vec<String>,
    /// Whether it is only a guess: it may forbid, but is never needed to permit.
    pub guess: bool,
    /// Whether the pattern is git's: `*` also matches a leading dot and `/`.
    pub is_pathspec: bool,
    /// Whether the shell computes its end, so that it may name more than it seems to.
    pub is_dynamic: bool,
    /// Whether the request also means what is below it.
    pub tree_effect: TreeEffect,
    /// Cached answers about sets, which several rules need: `(asked, yes)`, one bit per set.
    pub set_cache: Cell<(u64, u64)>,
}

/// How far a request reaches below a path that it names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum TreeEffect {
    /// Only the path itself.
    PathOnly,
    /// A directory may be placed there.
    PlaceInto,
    /// It is read with everything below it.
    ReadAll,
    /// It is removed, or changed, with everything below it.
    RemoveAll,
}

/// Where a path leads, as far as it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PathLocation {
    /// In the workspace.
    Inside,
    /// Not in the workspace.
    Outside,
    /// `/dev/null`: outside, and harmless as the target of a redirect.
    DevNull,
    /// Not known before it runs.
    Dynamic,
}

impl PathFact {
    /// Whether it belongs to a set, by where it leads or by how it is written.
    pub(super) fn is_in_set(&self, sets: &[PathSet], place: usize, walker: &Walker<'_>) -> bool {
        let bit = u32::try_from(place)
            .ok()
            .and_then(|n| 1_u64.checked_shl(n))
            .unwrap_or(0);
        let (known, yes) = self.set_cache.get();
        if known & bit != 0 {
            return yes & bit != 0;
        }
        let is = self.is_member(&sets[place], walker);
        self.set_cache
            .set((known | bit, yes | if is { bit } else { 0 }));
        is
    }

    /// Whether the request may affect something below it that belongs to a set.
    pub(super) fn may_affect_set(&self, set: &PathSet, walker: &Walker<'_>) -> bool {
        let reach = match self.tree_effect {
            TreeEffect::PathOnly => return false,
            TreeEffect::PlaceInto => SetReach::Parents,
            TreeEffect::ReadAll => SetReach::ParentsAndRoots,
            TreeEffect::RemoveAll => SetReach::ParentsAndWorkspace,
        };
        set.contains(&self.resolved, &walker.fs, reach)
            || self
                .written
                .as_ref()
                .is_some_and(|written| set.contains(written, &walker.fs, reach))
    }

    fn is_member(&self, set: &PathSet, walker: &Walker<'_>) -> bool {
        set.contains(&self.resolved, &walker.fs, SetReach::SelfAndBelow)
            || self
                .written
                .as_ref()
                .is_some_and(|written| set.contains(written, &walker.fs, SetReach::SelfAndBelow))
            || self
                .links
                .iter()
                .any(|path| set.contains(path, &walker.fs, SetReach::SelfAndBelow))
            || self
                .pattern
                .as_ref()
                .is_some_and(|p| set.may_expand_into(p, self.is_pathspec))
            || self.may_resolve_into(set, walker)
    }

    /// Whether it may be in a set through a directory that is unknown.
    fn may_resolve_into(&self, set: &PathSet, walker: &Walker<'_>) -> bool {
        match &self.shape {
            Some(shape) if shape.contains([ANYTHING, '*', '?', '[']) => {
                set.may_resolve_into(shape, &walker.fs)
            }
            Some(text) => set.may_match_relative(text),
            None => false,
        }
    }
}

/// A directory in which a command may run: as the shell names it and as the kernel knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cwd {
    /// The shell's `PWD`; `cd ..` goes up from here.
    pub logical: String,
    /// The directory after following links; relative paths start here.
    pub physical: String,
    /// Whether it lies outside, or could not be followed.
    pub escaped: bool,
}

impl Cwd {
    /// Adds that it may also be any other directory, to directories that are known.
    pub(super) fn add_unknown(bases: &mut Vec<Self>) {
        if !bases.is_empty() {
            bases.push(Self {
                logical: String::new(),
                physical: String::new(),
                escaped: true,
            });
        }
    }

    /// Whether it stands for any directory.
    pub(super) fn is_unknown(&self) -> bool {
        self.physical.is_empty()
    }
}

/// The facts of one text, from each of `bases`; if there are none, the directory is unknown.
pub(super) fn collect_facts(
    walker: &Walker<'_>,
    bases: &[Cwd],
    word: &Word,
    from: usize,
    out: &mut Vec<PathFact>,
) {
    collect_facts_with(Walker::walk, walker, bases, word, from, out);
}

/// The same without following the last component, for a command that removes the link itself.
pub(super) fn collect_facts_of_name(
    walker: &Walker<'_>,
    bases: &[Cwd],
    word: &Word,
    out: &mut Vec<PathFact>,
) {
    collect_facts_with(Walker::walk_to_name, walker, bases, word, 0, out);
}

/// A way to follow a path from a directory.
type Follow<'a> = fn(&Walker<'a>, &str, &str) -> WalkResult;

fn collect_facts_with<'a>(
    follow: Follow<'a>,
    walker: &Walker<'a>,
    bases: &[Cwd],
    word: &Word,
    from: usize,
    out: &mut Vec<PathFact>,
) {
    let text = word.text.get(from..).unwrap_or_default();
    let tilde = word.tilde && from == 0;
    let owned;
    let text = if tilde {
        owned = format!("{}{}", walker.fs.home, &text[1..]);
        &owned
    } else {
        text
    };
    if let Some((base, text)) = find_alias(walker, bases, word, from, text) {
        let mut other = build_fact(follow, walker, (&base, false), true, word, from, &text);
        other.guess = true;
        out.push(other);
    }
    if text.starts_with('/') || bases.is_empty() {
        let known = text.starts_with('/');
        let base = (walker.fs.workspace, false);
        out.push(build_fact(follow, walker, base, known, word, from, text));
    } else {
        for base in bases {
            let known = !base.is_unknown();
            let base = if known {
                (base.physical.as_str(), base.escaped)
            } else {
                (walker.fs.workspace, false)
            };
            out.push(build_fact(follow, walker, base, known, word, from, text));
        }
    }
}

/// Another name that a text may have: another user's home may be this one, and `/proc/…/root` and
/// `/proc/…/cwd` lead back. Used only for rules that forbid.
fn find_alias(
    walker: &Walker<'_>,
    bases: &[Cwd],
    word: &Word,
    from: usize,
    text: &str,
) -> Option<(String, String)> {
    if text.starts_with('~') && from == 0 && word.dynamic_from == Some(0) {
        let rest = text.split_once('/').map_or("", |(_, rest)| rest);
        let home = walker.fs.home;
        return Some((home.to_owned(), format!("{home}/{rest}")));
    }
    if !text.contains("proc/") {
        return None;
    }
    let whole = normalize_lexically("/", text);
    let rest = whole.strip_prefix("/proc/")?;
    let links = ["root", "cwd"];
    let (at, link) = rest
        .split('/')
        .enumerate()
        .skip(1)
        .find(|(_, part)| links.contains(part))?;
    let rest: Vec<&str> = rest.split('/').skip(at + 1).collect();
    let rest = rest.join("/");
    if link == "root" {
        return Some(("/".to_owned(), format!("/{rest}")));
    }
    let base = bases
        .first()
        .filter(|b| !b.is_unknown())
        .map_or(walker.fs.workspace, |b| b.physical.as_str());
    Some((base.to_owned(), rest))
}

fn build_fact<'a>(
    follow: Follow<'a>,
    walker: &Walker<'a>,
    (base, base_left): (&str, bool),
    known: bool,
    word: &Word,
    from: usize,
    text: &str,
) -> PathFact {
    let end = follow(walker, base, text);
    let written = written_if_different(base, text, &end.path);
    let left = end.escaped || base_left && !text.starts_with('/');
    let mut fact = PathFact {
        location: if left || !walker.is_inside(&end.path) {
            PathLocation::Outside
        } else {
            PathLocation::Inside
        },
        written,
        resolved: end.path,
        pattern: None,
        shape: None,
        links: Vec::new(),
        guess: false,
        is_pathspec: false,
        is_dynamic: word.is_dynamic(),
        tree_effect: TreeEffect::PathOnly,
        set_cache: Cell::new((0, 0)),
    };
    // `x/../dev/null` is another file if `x` is a link.
    if fact.resolved == "/dev/null" && fact.written.is_none() && !text.contains("..") {
        fact.location = PathLocation::DevNull;
    }
    if word.is_dynamic() {
        let shape = word_shape(word, from);
        let name = shape.rsplit('/').next().unwrap_or_default();
        fact.pattern = Some(name.replace(ANYTHING, "*"));
        fact.shape = absolute_shape(walker, known.then_some(base), word, from, &shape);
        fact.is_pathspec = true;
    } else if word.glob {
        let above = text.rfind('/').map_or("", |slash| &text[..slash]);
        if !known || above.contains(['*', '?', '[']) {
            fact.shape = absolute_shape(
                walker,
                known.then_some(base),
                word,
                from,
                &word.text[from..],
            );
        }
    } else if !known {
        fact.shape = Some(text.to_owned());
    }
    if !known {
        fact.location = PathLocation::Dynamic;
    } else if word.is_dynamic() {
        fact.location = dynamic_location(walker, base, word, from, fact.location);
    } else if word.glob && text.contains(['*', '?', '[']) {
        glob_expansion::expand_pattern(walker, base, text, &mut fact);
    }
    fact
}

/// The path as it is written, if that is not where it leads.
fn written_if_different(base: &str, text: &str, leads: &str) -> Option<String> {
    let base = base.trim_end_matches('/');
    let rest = leads
        .strip_prefix(base)
        .and_then(|rest| rest.strip_prefix('/'));
    // Needs no further lookup: nothing in it can be different.
    let is_same = rest == Some(text)
        && !text.is_empty()
        && !text.split('/').any(|part| matches!(part, "" | "." | ".."));
    if is_same {
        return None;
    }
    let written = normalize_lexically(base, text);
    (written != leads).then_some(written)
}

/// A text with [`ANYTHING`] in place of what the shell computes.
fn word_shape(word: &Word, from: usize) -> String {
    let mut shape = String::new();
    let mut at = from;
    for &(start, end) in &word.expansions {
        if start >= at {
            shape.push_str(word.text.get(at..start).unwrap_or_default());
            shape.push(ANYTHING);
            at = end;
        }
    }
    shape.push_str(word.text.get(at..).unwrap_or_default());
    shape
}

/// The same as a whole path, from `base` if that is known; `None` if it spells nothing.
fn absolute_shape(
    walker: &Walker<'_>,
    base: Option<&str>,
    word: &Word,
    from: usize,
    shape: &str,
) -> Option<String> {
    if !shape.contains(|c: char| c.is_alphanumeric()) {
        return None;
    }
    let start = match base {
        _ if word.tilde && from == 0 => walker.fs.home.to_owned(),
        _ if shape.starts_with(['/', ANYTHING]) => String::new(),
        Some(base) => base.trim_end_matches('/').to_owned(),
        None => ANYTHING.to_string(),
    };
    let rest = if word.tilde && from == 0 {
        &shape[1..]
    } else {
        shape
    };
    let mut whole = start;
    for (at, name) in rest.split('/').enumerate() {
        match name {
            "" | "." => continue,
            // Where that leads from a computed directory is unknown as well.
            ".." => {
                whole = ANYTHING.to_string();
                continue;
            }
            _ => {}
        }
        if at > 0 || !whole.is_empty() {
            whole.push('/');
        }
        whole.push_str(name);
    }
    Some(whole)
}

/// A path whose end the shell computes: certainly outside only if its literal directory is.
fn dynamic_location(
    walker: &Walker<'_>,
    base: &str,
    word: &Word,
    from: usize,
    whole: PathLocation,
) -> PathLocation {
    let fixed = word.literal_prefix().get(from..).unwrap_or_default();
    let Some(slash) = fixed.rfind('/') else {
        return PathLocation::Dynamic;
    };
    let directory = if word.tilde && from == 0 {
        format!("{}{}", walker.fs.home, &fixed[1..=slash])
    } else {
        fixed[..=slash].to_owned()
    };
    let end = walker.walk(base, &directory);
    let outside = end.escaped || !walker.is_inside(&end.path);
    // `/$x` and `../$x` may lead back; a directory that is not a parent of the workspace does not.
    let parent = super::path::is_within(walker.fs.workspace, &end.path);
    if outside && !parent && whole == PathLocation::Outside {
        PathLocation::Outside
    } else {
        PathLocation::Dynamic
    }
}
