//! What one decision saw of the file system: kept with its record, so that it can be made again
//! when the files are others.
//!
//! Owns the bound of what is kept and its form in the record. Must not know what links mean.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::path::{Look, Resolver};

/// Answers that are kept of one decision.
const ANSWERS: usize = 256;

/// Bytes of paths, targets and names that are kept of one decision.
const BYTES: usize = 16 << 10;

/// What stood at a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
enum Stood {
    /// A directory, or (`false`) something that could not be examined.
    Directory(bool),
    /// A link, with its target.
    Link(String),
    /// Nothing, or something that is neither: a walk ends there either way.
    Other(()),
}

/// What a decision saw. Paths as the agent sees them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Looked {
    /// What stood at a path: `true` a directory, a text a link's target, `null` a file or nothing,
    /// `false` what could not be examined.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    at: BTreeMap<String, Stood>,
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

impl Looked {
    /// Whether nothing was looked at.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A resolver that remembers what it was asked.
pub struct Looking<'a> {
    resolver: &'a dyn Resolver,
    looked: RefCell<Looked>,
    bytes: Cell<usize>,
}

impl<'a> Looking<'a> {
    /// Asks that one.
    #[must_use]
    pub fn new(resolver: &'a dyn Resolver) -> Self {
        Self {
            resolver,
            looked: RefCell::default(),
            bytes: Cell::new(0),
        }
    }

    /// What it was asked, and what it said.
    #[must_use]
    pub fn looked(self) -> Looked {
        self.looked.into_inner()
    }

    /// Whether there is room for one more answer.
    fn keeps(&self, bytes: usize) -> bool {
        let all = self.bytes.get() + bytes;
        let mut looked = self.looked.borrow_mut();
        let count = looked.at.len() + looked.names.len() + looked.links.len() + looked.there.len();
        let fits = all <= BYTES && count < ANSWERS;
        if fits {
            self.bytes.set(all);
        } else {
            looked.cut = true;
        }
        fits
    }

