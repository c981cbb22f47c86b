// A trained Llama against the greedy ids and logits of an f64 reference (../shared/data/stories260K).
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "engine/loaded.hpp"
#include "stet/engine.hpp"

namespace stet {
namespace {

const char* const kFolder = STET_SOURCE_DIR "/../shared/data/stories260K";

class Stories : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(kFolder)) GTEST_SKIP() << "../shared/data/stories260K is not here";
    reference = nlohmann::json::parse(std::ifstream(std::string(kFolder) + "/reference_greedy.json"));
  }

  Result<Engine> engine(CacheMode cache, int chunk, Pos page = 16) const {
    EngineOptions options;
    options.page_tokens = page;
    options.dtype = GetParam();
    options.threads = 2;
    options.cache = cache;
    options.chunk = chunk;
    options.poison = true;
    return Engine::load(kFolder, options);
  }

  nlohmann::json reference;
};

TEST_P(Stories, Gives257ReferenceIds) {
  struct Way {
    CacheMode cache;
    int chunk;
    Pos page;
  };
  for (const Way& way : {Way{CacheMode::contiguous, 16, 16},
                         {CacheMode::growing, 3, 16},
                         {CacheMode::paged, 1, 16},
                         {CacheMode::paged, 5, 32},
                         {CacheMode::paged, 16, 64},
                         {CacheMode::paged, 16, 128},
                         {CacheMode::none, 16, 16}}) {
    auto loaded = engine(way.cache, way.chunk, way.page);
    ASSERT_TRUE(loaded) << loaded.error().message;
    Request request;
    request.prompt = reference.at("prompt_ids").get<std::vector<TokenId>>();
    request.max_new = 257;
    request.ignore_eos = true;
    const auto done = loaded->generate({&request, 1});
    ASSERT_TRUE(done) << done.error().message;
    EXPECT_EQ(done->front().ids, reference.at("greedy_ids").get<std::vector<TokenId>>());
  }
}

INSTANTIATE_TEST_SUITE_P(All, Stories, testing::Values(DType::f64, DType::f32),
                         [](const auto& param) { return std::string(name_of(param.param)); });

TEST(StoriesLogits, AfterTheFirstTokenAreWithin1e12OfTheReference) {
  if (!std::filesystem::exists(kFolder)) GTEST_SKIP() << "../shared/data/stories260K is not here";
  const auto reference = nlohmann::json::parse(std::ifstream(std::string(kFolder) + "/reference_greedy.json"));
  EngineOptions options;
  options.dtype = DType::f64;
  auto engine = Engine::load(kFolder, options);
  ASSERT_TRUE(engine) << engine.error().message;
  const auto logits = engine->logits(reference.at("prompt_ids").get<std::vector<TokenId>>());
  ASSERT_TRUE(logits) << logits.error().message;
  const auto expected = reference.at("logits_after_bos").get<std::vector<double>>();
  ASSERT_EQ(logits->vocab, expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    double x;
    std::memcpy(&x, logits->data.data() + i * sizeof x, sizeof x);
    EXPECT_NEAR(x, expected[i], 1e-12) << i;
  }
}

}  // namespace
}  // namespace stet
