//! Prepares what another program mounts inside: directories with mapped owners, files, and tmpfs
//! mounts, each at a path that this program can name.
//!
//! As root they are mounted on a stage: a tmpfs in its own mount namespace, gone with its
//! processes, so that nobody needs access to the directories themselves. Otherwise they are named
//! where they are. Must not know which program mounts them.

mod cover;

use std::fs;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags, MoveMountFlags};

use super::super::failure::{FailureContext, StepResult, failure};
use super::super::host_trees::SupervisorBinary;
use super::super::{host_trees, root};
use marshal_wire::shim::{Mount, MountSource, OpenedMount, SetupFailure, ShimPlan, Stage as At_};

/// Mount point of the stage, in its own mount namespace: a directory that everybody may enter. A
/// supervisor has its uid locks below it; whoever runs one command alone may be the first here.
pub(super) const STAGE_DIR: &str = "/run/marshal";
/// Size of the stage itself in bytes: mount points and a few small files.
const STAGE_BYTES: u64 = 1 << 20;
/// Inodes of the stage itself.
const STAGE_INODES: u64 = 4096;
/// The socket by which pid 1 of a container connects to its helper, below the stage or a directory.
const SOCKET: &str = "link";

/// Where one mount of a plan is prepared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum StagedMount {
    /// Nowhere: it is not wanted, or optional and missing.
    Nothing,
    /// At this path on the host.
    At {
        /// The path.
        path: String,
        /// Whether it is a directory.
        is_dir: bool,
    },
    /// A symbolic link to be created inside.
    Link {
        /// The link's target.
        to: String,
    },
    /// The program that creates the sandbox makes it.
    MadeByEngine,
}

/// The prepared mounts.
#[derive(Debug)]
pub(super) struct StagedMounts {
    /// One entry for each mount of the plan.
    pub(super) placed: Vec<StagedMount>,
    /// Notes for an operator.
    pub(super) notes: Vec<String>,
    /// The directory that further files can be added to, if any.
    pub(super) directory: Option<PathBuf>,
}

/// Builds a stage in a new mount namespace of this process; requires root.
pub(super) fn build(plan: &ShimPlan, wants: impl Fn(&Mount) -> bool) -> StepResult<StagedMounts> {
    check_supported(plan)?;
    let binary = host_trees::own_binary(None)?;
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS)
        .at(At_::Mount, "unshare the host's mounts")?;
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
    let opened = host_trees::open(&shown, SupervisorBinary::Tree(binary))?;
    match rustix::fs::mkdir(STAGE_DIR, Mode::from_raw_mode(0o755)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno).on(At_::Mount, "create", STAGE_DIR),
    }
    let stage = root::tmpfs(STAGE_BYTES, STAGE_INODES, 0o755)?;
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    rustix::mount::move_mount(&stage, "", CWD, STAGE_DIR, flags).on(
        At_::Mount,
        "mount the stage at",
        STAGE_DIR,
    )?;
    let mut mounts_opened = opened.opened.into_iter();
    let mut descriptors = opened.descriptors.into_iter();
    let mut placed = Vec::new();
    for (number, mount) in plan.mounts.iter().enumerate() {
        let next = if !wants(mount) {
            StagedMount::Nothing
        } else if is_tree(&mount) {
            match mounts_opened.next() {
                Some(OpenedMount::Tree { is_dir }) => {
                    let tree = descriptors.next().ok_or_else(|| {
                        failure(At_::Shim, "a directory of the plan was not opened")
                    })?;
                    attach_to_stage(&stage, &tree, number, is_dir)?
                }
                Some(OpenedMount::Link { to }) => StagedMount::Link { to },
                Some(OpenedMount::Nothing) | None => StagedMount::Nothing,
            }
        } else {
            stage_generated(plan, &stage, number, mount)?
        };
        match mount {
            Mount::Hidden { target } => cover::cover_target(&stage, &plan.mounts, &placed, target)?,
            Mount::Held { target } => {
                cover::pin_target(&stage, &plan.mounts, &placed, target, MountFlags::empty())?;
            }
            Mount::Replaced { target, text } => {
                let node = Path::new(STAGE_DIR).join(number.to_string());
                write_readable(&node, text)?;
                cover::replace_target((&stage, &plan.mounts, &placed), number, target)?;
            }
            Mount::ReadOnly { target } => {
                cover::pin_target(&stage, &plan.mounts, &placed, target, MountFlags::RDONLY)?;
            }
            _ => {}
        }
        placed.push(next);
    }
    Ok(StagedMounts {
        placed,
        notes: opened.notes,
        directory: Some(PathBuf::from(STAGE_DIR)),
    })
}

