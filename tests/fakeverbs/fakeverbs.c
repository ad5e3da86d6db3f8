/* A stand-in for libibverbs.so.1: RC queue pairs between loopback devices of one process.
 *
 * For unit tests and instruction counts without a kernel, root or a NIC. It does what the verbs
 * contract says and checks what real hardware checks: keys and bounds of memory, states of queue
 * pairs, the order in which objects go away. It can be told to fail (fakeverbs_configure or the
 * environment variable FAKEVERBS, settings "name=value" separated by ';'):
 *
 *   devices=2            number of devices, fake0, fake1, ...
 *   link=ethernet        or infiniband
 *   mtu=5  mtu1=3        active MTU code (5 = 4096), of all or of one device
 *   max_msg=N max_cqe=N max_inline=N (64 at most) max_qp_wr=N
 *   gids=A/T,A/T,...     GID table: address and type (0 IB, 1 RoCE v1, 2 RoCE v2); "%d" is the
 *                        device number + 1; "-" is an empty entry; gids= is an empty table
 *   state=4              port state (4 active, 1 down)
 *   fail=CALL:ERRNO:N    the N-th call (from 1; 0 = every) of CALL fails with ERRNO
 *   status=CODE:N        the N-th executed send fails with this completion status
 *   lag=1                sends execute when a CQ is polled, not when they are posted
 *   send_queue=N         a send queue takes N entries at most, whatever was asked for
 *   kernel=0             ibv_get_device_list returns NULL and ENOSYS
 *   copy=0               no bytes are copied except CTS entries (64 bytes); check=0: no key checks
 *   log=1                keep a log of posted work requests (fakeverbs_log)
 *   ece=1                queue pairs have ECE options
 */
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#undef ibv_query_port
#undef ibv_reg_mr
#undef ibv_reg_mr_iova

#define API __attribute__((visibility("default")))
enum { DEVICES = 32, QPS = 1 << 16, KEYS = 1 << 14, GIDS = 16, LOG = 1 << 16 };
enum { DEVICE_LIST, CONTEXTS, PDS, MRS, CHANNELS, CQS, QPS_LIVE, KINDS };

struct cq {
    struct ibv_cq base;
    struct ibv_wc *ring;
    unsigned head, tail, size;
    int armed, users;
};
struct entry { /* one queued send */
    uint64_t id, address, remote;
    uint32_t length, lkey, rkey, imm;
    int opcode, flags, has_sge;
    char inline_data[64];
};
struct recv { uint64_t id; };
struct qp {
    struct ibv_qp base;
    struct ibv_qp_cap cap;
    struct qp *peer;
    int access, mtu, signal_all, broken;
    struct entry *sends;
    unsigned s_head, s_tail, s_size;
    struct recv *recvs;
    unsigned r_head, r_tail, r_size;
    struct qp *next_busy;
    int busy;
};
struct pd { struct ibv_pd base; int users; };
struct context { struct ibv_context base; int users; };
struct logged { uint32_t qp, opcode, bytes, imm, flags, rkey; uint64_t remote; };

static struct ibv_device device[DEVICES];
static struct qp *qps[QPS];
static struct ibv_mr *keys[KEYS];
static int key_access[KEYS];
static long live[KINDS];
static struct logged *log_rows;
static long n_logged;
static uint32_t next_qp = 16, next_key = 1;
static struct qp *busy;

static struct {
    int devices, ethernet, mtu[DEVICES], max_inline, max_qp_wr, max_cqe, state, kernel, copy, check;
    int lag, send_queue, log, ece;
    long max_msg;
    char gids[1024];
    char fail_call[64];
    int fail_errno;
    long fail_at, fail_seen;
    int status;
    long status_at, sends;
    int ready;
} set;

