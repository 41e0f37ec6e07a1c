/* Names of the functions that dispatcher.c defines: names from CUDA's libraries, some of which the driver or the
 * runtime also defines, and names that only look similar. */
#ifndef DISPATCHER_H
#define DISPATCHER_H

#define NAMES(X)                                                                                   \
    X(cudnnCreate) X(cublasCreate_v2) X(cuGraphLaunch) X(cudaGraphLaunch) X(cudaStreamSynchronize) \
    X(cuMemAlloc_v2) X(cuOwnFunction) X(cu) X(nvmlInit_v2)

#endif
