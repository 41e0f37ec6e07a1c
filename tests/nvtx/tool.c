/* An NVTX tool that counts all events of all modules by name, and prints the counts at the end in one line on
 * standard error. It returns its own levels, identifiers and handles, and checks that it gets them back. With
 * TOOL_FAILS, it installs its functions in the module's table, but then reports a failure. With TOOL_WAITS=N, a push
 * writes a byte to descriptor N and never returns. */
#include <nvtx3/nvToolsExtPayload.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <wchar.h>

typedef void (*function)(void);
typedef struct {
    size_t size;
    int (*table)(int, function ***, unsigned *);
} callbacks;

static int modules, extensions, pushes, pops, starts, ends, marks, domains, destroyed, strings, foreign;
static __thread int level;
static uint64_t ids = 100;
static char handles[256];
static unsigned used;

#define ADD(count) __atomic_add_fetch(&count, 1, __ATOMIC_RELAXED)

static void *handle(void)
{
    return &handles[ADD(used) % sizeof handles];
}

static void mine(const void *given)
{
    if (given != NULL && ((const char *)given < handles || (const char *)given >= handles + sizeof handles))
        ADD(foreign);
}

static int push(void)
{
    ADD(pushes);
    const char *waits = getenv("TOOL_WAITS");
    if (waits != NULL && write(atoi(waits), "", 1) == 1)
        pause();
    return 10 + level++;
}

static void attributes(const nvtxEventAttributes_t *given)
{
    if (given->messageType == NVTX_MESSAGE_TYPE_REGISTERED)
        mine(given->message.registered);
}

static int push_a(const char *name) { return (void)name, push(); }
static int push_w(const wchar_t *name) { return (void)name, push(); }
static int push_ex(const nvtxEventAttributes_t *given) { return attributes(given), push(); }
static int domain_push(void *domain, const nvtxEventAttributes_t *given)
{
    mine(domain);
    attributes(given);
    return push();
}
static int pop(void)
{
    ADD(pops);
    return 10 + --level;
}
static int domain_pop(void *domain) { return mine(domain), pop(); }
static uint64_t start(void)
{
    ADD(starts);
    return ADD(ids);
}
static uint64_t start_a(const char *name) { return (void)name, start(); }
static uint64_t domain_start(void *domain, const nvtxEventAttributes_t *given)
{
    mine(domain);
    attributes(given);
    return start();
}
static void end(uint64_t id)
{
    if (id <= 100 || id > ids)
        ADD(foreign);
    ADD(ends);
}
static void domain_end(void *domain, uint64_t id) { mine(domain), end(id); }
static void mark_a(const char *name) { (void)name, ADD(marks); }
static void domain_mark(void *domain, const nvtxEventAttributes_t *given)
{
    mine(domain);
    attributes(given);
    ADD(marks);
}
static void *register_a(void *domain, const char *text) { return mine(domain), (void)text, ADD(strings), handle(); }
static void *register_w(void *domain, const wchar_t *text) { return mine(domain), (void)text, ADD(strings), handle(); }
static void *create_a(const char *name) { return (void)name, ADD(domains), handle(); }
static void *create_w(const wchar_t *name) { return (void)name, ADD(domains), handle(); }
static void destroy(void *domain) { mine(domain), ADD(destroyed); }
__attribute__((unused)) static uint64_t schema(void *domain, const void *schema) { return (void)schema, mine(domain), 4711; }

static void set(function **table, unsigned size, unsigned index, void *to)
{
    if (index < size)
        *table[index] = (function)to;
}

int InitializeInjectionNvtx2(const void *(*export)(uint32_t))
{
    const callbacks *module = export(1);
    function **core, **domain;
    unsigned core_size, domain_size;
    if (!module->table(1, &core, &core_size) || !module->table(5, &domain, &domain_size))
        return 0;
    ADD(modules);
    set(core, core_size, 2, mark_a);
    set(core, core_size, 5, start_a);
    set(core, core_size, 7, end);
    set(core, core_size, 8, push_ex);
    set(core, core_size, 9, push_a);
    set(core, core_size, 10, push_w);
    set(core, core_size, 11, pop);
    set(domain, domain_size, 1, domain_mark);
    set(domain, domain_size, 2, domain_start);
    set(domain, domain_size, 3, domain_end);
    set(domain, domain_size, 4, domain_push);
    set(domain, domain_size, 5, domain_pop);
    set(domain, domain_size, 10, register_a);
    set(domain, domain_size, 11, register_w);
    set(domain, domain_size, 12, create_a);
    set(domain, domain_size, 13, create_w);
    set(domain, domain_size, 14, destroy);
    return getenv("TOOL_FAILS") == NULL;
}

#ifndef NO_EXTENSION
int InitializeInjectionNvtxExtension(nvtxExtModuleInfo_t *module)
{
    ADD(extensions);
    if (module->segmentsCount > 0 && module->segments[0].slotCount > 0)
        module->segments[0].functionSlots[0] = (intptr_t)schema;
    return 1;
}
#endif

__attribute__((destructor)) static void print_counts(void)
{
    char line[512];
    int length = snprintf(line, sizeof line,
                          "tool: modules=%d extensions=%d pushes=%d pops=%d starts=%d ends=%d marks=%d domains=%d "
                          "destroyed=%d strings=%d foreign=%d\n",
                          modules, extensions, pushes, pops, starts, ends, marks, domains, destroyed, strings, foreign);
    if (write(2, line, (size_t)length) != length)
        _exit(99);
}
