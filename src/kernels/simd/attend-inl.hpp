// Attention by rules 4 and 5 on vectors: scores and p x V are tiles of chains, as in a matmul, over cells that lie like
// packed panels. Included once for each target by simd.cpp.
#if defined(STET_SIMD_ATTEND_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef STET_SIMD_ATTEND_INL
#undef STET_SIMD_ATTEND_INL
#else
#define STET_SIMD_ATTEND_INL
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "kernels/kernels.hpp"
#include "kernels/simd/cells-inl.hpp"
#include "kernels/simd/math-inl.hpp"
#include "kernels/simd/tile-inl.hpp"

#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_NEON
HWY_BEFORE_NAMESPACE();
namespace stet::kernels::HWY_NAMESPACE {

// Some queries of one KV head, the rows of a tile, and for each the positions that it sees: [0, sinks) and
// [begin, end).
template <class T, int kRows>
struct Queries {
  const T* q[kRows];
  Pos begin[kRows], end[kRows], sinks[kRows];
  bool once = false;  // no other tile of the step reads these cells
};

// A block's positions are numbered from its first cell's first position, `origin`.
template <class T, int kRows>
struct BlockScores {
  T* score[kRows];
  Ahead values;
};

// The chains of q and int4 keys, two dims a line.
template <class T, int kRows, int kVecs>
HWY_INLINE void chains_of_pairs(const T* const* HWY_RESTRICT q, const std::uint8_t* const* HWY_RESTRICT k, int dim,
                                V<T> (&acc)[kRows][kVecs], StepAhead prefetch) {
  const D<T> d;
  for (int i = 0; i < dim / 2; ++i) {
    prefetch.step();
    Pairs<T> pairs[kVecs];
    V<T> b[kVecs];
    for (int v = 0; v < kVecs; ++v) pairs[v] = load_pairs<T>(k[v] + i * kCell);
    for (int v = 0; v < kVecs; ++v) b[v] = low_code<T>(pairs[v]);
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVecs; ++v) acc[r][v] = hn::MulAdd(hn::Set(d, q[r][2 * i]), b[v], acc[r][v]);
    }
    for (int v = 0; v < kVecs; ++v) b[v] = high_code<T>(pairs[v]);
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVecs; ++v) acc[r][v] = hn::MulAdd(hn::Set(d, q[r][2 * i + 1]), b[v], acc[r][v]);
    }
  }
  if (dim % 2 == 0) return;
  for (int v = 0; v < kVecs; ++v) {
    const V<T> last = low_code<T>(load_pairs<T>(k[v] + dim / 2 * kCell));
    for (int r = 0; r < kRows; ++r) acc[r][v] = hn::MulAdd(hn::Set(d, q[r][dim - 1]), last, acc[r][v]);
  }
}

template <class T, Codec kCodec, int kRows, int kVecs>
HWY_INLINE void score_vectors(const Head& head, const Queries<T, kRows>& queries, Pos at, Pos origin, T scale,
                              BlockScores<T, kRows>& s) {
  const D<T> d;
  const int dim = head.view->layout->k_dim;
  const Element<T, kCodec>* k[kVecs];
  for (int v = 0; v < kVecs; ++v) {
    const Pos pos = at + v * kN<T>;
    k[v] = head.keys<Element<T, kCodec>>(pos / kCell) + pos % kCell;
  }
  V<T> acc[kRows][kVecs];
  for (auto& row : acc) {
    for (auto& a : row) a = hn::Zero(d);
  }
  if constexpr (kCodec == Codec::int4) {
    chains_of_pairs<T, kRows, kVecs>(queries.q, k, dim, acc, StepAhead{&s.values});
  } else {
    chains<T, kRows, kVecs>(queries.q, k, kCell, static_cast<std::size_t>(dim), acc, ahead_of<T, kCodec>(s.values));
  }
  const V<T> scales = hn::Set(d, scale);
  for (int v = 0; v < kVecs; ++v) {
    const Pos pos = at + v * kN<T>;
    for (int r = 0; r < kRows; ++r) {
      if constexpr (has_scale(kCodec)) {
        acc[r][v] = hn::Mul(acc[r][v], hn::LoadU(d, head.k_scales(pos / kCell) + pos % kCell));
      }
      hn::Store(hn::Mul(acc[r][v], scales), d, s.score[r] + (pos - origin));
    }
  }
}

