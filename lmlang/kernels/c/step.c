/* A forward pass of a native model: all layers, with nothing but C between them.

       residual   <- rows of the embedding
       per layer: norm -> qkv -> (norm q, k) -> rope -> store k, v -> attend -> out (-> norm)
                  add and norm -> gate_up -> gate -> down (-> norm), added with the next norm
       logits     <- head times the rows that are asked for

   It is what LlamaModel does with the same kernels one by one; only weights in blocks are taken. */
#include <stddef.h>
#include <string.h>

#include "machine.h"
#include "step.h"

/* Where everything lies in the space; all float32 but the last two. */
typedef struct {
    float *residual, *normed, *qkv, *turned, *attended, *lse, *added;
    float *gate_up, *gated, *rows, *attend;
    void *multiply;
    int64_t attend_size, multiply_size, size;
} room;

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

/* `count` numbers of 4 bytes from the space, the next beginning at a line of the cache. */
static float *take(char *space, int64_t *at, int64_t count) {
    float *found = space ? (float *)(space + *at) : NULL;
    *at += (count * 4 + 63) / 64 * 64;
    return found;
}

/* Slots of the longest of all rows, in layers of any window. */
static int longest_of(const lm_model *m, const lm_step *s) {
    int longest = 0;
    for (int i = 0; i < m->windows; i++) {
        const lm_step_parts *parts = s->parts + i;
        for (int j = 0; j < parts->row_count; j++)
            longest = lm_longest(parts->rows[j].table_starts, parts->rows[j].rows, longest);
        for (int j = 0; j < parts->level_count; j++)
            longest = lm_longest(parts->levels[j].table_starts, parts->levels[j].groups, longest);
    }
    return longest;
}

static room lay_out(const lm_model *m, const lm_step *s, char *space) {
    room r = {0};
    int64_t tokens = s->tokens, wanted = s->wanted;
    int64_t at = 0, query = (int64_t)m->heads * m->head_dim, both = m->heads + m->kv_heads;
    r.residual = take(space, &at, tokens * m->hidden);
    r.normed = take(space, &at, tokens * m->hidden);
    r.added = take(space, &at, tokens * m->hidden);
    r.qkv = take(space, &at, tokens * (both + m->kv_heads) * m->head_dim);
    r.turned = take(space, &at, m->layers[0].qk_norm ? tokens * both * m->head_dim : 0);
    r.attended = take(space, &at, tokens * query);
    r.lse = take(space, &at, tokens * m->heads);
    r.gate_up = take(space, &at, 2 * tokens * m->intermediate);
    r.gated = take(space, &at, tokens * m->intermediate);
    r.rows = take(space, &at, wanted * m->hidden);
    r.attend_size = lm_attend_room(m->heads, m->kv_heads, m->head_dim, m->head_dim, s->threads,
                                   longest_of(m, s));
    r.attend = take(space, &at, r.attend_size);
    int64_t widest = larger(larger(m->hidden, query), m->intermediate);
    r.multiply_size = lm_multiply_space((int32_t)larger(tokens, wanted), (int32_t)widest);
    r.multiply = take(space, &at, r.multiply_size / 4 + 1);
    r.size = at;
    return r;
}

int64_t lm_step_space(const lm_model *model, const lm_step *step) {
    return lay_out(model, step, NULL).size;
}

static void multiply(const lm_matrix *w, const float *x, float *out, int rows, const room *r,
                     int threads) {
    lm_product p = {.x = x, .weight = w->data, .bias = w->bias, .out = out, .space = r->multiply,
                    .space_size = r->multiply_size, .x_stride = w->inputs, .bits = w->bits,
                    .digits = w->digits, .rows = rows, .inputs = w->inputs, .outputs = w->outputs, .threads = threads};
    lm_multiply(&p);
}

