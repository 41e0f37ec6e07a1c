/* A stand-in for libnccl.so.2 whose ranks are processes. A collective is done when all ranks of its communicator
 * have called it. It is queued like NCCL's: a wait for the GPU, in the driver, also waits for the collective.
 * HANG_SHARED names a file that the ranks share. HANG_ENDLESS is the number of a collective that is never done.
 * hang_add_work adds work of the GPU that takes some time. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { RANKS = 8, COMMUNICATORS = 4, CALLS = 4096 };

typedef struct {
    char internal[128];
} ncclUniqueId;

struct shared {
    /* The latest calls of each rank: call n is at n % CALLS, as its number, the collective's type and its size. It is 0
     * while the rank has not made the call. */
    _Atomic uint64_t calls[COMMUNICATORS][RANKS][CALLS];
    /* The numbers of sends (first index 0) and of receives (1). The last two indices are the
     * rank that made the call and the rank to or from which it transfers. */
    _Atomic uint64_t transfers[2][COMMUNICATORS][RANKS][RANKS];
};

struct communicator {
    int number, rank, ranks;
    /* The numbers of calls that this rank has made, and of those of which all ranks have made the same. */
    unsigned made, done;
};

static struct shared *shared;
static struct communicator made[COMMUNICATORS];
static long endless = -1;
static struct timespec busy_until;

static int are_transferred(const struct communicator *comm)
{
    for (int way = 0; way < 2; way++)
        for (int peer = 0; peer < comm->ranks; peer++)
            if (shared->transfers[!way][comm->number][peer][comm->rank] <
                shared->transfers[way][comm->number][comm->rank][peer])
                return 0;
    return 1;
}

static int is_done(struct communicator *comm)
{
    for (; comm->done < comm->made; comm->done++) {
        unsigned place = comm->done % CALLS;
        if ((long)comm->done == endless)
            return 0;
        for (int rank = 0; rank < comm->ranks; rank++)
            if (shared->calls[comm->number][rank][place] != shared->calls[comm->number][comm->rank][place])
                return 0;
    }
    return are_transferred(comm);
}

/* The stand-in driver calls this at the end of each of its functions. If the function is a wait,
 * waits until this process's GPU work and collectives are done. */
static void in_driver(const char *function)
{
    if (strstr(function, "Synchronize") == NULL)
        return;
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &busy_until, NULL);
    for (int number = 0; number < COMMUNICATORS; number++)
        while (made[number].ranks > 0 && !is_done(&made[number]))
            nanosleep(&(struct timespec){0, 1000000}, NULL);
}

static void begin(void)
{
    const char *path = getenv("HANG_SHARED"), *number = getenv("HANG_ENDLESS");
    int file = open(path, O_RDWR);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (file < 0 || shared == MAP_FAILED)
        abort();
    close(file);
    if (number != NULL)
        endless = atol(number);
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    void (*set)(void (*)(const char *)) = (void (*)(void (*)(const char *)))dlsym(driver, "standin_set_callback");
    set(in_driver);
}

void hang_add_work(int seconds)
{
    clock_gettime(CLOCK_MONOTONIC, &busy_until);
    busy_until.tv_sec += seconds;
}

/* Makes a communicator, whose number is the first byte of the identifier. */
int ncclCommInitRank(void **comm, int ranks, ncclUniqueId id, int rank)
{
    if (shared == NULL)
        begin();
    int number = id.internal[0];
    made[number] = (struct communicator){.number = number, .rank = rank, .ranks = ranks};
    *comm = &made[number];
    return 0;
}

static int call(struct communicator *comm, uint64_t kind, size_t count)
{
    uint64_t number = comm->made + 1;
    shared->calls[comm->number][comm->rank][comm->made++ % CALLS] = kind << 56 | number << 24 | (count & 0xffffff);
    return 0;
}

int ncclAllReduce(const void *from, void *to, size_t count, int type, int op, void *comm, void *stream)
{
    (void)from, (void)to, (void)type, (void)op, (void)stream;
    return call(comm, 1, count);
}

int ncclBroadcast(const void *from, void *to, size_t count, int type, int root, void *comm, void *stream)
{
    (void)from, (void)to, (void)type, (void)root, (void)stream;
    return call(comm, 2, count);
}

static int transfer(struct communicator *comm, int way, int peer)
{
    shared->transfers[way][comm->number][comm->rank][peer]++;
    return 0;
}

int ncclSend(const void *from, size_t count, int type, int peer, void *comm, void *stream)
{
    (void)from, (void)count, (void)type, (void)stream;
    return transfer(comm, 0, peer);
}

int ncclRecv(void *to, size_t count, int type, int peer, void *comm, void *stream)
{
    (void)to, (void)count, (void)type, (void)stream;
    return transfer(comm, 1, peer);
}
