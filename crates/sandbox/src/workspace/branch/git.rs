//! The git commands for clones and bundles, each for a sandbox with a slot's uid and without
//! network, and parsers of their output.
//!
//! Each is one small script, so that one sandbox serves several git commands. A repository that an
//! agent could write is asked only for its HEAD. Everything else uses a repository that was created
//! a moment before and borrows the other's objects, so that git never reads configuration of an
//! agent. Must not run anything.

use super::bundle_header::{BundleHeader, ObjectId};
use super::changes::{self, Change, LIST_CHANGES};
use super::{BUNDLE_INSIDE, BranchError, CloneId, OBJECTS_INSIDE, Repository, SOURCE_INSIDE};
use crate::workspace::file_list::GitCommand;
use marshal_model::{UntrustedText, limits};

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

/// Counts the files and lines that differ between two commits; prints three dashes if that takes too
/// long, which must not cost the work.
pub(super) const COUNT: &str = r#"
count() {
    if timeout 60 git diff-tree -r --numstat --no-renames --ignore-submodules=none --no-ext-diff --no-textconv \
        "$1" "$2" > "$HOME/counts"; then
        awk '{ files++; added += $1; removed += $2 } END { printf "%d %d %d", files, added, removed }' "$HOME/counts"
    else
        printf %s '- - -'
    fi
}
"#;

/// Creates the bundle in the home; prints `none` or the commit, what became of the working tree, and
/// what changed.
const BUNDLE: &str = r#"
set -e
out=$HOME/out.git base=$2 branch=$3
tip=$(git --git-dir="$PWD/.git" rev-parse --verify --quiet 'HEAD^{commit}') || exit 10
work=committed
for state in rebase-merge rebase-apply; do
    # HEAD is in the middle of a rebase that stopped.
    if [ -f ".git/$state/orig-head" ]; then
        work=unfinished
        tip=$(git --git-dir="$PWD/.git" rev-parse --verify --quiet --end-of-options \
            "$(head -c 64 ".git/$state/orig-head")^{commit}") || exit 10
    fi
done
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
# Files with a conflict have both sides, and the marks between them.
unmerged=$(GIT_INDEX_FILE="$PWD/.git/index" git ls-files --unmerged 2>/dev/null | head -c 1)
if [ "$unmerged" ]; then work=unfinished; fi
if [ "$work" = committed ]; then
    git add --all --ignore-errors . >/dev/null 2>&1 || work=partial
fi
tree=$(git write-tree)
if [ "$tree" != "$(git rev-parse "$tip^{tree}")" ]; then
    [ "$work" = partial ] || work=uncommitted
    # Made again after a kill, it is the same commit.
    GIT_AUTHOR_DATE="$(git show -s --format=%ct "$tip") +0000"
    export GIT_AUTHOR_DATE GIT_COMMITTER_DATE="$GIT_AUTHOR_DATE"
    tip=$(git commit-tree "$tree" -p "$tip" -m "Uncommitted work" -m "What the session left in its working tree.")
fi
if git merge-base --is-ancestor "$tip" "$base"; then
    echo "none $work"
    exit 0
fi
git update-ref "refs/heads/$branch" "$tip"
git bundle create --quiet "$HOME/out.bundle" "refs/heads/$branch" "^$base"
echo "$tip $work $(count "$base" "$tip")"
"#;

