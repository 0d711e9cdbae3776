/* Arguments, the list of attempts, one child for each, and what is printed. */
#include "prober.h"

#define ATTEMPTS 512
#define SECONDS 20

static struct { const char *name; enum control control; const char *what; attempt *run; } all[ATTEMPTS];
static int count;
static int argument_count;
static char **arguments;
static char said[256];
static pid_t began_by;

void add(const char *name, enum control control, const char *what, attempt *run) {
    if (count == ATTEMPTS) abort();
    all[count].name = name, all[count].control = control, all[count].what = what, all[count].run = run;
    count++;
}

const char *told(const char *key) {
    size_t length = strlen(key);
    for (int i = 1; i < argument_count; i++)
        if (!strncmp(arguments[i], key, length) && arguments[i][length] == '=') return arguments[i] + length + 1;
    return "";
}
long told_number(const char *key) { return atol(told(key)); }
int walled(void) { return !*told("control"); }

int say(const char *format, ...) {
    va_list list;
    va_start(list, format);
    vsnprintf(said, sizeof said, format, list);
    va_end(list);
    return SAID;
}

const char *joined(const char *directory, const char *name) {
    static char paths[4][4096];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", directory, name);
    return path;
}

int reads(const char *path, const char *secret) {
    char text[65536];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return errno;
    ssize_t got = read(fd, text, sizeof text);
    int error = errno;
    close(fd);
    if (got < 0) return error;
    if (*secret && !memmem(text, (size_t)got, secret, strlen(secret))) return say("read, without the secret");
    return 0;
}

pid_t starter(void) { return began_by; }
pid_t victim(void) { return (pid_t)told_number("victim"); }

void scratch(char *path, size_t size, const char *name) {
    snprintf(path, size, "%s/%s.%d", *told("scratch") ? told("scratch") : "/tmp", name, (int)getpid());
}

static const char *errno_name(int error) {
    const char *name = strerrorname_np(error);
    return name ? name : "unknown";
}

/* Attempts change what they run in (root, namespaces, limits), so each has a process of its own. */
static void one(int i) {
    struct { int result; char said[sizeof said]; } report = {0, ""};
    int line[2];
    if (pipe(line)) { printf("%s\tbroken\tpipe\n", all[i].name); return; }
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        close(line[0]);
        alarm(SECONDS);
        said[0] = 0;
        report.result = all[i].run();
        memcpy(report.said, said, sizeof said);
        if (write(line[1], &report, sizeof report) != sizeof report) _exit(3);
        _exit(0);
    }
    close(line[1]);
    size_t got = 0;
    while (got < sizeof report) {
        ssize_t part = read(line[0], (char *)&report + got, sizeof report - got);
        if (part <= 0) break;
        got += (size_t)part;
    }
    close(line[0]);
    int status = 0;
    if (child > 0) {
        kill(child, SIGKILL);
        waitpid(child, &status, 0);
    }
    if (child < 0) printf("%s\tbroken\tfork %s\n", all[i].name, errno_name(errno));
    else if (got < sizeof report && WIFSIGNALED(status))
        printf("%s\tblocked\tSIG%s\n", all[i].name, sigabbrev_np(WTERMSIG(status)));
    else if (got < sizeof report) printf("%s\tbroken\tno report\n", all[i].name);
    else if (report.result == 0) printf("%s\tthrough\t%s\n", all[i].name, report.said);
    else if (report.result == SAID) printf("%s\tblocked\t%s\n", all[i].name, report.said);
    else printf("%s\tblocked\t%s\n", all[i].name, errno_name(report.result));
    fflush(stdout);
}

int decoys(void);
int terminal(char **words);

int main(int argc, char **argv) {
    argument_count = argc, arguments = argv, began_by = getppid();
    static const char *controls[] = {"root", "user", "permission", "none"};
    if (argc > 1 && !strcmp(argv[1], "decoys")) return decoys();
    if (argc > 3 && !strcmp(argv[1], "terminal")) return terminal(argv + 2);
    if (argc > 1 && !strcmp(argv[1], "list")) {
        for (int i = 0; i < count; i++) printf("%s\t%s\t%s\n", all[i].name, controls[all[i].control], all[i].what);
        return 0;
    }
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    const char *only = told("only");
    for (int i = 0; i < count; i++) {
        size_t length = strlen(only);
        int is_special = !strncmp(all[i].name, "ro_", 3) || !strncmp(all[i].name, "masked_", 7) || !strncmp(all[i].name, "tty_", 4) || !strncmp(all[i].name, "service_", 8) || !strcmp(all[i].name, "memory_bomb");
        if (length ? !strncmp(all[i].name, only, length) : !is_special) one(i);
    }
    return 0;
}
