/* See replay.h. Source of the rules: torch 2.11 c10/cuda/CUDACachingAllocator.cpp; where a segment is
 * placed: pytorch/replay/cache.py. Functions have the names of those in pytorch/replay. */

#include "replay.h"

#include <stdlib.h>
#include <string.h>

#ifndef GMC_SOURCE
#define GMC_SOURCE ""
#endif

enum { UNIT = 512, MIB = (1 << 20) / UNIT, CHUNK = 16, NONE = -1 };
#define SMALL ((int64_t)MIB)
#define SMALL_SEGMENT ((int64_t)2 * MIB)
#define LEAST_OWN_SEGMENT ((int64_t)10 * MIB)
#define PAGE ((int64_t)2 * MIB)
#define SPREAD (PAGE + 1)
#define SPAN ((int64_t)1 << 31)
#define ADDRESSES ((int64_t)1 << 40)
#define TOP ((int64_t)1 << 27)
#define NEVER ((int64_t)1 << 62)

static int64_t round_up(int64_t size, int64_t step) { return (size + step - 1) / step * step; }
static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

/* --- arrays that grow --- */

typedef struct {
    void *items;
    int64_t count, room;
} list_t;

/* Room for one more item; its place, not counted yet. */
static void *room_for_one(list_t *list, size_t size)
{
    if (list->count == list->room) {
        int64_t room = list->room ? 2 * list->room : 64;
        void *more = realloc(list->items, (size_t)room * size);
        if (!more)
            return NULL;
        list->items = more;
        list->room = room;
    }
    return (char *)list->items + (size_t)list->count * size;
}

static int list_insert(list_t *list, int64_t at, const void *item, size_t size)
{
    if (!room_for_one(list, size))
        return 0;
    char *place = (char *)list->items + (size_t)at * size;
    memmove(place + size, place, (size_t)(list->count - at) * size);
    memcpy(place, item, size);
    list->count++;
    return 1;
}

static void list_delete(list_t *list, int64_t at, size_t size)
{
    char *place = (char *)list->items + (size_t)at * size;
    list->count--;
    memmove(place, place + size, (size_t)(list->count - at) * size);
}

static int list_copy(list_t *to, const list_t *from, size_t size)
{
    to->count = from->count;
    to->room = from->count + 16;
    to->items = malloc((size_t)to->room * size);
    if (to->items && from->count)
        memcpy(to->items, from->items, (size_t)from->count * size);
    return to->items != NULL;
}

/* --- the plan --- */

enum { PAUSE = 2, EMPTY = 1, MARK = 0 }; /* at the same event, in this order */

typedef struct {
    int64_t at, kind, order;
} stop_t;

struct gmc_plan {
    gmc_stream stream;
    gmc_settings settings;
    int64_t *units;
    int32_t *pool; /* two for each CUDA stream: large (even) and small (odd) */
    int64_t *until; /* the events after which a tensor's uses by other streams end; NULL: no uses */
    stop_t *stops;
    int64_t num_pools, num_stops;
};

static int bit_length(int64_t value)
{
    int bits = 0;
    for (; value; value >>= 1)
        bits++;
    return bits;
}

static int64_t round_units(int64_t size, const gmc_settings *settings)
{
    if (size <= 0)
        return 0;
    int64_t interval = least(most(bit_length(size) - 21, 0), settings->intervals - 1);
    int64_t divisions = settings->divisions[interval];
    if (divisions > 1 && size > UNIT * divisions)
        return round_up(size, (int64_t)1 << (bit_length(size) - bit_length(divisions))) / UNIT;
    return round_up(size, UNIT) / UNIT;
}

static int by_place(const void *one, const void *other)
{
    const stop_t *a = one, *b = other;
    if (a->at != b->at)
        return a->at < b->at ? -1 : 1;
    if (a->kind != b->kind)
        return a->kind < b->kind ? -1 : 1;
    return a->order < b->order ? -1 : a->order > b->order;
}

/* The uses of each tensor by CUDA streams other than its own; whether there was memory for them. */
static int read_uses(gmc_plan *plan)
{
    const gmc_stream *stream = &plan->stream;
    const int64_t *use = stream->use;
    int64_t *freed = calloc((size_t)stream->tensors, sizeof *freed), others = 0;
    plan->until = malloc((size_t)stream->tensors * sizeof *plan->until);
    if (!plan->until || !freed) {
        free(freed);
        return 0;
    }
    for (int64_t i = 0; i < stream->tensors; i++)
        plan->until[i] = NONE;
    for (int64_t i = 0; i < stream->events; i++)
        if (stream->event[i] < 0)
            freed[~stream->event[i]] = i + 1;
    for (int64_t i = 0; i < stream->uses; i++, use += 3) {
        if (use[1] == (stream->streams ? stream->streams[use[0]] : 0))
            continue;
        int64_t end = use[2] < 0 ? NEVER - 1 : most(use[2], freed[use[0]]);
        plan->until[use[0]] = most(plan->until[use[0]], end);
        others++;
    }
    free(freed);
    if (!others) {
        free(plan->until);
        plan->until = NULL;
    }
    return 1;
}

static int read_stops(gmc_plan *plan)
{
    const gmc_stream *stream = &plan->stream;
    plan->stops = malloc((size_t)(stream->marks + stream->empties + stream->uses + 1) * sizeof *plan->stops);
    if (!plan->stops)
        return 0;
    stop_t *next = plan->stops;
    for (int64_t i = 0; i < stream->marks; i++)
        *next++ = (stop_t){stream->mark[i], MARK, i};
    for (int64_t i = 0; i < stream->empties; i++)
        *next++ = (stop_t){stream->empty[i], EMPTY, i};
    for (int64_t i = 0; plan->until && i < stream->uses; i++) {
        int64_t end = plan->until[stream->use[3 * i]];
        if (end >= 0 && end < NEVER - 1)
            *next++ = (stop_t){end, PAUSE, i};
    }
    plan->num_stops = next - plan->stops;
    qsort(plan->stops, (size_t)plan->num_stops, sizeof *plan->stops, by_place);
    return 1;
}

