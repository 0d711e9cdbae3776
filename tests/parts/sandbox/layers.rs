//! Landlock and the filter of system calls: what they take away, and that it is they who do.

use std::fs;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixListener};

use marshal_config::{Network, Sandbox, Seccomp};
use marshal_launch::{ExecRequest, Stage};
use marshal_sandbox::SandboxRequest;
use marshal_wire::files::FileOperation;
use tokio::io::AsyncReadExt as _;

use crate::children::{Place, is_root, plain, profile, run, script_output, spawner, walled};

/// A script that makes one call and says the error's number, 0 for none.
fn call(number: i64, arguments: &str) -> String {
    format!("perl -e '$! = 0; syscall({number}, {arguments}); print $! + 0'")
}

#[tokio::test]
async fn everything_inside_wears_the_filter_and_agents_one_more() {
    let place = Place::new();
    let script = "grep -h ^Seccomp /proc/self/status /proc/1/status | tr -s '\\t' ' '";
    for (seccomp, expected) in [
        (
            Seccomp::Default,
            "Seccomp: 2\nSeccomp_filters: 2\nSeccomp: 2\nSeccomp_filters: 1\n",
        ),
        (
            Seccomp::Off,
            "Seccomp: 0\nSeccomp_filters: 0\nSeccomp: 0\nSeccomp_filters: 0\n",
        ),
    ] {
        let profile = Sandbox {
            seccomp,
            ..profile()
        };
        let seen = script_output(&place.request(&profile), script).await;
        // Whoever tests may wear filters of its own.
        let outside = fs::read_to_string("/proc/self/status").unwrap();
        if outside.contains("Seccomp:\t0") {
            assert_eq!(seen, expected);
        } else {
            assert!(seen.starts_with("Seccomp: 2"), "{seen}");
        }
    }
}

#[tokio::test]
async fn calls_are_refused_by_the_filter_and_by_nothing_else() {
    let place = Place::new();
    let zeros = "$z = chr(0) x 128";
    for (name, number, arguments, refused) in [
        (
            "openat2",
            libc::SYS_openat2,
            "-100, $p = \"/\", $z = chr(0) x 24, 24",
            38,
        ),
        ("personality", libc::SYS_personality, "0x40000", 1),
        ("fchmodat", libc::SYS_fchmodat, "-100, $p = \"f\", 04755", 1),
        (
            "mkdirat",
            libc::SYS_mkdirat,
            "-100, $p = \"d\".rand(), 02755",
            1,
        ),
        (
            "openat",
            libc::SYS_openat,
            "-100, $p = \"n\".rand(), 0101, 06755",
            1,
        ),
        ("ptrace", libc::SYS_ptrace, "0, 0, 0, 0", 1),
        ("keyctl", libc::SYS_keyctl, "0, -3, 0", 1),
        (
            "prlimit64",
            libc::SYS_prlimit64,
            &format!("1, 7, 0, {zeros}"),
            1,
        ),
        ("kcmp", libc::SYS_kcmp, "$$, $$, 1, 0, 0", 1),
        ("ioctl", libc::SYS_ioctl, "0, 0x5412, 0", 1),
        ("ioctl", libc::SYS_ioctl, "0, 0x100005412, 0", 1),
        ("vsock", libc::SYS_socket, "40, 1, 0", 1),
        (
            "vsock by its lower half",
            libc::SYS_socket,
            "0x100000028, 1, 0",
            1,
        ),
        ("alg", libc::SYS_socket, "38, 5, 0", 1),
    ] {
        let script = format!("touch f; {}", call(number, arguments));
        let mut seen = Vec::new();
        for seccomp in [Seccomp::Default, Seccomp::Off] {
            let profile = Sandbox {
                seccomp,
                ..profile()
            };
            seen.push(script_output(&place.request(&profile), &script).await);
        }
        assert_eq!(seen[0], refused.to_string(), "{name} with the filter");
        assert_ne!(seen[1], seen[0], "{name} without it");
    }
    // Without the filter x32 gives the same on a kernel without it: no difference shows here.
    #[cfg(target_arch = "x86_64")]
    {
        let script = call(0x4000_0000 | libc::SYS_getpid, "0");
        let profile = profile();
        assert_eq!(script_output(&place.request(&profile), &script).await, "38");
    }
}