// Scores of all slots of the cells from `begin`, which starts one, until `end`.
template <class T, Codec kCodec, int kRows>
HWY_NOINLINE void score_cells(const Head& head, const Queries<T, kRows>& queries, Pos begin, Pos end, Pos origin,
                              T scale, BlockScores<T, kRows>& s) {
  constexpr int kVecs = kRows <= 2 ? kRowVecs / kRows : kTileVecs;
  const Pos vectors = (end - begin + kCell - 1) / kCell * kLaneVecs<T>;
  const auto run = [&](auto n, Pos v) HWY_ATTR {
    score_vectors<T, kCodec, kRows, decltype(n)::value>(head, queries, begin + v * kN<T>, origin, scale, s);
  };
  Pos v = 0;
  for (; v + kVecs <= vectors; v += kVecs) run(std::integral_constant<int, kVecs>(), v);
  for (; v + 4 <= vectors; v += 4) run(std::integral_constant<int, 4>(), v);
  if (vectors - v == 3) run(std::integral_constant<int, 3>(), v);
  if (vectors - v == 2) run(std::integral_constant<int, 2>(), v);
  if (vectors - v == 1) run(std::integral_constant<int, 1>(), v);
}

// What one query sees of a block: positions [block, sinks) and [begin, end), the one or the other perhaps empty.
struct Seen {
  Pos sinks, begin, end;

  bool any(Pos block) const { return sinks > block || begin < end; }
};

// Scores to exp(score - maximum) over what is seen of a block; its cells start at `origin`. Slots of these cells that
// are not seen are set to -inf first: their exp is +0, which added to a lane changes no bit.
template <class T>
HWY_INLINE Partial<T> softmax_block(T* score, Pos origin, Seen seen) {
  const D<T> d;
  const bool only_sinks = seen.begin >= seen.end;
  const Pos begin = (seen.sinks > origin ? origin : seen.begin) - origin;
  const Pos end = (only_sinks ? seen.sinks : seen.end) - origin;
  const Pos from = begin / kCell * kCell, to = (end + kCell - 1) / kCell * kCell;
  constexpr T kNothing = -std::numeric_limits<T>::infinity();
  for (Pos i = from; i < begin; ++i) score[i] = kNothing;
  if (seen.sinks > origin && !only_sinks) {
    for (Pos i = seen.sinks - origin; i < seen.begin - origin; ++i) score[i] = kNothing;
  }
  for (Pos i = end; i < to; ++i) score[i] = kNothing;
  V<T> most = hn::Load(d, score + from);
  for (Pos i = from + kN<T>; i < to; i += kN<T>) most = hn::Max(most, hn::Load(d, score + i));
  const T maximum = hn::GetLane(hn::MaxOfLanes(d, most));
  const V<T> maxima = hn::Set(d, maximum);
  V<T> acc[kLaneVecs<T>];
  for (auto& a : acc) a = hn::Zero(d);
  for (Pos i = from; i < to; i += kCell) {
    for (int v = 0; v < kLaneVecs<T>; ++v) {
      const V<T> p = exp_of_nonpositive(d, hn::Sub(hn::Load(d, score + i + v * kN<T>), maxima));
      hn::Store(p, d, score + i + v * kN<T>);
      acc[v] = hn::Add(acc[v], p);
    }
  }
  HWY_ALIGN T lane[kLanes];
  for (int v = 0; v < kLaneVecs<T>; ++v) hn::Store(acc[v], d, lane + v * kN<T>);
  return {maximum, tree_sum(lane)};
}

