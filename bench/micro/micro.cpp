// Single kernels of every target, on one thread, at GPT-2's shapes. Before a kernel is timed its result is compared
// with that of kernels/ref on the same inputs, byte by byte; one that differs is not timed.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/kernels.hpp"
#include "stet/cache.hpp"

namespace {

using namespace stet;
using namespace stet::kernels;

const Target& ref() {
  return targets().back();
}

template <class T>
std::vector<T> random_values(std::size_t n, unsigned seed) {
  std::mt19937 engine(seed);
  std::vector<T> values(n);
  for (T& v : values) v = static_cast<T>(engine()) / T(4294967296.0) - T(0.5);
  return values;
}

// Whether the two results are the same bits; if not, the benchmark ends without a time.
template <class T>
bool same_bits(benchmark::State& state, const std::vector<T>& result, const std::vector<T>& expected) {
  if (std::memcmp(result.data(), expected.data(), expected.size() * sizeof(T)) == 0) return true;
  state.SkipWithError("differs from kernels/ref");
  return false;
}

void count(benchmark::State& state, double operations, double bytes) {
  using benchmark::Counter;
  state.counters["GFLOP/s"] = Counter(operations / 1e9, Counter::kIsIterationInvariantRate);
  state.counters["GB/s"] = Counter(bytes / 1e9, Counter::kIsIterationInvariantRate);
}

struct MatmulShape {
  int rows, in, out;
};

// Inputs of one matmul and what kernels/ref makes of them; kept for the targets that follow.
template <class T>
struct MatmulCase {
  Packed w;
  std::vector<T> x, bias, expected;
  std::vector<std::int8_t> q;
  std::vector<float> scales;
  std::vector<std::int32_t> sums;

