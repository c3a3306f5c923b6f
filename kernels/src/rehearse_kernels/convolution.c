/* Convolutions of images with few channels, on one core: in bfloat16 with sums in float32, or entirely in float32.

   In the channels-last layout, a processor with registers of 16 numbers is half idle with 20 channels. These kernels
   fill the registers with neighboring pixels instead. They copy the images into planes of words: one float32 channel per
   plane, or a pair of bfloat16 channels, which the processor multiplies in pairs. In a plane, a zero follows every line
   of pixels, and a line of zeros follows every image. So a neighbor is at a fixed distance from every pixel, and is zero
   outside the image.

   A convolution of stride s relates a fine grid of pixels to a coarse grid, which is s times smaller. The fine grid has
   separate planes for each of its s × s parities, with the pixels of the coarse grid: fine[s · i + parity]. So

       coarse[o] = Σ fine[i] · weight[o, i]     a convolution; the gradient of a transposed one
       fine[i] = Σ coarse[o] · weight[o, i]     a transposed convolution; the gradient of a plain one
       weight[o, i] = Σ coarse[o] · fine[i]     the gradient of the weight, for both

   are the same loops over pixels, with different planes. The images are processed in strips, so that the planes stay in
   the caches. */

#include <immintrin.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef uint32_t word; /* of a pixel: one float32 channel, or two bfloat16 channels */
typedef uint16_t half;

enum {
    LANES = 16,    /* words in one register */
    GROUP = 10,    /* output channels of one loop: two vectors of pixels for each of them fill the registers */
    TILE_A = 4,    /* the same for the gradient of the weight: coarse channels, */
    TILE_B = 5,    /* and neighbors in the fine channels */
    STRIP = 1024,  /* pixels of a strip that holds several small images */
    AHEAD = 128,   /* pixels by which a prefetch precedes a load */
    MOST_SIDE = 4, /* longest side of a kernel */
    MOST_PARITIES = 4
};

typedef struct {
    long images, height, width; /* size of the coarse grid */
    long stride, kernel, padding;
    long coarse, fine;                                   /* numbers of channels */
    long weight_coarse, weight_fine, weight_y, weight_x; /* strides of the weight, in numbers */
    long full;                                           /* float32 instead of bfloat16 */
} Shape;

/* ------------------------------------------------------------------------------------------------------- planes */

typedef struct {
    long images; /* images in a strip */
    long pitch;  /* distance from one line of pixels to the next */
    long first;  /* index of the first pixel */
    long length; /* words in a plane */
} Grid;

static Grid grid_of(const Shape *s) {
    Grid g;
    g.pitch = s->width + 1;
    long image = (s->height + 1) * g.pitch;
    g.images = STRIP / image > 1 ? STRIP / image : 1;
    if (g.images > s->images) g.images = s->images;
    g.first = g.pitch + 1;
    g.length = (g.first + g.images * image + g.pitch + 1 + 8 * LANES) / LANES * LANES;
    return g;
}

/* Count the words from the first to the last pixel, including the zeros between. */
static long pixels(const Shape *s, const Grid *g, long images) {
    return (images * (s->height + 1) - 1) * g->pitch;
}

static long words(const Shape *s, long channels) { return s->full ? channels : (channels + 1) / 2; }

static long halves(const Shape *s, long channels) { return s->full ? 2 * channels : channels; }

static void *zeros(long count, long size) {
    size_t bytes = (size_t)(count * size + 63) / 64 * 64;
    void *made = aligned_alloc(64, bytes);
    return made ? memset(made, 0, bytes) : NULL;
}

static inline __attribute__((always_inline)) void transpose(__m512i r[16]) {
    __m512i t[16];
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
    }
    for (int i = 0; i < 8; i++) {
        r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
        r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
    }
}

static inline __mmask32 first(long count) { return count >= 32 ? ~(__mmask32)0 : ((__mmask32)1 << count) - 1; }

