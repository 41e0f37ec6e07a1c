/* CUDA events, which are points in a stream. Calls during a capture are refused as CUDA's programming guide and
 * the documentation of cudaThreadExchangeStreamCaptureMode say. */
#include "driver.h"

#include <stdlib.h>

static CUevent all;

/* Ends the program with a message if it uses a destroyed event. With the real driver, such a use is undefined
 * behavior. */
static void want_alive(const char *function, CUevent event)
{
    if (event->gone)
        use_after_end(function, "an event");
}

/* Marks all events of the context as destroyed. The caller holds the lock. */
void end_events_of(CUcontext context)
{
    for (CUevent event = all; event != NULL; event = event->next)
        if (event->context == context)
            event->gone = true;
}

static CUresult admit(const char *function, CUevent event)
{
    CUresult result = driver_state();
    if (result == CUDA_SUCCESS && event == NULL)
        result = CUDA_ERROR_INVALID_HANDLE;
    if (result == CUDA_SUCCESS)
        want_alive(function, event);
    return result == CUDA_SUCCESS ? injected(function) : result;
}

CUresult cuEventCreate(CUevent *event, unsigned int flags)
{
    if (!has_current_context())
        return CUDA_ERROR_INVALID_CONTEXT;
    driver_lock();
    CUresult result =
        flags & CU_EVENT_DISABLE_TIMING ? CUDA_SUCCESS : injected("cuEventCreate");
    if (result == CUDA_SUCCESS) {
        *event = calloc(1, sizeof **event);
        result = *event == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
    }
    if (result == CUDA_SUCCESS) {
        (*event)->context = current_context();
        (*event)->has_time = !(flags & CU_EVENT_DISABLE_TIMING);
        (*event)->next = all;
        all = *event;
    }
    driver_unlock();
    return result;
}

CUresult cuEventDestroy_v2(CUevent event)
{
    driver_lock();
    CUresult result = admit("cuEventDestroy", event);
    if (result == CUDA_SUCCESS)
        event->gone = true;
    driver_unlock();
    return result;
}

CUresult cuEventQuery(CUevent event)
{
    driver_lock();
    CUresult result = admit("cuEventQuery", event);
    if (result == CUDA_SUCCESS)
        result = refuse_unsafe("cuEventQuery", event);
    if (result == CUDA_SUCCESS && event->captured)
        result = CUDA_ERROR_CAPTURED_EVENT;
    if (result == CUDA_SUCCESS && event->at > now())
        result = CUDA_ERROR_NOT_READY;
    driver_unlock();
    return result;
}

CUresult cuEventElapsedTime(float *milliseconds, CUevent from, CUevent to)
{
    driver_lock();
    CUresult result = admit("cuEventElapsedTime", from);
    if (result == CUDA_SUCCESS)
        result = admit("cuEventElapsedTime", to);
    if (result == CUDA_SUCCESS)
        result = refuse_unsafe("cuEventElapsedTime", from);
    if (result == CUDA_SUCCESS &&
        (!from->has_time || !to->has_time || !from->recorded || !to->recorded ||
         from->captured || to->captured || from->context != to->context))
        result = CUDA_ERROR_INVALID_HANDLE;
    if (result == CUDA_SUCCESS && (from->at > now() || to->at > now()))
        result = CUDA_ERROR_NOT_READY;
    if (result == CUDA_SUCCESS)
        *milliseconds = (float)((double)(int64_t)(to->at - from->at) / 1e6);
    driver_unlock();
    return result;
}

static CUresult record(const char *function, CUevent event, CUstream stream)
{
    driver_lock();
    CUresult result = admit("cuEventRecord", event);
    if (result == CUDA_SUCCESS)
        result = refuse_implicit(function, event, stream);
    if (result == CUDA_SUCCESS && event->context != stream->context)
        result = CUDA_ERROR_INVALID_HANDLE;
    if (result == CUDA_SUCCESS && stream->capture == CU_STREAM_CAPTURE_STATUS_INVALIDATED)
        result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (result == CUDA_SUCCESS) {
        event->captured = stream->capture != CU_STREAM_CAPTURE_STATUS_NONE;
        event->captured_on = event->captured ? stream : NULL;
        event->recorded = true;
        if (!event->captured)
            event->at = mark(stream);
    }
    driver_unlock();
    return result;
}

CUresult cuEventRecord(CUevent event, CUstream stream)
{
    return record("cuEventRecord", event, stream_of(stream, false));
}

CUresult cuEventRecord_ptsz(CUevent event, CUstream stream)
{
    return record("cuEventRecord_ptsz", event, stream_of(stream, true));
}

/* Records an event. During a capture, a record with the external flag becomes a node of the graph. */
CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned int flags)
{
    CUstream on = stream_of(stream, false);
    if (flags != CU_EVENT_RECORD_EXTERNAL || on->capture == CU_STREAM_CAPTURE_STATUS_NONE)
        return record("cuEventRecordWithFlags", event, on);
    driver_lock();
    CUresult result = submit(on, (struct node){.kind = RECORD_NODE}, 0, 0);
    driver_unlock();
    return result;
}

CUresult cuEventSynchronize(CUevent event)
{
    static const char function[] = "cuEventSynchronize";
    tool_enter();
    driver_lock();
    bool captured = event != NULL && event->captured;
    uint64_t until = 0;
    CUresult result;
    if (captured) {
        log_call("ILLEGAL", function, "", event);
        result = CUDA_ERROR_CAPTURED_EVENT;
    } else {
        result = call_admit(function, event, NEEDS_DRIVER);
        if (result == CUDA_SUCCESS && event == NULL)
            result = CUDA_ERROR_INVALID_HANDLE;
    }
    if (result == CUDA_SUCCESS) {
        want_alive(function, event);
        until = event->at;
    }
    driver_unlock();
    if (result == CUDA_SUCCESS) {
        host_wait(until);
        driver_lock();
        log_call("", function, "_end", event);
        driver_unlock();
    }
    return call_end(function, result);
}
