//! Id-mapped mounts: the owner of a tree on disk becomes the slot's user.
//!
//! The kernel takes the map from a user namespace, and creating a namespace needs a process: the
//! holder, which is this binary again and lives until its stdin closes. Must not know what is
//! mapped.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, Stdio};

use nix::sched::CloneFlags;

use super::failure::{FailureContext, StepResult, failure};
use super::privilege;
use marshal_wire::shim::{ARG0_IDMAP, IdMap, Stage};

/// The namespaces of the maps created so far: several trees may have one owner, and each namespace
/// costs a process.
#[derive(Default)]
pub(super) struct Maps(Vec<(u32, u32, File)>);

/// Maps the owner of a detached tree to `(uid, gid)`, the same in every call. Requires root outside
/// of any sandbox.
pub(super) fn apply(
    tree: impl AsFd,
    map: IdMap,
    outside: (u32, u32),
    maps: &mut Maps,
) -> StepResult {
    let is_known = |(uid, gid, _): &(u32, u32, File)| (*uid, *gid) == (map.uid, map.gid);
    let at = if let Some(at) = maps.0.iter().position(is_known) {
        at
    } else {
        maps.0.push((map.uid, map.gid, namespace(map, outside)?));
        maps.0.len() - 1
    };
    let namespace = &maps.0[at].2;
    composefs_ioctls::mount::mount_setattr_idmap(tree, namespace)
        .at(Stage::Idmap, "map the owner of")
}

/// A user namespace that maps `map`'s ids to `outside`.
fn namespace(map: IdMap, outside: (u32, u32)) -> StepResult<File> {
    let mut holder = Command::new("/proc/self/exe")
        .arg0(ARG0_IDMAP)
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .at(Stage::Idmap, "start the helper for an id map")?;
    let namespace = read_namespace(&mut holder, map, outside);
    // Closing its stdin ends the holder; the namespace stays alive through the descriptor.
    drop(holder.stdin.take());
    holder
        .wait()
        .at(Stage::Idmap, "wait for the helper for an id map")?;
    namespace
}

fn read_namespace(holder: &mut Child, map: IdMap, outside: (u32, u32)) -> StepResult<File> {
    let mut ready = [0];
    let read = holder
        .stdout
        .as_mut()
        .map(|stdout| stdout.read_exact(&mut ready));
    if !matches!(read, Some(Ok(()))) {
        return Err(failure(
            Stage::Idmap,
            "the helper for an id map could not create a user namespace",
        ));
    }
    let directory = format!("/proc/{}", holder.id());
    for (file, inside, outside) in [
        ("uid_map", map.uid, outside.0),
        ("gid_map", map.gid, outside.1),
    ] {
        let path = format!("{directory}/{file}");
        fs::write(&path, format!("{inside} {outside} 1\n")).on(Stage::Idmap, "write", &path)?;
    }
    let path = format!("{directory}/ns/user");
    File::open(&path).on(Stage::Idmap, "open", &path)
}

/// The holder process: creates a user namespace, reports that, and waits until its stdin closes.
pub(super) fn holder_main() -> ExitCode {
    let hold = || -> io::Result<()> {
        privilege::close_inherited().map_err(|failure| io::Error::other(failure.to_string()))?;
        nix::sched::unshare(CloneFlags::CLONE_NEWUSER)?;
        let mut stdout = io::stdout();
        stdout.write_all(b"+")?;
        stdout.flush()?;
        io::stdin().read_to_end(&mut Vec::new())?;
        Ok(())
    };
    if hold().is_ok() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
