//! What one decision saw of the file system. It is stored with the decision's record, so that the
//! decision can be repeated after the files have changed.
//!
//! Owns the bound of what is stored and its form in the record. Must not know what links mean.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::path::{FsEntry, Resolver};

/// How many observations of one decision are stored.
const ANSWERS: usize = 256;

/// How many bytes of paths, targets and names are stored for one decision.
const BYTES: usize = 16 << 10;

/// What was found at a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
enum RecordedEntry {
    /// A directory, or (`false`) something that could not be examined.
    Directory(bool),
    /// A link, with its target.
    Link(String),
    /// Nothing, or something that is neither: a walk ends there in both cases.
    Other(()),
}

/// The observations of one decision. Paths are as the agent sees them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FsObservations {
    /// What was found at a path: `true` a directory, a string a link's target, `null` a file or
    /// nothing, `false` something that could not be examined.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    at: BTreeMap<String, RecordedEntry>,
    /// Names in directories; `null` if they could not be listed.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    names: BTreeMap<String, Option<Vec<String>>>,
    /// The names of links in directories.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    links: BTreeMap<String, Option<Vec<String>>>,
    /// Whether anything was at a path, where no more than that was needed.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    there: BTreeMap<String, bool>,
    /// Whether there was more than is stored.
    #[serde(default, skip_serializing_if = "is_not")]
    cut: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde wants it so")]
fn is_not(yes: &bool) -> bool {
    !yes
}

impl FsObservations {
    /// Whether there are no observations.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A resolver that records its answers.
pub struct RecordingResolver<'a> {
    resolver: &'a dyn Resolver,
    observations: RefCell<FsObservations>,
    bytes: Cell<usize>,
}

impl<'a> RecordingResolver<'a> {
    /// Wraps the given resolver.
    #[must_use]
    pub fn new(resolver: &'a dyn Resolver) -> Self {
        Self {
            resolver,
            observations: RefCell::default(),
            bytes: Cell::new(0),
        }
    }

    /// The recorded questions and answers.
    #[must_use]
    pub fn into_observations(self) -> FsObservations {
        self.observations.into_inner()
    }

    /// Whether there is room for one more answer.
    fn reserve_answer(&self, bytes: usize) -> bool {
        let all = self.bytes.get() + bytes;
        let mut seen = self.observations.borrow_mut();
        let count = seen.at.len() + seen.names.len() + seen.links.len() + seen.there.len();
        let fits = all <= BYTES && count < ANSWERS;
        if fits {
            self.bytes.set(all);
        } else {
            seen.cut = true;
        }
        fits
    }

    fn list_and_record(&self, path: &str, only_links: bool) -> Option<Vec<String>> {
        let found = if only_links {
            self.resolver.list_links(path)
        } else {
            self.resolver.list_names(path)
        };
        let names = found
            .as_ref()
            .map_or(0, |names| names.iter().map(String::len).sum());
        if self.reserve_answer(path.len() + names) {
            let mut seen = self.observations.borrow_mut();
            let of = if only_links {
                &mut seen.links
            } else {
                &mut seen.names
            };
            of.insert(path.to_owned(), found.clone());
        }
        found
    }
}

impl Resolver for RecordingResolver<'_> {
    fn lookup(&self, path: &str) -> FsEntry {
        let look = self.resolver.lookup(path);
        let (stood, more) = match &look {
            FsEntry::Directory => (RecordedEntry::Directory(true), 0),
            FsEntry::Unresolved => (RecordedEntry::Directory(false), 0),
            FsEntry::Link(target) => (RecordedEntry::Link(target.clone()), target.len()),
            FsEntry::File | FsEntry::Missing => (RecordedEntry::Other(()), 0),
        };
        let is_known = self.observations.borrow().at.contains_key(path);
        if !is_known && self.reserve_answer(path.len() + more) {
            self.observations
                .borrow_mut()
                .at
                .insert(path.to_owned(), stood);
        }
        look
    }

    fn list_links(&self, path: &str) -> Option<Vec<String>> {
        self.list_and_record(path, true)
    }

    fn list_names(&self, path: &str) -> Option<Vec<String>> {
        self.list_and_record(path, false)
    }

    fn exists(&self, path: &str) -> bool {
        let exists = self.resolver.exists(path);
        let is_known = self.observations.borrow().there.contains_key(path);
        if !is_known && self.reserve_answer(path.len()) {
            let mut seen = self.observations.borrow_mut();
            seen.there.insert(path.to_owned(), exists);
        }
        exists
    }
}

/// The file system as a decision saw it. Anything that it did not look at counts as missing, and is
/// noted.
#[derive(Debug, Default)]
pub struct ReplayResolver {
    observations: FsObservations,
    missed: Cell<bool>,
}

