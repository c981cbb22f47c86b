#include "measure.hpp"

#include <time.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <numeric>
#include <thread>

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

clockid_t clock_used = CLOCK_MONOTONIC;

constexpr int kRounds = 400'000;

#if defined(__x86_64__)
#define STET_REGISTER(value) "+v"(value)
#else
#define STET_REGISTER(value) "+w"(value)
#endif

// How many calls of work() all threads make a second, each for `rounds` of them, at the same time.
template <class Work>
double rate(base::ThreadPool& pool, long rounds, const Work& work) {
  const int threads = pool.threads();
  std::atomic<int> here{0};
  std::vector<double> rates(static_cast<std::size_t>(threads));
  pool.run(rates.size(), [&](std::size_t i) {
    // A thread that waits here takes no second task, so every thread gets one.
    here.fetch_add(1);
    while (here.load() < threads) std::this_thread::yield();
    const double start = now();
    work(rounds);
    rates[i] = static_cast<double>(rounds) / (now() - start);
  });
  return std::accumulate(rates.begin(), rates.end(), 0.0);
}

template <class Vector>
double fma_peak(base::ThreadPool& pool) {
  constexpr int kLanes = kBytes / static_cast<int>(sizeof(Vector{}[0]));
  const double rounds = rate(pool, kRounds, [](long n) {
    Vector acc[kChains] = {}, a = {}, b = {};
    for (long k = 0; k < n; ++k) {
#pragma GCC unroll 24
      for (int i = 0; i < kChains; ++i) {
        // Opaque each time, or one product would serve all the sums.
        asm volatile("" : STET_REGISTER(a), STET_REGISTER(b));
        acc[i] = a * b + acc[i];
      }
    }
    for (Vector& v : acc) asm volatile("" : "+m"(v));
  });
  return rounds * kChains * kLanes * 2 / 1e9;
}

#if defined(__AVX512VNNI__) || defined(__AVX512BF16__)
#define STET_CLOBBERS                                                                                              \
  "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", \
      "xmm13", "xmm14", "xmm15", "xmm16", "xmm17", "xmm18", "xmm19", "xmm20", "xmm21", "xmm22", "xmm23", "xmm24",  \
      "xmm25", "xmm26", "xmm27", "xmm28", "xmm29", "xmm30", "xmm31"
#define STET_ZEROS                                                                       \
  ".irp r,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,30,31\n vpxord " \
  "%%zmm\\r,%%zmm\\r,%%zmm\\r\n.endr\n"

// Loops in text: around these intrinsics g++ 12 copies registers, or sees that all chains are equal and keeps one.
#define STET_CHAINS(instruction, rounds)                                                \
  asm volatile(STET_ZEROS                                                               \
               "1:\n"                                                                   \
               ".irp r,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23\n" \
               " " instruction                                                          \
               " %%zmm30,%%zmm31,%%zmm\\r\n.endr\n"                                     \
               "dec %0\n jnz 1b\n"                                                      \
               : "+r"(rounds)::STET_CLOBBERS)
#endif

#if defined(__AVX512VNNI__)
double vnni_peak(base::ThreadPool& pool) {
  return rate(pool, kRounds, [](long rounds) { STET_CHAINS("vpdpbusd", rounds); }) * 24 * 16 * 4 * 2 / 1e9;
}

