// The kernels of kernels/ref on vectors, for each instruction set that fuses: AVX2, AVX-512 and NEON (Highway). Lanes
// lie along outputs, positions or features, never along a chain, so each result is the same chain as in kernels/ref and
// the width of a vector changes nothing. AVX3_DL is kept out on purpose: Debian's Highway 1.0.3 emits AVX-VNNI code for
// it that Zen 4 lacks.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/simd/simd.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
//
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/kernels.hpp"
#include "kernels/simd/attend-inl.hpp"
#include "kernels/simd/math-inl.hpp"
#include "kernels/simd/matmul-inl.hpp"
#include "kernels/simd/simd.hpp"
#include "kernels/simd/tile-inl.hpp"
#include "kernels/simd/vnni.hpp"

// Highway also compiles its baseline, which does not fuse: there is nothing for it here.
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_NEON
HWY_BEFORE_NAMESPACE();
namespace stet::kernels::HWY_NAMESPACE {

// ---- Norms

// The sums of a row are chains: several rows at once keep the units busy.
template <class T, int kRows>
HWY_INLINE void layer_norm_rows(const LayerNorm<T>& op, int row) {
  const D<T> d;
  const int whole = op.width / kLanes * kLanes;
  const T* x[kRows];
  T scale[kRows];
  V<T> acc[kRows][kLaneVecs<T>], means[kRows];
  HWY_ALIGN T lane[kLanes];
  for (int r = 0; r < kRows; ++r) {
    x[r] = op.x + static_cast<std::size_t>(row + r) * op.x_stride;
    for (auto& a : acc[r]) a = hn::Zero(d);
  }
  for (int i = 0; i < whole; i += kLanes) {
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kLaneVecs<T>; ++v) acc[r][v] = hn::Add(acc[r][v], hn::LoadU(d, x[r] + i + v * kN<T>));
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kLaneVecs<T>; ++v) hn::Store(acc[r][v], d, lane + v * kN<T>);
    for (int i = whole; i < op.width; ++i) lane[i - whole] = lane[i - whole] + x[r][i];
    means[r] = hn::Set(d, tree_sum(lane) / static_cast<T>(op.width));
    for (auto& a : acc[r]) a = hn::Zero(d);
  }
  for (int i = 0; i < whole; i += kLanes) {
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kLaneVecs<T>; ++v) {
        const V<T> c = hn::Sub(hn::LoadU(d, x[r] + i + v * kN<T>), means[r]);
        acc[r][v] = hn::MulAdd(c, c, acc[r][v]);
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kLaneVecs<T>; ++v) hn::Store(acc[r][v], d, lane + v * kN<T>);
    const T mean = hn::GetLane(means[r]);
    for (int i = whole; i < op.width; ++i) lane[i - whole] = std::fma(x[r][i] - mean, x[r][i] - mean, lane[i - whole]);
    scale[r] = T(1) / std::sqrt(tree_sum(lane) / static_cast<T>(op.width) + op.epsilon);
  }
  for (int r = 0; r < kRows; ++r) {
    T* y = op.y + static_cast<std::size_t>(row + r) * op.y_stride;
    const V<T> scales = hn::Set(d, scale[r]);
    const T mean = hn::GetLane(means[r]);
    for (int i = 0; i < whole; i += kN<T>) {
      const V<T> c = hn::Mul(hn::Sub(hn::LoadU(d, x[r] + i), means[r]), scales);
      hn::StoreU(hn::MulAdd(c, hn::LoadU(d, op.gain + i), hn::LoadU(d, op.bias + i)), d, y + i);
    }
    for (int i = whole; i < op.width; ++i) y[i] = std::fma((x[r][i] - mean) * scale[r], op.gain[i], op.bias[i]);
  }
}

