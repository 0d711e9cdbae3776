//! What the commits of a bundle change, as git lists it, and what of it takes effect outside of the
//! sandbox.
//!
//! A name alone does not say that: a submodule leads to another repository, and a link can lead out of
//! this one. Must not run anything.

use std::collections::{BTreeMap, HashMap};

use super::{BranchError, in_workspace};
use marshal_policy::{Policy, outside};

/// A shell function that prints every change from commit `$1` to `$2` and of each commit on the way, then,
/// behind an empty record, what the links among them lead to. It writes into the directory `$3`.
pub(super) const LIST_CHANGES: &str = r#"
list_changes() {
    from=$1 to=$2 listed=$3
    set -- -r -z --raw --no-abbrev --no-renames --ignore-submodules=none
    git diff-tree "$@" "$from" "$to" > "$listed/changes"
    git rev-list "$to" --not "$from" > "$listed/commits"
    git diff-tree -c "$@" --no-commit-id --root --stdin < "$listed/commits" >> "$listed/changes"
    cat "$listed/changes"
    printf '\0'
    # The last object of a change whose mode is that of a link.
    tr '\n\0' ' \n' < "$listed/changes" |
        sed -n 's/^:.* 120000 [0-9a-f]\{40\}.* \([0-9a-f]\{40,\}\) [A-Z]*$/\1/p' | sort -u | git cat-file --batch
}
"#;

const SUBMODULE: &str = "a submodule, which leads to another repository";
const LINK: &str = "a link that leads out of the repository, or into its .git";
const SECRET: &str = "a file of secrets, which no --allow takes";

/// The modes of entries that are no files.
const LINK_MODE: &str = "120000";
const SUBMODULE_MODE: &str = "160000";

/// A path that commits change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The path; bytes that are not UTF-8 are replaced.
    pub path: String,
    /// What it is in one of the commits, if that takes effect outside whatever its name is.
    effect: Option<&'static str>,
}

/// What a person decides about a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Somebody allowed it.
    Allowed,
    /// Nobody allowed it yet.
    NeedsAllow,
    /// Nobody can allow it.
    Secret,
}

/// A changed path that takes effect outside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutsideChange {
    /// The path in the workspace.
    pub path: String,
    /// What it is.
    pub what: &'static str,
    /// Whether it may leave the sandbox.
    pub verdict: Verdict,
}

/// The changes that take effect outside, by these policies. `at` is the place of their repository in the
/// workspace. A policy may name a path as the repository has it or as the workspace has it; a person allows
/// what the workspace has.
pub fn find_outside(
    changes: &[Change],
    at: &str,
    policies: &[&Policy],
    allow: &[String],
) -> Vec<OutsideChange> {
    let of_change = |Change { path: own, effect }: &Change| {
        let path = in_workspace(at, own);
        let names = [own.as_str(), &path];
        let is_secret = |name: &str| policies.iter().any(|policy| policy.is_secret(name));
        let (what, verdict) = if names.into_iter().any(is_secret) {
            (SECRET, Verdict::Secret)
        } else {
            let find_use = |name| outside::find_use(policies, name, true);
            let what = effect.or_else(|| names.into_iter().find_map(find_use))?;
            let is_allowed = outside::is_allowed(allow, &path);
            let verdict = if is_allowed {
                Verdict::Allowed
            } else {
                Verdict::NeedsAllow
            };
            (what, verdict)
        };
        Some(OutsideChange {
            path,
            what,
            verdict,
        })
    };
    changes.iter().filter_map(of_change).collect()
}

/// Parses the output of `list_changes`; sorted by path.
///
/// # Errors
/// [`BranchError::UnreadableOutput`]
pub(super) fn parse(output: &[u8]) -> Result<Vec<Change>, BranchError> {
    let bad = || BranchError::UnreadableOutput("no list of changes");
    let mut entries = Vec::new();
    let mut rest = output;
    loop {
        let meta = take_until(&mut rest, 0).ok_or_else(bad)?;
        if meta.is_empty() {
            break;
        }
        let meta = std::str::from_utf8(meta).map_err(|_| bad())?;
        let parents = meta.bytes().take_while(|byte| *byte == b':').count();
        let words: Vec<&str> = meta[parents..].split(' ').collect();
        // A mode and an object of each parent and of the result, and the status.
        if parents == 0 || words.len() != 2 * parents + 3 {
            return Err(bad());
        }
        let path = take_until(&mut rest, 0).ok_or_else(bad)?;
        entries.push((path, words[parents], words[2 * parents + 1]));
    }
    let links = parse_links(rest).ok_or_else(bad)?;
    let mut changes: BTreeMap<String, Option<&'static str>> = BTreeMap::new();
    for (path, mode, object) in entries {
        let path = String::from_utf8_lossy(path).into_owned();
        let effect = match mode {
            SUBMODULE_MODE => Some(SUBMODULE),
            // The repository of a partial clone may lack what it leads to.
            LINK_MODE => match links.get(object) {
                Some(target) if stays_inside(&path, target) => None,
                _ => Some(LINK),
            },
            _ => None,
        };
        let known = changes.entry(path).or_default();
        *known = known.or(effect);
    }
    let changes = changes.into_iter();
    Ok(changes
        .map(|(path, effect)| Change { path, effect })
        .collect())
}

