//! What the program says to every call, read by an interpreter of the kernel's language.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use proptest::prelude::*;
use seccompiler::sock_filter;

use super::bpf::{ARCH, assemble, value};
use super::oci::parse;
use super::*;

const EPERM: Action = Action::Errno(1);
const ENOSYS: Action = Action::Errno(38);

/// What the kernel would do.
fn run(program: &[sock_filter], arch: u32, number: u32, args: [u64; 6]) -> u32 {
    let mut data = Vec::new();
    data.extend(number.to_le_bytes());
    data.extend(arch.to_le_bytes());
    data.extend(0_u64.to_le_bytes());
    data.extend(args.iter().flat_map(|arg| arg.to_le_bytes()));
    let (mut at, mut loaded) = (0, 0_u32);
    loop {
        let step = &program[at];
        at += 1;
        let taken = match step.code {
            bpf::LOAD => {
                let from = step.k as usize;
                loaded = u32::from_le_bytes(data[from..from + 4].try_into().unwrap());
                continue;
            }
            bpf::AND => {
                loaded &= step.k;
                continue;
            }
            bpf::JUMP => {
                at += step.k as usize;
                continue;
            }
            bpf::RETURN => return step.k,
            bpf::IF_EQ => loaded == step.k,
            bpf::IF_GT => loaded > step.k,
            bpf::IF_GE => loaded >= step.k,
            bpf::IF_ANY => loaded & step.k != 0,
            other => panic!("{other:#x}"),
        };
        at += usize::from(if taken { step.jt } else { step.jf });
    }
}

fn filter_result(name: &str, args: &[u64]) -> u32 {
    let mut all = [0; 6];
    all[..args.len()].copy_from_slice(args);
    let program = assemble(&built_in()).unwrap();
    run(&program, ARCH, syscalls::number(name).unwrap(), all)
}

#[track_caller]
fn expect(name: &str, args: &[u64], action: Action) {
    assert_eq!(filter_result(name, args), value(action), "{name} {args:x?}");
}

#[test]
fn another_architecture_is_killed_and_foreign_numbers_are_unknown() {
    let program = assemble(&built_in()).unwrap();
    let read = syscalls::number("read").unwrap();
    let args = [0; 6];
    assert_eq!(run(&program, ARCH, read, args), value(Action::Allow));
    // i386 and 32-bit ARM.
    for arch in [0x4000_0003, 0x4000_0028, 0] {
        assert_eq!(run(&program, arch, read, args), value(Action::Kill));
    }
    for number in [read | 0x4000_0000, 0x4000_0000 + 520, 5000, u32::MAX] {
        assert_eq!(
            run(&program, ARCH, number, args),
            value(ENOSYS),
            "{number:x}"
        );
    }
}

#[test]
fn every_number_is_answered_as_the_lists_say() {
    let profile = built_in();
    let program = assemble(&profile).unwrap();
    let plain = |number: u32| match profile.calls.get(&number) {
        None => profile.default,
        Some(call) => call
            .rules
            .iter()
            .find(|rule| rule.tests.is_empty())
            .map_or(call.otherwise, |rule| rule.action),
    };
    // With arguments that fit no test of any call.
    for number in 0..1000 {
        let none = [0; 6];
        let known = ["socket", "socketpair", "personality"].map(syscalls::number);
        if !known.contains(&Some(number)) {
            let said = run(&program, ARCH, number, none);
            assert_eq!(said, value(plain(number)), "{number}");
        }
    }
    assert!(program.len() < 1500, "{}", program.len());
}

