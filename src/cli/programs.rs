//! Whether the programs of hooks and delegates may be run: like a configuration, they must be files
//! that nobody but root and the caller can write, and that no agent's workspace leads to.
//!
//! Must not know what a delegate says, or what a hook is told.

use std::path::Path;

use super::trust::{OpenError, open_trusted, shown, why};
use marshal_config::{
    Config, ConfigErrors, DelegateTarget, HookTarget, working_dirs, writable_dirs,
};
use marshal_fleet::path_enters_directory;

/// A fault found after the check: key, message, help.
type ConfigFault = (String, String, Option<String>);

/// Checks every hook's program and every used delegate's, and every file that is an argument; and
/// that nothing of what the supervisor runs or trusts is looked up in a directory that agents write.
///
/// # Errors
/// Every one that cannot be used, at its line.
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

/// The program, and of the arguments those that are files.
fn files(key: &str, argv: &[String], counts: fn(&Path) -> bool, faults: &mut Vec<ConfigFault>) {
    for (at, word) in argv.iter().enumerate() {
        // They run in the root.
        let path = Path::new("/").join(word);
        if at > 0 && (word.is_empty() || !counts(&path)) {
            continue;
        }
        let message = match open_trusted(&path) {
            Ok(_) => continue,
            Err(OpenError::Read(error)) => {
                format!("cannot read {}: {}", shown(&path), why(&error))
            }
            Err(OpenError::Untrusted(error)) => error.to_string(),
        };
        faults.push((key.to_owned(), message, None));
    }
}

/// All links followed: what the texts say was looked at before.
fn check_outside_workspaces(config: &Config, faults: &mut Vec<ConfigFault>) {
    let walled = config
        .pools
        .iter()
        .filter(|pool| pool.launcher.has_sandbox());
    let written = walled.flat_map(|pool| writable_dirs(pool).map(move |dir| (pool, dir)));
    let written: Vec<_> = written.collect();
    for of in config.trusted_paths() {
        for (pool, (dir, what)) in &written {
            if !path_enters_directory(&of.path, dir) {
                continue;
            }
            let message = format!(
                "{} leads into {what} of pool {}, whose agent could write it: it is a file {}",
                shown(&of.path),
                pool.name,
                of.purpose.reason()
            );
            let help = "move it out of there; workspace mode \"copy\" needs no such care";
            if !faults
                .iter()
                .any(|known| known.0 == of.key && known.1 == message)
            {
                faults.push((of.key.clone(), message, Some(help.to_owned())));
            }
        }
    }
}

/// What people come in with is no file that an agent sees, all links followed.
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
                    "{} lies in {what}, whose agents could read it: it is a file by which people come in",
                    shown(path)
                );
                let help = Some("move it out of there".to_owned());
                faults.push((key.clone(), message, help));
            }
        }
    }
}
