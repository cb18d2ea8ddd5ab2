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

/* One row to one or two digits a block, in the product's order; LANES blocks at a time, so that
   what there is one of a block is computed for all of them at once. */
TARGET static void N(digits)(const work *w, int64_t row) {
    const Product *p = &w->product;
    int64_t inputs = w->given->inputs, blocks = p->blocks, fine = p->fine;
    const float *x = w->given->x + row * w->given->x_stride;
    int8_t *cells = w->x + row * row_bytes(p);
    float room[CELL] = {0}; /* of the one block that is not filled */
    for (int64_t first = 0; first < blocks; first += LANES) {
        int there = blocks - first < LANES ? (int)(blocks - first) : LANES;
        const float *from[LANES];
        vi most[LANES];
        vf sums[LANES], all, sum;
        float scale[LANES], factor[LANES];
        for (int n = 0; n < LANES; n++) {
            most[n] = (vi){0};
            sums[n] = (vf){0};
            if (n >= there) continue;
            int64_t begin = (int64_t)p->order[first + n] * CELL;
            from[n] = x + begin;
            if (inputs - begin < CELL) {
                __builtin_memcpy(room, from[n], (size_t)(inputs - begin) * sizeof(float));
                from[n] = room;
            }
            /* As integers, so that NaN is larger than infinity. */
            for (int i = 0; i < CELL; i += LANES)
                most[n] = N(more)(most[n], (vi)N(load)(from[n] + i) & 0x7fffffff);
        }
        all = (vf)N(maxima)(most);
        vi some = all > 1e-30f;
        N(store)(scale, all / 127.0f);
        N(store)(factor, (vf)((vi)(127.0f / all) & some));
        for (int n = 0; n < there; n++) {
            int64_t k = first + n;
            int8_t *to = cells + cell(p, (size_t)k) + HEAD;
            if (k < fine) scale[n] /= 256.0f, sums[n] = N(cut)(from[n], factor[n], 1, to);
            else sums[n] = N(cut)(from[n], factor[n], 0, to);
        }
        sum = N(sums)(sums); /* exact: integers below 2^24 */
        for (int n = 0; n < there; n++) {
            float both[2] = {scale[n], scale[n] * sum[n]};
            __builtin_memcpy(cells + cell(p, (size_t)(first + n)), both, sizeof both);
        }
    }
}