#[test]
fn the_dangerous_are_refused() {
    for name in [
        "ptrace",
        "process_vm_readv",
        "process_vm_writev",
        "pidfd_getfd",
        "kcmp",
        "bpf",
        "keyctl",
        "add_key",
        "request_key",
        "io_uring_setup",
        "io_uring_enter",
        "io_uring_register",
        "userfaultfd",
        "perf_event_open",
        "unshare",
        "setns",
        "mount",
        "umount2",
        "pivot_root",
        "chroot",
        "open_tree",
        "move_mount",
        "fsopen",
        "fsmount",
        "fsconfig",
        "fspick",
        "mount_setattr",
        "open_by_handle_at",
        "init_module",
        "finit_module",
        "delete_module",
        "kexec_load",
        "reboot",
        "swapon",
        "swapoff",
        "syslog",
        "sethostname",
        "acct",
        "quotactl",
        "settimeofday",
        "clock_settime",
        "fanotify_init",
    ] {
        expect(name, &[], EPERM);
    }
    #[cfg(target_arch = "x86_64")]
    for name in ["iopl", "ioperm", "modify_ldt"] {
        expect(name, &[], EPERM);
    }
    for name in ["clone3", "memfd_secret", "statmount"] {
        expect(name, &[], ENOSYS);
    }
}

#[test]
fn new_namespaces_are_refused_whatever_else_is_asked_for() {
    const VM_VFORK_SIGCHLD: u64 = 0x4111;
    expect("clone", &[VM_VFORK_SIGCHLD], Action::Allow);
    expect("clone", &[0x003d_0f00], Action::Allow);
    for bit in [17, 25, 26, 27, 28, 29, 30] {
        expect("clone", &[1 << bit | VM_VFORK_SIGCHLD], EPERM);
        expect("clone", &[0xdead << 32 | 1 << bit], EPERM);
    }
}

#[test]
fn only_harmless_sockets_are_made() {
    const CLOEXEC_NONBLOCK: u64 = 0o2_004_000;
    for family in [2, 10] {
        for (kind, protocols) in [(1, [0, 6]), (2, [0, 17])] {
            for protocol in protocols {
                expect("socket", &[family, kind, protocol], Action::Allow);
                let flagged = kind | CLOEXEC_NONBLOCK;
                expect("socket", &[family, flagged, protocol], Action::Allow);
            }
        }
        // ICMP, SCTP, MPTCP, raw and packet types, TCP's protocol for datagrams.
        for refused in [
            [2, 1],
            [1, 132],
            [1, 262],
            [3, 0],
            [3, 6],
            [10, 0],
            [2, 6],
            [5, 0],
        ] {
            expect("socket", &[family, refused[0], refused[1]], EPERM);
        }
    }
    for kind in [1, 2, 5] {
        expect("socket", &[1, kind, 0], Action::Allow);
        expect("socketpair", &[1, kind, 0], Action::Allow);
    }
    expect("socket", &[16, 3 | CLOEXEC_NONBLOCK, 0], Action::Allow);
    // Audit, netfilter, connector, generic, crypto.
    for protocol in [9, 12, 11, 16, 21] {
        expect("socket", &[16, 3, protocol], EPERM);
    }
    // Packet, vsock, alg, xdp, bluetooth, can, tipc, rds, kcm, qrtr, smc, key, local of another name.
    for family in [0, 17, 40, 38, 44, 31, 29, 30, 21, 41, 42, 43, 15, 3] {
        for kind in [1, 2, 3, 5] {
            expect("socket", &[family, kind, 0], EPERM);
            expect("socketpair", &[family, kind, 0], EPERM);
        }
    }
    // The kernel looks at the lower half only.
    expect("socket", &[0x1_0000_0028, 1, 0], EPERM);
    expect("socket", &[1 << 32 | 1, 1, 0], Action::Allow);
    expect("socket", &[2, 1 << 32 | 3, 0], EPERM);
}

#[test]
fn nothing_is_made_that_lasts_for_ever() {
    for request in [0x5000_9401, 0x5000_9417, 0x4080_6685] {
        expect("ioctl", &[0, request], EPERM);
        expect("ioctl", &[0, 1 << 32 | request], EPERM);
    }
    // FICLONE, FS_IOC_MEASURE_VERITY.
    for request in [0x4004_9409, 0xc004_6686] {
        expect("ioctl", &[0, request], Action::Allow);
    }
}