/* Copy one line of `width` pixels into the planes. A pixel has `channels` halves and is `apart` halves from the next. */
static void line_to_planes(const half *row, long width, long apart, long channels, word *to, long length) {
    for (long x = 0; x < width; x += LANES)
        for (long c = 0; c < channels; c += 2 * LANES) {
            __m512i r[LANES];
            long some = width - x < LANES ? width - x : LANES;
            for (long i = 0; i < some; i++) _mm_prefetch((const char *)(row + (x + i + AHEAD) * apart + c), _MM_HINT_T0);
            for (long i = 0; i < LANES; i++)
                r[i] = i < some ? _mm512_maskz_loadu_epi16(first(channels - c), row + (x + i) * apart + c)
                                : _mm512_setzero_si512();
            transpose(r);
            for (long i = 0; i < LANES && c + 2 * i < channels; i++)
                _mm512_mask_storeu_epi32(to + (c / 2 + i) * length + x, (__mmask16)first(some), r[i]);
        }
}

static void planes_to_line(const word *from, long length, long channels, half *row, long width, long apart) {
    for (long x = 0; x < width; x += LANES)
        for (long c = 0; c < channels; c += 2 * LANES) {
            __m512i r[LANES];
            for (long i = 0; i < LANES; i++)
                r[i] = c + 2 * i < channels ? _mm512_loadu_si512(from + (c / 2 + i) * length + x) : _mm512_setzero_si512();
            transpose(r);
            for (long i = 0; i < LANES && x + i < width; i++)
                _mm512_mask_storeu_epi16(row + (x + i) * apart + c, first(channels - c), r[i]);
        }
}

/* How images lie in memory: the coarse grid, or one parity of the fine grid. */
typedef struct {
    long channels, apart, row, image, start; /* in halves */
} View;

static View coarse_view(const Shape *s) {
    long c = halves(s, s->coarse);
    View v = {c, c, c * s->width, c * s->width * s->height, 0};
    return v;
}

static View fine_view(const Shape *s, long parity) {
    long c = halves(s, s->fine), line = c * s->width * s->stride;
    View v = {c, c * s->stride, line * s->stride, line * s->stride * s->height,
              parity / s->stride * line + parity % s->stride * c};
    return v;
}

static void to_planes(const Shape *s, const Grid *g, View v, const half *images, long start, long count, word *to) {
    for (long n = 0; n < count; n++)
        for (long y = 0; y < s->height; y++)
            line_to_planes(images + v.start + (start + n) * v.image + y * v.row, s->width, v.apart, v.channels,
                          to + g->first + (n * (s->height + 1) + y) * g->pitch, g->length);
}

static void from_planes(const Shape *s, const Grid *g, View v, const word *from, half *images, long start, long count) {
    for (long n = 0; n < count; n++)
        for (long y = 0; y < s->height; y++)
            planes_to_line(from + g->first + (n * (s->height + 1) + y) * g->pitch, g->length, v.channels,
                          images + v.start + (start + n) * v.image + y * v.row, s->width, v.apart);
}

static void fine_to_planes(const Shape *s, const Grid *g, const half *images, long start, long count, word *to) {
    for (long p = 0; p < s->stride * s->stride; p++)
        to_planes(s, g, fine_view(s, p), images, start, count, to + p * words(s, s->fine) * g->length);
}

/* --------------------------------------------------------------------------------------------------------- sums */

static inline __m512i two(__m512 low, __m512 high) {
    __m512i l = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(low));
    __m512i h = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(high));
    return _mm512_or_si512(l, _mm512_slli_epi32(h, 16));
}

/* Compute out = bias + Σ_t weight[t] · from[offset[t]] for `outs` channels and `vectors` · 16 pixels. */
static inline __attribute__((always_inline)) void sum(const int full, const int outs, const int vectors, const word *from,
                                                      const int32_t *offset, long terms, const word *weight,
                                                      const float *bias, word *to, long length) {
    __m512 total[GROUP][4];
    for (int o = 0; o < outs; o++)
        for (int v = 0; v < vectors; v++) total[o][v] = _mm512_set1_ps(bias[o]);
    for (long t = 0; t < terms; t++, weight += outs) {
        __m512i pixel[4];
        for (int v = 0; v < vectors; v++) pixel[v] = _mm512_loadu_si512(from + offset[t] + v * LANES);
        for (int o = 0; o < outs; o++) {
            __m512i w = _mm512_set1_epi32((int)weight[o]);
            for (int v = 0; v < vectors; v++)
                total[o][v] = full ? _mm512_fmadd_ps((__m512)pixel[v], (__m512)w, total[o][v])
                                   : _mm512_dpbf16_ps(total[o][v], (__m512bh)pixel[v], (__m512bh)w);
        }
    }
    for (int v = 0; v < vectors; v++)
        if (full)
            for (int o = 0; o < outs; o++) _mm512_storeu_ps(to + o * length + v * LANES, total[o][v]);
        else
            for (int o = 0; o < outs; o += 2)
                _mm512_storeu_si512(to + o / 2 * length + v * LANES,
                                    two(total[o][v], o + 1 < outs ? total[o + 1][v] : _mm512_setzero_ps()));
}

