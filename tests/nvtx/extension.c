/* Uses an NVTX extension (payloads), and a mark. Rules for ranges count neither of them. */
#include <nvtx3/nvToolsExtPayload.h>

#include "loop.h"

int main(void)
{
    nvtxPayloadSchemaEntry_t entry = {0, NVTX_PAYLOAD_ENTRY_TYPE_INT32, "n", NULL, 0, 0, NULL, NULL};
    nvtxPayloadSchemaAttr_t schema = {.fieldMask = NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_TYPE |
                                                   NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_ENTRIES |
                                                   NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_NUM_ENTRIES,
                                      .type = NVTX_PAYLOAD_SCHEMA_TYPE_STATIC,
                                      .entries = &entry,
                                      .numEntries = 1};
    use_cuda();
    nvtxMarkA("mark");
    printf("schema %llu\n", (unsigned long long)nvtxPayloadSchemaRegister(NULL, &schema));
    printf("enabled %d\n", nvtxDomainIsEnabled(NULL));
    nvtxRangePushA("step");
    work();
    nvtxRangePop();
    return 0;
}
