//! Directories that the agent shares with somebody: whose files are whose, inside and outside.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use marshal::config;
use marshal::launch::Stage;
use marshal::sandbox::{Tree, WallsRequest};
use marshal::wire::shim::Access;

use crate::children::{Place, give, ids, is_root, profile, says, spawner, walled};

fn shared<'a>(
    place: &Place,
    profile: &'a config::Sandbox,
    owner: (u32, u32),
    access: Access,
    identity: None,
) -> WallsRequest<'a> {
    let path = place.path("shared");
    fs::create_dir(&path).unwrap();
    fs::write(path.join("private"), "text\n").unwrap();
    fs::set_permissions(path.join("private"), fs::Permissions::from_mode(0o600)).unwrap();
    give(&path, owner);
    give(&path.join("private"), owner);
    WallsRequest {
        workspace: Some(Tree {
            path,
            owner,
            access,
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
        vec![ids().outside()]
    };
    for owner in owners {
        let place = Place::new();
        let request = shared(&place, &profile, owner, Access::Ro);
        let script = "cat private; stat -c %u:%g . private; \
                      for c in 'touch new' 'rm -f private' 'chmod 644 private' 'mv private other'; \
                      do $c 2>/dev/null && echo could $c; done; \
                      (echo x >> private) 2>/dev/null && echo wrote; true";
        let seen = says(&request, script).await;
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
        ids().outside()
    };
    let request = shared(&place, &profile, owner, Access::Rw);
    let script = "echo more >> private; echo y > new; mkdir d; stat -c %u:%g new d; \
                  chown 0 new 2>/dev/null && echo chowned; true";
    assert_eq!(says(&request, script).await, "1000:1000\n1000:1000\n");
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
        };
        WallsRequest {
            workspace: Some(workspace),
            ..place.request(&profile)
        }
    };
    let spawner = spawner();
    let plain = spawner
        .spawn(walled(&tree((0, 0), Access::Ro), "cat"))
        .await
        .unwrap();
    assert_eq!(plain.notes.len(), 1);
    assert!(plain.notes[0].contains("/sys/kernel"), "{:?}", plain.notes);
    let refused = spawner
        .spawn(walled(&tree((5, 5), Access::Rw), "cat"))
        .await
        .unwrap_err();
    assert_eq!(refused.stage(), Some(Stage::Idmap));
    assert!(refused.to_string().contains("copy"), "{refused}");
}