static void defaults(void) {
    memset(&set, 0, sizeof set);
    set.devices = 2;
    set.ethernet = 1;
    for (int i = 0; i < DEVICES; i++) set.mtu[i] = IBV_MTU_4096;
    set.max_msg = 1L << 30;
    set.max_cqe = 1 << 20;
    set.max_inline = 64;
    set.max_qp_wr = 1 << 16;
    set.state = IBV_PORT_ACTIVE;
    set.kernel = set.copy = set.check = 1;
    strcpy(set.gids, "fe80::%d/1,fe80::%d/2,::ffff:10.0.0.%d/1,::ffff:10.0.0.%d/2");
    set.ready = 1;
}

API void fakeverbs_configure(const char *text) {
    char copy[4096], *save = NULL;
    defaults();
    snprintf(copy, sizeof copy, "%s", text ? text : "");
    for (char *item = strtok_r(copy, ";", &save); item; item = strtok_r(NULL, ";", &save)) {
        char *value = strchr(item, '=');
        long n;
        if (!value) continue;
        *value++ = 0;
        n = strtol(value, NULL, 0);
        if (!strcmp(item, "devices")) set.devices = (int)n;
        else if (!strcmp(item, "link")) set.ethernet = value[0] == 'e';
        else if (!strcmp(item, "mtu")) for (int i = 0; i < DEVICES; i++) set.mtu[i] = (int)n;
        else if (!strncmp(item, "mtu", 3)) set.mtu[atoi(item + 3) % DEVICES] = (int)n;
        else if (!strcmp(item, "max_msg")) set.max_msg = n;
        else if (!strcmp(item, "max_cqe")) set.max_cqe = (int)n;
        else if (!strcmp(item, "max_inline")) set.max_inline = (int)n;
        else if (!strcmp(item, "max_qp_wr")) set.max_qp_wr = (int)n;
        else if (!strcmp(item, "state")) set.state = (int)n;
        else if (!strcmp(item, "kernel")) set.kernel = (int)n;
        else if (!strcmp(item, "copy")) set.copy = (int)n;
        else if (!strcmp(item, "check")) set.check = (int)n;
        else if (!strcmp(item, "lag")) set.lag = (int)n;
        else if (!strcmp(item, "send_queue")) set.send_queue = (int)n;
        else if (!strcmp(item, "log")) set.log = (int)n;
        else if (!strcmp(item, "ece")) set.ece = (int)n;
        else if (!strcmp(item, "gids")) snprintf(set.gids, sizeof set.gids, "%s", value);
        else if (!strcmp(item, "fail"))
            sscanf(value, "%63[^:]:%d:%ld", set.fail_call, &set.fail_errno, &set.fail_at);
        else if (!strcmp(item, "status")) sscanf(value, "%d:%ld", &set.status, &set.status_at);
        else fprintf(stderr, "fakeverbs: unknown setting %s\n", item);
    }
    n_logged = 0;
    if (set.log && !log_rows) log_rows = calloc(LOG, sizeof *log_rows);
}

API void fakeverbs_forget(void) { memset(live, 0, sizeof live); }
API long fakeverbs_live(int kind) { return kind >= 0 && kind < KINDS ? live[kind] : -1; }
API long fakeverbs_log(struct logged **rows) { *rows = log_rows; return n_logged; }
API long fakeverbs_sends(void) { return set.sends; }

static void init(void) {
    if (!set.ready) fakeverbs_configure(getenv("FAKEVERBS"));
}

/* Whether this call is to fail; sets errno. */
static int fails(const char *call) {
    init();
    if (!set.fail_call[0] || strcmp(call, set.fail_call)) return 0;
    set.fail_seen++;
    if (set.fail_at && set.fail_seen != set.fail_at) return 0;
    errno = set.fail_errno;
    return 1;
}

/* Completions ------------------------------------------------------------------------------ */

struct channel { struct ibv_comp_channel base; int write_end, users; };

