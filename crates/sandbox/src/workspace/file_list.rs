//! The list of files to copy: git's list, or all files.
//!
//! Git never runs here: it interprets the repository, so it runs in a sandbox, and only its output
//! comes back. That output is untrusted: every path is checked, and invalid ones are counted.

use super::foreign_path;
use super::tree::{
    IncompleteReason, Kind, Root, TreeError, WalkBounds, WalkStep, meta_of, open_handle_at, walk,
};
use marshal_model::UntrustedText;
use marshal_model::limits;

/// What `.git` of a workspace is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GitDir {
    /// A directory: git lists the files, and `.git` is copied too.
    Dir,
    /// A file (a worktree or submodule) or a link: it points elsewhere, so it is not copied, and
    /// git cannot be used.
    Elsewhere,
    /// It does not exist.
    None,
}

/// Checks `.git` of a workspace, without following a link.
pub fn git_dir(workspace: &Root) -> Result<GitDir, TreeError> {
    let meta = match open_handle_at(workspace, c".git") {
        Ok(handle) => meta_of(handle),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(GitDir::None),
        Err(error) => Err(error),
    };
    match meta {
        Ok(meta) if meta.kind == Kind::Dir => Ok(GitDir::Dir),
        Ok(_) => Ok(GitDir::Elsewhere),
        Err(error) => Err(TreeError::at("examine", b".git", error)),
    }
}

/// A command to run in a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GitCommand {
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Its complete environment, PATH excluded.
    pub env: Vec<(String, String)>,
}

/// The command that lists the tracked and untracked files of the workspace mounted at `inside`
/// (`/workspace`), on a read-only mount and without network. It prints NUL-separated relative
/// paths.
///
/// Repository and work tree are explicit, so that the repository's `core.worktree` and `core.bare`
/// have no effect; every setting that could start a program is disabled.
#[must_use]
pub fn ls_files(inside: &str) -> GitCommand {
    let words = [
        "git",
        "-C",
        inside,
        "-c",
        "core.fsmonitor=false",
        "-c",
        "core.untrackedCache=false",
        "-c",
        "core.hooksPath=/dev/null",
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    ];
    let git_dir = format!("{inside}/.git");
    let env = [
        ("GIT_DIR", git_dir.as_str()),
        ("GIT_WORK_TREE", inside),
        ("GIT_CONFIG_COUNT", "1"),
        ("GIT_CONFIG_KEY_0", "safe.directory"),
        ("GIT_CONFIG_VALUE_0", "*"),
        ("GIT_CONFIG_NOSYSTEM", "1"),
        ("GIT_OPTIONAL_LOCKS", "0"),
        ("GIT_TERMINAL_PROMPT", "0"),
        // A repository can name a program that fetches missing objects: disable fetches.
        ("GIT_NO_LAZY_FETCH", "1"),
        ("GIT_ALLOW_PROTOCOL", ":"),
        ("LC_ALL", "C"),
    ];
    GitCommand {
        argv: words.map(str::to_owned).to_vec(),
        env: env
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .to_vec(),
    }
}

/// The file in a workspace that names untracked files which go along, as `.gitignore` names files.
pub const INCLUDE_FILE: &str = ".worktreeinclude";

