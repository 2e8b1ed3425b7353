/* Attention of packed runs on the matrix units of a processor (Intel AMX), in bfloat16 with float32 sums.
 *
 * Run i of the queries meets run i of the keys, all of it or, with `causal`, up to itself. The H / K query heads that
 * share a key head are rows of one product, token by token: row r is head r % G of token r / G. Scores stand on their
 * side, a line a key and a column a row, so that what belongs to a row (its maximum, its sum) is a lane of a vector, and
 * the weights come out in the very order in which the next product takes them:
 *
 *     there   S' = K Q'      P' = softmax of each column      O' += V' P'
 *     back    S' again       G' = V dO'      P', D' = scale P' (G' - dot)      dV += P' dO    dK += D' Q    dQ' += K' D'
 *
 * A block of scores never leaves the cache. Source: flash attention, https://arxiv.org/abs/2205.14135, algorithms 1
 * and 4 (2 of https://arxiv.org/abs/2307.08691).
 *
 * The unit multiplies tiles of 16 x 32 by 32 x 16 numbers; the second factor has two lines in one, number by number
 * ("paired" below): b[i / 2][j][i % 2].
 */
#include "element.h"
#include <stdlib.h>

#if defined(__AMX_BF16__) && defined(__AVX512BF16__) && defined(__linux__)
#include <immintrin.h>
#include <omp.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    THERE_ROWS = 32,  /* of a block of scores: what fits the first cache with KEYS of them */
    THERE_KEYS = 128,
    BACK_ROWS = 128,  /* sums are read and written once a block, so a larger block does that less often */
    BACK_KEYS = 64,
};

typedef struct {
    const element *x;
    int64_t stride; /* from token to token */
} tokens;

/* What all blocks of one key head of one run have in common. */
typedef struct {
    int64_t first_query, first_key, keys, key_head, group, heads, key_heads, width, padded;
    int causal;
    float scale;
} run;

static inline int64_t up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static void *memory(int64_t bytes) {
    void *found = aligned_alloc(64, up(bytes, 64));
    if (!found) abort();
    return found;
}

/* Permission to use the units, which Linux gives to a process on request; 0 when it was given. */
int enable(void) { return syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* tile data */) ? 1 : 0; }