/* The norm of [rows, size]; with a residual, x is added to that first. */
static void norm(const float *x, float *residual, const float *weight, float *out, int rows,
                 int size, float eps, int threads) {
    lm_norm_rows j = {.x = x, .residual = residual, .weight = weight, .out = out,
                      .x_stride = size, .residual_stride = size, .rows = rows, .heads = 1,
                      .size = size, .eps = eps, .threads = threads};
    lm_norm(&j);
}

/* Queries and keys after their norms and rotary positions; returns them, and how far apart
   tokens are. */
static float *turn(const lm_model *m, const lm_layer *l, const lm_step *s, const room *r,
                   int64_t *stride) {
    int heads = m->heads + m->kv_heads, size = m->head_dim;
    float *x = r->qkv;
    *stride = (int64_t)(heads + m->kv_heads) * size;
    if (l->qk_norm) {
        lm_norm_rows j = {.x = x, .weight = l->qk_norm, .out = r->turned, .x_stride = *stride,
                          .x_head = size, .weight_head = size, .rows = s->tokens, .heads = heads,
                          .size = size, .eps = m->eps, .threads = s->threads};
        lm_norm(&j);
        x = r->turned;
        *stride = (int64_t)heads * size;
    }
    if (l->rope >= 0) {
        const float *cos = s->angles + (int64_t)l->rope * s->tokens * size;
        lm_rope_rows j = {.x = x, .cos = cos, .sin = cos + (int64_t)s->tokens * (size / 2),
                          .x_stride = *stride, .x_head = size, .rows = s->tokens, .heads = heads,
                          .size = size, .threads = s->threads};
        lm_rope(&j);
    }
    return x;
}

static int store(const lm_model *m, const lm_layer *l, const lm_step *s, const float *k,
                 int64_t k_stride, const float *v, int64_t v_stride) {
    lm_store_rows j = {.x = k, .pool = l->k, .scales = l->k_scale, .at = s->stores,
                       .x_stride = k_stride, .x_head = m->head_dim,
                       .pool_stride = (int64_t)m->kv_heads * m->head_dim, .pool_head = m->head_dim,
                       .pool_type = m->kv_type, .scale_type = m->scale_type, .rows = s->tokens,
                       .heads = m->kv_heads, .size = m->head_dim, .slots = m->slots,
                       .wide_slots = 1, .threads = s->threads};
    lm_store_rows both[2] = {j, j};
    both[1].x = v;
    both[1].pool = l->v;
    both[1].scales = l->v_scale;
    both[1].x_stride = v_stride;
    return lm_store(both, 2);
}

static int attend(const lm_model *m, const lm_layer *l, const lm_step *s, const room *r,
                  const float *q, int64_t stride) {
    const lm_step_parts *parts = s->parts + l->parts;
    int64_t size = m->head_dim, width = m->heads * size, pool = m->kv_heads * size;
    lm_attention all = {.k = l->k, .v = l->v, .k_scale = l->k_scale, .v_scale = l->v_scale,
                        .table = s->table, .space = r->attend, .space_size = r->attend_size,
                        .q_stride = stride, .q_head = size, .k_stride = pool, .k_head = size,
                        .v_stride = pool, .v_head = size, .table_size = s->table_size,
                        .kv_type = m->kv_type, .scale_type = m->scale_type, .slots = m->slots,
                        .heads = m->heads, .kv_heads = m->kv_heads, .key_dim = m->head_dim,
                        .value_dim = m->head_dim, .scale = l->scale, .softcap = m->softcap,
                        .threads = s->threads};
    for (int i = 0; i < parts->row_count; i++) {
        const lm_step_rows *rows = parts->rows + i;
        lm_attention a = all;
        int64_t first = rows->queries ? 0 : rows->first;
        a.q = q + first * stride;
        a.out = r->attended + first * width;
        a.lse = r->lse + first * m->heads;
        a.queries = rows->queries;
        a.starts = rows->starts;
        a.table_starts = rows->table_starts;
        a.rows = rows->rows;
        a.tokens = rows->queries ? s->tokens : rows->count;
        a.members = rows->count;
        a.causal = 1;
        a.window = l->window;
        int fault = lm_attend(&a);
        if (fault) return fault;
    }
    for (int i = 0; i < parts->level_count; i++) {
        const lm_step_level *level = parts->levels + i;
        lm_attention a = all;
        a.q = q;
        a.queries = level->queries;
        a.starts = level->starts;
        a.table_starts = level->table_starts;
        a.out = r->attended;
        a.lse = r->lse;
        a.carries = 1;
        a.rows = level->groups;
        a.tokens = s->tokens;
        a.members = level->members;
        int fault = lm_attend(&a);
        if (fault) return fault;
    }
    return LM_OK;
}

