/* Declarations that the parts of the stand-in driver share. One lock guards everything, including the log, so the
 * log has the calls in the order in which they arrived. */
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
    CUdeviceptr kernel_buffer; /* for a kernel: its first parameter */
    const char *name;          /* for a kernel: its name */
    void *to;                  /* for a copy or a memset: the destination */
    const void *from;
    size_t bytes;
    int direction; /* for a copy: CUPTI's number for its direction */
    unsigned char value;
    unsigned int grid[3]; /* for a kernel: the size of its grid */
    CUgraph child;     /* a child graph, or the first body of a conditional node */
    CUgraph otherwise; /* the second body of a conditional node, if there is one */
    unsigned int condition;
    CUhostFn host; /* for a host function: the function; its argument is in `to` */
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
    uint64_t busy_until; /* the time when all of its work is done */
    unsigned int number;
    CUstreamCaptureStatus capture;
    CUstreamCaptureMode mode;
    const void *capturer; /* identifies the capturing thread */
    CUgraph graph;
    CUgraphNode last; /* the last captured node, if any: the next one depends on it */
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

/* A time from its start to its end, in nanoseconds. */
struct span {
    uint64_t from, until;
};

/* Functions of process.c. */
void driver_lock(void);
void driver_unlock(void);
CUresult driver_init(void);
CUresult driver_state(void);
/* Begins a call of one of the driver's functions: logs the call and returns success, or logs the reason why the
 * call is refused and returns an error. The caller holds the driver's lock. */
enum need { NEEDS_DRIVER, NEEDS_CONTEXT };
CUresult call_admit(const char *function, const void *first, enum need need);
/* Ends a call of one of the driver's functions, and returns `result`. Must be the last call in that
 * function. The caller does not hold the driver's lock. */
CUresult call_end(const char *function, CUresult result);
/* Waits until the time `until` of the GPU's clock, then for all host functions, and then for STANDIN_WAIT_US. The
 * caller does not hold the driver's lock. */
void host_wait(uint64_t until);
/* Returns the error that STANDIN_FAILS sets for this function. */
CUresult injected(const char *function);
_Noreturn void use_after_end(const char *function, const char *what);

/* Functions of context.c. The caller holds the driver's lock. */
CUfunction kept_function(const char *name);

/* Functions of tool.c, which imitates the effects that a profiler has on the driver. */
void tool_enter(void);
void tool_leave(void);
bool tool_has_destroyed(void);
/* Notifies the profiler that the GPU starts the work `work`: now, or with STANDIN_STREAM_NS at the times of `span`,
 * which are of the GPU's clock. For a node of a graph, `exec` is the executable
 * graph's number and `node` the node's number in it; otherwise both are 0. The caller holds the driver's lock. */
void tool_run(CUstream stream, const struct node *work, unsigned int exec, unsigned int node,
              struct span span);
/* Waits until the GPU has done all its work. */
void tool_wait(void);

/* Functions of log.c. The caller holds the driver's lock. */
void log_call(const char *mark, const char *function, const char *suffix, const void *first);
void log_forget(void);

/* Functions of context.c. */
bool has_current_context(void);
CUcontext current_context(void);

/* Functions of event.c. */
void end_events_of(CUcontext context);

/* Functions of gpu.c. The caller holds the driver's lock, except for sleep_until(). */
uint64_t now(void);
void pass_call(void);
/* Adds a piece of work to the stream, and returns its time. */
struct span work(CUstream stream);
bool streams_have_times(void); /* whether STANDIN_STREAM_NS is set */
/* Makes the stream's later work wait until the time `at` of the GPU's clock. */
void hold_back(CUstream stream, uint64_t at);
uint64_t mark(CUstream stream); /* the time when the stream reaches work that is added now */
uint64_t done_at(CUcontext context, CUstream stream); /* when the stream's work is done; NULL: all work of the context */
void sleep_until(uint64_t until);

/* Functions of memory.c. The caller holds the driver's lock. */
void run_kernel(CUdeviceptr buffer);

/* Functions of stream.c. */
extern CUstream all_streams;
CUstream stream_of(CUstream handle, bool per_thread);
bool is_legacy(CUstream stream);
void end_streams_of(CUcontext context);
/* Refuses a call that CUDA forbids while a capture in a strict mode (global or thread) is active. The caller
 * holds the driver's lock. */
CUresult refuse_unsafe(const char *function, const void *first);
/* Refuses work for the legacy stream while a stream that waits for it is being captured. The caller holds the lock. */
CUresult refuse_implicit(const char *function, const void *first, CUstream stream);
/* Refuses a call that is never allowed during a capture, and invalidates the captures. The caller holds the driver's
 * lock. */
CUresult refuse_under_capture(const char *function, const void *first, CUstream stream);

/* Function of launch.c. Runs the node now, or adds it to the graph if the stream is being captured. `exec` and
 * `number` identify the node as in tool_run(). The caller holds the driver's lock. */
CUresult submit(CUstream stream, struct node node, unsigned int exec, unsigned int number);
/* Also of launch.c. Waits until no thread of the driver runs a host function. The caller does not hold the lock. */
void wait_for_host_functions(void);

/* Functions of graph.c. The caller holds the driver's lock. */
bool graph_add(CUgraph graph, struct node node);

#endif
