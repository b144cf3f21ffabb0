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

  const float* at(const float* pages, int64_t row, int64_t place, int64_t group, int64_t dim) const {
    const int64_t number = table[row * width + place / page];
    return pages + ((number * page + place % page) * groups + group) * dim;
  }
};

// Scores of one query with the keys of a block; places below `low` and from `high` on get -inf.
inline void score(const Paged& in, const float* q, const float* const* keys, int64_t low, int64_t high,
                  float* scores) {
  for (int64_t first = 0; first < kBlock; first += kWidth) {
    Vector found = splat(-INFINITY);
    if (first < high && first + kWidth > low) {
      Vector sums[kWidth] = {};
      for (int64_t d = 0; d < in.key_dim; d += kWidth) {
        const Vector part = load(q + d);
#pragma GCC unroll 16
        for (int i = 0; i < kWidth; i++) sums[i] = fma(part, load(keys[first + i] + d), sums[i]);
      }
      found = sums_of(sums) * in.scale;
      for (int i = 0; i < kWidth; i++) {
        if (in.soft_cap > 0) found[i] = in.soft_cap * std::tanh(found[i] / in.soft_cap);
      }
      if (first < low || first + kWidth > high) {
        for (int i = 0; i < kWidth; i++)
          if (first + i < low || first + i >= high) found[i] = -INFINITY;
      }
    }
    store(scores + first, found);
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

// kH heads of one group, of one query.
template <int kH>
void attend(const Paged& in, int64_t row, int64_t time, int64_t head) {
  const int64_t each = in.heads / in.groups, group = head / each;
  const int64_t last = in.index[(in.index_rows == 1 ? 0 : row * in.time) + time];
  float* out = in.out + ((row * in.time + time) * in.heads + head) * in.value_dim;
  std::fill(out, out + kH * in.value_dim, 0.0f);
  const int64_t end = std::min<int64_t>(last + 1, in.width * in.page);
  if (last == INT32_MAX || last < 0) return;
  const int64_t begin = in.window > 0 ? std::max<int64_t>(0, last + 1 - in.window) : 0;
  const float* q = in.q + ((row * in.time + time) * in.heads + head) * in.key_dim;
  float tops[kH], totals[kH], scales[kH], weights[kH][kBlock];
  for (int h = 0; h < kH; h++) tops[h] = in.sinks ? in.sinks[head + h] : -INFINITY, totals[h] = in.sinks ? 1 : 0;
  for (int64_t base = begin / kBlock * kBlock; base < end; base += kBlock) {
    const int64_t low = std::max<int64_t>(begin - base, 0), high = std::min<int64_t>(end - base, kBlock);
    const float *keys[kBlock], *values[kBlock];
    for (int64_t s = 0; s < kBlock; s++) {  // Places that nobody sees stand for one that is seen: they are not used.
      const int64_t place = base + std::clamp(s, low, high - 1);
      keys[s] = in.at(in.k, row, place, group, in.key_dim);
      values[s] = in.at(in.v, row, place, group, in.value_dim);
    }
    for (int h = 0; h < kH; h++) {
      score(in, q + h * in.key_dim, keys, low, high, weights[h]);
      Vector most = splat(-INFINITY);
      for (int s = 0; s < kBlock; s += kWidth) most = larger(most, load(weights[h] + s));
      const float top = std::max(tops[h], largest(most));
      Vector total = {};
      for (int s = 0; s < kBlock; s += kWidth) {
        const Vector found = exponential(load(weights[h] + s) - top);
        store(weights[h] + s, found);
        total += found;
      }
      scales[h] = exponential(splat(tops[h] - top))[0];
      totals[h] = totals[h] * scales[h] + sum(total);
      tops[h] = top;
    }
    add_values<kH>(in, values, low, high, weights, scales, out);
  }
  for (int h = 0; h < kH; h++)
    for (int64_t d = 0; d < in.value_dim; d += kWidth) {
      float* at = out + h * in.value_dim + d;
      store(at, load(at) / totals[h]);
    }
}

inline void paged_attention(const Paged& in) {
  const int64_t each = in.heads / in.groups, parts = (each + kHeads - 1) / kHeads;
  const int64_t blocks = (in.time + kTimes - 1) / kTimes;
  Pool::get().run(in.batch * in.groups * parts * blocks, [&](int64_t i) {
    const int64_t block = blocks - 1 - i % blocks;  // The last ones see most keys, and come first.
    const int64_t part = i / blocks % parts, group = i / blocks / parts % in.groups, row = i / blocks / parts / in.groups;
    const int64_t head = group * each + part * kHeads, count = std::min<int64_t>(kHeads, each - part * kHeads);
    for (int64_t time = block * kTimes; time < std::min(in.time, (block + 1) * kTimes); time++) {
      if (count == 4) attend<4>(in, row, time, head);
      else if (count == 3) attend<3>(in, row, time, head);
      else if (count == 2) attend<2>(in, row, time, head);
      else attend<1>(in, row, time, head);
    }
  });
}

}  // namespace dovetail
