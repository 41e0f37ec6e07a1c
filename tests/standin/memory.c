/* Device memory, for which the stand-in uses host memory, and a kernel's effect on it. */
#include "driver.h"

#include <stdlib.h>
#include <string.h>

struct allocation {
    struct allocation *next;
    size_t bytes;
    uint64_t words[];
};

static struct allocation *allocations;

static CUdeviceptr address_of(struct allocation *allocation)
{
    return (CUdeviceptr)(uintptr_t)allocation->words;
}

CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes)
{
    if (bytes == 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (!has_current_context())
        return CUDA_ERROR_INVALID_CONTEXT;
    struct allocation *made = calloc(1, sizeof *made + bytes + 8);
    if (made == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    made->bytes = bytes;
    driver_lock();
    made->next = allocations;
    allocations = made;
    driver_unlock();
    *pointer = address_of(made);
    return CUDA_SUCCESS;
}

CUresult cuMemFree_v2(CUdeviceptr pointer)
{
    driver_lock();
    struct allocation **at = &allocations, *found;
    while (*at != NULL && address_of(*at) != pointer)
        at = &(*at)->next;
    found = *at;
    if (found != NULL)
        *at = found->next;
    uint64_t until = found != NULL ? done_at(current_context(), NULL) : 0;
    driver_unlock();
    sleep_until(until); /* the real driver waits for an idle device before it frees memory */
    free(found);
    return pointer == 0 || found != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Allocates memory in the order of a stream. During a capture, the call becomes a node of the graph. The
 * stand-in allocates immediately in any case. */
CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t bytes, CUstream stream)
{
    CUresult result = cuMemAlloc_v2(pointer, bytes);
    driver_lock();
    if (result == CUDA_SUCCESS)
        result = submit(stream_of(stream, false), (struct node){.kind = ALLOC_NODE}, 0, 0);
    driver_unlock();
    return result;
}

CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream)
{
    CUstream on = stream_of(stream, false);
    if (on->capture == CU_STREAM_CAPTURE_STATUS_NONE)
        return cuMemFree_v2(pointer);
    driver_lock();
    CUresult result = submit(on, (struct node){.kind = FREE_NODE}, 0, 0);
    driver_unlock();
    return result;
}

CUresult cuMemGetInfo_v2(size_t *free, size_t *total)
{
    const char *text = getenv("STANDIN_FREE_MB");
    if (!has_current_context())
        return CUDA_ERROR_INVALID_CONTEXT;
    *total = (size_t)1 << 30;
    *free = text != NULL ? (size_t)atol(text) << 20 : *total;
    return CUDA_SUCCESS;
}

static CUresult set(CUdeviceptr to, unsigned char value, size_t bytes, CUstream stream)
{
    if (!has_current_context())
        return CUDA_ERROR_INVALID_CONTEXT;
    tool_enter();
    driver_lock();
    CUresult result = submit(stream,
                             (struct node){.kind = SET_NODE,
                                           .to = (void *)(uintptr_t)to,
                                           .value = value,
                                           .bytes = bytes},
                             0, 0);
    driver_unlock();
    tool_leave();
    return result;
}

CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t bytes, CUstream stream)
{
    return set(to, value, bytes, stream_of(stream, false));
}

CUresult cuMemsetD8Async_ptsz(CUdeviceptr to, unsigned char value, size_t bytes, CUstream stream)
{
    return set(to, value, bytes, stream_of(stream, true));
}

/* Runs a kernel. If its first parameter is a buffer, the buffer's first word changes in a way that depends on every
 * launch before: a lost, doubled or reordered launch shows in the program's result. (The PTX version is `mix` in
 * tests/fixtures.) */
void run_kernel(CUdeviceptr buffer)
{
    struct allocation *found = allocations;
    while (found != NULL && address_of(found) != buffer)
        found = found->next;
    if (found != NULL && found->bytes >= 2 * sizeof(uint64_t))
        found->words[0] = found->words[0] * UINT64_C(6364136223846793005) +
                          UINT64_C(1442695040888963407) + found->words[1];
}

/* Copies without logging. Callers are the copy functions that are not in the library's table of calls. */
static CUresult copy_plain(void *to, const void *from, size_t bytes)
{
    if (!has_current_context())
        return CUDA_ERROR_INVALID_CONTEXT;
    driver_lock();
    memcpy(to, from, bytes);
    uint64_t until = done_at(current_context(), NULL);
    driver_unlock();
    sleep_until(until);
    return CUDA_SUCCESS;
}

static void *host(CUdeviceptr pointer)
{
    return (void *)(uintptr_t)pointer;
}

CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    return copy_plain(host(to), host(from), bytes);
}

CUresult cuMemcpy_ptds(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    return copy_plain(host(to), host(from), bytes);
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes)
{
    return copy_plain(host(to), from, bytes);
}

CUresult cuMemcpyHtoD_v2_ptds(CUdeviceptr to, const void *from, size_t bytes)
{
    return copy_plain(host(to), from, bytes);
}

