//! What an agent sees and can do inside the walls: real namespaces, as root and as an ordinary
//! user.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use marshal::config::{self, Network, ProcMode};
use marshal::launch::{self, LaunchPlan, RunError, SpawnError, Spawner, Stage};
use marshal::model::ExitStatus;
use marshal::sandbox::{self, Tree, WallsRequest};
use marshal::wire::shim::Access;

#[path = "../support/children.rs"]
#[allow(dead_code, reason = "shared with other test binaries")]
mod children;
use children::{Place, alive, give, ids, is_root, profile, run, says, spawner, walled};

#[test]
fn all_of_this_holds_for_an_ordinary_user() {
    children::again_as_ordinary_user("all_of_this_holds_for_an_ordinary_user");
}

#[tokio::test]
async fn the_probe_passes_here() {
    let profile = profile();
    let walls = sandbox::plan(&sandbox::probe_request(&profile, ids())).unwrap();
    launch::probe(&spawner(), walls, sandbox::limits_of(&profile))
        .await
        .unwrap();
}

#[tokio::test]
async fn the_agent_is_user_1000_without_any_power() {
    let (place, profile) = (Place::new(), profile());
    let seen = says(
        &place.request(&profile),
        "id -u; id -g; id -un; grep -E '^(Cap|NoNewPrivs)' /proc/self/status | tr -s '\\t ' ' '",
    )
    .await;
    let zero = "0000000000000000";
    let caps: String = ["Inh", "Prm", "Eff", "Bnd", "Amb"]
        .map(|set| format!("Cap{set}: {zero}\n"))
        .concat();
    assert_eq!(seen, format!("1000\n1000\nagent\n{caps}NoNewPrivs: 1\n"));
}

#[tokio::test]
async fn no_capability_comes_back_by_a_namespace_of_its_own() {
    let (place, profile) = (Place::new(), profile());
    let tried = run(walled(&place.request(&profile), "unshare -U true"))
        .await
        .unwrap();
    assert_eq!(tried.status, ExitStatus::Code(1));
    let said = String::from_utf8_lossy(&tried.stderr).into_owned();
    assert!(
        said.contains("unshare failed: No space left on device"),
        "{said}"
    );
    let tried = run(walled(&place.request(&profile), "mount -t tmpfs none /tmp"))
        .await
        .unwrap();
    assert_ne!(tried.status, ExitStatus::Code(0));
}

#[tokio::test]
async fn only_its_own_descriptors_processes_and_environment_are_there() {
    let (place, profile) = (Place::new(), profile());
    let secret = fs::File::open("/etc/passwd").unwrap();
    rustix::io::fcntl_setfd(&secret, rustix::io::FdFlags::empty()).unwrap();
    let plan = walled(
        &place.request(&profile),
        // By the shell alone: a listing would see the descriptor of the listing.
        "i=0; while [ $i -lt 64 ]; do [ -e /proc/self/fd/$i ] && printf '%s ' $i; i=$((i+1)); \
         done; echo; cd /proc; echo [0-9]*; cat /proc/$$/environ | tr '\\0' '\\n'",
    );
    let finished = run(plan).await.unwrap();
    drop(secret);
    let seen = String::from_utf8(finished.stdout).unwrap();
    let lines: Vec<&str> = seen.lines().collect();
    assert_eq!(lines[..2], ["0 1 2 ", "1 2"], "{seen}");
    let (names, mut rest): (Vec<&str>, Vec<&str>) = (
        lines[2..]
            .iter()
            .map(|line| line.split('=').next().unwrap())
            .collect(),
        Vec::new(),
    );
    rest.extend(
        names
            .iter()
            .filter(|name| !["PATH", "MARSHAL_MARKER"].contains(*name)),
    );
    assert!(rest.is_empty(), "{seen}");
}

