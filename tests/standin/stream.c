/* Streams, host waits and stream captures.
 *
 * A wait during a capture is refused, logged as ILLEGAL, and invalidates the capture, as CUDA's programming guide
 * says ("Prohibited and Unhandled Operations"). This concerns waits on the capturing stream and on an event recorded
 * in it. It also concerns waits on the legacy stream during a capture of a blocking stream, and waits for the whole
 * context in any mode. */
#include "driver.h"

#include <stdatomic.h>
#include <stdlib.h>

CUstream all_streams;
static CUstream capturing;
static __thread CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
static __thread char us; /* its address identifies the thread */

static unsigned int next_number(void)
{
    static atomic_uint last = 12;
    return atomic_fetch_add(&last, 1) + 1;
}

static CUstream make(unsigned int flags)
{
    CUstream made = calloc(1, sizeof *made);
    if (made != NULL) {
        made->flags = flags;
        made->number = next_number();
        made->context = current_context();
        driver_lock();
        made->next = all_streams;
        all_streams = made;
        driver_unlock();
    }
    return made;
}

bool is_legacy(CUstream stream)
{
    return stream->context != NULL && stream == &stream->context->legacy;
}

static CUstream legacy(void)
{
    static struct CUstream_st none; /* for calls that are refused because there is no context */
    CUcontext context = current_context();
    if (context == NULL)
        return &none;
    context->legacy.context = context;
    context->legacy.number = 7;
    return &context->legacy;
}

/* Returns the stream of a handle. The default stream is the thread's own if `per_thread` is true, else the legacy
 * stream. */
CUstream stream_of(CUstream handle, bool per_thread)
{
    enum { CONTEXTS = 4 };
    static __thread CUstream own[CONTEXTS];
    if (handle == CU_STREAM_PER_THREAD || (handle == NULL && per_thread)) {
        for (int i = 0; i < CONTEXTS; i++) {
            if (own[i] == NULL || own[i]->gone)
                own[i] = make(0); /* kept after the thread's end: a capture of it may last longer */
            if (own[i]->context == current_context())
                return own[i];
        }
        return make(0);
    }
    if (handle == NULL || handle == CU_STREAM_LEGACY)
        return legacy();
    if (handle->gone)
        use_after_end("a call", "a stream");
    return handle;
}

/* Marks all streams of the context as destroyed. The caller holds the driver's lock. */
void end_streams_of(CUcontext context)
{
    for (CUstream stream = all_streams; stream != NULL; stream = stream->next)
        if (stream->context == context)
            stream->gone = true;
    context->legacy.busy_until = 0;
}

static bool forbidden(CUstream stream)
{
    if (stream == NULL) /* a wait for the whole context */
        return capturing != NULL;
    if (!is_legacy(stream))
        return stream->capture != CU_STREAM_CAPTURE_STATUS_NONE;
    for (CUstream other = capturing; other != NULL; other = other->next_capturing)
        if (!(other->flags & CU_STREAM_NON_BLOCKING))
            return true;
    return false;
}