template <class T>
void rms_norm(const LayerNorm<T>& op, int row) {
  const D<T> d;
  const int whole = op.width / kLanes * kLanes;
  const T* x = op.x + static_cast<std::size_t>(row) * op.x_stride;
  T* y = op.y + static_cast<std::size_t>(row) * op.y_stride;
  V<T> acc[kLaneVecs<T>];
  for (auto& a : acc) a = hn::Zero(d);
  for (int i = 0; i < whole; i += kLanes) {
    for (int v = 0; v < kLaneVecs<T>; ++v) {
      const V<T> at = hn::LoadU(d, x + i + v * kN<T>);
      acc[v] = hn::MulAdd(at, at, acc[v]);
    }
  }
  HWY_ALIGN T lane[kLanes];
  for (int v = 0; v < kLaneVecs<T>; ++v) hn::Store(acc[v], d, lane + v * kN<T>);
  for (int i = whole; i < op.width; ++i) lane[i - whole] = std::fma(x[i], x[i], lane[i - whole]);
  const T scale = T(1) / std::sqrt(tree_sum(lane) / static_cast<T>(op.width) + op.epsilon);
  const V<T> scales = hn::Set(d, scale);
  int i = 0;
  for (; i < whole; i += kN<T>) {
    hn::StoreU(hn::Mul(hn::Mul(hn::LoadU(d, x + i), scales), hn::LoadU(d, op.gain + i)), d, y + i);
  }
  for (; i < op.width; ++i) y[i] = (x[i] * scale) * op.gain[i];
}

template <class T>
void layer_norm(const LayerNorm<T>& op, Range rows) {
  if (op.bias == nullptr) {
    for (int r = rows.begin; r < rows.end; ++r) rms_norm(op, r);
    return;
  }
  constexpr int kTogether = kNormRows;
  int r = rows.begin;
  for (; r + kTogether <= rows.end; r += kTogether) layer_norm_rows<T, kTogether>(op, r);
  for (; r < rows.end; ++r) layer_norm_rows<T, 1>(op, r);
}

// ---- Elementwise

template <class T, class F>
HWY_INLINE void for_each_vector(std::span<T> x, F&& f) {
  const D<T> d;
  std::size_t i = 0;
  for (; i + kN<T> <= x.size(); i += kN<T>) hn::StoreU(f(d, hn::LoadU(d, x.data() + i)), d, x.data() + i);
  if (i == x.size()) return;
  HWY_ALIGN T rest[kN<T>] = {};
  std::copy(x.begin() + static_cast<std::ptrdiff_t>(i), x.end(), rest);
  hn::Store(f(d, hn::Load(d, rest)), d, rest);
  std::copy_n(rest, x.size() - i, x.begin() + static_cast<std::ptrdiff_t>(i));
}

template <class T>
void activate(Activation activation, std::span<T> x) {
  switch (activation) {
    case Activation::gelu_tanh:
      return for_each_vector(x, [](auto d, auto v) HWY_ATTR { return gelu_tanh(d, v); });
    case Activation::gelu_erf:
      return for_each_vector(x, [](auto d, auto v) HWY_ATTR { return gelu_erf(d, v); });
    case Activation::relu:
      return for_each_vector(x, [](auto d, auto v) HWY_ATTR { return relu(d, v); });
    case Activation::silu:
      return for_each_vector(x, [](auto d, auto v) HWY_ATTR { return silu(d, v); });
  }
}

template <class T>
void add(std::span<const T> x, std::span<T> y) {
  const D<T> d;
  std::size_t i = 0;
  for (; i + kN<T> <= y.size(); i += kN<T>) {
    hn::StoreU(hn::Add(hn::LoadU(d, y.data() + i), hn::LoadU(d, x.data() + i)), d, y.data() + i);
  }
  for (; i < y.size(); ++i) y[i] = y[i] + x[i];
}