/// Lists the untracked files that pathspecs or [`INCLUDE_FILE`] name, ignored ones too.
const INCLUDED: &str = r#"
file=$1
shift
if [ $# -gt 0 ]; then git ls-files -z --others -- "$@"; fi
if [ -f "$file" ] && [ ! -L "$file" ]; then
    exec git ls-files -z --others --ignored --exclude-from="$file"
fi
"#;

/// The command that lists the untracked files of a workspace that go along into a copy or clone.
/// The workspace is mounted at `inside`, read-only; its git directory is `git_dir`, and what that one
/// shares with others is in `common`.
#[must_use]
pub fn included_files(inside: &str, git_dir: &str, common: &str, specs: &[String]) -> GitCommand {
    let file = format!("{inside}/{INCLUDE_FILE}");
    let script = ["/bin/sh", "-c", INCLUDED, "git", &file];
    let mut command = ls_files(inside);
    command.argv = script.map(str::to_owned).to_vec();
    command.argv.extend(specs.iter().cloned());
    command.env.retain(|(name, _)| name != "GIT_DIR");
    for (name, value) in [("GIT_DIR", git_dir), ("GIT_COMMON_DIR", common)] {
        command.env.push((name.to_owned(), value.to_owned()));
    }
    command
}

/// Why there is no list.
#[derive(Debug, thiserror::Error)]
pub enum ListError {
    /// More files or bytes of names than the limit.
    #[error(
        "the workspace has more than {files} files or {list_bytes} bytes of file names; \
         use workspace mode \"ro\", or point the pool at a smaller directory"
    )]
    TooMany {
        /// The maximum number of files.
        files: u64,
        /// The maximum size of the list in bytes.
        list_bytes: usize,
    },
    /// Directories are nested deeper than the limit.
    #[error(
        "the workspace has more than {levels} levels of directories (at {}); \
         use workspace mode \"ro\"", .at.escape_for_display(200)
    )]
    TooDeep {
        /// The maximum depth.
        levels: usize,
        /// A path that exceeds it.
        at: UntrustedText,
    },
    /// Listing exceeded its time limit.
    #[error("the workspace could not be listed in {seconds} s; use workspace mode \"ro\"")]
    TooSlow {
        /// The time limit in seconds.
        seconds: u64,
    },
    /// The tree could not be read.
    #[error(transparent)]
    Tree(#[from] TreeError),
}

impl ListError {
    pub(super) fn too_many(files: u64) -> Self {
        Self::TooMany {
            files,
            list_bytes: limits::COPY_LIST_BYTES,
        }
    }
}

/// Paths below a workspace's root, in walk order: checked, sorted, without duplicates.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FileList {
    paths: Vec<Vec<u8>>,
    /// Number of paths skipped because they cannot name a file below the root: absolute, or with an
    /// empty, `.` or `..` component.
    pub invalid: u64,
    /// Number of directories that could not be listed for lack of permission.
    pub unreadable: u64,
}

impl FileList {
    /// Parses the output of [`ls_files`].
    ///
    /// # Errors
    /// [`ListError::TooMany`] and [`ListError::TooDeep`].
    pub fn parse(output: &[u8], max_files: u64) -> Result<Self, ListError> {
        let too_many = || ListError::too_many(max_files);
        if output.len() > limits::COPY_LIST_BYTES {
            return Err(too_many());
        }
        let mut list = Self::default();
        for path in output.split(|&byte| byte == 0) {
            // git lists a nested repository with a trailing slash.
            let path = path.strip_suffix(b"/").unwrap_or(path);
            if path.is_empty() {
                continue;
            }
            if !is_plain_relative(path) {
                list.invalid += 1;
                continue;
            }
            list.push(path)?;
            // Unmerged files appear once for each stage: up to three times.
            if list.paths.len() as u64 > max_files.saturating_mul(4) {
                return Err(too_many());
            }
        }
        list.sort();
        if list.paths.len() as u64 > max_files {
            return Err(too_many());
        }
        Ok(list)
    }

    /// Lists the directory `start` (`""` for the root) and everything in it, except paths that
    /// `skip` names.
    pub(super) fn walk(
        root: &Root,
        start: &[u8],
        max_files: u64,
        skip: &dyn Fn(&[u8]) -> bool,
    ) -> Result<Self, ListError> {
        let mut list = Self::default();
        let mut bytes = 0_usize;
        let mut failed = None;
        let dir = match open_below(root, start) {
            Ok(dir) => dir,
            Err(error) if is_gone(&error) => return Ok(list),
            Err(error) => return Err(TreeError::at("open", start, error).into()),
        };
        let bounds = WalkBounds {
            entries: max_files.saturating_add(1),
            ..WalkBounds::default()
        };
        let mut full = Vec::new();
        let walked = match walk(&dir, bounds, &mut |entry| {
            full.clear();
            full.extend_from_slice(start);
            if !start.is_empty() {
                full.push(b'/');
            }
            full.extend_from_slice(entry.path);
            if skip(&full) {
                return WalkStep::Skip;
            }
            bytes += full.len() + 1;
            if bytes > limits::COPY_LIST_BYTES {
                failed = Some(ListError::too_many(max_files));
            } else if let Err(error) = list.push(&full) {
                failed = Some(error);
            }
            match failed {
                None => WalkStep::Enter,
                Some(_) => WalkStep::Stop,
            }
        }) {
            Err(error) if is_gone(&error) => return Ok(list),
            walked => walked.map_err(|error| TreeError::at_path("list", root.path(), error))?,
        };
        if let Some(error) = failed {
            return Err(error);
        }
        if !start.is_empty() {
            list.push(start)?;
        }
        match walked.incomplete {
            None
            | Some(IncompleteReason::Moved | IncompleteReason::Visitor | IncompleteReason::Depth) =>
                {}
            Some(IncompleteReason::Entries) => return Err(ListError::too_many(max_files)),
            Some(IncompleteReason::Time) => {
                return Err(ListError::TooSlow {
                    seconds: limits::WALK_TIME.as_secs(),
                });
            }
        }
        list.unreadable = walked.unreadable;
        list.sort();
        Ok(list)
    }