// p x the scales of V, for positions [begin, end). Slots of their cells that are not seen may become NaN; nothing reads
// them.
template <class T>
HWY_INLINE void fold_scales(const Head& head, T* p, Pos origin, Pos begin, Pos end) {
  const D<T> d;
  for (Pos c = begin / kCell; c * kCell < end; ++c) {
    for (int v = 0; v < kLaneVecs<T>; ++v) {
      T* at = p + (c * kCell - origin) + v * kN<T>;
      if constexpr (sizeof(T) == sizeof(float)) {
        hn::Store(hn::Mul(hn::Load(d, at), hn::LoadU(d, head.v_scales(c) + v * kN<T>)), d, at);
      }
    }
  }
}

// Dims that fill no vector are computed one by one.
template <class T, Codec kCodec>
HWY_INLINE T value_at(const Head& head, Pos pos, int dim) {
  const int dims = head.view->layout->v_dim, half = (dims + 1) / 2;
  const auto* values = head.values<Element<T, kCodec>>(pos / kCell);
  const auto slot = static_cast<int>(pos % kCell);
  if constexpr (kCodec == Codec::int4) {
    const int pair = values[slot * half + dim % half];
    return static_cast<T>((dim >= half ? pair >> 4 : pair & 15) - 8);
  } else if constexpr (kCodec == Codec::bf16 || kCodec == Codec::f16) {
    const hn::CappedTag<float, 1> one;
    return hn::GetLane(
        hn::PromoteTo(one, hn::LoadU(hn::Rebind<Element<T, kCodec>, decltype(one)>(), values + slot * dims + dim)));
  } else {
    return static_cast<T>(values[slot * dims + dim]);
  }
}

// acc[r][v] over `count` rows of int4 values: the high halves or the low ones of pairs from `pairs` on.
template <class T, int kRows, int kVecs, bool kHigh>
HWY_INLINE void weigh_pairs(const T* const* HWY_RESTRICT p, const std::uint8_t* HWY_RESTRICT pairs, std::size_t stride,
                            Pos count, V<T> (&acc)[kRows][kVecs], StepAhead prefetch) {
  const D<T> d;
  for (Pos k = 0; k < count; ++k, pairs += stride) {
    prefetch.step();
    V<T> b[kVecs];
    for (int v = 0; v < kVecs; ++v) {
      const Pairs<T> both = load_pairs<T>(pairs + v * kN<T>);
      b[v] = kHigh ? high_code<T>(both) : low_code<T>(both);
    }
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVecs; ++v) acc[r][v] = hn::MulAdd(hn::Set(d, p[r][k]), b[v], acc[r][v]);
    }
  }
}

// out[r] += p[r] x V over positions [begin, end), each output one ascending chain. p[r][i] belongs to origin + i. The
// dims from `dim` on; of int4 they are in one half.
template <class T, Codec kCodec, int kRows, int kVecs>
HWY_INLINE void weigh_vectors(const Head& head, const T* const* p, Pos origin, Pos begin, Pos end, int dim,
                              T* const* out, Ahead& keys) {
  const D<T> d;
  const auto dims = static_cast<std::size_t>(head.view->layout->v_dim), half = (dims + 1) / 2;
  V<T> acc[kRows][kVecs];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVecs; ++v) acc[r][v] = hn::LoadU(d, out[r] + dim + v * kN<T>);
  }
  for (Pos at = begin; at < end;) {
    const Pos stop = std::min(end, (at / kCell + 1) * kCell);  // the end of this cell
    const T* ps[kRows];
    for (int r = 0; r < kRows; ++r) ps[r] = p[r] + (at - origin);
    const auto* values = head.values<Element<T, kCodec>>(at / kCell);
    const auto slot = static_cast<std::size_t>(at % kCell), column = static_cast<std::size_t>(dim);
    if constexpr (kCodec == Codec::int4) {
      if (column < half) {
        weigh_pairs<T, kRows, kVecs, false>(ps, values + slot * half + column, half, stop - at, acc, StepAhead{&keys});
      } else {
        weigh_pairs<T, kRows, kVecs, true>(ps, values + slot * half + column - half, half, stop - at, acc,
                                           StepAhead{&keys});
      }
    } else {
      const Element<T, kCodec>* vs[kVecs];
      for (int v = 0; v < kVecs; ++v) vs[v] = values + slot * dims + column + static_cast<std::size_t>(v * kN<T>);
      chains<T, kRows, kVecs>(ps, vs, dims, static_cast<std::size_t>(stop - at), acc, ahead_of<T, kCodec>(keys));
    }
    at = stop;
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVecs; ++v) hn::StoreU(acc[r][v], d, out[r] + dim + v * kN<T>);
  }
}

