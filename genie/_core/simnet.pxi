# The `sim` network: fluid flows that share links max-min fair, on the virtual clock.
#
# A connection with something on the wire is one flow; all flows over one path are a class and
# have one rate, so a class is one unknown, whatever its number of flows. A class counts the
# bytes of service each of its flows has got; a message ends when that count reaches its mark.
# Rates are repaired locally: only classes on links whose set of flows changed are solved again,
# and a neighbouring link joins only if the new rates break the max-min condition there (every
# flow has a saturated link on which no flow is faster). The allocation that meets that condition
# everywhere is unique (Bertsekas and Gallager, Data Networks, 6.5.2), so the repair is exact.

cdef double TOLERANCE = 1e-10        # relative: two rates this near are one rate
cdef double ROUNDING = 1e-13         # relative: no change at all
cdef double SLACK_NS = 0.0009765625  # a message that ends this little after a nanosecond ends in it


cdef inline int64_t ceil_ns(double ns) noexcept nogil:
    return <int64_t> ceil(ns - SLACK_NS) if ns > SLACK_NS else 0


cdef inline bint class_before(Core* e, uint32_t a, uint32_t b) noexcept nogil:
    return e.classes[a].due < e.classes[b].due or (
        e.classes[a].due == e.classes[b].due and a < b
    )


cdef void class_sift(Core* e, uint32_t pos) noexcept nogil:
    # Moves the class at pos of the class heap to where its due time belongs.
    cdef uint32_t* h = e.class_heap
    cdef uint32_t q = h[pos]
    cdef uint32_t n = e.class_heap_n
    cdef uint32_t parent, child
    while pos > 0:
        parent = (pos - 1) >> 1
        if not class_before(e, q, h[parent]):
            break
        h[pos] = h[parent]
        e.classes[h[pos]].heap_pos = pos
        pos = parent
    while True:
        child = 2 * pos + 1
        if child >= n:
            break
        if child + 1 < n and class_before(e, h[child + 1], h[child]):
            child += 1
        if not class_before(e, h[child], q):
            break
        h[pos] = h[child]
        e.classes[h[pos]].heap_pos = pos
        pos = child
    h[pos] = q
    e.classes[q].heap_pos = pos


cdef void class_unschedule(Core* e, uint32_t q) noexcept nogil:
    cdef uint32_t pos = e.classes[q].heap_pos
    if pos == NONE32:
        return
    e.classes[q].heap_pos = NONE32
    e.class_heap_n -= 1
    if pos != e.class_heap_n:
        e.class_heap[pos] = e.class_heap[e.class_heap_n]
        e.classes[e.class_heap[pos]].heap_pos = pos
        class_sift(e, pos)


cdef void class_schedule(Core* e, uint32_t q) noexcept nogil:
    # (Re)computes when the first flow of class q ends.
    cdef ClassS* k = &e.classes[q]
    if k.n_flows == 0 or k.rate <= 0:
        class_unschedule(e, q)
        return
    k.due = k.t + ceil_ns((k.flows[0].finish - k.service) / k.rate)
    if k.due < e.now:
        k.due = e.now
    if k.heap_pos == NONE32:
        e.class_heap[e.class_heap_n] = q
        k.heap_pos = e.class_heap_n
        e.class_heap_n += 1
    class_sift(e, k.heap_pos)


cdef inline void class_advance(Core* e, ClassS* k) noexcept nogil:
    if k.t != e.now:
        k.service += k.rate * <double> (e.now - k.t)
        k.t = e.now


cdef void flow_push(ClassS* k, double finish, uint32_t conn) noexcept nogil:
    cdef Flow* h = k.flows
    cdef uint32_t i = k.n_flows
    cdef uint32_t parent
    k.n_flows += 1
    while i > 0:
        parent = (i - 1) >> 1
        if h[parent].finish < finish or (h[parent].finish == finish and h[parent].conn < conn):
            break
        h[i] = h[parent]
        i = parent
    h[i].finish = finish
    h[i].conn = conn


