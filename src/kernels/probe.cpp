// The loops of probe.hpp for each instruction set that simd/simd.cpp has kernels for, and in plain C++ for "ref".
#include "kernels/probe.hpp"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/probe.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
//
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <string_view>

#include "kernels/simd/vnni.hpp"

#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_NEON
HWY_BEFORE_NAMESPACE();
namespace stet::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Chains in flight: more than the latency times the units of any core, and with two operands within the registers.
// In rows of four, as loops of more than 16 rounds are not unrolled by g++, and chains in memory are no peak.
#if HWY_TARGET == HWY_AVX2
inline constexpr int kRows = 3;
#else
inline constexpr int kRows = 6;
#endif
inline constexpr int kChains = 4 * kRows;

template <int kStreams, bool kAsk = false>
std::uint64_t read(const std::byte* data, std::size_t bytes) {
  const hn::ScalableTag<std::uint64_t> d;
  constexpr std::size_t kRun = kProbeBlock / 4, kVec = hn::MaxLanes(d) * sizeof(std::uint64_t), kSums = 8;
  const std::size_t stream = bytes / kStreams;
  hn::Vec<decltype(d)> sums[kSums];
  for (auto& sum : sums) sum = hn::Zero(d);
  for (std::size_t at = 0; at < stream; at += kRun) {
    for (std::size_t s = 0; s < kStreams; ++s) {
      const auto* from = reinterpret_cast<const std::uint64_t*>(data + s * stream + at);
      for (std::size_t i = 0; kAsk && i < kRun; i += 64) {
        __builtin_prefetch(data + s * stream + at + kReadAhead + i, 0, 3);
      }
      for (std::size_t i = 0; i < kRun / kVec; ++i) {
        sums[i % kSums] = hn::Xor(sums[i % kSums], hn::LoadU(d, from + i * hn::MaxLanes(d)));
      }
    }
  }
  for (std::size_t i = 1; i < kSums; ++i) sums[0] = hn::Xor(sums[0], sums[i]);
  return hn::GetLane(hn::SumOfLanes(d, sums[0]));
}

template <class T>
Burst fused(std::size_t rounds) {
  const hn::ScalableTag<T> d;
  const auto a = hn::Set(d, T(0.5)), b = hn::Set(d, T(0.25));
  hn::Vec<decltype(d)> acc[kRows][4], sum = hn::Zero(d);
  for (int i = 0; i < kRows; ++i) {
    for (int j = 0; j < 4; ++j) acc[i][j] = hn::Set(d, static_cast<T>(4 * i + j));
  }
  for (std::size_t round = 0; round < rounds; ++round) {
    for (auto& row : acc) {
      for (auto& chain : row) chain = hn::MulAdd(chain, a, b);
    }
  }
  for (const auto& row : acc) {
    for (const auto& chain : row) sum = hn::Add(sum, chain);
  }
  return {2.0 * kChains * static_cast<double>(hn::MaxLanes(d) * rounds),
          static_cast<double>(hn::GetLane(hn::SumOfLanes(d, sum)))};
}

// Products of 16-bit numbers added to 32-bit ones: two a lane and instruction pair on x86, one a lane on NEON.
Burst integer(std::size_t rounds) {
  const hn::ScalableTag<std::int32_t> d;
  const hn::Repartition<std::int16_t, decltype(d)> half;
  using Acc = hn::Vec<decltype(d)>;
  auto a = hn::Set(half, std::int16_t{3});
  const auto b = hn::Set(half, std::int16_t{-5});
#if HWY_TARGET == HWY_NEON
  constexpr double kProducts = 1;
  const auto step = [&](Acc chain) HWY_ATTR {
    asm volatile("" : "+w"(a.raw));  // else equal products would be computed once
    return Acc(vmlal_s16(chain.raw, vget_low_s16(a.raw), vget_low_s16(b.raw)));
  };
#else
  constexpr double kProducts = 2;
  auto unused = hn::Zero(d);
  const auto step = [&](Acc chain) HWY_ATTR {
    asm volatile("" : "+x"(a.raw));
    return hn::ReorderWidenMulAccumulate(d, a, b, chain, unused);
  };
#endif
  // Each chain a variable of its own: g++ 12 keeps an array of them in memory here. Only the sum is in the chain on
  // x86, and NEON forwards it, so that eight are enough.
  Acc c0 = hn::Set(d, 0), c1 = hn::Set(d, 1), c2 = hn::Set(d, 2), c3 = hn::Set(d, 3);
  Acc c4 = hn::Set(d, 4), c5 = hn::Set(d, 5), c6 = hn::Set(d, 6), c7 = hn::Set(d, 7);
  for (std::size_t round = 0; round < rounds; ++round) {
    c0 = step(c0);
    c1 = step(c1);
    c2 = step(c2);
    c3 = step(c3);
    c4 = step(c4);
    c5 = step(c5);
    c6 = step(c6);
    c7 = step(c7);
  }
  const Acc sum = hn::Add(hn::Add(hn::Add(c0, c1), hn::Add(c2, c3)), hn::Add(hn::Add(c4, c5), hn::Add(c6, c7)));
  return {2 * kProducts * 8 * static_cast<double>(hn::MaxLanes(d) * rounds),
          static_cast<double>(hn::GetLane(hn::SumOfLanes(d, sum)))};
}

