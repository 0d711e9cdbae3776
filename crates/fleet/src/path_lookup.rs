//! Checks whether resolving a path passes through a directory, with all links followed. If it does,
//! a writer of that directory can put another file in place of the path's file.
//!
//! Must not know what the file is for.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The maximum number of links, as in the kernel.
const LINKS: usize = 40;

/// Whether any component of the absolute `path` is looked up in `root` or below it, with links
/// followed. Components that do not exist are taken literally. `root` is absolute and its links are
/// resolved. A path with too many links returns `true`, because the caller must not trust it.
#[must_use]
pub fn path_enters_directory(path: &Path, root: &Path) -> bool {
    let real = std::fs::canonicalize(root).unwrap_or_else(|_| root.to_owned());
    if path.starts_with(root) {
        return true;
    }
    let mut at = PathBuf::from("/");
    let mut rest = parts(path);
    let mut links = 0;
    while let Some(part) = rest.pop() {
        if part == ".." {
            at.pop();
            continue;
        }
        // If `part` is `/`, from an absolute link, `join` starts at the root again.
        let entry = at.join(&part);
        if entry.starts_with(&real) {
            return true;
        }
        match std::fs::read_link(&entry) {
            Ok(to) => {
                links += 1;
                if links > LINKS {
                    return true;
                }
                rest.extend(parts(&to));
            }
            // Not a link, or missing.
            Err(_) => at = entry,
        }
    }
    false
}

fn parts(path: &Path) -> Vec<OsString> {
    let parts = path.components().rev();
    parts.map(|part| part.as_os_str().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_way_through_a_directory_is_seen_from_both_sides_of_every_link() {
        let temp_dir = tempfile::tempdir().expect("directory");
        let dir = fs::canonicalize(temp_dir.path()).expect("real");
        for name in ["real/bin", "elsewhere", "real2"] {
            fs::create_dir_all(dir.join(name)).expect("made");
        }
        for name in ["real/bin/x", "elsewhere/x", "real2/x"] {
            fs::write(dir.join(name), "").expect("written");
        }
        symlink("real", dir.join("root")).expect("linked");
        symlink("real/bin", dir.join("bin")).expect("linked");
        // A link inside the directory that leads out of it.
        symlink(dir.join("elsewhere"), dir.join("real/out")).expect("linked");
        symlink("real/out", dir.join("through")).expect("linked");
        symlink("loop", dir.join("loop")).expect("linked");
        for root in ["root", "real"] {
            let root = dir.join(root);
            let check = |path: &str, expect: bool| {
                assert_eq!(
                    path_enters_directory(&dir.join(path), &root),
                    expect,
                    "{path}"
                );
            };
            check("real/bin/x", true);
            check("root/bin/x", true);
            check("bin/x", true);
            check("bin/not-there", true);
            check("through/x", true);
            check("real", true);
            check("loop/x", true);
            check("elsewhere/x", false);
            check("real2/x", false);
            check("elsewhere/../real/new", true);
            check("real2/not/there", false);
        }
    }
}
