/* Files of the host, of other agents, of the supervisor; devices; set-id bits; bombs of disk. */
#include "prober.h"

#define OTHER joined(told("other"), "secret")
#define SECRET told("secret")

ATTEMPT(read_shadow, ROOT, "read /etc/shadow") { return reads("/etc/shadow", ""); }
ATTEMPT(root_home, ROOT, "list /root") { return opened("/root", O_RDONLY | O_DIRECTORY); }
ATTEMPT(other_ws_read, USER, "read another workspace by its path on the host") { return reads(OTHER, SECRET); }
ATTEMPT(other_ws_write, USER, "write there") { return opened(joined(told("other"), "planted"), O_CREAT | O_WRONLY); }
ATTEMPT(host_home, USER, "read a home of the host") { return reads(joined(told("other_home"), "secret"), SECRET); }
ATTEMPT(other_session_home, USER, "read another session's home below the state directory") { return reads(joined(told("state"), "homes/other/secret"), SECRET); }
ATTEMPT(state_dir, USER, "list the state directory") { return opened(told("state"), O_RDONLY | O_DIRECTORY); }
ATTEMPT(journal_db, USER, "open the journal for writing") { return opened(joined(told("state"), "decoy.db"), O_RDWR); }
ATTEMPT(control_socket, USER, "connect to the supervisor's control socket") {
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    snprintf(to.sun_path, sizeof to.sun_path, "%s/decoy.sock", told("state"));
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    return fd < 0 ? errno : result(connect(fd, (void *)&to, sizeof to));
}

/* A control must not write to the host's own directories: there it asks whether it could. */
static int writes(const char *directory) {
    if (!walled()) return result(access(directory, W_OK));
    int error = opened(joined(directory, "planted"), O_CREAT | O_EXCL | O_WRONLY);
    return error ? error : result(rename(joined(directory, "planted"), joined(directory, "moved")));
}
ATTEMPT(write_root_dir, ROOT, "make a file in / (control: access)") { return writes("/"); }
ATTEMPT(write_etc, ROOT, "make a file in /etc (control: access)") { return writes("/etc"); }
ATTEMPT(write_usr, ROOT, "make a file in /usr (control: access)") { return writes("/usr"); }
ATTEMPT(write_usr_bin, ROOT, "make a program in /usr/bin (control: access)") { return writes("/usr/bin"); }
ATTEMPT(write_dev, ROOT, "make a file in /dev (control: access)") { return writes("/dev"); }
ATTEMPT(write_marshal, ROOT, "open the supervisor's binary for writing (control: access to a program)") {
    return walled() ? opened("/run/marshal/marshal", O_WRONLY) : result(access("/usr/bin/env", W_OK));
}
ATTEMPT(write_linker_cache, ROOT, "open /etc/ld.so.cache for writing") { return opened("/etc/ld.so.cache", O_WRONLY); }

