// The plan by arithmetic against what the cache's allocator counts, and against numbers worked out by hand.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "kv/allocator.hpp"
#include "kv/make_cache.hpp"
#include "kv/plan.hpp"
#include "kv/support.hpp"

namespace stet::kv_test {
namespace {

__extension__ using Wide = unsigned __int128;

CacheOptions options_of(Pos max_len, int max_seqs) {
  CacheOptions options;
  options.max_len = max_len;
  options.max_seqs = max_seqs;
  return options;
}

CacheSpec layers_of(std::size_t count, const LayerSpec& layer) {
  return {std::vector<LayerSpec>(count, layer)};
}

// The size of a cache, from the layout's description, in arithmetic that cannot overflow. Layers alike share a table.
Wide exact_size(const CacheSpec& spec, const CacheOptions& o) {
  const Wide seqs = static_cast<Wide>(o.max_seqs);
  const auto up = [](Wide a, Wide b) { return (a + b - 1) / b; };
  const auto padded = [&](Codec codec, int dim) {
    const Wide bits[] = {64, 32, 16, 16, 8, 4};
    const bool scaled = codec == Codec::int8 || codec == Codec::int4;
    const Wide row = up(static_cast<Wide>(dim) * bits[static_cast<int>(codec)], 8);
    return up(row * 16, 64) * 64 + (scaled ? 64 : 0);
  };
  Wide total = spec.layers.size() * sizeof(kv::LayerPlace) + seqs * (sizeof(kv::SeqRecord) + sizeof(Slice));
  for (std::size_t i = 0; i < spec.layers.size(); ++i) {
    const LayerSpec& layer = spec.layers[i];
    const bool first = std::find(spec.layers.begin(), spec.layers.begin() + i, layer) == spec.layers.begin() + i;
    const auto held = [&](Wide size) {
      const Wide whole = up(static_cast<Wide>(o.max_len), size);
      if (layer.span.window == 0 || o.retain == Retain::all || o.layout == Layout::growing) return whole;
      const Wide step = o.max_step_tokens == 0 ? o.max_len : std::min(o.max_step_tokens, o.max_len);
      const Wide sinks = up(up(static_cast<Wide>(layer.span.sinks), 16) * 16, size);
      // The longest stretch that starts at the last token of one.
      const Wide seen = std::max<Wide>(static_cast<Wide>(layer.span.window), 2) + step;
      return std::min(whole, sinks + 1 + up(seen - 1, size));
    };
    const Wide numbers = held(16);
    Wide cells = numbers * seqs * (o.layout == Layout::growing ? 2 : 1);
    if (first) total += sizeof(kv::Group) + seqs * (sizeof(kv::Held) + numbers * 4);
    if (o.layout == Layout::paged) {
      const Wide page = static_cast<Wide>(o.page_tokens);
      Wide pages = held(page) * seqs;
      if (o.pool_tokens > 0) pages = std::min(pages, up(static_cast<Wide>(o.pool_tokens), page));
      cells = pages * (page / 16);
      if (first) total += pages * 8 + sizeof(kv::Pool) + seqs * 4;
    }
    total += cells * static_cast<Wide>(layer.kv_heads) * (padded(layer.k, layer.k_dim) + padded(layer.v, layer.v_dim));
  }
  return total;
}

TEST(Plan, OfGpt2IsWhatTheShapeSays) {
  // 12 layers x 12 heads x (64 + 64) values x 4 bytes = 72 KiB a token; 1024 tokens fill whole cells.
  const CacheSpec spec = layers_of(12, {12, 64, 64, Codec::f32, Codec::f32, {}});
  const auto plan = plan_cache(spec, options_of(1024, 2));
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->bytes_per_token, 73728U);
  EXPECT_EQ(plan->bytes_per_sequence, 75497472U);
  EXPECT_EQ(plan->reserved, 2U * 75497472U + sizeof(kv::Group) + 12 * sizeof(kv::LayerPlace) +
                                2 * (64 * 4 + sizeof(kv::Held) + sizeof(kv::SeqRecord) + sizeof(Slice)));
}

TEST(Plan, RoundsHeadsToCacheLines) {
  // K [3][16] of f32 is 192 bytes; V [16][5] of f64 is 640; two heads; 40 tokens are 3 cells.
  const CacheSpec spec = layers_of(1, {2, 3, 5, Codec::f32, Codec::f64, {}});
  const auto plan = plan_cache(spec, options_of(40, 1));
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->bytes_per_token, 2U * (3 * 4 + 5 * 8));
  EXPECT_EQ(plan->bytes_per_sequence, 3U * 2 * (192 + 640));
  auto cache = make_cache(spec, options_of(40, 1));
  ASSERT_TRUE(cache);
  const CellLayout layout = *(*cache)->peek(*(*cache)->open(), 0)->layout;
  EXPECT_EQ(layout.v_offset, 192U);
  EXPECT_EQ(layout.head_stride, 832U);
  EXPECT_EQ(layout.bytes, 1664U);
}

