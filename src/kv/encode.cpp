#include "kv/encode.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>

#include "core/half.hpp"
#include "kv/cell.hpp"

namespace stet::kv {
namespace {

constexpr int kSlots = static_cast<int>(kCell);

// A row whose largest magnitude is below this is all zeros, with scale 0: its inverse scale would overflow.
constexpr float kSmallest = 0x1p-100F;

// f64 goes to 16 bits by way of f32.
template <class Out, class In>
Out narrow(In value, Codec codec) noexcept {
  if constexpr (std::is_same_v<Out, std::uint16_t>) {
    const auto x = static_cast<float>(value);
    return codec == Codec::bf16 ? f32_to_bf16(x) : f32_to_f16(x);
  } else {
    return static_cast<Out>(value);
  }
}

// Row r of values of type T. The first argument only names the type.
template <class T>
const T* row(const T*, HeadRows rows, int r) noexcept {
  return reinterpret_cast<const T*>(rows.data + static_cast<std::size_t>(r) * rows.stride);
}

template <class F>
void with_given(HeadRows rows, F f) noexcept {
  if (rows.type == DType::f64) return f(reinterpret_cast<const double*>(rows.data));
  return f(reinterpret_cast<const float*>(rows.data));
}

// Calls f with a pointer to what an unscaled codec stores.
template <class F>
void with_stored(Block block, F f) noexcept {
  if (block.codec == Codec::f64) return f(reinterpret_cast<double*>(block.data));
  if (block.codec == Codec::f32) return f(reinterpret_cast<float*>(block.data));
  return f(reinterpret_cast<std::uint16_t*>(block.data));
}

std::size_t bytes_of_value(Codec codec) noexcept {
  switch (codec) {
    case Codec::f64:
      return sizeof(double);
    case Codec::f32:
      return sizeof(float);
    case Codec::bf16:
    case Codec::f16:
      return sizeof(std::uint16_t);
    default:
      return 1;  // of int4 a pair
  }
}

// Lines of 16 that the keys of a block have, and values that a row of V has: pairs for int4.
int elements(Block block) noexcept {
  return block.codec == Codec::int4 ? (block.dim + 1) / 2 : block.dim;
}

std::size_t key_index(int slot, int d) noexcept {
  return static_cast<std::size_t>(d) * kSlots + static_cast<std::size_t>(slot);
}
std::size_t value_index(Block block, int slot, int d) noexcept {
  return static_cast<std::size_t>(slot) * static_cast<std::size_t>(elements(block)) + static_cast<std::size_t>(d);
}

// One row in codes. The scale is the code's unit: int8 has the largest magnitude at +-127; int4 has the value of the
// largest magnitude at -8, whatever its sign, which uses all 16 codes.
struct Scaled {
  float scale, inverse;
};

template <class T>
Scaled scale_of(const T* x, int n, Codec codec) noexcept {
  float largest = 0, most = 0;
  bool finite = true;
  for (int i = 0; i < n; ++i) {
    const auto v = static_cast<float>(x[i]);
    const float magnitude = std::fabs(v);
    finite = finite && magnitude <= std::numeric_limits<float>::max();
    if (magnitude > most) {
      most = magnitude;
      largest = v;
    }
  }
  if (!finite) return {std::numeric_limits<float>::quiet_NaN(), 0};
  if (most < kSmallest) return {0, 0};
  if (codec == Codec::int8) return {most / 127, 127 / most};
  return {largest / -8, -8 / largest};
}

int code_of(float x, Scaled s, int low, int high) noexcept {
  if (s.inverse == 0) return 0;  // also where x is not finite
  return std::clamp(static_cast<int>(std::nearbyint(x * s.inverse)), low, high);
}

std::byte pair_of(int low, int high) noexcept {
  return static_cast<std::byte>((low + 8) | (high + 8) << 4);
}

template <class T>
void encode_scaled_key(Block block, int slot, const T* x) noexcept {
  const Scaled s = scale_of(x, block.dim, block.codec);
  block.scales[slot] = s.scale;
  if (block.codec == Codec::int8) {
    for (int d = 0; d < block.dim; ++d) {
      block.data[key_index(slot, d)] = static_cast<std::byte>(code_of(static_cast<float>(x[d]), s, -127, 127));
    }
    return;
  }
  const auto code = [&](int d) { return d < block.dim ? code_of(static_cast<float>(x[d]), s, -8, 7) : 0; };
  for (int i = 0; i < elements(block); ++i) block.data[key_index(slot, i)] = pair_of(code(2 * i), code(2 * i + 1));
}

template <class T>
void encode_scaled_value(Block block, int slot, const T* x) noexcept {
  const Scaled s = scale_of(x, block.dim, block.codec);
  block.scales[slot] = s.scale;
  std::byte* to = block.data + value_index(block, slot, 0);
  if (block.codec == Codec::int8) {
    for (int d = 0; d < block.dim; ++d) to[d] = static_cast<std::byte>(code_of(static_cast<float>(x[d]), s, -127, 127));
    return;
  }
  const int half = elements(block);
  const auto code = [&](int d) { return d < block.dim ? code_of(static_cast<float>(x[d]), s, -8, 7) : 0; };
  for (int i = 0; i < half; ++i) to[i] = pair_of(code(i), code(i + half));
}

double load(Block block, std::size_t index) noexcept {
  switch (block.codec) {
    case Codec::f64:
      return reinterpret_cast<const double*>(block.data)[index];
    case Codec::f32:
      return reinterpret_cast<const float*>(block.data)[index];
    case Codec::bf16:
      return bf16_to_f32(reinterpret_cast<const std::uint16_t*>(block.data)[index]);
    case Codec::f16:
      return f16_to_f32(reinterpret_cast<const std::uint16_t*>(block.data)[index]);
    default:
      return static_cast<double>(reinterpret_cast<const std::int8_t*>(block.data)[index]);
  }
}

double half_of(std::byte pair, bool high) noexcept {
  return static_cast<double>((static_cast<int>(pair) >> (high ? 4 : 0) & 15) - 8);
}

Block block_at(Codec codec, int dim, std::byte* data, std::byte* scales) noexcept {
  return {codec, dim, data, has_scale(codec) ? reinterpret_cast<float*>(scales) : nullptr};
}

void copy_scales(Block from, Block to, int slot, int count) noexcept {
  if (has_scale(from.codec)) std::copy_n(from.scales + slot, count, to.scales + slot);
}

// What a row whose every value is `value` stores for each of its elements, and its scale.
struct Constant {
  std::array<std::byte, sizeof(double)> element{};
  float scale = 0;

