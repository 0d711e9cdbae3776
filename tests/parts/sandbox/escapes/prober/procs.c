/* Other processes, own powers, limits, and bombs of processes and memory. */
#include "prober.h"
#include <linux/capability.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <mqueue.h>
#include <sys/timex.h>

#define SECRET told("secret")
static int of(pid_t pid, const char *file) {
    char path[128];
    snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, file);
    return reads(path, SECRET);
}
/* Inside a sandbox pid 1 holds the lines to the supervisor; the control takes a process that it may have. */
static pid_t target(void) { return walled() ? 1 : victim(); }

ATTEMPT(environ_victim, ROOT, "environment of a process of the host") { return of(victim(), "environ"); }
ATTEMPT(environ_pid1, ROOT, "environment of pid 1 (control: of a victim)") { return of(target(), "environ"); }
ATTEMPT(environ_parent, ROOT, "environment of the parent (control: of a victim)") { return of(walled() ? starter() : victim(), "environ"); }
ATTEMPT(environ_all, ROOT, "a secret in any environment that can be seen") {
    DIR *directory = opendir("/proc");
    struct dirent *entry;
    int error = ENOENT;
    while (directory && (entry = readdir(directory))) {
        pid_t pid = (pid_t)atol(entry->d_name);
        if (pid > 0) { int now = of(pid, "environ"); if (now == 0) return 0; if (now > 0) error = now; }
    }
    return error == ENOENT ? say("no secret") : error;
}
ATTEMPT(cmdlines, ROOT, "a secret in any command line that can be seen") {
    DIR *directory = opendir("/proc");
    struct dirent *entry;
    while (directory && (entry = readdir(directory))) {
        pid_t pid = (pid_t)atol(entry->d_name);
        /* This one was told the secret itself, and what started it too. */
        if (pid > 0 && pid != getpid() && pid != getppid() && of(pid, "cmdline") == 0) {
            char path[64], text[4096] = "";
            snprintf(path, sizeof path, "/proc/%d/cmdline", (int)pid);
            int fd = open(path, O_RDONLY);
            if (read(fd, text, sizeof text - 1) > 0 && !strcmp(text, "victim")) return 0;
        }
    }
    return say("none seen");
}
ATTEMPT(proc_1_fds, ROOT, "list descriptors of pid 1 (control: of a victim)") { return opened(joined("/proc", joined(walled() ? "1" : told("victim"), "fd")), O_RDONLY | O_DIRECTORY); }
ATTEMPT(proc_1_maps, ROOT, "addresses of pid 1 (control: of a victim)") { return walled() ? of(1, "maps") : opened(joined("/proc", joined(told("victim"), "maps")), O_RDONLY); }
ATTEMPT(proc_mem, ROOT, "open the memory of pid 1 for writing (control: of a victim)") { return opened(joined("/proc", joined(walled() ? "1" : told("victim"), "mem")), O_RDWR); }
ATTEMPT(proc_mem_victim, ROOT, "open the memory of a process of the host") { return opened(joined("/proc", joined(told("victim"), "mem")), O_RDWR); }
ATTEMPT(ptrace_victim, ROOT, "trace a process of the host") { return result(ptrace(PTRACE_SEIZE, victim(), 0, 0)); }
ATTEMPT(ptrace_pid1, ROOT, "trace pid 1 (control: a victim)") { return result(ptrace(PTRACE_SEIZE, target(), 0, 0)); }
ATTEMPT(ptrace_attach, ROOT, "attach to pid 1 (control: to a victim)") { return result(ptrace(PTRACE_ATTACH, target(), 0, 0)); }
ATTEMPT(kill_victim, ROOT, "signal a process of the host") { return result(kill(victim(), SIGCONT)); }
ATTEMPT(kill_group, ROOT, "signal a process group of the host") { return result(kill(-victim(), SIGCONT)); }
ATTEMPT(pidfd_signal, ROOT, "signal a process of the host by a pidfd") {
    int fd = (int)syscall(SYS_pidfd_open, victim(), 0);
    return fd < 0 ? errno : result(syscall(SYS_pidfd_send_signal, fd, SIGCONT, NULL, 0));
}
ATTEMPT(kill_pid1, ROOT, "kill pid 1, which watches (control: kill a process)") {
    if (!walled()) {
        int status;
        pid_t child = fork();
        if (!child) for (;;) pause();
        kill(child, SIGKILL);
        waitpid(child, &status, 0);
        return WIFSIGNALED(status) ? 0 : EIO;
    }
    if (kill(1, SIGKILL)) return errno;
    kill(1, SIGTERM), kill(1, SIGSTOP), kill(1, SIGSEGV);
    usleep(200000);
    return say("no effect");
}
ATTEMPT(process_vm_read, ROOT, "process_vm_readv of pid 1 (control: of a victim)") {
    char byte, own[8];
    struct iovec to = {own, 1}, from = {walled() ? (void *)0x400000 : (void *)&byte, 1};
    int error = process_vm_readv(target(), &to, 1, &from, 1, 0) < 0 ? errno : 0;
    return !walled() && error == EFAULT ? 0 : error;
}
ATTEMPT(process_vm_write, ROOT, "process_vm_writev to a process of the host") {
    char byte = 0;
    struct iovec one = {&byte, 1};
    int error = process_vm_writev(victim(), &one, 1, &one, 1, 0) < 0 ? errno : 0;
    return !walled() && error == EFAULT ? 0 : error;
}
static int takes(pid_t pid, int most) {
    int fd = (int)syscall(SYS_pidfd_open, pid, 0), error = EBADF;
    if (fd < 0) return errno;
    for (int number = 0; number < most; number++) {
        if (syscall(SYS_pidfd_getfd, fd, number, 0) >= 0) return 0;
        if (errno != EBADF) error = errno;
    }
    return error;
}
ATTEMPT(pidfd_getfd_pid1, ROOT, "take the control socket, link or door from pid 1 (control: a socket of a victim)") { return takes(target(), 16); }
ATTEMPT(pidfd_getfd_victim, ROOT, "take a socket of a process of the host") { return takes(victim(), 1); }
ATTEMPT(kcmp_pid1, ROOT, "compare with pid 1 by kcmp (control: with a victim)") { return result(syscall(SYS_kcmp, getpid(), target(), 2, 0, 0)); }
ATTEMPT(prlimit_victim, ROOT, "limits of a process of the host") { struct rlimit now; return result(prlimit(victim(), RLIMIT_NOFILE, NULL, &now)); }
ATTEMPT(prlimit_pid1, ROOT, "limits of pid 1 (control: of a victim)") {
    struct rlimit limit;
    if (prlimit(target(), RLIMIT_NOFILE, NULL, &limit)) return errno;
    return result(prlimit(target(), RLIMIT_NOFILE, &limit, NULL));
}
ATTEMPT(setpriority_victim, ROOT, "priority of a process of the host") { return result(setpriority(PRIO_PROCESS, (id_t)victim(), 5)); }
ATTEMPT(affinity_victim, ROOT, "processors of a process of the host") { cpu_set_t set; CPU_ZERO(&set); CPU_SET(0, &set); return result(sched_setaffinity(victim(), sizeof set, &set)); }
ATTEMPT(session_victim, ROOT, "the session of a process of the host") { return result(getsid(victim())); }
ATTEMPT(pgrp_victim, PERMISSION, "join its process group") { int error = result(setpgid(0, victim())); return walled() ? error : 0; }
ATTEMPT(move_pages_pid1, ROOT, "pages of pid 1 by move_pages (control: of a victim)") { return result(syscall(SYS_move_pages, target(), 0, NULL, NULL, NULL, 0)); }
ATTEMPT(process_madvise_pid1, ROOT, "process_madvise of pid 1 (control: of a victim)") {
    int fd = (int)syscall(SYS_pidfd_open, target(), 0);
    struct iovec none = {NULL, 0};
    return result(syscall(440, fd, &none, 1, 20, 0));
}
ATTEMPT(perf_pid1, ROOT, "perf_event_open of any process") {
    uint32_t attributes[32] = {1, 128, 0};
    attributes[10] = 0;
    return result(syscall(SYS_perf_event_open, attributes, target(), -1, -1, 0));
}

