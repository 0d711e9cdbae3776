//! Finds the state directory of a configuration: the one that it names, or the one of its project.
//!
//! Must not know what is in it. This module only names the directory; the code that locks it
//! creates it.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use super::project;
use marshal_config::{Config, ConfigErrors, working_dirs};
use marshal_model::untrusted;

/// Why no state directory can be used. Each is exit code 2.
#[derive(Debug, thiserror::Error)]
pub enum StateDirError {
    /// Neither the configuration nor the environment names one.
    #[error(
        "no state directory: set supervisor.state_dir, or one of $STATE_DIRECTORY, $XDG_STATE_HOME, $HOME to an absolute path"
    )]
    Nowhere,
    /// It is in a workspace, where an agent could reach it.
    #[error(transparent)]
    InWorkspace(#[from] Box<ConfigErrors>),
}

/// The state directory of the configuration of a project, absolute; it need not exist. `env` reads
/// the environment.
///
/// # Errors
/// No state directory is named.
pub fn path(
    config: &Config,
    project: &Path,
    env: impl Fn(&str) -> Option<OsString>,
) -> Result<PathBuf, StateDirError> {
    let configured = config.supervisor.state_dir.clone();
    configured
        .or_else(|| project::state_of(project, env))
        .ok_or(StateDirError::Nowhere)
}

/// The same, if a fleet may use it.
///
/// # Errors
/// No state directory is named, or it is in a pool's workspace, with links followed.
pub fn find(
    config: &Config,
    project: &Path,
    env: impl Fn(&str) -> Option<OsString>,
) -> Result<PathBuf, StateDirError> {
    let dir = path(config, project, env)?;
    let real = real(&dir);
    for pool in &config.pools {
        let mut seen = working_dirs(pool).map(|(dir, what)| (self::real(dir), what));
        let Some((dir, what)) = seen.find(|(dir, _)| real.starts_with(dir)) else {
            continue;
        };
        let display_path =
            |path: &Path| untrusted::escape_for_display(&path.to_string_lossy(), 200);
        let message = format!(
            "the state directory {} is in {what} {} of pool {}",
            display_path(&real),
            display_path(&dir),
            pool.name
        );
        let help = if config.file.is_none() {
            "agents would work on all of this directory; change to the directory of a project, or write a configuration there with `marshal init`"
        } else {
            "set supervisor.state_dir to a directory outside of every workspace"
        };
        let key = if config.supervisor.state_dir.is_some() {
            "supervisor.state_dir".to_owned()
        } else {
            format!("pool.{}.workspace.path", pool.name)
        };
        let errors = config
            .source_map
            .locate_errors(vec![(key, message, Some(help.to_owned()))]);
        return Err(Box::new(errors).into());
    }
    Ok(dir)
}

/// The path, with the links in its existing part resolved.
pub(super) fn real(path: &Path) -> PathBuf {
    for existing in path.ancestors() {
        if let Ok(real) = fs::canonicalize(existing) {
            let rest = path.strip_prefix(existing).unwrap_or(Path::new(""));
            return real.join(rest);
        }
    }
    path.to_owned()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use marshal_config::Origin;

    fn config(dir: &Path, keys: &str) -> Config {
        let text = format!("{keys}\n[pool.demo]\nagent = \"script\"\nworkspace.path = \"work\"\n");
        let origin = Origin {
            file: Some(dir.join("supervisor.toml")),
            dir: dir.to_owned(),
            is_explicit: true,
        };
        Config::parse(&text, &origin).expect("good")
    }

    fn env<'e>(pairs: &'e [(&str, &str)]) -> impl Fn(&str) -> Option<OsString> + 'e {
        |name| {
            let pair = pairs.iter().find(|(key, _)| *key == name)?;
            Some(OsString::from(pair.1))
        }
    }

    #[test]
    fn the_configuration_goes_before_the_environment_and_the_service_before_the_user() {
        let here = Path::new("/srv/none");
        let check = |keys: &str, pairs: &[(&str, &str)], expect: Option<&str>| {
            let found = find(&config(here, keys), Path::new("/srv/p"), env(pairs)).ok();
            assert_eq!(found.as_deref(), expect.map(Path::new), "{keys} {pairs:?}");
        };
        let all = [
            ("STATE_DIRECTORY", "/s:/t"),
            ("XDG_STATE_HOME", "/x"),
            ("HOME", "/h"),
        ];
        check(
            "[supervisor]\nstate_dir = \"st\"",
            &all,
            Some("/srv/none/st"),
        );
        check("[supervisor]\nstate_dir = \"\"", &all, Some("/s"));
        check("", &all, Some("/s"));
        check("", &all[1..], Some("/x/marshal/p-c4cbe899"));
        check("", &all[2..], Some("/h/.local/state/marshal/p-c4cbe899"));
        check("", &[], None);
        check("", &[("HOME", "relative"), ("XDG_STATE_HOME", "")], None);
    }

    #[test]
    fn a_state_directory_in_a_workspace_is_refused_behind_links_too() {
        let dir = tempfile::tempdir().expect("a directory");
        let dir = fs::canonicalize(dir.path()).expect("real");
        fs::create_dir_all(dir.join("work")).expect("made");
        symlink(dir.join("work"), dir.join("link")).expect("link");
        let refused = |keys: &str, home: &Path| {
            let home = home.to_str().expect("text").to_owned();
            find(&config(&dir, keys), &dir, env(&[("HOME", &home)]))
                .map_err(|error| error.to_string())
        };
        let shown = refused("", &dir.join("work")).expect_err("in the workspace");
        assert!(
            shown.contains("pool.demo.workspace.path: the state directory"),
            "{shown}"
        );
        let shown = refused("[supervisor]\nstate_dir = \"link/x/y\"", &dir).expect_err("link");
        assert!(
            shown.contains(":2:13: supervisor.state_dir: the state directory"),
            "{shown}"
        );
        assert!(refused("", &dir).is_ok());
        assert!(refused("[supervisor]\nstate_dir = \"worker\"", &dir).is_ok());
    }
}