ATTEMPT(symlink_out, USER, "a link in the workspace to another one, read through it") {
    char link[4096];
    scratch(link, sizeof link, "link");
    return symlink(OTHER, link) ? errno : reads(link, SECRET);
}
ATTEMPT(hardlink_out, USER, "a hard link to a file of another workspace") {
    char path[4096];
    scratch(path, sizeof path, "hard");
    return result(link(OTHER, *told("inside") ? path : joined(told("other"), "hard")));
}
ATTEMPT(hardlink_passwd, ROOT, "a hard link in the workspace to a file that root shows read-only") {
    char from[4096], to[4096];
    scratch(to, sizeof to, "hard");
    scratch(from, sizeof from, "from");
    if (!walled()) { int error = opened(from, O_CREAT | O_WRONLY); if (error) return error; }
    return result(link(walled() ? "/usr/bin/env" : from, to));
}
ATTEMPT(dotdot, USER, "climb out by ..") {
    char path[4096];
    snprintf(path, sizeof path, "../../../../../../../../../../../../%s", OTHER);
    return reads(path, SECRET);
}
ATTEMPT(magic_link_dotdot, USER, "climb out by /proc/self/cwd/..") {
    char path[4096];
    snprintf(path, sizeof path, "/proc/self/cwd/../../../../../../../../../%s", OTHER);
    return reads(path, SECRET);
}
static int below_proc(pid_t pid, const char *link) {
    char path[4096];
    snprintf(path, sizeof path, "/proc/%d/%s/%s", (int)pid, link, OTHER);
    return reads(path, SECRET);
}
ATTEMPT(proc_victim_root, ROOT, "read through /proc/PID/root of a process of the host") { return below_proc(victim(), "root"); }
ATTEMPT(proc_1_root, ROOT, "read through /proc/1/root") { return below_proc(1, "root"); }
ATTEMPT(parent_cwd, ROOT, "read through the parent's working directory") { return below_proc(starter(), "cwd/../../../../../.."); }
ATTEMPT(proc_1_cwd, ROOT, "list /proc/1/cwd") { return opened("/proc/1/cwd", O_RDONLY | O_DIRECTORY); }
ATTEMPT(proc_1_exe_read, ROOT, "open /proc/1/exe") { return opened("/proc/1/exe", O_RDONLY); }
ATTEMPT(proc_1_exe_run, ROOT, "run /proc/1/exe as a helper of the supervisor's") {
    int status = 0;
    pid_t child = fork();
    if (!child) { execl("/proc/1/exe", walled() ? "marshal-init" : "true", "--help", NULL); _exit(errno); }
    waitpid(child, &status, 0);
    return WIFEXITED(status) && WEXITSTATUS(status) < 126 && WEXITSTATUS(status) > 0 && walled() ? WEXITSTATUS(status) : 0;
}
ATTEMPT(exe_overwrite, ROOT, "open the binary of pid 1 for writing, by /proc/1/exe (control: a victim's, busy)") {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/exe", walled() ? 1 : (int)victim());
    int error = opened(path, O_WRONLY);
    return error == ETXTBSY ? 0 : error;
}
ATTEMPT(open_by_handle, ROOT, "open_by_handle_at") {
    struct { struct file_handle handle; char room[128]; } it = {.handle.handle_bytes = 128};
    int mount_id;
    if (name_to_handle_at(AT_FDCWD, walled() ? "/workspace" : "/tmp", &it.handle, &mount_id, 0)) return errno;
    int at = open(walled() ? "/workspace" : "/tmp", O_RDONLY | O_DIRECTORY);
    return result(open_by_handle_at(at, &it.handle, O_RDONLY));
}
ATTEMPT(open_by_made_handle, ROOT, "open_by_handle_at with a made-up handle of the root inode (control: past the check)") {
    struct { struct file_handle handle; uint32_t words[2]; } it = {.handle = {.handle_bytes = 8, .handle_type = 1}, .words = {2, 0}};
    int at = open(walled() ? "/usr" : "/", O_RDONLY | O_DIRECTORY);
    int error = result(open_by_handle_at(at, &it.handle, O_RDONLY));
    return !walled() && error != EPERM ? 0 : error;
}
ATTEMPT(file_caps, ROOT, "give a file capabilities") {
    char path[4096];
    scratch(path, sizeof path, "caps");
    uint32_t cap[5] = {0x02000001, 0xffffffff, 0, 0xffffffff, 0};
    int error = opened(path, O_CREAT | O_WRONLY);
    return error ? error : result(setxattr(path, "security.capability", cap, sizeof cap, 0));
}
ATTEMPT(trusted_xattr, ROOT, "set a trusted attribute, as an overlay has") {
    char path[4096];
    scratch(path, sizeof path, "trusted");
    int error = opened(path, O_CREAT | O_WRONLY);
    return error ? error : result(setxattr(path, "trusted.overlay.opaque", "y", 1, 0));
}
ATTEMPT(chown_root, ROOT, "give a file to root") {
    char path[4096];
    scratch(path, sizeof path, "chown");
    int error = opened(path, O_CREAT | O_WRONLY);
    return error ? error : result(chown(path, 0, 0));
}
ATTEMPT(chown_other_slot, ROOT, "give a file to another slot's uid") {
    char path[4096];
    scratch(path, sizeof path, "chown");
    int error = opened(path, O_CREAT | O_WRONLY);
    return error ? error : result(chown(path, 1001, 1001));
}

static int run_and_look(const char *program) {
    char path[64], line[256], name[64] = "", state = 0;
    int ends[2], euid = -1;
    if (pipe(ends)) return errno;
    pid_t child = fork();
    if (!child) { dup2(ends[0], 0); dup2(open("/dev/null", O_WRONLY), 1); dup2(1, 2); execl(program, program, NULL); _exit(127); }
    snprintf(path, sizeof path, "/proc/%d/status", (int)child);
    /* Until it is that program, or could not be. */
    for (int look = 0; look < 200 && state != 'Z' && strcmp(name, strrchr(program, '/') + 1); look++) {
        usleep(50000);
        FILE *status = fopen(path, "r");
        while (status && fgets(line, sizeof line, status)) {
            sscanf(line, "Name: %63s", name);
            sscanf(line, "State: %c", &state);
            sscanf(line, "Uid: %*d %d", &euid);
        }
        if (status) fclose(status);
    }
    kill(child, SIGKILL);
    return euid == 0 ? 0 : say("euid %d", euid);
}
ATTEMPT(setuid_run, USER, "run a set-uid program of the host: su") { return run_and_look("/usr/bin/su"); }

