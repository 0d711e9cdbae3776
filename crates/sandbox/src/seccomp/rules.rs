//! The built-in seccomp profile: which system calls an agent's programs may make.
//!
//! It is based on Docker's default profile. Calls that agents do not need are removed: namespaces
//! and mounts, keys, io_uring (whose requests no filter sees), bpf, perf, userfaultfd, access to
//! other processes. Missing calls return ENOSYS, as an old kernel does, so that C libraries use
//! their fallbacks; known dangerous calls return EPERM. Must not know how a filter is compiled.

use super::{Action, Compare, Profile, Test};

const EPERM: u16 = 1;
const ENOSYS: u16 = 38;
const DENIED: Action = Action::Errno(EPERM);
const MISSING: Action = Action::Errno(ENOSYS);

/// The set-user-id and set-group-id bits.
const SET_ID: u32 = 0o6000;
/// mknod's two device types have this bit; files, FIFOs and sockets do not.
const DEVICE: u32 = 0o020_000;
/// O_CREAT, and the bit that only O_TMPFILE has: without them open ignores its mode.
const MAKES_A_FILE: u32 = 0o100 | 0o20_000_000;

/// CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET. clone(2) does not support
/// NEWTIME.
const NEW_NAMESPACES: u32 = 0x7e02_0000;

const AF_UNIX: u32 = 1;
const AF_INET: u32 = 2;
const AF_INET6: u32 = 10;
const AF_NETLINK: u32 = 16;
/// The type of a socket without its flags (SOCK_TYPE_MASK).
const SOCKET_TYPE: u32 = 0xf;
const SOCK_STREAM: u32 = 1;
const SOCK_DGRAM: u32 = 2;
const IPPROTO_TCP: u32 = 6;
const IPPROTO_UDP: u32 = 17;

/// Terminal requests that inject input or change more than a terminal: TIOCSTI, TIOCLINUX,
/// TIOCCONS, TIOCSETD.
const TERMINAL_REQUESTS: [u32; 4] = [0x5412, 0x541c, 0x541d, 0x5423];

/// Requests with permanent effects on files or volumes: BTRFS_IOC_SNAP_CREATE and SNAP_CREATE_V2
/// create snapshots that the agent's user cannot remove, and FS_IOC_ENABLE_VERITY makes a file
/// read-only forever.
const LASTING_REQUESTS: [u32; 3] = [0x5000_9401, 0x5000_9417, 0x4080_6685];

/// The fcntl(2) command.
const F_SETLEASE: u32 = 1024;

/// Personalities that change only what uname reports (PER_LINUX32, UNAME26), and the query.
const PERSONALITIES: [u32; 5] = [0, 0x8, 0x2_0000, 0x2_0008, 0xffff_ffff];

/// The built-in profile. It allows openat2, which marshal's own helpers need; [`without_openat2`]
/// denies it to all other processes.
pub(super) fn built_in() -> Profile {
    let mut profile = Profile::new(MISSING);
    for name in ALLOWED {
        profile.add(name, Action::Allow, &[]);
    }
    for name in DANGEROUS {
        profile.add(name, DENIED, &[]);
    }
    modes(&mut profile);
    sockets(&mut profile);
    let unless = |profile: &mut Profile, name, test| {
        profile.add(name, Action::Allow, &[]);
        profile.add(name, DENIED, &[test]);
    };
    unless(&mut profile, "clone", (0, Test::AnyOf(NEW_NAMESPACES)));
    for request in TERMINAL_REQUESTS.into_iter().chain(LASTING_REQUESTS) {
        let condition = Test::Low32(Compare::Eq, request);
        profile.add("ioctl", DENIED, &[(1, condition)]);
    }
    profile.add("ioctl", Action::Allow, &[]);
    // Only for the process itself: pid 1 of the sandbox has the same user.
    unless(&mut profile, "prlimit64", (0, Test::Low32(Compare::Ne, 0)));
    // A lease on a read-only file would delay writers on the host.
    unless(
        &mut profile,
        "fcntl",
        (1, Test::Low32(Compare::Eq, F_SETLEASE)),
    );
    for personality in PERSONALITIES {
        let condition = Test::Low32(Compare::Eq, personality);
        profile.add("personality", Action::Allow, &[(0, condition)]);
    }
    profile.otherwise("personality", DENIED);
    profile
}

/// Installed in addition to the built-in profile for an agent or its commands: the mode of a file
/// that openat2 creates is in memory, which a filter cannot read.
pub(super) fn without_openat2() -> Profile {
    let mut profile = Profile::new(Action::Allow);
    profile.add("openat2", MISSING, &[]);
    profile
}

