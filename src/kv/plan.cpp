// What a cache costs: the only place that adds up its sizes.
#include "kv/plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "kv/cell.hpp"
#include "kv/sizes.hpp"

namespace stet::kv {
namespace {

// Cells are numbered in 32 bits.
constexpr std::size_t kMaxCells = std::size_t{1} << 32;

Result<void> check_layer(const LayerSpec& layer, std::size_t number) {
  const auto refuse = [&](const char* field, std::int64_t value, const char* why) {
    return fail(Code::invalid_argument, fmt::format("layer {}: {} {} {}", number, field, value, why));
  };
  if (layer.kv_heads <= 0) return refuse("kv_heads", layer.kv_heads, "is not positive");
  if (layer.k_dim <= 0) return refuse("k_dim", layer.k_dim, "is not positive");
  if (layer.v_dim <= 0) return refuse("v_dim", layer.v_dim, "is not positive");
  if (layer.span.window < 0) return refuse("window", layer.span.window, "is negative");
  if (!is_known(layer.k)) return refuse("codec of k", static_cast<int>(layer.k), "is unknown");
  if (!is_known(layer.v)) return refuse("codec of v", static_cast<int>(layer.v), "is unknown");
  return {};
}

Result<void> check(const CacheSpec& spec, const CacheOptions& options) {
  const auto refuse = [](const char* field, std::int64_t value, const char* why) {
    return fail(Code::invalid_argument, fmt::format("cache: {} {} {}", field, value, why));
  };
  if (options.layout != Layout::contiguous) return refuse("layout", static_cast<int>(options.layout), "is unknown");
  if (options.max_len <= 0) return refuse("max_len", options.max_len, "is not positive");
  if (options.max_seqs <= 0) return refuse("max_seqs", options.max_seqs, "is not positive");
  if (spec.layers.empty()) return fail(Code::invalid_argument, "cache: the spec has no layers");
  for (std::size_t i = 0; i < spec.layers.size(); ++i) {
    if (auto ok = check_layer(spec.layers[i], i); !ok) return ok;
  }
  if (cells_for(options.max_len) > kMaxCells) {
    return fail(Code::capacity, fmt::format("cache: max_len {} is more than the {} tokens that a sequence can be given",
                                            options.max_len, kMaxCells * kCell));
  }
  return {};
}

// The cache's tables: the numbers of the cells, where the layers lie, the sequences, and the slices of a step.
std::size_t table_bytes(const CacheSpec& spec, const CacheOptions& options) noexcept {
  const auto seqs = static_cast<std::size_t>(options.max_seqs);
  const std::size_t cells = multiply(cells_for(options.max_len), sizeof(std::uint32_t));
  const std::size_t layers = multiply(spec.layers.size(), sizeof(LayerPlace));
  return add(add(cells, layers), multiply(seqs, sizeof(SeqRecord) + sizeof(Slice)));
}

}  // namespace

void place_layers(const CacheSpec& spec, const CacheOptions& options, std::span<LayerPlace> places) {
  std::size_t offset = 0;
  for (std::size_t i = 0; i < places.size(); ++i) {
    places[i] = {cell_layout(spec.layers[i]), offset};
    offset += cells_for(options.max_len) * places[i].layout.bytes;
  }
}

}  // namespace stet::kv

namespace stet {

Result<CachePlan> plan_cache(const CacheSpec& spec, const CacheOptions& options) {
  using namespace kv;
  if (auto ok = check(spec, options); !ok) return pass(ok);
  CachePlan plan;
  for (const LayerSpec& layer : spec.layers) {
    plan.bytes_per_token = add(plan.bytes_per_token, row_bytes(layer));
    plan.bytes_per_sequence =
        add(plan.bytes_per_sequence, multiply(cells_for(options.max_len), cell_layout(layer).bytes));
  }
  const std::size_t storage = multiply(static_cast<std::size_t>(options.max_seqs), plan.bytes_per_sequence);
  plan.reserved = add(storage, table_bytes(spec, options));
  if (plan.reserved >= kTooMuch) {
    return fail(Code::capacity, fmt::format("cache: {} layers for {} sequences of {} tokens need more than {} bytes",
                                            spec.layers.size(), options.max_seqs, options.max_len, kTooMuch));
  }
  return plan;
}

}  // namespace stet