static void push(struct cq *c, uint64_t id, int status, int opcode, uint32_t bytes, uint32_t imm,
                 unsigned flags, uint32_t qp) {
    if (c->head - c->tail >= c->size) {
        fprintf(stderr, "fakeverbs: a completion queue of %u overflowed\n", c->size);
        abort();
    }
    struct ibv_wc *w = &c->ring[c->head++ % c->size];
    w->wr_id = id;
    w->status = status;
    w->qp_num = qp;
    w->vendor_err = status ? 0x80 + status : 0;
    /* Only these are defined for a failed completion: the rest is garbage on purpose. */
    w->opcode = status ? 0x5a5a : opcode;
    w->byte_len = status ? 0xdeadbeef : bytes;
    w->imm_data = status ? 0xdeadbeef : imm;
    w->wc_flags = status ? 0xff : flags;
    if (c->armed && c->base.channel) {
        struct channel *ch = (struct channel *)c->base.channel;
        void *me = c;
        c->armed = 0;
        if (write(ch->write_end, &me, sizeof me) != sizeof me) abort();
    }
}

static int covers(uint32_t key, uint64_t at, uint64_t n, int access) {
    struct ibv_mr *m = key < KEYS ? keys[key] : NULL;
    return m && at >= (uint64_t)m->addr && at + n <= (uint64_t)m->addr + m->length &&
           (key_access[key] & access) == access;
}

static void flush_queues(struct qp *q) {
    for (; q->s_tail != q->s_head; q->s_tail++)
        push((struct cq *)q->base.send_cq, q->sends[q->s_tail % q->s_size].id, IBV_WC_WR_FLUSH_ERR,
             0, 0, 0, 0, q->base.qp_num);
    for (; q->r_tail != q->r_head; q->r_tail++)
        push((struct cq *)q->base.recv_cq, q->recvs[q->r_tail % q->r_size].id, IBV_WC_WR_FLUSH_ERR,
             0, 0, 0, 0, q->base.qp_num);
}

/* Execute what q has queued, until it is empty or its peer has no receive. */
static void run(struct qp *q) {
    while (q->s_tail != q->s_head && q->base.state == IBV_QPS_RTS) {
        struct entry *e = &q->sends[q->s_tail % q->s_size];
        struct qp *to = q->peer;
        int with_imm = e->opcode == IBV_WR_RDMA_WRITE_WITH_IMM || e->opcode == IBV_WR_SEND_WITH_IMM;
        int needs_receive = with_imm || e->opcode == IBV_WR_SEND;
        int status = IBV_WC_SUCCESS;
        set.sends++;
        if (set.status && set.sends == set.status_at) status = set.status;
        else if (to == NULL || to->base.state < IBV_QPS_RTR || to->base.state == IBV_QPS_ERR)
            status = IBV_WC_RETRY_EXC_ERR;
        else if (set.check && e->length > set.max_msg) status = IBV_WC_LOC_LEN_ERR;
        else if (set.check && e->has_sge && !(e->flags & IBV_SEND_INLINE) &&
                 !covers(e->lkey, e->address, e->length, 0)) status = IBV_WC_LOC_PROT_ERR;
        else if (set.check && e->opcode <= IBV_WR_RDMA_WRITE_WITH_IMM && e->length &&
                 (!covers(e->rkey, e->remote, e->length, IBV_ACCESS_REMOTE_WRITE) ||
                  !(to->access & IBV_ACCESS_REMOTE_WRITE))) status = IBV_WC_REM_ACCESS_ERR;
        if (!status && needs_receive && to->r_tail == to->r_head) {
            set.sends--;
            return; /* receiver not ready: try again later, as rnr_retry 7 does for ever */
        }
        if (!status && e->length && e->opcode <= IBV_WR_RDMA_WRITE_WITH_IMM &&
            (set.copy || e->length == 64))
            memcpy((void *)e->remote,
                   e->flags & IBV_SEND_INLINE ? e->inline_data : (void *)e->address, e->length);
        if (!status && needs_receive) {
            struct recv *r = &to->recvs[to->r_tail++ % to->r_size];
            push((struct cq *)to->base.recv_cq, r->id, 0,
                 e->opcode == IBV_WR_RDMA_WRITE_WITH_IMM ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV,
                 e->length, e->imm, with_imm ? IBV_WC_WITH_IMM : 0, to->base.qp_num);
        }
        q->s_tail++;
        if (status || q->signal_all || e->flags & IBV_SEND_SIGNALED)
            push((struct cq *)q->base.send_cq, e->id, status, IBV_WC_RDMA_WRITE, e->length, 0, 0,
                 q->base.qp_num);
        if (status) {
            q->base.state = IBV_QPS_ERR;
            flush_queues(q);
        }
    }
}