#[tokio::test]
async fn pid_1_shows_nothing_of_itself() {
    let (place, profile) = (Place::new(), profile());
    let script = "for f in environ maps mem; do cat /proc/1/$f 2>/dev/null && echo read $f; done; \
                  ls /proc/1/fd 2>/dev/null; kill -9 1; kill -TERM 1; echo still here";
    let seen = says(&place.request(&profile), script).await;
    assert_eq!(seen, "still here\n");
}

#[tokio::test]
async fn helpers_carry_no_variable_but_the_marker() {
    let (place, profile) = (Place::new(), profile());
    let launched = spawner()
        .spawn(walled(&place.request(&profile), "echo up; cat"))
        .await
        .unwrap();
    let helpers = [vec![launched.pid], children::below(launched.pid)].concat();
    // Outer helper, pid 1, shell, and cat if it is there already.
    assert!(helpers.len() >= 3, "{helpers:?}");
    if is_root() {
        for pid in &helpers[..2] {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap();
            let expected = format!("MARSHAL_MARKER={}\0", launched.marker);
            assert_eq!(String::from_utf8_lossy(&environment), expected);
        }
    } else {
        // To read it, one would have to be allowed to trace it.
        assert!(fs::read(format!("/proc/{}/environ", launched.pid)).is_err());
    }
    for pid in helpers {
        let uid = fs::metadata(format!("/proc/{pid}/task")).map(|found| found.uid());
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let kernel_uid = status
            .lines()
            .find_map(|line| line.strip_prefix("Uid:\t"))
            .unwrap();
        let expected = ids().outside().0.to_string();
        assert!(
            kernel_uid.split('\t').all(|uid| uid == expected),
            "{kernel_uid} {uid:?}"
        );
    }
}

#[tokio::test]
async fn the_root_is_small_and_read_only() {
    let (place, profile) = (Place::new(), profile());
    let seen = says(
        &place.request(&profile),
        "cd /; echo *; ls -a /root /sys /var 2>&1; true",
    )
    .await;
    let entries: Vec<&str> = seen.lines().next().unwrap().split(' ').collect();
    for expected in [
        "bin",
        "dev",
        "etc",
        "home",
        "proc",
        "run",
        "tmp",
        "usr",
        "workspace",
    ] {
        assert!(entries.contains(&expected), "{expected} in {seen}");
    }
    for hidden in ["root", "sys", "var", "boot", "srv", "mnt", "opt", "work"] {
        assert!(!entries.contains(&hidden), "{hidden} in {seen}");
    }
    let script = "for d in / /usr /usr/bin /etc /dev /home /run /run/marshal /proc; do \
                  touch $d/new 2>/dev/null && echo wrote $d; done; \
                  for f in /etc/passwd /run/marshal/marshal /usr/bin/env; do \
                  (: >> $f) 2>/dev/null && echo changed $f; done; \
                  mknod /tmp/null c 1 3 2>/dev/null && echo made a device; \
                  ls /etc/shadow /etc/no-such-name 2>/dev/null; head -c 3 /dev/zero | od -An -tx1; \
                  echo x > /dev/null && echo done";
    assert_eq!(
        says(&place.request(&profile), script).await,
        " 00 00 00\ndone\n"
    );
}

#[tokio::test]
async fn every_mount_is_nosuid_and_only_four_places_are_writable() {
    let (place, profile) = (Place::new(), profile());
    let table = says(&place.request(&profile), "cat /proc/self/mountinfo").await;
    let mut writable = Vec::new();
    for line in table.lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        let (point, options) = (fields[4], fields[5].split(',').collect::<Vec<_>>());
        assert!(options.contains(&"nosuid"), "{line}");
        let is_device = point.starts_with("/dev/") && point != "/dev/shm";
        assert_eq!(options.contains(&"nodev"), !is_device, "{line}");
        assert!(fields[6] == "-", "propagates: {line}");
        if !options.contains(&"ro") {
            writable.push(point);
        }
    }
    writable.sort_unstable();
    assert_eq!(
        writable,
        ["/dev/shm", "/home/agent", "/proc", "/tmp", "/workspace"]
    );
}