template <class T, Codec kCodec, int kRows>
HWY_NOINLINE void weigh_as(const Head& head, const T* const* p, Pos origin, Pos begin, Pos end, T* const* out,
                           Ahead& keys) {
  constexpr int kVecs = kRows == 1 ? kRowVecs : kTileVecs;
  const int dims = head.view->layout->v_dim;
  const auto run = [&](auto n, int dim) HWY_ATTR {
    weigh_vectors<T, kCodec, kRows, decltype(n)::value>(head, p, origin, begin, end, dim, out, keys);
  };
  // Dims [dim, stop) lie side by side, which of int4 only those of one half do.
  int dim = 0;
  for (const int stop : {kCodec == Codec::int4 ? (dims + 1) / 2 : dims, dims}) {
    for (; dim + kVecs * kN<T> <= stop; dim += kVecs * kN<T>) run(std::integral_constant<int, kVecs>(), dim);
    if constexpr (kRows == 1 && kVecs > 4) {
      for (; dim + 4 * kN<T> <= stop; dim += 4 * kN<T>) run(std::integral_constant<int, 4>(), dim);
    }
    if constexpr (kCodec == Codec::int4) {
      for (; dim + 2 * kN<T> <= stop; dim += 2 * kN<T>) run(std::integral_constant<int, 2>(), dim);
    }
    for (; dim + kN<T> <= stop; dim += kN<T>) run(std::integral_constant<int, 1>(), dim);
    for (; dim < stop; ++dim) {
      for (int r = 0; r < kRows; ++r) {
        T acc = out[r][dim];
        for (Pos at = begin; at < end; ++at) {
          acc = std::fma(p[r][at - origin], value_at<T, kCodec>(head, at, dim), acc);
        }
        out[r][dim] = acc;
      }
    }
  }
}

template <class T, int kRows>
HWY_INLINE void weigh(const Head& head, const T* const* p, Pos origin, Pos begin, Pos end, T* const* out,
                      Ahead keys = {}) {
  if (begin >= end) return;
  with_codec<T>(head.view->layout->v, [&]<Codec kCodec>(CodecTag<kCodec>) HWY_ATTR {
    weigh_as<T, kCodec, kRows>(head, p, origin, begin, end, out, keys);
  });
}

// A block of positions, and whose keys are needed after it: cells [next_begin, next_end) of `next`.
struct Block {
  Pos at;
  Head next{};
  Pos next_begin = 0, next_end = 0;
};

// What a tile of queries sees of a block: each row, and [first, last), whole cells at its begin, that any of them sees;
// [all_begin, all_end) is what all see. Sinks apart: those of the block end at `sinks`.
template <int kRows>
struct SeenByTile {
  Seen seen[kRows];
  Pos first, last, all_begin, all_end, sinks, origin;
};