static void configure(void) {
    struct {
        uint8_t palette, start, reserved[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } __attribute__((packed, aligned(64))) shape = {.palette = 1};
    for (int i = 0; i < 8; i++) shape.bytes[i] = 64, shape.rows[i] = 16;
    _tile_loadconfig(&shape);
}

/* c[32][32] (+)= a[32][32 steps] b[32 steps][32], b paired; the strides count numbers of their type. */
static inline void product(float *c, int64_t c_stride, const element *a, int64_t a_stride, const element *b,
                           int64_t b_stride, int64_t steps, int add) {
    if (add) {
        _tile_loadd(0, c, 4 * c_stride);
        _tile_loadd(1, c + 16, 4 * c_stride);
        _tile_loadd(2, c + 16 * c_stride, 4 * c_stride);
        _tile_loadd(3, c + 16 * c_stride + 16, 4 * c_stride);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int64_t i = 0; i < steps; i++) {
        _tile_loadd(4, a + 32 * i, 2 * a_stride);
        _tile_loadd(5, a + 32 * i + 16 * a_stride, 2 * a_stride);
        _tile_loadd(6, b + 16 * i * b_stride, 2 * b_stride);
        _tile_loadd(7, b + 16 * i * b_stride + 32, 2 * b_stride);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, c, 4 * c_stride);
    _tile_stored(1, c + 16, 4 * c_stride);
    _tile_stored(2, c + 16 * c_stride, 4 * c_stride);
    _tile_stored(3, c + 16 * c_stride + 16, 4 * c_stride);
}

/* to[j][i] = from[i][j] for 16 x 16 numbers of 32 bits. */
static inline void transpose16(uint32_t *to, int64_t to_stride, const uint32_t *from, int64_t from_stride) {
    __m512i a[16], b[16];
    for (int i = 0; i < 16; i++) a[i] = _mm512_loadu_si512(from + i * from_stride);
    for (int i = 0; i < 16; i += 2) {
        b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
        b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
    }
    for (int i = 0; i < 16; i += 4)
        for (int j = 0; j < 2; j++) {
            a[i + 2 * j] = _mm512_unpacklo_epi64(b[i + j], b[i + j + 2]);
            a[i + 2 * j + 1] = _mm512_unpackhi_epi64(b[i + j], b[i + j + 2]);
        }
    for (int i = 0; i < 16; i += 8)
        for (int j = 0; j < 4; j++) {
            b[i + j] = _mm512_shuffle_i32x4(a[i + j], a[i + j + 4], 0x88);
            b[i + j + 4] = _mm512_shuffle_i32x4(a[i + j], a[i + j + 4], 0xDD);
        }
    for (int j = 0; j < 8; j++) {
        _mm512_storeu_si512(to + j * to_stride, _mm512_shuffle_i32x4(b[j], b[j + 8], 0x88));
        _mm512_storeu_si512(to + (j + 8) * to_stride, _mm512_shuffle_i32x4(b[j], b[j + 8], 0xDD));
    }
}

static void transpose(void *to, int64_t to_stride, const void *from, int64_t from_stride, int64_t rows, int64_t columns) {
    for (int64_t i = 0; i < rows; i += 16)
        for (int64_t j = 0; j < columns; j += 16)
            transpose16((uint32_t *)to + j * to_stride + i, to_stride, (const uint32_t *)from + i * from_stride + j,
                        from_stride);
}

/* Two lines of 32 numbers as one, number by number: the lower 16 bits of each pair from `first`. */
static inline void pair(element *to, __m512i first, __m512i second) {
    const __m512i low = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6, 37,
                                         5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
    _mm512_storeu_si512(to, _mm512_permutex2var_epi16(first, low, second));
    _mm512_storeu_si512(to + 32, _mm512_permutex2var_epi16(first, high, second));
}

/* Two lines of 16 floats as one of bfloat16, number by number: what `pair` does, with the rounding. */
static inline __m512i rounded_pair(__m512 first, __m512 second) {
    const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21,
                                           5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return _mm512_permutexvar_epi16(order, (__m512i)_mm512_cvtne2ps_pbh(second, first));
}

/* [rows][width] -> paired [rows / 2][width][2] */
static void pair_rows(element *to, const element *from, int64_t rows, int64_t width) {
    for (int64_t i = 0; i < rows; i += 2)
        for (int64_t j = 0; j < width; j += 32)
            pair(to + i * width + 2 * j, _mm512_loadu_si512(from + i * width + j),
                 _mm512_loadu_si512(from + (i + 1) * width + j));
}

/* Copies `count` lines of a run's tokens, zeros beyond them and beyond the width. */
static void gather_keys(element *to, tokens from, const run *r, int64_t lines) {
    memset(to, 0, lines * r->padded * sizeof(element));
    for (int64_t i = 0; i < r->keys; i++)
        memcpy(to + i * r->padded, from.x + (r->first_key + i) * from.stride + r->key_head * r->width,
               r->width * sizeof(element));
}

static inline int64_t place(const run *r, int64_t row) { /* in [tokens][H] */
    return (r->first_query + row / r->group) * r->heads + r->key_head * r->group + row % r->group;
}

static void gather_rows(element *to, tokens from, const run *r, int64_t first, int64_t count, int64_t lines) {
    if (count < lines || r->width < r->padded) memset(to, 0, lines * r->padded * sizeof(element));
    for (int64_t i = 0; i < count; i++) {
        int64_t token = r->first_query + (first + i) / r->group, head = r->key_head * r->group + (first + i) % r->group;
        memcpy(to + i * r->padded, from.x + token * from.stride + head * r->width, r->width * sizeof(element));
    }
}

/* Columns x[padded][lines] -> rows of the outcome, times `factor[row]`. `turned` holds [16][padded]. */
static void scatter_rows(element *to, const float *x, int64_t lines, const float *factor, const run *r, int64_t first,
                         int64_t count, float *turned) {
    for (int64_t i = 0; i < count; i += 16) {
        transpose(turned, r->padded, x + i, lines, r->padded, 16);
        for (int64_t j = i; j < least(i + 16, count); j++) {
            element *out = to + place(r, first + j) * r->width;
            for (int64_t w = 0; w < r->width; w++) out[w] = store(turned[(j - i) * r->padded + w] * factor[j]);
        }
    }
}

/* exp for x <= 0, 0 where that is no normal number (those take the processor ten times as long); NaN stays. The
 * polynomial of `exp_negative`. */
static inline __m512 exp_or_zero(__m512 x) {
    __mmask16 normal = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-87.0f), _CMP_NLT_UQ);
    __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), 0);
    __m512 y = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
    y = _mm512_fmadd_ps(n, _mm512_set1_ps(2.12194440e-4f), y);
    __m512 p = _mm512_set1_ps(1.9875691500e-4f);
    p = _mm512_fmadd_ps(p, y, _mm512_set1_ps(1.3981999507e-3f));
    p = _mm512_fmadd_ps(p, y, _mm512_set1_ps(8.3334519073e-3f));
    p = _mm512_fmadd_ps(p, y, _mm512_set1_ps(4.1665795894e-2f));
    p = _mm512_fmadd_ps(p, y, _mm512_set1_ps(1.6666665459e-1f));
    p = _mm512_fmadd_ps(p, y, _mm512_set1_ps(5.0000001201e-1f));
    p = _mm512_fmadd_ps(_mm512_mul_ps(p, y), y, _mm512_add_ps(y, _mm512_set1_ps(1.0f)));
    return _mm512_maskz_scalef_ps(normal, p, n);
}