/* Own powers. */
ATTEMPT(caps_any, ROOT, "any capability in any set") {
    char line[256], name[32];
    unsigned long long bits, all = 0;
    FILE *status = fopen("/proc/self/status", "r");
    while (status && fgets(line, sizeof line, status))
        if (sscanf(line, "Cap%31[A-Za-z]: %llx", name, &bits) == 2) all |= bits;
    return all ? say("%llx", all), 0 : say("none");
}
ATTEMPT(caps_raise, ROOT, "raise a capability by capset") {
    struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct data[2] = {{1u << CAP_SYS_ADMIN, 1u << CAP_SYS_ADMIN, 0}, {0, 0, 0}};
    return result(syscall(SYS_capset, &head, data));
}
ATTEMPT(caps_ambient, ROOT, "raise an ambient capability") {
    struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct data[2];
    syscall(SYS_capget, &head, data);
    data[0].inheritable |= 1;
    syscall(SYS_capset, &head, data);
    return result(prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, 0, 0, 0));
}
ATTEMPT(no_new_privs, USER, "no_new_privs is off") { return prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) ? say("on") : 0; }
ATTEMPT(no_new_privs_off, NONE, "switch no_new_privs off (no control: nobody can)") { return result(prctl(PR_SET_NO_NEW_PRIVS, 0, 0, 0, 0)); }
ATTEMPT(seccomp_off, NONE, "switch the filter off (no control: nobody can)") {
    int error = result(prctl(PR_SET_SECCOMP, 0, 0, 0, 0));
    return error;
}
ATTEMPT(seccomp_restack, USER, "a filter of its own that allows everything, with an answerer, then a user namespace") {
    struct { uint16_t code; uint8_t jt, jf; uint32_t k; } filter[] = {{0x06, 0, 0, 0x7fff0000}};
    struct { uint16_t length; void *filter; } program = {1, filter};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    syscall(SYS_seccomp, 1, 8, &program);
    return result(unshare(CLONE_NEWUSER));
}
ATTEMPT(setuid_root, ROOT, "become uid 0") { return result(setresuid(0, 0, 0)); }
ATTEMPT(setuid_other, ROOT, "become another slot's uid") { return result(setresuid(1001, 1001, 1001)); }
ATTEMPT(setgroups_any, ROOT, "take groups") { gid_t group = 0; return result(syscall(SYS_setgroups, 1, &group)); }
ATTEMPT(setfsuid_root, ROOT, "be uid 0 for files") { syscall(SYS_setfsuid, 0); return syscall(SYS_setfsuid, -1) == 0 ? 0 : say("unchanged"); }
ATTEMPT(uid_map_write, ROOT, "write the own uid map again (control: of a new namespace)") {
    if (!walled() && unshare(CLONE_NEWUSER)) return errno;
    int fd = open("/proc/self/uid_map", O_WRONLY);
    return fd < 0 ? errno : result(write(fd, "0 0 1\n", 6));
}
ATTEMPT(securebits, ROOT, "set securebits") { return result(prctl(PR_SET_SECUREBITS, 1, 0, 0, 0)); }
ATTEMPT(prctl_mm, NONE, "change the memory map by PR_SET_MM (no control: needs CAP_SYS_RESOURCE, which not every root has)") { return result(prctl(PR_SET_MM, PR_SET_MM_BRK, 1, 0, 0)); }
ATTEMPT(personality_aslr, USER, "switch address randomisation off") { return result(syscall(SYS_personality, 0x0040000)); }
ATTEMPT(rlimit_raise, ROOT, "raise a hard limit") {
    struct rlimit now;
    getrlimit(RLIMIT_NOFILE, &now);
    if (!walled()) { now.rlim_cur = now.rlim_max = now.rlim_max / 2; setrlimit(RLIMIT_NOFILE, &now); now.rlim_max -= 1; now.rlim_cur -= 1; return result(setrlimit(RLIMIT_NOFILE, &now)); }
    now.rlim_max += 1;
    return result(setrlimit(RLIMIT_NOFILE, &now));
}
ATTEMPT(core_limit, USER, "a core dump of more than 0 bytes") { struct rlimit one = {1 << 20, 1 << 20}; return result(setrlimit(RLIMIT_CORE, &one)); }
ATTEMPT(core_dump, NONE, "leave a core dump (no control: where it goes is the host's)") {
    int status;
    pid_t child = fork();
    if (!child) { prctl(PR_SET_DUMPABLE, 1, 0, 0, 0); abort(); }
    waitpid(child, &status, 0);
    return WCOREDUMP(status) ? 0 : say("not dumped");
}
ATTEMPT(sched_rt, ROOT, "real-time priority") { struct sched_param it = {1}; int error = result(sched_setscheduler(0, SCHED_FIFO, &it)); return error; }
ATTEMPT(nice_up, ROOT, "a better nice value") { errno = 0; return nice(-5) == -1 && errno ? errno : 0; }
ATTEMPT(ioprio_rt, ROOT, "real-time priority of IO") { return result(syscall(SYS_ioprio_set, 1, 0, 1 << 13)); }
ATTEMPT(memfd_setuid, NONE, "run a set-uid memfd (no control: it would have the own uid)") {
    int fd = (int)syscall(SYS_memfd_create, "x", 0);
    return fd < 0 ? errno : result(fchmod(fd, 06755));
}
/* The host's IPC. */
ATTEMPT(ipc_shm, ROOT, "System V memory of the host") { return shmat((int)told_number("shm"), NULL, 0) == (void *)-1 ? errno : 0; }
ATTEMPT(ipc_sem, ROOT, "System V semaphores of the host") { struct sembuf one = {0, 1, IPC_NOWAIT}; return result(semop((int)told_number("sem"), &one, 1)); }
ATTEMPT(ipc_msg, ROOT, "System V messages of the host") { struct { long type; char text[1]; } one = {1, {0}}; return result(msgsnd((int)told_number("msg"), &one, 1, IPC_NOWAIT)); }
ATTEMPT(ipc_mq, ROOT, "a POSIX queue of the host") { char name[64]; snprintf(name, 64, "/marshal-%s", SECRET); return result(mq_open(name, O_RDWR)); }
ATTEMPT(ipc_dev_shm, ROOT, "shared memory of the host in /dev/shm") { char name[128]; snprintf(name, 128, "/dev/shm/marshal-%s", SECRET); return opened(name, O_RDWR); }
ATTEMPT(keyctl_session, USER, "the session keyring") { return result(syscall(SYS_keyctl, 0, -3, 1)); }
ATTEMPT(keyctl_join, USER, "join a keyring by name") { return result(syscall(SYS_keyctl, 1, "marshal")); }
ATTEMPT(add_key_user, USER, "add a key to the user's keyring, which outlives the sandbox") { return result(syscall(SYS_add_key, "user", "marshal", "x", 1, -4)); }
ATTEMPT(request_key_user, PERMISSION, "request_key, which can start a program of the host") { int error = result(syscall(SYS_request_key, "user", "marshal-none", NULL, 0)); return walled() || error == EPERM ? error : 0; }

/* Bombs: bounded here, beyond every limit of the sandbox. */
ATTEMPT(fork_bomb, USER, "400 processes at once") {
    static pid_t children[400];
    int made = 0, error = 0;
    for (; made < 400; made++) {
        pid_t child = fork();
        if (child < 0) { error = errno; break; }
        if (!child) { alarm(15); for (;;) pause(); }
        children[made] = child;
    }
    for (int i = 0; i < made; i++) kill(children[i], SIGKILL);
    for (int i = 0; i < made; i++) waitpid(children[i], NULL, 0);
    return error;
}
ATTEMPT(memory_bomb, USER, "touch 400 MB") {
    int status;
    pid_t child = fork();
    if (child < 0) return errno;
    if (!child) {
        long bytes = 400L << 20;
        char *room = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (room == MAP_FAILED) _exit(1);
        for (long i = 0; i < bytes; i += 4096) room[i] = 1;
        _exit(0);
    }
    waitpid(child, &status, 0);
    if (WIFSIGNALED(status)) return say("SIG%s", sigabbrev_np(WTERMSIG(status)));
    return WEXITSTATUS(status) ? ENOMEM : 0;
}