  Matmul<T> op(const MatmulShape& s, std::vector<T>& y) {
    Matmul<T> m{x.data(), static_cast<std::size_t>(s.in), &w, bias.data(), y.data(), static_cast<std::size_t>(s.out)};
    if (!q.empty()) m.quantized = {q.data(), scales.data(), sums.data(), w.groups(), group_size(w.type())};
    return m;
  }
};

template <class T>
MatmulCase<T> make_matmul(DType type, const MatmulShape& s) {
  MatmulCase<T> made;
  auto w = Packed::allocate(type, s.in, s.out);
  if (!w) throw std::bad_alloc();
  made.w = std::move(*w);
  made.w.template set_inputs<T>(0, s.in,
                                random_values<T>(static_cast<std::size_t>(s.in) * static_cast<std::size_t>(s.out), 3));
  const auto rows = static_cast<std::size_t>(s.rows);
  made.x = random_values<T>(rows * static_cast<std::size_t>(s.in), 1);
  made.bias = random_values<T>(static_cast<std::size_t>(s.out), 2);
  std::vector<T> y(rows * static_cast<std::size_t>(s.out));
  if constexpr (sizeof(T) == sizeof(float)) {
    if (group_size(type) > 1) {
      const auto groups = rows * static_cast<std::size_t>(made.w.groups());
      made.q.resize(groups * static_cast<std::size_t>(group_size(type)));
      made.scales.resize(groups);
      made.sums.resize(groups);
      const auto quantized = made.op(s, y).quantized;
      ref().table<T>().quantize({made.x.data(), static_cast<std::size_t>(s.in), s.in, quantized}, {0, s.rows});
    }
  }
  ref().table<T>().matmul(made.op(s, y), {0, s.rows}, {0, made.w.panels()});
  made.expected = y;
  return made;
}

template <class T>
void matmul(benchmark::State& state, const Target& target, DType type, const MatmulShape& s) {
  // The latest alone, since benchmarks of one case follow each other.
  static std::tuple<DType, int, int, int> kept{};
  static MatmulCase<T> c;
  const std::tuple key{type, s.rows, s.in, s.out};
  if (c.expected.empty() || kept != key) c = make_matmul<T>(type, s);
  kept = key;
  std::vector<T> y(c.expected.size());
  const auto run = [&] { target.table<T>().matmul(c.op(s, y), {0, s.rows}, {0, c.w.panels()}); };
  run();
  if (!same_bits(state, y, c.expected)) return;
  for (auto _ : state) {
    run();
    benchmark::ClobberMemory();
  }
  count(state, 2.0 * s.rows * s.in * s.out, static_cast<double>(Packed::bytes(type, s.in, s.out)));
}

// `rows` queries at the end of a sequence of `length` tokens, 12 heads of 64.
template <class T>
void attend(benchmark::State& state, const Target& target, int rows, Pos length) {
  constexpr int kHeads = 12, kDim = 64;
  constexpr std::size_t kWidth = kHeads * kDim;
  constexpr bool kDouble = sizeof(T) == sizeof(double);
  constexpr Codec kCodec = kDouble ? Codec::f64 : Codec::f32;
  CacheOptions options;
  options.max_len = length;
  auto cache = make_cache({{{kHeads, kDim, kDim, kCodec, kCodec, {}}}}, options);
  if (!cache) return state.SkipWithError("no memory for the cache");
  const auto seq = (*cache)->open();
  const auto k = random_values<T>(static_cast<std::size_t>(length) * kWidth, 1), v = random_values<T>(k.size(), 2),
             q = random_values<T>(static_cast<std::size_t>(rows) * kWidth, 3);
  const Append append{*seq, static_cast<int>(length)};
  auto step = (*cache)->begin({&append, 1});
  const auto rows_of = [](const std::vector<T>& x) {
    return Rows{kDouble ? DType::f64 : DType::f32, reinterpret_cast<const std::byte*>(x.data()), kWidth * sizeof(T)};
  };
  (*step)->write(0, {0, kHeads}, rows_of(k), rows_of(v));
  const auto run = [&](const Target& on, std::vector<T>& out) {
    on.table<T>().attend(
        {(*step)->view(0, 0), length - rows, rows, kHeads, T(0.125), q.data(), kWidth, out.data(), kWidth}, {0, rows},
        {0, kHeads});
  };
  std::vector<T> expected(q.size()), out(q.size());
  run(ref(), expected);
  run(target, out);
  if (!same_bits(state, out, expected)) return;
  for (auto _ : state) {
    run(target, out);
    benchmark::ClobberMemory();
  }
  const double first = static_cast<double>(length - rows), n = rows;
  count(state, 4.0 * kWidth * (n * first + n * (n + 1) / 2), 2.0 * static_cast<double>(length) * kWidth * sizeof(T));
}

template <class T>
void layer_norm(benchmark::State& state, const Target& target, int rows) {
  constexpr int kWidth = 768;
  const auto x = random_values<T>(static_cast<std::size_t>(rows) * kWidth, 1), gain = random_values<T>(kWidth, 2),
             bias = random_values<T>(kWidth, 3);
  std::vector<T> y(x.size()), expected(x.size());
  const auto run = [&](const Target& on, std::vector<T>& to) {
    on.table<T>().layer_norm({x.data(), kWidth, gain.data(), bias.data(), T(1e-5), kWidth, to.data(), kWidth},
                             {0, rows});
  };
  run(ref(), expected);
  run(target, y);
  if (!same_bits(state, y, expected)) return;
  for (auto _ : state) {
    run(target, y);
    benchmark::ClobberMemory();
  }
  count(state, 0, 2.0 * rows * kWidth * sizeof(T));
}

template <class T>
void gelu(benchmark::State& state, const Target& target, Activation activation) {
  const auto x = random_values<T>(3072, 1);
  auto y = x, expected = x;
  ref().table<T>().activate(activation, expected);
  target.table<T>().activate(activation, y);
  if (!same_bits(state, y, expected)) return;
  for (auto _ : state) {
    // In place: the copy belongs to the time, and keeps the values what they are in a model.
    std::copy(x.begin(), x.end(), y.begin());
    target.table<T>().activate(activation, y);
    benchmark::ClobberMemory();
  }
  count(state, 0, 2.0 * sizeof(T) * static_cast<double>(x.size()));
}

template <class... Args>
void add(const std::string& name, Args... args) {
  benchmark::RegisterBenchmark(name.c_str(), args...);
}

template <class T>
void add_vectors(const char* type) {
  for (const Target& target : targets()) {
    const auto name = [&](const std::string& kernel) { return kernel + "/" + type + "/" + target.name; };
    for (const Pos length : {128, 1024}) {
      add(name("attend/decode/" + std::to_string(length)),
          [&target, length](benchmark::State& s) { attend<T>(s, target, 1, length); });
    }
    add(name("attend/prefill/512"), [&target](benchmark::State& s) { attend<T>(s, target, 512, 512); });
    for (const int rows : {1, 512}) {
      add(name("layer_norm/" + std::to_string(rows)),
          [&target, rows](benchmark::State& s) { layer_norm<T>(s, target, rows); });
    }
    add(name("gelu_tanh"), [&target](benchmark::State& s) { gelu<T>(s, target, Activation::gelu_tanh); });
    add(name("gelu_erf"), [&target](benchmark::State& s) { gelu<T>(s, target, Activation::gelu_erf); });
  }
}

void add_matmuls() {
  constexpr int kRows[] = {1, 6, 16, 512};
  constexpr int kShapes[][2] = {{768, 2304}, {768, 768}, {768, 3072}, {3072, 768}, {768, 50257}};
  for (const DType type : {DType::f32, DType::bf16, DType::f16, DType::int8, DType::int4, DType::f64}) {
    for (const auto& [in, out] : kShapes) {
      for (const int rows : kRows) {
        if (rows == 512 && out > 4096) continue;  // no step wants that many rows of the head
        for (const Target& target : targets()) {
          const MatmulShape shape{rows, in, out};
          add("matmul/" + std::string(name_of(type)) + "/" + std::to_string(rows) + "x" + std::to_string(in) + "x" +
                  std::to_string(out) + "/" + target.name,
              [&target, type, shape](benchmark::State& s) {
                type == DType::f64 ? matmul<double>(s, target, type, shape) : matmul<float>(s, target, type, shape);
              });
        }
      }
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (!cpu_fuses()) return 1;
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  add_matmuls();
  add_vectors<float>("f32");
  add_vectors<double>("f64");
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
