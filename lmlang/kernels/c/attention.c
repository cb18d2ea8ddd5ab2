/* Attention over slots: cuts the work into units, shares them out, and puts the parts together.

       units   row 0: one of few queries, all kv heads | row 1: UNIT_ROWS at a time, one kv head each
       spans   2 .. | 1 .......... | 0 .......... |         SPAN keys each, from the last one down
       tiles   .... | .. | .. | .. | .. | .. | .. |         TILE keys each
       threads |------ 0 ----------|---- 1 -------|         equal cost, cut between spans

   The softmax goes along the tiles of a span; then the state over the span is merged into that
   over all spans after it. Where a unit is cut, a later thread keeps the states of its spans, and
   they are merged at the end; a call that carries begins with the state over what stands later. So
   a query's bits follow from its keys alone, whatever is computed beside it, by whom and in how
   many calls, as long as these are cut where a span begins.

   Source: Ye et al., "FlashInfer" (2025) for equal shares of ragged rows. */
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "lmlang.h"
#include "machine.h"

#define TILE 64
#define SPAN 256
#define SPAN_TILES (SPAN / TILE)
#define UNIT_ROWS 96    /* queries of a kv head in one unit */
#define FEW_ROWS 16     /* up to so many, a unit has all kv heads: then slots are read in one go */
#define FEW 4           /* queries up to which keys and values are used where they lie */
#define MAX_LANES 16
#define LOADING 6       /* loading a tile of keys and values costs as much as so many queries */
#define LEAST_SHARE 256 /* cost of a share that is worth a thread: about 20 us */
#define LOG2E 1.4426950408889634f
#define LN2 0.6931471805599453f

/* Its tiles are counted as they are done: those of the last span first, each span's in order. */
typedef struct {
    int row, query, count;      /* `count` queries of a row; `query` is the place of the first */
    int head, heads;            /* kv heads */
    int position;               /* of the first query among the row's slots */
    int begin, end;             /* slots of the row that any of them sees, from a whole tile on */
    int64_t tiles, cost;        /* `cost` of one tile */
} unit;

/* Up to TILE slots, and those of the tile after it, which may be fetched. */
typedef struct {
    const int32_t *slots, *next;
    int n, ahead;
} tile;

/* M states; while the softmax goes along, `out` is not yet divided by the sum of the weights. */
typedef struct {
    float *out, *lse; /* [M, filled Dv], [M] */
} state;

typedef struct {
    float *queries, *keys, *values, *scores;
    float *largest, *sums; /* [M], [M, MAX_LANES] of the softmax that goes along */
    state span, whole;
    float *spans;              /* states of the spans of a unit that an earlier thread began */
} room;

static inline int lm_filled(int size) { return (size + MAX_LANES - 1) / MAX_LANES * MAX_LANES; }

static inline int lm_fours(int size) { return (size + 3) / 4 * 4; }

static inline float lm_scale(const lm_attention *a, const void *scales, int64_t slot, int head) {
    int64_t at = slot * a->kv_heads + head;
    return a->scale_type == LM_F16 ? lm_half(((const uint16_t *)scales)[at])
                                   : ((const float *)scales)[at];
}

/* Number i of the states that `spans` has room for; there is room for whole vectors of lse. */
static inline state lm_span_state(const room *r, int64_t i, int states, int filled) {
    float *at = r->spans + i * lm_filled(states) * (filled + 1);
    return (state){at, at + (int64_t)lm_filled(states) * filled};
}

/* Of the last span, which comes first. */
static inline int64_t last_tiles(const unit *u) {
    return (u->end - (u->end - 1) / SPAN * SPAN + TILE - 1) / TILE;
}

/* The first of the tiles of a tile's span. */
static inline int64_t span_start(const unit *u, int64_t tile) {
    int64_t last = last_tiles(u);
    return tile < last ? 0 : last + (tile - last) / SPAN_TILES * SPAN_TILES;
}

/* The first tile from `tile` on that begins a span, or how many tiles there are. */
static inline int64_t whole_spans(const unit *u, int64_t tile) {
    if (tile == 0) return 0;
    int64_t start = span_start(u, tile - 1), end = start ? start + SPAN_TILES : last_tiles(u);
    return end < u->tiles ? end : u->tiles;
}

/* States of a unit. */
static inline int states_of(const lm_attention *a, const unit *u) {
    return u->heads * u->count * (a->heads / a->kv_heads);
}

#define KERNELS "tiles.h"
#include "each_isa.h"

/* Queries of a row that go into one unit, and whether it has all kv heads. */
static int unit_queries(const lm_attention *a, int queries, int *all_heads) {
    int groups = a->heads / a->kv_heads;
    int most = groups < UNIT_ROWS ? UNIT_ROWS / groups : 1;
    *all_heads = queries * groups <= FEW_ROWS;
    return queries < most ? queries : most;
}