static void wanted_logits(const lm_model *m, const lm_step *s, const room *r) {
    for (int i = 0; i < s->wanted; i++)
        memcpy(r->rows + (int64_t)i * m->hidden, r->normed + s->logits_at[i] * m->hidden,
               (size_t)m->hidden * sizeof(float));
    multiply(&m->head, r->rows, s->logits, s->wanted, r, s->threads);
    if (m->logit_softcap > 0)
        lm_cap(s->logits, s->wanted, m->head.outputs, m->logit_softcap, s->threads);
}

static int run(const lm_model *m, const lm_step *s) {
    room r = lay_out(m, s, s->space);
    if (s->space_size < r.size) return LM_NO_SPACE;
    int T = s->tokens, hidden = m->hidden;
    for (int i = 0; i < s->wanted; i++)
        if ((uint64_t)s->logits_at[i] >= (uint64_t)T) return LM_BAD_ROWS;
    int bad = lm_rows_of(&m->embed, s->ids, T, r.residual);
    if (bad) return bad;
    if (m->embed_scale != 1)
        for (int64_t i = 0; i < (int64_t)T * hidden; i++) r.residual[i] *= m->embed_scale;
    norm(r.residual, NULL, m->layers[0].attention_norm, r.normed, T, hidden, m->eps, s->threads);
    for (int index = 0; index < m->layer_count; index++) {
        const lm_layer *l = m->layers + index;
        int64_t stride, wide = (int64_t)(m->heads + 2 * m->kv_heads) * m->head_dim;
        multiply(&l->qkv, r.normed, r.qkv, T, &r, s->threads);
        float *q = turn(m, l, s, &r, &stride);
        const float *v = r.qkv + (int64_t)(m->heads + m->kv_heads) * m->head_dim;
        int fault = store(m, l, s, q + (int64_t)m->heads * m->head_dim, stride, v, wide);
        if (!fault) fault = attend(m, l, s, &r, q, stride);
        if (fault) return fault;
        float *out = r.added;
        multiply(&l->out, r.attended, out, T, &r, s->threads);
        if (l->post_attention_norm)
            norm(out, NULL, l->post_attention_norm, out, T, hidden, m->eps, s->threads);
        norm(out, r.residual, l->mlp_norm, r.normed, T, hidden, m->eps, s->threads);
        multiply(&l->gate_up, r.normed, r.gate_up, T, &r, s->threads);
        lm_gate_rows gate = {.x = r.gate_up, .out = r.gated, .x_stride = 2 * m->intermediate,
                             .rows = T, .size = m->intermediate, .gelu = m->gelu,
                             .threads = s->threads};
        lm_gate(&gate);
        multiply(&l->down, r.gated, out, T, &r, s->threads);
        if (l->post_mlp_norm)
            norm(out, NULL, l->post_mlp_norm, out, T, hidden, m->eps, s->threads);
        const float *next = index + 1 < m->layer_count ? l[1].attention_norm : m->norm;
        norm(out, r.residual, next, r.normed, T, hidden, m->eps, s->threads);
    }
    wanted_logits(m, s, &r);
    return LM_OK;
}

int lm_run(const lm_model *m, const lm_step *s) {
    lm_own_threads(1); /* nothing of torch runs in between */
    int fault = run(m, s);
    lm_own_threads(0);
    return fault;
}
