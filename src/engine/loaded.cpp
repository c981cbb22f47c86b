#include "engine/loaded.hpp"

#include <fmt/format.h>

#include <filesystem>

#include "base/memory.hpp"
#include "sample/sampler.hpp"
#include "stet/version.hpp"
#include "weights/checkpoint.hpp"

namespace stet::engine {
namespace {

namespace fs = std::filesystem;

}  // namespace

// The files by which Tokenizer::load finds a vocabulary.
bool has_vocabulary(const std::string& spec) {
  if (weights::is_random(spec)) return false;
  std::error_code ignored;
  for (const char* file : {"vocab.json", "encoder.json", "tokenizer.json", "merges.txt", "vocab.bpe"}) {
    if (fs::exists(fs::path(spec) / file, ignored)) return true;
  }
  return false;
}

Result<ModelConfig> config_of(const std::string& spec) {
  if (!weights::is_random(spec)) return weights::read_config(spec);
  auto random = weights::make_random(spec);
  if (!random) return pass(random);
  return random->config;
}

Result<void> check_memory(const std::string& model, const Memory& need) {
  const std::size_t all = need.weights + need.cache + need.scratch;
  const auto available = base::available_memory();
  if (!available || all <= *available) return {};
  return fail(
      Code::capacity,
      fmt::format("{} needs {} bytes of memory (weights {}, cache {}, scratch {}), but this process may use only {}",
                  model, all, need.weights, need.cache, need.scratch, *available));
}

Result<Loaded> load(const std::string& spec, DType dtype, const std::function<bool(double)>& progress) {
  if (auto ok = check_cpu(); !ok) return pass(ok);
  Loaded loaded;
  loaded.name = spec;
  std::unique_ptr<weights::Source> source;
  ModelConfig config;
  if (weights::is_random(spec)) {
    auto random = weights::make_random(spec);
    if (!random) return pass(random);
    config = random->config;
    source = std::move(random->source);
  } else {
    auto read = weights::read_config(spec);
    if (!read) return pass(read);
    config = *read;
    // The vocabulary first: it is small, and a folder that cannot be used should say so before gigabytes are read.
    if (has_vocabulary(spec)) {
      auto tokenizer = Tokenizer::load(spec);
      if (!tokenizer) return pass(tokenizer);
      if (tokenizer->vocab_size() > config.vocab) {
        return fail(Code::corrupt, fmt::format("{}: the tokenizer has ids up to {}, config.json a vocab_size of {}",
                                               spec, tokenizer->vocab_size() - 1, config.vocab));
      }
      loaded.tokenizer = std::move(*tokenizer);
    }
    auto opened = weights::open_safetensors(spec);
    if (!opened) return pass(opened);
    source = std::move(*opened);
  }
  if (auto ok = check_memory(spec, {model::sizes(config, dtype, 1).weight_bytes, 0, 0}); !ok) return pass(ok);
  auto prefix = weights::check_gpt2(*source, config, spec);
  if (!prefix) return pass(prefix);
  auto weights = model::load_gpt2(config, *source, *prefix, dtype, progress);
  if (!weights) return pass(weights);
  loaded.model = std::move(*weights);
  return loaded;
}

Result<void> check_request(const Request& request, const ModelConfig& config, Pos max_len, bool has_tokenizer) {
  const auto n = static_cast<Pos>(request.prompt.size());
  if (n == 0) return fail(Code::invalid_argument, "the prompt is empty: at least one token is needed");
  if (n >= max_len) {
    return fail(Code::capacity,
                fmt::format("the prompt has {} tokens, but must have fewer than the {} of the {}", n, max_len,
                            max_len == config.context ? "model's context" : "longest sequence allowed"));
  }
  for (const TokenId id : request.prompt) {
    if (id < 0 || id >= config.vocab) {
      return fail(Code::invalid_argument, fmt::format("token id {} is not in the vocabulary of {}", id, config.vocab));
    }
  }
  if (request.max_new < 0)
    return fail(Code::invalid_argument, fmt::format("{} new tokens: must not be negative", request.max_new));
  if (!request.stop.empty() && !has_tokenizer) {
    return fail(Code::invalid_argument, "stop strings need a tokenizer, and this model has none");
  }
  return sample::check(request.sampling);
}

}  // namespace stet::engine
