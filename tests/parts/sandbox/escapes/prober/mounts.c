/* Mounts, roots, namespaces, and what procfs, sysfs and cgroups let be written. */
#include "prober.h"
#include <linux/landlock.h>

#define DIR_ (walled() ? "/tmp" : told("scratch"))
static const char *mount_point(void) {
    static char path[4096];
    scratch(path, sizeof path, "mount");
    mkdir(path, 0755);
    return path;
}

ATTEMPT(remount, ROOT, "remount /usr writable") {
    if (walled()) return result(mount(NULL, "/usr", NULL, MS_REMOUNT | MS_BIND, NULL));
    const char *at = mount_point();
    if (mount("tmpfs", at, "tmpfs", MS_RDONLY, NULL)) return errno;
    return result(mount(NULL, at, NULL, MS_REMOUNT | MS_BIND, NULL));
}
ATTEMPT(mount_setattr_rw, ROOT, "make /usr writable by mount_setattr") {
    uint64_t attributes[4] = {0, 1, 0, 0};
    const char *at = walled() ? "/usr" : mount_point();
    if (!walled() && mount("tmpfs", at, "tmpfs", MS_RDONLY, NULL)) return errno;
    return result(syscall(442, AT_FDCWD, at, 0, attributes, sizeof attributes));
}
ATTEMPT(umount_tree, ROOT, "unmount what covers something") {
    const char *at = walled() ? "/proc" : mount_point();
    if (!walled() && mount("tmpfs", at, "tmpfs", 0, NULL)) return errno;
    return result(umount2(at, MNT_DETACH));
}
ATTEMPT(mount_tmpfs, ROOT, "mount a tmpfs") { return result(mount("tmpfs", mount_point(), "tmpfs", 0, NULL)); }
ATTEMPT(mount_bind, ROOT, "bind / somewhere") { return result(mount("/", mount_point(), NULL, MS_BIND, NULL)); }
ATTEMPT(mount_proc, ROOT, "mount a procfs of its own, whole") { return result(mount("proc", mount_point(), "proc", 0, NULL)); }
ATTEMPT(mount_sysfs, ROOT, "mount sysfs") { return result(mount("sysfs", mount_point(), "sysfs", 0, NULL)); }
ATTEMPT(mount_cgroup, ROOT, "mount cgroup2") { return result(mount("cgroup2", mount_point(), "cgroup2", 0, NULL)); }
ATTEMPT(mount_overlay, ROOT, "mount an overlay over /usr") {
    const char *at = mount_point();
    if (!walled() && mount("tmpfs", at, "tmpfs", 0, NULL)) return errno;
    char options[9000];
    mkdir(joined(at, "u"), 0755), mkdir(joined(at, "w"), 0755);
    snprintf(options, sizeof options, "lowerdir=/usr,upperdir=%s/u,workdir=%s/w", at, at);
    return result(mount("overlay", at, "overlay", 0, options));
}
ATTEMPT(mount_propagation, ROOT, "make / a shared mount") { return result(mount(NULL, "/", NULL, MS_SHARED | MS_REC, NULL)); }
ATTEMPT(fsopen_tmpfs, ROOT, "fsopen") { return result(syscall(430, "tmpfs", 0)); }
ATTEMPT(fsopen_proc, ROOT, "fsopen of procfs, to have it whole") { return result(syscall(430, "proc", 0)); }
ATTEMPT(fspick_root, ROOT, "fspick, to reconfigure a mount") { return result(syscall(433, AT_FDCWD, "/", 0)); }
ATTEMPT(fsconfig_source, ROOT, "a block device as source of a new mount") {
    int fd = (int)syscall(430, "ext4", 0);
    return fd < 0 ? errno : result(syscall(431, fd, 1, "source", "/dev/vda", 0));
}
ATTEMPT(open_tree_clone, ROOT, "open_tree of a copy of the mounts") { return result(syscall(428, AT_FDCWD, "/", 1 | O_CLOEXEC)); }
ATTEMPT(open_tree_recursive, ROOT, "the same of all below") { return result(syscall(428, AT_FDCWD, "/", 1 | O_CLOEXEC | 0x8000)); }
ATTEMPT(move_mount_handle, ROOT, "move_mount of a descriptor") {
    int fd = walled() ? open("/usr", O_PATH) : (int)syscall(428, AT_FDCWD, mount_point(), 1);
    const char *to = joined(DIR_, "moved");
    mkdir(to, 0755);
    return result(syscall(429, fd, "", AT_FDCWD, to, 4));
}
ATTEMPT(listmount_host, NONE, "list mounts beyond the own root by listmount (no control: its own are anybody's)") {
    uint64_t request[4] = {32, 0, 0, 0}, ids[64];
    request[1] = 1;
    return result(syscall(458, request, ids, 64, 0));
}
ATTEMPT(pivot_root_call, PERMISSION, "pivot_root") { int error = result(syscall(SYS_pivot_root, ".", ".")); return walled() || error == EPERM ? error : 0; }
ATTEMPT(chroot_breakout, ROOT, "leave the root by a second chroot") {
    const char *at = mount_point();
    if (chroot(at)) return errno;
    for (int i = 0; i < 64; i++) if (chdir("..")) return errno;
    return result(chroot("."));
}
ATTEMPT(quotactl_get, PERMISSION, "change quotas") { int error = result(syscall(SYS_quotactl, 0x80000800, "/dev/vda", 0, NULL)); return walled() || error == EPERM ? error : 0; }
ATTEMPT(acct_file, PERMISSION, "have the kernel write accounts to a file") { int error = result(syscall(SYS_acct, "/no/such/file")); return walled() || error == EPERM ? error : 0; }
ATTEMPT(swapon_file, PERMISSION, "swapon") { int error = result(syscall(SYS_swapon, "/no/such/file", 0)); return walled() || error == EPERM ? error : 0; }
ATTEMPT(swapoff_file, PERMISSION, "swapoff") { int error = result(syscall(SYS_swapoff, "/no/such/file")); return walled() || error == EPERM ? error : 0; }
ATTEMPT(fanotify, ROOT, "fanotify_init for permission events") { return result(syscall(SYS_fanotify_init, 4, O_RDONLY)); }

