//! Real texts of hosts.

use super::*;

fn dirs(layout: &Layout) -> Vec<String> {
    let show = |name: &str, tree: &Hierarchy| {
        let mark = if tree.read_only { " ro" } else { "" };
        format!(
            "{name} {} {}{mark}",
            tree.mount.display(),
            tree.own.display()
        )
    };
    let v2 = layout.v2.iter().map(|tree| show("v2", tree));
    let v1 = layout
        .v1
        .iter()
        .map(|(of, tree)| show(&format!("{of:?}").to_lowercase(), tree));
    v2.chain(v1).collect()
}

#[track_caller]
fn check(mountinfo: &str, own: &str, expected: &[&str]) {
    assert_eq!(dirs(&Layout::read(mountinfo, own)), expected);
}

#[test]
fn v2_alone_under_systemd() {
    check(
        "24 30 0:22 / /sys rw,nosuid,nodev,noexec,relatime shared:7 - sysfs sysfs rw\n\
         35 24 0:30 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot\n",
        "0::/system.slice/marshal.service\n",
        &["v2 /sys/fs/cgroup /sys/fs/cgroup/system.slice/marshal.service"],
    );
}

#[test]
fn v1_controllers_beside_an_empty_v2() {
    check(
        "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n\
         32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n\
         33 31 0:30 / /sys/fs/cgroup/cpuacct rw,relatime - cgroup cgroup rw,cpuacct\n\
         35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
         39 31 0:36 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids\n\
         40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd\n\
         41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n",
        "9:name=systemd:/\n8:pids:/\n4:memory:/process_api/66b9\n2:cpuacct:/\n1:cpu:/\n0::/\n",
        &[
            "v2 /sys/fs/cgroup/unified /sys/fs/cgroup/unified",
            "pids /sys/fs/cgroup/pids /sys/fs/cgroup/pids",
            "memory /sys/fs/cgroup/memory /sys/fs/cgroup/memory/process_api/66b9",
            "cpu /sys/fs/cgroup/cpu /sys/fs/cgroup/cpu",
            "cpuacct /sys/fs/cgroup/cpuacct /sys/fs/cgroup/cpuacct",
        ],
    );
}

#[test]
fn hybrid_of_systemd_with_two_controllers_in_one_tree() {
    check(
        "26 19 0:22 / /sys/fs/cgroup ro,nosuid,nodev,noexec shared:9 - tmpfs tmpfs ro,mode=755\n\
         27 26 0:23 / /sys/fs/cgroup/unified rw,nosuid,nodev,noexec,relatime shared:10 - cgroup2 cgroup2 rw\n\
         28 26 0:24 / /sys/fs/cgroup/systemd rw,nosuid,nodev,noexec,relatime shared:11 - cgroup cgroup rw,xattr,name=systemd\n\
         32 26 0:28 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid,nodev,noexec,relatime shared:16 - cgroup cgroup rw,cpu,cpuacct\n\
         33 26 0:29 / /sys/fs/cgroup/memory rw,nosuid,nodev,noexec,relatime shared:17 - cgroup cgroup rw,memory\n\
         36 26 0:32 / /sys/fs/cgroup/pids rw,nosuid,nodev,noexec,relatime shared:20 - cgroup cgroup rw,pids\n",
        "8:cpu,cpuacct:/user.slice\n7:memory:/user.slice/user-0.slice/session-2.scope\n5:pids:/user.slice/user-0.slice/session-2.scope\n1:name=systemd:/user.slice/user-0.slice/session-2.scope\n0::/user.slice/user-0.slice/session-2.scope\n",
        &[
            "v2 /sys/fs/cgroup/unified /sys/fs/cgroup/unified/user.slice/user-0.slice/session-2.scope",
            "pids /sys/fs/cgroup/pids /sys/fs/cgroup/pids/user.slice/user-0.slice/session-2.scope",
            "memory /sys/fs/cgroup/memory /sys/fs/cgroup/memory/user.slice/user-0.slice/session-2.scope",
            "cpu /sys/fs/cgroup/cpu,cpuacct /sys/fs/cgroup/cpu,cpuacct/user.slice",
            "cpuacct /sys/fs/cgroup/cpu,cpuacct /sys/fs/cgroup/cpu,cpuacct/user.slice",
        ],
    );
}

#[test]
fn a_container_sees_its_own_part_read_only() {
    // v2 with a cgroup namespace of its own.
    check(
        "1103 1102 0:30 / /sys/fs/cgroup ro,nosuid,nodev,noexec,relatime - cgroup2 cgroup rw,nsdelegate\n",
        "0::/\n",
        &["v2 /sys/fs/cgroup /sys/fs/cgroup ro"],
    );
    // v1 without one: the mount shows a part of the tree, and the path is the host's.
    check(
        "900 899 0:31 /docker/4f00 /sys/fs/cgroup/pids ro,nosuid,nodev,noexec,relatime master:19 - cgroup cgroup rw,pids\n\
         901 899 0:32 /docker/4f00 /sys/fs/cgroup/memory ro,nosuid,nodev,noexec,relatime master:20 - cgroup cgroup rw,memory\n",
        "5:pids:/docker/4f00\n4:memory:/docker/4f00/own\n",
        &[
            "pids /sys/fs/cgroup/pids /sys/fs/cgroup/pids ro",
            "memory /sys/fs/cgroup/memory /sys/fs/cgroup/memory/own ro",
        ],
    );
}

#[test]
fn what_is_not_shown_is_left_out() {
    // The own group is outside of the namespace, or beside what is mounted.
    let unified = "35 24 0:30 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
    check(unified, "0::/../other\n", &[]);
    let part = "35 24 0:30 /docker/4f00 /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
    check(part, "0::/docker/4f001\n", &[]);
    check("", "0::/\n", &[]);
    check("35 24 0:30\n\n - cgroup2\n", "0::\nx\n\n", &[]);
}

#[test]
fn the_mount_that_counts_is_the_visible_one_that_can_be_written() {
    check(
        "35 24 0:30 / /a\\040b ro - cgroup2 cgroup2 rw\n\
         36 24 0:30 / /c\\134d rw - cgroup2 cgroup2 rw\n\
         37 24 0:30 / /e rw - cgroup2 cgroup2 rw\n\
         38 37 0:99 / /e rw - cgroup cgroup rw,pids\n",
        "0::/x y\n",
        &["v2 /c\\d /c\\d/x y"],
    );
}
