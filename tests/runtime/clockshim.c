/* LD_PRELOAD: CLOCK_MONOTONIC with an offset and a drift, for everything in the process that asks
 * the C library. SHIM_OFFSET_NS, SHIM_DRIFT_PPM; SHIM_STEP_NS is added SHIM_STEP_AFTER_NS after the
 * first call. Absolute sleeps are given the kernel's time back. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static int64_t offset_ns, step_ns, step_after, zero;
static double drift;
static int ready;

static int64_t real_now(void) {
    struct timespec t;
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int64_t number(const char *name) {
    const char *text = getenv(name);
    return text ? strtoll(text, NULL, 10) : 0;
}

static void prepare(void) {
    if (ready) return;
    offset_ns = number("SHIM_OFFSET_NS");
    drift = (double)number("SHIM_DRIFT_PPM") * 1e-6;
    step_ns = number("SHIM_STEP_NS");
    step_after = number("SHIM_STEP_AFTER_NS");
    zero = number("SHIM_ZERO_NS");
    if (!zero) zero = real_now();
    ready = 1;
}

static int64_t shimmed(int64_t t) {
    int64_t since = t - zero;
    int64_t out = t + offset_ns + (int64_t)(drift * (double)since);
    if (step_ns && since > step_after) out += step_ns;
    return out;
}

int clock_gettime(clockid_t clock, struct timespec *out) {
    int rc = (int)syscall(SYS_clock_gettime, clock, out);
    if (rc == 0 && clock == CLOCK_MONOTONIC) {
        prepare();
        int64_t t = shimmed((int64_t)out->tv_sec * 1000000000 + out->tv_nsec);
        out->tv_sec = t / 1000000000;
        out->tv_nsec = t % 1000000000;
    }
    return rc;
}

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *want,
                    struct timespec *rest) {
    struct timespec t = *want;
    if (clock == CLOCK_MONOTONIC && (flags & TIMER_ABSTIME)) {
        prepare();
        int64_t now = real_now();
        int64_t left = (int64_t)t.tv_sec * 1000000000 + t.tv_nsec - shimmed(now);
        if (left < 0) left = 0;
        int64_t at = now + (int64_t)((double)left / (1 + drift));
        t.tv_sec = at / 1000000000;
        t.tv_nsec = at % 1000000000;
    }
    /* The wrapper returns an error number, the system call (through syscall) sets errno. */
    return syscall(SYS_clock_nanosleep, clock, flags, &t, rest) == 0 ? 0 : *__errno_location();
}
