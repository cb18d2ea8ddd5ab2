/* A whole forward pass of a native model in one call: what model, pool and batch look like. */
#ifndef LMLANG_STEP_H
#define LMLANG_STEP_H

#include "lmlang.h"

typedef struct {
    const uint8_t *data;        /* as lm_product's weight */
    const uint8_t *digits;
    const float *bias;          /* [outputs], or NULL */
    int32_t bits, inputs, outputs, unused;
} lm_matrix;

/* One layer and its part of the pool. Norms are float32; NULL where there is none. */
typedef struct {
    lm_matrix qkv, out, gate_up, down;
    const float *attention_norm, *mlp_norm;           /* [hidden] */
    const float *qk_norm;                             /* [heads + kv_heads, head_dim] */
    const float *post_attention_norm, *post_mlp_norm; /* [hidden] */
    void *k, *v;                /* [S, kv_heads, head_dim] */
    void *k_scale, *v_scale;    /* dense [S, kv_heads] where these are int8, else NULL */
    int32_t window;             /* positions that a token sees; 0: all */
    int32_t rope, parts;        /* which of the step's angles (-1: none) and of its parts */
    float scale;                /* of scores */
} lm_layer;

typedef struct {
    const lm_layer *layers;
    lm_matrix embed, head;
    const float *norm;          /* [hidden] */
    int32_t layer_count, hidden, heads, kv_heads, head_dim, intermediate;
    int32_t gelu;               /* the gate: else silu */
    int32_t kv_type, scale_type, slots;
    int32_t windows;            /* that its layers have: so many parts has a step */
    int32_t ropes;
    float eps, embed_scale, softcap, logit_softcap;
} lm_model;

/* Rows of queries. */
typedef struct {
    const int32_t *queries;     /* [count] places in the batch; NULL: from `first` on */
    const int32_t *starts;      /* [rows + 1], from 0; NULL: one query a row */
    const int32_t *table_starts; /* [rows + 1] */
    int32_t first, count, rows, unused;
} lm_step_rows;

/* Groups of queries, each over slots that all of it see; they stand before those of the rows and of
   the levels before it, cut at multiples of lm_attend_span. */
typedef struct {
    const int32_t *queries;     /* [members] places in the batch, each at most once */
    const int32_t *starts;      /* [groups + 1] */
    const int32_t *table_starts; /* [groups + 1] */
    int32_t members, groups;
} lm_step_level;

/* Who attends to what in layers of one window. */
typedef struct {
    lm_step_rows rows[2];
    lm_step_level levels[2];
    int32_t row_count, level_count;
} lm_step_parts;

typedef struct {
    const int64_t *ids;         /* [T] rows of the embedding */
    const int64_t *stores;      /* [T] slots */
    const float *angles;        /* [T, ropes, 2, head_dim / 2]: cos, then sin */
    const int32_t *table;
    const lm_step_parts *parts;
    const int64_t *logits_at;   /* [K] of the T */
    float *logits;              /* [K, vocab]; written */
    void *space;                /* what lm_step_space asks for, at a multiple of 64 */
    int64_t space_size, table_size;
    int32_t tokens, wanted, threads, unused; /* T, K */
} lm_step;

/* Bytes that lm_run needs in `space`, of which alone this step says nothing yet. */
LM_API int64_t lm_step_space(const lm_model *model, const lm_step *step);
LM_API int lm_run(const lm_model *model, const lm_step *step);

/* Rows of a weight as float32 [count, inputs], as of an embedding. */
LM_API int lm_rows_of(const lm_matrix *weight, const int64_t *ids, int32_t count, float *out);

#endif
