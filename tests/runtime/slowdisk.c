/* A disk that takes SLOW_MS for every write and sync of a file below SLOW_DIR. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static void wait_for_disk(int fd)
{
    char link[64], path[4096];
    const char *dir = getenv("SLOW_DIR"), *ms = getenv("SLOW_MS");
    ssize_t n;
    if (!dir || !ms)
        return;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    n = readlink(link, path, sizeof path - 1);
    if (n < 0)
        return;
    path[n] = 0;
    if (strncmp(path, dir, strlen(dir)) == 0) {
        struct timespec t = {atoi(ms) / 1000, (atoi(ms) % 1000) * 1000000L};
        nanosleep(&t, NULL);
    }
}

ssize_t write(int fd, const void *data, size_t n)
{
    static ssize_t (*real)(int, const void *, size_t);
    if (!real)
        real = dlsym(RTLD_NEXT, "write");
    wait_for_disk(fd);
    return real(fd, data, n);
}

int fsync(int fd)
{
    static int (*real)(int);
    if (!real)
        real = dlsym(RTLD_NEXT, "fsync");
    wait_for_disk(fd);
    return real(fd);
}