CacheOptions random_options(Random& random) {
  CacheOptions options = options_of(pick(random, 1, 300), pick(random, 1, 8));
  options.layout = static_cast<Layout>(pick(random, 0, 2));
  options.retain = chance(random, 30) ? Retain::all : Retain::visible;
  options.page_tokens = Pos{16} << pick(random, 0, 3);
  if (chance(random, 50)) options.max_step_tokens = pick(random, 1, 400);
  if (chance(random, 50)) options.pool_tokens = pick(random, 1, 3000);
  if (chance(random, 50)) options.shuffle = random();
  if (chance(random, 5)) options.poison = std::numeric_limits<double>::quiet_NaN();
  return options;
}

TEST(Plan, EqualsWhatTheAllocatorHandsOut) {
  Random random(1);
  for (int i = 0; i < 3000; ++i) {
    const CacheSpec spec = random_spec(random, 5, 4, 40);
    const CacheOptions options = random_options(random);
    const auto plan = plan_cache(spec, options);
    ASSERT_TRUE(plan);
    std::size_t handed_out = 0;
    auto cache = kv::make_cache(spec, options, [&](std::size_t bytes) {
      handed_out += bytes;
      return base::Buffer::allocate(bytes);
    });
    ASSERT_TRUE(cache);
    ASSERT_EQ((*cache)->usage().reserved, plan->reserved) << i;
    ASSERT_EQ(handed_out, plan->reserved) << i;
    ASSERT_TRUE(exact_size(spec, options) == plan->reserved) << i;
  }
}

// Longer, more, a larger pool or wider codecs never cost less.
TEST(Plan, GrowsWithWhatIsAskedFor) {
  Random random(6);
  for (int i = 0; i < 3000; ++i) {
    CacheSpec spec = random_spec(random, 5, 4, 40);
    // Wide enough for a narrower codec to be smaller in spite of its scales, which are a cache line a cell and head.
    for (LayerSpec& layer : spec.layers) layer.k_dim = layer.v_dim = 32;
    const CacheOptions options = random_options(random);
    const auto plan = *plan_cache(spec, options);
    const auto at_least = [&](const CacheSpec& s, const CacheOptions& o) {
      const auto more = *plan_cache(s, o);
      ASSERT_GE(more.reserved, plan.reserved) << i;
      ASSERT_GE(more.bytes_per_sequence, plan.bytes_per_sequence) << i;
      ASSERT_GE(more.bytes_per_token, plan.bytes_per_token) << i;
    };
    CacheOptions more = options;
    more.max_len += pick(random, 1, 40);
    at_least(spec, more);
    more = options;
    more.max_seqs += 1;
    at_least(spec, more);
    more = options;
    if (more.pool_tokens > 0) more.pool_tokens += pick(random, 1, 40);
    at_least(spec, more);
    CacheSpec wider = spec;
    const auto widen = [](Codec& codec) {
      constexpr Codec kOrder[] = {Codec::f64, Codec::f64, Codec::f32, Codec::f32, Codec::f16, Codec::int8};
      codec = kOrder[static_cast<int>(codec)];
    };
    for (LayerSpec& layer : wider.layers) {
      widen(layer.k);
      widen(layer.v);
    }
    // Layers may become alike, and then share tables; their cells alone cost more.
    const std::size_t tables = spec.layers.size() * (sizeof(kv::Group) + sizeof(kv::Pool) + 8 * 400 * 8);
    ASSERT_GE(plan_cache(wider, options)->reserved + tables, plan.reserved);
    ASSERT_GT(plan_cache(wider, options)->bytes_per_token + (wider.layers == spec.layers ? 1 : 0),
              plan.bytes_per_token);
    ASSERT_GE(plan_cache(wider, options)->bytes_per_sequence, plan.bytes_per_sequence);
  }
}