/* The pools of the tensors, by the order of their CUDA streams' numbers. */
static int read_pools(gmc_plan *plan)
{
    const gmc_stream *stream = &plan->stream;
    list_t known = {NULL, 0, 0};
    for (int64_t i = 0; stream->streams && i < stream->tensors; i++) {
        int64_t *ids = known.items, at = 0;
        while (at < known.count && ids[at] < stream->streams[i])
            at++;
        if ((at == known.count || ids[at] != stream->streams[i]) &&
            !list_insert(&known, at, &stream->streams[i], sizeof *ids)) {
            free(known.items);
            return 0;
        }
    }
    for (int64_t i = 0; i < stream->tensors; i++) {
        const int64_t *ids = known.items;
        int64_t at = 0;
        while (stream->streams && ids[at] != stream->streams[i])
            at++;
        plan->pool[i] = (int32_t)(2 * at + (plan->units[i] <= SMALL));
    }
    plan->num_pools = 2 * most(known.count, 1);
    free(known.items);
    return 1;
}

static int is_whole(const gmc_stream *stream)
{
    for (int64_t i = 0; i < stream->events; i++) {
        int64_t event = stream->event[i];
        if ((event < 0 ? ~event : event) >= stream->tensors)
            return 0;
    }
    for (int64_t i = 0; i < stream->uses; i++)
        if (stream->use[3 * i] < 0 || stream->use[3 * i] >= stream->tensors)
            return 0;
    return 1;
}

gmc_plan *gmc_plan_open(const gmc_stream *stream, const gmc_settings *settings, int *outcome)
{
    *outcome = GMC_NO_MEMORY;
    gmc_plan *plan = calloc(1, sizeof *plan);
    if (!plan)
        return NULL;
    if (!is_whole(stream)) {
        *outcome = GMC_BAD_STREAM;
        free(plan);
        return NULL;
    }
    plan->stream = *stream;
    plan->settings = *settings;
    size_t tensors = (size_t)stream->tensors + 1;
    plan->units = malloc(tensors * sizeof *plan->units);
    plan->pool = malloc(tensors * sizeof *plan->pool);
    int whole = plan->units && plan->pool;
    int64_t last = NONE, rounded = 0;
    for (int64_t i = 0; whole && i < stream->tensors; i++) {
        if (stream->sizes[i] != last)
            rounded = round_units(last = stream->sizes[i], settings);
        plan->units[i] = rounded;
    }
    if (!whole || !read_pools(plan) || (stream->uses && !read_uses(plan)) || !read_stops(plan)) {
        gmc_plan_close(plan);
        return NULL;
    }
    *outcome = GMC_DONE;
    return plan;
}

void gmc_plan_close(gmc_plan *plan)
{
    if (!plan)
        return;
    free(plan->units);
    free(plan->pool);
    free(plan->until);
    free(plan->stops);
    free(plan);
}

static int64_t alive_after(const gmc_plan *plan, int64_t alive, int64_t event)
{
    return event < 0 ? alive - plan->units[~event] : alive + plan->units[event];
}

int64_t gmc_most_alive(const gmc_plan *plan)
{
    int64_t alive = 0, peak = 0;
    for (int64_t i = 0; i < plan->stream.events; i++)
        peak = most(peak, alive = alive_after(plan, alive, plan->stream.event[i]));
    return peak;
}

int64_t gmc_first_beyond(const gmc_plan *plan, int64_t units)
{
    int64_t alive = 0, i = 0;
    for (; i < plan->stream.events; i++)
        if ((alive = alive_after(plan, alive, plan->stream.event[i])) > units)
            break;
    return i;
}

static int64_t slack_of(const gmc_plan *plan, int64_t tensor)
{
    const gmc_settings *settings = &plan->settings;
    int64_t units = plan->units[tensor];
    int64_t rest = settings->expandable || units <= SMALL ? 0 : SMALL;
    if (!units)
        return 0;
    if (units >= settings->unsplit)
        rest = most(settings->rounding, PAGE) - 1;
    return (units + rest) * UNIT - plan->stream.sizes[tensor];
}

int64_t gmc_most_slack(const gmc_plan *plan, int64_t begin)
{
    int64_t alive = 0, peak = 0;
    for (int64_t i = 0; i < plan->stream.events; i++) {
        int64_t event = plan->stream.event[i];
        alive += event < 0 ? -slack_of(plan, ~event) : slack_of(plan, event);
        if (i + 1 >= begin)
            peak = i + 1 == begin ? alive : most(peak, alive);
    }
    return peak;
}

/* --- the state --- */

typedef struct {
    int64_t size, start, age; /* age: requests of more than 1 MiB when it was freed */
    int32_t before, after;    /* the blocks next to it in its segment, or NONE */
    int32_t pool;
    int8_t is_mapped;         /* not: a range of an expandable segment without pages */
    int8_t is_free;
    int16_t at;               /* where its entry was put, which may have moved since: */
    int32_t leaf;
} block_t;

typedef struct { /* a range that is not mapped */
    int64_t start;
    int32_t block;
} gap_t;

/* An entry of a pool: a size in the high bits, its block in the low ones. Entries are ordered by
 * size, then by the start of the block. */
typedef int64_t entry_t;

enum { LEAF = 256, BLOCK_BITS = 24 };
#define MOST_BLOCKS ((int64_t)1 << BLOCK_BITS)

typedef struct { /* entries that follow each other; few, so that one can be inserted quickly */
    int32_t count;
    entry_t entries[LEAF];
} leaf_t;

typedef struct {
    list_t leaves; /* leaf_t; the empty ones are not in `order` */
    list_t order;  /* int32_t: the leaves by their entries */
    list_t unused; /* int32_t: the empty ones */
} pool_t;

typedef struct {
    int64_t leaf; /* its place in the order */
    int32_t at;
} place_t;

typedef struct { /* pages of address space; of a chunk: how many segments it has */
    int64_t start, pages, segments;
} range_t;

struct gmc_state {
    const gmc_plan *plan;
    list_t blocks;                /* block_t; those without a use are linked from `unused` by `after` */
    pool_t *pools;                /* the free blocks */
    list_t *gaps;                 /* gap_t, by start */
    list_t holes, chunks, rests;  /* range_t, the highest first */
    list_t kept;                  /* freed tensors whose blocks another CUDA stream still uses */
    int32_t *tensors;             /* the block of each live tensor */
    int64_t *phases;
    int64_t bottom, segments;     /* the lowest page that is taken; expandable segments so far */
    int64_t widest_rest;          /* no rest has more pages */
    int has_empty_chunks;         /* which are dropped before pages are taken */
    int64_t lookups, stop;
    int32_t unused;
    int collects, elastic, waits, is_short; /* is_short: of memory of its own */
    int64_t peak_before, peak_reserved_before; /* of earlier phases */
    gmc_figures is;
};

