/* What TCP over loopback allows: two processes, each on a core of its own, that never sleep.
   A call is EXCHANGES times "send BYTES, then read the peer's BYTES", both ways at once, as the
   steps of a 2-rank ring; 1 exchange is what recursive doubling does. One socket for each
   direction, or (last argument "one") one for both. No engine, no log, no checks.
   Prints {"us_p50": ...} of the first process.
   Usage: floor_tcp BYTES EXCHANGES ITERATIONS [one] */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void die(const char *what) {
    perror(what);
    exit(1);
}

static double now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* A connected pair of TCP sockets over 127.0.0.1. */
static void pair(int ends[2]) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    int on = 1, off = 0, listener = socket(AF_INET, SOCK_STREAM, 0);
    if (listener < 0 || bind(listener, (void *)&at, sizeof at) || listen(listener, 1)) die("listen");
    if (getsockname(listener, (void *)&at, &size)) die("getsockname");
    ends[0] = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(ends[0], (void *)&at, sizeof at)) die("connect");
    if ((ends[1] = accept(listener, NULL, NULL)) < 0) die("accept");
    close(listener);
    for (int k = 0; k < 2; k++) {
        setsockopt(ends[k], IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        setsockopt(ends[k], IPPROTO_TCP, TCP_QUICKACK, &off, sizeof off);
    }
}

static void exchange(int out, int in, char *from, char *to, size_t bytes) {
    size_t sent = 0, got = 0;
    while (sent < bytes || got < bytes) {
        if (sent < bytes) {
            ssize_t n = send(out, from + sent, bytes - sent, MSG_DONTWAIT | MSG_NOSIGNAL);
            if (n > 0) sent += n;
            else if (n < 0 && errno != EAGAIN) die("send");
        }
        if (got < bytes) {
            ssize_t n = recv(in, to + got, bytes - got, MSG_DONTWAIT);
            if (n > 0) got += n;
            else if (n == 0 || errno != EAGAIN) die("recv");
        }
    }
}

int main(int argc, char **argv) {
    if (argc < 4) return fprintf(stderr, "usage: %s BYTES EXCHANGES ITERATIONS [one]\n", *argv), 1;
    size_t bytes = strtoul(argv[1], NULL, 10);
    int exchanges = atoi(argv[2]), iterations = atoi(argv[3]), one = argc > 4;
    int first[2], second[2];
    pair(first);
    if (!one) pair(second);
    int me = fork() ? 0 : 1;
    int out = first[me], in = first[me];
    if (!one) {
        out = me ? second[0] : first[0];
        in = me ? first[1] : second[1];
    }
    cpu_set_t allowed, mine;
    sched_getaffinity(0, sizeof allowed, &allowed);
    for (int cpu = 0, seen = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &allowed) && seen++ == me) {
            CPU_ZERO(&mine);
            CPU_SET(cpu, &mine);
            sched_setaffinity(0, sizeof mine, &mine);
        }
    char *from = calloc(1, bytes), *to = calloc(1, bytes);
    double *took = malloc(sizeof *took * iterations);
    if (!from || !to || !took) die("malloc");
    for (int i = -iterations / 10 - 2; i < iterations; i++) {
        double start = now_us();
        for (int k = 0; k < exchanges; k++) exchange(out, in, from, to, bytes);
        if (i >= 0) took[i] = now_us() - start;
    }
    if (me) return 0;
    wait(NULL);
    qsort(took, iterations, sizeof *took, by_value);
    printf("{\"us_p50\": %.3f, \"us_min\": %.3f}\n", took[iterations / 2], took[0]);
    return 0;
}
