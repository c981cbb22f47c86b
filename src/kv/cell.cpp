#include "kv/cell.hpp"

#include "kv/sizes.hpp"

namespace stet {

const char* name_of(Codec codec) noexcept {
  switch (codec) {
    case Codec::f64:
      return "f64";
    case Codec::f32:
      return "f32";
    case Codec::bf16:
      return "bf16";
    case Codec::f16:
      return "f16";
    case Codec::int8:
      return "int8";
    case Codec::int4:
      break;
  }
  return "int4";
}

namespace kv {
namespace {

// The values of one token and head, without a scale.
std::size_t code_bytes(Codec codec, int dim) noexcept {
  const auto n = static_cast<std::size_t>(dim);
  switch (codec) {
    case Codec::f64:
      return multiply(n, sizeof(double));
    case Codec::f32:
      return multiply(n, sizeof(float));
    case Codec::bf16:
    case Codec::f16:
      return multiply(n, 2);
    case Codec::int8:
      return n;
    case Codec::int4:
      break;
  }
  return (n + 1) / 2;
}

std::size_t scale_bytes(Codec codec) noexcept {
  return has_scale(codec) ? sizeof(float) : 0;
}

}  // namespace

bool is_known(Codec codec) noexcept {
  return codec <= Codec::int4;
}

std::size_t row_bytes(const LayerSpec& layer) noexcept {
  const std::size_t k = code_bytes(layer.k, layer.k_dim) + scale_bytes(layer.k);
  const std::size_t v = code_bytes(layer.v, layer.v_dim) + scale_bytes(layer.v);
  return multiply(static_cast<std::size_t>(layer.kv_heads), add(k, v));
}

CellLayout cell_layout(const LayerSpec& layer) noexcept {
  CellLayout cell{layer.k, layer.v, layer.kv_heads, layer.k_dim, layer.v_dim};
  const auto place = [](std::size_t at, Codec codec, int dim) {
    return add(at, round_up(multiply(kCell, code_bytes(codec, dim))));
  };
  cell.k_scales = place(0, layer.k, layer.k_dim);
  cell.v_offset = add(cell.k_scales, multiply(kCell, scale_bytes(layer.k)));
  cell.v_scales = place(cell.v_offset, layer.v, layer.v_dim);
  cell.head_stride = add(cell.v_scales, multiply(kCell, scale_bytes(layer.v)));
  cell.bytes = multiply(static_cast<std::size_t>(layer.kv_heads), cell.head_stride);
  return cell;
}

}  // namespace kv
}  // namespace stet
