// Paths run against each other, logits compared bit by bit: the promise of docs/numerics.md, put to the test on any
// model.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/loaded.hpp"
#include "lab/wrap.hpp"
#include "stet/result.hpp"
#include "stet/types.hpp"

namespace stet::lab {

struct VerifyOptions {
  std::string model;
  std::vector<DType> dtypes = {DType::f32, DType::f64};  // separate runs, never compared with each other
  Pos tokens = 0;                                        // longest sequence; 0: the context, at most 128
  double budget_seconds = 0;                             // for everything; 0: none. Shrinks lengths, never pairs
  std::optional<Plant> plant;                            // damages one side of each pair
  std::uint64_t seed = 0;                                // of the token ids
  bool all = false;                                      // every combination of layout, codec, page, window, chunk
                                                         // and threads, and forks at every position
};

/// "flip-bit" or "stale-row".
Result<Plant> parse_plant(std::string_view name);

struct Pair {
  std::string name;  // "prefill/chunks of 16"
  DType dtype = DType::f32;
  Pos tokens = 0;                           // length of its sequences
  std::size_t compared = 0, differing = 0;  // elements: logits, or ids for pairs that sample
  std::uint64_t max_ulp = 0;                // largest distance in units in the last place; 0 for ids
  std::string path_a, path_b;               // what each side really did
  bool skipped = false;                     // with the reason in `note`
  std::string note;                         // "100 of 1024 tokens: budget", ...

  /// Something was compared, over two different paths, and no bit differed.
  bool equal() const { return compared > 0 && differing == 0 && path_a != path_b; }
};

struct VerifyReport {
  std::vector<Pair> pairs;
  bool equal = false;  // every pair that was not skipped is equal, and there is one
};

struct VerifyCallbacks {
  std::function<void(const Pair&)> on_pair;           // a pair is done
  std::function<void(std::string_view)> on_progress;  // what is being done now
  std::function<bool()> keep_going;                   // false: Code::interrupted
};

Result<VerifyReport> verify(const VerifyOptions& options, const VerifyCallbacks& callbacks);

/// The same on a model that is already loaded, for one dtype; appends to the report. `target`: the kernels of every
/// path that does not name others.
Result<void> verify_loaded(const engine::Loaded& loaded, const VerifyOptions& options, double budget_seconds,
                           const VerifyCallbacks& callbacks, VerifyReport& report,
                           const kernels::Target& target = kernels::targets().front());

/// Elements that differ between two arrays of one dtype, and their largest distance in units in the last place.
struct Difference {
  std::size_t differing = 0;
  std::uint64_t max_ulp = 0;
};
Difference compare_bits(const std::vector<std::byte>& a, const std::vector<std::byte>& b, DType dtype);

}  // namespace stet::lab
