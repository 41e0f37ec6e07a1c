/* A file in which each thread of a program counts what it has done, in a line of 64 bytes. The file outlives the
 * program, so a test can compare it with the record. */
#ifndef LINES_H
#define LINES_H

#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { LINES = 16384 };

/* One line of the file: the number of a thread or child process, and its numbers of calls, popped ranges, ended
 * start-end ranges, and marks. */
struct line {
    _Atomic uint64_t number, calls, pushed, started, marked;
    uint64_t unused[3];
};

static struct line *lines;

static inline void lines_open(const char *path)
{
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0 || ftruncate(file, LINES * sizeof *lines) != 0)
        exit(3);
    lines = mmap(NULL, LINES * sizeof *lines, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (lines == MAP_FAILED)
        exit(3);
}

static inline void count(_Atomic uint64_t *counter)
{
    atomic_fetch_add_explicit(counter, 1, memory_order_release);
}

#endif