#[test]
fn a_terminal_is_not_made_to_type() {
    for request in [0x5412, 0x541c, 0x541d, 0x5423] {
        expect("ioctl", &[0, request], EPERM);
        expect("ioctl", &[0, 1 << 32 | request], EPERM);
        expect("ioctl", &[0, 0xffff_ffff_0000_0000 | request], EPERM);
    }
    // TCGETS, TIOCGWINSZ, TIOCSCTTY, FIONBIO, FIONREAD, TIOCGPTN.
    for request in [0x5401, 0x5413, 0x540e, 0x5421, 0x541b, 0x8004_5430] {
        expect("ioctl", &[0, request], Action::Allow);
    }
}

#[test]
fn nothing_gives_a_file_the_bits_of_another_user() {
    let plain = 0o1777;
    for bits in [0o4000, 0o2000, 0o6755, 0xdead_0000_0000_0000 | 0o4755] {
        for (name, before) in [
            ("fchmodat", 2),
            ("mkdirat", 2),
            ("mknodat", 2),
            ("fchmod", 1),
        ] {
            let mut args = vec![0; before];
            args.push(plain);
            expect(name, &args, Action::Allow);
            args[before] = bits;
            expect(name, &args, EPERM);
        }
        #[cfg(target_arch = "x86_64")]
        for name in ["chmod", "creat", "mkdir", "mknod"] {
            expect(name, &[0, plain], Action::Allow);
            expect(name, &[0, bits], EPERM);
        }
        expect("fchmodat2", &[0, 0, bits, 0], EPERM);
        let (make, temporary, read) = (0o101, 0o20_200_002, 0o2_000_000);
        expect("openat", &[0, 0, make, bits], EPERM);
        expect("openat", &[0, 0, temporary, bits], EPERM);
        expect("openat", &[0, 0, make, plain], Action::Allow);
        // Without a file to be made nothing reads the mode, and it may be anything.
        expect("openat", &[0, 0, read, bits], Action::Allow);
        #[cfg(target_arch = "x86_64")]
        expect("open", &[0, make, bits], EPERM);
    }
    // Devices; a FIFO, a socket and a plain file are none.
    for device in [0o020_644, 0o060_644] {
        expect("mknodat", &[0, 0, device], EPERM);
    }
    for plain in [0o010_644, 0o140_644, 0o100_644, 0o644] {
        expect("mknodat", &[0, 0, plain], Action::Allow);
    }
}

#[test]
fn the_agents_seal_takes_openat2_and_nothing_else() {
    let program = assemble(&rules::without_openat2()).unwrap();
    for number in 0..600 {
        let expected = if Some(number) == syscalls::number("openat2") {
            ENOSYS
        } else {
            Action::Allow
        };
        assert_eq!(run(&program, ARCH, number, [0; 6]), value(expected));
    }
    expect("openat2", &[], Action::Allow);
}

#[test]
fn personalities_and_limits_of_others() {
    for harmless in [0, 8, 0x2_0000, 0x2_0008, 0xffff_ffff] {
        expect("personality", &[harmless], Action::Allow);
    }
    // ADDR_NO_RANDOMIZE, READ_IMPLIES_EXEC.
    for refused in [0x4_0000, 0x40_0000, 1 << 32 | 0x4_0000] {
        expect("personality", &[refused], EPERM);
    }
    expect("prlimit64", &[0, 7], Action::Allow);
    expect("prlimit64", &[1 << 32, 7], Action::Allow);
    expect("prlimit64", &[1, 7], EPERM);
}

#[test]
fn a_file_of_the_host_is_not_leased() {
    expect("fcntl", &[3, 1], Action::Allow);
    expect("fcntl", &[3, 1024], EPERM);
    expect("fcntl", &[3, 1 << 32 | 1024], EPERM);
    // F_GETLEASE, and locks.
    expect("fcntl", &[3, 1025], Action::Allow);
    expect("fcntl", &[3, 6], Action::Allow);
}

#[test]
fn all_names_are_known_and_none_is_in_two_lists() {
    let mut seen = std::collections::BTreeSet::new();
    for name in rules::names() {
        assert!(syscalls::is_known(name), "{name}");
        assert!(seen.insert(name), "{name} twice");
    }
}

