/* Attention of a few queries over tiles of keys; included by each_isa.h.

   A piece is some queries of one row, some kv heads and some tiles of TILE keys. The G query heads
   of a kv head are so many more queries of it. For each tile and kv head, M queries in all:

       pool --load--> keys [Dk/4, TILE, 4]         q [M, Dk] x keys  -> scores [M, TILE]
                      values [TILE, Dv]            softmax so far    -> weights, in place
                                                   weights x values  -> added to out [M, Dv]

   Of both products, as many results as fit stay in registers, and every result is summed in one
   order, whatever stands beside it. A score is four sums, each over every fourth number; so keys
   need not be turned, but only be laid beside one another, four numbers of each. Scores are of base
   2: log2(e) is in the factor that the queries were multiplied with.

   Source: Dao et al., "FlashAttention" (2022) for the softmax that goes along. */

/* c[m, nv vectors] += a[m, k] x b[k, ...]; m and nv are constants. */
INLINE void N(block)(int m, int nv, int k, const float *a, int a_stride, const float *b,
                     int b_stride, float *c, int c_stride) {
    vf sum[BLOCK][WIDE];
    for (int i = 0; i < m; i++)
        for (int j = 0; j < nv; j++)
            sum[i][j] = N(load)(c + (int64_t)i * c_stride + j * LANES);
    for (int l = 0; l < k; l++) {
        vf row[WIDE];
        for (int j = 0; j < nv; j++) row[j] = N(load)(b + (int64_t)l * b_stride + j * LANES);
        for (int i = 0; i < m; i++)
            for (int j = 0; j < nv; j++) sum[i][j] += a[(int64_t)i * a_stride + l] * row[j];
    }
    for (int i = 0; i < m; i++)
        for (int j = 0; j < nv; j++) N(store)(c + (int64_t)i * c_stride + j * LANES, sum[i][j]);
}

#define CASE(m)                                                                       \
    case m: N(block)(m, nv, k, a, a_stride, b, b_stride, c, c_stride); break;
INLINE void N(rows)(int m, int nv, int k, const float *a, int a_stride, const float *b,
                    int b_stride, float *c, int c_stride) {
    switch (m) {
        CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6)
    }
}
#undef CASE

/* c[m, n] as in `block`, for any m, and n filled up to whole vectors. */
TARGET static void N(multiply)(int m, int n, int k, const float *a, int a_stride, const float *b,
                               int b_stride, float *c, int c_stride) {
    for (int j = 0; j < n; j += WIDE * LANES) {
        int vectors = (n - j + LANES - 1) / LANES;
        for (int i = 0; i < m; i += BLOCK) {
            int some = m - i < BLOCK ? m - i : BLOCK;
            const float *ai = a + (int64_t)i * a_stride, *bj = b + j;
            float *cij = c + (int64_t)i * c_stride + j;
            if (vectors >= WIDE)
                N(rows)(some, WIDE, k, ai, a_stride, bj, b_stride, cij, c_stride);
            else {
                int v = 0;
                for (; v + 1 < vectors; v += 2)
                    N(rows)(some, 2, k, ai, a_stride, bj + v * LANES, b_stride,
                            cij + v * LANES, c_stride);
                if (v < vectors)
                    N(rows)(some, 1, k, ai, a_stride, bj + v * LANES, b_stride,
                            cij + v * LANES, c_stride);
            }
        }
    }
}

INLINE void N(fetch)(const void *pool, int64_t at, int size, int width) {
    const char *p = (const char *)pool + at * width;
    for (int i = 0; i < size * width; i += 64) __builtin_prefetch(p + i, 0, 2);
}

#define KEYS (LANES / 4)           /* that have four numbers each in a vector */
#define SCORED (BLOCK * WIDE / 4)  /* rows whose sums stay in registers, of four vectors each */

