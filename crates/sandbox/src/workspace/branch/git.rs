//! The git commands for clones and bundles, each for a sandbox with a slot's uid and without
//! network, and parsers of their output.
//!
//! Each is one small script, so that one sandbox serves several git commands. A repository that an
//! agent could write is asked only for its HEAD. Everything else uses a repository that was created
//! a moment before and borrows the other's objects, so that git never reads configuration of an
//! agent. Must not run anything.

use super::bundle_header::ObjectId;
use super::{BUNDLE_INSIDE, BranchError, CloneId, OBJECTS_INSIDE, Repository, SOURCE_INSIDE};
use crate::workspace::file_list::GitCommand;
use marshal_model::limits;

/// Exit codes of the scripts with a meaning.
pub const EXIT_NO_COMMIT: i32 = 10;

/// Prints `FORMAT COMMIT dirty|clean`, then the size of every file of the commit.
const INSPECT: &str = r#"
export GIT_COMMON_DIR="$1"
G=$2
head=$(git --git-dir="$G" rev-parse --verify --quiet --end-of-options "$3^{commit}") || exit 10
format=$(git --git-dir="$G" rev-parse --show-object-format) || exit 1
dirty=$(git --git-dir="$G" --work-tree="$PWD" -c core.checkStat=minimal -c core.trustctime=false \
    status --porcelain --ignore-submodules=all -- ':(top)' ':(top,exclude)supervisor.toml' 2>/dev/null | head -c 1)
echo "$format $head ${dirty:+dirty}"
# Of a partial clone, files that it lacks have no size.
git --git-dir="$G" ls-tree -r --format='%(objectname)' "$head" > "$HOME/objects" || exit 1
exec git --git-dir="$G" cat-file --batch-check='%(objectsize)' < "$HOME/objects"
"#;

