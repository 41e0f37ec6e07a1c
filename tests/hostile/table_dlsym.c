/* A preload that defines dlsym and finds the real one in the C library's symbol table. Overlays do this, because
 * glibc since 2.34 offers no other way. The preload does not call the next library's dlsym. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdint.h>
#include <string.h>

typedef void *look_up(void *, const char *);
static look_up *real;

static int look(struct dl_phdr_info *info, size_t size, void *data)
{
    (void)size;
    (void)data;
    if (strstr(info->dlpi_name, "/libc.so.") == NULL)
        return 0;
    const ElfW(Sym) *symbols = NULL;
    const char *strings = NULL;
    const uint32_t *hashes = NULL;
    for (int k = 0; k < info->dlpi_phnum; k++) {
        if (info->dlpi_phdr[k].p_type != PT_DYNAMIC)
            continue;
        const ElfW(Dyn) *entry = (const void *)(info->dlpi_addr + info->dlpi_phdr[k].p_vaddr);
        for (; entry->d_tag != DT_NULL; entry++) {
            const void *place = (const void *)entry->d_un.d_ptr;
            if (entry->d_tag == DT_SYMTAB)
                symbols = place;
            if (entry->d_tag == DT_STRTAB)
                strings = place;
            if (entry->d_tag == DT_GNU_HASH)
                hashes = place;
        }
    }
    uint32_t buckets = hashes[0], first = hashes[1], filters = hashes[2];
    const uint32_t *bucket = hashes + 4 + 2 * filters, *chain = bucket + buckets;
    for (uint32_t b = 0; b < buckets; b++)
        for (uint32_t n = bucket[b]; n != 0; n++) {
            if (strcmp(strings + symbols[n].st_name, "dlsym") == 0) {
                real = (look_up *)(info->dlpi_addr + symbols[n].st_value);
                return 1;
            }
            if (chain[n - first] & 1)
                break;
        }
    return 0;
}

void *dlsym(void *handle, const char *name)
{
    if (real == NULL)
        dl_iterate_phdr(look, NULL);
    return real(handle, name);
}