// What scales in groups cost at least: for each group and 16 outputs a conversion, a product of the two scales and a
// fused sum, which is what `finish` does for accumulator s. Twelve of them and as many float totals.
template <int kGroup>
double grouped_peak(base::ThreadPool& pool) {
  const double groups = rate(pool, kRounds / 8, [](long rounds) {
#define STET_FINISH(sum, total, a, b)                                                                           \
  "vcvtdq2ps %%zmm" #sum ",%%zmm" #a "\n vmulps %%zmm30,%%zmm31,%%zmm" #b "\n vfmadd231ps %%zmm" #a ",%%zmm" #b \
  ",%%zmm" #total "\n vpxord %%zmm" #sum ",%%zmm" #sum ",%%zmm" #sum "\n"
    asm volatile(STET_ZEROS
                 "1:\n"
                 ".rept %c1\n"
                 ".irp r,0,1,2,3,4,5,6,7,8,9,10,11\n vpdpbusd %%zmm30,%%zmm31,%%zmm\\r\n.endr\n"
                 ".endr\n"  //
                 STET_FINISH(0, 12, 24, 25) STET_FINISH(1, 13, 26, 27) STET_FINISH(2, 14, 28, 29) STET_FINISH(
                     3, 15, 24, 25) STET_FINISH(4, 16, 26, 27) STET_FINISH(5, 17, 28, 29) STET_FINISH(6, 18, 24, 25)
                     STET_FINISH(7, 19, 26, 27) STET_FINISH(8, 20, 28, 29) STET_FINISH(9, 21, 24, 25)
                         STET_FINISH(10, 22, 26, 27) STET_FINISH(11, 23, 28, 29) "dec %0\n jnz 1b\n"
                 : "+r"(rounds)
                 : "i"(kGroup / 4)
                 : STET_CLOBBERS);
#undef STET_FINISH
  });
  return groups * 12 * kGroup * 16 * 2 / 1e9;
}
#endif

#if defined(__AVX512BF16__)
double bf16_peak(base::ThreadPool& pool) {
  return rate(pool, kRounds, [](long rounds) { STET_CHAINS("vdpbf16ps", rounds); }) * 24 * 16 * 2 * 2 / 1e9;
}
#endif

// The best of a few short bursts: a burst is one time slice, and the system takes the CPU away now and then.
template <class Peak>
double best(const Peak& peak) {
  double most = 0;
  for (int i = 0; i < 8; ++i) most = std::max(most, peak());
  return most;
}

}  // namespace

double now() noexcept {
  timespec time{};
  clock_gettime(clock_used, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

void count_cpu_time() noexcept {
  clock_used = CLOCK_THREAD_CPUTIME_ID;
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

double read_gb_s(base::ThreadPool& pool, std::span<const std::byte> bytes) {
  // Small shares: one that the system held up does not hold up the pass. Plain loads, and loads of lines that were
  // asked for before: which of them is faster changes with the machine's mood.
  constexpr std::size_t kShare = std::size_t{1} << 18, kStep = 8 * kBytes, kAhead = 8192;
  const std::size_t shares = bytes.size() / kShare;
  std::atomic<std::uint64_t> sink{0};
  const auto pass = [&](bool ask) {
    const double start = now();
    pool.run(shares, [&](std::size_t i) {
      const std::byte* at = bytes.data() + i * kShare;
      Words acc[8] = {};
      for (std::size_t k = 0; k < kShare; k += kStep) {
        for (std::size_t line = 0; ask && line < kStep; line += 64) __builtin_prefetch(at + k + line + kAhead);
        for (std::size_t v = 0; v < 8; ++v) acc[v] ^= *reinterpret_cast<const Words*>(at + k + v * kBytes);
      }
      for (std::size_t v = 1; v < 8; ++v) acc[0] ^= acc[v];
      sink.fetch_xor(acc[0][0], std::memory_order_relaxed);
    });
    return static_cast<double>(shares * kShare) / (now() - start) / 1e9;
  };
  return std::max(pass(false), pass(true));
}

Peaks peaks(base::ThreadPool& pool) {
  Peaks p;
  p.f32 = best([&] { return fma_peak<Floats>(pool); });
  p.f64 = best([&] { return fma_peak<Doubles>(pool); });
#if defined(__AVX512VNNI__)
  p.int8 = best([&] { return vnni_peak(pool); });
  p.int8_by_64 = best([&] { return grouped_peak<64>(pool); });
  p.int8_by_32 = best([&] { return grouped_peak<32>(pool); });
#endif
#if defined(__AVX512BF16__)
  p.bf16 = best([&] { return bf16_peak(pool); });
#endif
  return p;
}

}  // namespace stet::bench