static CUresult copy_in(CUdeviceptr to, const void *from, size_t bytes, CUstream stream)
{
    if (!has_current_context())
        return CUDA_ERROR_INVALID_CONTEXT;
    tool_enter();
    driver_lock();
    pass_call();
    CUresult result = submit(
        stream, (struct node){.kind = COPY_NODE, .to = host(to), .from = from, .bytes = bytes, .direction = 1},
        0, 0);
    driver_unlock();
    tool_leave();
    return result;
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream stream)
{
    return copy_in(to, from, bytes, stream_of(stream, false));
}

CUresult cuMemcpyHtoDAsync_v2_ptsz(CUdeviceptr to, const void *from, size_t bytes, CUstream stream)
{
    return copy_in(to, from, bytes, stream_of(stream, true));
}

static CUresult copy_within(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    if (!has_current_context())
        return CUDA_ERROR_INVALID_CONTEXT;
    tool_enter();
    driver_lock();
    CUresult result = submit(
        stream, (struct node){.kind = COPY_NODE, .to = host(to), .from = host(from), .bytes = bytes, .direction = 8},
        0, 0);
    driver_unlock();
    tool_leave();
    return result;
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    return copy_within(to, from, bytes, stream_of(stream, false));
}

CUresult cuMemcpyDtoDAsync_v2_ptsz(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    return copy_within(to, from, bytes, stream_of(stream, true));
}

/* Copies to the host and waits. The copy waits for the work of one stream: the legacy stream, or the thread's
 * own default stream. */
static CUresult copy_out(const char *function, void *to, CUdeviceptr from, size_t bytes,
                         bool per_thread)
{
    CUstream stream = stream_of(NULL, per_thread);
    tool_enter();
    driver_lock();
    CUresult result = refuse_under_capture(function, to, stream);
    if (result == CUDA_SUCCESS)
        result = call_admit(function, to, NEEDS_CONTEXT);
    struct span span = {0, 0};
    if (result == CUDA_SUCCESS)
        span = work(stream);
    uint64_t until = done_at(NULL, stream);
    driver_unlock();
    if (result == CUDA_SUCCESS) {
        host_wait(until);
        driver_lock();
        tool_run(stream, &(struct node){.kind = COPY_NODE, .bytes = bytes, .direction = 2}, 0, 0,
                 span);
        memcpy(to, host(from), bytes);
        log_call("", function, "_end", to);
        driver_unlock();
    }
    return call_end(function, result);
}

CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes)
{
    return copy_out("cuMemcpyDtoH_v2", to, from, bytes, false);
}

CUresult cuMemcpyDtoH_v2_ptds(void *to, CUdeviceptr from, size_t bytes)
{
    return copy_out("cuMemcpyDtoH_v2_ptds", to, from, bytes, true);
}

static CUresult copy_out_async(const char *function, void *to, CUdeviceptr from, size_t bytes,
                               CUstream stream)
{
    tool_enter();
    driver_lock();
    CUresult result = call_admit(function, to, NEEDS_CONTEXT);
    pass_call();
    if (result == CUDA_SUCCESS)
        result = submit(
            stream, (struct node){.kind = COPY_NODE, .to = to, .from = host(from), .bytes = bytes, .direction = 2},
            0, 0);
    driver_unlock();
    return call_end(function, result);
}

CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    return copy_out_async("cuMemcpyDtoHAsync_v2", to, from, bytes, stream_of(stream, false));
}

CUresult cuMemcpyDtoHAsync_v2_ptsz(void *to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    return copy_out_async("cuMemcpyDtoHAsync_v2_ptsz", to, from, bytes, stream_of(stream, true));
}

/* Functions of CUDA 2 and 3, which take 32-bit device addresses. No memory of this process has
 * such an address, so the calls are logged, and copying any bytes is an error. */
static CUresult copy_out_v1(const char *function, const void *to, size_t bytes, bool waits)
{
    tool_enter();
    driver_lock();
    CUresult result = call_admit(function, to, NEEDS_CONTEXT);
    if (result == CUDA_SUCCESS && waits)
        log_call("", function, "_end", to);
    if (result == CUDA_SUCCESS && bytes > 0)
        result = CUDA_ERROR_INVALID_VALUE;
    driver_unlock();
    return call_end(function, result);
}

CUresult cuMemcpyDtoH(void *to, CUdeviceptr_v1 from, unsigned int bytes)
{
    (void)from;
    return copy_out_v1("cuMemcpyDtoH", to, bytes, true);
}

CUresult cuMemcpyDtoH_ptds(void *to, CUdeviceptr_v1 from, unsigned int bytes)
{
    (void)from;
    return copy_out_v1("cuMemcpyDtoH_ptds", to, bytes, true);
}

CUresult cuMemcpyDtoHAsync(void *to, CUdeviceptr_v1 from, unsigned int bytes, CUstream stream)
{
    (void)from;
    (void)stream;
    return copy_out_v1("cuMemcpyDtoHAsync", to, bytes, false);
}

CUresult cuMemcpyDtoHAsync_ptsz(void *to, CUdeviceptr_v1 from, unsigned int bytes, CUstream stream)
{
    (void)from;
    (void)stream;
    return copy_out_v1("cuMemcpyDtoHAsync_ptsz", to, bytes, false);
}
