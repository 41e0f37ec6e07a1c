/* Links the tool of tool.c into a program or library. */
#define NVTX_STATIC_INJECTION_IMPL
#define NVTX_NO_IMPL
#include "tool.c"

int (*InitializeInjectionNvtx2_fnptr)(const void *(*)(uint32_t)) = InitializeInjectionNvtx2;
int (*InitializeInjectionNvtxExtension_fnptr)(nvtxExtModuleInfo_t *) = InitializeInjectionNvtxExtension;
