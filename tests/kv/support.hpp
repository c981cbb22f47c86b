// What the cache's tests share: random specs and rows, and reading stored values without the cache's own decoder.
#pragma once

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "stet/cache.hpp"

namespace stet::kv_test {

using Random = std::mt19937_64;

/// An integer of [low, high].
inline int pick(Random& random, int low, int high) {
  return static_cast<int>(low + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(high - low + 1)));
}

inline bool chance(Random& random, int percent) {
  return pick(random, 1, 100) <= percent;
}

inline LayerSpec random_layer(Random& random, int max_heads, int max_dim) {
  LayerSpec layer;
  layer.kv_heads = pick(random, 1, max_heads);
  layer.k_dim = pick(random, 1, max_dim);
  layer.v_dim = pick(random, 1, max_dim);
  layer.k = static_cast<Codec>(pick(random, 0, 5));
  layer.v = static_cast<Codec>(pick(random, 0, 5));
  layer.span.window = chance(random, 60) ? pick(random, 1, 30) : 0;
  if (layer.span.window > 0 && chance(random, 50)) layer.span.sinks = pick(random, 1, 40);
  return layer;
}

inline CacheSpec random_spec(Random& random, int max_layers, int max_heads, int max_dim) {
  CacheSpec spec;
  const int layers = pick(random, 1, max_layers);
  for (int i = 0; i < layers; ++i) {
    const bool again = i > 0 && chance(random, 40);  // layers alike, not always neighbours
    spec.layers.push_back(again ? spec.layers[random() % spec.layers.size()]
                                : random_layer(random, max_heads, max_dim));
  }
  return spec;
}

/// Any double: mostly ordinary ones, at times those that conversions treat specially.
inline double random_value(Random& random) {
  static constexpr std::array kSpecial = {0.0,
                                          -0.0,
                                          std::numeric_limits<double>::infinity(),
                                          -std::numeric_limits<double>::infinity(),
                                          std::numeric_limits<double>::quiet_NaN(),
                                          std::numeric_limits<double>::max(),
                                          1e-310,
                                          -1e-40,
                                          1.0 + 0x1p-24,
                                          1.0 + 0x3p-24};
  if (chance(random, 10)) return kSpecial[random() % kSpecial.size()];
  return std::ldexp(static_cast<double>(random() >> 11) - 0x1p52, -52 + pick(random, -20, 20));
}

/// Activations [rows][heads][dim] with a gap after each row, as in a fused matmul's output.
class Activations {
 public:
  Activations(Random& random, DType type, int rows, int heads, int dim)
      : type_(type), width_(static_cast<std::size_t>(heads) * static_cast<std::size_t>(dim)) {
    stride_ = width_ + static_cast<std::size_t>(pick(random, 0, 5));
    for (std::size_t i = 0; i < stride_ * static_cast<std::size_t>(rows); ++i) {
      const double value = random_value(random);
      type == DType::f64 ? wide_.push_back(value) : narrow_.push_back(static_cast<float>(value));
    }
  }

  Rows rows() const {
    if (type_ == DType::f64) return {type_, reinterpret_cast<const std::byte*>(wide_.data()), stride_ * sizeof(double)};
    return {type_, reinterpret_cast<const std::byte*>(narrow_.data()), stride_ * sizeof(float)};
  }

  /// What a codec keeps of one row, all heads.
  std::vector<double> stored(int row, Codec codec) const {
    std::vector<double> values(width_);
    for (std::size_t i = 0; i < width_; ++i) {
      const std::size_t at = static_cast<std::size_t>(row) * stride_ + i;
      const double given = type_ == DType::f64 ? wide_[at] : static_cast<double>(narrow_[at]);
      values[i] = codec == Codec::f64 ? given : static_cast<double>(static_cast<float>(given));
    }
    return values;
  }

 private:
  DType type_;
  std::size_t width_, stride_ = 0;
  std::vector<double> wide_;
  std::vector<float> narrow_;
};

inline bool same_bits(double a, double b) {
  return std::memcmp(&a, &b, sizeof a) == 0;
}