static int row_start(const lm_attention *a, int row) { return a->starts ? a->starts[row] : row; }

/* The unit after `u`; `u->row` is -1 before the first. Returns 0 behind the last. */
static int next_unit(const lm_attention *a, unit *u) {
    int all_heads;
    if (u->row >= 0 && u->head + u->heads < a->kv_heads) {
        u->head += u->heads;
        return 1;
    }
    int query = u->row >= 0 ? u->query + u->count : 0;
    if (u->row < 0) u->row = 0;
    while (u->row < a->rows && query >= row_start(a, u->row + 1)) u->row++;
    if (u->row >= a->rows) return 0;
    int start = row_start(a, u->row), end = row_start(a, u->row + 1);
    int length = a->table_starts[u->row + 1] - a->table_starts[u->row];
    int most = unit_queries(a, end - start, &all_heads);
    u->query = query;
    u->count = end - query < most ? end - query : most;
    u->head = 0;
    u->heads = all_heads ? a->kv_heads : 1;
    u->position = length - (end - query);
    u->begin = 0;
    u->end = a->causal ? u->position + u->count : length;
    if (a->causal && a->window && u->position >= a->window)
        u->begin = (u->position - a->window + 1) / TILE * TILE;
    u->tiles = (u->end - u->begin + TILE - 1) / TILE;
    u->cost = (int64_t)u->heads * (LOADING + u->count * (a->heads / a->kv_heads));
    return 1;
}

static int max_rows(int heads, int kv_heads) {
    int groups = heads / kv_heads, rows = kv_heads * FEW_ROWS;
    if (rows < UNIT_ROWS) rows = UNIT_ROWS;
    return rows < groups ? groups : rows;
}

static float *taken(float *space, int64_t *used, int64_t count) {
    float *at = space ? space + *used : NULL;
    *used += (count + MAX_LANES - 1) / MAX_LANES * MAX_LANES;
    return at;
}

static state states_taken(float *space, int64_t *used, int64_t rows, int filled) {
    float *out = taken(space, used, rows * filled);
    return (state){out, taken(space, used, rows)};
}

/* Lays a share's room out, for units of so many spans; returns how many numbers it takes. */
static int64_t lay_out(room *r, float *space, int heads, int kv_heads, int key_dim, int value_dim,
                       int64_t spans) {
    int64_t rows = lm_filled(max_rows(heads, kv_heads)), filled = lm_filled(value_dim), used = 0;
    r->queries = taken(space, &used, rows * lm_fours(key_dim));
    r->keys = taken(space, &used, (int64_t)lm_fours(key_dim) * TILE);
    r->values = taken(space, &used, TILE * filled);
    r->scores = taken(space, &used, rows * TILE);
    r->largest = taken(space, &used, rows);
    r->sums = taken(space, &used, rows * MAX_LANES);
    r->span = states_taken(space, &used, rows, filled);
    r->whole = states_taken(space, &used, rows, filled);
    r->spans = taken(space, &used, spans * rows * (filled + 1));
    return used;
}

int lm_attend_span(void) { return SPAN; }

int64_t lm_attend_room(int heads, int kv_heads, int key_dim, int value_dim, int threads,
                       int longest) {
    room r;
    /* A unit that is cut has its last span with the thread that begins it. */
    int64_t spans = threads > 1 ? longest / SPAN : 0;
    /* MAX_LANES more: it begins at a whole line of the cache. */
    return threads * lay_out(&r, NULL, heads, kv_heads, key_dim, value_dim, spans) + MAX_LANES;
}

int64_t lm_attend_space(const lm_attention *a) {
    int longest = lm_longest(a->table_starts, a->rows, 0);
    return lm_attend_room(a->heads, a->kv_heads, a->key_dim, a->value_dim, a->threads, longest);
}

typedef struct {
    const lm_attention *a;
    int (*attend)(const lm_attention *, const unit *, int64_t, int64_t, const room *);
    void (*merge)(const lm_attention *, const unit *, const state *, const state *);
    void (*finish)(const lm_attention *, const unit *, const state *);
    float *space;
    int shares;
    int64_t cost, spans;
    int fault;
} work;


/* The first tile of a unit that belongs to a share or to a later one; `before`: cost so far. */
static int64_t first_tile(const work *w, int share, int64_t before, const unit *u) {
    int64_t begins = w->cost * share / w->shares - before;
    if (begins <= 0) return 0;
    int64_t at = (begins + u->cost - 1) / u->cost;
    if (at >= u->tiles) return u->tiles;
    int64_t end = whole_spans(u, at), start = span_start(u, end - 1);
    return at - start < end - at ? start : end;
}

