/* What reading a Chakra v0.0.4 file into arrays costs at least: ids, types, durations, dependencies
   as a CSR of ids, and the values of five attributes, out of a mapped file. No checks, no notes, no
   strings, no positions, nothing for files that are not as the generator writes them.
   The mapping is populated and the records counted before the clock starts.
   Prints {"seconds": ..., "cpu": ..., "nodes": ..., "deps": ...}; cpu is what a busy machine leaves
   nearly as it is.
   Usage: floor_trace FILE */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

typedef const uint8_t *bytes;

static double seconds(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static inline uint64_t number(bytes *at) {
    uint64_t value = 0;
    unsigned shift = 0;
    bytes p = *at;
    for (; *p & 128; p++, shift += 7) value |= (uint64_t)(*p & 127) << shift;
    value |= (uint64_t)*p << shift;
    *at = p + 1;
    return value;
}

static inline bytes skip(bytes p, uint64_t tag) {
    switch (tag & 7) {
    case 0: number(&p); return p;
    case 1: return p + 8;
    case 2: {
        uint64_t length = number(&p);
        return p + length;
    }
    default: return p + 4;
    }
}

typedef struct {
    uint64_t *id, *dep;
    int64_t *first, *duration, *size;
    int32_t *stream;
    uint8_t *type, *coll, *cpu;
    size_t deps, room;
} Columns;

static inline void attribute(Columns *c, size_t i, bytes p) {
    p++; /* tag of the name */
    uint64_t length = number(&p);
    bytes name = p;
    p += length;
    if (length == 9 && !memcmp(name, "is_cpu_op", 9)) c->cpu[i] = p[2];
    else if (length == 9 && !memcmp(name, "comm_size", 9)) p++, c->size[i] = number(&p);
    else if (length == 9 && !memcmp(name, "comm_type", 9)) p++, c->coll[i] = number(&p);
    else if (length == 6 && !memcmp(name, "stream", 6)) p++, c->stream[i] = number(&p);
}

static void *reserve(size_t n) {
    void *block = malloc(n);
    if (!block) exit(2);
    return block;
}

int main(int argc, char **argv) {
    struct stat status;
    int file = argc == 2 ? open(argv[1], O_RDONLY) : -1;
    if (file < 0 || fstat(file, &status)) return fprintf(stderr, "usage: floor_trace FILE\n"), 1;
    bytes data = mmap(NULL, status.st_size, PROT_READ, MAP_SHARED | MAP_POPULATE, file, 0);
    if (data == MAP_FAILED) return perror("mmap"), 1;
    bytes end = data + status.st_size, records = data, p;
    uint64_t length = number(&records);
    records += length; /* the metadata */
    size_t n = 0;
    for (p = records; p < end; n++) {
        length = number(&p);
        p += length;
    }
    double start = seconds(CLOCK_MONOTONIC), cpu = seconds(CLOCK_PROCESS_CPUTIME_ID);
    Columns c = {.id = reserve(8 * n), .first = reserve(8 * (n + 1)), .duration = reserve(8 * n),
                 .size = reserve(8 * n), .stream = reserve(4 * n), .type = reserve(n),
                 .coll = reserve(n), .cpu = reserve(n), .room = 8 * n};
    c.dep = reserve(8 * c.room);
    p = records;
    for (size_t i = 0; i < n; i++) {
        length = number(&p);
        bytes last = p + length;
        c.first[i] = c.deps;
        c.duration[i] = c.size[i] = c.stream[i] = -1;
        c.type[i] = c.coll[i] = c.cpu[i] = 0;
        while (p < last) {
            uint64_t tag = number(&p);
            if (tag == 0x52) {
                length = number(&p);
                attribute(&c, i, p);
                p += length;
            } else if (tag == 0x22 || tag == 0x2a) {
                length = number(&p);
                if (c.deps + length > c.room) {
                    c.room = 2 * c.room + length;
                    c.dep = realloc(c.dep, 8 * c.room);
                    if (!c.dep) return 2;
                }
                for (bytes stop = p + length; p < stop;) c.dep[c.deps++] = number(&p);
            } else if (tag == 0x08) c.id[i] = number(&p);
            else if (tag == 0x18) c.type[i] = number(&p);
            else if (tag == 0x38) c.duration[i] = number(&p);
            else p = skip(p, tag);
        }
    }
    c.first[n] = c.deps;
    double took = seconds(CLOCK_MONOTONIC) - start;
    cpu = seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    /* Used, so that no store can be left out. */
    uint64_t sum = c.deps;
    for (size_t i = 0; i < n; i++)
        sum += c.id[i] + c.type[i] + c.duration[i] + c.size[i] + c.stream[i] + c.coll[i] + c.cpu[i];
    fprintf(stderr, "%llu\n", (unsigned long long)sum);
    printf("{\"seconds\": %.6f, \"cpu\": %.6f, \"nodes\": %zu, \"deps\": %zu}\n", took, cpu, n,
           c.deps);
    return 0;
}