/* Numbers d .. d+3 of KEYS keys, one key after the other. */
INLINE vf N(fours)(const char *const *keys, int64_t d, int type) {
    if (type == LM_F32) {
#if LANES == 16
        __m512 x = _mm512_castps128_ps512(_mm_loadu_ps((const float *)keys[0] + d));
        x = _mm512_insertf32x4(x, _mm_loadu_ps((const float *)keys[1] + d), 1);
        x = _mm512_insertf32x4(x, _mm_loadu_ps((const float *)keys[2] + d), 2);
        return (vf)_mm512_insertf32x4(x, _mm_loadu_ps((const float *)keys[3] + d), 3);
#elif LANES == 8
        __m256 x = _mm256_castps128_ps256(_mm_loadu_ps((const float *)keys[0] + d));
        return (vf)_mm256_insertf128_ps(x, _mm_loadu_ps((const float *)keys[1] + d), 1);
#else
        return N(load)((const float *)keys[0] + d);
#endif
    }
    if (type == LM_I8) {
        union { uint32_t parts[KEYS]; N(vb) x; } four;
        for (int i = 0; i < KEYS; i++) __builtin_memcpy(&four.parts[i], keys[i] + d, 4);
        return N(from_i8)(four.x);
    }
    union { uint64_t parts[KEYS]; N(vh) x; } four;
    for (int i = 0; i < KEYS; i++) __builtin_memcpy(&four.parts[i], keys[i] + 2 * d, 8);
    return type == LM_BF16 ? N(from_bf16)(four.x) : N(from_f16)(four.x);
}

/* The same where only the first `there` are; the others are 0. */
INLINE vf N(some_fours)(const char *const *keys, int64_t d, int type, int there) {
    char room[KEYS][16] = {{0}};
    const char *from[KEYS];
    int width = lm_width(type);
    for (int i = 0; i < KEYS; i++) {
        __builtin_memcpy(room[i], keys[i] + d * width, (size_t)there * width);
        from[i] = room[i];
    }
    return N(fours)(from, 0, type);
}

/* Four numbers, over and over. */
INLINE vf N(again)(const float *p) {
#if LANES == 16
    return (vf)_mm512_broadcast_f32x4(_mm_loadu_ps(p));
#elif LANES == 8
    return (vf)_mm256_broadcast_ps((const __m128 *)p);
#else
    return N(load)(p);
#endif
}

/* Where LANES keys of a tile lie, from its slot j on; what is behind the last repeats it. Keys i,
   4 + i, 8 + i .. go into vector i of four: then their scores come out in order. */
typedef struct {
    const char *from[4][KEYS];
    vf scale[4];
} N(keys);

INLINE void N(find_keys)(int type, const lm_attention *a, int head, const tile *t, int j,
                         N(keys) *k) {
    int width = lm_width(type);
    float scales[4][LANES];
    for (int i = 0; i < LANES; i++) {
        int64_t slot = t->slots[j + i < t->n ? j + i : t->n - 1];
        k->from[i % 4][i / 4] = (const char *)a->k + (slot * a->k_stride + head * a->k_head) * width;
        if (j + i < t->ahead)
            N(fetch)(a->k, t->next[j + i] * a->k_stride + head * a->k_head, a->key_dim, width);
        if (type == LM_I8) {
            float scale = lm_scale(a, a->k_scale, slot, head);
            for (int lane = 0; lane < 4; lane++) scales[i % 4][i / 4 * 4 + lane] = scale;
        }
    }
    if (type == LM_I8)
        for (int i = 0; i < 4; i++) k->scale[i] = N(load)(scales[i]);
}

/* Numbers d .. d+3, or as many as there are, of all of them. */
INLINE void N(key_fours)(int type, const N(keys) *k, int d, int there, vf x[4]) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        x[i] = there == 4 ? N(fours)(k->from[i], d, type) : N(some_fours)(k->from[i], d, type, there);
        if (type == LM_I8) x[i] *= k->scale[i];
    }
}

INLINE void N(store_fours)(int type, const N(keys) *k, int d, int there, float *keys) {
    vf x[4];
    N(key_fours)(type, k, d, there, x);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) N(store)(keys + d * TILE + i * LANES, x[i]);
}

INLINE void N(load_keys_as)(int type, const lm_attention *a, int head, const tile *t, float *keys) {
    N(keys) k;
    for (int j = 0; j < t->n; j += LANES) {
        N(find_keys)(type, a, head, t, j, &k);
        int size = a->key_dim, d = 0;
        for (; d + 4 <= size; d += 4) N(store_fours)(type, &k, d, 4, keys + j * 4);
        if (d < size) N(store_fours)(type, &k, d, size - d, keys + j * 4);
    }
}

