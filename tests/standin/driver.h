/* Declarations that the parts of the stand-in driver share. One lock guards everything, including the log,
 * so the log has the calls in the order in which they arrived. */
#ifndef DRIVER_H
#define DRIVER_H

#define STANDIN_SOURCE
#include "standin_driver.h"

#include <stdbool.h>
#include <stdint.h>

enum node_kind {
    KERNEL_NODE,
    COPY_NODE,
    SET_NODE,
    CHILD_NODE,
    CONDITIONAL_NODE,
    EMPTY_NODE,
    HOST_NODE,
    RECORD_NODE,
    WAIT_NODE,
    ALLOC_NODE,
    FREE_NODE
};

struct node {
    enum node_kind kind;
    CUdeviceptr kernel_buffer; /* a kernel: its first parameter */
    const char *name;          /* a kernel's */
    void *to;                  /* a copy, a memset */
    const void *from;
    size_t bytes;
    int direction; /* a copy: CUPTI's number for it */
    unsigned char value;
    unsigned int grid[3]; /* a kernel's */
    CUgraph child;     /* a child graph, or the body of a conditional node */
    CUgraph otherwise; /* of a conditional node that has two */
    unsigned int condition;
    CUhostFn host; /* a function of the host's, and its argument in `to` */
};

struct CUfunc_st {
    struct CUfunc_st *next;
    char name[];
};

struct CUgraph_st {
    struct node **nodes;
    size_t count, room;
};

struct CUgraphExec_st {
    struct CUgraph_st graph;
    unsigned int number;
};

struct CUstream_st {
    unsigned int flags;
    bool gone;
    CUcontext context;
    uint64_t busy_until; /* when it has done all it was given */
    unsigned int number;
    CUstreamCaptureStatus capture;
    CUstreamCaptureMode mode;
    const void *capturer; /* the thread */
    CUgraph graph;
    CUgraphNode last; /* what it captures next follows this one, if any */
    CUstream next_capturing, next;
};

struct CUevent_st {
    bool gone, captured, recorded, has_time;
    CUstream captured_on;
    CUcontext context;
    uint64_t at;
    CUevent next;
};

struct CUctx_st {
    CUdevice device;
    struct CUstream_st legacy;
};

/* process.c */
void driver_lock(void);
void driver_unlock(void);
CUresult driver_init(void);
CUresult driver_state(void);
/* With the lock held: logs a table call and returns success, or logs why it is refused. */
enum need { NEEDS_DRIVER, NEEDS_CONTEXT };
CUresult call_admit(const char *function, const void *first, enum need need);
/* Without the lock, the last call of a table function. */
CUresult call_end(const char *function, CUresult result);
/* Without the lock: waits until that time of the GPU's clock, and STANDIN_WAIT_US. */
void host_wait(uint64_t until);
/* Returns the error that STANDIN_FAILS sets for this function. */
CUresult injected(const char *function);
_Noreturn void use_after_end(const char *function, const char *what);

/* context.c; with the lock held. */
CUfunction kept_function(const char *name);

/* tool.c: the effects of a profiler in the driver. */
void tool_enter(void);
void tool_leave(void);
bool tool_has_destroyed(void);
/* With the lock held: the GPU starts this work now. `exec` is the executable graph's number and `node` the
 * node's number there, or both are 0. */
void tool_run(CUstream stream, const struct node *work, unsigned int exec, unsigned int node);
/* Waits until the GPU has done all its work. */
void tool_wait(void);

/* log.c, with the lock held */
void log_call(const char *mark, const char *function, const char *suffix, const void *first);
void log_forget(void);

/* context.c */
bool has_current_context(void);
CUcontext current_context(void);

/* event.c */
void end_events_of(CUcontext context);

/* gpu.c, with the lock held but for the last */
uint64_t now(void);
void pass_call(void);
void work(CUstream stream);     /* gives the stream a piece of work */
uint64_t mark(CUstream stream); /* the time when it reaches work that is given now */
uint64_t done_at(CUcontext context, CUstream stream); /* no stream: all of the context's */
void sleep_until(uint64_t until);

/* memory.c, with the lock held */
void run_kernel(CUdeviceptr buffer);

/* stream.c */
extern CUstream all_streams;
CUstream stream_of(CUstream handle, bool per_thread);
bool is_legacy(CUstream stream);
void end_streams_of(CUcontext context);
/* With the lock held: refuse calls that a capture forbids for threads in the strict modes. */
CUresult refuse_unsafe(const char *function, const void *first);
/* With the lock held: refuse work for the legacy stream during a capture of a blocking one. */
CUresult refuse_implicit(const char *function, const void *first, CUstream stream);
/* With the lock held: refuse a call that no capture allows, and invalidate the captures. */
CUresult refuse_under_capture(const char *function, const void *first, CUstream stream);

/* launch.c, with the lock held: run the node now, or add it to the capture.
 * `exec` and `number`: as in tool_run(). */
CUresult submit(CUstream stream, struct node node, unsigned int exec, unsigned int number);

/* graph.c, with the lock held */
bool graph_add(CUgraph graph, struct node node);

#endif
