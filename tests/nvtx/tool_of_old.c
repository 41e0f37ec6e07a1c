/* The tool of tool.c in the form of an older NVTX version, which does not support extensions. */
#define NO_EXTENSION
#include "tool.c"