cdef void flow_replace(ClassS* k, uint32_t n, Flow f) noexcept nogil:
    # Puts f in the place of the first flow of a heap of n.
    cdef Flow* h = k.flows
    cdef uint32_t i = 0
    cdef uint32_t child
    while True:
        child = 2 * i + 1
        if child >= n:
            break
        if child + 1 < n and (
            h[child + 1].finish < h[child].finish
            or (h[child + 1].finish == h[child].finish and h[child + 1].conn < h[child].conn)
        ):
            child += 1
        if f.finish < h[child].finish or (f.finish == h[child].finish and f.conn < h[child].conn):
            break
        h[i] = h[child]
        i = child
    h[i] = f


cdef void touch_class(Core* e, uint32_t q) noexcept nogil:
    # The number of flows of class q changed: its links are solved again before time moves on.
    cdef ClassS* k = &e.classes[q]
    cdef LinkS* link
    cdef uint32_t i
    for i in range(k.n_links):
        link = &e.links[k.links[i]]
        if not link.dirty:
            link.dirty = 1
            e.dirty[e.n_dirty] = <uint32_t> k.links[i]
            e.n_dirty += 1


cdef void class_start(Core* e, uint32_t q) noexcept nogil:
    cdef ClassS* k = &e.classes[q]
    cdef LinkS* link
    cdef uint32_t i
    k.service = 0
    k.t = e.now
    k.rate = 0
    k.load = 0
    k.bottleneck = -1
    for i in range(k.n_links):
        link = &e.links[k.links[i]]
        k.link_pos[i] = link.n_classes
        link.classes[link.n_classes] = q
        link.n_classes += 1


cdef void class_stop(Core* e, uint32_t q) noexcept nogil:
    cdef ClassS* k = &e.classes[q]
    cdef ClassS* moved
    cdef LinkS* link
    cdef uint32_t i, j, pos
    for i in range(k.n_links):
        link = &e.links[k.links[i]]
        pos = k.link_pos[i]
        link.n_classes -= 1
        if pos != link.n_classes:
            link.classes[pos] = link.classes[link.n_classes]
            moved = &e.classes[link.classes[pos]]
            for j in range(moved.n_links):
                if moved.links[j] == k.links[i]:
                    moved.link_pos[j] = pos
        link.usage = link.usage - k.load if link.n_classes > 0 else 0
    if k.bottleneck >= 0:
        e.links[k.bottleneck].bottlenecked -= 1
    k.bottleneck = -1
    k.load = 0
    k.rate = 0
    class_unschedule(e, q)


cdef inline bint path_failed(Core* e, ClassS* k) noexcept nogil:
    cdef uint32_t i
    for i in range(k.n_links):
        if e.links[k.links[i]].rate <= 0:
            return True
    return False


cdef void left_wire(Core* e, Conn* c) noexcept nogil:
    # The last byte of a message is on its way: it arrives a latency later.
    cdef int64_t latency = e.classes[c.cls].latency
    c.s_onwire += 1
    push_in_line(e, LINE_NETWORK, e.now + latency, EV_ARRIVE, c - e.conns)


cdef void sim_start(Core* e, Conn* c) noexcept nogil:
    # Puts the next message of an idle connection on the wire, if there is one.
    cdef ClassS* k = &e.classes[c.cls]
    cdef SentM* m
    while c.s_onwire != c.s_post:
        m = &c.sent[c.s_onwire & c.mask]
        if m.nbytes == 0 and not path_failed(e, k):
            left_wire(e, c)
            continue
        if k.n_flows == 0:
            class_start(e, c.cls)
        class_advance(e, k)
        flow_push(k, k.service + <double> m.nbytes, <uint32_t> (c - e.conns))
        k.joined = 1
        touch_class(e, c.cls)
        return


cdef inline void sim_post(Core* e, Conn* c) noexcept nogil:
    # Called with the message already counted in s_post; it starts now if the connection is idle.
    if c.s_onwire + 1 == c.s_post and not c.in_gap:
        sim_start(e, c)


