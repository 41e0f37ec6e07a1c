/* A stand-in for libnccl.so.2: it makes communicators that do nothing, and prints the arguments
 * of the calls. A split by color ignores the color's value: rank R of 4 becomes rank R / 2 of 2,
 * as if even and odd ranks had used different colors. For a color of 100 or more, the split is
 * in progress until the program has asked for the state twice. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    char internal[128];
} ncclUniqueId;

struct communicator {
    int rank, ranks;
};

static void *communicator(int rank, int ranks)
{
    struct communicator *made = malloc(sizeof *made);
    *made = (struct communicator){rank, ranks};
    return made;
}

int ncclCommUserRank(const struct communicator *comm, int *rank)
{
    *rank = comm->rank;
    return 0;
}

int ncclCommCount(const struct communicator *comm, int *count)
{
    *count = comm->ranks;
    return 0;
}

static int made(void **comm, int ranks, const ncclUniqueId *id, int rank)
{
    *comm = communicator(rank, ranks);
    printf("communicator %d of %d, %s\n", rank, ranks, id->internal);
    fflush(stdout);
    return 0;
}

int ncclGetUniqueId(ncclUniqueId *id)
{
    memset(id, 0, sizeof *id);
    strcpy(id->internal, "identified");
    strcpy(id->internal + 100, "to its end");
    return 0;
}

int ncclCommInitRank(void **comm, int ranks, ncclUniqueId id, int rank)
{
    return strcmp(id.internal + 100, "to its end") != 0 || made(comm, ranks, &id, rank);
}

int ncclCommInitRankConfig(void **comm, int ranks, ncclUniqueId id, int rank, void *config)
{
    return config == NULL || ncclCommInitRank(comm, ranks, id, rank);
}

int ncclCommInitRankScalable(void **comm, int ranks, int rank, int count, ncclUniqueId *ids, void *config)
{
    return config == NULL || count < 1 || ncclCommInitRank(comm, ranks, ids[count - 1], rank);
}

int ncclCommSplit(const struct communicator *comm, int color, int key, void **made_of_it, void *config)
{
    printf("split %d %d\n", color, key);
    *made_of_it = color < 0 ? NULL : communicator(comm->rank / 2, comm->ranks / 2);
    return color >= 100 ? 7 /* ncclInProgress */ : config == NULL;
}

int ncclCommGetAsyncError(const struct communicator *comm, int *state)
{
    static int asked;
    *state = comm != NULL && asked++ < 2 ? 7 : 0;
    return 0;
}

int ncclCommInitAll(void **comms, int count, const int *devices)
{
    static const ncclUniqueId id = {.internal = "all"};
    for (int rank = 0; rank < count; rank++)
        made(&comms[devices[rank]], count, &id, rank);
    return 0;
}
