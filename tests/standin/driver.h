/* What the parts of the stand-in driver share. One lock guards all of it, the
 * log included, so that the log's order is the order in which calls arrived. */
#ifndef DRIVER_H
#define DRIVER_H

#define STANDIN_SOURCE
#include "standin_driver.h"

#include <stdbool.h>
#include <stdint.h>

struct node {
    bool is_copy;
    CUdeviceptr kernel_buffer; /* a kernel: its first parameter */
    void *to;                  /* a copy */
    const void *from;
    size_t bytes;
};

struct CUgraph_st {
    struct node *nodes;
    size_t count, room;
};

struct CUgraphExec_st {
    struct CUgraph_st graph;
};

struct CUstream_st {
    unsigned int flags;
    CUstreamCaptureStatus capture;
    CUgraph graph;
    CUstream next_capturing;
};

struct CUevent_st {
    bool captured;
};

struct CUctx_st {
    CUdevice device;
};

/* process.c */
void driver_lock(void);
void driver_unlock(void);
CUresult driver_init(void);
CUresult driver_state(void);
/* With the lock held: logs a table call and returns success, or logs why it is refused. */
enum need { NEEDS_DRIVER, NEEDS_CONTEXT };
CUresult call_admit(const char *function, const void *first, enum need need);
/* Without the lock, last thing before a table function returns. */
CUresult call_end(const char *function, CUresult result);
void host_wait(void);

/* log.c, with the lock held */
void log_call(const char *mark, const char *function, const char *suffix, const void *first);
void log_forget(void);

/* context.c */
bool has_current_context(void);

/* memory.c, with the lock held */
void run_kernel(CUdeviceptr buffer);

/* stream.c */
CUstream stream_of(CUstream handle, bool per_thread);
/* With the lock held: refuse a call that no capture allows, and invalidate the captures. */
CUresult refuse_under_capture(const char *function, const void *first, CUstream stream);

/* launch.c, with the lock held: run the node now, or add it to the capture. */
CUresult submit(CUstream stream, struct node node);

#endif
