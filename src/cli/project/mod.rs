//! Projects: which one a directory belongs to, and where the state of each is kept.
//!
//! A project is the directory of its configuration, or of its repository. Must not know what is in
//! a configuration or in a state directory.

pub(super) mod lookup;
pub(super) mod supervisors;

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

use super::config_file::NAME;
use marshal_sandbox::state_dir;

/// Characters of a project's name in the name of its state directory.
const NAME_CHARS: usize = 40;
/// Hexadecimal digits that tell projects of one name apart.
const DIGITS: usize = 8;

/// The configuration file of a directory: there, or in the directories above it up to the top of
/// the repository. Outside of a repository only the directory itself counts.
pub(super) fn configuration_file(cwd: &Path) -> Option<PathBuf> {
    let holds = |dir: &Path, name: &str| dir.join(name).symlink_metadata().is_ok();
    let top = repository(cwd);
    let searched = cwd
        .ancestors()
        .take_while(|dir| *dir == cwd || top.is_some_and(|top| dir.starts_with(top)));
    let mut found = searched.filter(|dir| holds(dir, NAME));
    found.next().map(|dir| dir.join(NAME))
}

/// The configuration of the user or of the host, for directories without one:
/// `$XDG_CONFIG_HOME/marshal/supervisor.toml` (`$HOME/.config` if it is not set), else
/// `/etc/marshal/supervisor.toml`.
pub(super) fn installed_configuration(env: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let absolute = |name| {
        env(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    let home = || absolute("HOME").map(|home| home.join(".config"));
    let user = absolute("XDG_CONFIG_HOME").or_else(home);
    let mut places = user.into_iter().chain([PathBuf::from("/etc")]);
    places.find_map(|place| {
        let file = place.join("marshal").join(NAME);
        file.symlink_metadata().is_ok().then_some(file)
    })
}

/// The top of the repository that holds a directory.
fn repository(cwd: &Path) -> Option<&Path> {
    let is_top = |dir: &&Path| dir.join(".git").symlink_metadata().is_ok();
    cwd.ancestors().find(is_top)
}

/// The project of a directory, without links: the directory of its configuration, else the top of
/// its repository, else the directory itself.
pub(super) fn of_directory(cwd: &Path) -> PathBuf {
    let file = configuration_file(cwd);
    let dir = file
        .as_deref()
        .and_then(Path::parent)
        .or_else(|| repository(cwd))
        .unwrap_or(cwd);
    fs::canonicalize(dir).unwrap_or_else(|_| dir.to_owned())
}

/// The state directory of a project, unless its configuration names one: `$STATE_DIRECTORY`, else a
/// directory of the project below [`base`]. `None` if the environment names no directory.
pub(super) fn state_of(project: &Path, env: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    if let Some(service) = state_dir::service_path(&env) {
        return Some(service);
    }
    Some(base(env)?.join(state_name(project)))
}

/// The directory of all projects' state: `$XDG_STATE_HOME/marshal`, else
/// `$HOME/.local/state/marshal`.
pub(super) fn base(env: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    state_dir::user_path(env)
}

/// The name of a project's state directory: the project's name, and digits of its path's digest.
fn state_name(project: &Path) -> String {
    let name = project.file_name().unwrap_or_default().to_string_lossy();
    let safe = |c: char| {
        if c.is_ascii_alphanumeric() || "._-".contains(c) {
            c
        } else {
            '-'
        }
    };
    let name: String = name.chars().take(NAME_CHARS).map(safe).collect();
    // A name may not begin with a dot: the directory would be hidden.
    let name = match name.trim_start_matches('.') {
        "" => "root",
        name => name,
    };
    let digest = hex::encode(Sha256::digest(project.as_os_str().as_bytes()));
    format!("{name}-{}", &digest[..DIGITS])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_is_found_up_to_the_top_of_the_repository_and_no_further() {
        let dir = tempfile::tempdir().expect("directory");
        let dir = fs::canonicalize(dir.path()).expect("real");
        let deep = dir.join("repo/src/deep");
        fs::create_dir_all(&deep).expect("made");
        fs::write(dir.join(NAME), "").expect("file");
        assert_eq!(configuration_file(&deep), None, "no repository");
        assert_eq!(of_directory(&deep), deep);
        fs::create_dir(dir.join("repo/.git")).expect("made");
        assert_eq!(configuration_file(&deep), None, "above the repository");
        assert_eq!(of_directory(&deep), dir.join("repo"));
        let file = dir.join("repo/src").join(NAME);
        fs::write(&file, "").expect("file");
        assert_eq!(configuration_file(&deep), Some(file));
        assert_eq!(of_directory(&deep), dir.join("repo/src"));
        assert_eq!(configuration_file(&dir), Some(dir.join(NAME)));
    }

    #[test]
    fn the_users_configuration_comes_before_the_hosts() {
        let dir = tempfile::tempdir().expect("directory");
        let find = |name: &'static str, place: PathBuf| {
            installed_configuration(move |asked| (asked == name).then(|| place.clone().into()))
        };
        let file = |below: &str| {
            let file = dir.path().join(below).join("marshal").join(NAME);
            fs::create_dir_all(file.parent().expect("a directory")).expect("made");
            fs::write(&file, "").expect("file");
            file
        };
        let (xdg, home) = (file("xdg"), file(".config"));
        assert_eq!(find("XDG_CONFIG_HOME", dir.path().join("xdg")), Some(xdg));
        assert_eq!(find("HOME", dir.path().to_owned()), Some(home));
        // As XDG says, a relative path is none.
        assert_ne!(
            find("XDG_CONFIG_HOME", "xdg".into()),
            Some("xdg/marshal/supervisor.toml".into())
        );
    }

    #[test]
    fn projects_of_one_name_have_state_of_their_own() {
        let home = |name: &str| (name == "HOME").then(|| OsString::from("/h"));
        let state = |path: &str| state_of(Path::new(path), home).expect("a place");
        let (one, two) = (state("/srv/a/shop"), state("/srv/b/shop"));
        assert_ne!(one, two);
        assert!(one.starts_with("/h/.local/state/marshal"), "{one:?}");
        let name = one.file_name().expect("name").to_string_lossy();
        assert!(name.starts_with("shop-") && name.len() == 13, "{name}");
        let odd = state("/srv/.a b\u{1b}");
        assert!(odd.to_string_lossy().contains("/a-b--"), "{odd:?}");
        assert!(state("/").to_string_lossy().contains("/root-"));
        let service = |name: &str| (name == "STATE_DIRECTORY").then(|| OsString::from("/s"));
        assert_eq!(state_of(Path::new("/x"), service), Some("/s".into()));
        assert_eq!(state_of(Path::new("/x"), |_| None), None);
    }
}
