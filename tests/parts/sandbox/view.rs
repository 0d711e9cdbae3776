//! What the agent sees of the host, and what it can change: root, mounts, `/proc`, `/etc`, `/tmp`.

use std::fs;
use std::os::unix::fs::MetadataExt;

use marshal_config::{self as config, ProcMode};
use marshal_launch::{self as launch, Spawner};

use crate::children::{self, Place, ids, is_root, profile, run, script_output, walled};
use crate::programs::install;

#[tokio::test]
async fn the_root_is_small_and_read_only() {
    let (place, profile) = (Place::new(), profile());
    let seen = script_output(
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
        script_output(&place.request(&profile), script).await,
        " 00 00 00\ndone\n"
    );
}

#[tokio::test]
async fn every_mount_is_nosuid_and_only_four_places_are_writable() {
    let (place, profile) = (Place::new(), profile());
    let table = script_output(&place.request(&profile), "cat /proc/self/mountinfo").await;
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
    let seen = script_output(&place.request(&profile), script).await;
    assert_eq!(
        seen,
        format!("/workspace\n{}1777\ntest-0\n", "1000:1000\n".repeat(5))
    );
    for (file, text) in [("home/h", "a\n"), ("workspace/w", "b\n")] {
        assert_eq!(fs::read_to_string(place.path(file)).unwrap(), text);
        let found = fs::metadata(place.path(file)).unwrap();
        assert_eq!((found.uid(), found.gid()), ids().uid_and_gid());
    }
    assert!(!std::path::Path::new("/tmp/t").exists());
    assert_eq!(
        script_output(&place.request(&profile), "ls -A /tmp /dev/shm").await,
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
async fn proc_has_only_processes_or_is_masked() {
    let place = Place::new();
    let pid_only = profile();
    let script = "cd /proc; ls -d sys meminfo kcore sysrq-trigger 2>/dev/null; echo -";
    assert_eq!(
        script_output(&place.request(&pid_only), script).await,
        "-\n"
    );
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
    assert_eq!(
        script_output(&place.request(&masked), script).await,
        "MemTotal\n-\n"
    );
}

#[tokio::test]
async fn marshal_itself_is_inside_and_cannot_be_changed() {
    let (place, profile) = (Place::new(), profile());
    let script = "[ -x /run/marshal/marshal ] && /run/marshal/marshal --version > /dev/null 2>&1; \
                  [ $? -ne 126 ] && [ $? -ne 127 ] && cmp /run/marshal/marshal /proc/1/exe \
                  2>/dev/null; (: >> /run/marshal/marshal) 2>/dev/null || echo sealed";
    assert_eq!(
        script_output(&place.request(&profile), script).await,
        "sealed\n"
    );
}

#[tokio::test]
async fn root_needs_no_way_to_its_binary_for_the_slots_user() {
    if !is_root() {
        return;
    }
    let (place, profile) = (Place::new(), profile());
    // The temporary directory is 0700 and root's.
    let hidden = place.path("marshal");
    install(&hidden, fs::File::open(children::marshal()).unwrap());
    let spawner = Spawner::with_executable(hidden, marshal::BUILD).unwrap();
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

#[tokio::test]
async fn only_the_etc_files_that_were_named_are_there() {
    let (place, profile) = (Place::new(), profile());
    let seen = script_output(
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
async fn a_directory_with_mounts_below_it_is_sealed_as_a_whole() {
    if !is_root() {
        return;
    }
    // In a mount namespace of its own, so that the host keeps its mounts.
    let place = Place::new();
    let tools = place.path("tools");
    fs::create_dir_all(tools.join("a b")).unwrap();
    let script = format!(
        "mount --make-rshared / && mount -t tmpfs -o exec,suid,dev one '{0}/a b' && mount -t tmpfs -o noexec,noatime two \
         '{0}/a b' && touch '{0}/a b/file' && exec '{1}' --ignored --exact \
         sandbox::view::mounts_below_are_sealed --nocapture",
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
         grep -c 'a.040b ro,nosuid,nodev,noexec,noatime' /proc/self/mountinfo; \
         grep -c shared: /proc/self/mountinfo; true"
    );
    assert_eq!(
        script_output(&place.request(&profile), &script).await,
        "file\nRead-only\n1\n0\n"
    );
}