TEST(Plan, EveryBlockStartsOnACacheLine) {
  Random random(2);
  for (int i = 0; i < 200; ++i) {
    const CacheSpec spec = random_spec(random, 4, 4, 20);
    auto cache = make_cache(spec, options_of(pick(random, 1, 100), 3));
    ASSERT_TRUE(cache);
    for (int s = 0; s < 3; ++s) {
      const Seq seq = *(*cache)->open();
      for (int layer = 0; layer < static_cast<int>(spec.layers.size()); ++layer) {
        const View view = *(*cache)->peek(seq, layer);
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(view.base) % 64, 0U);
        EXPECT_EQ(view.layout->v_offset % 64, 0U);
        EXPECT_EQ(view.layout->head_stride % 64, 0U);
        EXPECT_EQ(view.layout->bytes % 64, 0U);
      }
    }
  }
}

// Sizes up to 2^110: those that fit are exact, the others are refused.
TEST(Plan, NeverWrapsAround) {
  Random random(3);
  const auto up_to_bits = [&](int bits) {
    return 1 + static_cast<std::int64_t>(random() >> (64 - pick(random, 1, bits)));
  };
  int fitting = 0, refused = 0;
  for (int i = 0; i < 20000; ++i) {
    CacheSpec spec;
    for (int layer = pick(random, 1, 4); layer > 0; --layer) {
      LayerSpec l{1, 1, 1, Codec::f64, Codec::f32, {}};
      l.kv_heads = static_cast<int>(up_to_bits(24));
      l.k_dim = static_cast<int>(up_to_bits(28));
      l.v_dim = static_cast<int>(up_to_bits(28));
      spec.layers.push_back(l);
    }
    const CacheOptions options = options_of(up_to_bits(34), static_cast<int>(up_to_bits(14)));
    const Wide exact = exact_size(spec, options);
    const Wide cells = static_cast<Wide>(options.max_len + 15) / 16 * static_cast<Wide>(options.max_seqs);
    const auto plan = plan_cache(spec, options);
    if (cells < Wide{1} << 32 && exact < static_cast<Wide>(std::numeric_limits<std::ptrdiff_t>::max())) {
      ASSERT_TRUE(plan) << plan.error().message;
      ASSERT_TRUE(plan->reserved == exact);
      ++fitting;
    } else {
      ASSERT_FALSE(plan);
      ASSERT_EQ(plan.error().code, Code::capacity);
      ++refused;
    }
  }
  EXPECT_GT(fitting, 1000);
  EXPECT_GT(refused, 1000);
}

TEST(Plan, RefusesTheLargestOfEverything) {
  constexpr int kMost = std::numeric_limits<int>::max();
  const CacheSpec spec = layers_of(3, {kMost, kMost, kMost, Codec::f64, Codec::f64, {}});
  const auto plan = plan_cache(spec, options_of(1, kMost));
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().code, Code::capacity);
  EXPECT_EQ(plan.error().message,
            "cache: 3 layers for 2147483647 sequences of 1 tokens need more than 9223372036854775807 bytes");
}

TEST(Plan, RefusesMoreTokensThanCellsHaveNumbers) {
  const CacheSpec spec = layers_of(1, {1, 1, 1, Codec::f32, Codec::f32, {}});
  EXPECT_TRUE(plan_cache(spec, options_of((Pos{1} << 36) - 16, 1)));
  EXPECT_FALSE(plan_cache(spec, options_of((Pos{1} << 35), 2)));
  for (const Pos max_len : {(Pos{1} << 36) - 15, std::numeric_limits<Pos>::max()}) {
    const auto plan = plan_cache(spec, options_of(max_len, 1));
    ASSERT_FALSE(plan);
    EXPECT_EQ(plan.error().code, Code::capacity);
    EXPECT_NE(plan.error().message.find("max_len " + std::to_string(max_len)), std::string::npos);
  }
}

struct Refused {
  const char* message;
  CacheSpec spec;
  CacheOptions options;
};

