//! The git command that puts a session's branch onto a branch of its source, and the parser of its
//! output.
//!
//! It works in a repository that it creates, without the files of the tree: only those with
//! conflicts are written. What comes out is a pack of its own, checked without that repository.
//! Must not run anything.

use super::bundle_header::{BundleHeader, ObjectId};
use super::changes::{self, Change, LIST_CHANGES};
use super::git::{Author, COUNT, LineCounts, script, with_author};
use super::{BUNDLE_INSIDE, BranchError, SOURCE_INSIDE};
use crate::workspace::file_list::GitCommand;
use marshal_model::limits;

/// The directory of the pack, below the directory that the command works in.
pub const REBASED_PACK: &str = "out/pack";

/// Maximum bytes of a branch's name.
const BRANCH_BYTES: usize = 400;

/// Maximum bytes of a part of a branch's name: with `.lock` it is the name of a file.
const PART_BYTES: usize = 250;

/// Puts the session's commits onto the branch in the current directory, which is empty.
///
/// A branch that has the target already stays as it is. One with merges becomes one commit: a rebase
/// would lose how the conflicts of its merges were resolved.
const REBASE: &str = r#"
set -e
S=$1 bundle=$2 from=$3 most=$4 format=$5 base=$6 tip=$7 onto=$8 before=$9
end() { printf '%s\n' "$1"; exit 0; }
source_git() { git --git-dir="$S" "$@"; }
if [ -e "$S/reftable" ]; then end reftable; fi
if source_git symbolic-ref --quiet "refs/heads/$onto" >/dev/null; then end symbolic; fi
target=$(source_git rev-parse --verify --quiet --end-of-options "refs/heads/$onto^{commit}") || end missing
if [ -n "$before" ] && source_git merge-base --is-ancestor "$before" "$target" 2>/dev/null; then
    end "landed $target $before"
