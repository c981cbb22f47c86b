// What the tests of saved caches share: caches of every kind, filled with rows that follow from tokens.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "kv/snapshot.hpp"
#include "kv/snapshot_support.hpp"

namespace stet::kv_test {

inline kv::Identity small_identity() {
  kv::Identity identity;
  identity.weights.bytes = {1, 2, 3};
  identity.config = "model_type=llama\nrms_norm_eps=1e-05\nrope_theta=10000\n";
  identity.numerics = 1;
  return identity;
}

/// Every codec, odd dims, windows with and without sinks, one longer than the sequences.
inline CacheSpec mixed_spec() {
  CacheSpec spec;
  spec.layers = {{2, 4, 4, Codec::f32, Codec::f32, {}},          {1, 3, 5, Codec::int8, Codec::bf16, {20, 4}},
                 {1, 5, 3, Codec::int4, Codec::f16, {}},         {2, 2, 1, Codec::f64, Codec::int4, {5, 0}},
                 {1, 7, 7, Codec::bf16, Codec::int8, {500, 40}}, {2, 4, 4, Codec::f32, Codec::f32, {}}};
  return spec;
}

inline CacheSpec small_spec() {
  CacheSpec spec;
  spec.layers = {{1, 1, 1, Codec::f32, Codec::int8, {}}, {1, 2, 1, Codec::bf16, Codec::bf16, {6, 0}}};
  return spec;
}

struct Kind {
  const char* name;
  Layout layout;
  Pos page;
  Retain retain = Retain::visible;
};

inline const std::vector<Kind>& kinds() {
  static const std::vector<Kind> all = [] {
    std::vector<Kind> kinds = {
        {"contiguous", Layout::contiguous, 16}, {"contiguous_all", Layout::contiguous, 16, Retain::all},
        {"growing", Layout::growing, 16},       {"paged16", Layout::paged, 16},
        {"paged32", Layout::paged, 32},         {"paged64", Layout::paged, 64},
        {"paged128", Layout::paged, 128},       {"paged16_all", Layout::paged, 16, Retain::all}};
    return kinds;
  }();
  return all;
}

inline std::unique_ptr<Cache> cache_of(const Kind& kind, const CacheSpec& spec, int seqs = 6, bool poison = true) {
  CacheOptions options;
  options.layout = kind.layout;
  options.page_tokens = kind.page;
  options.retain = kind.retain;
  options.max_len = 300;
  options.max_seqs = seqs;
  if (poison) options.poison = std::numeric_limits<double>::quiet_NaN();
  if (kind.layout == Layout::paged) options.shuffle = 5;
  auto cache = make_cache(spec, options);
  if (!cache) throw std::runtime_error(cache.error().message);
  return std::move(*cache);
}

inline std::unique_ptr<Cache> contiguous(const CacheSpec& spec, int seqs = 6) {
  return cache_of(kinds().front(), spec, seqs);
}

inline Tokens tokens_of(int length, int seed) {
  Tokens tokens;
  for (int i = 0; i < length; ++i) tokens.push_back((i * 7 + seed * 13 + i * i * seed) % 100);
  return tokens;
}

/// A sequence of these tokens, appended in steps of `chunk`.
inline Seq fill(Cache& cache, const Tokens& all, std::size_t chunk = 11) {
  const Seq seq = cache.open().value();
  Tokens so_far;
  while (so_far.size() < all.size()) {
    const std::size_t n = std::min(chunk, all.size() - so_far.size());
    EXPECT_TRUE(append(cache, seq, so_far, std::span(all).subspan(so_far.size(), n)));
  }
  return seq;
}

inline void expect_refused(const Result<void>& result, const std::string& part) {
  ASSERT_FALSE(result);
  EXPECT_NE(result.error().message.find(part), std::string::npos) << result.error().message;
  EXPECT_EQ(result.error().message.find('\n'), std::string::npos) << result.error().message;
}

/// Opens, checks all cells, and restores all sequences; undoes that again.
inline Result<void> load(const fs::path& path, const kv::Identity& model, Cache& cache,
                         kv::Reencode reencode = kv::Reencode::refused) {
  auto snapshot = kv::Snapshot::open(path);
  if (!snapshot) return pass(snapshot);
  if (auto ok = snapshot->verify(); !ok) return ok;
  std::vector<Seq> seqs;
  Result<void> result;
  for (std::size_t i = 0; i < snapshot->sequences().size() && result; ++i) {
    const auto seq = snapshot->restore(i, model, cache, {reencode, {}});
    seq ? seqs.push_back(*seq) : static_cast<void>(result = pass(seq));
  }
  for (const Seq seq : seqs) EXPECT_TRUE(cache.close(seq));
  return result;
}

}  // namespace stet::kv_test
