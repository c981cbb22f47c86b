#include "lab/eval_reader.hpp"

#include <fmt/format.h>

#include <numeric>

#include "engine/cache_setup.hpp"

namespace stet::lab {

EvalSubject eval_subject(const model::Model& model) {
  return {&model, model.cache_spec(), name_of(model.weights()), name_of(arithmetic_of(model.weights()))};
}

Result<EvalSubject> eval_subject(const model::Model& model, const KvCodecs& kv) {
  EngineOptions choice;
  choice.kv = {kv};
  auto spec = engine::with_choices(model.cache_spec(), choice);
  if (!spec) return pass(spec);
  return EvalSubject{&model, std::move(*spec), "cache in " + engine::words_of(kv), engine::words_of(kv)};
}

Result<EvalReader> EvalReader::make(const EvalSubject& subject, Pos longest, const Wrap& wrap) {
  const model::Model& model = *subject.model;
  EvalReader reader(model);
  CacheOptions options;
  options.max_len = longest;
  auto cache = make_cache(subject.cache, options);
  if (cache && wrap) cache = wrap(std::move(*cache));
  if (!cache) return pass(cache);
  reader.cache_ = std::move(*cache);
  auto seq = reader.cache_->open();
  if (!seq) return pass(seq);
  reader.seq_ = *seq;
  auto workspace = base::Buffer::allocate(model.workspace_bytes(static_cast<int>(kEvalChunk)));
  if (!workspace) return pass(workspace);
  reader.workspace_ = std::move(*workspace);
  auto logits = base::Buffer::allocate(static_cast<std::size_t>(kEvalChunk) * reader.vocab() * size_of(model.dtype()));
  if (!logits) return pass(logits);
  reader.logits_ = std::move(*logits);
  return reader;
}

Result<void> EvalReader::read(const kernels::Compute& on, std::span<const TokenId> ids, bool last_only) {
  const Append append{seq_, static_cast<int>(ids.size())};
  auto step = cache_->begin({&append, 1});
  if (!step) return pass(step);
  std::vector<int> rows(last_only ? 1 : ids.size());
  std::iota(rows.begin(), rows.end(), static_cast<int>(ids.size() - rows.size()));
  if (auto ok = model_->forward(on, **step, ids, {rows, logits_.data()}, workspace_); !ok) return ok;
  (*step)->commit();
  return {};
}

std::vector<double> EvalReader::row(std::size_t r) const {
  const std::size_t n = vocab();
  if (model_->dtype() == DType::f64) return {logits_.as<double>() + r * n, logits_.as<double>() + (r + 1) * n};
  return {logits_.as<float>() + r * n, logits_.as<float>() + (r + 1) * n};
}

std::span<const std::byte> EvalReader::bytes(std::size_t r) const {
  const std::size_t bytes = vocab() * size_of(model_->dtype());
  return {logits_.data() + r * bytes, bytes};
}

Result<std::vector<TokenId>> eval_ids(const EvalInput& input, const engine::Loaded& loaded) {
  std::vector<TokenId> ids = input.ids;
  if (input.is_text) {
    if (!loaded.tokenizer) {
      const std::string& why = loaded.no_tokenizer;
      return fail(Code::unsupported,
                  fmt::format("{} has no tokenizer to read {} with{}: give token ids (--ids)", loaded.name, input.name,
                              why.empty() ? "" : fmt::format(" ({})", why)));
    }
    auto encoded = loaded.tokenizer->encode(input.text);
    if (!encoded) return fail(encoded.error().code, fmt::format("{}: {}", input.name, encoded.error().message));
    ids = std::move(*encoded);
  }
  const int vocab = loaded.model->config().vocab;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0 && ids[i] < vocab) continue;
    return fail(Code::invalid_argument, fmt::format("{}: token {} has id {}, which is not in the vocabulary of {}",
                                                    input.name, i + 1, ids[i], vocab));
  }
  return ids;
}

}  // namespace stet::lab
