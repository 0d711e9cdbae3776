//! Walls that cannot be had are an error that names them, and nothing runs.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use marshal_config as config;
use marshal_launch::{self as launch, LaunchPlan, RunError, SpawnError, Stage};
use marshal_sandbox as sandbox;

use crate::children::{self, Place, ids, is_root, live_processes, profile, spawner, walled};
use crate::programs::install;

#[tokio::test]
async fn without_user_namespaces_the_start_fails_and_says_so() {
    let mut command = std::process::Command::new("setpriv");
    if is_root() {
        let ids = [
            format!("--reuid={}", children::USER),
            format!("--regid={}", children::USER),
        ];
        command.args(ids).arg("--clear-groups");
    }
    let dir = tempfile::tempdir_in("/tmp").unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let exe = dir.path().join("marshal");
    install(&exe, fs::File::open(children::marshal()).unwrap());
    // An ordinary user may not be able to reach the build's directory.
    let tests = dir.path().join("tests");
    let this = std::env::current_exe().unwrap();
    install(&tests, fs::File::open(this).unwrap());
    // In a user namespace of its own that may have none below it.
    let script = format!(
        "echo 0 > /proc/sys/user/max_user_namespaces && exec '{}' --ignored --exact \
         sandbox::refusals::no_sandbox_can_be_built --nocapture",
        tests.display(),
    );
    let output = command
        .args([
            "unshare",
            "-U",
            "--map-user=1000",
            "--map-group=1000",
            "--keep-caps",
        ])
        .args(["sh", "-c", &script])
        .env("MARSHAL_UNDER_TEST", &exe)
        .output()
        .unwrap();
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && out.contains("1 passed"),
        "{output:?}"
    );
}

#[tokio::test]
#[ignore = "a part of without_user_namespaces_the_start_fails_and_says_so"]
async fn no_sandbox_can_be_built() {
    let profile = profile();
    let sandbox_spec = sandbox::plan(&sandbox::probe_request(&profile, ids())).unwrap();
    let failed = launch::probe_shim_plan(&spawner(), sandbox_spec, sandbox::limits_of(&profile))
        .await
        .unwrap_err();
    let RunError::Spawn(failed) = failed else {
        panic!("{failed}")
    };
    assert_eq!(failed.stage(), Some(Stage::Userns), "{failed}");
    assert!(
        failed.to_string().contains("user.max_user_namespaces"),
        "{failed}"
    );
}

#[tokio::test]
async fn a_missing_directory_is_a_failed_wall_that_is_named() {
    let place = Place::new();
    let profile = config::Sandbox {
        ro_bind: vec!["/usr".into(), "/no/such/tools".into()],
        ..profile()
    };
    let failed = spawner()
        .spawn(walled(&place.request(&profile), "true"))
        .await
        .unwrap_err();
    assert_eq!(failed.metric_result(), "sandbox_failed");
    assert_eq!(failed.stage(), Some(Stage::Mount));
    let text = failed.to_string();
    assert!(
        text.contains("/no/such/tools") && text.contains("No such file"),
        "{text}"
    );
}

#[tokio::test]
async fn a_missing_program_is_not_a_failed_wall() {
    let (place, profile) = (Place::new(), profile());
    for program in ["/opt/no-such-agent", "no-such-agent", "/etc/passwd", "/usr"] {
        let mut plan: LaunchPlan = walled(&place.request(&profile), "true");
        plan.argv = vec![program.to_owned()];
        let failed = spawner().spawn(plan).await.unwrap_err();
        assert!(matches!(failed, SpawnError::Exec(_)), "{failed}");
        assert_eq!(
            (failed.metric_result(), failed.stage()),
            ("exec_failed", None)
        );
        assert!(failed.to_string().contains(program), "{failed}");
    }
}

#[tokio::test]
async fn a_sandbox_for_another_user_is_refused() {
    let profile = profile();
    let wrong = sandbox::HostIds::Own {
        uid: 12_345,
        gid: 12_345,
    };
    let sandbox_spec = sandbox::plan(&sandbox::probe_request(&profile, wrong)).unwrap();
    let limits = sandbox::limits_of(&profile);
    let failed = launch::probe_shim_plan(&spawner(), sandbox_spec, limits)
        .await
        .unwrap_err();
    let RunError::Spawn(failed) = failed else {
        panic!("{failed}")
    };
    assert_eq!(failed.stage(), Some(Stage::Uid), "{failed}");
}

#[tokio::test]
async fn a_mount_point_that_a_link_leads_away_from_is_refused() {
    let place = Place::new();
    // Inside, /bin is a link: a bind below it would land elsewhere.
    if !fs::symlink_metadata("/bin").unwrap().is_symlink() {
        return;
    }
    let profile = config::Sandbox {
        ro_bind: vec!["/usr".into(), "/bin/sh".into()],
        ..profile()
    };
    let failed = spawner()
        .spawn(walled(&place.request(&profile), "true"))
        .await
        .unwrap_err();
    assert_eq!(failed.stage(), Some(Stage::Mount), "{failed}");
    assert!(failed.to_string().contains("symbolic link"), "{failed}");
}

#[tokio::test]
async fn nothing_of_a_failed_start_is_left() {
    let place = Place::new();
    let profile = config::Sandbox {
        ro_bind: vec!["/usr".into(), "/no/such".into()],
        ..profile()
    };
    let own = std::process::id();
    for _ in 0..5 {
        spawner()
            .spawn(walled(&place.request(&profile), "true"))
            .await
            .unwrap_err();
    }
    let limit = std::time::Duration::from_secs(20);
    children::until(limit, "helpers have gone", || {
        children::below(own).iter().all(|pid| {
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            !name.starts_with("marshal") || !live_processes("/no/such").contains(pid)
        })
    })
    .await;
}