cdef void class_finish(Core* e, uint32_t q) noexcept nogil:
    # Messages of class q whose transmission ends now; the next one of a connection follows
    # at once, or after its program's gap.
    cdef ClassS* k = &e.classes[q]
    cdef Flow f
    cdef Conn* c
    cdef SentM* m
    cdef int64_t gap
    cdef uint32_t before = k.n_flows
    class_advance(e, k)
    while k.n_flows > 0:
        f = k.flows[0]
        if ceil_ns((f.finish - k.service) / k.rate) > 0:
            break
        c = &e.conns[f.conn]
        gap = e.programs[c.s_program].gap_ns if c.sent[c.s_onwire & c.mask].nbytes > 0 else 0
        left_wire(e, c)
        if gap > 0:
            c.in_gap = 1
            push_event(e, e.now + gap, EV_GAP, f.conn)
        if c.s_onwire != c.s_post and gap == 0:
            m = &c.sent[c.s_onwire & c.mask]
            # One that was waiting follows without a gap; one posted now starts now.
            if m.posted_ns == e.now:
                f.finish = k.service
            f.finish += <double> m.nbytes
            flow_replace(k, k.n_flows, f)
        else:
            k.n_flows -= 1
            if k.n_flows > 0:
                flow_replace(k, k.n_flows, k.flows[k.n_flows])
    if k.n_flows == before:
        class_schedule(e, q)
        return
    if k.n_flows == 0:
        class_stop(e, q)
    else:
        class_schedule(e, q)
    touch_class(e, q)


cdef void grow_sets(
    Core* e, uint32_t a_from, uint32_t a_to, uint32_t* n_l, uint32_t* n_v
) noexcept nogil:
    # Adds the classes of the links set_a[a_from:a_to] to set_v and their links to set_l.
    cdef LinkS* link
    cdef LinkS* other
    cdef ClassS* k
    cdef uint32_t i, j, x
    for i in range(a_from, a_to):
        link = &e.links[e.set_a[i]]
        for j in range(link.n_classes):
            k = &e.classes[link.classes[j]]
            if k.stamp == e.stamp:
                continue
            k.stamp = e.stamp
            e.set_v[n_v[0]] = link.classes[j]
            n_v[0] += 1
            for x in range(k.n_links):
                other = &e.links[k.links[x]]
                if other.stamp != e.stamp:
                    other.stamp = e.stamp
                    other.v_load = 0
                    other.v_bottlenecked = 0
                    e.set_l[n_l[0]] = <uint32_t> k.links[x]
                    n_l[0] += 1
                other.v_load += k.load
                other.v_bottlenecked += k.bottleneck == k.links[x]


cdef inline void fix_class(Core* e, ClassS* k, double rate, int32_t bottleneck) noexcept nogil:
    cdef LinkS* link
    cdef uint32_t j
    cdef double load = rate * <double> k.n_flows
    cdef bint fell = rate < k.rate * (1 - TOLERANCE)
    cdef bint moved = fell or rate > k.rate * (1 + TOLERANCE)
    if rate > k.rate * (1 - ROUNDING) and rate < k.rate * (1 + ROUNDING):
        rate = k.rate
        load = rate * <double> k.n_flows
    k.fixed = 1
    k.new_rate = rate
    k.new_bottleneck = bottleneck
    for j in range(k.n_links):
        link = &e.links[k.links[j]]
        link.rest -= load
        if link.rest < 0:
            link.rest = 0
        link.weight -= k.n_flows
        link.v_new += load
        link.v_fell |= fell
    if moved or k.bottleneck != bottleneck:
        link = &e.links[bottleneck]
        if not link.v_changed or rate < link.slowest:
            link.slowest = rate
        link.v_changed = 1


cdef inline bint smaller_share(Core* e, uint32_t a, uint32_t b) noexcept nogil:
    return e.links[a].share < e.links[b].share or (
        e.links[a].share == e.links[b].share and a < b
    )


cdef inline void share_sift(Core* e, uint32_t pos, uint32_t n) noexcept nogil:
    cdef uint32_t* h = e.set_h
    cdef uint32_t moved = h[pos]
    cdef uint32_t child
    while True:
        child = 2 * pos + 1
        if child >= n:
            break
        if child + 1 < n and smaller_share(e, h[child + 1], h[child]):
            child += 1
        if not smaller_share(e, h[child], moved):
            break
        h[pos] = h[child]
        pos = child
    h[pos] = moved


