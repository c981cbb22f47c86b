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

/// The K or V of one head in one cell, as CellLayout describes: keys lie as [dim][16], values as [16][dim].
struct Block {
  Codec codec = Codec::f32;
  int dim = 0;
  std::byte* data = nullptr;
  float* scales = nullptr;  // of the 16 slots; int8 and int4 only
};

/// K and V of a head in the cell that starts at `cell`.
Block key_block(const CellLayout& layout, std::byte* cell, int head) noexcept;
Block value_block(const CellLayout& layout, std::byte* cell, int head) noexcept;

/// Stores rows [0, count) in slots [slot, slot + count), slot + count <= 16.
void encode_keys(Block block, int slot, HeadRows rows, int count) noexcept;
void encode_values(Block block, int slot, HeadRows rows, int count) noexcept;

/// Value d of the row in `slot`; of int8 and int4 the exact product of code and scale.
double decode_key(Block block, int slot, int d) noexcept;
double decode_value(Block block, int slot, int d) noexcept;

/// Copies the rows in slots [slot, slot + count) to the same slots of another block of the same codec and dim, byte for
/// byte.
void copy_keys(Block from, Block to, int slot, int count) noexcept;
void copy_values(Block from, Block to, int slot, int count) noexcept;

/// Stores rows whose every value is `value` in slots [slot, slot + count).
void fill_keys(Block block, int slot, int count, double value) noexcept;
void fill_values(Block block, int slot, int count, double value) noexcept;

/// The same for all slots and heads of `count` neighbouring cells.
void fill_cells(const CellLayout& layout, std::byte* cells, std::size_t count, double value) noexcept;

}  // namespace stet::kv
