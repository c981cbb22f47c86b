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
constexpr std::size_t kMaxCells = std::numeric_limits<std::uint32_t>::max();

Result<void> check_layer(const LayerSpec& layer, std::size_t number) {
  const auto refuse = [&](const char* field, std::int64_t value, const char* why) {
    return fail(Code::invalid_argument, fmt::format("layer {}: {} {} {}", number, field, value, why));
  };
  if (layer.kv_heads <= 0) return refuse("kv_heads", layer.kv_heads, "is not positive");
  if (layer.k_dim <= 0) return refuse("k_dim", layer.k_dim, "is not positive");
  if (layer.v_dim <= 0) return refuse("v_dim", layer.v_dim, "is not positive");
  if (layer.span.window < 0) return refuse("window", layer.span.window, "is negative");
  if (layer.span.sinks < 0) return refuse("sinks", layer.span.sinks, "is negative");
  if (layer.span.window == 0 && layer.span.sinks > 0) return refuse("sinks", layer.span.sinks, "has no window");
  if (!is_known(layer.k)) return refuse("codec of k", static_cast<int>(layer.k), "is unknown");
  if (!is_known(layer.v)) return refuse("codec of v", static_cast<int>(layer.v), "is unknown");
  return {};
}

Result<void> check(const CacheSpec& spec, const CacheOptions& options) {
  const auto refuse = [](const char* field, std::int64_t value, const char* why) {
    return fail(Code::invalid_argument, fmt::format("cache: {} {} {}", field, value, why));
  };
  if (options.layout > Layout::paged) return refuse("layout", static_cast<int>(options.layout), "is unknown");
  if (options.retain > Retain::all) return refuse("retain", static_cast<int>(options.retain), "is unknown");
  if (options.max_len <= 0) return refuse("max_len", options.max_len, "is not positive");
  if (options.max_step_tokens < 0) return refuse("max_step_tokens", options.max_step_tokens, "is negative");
  if (options.max_seqs <= 0) return refuse("max_seqs", options.max_seqs, "is not positive");
  if (options.pool_tokens < 0) return refuse("pool_tokens", options.pool_tokens, "is negative");
  const Pos page = options.page_tokens;
  if (page != 16 && page != 32 && page != 64 && page != 128) {
    return refuse("page_tokens", page, "is not 16, 32, 64 or 128");
  }
  if (spec.layers.empty()) return fail(Code::invalid_argument, "cache: the spec has no layers");
  if (cells_for(options.max_len) > kMaxCells) {  // also keeps the sums below from wrapping around
    return fail(Code::capacity, fmt::format("cache: max_len {} is more than the {} tokens that a sequence can be given",
                                            options.max_len, kMaxCells * kCell));
  }
  for (std::size_t i = 0; i < spec.layers.size(); ++i) {
    if (auto ok = check_layer(spec.layers[i], i); !ok) return ok;
  }
  return {};
}

constexpr std::size_t divide_up(std::size_t a, std::size_t b) noexcept {
  return a / b + (a % b != 0 ? 1 : 0);
}

// Stretches of `size` tokens, aligned to absolute position, that `tokens` neighbouring ones touch wherever they start.
constexpr std::size_t touched(std::size_t tokens, std::size_t size) noexcept {
  return (tokens + size - 2) / size + 1;
}

// Stretches of `size` tokens that a sequence holds of a layer at most: the whole of it, or the sinks and what a window
// sees while a step is under way.
std::size_t most_held(const LayerSpec& layer, const CacheOptions& options, std::size_t size) noexcept {
  const std::size_t whole = divide_up(static_cast<std::size_t>(options.max_len), size);
  const bool evicts = layer.span.window > 0 && options.retain == Retain::visible && options.layout != Layout::growing;
  if (!evicts || rows_kept(layer.span.window) >= options.max_len) return whole;
  const std::size_t sinks = divide_up(cells_for(std::min(layer.span.sinks, options.max_len)) * kCell, size);
  const auto seen =
      static_cast<std::size_t>(rows_kept(layer.span.window)) + static_cast<std::size_t>(longest_step(options));
  return std::min(whole, add(sinks, touched(seen, size)));
}

// Cells of a layer.
struct Cells {
  std::size_t numbered = 0;  // numbers in a sequence's table at most
  std::size_t reserved = 0;  // for one sequence
  std::size_t pages = 0;     // of the pool
  std::size_t all = 0;
};

Cells cells_of(const LayerSpec& layer, const CacheOptions& options) noexcept {
  const auto seqs = static_cast<std::size_t>(options.max_seqs);
  Cells cells;
  cells.numbered = most_held(layer, options, kCell);
  if (options.layout != Layout::paged) {
    cells.reserved = cells.numbered * (options.layout == Layout::growing ? 2 : 1);
    cells.all = multiply(cells.reserved, seqs);
    return cells;
  }
  const auto tokens = static_cast<std::size_t>(options.page_tokens);
  const std::size_t pages = most_held(layer, options, tokens);
  cells.reserved = pages * (tokens / kCell);
  cells.pages = multiply(pages, seqs);
  if (options.pool_tokens > 0) {
    cells.pages = std::min(cells.pages, divide_up(static_cast<std::size_t>(options.pool_tokens), tokens));
  }
  cells.all = multiply(cells.pages, tokens / kCell);
  return cells;
}

