//! Facts about the paths of a request: where each leads, from every directory that the command
//! may run in.
//!
//! Owns the reading of a word as a path: `~/`, patterns, live parts. Must not know rules.

use std::cell::Cell;

use super::command::Word;
use super::path::{Walker, lexical};
use super::sets::{PathSet, Reach, could_match};

/// What one path is. A path may be several things when the current directory is not certain;
/// then there is one fact for each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PathFact {
    /// As written, absolute, links not followed.
    pub written: String,
    /// Where it leads.
    pub leads: String,
    pub whereabouts: Whereabouts,
    /// It is a shell's pattern: its last component.
    pub pattern: Option<String>,
    /// What the pattern becomes now, and where the links among that lead.
    pub links: Vec<String>,
    /// Only a guess: may forbid, never needed to permit.
    pub guess: bool,
    /// The pattern is git's: `*` also matches a leading dot and `/`.
    pub spec: bool,
    /// Answers about sets, which several rules ask for: `(asked, yes)`, one bit a set.
    pub known: Cell<(u64, u64)>,
}

/// Where a path leads, as far as it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Whereabouts {
    /// In the workspace.
    Inside,
    /// Not in the workspace.
    Outside,
    /// `/dev/null`: outside, and harmless as the target of a redirect.
    Null,
    /// Not known before it runs.
    Dynamic,
}

impl PathFact {
    /// Whether it belongs to a set, by where it leads or by how it is written.
    pub(super) fn in_set(&self, sets: &[PathSet], place: usize, walker: &Walker<'_>) -> bool {
        let bit = u32::try_from(place)
            .ok()
            .and_then(|n| 1_u64.checked_shl(n))
            .unwrap_or(0);
        let (asked, yes) = self.known.get();
        if asked & bit != 0 {
            return yes & bit != 0;
        }
        let is = self.is_in(&sets[place], walker);
        self.known
            .set((asked | bit, yes | if is { bit } else { 0 }));
        is
    }

    fn is_in(&self, set: &PathSet, walker: &Walker<'_>) -> bool {
        set.has(&self.leads, &walker.place, Reach::Wide)
            || self.written != self.leads && set.has(&self.written, &walker.place, Reach::Wide)
            || self
                .links
                .iter()
                .any(|path| set.has(path, &walker.place, Reach::Wide))
            || self
                .pattern
                .as_ref()
                .is_some_and(|p| set.may_become(p, self.spec))
    }
}

/// A directory that a command may run in: as the shell names it and as the kernel knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cwd {
    /// The shell's `PWD`; `cd ..` goes up from here.
    pub logical: String,
    /// After links; relative paths start here.
    pub physical: String,
    /// It lies outside, or could not be followed.
    pub left: bool,
}

/// The facts of one text, from each of `bases`; none of them: the directory is not known.
pub(super) fn facts(
    walker: &Walker<'_>,
    bases: &[Cwd],
    word: &Word,
    from: usize,
    out: &mut Vec<PathFact>,
) {
    let text = word.text.get(from..).unwrap_or_default();
    let tilde = word.tilde && from == 0;
    let owned;
    let text = if tilde {
        owned = format!("{}{}", walker.place.home, &text[1..]);
        &owned
    } else {
        text
    };
    if text.starts_with('/') || bases.is_empty() {
        let known = text.starts_with('/');
        out.push(fact(
            walker,
            walker.place.workspace,
            false,
            known,
            word,
            from,
            text,
        ));
    } else {
        for base in bases {
            out.push(fact(
                walker,
                &base.physical,
                base.left,
                true,
                word,
                from,
                text,
            ));
        }
    }
}

fn fact(
    walker: &Walker<'_>,
    base: &str,
    base_left: bool,
    known: bool,
    word: &Word,
    from: usize,
    text: &str,
) -> PathFact {
    let end = walker.walk(base, text);
    let written = lexical(base, text);
    let left = end.left || base_left && !text.starts_with('/');
    let mut fact = PathFact {
        whereabouts: if left || !walker.inside(&end.path) {
            Whereabouts::Outside
        } else {
            Whereabouts::Inside
        },
        written,
        leads: end.path,
        pattern: None,
        links: Vec::new(),
        guess: false,
        spec: false,
        known: Cell::new((0, 0)),
    };
    // `x/../dev/null` is another file where `x` is a link.
    if fact.written == "/dev/null" && fact.leads == fact.written && !text.contains("..") {
        fact.whereabouts = Whereabouts::Null;
    }
    if !known {
        fact.whereabouts = Whereabouts::Dynamic;
    } else if word.live() {
        fact.whereabouts = live(walker, base, word, from, fact.whereabouts);
    } else if word.glob && text.contains(['*', '?', '[']) {
        pattern(walker, base, text, &mut fact);
    }
    fact
}

/// A path whose end the shell computes: surely outside only if its literal directory is.
fn live(
    walker: &Walker<'_>,
    base: &str,
    word: &Word,
    from: usize,
    whole: Whereabouts,
) -> Whereabouts {
    let fixed = word.fixed().get(from..).unwrap_or_default();
    let Some(slash) = fixed.rfind('/') else {
        return Whereabouts::Dynamic;
    };
    let directory = if word.tilde && from == 0 {
        format!("{}{}", walker.place.home, &fixed[1..=slash])
    } else {
        fixed[..=slash].to_owned()
    };
    let end = walker.walk(base, &directory);
    let outside = end.left || !walker.inside(&end.path);
    // `/$x` and `../$x` may lead back; a directory that is no parent of the workspace does not.
    let parent = super::path::is_below(walker.place.workspace, &end.path);
    if outside && !parent && whole == Whereabouts::Outside {
        Whereabouts::Outside
    } else {
        Whereabouts::Dynamic
    }
}

/// A shell's pattern: known if only its last component is one, and no link in that directory
/// that it may match leads outside.
fn pattern(walker: &Walker<'_>, base: &str, text: &str, fact: &mut PathFact) {
    let (directory, name) = text.rsplit_once('/').map_or(("", text), |(_, name)| {
        (&text[..text.len() - name.len()], name)
    });
    fact.pattern = Some(name.to_owned());
    let magic = |text: &str| text.contains(['*', '?', '[']);
    if magic(directory) || text.starts_with('-') || name.starts_with('.') || name.is_empty() {
        fact.whereabouts = Whereabouts::Dynamic;
        return;
    }
    if fact.whereabouts != Whereabouts::Inside {
        return;
    }
    let parent = walker.walk(base, directory);
    if parent.left || !walker.inside(&parent.path) {
        fact.whereabouts = Whereabouts::Outside;
        return;
    }
    let Some(links) = walker.links(&parent.path) else {
        fact.whereabouts = Whereabouts::Dynamic;
        return;
    };
    // What it becomes now; what it may become once files have come is compared by name alone.
    let Some(names) = walker.names(&parent.path) else {
        fact.whereabouts = Whereabouts::Dynamic;
        return;
    };
    let root = parent.path.trim_end_matches('/');
    let becomes = names.iter().filter(|found| could_match(name, found));
    fact.links
        .extend(becomes.map(|found| format!("{root}/{found}")));
    for link in links.iter().filter(|link| could_match(name, link)) {
        let end = walker.walk(&parent.path, link);
        if end.left || !walker.inside(&end.path) {
            fact.whereabouts = Whereabouts::Outside;
        }
        fact.links.push(end.path);
    }
}