#[tokio::test]
async fn a_command_that_enters_later_has_the_filter_too() {
    let (place, profile) = (Place::new(), profile());
    let request = SandboxRequest {
        has_sandbox_entry: true,
        ..place.request(&profile)
    };
    let launched = spawner().spawn(walled(&request, "cat")).await.unwrap();
    let door = launched.sandbox_entry.unwrap();
    let script = format!(
        "grep ^Seccomp: /proc/self/status; {}",
        call(libc::SYS_openat2, "-100, $p = \"/\", $z = chr(0) x 24, 24")
    );
    let errand = ExecRequest {
        argv: vec!["/bin/sh".to_owned(), "-c".to_owned(), script],
        env: vec![("PATH".to_owned(), "/usr/bin:/bin".to_owned())],
        cwd: "/workspace".to_owned(),
        limits: plain("true").limits,
    };
    let (mut running, mut output) = door.run(errand).await.unwrap();
    let mut seen = String::new();
    output.read_to_string(&mut seen).await.unwrap();
    running.wait().await;
    assert_eq!(seen, "Seccomp:\t2\n38");
    // And the helper for files can open what it was told, and nothing by a link.
    fs::write(place.path("workspace").join("file"), "text\n").unwrap();
    crate::children::give(
        &place.path("workspace").join("file"),
        crate::children::ids().uid_and_gid(),
    );
    let order = FileOperation::Read {
        root: "/workspace".to_owned(),
        path: "file".to_owned(),
        line: 1,
        limit: None,
    };
    assert_eq!(door.read(order).await.unwrap(), "text\n");
}

