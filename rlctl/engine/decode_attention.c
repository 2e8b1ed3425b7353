/* One decode step of shared-prefix attention on a CPU: a new token of every row attends to its prompt and itself.
 *
 * The completions of a prompt read one copy of its keys and values, and read it once for all rows of a task:
 *
 *     prompt of group g   [.......P.......]          read once a task
 *     row 0               [..own..|new]              read once a row
 *     row 1               [.own.|new]                rows of any length, without padding
 *
 * A task is a few rows of one group; threads take (task, key head) pairs. Softmax and sums are float32. Built for
 * one width of a head, -DWIDTH=64, and element type, -DBF16 or float; arrays are dense, as their comments say.
 */
#include <stdlib.h>
#include <string.h>

#include "element.h"

/* Keys at a time, and heads whose sums stay in registers. */
enum { BLOCK = 2 * LANES, HEADS = 4, VECS = (WIDTH + LANES - 1) / LANES, PADDED = VECS * LANES };

/* (a0 + a1, a2 + a3, ..., b0 + b1, ...) */
static inline vec pair_sums(vec a, vec b) {
    typedef int32_t lanes __attribute__((vector_size(4 * LANES)));
    const lanes even = {0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30};
#ifdef __clang__
    return __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30) +
           __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
#else
    return __builtin_shuffle(a, b, even) + __builtin_shuffle(a, b, even + 1);
#endif
}

/* `count` rows of WIDTH elements as float, each padded with zeros to whole vectors. */
static void widen(const element *source, float *target, int64_t count) {
    for (int64_t j = 0; j < count; j++) {
        for (int64_t d = 0; d < WIDTH; d++) target[j * PADDED + d] = load(source[j * WIDTH + d]);
        for (int64_t d = WIDTH; d < PADDED; d++) target[j * PADDED + d] = 0;
    }
}

/* LANES dot products: query [PADDED] with each of `keys` [LANES, PADDED]. */
static inline vec dots(const float *query, const float *keys) {
    vec sums[LANES];
    for (int64_t j = 0; j < LANES; j++) {
        sums[j] = (vec){0};
        for (int64_t i = 0; i < PADDED; i += LANES)
            sums[j] += *(const vec *)(query + i) * *(const vec *)(keys + j * PADDED + i);
    }
    for (int64_t left = LANES / 2; left; left /= 2)
        for (int64_t j = 0; j < left; j++) sums[j] = pair_sums(sums[2 * j], sums[2 * j + 1]);
    return sums[0];
}

/* Scores of a few heads' queries, PADDED apart, against keys first..last-1, into scores[h * stride + j]; what stands
 * behind them, up to a block, is overwritten. */
static void scores_of_own(const float *query, const element *keys, float *scores, int64_t heads, int64_t stride,
                          int64_t first, int64_t last) {
    float block[LANES * PADDED] = {0};
    for (int64_t start = first; start < last; start += LANES) {
        widen(keys + start * WIDTH, block, last - start < LANES ? last - start : LANES);
        for (int64_t h = 0; h < heads; h++) *(vec *)(scores + h * stride + start) = dots(query + h * PADDED, block);
    }
}

/* Scores of `heads` <= HEADS queries against one transposed block [WIDTH, BLOCK] of keys. */
static inline __attribute__((always_inline)) void scores_of_block(const float *query, const float *block, float *scores,
                                                                  const int64_t heads, int64_t stride) {
    vec low[HEADS] = {{0}}, high[HEADS] = {{0}};
    for (int64_t d = 0; d < WIDTH; d++) {
        vec a = *(const vec *)(block + d * BLOCK), b = *(const vec *)(block + d * BLOCK + LANES);
        for (int64_t h = 0; h < heads; h++) {
            low[h] += query[h * PADDED + d] * a;
            high[h] += query[h * PADDED + d] * b;
        }
    }
    for (int64_t h = 0; h < heads; h++) {
        *(vec *)(scores + h * stride) = low[h];
        *(vec *)(scores + h * stride + LANES) = high[h];
    }
}

/* Scores of many queries against keys 0..last-1 of a prompt, kept transposed [WIDTH, capacity]. */
static void scores_of_prompt(const float *query, const element *keys, float *scores, int64_t heads, int64_t stride,
                             int64_t last, int64_t capacity) {
    float block[WIDTH * BLOCK];
    for (int64_t start = 0; start < last; start += BLOCK) {
        int64_t count = last - start < BLOCK ? last - start : BLOCK;
        for (int64_t d = 0; d < WIDTH; d++) {
            for (int64_t j = 0; j < count; j++) block[d * BLOCK + j] = load(keys[d * capacity + start + j]);
            for (int64_t j = count; j < BLOCK; j++) block[d * BLOCK + j] = 0;
        }
        int64_t h = 0;
        for (; h + HEADS <= heads; h += HEADS)
            scores_of_block(query + h * PADDED, block, scores + h * stride + start, HEADS, stride);
        for (; h < heads; h++) scores_of_block(query + h * PADDED, block, scores + h * stride + start, 1, stride);
    }
}

