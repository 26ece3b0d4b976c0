/* What a copy by `rep movsb` costs, by where its target begins within a page; the source begins at the
 * start of one. Linux copies so between a socket and its reader wherever the processor claims that it is
 * fast (FSRM). Nanoseconds, the least of twenty series. x86-64 only.
 *
 *   gcc -O2 bench/copies.c -o /tmp/copies && taskset -c 0 /tmp/copies
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { PAGE = 4096, SOURCES = 8, APART = 128 << 10, SERIES = 20, COPIES = 500 };

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec * 1e9 + at.tv_nsec;
}

static void copy(void *to, const void *from, size_t len) {
    __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(len) : : "memory");
}

int main(void) {
    static const size_t sizes[] = {34, 108, 512, 1700, 4096, 16384, 65536};
    static const size_t places[] = {0, 1, 16, 31, 32, 64, 2048, 4080};
    char *sources = aligned_alloc(PAGE, SOURCES * APART), *target = aligned_alloc(PAGE, APART);
    if (!sources || !target) return 1;
    memset(sources, 1, SOURCES * APART);
    memset(target, 1, APART);
    printf("bytes ");
    for (size_t p = 0; p < sizeof places / sizeof *places; p++) printf("%9zu", places[p]);
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        printf("\n%6zu", sizes[s]);
        for (size_t p = 0; p < sizeof places / sizeof *places; p++) {
            double least = 1e18;
            for (int series = 0; series < SERIES; series++) {
                double began = now();
                for (int i = 0; i < COPIES; i++)
                    copy(target + places[p], sources + i % SOURCES * APART, sizes[s]);
                double each = (now() - began) / COPIES;
                if (each < least) least = each;
            }
            printf("%9.1f", least);
        }
    }
    puts("");
    return 0;
}