/* Where a row sees key `key`: lane i is row i. */
static inline __mmask16 sees(__m512i last_seen, int64_t key) {
    return _mm512_cmpge_epi32_mask(last_seen, _mm512_set1_epi32((int)key));
}

/* The last key that each row sees; rows beyond `count` see as much as the last one. */
static void see(int32_t *last_seen, const run *r, int64_t first, int64_t count, int64_t lines) {
    for (int64_t i = 0; i < lines; i++) {
        int64_t token = (first + least(i, count - 1)) / r->group;
        last_seen[i] = (int32_t)(r->causal ? least(token, r->keys - 1) : r->keys - 1);
    }
}

typedef struct {
    element *k, *v_turned;             /* [keys][padded], [padded][keys] */
    element *q, *q_pairs, *weights;    /* [32][padded], paired [padded / 2][32][2], paired [KEYS / 2][32][2] */
    float *scores, *out, *turned;      /* [KEYS][32], [padded][32], [16][padded] */
} there_space;

/* Rows first .. first + count of a run: outcome and log-sum-exp. */
static void there_block(there_space *m, tokens q, element *out, float *lse, const run *r, int64_t first, int64_t count,
                        int64_t lines_of_keys) {
    int32_t last_seen[THERE_ROWS] __attribute__((aligned(64)));
    float inverse[THERE_ROWS], log_sum[THERE_ROWS];
    see(last_seen, r, first, count, THERE_ROWS);
    gather_rows(m->q, q, r, first, count, THERE_ROWS);
    transpose(m->q_pairs, THERE_ROWS, m->q, r->padded / 2, THERE_ROWS, r->padded / 2);
    memset(m->out, 0, r->padded * THERE_ROWS * sizeof(float));

    __m512 most[2], total[2], scale = _mm512_set1_ps(r->scale);
    __m512i seen[2];
    for (int h = 0; h < 2; h++) {
        most[h] = _mm512_set1_ps(-INFINITY), total[h] = _mm512_setzero_ps();
        seen[h] = _mm512_load_si512(last_seen + 16 * h);
    }
    int64_t end = last_seen[THERE_ROWS - 1] + 1, whole = last_seen[0] + 1;
    for (int64_t key = 0; key < end; key += THERE_KEYS) {
        int64_t n = up(least(THERE_KEYS, end - key), 32);
        for (int64_t j = 0; j < n; j += 32)
            product(m->scores + j * THERE_ROWS, THERE_ROWS, m->k + (key + j) * r->padded, r->padded, m->q_pairs,
                    2 * THERE_ROWS, r->padded / 32, 0);
        for (int64_t j = whole > key ? whole - key : 0; j < n; j++)
            for (int h = 0; h < 2; h++) {
                float *s = m->scores + j * THERE_ROWS + 16 * h;
                _mm512_storeu_ps(s, _mm512_mask_loadu_ps(_mm512_set1_ps(-INFINITY), sees(seen[h], key + j), s));
            }
        for (int h = 0; h < 2; h++) {
            __m512 now = most[h], sum = _mm512_setzero_ps();
            for (int64_t j = 0; j < n; j++) now = _mm512_max_ps(now, _mm512_loadu_ps(m->scores + j * THERE_ROWS + 16 * h));
            __m512 factor = exp_or_zero(_mm512_mul_ps(_mm512_sub_ps(most[h], now), scale));
            for (int64_t j = 0; j < n; j += 2) {
                const float *s = m->scores + j * THERE_ROWS + 16 * h;
                __m512 a = exp_or_zero(_mm512_mul_ps(_mm512_sub_ps(_mm512_loadu_ps(s), now), scale));
                __m512 b = exp_or_zero(_mm512_mul_ps(_mm512_sub_ps(_mm512_loadu_ps(s + THERE_ROWS), now), scale));
                sum = _mm512_add_ps(sum, _mm512_add_ps(a, b));
                _mm512_storeu_si512(m->weights + j * THERE_ROWS + 32 * h, rounded_pair(a, b));
            }
            most[h] = now, total[h] = _mm512_fmadd_ps(total[h], factor, sum);
            if (key)
                for (int64_t w = 0; w < r->padded; w++) {
                    float *o = m->out + w * THERE_ROWS + 16 * h;
                    _mm512_storeu_ps(o, _mm512_mul_ps(_mm512_loadu_ps(o), factor));
                }
        }
        for (int64_t w = 0; w < r->padded; w += 32)
            product(m->out + w * THERE_ROWS, THERE_ROWS, m->v_turned + w * lines_of_keys + key, lines_of_keys,
                    m->weights, 2 * THERE_ROWS, n / 32, 1);
    }
    for (int h = 0; h < 2; h++) {
        _mm512_storeu_ps(inverse + 16 * h, _mm512_div_ps(_mm512_set1_ps(1.0f), total[h]));
        _mm512_storeu_ps(log_sum + 16 * h, _mm512_mul_ps(most[h], scale));
        float sums[16];
        _mm512_storeu_ps(sums, total[h]);
        for (int i = 0; i < 16; i++) log_sum[16 * h + i] += logf(sums[i]);
    }
    scatter_rows(out, m->out, THERE_ROWS, inverse, r, first, count, m->turned);
    for (int64_t i = 0; i < count; i++) lse[place(r, first + i)] = log_sum[i];
}

