// Any bytes as a config.json, and as the overrides of a random model. What is accepted has to make sense.
// More seeds: tests/golden/*/config.json.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "weights/checkpoint.hpp"

namespace {

using namespace stet;

void require(bool condition) {
  if (!condition) std::abort();
}

void check(const Result<ModelConfig>& config) {
  if (!config) {
    const std::string& message = config.error().message;
    return require(!message.empty() && message.find('\n') == message.npos);
  }
  require(weights::check_config(*config, "fuzz").has_value());
  require(config->heads * config->head_dim == config->width && config->kv_heads == config->heads);
  require(config->norm_epsilon > 0);
  if (config->layers > 64) return;  // legal, but slow to list
  for (const auto& tensor : weights::gpt2_tensors(*config)) {
    require((weights::TensorInfo{tensor.name, DType::f32, tensor.shape}).elements() > 0);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  check(weights::parse_config(text, "fuzz"));
  if (text.size() < 100) {
    const auto model = weights::make_random("random:char," + std::string(text));
    check(model ? Result<ModelConfig>(model->config) : Failure(model.error()));
  }
  return 0;
}