static void room_of(const work *w, int share, room *r) {
    const lm_attention *a = w->a;
    int64_t size = lay_out(r, NULL, a->heads, a->kv_heads, a->key_dim, a->value_dim, w->spans);
    lay_out(r, w->space + share * size, a->heads, a->kv_heads, a->key_dim, a->value_dim, w->spans);
}

static void do_share(void *argument, int share) {
    work *w = argument;
    room r;
    room_of(w, share, &r);
    unit u = {.row = -1};
    for (int64_t before = 0; next_unit(w->a, &u); before += u.tiles * u.cost) {
        int64_t first = first_tile(w, share, before, &u), last = first_tile(w, share + 1, before, &u);
        if (first >= last) {
            if (before > w->cost * (share + 1) / w->shares) break;
            continue;
        }
        int fault = w->attend(w->a, &u, first, last, &r);
        if (fault) __atomic_store_n(&w->fault, fault, __ATOMIC_RELAXED);
        else if (first == 0 && last == u.tiles) w->finish(w->a, &u, &r.whole);
    }
}

/* Puts the states of units together that several shares have parts of. */
static void join(const work *w) {
    unit u = {.row = -1};
    int share = 0, filled = lm_filled(w->a->value_dim);
    for (int64_t before = 0; next_unit(w->a, &u); before += u.tiles * u.cost) {
        if (!u.tiles) continue; /* has no first tile that says whose it is */
        while (share + 1 < w->shares && first_tile(w, share + 1, before, &u) == 0) share++;
        if (first_tile(w, share + 1, before, &u) == u.tiles) continue;
        room mine;
        room_of(w, share, &mine);
        for (int other = share + 1; other < w->shares; other++) {
            int64_t at = first_tile(w, other, before, &u);
            int64_t end = first_tile(w, other + 1, before, &u);
            room its;
            room_of(w, other, &its);
            for (int64_t i = 0; at < end; i++, at = whole_spans(&u, at + 1)) {
                state span = lm_span_state(&its, i, states_of(w->a, &u), filled);
                w->merge(w->a, &u, &mine.whole, &span);
            }
        }
        w->finish(w->a, &u, &mine.whole);
    }
}

/* Queries first .. last-1 see nothing. */
static void write_nothing(const lm_attention *a, int first, int last) {
    int64_t at = (int64_t)first * a->heads, count = (int64_t)(last - first) * a->heads;
    size_t width = (size_t)a->value_dim * lm_width(a->q_type);
    if (count) memset((char *)a->out + at * width, 0, count * width);
    for (int64_t i = 0; i < count; i++) a->lse[at + i] = -INFINITY;
}

static int checked(const lm_attention *a) {
    if (row_start(a, 0) != 0 || a->table_starts[0] < 0) return LM_BAD_ROWS;
    for (int row = 0; row < a->rows; row++) {
        int64_t queries = (int64_t)row_start(a, row + 1) - row_start(a, row);
        int64_t length = (int64_t)a->table_starts[row + 1] - a->table_starts[row];
        if (queries < 0 || length < 0 || (a->starts && a->causal && length < queries))
            return LM_BAD_ROWS;
    }
    if (row_start(a, a->rows) > a->members || a->table_starts[a->rows] > a->table_size)
        return LM_BAD_ROWS;
    if (a->queries)
        for (int i = 0; i < a->members; i++)
            if ((uint32_t)a->queries[i] >= (uint32_t)a->tokens) return LM_BAD_ROWS;
    return LM_OK;
}

int lm_attend(const lm_attention *a) {
    int fault = checked(a);
    if (fault) return fault;
    work w = {.a = a, .attend = BEST(attend), .merge = BEST(merge), .finish = BEST(finish)};
    uintptr_t line = MAX_LANES * sizeof(float);
    w.space = (float *)(((uintptr_t)a->space + line - 1) / line * line);
    int longest = 0;
    for (unit u = {.row = -1}; next_unit(a, &u);) {
        w.cost += u.tiles * u.cost;
        if (u.end > longest) longest = u.end;
        if (!u.tiles && !a->carries) write_nothing(a, u.query, u.query + u.count);
    }
    if (!a->carries) write_nothing(a, row_start(a, a->rows), a->members);
    int64_t most = w.cost / LEAST_SHARE;
    w.shares = (int)(most < 1 ? 1 : most < a->threads ? most : a->threads);
    w.spans = w.shares > 1 ? longest / SPAN : 0;
    if (a->space_size < lm_attend_room(a->heads, a->kv_heads, a->key_dim, a->value_dim, w.shares,
                                       longest))
        return LM_NO_SPACE;
    lm_parallel(do_share, &w, w.shares);
    if (!w.fault && w.shares > 1) join(&w);
    return w.fault;
}