static block_t *block_of(const gmc_state *state, int32_t block)
{
    return (block_t *)state->blocks.items + block;
}

static int32_t new_block(gmc_state *state)
{
    int32_t number = state->unused;
    if (number != NONE) {
        state->unused = block_of(state, number)->after;
        return number;
    }
    if (state->blocks.count == MOST_BLOCKS || !room_for_one(&state->blocks, sizeof(block_t))) {
        state->is_short = 1;
        return NONE;
    }
    return (int32_t)state->blocks.count++;
}

/* A new range, alone in its segment. */
static int32_t new_range(gmc_state *state, int64_t size, int64_t start, int32_t pool, int8_t is_mapped)
{
    int32_t number = new_block(state);
    if (number != NONE)
        *block_of(state, number) = (block_t){size, start, 0, NONE, NONE, pool, is_mapped, 0, 0, 0};
    return number;
}

/* Takes a block out of its segment. */
static void drop_block(gmc_state *state, int32_t number)
{
    block_t *block = block_of(state, number);
    if (block->before != NONE)
        block_of(state, block->before)->after = block->after;
    if (block->after != NONE)
        block_of(state, block->after)->before = block->before;
    block->after = state->unused;
    state->unused = number;
}

/* A new block after `before` in its segment and pool, which has become smaller. */
static int32_t put_after(gmc_state *state, int32_t before, int64_t size, int64_t start, int8_t is_mapped)
{
    int32_t number = new_block(state);
    if (number == NONE)
        return NONE;
    block_t *first = block_of(state, before), *block = block_of(state, number);
    int32_t after = first->after;
    *block = (block_t){size, start, 0, before, after, first->pool, is_mapped, 0, 0, 0};
    first->after = number;
    if (after != NONE)
        block_of(state, after)->before = number;
    return number;
}

static leaf_t *leaf_of(const pool_t *pool, int64_t place)
{
    return (leaf_t *)pool->leaves.items + ((int32_t *)pool->order.items)[place];
}

static int64_t size_of(entry_t entry) { return entry >> BLOCK_BITS; }
static int32_t block_in(entry_t entry) { return (int32_t)(entry & (MOST_BLOCKS - 1)); }

static int is_less(const gmc_state *state, entry_t entry, int64_t size, int64_t start)
{
    int64_t own = size_of(entry);
    return own == size ? block_of(state, block_in(entry))->start < start : own < size;
}

/* How many of some entries are less. */
static int32_t place_among(const gmc_state *state, const entry_t *entries, int32_t count, int64_t size,
                           int64_t start)
{
    int32_t at = 0;
    while (count > 0) {
        int32_t half = count / 2;
        if (is_less(state, entries[at + half], size, start)) {
            at += half + 1;
            count -= half + 1;
        } else {
            count = half;
        }
    }
    return at;
}

/* The place of the first entry that is not less; it may be one after the last of a leaf. */
static place_t place_of(const gmc_state *state, const pool_t *pool, int64_t size, int64_t start)
{
    int64_t leaf = 0, leaves = pool->order.count;
    while (leaves > 1) {
        if (is_less(state, leaf_of(pool, leaf + leaves / 2)->entries[0], size, start))
            leaf += leaves / 2;
        leaves -= leaves / 2;
    }
    const leaf_t *own = leaves ? leaf_of(pool, leaf) : NULL;
    return (place_t){leaf, own ? place_among(state, own->entries, own->count, size, start) : 0};
}

/* The place of the first entry of a size or more, for which no block's start is needed. */
static place_t place_of_size(const pool_t *pool, int64_t size)
{
    int64_t leaf = 0, leaves = pool->order.count;
    entry_t bound = size << BLOCK_BITS;
    if (!leaves)
        return (place_t){0, 0};
    const int32_t *order = pool->order.items;
    const leaf_t *all = pool->leaves.items;
    while (leaves > 1) {
        if (all[order[leaf + leaves / 2]].entries[0] < bound)
            leaf += leaves / 2;
        leaves -= leaves / 2;
    }
    const leaf_t *own = all + order[leaf];
    int32_t at = 0, count = own->count;
    while (count > 0) {
        int32_t half = count / 2;
        if (own->entries[at + half] < bound) {
            at += half + 1;
            count -= half + 1;
        } else {
            count = half;
        }
    }
    return (place_t){leaf, at};
}

/* The entry at a place, or the next one; NULL where there is none. */
static entry_t *entry_at(const pool_t *pool, place_t *place)
{
    if (place->leaf < pool->order.count && place->at == leaf_of(pool, place->leaf)->count)
        *place = (place_t){place->leaf + 1, 0};
    return place->leaf < pool->order.count ? leaf_of(pool, place->leaf)->entries + place->at : NULL;
}

/* A new leaf at a place of the order. */
static leaf_t *new_leaf(pool_t *pool, int64_t place)
{
    int32_t number = (int32_t)pool->leaves.count;
    if (pool->unused.count)
        number = ((int32_t *)pool->unused.items)[--pool->unused.count];
    else if (!room_for_one(&pool->leaves, sizeof(leaf_t)))
        return NULL;
    else
        pool->leaves.count++;
    if (!list_insert(&pool->order, place, &number, sizeof number))
        return NULL;
    leaf_t *leaf = leaf_of(pool, place);
    leaf->count = 0;
    return leaf;
}

static int add_entry(pool_t *pool, place_t place, entry_t entry, block_t *block)
{
    leaf_t *leaf = pool->order.count ? leaf_of(pool, place.leaf) : new_leaf(pool, 0);
    if (leaf && leaf->count == LEAF) {
        leaf_t *upper = new_leaf(pool, place.leaf + 1);
        if (!upper)
            return 0;
        leaf = leaf_of(pool, place.leaf);
        leaf->count = upper->count = LEAF / 2;
        memcpy(upper->entries, leaf->entries + LEAF / 2, LEAF / 2 * sizeof entry);
        if (place.at > LEAF / 2) {
            place.at -= LEAF / 2;
            leaf = upper;
        }
    }
    if (!leaf)
        return 0;
    entry_t *own = leaf->entries + place.at;
    memmove(own + 1, own, (size_t)(leaf->count++ - place.at) * sizeof entry);
    *own = entry;
    block->leaf = (int32_t)(leaf - (leaf_t *)pool->leaves.items);
    block->at = (int16_t)place.at;
    return 1;
}

