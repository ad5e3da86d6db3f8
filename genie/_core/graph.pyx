"""Walks over a dependency CSR: issue order, longest path, shortest cycle. All iterative."""

import numpy as np

from libc.stdint cimport int64_t, uint32_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memset

cdef enum:
    NOWHERE = 0xffffffff


cdef bint children_of(
    const int64_t *indptr, const uint32_t *deps, size_t n, size_t m, uint32_t **first,
    uint32_t **child,
) noexcept nogil:
    # The transposed CSR: child[first[i]:first[i + 1]] are the nodes that have i as a parent.
    cdef size_t i, k
    cdef uint32_t *start = <uint32_t *>calloc(n + 2, 4)
    cdef uint32_t *found = <uint32_t *>malloc((m + 1) * 4)
    first[0] = start
    child[0] = found
    if start == NULL or found == NULL:
        return False
    for k in range(m):
        start[deps[k] + 2] += 1
    for i in range(2, n + 2):
        start[i] += start[i - 1]
    for i in range(n):
        for k in range(<size_t>indptr[i], <size_t>indptr[i + 1]):
            found[start[deps[k] + 1]] = <uint32_t>i
            start[deps[k] + 1] += 1
    return True


cdef inline void push(uint32_t *heap, size_t *size, uint32_t key) noexcept nogil:
    cdef size_t at = size[0], up
    size[0] += 1
    while at:
        up = (at - 1) >> 1
        if heap[up] <= key:
            break
        heap[at] = heap[up]
        at = up
    heap[at] = key


cdef inline uint32_t pop(uint32_t *heap, size_t *size) noexcept nogil:
    cdef uint32_t top = heap[0], last
    cdef size_t at = 0, down, count
    size[0] -= 1
    count = size[0]
    if count == 0:
        return top
    last = heap[count]
    while True:
        down = 2 * at + 1
        if down >= count:
            break
        if down + 1 < count and heap[down + 1] < heap[down]:
            down += 1
        if heap[down] >= last:
            break
        heap[at] = heap[down]
        at = down
    heap[at] = last
    return top


cdef size_t kahn(
    const int64_t *indptr, const uint32_t *deps, size_t n, size_t m, const uint32_t *key,
    const uint32_t *node_of_key, int64_t *order,
) noexcept nogil:
    # Fill `order`; return how many nodes have one, or n + 1 without memory.
    cdef uint32_t *first = NULL
    cdef uint32_t *child = NULL
    cdef uint32_t *waiting = <uint32_t *>malloc((n + 1) * 4)
    cdef uint32_t *heap = <uint32_t *>malloc((n + 1) * 4)
    cdef size_t i, k, done = 0, size = 0
    cdef uint32_t c
    if waiting != NULL and heap != NULL and children_of(indptr, deps, n, m, &first, &child):
        for i in range(n):
            waiting[i] = <uint32_t>(indptr[i + 1] - indptr[i])
            if waiting[i] == 0:
                push(heap, &size, key[i])
        while size:
            i = node_of_key[pop(heap, &size)]
            order[done] = <int64_t>i
            done += 1
            for k in range(first[i], first[i + 1]):
                c = child[k]
                waiting[c] -= 1
                if waiting[c] == 0:
                    push(heap, &size, key[c])
    else:
        done = n + 1
    free(first)
    free(child)
    free(waiting)
    free(heap)
    return done


def issue_order(
    const int64_t[::1] indptr not None, const uint32_t[::1] deps not None, ids not None
):
    """Return positions in topological order, of several ready nodes the lowest id first.

    Nodes on or behind a cycle are left out, so the result may be shorter than the input.

    Raises:
        MemoryError: The graph does not fit into memory.
    """
    cdef size_t n = indptr.shape[0] - 1, m = deps.shape[0], done
    if n == 0:
        return np.empty(0, np.int64)
    order = np.empty(n, np.int64)
    if np.all(ids[1:] > ids[:n - 1]):
        sorting = np.arange(n, dtype=np.uint32)
        rank = sorting
    else:
        sorting = np.argsort(ids, kind="stable").astype(np.uint32)
        rank = np.empty(n, np.uint32)
        rank[sorting] = np.arange(n, dtype=np.uint32)
    cdef int64_t[::1] out = order
    cdef const uint32_t[::1] key = rank
    cdef const uint32_t[::1] node = sorting
    cdef const uint32_t *edges = &deps[0] if m else NULL
    with nogil:
        done = kahn(&indptr[0], edges, n, m, &key[0], &node[0], &out[0])
    if done > n:
        raise MemoryError("the graph does not fit into memory")
    return order[:done]


def finish_times(
    const int64_t[::1] indptr not None, const uint32_t[::1] deps not None,
    const int64_t[::1] order not None, const int64_t[::1] weight not None,
):
    """Return for each node the largest sum of weights on a path that ends with it.

    Args:
        indptr: The CSR's row starts.
        deps: The CSR's parents.
        order: Positions in topological order; nodes outside it keep 0.
        weight: What each node adds, such as its duration in ns.
    """
    cdef size_t n = indptr.shape[0] - 1, j, k
    finish = np.zeros(n, np.int64)
    cdef int64_t[::1] out = finish
    cdef int64_t i, latest
    with nogil:
        for j in range(<size_t>order.shape[0]):
            i = order[j]
            latest = 0
            for k in range(<size_t>indptr[i], <size_t>indptr[i + 1]):
                if out[deps[k]] > latest:
                    latest = out[deps[k]]
            out[i] = latest + weight[i]
    return finish


