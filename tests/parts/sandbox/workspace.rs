//! Directories that the agent shares with somebody: whose files are whose, inside and outside.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use marshal_config as config;
use marshal_launch::Stage;
use marshal_sandbox::{SandboxRequest, Tree};
use marshal_wire::shim::MountAccess;

use crate::children::{Place, give, ids, is_root, profile, script_output, spawner, walled};

fn shared<'a>(
    place: &Place,
    profile: &'a config::Sandbox,
    owner: (u32, u32),
    access: MountAccess,
) -> SandboxRequest<'a> {
    let path = place.path("shared");
    fs::create_dir(&path).unwrap();
    fs::write(path.join("private"), "text\n").unwrap();
    fs::set_permissions(path.join("private"), fs::Permissions::from_mode(0o600)).unwrap();
    give(&path, owner);
    give(&path.join("private"), owner);
    SandboxRequest {
        workspace: Some(Tree {
            path,
            owner,
            access,
            identity: None,
        }),
        ..place.request(profile)
    }
}

#[tokio::test]
async fn a_read_only_workspace_shows_its_owners_files_and_takes_nothing() {
    let profile = profile();
    let owners = if is_root() {
        vec![(0, 0), (54_000, 54_001)]
    } else {
        vec![ids().uid_and_gid()]
    };
    for owner in owners {
        let place = Place::new();
        let request = shared(&place, &profile, owner, MountAccess::Ro);
        let script = "cat private; stat -c %u:%g . private; \
                      for c in 'touch new' 'rm -f private' 'chmod 644 private' 'mv private other'; \
                      do $c 2>/dev/null && echo could $c; done; \
                      (echo x >> private) 2>/dev/null && echo wrote; true";
        let seen = script_output(&request, script).await;
        assert_eq!(seen, "text\n1000:1000\n1000:1000\n", "{owner:?}");
        let found = fs::metadata(place.path("shared/private")).unwrap();
        if is_root() {
            assert_eq!((found.uid(), found.gid()), owner, "nothing changes hands");
        }
    }
}

#[tokio::test]
async fn writes_to_a_shared_workspace_are_its_owners() {
    let (place, profile) = (Place::new(), profile());
    let owner = if is_root() {
        (54_000, 54_001)
    } else {
        ids().uid_and_gid()
    };
    let request = shared(&place, &profile, owner, MountAccess::Rw);
    let script = "echo more >> private; echo y > new; mkdir d; stat -c %u:%g new d; \
                  chown 0 new 2>/dev/null && echo chowned; true";
    assert_eq!(
        script_output(&request, script).await,
        "1000:1000\n1000:1000\n"
    );
    for name in ["private", "new", "d"] {
        let found = fs::metadata(place.path("shared").join(name)).unwrap();
        assert_eq!((found.uid(), found.gid()), owner, "{name}");
    }
    assert_eq!(
        fs::read_to_string(place.path("shared/private")).unwrap(),
        "text\nmore\n"
    );
}

#[tokio::test]
async fn a_file_system_without_id_maps_is_said_or_refused() {
    if !is_root() {
        return;
    }
    // sysfs has none.
    let (place, profile) = (Place::new(), profile());
    let tree = |owner, access| {
        let workspace = Tree {
            path: "/sys/kernel".into(),
            owner,
            access,
            identity: None,
        };
        SandboxRequest {
            workspace: Some(workspace),
            ..place.request(&profile)
        }
    };
    let spawner = spawner();
    let plain = spawner
        .spawn(walled(&tree((0, 0), MountAccess::Ro), "cat"))
        .await
        .unwrap();
    assert_eq!(plain.notes.len(), 1);
    assert!(plain.notes[0].contains("/sys/kernel"), "{:?}", plain.notes);
    let refused = spawner
        .spawn(walled(&tree((5, 5), MountAccess::Rw), "cat"))
        .await
        .unwrap_err();
    assert_eq!(refused.stage(), Some(Stage::Idmap));
    assert!(refused.to_string().contains("copy"), "{refused}");
}

#[tokio::test]
async fn another_directory_at_the_planned_path_is_refused() {
    let (place, profile) = (Place::new(), profile());
    let mut request = shared(&place, &profile, ids().uid_and_gid(), MountAccess::Rw);
    if let Some(tree) = &mut request.workspace {
        let meta = fs::metadata(&tree.path).unwrap();
        tree.identity = Some((meta.dev(), meta.ino()));
    }
    assert_eq!(script_output(&request, "cat private").await, "text\n");
    fs::rename(place.path("shared"), place.path("moved")).unwrap();
    std::os::unix::fs::symlink(place.path("moved"), place.path("shared")).unwrap();
    // The link leads to the same directory: it is the directory that counts.
    assert_eq!(script_output(&request, "cat private").await, "text\n");
    fs::remove_file(place.path("shared")).unwrap();
    fs::create_dir(place.path("shared")).unwrap();
    let failed = spawner().spawn(walled(&request, "true")).await.unwrap_err();
    assert!(failed.to_string().contains("another directory"), "{failed}");
}

/// A host whose mounts are shared, as systemd's are, must not collect mounts from sandboxes.
#[tokio::test]
async fn binds_inside_binds_leave_no_mount_on_the_host() {
    if !is_root() {
        return; // Only root's trees are opened among the host's own mounts.
    }
    // Shared with nobody outside: what other tests mount on this host meanwhile would come here, too.
    let script = format!(
        "mount --make-rshared / || exit 6; cat /proc/self/mountinfo | wc -l; '{}' --ignored --exact \
         sandbox::workspace::nested_binds --nocapture >/dev/null || exit 7; \
         cat /proc/self/mountinfo | wc -l",
        std::env::current_exe().unwrap().display(),
    );
    let output = std::process::Command::new("unshare")
        .args(["-m", "--propagation", "private", "sh", "-c", &script])
        .output()
        .unwrap();
    let out = String::from_utf8_lossy(&output.stdout);
    let counts: Vec<&str> = out.lines().collect();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(counts.len(), 2, "{out}");
    assert_eq!(counts[0], counts[1], "mounts before and after");
}

#[tokio::test]
#[ignore = "a part of binds_inside_binds_leave_no_mount_on_the_host"]
async fn nested_binds() {
    let place = Place::new();
    let mut profile = profile();
    fs::create_dir_all(place.path("outer/inner")).unwrap();
    profile.ro_bind.push(place.path("outer"));
    profile.ro_bind.push(place.path("outer/inner"));
    for _ in 0..3 {
        let request = place.request(&profile);
        assert_eq!(script_output(&request, "echo here").await, "here\n");
    }
}