/// Reference: what a rule of a profile means, without any program.
fn holds(test: Test, argument: u64) -> bool {
    let by = |compare: Compare, one: u64, other: u64| match compare {
        Compare::Eq => one == other,
        Compare::Ne => one != other,
        Compare::Lt => one < other,
        Compare::Le => one <= other,
        Compare::Gt => one > other,
        Compare::Ge => one >= other,
    };
    let half = argument & 0xffff_ffff;
    match test {
        Test::AnyOf(bits) => half & u64::from(bits) != 0,
        Test::Low32(compare, number) => by(compare, half, number.into()),
        Test::Low32Masked(mask, wanted) => half & u64::from(mask) == u64::from(wanted),
        Test::Full64(compare, number) => by(compare, argument, number),
        Test::Full64Masked(mask, wanted) => argument & mask == wanted,
    }
}

fn meant(profile: &Profile, number: u32, args: [u64; 6]) -> Action {
    let Some(call) = profile.calls.get(&number) else {
        return profile.default;
    };
    let hold = call.rules.iter().filter(|rule| {
        let mut tests = rule.tests.iter();
        tests.all(|(at, test)| holds(*test, args[usize::from(*at)]))
    });
    hold.map(|rule| rule.action).max().unwrap_or(call.otherwise)
}

/// Numbers that are near each other, with halves that are equal, less and more.
fn number() -> impl Strategy<Value = u64> {
    let half = prop_oneof![
        Just(0_u64),
        Just(1),
        Just(2),
        Just(0x8000_0000),
        Just(0xffff_ffff)
    ];
    (half.clone(), half).prop_map(|(high, low)| high << 32 | low)
}

fn test() -> impl Strategy<Value = Test> {
    let compare = prop_oneof![
        Just(Compare::Eq),
        Just(Compare::Ne),
        Just(Compare::Lt),
        Just(Compare::Le),
        Just(Compare::Gt),
        Just(Compare::Ge)
    ];
    #[allow(clippy::cast_possible_truncation, reason = "the lower half is wanted")]
    (0..5_u8, compare, number(), number()).prop_map(|(kind, compare, one, other)| match kind {
        0 => Test::AnyOf(one as u32),
        1 => Test::Low32(compare, one as u32),
        2 => Test::Low32Masked(one as u32, (other & one) as u32),
        3 => Test::Full64(compare, one),
        _ => Test::Full64Masked(one, other & one),
    })
}

fn profile() -> impl Strategy<Value = Profile> {
    let action = prop_oneof![
        Just(Action::Allow),
        Just(Action::Log),
        Just(EPERM),
        Just(ENOSYS),
        Just(Action::Trap),
        Just(Action::Kill)
    ];
    let tests = proptest::collection::vec((0..6_u8, test()), 0..4);
    let rule = (action.clone(), tests).prop_map(|(action, tests)| Rule { action, tests });
    let rules = proptest::collection::vec(rule, 0..4);
    let call =
        (rules, action.clone()).prop_map(|(rules, otherwise)| CallRules { rules, otherwise });
    let calls = proptest::collection::btree_map(0..40_u32, call, 0..20);
    (action, calls).prop_map(|(default, calls)| Profile { default, calls })
}

proptest! {
    #[test]
    fn the_program_does_what_the_profile_says(
        profile in profile(),
        args in proptest::array::uniform6(number()),
    ) {
        let program = assemble(&profile).unwrap();
        for call in 0..45 {
            let said = run(&program, ARCH, call, args);
            prop_assert_eq!(said, value(meant(&profile, call, args)), "{} {:x?}", call, args);
        }
    }
}

fn refused(text: &str) -> String {
    parse(text).unwrap_err().to_string()
}

