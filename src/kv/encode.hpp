// The one encoder and decoder of stored rows. A row's bytes depend on that row alone.
#pragma once

#include <cstddef>

#include "stet/cache.hpp"
#include "stet/types.hpp"

namespace stet::kv {

/// Rows of one head among the activations: row r has its values one after the other at data + r * stride (bytes).
/// f32 or f64, aligned to its type.
struct HeadRows {
  DType type = DType::f32;
  const std::byte* data = nullptr;
  std::size_t stride = 0;
};

/// The K or V of one head in one cell: keys lie as [dim][16], values as [16][dim].
struct Block {
  Codec codec = Codec::f32;
  int dim = 0;
  std::byte* data = nullptr;
};

/// K and V of a head in the cell that starts at `cell`.
Block key_block(const CellLayout& layout, std::byte* cell, int head) noexcept;
Block value_block(const CellLayout& layout, std::byte* cell, int head) noexcept;

/// Stores rows [0, count) in slots [slot, slot + count), slot + count <= 16. Widening is exact, narrowing rounds to
/// nearest even.
void encode_keys(Block block, int slot, HeadRows rows, int count) noexcept;
void encode_values(Block block, int slot, HeadRows rows, int count) noexcept;

/// Value d of the row in `slot`.
double decode_key(Block block, int slot, int d) noexcept;
double decode_value(Block block, int slot, int d) noexcept;

/// Makes every value of slots [slot, slot + count) NaN.
void poison_keys(Block block, int slot, int count) noexcept;
void poison_values(Block block, int slot, int count) noexcept;

/// The same for a whole stretch of cells.
void poison_bytes(std::byte* data, std::size_t bytes) noexcept;

}  // namespace stet::kv
