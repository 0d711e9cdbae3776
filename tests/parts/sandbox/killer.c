/* Runs a supervisor and kills it when its helpers make their Nth call that matters, or when it makes
 * that call itself while it starts them.
 *
 *   killer helpers|spawner N PROGRAM [ARGUMENT...]
 *
 * Every thread and process below is traced, so that it stands still while the supervisor dies; then
 * all go on without a tracer. Calls are counted in helpers only, from a helper's first instruction
 * until the agent's program runs; calls that change nothing (memory, reading, signals) are not
 * counted. With "spawner" those of the supervisor's thread of that name are, from its beginning.
 * Prints the call, the supervisor's pid, the pids that were seen and the namespaces that they are in
 * and it is not, and ends. With an N that is never reached it kills when the agent runs and prints
 * "past COUNT". */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <linux/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SEEN = 4096 };
static struct { pid_t tid; int helper; } seen[SEEN];
static int count_seen;

static int silent(unsigned long nr) {
    switch (nr) {
    case SYS_read: case SYS_mmap: case SYS_munmap: case SYS_mprotect: case SYS_brk:
    case SYS_mremap: case SYS_madvise: case SYS_fstat: case SYS_lseek: case SYS_pread64:
    case SYS_rt_sigaction: case SYS_rt_sigprocmask: case SYS_sigaltstack: case SYS_futex:
    case SYS_getrandom: case SYS_set_robust_list: case SYS_rseq: case SYS_set_tid_address:
    case SYS_fcntl: case SYS_getpid: case SYS_gettid: case SYS_getppid: case SYS_getuid:
    case SYS_geteuid: case SYS_getgid: case SYS_getegid: case SYS_sched_getaffinity:
    case SYS_newfstatat: case SYS_getdents64: case SYS_statx:
#ifdef SYS_arch_prctl
    case SYS_arch_prctl: case SYS_access: case SYS_poll: case SYS_readlink:
#endif
        return 1;
    }
    return 0;
}

static int *helper(pid_t tid) {
    for (int at = 0; at < count_seen; at++)
        if (seen[at].tid == tid) return &seen[at].helper;
    if (count_seen == SEEN) exit(9);
    seen[count_seen].tid = tid;
    seen[count_seen].helper = -1;
    return &seen[count_seen++].helper;
}

/* Whether a thread is none of the supervisor's. */
static int is_helper(pid_t tid, pid_t supervisor) {
    char path[64], line[256];
    snprintf(path, sizeof path, "/proc/%d/status", tid);
    FILE *status = fopen(path, "r");
    int group = supervisor;
    while (status && fgets(line, sizeof line, status))
        if (sscanf(line, "Tgid: %d", &group) == 1) break;
    if (status) fclose(status);
    return group != supervisor;
}

static int runs(pid_t pid, const char *name) {
    char path[64], comm[64] = "";
    snprintf(path, sizeof path, "/proc/%d/comm", pid);
    FILE *file = fopen(path, "r");
    if (file) { if (fscanf(file, "%63s", comm) != 1) comm[0] = 0; fclose(file); }
    return strcmp(comm, name) == 0;
}

static void namespaces(pid_t pid, pid_t supervisor) {
    static const char *const names[] = {"mnt", "pid", "net", "user", "pid_for_children"};
    for (unsigned at = 0; at < sizeof names / sizeof *names; at++) {
        char path[64], of[64] = "", own[64] = "";
        snprintf(path, sizeof path, "/proc/%d/ns/%s", pid, names[at]);
        if (readlink(path, of, sizeof of - 1) <= 0) continue;
        snprintf(path, sizeof path, "/proc/%d/ns/%s", supervisor, names[at]);
        if (readlink(path, own, sizeof own - 1) <= 0) continue;
        if (strcmp(of, own)) printf("ns %s\n", of);
    }
}

/* Who is traced begins with a stop of its own. If the tracer ends before it has seen that stop, nobody ends it. */
static void cancel_stops(pid_t supervisor) {
    pid_t own = getpid();
    for (int pass = 0; pass < 2; pass++) {
        DIR *all = opendir("/proc");
        struct dirent *entry;
        while (all && (entry = readdir(all))) {
            char path[300], line[256];
            pid_t pid = atoi(entry->d_name), tracer = 0;
            if (pid <= 0 || pid == supervisor) continue;
            snprintf(path, sizeof path, "/proc/%d/status", pid);
            FILE *status = fopen(path, "r");
            while (status && fgets(line, sizeof line, status))
                if (sscanf(line, "TracerPid: %d", &tracer) == 1) break;
            if (status) fclose(status);
            if (tracer == own) kill(pid, SIGCONT);
        }
        if (all) closedir(all);
    }
}

static void finish(pid_t supervisor) {
    printf("supervisor %d\n", supervisor);
    for (int at = 0; at < count_seen; at++)
        if (seen[at].helper == 1) {
            printf("pid %d\n", seen[at].tid);
            namespaces(seen[at].tid, supervisor);
        }
    kill(supervisor, SIGKILL);
    fflush(stdout);
    cancel_stops(supervisor);
    /* The end of a tracer lets go of all. */
    _exit(0);
}

int main(int argc, char **argv) {
    if (argc < 4) return 2;
    int own = strcmp(argv[1], "spawner") == 0;
    long wanted = atol(argv[2]), counted = 0;
    pid_t supervisor = fork();
    if (supervisor == 0) {
        ptrace(PTRACE_TRACEME, 0, 0, 0);
        raise(SIGSTOP);
        execv(argv[3], argv + 3);
        _exit(127);
    }
    int status;
    if (waitpid(supervisor, &status, 0) != supervisor) return 3;
    long options = PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK |
                   PTRACE_O_TRACECLONE | PTRACE_O_TRACEEXEC;
    if (ptrace(PTRACE_SETOPTIONS, supervisor, 0, options)) return 4;
    *helper(supervisor) = 0;
    ptrace(PTRACE_CONT, supervisor, 0, 0);
    for (;;) {
        pid_t tid = waitpid(-1, &status, __WALL);
        if (tid < 0) return 5;
        if (WIFEXITED(status) || WIFSIGNALED(status)) {
            if (tid == supervisor) return 6;
            continue;
        }
        int signal = WSTOPSIG(status), event = status >> 16, deliver = 0;
        int *kind = helper(tid);
        if (*kind < 0) *kind = is_helper(tid, supervisor);
        if (signal == (SIGTRAP | 0x80)) {
            struct ptrace_syscall_info info;
            memset(&info, 0, sizeof info);
            ptrace(PTRACE_GET_SYSCALL_INFO, tid, sizeof info, &info);
            if (info.op == PTRACE_SYSCALL_INFO_ENTRY && !silent(info.entry.nr) &&
                (own ? *kind == 0 && runs(tid, "spawner") : *kind == 1) &&
                ++counted == wanted) {
                printf("call %llu\n", (unsigned long long)info.entry.nr);
                finish(supervisor);
            }
        } else if (event == PTRACE_EVENT_EXEC) {
            if (*kind == 1 && runs(tid, "sleep")) {
                printf("past %ld\n", counted);
                finish(supervisor);
            }
        } else if (event == 0 && signal != SIGSTOP && signal != SIGTRAP) {
            deliver = signal;
        }
        ptrace(own || *kind == 1 ? PTRACE_SYSCALL : PTRACE_CONT, tid, 0, deliver);
    }
}