static void shorten(leaf_t *leaf, int32_t at)
{
    entry_t *own = leaf->entries + at;
    memmove(own, own + 1, (size_t)(--leaf->count - at) * sizeof *own);
}

static void delete_entry(pool_t *pool, place_t place)
{
    leaf_t *leaf = leaf_of(pool, place.leaf);
    shorten(leaf, place.at);
    if (leaf->count)
        return;
    /* a leaf for which there is no room among the unused ones is not used again */
    int32_t *order = pool->order.items;
    list_insert(&pool->unused, pool->unused.count, order + place.leaf, sizeof *order);
    list_delete(&pool->order, place.leaf, sizeof(int32_t));
}

/* The blocks of a pool from a size on, in order: a copy, to release some of them. */
static list_t blocks_from(gmc_state *state, int64_t pool, int64_t size)
{
    list_t found = {NULL, 0, 0};
    const pool_t *own = &state->pools[pool];
    place_t place = place_of(state, own, size, 0);
    for (const entry_t *entry; (entry = entry_at(own, &place)); place.at++) {
        int32_t number = block_in(*entry);
        if (!list_insert(&found, found.count, &number, sizeof number))
            state->is_short = 1;
    }
    return found;
}

static void insert(gmc_state *state, int32_t number)
{
    block_t *block = block_of(state, number);
    pool_t *pool = &state->pools[block->pool];
    block->is_free = 1;
    block->age = state->lookups;
    place_t place = place_of(state, pool, block->size, block->start);
    if (!add_entry(pool, place, block->size << BLOCK_BITS | number, block))
        state->is_short = 1;
}

enum { NEAR = 8 };

/* Where the entry of a block is in its leaf, if it is near where it was put; else NONE. */
static int32_t near_place(const leaf_t *leaf, entry_t entry, int32_t at)
{
    int32_t end = (int32_t)least(at + NEAR, leaf->count);
    for (at = (int32_t)most(at - NEAR, 0); at < end; at++)
        if (leaf->entries[at] == entry)
            return at;
    return NONE;
}

static void take_out(gmc_state *state, int32_t number)
{
    block_t *block = block_of(state, number);
    pool_t *pool = &state->pools[block->pool];
    block->is_free = 0;
    leaf_t *leaf = (leaf_t *)pool->leaves.items + block->leaf;
    int32_t at = near_place(leaf, block->size << BLOCK_BITS | number, block->at);
    if (at != NONE && leaf->count > 1) {
        shorten(leaf, at);
        return;
    }
    place_t place = place_of(state, pool, block->size, block->start);
    entry_at(pool, &place);
    delete_entry(pool, place);
}

/* Puts a free block into its leaf in the place of an entry at `at`, if it belongs into the leaf. */
static int put_in_place(gmc_state *state, leaf_t *leaf, int32_t at, int32_t number)
{
    block_t *block = block_of(state, number);
    pool_t *pool = &state->pools[block->pool];
    entry_t *own = leaf->entries, old = own[at];
    int32_t leaf_number = (int32_t)(leaf - (leaf_t *)pool->leaves.items), to = at;
    if (block->size >= size_of(old)) {
        to += place_among(state, own + at + 1, leaf->count - at - 1, block->size, block->start);
        if (to == leaf->count - 1 && ((int32_t *)pool->order.items)[pool->order.count - 1] != leaf_number)
            return 0;
        memmove(own + at, own + at + 1, (size_t)(to - at) * sizeof *own);
    } else {
        to = place_among(state, own, at, block->size, block->start);
        if (!to && ((int32_t *)pool->order.items)[0] != leaf_number)
            return 0;
        memmove(own + to + 1, own + to, (size_t)(at - to) * sizeof *own);
    }
    own[to] = block->size << BLOCK_BITS | number;
    block->is_free = 1;
    block->age = state->lookups;
    block->leaf = leaf_number;
    block->at = (int16_t)to;
    return 1;
}

static int is_free(const gmc_state *state, int32_t number)
{
    return number != NONE && block_of(state, number)->is_free;
}

/* Adds a free block to its pool, merged with those next to it; its number afterwards. */
static int32_t insert_merged(gmc_state *state, int32_t number)
{
    block_t *block = block_of(state, number);
    int32_t before = block->before, after = block->after;
    if (is_free(state, before) && is_free(state, after)) {
        take_out(state, after);
        block->size += block_of(state, after)->size;
        drop_block(state, after);
    }
    int32_t old = is_free(state, before) ? before : is_free(state, after) ? after : NONE;
    if (old == NONE) {
        insert(state, number);
        return number;
    }
    block_t *other = block_of(state, old);
    leaf_t *leaf = (leaf_t *)state->pools[block->pool].leaves.items + other->leaf;
    int32_t at = near_place(leaf, other->size << BLOCK_BITS | old, other->at);
    if (at == NONE || leaf->count == 1) {
        take_out(state, old);
        leaf = NULL;
    }
    other->is_free = 0;
    if (old == after) {
        block->size += other->size;
    } else {
        other->size += block->size;
        old = number;
        number = before;
    }
    drop_block(state, old);
    if (leaf && put_in_place(state, leaf, at, number))
        return number;
    if (leaf)
        shorten(leaf, at);
    insert(state, number);
    return number;
}

/* --- where segments are placed --- */

/* Ranges are in falling order, because new ones are usually below all others: the place of the first
   that starts at `start` or below it. */