/* Scores of four vectors' sums. */
INLINE vf N(ordered)(const vf x[4]) {
    vf a = SHUFFLED(x[0], x[1], LOW1, 0) + SHUFFLED(x[0], x[1], HIGH1, 0);
    vf b = SHUFFLED(x[2], x[3], LOW1, 0) + SHUFFLED(x[2], x[3], HIGH1, 0);
    return SHUFFLED(a, b, LOW2, 0) + SHUFFLED(a, b, HIGH2, 0);
}

/* Adds four numbers each of m queries (a constant) and LANES keys. */
INLINE void N(add_fours)(int m, const float *queries, int stride, const vf x[4], vf (*sums)[4]) {
#pragma GCC unroll 6
    for (int r = 0; r < m; r++) {
        vf q = N(again)(queries + (int64_t)r * stride);
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) sums[r][i] += q * x[i];
    }
}

INLINE void N(put_scores)(int m, vf (*sums)[4], float *scores) {
#pragma GCC unroll 6
    for (int r = 0; r < m; r++) N(store)(scores + r * TILE, N(ordered)(sums[r]));
}

/* Scores of m queries (a constant) and LANES keys that have been loaded. */
INLINE void N(score)(int m, int size, const float *queries, int stride, const float *keys,
                     float *scores) {
    vf sums[SCORED][4] = {{{0}}};
    for (int d = 0; d < size; d += 4) {
        vf x[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) x[i] = N(load)(keys + d * TILE + i * LANES);
        N(add_fours)(m, queries + d, stride, x, sums);
    }
    N(put_scores)(m, sums, scores);
}

#define CASE(m)                                                                       \
    case m: N(score)(m, size, q, stride, keys + j * 4, to); break;
TARGET static void N(scores)(int m, int n, int size, const float *queries, int stride,
                             const float *keys, float *scores) {
    for (int j = 0; j < n; j += LANES)
        for (int i = 0; i < m; i += SCORED) {
            const float *q = queries + (int64_t)i * stride;
            float *to = scores + i * TILE + j;
            switch (m - i) {
                CASE(1) CASE(2)
#if SCORED > 3
                CASE(3) CASE(4) CASE(5)
#endif
            default: N(score)(SCORED, size, q, stride, keys + j * 4, to);
            }
        }
}
#undef CASE

/* The same of so few rows that keys are used where they lie. */
INLINE void N(score_few)(int type, int m, const lm_attention *a, int head, const tile *t,
                         const float *queries, int stride, float *scores) {
    N(keys) k;
    for (int j = 0; j < t->n; j += LANES) {
        vf sums[FEW][4] = {{{0}}}, x[4];
        int size = a->key_dim, d = 0;
        N(find_keys)(type, a, head, t, j, &k);
        for (; d + 4 <= size; d += 4) {
            N(key_fours)(type, &k, d, 4, x);
            N(add_fours)(m, queries + d, stride, x, sums);
        }
        if (d < size) {
            N(key_fours)(type, &k, d, size - d, x);
            N(add_fours)(m, queries + d, stride, x, sums);
        }
        N(put_scores)(m, sums, scores + j);
    }
}

INLINE void N(load_values_as)(int type, const lm_attention *a, int head, const tile *t, int stride,
                              float *values) {
    int width = lm_width(type), size = a->value_dim;
    for (int j = 0; j < t->n; j++) {
        int64_t slot = t->slots[j];
        const char *from = (const char *)a->v + (slot * a->v_stride + head * a->v_head) * width;
        float scale = type == LM_I8 ? lm_scale(a, a->v_scale, slot, head) : 1.0f;
        float *to = values + (int64_t)j * stride;
        if (j < t->ahead)
            N(fetch)(a->v, t->next[j] * a->v_stride + head * a->v_head, size, width);
        for (int d = 0; d < size; d += LANES) {
            const char *p = from + (int64_t)d * width;
            vf x = N(load_some)(p, type, size - d < LANES ? size - d : LANES);
            N(store)(to + d, type == LM_I8 ? x * scale : x);
        }
    }
}

