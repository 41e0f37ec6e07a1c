/* Names of functions of CUDA's libraries, and names that look similar. Some are the driver's and the runtime's own. */
#ifndef DISPATCHER_H
#define DISPATCHER_H

#define NAMES(X)                                                                                   \
    X(cudnnCreate) X(cublasCreate_v2) X(cuGraphLaunch) X(cudaGraphLaunch) X(cudaStreamSynchronize) \
    X(cuMemAlloc_v2) X(cuOwnFunction) X(cu) X(nvmlInit_v2)

#endif