#define SUM(outs, vectors) \
    case outs: \
        for (long x = 0; x < count; x += vectors * LANES) \
            if (full) \
                sum(1, outs, vectors, from + x, offset, terms, weight, bias, to + x, length); \
            else \
                sum(0, outs, vectors, from + x, offset, terms, weight, bias, to + x, length); \
        break;

static void sums(long full, long outs, const word *from, const int32_t *offset, long terms, const word *weight,
                 const float *bias, word *to, long length, long count) {
    switch (outs) {
        SUM(10, 2) SUM(9, 2) SUM(8, 2) SUM(7, 2) SUM(6, 3) SUM(5, 4) SUM(4, 4) SUM(3, 4) SUM(2, 4) SUM(1, 4)
    }
}

/* The terms of a sum: their distances from the output pixel, and their weights in the order of the loops. */
typedef struct {
    long count;
    int32_t *offset;
    word *weight;
} Terms;

/* How to compute the planes of one grid from those of the other: coarse from fine, or each parity of fine from coarse. */
typedef struct {
    long outs, parities;
    float *bias;
    word *to;
    Terms terms[MOST_PARITIES];
} Plan;

static long parity(const Shape *s, long tap) { return ((tap - s->padding) % s->stride + s->stride) % s->stride; }

static long shift(const Shape *s, long tap) { return (tap - s->padding - parity(s, tap)) / s->stride; }

static word packed(const Shape *s, const float *weight, long stride, long left) {
    word bits;
    if (s->full) return memcpy(&bits, weight, sizeof bits), bits;
    __m128 pair = _mm_setr_ps(weight[0], left > 1 ? weight[stride] : 0, 0, 0);
    return (word)_mm_cvtsi128_si32((__m128i)_mm_cvtneps_pbh(pair));
}

static int make_plan(Plan *plan, const Shape *s, const Grid *g, long to_fine, const float *weight, const float *bias) {
    long ins = to_fine ? s->coarse : s->fine, outs = to_fine ? s->fine : s->coarse;
    long in_stride = to_fine ? s->weight_coarse : s->weight_fine, out_stride = to_fine ? s->weight_fine : s->weight_coarse;
    long step = s->full ? 1 : 2, each = words(s, ins), taps = s->kernel * s->kernel;
    memset(plan, 0, sizeof *plan);
    plan->outs = outs;
    plan->parities = to_fine ? s->stride * s->stride : 1;
    plan->bias = zeros(outs, sizeof(float));
    plan->to = zeros(words(s, outs) * g->length, sizeof(word));
    if (!plan->bias || !plan->to) return 0;
    if (bias) memcpy(plan->bias, bias, sizeof(float) * (size_t)outs);
    for (long p = 0; p < plan->parities; p++) {
        Terms *t = &plan->terms[p];
        const float *corner[MOST_SIDE * MOST_SIDE];
        long count = 0;
        t->offset = malloc(sizeof(int32_t) * (size_t)(taps * each));
        t->weight = malloc(sizeof(word) * (size_t)(taps * each * outs));
        if (!t->offset || !t->weight) return 0;
        for (long y = 0; y < s->kernel; y++)
            for (long x = 0; x < s->kernel; x++) {
                long own = parity(s, y) * s->stride + parity(s, x), away = shift(s, y) * g->pitch + shift(s, x);
                if (to_fine && own != p) continue;
                corner[count++] = weight + y * s->weight_y + x * s->weight_x;
                for (long c = 0; c < each; c++)
                    t->offset[t->count++] = (int32_t)(((to_fine ? 0 : own * each) + c) * g->length + (to_fine ? -away : away));
            }
        word *to = t->weight;
        for (long o = 0; o < outs; o += GROUP)
            for (long k = 0; k < count; k++)
                for (long i = 0; i < ins; i += step)
                    for (long out = o; out < outs && out < o + GROUP; out++)
                        *to++ = packed(s, corner[k] + out * out_stride + i * in_stride, in_stride, ins - i);
    }
    return 1;
}