#[tokio::test]
async fn home_and_workspace_are_the_hosts_directories_and_tmp_is_private() {
    let (place, profile) = (Place::new(), profile());
    let script = "pwd; echo a > /home/agent/h; echo b > w; echo c > /tmp/t; echo d > /dev/shm/s; \
                  stat -c %u:%g /home/agent/h w /tmp/t /home/agent /workspace; \
                  stat -c %a /tmp; hostname 2>/dev/null || cat /etc/hostname";
    let seen = says(&place.request(&profile), script).await;
    assert_eq!(
        seen,
        format!("/workspace\n{}1777\ntest-0\n", "1000:1000\n".repeat(5))
    );
    for (file, text) in [("home/h", "a\n"), ("workspace/w", "b\n")] {
        assert_eq!(fs::read_to_string(place.path(file)).unwrap(), text);
        let found = fs::metadata(place.path(file)).unwrap();
        assert_eq!((found.uid(), found.gid()), ids().outside());
    }
    assert!(!std::path::Path::new("/tmp/t").exists());
    assert_eq!(
        says(&place.request(&profile), "ls -A /tmp /dev/shm").await,
        "/dev/shm:\n\n/tmp:\n"
    );
}

#[tokio::test]
async fn tmp_is_bounded_in_bytes_and_in_files() {
    let (place, profile) = (
        Place::new(),
        config::Sandbox {
            fsize: 1 << 30,
            ..profile()
        },
    );
    let script = "head -c 30000000 /dev/zero > /tmp/big 2>/dev/null || echo full; rm /tmp/big; \
                  i=0; while touch /tmp/$i; do i=$((i+1)); done 2>/dev/null; \
                  [ $i -gt 50 ] && [ $i -lt 100 ] && echo $i files | tr -d 0-9";
    let finished = run(walled(&place.request(&profile), script)).await.unwrap();
    assert_eq!(
        String::from_utf8(finished.stdout).unwrap(),
        "full\n files\n"
    );
}

#[tokio::test]
async fn limits_hold() {
    let (place, profile) = (Place::new(), profile());
    let script = "ulimit -n; ulimit -Hn; ulimit -c; ulimit -f; \
                  head -c 3000000 /dev/zero > big; echo $?; stat -c %s big";
    let finished = run(walled(&place.request(&profile), script)).await.unwrap();
    let seen = String::from_utf8(finished.stdout).unwrap();
    assert_eq!(seen, "512\n512\n0\n2048\n153\n1048576\n");
}

#[tokio::test]
async fn without_a_network_there_is_a_loopback_and_it_is_up() {
    let (place, profile) = (Place::new(), profile());
    let script = "cat /proc/self/net/dev 2>/dev/null | tail -n +3 | cut -d: -f1; \
                  bash -c 'exec 3<>/dev/tcp/127.0.0.1/9' 2>&1 | grep -o 'Connection refused'";
    // With `subset=pid` /proc/self/net is still there.
    let seen = says(&place.request(&profile), script).await;
    let lines: Vec<&str> = seen.lines().map(str::trim).collect();
    // "Network is unreachable" would be a loopback that is down.
    assert_eq!(lines.last(), Some(&"Connection refused"), "{seen}");
    let (last, devices) = lines.split_last().unwrap();
    assert_eq!(*last, "Connection refused");
    // Some kernels put tunnel devices into every new namespace; none of them is up.
    assert_eq!(devices.first(), Some(&"lo"), "{seen}");
}

#[tokio::test]
async fn the_hosts_network_is_the_hosts() {
    let (place, profile) = (Place::new(), profile());
    let request = WallsRequest {
        network: Network::Host,
        ..place.request(&profile)
    };
    let own = fs::read_link("/proc/self/ns/net").unwrap();
    let ns = "readlink /proc/self/ns/net";
    assert_eq!(says(&request, ns).await.trim_end(), own.to_str().unwrap());
    let other = WallsRequest {
        network: Network::None,
        ..request
    };
    assert_ne!(says(&other, ns).await.trim_end(), own.to_str().unwrap());
}

