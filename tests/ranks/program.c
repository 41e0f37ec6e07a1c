/* program COMMUNICATOR...: makes communicators and then 40 steps. RANK/SIZE is made by ncclCommInitRank, RANK:SIZE by
 * ncclCommInitRankConfig and *COUNT by ncclCommInitAll. Linked to NCCL, or with DLSYM defined, through dlsym. */
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
int ncclCommInitAll(void **comms, int count, const int *devices);

#ifdef DLSYM
#define FIND(name) ((__typeof__(&name))dlsym(dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL), #name))
#else
#define FIND(name) name
#endif

int main(int argc, char **argv)
{
    program_begin();
    int devices[8] = {0, 1, 2, 3, 4, 5, 6, 7}, failed = 0;
    void *comms[8];
    ncclUniqueId id;
    FIND(ncclGetUniqueId)(&id);
    for (int n = 1; n < argc; n++) {
        int first = 0, second = 0;
        if (sscanf(argv[n], "%d/%d", &first, &second) == 2)
            failed |= FIND(ncclCommInitRank)(comms, second, id, first);
        else if (sscanf(argv[n], "%d:%d", &first, &second) == 2)
            failed |= FIND(ncclCommInitRankConfig)(comms, second, id, first, devices);
        else if (sscanf(argv[n], "*%d", &first) == 1)
            failed |= FIND(ncclCommInitAll)(comms, first, devices);
    }
    struct loop loop;
    struct loop_options options = loop_defaults();
    loop_open(&loop, &options);
    for (int n = 0; n < 40; n++)
        loop_step(&loop, n);
    printf("failed %d, checksum %016llx\n", failed, (unsigned long long)loop_close(&loop));
    return 0;
}
