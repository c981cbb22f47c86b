// Prints a digest of logits for every instruction set that this machine runs, to be compared with those of other
// machines (tools/qemu_digest):
//
//   numerics 1
//   avx2 long bf16 0123456789abcdef     (target, case, weight type, FNV-1a of the bits of all logits)
//   ...
//   planted-ref long f32 ...            (a LayerNorm that sums in another order: must not have the digest of the
//   others)
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "base/thread_pool.hpp"
#include "kernels/kernels.hpp"
#include "model/model.hpp"
#include "stet/cache.hpp"
#include "stet/version.hpp"
#include "weights/checkpoint.hpp"

namespace stet {
namespace {

struct Case {
  const char* name;
  const char* model;
  std::vector<int> steps;  // tokens of each
  // Of the cache, where it is not the plain one.
  struct Stored {
    Codec k, v;
    Span span;
  };
  std::optional<Stored> stored = std::nullopt;  // in pages, with windows that evict
};

// Two blocks of attention (rule 4), full and ragged tiles of rows, the last rows one by one.
std::vector<Case> cases() {
  return {
      {"long", "random:char,ctx=600,layers=2,seed=1", {100, 1, 1, 1, 7, 64, 330, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 13}},
      // Widths and counts that are multiples of nothing.
      {"odd", "random:char,layers=3,heads=3,width=39,inner=77,vocab=101,ctx=50,seed=5", {17, 1, 1, 1, 5, 1}},
      // Rotary positions, grouped queries, a window.
      {"llama", "random:llama-tiny,window=20,seed=3", {40, 1, 1, 7, 1}},
      // Every reduced codec, windows and sinks; head dims of 13 fill neither vectors nor pairs.
      {"kv-halves", "random:llama-tiny,seed=4", {30, 1, 1, 9, 1}, Case::Stored{Codec::bf16, Codec::f16, {}}},
      {"kv-codes", "random:llama-tiny,seed=6", {30, 1, 1, 9, 1}, Case::Stored{Codec::int8, Codec::int4, {20, 3}}},
      {"kv-odd",
       "random:char,layers=3,heads=3,width=39,vocab=101,ctx=50,seed=7",
       {17, 1, 1, 1, 5, 1},
       Case::Stored{Codec::int4, Codec::int8, {9, 2}}}};
}

constexpr DType kTypes[] = {DType::f64, DType::f32, DType::bf16, DType::f16, DType::int8, DType::int4};

// FNV-1a (Fowler, Noll, Vo), 64 bits, over bytes in little-endian order.
class Digest {
 public:
  template <class T>
  void add(const T* values, std::size_t count) {
    static_assert(std::endian::native == std::endian::little);
    const auto* bytes = reinterpret_cast<const unsigned char*>(values);
    for (std::size_t i = 0; i < count * sizeof(T); ++i) hash_ = (hash_ ^ bytes[i]) * 0x100000001B3;
    for (std::size_t i = 0; i < count; ++i) finite_ = finite_ && std::isfinite(values[i]);
  }
  std::uint64_t value() const { return hash_; }
  bool finite() const { return finite_; }  // NaNs are outside the promise