cdef struct Peel:
    const int64_t *indptr
    const uint32_t *deps
    uint32_t *first
    uint32_t *child
    uint32_t *parents_left
    uint32_t *children_left
    uint32_t *stack
    char *alive


cdef void drop(Peel *p, uint32_t node) noexcept nogil:
    # Take a node out, and all that then has no parent or no child left.
    cdef size_t depth = 1, k
    cdef uint32_t i, other
    p.alive[node] = 0
    p.stack[0] = node
    while depth:
        depth -= 1
        i = p.stack[depth]
        for k in range(p.first[i], p.first[i + 1]):
            other = p.child[k]
            if p.alive[other]:
                p.parents_left[other] -= 1
                if p.parents_left[other] == 0:
                    p.alive[other] = 0
                    p.stack[depth] = other
                    depth += 1
        for k in range(<size_t>p.indptr[i], <size_t>p.indptr[i + 1]):
            other = p.deps[k]
            if p.alive[other]:
                p.children_left[other] -= 1
                if p.children_left[other] == 0:
                    p.alive[other] = 0
                    p.stack[depth] = other
                    depth += 1


cdef int64_t cycle_through(
    Peel *p, uint32_t start, int64_t limit, uint32_t *queue, uint32_t *came, uint32_t *stamp,
    uint32_t mark, int64_t *budget,
) noexcept nogil:
    # Length of the shortest cycle through `start` if it is below `limit`, else 0; `came` then
    # leads from start's last ancestor back to it.
    cdef size_t head = 0, tail = 1, level_end = 1, k
    cdef int64_t depth = 0
    cdef uint32_t i, other
    queue[0] = start
    stamp[start] = mark
    while head < tail:
        if head == level_end:
            depth += 1
            level_end = tail
        if depth + 1 >= limit or budget[0] <= 0:
            return 0
        i = queue[head]
        head += 1
        for k in range(<size_t>p.indptr[i], <size_t>p.indptr[i + 1]):
            other = p.deps[k]
            budget[0] -= 1
            if other == start:
                came[start] = i
                return depth + 1
            if p.alive[other] and stamp[other] != mark:
                stamp[other] = mark
                came[other] = i
                queue[tail] = other
                tail += 1
    return 0


def shortest_cycle(
    const int64_t[::1] indptr not None, const uint32_t[::1] deps not None,
    int64_t budget=100_000_000,
):
    """Return the positions of a shortest cycle, each a parent of the one before it.

    Searches backwards from one node after the other, taking each out once it is searched
    together with everything that then lies on no cycle. Work is bounded by `budget` edges; past
    it, the shortest cycle found so far comes back.

    Returns:
        (positions, in the order node, its parent, that one's parent, ...; whether it is proven
        to be the shortest; how many nodes lie on or between cycles). Empty without a cycle.

    Raises:
        MemoryError: The graph does not fit into memory.
    """
    cdef size_t n = indptr.shape[0] - 1, m = deps.shape[0], i, k
    cdef Peel p
    cdef uint32_t *queue = NULL
    cdef uint32_t *came = NULL
    cdef uint32_t *stamp = NULL
    cdef uint32_t *best = NULL
    cdef int64_t limit = <int64_t>n + 1, found, best_length = 0, on_cycles = 0
    cdef uint32_t at, mark = 0
    cdef bint ready = False
    if n == 0 or m == 0:
        return [], True, 0
    memset(&p, 0, sizeof(Peel))
    p.indptr = &indptr[0]
    p.deps = &deps[0]
    try:
        with nogil:
            ready = children_of(p.indptr, p.deps, n, m, &p.first, &p.child)
            p.parents_left = <uint32_t *>malloc(n * 4)
            p.children_left = <uint32_t *>malloc(n * 4)
            p.stack = <uint32_t *>malloc(n * 4)
            p.alive = <char *>malloc(n)
            queue = <uint32_t *>malloc(n * 4)
            came = <uint32_t *>malloc(n * 4)
            best = <uint32_t *>malloc(n * 4)
            stamp = <uint32_t *>calloc(n, 4)
            if (
                ready and p.parents_left != NULL and p.children_left != NULL
                and p.stack != NULL and p.alive != NULL and queue != NULL and came != NULL
                and best != NULL and stamp != NULL
            ):
                memset(p.alive, 1, n)
                for i in range(n):
                    p.parents_left[i] = <uint32_t>(indptr[i + 1] - indptr[i])
                    p.children_left[i] = p.first[i + 1] - p.first[i]
                for i in range(n):
                    if p.alive[i] and (p.parents_left[i] == 0 or p.children_left[i] == 0):
                        drop(&p, <uint32_t>i)
                for i in range(n):
                    on_cycles += p.alive[i]
                for i in range(n):
                    if not p.alive[i]:
                        continue
                    mark += 1
                    found = cycle_through(
                        &p, <uint32_t>i, limit, queue, came, stamp, mark, &budget
                    )
                    if found:
                        best_length = limit = found
                        # came leads from the last ancestor to the start: store it backwards.
                        at = <uint32_t>i
                        for k in range(<size_t>found):
                            at = came[at]
                            best[<size_t>found - 1 - k] = at
                        if found == 1:
                            break
                    if budget <= 0:
                        break
                    drop(&p, <uint32_t>i)
            else:
                ready = False
        if not ready:
            raise MemoryError("the graph does not fit into memory")
        return [best[k] for k in range(<size_t>best_length)], budget > 0, on_cycles
    finally:
        free(p.first)
        free(p.child)
        free(p.parents_left)
        free(p.children_left)
        free(p.stack)
        free(p.alive)
        free(queue)
        free(came)
        free(best)
        free(stamp)
