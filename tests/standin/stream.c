/* Streams, events, host waits and stream captures.
 *
 * Waits while a capture is under way are refused, logged as ILLEGAL, and spoil
 * the capture, as CUDA's programming guide has it ("Prohibited and Unhandled
 * Operations"): on the capturing stream, on an event recorded there, on the
 * legacy stream beside a blocking one, and on the whole context in any mode. */
#include "driver.h"

#include <stdlib.h>

static struct CUstream_st legacy;
static CUstream capturing;

/* What a handle means to a function of the legacy or the per-thread kind. */
CUstream stream_of(CUstream handle, bool per_thread)
{
    static __thread CUstream own;
    if (handle == CU_STREAM_PER_THREAD || (handle == NULL && per_thread)) {
        if (own == NULL)
            own = calloc(1, sizeof *own); /* outlives its thread, as a capture may */
        return own;
    }
    return handle == NULL || handle == CU_STREAM_LEGACY ? &legacy : handle;
}

static bool forbidden(CUstream stream)
{
    if (stream == NULL) /* the whole context */
        return capturing != NULL;
    if (stream != &legacy)
        return stream->capture != CU_STREAM_CAPTURE_STATUS_NONE;
    for (CUstream other = capturing; other != NULL; other = other->next_capturing)
        if (!(other->flags & CU_STREAM_NON_BLOCKING))
            return true;
    return false;
}

