/* server MICROSECONDS [BARRIER RANK RANKS]: a serving loop with one step per MICROSECONDS, until it is killed or
 * there is a file `end` in the current folder. While there is a file `pause`, it makes no steps, as if it waited for
 * requests; it creates the file `paused` when it begins to do so. BARRIER is a file that all ranks map: no rank begins
 * a step before all others have reached the step or have ended. Prints a line after its first step.
 *
 * HOST is an additional action after step 20:
 *   forks      the child writes the number of its open sockets into the file `child`, and makes steps, too
 *   execs      the process becomes sleep(1)
 *   closes     closes all descriptors from 3 on, and opens a file in place of each that was open
 *   no_socket  already at the start: a filter forbids the process to create sockets */
#include "program.h"

#include "loop.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>

enum { MAX_RANKS = 16 };

struct barrier {
    /* For each rank, the number of the step that it has reached, from 1 on; -1 for a rank that has ended. */
    _Atomic long at[MAX_RANKS];
    /* The process of each rank that has reached a step. */
    _Atomic int process[MAX_RANKS];
};

static void meet(struct barrier *barrier, int rank, int ranks, long step)
{
    atomic_store(&barrier->process[rank], (int)getpid());
    atomic_store(&barrier->at[rank], step);
    for (int other = 0; other < ranks; other++) {
        for (;;) {
            long at = atomic_load(&barrier->at[other]);
            if (at < 0 || at >= step)
                break;
            /* A rank that was killed is left out. */
            if (at > 0 && kill(atomic_load(&barrier->process[other]), 0) != 0 && errno == ESRCH)
                atomic_compare_exchange_strong(&barrier->at[other], &at, -1);
            usleep(50);
        }
    }
}

static int open_sockets(void)
{
    int count = 0;
    struct stat status;
    for (int descriptor = 0; descriptor < 1024; descriptor++)
        count += fstat(descriptor, &status) == 0 && S_ISSOCK(status.st_mode);
    return count;
}

static void write_child(void)
{
    FILE *file = fopen("child.new", "w");
    fprintf(file, "%d %d\n", (int)getpid(), open_sockets());
    fclose(file);
    rename("child.new", "child");
}

/* Closes all descriptors, like a daemon that does not know which libraries have descriptors open. */
static int own[1024];
static void close_all(void)
{
    struct stat status;
    for (int descriptor = 3; descriptor < 1024; descriptor++) {
        if (fstat(descriptor, &status) != 0)
            continue;
        close(descriptor);
        int file = open("own", O_RDWR | O_CREAT | O_APPEND, 0600);
        if (file != descriptor)
            dup2(file, descriptor), close(file);
        own[descriptor] = 1;
    }
}

static void check_own(void)
{
    struct stat status, mine;
    if (stat("own", &mine) != 0)
        return;
    for (int descriptor = 3; descriptor < 1024; descriptor++)
        if (own[descriptor] && (fstat(descriptor, &status) != 0 || status.st_ino != mine.st_ino))
            printf("descriptor %d was taken\n", descriptor);
    printf("%ld bytes in the program's own file\n", (long)mine.st_size);
}

static void forbid_sockets(void)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
        exit(3);
}

int main(int argc, char **argv)
{
    const char *host = getenv("HOST") != NULL ? getenv("HOST") : "";
    if (strcmp(host, "no_socket") == 0)
        forbid_sockets();
    alarm(300);
    long period = argc > 1 ? atol(argv[1]) : 1000;
    struct barrier *barrier = NULL;
    int rank = 0, ranks = 1;
    if (argc > 4) {
        int file = open(argv[2], O_RDWR | O_CREAT, 0600);
        if (file < 0 || ftruncate(file, sizeof *barrier) != 0)
            return 3;
        barrier = mmap(NULL, sizeof *barrier, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        close(file);
        rank = atoi(argv[3]);
        ranks = atoi(argv[4]);
    }
    struct loop loop;
    struct loop_options options = loop_defaults();
    loop_open(&loop, &options);
    for (long step = 0; access("end", F_OK) != 0; step++) {
        if (access("pause", F_OK) == 0)
            close(creat("paused", 0600));
        while (access("pause", F_OK) == 0)
            usleep(1000);
        if (barrier != NULL)
            meet(barrier, rank, ranks, step + 1);
        loop_step(&loop, (int)step);
        usleep((useconds_t)period);
        if (step == 20 && strcmp(host, "forks") == 0 && fork() == 0) {
            write_child();
            /* The driver refuses the child's calls, because the parent initialised it before the fork. */
            int (*call)(void) = (int (*)(void))dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuCtxSynchronize");
            for (; access("end", F_OK) != 0; usleep((useconds_t)period))
                (void)call();
            exit(0);
        }
        if (step == 20 && strcmp(host, "execs") == 0)
            execlp("sleep", "sleep", "60", NULL);
        if (step == 20 && strcmp(host, "closes") == 0)
            close_all();
        if (step == 0) {
            printf("ready\n");
            fflush(stdout);
        }
    }
    if (barrier != NULL)
        atomic_store(&barrier->at[rank], -1);
    check_own();
    printf("checksum %016llx\n", (unsigned long long)loop_close(&loop));
    return 0;
}
