// What the tests of the prefix index share: small caches, and rows that follow from tokens.
#pragma once

#include <array>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>

#include "kv/prefix_index.hpp"
#include "kv/snapshot_support.hpp"

namespace stet::kv_test {

inline CacheSpec full_spec() {
  CacheSpec spec;
  spec.layers = {{1, 1, 2, Codec::f64, Codec::f64, {}}, {1, 1, 2, Codec::f64, Codec::f64, {}}};
  return spec;
}

inline CacheSpec window_spec() {
  CacheSpec spec = full_spec();
  spec.layers[1].span = {9, 0};
  return spec;
}

inline std::unique_ptr<Cache> small_cache(Layout layout, const CacheSpec& spec, int seqs) {
  CacheOptions options;
  options.layout = layout;
  options.page_tokens = 32;
  options.max_len = 96;
  options.max_seqs = seqs;
  options.poison = std::numeric_limits<double>::quiet_NaN();
  auto cache = make_cache(spec, options);
  if (!cache) throw std::runtime_error(cache.error().message);
  return std::move(*cache);
}

inline Seq fill(Cache& cache, const Tokens& tokens) {
  const Seq seq = cache.open().value();
  Tokens so_far;
  EXPECT_TRUE(append(cache, seq, so_far, tokens));
  return seq;
}

/// Whether a sequence holds the rows that follow from its tokens, as far as its next query sees them.
inline std::string wrong_rows(const Cache& cache, Seq seq, const Tokens& tokens) {
  if (cache.length(seq).value() != static_cast<Pos>(tokens.size())) return "its length is wrong";
  const auto& layers = cache.spec().layers;
  for (int layer = 0; layer < static_cast<int>(layers.size()); ++layer) {
    const View view = cache.peek(seq, layer).value();
    for (Pos pos = 0; pos < static_cast<Pos>(tokens.size()); ++pos) {
      if (!visible(view.span, pos, static_cast<Pos>(tokens.size()))) continue;
      const auto prefix = std::span<const TokenId>(tokens).first(static_cast<std::size_t>(pos) + 1);
      std::array<double, 2> v{};
      double k = 0;
      if (!read_key(view, 0, pos, {&k, 1}) || !read_value(view, 0, pos, v)) return "a row is missing";
      if (k != value_after(prefix, layer, 0, 0, true) || v[1] != value_after(prefix, layer, 0, 1, false)) {
        return "the row at " + std::to_string(pos) + " is of other tokens";
      }
    }
  }
  return "";
}

}  // namespace stet::kv_test
