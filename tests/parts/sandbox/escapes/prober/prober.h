/* The prober: tries to get out, and says of each attempt what came of it.
 *
 * One program for inside and outside: inside a sandbox every attempt is to fail, and without them the
 * same code is to succeed, which shows that an attempt tries what it says. */
#ifndef PROBER_H
#define PROBER_H
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

/* What an attempt gives: 0 it got through, above 0 the errno that stopped it, SAID the text of say(). */
#define SAID (-1)
typedef int attempt(void);

/* Where the positive control of an attempt runs: as root, or as an ordinary user, in throwaway
 * namespaces without a sandbox; PERMISSION as root too, where success would harm: there another errno than a
 * refusal shows that the call got past the check; NONE: nothing on this side proves it, the text says why. */
enum control { ROOT, USER, PERMISSION, NONE };

void add(const char *name, enum control control, const char *what, attempt *run);
#define ATTEMPT(name, control, what)                                     \
    static int name(void);                                               \
    static __attribute__((constructor)) void name##_(void) { add(#name, control, what, name); } \
    static int name(void)

/* What the test told: key=value arguments; "" if it did not. */
const char *told(const char *key);
long told_number(const char *key);
/* Inside a sandbox, or a control. */
int walled(void);
int say(const char *format, ...) __attribute__((format(printf, 1, 2)));
const char *joined(const char *directory, const char *name);

static inline int result(long r) { return r < 0 ? errno : 0; }
static inline int opened(const char *path, int flags) {
    int fd = open(path, flags | O_CLOEXEC, 0600);
    if (fd < 0) return errno;
    close(fd);
    return 0;
}
/* Read of a file that holds the secret. */
int reads(const char *path, const char *secret);
/* A child of the prober's that waits, for controls; inside a sandbox the host's, or pid 1. */
pid_t victim(void);
/* The process that started the prober. */
pid_t starter(void);
void scratch(char *path, size_t size, const char *name);
#endif
