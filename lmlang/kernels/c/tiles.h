/* Attention of a few queries over tiles of keys; included by each_isa.h.

   A piece is some queries of one row, some kv heads and some tiles of TILE keys. The G query heads
   of a kv head are so many more queries of it. For each tile and kv head, M queries in all:

       pool --load--> keys [Dk, TILE] (turned)     q [M, Dk] x keys  -> scores [M, TILE]
                      values [TILE, Dv]            softmax so far    -> weights, in place
                                                   weights x values  -> added to out [M, Dv]

   Both products are `multiply`: BLOCK rows by WIDE vectors of results stay in registers, and every
   result is summed in one order, whatever stands beside it. Scores are of base 2: log2(e) is in the
   factor that the queries were multiplied with.

   Source: Dao et al., "FlashAttention" (2022) for the softmax that goes along. */

/* Four rows at a time within each group of 4 lanes, then the groups: what every instruction set
   has cheap instructions for. */
INLINE void N(transpose)(vf x[LANES]) {
    for (int i = 0; i < LANES; i += 4) {
        vf a = SHUFFLED(x[i], x[i + 1], LOW1, 0), b = SHUFFLED(x[i], x[i + 1], HIGH1, 0);
        vf c = SHUFFLED(x[i + 2], x[i + 3], LOW1, 0), d = SHUFFLED(x[i + 2], x[i + 3], HIGH1, 0);
        x[i] = SHUFFLED(a, c, LOW2, 0), x[i + 1] = SHUFFLED(a, c, HIGH2, 0);
        x[i + 2] = SHUFFLED(b, d, LOW2, 0), x[i + 3] = SHUFFLED(b, d, HIGH2, 0);
    }
#if LANES == 8
    for (int i = 0; i < 4; i++) {
        vf a = x[i], b = x[i + 4];
        x[i] = SHUFFLED(a, b, GROUPS, 0), x[i + 4] = SHUFFLED(a, b, GROUPS, 1);
    }
#elif LANES == 16
    for (int i = 0; i < 4; i++) {
        vf a = SHUFFLED(x[i], x[i + 4], GROUPS, 0), b = SHUFFLED(x[i], x[i + 4], GROUPS, 1);
        vf c = SHUFFLED(x[i + 8], x[i + 12], GROUPS, 0);
        vf d = SHUFFLED(x[i + 8], x[i + 12], GROUPS, 1);
        x[i] = SHUFFLED(a, c, GROUPS, 0), x[i + 8] = SHUFFLED(a, c, GROUPS, 1);
        x[i + 4] = SHUFFLED(b, d, GROUPS, 0), x[i + 12] = SHUFFLED(b, d, GROUPS, 1);
    }
#endif
}

/* c[m, nv vectors] = (c where it adds) + a[m, k] x b[k, ...]; m and nv are constants. */
INLINE void N(block)(int m, int nv, int k, const float *a, int a_stride, const float *b,
                     int b_stride, float *c, int c_stride, int adds) {
    vf sum[BLOCK][WIDE];
    for (int i = 0; i < m; i++)
        for (int j = 0; j < nv; j++)
            sum[i][j] = adds ? N(load)(c + (int64_t)i * c_stride + j * LANES) : (vf){0};
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
    case m: N(block)(m, nv, k, a, a_stride, b, b_stride, c, c_stride, adds); break;
INLINE void N(rows)(int m, int nv, int k, const float *a, int a_stride, const float *b,
                    int b_stride, float *c, int c_stride, int adds) {
    switch (m) {
        CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6)
    }
}
#undef CASE

