//! This binary inside an image that may lack its libraries: they are mounted beside it, and the
//! loader is started with their directory.
//!
//! Must not know what the binary is started for.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use super::super::failure::{FailureContext, StepResult};
use super::super::plan::MARSHAL;
use super::container::{LIBRARIES, Library};
use marshal_wire::shim::{SetupFailure, Stage};

/// The libraries that this process runs with, its loader included; empty if it is statically
/// linked.
pub(super) fn libraries() -> StepResult<Vec<Library>> {
    const MAPS: &str = "/proc/self/maps";
    let maps = fs::read_to_string(MAPS).on(Stage::Engine, "read", MAPS)?;
    let mut paths = BTreeMap::new();
    for path in maps.lines().filter_map(mapped_library) {
        if let Some(name) = library_name(path) {
            paths.insert(name, path.to_owned());
        }
    }
    Ok(paths
        .into_iter()
        .map(|(name, path)| Library { path, name })
        .collect())
}

/// The file of a line of proc_pid_maps(5), if it is a library.
fn mapped_library(line: &str) -> Option<&str> {
    let path = line.get(line.find('/')?..)?;
    path.rsplit('/').next()?.contains(".so").then_some(path)
}

/// The name by which the loader searches for a library: its own, or that of a link beside it.
fn library_name(path: &str) -> Option<String> {
    let own = path.rsplit('/').next()?;
    if own.contains(".so.") {
        return Some(own.to_owned());
    }
    let real = Path::new(path);
    let beside = fs::read_dir(real.parent()?).ok()?;
    beside
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_symlink()))
        .filter_map(|entry| Some((entry.file_name().into_string().ok()?, entry.path())))
        .find(|(name, link)| {
            name.contains(".so.") && fs::canonicalize(link).is_ok_and(|to| to == real)
        })
        .map(|(name, _)| name)
}

/// A command that starts this very binary with another argv[0], wherever it runs.
pub(in super::super) fn command(arg0: &str) -> Command {
    if let Some(loader) = loader() {
        let mut command = Command::new(loader);
        command.args(["--argv0", arg0, "--library-path", LIBRARIES, MARSHAL]);
        command
    } else {
        let mut command = Command::new("/proc/self/exe");
        command.arg0(arg0);
        command
    }
}

/// Prefixes the loader to an argument list whose first word is this binary's path inside.
pub(super) fn with_loader(mut argv: Vec<String>) -> Vec<String> {
    let is_own = argv.first().is_some_and(|word| word == MARSHAL);
    if let Some(loader) = loader().filter(|_| is_own) {
        let before = [&*loader, "--library-path", LIBRARIES].map(str::to_owned);
        argv.splice(..0, before);
    }
    argv
}

/// The arguments by which a program inside starts this binary in an image without its libraries, as
/// computed outside.
pub(in super::super) fn argv_inside() -> std::io::Result<Vec<String>> {
    let to_io_error = |failure: SetupFailure| std::io::Error::other(failure.to_string());
    let libraries = libraries().map_err(to_io_error)?;
    let mut words = Vec::new();
    if let Some(loader) = libraries.iter().find(|library| library.is_loader()) {
        words.push(format!("{LIBRARIES}/{}", loader.name));
        words.extend(["--library-path", LIBRARIES].map(str::to_owned));
    }
    words.push(MARSHAL.to_owned());
    Ok(words)
}

/// The loader that started this process with the binary as its argument, if so.
fn loader() -> Option<String> {
    let exe = fs::read_link("/proc/self/exe").ok()?;
    let exe = exe.to_str()?;
    exe.starts_with(LIBRARIES).then(|| exe.to_owned())
}
