/* A forward pass of a native model: all layers, with nothing but C between them.

       residual   <- rows of the embedding
       per layer: norm -> qkv -> (norm q, k) -> rope -> store k, v -> attend -> out (-> norm)
                  add and norm -> gate_up -> gate -> down (-> norm), added with the next norm
       logits     <- head times the rows that are asked for

   It is what LlamaModel does with the same kernels one by one; only weights in blocks are taken.
   All but attention goes token by token. Of many tokens, a thread takes a piece through all that
   lies between two attentions, so that what one kernel writes is in its cache for the next; of few,
   the threads share each kernel's work. Behind the last attention only those rows go on whose
   logits are asked for. */
#include <stddef.h>
#include <string.h>

#include "machine.h"
#include "step.h"

#define PIECE 64 /* tokens that a thread takes at a time, at most */

/* What the kernels between two attentions need for a piece of the tokens. */
typedef struct {
    float *added, *gate_up, *gated;
    void *multiply;
    int64_t multiply_size;
} bench;

/* Where everything lies in the space. */
typedef struct {
    float *residual, *normed, *qkv, *turned, *attended, *lse, *attend;
    float *last_attended, *last_residual, *last_normed; /* of the rows whose logits are asked for */
    bench bench; /* the first thread's; the others' are `bench_size` bytes apart */
    int64_t attend_size, bench_size, size;
    int tokens, pieces, threads; /* that take pieces; one: all threads share each kernel's work */
} room;

/* Tokens first .. first + count - 1. */
typedef struct {
    const lm_model *m;
    const lm_step *s;
    const room *r;
    bench bench;
    int first, count, threads;
} piece;

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

/* The bench for so many tokens, at a place in the space. */
static bench bench_at(const lm_model *m, char *space, int64_t *at, int64_t tokens) {
    bench b;
    int64_t widest = larger(larger(m->hidden, (int64_t)m->heads * m->head_dim), m->intermediate);
    b.added = take(space, at, tokens * m->hidden);
    b.gate_up = take(space, at, 2 * tokens * m->intermediate);
    b.gated = take(space, at, tokens * m->intermediate);
    b.multiply_size = lm_multiply_space((int32_t)tokens, (int32_t)widest);
    b.multiply = take(space, at, b.multiply_size / 4 + 1);
    return b;
}

/* Cuts so many tokens into pieces: every thread has as many of them as the others. */
static void cut(room *r, int tokens, int threads) {
    int many = tokens >= (int64_t)PIECE * threads;
    int64_t rounds = (tokens + (int64_t)PIECE * threads - 1) / ((int64_t)PIECE * threads);
    r->tokens = tokens;
    r->threads = many ? threads : 1;
    r->pieces = many ? (int)rounds * threads : 1;
}

static room lay_out(const lm_model *m, const lm_step *s, char *space) {
    room r = {0};
    int64_t tokens = s->tokens, wanted = s->wanted;
    int64_t at = 0, query = (int64_t)m->heads * m->head_dim, both = m->heads + m->kv_heads;
    r.residual = take(space, &at, tokens * m->hidden);
    r.normed = take(space, &at, tokens * m->hidden);
    r.qkv = take(space, &at, tokens * (both + m->kv_heads) * m->head_dim);
    r.turned = take(space, &at, m->layers[0].qk_norm ? tokens * both * m->head_dim : 0);
    r.attended = take(space, &at, tokens * query);
    r.lse = take(space, &at, tokens * m->heads);
    r.last_attended = take(space, &at, wanted * query);
    r.last_residual = take(space, &at, wanted * m->hidden);
    r.last_normed = take(space, &at, wanted * m->hidden);
    r.attend_size = lm_attend_room(m->heads, m->kv_heads, m->head_dim, m->head_dim, s->threads,
                                   longest_of(m, s));
    r.attend = take(space, &at, r.attend_size);
    cut(&r, s->tokens, s->threads);
    int64_t start = at;
    r.bench = bench_at(m, space, &at, larger((tokens + r.pieces - 1) / r.pieces, wanted));
    r.bench_size = at - start;
    r.size = start + r.threads * r.bench_size;
    return r;
}

int64_t lm_step_space(const lm_model *model, const lm_step *step) {
    return lay_out(model, step, NULL).size;
}

static void multiply(const piece *p, const lm_matrix *w, const float *x, float *out, int rows) {
    lm_product j = {.x = x, .weight = w->data, .bias = w->bias, .out = out,
                    .space = p->bench.multiply, .space_size = p->bench.multiply_size,
                    .x_stride = w->inputs, .bits = w->bits, .digits = w->digits, .rows = rows,
                    .inputs = w->inputs, .outputs = w->outputs, .threads = p->threads};
    lm_multiply(&j);
}

