//! Kernel features that are missing or forbidden, one at a time: the start fails and says at what,
//! and nothing runs. A filter of the test's own stands for the kernel or the container that lacks
//! them.

use std::collections::BTreeMap;
use std::time::Duration;

use marshal_config as config;
use marshal_launch::{LaunchedChild, SpawnError, Stage};
use seccompiler::{SeccompAction, SeccompFilter};

use crate::children::{self, Place, is_alive, is_root, profile, spawner, walled};

const EPERM: u32 = 1;
const ENOMEM: u32 = 12;
const ENOSYS: u32 = 38;
const EOPNOTSUPP: u32 = 95;

/// What becomes of a start where this call gives that error.
fn start_without(
    call: i64,
    errno: u32,
    landlock_min_abi: u8,
    foreign_tree: bool,
) -> Result<Vec<String>, SpawnError> {
    // A filter belongs to a thread and what it starts.
    let started = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let place = Place::new();
        let profile = config::Sandbox {
            landlock_min_abi,
            ..profile()
        };
        let mut request = place.request(&profile);
        if foreign_tree {
            // An owner on disk who is mapped takes a mount with an id map.
            let owner = (54_322, 54_322);
            children::give(&place.path("workspace"), owner);
            if let Some(tree) = &mut request.workspace {
                tree.owner = owner;
            }
        }
        let plan = walled(&request, "sleep 977532");
        let filter = SeccompFilter::new(
            BTreeMap::from([(call, Vec::new())]),
            SeccompAction::Allow,
            SeccompAction::Errno(errno),
            std::env::consts::ARCH.try_into().unwrap(),
        )
        .unwrap();
        let filter: seccompiler::BpfProgram = filter.try_into().unwrap();
        seccompiler::apply_filter(&filter).unwrap();
        runtime.block_on(async {
            let started = spawner().spawn(plan).await;
            started.map(|launched: LaunchedChild| launched.layers.unwrap().describe())
        })
    });
    started.join().unwrap()
}

#[tokio::test]
async fn every_missing_feature_fails_closed_and_is_named() {
    use Stage::{Caps, Idmap, Landlock, Mount, Seccomp, Shim, Uid, Userns, Uts};
    let (root, both) = (true, false);
    let first = if is_root() { Mount } else { Userns };
    for (name, call, stage, only_root) in [
        (
            "landlock_create_ruleset",
            libc::SYS_landlock_create_ruleset,
            Landlock,
            both,
        ),
        (
            "landlock_add_rule",
            libc::SYS_landlock_add_rule,
            Landlock,
            both,
        ),
        (
            "landlock_restrict_self",
            libc::SYS_landlock_restrict_self,
            Landlock,
            both,
        ),
        ("seccomp", libc::SYS_seccomp, Seccomp, both),
        ("unshare", libc::SYS_unshare, first, both),
        ("open_tree", libc::SYS_open_tree, Mount, both),
        ("move_mount", libc::SYS_move_mount, Mount, both),
        ("mount", libc::SYS_mount, Mount, both),
        ("umount2", libc::SYS_umount2, Mount, both),
        ("pivot_root", libc::SYS_pivot_root, Mount, both),
        ("fsopen", libc::SYS_fsopen, Mount, both),
        ("fsconfig", libc::SYS_fsconfig, Mount, both),
        ("fsmount", libc::SYS_fsmount, Mount, both),
        ("sethostname", libc::SYS_sethostname, Uts, both),
        ("capset", libc::SYS_capset, Caps, both),
        ("setsid", libc::SYS_setsid, Shim, both),
        ("setgroups", libc::SYS_setgroups, Uid, root),
        ("setresgid", libc::SYS_setresgid, Uid, root),
        ("setresuid", libc::SYS_setresuid, Uid, root),
        ("mount_setattr", libc::SYS_mount_setattr, Idmap, root),
    ] {
        if only_root && !is_root() {
            continue;
        }
        for errno in [ENOSYS, EPERM] {
            let failed = start_without(call, errno, 6, stage == Idmap).unwrap_err();
            let text = failed.to_string();
            assert_eq!(failed.stage(), Some(stage), "{name}: {text}");
            assert_eq!(failed.metric_result(), "sandbox_failed", "{name}: {text}");
            let reason = std::io::Error::from_raw_os_error(errno.cast_signed()).to_string();
            let reason = reason.split(" (os").next().unwrap();
            // Without any Landlock there is no call left that could give an error.
            let expected = match name {
                "landlock_create_ruleset" if errno == ENOSYS => "no Landlock ABI 6",
                _ => reason,
            };
            assert!(text.contains(expected), "{name}: {text}");
        }
    }
    nothing_is_left().await;
}

#[tokio::test]
async fn without_landlock_a_profile_that_takes_none_starts_and_says_so() {
    let create = libc::SYS_landlock_create_ruleset;
    // Old container engines forbid it to what is in them.
    for errno in [ENOSYS, EOPNOTSUPP, EPERM] {
        let words = start_without(create, errno, 0, false).unwrap();
        assert!(words.contains(&"landlock none".to_owned()), "{words:?}");
    }
    // What fails for another reason is not missing, and what must be there must not be forbidden.
    for (errno, least) in [(ENOMEM, 0), (EPERM, 2)] {
        let failed = start_without(create, errno, least, false).unwrap_err();
        assert_eq!(failed.stage(), Some(Stage::Landlock), "{failed}");
    }
    // Half of it is none.
    let half = start_without(libc::SYS_landlock_restrict_self, EPERM, 0, false).unwrap_err();
    assert_eq!(half.stage(), Some(Stage::Landlock), "{half}");
    nothing_is_left().await;
}

async fn nothing_is_left() {
    children::until(Duration::from_secs(20), "nothing is left", || {
        let own = children::below(std::process::id());
        !children::live_processes("977532")
            .iter()
            .any(|pid| own.contains(pid) && is_alive(*pid))
    })
    .await;
}