static void free_plan(Plan *plan) {
    for (long p = 0; p < plan->parities; p++) free(plan->terms[p].offset), free(plan->terms[p].weight);
    free(plan->bias), free(plan->to);
}

static void run_plan(const Plan *plan, const Shape *s, const Grid *g, long to_fine, const word *from, half *images,
                      long start, long count) {
    for (long p = 0; p < plan->parities; p++) {
        const Terms *t = &plan->terms[p];
        for (long o = 0; o < plan->outs; o += GROUP)
            sums(s->full, plan->outs - o < GROUP ? plan->outs - o : GROUP, from + g->first, t->offset, t->count,
                 t->weight + t->count * o, plan->bias + o, plan->to + words(s, o) * g->length + g->first, g->length,
                 pixels(s, g, count));
        from_planes(s, g, to_fine ? fine_view(s, p) : coarse_view(s), plan->to, images, start, count);
    }
}

/* Compute the images `made` from the images `given`: fine from coarse if `to_fine`, otherwise coarse from fine.
   Return 0, or 1 if there is not enough memory. */
int convolve(const Shape *s, const half *given, const float *weight, const float *bias, half *made, long to_fine) {
    Grid g = grid_of(s);
    Plan plan;
    long planes = to_fine ? words(s, s->coarse) : s->stride * s->stride * words(s, s->fine);
    word *from = zeros(planes * g.length, sizeof(word));
    int fits = make_plan(&plan, s, &g, to_fine, weight, bias) && from;
    for (long n = 0; fits && n < s->images; n += g.images) {
        long some = s->images - n < g.images ? s->images - n : g.images;
        if (to_fine)
            to_planes(s, &g, coarse_view(s), given, n, some, from);
        else
            fine_to_planes(s, &g, given, n, some, from);
        run_plan(&plan, s, &g, to_fine, from, made, n, some);
    }
    free_plan(&plan), free(from);
    return !fits;
}

/* ---------------------------------------------------------------------------------------------------- gradients */

/* Split planes of channel pairs into planes of single bfloat16 channels: the gradient of the weight multiplies pairs of
   pixels instead of pairs of channels. */
static void single(const word *from, long planes, long length, half *to) {
    for (long c = 0; c < planes; c++, from += length, to += 2 * length)
        for (long x = 0; x < length; x += LANES) {
            __m512i both = _mm512_load_si512(from + x);
            _mm256_store_si256((__m256i *)(to + x), _mm512_cvtepi32_epi16(both));
            _mm256_store_si256((__m256i *)(to + length + x), _mm512_cvtepi32_epi16(_mm512_srli_epi32(both, 16)));
        }
}

static inline void products(const half *const a[TILE_A], const half *const b[TILE_B], long count, __m512 *total) {
    __m512 sum[TILE_A][TILE_B];
    for (int i = 0; i < TILE_A; i++)
        for (int j = 0; j < TILE_B; j++) sum[i][j] = total[i * TILE_B + j];
    for (long x = 0; x < count; x += 2 * LANES) {
        __m512bh one[TILE_A];
        for (int i = 0; i < TILE_A; i++) one[i] = (__m512bh)_mm512_loadu_si512(a[i] + x);
        for (int j = 0; j < TILE_B; j++) {
            __m512bh other = (__m512bh)_mm512_loadu_si512(b[j] + x);
            for (int i = 0; i < TILE_A; i++) sum[i][j] = _mm512_dpbf16_ps(sum[i][j], one[i], other);
        }
    }
    for (int i = 0; i < TILE_A; i++)
        for (int j = 0; j < TILE_B; j++) total[i * TILE_B + j] = sum[i][j];
}

/* The gradient of the weight, in tiles. Every number has 16 partial sums, which are added after the last strip. */
typedef struct {
    long tiles_a, tiles_b;
    long others; /* numbers of the weight for one coarse channel, each for a neighbor in a fine channel */
    half *a, *b;
    long *where, *number;
    __m512 *totals;
} Tiles;

