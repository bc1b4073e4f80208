/* See replay.h. Source of the rules: torch 2.11 c10/cuda/CUDACachingAllocator.cpp (malloc,
 * get_free_block, should_split, alloc_found_block, free_block, try_merge_blocks). */

#include "replay.h"

#include <stdlib.h>
#include <string.h>

#ifndef GMC_SOURCE
#define GMC_SOURCE ""
#endif

typedef struct {
    gmc_block *blocks; /* ordered by size, then by start */
    int64_t count, room;
} pool_t;

typedef struct { /* address -> free block; open addressing, `key` -1 where empty */
    int64_t *keys;
    gmc_block *blocks;
    int64_t mask, count;
} table_t;

struct gmc_state {
    const gmc_plan *plan;
    pool_t *pools;
    table_t starts, ends; /* by the first address of a block, by the one after its last */
    gmc_block *tensors;
    gmc_block given; /* by the caller, for the request that waits; no size: none */
    int64_t allocated, peak;
};

/* --- a pool --- */

static int64_t first_fit(const pool_t *pool, int64_t size, int64_t start)
{
    int64_t low = 0, high = pool->count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        const gmc_block *block = &pool->blocks[middle];
        if (block->size < size || (block->size == size && block->start < start))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static int pool_insert(pool_t *pool, gmc_block block)
{
    if (pool->count == pool->room) {
        int64_t room = pool->room ? 2 * pool->room : 64;
        gmc_block *more = realloc(pool->blocks, (size_t)room * sizeof *more);
        if (!more)
            return 0;
        pool->blocks = more;
        pool->room = room;
    }
    int64_t at = first_fit(pool, block.size, block.start);
    memmove(pool->blocks + at + 1, pool->blocks + at, (size_t)(pool->count - at) * sizeof block);
    pool->blocks[at] = block;
    pool->count++;
    return 1;
}

static void pool_delete(pool_t *pool, int64_t at)
{
    pool->count--;
    memmove(pool->blocks + at, pool->blocks + at + 1,
            (size_t)(pool->count - at) * sizeof *pool->blocks);
}

/* --- a table of addresses --- */

static int64_t slot_of(const table_t *table, int64_t key)
{
    int64_t slot = (int64_t)(((uint64_t)key * 0x9E3779B97F4A7C15u) >> 20) & table->mask;
    while (table->keys[slot] != -1 && table->keys[slot] != key)
        slot = (slot + 1) & table->mask;
    return slot;
}

static int table_open(table_t *table, int64_t room)
{
    table->keys = malloc((size_t)room * sizeof *table->keys);
    table->blocks = malloc((size_t)room * sizeof *table->blocks);
    table->mask = room - 1;
    table->count = 0;
    if (!table->keys || !table->blocks)
        return 0;
    memset(table->keys, 0xff, (size_t)room * sizeof *table->keys);
    return 1;
}

static void table_close(table_t *table)
{
    free(table->keys);
    free(table->blocks);
}

static int table_grow(table_t *table)
{
    table_t larger;
    if (!table_open(&larger, 2 * (table->mask + 1))) {
        table_close(&larger);
        return 0;
    }
    for (int64_t i = 0; i <= table->mask; i++) {
        if (table->keys[i] != -1) {
            int64_t slot = slot_of(&larger, table->keys[i]);
            larger.keys[slot] = table->keys[i];
            larger.blocks[slot] = table->blocks[i];
        }
    }
    larger.count = table->count;
    table_close(table);
    *table = larger;
    return 1;
}

static int table_set(table_t *table, int64_t key, gmc_block block)
{
    if (2 * table->count > table->mask && !table_grow(table))
        return 0;
    int64_t slot = slot_of(table, key);
    table->count += table->keys[slot] == -1;
    table->keys[slot] = key;
    table->blocks[slot] = block;
    return 1;
}

static const gmc_block *table_get(const table_t *table, int64_t key)
{
    int64_t slot = slot_of(table, key);
    return table->keys[slot] == -1 ? NULL : &table->blocks[slot];
}

static void table_delete(table_t *table, int64_t key)
{
    int64_t hole = slot_of(table, key);
    if (table->keys[hole] == -1)
        return;
    table->count--;
    for (int64_t slot = (hole + 1) & table->mask;; slot = (slot + 1) & table->mask) {
        if (table->keys[slot] == -1)
            break;
        int64_t home = (int64_t)(((uint64_t)table->keys[slot] * 0x9E3779B97F4A7C15u) >> 20) & table->mask;
        /* the entry may move into the hole unless its home lies between the hole and itself */
        if (((slot - home) & table->mask) >= ((slot - hole) & table->mask)) {
            table->keys[hole] = table->keys[slot];
            table->blocks[hole] = table->blocks[slot];
            hole = slot;
        }
    }
    table->keys[hole] = -1;
}

/* --- free blocks --- */

static int add_free(gmc_state *state, int64_t pool, gmc_block block)
{
    return pool_insert(&state->pools[pool], block) &&
           table_set(&state->starts, block.start, block) &&
           table_set(&state->ends, block.start + block.size, block);
}

static void take_free(gmc_state *state, int64_t pool, gmc_block block)
{
    pool_t *own = &state->pools[pool];
    pool_delete(own, first_fit(own, block.size, block.start));
    table_delete(&state->starts, block.start);
    table_delete(&state->ends, block.start + block.size);
}

static int add_merged(gmc_state *state, int64_t pool, gmc_block block)
{
    const gmc_block *found = table_get(&state->ends, block.start);
    if (found) {
        gmc_block before = *found;
        take_free(state, pool, before);
        block.start = before.start;
        block.size += before.size;
    }
    found = table_get(&state->starts, block.start + block.size);
    if (found) {
        gmc_block after = *found;
        take_free(state, pool, after);
        block.size += after.size;
    }
    return add_free(state, pool, block);
}

/* --- a state --- */

gmc_state *gmc_open(const gmc_plan *plan)
{
    gmc_state *state = calloc(1, sizeof *state);
    if (!state)
        return NULL;
    state->plan = plan;
    state->pools = calloc((size_t)plan->pools + 1, sizeof *state->pools);
    state->tensors = calloc((size_t)plan->tensors + 1, sizeof *state->tensors);
    int tables = table_open(&state->starts, 1024) & table_open(&state->ends, 1024);
    if (!state->pools || !state->tensors || !tables) {
        gmc_close(state);
        return NULL;
    }
    return state;
}

static int table_copy(table_t *to, const table_t *from)
{
    size_t room = (size_t)from->mask + 1;
    if (!table_open(to, from->mask + 1))
        return 0;
    memcpy(to->keys, from->keys, room * sizeof *to->keys);
    memcpy(to->blocks, from->blocks, room * sizeof *to->blocks);
    to->count = from->count;
    return 1;
}

gmc_state *gmc_copy(const gmc_state *from)
{
    gmc_state *state = calloc(1, sizeof *state);
    if (!state)
        return NULL;
    const gmc_plan *plan = state->plan = from->plan;
    state->given = from->given;
    state->allocated = from->allocated;
    state->peak = from->peak;
    state->pools = calloc((size_t)plan->pools + 1, sizeof *state->pools);
    state->tensors = malloc(((size_t)plan->tensors + 1) * sizeof *state->tensors);
    int whole = table_copy(&state->starts, &from->starts) & table_copy(&state->ends, &from->ends);
    whole = whole && state->pools && state->tensors;
    for (int64_t i = 0; whole && i < plan->pools; i++) {
        const pool_t *own = &from->pools[i];
        gmc_block *blocks = malloc(((size_t)own->count + 1) * sizeof *blocks);
        whole = blocks != NULL;
        if (whole) {
            if (own->count)
                memcpy(blocks, own->blocks, (size_t)own->count * sizeof *blocks);
            state->pools[i] = (pool_t){blocks, own->count, own->count + 1};
        }
    }
    if (!whole) {
        gmc_close(state);
        return NULL;
    }
    memcpy(state->tensors, from->tensors, ((size_t)plan->tensors + 1) * sizeof *state->tensors);
    return state;
}

void gmc_close(gmc_state *state)
{
    if (!state)
        return;
    for (int64_t i = 0; state->pools && i < state->plan->pools; i++)
        free(state->pools[i].blocks);
    free(state->pools);
    free(state->tensors);
    table_close(&state->starts);
    table_close(&state->ends);
    free(state);
}

/* --- events --- */

/* A free block for a request, out of its pool; no size where none fits. */
static gmc_block found_block(gmc_state *state, int64_t pool, int64_t need)
{
    const gmc_plan *plan = state->plan;
    pool_t *own = &state->pools[pool];
    int64_t at = first_fit(own, need, 0);
    gmc_block none = {0, 0};
    if (at == own->count)
        return none;
    gmc_block block = own->blocks[at];
    if (block.size >= plan->oversize && (need < plan->oversize || block.size >= need + plan->rounding))
        return none;
    pool_delete(own, at);
    table_delete(&state->starts, block.start);
    table_delete(&state->ends, block.start + block.size);
    return block;
}

int64_t gmc_play(gmc_state *state, int64_t at, int64_t end)
{
    const gmc_plan *plan = state->plan;
    for (; at < end; at++) {
        int64_t event = plan->event[at];
        if (event >= 0) {
            int64_t need = plan->units[event], pool = plan->pool[event];
            gmc_block block = state->given;
            state->given.size = 0;
            if (!block.size)
                block = found_block(state, pool, need);
            if (!block.size)
                return at;
            if (block.size - need > plan->least_rest[pool] && need < plan->unsplit) {
                gmc_block rest = {block.size - need, block.start + need};
                if (!add_free(state, pool, rest))
                    return -1;
                block.size = need;
            }
            state->tensors[event] = block;
            state->allocated += block.size;
            if (state->allocated > state->peak)
                state->peak = state->allocated;
        } else {
            int64_t tensor = ~event;
            state->allocated -= state->tensors[tensor].size;
            if (!plan->waits[tensor] && !gmc_free(state, tensor))
                return -1;
        }
    }
    return at;
}

int gmc_free(gmc_state *state, int64_t tensor)
{
    return add_merged(state, state->plan->pool[tensor], state->tensors[tensor]);
}

void gmc_give(gmc_state *state, int64_t size, int64_t start)
{
    state->given = (gmc_block){size, start};
}

/* --- what the caller reads --- */

int gmc_abi(void) { return 1; }

const char *gmc_source(void) { return GMC_SOURCE; }

int64_t gmc_allocated(const gmc_state *state) { return state->allocated; }

int64_t gmc_peak(const gmc_state *state) { return state->peak; }

void gmc_reset_peak(gmc_state *state) { state->peak = state->allocated; }

int64_t gmc_free_blocks(const gmc_state *state, int64_t pool, int64_t least, gmc_block *blocks)
{
    const pool_t *own = &state->pools[pool];
    int64_t first = first_fit(own, least, 0), count = own->count - first;
    if (blocks && count)
        memcpy(blocks, own->blocks + first, (size_t)count * sizeof *blocks);
    return count;
}

void gmc_remove(gmc_state *state, int64_t pool, int64_t size, int64_t start)
{
    take_free(state, pool, (gmc_block){size, start});
}

gmc_block gmc_block_of(const gmc_state *state, int64_t tensor) { return state->tensors[tensor]; }

void gmc_rename(gmc_state *state, int64_t to, int64_t from, int64_t count)
{
    memcpy(state->tensors + to, state->tensors + from, (size_t)count * sizeof *state->tensors);
}