/// Denies set-id bits in every call that sets a file mode: a file that an agent leaves behind must
/// not run as another user.
fn modes(profile: &mut Profile) {
    let by_argument = [
        ("chmod", 1, SET_ID),
        ("fchmod", 1, SET_ID),
        ("fchmodat", 2, SET_ID),
        ("fchmodat2", 2, SET_ID),
        ("creat", 1, SET_ID),
        ("mkdir", 1, SET_ID),
        ("mkdirat", 2, SET_ID),
        ("mknod", 1, SET_ID | DEVICE),
        ("mknodat", 2, SET_ID | DEVICE),
    ];
    for (name, argument, refused) in by_argument {
        profile.add(name, Action::Allow, &[]);
        profile.add(name, DENIED, &[(argument, Test::AnyOf(refused))]);
    }
    for (name, flags) in [("open", 1), ("openat", 2)] {
        profile.add(name, Action::Allow, &[]);
        let refused = [
            (flags, Test::AnyOf(MAKES_A_FILE)),
            (flags + 1, Test::AnyOf(SET_ID)),
        ];
        profile.add(name, DENIED, &refused);
    }
    // A message queue is not a file, but has a mode.
    profile.add("mq_open", Action::Allow, &[]);
    profile.add("mq_open", DENIED, &[(2, Test::AnyOf(SET_ID))]);
}

/// Allows local sockets, TCP, UDP, and netlink queries of routes and interfaces. Not vsock, which
/// no network namespace restricts, nor raw sockets, nor the kernel's crypto, audit and similar.
fn sockets(profile: &mut Profile) {
    let is = |argument, number| (argument, Test::Low32(Compare::Eq, number));
    let allow = |profile: &mut Profile, tests: &[(u8, Test)]| {
        profile.add("socket", Action::Allow, tests);
    };
    allow(profile, &[is(0, AF_UNIX)]);
    for family in [AF_INET, AF_INET6] {
        for (kind, protocol) in [(SOCK_STREAM, IPPROTO_TCP), (SOCK_DGRAM, IPPROTO_UDP)] {
            let kind = (1, Test::Low32Masked(SOCKET_TYPE, kind));
            allow(profile, &[is(0, family), kind, is(2, 0)]);
            allow(profile, &[is(0, family), kind, is(2, protocol)]);
        }
    }
    // NETLINK_ROUTE is 0.
    allow(profile, &[is(0, AF_NETLINK), is(2, 0)]);
    profile.otherwise("socket", DENIED);
    profile.add("socketpair", Action::Allow, &[is(0, AF_UNIX)]);
    profile.otherwise("socketpair", DENIED);
}