#define WRITABLE(name, path) ATTEMPT(name, ROOT, "open " path " for writing") { return opened(path, O_WRONLY); }
WRITABLE(core_pattern, "/proc/sys/kernel/core_pattern")
WRITABLE(proc_modprobe, "/proc/sys/kernel/modprobe")
WRITABLE(proc_hostname, "/proc/sys/kernel/hostname")
WRITABLE(proc_drop_caches, "/proc/sys/vm/drop_caches")
WRITABLE(proc_ip_forward, "/proc/sys/net/ipv4/ip_forward")
WRITABLE(proc_sysrq, "/proc/sysrq-trigger")
WRITABLE(proc_irq, "/proc/irq/default_smp_affinity")
WRITABLE(sys_ksm, "/sys/kernel/mm/ksm/run")
WRITABLE(sys_profiling, "/sys/kernel/profiling")
WRITABLE(sys_rcu_normal, "/sys/kernel/rcu_normal")
WRITABLE(sys_rcu, "/sys/kernel/rcu_expedited")
WRITABLE(sys_uevent, "/sys/block/vda/uevent")
WRITABLE(release_agent, "/sys/fs/cgroup/memory/release_agent")
WRITABLE(cgroup_procs, "/sys/fs/cgroup/unified/cgroup.procs")
WRITABLE(cgroup_limits, "/sys/fs/cgroup/pids/cgroup.procs")
/* A file that is covered can be read, and is empty. */
static int empty_or(const char *path) {
    char byte;
    int fd = open(path, O_RDONLY);
    if (fd < 0) return errno;
    ssize_t got = read(fd, &byte, 1);
    return got > 0 ? 0 : got < 0 ? errno : say("empty");
}
ATTEMPT(kcore, ROOT, "read /proc/kcore") { return empty_or("/proc/kcore"); }
ATTEMPT(sys_notes, ROOT, "read /sys/kernel/notes") { return empty_or("/sys/kernel/notes"); }
ATTEMPT(kallsyms, ROOT, "addresses of the kernel in /proc/kallsyms") {
    unsigned long address = 0;
    FILE *file = fopen("/proc/kallsyms", "r");
    if (!file) return errno;
    if (fscanf(file, "%lx", &address) != 1) return EIO;
    return address ? 0 : say("zeros");
}
ATTEMPT(proc_keys, ROOT, "read /proc/keys") { return empty_or("/proc/keys"); }
ATTEMPT(proc_timer_list, ROOT, "read /proc/timer_list") { return empty_or("/proc/timer_list"); }

/* The same names where all of procfs is shown, masked. */
#define MASKED(name, path) ATTEMPT(masked_##name, ROOT, "masked proc: open " path " for writing") { return opened(path, O_WRONLY); }
MASKED(core_pattern, "/proc/sys/kernel/core_pattern")
MASKED(modprobe, "/proc/sys/kernel/modprobe")
MASKED(drop_caches, "/proc/sys/vm/drop_caches")
MASKED(ip_forward, "/proc/sys/net/ipv4/ip_forward")
MASKED(fs_binfmt, "/proc/sys/fs/suid_dumpable")
ATTEMPT(masked_irq, ROOT, "masked proc: list /proc/irq") {
    DIR *directory = opendir("/proc/irq");
    int entries = 0;
    if (!directory) return errno;
    while (readdir(directory)) entries++;
    return entries > 2 ? 0 : say("empty");
}
ATTEMPT(masked_kallsyms, ROOT, "masked proc: read /proc/kallsyms") { return empty_or("/proc/kallsyms"); }
ATTEMPT(masked_timer_list, ROOT, "masked proc: read /proc/timer_list") { return empty_or("/proc/timer_list"); }
ATTEMPT(masked_keys, ROOT, "masked proc: read /proc/keys") { return empty_or("/proc/keys"); }
ATTEMPT(masked_kmsg, ROOT, "masked proc: open /proc/kmsg") { return walled() ? empty_or("/proc/kmsg") : opened("/proc/kmsg", O_RDONLY | O_NONBLOCK); }
ATTEMPT(masked_environ, ROOT, "masked proc: environment of a process of the host") { return reads(joined("/proc", joined(told("victim"), "environ")), told("secret")); }