static int64_t range_place(const list_t *ranges, int64_t start)
{
    const range_t *range = ranges->items;
    int64_t low = 0, high = ranges->count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (range[middle].start > start)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void add_range(gmc_state *state, list_t *ranges, range_t range)
{
    if (!list_insert(ranges, range_place(ranges, range.start), &range, sizeof range))
        state->is_short = 1;
}

static void delete_range(list_t *ranges, int64_t at) { list_delete(ranges, at, sizeof(range_t)); }

static int64_t new_chunk(gmc_state *state, int64_t pages)
{
    range_t *holes = state->holes.items;
    for (int64_t i = 0; i < state->holes.count; i++) {
        if (holes[i].pages >= pages) {
            int64_t start = holes[i].start + holes[i].pages - pages;
            holes[i].pages -= pages;
            if (!holes[i].pages)
                delete_range(&state->holes, i);
            return start;
        }
    }
    return state->bottom -= pages;
}

/* The place of the lowest rest of so many pages; NONE where there is none. */
static int64_t fitting_rest(gmc_state *state, int64_t pages)
{
    const range_t *rests = state->rests.items;
    int64_t widest = 0;
    if (pages > state->widest_rest)
        return NONE;
    for (int64_t at = state->rests.count - 1; at >= 0; at--) {
        if (rests[at].pages >= pages)
            return at;
        widest = most(widest, rests[at].pages);
    }
    state->widest_rest = widest;
    return NONE;
}

/* Adds a range, merged with those next to it within the bounds of `within`; its pages then. */
static int64_t add_merged(gmc_state *state, list_t *ranges, range_t range, range_t within)
{
    int64_t at = range_place(ranges, range.start), end = within.start + within.pages;
    range_t *all = ranges->items;
    if (at && all[at - 1].start == range.start + range.pages && all[at - 1].start < end) {
        range.pages += all[at - 1].pages;
        delete_range(ranges, --at);
    }
    if (at < ranges->count && all[at].start + all[at].pages == range.start &&
        range.start > within.start)
        return all[at].pages += range.pages;
    add_range(state, ranges, range);
    return range.pages;
}

/* The chunks without segments become holes. All at once, as the lists are long. */
static void drop_empty_chunks(gmc_state *state)
{
    range_t *chunks = state->chunks.items, *rests = state->rests.items;
    int64_t kept = 0, at = 0, left = 0;
    for (int64_t i = 0; i < state->chunks.count; i++) {
        range_t chunk = chunks[i];
        for (; at < state->rests.count && rests[at].start >= chunk.start; at++)
            if (chunk.segments)
                rests[left++] = rests[at];
        if (chunk.segments)
            chunks[kept++] = chunk;
        else
            add_merged(state, &state->holes, chunk, (range_t){0, NEVER, 0});
    }
    state->chunks.count = kept;
    state->rests.count = left;
    state->has_empty_chunks = 0;
    int64_t last = state->holes.count - 1;
    const range_t *holes = state->holes.items;
    if (last >= 0 && holes[last].start == state->bottom) {
        state->bottom += holes[last].pages;
        state->holes.count = last;
    }
}

static int64_t take_pages(gmc_state *state, int64_t pages)
{
    if (state->has_empty_chunks)
        drop_empty_chunks(state);
    int64_t at = fitting_rest(state, pages);
    if (at != NONE) {
        range_t *rest = (range_t *)state->rests.items + at;
        int64_t start = rest->start;
        ((range_t *)state->chunks.items)[range_place(&state->chunks, start)].segments++;
        rest->start += pages;
        rest->pages -= pages;
        if (!rest->pages)
            delete_range(&state->rests, at);
        return start;
    }
    int64_t whole = round_up(pages, CHUNK), start = new_chunk(state, whole);
    add_range(state, &state->chunks, (range_t){start, whole, 1});
    if (whole > pages) {
        add_range(state, &state->rests, (range_t){start + pages, whole - pages, 0});
        state->widest_rest = most(state->widest_rest, whole - pages);
    }
    return start;
}

static void give_back_pages(gmc_state *state, int64_t start, int64_t pages)
{
    range_t *chunk = (range_t *)state->chunks.items + range_place(&state->chunks, start);
    if (--chunk->segments) {
        pages = add_merged(state, &state->rests, (range_t){start, pages, 0}, *chunk);
        state->widest_rest = most(state->widest_rest, pages);
    } else {
        state->has_empty_chunks = 1;
    }
}

/* --- expandable segments --- */

static int64_t page_of(const gmc_state *state, int64_t pool)
{
    return pool % 2 ? SMALL_SEGMENT : state->plan->settings.large_segment;
}

static int64_t gap_place(const list_t *gaps, int64_t start)
{
    const gap_t *gap = gaps->items;
    int64_t at = 0;
    while (at < gaps->count && gap[at].start < start)
        at++;
    return at;
}

static void add_gap(gmc_state *state, int32_t number)
{
    block_t *block = block_of(state, number);
    list_t *gaps = &state->gaps[block->pool];
    gap_t gap = {block->start, number};
    block->is_free = block->is_mapped = 0;
    if (!list_insert(gaps, gap_place(gaps, block->start), &gap, sizeof gap))
        state->is_short = 1;
}

static void delete_gap(gmc_state *state, int32_t number)
{
    block_t *block = block_of(state, number);
    list_t *gaps = &state->gaps[block->pool];
    list_delete(gaps, gap_place(gaps, block->start), sizeof(gap_t));
}

static int is_usable(const gmc_state *state, int32_t number)
{
    return number != NONE && (block_of(state, number)->is_free || !block_of(state, number)->is_mapped);
}

static int64_t new_address(gmc_state *state)
{
    int64_t number = ++state->segments;
    for (int taken = number * 2 * SPAN > ADDRESSES - 1, next = 1; taken; next++) {
        taken = 0;
        for (int64_t pool = 0; pool < state->plan->num_pools; pool++) {
            const gap_t *gaps = state->gaps[pool].items;
            for (int64_t i = 0; i < state->gaps[pool].count; i++)
                taken |= gaps[i].start / (2 * SPAN) == next;
        }
        number = next;
    }
    return number * 2 * SPAN;
}

/* The first block of the lowest adjacent free and unmapped ranges that have `need` units in all. */
static int32_t lowest_start(gmc_state *state, int32_t pool, int64_t need)
{
    const gap_t *gaps = state->gaps[pool].items;
    for (int64_t i = 0; i < state->gaps[pool].count; i++) {
        int32_t first = gaps[i].block, before = block_of(state, first)->before;
        if (before != NONE && block_of(state, before)->is_free)
            first = before;
        int64_t size = 0;
        for (int32_t at = first; size < need && is_usable(state, at); at = block_of(state, at)->after)
            size += block_of(state, at)->size;
        if (size >= need)
            return first;
    }
    int32_t number = new_range(state, SPAN, new_address(state), pool, 0);
    if (number != NONE)
        add_gap(state, number);
    return number;
}

static int64_t missing_pages(gmc_state *state, int32_t pool, int64_t need)
{
    int64_t page = page_of(state, pool), missing = 0;
    int32_t at = lowest_start(state, pool, need);
    while (need > 0 && at != NONE) {
        const block_t *block = block_of(state, at);
        int64_t size = block->size;
        if (!block->is_mapped)
            missing += size = least(round_up(need, page), size);
        need -= size;
        at = block->after;
    }
    return missing;
}

static void reserve(gmc_state *state, int64_t units)
{
    state->is.reserved += units;
    state->is.peak_reserved = most(state->is.peak_reserved, state->is.reserved);
}

/* Maps the pages of `size` units from the start of a gap; the free block that they are part of. */
static int32_t map_pages(gmc_state *state, int32_t gap, int64_t size)
{
    block_t *block = block_of(state, gap);
    size = least(round_up(size, page_of(state, block->pool)), block->size);
    delete_gap(state, gap);
    if (block->size > size) {
        int64_t left = block->size - size;
        block->size = size;
        int32_t number = put_after(state, gap, left, block->start + size, 0);
        if (number == NONE)
            return NONE;
        add_gap(state, number);
    }
    block_of(state, gap)->is_mapped = 1;
    reserve(state, size);
    return insert_merged(state, gap);
}

static int32_t expand(gmc_state *state, int32_t pool, int64_t need)
{
    int32_t number = lowest_start(state, pool, need);
    while (number != NONE) {
        const block_t *block = block_of(state, number);
        int64_t left = block->is_mapped ? need - block->size : need;
        if (left <= 0)
            break;
        int32_t gap = block->is_mapped ? block->after : number;
        number = map_pages(state, gap, least(left, block_of(state, gap)->size));
    }
    if (number != NONE)
        take_out(state, number);
    return number;
}

/* Makes a free block, which is in no pool, a gap, merged with those next to it; drops a segment that
 * is wholly unmapped. */
static void join_gap(gmc_state *state, int32_t number)
{
    block_t *block = block_of(state, number);
    int32_t before = block->before, after = block->after;
    if (before != NONE && !block_of(state, before)->is_mapped) {
        delete_gap(state, before);
        block->start = block_of(state, before)->start;
        block->size += block_of(state, before)->size;
        drop_block(state, before);
    }
    if (after != NONE && !block_of(state, after)->is_mapped) {
        delete_gap(state, after);
        block->size += block_of(state, after)->size;
        drop_block(state, after);
    }
    if (block->size < SPAN)
        add_gap(state, number);
    else
        drop_block(state, number);
}

static void unmap_free(gmc_state *state, int32_t pool)
{
    list_t free_now = blocks_from(state, pool, 0);
    int64_t page = page_of(state, pool);
    for (int64_t i = 0; i < free_now.count && !state->is_short; i++) {
        int32_t number = ((int32_t *)free_now.items)[i];
        block_t was = *block_of(state, number);
        int64_t base = was.start - was.start % (2 * SPAN), end = was.start + was.size;
        int64_t first = base + round_up(was.start - base, page);
        int64_t last = base + (end - base) / page * page;
        if (first >= last)
            continue;
        take_out(state, number);
        int32_t gap = number;
        if (first > was.start) {
            block_of(state, number)->size = first - was.start;
            if ((gap = put_after(state, number, last - first, first, 1)) == NONE)
                break;
            insert(state, number);
        } else {
            block_of(state, gap)->size = last - first;
        }
        if (end > last) {
            int32_t rest = put_after(state, gap, end - last, last, 1);
            if (rest == NONE)
                break;
            insert(state, rest);
        }
        state->is.reserved -= last - first;
        join_gap(state, gap);
    }
    free(free_now.items);
}

/* --- when no free block fits --- */

static int64_t missing(gmc_state *state, int32_t pool, int64_t need)
{
    int64_t large = state->plan->settings.large_segment;
    if (state->plan->settings.maps_pages)
        return missing_pages(state, pool, need);
    if (need <= SMALL)
        return SMALL_SEGMENT;
    return need < LEAST_OWN_SEGMENT ? large : round_up(need, PAGE);
}

static int is_over(gmc_state *state, int64_t size)
{
    int64_t reserved = state->is.reserved + size;
    if (reserved > state->is.cap)
        state->is.least_over = least(state->is.least_over, reserved);
    return reserved > state->is.cap;
}

static void release(gmc_state *state, int32_t number)
{
    take_out(state, number);
    block_t *block = block_of(state, number);
    state->is.reserved -= block->size;
    give_back_pages(state, block->start / SPREAD, round_up(block->size, PAGE) / PAGE);
    drop_block(state, number);
}

static int release_available(gmc_state *state, int32_t pool, int64_t need)
{
    const gmc_settings *settings = &state->plan->settings;
    if (settings->oversize == NEVER || settings->expandable)
        return 0;
    need = most(need, settings->oversize);
    place_t place = place_of(state, &state->pools[pool], need, 0);
    const entry_t *entry = entry_at(&state->pools[pool], &place);
    if (entry) {
        release(state, block_in(*entry));
        return 1;
    }
    int64_t released = 0;
    list_t large = blocks_from(state, pool, settings->oversize);
    for (int64_t i = large.count - 1; i >= 0 && released < need; i--) {
        int32_t number = ((int32_t *)large.items)[i];
        released += block_of(state, number)->size;
        release(state, number);
    }
    free(large.items);
    return released >= need;
}

static int is_segment(const gmc_state *state, int32_t number)
{
    const block_t *block = block_of(state, number);
    return block->before == NONE && block->after == NONE && !state->plan->settings.expandable;
}

static void free_kept(gmc_state *state, int64_t events)
{
    int64_t left = 0;
    int64_t *kept = state->kept.items;
    for (int64_t i = 0; i < state->kept.count; i++) {
        if (state->plan->until[kept[i]] > events) {
            kept[left++] = kept[i];
            continue;
        }
        insert_merged(state, state->tensors[kept[i]]);
        state->tensors[kept[i]] = NONE;
    }
    state->kept.count = left;
}

static void release_cached(gmc_state *state)
{
    free_kept(state, NEVER);
    for (int32_t first = 0; first < 2; first++) {
        for (int32_t pool = first; pool < state->plan->num_pools; pool += 2) {
            if (state->plan->settings.expandable) {
                unmap_free(state, pool);
                continue;
            }
            list_t own = blocks_from(state, pool, 0);
            for (int64_t i = 0; i < own.count; i++)
                if (is_segment(state, ((int32_t *)own.items)[i]))
                    release(state, ((int32_t *)own.items)[i]);
            free(own.items);
        }
    }
}

static void collect_garbage(gmc_state *state)
{
    double above = state->plan->settings.collect_above * (double)state->is.cap * UNIT;
    int64_t target = state->is.reserved - (int64_t)above / UNIT;
    list_t free_now = {NULL, 0, 0}; /* the free blocks that are whole large segments */
    for (int64_t pool = 0; target > 0 && pool < state->plan->num_pools; pool += 2) {
        list_t own = blocks_from(state, pool, 0);
        for (int64_t i = 0; i < own.count; i++) {
            int32_t number = ((int32_t *)own.items)[i];
            if (is_segment(state, number) &&
                !list_insert(&free_now, free_now.count, &number, sizeof number))
                state->is_short = 1;
        }
        free(own.items);
    }
    int32_t *blocks = free_now.items;
    while (target > 0 && free_now.count) {
        int64_t ages = 0, left = 0;
        for (int64_t i = 0; i < free_now.count; i++)
            ages += block_of(state, blocks[i])->age;
        double average = (double)ages / (double)free_now.count;
        for (int64_t i = 0; i < free_now.count; i++) {
            if ((double)block_of(state, blocks[i])->age > average) {
                blocks[left++] = blocks[i];
                continue;
            }
            target -= block_of(state, blocks[i])->size;
            release(state, blocks[i]);
        }
        free_now.count = left;
    }
    free(free_now.items);
}

/* A block for a tensor that no free block fits, in no pool; NONE when out of memory. */
static int32_t grow(gmc_state *state, int32_t pool, int64_t need)
{
    if (state->collects)
        collect_garbage(state);
    int64_t size = missing(state, pool, need);
    if (state->is.reserved + size > state->is.cap) {
        if (state->waits)
            return NONE;
        state->is.least_over = least(state->is.least_over, state->is.reserved + size);
        if (!release_available(state, pool, need) || is_over(state, size)) {
            release_cached(state);
            state->is.retries++;
            size = missing(state, pool, need);
            if (!state->elastic && is_over(state, size))
                return NONE;
            state->is.cap = most(state->is.cap, state->is.reserved + size);
        }
    }
    state->is.most_under = most(state->is.most_under, state->is.reserved + size);
    if (state->plan->settings.expandable)
        return expand(state, pool, need);
    int64_t start = take_pages(state, round_up(size, PAGE) / PAGE) * SPREAD;
    reserve(state, size);
    return new_range(state, size, start, pool, 1);
}

/* --- a replay --- */

gmc_state *gmc_open(const gmc_plan *plan, int64_t cap, int collects)
{
    gmc_state *state = calloc(1, sizeof *state);
    if (!state)
        return NULL;
    size_t tensors = (size_t)plan->stream.tensors + 1;
    state->plan = plan;
    state->is.cap = cap;
    state->is.least_over = NEVER;
    state->collects = collects;
    state->bottom = TOP;
    state->unused = NONE;
    state->pools = calloc((size_t)plan->num_pools, sizeof *state->pools);
    state->gaps = calloc((size_t)plan->num_pools, sizeof *state->gaps);
    state->tensors = malloc(tensors * sizeof *state->tensors);
    state->phases = malloc(((size_t)plan->stream.marks + 1) * 3 * sizeof *state->phases);
    if (!state->pools || !state->gaps || !state->tensors || !state->phases) {
        gmc_close(state);
        return NULL;
    }
    memset(state->tensors, 0xff, tensors * sizeof *state->tensors);
    return state;
}

gmc_state *gmc_copy(const gmc_state *from)
{
    gmc_state *state = gmc_open(from->plan, 0, 0);
    if (!state)
        return NULL;
    const gmc_plan *plan = from->plan;
    pool_t *pools = state->pools;
    list_t *gaps = state->gaps;
    int32_t *tensors = state->tensors;
    int64_t *phases = state->phases;
    *state = *from;
    state->pools = pools;
    state->gaps = gaps;
    state->tensors = tensors;
    state->phases = phases;
    int whole = list_copy(&state->blocks, &from->blocks, sizeof(block_t)) &
                list_copy(&state->holes, &from->holes, sizeof(range_t)) &
                list_copy(&state->chunks, &from->chunks, sizeof(range_t)) &
                list_copy(&state->rests, &from->rests, sizeof(range_t)) &
                list_copy(&state->kept, &from->kept, sizeof(int64_t));
    for (int64_t i = 0; i < plan->num_pools; i++) {
        whole &= list_copy(&pools[i].leaves, &from->pools[i].leaves, sizeof(leaf_t));
        whole &= list_copy(&pools[i].order, &from->pools[i].order, sizeof(int32_t));
        whole &= list_copy(&pools[i].unused, &from->pools[i].unused, sizeof(int32_t));
        whole &= list_copy(&gaps[i], &from->gaps[i], sizeof(gap_t));
    }
    if (!whole) {
        gmc_close(state);
        return NULL;
    }
    memcpy(tensors, from->tensors, (size_t)plan->stream.tensors * sizeof *tensors);
    memcpy(phases, from->phases, (size_t)from->is.marks * 3 * sizeof *phases);
    return state;
}

void gmc_close(gmc_state *state)
{
    if (!state)
        return;
    for (int64_t i = 0; i < state->plan->num_pools; i++) {
        if (state->pools) {
            free(state->pools[i].leaves.items);
            free(state->pools[i].order.items);
            free(state->pools[i].unused.items);
        }
        free(state->gaps ? state->gaps[i].items : NULL);
    }
    free(state->pools);
    free(state->gaps);
    free(state->blocks.items);
    free(state->holes.items);
    free(state->chunks.items);
    free(state->rests.items);
    free(state->kept.items);
    free(state->tensors);
    free(state->phases);
    free(state);
}

void gmc_limit(gmc_state *state, int64_t cap, int elastic, int waits)
{
    state->is.cap = cap;
    state->is.failed = 0;
    state->elastic = elastic;
    state->waits = waits;
}

/* Among free blocks, one that can grow counts with the size that it can grow to. */
static place_t best_fit(const gmc_state *state, const pool_t *pool, place_t place)
{
    const entry_t *entry = entry_at(pool, &place);
    for (;;) {
        int32_t gap = block_of(state, block_in(*entry))->after;
        if (gap == NONE || block_of(state, gap)->is_mapped)
            return place;
        place_t next = {place.leaf, place.at + 1};
        const entry_t *other = entry_at(pool, &next);
        if (!other)
            return place;
        int32_t beyond = block_of(state, block_in(*other))->after;
        int64_t grown = size_of(*other);
        if (beyond != NONE && !block_of(state, beyond)->is_mapped)
            grown += block_of(state, beyond)->size;
        if (grown >= size_of(*entry) + block_of(state, gap)->size)
            return place;
        entry = other;
        place = next;
    }
}

/* The free block for a request, and its place in its pool; NONE where none fits. */
static int32_t found_block(gmc_state *state, int32_t pool, int64_t need, place_t *found)
{
    const gmc_settings *settings = &state->plan->settings;
    pool_t *own = &state->pools[pool];
    place_t place = place_of_size(own, need);
    const entry_t *entry = entry_at(own, &place);
    if (!entry)
        return NONE;
    if (settings->expandable) {
        place = best_fit(state, own, place);
        entry = entry_at(own, &place);
    }
    int64_t size = size_of(*entry);
    int32_t number = block_in(*entry);
    if (size >= settings->oversize && (need < settings->oversize || size >= need + settings->rounding))
        return NONE;
    *found = place;
    return number;
}

/* Splits off what a block has beyond `need`. */
static void split(gmc_state *state, int32_t number, int64_t need, place_t place)
{
    block_t *block = block_of(state, number);
    pool_t *pool = &state->pools[block->pool];
    int64_t left = block->size - need;
    int was_free = block->is_free;
    block->size = need;
    block->is_free = 0;
    int32_t other = put_after(state, number, left, block->start + need, 1);
    if (other == NONE)
        return;
    leaf_t *leaf = was_free ? leaf_of(pool, place.leaf) : NULL;
    if (leaf && leaf->count > 1 && put_in_place(state, leaf, place.at, other))
        return;
    if (leaf)
        delete_entry(pool, place);
    insert(state, other);
}

/* Replays the events before `end`, with no stop among them. */
static int play(gmc_state *state, int64_t end)
{
    const gmc_plan *plan = state->plan;
    const int64_t *events = plan->stream.event;
    const int64_t *until = plan->until;
    int64_t unsplit = plan->settings.unsplit, rest_of_large = plan->settings.expandable ? 0 : SMALL;
    for (int64_t at = state->is.at; at < end; at++) {
        int64_t event = events[at];
        state->is.at = at;
        if (event >= 0) {
            int64_t need = plan->units[event];
            int32_t pool = plan->pool[event];
            if (!need)
                continue;
            state->lookups += need > SMALL;
            place_t place = {0, 0};
            int32_t number = found_block(state, pool, need, &place);
            if (number == NONE)
                number = grow(state, pool, need);
            if (state->is_short)
                return GMC_NO_MEMORY;
            if (number == NONE) {
                state->is.failed = 1;
                return GMC_FAILED;
            }
            block_t *block = block_of(state, number);
            if (block->size - need > (pool % 2 ? 0 : rest_of_large) && need < unsplit) {
                split(state, number, need, place);
            } else if (block->is_free) {
                delete_entry(&state->pools[pool], place);
                block->is_free = 0;
            }
            state->tensors[event] = number;
            state->is.allocated += block_of(state, number)->size;
            state->is.peak = most(state->is.peak, state->is.allocated);
            continue;
        }
        event = ~event;
        if (!plan->units[event])
            continue;
        int32_t number = state->tensors[event];
        if (number == NONE)
            return GMC_BAD_STREAM;
        state->is.allocated -= block_of(state, number)->size;
        if (until && until[event] != NONE) {
            int64_t *kept = state->kept.items, place = state->kept.count;
            while (place && kept[place - 1] > event)
                place--;
            if (!list_insert(&state->kept, place, &event, sizeof event))
                return GMC_NO_MEMORY;
            continue;
        }
        insert_merged(state, number);
        state->tensors[event] = NONE;
    }
    state->is.at = most(state->is.at, end);
    return state->is_short ? GMC_NO_MEMORY : GMC_DONE;
}

static void mark(gmc_state *state)
{
    gmc_figures *is = &state->is;
    int64_t *phase = state->phases + 3 * is->marks++;
    phase[0] = is->peak;
    phase[1] = is->allocated;
    phase[2] = is->peak_reserved;
    state->peak_before = most(state->peak_before, is->peak);
    state->peak_reserved_before = most(state->peak_reserved_before, is->peak_reserved);
    is->peak = is->allocated;
    is->peak_reserved = is->reserved;
}

int gmc_advance(gmc_state *state, int64_t end)
{
    const gmc_plan *plan = state->plan;
    for (; state->stop < plan->num_stops && plan->stops[state->stop].at <= end; state->stop++) {
        const stop_t *stop = &plan->stops[state->stop];
        int outcome = play(state, stop->at);
        if (outcome != GMC_DONE)
            return outcome;
        free_kept(state, stop->kind == PAUSE ? stop->at : NEVER);
        if (stop->kind == EMPTY)
            release_cached(state);
        else if (stop->kind == MARK)
            mark(state);
    }
    return play(state, end);
}

void gmc_read(const gmc_state *state, gmc_figures *figures)
{
    *figures = state->is;
    figures->peak = most(state->peak_before, state->is.peak);
    figures->peak_reserved = most(state->peak_reserved_before, state->is.peak_reserved);
}

const int64_t *gmc_phases(const gmc_state *state) { return state->phases; }

int gmc_abi(void) { return 4; }

const char *gmc_source(void) { return GMC_SOURCE; }
