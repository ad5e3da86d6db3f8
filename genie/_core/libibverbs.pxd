"""libibverbs as GENIE uses it: types from verbs.h, functions looked up when first needed.

Nothing is linked: an installed GENIE imports where there is no libibverbs, and the providers
(mlx5, rxe, ...) are those of the system. `genie_ibv_load()` opens libibverbs.so.1 and fills a
table of functions. Posting, polling and arming are inline in verbs.h and go straight to the
provider, so they need no symbol.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef extern from * nogil:
    """
    #ifndef GENIE_LIBIBVERBS_H
    #define GENIE_LIBIBVERBS_H
    #include <dlfcn.h>
    #include <errno.h>
    #include <stdio.h>
    #include <string.h>
    #include <infiniband/verbs.h>
    #undef ibv_query_port
    #undef ibv_reg_mr

    static struct {
        void *library;
        struct ibv_device **(*get_device_list)(int *);
        void (*free_device_list)(struct ibv_device **);
        const char *(*get_device_name)(struct ibv_device *);
        struct ibv_context *(*open_device)(struct ibv_device *);
        int (*close_device)(struct ibv_context *);
        int (*query_device)(struct ibv_context *, struct ibv_device_attr *);
        int (*query_port)(struct ibv_context *, uint8_t, struct _compat_ibv_port_attr *);
        int (*query_gid)(struct ibv_context *, uint8_t, int, union ibv_gid *);
        ssize_t (*query_gid_table)(struct ibv_context *, struct ibv_gid_entry *, size_t,
                                   uint32_t, size_t); /* optional, rdma-core 32 */
        struct ibv_pd *(*alloc_pd)(struct ibv_context *);
        int (*dealloc_pd)(struct ibv_pd *);
        struct ibv_mr *(*reg_mr)(struct ibv_pd *, void *, size_t, int);
        struct ibv_mr *(*reg_mr_iova2)(struct ibv_pd *, void *, size_t, uint64_t,
                                       unsigned int); /* optional, rdma-core 27 */
        int (*dereg_mr)(struct ibv_mr *);
        struct ibv_comp_channel *(*create_comp_channel)(struct ibv_context *);
        int (*destroy_comp_channel)(struct ibv_comp_channel *);
        struct ibv_cq *(*create_cq)(struct ibv_context *, int, void *,
                                    struct ibv_comp_channel *, int);
        int (*destroy_cq)(struct ibv_cq *);
        int (*get_cq_event)(struct ibv_comp_channel *, struct ibv_cq **, void **);
        void (*ack_cq_events)(struct ibv_cq *, unsigned int);
        struct ibv_qp *(*create_qp)(struct ibv_pd *, struct ibv_qp_init_attr *);
        int (*modify_qp)(struct ibv_qp *, struct ibv_qp_attr *, int);
        int (*destroy_qp)(struct ibv_qp *);
        int (*query_ece)(struct ibv_qp *, struct ibv_ece *); /* optional, rdma-core 31 */
        int (*set_ece)(struct ibv_qp *, struct ibv_ece *);   /* optional */
        const char *(*wc_status_str)(enum ibv_wc_status);
        int (*get_async_event)(struct ibv_context *, struct ibv_async_event *);
        void (*ack_async_event)(struct ibv_async_event *);
        const char *(*event_type_str)(enum ibv_event_type);
    } genie_ibv;

    /* Open `path` and look every function up; 0, or -1 with the reason in `why`. */
    static int genie_ibv_load(const char *path, char *why, size_t n) {
        void *library;
        const char *absent = NULL;
        if (genie_ibv.library) return 0;
        library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (!library) {
            snprintf(why, n, "%s", dlerror());
            return -1;
        }
    #define GENIE_NEED(f) \\
        *(void **)&genie_ibv.f = dlsym(library, "ibv_" #f); \\
        if (!genie_ibv.f) absent = "ibv_" #f
    #define GENIE_MAY(f, name) *(void **)&genie_ibv.f = dlsym(library, name)
        GENIE_NEED(get_device_list); GENIE_NEED(free_device_list); GENIE_NEED(get_device_name);
        GENIE_NEED(open_device); GENIE_NEED(close_device); GENIE_NEED(query_device);
        GENIE_NEED(query_port); GENIE_NEED(query_gid); GENIE_NEED(alloc_pd);
        GENIE_NEED(dealloc_pd); GENIE_NEED(reg_mr); GENIE_NEED(dereg_mr);
        GENIE_NEED(create_comp_channel); GENIE_NEED(destroy_comp_channel);
        GENIE_NEED(create_cq); GENIE_NEED(destroy_cq); GENIE_NEED(get_cq_event);
        GENIE_NEED(ack_cq_events); GENIE_NEED(create_qp); GENIE_NEED(modify_qp);
        GENIE_NEED(destroy_qp); GENIE_NEED(wc_status_str);
        GENIE_NEED(get_async_event); GENIE_NEED(ack_async_event); GENIE_NEED(event_type_str);
        GENIE_MAY(query_gid_table, "_ibv_query_gid_table");
        GENIE_MAY(reg_mr_iova2, "ibv_reg_mr_iova2");
        GENIE_MAY(query_ece, "ibv_query_ece");
        GENIE_MAY(set_ece, "ibv_set_ece");
        if (absent) {
            snprintf(why, n, "%s has no %s", path, absent);
            dlclose(library);
            return -1;
        }
        genie_ibv.library = library;
        return 0;
    }
    static struct ibv_device **genie_ibv_get_device_list(int *n) {
        return genie_ibv.get_device_list(n);
    }
    static void genie_ibv_free_device_list(struct ibv_device **l) { genie_ibv.free_device_list(l); }
    static const char *genie_ibv_get_device_name(struct ibv_device *d) {
        return genie_ibv.get_device_name(d);
    }
    static struct ibv_context *genie_ibv_open_device(struct ibv_device *d) {
        return genie_ibv.open_device(d);
    }
    static int genie_ibv_close_device(struct ibv_context *c) { return genie_ibv.close_device(c); }
    static int genie_ibv_query_device(struct ibv_context *c, struct ibv_device_attr *a) {
        return genie_ibv.query_device(c, a);
    }
    /* The extended operation where the provider has one, as verbs.h does. */
    static int genie_ibv_query_port(struct ibv_context *c, uint8_t port, struct ibv_port_attr *a) {
        struct verbs_context *v = verbs_get_ctx_op(c, query_port);
        if (v) return v->query_port(c, port, a, sizeof(*a));
        memset(a, 0, sizeof(*a));
        return genie_ibv.query_port(c, port, (struct _compat_ibv_port_attr *)a);
    }
    static int genie_ibv_query_gid(struct ibv_context *c, uint8_t port, int i, union ibv_gid *g) {
        return genie_ibv.query_gid(c, port, i, g);
    }
    /* -ENOSYS where the library or the kernel is too old: read sysfs then. */
    static ssize_t genie_ibv_query_gid_table(struct ibv_context *c, struct ibv_gid_entry *e,
                                             size_t n) {
        return genie_ibv.query_gid_table ? genie_ibv.query_gid_table(c, e, n, 0, sizeof(*e))
                                         : -ENOSYS;
    }
    static struct ibv_pd *genie_ibv_alloc_pd(struct ibv_context *c) {
        return genie_ibv.alloc_pd(c);
    }
    static int genie_ibv_dealloc_pd(struct ibv_pd *p) { return genie_ibv.dealloc_pd(p); }
    static struct ibv_mr *genie_ibv_reg_mr(struct ibv_pd *p, void *a, size_t n, int access) {
        if (access & IBV_ACCESS_OPTIONAL_RANGE) {
            if (genie_ibv.reg_mr_iova2)
                return genie_ibv.reg_mr_iova2(p, a, n, (uintptr_t)a, (unsigned int)access);
            access &= ~IBV_ACCESS_OPTIONAL_RANGE;
        }
        return genie_ibv.reg_mr(p, a, n, access);
    }
    static int genie_ibv_dereg_mr(struct ibv_mr *m) { return genie_ibv.dereg_mr(m); }
    static struct ibv_comp_channel *genie_ibv_create_comp_channel(struct ibv_context *c) {
        return genie_ibv.create_comp_channel(c);
    }
    static int genie_ibv_destroy_comp_channel(struct ibv_comp_channel *c) {
        return genie_ibv.destroy_comp_channel(c);
    }
    static struct ibv_cq *genie_ibv_create_cq(struct ibv_context *c, int n, void *x,
                                              struct ibv_comp_channel *ch, int v) {
        return genie_ibv.create_cq(c, n, x, ch, v);
    }
    static int genie_ibv_destroy_cq(struct ibv_cq *c) { return genie_ibv.destroy_cq(c); }
    static int genie_ibv_get_cq_event(struct ibv_comp_channel *c, struct ibv_cq **q, void **x) {
        return genie_ibv.get_cq_event(c, q, x);
    }
    static void genie_ibv_ack_cq_events(struct ibv_cq *c, unsigned int n) {
        genie_ibv.ack_cq_events(c, n);
    }
    static struct ibv_qp *genie_ibv_create_qp(struct ibv_pd *p, struct ibv_qp_init_attr *a) {
        return genie_ibv.create_qp(p, a);
    }
    static int genie_ibv_modify_qp(struct ibv_qp *q, struct ibv_qp_attr *a, int mask) {
        return genie_ibv.modify_qp(q, a, mask);
    }
    static int genie_ibv_destroy_qp(struct ibv_qp *q) { return genie_ibv.destroy_qp(q); }
    static int genie_ibv_query_ece(struct ibv_qp *q, struct ibv_ece *e) {
        return genie_ibv.query_ece ? genie_ibv.query_ece(q, e) : EOPNOTSUPP;
    }
    static int genie_ibv_set_ece(struct ibv_qp *q, struct ibv_ece *e) {
        return genie_ibv.set_ece ? genie_ibv.set_ece(q, e) : EOPNOTSUPP;
    }
    static const char *genie_ibv_wc_status_str(int s) {
        return genie_ibv.wc_status_str((enum ibv_wc_status)s);
    }
    static int genie_ibv_get_async_event(struct ibv_context *c, struct ibv_async_event *e) {
        return genie_ibv.get_async_event(c, e);
    }
    static void genie_ibv_ack_async_event(struct ibv_async_event *e) {
        genie_ibv.ack_async_event(e);
    }
    static const char *genie_ibv_event_type_str(int t) {
        return genie_ibv.event_type_str((enum ibv_event_type)t);
    }
    static inline void genie_ibv_target(struct ibv_send_wr *w, uint64_t address, uint32_t rkey) {
        w->wr.rdma.remote_addr = address;
        w->wr.rdma.rkey = rkey;
    }
    #endif
    """
    struct ibv_device:
        pass
    struct ibv_context:
        int async_fd
        int num_comp_vectors
    struct ibv_device_attr:
        char fw_ver[64]
        int max_qp
        int max_qp_wr
        int max_cqe
        int max_mr
        uint64_t max_mr_size
        uint8_t phys_port_cnt
        uint32_t vendor_id
        uint32_t vendor_part_id
    struct ibv_port_attr:
        int state
        int max_mtu
        int active_mtu
        int gid_tbl_len
        uint32_t max_msg_sz
        uint16_t pkey_tbl_len
        uint16_t lid
        uint8_t link_layer
        uint8_t active_width
        uint8_t active_speed
        uint8_t phys_state
    union ibv_gid:
        uint8_t raw[16]
    struct ibv_gid_entry:
        ibv_gid gid
        uint32_t gid_index
        uint32_t port_num
        uint32_t gid_type
        uint32_t ndev_ifindex
    struct ibv_pd:
        pass
    struct ibv_mr:
        uint32_t lkey
        uint32_t rkey
    struct ibv_comp_channel:
        int fd
    struct ibv_cq:
        pass
    struct ibv_qp:
        uint32_t qp_num
        int state
    struct ibv_qp_cap:
        uint32_t max_send_wr
        uint32_t max_recv_wr
        uint32_t max_send_sge
        uint32_t max_recv_sge
        uint32_t max_inline_data
    struct ibv_qp_init_attr:
        void *qp_context
        ibv_cq *send_cq
        ibv_cq *recv_cq
        ibv_qp_cap cap
        int qp_type
        int sq_sig_all
    struct ibv_global_route:
        ibv_gid dgid
        uint32_t flow_label
        uint8_t sgid_index
        uint8_t hop_limit
        uint8_t traffic_class
    struct ibv_ah_attr:
        ibv_global_route grh
        uint16_t dlid
        uint8_t sl
        uint8_t src_path_bits
        uint8_t static_rate
        uint8_t is_global
        uint8_t port_num
    struct ibv_qp_attr:
        int qp_state
        int path_mtu
        uint32_t rq_psn
        uint32_t sq_psn
        uint32_t dest_qp_num
        unsigned int qp_access_flags
        ibv_ah_attr ah_attr
        uint16_t pkey_index
        uint8_t max_rd_atomic
        uint8_t max_dest_rd_atomic
        uint8_t min_rnr_timer
        uint8_t port_num
        uint8_t timeout
        uint8_t retry_cnt
        uint8_t rnr_retry
    struct ibv_ece:
        uint32_t vendor_id
        uint32_t options
        uint32_t comp_mask
    struct ibv_sge:
        uint64_t addr
        uint32_t length
        uint32_t lkey
    struct ibv_send_wr:
        uint64_t wr_id
        ibv_send_wr *next
        ibv_sge *sg_list
        int num_sge
        int opcode
        unsigned int send_flags
        uint32_t imm_data
    struct ibv_recv_wr:
        uint64_t wr_id
        ibv_recv_wr *next
        ibv_sge *sg_list
        int num_sge
    struct ibv_wc:
        uint64_t wr_id
        int status
        int opcode
        uint32_t vendor_err
        uint32_t byte_len
        uint32_t imm_data
        uint32_t qp_num
        unsigned int wc_flags
    struct ibv_async_event:
        int event_type
    int IBV_QPT_RC
    int IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_ERR
    int IBV_QP_STATE, IBV_QP_PKEY_INDEX, IBV_QP_PORT, IBV_QP_ACCESS_FLAGS, IBV_QP_AV
    int IBV_QP_PATH_MTU, IBV_QP_DEST_QPN, IBV_QP_RQ_PSN, IBV_QP_MAX_DEST_RD_ATOMIC
    int IBV_QP_MIN_RNR_TIMER, IBV_QP_TIMEOUT, IBV_QP_RETRY_CNT, IBV_QP_RNR_RETRY
    int IBV_QP_SQ_PSN, IBV_QP_MAX_QP_RD_ATOMIC
    int IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_WRITE, IBV_ACCESS_REMOTE_READ
    int IBV_ACCESS_REMOTE_ATOMIC, IBV_ACCESS_RELAXED_ORDERING
    int IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM
    int IBV_SEND_SIGNALED, IBV_SEND_INLINE
    int IBV_WC_SUCCESS, IBV_WC_WR_FLUSH_ERR, IBV_WC_WITH_IMM
    int IBV_LINK_LAYER_INFINIBAND, IBV_LINK_LAYER_ETHERNET
    int IBV_PORT_ACTIVE
    int IBV_GID_TYPE_IB, IBV_GID_TYPE_ROCE_V1, IBV_GID_TYPE_ROCE_V2

    int ibv_post_send(ibv_qp *qp, ibv_send_wr *wr, ibv_send_wr **bad)
    int ibv_post_recv(ibv_qp *qp, ibv_recv_wr *wr, ibv_recv_wr **bad)
    int ibv_poll_cq(ibv_cq *cq, int n, ibv_wc *wc)
    int ibv_req_notify_cq(ibv_cq *cq, int solicited_only)

    int genie_ibv_load(const char *path, char *why, size_t n)
    ibv_device **genie_ibv_get_device_list(int *n)
    void genie_ibv_free_device_list(ibv_device **devices)
    const char *genie_ibv_get_device_name(ibv_device *device)
    ibv_context *genie_ibv_open_device(ibv_device *device)
    int genie_ibv_close_device(ibv_context *context)
    int genie_ibv_query_device(ibv_context *context, ibv_device_attr *attr)
    int genie_ibv_query_port(ibv_context *context, uint8_t port, ibv_port_attr *attr)
    int genie_ibv_query_gid(ibv_context *context, uint8_t port, int index, ibv_gid *gid)
    Py_ssize_t genie_ibv_query_gid_table(ibv_context *context, ibv_gid_entry *entries, size_t n)
    ibv_pd *genie_ibv_alloc_pd(ibv_context *context)
    int genie_ibv_dealloc_pd(ibv_pd *pd)
    ibv_mr *genie_ibv_reg_mr(ibv_pd *pd, void *address, size_t n, int access)
    int genie_ibv_dereg_mr(ibv_mr *mr)
    ibv_comp_channel *genie_ibv_create_comp_channel(ibv_context *context)
    int genie_ibv_destroy_comp_channel(ibv_comp_channel *channel)
    ibv_cq *genie_ibv_create_cq(
        ibv_context *context, int n, void *x, ibv_comp_channel *channel, int vector)
    int genie_ibv_destroy_cq(ibv_cq *cq)
    int genie_ibv_get_cq_event(ibv_comp_channel *channel, ibv_cq **cq, void **x)
    void genie_ibv_ack_cq_events(ibv_cq *cq, unsigned int n)
    ibv_qp *genie_ibv_create_qp(ibv_pd *pd, ibv_qp_init_attr *attr)
    int genie_ibv_modify_qp(ibv_qp *qp, ibv_qp_attr *attr, int mask)
    int genie_ibv_destroy_qp(ibv_qp *qp)
    int genie_ibv_query_ece(ibv_qp *qp, ibv_ece *ece)
    int genie_ibv_set_ece(ibv_qp *qp, ibv_ece *ece)
    const char *genie_ibv_wc_status_str(int status)
    int genie_ibv_get_async_event(ibv_context *context, ibv_async_event *event)
    void genie_ibv_ack_async_event(ibv_async_event *event)
    const char *genie_ibv_event_type_str(int type)
    void genie_ibv_target(ibv_send_wr *wr, uint64_t address, uint32_t rkey)