/* c[m, n] as in `block`, for any m, and n filled up to whole vectors. */
TARGET static void N(multiply)(int m, int n, int k, const float *a, int a_stride, const float *b,
                               int b_stride, float *c, int c_stride, int adds) {
    for (int j = 0; j < n; j += WIDE * LANES) {
        int vectors = (n - j + LANES - 1) / LANES;
        for (int i = 0; i < m; i += BLOCK) {
            int some = m - i < BLOCK ? m - i : BLOCK;
            const float *ai = a + (int64_t)i * a_stride, *bj = b + j;
            float *cij = c + (int64_t)i * c_stride + j;
            if (vectors >= WIDE)
                N(rows)(some, WIDE, k, ai, a_stride, bj, b_stride, cij, c_stride, adds);
            else {
                int v = 0;
                for (; v + 1 < vectors; v += 2)
                    N(rows)(some, 2, k, ai, a_stride, bj + v * LANES, b_stride,
                            cij + v * LANES, c_stride, adds);
                if (v < vectors)
                    N(rows)(some, 1, k, ai, a_stride, bj + v * LANES, b_stride,
                            cij + v * LANES, c_stride, adds);
            }
        }
    }
}

INLINE void N(fetch)(const void *pool, int64_t at, int size, int width) {
    const char *p = (const char *)pool + at * width;
    for (int i = 0; i < size * width; i += 64) __builtin_prefetch(p + i, 0, 2);
}