#[tokio::test]
async fn landlock_holds_what_no_mount_does() {
    let place = Place::new();
    let profile = Sandbox {
        landlock_min_abi: 6,
        seccomp: Seccomp::Off,
        ..profile()
    };
    let request = SandboxRequest {
        network: Network::Host,
        ..place.request(&profile)
    };
    let launched = spawner().spawn(walled(&request, "cat")).await.unwrap();
    let layers = launched.layers.clone().unwrap();
    assert_eq!(layers.landlock, 6);
    let uid = if is_root() { "uid slot" } else { "uid shared" };
    assert_eq!(layers.describe(), [uid, "landlock 6", "seccomp off"]);
    drop(launched);

    // An abstract socket and a process of the host's network, and a port of one's choice.
    let name = format!("marshal-test-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    let _listener = UnixListener::bind_addr(&address).unwrap();
    let connect = format!(
        "perl -MSocket -e 'socket(S, PF_UNIX, SOCK_STREAM, 0); $! = 0; \
         connect(S, pack(\"Sa*\", AF_UNIX, \"\\0{name}\")); print $! + 0'"
    );
    let bind = |port: u16| {
        format!(
            "perl -MSocket -e 'socket(S, PF_INET, SOCK_STREAM, 0); $! = 0; \
             bind(S, sockaddr_in({port}, INADDR_LOOPBACK)); print $! + 0'"
        )
    };
    let write = "echo x 2>/dev/null >/proc/self/comm; echo $?".to_owned();
    for (script, refused, outside) in [
        (connect, "1", "0"),
        (bind(0), "0", "0"),
        (write, "2\n", "0\n"),
    ] {
        assert_eq!(script_output(&request, &script).await, refused, "{script}");
        let control = run(plain(&script)).await.unwrap();
        assert_eq!(
            String::from_utf8_lossy(&control.stdout),
            outside,
            "{script}"
        );
    }
    // A port that was free may be somebody's in the next moment: then another one is tried.
    let free = || {
        let found = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        found.local_addr().unwrap().port()
    };
    let mut control = String::new();
    for _ in 0..5 {
        let script = bind(free());
        assert_eq!(script_output(&request, &script).await, "13", "{script}");
        let bound = run(plain(&script)).await.unwrap();
        control = String::from_utf8_lossy(&bound.stdout).into_owned();
        if control != libc::EADDRINUSE.to_string() {
            break;
        }
    }
    assert_eq!(control, "0", "a port without a sandbox");
    // What is a file's everyday life goes on.
    let everyday = "ls / > list; mkdir -p a b; mv list a; mv a/list b; ln b/list a/link; \
                    ln -s ../b/list a/soft; cat a/soft a/link > /tmp/both; mkfifo a/fifo; \
                    rm -r a b; echo x > /dev/null; echo y > /dev/shm/y; : > \"$HOME/h\"; echo done";
    let mut plan = walled(&request, everyday);
    plan.env.push(("HOME".to_owned(), "/home/agent".to_owned()));
    let finished = run(plan).await.unwrap();
    let output = String::from_utf8_lossy(&finished.stderr).into_owned();
    assert_eq!((finished.stdout, output.as_str()), (b"done\n".to_vec(), ""));
}

/// Calls that a shell and its little helpers make, and not one that makes a directory.
const ENOUGH: &str = "access arch_prctl brk clone close close_range connect dup dup2 dup3 \
    epoll_create1 epoll_ctl epoll_wait execve exit exit_group faccessat faccessat2 fcntl fstat \
    fstatfs futex getcwd getdents64 getegid geteuid getgid getpgrp getpid getppid getrandom \
    getresuid getrlimit gettid getuid ioctl kill lseek lstat madvise mmap mprotect mremap munmap \
    nanosleep newfstatat open openat pipe pipe2 poll ppoll prctl pread64 prlimit64 read readlink \
    readlinkat readv recvfrom recvmsg restart_syscall rseq rt_sigaction rt_sigprocmask \
    rt_sigreturn sched_getaffinity sched_yield seccomp sendmsg sendto set_robust_list \
    set_tid_address setpgid setsid sigaltstack signalfd4 socketpair stat statx sysinfo tgkill \
    uname unlinkat vfork wait4 waitid write writev";

#[tokio::test]
async fn a_filter_from_a_file_replaces_the_built_in_one() {
    let place = Place::new();
    let path = place.path("own.json");
    let names: Vec<String> = ENOUGH
        .split_ascii_whitespace()
        .map(|name| format!("{name:?}"))
        .collect();
    let text = format!(
        r#"{{"defaultAction":"SCMP_ACT_ERRNO","defaultErrnoRet":38,
            "syscalls":[{{"names":[{}],"action":"SCMP_ACT_ALLOW"}},
                        {{"names":["mkdir","mkdirat"],"action":"SCMP_ACT_ERRNO","errnoRet":95}}]}}"#,
        names.join(",")
    );
    fs::write(&path, &text).unwrap();
    let mode = |mode| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    mode(0o644);
    let profile = Sandbox {
        seccomp: Seccomp::File(path.clone()),
        ..profile()
    };
    let request = place.request(&profile);
    let script = "grep ^Seccomp: /proc/self/status; mkdir d";
    let finished = run(walled(&request, script)).await.unwrap();
    let (out, err) = (
        String::from_utf8_lossy(&finished.stdout).into_owned(),
        String::from_utf8_lossy(&finished.stderr).into_owned(),
    );
    assert_eq!(out, "Seccomp:\t2\n", "{err}");
    assert!(err.contains("Operation not supported"), "{err}");

    // One that others could have written, one that is none, one that is not there.
    for (mode_of_it, content, expected) in [
        (0o666, Some(text.as_str()), "could be changed by others"),
        (0o644, Some("{}"), "defaultAction"),
        (
            0o644,
            Some(r#"{"defaultAction":"SCMP_ACT_ALLOW"}"#),
            "not named",
        ),
        (0o644, None, "No such file"),
    ] {
        match content {
            Some(content) => {
                fs::write(&path, content).unwrap();
                mode(mode_of_it);
            }
            None => fs::remove_file(&path).unwrap(),
        }
        let failed = spawner().spawn(walled(&request, "true")).await.unwrap_err();
        let text = failed.to_string();
        assert_eq!(failed.stage(), Some(Stage::Seccomp), "{text}");
        assert!(
            text.contains(expected) && text.contains("own.json"),
            "{text}"
        );
    }
}

#[tokio::test]
async fn asking_whether_something_is_a_terminal_is_free() {
    let (place, profile) = (Place::new(), profile());
    // Outside of any terminal the request is refused by its number alone.
    let script = call(libc::SYS_ioctl, "0, 0x5401, $b = chr(0) x 64");
    let finished = run(walled(&place.request(&profile), &script))
        .await
        .unwrap();
    // ENOTTY, not EPERM: the question whether this is one is free.
    assert_eq!(String::from_utf8_lossy(&finished.stdout), "25");
}
