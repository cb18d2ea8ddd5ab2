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

/* Which of LANES ids from a place on, a multiple of LANES, may be drawn. */
INLINE vi N(open)(const lm_draw_row *r, int at) {
    if (!r->mask) return ~(vi){0};
    uint32_t bits = at >> 5 < r->words ? r->mask[at >> 5] >> (at & 31) : 0;
    vi lanes;
    for (int i = 0; i < LANES; i++) lanes[i] = 1 << i;
    return (((vi){0} + (int32_t)bits) & lanes) != 0;
}

INLINE vf N(those)(vf x, vi open) {
    return (vf)(((vi)x & open) | ((vi)N(all)(-INFINITY) & ~open));
}

/* Their scores; -inf what may not be drawn. */
INLINE vf N(legal)(const lm_draw_row *r, int at, int size) {
    return N(those)(N(logits)(r->scores, at, size), N(open)(r, at));
}

/* The largest score of a row that may be drawn; NaN where it has one. */
INLINE float N(highest)(const lm_draw_row *r, int size) {
    if (!r->mask) return N(top)(r->scores, size);
    vf most = N(all)(-INFINITY), sum = {0};
    for (int i = 0; i < size; i += LANES) {
        vf part = N(legal)(r, i, size);
        most = N(larger)(part, most);
        sum += (vf)((vi)part & ~(part == part));
    }
    float nan = N(sum)(sum);
    return nan == nan ? N(largest)(most) : nan;
}

/* Where a row ends, in the order of likelihood: at the score `least`, of the ids below `before`. */
typedef struct {
    float least;
    int before;
} N(end);

INLINE vi N(inside)(vf x, vi ids, N(end) end) {
    return (x > end.least) | ((x == end.least) & (ids < end.before));
}

/* The best noisy scores of each lane and where they were, and the second best. */
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
   lifts to f needs u <= exp(s) exp(-f). exp(s) is summed up in any case: over all that may be drawn
   and, to `whole`, over the row. */
INLINE float N(run_race)(int hot, int ends, int masked, const lm_draw_row *r, int size,
                         float largest, float factor, const uint32_t words[2], N(end) end,
                         N(race) *race, float *whole) {
    vf weight = {0}, every = {0}, none = N(all)(-INFINITY);
    vi ids;
    float floor = -INFINITY;
    *race = (N(race)){none, none, {0}};
    for (int i = 0; i < LANES; i++) ids[i] = i;
    for (int i = 0; i < size; i += TOGETHER * LANES) {
        vf scaled[TOGETHER], u[TOGETHER], reach = N(all)(hot ? expf(-floor) * 1.001f : floor);
        vi hit = {0}, in[TOGETHER];
        for (int t = 0; t < TOGETHER; t++) {
            int at = i + t * LANES;
            vf x = N(logits)(r->scores, at, size);
            scaled[t] = (x - largest) * factor;
            vf part = N(exp2)(scaled[t] * LOG2E);
            every += part;
            if (masked) {
                vi open = N(open)(r, at);
                x = N(those)(x, open);
                scaled[t] = N(those)(scaled[t], open);
                part = (vf)((vi)part & open);
                weight += part;
            }
            if (!hot) {
                hit |= scaled[t] >= reach;
                continue;
            }
            u[t] = N(uniform)((vu)(ids + at), words[0], words[1]);
            in[t] = u[t] <= part * reach;
            if (ends) in[t] &= N(inside)(x, ids + at, end);
            hit |= in[t];
        }
        if (!N(any)(hit)) continue;
        for (int t = 0; t < TOGETHER; t++) {
            if (hot) scaled[t] += N(noise)(u[t]);
            if (hot && ends) scaled[t] = (vf)(((vi)scaled[t] & in[t]) | ((vi)none & ~in[t]));
            N(enter)(race, scaled[t], ids + (i + t * LANES));
        }
        N(winner)(race, &floor);
    }
    *whole = N(sum)(every);
    return masked ? N(sum)(weight) : *whole;
}

/* The form for what is there: each is compiled by itself. */
TARGET static float N(race_of)(const lm_draw_row *r, int size, float largest, float factor,
                               const uint32_t words[2], N(end) end, N(race) *race,
                               float *whole) {
#define RACE(hot, ends, masked)                                                           N(run_race)(hot, ends, masked, r, size, largest, factor, words, end, race, whole)
    if (!(r->temperature > 0)) return r->mask ? RACE(0, 0, 1) : RACE(0, 0, 0);
    if (end.least == -INFINITY) return r->mask ? RACE(1, 0, 1) : RACE(1, 0, 0);
    return r->mask ? RACE(1, 1, 1) : RACE(1, 1, 0);
#undef RACE
}

