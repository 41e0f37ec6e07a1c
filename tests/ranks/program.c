/* program COMMUNICATOR...: makes communicators and then 40 steps. It is linked to NCCL, or, with DLSYM, uses dlsym.
 * The forms of COMMUNICATOR:
 *   RANK/SIZE  ncclCommInitRank
 *   RANK:SIZE  ncclCommInitRankConfig
 *   RANK+SIZE  ncclCommInitRankScalable with two identifiers
 *   *COUNT     ncclCommInitAll
 *   /COLOR     ncclCommSplit of the latest communicator that was not made by a split. If COLOR is 200 or more, waits
 *              until NCCL has made the new communicator
 * A letter in front of one of the first two forms becomes a byte of the identifier. */
#define _GNU_SOURCE
#include "program.h"

#include "loop.h"

#include <dlfcn.h>

typedef struct {
    char internal[128];
} ncclUniqueId;

int ncclGetUniqueId(ncclUniqueId *id);
int ncclCommInitRank(void **comm, int ranks, ncclUniqueId id, int rank);
int ncclCommInitRankConfig(void **comm, int ranks, ncclUniqueId id, int rank, void *config);
int ncclCommInitRankScalable(void **comm, int ranks, int rank, int count, ncclUniqueId *ids, void *config);
int ncclCommInitAll(void **comms, int count, const int *devices);
int ncclCommGetAsyncError(void *comm, int *state);
int ncclCommSplit(void *comm, int color, int key, void **made_of_it, void *config);

#ifdef DLSYM
#define FIND(name) ((__typeof__(&name))dlsym(dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL), #name))
#else
#define FIND(name) name
#endif

int main(int argc, char **argv)
{
    program_begin();
    int devices[8] = {0, 1, 2, 3, 4, 5, 6, 7}, failed = 0;
    void *comms[8], *part;
    ncclUniqueId id;
    FIND(ncclGetUniqueId)(&id);
    for (int n = 1; n < argc; n++) {
        int first = 0, second = 0;
        ncclUniqueId ids[2] = {id, id};
        if (argv[n][0] >= 'a' && argv[n][0] <= 'z')
            id.internal[64] = *argv[n]++;
        if (sscanf(argv[n], "%d/%d", &first, &second) == 2)
            failed |= FIND(ncclCommInitRank)(comms, second, id, first);
        else if (sscanf(argv[n], "%d:%d", &first, &second) == 2)
            failed |= FIND(ncclCommInitRankConfig)(comms, second, id, first, devices);
        else if (sscanf(argv[n], "%d+%d", &first, &second) == 2)
            failed |= FIND(ncclCommInitRankScalable)(comms, second, first, 2, ids, devices);
        else if (sscanf(argv[n], "/%d", &first) == 1)
            failed |= FIND(ncclCommSplit)(comms[0], first, 0, &part, devices) != (first >= 100 ? 7 : 0);
        else if (sscanf(argv[n], "*%d", &first) == 1)
            failed |= FIND(ncclCommInitAll)(comms, first, devices);
        for (int state = 7; first >= 200 && state == 7;)
            FIND(ncclCommGetAsyncError)(part, &state);
    }
    struct loop loop;
    struct loop_options options = loop_defaults();
    loop_open(&loop, &options);
    for (int n = 0; n < 40; n++)
        loop_step(&loop, n);
    printf("failed %d, checksum %016llx\n", failed, (unsigned long long)loop_close(&loop));
    return 0;
}