    /// Lists one path, and everything in it if it is a directory.
    pub(super) fn below(root: &Root, path: &[u8], max_files: u64) -> Result<Self, ListError> {
        let mut list = Self::walk(root, path, max_files, &|_| false)?;
        if list.is_empty() {
            list.push(path)?;
        }
        Ok(list)
    }

    /// The paths: a directory directly before its content.
    pub fn paths(&self) -> impl Iterator<Item = &[u8]> {
        self.paths.iter().map(Vec::as_slice)
    }

    /// Adds another list.
    pub fn extend(&mut self, other: Self) {
        self.paths.extend(other.paths);
        self.invalid += other.invalid;
        self.sort();
    }

    /// Adds what is in the listed directories: git lists a submodule, and a repository that it does not
    /// track, as one path.
    ///
    /// # Errors
    /// [`ListError`] if there are more than `max_files`.
    pub fn add_nested(&mut self, root: &Root, max_files: u64) -> Result<(), ListError> {
        let is_directory = |path: &&[u8]| {
            let meta = open_below(root, path).and_then(meta_of);
            meta.is_ok_and(|meta| meta.kind == Kind::Dir)
        };
        let nested: Vec<Vec<u8>> = self
            .paths()
            .filter(is_directory)
            .map(<[u8]>::to_vec)
            .collect();
        for path in nested {
            self.extend(Self::walk(root, &path, max_files, &|_| false)?);
        }
        Ok(())
    }

    /// Removes paths from the list.
    pub fn leave_out(&mut self, is_out: impl Fn(&[u8]) -> bool) {
        self.paths.retain(|path| !is_out(path));
    }

    /// Number of paths.
    #[must_use]
    pub fn len(&self) -> usize {
        self.paths.len()
    }

    /// Whether the list is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.paths.is_empty()
    }

    fn push(&mut self, path: &[u8]) -> Result<(), ListError> {
        if path.split(|&byte| byte == b'/').count() > limits::COPY_DEPTH {
            return Err(ListError::TooDeep {
                levels: limits::COPY_DEPTH,
                at: foreign_path(path),
            });
        }
        self.paths.push(path.to_owned());
        Ok(())
    }

    /// Sorts by components, so that the entries of one directory are together.
    fn sort(&mut self) {
        let rank = |byte: u8| if byte == b'/' { 0 } else { u16::from(byte) + 1 };
        self.paths
            .sort_unstable_by(|a, b| a.iter().map(|&x| rank(x)).cmp(b.iter().map(|&x| rank(x))));
        self.paths.dedup();
    }
}

fn is_plain_relative(path: &[u8]) -> bool {
    path.split(|&byte| byte == b'/')
        .all(|part| !part.is_empty() && part != b"." && part != b"..")
}

fn is_gone(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{NotADirectory, NotFound};
    matches!(error.kind(), NotFound | NotADirectory)
}

/// Opens a directory below the root, one component at a time.
fn open_below(root: &Root, path: &[u8]) -> std::io::Result<std::os::fd::OwnedFd> {
    let mut dir = open_handle_at(root, c".")?;
    for part in path
        .split(|&byte| byte == b'/')
        .filter(|part| !part.is_empty())
    {
        let name = std::ffi::CString::new(part).map_err(|_| rustix::io::Errno::INVAL)?;
        dir = open_handle_at(&dir, &name)?;
    }
    Ok(dir)
}

#[cfg(test)]
mod tests {
    use super::super::testing::scratch;
    use super::*;

