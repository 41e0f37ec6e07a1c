// Counts the calls of two driver functions (graph launches and stream waits) with the GOTCHA library. scripts/bench
// compares the cost of this with that of tllmprof. Built only if GOTCHA's header and library are installed.
#include <gotcha/gotcha.h>

static gotcha_wrappee_handle_t launch_handle, wait_handle;
static __thread unsigned long launches, waits;

static int launch(void *exec, void *stream) {
    launches++;
    return ((int (*)(void *, void *))gotcha_get_wrappee(launch_handle))(exec, stream);
}

static int stream_wait(void *stream) {
    waits++;
    return ((int (*)(void *))gotcha_get_wrappee(wait_handle))(stream);
}

static gotcha_binding_t bindings[] = {
    { "cuGraphLaunch", launch, &launch_handle },
    { "cuStreamSynchronize", stream_wait, &wait_handle },
};

__attribute__((constructor)) static void wrap(void) { gotcha_wrap(bindings, 2, "bench"); }