CUresult refuse_under_capture(const char *function, const void *first, CUstream stream)
{
    if (driver_state() != CUDA_SUCCESS || !forbidden(stream))
        return CUDA_SUCCESS; /* in the first case, call_admit() will refuse the call */
    log_call("ILLEGAL", function, "", first);
    for (CUstream other = capturing; other != NULL; other = other->next_capturing)
        if (stream == NULL || is_legacy(stream) || stream == other)
            other->capture = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
    return stream != NULL && is_legacy(stream) ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
                                               : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult refuse_implicit(const char *function, const void *first, CUstream stream)
{
    return is_legacy(stream) ? refuse_under_capture(function, first, stream) : CUDA_SUCCESS;
}

CUresult refuse_unsafe(const char *function, const void *first)
{
    bool refused = false;
    for (CUstream other = capturing; other != NULL; other = other->next_capturing) {
        bool minds_us = other->capturer == &us && other->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
        bool minds_all = other->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
        if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED ||
            !(minds_us || (minds_all && thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL)))
            continue;
        other->capture = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
        refused = true;
    }
    if (refused)
        log_call("ILLEGAL", function, "", first);
    return refused ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

CUresult cuStreamCreate(CUstream *stream, unsigned int flags)
{
    if (!has_current_context())
        return CUDA_ERROR_INVALID_CONTEXT;
    *stream = make(flags);
    return *stream == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

/* Marks the stream as destroyed. The object is kept in memory, so that the stand-in notices later uses of the
 * stream. */
CUresult cuStreamDestroy_v2(CUstream stream)
{
    if (stream == NULL || stream->capture != CU_STREAM_CAPTURE_STATUS_NONE)
        return CUDA_ERROR_INVALID_HANDLE;
    stream_of(stream, false)->gone = true;
    return CUDA_SUCCESS;
}

CUresult cuStreamGetCtx(CUstream stream, CUcontext *context)
{
    *context = stream_of(stream, false)->context;
    return CUDA_SUCCESS;
}

/* Not inlined, so that the functions below begin with instructions that can be moved. */
__attribute__((noinline)) static CUresult query(CUstream handle, bool per_thread)
{
    CUstream stream = stream_of(handle, per_thread);
    driver_lock();
    CUresult result = done_at(NULL, stream) > now() ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
    driver_unlock();
    return result;
}

CUresult cuStreamQuery(CUstream stream)
{
    return query(stream, false);
}

CUresult cuStreamQuery_ptsz(CUstream stream)
{
    return query(stream, true);
}

static CUresult wait(const char *function, const void *first, CUstream stream, enum need need)
{
    tool_enter();
    driver_lock();
    CUresult result = refuse_under_capture(function, first, stream);
    if (result == CUDA_SUCCESS)
        result = call_admit(function, first, need);
    uint64_t until = done_at(current_context(), stream);
    driver_unlock();
    if (result == CUDA_SUCCESS) {
        host_wait(until);
        driver_lock();
        log_call("", function, "_end", first);
        driver_unlock();
    }
    return call_end(function, result);
}

CUresult cuStreamSynchronize(CUstream stream)
{
    return wait("cuStreamSynchronize", stream, stream_of(stream, false), NEEDS_DRIVER);
}

CUresult cuStreamSynchronize_ptsz(CUstream stream)
{
    return wait("cuStreamSynchronize_ptsz", stream, stream_of(stream, true), NEEDS_DRIVER);
}

CUresult cuCtxSynchronize(void)
{
    return wait("cuCtxSynchronize", NULL, NULL, NEEDS_CONTEXT);
}

CUresult cuCtxSynchronize_v2(CUcontext context)
{
    return wait("cuCtxSynchronize_v2", context, NULL,
                context == NULL ? NEEDS_CONTEXT : NEEDS_DRIVER);
}

static CUresult begin(const char *function, CUstream handle, CUstream stream, CUgraph graph,
                      CUstreamCaptureMode mode)
{
    tool_enter();
    driver_lock();
    CUresult result = call_admit(function, handle, NEEDS_CONTEXT);
    if (result == CUDA_SUCCESS) {
        if (is_legacy(stream))
            result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        else if (stream->capture != CU_STREAM_CAPTURE_STATUS_NONE)
            result = CUDA_ERROR_ILLEGAL_STATE;
    }
    if (result == CUDA_SUCCESS) {
        stream->graph = graph != NULL ? graph : calloc(1, sizeof *graph);
        stream->last = NULL;
        stream->capture = CU_STREAM_CAPTURE_STATUS_ACTIVE;
        stream->mode = mode;
        stream->capturer = &us;
        stream->next_capturing = capturing;
        capturing = stream;
    }
    driver_unlock();
    return call_end(function, result);
}

CUresult cuStreamBeginCapture(CUstream stream)
{
    return begin("cuStreamBeginCapture", stream, stream_of(stream, false), NULL,
                 CU_STREAM_CAPTURE_MODE_GLOBAL);
}

CUresult cuStreamBeginCapture_ptsz(CUstream stream)
{
    return begin("cuStreamBeginCapture_ptsz", stream, stream_of(stream, true), NULL,
                 CU_STREAM_CAPTURE_MODE_GLOBAL);
}

CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode)
{
    return begin("cuStreamBeginCapture_v2", stream, stream_of(stream, false), NULL, mode);
}

CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode)
{
    return begin("cuStreamBeginCapture_v2_ptsz", stream, stream_of(stream, true), NULL, mode);
}

#ifndef LACKING
CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph,
                                     const CUgraphNode *dependencies, const CUgraphEdgeData *edges,
                                     size_t count, CUstreamCaptureMode mode)
{
    (void)dependencies, (void)edges, (void)count;
    return begin("cuStreamBeginCaptureToGraph", stream, stream_of(stream, false), graph, mode);
}

CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph,
                                          const CUgraphNode *dependencies,
                                          const CUgraphEdgeData *edges, size_t count,
                                          CUstreamCaptureMode mode)
{
    (void)dependencies, (void)edges, (void)count;
    return begin("cuStreamBeginCaptureToGraph_ptsz", stream, stream_of(stream, true), graph,
                 mode);
}
#endif