/// Unpacks and checks a bundle beside the source's objects; prints the pack's name and the branch's
/// current commit, and then what its commits change.
const UNPACK: &str = r#"
set -e
cd "$HOME"
export GIT_DIR="$1" GIT_WORK_TREE="$HOME"
export GIT_OBJECT_DIRECTORY="$HOME/objects" GIT_ALTERNATE_OBJECT_DIRECTORIES="$1/objects"
mkdir -p "$GIT_OBJECT_DIRECTORY/pack"
if [ -e "$1/reftable" ]; then echo reftable; exit 0; fi
has=$(git rev-parse --verify --quiet "refs/heads/$5" || echo none)
# A branch is a file, so no other one can have the name of a directory above it, or below it.
above=$5
while [ "$above" != "${above%/*}" ]; do
    above=${above%/*}
    if git show-ref --verify --quiet "refs/heads/$above"; then has="blocked $above"; fi
done
below=$(git for-each-ref --count=1 --format='%(refname:lstrip=2)' "refs/heads/$5/")
if [ -n "$below" ]; then has="blocked $below"; fi
tail -c "+$3" "$2" | git index-pack --stdin --fix-thin --strict "--max-input-size=$6" > "$HOME/said"
git cat-file -e "$4^{commit}"
git rev-list --objects --quiet "$4" --not --all
read -r word pack < "$HOME/said"
echo "$word $pack $has"
list_changes "$7" "$4" "$HOME"
"#;

/// The directory of the pack that [`unpack`] leaves, below its home.
pub const UNPACKED_PACK: &str = "objects/pack";

/// Unpacks a bundle as for landing it, and prints what it changes.
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

/// Makes the pack of what a server lacks of a bundle, for a push; prints the first line of the last
/// commit's message with a NUL at its end, and what its commits change.
///
/// A pack of a push has no bases outside of it: it is searched by itself.
const MAKE_PUSH_PACK: &str = r#"
set -e
S=$1 bundle=$2 from=$3 tip=$4 base=$5 most=$6
cd "$HOME"
git init --quiet --bare --template= --object-format="$7" made.git
export GIT_DIR="$HOME/made.git"
echo "$S/objects" > "$GIT_DIR/objects/info/alternates"
if [ -f "$S/shallow" ]; then cat "$S/shallow" > "$GIT_DIR/shallow"; fi
tail -c "+$from" "$bundle" | git index-pack --stdin --fix-thin --strict "--max-input-size=$most" > /dev/null
git cat-file -e "$tip^{commit}"
git rev-list --objects --quiet "$tip" --not "$base"
{
    echo "$tip"
    git cat-file --batch-check='%(objecttype) %(objectname)' < "$8" | sed -n 's/^commit /^/p'
} > wanted
git pack-objects --quiet --revs --stdout < wanted > "$9"
printf '%s\0' "$(git log -1 --format=%s "$tip")"
list_changes "$base" "$tip" "$HOME"
"#;

/// The file with the ids of a server's objects, below the home of [`push_pack`].
pub const SERVER_HAS: &str = "server-has";
/// The pack that it makes there.
pub const PUSH_PACK: &str = "push.pack";
/// The first line of the message of a commit that no agent made.
pub const OWN_SUBJECT: &str = "Uncommitted work";

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

/// Prints the pool's base, or else the branch that the source has checked out, and whether that has the
/// commit; then the objects that the commit has at these paths.
const INPUTS: &str = r#"
export GIT_DIR="$1" GIT_LITERAL_PATHSPECS=1
G=$2 commit=$3 name=$4
shift 4
if [ -z "$name" ]; then
    name=$(GIT_COMMON_DIR="$GIT_DIR" git --git-dir="$G" symbolic-ref --quiet HEAD)
    # The clone is older: another branch may have been checked out since.
    if ! git merge-base --is-ancestor "$commit" "$name^{commit}" 2>/dev/null; then has=other; fi
fi
echo "${has:-base} $name"
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
pub fn bundle(
    base: &ObjectId,
    (id, branch): (&CloneId, &str),
    hidden: &[String],
    author: Option<Author<'_>>,
) -> GitCommand {
    let objects = id.objects_inside();
    let words = [&*objects, base.as_str(), branch, base.format()];
    let hidden = hidden.iter().map(String::as_str);
    let words: Vec<&str> = words.into_iter().chain(hidden).collect();
    with_author(script(&format!("{HIDE}{COUNT}{BUNDLE}"), &words), author)
}

/// The name and the mail address of an author.
pub type Author<'a> = (&'a str, &'a str);

/// Gives the commits that a command makes by itself this author.
pub(super) fn with_author(mut command: GitCommand, author: Option<Author<'_>>) -> GitCommand {
    let Some((name, mail)) = author else {
        return command;
    };
    for (variable, value) in &mut command.env {
        match variable.as_str() {
            "GIT_AUTHOR_NAME" => name.clone_into(value),
            "GIT_AUTHOR_EMAIL" => mail.clone_into(value),
            _ => {}
        }
    }
    command
}

/// How much commits change. Files that are not text have no lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LineCounts {
    /// Files.
    pub files: u64,
    /// Lines that are new.
    pub added: u64,
    /// Lines that are gone.
    pub removed: u64,
}

impl LineCounts {
    /// What commits in several repositories change together; `None` if one of them was not counted.
    #[must_use]
    pub fn sum(all: impl IntoIterator<Item = Option<Self>>) -> Option<Self> {
        all.into_iter().reduce(|sum, next| {
            let (sum, next) = (sum?, next?);
            Some(Self {
                files: sum.files.saturating_add(next.files),
                added: sum.added.saturating_add(next.added),
                removed: sum.removed.saturating_add(next.removed),
            })
        })?
    }

    /// Parses what [`COUNT`] printed; `None` if it counted nothing.
    ///
    /// # Errors
    /// [`BranchError::UnreadableOutput`]
    pub(super) fn parse(words: &[&str]) -> Result<Option<Self>, BranchError> {
        let bad = || BranchError::UnreadableOutput("no counts of lines");
        let number = |word: &str| word.parse::<u64>().map_err(|_| bad());
        match words {
            ["-", "-", "-"] => Ok(None),
            [files, added, removed] => Ok(Some(Self {
                files: number(files)?,
                added: number(added)?,
                removed: number(removed)?,
            })),
            _ => Err(bad()),
        }
    }
}

/// The command that lists what the clone in the current directory has beside the files of its base.
/// Its output is for [`crate::workspace::FileList::parse`].
#[must_use]
pub fn untracked(base: &ObjectId) -> GitCommand {
    let words = [OBJECTS_INSIDE, base.as_str(), base.format()];
    script(UNTRACKED, &words)
}

/// The command that names the objects of the source which a commit has at `paths`, for [`Inputs::parse`].
#[must_use]
pub fn inputs(
    repository: &Repository,
    commit: &ObjectId,
    pool_base: Option<&str>,
    paths: &[String],
) -> GitCommand {
    let git_dir = repository.git_dir_inside();
    let words = [
        SOURCE_INSIDE,
        &git_dir,
        commit.as_str(),
        pool_base.unwrap_or_default(),
    ];
    let words = words.into_iter();
    let words: Vec<&str> = words.chain(paths.iter().map(String::as_str)).collect();
    script(INPUTS, &words)
}

/// What a bundle lacks of a working tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeftOut {
    /// Changed files that could not be read.
    Unreadable,
    /// All of it, in the middle of a rebase or with conflicts: its files may have the marks of both
    /// sides.
    Unfinished,
}

/// What a commit has at the inputs of a setup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inputs {
    /// The base that the configuration names, or else the branch that is checked out in the source; `None`
    /// if none is.
    pub pool_base: Option<String>,
    /// Whether that base has the commit.
    pub is_of_pool_base: bool,
    /// The same text for two commits if they have the same there; empty if the commit has nothing there.
    pub objects: String,
}

impl Inputs {
    /// Parses the output of the command.
    ///
    /// # Errors
    /// [`BranchError::UnreadableOutput`]
    pub fn parse(output: &[u8]) -> Result<Self, BranchError> {
        let bad = || BranchError::UnreadableOutput("no base of the inputs");
        let end = output.iter().position(|byte| *byte == b'\n');
        let (line, objects) = output.split_at(end.ok_or_else(bad)?);
        let line = std::str::from_utf8(line).map_err(|_| bad())?;
        let (word, name) = line.split_once(' ').ok_or_else(bad)?;
        let is_of_pool_base = match word {
            "base" => true,
            "other" => false,
            _ => return Err(bad()),
        };
        Ok(Self {
            pool_base: (!name.is_empty()).then(|| name.to_owned()),
            is_of_pool_base,
            objects: String::from_utf8_lossy(&objects[1..]).into_owned(),
        })
    }
}

/// The outcome of creating a bundle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BundleOutcome {
    /// There is nothing that the source does not have.
    Nothing {
        /// What was left out.
        left_out: Option<LeftOut>,
    },
    /// A bundle was created.
    Made {
        /// What is missing in it.
        left_out: Option<LeftOut>,
        /// What it changes, if that could be counted.
        lines: Option<LineCounts>,
    },
}

impl BundleOutcome {
    /// Parses the output of the bundle command.
    ///
    /// # Errors
    /// [`BranchError::UnreadableOutput`]
    pub fn parse(output: &[u8]) -> Result<Self, BranchError> {
        let bad = || BranchError::UnreadableOutput("no status of the bundle");
        let text = std::str::from_utf8(output).map_err(|_| bad())?;
        let words: Vec<&str> = text.split_whitespace().collect();
        let [commit, work, counts @ ..] = &words[..] else {
            return Err(bad());
        };
        let left_out = match *work {
            "committed" | "uncommitted" => None,
            "partial" => Some(LeftOut::Unreadable),
            "unfinished" => Some(LeftOut::Unfinished),
            _ => return Err(bad()),
        };
        if *commit == "none" && counts.is_empty() {
            return Ok(Self::Nothing { left_out });
        }
        Ok(Self::Made {
            left_out,
            lines: LineCounts::parse(counts)?,
        })
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
    script(&format!("{LIST_CHANGES}{UNPACK}"), &words)
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

/// The command that makes the pack of a push of the bundle.
#[must_use]
pub fn push_pack(head: &BundleHeader, base: &ObjectId) -> GitCommand {
    let from = (head.pack_offset + 1).to_string();
    let words = [
        SOURCE_INSIDE,
        BUNDLE_INSIDE,
        &from,
        head.tip.as_str(),
        base.as_str(),
        &limits::BUNDLE_BYTES.to_string(),
        base.format(),
        SERVER_HAS,
        PUSH_PACK,
    ];
    script(&format!("{LIST_CHANGES}{MAKE_PUSH_PACK}"), &words)
}

/// What [`push_pack`] printed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PushPack {
    /// The first line of the last commit's message; bytes that are not UTF-8 are replaced.
    pub subject: String,
    /// What the commits change, sorted by path.
    pub changes: Vec<Change>,
}

impl PushPack {
    /// Parses its output.
    ///
    /// # Errors
    /// [`BranchError::UnreadableOutput`]
    pub fn parse(output: &[u8]) -> Result<Self, BranchError> {
        let bad = || BranchError::UnreadableOutput("no message of the last commit");
        let end = output.iter().position(|byte| *byte == 0).ok_or_else(bad)?;
        let (subject, changes) = output.split_at(end);
        Ok(Self {
            subject: String::from_utf8_lossy(subject).into_owned(),
            changes: changes::parse(&changes[1..])?,
        })
    }
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
        /// What its commits change, sorted by path.
        changes: Vec<Change>,
    },
    /// A branch of the source stands where the branch needs a directory, or the other way round.
    Blocked {
        /// That branch.
        by: UntrustedText,
    },
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
        let words: Vec<&str> = text.split_whitespace().collect();
        match words[..] {
            ["reftable"] => Ok(Self::Reftable),
            ["pack", _, "blocked", by] => Ok(Self::Blocked {
                by: UntrustedText::from(by),
            }),
            ["pack", name, has] => Ok(Self::Checked {
                pack: ObjectId::new(name).ok_or_else(bad)?.to_string(),
                has: match has {
                    "none" => None,
                    id => Some(ObjectId::new(id).ok_or_else(bad)?),
                },
                changes: changes::parse(rest)?,
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
            BundleOutcome::parse(b"none unfinished\n").expect("read"),
            BundleOutcome::Nothing {
                left_out: Some(LeftOut::Unfinished)
            }
        );
        let made =
            |text: &str| BundleOutcome::parse(format!("{id} {text}\n").as_bytes()).expect("read");
        let lines = Some(LineCounts {
            files: 3,
            added: 20,
            removed: 1,
        });
        assert_eq!(
            made("uncommitted 3 20 1"),
            BundleOutcome::Made {
                left_out: None,
                lines
            }
        );
        assert_eq!(
            made("partial - - -"),
            BundleOutcome::Made {
                left_out: Some(LeftOut::Unreadable),
                lines: None
            }
        );
        for bad in [
            "",
            "x",
            "none",
            "x committed",
            "x committed 1 2",
            "x committed 1 2 -3",
            "x other 1 2 3",
        ] {
            assert!(BundleOutcome::parse(bad.as_bytes()).is_err(), "{bad:?}");
        }
        let inputs = |text: &str| Inputs::parse(text.as_bytes());
        let found = inputs("base refs/heads/main\nx\0").expect("read");
        assert_eq!(found.pool_base.as_deref(), Some("refs/heads/main"));
        assert!(found.is_of_pool_base && found.objects == "x\0");
        let found = inputs("other \n").expect("read");
        assert!(found.pool_base.is_none() && !found.is_of_pool_base && found.objects.is_empty());
        for bad in ["", "base main", "main\n", "so main\n"] {
            assert!(inputs(bad).is_err(), "{bad:?}");
        }
        let has = UnpackOutcome::parse(format!("pack\t{id} none\n\0").as_bytes()).expect("read");
        assert!(matches!(has, UnpackOutcome::Checked { has: None, .. }));
        let blocked = UnpackOutcome::parse(format!("pack\t{id} blocked a/b\n").as_bytes());
        assert!(matches!(blocked, Ok(UnpackOutcome::Blocked { by }) if by.raw() == "a/b"));
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
