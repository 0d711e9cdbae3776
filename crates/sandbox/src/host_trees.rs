//! Opens the host's directories that the sandbox will mount, while the host is still visible.
//!
//! The outer helper does this: as root, before it drops root, so that the agent's user needs no
//! access to a directory by its path; as an ordinary user, after the namespaces are created,
//! because only there it may. Must not know where a tree is mounted.

use std::fs;
use std::io::ErrorKind;
use std::os::fd::{AsRawFd as _, OwnedFd};

use rustix::fs::{CWD, FileType};
use rustix::mount::OpenTreeFlags;

use super::failure::{FailureContext, StepResult, failure};
use super::overlay_layers::PendingOverlay;
use super::{control, idmap, overlay_layers};
use marshal_wire::shim::{HostIds, IdMap, Mount, MountSource, OpenedMount, ShimPlan, Stage};

/// The opened trees.
pub(super) struct OpenedTrees {
    /// One entry for each mount of the plan.
    pub(super) opened: Vec<OpenedMount>,
    /// One descriptor for each opened tree.
    pub(super) descriptors: Vec<OwnedFd>,
    /// Notes for an operator.
    pub(super) notes: Vec<String>,
    /// Overlays that are not mounted yet: their descriptor is still the lower directory's.
    pub(super) overlays: Vec<PendingOverlay>,
    /// The id maps created so far.
    pub(super) maps: idmap::Maps,
}

const EXE: &str = "/proc/self/exe";

/// The supervisor's binary, which every sandbox mounts.
pub(super) enum SupervisorBinary {
    /// It is open already.
    Tree(OwnedFd),
    /// Its path.
    Path(String),
}

/// Opens the supervisor's binary as a tree: the descriptor that it handed over, otherwise this
/// process's own. /proc/self/exe leads into the original mount namespace, so it must be opened
/// before that is left. It works even below a directory that nobody else can enter, or after the
/// file was replaced.
pub(super) fn own_binary(handed: Option<&OwnedFd>) -> StepResult<OwnedFd> {
    match handed {
        Some(file) => {
            let flags = FLAGS.union(OpenTreeFlags::AT_EMPTY_PATH);
            rustix::mount::open_tree(file, "", flags)
                .at(Stage::Mount, "open the supervisor's binary")
        }
        None => rustix::mount::open_tree(CWD, EXE, FLAGS).on(Stage::Mount, "open", EXE),
    }
}

/// The path of the supervisor's binary.
pub(super) fn own_binary_path(handed: Option<&OwnedFd>) -> StepResult<String> {
    let link = match handed {
        Some(file) => format!("/proc/self/fd/{}", file.as_raw_fd()),
        None => EXE.to_owned(),
    };
    let path = fs::read_link(&link).on(Stage::Mount, "read", &link)?;
    path.into_os_string()
        .into_string()
        .map_err(|path| marshal_wire::shim::SetupFailure {
            path: Some(path.to_string_lossy().into_owned()),
            ..failure(Stage::Mount, "the path of marshal's binary is not UTF-8:")
        })
}

const FLAGS: OpenTreeFlags = OpenTreeFlags::OPEN_TREE_CLONE
    .union(OpenTreeFlags::OPEN_TREE_CLOEXEC)
    .union(OpenTreeFlags::AT_RECURSIVE);

