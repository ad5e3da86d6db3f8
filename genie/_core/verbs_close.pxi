# The end: every object destroyed once, in reverse of its creation.

cdef int note(const char **calls, int *errors, int n, const char *call, int rc) noexcept nogil:
    """Count a failed call, remember the first eight."""
    if rc == 0:
        return n
    if calls != NULL and n < 8:
        calls[n] = call
        errors[n] = rc if rc > 0 else errno
    return n + 1


cdef int give_back(verbs_t *t, const char **calls, int *errors) noexcept:
    """Destroy everything in reverse of its creation; how many calls failed.

    Each object is forgotten whether or not its destroy call succeeded, so nothing is tried twice.
    """
    global live_qps, live_cqs, live_mrs, live_mappings, live_channels, live_pds, live_contexts
    cdef ibv_qp_attr attr
    cdef port_t *p
    cdef uint32_t i
    cdef int n = 0
    cdef int64_t deadline
    cdef uint64_t posted
    if t.qps != NULL:
        # What is still posted is flushed and seen before its memory goes.
        memset(&attr, 0, sizeof(attr))
        attr.qp_state = IBV_QPS_ERR
        for i in range(t.n_qps):
            if t.qps[i].qp != NULL:
                genie_ibv_modify_qp(t.qps[i].qp, &attr, IBV_QP_STATE)
        deadline = genie_verbs_now() + 200_000_000
        while True:
            progress(t)
            t.first = t.last = 0
            posted = 0
            for i in range(t.n_qps):
                if t.qps[i].qp != NULL:
                    posted += t.qps[i].receives
            if posted == 0 or genie_verbs_now() > deadline:
                break
        for i in range(t.n_qps):
            if t.qps[i].qp != NULL:
                n = note(calls, errors, n, "ibv_destroy_qp", genie_ibv_destroy_qp(t.qps[i].qp))
                t.qps[i].qp = NULL
                live_qps -= 1
    for i in range(t.n_cqs):
        n = note(calls, errors, n, "ibv_destroy_cq", genie_ibv_destroy_cq(t.cqs[i].cq))
        live_cqs -= 1
    t.n_cqs = 0
    for i in range(t.n_ports):
        p = &t.ports[i]
        if p.mr != NULL:
            n = note(calls, errors, n, "ibv_dereg_mr", genie_ibv_dereg_mr(p.mr))
            p.mr = NULL
            p.registered = 0
            live_mrs -= 1
    for i in range(t.n_nics):
        if t.nics[i].at != NULL:
            genie_unmap(t.nics[i].at, t.nics[i].length, t.nics[i].file)
            t.nics[i].at = NULL
            live_mappings -= 1
    for i in range(t.n_ports):
        p = &t.ports[i]
        if p.channel != NULL:
            n = note(calls, errors, n, "ibv_destroy_comp_channel",
                     genie_ibv_destroy_comp_channel(p.channel))
            p.channel = NULL
            live_channels -= 1
        if p.pd != NULL:
            n = note(calls, errors, n, "ibv_dealloc_pd", genie_ibv_dealloc_pd(p.pd))
            p.pd = NULL
            live_pds -= 1
        if p.context != NULL:
            n = note(calls, errors, n, "ibv_close_device", genie_ibv_close_device(p.context))
            p.context = NULL
            live_contexts -= 1
    return n
