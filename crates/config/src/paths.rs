//! Paths as texts: made absolute, cleaned of `.` and `..`, compared.
//!
//! Must not know files: links are followed where the path is opened.

use std::path::{Component, Path, PathBuf};

/// `text` below `dir`, without `.` and `..`. An absolute text ignores `dir`.
pub(super) fn absolute(dir: &Path, text: &str) -> PathBuf {
    let mut out = PathBuf::new();
    for component in dir.join(text).components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => {
                out.pop();
            }
            other => out.push(other),
        }
    }
    out
}

/// The schema's pattern of a path on the host: [`path_error`] as a pattern.
pub(super) const PATTERN: &str = r"^(?!~(/|$))(?!\$)(?!.*\$\{).+$";

/// The same, or empty.
pub(super) const PATTERN_OR_EMPTY: &str = r"^(?!~(/|$))(?!\$)(?!.*\$\{).*$";

/// The JSON-schema pattern of a path inside: [`sandbox_path_error`] as a pattern.
pub(super) const SANDBOX_PATH_PATTERN: &str = r"^(?!/)(?!(.*/)?\.\.(/|$))(?!\.(/|$)).*[^/]$";

/// What is wrong with a text as a path on the host.
pub(super) fn path_error(text: &str) -> Option<&'static str> {
    match text {
        "" => Some("a path must not be empty"),
        _ if text == "~" || text.starts_with("~/") => {
            Some("\"~\" is not expanded here: write the whole path")
        }
        _ if text.contains("${") || text.starts_with('$') => {
            Some("variables are not expanded here: write the whole path")
        }
        _ => None,
    }
}

/// What is wrong with a text as a path below a directory inside the sandbox.
pub(super) fn sandbox_path_error(text: &str) -> Option<&'static str> {
    let path = Path::new(text);
    let plain = path
        .components()
        .all(|part| matches!(part, Component::Normal(_)));
    match text {
        "" => Some("a path must not be empty"),
        _ if path.is_absolute() => Some("expected a path below the home, without a leading \"/\""),
        _ if !plain => Some("expected a path without \".\" and \"..\""),
        _ if text.ends_with('/') => Some("expected the path of a file, without a trailing \"/\""),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_made_absolute_without_looking_at_files() {
        let check = |text: &str, expect: &str| {
            assert_eq!(
                absolute(Path::new("/a/b"), text),
                Path::new(expect),
                "{text}"
            );
        };
        check(".", "/a/b");
        check("./c/", "/a/b/c");
        check("../c", "/a/c");
        check("../../../c", "/c");
        check("/x/./y/../z", "/x/z");
        check("c/../../b/d", "/a/b/d");
    }
}