template <class T, int kRows>
HWY_INLINE SeenByTile<kRows> seen_by(const Queries<T, kRows>& queries, Pos block) {
  SeenByTile<kRows> s;
  s.first = block + kBlock;
  s.last = s.all_begin = s.sinks = block;
  s.all_end = block + kBlock;
  for (int r = 0; r < kRows; ++r) {
    s.seen[r] = {std::min(block + kBlock, queries.sinks[r]), std::max(block, queries.begin[r]),
                 std::min(block + kBlock, queries.end[r])};
    if (s.seen[r].begin < s.seen[r].end) {
      s.first = std::min(s.first, s.seen[r].begin);
      s.last = std::max(s.last, s.seen[r].end);
    }
    s.all_begin = std::max(s.all_begin, s.seen[r].begin);
    s.all_end = std::min(s.all_end, s.seen[r].end);
    s.sinks = std::max(s.sinks, s.seen[r].sinks);
  }
  s.first = s.first / kCell * kCell;
  s.origin = s.sinks > block ? block : s.first;
  return s;
}

template <class T, int kRows>
HWY_INLINE void score_block(const Head& head, const Queries<T, kRows>& queries, Pos block, T scale,
                            const SeenByTile<kRows>& seen, BlockScores<T, kRows>& s) {
  const CellLayout& layout = *head.view->layout;
  if (queries.once) {
    // A group of cells is scored in one go.
    const int steps = std::max(1, layout.k_dim / (layout.k == Codec::int4 ? 2 : 1) * kLaneVecs<T> / kRowVecs);
    s.values = Ahead(head, seen.first / kCell, (seen.last + kCell - 1) / kCell, false, steps);
  }
  with_codec<T>(layout.k, [&]<Codec kCodec>(CodecTag<kCodec>) HWY_ATTR {
    if (seen.sinks > block) score_cells<T, kCodec, kRows>(head, queries, block, seen.sinks, seen.origin, scale, s);
    if (seen.first < seen.last) {
      score_cells<T, kCodec, kRows>(head, queries, seen.first, seen.last, seen.origin, scale, s);
    }
  });
}

// One block of positions for a tile of queries, whose scores are in `scores` or, if that is null, still to be made.
// Positions that all rows see go through the tile; what only some see (the diagonal of a chunk, the edge of a window,
// sinks) goes row by row, in ascending order around it.
template <class T, int kRows>
HWY_INLINE void attend_block(const Head& head, const Queries<T, kRows>& queries, const Block& which, T scale, T* scores,
                             Partial<T>* partial, T* out) {
  const CellLayout& layout = *head.view->layout;
  const Pos block = which.at;
  const auto dims = static_cast<std::size_t>(layout.v_dim);
  const SeenByTile<kRows> tile = seen_by(queries, block);
  const auto& seen = tile.seen;
  const Pos origin = tile.origin;
  HWY_ALIGN T own[kRows][kBlock];
  BlockScores<T, kRows> s;
  for (int r = 0; r < kRows; ++r) s.score[r] = scores == nullptr ? own[r] : scores + r * kBlock;
  if (scores == nullptr) score_block(head, queries, block, scale, tile, s);
  T* outs[kRows];
  const bool scaled = has_scale(layout.v);
  for (int r = 0; r < kRows; ++r) {
    outs[r] = out + static_cast<std::size_t>(r) * dims;
    std::fill_n(outs[r], dims, T(0));
    if (!seen[r].any(block)) continue;  // it takes no part in this row's merge
    partial[r] = softmax_block(s.score[r], origin, seen[r]);
    if (scaled) {
      // A cell that has sinks and what the window shows is scaled once.
      const Pos sink_cells = std::max(block, (seen[r].sinks + kCell - 1) / kCell * kCell);
      fold_scales(head, s.score[r], origin, block, std::max(block, seen[r].sinks));
      fold_scales(head, s.score[r], origin, std::max(seen[r].begin, sink_cells), seen[r].end);
    }
  }
  const T* const* p = s.score;
  for (int r = 0; r < kRows; ++r) weigh<T, 1>(head, p + r, origin, block, seen[r].sinks, outs + r);
  if (tile.all_begin >= tile.all_end) {
    for (int r = 0; r < kRows; ++r) weigh<T, 1>(head, p + r, origin, seen[r].begin, seen[r].end, outs + r);
    return;
  }
  for (int r = 0; r < kRows; ++r) weigh<T, 1>(head, p + r, origin, seen[r].begin, tile.all_begin, outs + r);
  weigh<T, kRows>(head, p, origin, tile.all_begin, tile.all_end, outs,
                  Ahead(which.next, which.next_begin, which.next_end, true, kCell));
  for (int r = 0; r < kRows; ++r) weigh<T, 1>(head, p + r, origin, tile.all_end, seen[r].end, outs + r);
}

