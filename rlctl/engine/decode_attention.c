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
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef BF16
typedef uint16_t element;
static inline float load(element x) {
    union { uint32_t bits; float value; } u = {(uint32_t)x << 16};
    return u.value;
}
static inline element store(float x) { /* to nearest, ties to even, as torch rounds */
    union { float value; uint32_t bits; } u = {x};
    if (x != x) return 0x7FC0;
    return (element)((u.bits + 0x7FFF + ((u.bits >> 16) & 1)) >> 16);
}
#else
typedef float element;
static inline float load(element x) { return x; }
static inline element store(float x) { return x; }
#endif

/* exp for x <= 0 to 2 units in the last place, in operations that compilers turn into vector instructions. */
static inline float exp_negative(float x) {
    x = x < -87.0f ? -87.0f : x;
    float n = rintf(x * 1.44269504f);
    float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    union { int32_t bits; float value; } scale = {((int32_t)n + 127) << 23};
    return p * scale.value;
}

/* Keys at a time: 32 of width 128 are 16 KB in float32, half of a core's first cache. */
enum { BLOCK = 32 };

/* Scores of `heads` queries against keys first..last-1, into scores[h * stride + j]. */
static void scores_of(const float *query, const element *keys, float *scores, int64_t heads, int64_t stride,
                      int64_t first, int64_t last) {
    float block[BLOCK * WIDTH];
    for (int64_t start = first; start < last; start += BLOCK) {
        int64_t count = last - start < BLOCK ? last - start : BLOCK;
        const element *source = keys + start * WIDTH;
        if (heads < 8 || count < BLOCK) { /* few of either: a dot product each */
            for (int64_t x = 0; x < count * WIDTH; x++) block[x] = load(source[x]);
            for (int64_t h = 0; h < heads; h++)
                for (int64_t j = 0; j < count; j++) {
                    float sum = 0;
#pragma omp simd reduction(+ : sum)
                    for (int64_t d = 0; d < WIDTH; d++) sum += query[h * WIDTH + d] * block[j * WIDTH + d];
                    scores[h * stride + start + j] = sum;
                }
        } else { /* transpose the block once; then each query meets all its keys in parallel */
            for (int64_t j = 0; j < BLOCK; j++)
                for (int64_t d = 0; d < WIDTH; d++) block[d * BLOCK + j] = load(source[j * WIDTH + d]);
            for (int64_t h = 0; h < heads; h++) {
                float sums[BLOCK] = {0};
                for (int64_t d = 0; d < WIDTH; d++)
                    for (int64_t j = 0; j < BLOCK; j++) sums[j] += query[h * WIDTH + d] * block[d * BLOCK + j];
                memcpy(scores + h * stride + start, sums, sizeof sums);
            }
        }
    }
}

/* sums[h] += sum over keys first..last-1 of weights[h * stride + j] * values[j]. */
static void add_values(const float *weights, const element *values, float *sums, int64_t heads, int64_t stride,
                       int64_t first, int64_t last) {
    float block[BLOCK * WIDTH];
    for (int64_t start = first; start < last; start += BLOCK) {
        int64_t count = last - start < BLOCK ? last - start : BLOCK;
        const element *source = values + start * WIDTH;
        for (int64_t x = 0; x < count * WIDTH; x++) block[x] = load(source[x]);
        for (int64_t h = 0; h < heads; h++) {
            float sum[WIDTH];
            memcpy(sum, sums + h * WIDTH, sizeof sum);
            for (int64_t j = 0; j < count; j++) {
                float weight = weights[h * stride + start + j];
                for (int64_t d = 0; d < WIDTH; d++) sum[d] += weight * block[j * WIDTH + d];
            }
            memcpy(sums + h * WIDTH, sum, sizeof sum);
        }
    }
}

/* scores [count] -> weights that sum to 1; the scores before `first` are outside the window. */
static void softmax(float *scores, int64_t first, int64_t count) {
    float most = -INFINITY, total = 0;
#pragma omp simd reduction(max : most)
    for (int64_t j = first; j < count; j++) most = scores[j] > most ? scores[j] : most;
#pragma omp simd reduction(+ : total)
    for (int64_t j = first; j < count; j++) {
        scores[j] = exp_negative(scores[j] - most);
        total += scores[j];
    }
    float scale = 1.0f / total;
    for (int64_t j = first; j < count; j++) scores[j] *= scale;
}

