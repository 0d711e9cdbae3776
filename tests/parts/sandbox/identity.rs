//! Who the agent is: user, powers, descriptors, namespaces, limits.

use std::fs;
use std::os::unix::fs::MetadataExt;

use marshal_config::{Network, Sandbox, Seccomp};
use marshal_model::ExitStatus;
use marshal_sandbox::SandboxRequest;

use crate::children::{self, Place, ids, is_root, profile, run, script_output, spawner, walled};

#[tokio::test]
async fn the_agent_is_user_1000_without_any_power() {
    let (place, profile) = (Place::new(), profile());
    let seen = script_output(
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
    // The filter forbids the call; without it, none may be made where none are allowed.
    for (seccomp, expected) in [
        (Seccomp::Default, "unshare failed: Operation not permitted"),
        (Seccomp::Off, "unshare failed: No space left on device"),
    ] {
        let profile = Sandbox {
            seccomp,
            ..profile.clone()
        };
        let tried = run(walled(&place.request(&profile), "unshare -U true"))
            .await
            .unwrap();
        assert_eq!(tried.status, ExitStatus::Code(1));
        let output = String::from_utf8_lossy(&tried.stderr).into_owned();
        assert!(output.contains(expected), "{output}");
    }
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
    // Number 2 was the thread that started the shell.
    assert_eq!(lines[..2], ["0 1 2 ", "1 3"], "{seen}");
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
    let seen = script_output(&place.request(&profile), script).await;
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
        // From the small binary, which is of the same build and stands beside it.
        for pid in &helpers[..2] {
            let program = fs::read_link(format!("/proc/{pid}/exe")).unwrap();
            assert_eq!(program.file_name().unwrap(), "marshal-shim");
        }
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
        let expected = ids().uid_and_gid().0.to_string();
        assert!(
            kernel_uid.split('\t').all(|uid| uid == expected),
            "{kernel_uid} {uid:?}"
        );
    }
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
    let seen = script_output(&place.request(&profile), script).await;
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
    let request = SandboxRequest {
        network: Network::Host,
        ..place.request(&profile)
    };
    let own = fs::read_link("/proc/self/ns/net").unwrap();
    let ns = "readlink /proc/self/ns/net";
    assert_eq!(
        script_output(&request, ns).await.trim_end(),
        own.to_str().unwrap()
    );
    let other = SandboxRequest {
        network: Network::None,
        ..request
    };
    assert_ne!(
        script_output(&other, ns).await.trim_end(),
        own.to_str().unwrap()
    );
}

#[tokio::test]
async fn every_namespace_is_its_own() {
    let (place, profile) = (Place::new(), profile());
    let names = ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup"];
    let script = "for n in user mnt pid net ipc uts cgroup; do readlink /proc/self/ns/$n; done";
    let seen = script_output(&place.request(&profile), script).await;
    for (name, seen) in names.iter().zip(seen.lines()) {
        let own = fs::read_link(format!("/proc/self/ns/{name}")).unwrap();
        assert!(seen.starts_with(name), "{seen}");
        assert_ne!(seen, own.to_str().unwrap());
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
