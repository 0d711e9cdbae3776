//! What another program is to show inside: directories with their owners mapped, files, and file
//! systems in memory, each at a path that this program can name.
//!
//! As root they are put on a stage: an own file system in memory in an own mount namespace, gone
//! with the processes in it, so that nobody needs a way to the directories themselves. Otherwise
//! they are named where they are. Must not know who shows them.

mod cover;

use std::fs;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Gid, Mode, OFlags, Uid};
use rustix::mount::{MountPropagationFlags, MoveMountFlags};

use super::super::fail::{At, Step, failure};
use super::super::trees::Binary;
use super::super::{root, trees};
use crate::wire::shim::{Failure, Mount, Opened, ShimPlan, Source, Stage as At_};

/// Where the stage hangs, in a mount namespace of its own: a directory that every supervisor that is
/// root has, and that everybody may enter.
pub(super) const PLACE: &str = "/run/marshal";
/// The size of the stage itself: mount points and a few small files.
const STAGE_BYTES: u64 = 1 << 20;
/// Its inodes.
const STAGE_INODES: u64 = 4096;
/// The socket by which pid 1 of a container finds its helper, below the stage or a directory.
const SOCKET: &str = "link";

/// Where one mount of a plan is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Placed {
    /// Nowhere: it is not wanted, or optional and missing.
    Nothing,
    /// At this path outside.
    At {
        /// The path.
        path: String,
        /// Whether it is a directory.
        is_dir: bool,
    },
    /// A symbolic link that is to be the same inside.
    Link {
        /// Whereto.
        to: String,
    },
    /// Whoever shows it makes it.
    Own,
}

/// What is to be shown.
#[derive(Debug)]
pub(super) struct Stage {
    /// One entry for each mount of the plan.
    pub(super) placed: Vec<Placed>,
    /// What an operator should know.
    pub(super) notes: Vec<String>,
    /// The directory where things can be added, if there is one.
    pub(super) directory: Option<PathBuf>,
}

/// Builds a stage in a new mount namespace of this process; needs root.
pub(super) fn build(plan: &ShimPlan, wants: impl Fn(&Mount) -> bool) -> Step<Stage> {
    possible(plan)?;
    let binary = trees::own_binary(None)?;
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS)
        .at(At_::Mount, "leave the host's mounts")?;
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", private).on(At_::Mount, "make private", "/")?;
    let is_tree = |mount: &&Mount| matches!(mount, Mount::Tree { .. } | Mount::Mirror { .. });
    let shown = ShimPlan {
        mounts: plan
            .mounts
            .iter()
            .filter(|mount| wants(mount))
            .filter(is_tree)
            .cloned()
            .collect(),
        ..plan.clone()
    };
    let opened = trees::open(&shown, Binary::Tree(binary))?;
    let stage = root::tmpfs(STAGE_BYTES, STAGE_INODES, 0o755)?;
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    rustix::mount::move_mount(&stage, "", CWD, PLACE, flags).on(
        At_::Mount,
        "hang the stage at",
        PLACE,
    )?;
    let mut found = opened.opened.into_iter();
    let mut descriptors = opened.descriptors.into_iter();
    let mut placed = Vec::new();
    for (number, mount) in plan.mounts.iter().enumerate() {
        let next = if !wants(mount) {
            Placed::Nothing
        } else if is_tree(&mount) {
            match found.next() {
                Some(Opened::Tree { is_dir }) => {
                    let tree = descriptors
                        .next()
                        .ok_or_else(|| failure(At_::Shim, "a tree did not open"))?;
                    put(&stage, &tree, number, is_dir)?
                }
                Some(Opened::Link { to }) => Placed::Link { to },
                Some(Opened::Nothing) | None => Placed::Nothing,
            }
        } else {
            made(plan, &stage, number, mount)?
        };
        match mount {
            Mount::Hidden { target } => cover::over(&stage, &plan.mounts, &placed, target)?,
            Mount::Held { target } => cover::hold(&stage, &plan.mounts, &placed, target)?,
            _ => {}
        }
        placed.push(next);
    }
    Ok(Stage {
        placed,
        notes: opened.notes,
        directory: Some(PathBuf::from(PLACE)),
    })
}

/// Refuses what walls of another program's making cannot have. Whoever adds a kind of mount decides
/// here.
fn possible(plan: &ShimPlan) -> Step {
    for mount in &plan.mounts {
        match mount {
            Mount::Overlay { target, .. } => {
                return Err(Failure {
                    path: Some(target.clone()),
                    ..failure(
                        At_::Overlay,
                        "only walls of marshal's own making (launcher = \"unshare\") have a writable \
                         view, at",
                    )
                });
            }
            Mount::Terminals => {
                return Err(failure(
                    At_::Mount,
                    "only walls of marshal's own making (launcher = \"pty\") have terminals",
                ));
            }
            Mount::Tree { .. }
            | Mount::Mirror { .. }
            | Mount::Tmpfs { .. }
            | Mount::Proc { .. }
            | Mount::Dir { .. }
            | Mount::Hidden { .. }
            | Mount::Held { .. }
            | Mount::File { .. }
            | Mount::Link { .. } => {}
        }
    }
    Ok(())
}

/// What is not of the host.
fn made(plan: &ShimPlan, stage: &OwnedFd, number: usize, mount: &Mount) -> Step<Placed> {
    match mount {
        Mount::Tmpfs {
            bytes,
            inodes,
            mode,
            target,
        } => {
            let memory = root::tmpfs(*bytes, *inodes, *mode)?;
            let (uid, gid) = plan.ids.outside();
            let owner = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
            rustix::fs::chownat(&memory, "", owner.0, owner.1, AtFlags::EMPTY_PATH).on(
                At_::Mount,
                "give away",
                target,
            )?;
            put(stage, &memory, number, true)
        }
        Mount::File { text, .. } => {
            let path = Path::new(PLACE).join(number.to_string());
            write(&path, text)?;
            Ok(at(&path, false))
        }
        _ => Ok(Placed::Own),
    }
}

