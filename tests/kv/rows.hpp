// Rows as bytes: gathered from where include/stet/cache.hpp says they lie in a cell, so that they compare by memcmp.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <vector>

#include "kv/cell.hpp"
#include "kv/encode.hpp"
#include "kv/support.hpp"

namespace stet::kv_test {

/// Bytes of one value; of int4, which lie two in a byte, of a pair.
inline std::size_t value_bytes(Codec codec) {
  static constexpr std::size_t kBytes[] = {8, 4, 2, 2, 1, 1};
  return kBytes[static_cast<int>(codec)];
}

inline std::size_t values_of(Codec codec, int dim) {
  return static_cast<std::size_t>(codec == Codec::int4 ? (dim + 1) / 2 : dim);
}

/// All heads of the row in one slot of a cell, appended to `out`.
inline void gather(const CellLayout& layout, const std::byte* cell, int slot, std::vector<std::byte>& out) {
  const auto at = static_cast<std::size_t>(slot);
  const auto take = [&](const std::byte* from, std::size_t bytes) { out.insert(out.end(), from, from + bytes); };
  for (int h = 0; h < layout.kv_heads; ++h) {
    const std::byte* head = cell + static_cast<std::size_t>(h) * layout.head_stride;
    const std::size_t key = value_bytes(layout.k), value = value_bytes(layout.v);
    for (std::size_t d = 0; d < values_of(layout.k, layout.k_dim); ++d) take(head + (d * 16 + at) * key, key);
    const std::size_t row = values_of(layout.v, layout.v_dim) * value;
    take(head + layout.v_offset + at * row, row);
    if (has_scale(layout.k)) take(head + layout.k_scales + at * 4, 4);
    if (has_scale(layout.v)) take(head + layout.v_scales + at * 4, 4);
  }
}

/// One cell of its own.
class ScratchCell {
 public:
  explicit ScratchCell(const LayerSpec& layer) : layout_(kv::cell_layout(layer)), bytes_(layout_.bytes / 8) {}
  const CellLayout& layout() const { return layout_; }
  std::byte* data() { return reinterpret_cast<std::byte*>(bytes_.data()); }

  /// The bytes of row `row` of a layer's activations, encoded alone.
  void encode(Rows k, Rows v, int row, std::vector<std::byte>& out) {
    const auto head_rows = [&](Rows rows, int head, int dim) -> kv::HeadRows {
      const std::size_t column = static_cast<std::size_t>(head * dim) * (rows.type == DType::f64 ? 8 : 4);
      return {rows.type, rows.data + static_cast<std::size_t>(row) * rows.row_stride + column, rows.row_stride};
    };
    for (int head = 0; head < layout_.kv_heads; ++head) {
      kv::encode_keys(kv::key_block(layout_, data(), head), 5, head_rows(k, head, layout_.k_dim), 1);
      kv::encode_values(kv::value_block(layout_, data(), head), 5, head_rows(v, head, layout_.v_dim), 1);
    }
    gather(layout_, data(), 5, out);
  }

  /// The bytes of a row that is all poison.
  std::vector<std::byte> poison(double value) {
    kv::fill_cells(layout_, data(), 1, value);
    std::vector<std::byte> out;
    gather(layout_, data(), 0, out);
    return out;
  }

 private:
  CellLayout layout_;
  std::vector<double> bytes_;
};

/// One token's rows, layer after layer, as they are to be stored.
using Token = std::shared_ptr<const std::vector<std::vector<std::byte>>>;

/// Stretches of `size` tokens that a sequence holds of a layer at most, by the longest stretch of positions that there
/// can be: one that starts at the last token of one.
inline Pos most_stretches(const LayerSpec& layer, const CacheOptions& o, Pos size) {
  const auto up = [](Pos a, Pos b) { return (a + b - 1) / b; };
  const Pos whole = up(o.max_len, size);
  if (layer.span.window == 0 || o.retain == Retain::all || o.layout == Layout::growing) return whole;
  const Pos step = o.max_step_tokens == 0 ? o.max_len : std::min(o.max_step_tokens, o.max_len);
  const Pos seen = std::max<Pos>(layer.span.window, 2) + step;
  return std::min(whole, up(up(layer.span.sinks, 16) * 16, size) + 1 + up(seen - 1, size));
}

inline Pos pool_pages(const LayerSpec& layer, const CacheOptions& o) {
  const Pos all = most_stretches(layer, o, o.page_tokens) * o.max_seqs;
  return o.pool_tokens == 0 ? all : std::min(all, (o.pool_tokens + o.page_tokens - 1) / o.page_tokens);
}

inline Pos pool_cells(const LayerSpec& layer, const CacheOptions& o) {
  if (o.layout == Layout::paged) return pool_pages(layer, o) * (o.page_tokens / 16);
  return most_stretches(layer, o, 16) * o.max_seqs * (o.layout == Layout::growing ? 2 : 1);
}

}  // namespace stet::kv_test
