#include "engine/loaded.hpp"

#include <fmt/format.h>

#include <atomic>
#include <filesystem>
#include <future>
#include <memory>
#include <new>
#include <optional>
#include <system_error>

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

namespace {

// The tokenizer of a folder, if it has a vocabulary, read beside the weights: it is a third of the time of a small
// model on one thread. A folder that cannot be used should not read gigabytes first, so the weights stop when this
// fails.
class VocabularyLoad {
 public:
  VocabularyLoad() = default;
  /// `required`: also one of a kind that is not supported is a failure.
  VocabularyLoad(const std::string& folder, int vocab, bool required) {
    if (!has_vocabulary(folder)) return;
    failed_ = std::make_shared<std::atomic<bool>>(false);
    const auto read = [folder, vocab, required, failed = failed_] {
      Result<Tokenizer> tokenizer = fail(Code::capacity, fmt::format("{}: no memory for the vocabulary", folder));
      try {
        tokenizer = load(folder, vocab);
      } catch (const std::bad_alloc&) {
        // The error is that of above.
      }
      if (!tokenizer && (required || tokenizer.error().code != Code::unsupported)) {
        failed->store(true, std::memory_order_relaxed);
      }
      return tokenizer;
    };
    try {
      tokenizer_ = std::async(std::launch::async, read);
    } catch (const std::system_error&) {
      tokenizer_ = std::async(std::launch::deferred, read);  // the system starts no more threads
    }
  }

  bool failed() const noexcept { return failed_ != nullptr && failed_->load(std::memory_order_relaxed); }

  /// Waits for it. Empty: there is none.
  Result<std::optional<Tokenizer>> result() {
    if (!tokenizer_.valid()) return std::optional<Tokenizer>();
    auto tokenizer = tokenizer_.get();
    if (!tokenizer) return pass(tokenizer);
    return std::optional<Tokenizer>(std::move(*tokenizer));
  }

 private:
  static Result<Tokenizer> load(const std::string& folder, int vocab) {
    auto tokenizer = Tokenizer::load(folder);
    if (tokenizer && tokenizer->vocab_size() > vocab) {
      return fail(Code::corrupt, fmt::format("{}: the tokenizer has ids up to {}, config.json a vocab_size of {}",
                                             folder, tokenizer->vocab_size() - 1, vocab));
    }
    return tokenizer;
  }

  std::shared_ptr<std::atomic<bool>> failed_;
  std::future<Result<Tokenizer>> tokenizer_;
};

}  // namespace

Result<Loaded> load(const std::string& spec, DType dtype, const std::function<bool(double)>& progress) {
  if (auto ok = check_cpu(); !ok) return pass(ok);
  Loaded loaded;
  loaded.name = spec;
  VocabularyLoad vocabulary;
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
    vocabulary = VocabularyLoad(spec, config.vocab, config.family == "gpt2");
    auto opened = weights::open_safetensors(spec);
    if (!opened) return pass(opened);
    source = std::move(*opened);
  }
  if (auto ok = check_memory(spec, {model::sizes(config, dtype, 1).weight_bytes, 0, 0}); !ok) return pass(ok);
  auto prefix = weights::check_tensors(*source, config, spec);
  if (!prefix) return pass(prefix);
  auto weights = model::load(config, *source, *prefix, dtype,
                             [&](double part) { return !vocabulary.failed() && (!progress || progress(part)); });
  if (!weights && !vocabulary.failed()) return pass(weights);
  auto tokenizer = vocabulary.result();
  if (!tokenizer && vocabulary.failed()) return pass(tokenizer);
  if (!weights) return pass(weights);
  if (tokenizer) {
    loaded.tokenizer = std::move(*tokenizer);
  } else {
    loaded.no_tokenizer = tokenizer.error().message;
  }
  loaded.model = std::move(*weights);
  return loaded;
}

Result<void> check_request(const Request& request, const ModelConfig& config, Pos max_len, bool has_tokenizer) {
  const auto n = static_cast<Pos>(request.prompt.size());
  if (n == 0) return fail(Code::invalid_argument, "the prompt is empty: at least one token is needed");
  if (n >= max_len && request.past_limit == PastLimit::stop) {
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