static int has_bits(const char *path, int failed) {
    struct stat it;
    if (failed) return errno;
    if (stat(path, &it)) return errno;
    return it.st_mode & 06000 ? 0 : say("made, without the bits");
}
#define PLANT(name, what, call)                                           \
    ATTEMPT(plant_##name, USER, "plant a set-id file: " what) {           \
        char path[4096];                                                  \
        scratch(path, sizeof path, "plant");                              \
        const char *directory = path; (void)directory;                    \
        return has_bits(path, (call) < 0);                                \
    }
#define MADE(path) close(open(path, O_CREAT | O_WRONLY, 0600))
PLANT(chmod, "chmod 4755", (MADE(path), syscall(SYS_chmod, path, 04755)))
PLANT(chmod_gid, "chmod 2755", (MADE(path), syscall(SYS_chmod, path, 02755)))
PLANT(fchmod, "fchmod", syscall(SYS_fchmod, open(path, O_CREAT | O_WRONLY, 0600), 06755))
PLANT(fchmodat, "fchmodat", (MADE(path), syscall(SYS_fchmodat, AT_FDCWD, path, 04755)))
PLANT(fchmodat2, "fchmodat2", (MADE(path), syscall(452, AT_FDCWD, path, 04755, 0)))
PLANT(fchmodat_magic, "fchmodat by /proc/self/fd", ({ char link[64]; snprintf(link, 64, "/proc/self/fd/%d", open(path, O_CREAT | O_WRONLY, 0600)); syscall(SYS_fchmodat, AT_FDCWD, link, 04755); }))
PLANT(open, "open", syscall(SYS_open, path, O_CREAT | O_WRONLY, 04755))
PLANT(openat, "openat", syscall(SYS_openat, AT_FDCWD, path, O_CREAT | O_WRONLY, 06755))
PLANT(openat2, "openat2", ({ uint64_t how[3] = {O_CREAT | O_WRONLY, 04755, 0}; syscall(437, AT_FDCWD, path, how, sizeof how); }))
PLANT(open_high, "openat with bits above 32 in the mode", syscall(SYS_openat, AT_FDCWD, path, O_CREAT | O_WRONLY, 0x100000000L | 04755))
PLANT(creat, "creat", syscall(SYS_creat, path, 04755))
PLANT(mknod, "mknod", syscall(SYS_mknod, path, S_IFREG | 04755, 0))
PLANT(mknodat, "mknodat", syscall(SYS_mknodat, AT_FDCWD, path, S_IFREG | 04755, 0))
PLANT(mkdir, "mkdir and chmod of it", (syscall(SYS_mkdir, path, 0755), syscall(SYS_chmod, path, 02777)))
PLANT(tmpfile, "O_TMPFILE and a link to it", ({ char at[64]; int fd = (int)syscall(SYS_openat, AT_FDCWD, *told("scratch") ? told("scratch") : "/tmp", O_TMPFILE | O_WRONLY, 04755); snprintf(at, 64, "/proc/self/fd/%d", fd); fd < 0 ? -1 : linkat(AT_FDCWD, at, AT_FDCWD, path, AT_SYMLINK_FOLLOW); }))