/* Namespaces. */
static int in_child(long child) {
    if (child < 0) return errno;
    if (child == 0) _exit(0);
    waitpid((pid_t)child, NULL, 0);
    return 0;
}
ATTEMPT(userns_unshare, USER, "a user namespace by unshare") { return result(unshare(CLONE_NEWUSER)); }
ATTEMPT(userns_clone, USER, "by clone") { return in_child(syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0)); }
ATTEMPT(userns_clone3, USER, "by clone3") {
    struct clone_args it = {.flags = CLONE_NEWUSER, .exit_signal = SIGCHLD};
    return in_child(syscall(SYS_clone3, &it, sizeof it));
}
ATTEMPT(userns_clone_vm, USER, "by clone with CLONE_NEWNS beside") { return in_child(syscall(SYS_clone, CLONE_NEWUSER | CLONE_NEWNS | SIGCHLD, 0, 0, 0, 0)); }
ATTEMPT(userns_clone_high, USER, "by clone with bits above 32 beside") { return in_child(syscall(SYS_clone, (1UL << 40) | CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0)); }
#ifdef __x86_64__
static long int80(long number, long argument) {
    long given;
    __asm__ volatile("int $0x80" : "=a"(given) : "a"(number), "b"(argument) : "memory", "r8", "r9", "r10", "r11");
    if (given < 0) { errno = (int)-given; return -1; }
    return given;
}
ATTEMPT(userns_int80, USER, "by unshare of the 32 bit table, int 0x80") { return result(int80(310, CLONE_NEWUSER)); }
ATTEMPT(int80_getpid, USER, "any call by int 0x80") { return result(int80(20, 0)); }
ATTEMPT(x32, NONE, "a call by the numbers of x32 (no control: this kernel has none)") { return result(syscall(0x40000000 | 39)); }
ATTEMPT(x32_unshare, NONE, "unshare by the number of x32 (no control: this kernel has none)") { return result(syscall(0x40000000 | 272, CLONE_NEWUSER)); }
#endif
#define UNSHARE(name, flag) ATTEMPT(unshare_##name, ROOT, "unshare of a namespace: " #name) { return result(unshare(flag)); }
UNSHARE(mount, CLONE_NEWNS)
UNSHARE(pid, CLONE_NEWPID)
UNSHARE(net, CLONE_NEWNET)
UNSHARE(ipc, CLONE_NEWIPC)
UNSHARE(uts, CLONE_NEWUTS)
UNSHARE(cgroup, CLONE_NEWCGROUP)
UNSHARE(time, 0x80)
static int enters(const char *name, int flag) {
    char path[128];
    snprintf(path, sizeof path, "/proc/%d/ns/%s", walled() ? 1 : (int)victim(), name);
    int fd = open(path, O_RDONLY);
    return fd < 0 ? errno : result(setns(fd, flag));
}
ATTEMPT(setns_file, ROOT, "setns into namespaces of pid 1 (control: of a victim)") { return enters("net", CLONE_NEWNET); }
ATTEMPT(setns_victim, ROOT, "setns by the number of a process of the host") {
    int fd = open(joined("/proc", joined(told("victim"), "ns/net")), O_RDONLY);
    return fd < 0 ? errno : result(setns(fd, 0));
}
ATTEMPT(setns_pidfd, ROOT, "setns by a pidfd of pid 1 (control: of a victim)") {
    int fd = (int)syscall(SYS_pidfd_open, walled() ? 1 : victim(), 0);
    return fd < 0 ? errno : result(setns(fd, CLONE_NEWNET | CLONE_NEWNS));
}
ATTEMPT(ns_parent, NONE, "the owning user namespace by NS_GET_USERNS, and setns into it (no control: outside it is the first)") {
    int fd = open("/proc/self/ns/net", O_RDONLY), owner = fd < 0 ? -1 : ioctl(fd, 0xb701);
    if (owner < 0) return errno;
    int parent = ioctl(owner, 0xb702);
    return parent < 0 ? errno : result(setns(parent, CLONE_NEWUSER));
}
ATTEMPT(landlock_restack, NONE, "a Landlock layer of its own that allows everything, then a read of another workspace (no control: layers only add)") {
    uint64_t handled = 0x7;
    int set = (int)syscall(444, &handled, sizeof handled, 0);
    if (set < 0) return say("no set: %s", strerrorname_np(errno));
    struct { uint64_t access; int32_t fd; } __attribute__((packed)) rule = {0x7, open("/", O_PATH)};
    syscall(445, set, 1, &rule, 0);
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    syscall(446, set, 0);
    return reads(joined(told("other"), "secret"), told("secret"));
}
