//! What one decision saw of the file system: kept with its record, so that it can be made again
//! when the files are others.
//!
//! Owns the bound of what is kept and its form in the record. Must not know what links mean.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::path::{FsEntry, Resolver};

/// Answers that are kept of one decision.
const ANSWERS: usize = 256;

/// Bytes of paths, targets and names that are kept of one decision.
const BYTES: usize = 16 << 10;

/// What stood at a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
enum RecordedEntry {
    /// A directory, or (`false`) something that could not be examined.
    Directory(bool),
    /// A link, with its target.
    Link(String),
    /// Nothing, or something that is neither: a walk ends there either way.
    Other(()),
}

/// What a decision saw. Paths as the agent sees them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FsObservations {
    /// What stood at a path: `true` a directory, a text a link's target, `null` a file or nothing,
    /// `false` what could not be examined.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    at: BTreeMap<String, RecordedEntry>,
    /// Names in directories; `null`: they could not be had.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    names: BTreeMap<String, Option<Vec<String>>>,
    /// The names of links in directories.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    links: BTreeMap<String, Option<Vec<String>>>,
    /// Whether anything stood at a path, where no more than that was asked.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    there: BTreeMap<String, bool>,
    /// There was more than is kept.
    #[serde(default, skip_serializing_if = "is_not")]
    cut: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde wants it so")]
fn is_not(yes: &bool) -> bool {
    !yes
}

impl FsObservations {
    /// Whether nothing was looked at.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A resolver that remembers what it was asked.
pub struct RecordingResolver<'a> {
    resolver: &'a dyn Resolver,
    observations: RefCell<FsObservations>,
    bytes: Cell<usize>,
}

impl<'a> RecordingResolver<'a> {
    /// Asks that one.
    #[must_use]
    pub fn new(resolver: &'a dyn Resolver) -> Self {
        Self {
            resolver,
            observations: RefCell::default(),
            bytes: Cell::new(0),
        }
    }

    /// What it was asked, and what it said.
    #[must_use]
    pub fn into_observations(self) -> FsObservations {
        self.observations.into_inner()
    }

    /// Whether there is room for one more answer.
    fn reserve_answer(&self, bytes: usize) -> bool {
        let all = self.bytes.get() + bytes;
        let mut looked = self.observations.borrow_mut();
        let count = looked.at.len() + looked.names.len() + looked.links.len() + looked.there.len();
        let fits = all <= BYTES && count < ANSWERS;
        if fits {
            self.bytes.set(all);
        } else {
            looked.cut = true;
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
            let mut looked = self.observations.borrow_mut();
            let of = if only_links {
                &mut looked.links
            } else {
                &mut looked.names
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
            let mut looked = self.observations.borrow_mut();
            looked.there.insert(path.to_owned(), exists);
        }
        exists
    }
}

/// The file system as a decision saw it. What it did not look at counts as not there, and is
/// noticed.
#[derive(Debug, Default)]
pub struct ReplayResolver {
    observations: FsObservations,
    missed: Cell<bool>,
}

impl ReplayResolver {
    /// As it was seen then.
    #[must_use]
    pub fn new(looked: FsObservations) -> Self {
        Self {
            observations: looked,
            missed: Cell::new(false),
        }
    }

    /// Whether it was asked since it was asked this what nobody looked at then.
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
        let looked = looking.into_observations();
        assert!(looked.cut && looked.at.len() == ANSWERS);
        let looking = RecordingResolver::new(&Tree);
        for n in 0..20 {
            looking.lookup(&format!("/w/{n}/{}", "x".repeat(1 << 10)));
        }
        let text = serde_json::to_string(&looking.into_observations()).expect("JSON");
        assert!(text.len() < 2 * BYTES, "{}", text.len());
    }
}