/// Opens every tree of the plan. `binary` is the supervisor's.
pub(super) fn open(plan: &ShimPlan, binary: SupervisorBinary) -> StepResult<OpenedTrees> {
    let (mut tree, path_of_binary) = match binary {
        SupervisorBinary::Tree(tree) => (Some(tree), EXE.to_owned()),
        SupervisorBinary::Path(path) => (None, path),
    };
    let mut trees = OpenedTrees {
        opened: Vec::new(),
        descriptors: Vec::new(),
        notes: Vec::new(),
        overlays: Vec::new(),
        maps: idmap::Maps::default(),
    };
    for mount in &plan.mounts {
        let opened = match mount {
            Mount::Tree {
                source,
                optional,
                idmap,
                expect,
                ..
            } => {
                if *source == MountSource::OwnBinary
                    && let Some(tree) = tree.take()
                {
                    trees.descriptors.push(tree);
                    trees.opened.push(OpenedMount::Tree { is_dir: false });
                    continue;
                }
                let path = match source {
                    MountSource::Path(path) => path,
                    MountSource::OwnBinary => &path_of_binary,
                };
                let wanted = TreeOptions {
                    optional: *optional,
                    map: *idmap,
                    identity: *expect,
                };
                trees.tree(path, wanted, plan.ids)?
            }
            Mount::Overlay { layers, .. } => {
                overlay_layers::open_layers(&mut trees, layers, plan.ids)?
            }
            Mount::Mirror { path } => trees.mirror(path, plan.ids)?,
            _ => OpenedMount::Nothing,
        };
        trees.opened.push(opened);
    }
    // Four descriptors are reserved for the agent's pipes and the sandbox entry.
    if trees.descriptors.len() + 4 > control::DESCRIPTORS {
        return Err(failure(
            Stage::Mount,
            "the sandbox has more than 249 mounts: remove some from the profile (ro_bind) or the slice",
        ));
    }
    Ok(trees)
}

/// How a tree is opened.
#[derive(Debug, Clone, Copy, Default)]
struct TreeOptions {
    optional: bool,
    map: Option<IdMap>,
    /// Expected device and inode, if they are checked.
    identity: Option<(u64, u64)>,
}

impl OpenedTrees {
    fn tree(&mut self, path: &str, wanted: TreeOptions, ids: HostIds) -> StepResult<OpenedMount> {
        let tree = match rustix::mount::open_tree(CWD, path, FLAGS) {
            Err(rustix::io::Errno::NOENT) if wanted.optional => return Ok(OpenedMount::Nothing),
            opened => opened.on(Stage::Mount, "open", path)?,
        };
        let kind = rustix::fs::fstat(&tree).on(Stage::Mount, "inspect", path)?;
        if wanted
            .identity
            .is_some_and(|it| it != (kind.st_dev, kind.st_ino))
        {
            return Err(marshal_wire::shim::SetupFailure {
                path: Some(path.to_owned()),
                ..failure(Stage::Mount, "another directory has replaced")
            });
        }
        if let Some(map) = wanted.map {
            match idmap::apply(&tree, map, ids.uid_and_gid(), &mut self.maps) {
                Ok(()) => {}
                Err(refused) if map.or_plain => self.notes.push(format!(
                    "{path:?} is mounted with its owners on disk: its file system cannot be \
                     mounted with an id map ({})",
                    refused.reason().unwrap_or(refused.what)
                )),
                Err(refused) => {
                    return Err(marshal_wire::shim::SetupFailure {
                        path: Some(refused.path.unwrap_or_else(|| path.to_owned())),
                        ..refused
                    });
                }
            }
        }
        self.descriptors.push(tree);
        Ok(OpenedMount::Tree {
            is_dir: FileType::from_raw_mode(kind.st_mode).is_dir(),
        })
    }

    fn mirror(&mut self, path: &str, ids: HostIds) -> StepResult<OpenedMount> {
        match fs::symlink_metadata(path) {
            Ok(meta) if meta.is_symlink() => {
                let to = fs::read_link(path).on(Stage::Mount, "read", path)?;
                Ok(OpenedMount::Link {
                    to: to.to_string_lossy().into_owned(),
                })
            }
            Ok(_) => {
                let wanted = TreeOptions {
                    optional: true,
                    ..TreeOptions::default()
                };
                self.tree(path, wanted, ids)
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(OpenedMount::Nothing),
            Err(error) => Err(error).on(Stage::Mount, "inspect", path),
        }
    }
}