    fn listed(&self, path: &str, only_links: bool) -> Option<Vec<String>> {
        let found = if only_links {
            self.resolver.links(path)
        } else {
            self.resolver.names(path)
        };
        let names = found
            .as_ref()
            .map_or(0, |names| names.iter().map(String::len).sum());
        if self.keeps(path.len() + names) {
            let mut looked = self.looked.borrow_mut();
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

impl Resolver for Looking<'_> {
    fn look(&self, path: &str) -> Look {
        let look = self.resolver.look(path);
        let (stood, more) = match &look {
            Look::Directory => (Stood::Directory(true), 0),
            Look::Unresolved => (Stood::Directory(false), 0),
            Look::Link(target) => (Stood::Link(target.clone()), target.len()),
            Look::File | Look::Missing => (Stood::Other(()), 0),
        };
        let is_known = self.looked.borrow().at.contains_key(path);
        if !is_known && self.keeps(path.len() + more) {
            self.looked.borrow_mut().at.insert(path.to_owned(), stood);
        }
        look
    }

    fn links(&self, path: &str) -> Option<Vec<String>> {
        self.listed(path, true)
    }

    fn names(&self, path: &str) -> Option<Vec<String>> {
        self.listed(path, false)
    }

    fn exists(&self, path: &str) -> bool {
        let exists = self.resolver.exists(path);
        let is_known = self.looked.borrow().there.contains_key(path);
        if !is_known && self.keeps(path.len()) {
            let mut looked = self.looked.borrow_mut();
            looked.there.insert(path.to_owned(), exists);
        }
        exists
    }
}

/// The file system as a decision saw it. What it did not look at counts as not there, and is
/// noticed.
#[derive(Debug, Default)]
pub struct Remembered {
    looked: Looked,
    guessed: Cell<bool>,
}

impl Remembered {
    /// As it was seen then.
    #[must_use]
    pub fn new(looked: Looked) -> Self {
        Self {
            looked,
            guessed: Cell::new(false),
        }
    }

    /// Whether it was asked since it was asked this what nobody looked at then.
    pub fn guessed(&self) -> bool {
        self.guessed.take()
    }

    fn listed(&self, path: &str, only_links: bool) -> Option<Vec<String>> {
        let of = if only_links {
            &self.looked.links
        } else {
            &self.looked.names
        };
        of.get(path).cloned().unwrap_or_else(|| {
            self.guessed.set(true);
            Some(Vec::new())
        })
    }
}

impl Resolver for Remembered {
    fn look(&self, path: &str) -> Look {
        match self.looked.at.get(path) {
            Some(Stood::Directory(true)) => Look::Directory,
            Some(Stood::Directory(false)) => Look::Unresolved,
            Some(Stood::Link(target)) => Look::Link(target.clone()),
            Some(Stood::Other(())) => Look::Missing,
            None => {
                self.guessed.set(true);
                Look::Missing
            }
        }
    }

    fn links(&self, path: &str) -> Option<Vec<String>> {
        self.listed(path, true)
    }

    fn names(&self, path: &str) -> Option<Vec<String>> {
        self.listed(path, false)
    }

    fn exists(&self, path: &str) -> bool {
        match (self.looked.there.get(path), self.looked.at.get(path)) {
            (Some(exists), _) => *exists,
            (None, Some(Stood::Directory(_) | Stood::Link(_))) => true,
            (None, _) => {
                self.guessed.set(true);
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
        fn look(&self, path: &str) -> Look {
            match path {
                "/w/d" => Look::Directory,
                "/w/l" => Look::Link("d/e".to_owned()),
                "/w/x" => Look::Unresolved,
                _ => Look::Missing,
            }
        }
        fn links(&self, path: &str) -> Option<Vec<String>> {
            (path == "/w").then(|| vec!["l".to_owned()])
        }
        fn names(&self, path: &str) -> Option<Vec<String>> {
            (path == "/w").then(|| vec!["d".to_owned(), "l".to_owned()])
        }
    }

    #[test]
    fn what_was_seen_is_seen_again_and_nothing_else() {
        let looking = Looking::new(&Tree);
        for path in ["/w/d", "/w/l", "/w/x", "/w/none"] {
            looking.look(path);
        }
        looking.exists("/w/x");
        looking.exists("/w/none");
        for path in ["/w", "/w/none"] {
            looking.links(path);
            looking.names(path);
        }
        let text = serde_json::to_string(&looking.looked()).expect("JSON");
        let again = Remembered::new(serde_json::from_str(&text).expect(&text));
        for path in ["/w/d", "/w/l", "/w/x", "/w/none"] {
            assert_eq!(again.look(path), Tree.look(path), "{text}");
        }
        for path in ["/w", "/w/none"] {
            assert_eq!(again.links(path), Tree.links(path), "{text}");
            assert_eq!(again.names(path), Tree.names(path), "{text}");
        }
        assert!(again.exists("/w/x") && again.exists("/w/d") && !again.exists("/w/none"));
        assert!(!again.guessed(), "{text}");
        assert!(!again.exists("/w/other") && again.guessed());
        assert_eq!(again.look("/w/other"), Look::Missing);
        assert!(again.guessed() && !again.guessed());
    }

    #[test]
    fn what_is_kept_has_a_bound() {
        let looking = Looking::new(&Tree);
        for n in 0..2 * ANSWERS {
            looking.look(&format!("/w/{n}"));
        }
        let looked = looking.looked();
        assert!(looked.cut && looked.at.len() == ANSWERS);
        let looking = Looking::new(&Tree);
        for n in 0..20 {
            looking.look(&format!("/w/{n}/{}", "x".repeat(1 << 10)));
        }
        let text = serde_json::to_string(&looking.looked()).expect("JSON");
        assert!(text.len() < 2 * BYTES, "{}", text.len());
    }
}
