/* A terminal: what can be typed into it by who only has it. */
#include "prober.h"

/* Begins a session with the terminal words[0] as its own, and runs the rest there. */
int terminal(char **words) {
    setsid();
    int fd = open(words[0], O_RDWR);
    if (fd < 0) return 1;
    dup2(fd, 0), dup2(fd, 1), dup2(fd, 2);
    if (fd > 2) close(fd);
    execvp(words[1], words + 1);
    return 1;
}

/* At every descriptor and name that could lead to it; what was typed must then be there to read. */
static int at_each(unsigned long request, void *argument) {
    int error = 0;
    for (int fd = 0; fd < 3; fd++) {
        if (syscall(SYS_ioctl, fd, request, argument) == 0) return 0;
        error = errno;
    }
    const char *names[] = {"/dev/tty", told("terminal"), "/dev/console"};
    for (int i = 0; i < 3; i++) {
        int fd = open(names[i], O_RDWR | O_NOCTTY | O_NONBLOCK);
        if (fd >= 0 && syscall(SYS_ioctl, fd, request, argument) == 0) return 0;
        if (fd >= 0) error = errno;
    }
    return error;
}
ATTEMPT(tty_tiocsti, USER, "type into the terminal of whoever started this, by TIOCSTI") { char key = '#'; return at_each(TIOCSTI, &key); }
ATTEMPT(tty_tiocsti_high, USER, "the same with bits above 32 in the request") { char key = '#'; return at_each(0x100000000UL | TIOCSTI, &key); }
ATTEMPT(tty_tioclinux, NONE, "paste by TIOCLINUX (no control: for the console only)") { char paste = 3; return at_each(TIOCLINUX, &paste); }
ATTEMPT(tty_sctty, NONE, "take the terminal (no control: it is somebody's)") { setsid(); return at_each(TIOCSCTTY, (void *)1); }
ATTEMPT(tty_foreground, USER, "be the terminal's foreground") { pid_t group = getpgrp(); signal(SIGTTOU, SIG_IGN); return at_each(TIOCSPGRP, &group); }