/* sums[h] += sum over the keys of a block [count, PADDED] of weights[h * stride + j] * values[j]. */
static inline __attribute__((always_inline)) void add_block(const float *weights, const float *block, float *sums,
                                                            const int64_t heads, int64_t stride, int64_t count) {
    for (int64_t i = 0; i < PADDED; i += 2 * LANES) {
        const int64_t second = i + LANES < PADDED ? LANES : 0; /* an odd last vector is computed twice */
        vec a[HEADS], b[HEADS];
        for (int64_t h = 0; h < heads; h++) {
            a[h] = *(vec *)(sums + h * PADDED + i);
            b[h] = *(vec *)(sums + h * PADDED + i + second);
        }
        for (int64_t j = 0; j < count; j++) {
            vec x = *(const vec *)(block + j * PADDED + i), y = *(const vec *)(block + j * PADDED + i + second);
            for (int64_t h = 0; h < heads; h++) {
                a[h] += weights[h * stride + j] * x;
                b[h] += weights[h * stride + j] * y;
            }
        }
        for (int64_t h = 0; h < heads; h++) {
            *(vec *)(sums + h * PADDED + i) = a[h];
            *(vec *)(sums + h * PADDED + i + second) = b[h];
        }
    }
}

/* sums[h] += sum over keys first..last-1 of weights[h * stride + j] * values[j]; sums are PADDED apart. */
static void add_values(const float *weights, const element *values, float *sums, int64_t heads, int64_t stride,
                       int64_t first, int64_t last) {
    float block[BLOCK * PADDED];
    for (int64_t start = first; start < last; start += BLOCK) {
        int64_t count = last - start < BLOCK ? last - start : BLOCK;
        widen(values + start * WIDTH, block, count);
        int64_t h = 0;
        for (; h + HEADS <= heads; h += HEADS)
            add_block(weights + h * stride + start, block, sums + h * PADDED, HEADS, stride, count);
        for (; h < heads; h++) add_block(weights + h * stride + start, block, sums + h * PADDED, 1, stride, count);
    }
}

static float largest(const float *scores, int64_t first, int64_t last) {
    float most = -INFINITY;
#pragma omp simd reduction(max : most)
    for (int64_t j = first; j < last; j++) most = scores[j] > most ? scores[j] : most;
    return most;
}

/* scores -> exp(scores - most); gives their sum. */
static float exponentiate(float *scores, float most, int64_t first, int64_t last) {
    float total = 0;
#pragma omp simd reduction(+ : total)
    for (int64_t j = first; j < last; j++) {
        scores[j] = exp_negative(scores[j] - most);
        total += scores[j];
    }
    return total;
}

/* Scores of a row, its prompt's and its own -> weights that sum to 1; those before the firsts are out of the window. */
static void softmax(float *prompt, int64_t first, int64_t last, float *own, int64_t own_first, int64_t own_last) {
    float most = fmaxf(largest(prompt, first, last), largest(own, own_first, own_last));
    float total = exponentiate(prompt, most, first, last) + exponentiate(own, most, own_first, own_last);
    for (int64_t j = first; j < last; j++) prompt[j] /= total;
    for (int64_t j = own_first; j < own_last; j++) own[j] /= total;
}

static void prefetch(const element *start, int64_t rows) {
    for (const char *x = (const char *)start, *end = (const char *)(start + rows * WIDTH); x < end; x += 64)
        __builtin_prefetch(x, 0, 2);
}

static int64_t at_least(int64_t x, int64_t floor) { return x > floor ? x : floor; }

/* Returns 0, or 1 when memory ran out. `window` 0 is none. A task is [group, position of its first row in `rows`,
 * number of rows]; `own_length` counts the tokens of a row before this one, which is written into its buffer here. */