static int64_t at_least(int64_t x, int64_t floor) { return x > floor ? x : floor; }

/* Returns 0, or 1 when memory ran out. `window` 0 is none. A task is [group, position of its first row in `rows`,
 * number of rows]; `own_length` counts the tokens of a row before this one, which is written into its buffer here. */
int decode_attention(const element *query,              /* [rows, kv_heads * per_kv, WIDTH] */
                     const element *key,                /* [rows, kv_heads, WIDTH] */
                     const element *value,              /* [rows, kv_heads, WIDTH] */
                     element *out,                      /* [rows, kv_heads * per_kv, WIDTH] */
                     element *own_k, element *own_v,    /* [rows, kv_heads, capacity, WIDTH] */
                     const element *prompt_k,           /* [groups, kv_heads, prompt_capacity, WIDTH] */
                     const element *prompt_v,
                     const int64_t *tasks,              /* [num_tasks, 3] */
                     const int64_t *rows,               /* rows in the order of the tasks */
                     const int64_t *own_length,         /* [rows] */
                     const int64_t *prompt_length,      /* [groups] */
                     int64_t num_tasks, int64_t kv_heads, int64_t per_kv, int64_t capacity,
                     int64_t prompt_capacity, int64_t window, float scale) {
    int failed = 0;
    int64_t most_rows = 0;
    for (int64_t t = 0; t < num_tasks; t++) most_rows = at_least(tasks[t * 3 + 2], most_rows);
    int64_t stride = prompt_capacity + capacity;
    int64_t task_floats = most_rows * per_kv * (2 * WIDTH + stride);

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
            float *q = scratch, *sums = q + heads * WIDTH, *scores = sums + heads * WIDTH;

            memset(sums, 0, sizeof(float) * heads * WIDTH);
            int64_t oldest = prompt; /* the first prompt token that any row sees */
            for (int64_t i = 0; i < count; i++) {
                int64_t row = mine[i], position = prompt + own_length[row];
                int64_t first = window ? at_least(position + 1 - window, 0) : 0;
                oldest = first < oldest ? first : oldest;
                const element *source = query + (row * kv_heads + head) * per_kv * WIDTH;
                for (int64_t x = 0; x < per_kv * WIDTH; x++) q[i * per_kv * WIDTH + x] = load(source[x]) * scale;
            }
            scores_of(q, prompt_k + prompt_at * WIDTH, scores, heads, stride, oldest, prompt);

            for (int64_t i = 0; i < count; i++) {
                int64_t row = mine[i], length = own_length[row], total = prompt + length + 1;
                int64_t first = window ? at_least(total - window, 0) : 0;
                int64_t at = (row * kv_heads + head) * capacity * WIDTH;
                memcpy(own_k + at + length * WIDTH, key + (row * kv_heads + head) * WIDTH, sizeof(element) * WIDTH);
                memcpy(own_v + at + length * WIDTH, value + (row * kv_heads + head) * WIDTH, sizeof(element) * WIDTH);
                float *row_scores = scores + i * per_kv * stride;
                int64_t own_first = at_least(first - prompt, 0);
                scores_of(q + i * per_kv * WIDTH, own_k + at, row_scores + prompt, per_kv, stride, own_first,
                          length + 1);
                for (int64_t h = 0; h < per_kv; h++) {
                    float *s = row_scores + h * stride;
                    softmax(s, first, total);
                    for (int64_t j = oldest; j < first && j < prompt; j++) s[j] = 0;
                }
                add_values(row_scores + prompt, own_v + at, sums + i * per_kv * WIDTH, per_kv, stride, own_first,
                           length + 1);
            }
            add_values(scores, prompt_v + prompt_at * WIDTH, sums, heads, stride, oldest, prompt);

            for (int64_t i = 0; i < count; i++) {
                element *target = out + (mine[i] * kv_heads + head) * per_kv * WIDTH;
                for (int64_t x = 0; x < per_kv * WIDTH; x++) target[x] = store(sums[i * per_kv * WIDTH + x]);
            }
        }
        free(scratch);
    }
    return failed;
}
