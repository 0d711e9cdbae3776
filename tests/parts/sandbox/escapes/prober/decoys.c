/* What there is to be attacked: made by the test, outside of the sandbox, and gone when stdin ends. */
#include "prober.h"
#include <mqueue.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/shm.h>

static int listens(int type, struct sockaddr *address, socklen_t length) {
    int fd = socket(address->sa_family, type, 0);
    if (fd < 0 || bind(fd, address, length) || (type == SOCK_STREAM && listen(fd, 64))) {
        perror("decoys: listen");
        exit(1);
    }
    return fd;
}

/* The far addresses, on the loopback of a namespace that is the test's own. */
static void far_addresses(void) {
    static const char *places[][2] = {{"lo", ""}, {"lo:1", "\xa9\xfe\xa9\xfe"}, {"lo:2", "\x01\x01\x01\x01"}};
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    for (int i = 0; i < 3; i++) {
        struct ifreq request = {0};
        strcpy(request.ifr_name, places[i][0]);
        struct sockaddr_in *to = (void *)&request.ifr_addr;
        to->sin_family = AF_INET;
        if (i) {
            memcpy(&to->sin_addr, places[i][1], 4);
            if (ioctl(fd, SIOCSIFADDR, &request)) perror("decoys: address");
        } else {
            request.ifr_flags = IFF_UP | IFF_RUNNING;
            if (ioctl(fd, SIOCSIFFLAGS, &request)) perror("decoys: lo");
        }
    }
    close(fd);
}

/* A process with a secret in its environment, arguments and memory, and a socket at descriptor 0. */
static pid_t waits(const char *secret, int socket) {
    pid_t child = fork();
    if (child) return child;
    char variable[128];
    snprintf(variable, sizeof variable, "SECRET=%s", secret);
    char *environment[] = {variable, NULL};
    dup2(socket, 0);
    setpgid(0, 0);
    signal(SIGTERM, SIG_DFL);
    execle("/proc/self/exe", "victim", "victim", secret, NULL, environment);
    _exit(1);
}

static __attribute__((constructor)) void wait_as_victim(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[0], "victim") && !strcmp(argv[1], "victim")) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;) pause();
    }
}

int decoys(void) {
    const char *secret = told("secret"), *directory = told("directory");
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (*told("far")) far_addresses();
    struct sockaddr_in any = {.sin_family = AF_INET};
    if (!*told("far")) any.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int tcp = listens(SOCK_STREAM, (void *)&any, sizeof any);
    socklen_t length = sizeof any;
    getsockname(tcp, (void *)&any, &length);
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    int bytes = snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "marshal-decoy-%s", secret);
    listens(SOCK_STREAM, (void *)&name, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)bytes));
    struct sockaddr_un path = {.sun_family = AF_UNIX};
    snprintf(path.sun_path, sizeof path.sun_path, "%s/decoy.sock", directory);
    listens(SOCK_STREAM, (void *)&path, sizeof path);
    chmod(path.sun_path, 0777);
    pid_t pid = waits(secret, tcp);
    int shm = shmget(IPC_PRIVATE, 4096, 0666 | IPC_CREAT), sem = semget(IPC_PRIVATE, 1, 0666 | IPC_CREAT);
    int msg = msgget(IPC_PRIVATE, 0666 | IPC_CREAT);
    char queue[64], memory[64];
    snprintf(queue, sizeof queue, "/marshal-%s", secret);
    snprintf(memory, sizeof memory, "/dev/shm/marshal-%s", secret);
    mqd_t mq = mq_open(queue, O_CREAT | O_RDWR, 0666, NULL);
    int file = open(memory, O_CREAT | O_RDWR | O_CLOEXEC, 0666);
    if (shm < 0 || sem < 0 || msg < 0 || mq < 0 || file < 0) perror("decoys: ipc");
    printf("victim=%d port=%d shm=%d sem=%d msg=%d\n", (int)pid, ntohs(any.sin_port), shm, sem, msg);
    fflush(stdout);
    char byte;
    while (read(0, &byte, 1) > 0) {}
    shmctl(shm, IPC_RMID, NULL), semctl(sem, 0, IPC_RMID), msgctl(msg, IPC_RMID, NULL);
    mq_unlink(queue), unlink(memory), unlink(path.sun_path);
    kill(pid, SIGKILL), waitpid(pid, NULL, 0);
    return 0;
}
