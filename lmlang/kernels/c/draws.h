/* Kernels over rows of logits; included by each_isa.h. Each is of one row alone. */

/* The natural logarithm of normal numbers, off by two units in the last place at most:
   log(m 2^e) = e log 2 + 2 artanh(f / (2 + f)) with f = m - 1 and m around 1. */
INLINE vf N(log)(vf x) {
    vu bits = (vu)x;
    vi exponent = (vi)(bits >> 23) - 127;
    vf m = (vf)((bits & 0x7fffffu) | 0x3f800000u);
    vi high = m > 1.4142135f;
    exponent -= high; /* which is -1 where it is so */
    vf half = m * 0.5f;
    vf f = (vf)(((vi)half & high) | ((vi)m & ~high)) - 1.0f;
    vf e = __builtin_convertvector(exponent, vf), s = f / (f + 2.0f), q = s * s;
    vf more = q * (0.33333334f + q * (0.2f + q * (0.14285715f + q * (0.11111111f + q * 0.09090909f))));
    /* log 2 in two parts, the first of few bits, so that its product is exact */
    return e * 0.693359375f + (e * -0.00021219444f + 2.0f * (s + s * more));
}

INLINE vu N(mix)(vu x) {
    x = (x ^ (x >> 16)) * 0x7feb352du;
    x = (x ^ (x >> 15)) * 0x846ca68bu;
    return x ^ (x >> 16);
}

/* Standard Gumbel noise of ids, as lmlang/noise.py defines it. */
INLINE vf N(noise)(vu ids, uint32_t a, uint32_t b) {
    vu w = N(mix)(N(mix)(ids ^ a) + b);
    vf most = N(all)(0.9999999403953552f);
    vf u = (__builtin_convertvector(w, vf) + 0.5f) * 2.3283064365386963e-10f;
    u = -N(larger)(-u, -most);
    vf left = 1.0f - u;
    return -N(log)(-(N(log)(left) + ((1.0f - left) - u))); /* what 1 - u rounded off comes back */
}

/* LANES logits from a place on; -inf behind the last. */
INLINE vf N(logits)(const float *x, int at, int size) {
    if (size - at >= LANES) return N(load)(x + at);
    float room[LANES];
    for (int i = 0; i < LANES; i++) room[i] = at + i < size ? x[at + i] : -INFINITY;
    return N(load)(room);
}

/* The largest of a row; NaN where there is one. */
INLINE float N(top)(const float *x, int size) {
    vf most = N(all)(-INFINITY), sum = {0};
    for (int i = 0; i < size; i += LANES) {
        vf part = N(logits)(x, i, size);
        most = N(larger)(part, most);
        sum += (vf)((vi)part & ~(part == part)); /* a NaN, else 0 */
    }
    float nan = N(sum)(sum);
    return nan == nan ? N(largest)(most) : nan;
}

/* Sum of exp(x - largest). */
INLINE float N(weight)(const float *x, int size, float largest) {
    vf sum = {0};
    for (int i = 0; i < size; i += LANES)
        sum += N(exp2)((N(logits)(x, i, size) - largest) * LOG2E);
    return N(sum)(sum);
}

TARGET static void N(normaliser)(const void *job, int first, int last) {
    const normaliser_job *j = job;
    for (int row = first; row < last; row++) {
        const float *x = j->logits + row * j->stride;
        float largest = N(top)(x, j->size);
        int plain = largest > -INFINITY && largest < INFINITY;
        j->out[row] = plain ? largest + logf(N(weight)(x, j->size, largest)) : largest;
    }
}

TARGET static void N(pick)(const void *job, int first, int last) {
    const draw_job *j = job;
    for (int row = first; row < last; row++) {
        const float *x = j->scores + row * j->stride;
        float temperature = j->temperatures[row], largest = N(top)(x, j->size);
        int hot = temperature > 0, plain = largest > -INFINITY && largest < INFINITY;
        float divisor = hot ? temperature : 1.0f;
        uint32_t a = j->words[row * j->word_row], b = j->words[row * j->word_row + j->word];
        vf best = N(all)(-INFINITY), second = best, weight = {0};
        vi best_at = {0}, at;
        for (int i = 0; i < LANES; i++) at[i] = i;
        for (int i = 0; plain && i < j->size; i += LANES, at += LANES) {
            vf scaled = (N(logits)(x, i, j->size) - largest) / divisor;
            weight += N(exp2)(scaled * LOG2E);
            vf noisy = hot ? scaled + N(noise)((vu)at, a, b) : scaled;
            vi better = noisy > best;
            second = N(larger)(second, (vf)(((vi)best & better) | ((vi)noisy & ~better)));
            best = (vf)(((vi)noisy & better) | ((vi)best & ~better));
            best_at = (at & better) | (best_at & ~better);
        }
        int lane = 0;
        for (int i = 1; i < LANES; i++)
            if (best[i] > best[lane] || (best[i] == best[lane] && best_at[i] < best_at[lane])) lane = i;
        float next = N(largest)(second);
        for (int i = 0; i < LANES; i++)
            if (i != lane && best[i] > next) next = best[i];
        int token = best_at[lane];
        float prob = plain ? expf((x[token] - largest) / divisor) / N(sum)(weight) : 0;
        j->out[row] = token;
        memcpy(j->out + j->rows + row, &prob, sizeof prob);
        j->out[2 * j->rows + row] = plain && (!hot || best[lane] - next > NEAR);
    }
}