static int device(const char *path, int flags) { return opened(path, flags | O_NONBLOCK); }
ATTEMPT(mknod_char, ROOT, "make a character device (1, 1)") { char path[4096]; scratch(path, sizeof path, "dev"); return result(mknod(path, S_IFCHR | 0666, 0x101)); }
ATTEMPT(mknod_block, ROOT, "make a block device") { char path[4096]; scratch(path, sizeof path, "dev"); return result(mknod(path, S_IFBLK | 0666, 0xfe00)); }
ATTEMPT(mknod_whiteout, NONE, "make the device 0:0, which everybody may, and open it") {
    char path[4096];
    scratch(path, sizeof path, "dev");
    return mknod(path, S_IFCHR | 0666, 0) ? errno : opened(path, O_RDWR);
}
ATTEMPT(dev_disk, ROOT, "open a disk of the host") { return device("/dev/loop0", O_RDONLY); }
ATTEMPT(dev_mem, ROOT, "open /dev/mem") { return device("/dev/mem", O_RDONLY); }
ATTEMPT(dev_kmsg, ROOT, "open /dev/kmsg") { return device("/dev/kmsg", O_RDONLY); }
ATTEMPT(dev_fuse, ROOT, "open /dev/fuse") { return device("/dev/fuse", O_RDWR); }
ATTEMPT(dev_tun, ROOT, "open /dev/net/tun") { return device("/dev/net/tun", O_RDWR); }
ATTEMPT(dev_kvm, ROOT, "open /dev/kvm") { return device("/dev/kvm", O_RDWR); }
ATTEMPT(dev_loop, ROOT, "open /dev/loop-control") { return device("/dev/loop-control", O_RDWR); }
ATTEMPT(dev_tty, ROOT, "open /dev/tty1") { return device("/dev/tty1", O_RDWR | O_NOCTTY); }
ATTEMPT(dev_vsock, ROOT, "open /dev/vsock") { return device("/dev/vsock", O_RDWR); }
ATTEMPT(dev_uffd, ROOT, "open /dev/userfaultfd") { return device("/dev/userfaultfd", O_RDWR); }
/* Inside, /dev/ptmx makes terminals of the sandbox's own: only one that exists already is somebody else's. */
ATTEMPT(dev_ptmx, ROOT, "open a terminal of the host") { return walled() ? device("/dev/pts/0", O_RDWR | O_NOCTTY) : device("/dev/ptmx", O_RDWR | O_NOCTTY); }

/* Bombs end at a bound of their own, beyond every limit of the sandbox. */
static int fills(const char *directory, long megabytes) {
    static char block[1 << 20];
    char path[4096];
    memset(block, 'x', sizeof block);
    snprintf(path, sizeof path, "%s/bomb.%d", directory, (int)getpid());
    int files = 0, error = 0;
    long written = 0;
    /* Several files, so that the bound of one file is not what stops it. */
    while (written < megabytes && !error) {
        char name[4200];
        snprintf(name, sizeof name, "%s.%d", path, files++);
        int fd = open(name, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
        if (fd < 0) { error = errno; break; }
        for (int i = 0; i < 4 && written < megabytes; i++, written++)
            if (write(fd, block, sizeof block) != (ssize_t)sizeof block) { error = errno ? errno : ENOSPC; break; }
        close(fd);
    }
    while (files--) { char name[4200]; snprintf(name, sizeof name, "%s.%d", path, files); unlink(name); }
    return error;
}
ATTEMPT(disk_bomb_tmp, USER, "fill /tmp beyond its size") { return fills(walled() ? "/tmp" : "/dev/shm", 80); }
ATTEMPT(disk_bomb_shm, USER, "fill /dev/shm beyond its size") { return fills("/dev/shm", 80); }
ATTEMPT(disk_bomb_home, USER, "fill the home in memory beyond its size") { return fills(walled() ? "/home/agent" : "/dev/shm", 80); }
ATTEMPT(file_bomb, USER, "one file in the workspace beyond the bound of a file") {
    char path[4096];
    scratch(path, sizeof path, "big");
    int fd = open(path, O_CREAT | O_WRONLY, 0600);
    int error = fd < 0 ? errno : result(pwrite(fd, "x", 1, 40 << 20));
    unlink(path);
    return error;
}
ATTEMPT(truncate_bomb, USER, "a sparse file beyond the bound of a file, by ftruncate") {
    char path[4096];
    scratch(path, sizeof path, "sparse");
    int error = result(ftruncate(open(path, O_CREAT | O_WRONLY, 0600), 40 << 20));
    unlink(path);
    return error;
}
static int inodes(const char *directory, int bound) {
    int made = 0, error = 0;
    char path[4096];
    for (; made < bound && !error; made++) {
        snprintf(path, sizeof path, "%s/inode.%d.%d", directory, (int)getpid(), made);
        error = opened(path, O_CREAT | O_WRONLY);
    }
    while (made--) { snprintf(path, sizeof path, "%s/inode.%d.%d", directory, (int)getpid(), made); unlink(path); }
    return error;
}
ATTEMPT(inode_bomb, USER, "more files in /tmp than it has inodes") { return inodes(walled() ? "/tmp" : "/dev/shm", 5000); }
ATTEMPT(inode_bomb_shm, USER, "more files in /dev/shm than it has inodes") { return inodes("/dev/shm", 5000); }
ATTEMPT(fd_bomb, USER, "more descriptors than the limit, raised if it can be") {
    struct rlimit limit = {4096, 4096};
    if (!walled()) setrlimit(RLIMIT_NOFILE, &limit);
    else { limit.rlim_cur = limit.rlim_max = 8192; setrlimit(RLIMIT_NOFILE, &limit); }
    for (int i = 0; i < 2048; i++)
        if (open("/dev/null", O_RDONLY) < 0) return errno;
    return 0;
}
ATTEMPT(inotify_host, USER, "watch another workspace") { return result(syscall(SYS_inotify_add_watch, (int)syscall(SYS_inotify_init1, 0), told("other"), 2)); }

static int leases(const char *path) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    return fd < 0 ? errno : result(fcntl(fd, F_SETLEASE, F_RDLCK));
}
ATTEMPT(lease_usr, ROOT, "a lease on a program of the host, which holds up who replaces it") { return leases("/usr/bin/env"); }
ATTEMPT(lease_marshal, ROOT, "a lease on the supervisor's binary (control: on a program)") { return leases(walled() ? "/run/marshal/marshal" : "/usr/bin/env"); }
/* What even root could not remove afterwards. */
static int flags(int flag) {
    char path[4096];
    scratch(path, sizeof path, "flags");
    int fd = open(path, O_CREAT | O_RDWR, 0600), now = 0;
    if (fd < 0 || ioctl(fd, 0x80086601, &now)) return errno;
    int then = now | flag, error = result(ioctl(fd, 0x40086602, &then));
    ioctl(fd, 0x40086602, &now);
    unlink(path);
    return error;
}
ATTEMPT(immutable_file, ROOT, "make a file immutable, so that it cannot be removed") { return flags(0x10); }
ATTEMPT(append_only_file, ROOT, "make a file append-only") { return flags(0x20); }
ATTEMPT(project_id, NONE, "leave the project of a quota by FS_IOC_FSSETXATTR (no control: needs a file system with projects)") {
    char path[4096];
    uint32_t attributes[7] = {0};
    scratch(path, sizeof path, "project");
    int fd = open(path, O_CREAT | O_RDWR, 0600);
    attributes[3] = 7;
    return fd < 0 ? errno : result(ioctl(fd, 0x401c5820, attributes));
}
ATTEMPT(signal_by_owner, ROOT, "have the kernel signal a process of the host (F_SETOWN)") { return result(fcntl(open("/dev/null", O_RDONLY), F_SETOWN, victim())); }