CUresult refuse_under_capture(const char *function, const void *first, CUstream stream)
{
    if (driver_state() != CUDA_SUCCESS || !forbidden(stream))
        return CUDA_SUCCESS; /* call_admit() says what is wrong with the process itself */
    log_call("ILLEGAL", function, "", first);
    for (CUstream other = capturing; other != NULL; other = other->next_capturing)
        if (stream == NULL || stream == &legacy || stream == other)
            other->capture = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
    return stream == &legacy ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
                             : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult cuStreamCreate(CUstream *stream, unsigned int flags)
{
    if (!has_current_context())
        return CUDA_ERROR_INVALID_CONTEXT;
    CUstream made = calloc(1, sizeof *made);
    if (made == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    made->flags = flags;
    *stream = made;
    return CUDA_SUCCESS;
}

CUresult cuStreamDestroy_v2(CUstream stream)
{
    if (stream == NULL || stream->capture != CU_STREAM_CAPTURE_STATUS_NONE)
        return CUDA_ERROR_INVALID_HANDLE;
    free(stream);
    return CUDA_SUCCESS;
}

CUresult cuStreamQuery(CUstream stream)
{
    (void)stream;
    return CUDA_SUCCESS;
}

CUresult cuStreamQuery_ptsz(CUstream stream)
{
    (void)stream;
    return CUDA_SUCCESS;
}

static CUresult wait(const char *function, const void *first, CUstream stream, enum need need)
{
    driver_lock();
    CUresult result = refuse_under_capture(function, first, stream);
    if (result == CUDA_SUCCESS)
        result = call_admit(function, first, need);
    driver_unlock();
    if (result == CUDA_SUCCESS) {
        host_wait();
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

CUresult cuEventCreate(CUevent *event, unsigned int flags)
{
    (void)flags;
    if (!has_current_context())
        return CUDA_ERROR_INVALID_CONTEXT;
    *event = calloc(1, sizeof **event);
    return *event == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

CUresult cuEventDestroy_v2(CUevent event)
{
    free(event);
    return CUDA_SUCCESS;
}

CUresult cuEventQuery(CUevent event)
{
    return event == NULL ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}

static CUresult record(CUevent event, CUstream stream)
{
    if (event == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    driver_lock();
    event->captured = stream->capture != CU_STREAM_CAPTURE_STATUS_NONE;
    driver_unlock();
    return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent event, CUstream stream)
{
    return record(event, stream_of(stream, false));
}

CUresult cuEventRecord_ptsz(CUevent event, CUstream stream)
{
    return record(event, stream_of(stream, true));
}

CUresult cuEventSynchronize(CUevent event)
{
    static const char function[] = "cuEventSynchronize";
    driver_lock();
    bool captured = event != NULL && event->captured;
    CUresult result;
    if (captured) {
        log_call("ILLEGAL", function, "", event);
        result = CUDA_ERROR_CAPTURED_EVENT;
    } else {
        result = call_admit(function, event, NEEDS_DRIVER);
        if (result == CUDA_SUCCESS && event == NULL)
            result = CUDA_ERROR_INVALID_HANDLE;
    }
    driver_unlock();
    if (result == CUDA_SUCCESS) {
        host_wait();
        driver_lock();
        log_call("", function, "_end", event);
        driver_unlock();
    }
    return call_end(function, result);
}

static CUresult begin(const char *function, CUstream handle, CUstream stream, CUgraph graph)
{
    driver_lock();
    CUresult result = call_admit(function, handle, NEEDS_CONTEXT);
    if (result == CUDA_SUCCESS) {
        if (stream == &legacy)
            result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        else if (stream->capture != CU_STREAM_CAPTURE_STATUS_NONE)
            result = CUDA_ERROR_ILLEGAL_STATE;
    }
    if (result == CUDA_SUCCESS) {
        stream->graph = graph != NULL ? graph : calloc(1, sizeof *graph);
        stream->capture = CU_STREAM_CAPTURE_STATUS_ACTIVE;
        stream->next_capturing = capturing;
        capturing = stream;
    }
    driver_unlock();
    return call_end(function, result);
}

CUresult cuStreamBeginCapture(CUstream stream)
{
    return begin("cuStreamBeginCapture", stream, stream_of(stream, false), NULL);
}

CUresult cuStreamBeginCapture_ptsz(CUstream stream)
{
    return begin("cuStreamBeginCapture_ptsz", stream, stream_of(stream, true), NULL);
}

CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode)
{
    (void)mode;
    return begin("cuStreamBeginCapture_v2", stream, stream_of(stream, false), NULL);
}

CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode)
{
    (void)mode;
    return begin("cuStreamBeginCapture_v2_ptsz", stream, stream_of(stream, true), NULL);
}

#ifndef LACKING
CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph,
                                     const CUgraphNode *dependencies, const CUgraphEdgeData *edges,
                                     size_t count, CUstreamCaptureMode mode)
{
    (void)dependencies, (void)edges, (void)count, (void)mode;
    return begin("cuStreamBeginCaptureToGraph", stream, stream_of(stream, false), graph);
}

CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph,
                                          const CUgraphNode *dependencies,
                                          const CUgraphEdgeData *edges, size_t count,
                                          CUstreamCaptureMode mode)
{
    (void)dependencies, (void)edges, (void)count, (void)mode;
    return begin("cuStreamBeginCaptureToGraph_ptsz", stream, stream_of(stream, true), graph);
}
#endif

static CUresult end(const char *function, CUstream handle, CUstream stream, CUgraph *graph)
{
    driver_lock();
    CUresult result = call_admit(function, handle, NEEDS_CONTEXT);
    if (result == CUDA_SUCCESS && stream->capture == CU_STREAM_CAPTURE_STATUS_NONE)
        result = CUDA_ERROR_ILLEGAL_STATE;
    if (result == CUDA_SUCCESS) {
        if (stream->capture == CU_STREAM_CAPTURE_STATUS_INVALIDATED)
            result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        if (graph != NULL)
            *graph = result == CUDA_SUCCESS ? stream->graph : NULL;
        stream->graph = NULL;
        stream->capture = CU_STREAM_CAPTURE_STATUS_NONE;
        CUstream *at = &capturing;
        while (*at != stream)
            at = &(*at)->next_capturing;
        *at = stream->next_capturing;
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
    driver_unlock();
    return CUDA_SUCCESS;
}

CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status)
{
    return is_capturing(stream_of(stream, false), status);
}

CUresult cuStreamIsCapturing_ptsz(CUstream stream, CUstreamCaptureStatus *status)
{
    return is_capturing(stream_of(stream, true), status);
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    static __thread CUstreamCaptureMode current = CU_STREAM_CAPTURE_MODE_GLOBAL;
    CUstreamCaptureMode before = current;
    current = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}
