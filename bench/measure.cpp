#include "measure.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace stet::bench {
namespace {

// Vectors of the widest kind of the machine that this file is compiled for (-march=native). a * b + c fuses here, by
// this file's own -ffp-contract=fast.
#if defined(__AVX512F__)
constexpr int kBytes = 64, kChains = 24;
#elif defined(__AVX__)
constexpr int kBytes = 32, kChains = 12;
#else
constexpr int kBytes = 16, kChains = 24;
#endif
using Floats = float __attribute__((vector_size(kBytes)));
using Doubles = double __attribute__((vector_size(kBytes)));
using Words = std::uint64_t __attribute__((vector_size(kBytes), aligned(8), may_alias));

constexpr int kRounds = 200'000;

// Calls step(accumulators) kRounds times on each thread and returns how many calls a second all made together.
// The compiler may not know what the accumulators hold, so it must do the work.
template <class Vector, int kCount, class StepFunction>
double rate(base::ThreadPool& pool, int rounds, const StepFunction& step) {
  const auto threads = static_cast<std::size_t>(pool.threads());
  const double start = now();
  pool.run(threads, [&](std::size_t) {
    Vector acc[kCount] = {};
    for (int i = 0; i < rounds; ++i) {
      step(acc);
    }
    for (Vector& a : acc) asm volatile("" : "+m"(a));
  });
  return static_cast<double>(threads) * rounds / (now() - start);
}

template <class Vector>
double fma_peak(base::ThreadPool& pool) {
  constexpr int kLanes = kBytes / static_cast<int>(sizeof(Vector{}[0]));
  const double steps = rate<Vector, kChains>(pool, kRounds, [](Vector(&acc)[kChains]) {
    Vector a = {}, b = {};
#if defined(__x86_64__)
    asm volatile("" : "+x"(a), "+x"(b));
#else
    asm volatile("" : "+w"(a), "+w"(b));
#endif
#pragma GCC unroll 24
    for (int i = 0; i < kChains; ++i) acc[i] = a * b + acc[i];
  });
  return steps * kChains * kLanes * 2 / 1e9;
}

#if defined(__AVX512VNNI__)
double vnni_peak(base::ThreadPool& pool) {
  const double steps = rate<__m512i, kChains>(pool, kRounds, [](__m512i(&acc)[kChains]) {
    __m512i a = _mm512_setzero_si512(), b = a;
    asm volatile("" : "+v"(a), "+v"(b));
#pragma GCC unroll 24
    for (auto& c : acc) c = _mm512_dpbusd_epi32(c, a, b);
  });
  return steps * kChains * 16 * 4 * 2 / 1e9;
}

// What scales in groups cost at least: for each group and 16 outputs a conversion, a product of the two scales and a
// fused sum. Twelve outputs' vectors, as many integer and float accumulators.
template <int kGroup>
double grouped_peak(base::ThreadPool& pool) {
  constexpr int kTiles = 12, kSteps = kGroup / 4;
  struct Tile {
    __m512i sum;
    __m512 total;
  };
  const double steps = rate<Tile, kTiles>(pool, kRounds / kSteps * 2, [](Tile(&acc)[kTiles]) {
    __m512i a = _mm512_setzero_si512(), b = a;
    __m512 x = _mm512_setzero_ps(), w = x;
    asm volatile("" : "+v"(a), "+v"(b), "+v"(x), "+v"(w));
    for (auto& t : acc) t.sum = _mm512_setzero_si512();
#pragma GCC unroll 1
    for (int i = 0; i < kSteps; ++i) {
      asm volatile("" : "+v"(a), "+v"(b));
#pragma GCC unroll 12
      for (auto& t : acc) t.sum = _mm512_dpbusd_epi32(t.sum, a, b);
    }
#pragma GCC unroll 12
    for (auto& t : acc) {
      asm volatile("" : "+v"(x), "+v"(w));
      t.total = _mm512_fmadd_ps(_mm512_cvtepi32_ps(t.sum), _mm512_mul_ps(x, w), t.total);
    }
  });
  return steps * kTiles * kGroup * 16 * 2 / 1e9;
}
#endif

#if defined(__AVX512BF16__)
double bf16_peak(base::ThreadPool& pool) {
  const double steps = rate<__m512, kChains>(pool, kRounds, [](__m512(&acc)[kChains]) {
    __m512i a = _mm512_setzero_si512(), b = a;
    asm volatile("" : "+v"(a), "+v"(b));
#pragma GCC unroll 24
    for (auto& c : acc) c = _mm512_dpbf16_ps(c, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
  });
  return steps * kChains * 16 * 2 * 2 / 1e9;
}
#endif

}  // namespace

double now() noexcept {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

double read_gb_s(base::ThreadPool& pool, std::span<const std::byte> bytes) {
  // Small shares, taken as threads come free: one that the system held up does not hold up the pass.
  constexpr std::size_t kShare = std::size_t{1} << 18;
  constexpr std::size_t kStep = 8 * kBytes;
  const std::size_t shares = bytes.size() / kShare;
  std::atomic<std::uint64_t> sink{0};
  const double start = now();
  pool.run(shares, [&](std::size_t i) {
    const std::byte* at = bytes.data() + i * kShare;
    Words acc[8] = {};
    for (std::size_t k = 0; k < kShare; k += kStep) {
      for (std::size_t v = 0; v < 8; ++v) acc[v] ^= *reinterpret_cast<const Words*>(at + k + v * kBytes);
    }
    for (std::size_t v = 1; v < 8; ++v) acc[0] ^= acc[v];
    sink.fetch_xor(acc[0][0], std::memory_order_relaxed);
  });
  return static_cast<double>(shares * kShare) / (now() - start) / 1e9;
}

Peaks peaks(base::ThreadPool& pool) {
  Peaks p;
  p.f32 = fma_peak<Floats>(pool);
  p.f64 = fma_peak<Doubles>(pool);
#if defined(__AVX512VNNI__)
  p.int8 = vnni_peak(pool);
  p.int8_by_64 = grouped_peak<64>(pool);
  p.int8_by_32 = grouped_peak<32>(pool);
#endif
#if defined(__AVX512BF16__)
  p.bf16 = bf16_peak(pool);
#endif
  return p;
}

}  // namespace stet::bench
