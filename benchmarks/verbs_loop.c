/* The plain C loop that GENIE's verbs transport is measured against: both ends in one process.
 *
 *   verbs_loop MODE DEV0 DEV1 SIZE COUNT DEPTH [REPEATS]
 *
 * MODE write: RDMA_WRITE, every one signaled. imm: RDMA_WRITE_WITH_IMM and receives without a
 * buffer. cts: as NCCL, for each message a receive, a 64-byte CTS written into the sender's FIFO
 * (signaled once in 256), and the WRITE_WITH_IMM once the CTS is seen. One ibv_post call a work
 * request, up to 32 completions a poll. Prints nanoseconds a message, a line a repeat.
 * list: as write, but all that fits the depth is posted with one call. lone: one WRITE_WITH_IMM at
 * a time, 2 ms apart; prints the nanoseconds from before its ibv_post_send to the receiver's
 * completion, COUNT lines. */
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct cts { uint64_t address, size; uint32_t rkeys[4], nreqs, tag; uint64_t id; char pad[16]; };
struct end {
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct ibv_mr *mr;
    char *memory; /* 128 KiB of FIFO or CTS entries, then 8 slots */
    union ibv_gid gid;
    int gid_index;
};
enum { FIFO = 256 * 512, SLOTS = 8 };

static void die(const char *what) { perror(what); exit(2); }

static void open_end(struct end *e, const char *name, size_t slot) {
    int n;
    struct ibv_device **list = ibv_get_device_list(&n);
    size_t bytes = FIFO + SLOTS * slot;
    for (int i = 0; list && i < n; i++)
        if (!strcmp(ibv_get_device_name(list[i]), name)) e->context = ibv_open_device(list[i]);
    if (!e->context) die(name);
    ibv_free_device_list(list);
    e->pd = ibv_alloc_pd(e->context);
    e->cq = ibv_create_cq(e->context, 1024, NULL, NULL, 0);
    struct ibv_qp_init_attr a = {.send_cq = e->cq, .recv_cq = e->cq, .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = 512, .max_recv_wr = 256, .max_send_sge = 1, .max_recv_sge = 1}};
    e->qp = ibv_create_qp(e->pd, &a);
    e->memory = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    memset(e->memory, 0, bytes);
    e->mr = ibv_reg_mr(e->pd, e->memory, bytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    if (!e->qp || !e->mr) die("qp or mr");
    for (int i = 0; i < 16; i++)
        if (!ibv_query_gid(e->context, 1, i, &e->gid) && e->gid.raw[10] == 0xff &&
            e->gid.raw[11] == 0xff) { e->gid_index = i; break; }
}

static void join(struct end *e, struct end *to) {
    struct ibv_port_attr p;
    struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = 1,
                            .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
    if (ibv_modify_qp(e->qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
                      IBV_QP_ACCESS_FLAGS)) die("INIT");
    if (ibv_query_port(e->context, 1, &p)) die("port");
    a = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR, .path_mtu = p.active_mtu,
        .dest_qp_num = to->qp->qp_num, .max_dest_rd_atomic = 1, .min_rnr_timer = 12,
        .ah_attr = {.is_global = 1, .port_num = 1,
                    .grh = {.dgid = to->gid, .sgid_index = e->gid_index, .hop_limit = 255}}};
    if (ibv_modify_qp(e->qp, &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                      IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER)) die("RTR");
    a = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 20, .retry_cnt = 7,
                             .rnr_retry = 7, .max_rd_atomic = 1};
    if (ibv_modify_qp(e->qp, &a, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                      IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC)) die("RTS");
}

static int poll_end(struct end *e, struct ibv_wc *wc) {
    int n = ibv_poll_cq(e->cq, 32, wc);
    for (int i = 0; i < n; i++)
        if (wc[i].status) {
            fprintf(stderr, "completion status %d\n", wc[i].status);
            exit(3);
        }
    return n;
}

