//! The repository of a workspace: its own `.git`, or the one that its file `.git` names (a linked
//! worktree, a submodule).
//!
//! A file that names a repository proves nothing: anybody who may write the workspace can write it.
//! So the repository must name the workspace back, and belong to its owner. Must not run git.

use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::{BranchError, SOURCE_INSIDE, open_regular};
use crate::workspace::file_list::{GitDir, git_dir};
use crate::workspace::tree::{Root, TreeError};

/// Maximum size of a file of git that is read here, in bytes.
const GIT_FILE_BYTES: u64 = 64 << 10;

/// A repository on the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repository {
    /// The directory with its objects and branches, absolute and without links.
    pub common: PathBuf,
    /// The name of the linked worktree; `None` if the workspace is none.
    worktree: Option<String>,
}

/// Why the file `.git` of a workspace leads to no repository of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum GitFileFault {
    /// It is a link, or a file of another form.
    #[error("it does not have the form \"gitdir: PATH\"")]
    Form,
    /// There is nothing where it leads.
    #[error("there is no repository where it leads")]
    Missing,
    /// The repository names another directory.
    #[error("the repository there does not name this directory as its working tree")]
    NotNamedBack,
    /// The repository belongs to somebody else.
    #[error("the repository there belongs to another user")]
    OtherOwner,
}

impl Repository {
    /// Finds the repository of a workspace, and refuses one that cannot be cloned, as far as this
    /// is visible without git.
    ///
    /// # Errors
    /// [`BranchError`] with the reason.
    pub fn find(source: &Path) -> Result<Self, BranchError> {
        let root = Root::open_resolved(source)?;
        let repository = match git_dir(&root)? {
            GitDir::Dir => Self {
                common: source.join(".git"),
                worktree: None,
            },
            GitDir::Elsewhere => Self::named_by_file(&root)?,
            GitDir::None => return Err(BranchError::NoRepository),
        };
        let common = &repository.common;
        for path in [common.clone(), common.join("objects")] {
            // A link in the path would point git at another directory than the mounted one.
            Root::open_resolved(&path)?;
        }
        match common.join("objects/info/alternates").symlink_metadata() {
            Ok(meta) if meta.len() > 0 => Err(BranchError::HasAlternates),
            _ => Ok(repository),
        }
    }

    /// The directory of its objects on the host.
    #[must_use]
    pub fn objects(&self) -> PathBuf {
        self.common.join("objects")
    }

    /// The git directory of the workspace in a sandbox where the repository is mounted at
    /// [`SOURCE_INSIDE`].
    #[must_use]
    pub fn git_dir_inside(&self) -> String {
        match &self.worktree {
            Some(name) => format!("{SOURCE_INSIDE}/worktrees/{name}"),
            None => SOURCE_INSIDE.to_owned(),
        }
    }

    fn named_by_file(workspace: &Root) -> Result<Self, BranchError> {
        let source = workspace.path();
        let fault = |fault| BranchError::GitFile(fault);
        let file = read_git_file(workspace, ".git").ok_or(fault(GitFileFault::Form))?;
        let named = file
            .strip_prefix("gitdir: ")
            .filter(|path| !path.is_empty())
            .ok_or(fault(GitFileFault::Form))?;
        let missing = |_| fault(GitFileFault::Missing);
        let git_dir = source.join(named).canonicalize().map_err(missing)?;
        let root = Root::open_resolved(&git_dir).map_err(|_| fault(GitFileFault::Missing))?;
        let repository = match read_git_file(&root, "commondir") {
            Some(common) => Self::of_worktree(&root, &common, source),
            None => Self::of_submodule(&root, source),
        };
        let repository = repository.ok_or(fault(GitFileFault::NotNamedBack))?;
        Self::of_owner(source, repository)
    }

    /// The repository that shares `git_dir` with a linked worktree, if it names `source` back.
    fn of_worktree(git_dir: &Root, common: &str, source: &Path) -> Option<Self> {
        let common = git_dir.path().join(common).canonicalize().ok()?;
        let name = git_dir.path().file_name()?.to_str()?;
        let back = git_dir.path().join(read_git_file(git_dir, "gitdir")?);
        let is_below = git_dir.path().parent() == Some(&common.join("worktrees"));
        let is_named_back = back.ends_with(".git") && is_dir(back.parent()?, source);
        (is_below && is_named_back).then(|| Self {
            worktree: Some(name.to_owned()),
            common,
        })
    }

    /// The repository of a submodule, if it names `source` back.
    fn of_submodule(git_dir: &Root, source: &Path) -> Option<Self> {
        let config = read_git_file(git_dir, "config")?;
        let tree = git_dir.path().join(work_tree(&config)?);
        is_dir(&tree, source).then(|| Self {
            common: git_dir.path().to_owned(),
            worktree: None,
        })
    }

    /// The repository, if it belongs to the owner of the workspace.
    fn of_owner(source: &Path, repository: Self) -> Result<Self, BranchError> {
        let owner = |path: &Path| {
            let meta = path.symlink_metadata();
            meta.map(|meta| meta.uid())
                .map_err(|error| TreeError::at_path("examine", path, error))
        };
        if owner(source)? == owner(&repository.common)? {
            Ok(repository)
        } else {
            Err(BranchError::GitFile(GitFileFault::OtherOwner))
        }
    }
}