/// Refuses mounts that another program cannot provide. A new kind of mount must be decided here.
fn check_supported(plan: &ShimPlan) -> StepResult {
    for mount in &plan.mounts {
        match mount {
            Mount::Overlay { target, .. } => {
                return Err(SetupFailure {
                    path: Some(target.clone()),
                    ..failure(
                        At_::Overlay,
                        "this launcher has no overlays: use launcher = \"unshare\", or workspace \
                         mode \"copy\"; needed for",
                    )
                });
            }
            Mount::Terminals => {
                return Err(failure(
                    At_::Mount,
                    "this launcher has no terminals: use launcher = \"pty\"",
                ));
            }
            Mount::Tree { .. }
            | Mount::Mirror { .. }
            | Mount::Tmpfs { .. }
            | Mount::Proc { .. }
            | Mount::Dir { .. }
            | Mount::Hidden { .. }
            | Mount::Held { .. }
            | Mount::ReadOnly { .. }
            | Mount::Replaced { .. }
            | Mount::File { .. }
            | Mount::Link { .. } => {}
        }
    }
    Ok(())
}

/// Creates mounts that do not come from the host.
fn stage_generated(
    plan: &ShimPlan,
    stage: &OwnedFd,
    number: usize,
    mount: &Mount,
) -> StepResult<StagedMount> {
    match mount {
        Mount::Tmpfs {
            bytes,
            inodes,
            mode,
            target,
        } => {
            let memory = root::tmpfs(*bytes, *inodes, *mode)?;
            let (uid, gid) = plan.ids.uid_and_gid();
            let owner = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
            rustix::fs::chownat(&memory, "", owner.0, owner.1, AtFlags::EMPTY_PATH).on(
                At_::Mount,
                "change the owner of",
                target,
            )?;
            attach_to_stage(stage, &memory, number, true)
        }
        Mount::File { text, .. } => {
            let path = Path::new(STAGE_DIR).join(number.to_string());
            write_readable(&path, text)?;
            Ok(staged_at(&path, false))
        }
        _ => Ok(StagedMount::MadeByEngine),
    }
}

fn attach_to_stage(
    stage: &OwnedFd,
    tree: &OwnedFd,
    number: usize,
    is_dir: bool,
) -> StepResult<StagedMount> {
    let name = number.to_string();
    let path = Path::new(STAGE_DIR).join(&name);
    if is_dir {
        rustix::fs::mkdirat(stage, &*name, Mode::from_raw_mode(0o755))
    } else {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        rustix::fs::openat(stage, &*name, flags, Mode::from_raw_mode(0o444)).map(drop)
    }
    .on(At_::Mount, "make", &path)?;
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    rustix::mount::move_mount(tree, "", stage, &*name, flags).on(At_::Mount, "mount on", &path)?;
    Ok(staged_at(&path, is_dir))
}

/// Locates the wanted mounts in place. Files are written below `directory`, if there is one.
pub(super) fn locate_in_place(
    plan: &ShimPlan,
    wants: impl Fn(&Mount) -> bool,
    directory: Option<&Path>,
) -> StepResult<StagedMounts> {
    check_supported(plan)?;
    let mut stage = StagedMounts {
        placed: Vec::new(),
        notes: Vec::new(),
        directory: directory.map(Path::to_owned),
    };
    for (number, mount) in plan.mounts.iter().enumerate() {
        if let Mount::Hidden { target }
        | Mount::Held { target }
        | Mount::ReadOnly { target }
        | Mount::Replaced { target, .. } = mount
        {
            return Err(SetupFailure {
                path: Some(target.clone()),
                ..failure(
                    At_::Mount,
                    "this launcher cannot hide files of a workspace, nor keep them from being \
                     changed, unless marshal is root (use workspace mode \"copy\", or launcher \
                     \"unshare\"):",
                )
            });
        }
        let placed = if wants(mount) {
            locate_mount(mount, number, directory, &mut stage.notes)?
        } else {
            StagedMount::Nothing
        };
        stage.placed.push(placed);
    }
    Ok(stage)
}