static void run(struct end *tx, struct end *rx, int imm, int cts, uint32_t size, size_t slot,
                long count, long depth) {
    struct cts *fifo = (struct cts *)tx->memory, *entries = (struct cts *)rx->memory;
    static uint64_t base; /* messages of earlier repeats */
    long announced = 0, posted = 0, sent = 0, received = 0;
    struct ibv_wc wc[32];
    while (sent < count || (imm && received < count)) {
        while (imm && announced < count && announced - received < depth) {
            struct ibv_recv_wr r = {.wr_id = announced}, *bad_r;
            if (ibv_post_recv(rx->qp, &r, &bad_r)) die("post_recv");
            if (cts) {
                uint64_t id = base + announced, row = id & 255;
                struct cts *c = &entries[row];
                *c = (struct cts){.address = (uint64_t)rx->memory + FIFO + (id & 7) * slot,
                                  .size = size, .rkeys = {rx->mr->rkey}, .nreqs = 1, .id = id + 1};
                struct ibv_sge s = {(uint64_t)c, 64, rx->mr->lkey};
                struct ibv_send_wr w = {.wr_id = ~0ull, .sg_list = &s, .num_sge = 1,
                    .opcode = IBV_WR_RDMA_WRITE, .send_flags = row ? 0 : IBV_SEND_SIGNALED,
                    .wr.rdma = {(uint64_t)tx->memory + row * 512, tx->mr->rkey}}, *bad;
                if (ibv_post_send(rx->qp, &w, &bad)) die("post CTS");
            }
            announced++;
        }
        while (posted < count && posted - sent < depth && (!imm || cts || posted < announced)) {
            uint64_t id = base + posted, target = (uint64_t)rx->memory + FIFO;
            uint32_t rkey = rx->mr->rkey;
            if (cts) {
                struct cts *c = &fifo[(id & 255) * 8];
                if (__atomic_load_n(&c->id, __ATOMIC_ACQUIRE) != id + 1) break;
                target = c->address;
                rkey = c->rkeys[0];
            }
            struct ibv_sge s = {(uint64_t)tx->memory + FIFO, size, tx->mr->lkey};
            struct ibv_send_wr w = {.wr_id = posted, .sg_list = &s, .num_sge = 1,
                .opcode = imm ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE,
                .send_flags = IBV_SEND_SIGNALED, .imm_data = htonl(size),
                .wr.rdma = {target, rkey}}, *bad;
            if (ibv_post_send(tx->qp, &w, &bad)) die("post_send");
            posted++;
        }
        sent += poll_end(tx, wc);
        if (imm) {
            int n = poll_end(rx, wc);
            for (int i = 0; i < n; i++) received += wc[i].wr_id != ~0ull;
        }
    }
    base += count;
}

static void run_list(struct end *tx, struct end *rx, uint32_t size, long count, long depth) {
    struct ibv_send_wr *w = calloc(depth, sizeof *w), *bad;
    struct ibv_sge s = {(uint64_t)tx->memory + FIFO, size, tx->mr->lkey};
    struct ibv_wc wc[32];
    long posted = 0, sent = 0;
    while (sent < count) {
        long n = 0;
        for (; posted < count && posted - sent < depth; n++, posted++) {
            w[n] = (struct ibv_send_wr){.wr_id = posted, .sg_list = &s, .num_sge = 1,
                .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
                .wr.rdma = {(uint64_t)rx->memory + FIFO, rx->mr->rkey}};
            if (n) w[n - 1].next = &w[n];
        }
        if (n && ibv_post_send(tx->qp, w, &bad)) die("post_send");
        sent += poll_end(tx, wc);
    }
    free(w);
}

static void run_lone(struct end *tx, struct end *rx, uint32_t size, long count) {
    struct timespec t0, t1, pause = {0, 2000000};
    struct ibv_wc wc[32];
    for (long i = 0; i < count; i++) {
        struct ibv_recv_wr r = {.wr_id = i}, *bad_r;
        struct ibv_sge s = {(uint64_t)tx->memory + FIFO, size, tx->mr->lkey};
        struct ibv_send_wr w = {.wr_id = i, .sg_list = &s, .num_sge = 1,
            .opcode = IBV_WR_RDMA_WRITE_WITH_IMM, .send_flags = IBV_SEND_SIGNALED,
            .imm_data = htonl(size), .wr.rdma = {(uint64_t)rx->memory + FIFO, rx->mr->rkey}}, *bad;
        if (ibv_post_recv(rx->qp, &r, &bad_r)) die("post_recv");
        clock_gettime(CLOCK_MONOTONIC, &t0);
        if (ibv_post_send(tx->qp, &w, &bad)) die("post_send");
        while (!poll_end(rx, wc)) {}
        clock_gettime(CLOCK_MONOTONIC, &t1);
        while (!poll_end(tx, wc)) {}
        printf("%.0f\n", (t1.tv_sec - t0.tv_sec) * 1e9 + t1.tv_nsec - t0.tv_nsec);
        nanosleep(&pause, NULL);
    }
}

int main(int argc, char **argv) {
    struct end a = {0}, b = {0};
    struct timespec t0, t1;
    if (argc < 7) return fprintf(stderr, "MODE DEV0 DEV1 SIZE COUNT DEPTH [REPEATS]\n"), 1;
    uint32_t size = atoi(argv[4]);
    size_t slot = (size + 4095) / 4096 * 4096;
    long count = atol(argv[5]), depth = atol(argv[6]);
    int list = !strcmp(argv[1], "list"), lone = !strcmp(argv[1], "lone");
    int imm = !list && strcmp(argv[1], "write") != 0, cts = !strcmp(argv[1], "cts");
    if (!slot) slot = 4096;
    open_end(&a, argv[2], slot);
    open_end(&b, argv[3], slot);
    join(&a, &b);
    join(&b, &a);
    if (lone) return run_lone(&a, &b, size, count), 0;
    for (int k = argc > 7 ? atoi(argv[7]) : 1; k > 0; k--) {
        clock_gettime(CLOCK_MONOTONIC, &t0);
        if (list) run_list(&a, &b, size, count, depth);
        else run(&a, &b, imm, cts, size, slot, count, depth);
        clock_gettime(CLOCK_MONOTONIC, &t1);
        printf("%.1f\n", ((t1.tv_sec - t0.tv_sec) * 1e9 + t1.tv_nsec - t0.tv_nsec) / count);
        fflush(stdout);
    }
    return 0;
}
