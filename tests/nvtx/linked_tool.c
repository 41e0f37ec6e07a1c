/* tool.c as a part of what it is linked into. */
#define NVTX_STATIC_INJECTION_IMPL
#define NVTX_NO_IMPL
#include "tool.c"

int (*InitializeInjectionNvtx2_fnptr)(const void *(*)(uint32_t)) = InitializeInjectionNvtx2;
int (*InitializeInjectionNvtxExtension_fnptr)(nvtxExtModuleInfo_t *) = InitializeInjectionNvtxExtension;
