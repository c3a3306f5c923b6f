/* Batch-norm of channels-last images in bfloat16, on one core, optionally together with the sum at the end of a residual
   block and with the ReLU that follows.

       y = max(weight · (x − mean) / √(variance + ε) + bias + added, 0)

   The numbers are processed in the order in which they lie in memory, even if the channels do not fill a register: after
   lcm(channels, 16) numbers, which are called a line here, the same channels are in the same lanes again. */

#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef uint16_t bfloat16;

enum {
    LANES = 16,
    TRIED = 64,  /* lines from which the mean is estimated */
    MANY = 2048, /* lines that are summed in float32 */
    AHEAD = 1024 /* numbers by which a prefetch precedes a load: the images may no longer be in the caches */
};

typedef struct {
    long pixels, channels;
    long relu;
    double epsilon;
} Norm;

static long line_of(long channels) {
    long line = channels;
    while (line % LANES) line += channels;
    return line;
}

static float *lines(long count, long line) { return aligned_alloc(64, sizeof(float) * (size_t)(count * line)); }

static inline __m512 loaded(const bfloat16 *from, __mmask16 some) {
    _mm_prefetch((const char *)(from + AHEAD), _MM_HINT_T0);
    return (__m512)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(some, from)), 16);
}

static inline void stored(bfloat16 *to, __mmask16 some, __m512 values) {
    _mm256_mask_storeu_epi16(to, some, (__m256i)_mm512_cvtneps_pbh(values));
}

static inline __m512 before_relu(__m512 x, const float *scale, const float *offset, const bfloat16 *added, __mmask16 some) {
    __m512 value = _mm512_fmadd_ps(x, _mm512_load_ps(scale), _mm512_load_ps(offset));
    return added ? _mm512_add_ps(value, loaded(added, some)) : value;
}

/* Run `body` for 16 numbers at a time, from `first`, the start of a line, to `end`. `at` is their index, `lane` their
   place in the line, and `some` the mask of those that exist. */
#define EACH(first, end, line, body) \
    for (long begin = (first), stop = (end); begin < stop; begin += (line)) { \
        long most = stop - begin < (line) ? stop - begin : (line); \
        for (long lane = 0; lane < most; lane += LANES) { \
            long at = begin + lane; \
            __mmask16 some = most - lane < LANES ? (__mmask16)((1u << (most - lane)) - 1) : (__mmask16)0xffff; \
            body \
        } \
    }

/* Add the float32 sums of at most MANY lines to the totals, which are double, and reset them. */
static void gather(float *sums, long line, long channels, double *totals) {
    for (long i = 0; i < line; i++) {
        totals[i % channels] += sums[i];
        sums[i] = 0;
    }
}

/* Estimate the mean from lines all over the images. It is subtracted before squaring, so that the squares stay small. The
   estimate is rounded to bfloat16, so that the differences are exact. */
static void estimate(const bfloat16 *x, long total, long line, long channels, float *sum, double *mean, float *about) {
    long count = 0, step = total / line / TRIED > 0 ? total / line / TRIED * line : line;
    for (long start = 0; start < total && count < TRIED; start += step, count++)
        EACH(start, start + line < total ? start + line : total, line, {
            _mm512_store_ps(sum + lane, _mm512_add_ps(_mm512_load_ps(sum + lane), loaded(x + at, some)));
        })
    gather(sum, line, channels, mean);
    for (long i = 0; i < line; i++) {
        long numbers = count * line < total ? count * line : total;
        float value = (float)(mean[i % channels] * (double)channels / (double)numbers);
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        bits &= 0xffff0000;
        memcpy(about + i, &bits, sizeof bits);
    }
}

/* Compute y and, for the gradient, the mean and 1 / √(variance + ε) of each channel. `variance` is the unbiased one.
   Return 0, or 1 if there is not enough memory. */
