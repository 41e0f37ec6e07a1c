/* Names that CUDA's libraries have, or look as if they had: some of them the driver's and the runtime's own. */
#ifndef DISPATCHER_H
#define DISPATCHER_H

#define NAMES(X)                                                                                   \
    X(cudnnCreate) X(cublasCreate_v2) X(cuGraphLaunch) X(cudaGraphLaunch) X(cudaStreamSynchronize) \
    X(cuMemAlloc_v2) X(cuOwnFunction) X(cu) X(nvmlInit_v2)

#endif
