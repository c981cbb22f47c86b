#include "engine/cache_setup.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

namespace stet {

const char* name_of(CacheMode mode) noexcept {
  switch (mode) {
    case CacheMode::contiguous:
      return "contiguous";
    case CacheMode::growing:
      return "growing";
    case CacheMode::paged:
      return "paged";
    case CacheMode::none:
      break;
  }
  return "none";
}

namespace engine {
namespace {

Layout layout_of(CacheMode mode) noexcept {
  switch (mode) {
    case CacheMode::growing:
      return Layout::growing;
    case CacheMode::paged:
      return Layout::paged;
    default:
      return Layout::contiguous;
  }
}

std::string pair_words(const LayerSpec& layer) {
  if (layer.k == layer.v) return name_of(layer.k);
  return fmt::format("{} and {}", name_of(layer.k), name_of(layer.v));
}

}  // namespace

Result<CacheSpec> with_choices(CacheSpec spec, const EngineOptions& options) {
  const int layers = static_cast<int>(spec.layers.size());
  for (const KvCodecs& choice : options.kv) {
    const int last = choice.last < 0 ? layers - 1 : choice.last;
    if (choice.first < 0 || choice.first > last || last >= layers) {
      return fail(Code::invalid_argument, fmt::format("codecs for layers {} to {}: the model has layers 0 to {}",
                                                      choice.first, last, layers - 1));
    }
    for (int i = choice.first; i <= last; ++i) {
      spec.layers[static_cast<std::size_t>(i)].k = choice.k;
      spec.layers[static_cast<std::size_t>(i)].v = choice.v;
    }
  }
  if (options.span) {
    if (options.span->window < 1 || options.span->sinks < 0) {
      return fail(Code::invalid_argument, fmt::format("a window of {} tokens with {} sinks: must be at least 1 and 0",
                                                      options.span->window, options.span->sinks));
    }
    for (LayerSpec& layer : spec.layers) layer.span = *options.span;
  }
  return spec;
}

namespace {

constexpr std::size_t kMostKept = 64;  // sequences in a prefix cache

// Room for a prefix cache beside the sequences that run. Without a plan the cache will be refused anyway.
void add_prefix(CacheOptions& c, std::size_t budget, const CacheSpec& spec) {
  const auto plan = plan_cache(spec, c);
  if (!plan) return;
  if (c.layout != Layout::paged) {
    // Without pages each sequence kept costs as much as one that runs. An unlimited budget shares their places.
    if (budget == std::numeric_limits<std::size_t>::max()) return;
    c.max_seqs += static_cast<int>(std::min(kMostKept, budget / std::max<std::size_t>(1, plan->bytes_per_sequence)));
    return;
  }
  const auto running = static_cast<std::size_t>(c.max_seqs) * static_cast<std::size_t>(c.max_len);
  const std::size_t kept = budget / std::max<std::size_t>(1, plan->bytes_per_token);
  // An unlimited one has, as a default, as much as what runs.
  const std::size_t more = budget == std::numeric_limits<std::size_t>::max()
                               ? running
                               : std::min(kept, kMostKept * static_cast<std::size_t>(c.max_len));
  if (c.pool_tokens == 0) c.pool_tokens = static_cast<Pos>(running + more);
  c.max_seqs += static_cast<int>(kMostKept);
}

}  // namespace

CacheOptions cache_options(const EngineOptions& o, const CacheSpec& spec) {
  CacheOptions c;
  c.layout = layout_of(o.cache);
  c.page_tokens = o.page_tokens;
  c.pool_tokens = o.pool_tokens;
  c.max_len = o.max_len;
  c.max_step_tokens = o.cache == CacheMode::none ? o.max_len : o.chunk;
  c.max_seqs = o.max_seqs;
  if (o.poison) c.poison = std::numeric_limits<double>::quiet_NaN();
  if (o.prefix_bytes) add_prefix(c, *o.prefix_bytes, spec);
  // A kept sequence beside the one that runs and the one that computes its rows anew.
  if (o.prefix_bytes && o.audit > 0 && c.layout != Layout::paged) c.max_seqs = std::max(c.max_seqs, o.max_seqs + 2);
  return c;
}

std::string codec_words(const CacheSpec& spec) {
  std::string words;
  const auto& layers = spec.layers;
  for (std::size_t i = 0, j = 0; i < layers.size(); i = j) {
    while (j < layers.size() && layers[j].k == layers[i].k && layers[j].v == layers[i].v) ++j;
    if (i == 0 && j == layers.size()) return pair_words(layers[0]);
    const std::string range = j - i == 1 ? std::to_string(i) : fmt::format("{}-{}", i, j - 1);
    words += fmt::format("{}{} {}", words.empty() ? "layers " : ", ", range, pair_words(layers[i]));
  }
  return words;
}

std::string words_of(const KvCodecs& kv) {
  std::string words;
  if (kv.last >= 0) {
    words = kv.last == kv.first ? fmt::format("{}:", kv.first) : fmt::format("{}-{}:", kv.first, kv.last);
  }
  words += name_of(kv.k);
  if (kv.v != kv.k) words += fmt::format(",{}", name_of(kv.v));
  return words;
}

}  // namespace engine
}  // namespace stet
