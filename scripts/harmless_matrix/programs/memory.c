/* Makes allocations of all kinds, checks their contents, and loses none of them. Also sorts and searches. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int by_value(const void *a, const void *b)
{
    const uint32_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

int main(void)
{
    uint32_t state = 1, sum = 0;
    void *kept[256] = {0};
    size_t sizes[256] = {0};
    for (int i = 0; i < 20000; i++) {
        state = state * 1664525 + 1013904223;
        unsigned slot = state >> 24;
        for (size_t n = 0; n < sizes[slot]; n += 97)
            sum += ((unsigned char *)kept[slot])[n];
        size_t size = 1 + (state >> 8) % 4096;
        if (state & 64)
            kept[slot] = realloc(kept[slot], size);
        else {
            free(kept[slot]);
            kept[slot] = state & 128 ? aligned_alloc(64, (size + 63) / 64 * 64) : calloc(size, 1);
        }
        if (!kept[slot])
            return 1;
        memset(kept[slot], i, size);
        sizes[slot] = size;
    }
    for (int i = 0; i < 256; i++)
        free(kept[i]);
    uint32_t *numbers = malloc(100000 * sizeof *numbers);
    for (int i = 0; i < 100000; i++)
        numbers[i] = state = state * 1664525 + 1013904223;
    qsort(numbers, 100000, sizeof *numbers, by_value);
    for (int i = 1; i < 100000; i++)
        if (numbers[i] < numbers[i - 1])
            return 2;
    printf("sum %u median %u\n", sum, numbers[50000]);
    free(numbers);
    return 4;
}
