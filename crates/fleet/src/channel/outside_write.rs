//! Writes of an agent that sees its workspace read-only: the supervisor writes the directory itself.
//!
//! Owns which files such a write may reach: those that the agent sees, and none that other programs
//! obey. Inside, the read-only mount and the mounts over hidden files would decide that. Must not
//! know who requested the write.

use std::sync::Arc;

use marshal_config::{Workspace, WorkspaceMode};
use marshal_model::{ClientError, ClientErrorKind};
use marshal_sandbox::workspace::Masks;

/// Which files of a read-only workspace may be written from outside.
#[derive(Debug)]
pub(crate) struct OutsideWrites {
    masks: Arc<Masks>,
    /// The only visible paths; empty: all of them.
    slice: Vec<String>,
}

impl OutsideWrites {
    /// `None` if the workspace is written inside the sandbox. `masks` are the workspace's.
    pub(crate) fn new(workspace: &Workspace, masks: &Arc<Masks>) -> Option<Self> {
        (workspace.mode == WorkspaceMode::Ro).then(|| Self {
            masks: Arc::clone(masks),
            slice: workspace.slice.clone(),
        })
    }

    /// The visible directory that has a path below the workspace, which is a mount of its own; empty
    /// if that is the whole workspace.
    pub(super) fn visible_dir(&self, below: &str) -> &str {
        let dirs = self.slice.iter().map(|dir| dir.trim_end_matches('/'));
        let has_it = |dir: &&str| {
            let rest = below.strip_prefix(dir);
            rest.is_some_and(|rest| rest.starts_with('/'))
        };
        dirs.filter(has_it)
            .max_by_key(|dir| dir.len())
            .unwrap_or("")
    }

    /// Checks a path below the workspace.
    pub(super) fn check(&self, below: &str, path: &str) -> Result<(), ClientError> {
        let why = if self.masks.hides(below.as_bytes()) {
            "it is hidden from agents (workspace.mask)"
        } else if !self.slice.is_empty() && self.visible_dir(below).is_empty() {
            "it is outside of the visible directories (workspace.slice)"
        } else if marshal_policy::guard().is_protected(below, true) {
            "other programs run or obey it"
        } else {
            return Ok(());
        };
        let why = format!("{path}: {why}, so it is not written");
        Err(ClientError::new(ClientErrorKind::Invalid, why))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_hidden_elsewhere_or_obeyed_is_not_written() {
        let writes = |mask: &[&str], slice: &[&str]| OutsideWrites {
            masks: Masks::new(&mask.iter().map(ToString::to_string).collect::<Vec<_>>())
                .expect("patterns")
                .into(),
            slice: slice.iter().map(ToString::to_string).collect(),
        };
        let refused = |of: &OutsideWrites, below: &str| {
            let checked = of.check(below, "/workspace/x");
            checked.err().map(|error| format!("{error:?}"))
        };
        let all = writes(&[".env*", "keys/"], &[]);
        assert_eq!(refused(&all, "src/lib.rs"), None);
        for (below, why) in [
            (".env", "hidden"),
            ("a/.ENV.local", "hidden"),
            ("keys/new", "hidden"),
            (".git/hooks/pre-commit", "obey"),
            (".github/workflows/ci.yml", "obey"),
        ] {
            let error = refused(&all, below).unwrap_or_else(|| panic!("{below}"));
            assert!(error.contains(why), "{error}");
        }
        let some = writes(&[], &["src", "docs/"]);
        assert_eq!(refused(&some, "src/a.rs"), None);
        assert_eq!(refused(&some, "docs/a/b.md"), None);
        for below in ["srcs/a", "README.md", "src"] {
            assert!(refused(&some, below).is_some(), "{below}");
        }
    }
}
