// Bills of presets for tests.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <utility>
#include <vector>

#include "lab/bill.hpp"

namespace stet::lab {

inline constexpr std::size_t kKib = 1024, kGib = kKib * kKib * kKib;

inline std::vector<KvCodecs> both(Codec codec) {
  return {{codec, codec}};
}

inline Bill bill_of(const Shape& shape, BillOptions options) {
  auto result = bill(shape, options);
  EXPECT_TRUE(result) << (result ? "" : result.error().message);
  return result ? *result : Bill{};
}

/// Of a preset, weights and cache of 16 bits unless the options say otherwise.
inline Bill published(const char* name, std::vector<Pos> contexts, std::vector<int> batches = {1},
                      std::vector<std::vector<KvCodecs>> caches = {both(Codec::f16)}, DType dtype = DType::f16) {
  const auto shape = preset(name, dtype);
  EXPECT_TRUE(shape) << name;
  BillOptions options;
  options.contexts = std::move(contexts);
  options.batches = std::move(batches);
  options.caches = std::move(caches);
  return bill_of(*shape, options);
}

}  // namespace stet::lab
