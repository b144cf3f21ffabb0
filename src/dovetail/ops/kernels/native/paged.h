// SPDX-License-Identifier: Apache-2.0
// Attention to keys and values in pages, read where they lie.
//
// Each query goes through its keys in blocks of kBlock places, counted from the first place of the sequence, so that
// what it gets depends neither on the other queries of a call nor on how a prompt was cut.
//
// Shape letters: B batch, T queries, H query heads, G key heads, R = H / G, K key dim, V value dim, P pages, L tokens
// of a page, N pages of a row.
#pragma once

#include <algorithm>
#include <cmath>

#include "pool.h"
#include "vector.h"

namespace dovetail {

constexpr int kBlock = 64;  // Keys whose scores are made before they are used.
constexpr int kHeads = 4;   // Heads of a group that share what is read of values.
constexpr int kTimes = 8;   // Queries of a part, one after the other.

struct Paged {
  const float *q, *k, *v, *sinks;  // [B, T, H, K], [P, L, G, K], [P, L, G, V], [H] or null.
  const int32_t *table, *index;    // [B, N], [B or 1, T].
  float* out;                      // [B, T, H, V].
  int64_t batch, time, heads, groups, key_dim, value_dim, page, width, index_rows, window;
  float scale, soft_cap;
};

// Products of kH queries `[kH, K]` with kWidth keys: those of half of the keys at a time, so that sums stay in registers.
template <int kH>
inline __attribute__((always_inline)) void dots(const float* q, const float* const* keys, int64_t dim, Vector* found) {
  constexpr int kHalf = kWidth / 2;
  Vector halves[kH][2];
#pragma GCC unroll 2
  for (int half = 0; half < 2; half++) {
    Vector sums[kH][kHalf];
    for (int h = 0; h < kH; h++)
      for (int i = 0; i < kHalf; i++) sums[h][i] = Vector{};
    const float* const* some = keys + half * kHalf;
    for (int64_t d = 0; d < dim; d += kWidth) {
      Vector parts[kH];
#pragma GCC unroll 4
      for (int h = 0; h < kH; h++) parts[h] = load(q + h * dim + d);
#pragma GCC unroll 8
      for (int i = 0; i < kHalf; i++) {
        const Vector key = load(some[i] + d);
#pragma GCC unroll 4
        for (int h = 0; h < kH; h++) sums[h][i] = fma(parts[h], key, sums[h][i]);
      }
    }
#pragma GCC unroll 4
    for (int h = 0; h < kH; h++) halves[h][half] = sums_of<kHalf>(sums[h]);
  }
#pragma GCC unroll 4
  for (int h = 0; h < kH; h++) found[h] = folded<kHalf>(halves[h][0], halves[h][1]);
}

// Scores of kH heads of one query with the keys of a block; places below `low` and from `high` on get -inf.
template <int kH>
void score(const Paged& in, const float* q, const float* const* keys, int64_t low, int64_t high,
           float (*scores)[kBlock]) {
  for (int64_t first = 0; first < kBlock; first += kWidth) {
    Vector found[kH];
    for (int h = 0; h < kH; h++) found[h] = splat(-INFINITY);
    if (first < high && first + kWidth > low) {
      dots<kH>(q, keys + first, in.key_dim, found);
      for (int h = 0; h < kH; h++) {
        found[h] *= in.scale;
        if (in.soft_cap > 0)
          for (int i = 0; i < kWidth; i++) found[h][i] = in.soft_cap * std::tanh(found[h][i] / in.soft_cap);
        if (first < low || first + kWidth > high)
          for (int i = 0; i < kWidth; i++)
            if (first + i < low || first + i >= high) found[h][i] = -INFINITY;
      }
    }
    for (int h = 0; h < kH; h++) store(scores[h] + first, found[h]);
  }
}

// Adds values, weighted, to kH sums `[kH, V]` that were scaled before.
template <int kH>
void add_values(const Paged& in, const float* const* values, int64_t low, int64_t high, const float (*weights)[kBlock],
                const float* scales, float* sums) {
  constexpr int kVectors = 4;
  for (int64_t d = 0; d < in.value_dim; d += kVectors * kWidth) {
    const int count = static_cast<int>(std::min<int64_t>(kVectors, (in.value_dim - d) / kWidth));
    auto some = [&](auto many) {
      constexpr int kMany = decltype(many)::value;
      Vector kept[kH][kMany];
      for (int h = 0; h < kH; h++)
        for (int c = 0; c < kMany; c++) kept[h][c] = load(sums + h * in.value_dim + d + c * kWidth) * scales[h];
      for (int64_t s = low; s < high; s++) {
        Vector here[kMany];
        for (int c = 0; c < kMany; c++) here[c] = load(values[s] + d + c * kWidth);
        for (int h = 0; h < kH; h++) {
          const Vector weight = splat(weights[h][s]);
          for (int c = 0; c < kMany; c++) kept[h][c] = fma(weight, here[c], kept[h][c]);
        }
      }
      for (int h = 0; h < kH; h++)
        for (int c = 0; c < kMany; c++) store(sums + h * in.value_dim + d + c * kWidth, kept[h][c]);
    };
    if (count == 4) some(std::integral_constant<int, 4>());
    else if (count == 3) some(std::integral_constant<int, 3>());
    else if (count == 2) some(std::integral_constant<int, 2>());
    else some(std::integral_constant<int, 1>());
  }
}

// What one query has so far: of kH heads of a group.
template <int kH>
struct Sums {
  int64_t begin, end;  // The places that it sees.
  const float* q;
  float* out;  // [kH, V]: values, weighted.
  float tops[kH], totals[kH];
};

// Takes a block of keys and values into what a query has, places `low` to `high` of it.
template <int kH>
void take(const Paged& in, const float* const* keys, const float* const* values, int64_t low, int64_t high,
          Sums<kH>& sums) {
  float scales[kH];
  alignas(64) float weights[kH][kBlock];
  constexpr int kTogether = kH == 4 ? 2 : kH;
  for (int h = 0; h < kH; h += kTogether)
    score<kTogether>(in, sums.q + h * in.key_dim, keys, low, high, weights + h);
  for (int h = 0; h < kH; h++) {
    Vector most = load(weights[h]);
    for (int s = kWidth; s < kBlock; s += kWidth) most = larger(most, load(weights[h] + s));
    const float top = std::max(sums.tops[h], largest(most));
    Vector total = {};
    for (int s = 0; s < kBlock; s += kWidth) {
      const Vector found = exponential(load(weights[h] + s) - top);
      store(weights[h] + s, found);
      total += found;
    }
    scales[h] = exponential(splat(sums.tops[h] - top))[0];
    sums.totals[h] = sums.totals[h] * scales[h] + sum(total);
    sums.tops[h] = top;
  }
  add_values<kH>(in, values, low, high, weights, scales, sums.out);
}

// Where a block of keys and values lies, as far as `end`: places behind it stand for the last one, and are not used.
inline void find(const Paged& in, int64_t row, int64_t group, int64_t base, int64_t end, const float** keys,
                 const float** values) {
  const int64_t high = std::min<int64_t>(end - base, kBlock);
  int64_t number = base / in.page, inside = base % in.page;
  for (int64_t s = 0; s < high; number++, inside = 0) {
    const int64_t first = static_cast<int64_t>(in.table[row * in.width + number]) * in.page;
    for (; inside < in.page && s < high; inside++, s++) {
      const int64_t at = (first + inside) * in.groups + group;
      keys[s] = in.k + at * in.key_dim, values[s] = in.v + at * in.value_dim;
      for (int64_t d = 0; d < in.key_dim; d += 16) prefetch(keys[s] + d);
      for (int64_t d = 0; d < in.value_dim; d += 16) prefetch(values[s] + d);
    }
  }
  for (int64_t s = high; s < kBlock; s++) keys[s] = keys[high - 1], values[s] = values[high - 1];
}

// kH heads of one group, for the queries of a row from `first` to `last`.
template <int kH>
void attend(const Paged& in, int64_t row, int64_t first, int64_t last, int64_t head) {
  Sums<kH> all[kTimes];
  int64_t begin = INT64_MAX, end = 0, count = 0;
  for (int64_t time = first; time < last; time++) {
    const int64_t place = in.index[(in.index_rows == 1 ? 0 : row * in.time) + time];
    const int64_t at = (row * in.time + time) * in.heads + head;
    Sums<kH> one;
    one.out = in.out + at * in.value_dim, one.q = in.q + at * in.key_dim;
    std::fill(one.out, one.out + kH * in.value_dim, 0.0f);
    if (place < 0 || place == INT32_MAX) continue;  // Padding.
    one.end = std::min<int64_t>(place + 1, in.width * in.page);
    one.begin = in.window > 0 ? std::max<int64_t>(0, one.end - in.window) : 0;
    for (int h = 0; h < kH; h++) {
      one.tops[h] = in.sinks ? in.sinks[head + h] : -INFINITY;
      one.totals[h] = in.sinks ? 1.0f : 0.0f;
    }
    begin = std::min(begin, one.begin), end = std::max(end, one.end);
    all[count++] = one;
  }
  if (count == 0) return;
  const float *keys[2][kBlock], *values[2][kBlock];
  const int64_t group = head / (in.heads / in.groups);
  begin = begin / kBlock * kBlock;
  find(in, row, group, begin, end, keys[0], values[0]);
  for (int64_t base = begin, now = 0; base < end; base += kBlock, now ^= 1) {
    if (base + kBlock < end) find(in, row, group, base + kBlock, end, keys[now ^ 1], values[now ^ 1]);
    for (int64_t i = 0; i < count; i++) {
      const int64_t low = std::max<int64_t>(all[i].begin - base, 0), high = std::min<int64_t>(all[i].end - base, kBlock);
      if (low < high) take<kH>(in, keys[now], values[now], low, high, all[i]);
    }
  }
  for (int64_t i = 0; i < count; i++)
    for (int h = 0; h < kH; h++)
      for (int64_t d = 0; d < in.value_dim; d += kWidth) {
        float* at = all[i].out + h * in.value_dim + d;
        store(at, load(at) / all[i].totals[h]);
      }
}

// Puts rows of `size` numbers to places of pages `[P, L, size]`; those whose page there is not are dropped.
inline void write_pages(const float* rows, const int32_t* page, const int32_t* inside, float* pages, int64_t count,
                        int64_t num_pages, int64_t page_size, int64_t size) {
  for (int64_t i = 0; i < count; i++) {
    if (page[i] < 0 || page[i] >= num_pages) continue;
    std::memcpy(pages + (page[i] * page_size + inside[i]) * size, rows + i * size, size * sizeof(float));
  }
}

inline void paged_attention(const Paged& in) {
  const int64_t each = in.heads / in.groups, parts = (each + kHeads - 1) / kHeads;
  const int64_t blocks = (in.time + kTimes - 1) / kTimes;
  Pool::get().run(in.batch * in.groups * parts * blocks, [&](int64_t i) {
    const int64_t block = blocks - 1 - i % blocks;  // The last ones see most keys, and come first.
    const int64_t part = i / blocks % parts, group = i / blocks / parts % in.groups, row = i / blocks / parts / in.groups;
    const int64_t head = group * each + part * kHeads, count = std::min<int64_t>(kHeads, each - part * kHeads);
    const int64_t first = block * kTimes, last = std::min(in.time, first + kTimes);
    if (count == 4) attend<4>(in, row, first, last, head);
    else if (count == 3) attend<3>(in, row, first, last, head);
    else if (count == 2) attend<2>(in, row, first, last, head);
    else attend<1>(in, row, first, last, head);
  });
}

}  // namespace dovetail