fn locate_mount(
    mount: &Mount,
    number: usize,
    directory: Option<&Path>,
    notes: &mut Vec<String>,
) -> StepResult<StagedMount> {
    match mount {
        Mount::Tree {
            source,
            optional,
            idmap,
            ..
        } => {
            let path = match source {
                MountSource::Path(path) => PathBuf::from(path),
                MountSource::OwnBinary => {
                    fs::read_link("/proc/self/exe").on(At_::Mount, "read", "/proc/self/exe")?
                }
            };
            match idmap {
                Some(map) if !map.or_plain => {
                    return Err(SetupFailure {
                        path: Some(path.to_string_lossy().into_owned()),
                        ..failure(
                            At_::Idmap,
                            "this launcher cannot map the owner of (use workspace mode \"copy\")",
                        )
                    });
                }
                Some(_) => notes.push(format!(
                    "{} is mounted with its owners on disk: this launcher cannot map them",
                    path.display()
                )),
                None => {}
            }
            locate_existing(&path, *optional)
        }
        Mount::Mirror { path } => match fs::symlink_metadata(path) {
            Ok(meta) if meta.is_symlink() => {
                let to = fs::read_link(path).on(At_::Mount, "read", path)?;
                Ok(StagedMount::Link {
                    to: to.to_string_lossy().into_owned(),
                })
            }
            _ => locate_existing(Path::new(path), true),
        },
        Mount::File { text, .. } => match directory {
            Some(directory) => {
                let path = directory.join(number.to_string());
                write_readable(&path, text)?;
                Ok(staged_at(&path, false))
            }
            None => Ok(StagedMount::MadeByEngine),
        },
        _ => Ok(StagedMount::MadeByEngine),
    }
}

fn locate_existing(path: &Path, optional: bool) -> StepResult<StagedMount> {
    match fs::metadata(path) {
        Ok(meta) => {
            if path.to_str().is_none() {
                return Err(SetupFailure {
                    path: Some(path.to_string_lossy().into_owned()),
                    ..failure(At_::Mount, "the path is not UTF-8:")
                });
            }
            Ok(staged_at(path, meta.is_dir()))
        }
        Err(error) if error.kind() == ErrorKind::NotFound && optional => Ok(StagedMount::Nothing),
        Err(error) => Err(error).on(At_::Mount, "open", path),
    }
}

fn staged_at(path: &Path, is_dir: bool) -> StagedMount {
    StagedMount::At {
        path: path.to_string_lossy().into_owned(),
        is_dir,
    }
}

fn write_readable(path: &Path, text: &str) -> StepResult {
    fs::write(path, text).on(At_::Mount, "write", path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o644)).on(
        At_::Mount,
        "make readable",
        path,
    )
}

/// Listens on the stage, or in the directory, for one peer with these ids; returns the socket's
/// path.
pub(super) fn listen(directory: &Path, owner: (u32, u32)) -> StepResult<(UnixListener, String)> {
    let path = directory.join(SOCKET);
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened =
        rustix::fs::open(directory, flags, Mode::empty()).on(At_::Engine, "open", directory)?;
    // A socket address holds 107 bytes; a path below the state directory may be longer.
    let short = {
        use std::os::fd::AsRawFd as _;
        format!("/proc/self/fd/{}/{SOCKET}", opened.as_raw_fd())
    };
    let listener = UnixListener::bind(short).on(At_::Engine, "listen at", &path)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).on(
        At_::Engine,
        "restrict the mode of",
        &path,
    )?;
    if rustix::process::geteuid().is_root() {
        let owner = (Some(Uid::from_raw(owner.0)), Some(Gid::from_raw(owner.1)));
        rustix::fs::chownat(&opened, SOCKET, owner.0, owner.1, AtFlags::SYMLINK_NOFOLLOW).on(
            At_::Engine,
            "change the owner of",
            &path,
        )?;
    }
    let path = path.to_string_lossy().into_owned();
    Ok((listener, path))
}
