"""Objects of a JSON array picked by one of their texts, without decoding the others.

A profile of 100 MB is 400 000 events of which a comparison needs one in ten. What is not needed is
passed over 64 bytes at a time: only quotes, backslashes and braces are looked at.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy, memset

cdef extern from *:
    """
    #include <stdint.h>
    #if defined(__SSE2__)
    #include <emmintrin.h>
    #endif
    /* One bit for each of 64 bytes: quotes and braces, and backslashes. */
    static inline void genie_marks(const unsigned char *text, uint64_t *marks, uint64_t *slashes) {
        uint64_t found = 0, escapes = 0;
        int k;
    #if defined(__SSE2__)
        const __m128i quote = _mm_set1_epi8('"'), open = _mm_set1_epi8('{'),
                      close = _mm_set1_epi8('}'), slash = _mm_set1_epi8(92);
        for (k = 0; k < 4; k++) {
            const __m128i part = _mm_loadu_si128((const __m128i *)(text + 16 * k));
            const __m128i any = _mm_or_si128(_mm_cmpeq_epi8(part, quote),
                _mm_or_si128(_mm_cmpeq_epi8(part, open), _mm_cmpeq_epi8(part, close)));
            found |= (uint64_t)(uint32_t)_mm_movemask_epi8(any) << (16 * k);
            escapes |= (uint64_t)(uint32_t)_mm_movemask_epi8(_mm_cmpeq_epi8(part, slash))
                << (16 * k);
        }
    #else
        for (k = 0; k < 64; k++) {
            const unsigned char c = text[k];
            found |= (uint64_t)(c == '"' || c == '{' || c == '}') << k;
            escapes |= (uint64_t)(c == 92) << k;
        }
    #endif
        *marks = found;
        *slashes = escapes;
    }
    #define genie_lowest(bits) __builtin_ctzll(bits)
    """
    void genie_marks(const unsigned char *, uint64_t *, uint64_t *) noexcept nogil
    int genie_lowest(uint64_t) noexcept nogil

cdef struct Wanted:
    const char *key
    Py_ssize_t key_size
    const char *value
    Py_ssize_t value_size
    Py_ssize_t next_key  # the first of the next key


cdef inline bint _space(unsigned char c) noexcept nogil:
    return c == 32 or c == 10 or c == 13 or c == 9


cdef bint _colon(const unsigned char *text, Py_ssize_t at, Py_ssize_t end) noexcept nogil:
    """Return whether there is one colon and nothing else between two places."""
    cdef int colons = 0
    while at < end:
        if text[at] == 58:
            colons += 1
        elif not _space(text[at]):
            return False
        at += 1
    return colons == 1


cdef Py_ssize_t _element(const unsigned char *text, Py_ssize_t at, Py_ssize_t end) noexcept nogil:
    """Return the first place that is neither white space nor a comma, `end` if there is none."""
    while at < end and (_space(text[at]) or text[at] == 44):
        at += 1
    return at


@cython.final
cdef class Picker:
    """Which objects are wanted: those whose member `key` is one of `values`.

    Args:
        wanted: Key → values; one match of any key is enough. Texts are compared as they are
            written, escapes included.
    """

    cdef list _texts
    cdef Wanted *_wanted
    cdef Py_ssize_t _count

    def __cinit__(self, wanted):
        cdef Py_ssize_t i
        cdef bytes key, value
        pairs = [(k.encode(), v.encode()) for k, values in wanted.items() for v in values]
        self._texts = pairs
        self._count = len(pairs)
        self._wanted = <Wanted *>malloc(max(1, len(pairs)) * sizeof(Wanted))
        if self._wanted == NULL:
            raise MemoryError()
        for i in range(self._count):
            key, value = pairs[i]
            self._wanted[i] = Wanted(
                PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key),
                PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value),
                self._count,
            )
        for i in range(self._count - 2, -1, -1):
            self._wanted[i].next_key = (
                self._wanted[i + 1].next_key if pairs[i][0] == pairs[i + 1][0] else i + 1
            )

    def __dealloc__(self):
        free(self._wanted)

    cdef bint _is_key(self, const unsigned char *text, Py_ssize_t size) noexcept nogil:
        cdef Py_ssize_t i
        # Values of one key follow each other.
        i = 0
        while i < self._count:
            if self._wanted[i].key_size == size and not memcmp(self._wanted[i].key, text, size):
                return True
            i = self._wanted[i].next_key
        return False

    cdef bint _matches(
        self, const unsigned char *key, Py_ssize_t key_size, const unsigned char *value,
        Py_ssize_t value_size,
    ) noexcept nogil:
        cdef Py_ssize_t i
        cdef Wanted *one
        for i in range(self._count):
            one = &self._wanted[i]
            if (
                one.value_size == value_size and one.key_size == key_size
                and not memcmp(one.value, value, value_size)
                and not memcmp(one.key, key, key_size)
            ):
                return True
        return False

    def pick(self, const unsigned char[::1] data not None):
        """Return the wanted objects of a piece of an array, and where and how it ended.

        Args:
            data: A piece of text that begins between two elements of the array.

        Returns:
            (objects as one JSON array, how many objects were passed over or kept, the place up to
            which `data` is done, whether the array ended there). From that place on there is an
            object that is not whole yet, or what follows the array.

        Raises:
            ValueError: An element is no object; the place is in the message.
        """
        cdef Py_ssize_t size = data.shape[0]
        if size == 0:
            return b"[]", 0, 0, False
        cdef bytes out = PyBytes_FromStringAndSize(NULL, size + 2)
        cdef char *into = PyBytes_AS_STRING(out)
        cdef Py_ssize_t filled = 1, seen = 0, done = 0
        cdef bint ended = False
        with nogil:
            into[0] = 91
            self._walk(&data[0], size, into, &filled, &seen, &done, &ended)
            into[filled] = 93
        if not ended and done < 0:
            done = -done - 1
            raise ValueError(
                f"byte {done}: expected an object, found {bytes(data[done : done + 20])!r}"
            )
        return out[: filled + 1], seen, done, ended

    cdef void _walk(
        self, const unsigned char *text, Py_ssize_t size, char *into, Py_ssize_t *filled,
        Py_ssize_t *seen, Py_ssize_t *done, bint *ended,
    ) noexcept nogil:
        cdef unsigned char last[64]
        cdef uint64_t marks, slashes, escaped
        cdef Py_ssize_t base = 0, at, begin = 0, opened = 0, key = -1, key_end = 0, after = 0
        cdef int depth = 0, bit
        cdef bint in_string = False, wanted = False, carry = False
        while base < size:
            if size - base >= 64:
                genie_marks(text + base, &marks, &slashes)
            else:
                memset(last, 32, 64)
                memcpy(last, text + base, size - base)
                genie_marks(last, &marks, &slashes)
            if slashes or carry:
                escaped = 1 if carry else 0
                carry = False
                while slashes:
                    bit = genie_lowest(slashes)
                    slashes &= slashes - 1
                    if not (escaped >> bit) & 1:
                        if bit == 63:
                            carry = True
                        else:
                            escaped |= (<uint64_t>2) << bit
                marks &= ~escaped
            while marks:
                at = base + genie_lowest(marks)
                marks &= marks - 1
                if text[at] == 34:
                    if not in_string:
                        if depth == 0:
                            # Only an error or what follows the array has a text here.
                            break
                        in_string = True
                        opened = at
                        continue
                    in_string = False
                    if depth == 1 and not wanted:
                        if key >= 0 and _colon(text, key_end + 1, opened):
                            wanted = self._matches(
                                text + key, key_end - key, text + opened + 1, at - opened - 1
                            )
                            key = -1
                        elif self._is_key(text + opened + 1, at - opened - 1):
                            key = opened + 1
                            key_end = at
                        else:
                            key = -1
                elif in_string:
                    continue
                elif text[at] == 123:
                    if depth == 0:
                        if _element(text, after, at) != at:
                            break
                        begin = at
                        wanted = False
                        key = -1
                    depth += 1
                else:
                    if depth == 0:
                        break
                    depth -= 1
                    if depth == 0:
                        after = at + 1
                        seen[0] += 1
                        if wanted:
                            if filled[0] > 1:
                                into[filled[0]] = 44
                                filled[0] += 1
                            memcpy(into + filled[0], text + begin, after - begin)
                            filled[0] += after - begin
            else:
                base += 64
                continue
            break
        if depth > 0:
            done[0] = begin
            return
        at = _element(text, after, size)
        if at < size and text[at] == 93:
            done[0] = at + 1
            ended[0] = True
        elif at < size:
            done[0] = -at - 1
        else:
            done[0] = at
