/* Checks if the calls of a given function from Python's own module lead into the shim, by the module's GOT slot
 * for the function. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

extern void *PyEval_SaveThread(void);

struct asked {
    const char *name;
    int led;
};

static int is_shims(uintptr_t address)
{
    Dl_info info;
    return dladdr((void *)address, &info) && strcmp(info.dli_fname, getenv("LD_PRELOAD")) == 0;
}

static uintptr_t where(struct dl_phdr_info *module, ElfW(Addr) address)
{
    /* The loader has replaced some of the dynamic section's offsets by addresses in memory. A
     * value below the module's base address is still an offset. */
    return address < module->dlpi_addr ? module->dlpi_addr + address : address;
}

static int look(struct dl_phdr_info *module, size_t size, void *data)
{
    struct asked *asked = data;
    const ElfW(Dyn) *dynamic = NULL;
    int is_it = 0;
    (void)size;
    for (int i = 0; i < module->dlpi_phnum; i++) {
        const ElfW(Phdr) *header = &module->dlpi_phdr[i];
        uintptr_t start = module->dlpi_addr + header->p_vaddr;
        if (header->p_type == PT_LOAD && (uintptr_t)PyEval_SaveThread - start < header->p_memsz)
            is_it = 1;
        if (header->p_type == PT_DYNAMIC)
            dynamic = (const ElfW(Dyn) *)start;
    }
    if (!is_it || dynamic == NULL)
        return 0;
    const ElfW(Sym) *symbols = NULL;
    const char *strings = NULL;
    uintptr_t tables[2] = {0, 0};
    size_t sizes[2] = {0, 0};
    for (; dynamic->d_tag != DT_NULL; dynamic++) {
        switch (dynamic->d_tag) {
        case DT_SYMTAB: symbols = (void *)where(module, dynamic->d_un.d_ptr); break;
        case DT_STRTAB: strings = (void *)where(module, dynamic->d_un.d_ptr); break;
        case DT_JMPREL: tables[0] = where(module, dynamic->d_un.d_ptr); break;
        case DT_PLTRELSZ: sizes[0] = dynamic->d_un.d_val; break;
        case DT_RELA: tables[1] = where(module, dynamic->d_un.d_ptr); break;
        case DT_RELASZ: sizes[1] = dynamic->d_un.d_val; break;
        }
    }
    for (int table = 0; table < 2; table++) {
        const ElfW(Rela) *entry = (void *)tables[table];
        for (size_t i = 0; i < sizes[table] / sizeof *entry; i++) {
            const char *name = strings + symbols[ELF64_R_SYM(entry[i].r_info)].st_name;
            if (ELF64_R_SYM(entry[i].r_info) != 0 && strcmp(name, asked->name) == 0)
                asked->led |= is_shims(*(uintptr_t *)(module->dlpi_addr + entry[i].r_offset));
        }
    }
    return 1;
}

int is_led(const char *name)
{
    struct asked asked = {name, 0};
    dl_iterate_phdr(look, &asked);
    return asked.led;
}