TEST(Plan, NamesTheFieldThatCannotBe) {
  const LayerSpec good{2, 3, 4, Codec::f32, Codec::f64, {}};
  const auto with = [&](auto change) {
    CacheSpec spec = layers_of(2, good);
    change(spec.layers[1]);
    return spec;
  };
  const CacheOptions fine = options_of(10, 1);
  const auto having = [&](auto change) {
    CacheOptions options = fine;
    change(options);
    return options;
  };
  const Refused cases[] = {
      {"cache: the spec has no layers", {}, fine},
      {"cache: max_len 0 is not positive", layers_of(1, good), options_of(0, 1)},
      {"cache: max_len -9223372036854775808 is not positive", layers_of(1, good),
       options_of(std::numeric_limits<Pos>::min(), 1)},
      {"cache: max_seqs 0 is not positive", layers_of(1, good), options_of(10, 0)},
      {"cache: max_seqs -3 is not positive", layers_of(1, good), options_of(10, -3)},
      {"cache: layout 7 is unknown", layers_of(1, good), having([](auto& o) { o.layout = static_cast<Layout>(7); })},
      {"cache: retain 2 is unknown", layers_of(1, good), having([](auto& o) { o.retain = static_cast<Retain>(2); })},
      {"cache: max_step_tokens -1 is negative", layers_of(1, good), having([](auto& o) { o.max_step_tokens = -1; })},
      {"cache: pool_tokens -1 is negative", layers_of(1, good), having([](auto& o) { o.pool_tokens = -1; })},
      {"cache: page_tokens 0 is not 16, 32, 64 or 128", layers_of(1, good), having([](auto& o) { o.page_tokens = 0; })},
      {"cache: page_tokens 48 is not 16, 32, 64 or 128", layers_of(1, good),
       having([](auto& o) { o.page_tokens = 48; })},
      {"layer 1: kv_heads 0 is not positive", with([](LayerSpec& l) { l.kv_heads = 0; }), fine},
      {"layer 1: k_dim -1 is not positive", with([](LayerSpec& l) { l.k_dim = -1; }), fine},
      {"layer 1: v_dim 0 is not positive", with([](LayerSpec& l) { l.v_dim = 0; }), fine},
      {"layer 1: window -1 is negative", with([](LayerSpec& l) { l.span.window = -1; }), fine},
      {"layer 1: sinks -1 is negative", with([](LayerSpec& l) {
         l.span = {4, -1};
       }),
       fine},
      {"layer 1: sinks 4 has no window", with([](LayerSpec& l) {
         l.span = {0, 4};
       }),
       fine},
      {"layer 1: codec of k 9 is unknown", with([](LayerSpec& l) { l.k = static_cast<Codec>(9); }), fine},
      {"layer 1: codec of v 9 is unknown", with([](LayerSpec& l) { l.v = static_cast<Codec>(9); }), fine},
  };
  for (const Refused& refused : cases) {
    const auto plan = plan_cache(refused.spec, refused.options);
    ASSERT_FALSE(plan) << refused.message;
    EXPECT_EQ(plan.error().code, Code::invalid_argument);
    EXPECT_EQ(plan.error().message, refused.message);
    const auto cache = make_cache(refused.spec, refused.options);
    ASSERT_FALSE(cache);
    EXPECT_EQ(cache.error().message, refused.message);
  }
}

// Each allocation in turn is refused; what was had before it is given back (the address sanitizer would tell).
TEST(Allocation, AnyRefusalIsOneError) {
  Random random(4);
  const CacheSpec spec = random_spec(random, 4, 3, 8);
  CacheOptions options = options_of(50, 3);
  options.layout = Layout::paged;
  int failures = 0;
  for (int refused = 1;; ++refused) {
    int calls = 0;
    const auto cache = kv::make_cache(spec, options, [&](std::size_t bytes) -> Result<base::Buffer> {
      if (++calls == refused) return fail(Code::capacity, "planted");
      return base::Buffer::allocate(bytes);
    });
    if (cache) {
      EXPECT_EQ(calls, refused - 1);
      EXPECT_EQ((*cache)->usage().reserved, plan_cache(spec, options)->reserved);
      break;
    }
    EXPECT_EQ(cache.error().code, Code::capacity);
    EXPECT_EQ(cache.error().message, "planted");
    EXPECT_EQ(calls, refused);
    ++failures;
  }
  EXPECT_GE(failures, 2) << "cells and tables were to be allocated apart";
}

TEST(Allocation, AnExceptionBecomesAnError) {
  const CacheSpec spec = layers_of(1, {1, 1, 1, Codec::f32, Codec::f32, {}});
  const auto cache =
      kv::make_cache(spec, options_of(1, 1), [](std::size_t) -> Result<base::Buffer> { throw std::bad_alloc(); });
  ASSERT_FALSE(cache);
  EXPECT_EQ(cache.error().code, Code::capacity);
}

}  // namespace
}  // namespace stet::kv_test