/// What precedes the next `end`, which is left out.
fn take_until<'o>(rest: &mut &'o [u8], end: u8) -> Option<&'o [u8]> {
    let at = rest.iter().position(|byte| *byte == end)?;
    let taken = &rest[..at];
    *rest = &rest[at + 1..];
    Some(taken)
}

/// The content of objects by their names, from `git cat-file --batch`.
fn parse_links(mut rest: &[u8]) -> Option<HashMap<&str, &[u8]>> {
    let mut links = HashMap::new();
    while !rest.is_empty() {
        let head = std::str::from_utf8(take_until(&mut rest, b'\n')?).ok()?;
        let words: Vec<&str> = head.split(' ').collect();
        match words[..] {
            [object, _, bytes] => {
                let bytes: usize = bytes.parse().ok()?;
                links.insert(object, rest.get(..bytes)?);
                rest = rest.get(bytes..)?.strip_prefix(b"\n")?;
            }
            [_, "missing"] => {}
            _ => return None,
        }
    }
    Some(links)
}

/// Whether a link leads to a place of the tree it is in, whatever other links the tree has: `..` comes
/// before all names, because above a name that is a link there is another directory.
fn stays_inside(path: &str, target: &[u8]) -> bool {
    if target.is_empty() || target.starts_with(b"/") {
        return false;
    }
    let mut depth = path.split('/').count() - 1;
    let mut has_name = false;
    for part in target.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." if has_name || depth == 0 => return false,
            b".." => depth -= 1,
            name if name.eq_ignore_ascii_case(b".git") => return false,
            _ => has_name = true,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use marshal_policy::guard;

    const A: &str = "0123456789012345678901234567890123456789";
    const B: &str = "1123456789012345678901234567890123456789";

    fn outside_of(output: &[u8], at: &str, allow: &[&str]) -> Vec<(String, Verdict)> {
        let allow: Vec<String> = allow.iter().map(|&path| path.to_owned()).collect();
        let changes = parse(output).expect("a list");
        let found = find_outside(&changes, at, &[guard()], &allow);
        let found = found.into_iter();
        found.map(|it| (it.path, it.verdict)).collect()
    }

    #[test]
    fn submodules_links_that_leave_and_secrets_are_found_whatever_their_names_are() {
        let list = format!(
            ":100644 100644 {A} {A} M\0src/a\0:000000 160000 {A} {B} A\0lib\0\
             :000000 120000 {A} {A} A\0in/near\0:100644 120000 {A} {B} T\0in/far\0\
             :160000 000000 {A} {A} D\0gone\0:100644 100644 {A} {B} M\0.gitattributes\0\
             ::100644 100644 120000 {A} {A} {B} MM\0merged\0:000000 100644 {A} {B} A\0merged\0\
             :000000 100644 {A} {B} A\0certs/x.pem\0\0\
             {A} blob 7\n../src\n\n{B} blob 4\n/etc\n"
        );
        let expected = [
            (".gitattributes", Verdict::NeedsAllow),
            ("certs/x.pem", Verdict::Secret),
            ("in/far", Verdict::NeedsAllow),
            ("lib", Verdict::Allowed),
            ("merged", Verdict::NeedsAllow),
        ];
        let expected = expected.map(|(path, verdict)| (path.to_owned(), verdict));
        assert_eq!(outside_of(list.as_bytes(), "", &["lib", "certs"]), expected);
        // In a further repository, a path is that of the workspace.
        let of_further = expected.map(|(path, verdict)| {
            let is_lib = path == "lib";
            let verdict = if is_lib { Verdict::NeedsAllow } else { verdict };
            (format!("third/{path}"), verdict)
        });
        let allow = ["lib", "third/certs"];
        assert_eq!(outside_of(list.as_bytes(), "third", &allow), of_further);
        // What a link leads to is unknown in a partial clone.
        let missing = format!(":000000 120000 {A} {B} A\0l\0\0{B} missing\n");
        assert_eq!(outside_of(missing.as_bytes(), "", &[]).len(), 1);
    }

    #[test]
    fn a_link_stays_inside_only_if_no_other_link_can_lead_it_out() {
        for (path, target) in [
            ("a", "b"),
            ("a/b", "../c"),
            ("a/b/c", "../../d/./e"),
            ("a", "b/"),
        ] {
            assert!(stays_inside(path, target.as_bytes()), "{path} {target}");
        }
        for (path, target) in [
            ("a", ""),
            ("a", "/etc"),
            ("a", "../b"),
            ("a/b", "../../c"),
            ("a/b/c", "d/../../e"),
            ("a", ".git/hooks"),
            ("a/b", "../.GIT"),
        ] {
            assert!(!stays_inside(path, target.as_bytes()), "{path} {target}");
        }
    }

    #[test]
    fn a_list_that_is_not_whole_is_refused() {
        for bad in [
            String::new(),
            format!(":100644 100644 {A} {A} M\0a\0"),
            format!(":100644 100644 {A} {A} M\0"),
            format!("100644 100644 {A} {A} M\0a\0\0"),
            format!(":100644 {A} M\0a\0\0"),
            format!(":000000 120000 {A} {A} A\0a\0\0{A} blob 9\nshort\n"),
            format!("\0{A} blob\n"),
        ] {
            assert!(parse(bad.as_bytes()).is_err(), "{bad:?}");
        }
    }
}