/* The norm of a piece of [T, hidden]; with a residual, x is added to that first. */
static void norm(const piece *p, const float *x, float *residual, const float *weight, float *out) {
    int size = p->m->hidden;
    lm_norm_rows j = {.x = x, .residual = residual, .weight = weight, .out = out,
                      .x_stride = size, .residual_stride = size, .rows = p->count, .heads = 1,
                      .size = size, .eps = p->m->eps, .threads = p->threads};
    lm_norm(&j);
}

/* Numbers of a token's queries, keys and values, and what its queries and keys are apart from the
   next token's once they are turned. */
static int64_t qkv_width(const lm_model *m) {
    return (int64_t)(m->heads + 2 * m->kv_heads) * m->head_dim;
}

static int64_t turned_width(const lm_model *m, const lm_layer *l) {
    return l->qk_norm ? (int64_t)(m->heads + m->kv_heads) * m->head_dim : qkv_width(m);
}

static float *turned(const lm_layer *l, const room *r) { return l->qk_norm ? r->turned : r->qkv; }

/* Queries and keys of a piece to where they are read, after their norms and rotary positions. */
static void turn(const piece *p, const lm_layer *l) {
    const lm_model *m = p->m;
    int heads = m->heads + m->kv_heads, size = m->head_dim;
    int64_t width = qkv_width(m), stride = turned_width(m, l);
    float *x = turned(l, p->r) + p->first * stride;
    if (l->qk_norm) {
        lm_norm_rows j = {.x = p->r->qkv + p->first * width, .weight = l->qk_norm, .out = x,
                          .x_stride = width, .x_head = size, .weight_head = size, .rows = p->count,
                          .heads = heads, .size = size, .eps = m->eps, .threads = p->threads};
        lm_norm(&j);
    }
    if (l->rope >= 0) {
        int64_t apart = (int64_t)m->ropes * size;
        const float *cos = p->s->angles + p->first * apart + (int64_t)l->rope * size;
        lm_rope_rows j = {.x = x, .cos = cos, .sin = cos + size / 2, .x_stride = stride,
                          .x_head = size, .angle_stride = apart, .rows = p->count, .heads = heads,
                          .size = size, .threads = p->threads};
        lm_rope(&j);
    }
}

static int store(const piece *p, const lm_layer *l) {
    const lm_model *m = p->m;
    int64_t stride = turned_width(m, l), width = qkv_width(m);
    const float *k = turned(l, p->r) + p->first * stride + (int64_t)m->heads * m->head_dim;
    const float *v = p->r->qkv + p->first * width + (int64_t)(m->heads + m->kv_heads) * m->head_dim;
    lm_store_rows j = {.x = k, .pool = l->k, .scales = l->k_scale, .at = p->s->stores + p->first,
                       .x_stride = stride, .x_head = m->head_dim,
                       .pool_stride = (int64_t)m->kv_heads * m->head_dim, .pool_head = m->head_dim,
                       .pool_type = m->kv_type, .scale_type = m->scale_type, .rows = p->count,
                       .heads = m->kv_heads, .size = m->head_dim, .slots = m->slots,
                       .wide_slots = 1, .threads = p->threads};
    lm_store_rows both[2] = {j, j};
    both[1].x = v;
    both[1].pool = l->v;
    both[1].scales = l->v_scale;
    both[1].x_stride = width;
    return lm_store(both, 2);
}

/* From a layer's first norm to its attention. */
static int before(const piece *p, const lm_layer *l) {
    multiply(p, &l->qkv, p->r->normed + (int64_t)p->first * p->m->hidden,
             p->r->qkv + p->first * qkv_width(p->m), p->count);
    turn(p, l);
    return store(p, l);
}

/* From a layer's attention to the norm behind it, whose weight is `next`. */
static void after(const piece *p, const lm_layer *l, const float *next) {
    const lm_model *m = p->m;
    int64_t at = (int64_t)p->first * m->hidden;
    float *out = p->bench.added, *normed = p->r->normed + at, *residual = p->r->residual + at;
    multiply(p, &l->out, p->r->attended + (int64_t)p->first * m->heads * m->head_dim, out, p->count);
    if (l->post_attention_norm) norm(p, out, NULL, l->post_attention_norm, out);
    norm(p, out, residual, l->mlp_norm, normed);
    multiply(p, &l->gate_up, normed, p->bench.gate_up, p->count);
    lm_gate_rows gate = {.x = p->bench.gate_up, .out = p->bench.gated,
                         .x_stride = 2 * m->intermediate, .rows = p->count,
                         .size = m->intermediate, .gelu = m->gelu, .threads = p->threads};
    lm_gate(&gate);
    multiply(p, &l->down, p->bench.gated, out, p->count);
    if (l->post_mlp_norm) norm(p, out, NULL, l->post_mlp_norm, out);
    norm(p, out, residual, next, normed);
}

