// How attention reads cells: codes of each codec on vectors, one KV head's part of a cell, and asking memory for the
// next ones. Included once for each target by simd.cpp.
#if defined(STET_SIMD_CELLS_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef STET_SIMD_CELLS_INL
#undef STET_SIMD_CELLS_INL
#else
#define STET_SIMD_CELLS_INL
#endif

#include <hwy/highway.h>

#include <cstdint>
#include <type_traits>

#include "kernels/kernels.hpp"
#include "kernels/simd/tile-inl.hpp"

#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_NEON
HWY_BEFORE_NAMESPACE();
namespace stet::kernels::HWY_NAMESPACE {

// Pairs of int4 codes, still as integers; the low and the high one.
template <class T>
using Pairs = hn::Vec<hn::Rebind<std::int32_t, D<T>>>;
template <class T>
HWY_INLINE Pairs<T> load_pairs(const std::uint8_t* p) {
  return hn::PromoteTo(hn::Rebind<std::int32_t, D<T>>(), hn::LoadU(hn::Rebind<std::uint8_t, D<T>>(), p));
}
template <class T>
HWY_INLINE V<T> code_of(Pairs<T> code) {
  return hn::ConvertTo(D<T>(), hn::Sub(code, hn::Set(hn::Rebind<std::int32_t, D<T>>(), 8)));
}
template <class T>
HWY_INLINE V<T> low_code(Pairs<T> pairs) {
  return code_of<T>(hn::And(pairs, hn::Set(hn::Rebind<std::int32_t, D<T>>(), 15)));
}
template <class T>
HWY_INLINE V<T> high_code(Pairs<T> pairs) {
  return code_of<T>(hn::ShiftRight<4>(pairs));
}

template <class T>
inline constexpr Codec kOwn = sizeof(T) == 8 ? Codec::f64 : Codec::f32;

// The type of a stored element; of int4, of a pair.
template <class T, Codec kCodec>
using Element = std::conditional_t<
    kCodec == Codec::bf16, hwy::bfloat16_t,
    std::conditional_t<kCodec == Codec::f16, hwy::float16_t,
                       std::conditional_t<kCodec == Codec::int8, std::int8_t,
                                          std::conditional_t<kCodec == Codec::int4, std::uint8_t, T>>>>;

// Calls f with the codec as a constant: of those that work with T.
template <class T, class F>
HWY_INLINE void with_codec(Codec codec, const F& f) {
  if constexpr (sizeof(T) == sizeof(float)) {
    switch (codec) {
      case Codec::bf16:
        return f(CodecTag<Codec::bf16>());
      case Codec::f16:
        return f(CodecTag<Codec::f16>());
      case Codec::int8:
        return f(CodecTag<Codec::int8>());
      case Codec::int4:
        return f(CodecTag<Codec::int4>());
      default:
        break;
    }
  }
  f(CodecTag<kOwn<T>>());
}

// f64 caches under f32 arithmetic and reduced ones under f64 are nobody's fast path.
template <class T>
bool has_codecs(const Attend<T>& op) {
  const Codec k = op.view.layout->k, v = op.view.layout->v;
  if constexpr (sizeof(T) == 8) return k == Codec::f64 && v == Codec::f64;
  return k != Codec::f64 && v != Codec::f64;
}

// One KV head's cells, as CellLayout lays them out. The numbers by which View finds a cell, once instead of each time.
struct Head {
  const View* view = nullptr;
  const std::byte* base = nullptr;  // of the head in the cell of number 0
  const std::uint32_t* cells = nullptr;
  std::size_t bytes = 0;      // a cell
  Pos kept = 0, evicted = 0;  // cells

  Head() = default;
  Head(const View& v, int kv_head)
      : view(&v),
        base(v.base + static_cast<std::size_t>(kv_head) * v.layout->head_stride),
        cells(v.cells.data()),
        bytes(v.layout->bytes),
        kept(v.kept / kCell),
        evicted(v.first / kCell - kept) {}

