// The KV cache on its own, inside somebody else's model: only stet/cache.hpp is used.
//
// Shows three things and exits 1 if one does not hold: the plan equals what the cache reserves, to the byte; the rows
// that were written are read back exactly; and writing a sequence in one step or token by token stores the same bytes.
#include "stet/cache.hpp"

#include <cmath>
#include <cstring>
#include <iostream>
#include <string>
#include <vector>

namespace {

constexpr int kLayers = 2, kHeads = 3, kDim = 8, kTokens = 37;

stet::CacheSpec my_model() {
  stet::LayerSpec layer;
  layer.kv_heads = kHeads;
  layer.k_dim = layer.v_dim = kDim;
  return {std::vector<stet::LayerSpec>(kLayers, layer)};
}

// Stands for the key and value projections of a model: row after row, [heads][dim] in each. `kind` 0 is K, 1 is V.
std::vector<float> project(int layer, stet::Pos first, int tokens, int kind) {
  std::vector<float> rows;
  for (int i = 0; i < tokens * kHeads * kDim; ++i) {
    const auto at = static_cast<double>(first * kHeads * kDim + i);
    rows.push_back(static_cast<float>(std::sin(at * 0.37 + layer * 11 + kind * 5)));
  }
  return rows;
}

stet::Rows as_rows(const std::vector<float>& values) {
  return {stet::DType::f32, reinterpret_cast<const std::byte*>(values.data()), kHeads * kDim * sizeof(float)};
}

// Appends `tokens` rows to the sequence: begin, write every layer, commit.
stet::Result<void> append(stet::Cache& cache, stet::Seq seq, int tokens) {
  const stet::Append wanted{seq, tokens};
  auto step = cache.begin({&wanted, 1});
  if (!step) return stet::pass(step);
  const stet::Pos first = (*step)->slices()[0].first;  // the cache owns positions
  for (int layer = 0; layer < kLayers; ++layer) {
    const auto k = project(layer, first, tokens, 0), v = project(layer, first, tokens, 1);
    (*step)->write(layer, {0, kHeads}, as_rows(k), as_rows(v));
    // A model attends here, over (*step)->view(layer, 0): the rows of this very step are in it.
  }
  (*step)->commit();
  return {};
}

// Every stored key and value, read back through the codec.
stet::Result<std::vector<double>> read_all(const stet::Cache& cache, stet::Seq seq) {
  std::vector<double> all;
  std::vector<double> row(kDim);
  for (int layer = 0; layer < kLayers; ++layer) {
    const auto view = cache.peek(seq, layer);
    if (!view) return stet::pass(view);
    for (stet::Pos pos = view->first; pos < view->first + view->count; ++pos) {
      for (int head = 0; head < kHeads; ++head) {
        if (auto read = stet::read_key(*view, head, pos, row); !read) return stet::pass(read);
        all.insert(all.end(), row.begin(), row.end());
        if (auto read = stet::read_value(*view, head, pos, row); !read) return stet::pass(read);
        all.insert(all.end(), row.begin(), row.end());
      }
    }
  }
  return all;
}

// What read_all must give: the projections themselves, since f32 storage is exact.
std::vector<double> expected() {
  std::vector<double> all;
  for (int layer = 0; layer < kLayers; ++layer) {
    const auto k = project(layer, 0, kTokens, 0), v = project(layer, 0, kTokens, 1);
    for (int row = 0; row < kTokens * kHeads; ++row) {
      all.insert(all.end(), k.begin() + row * kDim, k.begin() + (row + 1) * kDim);
      all.insert(all.end(), v.begin() + row * kDim, v.begin() + (row + 1) * kDim);
    }
  }
  return all;
}

bool same_bytes(const std::vector<double>& a, const std::vector<double>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0;
}

bool claim(const std::string& what, bool holds) {
  std::cout << (holds ? "yes  " : "NO   ") << what << '\n';
  return holds;
}

stet::Result<bool> run() {
  stet::CacheOptions options;
  options.max_len = 64;
  options.max_seqs = 2;
  const auto plan = stet::plan_cache(my_model(), options);
  if (!plan) return stet::pass(plan);
  const auto cache = stet::make_cache(my_model(), options);
  if (!cache) return stet::pass(cache);

  const auto at_once = (*cache)->open(), one_by_one = (*cache)->open();
  if (!at_once) return stet::pass(at_once);
  if (!one_by_one) return stet::pass(one_by_one);
  if (auto done = append(**cache, *at_once, kTokens); !done) return stet::pass(done);
  for (int token = 0; token < kTokens; ++token) {
    if (auto done = append(**cache, *one_by_one, 1); !done) return stet::pass(done);
  }

  const auto a = read_all(**cache, *at_once), b = read_all(**cache, *one_by_one);
  if (!a) return stet::pass(a);
  if (!b) return stet::pass(b);

  const stet::CacheUsage usage = (*cache)->usage();
  bool ok =
      claim("reserved bytes: planned " + std::to_string(plan->reserved) + ", counted " + std::to_string(usage.reserved),
            plan->reserved == usage.reserved);
  ok &= claim("used bytes: " + std::to_string(plan->bytes_per_token) + " a token x " + std::to_string(2 * kTokens) +
                  " tokens, counted " + std::to_string(usage.used),
              usage.used == plan->bytes_per_token * 2 * kTokens);
  ok &= claim("what was written is read back, bit for bit", same_bytes(*a, expected()));
  ok &= claim(
      "one step of " + std::to_string(kTokens) + " tokens = " + std::to_string(kTokens) + " steps of one, bit for bit",
      same_bytes(*a, *b));

  // One token too many for the room that is left changes nothing and says so.
  const auto refused = append(**cache, *at_once, static_cast<int>(options.max_len) - kTokens + 1);
  ok &= claim("an append that does not fit is refused: " + (refused ? "it was not" : refused.error().message),
              !refused && (*cache)->usage().tokens == 2 * kTokens);
  return ok;
}

}  // namespace

int main() {
  const auto ok = run();
  if (!ok) std::cerr << ok.error().message << '\n';
  return ok && *ok ? 0 : 1;
}