constexpr Probe kProbe = {read<1>, read<4>, read<1, true>, fused<float>, fused<double>, integer};

}  // namespace stet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // targets that fuse

#if HWY_ONCE
namespace stet::kernels {
namespace {

#if defined(__x86_64__)
#define STET_PLAIN __attribute__((target("fma")))
#else
#define STET_PLAIN
#endif

std::uint64_t read_plain(const std::byte* data, std::size_t bytes) {
  const auto* from = reinterpret_cast<const std::uint64_t*>(data);
  std::uint64_t sums[8] = {};
  for (std::size_t i = 0; i < bytes / sizeof *from; i += 8) {
    for (std::size_t j = 0; j < 8; ++j) sums[j] ^= from[i + j];
  }
  std::uint64_t sum = 0;
  for (const std::uint64_t s : sums) sum += s;
  return sum;
}

// Chains that the compiler lays side by side in the vectors that it has.
template <class T>
constexpr int kPlainChains = 384 / sizeof(T);

template <class T>
Burst sum_of(const T* acc, std::size_t rounds) {
  double sum = 0;
  for (int i = 0; i < kPlainChains<T>; ++i) sum += static_cast<double>(acc[i]);
  return {2.0 * kPlainChains<T> * static_cast<double>(rounds), sum};
}

template <class T>
STET_PLAIN Burst fused_plain(std::size_t rounds) {
  T acc[kPlainChains<T>];
  for (int i = 0; i < kPlainChains<T>; ++i) acc[i] = static_cast<T>(i);
  for (std::size_t round = 0; round < rounds; ++round) {
    for (T& chain : acc)
      chain = sizeof(T) == 8 ? __builtin_fma(chain, T(0.5), T(0.25)) : __builtin_fmaf(chain, T(0.5), T(0.25));
  }
  return sum_of(acc, rounds);
}

STET_PLAIN Burst integer_plain(std::size_t rounds) {
  std::uint32_t acc[kPlainChains<std::uint32_t>];
  for (int i = 0; i < kPlainChains<std::uint32_t>; ++i) acc[i] = static_cast<std::uint32_t>(i);
  for (std::size_t round = 0; round < rounds; ++round) {
    for (std::uint32_t& chain : acc) chain = chain * 3 + 5;
  }
  return sum_of(acc, rounds);
}

#if defined(__x86_64__)
__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni"))) Burst integer_vnni(std::size_t rounds) {
  // Each chain a variable of its own: g++ 12 keeps an array of them in memory here.
  const __m512i a = _mm512_set1_epi8(3), b = _mm512_set1_epi8(-5);
  __m512i c0 = a, c1 = a, c2 = a, c3 = a, c4 = a, c5 = a, c6 = a, c7 = a, c8 = a, c9 = a, c10 = a, c11 = a;
  for (std::size_t round = 0; round < rounds; ++round) {
    // "+v" makes twelve equal chains twelve chains still.
    asm volatile(""
                 : "+v"(c0), "+v"(c1), "+v"(c2), "+v"(c3), "+v"(c4), "+v"(c5), "+v"(c6), "+v"(c7), "+v"(c8), "+v"(c9),
                   "+v"(c10), "+v"(c11));
    c0 = _mm512_dpbusd_epi32(c0, a, b);
    c1 = _mm512_dpbusd_epi32(c1, a, b);
    c2 = _mm512_dpbusd_epi32(c2, a, b);
    c3 = _mm512_dpbusd_epi32(c3, a, b);
    c4 = _mm512_dpbusd_epi32(c4, a, b);
    c5 = _mm512_dpbusd_epi32(c5, a, b);
    c6 = _mm512_dpbusd_epi32(c6, a, b);
    c7 = _mm512_dpbusd_epi32(c7, a, b);
    c8 = _mm512_dpbusd_epi32(c8, a, b);
    c9 = _mm512_dpbusd_epi32(c9, a, b);
    c10 = _mm512_dpbusd_epi32(c10, a, b);
    c11 = _mm512_dpbusd_epi32(c11, a, b);
  }
  __m512i sum = _mm512_setzero_si512();
  for (const __m512i c : {c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11}) sum = _mm512_add_epi32(sum, c);
  std::int32_t lanes[16];
  _mm512_storeu_si512(lanes, sum);
  return {2.0 * 4 * 16 * 12 * static_cast<double>(rounds), static_cast<double>(lanes[0])};
}
#endif

}  // namespace

Probe probe_of(const Target& target) noexcept {
  [[maybe_unused]] const std::string_view name = target.name;
#if HWY_TARGETS & HWY_AVX3
  if (name == "avx512-vnni") {
    Probe probe = N_AVX3::kProbe;
    probe.integer = integer_vnni;
    return probe;
  }
  if (name == "avx512") return N_AVX3::kProbe;
#endif
#if HWY_TARGETS & HWY_AVX2
  if (name == "avx2") return N_AVX2::kProbe;
#endif
#if HWY_TARGETS & HWY_NEON
  if (name == "neon") return N_NEON::kProbe;
#endif
  return {read_plain, read_plain, read_plain, fused_plain<float>, fused_plain<double>, integer_plain};
}

}  // namespace stet::kernels
#endif  // HWY_ONCE
