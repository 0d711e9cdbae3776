//! The files of a login: what an agent's own login left in its home, kept for the sessions of a pool.
//!
//! Owns which files are kept: small regular ones, a bounded number. The home was written by an agent,
//! so it is only read through its root's descriptor. Must not know how an agent logs in.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use super::host_access::{FileContent, HostAccessError, read};
use super::tree::{Kind, Root, TreeError, WalkBounds, WalkStep, walk};
use marshal_model::PoolName;
use marshal_model::limits::{LOGIN_FILE_BYTES, LOGIN_FILES};

/// Directories of a home whose content a program makes again.
const CACHES: [&[u8]; 4] = [b".cache", b".npm", b"node_modules", b"logs"];

/// Why the files of a login were not kept.
#[derive(Debug, thiserror::Error)]
pub enum LoginError {
    /// There is nothing to keep.
    #[error("the login left no file in the agent's home")]
    Nothing,
    /// There is more than belongs to a login.
    #[error(
        "the login left more than {LOGIN_FILES} files; name those that sessions need in home_files instead"
    )]
    TooMany,
    /// The home cannot be read.
    #[error(transparent)]
    Tree(#[from] TreeError),
    /// One of its files cannot be read.
    #[error("{0:?}: {1}")]
    File(String, HostAccessError),
    /// The files cannot be stored.
    #[error("cannot store the files of the login: {0}")]
    Store(#[from] io::Error),
}

/// The directory of a pool's login files: `STATE/logins/POOL`.
#[must_use]
pub fn directory(state: &Path, pool: &PoolName) -> PathBuf {
    state.join("logins").join(pool.as_str())
}

/// The files of a pool's login by their paths in the agent's home; empty if there was none.
#[must_use]
pub fn files(state: &Path, pool: &PoolName) -> BTreeMap<String, PathBuf> {
    let top = directory(state, pool);
    let mut found = BTreeMap::new();
    let mut left = vec![top.clone()];
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            let path = entry.path();
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                left.push(path);
            } else if let Some(inside) = path.strip_prefix(&top).ok().and_then(Path::to_str) {
                found.insert(inside.to_owned(), path.clone());
            }
        }
    }
    found
}

/// Keeps the files that a login left in `home` instead of those of an earlier login. Returns their
/// paths.
///
/// # Errors
/// [`LoginError`]; the files of the earlier login are kept then.
pub fn keep(state: &Path, pool: &PoolName, home: &Path) -> Result<Vec<String>, LoginError> {
    let root = Root::open_resolved(home)?;
    let names = names(&root)?;
    if names.is_empty() {
        return Err(LoginError::Nothing);
    }
    if names.len() > LOGIN_FILES {
        return Err(LoginError::TooMany);
    }
    let target = directory(state, pool);
    let part = target.with_extension("part");
    remove(&part)?;
    let mut private = fs::DirBuilder::new();
    private.recursive(true).mode(0o700);
    private.create(&part)?;
    for name in &names {
        let found = read(&root, name, LOGIN_FILE_BYTES, LOGIN_FILE_BYTES)
            .map_err(|error| LoginError::File(name.clone(), error))?;
        let Some(FileContent::Whole(bytes)) = found.map(|found| found.content) else {
            continue;
        };
        let path = part.join(name);
        if let Some(parent) = path.parent() {
            private.create(parent)?;
        }
        let options = fs::File::options()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .clone();
        let mut file = options.open(&path)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
    }
    remove(&target)?;
    fs::rename(&part, &target)?;
    Ok(names)
}

/// Removes the files of a pool's login; `false` if there are none.
///
/// # Errors
/// The system error.
pub fn forget(state: &Path, pool: &PoolName) -> io::Result<bool> {
    let target = directory(state, pool);
    let was_there = target.symlink_metadata().is_ok();
    remove(&target)?;
    Ok(was_there)
}

fn remove(dir: &Path) -> io::Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// The small regular files of a home, without caches.
fn names(root: &Root) -> Result<Vec<String>, LoginError> {
    let mut names = Vec::new();
    let walked = walk(root, WalkBounds::default(), &mut |entry| {
        if entry.meta.kind == Kind::Dir {
            let is_cache = CACHES.contains(&entry.name);
            return if is_cache {
                WalkStep::Skip
            } else {
                WalkStep::Enter
            };
        }
        let is_small = entry.meta.size > 0 && entry.meta.size <= LOGIN_FILE_BYTES;
        let is_plain = entry.meta.kind == Kind::File && entry.meta.links == 1;
        if let Ok(path) = std::str::from_utf8(entry.path)
            && is_small
            && is_plain
        {
            names.push(path.to_owned());
        }
        if names.len() > LOGIN_FILES {
            WalkStep::Stop
        } else {
            WalkStep::Enter
        }
    });
    walked.map_err(|error| TreeError::at_path("list", root.path(), error))?;
    names.sort_unstable();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::super::testing::scratch;
    use super::*;

    #[test]
    fn small_files_are_kept_and_nothing_from_outside_is() {
        let (state, home) = (scratch(), scratch());
        let pool = PoolName::new("demo").expect("a name");
        let at = |name: &str| home.path().join(name);
        let nothing = keep(state.path(), &pool, home.path());
        assert!(matches!(nothing, Err(LoginError::Nothing)), "{nothing:?}");
        fs::create_dir_all(at(".agent/deep")).unwrap();
        fs::create_dir_all(at(".cache")).unwrap();
        fs::write(at(".agent/deep/auth.json"), "{}").unwrap();
        fs::write(at(".agent.json"), "key").unwrap();
        fs::write(at(".cache/big"), "x").unwrap();
        fs::write(at("empty"), "").unwrap();
        fs::write(
            at("long"),
            vec![0; usize::try_from(LOGIN_FILE_BYTES).unwrap() + 1],
        )
        .unwrap();
        symlink("/etc/passwd", at("link")).unwrap();
        symlink("/etc", at("dir")).unwrap();
        let kept = keep(state.path(), &pool, home.path()).unwrap();
        assert_eq!(kept, [".agent.json", ".agent/deep/auth.json"]);
        let found = files(state.path(), &pool);
        assert_eq!(
            found.keys().collect::<Vec<_>>(),
            kept.iter().collect::<Vec<_>>()
        );
        let file = &found[".agent/deep/auth.json"];
        assert_eq!(fs::read_to_string(file).unwrap(), "{}");
        assert_eq!(
            fs::metadata(file).unwrap().permissions().mode() & 0o777,
            0o600
        );
        // A later login takes the place of the earlier one.
        fs::remove_file(at(".agent.json")).unwrap();
        keep(state.path(), &pool, home.path()).unwrap();
        assert_eq!(files(state.path(), &pool).len(), 1);
        for n in 0..=LOGIN_FILES {
            fs::write(at(&n.to_string()), "x").unwrap();
        }
        let many = keep(state.path(), &pool, home.path());
        assert!(matches!(many, Err(LoginError::TooMany)), "{many:?}");
        assert_eq!(
            files(state.path(), &pool).len(),
            1,
            "the earlier login is kept"
        );
        assert!(forget(state.path(), &pool).unwrap());
        assert!(!forget(state.path(), &pool).unwrap());
        assert!(files(state.path(), &pool).is_empty());
    }
}
