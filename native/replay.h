/* The blocks of torch's caching allocator, as in pytorch/replay: which are free, which tensor has which.
 *
 * Sizes and addresses are in units of 512 bytes. A pool's free blocks are ordered by size, then by
 * address. Segments, caps and what the driver does stay with the caller: where no free block fits, a
 * replay pauses, and goes on with the block that the caller gives it.
 */
#ifndef GMC_REPLAY_H
#define GMC_REPLAY_H

#include <stdint.h>

#if defined(_WIN32)
#define GMC_API __declspec(dllexport)
#else
#define GMC_API __attribute__((visibility("default")))
#endif

typedef struct gmc_state gmc_state;

typedef struct { /* what all replays of a stream share; it outlives every state */
    int64_t tensors, events, pools;
    const int64_t *units; /* of each tensor's block */
    const int32_t *pool;  /* of each tensor: even large, odd small */
    const int64_t *event; /* i allocates tensor i, ~i frees it */
    const uint8_t *waits; /* tensors whose block another CUDA stream still uses when they are freed */
    const int64_t *least_rest; /* of each pool: a larger rest is split off */
    int64_t oversize, rounding, unsplit; /* max_split_size_mb and its rounding */
} gmc_plan;

typedef struct {
    int64_t size, start;
} gmc_block;

GMC_API int gmc_abi(void);             /* of these functions */
GMC_API const char *gmc_source(void);  /* the hash of the source, by which a test finds an old library */
GMC_API gmc_state *gmc_open(const gmc_plan *plan);
GMC_API gmc_state *gmc_copy(const gmc_state *state);
GMC_API void gmc_close(gmc_state *state);

/* Replays the events from `at` to before `end`; returns where it stopped: `end`; before it, where a
 * request needs `gmc_give`, then the same call again; -1 without memory of its own. */
GMC_API int64_t gmc_play(gmc_state *state, int64_t at, int64_t end);
GMC_API void gmc_give(gmc_state *state, int64_t size, int64_t start);

GMC_API int64_t gmc_allocated(const gmc_state *state);
GMC_API int64_t gmc_peak(const gmc_state *state);
GMC_API void gmc_reset_peak(gmc_state *state);

/* The blocks of a pool from a size on, in order; `blocks` may be NULL: returns how many there are. */
GMC_API int64_t gmc_free_blocks(const gmc_state *state, int64_t pool, int64_t least, gmc_block *blocks);
GMC_API void gmc_remove(gmc_state *state, int64_t pool, int64_t size, int64_t start);
/* Frees the block of a tensor that waited for another CUDA stream. */
GMC_API int gmc_free(gmc_state *state, int64_t tensor);

GMC_API gmc_block gmc_block_of(const gmc_state *state, int64_t tensor);
/* Gives `count` tensors from `to` on the blocks of those from `from` on. */
GMC_API void gmc_rename(gmc_state *state, int64_t to, int64_t from, int64_t count);

#endif