static int make_tiles(Tiles *t, const Shape *s, const Grid *g) {
    long taps = s->kernel * s->kernel, fine = words(s, s->fine), parities = s->stride * s->stride;
    t->others = s->fine * taps;
    t->tiles_a = (s->coarse + TILE_A - 1) / TILE_A;
    t->tiles_b = (t->others + TILE_B - 1) / TILE_B;
    t->a = zeros(2 * words(s, s->coarse) * g->length, sizeof(half));
    t->b = zeros(parities * 2 * fine * g->length, sizeof(half));
    t->totals = zeros(t->tiles_a * t->tiles_b * TILE_A * TILE_B, sizeof(__m512));
    t->where = zeros(t->tiles_b * TILE_B, sizeof(long));
    t->number = zeros(t->tiles_b * TILE_B, sizeof(long));
    if (!t->a || !t->b || !t->totals || !t->where || !t->number) return 0;
    for (long i = 0; i < t->tiles_b * TILE_B; i++) {
        long k = i < t->others ? i : 0, c = k / taps, y = k % taps / s->kernel, x = k % s->kernel;
        long plane = (parity(s, y) * s->stride + parity(s, x)) * 2 * fine + c;
        t->where[i] = plane * g->length + g->first + shift(s, y) * g->pitch + shift(s, x);
        t->number[i] = c * s->weight_fine + y * s->weight_y + x * s->weight_x;
    }
    return 1;
}

static void add_strip(Tiles *t, const Shape *s, const Grid *g, const word *coarse, const word *fine, long images) {
    single(coarse, words(s, s->coarse), g->length, t->a);
    single(fine, s->stride * s->stride * words(s, s->fine), g->length, t->b);
    for (long i = 0; i < t->tiles_a; i++)
        for (long j = 0; j < t->tiles_b; j++) {
            const half *a[TILE_A], *b[TILE_B];
            for (long k = 0; k < TILE_A; k++) {
                long channel = i * TILE_A + k < s->coarse ? i * TILE_A + k : 0;
                a[k] = t->a + channel * g->length + g->first;
            }
            for (long k = 0; k < TILE_B; k++) b[k] = t->b + t->where[j * TILE_B + k];
            products(a, b, pixels(s, g, images), t->totals + (i * t->tiles_b + j) * TILE_A * TILE_B);
        }
}

static void store_weight_gradient(const Tiles *t, const Shape *s, float *gradient) {
    for (long i = 0; i < s->coarse; i++)
        for (long j = 0; j < t->others; j++) {
            long tile = i / TILE_A * t->tiles_b + j / TILE_B, place = i % TILE_A * TILE_B + j % TILE_B;
            gradient[i * s->weight_coarse + t->number[j]] = _mm512_reduce_add_ps(t->totals[tile * TILE_A * TILE_B + place]);
        }
}

static void free_tiles(Tiles *t) { free(t->a), free(t->b), free(t->totals), free(t->where), free(t->number); }

/* Compute gradients in bfloat16. One of `coarse` and `fine` is the input of the convolution (`given_coarse` says which),
   the other is the gradient of its output. `by_given` receives the gradient of the input and `by_weight` that of the
   weight; each of them may be NULL. Return 0, or 1 if there is not enough memory. */
int gradients(const Shape *s, const half *coarse, const half *fine, const float *weight, half *by_given, float *by_weight,
              long given_coarse) {
    Grid g = grid_of(s);
    Plan plan;
    Tiles tiles;
    memset(&plan, 0, sizeof plan), memset(&tiles, 0, sizeof tiles);
    long wide = words(s, s->coarse) * g.length, parities = s->stride * s->stride;
    word *a = zeros(wide, sizeof(word)), *b = zeros(parities * words(s, s->fine) * g.length, sizeof(word));
    int fits = a && b && (!by_given || make_plan(&plan, s, &g, !given_coarse, weight, NULL)) &&
               (!by_weight || make_tiles(&tiles, s, &g));
    for (long n = 0; fits && n < s->images; n += g.images) {
        long some = s->images - n < g.images ? s->images - n : g.images;
        if (some < g.images) memset(a, 0, sizeof(word) * (size_t)wide); /* clear what the previous strip left */
        if (by_weight || !given_coarse) to_planes(s, &g, coarse_view(s), coarse, n, some, a);
        if (by_weight || given_coarse) fine_to_planes(s, &g, fine, n, some, b);
        if (by_given) run_plan(&plan, s, &g, !given_coarse, given_coarse ? b : a, by_given, n, some);
        if (by_weight) add_strip(&tiles, s, &g, a, b, some);
    }
    if (fits && by_weight) store_weight_gradient(&tiles, s, by_weight);
    free_plan(&plan), free_tiles(&tiles), free(a), free(b);
    return !fits;
}
