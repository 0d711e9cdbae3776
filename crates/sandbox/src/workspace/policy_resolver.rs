//! Answers the policy's questions about paths from the trees that a session really has.
//!
//! Only translates: the IO stands in [`super::resolve`], the walk in the policy.

use super::resolve::{PathNode, TreeResolver};
use marshal_policy::{FsEntry, Resolver};

/// A name that is no text cannot be compared with what a pattern matches.
fn texts(names: Vec<Vec<u8>>) -> Option<Vec<String>> {
    let text = |name| String::from_utf8(name).ok();
    names.into_iter().map(text).collect()
}

impl Resolver for TreeResolver {
    fn lookup(&self, path: &str) -> FsEntry {
        match self.read_link(path.as_bytes()) {
            PathNode::Target(target) => {
                String::from_utf8(target).map_or(FsEntry::Unresolved, FsEntry::Link)
            }
            PathNode::Directory => FsEntry::Directory,
            PathNode::Other => FsEntry::File,
            PathNode::Missing => FsEntry::Missing,
            PathNode::Unresolved(_) => FsEntry::Unresolved,
        }
    }

    fn list_links(&self, path: &str) -> Option<Vec<String>> {
        texts(self.links_in(path.as_bytes())?)
    }

    fn list_names(&self, path: &str) -> Option<Vec<String>> {
        texts(self.names_in(path.as_bytes())?)
    }
}
