/* The runtime functions that depend on the default stream. runtime.c includes this file once for
 * the legacy and once for the per-thread stream. FORM() adds the suffix to the names. */

cudaError_t FORM(cudaStreamQuery)(cudaStream_t stream)
{
    THROUGH(FORM(cuStreamQuery), stream);
}

cudaError_t FORM(cudaStreamSynchronize)(cudaStream_t stream)
{
    THROUGH(FORM(cuStreamSynchronize), stream);
}

cudaError_t FORM(cudaStreamIsCapturing)(cudaStream_t stream,
                                        enum cudaStreamCaptureStatus *status)
{
    THROUGH(FORM(cuStreamIsCapturing), stream, (CUstreamCaptureStatus *)status);
}

cudaError_t FORM(cudaStreamBeginCapture)(cudaStream_t stream,
                                         enum cudaStreamCaptureMode mode)
{
    THROUGH(FORM(cuStreamBeginCapture_v2), stream, (CUstreamCaptureMode)mode);
}

cudaError_t FORM(cudaStreamBeginCaptureToGraph)(
    cudaStream_t stream, cudaGraph_t graph, const cudaGraphNode_t *dependencies,
    const cudaGraphEdgeData *edges, size_t count, enum cudaStreamCaptureMode mode)
{
    THROUGH(FORM(cuStreamBeginCaptureToGraph), stream, graph, dependencies,
            (const CUgraphEdgeData *)edges, count, (CUstreamCaptureMode)mode);
}

cudaError_t FORM(cudaStreamEndCapture)(cudaStream_t stream, cudaGraph_t *graph)
{
    THROUGH(FORM(cuStreamEndCapture), stream, graph);
}

cudaError_t FORM(cudaEventRecord)(cudaEvent_t event, cudaStream_t stream)
{
    THROUGH(FORM(cuEventRecord), event, stream);
}

cudaError_t FORM(cudaGraphLaunch)(cudaGraphExec_t exec, cudaStream_t stream)
{
    THROUGH(FORM(cuGraphLaunch), exec, stream);
}

cudaError_t FORM(cudaLaunchKernel)(const void *function, dim3 grid, dim3 block,
                                   void **params, size_t sharedBytes,
                                   cudaStream_t stream)
{
    THROUGH(FORM(cuLaunchKernel), KERNEL, SHAPE, params, NULL);
}

cudaError_t FORM(cudaLaunchKernelExC)(const cudaLaunchConfig_t *config,
                                      const void *function, void **params)
{
    CUlaunchConfig converted = driver_config(config);
    THROUGH(FORM(cuLaunchKernelEx), &converted, KERNEL, params, NULL);
}

cudaError_t FORM(cudaLaunchCooperativeKernel)(const void *function, dim3 grid,
                                              dim3 block, void **params,
                                              size_t sharedBytes, cudaStream_t stream)
{
    THROUGH(FORM(cuLaunchCooperativeKernel), KERNEL, SHAPE, params);
}