const ALLOWED: &[&str] = &[
    "accept",
    "accept4",
    "access",
    "adjtimex",
    "alarm",
    "arch_prctl",
    "bind",
    "brk",
    "cachestat",
    "capget",
    "capset",
    "chdir",
    "chown",
    "clock_adjtime",
    "clock_getres",
    "clock_gettime",
    "clock_nanosleep",
    "close",
    "close_range",
    "connect",
    "copy_file_range",
    "dup",
    "dup2",
    "dup3",
    "epoll_create",
    "epoll_create1",
    "epoll_ctl",
    "epoll_pwait",
    "epoll_pwait2",
    "epoll_wait",
    "eventfd",
    "eventfd2",
    "execve",
    "execveat",
    "exit",
    "exit_group",
    "faccessat",
    "faccessat2",
    "fadvise64",
    "fallocate",
    "fchdir",
    "fchown",
    "fchownat",
    "fdatasync",
    "fgetxattr",
    "flistxattr",
    "flock",
    "fork",
    "fremovexattr",
    "fsetxattr",
    "fstat",
    "fstatfs",
    "fsync",
    "ftruncate",
    "futex",
    "futex_requeue",
    "futex_wait",
    "futex_waitv",
    "futex_wake",
    "futimesat",
    "get_robust_list",
    "get_thread_area",
    "getcpu",
    "getcwd",
    "getdents",
    "getdents64",
    "getegid",
    "geteuid",
    "getgid",
    "getgroups",
    "getitimer",
    "getpeername",
    "getpgid",
    "getpgrp",
    "getpid",
    "getppid",
    "getpriority",
    "getrandom",
    "getresgid",
    "getresuid",
    "getrlimit",
    "getrusage",
    "getsid",
    "getsockname",
    "getsockopt",
    "gettid",
    "gettimeofday",
    "getuid",
    "getxattr",
    "getxattrat",
    "inotify_add_watch",
    "inotify_init",
    "inotify_init1",
    "inotify_rm_watch",
    "io_cancel",
    "io_destroy",
    "io_getevents",
    "io_pgetevents",
    "io_setup",
    "io_submit",
    "ioprio_get",
    "ioprio_set",
    "kill",
    "landlock_add_rule",
    "landlock_create_ruleset",
    "landlock_restrict_self",
    "lchown",
    "lgetxattr",
    "link",
    "linkat",
    "listen",
    "listxattr",
    "listxattrat",
    "llistxattr",
    "lremovexattr",
    "lseek",
    "lsetxattr",
    "lstat",
    "madvise",
    "map_shadow_stack",
    "membarrier",
    "memfd_create",
    "mincore",
    "mlock",
    "mlock2",
    "mlockall",
    "mmap",
    "mprotect",
    "mq_getsetattr",
    "mq_notify",
    "mq_timedreceive",
    "mq_timedsend",
    "mq_unlink",
    "mremap",
    "mseal",
    "msgctl",
    "msgget",
    "msgrcv",
    "msgsnd",
    "msync",
    "munlock",
    "munlockall",
    "munmap",
    "nanosleep",
    "newfstatat",
    "openat2",
    "pause",
    "pidfd_open",
    "pidfd_send_signal",
    "pipe",
    "pipe2",
    "pkey_alloc",
    "pkey_free",
    "pkey_mprotect",
    "poll",
    "ppoll",
    "prctl",
    "pread64",
    "preadv",
    "preadv2",
    "pselect6",
    "pwrite64",
    "pwritev",
    "pwritev2",
    "read",
    "readahead",
    "readlink",
    "readlinkat",
    "readv",
    "recvfrom",
    "recvmmsg",
    "recvmsg",
    "remap_file_pages",
    "removexattr",
    "removexattrat",
    "rename",
    "renameat",
    "renameat2",
    "restart_syscall",
    "rmdir",
    "rseq",
    "rt_sigaction",
    "rt_sigpending",
    "rt_sigprocmask",
    "rt_sigqueueinfo",
    "rt_sigreturn",
    "rt_sigsuspend",
    "rt_sigtimedwait",
    "rt_tgsigqueueinfo",
    "sched_get_priority_max",
    "sched_get_priority_min",
    "sched_getaffinity",
    "sched_getattr",
    "sched_getparam",
    "sched_getscheduler",
    "sched_rr_get_interval",
    "sched_setaffinity",
    "sched_setattr",
    "sched_setparam",
    "sched_setscheduler",
    "sched_yield",
    "seccomp",
    "select",
    "semctl",
    "semget",
    "semop",
    "semtimedop",
    "sendfile",
    "sendmmsg",
    "sendmsg",
    "sendto",
    "set_robust_list",
    "set_thread_area",
    "set_tid_address",
    "setfsgid",
    "setfsuid",
    "setgid",
    "setgroups",
    "setitimer",
    "setpgid",
    "setpriority",
    "setregid",
    "setresgid",
    "setresuid",
    "setreuid",
    "setrlimit",
    "setsid",
    "setsockopt",
    "setuid",
    "setxattr",
    "setxattrat",
    "shmat",
    "shmctl",
    "shmdt",
    "shmget",
    "shutdown",
    "sigaltstack",
    "signalfd",
    "signalfd4",
    "splice",
    "stat",
    "statfs",
    "statx",
    "symlink",
    "symlinkat",
    "sync",
    "sync_file_range",
    "syncfs",
    "sysinfo",
    "tee",
    "tgkill",
    "time",
    "timer_create",
    "timer_delete",
    "timer_getoverrun",
    "timer_gettime",
    "timer_settime",
    "timerfd_create",
    "timerfd_gettime",
    "timerfd_settime",
    "times",
    "tkill",
    "truncate",
    "umask",
    "uname",
    "unlink",
    "unlinkat",
    "uretprobe",
    "utime",
    "utimensat",
    "utimes",
    "vfork",
    "vmsplice",
    "wait4",
    "waitid",
    "write",
    "writev",
];

/// Calls that return EPERM instead of ENOSYS: the program learns that they are forbidden, and does
/// not try a fallback.
const DANGEROUS: &[&str] = &[
    "_sysctl",
    "acct",
    "add_key",
    "bpf",
    "chroot",
    "clock_settime",
    "delete_module",
    "fanotify_init",
    "fanotify_mark",
    "finit_module",
    "fsconfig",
    "fsmount",
    "fsopen",
    "fspick",
    "get_mempolicy",
    "init_module",
    "io_uring_enter",
    "io_uring_register",
    "io_uring_setup",
    "ioperm",
    "iopl",
    "kcmp",
    "kexec_file_load",
    "kexec_load",
    "keyctl",
    "lookup_dcookie",
    "mbind",
    "migrate_pages",
    "modify_ldt",
    "mount",
    "mount_setattr",
    "move_mount",
    "move_pages",
    "nfsservctl",
    "open_by_handle_at",
    "open_tree",
    "open_tree_attr",
    "perf_event_open",
    "pidfd_getfd",
    "pivot_root",
    "process_madvise",
    "process_vm_readv",
    "process_vm_writev",
    "ptrace",
    "quotactl",
    "quotactl_fd",
    "reboot",
    "request_key",
    "set_mempolicy",
    "set_mempolicy_home_node",
    "setdomainname",
    "sethostname",
    "setns",
    "settimeofday",
    "swapoff",
    "swapon",
    "sysfs",
    "syslog",
    "umount2",
    "unshare",
    "uselib",
    "userfaultfd",
    "ustat",
    "vhangup",
];

/// All names of both lists.
#[cfg(test)]
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    ALLOWED.iter().chain(DANGEROUS).copied()
}
