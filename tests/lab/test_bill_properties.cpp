// What has to hold of any bill, and bills of local models against the caches that they speak of.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "engine/loaded.hpp"
#include "lab/bill_support.hpp"
#include "stet/engine.hpp"

namespace stet::lab {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

/// Every preset that differs in what matters to a size, under every layout and several codecs.
template <class F>
void for_each_bill(F check) {
  for (const char* name : {"gpt2", "llama-3-8b", "mistral-7b", "gemma-3-1b", "deepseek-v2-lite", "char-gpt"}) {
    for (const CacheMode layout : {CacheMode::contiguous, CacheMode::growing, CacheMode::paged, CacheMode::none}) {
      SCOPED_TRACE(fmt::format("{}, {}", name, name_of(layout)));
      const auto shape = preset(name, DType::f16);
      ASSERT_TRUE(shape);
      BillOptions options;
      options.layouts = {layout};
      if (layout == CacheMode::paged) options.page_tokens = 64;
      options.contexts = {1, 15, 16, 17, 100, 127, 128, 129, 1000, 4096, 5000, 20000};
      options.batches = {1, 2, 7};
      options.caches = {both(Codec::int4), both(Codec::int8), both(Codec::f16), both(Codec::f32), both(Codec::f64)};
      check(*shape, options);
    }
  }
}

TEST(AnyBill, GrowsWithContextBatchAndWidth) {
  for_each_bill([](const Shape& shape, const BillOptions& options) {
    const Bill bill = bill_of(shape, options);
    const std::size_t contexts = options.contexts.size(), batches = options.batches.size();
    ASSERT_EQ(bill.rows.size(), contexts * batches * options.caches.size());
    const auto at = [&](std::size_t cache, std::size_t batch, std::size_t context) -> const BillRow& {
      return bill.rows[(cache * batches + batch) * contexts + context];
    };
    for (std::size_t cache = 0; cache < options.caches.size(); ++cache) {
      for (std::size_t b = 0; b < batches; ++b) {
        for (std::size_t c = 0; c < contexts; ++c) {
          const BillRow& row = at(cache, b, c);
          EXPECT_EQ(row.context, options.contexts[c]);
          EXPECT_EQ(row.batch, options.batches[b]);
          EXPECT_EQ(row.cells, row.per_sequence * static_cast<std::size_t>(row.batch));
          EXPECT_GT(row.total, row.cells);
          if (c > 0) {
            EXPECT_GE(row.total, at(cache, b, c - 1).total);
            EXPECT_GE(row.rows, at(cache, b, c - 1).rows);
          }
          if (b > 0) {
            EXPECT_GT(row.total, at(cache, b - 1, c).total);
          }
          if (cache > 0) {
            EXPECT_GT(row.cells, at(cache - 1, b, c).cells);
            EXPECT_GT(row.per_token, at(cache - 1, b, c).per_token);
          }
        }
      }
    }
  });
}

TEST(AnyBill, RoundsUpByLessThanAPageAndAWindowsStep) {
  for_each_bill([](const Shape& shape, const BillOptions& options) {
    const Bill bill = bill_of(shape, options);
    const CacheMode layout = options.layouts.front();
    const Pos page = layout == CacheMode::paged ? options.page_tokens : kCell;
    for (const BillRow& row : bill.rows) {
      SCOPED_TRACE(fmt::format("{} tokens of {}", row.context, bill.caches[row.cache].k));
      const std::size_t places = layout == CacheMode::growing ? 2 : 1;
      const auto one = row.rows / static_cast<std::size_t>(row.batch);
      EXPECT_GE(row.per_sequence, places * one);
      // A page more, for a window two and the step of 256; cache lines may cost a cell of few numbers a little.
      const std::size_t slack = bill.windows.layers > 0 ? static_cast<std::size_t>(2 * page + 256 + 2) : 0;
      const auto most = places * (one + (static_cast<std::size_t>(page) - 1 + slack) * row.per_token);
      EXPECT_LE(row.per_sequence, most);
    }
  });
}

TEST(AnyBill, FitsAtItsAnswersAndNotBeyond) {
  for_each_bill([](const Shape& shape, BillOptions options) {
    options.contexts = {128, 4096};
    options.batches = {1, 8};
    options.caches = {both(Codec::f16)};
    options.rooms = {shape.weight_bytes - 1, shape.weight_bytes + (std::size_t{1} << 20),
                     shape.weight_bytes + (std::size_t{700} << 20), shape.weight_bytes + 10 * kGib};
    const Bill bill = bill_of(shape, options);
    EXPECT_EQ(bill.fits.size(), options.rooms.size() * 4);
    const auto needs = [&](Pos context, int batch) {
      BillOptions one = options;
      one.rooms.clear();
      one.contexts = {context};
      one.batches = {batch};
      return bill_of(shape, one).rows.front().total + shape.weight_bytes;
    };
    for (const Fit& fit : bill.fits) {
      SCOPED_TRACE(fmt::format("{} bytes, {} tokens, {} sequences", fit.room, fit.context, fit.batch));
      if (fit.context > 0 && fit.batch > 0) {
        EXPECT_LE(needs(fit.context, fit.batch), fit.room);
      }
      if (fit.any) continue;
      const bool one = fit.asks_context;
      EXPECT_GT(needs(fit.context + (one ? 1 : 0), fit.batch + (one ? 0 : 1)), fit.room);
    }
    EXPECT_EQ(bill.fits.front().context, 0);
  });
}

TEST(AnyBill, PassesTheWeightsBehindTheCrossing) {
  for_each_bill([](const Shape& shape, const BillOptions& options) {
    const Bill bill = bill_of(shape, options);
    EXPECT_EQ(bill.passes_weights.size(), options.batches.size() * options.caches.size());
    for (const Crossing& crossing : bill.passes_weights) {
      const auto rows = [&](Pos context) {
        BillOptions one = options;
        one.contexts = {context};
        one.batches = {crossing.batch};
        one.caches = {options.caches[crossing.cache]};
        return bill_of(shape, one).rows.front().rows;
      };
      if (!crossing.tokens) {
        EXPECT_LE(rows(Pos{1} << 30), shape.weight_bytes);
        continue;
      }
      if (*crossing.tokens > 0) {
        EXPECT_LE(rows(*crossing.tokens), shape.weight_bytes);
      }
      EXPECT_GT(rows(*crossing.tokens + 1), shape.weight_bytes);
    }
  });
}

TEST(Windows, StopGrowing) {
  const Bill mistral = published("mistral-7b", {4096, 8192, 32768, 1 << 20});
  EXPECT_EQ(mistral.windows.layers, 32);
  EXPECT_EQ(mistral.windows.longest, 4096);
  for (const BillRow& row : mistral.rows) EXPECT_EQ(row.rows, 4096U * 128 * kKib);
  EXPECT_EQ(mistral.rows[1].total, mistral.rows[3].total);
  EXPECT_LT(mistral.rows[0].total, mistral.rows[1].total);  // beside the window a ring has room for a step
  // 32 layers whose attention ends growing at 4,096 tokens, of 26,624 that it would take.
  EXPECT_EQ(mistral.attention_layers, std::nullopt);
  EXPECT_THAT(bill_notes(mistral), Not(IsEmpty()));

  // Gemma 3 4b: 29 of 34 layers see 1,024 tokens, a token of a layer is 2 x 4 x 256 numbers.
  const Bill gemma = published("gemma-3-4b", {1024, 131072});
  EXPECT_EQ(gemma.windows.layers, 29);
  EXPECT_EQ(gemma.rows[0].rows, 34U * 1024 * 4096);
  EXPECT_EQ(gemma.rows[1].rows, (29U * 1024 + 5U * 131072) * 4096);
}

TEST(Windows, AreKeptWholeByAGrowingCache) {
  const auto shape = preset("mistral-7b", DType::f16);
  BillOptions options;
  options.contexts = {32768};
  options.caches = {both(Codec::f16)};
  options.layouts = {CacheMode::growing, CacheMode::contiguous};
  const Bill bill = bill_of(*shape, options);
  EXPECT_EQ(bill.rows[0].rows, 32768U * 128 * kKib);
  EXPECT_EQ(bill.rows[0].per_sequence, 2 * bill.rows[0].rows);
  EXPECT_EQ(bill.rows[1].rows, 4096U * 128 * kKib);
  EXPECT_TRUE(bill.passes_weights[0].tokens);
  EXPECT_FALSE(bill.passes_weights[1].tokens);
}

TEST(Windows, CanBeAskedFor) {
  const auto shape = preset("llama-3-8b", DType::f16);
  BillOptions options;
  options.contexts = {8192};
  options.caches = {both(Codec::f16)};
  options.span = Span{1024, 4};
  const Bill bill = bill_of(*shape, options);
  EXPECT_EQ(bill.windows.longest, 1028);
  EXPECT_EQ(bill.rows[0].rows, 1028U * 128 * kKib);
}

TEST(Caches, OfLayersThatDiffer) {
  // Half of the layers in int8, the others in f16: 12 heads of 64 numbers, a scale of 4 bytes for each.
  const Bill bill = published("gpt2", {1024}, {1}, {{{Codec::f16, Codec::f16}, {Codec::int8, Codec::int4, 0, 5}}});
  EXPECT_EQ(bill.caches[0].k, "0-5 int8, 6-11 f16");
  EXPECT_EQ(bill.caches[0].v, "0-5 int4, 6-11 f16");
  EXPECT_EQ(bill.rows[0].per_token, 6 * 12 * (64 + 4 + 32 + 4) + 6 * 12 * 2 * 128);
}

TEST(Caches, APoolIsWhatIsReserved) {
  const auto shape = preset("gpt2", DType::f16);
  BillOptions options;
  options.layouts = {CacheMode::paged};
  options.batches = {8};
  options.caches = {both(Codec::f16)};
  options.pool_tokens = 2048;
  const Bill bill = bill_of(*shape, options);
  EXPECT_EQ(bill.rows[0].cells, 2048U * 36 * kKib);
  EXPECT_EQ(bill.rows[0].per_sequence, 1024U * 36 * kKib);
}

TEST(Refused, OptionsThatCannotBe) {
  const auto shape = preset("gpt2", DType::f16);
  ASSERT_TRUE(shape);
  const auto message = [&](const BillOptions& options) {
    const auto result = bill(*shape, options);
    EXPECT_FALSE(result);
    return result ? "" : result.error().message;
  };
  BillOptions options;
  options.contexts = {0};
  EXPECT_THAT(message(options), HasSubstr("a context of 0 tokens"));
  options.contexts = {Pos{1} << 40};
  EXPECT_THAT(message(options), HasSubstr("max_len 1099511627776"));
  options.contexts = {1024};
  options.batches = {-1};
  EXPECT_THAT(message(options), HasSubstr("a batch of -1"));
  options.batches = {1};
  options.caches = {{{Codec::f16, Codec::f16, 12, 12}}};
  EXPECT_THAT(message(options), HasSubstr("layers 12 to 12"));
  options.caches = {{}};
  options.page_tokens = 64;
  EXPECT_THAT(message(options), HasSubstr("pages and a pool"));
  options.page_tokens = 16;
  options.layouts.clear();
  EXPECT_THAT(message(options), HasSubstr("without a batch"));
}

/// Every folder of the tree and of the shared data that has a model.
std::vector<std::string> local_models() {
  namespace fs = std::filesystem;
  std::vector<std::string> models = {"random:char", "random:gpt2,layers=3,width=48,heads=6,vocab=99,ctx=77",
                                     "random:llama-tiny", "random:llama-tiny,window=40,ctx=300",
                                     "random:llama-tiny,kv_heads=1,layers=5"};
  std::error_code ignored;
  for (const char* folder : {STET_SOURCE_DIR "/models", STET_SOURCE_DIR "/tests/golden", STET_SHARED_DIR "/data"}) {
    for (fs::directory_iterator at(folder, ignored), end; !ignored && at != end; at.increment(ignored)) {
      const std::string model = at->path().string();
      if (engine::config_of(model)) models.push_back(model);
    }
  }
  return models;
}

// Engines are loaded, run for a token, and asked what their caches have taken from the allocator.
TEST(LocalBill, IsWhatTheCacheReserves) {
  const auto models = local_models();
  EXPECT_GE(models.size(), 5U + 1 + 20);
  for (const std::string& model : models) {
    const auto config = engine::config_of(model);
    ASSERT_TRUE(config);
    const Shape shape = shape_of(*config, model, DType::f32);
    const KvCodecs narrow{Codec::int8, Codec::int4}, first{Codec::f16, Codec::bf16, 0, 0};
    for (const CacheMode layout : {CacheMode::contiguous, CacheMode::growing, CacheMode::paged, CacheMode::none}) {
      BillOptions options;
      options.layouts = {layout};
      if (layout == CacheMode::paged) options.page_tokens = 32;
      options.caches = {{}, {narrow, first}};
      options.batches = {1, 3};
      options.contexts = {config->context, config->context / 2 + 1};
      const Bill bill = bill_of(shape, options);
      for (const BillRow& row : bill.rows) {
        // One sequence of the whole context, three of half of it: the product would only take time.
        if ((row.batch == 1) != (row.context == config->context)) continue;
        SCOPED_TRACE(fmt::format("{}, {}, {} x {} tokens", model, name_of(layout), row.batch, row.context));
        EngineOptions run;
        run.threads = 1;
        run.cache = layout;
        run.page_tokens = options.page_tokens;
        run.kv = options.caches[row.cache];
        run.max_seqs = row.batch;
        run.max_len = row.context;
        auto engine = Engine::load(model, run);
        ASSERT_TRUE(engine) << engine.error().message;
        Request request;
        request.prompt = {0};
        request.max_new = 1;
        ASSERT_TRUE(engine->generate({&request, 1}));
        EXPECT_EQ(row.total, engine->cache_usage().reserved);
        EXPECT_EQ(row.per_token, engine->info().cache_bytes_per_token);
        EXPECT_EQ(shape.weight_bytes, engine->info().weight_bytes);
        EXPECT_EQ(shape.parameters, engine->info().parameters);
      }
    }
  }
}

TEST(LocalBill, HasTheWeightsOfItsType) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16, DType::int8, DType::int4}) {
    EngineOptions options;
    options.dtype = dtype;
    const auto info = Engine::inspect("random:gpt2", options);
    ASSERT_TRUE(info);
    const auto shape = preset("gpt2", dtype);
    ASSERT_TRUE(shape);
    EXPECT_EQ(shape->weight_bytes, info->weight_bytes) << name_of(dtype);
  }
}

}  // namespace
}  // namespace stet::lab