    fn check(output: &[u8], paths: &[&str], odd: u64) {
        let list = FileList::parse(output, 10).expect("a list");
        let got: Vec<_> = list.paths().map(String::from_utf8_lossy).collect();
        assert_eq!(
            (got, list.invalid),
            (paths.iter().map(|&p| p.into()).collect(), odd)
        );
    }

    #[test]
    fn a_list_keeps_only_what_lies_below_the_root() {
        check(b"", &[], 0);
        check(b"a\0b/c\0", &["a", "b/c"], 0);
        check(b"no end", &["no end"], 0);
        check(
            b"/etc/shadow\0../x\0a/../b\0a//b\0./a\0..\0ok\0",
            &["ok"],
            6,
        );
        check(b"nested/\0a\nb\0", &["a\nb", "nested"], 0);
        check(b"u\0u\0u\0", &["u"], 0);
    }

    #[test]
    fn what_is_in_a_directory_stands_directly_behind_it() {
        check(
            b"a.b\0a/z\0a-c\0a\0a/b/c\0a/b\0",
            &["a", "a/b", "a/b/c", "a/z", "a-c", "a.b"],
            0,
        );
    }

    #[test]
    fn a_list_beyond_its_bounds_is_refused_with_a_hint() {
        let many: Vec<u8> = (0..11)
            .flat_map(|n| format!("{n}\0").into_bytes())
            .collect();
        let error = FileList::parse(&many, 10).expect_err("too many");
        assert!(error.to_string().contains("\"ro\""), "{error}");
        assert!(FileList::parse(&many, 11).is_ok());
        let deep = "d/".repeat(limits::COPY_DEPTH) + "f";
        let error = FileList::parse(deep.as_bytes(), 10).expect_err("too deep");
        assert!(matches!(error, ListError::TooDeep { .. }), "{error}");
    }

    #[test]
    fn dot_git_is_looked_at_and_never_followed() {
        let dir = scratch();
        let root = Root::open(dir.path()).unwrap();
        let git = dir.path().join(".git");
        assert_eq!(git_dir(&root).unwrap(), GitDir::None);
        std::fs::write(&git, "gitdir: /elsewhere").unwrap();
        assert_eq!(git_dir(&root).unwrap(), GitDir::Elsewhere);
        std::fs::remove_file(&git).unwrap();
        std::os::unix::fs::symlink("/", &git).unwrap();
        assert_eq!(git_dir(&root).unwrap(), GitDir::Elsewhere);
        std::fs::remove_file(&git).unwrap();
        std::fs::create_dir(&git).unwrap();
        assert_eq!(git_dir(&root).unwrap(), GitDir::Dir);
    }

    #[test]
    fn git_lists_tracked_and_new_files_and_starts_nothing_of_the_repository() {
        use std::process::Command;
        let dir = scratch();
        let inside = dir.path().to_str().unwrap();
        let git = |args: &[&str]| {
            let mut command = Command::new("git");
            command.args(["-C", inside, "-c", "user.name=a", "-c", "user.email=a@b"]);
            assert!(
                command
                    .args(args)
                    .output()
                    .expect("git runs")
                    .status
                    .success()
            );
        };
        git(&["init", "-q"]);
        std::fs::write(dir.path().join(".gitignore"), "ignored\n").unwrap();
        std::fs::write(dir.path().join("tracked\n1"), "x").unwrap();
        git(&["add", "."]);
        git(&["commit", "-qm", "x"]);
        std::fs::write(dir.path().join("new"), "x").unwrap();
        std::fs::write(dir.path().join("ignored"), "x").unwrap();
        let planted = dir.path().join("planted");
        let hook = format!("!touch {}; false", planted.display());
        git(&["config", "core.fsmonitor", &hook[1..]]);
        git(&["config", "core.worktree", "/etc"]);
        let command = ls_files(inside);
        let output = Command::new(&command.argv[0])
            .args(&command.argv[1..])
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .envs(command.env)
            .output()
            .expect("git runs");
        assert!(output.status.success(), "{output:?}");
        let list = FileList::parse(&output.stdout, 10).unwrap();
        let got: Vec<_> = list.paths().map(String::from_utf8_lossy).collect();
        assert_eq!(got, [".gitignore", "new", "tracked\n1"]);
        assert!(!planted.exists());
    }
}