fi
if source_git worktree list --porcelain | grep -q -F -x -e "branch refs/heads/$onto"; then end busy; fi
for state in "$S" "$S"/worktrees/*; do
    for file in rebase-merge/head-name rebase-apply/head-name BISECT_START; do
        if [ ! -f "$state/$file" ]; then continue; fi
        if grep -q -F -x -e "refs/heads/$onto" -e "$onto" "$state/$file"; then end busy; fi
    done
done
git init --quiet --template= --object-format="$format" --initial-branch=landing work
out=$PWD/out
cd work
mkdir -p .git/objects/info .git/info
echo "$S/objects" > .git/objects/info/alternates
if [ -f "$S/shallow" ]; then cat "$S/shallow" > .git/shallow; fi
if source_git config --get-regexp '^remote\..*\.promisor$' true >/dev/null; then
    git config core.repositoryFormatVersion 1
    git config extensions.partialClone source
    git config remote.source.promisor true
fi
git config core.sparseCheckout true
echo /.marshal-no-file > .git/info/sparse-checkout
tail -c "+$from" "$bundle" | git index-pack --stdin --fix-thin --strict "--max-input-size=$most" >/dev/null
git cat-file -e "$tip^{commit}"
git rev-list --objects --quiet "$tip" --not "$target" "$base"
if git merge-base --is-ancestor "$tip" "$target"; then end "nothing $target"; fi
conflict() {
    at=$(git rev-parse --verify --quiet REBASE_HEAD) || at=$tip
    git diff --name-only --diff-filter=U --no-renames --ignore-submodules=none -z > ../paths
    if [ ! -s ../paths ]; then cat ../said >&2; exit 1; fi
    printf 'conflict %s %s\n' "$target" "$at"
    cat ../paths
    exit 0
}
# The commits of the session alone: its base may have others that the branch lacks.
if git merge-base --is-ancestor "$base" "$target"; then
    since=$target
elif git merge-base --is-ancestor "$base" "$tip"; then
    since=$base
else
    end diverged
fi
merges=$(git rev-list --merges -n 1 "$since..$tip")
if [ "$since" = "$target" ] && git merge-base --is-ancestor "$target" "$tip"; then
    new=$tip
elif [ -n "$merges" ] && [ "$since" != "$target" ]; then
    end diverged
elif [ -n "$merges" ]; then
    git checkout --quiet --detach "$target"
    git merge --squash --no-stat "$tip" > ../said 2>&1 || conflict
    if git diff --cached --quiet --ignore-submodules=none HEAD; then end "nothing $target"; fi
    git log -1 --format=%B "$tip" > ../message
    git commit --quiet --no-gpg-sign --allow-empty-message --cleanup=verbatim --file=../message
    new=$(git rev-parse HEAD)
else
    git checkout --quiet --detach "$tip"
    git rebase --quiet --no-fork-point --no-autosquash --no-gpg-sign --reapply-cherry-picks --empty=drop \
        --onto "$target" "$since" > ../said 2>&1 || conflict
    new=$(git rev-parse HEAD)
fi
if [ "$new" = "$target" ]; then end "nothing $target"; fi
printf '%s\n^%s\n' "$new" "$target" | git pack-objects --quiet --revs --stdout > ../land.pack
mkdir -p "$out/pack"
export GIT_OBJECT_DIRECTORY="$out" GIT_ALTERNATE_OBJECT_DIRECTORIES="$S/objects"
rm .git/objects/info/alternates
git index-pack --stdin --strict < ../land.pack > ../said
git rev-list --objects --quiet "$new" --not "$target"
read -r word pack < ../said
echo "ready $target $new $pack $(count "$target" "$new")"
list_changes "$target" "$new" ..
"#;

/// Whether a text is the name of a branch that git accepts, and nothing that git could read
/// otherwise.
#[must_use]
pub fn is_branch_name(name: &str) -> bool {
    let is_part = |part: &str| {
        !part.is_empty()
            && !part.starts_with('.')
            && !part.ends_with('.')
            && !part.to_ascii_lowercase().ends_with(".lock")
            && !part.contains("..")
            && part.len() <= PART_BYTES
    };
    let is_byte = |byte: u8| {
        byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'/' | b'+' | b'#')
    };
    name.len() <= BRANCH_BYTES
        && !name.starts_with('-')
        && name != "HEAD"
        && name.bytes().all(is_byte)
        && name.split('/').all(is_part)
}

/// The command that puts the branch of a bundle onto the branch `onto` of the source, in the current
/// directory. `before` is the commit of an earlier attempt that may have landed.
#[must_use]
pub fn rebase(
    head: &BundleHeader,
    base: &ObjectId,
    onto: &str,
    before: Option<&ObjectId>,
    author: Option<Author<'_>>,
) -> GitCommand {
    let (from, most) = (
        (head.pack_offset + 1).to_string(),
        limits::BUNDLE_BYTES.to_string(),
    );
    let words = [
        SOURCE_INSIDE,
        BUNDLE_INSIDE,
        &from,
        &most,
        base.format(),
        base.as_str(),
        head.tip.as_str(),
        onto,
        before.map_or("", ObjectId::as_str),
    ];
    with_author(
        script(&format!("{COUNT}{LIST_CHANGES}{REBASE}"), &words),
        author,
    )
}

/// Paths that are separated by NUL; bytes that are not UTF-8 are replaced.
fn parse_paths(text: &[u8]) -> Vec<String> {
    let paths = text.split(|byte| *byte == 0);
    let mut paths: Vec<String> = paths
        .filter(|path| !path.is_empty())
        .map(|path| String::from_utf8_lossy(path).into_owned())
        .collect();
    paths.sort_unstable();
    paths.dedup();
    paths
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RebaseOutcome {
    /// A pack with the new commits is in [`REBASED_PACK`].
    Ready {
        /// The branch's commit.
        target: ObjectId,
        /// Its next commit.
        commit: ObjectId,
        /// What changes there, if that could be counted.
        lines: Option<LineCounts>,
        /// The name of the pack, without its extension.
        pack: String,
        /// What the commits change, sorted by path.
        changes: Vec<Change>,
    },
    /// An earlier attempt landed.
    Landed {
        /// The commit that it landed as.
        commit: ObjectId,
    },
    /// The branch has all of its changes.
    Nothing,
    /// Both changed the same lines.
    Conflict {
        /// The branch's commit.
        target: ObjectId,
        /// The files with conflicts, sorted; bytes that are not UTF-8 are replaced.
        paths: Vec<String>,
    },
    /// The session began from a commit that the branch lacks, and its commits cannot be told from others.
    Diverged,
    /// There is no such branch.
    Missing,
    /// It is another name of a branch.
    Symbolic,
    /// A working tree has it checked out, or is rebasing or bisecting it.
    CheckedOut,
    /// The source stores its refs in another format than files.
    Reftable,
}

impl RebaseOutcome {
    /// Parses the output of the command.
    ///
    /// # Errors
    /// [`BranchError::UnreadableOutput`]
    pub fn parse(output: &[u8]) -> Result<Self, BranchError> {
        let bad = || BranchError::UnreadableOutput("no status of the rebase");
        let end = output
            .iter()
            .position(|byte| *byte == b'\n')
            .ok_or_else(bad)?;
        let (line, rest) = output.split_at(end);
        let line = std::str::from_utf8(line).map_err(|_| bad())?;
        let paths = || parse_paths(&rest[1..]);
        let id = |text: &str| ObjectId::new(text).ok_or_else(bad);
        let words: Vec<&str> = line.split(' ').collect();
        Ok(match words[..] {
            ["ready", target, commit, pack, ref counts @ ..] => Self::Ready {
                target: id(target)?,
                commit: id(commit)?,
                lines: LineCounts::parse(counts)?,
                pack: id(pack)?.to_string(),
                changes: changes::parse(&rest[1..])?,
            },
            ["landed", _, commit] => Self::Landed {
                commit: id(commit)?,
            },
            ["nothing", _] => Self::Nothing,
            ["conflict", target, _] => Self::Conflict {
                target: id(target)?,
                paths: paths(),
            },
            ["diverged"] => Self::Diverged,
            ["missing"] => Self::Missing,
            ["symbolic"] => Self::Symbolic,
            ["busy"] => Self::CheckedOut,
            ["reftable"] => Self::Reftable,
            _ => return Err(bad()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_branch_name_is_one_that_nothing_reads_otherwise() {
        for name in ["main", "release/1.0", "a-b_c", "land#1", "x+y"] {
            assert!(is_branch_name(name), "{name}");
        }
        let long = "a".repeat(PART_BYTES + 1);
        for name in [
            "", "-f", "HEAD", "a..b", "a/", "/a", "a//b", ".a", "a/.b", "a.", "a.lock", "a/b.LOCK",
            "a b", "a~1", "a^", "a:b", "a?", "a*", "a[", "a\\b", "a@{1}", "a\n", "ä", &long,
        ] {
            assert!(!is_branch_name(name), "{name:?}");
        }
    }

    #[test]
    fn answers_are_read_and_anything_else_is_refused() {
        let id = "0123456789012345678901234567890123456789";
        let read = |text: &str| RebaseOutcome::parse(text.as_bytes());
        let change = |path: &str| format!(":100644 100644 {id} {id} M\0{path}\0");
        let changes = [change("b"), change("a"), change("b")].concat();
        let ready = read(&format!("ready {id} {id} {id} 2 3 0\n{changes}\0"));
        let Ok(RebaseOutcome::Ready { changes, .. }) = ready else {
            panic!("{ready:?}");
        };
        let paths: Vec<_> = changes.iter().map(|change| &*change.path).collect();
        assert_eq!(paths, ["a", "b"]);
        let conflict = read(&format!("conflict {id} {id}\na\nb\0"));
        assert!(matches!(conflict, Ok(RebaseOutcome::Conflict { paths, .. }) if paths == ["a\nb"]));
        assert_eq!(read("busy\n").expect("read"), RebaseOutcome::CheckedOut);
        for bad in [
            "",
            "busy",
            "ready\n",
            "nothing\n",
            &format!("ready {id} {id} ../x 1 1 1\n"),
            &format!("ready {id} {id} {id}\n"),
            &format!("landed {id} --all\n"),
            &format!("conflict {id}\n"),
        ] {
            assert!(read(bad).is_err(), "{bad:?}");
        }
    }
}
