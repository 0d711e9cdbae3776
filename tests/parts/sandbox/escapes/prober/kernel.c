/* Ways into the kernel beside files, and the network. */
#include "prober.h"
#include <linux/if_packet.h>
#include <linux/netlink.h>
#include <net/ethernet.h>
#include <netinet/in.h>
#include <sys/timex.h>

static int dials(const char *address, int port) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    memcpy(&to.sin_addr, address, 4);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0) return errno;
    struct timeval wait = {3, 0};
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof wait);
    return result(connect(fd, (void *)&to, sizeof to));
}
#define PORT ((int)told_number("port"))
ATTEMPT(tcp_loopback, ROOT, "a port of the host's loopback") { return dials("\x7f\0\0\1", PORT); }
ATTEMPT(tcp_metadata, ROOT, "the metadata address") { return dials("\xa9\xfe\xa9\xfe", PORT); }
ATTEMPT(tcp_external, ROOT, "an address of the internet") { return dials("\1\1\1\1", PORT); }
ATTEMPT(udp_external, ROOT, "a datagram to the internet") {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(53)};
    memcpy(&to.sin_addr, "\1\1\1\1", 4);
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    return fd < 0 ? errno : result(sendto(fd, "x", 1, 0, (void *)&to, sizeof to));
}
ATTEMPT(tcp_ipv6_external, NONE, "an address of the internet, IPv6 (no control: no route here)") {
    struct sockaddr_in6 to = {.sin6_family = AF_INET6, .sin6_port = htons(443), .sin6_addr = {{{0x20, 1, 0x48, 0x60, 0x48, 0x60, [15] = 0x88}}}};
    int fd = socket(AF_INET6, SOCK_STREAM, 0);
    return fd < 0 ? errno : result(connect(fd, (void *)&to, sizeof to));
}
ATTEMPT(unix_abstract, ROOT, "an abstract socket of the host") {
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    int bytes = snprintf(to.sun_path + 1, sizeof to.sun_path - 1, "marshal-decoy-%s", told("secret"));
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    return fd < 0 ? errno : result(connect(fd, (void *)&to, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)bytes)));
}
static int connects(const char *path) {
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    snprintf(to.sun_path, sizeof to.sun_path, "%s", path);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    return fd < 0 ? errno : result(connect(fd, (void *)&to, sizeof to));
}
ATTEMPT(unix_path, ROOT, "a socket of the host by its path") { return connects(joined(told("state"), "decoy.sock")); }
ATTEMPT(service_socket, USER, "a socket of the host in a workspace that is shown itself") { return connects(joined(told("scratch"), "service.sock")); }
ATTEMPT(engine_socket, NONE, "a container engine's socket (no control: none runs here; unix_path is the same call)") {
    static const char *paths[] = {"/run/docker.sock", "/var/run/docker.sock", "/run/podman/podman.sock", "/run/containerd/containerd.sock", "/run/dbus/system_bus_socket", "/run/systemd/private"};
    int error = 0;
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) { error = connects(paths[i]); if (!error) break; }
    return error;
}
ATTEMPT(rights_to_outside, ROOT, "hand a descriptor to somebody outside by an abstract socket") {
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    int bytes = snprintf(to.sun_path + 1, sizeof to.sun_path - 1, "marshal-decoy-%s", told("secret"));
    int fd = socket(AF_UNIX, SOCK_STREAM, 0), sent = open("/", O_RDONLY);
    if (fd < 0) return errno;
    if (connect(fd, (void *)&to, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)bytes))) return errno;
    char room[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec one = {"x", 1};
    struct msghdr message = {.msg_iov = &one, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET, head->cmsg_type = SCM_RIGHTS, head->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(head), &sent, sizeof sent);
    return result(sendmsg(fd, &message, 0));
}
ATTEMPT(forged_credentials, ROOT, "send credentials of uid 0") {
    int ends[2], on = 1;
    if (socketpair(AF_UNIX, SOCK_DGRAM, 0, ends)) return errno;
    setsockopt(ends[1], SOL_SOCKET, SO_PASSCRED, &on, sizeof on);
    struct ucred who = {getpid(), walled() ? 0 : 12345, walled() ? 0 : 12345};
    char room[CMSG_SPACE(sizeof who)] = {0};
    struct iovec one = {"x", 1};
    struct msghdr message = {.msg_iov = &one, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET, head->cmsg_type = SCM_CREDENTIALS, head->cmsg_len = CMSG_LEN(sizeof who);
    memcpy(CMSG_DATA(head), &who, sizeof who);
    return result(sendmsg(ends[0], &message, 0));
}
#define SOCKET(name, control, family, type, protocol) ATTEMPT(socket_##name, control, "a socket: " #family ", " #type) { return result(socket(family, type, protocol)); }
SOCKET(packet, ROOT, AF_PACKET, SOCK_RAW, htons(ETH_P_ALL))
SOCKET(packet_dgram, ROOT, AF_PACKET, SOCK_DGRAM, htons(ETH_P_ALL))
SOCKET(raw, ROOT, AF_INET, SOCK_RAW, IPPROTO_ICMP)
SOCKET(raw6, ROOT, AF_INET6, SOCK_RAW, IPPROTO_ICMPV6)
SOCKET(vsock, USER, AF_VSOCK, SOCK_STREAM, 0)
SOCKET(vsock_dgram, USER, AF_VSOCK, SOCK_DGRAM, 0)
SOCKET(alg, USER, AF_ALG, SOCK_SEQPACKET, 0)
SOCKET(audit, USER, AF_NETLINK, SOCK_RAW, NETLINK_AUDIT)
SOCKET(uevent, USER, AF_NETLINK, SOCK_RAW, NETLINK_KOBJECT_UEVENT)
SOCKET(netfilter, USER, AF_NETLINK, SOCK_RAW, NETLINK_NETFILTER)
SOCKET(generic, USER, AF_NETLINK, SOCK_RAW, NETLINK_GENERIC)
SOCKET(sock_diag, USER, AF_NETLINK, SOCK_RAW, NETLINK_SOCK_DIAG)
SOCKET(connector, USER, AF_NETLINK, SOCK_DGRAM, NETLINK_CONNECTOR)
SOCKET(crypto, USER, AF_NETLINK, SOCK_RAW, NETLINK_CRYPTO)
SOCKET(xfrm, USER, AF_NETLINK, SOCK_RAW, NETLINK_XFRM)
SOCKET(key, ROOT, AF_KEY, SOCK_RAW, 2)
SOCKET(can, ROOT, AF_CAN, SOCK_RAW, 1)
SOCKET(tipc, USER, AF_TIPC, SOCK_RDM, 0)
SOCKET(bluetooth, USER, AF_BLUETOOTH, SOCK_RAW, 1)
SOCKET(xdp, ROOT, 44, SOCK_RAW, 0)
SOCKET(smc, USER, 43, SOCK_STREAM, 0)
ATTEMPT(socket_high_bits, USER, "a vsock socket by a family with bits above 32") { return result(syscall(SYS_socket, 0x100000000L | AF_VSOCK, SOCK_STREAM, 0)); }
ATTEMPT(socketpair_vsock, NONE, "a pair of vsock sockets (no control: the kernel has none)") { int ends[2]; return result(socketpair(AF_VSOCK, SOCK_STREAM, 0, ends)); }
ATTEMPT(net_address, ROOT, "give lo another address") {
    struct { struct nlmsghdr head; unsigned char body[64]; } it = {.head = {.nlmsg_len = 40, .nlmsg_type = 20, .nlmsg_flags = 0x605, .nlmsg_seq = 1}};
    unsigned char address[] = {2, 32, 0, 0, 1, 0, 0, 0, 8, 0, 2, 0, 10, 99, 99, 99, 8, 0, 1, 0, 10, 99, 99, 99};
    memcpy(it.body, address, sizeof address);
    int fd = socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE);
    if (fd < 0 || send(fd, &it, it.head.nlmsg_len, 0) < 0) return errno;
    struct { struct nlmsghdr head; int error; char rest[256]; } answer;
    if (recv(fd, &answer, sizeof answer, 0) < 0) return errno;
    return -answer.error;
}

