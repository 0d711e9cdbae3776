//! Answers the policy's questions about paths from the trees that a session really has.
//!
//! Only translates: the IO stands in [`super::resolve`], the walk in the policy.

use super::resolve::{Link, TreeLinks};
use crate::policy::{Look, Resolver};

/// A name that is no text cannot be compared with what a pattern matches.
fn texts(names: Vec<Vec<u8>>) -> Option<Vec<String>> {
    let text = |name| String::from_utf8(name).ok();
    names.into_iter().map(text).collect()
}

impl Resolver for TreeLinks {
    fn look(&self, path: &str) -> Look {
        match self.read_link(path.as_bytes()) {
            Link::Target(target) => String::from_utf8(target).map_or(Look::Unresolved, Look::Link),
            Link::Directory => Look::Directory,
            Link::Other => Look::File,
            Link::Missing => Look::Missing,
            Link::Unresolved(_) => Look::Unresolved,
        }
    }

    fn links(&self, path: &str) -> Option<Vec<String>> {
        texts(self.links_in(path.as_bytes())?)
    }

    fn names(&self, path: &str) -> Option<Vec<String>> {
        texts(self.names_in(path.as_bytes())?)
    }
}