// Calls f(tag, i) for all dims from i on that the tag's vectors hold: whole vectors, then one by one.
template <class T, class F>
HWY_INLINE void for_each_dim(std::size_t dims, const F& f) {
  std::size_t i = 0;
  for (; i + kN<T> <= dims; i += kN<T>) f(D<T>(), i);
  for (; i < dims; ++i) f(hn::CappedTag<T, 1>(), i);
}

// The blocks that a query sees: [0, sinks) and [first, end).
struct SeenBlocks {
  Pos sinks, first, end;

  bool has(Pos block) const { return block < sinks || block >= first; }
  Pos begin() const { return sinks > 0 ? 0 : first; }
};
template <class Q>
SeenBlocks blocks_of(const Q& queries, std::size_t j) {
  return {(queries.sinks[j] + kBlock - 1) / kBlock, queries.begin[j] / kBlock, (queries.end[j] - 1) / kBlock + 1};
}

// The blocks of `from` that a query sees, into `to`.
template <class T>
HWY_INLINE void merge(const PartialBlocks<T>& from, std::size_t query, SeenBlocks blocks, std::size_t dims, T* to) {
  const D<T> d;
  const auto at = [&](Pos b) { return static_cast<std::size_t>(b - from.first) * from.queries + query; };
  const Pos begin = blocks.begin();
  T maximum = from.partials[at(begin)].maximum;
  if (blocks.end == begin + 1 && std::isfinite(maximum)) {
    // What follows, for a weight of exp(0) = 1.
    const T* out = from.outs + at(begin) * dims;
    const T sum = from.partials[at(begin)].sum;
    for_each_dim<T>(dims, [&](auto tag, std::size_t i) HWY_ATTR {
      hn::StoreU(hn::Div(hn::Add(hn::LoadU(tag, out + i), hn::Zero(tag)), hn::Set(tag, sum)), tag, to + i);
    });
    return;
  }
  for (Pos b = begin; b < blocks.end; ++b) {
    if (!blocks.has(b)) continue;
    const T m = from.partials[at(b)].maximum;
    maximum = m > maximum ? m : maximum;
  }
  T sum = 0;
  std::fill_n(to, dims, T(0));
  for (Pos b = begin; b < blocks.end; ++b) {
    if (!blocks.has(b)) continue;
    const auto& partial = from.partials[at(b)];
    const T* out = from.outs + at(b) * dims;
    const T weight = hn::GetLane(exp(d, hn::Set(d, partial.maximum - maximum)));
    sum = std::fma(partial.sum, weight, sum);
    for_each_dim<T>(dims, [&](auto tag, std::size_t i) HWY_ATTR {
      hn::StoreU(hn::MulAdd(hn::LoadU(tag, out + i), hn::Set(tag, weight), hn::LoadU(tag, to + i)), tag, to + i);
    });
  }
  for_each_dim<T>(dims, [&](auto tag, std::size_t i)
                            HWY_ATTR { hn::StoreU(hn::Div(hn::LoadU(tag, to + i), hn::Set(tag, sum)), tag, to + i); });
}