impl ReplayResolver {
    /// Restores the recorded file system.
    #[must_use]
    pub fn new(seen: FsObservations) -> Self {
        Self {
            observations: seen,
            missed: Cell::new(false),
        }
    }

    /// Whether anything was needed since the last call that was not observed.
    pub fn take_missed(&self) -> bool {
        self.missed.take()
    }

    fn recorded_list(&self, path: &str, only_links: bool) -> Option<Vec<String>> {
        let of = if only_links {
            &self.observations.links
        } else {
            &self.observations.names
        };
        of.get(path).cloned().unwrap_or_else(|| {
            self.missed.set(true);
            Some(Vec::new())
        })
    }
}

impl Resolver for ReplayResolver {
    fn lookup(&self, path: &str) -> FsEntry {
        match self.observations.at.get(path) {
            Some(RecordedEntry::Directory(true)) => FsEntry::Directory,
            Some(RecordedEntry::Directory(false)) => FsEntry::Unresolved,
            Some(RecordedEntry::Link(target)) => FsEntry::Link(target.clone()),
            Some(RecordedEntry::Other(())) => FsEntry::Missing,
            None => {
                self.missed.set(true);
                FsEntry::Missing
            }
        }
    }

    fn list_links(&self, path: &str) -> Option<Vec<String>> {
        self.recorded_list(path, true)
    }

    fn list_names(&self, path: &str) -> Option<Vec<String>> {
        self.recorded_list(path, false)
    }

    fn exists(&self, path: &str) -> bool {
        match (
            self.observations.there.get(path),
            self.observations.at.get(path),
        ) {
            (Some(exists), _) => *exists,
            (None, Some(RecordedEntry::Directory(_) | RecordedEntry::Link(_))) => true,
            (None, _) => {
                self.missed.set(true);
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `d` is a directory, `l` a link, `x` cannot be examined; there is nothing else.
    struct Tree;

    impl Resolver for Tree {
        fn lookup(&self, path: &str) -> FsEntry {
            match path {
                "/w/d" => FsEntry::Directory,
                "/w/l" => FsEntry::Link("d/e".to_owned()),
                "/w/x" => FsEntry::Unresolved,
                _ => FsEntry::Missing,
            }
        }
        fn list_links(&self, path: &str) -> Option<Vec<String>> {
            (path == "/w").then(|| vec!["l".to_owned()])
        }
        fn list_names(&self, path: &str) -> Option<Vec<String>> {
            (path == "/w").then(|| vec!["d".to_owned(), "l".to_owned()])
        }
    }

    #[test]
    fn what_was_seen_is_seen_again_and_nothing_else() {
        let looking = RecordingResolver::new(&Tree);
        for path in ["/w/d", "/w/l", "/w/x", "/w/none"] {
            looking.lookup(path);
        }
        looking.exists("/w/x");
        looking.exists("/w/none");
        for path in ["/w", "/w/none"] {
            looking.list_links(path);
            looking.list_names(path);
        }
        let text = serde_json::to_string(&looking.into_observations()).expect("JSON");
        let again = ReplayResolver::new(serde_json::from_str(&text).expect(&text));
        for path in ["/w/d", "/w/l", "/w/x", "/w/none"] {
            assert_eq!(again.lookup(path), Tree.lookup(path), "{text}");
        }
        for path in ["/w", "/w/none"] {
            assert_eq!(again.list_links(path), Tree.list_links(path), "{text}");
            assert_eq!(again.list_names(path), Tree.list_names(path), "{text}");
        }
        assert!(again.exists("/w/x") && again.exists("/w/d") && !again.exists("/w/none"));
        assert!(!again.take_missed(), "{text}");
        assert!(!again.exists("/w/other") && again.take_missed());
        assert_eq!(again.lookup("/w/other"), FsEntry::Missing);
        assert!(again.take_missed() && !again.take_missed());
    }

    #[test]
    fn what_is_kept_has_a_bound() {
        let looking = RecordingResolver::new(&Tree);
        for n in 0..2 * ANSWERS {
            looking.lookup(&format!("/w/{n}"));
        }
        let observations = looking.into_observations();
        assert!(observations.cut && observations.at.len() == ANSWERS);
        let looking = RecordingResolver::new(&Tree);
        for n in 0..20 {
            looking.lookup(&format!("/w/{n}/{}", "x".repeat(1 << 10)));
        }
        let text = serde_json::to_string(&looking.into_observations()).expect("JSON");
        assert!(text.len() < 2 * BYTES, "{}", text.len());
    }
}
