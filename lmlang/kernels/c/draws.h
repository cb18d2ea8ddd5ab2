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

/* Uniform numbers of ids, between 0 and 1, as lmlang/noise.py defines them. */
INLINE vf N(uniform)(vu ids, uint32_t a, uint32_t b) {
    vu w = N(mix)(N(mix)(ids ^ a) + b);
    vf u = (__builtin_convertvector(w, vf) + 0.5f) * 2.3283064365386963e-10f;
    return -N(larger)(-u, -N(all)(0.9999999403953552f));
}

/* Standard Gumbel noise of them. */
INLINE vf N(noise)(vf u) {
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

INLINE int N(any)(vi x) {
    int64_t parts[LANES / 2], found = 0;
    __builtin_memcpy(parts, &x, sizeof parts);
    for (int i = 0; i < LANES / 2; i++) found |= parts[i];
    return found != 0;
}

/* The best scores of each lane and where they were, and the second best. */
typedef struct {
    vf best, second;
    vi at;
} N(race);

INLINE void N(enter)(N(race) *r, vf score, vi at) {
    vi better = score > r->best;
    r->second = N(larger)(r->second, (vf)(((vi)r->best & better) | ((vi)score & ~better)));
    r->best = (vf)(((vi)score & better) | ((vi)r->best & ~better));
    r->at = (at & better) | (r->at & ~better);
}

/* The lane with the best score, of equal ones that of the lowest id; and the second best score. */
INLINE int N(winner)(const N(race) *r, float *second) {
    int lane = 0;
    for (int i = 1; i < LANES; i++)
        if (r->best[i] > r->best[lane] || (r->best[i] == r->best[lane] && r->at[i] < r->at[lane]))
            lane = i;
    *second = N(largest)(r->second);
    for (int i = 0; i < LANES; i++)
        if (i != lane && r->best[i] > *second) *second = r->best[i];
    return lane;
}

#define TOGETHER 4 /* vectors that are looked at before any has its noise computed */

/* Scores scaled + noise need two logarithms each, and all but some dozens of a row cannot reach the
   second best so far: noise of n needs u <= 1 - exp(-exp(-n)) <= exp(-n), and so a score s that it
   lifts to f needs u <= exp(s) exp(-f). exp(s) is summed up in any case. */
INLINE float N(run_race)(int hot, const float *x, int size, float largest, float factor, uint32_t a,
                         uint32_t b, N(race) *r) {
    vf weight = {0};
    vi ids;
    float floor = -INFINITY;
    for (int i = 0; i < LANES; i++) ids[i] = i;
    for (int i = 0; i < size; i += TOGETHER * LANES) {
        vf scaled[TOGETHER], u[TOGETHER], reach = N(all)(hot ? expf(-floor) * 1.001f : floor);
        vi hit = {0};
        for (int t = 0; t < TOGETHER; t++) {
            scaled[t] = (N(logits)(x, i + t * LANES, size) - largest) * factor;
            vf part = N(exp2)(scaled[t] * LOG2E);
            weight += part;
            if (hot) u[t] = N(uniform)((vu)(ids + (i + t * LANES)), a, b);
            hit |= hot ? u[t] <= part * reach : scaled[t] >= reach;
        }
        if (!N(any)(hit)) continue;
        for (int t = 0; t < TOGETHER; t++) {
            if (hot) scaled[t] += N(noise)(u[t]);
            N(enter)(r, scaled[t], ids + (i + t * LANES));
        }
        N(winner)(r, &floor);
    }
    return N(sum)(weight);
}

TARGET static void N(pick)(const void *job, int first, int last) {
    const draw_job *j = job;
    for (int row = first; row < last; row++) {
        const float *x = j->scores + row * j->stride;
        float temperature = j->temperatures[row], largest = N(top)(x, j->size), weight = 1, next;
        int hot = temperature > 0, plain = largest > -INFINITY && largest < INFINITY;
        float factor = !hot ? 1.0f : temperature > 1e-38f ? 1.0f / temperature : 1e38f;
        uint32_t a = j->words[row * j->word_row], b = j->words[row * j->word_row + j->word];
        N(race) race = {N(all)(-INFINITY), N(all)(-INFINITY), {0}};
        if (plain && hot) weight = N(run_race)(1, x, j->size, largest, factor, a, b, &race);
        else if (plain) weight = N(run_race)(0, x, j->size, largest, factor, a, b, &race);
        int lane = N(winner)(&race, &next), token = race.at[lane];
        float prob = plain ? expf((x[token] - largest) * factor) / weight : 0;
        j->out[row] = token;
        memcpy(j->out + j->rows + row, &prob, sizeof prob);
        j->out[2 * j->rows + row] = plain && (!hot || race.best[lane] - next > NEAR);
    }
}
