// What a model says of itself to those who keep its keys and values: every weight counts, and every setting has a name.
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "kv/identity.hpp"
#include "model/model.hpp"
#include "weights/checkpoint.hpp"

namespace stet {
namespace {

// Another's tensors, with one value of one of them changed.
class Changed final : public weights::Source {
 public:
  Changed(const weights::Source& source, std::string name, std::int64_t at)
      : source_(source), name_(std::move(name)), at_(at) {}
  std::span<const weights::TensorInfo> tensors() const noexcept override { return source_.tensors(); }
  Result<void> read(const weights::TensorInfo& t, std::int64_t begin, std::span<float> out) const override {
    return read_as(t, begin, out);
  }
  Result<void> read(const weights::TensorInfo& t, std::int64_t begin, std::span<double> out) const override {
    return read_as(t, begin, out);
  }

 private:
  template <class T>
  Result<void> read_as(const weights::TensorInfo& tensor, std::int64_t begin, std::span<T> out) const {
    if (auto ok = source_.read(tensor, begin, out); !ok) return ok;
    const std::int64_t i = at_ - begin;
    if (tensor.name == name_ && i >= 0 && i < static_cast<std::int64_t>(out.size())) {
      out[static_cast<std::size_t>(i)] += T(0.5);
    }
    return {};
  }
  const weights::Source& source_;
  std::string name_;
  std::int64_t at_;
};

constexpr const char* kGpt2 = "random:char,layers=2,heads=2,width=8,vocab=11,ctx=9";
// With every bias there is, and a head of its own.
constexpr const char* kLlama = "random:" STET_SOURCE_DIR "/tests/golden/llama-all-heads-biases/config.json";

std::unique_ptr<model::Model> load(const ModelConfig& config, const weights::Source& source, DType dtype = DType::f32) {
  const auto prefix = weights::check_tensors(source, config, "test");
  EXPECT_TRUE(prefix) << prefix.error().message;
  auto loaded = model::load(config, source, prefix.value_or(""), dtype, {});
  EXPECT_TRUE(loaded) << loaded.error().message;
  return loaded ? std::move(*loaded) : nullptr;
}

class EachFamily : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    auto made = weights::make_random(GetParam());
    ASSERT_TRUE(made) << made.error().message;
    random = std::move(*made);
  }
  weights::RandomModel random;
};

TEST_P(EachFamily, EveryTensorCountsInTheDigest) {
  const auto digest = load(random.config, *random.source)->weights_digest();
  EXPECT_EQ(load(random.config, *random.source)->weights_digest(), digest);
  for (const weights::TensorInfo& tensor : random.source->tensors()) {
    for (const std::int64_t at : {std::int64_t{0}, tensor.elements() / 2, tensor.elements() - 1}) {
      const Changed changed(*random.source, tensor.name, at);
      EXPECT_FALSE(load(random.config, changed)->weights_digest() == digest) << tensor.name << " [" << at << "]";
    }
  }
}

TEST_P(EachFamily, TheWeightsTypeCounts) {
  std::vector<base::Digest> digests;
  std::vector<std::string> configs;
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16, DType::int8, DType::int4}) {
    const auto model = load(random.config, *random.source, dtype);
    for (const auto& other : digests) EXPECT_FALSE(other == model->weights_digest());
    for (const auto& other : configs) EXPECT_NE(other, model->canonical_config());
    digests.push_back(model->weights_digest());
    configs.push_back(model->canonical_config());
  }
}

// A config with something changed is refused by the name of what was changed, as a file of the config before it.
TEST_P(EachFamily, SettingsAreRefusedByName) {
  const kv::Identity file{{}, load(random.config, *random.source)->canonical_config(), 1};
  const auto refused = [&](const std::function<void(ModelConfig&)>& edit) {
    ModelConfig config = random.config;
    edit(config);
    const auto same = kv::check_same(file, {{}, load(config, *random.source)->canonical_config(), 1}, "F");
    return same ? std::string("accepted") : same.error().message;
  };
  EXPECT_EQ(refused([](ModelConfig&) {}), "accepted");
  EXPECT_EQ(refused([](ModelConfig& c) { c.eos = 3; }), "accepted") << "the ids of special tokens shape no row";
  if (random.config.family == "gpt2") {
    EXPECT_EQ(refused([](ModelConfig& c) { c.norm_epsilon = 1e-6; }),
              "F: layer_norm_epsilon is 1e-05 in the file, 1e-06 in the model");
    EXPECT_EQ(refused([](ModelConfig& c) { c.scale_attention = false; }),
              "F: scale_attn_weights is true in the file, false in the model");
    EXPECT_EQ(refused([](ModelConfig& c) { c.scale_attention_by_layer = true; }),
              "F: scale_attn_by_inverse_layer_idx is false in the file, true in the model");
    EXPECT_EQ(refused([](ModelConfig& c) { c.activation = Activation::relu; }),
              "F: hidden_act is gelu_tanh in the file, relu in the model");
    return;
  }
  EXPECT_EQ(refused([](ModelConfig& c) { c.norm_epsilon = 0.1; }),
            "F: rms_norm_eps is 1e-06 in the file, 0.1 in the model");
  EXPECT_EQ(refused([](ModelConfig& c) { c.rope.theta = 500000; }),
            "F: rope_theta is 50 in the file, 500000 in the model");
  EXPECT_EQ(refused([](ModelConfig& c) {
              c.windows = {0, 8};
            }),
            "F: sliding_window is 0 in the file, 0,8 in the model");
  EXPECT_EQ(refused([](ModelConfig& c) {
              c.rope.scaling = Rope::Scaling::linear;
              c.rope.factor = 2.5;
            }),
            "F: rope_type is none in the file, linear in the model (1 more setting differs)");
  EXPECT_EQ(refused([](ModelConfig& c) { c.family = "mistral"; }),
            "F: model_type is llama in the file, mistral in the model");
}

INSTANTIATE_TEST_SUITE_P(All, EachFamily, testing::Values(kGpt2, kLlama),
                         [](const auto& param) { return param.index == 0 ? "gpt2" : "llama"; });

}  // namespace
}  // namespace stet