static void run_busy(void) {
    struct qp *q = busy;
    busy = NULL;
    while (q) {
        struct qp *next = q->next_busy;
        q->busy = 0;
        run(q);
        if (q->s_tail != q->s_head && q->base.state == IBV_QPS_RTS && !q->busy) {
            q->busy = 1;
            q->next_busy = busy;
            busy = q;
        }
        q = next;
    }
}

static void make_busy(struct qp *q) {
    if (q->busy) return;
    q->busy = 1;
    q->next_busy = busy;
    busy = q;
}

static int f_poll(struct ibv_cq *base, int n, struct ibv_wc *w) {
    struct cq *c = (struct cq *)base;
    int i = 0;
    if (busy) run_busy();
    while (i < n && c->tail != c->head) w[i++] = c->ring[c->tail++ % c->size];
    return i;
}

static int f_notify(struct ibv_cq *base, int solicited) {
    (void)solicited;
    if (fails("ibv_req_notify_cq")) return errno;
    ((struct cq *)base)->armed = 1;
    return 0;
}

static void note(struct qp *q, int opcode, uint32_t bytes, uint32_t imm, unsigned flags,
                 uint64_t remote, uint32_t rkey) {
    if (n_logged < LOG)
        log_rows[n_logged++] = (struct logged){q->base.qp_num, opcode, bytes, imm, flags, rkey, remote};
}

static int f_post_recv(struct ibv_qp *base, struct ibv_recv_wr *w, struct ibv_recv_wr **bad) {
    struct qp *q = (struct qp *)base;
    for (; w; w = w->next) {
        int error = fails("ibv_post_recv") ? errno : q->base.state < IBV_QPS_INIT ? EINVAL
                  : q->r_head - q->r_tail >= q->r_size ? ENOMEM : 0;
        if (error) { *bad = w; return error; }
        if (set.log) note(q, 0x100, 0, 0, 0, 0, 0);
        q->recvs[q->r_head++ % q->r_size].id = w->wr_id;
        if (q->base.state == IBV_QPS_ERR) flush_queues(q);
    }
    return 0;
}

static int f_post_send(struct ibv_qp *base, struct ibv_send_wr *w, struct ibv_send_wr **bad) {
    struct qp *q = (struct qp *)base;
    for (; w; w = w->next) {
        struct entry *e;
        int error = fails("ibv_post_send") ? errno
                  : q->base.state != IBV_QPS_RTS && q->base.state != IBV_QPS_ERR ? EINVAL
                  : q->s_head - q->s_tail >= q->s_size ? ENOMEM
                  : w->num_sge > (int)q->cap.max_send_sge ? EINVAL : 0;
        if (!error && w->send_flags & IBV_SEND_INLINE && w->num_sge &&
            w->sg_list->length > q->cap.max_inline_data) error = EINVAL;
        if (error) {
            *bad = w;
            if (q->s_tail != q->s_head) make_busy(q);
            return error;
        }
        e = &q->sends[q->s_head++ % q->s_size];
        e->id = w->wr_id;
        e->has_sge = w->num_sge;
        e->address = w->num_sge ? w->sg_list->addr : 0;
        e->length = w->num_sge ? w->sg_list->length : 0;
        e->lkey = w->num_sge ? w->sg_list->lkey : 0;
        e->remote = w->wr.rdma.remote_addr;
        e->rkey = w->wr.rdma.rkey;
        e->imm = w->imm_data;
        e->opcode = w->opcode;
        e->flags = w->send_flags;
        if (e->flags & IBV_SEND_INLINE && e->length)
            memcpy(e->inline_data, (void *)e->address, e->length);
        if (set.log)
            note(q, w->opcode, e->length, ntohl(w->imm_data), w->send_flags, e->remote, e->rkey);
        if (q->base.state == IBV_QPS_ERR) flush_queues(q);
        else if (!set.lag) {
            run(q);
        }
    }
    if (q->s_tail != q->s_head) make_busy(q);
    return 0;
}

