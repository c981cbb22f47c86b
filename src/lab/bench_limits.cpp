#include "lab/bench_limits.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/probe.hpp"

namespace stet::lab {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kMeasureSeconds = 0.12;                // for each limit
constexpr double kBurstSeconds = 0.001;                 // short enough that some of them meet no other program
constexpr std::size_t kMinRead = std::size_t{4} << 20;  // bytes between two looks at the clock

double seconds_of(const auto& work) {
  const auto start = Clock::now();
  work();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// The largest rate(i) of at least six and kMeasureSeconds of them.
double best_of(const auto& rate) {
  const auto start = Clock::now();
  double best = 0;
  for (int i = 0; i < 6 || std::chrono::duration<double>(Clock::now() - start).count() < kMeasureSeconds; ++i) {
    best = std::max(best, rate(i));
  }
  return best;
}

// Tasks: a contiguous part for each thread, or smaller ones that threads take as they come, as kernels do.
std::size_t parts_of(const kernels::Compute& on, int i) {
  return static_cast<std::size_t>(on.pool->threads()) * (i % 2 == 0 ? 1 : 4);
}

}  // namespace

Limits better(const Limits& a, const Limits& b) {
  return {std::max(a.read_gb_s, b.read_gb_s), std::max(a.peak_gflop_s, b.peak_gflop_s),
          std::max(a.vector_peak_gflop_s, b.vector_peak_gflop_s)};
}

Result<void> LimitsMeter::reserve(std::size_t bytes) {
  const std::size_t least = 4 * static_cast<std::size_t>(on_.pool->threads()) * kernels::kProbeBlock;
  bytes = std::max(bytes, least);
  if (buffer_.size() >= bytes) return {};
  buffer_ = {};
  auto buffer = base::Buffer::allocate(bytes);
  if (!buffer) return pass(buffer);
  buffer_ = std::move(*buffer);
  buffer_.prefer_huge_pages();  // as the weights have them
  // Pages that nobody wrote to are all the same one.
  const std::size_t part = buffer_.size() / static_cast<std::size_t>(on_.pool->threads());
  on_.pool->run(static_cast<std::size_t>(on_.pool->threads()),
                [&](std::size_t i) { std::memset(buffer_.data() + i * part, 0x5a, part); });
  return {};
}

double LimitsMeter::read_gb_s(std::size_t bytes) {
  const kernels::Probe probe = kernels::probe_of(*on_.target);
  std::atomic<std::uint64_t> value{0};
  return best_of([&](int i) {
    const std::size_t parts = parts_of(on_, i);
    const std::size_t part = std::max<std::size_t>(1, bytes / parts / kernels::kProbeBlock) * kernels::kProbeBlock;
    const std::size_t passes = std::max<std::size_t>(1, kMinRead / (part * parts));
    const std::array reads{probe.read, probe.read_four_streams, probe.read_asked};
    const auto read = reads[static_cast<std::size_t>(i / 2 % 3)];
    const double seconds = seconds_of([&] {
      on_.pool->run(parts, [&](std::size_t p) {
        for (std::size_t pass = 0; pass < passes; ++pass) value += read(buffer_.data() + p * part, part);
      });
    });
    return static_cast<double>(part * parts * passes) / seconds / 1e9;
  });
}

double LimitsMeter::peak_gflop_s(DType weights) {
  const kernels::Probe probe = kernels::probe_of(*on_.target);
  std::size_t rounds = 1000;
  while (seconds_of([&] { (void)probe.burst(weights, rounds); }) < kBurstSeconds) rounds *= 2;
  return best_of([&](int i) {
    const std::size_t parts = parts_of(on_, i);
    std::vector<kernels::Burst> bursts(parts);
    const double seconds =
        seconds_of([&] { on_.pool->run(parts, [&](std::size_t p) { bursts[p] = probe.burst(weights, rounds); }); });
    double operations = 0;
    for (const auto& burst : bursts) operations += burst.operations;
    return operations / seconds / 1e9;
  });
}

Result<Limits> LimitsMeter::measure(std::size_t bytes, DType weights) {
  if (auto ok = reserve(bytes); !ok) return pass(ok);
  Limits limits;
  limits.read_gb_s = read_gb_s(bytes);
  limits.peak_gflop_s = peak_gflop_s(weights);
  limits.vector_peak_gflop_s = kernels::group_size(weights) > 1 ? peak_gflop_s(DType::f32) : limits.peak_gflop_s;
  return limits;
}

namespace {

template <class T>
Result<double> matmul_rate(const kernels::Compute& on, DType weights) {
  constexpr int kRows = 512, kIn = 768, kOut = 3072;
  auto w = kernels::Packed::allocate(weights, kIn, kOut);
  if (!w) return pass(w);
  std::mt19937 engine(1);
  const auto random = [&engine](std::size_t n) {
    std::vector<T> values(n);
    for (T& v : values) v = static_cast<T>(engine()) / T(4294967296.0) - T(0.5);
    return values;
  };
  const auto x = random(std::size_t{kRows} * kIn);
  for (int n = 0; n < kOut; ++n) w->template set_outputs<T>(n, 1, random(kIn));
  std::vector<T> y(std::size_t{kRows} * kOut);
  std::vector<std::byte> scratch(kernels::quantized_bytes(weights, kRows, kIn) + base::kAlign);
  auto* aligned = scratch.data() + (base::kAlign - reinterpret_cast<std::uintptr_t>(scratch.data()) % base::kAlign);
  const kernels::Matmul<T> op{x.data(), kIn, &*w, nullptr, y.data(), kOut};
  return best_of([&](int) {
    const double seconds = seconds_of([&] { kernels::run_matmul(on, op, kRows, aligned); });
    return 2.0 * kRows * kIn * kOut / seconds / 1e9;
  });
}

}  // namespace

Result<double> LimitsMeter::matmul_gflop_s(DType weights) {
  return weights == DType::f64 ? matmul_rate<double>(on_, weights) : matmul_rate<float>(on_, weights);
}

}  // namespace stet::lab
