//! The git command that creates a clone, and what it says of files that the source lacks.
//!
//! A clone has the files of the source's submodules and of Git LFS as far as the source has them. They are
//! for reading: no branch of the clone takes changes of them. Must not run anything.

use super::bundle_header::ObjectId;
use super::git::{HIDE, script};
use super::{CloneId, Repository, SOURCE_INSIDE};
use crate::workspace::file_list::GitCommand;
use marshal_model::limits;

/// Puts the content of files of Git LFS in the place of their pointers, from the store of the repository
/// `$1`, as long as all of them have at most `$large_bytes`: many pointers can name one large object. Git
/// then leaves them alone.
const LARGE_FILES: &str = r#"
large_files() (
    git ls-files -z -- ':(top,attr:filter=lfs)' | tr '\n\0' '\1\n' | head -n 10000 > "$HOME/large"
    : > "$HOME/placed"
    lacking=0 skipped=0 left=$(cat "$HOME/large-left" 2>/dev/null || echo "$large_bytes")
    while IFS= read -r path; do
        if [ ! -f "$path" ] || [ -L "$path" ]; then continue; fi
        id=$(head -c 1024 -- "$path" | sed -n 's/^oid sha256:\([0-9a-f]\{64\}\)$/\1/p')
        if [ ${#id} -ne 64 ]; then continue; fi
        object=$1/lfs/objects/$(printf %.2s "$id")/$(printf %.2s "${id#??}")/$id
        if [ -f "$object" ]; then
            bytes=$(stat -c %s -- "$object")
            if [ "$bytes" -gt "$left" ]; then skipped=$((skipped + 1)); continue; fi
            left=$((left - bytes))
            cat -- "$object" > "$path"
            printf '%s\0' "$path" >> "$HOME/placed"
        else
            lacking=$((lacking + 1))
        fi
    done < "$HOME/large"
    git update-index -z --skip-worktree --stdin < "$HOME/placed"
    # For the submodules.
    echo "$left" > "$HOME/large-left"
    if [ "$lacking" -gt 0 ]; then echo "large $lacking"; fi
    if [ "$skipped" -gt 0 ]; then echo "skipped $skipped"; fi
)
"#;

/// Checks out the submodules of the index below `$root/$1`: their repositories are in `$2` or `$3`, and the
/// level is `$4`. A submodule is made of its objects alone, so no configuration of it is read.
const SUBMODULES: &str = r#"
submodules() (
    prefix=$1 modules=$2 others=$3 level=$4
    shift 4
    if [ "$level" -ge 8 ]; then exit 0; fi
    git ls-files -s -z | sed -z -n 's/^160000 \([0-9a-f]*\) 0\t/\1 /p' | tr '\n\0' '\1\n' > "$HOME/links-$level"
    if [ ! -s "$HOME/links-$level" ]; then exit 0; fi
    git config -z --blob :.gitmodules --get-regexp '^submodule\..*\.path$' 2>/dev/null |
        tr '\n\0' '\t\n' > "$HOME/names-$level"
    while read -r commit path; do
        name=$(P=$path awk -F '\t' '$2 == ENVIRON["P"] { print $1; exit }' "$HOME/names-$level")
        name=${name#submodule.} name=${name%.path}
        repository=$modules/$name
        if [ ! -d "$repository" ]; then repository=$others/$name; fi
        own=$HOME/submodule-$level
        rm -rf "$own"
        unset GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE
        git init --quiet --bare --template= --object-format="$format" "$own"
        mkdir -p "$own/objects/info"
        echo "$repository/objects" > "$own/objects/info/alternates"
        case "/$name/$path/" in */../* | //*) commit=none ;; esac
        if ! GIT_DIR=$own git cat-file -e "$commit^{commit}" 2>/dev/null; then
            echo "submodule $prefix$path"
            continue
        fi
        mkdir -p "$root/$prefix$path"
        cd "$root/$prefix$path"
        export GIT_DIR="$own" GIT_WORK_TREE="$PWD" GIT_INDEX_FILE="$own/index"
        git config core.bare false
        git read-tree "$commit"
        hide "$own/hidden" "$@"
        git checkout-index --all --force --quiet
        large_files "$repository"
        submodules "$prefix$path/" "$repository/modules" "$repository/modules" $((level + 1)) "$@"
    done < "$HOME/links-$level"
)
"#;

/// Creates the clone in the current directory.
const CLONE: &str = r#"
set -e
S=$1 format=$3 head=$4 branch=$5 G=$6 large_bytes=$7
git init --quiet --template= --object-format="$format" --initial-branch="$branch" .
mkdir -p .git/objects/info .git/info
echo "$2" > .git/objects/info/alternates
if [ -f "$S/shallow" ]; then cat "$S/shallow" > .git/shallow; fi
if [ -f "$S/info/exclude" ]; then cat "$S/info/exclude" > .git/info/exclude; fi
git config user.name agent
git config user.email agent@marshal.invalid
git config gc.auto 0
of_source() { GIT_COMMON_DIR="$S" git --git-dir="$G" config --bool "$1" 2>/dev/null || echo false; }
if [ "$(of_source core.sparseCheckout)" = true ] && [ -f "$G/info/sparse-checkout" ]; then
    git config core.sparseCheckout true
    git config core.sparseCheckoutCone "$(of_source core.sparseCheckoutCone)"
    cat "$G/info/sparse-checkout" > .git/info/sparse-checkout
fi
if git --git-dir="$S" config --get-regexp '^remote\..*\.promisor$' true >/dev/null; then
    git config core.repositoryFormatVersion 1
    git config extensions.partialClone source
    git config remote.source.promisor true
fi
git update-ref "refs/heads/$branch" "$head"
git reset --quiet --hard
shift 7
hide .git/hidden "$@"
xargs -0 -r rm -f -- < .git/hidden
rm .git/hidden
root=$PWD
large_files "$S"
submodules "" "$G/modules" "$S/modules" 0 "$@"
"#;

/// The command that creates a clone in the current directory, which is empty. Files that `hidden`
/// matches ([`super::super::Masks::to_pathspecs`]) are not checked out.
#[must_use]
pub fn clone(
    repository: &Repository,
    head: &ObjectId,
    (id, branch): (&CloneId, &str),
    hidden: &[String],
) -> GitCommand {
    let (git_dir, most) = (repository.git_dir_inside(), limits::COPY_BYTES.to_string());
    let words = [
        SOURCE_INSIDE,
        &id.objects_inside(),
        head.format(),
        head.as_str(),
        branch,
        &git_dir,
        &most,
    ];
    let hidden = hidden.iter().map(String::as_str);
    let words: Vec<&str> = words.into_iter().chain(hidden).collect();
    script(&format!("{HIDE}{LARGE_FILES}{SUBMODULES}{CLONE}"), &words)
}

/// What a clone does not have, because its source does not; `None` if it has everything. The text comes
/// from a repository.
#[must_use]
pub fn missing_files(output: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(output);
    let (mut large, mut skipped, mut submodules) = (0_u64, 0_u64, Vec::new());
    for line in text.lines() {
        match line.split_once(' ') {
            Some(("large", count)) => large += count.parse::<u64>().unwrap_or(0),
            Some(("skipped", count)) => skipped += count.parse::<u64>().unwrap_or(0),
            Some(("submodule", path)) => submodules.push(path),
            _ => {}
        }
    }
    let large = (large > 0).then(|| {
        format!("{large} files of Git LFS are only pointers (run `git lfs fetch` in the source)")
    });
    let skipped = (skipped > 0).then(|| {
        let most = limits::COPY_BYTES >> 20;
        format!(
            "{skipped} files of Git LFS are only pointers, because all of them have more than {most} MiB \
             (exclude some by a sparse checkout of the source)"
        )
    });
    let submodules = (!submodules.is_empty()).then(|| {
        let paths = submodules.join(", ");
        format!(
            "these submodules are empty (run `git submodule update --init --recursive`): {paths}"
        )
    });
    let all = [large, skipped, submodules].into_iter().flatten();
    let all: Vec<String> = all.collect();
    (!all.is_empty()).then(|| all.join("; "))
}

#[cfg(test)]
mod tests {
    use super::{LARGE_FILES, missing_files};
    use crate::workspace::testing::scratch;

    #[test]
    fn many_pointers_to_one_large_object_are_placed_up_to_a_sum() {
        let dir = scratch();
        let at = |name: &str| dir.path().join(name);
        let id = "ab".repeat(32);
        std::fs::create_dir_all(at("store/lfs/objects/ab/ab")).unwrap();
        std::fs::write(at(&format!("store/lfs/objects/ab/ab/{id}")), [b'x'; 1000]).unwrap();
        std::fs::create_dir_all(at("home")).unwrap();
        std::fs::create_dir_all(at("tree/sub")).unwrap();
        for name in ["1", "2", "3", "4", "sub/5"] {
            let text =
                format!("version https://git-lfs.github.com/spec/v1\noid sha256:{id}\nsize 1000\n");
            std::fs::write(at(&format!("tree/{name}.bin")), text).unwrap();
        }
        std::fs::write(at("tree/.gitattributes"), "*.bin filter=lfs\n").unwrap();
        // Twice, as for a submodule: the sum is of all of them.
        let script = format!(
            "set -e\nlarge_bytes=2500\n{LARGE_FILES}git init -q .\ngit add .\nlarge_files ../store\nlarge_files ../store"
        );
        let mut command = std::process::Command::new("sh");
        command.args(["-c", &script]).current_dir(at("tree"));
        command
            .env("HOME", at("home"))
            .env("GIT_CONFIG_GLOBAL", "/dev/null");
        let output = command.output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{stderr}");
        let said = missing_files(&output.stdout).expect("some are missing");
        assert!(
            said.starts_with("6 files of Git LFS are only pointers, because"),
            "{said}"
        );
        let names = ["1", "2", "3", "4", "sub/5"];
        let placed = names
            .iter()
            .filter(|name| std::fs::read(at(&format!("tree/{name}.bin"))).unwrap() == [b'x'; 1000]);
        assert_eq!(placed.count(), 2);
    }

    #[test]
    fn what_is_missing_is_said_with_what_helps() {
        assert_eq!(missing_files(b""), None);
        assert_eq!(missing_files(b"large x\n\xff\n"), None);
        let said = missing_files(b"large 2\nsubmodule a/b c\nlarge 1\n").expect("missing");
        assert!(said.starts_with("3 files of Git LFS"), "{said}");
        assert!(said.ends_with("--recursive`): a/b c"), "{said}");
        let said = missing_files(b"skipped 3\nskipped 4\n").expect("missing");
        assert!(
            said.starts_with("7 files of Git LFS are only pointers, because"),
            "{said}"
        );
    }
}
