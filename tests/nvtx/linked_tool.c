/* Compiles the tool of tool.c so that it can be linked into a program or library. NVTX then finds it without an
 * environment variable. */
#define NVTX_STATIC_INJECTION_IMPL
#define NVTX_NO_IMPL
#include "tool.c"

int (*InitializeInjectionNvtx2_fnptr)(const void *(*)(uint32_t)) = InitializeInjectionNvtx2;
int (*InitializeInjectionNvtxExtension_fnptr)(nvtxExtModuleInfo_t *) = InitializeInjectionNvtxExtension;