  HWY_INLINE const std::byte* cell(Pos c) const { return base + cells[c < kept ? c : c - evicted] * bytes; }
  template <class S>
  const S* keys(Pos c) const {
    return reinterpret_cast<const S*>(cell(c));
  }
  template <class S>
  const S* values(Pos c) const {
    return reinterpret_cast<const S*>(cell(c) + view->layout->v_offset);
  }
  const float* k_scales(Pos c) const { return reinterpret_cast<const float*>(cell(c) + view->layout->k_scales); }
  const float* v_scales(Pos c) const { return reinterpret_cast<const float*>(cell(c) + view->layout->v_scales); }
};

// Lines of a later pass, asked of memory while another pass computes, a few a step: values while their block is scored,
// and the keys of the next block while values are weighed. A cell's part of one head is too short for the CPU to see a
// stream in it. At 8,192 tokens of GPT-2's shape one thread of a Zen 5 took 9.1 ms for six layers of bf16 and
// takes 5.7, 6.4 and 2.9 of int8, 6.0 and 2.8 of int4. Of f32 it took 10.7 and would take 14, so that is left to the
// CPU. Asking for 8 or 16 cells ahead instead of a block of 32 is slower (bf16 6.3 and 6.6, int8 3.2 and 2.8).
class Ahead {
 public:
  Ahead() = default;
  // Cells [cell, end) of a head: keys or values with their scales. `steps` computing steps are taken for each of them.
  Ahead(const Head& head, Pos cell, Pos end, bool keys, int steps) : head_(head), cell_(cell), end_(end) {
    if (cell >= end) return;  // there may be no head either
    const CellLayout& layout = *head.view->layout;
    const Codec codec = keys ? layout.k : layout.v;
    if (codec == Codec::f32 || codec == Codec::f64) return;
    const std::size_t row = static_cast<std::size_t>(keys ? layout.k_dim : layout.v_dim) * kCell;
    offset_ = keys ? 0 : layout.v_offset;
    std::size_t bytes = row * 2;
    if (has_scale(codec)) {
      scales_ = keys ? layout.k_scales : layout.v_scales;
      bytes = codec == Codec::int8 ? row : row / 2;
    }
    lines_ = static_cast<int>((bytes + kLine - 1) / kLine);
    per_step_ = (lines_ + steps - 1) / steps;
  }

  HWY_INLINE void step() {
    for (int i = 0; i < per_step_; ++i) {
      if (left_ == 0 && !next()) return;
      __builtin_prefetch(at_, 0, 2);  // into the second level: a block is larger than the first
      at_ += kLine;
      --left_;
    }
  }

 private:
  static constexpr std::size_t kLine = 64;

  HWY_INLINE bool next() {
    if (cell_ >= end_) {
      per_step_ = 0;
      return false;
    }
    const std::byte* cell = head_.cell(cell_++);
    if (scales_ != 0) __builtin_prefetch(cell + scales_, 0, 2);
    at_ = cell + offset_;
    left_ = lines_;
    return true;
  }

  Head head_{};
  Pos cell_ = 0, end_ = 0;
  std::size_t offset_ = 0, scales_ = 0;
  int lines_ = 0, per_step_ = 0, left_ = 0;
  const std::byte* at_ = nullptr;
};

// For chains(), which takes it by value.
struct StepAhead {
  Ahead* ahead;
  HWY_INLINE void step() { ahead->step(); }
};
// Codes of the arithmetic's own width are left to the CPU.
template <class T, Codec kCodec>
HWY_INLINE auto ahead_of(Ahead& ahead) {
  if constexpr (kCodec == kOwn<T>) {
    return NoPrefetch{};
  } else {
    return StepAhead{&ahead};
  }
}

}  // namespace stet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // targets that fuse

#endif  // per-target include guard
