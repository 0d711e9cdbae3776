//! Answers the policy's questions about paths from a session's real trees.
//!
//! Only translates: [`super::resolve`] does the IO, the policy does the walk.

use super::resolve::{PathNode, TreeResolver};
use marshal_policy::{FsEntry, Resolver};

/// Patterns match text, so a name that is not UTF-8 cannot be compared.
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