#define BY_TYPE(name, ...)                                                            \
    switch (a->kv_type) {                                                             \
    case LM_BF16: N(name)(LM_BF16, __VA_ARGS__); break;                               \
    case LM_F16: N(name)(LM_F16, __VA_ARGS__); break;                                 \
    case LM_I8: N(name)(LM_I8, __VA_ARGS__); break;                                   \
    default: N(name)(LM_F32, __VA_ARGS__);                                            \
    }

TARGET static void N(load_keys)(const lm_attention *a, int head, const tile *t, float *keys) {
    BY_TYPE(load_keys_as, a, head, t, keys)
}

TARGET static void N(load_values)(const lm_attention *a, int head, const tile *t, int stride,
                                  float *values) {
    BY_TYPE(load_values_as, a, head, t, stride, values)
}

/* What `load_values` and `multiply` do, in the same order, for nv vectors from d on. */
INLINE void N(add_part)(int m, int nv, int type, const lm_attention *a, int head, const tile *t,
                        const float *weights, int stride, int d, float *out) {
    int width = lm_width(type), size = a->value_dim;
    vf sum[FEW][WIDE];
    for (int r = 0; r < m; r++)
        for (int i = 0; i < nv; i++) sum[r][i] = N(load)(out + (int64_t)r * stride + d + i * LANES);
    for (int j = 0; j < t->n; j++) {
        int64_t slot = t->slots[j];
        const char *from = (const char *)a->v + (slot * a->v_stride + head * a->v_head + d) * width;
        float scale = type == LM_I8 ? lm_scale(a, a->v_scale, slot, head) : 1.0f;
        if (d == 0 && j < t->ahead)
            N(fetch)(a->v, t->next[j] * a->v_stride + head * a->v_head, size, width);
        for (int i = 0; i < nv; i++) {
            vf x = nv > 1 ? N(load_as)(from + i * LANES * width, type)
                          : N(load_some)(from, type, size - d < LANES ? size - d : LANES);
            if (type == LM_I8) x *= scale;
            for (int r = 0; r < m; r++) sum[r][i] += x * weights[r * TILE + j];
        }
    }
    for (int r = 0; r < m; r++)
        for (int i = 0; i < nv; i++) N(store)(out + (int64_t)r * stride + d + i * LANES, sum[r][i]);
}

INLINE void N(add_few)(int type, int m, const lm_attention *a, int head, const tile *t,
                       const float *weights, int stride, float *out) {
    int size = a->value_dim, d = 0;
    for (; d + WIDE * LANES <= size; d += WIDE * LANES)
        N(add_part)(m, WIDE, type, a, head, t, weights, stride, d, out);
    for (; d < size; d += LANES) N(add_part)(m, 1, type, a, head, t, weights, stride, d, out);
}

#define FEW_OF(m) case m: BY_TYPE(score_few, m, a, head, t, queries, stride, scores) break;
TARGET static void N(few_scores)(int m, const lm_attention *a, int head, const tile *t,
                                 const float *queries, int stride, float *scores) {
    switch (m) {
        FEW_OF(1) FEW_OF(2) FEW_OF(3) FEW_OF(4)
    }
}
#undef FEW_OF

#define FEW_OF(m) case m: BY_TYPE(add_few, m, a, head, t, weights, stride, out) break;
TARGET static void N(few_values)(int m, const lm_attention *a, int head, const tile *t,
                                 const float *weights, int stride, float *out) {
    switch (m) {
        FEW_OF(1) FEW_OF(2) FEW_OF(3) FEW_OF(4)
    }
}
#undef FEW_OF

/* The largest of n scores of a query, of which it sees lo .. hi-1; the others become -inf. */
INLINE vf N(largest_seen)(float *scores, int n, int lo, int hi, float cap) {
    int full = lo <= 0 && hi >= n;
    vf most = N(all)(-INFINITY);
    for (int j = 0; j < n; j += LANES) {
        vf x = N(load)(scores + j);
        if (cap != 0.0f) x = cap * N(tanh)(x);
        if (!full) {
            vi at = (vi){EACH(SAME, 0)} + j, seen = (at >= lo) & (at < hi);
            x = (vf)(((vi)x & seen) | ((vi)N(all)(-INFINITY) & ~seen));
        }
        if (!full || cap != 0.0f) N(store)(scores + j, x);
        most = N(larger)(x, most);
    }
    return most;
}

