//! What the sandbox is, for requests of every kind.

use super::*;
use marshal_config::{Network, Sandbox};

fn profile() -> Sandbox {
    Sandbox {
        ro_bind: vec!["/usr".into(), "/opt/tools".into()],
        etc: vec!["ssl".to_owned(), "localtime".to_owned()],
        home_bytes: 4 << 30,
        tmp_bytes: 256 << 20,
        tmp_inodes: 16384,
        proc_mode: ProcMode::Pid,
        nofile: 1024,
        fsize: 1 << 30,
        landlock_min_abi: 6,
        seccomp: marshal_config::Seccomp::Default,
        requirements: marshal_config::HostRequirements::default(),
        group_limits: marshal_model::ResourceLimits::NONE,
    }
}

fn request(profile: &Sandbox) -> SandboxRequest<'_> {
    let tree = |path: &str| Tree {
        path: path.into(),
        owner: (100_007, 100_007),
        access: MountAccess::Rw,
        identity: None,
    };
    SandboxRequest {
        home: Some(tree("/state/homes/s1")),
        workspace: Some(tree("/state/copies/t1")),
        hostname: "demo/3",
        ..probe_request(profile, HostIds::Root { slot_uid: 100_007 })
    }
}

#[test]
fn the_sandbox_of_a_copy_as_root() {
    insta::assert_json_snapshot!(plan(&request(&profile())).unwrap());
}

#[test]
fn the_sandbox_of_an_ordinary_user_with_the_hosts_network_and_the_whole_proc() {
    let profile = Sandbox {
        proc_mode: ProcMode::Masked,
        ..profile()
    };
    let request = SandboxRequest {
        ids: HostIds::Own {
            uid: 1001,
            gid: 1002,
        },
        network: Network::Host,
        ..request(&profile)
    };
    insta::assert_json_snapshot!(plan(&request).unwrap());
}

fn workspace_map(
    owner: (u32, u32),
    access: MountAccess,
    ids: HostIds,
) -> Result<Option<IdMap>, PlanError> {
    let profile = profile();
    let workspace = Tree {
        path: "/w".into(),
        owner,
        access,
        identity: None,
    };
    let request = SandboxRequest {
        ids,
        workspace: Some(workspace),
        home: None,
        ..request(&profile)
    };
    let plan = plan(&request)?;
    Ok(plan.mounts.iter().find_map(|mount| match mount {
        Mount::Tree { target, idmap, .. } if target == WORKSPACE => *idmap,
        _ => None,
    }))
}

#[test]
fn as_root_the_owner_becomes_the_agent_and_only_a_read_only_tree_may_go_without() {
    let root = HostIds::Root { slot_uid: 100_007 };
    let map = |or_plain, uid, gid| Ok(Some(IdMap { uid, gid, or_plain }));
    assert_eq!(
        workspace_map((1001, 1002), MountAccess::Rw, root),
        map(false, 1001, 1002)
    );
    assert_eq!(
        workspace_map((1001, 1002), MountAccess::Ro, root),
        map(true, 1001, 1002)
    );
    assert_eq!(
        workspace_map((0, 0), MountAccess::Ro, root),
        map(true, 0, 0)
    );
    assert_eq!(
        workspace_map((100_007, 100_007), MountAccess::Rw, root),
        Ok(None)
    );
    let own = HostIds::Own {
        uid: 1001,
        gid: 1001,
    };
    assert_eq!(workspace_map((0, 0), MountAccess::Rw, own), Ok(None));
}

#[test]
fn no_map_writes_as_root_or_its_group() {
    let root = HostIds::Root { slot_uid: 100_007 };
    for owner in [(0, 0), (0, 1002), (1001, 0)] {
        let refused = workspace_map(owner, MountAccess::Rw, root);
        assert_eq!(
            refused,
            Err(PlanError::RootOwned { path: "/w".into() }),
            "{owner:?}"
        );
    }
}

#[test]
fn an_agent_is_never_root() {
    let profile = profile();
    for ids in [
        HostIds::Root { slot_uid: 0 },
        HostIds::Own { uid: 0, gid: 1000 },
        HostIds::Own { uid: 1000, gid: 0 },
    ] {
        let request = SandboxRequest {
            ids,
            ..request(&profile)
        };
        assert_eq!(plan(&request), Err(PlanError::RootAgent));
    }
}

#[test]
fn a_profile_cannot_bind_over_what_is_the_sandboxes_own() {
    for path in [
        "/",
        "/etc",
        "/etc/ssl",
        "/proc",
        "/proc/sys",
        "/dev",
        "/home",
        "/home/agent",
        "/home/agent/x",
        "/workspace",
        "/run",
        "/run/marshal",
        "/tmp",
    ] {
        let profile = Sandbox {
            ro_bind: vec![path.into()],
            ..profile()
        };
        let refused = plan(&request(&profile));
        assert!(
            matches!(refused, Err(PlanError::Collides { .. })),
            "{path}: {refused:?}"
        );
    }
    for path in ["usr", "/usr/../etc", "", "./usr"] {
        let profile = Sandbox {
            ro_bind: vec![path.into()],
            ..profile()
        };
        let refused = plan(&request(&profile));
        assert!(
            matches!(refused, Err(PlanError::NotAbsolute(_))),
            "{path}: {refused:?}"
        );
    }
    for path in [
        "/usr",
        "/home/someone/tools",
        "/homework",
        "/tmp/tools",
        "/bin",
        "/nix/",
    ] {
        let profile = Sandbox {
            ro_bind: vec![path.into()],
            ..profile()
        };
        assert!(plan(&request(&profile)).is_ok(), "{path}");
    }
}

#[test]
fn secrets_and_made_files_of_etc_cannot_be_asked_for() {
    for name in [
        "",
        "passwd",
        "shadow",
        "shadow/",
        "../root",
        "/etc/ssl",
        "ssl/../shadow",
        ".",
    ] {
        let profile = Sandbox {
            etc: vec![name.to_owned()],
            ..profile()
        };
        assert_eq!(
            plan(&request(&profile)),
            Err(PlanError::Etc(name.to_owned())),
            "{name}"
        );
    }
    let profile = Sandbox {
        etc: vec!["ssl/certs".to_owned()],
        ..profile()
    };
    assert!(plan(&request(&profile)).is_ok());
}
