//! Checks that the programs of hooks and delegates may be run. Like a configuration, only root and
//! the caller may be able to write them, and they must not be in an agent's workspace.
//!
//! Must not know what a delegate answers, or what a hook receives.

use std::path::Path;

use super::trust::{OpenError, display_path, open_trusted, why};
use marshal_config::{
    Config, ConfigErrors, DelegateTarget, HookTarget, working_dirs, writable_dirs,
};
use marshal_fleet::path_enters_directory;

/// An error from this check: key, message and help.
type ConfigFault = (String, String, Option<String>);

/// Checks the program of every hook and every used delegate, and every argument that is a file.
/// Also checks that no file that the supervisor runs or trusts is in a directory that agents can
/// write.
///
/// # Errors
/// An error for each unusable file, with its line in the configuration.
pub fn check(config: &Config) -> Result<(), Box<ConfigErrors>> {
    let mut faults = Vec::new();
    let pools = &config.pools;
    for delegate in config.delegates.values() {
        let name = Some(delegate.name.as_str());
        let is_used = pools.iter().any(|pool| pool.delegate.as_deref() == name);
        if let DelegateTarget::Command(argv) = &delegate.target
            && is_used
        {
            let key = format!("delegate.{}.command", delegate.name);
            files(&key, argv, Path::exists, &mut faults);
        }
    }
    for hook in &config.hooks {
        if let HookTarget::Command(command) = &hook.target {
            let key = format!("hook.{}.command", hook.name);
            files(&key, &command.argv, Path::is_file, &mut faults);
        }
    }
    check_outside_workspaces(config, &mut faults);
    check_hidden(config, &mut faults);
    if faults.is_empty() {
        Ok(())
    } else {
        Err(Box::new(config.source_map.locate_errors(faults)))
    }
}

/// Checks the program, and those arguments that are files.
fn files(key: &str, argv: &[String], counts: fn(&Path) -> bool, faults: &mut Vec<ConfigFault>) {
    for (at, word) in argv.iter().enumerate() {
        // Programs run with the working directory `/`.
        let path = Path::new("/").join(word);
        if at > 0 && (word.is_empty() || !counts(&path)) {
            continue;
        }
        let message = match open_trusted(&path) {
            Ok(_) => continue,
            Err(OpenError::Read(error)) => {
                format!("cannot read {}: {}", display_path(&path), why(&error))
            }
            Err(OpenError::Untrusted(error)) => error.to_string(),
        };
        faults.push((key.to_owned(), message, None));
    }
}

/// Checks trusted paths with links followed; the paths as written were checked with the
/// configuration.
fn check_outside_workspaces(config: &Config, faults: &mut Vec<ConfigFault>) {
    let walled = config
        .pools
        .iter()
        .filter(|pool| pool.launcher.has_sandbox());
    let written = walled.flat_map(|pool| writable_dirs(pool).map(move |dir| (pool, dir)));
    let written: Vec<_> = written.collect();
    for trusted in config.trusted_paths() {
        for (pool, (dir, what)) in &written {
            if !path_enters_directory(&trusted.path, dir) {
                continue;
            }
            let message = format!(
                "{} leads into {what} of pool {}, whose agent could write it: it is a file {}",
                display_path(&trusted.path),
                pool.name,
                trusted.purpose.reason()
            );
            let help = "move it elsewhere, or use the workspace mode \"copy\"";
            if !faults
                .iter()
                .any(|known| known.0 == trusted.key && known.1 == message)
            {
                faults.push((trusted.key.clone(), message, Some(help.to_owned())));
            }
        }
    }
}

/// Checks that agents cannot see the files of credentials for clients, with links followed.
fn check_hidden(config: &Config, faults: &mut Vec<ConfigFault>) {
    let workspaces = config.pools.iter().flat_map(|pool| {
        working_dirs(pool).map(|(dir, what)| (dir, format!("{what} of pool {}", pool.name)))
    });
    let bound = config.sandboxes.iter().flat_map(|(name, profile)| {
        let dirs = profile.ro_bind.iter();
        dirs.map(move |dir| (dir.as_path(), format!("ro_bind of sandbox {name}")))
    });
    let own = config.pools.iter().filter_map(|pool| {
        let binds = pool.program.as_ref()?.binds.iter();
        Some(binds.map(move |dir| (dir.as_path(), format!("the program of pool {}", pool.name))))
    });
    let seen: Vec<_> = workspaces.chain(bound).chain(own.flatten()).collect();
    for (key, path) in config.private_credential_files() {
        for (dir, what) in &seen {
            if path_enters_directory(path, dir) {
                let message = format!(
                    "{} is in {what}, whose agents could read it: it is a file with credentials for clients",
                    display_path(path)
                );
                let help = Some("move it elsewhere".to_owned());
                faults.push((key.clone(), message, help));
            }
        }
    }
}