/* Scores of `there` queries to weights, in place; their largest scores and sums go along, and what
   they have so far, in rows of `values`, is multiplied with what is kept of it.

   A tile has n keys, the row's from `begin` on; `first` is the number of the first of the queries
   among the unit's. */
TARGET static void N(weigh)(const lm_attention *a, const unit *u, int begin, int n, int first,
                            int there, float cap, float *scores, float *largest, float *sums,
                            float *out, int values) {
    int groups = a->heads / a->kv_heads, filled = (n + LANES - 1) / LANES * LANES;
    vf most[LANES], none = N(all)(-INFINITY);
    for (int i = 0; i < LANES; i++) {
        most[i] = none;
        if (i >= there) continue;
        int lo = 0, hi = n;
        if (a->causal) {
            int position = u->position + (first + i) / groups - begin; /* within the tile */
            if (position < hi - 1) hi = position + 1;
            if (a->window && position - a->window + 1 > 0) lo = position - a->window + 1;
        }
        most[i] = N(largest_seen)(scores + i * TILE, filled, lo, hi, cap);
    }
    vf before = none;
    __builtin_memcpy(&before, largest, sizeof(float) * there);
    vf now = N(larger)(N(largests)(most), before);
    __builtin_memcpy(largest, &now, sizeof(float) * there);
    /* Where nothing has been seen yet, -inf - -inf is no number: any other will do. */
    vf from = (vf)((vi)now & (now != none));
    vi same = (before == now) | (before == none);
    vf kept = (vf)(((vi)N(exp2)(before - from) & ~same) | ((vi)N(all)(1.0f) & same));
    for (int i = 0; i < there; i++) {
        float *row = scores + i * TILE, *so_far = out + (int64_t)i * values;
        vf sum = N(load)(sums + i * MAX_LANES) * kept[i], largest_now = N(all)(from[i]);
        for (int j = 0; j < filled; j += LANES) {
            vf x = N(exp2)(N(load)(row + j) - largest_now);
            sum += x;
            N(store)(row + j, x);
        }
        N(store)(sums + i * MAX_LANES, sum);
        if (kept[i] != 1.0f)
            for (int d = 0; d < values; d += LANES)
                N(store)(so_far + d, N(load)(so_far + d) * kept[i]);
    }
}

/* The queries of a unit, as float32, multiplied by what turns products into scores, and filled up
   with zeros to whole fours. */
TARGET static void N(load_queries)(const lm_attention *a, const unit *u, float factor, float *to) {
    int groups = a->heads / a->kv_heads, width = lm_width(a->q_type), size = a->key_dim;
    int stride = lm_fours(size);
    for (int h = 0; h < u->heads; h++)
        for (int i = 0; i < u->count; i++) {
            int later = u->query + (i + 4 < u->count ? i + 4 : u->count - 1); /* far apart */
            int64_t at = a->queries ? a->queries[u->query + i] : u->query + i;
            int64_t then = a->queries ? a->queries[later] : later;
            for (int g = 0; g < groups; g++, to += stride) {
                int64_t head = (int64_t)(u->head + h) * groups + g;
                N(fetch)(a->q, then * a->q_stride + head * a->q_head, size, width);
                const char *from =
                    (const char *)a->q + (at * a->q_stride + head * a->q_head) * width;
                for (int d = 0; d < size; d += LANES) {
                    int there = size - d < LANES ? size - d : LANES;
                    const char *p = from + (int64_t)d * width;
                    vf x = N(load_some)(p, a->q_type, there);
                    N(store_some)(to + d, LM_F32, x * factor, there);
                }
                for (int d = size; d < stride; d++) to[d] = 0.0f;
            }
        }
}

