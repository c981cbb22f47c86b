// GPT-2 against logits that PyTorch's transformers computed (tests/golden), read at once and token by token.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "engine/loaded.hpp"
#include "stet/engine.hpp"
#include "weights/checkpoint.hpp"

namespace stet {
namespace {

namespace fs = std::filesystem;

struct Golden {
  std::vector<TokenId> ids;
  std::vector<std::vector<double>> logits;
  double largest = 0;
};

Golden read_golden(const fs::path& folder) {
  std::ifstream file(folder / "golden.json");
  const auto json = nlohmann::json::parse(file);
  Golden golden{json.at("ids"), json.at("logits"), 0};
  for (const auto& row : golden.logits) {
    for (const double x : row) golden.largest = std::max(golden.largest, std::abs(x));
  }
  return golden;
}

double at(const Logits& logits, std::size_t row, std::size_t id) {
  const std::size_t index = row * logits.vocab + id;
  if (logits.type == DType::f64) {
    double x;
    std::memcpy(&x, logits.data.data() + index * sizeof x, sizeof x);
    return x;
  }
  float x;
  std::memcpy(&x, logits.data.data() + index * sizeof x, sizeof x);
  return x;
}

std::vector<std::string> golden_folders() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(STET_SOURCE_DIR "/tests/golden")) {
    if (entry.is_directory()) names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

class GoldenLogits : public testing::TestWithParam<std::string> {
 protected:
  // The largest difference from the golden logits, relative to the largest of them.
  static double difference(DType dtype, CacheMode cache, int chunk) {
    const fs::path folder = fs::path(STET_SOURCE_DIR "/tests/golden") / GetParam();
    const Golden golden = read_golden(folder);
    EngineOptions options;
    options.dtype = dtype;
    options.threads = 2;
    options.cache = cache;
    options.chunk = chunk;
    options.poison = std::numeric_limits<double>::quiet_NaN();
    auto engine = Engine::load(folder.string(), options);
    if (!engine) throw std::runtime_error(engine.error().message);
    auto logits = engine->logits(golden.ids);
    if (!logits) throw std::runtime_error(logits.error().message);
    EXPECT_EQ(logits->rows, golden.logits.size());
    EXPECT_EQ(logits->vocab, golden.logits[0].size());
    double worst = 0;
    for (std::size_t r = 0; r < logits->rows; ++r) {
      for (std::size_t i = 0; i < logits->vocab; ++i) {
        const double d = std::abs(at(*logits, r, i) - golden.logits[r][i]);
        worst = d > worst || std::isnan(d) ? d : worst;
      }
    }
    return worst / golden.largest;
  }
};

TEST_P(GoldenLogits, F64AtOnceAndTokenByTokenAndRecomputed) {
  EXPECT_LT(difference(DType::f64, CacheMode::contiguous, 256), 2e-14);
  EXPECT_LT(difference(DType::f64, CacheMode::contiguous, 1), 2e-14);
  EXPECT_LT(difference(DType::f64, CacheMode::none, 4), 2e-14);
}

TEST_P(GoldenLogits, F32) {
  EXPECT_LT(difference(DType::f32, CacheMode::contiguous, 3), 1e-5);
}

INSTANTIATE_TEST_SUITE_P(All, GoldenLogits, testing::ValuesIn(golden_folders()), [](const auto& info) {
  std::string name = info.param;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }, '_');
  return name;
});

class Forward : public testing::Test {
 protected:
  Forward() : loaded_(*engine::load("random:char,layers=1,width=16,heads=2,ctx=8", DType::f32)) {}

  Result<void> run(Pos max_len, std::vector<TokenId> ids) {
    CacheOptions options;
    options.max_len = max_len;
    auto cache = *make_cache(loaded_.model->cache_spec(), options);
    const Append append{*cache->open(), static_cast<int>(ids.size())};
    auto step = *cache->begin({&append, 1});
    auto workspace = *base::Buffer::allocate(loaded_.model->workspace_bytes(append.tokens));
    base::ThreadPool pool(1);
    std::vector<float> logits(static_cast<std::size_t>(loaded_.model->config().vocab));
    const int row = 0;
    return loaded_.model->forward({&pool, &kernels::targets().front()}, *step, ids,
                                  {{&row, 1}, reinterpret_cast<std::byte*>(logits.data())}, workspace);
  }

  engine::Loaded loaded_;
};

TEST_F(Forward, NamesAnIdBeyondTheVocabulary) {
  const auto result = run(8, {1, 65});
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().message, "token id 65 is not in the vocabulary of 65");
  EXPECT_FALSE(run(8, {-1}));
}

TEST_F(Forward, NamesAPositionBeyondTheContext) {
  const auto result = run(9, std::vector<TokenId>(9, 1));
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().message, "position 8 is beyond the model's context of 8");
  EXPECT_TRUE(run(9, std::vector<TokenId>(8, 1)));
}

// A source with one infinity in one matrix.
class Infinite final : public weights::Source {
 public:
  Infinite(std::unique_ptr<weights::Source> inner, std::string name)
      : inner_(std::move(inner)), name_(std::move(name)) {}
  std::span<const weights::TensorInfo> tensors() const noexcept override { return inner_->tensors(); }
  Result<void> read(const weights::TensorInfo& tensor, std::int64_t begin, std::span<float> out) const override {
    auto done = inner_->read(tensor, begin, out);
    if (tensor.name == name_ && begin == 0) out[7] = std::numeric_limits<float>::infinity();
    return done;
  }
  Result<void> read(const weights::TensorInfo& tensor, std::int64_t begin, std::span<double> out) const override {
    return inner_->read(tensor, begin, out);
  }

 private:
  std::unique_ptr<weights::Source> inner_;
  std::string name_;
};

TEST(Load, NamesATensorThatInt8CannotHold) {
  auto random = *weights::make_random("random:char,layers=1,width=64,heads=2,ctx=8");
  const Infinite source(std::move(random.source), "h.0.mlp.c_fc.weight");
  for (const DType type : {DType::int8, DType::int4}) {
    const auto model = model::load_gpt2(random.config, source, "", type, {});
    ASSERT_FALSE(model);
    EXPECT_THAT(model.error().message,
                testing::AllOf(testing::HasSubstr("h.0.mlp.c_fc.weight"), testing::HasSubstr(name_of(type))));
  }
  EXPECT_TRUE(model::load_gpt2(random.config, source, "", DType::bf16, {}));
}

TEST(Sizes, EqualWhatLoadingHolds) {
  for (const char* spec : {"random:char", "random:char,layers=1,width=20,heads=5,ctx=9,vocab=70,inner=33"}) {
    for (const DType dtype : {DType::f32, DType::f64}) {
      const auto loaded = engine::load(spec, dtype);
      ASSERT_TRUE(loaded) << loaded.error().message;
      EXPECT_EQ(loaded->model->weight_bytes(), model::sizes(loaded->model->config(), dtype, 1).weight_bytes) << spec;
    }
  }
  // 124,439,808 parameters: the figure that the GPT-2 authors' checkpoint has.
  EXPECT_EQ(model::sizes(*engine::config_of("random:gpt2"), DType::f32, 1).parameters, 124439808);
}

}  // namespace
}  // namespace stet