// The first layer like it.
std::size_t like(const CacheSpec& spec, std::size_t layer) noexcept {
  const auto found = std::find(spec.layers.begin(), spec.layers.end(), spec.layers[layer]);
  return static_cast<std::size_t>(found - spec.layers.begin());
}

std::size_t table_bytes(const CacheSpec& spec, const CacheOptions& options, const Counts& counts) noexcept {
  const std::size_t groups = multiply(counts.groups, sizeof(Group));
  const std::size_t layers = multiply(spec.layers.size(), sizeof(LayerPlace));
  std::size_t sequence = sizeof(SeqRecord) + sizeof(Slice);
  sequence = add(sequence, multiply(counts.groups, sizeof(Held)));
  sequence = add(sequence, multiply(counts.table, sizeof(std::uint32_t)));
  std::size_t pages = 0;
  if (options.layout == Layout::paged) {
    sequence = add(sequence, multiply(counts.groups, sizeof(std::uint32_t)));  // pages that a step replaces
    pages = multiply(counts.pages, 2 * sizeof(std::uint32_t));                 // owners and the free list
    pages = add(pages, multiply(counts.groups, sizeof(Pool)));
  }
  return add(add(groups, layers), add(pages, multiply(static_cast<std::size_t>(options.max_seqs), sequence)));
}

}  // namespace

Counts count(const CacheSpec& spec, const CacheOptions& options) noexcept {
  Counts counts;
  for (std::size_t i = 0; i < spec.layers.size(); ++i) {
    const Cells cells = cells_of(spec.layers[i], options);
    counts.storage = add(counts.storage, multiply(cells.all, cell_layout(spec.layers[i]).bytes));
    if (like(spec, i) != i) continue;
    ++counts.groups;
    counts.table = add(counts.table, cells.numbered);
    counts.pages = add(counts.pages, cells.pages);
  }
  return counts;
}

void lay_out(const CacheSpec& spec, const CacheOptions& options, std::span<LayerPlace> layers,
             std::span<Group> groups) noexcept {
  std::size_t offset = 0, table = 0, page = 0;
  std::uint32_t made = 0;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const LayerSpec& layer = spec.layers[i];
    const Cells cells = cells_of(layer, options);
    const std::size_t first = like(spec, i);
    if (first == i) {
      Group& group = groups[made];
      group.layer = static_cast<std::uint32_t>(i);
      group.evicts = layer.span.window > 0 && options.retain == Retain::visible && options.layout != Layout::growing;
      group.behind = layer.span.window > 0 ? rows_behind(layer.span.window) : 0;
      group.sink_cells = static_cast<Pos>(cells_for(std::min(layer.span.sinks, options.max_len)));
      group.table = table;
      group.cells = cells.numbered;
      group.page = page;
      group.pages = cells.pages;
      table += cells.numbered;
      page += cells.pages;
      layers[i].group = made++;
    } else {
      layers[i].group = layers[first].group;
    }
    layers[i].layout = cell_layout(layer);
    layers[i].offset = offset;
    offset += cells.all * layers[i].layout.bytes;
    Group& group = groups[layers[i].group];
    ++group.layers;
    group.cell_bytes += layers[i].layout.bytes;
    group.row_bytes += row_bytes(layer);
  }
}

}  // namespace stet::kv

namespace stet {

Result<CachePlan> plan_cache(const CacheSpec& spec, const CacheOptions& options) {
  using namespace kv;
  if (auto ok = check(spec, options); !ok) return pass(ok);
  CachePlan plan;
  for (std::size_t i = 0; i < spec.layers.size(); ++i) {
    const LayerSpec& layer = spec.layers[i];
    const Cells cells = cells_of(layer, options);
    if (cells.all > kMaxCells) {
      return fail(Code::capacity,
                  fmt::format("cache: max_len {} for {} sequences: layer {} has more than the {} cells of "
                              "{} tokens that can be numbered",
                              options.max_len, options.max_seqs, i, kMaxCells, kCell));
    }
    plan.bytes_per_token = add(plan.bytes_per_token, row_bytes(layer));
    plan.bytes_per_sequence = add(plan.bytes_per_sequence, multiply(cells.reserved, cell_layout(layer).bytes));
  }
  const Counts counts = count(spec, options);
  plan.reserved = add(counts.storage, table_bytes(spec, options, counts));
  if (plan.reserved >= kTooMuch) {
    return fail(Code::capacity, fmt::format("cache: {} layers for {} sequences of {} tokens need more than {} bytes",
                                            spec.layers.size(), options.max_seqs, options.max_len, kTooMuch));
  }
  return plan;
}

}  // namespace stet
