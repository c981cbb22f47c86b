#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "stet/cache.hpp"

namespace stet {
namespace {

TEST(Contiguous, StoresWhatAStepWrites) {
  CacheSpec spec{{{2, 3, 5, Codec::f32, Codec::f32, {}}}};
  CacheOptions options;
  options.max_len = 40;
  options.poison = true;
  auto cache = make_cache(spec, options);
  ASSERT_TRUE(cache) << cache.error().message;
  const auto plan = plan_cache(spec, options);
  EXPECT_EQ((*cache)->usage().reserved, plan->reserved);
  const Seq seq = *(*cache)->open();
  std::vector<float> k(20 * 6), v(20 * 10);
  for (std::size_t i = 0; i < k.size(); ++i) k[i] = static_cast<float>(i);
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = -static_cast<float>(i);
  const Append append{seq, 20};
  auto step = (*cache)->begin({&append, 1});
  ASSERT_TRUE(step) << step.error().message;
  (*step)->write(0, {0, 2}, {DType::f32, reinterpret_cast<std::byte*>(k.data()), 24},
                 {DType::f32, reinterpret_cast<std::byte*>(v.data()), 40});
  (*step)->commit();
  EXPECT_EQ(*(*cache)->length(seq), 20);
  const View view = *(*cache)->peek(seq, 0);
  for (int pos = 0; pos < 20; ++pos) {
    for (int head = 0; head < 2; ++head) {
      std::vector<double> key(3), value(5);
      ASSERT_TRUE(read_key(view, head, pos, key));
      ASSERT_TRUE(read_value(view, head, pos, value));
      for (int d = 0; d < 3; ++d) EXPECT_EQ(key[d], k[pos * 6 + head * 3 + d]);
      for (int d = 0; d < 5; ++d) EXPECT_EQ(value[d], v[pos * 10 + head * 5 + d]);
    }
  }
}

}  // namespace
}  // namespace stet