#[tokio::test]
async fn every_namespace_is_its_own() {
    let (place, profile) = (Place::new(), profile());
    let names = ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup"];
    let script = "for n in user mnt pid net ipc uts cgroup; do readlink /proc/self/ns/$n; done";
    let seen = says(&place.request(&profile), script).await;
    for (name, seen) in names.iter().zip(seen.lines()) {
        let own = fs::read_link(format!("/proc/self/ns/{name}")).unwrap();
        assert!(seen.starts_with(name), "{seen}");
        assert_ne!(seen, own.to_str().unwrap());
    }
}

#[tokio::test]
async fn proc_has_only_processes_or_is_masked() {
    let place = Place::new();
    let pid_only = profile();
    let script = "cd /proc; ls -d sys meminfo kcore sysrq-trigger 2>/dev/null; echo -";
    assert_eq!(says(&place.request(&pid_only), script).await, "-\n");
    let masked = config::Sandbox {
        proc_mode: ProcMode::Masked,
        ..profile()
    };
    let script = "cd /proc; head -c 8 meminfo; echo; \
                  for f in kcore keys timer_list sysrq-trigger; do \
                  [ -e $f ] && [ -n \"$(head -c 1 $f 2>/dev/null)\" ] && echo read $f; done; \
                  for d in irq bus; do [ -n \"$(ls -A $d 2>/dev/null)\" ] && echo saw $d; done; \
                  for f in sys/kernel/core_pattern sys/kernel/hostname sysrq-trigger \
                  sys/net/ipv4/ip_forward; do \
                  [ ! -c $f ] && (echo 1 > $f) 2>/dev/null && echo wrote $f; done; echo -";
    assert_eq!(says(&place.request(&masked), script).await, "MemTotal\n-\n");
}

#[tokio::test]
async fn marshal_itself_is_inside_and_cannot_be_changed() {
    let (place, profile) = (Place::new(), profile());
    let script = "[ -x /run/marshal/marshal ] && /run/marshal/marshal --version > /dev/null 2>&1; \
                  [ $? -ne 126 ] && [ $? -ne 127 ] && cmp /run/marshal/marshal /proc/1/exe \
                  2>/dev/null; (: >> /run/marshal/marshal) 2>/dev/null || echo sealed";
    assert_eq!(says(&place.request(&profile), script).await, "sealed\n");
}

#[tokio::test]
async fn root_needs_no_way_to_its_binary_for_the_slots_user() {
    if !is_root() {
        return;
    }
    let (place, profile) = (Place::new(), profile());
    // The temporary directory is 0700 and root's.
    let hidden = place.path("marshal");
    fs::copy(children::marshal(), &hidden).unwrap();
    fs::set_permissions(&hidden, fs::Permissions::from_mode(0o755)).unwrap();
    let spawner = Spawner::with_executable(hidden).unwrap();
    let plan = walled(
        &place.request(&profile),
        "/run/marshal/marshal --help; echo $?",
    );
    let limit = std::time::Duration::from_secs(20);
    let finished = launch::run_to_end(&spawner, plan, limit, 1 << 16)
        .await
        .unwrap();
    let seen = String::from_utf8(finished.stdout).unwrap();
    assert!(
        !seen.ends_with("126\n") && !seen.ends_with("127\n"),
        "{seen}"
    );
}

fn shared<'a>(
    place: &Place,
    profile: &'a config::Sandbox,
    owner: (u32, u32),
    access: Access,
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