/* On a workspace that is shown read-only. */
#define WS(name) joined(told("scratch"), name)
ATTEMPT(ro_write, USER, "make a file in a read-only workspace") { return opened(WS("new"), O_CREAT | O_WRONLY); }
ATTEMPT(ro_git_hook, USER, "plant a git hook there") { return opened(WS(".git/hooks/pre-commit"), O_CREAT | O_WRONLY); }
ATTEMPT(ro_git_config, USER, "append to .git/config") { return opened(WS(".git/config"), O_WRONLY | O_APPEND); }
ATTEMPT(ro_git_attributes, USER, "plant .git/info/attributes") { return opened(WS(".git/info/attributes"), O_CREAT | O_WRONLY); }
ATTEMPT(ro_gitmodules, USER, "plant .gitmodules") { return opened(WS(".gitmodules"), O_CREAT | O_WRONLY); }
ATTEMPT(ro_mcp_json, USER, "plant .mcp.json") { return opened(WS(".mcp.json"), O_CREAT | O_WRONLY); }
ATTEMPT(ro_mkdir, USER, "make .claude there") { return result(mkdir(WS(".claude"), 0755)); }
ATTEMPT(ro_rename, USER, "rename a file there") { return result(rename(WS("file"), WS("renamed"))); }
ATTEMPT(ro_link, USER, "make a hard link there") { return result(link(WS("other"), WS("linked"))); }
ATTEMPT(ro_symlink, USER, "make a link there") { return result(symlink("/etc", WS("etc"))); }
ATTEMPT(ro_chmod, USER, "change a mode there") { return result(chmod(WS("other"), 0777)); }
ATTEMPT(ro_xattr, USER, "set an attribute there") { return result(setxattr(WS("other"), "user.x", "x", 1, 0)); }
ATTEMPT(ro_utimes, USER, "change a time there") { return result(utimensat(AT_FDCWD, WS("other"), NULL, 0)); }
ATTEMPT(ro_truncate, USER, "truncate a file there") { return result(truncate(WS("other"), 0)); }
ATTEMPT(ro_mmap, USER, "map a file there shared and writable") {
    int fd = open(WS("other"), O_RDWR);
    return fd < 0 ? errno : mmap(NULL, 1, PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED ? errno : 0;
}
ATTEMPT(ro_unlink, USER, "remove a file there") { return result(unlink(WS("other"))); }