template <class T>
void multiply(std::span<const T> x, std::span<T> y) {
  const D<T> d;
  std::size_t i = 0;
  for (; i + kN<T> <= y.size(); i += kN<T>) {
    hn::StoreU(hn::Mul(hn::LoadU(d, y.data() + i), hn::LoadU(d, x.data() + i)), d, y.data() + i);
  }
  for (; i < y.size(); ++i) y[i] = y[i] * x[i];
}

template <class T>
void rotate(const Rotate<T>& op, Range rows) {
  const D<T> d;
  const int half = op.head_dim / 2;
  for (int r = rows.begin; r < rows.end; ++r) {
    const std::size_t row = static_cast<std::size_t>(r);
    const T* cos = op.cos + row * static_cast<std::size_t>(half);
    const T* sin = op.sin + row * static_cast<std::size_t>(half);
    for (int h = 0; h < op.heads; ++h) {
      T* x = op.x + row * op.x_stride + static_cast<std::size_t>(h) * static_cast<std::size_t>(op.head_dim);
      int i = 0;
      for (; i + kN<T> <= half; i += kN<T>) {
        const V<T> a = hn::LoadU(d, x + i), b = hn::LoadU(d, x + i + half);
        const V<T> c = hn::LoadU(d, cos + i), s = hn::LoadU(d, sin + i);
        hn::StoreU(hn::NegMulAdd(b, s, hn::Mul(a, c)), d, x + i);
        hn::StoreU(hn::MulAdd(a, s, hn::Mul(b, c)), d, x + i + half);
      }
      for (; i < half; ++i) {
        const T a = x[i], b = x[i + half];
        x[i] = std::fma(-b, sin[i], a * cos[i]);
        x[i + half] = std::fma(a, sin[i], b * cos[i]);
      }
    }
  }
}

const char* const kName =
#if HWY_TARGET == HWY_AVX3
    "avx512";
#elif HWY_TARGET == HWY_AVX2
    "avx2";
#else
    "neon";
#endif

template <class T>
constexpr Table<T> kTable = {matmul<T>, quantize,  layer_norm<T>,    activate<T>,     add<T>,         multiply<T>,
                             rotate<T>, attend<T>, attend_blocks<T>, merge_blocks<T>, score_blocks<T>};
const Target kTarget = {kName, kName, &kTable<float>, &kTable<double>};

}  // namespace stet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // targets that fuse

#if HWY_ONCE
namespace stet::kernels {
namespace {

#if HWY_TARGETS & HWY_AVX2
// clang 14's __builtin_cpu_supports does not know this one.
bool has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
#endif

#if HWY_TARGETS & HWY_AVX3
// AVX-512 but for the matmuls of int8 and int4.
void matmul_avx512_vnni(const Matmul<float>& op, Range rows, Range panels) {
  if (group_size(op.w->type()) > 1) return matmul_vnni(op, rows, panels);
  N_AVX3::matmul<float>(op, rows, panels);
}
constexpr Table<float> kVnniTable = [] {
  auto table = N_AVX3::kTable<float>;
  table.matmul = matmul_avx512_vnni;
  return table;
}();
const Target kAvx512Vnni = {"avx512-vnni", "avx512", &kVnniTable, &N_AVX3::kTable<double>};
#endif

}  // namespace

std::vector<Target> simd_targets() {
  std::vector<Target> targets;
  // __builtin_cpu_supports, and not Highway's own check, asks for just what these targets use; it also asks the system.
#if HWY_TARGETS & HWY_AVX3
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    if (has_avx512_vnni()) targets.push_back(kAvx512Vnni);
    targets.push_back(N_AVX3::kTarget);
  }
#endif
#if HWY_TARGETS & HWY_AVX2
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c() && __builtin_cpu_supports("bmi2")) {
    targets.push_back(N_AVX2::kTarget);
  }
#endif
#if HWY_TARGETS & HWY_NEON
  targets.push_back(N_NEON::kTarget);  // part of AArch64
#endif
  return targets;
}

}  // namespace stet::kernels
#endif  // HWY_ONCE