/// One stored value, found by the layout that include/stet/cache.hpp promises.
inline double load(Codec codec, const std::byte* block, std::size_t index) {
  if (codec == Codec::f64) {
    double value = 0;
    std::memcpy(&value, block + index * sizeof value, sizeof value);
    return value;
  }
  float value = 0;
  std::memcpy(&value, block + index * sizeof value, sizeof value);
  return value;
}

inline double key_in_cell(const CellLayout& layout, const std::byte* cell, int head, Pos pos, int d) {
  const std::byte* block = cell + static_cast<std::size_t>(head) * layout.head_stride;
  return load(layout.k, block, static_cast<std::size_t>(d) * 16 + static_cast<std::size_t>(pos % 16));
}

inline double value_in_cell(const CellLayout& layout, const std::byte* cell, int head, Pos pos, int d) {
  const std::byte* block = cell + static_cast<std::size_t>(head) * layout.head_stride + layout.v_offset;
  return load(
      layout.v, block,
      static_cast<std::size_t>(pos % 16) * static_cast<std::size_t>(layout.v_dim) + static_cast<std::size_t>(d));
}

inline const std::byte* cell_of(const View& view, Pos pos) {
  return view.base + view.cells[static_cast<std::size_t>(pos / 16 - view.first / 16)] * view.layout->bytes;
}

/// The stored rows of one layer: [position][head x dim], as doubles.
struct Stored {
  std::vector<std::vector<double>> k, v;
};

/// Empty when the view holds exactly the first `count` rows of `stored`, both when read through the cell layout and
/// through read_key and read_value; else what differs.
inline std::string difference(const View& view, const LayerSpec& spec, const Stored& stored, Pos count) {
  if (view.first != 0 || view.count != count) return "the view counts " + std::to_string(view.count) + " rows";
  if (!(view.span == spec.span)) return "the view's span differs";
  if (view.cells.size() != static_cast<std::size_t>((count + 15) / 16)) return "the number of cells differs";
  std::vector<double> key(static_cast<std::size_t>(spec.k_dim)), value(static_cast<std::size_t>(spec.v_dim));
  for (Pos pos = 0; pos < count; ++pos) {
    const std::byte* cell = cell_of(view, pos);
    const std::string where = " at position " + std::to_string(pos);
    for (int head = 0; head < spec.kv_heads; ++head) {
      if (!read_key(view, head, pos, key) || !read_value(view, head, pos, value)) return "reading failed" + where;
      const double* k = stored.k[static_cast<std::size_t>(pos)].data() + head * spec.k_dim;
      const double* v = stored.v[static_cast<std::size_t>(pos)].data() + head * spec.v_dim;
      for (int d = 0; d < spec.k_dim; ++d) {
        if (!same_bits(key_in_cell(*view.layout, cell, head, pos, d), k[d])) return "a key's bits differ" + where;
        if (!same_bits(key[static_cast<std::size_t>(d)], k[d])) return "read_key differs" + where;
      }
      for (int d = 0; d < spec.v_dim; ++d) {
        if (!same_bits(value_in_cell(*view.layout, cell, head, pos, d), v[d])) return "a value's bits differ" + where;
        if (!same_bits(value[static_cast<std::size_t>(d)], v[d])) return "read_value differs" + where;
      }
    }
  }
  return "";
}

/// Of a contiguous cache with poison that evicts nothing: empty when every slot of [from, cells of max_len) of sequence
/// slot `index` is NaN, else the first that is not.
inline std::string unpoisoned(const View& view, std::uint32_t index, Pos from, Pos max_len) {
  const CellLayout& layout = *view.layout;
  const Pos cells = (max_len + 15) / 16;
  for (Pos pos = from; pos < cells * 16; ++pos) {
    const std::byte* cell = view.base + static_cast<std::size_t>(index * cells + pos / 16) * layout.bytes;
    bool poisoned = true;
    for (int head = 0; head < layout.kv_heads; ++head) {
      for (int d = 0; d < layout.k_dim; ++d) poisoned &= std::isnan(key_in_cell(layout, cell, head, pos, d));
      for (int d = 0; d < layout.v_dim; ++d) poisoned &= std::isnan(value_in_cell(layout, cell, head, pos, d));
    }
    if (!poisoned) return "a value outside of the sequence is not NaN at position " + std::to_string(pos);
  }
  return "";
}

}  // namespace stet::kv_test
