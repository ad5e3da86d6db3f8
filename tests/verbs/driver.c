/* Messages through transports at C speed, without the engine: for tests and benchmarks.
 *
 * A flow is one connection's messages, all sent or all received here. `drive` keeps up to `window`
 * messages of each flow outstanding until all are complete, as the engine would: post, flush, poll,
 * and wait when there is nothing to do. */
#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

typedef struct genie_event {
    int64_t t_ns;
    uint32_t conn;
    int32_t status;
    uint8_t type;
} genie_event;
typedef struct genie_transport {
    void *self;
    int (*post_recv)(void *, uint32_t, uint64_t, uint32_t);
    int (*post_send)(void *, uint32_t, uint64_t, uint32_t);
    int (*flush)(void *);
    int (*poll)(void *, genie_event *, int);
    int (*wait)(void *, int64_t);
} genie_transport;
enum { READY = 1, SENT = 2, RECEIVED = 3, ERROR = 4 };

typedef struct flow {
    uint32_t conn, sender, window, steps;
    uint64_t count;          /* messages */
    uint64_t n_sizes;
    const uint64_t *sizes;   /* sizes of message i: sizes[i % n_sizes] */
    uint64_t posted, complete;
    int64_t first_ns, last_ns; /* first post; last completion */
    int32_t status;          /* of an ERROR event, or -errno of a post */
    uint32_t blocked;
    int64_t *times;          /* completion times, or NULL */
} flow;

static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int post(genie_transport *t, flow *f) {
    int rc, any = 0;
    while (f->posted < f->count && f->posted - f->complete < f->window && !f->blocked) {
        uint64_t n = f->sizes[f->posted % f->n_sizes];
        uint32_t step = (uint32_t)(f->posted * f->steps);
        rc = f->sender ? t->post_send(t->self, f->conn, n, step)
                       : t->post_recv(t->self, f->conn, n, step);
        if (rc == -EAGAIN) {
            f->blocked = 1;
            return any;
        }
        if (rc) return rc;
        if (!f->posted) f->first_ns = now();
        f->posted++;
        any = 1;
    }
    return any;
}

/* Run the flows of n transports (flows[i] of transport i, counts[i] of them) until all are
 * complete; 0, -ETIMEDOUT, or 1 when a flow failed (see its status). `sleep` uses wait(). */
int drive(genie_transport **t, int n, flow **flows, const int *counts, int64_t timeout_ns,
          int sleep) {
    int64_t deadline = now() + timeout_ns;
    uint64_t left = 0;
    unsigned turns = 0;
    for (int i = 0; i < n; i++)
        for (int k = 0; k < counts[i]; k++) left += flows[i][k].count;
    while (left) {
        int busy = 0;
        for (int i = 0; i < n; i++) {
            genie_event events[64];
            int got;
            for (int k = 0; k < counts[i]; k++) {
                int rc = post(t[i], &flows[i][k]);
                if (rc < 0) {
                    flows[i][k].status = rc;
                    return 1;
                }
            }
            t[i]->flush(t[i]->self);
            got = t[i]->poll(t[i]->self, events, 64);
            if (got < 0) return got;
            busy |= got;
            for (int e = 0; e < got; e++) {
                flow *f = NULL;
                for (int k = 0; k < counts[i] && !f; k++)
                    if (flows[i][k].conn == events[e].conn) f = &flows[i][k];
                if (!f) return -EBADMSG;
                if (events[e].type == ERROR) {
                    f->status = events[e].status;
                    return 1;
                }
                f->blocked = 0;
                if (events[e].type == READY) continue;
                if ((events[e].type == SENT) != f->sender || f->complete == f->posted)
                    return -EPROTO;
                if (f->times) f->times[f->complete] = events[e].t_ns;
                f->complete++;
                f->last_ns = events[e].t_ns;
                left--;
            }
        }
        if (!busy && left) {
            if ((++turns & 255) == 0 || sleep) {
                int64_t at = now();
                if (at > deadline) return -ETIMEDOUT;
                if (sleep && n == 1) {
                    int rc = t[0]->wait(t[0]->self, at + 50000000 < deadline ? at + 50000000 : deadline);
                    if (rc) return rc;
                }
            }
        }
    }
    return 0;
}

/* The post and poll loop alone, one flow from t to itself or another process: what a benchmark
 * compares with a plain C loop. Sends `count` messages of n bytes, `depth` outstanding. */
int blast(genie_transport *t, uint32_t conn, uint64_t n, uint64_t count, uint64_t depth,
          genie_transport *to) {
    uint64_t posted = 0, done = 0, announced = 0, received = 0;
    genie_event events[64];
    while (done < count || (to && received < count)) {
        if (to) {
            while (announced < count && announced - received < depth) {
                if (to->post_recv(to->self, conn, n, (uint32_t)announced)) return -1;
                announced++;
            }
            to->flush(to->self);
        }
        while (posted < count && posted - done < depth) {
            int rc = t->post_send(t->self, conn, n, (uint32_t)posted);
            if (rc == -EAGAIN) break;
            if (rc) return rc;
            posted++;
        }
        t->flush(t->self);
        int got = t->poll(t->self, events, 64);
        for (int e = 0; e < got; e++) {
            if (events[e].type == SENT) done++;
            else if (events[e].type == ERROR) return events[e].status;
        }
        if (to) {
            got = to->poll(to->self, events, 64);
            for (int e = 0; e < got; e++) {
                if (events[e].type == RECEIVED) received++;
                else if (events[e].type == ERROR) return events[e].status;
            }
        }
    }
    return 0;
}

/* Two transports of one process as one, for an engine that runs both ends: connection c is sent
 * on t[c & 1] and received on the other. */
typedef struct joined {
    genie_transport vtable;
    genie_transport *t[2];
} joined;

static int j_recv(void *self, uint32_t c, uint64_t n, uint32_t step) {
    genie_transport *t = ((joined *)self)->t[!(c & 1)];
    return t->post_recv(t->self, c, n, step);
}
static int j_send(void *self, uint32_t c, uint64_t n, uint32_t step) {
    genie_transport *t = ((joined *)self)->t[c & 1];
    return t->post_send(t->self, c, n, step);
}
static int j_flush(void *self) {
    genie_transport **t = ((joined *)self)->t;
    int rc = t[1]->flush(t[1]->self);
    int other = t[0]->flush(t[0]->self);
    return rc ? rc : other;
}
static int j_poll(void *self, genie_event *e, int max) {
    genie_transport **t = ((joined *)self)->t;
    int a = t[0]->poll(t[0]->self, e, max), b;
    if (a < 0 || a == max) return a;
    b = t[1]->poll(t[1]->self, e + a, max - a);
    return b < 0 ? b : a + b;
}
static int j_wait(void *self, int64_t deadline) { (void)self; (void)deadline; return 0; }

genie_transport *join(joined *j, genie_transport *a, genie_transport *b) {
    j->vtable = (genie_transport){j, j_recv, j_send, j_flush, j_poll, j_wait};
    j->t[0] = a;
    j->t[1] = b;
    return &j->vtable;
}
