// Marks by which a program itself records its iterations: NVTX marks "truth N" in the domain "truth". They are
// compared with the iterations that the library counts.
#pragma once
#include <nvtx3/nvToolsExt.h>
#include <stdio.h>

static inline void truth(long n) {
    static nvtxDomainHandle_t domain;
    if (!domain) domain = nvtxDomainCreateA("truth");
    char text[32];
    snprintf(text, sizeof text, "truth %ld", n);
    nvtxEventAttributes_t event = {};
    event.version = NVTX_VERSION;
    event.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    event.messageType = NVTX_MESSAGE_TYPE_ASCII;
    event.message.ascii = text;
    nvtxDomainMarkEx(domain, &event);
}