/* Adds what a tile of a unit's keys gives, those of slots begin, begin + 1, .. of its row. */
TARGET static void N(add_tile)(const lm_attention *a, const unit *u, const tile *t, int begin,
                               float cap, const room *r) {
    int m = u->count * (a->heads / a->kv_heads), n = t->n, values = lm_filled(a->value_dim);
    for (int h = 0; h < u->heads; h++) {
        int at = h * m, head = u->head + h, stride = lm_fours(a->key_dim);
        const float *queries = r->queries + (int64_t)at * stride;
        if (m <= FEW) {
            N(few_scores)(m, a, head, t, queries, stride, r->scores);
        } else {
            N(load_keys)(a, head, t, r->keys);
            N(scores)(m, n, a->key_dim, queries, stride, r->keys, r->scores);
        }
        float *out = r->span.out + (int64_t)at * values;
        for (int i = 0; i < m; i += LANES)
            N(weigh)(a, u, begin, n, i, m - i < LANES ? m - i : LANES, cap, r->scores + i * TILE,
                     r->largest + at + i, r->sums + (at + i) * MAX_LANES, out + (int64_t)i * values,
                     values);
        if (m <= FEW) {
            N(few_values)(m, a, head, t, r->scores, values, out);
        } else {
            N(load_values)(a, head, t, values, r->values);
            N(multiply)(m, a->value_dim, n, r->scores, TILE, r->values, values, out, values);
        }
    }
}

/* Merges states over other keys into states of the same queries; what saw nothing changes nothing. */
TARGET static void N(merge)(const lm_attention *a, const unit *u, const state *s,
                            const state *other) {
    int all = states_of(a, u), filled = lm_filled(a->value_dim);
    for (int first = 0; first < all; first += LANES) {
        vf mine = N(load)(s->lse + first), its = N(load)(other->lse + first);
        vf largest = N(larger)(mine, its), none = N(all)(-INFINITY);
        vf from = (vf)((vi)largest & (largest != none));
        vf kept = N(exp2)((mine - from) * LOG2E), added = N(exp2)((its - from) * LOG2E);
        vf sum = kept + added, lse = largest + N(log2)(sum) * LN2;
        vf shares[2] = {kept / sum, added / sum};
        for (int i = 0; i < LANES && first + i < all; i++) {
            float *out = s->out + (int64_t)(first + i) * filled;
            const float *more = other->out + (int64_t)(first + i) * filled;
            if (its[i] == -INFINITY) continue;
            if (mine[i] == -INFINITY) {
                s->lse[first + i] = its[i];
                __builtin_memcpy(out, more, sizeof(float) * filled);
                continue;
            }
            s->lse[first + i] = lse[i];
            for (int d = 0; d < filled; d += LANES)
                N(store)(out + d, N(load)(out + d) * shares[0][i] + N(load)(more + d) * shares[1][i]);
        }
    }
}

/* The state over a span, once the softmax has gone along it. */
TARGET static void N(end_span)(const lm_attention *a, const unit *u, const room *r) {
    int all = states_of(a, u), filled = lm_filled(a->value_dim);
    for (int first = 0; first < all; first += LANES) {
        vf x[LANES];
        for (int i = 0; i < LANES; i++) /* those behind the last are as far as a whole vector goes */
            x[i] = N(load)(r->sums + (first + i) * MAX_LANES);
        vf largest = N(load)(r->largest + first), sum = N(sums)(x);
        vi nothing = (largest == N(all)(-INFINITY)) & (sum == 0.0f);
        vf share = (vf)((vi)(1.0f / sum) & ~nothing), lse = (largest + N(log2)(sum)) * LN2;
        N(store)(r->span.lse + first, (vf)(((vi)lse & ~nothing) | ((vi)largest & nothing)));
        for (int i = 0; i < LANES && first + i < all; i++) {
            float *out = r->span.out + (int64_t)(first + i) * filled;
            for (int d = 0; d < filled; d += LANES) N(store)(out + d, N(load)(out + d) * share[i]);
        }
    }
}

/* Where the state of a unit's query i of kv head h stands among all. */
INLINE int64_t N(place)(const lm_attention *a, const unit *u, int h, int i) {
    int groups = a->heads / a->kv_heads, query = u->query + i / groups;
    int64_t at = a->queries ? a->queries[query] : query;
    return at * a->heads + (u->head + h) * groups + i % groups;
}