  Constant(Codec codec, double value) noexcept {
    // A row of two: int4 has both in one element.
    const std::array<double, 2> row = {value, value};
    alignas(double) std::array<std::byte, 2 * sizeof(double)> stored{};
    encode_values({codec, 2, stored.data(), &scale}, 0, {DType::f64, reinterpret_cast<const std::byte*>(row.data()), 0},
                  1);
    std::copy_n(stored.begin(), element.size(), element.begin());
  }
};

// `index` of slot and element: where it lies.
template <class F>
void fill(Block block, int slot, int count, double value, F index) noexcept {
  const Constant constant(block.codec, value);
  const std::size_t size = bytes_of_value(block.codec);
  for (int t = slot; t < slot + count; ++t) {
    for (int d = 0; d < elements(block); ++d) {
      std::copy_n(constant.element.begin(), size, block.data + index(t, d) * size);
    }
    if (has_scale(block.codec)) block.scales[t] = constant.scale;
  }
}

}  // namespace

Block key_block(const CellLayout& layout, std::byte* cell, int head) noexcept {
  std::byte* at = cell + static_cast<std::size_t>(head) * layout.head_stride;
  return block_at(layout.k, layout.k_dim, at, at + layout.k_scales);
}

Block value_block(const CellLayout& layout, std::byte* cell, int head) noexcept {
  std::byte* at = cell + static_cast<std::size_t>(head) * layout.head_stride;
  return block_at(layout.v, layout.v_dim, at + layout.v_offset, at + layout.v_scales);
}

void encode_keys(Block block, int slot, HeadRows rows, int count) noexcept {
  with_given(rows, [&]<class In>(const In* in) {
    if (has_scale(block.codec)) {
      for (int t = 0; t < count; ++t) encode_scaled_key(block, slot + t, row(in, rows, t));
      return;
    }
    with_stored(block, [&]<class Out>(Out* out) {
      if (count == kSlots) {
        // A whole cell, the common case of prefill: the stores run through memory in order.
        std::array<const In*, kSlots> from;
        for (int t = 0; t < kSlots; ++t) from[t] = row(in, rows, t);
        for (int d = 0; d < block.dim; ++d, out += kSlots) {
          for (int t = 0; t < kSlots; ++t) out[t] = narrow<Out>(from[t][d], block.codec);
        }
        return;
      }
      for (int t = 0; t < count; ++t) {
        const In* from = row(in, rows, t);
        for (int d = 0; d < block.dim; ++d) out[key_index(slot + t, d)] = narrow<Out>(from[d], block.codec);
      }
    });
  });
}

void encode_values(Block block, int slot, HeadRows rows, int count) noexcept {
  with_given(rows, [&]<class In>(const In* in) {
    if (has_scale(block.codec)) {
      for (int t = 0; t < count; ++t) encode_scaled_value(block, slot + t, row(in, rows, t));
      return;
    }
    with_stored(block, [&]<class Out>(Out* out) {
      for (int t = 0; t < count; ++t) {
        const In* from = row(in, rows, t);
        Out* to = out + value_index(block, slot + t, 0);
        for (int d = 0; d < block.dim; ++d) to[d] = narrow<Out>(from[d], block.codec);
      }
    });
  });
}

double decode_key(Block block, int slot, int d) noexcept {
  if (block.codec == Codec::int4) {
    return half_of(block.data[key_index(slot, d / 2)], d % 2 == 1) * static_cast<double>(block.scales[slot]);
  }
  const double value = load(block, key_index(slot, d));
  return has_scale(block.codec) ? value * static_cast<double>(block.scales[slot]) : value;
}

double decode_value(Block block, int slot, int d) noexcept {
  if (block.codec == Codec::int4) {
    const int half = elements(block);
    return half_of(block.data[value_index(block, slot, d % half)], d >= half) * static_cast<double>(block.scales[slot]);
  }
  const double value = load(block, value_index(block, slot, d));
  return has_scale(block.codec) ? value * static_cast<double>(block.scales[slot]) : value;
}

void copy_keys(Block from, Block to, int slot, int count) noexcept {
  const std::size_t size = bytes_of_value(from.codec);
  for (int d = 0; d < elements(from); ++d) {
    const std::size_t at = key_index(slot, d) * size;
    std::copy_n(from.data + at, static_cast<std::size_t>(count) * size, to.data + at);
  }
  copy_scales(from, to, slot, count);
}

void copy_values(Block from, Block to, int slot, int count) noexcept {
  const std::size_t size = bytes_of_value(from.codec), at = value_index(from, slot, 0) * size;
  std::copy_n(from.data + at, value_index(from, count, 0) * size, to.data + at);
  copy_scales(from, to, slot, count);
}

void fill_keys(Block block, int slot, int count, double value) noexcept {
  fill(block, slot, count, value, [](int t, int d) { return key_index(t, d); });
}

void fill_values(Block block, int slot, int count, double value) noexcept {
  fill(block, slot, count, value, [&](int t, int d) { return value_index(block, t, d); });
}

void fill_cells(const CellLayout& layout, std::byte* cells, std::size_t count, double value) noexcept {
  if (count == 0) return;
  for (int head = 0; head < layout.kv_heads; ++head) {
    fill_keys(key_block(layout, cells, head), 0, kSlots, value);
    fill_values(value_block(layout, cells, head), 0, kSlots, value);
  }
  for (std::size_t c = 1; c < count; ++c) std::copy_n(cells, layout.bytes, cells + c * layout.bytes);
}

}  // namespace stet::kv