// Calls f(queries, their number within the rows, where their results go) for tiles of the queries of some rows and one
// KV head: the heads of its group within a row, then the next row.
template <class T, class F>
HWY_INLINE void for_each_tile(const Attend<T>& op, Range rows, int kv, const F& f) {
  const CellLayout& layout = *op.view.layout;
  const int group = op.heads / layout.kv_heads, count = (rows.end - rows.begin) * group;
  for (int i = 0; i < count; i += kTileRows) {
    with_rows(std::min(kTileRows, count - i), [&](auto n) HWY_ATTR {
      constexpr int kRows = decltype(n)::value;
      Queries<T, kRows> queries;
      queries.once = op.tokens == 1 && group <= kTileRows;
      T* to[kRows];
      for (int j = 0; j < kRows; ++j) {
        const int r = rows.begin + (i + j) / group, h = kv * group + (i + j) % group;
        queries.q[j] = op.q + static_cast<std::size_t>(r) * op.q_stride + static_cast<std::size_t>(h) * layout.k_dim;
        queries.begin[j] = op.begin(r);
        queries.end[j] = op.end(r);
        queries.sinks[j] = op.sinks(r);
        to[j] = op.out + static_cast<std::size_t>(r) * op.out_stride + static_cast<std::size_t>(h) * layout.v_dim;
      }
      f(queries, static_cast<std::size_t>(i), to);
    });
  }
}

template <class T>
Head head_of(const Attend<T>& op, int kv) {
  return {op.view, kv};
}

// All blocks that some row of a tile sees: [0, sinks) and [first, end).
template <class T, int kRows>
SeenBlocks blocks_of_tile(const Queries<T, kRows>& queries) {
  SeenBlocks all = blocks_of(queries, 0);
  for (std::size_t j = 1; j < kRows; ++j) {
    const SeenBlocks one = blocks_of(queries, j);
    all = {std::max(all.sinks, one.sinks), std::min(all.first, one.first), std::max(all.end, one.end)};
  }
  return all;
}

// Block b of those that a tile sees. Behind the last one comes the next head, which has the same cells.
template <class T, int kRows>
HWY_INLINE Block block_of(const Head& head, const Queries<T, kRows>& queries, const SeenBlocks& seen, Pos b) {
  Block block{b * kBlock};
  if (!queries.once) return block;
  const CellLayout& layout = *head.view->layout;
  const bool last = b + 1 >= seen.end;
  block.next = head;
  if (last) block.next.base += layout.head_stride;
  if (block.next.base >= head.view->base + layout.bytes) return block;  // of the last head
  const Pos next = last ? seen.first : std::max(b + 1, seen.first);
  block.next_begin = std::max(next * kBlock, queries.begin[0]) / kCell;
  block.next_end = (std::min((next + 1) * kBlock, queries.end[0]) + kCell - 1) / kCell;
  return block;
}

// Those of blocks [begin, end) that a tile sees. Its queries are of `to` from `first_query` on.
template <class T, int kRows>
HWY_INLINE void tile_blocks(const Head& head, const Queries<T, kRows>& queries, Range blocks, T scale,
                            const PartialBlocks<T>& to, std::size_t first_query) {
  const auto dims = static_cast<std::size_t>(head.view->layout->v_dim);
  const SeenBlocks seen = blocks_of_tile(queries);
  for (Pos b = std::max<Pos>(blocks.begin, seen.begin()); b < blocks.end && b < seen.end; ++b) {
    if (!seen.has(b)) continue;
    const std::size_t at = static_cast<std::size_t>(b - to.first) * to.queries + first_query;
    attend_block<T, kRows>(head, queries, block_of(head, queries, seen, b), scale,
                           to.scores == nullptr ? nullptr : to.scores + at * kBlock, to.partials + at,
                           to.outs + at * dims);
  }
}