/* Devices ---------------------------------------------------------------------------------- */

API struct ibv_device **ibv_get_device_list(int *n) {
    struct ibv_device **list;
    init();
    if (!set.kernel || fails("ibv_get_device_list")) {
        if (!set.kernel) errno = ENOSYS;
        if (n) *n = 0;
        return NULL;
    }
    list = calloc(set.devices + 1, sizeof *list);
    for (int i = 0; i < set.devices; i++) {
        snprintf(device[i].name, sizeof device[i].name, "fake%d", i);
        device[i].node_type = IBV_NODE_CA;
        device[i].transport_type = IBV_TRANSPORT_IB;
        list[i] = &device[i];
    }
    if (n) *n = set.devices;
    live[DEVICE_LIST]++;
    return list;
}
API void ibv_free_device_list(struct ibv_device **list) { free(list); live[DEVICE_LIST]--; }
API const char *ibv_get_device_name(struct ibv_device *d) { return d->name; }
API __be64 ibv_get_device_guid(struct ibv_device *d) { return 1 + (d - device); }

API struct ibv_context *ibv_open_device(struct ibv_device *d) {
    struct context *c;
    if (fails("ibv_open_device")) return NULL;
    c = calloc(1, sizeof *c);
    c->base.device = d;
    c->base.num_comp_vectors = 1;
    c->base.cmd_fd = c->base.async_fd = -1;
    c->base.ops.poll_cq = f_poll;
    c->base.ops.req_notify_cq = f_notify;
    c->base.ops.post_send = f_post_send;
    c->base.ops.post_recv = f_post_recv;
    live[CONTEXTS]++;
    return &c->base;
}
API int ibv_close_device(struct ibv_context *c) {
    if (fails("ibv_close_device")) return errno;
    if (((struct context *)c)->users) return EBUSY;
    free(c);
    live[CONTEXTS]--;
    return 0;
}
API int ibv_query_device(struct ibv_context *c, struct ibv_device_attr *a) {
    (void)c;
    if (fails("ibv_query_device")) return errno;
    memset(a, 0, sizeof *a);
    strcpy(a->fw_ver, "1.2.3");
    a->max_qp = QPS;
    a->max_qp_wr = set.max_qp_wr;
    a->max_sge = 16;
    a->max_cqe = set.max_cqe;
    a->max_mr = KEYS;
    a->max_mr_size = ~0ull;
    a->phys_port_cnt = 1;
    return 0;
}
API int ibv_query_port(struct ibv_context *c, uint8_t port, struct _compat_ibv_port_attr *out) {
    struct ibv_port_attr *a = (struct ibv_port_attr *)out;
    if (fails("ibv_query_port")) return errno;
    if (port != 1) return EINVAL;
    memset(a, 0, offsetof(struct ibv_port_attr, port_cap_flags2));
    a->state = set.state;
    a->max_mtu = IBV_MTU_4096;
    a->active_mtu = set.mtu[c->device - device];
    a->gid_tbl_len = GIDS;
    a->pkey_tbl_len = 1;
    a->max_msg_sz = (uint32_t)set.max_msg;
    a->lid = (uint16_t)(set.ethernet ? 0 : 1 + (c->device - device));
    a->link_layer = set.ethernet ? IBV_LINK_LAYER_ETHERNET : IBV_LINK_LAYER_INFINIBAND;
    a->phys_state = 5;
    return 0;
}

