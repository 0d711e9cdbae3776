//! Files of a workspace that take effect outside of the sandbox once they leave it: other programs run
//! or obey them.
//!
//! Owns which files these are, and which of them a person allowed. Must not know how a change leaves.

use super::{Policy, is_build_script};

/// What a protected file is.
const OBEYED: &str = "a setting or hook of git, CI, an editor, a shell or an agent";

/// Tells git which filters and drivers a file goes through. It is not protected: an agent may change it in its sandbox.
const ATTRIBUTES: &str = ".gitattributes";

/// What a file is, if other programs run or obey it.
pub fn find_use(policies: &[&Policy], path: &str, may_be_link: bool) -> Option<&'static str> {
    if policies
        .iter()
        .any(|policy| policy.is_protected(path, may_be_link))
    {
        return Some(OBEYED);
    }
    let name = path.rsplit('/').next().unwrap_or(path);
    if name.eq_ignore_ascii_case(ATTRIBUTES) {
        return Some(OBEYED);
    }
    is_build_script(path).then_some("a build or package script")
}

/// Whether a person allowed the path, itself or a directory that contains it.
pub fn is_allowed(allow: &[String], path: &str) -> bool {
    allow.iter().any(|allowed| {
        let allowed = allowed.trim_start_matches("./").trim_end_matches('/');
        let rest = path.strip_prefix(allowed).filter(|_| !allowed.is_empty());
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    })
}

#[cfg(test)]
mod tests {
    use super::{find_use, is_allowed};

    #[test]
    fn settings_of_git_take_effect_outside() {
        for path in [
            ".gitattributes",
            "a/.GitAttributes",
            ".lfsconfig",
            "a/.LFSconfig",
        ] {
            assert!(find_use(&[crate::guard()], path, false).is_some(), "{path}");
        }
        assert_eq!(find_use(&[crate::guard()], ".gitignore", false), None);
    }

    #[test]
    fn a_path_is_allowed_by_its_name_or_by_a_directory() {
        let allow = |allowed: &str, path: &str| is_allowed(&[allowed.to_owned()], path);
        assert!(allow(".github", ".github/workflows/x") && allow("./a/", "a"));
        assert!(
            !allow(".", "a") && !allow("./", "a") && !allow("", "a"),
            "each by its name"
        );
        assert!(!allow(".git", ".github/x") && !allow("a/b", "a") && !is_allowed(&[], "a"));
    }
}