typedef struct {
    element *k, *v, *k_turned;                           /* [keys][padded] twice, [padded][keys] */
    element *q, *grad, *q_columns, *grad_columns;        /* [ROWS][padded] twice, paired [padded / 2][ROWS][2] twice */
    element *q_pairs, *grad_pairs;                       /* paired [ROWS / 2][padded][2] */
    element *weights, *by_score, *by_score_pairs;        /* [KEYS][ROWS] twice, paired [KEYS / 2][ROWS][2] */
    float *scores, *by_weight, *by_q, *by_k, *by_v, *turned; /* [32][32] twice, [padded][ROWS], [keys][padded] twice */
} back_space;

/* Weights and gradients by the scores of 32 keys and 32 rows, from the two products in `scores` and `by_weight`. */
static inline void back_tile(back_space *m, const run *r, const int32_t *last_seen, const float *lse, const float *dots,
                             int64_t key, int64_t j, int64_t c) {
    __m512 scale = _mm512_set1_ps(r->scale);
    int masked = last_seen[c] < key + j + 31;
    for (int64_t i = 0; i < 32; i += 2) {
        __m512 p[2][2], d[2][2]; /* [line][half of the rows] */
        for (int line = 0; line < 2; line++)
            for (int h = 0; h < 2; h++) {
                int64_t at = (i + line) * 32 + 16 * h, row = c + 16 * h;
                __m512 x = _mm512_fmsub_ps(_mm512_loadu_ps(m->scores + at), scale, _mm512_loadu_ps(lse + row));
                /* Rounding may carry the difference a little above 0. */
                __m512 weight = exp_or_zero(_mm512_min_ps(_mm512_setzero_ps(), x));
                if (masked)
                    weight = _mm512_maskz_mov_ps(sees(_mm512_loadu_si512(last_seen + row), key + j + i + line), weight);
                p[line][h] = weight;
                d[line][h] = _mm512_mul_ps(_mm512_mul_ps(weight, scale),
                                           _mm512_sub_ps(_mm512_loadu_ps(m->by_weight + at), _mm512_loadu_ps(dots + row)));
            }
        for (int line = 0; line < 2; line++) {
            int64_t at = (j + i + line) * BACK_ROWS + c;
            _mm512_storeu_si512(m->weights + at, (__m512i)_mm512_cvtne2ps_pbh(p[line][1], p[line][0]));
            _mm512_storeu_si512(m->by_score + at, (__m512i)_mm512_cvtne2ps_pbh(d[line][1], d[line][0]));
        }
        for (int h = 0; h < 2; h++)
            _mm512_storeu_si512(m->by_score_pairs + (j + i) * BACK_ROWS + 2 * c + 32 * h,
                                rounded_pair(d[0][h], d[1][h]));
    }
}