static CUresult end(const char *function, CUstream handle, CUstream stream, CUgraph *graph)
{
    tool_enter();
    driver_lock();
    CUresult result = call_admit(function, handle, NEEDS_CONTEXT);
    if (result == CUDA_SUCCESS && stream->capture == CU_STREAM_CAPTURE_STATUS_NONE)
        result = CUDA_ERROR_ILLEGAL_STATE;
    if (result == CUDA_SUCCESS) {
        if (stream->capture == CU_STREAM_CAPTURE_STATUS_INVALIDATED)
            result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        if (graph != NULL)
            *graph = result == CUDA_SUCCESS ? stream->graph : NULL;
        CUgraph of = stream->graph;
        /* When a capture ends, other streams that have joined it leave it. */
        for (CUstream *at = &capturing; *at != NULL;) {
            CUstream other = *at;
            if (other != stream && other->graph != of) {
                at = &other->next_capturing;
                continue;
            }
            *at = other->next_capturing;
            other->graph = NULL;
            other->capture = CU_STREAM_CAPTURE_STATUS_NONE;
        }
    }
    driver_unlock();
    return call_end(function, result);
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
    return end("cuStreamEndCapture", stream, stream_of(stream, false), graph);
}

CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph)
{
    return end("cuStreamEndCapture_ptsz", stream, stream_of(stream, true), graph);
}

static CUresult is_capturing(CUstream stream, CUstreamCaptureStatus *status)
{
    driver_lock();
    *status = stream->capture;
    bool implicit = is_legacy(stream) && forbidden(stream);
    driver_unlock();
    return implicit ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT : CUDA_SUCCESS;
}

CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status)
{
    return is_capturing(stream_of(stream, false), status);
}

CUresult cuStreamIsCapturing_ptsz(CUstream stream, CUstreamCaptureStatus *status)
{
    return is_capturing(stream_of(stream, true), status);
}

static CUresult capture_info(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id,
                             CUgraph *graph, const CUgraphNode **dependencies, size_t *count)
{
    driver_lock();
    *status = stream->capture;
    bool implicit = is_legacy(stream) && forbidden(stream);
    if (stream->capture == CU_STREAM_CAPTURE_STATUS_ACTIVE) {
        if (id != NULL)
            *id = (cuuint64_t)(size_t)stream->graph;
        if (graph != NULL)
            *graph = stream->graph;
        if (dependencies != NULL)
            *dependencies = &stream->last;
        if (count != NULL)
            *count = stream->last != NULL;
    }
    driver_unlock();
    return implicit ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT : CUDA_SUCCESS;
}

#define INFO_2 \
    CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph, \
        const CUgraphNode **dependencies, size_t *count
#define INFO_3 \
    CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph, \
        const CUgraphNode **dependencies, const CUgraphEdgeData **edges, size_t *count

CUresult cuStreamGetCaptureInfo_v2(INFO_2)
{
    return capture_info(stream_of(stream, false), status, id, graph, dependencies, count);
}

CUresult cuStreamGetCaptureInfo_v2_ptsz(INFO_2)
{
    return capture_info(stream_of(stream, true), status, id, graph, dependencies, count);
}

CUresult cuStreamGetCaptureInfo_v3(INFO_3)
{
    if (edges != NULL)
        *edges = NULL;
    return capture_info(stream_of(stream, false), status, id, graph, dependencies, count);
}

CUresult cuStreamGetCaptureInfo_v3_ptsz(INFO_3)
{
    if (edges != NULL)
        *edges = NULL;
    return capture_info(stream_of(stream, true), status, id, graph, dependencies, count);
}

/* Makes a stream wait for an event: its later work begins after the moment of the event. If the event is one of a
 * captured stream, the waiting stream joins that capture. */
static CUresult wait_event(CUstream stream, CUevent event)
{
    driver_lock();
    CUstream from = event->captured ? event->captured_on : NULL;
    if (from != NULL && from->capture == CU_STREAM_CAPTURE_STATUS_ACTIVE &&
        stream->capture == CU_STREAM_CAPTURE_STATUS_NONE) {
        stream->graph = from->graph;
        stream->last = from->last;
        stream->capture = from->capture;
        stream->mode = from->mode;
        stream->capturer = from->capturer;
        stream->next_capturing = capturing;
        capturing = stream;
    }
    if (event->recorded && !event->captured)
        hold_back(stream, event->at);
    driver_unlock();
    return CUDA_SUCCESS;
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags)
{
    CUstream on = stream_of(stream, false);
    if (flags != CU_EVENT_WAIT_EXTERNAL || on->capture == CU_STREAM_CAPTURE_STATUS_NONE)
        return wait_event(on, event);
    driver_lock();
    CUresult result = submit(on, (struct node){.kind = WAIT_NODE}, 0, 0);
    driver_unlock();
    return result;
}

CUresult cuStreamWaitEvent_ptsz(CUstream stream, CUevent event, unsigned int flags)
{
    (void)flags;
    return wait_event(stream_of(stream, true), event);
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    CUstreamCaptureMode before = thread_mode;
    thread_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}