/// Whether a path leads to this directory.
fn is_dir(path: &Path, dir: &Path) -> bool {
    path.canonicalize().is_ok_and(|path| path == dir)
}

/// A small text file of git, without the end of its line; `None` if there is none.
fn read_git_file(dir: &Root, name: &str) -> Option<String> {
    let mut text = String::new();
    let file = open_regular(dir, name).ok()?;
    file.take(GIT_FILE_BYTES).read_to_string(&mut text).ok()?;
    text.truncate(text.trim_end_matches(['\n', '\r']).len());
    Some(text)
}

/// `core.worktree` of a configuration.
fn work_tree(config: &str) -> Option<&str> {
    let mut is_core = false;
    let mut found = None;
    for line in config.lines().map(str::trim) {
        if line.starts_with('[') {
            is_core = line.eq_ignore_ascii_case("[core]");
        } else if let Some((key, value)) = line.split_once('=')
            && is_core
            && key.trim().eq_ignore_ascii_case("worktree")
        {
            found = Some(value.trim().trim_matches('"'));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::scratch;
    use super::*;

    /// A repository `main` with a linked worktree `linked`, and a submodule `sub` of it.
    fn repositories() -> (impl Drop, PathBuf) {
        let dir = scratch();
        let at = dir.path().canonicalize().unwrap();
        for path in [
            "main/.git/objects",
            "main/.git/worktrees/linked",
            "main/.git/modules/sub/objects",
            "main/sub",
            "linked",
        ] {
            std::fs::create_dir_all(at.join(path)).unwrap();
        }
        let write = |path: &str, text: &str| std::fs::write(at.join(path), text).unwrap();
        let place = at.display();
        write(
            "linked/.git",
            &format!("gitdir: {place}/main/.git/worktrees/linked\n"),
        );
        write("main/.git/worktrees/linked/commondir", "../..\n");
        write(
            "main/.git/worktrees/linked/gitdir",
            &format!("{place}/linked/.git\n"),
        );
        write("main/sub/.git", "gitdir: ../.git/modules/sub\n");
        write(
            "main/.git/modules/sub/config",
            "[core]\n\tbare = false\n\tworktree = ../../../sub\n[x]\n\tworktree = /\n",
        );
        (dir, at)
    }

    #[test]
    fn a_linked_worktree_and_a_submodule_lead_to_their_repository() {
        let (_dir, at) = repositories();
        let linked = Repository::find(&at.join("linked")).unwrap();
        assert_eq!(linked.common, at.join("main/.git"));
        assert_eq!(
            linked.git_dir_inside(),
            "/run/marshal/source.git/worktrees/linked"
        );
        let sub = Repository::find(&at.join("main/sub")).unwrap();
        assert_eq!(sub.objects(), at.join("main/.git/modules/sub/objects"));
        assert_eq!(sub.git_dir_inside(), SOURCE_INSIDE);
        // As git writes it with extensions.relativeWorktrees.
        std::fs::write(
            at.join("linked/.git"),
            "gitdir: ../main/.git/worktrees/linked",
        )
        .unwrap();
        let back = at.join("main/.git/worktrees/linked/gitdir");
        std::fs::write(back, "../../../../linked/.git").unwrap();
        assert_eq!(Repository::find(&at.join("linked")).unwrap(), linked);
    }

    #[test]
    fn a_file_that_is_not_named_back_leads_nowhere() {
        let fault = |source: PathBuf| match Repository::find(&source) {
            Err(BranchError::GitFile(fault)) => fault,
            other => panic!("{other:?}"),
        };
        let (_dir, at) = repositories();
        std::fs::create_dir(at.join("other")).unwrap();
        for (text, expected) in [
            ("", GitFileFault::Form),
            ("gitdir: ", GitFileFault::Form),
            ("gitdir: nowhere", GitFileFault::Missing),
            // Another's worktree, submodule and repository.
            (
                "gitdir: ../main/.git/worktrees/linked",
                GitFileFault::NotNamedBack,
            ),
            (
                "gitdir: ../main/.git/modules/sub",
                GitFileFault::NotNamedBack,
            ),
            ("gitdir: ../main/.git", GitFileFault::NotNamedBack),
        ] {
            std::fs::write(at.join("other/.git"), text).unwrap();
            assert_eq!(fault(at.join("other")), expected, "{text:?}");
        }
        // What the workspace itself holds names nobody but itself, and is not below a repository.
        std::fs::create_dir(at.join("other/w")).unwrap();
        std::fs::write(at.join("other/.git"), "gitdir: w").unwrap();
        std::fs::write(
            at.join("other/w/commondir"),
            at.join("main/.git").to_str().unwrap(),
        )
        .unwrap();
        let back = at.join("other/.git");
        std::fs::write(at.join("other/w/gitdir"), back.to_str().unwrap()).unwrap();
        assert_eq!(fault(at.join("other")), GitFileFault::NotNamedBack);
        // A link is no file.
        std::fs::remove_file(&back).unwrap();
        std::os::unix::fs::symlink(at.join("linked/.git"), &back).unwrap();
        assert_eq!(fault(at.join("other")), GitFileFault::Form);
    }
}
