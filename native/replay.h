/* A model of torch's caching allocator: the rules of pytorch/replay, which are the specification.
 *
 * Sizes and addresses are in units of 512 bytes, except in `gmc_stream`. Nothing is global, so
 * replays of one plan can run in several threads.
 */
#ifndef GMC_REPLAY_H
#define GMC_REPLAY_H

#include <stdint.h>

#if defined(_WIN32)
#define GMC_API __declspec(dllexport)
#else
#define GMC_API __attribute__((visibility("default")))
#endif

typedef struct gmc_plan gmc_plan;   /* what all replays of a stream with the same settings share */
typedef struct gmc_state gmc_state; /* a replay in progress */

typedef struct { /* pytorch/replay/stream.py; borrowed: it outlives the plan */
    int64_t tensors, events, marks, empties, uses;
    const int64_t *sizes;   /* bytes of each tensor */
    const int64_t *event;   /* i allocates tensor i, ~i frees it */
    const int64_t *streams; /* of each tensor, or NULL */
    const int64_t *mark;    /* events before each mark */
    const int64_t *empty;   /* events before each empty_cache */
    const int64_t *use;     /* tensor, CUDA stream, end (-1: the next mark), for each use */
} gmc_stream;

typedef struct { /* pytorch/replay/settings.py */
    int64_t expandable, maps_pages, oversize, unsplit, rounding, large_segment, intervals;
    const int64_t *divisions; /* of a power of two, for each interval of sizes */
    double collect_above;     /* a share of the cap; 0: garbage is not collected */
} gmc_settings;

typedef struct {
    int64_t at, failed; /* events replayed; whether the next one ran out of memory */
    int64_t cap, allocated, reserved, peak, peak_reserved, retries, most_under, least_over, marks;
} gmc_figures;

enum { GMC_FAILED, GMC_DONE, GMC_NO_MEMORY = -1, GMC_BAD_STREAM = -2 };

GMC_API int gmc_abi(void);            /* of these functions */
GMC_API const char *gmc_source(void); /* the hash of the source, by which a test finds an old library */

/* NULL where the outcome is GMC_NO_MEMORY, or GMC_BAD_STREAM: of a tensor that it does not have. */
GMC_API gmc_plan *gmc_plan_open(const gmc_stream *stream, const gmc_settings *settings, int *outcome);
GMC_API void gmc_plan_close(gmc_plan *plan);
GMC_API int64_t gmc_most_alive(const gmc_plan *plan); /* the peak of the tensors alive */
/* The first event after which more than `units` are alive; the number of events where none is. */
GMC_API int64_t gmc_first_beyond(const gmc_plan *plan, int64_t units);

/* The most bytes by which live blocks can exceed their tensors after `begin` events: slack.py. */
GMC_API int64_t gmc_most_slack(const gmc_plan *plan, int64_t begin);

GMC_API gmc_state *gmc_open(const gmc_plan *plan, int64_t cap, int collects);
GMC_API gmc_state *gmc_copy(const gmc_state *state);
GMC_API void gmc_close(gmc_state *state);
/* elastic: the cap is raised where the run would fail; waits: the run stops where the cap is first
 * exceeded, before anything is released. */
GMC_API void gmc_limit(gmc_state *state, int64_t cap, int elastic, int waits);
/* Replays the events before `end`: GMC_DONE, GMC_FAILED, or what is below 0. */
GMC_API int gmc_advance(gmc_state *state, int64_t end);
GMC_API void gmc_read(const gmc_state *state, gmc_figures *figures);
/* For each mark passed: the peak allocated, what is allocated at its end, the peak reserved. */
GMC_API const int64_t *gmc_phases(const gmc_state *state);

#endif