template <class T>
void attend_blocks(const Attend<T>& op, Range rows, int kv, Range blocks, const PartialBlocks<T>& to) {
  if (!has_codecs(op)) return targets().back().table<T>().attend_blocks(op, rows, kv, blocks, to);
  const Head head = head_of(op, kv);
  for_each_tile(op, rows, kv, [&](const auto& queries, std::size_t first_query, T* const*) HWY_ATTR {
    tile_blocks(head, queries, blocks, op.scale, to, first_query);
  });
}

template <class T>
void score_blocks(const Attend<T>& op, Range rows, int kv, Range blocks, const PartialBlocks<T>& to) {
  if (!has_codecs(op)) return targets().back().table<T>().score_blocks(op, rows, kv, blocks, to);
  const Head head = head_of(op, kv);
  for_each_tile(op, rows, kv, [&](const auto& queries, std::size_t first_query, T* const*) HWY_ATTR {
    constexpr int kRows = std::extent_v<decltype(std::remove_cvref_t<decltype(queries)>::q)>;
    const SeenBlocks seen = blocks_of_tile(queries);
    for (Pos b = std::max<Pos>(blocks.begin, seen.begin()); b < blocks.end && b < seen.end; ++b) {
      if (!seen.has(b)) continue;
      T* at = to.scores + (static_cast<std::size_t>(b - to.first) * to.queries + first_query) * kBlock;
      BlockScores<T, kRows> s;
      for (int r = 0; r < kRows; ++r) s.score[r] = at + r * kBlock;
      score_block(head, queries, b * kBlock, op.scale, seen_by(queries, b * kBlock), s);
    }
  });
}

template <class T>
void merge_blocks(const Attend<T>& op, Range rows, int kv, const PartialBlocks<T>& from) {
  const auto dims = static_cast<std::size_t>(op.view.layout->v_dim);
  for_each_tile(op, rows, kv, [&](const auto& queries, std::size_t first_query, T* const* to) HWY_ATTR {
    for (std::size_t j = 0; j < std::size(queries.q); ++j) {
      merge(from, first_query + j, blocks_of(queries, j), dims, to[j]);
    }
  });
}

template <class T>
void attend(const Attend<T>& op, Range rows, Range kv_heads) {
  if (!has_codecs(op)) return targets().back().table<T>().attend(op, rows, kv_heads);
  const auto dims = static_cast<std::size_t>(op.view.layout->v_dim);
  // Blocks' results until they are merged; those of short contexts on the stack.
  constexpr std::size_t kFew = 4, kFewDims = 128;
  HWY_ALIGN T few_outs[kFew * kTileRows * kFewDims];
  Partial<T> few_partials[kFew * kTileRows];
  std::vector<T> more_outs;
  std::vector<Partial<T>> more_partials;
  for (int kv = kv_heads.begin; kv < kv_heads.end; ++kv) {
    const Head head = head_of(op, kv);
    for_each_tile(op, rows, kv, [&](const auto& queries, std::size_t, T* const* to) HWY_ATTR {
      constexpr std::size_t kRows = std::extent_v<decltype(std::remove_cvref_t<decltype(queries)>::q)>;
      const SeenBlocks seen = blocks_of_tile(queries);
      PartialBlocks<T> blocks{few_outs, few_partials, kRows, seen.begin(), seen.end - seen.begin()};
      const auto count = static_cast<std::size_t>(blocks.count);
      if (count > kFew || count * dims > kFew * kFewDims) {
        more_outs.resize(std::max(more_outs.size(), count * kTileRows * dims));
        more_partials.resize(std::max(more_partials.size(), count * kTileRows));
        blocks.outs = more_outs.data();
        blocks.partials = more_partials.data();
      }
      tile_blocks(head, queries, {static_cast<int>(blocks.first), static_cast<int>(seen.end)}, op.scale, blocks, 0);
      for (std::size_t j = 0; j < kRows; ++j) merge(blocks, j, blocks_of(queries, j), dims, to[j]);
    });
  }
}

}  // namespace stet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // targets that fuse

#endif  // per-target include guard