/// Writes the paths that the pathspecs match into a file, and leaves them out of the working tree; with
/// pathspecs also files of settings that hold a secret, as in [`super::super::secret_content`].
pub(super) const HIDE: &str = r#"
hide() {
    hidden=$1
    shift
    : > "$hidden"
    if [ $# -eq 0 ]; then return; fi
    git ls-files -z -- "$@" >> "$hidden"
    git grep --cached -l -z -i -E '_authToken|_auth *=|_password|npmAuth(Token|Ident)' -- \
        ':(top,glob,icase)**/.npmrc' ':(top,glob,icase)**/.yarnrc' ':(top,glob,icase)**/.yarnrc.yml' >> "$hidden" || [ $? = 1 ]
    git grep --cached -l -z -E '://[^/[:space:]]*@|/t/' -- ':(top,glob,icase)**/.pip.conf' \
        ':(top,glob,icase)**/pip.conf' ':(top,glob,icase)**/pip.ini' ':(top,glob,icase)**/.condarc' >> "$hidden" || [ $? = 1 ]
    git update-index -z --skip-worktree --stdin < "$hidden"
}
"#;

/// Creates the bundle in the home; prints `none`, or the commit and whether work was uncommitted.
const BUNDLE: &str = r#"
set -e
out=$HOME/out.git base=$2 branch=$3
tip=$(git --git-dir="$PWD/.git" rev-parse --verify --quiet 'HEAD^{commit}') || exit 10
git init --quiet --bare --template= --object-format="$4" "$out"
mkdir -p "$out/objects/info" "$out/info"
printf '%s\n%s\n' "$PWD/.git/objects" "$1" > "$out/objects/info/alternates"
if [ -f .git/shallow ]; then cat .git/shallow > "$out/shallow"; fi
if [ -f .git/info/exclude ]; then cat .git/info/exclude > "$out/info/exclude"; fi
export GIT_DIR="$out" GIT_WORK_TREE="$PWD" GIT_INDEX_FILE="$HOME/index"
git config core.bare false
if grep -q partialClone .git/config 2>/dev/null; then
    git config core.repositoryFormatVersion 1
    git config extensions.partialClone source
    git config remote.source.promisor true
fi
git read-tree "$tip"
shift 4
hide "$HOME/hidden" "$@"
# What was not checked out is not deleted.
git ls-files -z | sort -z > "$HOME/all"
GIT_INDEX_FILE="$PWD/.git/index" git ls-files -t -z 2>/dev/null | sed -z -n 's/^S //p' | sort -z |
    comm -z -12 - "$HOME/all" | git update-index -z --skip-worktree --stdin
work=committed
git add --all --ignore-errors . >/dev/null 2>&1 || work=partial
tree=$(git write-tree)
if [ "$tree" != "$(git rev-parse "$tip^{tree}")" ]; then
    [ "$work" = partial ] || work=uncommitted
    # Made again after a kill, it is the same commit.
    GIT_AUTHOR_DATE="$(git show -s --format=%ct "$tip") +0000"
    export GIT_AUTHOR_DATE GIT_COMMITTER_DATE="$GIT_AUTHOR_DATE"
    tip=$(git commit-tree "$tree" -p "$tip" -m "Uncommitted work" -m "What the session left in its working tree.")
fi
if git merge-base --is-ancestor "$tip" "$base"; then
    echo none
    exit 0
fi
git update-ref "refs/heads/$branch" "$tip"
git bundle create --quiet "$HOME/out.bundle" "refs/heads/$branch" "^$base"
echo "$tip $work"
"#;

/// Unpacks and checks a bundle beside the source's objects; prints the pack's name and the branch's
/// current commit, and on further lines, separated by NUL, every path that a commit of it changes.
const UNPACK: &str = r#"
set -e
cd "$HOME"
export GIT_DIR="$1" GIT_WORK_TREE="$HOME"
export GIT_OBJECT_DIRECTORY="$HOME/objects" GIT_ALTERNATE_OBJECT_DIRECTORIES="$1/objects"
mkdir -p "$GIT_OBJECT_DIRECTORY/pack"
if [ -e "$1/reftable" ]; then echo reftable; exit 0; fi
has=$(git rev-parse --verify --quiet "refs/heads/$5" || echo none)
case $5 in */*) if git show-ref --verify --quiet "refs/heads/${5%%/*}"; then has=blocked; fi ;; esac
tail -c "+$3" "$2" | git index-pack --stdin --fix-thin --strict "--max-input-size=$6" > "$HOME/said"
git cat-file -e "$4^{commit}"
git rev-list --objects --quiet "$4" --not --all
read -r word pack < "$HOME/said"
echo "$word $pack $has"
git diff-tree -r -z --name-only --no-renames --ignore-submodules=none "$7" "$4"
git rev-list "$4" --not "$7" > "$HOME/commits"
git diff-tree -c -r -z --name-only --no-renames --ignore-submodules=none --no-commit-id --root --stdin < "$HOME/commits"
"#;

/// Unpacks a bundle as for taking it, and prints what it changes.
const DIFF: &str = r#"
set -e
cd "$HOME"
export GIT_DIR="$1" GIT_WORK_TREE="$HOME"
export GIT_OBJECT_DIRECTORY="$HOME/objects" GIT_ALTERNATE_OBJECT_DIRECTORIES="$1/objects"
mkdir -p "$GIT_OBJECT_DIRECTORY/pack"
tail -c "+$3" "$2" | git index-pack --stdin --fix-thin --strict "--max-input-size=$5" > "$HOME/said"
base=$6 tip=$4 at=$7
shift 7
exec git diff-tree -r -p "--src-prefix=a/$at" "--dst-prefix=b/$at" --no-renames --ignore-submodules=none --no-ext-diff --no-textconv "$base" "$tip" -- "$@"
"#;

/// Indexes the pack on stdin in the current directory, and checks each of its objects; then prints the
/// pack's length, a list of its objects that an empty line ends, and their content.
///
/// `--fsck-objects` checks as `--strict` does, but a pack need not have what its objects lead to.
const READ_PACK: &str = r#"
set -e
git init --quiet --bare --template= --object-format="$1" pack.git
export GIT_DIR="$PWD/pack.git"
git index-pack --stdin --fsck-objects "--max-input-size=$2" > said
cat "$GIT_DIR"/objects/pack/pack-*.pack | wc -c
git cat-file --batch-all-objects --buffer --batch-check='%(objectname) %(objecttype) %(objectsize)'
echo
exec git cat-file --batch-all-objects --buffer --batch
"#;

/// Maximum output of [`diff`] in bytes.
pub const DIFF_BYTES: usize = 16 << 20;

/// Prints the untracked files and directories of the clone in the current directory, each directory
/// once and without what is in it; ignored ones too.
const UNTRACKED: &str = r#"
set -e
out=$HOME/out.git
git init --quiet --bare --template= --object-format="$3" "$out"
mkdir -p "$out/objects/info"
echo "$1" > "$out/objects/info/alternates"
export GIT_DIR="$out" GIT_WORK_TREE="$PWD" GIT_INDEX_FILE="$HOME/index"
git config core.bare false
git read-tree "$2"
exec git ls-files -z --others --directory --no-empty-directory
"#;

/// Prints the objects that a commit of the source has at these paths.
const INPUTS: &str = r#"
export GIT_DIR="$1" GIT_LITERAL_PATHSPECS=1
commit=$2
shift 2
exec git ls-tree -z "$commit" -- "$@"
"#;

/// The environment of git in the sandbox, PATH excluded. Hooks, file system monitors and lazy
/// fetches of the repository are disabled, although they could not reach anything outside.
fn environment() -> Vec<(String, String)> {
    let settings = [
        ("safe.directory", "*"),
        ("core.hooksPath", "/dev/null"),
        ("core.fsmonitor", "false"),
        ("core.untrackedCache", "false"),
        ("gc.auto", "0"),
        ("maintenance.auto", "false"),
        ("pack.threads", "1"),
        ("core.compression", "1"),
        ("core.bigFileThreshold", "16m"),
        ("transfer.fsckObjects", "true"),
        ("advice.addEmbeddedRepo", "false"),
    ];
    let mut env: Vec<(String, String)> = [
        ("HOME", "/home/agent"),
        ("GIT_CONFIG_NOSYSTEM", "1"),
        ("GIT_CONFIG_GLOBAL", "/dev/null"),
        ("GIT_ATTR_NOSYSTEM", "1"),
        ("GIT_OPTIONAL_LOCKS", "0"),
        ("GIT_TERMINAL_PROMPT", "0"),
        ("GIT_NO_LAZY_FETCH", "1"),
        ("GIT_ALLOW_PROTOCOL", ":"),
        ("GIT_NO_REPLACE_OBJECTS", "1"),
        ("GIT_AUTHOR_NAME", "marshal"),
        ("GIT_AUTHOR_EMAIL", "marshal@marshal.invalid"),
        ("GIT_COMMITTER_NAME", "marshal"),
        ("GIT_COMMITTER_EMAIL", "marshal@marshal.invalid"),
        ("LC_ALL", "C"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .to_vec();
    env.push(("GIT_CONFIG_COUNT".to_owned(), settings.len().to_string()));
    for (at, (key, value)) in settings.into_iter().enumerate() {
        env.push((format!("GIT_CONFIG_KEY_{at}"), key.to_owned()));
        env.push((format!("GIT_CONFIG_VALUE_{at}"), value.to_owned()));
    }
    env
}

pub(super) fn script(text: &str, arguments: &[&str]) -> GitCommand {
    let head = ["/bin/sh", "-c", text, "git"];
    let words = head.iter().chain(arguments);
    GitCommand {
        argv: words.map(|&word| word.to_owned()).collect(),
        env: environment(),
    }
}

/// The command that inspects a commit of the source, whose working tree is the current directory.
#[must_use]
pub fn inspect_source(repository: &Repository, base: &str) -> GitCommand {
    let git_dir = repository.git_dir_inside();
    script(INSPECT, &[SOURCE_INSIDE, &git_dir, base])
}

/// The output of the inspection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceHead {
    /// The commit that HEAD points to.
    pub head: ObjectId,
    /// Whether there are uncommitted changes.
    pub is_dirty: bool,
}

/// Maximum output of the inspection in bytes: the sizes of more files than a clone may have.
pub const INSPECT_BYTES: usize = 8 << 20;

impl SourceHead {
    /// Parses the output of the inspection.
    ///
    /// # Errors
    /// [`BranchError::UnreadableOutput`]; [`BranchError::DiskLimitExceeded`] above the limits of a
    /// copy.
    pub fn parse(output: &[u8], is_cut: bool) -> Result<Self, BranchError> {
        let text = std::str::from_utf8(output)
            .map_err(|_| BranchError::UnreadableOutput("not UTF-8 text"))?;
        let mut lines = text.lines();
        let mut words = lines.next().unwrap_or_default().split(' ');
        let format = words.next().unwrap_or_default();
        let head = words
            .next()
            .and_then(ObjectId::new)
            .ok_or(BranchError::UnreadableOutput("no commit"))?;
        if head.format() != format {
            return Err(BranchError::UnreadableOutput(
                "an unsupported hash algorithm",
            ));
        }
        let is_dirty = words.next() == Some("dirty");
        if is_cut {
            return Err(BranchError::TooLarge);
        }
        let (mut files, mut bytes) = (0_u64, 0_u64);
        for size in lines {
            files += 1;
            // A submodule has no size.
            bytes = bytes.saturating_add(size.parse().unwrap_or(0));
        }
        if files > limits::COPY_FILES || bytes > limits::COPY_BYTES {
            return Err(BranchError::TooLarge);
        }
        Ok(Self { head, is_dirty })
    }
}

/// The command that creates the bundle of the clone in the current directory. Files that `hidden`
/// matches stay as they are in its last commit.
#[must_use]
pub fn bundle(base: &ObjectId, id: &CloneId, hidden: &[String]) -> GitCommand {
    let (objects, branch) = (id.objects_inside(), id.branch());
    let words = [&*objects, base.as_str(), &*branch, base.format()];
    let hidden = hidden.iter().map(String::as_str);
    let words: Vec<&str> = words.into_iter().chain(hidden).collect();
    script(&format!("{HIDE}{BUNDLE}"), &words)
}

/// The command that lists what the clone in the current directory has beside the files of its base.
/// Its output is for [`crate::workspace::FileList::parse`].
#[must_use]
pub fn untracked(base: &ObjectId) -> GitCommand {
    let words = [OBJECTS_INSIDE, base.as_str(), base.format()];
    script(UNTRACKED, &words)
}

/// The command that names the objects of the source which a commit has at `paths`. Its output is the same
/// for two commits if they have the same there.
#[must_use]
pub fn inputs(commit: &ObjectId, paths: &[String]) -> GitCommand {
    let words = [SOURCE_INSIDE, commit.as_str()].into_iter();
    let words: Vec<&str> = words.chain(paths.iter().map(String::as_str)).collect();
    script(INPUTS, &words)
}

/// The outcome of creating a bundle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BundleOutcome {
    /// There is nothing that the source does not have.
    Nothing,
    /// A bundle was created.
    Made {
        /// Whether changed files could not be read and are missing in it.
        is_partial: bool,
    },
}

impl BundleOutcome {
    /// Parses the output of the bundle command.
    ///
    /// # Errors
    /// [`BranchError::UnreadableOutput`]
    pub fn parse(output: &[u8]) -> Result<Self, BranchError> {
        match output.trim_ascii() {
            b"none" => Ok(Self::Nothing),
            text if text.ends_with(b" partial") => Ok(Self::Made { is_partial: true }),
            text if text.ends_with(b"committed") => Ok(Self::Made { is_partial: false }),
            _ => Err(BranchError::UnreadableOutput("no status of the bundle")),
        }
    }
}

/// The command that unpacks the bundle whose pack begins at `pack_offset`, and checks all of its
/// objects.
///
/// `index-pack --strict` performs the checks of a fetch with `transfer.fsckObjects`; before git
/// 2.46 a fetch from a bundle skips them.
#[must_use]
pub fn unpack(pack_at: u64, (base, tip): (&ObjectId, &ObjectId), branch: &str) -> GitCommand {
    let (from, most) = ((pack_at + 1).to_string(), limits::BUNDLE_BYTES.to_string());
    let words = [
        SOURCE_INSIDE,
        BUNDLE_INSIDE,
        &from,
        tip.as_str(),
        branch,
        &most,
        base.as_str(),
    ];
    script(UNPACK, &words)
}

/// The command that shows what the bundle changes, of `paths` only if there are any.
#[must_use]
pub fn diff(
    pack_at: u64,
    (base, tip): (&ObjectId, &ObjectId),
    at: &str,
    paths: &[String],
) -> GitCommand {
    let prefix = match at {
        "" => String::new(),
        _ => format!("{at}/"),
    };
    let (from, most) = ((pack_at + 1).to_string(), limits::BUNDLE_BYTES.to_string());
    let mut words = vec![
        SOURCE_INSIDE,
        BUNDLE_INSIDE,
        &from,
        tip.as_str(),
        &most,
        base.as_str(),
        &prefix,
    ];
    words.extend(paths.iter().map(String::as_str));
    script(DIFF, &words)
}

/// The command that reads a pack of at most `most` bytes from stdin and prints what it has in it:
/// `proxy/git/pack.rs` reads that.
#[must_use]
pub fn read_pack(object_format: &str, most: u64) -> GitCommand {
    script(READ_PACK, &[object_format, &most.to_string()])
}

/// The outcome of unpacking a bundle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UnpackOutcome {
    /// All checks passed.
    Checked {
        /// The name of the pack, without its extension.
        pack: String,
        /// The branch's current commit in the source, if it exists.
        has: Option<ObjectId>,
        /// The paths that its commits change, sorted; bytes that are not UTF-8 are replaced.
        paths: Vec<String>,
    },
    /// A branch of the source has the name of our directory of branches.
    Blocked,
    /// The source stores its refs in another format than files.
    Reftable,
}

impl UnpackOutcome {
    /// Parses the output of the unpack command.
    ///
    /// # Errors
    /// [`BranchError::UnreadableOutput`]
    pub fn parse(output: &[u8]) -> Result<Self, BranchError> {
        let bad = || BranchError::UnreadableOutput("no status of the pack");
        let end = output.iter().position(|byte| *byte == b'\n');
        let (line, rest) = output.split_at(end.map_or(output.len(), |end| end + 1));
        let text = std::str::from_utf8(line).map_err(|_| bad())?;
        let paths = rest
            .split(|byte| *byte == 0)
            .filter(|path| !path.is_empty());
        let mut paths: Vec<String> = paths
            .map(|path| String::from_utf8_lossy(path).into_owned())
            .collect();
        paths.sort_unstable();
        paths.dedup();
        let words: Vec<&str> = text.split_whitespace().collect();
        match words[..] {
            ["reftable"] => Ok(Self::Reftable),
            ["pack", _, "blocked"] => Ok(Self::Blocked),
            ["pack", name, has] => Ok(Self::Checked {
                pack: ObjectId::new(name).ok_or_else(bad)?.to_string(),
                has: match has {
                    "none" => None,
                    id => Some(ObjectId::new(id).ok_or_else(bad)?),
                },
                paths,
            }),
            _ => Err(bad()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_and_anything_else_is_refused() {
        let id = "0123456789012345678901234567890123456789";
        let parsed = SourceHead::parse(format!("sha1 {id} dirty\n3\n-\n4\n").as_bytes(), false);
        assert!(parsed.expect("an answer").is_dirty);
        let clean = format!("sha1 {id} \n");
        assert!(
            !SourceHead::parse(clean.as_bytes(), false)
                .expect("an answer")
                .is_dirty
        );
        assert!(matches!(
            SourceHead::parse(clean.as_bytes(), true),
            Err(BranchError::TooLarge)
        ));
        let huge = format!("sha1 {id} \n{}\n{}\n", u64::MAX, u64::MAX);
        assert!(matches!(
            SourceHead::parse(huge.as_bytes(), false),
            Err(BranchError::TooLarge)
        ));
        for bad in [
            "",
            "sha1",
            "sha256 x",
            &format!("sha256 {id} \n"),
            "sha1 --all \n",
        ] {
            assert!(SourceHead::parse(bad.as_bytes(), false).is_err(), "{bad:?}");
        }
        assert_eq!(
            BundleOutcome::parse(b"none\n").expect("read"),
            BundleOutcome::Nothing
        );
        let made =
            |text: &str| BundleOutcome::parse(format!("{id} {text}\n").as_bytes()).expect("read");
        assert_eq!(
            made("uncommitted"),
            BundleOutcome::Made { is_partial: false }
        );
        assert_eq!(made("partial"), BundleOutcome::Made { is_partial: true });
        assert!(BundleOutcome::parse(b"").is_err());
        let has = UnpackOutcome::parse(format!("pack\t{id} none\n").as_bytes()).expect("read");
        assert!(matches!(has, UnpackOutcome::Checked { has: None, .. }));
        for bad in [
            "",
            "pack ../../x none",
            "pack x",
            &format!("pack {id} ../x"),
        ] {
            assert!(UnpackOutcome::parse(bad.as_bytes()).is_err(), "{bad:?}");
        }
    }
}