/* What the scores weigh that come before a place in the order of likelihood. */
INLINE float N(ahead)(const lm_draw_row *r, int size, float largest, float factor, N(end) place) {
    vf sum = {0};
    vi ids;
    for (int i = 0; i < LANES; i++) ids[i] = i;
    for (int i = 0; i < size; i += LANES) {
        vf x = N(legal)(r, i, size);
        vi in = N(inside)(x, ids + i, place);
        if (!N(any)(in)) continue;
        sum += (vf)((vi)N(exp2)((x - largest) * factor * LOG2E) & in);
    }
    return N(sum)(sum);
}

/* Where the `most` likeliest of a row end. */
INLINE N(end) N(cut)(const lm_draw_row *r, int size, int most) {
    ranked kept[2 * MOST_RANKED];
    int count = 0;
    float floor = -INFINITY;
    for (int i = 0; i < size; i += LANES) {
        vf x = N(legal)(r, i, size);
        if (!N(any)(x > floor)) continue;
        for (int t = 0; t < LANES; t++) {
            if (!(x[t] > floor)) continue;
            kept[count++] = (ranked){x[t], i + t};
            if (count < 2 * most) continue;
            floor = rank(kept, count, most);
            count = most;
        }
    }
    if (count < most) return (N(end)){-INFINITY, 0};
    rank(kept, count, most);
    return (N(end)){kept[most - 1].score, kept[most - 1].id + 1};
}

/* A token by its noisy scores, among those that the limits leave: whoever wins and is left out takes
   all with it that are less likely, so that the next race is shorter. Returns whether it is sure. */
INLINE int N(race_within)(lm_draw_row *r, int size, float largest, float factor, float *weight,
                          float *whole) {
    uint32_t words[2];
    words_of(r, words);
    N(end) end = {-INFINITY, 0};
    N(race) race;
    float next, all = 0;
    int limited = r->top_k < size || r->top_p < 1 || r->min_p > 0;
    if (limited && r->top_k < size) {
        if (r->top_k > MOST_RANKED) return 0;
        end = N(cut)(r, size, r->top_k);
        if (r->top_p < 1) all = N(ahead)(r, size, largest, factor, end);
    }
    for (int tries = 0; tries < MOST_RACES; tries++) {
        *weight = N(race_of)(r, size, largest, factor, words, end, &race, whole);
        int lane = N(winner)(&race, &next), token = race.at[lane];
        r->token = token;
        if (!(race.best[lane] - next > NEAR)) return 0;
        if (!limited) return 1;
        if (!(all > 0)) all = *weight;
        float before = 0, share = expf((r->scores[token] - largest) * factor);
        N(end) here = {r->scores[token], token};
        if (r->top_p < 1) before = N(ahead)(r, size, largest, factor, here);
        float over = before > 0 ? before - r->top_p * all : -all, under = r->min_p - share;
        if (fabsf(over) <= SLACK * all || fabsf(under) <= SLACK * r->min_p) return 0;
        if (over < 0 && under < 0) return 1;
        end = here;
    }
    return 0;
}

TARGET static void N(pick)(lm_draw_row *r, int size) {
    int hot = r->temperature > 0, plain = r->scores == r->logits;
    float own = N(top)(r->logits, size);
    float largest = plain && !r->mask ? own : N(highest)(r, size);
    float factor = !hot ? 1.0f : r->temperature > 1e-38f ? 1.0f / r->temperature : 1e38f;
    float weight = 0, whole = 0, next;
    r->token = r->sure = 0;
    if (fabsf(largest) < INFINITY && hot) {
        r->sure = N(race_within)(r, size, largest, factor, &weight, &whole);
    } else if (fabsf(largest) < INFINITY) {
        N(race) race;
        N(end) end = {-INFINITY, 0};
        weight = N(race_of)(r, size, largest, factor, NULL, end, &race, &whole);
        r->token = race.at[N(winner)(&race, &next)];
        r->sure = 1;
    }
    r->prob = weight > 0 ? expf((r->scores[r->token] - largest) * factor) / weight : 0;
    r->logprob = NAN;
    if (!(fabsf(own) < INFINITY)) return;
    if (!plain || factor != 1.0f || !(whole > 0) || own - largest > FAR)
        largest = own, whole = N(weight)(r->logits, size, own);
    r->logprob = r->logits[r->token] - (largest + logf(whole));
}
