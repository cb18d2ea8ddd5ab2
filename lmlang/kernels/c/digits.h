/* Rows of float32 to int8 digits in blocks of 32; included by each_isa.h. */

/* To integers up to 127, nearest, ties to even, and what is left, in steps of one. */
INLINE vi N(digit)(vf x, vf *left) {
    const float round = 12582912.0f; /* 1.5 * 2^23: adding it leaves no room for a fraction */
    vf rounded = N(smaller)(x, N(all)(127.0f)) + round;
    *left = x - (rounded - round);
    return (vi)rounded - 0x4b400000;
}

INLINE void N(put_digit)(int8_t *to, vi digit) {
    N(vb) narrow = __builtin_convertvector(digit, N(vb));
#if LANES == 16
    __asm__("" : "+v"(narrow)); /* to memory at once takes longer */
#endif
    __builtin_memcpy(to, &narrow, sizeof narrow);
}

/* The digits of a block; returns the sums of the integers, lane by lane. */
INLINE vf N(cut)(const float *block, float factor, int two, int8_t *to) {
    vi total = {0};
    for (int i = 0; i < CELL; i += LANES) {
        vf left;
        vi digit = N(digit)(N(load)(block + i) * factor, &left);
        N(put_digit)(to + i, digit);
        if (two) {
            vi second = N(digit)(left * 256.0f, &left);
            N(put_digit)(to + CELL + i, second);
            digit = digit * 256 + second;
        }
        total += digit;
    }
    return __builtin_convertvector(total, vf);
}

/* Over all lanes, in each of them. */
INLINE vi N(most)(vi x) {
#if LANES >= 16
    x = N(more)(x, SHUFFLED(x, x, SWAPPED, 8));
#endif
#if LANES >= 8
    x = N(more)(x, SHUFFLED(x, x, SWAPPED, 4));
#endif
    x = N(more)(x, SHUFFLED(x, x, SWAPPED, 2));
    return N(more)(x, SHUFFLED(x, x, SWAPPED, 1));
}

/* A block to its cell. */
INLINE void N(fill)(const float *block, int two, int8_t *to) {
    vi most = {0}; /* as integers, so that NaN is larger than infinity */
    for (int i = 0; i < CELL; i += LANES)
        most = N(more)(most, (vi)N(load)(block + i) & 0x7fffffff);
    float largest = ((vf)N(most)(most))[0], scale = largest / 127.0f;
    float factor = largest > 1e-30f ? 127.0f / largest : 0.0f;
    float sum = N(sum)(N(cut)(block, factor, two, to + HEAD)); /* exact: integers below 2^24 */
    if (two) scale /= 256.0f;
    float both[2] = {scale, scale * sum};
    __builtin_memcpy(to, both, sizeof both);
}

/* One row to one or two digits a block, in the product's order. */
TARGET static void N(digits)(const work *w, int64_t row) {
    const Product *p = &w->product;
    int64_t inputs = w->given->inputs;
    const float *x = w->given->x + row * w->given->x_stride;
    int8_t *to = w->x + row * row_bytes(p);
    float room[CELL] = {0}; /* of the one block that is not filled */
    for (size_t k = 0; k < p->blocks; k++) {
        int64_t begin = (int64_t)p->order[k] * CELL;
        const float *from = x + begin;
        if (inputs - begin < CELL) {
            __builtin_memcpy(room, from, (size_t)(inputs - begin) * sizeof(float));
            from = room;
        }
        if (k < p->fine) {
            N(fill)(from, 1, to);
            to += FINE;
        } else {
            N(fill)(from, 0, to);
            to += COARSE;
        }
    }
}