/* Rows first .. first + count of a run: their gradient, and their share of the keys' and values'. */
static void back_block(back_space *m, tokens grad, tokens q, const float *lse, const float *dots, element *grad_q,
                       const run *r, int64_t first, int64_t count, int64_t lines_of_keys) {
    int64_t lines = up(count, 32), padded = r->padded;
    int32_t last_seen[BACK_ROWS] __attribute__((aligned(64)));
    float row_lse[BACK_ROWS] = {0}, row_dots[BACK_ROWS] = {0}, one[BACK_ROWS];
    see(last_seen, r, first, count, lines);
    for (int64_t i = 0; i < BACK_ROWS; i++) one[i] = 1.0f;
    for (int64_t i = 0; i < count; i++) row_lse[i] = lse[place(r, first + i)], row_dots[i] = dots[place(r, first + i)];
    gather_rows(m->q, q, r, first, count, lines);
    gather_rows(m->grad, grad, r, first, count, lines);
    transpose(m->q_columns, BACK_ROWS, m->q, padded / 2, lines, padded / 2);
    transpose(m->grad_columns, BACK_ROWS, m->grad, padded / 2, lines, padded / 2);
    pair_rows(m->q_pairs, m->q, lines, padded);
    pair_rows(m->grad_pairs, m->grad, lines, padded);
    memset(m->by_q, 0, padded * BACK_ROWS * sizeof(float));

    int64_t end = last_seen[lines - 1] + 1;
    for (int64_t key = 0; key < end; key += BACK_KEYS) {
        int64_t n = up(least(BACK_KEYS, end - key), 32);
        for (int64_t j = 0; j < n; j += 32)
            for (int64_t c = 0; c < lines; c += 32) {
                const int64_t at = (key + j) * padded;
                product(m->scores, 32, m->k + at, padded, m->q_columns + 2 * c, 2 * BACK_ROWS, padded / 32, 0);
                product(m->by_weight, 32, m->v + at, padded, m->grad_columns + 2 * c, 2 * BACK_ROWS, padded / 32, 0);
                back_tile(m, r, last_seen, row_lse, row_dots, key, j, c);
            }
        for (int64_t j = 0; j < n; j += 32)
            for (int64_t w = 0; w < padded; w += 32) {
                const int64_t at = (key + j) * padded + w;
                product(m->by_v + at, padded, m->weights + j * BACK_ROWS, BACK_ROWS, m->grad_pairs + 2 * w, 2 * padded,
                        lines / 32, 1);
                product(m->by_k + at, padded, m->by_score + j * BACK_ROWS, BACK_ROWS, m->q_pairs + 2 * w, 2 * padded,
                        lines / 32, 1);
            }
        for (int64_t w = 0; w < padded; w += 32)
            for (int64_t c = 0; c < lines; c += 32)
                product(m->by_q + w * BACK_ROWS + c, BACK_ROWS, m->k_turned + w * lines_of_keys + key, lines_of_keys,
                        m->by_score_pairs + 2 * c, 2 * BACK_ROWS, n / 32, 1);
    }
    scatter_rows(grad_q, m->by_q, BACK_ROWS, one, r, first, count, m->turned);
}

