#include "kernels/packed.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "core/half.hpp"

namespace stet::kernels {
namespace {

constexpr int kMostGroup = 64;

// Where quant i of a group lies, for output `column` of its panel: byte, and for int4 which half.
constexpr int int8_at(int i, int column) {
  return i / 4 * 256 + column * 4 + i % 4;
}
constexpr int int4_at(int i, int column) {
  return i / 8 * 256 + column * 4 + i % 4;
}

struct Quants {
  std::uint16_t scale = 0;            // bf16
  std::array<float, kMostGroup> q{};  // whole numbers
  double error = 0;                   // sum of squares
};

// x rounded to the nearest whole number, ties to even, for |x| < 2^22: what nearbyint does, but a loop of it
// vectorises.
float rounded(float x) {
  constexpr float kShift = 0x1.8p23F;
  return (x + kShift) - kShift;
}

Quants quantize_with(float wanted_scale, const float* w, int n, float low, float high) {
  Quants result;
  result.scale = f32_to_bf16(wanted_scale);
  const float scale = bf16_to_f32(result.scale);
  if (scale == 0) {
    for (int i = 0; i < n; ++i) result.error += static_cast<double>(w[i]) * w[i];
    return result;
  }
  float* q = result.q.data();
  for (int i = 0; i < n; ++i) q[i] = rounded(std::min(std::max(w[i] / scale, low), high));
  for (int i = 0; i < n; ++i) {
    const double d = static_cast<double>(w[i]) - static_cast<double>(scale) * q[i];
    result.error += d * d;
  }
  return result;
}

// int8: the largest magnitude becomes 127. int4 has 16 values only, so several scales compete for the least squared
// error: with the extreme at -8 (the range has one value more below zero) and at what lies around it, then twice the
// scale that fits the quants best. On the bundled model this takes a quarter of the excess loss of int4
// (docs/decisions/0004).
Quants quantize(DType type, const float* w, int n) {
  float extreme = 0;
  for (int i = 0; i < n; ++i) extreme = std::abs(w[i]) > std::abs(extreme) ? w[i] : extreme;
  if (type == DType::int8) return quantize_with(std::abs(extreme) / 127.0F, w, n, -127.0F, 127.0F);

  Quants best = quantize_with(extreme / -8.0F, w, n, -8.0F, 7.0F);
  const auto compete = [&](float scale) {
    if (const Quants other = quantize_with(scale, w, n, -8.0F, 7.0F); other.error < best.error) best = other;
  };
  for (const float at : {-7.0F, -7.5F, -8.5F, 7.5F}) compete(extreme / at);
  for (int round = 0; round < 2; ++round) {
    double wq = 0, qq = 0;
    for (int i = 0; i < n; ++i) {
      const double q = best.q[static_cast<std::size_t>(i)];
      wq += w[i] * q;
      qq += q * q;
    }
    if (qq > 0) compete(static_cast<float>(wq / qq));
  }
  return best;
}

}  // namespace

std::size_t Packed::bytes(DType type, std::int64_t in, std::int64_t out) noexcept {
  const std::int64_t panels = (out + panel_width(type) - 1) / panel_width(type);
  const std::int64_t groups = (in + group_size(type) - 1) / group_size(type);
  return static_cast<std::size_t>(panels) * static_cast<std::size_t>(groups) * group_bytes(type);
}

Result<Packed> Packed::allocate(DType type, int in, int out) {
  Packed packed;
  packed.type_ = type;
  packed.in_ = in;
  packed.out_ = out;
  auto buffer = base::Buffer::allocate(bytes(type, in, out));
  if (!buffer) return pass(buffer);
  packed.data_ = std::move(*buffer);
  packed.data_.prefer_huge_pages();  // fewer faults to fill them, fewer translations to stream them for every token
  // Only the padding needs zeros; everything else is set by the loader. Padded quants have any value: their scale is 0.
  if (out % panel_width(type) != 0) {
    std::memset(packed.data_.data() + packed.data_.size() - packed.panel_bytes(), 0, packed.panel_bytes());
  }
  return packed;
}

// Stores inputs of group g for one output; value(i) is that of input g * group_size + i, i < count.
template <class T, class Value>
void Packed::set_group(int p, int g, int column, int count, const Value& value) noexcept {
  std::byte* to = group(p, g);
  switch (type_) {
    case DType::f64:
      reinterpret_cast<double*>(to)[column] = static_cast<double>(value(0));
      return;
    case DType::f32:
      reinterpret_cast<float*>(to)[column] = static_cast<float>(value(0));
      return;
    case DType::f16:
      reinterpret_cast<std::uint16_t*>(to)[column] = f32_to_f16(static_cast<float>(value(0)));
      return;
    case DType::bf16:
      reinterpret_cast<std::uint16_t*>(to)[column] = f32_to_bf16(static_cast<float>(value(0)));
      return;
    case DType::int8:
    case DType::int4:
      break;
  }
  const int n = group_size(type_);
  const int zero = type_ == DType::int8 ? 128 : 8;
  std::array<float, kMostGroup> w{};
  for (int i = 0; i < count; ++i) w[static_cast<std::size_t>(i)] = static_cast<float>(value(i));
  const Quants quants = quantize(type_, w.data(), n);
  reinterpret_cast<std::uint16_t*>(to)[column] = quants.scale;
  auto* q = reinterpret_cast<std::uint8_t*>(to) + static_cast<std::size_t>(panel_width(type_)) * 2;
  for (int i = 0; i < n; ++i) {
    const auto quant = static_cast<unsigned>(zero + static_cast<int>(quants.q[static_cast<std::size_t>(i)]));
    if (type_ == DType::int8) {
      q[int8_at(i, column)] = static_cast<std::uint8_t>(quant);
    } else {
      std::uint8_t& pair = q[int4_at(i, column)];
      pair = static_cast<std::uint8_t>(i % 8 < 4 ? quant : pair | quant << 4U);
    }
  }
}

template <class T>
void Packed::set_inputs(int k, int count, std::span<const T> values) noexcept {
  const int size = group_size(type_), width = panel_width(type_);
  for (int p = 0; p < panels(); ++p) {
    const int columns = std::min(width, out_ - p * width);
    for (int i = 0; i < count; i += size) {
      const T* from = values.data() + static_cast<std::size_t>(i) * static_cast<std::size_t>(out_) + p * width;
      std::byte* to = group(p, (k + i) / size);
      if (type_ == DType::f32 && sizeof(T) == sizeof(float)) {
        std::memcpy(to, from, static_cast<std::size_t>(columns) * sizeof(T));
        continue;
      }
      for (int c = 0; c < columns; ++c) {
        set_group<T>(p, (k + i) / size, c, std::min(size, count - i),
                     [&](int j) { return from[static_cast<std::size_t>(j) * static_cast<std::size_t>(out_) + c]; });
      }
    }
  }
}

template <class T>
void Packed::set_outputs(int n, int count, std::span<const T> values) noexcept {
  const int size = group_size(type_), width = panel_width(type_);
  // A tile of inputs at a time: what is written stays in the first-level cache until all outputs of the panel are
  // there.
  const int tile = size > 1 ? size : 16;
  for (int first = n; first < n + count;) {
    const int p = first / width, last = std::min(n + count, (p + 1) * width);
    for (int k = 0; k < in_; k += tile) {
      const int inputs = std::min(tile, in_ - k);
      for (int output = first; output < last; ++output) {
        const T* w = values.data() + static_cast<std::size_t>(output - n) * static_cast<std::size_t>(in_) + k;
        if (type_ == DType::f32 && sizeof(T) == sizeof(float)) {
          auto* to = reinterpret_cast<T*>(group(p, k)) + output % width;
          for (int i = 0; i < inputs; ++i) to[static_cast<std::size_t>(i) * static_cast<std::size_t>(width)] = w[i];
          continue;
        }
        for (int i = 0; i < inputs; i += size) {
          set_group<T>(p, (k + i) / size, output % width, std::min(size, inputs - i), [&](int j) { return w[i + j]; });
        }
      }
    }
    first = last;
  }
}

template <class T>
void Packed::get_output(int n, std::span<T> column) const noexcept {
  const int size = group_size(type_), width = panel_width(type_), c = n % width;
  const std::byte* from = panel(n / width);
  for (int k = 0; k < in_; ++k) {
    const std::byte* g = from + static_cast<std::size_t>(k / size) * group_bytes(type_);
    const auto* q = reinterpret_cast<const std::uint8_t*>(g) + static_cast<std::size_t>(width) * 2;
    const auto half = [&](int i) { return reinterpret_cast<const std::uint16_t*>(g)[i]; };
    T& to = column[static_cast<std::size_t>(k)];
    switch (type_) {
      case DType::f64:
        to = static_cast<T>(reinterpret_cast<const double*>(g)[c]);
        break;
      case DType::f32:
        to = static_cast<T>(reinterpret_cast<const float*>(g)[c]);
        break;
      case DType::f16:
        to = f16_to_f32(half(c));
        break;
      case DType::bf16:
        to = bf16_to_f32(half(c));
        break;
      case DType::int8:
        to = bf16_to_f32(half(c)) * static_cast<float>(q[int8_at(k % size, c)] - 128);
        break;
      case DType::int4: {
        const int pair = q[int4_at(k % size, c)];
        to = bf16_to_f32(half(c)) * static_cast<float>((k % 8 < 4 ? pair & 15 : pair >> 4) - 8);
        break;
      }
    }
  }
}

template void Packed::set_inputs(int, int, std::span<const float>) noexcept;
template void Packed::set_inputs(int, int, std::span<const double>) noexcept;
template void Packed::set_outputs(int, int, std::span<const float>) noexcept;
template void Packed::set_outputs(int, int, std::span<const double>) noexcept;
template void Packed::get_output(int, std::span<float>) const noexcept;
template void Packed::get_output(int, std::span<double>) const noexcept;

}  // namespace stet::kernels
