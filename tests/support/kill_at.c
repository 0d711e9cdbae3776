/* kill_at N PROGRAM ARG...: runs PROGRAM, and kills it before its N-th system call that could
 * change a file and leave something behind. Exits 77 if it killed, else with the program's own
 * code. With AT_RUN in the environment the program is not killed: a shell runs that command while
 * the program is stopped, then the program continues. Its own children are not followed. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <fcntl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

static int changes(long number, unsigned long long flags)
{
    switch (number) {
    case SYS_renameat2: case SYS_renameat: case SYS_rename:
    case SYS_unlinkat: case SYS_unlink: case SYS_rmdir:
    case SYS_mkdirat: case SYS_mkdir: case SYS_symlinkat:
    case SYS_fchmod: case SYS_fchmodat: case SYS_fchown: case SYS_fchownat:
    case SYS_fsync: case SYS_fdatasync: case SYS_ftruncate:
    case SYS_write: case SYS_copy_file_range: case SYS_sendfile:
        return 1;
    case SYS_openat:
        return (flags & O_CREAT) != 0;
    default:
        return 0;
    }
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    long left = atol(argv[1]);
    pid_t child = fork();
    if (child == 0) {
        ptrace(PTRACE_TRACEME, 0, 0, 0);
        raise(SIGSTOP);
        execv(argv[2], argv + 2);
        _exit(127);
    }
    int status, entering = 1;
    waitpid(child, &status, 0);
    ptrace(PTRACE_SETOPTIONS, child, 0, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL);
    int signal = 0;
    for (;;) {
        ptrace(PTRACE_SYSCALL, child, 0, signal);
        signal = 0;
        if (waitpid(child, &status, 0) < 0)
            return 3;
        if (WIFEXITED(status))
            return WEXITSTATUS(status);
        if (WIFSIGNALED(status))
            return 128 + WTERMSIG(status);
        if (!WIFSTOPPED(status))
            continue;
        if (WSTOPSIG(status) != (SIGTRAP | 0x80)) {
            if (WSTOPSIG(status) != SIGTRAP)
                signal = WSTOPSIG(status);
            continue;
        }
        if (entering) {
            struct user_regs_struct regs;
            ptrace(PTRACE_GETREGS, child, 0, &regs);
            if (changes((long)regs.orig_rax, regs.rdx) && --left == 0) {
                const char *run = getenv("AT_RUN");
                if (run) {
                    if (system(run) == -1)
                        return 4;
                    entering = 0;
                    continue;
                }
                kill(child, SIGKILL);
                waitpid(child, &status, 0);
                return 77;
            }
        }
        entering = !entering;
    }
}