int decode_attention(const element *query,              /* [rows, kv_heads * per_kv, WIDTH] */
                     const element *key,                /* [rows, kv_heads, WIDTH] */
                     const element *value,              /* [rows, kv_heads, WIDTH] */
                     element *out,                      /* [rows, kv_heads * per_kv, WIDTH] */
                     element *own_k, element *own_v,    /* [rows, kv_heads, capacity, WIDTH] */
                     const element *prompt_k,           /* [groups, kv_heads, WIDTH, prompt_capacity] */
                     const element *prompt_v,           /* [groups, kv_heads, prompt_capacity, WIDTH] */
                     const int64_t *tasks,              /* [num_tasks, 3] */
                     const int64_t *rows,               /* rows in the order of the tasks */
                     const int64_t *own_length,         /* [rows] */
                     const int64_t *prompt_length,      /* [groups] */
                     int64_t num_tasks, int64_t kv_heads, int64_t per_kv, int64_t capacity,
                     int64_t prompt_capacity, int64_t window, float scale) {
    int failed = 0;
    int64_t most_rows = 0;
    for (int64_t t = 0; t < num_tasks; t++) most_rows = at_least(tasks[t * 3 + 2], most_rows);
    /* A row of scores: the prompt's, in whole blocks, then its own and a block to spare. */
    int64_t own_at = (prompt_capacity + BLOCK - 1) / BLOCK * BLOCK, stride = own_at + capacity + BLOCK;
    int64_t task_floats = most_rows * per_kv * (2 * PADDED + stride);

#pragma omp parallel
    {
        float *scratch = malloc(sizeof(float) * task_floats);
        if (!scratch) {
#pragma omp atomic write
            failed = 1;
        }
#pragma omp for schedule(dynamic)
        for (int64_t pair = 0; pair < num_tasks * kv_heads; pair++) {
            if (!scratch) continue;
            const int64_t *task = tasks + (pair / kv_heads) * 3, head = pair % kv_heads;
            const int64_t *mine = rows + task[1], count = task[2], heads = count * per_kv;
            const int64_t prompt = prompt_length[task[0]], prompt_at = (task[0] * kv_heads + head) * prompt_capacity;
            float *q = scratch, *sums = q + heads * PADDED, *scores = sums + heads * PADDED;

            memset(q, 0, sizeof(float) * 2 * heads * PADDED);
            int64_t oldest = prompt; /* the first prompt token that any row sees */
            for (int64_t i = 0; i < count; i++) {
                int64_t row = mine[i], position = prompt + own_length[row];
                int64_t first = window ? at_least(position + 1 - window, 0) : 0;
                oldest = first < oldest ? first : oldest;
                const element *source = query + (row * kv_heads + head) * per_kv * WIDTH;
                for (int64_t h = 0; h < per_kv; h++)
                    for (int64_t d = 0; d < WIDTH; d++)
                        q[(i * per_kv + h) * PADDED + d] = load(source[h * WIDTH + d]) * scale;
            }
            scores_of_prompt(q, prompt_k + prompt_at * WIDTH, scores, heads, stride, prompt, prompt_capacity);

            for (int64_t i = 0; i < count; i++) {
                int64_t row = mine[i], length = own_length[row], total = prompt + length + 1;
                int64_t first = window ? at_least(total - window, 0) : 0, own_first = at_least(first - prompt, 0);
                int64_t at = (row * kv_heads + head) * capacity * WIDTH;
                memcpy(own_k + at + length * WIDTH, key + (row * kv_heads + head) * WIDTH, sizeof(element) * WIDTH);
                memcpy(own_v + at + length * WIDTH, value + (row * kv_heads + head) * WIDTH, sizeof(element) * WIDTH);
                float *row_scores = scores + i * per_kv * stride;
                prefetch(own_v + at, length);
                if (i + 1 < count) {
                    int64_t next = mine[i + 1];
                    prefetch(own_k + (next * kv_heads + head) * capacity * WIDTH, own_length[next]);
                }
                scores_of_own(q + i * per_kv * PADDED, own_k + at, row_scores + own_at, per_kv, stride, own_first,
                              length + 1);
                for (int64_t h = 0; h < per_kv; h++) {
                    float *s = row_scores + h * stride;
                    softmax(s, first < prompt ? first : prompt, prompt, s + own_at, own_first, length + 1);
                    for (int64_t j = oldest; j < first && j < prompt; j++) s[j] = 0;
                }
                add_values(row_scores + own_at, own_v + at, sums + i * per_kv * PADDED, per_kv, stride, own_first,
                           length + 1);
            }
            add_values(scores, prompt_v + prompt_at * WIDTH, sums, heads, stride, oldest, prompt);

            for (int64_t i = 0; i < count; i++)
                for (int64_t h = 0; h < per_kv; h++) {
                    element *target = out + ((mine[i] * kv_heads + head) * per_kv + h) * WIDTH;
                    for (int64_t d = 0; d < WIDTH; d++) target[d] = store(sums[(i * per_kv + h) * PADDED + d]);
                }
        }
        free(scratch);
    }
    return failed;
}