fn put(stage: &OwnedFd, tree: &OwnedFd, number: usize, is_dir: bool) -> Step<Placed> {
    let name = number.to_string();
    let path = Path::new(PLACE).join(&name);
    if is_dir {
        rustix::fs::mkdirat(stage, &*name, Mode::from_raw_mode(0o755))
    } else {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        rustix::fs::openat(stage, &*name, flags, Mode::from_raw_mode(0o444)).map(drop)
    }
    .on(At_::Mount, "make", &path)?;
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    rustix::mount::move_mount(tree, "", stage, &*name, flags).on(At_::Mount, "mount on", &path)?;
    Ok(at(&path, is_dir))
}

/// Names what is wanted where it is. Files are written below `directory`, if one is given.
pub(super) fn name(
    plan: &ShimPlan,
    wants: impl Fn(&Mount) -> bool,
    directory: Option<&Path>,
) -> Step<Stage> {
    possible(plan)?;
    let mut stage = Stage {
        placed: Vec::new(),
        notes: Vec::new(),
        directory: directory.map(Path::to_owned),
    };
    for (number, mount) in plan.mounts.iter().enumerate() {
        if let Mount::Hidden { target } | Mount::Held { target } = mount {
            return Err(Failure {
                path: Some(target.clone()),
                ..failure(
                    At_::Mount,
                    "this launcher covers nothing in a workspace unless marshal is root (use \
                     workspace mode \"copy\", or launcher \"unshare\", or mask = []):",
                )
            });
        }
        let placed = if wants(mount) {
            named(mount, number, directory, &mut stage.notes)?
        } else {
            Placed::Nothing
        };
        stage.placed.push(placed);
    }
    Ok(stage)
}

fn named(
    mount: &Mount,
    number: usize,
    directory: Option<&Path>,
    notes: &mut Vec<String>,
) -> Step<Placed> {
    match mount {
        Mount::Tree {
            source,
            optional,
            idmap,
            ..
        } => {
            let path = match source {
                Source::Path(path) => PathBuf::from(path),
                Source::OwnBinary => {
                    fs::read_link("/proc/self/exe").on(At_::Mount, "read", "/proc/self/exe")?
                }
            };
            match idmap {
                Some(map) if !map.or_plain => {
                    return Err(Failure {
                        path: Some(path.to_string_lossy().into_owned()),
                        ..failure(
                            At_::Idmap,
                            "this engine cannot give another owner to (use workspace mode \"copy\")",
                        )
                    });
                }
                Some(_) => notes.push(format!(
                    "{} is shown with the owners it has on disk: this engine cannot map them",
                    path.display()
                )),
                None => {}
            }
            existing(&path, *optional)
        }
        Mount::Mirror { path } => match fs::symlink_metadata(path) {
            Ok(found) if found.is_symlink() => {
                let to = fs::read_link(path).on(At_::Mount, "read", path)?;
                Ok(Placed::Link {
                    to: to.to_string_lossy().into_owned(),
                })
            }
            _ => existing(Path::new(path), true),
        },
        Mount::File { text, .. } => match directory {
            Some(directory) => {
                let path = directory.join(number.to_string());
                write(&path, text)?;
                Ok(at(&path, false))
            }
            None => Ok(Placed::Own),
        },
        _ => Ok(Placed::Own),
    }
}

fn existing(path: &Path, optional: bool) -> Step<Placed> {
    match fs::metadata(path) {
        Ok(found) => {
            if path.to_str().is_none() {
                return Err(Failure {
                    path: Some(path.to_string_lossy().into_owned()),
                    ..failure(At_::Mount, "this path is not UTF-8:")
                });
            }
            Ok(at(path, found.is_dir()))
        }
        Err(error) if error.kind() == ErrorKind::NotFound && optional => Ok(Placed::Nothing),
        Err(error) => Err(error).on(At_::Mount, "open", path),
    }
}

fn at(path: &Path, is_dir: bool) -> Placed {
    Placed::At {
        path: path.to_string_lossy().into_owned(),
        is_dir,
    }
}

fn write(path: &Path, text: &str) -> Step {
    fs::write(path, text).on(At_::Mount, "write", path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o644)).on(At_::Mount, "open up", path)
}

/// Listens at the stage, or in the directory, for one caller with these ids; where that is.
pub(super) fn listen(directory: &Path, owner: (u32, u32)) -> Step<(UnixListener, String)> {
    let path = directory.join(SOCKET);
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened =
        rustix::fs::open(directory, flags, Mode::empty()).on(At_::Engine, "open", directory)?;
    // An address holds 107 bytes, a path of the state directory may have more.
    let short = {
        use std::os::fd::AsRawFd as _;
        format!("/proc/self/fd/{}/{SOCKET}", opened.as_raw_fd())
    };
    let listener = UnixListener::bind(short).on(At_::Engine, "listen at", &path)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).on(
        At_::Engine,
        "close",
        &path,
    )?;
    if rustix::process::geteuid().is_root() {
        let owner = (Some(Uid::from_raw(owner.0)), Some(Gid::from_raw(owner.1)));
        rustix::fs::chownat(&opened, SOCKET, owner.0, owner.1, AtFlags::SYMLINK_NOFOLLOW).on(
            At_::Engine,
            "give away",
            &path,
        )?;
    }
    let path = path.to_string_lossy().into_owned();
    Ok((listener, path))
}