#[tokio::test]
async fn without_user_namespaces_the_start_fails_and_says_so() {
    // In a user namespace of its own that may have none below it.
    let script = format!(
        "echo 0 > /proc/sys/user/max_user_namespaces && exec '{}' --ignored --exact \
         no_walls_can_be_had --nocapture",
        std::env::current_exe().unwrap().display(),
    );
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
    fs::copy(children::marshal(), &exe).unwrap();
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
async fn no_walls_can_be_had() {
    let profile = profile();
    let walls = sandbox::plan(&sandbox::probe_request(&profile, ids())).unwrap();
    let failed = launch::probe(&spawner(), walls, sandbox::limits_of(&profile))
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
async fn only_the_etc_files_that_were_named_are_there() {
    let (place, profile) = (Place::new(), profile());
    let seen = says(
        &place.request(&profile),
        "ls /etc; getent passwd agent; getent hosts localhost",
    )
    .await;
    let lines: Vec<&str> = seen.lines().collect();
    let allowed = [
        "alternatives",
        "group",
        "hostname",
        "hosts",
        "ld.so.cache",
        "localtime",
        "nsswitch.conf",
        "passwd",
        "ssl",
    ];
    let (names, rest) = lines.split_at(lines.len() - 2);
    assert!(names.iter().all(|name| allowed.contains(name)), "{seen}");
    assert_eq!(rest[0], "agent:x:1000:1000:agent:/home/agent:/bin/sh");
    assert!(rest[1].contains("localhost"), "{seen}");
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
async fn a_program_without_a_slash_is_found_inside_by_path() {
    let (place, profile) = (Place::new(), profile());
    let mut plan = walled(&place.request(&profile), "true");
    plan.argv = vec!["env".to_owned()];
    plan.env = vec![("PATH".to_owned(), "/nowhere:/usr/bin".to_owned())];
    let finished = run(plan).await.unwrap();
    let seen = String::from_utf8(finished.stdout).unwrap();
    assert!(
        seen.lines().any(|line| line == "PATH=/nowhere:/usr/bin"),
        "{seen}"
    );
}

#[tokio::test]
async fn walls_for_somebody_else_are_refused() {
    let profile = profile();
    let wrong = sandbox::Ids::Own {
        uid: 12_345,
        gid: 12_345,
    };
    let walls = sandbox::plan(&sandbox::probe_request(&profile, wrong)).unwrap();
    let limits = sandbox::limits_of(&profile);
    let failed = launch::probe(&spawner(), walls, limits).await.unwrap_err();
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
async fn a_directory_with_mounts_below_it_is_sealed_as_a_whole() {
    if !is_root() {
        return;
    }
    // In a mount namespace of its own, so that the host keeps its mounts.
    let place = Place::new();
    let tools = place.path("tools");
    fs::create_dir_all(tools.join("a b")).unwrap();
    let script = format!(
        "mount -t tmpfs -o exec,suid,dev one '{0}/a b' && mount -t tmpfs -o noexec,noatime two \
         '{0}/a b' && touch '{0}/a b/file' && exec '{1}' --ignored --exact \
         mounts_below_are_sealed --nocapture",
        tools.display(),
        std::env::current_exe().unwrap().display(),
    );
    let output = std::process::Command::new("unshare")
        .args(["-m", "--propagation", "private", "sh", "-c", &script])
        .env("TEST_TOOLS", &tools)
        .output()
        .unwrap();
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && out.contains("1 passed"),
        "{output:?}"
    );
}

#[tokio::test]
#[ignore = "a part of a_directory_with_mounts_below_it_is_sealed_as_a_whole"]
async fn mounts_below_are_sealed() {
    let tools = std::env::var("TEST_TOOLS").unwrap();
    let place = Place::new();
    let profile = config::Sandbox {
        ro_bind: vec!["/usr".into(), tools.clone().into()],
        ..profile()
    };
    let script = format!(
        "ls '{tools}/a b'; touch '{tools}/a b/new' 2>&1 | grep -o 'Read-only'; \
         grep -c 'a.040b ro,nosuid,nodev,noexec,noatime' /proc/self/mountinfo"
    );
    assert_eq!(
        says(&place.request(&profile), &script).await,
        "file\nRead-only\n1\n"
    );
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
    let limit = std::time::Duration::from_secs(5);
    children::until(limit, "helpers have gone", || {
        children::below(own).iter().all(|pid| {
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            !name.starts_with("marshal") || !alive("/no/such").contains(pid)
        })
    })
    .await;
}