/* Entry i of the GID table; its type, or -1 for an empty one. */
static int gid_at(struct ibv_context *c, int i, union ibv_gid *g) {
    char text[1024], *save = NULL, *item;
    snprintf(text, sizeof text, "%s", set.gids);
    memset(g, 0, sizeof *g);
    if (!set.ethernet) {
        if (i) return -1;
        g->raw[0] = 0xfe;
        g->raw[1] = 0x80;
        g->raw[15] = (uint8_t)(1 + (c->device - device));
        return IBV_GID_TYPE_IB;
    }
    for (item = strtok_r(text, ",", &save); item; item = strtok_r(NULL, ",", &save), i--) {
        char address[128], *slash, *mark;
        int type;
        if (i) continue;
        slash = strchr(item, '/');
        if (!slash) return -1;
        *slash = 0;
        type = atoi(slash + 1);
        mark = strstr(item, "%d");
        if (mark) {
            *mark = 0;
            snprintf(address, sizeof address, "%s%ld%s", item, 1 + (c->device - device), mark + 2);
        } else snprintf(address, sizeof address, "%s", item);
        return inet_pton(AF_INET6, address, g->raw) == 1 ? type : -1;
    }
    return -1;
}
API int ibv_query_gid(struct ibv_context *c, uint8_t port, int i, union ibv_gid *g) {
    (void)port;
    if (fails("ibv_query_gid")) return -1;
    if (i >= GIDS) { errno = EINVAL; return -1; }
    gid_at(c, i, g);
    return 0;
}
API ssize_t _ibv_query_gid_table(struct ibv_context *c, struct ibv_gid_entry *e, size_t n,
                                 uint32_t flags, size_t size) {
    size_t k = 0;
    (void)flags;
    (void)size;
    if (fails("_ibv_query_gid_table")) return -errno;
    for (int i = 0; i < GIDS && k < n; i++) {
        int type = gid_at(c, i, &e[k].gid);
        if (type < 0) continue;
        e[k].gid_index = i;
        e[k].port_num = 1;
        e[k].gid_type = type;
        e[k++].ndev_ifindex = 0;
    }
    return (ssize_t)k;
}

/* Objects ---------------------------------------------------------------------------------- */

