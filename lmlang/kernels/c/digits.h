/* Rows of float32 to int8 digits in blocks of 32; included by each_isa.h. */

/* To integers up to 127, nearest, ties to even, and what is left, in steps of one. */
INLINE vi N(digit)(vf x, vf *left) {
    const float round = 12582912.0f; /* 1.5 * 2^23: adding it leaves no room for a fraction */
    vf rounded = -N(larger)(-x, N(all)(-127.0f)) + round;
    *left = x - (rounded - round);
    return (vi)rounded - 0x4b400000;
}

INLINE void N(put_digit)(int8_t *to, vi digit) {
    N(vb) narrow = __builtin_convertvector(digit, N(vb));
    __builtin_memcpy(to, &narrow, sizeof narrow);
}

/* One row to one or two digits a block, in the product's order. */
TARGET static void N(digits)(const work *w, int64_t row) {
    const Product *p = &w->product;
    int64_t inputs = w->given->inputs, blocks = p->blocks, fine = p->fine;
    const float *x = w->given->x + row * w->given->x_stride;
    int8_t *to = w->x + row * row_bytes(p);
    for (int64_t k = 0; k < blocks; k++) {
        int two = k < fine;
        int8_t *high = to + HEAD;
        int64_t from = (int64_t)p->order[k] * CELL;
        const float *block = x + from;
        float room[CELL] = {0};
        if (inputs - from < CELL) {
            __builtin_memcpy(room, block, (size_t)(inputs - from) * sizeof(float));
            block = room;
        }
        vf most = {0}, none = {0}; /* `none`: NaN where x is, else 0 */
        vi total = {0};
        for (int i = 0; i < CELL; i += LANES) {
            vf part = N(load)(block + i);
            most = N(larger)(N(larger)(part, -part), most);
            none += (vf)((vi)part & ~(part == part));
        }
        float largest = N(largest)(most) + N(sum)(none);
        float factor = largest > 1e-30f ? 127.0f / largest : 0.0f;
        for (int i = 0; i < CELL; i += LANES) {
            vf left;
            vi digit = N(digit)(N(load)(block + i) * factor, &left);
            N(put_digit)(high + i, digit);
            if (two) {
                vi second = N(digit)(left * 256.0f, &left);
                N(put_digit)(high + CELL + i, second);
                digit = digit * 256 + second;
            }
            total += digit;
        }
        float scale = two ? largest / (127 * 256) : largest / 127;
        float both[2] = {scale, scale * N(sum)(__builtin_convertvector(total, vf))}; /* exact sums */
        __builtin_memcpy(to, both, sizeof both);
        to += two ? FINE : COARSE;
    }
}