/* [keys][padded] -> [padded][keys], by way of `pairs`, which holds as much. */
static void turn_keys(element *to, const element *from, element *pairs, int64_t lines, int64_t padded) {
    pair_rows(pairs, from, lines, padded);
    transpose(to, lines / 2, pairs, padded, lines / 2, padded);
}

static run run_of(const int64_t *runs, int64_t task, int64_t heads, int64_t key_heads, int64_t width, int64_t causal,
                  float scale) {
    const int64_t *mine = runs + 4 * (task / key_heads);
    run r = {.first_query = mine[0], .first_key = mine[2], .keys = mine[3], .key_head = task % key_heads,
             .group = heads / key_heads, .heads = heads, .key_heads = key_heads, .width = width,
             .padded = up(width, 32), .causal = (int)causal, .scale = scale};
    return r;
}

/* The rows of one of `parts` equal parts, whole blocks each. */
static void share(int64_t rows, int64_t block, int64_t part, int64_t parts, int64_t *first, int64_t *last) {
    int64_t each = up((rows + parts - 1) / parts, block);
    *first = least(part * each, rows), *last = least((part + 1) * each, rows);
}

static int64_t most_keys(const int64_t *runs, int64_t num_runs) {
    int64_t most = 0;
    for (int64_t i = 0; i < num_runs; i++) most = runs[4 * i + 3] > most ? runs[4 * i + 3] : most;
    return most;
}

void there(const element *q,  /* [queries, H, width], tokens q_stride apart */
           const element *k,  /* [keys, K, width] */
           const element *v,  /* [keys, K, width] */
           element *out,      /* [queries, H, width] */
           float *lse,        /* [queries, H] */
           const int64_t *runs, /* [num_runs][first query, queries, first key, keys] */
           int64_t num_runs, int64_t parts, int64_t heads, int64_t key_heads, int64_t width, int64_t q_stride,
           int64_t k_stride, int64_t v_stride, int64_t causal, float scale) {
    int64_t padded = up(width, 32), lines = up(most_keys(runs, num_runs), 32);
#pragma omp parallel
    {
        there_space m = {
            .k = memory(2 * lines * padded), .v_turned = memory(2 * lines * padded),
            .q = memory(2 * THERE_ROWS * padded), .q_pairs = memory(2 * THERE_ROWS * padded),
            .weights = memory(2 * THERE_KEYS * THERE_ROWS), .scores = memory(4 * THERE_KEYS * THERE_ROWS),
            .out = memory(4 * padded * THERE_ROWS), .turned = memory(4 * 16 * padded),
        };
        element *v_rows = memory(2 * lines * padded), *pairs = memory(2 * lines * padded);
        configure();
#pragma omp for schedule(dynamic) collapse(2)
        for (int64_t task = 0; task < num_runs * key_heads; task++)
            for (int64_t part = 0; part < parts; part++) {
                run r = run_of(runs, task, heads, key_heads, width, causal, scale);
                int64_t mine = up(r.keys, 32), first, last;
                share(runs[4 * (task / key_heads) + 1] * r.group, THERE_ROWS, part, parts, &first, &last);
                if (first == last) continue;
                gather_keys(m.k, (tokens){k, k_stride}, &r, mine);
                gather_keys(v_rows, (tokens){v, v_stride}, &r, mine);
                turn_keys(m.v_turned, v_rows, pairs, mine, padded);
                for (; first < last; first += THERE_ROWS)
                    there_block(&m, (tokens){q, q_stride}, out, lse, &r, first, least(THERE_ROWS, last - first), mine);
            }
        _tile_release();
        void *all[] = {m.k, m.v_turned, m.q, m.q_pairs, m.weights, m.scores, m.out, m.turned, v_rows, pairs};
        for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
    }
}