int normalize(const Norm *n, const bfloat16 *x, const bfloat16 *added, const float *weight, const float *bias,
              bfloat16 *y, float *mean, float *inverse, float *variance) {
    long c = n->channels, line = line_of(c), total = n->pixels * c;
    float *scratch = lines(5, line);
    double *totals = calloc((size_t)(3 * c), sizeof(double));
    if (!scratch || !totals) return free(scratch), free(totals), 1;
    float *about = scratch, *sum = about + line, *square = sum + line, *scale = square + line, *offset = scale + line;
    double *sums = totals + c, *squares = sums + c;
    for (long i = 0; i < line; i++) sum[i] = square[i] = 0;
    estimate(x, total, line, c, sum, totals, about);
    for (long start = 0; start < total; start += MANY * line) {
        EACH(start, start + MANY * line < total ? start + MANY * line : total, line, {
            __m512 far = _mm512_maskz_sub_ps(some, loaded(x + at, some), _mm512_load_ps(about + lane));
            _mm512_store_ps(sum + lane, _mm512_add_ps(_mm512_load_ps(sum + lane), far));
            _mm512_store_ps(square + lane, _mm512_fmadd_ps(far, far, _mm512_load_ps(square + lane)));
        })
        gather(sum, line, c, sums), gather(square, line, c, squares);
    }
    for (long i = 0; i < c; i++) {
        double pixels = (double)n->pixels, s = sums[i] / pixels, spread = squares[i] / pixels - s * s;
        if (spread < 0) spread = 0;
        mean[i] = (float)(about[i] + s);
        inverse[i] = (float)(1 / sqrt(spread + n->epsilon));
        variance[i] = (float)(spread * pixels / (pixels - 1));
    }
    for (long i = 0; i < line; i++) {
        scale[i] = weight[i % c] * inverse[i % c];
        offset[i] = bias[i % c] - mean[i % c] * scale[i];
    }
    __m512 least = _mm512_set1_ps(n->relu ? 0 : -INFINITY);
    EACH(0, total, line, {
        __m512 value = before_relu(loaded(x + at, some), scale + lane, offset + lane, added ? added + at : NULL, some);
        stored(y + at, some, _mm512_max_ps(least, value)); /* if one of the two is NaN, max returns the second */
    })
    free(scratch), free(totals);
    return 0;
}

/* Compute the gradients of x, added, weight and bias from the gradient of y. It is zero where the ReLU returned zero.
   Without a ReLU the gradient of added equals that of y, and by_added is not written. Return 0, or 1 if there is not
   enough memory. */
int normalize_gradient(const Norm *n, const bfloat16 *gradient, const bfloat16 *x, const bfloat16 *added,
                       const float *weight, const float *bias, const float *mean, const float *inverse, bfloat16 *by_x,
                       bfloat16 *by_added, float *by_weight, float *by_bias) {
    long c = n->channels, line = line_of(c), total = n->pixels * c;
    float *scratch = lines(6, line);
    double *totals = calloc((size_t)(2 * c), sizeof(double));
    if (!scratch || !totals) return free(scratch), free(totals), 1;
    float *about = scratch, *scale = about + line, *offset = scale + line, *sum = offset + line;
    float *product = sum + line, *slope = product + line;
    for (long i = 0; i < line; i++) {
        about[i] = mean[i % c];
        scale[i] = weight[i % c] * inverse[i % c];
        offset[i] = bias[i % c] - mean[i % c] * scale[i];
        sum[i] = product[i] = 0;
    }
    __m512 zero = _mm512_setzero_ps();
#define THROUGH(value) \
    (n->relu ? _mm512_mask_cmp_ps_mask( \
                   some, before_relu(value, scale + lane, offset + lane, added ? added + at : NULL, some), zero, _CMP_NLE_UQ) \
             : some)
    for (long start = 0; start < total; start += MANY * line) {
        EACH(start, start + MANY * line < total ? start + MANY * line : total, line, {
            __m512 value = loaded(x + at, some);
            __m512 g = _mm512_maskz_mov_ps(THROUGH(value), loaded(gradient + at, some));
            _mm512_store_ps(sum + lane, _mm512_add_ps(_mm512_load_ps(sum + lane), g));
            __m512 far = _mm512_sub_ps(value, _mm512_load_ps(about + lane));
            _mm512_store_ps(product + lane, _mm512_fmadd_ps(g, far, _mm512_load_ps(product + lane)));
        })
        gather(sum, line, c, totals), gather(product, line, c, totals + c);
    }
    for (long i = 0; i < c; i++) {
        by_bias[i] = (float)totals[i];
        by_weight[i] = (float)(totals[c + i] * inverse[i]);
    }
    float *level = sum; /* reused, since the sums are no longer needed: by_x = scale · g + slope · x + level */
    for (long i = 0; i < line; i++) {
        long k = i % c;
        slope[i] = -scale[i] * inverse[k] * by_weight[k] / (float)n->pixels;
        level[i] = -scale[i] * by_bias[k] / (float)n->pixels - slope[i] * mean[k];
    }
    EACH(0, total, line, {
        __m512 value = loaded(x + at, some);
        __m512 g = _mm512_maskz_mov_ps(THROUGH(value), loaded(gradient + at, some));
        if (n->relu && added) stored(by_added + at, some, g);
        __m512 rest = _mm512_fmadd_ps(value, _mm512_load_ps(slope + lane), _mm512_load_ps(level + lane));
        stored(by_x + at, some, _mm512_fmadd_ps(g, _mm512_load_ps(scale + lane), rest));
    })
    free(scratch), free(totals);
    return 0;
}