cdef void fill(Core* e, uint32_t n_l, uint32_t n_v) noexcept nogil:
    # Progressive filling over set_v; links outside set_a offer what the other classes leave.
    cdef LinkS* link
    cdef ClassS* k
    cdef uint32_t i, j, n_h
    cdef uint32_t left = n_v
    cdef double best
    for i in range(n_l):
        link = &e.links[e.set_l[i]]
        link.weight = 0
        link.v_new = 0
        link.v_changed = 0
        link.v_fell = 0
        link.rest = link.rate
        if link.in_a != e.stamp:
            link.rest -= link.usage - link.v_load
            if link.rest < 0:
                link.rest = 0
    for i in range(n_v):
        k = &e.classes[e.set_v[i]]
        k.fixed = 0
        for j in range(k.n_links):
            e.links[k.links[j]].weight += k.n_flows
    # Links by share; shares only grow while classes are fixed, so a stale top is put back.
    n_h = 0
    for i in range(n_l):
        link = &e.links[e.set_l[i]]
        link.share = link.rest / <double> link.weight
        e.set_h[n_h] = e.set_l[i]
        n_h += 1
    i = n_h // 2
    while i > 0:
        i -= 1
        share_sift(e, i, n_h)
    while left > 0:
        link = &e.links[e.set_h[0]]
        if link.weight > 0:
            best = link.rest / <double> link.weight
            if best > link.share:
                link.share = best
                share_sift(e, 0, n_h)
                continue
            best = link.share
            for j in range(link.n_classes):
                k = &e.classes[link.classes[j]]
                if k.stamp == e.stamp and not k.fixed:
                    fix_class(e, k, best, <int32_t> e.set_h[0])
                    left -= 1
        n_h -= 1
        e.set_h[0] = e.set_h[n_h]
        share_sift(e, 0, n_h)


cdef bint must_join(Core* e, LinkS* link) noexcept nogil:
    # Whether the solution breaks the max-min condition on a link outside set_a.
    cdef uint32_t j
    cdef ClassS* k
    if link.v_fell and link.bottlenecked > link.v_bottlenecked:
        return True  # room for those this link holds back
    if link.v_changed:
        for j in range(link.n_classes):
            k = &e.classes[link.classes[j]]
            if k.stamp != e.stamp and k.rate > link.slowest * (1 + TOLERANCE):
                return True  # a faster one must give way
    return False


cdef void apply_rates(Core* e, uint32_t n_l, uint32_t n_v) noexcept nogil:
    cdef LinkS* link
    cdef ClassS* k
    cdef uint32_t i
    for i in range(n_v):
        k = &e.classes[e.set_v[i]]
        if k.bottleneck != k.new_bottleneck:
            if k.bottleneck >= 0:
                e.links[k.bottleneck].bottlenecked -= 1
            e.links[k.new_bottleneck].bottlenecked += 1
            k.bottleneck = k.new_bottleneck
        if k.new_rate != k.rate:
            class_advance(e, k)
            k.rate = k.new_rate
            class_schedule(e, e.set_v[i])
        elif k.joined:
            class_schedule(e, e.set_v[i])
        k.joined = 0
        k.load = k.rate * <double> k.n_flows
    for i in range(n_l):
        link = &e.links[e.set_l[i]]
        if link.in_a == e.stamp:
            link.usage = link.v_new
        else:
            link.usage += link.v_new - link.v_load


cdef void solve(Core* e) noexcept nogil:
    # New rates after flows came, went, or links changed; see the note at the top.
    cdef uint32_t n_a = 0
    cdef uint32_t n_l = 0
    cdef uint32_t n_v = 0
    cdef uint32_t done = 0
    cdef uint32_t i
    cdef LinkS* link
    e.stamp += 1
    for i in range(e.n_dirty):
        link = &e.links[e.dirty[i]]
        link.dirty = 0
        link.in_a = e.stamp
        e.set_a[n_a] = e.dirty[i]
        n_a += 1
    e.n_dirty = 0
    while True:
        grow_sets(e, done, n_a, &n_l, &n_v)
        done = n_a
        if n_v == 0:
            return
        fill(e, n_l, n_v)
        for i in range(n_l):
            link = &e.links[e.set_l[i]]
            if link.in_a != e.stamp and must_join(e, link):
                link.in_a = e.stamp
                e.set_a[n_a] = e.set_l[i]
                n_a += 1
        if n_a == done:
            break
    apply_rates(e, n_l, n_v)