/* What a unit begins with: the states that are carried, or those over nothing. */
TARGET static void N(begin)(const lm_attention *a, const unit *u, const state *s) {
    int m = states_of(a, u) / u->heads, filled = lm_filled(a->value_dim), width = lm_width(a->q_type);
    for (int h = 0; h < u->heads; h++)
        for (int i = 0; i < m; i++) {
            int64_t at = h * m + i, from = N(place)(a, u, h, i);
            s->lse[at] = a->carries ? a->lse[from] : -INFINITY;
            if (s->lse[at] == -INFINITY) continue;
            const char *out = (const char *)a->out + from * a->value_dim * width;
            for (int d = 0; d < a->value_dim; d += LANES) {
                int there = a->value_dim - d < LANES ? a->value_dim - d : LANES;
                vf x = N(load_some)(out + (int64_t)d * width, a->q_type, there);
                N(store)(s->out + at * filled + d, x);
            }
        }
}

/* Attend by tiles first .. last-1 of a unit, which are whole spans. Leaves the state of those from
   the first one on in `whole`, and otherwise each span's own in `spans`. */
TARGET static int N(attend)(const lm_attention *a, const unit *u, int64_t first, int64_t last,
                            const room *r) {
    int all = states_of(a, u), filled = lm_filled(a->value_dim);
    /* With a cap, scores are divided by it for tanh, and base 2 comes afterwards. */
    float cap = a->softcap != 0.0f ? a->softcap * LOG2E : 0.0f;
    N(load_queries)(a, u, a->softcap != 0.0f ? a->scale / a->softcap : a->scale * LOG2E, r->queries);
    if (first == 0) N(begin)(a, u, &r->whole);
    const int32_t *table = a->table + a->table_starts[u->row];
    room mine = *r;
    for (int64_t at = first, number = 0; at < last; number++) {
        int64_t after = whole_spans(u, at + 1);
        /* Spans are counted from the last one down, and the first may begin with a later tile. */
        int span = (u->end - 1) / SPAN - (int)((at + SPAN_TILES - last_tiles(u)) / SPAN_TILES);
        int begin = span * SPAN > u->begin ? span * SPAN : u->begin;
        int end = u->end < (span + 1) * SPAN ? u->end : (span + 1) * SPAN;
        if (first) mine.span = lm_span_state(r, number, all, filled);
        for (int i = 0; i < all; i++) r->largest[i] = -INFINITY;
        __builtin_memset(r->sums, 0, sizeof(float) * all * MAX_LANES);
        __builtin_memset(mine.span.out, 0, sizeof(float) * (size_t)all * filled);
        for (; begin < end; begin += TILE, at++) {
            tile t = {table + begin, table + begin + TILE, end - begin, end - begin - TILE};
            if (t.ahead <= 0 && after < last) { /* the next span stands before this one */
                t.next = table + (span - 1) * SPAN;
                t.ahead = TILE;
            }
            if (t.n > TILE) t.n = TILE;
            if (t.ahead > TILE) t.ahead = TILE;
            for (int j = 0; j < t.n; j++)
                if ((uint32_t)t.slots[j] >= (uint32_t)a->slots) return LM_BAD_SLOT;
            N(add_tile)(a, u, &t, begin, cap, &mine);
        }
        N(end_span)(a, u, &mine);
        if (!first) N(merge)(a, u, &r->whole, &mine.span);
    }
    return LM_OK;
}

/* The results of a unit from its states over all keys. */
TARGET static void N(finish)(const lm_attention *a, const unit *u, const state *s) {
    int m = states_of(a, u) / u->heads, filled = lm_filled(a->value_dim), width = lm_width(a->q_type);
    for (int h = 0; h < u->heads; h++)
        for (int i = 0; i < m; i++) {
            int64_t at = h * m + i, to = N(place)(a, u, h, i);
            int nothing = s->lse[at] == -INFINITY;
            char *out = (char *)a->out + to * a->value_dim * width;
            for (int d = 0; d < a->value_dim; d += LANES) {
                int there = a->value_dim - d < LANES ? a->value_dim - d : LANES;
                vf x = nothing ? (vf){0} : N(load)(s->out + at * filled + d);
                N(store_some)(out + (int64_t)d * width, a->q_type, x, there);
            }
            a->lse[to] = s->lse[at];
        }
}

#undef KEYS
#undef SCORED