ATTEMPT(bpf_map, ROOT, "bpf: a map") { uint32_t attributes[32] = {2, 4, 4, 1}; return result(syscall(SYS_bpf, 0, attributes, sizeof attributes)); }
ATTEMPT(bpf_program, ROOT, "bpf: a program") {
    uint64_t code[2] = {0xb7, 0x95};
    struct { uint32_t type, count; uint64_t code, license; uint32_t rest[24]; } it = {1, 2, (uintptr_t)code, (uintptr_t)"GPL", {0}};
    return result(syscall(SYS_bpf, 5, &it, sizeof it));
}
ATTEMPT(io_uring, USER, "io_uring_setup, whose sockets no filter sees") { uint32_t parameters[30] = {0}; return result(syscall(425, 4, parameters)); }
ATTEMPT(userfault, ROOT, "userfaultfd") { return result(syscall(SYS_userfaultfd, O_CLOEXEC)); }
ATTEMPT(userfault_user, USER, "userfaultfd for faults of user mode only") { return result(syscall(SYS_userfaultfd, O_CLOEXEC | 1)); }
ATTEMPT(perf_self, ROOT, "perf_event_open with the kernel counted") {
    struct { uint32_t type, size; uint64_t config, rest[14]; } it = {1, 128, 0, {0}};
    return result(syscall(SYS_perf_event_open, &it, 0, -1, -1, 0));
}
/* Past the check another error comes, as the argument is none. */
#define PAST(name, what, call) ATTEMPT(name, PERMISSION, what) { int error = result(call); return walled() || error == EPERM ? error : 0; }
PAST(init_module, "init_module", syscall(SYS_init_module, NULL, 0, ""))
PAST(finit_module, "finit_module", syscall(SYS_finit_module, -1, "", 0))
PAST(delete_module, "delete_module", syscall(SYS_delete_module, "no_such_module", 0))
PAST(kexec_load, "kexec_load", syscall(SYS_kexec_load, 0, 0, NULL, 0xffffUL))
PAST(kexec_file, "kexec_file_load", syscall(SYS_kexec_file_load, -1, -1, 0, NULL, 0xffffUL))
PAST(reboot_call, "reboot, with a wrong word so that nothing can come of it", syscall(SYS_reboot, 1, 2, 3, NULL))
PAST(vhangup_call, "vhangup", syscall(SYS_vhangup))
#ifdef __x86_64__
ATTEMPT(iopl, ROOT, "iopl") { return result(syscall(SYS_iopl, 3)); }
ATTEMPT(ioperm, ROOT, "ioperm") { return result(syscall(SYS_ioperm, 0x80, 1, 1)); }
ATTEMPT(modify_ldt, USER, "modify_ldt") { char room[64]; return result(syscall(SYS_modify_ldt, 0, room, sizeof room)); }
#endif
ATTEMPT(syslog_read, ROOT, "the kernel's log by syslog") { char text[64]; return result(syscall(SYS_syslog, 3, text, sizeof text)); }
ATTEMPT(syslog_size, ROOT, "the size of the kernel's log") { return result(syscall(SYS_syslog, 10, NULL, 0)); }
ATTEMPT(sethostname_call, ROOT, "sethostname") { return result(sethostname("escaped", 7)); }
ATTEMPT(setdomainname_call, ROOT, "setdomainname") { return result(setdomainname("escaped", 7)); }
ATTEMPT(adjtimex_call, ROOT, "set the clock's state (control: to what it is)") {
    struct timex it = {0};
    if (adjtimex(&it) < 0) return errno;
    it.modes = ADJ_STATUS;
    return result(adjtimex(&it));
}
ATTEMPT(settimeofday_call, PERMISSION, "settimeofday (control: a zone that is none)") {
    struct { int west, dst; } zone = {walled() ? 0 : 100000, 0};
    int error = result(syscall(SYS_settimeofday, NULL, &zone));
    return walled() || error == EPERM ? error : 0;
}
ATTEMPT(nfsservctl_old, NONE, "calls that no kernel has any more (no control)") { return result(syscall(180)); }
ATTEMPT(unknown_call, NONE, "a call of a number that none has yet (no control)") { return result(syscall(600)); }
ATTEMPT(inherited_fds, USER, "a descriptor that was left open before the sandbox (control: given one)") {
    int found = 0;
    DIR *directory = opendir("/proc/self/fd");
    struct dirent *entry;
    while (directory && (entry = readdir(directory))) {
        int fd = atoi(entry->d_name);
        char text[256];
        if (*entry->d_name == '.' || fd <= 2 || fd == dirfd(directory)) continue;
        ssize_t got = pread(fd, text, sizeof text, 0);
        if (got > 0 && memmem(text, (size_t)got, told("secret"), strlen(told("secret")))) found = 1;
    }
    return found ? 0 : say("none");
}