API struct ibv_pd *ibv_alloc_pd(struct ibv_context *c) {
    struct pd *p;
    if (fails("ibv_alloc_pd")) return NULL;
    p = calloc(1, sizeof *p);
    p->base.context = c;
    ((struct context *)c)->users++;
    live[PDS]++;
    return &p->base;
}
API int ibv_dealloc_pd(struct ibv_pd *base) {
    struct pd *p = (struct pd *)base;
    if (fails("ibv_dealloc_pd")) return errno;
    if (p->users) return EBUSY;
    ((struct context *)base->context)->users--;
    free(p);
    live[PDS]--;
    return 0;
}
API struct ibv_mr *ibv_reg_mr(struct ibv_pd *p, void *at, size_t n, int access) {
    struct ibv_mr *m;
    if (fails("ibv_reg_mr")) return NULL;
    while (next_key >= KEYS || keys[next_key]) next_key = next_key >= KEYS ? 1 : next_key + 1;
    m = calloc(1, sizeof *m);
    m->context = p->context;
    m->pd = p;
    m->addr = at;
    m->length = n;
    m->lkey = m->rkey = next_key;
    keys[next_key] = m;
    key_access[next_key++] = access;
    ((struct pd *)p)->users++;
    live[MRS]++;
    return m;
}
API struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *p, void *at, size_t n, uint64_t iova,
                                    unsigned access) {
    (void)iova;
    return ibv_reg_mr(p, at, n, (int)access);
}
API int ibv_dereg_mr(struct ibv_mr *m) {
    if (fails("ibv_dereg_mr")) return errno;
    keys[m->lkey] = NULL;
    ((struct pd *)m->pd)->users--;
    free(m);
    live[MRS]--;
    return 0;
}
API struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *c) {
    struct channel *ch;
    int ends[2];
    if (fails("ibv_create_comp_channel") || pipe(ends)) return NULL;
    ch = calloc(1, sizeof *ch);
    ch->base.context = c;
    ch->base.fd = ends[0];
    ch->write_end = ends[1];
    ((struct context *)c)->users++;
    live[CHANNELS]++;
    return &ch->base;
}
API int ibv_destroy_comp_channel(struct ibv_comp_channel *base) {
    struct channel *ch = (struct channel *)base;
    if (fails("ibv_destroy_comp_channel")) return errno;
    if (ch->users) return EBUSY;
    ((struct context *)base->context)->users--;
    close(base->fd);
    close(ch->write_end);
    free(ch);
    live[CHANNELS]--;
    return 0;
}
API int ibv_get_cq_event(struct ibv_comp_channel *ch, struct ibv_cq **cq, void **x) {
    void *from;
    if (read(ch->fd, &from, sizeof from) != sizeof from) return -1;
    *cq = from;
    *x = (*cq)->cq_context;
    return 0;
}
API void ibv_ack_cq_events(struct ibv_cq *cq, unsigned n) { (void)cq; (void)n; }
API struct ibv_cq *ibv_create_cq(struct ibv_context *c, int n, void *x,
                                 struct ibv_comp_channel *ch, int vector) {
    struct cq *q;
    (void)vector;
    if (fails("ibv_create_cq")) return NULL;
    if (n < 1 || n > set.max_cqe) { errno = EINVAL; return NULL; }
    q = calloc(1, sizeof *q);
    q->base.context = c;
    q->base.channel = ch;
    q->base.cq_context = x;
    q->base.cqe = n;
    q->size = (unsigned)n;
    q->ring = calloc(n, sizeof *q->ring);
    if (ch) ((struct channel *)ch)->users++;
    ((struct context *)c)->users++;
    live[CQS]++;
    return &q->base;
}
API int ibv_destroy_cq(struct ibv_cq *base) {
    struct cq *q = (struct cq *)base;
    if (fails("ibv_destroy_cq")) return errno;
    if (q->users) return EBUSY;
    if (base->channel) ((struct channel *)base->channel)->users--;
    ((struct context *)base->context)->users--;
    free(q->ring);
    free(q);
    live[CQS]--;
    return 0;
}
API struct ibv_qp *ibv_create_qp(struct ibv_pd *p, struct ibv_qp_init_attr *a) {
    struct qp *q;
    if (fails("ibv_create_qp")) return NULL;
    if ((int)a->cap.max_send_wr > set.max_qp_wr || (int)a->cap.max_inline_data > set.max_inline) {
        errno = EINVAL;
        return NULL;
    }
    q = calloc(1, sizeof *q);
    q->base.context = p->context;
    q->base.pd = p;
    q->base.send_cq = a->send_cq;
    q->base.recv_cq = a->recv_cq;
    q->base.qp_type = a->qp_type;
    q->base.qp_num = next_qp;
    q->signal_all = a->sq_sig_all;
    q->cap = a->cap;
    q->s_size = a->cap.max_send_wr ? a->cap.max_send_wr : 1;
    if (set.send_queue && q->s_size > (unsigned)set.send_queue) q->s_size = set.send_queue;
    q->r_size = a->cap.max_recv_wr ? a->cap.max_recv_wr : 1;
    q->sends = calloc(q->s_size, sizeof *q->sends);
    q->recvs = calloc(q->r_size, sizeof *q->recvs);
    qps[next_qp % QPS] = q;
    next_qp++;
    ((struct pd *)p)->users++;
    ((struct cq *)a->send_cq)->users++;
    ((struct cq *)a->recv_cq)->users++;
    live[QPS_LIVE]++;
    return &q->base;
}
API int ibv_modify_qp(struct ibv_qp *base, struct ibv_qp_attr *a, int mask) {
    struct qp *q = (struct qp *)base;
    union ibv_gid g;
    if (fails("ibv_modify_qp")) return errno;
    if (!(mask & IBV_QP_STATE)) return 0;
    switch (a->qp_state) {
    case IBV_QPS_INIT:
        if (base->state != IBV_QPS_RESET) return EINVAL;
        q->access = a->qp_access_flags;
        break;
    case IBV_QPS_RTR:
        if (base->state != IBV_QPS_INIT) return EINVAL;
        if ((int)a->path_mtu > set.mtu[base->context->device - device]) return EINVAL;
        if (set.ethernet && !a->ah_attr.is_global) return EINVAL;
        if (a->ah_attr.is_global && gid_at(base->context, a->ah_attr.grh.sgid_index, &g) < 0)
            return EINVAL;
        q->peer = qps[a->dest_qp_num % QPS];
        if (!q->peer) return ENETUNREACH;
        q->mtu = a->path_mtu;
        break;
    case IBV_QPS_RTS:
        if (base->state != IBV_QPS_RTR) return EINVAL;
        break;
    case IBV_QPS_ERR:
        base->state = IBV_QPS_ERR;
        flush_queues(q);
        return 0;
    default: return EINVAL;
    }
    base->state = a->qp_state;
    return 0;
}
API int ibv_query_qp(struct ibv_qp *q, struct ibv_qp_attr *a, int mask, struct ibv_qp_init_attr *i) {
    (void)mask;
    (void)i;
    memset(a, 0, sizeof *a);
    a->qp_state = q->state;
    a->path_mtu = ((struct qp *)q)->mtu;
    a->cap = ((struct qp *)q)->cap;
    return 0;
}
API int ibv_destroy_qp(struct ibv_qp *base) {
    struct qp *q = (struct qp *)base, **at;
    if (fails("ibv_destroy_qp")) return errno;
    for (at = &busy; *at; at = &(*at)->next_busy)
        if (*at == q) { *at = q->next_busy; break; }
    for (int i = 0; i < QPS; i++) if (qps[i] && qps[i]->peer == q) qps[i]->peer = NULL;
    qps[base->qp_num % QPS] = NULL;
    ((struct pd *)base->pd)->users--;
    ((struct cq *)base->send_cq)->users--;
    ((struct cq *)base->recv_cq)->users--;
    free(q->sends);
    free(q->recvs);
    free(q);
    live[QPS_LIVE]--;
    return 0;
}
API int ibv_query_ece(struct ibv_qp *q, struct ibv_ece *e) {
    (void)q;
    init();
    if (!set.ece) return EOPNOTSUPP;
    *e = (struct ibv_ece){.vendor_id = 0x15b3, .options = 7, .comp_mask = 0};
    return 0;
}
API int ibv_set_ece(struct ibv_qp *q, struct ibv_ece *e) {
    (void)q;
    (void)e;
    return fails("ibv_set_ece") ? errno : set.ece ? 0 : EOPNOTSUPP;
}
API const char *ibv_wc_status_str(enum ibv_wc_status s) {
    static const char *text[] = {
        [IBV_WC_SUCCESS] = "success",
        [IBV_WC_LOC_LEN_ERR] = "local length error",
        [IBV_WC_LOC_PROT_ERR] = "local protection error",
        [IBV_WC_WR_FLUSH_ERR] = "Work Request Flushed Error",
        [IBV_WC_REM_ACCESS_ERR] = "remote access error",
        [IBV_WC_RETRY_EXC_ERR] = "transport retry counter exceeded",
        [IBV_WC_RNR_RETRY_EXC_ERR] = "RNR retry counter exceeded",
    };
    return s < sizeof text / sizeof *text && text[s] ? text[s] : "error";
}
API int ibv_get_async_event(struct ibv_context *c, struct ibv_async_event *e) {
    (void)c;
    (void)e;
    errno = EAGAIN;
    return -1;
}
API void ibv_ack_async_event(struct ibv_async_event *e) { (void)e; }
API const char *ibv_event_type_str(enum ibv_event_type t) { (void)t; return "event"; }
API int ibv_fork_init(void) { return 0; }