#[test]
fn a_profile_is_read_from_a_file() {
    let text = r#"{"defaultAction":"SCMP_ACT_ERRNO","defaultErrnoRet":38,
        "archMap":[{"architecture":"SCMP_ARCH_X86_64","subArchitectures":["SCMP_ARCH_X86"]},
                   {"architecture":"SCMP_ARCH_AARCH64"}],
        "syscalls":[
          {"names":["read","write","chown32"],"action":"SCMP_ACT_ALLOW","comment":"both"},
          {"names":["socket"],"action":"SCMP_ACT_ALLOW",
           "args":[{"index":0,"value":40,"op":"SCMP_CMP_NE"}]},
          {"names":["clone"],"action":"SCMP_ACT_ALLOW","excludes":{"caps":["CAP_SYS_ADMIN"]},
           "args":[{"index":0,"value":2114060288,"valueTwo":0,"op":"SCMP_CMP_MASKED_EQ"}]},
          {"names":["mount"],"action":"SCMP_ACT_ALLOW","includes":{"caps":["CAP_SYS_ADMIN"]}},
          {"names":["ptrace"],"action":"SCMP_ACT_ALLOW","includes":{"minKernel":"4.8"}},
          {"names":["bpf"],"action":"SCMP_ACT_KILL_PROCESS"}]}"#;
    let profile = parse(text).unwrap();
    let said = |name: &str, first| {
        meant(
            &profile,
            syscalls::number(name).unwrap(),
            [first, 0, 0, 0, 0, 0],
        )
    };
    assert_eq!(said("read", 0), Action::Allow);
    assert_eq!(said("close", 0), ENOSYS);
    assert_eq!(said("mount", 0), ENOSYS);
    assert_eq!(said("ptrace", 0), Action::Allow);
    assert_eq!(said("bpf", 0), Action::Kill);
    assert_eq!(said("socket", 1), Action::Allow);
    assert_eq!(said("socket", 40), ENOSYS);
    // Where the kernel looks at 32 bits, so does the rule.
    assert_eq!(said("socket", 0x1_0000_0028), ENOSYS);
    assert_eq!(said("clone", 0x11), Action::Allow);
    assert_eq!(said("clone", 0x1000_0011), ENOSYS);
}

#[test]
fn a_file_that_says_what_is_not_done_is_refused() {
    let with = |rest: &str| format!(r#"{{"defaultAction":"SCMP_ACT_ERRNO",{rest}}}"#);
    let entry = |entry: &str| with(&format!(r#""syscalls":[{{"names":["read"],{entry}}}]"#));
    for (text, expected) in [
        ("{".to_owned(), "not a seccomp profile"),
        ("{}".to_owned(), "defaultAction"),
        (
            r#"{"defaultAction":"SCMP_ACT_ALLOW"}"#.to_owned(),
            "not named",
        ),
        (
            r#"{"defaultAction":"SCMP_ACT_LOG"}"#.to_owned(),
            "not named",
        ),
        (r#"{"defaultAction":"ALLOW"}"#.to_owned(), "no action"),
        (with(r#""listenerPath":"/x""#), "listenerPath"),
        (
            with(r#""flags":["SECCOMP_FILTER_FLAG_SPEC_ALLOW"]"#),
            "SPEC_ALLOW",
        ),
        (
            with(r#""architectures":["SCMP_ARCH_S390X"]"#),
            "other architectures",
        ),
        (with(r#""defaultErrnoRet":0"#), "not an error number"),
        (entry(r#""action":"SCMP_ACT_NOTIFY""#), "SCMP_ACT_NOTIFY"),
        (
            entry(r#""action":"SCMP_ACT_ALLOW","errnoRet":5000"#),
            "5000",
        ),
        (
            entry(r#""action":"SCMP_ACT_ALLOW","priority":1"#),
            "priority",
        ),
        (
            entry(r#""action":"SCMP_ACT_ALLOW","excludes":{"minKernel":"5.0"}"#),
            "excludes.minKernel",
        ),
        (
            entry(r#""action":"SCMP_ACT_ALLOW","args":[{"index":6,"value":0,"op":"SCMP_CMP_EQ"}]"#),
            "no argument 6",
        ),
        (
            entry(r#""action":"SCMP_ACT_ALLOW","args":[{"index":0,"value":0,"op":"EQ"}]"#),
            "no comparison",
        ),
        (
            with(r#""syscalls":[{"names":["raed"],"action":"SCMP_ACT_ALLOW"}]"#),
            "no system call \"raed\"",
        ),
    ] {
        let said = refused(&text);
        assert!(said.contains(expected), "{text}: {said}");
    }
}