/* keys[d, j] of a tile of n slots; what is behind them, up to whole vectors, repeats the last. */
INLINE void N(load_keys_as)(int type, const lm_attention *a, int head, const tile *t, float *keys) {
    int width = lm_width(type), size = a->key_dim;
    for (int j = 0; j < t->n; j += LANES) {
        const char *from[LANES];
        float scale[LANES];
        for (int i = 0; i < LANES; i++) {
            int64_t slot = t->slots[j + i < t->n ? j + i : t->n - 1];
            from[i] = (const char *)a->k + (slot * a->k_stride + head * a->k_head) * width;
            if (j + i < t->ahead)
                N(fetch)(a->k, t->next[j + i] * a->k_stride + head * a->k_head, size, width);
            if (type == LM_I8) scale[i] = lm_scale(a, a->k_scale, slot, head);
        }
        for (int d = 0; d < size; d += LANES) {
            vf x[LANES];
            int there = size - d < LANES ? size - d : LANES;
            for (int i = 0; i < LANES; i++) {
                const char *p = from[i] + (int64_t)d * width;
                x[i] = N(load_some)(p, type, there);
                if (type == LM_I8) x[i] *= scale[i];
            }
            N(transpose)(x);
            for (int i = 0; i < there; i++) N(store)(keys + (d + i) * TILE + j, x[i]);
        }
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

#define FEW_OF(m) case m: BY_TYPE(add_few, m, a, head, t, weights, stride, out) break;
TARGET static void N(add_values)(int m, const lm_attention *a, int head, const tile *t,
                                 const float *weights, int stride, float *out) {
    switch (m) {
        FEW_OF(1) FEW_OF(2) FEW_OF(3) FEW_OF(4)
    }
}
#undef FEW_OF

/* Scores of one query to weights, in place; its largest score and its sum go along.

   Of the n scores it sees lo .. hi-1. Returns what the results so far must be multiplied with. */
TARGET static float N(weigh)(float *scores, int n, int lo, int hi, float cap, float *largest,
                             float *sums) {
    int full = lo <= 0 && hi >= n && n % LANES == 0;
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
    float before = *largest, now = N(largest)(most);
    now = now > before ? now : before;
    *largest = now;
    /* Where nothing has been seen yet, -inf - -inf is no number: any other will do. */
    float from = now == -INFINITY ? 0.0f : now;
    float kept = before == now ? 1.0f : lm_exp2(before - from);
    vf sum = N(load)(sums) * kept;
    for (int j = 0; j < n; j += LANES) {
        vf x = N(exp2)(N(load)(scores + j) - from);
        sum += x;
        N(store)(scores + j, x);
    }
    N(store)(sums, sum);
    return kept;
}

/* The queries of a unit, as float32 and multiplied by what turns products into scores. */
TARGET static void N(load_queries)(const lm_attention *a, const unit *u, float factor, float *to) {
    int groups = a->heads / a->kv_heads, width = lm_width(a->q_type), size = a->key_dim;
    for (int h = 0; h < u->heads; h++)
        for (int i = 0; i < u->count; i++) {
            int64_t at = a->queries ? a->queries[u->query + i] : u->query + i;
            for (int g = 0; g < groups; g++, to += size) {
                int64_t head = (int64_t)(u->head + h) * groups + g;
                const char *from =
                    (const char *)a->q + (at * a->q_stride + head * a->q_head) * width;
                for (int d = 0; d < size; d += LANES) {
                    int there = size - d < LANES ? size - d : LANES;
                    const char *p = from + (int64_t)d * width;
                    vf x = N(load_some)(p, a->q_type, there);
                    N(store_some)(to + d, LM_F32, x * factor, there);
                }
            }
        }
}

/* Adds what a tile of a unit's keys gives, those of slots begin, begin + 1, .. of its row. */
TARGET static void N(add_tile)(const lm_attention *a, const unit *u, const tile *t, int begin,
                               float cap, const room *r) {
    int groups = a->heads / a->kv_heads, m = u->count * groups, n = t->n;
    int values = lm_filled(a->value_dim), filled = (n + LANES - 1) / LANES * LANES;
    for (int h = 0; h < u->heads; h++) {
        int at = h * m, head = u->head + h, size = a->key_dim;
        N(load_keys)(a, head, t, r->keys);
        N(multiply)(m, n, size, r->queries + (int64_t)at * size, size, r->keys, TILE, r->scores, TILE,
                    0);
        for (int i = 0; i < m; i++) {
            int lo = 0, hi = n;
            if (a->causal) {
                int position = u->position + i / groups - begin; /* within the tile */
                if (position < hi - 1) hi = position + 1;
                if (a->window && position - a->window + 1 > 0) lo = position - a->window + 1;
            }
            float kept = N(weigh)(r->scores + i * TILE, filled, lo, hi, cap, r->largest + at + i,
                                  r->sums + (at + i) * MAX_LANES);
            if (kept == 1.0f) continue;
            float *out = r->span.out + (int64_t)(at + i) * values;
            for (int d = 0; d < values; d += LANES) N(store)(out + d, N(load)(out + d) * kept);
        }
        float *out = r->span.out + (int64_t)at * values;
        if (m <= FEW) {
            N(add_values)(m, a, head, t, r->scores, values, out);
        } else {
            N(load_values)(a, head, t, values, r->values);
            N(multiply)(m, a->value_dim, n, r->scores, TILE, r->values, values, out, values, 1);
        }
    }
}

/* Merges states over other keys into states of the same queries; what saw nothing changes nothing. */
TARGET static void N(merge)(const lm_attention *a, const unit *u, const state *s,
                            const state *other) {
    int all = states_of(a, u), filled = lm_filled(a->value_dim);
    for (int i = 0; i < all; i++) {
        float mine = s->lse[i], its = other->lse[i], largest = mine > its ? mine : its;
        float *out = s->out + (int64_t)i * filled;
        const float *more = other->out + (int64_t)i * filled;
        if (its == -INFINITY) continue;
        if (mine == -INFINITY) {
            s->lse[i] = its;
            __builtin_memcpy(out, more, sizeof(float) * filled);
            continue;
        }
        float kept = expf(mine - largest), added = expf(its - largest), sum = kept + added;
        s->lse[i] = largest + logf(sum);
        kept /= sum, added /= sum;
        for (int d = 0; d < filled; d += LANES)
            N(store)(out + d, N(load)(out + d) * kept + N(load)(more + d) * added);
    }
}

/* The state over a span, once the softmax has gone along it. */
TARGET static void N(end_span)(const lm_attention *a, const unit *u, const room *r) {
    int all = states_of(a, u), filled = lm_filled(a->value_dim);
    for (int i = 0; i < all; i++) {
        float sum = N(sum)(N(load)(r->sums + i * MAX_LANES)), *out = r->span.out + (int64_t)i * filled;
        int nothing = r->largest[i] == -INFINITY && sum == 0.0f;
        float share = nothing ? 0.0f : 1.0f / sum;
        r->span.lse[i] = nothing ? -INFINITY : (r->largest[i] + log2f(sum)) * LN2;
        for (int d = 0; d < filled; d += LANES) N(store)(out + d, N(load)(out + d) * share);
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
