#include "kv/encode.hpp"

#include <array>
#include <cstring>

namespace stet::kv {
namespace {

constexpr int kSlots = static_cast<int>(kCell);

// All bits set is a NaN in f32 and in f64.
constexpr int kNanByte = 0xFF;

std::size_t value_size(Codec codec) noexcept {
  return codec == Codec::f64 ? sizeof(double) : sizeof(float);
}

// Row r of values of type T. The first argument only names the type.
template <class T>
const T* row(const T*, HeadRows rows, int r) noexcept {
  return reinterpret_cast<const T*>(rows.data + static_cast<std::size_t>(r) * rows.stride);
}

// Calls f(given, stored) with the two data pointers in their types.
template <class F>
void with_types(HeadRows rows, Block block, F f) noexcept {
  const auto stored_as = [&](auto* given) {
    if (block.codec == Codec::f64) return f(given, reinterpret_cast<double*>(block.data));
    return f(given, reinterpret_cast<float*>(block.data));
  };
  if (rows.type == DType::f64) return stored_as(reinterpret_cast<const double*>(rows.data));
  return stored_as(reinterpret_cast<const float*>(rows.data));
}

double load(Block block, std::size_t index) noexcept {
  if (block.codec == Codec::f64) return reinterpret_cast<const double*>(block.data)[index];
  return reinterpret_cast<const float*>(block.data)[index];
}

std::size_t key_index(int slot, int d) noexcept {
  return static_cast<std::size_t>(d) * kSlots + slot;
}
std::size_t value_index(int dim, int slot) noexcept {
  return static_cast<std::size_t>(slot) * dim;
}

}  // namespace

Block key_block(const CellLayout& layout, std::byte* cell, int head) noexcept {
  return {layout.k, layout.k_dim, cell + static_cast<std::size_t>(head) * layout.head_stride};
}

Block value_block(const CellLayout& layout, std::byte* cell, int head) noexcept {
  return {layout.v, layout.v_dim, cell + static_cast<std::size_t>(head) * layout.head_stride + layout.v_offset};
}

void encode_keys(Block block, int slot, HeadRows rows, int count) noexcept {
  with_types(rows, block, [&]<class In, class Out>(const In* in, Out* out) {
    if (count == kSlots) {
      // A whole cell, the common case of prefill: the stores run through memory in order.
      std::array<const In*, kSlots> from;
      for (int t = 0; t < kSlots; ++t) from[t] = row(in, rows, t);
      for (int d = 0; d < block.dim; ++d, out += kSlots) {
        for (int t = 0; t < kSlots; ++t) out[t] = static_cast<Out>(from[t][d]);
      }
      return;
    }
    for (int t = 0; t < count; ++t) {
      const In* from = row(in, rows, t);
      for (int d = 0; d < block.dim; ++d) out[key_index(slot + t, d)] = static_cast<Out>(from[d]);
    }
  });
}

void encode_values(Block block, int slot, HeadRows rows, int count) noexcept {
  with_types(rows, block, [&]<class In, class Out>(const In* in, Out* out) {
    for (int t = 0; t < count; ++t) {
      const In* from = row(in, rows, t);
      Out* to = out + value_index(block.dim, slot + t);
      for (int d = 0; d < block.dim; ++d) to[d] = static_cast<Out>(from[d]);
    }
  });
}

double decode_key(Block block, int slot, int d) noexcept {
  return load(block, key_index(slot, d));
}

double decode_value(Block block, int slot, int d) noexcept {
  return load(block, value_index(block.dim, slot) + static_cast<std::size_t>(d));
}

void poison_keys(Block block, int slot, int count) noexcept {
  const std::size_t size = value_size(block.codec);
  for (int d = 0; d < block.dim; ++d) {
    poison_bytes(block.data + key_index(slot, d) * size, static_cast<std::size_t>(count) * size);
  }
}

void poison_values(Block block, int slot, int count) noexcept {
  const std::size_t size = value_size(block.codec);
  poison_bytes(block.data + value_index(block.dim, slot) * size, value_index(block.dim, count) * size);
}

void poison_bytes(std::byte* data, std::size_t bytes) noexcept {
  std::memset(data, kNanByte, bytes);
}

}  // namespace stet::kv
