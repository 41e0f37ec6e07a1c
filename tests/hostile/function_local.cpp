/* Replaces functions of the C library. Each finds the real function in the initialiser of a static variable. This
 * initialiser must not be entered again while it runs. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <cstddef>
#include <cstdio>
#include <dlfcn.h>
#include <link.h>

#define NEXT(name) static auto *next = reinterpret_cast<decltype(&name)>(dlsym(RTLD_NEXT, #name))

extern "C" int dl_iterate_phdr(int (*visit)(dl_phdr_info *, size_t, void *), void *argument)
{
    NEXT(dl_iterate_phdr);
    return next(visit, argument);
}

extern "C" size_t strlen(const char *text) noexcept
{
    static auto *next = reinterpret_cast<size_t (*)(const char *)>(dlsym(RTLD_NEXT, "strlen"));
    return next(text);
}

static int count(dl_phdr_info *, size_t, void *modules)
{
    ++*static_cast<int *>(modules);
    return 0;
}

int main(int, char **argv)
{
    int modules = 0;
    dl_iterate_phdr(count, &modules);
    printf("%s, %s\n", modules > 1 ? "modules" : "no modules", strlen(argv[0]) > 0 ? "a name" : "no name");
    return 5;
}