void back(const element *grad,  /* [queries, H, width], by the outcome */
          const element *q, const element *k, const element *v, /* as there */
          const float *lse,     /* [queries, H], of the whole that these runs may be a part of */
          const float *dots,    /* [queries, H], grad . outcome, of the whole */
          element *grad_q,      /* [queries, H, width] */
          float *grad_k,        /* [parts, keys, K, width], whose sum over the parts is the gradient */
          float *grad_v,        /* [parts, keys, K, width] */
          const int64_t *runs, int64_t num_runs, int64_t parts, int64_t heads, int64_t key_heads, int64_t width,
          int64_t grad_stride, int64_t q_stride, int64_t k_stride, int64_t v_stride, int64_t keys, int64_t causal,
          float scale) {
    int64_t padded = up(width, 32), lines = up(most_keys(runs, num_runs), 32);
#pragma omp parallel
    {
        back_space m = {
            .k = memory(2 * lines * padded), .v = memory(2 * lines * padded), .k_turned = memory(2 * lines * padded),
            .q = memory(2 * BACK_ROWS * padded), .grad = memory(2 * BACK_ROWS * padded),
            .q_columns = memory(2 * BACK_ROWS * padded), .grad_columns = memory(2 * BACK_ROWS * padded),
            .q_pairs = memory(2 * BACK_ROWS * padded), .grad_pairs = memory(2 * BACK_ROWS * padded),
            .weights = memory(2 * BACK_KEYS * BACK_ROWS), .by_score = memory(2 * BACK_KEYS * BACK_ROWS),
            .by_score_pairs = memory(2 * BACK_KEYS * BACK_ROWS), .scores = memory(4 * 32 * 32),
            .by_weight = memory(4 * 32 * 32), .by_q = memory(4 * padded * BACK_ROWS),
            .by_k = memory(4 * lines * padded), .by_v = memory(4 * lines * padded), .turned = memory(4 * 16 * padded),
        };
        element *pairs = memory(2 * lines * padded);
        configure();
#pragma omp for schedule(dynamic) collapse(2)
        for (int64_t task = 0; task < num_runs * key_heads; task++)
            for (int64_t part = 0; part < parts; part++) {
                run r = run_of(runs, task, heads, key_heads, width, causal, scale);
                int64_t mine = up(r.keys, 32), first, last;
                share(runs[4 * (task / key_heads) + 1] * r.group, BACK_ROWS, part, parts, &first, &last);
                memset(m.by_k, 0, 4 * mine * padded);
                memset(m.by_v, 0, 4 * mine * padded);
                if (first < last) {
                    gather_keys(m.k, (tokens){k, k_stride}, &r, mine);
                    gather_keys(m.v, (tokens){v, v_stride}, &r, mine);
                    turn_keys(m.k_turned, m.k, pairs, mine, padded);
                }
                for (; first < last; first += BACK_ROWS)
                    back_block(&m, (tokens){grad, grad_stride}, (tokens){q, q_stride}, lse, dots, grad_q, &r, first,
                               least(BACK_ROWS, last - first), mine);
                for (int64_t i = 0; i < r.keys; i++) {
                    int64_t to = ((part * keys + r.first_key + i) * key_heads + r.key_head) * width;
                    memcpy(grad_k + to, m.by_k + i * padded, width * sizeof(float));
                    memcpy(grad_v + to, m.by_v + i * padded, width * sizeof(float));
                }
            }
        _tile_release();
        void *all[] = {m.k, m.v, m.k_turned, m.q, m.grad, m.q_columns, m.grad_columns, m.q_pairs, m.grad_pairs,
                       m.weights, m.by_score, m.by_score_pairs, m.scores, m.by_weight, m.by_q, m.by_k, m.by_v,
                       m.turned, pairs};
        for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
    }
}

#else

/* Not such a processor, or not such a compiler: never called. */
int enable(void) { return 1; }
void there(void) { abort(); }
void back(void) { abort(); }

#endif
