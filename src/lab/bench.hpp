// Speed beside its bound: how long prefill and decode take, and how long this machine would need in these very minutes
// if it did nothing but read the bytes or compute the operations.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lab/bench_work.hpp"
#include "stet/engine.hpp"
#include "stet/result.hpp"

namespace stet::lab {

/// As deep as the context allows: what a test does ends at the model's limit.
inline constexpr Pos kNearLimit = -1;

struct BenchTest {
  enum class Kind : std::uint8_t { prefill, decode } kind = Kind::prefill;
  int tokens = 512;  // of the prompt, in one step; or decoded one by one
};

struct BenchOptions {
  std::string model;
  std::vector<DType> dtypes = {DType::f32};
  std::vector<KvCodecs> kv;                 // one after the other; none: a cache in the type of the arithmetic
  CacheMode cache = CacheMode::contiguous;  // any but `none`. Pages lie in an order that `seed` shuffles
  Pos page_tokens = 16, pool_tokens = 0;    // of a paged cache
  std::optional<Span> span;                 // what queries see, instead of what the model says
  std::vector<BenchTest> tests = {
      {BenchTest::Kind::prefill, 512}, {BenchTest::Kind::prefill, 16}, {BenchTest::Kind::decode, 128}};
  std::vector<Pos> depths = {0, kNearLimit};  // tokens in each sequence before the test
  std::vector<int> batches = {1, 4, 16};      // sequences decoded together; prefill is of one sequence
  int threads = 1;
  int repeats = 5;
  std::uint64_t seed = 0;  // of the token ids
};

struct BenchCase {
  BenchTest test;
  Pos depth = 0;
  int batch = 1;
  friend bool operator==(const BenchCase& a, const BenchCase& b) {
    return a.test.kind == b.test.kind && a.test.tokens == b.test.tokens && a.depth == b.depth && a.batch == b.batch;
  }
};

/// "pp512", "tg128".
std::string name_of(const BenchTest& test);

/// The cases that the options ask of a model with such a context, none twice. Tests are shortened to what fits behind
/// their depth. Code::invalid_argument names a depth with no room behind it.
Result<std::vector<BenchCase>> bench_cases(const BenchOptions& options, Pos context);

struct BenchRow {
  BenchCase at;
  DType dtype = DType::f32;
  std::string kv;  // how the cache stores, in words of the flag
  int threads = 1;
  double ms = 0;  // median: of one step of decode, of a whole prefill
  Work work;      // of that step
  Limits limits;  // the better ones of before and after
  double bound() const { return bound_ms(work, limits); }
  double of_bound() const { return bound() / ms; }  // 1: at the machine's limit
  double tok_s() const;
};

/// The fastest kernel and the fastest peak loop that the run saw of a type.
struct BenchPeak {
  DType dtype = DType::f32;
  double peak_gflop_s = 0, kernel_gflop_s = 0;
};

struct BenchReport {
  std::vector<BenchRow> rows;
  std::vector<BenchPeak> peaks;
};

/// Why the run's bounds cannot be right, a line each: a row above 103 % of its bound, a kernel faster than its peak
/// loop. Empty: nothing speaks against them.
std::vector<std::string> bench_faults(const BenchReport& report);

struct BenchCallbacks {
  std::function<void(const BenchRow&)> on_row;
  std::function<void(std::string_view)> on_progress;
  std::function<bool()> keep_going;  // false: Code::interrupted
};

/// Appends to `report` as rows are done; those stay after an error. Code::invalid_argument names a cache that cannot
/// be.
Result<void> bench(const BenchOptions& options, const BenchCallbacks& callbacks, BenchReport& report);

}  // namespace stet::lab