typedef struct {
    const lm_model *m;
    const lm_step *s;
    const room *r;
    int layer; /* whose attention comes next */
    int taken, fault;
} between;

/* All that lies between two attentions, or the ends, for a piece. */
static int do_piece(const piece *p, int layer) {
    const lm_model *m = p->m;
    const lm_layer *l = m->layers + layer;
    if (layer == m->layer_count) {
        after(p, l - 1, m->norm);
        return LM_OK;
    }
    if (layer == 0) {
        float *residual = p->r->residual + (int64_t)p->first * m->hidden;
        int bad = lm_rows_of(&m->embed, p->s->ids + p->first, p->count, residual);
        if (bad) return bad;
        if (m->embed_scale != 1)
            for (int64_t i = 0; i < (int64_t)p->count * m->hidden; i++) residual[i] *= m->embed_scale;
        norm(p, residual, NULL, l->attention_norm, p->r->normed + (int64_t)p->first * m->hidden);
    } else {
        after(p, l - 1, l->attention_norm);
    }
    return before(p, l);
}

/* Pieces are taken, not given: a thread that comes late holds nobody up. */
static void do_pieces(void *argument, int thread) {
    between *b = argument;
    const room *r = b->r;
    piece p = {.m = b->m, .s = b->s, .r = r, .bench = r->bench};
    int64_t apart = thread * r->bench_size, number;
    p.bench.added += apart / 4, p.bench.gate_up += apart / 4, p.bench.gated += apart / 4;
    p.bench.multiply = (char *)p.bench.multiply + apart;
    p.threads = r->threads > 1 ? 1 : b->s->threads;
    while ((number = __atomic_fetch_add(&b->taken, 1, __ATOMIC_RELAXED)) < r->pieces) {
        p.first = (int)(r->tokens * number / r->pieces);
        p.count = (int)(r->tokens * (number + 1) / r->pieces) - p.first;
        int fault = do_piece(&p, b->layer);
        if (fault) __atomic_store_n(&b->fault, fault, __ATOMIC_RELAXED);
    }
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

static int do_all_pieces(const lm_model *m, const lm_step *s, const room *r, int layer) {
    between b = {.m = m, .s = s, .r = r, .layer = layer};
    lm_parallel(do_pieces, &b, r->threads);
    return b.fault;
}

/* The rows that are asked for, from the last attention to their logits. */
static void wanted_logits(const lm_model *m, const lm_step *s, const room *r) {
    if (!s->wanted) return;
    room last = *r;
    last.attended = r->last_attended;
    last.residual = r->last_residual;
    last.normed = r->last_normed;
    cut(&last, s->wanted, s->threads);
    int64_t hidden = m->hidden, query = (int64_t)m->heads * m->head_dim;
    for (int64_t i = 0; i < s->wanted; i++) {
        int64_t at = s->logits_at[i];
        memcpy(last.attended + i * query, r->attended + at * query, (size_t)query * sizeof(float));
        memcpy(last.residual + i * hidden, r->residual + at * hidden, (size_t)hidden * sizeof(float));
    }
    do_all_pieces(m, s, &last, m->layer_count);
    piece all = {.m = m, .s = s, .r = &last, .bench = r->bench, .threads = s->threads};
    multiply(&all, &m->head, last.normed, s->logits, s->wanted);
    if (m->logit_softcap > 0)
        lm_cap(s->logits, s->wanted, m->head.outputs, m->logit_softcap, s->threads);
}

static int run(const lm_model *m, const lm_step *s) {
    room r = lay_out(m, s, s->space);
    if (s->space_size < r.size) return LM_NO_SPACE;
    for (int i = 0; i < s->wanted; i++)
        if ((uint64_t)s->logits_at[i] >= (uint64_t)s->tokens) return LM_BAD_ROWS;
    for (int layer = 0; layer < m->layer_count; layer++) {
        const lm_layer *l = m->layers + layer;
        int fault = do_all_pieces(m, s, &r, layer);
        if (!fault) fault = attend(m, l, s, &r, turned(l, &r), turned_width(m, l));
        if (fault) return fault;
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