 private:
  std::uint64_t hash_ = 0xCBF29CE484222325;
  bool finite_ = true;
};

Result<std::unique_ptr<model::Model>> load(const Case& c, DType type) {
  auto random = weights::make_random(c.model);
  if (!random) return pass(random);
  auto prefix = weights::check_tensors(*random->source, random->config, c.model);
  if (!prefix) return pass(prefix);
  return model::load(random->config, *random->source, *prefix, type, {});
}

// Any ids do, as long as they are the same everywhere.
std::vector<TokenId> ids_of(const Case& c, int vocab) {
  std::vector<TokenId> ids;
  std::uint32_t x = 1;
  for (const int n : c.steps) {
    for (int i = 0; i < n; ++i) {
      x = x * 1664525U + 1013904223U;  // Numerical Recipes' generator
      ids.push_back(static_cast<TokenId>((x >> 8) % static_cast<std::uint32_t>(vocab)));
    }
  }
  return ids;
}

Result<std::uint64_t> digest(const Case& c, const model::Model& model, const kernels::Target& target) {
  const auto vocab = static_cast<std::size_t>(model.config().vocab);
  const auto ids = ids_of(c, model.config().vocab);
  const int most = *std::max_element(c.steps.begin(), c.steps.end());
  CacheOptions options;
  options.max_len = static_cast<Pos>(ids.size());
  options.poison = std::numeric_limits<double>::quiet_NaN();
  CacheSpec spec = model.cache_spec();
  if (c.stored) {
    options.layout = Layout::paged;
    for (LayerSpec& layer : spec.layers) {
      layer.k = c.stored->k;
      layer.v = c.stored->v;
      layer.span = c.stored->span;
    }
  }
  auto cache = make_cache(spec, options);
  if (!cache) return pass(cache);
  auto workspace = base::Buffer::allocate(model.workspace_bytes(most));
  if (!workspace) return pass(workspace);
  auto logits = base::Buffer::allocate(static_cast<std::size_t>(most) * vocab * size_of(model.dtype()));
  if (!logits) return pass(logits);
  auto seq = (*cache)->open();
  if (!seq) return pass(seq);
  base::ThreadPool pool(1);
  Digest hash;
  std::size_t at = 0;
  for (const int n : c.steps) {
    const Append append{*seq, n};
    auto step = (*cache)->begin({&append, 1});
    if (!step) return pass(step);
    std::vector<int> rows(static_cast<std::size_t>(n));
    for (int r = 0; r < n; ++r) rows[static_cast<std::size_t>(r)] = r;
    auto done = model.forward({&pool, &target}, **step, std::span(ids).subspan(at, rows.size()), {rows, logits->data()},
                              *workspace);
    if (!done) return pass(done);
    (*step)->commit();
    if (model.dtype() == DType::f64) {
      hash.add(logits->as<double>(), rows.size() * vocab);
    } else {
      hash.add(logits->as<float>(), rows.size() * vocab);
    }
    at += rows.size();
  }
  if (!hash.finite()) return fail(Code::corrupt, "logits that are not finite have no digest");
  return hash.value();
}

// Rule 2 broken as a compiler or a hurried author would, in both norms: one running sum instead of 16 lanes and a tree.
void layer_norm_in_one_sum(const kernels::LayerNorm<float>& op, kernels::Range rows) {
  for (int r = rows.begin; r < rows.end; ++r) {
    const float* x = op.x + static_cast<std::size_t>(r) * op.x_stride;
    float* y = op.y + static_cast<std::size_t>(r) * op.y_stride;
    if (op.bias == nullptr) {
      float squares = 0;
      for (int i = 0; i < op.width; ++i) squares = std::fma(x[i], x[i], squares);
      const float scale = 1 / std::sqrt(squares / static_cast<float>(op.width) + op.epsilon);
      for (int i = 0; i < op.width; ++i) y[i] = (x[i] * scale) * op.gain[i];
      continue;
    }
    const auto width = static_cast<float>(op.width);
    float sum = 0, squares = 0;
    for (int i = 0; i < op.width; ++i) sum += x[i];
    const float mean = sum / width;
    for (int i = 0; i < op.width; ++i) squares = std::fma(x[i] - mean, x[i] - mean, squares);
    const float scale = 1 / std::sqrt(squares / width + op.epsilon);
    for (int i = 0; i < op.width; ++i) y[i] = std::fma((x[i] - mean) * scale, op.gain[i], op.bias[i]);
  }
}

Result<void> print_all() {
  if (auto ok = check_cpu(); !ok) return ok;
  fmt::print("numerics {}\n", version().numerics);
  const auto print = [](const kernels::Target& target, const Case& c, DType type,
                        const model::Model& model) -> Result<void> {
    const auto value = digest(c, model, target);
    if (!value)
      return fail(value.error().code,
                  fmt::format("{} {} {}: {}", target.name, c.name, name_of(type), value.error().message));
    fmt::print("{} {} {} {:016x}\n", target.name, c.name, name_of(type), *value);
    std::fflush(stdout);
    return {};
  };
  for (const Case& c : cases()) {
    for (const DType type : kTypes) {
      const auto model = load(c, type);
      if (!model) return pass(model);
      for (const kernels::Target& target : kernels::targets()) {
        if (auto ok = print(target, c, type, **model); !ok) return ok;
      }
      if (type != DType::f32) continue;
      kernels::Table<float> table = kernels::ref_f32();
      table.layer_norm = layer_norm_in_one_sum;
      kernels::Target planted = kernels::targets().back();
      planted.name = "planted-ref";
      planted.f32 = &table;
      if (auto ok = print(planted, c, type, **model); !ok) return ok;
    }
  }
  return {};
}

}  // namespace
}  // namespace stet

int main() {
  if (auto ok = stet::print_all(); !ok) {
    fmt::print(stderr, "digest: {}\n", ok.error().message);
    return 1;
  }
  return 0;
}
